"""Reading the same rows again and again at the price of what changed.

SQLite walks the rows and writes them as JSON text, a block of rows a step, with the interpreter's lock released: a busy
screen is not held up, as it would be by one step a row. A block whose text is what it was is not even parsed, and a row that
is what it was gives the very object it gave before, so that whoever compares two readings compares identities.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from watchkeeper.store.driver import Connection

T = TypeVar("T")
Raw = list[Any]
"""One row as parsed from JSON. Its first value tells it from the others of its query."""


class Folded(Generic[T]):
    """What one query gives: `items`, in order, renewed by `read`."""

    def __init__(self, sql: str, make: Callable[[Raw], T], order: Callable[[Raw], Any] | None = None) -> None:
        """`sql` gives rows of a block's number and its rows as a JSON array of arrays; `order` sorts the rows of all blocks."""
        self._sql = sql
        self._make = make
        self._order = order
        self._texts: dict[int, str] = {}
        self._rows: dict[int, list[Raw]] = {}
        self._made: dict[Any, tuple[Raw, T]] = {}
        self.items: tuple[T, ...] = ()

    def read(self, connection: Connection, parameters: Sequence[object]) -> tuple[T, ...]:
        """The items as they are now: the same tuple where nothing changed, else with the same objects for what did not."""
        texts: dict[int, str] = dict(connection.execute(self._sql, tuple(parameters)).fetchall())
        if texts == self._texts:
            return self.items
        self._rows = {
            block: self._rows[block] if self._texts.get(block) == text else json.loads(text) for block, text in texts.items()
        }
        self._texts = texts
        rows = [row for block in self._rows.values() for row in block]
        if self._order is not None:
            rows.sort(key=self._order)
        before, self._made = self._made, {}
        for row in rows:
            known = before.get(row[0])
            self._made[row[0]] = known if known is not None and known[0] == row else (row, self._make(row))
        items = tuple(item for _, item in self._made.values())
        if len(items) != len(self.items) or any(now is not then for now, then in zip(items, self.items, strict=True)):
            self.items = items
        return self.items


def one_text(sql: str) -> str:
    """`sql`, which gives one JSON text, as the single block that `Folded` reads."""
    return f"SELECT 0, ({sql})"


def accept_any_text(connection: Connection) -> Connection:
    """Have the connection read text that is not UTF-8 with marks in place of what cannot be read, as SQLite itself does not care."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection
