"""The life of a session's row: created, opened by a host, paused, resumed.

A new session is one row with everything that a host needs to run it later. The functions that take a
transaction change the rows of a session when a host opens it, pauses it or settles its stale tasks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import BadInput
from watchkeeper.records.ports import IdSource, random_id
from watchkeeper.records.states import AgentStatus, CommandStatus, SessionStatus, TaskStatus
from watchkeeper.runtime.config import BUILT_IN, RoleModel
from watchkeeper.runtime.control import user_name
from watchkeeper.store import agents, budgets, commands, database, driver, plans, sessions, workers
from watchkeeper.store.database import refuse_inside
from watchkeeper.store.driver import decode, sqlite3
from watchkeeper.store.place import Place, user_redactor
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import Transaction
from watchkeeper.store.workers import Needs
from watchkeeper.store.writer import Group


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session. They are stored in its row, so that a resume needs no flags."""

    max_parallel: int = 4
    context_tokens: int | None = None
    speed: float | None = 1.0
    """The surveyor's pace; None waits for nothing."""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    approval_timeout_seconds: float | None = None
    """Set by a program that embeds `Runtime`. The command line gives the time-out to the host instead."""
    base_url: str | None = None
    """A local server that was picked for this session; it gets no key. None: the configured server."""
    allow_models: tuple[str, ...] = ()
    """Models that the user allowed although they cost more: `provider/model`, or `role=provider/model`
    (`runtime.role_models`)."""
    continues: dict[str, str] | None = None
    """A session of an agent program, begun outside, that an agent goes on with: `program`, `session`, `transcript`,
    `folder` and the agent's `model`."""

    @classmethod
    def load(cls, text: str) -> SessionSettings:
        """From the JSON of a row. Settings of a newer release are ignored."""
        known = {key: value for key, value in decode(text).items() if key in cls.__slots__}
        for name in ("allow", "deny", "allow_models"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create."""

    goal: str
    workspace: Path
    model: str
    settings: SessionSettings = field(default_factory=SessionSettings)
    budgets: dict[str, float] = field(default_factory=dict)
    """Kind (`usd`, `tokens`, `turns`, `seconds`) → amount."""
    needs: Needs | None = None
    """What it needs of a worker; None: it is not queued. The workspace is then a folder of the worker, or none yet."""
    project: str | None = None
    """Whose budgets it shares with other sessions."""


def create_session(
    database_path: Place,
    wanted: NewSession,
    *,
    new_id: IdSource = random_id,
    now: float | None = None,
    prepare: Callable[[Transaction], None] | None = None,
) -> str:
    """Write the session's row, with secrets redacted from its goal; returns its id. Nothing runs yet.

    `prepare` writes more in the same transaction: what the session starts with (see `continuation`).

    Raises:
        BadInput: the workspace is no folder or contains the database, the goal is empty, a budget cannot
            be kept, or the project's name has characters that it cannot have.
        StoreUnusable: the database cannot be written.
    """
    if wanted.needs is None:
        check_workspace(wanted.workspace, database_path)
    if not wanted.goal.strip():
        raise BadInput('the goal is empty; say what should be done: wk run "GOAL"')
    for kind, amount in wanted.budgets.items():
        if kind not in budgets.KINDS or not 0 < amount < math.inf:  # NaN neither
            raise BadInput(f"a budget of {amount} {kind} makes no sense; give a positive amount")
    if wanted.project is not None:
        budgets.check_project(wanted.project)
    session_id = new_id()
    at = now if now is not None else time.time()
    try:
        with (
            closing(database.open_writable(database_path)) as connection,
            driver.writing(connection, "session"),
        ):
            group = Group(connection)
            sessions.create(
                group,
                session_id=session_id,
                user_id=user_name(),
                goal=user_redactor().text(wanted.goal),
                workspace=_workspace_of(wanted),
                model=wanted.model,
                settings=_plain(asdict(wanted.settings)),
                budgets=wanted.budgets,
                now=at,
                needs=wanted.needs.as_json() if wanted.needs is not None else None,
                project=wanted.project,
            )
            if prepare is not None:
                prepare(Transaction(group, session_id, 0, at))
                group.flush()
    except sqlite3.DatabaseError as error:
        raise driver.unusable(database_path, error) from error
    return session_id


def check_workspace(workspace: Path, database_path: Place) -> None:
    """Refuse a workspace that is no folder, or that contains the session's database.

    Raises:
        BadInput: one line that says which.
    """
    try:
        if workspace.is_dir():
            next(workspace.iterdir(), None)  # raises if the folder cannot be read
            refuse_inside(database_path, workspace)
            return
        exists = workspace.exists()
    except OSError as error:
        raise BadInput(
            f"the workspace {workspace} cannot be read ({error.strerror}); choose another with --workspace"
        ) from None
    raise BadInput(
        f"the workspace {workspace} is {'no folder' if exists else 'not there'}; choose a folder with"
        " --workspace"
    )


def _workspace_of(wanted: NewSession) -> str:
    """The folder, or the remote for as long as no worker has checked it out."""
    needs = wanted.needs
    return (needs.path or needs.remote if needs is not None else None) or str(wanted.workspace.resolve())


def queue_session(tx: Transaction, needs: Needs) -> None:
    """Leave a session that no host drives to the workers. A pause is lifted.

    Raises:
        ValueError: it has ended.
    """
    status = SessionStatus(tx.one("SELECT status FROM sessions WHERE id = ?", (tx.session_id,))[0])
    if status in (SessionStatus.DONE, SessionStatus.CANCELLED):
        raise ValueError(f"the session is already {status}")
    if status is not SessionStatus.RUNNING:
        sessions.set_status(tx, SessionStatus.RUNNING, "resumed")
        lift_pauses(tx)
    if status is SessionStatus.FAILED:
        revive_planner(tx)
    workers.queue(tx, needs)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


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
        # A session that runs has lost its host before that could pause it: then the pause still applies.
        if status is not SessionStatus.RUNNING:
            refuse_old_pauses(tx, last_command)
        lift_pauses(tx)
        if status is SessionStatus.FAILED:
            revive_planner(tx)


def refuse_old_pauses(tx: Transaction, last_command: int) -> None:
    """Refuse pauses that were queued when no host ran: the later resume overrides them."""
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
    """Continue every paused agent and task where it stopped, as the same attempt."""
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
    """Continue one agent and its task."""
    agents.move(tx, agent_id, AgentStatus.WORKING, "resumed")
    task = plans.load_task(tx, task_id) if task_id else None
    if task is not None and task.status is TaskStatus.PAUSED and task.assigned_agent == agent_id:
        plans.move(tx, task.id, TaskStatus.RUNNING, "resumed", agent=agent_id)


def revive_planner(tx: Transaction) -> None:
    """Wake the planner of a failed session that is resumed, with a message."""
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


def pause_session(
    tx: Transaction, reason: str, *, among: Collection[SessionStatus] = tuple(SessionStatus)
) -> None:
    """Pause the session, if its status is one of `among`: nothing runs, and the goal is not reached."""
    if tx.one("SELECT status FROM sessions WHERE id = ?", (tx.session_id,))[0] in among:
        sessions.set_status(tx, SessionStatus.PAUSED, reason)


def settle_stale(tx: Transaction, *, task: Task, again: bool) -> None:
    """Settle a stale task whose inputs are available again: done as before, or run `again`."""
    current = plans.load_task(tx, task.id)
    if current is None or current.status is not TaskStatus.STALE:
        return
    if not again:
        plans.move(tx, task.id, TaskStatus.DONE, "its inputs did not change")
        return
    plans.move(tx, task.id, TaskStatus.PENDING, "its inputs changed")
    tx.keep_replaced("tasks", task.id, "result")
    tx.execute(
        "UPDATE tasks SET attempt = attempt + 1, starts_from = NULL, assigned_agent = NULL, result = NULL"
        " WHERE id = ?",
        (task.id,),
    )
