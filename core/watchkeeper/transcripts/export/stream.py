"""Reading a large JSON object a member, and a list in it an element, at a time: whatever the file's size or
layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from watchkeeper.records.errors import BadInput

PIECE = 1 << 18
LARGEST_VALUE = 1 << 28
"""Characters of one element. No row of ours comes near; what would take more is no document of ours."""

_SPACE = " \t\n\r"
_NEAR_END = 16
"""An error this close to the end of what was read may be the end of a piece, and not of sense."""


class ObjectReader:
    """Reads the one JSON object in a text file, in order.

    `members` gives each name in turn; its value must be taken, by `value` or `elements`, before the next.

    Raises:
        BadInput: from all of its methods, where the file is not such an object.
    """

    def __init__(self, file: TextIO, name: str) -> None:
        self._file = file
        self._name = name
        self._text = ""
        self._at = 0
        self._ended = False
        self._decoder = json.JSONDecoder(parse_constant=self._refuse)

    def members(self) -> Iterator[str]:
        """The names of the object's members, as they come."""
        self._expect("{")
        if self._next() == "}":
            self._at += 1
        else:
            while True:
                name = self.value()
                if not isinstance(name, str):
                    raise self._damaged("a member without a name")
                self._expect(":")
                yield name
                if self._next() == "}":
                    self._at += 1
                    break
                self._expect(",")
        if self._next() != "":
            raise self._damaged("more after the end of the document")

    def elements(self) -> Iterator[Any]:
        """The elements of the list that comes next, one at a time."""
        self._expect("[")
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if self._next() == "]":
                self._at += 1
                return
            self._expect(",")

    def value(self) -> Any:
        """The whole value that comes next."""
        self._next()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unfinished = (
                    error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR_END
                )
                if self._ended or not unfinished or len(self._text) - self._at > LARGEST_VALUE:
                    raise self._damaged(error.msg) from None
            except (ValueError, RecursionError) as error:
                raise self._damaged(str(error) or "nested too deeply") from None
            else:
                # A number at the end of a piece (`1`, `1.`, `1e+`) may go on in the next.
                goes_on = end == len(self._text) or (end >= len(self._text) - 2 and self._text[end] in ".eE")
                if self._ended or not goes_on:
                    self._at = end
                    return found
            self._read_more()

    def _next(self) -> str:
        """The next character that is no space, which is not taken; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._read_more()

    def _expect(self, character: str) -> None:
        found = self._next()
        if found != character:
            raise self._damaged(
                f"{character!r} was expected" + (f" before {found!r}" if found else ", and the file ends")
            )
        self._at += 1

    def _read_more(self) -> None:
        kept = self._text[self._at :]
        try:
            more = self._file.read(max(PIECE, len(kept)))
        except UnicodeDecodeError as error:
            raise self._damaged(f"no UTF-8 ({error.reason})") from None
        self._ended = not more
        self._text, self._at = kept + more, 0

    def _refuse(self, constant: str) -> Any:
        raise ValueError(f"{constant} is no number of JSON")

    def _damaged(self, why: str) -> BadInput:
        return BadInput(f"{self._name} is no whole export of Watchkeeper: {why}; export the session again")
