"""On every screen: `/` finds as `less` does, `n` and `N` go on, `g` and `G` go to the ends, `enter` opens, `esc` goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.tui.conftest import NOW, Desk, shows, until
from tests.tui.fake_store import FakeSession
from tests.tui.test_compaction_screen import compacted
from tests.tui.test_rendering import save
from tests.tui.told import told_session
from textual.pilot import Pilot
from textual.screen import Screen

from watchkeeper_tui.control import PromptMessage, PromptPreview
from watchkeeper_tui.screens.artifacts import ArtifactsScreen
from watchkeeper_tui.screens.base import HelpScreen, SearchScreen
from watchkeeper_tui.screens.compaction import CompactionScreen
from watchkeeper_tui.screens.compare import CompareScreen
from watchkeeper_tui.screens.dialogs import ForkScreen, PromptScreen
from watchkeeper_tui.screens.fleet import FleetScreen, WorkersScreen
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.screens.message import MessageScreen
from watchkeeper_tui.screens.replay import ReplayScreen
from watchkeeper_tui.screens.sessions import SessionsScreen
from watchkeeper_tui.screens.timeline import TimelineScreen
from watchkeeper_tui.screens.usage import UsageScreen
from watchkeeper_tui.widgets.bars import Prompt
from watchkeeper_tui.widgets.rows import RowView


@pytest.fixture
def full_desk(desk: Desk) -> Desk:
    """A session with a compaction and artifacts, three more sessions, three workers, calls of three models."""
    run = desk.session
    compacted(run)
    run.compaction("planner1", id=6)
    told_session(desk)
    for number in range(3):
        FakeSession(run.connection, f"more234{number}", goal=f"audit the ledger {number}", status="paused")
        run.connection.execute(
            "INSERT INTO workers (id, host_name, pid, labels, slots, status, started_at, seen_at)"
            " VALUES (?, ?, 4711, '[]', 4, 'running', ?, ?)",
            (f"w-{number}", f"rack-{number}", NOW - 4000, NOW),
        )
        run.call("explorer1", model=f"anthropic/opus-{number}", started_at=NOW - 86_400 * number)
        run.event("tool.done", "explorer1", "t-core", tool="bash", preview=f"make {number}")
    text = "\n\n".join(f"Part {number}\n\n" + "cents are integers\n" * 40 for number in range(30))
    save(desk, "notes.txt", text.encode())
    save(desk, "totals.txt", b"in cents")
    return desk


def push(screen: Callable[[], Screen[Any]]) -> Callable[[Pilot[int]], None]:
    def opens(pilot: Pilot[int]) -> None:
        pilot.app.push_screen(screen())

    return opens


def call(name: str, *values: Any) -> Callable[[Pilot[int]], None]:
    return lambda pilot: getattr(pilot.app, name)(*values)


PREVIEW = PromptPreview(messages=tuple(PromptMessage(role, 9, ()) for role in ("user", "assistant") * 30))
SCREENS: dict[str, tuple[type[Screen[Any]], Callable[[Pilot[int]], None], str, str]] = {
    "message": (MessageScreen, call("open_message", "abcd2345", "explorer1", 3), "", "lines"),
    "before": (CompactionScreen, call("open_compaction", 5), "", "user"),
    "after": (CompactionScreen, call("open_compaction", 5), "tab", "core"),
    "list of artifacts": (ArtifactsScreen, call("open_artifacts"), "tab", ".txt"),
    "artifact": (ArtifactsScreen, call("open_artifacts"), "n", "part 1"),
    "timeline": (TimelineScreen, call("open_timeline", "abcd2345"), "", "explorer"),
    "usage": (UsageScreen, call("open_usage"), "m", "opus"),
    "fleet": (FleetScreen, call("open_fleet"), "", "audit"),
    "workers": (WorkersScreen, push(WorkersScreen), "", "rack"),
    "compare": (CompareScreen, push(lambda: CompareScreen("abcd2345", "more2340")), "", "ledger"),
    "help": (HelpScreen, lambda pilot: pilot.app.screen.action_help(), "", "agent"),  # type: ignore[attr-defined]
    "prompt": (PromptScreen, push(lambda: PromptScreen("drop", PREVIEW)), "", "assistant"),
}
"""What opens a screen, the key that then chooses a view of it, and a word that several of its rows have."""


async def opened(pilot: Pilot[int], name: str) -> SearchScreen:
    kind, opens, key, word = SCREENS[name]
    opens(pilot)
    await until(pilot, lambda: isinstance(pilot.app.screen, kind) and bool(pilot.app.screen.query(RowView)))
    screen = pilot.app.screen
    assert isinstance(screen, SearchScreen)
    await until(pilot, lambda: len(screen.query(RowView).first().rows) > 0)
    await pilot.press(*filter(None, [key]))
    await until(pilot, lambda: len(having(screen, word)) > 1)
    return screen


def having(screen: SearchScreen, word: str) -> list[int]:
    """The places of the rows that have the word."""
    view = screen.searched
    texts = ["".join(text for cell in view.row_cells(row) for text, _ in cell) for row in view.rows]
    return [place for place, text in enumerate(texts) if word in text.casefold()]


def marked(view: RowView[Any], place: int) -> str:
    """What is marked as a match in a row that is in sight."""
    style = view.watch_app.palette["match"]
    strip = view.render_line(place - view.scroll_offset.y + (1 if view.HEADINGS else 0))
    return "".join(
        part.text for part in strip if part.style and part.style.underline == style.underline is not None
    )


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=str)
@pytest.mark.parametrize("name", SCREENS)
async def test_words_are_found_from_the_cursor_on_and_n_and_N_go_from_match_to_match(full_desk, name, size):
    word = SCREENS[name][3]
    async with full_desk.shown("explorer-1", size=size) as pilot:
        below = pilot.app.screen
        screen = await opened(pilot, name)
        view = screen.searched
        await pilot.press("g", "slash", *word.upper(), "enter")
        places = having(screen, word)
        assert len(places) > 1

        def is_at(place: int) -> bool:
            return view._index == place and view._is_in_sight(place)

        first = places[0]
        await until(pilot, lambda: is_at(first))
        assert word in marked(view, first).casefold()
        await pilot.press("n")
        await until(pilot, lambda: is_at(places[1]))
        await pilot.press("N")
        await until(pilot, lambda: is_at(first))
        await pilot.press("N")
        await until(pilot, lambda: view._index > first)
        await shows(pilot, "search continued at the end")
        assert name in ("artifact", "timeline") or is_at(places[-1])
        await pilot.press("n")
        await until(pilot, lambda: is_at(first))
        await shows(pilot, "search continued at the top")
        await pilot.press("escape")
        assert pilot.app.screen is screen
        assert word not in marked(view, first).casefold()
        await pilot.press("slash", *"zebra", "enter")
        await shows(pilot, "no match for zebra")
        assert is_at(first)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: pilot.app.screen is below)


async def test_esc_while_typing_leaves_the_search_as_it_was_and_no_words_repeat_it(full_desk: Desk) -> None:
    async with full_desk.shown("explorer-1") as pilot:
        screen = await opened(pilot, "workers")
        await pilot.press("slash", *"rack", "enter", "slash", *"zebra", "escape")
        assert screen.sought == "rack"
        assert not screen.query_one(Prompt).is_asking
        await pilot.press("slash", "enter")
        await until(pilot, lambda: screen.searched._index == 1)


async def test_a_timeline_is_searched_for_what_happened_too(full_desk: Desk) -> None:
    async with full_desk.shown("explorer-1") as pilot:
        screen = await opened(pilot, "timeline")
        assert isinstance(screen, TimelineScreen)
        await pilot.press("g", "slash", *"credit balance", "enter")
        await shows(pilot, "failed: credit balance is too low")
        assert screen.view.selected is not None
        assert screen.view.selected.label == "writer-1 (writer)"


REPLAY = (ReplayScreen, call("open_replay", "told2345"))
LIVE = (LiveScreen, lambda pilot: None)
LISTS: dict[str, tuple[type[Screen[Any]], Callable[[Pilot[int]], object], str, type[Screen[Any]] | str]] = {
    "plan": (*LIVE, "1", "agent"),
    "events": (*LIVE, "2", MessageScreen),
    "compactions": (*LIVE, "4", CompactionScreen),
    "plan of a replay": (*REPLAY, "end", "agent"),
    "sessions": (SessionsScreen, call("open_sessions", ""), "", LiveScreen),
    "fleet": (FleetScreen, call("open_fleet"), "", LiveScreen),
    "usage": (UsageScreen, call("open_usage"), "", SessionsScreen),
    "timeline": (TimelineScreen, call("open_timeline", "abcd2345"), "", ReplayScreen),
    "compare": (CompareScreen, push(lambda: CompareScreen("abcd2345", "more2340")), "j", HelpScreen),
    "artifacts": (ArtifactsScreen, call("open_artifacts"), "tab", "artifact"),
    "steps of a fork": (ForkScreen, push(lambda: ForkScreen("abcd2345", "billing", print)), "", "prompt"),
}
"""What opens a screen, the key that chooses a row of a list, and the screen or the part that `enter` on it opens."""


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=str)
@pytest.mark.parametrize("name", LISTS)
async def test_enter_opens_the_row_of_a_list_and_esc_goes_back(full_desk, name, size):
    kind, opens, key, target = LISTS[name]
    async with full_desk.shown("explorer-1", size=size) as pilot:
        live = pilot.app.screen
        opens(pilot)
        await until(pilot, lambda: isinstance(pilot.app.screen, kind))
        screen: Any = pilot.app.screen
        await until(pilot, lambda: not isinstance(screen, ReplayScreen) or screen.shown_position > 0)
        await pilot.press(*filter(None, [key]))
        view = pilot.app.focused
        assert isinstance(view, RowView)
        await until(pilot, lambda: len(view.rows) > 1)
        await pilot.press("enter")
        if not isinstance(target, str):
            await until(pilot, lambda: isinstance(pilot.app.screen, target))
            await pilot.press(*(["escape"] if target is not LiveScreen else []))
            await until(pilot, lambda: pilot.app.screen is (live if target is LiveScreen else screen))
            return
        part = screen.query_one(f"#{target}")
        await until(pilot, lambda: part.has_focus or part.has_pseudo_class("focus-within"))
        assert part.size.width > size[0] // 2
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.focused is view or pilot.app.screen is live)
        await pilot.press(*(["escape"] if pilot.app.screen is not live else []))
        await until(pilot, lambda: pilot.app.screen is live)


ENDS = SCREENS | {name: (kind, opens, key, "") for name, (kind, opens, key, _) in LISTS.items()}


@pytest.mark.parametrize("name", ENDS)
async def test_g_goes_to_the_first_row_of_every_list_and_text_and_G_to_the_last(full_desk, name):
    kind, opens, key, _ = ENDS[name]
    async with full_desk.shown("explorer-1", size=(80, 24)) as pilot:
        opens(pilot)
        await until(
            pilot, lambda: isinstance(pilot.app.screen, kind) and bool(pilot.app.screen.query(RowView))
        )
        screen = pilot.app.screen
        await until(pilot, lambda: not isinstance(screen, ReplayScreen) or screen.shown_position > 0)
        await pilot.press(*filter(None, [key]))
        view = pilot.app.focused
        assert isinstance(view, RowView)
        await until(pilot, lambda: len(view.rows) > 1)

        def is_at(place: int) -> bool:
            return view._is_in_sight(place) and (view._index == place or not view.CURSOR)

        await pilot.press("G")
        await until(pilot, lambda: is_at(len(view.rows) - 1))
        await pilot.press("g")
        await until(pilot, lambda: is_at(0))


async def test_enter_and_q_close_the_help(full_desk: Desk) -> None:
    async with full_desk.shown("explorer-1") as pilot:
        live = pilot.app.screen
        for key in ("enter", "q", "question_mark", "escape"):
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
            await pilot.press(key)
            await until(pilot, lambda: pilot.app.screen is live)
