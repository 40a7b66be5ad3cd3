"""Opening and closing a session's drive: what a resume, a pause and a re-run change in the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from watchkeeper.records.states import AgentStatus, CommandStatus, SessionStatus, TaskStatus
from watchkeeper.runtime.role_models import BUILT_IN, RoleModel
from watchkeeper.store import agents, commands, plans, sessions
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import Transaction


def open_session(
    tx: Transaction,
    *,
    resume: bool,
    warnings: Sequence[str] = (),
    last_command: int = 0,
    roles: Sequence[RoleModel] = (),
) -> None:
    """Let a host begin: `resume` lifts the session's pause and every agent's.

    `roles`: what each role runs on, for people to see.
    `last_command`: the newest when the resume was asked for; a pause up to it, which reached a session at
    rest, is refused.
    """
    status = SessionStatus(tx.one("SELECT status FROM sessions WHERE id = ?", (tx.session_id,))[0])
    if status is SessionStatus.PAUSED or (resume and status is SessionStatus.FAILED):
        sessions.set_status(tx, SessionStatus.RUNNING, "resumed")
    tx.execute("DELETE FROM live WHERE session_id = ?", (tx.session_id,))
    records = [one.as_record() for one in roles]
    sessions.set_roles(tx, records)
    other = [one for one in records if one["source"] != BUILT_IN]
    about: dict[str, Any] = {"resume": resume, "epoch": tx.epoch} | ({"roles": other} if other else {})
    tx.event("host.started", **about)
    for warning in warnings:
        tx.event("host.warning", text=warning)
    if resume:
        if (
            status is not SessionStatus.RUNNING
        ):  # else its host died before it could pause, and the wish stands
            refuse_old_pauses(tx, last_command)
        lift_pauses(tx)
        if status is SessionStatus.FAILED:
            revive_planner(tx)


def refuse_old_pauses(tx: Transaction, last_command: int) -> None:
    """A pause that met a session without a host has its wish; whoever resumes later wants it to go on."""
    waiting = tx.all(
        "SELECT id FROM commands WHERE session_id = ? AND kind = 'pause' AND agent_id IS NULL AND status ="
        " 'queued' AND id <= ?",
        (tx.session_id, last_command),
    )
    for row in waiting:
        commands.settle(
            tx,
            row[0],
            "pause",
            CommandStatus.REFUSED,
            "the session had stopped already, and was resumed since",
        )


def lift_pauses(tx: Transaction) -> None:
    """Every paused agent and task goes on where it stopped; attempts stay what they are."""
    for agent in agents.load_all(tx, tx.session_id):
        if agent.status is AgentStatus.PAUSED:
            lift(tx, agent.id, agent.task_id)
    for task in plans.load_tasks(tx, tx.session_id):
        if task.status is TaskStatus.PAUSED:
            plans.move(
                tx, task.id, TaskStatus.RUNNING if task.assigned_agent else TaskStatus.PENDING, "resumed"
            )


def pause_agent(tx: Transaction, agent_id: str, task_id: str | None, reason: str) -> None:
    """Pause an agent whose loop does not run, and its task."""
    agents.move(tx, agent_id, AgentStatus.PAUSED, reason)
    task = plans.load_task(tx, task_id) if task_id else None
    if task is not None and task.status is TaskStatus.RUNNING and task.assigned_agent == agent_id:
        plans.move(tx, task.id, TaskStatus.PAUSED, reason, agent=agent_id)


def lift(tx: Transaction, agent_id: str, task_id: str | None) -> None:
    """One agent, and its task, go on."""
    agents.move(tx, agent_id, AgentStatus.WORKING, "resumed")
    task = plans.load_task(tx, task_id) if task_id else None
    if task is not None and task.status is TaskStatus.PAUSED and task.assigned_agent == agent_id:
        plans.move(tx, task.id, TaskStatus.RUNNING, "resumed", agent=agent_id)


def revive_planner(tx: Transaction) -> None:
    """A session that failed is resumed: its planner is told, and decides."""
    row = tx.one("SELECT planner_agent_id FROM sessions WHERE id = ?", (tx.session_id,))
    planner = agents.load(tx, row[0]) if row and row[0] else None
    if planner is not None and planner.status in (
        AgentStatus.FAILED,
        AgentStatus.DONE,
        AgentStatus.CANCELLED,
    ):
        agents.move(tx, planner.id, AgentStatus.IDLE, "resumed")
        plans.post(
            tx, planner.id, "resumed", {"text": "The session was resumed by a person. Go on with the plan."}
        )


def pause_session(tx: Transaction, reason: str) -> None:
    """Nothing runs any more, and the goal is not reached."""
    sessions.set_status(tx, SessionStatus.PAUSED, reason)


def pause_open_session(tx: Transaction, reason: str) -> None:
    """A host cannot begin, for this reason: a session that has not ended is paused, and can be resumed."""
    status = SessionStatus(tx.one("SELECT status FROM sessions WHERE id = ?", (tx.session_id,))[0])
    if status in (SessionStatus.RUNNING, SessionStatus.PAUSED):
        pause_session(tx, reason)


def settle_stale(tx: Transaction, *, task: Task, again: bool) -> None:
    """A stale task whose inputs are all there again: as good as before, or run anew."""
    current = plans.load_task(tx, task.id)
    if current is None or current.status is not TaskStatus.STALE:
        return
    if not again:
        plans.move(tx, task.id, TaskStatus.DONE, "its inputs did not change")
        return
    plans.move(tx, task.id, TaskStatus.PENDING, "its inputs changed")
    tx.execute(
        "UPDATE tasks SET attempt = attempt + 1, starts_from = NULL, assigned_agent = NULL, result = NULL"
        " WHERE id = ?",
        (task.id,),
    )
