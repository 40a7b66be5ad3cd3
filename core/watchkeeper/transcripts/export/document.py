"""The JSON form: one document, written as it is read, a row a line."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.redact import Redactor
from watchkeeper.store import artifacts
from watchkeeper.store.driver import Connection, decode, encode
from watchkeeper.store.imports import missing_logs
from watchkeeper.store.schema import SESSIONS, TABLES, Table
from watchkeeper.transcripts.files import EXPORT_FORMAT

# --- Which tables make up a session, and what each of their columns is: the schema of the JSON form -------
#
# (docs/export.md).

VERSION = 1
"""Raised when a reader of an earlier version would misread a document."""

INERT = "export:"
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
        renamed: digests of artifacts that have others without their secrets (see `references.Artifacts`).
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
        origin = connection.execute("SELECT origin FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]
        self._inert = str(origin).startswith(INERT)

    def session(self) -> str:
        """The session's own row, as JSON text."""
        columns = ", ".join(SESSIONS.columns)
        row = self._connection.execute(
            f"SELECT {columns} FROM sessions WHERE id = ?",  # noqa: S608 - constants
            (self.session_id,),
        ).fetchone()
        return self._line(SESSIONS, row)

    def lines(self, table: Table) -> Iterator[str]:
        """Each row of a table as JSON text on one line, in the order in which they were written."""
        columns = ", ".join(table.columns)
        rows = self._connection.execute(
            f"SELECT {columns} FROM {table.name} WHERE {table.of_session} ORDER BY {table.in_order}",  # noqa: S608
            (self.session_id,),
        )
        for row in rows:
            yield self._line(table, row)

    def count(self, table: Table) -> int:
        """How many rows a table has of this session."""
        sql = f"SELECT count(*) FROM {table.name} WHERE {table.of_session}"  # noqa: S608 - constants
        return int(self._connection.execute(sql, (self.session_id,)).fetchone()[0])

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
                f"{table.name}.{name} of session {self.session_id} holds what is not JSON ({error}); restore"
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
        found: set[str] = set()
        for table in EXPORTED:
            if not table.with_ids:
                continue
            whole = " || ' ' || ".join(f"coalesce({name}, '')" for name in table.with_ids)
            rows = self._connection.execute(
                f"SELECT {whole} FROM {table.name} WHERE {table.of_session}"  # noqa: S608 - constants
                f" AND {whole} LIKE '%artifact://sha256/%'",
                (session_id,),
            )
            for row in rows:
                found.update(_ARTIFACT_REFERENCE.findall(row[0]))
        rows = self._connection.execute(
            "SELECT DISTINCT digest FROM outputs WHERE session_id = ?", (session_id,)
        )
        found.update(row[0] for row in rows)
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
        return (
            self._connection.execute("SELECT 1 FROM artifacts WHERE digest = ?", (digest,)).fetchone()
            is not None
        )

    def _read(self, digest: str) -> tuple[str, bytes]:
        row = self._connection.execute(
            "SELECT media_type, encoding, data FROM artifacts WHERE digest = ?", (digest,)
        ).fetchone()
        try:
            data = zlib.decompress(row[2]) if row[1] == "zlib" else bytes(row[2])
        except zlib.error:
            data = b""
        if artifacts.digest(data) != digest:
            from watchkeeper.records.errors import StoreUnusable

            raise StoreUnusable(
                f"{artifacts.ref_of(digest)} is damaged in the database; restore a backup, then export again"
            )
        return str(row[0]), data

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
    partial = "true" if missing_logs(connection, session_id) else "false"
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
