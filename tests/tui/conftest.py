"""A dashboard on a hand-made database, with a clock that stands still and a host that a test may kill."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.tui.fake_store import NOW, FakeSession, create, insert, large_session, small_session
from textual.pilot import Pilot

from watchkeeper.store.search.messages import search, search_messages
from watchkeeper_tui.app import WatchkeeperApp
from watchkeeper_tui.control import PromptPreview
from watchkeeper_tui.reader import Reader
from watchkeeper_tui.requests import Request
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.snapshot import Snapshot


class FakeFeed:
    """Says that something changed when the test says so."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.closed = False

    def wait(self, timeout_seconds: float) -> bool:
        happened = self.changed.wait(min(timeout_seconds, 0.05))
        if happened:
            self.changed.clear()
        return happened

    def wake(self) -> None:
        self.changed.set()

    def close(self) -> None:
        self.closed = True
        self.changed.set()


class FakeControl:
    """Writes commands as the real one does, on the test's own connection; starts no process."""

    def __init__(self, session: FakeSession) -> None:
        self.session = session
        self.started: list[tuple[str, bool, int | None]] = []
        self.fails: Exception | None = None
        self.host_fails: Exception | None = None
        self.submitted = 0
        self.foretold: Any = None
        """What `preview` answers: nothing, a preview, or an error to raise."""

    def submit(
        self,
        session_id: str,
        kind: str,
        *,
        agent_id: str | None,
        task_id: str | None,
        payload: dict[str, Any],
    ) -> int:
        if self.fails is not None:
            raise self.fails
        self.submitted += 1
        insert(
            self.session.connection, "commands", id=self.submitted, session_id=session_id, kind=kind, agent_id=agent_id,
            task_id=task_id, payload=json.dumps(payload), requested_by="dashboard", created_at=self.session.now,
        )  # fmt: skip
        return self.submitted

    def start_host(self, session_id: str, *, resume: bool, once: int | None) -> int | None:
        if self.host_fails is not None:
            raise self.host_fails
        self.started.append((session_id, resume, once))
        return 4242

    async def preview(self, session_id: str, request: Request) -> PromptPreview | None:
        if isinstance(self.foretold, Exception):
            raise self.foretold
        return self.foretold  # type: ignore[no-any-return]


class Desk:
    """Everything that a test of the dashboard holds in its hands."""

    def __init__(self, path: Path, session: FakeSession) -> None:
        self.path = path
        self.session = session
        self.control = FakeControl(session)
        self.feed = FakeFeed()
        self.host_pid: int | None = 991
        self.time = session.now

    def app(self, session_id: str | None = None, **options: Any) -> WatchkeeperApp:
        def reader(path: Path, wanted: str | None, publish: Callable[[Snapshot], None]) -> Reader:
            return Reader(
                path, wanted, publish, feed_factory=lambda _: self.feed, probe=lambda _, __: self.host_pid,
                now=lambda: self.time, tick_seconds=0.005,
            )  # fmt: skip

        options = {"control": self.control, **options}
        return WatchkeeperApp(
            self.path, session_id or self.session.id, reader_factory=reader, now=lambda: self.time,
            probe=lambda _, __: self.host_pid, **options,
        )  # fmt: skip

    @asynccontextmanager
    async def shown(
        self,
        *words: str,
        without: str | tuple[str, ...] = (),
        size: tuple[int, int] = (120, 40),
        notifications: bool = False,
        seconds: float = 10.0,
        row: str = "",
        **options: Any,
    ) -> AsyncIterator[Pilot[int]]:
        """The dashboard at this size, once these words are on its screen, with a row of the plan selected; `options` are
        those of `app`."""
        app = self.app(**options)
        async with app.run_test(size=size, notifications=notifications) as pilot:
            await shows(pilot, *words, without=without, seconds=seconds)
            if row:
                await choose(pilot, row)
            yield pilot


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "watchkeeper.db"


@pytest.fixture
def desk(database: Path) -> Iterator[Desk]:
    """A small session."""
    connection = create(database)
    yield Desk(database, small_session(connection))
    connection.close()


@pytest.fixture
def large_desk(database: Path) -> Iterator[Desk]:
    """Forty agents, and hostile text everywhere."""
    connection = create(database)
    yield Desk(database, large_session(connection))
    connection.close()


@pytest.fixture(autouse=True)
def fixed_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the terminal, the locale or the user who runs the tests reaches a screen."""
    for name in (
        "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "UNICODE_VERSION", "WATCHKEEPER_THEME",
        "WATCHKEEPER_AGENT",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    # The process ids of the tests are made up.
    monkeypatch.setattr("watchkeeper_tui.reader._below", lambda pid: {})
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config" / "watchkeeper"))
    time.tzset()
    # A search gives up after a time that a busy machine may need for three messages.
    monkeypatch.setattr(
        "watchkeeper_tui.screens.sessions.search_messages", partial(search_messages, seconds=30)
    )
    monkeypatch.setattr("watchkeeper_tui.screens.sessions.search", partial(search, deadline_seconds=30))
    monkeypatch.setattr("watchkeeper_tui.screens.message.search", partial(search, deadline_seconds=30))
    # After each key Textual waits, in slices of 20 ms, for an idle one: shorter slices find that sooner, and
    # still hold a frame.
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 1 / 120)
    monkeypatch.setattr("textual._wait.SLEEP_IDLE", 1 / 480)
    monkeypatch.setattr("textual.screen.UPDATE_PERIOD", 1 / 180)
    # Not the first time: the hint of the first time has a test of its own.
    (tmp_path / "state" / "watchkeeper").mkdir(parents=True)
    (tmp_path / "state" / "watchkeeper" / "layout.json").write_text('{"hinted": true}')


__all__ = ["NOW", "Desk"]


def text_of(pilot: Pilot[int]) -> str:
    """What stands on the screen, as lines of text."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


async def until(pilot: Pilot[int], true: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Let the application run until something holds; fails with what the screen showed instead."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await pilot.pause(0.01)
        if true():
            return
    raise AssertionError(f"did not come true within {seconds} s; on screen:\n{text_of(pilot)}")


async def choose(pilot: Pilot[int], row: str) -> None:
    screen = pilot.app.screen_stack[-1]
    assert isinstance(screen, LiveScreen)
    await until(pilot, lambda: screen.plan.place_of(row) is not None)
    screen.plan.select(row)
    await pilot.pause()


async def shows(
    pilot: Pilot[int], *words: str, without: str | tuple[str, ...] = (), seconds: float = 10.0
) -> None:
    """Let the application run until all these words are on its screen, and none of those `without`."""
    gone = (without,) if isinstance(without, str) else without

    def is_shown() -> bool:
        text = text_of(pilot)
        return all(each in text for each in words) and not any(each in text for each in gone)

    if words or gone:
        await until(pilot, is_shown, seconds=seconds)
