"""The index of words over all messages: FTS5, kept beside the agents' steps and never in a step's
transaction.

A message is indexed once, after its commit, in ids' order: `message_index.indexed_through` says how far. What
is above it is searched by reading it (`message_search`), so that a search is complete whether or not an
indexer runs.

The index is cut into parts of `PART_MESSAGES` ids: `messages_fts`, then `messages_fts_1`, `messages_fts_2`, …
Within one FTS5 table a prefix query merges all postings of all words with that prefix before the first row
comes, in one call that nothing can interrupt (200 ms for three letters of a million messages); in parts, the
newest answers within some 10 ms, and mostly nobody needs the others. FTS5 also never merges a million
messages into one segment again.

`detail=none` keeps which message holds which word, and no positions: a fifth of the size, twice the speed.
Phrases are checked on the messages themselves. Besides its words, each message is indexed under its session's
`session_word`; and `messages_fts_sessions` says whose messages the ids from `first_id` to the next row's are,
so that a search for sessions need not ask each of a common word's hits.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from watchkeeper.store import database
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.encoding import decode
from watchkeeper.store.message_text import TOKENIZE, tokenizable_words

PART_MESSAGES = 65_536

BATCH_MESSAGES = 500
BATCH_CHARACTERS = 100_000
"""A batch holds the write lock for about 5 ms: no agent notices."""

MERGED_SEGMENTS = 8
"""FTS5 merges this many segments at a time: with its own 4, every twentieth batch takes twice as long."""

_NEXT = (
    "SELECT m.id, a.session_id, m.content FROM messages m LEFT JOIN agents a ON a.id = m.agent_id"
    " WHERE m.id > ? ORDER BY m.id LIMIT ?"
)
_PARTS = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'virtual' AND name GLOB 'messages_fts_[0-9]*'"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch of an indexer did."""

    messages: int
    """How many it indexed."""
    more: bool
    """Whether there is more to do, as far as was seen."""


_Text = tuple[int, str, str | bytearray]
"""A message's id, its session's id or nothing, and what is indexed of it."""


def part_name(number: int) -> str:
    """The table that holds the ids from `number * PART_MESSAGES` on."""
    return f"messages_fts_{number:d}" if number else "messages_fts"


def parts(connection: Connection) -> list[int]:
    """The numbers of the parts that exist, the newest first."""
    return sorted((0, *(int(row[0].rpartition("_")[2]) for row in connection.execute(_PARTS))), reverse=True)


def sessions_of_part(connection: Connection, number: int) -> list[tuple[int, str]]:
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


def unindexed(connection: Connection) -> int:
    """About how many messages the index does not hold yet (exact unless messages were deleted for good)."""
    newest = connection.execute("SELECT ifnull(max(id), 0) FROM messages").fetchone()[0]
    return max(0, int(newest) - indexed_through(connection))


@lru_cache(maxsize=256)
def session_word(session_id: str) -> str:
    """The word under which a session's messages are indexed: it begins with a character of private use, so no
    text has it by chance. Whoever finds a message by it still asks the message's agent for its session."""
    return "\ue000" + "".join(character for character in session_id.lower() if character.isalnum())


def indexed_text(content: Any) -> str | bytearray:
    """What is indexed of a message with this content, besides its session's word; bytes are UTF-8."""
    return tokenizable_words(content)


def index_batch(
    connection: Connection,
    *,
    most_messages: int = BATCH_MESSAGES,
    most_characters: int = BATCH_CHARACTERS,
    lock_timeout_seconds: float = 0.0,
) -> Batch:
    """Index the next messages, in one short transaction of its own. Several processes may do so at once.

    Reading and decoding happen before the write lock is taken; what changed meanwhile is then seen, and
    nothing done.

    Raises:
        sqlite3.OperationalError: another connection holds the write lock (`database.is_busy`), the disk is
        full, …
    """
    began_at = _state(connection)
    texts, more = _next_texts(connection, began_at[0], most_messages, most_characters)
    removed = connection.execute("SELECT EXISTS (SELECT 1 FROM messages_fts_removed)").fetchone()[0]
    if not texts and not removed:
        return Batch(0, more=False)
    with database.writing(connection, "message_index", timeout_seconds=lock_timeout_seconds):
        if _state(connection) != began_at:
            return Batch(0, more=True)
        left = _drop_removed(connection, above=began_at[0], most=most_messages)
        if texts:
            _add(connection, texts)
    return Batch(len(texts), more=left or more)


def index_until(
    connection: Connection, *, seconds: float, monotonic: Callable[[], float] = time.monotonic
) -> bool:
    """Index batch after batch until nothing is left (True), or the time is over, or the write lock is not
    free."""
    deadline = monotonic() + seconds
    while True:
        left = deadline - monotonic()
        if left <= 0:
            return False
        try:
            if not index_batch(connection, lock_timeout_seconds=min(left, 1.0)).more:
                return True
        except sqlite3.OperationalError as error:
            if not database.is_busy(error):
                raise
            return False


def index_inserted(connection: Connection, texts: Sequence[tuple[str, str | bytearray]]) -> None:
    """Within the caller's own transaction: index the messages that it has just inserted, the last of all, of
    which it has the texts. For imports, which have read these messages a moment ago: as `index_within`, at
    half the cost.

    Args:
        texts: of each message inserted, in order, its session and its `indexed_text`.
    """
    newest = connection.execute("SELECT ifnull(max(id), 0) FROM messages").fetchone()[0]
    through, _ = _state(connection)
    if newest - len(texts) != through:
        index_within(connection)  # others wait in front of them
    elif texts:
        _drop_removed(connection, above=through, most=0)
        _add(
            connection,
            [(through + place, session_id, text) for place, (session_id, text) in enumerate(texts, 1)],
        )


def index_within(
    connection: Connection, *, most_messages: int = 20_000, most_characters: int = 32_000_000
) -> bool:
    """Within the caller's own transaction, after what it inserted: index what waits, its messages with it.
    For imports, which hold the write lock for longer than an indexer may. True when nothing is left; what is,
    an indexer takes later.
    """
    through, _ = _state(connection)
    texts, more = _next_texts(connection, through, most_messages, most_characters)
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
                f"INSERT INTO {name} ({name}, rank) VALUES ('automerge', ?)",  # noqa: S608
                (MERGED_SEGMENTS,),  # noqa: RUF100, S608
            )  # noqa: RUF100, S608
        connection.executemany(
            # SQLite puts the two together: in Python, the word's odd character makes every letter of the text
            # take two bytes.
            f"INSERT INTO {name} (rowid, text) VALUES (?, CAST(? AS TEXT) || char(10) || ?)",  # noqa: S608 - a number
            [
                (message_id, text, session_word(session_id) if session_id else "")
                for message_id, session_id, text in of_part
            ],
        )
    connection.execute("UPDATE message_index SET indexed_through = ?", (texts[-1][0],))


def _note_sessions(connection: Connection, number: int, texts: list[_Text]) -> None:
    """Where another session's messages begin. Each part begins with a row, so that it can be read by
    itself."""
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
            connection.execute(f"DELETE FROM {part_name(number)} WHERE rowid = ?", (message_id,))  # noqa: S608 - a number
    connection.executemany(
        "DELETE FROM messages_fts_removed WHERE id = ?", [(message_id,) for message_id in ids]
    )
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM messages_fts_removed)").fetchone()[0])
