"""What a recording is: positions from 1 on, marks among them, and how the session stood at each."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from watchkeeper.store.dashboard import (
    AgentFacts,
    ApprovalFacts,
    BudgetFacts,
    CompactionFacts,
    EventFacts,
    SessionFacts,
    TaskFacts,
)
from watchkeeper.store.dashboard_agent import (
    CallFacts,
    FactFacts,
    InboxFacts,
    StoredMessage,
    ToolCallFacts,
    ViewFacts,
)
from watchkeeper.store.driver import Connection


@dataclass(frozen=True, slots=True)
class Mark:
    """A position that people look for."""

    position: int
    kind: Literal["failure", "compaction", "task"]
    """A failure of any kind, an applied compaction, a task that was done."""


@dataclass(frozen=True, slots=True)
class Then:
    """How a session stood at a position."""

    position: int
    at: float
    seq: int
    """The last event by then; 0 where there was none yet."""
    session: SessionFacts
    tasks: tuple[TaskFacts, ...]
    agents: tuple[AgentFacts, ...]
    compactions: tuple[CompactionFacts, ...]
    """The newest first."""
    approvals: tuple[ApprovalFacts, ...]
    budgets: tuple[BudgetFacts, ...]


@dataclass(frozen=True, slots=True)
class AgentThen:
    """What the agent pane shows of one agent at a position, but for the texts of its messages."""

    agent_id: str
    messages: tuple[StoredMessage, ...]
    """The newest by then, oldest first."""
    tool_calls: tuple[ToolCallFacts, ...]
    calls: tuple[CallFacts, ...]
    facts: tuple[FactFacts, ...]
    view: ViewFacts | None
    views: tuple[ViewFacts, ...]
    system: str
    inbox: tuple[InboxFacts, ...]


class Recording(Protocol):
    """One session from its first step to the last that there was when it was opened. Only reads, ever."""

    session_id: str
    times: array[float]
    """When each position was; never goes back."""
    turns: list[int]
    """The positions at which an agent replied."""
    marks: list[Mark]
    damaged: int
    """How many events cannot be read: a replay goes on without what they told."""
    by_event: bool
    """Positions are events; else they are the times of messages, calls and events."""

    def at(self, connection: Connection, position: int) -> Then:
        """How the session stood at that position, 1 … `len(times)`."""
        ...

    def agent(self, connection: Connection, then: Then, agent_id: str, messages: int) -> AgentThen | None:
        """More of one agent; at most `messages` of its messages."""
        ...

    def events(self, connection: Connection, position: int, limit: int) -> tuple[EventFacts, ...]:
        """The last that happened up to that position, oldest first; `seq` is the position."""
        ...


def started_by(task: TaskFacts, at: float) -> float | None:
    """When the task had been started, as far as that was known at `at`."""
    return task.started_at if task.started_at is not None and task.started_at <= at else None


def group_end(times: array[float], position: int) -> int:
    """The last position with the same time: what was committed together has one time, and stood never
    alone."""
    return bisect_right(times, times[position - 1], position - 1)


def turn_beside(turns: list[int], position: int, step: int) -> int | None:
    """The position of the next (`step` 1) or previous (-1) reply, or None."""
    place = bisect_right(turns, position) if step > 0 else bisect_left(turns, position) - 1
    return turns[place] if 0 <= place < len(turns) else None


def not_yet(each: CompactionFacts, status: str) -> CompactionFacts:
    """A pass that has not come to its end."""
    return replace(
        each, status=status, reason=None, messages_removed=0, tokens_after=None, view_before=None, view_after=None, cost_usd=None,
        stall_seconds=None if each.stall_seconds is None else 0.0, cache_tokens_invalidated=0, ended_at=None,
    )  # fmt: skip
