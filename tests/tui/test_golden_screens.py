"""Whole screens as text, at both sizes. `WATCHKEEPER_GOLDEN=1` writes them anew; read the difference before committing it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, text_of, until

GOLDEN = Path(__file__).parent / "golden"

SCREENS = {
    "live": ([], "core has 30 Python files"),
    "transcript": (["3", "right"], "Thirty files of Python"),
    "calls": (["3", "right", "right"], "prompt"),
    "metrics": (["3", "right", "right", "right"], "calls"),
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
        await pilot.pause(0.3)
        shown = text_of(pilot) + "\n"
    path = GOLDEN / f"{name}-{size[0]}x{size[1]}.txt"
    if os.environ.get("WATCHKEEPER_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")
