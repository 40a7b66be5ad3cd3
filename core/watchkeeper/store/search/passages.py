"""Messages of a session for recall: those that contain the words of a query, their texts and vectors.

The words are found by the index over all messages (`store.search.index`), and in the newest messages, which the index
does not hold yet, as any search finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watchkeeper.store import database
from watchkeeper.store.driver import IN_LIST, Queries, Reads, decode, list_of
from watchkeeper.store.engine import index_of
from watchkeeper.store.place import Place
from watchkeeper.store.search.messages import PREFIX_LETTERS, Query, Term, fold
from watchkeeper.store.search.words import WordTable, cjk, session_word, words_of

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import Transaction


NEWEST_MESSAGES = 20_000
"""So many messages of a session are searched by vectors, and so many that the index does not hold by words."""

MOST_HOLDERS = 2_000
"""A search looks at the newest messages alone for a word that more messages hold, which says little of any."""

ASKED_TOKENS = 4
"""The index is asked for the longest tokens of a piece alone, mostly the rarest: each common one costs a long list."""


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


class SearchConnection(Queries):
    """A separate connection for searches, for one thread at a time, beside the writer and every other
    reader."""

    def __init__(self, path: Place) -> None:
        super().__init__(database.open_readonly(path, check_same_thread=False), path)

    def close(self) -> None:
        self.connection.close()


@dataclass(frozen=True, slots=True)
class Holders:
    """Which messages of a session may hold the pieces of a query."""

    of: Mapping[str, Sequence[int]]
    """Their ids, by piece, the newest first; at most `MOST_HOLDERS` of each."""
    counts: Mapping[str, int]
    """About how many there are, by piece."""
    size: int
    """How many messages the session has, or its agent."""

    def with_more(self, found: Mapping[str, Sequence[int]]) -> Holders:
        """These, and those of other pieces."""
        counts = {piece: len(ids) for piece, ids in found.items()}
        return Holders({**self.of, **found}, {**self.counts, **counts}, self.size)


def holders(
    reads: Reads,
    session_id: str,
    pieces: Sequence[str],
    forms: Mapping[str, Sequence[str]],
    *,
    agent_id: str | None = None,
) -> Holders:
    """The messages that hold, for each piece, one of its `forms`; or, where it has none, its words, the longest of
    them; a word alone may be a beginning from four letters on.

    The index says so of the messages that it holds; the newer ones are read. It knows no places, so words of
    one piece may stand apart. `agent_id`: `size` and the unindexed messages are this agent's; the others are
    the session's.
    """
    of_agent, bound = (" AND a.id = ?", (session_id, agent_id)) if agent_id else ("", (session_id,))
    first, last, size = reads.one(
        "SELECT min(first.id), max(last.id), sum(last.seq - first.seq + 1) FROM agents a"
        " JOIN messages first ON first.agent_id = a.id"
        " AND first.seq = (SELECT min(seq) FROM messages WHERE agent_id = a.id)"
        " JOIN messages last ON last.agent_id = a.id"
        " AND last.seq = (SELECT max(seq) FROM messages WHERE agent_id = a.id)"
        f" WHERE a.session_id = ?{of_agent}",
        bound,
    )
    if not size:
        return Holders({}, {}, 0)
    index = index_of(reads)
    through, not_indexed = index.reach(last)
    with closing(WordTable()) as table:
        tokens = dict(zip(pieces, table.tokens_of(pieces), strict=True))
    found: dict[str, list[int]] = {piece: [] for piece in pieces if tokens[piece]}
    begins = {piece: _may_begin_a_word(tokens[piece]) for piece in found}
    if not_indexed is not None:
        _find_unindexed(_unindexed(reads, not_indexed, of_agent, bound), tokens, found)
    # Where no other session's messages are in between, its word would only be one more long list to go through.
    alone = agent_id is None and size == last - first + 1
    of_session = () if alone else ((session_word(session_id), False),)
    for piece, ids in found.items():
        if len(ids) < MOST_HOLDERS:
            one_of = forms.get(piece, ())
            asked = tokens[piece]
            if not begins[piece]:
                asked = sorted(set(asked), key=lambda token: (-len(token), token))[:ASKED_TOKENS]
            words = () if one_of else Query((Term(piece, tuple(asked), begins[piece]),)).for_index()
            room = MOST_HOLDERS - len(ids)
            ids += index.ids_holding((*words, *of_session), first, through, room, forms=one_of)
            ids[:] = sorted(set(ids), reverse=True)
    counts = {
        piece: len(ids) if len(ids) < MOST_HOLDERS else size * len(ids) // (last - ids[-1] + 1)
        for piece, ids in found.items()
    }
    return Holders(found, counts, size)


def _find_unindexed(
    texts: Iterator[tuple[int, str]], tokens: Mapping[str, Sequence[str]], found: Mapping[str, list[int]]
) -> None:
    """Add the texts that hold all words of a piece. A text without a word holds no longer word that begins
    so: most pieces need not be looked for in most texts."""
    branches: dict[str, list[tuple[str, Sequence[str], list[int]]]] = {"": []}
    order = sorted((max(tokens[piece], key=len), piece) for piece in found)
    for word, piece in order:
        branches.setdefault(word, [])
        parent = max((one for one in branches if one != word and word.startswith(one)), key=len)
        branches[parent].append((word, tokens[piece], found[piece]))
    for number, text in texts:
        waiting = [""]
        for above in waiting:
            for word, others, ids in branches[above]:
                if word in text:
                    if len(others) == 1 or all(one in text for one in others):
                        ids.append(number)
                    if branches[word] and word not in waiting:
                        waiting.append(word)


def _may_begin_a_word(tokens: Sequence[str]) -> bool:
    """Whether the last may be the beginning of a word. Too many begin with two or three letters to say anything, or to
    be found quickly; beside other tokens it says little."""
    return cjk(tokens[-1]) or (len(tokens) == 1 and len(tokens[0]) > PREFIX_LETTERS)


def _unindexed(
    reads: Reads, not_indexed: str, of_agent: str, bound: tuple[object, ...]
) -> Iterator[tuple[int, str]]:
    """The messages that the index does not hold, the newest first, and their words, folded, in their JSON."""
    rows = reads.all(
        "SELECT m.id, m.content FROM messages m CROSS JOIN agents a ON a.id = m.agent_id WHERE"
        f" {not_indexed} AND a.session_id = ?{of_agent} ORDER BY m.id DESC LIMIT ?",
        (*bound, NEWEST_MESSAGES),
    )
    return ((row[0], fold(words_of(decode(row[1])) if _ESCAPE in row[1] else row[1])) for row in rows)


_ESCAPE = "\\u001b"
"""How JSON writes the beginning of a terminal's colour, which may be inside a word."""


def places_of(reads: Reads, ids: Sequence[int]) -> dict[int, tuple[str, int, int]]:
    """`(agent_id, seq, bytes of its content)` of messages, by id; those deleted meanwhile are left out."""
    rows = reads.all(
        f"SELECT id, agent_id, seq, octet_length(content) FROM messages WHERE id {IN_LIST}", (list_of(ids),)
    )
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def messages_at(reads: Reads, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[Any, float]]:
    """Content and time of the messages at `(agent_id, seq)`; places without one are left out."""
    wanted: dict[str, list[int]] = {}
    for agent_id, seq in places:
        wanted.setdefault(agent_id, []).append(seq)
    sql = f"SELECT agent_id, seq, content, created_at FROM messages WHERE agent_id = ? AND seq {IN_LIST}"
    rows = [row for agent_id, seqs in wanted.items() for row in reads.all(sql, (agent_id, list_of(seqs)))]
    return {(row[0], row[1]): (decode(row[2]), row[3]) for row in rows}


def shown_verbatim(reads: Reads, agent_id: str) -> tuple[int, frozenset[int]] | None:
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


def calls_of(reads: Reads, session_id: str, names: Sequence[str]) -> frozenset[str]:
    """Ids of the calls that the session's agents made of these tools."""
    rows = reads.all(
        "SELECT tool_use_id FROM tool_calls WHERE agent_id IN (SELECT id FROM agents WHERE session_id = ?)"
        f" AND name {IN_LIST}",
        (session_id, list_of(names)),
    )
    return frozenset(row[0] for row in rows)


def calls_named(reads: Reads, session_id: str, names: Sequence[str]) -> dict[str, list[int]]:
    """Messages of the session that call tools of these names, whatever their case, by the folded name: their
    ids, the newest first. The index holds no names of tools. A name that is a plain word (`Read`) is left to
    the texts."""
    rows = reads.all(
        "SELECT c.name, m.id FROM tool_calls c JOIN messages m ON m.agent_id = c.agent_id AND m.seq = c.seq"
        " WHERE c.agent_id IN (SELECT id FROM agents WHERE session_id = ?)"
        f" AND lower(c.name) {IN_LIST} ORDER BY m.id DESC LIMIT ?",
        (session_id, list_of(names), MOST_HOLDERS),
    )
    found: dict[str, list[int]] = {}
    for name, number in rows:
        if name[1:] != name[1:].lower() or not name.isalpha():
            found.setdefault(name.lower(), []).append(number)
    return found


# --- Rows of `embeddings`: the vectors that recall made -----------------------------------------------------
#
# They are compared with a question's vector.
# Vectors are 32-bit floats, little-endian, of length 1. Comparing needs sqlite-vec in the connection
# (`load_extension`); everything else does not.


def load_extension(connection: Connection) -> None:
    """Load sqlite-vec into a connection.

    Raises:
        ImportError: it is not installed.
        AttributeError: this SQLite build cannot load extensions.
    """
    import sqlite_vec

    connection.enable_load_extension(True)
    try:
        sqlite_vec.load(connection)
    finally:
        connection.enable_load_extension(False)


def missing_messages(reads: Reads, session_id: str, model: str, limit: int) -> list[tuple[int, str, int]]:
    """The newest messages of a session without a vector of this model: `(id, agent_id, seq)`, newest
    first."""
    rows = reads.all(
        f"SELECT n.id, n.agent_id, n.seq FROM ({_newest(None)}) n WHERE NOT EXISTS (SELECT 1 FROM embeddings e"
        " WHERE e.kind = 'message' AND e.item = n.id AND e.model = ?) LIMIT ?",
        (*_bound(session_id, None), model, limit),
    )
    return [(row[0], row[1], row[2]) for row in rows]


def missing_facts(reads: Reads, session_id: str, model: str) -> list[tuple[int, str]]:
    """Facts that a session sees without a vector of this model: `(id, text)`, newest first."""
    rows = reads.all(
        "SELECT f.id, f.text FROM facts f JOIN sessions s ON s.id = ?1 WHERE f.superseded_by IS NULL AND"
        " (f.session_id = s.id"
        " OR (f.scope = 'workspace' AND f.workspace = s.workspace)) AND NOT EXISTS (SELECT 1 FROM embeddings"
        " e"
        " WHERE e.kind = 'fact' AND e.item = f.id AND e.model = ?2) ORDER BY f.id DESC LIMIT 1000",
        (session_id, model),
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
    reads: Reads, session_id: str, model: str, vector: bytes, *, agent_id: str | None = None
) -> dict[tuple[str, int], float]:
    """By `(agent_id, seq)`, the cosine of the angle between each of the newest messages and a question (-1 to
    1)."""
    rows = reads.all(
        f"SELECT n.agent_id, n.seq, 1 - vec_distance_cosine(e.vector, ?) FROM ({_newest(agent_id)}) n"
        " JOIN embeddings e ON e.kind = 'message' AND e.item = n.id AND e.model = ?",
        (vector, *_bound(session_id, agent_id), model),
    )
    return {(row[0], row[1]): float(row[2]) for row in rows if row[2] is not None}


def fact_likeness(reads: Reads, session_id: str | None, model: str, vector: bytes) -> dict[int, float]:
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
