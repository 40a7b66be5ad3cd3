"""Clearing away what an interrupted import left: rows of a session that has no row of its own."""

from __future__ import annotations

from watchkeeper.store import database
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.rows import owned
from watchkeeper.transcripts.export.tables import TABLES


def clear_leftovers(connection: Connection, session_id: str) -> None:
    """Delete every row of `session_id`, in one transaction, unless the session is there: then nothing happens.

    Artifacts stay: they are stored by content, and other sessions may have the same.
    """
    database.begin_immediate(connection)
    try:
        if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is None:
            # Rows that are found through others go before these.
            for table in sorted(TABLES, key=lambda one: one.owner == "session"):
                connection.execute(f"DELETE FROM {table.name} WHERE rowid IN ({owned(table)})", (session_id,))  # noqa: S608
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
