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


_new = tuple.__new__
"""Makes a named tuple at half the cost: a gigabyte of log has hundreds of thousands of lines."""


def read_lines(file: BinaryIO, start: int) -> Iterator[Line]:
    """The lines from `start` on; last, what has no newline yet (if anything).

    Whoever moves in the file between two lines goes back to where it was.
    """
    file.seek(start)
    place = start
    begun = _Begun()
    while block := file.read(BUFFER_BYTES):
        find, at = block.find, 0
        while (end := find(b"\n", at)) >= 0:
            if begun.size:
                begun.add(block[at:end])
                place += begun.size + 1
                yield Line(begun.kept(), place, begun.size)
                begun = _Begun()
            else:
                size = end - at
                place += size + 1
                data = block[at:end] if size <= LONGEST_LINE else block[at : at + KEPT_OF_LONGEST]
                yield _new(Line, (data, place, size, True))
            at = end + 1
        if at < len(block):
            begun.add(block[at:])
    if begun.size:
        yield Line(begun.kept(), place + begun.size, begun.size, ended=False)


class _Begun:
    """A line whose end was not read yet."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """What comes next of it."""
        if self.size <= LONGEST_LINE:
            self._pieces.append(piece)
        self.size += len(piece)
        if self.size > LONGEST_LINE:
            self._pieces = [b"".join(self._pieces)[:KEPT_OF_LONGEST]]

    def kept(self) -> bytes:
        """All of it, or the beginning of one that is too long."""
        return b"".join(self._pieces)


def mark(file: BinaryIO, end: int, *, at_end: bool = False) -> str:
    """A digest of the first (or last) bytes of what was read through `end`: whether a file is still the one
    we knew."""
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
