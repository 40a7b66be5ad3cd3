"""Searching messages, and sessions by what they say: the query as a person types it, the snippets, and the search itself,
within a bounded time.

No typed text is ever FTS5 syntax: every word is quoted.
"""

from __future__ import annotations

import difflib
import json
import re
import time
import unicodedata
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any

from watchkeeper.records.errors import BadInput
from watchkeeper.records.readers import OWN_ORIGINS
from watchkeeper.records.states import SessionStatus
from watchkeeper.store.driver import (
    FACTS_FOUND,
    IN_LIST,
    Connection,
    Reads,
    contains,
    decode,
    encode,
    list_of,
    plain,
)
from watchkeeper.store.engine import index_of
from watchkeeper.store.names import TASK_NAME
from watchkeeper.store.projection import CountedSession, sessions
from watchkeeper.store.search.index import LONGEST_WORD_BYTES, Interrupted, Place, Walk, Word
from watchkeeper.store.search.words import WordTable, cjk, quoted, words_of

PREFIX_LETTERS = 3
"""From this length on, the last word typed may be the beginning of a longer one."""

MOST_WORDS = 16

_SPLIT = re.compile(r'"([^"]*)("?)|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class Typed:
    """One word as typed, or what stood between quotation marks."""

    text: str
    quoted: bool
    """Between two quotation marks: these words exactly, next to each other."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one typed word looks for: its tokens, next to each other and in this order."""

    text: str
    tokens: tuple[str, ...]
    prefix: bool
    """Whether the last token may be the beginning of a word."""


@dataclass(frozen=True, slots=True)
class Query:
    """The terms that a message must all hold, somewhere."""

    terms: tuple[Term, ...]

    @property
    def phrases(self) -> bool:
        """Whether the index alone cannot tell: it knows which words a message holds, not where."""
        return any(
            len(term.tokens) > 1 or 4 * len(term.tokens[0]) > LONGEST_WORD_BYTES for term in self.terms
        )

    def for_index(self) -> tuple[Word, ...]:
        """What to ask the index for: every token, and whether it may be a beginning."""
        return tuple(
            (token, term.prefix and at == len(term.tokens))
            for term in self.terms
            for at, token in enumerate(term.tokens, 1)
        )

    def for_texts(self) -> str:
        """The query for texts whose words' places are known (`WordTable`)."""
        return " ".join(quoted(" ".join(term.tokens)) + ("*" if term.prefix else "") for term in self.terms)


def typed_words(search: str) -> list[Typed]:
    """The words and quoted phrases of what was typed; an open quotation mark reaches to the end."""
    found = []
    for match in _SPLIT.finditer(search):
        text = match[3] if match[3] is not None else match[1]
        if text.strip():
            found.append(Typed(text, match[3] is None and bool(match[2])))
    return found


def parse_query(search: str, table: WordTable, *, prefix: bool) -> Query:
    """The query for what was typed. With `prefix`, the last word may be the beginning of one, from three
    letters on.

    Words without a letter or digit say nothing. One character of a script written without spaces is always a
    beginning.
    """
    terms: list[Term] = []
    typed = typed_words(search)[:MOST_WORDS]
    for at, word in enumerate(typed):
        tokens = table.tokens(plain(word.text))
        if not tokens:
            continue
        pairs = cjk(tokens[-1])
        if pairs and len(tokens) > 1 and len(tokens[-1]) == 1 and tokens[-1] == tokens[-2][-1:]:
            tokens.pop()  # the run's last character alone: only text that ends there has it
            beginning = False
        else:
            beginning = pairs and len(tokens[-1]) == 1
        if prefix and not pairs and at == len(typed) - 1 and not word.quoted:
            beginning = len(tokens[-1]) >= PREFIX_LETTERS and word.text[-1:].isalnum()
        terms.append(Term(word.text, tuple(tokens), beginning))
    return Query(tuple(terms))


# --- Snippets: the text around the found words, marked ------------------------------------------------------

SNIPPET_CHARACTERS = 160
LEAD_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a snippet. `text` is what a model or tool wrote: hostile until sanitised."""

    text: str
    found: bool
    """Whether this is one of the words that were looked for."""


def snippet(text: str, terms: Sequence[Term], *, characters: int = SNIPPET_CHARACTERS) -> tuple[Piece, ...]:
    """About `characters` of `text` on one line, around the place where the most of the terms are."""
    if not text:
        return ()
    folded = fold(text)
    patterns = [_pattern(term) for term in terms]
    first = [found.start() for pattern in patterns if (found := pattern.search(folded))]
    at = _best(patterns, folded, first, characters - LEAD_CHARACTERS)
    begin = max(0, at - LEAD_CHARACTERS)
    if begin:
        space = text.find(" ", begin, at)
        begin = space + 1 if space >= 0 else begin
    end = min(len(text), begin + characters)
    spans = sorted(
        (found.start(), min(found.end(), end))
        for pattern in patterns
        for found in pattern.finditer(folded, begin, end)
    )
    pieces: list[Piece] = [Piece("…", False)] if begin else []
    here = begin
    for start, stop in spans:
        if start < here:
            continue
        _append(pieces, text[here:start], found=False)
        _append(pieces, text[start:stop], found=True)
        here = stop
    _append(pieces, text[here:end], found=False)
    if end < len(text):
        pieces.append(Piece("…", False))
    return tuple(pieces)


def plain_snippet(pieces: Sequence[Piece]) -> str:
    """A snippet without its marks."""
    return "".join(piece.text for piece in pieces)


def fold(text: str) -> str:
    """`text` without case and accents, character for character, so that places in it are places in `text`."""
    if text.isascii():
        return text.lower()
    # Marks, arrows and boxes, of which a text may hold thousands, mostly remain as they are.
    data = text.encode("utf-8", "surrogatepass").lower()
    folded = data.decode("utf-8", "surrogatepass")
    for character in set(data.translate(None, _ASCII).decode("utf-8", "surrogatepass")):
        if (base := _folded(character)) != character:
            folded = folded.replace(character, base)
    return folded


_ASCII = bytes(range(128))


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    base = unicodedata.normalize("NFD", character)[0] if not cjk(character) else character
    lower = base.lower()
    return lower if len(lower) == 1 else lower[0]


@lru_cache(maxsize=64)
def _pattern(term: Term) -> re.Pattern[str]:
    """Where a folded text contains the term: whole words, or the beginning of the last one."""
    if cjk(term.text):
        return re.compile(re.escape(fold(term.text.strip())))
    gap = r"[\W_\u0300-\u036f]+"
    words = gap.join(re.escape(fold(token)) for token in term.tokens)
    return re.compile(rf"(?<![^\W_]){words}" + (r"[^\W_]*" if term.prefix else r"(?![^\W_])"))


def _best(patterns: Sequence[re.Pattern[str]], folded: str, first: Sequence[int], width: int) -> int:
    """Among the first places of each term, the start of the span with the most terms; 0 if there is none."""
    near = [
        (sum(pattern.search(folded, at, at + width) is not None for pattern in patterns), -at) for at in first
    ]
    return -max(near)[1] if near else 0


def _append(pieces: list[Piece], text: str, *, found: bool) -> None:
    if not text:
        return
    words = " ".join(text.split())
    lead = " " if text[0].isspace() and pieces else ""
    tail = " " if text[-1].isspace() and words else ""
    if lead or words:
        pieces.append(Piece(lead + words + tail, found))


# --- Searching messages -------------------------------------------------------------------------------------
#
# A search goes from the newest message to the oldest: first those above the index's high-water, which it
# reads, then the index, part by part. It may stop anywhere: at its limit, at its deadline, or because the
# person has typed on. Its result says what it did not search.

RANKED_MESSAGES = 500
"""Ranking looks at this many of the newest messages found: older ones would need every posting of a common
word."""

DEADLINE_SECONDS = 0.2

_AT_ONCE = 64
"""How many messages are read at a time to be checked: a deadline is never missed by much."""


class Stopped(StrEnum):
    """Why a search did not look at every message."""

    LIMIT = "limit"
    """The search reached its limit; there may be more results."""
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Hit:
    """One message that holds the words."""

    message_id: int
    session_id: str
    agent_id: str
    seq: int
    role: str
    created_at: float
    snippet: tuple[Piece, ...]
    """The words in their context: hostile text until sanitised. Empty where the search was cancelled."""

    @property
    def place(self) -> Place:
        return self.message_id, self.session_id, self.agent_id, self.seq, self.role, self.created_at


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, and whether that is all there is."""

    hits: tuple[Hit, ...]
    stopped: Stopped | None

    @property
    def complete(self) -> bool:
        """Whether every message was looked at, and every one that holds the words is among the hits."""
        return self.stopped is None


def search(
    connection: Connection,
    text: str,
    *,
    ranked: bool = False,
    limit: int = 50,
    deadline_seconds: float = DEADLINE_SECONDS,
    session_id: str | None = None,
    prefix: bool = True,
    skip_snippets: int = 0,
    cancelled: Callable[[], bool] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Found:
    """Messages that contain every word of `text`: newest first, or best first among the newest
    `RANKED_MESSAGES`.

    Words are compared without case and accents. A word with signs in it (`schema.py`), and text in quotation
    marks, is a phrase. With `prefix` the last word, from three letters on, may be the beginning of one.
    Deleted sessions are left out; with `session_id`, all others too. The first `skip_snippets` hits, those of earlier pages,
    have no snippet. The search calls `cancelled` often, and
    ends when it is true.

    The search uses the connection's progress handler (SQLite) or its statement timeout (PostgreSQL), and removes
    it afterwards.
    """
    with _Search(connection, text, session_id, prefix, deadline_seconds, cancelled, monotonic) as walk:
        wanted = max(limit, RANKED_MESSAGES) if ranked else limit
        with closing(walk.places()) as found:
            places = list(islice(found, wanted + 1))
        stopped = walk.stopped or (Stopped.LIMIT if len(places) > (limit if ranked else wanted) else None)
        places = places[:wanted]
        if ranked and places and stopped is not Stopped.CANCELLED:
            places = walk.ranked(places)
        earlier = [Hit(*place, ()) for place in places[: min(skip_snippets, limit)]]
        return Found((*earlier, *walk.hits(places[len(earlier) : limit])), stopped)


def search_by_session(
    connection: Connection,
    text: str,
    *,
    limit: int = 1000,
    snippets: int = 200,
    deadline_seconds: float = DEADLINE_SECONDS,
    cancelled: Callable[[], bool] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Found:
    """As `search`, the newest first, but only the newest message of each session; the first `snippets` have a
    snippet."""
    with _Search(connection, text, None, True, deadline_seconds, cancelled, monotonic) as walk:
        with closing(walk.newest_places()) as found:
            places = list(islice(found, limit + 1))
        stopped = walk.stopped or (Stopped.LIMIT if len(places) > limit else None)
        places = places[:limit]
        hits = [*walk.hits(places[:snippets]), *(Hit(*place, ()) for place in places[snippets:])]
        return Found(tuple(hits), stopped)


def with_snippets(connection: Connection, text: str, hits: Sequence[Hit]) -> list[Hit]:
    """Hits of `search_by_session` with their snippets: for those of one page only."""
    with _Search(connection, text, None, True, 0.0, None, time.monotonic) as walk:
        return list(walk.hits([hit.place for hit in hits]))


@dataclass(frozen=True, slots=True)
class Reply:
    """A message of an assistant, and its content as stored."""

    session_id: str
    agent_id: str
    seq: int
    created_at: float
    content: str


def replies_that_name(
    connection: Connection,
    name: str,
    *,
    session_id: str | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[list[Reply], bool]:
    """The assistant's messages that hold this text letter for letter, newest first, and whether all were looked at. The
    text has a letter or digit; what matters of each message is for the caller to read."""
    with _Search(
        connection,
        f'"{name.replace(chr(34), " ")}"',
        session_id,
        False,
        deadline_seconds,
        None,
        monotonic,
    ) as walk:
        rows = walk.replies(encode(name)[1:-1])
        found = [Reply(place[1], place[2], place[3], place[5], content) for place, content in rows]
        return found, walk.stopped is None


class _Search:
    """One walk over the messages that match."""

    def __init__(
        self,
        connection: Connection,
        text: str,
        session_id: str | None,
        prefix: bool,
        seconds: float,
        cancelled: Callable[[], bool] | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self._deadline = monotonic() + seconds
        self._cancelled = cancelled
        self._monotonic = monotonic
        self._table = WordTable()
        self._query: Query = parse_query(text, self._table, prefix=prefix)
        self.stopped: Stopped | None = None

    def __enter__(self) -> _Search:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def places(self) -> Generator[Place]:
        """The places of the words, newest first; ends early when `stopped` says so."""
        if not self._query.terms:
            return
        with self._interruptible() as walk:
            yield from walk.in_order(self._unindexed(walk), self._indexed(walk))

    def replies(self, stored: str) -> Generator[tuple[Place, str]]:
        """The assistant's messages whose content holds `stored`, and the contents, newest first."""
        if not self._query.terms:
            return
        with self._interruptible() as walk:
            indexed = walk.replies(self._query.for_index(), self._session_id, stored)
            for row in walk.in_order(self._unindexed_replies(walk, stored), indexed):
                yield row[:6], row[6]
                if self._must_stop():
                    return

    def _unindexed_replies(self, walk: Walk, stored: str) -> Iterator[Any]:
        for row in walk.unindexed(self._session_id):
            if row[4] == "assistant" and stored in row[6]:
                yield row
            if self._must_stop():
                return

    def newest_places(self) -> Generator[Place]:
        """The first place of each session."""
        if not self._query.terms:
            return
        known: set[str] = set()
        with self._interruptible() as walk:
            indexed = (
                self._indexed(walk)
                if self._query.phrases
                else walk.newest_places(self._query.for_index(), known)
            )
            for place in walk.in_order(self._unindexed(walk), indexed):
                if place[1] not in known:
                    known.add(place[1])
                    yield place

    def ranked(self, places: list[Place]) -> list[Place]:
        """The best first, by bm25 among these."""
        by_id = {place[0]: place for place in places}
        texts = self._texts(list(by_id))
        return [
            by_id[number]
            for number in self._table.matching(texts.items(), self._query.for_texts(), ranked=True)
        ]

    def hits(self, places: list[Place]) -> Iterator[Hit]:
        """The hits with their snippets, unless the caller cancelled."""
        if self.stopped is Stopped.CANCELLED:
            yield from (Hit(*place, ()) for place in places)
            return
        for at in range(0, len(places), _AT_ONCE):
            some = places[at : at + _AT_ONCE]
            texts = self._texts([place[0] for place in some])
            for place in some:
                yield Hit(*place, snippet(texts.get(place[0], ""), self._query.terms))

    def _unindexed(self, walk: Walk) -> Iterator[Place]:
        """Messages that the index does not hold, read and tokenized."""
        rows = iter(walk.unindexed(self._session_id))
        while not self._must_stop():
            some = {row[0]: tuple(row) for row in islice(rows, _AT_ONCE)}
            if not some:
                return
            texts = ((number, words_of(decode(row[6]))) for number, row in some.items())
            found = set(self._table.matching(texts, self._query.for_texts()))
            for number, row in some.items():
                if number in found:
                    yield row[:6]

    def _indexed(self, walk: Walk) -> Iterator[Place]:
        rows = walk.places(self._query.for_index(), self._session_id)
        for place in self._checked(rows) if self._query.phrases else rows:
            yield tuple(place)
            if self._must_stop():
                return

    def _checked(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Among messages that contain all tokens, those that contain the words as typed."""
        while not self._must_stop():
            some = {row[0]: row for row in islice(rows, _AT_ONCE)}
            if not some:
                return
            found = set(self._table.matching(self._texts(list(some)).items(), self._query.for_texts()))
            yield from (row for number, row in some.items() if number in found)

    def _texts(self, ids: list[int]) -> dict[int, str]:
        marks = ", ".join("?" * len(ids))
        rows = self._connection.execute(f"SELECT id, content FROM messages WHERE id IN ({marks})", ids)
        return {row[0]: words_of(decode(row[1])) for row in rows}

    def _must_stop(self) -> bool:
        if self.stopped is None:
            if self._cancelled is not None and self._cancelled():
                self.stopped = Stopped.CANCELLED
            elif self._monotonic() > self._deadline:
                self.stopped = Stopped.DEADLINE
        return self.stopped is not None

    @contextmanager
    def _interruptible(self) -> Iterator[Walk]:
        """Within, a statement of the connection ends when the search must stop."""
        seconds = self._deadline - self._monotonic()
        try:
            with index_of(self._connection).walk(self._must_stop, seconds) as walk:
                yield walk
        except Interrupted:
            self.stopped = self.stopped or Stopped.DEADLINE


# --- Sessions -------------------------------------------------------------------------------------------

_STATES = {"live": "running", "stopped": "running"}
"""What the list calls states that the row cannot tell apart: the lease does."""
_OWN = "s.origin IN (" + ", ".join(f"'{one}'" for one in OWN_ORIGINS) + ")"
_STATE_CLAUSES = {
    "done": f"s.status = 'done' AND {_OWN}",
    "ended": f"s.status IN ('done', 'running') AND NOT {_OWN}",
}
"""The log of another program does not say that its session reached its goal."""
_KNOWN_STATES = (*SessionStatus, *_STATES, "ended", "deleted")
_KEYS = ("state", "model", "tag", "since", "before", "workspace", "user", "id")
_FILTER = re.compile(
    r"(state|model|tag|since|before|workspace|user|id):(\S+)|cost([<>])\$?(\d+(?:\.\d+)?)|(compacted)",
    re.IGNORECASE,
)
_LIKE_A_FILTER = re.compile(r"([a-z]+)(?::|([<>=]+))(\S*)", re.IGNORECASE)
_ALIKE = 0.7
"""How much a key must be like one that there is (1 is the same) to be taken for a slip of it."""
_SHORTEST_SLIP = 4
_FILTERS = "state:paused model:x tag:x workspace:x user:x id:x cost>1 cost<1 since:2026-11-01 before:2026-11-01 compacted"
_EXAMPLES = {"state": "paused", "since": "2026-11-01", "before": "2026-11-01"}
_COLUMNS = {
    "model": "s.model",
    "tag": "s.tags",
    "workspace": "s.workspace",
    "user": "s.user_id",
    "id": "s.id",
}


@dataclass(frozen=True, slots=True)
class MessageHit:
    """The newest message of a session that holds the words."""

    session_id: str
    agent_id: str
    seq: int
    excerpt: str
    """The words in their context: hostile until sanitised."""
    pieces: tuple[Piece, ...] = ()
    """The excerpt, with the words marked."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a search as SQL conditions on `sessions s`, and the words that are left."""

    words: tuple[str, ...]
    """Each a word, or what stood in quotation marks."""
    clauses: tuple[str, ...]
    values: tuple[object, ...]
    text: str = ""
    """The words as they were typed, for `search.messages`."""
    deleted: bool = False
    """Whether it is deleted sessions that are looked for; they are hidden else."""


def parse_filters(search: str) -> Filters:
    """`state:paused model:opus tag:x workspace:x user:x id:x cost>1 since:2026-11-01 before:… compacted`; all else
    are words.

    Text in quotation marks is never a filter. `state:deleted` finds the sessions that can still be restored.
    restored.

    Raises:
        BadInput: a filter that means nothing: `state:bogus`, `cost>abc`, `since:yesterday`, `stat:paused`.
    """
    words: list[str] = []
    kept: list[str] = []
    clauses: list[str] = []
    values: list[object] = []
    deleted = False
    before = ""
    for typed in typed_words(search)[:MOST_WORDS]:
        if not typed.quoted and before in (*_KEYS, "cost") and typed.text[:1] in ("<", ">", "=", ":"):
            raise BadInput(
                f"{before} {typed.text}: a filter cannot contain spaces, as in cost>1 and state:paused"
            )
        before = "" if typed.quoted else typed.text.lower()
        match = None if typed.quoted else _FILTER.fullmatch(typed.text)
        name = (match[1] or "").lower() if match else ""
        at = _day(match[2]) if match is not None and name in ("since", "before") else None
        if not typed.quoted:
            _check_filter(typed.text)
        if match is None:
            words.append(typed.text)
            kept.append(f'"{typed.text}"' if typed.quoted else typed.text)
        elif match[5]:
            clauses.append("EXISTS (SELECT 1 FROM agents c WHERE c.session_id = s.id AND c.compactions > 0)")
        elif match[3]:
            clauses.append("s.cost_usd > ?" if match[3] == ">" else "s.cost_usd < ?")
            values.append(float(match[4]))
        elif name == "state" and match[2].lower() == "deleted":
            deleted = True
        elif name == "state" and match[2].lower() in _STATE_CLAUSES:
            clauses.append(_STATE_CLAUSES[match[2].lower()])
        elif name == "state":
            clauses.append("s.status = ?")
            values.append(_STATES.get(match[2].lower(), match[2].lower()))
        elif at is not None:
            clauses.append("s.last_active >= ?" if name == "since" else "s.last_active < ?")
            values.append(at)
        else:
            clauses.append(f"lower({_COLUMNS[name]}) LIKE ? ESCAPE '\\'")
            values.append(contains(match[2]))
    clauses.append("s.deleted_at IS NOT NULL" if deleted else "s.deleted_at IS NULL")
    return Filters(tuple(words), tuple(clauses), tuple(values), " ".join(kept), deleted)


def filters_of(search: str) -> str:
    """The filters in what was typed, without the words that are searched for."""
    typed = typed_words(search)
    return " ".join(each.text for each in typed if not each.quoted and _FILTER.fullmatch(each.text))


def search_messages(
    connection: Connection,
    words: str | Sequence[str],
    *,
    seconds: float = DEADLINE_SECONDS,
    limit: int = 1000,
    cancelled: Callable[[], bool] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[dict[str, MessageHit], bool]:
    """The newest message of each session that contains every word, and whether all messages were searched.

    `words`: as typed (`Filters.text`), or one by one. The search stops after `seconds`, at `limit` sessions,
    or when `cancelled` says that the caller no longer waits for the answer.
    """
    text = (
        words if isinstance(words, str) else " ".join(f'"{word}"' if " " in word else word for word in words)
    )
    found = search_by_session(
        connection, text, limit=limit, deadline_seconds=seconds, cancelled=cancelled, monotonic=monotonic
    )
    hits = {
        hit.session_id: MessageHit(
            hit.session_id, hit.agent_id, hit.seq, plain_snippet(hit.snippet), hit.snippet
        )
        for hit in found.hits
    }
    return hits, found.complete


def _check_filter(text: str) -> None:
    """Refuse what looks like a filter and is none.

    Raises:
        BadInput: one line that says what is possible.
    """
    found = _LIKE_A_FILTER.fullmatch(text)
    if found is None:
        return
    key, value = found[1].lower(), found[3]
    advice = f'put it in quotes to search for the words: "{text}"'
    if key == "cost":
        if not _FILTER.fullmatch(text):
            raise BadInput(f"{text}: cost takes an amount in USD, as in cost>1 or cost<0.5; {advice}")
    elif key == "compacted":
        raise BadInput(f"{text}: compacted takes no value; {advice}")
    elif found[2] and key not in _KEYS:
        return  # a comparison in a program, say
    elif key in _KEYS:
        if found[2]:
            raise BadInput(f"{text}: {key} takes a colon, as in {key}:{_EXAMPLES.get(key, 'x')}; {advice}")
        if not value:
            raise BadInput(f"{text} needs a value, as in {key}:{_EXAMPLES.get(key, 'x')}; {advice}")
        if key == "state" and value.lower() not in _KNOWN_STATES:
            raise BadInput(f"{text}: unknown state; use {', '.join(_KNOWN_STATES)}; {advice}")
        if key in ("since", "before") and _day(value) is None:
            raise BadInput(f"{text}: {key} requires a date, such as {key}:2026-11-01; {advice}")
    elif len(key) < _SHORTEST_SLIP or value[:1] in ("", ":", "/"):
        return  # a word before a colon, a name of C++, an address
    elif alike := difflib.get_close_matches(key, (*_KEYS, "cost"), n=1, cutoff=_ALIKE):
        raise BadInput(
            f"{text}: unknown filter {key}; did you mean {alike[0]}? Filters: {_FILTERS}; {advice}"
        )


def _day(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        return None


# --- Rows of the session list, newest first, filtered by words ----------------------------------------------


GOAL_CHARACTERS = 500
"""As much of a goal as a list shows."""

_NAMES = (
    " OR EXISTS (SELECT 1 FROM tasks t WHERE t.session_id = s.id AND lower(t.name || ' ' || t.title) LIKE ? ESCAPE '\\')"
    " OR EXISTS (SELECT 1 FROM outputs o WHERE o.session_id = s.id AND lower(o.name) LIKE ? ESCAPE '\\')"
)

ORDERS = {
    "last active": " ORDER BY s.last_active DESC LIMIT ?",
    "created": " ORDER BY s.created_at DESC LIMIT ?",
    "cost": " ORDER BY s.cost_usd IS NULL, s.cost_usd DESC, s.last_active DESC LIMIT ?",
    "tokens": " ORDER BY s.input_tokens + s.output_tokens + s.cache_read_tokens + s.cache_write_tokens DESC LIMIT ?",
    "goal": " ORDER BY lower(coalesce(s.title, s.goal)), s.last_active DESC LIMIT ?",
}
"""How the list may be sorted, in the order in which one key goes through them."""


def list_sessions(
    reads: Reads,
    search: str = "",
    limit: int = 1000,
    *,
    order: str = "last active",
    also: Collection[str] = (),
) -> tuple[CountedSession, ...]:
    """At most `limit` sessions that pass the filters of `search` and hold its other words; no deleted ones.

    The words are looked for, as parts of words too, in goal, title, id, workspace, model, tags and state, in
    facts, in the names and titles of tasks and in the names of artifacts; the sessions `also` named hold them elsewhere
    (`search_messages`). `order` is one of `ORDERS`.
    """
    filters = parse_filters(search)
    words = filters.words
    haystack = (
        "(s.goal || ' ' || coalesce(s.title, '') || ' ' || s.id || ' ' || s.workspace || ' ' || s.model || ' '"
        " || s.tags"
        " || ' ' || s.status)"
    )
    clauses: list[str] = []
    values: list[object] = []
    for word in words:
        pattern = contains(word)
        terms = re.findall(r"\w+", word)
        clause = f"lower({haystack}) LIKE ? ESCAPE '\\'{_NAMES}"
        values += [pattern, pattern, pattern]
        if terms:
            clause += f" OR s.id IN (SELECT f.session_id FROM facts f {FACTS_FOUND} ?)"
            values.append(index_of(reads).facts_holding(terms, every=True, beginnings=True))
        clauses.append(f"({clause})")
    found = f"({' AND '.join(clauses)})" if clauses else ""
    if found and also:
        found = f"({found} OR s.id {IN_LIST})"
        values.append(list_of(sorted(also)))
    where = " AND ".join([*([found] if found else []), *filters.clauses])
    return sessions(
        reads, f"{where}{ORDERS[order]}", (*values, *filters.values, limit),
        kind=CountedSession, goal_characters=GOAL_CHARACTERS,
    )  # fmt: skip


# --- One session at a glance ----------------------------------------------------------------------------------

PREVIEW_TASKS = 300
PREVIEW_AGENTS = 1_000
PREVIEW_MESSAGES = 30
"""How many of an agent's newest replies are searched for one with text."""
_LONGEST_REPLY = 200_000


@dataclass(frozen=True, slots=True)
class SessionPreview:
    """What a list shows of one session beside its row. Texts are hostile until sanitised."""

    session_id: str
    goal: str
    tasks: tuple[tuple[str, str], ...]
    """Status and name of each task of the plan, in its order; at most `PREVIEW_TASKS`."""
    last_words: str
    """The newest reply with text of the agent that began the session; empty if there is none."""
    spans: tuple[tuple[float, float | None], ...]
    """When each agent began and ended (None: it has not), in wall time; at most `PREVIEW_AGENTS`."""


def session_preview(connection: Connection, session_id: str) -> SessionPreview | None:
    """The preview of a session; None if there is none of that id. Reads a bounded number of rows."""
    row = connection.execute(
        "SELECT substr(goal, 1, 2000), planner_agent_id FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    if row is None:
        return None
    tasks = connection.execute(
        f"SELECT status, substr({TASK_NAME}, 1, 300) FROM tasks t WHERE session_id = ? ORDER BY position, id LIMIT ?",
        (session_id, PREVIEW_TASKS),
    ).fetchall()
    agents = connection.execute(
        "SELECT id, created_at, ended_at FROM agents WHERE session_id = ? ORDER BY created_at, id LIMIT ?",
        (session_id, PREVIEW_AGENTS),
    ).fetchall()
    first = row[1] or (agents[0][0] if agents else None)
    return SessionPreview(
        session_id,
        row[0],
        tuple((status, name) for status, name in tasks),
        _last_words(connection, first) if first is not None else "",
        tuple((began, ended) for _, began, ended in agents),
    )


def _last_words(connection: Connection, agent_id: str) -> str:
    replies = connection.execute(
        "SELECT content FROM messages WHERE agent_id = ? AND role = 'assistant' AND length(content) < ?"
        " ORDER BY seq DESC LIMIT ?",
        (agent_id, _LONGEST_REPLY, PREVIEW_MESSAGES),
    )
    for (stored,) in replies:
        try:
            content = json.loads(stored)
        except ValueError:
            continue
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        words = " ".join(
            str(block.get("text", ""))
            for block in blocks
            if isinstance(block, dict) and block.get("type") == "text"
        ).strip()
        if words:
            return words[:2000]
    return ""
