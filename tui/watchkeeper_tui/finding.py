"""What the list of sessions is made of: those that filters and words find, each with the message that holds
the words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchkeeper.store.driver import Connection
from watchkeeper.store.search.messages import RANKED_MESSAGES, fold, plain_snippet, search
from watchkeeper.store.search.sessions import (
    MessageHit,
    SessionLine,
    list_sessions,
    parse_filters,
    search_messages,
)

BEST_MATCH = "best match"
"""What the order is called in which Enter puts the list."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One reading of the list."""

    rows: tuple[SessionLine, ...]
    hits: dict[str, MessageHit]
    """Session → the newest of its messages that hold the words; of a ranked list, the best."""
    agents: dict[str, str]
    """What the agents of these messages are called: hostile."""
    whole: bool
    """Every message was looked through in the time there was."""
    deleted: bool
    """It is deleted sessions that are listed."""
    ranked: bool
    """The best match comes first, and not the first of the chosen order."""


def find_sessions(
    connection: Connection, words: str, most: int, *, order: str, ranked: bool, cancelled: Callable[[], bool]
) -> Listed:
    """The sessions that hold the words, in that order.

    `ranked`: first those whose name holds them all, then those whose messages match best, then the others.

    Raises:
        BadInput: a filter means nothing.
    """
    filters = parse_filters(words)
    hits, whole = search_messages(connection, filters.text, cancelled=cancelled)
    rows = list_sessions(connection, words, most, order=order, also=hits)
    best: dict[str, MessageHit] = {}
    if ranked and filters.words:
        for hit in search(
            connection, filters.text, ranked=True, limit=RANKED_MESSAGES, cancelled=cancelled
        ).hits:
            if hit.session_id not in best:
                text = plain_snippet(hit.snippet)
                best[hit.session_id] = MessageHit(hit.session_id, hit.agent_id, hit.seq, text, hit.snippet)
        places = {session_id: place for place, session_id in enumerate(best)}
        rows = tuple(
            sorted(rows, key=lambda row: (not _is_named(row, filters.words), places.get(row.id, len(places))))
        )
    shown = {row.id for row in rows}
    hits = {session_id: hit for session_id, hit in {**hits, **best}.items() if session_id in shown}
    names = agent_names(connection, [hit.agent_id for hit in hits.values()])
    return Listed(rows, hits, names, whole, filters.deleted, ranked and bool(filters.words) and bool(rows))


def _is_named(row: SessionLine, words: Sequence[str]) -> bool:
    """Whether the session's name, which is its title or else its goal, holds every word."""
    name = fold(row.title or row.goal)
    return all(fold(word) in name for word in words)


def agent_names(connection: Connection, agent_ids: list[str]) -> dict[str, str]:
    """What agents are called, by id."""
    rows = connection.execute(
        "SELECT id, name FROM agents WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(agent_ids),)
    )
    return {row[0]: row[1] for row in rows}
