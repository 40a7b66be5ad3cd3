"""What a tool is. Two kinds, told apart by where their effect lands.

A `StoreTool` changes nothing but the session's own database, inside the very transaction that records its
result: it happens exactly once, whatever crashes. An `OutsideTool` touches the world (files, a shell, an MCP
server); its intent is committed before it runs, and after a crash its `idempotent` says whether it may simply
run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from watchkeeper.records.memory import Block
from watchkeeper.records.model import ToolSpec

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction


class Permission(StrEnum):
    """Whether a call may run. Ordered from wide to narrow: a later one wins where two sources disagree on
    narrowing."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """A command that a pattern allowed: the very words that matched, run without a shell that could change
    their meaning."""

    path: str
    words: tuple[str, ...]
    folder: str


@dataclass(frozen=True, slots=True)
class ToolContext:
    """For whom a tool runs."""

    session_id: str
    agent_id: str
    task_id: str | None
    plan_id: str | None
    workspace: Path
    now: float
    tool_call_id: str = ""
    """The same when the call runs again after a crash: what a tool gives to a service that takes each request
    once."""
    subject_digest: str = ""
    """Of the file that a person approved the change of (see `records.file_subject`): the tool changes no
    other one."""
    program: ProgramRun | None = None
    """For `bash`: run this program outside the shell, in the place of the command that it stands for."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told. `content` is a string or Messages API blocks (text, image)."""

    content: str | list[Block]
    is_error: bool = False
    effects: dict[str, Any] = field(default_factory=dict)
    """For the agent loop alone: what the call asks of it (`compact`, `finish`, …). Never shown to the
    model."""


@runtime_checkable
class Tool(Protocol):
    """What every tool declares."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def idempotent(self) -> bool:
        """Running it twice with the same input is as good as once."""
        ...

    @property
    def permission(self) -> Permission:
        """The default, before roles and the user's configuration."""
        ...


@runtime_checkable
class StoreTool(Tool, Protocol):
    """Runs inside the transaction that stores its result."""

    def apply(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Change the session's rows. A `ValueError` becomes an error result, and nothing is changed."""
        ...


@runtime_checkable
class OutsideTool(Tool, Protocol):
    """Runs outside the database: in a worker process, or over MCP."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Do it. Errors that the model can mend come back as results with `is_error`; cancelling stops the
        work.

        Raises:
            HostFault: the machine ran out of something. An `OSError` or `MemoryError` that says so counts as
                one which came before any effect.
        """
        ...
