"""Every action by key, by slash command and from the palette: the same commands, asked about in the same
way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tui.conftest import shows, until
from textual.pilot import Pilot

from watchkeeper_tui.screens.live import LiveScreen

WAYS = [
    ("task:t-core", ["p"], "/pause", "Pause", [], ("pause", "explorer1", None, {})),
    ("task:t-core", ["H"], "/pause now", "Pause now", ["y"], ("pause", "explorer1", None, {"now": True})),
    ("task:t-core", ["P"], "/pause run", "Pause run", ["y"], ("pause", None, None, {})),
    ("task:t-tui", ["r"], "/resume", "Resume", [], ("resume", "explorer2", None, {})),
    ("task:t-core", ["X"], "/cancel", "Cancel", ["y"], ("cancel", None, "t-core", {})),
    ("agent:planner1", ["X"], "/cancel run", "Cancel run", ["y"], ("cancel", None, None, {})),
    ("task:t-docs", ["R"], "/rerun", "Re-run", ["y"], ("rerun", None, "t-docs", {"fresh": False})),
    ("task:t-docs", ["Z"], "/rerun fresh", "Re-run fresh", ["y"], ("rerun", None, "t-docs", {"fresh": True})),
    ("task:t-core", ["C"], "/compact", "Compact", ["y"], ("compact", "explorer1", None, {})),
    ("task:t-core", ["C", "i", *"short", "enter"], "/compact short", "Compact with instructions", ["y"],
     ("compact", "explorer1", None, {"instructions": "short"})),
    ("task:t-core", ["u"], "/undo", "Undo", [], ("undo", "explorer1", None, {})),
    ("task:t-core", ["U"], "/redo", "Redo", ["y"], ("redo", "explorer1", None, {})),
    ("task:t-core", ["m", *"hurry", "enter"], "/steer hurry", "Message", [], ("steer", "explorer1", None, {"text": "hurry"})),
    ("task:t-core", ["a", "y"], "/approve", "Approve", [], ("approve", "explorer1", None, {"approval": "appr1"})),
    ("task:t-core", ["a", "n"], "/deny", "Deny", [], ("deny", "explorer1", None, {"approval": "appr1"})),
    ("task:t-core", ["B", *"usd 5", "enter"], "/budget usd 5", "Budget", ["y"], ("set_budget", None, None, {"kind": "usd", "amount": 5.0})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "keys", "line", "title", "answer", "written"), WAYS, ids=[way[3] for way in WAYS]
)
async def test_an_action_is_the_same_by_key_slash_and_palette(desk, row, keys, line, title, answer, written):
    desk.session.approval("explorer1")
    async with desk.shown(row=row) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, LiveScreen)

        async def sent(count: int) -> list[tuple[Any, ...]]:
            await until(pilot, lambda: len(desk.session.commands()) >= count)
            return [(*each[:3], json.loads(each[3])) for each in desk.session.commands()]

        await pilot.press(*keys)
        await answered(pilot, answer)
        assert await sent(1) == [written]
        # What the first one began must not stand in the way of the next.
        screen.sent = ()
        await pilot.press("colon", "ctrl+u", *line, "enter")
        await answered(pilot, answer)
        assert await sent(2) == [written] * 2
        command = next(each for each in pilot.app.get_system_commands(screen) if each.title == title)
        command.callback()
        if title in ("Message", "Budget", "Compact with instructions"):
            await shows(pilot, "↵ OK")
            await pilot.press(*{"Message": "hurry", "Budget": "usd 5"}.get(title, "short"), "enter")
        await answered(pilot, answer)
        assert await sent(3) == [written] * 3


async def answered(pilot: Pilot[int], keys: list[str]) -> None:
    if keys:
        await shows(pilot, " yes ")
        await pilot.press(*keys)
        await shows(pilot, without=" yes ")


@pytest.mark.parametrize("line", ["/pause all", "/cancel everything", "/rerun old", "/resume run"])
async def test_a_command_with_words_that_it_does_not_know_does_nothing_and_says_which_it_takes(desk, line):
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("colon", "ctrl+u", *line, "enter")
        await shows(pilot, f":{line.split()[0][1:]} takes ")
        assert desk.session.commands() == []
