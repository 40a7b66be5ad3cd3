"""Keys act one after the other, and before what the database says."""

from __future__ import annotations

import dataclasses
import time

import pytest
from tests.tui.conftest import Desk, shows, until
from textual import events

from watchkeeper_tui.app import SnapshotReady, WatchkeeperApp
from watchkeeper_tui.keymap import LONGEST_WAIT
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.snapshot import Roster
from watchkeeper_tui.widgets.panes import EventsView

WIDE = (120, 40)


def type_key(app: WatchkeeperApp, key: str, character: str) -> None:
    """As a terminal does it: the next key does not wait until the one before has acted."""
    event = events.Key(key, character)
    event.set_sender(app)
    assert app._driver is not None
    app._driver.send_message(event)


async def test_keys_of_one_burst_go_where_each_belongs(desk: Desk) -> None:
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "explorer-1")
        for key, character in (("colon", ":"), *((each, each) for each in "resume")):
            type_key(app, key, character)
        await shows(pilot, ":resume")
        assert desk.control.submitted == 0


async def test_a_reading_that_comes_while_a_key_is_under_way_waits_until_the_key_is_painted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper_tui.keymap.LONGEST_WAIT", 1_000.0)  # however busy the machine is
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "explorer-1")
        screen = pilot.app.screen
        assert isinstance(screen, LiveScreen)
        chosen, happened = screen.plan.selected_id, []
        show, go = screen.snapshot_changed, screen.plan._go

        def shown(snapshot):  # type: ignore[no-untyped-def]
            happened.append("reading")
            show(snapshot)

        def moved(place, *, tell=True):  # type: ignore[no-untyped-def]
            happened.append("key")
            go(place, tell=tell)

        screen.snapshot_changed, screen.plan._go = shown, moved  # type: ignore[method-assign]
        passed = app._pass_next

        async def and_a_reading_comes() -> None:
            if app._waiting:
                happened.clear()  # a reading of the desk may have come before the key
            await passed()
            app.post_message(SnapshotReady(app.snapshot))
            app._tick()  # the clock may strike any time

        app._pass_next = and_a_reading_comes  # type: ignore[method-assign]
        type_key(app, "j", "j")
        await until(pilot, lambda: "reading" in happened)
        assert happened[:2] == ["key", "reading"]
        assert screen.plan.selected_id != chosen


async def test_a_reading_is_shown_though_the_widget_of_the_last_key_is_gone(desk: Desk) -> None:
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "explorer-1")
        app._passed_at, done = time.monotonic() + 1_000, []  # a key that never comes back
        app.after_keys(lambda: done.append("held"))
        app._tick()
        assert not done
        app._passed_at = time.monotonic() - LONGEST_WAIT
        app._tick()
        assert done == ["held"]


async def test_more_events_than_before_lay_nothing_out(desk: Desk) -> None:
    async with desk.shown("explorer-1") as pilot:
        view = pilot.app.screen.query_one(EventsView)
        rows = [*view.rows] * 40
        view.update = lambda *_: None  # type: ignore[method-assign]  # a reading of the desk would show its few rows again
        view.set_rows(rows)  # the scrollbar comes, and takes a column: that does lay out
        for _ in range(4):  # and once more, for the column
            await pilot.pause()
        await until(pilot, lambda: not view._layout_required)
        view.set_rows([*rows, view.rows[-1]])
        assert not view._layout_required
        assert view.max_scroll_y == len(rows) + 1 - view.scrollable_content_region.height
        assert view.scroll_offset.y == view.max_scroll_y


async def test_a_copied_roster_goes_its_own_way(desk: Desk) -> None:
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "explorer-1")
        snapshot = app.snapshot
        roster = Roster()
        roster.update(snapshot, snapshot.read_at)
        before = dict(roster.counts())
        other = roster.copy()
        working = next(agent for agent in snapshot.agents if agent.status == "working")
        agents = tuple(
            dataclasses.replace(each, status="failed") if each is working else each
            for each in snapshot.agents
        )
        other.update(dataclasses.replace(snapshot, agents=agents), snapshot.read_at)
        assert dict(roster.counts()) == before
        assert other.counts()["✗"] == before.get("✗", 0) + 1


async def test_keys_typed_on_while_the_program_ends_are_nobodys(desk: Desk) -> None:
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "explorer-1")
        stack, app._screen_stack[:] = list(app._screen_stack), []
        try:
            await app.on_event(events.Key("j", "j"))
            app._waiting.append(events.Key("j", "j"))
            await app.on_key_passed()
        finally:
            app._screen_stack[:] = stack
