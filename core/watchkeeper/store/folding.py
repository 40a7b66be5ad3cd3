"""Reading the same rows again and again at the price of what changed.

SQLite walks the rows and writes them as lines of JSON, all in one step, with the interpreter's lock released:
a busy screen is not held up, as it would be by one step a row. A line that is what it was is not even parsed:
it gives the very object it gave before, so that whoever compares two readings compares identities.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from watchkeeper.store.driver import Connection

T = TypeVar("T")
Raw = list[Any]
"""One row as parsed from JSON."""


class Folded(Generic[T]):
    """What one query gives: `items`, in order, renewed by `read`."""

    def __init__(self, sql: str, make: Callable[[Raw], T]) -> None:
        """`sql` gives one text, as `lines` makes it."""
        self._sql = sql
        self._make = make
        self._text = ""
        self._made: dict[str, T] = {}
        self.items: tuple[T, ...] = ()

    def read(self, connection: Connection, parameters: Sequence[object]) -> tuple[T, ...]:
        """The items as they are now: the same tuple where nothing changed, else with the same objects for
        what did not."""
        text: str = connection.execute(self._sql, tuple(parameters)).fetchone()[0] or ""
        if text != self._text:
            self._text, known = text, self._made
            self._made = {
                line: known[line] if line in known else self._make(json.loads(line))
                for line in text.split("\n")
                if line
            }
            self.items = tuple(self._made.values())
        return self.items


def lines(columns: str, rows: str) -> str:
    """A query of one text: a line of JSON a row, holding the values of `columns`. `rows` is what follows
    `SELECT … FROM`.

    JSON knows no line break within a line. The first column must tell each row from the others.
    """
    return f"SELECT group_concat(line, char(10)) FROM (SELECT json_array({columns}) AS line FROM {rows})"  # noqa: S608


def accept_any_text(connection: Connection) -> Connection:
    """Have the connection read text that is not UTF-8 with marks in place of what cannot be read, as SQLite
    itself does not care."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection
