"""What SQLite and PostgreSQL each do in their own way. A connection to PostgreSQL carries its `Engine`; any other is of
SQLite."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from watchkeeper.store.driver import Connection, ConnectionReads, Queries, Reads, make_private

if TYPE_CHECKING:
    from watchkeeper.store.search.index import MessageIndex


class Engine(Protocol):
    """One kind of database."""

    fence: str
    """Proves that a host still drives its session: the time, the session and the epoch give the event `seq` and the
    number of the transaction, where it has one. No row: another host drives it."""
    lease_is_in_row: bool
    """The lease of a session is in its row, so freeing it waits for a transaction that changed the row."""
    no_vectors: str | None
    """Why vectors cannot be compared; None: they can."""

    def index(self, reads: ConnectionReads) -> MessageIndex:
        """Its index of words. The first call loads the module: what only shows rows needs none."""

    def now(self, connection: Connection) -> float:
        """The time by one clock for all processes that use the database, in seconds since the epoch."""

    def sizes(self, connection: Connection) -> tuple[int, int]:
        """Bytes of all pages, and of the free ones."""

    def lease_is_ending(self, silent_seconds: float) -> tuple[str, tuple[float, ...]]:
        """A condition on a row of `sessions`, and its parameters: no host has the session, or one that has not
        extended its lease for so long. A lease that the database does not know is taken for ending."""

    def free_lease(self, connection: Connection, session_id: str, epoch: int, pid: int) -> None:
        """End the lease of a host that is known to be dead, whichever process started it: no other waits until it
        lapses."""

    def claim(self, connection: Connection, session_id: str, file: Path) -> Callable[[], None] | None:
        """Claim a session for a worker until its process ends, or the function that is returned is called; None where
        another worker has it.

        Args:
            file: may hold the claim.
        """


class SqliteEngine(Engine):
    """A file of SQLite. A lease is a lock on a file beside it, and ends with its process."""

    fence = (
        "UPDATE sessions SET last_active = CASE WHEN last_active > ?1 THEN last_active ELSE ?1 END"
        " WHERE id = ?2 AND lease_epoch = ?3 RETURNING event_seq, NULL"
    )
    lease_is_in_row = False
    no_vectors = None

    def index(self, reads: ConnectionReads) -> MessageIndex:
        from watchkeeper.store.search.index import Fts5Index

        return Fts5Index(reads)

    def now(self, connection: Connection) -> float:
        return time.time()

    def sizes(self, connection: Connection) -> tuple[int, int]:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return pages * size, free * size

    def lease_is_ending(self, silent_seconds: float) -> tuple[str, tuple[float, ...]]:
        return "TRUE", ()

    def free_lease(self, connection: Connection, session_id: str, epoch: int, pid: int) -> None:
        """Nothing: it ended with its process."""

    def claim(self, connection: Connection, session_id: str, file: Path) -> Callable[[], None] | None:
        make_private(file.parent)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return partial(os.close, descriptor)


SQLITE = SqliteEngine()


def engine_of(source: object) -> Engine:
    """The engine of a connection, or of what has one."""
    return cast(Engine, getattr(getattr(source, "connection", source), "engine", SQLITE))


def index_of(source: Reads | Connection) -> MessageIndex:
    """The index of words, asked through a connection, or what has one."""
    reads = source if hasattr(source, "connection") else Queries(cast(Connection, source))
    return engine_of(source).index(cast(ConnectionReads, reads))
