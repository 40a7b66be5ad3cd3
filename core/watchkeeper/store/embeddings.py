"""Rows of `embeddings`: what recall has turned into vectors, and how alike they are to a question's.

Vectors are 32-bit floats, little-endian, of length 1. Comparing needs sqlite-vec in the connection
(`load_extension`); everything else does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import Transaction

NEWEST_MESSAGES = 20_000
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
    """Keep vectors of messages (`message`) or facts (`fact`) by id; those that are gone meanwhile are left
    out."""
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
