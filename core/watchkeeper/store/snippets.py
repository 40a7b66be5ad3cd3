"""The piece of a message around the words that were found, with the words marked."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from watchkeeper.store.message_text import cjk
from watchkeeper.store.search_query import Term

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
    return "".join(map(_folded, text))


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    base = unicodedata.normalize("NFD", character)[0] if not cjk(character) else character
    lower = base.lower()
    return lower if len(lower) == 1 else lower[0]


@lru_cache(maxsize=64)
def _pattern(term: Term) -> re.Pattern[str]:
    """Where the term stands in a folded text: whole words, or the beginning of the last one."""
    if cjk(term.text):
        return re.compile(re.escape(fold(term.text.strip())))
    gap = r"[\W_\u0300-\u036f]+"
    words = gap.join(re.escape(fold(token)) for token in term.tokens)
    return re.compile(rf"(?<![^\W_]){words}" + (r"[^\W_]*" if term.prefix else r"(?![^\W_])"))


def _best(patterns: Sequence[re.Pattern[str]], folded: str, first: Sequence[int], width: int) -> int:
    """Of the first places of each term, that from which on the most terms are near; the start where there is
    none."""
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
