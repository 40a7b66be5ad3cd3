"""Finding sessions: filters among the words, and the words themselves in messages, within a bounded time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from watchkeeper.store.driver import Connection, sqlite3

_STATES = {"live": "running", "dead": "running"}
"""What the list calls states that the row cannot tell apart: the lease does."""
_FILTER = re.compile(r"(state|model|tag|since|before|workspace):(\S+)|cost([<>])\$?(\d+(?:\.\d+)?)|(compacted)", re.IGNORECASE)

_MESSAGES = (
    "SELECT (SELECT session_id FROM agents WHERE id = m.agent_id), m.agent_id, m.seq,"
    " substr(m.content, max(1, instr(lower(m.content), ?) - 40), 160) FROM messages m"
)


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message that holds the words. `excerpt` is a piece of its stored JSON: hostile until sanitised."""

    session_id: str
    agent_id: str
    seq: int
    excerpt: str


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a search as SQL conditions on `sessions s`, and the words that are left."""

    words: tuple[str, ...]
    clauses: tuple[str, ...]
    values: tuple[object, ...]


def parse_filters(search: str) -> Filters:
    """`state:paused model:opus tag:x workspace:x cost>1 since:2026-11-01 before:… compacted`; all else are words."""
    words: list[str] = []
    clauses: list[str] = []
    values: list[object] = []
    for word in search.split()[:16]:
        match = _FILTER.fullmatch(word)
        name = (match[1] or "").lower() if match else ""
        if match is None:
            words.append(word)
        elif match[5]:
            clauses.append("EXISTS (SELECT 1 FROM agents c WHERE c.session_id = s.id AND c.compactions > 0)")
        elif match[3]:
            clauses.append("s.cost_usd > ?" if match[3] == ">" else "s.cost_usd < ?")
            values.append(float(match[4]))
        elif name == "state":
            clauses.append("s.status = ?")
            values.append(_STATES.get(match[2].lower(), match[2].lower()))
        elif name in ("since", "before"):
            at = _day(match[2])
            if at is None:
                words.append(word)
                continue
            clauses.append("s.last_active >= ?" if name == "since" else "s.last_active < ?")
            values.append(at)
        else:
            column = {"model": "instr(lower(s.model), ?)", "tag": "instr(lower(s.tags), ?)"}
            clauses.append(column.get(name, "instr(lower(s.workspace), ?)") + " > 0")
            values.append(match[2].lower())
    return Filters(tuple(words), tuple(clauses), tuple(values))


def search_messages(
    connection: Connection,
    words: tuple[str, ...],
    *,
    seconds: float = 0.2,
    limit: int = 400,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[dict[str, MessageHit], bool]:
    """The newest message of each session that holds every word, and whether all messages were looked through.

    It stops after `seconds`, or `limit` messages found: a viewer's reader has more to do than to search.
    """
    if not words:
        return {}, True
    patterns = [json.dumps(word)[1:-1].replace("!", "!!").replace("%", "!%").replace("_", "!_") for word in words]
    where = " AND ".join("m.content LIKE ? ESCAPE '!'" for _ in words)
    first = json.dumps(words[0])[1:-1].lower()
    deadline, found, count = monotonic() + seconds, dict[str, MessageHit](), 0
    connection.set_progress_handler(lambda: int(monotonic() > deadline), 2000)
    try:
        rows = connection.execute(
            f"{_MESSAGES} WHERE {where} ORDER BY m.rowid DESC LIMIT ?",
            (first, *(f"%{pattern}%" for pattern in patterns), limit),
        )
        for row in rows:
            count += 1
            if row[0] is not None:
                found.setdefault(row[0], MessageHit(*row))
    except sqlite3.OperationalError as error:
        if "interrupt" not in str(error):
            raise
        return found, False
    finally:
        connection.set_progress_handler(None, 0)
    return found, count < limit


def _day(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        return None
