"""Two sessions side by side: the state of each, and in which tasks and facts they differ."""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.records.errors import NotFound
from watchkeeper.store.driver import Connection
from watchkeeper.store.search.sessions import COST_ESTIMATED, SessionHead
from watchkeeper.store.snapshot import SPENDING, Spending

MOST = 2_000
"""Tasks, and facts, that are compared of each session."""


@dataclass(frozen=True, slots=True)
class SessionSide(SessionHead):
    """One of two sessions."""

    created_at: float
    ended_at: float | None
    last_active: float
    hosted_seconds: float
    spent: Spending
    agents: int
    turns: int
    tasks: int
    tasks_done: int
    tasks_failed: int
    compactions: int
    facts: int
    forked_from: str | None
    forked_at_seq: int | None


@dataclass(frozen=True, slots=True)
class TaskPair:
    """A task of the plans under one name; a side is None where its plan has no such task."""

    name: str
    left: TaskSide | None
    right: TaskSide | None

    @property
    def differs(self) -> bool:
        """Whether anything but its cost is different."""
        a, b = self.left, self.right
        if a is None or b is None:
            return True
        return (a.title, a.status, a.attempt, a.role, a.needs, a.instructions) != (
            b.title, b.status, b.attempt, b.role, b.needs, b.instructions,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskSide:
    """One side of a pair of tasks."""

    title: str
    status: str
    attempt: int
    role: str
    needs: tuple[str, ...]
    """Names of the tasks that it depends on."""
    instructions: str
    result: str
    tokens: int


@dataclass(frozen=True, slots=True)
class FactSide:
    """A fact that only one of the two sessions holds."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions, and where they differ."""

    left: SessionSide
    right: SessionSide
    tasks: tuple[TaskPair, ...]
    """In the order of the left plan, then those that only the right one has."""
    only_left: tuple[FactSide, ...]
    only_right: tuple[FactSide, ...]
    shared_facts: int


def compare(connection: Connection, left: str, right: str) -> Comparison:
    """Read two sessions side by side.

    Raises:
        NotFound: one of them is not there.
    """
    sides = [_tasks(connection, one) for one in (left, right)]
    names = list(dict.fromkeys([*sides[0], *sides[1]]))
    facts = [_facts(connection, one) for one in (left, right)]
    return Comparison(
        left=_side(connection, left),
        right=_side(connection, right),
        tasks=tuple(TaskPair(name, sides[0].get(name), sides[1].get(name)) for name in names),
        only_left=tuple(fact for key, fact in facts[0].items() if key not in facts[1]),
        only_right=tuple(fact for key, fact in facts[1].items() if key not in facts[0]),
        shared_facts=len(facts[0].keys() & facts[1].keys()),
    )


_SIDE = (
    "id", "title", "workspace", "model", "origin", "tags", "status", "status_reason", "created_at", "ended_at", "last_active",
    "hosted_seconds", "forked_from", "forked_at_seq",
)  # fmt: skip
_COUNTS = {
    "goal": "substr(s.goal, 1, 2000)",
    "agents": "(SELECT count(*) FROM agents WHERE session_id = s.id)",
    "turns": "(SELECT coalesce(sum(turn), 0) FROM agents WHERE session_id = s.id)",
    "tasks": "(SELECT count(*) FROM tasks WHERE session_id = s.id)",
    "tasks_done": "(SELECT count(*) FROM tasks WHERE session_id = s.id AND status = 'done')",
    "tasks_failed": "(SELECT count(*) FROM tasks WHERE session_id = s.id AND status = 'failed')",
    "compactions": "(SELECT coalesce(sum(compactions), 0) FROM agents WHERE session_id = s.id)",
    "facts": "(SELECT count(*) FROM facts WHERE session_id = s.id AND superseded_by IS NULL)",
}
"""Fields that are no column, and how each is reckoned."""


def _side(connection: Connection, session_id: str) -> SessionSide:
    columns = ", ".join([*(f"s.{each}" for each in (*_SIDE, *SPENDING)), *_COUNTS.values(), COST_ESTIMATED])
    row = connection.execute(f"SELECT {columns} FROM sessions s WHERE s.id = ?", (session_id,)).fetchone()
    if row is None:
        raise NotFound(f"no session {session_id!r}; list them with `wk sessions`")
    values = dict(zip((*_SIDE, *SPENDING, *_COUNTS), row[:-1], strict=True))
    spent = Spending(**{each: values.pop(each) for each in SPENDING}, cost_estimated=bool(row[-1]))
    return SessionSide(**values, spent=spent)


def _tasks(connection: Connection, session_id: str) -> dict[str, TaskSide]:
    needs: dict[str, list[str]] = {}
    for name, other in connection.execute(
        "SELECT t.name, n.name FROM task_dependencies d JOIN tasks t ON t.id = d.task_id JOIN tasks n ON"
        " n.id = d.depends_on"
        " WHERE t.session_id = ? ORDER BY n.position",
        (session_id,),
    ):
        needs.setdefault(name, []).append(other)
    rows = connection.execute(
        "SELECT t.name, t.title, t.status, t.attempt, t.role, substr(t.instructions, 1, 4000),"
        " substr(coalesce(t.result, ''), 1, 400),"
        " (SELECT coalesce(sum(a.input_tokens + a.output_tokens + a.cache_read_tokens +"
        " a.cache_write_tokens), 0) FROM agents a"
        " WHERE a.task_id = t.id) FROM tasks t WHERE t.session_id = ? ORDER BY t.position LIMIT ?",
        (session_id, MOST),
    )
    return {
        row[0]: TaskSide(row[1], row[2], row[3], row[4], tuple(needs.get(row[0], ())), row[5], row[6], row[7])
        for row in rows
    }


def _facts(connection: Connection, session_id: str) -> dict[str, FactSide]:
    rows = connection.execute(
        "SELECT digest, kind, text FROM facts WHERE session_id = ? AND superseded_by IS NULL ORDER BY id"
        " LIMIT ?",
        (session_id, MOST),
    )
    return {row[0]: FactSide(row[1], row[2]) for row in rows}
