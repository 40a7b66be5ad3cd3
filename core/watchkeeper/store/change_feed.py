"""Noticing changes of the database: `watchfiles` on its folder, confirmed by `PRAGMA data_version`."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import database
from watchkeeper.store.database import Identity, identities, taken_away
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.place import Place

POLL_SECONDS = 0.25
"""How often `data_version` is asked where no file event came (or file events do not work at all)."""

SERVER_POLL_SECONDS = 0.04
"""How often a server is asked."""

STEP_MILLISECONDS = 2
"""How often file events are collected; each time wakes the process, which at 2 ms costs a hundredth of a
processor."""

QUIET_SECONDS = 10
"""After so long without a file event, events are collected less often, if the waiting caller allows that."""

RESTING = 4
"""Then `data_version` is asked so many times less often, too: a file event is heard of all the same."""

LET_GO_SECONDS = 2.0
"""How long nothing is open after a file was removed: while one connection of a process has it open, new ones
get it too."""

AFTERMATH_SECONDS = 0.3
"""How long after a file event a commit may take to become visible: as long as a slow fsync."""


class ChangeFeed:
    """Tells when another connection has committed. One per viewer or host; used from one thread, closed from
    any.

    `wait` may return True without a change (a checkpoint touches the files too); it never misses one for
    longer than `POLL_SECONDS` (`RESTING` times that where nothing was written for `QUIET_SECONDS`).
    """

    def __init__(
        self,
        path: Place,
        *,
        poll_seconds: float = POLL_SECONDS,
        step_milliseconds: int = STEP_MILLISECONDS,
        quiet_step_milliseconds: int | None = None,
        server_poll_seconds: float = SERVER_POLL_SECONDS,
    ) -> None:
        """A screen may take longer than a host, and save a processor.

        `step_milliseconds`: how often file events are collected; `quiet_step_milliseconds`: the same when
        none has come for `QUIET_SECONDS` (None: no less often).
        """
        self._path = path
        self._poll_seconds = poll_seconds
        self._step = step_milliseconds
        self._quiet_step = quiet_step_milliseconds or step_milliseconds
        self._resting = False
        """File events work, and none came for a while."""
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._connection: sqlite3.Connection | None = None
        self._version: int | str | None = None
        self._files: dict[str, Identity] = {}
        self._let_go_until = 0.0
        self._asked_at = float("-inf")
        """When a server was asked last."""
        if not isinstance(path, Path):
            self._poll_seconds = server_poll_seconds
            return
        self._thread = threading.Thread(target=self._watch, name="watchkeeper-changes", daemon=True)
        with suppress(RuntimeError):  # no thread can be started now: the poll in `wait` continues alone
            self._thread.start()

    def wait(self, timeout_seconds: float) -> bool:
        """Block until the database has changed, probably, or the time has passed; True for a change."""
        deadline = time.monotonic() + timeout_seconds
        if isinstance(self._path, Path) and self._version is not None and self._changed():
            return True  # where much is written, file events come later than this question
        while not self._stop.is_set():
            left = deadline - time.monotonic()
            poll = self._poll_seconds * (RESTING if self._resting else 1)
            if not isinstance(self._path, Path):  # it may have been some time since the last question
                poll = max(0.0, self._asked_at + poll - time.monotonic())
            woken = self._woken.wait(max(0.0, min(left, poll)))
            self._woken.clear()
            if self._stop.is_set():
                return True
            if self._changed():
                return True
            if woken and left > 0 and self._soon(min(left, AFTERMATH_SECONDS)):
                return True
            if left <= poll:
                return False
        return True

    def _soon(self, seconds: float) -> bool:
        """Look again and again: a file event comes with the WAL's write, before the commit that it belongs to
        is visible."""
        deadline = time.monotonic() + seconds
        pause = 0.001
        while not self._stop.is_set() and time.monotonic() < deadline:
            if self._woken.wait(pause):
                self._woken.clear()
            if self._changed():
                return True
            pause = min(2 * pause, 0.02)
        return False

    def wake(self) -> None:
        """Make a waiting `wait` look now."""
        self._woken.set()

    def close(self) -> None:
        """Stop watching; a waiting `wait` returns."""
        self._stop.set()
        self._woken.set()

    def _changed(self) -> bool:
        if not isinstance(self._path, Path):
            return self._changed_on_server()
        if time.monotonic() < self._let_go_until:
            return False
        files = identities(self._path)
        if self._connection is not None and taken_away(self._files, files):
            self._connection.close()
            self._connection = self._version = None
            self._files = {}
            self._let_go_until = time.monotonic() + LET_GO_SECONDS
            return True
        self._files = self._files | {
            name: found for name, found in files.items() if self._files.get(name) is None
        }
        try:
            if self._connection is None:
                self._connection = database.open_readonly(
                    self._path, check_same_thread=False, lock_timeout_seconds=database.VIEWER_LOCK_SECONDS
                )
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except (sqlite3.Error, StoreUnusable):
            return True
        changed = version != self._version
        self._version = version
        return bool(changed)

    def _changed_on_server(self) -> bool:
        """The snapshot of PostgreSQL changes whenever a transaction that writes begins or ends."""
        self._asked_at = time.monotonic()
        try:
            if self._connection is None:
                self._connection = database.open_readonly(self._path)
            version = self._connection.execute("SELECT CAST(pg_current_snapshot() AS text)").fetchone()[0]
        except (sqlite3.Error, StoreUnusable):
            return True
        changed = version != self._version
        self._version = version
        return bool(changed)

    def _watch(self) -> None:
        assert isinstance(self._path, Path)
        step = self._step
        try:
            while not self._stop.is_set():
                # What happens while one gives way to the other is seen by the poll in `wait`.
                step = self._collect(step)
                self._resting = step != self._step
        except BaseException:  # a panic of the library is no `Exception`
            # No file events here (watches or descriptors exhausted, folder gone): the poll in `wait`
            # continues alone.
            self._resting = False

    def _collect(self, step: int) -> int:
        """Collect file events every `step` milliseconds; returns how often it should be done from now on."""
        assert isinstance(self._path, Path)
        from watchfiles import watch

        # The library has a thread of its own, and aborts the process where that cannot be started.
        probe = threading.Thread(target=_nothing, daemon=True)
        probe.start()
        probe.join()
        names = {self._path.name, self._path.name + "-wal"}
        quiet = 0
        for found in watch(
            self._path.resolve().parent,
            watch_filter=lambda _, name: Path(name).name in names,
            debounce=2 * step,
            step=step,
            rust_timeout=1000,
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=False,
            raise_interrupt=False,
        ):
            if self._stop.is_set():
                break
            if found:
                self._woken.set()
            quiet = 0 if found else quiet + 1  # without an event it is heard of once a second
            wanted = (
                self._quiet_step
                if quiet >= QUIET_SECONDS or (step == self._quiet_step and not found)
                else self._step
            )
            if wanted != step:
                return wanted
        return step


def _nothing() -> None:
    pass
