"""What a host does in the background while its agents work.

- `Heartbeat` records the hosted time every two seconds, and warns of a write-ahead log that grows.
- `CommandWatch` wakes the host when another process queues a command. It is a thread with a connection of its
  own.
- `Alerts` runs the user's command, or posts to the user's address, when a person is needed.
- `Indexing` keeps the search index up to date. It is a thread too, and yields the write lock to the agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from watchkeeper.records import errors
from watchkeeper.records.errors import StoreExhausted, StoreUnusable, host_fault
from watchkeeper.records.ports import Clock
from watchkeeper.records.quota import owner_name, quota_words, window_name
from watchkeeper.records.text import one_line
from watchkeeper.records.usage_limits import limit_text, session_limit
from watchkeeper.runtime.config import AlertSettings
from watchkeeper.store import commands, database, driver, quota, sessions
from watchkeeper.store.change_feed import ChangeFeed
from watchkeeper.store.driver import Connection, Queries, sqlite3
from watchkeeper.store.engine import index_of
from watchkeeper.store.outcome import load_outcome
from watchkeeper.store.place import Place
from watchkeeper.store.postgres import is_lost
from watchkeeper.store.transaction import SessionStore, Transaction

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0

WAL_WARNING_BYTES = 128 << 20
"""The host warns of a write-ahead log larger than this: some program keeps a read transaction open."""


class Heartbeat:
    """Records for how long a host has run its session. The time counts from the construction."""

    def __init__(self, store: SessionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._noted_at = clock.monotonic()
        self._wal_limit = WAL_WARNING_BYTES
        """The size of the write-ahead log that causes the next warning."""
        self._uncounted = 0.0
        """Hosted seconds from before everything was parked, not recorded yet."""
        self._resting = False
        """Whether everything that could run is parked; such time is not hosted time."""

    def hosted_seconds(self) -> float:
        """How long the session has been hosted, until now."""
        return (
            sessions.require(self._store, self._store.session_id).hosted_seconds
            + self._uncounted
            + (0.0 if self._resting else self._clock.monotonic() - self._noted_at)
        )

    def rest(self, resting: bool) -> None:
        """Set whether nothing can run until a usage limit ends. That time counts for no budget."""
        if resting == self._resting:
            return
        now = self._clock.monotonic()
        if resting:
            self._uncounted += now - self._noted_at
        self._noted_at, self._resting = now, resting

    async def run(self) -> None:
        """Record every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self.note_time()
            await self._note_wal()

    async def note_time(self) -> None:
        """Add the time hosted since the last record; a budget of time counts it."""
        now = self._clock.monotonic()
        seconds = self._uncounted + (0.0 if self._resting else now - self._noted_at)
        self._uncounted, self._noted_at = 0.0, now
        await self._store.commit(lambda tx: sessions.add_hosted_seconds(tx, seconds))

    async def _note_wal(self) -> None:
        """Warn once, and again at each doubling, that the write-ahead log grows."""
        path = self._store.path
        size = driver.wal_bytes(path) if isinstance(path, Path) else 0
        if size < self._wal_limit:
            return
        self._wal_limit = size * 2
        text = (
            f"the database's write-ahead log has grown to {size >> 20} MiB: a program keeps a read transaction"
            " open. Close viewers and scripts that read the file"
        )
        await self._store.commit(lambda tx: tx.event("host.warning", text=text))


ALERT_SECONDS = 1.0
"""How often the host looks whether a person is needed."""
ALERT_TIMEOUT_SECONDS = 30.0
LAST_ALERT_SECONDS = 10.0
"""How long the end of a run waits for its last alerts."""
MOST_ALERTS = 100
"""How many may wait for the one that is sent; older ones are dropped."""
OUTCOME_CHARACTERS, NAMES_CHARACTERS = 1_000, 300
"""An alert contains as much of an outcome, and of each list of names behind it. `wk show` has the rest."""
_ALERTS = {
    "approval.asked": "question",
    "task.failed": "failed",
    "session.failed": "failed",
    "session.paused": "paused",
    "agent.parked": "parked",
    "session.done": "finished",
    "session.cancelled": "finished",
}
_STOPS = ("agent.parked", "session.paused", "session.failed", "task.failed")
"""Events whose reason may be a usage limit."""


class Alerts:
    """Runs the user's command, or posts to the user's address, for each event that needs a person.

    Each event is sent at most once, one after another. Whatever fails here costs one warning and nothing of the run,
    except the loss of the store, which ends the run anyway. What is sent has passed redaction.
    """

    def __init__(self, store: SessionStore, settings: AlertSettings, redact: Callable[[Any], Any]) -> None:
        self._store = store
        self._settings = settings
        self._redact = redact
        self._sender = AlertSender(settings)
        self._seq = sessions.newest_event(store, store.session_id)
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MOST_ALERTS)
        self._warned = False
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Look every second, until cancelled."""
        while True:
            await asyncio.sleep(ALERT_SECONDS)
            await self.send()

    async def send_last(self) -> None:
        """Send what is left, for some seconds at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.send(), LAST_ALERT_SECONDS)

    async def send(self) -> None:
        """Send what has happened since the last time.

        Raises:
            LeaseLost, StoreUnusable: this process can write nothing more.
        """
        async with self._sending:
            try:
                await self._send()
            except errors.STORE_LOST:
                raise
            except Exception as error:
                await self._warn(f"{type(error).__name__}: {error}")

    async def _send(self) -> None:
        kinds = [kind for kind, why in _ALERTS.items() if why in self._settings.on]
        for event in sessions.events_after(self._store, self._store.session_id, self._seq):
            self._seq = event.seq
            if event.kind in kinds:
                self._waiting.append(self._alert(event))
        for due in quota.due_alerts(self._store, self._store.now()) if "quota" in self._settings.on else ():
            if await self._store.commit(partial(_take_alert, due=due)):
                self._waiting.append(
                    self._redact(quota_alert(due, self._store.session_id, self._store.now()))
                )
        while self._waiting:
            if problem := await self._sender.deliver(self._waiting.popleft()):
                await self._warn(problem)

    async def _warn(self, problem: str) -> None:
        """Say the first problem of the run."""
        if self._warned:
            return
        self._warned = True
        text = self._redact(one_line(f"alert not delivered: {problem}", 400))
        await self._store.commit(lambda tx: tx.event("host.warning", text=text))

    def _alert(self, event: sessions.Event) -> dict[str, Any]:
        session_id, at, kind, data = self._store.session_id, event.at, event.kind, event.data
        said = next((data[name] for name in ("reason", "error", "question", "tool") if data.get(name)), "")
        until = data.get("until") if kind == "agent.parked" else None
        stopped = str(said) if kind in _STOPS else None
        limit = session_limit(kind.rpartition(".")[2], stopped, at, until, stopped)
        if limit is not None:
            said = f"{limit_text(limit, at)}: {said}"
        alert = {
            "why": _ALERTS[kind],
            "event": kind,
            "session_id": session_id,
            "title": one_line(sessions.require(self._store, session_id).name, 200),
            "agent": event.agent and one_line(event.agent, 200),
            "task": event.task and one_line(event.task, 200),
            "text": (limit is None and self._outcome(kind)) or one_line(str(said), OUTCOME_CHARACTERS),
            "usage_limit": limit and {"name": limit.name, "ends_at": limit.ends_at},
            "at": at,
            "look": f"wk approve --show {session_id}"
            if kind == "approval.asked"
            else f"wk watch {session_id}",
        }
        redacted: dict[str, Any] = self._redact(alert)
        return redacted

    def _outcome(self, kind: str) -> str:
        """How the run ended, in its first lines, with the names of what it left; empty for any other event."""
        if not kind.startswith("session."):
            return ""
        ended = load_outcome(self._store, self._store.session_id)
        if ended is None or kind != f"session.{ended.ending.status}":
            return ""
        session_id = self._store.session_id
        said = ended.ending
        first = one_line("\n".join(filter(None, (said.stopped, said.summary))), OUTCOME_CHARACTERS)
        names = ended.names(f"wk artifacts {session_id}", f"wk show {session_id}")
        return " ".join(
            [first, *(one_line(f"{title}: {listed}.", NAMES_CHARACTERS) for title, listed in names)]
        )


class AlertSender:
    """Sends one alert to the user's command and address."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings

    async def deliver(self, alert: dict[str, Any]) -> str:
        """Send one alert both ways; returns what went wrong."""
        problems = []
        if self._settings.command:
            name = self._settings.command[0]
            try:
                problems.append(await self._call(name, json.dumps(alert).encode()))
            except Exception as error:
                problems.append(_failure(name, error))
        if self._settings.webhook:
            try:
                problems.append(await self._post(self._settings.webhook, alert))
            except Exception as error:
                problems.append(_failure("the webhook", error))
        return "; ".join(filter(None, problems))

    async def _call(self, name: str, document: bytes) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._settings.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"{name} did not start: {error}"
        try:
            await asyncio.wait_for(process.communicate(document), ALERT_TIMEOUT_SECONDS)
        except (TimeoutError, asyncio.CancelledError) as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if isinstance(error, asyncio.CancelledError):
                raise
            return f"{name} took longer than {ALERT_TIMEOUT_SECONDS:.0f} s and was stopped"
        return f"{name} exited with code {process.returncode}" if process.returncode else ""

    async def _post(self, address: str, alert: dict[str, Any]) -> str:
        import httpx2

        try:
            async with httpx2.AsyncClient(timeout=10, follow_redirects=False) as client:
                answer = await client.post(address, json=alert)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return f"cannot reach the webhook: {type(error).__name__}"
        return f"the webhook returned status {answer.status_code}" if answer.status_code >= 300 else ""


def _take_alert(tx: Transaction, due: quota.DueAlert) -> bool:
    return quota.take_alert(tx.changed, due)


def quota_alert(due: quota.DueAlert, session_id: str | None, now: float) -> dict[str, Any]:
    """What a person is sent when little is left of a usage window; `session_id`: the run that says so."""
    reading = due.quota.newest
    text = f"{owner_name(reading)}, {window_name(reading)}: {quota_words(due.quota, now)}"
    return {
        "why": "quota", "event": "quota.low", "session_id": session_id, "title": one_line(window_name(reading), 200),
        "agent": None, "task": None, "text": one_line(text, OUTCOME_CHARACTERS), "usage_limit": None, "at": now,
        "look": "wk usage",
    }  # fmt: skip


def _failure(what: str, error: Exception) -> str:
    return f"{what} failed: {type(error).__name__}: {error}"


class Watching(Protocol):
    """Begins to watch a session for commands (see `CommandWatch`)."""

    def __call__(
        self,
        path: Place,
        session_id: str,
        *,
        on_command: Callable[[], None],
        on_failure: Callable[[StoreUnusable], None],
    ) -> Watch: ...


class Watch(Protocol):
    """Watches a session for commands."""

    def close(self) -> None:
        """Stop."""


LOOK_SECONDS = 1.0
"""How often a command watch without events checks whether to stop."""


class CommandWatch:
    """Calls `on_command` on the running event loop for each new command, and `on_failure` once if the file
    fails.

    Every commit of any process to the file wakes the thread; the event loop is called only for a command.
    """

    def __init__(
        self,
        path: Place,
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
        """Stop. A call that was already scheduled may still come."""
        self._over.set()
        self._feed.close()

    def _run(self) -> None:
        waits = iter(errors.RETRY_SECONDS)
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
        reported, reads = None, Queries(connection)
        while not self._over.is_set():
            newest = commands.newest_queued(reads, self._session_id)
            # Not "greater": after a prune, new commands may have smaller numbers.
            if newest is not None and newest != reported:
                self._call(self._on_command)
            reported = newest
            while not self._feed.wait(LOOK_SECONDS) and not self._over.is_set():
                pass

    def _fail(self, error: StoreUnusable) -> None:
        if not self._over.is_set():
            self._call(lambda: self._on_failure(error))

    def _call(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(callback)


INDEX_SECONDS = 3.0
SHARE = 0.2
"""The greatest part of the time that a backlog may take, so that agents get the write lock and the processor."""
LOCK_SECONDS = 0.05
"""How long a batch waits for the write lock before it leaves the work to the next round."""
LAST_SECONDS = 1.0
"""How long indexing may take when the host ends. A search reads what is not indexed."""


class Indexing:
    """Indexes new messages. If the index cannot be written, the run continues and searches read the messages."""

    def __init__(self, path: Place, *, still_ours: Callable[[Connection], bool] | None = None) -> None:
        """`still_ours`: whether the host still holds its session; if not, nothing more is written."""
        self._path = path
        self._still_ours = still_ours
        self._executor = ThreadPoolExecutor(1, "watchkeeper-index")
        self._connection: Connection | None = None
        self._failed = False
        self._ending = threading.Event()

    async def run(self) -> None:
        """Index new messages every few seconds, until cancelled."""
        while not self._failed:
            await asyncio.sleep(INDEX_SECONDS)
            try:
                await self._in_thread(self._round)
            except RuntimeError as error:
                if host_fault(error) is None:
                    raise  # a host fault: no thread can start now

    async def close(self) -> None:
        """Index what is left, for at most `LAST_SECONDS`, and end."""
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
                if not database.is_there(self._path):
                    raise StoreUnusable(f"{self._path} was deleted")  # opening it would create an empty file
                self._connection = database.open_writable(self._path, check_same_thread=False)
                # A power failure may lose the newest part of the index, but no message; it is indexed again.
                if isinstance(self._path, Path):
                    self._connection.execute("PRAGMA synchronous=NORMAL")
            if self._still_ours is not None and not self._still_ours(self._connection):
                self._failed = True
                self._connection.close()
                return
            work(self._connection)
        except (sqlite3.DatabaseError, StoreUnusable, OSError, MemoryError) as error:
            # A server that is away for a while is asked again in the next round.
            away = not isinstance(self._path, Path) and (
                self._connection is None or is_lost(self._connection)
            )
            if not away and not driver.is_busy(error) and driver.shortage(self._path, error) is None:
                self._failed = True
                # Only logged: the host itself reports, in one line, what is wrong with the file.
                log.info("message indexing stopped: %s", error)

    def _round(self, connection: Connection) -> None:
        while not self._ending.is_set():
            began = time.perf_counter()
            if not index_of(connection).index_batch(lock_timeout_seconds=LOCK_SECONDS).more:
                return
            self._ending.wait((time.perf_counter() - began) * (1 / SHARE - 1))

    def _last_round(self, connection: Connection) -> None:
        try:
            index_of(connection).index_until(seconds=LAST_SECONDS)
        finally:
            connection.close()
