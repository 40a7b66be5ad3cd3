"""A replay from the keyboard and by mouse: every key of it, what it shows, and that it changes nothing but by
F."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.told import STEPS, told_session
from textual.pilot import Pilot

from watchkeeper_tui.screens.compaction import CompactionScreen
from watchkeeper_tui.screens.replay import ReplayScreen, Scrubber
from watchkeeper_tui.settings import Settings


def replay(pilot: Pilot[int]) -> ReplayScreen:
    screen = pilot.app.screen
    assert isinstance(screen, ReplayScreen)
    return screen


async def opened(pilot: Pilot[int], desk: Desk, session_id: str = "told2345") -> ReplayScreen:
    await shows(pilot, desk.session.id)
    pilot.app.open_replay(session_id)  # type: ignore[attr-defined]
    await until(
        pilot, lambda: isinstance(pilot.app.screen, ReplayScreen) and pilot.app.screen.shown_position == 1
    )
    return replay(pilot)


@asynccontextmanager
async def replayed(desk: Desk, **options: Any) -> AsyncIterator[tuple[Pilot[int], ReplayScreen]]:
    """The replay of the told session, at its first event."""
    told_session(desk)
    async with desk.shown(**options) as pilot:
        yield pilot, await opened(pilot, desk)


async def at(pilot: Pilot[int], position: int) -> None:
    await until(pilot, lambda: replay(pilot).shown_position == position == replay(pilot).playback.position)


def contents(desk: Desk) -> str:
    """Everything in the file, as one digest."""
    names = [
        row[0]
        for row in desk.session.connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"
        )
    ]
    rows = [
        desk.session.connection.execute(f"SELECT * FROM {name}").fetchall()
        for name in names
        if "fts" not in name
    ]
    return hashlib.sha256(repr(rows).encode("utf-8", "replace")).hexdigest()


async def test_w_in_the_list_replays_the_selected_session_and_esc_leads_back(desk: Desk) -> None:
    told_session(desk)
    async with desk.shown("audit the ledgers", screen="sessions") as pilot:
        await pilot.press("j", "w")
        await shows(pilot, "» REPLAY", "1/14")
        await pilot.press("escape")
        await shows(pilot, "Sessions", without="REPLAY")


async def test_the_open_session_is_replayed_by_slash_and_from_the_palette(desk: Desk) -> None:
    async with desk.shown("migrate billing") as pilot:
        await pilot.press("colon", *"replay", "enter")
        await shows(pilot, "» REPLAY", f"  {desk.session.id}")
        await pilot.press("escape")
        commands = {command.title: command for command in pilot.app.get_system_commands(pilot.app.screen)}
        commands["Replay"].callback()
        await shows(pilot, "» REPLAY")


async def test_each_key_goes_where_it_says_by_event_turn_tenth_and_mark(desk: Desk) -> None:
    async with replayed(desk) as (pilot, screen):
        assert [(mark.position, mark.kind) for mark in screen._marks] == [
            (7, "failure"),
            (11, "compaction"),
            (13, "task"),
        ]
        assert [glyph for glyph in text_of(pilot).splitlines()[37] if glyph in "✗◆✓"] == ["✗", "◆", "✓"]
        for key, position in (
            ("right", 2), ("left", 1), ("left", 1), ("right_square_bracket", 6), ("shift+right", 9),
            ("right_square_bracket", 12), ("left_square_bracket", 9), ("shift+left", 6), ("end", STEPS), ("home", 1),
            ("5", 7), ("9", 12), ("0", 1), ("n", 7), ("n", 11), ("n", 13), ("N", 11), ("5", 7), ("shift+left", 6),
        ):  # fmt: skip
            await pilot.press(key)
            await at(pilot, position)
        await pilot.press("left_square_bracket")
        await shows(pilot, "no earlier turns")


async def test_each_moment_shows_what_stood_then(desk: Desk) -> None:
    async with replayed(desk) as (pilot, screen):
        assert (screen.snapshot.agents, screen.snapshot.tasks) == ((), ())
        await pilot.press("n")
        await at(pilot, 7)
        (task,) = screen.snapshot.tasks
        assert (task.status, task.error) == ("failed", "The ledger is blue.")
        explorer = screen.snapshot.agent("expl-a")
        assert explorer is not None
        assert (explorer.turn, explorer.total_tokens, explorer.last_seq) == (1, 1_010, 1)
        assert "✗ └╴Read the ledger" in text_of(pilot)
        await pilot.press("a", "right", "right")
        await at(pilot, 9)
        await pilot.press("a")
        await shows(pilot, "turn 2: The ledger is blue.", without="turn 3:")
        await pilot.press("right")
        await at(pilot, 10)
        assert [each.status for each in screen.snapshot.compactions] == ["running"]
        await pilot.press("right")
        await at(pilot, 11)
        assert [each.status for each in screen.snapshot.compactions] == ["applied"]
        assert "24k → 6.1k" in text_of(pilot)
        await pilot.press("left", "left", "left")
        await at(pilot, 8)
        assert screen.snapshot.compactions == ()
        await shows(pilot, "turn 1: The ledger is blue.", without="turn 2:")


async def test_the_newest_event_is_marked_and_enter_on_an_earlier_one_goes_there(desk: Desk) -> None:
    async with replayed(desk) as (pilot, _):
        await pilot.press("7")
        await at(pilot, 10)
        assert any("║▌" in line and "compact started" in line for line in text_of(pilot).splitlines())
        await pilot.press("tab", "tab", "k", "k", "k", "enter")
        await at(pilot, 7)


async def test_an_agent_that_was_chosen_is_shown_again_where_it_is_there_again(desk: Desk) -> None:
    async with replayed(desk) as (pilot, _):
        await pilot.press("end")
        await at(pilot, STEPS)
        await pilot.press("j")
        await shows(pilot, "═ Read the ledger (explorer)", "turn 3: The ledger")
        await pilot.press("home", "right")
        await at(pilot, 2)
        await shows(pilot, "═ planner  ● working", "no messages yet")
        await pilot.press("end")
        await shows(pilot, "═ Read the ledger (explorer)", "turn 3: The ledger")


async def test_enter_on_a_compaction_goes_to_where_it_was_applied(desk: Desk) -> None:
    async with replayed(desk) as (pilot, _):
        await pilot.press("end")
        await at(pilot, STEPS)
        await pilot.press("shift+tab", "enter")
        await at(pilot, 11)


async def test_space_plays_at_the_pace_of_the_session_and_stops_at_its_end(desk: Desk) -> None:
    async with replayed(desk) as (pilot, screen):
        clock = [0.0]
        screen._clock = lambda: clock[0]
        await pilot.press("space")
        assert screen.playback.playing
        assert "▶ 1×" in text_of(pilot)
        clock[0] = 3.2
        await at(pilot, 4)
        await pilot.press("space")
        assert not screen.playback.playing
        clock[0] = 500.0
        await pilot.pause(0.25)
        assert screen.playback.position == 4
        await pilot.press("space")
        clock[0] = 1_000.0
        await at(pilot, STEPS)
        assert not screen.playback.playing
        await pilot.press("space")
        await until(pilot, lambda: screen.playback.playing and screen.playback.position == 1)


async def test_speed_and_idle_time_are_changed_by_keys_and_said(desk: Desk) -> None:
    async with replayed(desk) as (pilot, screen):
        for key, speed in (
            ("plus", 2), ("equals_sign", 4), ("greater_than_sign", 8), ("minus", 4), ("less_than_sign", 2),
        ):  # fmt: skip
            await pilot.press(key)
            assert screen.playback.speed == speed
        await until(pilot, lambda: "2×" in text_of(pilot).splitlines()[37])
        await pilot.press("i")
        await shows(pilot, "idle time included")
        assert not screen.playback.skips_idle


async def test_the_scrubber_takes_clicks_and_drags(desk: Desk) -> None:
    async with replayed(desk) as (pilot, screen):
        left, cells = 7, screen.scrubber._cells()
        await pilot.click(Scrubber, offset=(left + cells - 1, 0))
        await at(pilot, STEPS)
        await pilot.mouse_down(Scrubber, offset=(left + cells - 1, 0))
        await pilot.hover(Scrubber, offset=(left, 0))
        await at(pilot, 1)
        await pilot.mouse_up(Scrubber, offset=(left, 0))
        await pilot.hover(Scrubber, offset=(left + cells // 2, 0))
        await pilot.pause(0.05)
        assert screen.playback.position == 1


async def test_a_fork_asks_and_begins_at_the_step_shown(desk: Desk) -> None:
    async with replayed(desk) as (pilot, _):
        await pilot.press("F")
        await shows(pilot, "Fork: no agent had started at this point")
        await pilot.press("n")
        await at(pilot, 7)
        await pilot.press("F")
        await shows(pilot, "after event #7?")
        await pilot.press("right", "n")
        query = "SELECT id, forked_at_seq FROM sessions WHERE forked_from = 'told2345'"
        assert desk.session.connection.execute(query).fetchall() == []
        assert replay(pilot).playback.position == 7
        await pilot.press("F", "y")
        await shows(pilot, "✓ forked after event #7 as")
        ((made, seq),) = desk.session.connection.execute(query).fetchall()
        assert seq == 7
        assert f"`wk resume {made}`" in text_of(pilot)
        assert "Enter" not in text_of(pilot).splitlines()[-2]


async def test_nothing_else_changes_anything(desk: Desk) -> None:
    told_session(desk)
    before = contents(desk)
    keys = [
        "end", "home", "5", "space", "space", "right", "left", "right_square_bracket", "n", "N", "plus", "minus", "i", "a", "r", "z",
        "z", "tab", "tab", "tab", "shift+tab", "comma", "full_stop", "c", "p", "R", "C", "D", "u", "U", "x", "X", "y", "asterisk",
        "e", "f", "s", "m", "M", "delete",
    ]  # fmt: skip
    async with desk.shown() as pilot:
        screen = await opened(pilot, desk)
        for key in keys:
            await pilot.press(key)
            assert pilot.app.screen is screen
        for words in ("pause", "compact", "undo", "cancel", "resume"):
            await pilot.press("colon", *words, "enter")
            assert pilot.app.screen is screen
        await until(pilot, lambda: not screen.prompt.is_asking)
    assert contents(desk) == before
    assert desk.control.submitted == 0


async def test_a_pass_is_opened_from_the_agents_tab_and_nothing_can_be_done_to_it(desk: Desk) -> None:
    told_session(desk)
    before = contents(desk)
    async with desk.shown() as pilot:
        screen = await opened(pilot, desk)
        await pilot.press("end", "N")
        await at(pilot, 13)
        screen._look_at("expl-a")
        screen.agent_pane.open_tab(4)
        screen._ask()
        screen.redraw()
        await shows(pilot, "Compactions  1; Enter opens one")
        await pilot.press("tab", "down", "enter")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, CompactionScreen) and "Before" in text_of(pilot)
        )
        assert "› replay 14:" in text_of(pilot).splitlines()[0]
        assert "› compaction" in text_of(pilot)
        for key in ("u", "U", "C"):
            await pilot.press(key)
            await shows(pilot, "this is a replay")
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
    assert contents(desk) == before
    assert desk.control.submitted == 0


async def test_a_session_that_goes_on_is_read_on_by_r(desk: Desk) -> None:
    async with desk.shown() as pilot:
        screen = await opened(pilot, desk, desk.session.id)
        count = len(screen.playback.times)
        assert "newer events; r loads them" not in text_of(pilot)
        desk.session.event("tool.done", "explorer1", "t-core", tool="read", at=desk.time + 1)
        desk.session.agent("explorer9", "late")
        desk.feed.wake()
        if screen._recording is not None and screen._recording.by_event:
            await shows(pilot, "newer events; r loads them")
        await pilot.press("r")
        await until(pilot, lambda: len(screen.playback.times) == count + 1)


async def test_a_session_that_is_gone_is_said(desk: Desk) -> None:
    async with desk.shown("migrate billing") as pilot:
        pilot.app.open_replay("nothing2")  # type: ignore[attr-defined]
        await shows(pilot, "session nothing2 is no longer in the database")
        await pilot.press("space", "right", "5", "F", "n", "right_square_bracket")
        assert isinstance(pilot.app.screen, ReplayScreen)


async def test_with_reduced_motion_a_replay_moves_once_a_second(desk: Desk) -> None:
    for reduced in (True, False):
        async with replayed(desk, settings=Settings(reduced_motion=reduced)) as (_, screen):
            assert screen.frame_seconds == 1.0 if reduced else screen.frame_seconds < 0.2
