"""A database on PostgreSQL, behind the interface of an SQLite connection.

Statements are written once, in the SQL that both databases know (`tests/core/store/test_portable_sql.py`), with
`?` for parameters. `translated` gives the text that PostgreSQL takes. What differs otherwise is here: the
connection, the tables' triggers, the fence with its lease, and errors, which are raised as those of `driver.sqlite3`.

A transaction of the writer is sent as a pipeline: statements whose result is not read wait for no answer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import re
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from watchkeeper.records.errors import MissingExtra, StoreUnusable, host_fault
from watchkeeper.store.driver import IN_LIST, Connection, ConnectionReads, Listed, plain, sqlite3
from watchkeeper.store.engine import Engine
from watchkeeper.store.place import DatabaseUrl
from watchkeeper.store.schema import BY_NAME, Table

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGresult

    from watchkeeper.store.search.index import MessageIndex

CONNECT_SECONDS = 10
PING_SECONDS = 2
"""How long a server has to say that it is up, after it has refused a connection."""
IDLE_IN_TRANSACTION_SECONDS = 2.0
"""A host that is stopped inside a transaction keeps the row of its session locked. The server ends its
transaction after so long."""
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3, "tcp_user_timeout": 5_000,
}  # fmt: skip
"""A machine that is gone is noticed within about five seconds: seconds, seconds, probes, milliseconds."""
RETRIED_SECONDS = 5.0
"""How long a reading of a connection that was lost is tried again."""
_REPEATABLE = re.compile(r"\s*(SELECT|WITH|BEGIN|SET)\b", re.IGNORECASE)
"""Statements that may run twice."""
UNFENCED_LOCK = 0x57_4B_50_52
"""The advisory lock of writers that hold no lease: one of them at a time, as SQLite's write lock has it."""
INTERRUPTED_SECONDS = 0.25
"""How often a pipeline that waits looks whether it is to stop."""
MOST_IDS = 256
"""How many ids of a table are reserved at a time, once a connection inserts many."""
SENT_AT_ONCE = 16
"""After so many statements of a pipeline the server gets them, and works while the next ones are made."""
STATEMENTS_KEPT = 1_000
"""How many prepared statements a connection keeps."""
LEASE_SECONDS = 10.0
"""How long a session stays its host's after the last commit. `WATCHKEEPER_LEASE_SECONDS` changes it."""


def lease_seconds() -> float:
    """How long a lease is, in seconds."""
    try:
        return max(1.0, float(os.environ.get("WATCHKEEPER_LEASE_SECONDS", LEASE_SECONDS)))
    except ValueError:
        return LEASE_SECONDS


# --- The fence and the lease -----------------------------------------------------------------------------------
#
# The lease is a time of the server's clock in the row of the session. Who claims a session raises its epoch, and
# no commit at an older epoch succeeds, whatever any clock says: the time only decides when others may claim.

_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
_UNTIL = f"{_NOW} + CAST(current_setting('watchkeeper.lease_seconds') AS double precision)"

EXPECTING_FENCE = (
    "WITH fenced AS (UPDATE sessions SET last_active = CASE WHEN last_active > ?1 THEN last_active ELSE ?1 END,"
    f" lease_until = {_UNTIL} WHERE id = ?2 AND lease_epoch = ?3 AND event_seq = ?4"
    f" AND lease_until > {_NOW} + CAST(current_setting('watchkeeper.lease_seconds') AS double precision) / 2"
    " RETURNING 1) SELECT 1 / count(*), CAST(pg_current_xact_id() AS text) FROM fenced"
)
"""`PostgresEngine.fence` for a host that knows its session's `event_seq` and does not wait for an answer: where the session is not as
it expects, the server divides by zero, and nothing that was sent after it is done. Half of the lease must be left:
what reaches the server later than that is refused, since its host may have stopped waiting."""
TAKE_LEASE = (
    "UPDATE sessions SET lease_epoch = lease_epoch + 1, host_pid = ?, host_name = ?,"
    f" lease_until = {_UNTIL} WHERE id = ? AND (lease_until IS NULL OR lease_until < {_NOW}) RETURNING lease_epoch"
)
EXTEND_LEASE = f"UPDATE sessions SET lease_until = {_UNTIL} WHERE id = ? AND lease_epoch = ?"
RELEASE_LEASE = "UPDATE sessions SET lease_until = NULL WHERE id = ? AND lease_epoch = ?"
LEASE_HOLDER = f"SELECT host_pid, host_name FROM sessions WHERE id = ? AND lease_until >= {_NOW}"
LEASE_HOLDERS = f"SELECT id, host_pid, host_name FROM sessions WHERE id {IN_LIST} AND lease_until >= {_NOW}"
LEASE_LEFT = f"SELECT lease_until, lease_until - {_NOW} FROM sessions WHERE id = ?"
WATCH = f"SELECT pg_advisory_lock_shared({UNFENCED_LOCK}, hashtext(?))"
IS_WATCHED = (
    f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = {UNFENCED_LOCK}"
    " AND CAST(objid AS bigint) = CAST(CAST(hashtext(?) AS bit(32)) AS bigint) AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1"
)


# --- Statements ------------------------------------------------------------------------------------------------

_PIECE = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\?(\d*)")
_OF_SQLITE = {
    "IN (SELECT value FROM json_each(?))": "= ANY(?)",
    "group_concat(line, char(10))": "string_agg(line, chr(10))",
    "json_array(": "json_build_array(",
    "AS line FROM": "::text AS line FROM",
    "json_group_array(value)": "coalesce(json_agg(value), '[]')::text",
    "BEGIN IMMEDIATE": "BEGIN",
    "bm25(facts_fts)": "f.id DESC",
}
"""What `driver` says for SQLite alone."""
_JOIN_IN_ORDER = re.compile(r"CROSS JOIN (\w+(?: \w+)?) ON")
"""A join whose order SQLite keeps; PostgreSQL knows better."""
_FACTS_FOUND = re.compile(r"JOIN facts_fts ON f\.id = facts_fts\.rowid WHERE facts_fts MATCH (\?\d*)")
_IS_NULL = re.compile(r"(\$\d+) IS (NOT )?NULL")


@lru_cache(maxsize=4096)
def translated(sql: str) -> str:
    """A portable statement as PostgreSQL takes it: parameters as `$1`."""
    for said, instead in _OF_SQLITE.items():
        sql = sql.replace(said, instead)
    sql = _FACTS_FOUND.sub(r"WHERE f.id IN (SELECT wk_facts_with(CAST(\1 AS json)))", sql)
    number = 0

    def numbered(match: re.Match[str]) -> str:
        nonlocal number
        if match[0][0] != "?":
            return match[0]
        if match[1]:
            return f"${match[1]}"
        number += 1
        return f"${number}"

    sql = _JOIN_IN_ORDER.sub(r"JOIN \1 ON", sql)
    sql = sql.replace(" AS INTEGER)", " AS bigint)")
    # The type of a parameter that is only compared with NULL cannot be inferred.
    return _IS_NULL.sub(r"\1::text IS \2NULL", _PIECE.sub(numbered, sql))


@lru_cache(maxsize=256)
def _with_id(sql: str) -> tuple[str, str]:
    """The table of an INSERT with one row of values, and the statement with the id as its last parameter."""
    found = _INSERT.fullmatch(sql)
    if found is None:
        raise ValueError(f"no INSERT of one row with values: {sql}")
    return found[
        "table"
    ], f"INSERT INTO {found['table']} ({found['columns']}, id) VALUES ({found['values']}, ?)"


@lru_cache(maxsize=4096)
def _takes_number(sql: str) -> bool:
    """Whether this inserts one row, without its id, into a table whose rows are numbered."""
    found = _INSERT.fullmatch(sql)
    return (
        found is not None
        and found["table"] in BY_NAME
        and " GENERATED " in _create_table(BY_NAME[found["table"]])
        and "id" not in (name.strip() for name in found["columns"].split(","))
    )


_INSERT = re.compile(
    r"INSERT INTO (?P<table>\w+) \((?P<columns>[^()]*)\)\s+VALUES \((?P<values>.*)\)", re.DOTALL
)


# --- Tables ----------------------------------------------------------------------------------------------------

_TYPES = {"TEXT": 'text COLLATE "C"', "INTEGER": "bigint", "REAL": "double precision", "BLOB": "bytea"}
_REFERENCES = re.compile(r" REFERENCES \w+ \(\w+\)")

_NEXT_NUMBER = """
CREATE FUNCTION wk_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF {when} THEN
    PERFORM pg_advisory_xact_lock({lock});
    SELECT coalesce(max({column}), 0) + 1 INTO NEW.{column} FROM {table}{among};
  END IF;
  RETURN NEW;
END $$"""
_TRIGGERS = (
    _NEXT_NUMBER.format(
        name="sessions_get_an_ordinal", table="sessions", column="ordinal", among="",
        lock=f"{UNFENCED_LOCK}, 1",
        when="NEW.ordinal IS NULL OR EXISTS (SELECT 1 FROM sessions WHERE ordinal = NEW.ordinal)",
    ),
    "CREATE TRIGGER sessions_get_an_ordinal BEFORE INSERT ON sessions"
    " FOR EACH ROW EXECUTE FUNCTION wk_sessions_get_an_ordinal()",
    _NEXT_NUMBER.format(
        name="task_dependencies_get_a_position", table="task_dependencies", column="position",
        among=" WHERE task_id = NEW.task_id", lock=f"{UNFENCED_LOCK}, hashtext(NEW.task_id)",
        when="NEW.position IS NULL",
    ),
    "CREATE TRIGGER task_dependencies_get_a_position BEFORE INSERT ON task_dependencies"
    " FOR EACH ROW EXECUTE FUNCTION wk_task_dependencies_get_a_position()",
    _NEXT_NUMBER.format(
        name="agents_get_an_ordinal", table="agents", column="ordinal",
        among=" WHERE session_id = NEW.session_id", lock=f"{UNFENCED_LOCK}, hashtext(NEW.session_id)",
        when="NEW.ordinal IS NULL",
    ),
    "CREATE TRIGGER agents_get_an_ordinal BEFORE INSERT ON agents"
    " FOR EACH ROW EXECUTE FUNCTION wk_agents_get_an_ordinal()",
    "CREATE FUNCTION wk_messages_are_immutable() RETURNS trigger LANGUAGE plpgsql AS $$"
    " BEGIN RAISE EXCEPTION 'messages are immutable' USING ERRCODE = 'integrity_constraint_violation'; END $$",
    "CREATE TRIGGER messages_are_immutable BEFORE UPDATE ON messages"
    " FOR EACH ROW EXECUTE FUNCTION wk_messages_are_immutable()",
    "CREATE FUNCTION wk_vectors_go_along() RETURNS trigger LANGUAGE plpgsql AS $$"
    " BEGIN DELETE FROM embeddings WHERE kind = TG_ARGV[0] AND item = OLD.id; RETURN NULL; END $$",
    "CREATE TRIGGER messages_take_their_vectors_along AFTER DELETE ON messages"
    " FOR EACH ROW EXECUTE FUNCTION wk_vectors_go_along('message')",
    "CREATE TRIGGER facts_take_their_vectors_along AFTER DELETE ON facts"
    " FOR EACH ROW EXECUTE FUNCTION wk_vectors_go_along('fact')",
)  # fmt: skip


def creation() -> Iterator[str]:
    """The statements that make the tables of an empty database, from the catalogue (`store.schema`)."""
    from watchkeeper.store.search import postgres_index

    for table in BY_NAME.values():
        yield _create_table(table)
        for statement in table.statements:
            if "INDEX" in statement.split("(")[0]:
                yield statement.replace("ifnull(", "coalesce(")
    yield from _TRIGGERS
    yield from postgres_index.CREATION
    yield "CREATE TABLE schema_version (version bigint NOT NULL)"
    yield "INSERT INTO message_index (id, indexed_through) VALUES (1, 0)"


def _create_table(table: Table) -> str:
    lines = []
    for line in table.definition.strip().split("\n"):
        words = _REFERENCES.sub("", line.strip(" ,")).split()
        if words[0] not in ("PRIMARY", "UNIQUE"):
            numbered = words[0] == "id" and words[1:4] == ["INTEGER", "PRIMARY", "KEY"] and len(words) == 4
            words[1] = _TYPES[words[1]]
            if numbered:
                words.insert(2, "GENERATED BY DEFAULT AS IDENTITY")
        lines.append(" ".join(words))
    return f"CREATE TABLE {table.name} ({', '.join(lines)})"


# --- The connection ------------------------------------------------------------------------------------------


class NamedRow(tuple[Any, ...]):
    """A row whose values are had by index or by name, as `sqlite3.Row`."""

    names: Mapping[str, int]

    def keys(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self.names)

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names[key] if isinstance(key, str) else key)


class PostgresCursor:
    """The result of a statement outside a pipeline."""

    def __init__(self, owner: PostgresConnection, cursor: psycopg.Cursor[Any], named: bool) -> None:
        self._owner = owner
        self._cursor = cursor
        self._named = named
        self._type: type[NamedRow] | None = None

    def fetchone(self) -> Any:
        """The first row that is left, or None."""
        with _clear_errors():
            return self._row(self._cursor.fetchone())

    def fetchall(self) -> list[Any]:
        with _clear_errors():
            rows = self._cursor.fetchall()
        return [self._row(row) for row in rows] if self._named else rows

    def fetchmany(self, size: int) -> list[Any]:
        with _clear_errors():
            return [self._row(row) for row in self._cursor.fetchmany(size)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def description(self) -> list[tuple[str, ...]] | None:
        columns = self._cursor.description
        return None if columns is None else [(column.name,) for column in columns]

    def _row(self, row: Any) -> Any:
        if row is None or not self._named:
            return row
        if self._type is None:
            columns = self._cursor.description or ()
            names = {column.name: place for place, column in enumerate(columns)}
            self._type = type("NamedRow", (NamedRow,), {"names": names})
        return self._type(row)


class _Answer:
    """What one statement of a pipeline gets from the server."""

    __slots__ = ("_at", "_pipeline", "lastrowid", "result")

    def __init__(self, pipeline: _Pipeline) -> None:
        self._pipeline = pipeline
        self._at = 0
        self.lastrowid: int | None = None
        """The id of the row that the statement inserts, if it was reserved for it."""
        self.result: PGresult | None = None

    def _received(self) -> PGresult:
        if self.result is None:
            self._pipeline.receive()
        assert self.result is not None
        return self.result

    @property
    def is_here(self) -> bool:
        """Whether the server has answered."""
        return self.result is not None

    def fetchone(self) -> tuple[Any, ...] | None:
        """The first row that is left, or None."""
        found = self._received()
        if self._at >= found.ntuples:
            return None
        self._at += 1
        return tuple(
            None
            if (data := found.get_value(self._at - 1, column)) is None
            else _READ.get(found.ftype(column), _text)(data)
            for column in range(found.nfields)
        )

    def fetchmany(self, size: int) -> list[Any]:
        return list(islice(iter(self.fetchone, None), size))

    def fetchall(self) -> list[Any]:
        return list(iter(self.fetchone, None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchone, None)

    @property
    def rowcount(self) -> int:
        return self._received().command_tuples or 0

    @property
    def description(self) -> list[tuple[str, ...]]:
        found = self._received()
        return [((found.fname(column) or b"").decode(),) for column in range(found.nfields)]


def _text(data: bytes) -> str:
    return data.decode()


def _sum(data: bytes) -> int | float:
    text = data.decode()
    return int(text) if "." not in text and "N" not in text else float(text)


_READ: dict[int, Callable[[bytes], Any]] = {
    16: lambda data: int(data == b"t"), 17: lambda data: bytes.fromhex(data[2:].decode()), 20: int, 21: int, 23: int,
    700: float, 701: float, 1700: _sum,
}  # fmt: skip
"""How values of a type, by its number in PostgreSQL, are read from their text; all others are text."""


def _sent(value: Any) -> tuple[int, bytes | None, int]:
    """A parameter: the number of its type (0: the server infers it), its data, and whether that is binary."""
    if value is None:
        return 0, None, 0
    if isinstance(value, str):
        try:
            data = value.encode()
        except UnicodeEncodeError:
            return 0, _storable(value).encode(), 0
        return 0, data if b"\0" not in data else _storable(value).encode(), 0
    if isinstance(value, int):  # a truth value is 0 or 1
        return 20, b"%d" % value, 0
    if isinstance(value, float):
        return 701, repr(value).encode(), 0
    if isinstance(value, list):
        return (1016 if value and isinstance(value[0], int) else 1009), _array(value), 0
    return 17, bytes(value), 1


def _array(values: list[Any]) -> bytes:
    quoted = (
        str(value)
        if isinstance(value, int)
        else '"' + _storable(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        for value in values
    )
    return ("{" + ",".join(quoted) + "}").encode()


_NAMES = count()
"""Numbers for names of prepared statements."""


class FenceFailed(sqlite3.OperationalError):
    """`EXPECTING_FENCE` did not find the session as it was expected."""


class _Pipeline:
    """Statements sent one after the other; the network is used now and then, when an answer is looked at, and at
    the end.

    psycopg's own pipeline asks the network at each statement, which took two thirds of a step's time.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], prepared: dict[tuple[str, tuple[int, ...]], bytes]
    ) -> None:
        self._pgconn = connection.pgconn
        self._prepared = prepared
        self._waiting: deque[_Answer] = deque()
        self._unsent = 0
        self._synced = False
        self._stop = threading.Event()
        self._pgconn.enter_pipeline_mode()

    def send(self, sql: str, values: Sequence[Any]) -> _Answer:
        dumped = [_sent(value) for value in values]
        types = tuple(oid for oid, _, _ in dumped)
        name = self._prepared.get((sql, types))
        if name is None:
            name = self._prepared[sql, types] = b"wk_%d" % next(_NAMES)
            self._pgconn.send_prepare(name, sql.encode(), types)
            self._waiting.append(_Answer(self))
        self._pgconn.send_query_prepared(
            name, [data for _, data, _ in dumped], [binary for _, _, binary in dumped]
        )
        answer = _Answer(self)
        self._waiting.append(answer)
        self._unsent += 1
        if self._unsent >= SENT_AT_ONCE:
            self._unsent = 0
            self._pgconn.flush()
        return answer

    def sync(self) -> None:
        """Let the server answer; nothing more is sent before `close`."""
        self._pgconn.pipeline_sync()
        self._synced = True
        self._pgconn.flush()

    def receive(self) -> None:
        """Wait for the answers of all that was sent.

        Raises:
            sqlite3.Error: of the first statement that failed; those after it were not run.
        """
        from psycopg.pq import ExecStatus

        pgconn, failed = self._pgconn, None
        ended = False
        with _clear_errors(), selectors.DefaultSelector() as selector:
            if not self._synced:
                pgconn.pipeline_sync()
            self._synced = False
            selector.register(pgconn.socket, selectors.EVENT_READ)
            while not ended:
                unsent = pgconn.flush() == 1
                selector.modify(
                    pgconn.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
                )
                selector.select(INTERRUPTED_SECONDS)
                if self._stop.is_set():
                    raise sqlite3.OperationalError("the server is not responding")
                pgconn.consume_input()
                while not ended and not pgconn.is_busy():
                    result = pgconn.get_result()
                    if result is None:
                        continue  # between two statements
                    if result.status == ExecStatus.PIPELINE_SYNC:
                        ended = True
                        break
                    answer = self._waiting.popleft()
                    answer.result = result
                    if failed is None and result.status == ExecStatus.FATAL_ERROR:
                        failed = result
        if failed is not None:
            self._prepared.clear()  # some of these may not have been prepared
            raise _error_of(failed)

    def interrupt(self) -> None:
        """Let a wait for answers end, from another thread."""
        self._stop.set()

    def close(self) -> None:
        """Leave the pipeline.

        Raises:
            sqlite3.Error: of a statement whose answer was not read.
        """
        try:
            if self._waiting:
                self.receive()
        finally:
            if self._pgconn.status == 0 and not self._waiting:
                self._pgconn.exit_pipeline_mode()


_DIVISION_BY_ZERO = "22012"


def _error_of(result: PGresult) -> Exception:
    from psycopg.pq import DiagnosticField

    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    line = _line((result.error_message or b"").decode("utf-8", "replace"), state)
    kind: type[Exception] = sqlite3.DatabaseError
    if state == _DIVISION_BY_ZERO:
        kind = FenceFailed
    elif state[:2] == "23":
        kind = sqlite3.IntegrityError
    elif state[:2] in ("08", "25", "40", "53", "55", "57", "58", "XX"):
        kind = sqlite3.OperationalError
    return kind(line)


class _ReservedIds:
    """Ids that a connection has for new rows of one table."""

    def __init__(self) -> None:
        self.left: list[int] = []
        """The next one last."""
        self.block = 4
        """How many were asked for at a time."""
        self.asked: Any = None
        """The answer that brings more."""

    def take(self) -> None:
        """Add those that were asked for; none if the pipeline failed."""
        asked, self.asked = self.asked, None
        self.left[:0] = sorted((row[0] for row in asked.fetchall()), reverse=True)


class PostgresEngine(Engine):
    """A database of PostgreSQL."""

    fence = (
        "UPDATE sessions SET last_active = CASE WHEN last_active > ?1 THEN last_active ELSE ?1 END,"
        f" lease_until = CASE WHEN lease_epoch = 0 THEN lease_until ELSE {_UNTIL} END"
        " WHERE id = ?2 AND lease_epoch = ?3 RETURNING event_seq, CAST(pg_current_xact_id() AS text)"
    )
    """It extends the lease, too."""
    lease_is_in_row = True
    no_vectors = "PostgreSQL databases do not store vectors"

    def index(self, reads: ConnectionReads) -> MessageIndex:
        from watchkeeper.store.search.postgres_index import PostgresIndex

        return PostgresIndex(reads)

    def now(self, connection: Connection) -> float:
        return float(connection.execute(f"SELECT {_NOW}").fetchone()[0])

    def sizes(self, connection: Connection) -> tuple[int, int]:
        # A server does not tell how much of its files is free.
        size = "SELECT CAST(pg_database_size(current_database()) AS bigint)"
        return connection.execute(size).fetchone()[0], 0

    def lease_is_ending(self, silent_seconds: float) -> tuple[str, tuple[float, ...]]:
        return f"(lease_until IS NULL OR lease_until < {_NOW} + ?)", (
            max(0.0, lease_seconds() - silent_seconds),
        )

    def free_lease(self, connection: Connection, session_id: str, epoch: int, pid: int) -> None:
        sql = "UPDATE sessions SET lease_until = NULL WHERE id = ? AND lease_epoch = ? AND host_pid = ?"
        connection.execute(sql, (session_id, epoch, pid))

    def claim(self, connection: Connection, session_id: str, file: Path) -> Callable[[], None] | None:
        # An advisory lock, which ends with the worker's connection.
        lock = f"({UNFENCED_LOCK + 1}, hashtext(?))"
        if not connection.execute(f"SELECT pg_try_advisory_lock{lock}", (session_id,)).fetchone()[0]:
            return None

        def release() -> None:
            with contextlib.suppress(Exception):  # a lost connection has released it
                connection.execute(f"SELECT pg_advisory_unlock{lock}", (session_id,)).fetchone()

        return release


class PostgresConnection:
    """One connection, used as one of SQLite: by one thread at a time.

    A connection that the server or the network cut is opened again by the next statement outside a
    transaction. Within one, the transaction fails as a whole.
    """

    engine = PostgresEngine()

    def __init__(self, url: DatabaseUrl, *, read_only: bool = False) -> None:
        self.url = url
        self.row_factory: Any = None
        self._read_only = read_only
        self._pipeline: _Pipeline | None = None
        self._begins = False
        """A transaction begins with the next statement."""
        self._ending: _Pipeline | None = None
        """Holds a COMMIT whose answer was not waited for."""
        self._ahead: dict[tuple[str, tuple[Any, ...]], PostgresCursor] = {}
        self._prepared: dict[tuple[str, tuple[int, ...]], bytes] = {}
        """The statements that pipelines have prepared: SQL and types of parameters → name."""
        self._ids: dict[str, _ReservedIds] = {}
        """By table."""
        with _clear_errors():
            self._connection: psycopg.Connection[Any] = _connect(url, read_only)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> PostgresCursor:
        """Run a statement."""
        if sql == "BEGIN IMMEDIATE":
            self.execute("BEGIN")
            return self.execute(f"SELECT pg_advisory_xact_lock({UNFENCED_LOCK})")
        if self._ending is not None:
            self._settle()
        values = [list(value.values) if type(value) is Listed else value for value in parameters]
        if self._read_only and self._pipeline is None:
            answer = self._answer_of_viewer(sql, parameters)
            if answer is not None:
                return answer
        if self._pipeline is not None:
            with _clear_errors():
                if _takes_number(sql):
                    return self._insert(sql, values)
                return cast(PostgresCursor, self._pipeline.send(translated(sql), values))
        if sql == "ROLLBACK":
            self._prepared.clear()  # psycopg deallocates all statements
        deadline = time.monotonic() + RETRIED_SECONDS
        for wait_seconds in reconnections():
            inside = self.in_transaction
            try:
                with _clear_errors():
                    if not inside:
                        self._open_again()
                    return PostgresCursor(
                        self, self._run(translated(sql), values), self.row_factory is not None
                    )
            except sqlite3.OperationalError:
                again = not inside and self.is_closed and _REPEATABLE.match(sql)
                if not again or time.monotonic() > deadline:
                    raise
                time.sleep(wait_seconds)
        raise AssertionError("unreachable")  # the waits never end

    def ask_ahead(self, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
        """Ask several things in one round trip; `execute` then has the answer to each of them, once."""
        begins, inside = self._begins, self.in_transaction
        self._ahead = {}
        try:
            with self.pipelined():
                self._begin_now()
                ahead = {(sql, tuple(values)): self.execute(sql, values) for sql, values in statements}
        except sqlite3.OperationalError:
            if inside or not self.is_closed:
                raise
            self._begins = begins  # the connection was lost: each is asked by itself, on a new one
        else:
            self._ahead = ahead

    def _answer_of_viewer(self, sql: str, parameters: Sequence[Any]) -> PostgresCursor | None:
        """What a connection that only reads need not ask now: an answer that is here already, or the begin of a
        transaction, which goes with its first statement."""
        if self.row_factory is not None:
            return None
        if sql == "BEGIN":
            self._begins = True
            return PostgresCursor(self, self._connection.cursor(), named=False)
        found = self._ahead.pop((sql, tuple(parameters)), None) if self._ahead else None
        if found is not None:
            return found
        if sql in ("COMMIT", "ROLLBACK"):
            self._ahead.clear()
            if self._begins:  # nothing was asked in between
                self._begins = False
                return PostgresCursor(self, self._connection.cursor(), named=False)
            self._end()
            return PostgresCursor(self, self._connection.cursor(), named=False)
        if self._begins:
            with self.pipelined():
                self._begin_now()
                return self.execute(sql, parameters)
        return None

    def _end(self) -> None:
        """End a transaction that only reads, without waiting for the answer."""
        if self.in_transaction:
            with _clear_errors():
                self._ending = _Pipeline(self._connection, self._prepared)
                self._ending.send("ROLLBACK", ())
                self._ending.sync()

    def _settle(self) -> None:
        """Take the answer to what ended the last transaction."""
        ending, self._ending = self._ending, None
        if ending is not None:
            try:
                with contextlib.suppress(sqlite3.Error), _clear_errors():
                    ending.close()
            finally:
                if self._connection.pgconn.pipeline_status != 0:
                    self._connection.close()

    def _begin_now(self) -> None:
        if self._begins:
            self._begins = False
            assert self._pipeline is not None
            self._pipeline.send("BEGIN", ())

    def _run(self, sql: str, values: Sequence[Any]) -> psycopg.Cursor[Any]:
        cursor = self._connection.cursor()
        try:
            return cursor.execute(sql, values)
        except (UnicodeEncodeError, _data_error()):  # a NUL or a lone surrogate, which no text there holds
            stored = [_storable(value) if isinstance(value, str) else value for value in values]
            if stored == list(values):
                raise
            return cursor.execute(sql, stored)

    def _open_again(self) -> None:
        """Connect again if the connection was lost."""
        if self._connection.closed:
            self._connection = _connect(self.url, self._read_only)
            self._ids.clear()
            self._prepared.clear()

    def _insert(self, sql: str, parameters: Sequence[Any]) -> PostgresCursor:
        """Run an INSERT of one row with values. Its `lastrowid` is reserved beforehand: no answer is waited for. All
        rows that a connection inserts into a table have such ids, so they grow."""
        table, with_id = _with_id(sql)
        number = self._next_id(table)
        made: Any = self.execute(with_id, (*parameters, number))
        made.lastrowid = number
        return cast(PostgresCursor, made)

    def _next_id(self, table: str) -> int:
        """The id of a new row. In a pipeline more are asked for before the last one is taken."""
        ids = self._ids.setdefault(table, _ReservedIds())
        if ids.asked is not None and (not ids.left or ids.asked.is_here):
            ids.take()
        if not ids.left:
            self._ask_for_ids(table, ids)
            ids.take()
        elif self._pipeline is not None and ids.asked is None and 2 * len(ids.left) <= ids.block:
            self._ask_for_ids(table, ids)
        return ids.left.pop()

    def _ask_for_ids(self, table: str, ids: _ReservedIds) -> None:
        ids.block = min(MOST_IDS, 2 * ids.block)
        ids.asked = self.execute(
            "SELECT nextval(pg_get_serial_sequence(?, 'id')) FROM generate_series(1, ?)", (table, ids.block)
        )

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of the rows, in one pipeline."""
        with self.pipelined():
            for row in rows:
                self.execute(sql, row)

    def cursor(self) -> PostgresConnection:
        """What runs statements one after the other: the connection itself."""
        return self

    @contextlib.contextmanager
    def pipelined(self) -> Iterator[None]:
        """Within, a statement waits for no answer until one is looked at. Errors come then, or at the end."""
        if self._pipeline is not None:
            yield
            return
        self._settle()
        with _clear_errors():
            self._open_again()
            pipeline = self._pipeline = _Pipeline(self._connection, self._prepared)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                pipeline.close()
            raise
        else:
            with _clear_errors():
                pipeline.close()
        finally:
            self._pipeline = None
            for ids in self._ids.values():
                if ids.asked is not None:
                    if ids.asked.is_here:
                        ids.take()
                    ids.asked = None
            if self._connection.pgconn.pipeline_status != 0:
                self._connection.close()  # answers are missing: the transaction ends with the connection

    def interrupt(self) -> None:
        """Let a pipeline that waits for the server fail, from another thread."""
        pipeline = self._pipeline  # read once: its own thread ends it at any moment
        if pipeline is not None:
            pipeline.interrupt()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, failed or not."""
        self._settle()
        status = self._connection.info.transaction_status
        return not self._connection.closed and status.name in ("INTRANS", "INERROR", "ACTIVE")

    @property
    def is_closed(self) -> bool:
        return bool(self._connection.closed)

    def close(self) -> None:
        self._ending = None
        self._connection.close()

    def __enter__(self) -> PostgresConnection:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """Raise the errors of psycopg as those of `driver.sqlite3`, in one line."""
    import psycopg

    try:
        yield
    except psycopg.IntegrityError as error:
        raise sqlite3.IntegrityError(_line(str(error), error.sqlstate)) from error
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        raise sqlite3.OperationalError(_line(str(error), error.sqlstate)) from error
    except psycopg.Error as error:
        raise sqlite3.DatabaseError(_line(str(error), error.sqlstate)) from error


def connect(url: DatabaseUrl, *, read_only: bool = False) -> Connection:
    """A connection to a database of PostgreSQL, with the interface of one of SQLite.

    Raises:
        MissingExtra: psycopg is not installed.
        sqlite3.OperationalError: no server answers, or it refuses.
    """
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        if host_fault(error) is not None:
            raise
        raise MissingExtra("a PostgreSQL database", "postgres") from None
    return cast(Connection, PostgresConnection(url, read_only=read_only))


def await_server(url: DatabaseUrl, on_wait: Callable[[str], None]) -> None:
    """Wait until the server answers. `on_wait` is called with the reason, once, where it does not at first.

    Attempts run in a thread, so that a signal ends the wait at once.

    Raises:
        sqlite3.OperationalError: it answers, and refuses: the password, the role, the database.
    """
    answers: queue.Queue[BaseException | str | None] = queue.Queue()

    def ask() -> None:
        refusals = 0
        for wait_seconds in reconnections():
            try:
                connect(url, read_only=True).close()
            except sqlite3.OperationalError as error:
                if _is_away(url, error):
                    refusals = 0
                    answers.put(str(error))
                elif refusals:
                    answers.put(error)
                    return
                else:
                    refusals = 1  # unless it came up since: the next attempt says so
            except BaseException as error:
                answers.put(error)
                return
            else:
                answers.put(None)
                return
            time.sleep(wait_seconds if refusals == 0 else 0)

    threading.Thread(target=ask, name="watchkeeper-await-server", daemon=True).start()
    said = False
    while True:
        try:
            answer = answers.get(timeout=None if said else PING_SECONDS)
        except queue.Empty:
            answer = "no answer yet"
        if answer is None:
            return
        if isinstance(answer, BaseException):
            raise answer
        if not said:
            said = True
            on_wait(answer)


def _is_away(url: DatabaseUrl, error: sqlite3.OperationalError) -> bool:
    """Whether a connection failed since no server answers, or it is starting or stopping."""
    import psycopg
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn, Ping

    if isinstance(error.__cause__, psycopg.errors.ConnectionTimeout):
        return True
    answer = PGconn.ping(make_conninfo(url.dsn, connect_timeout=PING_SECONDS).encode())
    return answer in (Ping.NO_RESPONSE, Ping.REJECT)


def versions(connection: Any) -> tuple[str, int]:
    """The version of the server, as it says it, and that of the schema."""
    row = connection.execute(
        "SELECT current_setting('server_version'), version FROM schema_version"
    ).fetchone()
    return str(row[0]), int(row[1])


def ask_ahead(connection: object, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
    """Ask a server several things in one round trip; each is then answered when it is asked. Nothing on SQLite."""
    if isinstance(connection, PostgresConnection):
        connection.ask_ahead(statements)


def is_lost(connection: object) -> bool:
    """Whether the connection to the server is gone."""
    return isinstance(connection, PostgresConnection) and connection.is_closed


def status_of(connection: Connection, number: str) -> str:
    """What became of a transaction: `committed`, `aborted` or `in progress`."""
    row = connection.execute("SELECT pg_xact_status(CAST(? AS xid8))", (number,)).fetchone()
    return str(row[0])


def reconnections() -> Iterator[float]:
    """Seconds to wait before each attempt to reach the server again: longer and longer, without end."""
    wait = 0.02
    while True:
        yield wait * random.uniform(0.5, 1.0)
        wait = min(1.0, 2 * wait)


def pipelined(connection: object) -> contextlib.AbstractContextManager[None]:
    """Within, statements of a connection to PostgreSQL wait for no answer until it is looked at."""
    return connection.pipelined() if isinstance(connection, PostgresConnection) else contextlib.nullcontext()


def _connect(url: DatabaseUrl, read_only: bool) -> psycopg.Connection[Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import tuple_row

    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # a lost connection is said by who uses it
    settings = {
        "watchkeeper.lease_seconds": lease_seconds(),
        "idle_in_transaction_session_timeout": 0 if read_only else int(IDLE_IN_TRANSACTION_SECONDS * 1000),
        "default_transaction_read_only": "on" if read_only else "off",
        "default_transaction_isolation": "repeatable\\ read" if read_only else "read\\ committed",
    }
    given = str(conninfo_to_dict(url.dsn).get("options") or "")
    connection = psycopg.connect(
        url.dsn,
        options=" ".join([given, *(f"-c {name}={value}" for name, value in settings.items())]).strip(),
        autocommit=True,
        cursor_factory=psycopg.RawCursor,
        row_factory=tuple_row,
        prepare_threshold=1,
        connect_timeout=CONNECT_SECONDS,
        application_name="watchkeeper",
        **KEEPALIVES,
    )
    connection.prepared_max = STATEMENTS_KEPT
    _adapt(connection)
    return connection


def _adapt(connection: psycopg.Connection[Any]) -> None:
    """Give values the types that they have in SQLite: every integer is 64 bits, truth is 0 or 1, sums are
    numbers."""
    from psycopg.adapt import Dumper, Loader
    from psycopg.types.numeric import Int8Dumper

    class Truth(Dumper):
        oid = 20

        def dump(self, obj: Any) -> bytes:
            return b"1" if obj else b"0"

    class ReadTruth(Loader):
        def load(self, data: Any) -> int:
            return int(bytes(data) == b"t")

    class ReadSum(Loader):
        def load(self, data: Any) -> int | float:
            text = bytes(data).decode()
            return int(text) if "." not in text and "N" not in text else float(text)

    adapters = connection.adapters
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(bool, Truth)
    adapters.register_loader("bool", ReadTruth)
    adapters.register_loader("numeric", ReadSum)


def _data_error() -> type[Exception]:
    import psycopg

    return psycopg.DataError


def _storable(value: str) -> str:
    """A text as PostgreSQL can hold it, which knows no NUL."""
    return plain(value).replace("\x00", "\ufffd")


def _line(said: str, state: str | None) -> str:
    """What the server said, on one line. It names no password: libpq's messages contain none."""
    line = " ".join(said.split()) or "the server gave no reason"
    return f"this role is read-only; use one with write access ({line})" if state in _MAY_NOT else line


_MAY_NOT = ("42501", "25006")
"""What the server says to a role without the privilege, and in a transaction that only reads."""


def prepare(connection: Connection, url: DatabaseUrl, version: int) -> None:
    """Make the tables of an empty database; several processes may do so at once.

    Raises:
        StoreUnusable: the tables are of another version of Watchkeeper.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("SELECT to_regclass('schema_version') IS NULL").fetchone()[0]:
            for statement in creation():
                connection.execute(statement)
            connection.execute("INSERT INTO schema_version (version) VALUES (?)", (version,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    check_version(connection, url, version)


def check_version(connection: Connection, url: DatabaseUrl, version: int) -> None:
    """Refuse tables of another version.

    Raises:
        StoreUnusable: one line that says what to do.
    """
    if connection.execute("SELECT to_regclass('schema_version') IS NULL").fetchone()[0]:
        raise StoreUnusable(
            f"{url} has no Watchkeeper tables yet; start a run there with `wk run` or `wk demo`"
        )
    found = int(connection.execute("SELECT version FROM schema_version").fetchone()[0])
    if found > version:
        raise StoreUnusable(
            f"{url} was written by a newer Watchkeeper (schema {found}, this version supports {version}); upgrade Watchkeeper"
        )
    if found < version:
        raise StoreUnusable(
            f"{url} has schema {found}; this version needs {version} and cannot migrate PostgreSQL databases."
            " Export the sessions with the earlier version, and import them into a new database"
        )
