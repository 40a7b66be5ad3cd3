"""A growing file as lines, from where the last reading ended; a line of any length costs bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO, NamedTuple

BUFFER_BYTES = 1 << 18
"""How much a log is read at a time."""
LONGEST_LINE = 64 << 20
"""A longer line is not parsed: its beginning is kept raw."""
KEPT_OF_LONGEST = 1 << 20
MARK_BYTES = 4_096


class Line(NamedTuple):
    """One line, without the newline at its end."""

    data: bytes
    """Of a line longer than `LONGEST_LINE`, its beginning."""
    end: int
    """Where the next one begins in the file."""
    size: int
    """Its whole length in bytes."""
    ended: bool = True
    """False for what stands at the file's end without a newline: perhaps half of a line."""


def read_lines(file: BinaryIO, start: int) -> Iterator[Line]:
    """The lines from `start` on; last, what has no newline yet (if anything)."""
    file.seek(start)
    place = start
    while data := file.readline(LONGEST_LINE + 1):
        ended = data.endswith(b"\n")
        size = len(data) - ended
        if not ended and size > LONGEST_LINE:
            data = data[:KEPT_OF_LONGEST]
            more, ended = _rest(file)
            size += more
        elif ended:
            data = data[:-1]
        place += size + ended
        yield Line(data, place, size, ended)
        if not ended:
            return


def _rest(file: BinaryIO) -> tuple[int, bool]:
    """Go to the end of a line: how many bytes it still has, and whether there is a newline after them."""
    size = 0
    while part := file.readline(BUFFER_BYTES):
        size += len(part)
        if part.endswith(b"\n"):
            return size - 1, True
    return size, False


def mark(file: BinaryIO, end: int, *, at_end: bool = False) -> str:
    """A digest of the first (or last) bytes of what was read through `end`: whether a file is still the one we knew."""
    size = min(MARK_BYTES, end)
    file.seek(end - size if at_end else 0)
    return f"{size}:{blake2b(file.read(size), digest_size=12).hexdigest()}"


def still_holds(file: BinaryIO, end: int, head: str, tail: str) -> bool:
    """Whether the file begins and goes on as when `mark` was taken at `end`."""
    size = int(head.partition(":")[0])
    file.seek(0)
    if f"{size}:{blake2b(file.read(size), digest_size=12).hexdigest()}" != head:
        return False
    return mark(file, end, at_end=True) == tail
