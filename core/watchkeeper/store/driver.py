"""The one SQLite of this process.

SQLite before 3.51.3 can corrupt a WAL database that two processes write. `pysqlite3` carries a newer one
where it has a wheel, and sqlite-utils picks it up by itself; two SQLite libraries in one process would also
drop each other's POSIX locks, so everybody imports `sqlite3` from here.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3 as _types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        from pysqlite3 import dbapi2 as sqlite3
    except ImportError:
        import sqlite3

Connection = _types.Connection
Row = tuple[object, ...]

SAFE_SQLITE = (3, 51, 3)
"""The first version without the WAL-reset bug (sqlite.org, release history)."""


# --- JSON as the store holds it: compact text that SQLite can always bind ---------------------------------

_LONGEST_BITS = 10_000
"""Below Python's limit of 4,300 digits for reading an integer."""


def encode(value: Any) -> str:
    """JSON text of `value`. A lone surrogate (which no UTF-8 binding takes) makes the whole text plain ASCII
    escapes.

    What JSON cannot say does not stop a run: NaN and the infinities become null, and an integer of more
    digits than Python reads back becomes its text in hexadecimal.

    Raises:
        TypeError: no JSON value at all (bytes, an object).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        value = _sayable(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text


def decode(text: str) -> Any:
    """The value that `encode` was given."""
    return json.loads(text)


def decode_or(text: str, otherwise: Any) -> Any:
    """The value, or `otherwise` where the text is damaged: for readers that go on without it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _sayable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_sayable(key): _sayable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and value.bit_length() > _LONGEST_BITS:
        return hex(value)
    return value


def plain(text: str) -> str:
    """`text` with lone surrogates as U+FFFD: what may be bound, counted, indexed and shown."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return (
            text.encode("utf-8", "replace").decode()
            if text.isascii()
            else "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
        )
    return text


# --- What a session's store, a host's transaction and a plain connection are asked alike ------------------


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


# --- Folders that Watchkeeper makes for its own files: for their owner alone ------------------------------

PRIVATE = 0o700


def make_private(folder: Path) -> None:
    """Make a folder and each missing one above it, all of them with mode 0700; folders that exist keep
    theirs.

    `Path.mkdir(parents=True, mode=…)` gives the mode to the last folder only.

    Raises:
        OSError: one of them cannot be made, or a file has its name.
    """
    missing: list[Path] = []
    current = folder
    while not os.path.lexists(current) and current != current.parent:
        missing.append(current)
        current = current.parent
    for each in reversed(missing):
        each.mkdir(mode=PRIVATE, exist_ok=True)  # another process may make it at the same moment
    folder.mkdir(mode=PRIVATE, exist_ok=True)


__all__ = [
    "PRIVATE",
    "SAFE_SQLITE",
    "Connection",
    "Queries",
    "Reads",
    "Row",
    "Unfenced",
    "Writes",
    "decode",
    "decode_or",
    "encode",
    "make_private",
    "plain",
    "sqlite3",
]
