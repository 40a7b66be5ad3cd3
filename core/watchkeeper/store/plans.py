"""Rows of `plans`, `plan_revisions`, `tasks`, `task_dependencies`, `handoffs` and `inbox`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watchkeeper.records.states import TASK_MOVES, TaskStatus, check
from watchkeeper.store.driver import IN_LIST, Reads, decode, encode, list_of, row_list

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction


FILE_OUTPUT = "file:"
"""Begins an expected output that is a file of the workspace; any other is the name of an artifact."""

OPEN = frozenset({TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.STALE})
"""States of a task that still has to run, or to be decided about."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task in its present state."""

    id: str
    name: str
    title: str
    instructions: str
    role: str
    model: str | None
    status: TaskStatus
    status_reason: str | None
    attempt: int
    assigned_agent: str | None
    inputs_ref: tuple[str, ...]
    inputs_hash: str | None
    expected_outputs: tuple[str, ...]
    artifact_refs: tuple[str, ...]
    result: str | None
    error: str | None
    parent_plan_id: str
    position: int
    depends_on: tuple[str, ...]
    """Ids of tasks."""
    isolation: str | None = None
    """`worktree` or `none`, if the planner chose; see `agents.worktrees`."""
    starts_from: str | None = None
    """The agent whose memory the next one begins with."""
    rerun_reason: str | None = None
    failures: int = 0
    """How often it failed without a turn between."""
    resume_token: str | None = None
    """Where it continues: agent, turn and message."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """As much of a task as decides whether it may run."""

    id: str
    status: TaskStatus
    place: tuple[str, int]
    """The planner's order: plan, position."""
    depends_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Whom a stretch of a session's events tells of."""

    agents: list[str]
    tasks: list[str]
    plan: bool
    """The graph itself was changed."""


_COLUMNS = (
    "id, name, title, instructions, role, model, status, status_reason, attempt, assigned_agent, inputs_ref,"
    " inputs_hash,"
    " expected_outputs, artifact_refs, result, error, parent_plan_id, position, isolation, starts_from, rerun_reason, failures,"
    " resume_token"
)


def load_tasks(reads: Reads, session_id: str) -> list[Task]:
    """Every task of a session's plans, in the planner's order."""
    needs: dict[str, list[str]] = {}
    for task_id, depends_on in reads.all(
        "SELECT d.task_id, d.depends_on FROM task_dependencies d JOIN tasks t ON t.id = d.task_id WHERE"
        " t.session_id = ?"
        " ORDER BY d.task_id, d.position",
        (session_id,),
    ):
        needs.setdefault(task_id, []).append(depends_on)
    rows = reads.all(
        f"SELECT {_COLUMNS} FROM tasks WHERE session_id = ? ORDER BY parent_plan_id, position",
        (session_id,),
    )
    return [_task(row, tuple(needs.get(row[0], ()))) for row in rows]


def task_names(reads: Reads, session_id: str) -> list[tuple[str, str]]:
    """The id and the name of every task of a session's plans, in the planner's order."""
    sql = "SELECT id, name FROM tasks WHERE session_id = ? ORDER BY parent_plan_id, position"
    return [(row[0], row[1]) for row in reads.all(sql, (session_id,))]


def load_task(reads: Reads, task_id: str) -> Task | None:
    row = reads.one(f"SELECT {_COLUMNS} FROM tasks WHERE id = ?", (task_id,))
    if row is None:
        return None
    needs = reads.all(
        "SELECT depends_on FROM task_dependencies WHERE task_id = ? ORDER BY position", (task_id,)
    )
    return _task(row, tuple(need[0] for need in needs))


def changed_between(reads: Reads, session_id: str, after: int, through: int) -> PlanChange:
    """Agents and tasks that changed how they stand in events `after + 1 … through`, each once, in that
    order."""
    rows = reads.all(
        "SELECT kind, agent_id, task_id FROM events WHERE session_id = ? AND seq > ? AND seq <= ?"
        " AND (kind LIKE 'task.%' OR kind LIKE 'agent.%' OR kind = 'plan.revised') ORDER BY seq",
        (session_id, after, through),
    )
    agents = dict.fromkeys(row[1] for row in rows if row[1] and row[0].startswith("agent."))
    tasks = dict.fromkeys(row[2] for row in rows if row[2] and row[0].startswith("task."))
    return PlanChange(list(agents), list(tasks), any(row[0] == "plan.revised" for row in rows))


_TASK_STATES = (
    "SELECT id, status, parent_plan_id, position,"
    f" {row_list('depends_on', 'task_dependencies WHERE task_id = tasks.id')} FROM tasks"
)


def all_task_states(reads: Reads, session_id: str) -> list[TaskState]:
    """The state of every task of a session's plans, in no order."""
    return [_task_state(row) for row in reads.all(f"{_TASK_STATES} WHERE session_id = ?", (session_id,))]


def load_task_states(reads: Reads, task_ids: Sequence[str]) -> list[TaskState]:
    """The states of these tasks; deleted tasks are left out."""
    if not task_ids:
        return []
    rows = reads.all(f"{_TASK_STATES} WHERE id {IN_LIST}", (list_of(task_ids),))
    return [_task_state(row) for row in rows]


def _task_state(row: Any) -> TaskState:
    return TaskState(row[0], TaskStatus(row[1]), (row[2], row[3]), _listed(row[4]))


def _listed(text: str) -> tuple[str, ...]:
    return () if text == "[]" else tuple(decode(text))


def _task(row: Any, depends_on: tuple[str, ...]) -> Task:
    return Task(
        id=row[0], name=row[1], title=row[2], instructions=row[3], role=row[4], model=row[5], status=TaskStatus(row[6]),
        status_reason=row[7], attempt=row[8], assigned_agent=row[9], inputs_ref=_listed(row[10]), inputs_hash=row[11],
        expected_outputs=_listed(row[12]), artifact_refs=_listed(row[13]), result=row[14], error=row[15],
        parent_plan_id=row[16], position=row[17], depends_on=depends_on, isolation=row[18],
        starts_from=row[19], rerun_reason=row[20], failures=row[21], resume_token=row[22],
    )  # fmt: skip


def current_step(statuses: Sequence[str]) -> int | None:
    """Where a plan is, as an index of its tasks in the planner's order: the first that runs, else the first that
    is still open; None at its end."""
    running = [place for place, status in enumerate(statuses) if status == TaskStatus.RUNNING]
    still_open = [place for place, status in enumerate(statuses) if status in OPEN]
    return next(iter(running or still_open), None)


def create_plan(tx: Transaction, plan_id: str, goal: str) -> None:
    """A plan without tasks; becomes the session's current one."""
    tx.execute(
        "INSERT INTO plans (id, session_id, goal, created_at, updated_at, commit_seq) VALUES (?, ?, ?, ?, ?,"
        " ?)",
        (plan_id, tx.session_id, goal, tx.now, tx.now, tx.commit_seq),
    )
    tx.execute("UPDATE sessions SET current_plan_id = ? WHERE id = ?", (plan_id, tx.session_id))


def add_task(
    tx: Transaction,
    *,
    task_id: str,
    plan_id: str,
    name: str,
    position: int,
    title: str,
    instructions: str,
    role: str,
    model: str | None,
    expected_outputs: Sequence[str],
    isolation: str | None = None,
    starts_from: str | None = None,
) -> None:
    """A task of a plan, still to be done. `starts_from`: the agent whose memory its agent gets."""
    tx.execute(
        "INSERT INTO tasks (id, session_id, parent_plan_id, name, position, title, instructions, role,"
        " model, status,"
        " expected_outputs, created_at, commit_seq, isolation, starts_from)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            task_id, tx.session_id, plan_id, name, position, title, instructions, role, model, TaskStatus.PENDING,
            encode(list(expected_outputs)), tx.now, tx.commit_seq, isolation, starts_from,
        ),
    )  # fmt: skip


def rewrite(
    tx: Transaction,
    task_id: str,
    *,
    title: str,
    instructions: str,
    role: str,
    expected_outputs: Sequence[str],
) -> None:
    """Replace what a task asks for."""
    tx.keep_replaced("tasks", task_id, "instructions", "role", "expected_outputs")
    tx.execute(
        "UPDATE tasks SET title = ?, instructions = ?, role = ?, expected_outputs = ? WHERE id = ?",
        (title, instructions, role, encode(list(expected_outputs)), task_id),
    )


def begin_attempt(
    tx: Transaction,
    task_id: str,
    reason: str | None,
    *,
    starts_from: str | None = None,
    keep_made: bool = False,
) -> None:
    """The next attempt of a task begins, without an agent yet and for that reason. `starts_from`: the agent whose memory
    its agent gets. `keep_made`: what the attempt before saved, and how it failed, stays."""
    made = () if keep_made else ("artifact_refs", "inputs_hash")
    tx.keep_replaced("tasks", task_id, "result", *made, "rerun_reason")
    cleared = "" if keep_made else " error = NULL, artifact_refs = '[]', inputs_hash = NULL, failures = 0,"
    tx.execute(
        f"UPDATE tasks SET attempt = attempt + 1, assigned_agent = NULL, starts_from = ?, result = NULL,{cleared}"
        " rerun_reason = ? WHERE id = ?",
        (starts_from, reason, task_id),
    )


def note_resume_point(tx: Transaction, task_id: str, agent_id: str, turn: int, seq: int) -> None:
    """Where a task continues: behind that message of its agent."""
    tx.execute(
        "UPDATE tasks SET resume_token = ? WHERE id = ? AND assigned_agent = ?",
        (f"{agent_id}:{turn}:{seq}", task_id, agent_id),
    )


def note_failure(tx: Transaction, task_id: str, agent_id: str, turn: int, seq: int, error: str) -> None:
    """A task's agent failed in that turn, behind that message. Failures are counted for as long as no turn comes between
    them: what a planner may resume is bounded by that."""
    tx.execute(
        "UPDATE tasks SET error = ?1, failures = CASE WHEN resume_token LIKE ?2 THEN failures + 1 ELSE 1 END,"
        " resume_token = ?3 WHERE id = ?4",
        (error, f"{agent_id}:{turn}:%", f"{agent_id}:{turn}:{seq}", task_id),
    )


def assign(
    tx: Transaction,
    task_id: str,
    agent_id: str,
    *,
    inputs_ref: Sequence[str],
    inputs_hash: str,
    last_seq: int,
) -> None:
    """An agent makes this attempt of a task with these inputs. Its history goes to `last_seq`."""
    tx.keep_replaced("tasks", task_id, "inputs_ref", "inputs_hash")
    tx.execute(
        "UPDATE tasks SET assigned_agent = ?, inputs_ref = ?, inputs_hash = ?, resume_token = ?, ended_at = NULL"
        " WHERE id = ?",
        (agent_id, encode(list(inputs_ref)), inputs_hash, f"{agent_id}:0:{last_seq}", task_id),
    )


def note_error(tx: Transaction, task_id: str, error: str) -> None:
    """Say why a task could not begin."""
    tx.execute("UPDATE tasks SET error = ? WHERE id = ?", (error, task_id))


def set_dependencies(tx: Transaction, task_id: str, depends_on: Sequence[str]) -> None:
    tx.execute("DELETE FROM task_dependencies WHERE task_id = ?", (task_id,))
    tx.executemany(
        "INSERT INTO task_dependencies (task_id, depends_on, position, commit_seq) VALUES (?, ?, ?, ?)",
        [(task_id, need, position, tx.commit_seq) for position, need in enumerate(depends_on, 1)],
    )


def revise(tx: Transaction, plan_id: str, reason: str) -> int:
    """Keep the present plan as a new revision (goal, queue, cursor, graph); returns its number.

    The cursor counts the tasks that have ended; the queue lists those that have not, in order.
    """
    tasks = [task for task in load_tasks(tx, tx.session_id) if task.parent_plan_id == plan_id]
    queue = [t.id for t in tasks if t.status in OPEN]
    graph = [
        {"id": t.id, "name": t.name, "title": t.title, "status": t.status, "attempt": t.attempt, "agent": t.assigned_agent,
         "depends_on": list(t.depends_on)}
        for t in tasks
    ]  # fmt: skip
    row = tx.one(
        "UPDATE plans SET revision = revision + 1, updated_at = ?, task_queue = ?, step_cursor = ? WHERE id"
        " = ?"
        " RETURNING revision, goal",
        (tx.now, encode(queue), len(tasks) - len(queue), plan_id),
    )
    tx.execute(
        "INSERT INTO plan_revisions (plan_id, revision, at, reason, goal, task_queue, step_cursor,"
        " plan_graph_snapshot,"
        " commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            plan_id,
            row[0],
            tx.now,
            reason,
            row[1],
            encode(queue),
            len(tasks) - len(queue),
            encode(graph),
            tx.commit_seq,
        ),
    )
    tx.event("plan.revised", plan=plan_id, revision=row[0], reason=reason, tasks=len(tasks))
    return int(row[0])


def advance(tx: Transaction, plan_id: str) -> None:
    """Bring queue and cursor up to date after a task changed state; the graph's shape is the same, so no
    revision."""
    rows = tx.all("SELECT id, status FROM tasks WHERE parent_plan_id = ? ORDER BY position", (plan_id,))
    queue = [row[0] for row in rows if row[1] in OPEN]
    tx.execute(
        "UPDATE plans SET task_queue = ?, step_cursor = ?, updated_at = ? WHERE id = ?",
        (encode(queue), len(rows) - len(queue), tx.now, plan_id),
    )


def move(tx: Transaction, task_id: str, status: TaskStatus, reason: str | None = None, **about: Any) -> None:
    """Change a task's state, with its event, queue and cursor.

    Raises:
        ValueError: the move is not in `TASK_MOVES`.
    """
    row = tx.one("SELECT status, parent_plan_id, name, title FROM tasks WHERE id = ?", (task_id,))
    check(TASK_MOVES, TaskStatus(row[0]), status)
    ended = tx.now if status in ("done", "failed", "cancelled", "dropped") else None
    tx.execute(
        "UPDATE tasks SET status = ?, status_reason = ?, ended_at = ?,"
        " started_at = CASE WHEN ? = 'running' THEN coalesce(started_at, ?) ELSE started_at END WHERE id = ?",
        (status, reason, ended, status, tx.now, task_id),
    )
    tx.event(f"task.{status}", task_id=task_id, name=row[2], title=row[3], reason=reason, **about)
    if (row[0] in OPEN) is not (status in OPEN):
        advance(tx, row[1])


def finish(
    tx: Transaction, task_id: str, *, result: str, artifact_refs: Sequence[str], agent_id: str
) -> None:
    """A task's agent reported done."""
    keep_result(tx, task_id, result, artifact_refs)
    move(tx, task_id, TaskStatus.DONE, agent=agent_id, artifacts=len(artifact_refs))


def keep_result(tx: Transaction, task_id: str, result: str, artifact_refs: Sequence[str]) -> None:
    """Store what a task's agent made, without a change of the task's state."""
    tx.keep_replaced("tasks", task_id, "result", "artifact_refs")
    tx.execute(
        "UPDATE tasks SET result = ?, artifact_refs = ?, error = NULL WHERE id = ?",
        (result, encode(list(artifact_refs)), task_id),
    )


def inputs_hash(inputs_ref: Sequence[str], instructions: str) -> str:
    """What decides whether a finished task must run again: the digests of its inputs, and its
    instructions."""
    return hashlib.sha256(
        "\n".join([*sorted(inputs_ref), instructions]).encode("utf-8", "replace")
    ).hexdigest()


def add_handoff(
    tx: Transaction,
    *,
    plan_id: str,
    task_id: str,
    assigned_agent: str,
    inputs_ref: Sequence[str],
    memory_delta_ref: str | None,
    expected_outputs: Sequence[str],
) -> None:
    """Record what a sub-agent was given."""
    tx.execute(
        "INSERT INTO handoffs (session_id, plan_id, task_id, assigned_agent, inputs_ref, memory_delta_ref,"
        " expected_outputs,"
        " created_at, commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            tx.session_id, plan_id, task_id, assigned_agent, encode(list(inputs_ref)), memory_delta_ref,
            encode(list(expected_outputs)), tx.now, tx.commit_seq,
        ),
    )  # fmt: skip


def post(tx: Transaction, agent_id: str, kind: str, payload: dict[str, Any]) -> None:
    """Put something into an agent's inbox; it is delivered once, in a step of its own."""
    tx.execute(
        "INSERT INTO inbox (session_id, agent_id, kind, payload, created_at, commit_seq) VALUES (?, ?, ?, ?,"
        " ?, ?)",
        (tx.session_id, agent_id, kind, encode(payload), tx.now, tx.commit_seq),
    )


def post_all(tx: Transaction, agent_id: str, notes: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """`post` of each."""
    for kind, payload in notes:
        post(tx, agent_id, kind, payload)


NOTICE = "notice"
"""The kind of a note about an act of a person that leaves the plan as it is."""

Note = tuple[int, str, dict[str, Any]]
"""One thing in an inbox: its id, its kind and its payload."""


def notes_of(
    reads: Reads, session_id: str, agent_id: str, *, after_seq: int = 0
) -> list[tuple[str, dict[str, Any]]]:
    """What an agent's inbox has held, oldest first: kind and payload. `after_seq`: what is not delivered, or was
    delivered with a later message."""
    rows = reads.all(
        "SELECT kind, payload FROM inbox WHERE session_id = ? AND agent_id = ?"
        " AND (delivered_seq IS NULL OR delivered_seq > ?) ORDER BY id",
        (session_id, agent_id, after_seq),
    )
    return [(row[0], decode(row[1])) for row in rows]


def wakes(kind: str, payload: Mapping[str, Any]) -> bool:
    """Whether a note wakes a planner that rests. That a task ended as asked, tools came late or something was pinned is
    read with the next note that does."""
    match kind:
        case "task_done":
            return "branch" in payload
        case "rule":
            return "from" in payload
        case _:
            return kind not in ("tools", NOTICE)


def has_word_of_person(reads: Reads, agent_id: str) -> bool:
    """Whether an agent has not read yet what a person said or did."""
    sql = (
        "SELECT 1 FROM inbox WHERE agent_id = ? AND delivered_seq IS NULL"
        " AND kind IN ('steer', 'rule', 'person', 'task_cancelled')"
    )
    return reads.one(sql, (agent_id,)) is not None


def undelivered(reads: Reads, agent_id: str) -> list[Note]:
    """What waits in an agent's inbox, the oldest first: id, kind and payload."""
    rows = reads.all(
        "SELECT id, kind, payload FROM inbox WHERE agent_id = ? AND delivered_seq IS NULL ORDER BY id",
        (agent_id,),
    )
    return [(row[0], row[1], decode(row[2])) for row in rows]


def deliver(
    tx: Transaction,
    agent_id: str,
    task_id: str | None,
    notes: Sequence[Note],
    seq: int,
) -> None:
    """Mark the notes as delivered with the agent's message `seq`; the event names the tasks."""
    tx.executemany("UPDATE inbox SET delivered_seq = ? WHERE id = ?", [(seq, note[0]) for note in notes])
    tx.event(
        "inbox.delivered",
        agent_id=agent_id,
        task_id=task_id,
        items=[kind for _, kind, _ in notes],
        names=[str(payload.get("task") or "")[:200] for _, _, payload in notes],
    )
