"""Keeping the index of words up to date while a host runs: beside the agents' steps, in a thread of its
own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.host_faults import host_fault
from watchkeeper.store import database
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.message_index import index_batch, index_until

log = logging.getLogger(__name__)

EVERY_SECONDS = 3.0
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
            await asyncio.sleep(EVERY_SECONDS)
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
            if not database.is_busy(error) and database.shortage(self._path, error) is None:
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
