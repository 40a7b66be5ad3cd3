"""Messages of a session as recall reads them: which hold the words that are sought, and their texts.

There is no full-text index over messages: it would cost every step of every agent (a third more database, a
slower append) for what a few searches an hour need. A search reads the newest messages once, inside SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.encoding import decode, encode

NEWEST_MESSAGES = 20_000
HEAD_CHARACTERS = 16_000
"""Of each message's JSON this much is searched. 20,000 messages of 300 characters take some 0.15 s of CPU."""

# The newest rowids come from the primary key's index alone; only then are contents read.
_MASKS = (
    "SELECT agent_id, seq, (SELECT sum(1 << p.key) FROM json_each(?3) AS p WHERE instr(head, p.value) > 0)"
    " FROM"
    " (SELECT m.agent_id, m.seq, lower(substr(m.content, 1, ?4)) AS head FROM (SELECT n.rowid AS place FROM"
    " agents a"
    " CROSS JOIN messages n ON n.agent_id = a.id WHERE a.session_id = ?1 AND (?2 IS NULL OR a.id = ?2)"
    " ORDER BY n.rowid DESC LIMIT ?5) CROSS JOIN messages m ON m.rowid = place)"
)


class Reads:
    """A connection of its own to search with, for one thread at a time, beside the writer and every other
    reader."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.connection = database.open_readonly(path, check_same_thread=False)

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._read(sql, parameters).fetchone()

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        rows: list[Any] = self._read(sql, parameters).fetchall()
        return rows

    def close(self) -> None:
        self.connection.close()

    def _read(self, sql: str, parameters: Sequence[Any]) -> Any:
        try:
            return self.connection.execute(sql, parameters)
        except sqlite3.DatabaseError as error:
            raise database.unusable(self._path, error) from error


def term_masks(
    reads: Any, session_id: str, pieces: Sequence[str], *, agent_id: str | None = None
) -> list[tuple[str, int, int]]:
    """For each of the session's newest messages `(agent_id, seq, mask)`: bit i is set if it holds
    `pieces[i]`.

    Pieces are lower-case, at most 60. `agent_id`: only this agent's messages.
    """
    rows = reads.all(
        _MASKS, (session_id, agent_id, encode(list(pieces[:60])), HEAD_CHARACTERS, NEWEST_MESSAGES)
    )
    return [(row[0], row[1], row[2] or 0) for row in rows]


_HOLDING = (
    "SELECT m.agent_id, m.seq FROM (SELECT n.rowid AS place FROM agents a CROSS JOIN messages n ON"
    " n.agent_id = a.id"
    " WHERE a.session_id = ?1 AND (?2 IS NULL OR a.id = ?2) ORDER BY n.rowid DESC LIMIT ?3) CROSS JOIN"
    " messages m"
    " ON m.rowid = place WHERE instr(m.content, ?4) > 0 LIMIT ?5"
)


def holding(
    reads: Any, session_id: str, piece: str, *, agent_id: str | None = None, limit: int = 12
) -> list[tuple[str, int]]:
    """`(agent_id, seq)` of the newest messages whose JSON holds `piece` anywhere, as it is written; at most
    `limit`."""
    return [
        (row[0], row[1]) for row in reads.all(_HOLDING, (session_id, agent_id, NEWEST_MESSAGES, piece, limit))
    ]


def messages_at(reads: Any, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[Any, float]]:
    """Content and time of the messages at `(agent_id, seq)`; places without one are left out."""
    rows = reads.all(
        "SELECT m.agent_id, m.seq, m.content, m.created_at FROM json_each(?) AS place JOIN messages m"
        " ON m.agent_id = place.value ->> 0 AND m.seq = place.value ->> 1",
        (encode([list(place) for place in places]),),
    )
    return {(row[0], row[1]): (decode(row[2]), row[3]) for row in rows}


def shown_verbatim(reads: Any, agent_id: str) -> tuple[int, frozenset[int]] | None:
    """From which `seq` on the agent has its messages in its context, and which of these only shortened; None:
    none."""
    row = reads.one(
        "SELECT v.verbatim_from, v.elided FROM agents a JOIN views v ON v.agent_id = a.id AND v.version ="
        " a.view_version"
        " WHERE a.id = ?",
        (agent_id,),
    )
    if row is None or row[0] is None:
        return None
    return int(row[0]), frozenset(int(one[0]) for one in decode(row[1]))


def calls_of(reads: Any, session_id: str, names: Sequence[str]) -> frozenset[str]:
    """Ids of the calls that the session's agents made of these tools."""
    rows = reads.all(
        "SELECT tool_use_id FROM tool_calls WHERE agent_id IN (SELECT id FROM agents WHERE session_id = ?)"
        " AND name IN (SELECT value FROM json_each(?))",
        (session_id, encode(list(names))),
    )
    return frozenset(row[0] for row in rows)
