"""Which lines of a log may hold a secret: asked of several lines at once, because most hold none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from watchkeeper.records.redact import Redactor
from watchkeeper.transcripts.lines import Line

_AT_ONCE = 32 * 1024
"""Bytes of lines that are searched together: fewer cost more calls, and more are searched again where one is
suspected."""


def suspicion(redactor: Redactor) -> Callable[[bytes], bool]:
    """A function that says whether bytes may hold one of the redactor's secrets; wrong only in saying yes."""
    return redactor.suspects


def with_suspicion(lines: Iterable[Line], suspects: Callable[[bytes], bool]) -> Iterator[tuple[bool, Line]]:
    """Each line with whether it may hold a secret. Reads a few lines ahead."""
    waiting: list[Line] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line[0])
        if size >= _AT_ONCE:
            yield from _judged(waiting, suspects)
            waiting, size = [], 0
    yield from _judged(waiting, suspects)


def _judged(lines: list[Line], suspects: Callable[[bytes], bool]) -> Iterator[tuple[bool, Line]]:
    if len(lines) == 1 or suspects(b"\n".join([line[0] for line in lines])):
        for line in lines:
            yield suspects(line[0]), line
    else:
        for line in lines:
            yield False, line
