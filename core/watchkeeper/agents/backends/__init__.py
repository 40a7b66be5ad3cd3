"""Agent programs that people already use, driven as sub-agents: the protocol between the loop and a program's driver, and
the process on which the drivers are built.

A driver (`codex.py`, `acp.py`) translates one program's own protocol into `Event`s and calls of `AgentBackend`. It
touches no row. `loop.py` turns the events into rows, and `programs.py` says which programs there are.
Whatever a program says is hostile text: drivers pass it on as it is, and the loop redacts it.

A program runs below a launcher (`agents.tools.processes.launch`), so that everything it starts ends with it, and
with the host: commands in sessions of their own, and those that cleared their environment.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from watchkeeper.agents.tools.child import LineProcess
from watchkeeper.agents.tools.containment import Containment
from watchkeeper.agents.tools.processes import AGENT_VARIABLE, kill_marked
from watchkeeper.models.stream import without_lone_surrogates
from watchkeeper.records.messages import Usage


class BackendFailed(Exception):
    """The program cannot be used, or has ended. The message is one line for a person."""


class ProgramEnded(BackendFailed):
    """The program's process has ended by itself; it may be started again."""


class Refused(BackendFailed):
    """The program answered a request with an error: it did nothing."""


class NotLoggedIn(Refused):
    """The program has no valid login, or no key."""


class SessionBusy(Refused):
    """Another process has the session open; it may be asked for again."""


class PermissionsNotHeld(BackendFailed):
    """The program's permissions could not be set and read back, or it changed them: it gets no prompt."""


# --- What a program says ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the agent's answer. `message` tells the messages of one turn apart."""

    text: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks, where the program shows it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolBegin:
    """A tool call began, with its whole input."""

    id: str
    name: str
    """The program's own name of the tool; `bash` for a shell command, `file_change` for edits of files."""
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a running tool call has printed since the last one."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """A tool call ended."""

    id: str
    output: str
    status: Literal["done", "error", "denied", "cancelled", "unknown"] = "done"


@dataclass(frozen=True, slots=True)
class ToolInBackground:
    """A tool call goes on in the background, while the agent's model works on. `ToolEnd` follows when it has ended."""

    id: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The model has nothing more to do, but what it began in the background still runs: the turn is not over."""


@dataclass(frozen=True, slots=True)
class Diff:
    """The change of one file by a tool call, as `diff -u` writes it."""

    id: str
    path: str
    patch: str


@dataclass(frozen=True, slots=True)
class PlanItems:
    """The program's own to-do list, whole: title and state (`pending`, `running`, `done`)."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What the program said of its tokens."""

    context_tokens: int | None = None
    """What its context holds now."""
    context_window: int | None = None
    usage: Usage | None = None
    """One call's counts, or those of a whole turn (`whole_turn`); None where the program does not say."""
    whole_turn: bool = False


@dataclass(frozen=True, slots=True)
class Compaction:
    """The program compacted its own context; `begun` is False when the compaction is done."""

    begun: bool
    summary: str = ""
    failed: str = ""
    """Why it did not, where it has ended without one."""


@dataclass(frozen=True, slots=True)
class Child:
    """The program started a sub-agent of its own; what it does is inside the program."""

    id: str
    title: str
    status: Literal["working", "done", "failed"] = "working"


@dataclass(frozen=True, slots=True)
class Ask:
    """The program asks a person. It waits until `answer` is called with this id."""

    id: str
    call_id: str
    """The tool call that it asks for."""
    name: str
    arguments: dict[str, Any]
    note: str = ""
    """Why it asks, in its own words."""
    folder: str | None = None
    edits: bool = False
    """Whether the call changes files, whatever the program calls it."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """The program tries a model call again by itself."""

    reason: str
    seconds: float = 0.0
    """How long it waits before; 0: it does not say."""
    until: float | None = None
    """When it does so (wall time), where it says that instead."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn is over."""

    status: Literal["completed", "interrupted", "failed"]
    reason: str = ""
    kind: Literal["", "limit", "rate_limit", "login", "context", "died", "permissions"] = ""
    """What failed: a usage limit, too many requests (which passes by itself), no valid login, a context that is too
    long, a process behind the program that has ended, so that the program must be started again, or permissions that
    the program changed, so that it must be stopped."""
    until: float | None = None
    """When the usage limit ends (wall time); None: the program did not say."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Something that this version does not know. Kept in the log of events by its name alone."""

    name: str


Event = (
    Text
    | Reasoning
    | ToolBegin
    | ToolOutput
    | ToolEnd
    | ToolInBackground
    | Waiting
    | Diff
    | PlanItems
    | UsageReport
    | Compaction
    | Child
    | Ask
    | Retrying
    | Ended
    | Raw
)

Decision = Literal["once", "always", "deny", "cancel"]
"""An answer: `cancel` also ends the turn where the program can do that."""


# --- What a program is asked to do --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Features:
    """What a program can do, where that differs; a command that asks for more is refused with the reason."""

    compacts: bool = True
    compact_instructions: bool = True
    """Whether instructions for a compaction are followed."""
    reports_background: bool = False
    """Whether it tells its model by itself when a command in the background has ended."""
    undo: str = "the program manages its own context; Watchkeeper cannot undo its compactions"
    """Why compactions cannot be undone."""


@dataclass(frozen=True, slots=True)
class MemoryServer:
    """Where the agent reaches Watchkeeper's memory tools, over MCP by HTTP."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What a session of a program is opened with."""

    folder: Path
    """Where it works."""
    instructions: str
    """What is added to the program's own system prompt."""
    environ: Mapping[str, str]
    model: str | None = None
    """In the program's own words; None: its default."""
    session: str | None = None
    """The id of a session to resume; None: a new one."""
    memory: MemoryServer | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the user's configuration adds for this program."""
    denied: frozenset[str] = frozenset()
    """Watchkeeper's names of the tools that the configuration denies, such as `bash` and `write`."""
    withheld: frozenset[str] = frozenset()
    """Those that the agent's role does not have."""

    @property
    def may_not(self) -> frozenset[str]:
        """Watchkeeper's names of all tools that the agent may not call."""
        return self.denied | self.withheld


class AgentBackend(Protocol):
    """One session of one program. Made with the connection to the program's process."""

    features: Features
    version: str
    """The version that the program reports when a session is opened."""

    def prepare(self, command: Sequence[str], spec: BackendSpec) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command and the environment that the program is started with."""

    async def open(self, spec: BackendSpec) -> str:
        """Begin or resume a session, and set its permissions; returns its id.

        Raises:
            PermissionsNotHeld: its permissions are not those that were set.
            BackendFailed: the program refuses, with its reason.
        """

    async def prompt(self, text: str) -> None:
        """Begin a turn. Its events end with `Ended`.

        Raises:
            PermissionsNotHeld: the program has changed its permissions.
        """

    async def steer(self, text: str) -> Literal["now", "next"]:
        """Add a message to the running turn; says when the model will see it."""

    async def interrupt(self) -> None:
        """End the running turn; `Ended` follows."""

    async def answer(self, ask_id: str, decision: Decision) -> None:
        """Answer an `Ask`. An answer that comes too late is ignored."""

    async def compact(self, instructions: str | None) -> None:
        """Compact the program's context now, as a turn of its own."""

    async def set(self, model: str | None, mode: str | None) -> None:
        """Change the model or the mode from the next turn on."""

    def events(self) -> AsyncIterator[Event]:
        """What the program says, until it ends.

        Raises:
            BackendFailed: the program ended by itself.
        """

    def transcript(self) -> Path | None:
        """The program's own record of this session, if it is known; it may not exist yet."""

    async def close(self, grace_seconds: float) -> None:
        """End the process and all that it started."""


def child_call(call: str, child: str) -> str:
    """The id of a tool call that a sub-agent of the program's own makes, by the program's ids of both; empty: the call
    is the agent's own."""
    return f"{call}@{child[-12:]}" if child else call


def joined(parts: Sequence[str]) -> str:
    """Texts with an empty line between them; empty ones are left out."""
    return "\n\n".join(part for part in parts if part)


# --- The process of a program ---------------------------------------------------------------------------
#
# JSON-RPC over its standard input and output, and what all drivers share.

log = logging.getLogger(__name__)

LARGEST_LINE = 256 * 1024 * 1024
"""Bytes. Programs send whole files and outputs of commands as one line."""
_LAST_WORDS = 20
WATCH_SECONDS = 0.2
LAST_OUTPUT_SECONDS = 1.0
"""How long what a process wrote may arrive after its end."""
CLIENT = {"name": "watchkeeper", "title": "Watchkeeper", "version": "1"}
"""How Watchkeeper introduces itself."""
TOOL_SERVER = "watchkeeper_agent"
"""The name of the MCP server of an agent's own tools. `wk mcp install` writes another one (`interop.clients.SERVER`): a
program can have both."""
METHOD_NOT_FOUND = -32601
NOT_LOGGED_IN = -32000
"""What ACP programs answer without a login."""
INVALID_PARAMS = -32602
LARGEST_COUNT = 2**53
DIED = re.compile(r"process (exited|terminated|has ended)", re.IGNORECASE)
"""What an adapter says when the agent behind it has died."""
BUSY = re.compile(r"has an active writer", re.IGNORECASE)
"""What Codex says of a thread that another of its processes writes (since 0.147)."""
WRONG_SHAPE = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)
"""What a driver raises where a program sent another type than its protocol says."""


class RpcError(Exception):
    """The other side answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


Requested = Callable[[str, dict[str, Any], int | str], Awaitable[Any]]
"""Answers a request of the program: method, parameters, its id. Raises RpcError to refuse."""
Notified = Callable[[str, dict[str, Any]], None]


class ProgramProcess(LineProcess):
    """A running program and the JSON-RPC connection to it.

    Args:
        version_field: whether messages carry `"jsonrpc": "2.0"`.
        on_request, on_notification: what the program asks and says, in order. They are called from the event loop.
    """

    label = "the program"
    largest_line = LARGEST_LINE
    unstartable = BackendFailed

    def __init__(self, *, version_field: bool = True) -> None:
        super().__init__()
        self._version_field = version_field
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self.on_request: Requested = _refuse
        self.on_notification: Notified = lambda method, params: None

    async def start(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environ: Mapping[str, str],
        agent_id: str,
        containment: Containment,
    ) -> None:
        """Start the program.

        Raises:
            BackendFailed: it cannot be started.
            HostFault: the machine ran out of something.
        """
        launcher = "watchkeeper.agents.tools.processes"
        await self._launch(
            command[0], launcher, containment, "--", *command, folder=folder, environ=dict(environ)
        )
        await containment.admit(self.pid, agent_id)
        self._stdin.write(b"\n")  # the launcher waits for it: the process is contained now
        for work in (self._read(), self._read_errors(), self._watch()):
            self.begin(work)

    @property
    def last_words(self) -> str:
        """The last line that it wrote to its standard error."""
        return next((line for line in reversed(self._last_words) if line.strip()), "")

    async def call(self, method: str, params: Mapping[str, Any], timeout_seconds: float | None = None) -> Any:
        """Send a request and wait for its result.

        Raises:
            RpcError: the program answered with an error.
            BackendFailed: it ended, or did not answer in time.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._request({"method": method, "params": params})
        except TimeoutError:
            raise BackendFailed(f"no response to {method} within {timeout_seconds:g} s") from None

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        await self.send({"method": method} | ({"params": params} if params is not None else {}))

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises ProgramEnded where the program has ended."""
        await super().send({"jsonrpc": "2.0", **message} if self._version_field else message)

    # --- the other side -------------------------------------------------------------------------------------

    def _parse(self, line: bytes) -> Any:
        """The message in a line, without what no database takes."""
        return without_lone_surrogates(super()._parse(line))

    def _lost(self, why: str, *, began: bool = False) -> ProgramEnded:
        return ProgramEnded(why)

    async def _output_ended(self, *, broke_protocol: bool) -> None:
        if broke_protocol:
            log.warning("an agent program sent a line of more than %d bytes", LARGEST_LINE)
        self._fail(self._why_ended())

    async def _watch(self) -> None:
        """Notice the end of a process whose output something else still holds open."""
        while self._process.returncode is None:  # noqa: ASYNC110 (asyncio tells it only once the streams are closed too)
            await asyncio.sleep(WATCH_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_SECONDS):
                await self.ended.wait()
        self._fail(self._why_ended())

    def _take(self, message: Any) -> None:
        message = object_of(message)  # a program may print a line of its own
        method, params, number = message.get("method"), object_of(message.get("params")), message.get("id")
        if isinstance(method, str) and number is not None:  # ids begin at 0
            self.begin(self._answer(method, params, number))
        elif isinstance(method, str):
            self.on_notification(method, params)
        elif isinstance(number, int) and (answer := self._pending.pop(number, None)) is not None:
            if answer.done():
                return
            error = message.get("error")
            if isinstance(error, dict):
                code = error.get("code")
                answer.set_exception(
                    RpcError(
                        code if isinstance(code, int) else 0,
                        str(error.get("message") or "error"),
                        error.get("data"),
                    )
                )
            else:
                answer.set_result(message.get("result"))

    async def _answer(self, method: str, params: dict[str, Any], number: int | str) -> None:
        try:
            reply: dict[str, Any] = {"result": await self.on_request(method, params, number)}
        except RpcError as error:
            reply = {"error": {"code": error.code, "message": str(error)}}
        with suppress(BackendFailed):
            await self.send({"id": number, **reply})

    async def _read_errors(self) -> None:
        while piece := await self._stderr.read(65_536):
            lines = piece.decode("utf-8", "replace").splitlines()
            self._last_words.extend(line[:500] for line in lines[-_LAST_WORDS:])

    def _why_ended(self) -> str:
        said = f": {self.last_words}" if self.last_words else ""
        return f"the program ended{said}"


class RpcBackend:
    """What drivers share: the queue of events, and questions that wait for an answer."""

    name = "the program"
    version = ""
    record = ""
    """Path of the program's own record of the session; empty where it is not known."""

    def __init__(self, process: ProgramProcess) -> None:
        self._process = process
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._questions: dict[str, asyncio.Future[Decision]] = {}
        self.background: dict[str, str] = {}
        """What runs in the background: the program's id of each, and the tool call that began it; empty: none did."""
        self.waiting: Ended | None = None
        """How the model's turn ended, while what it began still runs."""
        self.children: dict[str, str] = {}
        """The program's own sub-agents: the program's id of each, and what it was asked for."""
        process.on_request, process.on_notification = self._take_request, self._take_notification

    async def events(self) -> AsyncIterator[Event]:
        """What the program says, until it ends. Raises BackendFailed when it does."""
        ended = asyncio.create_task(self._process.ended.wait())
        ended.add_done_callback(lambda _: self._queue.put_nowait(None))
        try:
            while (event := await self._queue.get()) is not None:
                yield event
        finally:
            ended.cancel()
        raise BackendFailed(
            f"{self.name} ended" + (f": {self._process.last_words}" if self._process.last_words else "")
        )

    async def answer(self, ask_id: str, decision: Decision) -> None:
        """Answer a question. One that comes too late is ignored."""
        question = self._questions.pop(ask_id, None)
        if question is not None and not question.done():
            question.set_result(decision)

    def prepare(self, command: Sequence[str], spec: BackendSpec) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command and the environment that the program is started with."""
        return command, spec.environ

    def transcript(self) -> Path | None:
        """The program's own record of this session, if it is known; it may not exist yet."""
        return Path(self.record) if self.record else None

    async def close(self, grace_seconds: float) -> None:
        """End the process and all that it started."""
        await self._process.close(grace_seconds)

    async def asked(self, method: str, params: dict[str, Any], number: int | str) -> Any:
        """Answer a request of the program. Raises RpcError to refuse."""
        raise RpcError(METHOD_NOT_FOUND, f"unknown method {method}")

    def notified(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification of the program."""

    async def _take_request(self, method: str, params: dict[str, Any], number: int | str) -> Any:
        try:
            return await self.asked(method, params, number)
        except WRONG_SHAPE as error:
            raise RpcError(INVALID_PARAMS, f"{method}: a field has the wrong type") from error

    def _take_notification(self, method: str, params: dict[str, Any]) -> None:
        try:
            self.notified(method, params)
        except WRONG_SHAPE:
            self.put(Raw(f"{method[:60]}: a field has the wrong type"))

    def put(self, *events: Event) -> None:
        """Hand events to the loop."""
        for event in events:
            self._queue.put_nowait(event)

    def wait(self, ended: Ended) -> None:
        """The model's turn is over, and what it began in the background is not."""
        self.waiting = ended
        self.put(Waiting())

    def child_began(self, child: str, title: str) -> None:
        """The program started a sub-agent."""
        if self.children.setdefault(child, title) == title:
            self.put(Child(child, title))

    def child_ended(self, child: str, *, done: bool) -> None:
        """A sub-agent has ended."""
        self.put(Child(child, self.children.get(child, ""), "done" if done else "failed"))

    async def decide(self, ask: Ask) -> Decision:
        """Put a question to the loop, and wait for its answer."""
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._questions[ask.id] = answer
        self.put(ask)
        return await answer

    async def request(self, method: str, params: dict[str, Any], timeout_seconds: float | None = 60) -> Any:
        """A call whose refusal is a failure of the program.

        Raises:
            BackendFailed: it refuses, does not answer in time, or has ended.
        """
        try:
            return await self._process.call(method, params, timeout_seconds)
        except RpcError as error:
            reason = reason_of(error)
            failed = (
                NotLoggedIn
                if error.code == NOT_LOGGED_IN
                else ProgramEnded
                if DIED.search(reason)
                else SessionBusy
                if BUSY.search(reason)
                else Refused
            )
            raise failed(f"{self.name} refuses {method}: {reason}") from error


def reason_of(error: RpcError) -> str:
    """What an error says, with its details."""
    data = object_of(error.data)
    detail = data.get("details") or data.get("message") if data else error.data
    return f"{error}: {detail}" if isinstance(detail, str) and detail not in str(error) else str(error)


async def _refuse(method: str, params: dict[str, Any], number: int | str) -> Any:
    raise RpcError(METHOD_NOT_FOUND, f"unknown method {method}")


async def sweep(agent_id: str) -> list[int]:
    """End every process that an earlier run of this agent left; returns those that do not end."""
    return await asyncio.to_thread(kill_marked, AGENT_VARIABLE, agent_id)


def object_of(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one in the place of anything else that a program sent."""
    return value if isinstance(value, dict) else {}


def objects_of(value: Any) -> list[dict[str, Any]]:
    """The JSON objects in a list, or none in the place of anything else that a program sent."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def shell_command(value: Any) -> str:
    """A command as a person would type it: without the shell that a program wraps it in."""
    text = str(value or "")
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    wrapped = len(words) == 3 and words[0].endswith("sh") and words[1] in ("-lc", "-c")
    return words[2] if wrapped else text


def count_of(value: Any) -> int:
    """A count that a program sent, or 0 in the place of anything else."""
    return value if isinstance(value, int) and value is not True and 0 < value < LARGEST_COUNT else 0


def number_of(value: Any) -> float:
    """A finite number above 0 that a program sent, or 0 in the place of anything else."""
    return float(value) if isinstance(value, int | float) and 0 < value < LARGEST_COUNT else 0.0


def text_at(answer: Any, *names: str) -> str:
    """A text in a program's answer, below these names.

    Raises:
        BackendFailed: it is not there.
    """
    for name in names:
        answer = object_of(answer).get(name)
    if not isinstance(answer, str) or not answer:
        raise BackendFailed(f"the program's response is missing {'.'.join(names)}")
    return answer
