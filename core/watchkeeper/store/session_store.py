"""One session as its host sees it: fenced commits through the writer, short reads beside it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from watchkeeper.records.errors import LeaseLost, NotFound, StoreUnusable
from watchkeeper.records.ports import Clock
from watchkeeper.store import database
from watchkeeper.store.driver import Connection, Queries, sqlite3
from watchkeeper.store.lease import Lease
from watchkeeper.store.place import Place
from watchkeeper.store.postgres import is_lost, lease_seconds
from watchkeeper.store.transaction import Transaction
from watchkeeper.store.writer import Group, Writer

T = TypeVar("T")

LEASE_MARGIN = 0.3
"""The part of a lease before whose end a host stops that could not extend it."""


class SessionStore(Queries):
    """Reads and writes of the host that holds a session's lease. Its reads give rows by name or index.

    Once a commit was refused because another host took over, `lost` is set and nothing more is written.
    """

    def __init__(
        self, path: Place, session_id: str, writer: Writer, lease: Lease, epoch: int, clock: Clock
    ) -> None:
        self.path = path
        self.session_id = session_id
        self.epoch = epoch
        self.writer = writer
        self.lost: LeaseLost | None = None
        self._extended_at = time.monotonic()
        """When the last commit that was acknowledged began: the lease is at least as new."""
        self._lease = lease
        self._clock = clock
        super().__init__(database.open_readonly(path), path)
        self.connection.row_factory = sqlite3.Row

    @classmethod
    def claim(cls, path: Place, session_id: str, clock: Clock, *, pid: int, host_name: str) -> SessionStore:
        """Take the session's lease and raise its epoch.

        Raises:
            DrivenElsewhere: a live host holds it.
            NotFound: no such session.
        """
        with contextlib.ExitStack() as undo:
            lease = Lease.acquire(path, session_id)
            undo.callback(lease.release)
            lease.reserve()
            writer = Writer(path)
            undo.callback(writer.close)
            raised = lease.epoch
            epoch = writer.submit(
                lambda group: _raise_epoch(group, session_id, pid, host_name, raised)
            ).result()
            lease.fenced(epoch)
            store = cls(path, session_id, writer, lease, epoch, clock)
            undo.pop_all()
        return store

    async def commit(self, change: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run `change` in a fenced transaction; returns once it is durable.

        `change` may run twice, and must touch nothing but the transaction. `urgent`: a person waits for it.

        Raises:
            LeaseLost: another host drives the session now.
        """
        if self.lost is not None:
            raise self.lost
        session_id, epoch, now = self.session_id, self.epoch, self._clock.now()

        def batch(group: Group) -> T:
            return change(Transaction(group, session_id, epoch, now))

        try:
            if isinstance(self.path, Path):
                return await self.writer.commit(batch, urgent=urgent)
            return await self._commit_in_time(batch, urgent=urgent)
        except LeaseLost as lost:
            self.lost = lost
            raise

    async def _commit_in_time(self, batch: Callable[[Group], T], *, urgent: bool) -> T:
        """Commit before the lease on the server lapses, or give the session up."""
        began = time.monotonic()
        left = self._extended_at + (1 - LEASE_MARGIN) * lease_seconds() - began
        try:
            result = await asyncio.wait_for(self.writer.commit(batch, urgent=urgent), max(0.0, left))
        except (TimeoutError, StoreUnusable) as error:
            if isinstance(error, StoreUnusable) and not is_lost(self.writer.connection):
                raise
            self.writer.give_up()
            raise LeaseLost(
                f"the server of session {self.session_id} has not answered for {time.monotonic() - self._extended_at:.0f} s;"
                " this host stops before its lease ends, and another may continue: `wk resume`"
            ) from error
        self._extended_at = max(self._extended_at, began)
        return result

    def now(self) -> float:
        """Wall time by the clock of this host."""
        return self._clock.now()

    def is_ours(self, connection: Connection) -> bool:
        """Whether no other host has claimed the session since, as `connection` sees it."""
        row = connection.execute(
            "SELECT lease_epoch FROM sessions WHERE id = ?", (self.session_id,)
        ).fetchone()
        return row is not None and row[0] == self.epoch

    def free_reserve(self) -> None:
        """Make room on a full disk for the last transactions of this host."""
        self._lease.free_reserve()

    def close(self) -> None:
        """Commit what is queued, then give the lease up."""
        self.writer.close()
        self.connection.close()
        self._lease.release()


def _raise_epoch(group: Group, session_id: str, pid: int, host_name: str, raised: int | None) -> int:
    """Begin a new epoch, unless the lease has `raised` it already; returns it."""
    row = group.connection.execute(
        "UPDATE sessions SET lease_epoch = lease_epoch + ?, host_pid = ?, host_name = ? WHERE id = ?"
        " AND lease_epoch = coalesce(CAST(? AS INTEGER), lease_epoch) RETURNING lease_epoch",
        (0 if raised is not None else 1, pid, host_name, session_id, raised),
    ).fetchone()
    if row is None:
        raise NotFound(f"no session {session_id}; list them with `wk sessions`")
    # No call of an earlier host is in progress any more: what it had reserved is free.
    group.connection.execute("DELETE FROM reservations WHERE session_id = ?", (session_id,))
    return int(row[0])
