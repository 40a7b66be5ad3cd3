"""The one writer of a process: a thread, a connection, and group commit.

Batches queued by any number of agents share one `BEGIN IMMEDIATE … COMMIT`; no batch is reported as done
before the commit. On any error the whole group is rolled back and its batches run singly (no savepoints:
SQLITE_FULL inside one rolls back the whole transaction), so one bad batch never harms the others. A batch may
therefore run twice, and must change nothing but the database.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.records import errors
from watchkeeper.records.errors import LeaseLost, StoreUnusable
from watchkeeper.store import database, driver, postgres
from watchkeeper.store.database import identities, refuse_second_name, taken_away
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.engine import engine_of
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.place import Place

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

GATHER_SECONDS = (0.0005, 0.002)
"""While batches wait, the write lock is left free after each commit for half as long as the commit held it,
within these
bounds: more batches gather, and other processes, which ask every millisecond (`driver.begin_immediate`),
get theirs."""

LARGEST_GROUP = 512

SAVE_SECONDS = 2.0
"""How long to wait for readers when the log was removed and its committed content must go into the file."""


FenceKey = tuple[str, int]
"""A session and its epoch."""


class Group:
    """One database transaction that several batches share."""

    def __init__(
        self,
        connection: Connection,
        expected: Mapping[FenceKey, int] | None = None,
        uncertain: Mapping[FenceKey, int] | None = None,
    ) -> None:
        self.connection = connection
        self.cursor: Any = connection.cursor()
        self.fences: dict[FenceKey, Fence] = {}
        self.number: str | None = None
        """The number of the transaction on PostgreSQL: whether it was committed can be asked later."""
        self.expected = expected or {}
        """The event `seq`s of sessions on a server, as this process left them."""
        self._uncertain = uncertain or {}
        """Those that an uncertain transaction expected."""
        self._proof: Any = None
        """The answer to a fence that is not waited for."""

    def fence(self, session_id: str, epoch: int, now: float) -> Fence:
        """Prove, once per group, that this process still drives the session, and learn its event `seq`.

        A server that is to find the session at an expected `seq` is not waited for: otherwise it fails the transaction.

        Raises:
            LeaseLost: another host has claimed the session since.
        """
        key = (session_id, epoch)
        fence = self.fences.get(key)
        if fence is None:
            seq = self.expected.get(key)
            if seq is not None:
                self._proof = self.connection.execute(postgres.EXPECTING_FENCE, (now, session_id, epoch, seq))
            else:
                fencing = self.connection.execute(engine_of(self.connection).fence, (now, session_id, epoch))
                row = fencing.fetchone()
                if row is None:
                    raise LeaseLost(
                        f"another background process took over session {session_id}; this process stops without writing anything"
                    )
                seq = row[0]
                if self._uncertain.get(key, seq) != seq:
                    raise _WasCommitted
                self.number = row[1]
            fence = self.fences[key] = Fence(event_seq=seq)
        return fence

    def close(self) -> None:
        """End the last query, even if it has more rows. An open query keeps its snapshot, and no connection can write from
        that snapshot once another connection has committed."""
        if self.cursor is not self.connection:
            self.cursor.close()

    def prove(self) -> None:
        """Make sure, before COMMIT is sent, that it can be found out later whether it was done: by an event `seq`, or by
        the number of the transaction.

        Raises:
            postgres.FenceFailed: a session is not as it was expected.
        """
        if self._proof is not None and not (
            self.number or any(fence.dirty for fence in self.fences.values())
        ):
            self.number = self._proof.fetchone()[1]

    def flush(self) -> None:
        """Write what the fences gathered: the event `seq`s allocated and the session's running totals."""
        for (session_id, _), fence in self.fences.items():
            if fence.dirty:
                self.connection.execute(
                    "UPDATE sessions SET event_seq = ?, input_tokens = input_tokens + ?, output_tokens ="
                    " output_tokens + ?,"
                    " cache_read_tokens = cache_read_tokens + ?, cache_write_tokens = cache_write_tokens + ?,"
                    " cost_usd = CASE WHEN ? IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + ? END,"
                    " unpriced_calls = unpriced_calls + ?, model_calls = model_calls + ?, retries = retries"
                    " + ?,"
                    " errors = errors + ? WHERE id = ?",
                    (
                        fence.event_seq,
                        *fence.tokens,
                        fence.cost_usd,
                        fence.cost_usd,
                        *fence.counts,
                        session_id,
                    ),
                )


@dataclass(slots=True)
class Fence:
    """What one group adds to one session's row."""

    event_seq: int
    tokens: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Input, output, cache read, cache write."""
    cost_usd: float | None = None
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Unpriced calls, model calls, retries, errors."""
    dirty: bool = False


@dataclass(slots=True)
class _Uncertain:
    """A transaction that was sent to a server, and whose connection was lost before the answer to its COMMIT.

    The same batches run again in one that asks for its fence. If the session is then where it was before, it was not
    committed, and cannot be any more: it expects that too.
    """

    group: Group
    outcomes: dict[int, tuple[Any, BaseException | None]]
    """By the identity of the item."""


@dataclass(slots=True)
class _Item:
    batch: Callable[[Group], Any]
    done: Future[Any] | asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop | None


class _WasCommitted(Exception):
    """A transaction whose connection was lost was committed: its session has moved on."""


class _FilesChanged(StoreUnusable):
    """A name of the database's files names another file than the one that is open, or none; or a file has a
    second name."""


class Writer:
    """Owns the connection that writes. Thread-safe; `close()` commits what was queued before it.

    Args:
        threaded: commit on a thread of its own. Without it, the event loop that waits for a batch commits it, at its
            next turn, with those that are queued by then; a simulation decides the order of everything that way.
    """

    def __init__(
        self, path: Place, *, gather_seconds: tuple[float, float] = GATHER_SECONDS, threaded: bool = True
    ) -> None:
        self.path = path
        self._gather_seconds = gather_seconds
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._urgent = threading.Event()
        """A queued batch has a waiter: the thread does not leave the lock to others first."""
        self._stopping = False
        self.connection = database.open_writable(path, check_same_thread=False)
        self._closed = False
        self._closing = threading.Lock()
        """Nothing is queued behind the mark that ends the thread, since it would never run."""
        self._files = identities(path)
        self._abandoned = False
        """The connection stays open to the end of the process: closing it would write an old log over the new
        content."""
        self._exhausted = False
        """Room was waited for, and did not come."""
        self.commits = 0
        """Transactions committed so far."""
        self._gives_up = threading.Event()
        """No lost connection is opened again."""
        self._expected: dict[FenceKey, int] = {}
        """The event `seq`s of sessions on a server, as the last commit left them."""
        self._uncertain: _Uncertain | None = None
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="watchkeeper-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self.connection.close()
                raise

    def submit(self, batch: Callable[[Group], T]) -> Future[T]:
        """Queue a batch from any thread; the future resolves after its commit."""
        done: Future[T] = Future()
        self._put(_Item(batch, done, None))
        return done

    async def commit(self, batch: Callable[[Group], T], *, urgent: bool = False) -> T:
        """Queue a batch and wait for its commit. Cancelling the wait does not cancel the batch.

        `urgent`: a person waits for it, so it asks for the write lock more often than other processes.
        """
        import asyncio  # late: an import and the commands that read need none

        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._put(_Item(batch, done, loop))
        if urgent:
            self._urgent.set()
        return await done

    def close(self) -> None:
        """Commit the queue, write the log into the file as far as readers let it, and close the connection.

        SQLite itself writes the log back only if the last connection to close may write, and viewers' may
        not. With this, a copy of the unused file is complete.
        """
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        else:
            self._commit_queued()
        if self._abandoned:
            return
        if not isinstance(self.path, Path):
            self.connection.close()
            return
        # A file with two names is not changed: a program that opened it by the other name does not see our
        # locks.
        if not taken_away(self._files, identities(self.path)) and not self._has_second_name():
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.connection.close()

    def give_up(self) -> None:
        """Try no more to reach a server that does not answer: what waits fails."""
        self._gives_up.set()
        self.connection.interrupt()

    def _put(self, item: _Item) -> None:
        with self._closing:
            if self._closed:
                raise StoreUnusable(f"{self.path} is closed; cannot write to it")
            self._queue.put(item)
        if self._thread is None:
            if item.loop is None:
                self._commit_queued()
            else:
                item.loop.call_soon(self._commit_queued)

    def _commit_queued(self) -> None:
        """Without a thread: commit what is queued."""
        items: list[_Item] = []
        self._gather(items)
        if items:
            self._commit(items)

    def _run(self) -> None:
        while not self._stopping:
            first = self._queue.get()
            if first is None:
                return
            items = [first]
            began = time.perf_counter()
            self._commit(items)
            if not self._stopping and (len(items) > 1 or self._queue.qsize() > 1):
                least, most = self._gather_seconds
                self._urgent.wait(min(most, max(least, (time.perf_counter() - began) / 2)))

    def _gather(self, items: list[_Item]) -> None:
        """Add what is queued."""
        self._urgent.clear()
        while len(items) < LARGEST_GROUP and not self._stopping:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is None:
                self._stopping = True
            else:
                items.append(item)

    def _commit(self, items: list[_Item]) -> None:
        """Commit these batches, and what is queued by the time that the lock is had."""
        self._uncertain = None
        try:
            outcomes = self._transact_with_retries(items)
        except BaseException as error:
            if driver.is_busy(error):
                self._gather(items)
            # No batch of the group causes a lock that outlasts the wait: wait once, not once for each.
            if len(items) == 1 or not self._connection_serves(error):
                outcomes = [(None, error)] * len(items)
            else:
                outcomes = []
                for item in items:
                    try:
                        on_file = isinstance(self.path, Path)
                        outcomes += self._transact([item]) if on_file else self._transact_on_server([item])
                    except BaseException as single:
                        outcomes.append((None, single))
        _acknowledge(items, [(value, self._as_store_error(error)) for value, error in outcomes])

    def _transact_with_retries(self, items: list[_Item]) -> list[tuple[Any, BaseException | None]]:
        """`_transact`, repeated after a wait while the disk is full or memory is short.

        Once the last wait was in vain, later transactions do not wait, until one of them succeeds.
        """
        if not isinstance(self.path, Path):
            return self._transact_on_server(items, gather=True)
        for wait_seconds in () if self._exhausted else errors.RETRY_SECONDS:
            try:
                return self._transact(items, gather=True)
            except Exception as error:
                if driver.shortage(self.path, error) is None:
                    raise
            with contextlib.suppress(sqlite3.Error):  # the log restarts in space that it already has
                self.connection.execute("PRAGMA wal_checkpoint(RESTART)")
            time.sleep(wait_seconds)
        self._exhausted = True
        outcomes = self._transact(items, gather=True)
        self._exhausted = False
        return outcomes

    def _transact_on_server(
        self, items: list[_Item], *, gather: bool = False
    ) -> list[tuple[Any, BaseException | None]]:
        """`_transact`, repeated while the server cannot be reached, until the writer gives up.

        When the connection was lost during a commit, the server is asked whether it was made.
        """
        for wait_seconds in postgres.reconnections():
            self._group: Group | None = None
            self._outcomes: list[tuple[Any, BaseException | None]] | None = None
            try:
                return self._transact(items, gather=gather and self._uncertain is None)
            except postgres.FenceFailed:
                continue  # the next fence asks
            except _WasCommitted:
                assert self._uncertain is not None
                self._group = self._uncertain.group
                return [self._uncertain.outcomes[id(item)] for item in items]
            except sqlite3.OperationalError as error:
                if not postgres.is_lost(self.connection):
                    raise
                if self._gives_up.wait(wait_seconds):
                    raise
                group, outcomes = self._group, self._outcomes
                if group is None or outcomes is None:
                    continue  # it was not sent to the end
                if group.number is None:
                    self._uncertain = _Uncertain(group, dict(zip(map(id, items), outcomes, strict=True)))
                elif self._was_committed(group.number, error):
                    return outcomes
        raise AssertionError("unreachable")  # the waits never end

    def _was_committed(self, number: str, error: Exception) -> bool:
        """Whether a transaction whose connection was lost was committed.

        Raises:
            sqlite3.OperationalError: the writer gave up before the server answered.
        """
        for wait_seconds in postgres.reconnections():
            try:
                status = postgres.status_of(self.connection, number)
                if status != "in progress":
                    return status == "committed"
            except sqlite3.OperationalError:
                if not postgres.is_lost(self.connection):
                    raise
            if self._gives_up.wait(wait_seconds):
                raise error
        raise AssertionError("unreachable")  # the waits never end

    def _transact(
        self, items: list[_Item], *, gather: bool = False
    ) -> list[tuple[Any, BaseException | None]]:
        connection = self.connection
        self._check_files()
        expected, self._expected = self._expected, {}
        uncertain = self._uncertain.group.expected if self._uncertain is not None else {}
        group = Group(connection, expected, uncertain)
        try:
            with driver.noting_system_errors(connection), postgres.pipelined(connection):
                if isinstance(self.path, Path):
                    driver.begin_immediate(connection, urgent=self._urgent.is_set)
                else:
                    connection.execute("BEGIN")  # the fence locks the session's row
                if gather:
                    self._gather(items)
                self._group = group
                outcomes: list[tuple[Any, BaseException | None]] = [
                    (item.batch(group), None) for item in items
                ]
                group.flush()
                reach("writer.before_commit")
                if self._gives_up.is_set():
                    raise sqlite3.OperationalError("the writer has stopped")
                group.prove()
                self._outcomes = outcomes
                connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        finally:
            group.close()
        self.commits += 1
        if not isinstance(self.path, Path):
            self._uncertain = None
            self._expected = expected | {key: fence.event_seq for key, fence in group.fences.items()}
        reach("writer.after_commit")
        return outcomes

    def _check_files(self) -> None:
        """Refuse to write if a file was removed or got a second name (SQLite would continue with the unnamed
        file). A host commits at each heartbeat, so it notices either within seconds.

        Raises:
            _FilesChanged: the commit could not be reported as done.
        """
        found = identities(self.path)
        changed = taken_away(self._files, found)
        if not changed:
            self._files = found
            try:
                refuse_second_name(self.path)
            except StoreUnusable as refused:
                raise _FilesChanged(str(refused)) from None
            return
        main = f"{self.path}"
        if any(found[name] is not None for name in changed):
            self._abandoned = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))
        elif main not in changed:
            self._save_log()
        advice = (
            "restore it, or choose another with --db"
            if main in changed
            else "make sure nothing deletes it, then run `wk resume last`"
        )
        raise _FilesChanged(f"{changed[0]} was deleted or replaced while it was in use; {advice}")

    def _has_second_name(self) -> bool:
        try:
            refuse_second_name(self.path)
        except StoreUnusable:
            return True
        return False

    def _save_log(self) -> None:
        """Write as much as possible of a removed log into the database file, and restart the log.

        Otherwise a remaining index of the log would point every process to removed content.
        """
        deadline = time.monotonic() + SAVE_SECONDS
        busy = True
        with contextlib.suppress(sqlite3.DatabaseError):
            while busy and time.monotonic() < deadline:
                busy = bool(self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
                if busy:
                    time.sleep(0.01)

    def _connection_serves(self, error: BaseException) -> bool:
        return not isinstance(error, _FilesChanged) and not driver.is_busy(error)

    def _as_store_error(self, error: BaseException | None) -> BaseException | None:
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
            unusable = driver.unusable(self.path, error)
            unusable.__cause__ = error
            return unusable
        return error


def _acknowledge(items: list[_Item], outcomes: list[tuple[Any, BaseException | None]]) -> None:
    """Tell every waiter, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any, BaseException | None]]] = {}
    for item, (value, error) in zip(items, outcomes, strict=True):
        if not isinstance(item.done, Future):
            assert item.loop is not None
            by_loop.setdefault(item.loop, []).append((item.done, value, error))
        elif not item.done.set_running_or_notify_cancel():
            continue  # its waiter left; the batch is committed all the same
        elif error is None:
            item.done.set_result(value)
        else:
            item.done.set_exception(error)
    for loop, settled in by_loop.items():
        # A loop that was closed has no waiter left to tell; this thread serves the others.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, settled)


def _settle(settled: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for done, value, error in settled:
        if done.done():
            continue
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
