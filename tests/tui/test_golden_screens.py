"""Whole screens as text, at both sizes. `WATCHKEEPER_GOLDEN=1` writes them anew; read the difference before committing it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, text_of, until
from textual.pilot import Pilot

GOLDEN = Path(__file__).parent / "golden"

SCREENS = {
    "live": ([], "core has 30 Python files"),
    "transcript": (["3", "right"], "Thirty files of Python"),
    "calls": (["3", "right", "right"], "prompt"),
    "metrics": (["3", "right", "right", "right"], "calls"),
    "report": (["i"], "Handed back"),
    "compact": (["C"], "y do it"),
    "sessions": (["s"], "live (pid 991)"),
}


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_looks_as_it_was_agreed(desk: Desk, name: str, size: tuple[int, int]) -> None:
    keys, words = SCREENS[name]
    async with desk.app().run_test(size=size) as pilot:
        await until(pilot, lambda: "3 explorer-1" in text_of(pilot) and "reading" not in text_of(pilot))
        await pilot.press(*keys)
        if size == (120, 40):
            await until(pilot, lambda: words in text_of(pilot))
        path = GOLDEN / f"{name}-{size[0]}x{size[1]}.txt"
        if os.environ.get("WATCHKEEPER_GOLDEN"):
            await pilot.pause(0.5)
            path.write_text(text_of(pilot) + "\n", encoding="utf-8")
        agreed = path.read_text(encoding="utf-8")
        shown = await settled(pilot, agreed)
    assert shown == agreed


async def settled(pilot: Pilot[int], wanted: str) -> str:
    """What stands on the screen once it is `wanted`, or after as long as a busy machine may need to paint it."""
    deadline = time.monotonic() + 8
    while (shown := text_of(pilot) + "\n") != wanted and time.monotonic() < deadline:
        await pilot.pause(0.05)
    return shown
