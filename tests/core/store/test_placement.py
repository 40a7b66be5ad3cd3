"""A database is never in the workspace of a session that it holds, under whatever name."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
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
    mounted = database._Mount("0:1", tmp_path / "elsewhere", workspace / "deep")
    monkeypatch.setattr(database, "_mounts", lambda: {"1": mounted})
    assert lies_inside(tmp_path / "elsewhere" / "w.db", workspace)
    monkeypatch.setattr(database, "_mounts", dict)
    assert not lies_inside(tmp_path / "elsewhere" / "w.db", workspace)


BIND = """
mount --bind workspace/deep elsewhere && mount --bind workspace/linked.db file.db &&
mkdir -p workspace/apart && mount --bind elsewhere workspace/apart &&
exec "$@"
"""


def test_a_part_of_the_workspace_that_is_mounted_elsewhere_is_in_the_workspace(workspace, tmp_path):
    """No folder above the database is the workspace, and nothing of it is mounted in the workspace."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "file.db").touch()
    (workspace / "linked.db").touch()
    code = (
        "from pathlib import Path; from watchkeeper.store.database import lies_inside as inside;"
        "print(inside(Path('elsewhere/w.db'), Path('workspace')),"
        " inside(Path('elsewhere/new/w.db'), Path('workspace')),"
        " inside(Path('file.db'), Path('workspace')),"
        " inside(Path('elsewhere/w.db'), Path('workspace/deep')),"
        " inside(Path('workspace/deep/w.db'), Path('elsewhere')),"
        " inside(Path('elsewhere/w.db'), Path('workspace/other')),"
        " inside(Path('w.db'), Path('workspace')))"
    )
    (workspace / "other").mkdir()
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", BIND, "-", sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if "unshare" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mounts may be made here: {ended.stderr.splitlines()[-1]}")
    assert ended.stdout.split() == ["True"] * 5 + ["False"] * 2, ended.stderr


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
