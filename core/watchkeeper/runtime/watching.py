"""Learning of the commands that other processes queue, in a thread beside the host's event loop.

Every commit of every process on the file wakes it, the host's own too; the event loop only hears of a
command.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from watchkeeper.records import host_faults
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.host_faults import StoreExhausted
from watchkeeper.store import database
from watchkeeper.store.changes import ChangeFeed
from watchkeeper.store.driver import sqlite3

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
            raise database.unusable(self._path, error) from error

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
