"""`/export` on the live screen: a child process writes the file, and the dashboard says where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until

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
        desk.path.rename(desk.path.with_suffix(".away"))
        await pilot.press("colon", "ctrl+u", *"/export", "enter")
        await shows(pilot, "✗ export failed: ", seconds=60)


async def test_an_export_without_its_folder_names_the_folder_and_the_way_out(
    desk: Desk, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWD", str(here))
    async with desk.shown("1 Plan", size=WIDE) as pilot:
        here.rmdir()
        await pilot.press("x")
        await shows(pilot, f"to {here}" if len(str(here)) < 60 else "Export ")
        await pilot.press("enter")
        await shows(pilot, "✗ export failed: the folder ", "does not exist; create it, or run `wk export")
        said = "".join(line.strip() for line in text_of(pilot).splitlines())
        assert f"{here} does not exist".replace(" ", "") in said.replace(" ", "")
