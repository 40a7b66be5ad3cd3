"""A backup is whole, of one moment, private, and never takes another file's place by accident."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.core.library.conftest import add_session

from watchkeeper.records.errors import BadInput, DrivenElsewhere, StoreUnusable
from watchkeeper.store import database, driver
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.lease import Lease
from watchkeeper.store.library import back_up, move_database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "watchkeeper.db"


def test_a_backup_opens_as_a_database_with_all_there_is(connection: Any, path: Path, tmp_path: Path) -> None:
    add_session(connection, "abcd2345")
    heard: list[tuple[int, int]] = []
    done = back_up(path, tmp_path / "copy.db", progress=lambda did, of: heard.append((did, of)))
    assert done.path.stat().st_mode & 0o777 == 0o600
    assert (done.sessions, done.bytes) == (1, done.path.stat().st_size)
    assert heard[-1][0] == heard[-1][1]
    copy = database.open_readonly(done.path)
    for table in ("sessions", "agents", "messages", "facts", "events"):
        rows = copy.execute(f"SELECT * FROM {table}").fetchall()
        assert rows == connection.execute(f"SELECT * FROM {table}").fetchall()
    copy.close()
    assert not unfinished_in(tmp_path)


def test_a_backup_is_of_one_moment_while_another_process_writes(connection, path, tmp_path, monkeypatch):
    monkeypatch.setattr("watchkeeper.store.database.PAGES_AT_ONCE", 5)
    connection.execute("CREATE TABLE pairs (a, b)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO pairs VALUES (?, ?)", [("x" * 900, 0) for _ in range(500)])
    connection.execute("COMMIT")
    over = threading.Event()
    written: list[int] = []

    def host() -> None:
        mine = database.open_writable(path, check_same_thread=False)
        number = 0
        while not over.is_set():
            number += 1
            driver.begin_immediate(mine)
            mine.execute("UPDATE pairs SET b = ?", (number,))
            mine.execute("COMMIT")
            written.append(number)
        mine.close()

    thread = threading.Thread(target=host)
    thread.start()
    try:
        while not written:
            pass
        before = len(written)
        done = back_up(path, tmp_path / "copy.db")
        during = len(written) - before
    finally:
        over.set()
        thread.join()
    copy = sqlite3.connect(done.path)
    assert copy.execute("SELECT count(DISTINCT b), count(*) FROM pairs").fetchone() == (1, 500)
    assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    copy.close()
    assert during > 0


def test_no_file_is_overwritten_without_saying_so(connection: Any, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(BadInput, match="already exists"):
        back_up(path, target)
    assert target.read_text() == "precious"
    back_up(path, target, overwrite=True)
    assert target.read_bytes().startswith(b"SQLite format 3")
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="the database itself"):
        back_up(path, path, overwrite=True)
    with pytest.raises(BadInput, match="is a folder"):
        back_up(path, tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        back_up(path, tmp_path / "nowhere" / "copy.db")


def test_a_damaged_database_is_not_backed_up_as_if_it_were_sound(connection, path, tmp_path):
    for number in range(200):
        add_session(connection, f"abcd{number:04}")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(path.read_bytes())
    for place in range(30 * database.PAGE_BYTES, len(data), database.PAGE_BYTES):
        data[place : place + 200] = b"\xff" * 200
    path.write_bytes(bytes(data))
    with pytest.raises(StoreUnusable, match="damaged"):
        back_up(path, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    assert not unfinished_in(tmp_path)


def test_what_a_killed_backup_left_goes_with_the_next_one_and_what_a_living_one_writes_stays(
    connection: Any, path: Path, tmp_path: Path
) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom watchkeeper.store.library import back_up as backup\n"
        "backup(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    environment = os.environ | {"WATCHKEEPER_FAULT": "backup.copied:1"}
    killed = subprocess.run(
        [sys.executable, "-c", program, str(path), str(tmp_path / "first.db")], env=environment
    )
    assert killed.returncode == -9
    left = unfinished_in(tmp_path)
    assert left
    seen: list[list[Path]] = []

    def beside(done: int, pages: int) -> None:
        if not seen:
            back_up(path, tmp_path / "second.db")
            seen.append(unfinished_in(tmp_path))

    back_up(path, tmp_path / "third.db", progress=beside)
    assert seen[0]
    assert not set(seen[0]) & set(left)
    assert sorted(one.name for one in tmp_path.glob("*.db")) == ["second.db", "third.db", "watchkeeper.db"]
    assert not unfinished_in(tmp_path)


def unfinished_in(folder: Path) -> list[Path]:
    return [name for name in folder.iterdir() if "part" in name.name]


@pytest.mark.parametrize("name", ["a#b.db", "100%41.db", "what?.db"])
def test_a_backup_may_have_any_name_that_a_file_may_have(connection, path, tmp_path, name):
    add_session(connection, "abcd2345")
    before = set(os.listdir(tmp_path))
    assert back_up(path, tmp_path / name).sessions == 1
    assert set(os.listdir(tmp_path)) - before == {name}


def test_a_move_takes_everything_along_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path, target = tmp_path / "old" / "w.db", tmp_path / "new folder" / "w.db"
    connection = database.open_writable(path)
    add_session(connection, "abcd2345")
    rows = connection.execute("SELECT * FROM sessions").fetchall()
    connection.close()
    (path.parent / "w.db-leases").mkdir()
    (path.parent / "w.db-leases" / "abcd2345.lock").touch()
    assert move_database(path, target).sessions == 1
    assert list(path.parent.iterdir()) == []
    assert [one.name for one in target.parent.iterdir()] == ["w.db"]
    moved = database.open_readonly(target)
    assert moved.execute("SELECT * FROM sessions").fetchall() == rows
    moved.close()


def test_a_database_in_use_is_not_moved(tmp_path: Path) -> None:
    path, target = tmp_path / "w.db", tmp_path / "new.db"
    connection = database.open_writable(path)
    add_session(connection, "abcd2345")
    with pytest.raises(DrivenElsewhere, match="open in another program"):
        move_database(path, target)
    lease = Lease.acquire(path, "abcd2345")
    with pytest.raises(DrivenElsewhere, match="session abcd2345 is using"):
        move_database(path, target)
    lease.release()
    connection.execute("UPDATE sessions SET goal = 'goes on'")
    connection.close()
    assert not target.exists()
    (tmp_path / "taken.db").write_text("kept")
    with pytest.raises(BadInput, match="already exists"):
        move_database(path, tmp_path / "taken.db")
    assert (tmp_path / "taken.db").read_text() == "kept"
    move_database(path, target)


def test_a_program_that_waited_for_a_moved_database_cannot_write_into_the_void(tmp_path, monkeypatch):
    path, target = tmp_path / "w.db", tmp_path / "new.db"
    database.open_writable(path).close()
    waiting: list[Any] = []
    sync = database._sync_part

    def come_late(folder: Path) -> None:
        waiting.append(sqlite3.connect(path, isolation_level=None))
        sync(folder)

    monkeypatch.setattr(database, "_sync_part", come_late)
    move_database(path, target)
    with pytest.raises(StoreUnusable, match="another program"):
        database._versions(waiting[0], path)
    waiting[0].close()
