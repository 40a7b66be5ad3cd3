"""File tools neither write nor read outside the workspace, whatever is swapped in while they do."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.conftest import Run

from watchkeeper.agents.tools.processes import confine


def in_a_child(work: Callable[[], None]) -> int:
    """The exit code of a forked process that does `work`: 0, or the errno of what it was refused."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            work()
            code = 0
        except OSError as error:
            code = error.errno or 98
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def confined(workspace: Path, work: Callable[[], object]) -> int:
    def both() -> None:
        if not confine(str(workspace)):
            os._exit(97)
        work()

    return in_a_child(both)


needs_landlock = pytest.mark.skipif(
    confined(Path("/tmp"), lambda: None) == 97, reason="this kernel has no Landlock"
)


@needs_landlock
def test_the_kernel_refuses_every_change_and_reading_outside_the_workspace(workspace: Path) -> None:
    outside = workspace.parent / "outside"
    (workspace / "link").symlink_to(outside)
    (outside / "empty").mkdir()
    refused: list[Callable[[], object]] = [
        lambda: (outside / "new.txt").write_text("x"),
        lambda: (workspace / "link" / "new.txt").write_text("x"),
        lambda: (workspace / "link" / "secret.txt").write_text("x"),
        lambda: os.truncate(outside / "secret.txt", 0),
        lambda: (outside / "secret.txt").unlink(),
        lambda: (outside / "empty").rmdir(),
        lambda: (outside / "folder").mkdir(),
        lambda: (workspace / "hello.txt").rename(outside / "moved.txt"),
        lambda: (outside / "secret.txt").rename(workspace / "taken.txt"),
        lambda: os.link(outside / "secret.txt", workspace / "hard.txt"),
        lambda: (outside / "link").symlink_to("/etc"),
        lambda: os.mkfifo(outside / "fifo"),
        lambda: (outside / "secret.txt").read_text(),
        lambda: (workspace / "link" / "secret.txt").read_text(),
        lambda: os.listdir(outside),
        lambda: Path("/etc/passwd").read_text(),
        lambda: os.listdir("/"),
    ]
    assert [confined(workspace, one) in (13, 18) for one in refused] == [True] * len(refused)
    assert (outside / "secret.txt").read_text() == "out of bounds\n"
    assert sorted(path.name for path in outside.iterdir()) == ["empty", "secret.txt"]
    allowed: list[Callable[[], object]] = [
        lambda: (workspace / "deep").mkdir(),
        lambda: (workspace / "deep" / "new.txt").write_text("x"),
        lambda: (workspace / "deep" / "new.txt").rename(workspace / "new.txt"),
        lambda: (workspace / "hello.txt").exists() and (workspace / "new.txt").read_text(),
        lambda: Path(os.devnull).write_text("x"),
        lambda: Path(os.__file__).read_text(),
        lambda: os.listdir(Path(pytest.__file__).parent),
        lambda: subprocess.run([sys.executable, "-c", "import ssl, mimetypes; mimetypes.init()"], check=True),
    ]
    assert [confined(workspace, one) for one in allowed] == [0] * len(allowed)


@contextmanager
def swapping(folder: Path, outside: Path) -> Iterator[None]:
    """`folder` is a folder, then a link to the outside, and so on, as fast as can be."""
    aside, over = folder.with_name("aside"), threading.Event()
    aside.symlink_to(outside)

    def swap() -> None:
        libc, here, exchange = ctypes.CDLL(None), -100, 2
        while not over.is_set():
            libc.renameat2(here, os.fsencode(folder), here, os.fsencode(aside), exchange)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def test_a_link_that_is_swapped_in_while_a_tool_writes_leads_nowhere(run: Run, workspace: Path) -> None:
    outside = workspace.parent / "outside"
    (workspace / "folder").mkdir()
    (workspace / "folder" / "secret.txt").write_text("not out of bounds\n")
    with swapping(workspace / "folder", outside):
        refused: list[bool] = []
        while len(refused) < 120 or all(refused) or not any(refused):
            number = len(refused)
            written = await run("write", file_path=f"folder/new{number}.txt", content="escaped")
            edited = await run("edit", file_path="folder/secret.txt", old_string="out", new_string="outer")
            refused += [written.is_error, edited.is_error]
    assert sorted(path.name for path in outside.iterdir()) == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "out of bounds\n"


@needs_landlock
async def test_a_link_that_is_swapped_in_while_a_tool_reads_shows_nothing_of_the_outside(run, workspace):
    outside = workspace.parent / "outside"
    (outside / "only-there").mkdir()
    for number in range(40):
        (outside / "only-there" / f"out-of-bounds-{number}").write_text("out of bounds\n")
    (outside / "large.txt").write_text("out of bounds\n" * 20_000)
    (workspace / "folder").mkdir()
    for name in ("secret.txt", "large.txt"):
        (workspace / "folder" / name).write_text("mine\n" * 60_000)
    told: list[str] = []
    with swapping(workspace / "folder", outside):
        # How often the folder is there at both of a tool's looks is chance: go on until one has read it.
        while len(told) < 300 or not any("mine" in one for one in told):
            for name, arguments in (
                ("read", {"file_path": "folder/large.txt", "view_range": [1, 3]}),
                ("read", {"file_path": "folder/secret.txt"}),
                ("grep", {"pattern": "bounds", "path": "folder"}),
                ("glob", {"pattern": "folder/**/*"}),
                ("list_folder", {"path": "folder", "recursive": True}),
            ):
                told.append(str((await run(name, **arguments)).content))
    assert not [one[:300] for one in told if "out of bounds" in one or "out-of-bounds" in one]


ODD_PATHS = (
    ["../outside/secret.txt", "/proc/self/root/etc/passwd", "/proc/self/cwd/etc/hosts", "~/x", "a/../../outside/secret.txt",
     "link/secret.txt", "file_link", "loop", "hello.txt/x", "nul\0byte", "x" * 5000, "/dev/stdin", "\ud800", "."]
)  # fmt: skip


async def test_no_odd_path_leads_outside_or_breaks_a_tool(run: Run, workspace: Path) -> None:
    outside = workspace.parent / "outside"
    (workspace / "link").symlink_to(outside)
    (workspace / "file_link").symlink_to(outside / "secret.txt")
    (workspace / "loop").symlink_to("loop")
    for path in ODD_PATHS:
        results = {
            "read": await run("read", file_path=path),
            "write": await run("write", file_path=path, content="owned"),
            "edit": await run("edit", file_path=path, old_string="out", new_string="in"),
            "list_folder": await run("list_folder", path=path),
            "grep": await run("grep", pattern="bounds|root:", path=path),
            "glob": await run("glob", pattern="*", path=path),
            "pattern": await run("glob", pattern=path),
        }
        for name, result in results.items():
            assert "out of bounds" not in str(result.content), name
            assert "root:x" not in str(result.content), name
            assert "Traceback" not in str(result.content), name
    assert sorted(one.name for one in outside.iterdir()) == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "out of bounds\n"
    assert not (await run("read", file_path="hello.txt")).is_error


async def test_a_workspace_that_was_deleted_and_made_again_can_be_written(run: Run, workspace: Path) -> None:
    assert not (await run("write", file_path="one.txt", content="1")).is_error
    shutil.rmtree(workspace)
    assert (await run("write", file_path="two.txt", content="2")).is_error
    assert not workspace.exists()
    workspace.mkdir()
    assert not (await run("write", file_path="three.txt", content="3")).is_error
    assert (workspace / "three.txt").read_text() == "3"
