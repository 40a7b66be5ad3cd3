"""`/export` on the live screen: a child process writes the file, and the dashboard says where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, until

WIDE = (160, 40)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("line", "ending"), [("export", "html"), ("export md", "md"), ("export json", "json")]
)
async def test_the_run_is_exported_and_the_file_is_named(desk, here, line, ending):
    async with desk.shown("1 Plan", size=WIDE) as pilot:
        await pilot.press("colon", "ctrl+u", *f"/{line}", "enter")
        await until(pilot, lambda: os.listdir(here) == [f"{desk.session.id}.{ending}"], seconds=60)
        await shows(pilot, f"✓ {desk.session.id}.{ending}  ", f"in {here}")


async def test_an_unknown_form_is_refused_in_one_line(desk: Desk, here: Path) -> None:
    async with desk.shown("1 Plan", size=WIDE) as pilot:
        await pilot.press("colon", "ctrl+u", *"/export pdf", "enter")
        await shows(pilot, ":export takes html, md or json")
    assert os.listdir(here) == []


async def test_a_refusal_of_the_command_is_shown(desk: Desk, here: Path) -> None:
    async with desk.shown("1 Plan", size=WIDE) as pilot:
        here.rmdir()
        await pilot.press("colon", "ctrl+u", *"/export", "enter")
        await shows(pilot, "✗ export failed: ", seconds=60)
