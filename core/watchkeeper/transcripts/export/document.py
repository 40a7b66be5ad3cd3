"""The JSON form: one document, written as it is read, a row a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TextIO

from watchkeeper.records.redact import Redactor
from watchkeeper.store.driver import Connection
from watchkeeper.store.transcripts import missing_logs
from watchkeeper.transcripts.export.references import Artifacts
from watchkeeper.transcripts.export.rows import SessionRows
from watchkeeper.transcripts.export.tables import FORMAT, TABLES, VERSION


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
    rows = SessionRows(connection, session_id, clean, artifacts.renamed)
    redacted = "true" if clean is not None else "false"
    partial = "true" if missing_logs(connection, session_id) else "false"
    head = f'"format":"{FORMAT}",\n"version":{VERSION},\n"redacted":{redacted},\n"partial":{partial}'
    out.write(f'{{{head},\n"session":{rows.session()}')
    for table in TABLES:
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
