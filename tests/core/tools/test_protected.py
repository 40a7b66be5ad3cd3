"""File tools never open the files of the run's own database, wherever they are and whatever they are
called."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.tools.conftest import Run, caller

from watchkeeper.agents.tools.processes import ProtectedFiles
from watchkeeper.agents.tools.worker_files import FileTools
from watchkeeper.agents.tools.workers import WorkerPool

SUFFIXES = ("", "-wal", "-shm", "-leases/abcd2345.lock")
NEEDLE = "TODO: needle in the database"


def make_files(folder: Path) -> list[Path]:
    """A database of text, so that whatever is read of it shows."""
    (folder / "w.db-leases").mkdir(parents=True)
    files = [folder / f"w.db{suffix}" for suffix in SUFFIXES]
    for file in files:
        file.write_text(f"{NEEDLE} # {NEEDLE}\n")
    return files


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return make_files(tmp_path / "data")


@pytest.fixture
def run(make_pool: Callable[..., WorkerPool], workspace: Path, files: list[Path]) -> Run:
    return caller(make_pool(database_path=files[0], timeout_seconds=60), workspace)


async def assert_refused(run: Run, path: str) -> None:
    for name, arguments in (
        ("read", {"file_path": path}),
        ("read", {"file_path": path, "view_range": [1, 0]}),
        ("write", {"file_path": path, "content": "destroyed"}),
        ("edit", {"file_path": path, "old_string": "needle", "new_string": "haystack", "replace_all": True}),
        ("grep", {"pattern": "needle", "path": path}),
    ):
        result = await run(name, **arguments)
        assert result.is_error, (name, path)
        assert "TODO" not in str(result.content), (name, path)


async def assert_hidden(run: Run) -> None:
    """Nothing of the database is found by a search or a listing, and everything else is."""
    assert "TODO: needle" not in str((await run("grep", pattern="needle")).content)
    assert "hello.py:2" in str((await run("grep", pattern="TODO")).content)
    assert "needle" not in str((await run("list_folder", recursive=True)).content)


async def test_a_hard_link_to_any_of_the_files_is_refused(run, workspace, files):
    before = [file.read_bytes() for file in files]
    await run("read", file_path="hello.py")  # the worker runs before the links are made
    for number, file in enumerate(files):
        os.link(file, workspace / f"linked{number}.txt")
    for number in range(len(files)):
        await assert_refused(run, f"linked{number}.txt")
    await assert_hidden(run)
    assert [file.read_bytes() for file in files] == before


async def test_files_that_were_moved_into_the_workspace_are_refused(run, workspace, files):
    before = [file.read_bytes() for file in files]
    await run("read", file_path="hello.py")
    for number, file in enumerate(files):
        os.rename(file, workspace / f"moved{number}.txt")
    for number in range(3):
        await assert_refused(run, f"moved{number}.txt")
    found = await run("grep", pattern="needle in the database#", path="moved0.txt")
    assert "needle" not in str(found.content)
    assert [(workspace / f"moved{number}.txt").read_bytes() for number in range(3)] == before[:3]


async def test_links_and_descriptors_that_lead_to_the_files_are_refused(run, workspace, files):
    (workspace / "link.txt").symlink_to(files[0])
    (workspace / "folder").symlink_to(files[0].parent)
    holder = os.open(files[0], os.O_RDONLY)
    try:
        descriptors = f"/proc/{os.getpid()}/fd/{holder}", "/dev/fd/3", "/proc/self/fd/3"
        for path in ("link.txt", "folder/w.db", "folder/w.db-wal", *descriptors):
            await assert_refused(run, path)
    finally:
        os.close(holder)
    await assert_hidden(run)
    assert NEEDLE in files[0].read_text()


async def test_a_database_in_the_workspace_is_refused_by_every_tool(make_pool, workspace):
    """No session starts so; but a tool that is asked all the same does no harm."""
    files = make_files(workspace / "data")
    before = [file.read_bytes() for file in files]
    call = caller(make_pool(database_path=files[0], timeout_seconds=60), workspace)
    for suffix in SUFFIXES:
        await assert_refused(call, f"data/w.db{suffix}")
    await assert_hidden(call)
    for name in ("data/w.db-journal", "data/w.db-leases/new.lock"):
        assert (await call("write", file_path=name, content="x")).is_error
        assert not (workspace / name).exists()
    (workspace / "data" / "w.db-wal").unlink()
    assert (await call("write", file_path="data/w.db-wal", content="x")).is_error
    assert not (workspace / "data" / "w.db-wal").exists()
    assert not (await call("write", file_path="data/w.db-notes", content="x")).is_error
    assert files[0].read_bytes() == before[0]


def test_a_file_that_becomes_the_database_after_it_was_checked_is_not_changed(workspace, files, monkeypatch):
    """The check that counts is of the opened descriptor, before the file is cut short."""
    before = files[0].read_bytes()
    protected = ProtectedFiles([str(file) for file in files[:3]], str(files[3].parent))
    tools = FileTools(str(workspace), protected)
    opened = os.open

    def swap(path: object, flags: int, mode: int = 0o777, **rest: int) -> int:
        if str(path).endswith("hello.py") and flags & (os.O_WRONLY | os.O_RDWR):
            (workspace / "hello.py").unlink(missing_ok=True)
            os.link(files[0], workspace / "hello.py")
        return opened(path, flags, mode, **rest)  # type: ignore[arg-type]

    edit = {"old_string": "needle", "new_string": "destroyed", "replace_all": True}
    for name, about in (("write", {"content": "destroyed"}), ("edit", edit)):
        arguments = {"file_path": "hello.py", **about}
        (workspace / "hello.py").unlink()
        (workspace / "hello.py").write_text("needle")
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", swap)
            content, is_error = asyncio.run(tools.run({"tool": name, "arguments": arguments}))
        assert is_error
        assert "database" in content
    assert files[0].read_bytes() == before


async def test_other_files_are_read_and_written_as_before(run: Run, workspace: Path) -> None:
    (workspace / "linked.py").hardlink_to(workspace / "hello.py")
    assert "hello" in str((await run("read", file_path="linked.py")).content)
    assert not (await run("write", file_path="linked.py", content="shorter")).is_error
    assert (workspace / "hello.py").read_text() == "shorter"
    assert not (await run("edit", file_path="hello.py", old_string="short", new_string="long")).is_error
    assert (workspace / "hello.py").read_text() == "longer"
