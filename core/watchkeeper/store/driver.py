"""The one SQLite of this process.

SQLite before 3.51.3 can corrupt a WAL database that two processes write. `pysqlite3` carries a newer one
where it has a wheel, and sqlite-utils picks it up by itself. Two SQLite libraries in one process would also
drop each other's POSIX locks, so every module imports `sqlite3` from here.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from watchkeeper.records.errors import (
    Shortage,
    StoreExhausted,
    StoreUnusable,
    host_fault,
    message_of,
    reason_of,
    system_errno_of,
)
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.place import Place

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        from pysqlite3 import dbapi2 as sqlite3
    except ImportError:
        import sqlite3

Connection = sqlite3.Connection
Row = tuple[object, ...]

SAFE_SQLITE = (3, 51, 3)
"""The first version without the WAL-reset bug (sqlite.org, release history)."""


def release_memory(connection: Connection) -> None:
    """Give the system back what this process does not use: pages of the database, and what the C library kept."""
    import ctypes

    connection.execute("PRAGMA shrink_memory")
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


# --- The dialect: what SQL says in its own way for each database ---------------------------------------------
#
# Every other statement is portable; full-text search is in `store.search.index`.

IN_LIST = "IN (SELECT value FROM json_each(?))"
"""A condition on a column: its value is in the list that the parameter holds, as `list_of` makes it."""


class Listed(str):
    """A list as one parameter: JSON text to SQLite, `values` to PostgreSQL."""

    values: Sequence[object]


def list_of(values: Sequence[object]) -> Listed:
    """A list of strings or of whole numbers as one parameter."""
    listed = Listed(encode(list(values)))
    listed.values = values
    return listed


def row_lines(columns: str, rows: str) -> str:
    """A query of one text: for each row a line of JSON, which holds the values of `columns`. `rows` is what
    follows `SELECT … FROM`. JSON has no line break within a line."""
    return f"SELECT group_concat(line, char(10)) FROM (SELECT json_array({columns}) AS line FROM {rows}) made"


FACTS_FOUND = "JOIN facts_fts ON f.id = facts_fts.rowid WHERE facts_fts MATCH"
"""Joins the facts `f` that the parameter which follows finds; `store.search.index.MessageIndex.facts_holding` makes it."""
FACTS_RANK = "bm25(facts_fts)"
"""Orders them, the best first; on PostgreSQL the newest first."""


def contains(text: str) -> str:
    """The pattern of `LIKE … ESCAPE '\\'` that finds this text anywhere, whatever its case."""
    return "%" + beginning(text.lower())


def beginning(text: str) -> str:
    """The pattern of `LIKE … ESCAPE '\\'` that finds texts that begin with this one."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def row_list(column: str, rows: str) -> str:
    """An expression: the values of one column in `rows`, as the text of a JSON list."""
    return f"(SELECT json_group_array(value) FROM (SELECT {column} AS value FROM {rows}) listed)"


# --- JSON in the store: compact text that SQLite can bind ---------------------------------------------------

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
    """The value, or `otherwise` if the text is damaged: for readers that continue without it."""
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


# --- One interface for stores, transactions and connections -------------------------------------------------


class Reads(Protocol):
    """Anything that can run a query: a session's store, a transaction, a viewer."""

    def one(self, sql: str, parameters: Sequence[Any] = ...) -> Any:
        """The first row, or None."""

    def all(self, sql: str, parameters: Sequence[Any] = ...) -> Any:
        """Every row."""


T = TypeVar("T")


def first(reads: Reads, kind: Callable[[Any], T], sql: str, parameters: Sequence[Any] = ()) -> T | None:
    """The first value of the first row, as `kind` makes it; None where there is no row, or no value."""
    row = reads.one(sql, parameters)
    return kind(row[0]) if row is not None and row[0] is not None else None


def column(reads: Reads, kind: Callable[[Any], T], sql: str, parameters: Sequence[Any] = ()) -> list[T]:
    """The first value of every row, as `kind` makes it."""
    return [kind(row[0]) for row in reads.all(sql, parameters)]


class ConnectionReads(Reads, Protocol):
    """Reads over a connection, for what needs the connection too."""

    @property
    def connection(self) -> Connection: ...


class Writes(Reads, Protocol):
    """A handle that can change rows, as of one moment: a host's transaction, or a held session without a
    host."""

    @property
    def now(self) -> float:
        """When it happens, in seconds since the epoch."""

    def execute(self, sql: str, parameters: Sequence[Any] = ...) -> None:
        """Run one statement."""

    def changed(self, sql: str, parameters: Sequence[Any] = ...) -> int:
        """Run one statement; returns the number of rows that it changed."""


class Queries:
    """A plain connection, which only asks. `Reads`.

    With the `path` of its database, an error of SQLite is raised as `StoreUnusable`.
    """

    def __init__(self, connection: Connection, path: Place | None = None) -> None:
        self.connection = connection
        self._path = path

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._ask(sql, parameters).fetchone()

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Every row."""
        rows: list[Any] = self._ask(sql, parameters).fetchall()
        return rows

    def _ask(self, sql: str, parameters: Sequence[Any]) -> Any:
        try:
            return self.connection.execute(sql, parameters)
        except sqlite3.DatabaseError as error:
            if self._path is None:
                raise
            raise unusable(self._path, error) from error


class Unfenced(Queries):
    """A plain connection that needs no fence, because the session has no host: a fork, a document read.
    `Writes`."""

    def __init__(self, connection: Connection, now: float) -> None:
        super().__init__(connection)
        self.now = now

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run one statement."""
        self.connection.execute(sql, parameters)

    def changed(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement; returns the number of rows that it changed."""
        return int(self.connection.execute(sql, parameters).rowcount)


# --- Watchkeeper's own folders, for their owner alone -------------------------------------------------------

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


LOCK_TIMEOUT_SECONDS = 30.0
ASK_SECONDS, URGENT_ASK_SECONDS = (0.0003, 0.002), (0.0001, 0.0003)
"""Seconds between two requests for the write lock. A process that asks more often gets it sooner. The urgent
values are for a person's command, and for a host that holds one."""
_PROBED_BYTES = 1 << 16
FULL_DISK_BYTES = 1 << 20
"""With less free space than this, an I/O error is taken for a full disk: SQLite says no more where it cannot
make shared memory."""


def read_only_uri(path: Path) -> str:
    """The URI under which SQLite opens a file read-only, whatever characters its name contains."""
    return f"file:{quote(str(path.absolute()))}?mode=ro"


def wal_bytes(path: Path) -> int:
    """How large the write-ahead log beside the file is; 0 if there is none. Opens nothing."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def _never_urgent() -> bool:
    return False


@contextmanager
def writing(
    connection: Connection,
    name: str,
    *,
    timeout_seconds: float | None = None,
    urgent: Callable[[], bool] = _never_urgent,
) -> Iterator[None]:
    """A transaction that holds the write lock from its start: committed at the end, rolled back on any
    exception.

    Args:
        name: prefix of its fault points, which end in `.before_commit` and `.after_commit`.
        timeout_seconds, urgent: see `begin_immediate`.

    Raises:
        sqlite3.OperationalError: still locked after `timeout_seconds`, the disk is full, …
    """
    with noting_system_errors(connection):
        begin_immediate(connection, timeout_seconds=timeout_seconds, urgent=urgent)
    try:
        with noting_system_errors(connection):
            yield
            reach(f"{name}.before_commit")
            connection.execute("COMMIT")
            reach(f"{name}.after_commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def begin_immediate(
    connection: Connection,
    *,
    timeout_seconds: float | None = None,
    urgent: Callable[[], bool] = _never_urgent,
) -> None:
    """Take the write lock, asking often: SQLite's own back-off sleeps up to 100 ms and loses to a busy host.

    `urgent`: whether to ask more often than others do, so as to be the next; looked at each time.

    Raises:
        sqlite3.OperationalError: still locked after `timeout_seconds` (by default `LOCK_TIMEOUT_SECONDS`).
    """
    retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), timeout_seconds, urgent)


def retry_while_busy(
    attempt: Any, timeout_seconds: float | None = None, urgent: Callable[[], bool] = _never_urgent
) -> Any:
    deadline = time.monotonic() + (LOCK_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds)
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*(URGENT_ASK_SECONDS if urgent() else ASK_SECONDS)))


def is_busy(error: BaseException) -> bool:
    """Whether SQLite failed because another connection holds a lock."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in (5, 6)
    return "locked" in str(error) or "busy" in str(error)


@contextmanager
def noting_system_errors(connection: Connection) -> Iterator[None]:
    """Within, an I/O error of SQLite gets the attribute `system_errno`: what the system said. SQLite's own code does not
    tell a disk that is full at `fsync` from one that is broken."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if _is_io_error(error) and isinstance(connection, sqlite3.Connection):
            error.system_errno = _system_errno(connection)  # type: ignore[attr-defined]
        raise


def _is_io_error(error: BaseException) -> bool:
    name = getattr(error, "sqlite_errorname", None)
    if name is None:  # of a backup
        return str(error) in ("disk I/O error", "unable to open database file")
    return str(name).startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN"))


def _system_errno(connection: Connection) -> int:
    """What `sqlite3_system_errno` says of a connection, which Python's module does not offer; 0 where it is not known."""
    if sys.implementation.name != "cpython":
        return 0
    import ctypes

    try:
        module = sys.modules["pysqlite3._sqlite3" if sqlite3.__name__.startswith("pysqlite3") else "_sqlite3"]
        ask = ctypes.CDLL(module.__file__).sqlite3_system_errno
    except (KeyError, AttributeError, OSError):
        return 0
    ask.argtypes = [ctypes.c_void_p]
    # SQLite's handle is the first field of the object, in every version of both modules.
    handle = ctypes.c_void_p.from_address(id(connection) + object.__basicsize__).value
    return int(ask(handle)) if handle else 0


@contextmanager
def clear_errors(path: Place) -> Iterator[None]:
    """Turn SQLite's and the system's errors into one line that says what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise unusable(path, error) from error
    except OSError as error:
        if not isinstance(path, Path):
            raise StoreUnusable(f"{path}: {reason_of(error)}") from error
        raise unusable_file(path, error) from error


def unusable(path: Place, error: Exception) -> StoreUnusable:
    """What to raise for an SQLite error on `path`: `StoreExhausted` where the machine ran out of
    something."""
    short_of = shortage(path, error)
    return StoreUnusable(explain(path, error)) if short_of is None else _exhausted(path, short_of)


def _exhausted(path: Place, short_of: Shortage) -> StoreExhausted:
    return StoreExhausted(f"{path}: {message_of(short_of)}", short_of)


def shortage(path: Place, error: Exception) -> Shortage | None:
    """The resource that ran out. SQLite itself reports only memory and, mostly, the disk."""
    fault = host_fault(error)
    if fault is not None:
        return fault.shortage
    if not isinstance(path, Path):
        return None
    if system_errno_of(error):
        return None  # the system said what it is
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith("SQLITE_IOERR"):
        if _free_bytes(path.parent) < FULL_DISK_BYTES:
            return Shortage.DISK
        if (refused := _refused_growth(path)) is not None:
            return refused
    return _refused_opening(path) if name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR_SHMOPEN")) else None


def _free_bytes(folder: Path) -> int:
    """What an ordinary user may still write where `folder` is."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return sys.maxsize
    return disk.f_bavail * disk.f_frsize


def _refused_opening(path: Path) -> Shortage | None:
    """What kept SQLite from opening a file that this user may read and write: most likely, too many open files."""
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        return None
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        fault = host_fault(error)
        return fault.shortage if fault is not None else None
    return Shortage.OPEN_FILES


def _refused_growth(path: Path) -> Shortage | None:
    """What keeps a file as long as the database's from growing where it is: a quota, or a limit of this process."""
    files = (path, path.with_name(f"{path.name}-wal"))
    try:
        offset = max((file.stat().st_size for file in files if file.exists()), default=0)
        probe = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError, AttributeError):  # not every system has files without a name
        return None
    try:
        end = offset + _PROBED_BYTES
        while offset < end:
            offset += os.pwrite(probe, bytes(end - offset), offset)
        os.fsync(probe)  # some file systems find room only now
    except OSError as error:
        fault = host_fault(error)
        return fault.shortage if fault is not None else None
    finally:
        os.close(probe)
    return None


def unusable_file(path: Path, error: OSError) -> StoreUnusable:
    fault = host_fault(error)
    if fault is not None:
        return _exhausted(path, fault.shortage)
    return StoreUnusable(f"{path}: {reason_of(error)}; choose another file with --db")


_OF_THE_SERVER = {
    "Connection refused": "no server is listening there; start PostgreSQL, or fix the address",
    "No such file or directory": "no server is running on this machine; start PostgreSQL, or specify its host",
    'for connection option "port"': "the port must be a number; use the form postgresql://HOST:5432/NAME",
    "password authentication failed": "the server rejected the user name or password; correct them",
    "no password supplied": "the server requires a password; set it in ~/.pgpass or PGPASSWORD",
    "could not translate host name": "no such host; fix the address",
    "failed to resolve host": "no such host; fix the address",
}
"""What libpq and psycopg say of a connection that fails, and what a person reads instead."""


def explain(path: Place, error: Exception) -> str:
    """One line for a user about an SQLite error on `path`."""
    text = str(error)
    if not isinstance(path, Path):
        known = next((words for part, words in _OF_THE_SERVER.items() if part in text), None)
        if known is not None and "connect" in text:
            return f"{path}: {known}"
        advice = "; check that the server is running and the address is correct" if "connect" in text else ""
        return f"{path}: {' '.join(text.split())}{advice}"
    if is_busy(error):
        return f"{path} is locked by another program; try again, or find the program with `wk doctor`"
    if "not a database" in text or "malformed" in text or "corrupt" in text:
        return f"{path} is damaged, or not a SQLite database ({text}); restore a backup, or choose another file with --db"
    if short_of := shortage(path, error):
        return str(_exhausted(path, short_of))
    if number := system_errno_of(error):
        text = f"{text} ({os.strerror(number)})"
    return f"{path}: {text}; run `wk doctor`, or choose another file with --db"


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
