"""What a session's store, a host's transaction and a plain connection are asked alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from watchkeeper.store.driver import Connection


class Reads(Protocol):
    """Anything that can run a query: a session's store, a transaction, a viewer."""

    def one(self, sql: str, parameters: Sequence[Any] = ...) -> Any:
        """The first row, or None."""


class Writes(Reads, Protocol):
    """Anything that can change rows, as of one moment: a host's transaction, or whoever holds a session that
    has no host."""

    @property
    def now(self) -> float:
        """When it happens, in seconds since the epoch."""

    def execute(self, sql: str, parameters: Sequence[Any] = ...) -> int:
        """Run one statement; returns the number of rows that it changed."""


class Queries:
    """A plain connection, which only asks. `Reads`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._connection.execute(sql, parameters).fetchone()

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Every row."""
        rows: list[Any] = self._connection.execute(sql, parameters).fetchall()
        return rows


class Unfenced(Queries):
    """A plain connection of whoever needs no fence, because the session has no host: a fork, a document read.
    `Writes`."""

    def __init__(self, connection: Connection, now: float) -> None:
        super().__init__(connection)
        self.now = now

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement; returns the number of rows that it changed."""
        return int(self._connection.execute(sql, parameters).rowcount)
