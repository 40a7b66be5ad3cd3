"""Words of messages for the index, always split by SQLite's own tokenizer.

The index, the messages that it does not hold yet, the check of a phrase and the ranking all tokenize with
`TOKENIZE`, so that a message is found, or not, for one reason only.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from watchkeeper.records.text import lazily, unstyled
from watchkeeper.store.driver import Connection, plain, sqlite3

TOKENIZE = "tokenize='unicode61 remove_diacritics 2'"
"""Words are runs of letters and digits, without case and accents: `snake_case` is two, `schema.py` too."""

STEMS = "tokenize='porter unicode61 remove_diacritics 2'"
"""The words of facts, by their stems: `running` and `runs` are one."""

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
    no colours of a terminal, no long runs of base64, of a giant message only head and tail.
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
    text = unstyled(text)
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


@lru_cache(maxsize=256)
def session_word(session_id: str) -> str:
    """The word under which a session's messages are indexed. It begins with a character of private use, so no
    text contains it by chance. A search that finds a message by it still asks the message's agent for its
    session."""
    return "\ue000" + "".join(character for character in session_id.lower() if character.isalnum())


def indexed_text(content: Any) -> str | bytearray:
    """What is indexed of a message with this content, besides its session's word; bytes are UTF-8."""
    return tokenizable_words(content)


_MATCHING = "SELECT rowid FROM texts WHERE texts MATCH ?"
_RANKED = _MATCHING + " ORDER BY bm25(texts), rowid DESC"


def quoted(token: str) -> str:
    """A token, or several with spaces, as a string of FTS5's queries."""
    return '"' + token.replace('"', '""') + '"'


class WordTable:
    """A few texts in memory, searched as FTS5 searches: phrases, prefixes and bm25. Close it, or leave it to
    its owner.

    Args:
        stems: words as facts have them, by their stems; Chinese, Japanese and Korean are not cut into pairs.
    """

    def __init__(self, *, stems: bool = False) -> None:
        self._stems = stems
        self._connection: Connection = sqlite3.connect(":memory:", isolation_level=None)
        tokenize = STEMS if stems else TOKENIZE
        self._connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5 (text, content='', {tokenize})")
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
        rows: Sequence[tuple[int, str]] = [
            (number, text if self._stems else tokenizable(text)) for number, text in texts
        ]
        self._connection.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", rows)
        run("COMMIT")


class WordLists:
    """The different words of messages, for an index that is not SQLite's. Close it."""

    def __init__(self) -> None:
        self._connection: Connection = sqlite3.connect(":memory:", isolation_level=None)
        run = self._connection.execute
        run(f"CREATE VIRTUAL TABLE texts USING fts5 (text, content='', detail=none, {TOKENIZE})")
        run("CREATE VIRTUAL TABLE words USING fts5vocab (texts, instance)")

    def words_of(self, texts: Sequence[str | bytearray]) -> list[list[str]]:
        """The words of each text, as `indexed_text` makes it, once each."""
        run = self._connection.execute
        run("BEGIN")
        run("INSERT INTO texts (texts) VALUES ('delete-all')")
        self._connection.executemany(
            "INSERT INTO texts (rowid, text) VALUES (?, CAST(? AS TEXT))", enumerate(texts)
        )
        run("COMMIT")
        found: list[list[str]] = [[] for _ in texts]
        for number, word in run("SELECT doc, term FROM words"):
            found[number].append(word)
        return found

    def close(self) -> None:
        self._connection.close()


class Stems:
    """The stems of words, as SQLite's porter tokenizer makes them."""

    def __init__(self) -> None:
        self._connection: Any = sqlite3.connect(":memory:", check_same_thread=False)
        run = self._connection.execute
        run("CREATE VIRTUAL TABLE words USING fts5(word, tokenize='porter unicode61 remove_diacritics 2')")
        run("CREATE VIRTUAL TABLE stems USING fts5vocab(words, 'instance')")
        self._known: dict[str, str] = {}

    def of(self, words: Sequence[str]) -> dict[str, str]:
        """The stem of each word; a word that is none, itself."""
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        if new:
            run = self._connection.execute
            run("DELETE FROM words")
            self._connection.executemany(
                "INSERT INTO words (rowid, word) VALUES (?, ?)",
                [(at, plain(word)) for at, word in enumerate(new)],
            )
            self._known |= dict(zip(new, new, strict=True))
            for at, stem in run("SELECT doc, term FROM stems"):
                self._known[new[at]] = stem
        return self._known

    def close(self) -> None:
        self._connection.close()


_ENDINGS = (
    "", "e", "s", "es", "ed", "ing", "er", "ion", "ions", "ation", "ations", "ate", "ates", "ated", "ating", "ment", "ly",
)  # fmt: skip


@lru_cache(maxsize=1024)
def forms_of(word: str) -> tuple[str, ...]:
    """The words that may have the stem of a folded word, itself among them: `parse`, `parses`, `parsing`; none of what
    has no stem. An index of words is asked for them instead of for the stem, which it does not hold."""
    if not (word.isascii() and word.isalpha()):
        return ()
    stems = Stems()
    try:
        stem = stems.of([word])[word]
        bases = {"e": (stem[:-1],), "i": (stem, stem[:-1] + "y")}.get(stem[-1], (stem, stem + stem[-1]))
        made = [base + ending for base in bases for ending in _ENDINGS]
        known = stems.of(made)
        return tuple(dict.fromkeys([*(one for one in made if known[one] == stem), word]))
    finally:
        stems.close()
