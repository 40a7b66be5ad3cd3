"""Reading the JSON form back: `import_export` writes a session from a file into a database.

The file is not trusted. It is read twice: first to see whether it is whole and fits, then to write it, in transactions
small enough that hosts which drive other sessions never wait long. The session's own row comes last, so that a session is
there whole or not at all; what an interrupted import left is cleared away by the next one.

What comes from a file is inert: its origin is marked (`tables.INERT`), so that it is looked at, exported and carried on
from, and neither driven nor recalled by other sessions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import BadInput
from watchkeeper.store import artifacts, database
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.encoding import decode, encode
from watchkeeper.transcripts.export.checking import Columns
from watchkeeper.transcripts.export.leftovers import clear_leftovers
from watchkeeper.transcripts.export.stream import ObjectReader
from watchkeeper.transcripts.export.tables import BY_NAME, FORMAT, INERT, NUMBERS_IN_EVENTS, SESSION, VERSION, Table

_ROWS_A_COMMIT = 1_000
_CHARACTERS_A_COMMIT = 4_000_000
_OWNERS = {"agent": ("agents", "agent_id"), "plan": ("plans", "plan_id"), "task": ("tasks", "task_id")}


@dataclass(frozen=True, slots=True)
class ImportedExport:
    """What became of a file."""

    session_id: str
    already_there: bool
    """The database has a session of that id, so nothing was written."""
    messages: int = 0
    rows: int = 0
    """Of all tables, messages and artifacts included."""


@dataclass(slots=True)
class _Survey:
    """What the first reading found."""

    session: dict[str, Any] = field(default_factory=dict)
    owners: dict[str, set[str]] = field(default_factory=lambda: {"agents": set(), "plans": set(), "tasks": set()})
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and the largest number of each numbered table."""


def is_export(path: Path) -> bool:
    """Whether a file begins as an exported session does (it may still be damaged further on)."""
    try:
        with path.open("rb") as file:
            return f'"format":"{FORMAT}"'.encode() in b"".join(file.read(1 << 16).split())
    except OSError:
        return False


def import_export(connection: Connection, path: Path) -> ImportedExport:
    """Write the session in the file `path` (of `wk export --format json`) into a database.

    `connection` may write (`store.database.open_writable`), and no transaction is open on it. Ids are kept; numbers of
    rows are kept where they are free. A session of that id that is there already is left as it is.

    Raises:
        BadInput: no export, a damaged one, one of a newer program, or ids that belong to another session here.
    """
    survey = _survey(connection, path)
    session_id = survey.session["id"]
    if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None:
        return ImportedExport(session_id, already_there=True)
    _refuse_foreign(connection, survey, path)
    clear_leftovers(connection, session_id)
    try:
        return _write(connection, path, survey)
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        clear_leftovers(connection, session_id)
        if isinstance(error, sqlite3.IntegrityError):
            raise BadInput(
                f"{path} does not fit into this database ({error}); import it into one of its own with --db"
            ) from error
        raise


def _survey(connection: Connection, path: Path) -> _Survey:
    """Read the whole file once, and refuse what cannot be written."""
    found, header = _Survey(), dict[str, Any]()
    columns = {name: Columns(connection, table) for name, table in BY_NAME.items()}
    for name, value in _members(path):
        if name == "session":
            found.session = _checked(path, Columns(connection, SESSION), value)
        elif name in BY_NAME:
            table = BY_NAME[name]
            for row in value:
                values = _checked(path, columns[name], row)
                if name in found.owners:
                    found.owners[name].add(values["id"])
                if table.numbered:
                    low, high = found.numbers.get(name, (values["id"], values["id"]))
                    found.numbers[name] = (min(low, values["id"]), max(high, values["id"]))
        elif name == "artifacts":
            for row in value:
                _artifact(path, row)
        else:
            header[name] = value
            _check_header(path, name, value)
    if header.keys() != {"format", "version", "redacted"} or not found.session.get("id"):
        raise BadInput(f"{path} is no export of a session; make one with `wk export SESSION --format json`")
    if any(low < 1 for low, _ in found.numbers.values()):
        raise BadInput(f"{path} is damaged: a row has no positive number; export the session again")
    return found


def _check_header(path: Path, name: str, value: Any) -> None:
    if name == "version" and isinstance(value, int) and value > VERSION:
        raise BadInput(f"{path} was exported by a newer Watchkeeper (form {value}, this program knows {VERSION}); upgrade it")
    known = {"format": value == FORMAT, "version": value == VERSION, "redacted": isinstance(value, bool)}
    if not known.get(name, False):
        raise BadInput(f"{path} is no export of a session: {name!r} is not as it should be")


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    """The document's members: lists as iterators, to be taken before the next; everything else whole.

    Raises:
        BadInput: no such file, or no such document.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            reader = ObjectReader(file, str(path))
            seen: set[str] = set()
            for name in reader.members():
                if name in seen:
                    raise BadInput(f"{path} is damaged: it has {name!r} twice; export the session again")
                seen.add(name)
                yield name, reader.elements() if name in BY_NAME or name == "artifacts" else reader.value()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror or error})") from None


def _checked(path: Path, columns: Columns, row: Any) -> dict[str, Any]:
    try:
        return columns.values(row)
    except ValueError as error:
        raise BadInput(f"{path} is damaged: {error}; export the session again") from None


def _artifact(path: Path, row: Any) -> tuple[str, str, bytes]:
    """Digest, media type and bytes; the bytes are what the digest says."""
    try:
        digest, media_type, text = row["digest"], row["media_type"], row.get("text")
        data = text.encode() if text is not None else base64.b64decode(row["base64"], validate=True)
        if isinstance(media_type, str) and artifacts.digest(data) == digest:
            return digest, media_type, data
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError, binascii.Error):
        pass
    raise BadInput(f"{path} is damaged: an artifact is not what its digest says; export the session again")


def _refuse_foreign(connection: Connection, survey: _Survey, path: Path) -> None:
    for name, ids in survey.owners.items():
        row = connection.execute(
            f"SELECT id, session_id FROM {name} WHERE id IN (SELECT value FROM json_each(?)) AND session_id <> ? LIMIT 1",  # noqa: S608
            (encode(sorted(ids)), survey.session["id"]),
        ).fetchone()
        if row is not None:
            raise BadInput(
                f"{path}: {row[0]} of its {name} is in session {row[1]} here; import it into a database of its own with --db"
            )


def _write(connection: Connection, path: Path, survey: _Survey) -> ImportedExport:
    session_id = survey.session["id"]
    moved = {name: _distance(connection, name, *bounds) for name, bounds in survey.numbers.items()}
    batch = _Batch(connection)
    rows = 0
    for name, value in _members(path):
        if name in BY_NAME:
            table = BY_NAME[name]
            columns = Columns(connection, table)
            for row in value:
                values = _checked(path, columns, row)
                _check_owner(path, table, values, survey)
                _settle(table, values, session_id, moved)
                batch.add(columns.sql, tuple(values.values()))
                rows += 1
        elif name == "artifacts":
            for row in value:
                _, media_type, data = _artifact(path, row)
                batch.put(data, media_type, survey.session["created_at"])
                rows += 1
    values = survey.session | {"origin": INERT + survey.session["origin"].removeprefix(INERT)}
    batch.add(Columns(connection, SESSION).sql, tuple(values.values()))
    batch.commit()
    count = connection.execute(
        "SELECT count(*) FROM agents a JOIN messages m ON m.agent_id = a.id WHERE a.session_id = ?", (session_id,)
    ).fetchone()[0]
    return ImportedExport(session_id, already_there=False, messages=count, rows=rows)


def _check_owner(path: Path, table: Table, values: dict[str, Any], survey: _Survey) -> None:
    if table.owner == "session":
        return
    owners, column = _OWNERS[table.owner]
    if values[column] not in survey.owners[owners]:
        raise BadInput(f"{path} is damaged: a row of {table.name} belongs to no {table.owner} in it; export the session again")


def _settle(table: Table, values: dict[str, Any], session_id: str, moved: dict[str, int]) -> None:
    """Make a row fit this database: whose it is, and what its numbers are here."""
    if "session_id" in values:
        values["session_id"] = session_id
    if table.name == "facts":
        values["workspace"] = INERT + values["workspace"].removeprefix(INERT)
    if table.numbered:
        values["id"] += moved[table.name]
    for name, other in table.points_at.items():
        if values[name] is not None:
            values[name] += moved.get(other, 0)
    if table.name == "events" and any(moved.values()):
        data = decode(values["data"])
        for name, other in NUMBERS_IN_EVENTS.items():
            if isinstance(data.get(name), int) and moved.get(other):
                values["data"] = encode(data := data | {name: data[name] + moved[other]})


def _distance(connection: Connection, table: str, low: int, high: int) -> int:
    """How far numbers must be moved so that all are free: not at all, if they are."""
    taken = connection.execute(f"SELECT 1 FROM {table} WHERE id BETWEEN ? AND ? LIMIT 1", (low, high)).fetchone()  # noqa: S608
    if taken is None:
        return 0
    return int(connection.execute(f"SELECT max(id) FROM {table}").fetchone()[0]) - low + 1  # noqa: S608


class _Batch:
    """Rows that wait for a transaction of their own. Also what `store.artifacts.put` writes through."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []
        self._characters = 0
        self.now = 0.0

    def add(self, sql: str, values: tuple[Any, ...]) -> None:
        self._waiting.append((sql, values))
        self._characters += sum(len(value) for value in values if isinstance(value, str | bytes))
        if len(self._waiting) >= _ROWS_A_COMMIT or self._characters >= _CHARACTERS_A_COMMIT:
            self.commit()

    def put(self, data: bytes, media_type: str, at: float) -> None:
        self.now = at
        artifacts.put(self, data, media_type)  # type: ignore[arg-type]

    def one(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        return self._connection.execute(sql, parameters).fetchone()

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        self.add(sql, parameters)
        return 1

    def commit(self) -> None:
        database.begin_immediate(self._connection)
        for sql, values in self._waiting:
            self._connection.execute(sql, values)
        self._connection.execute("COMMIT")
        self._waiting, self._characters = [], 0
