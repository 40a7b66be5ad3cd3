"""Beyond the lock: whether the host that has a session goes on by itself, or is soon gone and worth waiting
for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from watchkeeper.records.states import SessionStatus
from watchkeeper.store import database
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode_or
from watchkeeper.store.lease import LeaseHolder, probe

SOON_SECONDS = 30.0
"""How long a host that is to end is waited for: it finishes its steps, or the command that it was started
for."""

LOOK_SECONDS = 0.02


def goes_on(connection: Connection, session_id: str) -> bool:
    """Whether the host that holds the lease drives the session, and was not told to pause it.

    One that was started for a single command does not drive, nor does one that has only claimed the session.
    """
    row = connection.execute(
        "SELECT status, lease_epoch FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    if row is None or row[0] != SessionStatus.RUNNING:
        return False
    started = connection.execute(
        "SELECT seq, data FROM events WHERE session_id = ? AND kind = 'host.started' ORDER BY seq DESC LIMIT"
        " 1",
        (session_id,),
    ).fetchone()
    if started is None or decode_or(started[1], {}).get("epoch", row[1]) != row[1]:
        return False
    pausing = connection.execute(
        "SELECT 1 FROM commands WHERE session_id = ? AND kind = 'pause' AND agent_id IS NULL AND status ="
        " 'applied'"
        " AND event_seq > ?",
        (session_id, started[0]),
    ).fetchone()
    return pausing is None


def outlast(
    path: Path, session_id: str, told: Callable[[LeaseHolder], None] = lambda holder: None
) -> LeaseHolder | None:
    """Wait for a host that is soon gone; returns who has the session after that, if anybody.

    `told` hears of the wait, once, before it begins. A host that goes on, or that runs in this very process,
    is not waited for.
    """
    holder = probe(path, session_id)
    if holder is None or holder.pid == os.getpid():
        return holder
    connection = database.open_readonly(path)
    deadline = time.monotonic() + SOON_SECONDS
    try:
        waits = False
        while holder is not None and time.monotonic() < deadline and not goes_on(connection, session_id):
            if not waits:
                waits = True
                told(holder)
            for _ in range(10):
                time.sleep(LOOK_SECONDS)
                holder = probe(path, session_id)
                if holder is None:
                    break
    finally:
        connection.close()
    return holder
