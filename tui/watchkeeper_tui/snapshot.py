"""What the screens show at one moment: frozen, made whole by the reader thread, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property

from watchkeeper.store.agent_snapshot import (
    CallFacts,
    FactFacts,
    InboxFacts,
    ReportFacts,
    ToolCallFacts,
    ViewFacts,
)
from watchkeeper.store.imports import imported_from
from watchkeeper.store.snapshot import (
    AgentFacts,
    ApprovalFacts,
    BudgetFacts,
    CommandFacts,
    CompactionFacts,
    Rates,
    SessionFacts,
    TaskFacts,
)
from watchkeeper_tui.event_line import EventLine
from watchkeeper_tui.pausing import pauses_all, pausing_agents


class SessionState(StrEnum):
    """The displayed state of a session: its stored status, combined with whether a host runs."""

    LIVE = "LIVE"
    PAUSED = "PAUSED"
    DEAD = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REPLAY = "REPLAY"
    OPENING = "OPENING"
    """Nothing was read yet."""


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
    report: ReportFacts | None = None
    """None in a replay."""


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of the database."""

    version: int = 0
    """Counts up with every snapshot of a reader."""
    read_at: float = 0.0
    """Wall time of the reading; of one with a `problem`, when that began."""
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
    rates: Rates = field(default_factory=Rates)
    detail: AgentDetail | None = None
    problem: str | None = None
    """Why nothing newer could be read, in one line; the rest is the last good reading."""

    @cached_property
    def agents_by_id(self) -> dict[str, AgentFacts]:
        """Every agent by its id."""
        return {agent.id: agent for agent in self.agents}

    @cached_property
    def tasks_by_id(self) -> dict[str, TaskFacts]:
        """Every task by its id."""
        return {task.id: task for task in self.tasks}

    @cached_property
    def pausing(self) -> frozenset[str]:
        """The working agents that received a pause."""
        return (
            pausing_agents(self.agents, self.commands, self.events)
            if self.host_pid is not None
            else frozenset()
        )

    @cached_property
    def pauses_all(self) -> bool:
        """Whether the whole run received a pause that has not taken effect yet."""
        return self.host_pid is not None and pauses_all(self.commands, self.events)

    def agent(self, agent_id: str | None) -> AgentFacts | None:
        """The agent of that id, or None."""
        return self.agents_by_id.get(agent_id) if agent_id else None

    def task(self, task_id: str | None) -> TaskFacts | None:
        """The task of that id, or None."""
        return self.tasks_by_id.get(task_id) if task_id else None

    def shows_the_same(self, other: Snapshot) -> bool:
        """Nothing that is shown differs, whenever each was read. Sound for snapshots of one reader, which
        share what did not change."""
        return all(
            getattr(self, each.name) is getattr(other, each.name)
            or getattr(self, each.name) == getattr(other, each.name)
            for each in fields(self)
            if each.name not in ("version", "read_at")
        )

    def with_problem(self, problem: str, now: float) -> Snapshot:
        """The same reading, marked as one that could not be renewed."""
        return replace(
            self, problem=problem, version=self.version + 1, read_at=self.read_at if self.problem else now
        )


def session_state(status: str, hosted: bool, *, working: bool = False, origin: str = "run") -> SessionState:
    """What a session's stored status means, given whether a process drives it now.

    A host that was started for one command only (for example a re-run) does not change the status while
    agents are `working`. Another program's session that is no longer followed counts as done: no host of it
    stopped.
    """
    if hosted and working:
        return SessionState.LIVE
    if status == "running":
        gone = SessionState.DONE if imported_from(origin) else SessionState.DEAD
        return SessionState.LIVE if hosted else gone
    return {
        "paused": SessionState.PAUSED,
        "done": SessionState.DONE,
        "failed": SessionState.FAILED,
        "cancelled": SessionState.CANCELLED,
    }.get(status, SessionState.FAILED)
