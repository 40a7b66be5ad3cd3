"""Finds TODO and FIXME in a stream of bytes of any size: whole words, upper case, at most one a line (the
first)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = re.compile(rb"\b(TODO|FIXME)\b")
TEXT_CHARACTERS = 120
_TEXT_BYTES = 4 * TEXT_CHARACTERS + 4
HOLD_BACK = _TEXT_BYTES + 16
"""Bytes kept from one chunk for the next, so that no word and no shown text is cut at a chunk's end."""


@dataclass(frozen=True, slots=True)
class Todo:
    """One line that says TODO or FIXME."""

    line: int
    kind: str
    text: str
    """From the word on, printable, at most `TEXT_CHARACTERS`."""
    offset: int
    """Where in the file the word ends: scanning may go on from here, the rest of this line being told
    already."""


class TodoScanner:
    """Feed it a file's bytes in order; it gives the TODOs, each once, however the chunks fall.

    Starting at `offset` on `line` with `told` set, it ignores the rest of that line: that is how a later page
    goes on.
    """

    def __init__(self, offset: int = 0, line: int = 1, *, told: bool = False) -> None:
        self._buffer = b""
        self._offset = offset
        """Of the buffer's first byte."""
        self._from = 0
        """How far into the buffer lines have been counted and words looked for."""
        self._line = line
        self._told = told

    def feed(self, chunk: bytes, *, last: bool = False) -> list[Todo]:
        """The TODOs that are now complete. `last`: there are no more bytes."""
        buffer = self._buffer + chunk
        safe = len(buffer) if last else max(self._from, len(buffer) - HOLD_BACK)
        found = self._scan(buffer, safe)
        # One byte before the place reached stays, so that a word boundary there is still seen.
        keep = max(0, safe - 1)
        self._buffer = buffer[keep:]
        self._offset += keep
        self._from -= keep
        return found

    def _scan(self, buffer: bytes, safe: int) -> list[Todo]:
        found: list[Todo] = []
        position = self._from
        hopeless = buffer.find(b"TODO", position) < 0 and buffer.find(b"FIXME", position) < 0
        while position < safe and not hopeless:
            if self._told:
                newline = buffer.find(b"\n", position, safe)
                if newline < 0:
                    break
                self._told = False
                self._line += 1
                position = newline + 1
            match = _WORD.search(buffer, position)
            if match is None or match.start() >= safe:
                break
            self._line += buffer.count(b"\n", position, match.start())
            found.append(
                Todo(self._line, match[1].decode(), _text(buffer, match.start()), self._offset + match.end())
            )
            self._told = True
            position = match.end()
        newlines = buffer.count(b"\n", position, safe) if position < safe else 0
        self._line += newlines
        if newlines:
            self._told = False
        self._from = max(position, safe)
        return found


def _text(buffer: bytes, start: int) -> str:
    end = buffer.find(b"\n", start, start + _TEXT_BYTES)
    raw = buffer[start : end if end >= 0 else start + _TEXT_BYTES]
    text = raw.decode("utf-8", "replace")
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"
