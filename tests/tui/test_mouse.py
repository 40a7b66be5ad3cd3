"""All that can be seen to act acts when it is clicked."""

from __future__ import annotations

from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.test_library_screens import library_of, row
from tests.tui.told import told_session
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widget import Widget

from watchkeeper_tui.widgets.panes import PlanView


async def click(pilot: Pilot[int], words: str, *, times: int = 1) -> None:
    """Click where these words stand."""
    lines = text_of(pilot).splitlines()
    y = next(number for number, line in enumerate(lines) if words in line)
    await pilot.click(offset=(lines[y].index(words), y), times=times)


async def test_rows_marks_tabs_keys_and_answers_can_be_clicked(desk: Desk) -> None:
    async with desk.shown("3 explorer-1") as pilot:
        await click(pilot, "explorer-2")
        await shows(pilot, "3 explorer-2")
        await click(pilot, "▾ planner")
        await shows(pilot, "▸ planner", without="╴explorer-2")
        await click(pilot, "▸ planner")
        await shows(pilot, "explorer-2")
        await click(pilot, " Transcript")
        await shows(pilot, "[Transcript]")
        await click(pilot, "╴explorer-1")
        for answer, commands in (("n no", []), ("y yes", ["compact"])):
            await click(pilot, "C Compact")
            await shows(pilot, "y yes")
            await click(pilot, answer)
            await shows(pilot, without="y yes")
            await until(
                pilot, lambda commands=commands: [each[0] for each in desk.session.commands()] == commands
            )
        await click(pilot, "╴explorer-1", times=2)
        await shows(pilot, "[3 Agent]", without="─ 1 Plan")


async def test_a_hit_and_the_undo_of_a_delete_can_be_clicked(desk: Desk) -> None:
    library_of(desk)
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await click(pilot, "nightly audit")
        await click(pilot, "D Delete")
        await shows(pilot, "y yes")
        await click(pilot, "y yes")
        await shows(pilot, "to undo")
        await click(pilot, "to undo")
        await until(
            pilot, lambda: row(desk, "older234", "title") is None and "nightly audit" in text_of(pilot)
        )
        await pilot.press("slash", *"blue", "enter")
        await shows(pilot, "opens it in the transcript")
        await click(pilot, "opens it in")
        await shows(pilot, "matching messages in this session")


async def test_the_marks_of_the_tree_fold_in_a_replay_too(desk: Desk) -> None:
    told_session(desk)
    async with desk.shown("3 explorer-1") as pilot:
        pilot.app.open_replay("told2345")  # type: ignore[attr-defined]
        await until(pilot, lambda: "1/14" in text_of(pilot))  # it is read: a key before that moves nothing
        await pilot.press("end")
        await shows(pilot, "▾ planner", "Read the ledger")
        await click(pilot, "▾ planner")
        await shows(pilot, "▸ planner", without="╴Read the ledger")
        await click(pilot, "▸ planner")
        await shows(pilot, "▾ planner", "╴Read the ledger")


async def test_the_mouse_drags_the_dividers_between_the_panes_also_in_replay(desk: Desk) -> None:
    told_session(desk)
    async with desk.shown("explorer-1") as pilot:
        for wanted in ((80, 28), (40, 12)):
            plan = pilot.app.screen.query_one("#plan")
            crossing = (plan.region.right - 1, plan.region.bottom)
            await pilot.mouse_down(offset=crossing)
            await pilot.hover(offset=wanted)
            await pilot.mouse_up(offset=wanted)

            def near(plan: Widget = plan, wanted: tuple[int, int] = wanted) -> bool:
                return abs(plan.region.right - wanted[0]) <= 1 and abs(plan.region.bottom - wanted[1]) <= 1

            await until(pilot, near)
            await pilot.hover(offset=(50, 10))
            assert near()
            if wanted == (80, 28):
                pilot.app.open_replay("told2345")  # type: ignore[attr-defined]
                await shows(pilot, "1/14")


async def test_tabs_that_find_no_room_are_scrolled_and_keep_their_names(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=(34, 24)) as pilot:
        await pilot.press("3")
        await shows(pilot, "[Memory] Transcript  Calls ›")
        await click(pilot, "›")
        await shows(pilot, "[Transcript]")
        for name in ("Calls", "Metrics", "Compactions(1)", "Report"):
            await click(pilot, "›")
            await shows(pilot, f"[{name}]")
        await pilot.press("3", "right", "right")
        await shows(pilot, "[Prompt]", without="›")
        await click(pilot, "‹")
        await shows(pilot, "[Artifacts]")


async def test_each_filter_is_a_chip_that_a_click_or_a_key_takes_off(desk: Desk) -> None:
    desk.session.event("tool.done", "explorer1", tool="bash", preview="[red]made\x1b[2J twice")
    async with desk.shown("3 explorer-1", "4 Compaction") as pilot:
        await pilot.press("2", "slash", *"tool made [red]", "enter")
        await shows(pilot, "events [tool ×]  events [made ×]  events [[red] ×]")
        await pilot.press("1", "slash", *"Explore", "enter")
        await shows(pilot, "[[red] ×]  plan [Explore ×]  backspace removes the last filter")
        # The active pane's filter goes first; with the mouse, any.
        await pilot.press("backspace")
        await shows(pilot, without="plan [Explore")
        await click(pilot, "made ×")
        await shows(pilot, "events [tool ×]  events [[red] ×]")
        await pilot.press("backspace", "backspace")
        await shows(pilot, "FOLLOW", without="×]")
        await pilot.press("backspace")
        await shows(pilot, "no filter is active")


async def test_the_chips_of_a_list_are_its_search_word_by_word(desk: Desk) -> None:
    library_of(desk)
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await pilot.press("slash", *'state:done "nightly audit" cost>0 zzz', "enter")
        shown = '[state:done ×]  ["nightly audit" ×]  [cost>0 ×]  [zzz ×]'
        await shows(pilot, shown, "no matching sessions")
        await pilot.press("backspace")
        await click(pilot, "cost>0 ×")
        await shows(pilot, '[state:done ×]  ["nightly audit" ×]  backspace', "older234")
        await pilot.press("escape")  # ends the search; a filter stays
        await shows(pilot, "[state:done ×]  backspace", without='nightly audit" ×]')
        await pilot.press("backspace")
        await shows(pilot, without="×]")


async def test_a_replay_is_filtered_and_searched_too(desk: Desk) -> None:
    told_session(desk)
    async with desk.shown("3 explorer-1") as pilot:
        pilot.app.open_replay("told2345")  # type: ignore[attr-defined]
        await shows(pilot, "1/14")
        await pilot.press("end", "tab", "slash", *"ledger", "enter")
        await shows(pilot, "transcript [ledger ×]", "▌")
        await pilot.press("n")  # the next match, and not the next mark
        assert "14/14" in text_of(pilot)
        await pilot.press("escape")
        await shows(pilot, "REPLAY", without="×]")


async def test_the_right_button_chooses_a_row_and_lists_what_can_be_done_with_it(desk: Desk) -> None:
    async with desk.shown("explorer-1") as pilot:
        plan = pilot.app.screen.query_one(PlanView)
        await pilot.click(PlanView, offset=(6, 4), button=3)
        await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
        assert plan.selected_id == "task:t-tui"
        await shows(pilot, "Compact", "compact the agent's context now")
