"""The host's end of a process: started in a containment, spoken to in JSON lines, and ended with all that it started.

`LineProcess` is what tool workers and agent programs (`agents.backends`) share. `Child` is a tool worker: it runs file tools,
one agent's shell, or the connection to an MCP server. A pool knows a worker as the protocol `ToolWorker`, which the
simulation of the tests implements too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

from watchkeeper.agents.tools.containment import Containment, Uncontained
from watchkeeper.agents.tools.contract import is_content
from watchkeeper.agents.tools.processes import (
    command_line,
    jobs_of_shell,
    kill_group,
    kill_tree,
    memory_bytes,
    shell_of,
    start_ticks,
    worker_environment,
)
from watchkeeper.records import proc
from watchkeeper.records.errors import HostFault, from_record, host_fault, message_of, shortage_in

START_SECONDS = 60.0
END_SECONDS = 5.0
"""How long a killed process may take to disappear."""
_BESIDE_THE_LOOP = 256 * 1024
_FOR_THE_RUN = (-signal.SIGINT, -signal.SIGHUP)
"""Exit codes of a worker that died of a signal which the terminal sends to every process."""


class LineProcess(ABC):
    """A process that speaks JSON lines on its standard streams; it leads a session of its own.

    Any number of requests may be under way; answers are matched by number. A subclass says what a message means.
    """

    label: ClassVar[str]
    """What it is called in a reason."""
    largest_line: ClassVar[int]
    """Bytes."""
    unstartable: ClassVar[type[Exception]]
    """Raised where it cannot be started."""

    def __init__(self) -> None:
        self._next_id = 0
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure = ""
        self.ended = asyncio.Event()
        """Set when it has ended, or no answer of it will come."""

    @abstractmethod
    def _take(self, message: Any) -> None:
        """Take a message; None in the place of a line that is no JSON. Raises ValueError where that breaks the protocol."""

    @abstractmethod
    async def _output_ended(self, *, broke_protocol: bool) -> None:
        """It says nothing more."""

    @abstractmethod
    def _lost(self, why: str, *, began: bool = False) -> Exception:
        """What a request raises that gets no answer. `began`: the process had it by then."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self.ended.is_set() and self._process.returncode is None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside, until the process is killed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def kill(self) -> None:
        """End it, and everything that it started. May be called at any time, and again."""
        self._fail(f"{self.label} was stopped")
        if self._process.returncode is None:
            kill_tree(self.pid)
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._wait(END_SECONDS)
        self._close_pipes()

    async def close(self, grace_seconds: float) -> None:
        """End it as `kill` does, but first let it end what it started."""
        if self._process.returncode is None:
            self._stdin.close()
            await self._wait(grace_seconds)
        await self.kill()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Where it has ended, what `_lost` makes is raised."""
        if not self.alive:
            raise self._lost(self._why_ended())
        try:
            self._stdin.write(json.dumps(message).encode() + b"\n")
            await self._stdin.drain()
            if self._stdin.is_closing():  # the next write reports what could not be written
                raise ConnectionResetError
        except (BrokenPipeError, ConnectionResetError) as error:
            raise await self._not_sent() from error

    async def _launch(
        self, name: str, module: str, containment: Containment, *arguments: str,
        folder: Path | str, environ: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Start a module of Watchkeeper; its arguments are the host's number, those of the containment, and these.

        Raises:
            HostFault: the machine ran out of something. Anything else that prevents it is `unstartable`.
        """
        loop = asyncio.get_running_loop()
        spawned, pipe = _Spawned(limit=self.largest_line, loop=loop), asyncio.subprocess.PIPE
        try:
            # With -P, nothing in a workspace can stand in for a module that it imports.
            self._transport, _ = await loop.subprocess_exec(
                lambda: spawned, sys.executable, "-P", "-m", module, str(os.getpid()),
                *await containment.prepare(), *arguments,
                stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, env=environ, start_new_session=True,
            )  # fmt: skip
        except BaseException as error:
            spawned.given_up = True
            if not isinstance(error, (OSError, RuntimeError, ValueError, MemoryError)):
                raise
            if (fault := host_fault(error)) is not None:
                raise fault from error
            raise self.unstartable(f"cannot start {name}: {error}") from error
        self._process = process = asyncio.subprocess.Process(self._transport, spawned, loop)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr

    async def _request(self, message: Mapping[str, Any]) -> Any:
        """Send a request and wait for its answer. Raises what `_lost` makes."""
        self._next_id = number = self._next_id + 1
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            await self.send({**message, "id": number})
            return await answer
        except asyncio.CancelledError:
            answer.cancel()
            self._forget(number)
            raise

    def _forget(self, number: int) -> None:  # noqa: B027 - not every process accepts a cancel
        """Nothing waits for the answer to this request any more."""

    async def _not_sent(self) -> Exception:
        """What a request raises that could not be written: without its last byte, its line's end, it was not read either."""
        return self._lost(self._why_ended())

    async def _read(self) -> None:
        """Take what it says, until it ends or breaks its protocol."""
        broke_protocol = True
        with suppress(ValueError):
            while line := await self._stdout.readline():
                try:
                    large = len(line) > _BESIDE_THE_LOOP
                    message = await asyncio.to_thread(self._parse, line) if large else self._parse(line)
                except (ValueError, RecursionError):
                    message = None
                self._take(message)
            broke_protocol = False
        await self._output_ended(broke_protocol=broke_protocol)

    def _parse(self, line: bytes) -> Any:
        """The message in a line. Raises ValueError or RecursionError."""
        return json.loads(line)

    def _fail(self, why: str) -> None:
        """No answer will come: tell everyone who waits for one."""
        self._failure = self._failure or why
        self.ended.set()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(self._lost(self._failure, began=True))
                waiting.exception()  # seen, also where its request could not be written

    def _why_ended(self) -> str:
        return self._failure or f"{self.label} died"

    async def _wait(self, seconds: float) -> int:
        """Its exit code; 0 where it has not ended after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        return 0

    def _close_pipes(self) -> None:
        # Left open, a surviving holder of an end would keep a killed process alive.
        with suppress(PermissionError, ProcessLookupError):
            self._transport.close()


class _Spawned(asyncio.subprocess.SubprocessStreamProtocol):
    """A process's pipes; one that was started, and could then not be watched, is killed. `create_subprocess_exec` leaves it
    running where no thread can be started to wait for it."""

    given_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.given_up:
            transport.close()


# --- A tool worker ------------------------------------------------------------------------------------------


class ChildFailed(Exception):
    """The worker died, would not start, or said something that is no answer. The message is one line for a
    model. `began`: it had the call by then, which may have had an effect."""

    def __init__(self, message: str, *, began: bool = False) -> None:
        super().__init__(message)
        self.began = began


class _Signalled(ChildFailed):
    """A signal that was meant for the run ended it before it was ready."""


class ToolWorker(Protocol):
    """What a pool needs of a worker. `Child` is the one that runs as a process."""

    folder: tuple[int, int] | None
    """Device and inode of the folder that a file worker may write to."""

    @property
    def alive(self) -> bool: ...

    async def call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer. Cancelling asks the worker to stop, and forgets the answer.

        Raises:
            ChildFailed: no valid answer will come.
            HostFault: the machine ran out of something; `began` says whether the call may have had an effect.
        """

    async def kill(self) -> None:
        """End it, and everything that it started. May be called at any time, and again."""

    def shell_identity(self) -> str:
        """Which process its shell is; empty where it has none."""

    def shell_folder(self) -> str | None:
        """The folder that its shell is in; None where it cannot be known."""

    def shell_jobs(self) -> tuple[str, ...]:
        """The command line of each of its shell's background jobs; empty for one that begins or ends in this moment."""

    def memory_bytes(self) -> int | None:
        """The memory of the worker and all that it started; None where the system cannot tell."""


class StartWorker(Protocol):
    """Starts a worker: `Child.start`."""

    async def __call__(
        self,
        config: Mapping[str, Any],
        environ: Mapping[str, str],
        agent_id: str,
        containment: Containment | None,
        /,
    ) -> ToolWorker:
        """Raises ChildFailed or HostFault where it did not become ready."""


class Child(LineProcess):
    """A worker that runs as a process: a `ToolWorker`. One that breaks the protocol is killed."""

    label = "the tool worker"
    largest_line = 16 * 1024 * 1024
    unstartable = ChildFailed

    def __init__(self, agent_id: str, containment: Containment) -> None:
        super().__init__()
        self._agent_id = agent_id
        self._containment = containment
        self.folder: tuple[int, int] | None = None

    @classmethod
    async def start(
        cls,
        config: Mapping[str, Any],
        environ: Mapping[str, str],
        agent_id: str,
        containment: Containment | None = None,
    ) -> Child:
        """Start a worker and wait until it is ready. `containment` takes in the worker, and all that it
        starts, before it receives a request.

        Raises:
            ChildFailed: it did not become ready.
            HostFault: it did not, because the machine ran out of something.
        """
        contain = containment or Uncontained()
        with suppress(_Signalled):
            return await cls._start(config, environ, agent_id, contain)
        # A Ctrl+C reaches each process that does not yet lead a session; it was meant for the run, not for its
        # worker.
        return await cls._start(config, environ, agent_id, contain)

    @classmethod
    async def _start(
        cls, config: Mapping[str, Any], environ: Mapping[str, str], agent_id: str, containment: Containment
    ) -> Child:
        child = cls(agent_id, containment)
        await child._launch(
            "a tool worker", "watchkeeper.agents.tools.worker", containment,
            folder="/", environ=worker_environment(environ, agent_id),
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_SECONDS):
                await containment.admit(child.pid, agent_id)
                with suppress(ChildFailed):  # it ended before it could read, and its last words say why
                    await child.send(config)
                await child._await_ready()
        except (TimeoutError, OSError, ChildFailed) as error:
            await child.kill()
            if (fault := host_fault(error)) is not None:
                raise fault from error
            kind = _Signalled if child._process.returncode in _FOR_THE_RUN else ChildFailed
            raise kind(f"a tool worker did not start: {error or 'timed out'}") from error
        except BaseException:
            await child.kill()
            raise
        child.begin(child._read())
        return child

    def shell_identity(self) -> str:
        process = shell_of(self.pid)
        return f"{process} {start_ticks(process)}" if process is not None else ""

    def shell_folder(self) -> str | None:
        process = shell_of(self.pid)
        folder = proc.folder_of(process) if process is not None else None
        return folder if folder is not None and os.path.isdir(folder) else None

    def shell_jobs(self) -> tuple[str, ...]:
        return tuple(map(command_line, jobs_of_shell(self.pid)))

    def memory_bytes(self) -> int | None:
        return memory_bytes(self.pid)

    async def call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._request(request)
        if (fault := from_record(answer.get("host_fault"))) is not None:
            raise fault
        if left := answer.pop("left", None):
            await self._containment.register(self._agent_id, ((pid, ticks) for pid, ticks in left))
        if not is_content(answer.get("content")):
            raise ChildFailed("the tool worker sent an invalid response and was killed", began=True)
        return answer

    def _forget(self, number: int) -> None:
        if self.alive:
            self._stdin.write(json.dumps({"cancel": number}).encode() + b"\n")

    async def _await_ready(self) -> None:
        line = await self._stdout.readline()
        if line.strip() == b'{"ready": true}':
            return
        said = (await self._stderr.read(20_000)).decode("utf-8", "replace").strip().splitlines()
        last = said[-1] if said else "it ended immediately"
        if (fault := _told_fault(last)) is not None:
            raise fault
        raise ChildFailed(last[:300])

    async def _not_sent(self) -> Exception:
        """Also the shortage that closed the worker's standard input, if it was one."""
        # A task of its own: a cancelled waiter would cancel the future that the transport reports to.
        closing = asyncio.ensure_future(self._stdin.wait_closed())
        closing.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # looked at, even where this is cancelled
        await asyncio.wait({closing}, timeout=1)
        error = closing.exception() if closing.done() and not closing.cancelled() else None
        return (host_fault(error) if error is not None else None) or await super()._not_sent()

    def _take(self, message: Any) -> None:
        number = message.get("id") if isinstance(message, dict) else None
        waiting = self._pending.pop(number, None) if isinstance(number, int) else None
        if waiting is None:
            raise ValueError("not a response to a pending request")
        if not waiting.done():  # else it was cancelled
            waiting.set_result(message)

    async def _output_ended(self, *, broke_protocol: bool) -> None:
        if broke_protocol:
            self._fail("the tool worker violated the protocol and was killed")
            await self.kill()
            return
        # The worker's shell and its children outlive it; they share its process group, which still bears its
        # number.
        kill_group(self.pid)
        self._fail(f"the tool worker died ({_how(await self._wait(END_SECONDS))})")
        self._close_pipes()

    def _lost(self, why: str, *, began: bool = False) -> ChildFailed:
        return ChildFailed(why, began=began)


def _told_fault(line: str) -> HostFault | None:
    """The host fault in a worker's last words: its own record, or that of an interpreter that could not load
    it."""
    with suppress(ValueError):
        return from_record(json.loads(line))
    shortage = shortage_in(line)
    return HostFault(message_of(shortage), shortage) if shortage is not None else None


def _how(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
