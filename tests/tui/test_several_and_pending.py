"""Acting on several rows at once, and what is said of a pause that has not come yet."""

from __future__ import annotations

import json

import pytest
from tests.tui.conftest import Desk, choose, shows, text_of, until
from tests.tui.test_actions import WIDE, commands
from textual.pilot import Pilot


def settle(desk: Desk, **values: object) -> None:
    for name, value in values.items():
        desk.session.connection.execute(f"UPDATE commands SET {name} = ?", (value,))
    desk.feed.wake()


@pytest.mark.parametrize("applied", [False, True])
async def test_r_takes_back_a_pause_that_has_not_come(desk: Desk, applied: bool) -> None:
    async with desk.shown(size=WIDE, row="task:t-core") as pilot:
        await pilot.press("p")
        await commands(pilot, desk, 1)
        settle(
            desk,
            **(
                {"status": "applied", "applied_at": desk.time, "result": "explorer-1 pauses"}
                if applied
                else {}
            ),
        )
        await shows(pilot, "explorer-1 (explorer)  ● pausing")
        await pilot.press("r")
        assert (await commands(pilot, desk, 2))[1] == ("resume", "explorer1", None, {})
        desk.feed.wake()
        await shows(pilot, "explorer-1 (explorer)  ● working")


async def test_r_takes_back_a_pause_of_the_whole_run(desk: Desk) -> None:
    async with desk.shown(size=WIDE, row="task:t-core") as pilot:
        await pilot.press("P", "y")
        await commands(pilot, desk, 1)
        settle(desk, status="applied", applied_at=desk.time)
        await shows(pilot, "● pausing")
        await pilot.press("r")
        assert (await commands(pilot, desk, 2))[1] == ("resume", None, None, {})


@pytest.mark.parametrize("kind", ["agent.paused", "host.started"])
async def test_a_pause_that_came_is_no_pending_one(desk: Desk, kind: str) -> None:
    async with desk.shown(size=WIDE, row="task:t-core") as pilot:
        await pilot.press("p")
        await commands(pilot, desk, 1)
        settle(desk, status="applied", applied_at=desk.time)
        await shows(pilot, "● pausing")
        desk.session.event(kind, "explorer1")
        desk.feed.wake()
        await shows(pilot, without="● pausing")


async def mark_all(pilot: Pilot[int], desk: Desk, *rows: str) -> None:
    for row in rows:
        await choose(pilot, row)
        await pilot.press("space")
    await shows(pilot, f"{len(rows)} marked")


MARKED = ("task:t-core", "task:t-more", "task:t-docs")


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (["p"], "pause"), (["H", "y"], "pause"), (["m", *"hurry", "enter"], "steer"),
        (["C", "y"], "compact"), (["u"], "undo"), (["U", "y"], "redo"),
    ],
)  # fmt: skip
async def test_an_action_on_marked_rows_leaves_out_those_it_can_do_nothing_for(desk, keys, kind):
    desk.session.agent("explorer4", "explorer-4")
    desk.session.task("t-more", "Explore more", agent="explorer4")
    desk.session.compaction("explorer4")
    desk.session.set_agent("explorer3", context_tokens=0, composition="{}")
    async with desk.shown(size=WIDE) as pilot:
        await mark_all(pilot, desk, *MARKED)
        await pilot.press(*keys)
        written = await commands(pilot, desk, 2)
        assert [(each[0], each[1]) for each in written] == [(kind, "explorer1"), (kind, "explorer4")]


@pytest.mark.parametrize(
    ("keys", "kind", "tasks"), [(["R", "y"], "rerun", ["t-core", "t-more", "t-docs"]),
     (["Z", "y"], "rerun", ["t-core", "t-more", "t-docs"]), (["X", "y"], "cancel", ["t-core", "t-more"])],
)  # fmt: skip
async def test_tasks_that_are_marked_are_run_again_or_cancelled_together(desk, keys, kind, tasks):
    desk.session.agent("explorer4", "explorer-4")
    desk.session.task("t-more", "Explore more", agent="explorer4")
    async with desk.shown(size=WIDE) as pilot:
        await mark_all(pilot, desk, *MARKED)
        await pilot.press(*keys)
        written = await commands(pilot, desk, len(tasks))
        assert sorted((each[0], each[2]) for each in written) == sorted((kind, task) for task in tasks)


async def test_paused_and_failed_agents_that_are_marked_are_resumed_together(desk: Desk) -> None:
    async with desk.shown(size=WIDE) as pilot:
        await mark_all(pilot, desk, "task:t-tui", "task:t-draft", "task:t-core")
        await pilot.press("r")
        written = await commands(pilot, desk, 2)
        assert [(each[0], each[1]) for each in written] == [("resume", "explorer2"), ("resume", "writer01")]


async def test_what_became_of_several_commands_is_told_together_with_the_reason_of_a_refusal(desk):
    desk.session.agent("explorer4", "explorer-4")
    desk.session.task("t-more", "Explore more", agent="explorer4")
    async with desk.shown(size=WIDE) as pilot:
        await mark_all(pilot, desk, *MARKED[:2])
        await pilot.press("p")
        await commands(pilot, desk, 2)
        desk.feed.wake()
        await shows(pilot, "pause ×2: 2 accepted, queued")
        execute = desk.session.connection.execute
        execute("UPDATE commands SET status = 'applied', applied_at = ? WHERE id = 1", (desk.time,))
        execute(
            "UPDATE commands SET status = 'refused', result = 'explorer-4 is idle', applied_at = ? WHERE id"
            " = 2",
            (desk.time,),
        )
        desk.feed.wake()
        await shows(pilot, "pause ×2: 1 applied, 1 refused — pause explorer-4: explorer-4 is idle")
        assert json.loads(desk.session.commands()[0][3]) == {}


async def test_an_agent_chosen_in_a_frozen_view_is_shown_as_it_was_then(desk: Desk) -> None:
    async with desk.shown(size=WIDE, row="task:t-core") as pilot:
        await shows(pilot, "core has 30 Python files")
        await pilot.press("f")
        await shows(pilot, "VIEW FROZEN")
        desk.session.message("explorer3", "user", "Explore docs: which pages?")
        await choose(pilot, "task:t-docs")
        await pilot.press("3", "right")
        await until(pilot, lambda: "which pages?" in text_of(pilot) or "no messages" in text_of(pilot))
        desk.session.message("explorer3", "assistant", "Twelve of them.")
        desk.feed.wake()
        await shows(pilot, "Unfreeze")
        await pilot.pause(0.3)
        assert "Twelve of them." not in text_of(pilot)
        await pilot.press("f")
        await shows(pilot, "Twelve of them.")


async def test_a_frozen_view_of_a_dead_run_does_not_say_that_it_goes_on(desk: Desk) -> None:
    desk.host_pid = None
    async with desk.shown("STOPPED", size=WIDE) as pilot:
        await pilot.press("f")
        await shows(pilot, "view frozen; f unfreezes it")
