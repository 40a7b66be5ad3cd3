"""Messages of a session for recall: those that contain the words of a query, their texts and vectors.

There is no full-text index over messages: it would cost every step of every agent (a third more database, a
slower append) for what a few searches an hour need. A search reads the newest messages once, inside SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.store import database, driver
from watchkeeper.store.driver import decode, encode, sqlite3

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import Transaction


NEWEST_MESSAGES = 20_000
HEAD_CHARACTERS = 16_000
"""So many characters of each message's JSON are searched. 20,000 messages of 300 characters take some 0.15 s
of CPU."""

# The primary key's index alone gives the newest rowids; the contents are read after that.
_MASKS = (
    "SELECT agent_id, seq, (SELECT sum(1 << p.key) FROM json_each(?3) AS p WHERE instr(head, p.value) > 0)"
    " FROM"
    " (SELECT m.agent_id, m.seq, lower(substr(m.content, 1, ?4)) AS head FROM (SELECT n.rowid AS place FROM"
    " agents a"
    " CROSS JOIN messages n ON n.agent_id = a.id WHERE a.session_id = ?1 AND (?2 IS NULL OR a.id = ?2)"
    " ORDER BY n.rowid DESC LIMIT ?5) CROSS JOIN messages m ON m.rowid = place)"
)


class Reads:
    """A separate connection for searches, for one thread at a time, beside the writer and every other
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
            raise driver.unusable(self._path, error) from error


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
    """`(agent_id, seq)` of at most `limit` newest messages whose JSON contains `piece` anywhere, as
    written."""
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


# --- Rows of `embeddings`: the vectors that recall made -----------------------------------------------------
#
# They are compared with a question's vector.
# Vectors are 32-bit floats, little-endian, of length 1. Comparing needs sqlite-vec in the connection
# (`load_extension`); everything else does not.

"""As many as recall searches by words."""

_NEWEST = (
    "SELECT m.id AS id, m.agent_id AS agent_id, m.seq AS seq FROM agents a CROSS JOIN messages m ON"
    " m.agent_id = a.id"
    " WHERE a.session_id = ?1 AND (?2 IS NULL OR a.id = ?2) ORDER BY m.id DESC LIMIT ?3"
)


def load_extension(connection: Connection) -> None:
    """Load sqlite-vec into a connection.

    Raises:
        ImportError: it is not installed.
        AttributeError: this SQLite cannot load extensions.
    """
    import sqlite_vec

    connection.enable_load_extension(True)
    try:
        sqlite_vec.load(connection)
    finally:
        connection.enable_load_extension(False)


def missing_messages(reads: Any, session_id: str, model: str, limit: int) -> list[tuple[int, str, int]]:
    """The newest messages of a session without a vector of this model: `(id, agent_id, seq)`, newest
    first."""
    rows = reads.all(
        f"SELECT n.id, n.agent_id, n.seq FROM ({_NEWEST}) n WHERE NOT EXISTS (SELECT 1 FROM embeddings e"  # noqa: S608
        " WHERE e.kind = 'message' AND e.item = n.id AND e.model = ?4) LIMIT ?5",
        (session_id, None, NEWEST_MESSAGES, model, limit),
    )
    return [(row[0], row[1], row[2]) for row in rows]


def missing_facts(reads: Any, session_id: str, model: str, limit: int) -> list[tuple[int, str]]:
    """Facts that a session sees without a vector of this model: `(id, text)`, newest first."""
    rows = reads.all(
        "SELECT f.id, f.text FROM facts f JOIN sessions s ON s.id = ?1 WHERE f.superseded_by IS NULL AND"
        " (f.session_id = s.id"
        " OR (f.scope = 'workspace' AND f.workspace = s.workspace)) AND NOT EXISTS (SELECT 1 FROM embeddings"
        " e"
        " WHERE e.kind = 'fact' AND e.item = f.id AND e.model = ?2) ORDER BY f.id DESC LIMIT ?3",
        (session_id, model, limit),
    )
    return [(row[0], row[1]) for row in rows]


def add(tx: Transaction, kind: str, model: str, vectors: Sequence[tuple[int, bytes]]) -> None:
    """Store vectors of messages (`message`) or facts (`fact`) by id; those deleted meanwhile are left out."""
    table = {"message": "messages", "fact": "facts"}[kind]
    tx.executemany(
        f"INSERT OR REPLACE INTO embeddings (kind, item, model, vector) SELECT ?, id, ?, ? FROM {table} WHERE id = ?",  # noqa: S608
        [(kind, model, vector, item) for item, vector in vectors],
    )


def message_likeness(
    reads: Any, session_id: str, model: str, vector: bytes, *, agent_id: str | None = None
) -> dict[tuple[str, int], float]:
    """By `(agent_id, seq)`, the cosine of the angle between each of the newest messages and a question (-1 to
    1)."""
    rows = reads.all(
        f"SELECT n.agent_id, n.seq, 1 - vec_distance_cosine(e.vector, ?5) FROM ({_NEWEST}) n JOIN embeddings e"  # noqa: S608
        " ON e.kind = 'message' AND e.item = n.id AND e.model = ?4",
        (session_id, agent_id, NEWEST_MESSAGES, model, vector),
    )
    return {(row[0], row[1]): float(row[2]) for row in rows if row[2] is not None}


def fact_likeness(reads: Any, session_id: str | None, model: str, vector: bytes) -> dict[int, float]:
    """By id, the cosine of the angle between each fact and a question; of facts that the session may see, and
    more."""
    rows = reads.all(
        "SELECT f.id, 1 - vec_distance_cosine(e.vector, ?3) FROM facts f JOIN embeddings e ON e.kind ="
        " 'fact' AND e.item = f.id"
        " AND e.model = ?2 WHERE f.superseded_by IS NULL AND (?1 IS NULL OR f.session_id = ?1 OR f.scope ="
        " 'workspace')",
        (session_id, model, vector),
    )
    return {row[0]: float(row[1]) for row in rows if row[1] is not None}
