"""Who an action is about, and the commands that it would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.store.imports import imported_from
from watchkeeper.store.snapshot import AgentFacts, ApprovalFacts, TaskFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import Snapshot

OPENED_READ_ONLY = "opened read-only"
"""Why a session is only looked at that the user opened so."""


@dataclass(frozen=True, slots=True)
class Target:
    """Who an action is about: the selected row, or the marked ones."""

    snapshot: Snapshot
    agents: tuple[AgentFacts, ...] = ()
    tasks: tuple[TaskFacts, ...] = ()
    """The tasks of the rows, also those that no agent has yet."""
    read_only: str = ""
    """Why the session is only looked at; empty where it is not."""

    @property
    def agent(self) -> AgentFacts | None:
        return self.agents[0] if self.agents else None

    @property
    def hosted(self) -> bool:
        """A process drives the session now."""
        return self.snapshot.host_pid is not None

    @property
    def pausing(self) -> tuple[AgentFacts, ...]:
        """The agents that received a pause and still work."""
        return tuple(agent for agent in self.agents if agent.id in self.snapshot.pausing)

    @property
    def not_ours(self) -> str:
        """Why nothing can be controlled here: another program ran the session, or it is only looked at; empty
        where it can."""
        session = self.snapshot.session
        program = imported_from(session.origin) if session is not None else None
        if program:
            return f"imported sessions are read-only (from {program})"
        if self.read_only == OPENED_READ_ONLY:
            return "the session is open read-only; press s, then Enter opens it to act on it"
        return f"{self.read_only}: nothing can be done here" if self.read_only else ""

    @property
    def names(self) -> str:
        """The agents' names, or the tasks' titles, for a sentence."""
        if len(self.agents) > 3:
            return formatting.plural(len(self.agents), "agent")
        if self.agents:
            return ", ".join(sanitize(agent.name or agent.role) for agent in self.agents)
        return ", ".join(f"“{clip(sanitize(task.title), 40)}”" for task in self.tasks) or "nothing"

    @property
    def approvals(self) -> tuple[ApprovalFacts, ...]:
        """The questions of these agents; else those of the session."""
        mine = {agent.id for agent in self.agents}
        questions = self.snapshot.approvals
        return tuple(each for each in questions if each.agent_id in mine) or questions


@dataclass(frozen=True, slots=True)
class Request:
    """One command to write."""

    kind: str
    agent_id: str | None = None
    task_id: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    """For the status line: `pause coder-17`."""


def target_of(
    snapshot: Snapshot, rows: Sequence[tuple[AgentFacts | None, TaskFacts | None]], *, read_only: str = ""
) -> Target:
    """The target that rows of the plan stand for, each agent and task once and as it is now."""
    agents: dict[str, AgentFacts] = {}
    tasks: dict[str, TaskFacts] = {}
    for agent, task in rows:
        if agent is not None:
            agents.setdefault(agent.id, snapshot.agent(agent.id) or agent)
        if task is None and agent is not None:
            task = snapshot.task(agent.task_id)
        if task is not None:
            tasks.setdefault(task.id, snapshot.task(task.id) or task)
    return Target(snapshot, tuple(agents.values()), tuple(tasks.values()), read_only)


def is_planner(target: Target) -> bool:
    """The planner alone is meant, which has no task: what would end it is the end of the run."""
    session = target.snapshot.session
    agent = target.agent
    return (
        len(target.agents) == 1
        and not target.tasks
        and session is not None
        and agent is not None
        and (agent.id == session.planner_agent_id)
    )


def cancellable(target: Target) -> list[TaskFacts]:
    """The tasks that have not ended."""
    return [task for task in target.tasks if task.status not in ("done", "failed", "cancelled", "dropped")]


def budget_of(text: str) -> tuple[str, float | None]:
    """A budget's kind and amount as typed; None lifts it.

    Raises:
        ValueError: the amount is no number.
    """
    kind, _, amount = text.strip().partition(" ")
    wanted = amount.strip()
    return kind, None if wanted in ("none", "off", "") else float(wanted.lstrip("$").replace(",", ""))
