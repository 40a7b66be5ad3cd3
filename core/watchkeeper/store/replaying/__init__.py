"""Replaying a session: how it stood at any of its steps, read from the file alone, with nothing changed by
it.

`open_recording` listens once to the whole session and keeps what every agent, task, call and pass was like,
and from when on; any step is then looked up in a few milliseconds, however long the session is. What it tells
of a step of a session of our own is how the rows stood right after that step was committed.
"""

from __future__ import annotations

from watchkeeper.store.driver import Connection
from watchkeeper.store.replaying.recording import AgentThen, Mark, Recording, Then
from watchkeeper.store.replaying.rows import Cancelled

__all__ = ["AgentThen", "Cancelled", "Mark", "Recording", "Then", "open_recording"]


def open_recording(
    connection: Connection, session_id: str, cancelled: Cancelled = lambda: False
) -> Recording | None:
    """The recording of a session, or None where there is no such session. To be called inside one
    transaction.

    A session whose events tell its turns is replayed event by event; one of another program, whose events
    tell little, by the times of its messages and calls. `cancelled` is asked now and then, and ends the
    reading with `InterruptedError`.
    """
    from watchkeeper.store.replaying.rows import load, tells_its_turns
    from watchkeeper.store.replaying.timed import TimedRecording
    from watchkeeper.store.replaying.told import ToldRecording

    rows = load(connection, session_id, cancelled)
    if rows is None:
        return None
    kind = ToldRecording if tells_its_turns(connection, session_id) else TimedRecording
    return kind(connection, rows, cancelled)
