"""Finding sessions by filters, and by words in their messages, within a bounded time."""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from watchkeeper.records.errors import BadInput
from watchkeeper.records.states import SessionStatus
from watchkeeper.store.driver import FACTS_FOUND, IN_LIST, Connection, Queries, contains, list_of
from watchkeeper.store.search.index import facts_holding
from watchkeeper.store.search.messages import (
    DEADLINE_SECONDS,
    MOST_WORDS,
    Piece,
    plain_snippet,
    search_by_session,
    typed_words,
)

_STATES = {"live": "running", "dead": "running"}
"""What the list calls states that the row cannot tell apart: the lease does."""
_KNOWN_STATES = (*SessionStatus, *_STATES, "deleted")
_KEYS = ("state", "model", "tag", "since", "before", "workspace", "user", "id")
_FILTER = re.compile(
    r"(state|model|tag|since|before|workspace|user|id):(\S+)|cost([<>])\$?(\d+(?:\.\d+)?)|(compacted)",
    re.IGNORECASE,
)
_LIKE_A_FILTER = re.compile(r"([a-z]+)(?::|([<>=]+))(\S*)", re.IGNORECASE)
_ALIKE = 0.7
"""How much a key must be like one that there is (1 is the same) to be taken for a slip of it."""
_SHORTEST_SLIP = 4
_FILTERS = "state:paused model:x tag:x workspace:x user:x id:x cost>1 cost<1 since:2026-11-01 before:2026-11-01 compacted"
_COLUMNS = {
    "model": "s.model",
    "tag": "s.tags",
    "workspace": "s.workspace",
    "user": "s.user_id",
    "id": "s.id",
}


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
    """The words as they were typed, for `search.messages`."""
    deleted: bool = False
    """Whether it is deleted sessions that are looked for; they are hidden else."""


def parse_filters(search: str) -> Filters:
    """`state:paused model:opus tag:x workspace:x user:x id:x cost>1 since:2026-11-01 before:… compacted`; all else
    are words.

    Text in quotation marks is never a filter. `state:deleted` finds the sessions that can still be restored.
    restored.

    Raises:
        BadInput: a filter that means nothing: `state:bogus`, `cost>abc`, `since:yesterday`, `stat:paused`.
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
        if not typed.quoted:
            _check_filter(typed.text)
        if match is None:
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
            clauses.append(f"lower({_COLUMNS[name]}) LIKE ? ESCAPE '\\'")
            values.append(contains(match[2]))
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
    """The newest message of each session that contains every word, and whether all messages were searched.

    `words`: as typed (`Filters.text`), or one by one. The search stops after `seconds`, at `limit` sessions,
    or when `cancelled` says that the caller no longer waits for the answer.
    """
    text = (
        words if isinstance(words, str) else " ".join(f'"{word}"' if " " in word else word for word in words)
    )
    found = search_by_session(
        connection, text, limit=limit, deadline_seconds=seconds, cancelled=cancelled, monotonic=monotonic
    )
    hits = {
        hit.session_id: MessageHit(
            hit.session_id, hit.agent_id, hit.seq, plain_snippet(hit.snippet), hit.snippet
        )
        for hit in found.hits
    }
    return hits, found.complete


def _check_filter(text: str) -> None:
    """Refuse what looks like a filter and is none.

    Raises:
        BadInput: one line that says what is possible.
    """
    found = _LIKE_A_FILTER.fullmatch(text)
    if found is None:
        return
    key, value = found[1].lower(), found[3]
    advice = f'put it in quotation marks to search for the words: "{text}"'
    if key == "cost":
        if not _FILTER.fullmatch(text):
            raise BadInput(f"{text}: cost takes an amount in USD, as cost>1 or cost<0.5; {advice}")
    elif found[2]:
        return  # a comparison in a program, say
    elif key in _KEYS:
        if not value:
            raise BadInput(
                f"{text} needs a value, as in {key}:{'paused' if key == 'state' else 'x'}; {advice}"
            )
        if key == "state" and value.lower() not in _KNOWN_STATES:
            raise BadInput(f"{text}: there is no such state; there are {', '.join(_KNOWN_STATES)}; {advice}")
        if key in ("since", "before") and _day(value) is None:
            raise BadInput(f"{text}: {key} takes a day, as {key}:2026-11-01; {advice}")
    elif len(key) < _SHORTEST_SLIP or value[:1] in ("", ":", "/"):
        return  # a word before a colon, a name of C++, an address
    elif alike := difflib.get_close_matches(key, (*_KEYS, "cost"), n=1, cutoff=_ALIKE):
        raise BadInput(
            f"{text}: there is no filter {key}, perhaps {alike[0]} is meant; there are {_FILTERS}; {advice}"
        )


def _day(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        return None


# --- Rows of the session list, newest first, filtered by words ----------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The names and the state of a session. Texts are hostile until sanitised."""

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
    """Some of the cost comes from an estimated price or from estimated tokens."""


COST_ESTIMATED = (
    "EXISTS (SELECT 1 FROM model_calls c WHERE c.session_id = s.id AND c.cost_usd IS NOT NULL"
    " AND (c.price_status = 'estimated' OR c.usage_exact = 0))"
)
"""Whether some of the cost of the session `s` comes from an estimated price or from estimated tokens."""

_SELECT = (
    "SELECT s.id, substr(s.goal, 1, 500), s.title, s.workspace, s.model, s.origin, s.tags, s.status, s.status_reason,"
    " s.created_at, s.last_active, s.ended_at, s.hosted_seconds,"
    " s.input_tokens + s.output_tokens + s.cache_read_tokens + s.cache_write_tokens, s.cost_usd,"
    " s.unpriced_calls,"
    " (SELECT count(*) FROM agents a WHERE a.session_id = s.id),"
    " (SELECT coalesce(sum(a.compactions), 0) FROM agents a WHERE a.session_id = s.id),"
    f" {COST_ESTIMATED} FROM sessions s"
)


_NAMES = (
    " OR EXISTS (SELECT 1 FROM tasks t WHERE t.session_id = s.id AND lower(t.title) LIKE ? ESCAPE '\\')"
    " OR EXISTS (SELECT 1 FROM outputs o WHERE o.session_id = s.id AND lower(o.name) LIKE ? ESCAPE '\\')"
)

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
        "(s.goal || ' ' || coalesce(s.title, '') || ' ' || s.id || ' ' || s.workspace || ' ' || s.model || ' '"
        " || s.tags"
        " || ' ' || s.status)"
    )
    clauses: list[str] = []
    values: list[object] = []
    for word in words:
        pattern = contains(word)
        terms = re.findall(r"\w+", word)
        clause = f"lower({haystack}) LIKE ? ESCAPE '\\'{_NAMES}"
        values += [pattern, pattern, pattern]
        if terms:
            clause += f" OR s.id IN (SELECT f.session_id FROM facts f {FACTS_FOUND} ?)"
            values.append(facts_holding(Queries(connection), terms, every=True, beginnings=True))
        clauses.append(f"({clause})")
    found = f"({' AND '.join(clauses)})" if clauses else ""
    if found and also:
        found = f"({found} OR s.id {IN_LIST})"
        values.append(list_of(sorted(also)))
    where = " AND ".join([*([found] if found else []), *filters.clauses])
    rows = connection.execute(f"{_SELECT} WHERE {where}{ORDERS[order]}", (*values, *filters.values, limit))
    return tuple(SessionLine(*row) for row in rows)


# --- One session at a glance ----------------------------------------------------------------------------------

PREVIEW_TASKS = 300
PREVIEW_AGENTS = 1_000
PREVIEW_MESSAGES = 30
"""How many of an agent's newest replies are searched for one with text."""
_LONGEST_REPLY = 200_000


@dataclass(frozen=True, slots=True)
class SessionPreview:
    """What a list shows of one session beside its row. Texts are hostile until sanitised."""

    session_id: str
    goal: str
    tasks: tuple[tuple[str, str], ...]
    """Status and title of each task of the plan, in its order; at most `PREVIEW_TASKS`."""
    last_words: str
    """The newest reply with text of the agent that began the session; empty if there is none."""
    spans: tuple[tuple[float, float | None], ...]
    """When each agent began and ended (None: it has not), in wall time; at most `PREVIEW_AGENTS`."""


def session_preview(connection: Connection, session_id: str) -> SessionPreview | None:
    """The preview of a session; None if there is none of that id. Reads a bounded number of rows."""
    row = connection.execute(
        "SELECT substr(goal, 1, 2000), planner_agent_id FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    if row is None:
        return None
    tasks = connection.execute(
        "SELECT status, substr(title, 1, 300) FROM tasks WHERE session_id = ? ORDER BY position, id LIMIT ?",
        (session_id, PREVIEW_TASKS),
    ).fetchall()
    agents = connection.execute(
        "SELECT id, created_at, ended_at FROM agents WHERE session_id = ? ORDER BY created_at, id LIMIT ?",
        (session_id, PREVIEW_AGENTS),
    ).fetchall()
    first = row[1] or (agents[0][0] if agents else None)
    return SessionPreview(
        session_id,
        row[0],
        tuple((status, title) for status, title in tasks),
        _last_words(connection, first) if first is not None else "",
        tuple((began, ended) for _, began, ended in agents),
    )


def _last_words(connection: Connection, agent_id: str) -> str:
    replies = connection.execute(
        "SELECT content FROM messages WHERE agent_id = ? AND role = 'assistant' AND length(content) < ?"
        " ORDER BY seq DESC LIMIT ?",
        (agent_id, _LONGEST_REPLY, PREVIEW_MESSAGES),
    )
    for (stored,) in replies:
        try:
            content = json.loads(stored)
        except ValueError:
            continue
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        words = " ".join(
            str(block.get("text", ""))
            for block in blocks
            if isinstance(block, dict) and block.get("type") == "text"
        ).strip()
        if words:
            return words[:2000]
    return ""
