"""A growing file as lines, from where the last reading ended; a line of any length costs bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO, NamedTuple

CHUNK_BYTES = 1 << 20
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
    rest: list[bytes] = []
    held = length = 0
    while chunk := file.read(CHUNK_BYTES):
        parts = chunk.split(b"\n")
        for index, part in enumerate(parts):
            length += len(part)
            if held < LONGEST_LINE:
                rest.append(part)
                held += len(part)
            if index == len(parts) - 1:
                break
            place += length + 1
            yield Line(_whole(rest, length), place, length)
            rest, held, length = [], 0, 0
    if length:
        yield Line(_whole(rest, length), place + length, length, ended=False)


def _whole(parts: list[bytes], length: int) -> bytes:
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return data if length <= LONGEST_LINE else data[:KEPT_OF_LONGEST]


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
