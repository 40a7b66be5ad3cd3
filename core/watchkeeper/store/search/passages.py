"""Messages of a session for recall: those that contain the words of a query, their texts and vectors.

The words are found by the index over all messages (`store.search.index`), and in the newest messages, which the index
does not hold yet, as any search finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.store import database
from watchkeeper.store.driver import IN_LIST, Queries, decode, list_of
from watchkeeper.store.search.index import PART_MESSAGES, WordTable, ids_in_part, session_word, words_of
from watchkeeper.store.search.messages import beginning_query

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import Transaction


NEWEST_MESSAGES = 20_000
"""So many messages of a session are searched, by words and by vectors."""


def _newest(agent_id: str | None) -> str:
    """The newest messages of a session, or of one of its agents, the newest first; see `_bound`."""
    of_agent = " AND a.id = ?" if agent_id is not None else ""
    return (
        "SELECT m.id AS id, m.agent_id AS agent_id, m.seq AS seq FROM agents a CROSS JOIN messages m ON"
        f" m.agent_id = a.id WHERE a.session_id = ?{of_agent} ORDER BY m.id DESC LIMIT ?"
    )


def _bound(session_id: str, agent_id: str | None) -> tuple[object, ...]:
    of_agent = (agent_id,) if agent_id is not None else ()
    return (session_id, *of_agent, NEWEST_MESSAGES)


class Reads(Queries):
    """A separate connection for searches, for one thread at a time, beside the writer and every other
    reader."""

    def __init__(self, path: Path) -> None:
        super().__init__(database.open_readonly(path, check_same_thread=False), path)

    def close(self) -> None:
        self.connection.close()


def term_masks(
    reads: Any, session_id: str, pieces: Sequence[str], *, agent_id: str | None = None
) -> list[tuple[str, int, int]]:
    """For each of the session's newest messages `(agent_id, seq, mask)`, the newest first: bit i is set if it
    holds a word, or words next to each other, that begin with `pieces[i]`.

    At most 60 pieces. `agent_id`: only this agent's messages.
    """
    places = {row[0]: (row[1], row[2]) for row in reads.all(_newest(agent_id), _bound(session_id, agent_id))}
    masks = dict.fromkeys(places, 0)
    for bit, found in enumerate(_holding(reads, session_id, pieces[:60], [*places])):
        for number in found & masks.keys():
            masks[number] |= 1 << bit
    return [(*places[number], mask) for number, mask in masks.items()]


def holding(
    reads: Any, session_id: str, piece: str, *, agent_id: str | None = None, limit: int = 12
) -> list[tuple[str, int]]:
    """`(agent_id, seq)` of at most `limit` newest messages that hold `piece` as `term_masks` finds it."""
    masks = term_masks(reads, session_id, [piece], agent_id=agent_id)
    return [(agent, seq) for agent, seq, mask in masks if mask][:limit]


def _holding(reads: Any, session_id: str, pieces: Sequence[str], ids: Sequence[int]) -> list[set[int]]:
    """For each piece, the messages among `ids` (the newest first) that hold it."""
    if not ids:
        return [set() for _ in pieces]
    table = WordTable()
    try:
        queries = [beginning_query(piece, table) for piece in pieces]
        through = reads.one("SELECT indexed_through FROM message_index")[0]
        recent = [number for number in ids if number > through]
        rows = reads.all(f"SELECT id, content FROM messages WHERE id {IN_LIST}", (list_of(recent),))
        table.fill((row[0], words_of(decode(row[1]))) for row in rows)
        found = []
        for query in queries:
            held = set(table.ids(query.for_texts())) if query.terms else set()
            if query.terms and ids[-1] <= through:
                for part in range(ids[-1] // PART_MESSAGES, min(ids[0], through) // PART_MESSAGES + 1):
                    sql = ids_in_part(part)
                    held |= {
                        row[0] for row in reads.all(sql, (query.for_index(session_word(session_id)), through))
                    }
            found.append(held)
        return found
    finally:
        table.close()


def messages_at(reads: Any, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[Any, float]]:
    """Content and time of the messages at `(agent_id, seq)`; places without one are left out."""
    wanted: dict[str, list[int]] = {}
    for agent_id, seq in places:
        wanted.setdefault(agent_id, []).append(seq)
    sql = f"SELECT agent_id, seq, content, created_at FROM messages WHERE agent_id = ? AND seq {IN_LIST}"
    rows = [row for agent_id, seqs in wanted.items() for row in reads.all(sql, (agent_id, list_of(seqs)))]
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
        f" AND name {IN_LIST}",
        (session_id, list_of(names)),
    )
    return frozenset(row[0] for row in rows)


# --- Rows of `embeddings`: the vectors that recall made -----------------------------------------------------
#
# They are compared with a question's vector.
# Vectors are 32-bit floats, little-endian, of length 1. Comparing needs sqlite-vec in the connection
# (`load_extension`); everything else does not.


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
        f"SELECT n.id, n.agent_id, n.seq FROM ({_newest(None)}) n WHERE NOT EXISTS (SELECT 1 FROM embeddings e"
        " WHERE e.kind = 'message' AND e.item = n.id AND e.model = ?) LIMIT ?",
        (*_bound(session_id, None), model, limit),
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
        f"INSERT INTO embeddings (kind, item, model, vector) SELECT ?, id, ?, ? FROM {table} WHERE id = ?"
        " ON CONFLICT (kind, item) DO UPDATE SET model = excluded.model, vector = excluded.vector",
        [(kind, model, vector, item) for item, vector in vectors],
    )


def message_likeness(
    reads: Any, session_id: str, model: str, vector: bytes, *, agent_id: str | None = None
) -> dict[tuple[str, int], float]:
    """By `(agent_id, seq)`, the cosine of the angle between each of the newest messages and a question (-1 to
    1)."""
    rows = reads.all(
        f"SELECT n.agent_id, n.seq, 1 - vec_distance_cosine(e.vector, ?) FROM ({_newest(agent_id)}) n"
        " JOIN embeddings e ON e.kind = 'message' AND e.item = n.id AND e.model = ?",
        (vector, *_bound(session_id, agent_id), model),
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
