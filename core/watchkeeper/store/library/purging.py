"""Taking the rows of a session away, a few at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from watchkeeper.store.driver import Connection
from watchkeeper.store.lease import lock_path
from watchkeeper.store.library.deletion import BEING_PURGED

ROWS_AT_ONCE = 50

_OF_AGENTS = ("steps", "tool_calls", "observations", "views")
_OF_SESSIONS = (
    "model_calls", "compactions", "memory_snapshots", "facts", "outputs", "handoffs", "inbox", "events",
    "commands", "approvals", "permission_grants", "budgets", "reservations", "containments", "tool_processes", "live",
    "raw_records", "transcript_files", "transcript_revisions",
)  # fmt: skip

_MESSAGES = "SELECT id FROM messages WHERE agent_id = ? LIMIT ?"


def purge_rows(connection: Connection, session_id: str) -> Iterator[None]:
    """Delete everything of a session but its artifacts: first it is hidden for good, and its own row goes
    last.

    Yields after every few rows, between which a transaction may end: what was begun can be gone on with at
    any time.
    """
    yield from purge_all_but_its_row(connection, session_id)
    connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    yield


def purge_all_but_its_row(connection: Connection, session_id: str) -> Iterator[None]:
    """As `purge_rows`, but the hidden row of the session stays, for whoever has more to do before it is
    forgotten."""
    connection.execute(
        "UPDATE sessions SET deleted_at = ?, lease_epoch = lease_epoch + 1 WHERE id = ?",
        (BEING_PURGED, session_id),
    )
    yield
    agents = [
        row[0] for row in connection.execute("SELECT id FROM agents WHERE session_id = ?", (session_id,))
    ]
    yield from _imported(connection, session_id, agents)
    for agent_id in agents:
        yield from _messages(connection, agent_id)
        for table in _OF_AGENTS:
            yield from _rows(connection, table, "agent_id", agent_id)
    for table in _OF_SESSIONS:
        yield from _rows(connection, table, "session_id", session_id)
    for table, column, owners in (
        ("task_dependencies", "task_id", "SELECT id FROM tasks WHERE session_id = ?"),
        ("plan_revisions", "plan_id", "SELECT id FROM plans WHERE session_id = ?"),
    ):
        for (owner,) in connection.execute(owners, (session_id,)).fetchall():
            yield from _rows(connection, table, column, owner)
    for table in ("tasks", "plans", "agents"):
        yield from _rows(connection, table, "session_id", session_id)


def purge_artifacts(connection: Connection, digests: Iterable[str]) -> Iterator[int]:
    """Delete these artifacts, of which the caller knows that nothing refers to them; yields the bytes of
    each."""
    for digest in digests:
        row = connection.execute(
            "SELECT octet_length(data) FROM artifacts WHERE digest = ?", (digest,)
        ).fetchone()
        connection.execute("DELETE FROM artifacts WHERE digest = ?", (digest,))
        yield int(row[0]) if row else 0


def forget_places(connection: Connection) -> Iterator[None]:
    """Forget where in the index of words the messages of sessions that are gone stood."""
    gone = connection.execute(
        "SELECT first_id FROM messages_fts_sessions WHERE session_id NOT IN (SELECT id FROM sessions)"
    ).fetchall()
    for row in gone:
        connection.execute("DELETE FROM messages_fts_sessions WHERE first_id = ?", row)
        yield


def forget_files(path: Path, session_id: str) -> None:
    """Remove the session's lock files and its host's log."""
    lock = lock_path(path, session_id)
    for name in (lock, lock.with_suffix(".log"), lock.with_suffix(".watch")):
        name.unlink(missing_ok=True)


def _imported(connection: Connection, session_id: str, agents: Sequence[str]) -> Iterator[None]:
    """Forget which records of other programs' logs became rows of this session: they may be imported
    again."""
    if (
        connection.execute("SELECT 1 FROM transcript_files WHERE session_id = ?", (session_id,)).fetchone()
        is None
    ):
        return
    for sql, delete, owners in (
        (
            "SELECT digest FROM transcript_records WHERE agent_id IN (SELECT value FROM json_each(?))",
            "DELETE FROM transcript_records WHERE digest = ?",
            list(agents),
        ),
        (
            "SELECT model_call_id FROM transcript_calls WHERE model_call_id IN (SELECT id FROM model_calls"
            " WHERE session_id IN"
            " (SELECT value FROM json_each(?)))",
            "DELETE FROM transcript_calls WHERE model_call_id = ?",
            [session_id],
        ),
    ):
        for number, row in enumerate(connection.execute(sql, (json.dumps(owners),)).fetchall()):
            connection.execute(delete, row)
            if number % ROWS_AT_ONCE == 0:
                yield


def _messages(connection: Connection, agent_id: str) -> Iterator[None]:
    while ids := [row[0] for row in connection.execute(_MESSAGES, (agent_id, ROWS_AT_ONCE))]:
        marks = ", ".join("?" * len(ids))
        connection.execute(f"DELETE FROM messages WHERE id IN ({marks})", ids)  # noqa: S608
        yield


def _rows(connection: Connection, table: str, column: str, value: str) -> Iterator[None]:
    sql = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {column} = ? LIMIT ?)"  # noqa: S608 - constants
    while connection.execute(sql, (value, ROWS_AT_ONCE)).rowcount == ROWS_AT_ONCE:
        yield
    yield
