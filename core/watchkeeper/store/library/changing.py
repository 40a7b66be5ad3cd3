"""Changing a session that nobody drives: its lease is held, and its rows change in short transactions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from watchkeeper.records.errors import DrivenElsewhere, NotFound, StoreUnusable
from watchkeeper.store import database
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.hosting import outlast
from watchkeeper.store.lease import Lease, probe

T = TypeVar("T")

LONGEST_SECONDS = 0.02
"""How long one transaction of a large change may hold the write lock before it commits and lets others have
it."""

PAUSE_SECONDS = (0.002, 0.005)
"""How long the lock is then left free: hosts ask for it every millisecond (`database.begin_immediate`)."""


@contextmanager
def opened(path: Path) -> Iterator[Connection]:
    """A connection that may write, with SQLite's errors as one clear line.

    Raises:
        StoreUnusable: the database cannot be used, or was not there.
    """
    if not path.exists():
        raise StoreUnusable(
            f"no database at {path}; start a run with `wk run GOAL` or `wk demo`, or choose one with --db"
        )
    connection = database.open_writable(path)
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise StoreUnusable(database.explain(path, error)) from error
    finally:
        connection.close()


@contextmanager
def driven_by_nobody(path: Path, session_id: str, what: str) -> Iterator[None]:
    """Hold the session's lease, so that no host can take it meanwhile. A host that is soon gone is waited
    for.

    Raises:
        DrivenElsewhere: a live host has it; the message says to pause it before one can `what` it.
    """
    outlast(path, session_id)
    try:
        lease = Lease.acquire(path, session_id)
    except DrivenElsewhere:
        holder = probe(path, session_id)
        by = f"a live host (pid {holder.pid})" if holder else "another program just now"
        raise DrivenElsewhere(
            f"session {session_id} is driven by {by}, so nobody else can {what} it; `wk pause {session_id}`"
            " first"
        ) from None
    try:
        yield
    finally:
        lease.release()


def change(path: Path, session_id: str, what: str, work: Callable[[Connection], T]) -> T:
    """Run `work` in one short transaction on a session that nobody drives; returns what it returns.

    Raises:
        NotFound: no such session.
        DrivenElsewhere: a live host drives it.
        StoreUnusable: the database cannot be written.
    """
    with (
        opened(path) as connection,
        driven_by_nobody(path, session_id, what),
        database.writing(connection, "library"),
    ):
        if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is None:
            raise NotFound(f"no session {session_id!r}; list them with `wk sessions`")
        return work(connection)


def in_short_transactions(
    connection: Connection,
    work: Iterable[object],
    *,
    longest_seconds: float = LONGEST_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Advance `work` inside transactions that each end soon after `longest_seconds`; returns how many there
    were.

    `work` changes a few rows between two of its items. What it has changed when it raises is kept, except
    since the last commit.
    """
    steps, count, over = iter(work), 0, False
    while not over:
        with database.writing(connection, "library"):
            began = monotonic()
            while not over and monotonic() - began < longest_seconds:
                over = next(steps, connection) is connection
        count += 1
        if not over:
            sleep(random.uniform(*PAUSE_SECONDS))
    return count
