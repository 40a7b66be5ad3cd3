"""What a summary should not lose: paths, addresses, hashes, ids and settings, found in sanitised text."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PATTERNS = (
    re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s<>\"'`)\]}]{3,200}"),
    re.compile(
        r"(?<![\w/.:@-])(?:~|\.{1,2})?/?(?:[\w.@+-]{1,80}/){1,16}[\w@+-][\w.@+-]{0,80}\.[A-Za-z]\w{0,5}\b"
    ),
    re.compile(r"\b(?=[0-9a-f]{0,63}\d)(?=[0-9a-f]{0,63}[a-f])[0-9a-f]{7,64}\b"),
    re.compile(r"\b[A-Za-z]{2,12}[-_](?=[A-Za-z0-9_-]{0,40}\d)[A-Za-z0-9_-]{1,40}\b"),
    re.compile(r"\b[A-Za-z_][\w .-]{0,30}?\s?=\s?\d[\d_.,]{0,15}\b"),
)
SCANNED_CHARS = 2_000
"""Of each line: what a person could read of it."""


def identifiers_in(lines: Iterable[str]) -> list[str]:
    """Identifiers in order of appearance, each once."""
    found: dict[str, None] = {}
    for line in lines:
        for pattern in _PATTERNS:
            for match in pattern.findall(line[:SCANNED_CHARS]):
                found[match.strip().rstrip(".,:;")] = None
    return list(found)


def not_carried_over(
    texts: Iterable[tuple[int, Iterable[str]]], kept: str, most: int = 200
) -> list[tuple[str, int]]:
    """Identifiers of the replaced messages `(seq, lines)` that `kept` does not hold, with the last message
    that has them."""
    folded = kept.casefold()
    last: dict[str, int] = {}
    for seq, lines in texts:
        for identifier in identifiers_in(lines):
            if identifier.casefold() not in folded:
                last.pop(identifier, None)
                last[identifier] = seq
    return list(last.items())[-most:]
