"""Words of messages for the index, always split by SQLite's own tokenizer.

The index, the messages that it does not hold yet, the check of a phrase and the ranking all tokenize with
`TOKENIZE`, so that a message is found, or not, for one reason only.
"""

from __future__ import annotations

import re
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from watchkeeper.records.text import lazily
from watchkeeper.store import driver
from watchkeeper.store.driver import Connection, decode, plain, sqlite3

TOKENIZE = "tokenize='unicode61 remove_diacritics 2'"
"""Words are runs of letters and digits, without case and accents: `snake_case` is two, `schema.py` too."""

HEAD_CHARACTERS = 262_144
TAIL_CHARACTERS = 65_536
"""Only so much of a larger message's head and tail is indexed: one message must not hold the write lock for
long."""

_CJK_LETTERS = (
    "\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
_CJK = lazily(f"[{_CJK_LETTERS}]+")
_MARKS = (
    "\x80-\xa9\xab-\xb1\xb4\xb6-\xb8\xbb\xbf\xd7\xf7\u2000-\u2064\u206a-\u206f\u2190-\u23f3\u2500-\u26ff\u2701-\u2775\u2794-\u2b4c"
    "\u3000-\u3004\u3008-\u3020\u3030\ufe0f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
    "\U0001f300-\U0001f320\U0001f400-\U0001f43e\U0001f442-\U0001f4f7\U0001f500-\U0001f53d\U0001f5fb-\U0001f640\U0001f680-\U0001f6c5"
)
"""Many of the non-ASCII characters that `TOKENIZE` takes for no letter: quotation marks, dashes, arrows,
boxes, older emoji."""
_CJK_AND_MARKS = lazily(f"[ {_MARKS}{_CJK_LETTERS}]*")
_CJK_RUNS = lazily(f"([{_CJK_LETTERS}]+)")
_ASCII = bytes(range(128))
_ASCII_BLANKED = bytes(byte if byte > 127 else 32 for byte in range(256))
_OTHERS_BLANKED = bytes(byte if byte < 128 else 32 for byte in range(256))
_FOUR_BYTES = next(code for code in "IL" if array(code).itemsize == 4)
_UTF_32 = f"utf-32-{sys.byteorder[0]}e"
_BLOB_CHARACTERS = 1_024
_BLOB = lazily(f"[0-9A-Za-z+/_=-]{{{_BLOB_CHARACTERS},}}")
"""Base64, hexadecimal, minified: no search asks for it, and one would weigh as much as a page of words."""
_BLOB_RUN = b"x" * _BLOB_CHARACTERS
_BLOB_BYTES = bytes(
    ord("x") if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "+/_=-") else 0
    for byte in range(256)
)


def words_of(content: Any) -> str:
    """The text of a message's content, as decoded: what people and models wrote, and what tools were given
    and said.

    Text, thinking, the strings in a tool's input, the text of a result or a plain-text document. No images,
    no long runs of base64, of a giant message only head and tail.
    """
    text = _words_of(content)
    return text if text.isascii() else plain(text)


def _words_of(content: Any) -> str:
    if isinstance(content, str):
        text = content
    else:
        found: list[str] = []
        _gather(content, found)
        text = found[0] if len(found) == 1 else "\n".join(found)
    if len(text) < _BLOB_CHARACTERS:
        return text
    if len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS:
        text = f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"
    return _BLOB.sub(" ", text) if _may_hold_a_blob(text) and _holds_a_blob(text) else text


def tokenizable_words(content: Any) -> str | bytearray:
    """As `tokenizable` of `words_of`; in UTF-8 where SQLite would have to make it so once more."""
    text = _words_of(content)
    if text.isascii():
        return text
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return tokenizable(plain(text))
    return _with_pairs(text, data) if _holds_cjk(data) else bytearray(data)


def tokenizable(text: str) -> str:
    """`text` for the tokenizer, which takes a run of Chinese, Japanese or Korean for one word: its pairs of
    characters."""
    return _CJK.sub(_pairs, text) if cjk(text) else text


def cjk(text: str) -> bool:
    """Whether `text` has characters of a script that is written without spaces, and searched by pairs."""
    return not text.isascii() and _holds_cjk(text.encode("utf-8", "replace"))


def _holds_cjk(data: bytes) -> bool:
    # A dash or a tick in a page of English sends the expression through all of it; what is not ASCII is
    # mostly little.
    return _CJK.search(data.translate(None, _ASCII).decode()) is not None


def _with_pairs(text: str, data: bytes) -> bytearray:
    """The words of `tokenizable`, in any order and some of them twice: enough for an index that keeps no
    places.

    On a page of code with a few words of Chinese, the expression searches only the non-ASCII characters.
    """
    runs = b" ".join(data.translate(_ASCII_BLANKED).split()).decode()
    if _CJK_AND_MARKS.fullmatch(runs):
        words = data.translate(_OTHERS_BLANKED)
    else:
        # Other letters, which may be part of a word in ASCII: it is not to be cut in two.
        parts = _CJK_RUNS.split(text)
        runs, words = " ".join(parts[1::2]), "\n".join(parts[::2]).encode()
    letters = array(_FOUR_BYTES, runs.encode(_UTF_32))
    # Each with the next, and a space: (a b _) (b c _) …; the last of a run with the space behind it.
    triples = array(_FOUR_BYTES, (32,)) * (3 * len(letters))
    triples[::3] = letters
    triples[1:-2:3] = letters[1:]
    return bytearray(words) + b"\n" + triples.tobytes().decode(_UTF_32).encode()


def _pairs(match: re.Match[str]) -> str:
    run = match[0]
    # The last is one character alone: a search for one character finds words that begin with it.
    return f" {' '.join(run[at : at + 2] for at in range(len(run)))} "


def _gather(value: Any, found: list[str]) -> None:
    """The strings of a message's content, in order."""
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, list):
        for block in value:
            if isinstance(block, dict):
                # Most blocks by far, without the names that none of them has.
                if (
                    len(block) == 2
                    and block.get("type") == "text"
                    and isinstance(text := block.get("text"), str)
                ):
                    found.append(text)
                else:
                    _gather_block(block, found)
            elif isinstance(block, str):
                found.append(block)


def _gather_block(block: dict[Any, Any], found: list[str]) -> None:
    kind = block.get("type")
    if kind == "tool_use" or kind == "server_tool_use":
        _add_leaves(block.get("input"), found)
    elif kind == "document":
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "text":
            _gather(source.get("data"), found)
    elif kind not in ("image", "redacted_thinking"):
        for name in ("text", "thinking", "content"):
            value = block.get(name)
            if isinstance(value, str):
                found.append(value)
            elif value is not None:
                _gather(value, found)


def _add_leaves(value: Any, found: list[str]) -> None:
    """The strings of a tool's input: mostly it is an object of strings."""
    if isinstance(value, dict):
        for one in value.values():
            if isinstance(one, str):
                found.append(one)
            elif isinstance(one, dict) or isinstance(one, list):  # noqa: SIM101 - "dict | list" is rebuilt each time
                found.extend(_leaves(one))
    else:
        found.extend(_leaves(value))


def _leaves(value: Any) -> Iterator[str]:
    """The strings anywhere in a tool's input, which may be nested as deep as JSON can be read."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting.extend(reversed(one.values()))
        elif isinstance(one, list):
            waiting.extend(reversed(one))


def _may_hold_a_blob(text: str) -> bool:
    """Whether some stretch has no space for as long as a blob is: ten times as fast as looking for one."""
    at, end = 0, len(text) - _BLOB_CHARACTERS
    while at <= end:
        space = text.rfind(" ", at, at + _BLOB_CHARACTERS)
        if space < 0:
            return True
        at = space + 1
    return False


def _holds_a_blob(text: str) -> bool:
    """Whether the text contains such a run. The expression tries every beginning within a run that is too
    short, so it is slow if there is none."""
    return _BLOB_RUN in text.encode("ascii", "replace").translate(_BLOB_BYTES)


_MATCHING = "SELECT rowid FROM texts WHERE texts MATCH ?"
_RANKED = _MATCHING + " ORDER BY bm25(texts), rowid DESC"


class WordTable:
    """A few texts in memory, searched as FTS5 searches: phrases, prefixes and bm25. Close it, or leave it to
    its owner."""

    def __init__(self) -> None:
        self._connection: Connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5 (text, content='', {TOKENIZE})")
        self._connection.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab (texts, instance)")

    def tokens(self, text: str) -> list[str]:
        """The words of `text`, in order."""
        self.fill([(1, text)])
        return [row[0] for row in self._connection.execute("SELECT term FROM tokens ORDER BY offset")]

    def tokens_of(self, texts: Sequence[str]) -> list[list[str]]:
        """The words of each text, in order."""
        self.fill(enumerate(map(plain, texts)))
        found: list[list[str]] = [[] for _ in texts]
        for number, token in self._connection.execute("SELECT doc, term FROM tokens ORDER BY doc, offset"):
            found[number].append(token)
        return found

    def matching(self, texts: Iterable[tuple[int, str]], match: str, *, ranked: bool = False) -> list[int]:
        """The numbers of the texts that `match`, a query of FTS5, finds: in no order, or the best first."""
        self.fill(texts)
        return self.ids(match, ranked=ranked)

    def ids(self, match: str, *, ranked: bool = False) -> list[int]:
        """`matching` among the texts that it holds."""
        sql = _RANKED if ranked else _MATCHING
        return [row[0] for row in self._connection.execute(sql, (match,))]

    def close(self) -> None:
        self._connection.close()

    def fill(self, texts: Iterable[tuple[int, str]]) -> None:
        """Hold these texts, and no others."""
        run = self._connection.execute
        run("BEGIN")
        run("INSERT INTO texts (texts) VALUES ('delete-all')")
        rows: Sequence[tuple[int, str]] = [(number, tokenizable(text)) for number, text in texts]
        self._connection.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", rows)
        run("COMMIT")


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

BATCH_MESSAGES = 500
BATCH_CHARACTERS = 100_000
"""A batch holds the write lock for about 5 ms: no agent notices."""

MERGED_SEGMENTS = 8
"""FTS5 merges this many segments at a time: with its own 4, every twentieth batch takes twice as long."""

_NEXT = (
    "SELECT m.id, a.session_id, m.content FROM messages m LEFT JOIN agents a ON a.id = m.agent_id"
    " WHERE m.id > ? ORDER BY m.id LIMIT ?"
)
_PARTS = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'virtual' AND name LIKE 'messages_fts_%'"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch of an indexer did."""

    messages: int
    """How many it indexed."""
    more: bool
    """Whether there is more to do, as far as was seen."""


_Text = tuple[int, str, str | bytearray]
"""A message's id, its session's id or nothing, and what is indexed of it."""


FOUND = "m.id, a.session_id, m.agent_id, m.seq, m.role, m.created_at"
"""What a search reads of a message `m` of an agent `a`."""


def ids_in_part(number: int) -> str:
    """A query of the ids in a part, the newest first: of messages that match ?, up to the id ?."""
    part = part_name(number)
    return f"SELECT rowid FROM {part} WHERE {part} MATCH ? AND rowid <= ? ORDER BY rowid DESC"


def places_in_part(number: int) -> str:
    """`FOUND` of the messages in a part that match ?1, up to the id ?2, of the session ?3 or of all."""
    part = part_name(number)
    return (
        f"SELECT {FOUND} FROM {part} CROSS JOIN messages m ON m.id = {part}.rowid CROSS JOIN agents a ON a.id ="
        f" m.agent_id CROSS JOIN sessions s ON s.id = a.session_id WHERE {part} MATCH ?1 AND {part}.rowid <= ?2"
        f" AND s.deleted_at IS NULL AND (?3 IS NULL OR s.id = ?3) ORDER BY {part}.rowid DESC"
    )


def replies_in_part(number: int) -> str:
    """`FOUND` and the content of the assistant's messages in a part that match ?1, up to the id ?2, of the session ?3
    or of all, whose stored content holds ?4."""
    return (
        places_in_part(number)
        .replace(FOUND, f"{FOUND}, m.content")
        .replace(" ORDER BY", " AND m.role = 'assistant' AND instr(m.content, ?4) > 0 ORDER BY")
    )


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
    newest = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0]
    return max(0, int(newest) - indexed_through(connection))


@lru_cache(maxsize=256)
def session_word(session_id: str) -> str:
    """The word under which a session's messages are indexed. It begins with a character of private use, so no
    text contains it by chance. A search that finds a message by it still asks the message's agent for its
    session."""
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
    with driver.writing(connection, "message_index", timeout_seconds=lock_timeout_seconds):
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
            if not driver.is_busy(error):
                raise
            return False


def index_inserted(connection: Connection, texts: Sequence[tuple[str, str | bytearray]]) -> None:
    """Within the caller's own transaction: index the messages that it has just inserted, the newest of all.

    For imports, which still have the texts of these messages: as `index_within`, at half the cost.

    Args:
        texts: session and `indexed_text` of each inserted message, in order.
    """
    newest = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0]
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
