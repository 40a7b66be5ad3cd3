"""The live screen: what it shows of a session, at every size, and that it tells the truth."""

from __future__ import annotations

import dataclasses

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import insert
from textual.pilot import Pilot

from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.bars import Header
from watchkeeper_tui.widgets.panes import CompactionView
from watchkeeper_tui.widgets.rows import RowView

WIDE, SMALL = (120, 40), (80, 24)


async def test_no_notice_hides_that_the_database_got_a_second_name(desk: Desk) -> None:
    async with desk.shown("explorer-1") as pilot:
        live(pilot).say("a notice", seconds=60)
        desk.path.with_name("second.db").hardlink_to(desk.path)
        desk.feed.wake()
        await shows(pilot, "has 2 hard links")


async def test_a_transcript_folds_long_results_until_enter_and_shows_what_streams(desk: Desk) -> None:
    async with desk.shown("3 explorer-1", size=(120, 70)) as pilot:
        await pilot.press("3", "right")
        await shows(pilot, "28 more lines", "Next I read the largest", without="core/file20.py")
        desk.session.live("explorer1", "working", text="Next I read the largest file, models.py")
        desk.feed.wake()
        await shows(pilot, "file, models.py")
        live(pilot).agent_pane.page.select("2.2")
        await pilot.press("enter")
        await shows(pilot, "core/file20.py")


async def test_a_commit_by_another_process_is_shown_without_a_key_and_the_selection_stays_with_its_row(desk):
    async with desk.shown("explorer-1", row="task:t-docs") as pilot:
        await pilot.pause()
        desk.session.agent("early001", "early")
        desk.session.task("t-early", "Comes first", agent="early001", position=-1)
        desk.session.event("tool.done", "early001", tool="bash", preview="all 12 tests pass")
        desk.feed.wake()
        await shows(pilot, "early (explorer)", "all 12 tests pass", "3 explorer-3")
        assert live(pilot).plan.selected_id == "task:t-docs"


SIZES = [
    (20, 5), (38, 12), (60, 24), (79, 19), (80, 24), (99, 50), (100, 13), (100, 24), (119, 40), (120, 40),
    (160, 50), (240, 60),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
async def test_any_terminal_from_20_by_5_up_shows_the_state_and_never_breaks(desk, size):
    async with desk.shown("LIVE", size=size) as pilot:
        await pilot.press("j", "3", "right", "2", "1", "z", "z")
        lines = text_of(pilot).split("\n")
        assert len(lines) <= size[1]
        assert all(len(line) <= size[0] for line in lines)


async def test_resizing_live_rearranges_the_panes(desk: Desk) -> None:
    async with desk.shown("4 Compaction") as pilot:
        await pilot.resize_terminal(*SMALL)
        await shows(pilot, "[1 Plan]", without="─ 4 Compaction")
        await pilot.press("2")
        await shows(pilot, "[2 Events]", without="3 explorer")
        await pilot.resize_terminal(*WIDE)
        await shows(pilot, "─ 4 Compaction", without="[2 Events]")


async def test_a_host_that_dies_is_shown_as_dead_with_what_to_do(desk: Desk) -> None:
    async with desk.shown("LIVE") as pilot:
        desk.host_pid = None
        await shows(pilot, "† STOPPED", seconds=2.0)
        await shows(pilot, "The background process stopped")
        assert live(pilot).plan.rows[1].condition.word == "stopped"


@pytest.mark.parametrize(
    ("status", "hosted", "badge"),
    [
        ("running", True, "● LIVE"), ("running", False, "† STOPPED"), ("paused", False, "‖ PAUSED"),
        ("paused", True, "‖ PAUSED"), ("done", False, "✓ DONE"), ("failed", False, "✗ FAILED"),
        ("cancelled", False, "× CANCELLED"), ("held", False, "? UNKNOWN"),
    ],
)  # fmt: skip
async def test_the_header_says_how_the_session_stands(desk, status, hosted, badge):
    desk.session.set(status=status, ended_at=desk.time if status in ("done", "failed", "cancelled") else None)
    desk.host_pid = 991 if hosted else None
    if status == "paused":
        # A session pauses when all of its agents have; one that works for a single command is live.
        desk.session.connection.execute(
            "UPDATE agents SET status = 'paused' WHERE status IN ('working', 'waiting')"
        )
    async with desk.shown(size=SMALL) as pilot:
        await shows(pilot, badge)


async def test_a_frozen_view_stands_still_while_the_header_counts_on(desk: Desk) -> None:
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("f")
        desk.session.event("tool.done", "explorer1", tool="bash", preview="after the freeze")
        desk.session.event("tool.done", "explorer1", tool="bash", preview="later still")
        desk.feed.wake()
        await shows(pilot, "VIEW FROZEN", "2 behind")
        assert "after the freeze" not in text_of(pilot)
        assert "● LIVE" in text_of(pilot)
        assert desk.session.commands() == []
        desk.host_pid = None
        await shows(pilot, "† STOPPED")
        await pilot.press("f")
        await shows(pilot, "after the freeze")
        assert "FROZEN" not in text_of(pilot)


async def test_scrolling_up_stops_following_and_counts_what_comes_as_the_filter_shows_it(desk: Desk) -> None:
    def happens(*previews: str) -> None:
        for preview in previews:
            desk.session.event("tool.done", "explorer1", tool="bash", preview=preview)
        desk.feed.wake()

    happens(*(f"{'wanted' if number % 2 else 'other'} {number}" for number in range(60)), "other last")
    async with desk.shown("other last", "FOLLOW") as pilot:
        await pilot.press("2", "k", "k", "pageup")
        await shows(pilot, without="FOLLOW")
        happens("new 0", "new 1", "new 2")
        await shows(pilot, "3 new ↓", without="new 2")
        await pilot.press("G")
        await shows(pilot, "new 2", "FOLLOW")
        await pilot.press("k", "k", "pageup")
        await shows(pilot, without="FOLLOW")
        await pilot.press("slash", *"wanted", "enter")
        await until(pilot, lambda: "other" not in text_of(pilot).split("Events")[1].split("Compaction")[0])
        assert "new ↓" not in text_of(pilot)
        happens("wanted 100", "other 101", "wanted 102", "other 103")
        await shows(pilot, "2 new ↓")


async def test_a_call_that_failed_says_why_below_its_row_and_a_chosen_pass_stays_chosen(desk: Desk) -> None:
    desk.session.call("explorer1", status="error", error="the service has too much to do")
    desk.session.compaction("explorer1", tokens_before=30_000, ended_at=desk.time - 60)
    async with desk.shown("explorer-1", row="task:t-core") as pilot:
        await pilot.press("3", "right", "right")
        await until(pilot, lambda: "the service has too much to do" in text_of(pilot).split("[Calls]")[-1])
        await pilot.press("4", "j")
        passes = pilot.app.screen.query_one(CompactionView)
        chosen = passes.selected_id
        desk.session.compaction("explorer2", tokens_before=31_000)
        desk.feed.wake()
        await shows(pilot, "31k → 6.1k")
        assert passes.selected_id == chosen is not None


async def test_c_under_a_search_says_that_the_search_hides_the_compaction(desk: Desk) -> None:
    async with desk.shown("explorer-1", row="task:t-core") as pilot:
        await pilot.press("3", "c")
        await pilot.pause()
        before = text_of(pilot)
        await pilot.press("slash", *"zebra")
        assert "text of messages, tool calls and results" in text_of(pilot)
        assert "names, states or models" not in text_of(pilot)
        await pilot.press("enter", "c")
        await until(pilot, lambda: "compaction" in text_of(pilot).splitlines()[-2])
        hidden = "the search hides the compaction" in text_of(pilot)
        assert hidden or "no compactions in this transcript" in before


async def test_brackets_walk_the_agents_and_e_goes_to_what_needs_you(desk: Desk) -> None:
    async with desk.shown("3 explorer-1") as pilot:
        for keys, shown in (
            (["right_square_bracket"], "explorer-2"),
            (["left_square_bracket"] * 2, "planner"),
            (["e"], "writer-1"),
        ):
            await pilot.press(*keys)
            await shows(pilot, f"3 {shown}")


async def test_a_filter_narrows_the_plan_as_it_is_typed_says_if_nothing_is_left_and_esc_takes_it_back(desk):
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("slash", *"docs")
        await shows(pilot, "explorer-3", without="╴explorer-1")
        await pilot.press("ctrl+u", *"zebra")
        await shows(pilot, "no row matches the filter zebra; backspace removes it")
        await pilot.press("enter", "escape")
        await shows(pilot, "explorer-1")


def test_every_part_of_a_snapshot_is_frozen() -> None:
    seen: set[type] = set()

    def check(kind: object) -> None:
        for each in getattr(kind, "__args__", (kind,)):
            if isinstance(each, type) and dataclasses.is_dataclass(each) and each not in seen:
                seen.add(each)
                assert each.__dataclass_params__.frozen, each  # type: ignore[attr-defined]
                hints = __import__("typing").get_type_hints(each)
                for hint in hints.values():
                    assert getattr(hint, "__origin__", None) not in (list, dict, set), (each, hint)
                    check(hint)
            elif each is not kind:
                check(each)

    check(Snapshot)
    assert len(seen) > 10


async def test_no_color_paints_without_any_colour(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with desk.shown("explorer-1") as pilot:
        for strip in pilot.app.screen._compositor.render_strips():
            for segment in strip:
                style = segment.style
                assert style is None or style.color is None or style.color.is_default, segment
                assert style is None or style.bgcolor is None or style.bgcolor.is_default, segment


async def test_every_shipped_theme_can_be_chosen_live(desk: Desk) -> None:
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "explorer-1")
        assert len(app.themes) >= 6
        await pilot.press("colon", "ctrl+u", *"/theme phosphor", "enter")
        await until(pilot, lambda: app.theme == "phosphor")
        for name in app.themes:
            app.choose_theme(name)
            await pilot.pause()
            assert "explorer-1" in text_of(pilot)


async def test_the_rows_are_drawn_by_one_view_only_as_far_as_they_are_in_sight(large_desk: Desk) -> None:
    async with large_desk.shown("LIVE", size=SMALL) as pilot:
        plan = live(pilot).plan
        drawn: list[str] = []
        cells = plan.row_cells
        plan.row_cells = lambda row: (drawn.append(row.id), cells(row))[1]  # type: ignore[method-assign]
        plan.refresh()
        await pilot.pause()
        assert 0 < len(set(drawn)) < 15
        assert len(plan.rows) == 40
        assert all(
            isinstance(view, RowView) for view in (plan, live(pilot).events, live(pilot).agent_pane.page)
        )


def live(pilot: Pilot[int]) -> LiveScreen:
    screen = next(screen for screen in pilot.app.screen_stack if isinstance(screen, LiveScreen))
    assert screen.query_one(Header) is not None
    return screen


@pytest.mark.parametrize(
    ("used_usd", "said"), [(0.0066, "budget usd: too small for the"), (0.01, "budget usd: used up")]
)
@pytest.mark.parametrize("size", [SMALL, (120, 40)])
async def test_a_budget_is_said_to_be_reached_only_where_it_is_used_up(desk, used_usd, said, size):
    desk.session.set(cost_usd=used_usd)
    insert(
        desk.session.connection, "budgets", session_id=desk.session.id, kind="usd", amount=0.01, created_at=desk.time,
        reached_at=desk.time,
    )  # fmt: skip
    if size == SMALL:
        said = said[: len("budget usd: too small f")]  # the end of the line is cut
    async with desk.shown(size=size) as pilot:
        await shows(pilot, said)
        assert "over budget" not in text_of(pilot)
