"""Whether a text may hold a secret, asked of every line of a gigabyte.

Searching for each pattern by itself takes longer than all of parsing. The regular expressions of
`pydantic_core` (Rust's) look for some fifty texts at once, by comparing the first four bytes of each with
many places together. One of three bytes among them makes all be compared by three, which logs meet much more
often, so that patterns are searched in groups of like beginnings. Measured, one search for everything takes
twice as long as these together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

Search = Callable[[str], bool]

_AT_ONCE = 52
_BEGINNING = re.compile(r"(?:[A-Za-z0-9_ ~/:@;,%&<-]|\\[.x$()|\]*?])*")
"""The literal text that a pattern begins with."""


def any_of(groups: Iterable[Sequence[str]]) -> Search:
    r"""A function that says whether one of the patterns is found in a text (that has no lone surrogate).

    Each group is one search. Patterns are written so that Rust and Python read them alike: no look-around,
    and no `\s`, which Rust finds in letters of Latin-1 as well.
    """
    return _any_of(tuple("|".join(group) for group in groups if group))


def grouped(patterns: Iterable[str]) -> list[list[str]]:
    """Patterns in groups that are fast: by how many letters each begins with that stand for themselves."""
    by_length: dict[int, list[str]] = {}
    for pattern in sorted(set(patterns)):
        beginning = _BEGINNING.match(pattern)
        length = len(beginning[0].replace("\\", "")) if beginning is not None else 0
        by_length.setdefault(min(length, 4), []).append(pattern)
    alone = [[pattern] for pattern in by_length.pop(0, [])]
    return alone + [
        group[first : first + _AT_ONCE]
        for group in by_length.values()
        for first in range(0, len(group), _AT_ONCE)
    ]


def literal(text: str) -> str:
    """The pattern of a text."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)


@lru_cache(maxsize=256)
def _any_of(patterns: tuple[str, ...]) -> Search:
    searches = [_search(pattern) for pattern in patterns]
    if len(searches) == 1:
        return searches[0]

    def found(text: str) -> bool:
        for search in searches:  # noqa: SIM110  (a generator costs as much as a search)
            if search(text):
                return True
        return False

    return found


def _search(pattern: str) -> Search:
    from pydantic_core import SchemaValidator, core_schema  # late: many a command never looks into a text

    return SchemaValidator(
        core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
    ).isinstance_python
