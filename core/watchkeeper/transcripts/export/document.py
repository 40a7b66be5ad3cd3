"""The JSON form of a session: one document, written as it is read, a row a line; and read back by `import_export`, which
writes a session from a file into a database.

The file is not trusted. The import reads it twice: first to check that it is complete and fits, then to write
it, in transactions so short that hosts of other sessions never wait long. Until the session is complete it is
hidden like a deleted one. The next import, or `wk delete --prune`, removes what an interrupted import left.

An imported session is inert: its origin is marked (`INERT`). People can view it, export it and start
a new run from it, but it cannot be driven, and other sessions do not recall its facts.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from watchkeeper.records import states
from watchkeeper.records.errors import BadInput, StoreUnusable, reason_of
from watchkeeper.records.messages import ObservationKind
from watchkeeper.records.readers import EXPORT_MARK
from watchkeeper.records.redact import Redactor
from watchkeeper.store import artifacts, database, documents, driver, sessions
from watchkeeper.store.driver import Connection, Queries, Unfenced, decode, encode, plain, sqlite3
from watchkeeper.store.engine import index_of
from watchkeeper.store.imports import totals_gaps
from watchkeeper.store.library import BEING_PURGED, in_short_transactions, without_host
from watchkeeper.store.place import Place
from watchkeeper.store.prune import purge_rows
from watchkeeper.store.schema import NUMBERS, NUMBERS_IN_EVENTS, SESSIONS, TABLES, Table
from watchkeeper.transcripts.files import EXPORT_FORMAT

# --- Which tables make up a session, and what each of their columns is: the schema of the JSON form -------
#
# (docs/export-format.md).

VERSION = 1
"""Raised when a reader of an earlier version would misread a document."""

INERT = EXPORT_MARK
"""Comes before origin and source of an imported session, and before the workspace of its facts: what a file
says of itself neither runs here nor speaks in later sessions, and no log is added to it. Taken off again when
such a session is exported."""
INERT_OF_SESSION = ("origin", "source")

EXPORTED = tuple(table for table in TABLES if table.exported)
"""The tables whose rows a document has, in its order (see `store.schema`); after them, the artifacts."""


# --- A session's rows as JSON values, one at a time: however long the session, one row is in memory -------

Redact = Callable[[Any], Any]

_REFERENCE = re.compile(r"(?<=artifact://sha256/)[0-9a-f]{64}")


class ExportRows:
    """The rows of one session as a document has them.

    Args:
        redact: takes secrets out of a JSON value (`records.redact.Redactor`); None leaves them in.
        renamed: digests of artifacts that have others without their secrets (see `Artifacts`).
    """

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        redact: Redact | None = None,
        renamed: dict[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self.session_id = session_id
        self._redact = redact or (lambda value: value)
        self._renamed = renamed or {}
        self._inert = sessions.require(Queries(connection), session_id).origin.startswith(INERT)

    def session(self) -> str:
        """The session's own row, as JSON text."""
        return next(self.lines(SESSIONS))

    def lines(self, table: Table) -> Iterator[str]:
        """Each row of a table as JSON text on one line, in the order in which they were written."""
        for row in documents.rows(self._connection, table, self.session_id):
            yield self._line(table, row)

    def count(self, table: Table) -> int:
        """How many rows a table has of this session."""
        return documents.count(self._connection, table, self.session_id)

    def _line(self, table: Table, row: Any) -> str:
        plain = len(table.columns) - len(table.json)
        values = dict(zip(table.columns, tuple(row)[:plain], strict=False))
        if self._inert:
            for name in {"sessions": INERT_OF_SESSION, "facts": ("workspace",)}.get(table.name, ()):
                if values[name] is not None:
                    values[name] = values[name].removeprefix(INERT)
        for name in table.text:
            values[name] = self._redact(values[name])
        line = encode(values)
        for name, stored in zip(table.json, tuple(row)[plain:], strict=True):
            # What holds no secret is written as it is stored: it is JSON already.
            line = f'{line[:-1]},"{name}":{self._json(table, name, stored)}}}'
        if self._renamed:
            line = _REFERENCE.sub(lambda match: self._renamed.get(match[0], match[0]), line)
            if table.name == "outputs":
                line = line.replace(
                    f'"digest":"{values["digest"]}"',
                    f'"digest":"{self._renamed.get(values["digest"], values["digest"])}"',
                )
        return line

    def _json(self, table: Table, name: str, stored: str | None) -> str:
        if stored is None:
            return "null"
        try:
            value = decode(stored)
        except ValueError as error:
            raise StoreUnusable(
                f"{table.name}.{name} of session {self.session_id} contains invalid JSON ({error}); restore"
                " a backup"
            ) from None
        clean = self._redact(value)
        return stored if clean is value else encode(clean)


# --- The artifacts that a session leads to: what its agents saved, and whatever its rows point at, one through ---
#
# another.

_ARTIFACT_REFERENCE = re.compile(r"artifact://sha256/([0-9a-f]{64})")
_PASSES = 20
"""How deep artifacts may point at each other and still be followed with their secrets taken out."""


class Artifacts:
    """A session's artifacts, read one at a time.

    Without its secrets an artifact has other bytes, and so another digest: `renamed` says which is which, and
    every reference is rewritten, so that an exported session holds together as well as the one in the
    database.

    Args:
        redact: makes a fresh function that takes secrets out; None leaves them in. (Looking ahead must not
            count.)
    """

    def __init__(
        self, connection: Connection, session_id: str, redact: Callable[[], Redact] | None = None
    ) -> None:
        self._connection = connection
        self.digests = self._reached(session_id)
        self.renamed: dict[str, str] = {}
        if redact is not None:
            self._rename(redact())

    def lines(self, redact: Redact | None = None) -> Iterator[str]:
        """Each artifact as JSON text: `digest`, `media_type`, and `text`, or `base64` where it is no text. In
        order of digest."""
        order = sorted(self.digests, key=lambda digest: self.renamed.get(digest, digest))
        written = ""
        for old in order:
            digest = self.renamed.get(old, old)
            if digest == written:
                continue
            written = digest
            media_type, data = self._read(old)
            clean = self._clean(media_type, data, redact)
            values: dict[str, Any] = {"digest": digest, "media_type": media_type}
            try:
                values["text"] = clean.decode()
            except UnicodeDecodeError:
                import base64

                values["base64"] = base64.b64encode(clean).decode()
            yield json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    def _reached(self, session_id: str) -> set[str]:
        found = artifacts.named_by(self._connection, session_id)
        for table in EXPORTED:
            for text in documents.texts_with_references(self._connection, table, session_id):
                found.update(_ARTIFACT_REFERENCE.findall(text))
        known: set[str] = set()
        waiting = sorted(found)
        while waiting:
            digest = waiting.pop()
            if digest in known or not self._is_stored(digest):
                continue
            known.add(digest)
            waiting += _ARTIFACT_REFERENCE.findall(self._read(digest)[1].decode("utf-8", "replace"))
        return known

    def _is_stored(self, digest: str) -> bool:
        return artifacts.size_of(Queries(self._connection), artifacts.ref_of(digest)) is not None

    def _read(self, digest: str) -> tuple[str, bytes]:
        try:
            found = artifacts.load(Queries(self._connection), digest)
        except StoreUnusable:
            raise StoreUnusable(
                f"{artifacts.ref_of(digest)} is damaged in the database; restore a backup, then export again"
            ) from None
        assert found is not None
        return found

    def _rename(self, redact: Redact) -> None:
        for _ in range(_PASSES):
            before = dict(self.renamed)
            for digest in self.digests:
                media_type, data = self._read(digest)
                clean = self._clean(media_type, data, redact)
                if clean is not data:
                    self.renamed[digest] = artifacts.digest(clean)
            if self.renamed == before:
                return

    def _clean(self, media_type: str, data: bytes, redact: Redact | None) -> bytes:
        """The bytes without secrets, and with the references that hold then; the very same object where
        nothing changes."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data
        clean = _without_secrets(media_type, text, redact) if redact is not None else text
        if self.renamed:
            clean = _ARTIFACT_REFERENCE.sub(
                lambda match: artifacts.ref_of(self.renamed.get(match[1], match[1])), clean
            )
        return data if clean == text else clean.encode("utf-8", "replace")


def _without_secrets(media_type: str, text: str, redact: Redact) -> str:
    if media_type == "application/json":
        # Value by value, so that what is left is still JSON.
        try:
            value = json.loads(text)
        except ValueError:
            pass
        else:
            clean = redact(value)
            return text if clean is value else json.dumps(clean, ensure_ascii=False, indent=1) + "\n"
    return str(redact(text))


def write_json(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one JSON document: every row of it, and every artifact that it leads to.

    The same session gives the same document, to the byte. The caller holds a read transaction.

    Args:
        redactor: makes one that takes secrets out; None leaves them in.

    Returns:
        How many secrets were taken out; None where they were left in.
    """
    artifacts = Artifacts(connection, session_id, redactor)
    clean = redactor() if redactor is not None else None
    rows = ExportRows(connection, session_id, clean, artifacts.renamed)
    redacted = "true" if clean is not None else "false"
    partial = "true" if any(totals_gaps(connection, session_id)) else "false"
    head = f'"format":"{EXPORT_FORMAT}",\n"version":{VERSION},\n"redacted":{redacted},\n"partial":{partial}'
    out.write(f'{{{head},\n"session":{rows.session()}')
    for table in EXPORTED:
        _write_list(out, table.name, rows.lines(table))
    _write_list(out, "artifacts", artifacts.lines(clean))
    out.write("\n}\n")
    return clean.count if clean is not None else None


def _write_list(out: TextIO, name: str, lines: Iterable[str]) -> None:
    out.write(f',\n"{name}":[')
    separator = "\n"
    for line in lines:
        out.write(separator)
        out.write(line)
        separator = ",\n"
    out.write("]")


# --- Reading a document ---------------------------------------------------------------------------------

PIECE = 1 << 18
"""Characters that are read from the file at a time."""
LARGEST_VALUE = 1 << 28
"""Characters of one element. No row of ours comes near; a file with a larger one is not our document."""

_NOT_SPACE = re.compile(r"[^ \t\n\r]")
_NEAR_END = 16
"""An error this close to the end of what was read may come from the cut, and not from the file."""


class ObjectReader:
    """Reads the JSON object in a text file of any size and layout, one member or list element at a time.

    `members` yields each name; the caller takes its value, with `value` or `elements`, before the next one.

    The streaming parser ijson is not used: its C back-end (3.6) replaces lone surrogates by question marks, and
    a hostile file (an integer of 5,000 digits) crashes the process; its Python back-end reads a tenth as fast.

    Raises:
        BadInput: from all of its methods, if the file does not hold such an object.
    """

    def __init__(self, file: TextIO, name: str) -> None:
        self._file = file
        self._name = name
        self._text = ""
        self._at = 0
        self._ended = False
        self._decoder = json.JSONDecoder(parse_constant=self._refuse)

    def members(self) -> Iterator[str]:
        """The names of the object's members, in order."""
        for name in self._items("{", "}"):
            if not isinstance(name, str):
                raise self._damaged("a key is not a string")
            self._expect(":")
            yield name
        if self._next():
            raise self._damaged("extra data after the end of the document")

    def elements(self) -> Iterator[Any]:
        """The elements of the list that comes next, one at a time."""
        return self._items("[", "]")

    def value(self) -> Any:
        """The whole value that comes next."""
        self._next()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                near_end = error.pos >= len(self._text) - _NEAR_END
                cut_off = near_end or error.msg.startswith("Unterminated string")
                if self._ended or not cut_off or len(self._text) - self._at > LARGEST_VALUE:
                    raise self._damaged(error.msg) from None
            except (ValueError, RecursionError) as error:
                raise self._damaged(str(error) or "nested too deeply") from None
            else:
                # A number so near the end (`1`, `1.`, `1e+`) may continue in the next piece.
                if self._ended or end < len(self._text) - 2:
                    self._at = end
                    return found
            self._read_more()

    def _items(self, opening: str, closing: str) -> Iterator[Any]:
        self._expect(opening)
        separator = ""
        while self._next() != closing:
            self._expect(separator)
            yield self.value()
            separator = ","
        self._at += 1

    def _next(self) -> str:
        """The next character that is not white space, which stays unread; empty at the end."""
        while True:
            found = _NOT_SPACE.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._read_more()

    def _expect(self, character: str) -> None:
        found = self._next()
        if character and found != character:
            raise self._damaged(
                f"expected {character!r} " + (f"before {found!r}" if found else "at the end of the file")
            )
        self._at += len(character)

    def _read_more(self) -> None:
        kept = self._text[self._at :]
        try:
            more = self._file.read(max(PIECE, len(kept)))
        except UnicodeDecodeError as error:
            raise self._damaged(f"not UTF-8 ({error.reason})") from None
        self._ended = not more
        self._text, self._at = kept + more, 0

    def _refuse(self, constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    def _damaged(self, why: str) -> BadInput:
        return BadInput(f"{self._name} is not a complete Watchkeeper export: {why}; export the session again")


_ALLOWED: Mapping[tuple[str, str], frozenset[str]] = {
    key: frozenset(str(value) for value in values)
    for key, values in {
        ("sessions", "status"): states.SessionStatus,
        ("tasks", "status"): states.TaskStatus,
        ("agents", "status"): states.AgentStatus,
        ("tool_calls", "status"): states.ToolCallStatus,
        ("model_calls", "status"): states.ModelCallStatus,
        ("commands", "status"): states.CommandStatus,
        ("approvals", "status"): states.ApprovalStatus,
        ("compactions", "status"): states.CompactionStatus,
        ("observations", "kind"): ObservationKind,
        ("messages", "role"): ("user", "assistant"),
        ("facts", "scope"): ("agent", "session", "workspace"),
    }.items()
}

"""What columns with a fixed set of values may hold: a file must not bring values that no reader expects."""

_LISTS: Mapping[str, type] = {
    **dict.fromkeys(
        ("task_queue", "inputs_ref", "expected_outputs", "artifact_refs", "sources", "tags"), str
    ),
    **dict.fromkeys(("citations", "replaces", "observations", "pins"), int),
    **dict.fromkeys(("content", "plan_graph_snapshot", "roles"), dict),
    "elided": list,
}
"""Columns that hold a JSON list, and the type of its elements."""
_OBJECTS = frozenset({"settings", "composition", "payload", "data", "old_values"})
_LARGEST_INTEGER = 1 << 62


class Columns:
    """Checks rows of a document against the declared column types of a table, and prepares them to insert."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self.table = table
        self._types = documents.declared(connection, table)

    def values(self, row: Any) -> dict[str, Any]:
        """The row's values by column, ready to bind.

        Raises:
            ValueError: the row does not fit the table; the message says why.
        """
        if not isinstance(row, dict):
            raise ValueError(f"a row of {self.table.name} is not an object")
        unknown = row.keys() - set(self.table.columns)
        if unknown:
            raise ValueError(f"{self.table.name} has no column {sorted(unknown)[0]!r}")
        return {name: self._value(name, row.get(name)) for name in self.table.columns}

    def _value(self, name: str, value: Any) -> Any:
        kind, required = self._types[name]
        where = f"{self.table.name}.{name}"
        if name in self.table.json and not (value is None and not required):
            if not _has_shape(name, value):
                raise ValueError(f"{where} has an invalid shape")
            return encode(value)
        if value is None:
            if required:
                raise ValueError(f"{where} is missing")
            return None
        if isinstance(value, bool):
            raise ValueError(f"{where} is a boolean")
        if kind == "TEXT" and isinstance(value, str):
            allowed = _ALLOWED.get((self.table.name, name))
            if allowed is not None and value not in allowed:
                raise ValueError(f"{where} has the invalid value {value[:40]!r}")
            return plain(value)
        if kind == "INTEGER" and isinstance(value, int) and abs(value) < _LARGEST_INTEGER:
            return value
        if kind == "REAL" and isinstance(value, int | float) and abs(value) < 1e300:
            return float(value)
        raise ValueError(f"{where} is not of type {kind.lower()}")


def _has_shape(name: str, value: Any) -> bool:
    if name in _OBJECTS:
        return isinstance(value, dict)
    if name not in _LISTS or (name == "content" and isinstance(value, str)):
        return True
    if not isinstance(value, list) or not all(isinstance(one, _LISTS[name]) for one in value):
        return False
    return name != "elided" or all([type(part) for part in one] == [int, int, int, str, int] for one in value)


_TABLES = {table.name: table for table in EXPORTED}
_SESSION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""A session's id becomes part of a file name (its lock)."""
_INDEX_SECONDS = 10.0
"""How long an import spends on the search index; the next host or viewer does the rest."""


@dataclass(frozen=True, slots=True)
class ImportedExport:
    """The result of an import."""

    session_id: str
    already_there: bool
    """The database already has a session of that id; nothing was written."""
    deleted: bool = False
    """That session was deleted, and can be restored."""
    messages: int = 0
    rows: int = 0
    """In all tables, including messages and artifacts."""


@dataclass(slots=True)
class _Survey:
    """What the first reading found, for the second."""

    session: dict[str, Any] = field(default_factory=dict)
    owners: dict[str, set[str]] = field(
        default_factory=lambda: {"agents": set(), "plans": set(), "tasks": set()}
    )
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and the largest number of each numbered table."""
    rows: int = 0


def import_export(database_path: Place, path: Path) -> ImportedExport:
    """Write the session in the file `path` (from `wk export --format json`) into a database.

    Ids are kept; row numbers are kept if they are free. A session of that id that the database already has is
    left unchanged.

    Raises:
        BadInput: the file is not an export, is damaged, comes from a newer program, or has ids that belong to
            another session in this database.
        DrivenElsewhere: another process imports the same session now.
        StoreUnusable: the database cannot be written.
    """
    connection = database.open_writable(database_path)
    try:
        survey = _survey(connection, path)
        with without_host(database_path, survey.session["id"], "import"):
            return _import(connection, path, survey)
    except sqlite3.IntegrityError as error:
        raise BadInput(
            f"{path} conflicts with this database ({error}); import it into a new one with --db"
        ) from error
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(driver.explain(database_path, error)) from error
    finally:
        connection.close()


def _import(connection: Connection, path: Path, survey: _Survey) -> ImportedExport:
    session_id = survey.session["id"]
    there = sessions.load(Queries(connection), session_id)
    if there is not None and there.deleted_at != BEING_PURGED:
        return ImportedExport(session_id, already_there=True, deleted=there.deleted_at is not None)
    if there is not None:
        in_short_transactions(connection, purge_rows(connection, session_id))
    _refuse_foreign(connection, survey, path)
    try:
        in_short_transactions(connection, _write(connection, path, survey))
    except BaseException:
        in_short_transactions(connection, purge_rows(connection, session_id))
        raise
    index_of(connection).index_until(seconds=_INDEX_SECONDS)
    count = documents.count(connection, _TABLES["messages"], session_id)
    return ImportedExport(session_id, already_there=False, messages=count, rows=survey.rows)


def _survey(connection: Connection, path: Path) -> _Survey:
    """Read the whole file once, and refuse it if it cannot be written."""
    found, header = _Survey(), dict[str, Any]()
    columns = {name: Columns(connection, table) for name, table in _TABLES.items()}
    for name, value in _members(path):
        if name == "session":
            found.session = _checked(path, Columns(connection, SESSIONS), value)
        elif name in _TABLES:
            table = _TABLES[name]
            for row in value:
                values = _checked(path, columns[name], row)
                found.rows += 1
                if name in found.owners:
                    found.owners[name].add(values["id"])
                if table.numbered:
                    low, high = found.numbers.get(name, (values["id"], values["id"]))
                    found.numbers[name] = (min(low, values["id"]), max(high, values["id"]))
        elif name == "artifacts":
            for row in value:
                _artifact(path, row)
                found.rows += 1
        else:
            header[name] = value
            _check_header(path, name, value)
    if header.keys() - {"partial"} != {"format", "version", "redacted"} or not found.session.get("id"):
        raise BadInput(
            f"{path} is not an export of a session; make one with `wk export SESSION --format json`"
        )
    if not _SESSION_ID.fullmatch(found.session["id"]):
        raise BadInput(f"{path} is damaged: invalid session id {found.session['id'][:40]!r}")
    if any(low < 1 for low, _ in found.numbers.values()):
        raise BadInput(f"{path} is damaged: the number of a row is not positive; export the session again")
    return found


def _check_header(path: Path, name: str, value: Any) -> None:
    if name == "version" and isinstance(value, int) and value > VERSION:
        raise BadInput(
            f"{path} was exported by a newer Watchkeeper (format {value}; this version supports {VERSION});"
            " upgrade Watchkeeper"
        )
    flag = isinstance(value, bool)
    known = {"format": value == EXPORT_FORMAT, "version": value == VERSION, "redacted": flag, "partial": flag}
    if not known.get(name, False):
        raise BadInput(f"{path} is not an export of a session: {name!r} is invalid")


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    """The document's members. Lists are iterators, to be consumed before the next member; the rest is whole.

    Raises:
        BadInput: the file cannot be read, or is not such a document.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            reader = ObjectReader(file, str(path))
            seen: set[str] = set()
            for name in reader.members():
                if name in seen:
                    raise BadInput(f"{path} is damaged: duplicate key {name!r}; export the session again")
                seen.add(name)
                yield name, reader.elements() if name in _TABLES or name == "artifacts" else reader.value()
    except OSError as error:
        raise BadInput(f"cannot read {path} ({reason_of(error)})") from None


def _checked(path: Path, columns: Columns, row: Any) -> dict[str, Any]:
    try:
        return columns.values(row)
    except ValueError as error:
        raise BadInput(f"{path} is damaged: {error}; export the session again") from None


def _artifact(path: Path, row: Any) -> tuple[str, str, bytes]:
    """Digest, media type and bytes of an artifact; the bytes match the digest."""
    try:
        digest, media_type, text = row["digest"], row["media_type"], row.get("text")
        data = text.encode() if text is not None else base64.b64decode(row["base64"], validate=True)
        if isinstance(media_type, str) and artifacts.digest(data) == digest:
            return digest, media_type, data
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError, binascii.Error):
        pass
    raise BadInput(f"{path} is damaged: an artifact does not match its digest; export the session again")


def _refuse_foreign(connection: Connection, survey: _Survey, path: Path) -> None:
    for name, ids in survey.owners.items():
        found = documents.owned_elsewhere(connection, name, ids, survey.session["id"])
        if found is not None:
            raise BadInput(
                f"{path}: {found[0]} in {name} already belongs to session {found[1]}; import the file into a new"
                " database with --db"
            )


def _write(connection: Connection, path: Path, survey: _Survey) -> Iterator[None]:
    """Write all rows, then make the session visible; yields after each row, where a transaction may end."""
    session_id = survey.session["id"]
    moved = {
        name: documents.distance_to_free(connection, name, *bounds) for name, bounds in survey.numbers.items()
    }
    session = dict(survey.session)
    for name in INERT_OF_SESSION:
        if session[name] is not None:
            session[name] = INERT + session[name].removeprefix(INERT)
    documents.insert(connection, SESSIONS, session)
    documents.hide(connection, session_id)
    yield
    store = Unfenced(connection, survey.session["created_at"])
    for name, value in _members(path):
        if name in _TABLES:
            table = _TABLES[name]
            columns = Columns(connection, table)
            for row in value:
                values = _checked(path, columns, row)
                _check_owner(path, table, values, survey)
                _settle(table, values, session_id, moved)
                documents.insert(connection, table, values)
                yield
        elif name == "artifacts":
            for row in value:
                _, media_type, data = _artifact(path, row)
                artifacts.put(store, data, media_type)
                yield
    documents.show(connection, session_id)
    yield


def _check_owner(path: Path, table: Table, values: dict[str, Any], survey: _Survey) -> None:
    if table.owner == "session":
        return
    if values[f"{table.owner}_id"] not in survey.owners[f"{table.owner}s"]:
        raise BadInput(
            f"{path} is damaged: a row of {table.name} has an unknown {table.owner}; export the session again"
        )


def _settle(table: Table, values: dict[str, Any], session_id: str, moved: dict[str, int]) -> None:
    """Make a row fit this database: mark it inert, and move its numbers."""
    if "session_id" in values:
        values["session_id"] = session_id
    if table.name == "facts":
        values["workspace"] = INERT + values["workspace"].removeprefix(INERT)
    if table.numbered:
        values["id"] += moved[table.name]
    for name in values.keys() & NUMBERS.keys():
        if values[name] is not None:
            values[name] += moved.get(NUMBERS[name], 0)
    if table.name == "state_changes" and values["table_name"] == "facts" and values["row_id"].isdecimal():
        values["row_id"] = str(int(values["row_id"]) + moved.get("facts", 0))
    if table.name == "events" and any(moved.values()):
        data = decode(values["data"])
        for name, other in NUMBERS_IN_EVENTS.items():
            if isinstance(data.get(name), int) and moved.get(other):
                values["data"] = encode(data := data | {name: data[name] + moved[other]})
