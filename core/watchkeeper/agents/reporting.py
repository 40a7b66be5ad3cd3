"""How a sub-agent's end changes its task, its planner and the session: rows of one transaction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from watchkeeper.agents.agent_memory import Snapshot
from watchkeeper.agents.limits import BudgetReached
from watchkeeper.records.errors import Shortage
from watchkeeper.records.states import AgentStatus, SessionStatus, TaskStatus
from watchkeeper.store import agents, artifacts, budgets, facts, plans, sessions
from watchkeeper.store.agents import Agent
from watchkeeper.store.driver import encode
from watchkeeper.store.transaction import Transaction

LEARNED_LINES = 8
LEARNED_CHARACTERS = 300
RESULT_CHARACTERS = 2_000
"""Longest part of a task's result that the planner receives as text; the whole is an artifact."""


def task_done(tx: Transaction, agent: Agent, text: str, memory_ref: str, turn: int, seq: int) -> None:
    """The agent reported done: its task, its output cache, the planner's inbox."""
    assert agent.task_id is not None
    task = plans.load_task(tx, agent.task_id)
    assert task is not None
    produced = produced_by(tx, agent.id)
    result_ref = artifacts.save_output(
        tx,
        name=f"result/{task.name}",
        data=text.encode("utf-8", "replace"),
        media_type="text/plain",
        agent_id=agent.id,
        task_id=task.id,
        kind="result",
    )
    agents.move(tx, agent.id, AgentStatus.DONE)
    tx.execute("UPDATE tasks SET resume_token = ? WHERE id = ?", (f"{agent.id}:{turn}:{seq}", task.id))
    plans.finish(
        tx, task.id, result=text, artifact_refs=[result_ref, *(ref for _, ref in produced)], agent_id=agent.id
    )
    delta = memory_delta(tx, agent, task.name, text, produced, memory_ref)
    missing = [name for name in task.expected_outputs if name not in {one for one, _ in produced}]
    tell_planner(
        tx,
        "task_done",
        task.id,
        result=text[:RESULT_CHARACTERS],
        result_ref=result_ref,
        artifacts=[{"name": name, "ref": ref} for name, ref in produced][-20:],
        memory_delta=delta,
        learned=learned_by(tx, agent.id),
        **({"missing_outputs": missing} if missing else {}),
        **_waiting_changes(tx, task.id),
    )


def _waiting_changes(tx: Transaction, task_id: str) -> dict[str, Any]:
    """What a planner reads about changes in the task's worktree, which are not in the workspace yet."""
    tree = agents.load_worktree(tx, task_id)
    if tree is None or not tree.is_there:
        return {}
    return {"branch": tree.branch, "files_changed": tree.files_changed}


def task_failed(tx: Transaction, agent: Agent, reason: str, memory_ref: str, turn: int, seq: int) -> None:
    """The agent failed: its work is kept, and the planner receives the reason. If a planner fails, so does
    its session."""
    agents.move(tx, agent.id, AgentStatus.FAILED, reason)
    if agent.task_id is None:
        sessions.set_status(tx, SessionStatus.FAILED, reason)
        return
    # Failures are counted for as long as no turn comes between them: what a planner may resume is bounded by
    # that.
    tx.execute(
        "UPDATE tasks SET error = ?1, failures = CASE WHEN resume_token LIKE ?2 THEN failures + 1 ELSE 1"
        " END, resume_token = ?3"
        " WHERE id = ?4",
        (reason, f"{agent.id}:{turn}:%", f"{agent.id}:{turn}:{seq}", agent.task_id),
    )
    plans.move(tx, agent.task_id, TaskStatus.FAILED, reason, agent=agent.id)
    task = plans.load_task(tx, agent.task_id)
    assert task is not None
    produced = produced_by(tx, agent.id)
    tell_planner(
        tx,
        "task_failed",
        agent.task_id,
        error=reason,
        attempt=task.attempt,
        turns=turn,
        artifacts=[{"name": name, "ref": ref} for name, ref in produced][-20:],
        memory_delta=memory_delta(tx, agent, task.name, "", produced, memory_ref),
        learned=learned_by(tx, agent.id),
    )


def finish_session(tx: Transaction, planner_id: str, status: str, summary: str) -> None:
    """The planner says that the goal is reached, or out of reach."""
    agents.move(tx, planner_id, AgentStatus.DONE)
    sessions.set_status(tx, SessionStatus.DONE if status == "done" else SessionStatus.FAILED, summary)


def pause(tx: Transaction, agent: Agent, reason: str, *, tell: bool) -> None:
    """The agent and its task are paused; with `tell`, the planner gets a notice."""
    agents.move(tx, agent.id, AgentStatus.PAUSED, reason)
    if agent.task_id is not None:
        plans.move(tx, agent.task_id, TaskStatus.PAUSED, reason, agent=agent.id)
        if tell:
            tell_planner(tx, "task_paused", agent.task_id, error=reason)


def tell_planner(tx: Transaction, kind: str, task_id: str, **payload: Any) -> None:
    """Put news of a task into the planner's inbox."""
    row = tx.one("SELECT planner_agent_id FROM sessions WHERE id = ?", (tx.session_id,))
    task = plans.load_task(tx, task_id)
    if row is None or row[0] is None or task is None:
        return
    plans.post(tx, row[0], kind, {"task": task.name, "title": task.title, **payload})


def produced_by(tx: Transaction, agent_id: str) -> list[tuple[str, str]]:
    """What an agent saved, the newest of each name, in order of name: `(name, reference)`."""
    rows = tx.all(
        "SELECT name, digest FROM outputs WHERE agent_id = ? AND kind = 'artifact' ORDER BY id", (agent_id,)
    )
    newest = {row[0]: artifacts.ref_of(row[1]) for row in rows}
    return sorted(newest.items())


def learned_by(tx: Transaction, agent_id: str) -> list[str]:
    """The newest of what an agent remembered and what holds still, a line each with its pointers, for the
    planner to read at once; all of it is in the memory delta."""
    newest = facts.current_facts(tx, tx.session_id, writer=agent_id, limit=LEARNED_LINES)
    return [replace(fact, text=fact.text[:LEARNED_CHARACTERS]).cited() for fact in newest]


def memory_delta(
    tx: Transaction,
    agent: Agent,
    task_name: str,
    result: str,
    produced: list[tuple[str, str]],
    memory_ref: str,
) -> str:
    """What a sub-agent learned and made, with pointers to the sources, as an artifact; returns its
    reference."""
    learned = facts.current_facts(tx, tx.session_id, writer=agent.id)
    last_seq = tx.one("SELECT last_seq FROM agents WHERE id = ?", (agent.id,))[0]
    delta = {
        "agent": agent.id,
        "task": task_name,
        "result": result,
        "facts": [
            {
                "id": one.id,
                "kind": one.kind,
                "text": one.text,
                "sources": one.sources,
                "replaces": one.replaces,
            }
            for one in learned
        ],
        "artifacts": [{"name": name, "ref": ref} for name, ref in produced],
        "memory": memory_ref,
        "transcript": f"message://{agent.id}/1-{last_seq}",
    }
    return artifacts.put(tx, encode(delta).encode("utf-8", "replace"), "application/json")


# --- Rows written when a loop ends --------------------------------------------------------------------------


class TaskOutcome(StrEnum):
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
class RunResult:
    outcome: TaskOutcome
    reason: str = ""
    status: str = "done"
    """For FINISHED: how the session ends."""
    short_of: Shortage | None = None
    """For BLOCKED: what the machine ran out of, if that is why."""


def note_budget(tx: Transaction, *, agent: Agent, reached: BudgetReached) -> None:
    """Say that a budget is used up: the session's, its project's, or that of the agent's task."""
    if reached.project is not None:
        budgets.note_project_reached(
            tx, agent.id, reached.project, reached.kind, reached.reason, reached.required
        )
        return
    owner = None if reached.whole_session else agent.task_id
    budgets.note_reached(tx, agent.id, owner, reached.kind, reached.reason, reached.required)


def write_ending(
    tx: Transaction, agent: Agent, ending: RunResult, text: str, turn: int, snapshot: Snapshot | None
) -> None:
    """Write an ending: the agent, its memory snapshot, its task, the planner's inbox, the session.

    `text` is the agent's last word; `snapshot` may be missing for a planner that only rests.
    """
    if ending.outcome is TaskOutcome.IDLE:
        agents.move(tx, agent.id, AgentStatus.IDLE)
        return
    assert snapshot is not None
    memory_ref, seq = snapshot.write(tx, turn), snapshot.last_seq
    if ending.outcome is TaskOutcome.FINISHED:
        finish_session(tx, agent.id, ending.status, ending.reason)
    elif ending.outcome is TaskOutcome.DONE:
        task_done(tx, agent, text, memory_ref, turn, seq)
    elif ending.outcome is TaskOutcome.FAILED:
        task_failed(tx, agent, ending.reason, memory_ref, turn, seq)
