"""Several sessions at once, one row each: state, plan, cost per minute, and the question that waits for a person.

A reading costs one query over the rows of `sessions`, and one more for those that changed since the reading before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from watchkeeper.store.driver import IN_LIST, Connection, list_of, row_lines
from watchkeeper.store.snapshot import SPENDING, IncrementalQuery, Raw, Spending, spent_per_minute

RECENT_SECONDS = 86_400.0
"""Without a choice, sessions that run, are paused, or were active in this time are listed."""
MOST_SESSIONS = 500

_COLUMNS = (
    "id",
    "goal",
    "title",
    "model",
    "origin",
    "status",
    "status_reason",
    "last_active",
    "event_seq",
    "queued_at",
    *SPENDING,
)
_SESSIONS = row_lines(
    ", ".join(_COLUMNS),
    "(SELECT * FROM sessions WHERE deleted_at IS NULL AND (id "
    + IN_LIST
    + " OR ? = 1 AND (status IN ('running', 'paused')"
    " OR last_active >= ?)) ORDER BY ordinal DESC LIMIT ?) listed",
)
_DETAILS = (
    "SELECT s.id, (SELECT count(*) FROM tasks WHERE session_id = s.id AND status <> 'dropped'),"
    " (SELECT count(*) FROM tasks WHERE session_id = s.id AND status = 'done'),"
    " (SELECT count(*) FROM tasks WHERE session_id = s.id AND status = 'failed'),"
    " (SELECT substr(title, 1, 300) FROM tasks WHERE session_id = s.id AND status = 'running'"
    " ORDER BY started_at DESC, id LIMIT 1),"
    " (SELECT count(*) FROM agents WHERE session_id = s.id),"
    " (SELECT count(*) FROM agents WHERE session_id = s.id AND status = 'working'),"
    " EXISTS (SELECT 1 FROM budgets WHERE session_id = s.id AND reached_at IS NOT NULL),"
    " EXISTS (SELECT 1 FROM model_calls WHERE session_id = s.id AND cost_usd IS NOT NULL"
    " AND (price_status = 'estimated' OR usage_exact = 0))"
    f" FROM sessions s WHERE s.id {IN_LIST}"
)
_QUESTIONS = (
    "SELECT a.session_id, coalesce(g.name, ''), a.tool, substr(a.question, 1, 2000)"
    " FROM approvals a LEFT JOIN agents g ON g.id = a.agent_id"
    f" WHERE a.session_id {IN_LIST} AND a.status = 'waiting' ORDER BY a.created_at, a.tool_call_id"
)


@dataclass(frozen=True, slots=True)
class Question:
    """The oldest question of a session that waits for a person. Texts are hostile until sanitised."""

    agent: str
    tool: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow(Spending):
    """One session. Whether a host drives it is the lease's to tell. Texts are hostile until sanitised."""

    id: str
    goal: str
    title: str | None
    model: str
    origin: str
    status: str
    status_reason: str | None
    last_active: float
    event_seq: int
    queued_at: float | None = None
    """Since when workers may drive it; it waits for one while no host does."""
    tasks: int = 0
    """Tasks of the plan, without those that were dropped."""
    tasks_done: int = 0
    tasks_failed: int = 0
    task: str | None = None
    """The title of the task that was started last among those that run."""
    agents: int = 0
    working: int = 0
    """Agents at work."""
    budget_reached: bool = False
    questions: int = 0
    """How many wait for a person."""
    question: Question | None = None
    cost_per_minute: float = 0.0
    """US dollars in the last minute."""


class FleetReader:
    """The rows of the chosen sessions, or of all that run, are paused or were active lately; newest first."""

    def __init__(self, session_ids: Sequence[str] = ()) -> None:
        self._parameters = (list_of(session_ids), not session_ids)
        self._sessions = IncrementalQuery(_SESSIONS, _row)
        self._read: tuple[FleetRow, ...] = ()
        """The rows as the last reading gave them, without the details."""
        self._rows: dict[str, FleetRow] = {}
        self._shown: tuple[FleetRow, ...] = ()

    def read(self, connection: Connection, now: float, also: Sequence[str] = ()) -> tuple[FleetRow, ...]:
        """The rows as they are now: the same tuple where nothing changed. Call it inside one transaction.

        `also`: sessions that are listed whatever their age, where none were chosen.
        """
        chosen, every = self._parameters
        if every and also:
            chosen = list_of(also)
        found = self._sessions.read(connection, (chosen, every, now - RECENT_SECONDS, MOST_SESSIONS))
        before = {row.id: row for row in self._read}
        changed = [row for row in found if before.get(row.id) is not row]
        self._rows = {row.id: self._rows[row.id] for row in found if row.id in self._rows}
        self._read = found
        if changed:
            self._renew(connection, changed)
        changed_ids = {row.id for row in changed}
        spending = [row for row in self._rows.values() if row.cost_per_minute or row.id in changed_ids]
        for row in spending:
            rate = sum(cost for _, cost, _ in spent_per_minute(connection, row.id, now))
            if rate != row.cost_per_minute:
                self._rows[row.id] = replace(row, cost_per_minute=rate)
        shown = tuple(self._rows[row.id] for row in found)
        if len(shown) != len(self._shown) or any(
            now is not then for now, then in zip(shown, self._shown, strict=True)
        ):
            self._shown = shown
        return self._shown

    def _renew(self, connection: Connection, changed: Sequence[FleetRow]) -> None:
        ids = list_of([row.id for row in changed])
        asked: dict[str, list[Question]] = {}
        for session_id, agent, tool, text in connection.execute(_QUESTIONS, (ids,)):
            asked.setdefault(session_id, []).append(Question(agent, tool, text))
        details = {row[0]: row[1:] for row in connection.execute(_DETAILS, (ids,))}
        for row in changed:
            tasks, done, failed, task, agents, working, reached, estimated = details[row.id]
            questions = asked.get(row.id, [])
            known = self._rows.get(row.id)
            self._rows[row.id] = replace(
                row,
                tasks=tasks,
                tasks_done=done,
                tasks_failed=failed,
                task=task,
                agents=agents,
                working=working,
                budget_reached=bool(reached),
                cost_estimated=bool(estimated),
                questions=len(questions),
                question=questions[0] if questions else None,
                cost_per_minute=known.cost_per_minute if known is not None else 0.0,
            )


def _row(raw: Raw) -> FleetRow:
    return FleetRow(**dict(zip(_COLUMNS, raw, strict=True)))
