"""A session as its host writes it: transactions that are fenced first, with events numbered without gaps; and the store that
commits them through the writer and reads beside it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.records.errors import LeaseLost, NotFound, StoreUnusable
from watchkeeper.records.ports import Clock
from watchkeeper.store import database
from watchkeeper.store.driver import Connection, Queries, encode, plain, sqlite3
from watchkeeper.store.lease import Lease
from watchkeeper.store.place import Place
from watchkeeper.store.postgres import is_lost, lease_seconds

if TYPE_CHECKING:
    from watchkeeper.records.messages import Cost, Usage
    from watchkeeper.store.writer import Fence, Group, Writer


class Transaction:
    """What a batch may do on behalf of the host that drives `session_id` at `epoch`.

    Raises:
        LeaseLost: from the constructor, when another host has the session now.
    """

    def __init__(self, group: Group, session_id: str, epoch: int, now: float) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.now = now
        # One cursor for all statements: making one for each costs as much as a small INSERT.
        self._cursor = group.cursor
        self._group = group
        self._fence: Fence = group.fence(session_id, epoch, now)
        self.commit_seq = self._fence.event_seq + 1
        """The number of the first event that this transaction may write: every row that it inserts has it as
        `commit_seq`."""

    @property
    def connection(self) -> Any:
        """The connection that it writes with, or a cursor of it."""
        return self._cursor

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run one statement. A server is not waited for: an error may come with a later statement, or the commit."""
        self._run(sql, parameters)

    def changed(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement; returns the number of rows that it changed."""
        changed: int = self._run(sql, parameters).rowcount
        return changed

    def insert(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one INSERT; returns the new row's id."""
        return int(self._run(sql, parameters).lastrowid or 0)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row."""
        for row in rows:
            self._run(sql, row)

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._run(sql, parameters).fetchone()

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        rows: list[Any] = self._run(sql, parameters).fetchall()
        return rows

    def _run(self, sql: str, parameters: Sequence[Any]) -> Any:
        try:
            return self._cursor.execute(sql, parameters)
        except UnicodeEncodeError:
            # A lone surrogate in a plain text (a title, a file's name, an error) is no reason to lose the
            # row.
            return self._cursor.execute(
                sql, [plain(value) if isinstance(value, str) else value for value in parameters]
            )

    def event(
        self, kind: str, *, agent_id: str | None = None, task_id: str | None = None, **data: Any
    ) -> int:
        """Append an event to the session's log; returns its `seq`."""
        self._fence.event_seq += 1
        self._fence.dirty = True
        self._cursor.execute(
            "INSERT INTO events (session_id, seq, at, kind, agent_id, task_id, data, commit_seq) VALUES (?, ?,"
            " ?, ?, ?, ?, ?, ?)",
            (
                self.session_id, self._fence.event_seq, self.now, kind, agent_id, task_id, encode(data),
                self.commit_seq,
            ),
        )  # fmt: skip
        return self._fence.event_seq

    def keep_replaced(self, table: str, row_id: str | int, *columns: str) -> None:
        """Keep the values of columns that this transaction is about to change, where no event and no
        append-only row tells them: `store.history` reads them. Where all are empty, there is nothing to keep."""
        row = self.one(f"SELECT {', '.join(columns)} FROM {table} WHERE id = ?", (row_id,))
        if row is not None and any(value not in (None, "[]") for value in row):
            self.execute(
                "INSERT INTO state_changes (session_id, commit_seq, table_name, row_id, old_values)"
                " VALUES (?, ?, ?, ?, ?)",
                (
                    self.session_id, self.commit_seq, table, str(row_id),
                    encode(dict(zip(columns, row, strict=True))),
                ),
            )  # fmt: skip

    @property
    def unflushed_usage(self) -> tuple[float | None, int]:
        """USD (None: nothing priced) and tokens that this group has added to the session and not yet written
        to its row."""
        return self._fence.cost_usd, sum(self._fence.tokens)

    def add_usage(
        self, usage: Usage, cost: Cost, *, calls: int = 1, retries: int = 0, errors: int = 0
    ) -> None:
        """Add one model call to the session's running totals."""
        fence = self._fence
        fence.dirty = True
        mine = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        fence.tokens = tuple(a + b for a, b in zip(fence.tokens, mine, strict=True))  # type: ignore[assignment]
        if cost.usd is not None:
            fence.cost_usd = (fence.cost_usd or 0.0) + cost.usd
        unpriced = 1 if calls and cost.usd is None and usage.total_tokens else 0
        fence.counts = tuple(
            a + b for a, b in zip(fence.counts, (unpriced, calls, retries, errors), strict=True)
        )  # type: ignore[assignment]


# --- A session's commits --------------------------------------------------------------------------------

T = TypeVar("T")

EXTEND_SECONDS = 2.5
"""After so long without a commit, or a third of its time, a lease on a server is extended by one that writes nothing."""
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
        self._ended = threading.Event()
        if not isinstance(path, Path):
            threading.Thread(target=self._extend_lease, name="watchkeeper-lease", daemon=True).start()

    @classmethod
    def claim(
        cls, path: Place, session_id: str, clock: Clock, *, pid: int, host_name: str, threaded: bool = True
    ) -> SessionStore:
        """Take the session's lease and raise its epoch. `threaded`: see `Writer`.

        Raises:
            DrivenElsewhere: a live host holds it.
            NotFound: no such session.
        """
        from watchkeeper.store.writer import Writer  # late: what only reads needs no writer

        with contextlib.ExitStack() as undo:
            lease = Lease.acquire(path, session_id)
            undo.callback(lease.release)
            lease.reserve()
            writer = Writer(path, threaded=threaded)
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
        import asyncio  # late: commands that only read need none

        try:
            result = await asyncio.wait_for(self.writer.commit(batch, urgent=urgent), max(0.0, left))
        except (TimeoutError, StoreUnusable) as error:
            if isinstance(error, StoreUnusable) and not is_lost(self.writer.connection):
                raise
            self.writer.give_up()
            raise LeaseLost(
                f"the server of session {self.session_id} has not responded for {time.monotonic() - self._extended_at:.0f} s."
                " This process will stop before its lease expires. To continue the run: `wk resume`"
            ) from error
        self._extended_at = max(self._extended_at, began)
        return result

    def _extend_lease(self) -> None:
        """Commit nothing where no commit has extended the lease for a while: the host starts, or reads a large session,
        and its event loop is not free."""
        period = min(EXTEND_SECONDS, lease_seconds() / 3)
        wait_seconds = period
        while not self._ended.wait(wait_seconds):
            began = time.monotonic()
            wait_seconds = self._extended_at + period - began
            if wait_seconds > 0:
                continue
            wait_seconds = period

            def batch(group: Group) -> None:
                Transaction(group, self.session_id, self.epoch, self._clock.now())

            try:
                self.writer.submit(batch).result()
            except LeaseLost as lost:
                self.lost = lost
                return
            except StoreUnusable:
                return  # the host's own commits say so
            self._extended_at = max(self._extended_at, began)

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
        self._ended.set()
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
