"""Whether a text may hold a secret, asked of every line of a gigabyte.

RE2 reads a text once for hundreds of patterns, three times as fast as searches for groups of them one after
another. It works on bytes, so that a line of a log need not be decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from watchkeeper.records.text import lazily

Search = Callable[[bytes], bool]
Groups = Callable[[bytes], Collection[str]]
"""Names the groups of patterns of which one is found in the bytes of a text."""

_MEMORY = 64 << 20
"""Bytes that RE2 may use to remember what it has worked out for one search; logs of all kinds need some 20 MB.
When they do not suffice, a search is slower and as right."""


def any_of(patterns: Iterable[str]) -> Search:
    r"""A function that says whether one of the patterns is found in the bytes of a text.

    In a pattern, a character is a byte, and `\s`, `\w` and `\d` are those of ASCII. There is no look-around.
    """
    return _any_of(tuple(patterns))


class Sought:
    """A regular expression of Python that is tried only where RE2 finds its beginning: in a long text, Python
    takes most of its time to try hundreds of alternatives at every character.

    Args:
        begins: for `any_of`; each match of the expression begins with one of it. A character that is not
            ASCII is a `?` there.
    """

    def __init__(self, expression: str, begins: str) -> None:
        self.expression = lazily(expression)
        self._begins = begins

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """The matches, as `re.finditer` gives them."""
        find, match = _compiled((self._begins,)).search, self.expression.match
        data = one_byte_each(text)
        at = 0
        while (place := find(data, at)) is not None:
            at = place.start() + 1
            if (found := match(text, at - 1)) is not None:
                at = max(at, found.end())
                yield found


@lru_cache(maxsize=1)
def one_byte_each(text: str) -> bytes:
    """A text as bytes, at whose places the same characters are. The last one is remembered: each text is searched
    for one thing after another."""
    return text.encode("ascii", "replace")


def literal(text: bytes) -> str:
    """The pattern of some bytes."""
    return "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in text
    )


def groups_in(groups: Mapping[str, Iterable[str]], rare: Collection[str] = ()) -> Groups:
    """A function that names the groups of patterns, as `any_of` takes them, of which one is found in a text: one
    pass for all of them.

    Args:
        rare: groups that are searched for as one, and distinguished in a second pass where it is found: RE2 prepares
            a search in time that grows with how many patterns begin alike in different groups.
    """
    return _groups_in(tuple((name, tuple(patterns)) for name, patterns in groups.items()), frozenset(rare))


@lru_cache(maxsize=8)
def _groups_in(groups: tuple[tuple[str, tuple[str, ...]], ...], rare: frozenset[str]) -> Groups:
    import re2

    common = [group for group in groups if group[0] not in rare]
    seldom = tuple(group for group in groups if group[0] in rare)
    found = re2.Set.SearchSet(_options())
    for _, patterns in common:
        found.Add(_alternatives(patterns))
    if seldom:
        found.Add(_alternatives(pattern for _, patterns in seldom for pattern in patterns))
    found.Compile()
    match = found.Match

    def names(text: bytes) -> list[str]:
        numbers = match(text)
        if not numbers:
            return []
        known = [common[number][0] for number in numbers if number < len(common)]
        return known if len(known) == len(numbers) else [*known, *_groups_in(seldom, frozenset())(text)]

    return names


@lru_cache(maxsize=256)
def _any_of(patterns: tuple[str, ...]) -> Search:
    search = _compiled(patterns).search
    return lambda text: search(text) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> Any:
    import re2  # late: many a command never looks into a text

    return re2.compile(_alternatives(patterns), _options())


def _alternatives(patterns: Iterable[str]) -> bytes:
    # RE2 puts neighbours that begin alike together: in order, they take half of the time to prepare.
    return "|".join(sorted(patterns)).encode("ascii")


def _options() -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MEMORY
    return options
