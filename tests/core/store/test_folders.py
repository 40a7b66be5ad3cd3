"""Folders that Watchkeeper makes are for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchkeeper.models.registry import RememberedPrices
from watchkeeper.store import database
from watchkeeper.store.driver import make_private


def _modes(*folders: Path) -> list[int]:
    return [folder.stat().st_mode & 0o777 for folder in folders]


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_each_missing_parent_is_for_its_owner_alone_and_existing_ones_keep_their_mode(tmp_path, mask):
    before = os.umask(mask)
    try:
        there = tmp_path / "there"
        there.mkdir(mode=0o755)
        mode = there.stat().st_mode & 0o777
        last = there / "a" / "b" / "c"
        make_private(last)
        make_private(last)
        database.open_writable(there / "d" / "e" / "watchkeeper.db").close()
    finally:
        os.umask(before)
    assert _modes(there / "a", there / "a" / "b", last, there / "d", there / "d" / "e") == [0o700] * 5
    assert _modes(there) == [mode]


def test_no_parent_of_a_folder_gets_the_default_mode_except_in_a_workspace():
    """`Path.mkdir(parents=True)` gives it to the folders above, whatever its `mode`."""
    root = Path(database.__file__).parents[2]
    lax = [
        file.name
        for top in (root, root.parent / "tui")
        for file in top.rglob("*.py")
        if "mkdir(" in (text := file.read_text()) and ("parents=True" in text or "makedirs(" in text)
    ]
    assert sorted(lax) == ["confinement.py", "driver.py", "worker_files.py"]


def test_the_folders_above_the_remembered_prices_are_for_their_owner_alone(tmp_path):
    path = tmp_path / "cache" / "watchkeeper" / "prices.json"
    RememberedPrices(path, "1", lambda provider, name: ())("anthropic", "m")
    assert _modes(path.parent.parent, path.parent) == [0o700] * 2


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file" / "below")
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")
