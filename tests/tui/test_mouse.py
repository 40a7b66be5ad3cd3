"""All that can be seen to act acts when it is clicked."""

from __future__ import annotations

from tests.tui.conftest import Desk, text_of, until
from tests.tui.test_library_screens import library_of, row
from tests.tui.told import told_session
from textual.pilot import Pilot

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
        await click(pilot, " Text")
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


async def test_the_mouse_drags_the_divider_between_the_panes(desk: Desk) -> None:
    async with desk.app().run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "Explore core" in text_of(pilot))
        plan = pilot.app.screen.query_one("#plan")
        edge = plan.region.right
        await pilot.mouse_down(offset=(edge - 1, 10))
        await pilot.hover(offset=(80, 10))
        await pilot.mouse_up(offset=(80, 10))
        await until(pilot, lambda: abs(plan.region.right - 80) <= 1)
        await pilot.hover(offset=(50, 10))
        assert abs(plan.region.right - 80) <= 1
