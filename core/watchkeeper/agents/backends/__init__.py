"""Agent programs that people already use, driven as sub-agents: the protocol between the loop and a program's driver.

A driver (`codex.py`, `acp.py`) translates one program's own protocol into `Event`s and calls of `AgentBackend`. It
touches no row. `loop.py` turns the events into rows, and `programs.py` says which programs there are.
Whatever a program says is hostile text: drivers pass it on as it is, and the loop redacts it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from watchkeeper.records.messages import Usage


class BackendFailed(Exception):
    """The program cannot be used, or has ended. The message is one line for a person."""


LIMIT = re.compile(
    r"\b(usage|rate|session|weekly|monthly)[ _-]?limit|\blimit (was |has been )?reached|out of credit|quota|credit balance"
    r"|hit your limit",
    re.IGNORECASE,
)
"""How programs word a usage limit."""


class ProgramEnded(BackendFailed):
    """The program's process has ended by itself; it may be started again."""


class Refused(BackendFailed):
    """The program answered a request with an error: it did nothing."""


class NotLoggedIn(Refused):
    """The program has no valid login, or no key."""


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
    """The program compacted its own context; `begun` is False once it is done."""

    begun: bool
    summary: str = ""


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
    """Of the tool call that it asks for."""
    name: str
    arguments: dict[str, Any]
    note: str = ""
    """Why it asks, in its own words."""
    folder: str | None = None


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
    kind: Literal["", "limit", "rate_limit", "login", "context", "died"] = ""
    """Of a failure: a usage limit, too many requests (which passes by itself), no valid login, a context that is too
    long, or a process behind the program that has ended, so that the program must be started again."""
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
    undo: str = "the program keeps its own context; Watchkeeper cannot undo its compactions"
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
    """Of a session to resume; None: a new one."""
    memory: MemoryServer | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the user's configuration adds for this program."""


class AgentBackend(Protocol):
    """One session of one program. Made with the connection to the program's process."""

    features: Features
    version: str
    """Of the program, as it says when a session is opened."""

    def prepare(
        self, command: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command and the environment that the program is started with."""

    async def open(self, spec: BackendSpec) -> str:
        """Begin or resume a session; returns its id.

        Raises:
            BackendFailed: the program refuses, with its reason.
        """

    async def prompt(self, text: str) -> None:
        """Begin a turn. Its events end with `Ended`."""

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
