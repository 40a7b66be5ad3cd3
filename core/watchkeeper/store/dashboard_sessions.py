"""What the list of sessions reads: one row a session, newest first, filtered by words."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from watchkeeper.store.driver import Connection
from watchkeeper.store.session_search import parse_filters


@dataclass(frozen=True, slots=True)
class SessionHead:
    """What names a session, and how it stands. Texts are hostile until sanitised."""

    id: str
    goal: str
    title: str | None
    workspace: str
    model: str
    origin: str
    tags: str
    status: str
    status_reason: str | None


@dataclass(frozen=True, slots=True)
class SessionLine(SessionHead):
    """One session as the list shows it."""

    created_at: float
    last_active: float
    ended_at: float | None
    hosted_seconds: float
    tokens: int
    cost_usd: float | None
    unpriced_calls: int
    agents: int
    compactions: int
    cost_estimated: bool
    """Some of the cost rests on an estimated price or on estimated tokens."""


COST_ESTIMATED = (
    "EXISTS (SELECT 1 FROM model_calls c WHERE c.session_id = s.id AND c.cost_usd IS NOT NULL"
    " AND (c.price_status = 'estimated' OR c.usage_exact = 0))"
)
"""Whether some of the cost of the session `s` rests on an estimated price or on estimated tokens."""

_SELECT = (
    "SELECT s.id, substr(s.goal, 1, 500), s.title, s.workspace, s.model, s.origin, s.tags, s.status, s.status_reason,"  # noqa: S608 - a constant
    " s.created_at, s.last_active, s.ended_at, s.hosted_seconds,"
    " s.input_tokens + s.output_tokens + s.cache_read_tokens + s.cache_write_tokens, s.cost_usd,"
    " s.unpriced_calls,"
    " (SELECT count(*) FROM agents a WHERE a.session_id = s.id),"
    " (SELECT coalesce(sum(a.compactions), 0) FROM agents a WHERE a.session_id = s.id),"
    f" {COST_ESTIMATED} FROM sessions s"
)


_NAMES = (
    " OR EXISTS (SELECT 1 FROM tasks t WHERE t.session_id = s.id AND t.title LIKE ? ESCAPE '\\')"
    " OR EXISTS (SELECT 1 FROM outputs o WHERE o.session_id = s.id AND o.name LIKE ? ESCAPE '\\')"
)
_NAMED = "s.id IN (SELECT value FROM json_each(?))"

ORDERS = {
    "last active": " ORDER BY s.last_active DESC LIMIT ?",
    "created": " ORDER BY s.created_at DESC LIMIT ?",
    "cost": " ORDER BY s.cost_usd IS NULL, s.cost_usd DESC, s.last_active DESC LIMIT ?",
    "tokens": " ORDER BY s.input_tokens + s.output_tokens + s.cache_read_tokens + s.cache_write_tokens DESC LIMIT ?",
    "goal": " ORDER BY lower(coalesce(s.title, s.goal)), s.last_active DESC LIMIT ?",
}
"""How the list may be sorted, in the order in which one key goes through them."""


def list_sessions(
    connection: Connection,
    search: str = "",
    limit: int = 1000,
    *,
    order: str = "last active",
    also: Collection[str] = (),
) -> tuple[SessionLine, ...]:
    """At most `limit` sessions that pass the filters of `search` and hold its other words; no deleted ones.

    The words are looked for, as parts of words too, in goal, title, id, workspace, model, tags and state, in
    facts, in the titles of tasks and in the names of artifacts; the sessions `also` named hold them elsewhere
    (`search_messages`). `order` is one of `ORDERS`.
    """
    filters = parse_filters(search)
    words = filters.words
    haystack = (
        "(s.goal || ' ' || ifnull(s.title, '') || ' ' || s.id || ' ' || s.workspace || ' ' || s.model || ' '"
        " || s.tags"
        " || ' ' || s.status)"
    )
    clauses: list[str] = []
    values: list[object] = []
    for word in words:
        pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        terms = re.findall(r"\w+", word)
        clause = f"{haystack} LIKE ? ESCAPE '\\'{_NAMES}"
        values += [pattern, pattern, pattern]
        if terms:
            clause += " OR s.id IN (SELECT f.session_id FROM facts_fts JOIN facts f ON f.id = facts_fts.rowid WHERE facts_fts MATCH ?)"
            values.append(" ".join(f'"{term}"*' for term in terms))
        clauses.append(f"({clause})")
    found = f"({' AND '.join(clauses)})" if clauses else ""
    if found and also:
        found = f"({found} OR {_NAMED})"
        values.append(json.dumps(sorted(also)))
    where = " AND ".join([*([found] if found else []), *filters.clauses])
    rows = connection.execute(f"{_SELECT} WHERE {where}{ORDERS[order]}", (*values, *filters.values, limit))
    return tuple(SessionLine(*row) for row in rows)
