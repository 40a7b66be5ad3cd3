"""The files that SQLite keeps beside the database (`-wal`, `-shm`), removed by somebody who takes them for
rubbish."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store.writer import Group, Writer

SUFFIXES = ["-wal", "-shm"]


def insert(number: int) -> Callable[[Group], None]:
    def batch(group: Group) -> None:
        group.connection.execute(
            "INSERT INTO rate_limits (provider, model, until, reason) VALUES (?, '', 0, '')", (str(number),)
        )

    return batch


READ = """
import sys
from watchkeeper.store.driver import sqlite3
connection = sqlite3.connect(sys.argv[1])
assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
print(*[row[0] for row in connection.execute("SELECT provider FROM rate_limits")])
"""

WRITE = """
import sys
from pathlib import Path
from watchkeeper.store import database
connection = database.open_writable(Path(sys.argv[1]))
for number in range(100, 130):
    connection.execute("INSERT INTO rate_limits (provider, model, until, reason) VALUES (?, '', 0, '')", (str(number),))
"""


def elsewhere(program: str, path: Path) -> str:
    """What a program says that another process runs: a process shares what it has open with nobody."""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def told(path: Path) -> set[int]:
    return {int(one) for one in elsewhere(READ, path).split()}


def bereft(folder: Path, suffixes: list[str]) -> tuple[Path, Writer]:
    """A database of twenty rows whose files beside it are removed under its writer."""
    path = folder / "w.db"
    writer = Writer(path)
    for number in range(20):
        writer.submit(insert(number)).result()
    for suffix in suffixes:
        Path(f"{path}{suffix}").unlink()
    return path, writer


@pytest.mark.parametrize("suffixes", [["-wal"], ["-shm"], SUFFIXES], ids=["log", "index of the log", "both"])
def test_nothing_more_is_told_as_done_and_what_was_told_is_kept(tmp_path: Path, suffixes: list[str]) -> None:
    path, writer = bereft(tmp_path, suffixes)
    with pytest.raises(StoreUnusable, match=r"deleted or replaced .*; make sure nothing deletes it"):
        writer.submit(insert(20)).result()
    assert told(path) == set(range(20)), "a viewer that is attached still must not keep others from going on"
    writer.close()
    assert told(path) == set(range(20))


@pytest.mark.parametrize("suffixes", [["-shm"], SUFFIXES], ids=["index of the log", "both"])
def test_what_another_process_has_written_since_is_not_harmed(tmp_path: Path, suffixes: list[str]) -> None:
    path, writer = bereft(tmp_path, suffixes)
    elsewhere(WRITE, path)
    with pytest.raises(StoreUnusable, match="deleted or replaced"):
        writer.submit(insert(20)).result()
    writer.close()
    del writer
    gc.collect()  # a connection that is freed writes its log
    found = told(path)
    assert 20 not in found
    assert found >= set(range(100, 130))


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_nothing_is_written_while_a_file_has_a_second_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "w.db"
    writer = Writer(path)
    writer.submit(insert(0)).result()
    other = tmp_path / f"other{suffix}"
    other.hardlink_to(Path(f"{path}{suffix}"))
    with pytest.raises(StoreUnusable, match="2 hard links"):
        writer.submit(insert(1)).result()
    other.unlink()
    writer.submit(insert(2)).result()
    writer.close()
    assert told(path) == {0, 2}
