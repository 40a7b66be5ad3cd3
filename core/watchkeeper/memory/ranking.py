"""Ranking documents by a query: BM25 over stems, lifted by neighbours, coverage and exact identifiers.

docs/measurements.md measures what each part gains.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from watchkeeper.memory.notes import HASH, ID, URL
from watchkeeper.records.tool_inputs import PATH
from watchkeeper.store.search.messages import fold
from watchkeeper.store.search.words import Stems, forms_of

# --- What a query asks for ----------------------------------------------------------------------------------

QUERY_CHARACTERS = 2_000
MOST_WORDS = 48
MOST_LITERALS = 12
MOST_JOINED_WORDS = 12
"""In a query of at most so many words, those next to each other may be one identifier; a longer one is a sentence."""
LONGEST_NAME = 6
"""How many words an identifier has at most."""

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

_WORD = re.compile(r"[^\W_]+")
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


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that a document may hold."""

    text: str
    """Folded: a word, one or two characters of a script without spaces."""
    piece: str
    """What all its forms begin with."""
    forms: tuple[str, ...] = ()
    """The words that may have its stem, if it is a word."""


class Query:
    """What a query asks for, each part once."""

    def __init__(self, text: str) -> None:
        self.text = text[:QUERY_CHARACTERS]
        self.terms = _terms(self.text)
        self.literals = literals_of(self.text)
        """What is looked for character by character, folded: paths, URLs, hashes, ids, names, error codes,
        numbers, quoted phrases."""
        whole = fold(self.text.strip())
        self.whole = whole if len(whole) >= LEAST_CHARACTERS else ""
        """The query itself, folded; nothing if it is too short to say anything."""
        self.letters = sum(map(len, _words(self.text)))
        """How many letters and digits its words have."""
        self.names = _names(self.text)
        """Words next to each other, which may be parts of one identifier."""

    @property
    def is_plain(self) -> bool:
        """Whether it is words with spaces between them that name nothing: prose may hold them by chance."""
        words = self.text.split()
        return all(word.isalpha() and word[1:] == word[1:].lower() for word in words) and not self.pairs

    @property
    def pieces(self) -> list[str]:
        """What a document must hold one of, as words that begin so next to each other."""
        found = dict.fromkeys(term.piece for term in self.terms)
        found |= dict.fromkeys([*self.literals, *([self.whole] if self.whole else [])])
        found |= dict.fromkeys("".join(words) for words in self.names)
        return list(found)

    @property
    def forms(self) -> dict[str, tuple[str, ...]]:
        """By piece, the words that a document must hold one of, where it is a beginning of these."""
        return {term.piece: term.forms for term in self.terms if term.forms}

    @property
    def words(self) -> list[str]:
        """The words among the terms."""
        return [term.text for term in self.terms if not _UNSPACED.match(term.text)]

    @property
    def pairs(self) -> list[str]:
        """The characters and pairs of scripts without spaces among the terms."""
        return [term.text for term in self.terms if _UNSPACED.match(term.text)]

    @property
    def asks_for_time(self) -> bool:
        """Whether the question is answered by a date or a duration."""
        return _TEMPORAL_QUESTION.match(self.text) is not None


def _terms(text: str) -> tuple[Term, ...]:
    """The words to look for, each once; the common ones too where there are no others."""
    words = dict.fromkeys(_words(_UNSPACED.sub(" ", text)))
    telling = [word for word in words if word not in STOP_WORDS]
    found: dict[object, Term] = {}
    for word in (telling or [*words])[:MOST_WORDS]:
        forms = forms_of(word)
        found.setdefault(forms or word, Term(word, _beginning(word, forms), forms))
    pairs = dict.fromkeys(pair for run in _UNSPACED.findall(text) for pair in _characters(run))
    return (*found.values(), *(Term(pair, pair) for pair in [*pairs][:MOST_WORDS]))


def _words(text: str) -> Iterator[str]:
    return (fold(word) for word in _WORD.findall(text))


def _beginning(word: str, forms: Sequence[str]) -> str:
    """What all forms of a word begin with."""
    begins = (word[:end] for end in range(len(word), 0, -1))
    return next((one for one in begins if all(form.startswith(one) for form in forms)), word)


def _characters(run: str) -> list[str]:
    return [*(run[at : at + 2] for at in range(len(run) - 1)), *run]


def _names(text: str) -> list[tuple[str, ...]]:
    """Runs of two to six words of the query, the longest first; not those of common words alone."""
    words = [*_words(text)]
    if len(words) > MOST_JOINED_WORDS or not text.isascii():
        return []
    return [
        run
        for count in range(min(LONGEST_NAME, len(words)), 1, -1)
        for at in range(len(words) - count + 1)
        if not STOP_WORDS.issuperset(run := tuple(words[at : at + count]))
        and sum(map(len, run)) >= LEAST_CHARACTERS
    ]


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


def tells_time(text: str) -> bool:
    """Whether a text names a time: a figure, a month, "last week"."""
    return _TIME.search(text) is not None


# --- The texts ----------------------------------------------------------------------------------------------


SATURATION = (0.5, 1.2)
"""BM25's k1. Saying a word twice in one short turn is hardly more evidence than saying it once; in pages it
is."""
LENGTH = (0.3, 1.0)
"""BM25's b. Among short turns a longer one says more; among pages a longer one only holds more words."""
SHORT, LONG = 300, 1_500
"""The mean lengths of documents, in characters, up to which the first and from which the second of each pair
holds; between them, by the logarithm."""
COVERAGE = 0.25
"""How much a document gains that holds all of the query's terms, over one that holds one."""
NEIGHBOUR = 0.7
"""What a term in the turn before or after counts, of what it would count in the turn itself …"""
BOTH = 0.5
"""… and how much of that where the turn holds the term as well."""
TIMES = 0.3
"""How much a document that names a time gains where the question asks for one."""
LITERAL = 2.0
"""A named identifier that a document contains counts this many times as much as a term that is as rare."""
WHOLE = 8.0
"""So does the whole query, unless it is plain words …"""
OTHER_CASE = 0.8
"""… and this much of it where capital letters differ."""
NAME = 0.7
"""Words that are one identifier in a document count this much more than as words."""
MEANING = 0.4
"""What the document whose vector is most like the question's gains, of the best score by words."""
LEAST_LIKENESS = 0.25
"""From which likeness on a document is found by its vector alone."""
LEAST_IDF = 0.05
LEAST_CHARACTERS = 4
READ_CHARACTERS = 400_000
"""How many characters of each document are read: more than the index holds of one."""
PASSAGE_CHARACTERS = 2_500
PASSAGE = 0.75
"""What the best passage of a long document counts, beside the document as a whole."""


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
    weights: tuple[tuple[int, float], ...] = ()
    """What its parts count, where it is not 1: `(from which character on, weight)`, in order."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found."""

    id: str
    score: float
    """Above 0; comparable within one answer only."""
    why: str
    """For people: the terms and identifiers that it holds, and what its neighbours hold."""
    place: int = 0
    """Where in its text the best passage begins."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike the vectors of documents are to the question's: cosines, by id. Documents without one are
    left alone."""

    of: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return sum(self.of.values()) / len(self.of) if self.of else 0.0


class RankedIndex:
    """Texts to ask many times. `close` it, or use `rank` for one question.

    `corpus_size`: how many documents there are in all, where these are only some of those that hold a term.
    """

    def __init__(self, documents: Sequence[Document], *, corpus_size: int | None = None) -> None:
        self._documents = list(documents)
        self._texts = [document.text[:READ_CHARACTERS] for document in self._documents]
        self._folded = [fold(text) for text in self._texts]
        self._stems = Stems()
        self._size = max(len(self._texts), corpus_size or 0)
        lengths = [len(text) for text in self._texts]
        self._mean = max(1.0, sum(lengths) / len(lengths)) if lengths else 1.0
        passages = [min(length, PASSAGE_CHARACTERS) for length in lengths]
        self._passage_mean = max(1.0, sum(passages) / len(passages)) if passages else 1.0

    def rank(
        self,
        query: str,
        limit: int = 10,
        *,
        likeness: Likeness | None = None,
        held: Mapping[str, int] | None = None,
        adjacency: float = 1.0,
    ) -> list[Hit]:
        """The documents that have to do with `query`, best first; at most `limit`.

        Args:
            likeness: where vectors are used.
            held: how many documents of the corpus hold each of the query's pieces, if these are only some.
            adjacency: what neighbours count, from 0 to 1.
        """
        if limit <= 0 or not self._documents:
            return []
        return _Ranking(self, Query(query), held or {}, adjacency).best(limit, likeness)

    def close(self) -> None:
        self._stems.close()

    @cached_property
    def squashed(self) -> list[str]:
        """The texts without the signs that join the words of an identifier."""
        return [folded.replace("_", "").replace("-", "") for folded in self._folded]


def rank(
    documents: Sequence[Document],
    query: str,
    limit: int = 10,
    *,
    corpus_size: int | None = None,
    likeness: Likeness | None = None,
    held: Mapping[str, int] | None = None,
    adjacency: float = 1.0,
) -> list[Hit]:
    """The documents that have to do with `query`, best first; at most `limit`. Pure: nothing is kept.

    Documents come in the order in which they arose. Arguments as of `RankedIndex.rank`.
    """
    index = RankedIndex(documents, corpus_size=corpus_size)
    try:
        return index.rank(query, limit, likeness=likeness, held=held, adjacency=adjacency)
    finally:
        index.close()


_STEP = PASSAGE_CHARACTERS // 2
"""Passages overlap by half."""


class _Ranking:
    """One query's scores."""

    def __init__(self, index: RankedIndex, query: Query, held: Mapping[str, int], adjacency: float) -> None:
        self._index = index
        self._documents = index._documents
        self._query = query
        self._held_in_corpus = held
        self._neighbour = NEIGHBOUR * adjacency
        # BM25's parameters: of turns for short texts that follow from each other, of pages for all others.
        long = min(1.0, max(0.0, math.log(index._mean / SHORT) / math.log(LONG / SHORT)))
        page = 1 - (1 - long) * adjacency
        self._saturation, self._length = (
            turn + (of_page - turn) * page for turn, of_page in (SATURATION, LENGTH)
        )
        self._scores: dict[int, float] = defaultdict(float)
        self._held: dict[int, list[str]] = defaultdict(list)
        self._near: dict[int, list[str]] = defaultdict(list)
        self._place: dict[int, int] = {}
        self._idfs: dict[str, float] = {}
        self._exact = False
        """Whether some document holds the whole query, or all of its words as one identifier."""

    def best(self, limit: int, likeness: Likeness | None) -> list[Hit]:
        scores = self._scores
        self._add_terms()
        self._add_names()
        for literal in self._query.literals:
            self._add_literal(literal, LITERAL)
        if self._query.whole:
            self._add_literal(self._query.whole, LITERAL if self._query.is_plain else WHOLE, whole=True)
        if self._query.asks_for_time:
            for position in scores:
                if tells_time(self._documents[position].text[:READ_CHARACTERS]):
                    scores[position] *= 1 + TIMES
        # What is there word for word needs no guess at its meaning, which would only put others before it.
        if likeness is not None and likeness.of and not self._exact:
            self._add_likeness(likeness)
        found = sorted(scores, key=lambda at: (-round(scores[at], 9), -(self._documents[at].at or 0.0), -at))
        return [
            Hit(
                self._documents[at].id,
                scores[at],
                _why(self._held.get(at, []), self._near.get(at, [])),
                self._place.get(at, 0),
            )
            for at in found[:limit]
        ]

    # Words.

    def _add_terms(self) -> None:
        """BM25 of whole documents and of their best passages, neighbours, coverage."""
        index = self._index
        parts: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        wholes: dict[int, float] = defaultdict(float)
        lifts: dict[int, float] = defaultdict(float)
        places = self._places()
        for stem, found in places.items():
            idf = self._idfs[stem]
            own: dict[int, float] = {}
            for position, at in found.items():
                weights = self._weights(position, at)
                length = len(index._texts[position]) / index._mean
                own[position] = idf * self._saturated(sum(weights), length)
                wholes[position] += own[position]
                self._held[position].append(stem)
                if len(index._texts[position]) > PASSAGE_CHARACTERS:
                    cells = parts[position]
                    for place, weight in zip(at, weights, strict=True):
                        cell = cells[place // _STEP]
                        cell[stem] = cell.get(stem, 0.0) + weight
            if self._neighbour:
                self._lift(stem, own, lifts)
        count = max(1, len(places))
        for position in {*wholes, *lifts}:
            named = len(self._held.get(position, ()))
            score = (wholes.get(position, 0.0) + lifts.get(position, 0.0)) * self._covering(named, count)
            if position in parts:
                best, place = self._best_passage(parts[position], count)
                score = (1 - PASSAGE) * score + PASSAGE * best
                self._place[position] = place
            self._scores[position] = score

    def _best_passage(self, cells: Mapping[int, Mapping[str, float]], count: int) -> tuple[float, int]:
        """The score of the best passage of a document, and where it begins."""
        best, place = 0.0, 0
        length = PASSAGE_CHARACTERS / self._index._passage_mean
        for first in sorted({cell - back for cell in cells for back in (0, 1) if cell >= back}):
            here, there = cells.get(first, {}), cells.get(first + 1, {})
            stems = {**here, **there}
            worth = sum(
                self._idfs[stem] * self._saturated(here.get(stem, 0.0) + there.get(stem, 0.0), length)
                for stem in stems
            ) * self._covering(len(stems), count)
            if worth > best:
                best, place = worth, first * _STEP
        return best, place

    def _places(self) -> dict[str, dict[int, list[int]]]:
        """By stem: where each document holds it."""
        texts = [*enumerate(zip(self._index._folded, self._index._texts, strict=True))]
        found: dict[str, dict[int, list[int]]] = {}
        for term in self._query.terms:
            at: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for position, (folded, text) in texts:
                for place, word in _words_with(term.piece, folded, text):
                    at[word].append((position, place))
            stems = self._index._stems.of([term.text, *at])
            of_stem: dict[int, list[int]] = defaultdict(list)
            for word, places in at.items():
                if stems[word] == stems[term.text]:
                    for position, place in places:
                        of_stem[position].append(place)
            found[stems[term.text]] = {position: sorted(places) for position, places in of_stem.items()}
            corpus = self._held_in_corpus.get(term.piece, 0)
            self._idfs[stems[term.text]] = self._idf(max(len(of_stem), corpus))
        return found

    def _weights(self, position: int, places: Sequence[int]) -> list[float]:
        parts = self._documents[position].weights
        if not parts:
            return [1.0] * len(places)
        begins = [begin for begin, _ in parts]
        return [parts[at - 1][1] if (at := bisect_right(begins, place)) else 1.0 for place in places]

    def _saturated(self, times: float, length: float) -> float:
        padding = 1 - self._length + self._length * length
        return times * (self._saturation + 1) / (times + self._saturation * padding)

    def _covering(self, named: int, count: int) -> float:
        return 1 + COVERAGE * max(0, named - 1) / count

    def _lift(self, stem: str, own: Mapping[int, float], lifts: dict[int, float]) -> None:
        """What the neighbours of the documents that hold a term gain."""
        gained: dict[int, float] = {}
        for position, worth in own.items():
            for beside in self._neighbours(position):
                gained[beside] = max(gained.get(beside, 0.0), self._neighbour * worth)
        for position, lift in gained.items():
            lifts[position] += lift * BOTH if position in own else lift
            if position not in own:
                self._near[position].append(stem)

    # Identifiers.

    def _add_literal(self, literal: str, weight: float, *, whole: bool = False) -> None:
        """Documents that hold it character by character gain, most where it is no part of a longer word."""
        found: dict[int, float] = {}
        written = self._query.text.strip() if whole else ""
        for position, folded in enumerate(self._index._folded):
            share = _bounded(literal, folded)
            if share and not (whole and share < 0.3):
                found[position] = share if written in self._index._texts[position] else share * OTHER_CASE
        worth = weight * max(self._idf(len(found)), 1.0)
        for position, share in found.items():
            self._scores[position] += worth * share
            self._held[position].append("verbatim" if whole else repr(literal))
        self._exact |= whole and bool(found) and not self._query.is_plain

    def _add_names(self) -> None:
        """Documents that hold the query's words as one identifier gain, by the longest."""
        index = self._index
        stems = index._stems.of([word for run in self._query.names for word in run])
        everywhere: Sequence[int] = range(len(self._documents))
        holders: dict[tuple[str, ...], Sequence[int]] = {}
        done: set[int] = set()
        for run in sorted(self._query.names, key=len):
            among = holders.get(run[:-1], everywhere)  # common words alone are no run
            joined = "".join(run)
            holders[run] = [at for at in among if joined in index.squashed[at]]
        for run in self._query.names:
            if not holders[run]:
                continue
            pattern = re.compile("[_-]?".join(map(re.escape, run)))
            worth = sum(self._idfs.get(stems[word], 0.0) for word in run)
            for position in holders[run]:
                if position in done:
                    continue
                share = _as_name(pattern, index._folded[position], index._texts[position])
                if share:
                    done.add(position)
                    self._exact |= len("".join(run)) == self._query.letters
                    self._scores[position] += NAME * share * worth
                    self._held[position].append(repr("_".join(run)))

    # Meaning.

    def _add_likeness(self, likeness: Likeness) -> None:
        """What is more alike than documents are on the mean gains, with its neighbours, as far as the best by
        words."""
        scores = self._scores
        mean = min(likeness.mean, LEAST_LIKENESS)  # if a few all mention it, none is above the mean
        own = {
            at: value - mean
            for at, one in enumerate(self._documents)
            if (value := likeness.of.get(one.id, mean)) > mean
        }
        worth = {
            at: own.get(at, 0.0)
            + self._neighbour * max((own.get(beside, 0.0) for beside in self._neighbours(at)), default=0.0)
            for at in {*own, *scores}
        }
        most, best = max(worth.values(), default=0.0), max(scores.values(), default=0.0) or 1.0
        for position, value in worth.items():
            alike = likeness.of.get(self._documents[position].id, 0.0)
            if value > 0 and (position in scores or alike >= LEAST_LIKENESS):
                scores[position] += best * MEANING * value / most
                if alike >= LEAST_LIKENESS:
                    self._held[position].append(f"similar meaning ({alike:.2f})")

    def _idf(self, holding: int) -> float:
        return max(LEAST_IDF, math.log((self._index._size - holding + 0.5) / (holding + 0.5)))

    def _neighbours(self, position: int) -> list[int]:
        thread = self._documents[position].thread
        return [
            beside
            for beside in (position - 1, position + 1)
            if 0 <= beside < len(self._documents) and self._documents[beside].thread == thread
        ]


def _words_with(piece: str, folded: str, text: str) -> Iterator[tuple[int, str]]:
    """Words, and parts of `camelCase` names, that begin with `piece`, and where; of scripts without spaces,
    the piece itself."""
    at, step = folded.find(piece), len(piece)
    unspaced = _UNSPACED.match(piece) is not None
    while at >= 0:
        end = at + step
        if unspaced:
            yield at, piece
        elif not at or not folded[at - 1].isalnum() or (text[at].isupper() and not text[at - 1].isupper()):
            while (
                end < len(folded)
                and folded[end].isalnum()
                and (not text[end].isupper() or text[end - 1].isupper())
            ):
                end += 1
            yield at, folded[at:end]
        at = folded.find(piece, at + step)


def _bounded(literal: str, folded: str) -> float:
    """1 if a text holds it as a whole, less if as the end of a longer path or as part of a longer word, 0 if
    not at all."""
    best, at = 0.0, folded.find(literal)
    while at >= 0 and best < 1:
        end = at + len(literal)
        before, after = folded[at - 1 : at], folded[end : end + 1]
        if _inner(before, literal[0]):
            share = 0.2
        elif _inner(after, literal[-1]):
            share = 0.4
        else:
            share = 0.8 if before in _PATH_SIGNS or after in _PATH_SIGNS else 1.0
        best = max(best, share)
        at = folded.find(literal, end)
    return best


_PATH_SIGNS = ("/", "\\", "-", "~")


def _inner(outside: str, inside: str) -> bool:
    """Whether a word goes on from one character to the other."""
    return (outside.isalnum() or outside == "_") and (inside.isalnum() or inside == "_")


def _as_name(pattern: re.Pattern[str], folded: str, text: str) -> float:
    """Whether a text holds the words as one identifier: 1.5 if they are all of it, 1 if they begin at one of
    its parts."""
    best = 0.0
    for match in pattern.finditer(folded):
        begin, end = match.span()
        before = folded[begin - 1] if begin else " "
        after = folded[end] if end < len(folded) else " "
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            return 1.5
        if not before.isalnum() or text[begin].isupper():
            best = 1.0
    return best


def _why(held: Sequence[str], near: Sequence[str]) -> str:
    parts = []
    if held:
        parts.append("holds " + ", ".join(held[:8]))
    if near:
        parts.append("beside " + ", ".join(near[:8]))
    return "; ".join(parts)
