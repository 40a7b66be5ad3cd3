"""The main program of a worker process: `python -P -m watchkeeper.agents.tools.worker HOST_PID`.

It reads JSON lines on standard input: first its configuration `{"mode", "workspace", …}`, then calls
`{"id", "tool", "arguments", "agent", …}` and `{"cancel": id}`; it answers `{"id", "content", "is_error",
"broken", "unknown"}` on standard output. Both are moved to descriptors that no child inherits, so that a tool that
prints cannot corrupt the protocol. Where the machine ran out of something, an answer also has `host_fault`
(`records.errors.as_record`), and the last line on standard error of a worker that cannot start is such a
record.

When standard input ends, because the host is gone, it kills all that it started, and exits.

Only what the mode needs is imported: `list_folder` and `bash` work without the SDKs.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import queue
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from watchkeeper.agents.tools.contract import (
    SAVE_SHELL,
    SHELL_LOST,
    WORKER_CHARACTERS,
    after_word,
    shorten_content,
)
from watchkeeper.agents.tools.processes import (
    AGENT_VARIABLE,
    NAMESPACE_FLAG,
    REGISTER_FLAG,
    SESSION_VARIABLE,
    Broken,
    OutcomeUnknown,
    adopt_orphans,
    descendants,
    die_with_parent,
    end_descendants,
    enter_namespace,
    hide_worker_variables,
    kill_descendants,
    kill_jobs,
    mark_limits,
    shell_of,
    start_ticks,
)
from watchkeeper.records import proc
from watchkeeper.records.errors import RETRY_SECONDS, HostFault, as_record, host_fault, raising_host_faults
from watchkeeper.records.process_secrets import allow_inspection, deny_inspection
from watchkeeper.records.tool_inputs import PREMISES_CHANGED

if TYPE_CHECKING:
    from watchkeeper.agents.tools.sandbox import ConfinedShells

# --- In a worker: one agent's shell. While it runs, it keeps its folder, variables and jobs from call to ---
#
# call.

TRUNCATED = "[output truncated]\n"
"""Comes before the end of an output whose beginning was dropped."""
OUTSIDE_SHELL = (
    "[ran outside your shell, in its folder: the shell's variables, functions and aliases do not apply]"
)
_OUTPUT_BYTES = 100 * 1024
_HEALTHY = (0, -signal.SIGPIPE, 128 + signal.SIGPIPE)
"""Exit codes of a part of a pipeline that ended well, or because the next part had read enough."""
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


_REPORT_BYTES = 1 << 20
_REPORT_SECONDS = 4.0
_NOT_INHERITED = re.compile(
    r"(?:BASH|LD_|DYLD_).*|_|ENV|POSIXLY_CORRECT|PROMPT_COMMAND|PS[0-4]|SHELLOPTS|SHLVL"
)
"""Variables that change how a program starts or what it loads, or that a shell sets for itself: no new one gets them."""
_OWN_VARIABLES = frozenset(
    {
        "_", "BASH_REMATCH", "EUID", "OLDPWD", "OPTARG", "OPTIND", "PIPESTATUS", "PPID", "PS1", "PS2", "PWD", "SHLVL", "UID",
    }
)  # fmt: skip
"""Variables that every shell sets for itself."""


@dataclass(frozen=True, slots=True)
class _ShellState:
    """What a shell holds beside its jobs."""

    folder: str
    variables: dict[str, str] = field(repr=False)
    """The exported ones."""
    names: frozenset[str]
    """The names of all variables."""
    functions: frozenset[str]
    aliases: frozenset[str]
    settings: str
    """Options, mask, limits and traps."""

    def inherited(self) -> dict[str, str]:
        """The variables that a new shell gets."""
        return {name: value for name, value in self.variables.items() if not _NOT_INHERITED.fullmatch(name)}

    def gone_in(self, new: _ShellState) -> dict[str, list[str]]:
        """What a new shell lacks: kind → names."""
        changed = {name for name, value in self.variables.items() if new.variables.get(name) != value}
        exported_functions = {name for name in changed if name.startswith("BASH_FUNC_")}
        variables = ((self.names - new.names) | changed) - exported_functions - _OWN_VARIABLES
        return {
            "variables": sorted(variables),
            "functions": sorted(self.functions),
            "aliases": sorted(self.aliases),
            "settings": ["set, shopt, umask, ulimit, trap"] if self.settings != new.settings else [],
        }


def _is_own_choice(name: str) -> bool:
    """Whether a variable is one that a command may have set for what follows."""
    return (
        re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None
        and _NOT_INHERITED.fullmatch(name) is None
        and name not in (AGENT_VARIABLE, SESSION_VARIABLE)
    )


class _Bash:
    """A `/bin/bash` that reads commands from a pipe, one at a time. The host's clock ends a command that takes too
    long, since only the host can end all that the command started.

    The SDK has such a class too; its import costs each shell about two seconds of processor time and 75 MB.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, folder: Path, environ: Mapping[str, str], prefix: Sequence[str] = ()) -> _Bash:
        """`prefix`: the words of a program that confines the shell."""
        process = await asyncio.create_subprocess_exec(
            *prefix, "/bin/bash", "--noprofile", "--norc",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            cwd=folder, env={**environ, "PS1": "", "PS2": ""},
        )  # fmt: skip
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id of the shell; its parent may be a process that confines it."""
        return shell_of(os.getpid()) or self._process.pid

    @property
    def closed(self) -> bool:
        return self._process.returncode is not None

    def folder(self) -> str | None:
        """The folder that the shell is in; None where the system cannot tell."""
        return proc.folder_of(self.pid)

    async def run(self, command: str) -> tuple[str, int | None]:
        """The end of what a command prints, and its exit code; None where the shell ended.

        Raises:
            HostFault: the machine ran out of something, so that the shell may not have had the command.
        """
        output, is_cut, code = await self._read(command, _OUTPUT_BYTES)
        return _text_of(output, is_cut), code

    async def restore(self, folder: str, variables: Mapping[str, str]) -> bool:
        """Give a new shell the folder and the exported variables of an earlier one, and no others; False if it cannot
        enter the folder. The shell itself sets them, so that they affect neither its start nor what confines it."""
        begun_with = _environment()
        lines = [f"unset -v {name}" for name in begun_with if name not in variables and _is_own_choice(name)]
        lines += [
            f"export {name}={shlex.quote(value)}"
            for name, value in variables.items()
            if begun_with.get(name) != value and _is_own_choice(name)
        ]
        lines.append(f"cd -- {shlex.quote(folder)}")
        if "OLDPWD" in variables:
            lines[-1] += f" && OLDPWD={shlex.quote(variables['OLDPWD'])}"
        _, code = await self.run("\n".join(lines))
        return code == 0

    async def state(self) -> _ShellState | None:
        """What the shell holds; None if it does not say."""
        mark = os.urandom(16).hex()
        command = (
            f"{{ builtin printf '\\0%s\\0' {mark}; /bin/pwd -P; builtin printf '\\0'; /usr/bin/env -0;"
            " builtin printf '\\0'; builtin compgen -v; builtin printf '\\0'; builtin compgen -A function;"
            " builtin printf '\\0'; builtin compgen -a; builtin printf '\\0';"
            ' builtin printf "%s\\n" "$SHELLOPTS" "$BASHOPTS"; builtin umask; builtin ulimit -a; builtin trap;'
            " builtin printf '\\0'; } 2>/dev/null || builtin true"
        )
        with suppress(TimeoutError, HostFault):
            async with asyncio.timeout(_REPORT_SECONDS):
                output, is_cut, _ = await self._read(command, _REPORT_BYTES)
                *_, said = bytes(output).rpartition(b"\0" + mark.encode() + b"\0")
                folder, *parts = (os.fsdecode(part) for part in said.split(b"\0"))
                if is_cut or "" not in parts or len(parts) < parts.index("") + 5:
                    return None
                end = parts.index("")
                names, functions, aliases = (frozenset(part.split()) for part in parts[end + 1 : end + 4])
                pairs = (entry.partition("=") for entry in parts[:end])
                variables = {name: value for name, _, value in pairs}
                folder = folder.removesuffix("\n") or variables.get("PWD", "")
                return _ShellState(folder, variables, names, functions, aliases, parts[end + 4])
        return None

    async def _read(self, command: str, most_bytes: int) -> tuple[bytearray, bool, int | None]:
        """The end of what a command prints, whether more came before, and the exit code."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        # A command cannot know the mark. The quotes keep it out of what the shell echoes of its input (`set -v`).
        mark = f"__WK_{os.urandom(16).hex()}_END__"
        line = f"{{ {command}\n}} </dev/null 2>&1; printf '\\n{mark[:8]}''{mark[8:]}%d\\n' $?\n"
        with suppress(ConnectionError):  # the shell ended
            stdin.write(line.encode("utf-8", "surrogateescape"))
            await stdin.drain()
        if stdin.is_closing():
            with raising_host_faults(), suppress(ConnectionError):
                await stdin.wait_closed()
        end = re.compile(rb"\n" + mark.encode() + rb"(\d+)\n")
        kept, is_cut, code = bytearray(), False, None
        while code is None and (block := await stdout.read(65_536)):
            kept += block
            if found := end.search(kept, max(0, len(kept) - len(block) - len(mark) - 8)):
                code = int(found[1])
                del kept[found.start() :]
            if len(kept) > most_bytes:
                del kept[:-most_bytes]
                is_cut = True
        return kept, is_cut, code

    async def signal_of_end(self) -> str:
        """The name of the signal that ended the shell; empty where it ended by itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                code = await self._process.wait()
                return signal.Signals(-code).name if code < 0 else ""
        return ""

    async def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._process.wait()


class Shell:
    """Runs `bash`; in a sandbox if there is one.

    Args:
        restored: the folder and the variables of an earlier shell, as `SAVE_SHELL` gave them.
    """

    def __init__(
        self,
        workspace: str,
        confined: ConfinedShells | None = None,
        restored: dict[str, Any] | None = None,
    ) -> None:
        self._workspace = Path(workspace)
        self._confined = confined
        self._restored = restored
        self._session: _Bash | None = None
        self._has_state = restored is not None
        """Whether a command ran in it, which may have defined something."""

    async def open(self) -> _Bash:
        """The shell; a new one in the workspace, if there is none.

        Raises:
            DoesNotHold: it could not be confined.
        """
        if self._session is None:
            start = partial(_Bash.start, self._workspace, _environment())
            self._session = await (self._confined.open(start) if self._confined is not None else start())
        return self._session

    async def run(self, request: dict[str, Any]) -> tuple[str, bool]:
        """Run one command; a result other than 0 is an error that says so, and what the sandbox denied names
        the rule.

        Raises:
            OutcomeUnknown: a signal ended the shell while the command ran.
        """
        if request["tool"] == SAVE_SHELL:
            return json.dumps(await self._save()), False
        if self._confined is None:
            return await self._run(request)
        try:
            text, is_error = await self._run(request)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(self._confined.explain(str(error))) from None
        return self._confined.explain(text), is_error

    async def _run(self, request: dict[str, Any]) -> tuple[str, bool]:
        arguments = request["arguments"]
        if self._session is not None and self._session.closed and not arguments.get("restart"):
            await self._close()
            return SHELL_LOST.format(folder=self._workspace), True
        if isinstance(pipeline := request.get("pipeline"), dict):
            return await self._run_pipeline(pipeline)
        if arguments.get("restart"):
            await self._close()
            self._restored = None
            return "the shell was restarted", False
        command = str(arguments.get("command") or "")
        if not command.strip():
            return "bash: `command` is required", True
        if "\0" in command:
            return "bash: a command cannot contain a NUL character", True
        if fault := await _syntax_fault(command):
            return fault, True
        if not self._workspace.is_dir():
            return f"bash: the workspace {self._workspace} no longer exists", True
        if not await self._restore():
            return SHELL_LOST.format(folder=self._workspace), True
        if not self._holds(request.get("premises")):
            return PREMISES_CHANGED, True
        session = await self.open()
        self._has_state = True
        try:
            with raising_host_faults(began=True):
                output, code = await session.run(command)
        except HostFault:
            await self._close()  # what the command still says would be taken for the next one's
            raise
        if code is None:
            signalled = await session.signal_of_end()
            await self._close()
            if signalled:
                raise OutcomeUnknown(f"{output}\nbash: the shell was killed by {signalled}".lstrip("\n"))
            return (
                f"{output}\n[the shell ended; the next command starts a new shell in the workspace]".lstrip(
                    "\n"
                ),
                True,
            )
        if code:
            return f"{output}\n[exit code {code}]".lstrip("\n"), True
        return output or "[no output]", False

    async def _restore(self) -> bool:
        """Open the shell, in the state of an earlier one if there is one to restore. False if the state cannot be
        restored: the next shell starts without it."""
        session = await self.open()
        if self._restored is None:
            return True
        try:
            done = await session.restore(self._restored["folder"], self._restored["variables"])
        except HostFault:
            await self._close()
            raise
        self._restored = None
        if not done:
            await self._close()
        return done

    async def _save(self) -> dict[str, Any] | None:
        if self._session is None or self._restored is not None:
            return self._restored
        kill_jobs(os.getpid())
        state = None if self._session.closed else await self._session.state()
        if state is None:
            raise OutcomeUnknown("the shell did not report its state")
        prefix = self._confined.prefix("/") if self._confined is not None else ()
        new = await _Bash.start(Path("/"), _environment(), prefix)
        try:
            compared = await new.state() if await new.restore("/", state.inherited()) else None
        finally:
            await new.close()
        if compared is None:
            raise OutcomeUnknown("a new shell did not report its state")
        return {
            "folder": state.folder,
            "variables": state.inherited(),
            "gone": {kind: names for kind, names in state.gone_in(compared).items() if names},
        }

    def _holds(self, premises: Any) -> bool:
        """Whether a command would run where, and with the files, that a person approved."""
        if not isinstance(premises, dict):
            return True
        from watchkeeper.records.premises import file_digest

        here = self._session.folder() if self._session is not None else None
        return (here is None or here == premises["folder"]) and all(
            file_digest(path) == digest for path, digest in premises["files"].items()
        )

    async def _run_pipeline(self, pipeline: dict[str, Any]) -> tuple[str, bool]:
        """Run programs, each with the environment that the shell began with and its own variables: nothing that the
        shell defined since applies."""
        folder, programs = str(pipeline["folder"]), pipeline["programs"]
        # Also where none was open: its folder is known as long as it runs.
        if not self._workspace.is_dir():
            return f"bash: the workspace {self._workspace} no longer exists", True
        if not await self._restore():
            return SHELL_LOST.format(folder=self._workspace), True
        if self._session is not None and self._session.folder() not in (folder, None):
            return (
                "bash: [not run] your shell is not in the folder for which this command was allowed",
                True,
            )
        prefix = self._confined.prefix(folder) if self._confined is not None else []
        text, codes = await _run_programs(programs, folder, prefix)
        if self._has_state:
            text = f"{OUTSIDE_SHELL}\n{text}".rstrip("\n")
        lines = [
            f"[{program['words'][0]}, part {number} of {len(codes)}, ended with exit code {code}]"
            for number, (program, code) in enumerate(zip(programs, codes[:-1], strict=False), 1)
            if code not in _HEALTHY
        ]
        if codes[-1]:
            lines.append(f"[exit code {codes[-1]}]")
        said = "\n".join(filter(None, [text, *lines]))
        return said or "[no output]", codes[-1] != 0

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        kill_descendants(os.getpid())


def _environment() -> dict[str, str]:
    """What a shell begins with."""
    return {**os.environ, "TERM": "dumb"}


def _text_of(output: bytes | bytearray, is_cut: bool) -> str:
    text = _COLOURS.sub("", output.decode("utf-8", "replace")).strip("\n")
    # The rest may begin in the middle of a key, which no redaction would recognise.
    return TRUNCATED + text[after_word(text, 1) :].lstrip() if is_cut else text


async def _run_programs(
    programs: Sequence[Mapping[str, Any]], folder: str, prefix: Sequence[str]
) -> tuple[str, list[int]]:
    """The end of what a pipeline prints, and the exit code of each part. `prefix`: the words of a program that confines
    each.

    Raises:
        HostFault: the machine ran out of something.
    """
    reading, output = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
    )
    processes: list[asyncio.subprocess.Process] = []
    feed = os.open(os.devnull, os.O_RDONLY)
    try:
        for number, program in enumerate(programs, 1):
            words = [*prefix, program["path"], *program["words"][1:]] if prefix else program["words"]
            with raising_host_faults(began=bool(processes)):
                fed_next, into = os.pipe() if number < len(programs) else (-1, os.dup(output))
            try:
                with raising_host_faults(began=bool(processes)):
                    started = await _started(
                        *words, executable=words[0] if prefix else program["path"], cwd=folder,
                        env=_environment() | program["variables"], stdin=feed, stdout=into,
                        stderr=into if program["joins_errors"] else output,
                    )  # fmt: skip
                processes.append(started)
            finally:
                os.close(feed)
                os.close(into)
                feed = fed_next
        os.close(output)
        output = -1
        kept, is_cut = await _output_of(stream, processes)
    except OSError as error:
        return f"bash: {program['words'][0]}: {error.strerror or error}", [127]
    finally:
        transport.close()
        for descriptor in (feed, output):
            if descriptor >= 0:
                os.close(descriptor)
        for process in processes:
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
    return _text_of(kept, is_cut), [process.returncode or 0 for process in processes]


async def _started(*words: str, **options: Any) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(*words, **options)
    except RuntimeError as error:  # it was started; what waits for it could not be
        with raising_host_faults(began=True):
            raise error


async def _output_of(
    stream: asyncio.StreamReader, processes: Sequence[asyncio.subprocess.Process]
) -> tuple[bytes, bool]:
    """The end of what processes print until they end, and whether more came before. Their children may keep the
    pipe open."""
    kept, is_cut = bytearray(), False

    async def read() -> None:
        nonlocal is_cut
        while block := await stream.read(65_536):
            kept.extend(block)
            if len(kept) > _OUTPUT_BYTES:
                del kept[: len(kept) - _OUTPUT_BYTES]
                is_cut = True

    reading = asyncio.create_task(read())
    try:
        for process in processes:
            await process.wait()
        await asyncio.wait({reading}, timeout=0.5)
    finally:
        reading.cancel()
    return bytes(kept), is_cut


async def _syntax_fault(command: str) -> str | None:
    """Why the shell cannot read the command: it would wait for the rest of an unclosed quote until its time
    is up."""
    check = await asyncio.create_subprocess_exec(
        "/bin/bash", "--noprofile", "--norc", "-n",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await check.communicate(f"{{ {command}\n}}\n".encode("utf-8", "replace"))
    fault = said.decode("utf-8", "replace").strip()
    if check.returncode == 0 and "here-document" not in fault:
        return None
    return "bash: the command is incomplete or invalid: " + fault[:1000]


Answer = tuple[Any, bool]
"""Content, and whether it is an error."""
Handler = Callable[[dict[str, Any]], Awaitable[Answer]]

LEAVE_SECONDS = 2.0
"""How long a worker whose server has ended waits for running calls to notice, and for a reader of its
answers."""
GRACE_SECONDS = 1.0
LITTLE_MEMORY_BYTES = 16 << 20
MOST_MEMORY_BYTES = 2 << 30
"""Memory limit of a worker that runs file tools: a file or listing larger than memory ends as an error, not
as a dead machine."""


def main() -> None:
    """Serve until standard input ends."""
    parent, flags = int(sys.argv[1]), sys.argv[2:]
    if mark := os.environ.get(SESSION_VARIABLE):
        mark_limits(mark)
    if NAMESPACE_FLAG in flags:
        try:
            enter_namespace(parent)
        except OSError as error:
            _fail_to_start(error)
    lines = os.fdopen(os.dup(0), "rb")
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    hide_worker_variables()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: _end())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deny_inspection()  # before a configuration comes that may hold what a user gives to an MCP server
    config = json.loads(lines.readline())
    if config["mode"] != "mcp":
        allow_inspection()
    # A search may hold the interpreter for minutes; such a worker has no children to see off, and may die at
    # once.
    if NAMESPACE_FLAG not in flags:
        die_with_parent(parent, signal.SIGKILL if config["mode"] == "files" else signal.SIGTERM)
    try:
        with asyncio.Runner() as runner:
            runner.get_loop()
            runner.run(_serve(config, lines, out, null))
    except (OSError, MemoryError) as error:
        _fail_to_start(error)


async def _serve(config: dict[str, Any], lines: BinaryIO, out: int, null: int) -> None:
    closed = asyncio.Event()
    try:
        handler, concurrent = await _handler(config, closed)
    except Exception as error:
        # Ending here and now, since unwinding a connection that never was can take for ever.
        _fail_to_start(error)
    loop = asyncio.get_running_loop()
    requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    replies.put(b'{"ready": true}\n')

    def read() -> None:
        for line in lines:
            loop.call_soon_threadsafe(requests.put_nowait, json.loads(line))
        _end_politely() if config["mode"] == "mcp" else _end()

    def write() -> None:
        while data := memoryview(replies.get()):
            while data:
                data = data[_write(out, data) :]

    async def answer(request: dict[str, Any]) -> None:
        replies.put(await _answer(handler, request))

    async def leave() -> None:
        await closed.wait()
        if running:
            await asyncio.wait(running.values(), timeout=LEAVE_SECONDS)
        replies.put(b"")
        await asyncio.to_thread(writer.join, LEAVE_SECONDS)
        _end()

    writer = threading.Thread(target=write, daemon=True)
    try:
        threading.Thread(target=read, daemon=True).start()
        writer.start()
    except RuntimeError as error:
        _fail_to_start(error)
    os.dup2(null, 2)
    running: dict[int, asyncio.Task[None]] = {}
    leaving = asyncio.create_task(leave())
    while True:
        request = await requests.get()
        if leaving.done():
            return
        if "cancel" in request:
            if request["cancel"] in running:
                running[request["cancel"]].cancel()
        elif concurrent:
            number = request["id"]
            running[number] = asyncio.create_task(answer(request))
            running[number].add_done_callback(lambda _, number=number: running.pop(number))  # type: ignore[misc]
        else:
            await answer(request)


async def _answer(handler: Handler, request: dict[str, Any]) -> bytes:
    if isinstance(agent := request.get("agent"), str):
        os.environ[AGENT_VARIABLE] = agent
    broken = unknown = False
    fault: HostFault | None = None
    try:
        content, is_error = await handler(request)
    except Broken as error:
        content, is_error, broken, unknown = f"{request.get('tool')}: {error}", True, True, True
    except OutcomeUnknown as error:
        content, is_error, unknown = str(error), True, True
    except asyncio.CancelledError:
        content, is_error = "cancelled", True
    except MemoryError as error:
        fault = host_fault(error) if _memory_is_short() else None
        content, is_error = (
            f"{request.get('tool')}: exceeded the memory limit for one tool; request less",
            True,
        )
    except Exception as error:
        # The model receives a fault of the tool; the worker itself continues.
        fault = host_fault(error)
        content, is_error = f"{request.get('tool')}: {type(error).__name__}: {error}", True
    content = shorten_content(content, WORKER_CHARACTERS)
    answer = {
        "id": request["id"], "content": content, "is_error": is_error, "broken": broken, "unknown": unknown,
    }  # fmt: skip
    if REGISTER_FLAG in sys.argv:
        with suppress(OSError):  # what cannot be listed now is found by its mark
            answer["left"] = [
                (pid, ticks) for pid in descendants(os.getpid()) if (ticks := start_ticks(pid)) is not None
            ]
    if fault is not None:
        answer["host_fault"] = as_record(fault)
    return json.dumps(answer).encode() + b"\n"


async def _handler(config: dict[str, Any], closed: asyncio.Event) -> tuple[Handler, bool]:
    """What runs the calls of this mode, and whether several at a time."""
    mode = config["mode"]
    if mode == "files":
        from watchkeeper.agents.tools.processes import ProtectedFiles, confine
        from watchkeeper.agents.tools.worker_files import FileTools

        _limit_memory()
        protected = ProtectedFiles(config["database_files"], config["lease_folder"])
        confine(config["workspace"])
        return FileTools(config["workspace"], protected).run, False
    if mode == "shell":
        return (await _shell(config)).run, False
    if mode == "mcp":
        from watchkeeper.agents.tools.worker_mcp import McpConnection

        connection = McpConnection(config, closed)
        await connection.open()
        _limit_memory()  # after the server was started, which has no such limit
        return connection.run, True
    raise ValueError(f"unknown worker mode {mode!r}")


async def _shell(config: dict[str, Any]) -> Shell:
    if "sandbox" not in config:
        return Shell(config["workspace"], restored=config.get("restored"))
    from watchkeeper.agents.tools.sandbox import ConfinedShells

    folder = config["sandbox_folder"]
    os.environ["TMPDIR"] = os.path.join(folder, "tmp")
    confined = ConfinedShells(
        config["sandbox"], config["workspace"], folder, config["sandbox_secrets"], os.environ,
        lambda: kill_descendants(os.getpid()),
    )  # fmt: skip
    shell = Shell(config["workspace"], confined, config.get("restored"))
    await shell.open()  # nothing runs before it is known to be confined
    return shell


def _limit_memory() -> None:
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    except (ValueError, OSError):
        # A system without that limit, or with a lower one: the worker then relies on its own caps.
        return


def _memory_is_short() -> bool:
    """Whether even a small request fails for lack of memory, so that the size of the call is not the
    reason."""
    try:
        mmap.mmap(-1, LITTLE_MEMORY_BYTES).close()
    except (OSError, MemoryError):
        return True
    return False


def _write(out: int, data: memoryview) -> int:
    """Write to the host, also where the machine is short of something for a moment; ends the worker where it
    is for longer."""
    for wait_seconds in (*RETRY_SECONDS, None):
        try:
            return os.write(out, data)
        except OSError as error:
            if wait_seconds is None or host_fault(error) is None:
                break
        time.sleep(wait_seconds)
    return _end(1)


def _fail_to_start(error: BaseException) -> NoReturn:
    """End, with a last line for the host that says why."""
    fault = host_fault(error)
    print(_one_line(error) if fault is None else json.dumps(as_record(fault)), file=sys.stderr, flush=True)
    _end(1)


def _one_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _end(code: int = 0) -> NoReturn:
    kill_descendants(os.getpid())
    os._exit(code)


def _end_politely() -> NoReturn:
    """As `_end`, once an MCP server has had time to put its things in order."""
    end_descendants(os.getpid(), GRACE_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
