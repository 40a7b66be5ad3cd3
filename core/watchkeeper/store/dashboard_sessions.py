"""What the list of sessions reads: one row a session, newest first, filtered by words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from watchkeeper.store.driver import Connection


@dataclass(frozen=True, slots=True)
class SessionLine:
    """One session as the list shows it."""

    id: str
    goal: str
    title: str | None
    workspace: str
    model: str
    origin: str
    tags: str
    status: str
    status_reason: str | None
    created_at: float
    last_active: float
    ended_at: float | None
    hosted_seconds: float
    tokens: int
    cost_usd: float | None
    unpriced_calls: int
    agents: int
    compactions: int


_SELECT = (
    "SELECT s.id, substr(s.goal, 1, 500), s.title, s.workspace, s.model, s.origin, s.tags, s.status, s.status_reason,"
    " s.created_at, s.last_active, s.ended_at, s.hosted_seconds,"
    " s.input_tokens + s.output_tokens + s.cache_read_tokens + s.cache_write_tokens, s.cost_usd, s.unpriced_calls,"
    " (SELECT count(*) FROM agents a WHERE a.session_id = s.id),"
    " (SELECT coalesce(sum(a.compactions), 0) FROM agents a WHERE a.session_id = s.id)"
    " FROM sessions s"
)


def list_sessions(connection: Connection, search: str = "", limit: int = 1000) -> tuple[SessionLine, ...]:
    """The newest `limit` sessions whose goal, title, id, workspace, model, tags or facts hold every word of `search`."""
    words = search.split()[:16]
    if not words:
        rows = connection.execute(f"{_SELECT} ORDER BY s.last_active DESC LIMIT ?", (limit,))
        return tuple(SessionLine(*row) for row in rows)
    haystack = (
        "(s.goal || ' ' || ifnull(s.title, '') || ' ' || s.id || ' ' || s.workspace || ' ' || s.model || ' ' || s.tags"
        " || ' ' || s.status)"
    )
    clauses: list[str] = []
    values: list[object] = []
    for word in words:
        pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        terms = re.findall(r"\w+", word)
        clause = f"{haystack} LIKE ? ESCAPE '\\'"
        values.append(pattern)
        if terms:
            clause += (
                " OR s.id IN (SELECT f.session_id FROM facts_fts JOIN facts f ON f.id = facts_fts.rowid WHERE facts_fts MATCH ?)"
            )
            values.append(" ".join(f'"{term}"*' for term in terms))
        clauses.append(f"({clause})")
    where = " AND ".join(clauses)
    rows = connection.execute(
        f"{_SELECT} WHERE {where} ORDER BY s.last_active DESC LIMIT ?",
        (*values, limit),
    )
    return tuple(SessionLine(*row) for row in rows)
