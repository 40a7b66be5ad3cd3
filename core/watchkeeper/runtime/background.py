"""What a host notes by the clock: the time for which it has hosted, and a write-ahead log that grows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from watchkeeper.agents.loop import AgentLoop
from watchkeeper.records import host_faults
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.host_faults import StoreExhausted, host_fault
from watchkeeper.records.ports import Clock
from watchkeeper.store import database, driver
from watchkeeper.store.change_feed import ChangeFeed
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.search.index import index_batch, index_until
from watchkeeper.store.session_store import SessionStore

HEARTBEAT_SECONDS = 2.0

WAL_WARNING_BYTES = 128 << 20
"""A write-ahead log beyond this is told of: some program reads without ever ending its transaction, and holds
it back."""


class Heartbeat:
    """Of one host; time is counted from when it is made."""

    def __init__(self, store: SessionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._noted_at = clock.monotonic()
        self._wal_told = WAL_WARNING_BYTES
        self._uncounted = 0.0
        """Hosted seconds before the rest began, to be noted."""
        self._resting = False
        """Whether everything that could run is parked: such time is not hosted time."""

    def hosted_seconds(self) -> float:
        """Wall time for which the session has been hosted, through now."""
        row = self._store.one("SELECT hosted_seconds FROM sessions WHERE id = ?", (self._store.session_id,))
        return (
            float(row[0])
            + self._uncounted
            + (0.0 if self._resting else self._clock.monotonic() - self._noted_at)
        )

    def rest(self, resting: bool) -> None:
        """Say whether nothing can run until a usage limit ends. That time counts for no budget."""
        if resting == self._resting:
            return
        now = self._clock.monotonic()
        if resting:
            self._uncounted += now - self._noted_at
        self._noted_at, self._resting = now, resting

    async def run(self) -> None:
        """Note every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self.note_time()
            await self._note_wal()

    async def note_time(self) -> None:
        """Add the time hosted since the last note; a budget of time counts it."""
        now = self._clock.monotonic()
        seconds = self._uncounted + (0.0 if self._resting else now - self._noted_at)
        self._uncounted, self._noted_at = 0.0, now
        await self._store.commit(
            lambda tx: tx.execute(
                "UPDATE sessions SET hosted_seconds = hosted_seconds + ? WHERE id = ?",
                (seconds, tx.session_id),
            )
        )

    async def _note_wal(self) -> None:
        """Say once, and again at each doubling, that the write-ahead log grows."""
        size = driver.wal_bytes(self._store.path)
        if size < self._wal_told:
            return
        self._wal_told = size * 2
        text = (
            f"the database's write-ahead log has grown to {size >> 20} MiB: a program keeps a read open and"
            " so holds it back;"
            " close viewers and scripts that read the file, and it shrinks by itself"
        )
        await self._store.commit(lambda tx: tx.event("host.warning", text=text))


# --- Learning of the commands that other processes queue, in a thread beside the host's event loop --------
#
# Every commit of every process on the file wakes it, the host's own too; the event loop only hears of a
# command.

LOOK_SECONDS = 1.0
"""How long nothing may happen before it looks whether to stop."""


class CommandWatch:
    """Calls `on_command` on the running event loop for each command that comes, and `on_failure` once if the
    file fails."""

    def __init__(
        self,
        path: Path,
        session_id: str,
        *,
        on_command: Callable[[], None],
        on_failure: Callable[[StoreUnusable], None],
    ) -> None:
        self._path = path
        self._session_id = session_id
        self._on_command = on_command
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._feed = ChangeFeed(path)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchkeeper-commands", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._feed.close()
            raise

    def close(self) -> None:
        """Stop; nothing is called any more that was not on its way."""
        self._over.set()
        self._feed.close()

    def _run(self) -> None:
        waits = iter(host_faults.RETRY_SECONDS)
        while not self._over.is_set():
            try:
                self._watch_file()
                return
            except StoreUnusable as error:
                wait_seconds = next(waits, None) if isinstance(error, StoreExhausted) else None
                if wait_seconds is None:
                    self._fail(error)
                    return
            self._over.wait(wait_seconds)

    def _watch_file(self) -> None:
        try:
            connection = database.open_readonly(self._path, check_same_thread=False)
            try:
                self._watch(connection)
            finally:
                connection.close()
        except (sqlite3.DatabaseError, MemoryError) as error:
            raise driver.unusable(self._path, error) from error

    def _watch(self, connection: sqlite3.Connection) -> None:
        told = None
        while not self._over.is_set():
            row = connection.execute(
                "SELECT max(id) FROM commands WHERE session_id = ? AND status = 'queued'", (self._session_id,)
            ).fetchone()
            # Not "newer": the numbers of a file start again below those of sessions that were pruned.
            if row[0] is not None and row[0] != told:
                self._call(self._on_command)
            told = row[0]
            while not self._feed.wait(LOOK_SECONDS) and not self._over.is_set():
                pass

    def _fail(self, error: StoreUnusable) -> None:
        if not self._over.is_set():
            self._call(lambda: self._on_failure(error))

    def _call(self, told: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to hear
            self._loop.call_soon_threadsafe(told)


# --- Keeping the index of words up to date while a host runs: beside the agents' steps, in a thread of its ---
#
# own.

log = logging.getLogger(__name__)

INDEX_SECONDS = 3.0
SHARE = 0.2
"""Of the time, at most, is spent on batches while a backlog is indexed: the write lock and the core are the
agents'."""
LOCK_SECONDS = 0.05
"""How long a batch waits for the write lock before it leaves the work to the next round."""
LAST_SECONDS = 1.0
"""What is not indexed when the host has ended is searched by reading it, until somebody indexes it."""


class Indexing:
    """The indexer of one host. An index that cannot be written stops nothing: searches read what it does not
    hold."""

    def __init__(self, path: Path, *, still_ours: Callable[[Connection], bool] | None = None) -> None:
        """`still_ours`: whether the host drives its session still; once it does not, it writes nothing
        more."""
        self._path = path
        self._still_ours = still_ours
        self._executor = ThreadPoolExecutor(1, "watchkeeper-index")
        self._connection: Connection | None = None
        self._failed = False
        self._ending = threading.Event()

    async def run(self) -> None:
        """Index what was written, every few seconds, until cancelled."""
        while not self._failed:
            await asyncio.sleep(INDEX_SECONDS)
            try:
                await self._in_thread(self._round)
            except RuntimeError as error:
                if host_fault(error) is None:
                    raise  # else no thread can be started now

    async def close(self) -> None:
        """Index what is left, for a moment, and end."""
        self._ending.set()
        try:
            await self._in_thread(self._last_round)
        except RuntimeError as error:
            if host_fault(error) is None:
                raise
        finally:
            self._executor.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[Connection], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._guarded, work)

    def _guarded(self, work: Callable[[Connection], None]) -> None:
        if self._failed:
            return
        try:
            if self._connection is None:
                if not self._path.exists():
                    raise StoreUnusable(f"{self._path} was deleted")  # and opening it would make an empty one
                self._connection = database.open_writable(self._path, check_same_thread=False)
                # A power failure may take the newest of the index, never one message: it is made again.
                self._connection.execute("PRAGMA synchronous=NORMAL")
            if self._still_ours is not None and not self._still_ours(self._connection):
                self._failed = True
                self._connection.close()
                return
            work(self._connection)
        except (sqlite3.DatabaseError, StoreUnusable, OSError, MemoryError) as error:
            if not driver.is_busy(error) and driver.shortage(self._path, error) is None:
                self._failed = True
                # Not for a person to read: whatever is wrong with the file, the host itself tells, in one
                # line.
                log.info("messages are no longer indexed: %s", error)

    def _round(self, connection: Connection) -> None:
        while not self._ending.is_set():
            began = time.perf_counter()
            if not index_batch(connection, lock_timeout_seconds=LOCK_SECONDS).more:
                return
            self._ending.wait((time.perf_counter() - began) * (1 / SHARE - 1))

    def _last_round(self, connection: Connection) -> None:
        try:
            index_until(connection, seconds=LAST_SECONDS)
        finally:
            connection.close()


# --- Compactions that go on while their agents rest: a planner that waits for its tasks is compacted ------
#
# meanwhile.


class RestingPasses:
    """Loops that have ended, or have nothing to do, and have a pass in flight; each is landed when it is
    ready.

    The loop that an agent gets next takes the pass, and the memory that it works on, along.
    """

    def __init__(self, *, on_failure: Callable[[BaseException], None]) -> None:
        self._loops: dict[str, AgentLoop] = {}
        self._landing: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure

    def of(self, agent_id: str) -> AgentLoop | None:
        """The agent's loop that is kept, or None."""
        return self._loops.get(agent_id)

    def keep(self, agent_id: str, loop: AgentLoop) -> None:
        """Land the pass of this loop when it is ready."""
        self._loops[agent_id] = loop
        task = asyncio.create_task(self._land(agent_id, loop), name=f"resting-{agent_id}")
        self._landing.add(task)
        task.add_done_callback(self._landed)

    def take(self, agent_id: str) -> AgentLoop | None:
        """The agent works again: what is kept for it is not landed here any more."""
        return self._loops.pop(agent_id, None)

    async def end(self) -> None:
        """The host ends: land what is ready, and put off the rest."""
        loops = list(self._loops.values())
        self._loops.clear()
        for loop in loops:
            await loop.compaction.land()
            await loop.compaction.abandon("the agent rests and its host ended", goes_on=True)
        await asyncio.gather(*self._landing, return_exceptions=True)

    def drop(self) -> None:
        """Stop without a word, because the store takes none any more."""
        for loop in self._loops.values():
            loop.compaction.drop()
        for task in self._landing:
            task.cancel()

    async def _land(self, agent_id: str, loop: AgentLoop) -> None:
        await loop.compaction.ready()
        if self._loops.get(agent_id) is loop:
            await loop.compaction.land()
        if self._loops.get(agent_id) is loop:
            del self._loops[agent_id]

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._landing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)
