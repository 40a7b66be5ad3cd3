"""What the screens show at one moment: frozen, made whole by the reader thread, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from watchkeeper.store.dashboard import (
    AgentFacts,
    ApprovalFacts,
    BudgetFacts,
    CommandFacts,
    CompactionFacts,
    SessionFacts,
    TaskFacts,
)
from watchkeeper.store.dashboard_agent import CallFacts, FactFacts, InboxFacts, ToolCallFacts, ViewFacts


class SessionState(StrEnum):
    """How a session stands for whoever watches it: its stored status, judged by whether a host lives."""

    LIVE = "LIVE"
    PAUSED = "PAUSED"
    DEAD = "DEAD"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REPLAY = "REPLAY"
    OPENING = "OPENING"
    """Nothing was read yet."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event, put into words. Texts are sanitised."""

    seq: int
    at: float
    kind: str
    """The word shown: `tool`, `plan`, `error`, …"""
    role: str
    """The palette role that colours the word."""
    agent_id: str | None
    task_id: str | None
    text: str


@dataclass(frozen=True, slots=True)
class TranscriptBlock:
    """One block of a message, as lines of sanitised text."""

    key: str
    """Unique in the agent: `seq.index`."""
    seq: int
    kind: str
    """`user`, `assistant`, `thinking`, `tool_use`, `tool_result`, `tool_error`, `attachment`, `live`."""
    title: str
    lines: tuple[str, ...]
    tokens: int
    at: float
    hidden: int = 0
    """Lines that were left out because there were too many."""


@dataclass(frozen=True, slots=True)
class AgentDetail:
    """All that the agent pane shows of the one agent looked at."""

    agent_id: str
    transcript: tuple[TranscriptBlock, ...] = ()
    first_seq: int = 1
    """Where the transcript read so far begins."""
    tool_calls: tuple[ToolCallFacts, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    facts: tuple[FactFacts, ...] = ()
    view: ViewFacts | None = None
    views: tuple[ViewFacts, ...] = ()
    system: str = ""
    """The system prompt, as stored: hostile until sanitised."""
    inbox: tuple[InboxFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Rates:
    """What runs now, by the minute (over the last one)."""

    cost_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    events_per_second: float = 0.0
    agent_cost: tuple[tuple[str, float], ...] = ()
    """Dollars a minute of each agent that spent something."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent reading of the database."""

    version: int = 0
    """Counts up with every snapshot of a reader."""
    read_at: float = 0.0
    """Wall time of the reading."""
    session: SessionFacts | None = None
    state: SessionState = SessionState.OPENING
    host_pid: int | None = None
    tasks: tuple[TaskFacts, ...] = ()
    agents: tuple[AgentFacts, ...] = ()
    events: tuple[EventLine, ...] = ()
    compactions: tuple[CompactionFacts, ...] = ()
    approvals: tuple[ApprovalFacts, ...] = ()
    commands: tuple[CommandFacts, ...] = ()
    budgets: tuple[BudgetFacts, ...] = ()
    rates: Rates = Rates()
    detail: AgentDetail | None = None
    problem: str | None = None
    """Why nothing newer could be read, in one line; the rest is the last good reading."""

    def agent(self, agent_id: str | None) -> AgentFacts | None:
        """The agent of that id, or None."""
        return next((agent for agent in self.agents if agent.id == agent_id), None) if agent_id else None

    def task(self, task_id: str | None) -> TaskFacts | None:
        """The task of that id, or None."""
        return next((task for task in self.tasks if task.id == task_id), None) if task_id else None

    def with_problem(self, problem: str, now: float) -> Snapshot:
        """The same reading, marked as one that could not be renewed."""
        return replace(self, problem=problem, version=self.version + 1, read_at=now)


def session_state(status: str, hosted: bool, *, working: bool = False) -> SessionState:
    """What a session's stored status means, given whether a process drives it now.

    A host that was started for one command alone (a re-run, say) leaves the status as it was while agents are `working`.
    """
    if hosted and working:
        return SessionState.LIVE
    if status == "running":
        return SessionState.LIVE if hosted else SessionState.DEAD
    return {
        "paused": SessionState.PAUSED,
        "done": SessionState.DONE,
        "failed": SessionState.FAILED,
        "cancelled": SessionState.CANCELLED,
    }.get(status, SessionState.FAILED)
