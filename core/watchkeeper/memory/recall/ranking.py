"""Ranking documents by a query: BM25 over stems, lifted by neighbours, coverage and exact identifiers.

docs/memory.md measures on recorded chats what each part gains. Parts without a gain were left out (proximity
of the query's words, a lift for replies to questions, fusion of ranks).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.memory.digest import HASH, ID, PATH, URL
from watchkeeper.store.driver import plain, sqlite3

# --- Query terms: words and identifiers ---------------------------------------------------------------------
#
# Common words are left out.

QUERY_CHARACTERS = 2_000
MOST_WORDS = 48
MOST_LITERALS = 12

_COMMON = """
a about after again all also am an and any are as at be because been before being both but by can could d did do does doing
don done down during each few for from further get got had has have having he her here hers him his how i if in into is
isn it its itself just let like ll m may me might more most must my no nor not now of off on once one only or other our
ours out over own re s same shall she should so some such t than that the their theirs them then there these they this
those through to too under until up us ve very was we were what when where which while who whom whose why will with would
you your yours didn doesn wasn weren won wouldn couldn shouldn aren hasn haven hadn
"""
STOP_WORDS = frozenset(_COMMON.split())
"""English words that say nothing of what is sought, and what `\\w+` leaves of their short forms ("don't",
"I'll")."""

_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
"""Runs of Chinese characters and kana: scripts that put no spaces between words."""
_QUOTED = re.compile(r"[\"`“]([^\"`”\n]{2,80})[\"`”]")
_CODE = re.compile(
    r"\b(?:[A-Z]{1,6}\d{2,8}|E[A-Z]{3,12}|0x[0-9A-Fa-f]{2,16}|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b"
)
"""`E0308`, `SQLITE`-like names of more than one word, `ENOENT`, `0x1f`."""
_NAME = re.compile(r"\b[A-Za-z]\w*(?:_\w+|::\w+|\.\w{2,}\()+|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b")
"""Names in code: `snake_case`, `a::b`, `camelCase`."""
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,:_-]*\d(?!\w)|(?<![\w.])\d{2,}(?!\w)")
_TEMPORAL_QUESTION = re.compile(
    r"\s*(?:when|since when|how long|(?:in |on )?(?:what|which) (?:year|date|month|day|time)\b)", re.I
)
_TIME = re.compile(
    r"\d|\b(?:yester|to)day\b|\btomorrow\b|\b(?:last|next|ago|weeks?|months?|years?|days?|since|recently|weekend"
    r"|january|february|march|april|may|june|july|august|september|october|november|december"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b",
    re.I,
)


def words_of(query: str) -> list[str]:
    """The words to look for, lower-cased, each once; the common ones too where there are no others."""
    found = dict.fromkeys(word.lower() for word in _WORD.findall(query[:QUERY_CHARACTERS]))
    telling = [word for word in found if word not in STOP_WORDS]
    return (telling or list(found))[:MOST_WORDS]


def spaced(text: str) -> str:
    """The text with its runs of Chinese characters and kana as characters and overlapping pairs, for an index
    of words."""
    return (
        _UNSPACED.sub(lambda run: " " + " ".join(_characters(run[0])) + " ", text)
        if _UNSPACED.search(text)
        else text
    )


def characters_of(query: str) -> list[str]:
    """What `spaced` makes of the runs of a query, each once."""
    runs = _UNSPACED.findall(query[:QUERY_CHARACTERS])
    return list(dict.fromkeys(piece for run in runs for piece in _characters(run)))[:MOST_WORDS]


def _characters(run: str) -> list[str]:
    return [*(run[at : at + 2] for at in range(len(run) - 1)), *run]


def literals_of(query: str) -> list[str]:
    """What is to be found character by character: paths, URLs, hashes, ids, error codes, numbers, quoted
    phrases."""
    query = query[:QUERY_CHARACTERS]
    found: dict[str, None] = {}
    for pattern in (URL, PATH, HASH, ID, _CODE, _NAME, _NUMBER, _QUOTED):
        for match in pattern.finditer(query):
            literal = (match[1] if pattern is _QUOTED else match[0]).strip().rstrip(".,:;?!(").casefold()
            if len(literal) >= 2:
                found[literal] = None
    return list(found)[:MOST_LITERALS]


def asks_for_time(query: str) -> bool:
    """Whether the question is answered by a date or a duration."""
    return _TEMPORAL_QUESTION.match(query[:QUERY_CHARACTERS]) is not None


def tells_time(text: str) -> bool:
    """Whether a text names a time: a figure, a month, "last week"."""
    return _TIME.search(text) is not None


# --- A full-text index in memory ----------------------------------------------------------------------------
#
# SQLite's FTS5 splits and stems the words, and reports how often each document holds a term.

TOKENIZE = "porter unicode61 remove_diacritics 2"
"""Stemming pays: on one set of recorded chats evidence recall at 10 rose from .486 to .522 by it
(docs/memory.md)."""

_PIECE = re.compile(r"\w+")


class TermIndex:
    """Postings of some texts, by their position. Not for several threads at once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._connection: Any = sqlite3.connect(":memory:", check_same_thread=False)
        run = self._connection.execute
        for name in ("texts", "queries"):
            run(f"CREATE VIRTUAL TABLE {name} USING fts5(text, tokenize='{TOKENIZE}')")
            run(f"CREATE VIRTUAL TABLE {name}_terms USING fts5vocab({name}, 'instance')")
        texts = [spaced(plain(text)) for text in texts]
        self._connection.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(texts))
        self.lengths = [len(_PIECE.findall(text)) for text in texts]
        """Words of each text."""
        self._postings: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    def terms(self, words: Sequence[str]) -> list[str]:
        """The stems of `words` in order, each once."""
        self._connection.execute("DELETE FROM queries")
        self._connection.execute(
            "INSERT INTO queries (rowid, text) VALUES (1, ?)", (spaced(plain(" ".join(words))),)
        )
        rows = self._connection.execute("SELECT term FROM queries_terms ORDER BY offset").fetchall()
        return list(dict.fromkeys(row[0] for row in rows))

    def postings(self, term: str) -> dict[int, int]:
        """Which texts hold the term, and how often each."""
        known = self._postings.get(term)
        if known is None:
            rows = self._connection.execute(
                "SELECT doc, count(*) FROM texts_terms WHERE term = ? GROUP BY doc", (term,)
            )
            known = self._postings[term] = dict(rows.fetchall())
        return known

    def close(self) -> None:
        self._connection.close()


SATURATION = (0.5, 3.0)
"""BM25's k1. Saying a word twice in one short turn is hardly more evidence than saying it once; in pages it
is."""
LENGTH = (0.3, 1.0)
"""BM25's b. Among short turns a longer one says more; among pages a longer one only holds more words."""
COVERAGE = (0.5, 0.25)
"""How much a document gains that holds all of the query's terms, over one that holds one."""
SHORT_WORDS, LONG_WORDS = 50, 250
"""The mean lengths of documents at which the first and the second of each pair holds; between them, by the
logarithm."""
NEIGHBOUR = 0.4
"""What a term in the turn before or after counts, of what it would count in the turn itself …"""
BOTH = 0.5
"""… and how much of that where the turn holds the term as well."""
TIMES = 0.3
"""How much a document that names a time gains where the question asks for one."""
LITERAL = 2.0
"""A named identifier that a document contains counts this many times as much as a term that is as rare."""
MEANING = 0.4
"""What the document whose vector is most like the question's gains, of the best score by words."""
LEAST_LIKENESS = 0.25
"""From which likeness on a document is found by its vector alone."""
LEAST_IDF = 0.05
READ_CHARACTERS = 16_000
"""How many characters of each document are read."""


@dataclass(frozen=True, slots=True)
class Document:
    """One thing that can be found."""

    id: str
    text: str
    at: float | None = None
    """When it was made, in seconds since 1970. Between two that rank equally, the newer one comes first."""
    thread: str | None = None
    """Documents of one thread that follow each other in the sequence are neighbours, as turns of a
    conversation are."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found."""

    id: str
    score: float
    """Above 0; comparable within one answer only."""
    why: str
    """For people: the terms and identifiers that it holds, and what its neighbours hold."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike the vectors of documents are to the question's: cosines, by id. Documents without one are
    left alone."""

    of: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return sum(self.of.values()) / len(self.of) if self.of else 0.0


class RankedIndex:
    """An index to ask many times. `close` it, or use `rank` for one question.

    `corpus_size`: how many documents there are in all, where these are only those that hold a term.
    """

    def __init__(self, documents: Sequence[Document], *, corpus_size: int | None = None) -> None:
        self._documents = list(documents)
        texts = [document.text[:READ_CHARACTERS] for document in self._documents]
        self._folded = [text.casefold() for text in texts]
        self._terms = TermIndex(texts)
        self._size = max(len(texts), corpus_size or 0)
        lengths = self._terms.lengths
        self._mean_length = sum(lengths) / len(lengths) if lengths and sum(lengths) else 1.0
        long = math.log(self._mean_length / SHORT_WORDS) / math.log(LONG_WORDS / SHORT_WORDS)
        self._saturation, self._length, self._coverage = (
            first + (second - first) * min(1.0, max(0.0, long))
            for first, second in (SATURATION, LENGTH, COVERAGE)
        )

    def rank(self, query: str, limit: int = 10, *, likeness: Likeness | None = None) -> list[Hit]:
        """The documents that have to do with `query`, best first; at most `limit`. `likeness`: where vectors
        are used."""
        if limit <= 0 or not self._documents:
            return []
        terms = self._terms.terms(words_of(query))
        scores: dict[int, float] = defaultdict(float)
        held: dict[int, list[str]] = defaultdict(list)
        near: dict[int, list[str]] = defaultdict(list)
        for term in terms:
            self._add_term(term, scores, held, near)
        for position, names in held.items():
            scores[position] *= 1 + self._coverage * (len(names) - 1) / len(terms)
        for literal in literals_of(query):
            self._add_literal(literal, scores, held)
        if asks_for_time(query):
            for position in scores:
                if tells_time(self._documents[position].text[:READ_CHARACTERS]):
                    scores[position] *= 1 + TIMES
        if likeness is not None and likeness.of:
            self._add_likeness(likeness, scores, held)
        best = sorted(scores, key=lambda at: (-round(scores[at], 9), -(self._documents[at].at or 0.0), -at))[
            :limit
        ]
        return [
            Hit(self._documents[at].id, scores[at], _why(held.get(at, []), near.get(at, []))) for at in best
        ]

    def close(self) -> None:
        self._terms.close()

    def _add_term(
        self, term: str, scores: dict[int, float], held: dict[int, list[str]], near: dict[int, list[str]]
    ) -> None:
        postings = self._terms.postings(term)
        idf = self._idf(len(postings))
        own: dict[int, float] = {}
        for position, times in postings.items():
            length = 1 - self._length + self._length * self._terms.lengths[position] / self._mean_length
            own[position] = idf * times * (self._saturation + 1) / (times + self._saturation * length)
            scores[position] += own[position]
            held[position].append(term)
        lifts: dict[int, float] = {}
        for position, worth in own.items():
            for beside in self._neighbours(position):
                lifts[beside] = max(lifts.get(beside, 0.0), NEIGHBOUR * worth)
        for position, lift in lifts.items():
            scores[position] += lift * BOTH if position in own else lift
            if position not in own:
                near[position].append(term)

    def _add_literal(self, literal: str, scores: dict[int, float], held: dict[int, list[str]]) -> None:
        found = [position for position, text in enumerate(self._folded) if literal in text]
        worth = LITERAL * max(self._idf(len(found)), 1.0)
        for position in found:
            scores[position] += worth
            held[position].append(repr(literal))

    def _add_likeness(self, likeness: Likeness, scores: dict[int, float], held: dict[int, list[str]]) -> None:
        """What is more alike than documents are on the mean gains, with its neighbours, as far as the best by
        words."""
        mean = min(likeness.mean, LEAST_LIKENESS)  # if a few all mention it, none is above the mean
        own = {
            at: value - mean
            for at, one in enumerate(self._documents)
            if (value := likeness.of.get(one.id, mean)) > mean
        }
        worth = {
            at: own.get(at, 0.0)
            + NEIGHBOUR * max((own.get(beside, 0.0) for beside in self._neighbours(at)), default=0.0)
            for at in {*own, *scores}
        }
        most, best = max(worth.values(), default=0.0), max(scores.values(), default=0.0) or 1.0
        for position, value in worth.items():
            alike = likeness.of.get(self._documents[position].id, 0.0)
            if value > 0 and (position in scores or alike >= LEAST_LIKENESS):
                scores[position] += best * MEANING * value / most
                if alike >= LEAST_LIKENESS:
                    held[position].append(f"like it in meaning ({alike:.2f})")

    def _idf(self, holding: int) -> float:
        return max(LEAST_IDF, math.log((self._size - holding + 0.5) / (holding + 0.5)))

    def _neighbours(self, position: int) -> list[int]:
        thread = self._documents[position].thread
        return [
            beside
            for beside in (position - 1, position + 1)
            if 0 <= beside < len(self._documents) and self._documents[beside].thread == thread
        ]


def rank(
    documents: Sequence[Document],
    query: str,
    limit: int = 10,
    *,
    corpus_size: int | None = None,
    likeness: Likeness | None = None,
) -> list[Hit]:
    """The documents that have to do with `query`, best first; at most `limit`. Pure: nothing is kept.

    Documents come in the order in which they arose. Costs an index of them, some 10 MB of text a second.
    """
    index = RankedIndex(documents, corpus_size=corpus_size)
    try:
        return index.rank(query, limit, likeness=likeness)
    finally:
        index.close()


def _why(held: Sequence[str], near: Sequence[str]) -> str:
    parts = []
    if held:
        parts.append("holds " + ", ".join(held[:8]))
    if near:
        parts.append("beside " + ", ".join(near[:8]))
    return "; ".join(parts)
