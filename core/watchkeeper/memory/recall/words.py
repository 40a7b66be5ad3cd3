"""What of a query is worth looking for: its words without the common ones, and the identifiers that it
names."""

from __future__ import annotations

import re

from watchkeeper.memory.identifiers import HASH, ID, PATH, URL

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
