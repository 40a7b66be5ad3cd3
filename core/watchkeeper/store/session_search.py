"""Finding sessions: filters among the words, and the words themselves in messages, within a bounded time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchkeeper.store.driver import Connection
from watchkeeper.store.message_search import DEADLINE_SECONDS, search_by_session
from watchkeeper.store.search_query import MOST_WORDS, typed_words
from watchkeeper.store.snippets import Piece, plain_snippet

_STATES = {"live": "running", "dead": "running"}
"""What the list calls states that the row cannot tell apart: the lease does."""
_FILTER = re.compile(r"(state|model|tag|since|before|workspace|id):(\S+)|cost([<>])\$?(\d+(?:\.\d+)?)|(compacted)", re.IGNORECASE)
_COLUMNS = {"model": "s.model", "tag": "s.tags", "workspace": "s.workspace", "id": "s.id"}


@dataclass(frozen=True, slots=True)
class MessageHit:
    """The newest message of a session that holds the words."""

    session_id: str
    agent_id: str
    seq: int
    excerpt: str
    """The words in their context: hostile until sanitised."""
    pieces: tuple[Piece, ...] = ()
    """The excerpt, with the words marked."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a search as SQL conditions on `sessions s`, and the words that are left."""

    words: tuple[str, ...]
    """Each a word, or what stood in quotation marks."""
    clauses: tuple[str, ...]
    values: tuple[object, ...]
    text: str = ""
    """The words as they were typed, for `message_search`."""
    deleted: bool = False
    """Whether it is deleted sessions that are looked for; they are hidden else."""


def parse_filters(search: str) -> Filters:
    """`state:paused model:opus tag:x workspace:x id:x cost>1 since:2026-11-01 before:… compacted`; all else are words.

    What stands in quotation marks is never a filter. `state:deleted` finds the sessions that can still be restored.
    """
    words: list[str] = []
    kept: list[str] = []
    clauses: list[str] = []
    values: list[object] = []
    deleted = False
    for typed in typed_words(search)[:MOST_WORDS]:
        match = None if typed.quoted else _FILTER.fullmatch(typed.text)
        name = (match[1] or "").lower() if match else ""
        at = _day(match[2]) if match is not None and name in ("since", "before") else None
        if match is None or (name in ("since", "before") and at is None):
            words.append(typed.text)
            kept.append(f'"{typed.text}"' if typed.quoted else typed.text)
        elif match[5]:
            clauses.append("EXISTS (SELECT 1 FROM agents c WHERE c.session_id = s.id AND c.compactions > 0)")
        elif match[3]:
            clauses.append("s.cost_usd > ?" if match[3] == ">" else "s.cost_usd < ?")
            values.append(float(match[4]))
        elif name == "state" and match[2].lower() == "deleted":
            deleted = True
        elif name == "state":
            clauses.append("s.status = ?")
            values.append(_STATES.get(match[2].lower(), match[2].lower()))
        elif at is not None:
            clauses.append("s.last_active >= ?" if name == "since" else "s.last_active < ?")
            values.append(at)
        else:
            clauses.append(f"instr(lower({_COLUMNS[name]}), ?) > 0")
            values.append(match[2].lower())
    clauses.append("s.deleted_at IS NOT NULL" if deleted else "s.deleted_at IS NULL")
    return Filters(tuple(words), tuple(clauses), tuple(values), " ".join(kept), deleted)


def search_messages(
    connection: Connection,
    words: str | Sequence[str],
    *,
    seconds: float = DEADLINE_SECONDS,
    limit: int = 1000,
    cancelled: Callable[[], bool] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[dict[str, MessageHit], bool]:
    """The newest message of each session that holds every word, and whether all messages were looked through.

    `words`: as typed (`Filters.text`), or one by one. It stops after `seconds`, at `limit` sessions, or when `cancelled`
    says that nobody waits for the answer any more.
    """
    text = words if isinstance(words, str) else " ".join(f'"{word}"' if " " in word else word for word in words)
    found = search_by_session(connection, text, limit=limit, deadline_seconds=seconds, cancelled=cancelled, monotonic=monotonic)
    hits = {
        hit.session_id: MessageHit(hit.session_id, hit.agent_id, hit.seq, plain_snippet(hit.snippet), hit.snippet)
        for hit in found.hits
    }
    return hits, found.complete


def _day(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        return None
