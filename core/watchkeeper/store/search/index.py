"""The index of words over all messages, and the words of facts: what it answers, and how SQLite (FTS5) does it.

`postgres_index` does the same on PostgreSQL. `store.engine.index_of` gives the index of a database.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import neg
from typing import Any, Protocol

from watchkeeper.store import driver
from watchkeeper.store.driver import IN_LIST, Connection, ConnectionReads, decode, list_of, sqlite3
from watchkeeper.store.search.words import TOKENIZE, indexed_text, quoted, session_word

# --- What an index answers ----------------------------------------------------------------------------------

BATCH_MESSAGES = 500
BATCH_CHARACTERS = 100_000
"""A batch holds SQLite's write lock for about 5 ms: no agent notices."""

LONGEST_WORD_BYTES = 2_000
"""An index may hold a longer word by its beginning alone; searches check it on the message."""

Word = tuple[str, bool]
"""A token that must be there, and whether it may be the beginning of one."""

FOUND = "m.id, a.session_id, m.agent_id, m.seq, m.role, m.created_at"
"""What a search reads of a message `m` of an agent `a`."""

Place = tuple[int, str, str, int, str, float]
"""One row of `FOUND`."""

TAIL = (
    f"SELECT {FOUND}, m.content FROM messages m CROSS JOIN agents a ON a.id = m.agent_id"
    " CROSS JOIN sessions s ON s.id = a.session_id"
    " WHERE m.id {} AND s.deleted_at IS NULL AND (?2 IS NULL OR s.id = ?2) ORDER BY m.id DESC"
)
"""`FOUND` and the content of messages whose ids meet a condition on ?1, of the session ?2 or of all."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch of an indexer did."""

    messages: int
    """How many it indexed."""
    more: bool
    """Whether there is more to do, as far as was seen."""


class Interrupted(Exception):
    """A statement was ended because the search must stop."""


class Walk(Protocol):
    """The messages of a database from the newest to the oldest: those that the index does not hold, and those
    that it finds."""

    def unindexed(self, session_id: str | None) -> Iterator[Any]:
        """`FOUND` and the content of the messages that the index does not hold, of one session or of all."""

    def places(self, words: Sequence[Word], session_id: str | None) -> Iterator[Any]:
        """The indexed messages that hold all of the words, of one session or of all."""

    def replies(self, words: Sequence[Word], session_id: str | None, stored: str) -> Iterator[Any]:
        """As `places`, with the content: those of assistants whose stored content holds a text."""

    def newest_places(self, words: Sequence[Word], known: set[str]) -> Iterator[Place]:
        """The newest indexed message of each session that holds all of the words; sessions that are `known` may
        be left out. A session may come again, with an older one."""

    def in_order(self, unindexed: Iterator[Any], indexed: Iterator[Any]) -> Iterator[Any]:
        """Both, the newest first, each message once."""


class MessageIndex(Protocol):
    """The index of words of a database, as a connection or a transaction sees it."""

    _reads: ConnectionReads
    _connection: Connection

    def __init__(self, reads: ConnectionReads) -> None:
        self._reads = reads
        self._connection = reads.connection

    def unindexed(self) -> int:
        """About how many messages the index does not hold yet."""

    def walk(self, must_stop: Callable[[], bool], seconds: float) -> AbstractContextManager[Walk]:
        """A walk over the messages, which ends early when `must_stop`. A statement within ends then (SQLite), or
        after so many seconds (PostgreSQL).

        Raises:
            Interrupted: one did.
        """

    def ids_holding(
        self, words: Sequence[Word], first: int, last: int, most: int, *, forms: Sequence[str] = ()
    ) -> list[int]:
        """The newest ids, at most `most`, of indexed messages between two ids that hold all of the words, and one of
        the forms if there are any."""

    def reach(self, last: int) -> tuple[int, str | None]:
        """The last id up to `last` that the index may hold, and the condition that a message `m` is not in it; None
        if all up to `last` are."""

    def facts_holding(self, pieces: Sequence[str], *, every: bool, beginnings: bool = False) -> str:
        """The parameter of `driver.FACTS_FOUND`: of the facts that hold one of the pieces, or `every` one.

        Args:
            beginnings: a piece may be the beginning of a word; pieces without a letter or digit do not count.
        """

    def best_facts(self, sql: str, parameters: Sequence[Any], limit: int, pieces: Sequence[str]) -> list[Any]:
        """The facts that hold one of the pieces, the best first: by bm25.

        Args:
            sql: ends with two parameters: how many facts at most, and that of `driver.FACTS_FOUND`. It orders them by
                `driver.FACTS_RANK`, and the third column is their text.
        """

    def index_batch(
        self,
        *,
        most_messages: int = BATCH_MESSAGES,
        most_characters: int = BATCH_CHARACTERS,
        lock_timeout_seconds: float = 0.0,
    ) -> Batch:
        """Index the next messages, in one short transaction of its own. Several processes may do so at once.

        Raises:
            sqlite3.OperationalError: another connection holds the write lock (`driver.is_busy`), the disk is
            full, …
        """

    def index_until(self, *, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> bool:
        """Index batch after batch until nothing is left (True), or the time is over, or the write lock is not
        free."""
        deadline = monotonic() + seconds
        while True:
            left = deadline - monotonic()
            if left <= 0:
                return False
            try:
                if not self.index_batch(lock_timeout_seconds=min(left, 1.0)).more:
                    return True
            except sqlite3.OperationalError as error:
                if not driver.is_busy(error):
                    raise
                return False

    def index_inserted(self, texts: Sequence[tuple[str, str | bytearray]]) -> None:
        """Within the caller's own transaction: index the messages that it has just inserted, the newest of all.

        For imports, which still have the texts of these messages: as `index_within`, at half the cost.

        Args:
            texts: session and `indexed_text` of each inserted message, in order.
        """

    def index_within(self, *, most_messages: int = 20_000) -> bool:
        """Within the caller's own transaction, after what it inserted: index what waits, its messages with it.
        For imports, which hold the write lock for longer than an indexer may. True when nothing is left; what is,
        an indexer takes later: on PostgreSQL all.
        """


def match_of(pieces: Sequence[str], *, every: bool, beginnings: bool) -> str:
    """The query of FTS5 for facts; see `MessageIndex.facts_holding`."""
    joint = (" " if beginnings else " AND ") if every else " OR "
    return joint.join(quoted(piece) + ("*" if beginnings else "") for piece in pieces)


def of_session(words: Sequence[Word], session_id: str | None) -> Sequence[Word]:
    """The words, with the one under which the session's messages are indexed."""
    return words if session_id is None else (*words, (session_word(session_id), False))


# --- The index of words over all messages (FTS5) ------------------------------------------------------------
#
# It is written in the background, never in the transaction of an agent's step. A message is indexed once,
# after its commit, in ids' order: `message_index.indexed_through` says how far. A search reads the messages
# above it (`search.messages`), so that it is complete whether or not an indexer runs.
#
# The index is cut into parts of `PART_MESSAGES` ids: `messages_fts`, then `messages_fts_1`, `messages_fts_2`,
# … Within one FTS5 table a prefix query merges all postings of all words with that prefix before the first
# row comes, in one call that nothing can interrupt (200 ms for three letters of a million messages). In
# parts, the newest answers within some 10 ms, and most searches need no other. FTS5 also never merges a
# million messages into one segment again.
#
# `detail=none` keeps which message holds which word, and no positions: a fifth of the size, twice the speed.
# Phrases are checked on the messages themselves. Each message is also indexed under its session's
# `session_word`. `messages_fts_sessions` gives the session of the messages from `first_id` to the next row's,
# so that a search for sessions need not look up each of a common word's hits.

PART_MESSAGES = 65_536

MERGED_SEGMENTS = 8
"""FTS5 merges this many segments at a time: with its own 4, every twentieth batch takes twice as long."""

_NEXT = (
    "SELECT m.id, a.session_id, m.content FROM messages m LEFT JOIN agents a ON a.id = m.agent_id"
    " WHERE m.id > ? ORDER BY m.id LIMIT ?"
)
_PARTS = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'virtual' AND name LIKE 'messages_fts_%'"


_Text = tuple[int, str, str | bytearray]
"""A message's id, its session's id or nothing, and what is indexed of it."""


_IDS_AT_ONCE = 1000
_PLACES_AT_ONCE = 64
_PLACES = (
    f"SELECT {FOUND}, s.deleted_at IS NULL FROM messages m CROSS JOIN agents a ON a.id = m.agent_id"
    f" CROSS JOIN sessions s ON s.id = a.session_id WHERE m.id {IN_LIST}"
)


def _match(words: Sequence[Word]) -> str:
    """The query of FTS5 for messages that hold all of the words."""
    return " ".join(dict.fromkeys(quoted(word) + ("*" if begins else "") for word, begins in words))


def _ids_in_part(number: int) -> str:
    """A query of the ids in a part, the newest first: of messages that match ?, up to the id ?."""
    part = part_name(number)
    return f"SELECT rowid FROM {part} WHERE {part} MATCH ? AND rowid <= ? ORDER BY rowid DESC"


def _places_in_part(number: int) -> str:
    """`FOUND` of the messages in a part that match ?1, up to the id ?2, of the session ?3 or of all."""
    part = part_name(number)
    return (
        f"SELECT {FOUND} FROM {part} CROSS JOIN messages m ON m.id = {part}.rowid CROSS JOIN agents a ON a.id ="
        f" m.agent_id CROSS JOIN sessions s ON s.id = a.session_id WHERE {part} MATCH ?1 AND {part}.rowid <= ?2"
        f" AND s.deleted_at IS NULL AND (?3 IS NULL OR s.id = ?3) ORDER BY {part}.rowid DESC"
    )


def _replies_in_part(number: int) -> str:
    """`FOUND` and the content of the assistant's messages in a part that match ?1, up to the id ?2, of the session ?3
    or of all, whose stored content holds ?4."""
    return (
        _places_in_part(number)
        .replace(FOUND, f"{FOUND}, m.content")
        .replace(" ORDER BY", " AND m.role = 'assistant' AND instr(m.content, ?4) > 0 ORDER BY")
    )


def part_name(number: int) -> str:
    """The table that holds the ids from `number * PART_MESSAGES` on."""
    return f"messages_fts_{number:d}" if number else "messages_fts"


def parts(connection: Connection) -> list[int]:
    """The numbers of the parts that exist, the newest first."""
    return sorted((0, *(int(row[0].rpartition("_")[2]) for row in connection.execute(_PARTS))), reverse=True)


def _sessions_of_part(connection: Connection, number: int) -> list[tuple[int, str]]:
    """Whose the messages of a part are: (first id, session id) where another session's begin, in ids'
    order."""
    first = number * PART_MESSAGES
    rows = connection.execute(
        "SELECT first_id, session_id FROM messages_fts_sessions WHERE first_id >= ? AND first_id < ? ORDER"
        " BY first_id",
        (first, first + PART_MESSAGES),
    )
    return [(row[0], row[1]) for row in rows]


def indexed_through(connection: Connection) -> int:
    """Every message up to this id is in the index, and none above it."""
    row = connection.execute("SELECT indexed_through FROM message_index").fetchone()
    return int(row[0]) if row else 0


class _Fts5Walk:
    """A walk over the parts, from the newest to the oldest."""

    def __init__(self, connection: Connection, must_stop: Callable[[], bool]) -> None:
        self._connection = connection
        self._must_stop = must_stop
        # Before the index is asked: what is indexed meanwhile is then found in one of the two, or in both.
        self._through = indexed_through(connection)

    def unindexed(self, session_id: str | None) -> Iterator[Any]:
        return self._connection.execute(TAIL.format("> ?1"), (self._through, session_id))

    def places(self, words: Sequence[Word], session_id: str | None) -> Iterator[Any]:
        match = _match(of_session(words, session_id))
        return chain.from_iterable(
            self._connection.execute(_places_in_part(part), (match, self._through, session_id))
            for part in self._parts()
        )

    def replies(self, words: Sequence[Word], session_id: str | None, stored: str) -> Iterator[Any]:
        match = _match(of_session(words, session_id))
        return chain.from_iterable(
            self._connection.execute(_replies_in_part(part), (match, self._through, session_id, stored))
            for part in self._parts()
        )

    def newest_places(self, words: Sequence[Word], known: set[str]) -> Iterator[Place]:
        return chain.from_iterable(self._newest_in(part, words, known) for part in self._parts())

    def in_order(self, unindexed: Iterator[Any], indexed: Iterator[Any]) -> Iterator[Any]:
        return chain(unindexed, indexed)  # all of the index is older

    def _parts(self) -> Iterator[int]:
        for number in parts(self._connection):
            if self._must_stop():
                return
            if number * PART_MESSAGES <= self._through:
                yield number

    def _newest_in(self, number: int, words: Sequence[Word], known: set[str]) -> Iterator[Place]:
        """The first place in a part of each session that is not known yet, without a look at the hits of
        those that are."""
        begins: list[int] = []
        owners: list[str] = []
        met: set[str] = set()
        rows = self._connection.execute(_ids_in_part(number), (_match(words), self._through))
        while some := rows.fetchmany(_IDS_AT_ONCE):
            if not begins:
                for first_id, session_id in _sessions_of_part(self._connection, number):
                    begins.append(first_id)
                    owners.append(session_id)
            ids = [row[0] for row in some]
            at, width = 0, _PLACES_AT_ONCE
            while at < len(ids) and not self._must_stop():
                first = _first_of_each(ids, at, begins, owners, known | met, width)
                places = self._places_of([ids[here] for here, _ in first])
                for here, end in first:
                    place, at = places.get(ids[here]), end
                    if place is not None and place[1] not in known and place[1] not in met:
                        met.add(place[1])
                        if place[6]:
                            yield tuple(place)[:6]
                    run = bisect_right(begins, ids[here]) - 1
                    if place is None or run < 0 or place[1] != owners[run]:
                        at, width = here + 1, 1  # just permanently deleted, or moved: one by one
                        break
                if not first:
                    break
            if self._must_stop():
                return

    def _places_of(self, ids: list[int]) -> dict[int, Any]:
        return {row[0]: row for row in self._connection.execute(_PLACES, (list_of(ids),))}


def _first_of_each(
    ids: Sequence[int],
    at: int,
    begins: Sequence[int],
    owners: Sequence[str],
    known: Collection[str],
    most: int,
) -> list[tuple[int, int]]:
    """From `at` on in descending ids: where the first of each session is that is not known, and where its run ends."""
    found: list[tuple[int, int]] = []
    met: set[str] = set()
    while at < len(ids) and len(found) < most:
        run = bisect_right(begins, ids[at]) - 1
        owner = owners[run] if run >= 0 else ""
        end = bisect_right(ids, -begins[run], lo=at, key=neg) if run >= 0 else at + 1
        if not owner or not (owner in known or owner in met):
            met.add(owner)
            found.append((at, end))
        at = end
    return found


class Fts5Index(MessageIndex):
    """The index of a file."""

    def unindexed(self) -> int:
        # Exact unless messages were permanently deleted.
        newest = self._connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0]
        return max(0, int(newest) - indexed_through(self._connection))

    @contextmanager
    def walk(self, must_stop: Callable[[], bool], seconds: float) -> Iterator[Walk]:
        walk = _Fts5Walk(self._connection, must_stop)
        self._connection.set_progress_handler(lambda: int(must_stop()), 1000)
        try:
            yield walk
        except sqlite3.OperationalError as error:
            if must_stop() and "interrupt" in str(error):
                raise Interrupted from error
            raise
        finally:
            self._connection.set_progress_handler(None, 0)

    def ids_holding(
        self, words: Sequence[Word], first: int, last: int, most: int, *, forms: Sequence[str] = ()
    ) -> list[int]:
        found: list[int] = []
        one_of = f"({' OR '.join(map(quoted, forms))})" if forms else ""
        match = " AND ".join(filter(None, (one_of, _match(words))))
        for part in range(last // PART_MESSAGES, first // PART_MESSAGES - 1, -1):
            if len(found) < most:
                rows = self._reads.all(f"{_ids_in_part(part)} LIMIT ?", (match, last, most - len(found)))
                found += [row[0] for row in rows if row[0] >= first]
        return found

    def reach(self, last: int) -> tuple[int, str | None]:
        through = int(self._reads.one("SELECT indexed_through FROM message_index")[0])
        return min(last, through), f"m.id > {through:d}" if last > through else None

    def facts_holding(self, pieces: Sequence[str], *, every: bool, beginnings: bool = False) -> str:
        return match_of(pieces, every=every, beginnings=beginnings)

    def best_facts(self, sql: str, parameters: Sequence[Any], limit: int, pieces: Sequence[str]) -> list[Any]:
        found: list[Any] = self._reads.all(sql, (*parameters, limit, self.facts_holding(pieces, every=False)))
        return found

    def index_batch(
        self,
        *,
        most_messages: int = BATCH_MESSAGES,
        most_characters: int = BATCH_CHARACTERS,
        lock_timeout_seconds: float = 0.0,
    ) -> Batch:
        # Reading and decoding happen before the write lock is taken; what changed meanwhile is then seen, and
        # nothing done.
        connection = self._connection
        began_at = _state(connection)
        texts, more = _next_texts(connection, began_at[0], most_messages, most_characters)
        removed = connection.execute("SELECT EXISTS (SELECT 1 FROM messages_fts_removed)").fetchone()[0]
        if not texts and not removed:
            return Batch(0, more=False)
        with driver.writing(connection, "message_index", timeout_seconds=lock_timeout_seconds):
            if _state(connection) != began_at:
                return Batch(0, more=True)
            left = _drop_removed(connection, above=began_at[0], most=most_messages)
            if texts:
                _add(connection, texts)
        return Batch(len(texts), more=left or more)

    def index_inserted(self, texts: Sequence[tuple[str, str | bytearray]]) -> None:
        connection = self._connection
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0]
        through, _ = _state(connection)
        if newest - len(texts) != through:
            self.index_within()  # others wait in front of them
        elif texts:
            _drop_removed(connection, above=through, most=0)
            _add(
                connection,
                [(through + place, session_id, text) for place, (session_id, text) in enumerate(texts, 1)],
            )

    def index_within(self, *, most_messages: int = 20_000) -> bool:
        connection = self._connection
        through, _ = _state(connection)
        texts, more = _next_texts(connection, through, most_messages, 32_000_000)
        if texts:
            _drop_removed(connection, above=through, most=0)
            _add(connection, texts)
        return not more


def _state(connection: Connection) -> tuple[int, int]:
    """How far the index reaches, and how many messages were ever deleted: the same twice, the messages above
    are too."""
    row = connection.execute("SELECT indexed_through, removals FROM message_index").fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _next_texts(
    connection: Connection, through: int, most_messages: int, most_characters: int
) -> tuple[list[_Text], bool]:
    """The next messages above the high-water, and whether there are more than these."""
    texts: list[_Text] = []
    characters = 0
    for message_id, session_id, content in connection.execute(_NEXT, (through, most_messages)):
        texts.append((message_id, session_id or "", indexed_text(decode(content))))
        characters += len(content)
        if characters >= most_characters:
            return texts, True
    return texts, len(texts) == most_messages


def _add(connection: Connection, texts: list[_Text]) -> None:
    """Texts above the high-water, in ids' order, into their parts."""
    existing = set(parts(connection))
    first = 0
    while first < len(texts):
        number = texts[first][0] // PART_MESSAGES
        end = bisect_left(texts, ((number + 1) * PART_MESSAGES,), first)
        of_part = texts[first:end] if first or end < len(texts) else texts
        first = end
        _note_sessions(connection, number, of_part)
        name = part_name(number)
        if number not in existing:
            connection.execute(
                f"CREATE VIRTUAL TABLE {name} USING fts5 (text, content='', contentless_delete=1,"
                f" detail=none, {TOKENIZE})"
            )
            connection.execute(
                f"INSERT INTO {name} ({name}, rank) VALUES ('automerge', ?)",
                (MERGED_SEGMENTS,),  # noqa: RUF100, S608
            )  # noqa: RUF100, S608
        connection.executemany(
            # SQLite puts the two together: in Python, the word's odd character makes every letter of the text
            # take two bytes.
            f"INSERT INTO {name} (rowid, text) VALUES (?, CAST(? AS TEXT) || char(10) || ?)",
            [
                (message_id, text, session_word(session_id) if session_id else "")
                for message_id, session_id, text in of_part
            ],
        )
    connection.execute("UPDATE message_index SET indexed_through = ?", (texts[-1][0],))


def _note_sessions(connection: Connection, number: int, texts: list[_Text]) -> None:
    """Record where another session's messages begin. Each part begins with a row, so that it can be read
    alone."""
    first = number * PART_MESSAGES
    connection.execute(
        "DELETE FROM messages_fts_sessions WHERE first_id >= ?", (texts[0][0],)
    )  # ids that are given again
    row = connection.execute(
        "SELECT session_id FROM messages_fts_sessions WHERE first_id >= ? ORDER BY first_id DESC LIMIT 1",
        (first,),
    ).fetchone()
    before = row[0] if row else None
    rows = []
    for message_id, session_id, _ in texts:
        if session_id != before:
            rows.append((message_id, session_id))
            before = session_id
    connection.executemany("INSERT INTO messages_fts_sessions VALUES (?, ?)", rows)


def _drop_removed(connection: Connection, *, above: int, most: int) -> bool:
    """Take deleted messages out of the index: all whose ids may be given again, and at most `most` others;
    True if some are left."""
    ids = [row[0] for row in connection.execute("SELECT id FROM messages_fts_removed WHERE id > ?", (above,))]
    ids += [
        row[0]
        for row in connection.execute(
            "SELECT id FROM messages_fts_removed WHERE id <= ? LIMIT ?", (above, most)
        )
    ]
    existing = set(parts(connection)) if ids else set()
    for message_id in ids:
        number = message_id // PART_MESSAGES
        if number in existing:
            connection.execute(f"DELETE FROM {part_name(number)} WHERE rowid = ?", (message_id,))
    connection.executemany(
        "DELETE FROM messages_fts_removed WHERE id = ?", [(message_id,) for message_id in ids]
    )
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM messages_fts_removed)").fetchone()[0])
