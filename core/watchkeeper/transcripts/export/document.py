"""The JSON form: one document, written as it is read, a row a line."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.redact import Redactor
from watchkeeper.store import artifacts
from watchkeeper.store.driver import Connection, decode, encode
from watchkeeper.store.imports import missing_logs

# --- Which tables make up a session, and what each of their columns is: the schema of the JSON form -------
#
# (docs/export.md).

FORMAT = "watchkeeper-session"
VERSION = 1
"""Raised when a reader of an earlier version would misread a document."""

INERT = "export:"
"""Stands before origin and source of an imported session, and before the workspace of its facts: what a file
says of itself neither runs here nor speaks in later sessions, and no log is added to it. Taken off again when
such a session is exported."""
INERT_OF_SESSION = ("origin", "source")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a session's rows."""

    name: str
    keys: tuple[str, ...]
    """Columns that identify, order or count: written as they are."""
    text: tuple[str, ...] = ()
    """Columns of text that somebody wrote: secrets are taken out of them."""
    json: tuple[str, ...] = ()
    """Columns that hold JSON as text: a document has their values, without secrets."""
    left_out: tuple[str, ...] = ()
    """Columns that say something of this database or machine, and nothing of the session."""
    owner: str = "session"
    """How a row is the session's: by its `session_id`, or that of its `agent_id`, `plan_id` or `task_id`."""
    numbered: bool = False
    """Its `id` is a number of the database. It is kept where it is free, and moved (with what points at it)
    where not."""
    points_at: dict[str, str] = field(default_factory=dict)
    """Columns that hold the number of a row of another table."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.text, *self.json)


_USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_TOTALS = (*_USAGE, "cost_usd", "unpriced_calls", "model_calls", "retries", "errors")

SESSION = Table(
    "sessions",
    ("id", "user_id", "origin", "status", "created_at", "last_active", "ended_at", "hosted_seconds", "current_plan_id",
     "planner_agent_id", "event_seq", "forked_from", "forked_at_seq", "history_inferred", *_TOTALS),
    text=("goal", "title", "workspace", "model", "status_reason", "source"),
    json=("settings", "tags", "roles"),
    left_out=("lease_epoch", "host_pid", "host_name", "deleted_at", "ordinal", "deletion_ordinal"),
)  # fmt: skip
"""The session's own row. A trash can, a lease and a host belong to the database, not to the session."""

TABLES: tuple[Table, ...] = (
    Table(
        "plans",
        ("id", "session_id", "revision", "step_cursor", "created_at", "updated_at", "commit_seq"),
        text=("goal",),
        json=("task_queue",),
    ),
    Table(
        "plan_revisions",
        ("plan_id", "revision", "at", "step_cursor", "commit_seq"),
        text=("reason", "goal"),
        json=("task_queue", "plan_graph_snapshot"),
        owner="plan",
    ),
    Table(
        "tasks",
        ("id", "session_id", "parent_plan_id", "position", "role", "status", "attempt", "assigned_agent", "resume_token",
         "starts_from", "inputs_hash", "failures", "created_at", "started_at", "ended_at", "commit_seq"),
        text=("name", "title", "instructions", "model", "status_reason", "result", "error"),
        json=("inputs_ref", "expected_outputs", "artifact_refs"),
    ),
    Table("task_dependencies", ("task_id", "depends_on", "commit_seq"), owner="task"),
    Table(
        "agents",
        ("id", "session_id", "parent_agent_id", "task_id", "copied_from", "role", "attempt", "status", "turn",
         "view_version", "last_seq", "message_tokens", "context_limit", "context_tokens", "created_at", "started_at",
         "ended_at", "last_active", "active_seconds", *_TOTALS, "compactions", "parked_until", "commit_seq"),
        text=("name", "model", "current_goal", "system", "status_reason"),
        json=("composition",),
    ),
    Table(
        "messages",
        ("agent_id", "seq", "role", "tokens", "total_tokens", "created_at", "commit_seq"),
        json=("content",),
        left_out=("id",),
        owner="agent",
    ),
    Table("steps", ("agent_id", "turn", "reply_seq", "results_seq", "started_at", "ended_at", "commit_seq"), owner="agent"),
    Table(
        "tool_calls",
        ("id", "session_id", "agent_id", "turn", "position", "seq", "tool_use_id", "idempotent", "status", "result_seq",
         "is_error", "started_at", "ended_at", "runs", "input_digest", "commit_seq"),
        text=("name",),
        json=("result", "edited_input"),
        owner="agent",
        numbered=True,
    ),
    Table(
        "model_calls",
        ("id", "session_id", "agent_id", "turn", "purpose", "status", "stop_reason", *_USAGE, "estimated_prompt_tokens",
         "usage_exact", "cost_usd", "price_status", "started_at", "latency_seconds", "first_token_seconds",
         "waited_seconds", "retries", "request_id", "commit_seq"),
        text=("model", "error"),
        numbered=True,
    ),
    Table(
        "observations",
        ("agent_id", "id", "kind", "level", "tokens", "first_seq", "last_seq", "provisional", "status", "compaction_id",
         "created_at", "commit_seq"),
        text=("text",),
        json=("citations", "replaces"),
        owner="agent",
        points_at={"compaction_id": "compactions"},
    ),
    Table(
        "views",
        ("agent_id", "version", "parent", "verbatim_from", "reason", "tokens", "compaction_id", "created_at", "commit_seq"),
        json=("observations", "elided"),
        owner="agent",
        points_at={"compaction_id": "compactions"},
    ),
    Table(
        "compactions",
        ("id", "session_id", "agent_id", "trigger", "status", "high_water", "messages_removed", "tokens_before",
         "tokens_after", "view_before", "view_after", "model_call_id", "cost_usd", "stall_seconds",
         "cache_tokens_invalidated", "tokens_spent", "seconds", "requested_at", "ended_at", "commit_seq"),
        text=("instructions", "reason", "model", "prepared"),
        numbered=True,
        points_at={"model_call_id": "model_calls"},
    ),
    Table(
        "memory_snapshots",
        ("agent_id", "session_id", "memory_blob_ref", "last_updated", "view_version", "last_seq", "turn", "tokens", "commit_seq"),
        owner="agent",
    ),
    Table(
        "facts",
        ("id", "session_id", "agent_id", "scope", "kind", "digest", "confidence", "pinned", "superseded_by", "created_at", "commit_seq"),
        text=("workspace", "text"),
        json=("sources",),
        numbered=True,
        points_at={"superseded_by": "facts"},
    ),
    Table(
        "outputs",
        ("id", "session_id", "agent_id", "task_id", "kind", "digest", "created_at", "commit_seq"),
        text=("name",),
        numbered=True,
    ),
    Table(
        "handoffs",
        ("id", "session_id", "plan_id", "task_id", "assigned_agent", "memory_delta_ref", "created_at", "commit_seq"),
        json=("inputs_ref", "expected_outputs"),
        numbered=True,
    ),
    Table(
        "inbox",
        ("id", "session_id", "agent_id", "kind", "created_at", "delivered_seq", "commit_seq"),
        json=("payload",),
        numbered=True,
    ),
    Table("events", ("session_id", "seq", "at", "kind", "agent_id", "task_id", "commit_seq"), json=("data",)),
    Table(
        "commands",
        ("id", "session_id", "kind", "agent_id", "task_id", "dedupe_key", "status", "requested_by", "created_at",
         "applied_at", "event_seq", "commit_seq"),
        text=("result",),
        json=("payload",),
        numbered=True,
    ),
    Table(
        "approvals",
        ("id", "session_id", "agent_id", "task_id", "tool_call_id", "status", "decided_by", "created_at", "decided_at",
         "subject_digest", "scope", "cause", "commit_seq"),
        text=("tool", "question", "reason", "folder", "note"),
        json=("edited_input",),
        points_at={"tool_call_id": "tool_calls"},
    ),
    Table(
        "permission_grants",
        ("id", "session_id", "approval_id", "granted_by", "created_at", "revoked_by", "revoked_at", "commit_seq"),
        text=("tool", "pattern"),
        numbered=True,
    ),
    Table(
        "budgets",
        ("id", "session_id", "task_id", "kind", "amount", "required", "reached_at", "created_at", "commit_seq"),
        numbered=True,
    ),
    Table(
        "state_changes",
        ("id", "session_id", "commit_seq", "table_name", "row_id"),
        json=("old_values",),
        numbered=True,
    ),
    Table(
        "raw_records",
        ("id", "session_id", "agent_id", "line", "kind"),
        text=("path", "reason", "data"),
        numbered=True,
    ),
)  # fmt: skip
"""The rows that belong to a session, in the order in which a document has them; after them, its artifacts."""

BY_NAME = {table.name: table for table in TABLES}

NOT_EXPORTED = frozenset(
    {
        "artifacts",
        "live",
        "rate_limits",
        "transcript_files",
        "transcript_records",
        "transcript_calls",
        "message_index",
        "embeddings",
        "reservations",
        "containments",
        "tool_processes",
        "transcript_revisions",
    }
)
"""Written in another way (artifacts), of the moment only, of the machine, or made from the rest."""

NUMBERS_IN_EVENTS = {
    "compaction": "compactions",
    "fact": "facts",
    "command": "commands",
    "call": "tool_calls",
}
"""What an event's data calls the number of a row."""


# --- A session's rows as JSON values, one at a time: however long the session, one row is in memory -------

Redact = Callable[[Any], Any]

_AGENTS = "SELECT t.rowid FROM agents a CROSS JOIN {0} t ON t.agent_id = a.id WHERE a.session_id = ?"
_PLANS = "SELECT t.rowid FROM plans p CROSS JOIN {0} t ON t.plan_id = p.id WHERE p.session_id = ?"
_TASKS = "SELECT t.rowid FROM tasks k CROSS JOIN {0} t ON t.task_id = k.id WHERE k.session_id = ?"
_OWN = "SELECT rowid FROM {0} WHERE session_id = ?"
_OWNED = {"session": _OWN, "agent": _AGENTS, "plan": _PLANS, "task": _TASKS}

_REFERENCE = re.compile(r"(?<=artifact://sha256/)[0-9a-f]{64}")


def owned(table: Table) -> str:
    """The query of a table's rowids that belong to the session `?`, by the shortest way that an index
    gives."""
    return _OWNED[table.owner].format(table.name)


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
        columns = ", ".join(SESSION.columns)
        row = self._connection.execute(
            f"SELECT {columns} FROM sessions WHERE id = ?",  # noqa: S608
            (self.session_id,),  # noqa: RUF100, S608
        ).fetchone()  # noqa: RUF100, S608
        return self._line(SESSION, row)

    def lines(self, table: Table) -> Iterator[str]:
        """Each row of a table as JSON text on one line, in the order in which they were written."""
        columns = ", ".join(table.columns)
        # The rowids alone are gathered and put in order; each row is read when its turn comes.
        rows = self._connection.execute(
            f"SELECT {columns} FROM {table.name} WHERE rowid IN ({owned(table)}) ORDER BY rowid",  # noqa: S608
            (self.session_id,),
        )
        for row in rows:
            yield self._line(table, row)

    def count(self, table: Table) -> int:
        """How many rows a table has of this session."""
        return int(
            self._connection.execute(f"SELECT count(*) FROM ({owned(table)})", (self.session_id,)).fetchone()[  # noqa: S608
                0
            ]
        )  # noqa: RUF100, S608

    def _line(self, table: Table, row: Any) -> str:
        plain = len(table.keys) + len(table.text)
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
                f"{table.name}.{name} of session {self.session_id} holds what is no JSON ({error}); restore"
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
        for table in TABLES:
            columns = [*table.text, *table.json, *(name for name in table.keys if name.endswith("_ref"))]
            if not columns:
                continue
            whole = " || ' ' || ".join(f"ifnull({name}, '')" for name in columns)
            rows = self._connection.execute(
                f"SELECT {whole} AS whole FROM {table.name} WHERE rowid IN ({owned(table)})"  # noqa: S608 - constants
                " AND instr(whole, 'artifact://sha256/') > 0",
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
