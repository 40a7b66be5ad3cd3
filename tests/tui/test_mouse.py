"""All that can be seen to act acts when it is clicked."""

from __future__ import annotations

from tests.tui.conftest import Desk, text_of, until
from tests.tui.test_library_screens import library_of, row
from tests.tui.told import told_session
from textual.pilot import Pilot
from textual.widget import Widget

WIDE = (120, 40)


async def click(pilot: Pilot[int], words: str, *, times: int = 1) -> None:
    """Click where these words stand."""
    lines = text_of(pilot).splitlines()
    y = next(number for number, line in enumerate(lines) if words in line)
    await pilot.click(offset=(lines[y].index(words), y), times=times)


async def test_rows_marks_tabs_keys_and_answers_can_be_clicked(desk: Desk) -> None:
    async with desk.app().run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "3 explorer-1" in text_of(pilot))
        await click(pilot, "Explore tui")
        await until(pilot, lambda: "3 explorer-2" in text_of(pilot))
        await click(pilot, "▾ planner")
        await until(pilot, lambda: "▸ planner" in text_of(pilot) and "Explore tui" not in text_of(pilot))
        await click(pilot, "▸ planner")
        await until(pilot, lambda: "Explore tui" in text_of(pilot))
        await click(pilot, " Transcript")
        await until(pilot, lambda: "[Transcript]" in text_of(pilot))
        await click(pilot, "Explore core")
        for answer, commands in (("n no", []), ("y yes", ["compact"])):
            await click(pilot, "C Compact")
            await until(pilot, lambda: "y yes" in text_of(pilot))
            await click(pilot, answer)
            await until(pilot, lambda: "y yes" not in text_of(pilot))
            await until(
                pilot, lambda commands=commands: [each[0] for each in desk.session.commands()] == commands
            )
        await click(pilot, "Explore core", times=2)
        await until(pilot, lambda: "1 Plan" not in text_of(pilot))


async def test_a_hit_and_the_undo_of_a_delete_can_be_clicked(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "nightly audit" in text_of(pilot))
        await click(pilot, "nightly audit")
        await click(pilot, "D Delete")
        await until(pilot, lambda: "y yes" in text_of(pilot))
        await click(pilot, "y yes")
        await until(pilot, lambda: "to undo" in text_of(pilot))
        await click(pilot, "to undo")
        await until(
            pilot, lambda: row(desk, "older234", "title") is None and "nightly audit" in text_of(pilot)
        )
        await pilot.press("slash", *"blue", "enter")
        await until(pilot, lambda: "opens it in its transcript" in text_of(pilot))
        await click(pilot, "opens it in")
        await until(pilot, lambda: "messages of this session with these words" in text_of(pilot))


async def test_the_marks_of_the_tree_fold_in_a_replay_too(desk: Desk) -> None:
    told_session(desk)
    async with desk.app().run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "3 explorer-1" in text_of(pilot))
        pilot.app.open_replay("told2345")  # type: ignore[attr-defined]
        await until(pilot, lambda: "1/14" in text_of(pilot))  # it is read: a key before that moves nothing
        await pilot.press("end")
        await until(pilot, lambda: "▾ planner" in text_of(pilot) and "Read the ledger" in text_of(pilot))
        await click(pilot, "▾ planner")
        await until(pilot, lambda: "▸ planner" in text_of(pilot) and "╴Read the ledger" not in text_of(pilot))
        await click(pilot, "▸ planner")
        await until(pilot, lambda: "▾ planner" in text_of(pilot) and "╴Read the ledger" in text_of(pilot))


async def test_the_mouse_drags_the_dividers_between_the_panes_also_in_replay(desk: Desk) -> None:
    told_session(desk)
    async with desk.app().run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "Explore core" in text_of(pilot))
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
                await until(pilot, lambda: "1/14" in text_of(pilot))


async def test_tabs_that_find_no_room_are_scrolled_and_keep_their_names(desk: Desk) -> None:
    async with desk.app().run_test(size=(34, 24)) as pilot:
        await until(pilot, lambda: "[Memory]" in text_of(pilot))
        assert "[Memory] Transcript  Calls ›" in text_of(pilot)
        await click(pilot, "›")
        await until(pilot, lambda: "[Transcript]" in text_of(pilot))
        for name in ("Calls", "Metrics", "Compactions(1)", "Report"):
            await click(pilot, "›")
            await until(pilot, lambda name=name: f"[{name}]" in text_of(pilot))  # type: ignore[misc]
        await pilot.press("3", "right", "right")
        await until(pilot, lambda: "[Prompt]" in text_of(pilot) and "›" not in text_of(pilot))
        await click(pilot, "‹")
        await until(pilot, lambda: "[Artifacts]" in text_of(pilot))


async def test_each_filter_is_a_chip_that_a_click_or_a_key_takes_off(desk: Desk) -> None:
    desk.session.event("tool.done", "explorer1", tool="bash", preview="[red]made\x1b[2J twice")
    async with desk.app().run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "3 explorer-1" in text_of(pilot) and "4 Compaction" in text_of(pilot))
        await pilot.press("2", "slash", *"tool made [red]", "enter")
        await until(pilot, lambda: "events [tool ×]  events [made ×]  events [[red] ×]" in text_of(pilot))
        await pilot.press("1", "slash", *"Explore", "enter")
        await until(
            pilot, lambda: "[[red] ×]  plan [Explore ×]  backspace takes the last off" in text_of(pilot)
        )
        # The active pane's filter goes first; with the mouse, any.
        await pilot.press("backspace")
        await until(pilot, lambda: "plan [Explore" not in text_of(pilot))
        await click(pilot, "made ×")
        await until(pilot, lambda: "events [tool ×]  events [[red] ×]" in text_of(pilot))
        await pilot.press("backspace", "backspace")
        await until(pilot, lambda: "×]" not in text_of(pilot) and "FOLLOW" in text_of(pilot))
        await pilot.press("backspace")
        await until(pilot, lambda: "nothing is filtered" in text_of(pilot))


async def test_the_chips_of_a_list_are_its_search_word_by_word(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "nightly audit" in text_of(pilot))
        await pilot.press("slash", *'state:done "nightly audit" cost>0 zzz', "enter")
        shown = '[state:done ×]  ["nightly audit" ×]  [cost>0 ×]  [zzz ×]'
        await until(pilot, lambda: shown in text_of(pilot) and "no session has these words" in text_of(pilot))
        await pilot.press("backspace")
        await click(pilot, "cost>0 ×")
        await until(pilot, lambda: '[state:done ×]  ["nightly audit" ×]  backspace' in text_of(pilot))
        await until(pilot, lambda: "older234" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "×]" not in text_of(pilot))


async def test_a_replay_is_filtered_and_searched_too(desk: Desk) -> None:
    told_session(desk)
    async with desk.app().run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "3 explorer-1" in text_of(pilot))
        pilot.app.open_replay("told2345")  # type: ignore[attr-defined]
        await until(pilot, lambda: "1/14" in text_of(pilot))
        await pilot.press("end", "tab", "slash", *"ledger", "enter")
        await until(pilot, lambda: "transcript [ledger ×]" in text_of(pilot) and "▌" in text_of(pilot))
        await pilot.press("n")  # the next match, and not the next mark
        assert "14/14" in text_of(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: "×]" not in text_of(pilot) and "REPLAY" in text_of(pilot))
