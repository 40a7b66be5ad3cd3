"""A database is never in the workspace of a session that it holds, under whatever name."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from watchkeeper.records.errors import BadInput
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store import database
from watchkeeper.store.database import lies_inside, refuse_inside


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "deep").mkdir(parents=True)
    return tmp_path / "workspace"


def test_a_database_below_the_workspace_is_found_by_every_way_to_write_its_path(workspace, tmp_path):
    (tmp_path / "link").symlink_to(workspace)
    (tmp_path / "file_link.db").symlink_to(workspace / "deep" / "w.db")
    inside = [
        workspace / "w.db", workspace / "deep" / "w.db", workspace / "not" / "there" / "yet.db",
        tmp_path / "link" / "w.db", tmp_path / "link" / "deep" / ".." / "w.db", tmp_path / "file_link.db",
    ]  # fmt: skip
    for path in inside:
        assert lies_inside(path, workspace), path
        assert lies_inside(path, tmp_path / "link"), path
        assert lies_inside(path, Path("/")), path
    for path in (
        tmp_path / "w.db",
        tmp_path / "workspace.db",
        tmp_path / "workspace2" / "w.db",
        workspace / ".." / "w.db",
    ):
        assert not lies_inside(path, workspace), path


def test_a_folder_with_two_paths_is_known_by_its_inode(workspace, tmp_path, monkeypatch):
    """As a bind mount makes them: the resolved paths have nothing in common."""
    (tmp_path / "elsewhere").mkdir()
    real = database._identity
    same = {tmp_path / "elsewhere": workspace}
    monkeypatch.setattr(database, "_identity", lambda path: real(same.get(path, path)))
    assert lies_inside(tmp_path / "elsewhere" / "w.db", workspace)
    same = {tmp_path / "elsewhere": workspace / "deep"}
    monkeypatch.setattr(database, "_mounts_below", lambda root: iter([workspace / "deep"]))
    assert lies_inside(tmp_path / "elsewhere" / "w.db", workspace)
    monkeypatch.setattr(database, "_mounts_below", lambda root: iter([]))
    assert not lies_inside(tmp_path / "elsewhere" / "w.db", workspace)


def test_a_session_is_refused_before_anything_is_made(workspace: Path) -> None:
    path = workspace / "runs.db"
    with pytest.raises(BadInput, match="use --db") as refused:
        Runtime(path).start("survey", workspace=workspace, model="offline/surveyor")
    assert "\n" not in str(refused.value)
    assert list(workspace.iterdir()) == [workspace / "deep"]


def test_the_refusal_names_a_place_that_is_free_and_outside(workspace: Path, tmp_path: Path) -> None:
    path = workspace / "runs.db"
    database.open_writable(path).close()
    named = set()
    for workspace_of_run in (workspace, workspace, tmp_path):
        with pytest.raises(BadInput) as refused:
            refuse_inside(path, workspace_of_run)
        command = shlex.split(str(refused.value).split("`")[1])
        assert command[:5] == ["wk", "backup", "--move", "--db", str(path)]
        target = Path(command[5])
        assert not os.path.lexists(target)
        assert not lies_inside(target, workspace_of_run)
        named.add(target)
        if target.is_relative_to(tmp_path):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    assert len(named) == 3
    with pytest.raises(BadInput, match="choose a smaller folder"):
        refuse_inside(path, Path("/"))


async def test_a_session_whose_database_was_moved_into_its_workspace_is_not_resumed(workspace, tmp_path):
    from watchkeeper.runtime.control import start_host

    session = Runtime(tmp_path / "w.db").start("survey", workspace=workspace, model="offline/surveyor")
    os.rename(tmp_path / "w.db", workspace / "w.db")
    with pytest.raises(BadInput, match="move it with"):
        await Runtime(workspace / "w.db").run(session)
    with pytest.raises(BadInput, match="move it with"):
        start_host(workspace / "w.db", session)
