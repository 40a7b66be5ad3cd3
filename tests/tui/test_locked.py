"""A database that another program holds: the screen goes on, says so, loses nothing, and carries on by
itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.tui.conftest import Desk, shows, text_of, until

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import database, driver
from watchkeeper.store.driver import sqlite3
from watchkeeper_tui.control import StoreControl
from watchkeeper_tui.screens.replay import ReplayScreen
from watchkeeper_tui.screens.sessions import SessionsScreen

"""On a busy machine too: whoever waited for the lock would wait three times as long."""


@pytest.fixture
def rollback_desk(database: object, desk: Desk) -> Desk:
    """A database whose readers wait for its writers: not in WAL mode, as a copy made elsewhere may be."""
    desk.session.connection.execute("PRAGMA journal_mode=DELETE")
    return desk


@contextmanager
def held(desk: Desk) -> Iterator[None]:
    """Another connection holds the database, for as long as the block runs."""
    holder = sqlite3.connect(str(desk.path), isolation_level=None, timeout=10)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        if holder.in_transaction:
            holder.execute("ROLLBACK")
        holder.close()


async def test_a_screen_that_cannot_read_says_so_soon_and_claims_nothing_newer(rollback_desk: Desk) -> None:
    desk = rollback_desk
    async with desk.shown("explorer-1") as pilot:
        with held(desk):
            desk.feed.wake()
            await shows(pilot, "is locked by another program", seconds=4)
            assert "NOT UPDATED" in text_of(pilot).splitlines()[0]
            shown = text_of(pilot)
            desk.time += 95
            await until(pilot, lambda: "NOT UPDATED 1:35" in text_of(pilot).splitlines()[0])
            # Nobody knows whether an agent was silent since.
            assert "silent" not in text_of(pilot)
            assert "explorer-1" in shown
            await pilot.press("j", "k", "3", "right")
            assert "[Transcript]" in text_of(pilot)
        desk.feed.wake()
        await shows(pilot, without=("is locked by", "NOT UPDATED"))
        desk.session.event("tool.done", "explorer1", "t-core", tool="bash", preview="after the lock")
        desk.feed.wake()
        await shows(pilot, "after the lock")


async def test_the_list_of_sessions_never_says_that_there_are_none_before_it_was_read(rollback_desk):
    desk = rollback_desk
    async with desk.shown("explorer-1") as pilot:
        with held(desk):
            await pilot.press("s")
            await until(pilot, lambda: isinstance(pilot.app.screen, SessionsScreen))
            assert "no sessions yet" not in text_of(pilot)
            await shows(pilot, "is locked by another program", seconds=4)
            desk.time += 30
            await pilot.pause(1.2)
            assert "no sessions yet" not in text_of(pilot)
            assert "is locked by another program" in text_of(pilot)
        desk.time += 30
        await shows(pilot, desk.session.id, without="is locked by")


async def test_a_replay_that_meets_a_lock_begins_when_it_is_gone(rollback_desk: Desk) -> None:
    desk = rollback_desk
    async with desk.shown("explorer-1") as pilot:
        with held(desk):
            pilot.app.open_replay(desk.session.id)  # type: ignore[attr-defined]
            await shows(pilot, "is locked by another program", seconds=4)
            assert isinstance(pilot.app.screen, ReplayScreen)
        await shows(pilot, "space plays")


async def test_a_command_waits_for_the_lock_beside_the_screen_and_says_so(desk: Desk) -> None:
    async with desk.shown("explorer-1", control=StoreControl(desk.path)) as pilot:
        with held(desk):
            await pilot.press("p", "j")
            await shows(pilot, "… pause explorer-1")
            desk.time += 3
            await shows(pilot, "another program has locked the database")
            # In WAL mode what is committed is read all the while.
            assert "NOT UPDATED" not in text_of(pilot)
            assert desk.session.commands() == []
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == ["pause"])


async def test_a_command_that_never_got_the_lock_is_said_not_to_have_been_given(desk, monkeypatch):
    monkeypatch.setattr(driver, "LOCK_TIMEOUT_SECONDS", 0.3)
    async with desk.shown("explorer-1", control=StoreControl(desk.path)) as pilot:
        with held(desk):
            await pilot.press("p")
            await shows(pilot, "is locked by another program")
        assert desk.session.commands() == []


async def test_leaving_with_a_pause_waits_for_no_lock_on_the_screens_own_thread(desk: Desk) -> None:
    async with desk.shown("explorer-1", control=StoreControl(desk.path)) as pilot:
        with held(desk):
            await pilot.press("q", "p")
            await shows(pilot, "pausing the run")
            assert pilot.app.is_running
        await until(pilot, lambda: not pilot.app.is_running)
    assert pilot.app.left_by == "pause"  # type: ignore[attr-defined]
    assert [each[0] for each in desk.session.commands()] == ["pause"]


async def test_a_run_that_could_not_be_paused_is_not_left(desk, monkeypatch):
    monkeypatch.setattr(driver, "LOCK_TIMEOUT_SECONDS", 0.3)
    async with desk.shown("explorer-1", control=StoreControl(desk.path)) as pilot:
        with held(desk):
            await pilot.press("q", "p")
            await shows(pilot, "not paused: ")
        assert pilot.app.is_running
        assert pilot.app.left_by == "leave"


async def test_a_change_of_a_session_waits_for_the_lock_and_says_so(desk: Desk) -> None:
    desk.host_pid = None
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("s")
        await shows(pilot, desk.session.id)
        with held(desk):
            await pilot.press("n")
            pilot.app.screen.query_one("#prompt-line").value = "billing, in cents"  # type: ignore[attr-defined]
            await pilot.press("enter")
            await shows(pilot, "another program has locked the database")
        await shows(pilot, "named billing, in cents")


def test_a_viewer_that_meets_a_lock_waits_no_longer_than_it_was_told(
    rollback_desk: Desk, monkeypatch
) -> None:
    monkeypatch.setattr(driver, "LOCK_TIMEOUT_SECONDS", 1e6)
    with held(rollback_desk), pytest.raises(StoreUnusable, match="locked by another program"):
        database.open_readonly(rollback_desk.path, lock_timeout_seconds=0.2)
