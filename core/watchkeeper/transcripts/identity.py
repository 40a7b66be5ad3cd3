"""Ids made of what names a thing in its own program, so that importing it again finds it."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

from watchkeeper.records.ids import ALPHABET, LENGTH
from watchkeeper.transcripts.jsontext import same_bytes, text_of

AGENT_LENGTH = 11
"""Characters of an imported agent's or task's id: there are many more of them than of sessions."""

_SECONDS = 1 << 31


def stable_id(*names: str, length: int = LENGTH) -> str:
    """Random-looking characters that are the same for the same names."""
    bits = int.from_bytes(blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=8).digest())
    return "".join(ALPHABET[(bits >> (5 * place)) & 31] for place in range(length))


def record_digest(at: float | None, kind: str, uid: str) -> int:
    """A number for a record of that kind and id, below 2^63.

    Records of about the same time have numbers near each other, so that a file's records lie on few pages of
    the table; 32 of its bits tell records of one second apart, all of them those without a time. Equal
    numbers of different records are possible, and found out by what they say.
    """
    if at is None:
        return (
            int.from_bytes(blake2b(f"{kind}\0{uid}".encode("utf-8", "replace"), digest_size=8).digest()) >> 1
        )
    return ((int(at) % _SECONDS) << 32) | crc32(uid.encode("utf-8", "replace"), _sum_of(kind))


@lru_cache(maxsize=256)
def _sum_of(kind: str) -> int:
    return crc32(f"{kind}\0".encode("utf-8", "replace"))


MADE_UP = "~"
"""What an id begins with that no program gave."""


class PlaceIds:
    """Ids for the lines of one log whose program gave none: their time and kind, and which one they are of
    these.

    They do not depend on what a line says or how its JSON is written, so that a line that was edited keeps
    its id; one that stands twice in a row is one line. Lines without a time are counted from the log's
    beginning.

    Args:
        scope: what the ids are unique in.
        state: what `save` told, or None.
    """

    def __init__(self, scope: str, state: list[Any] | None = None) -> None:
        self._scope = scope
        self._at: float | None = None
        self._there: dict[str, list[int]] = {}
        """Of the newest time, kind → sums of the lines so far, each once."""
        self._counts: dict[str, int] = {}
        """Of lines without a time: kind → how many there were."""
        if state:
            self._at, self._there, self._counts = state[0], dict(state[1]), dict(state[2])

    def save(self) -> list[Any]:
        return [self._at, self._there, self._counts]

    def of(self, at: float | None, kind: str, content: Any) -> str:
        """The id of a line of that time and kind; `content` tells lines of one time apart."""
        if at is None:
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            return f"{MADE_UP}{self._scope}:{kind}:{count}"
        if at != self._at:
            self._at, self._there = at, {}
        sums = self._there.setdefault(kind, [])
        number = crc32(same_bytes(content))
        if number not in sums:
            sums.append(number)
        return f"{MADE_UP}{self._scope}:{at!r}:{kind}:{sums.index(number)}"


def is_made_up(uid: str) -> bool:
    """Whether an id is by a line's place, since its program gave none."""
    return uid.startswith(MADE_UP)


def id_of(value: Any) -> str | None:
    """An id that a program gave; None where there is none, or a redaction took it."""
    found = text_of(value)
    return (
        None
        if found is None or " " in found or "REDACT" in found or "redact" in found or found[0] == "*"
        else found
    )
