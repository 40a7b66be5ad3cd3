"""How a loop ends, and the rows that say so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.agents import reporting
from watchkeeper.agents.agent_memory import Snapshot
from watchkeeper.agents.environment import BudgetReached
from watchkeeper.records.host_faults import Shortage
from watchkeeper.records.states import AgentStatus
from watchkeeper.store import agents, budgets
from watchkeeper.store.agents import Agent
from watchkeeper.store.transaction import Transaction


class Outcome(StrEnum):
    """Why a loop returned."""

    DONE = "done"
    FAILED = "failed"
    PAUSED = "paused"
    PARKED = "parked"
    """A usage limit of its model is in force; the host wakes it when the time has come."""
    IDLE = "idle"
    """A planner that has nothing to answer until its inbox has something."""
    STOPPED = "stopped"
    """Cancelled or replaced; nothing was written after that."""
    BLOCKED = "blocked"
    """Needs a person (no credit, bad key, budget): the session must pause."""
    FINISHED = "finished"
    """The planner ended the session."""


@dataclass(frozen=True, slots=True)
class Ending:
    outcome: Outcome
    reason: str = ""
    status: str = "done"
    """For FINISHED: how the session ends."""
    short_of: Shortage | None = None
    """For BLOCKED: what the machine ran out of, if that is why."""


def note_budget(tx: Transaction, *, agent: Agent, reached: BudgetReached) -> None:
    """Say that a budget is used up, the session's or that of the agent's task."""
    owner = None if reached.whole_session else agent.task_id
    budgets.note_reached(tx, agent.id, owner, reached.kind, reached.reason, reached.required)


def write_ending(
    tx: Transaction, agent: Agent, ending: Ending, text: str, turn: int, snapshot: Snapshot | None
) -> None:
    """Write an ending: the agent, its memory snapshot, its task, the planner's inbox, the session.

    `text` is the agent's last word; `snapshot` may be missing for a planner that only rests.
    """
    if ending.outcome is Outcome.IDLE:
        agents.move(tx, agent.id, AgentStatus.IDLE)
        return
    assert snapshot is not None
    memory_ref, seq = snapshot.write(tx, turn), snapshot.last_seq
    if ending.outcome is Outcome.FINISHED:
        reporting.finish_session(tx, agent.id, ending.status, ending.reason)
    elif ending.outcome is Outcome.DONE:
        reporting.task_done(tx, agent, text, memory_ref, turn, seq)
    elif ending.outcome is Outcome.FAILED:
        reporting.task_failed(tx, agent, ending.reason, memory_ref, turn, seq)
