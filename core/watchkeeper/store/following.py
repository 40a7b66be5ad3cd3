"""Imported sessions that grow: while somebody follows their logs they stand as running, and as done again
afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper.store.driver import Connection
from watchkeeper.store.transcripts import NO_RESULT, NOT_FINISHED, PROGRAMS


def begin(connection: Connection, session_ids: Sequence[str]) -> None:
    """These sessions go on. What their main agent's last turn called and has no result of is taken to run
    still."""
    for session_id in session_ids:
        connection.execute(
            "UPDATE sessions SET status = 'running', ended_at = NULL WHERE id = ? AND status = 'done'",
            (session_id,),
        )
        connection.execute(
            "UPDATE tasks SET status = 'running', status_reason = NULL WHERE session_id = ? AND status ="
            " 'paused'",
            (session_id,),
        )
        main = connection.execute(
            "SELECT a.id, a.turn FROM agents a JOIN sessions s ON s.planner_agent_id = a.id WHERE s.id = ?"
            " AND a.status = 'done'",
            (session_id,),
        ).fetchone()
        if main is None:
            continue
        called = connection.execute(
            "UPDATE tool_calls SET status = 'running' WHERE agent_id = ? AND turn = ? AND status = 'unknown'"
            " AND result_seq IS NULL",
            main,
        ).rowcount
        connection.execute(
            "UPDATE agents SET status = ?, ended_at = NULL WHERE id = ?",
            ("working" if called else "idle", main[0]),
        )


def end(connection: Connection, session_ids: Sequence[str]) -> None:
    """These sessions grow no further as far as anybody here knows: nobody in them is at work."""
    for session_id in session_ids:
        connection.execute(
            "UPDATE sessions SET status = 'done', ended_at = last_active WHERE id = ? AND status = 'running'",
            (session_id,),
        )
        connection.execute(
            "UPDATE agents SET status = 'cancelled', status_reason = ?, ended_at = last_active"
            " WHERE session_id = ? AND status = 'working' AND parent_agent_id IS NOT NULL",
            (NO_RESULT, session_id),
        )
        connection.execute(
            "UPDATE agents SET status = 'done', ended_at = last_active WHERE session_id = ? AND status IN"
            " ('working', 'idle')",
            (session_id,),
        )
        connection.execute(
            "UPDATE tasks SET status = 'paused', status_reason = ? WHERE session_id = ? AND status ="
            " 'running'",
            (NOT_FINISHED, session_id),
        )
        connection.execute(
            "UPDATE tool_calls SET status = 'unknown' WHERE status = 'running' AND agent_id IN"
            " (SELECT id FROM agents WHERE session_id = ?)",
            (session_id,),
        )


def followed(connection: Connection) -> list[str]:
    """Imported sessions that stand as running, whether anybody still follows them or not."""
    marks = ", ".join("?" * len(PROGRAMS))
    found = connection.execute(
        f"SELECT id FROM sessions WHERE status = 'running' AND origin IN ({marks})",  # noqa: S608
        tuple(PROGRAMS),
    )
    return [row[0] for row in found]
