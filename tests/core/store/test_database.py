"""Opening: the right pragmas, any number of processes, one clear line for what cannot be used."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import database, driver
from watchkeeper.store.database import APPLICATION_ID
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.migrations import SCHEMA_VERSION

OPENERS = [database.open_writable, database.open_readonly]


def refused(path: Path, opener: Any) -> str:
    """The one line with which opening was refused."""
    with pytest.raises(StoreUnusable) as told:
        opener(path)
    line = str(told.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def test_a_new_database_is_private_wal_and_durable(path: Path) -> None:
    connection = database.open_writable(path)
    connection.execute("INSERT INTO rate_limits (provider, model, until, reason) VALUES ('p', 'm', 0, '')")
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        assert stat.S_IMODE(name.stat().st_mode) == 0o600
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    database.open_writable(path).close()
    database.open_readonly(path).close()


def test_a_file_with_smaller_pages_keeps_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for size in (4_096, 8_192):
        monkeypatch.setattr(database, "PAGE_BYTES", size)
        connection = database.open_writable(path)
        connection.execute(
            "INSERT INTO rate_limits (provider, model, until, reason) VALUES ('p', ?, 0, '')", (f"m{size}",)
        )
        sizes.append(connection.execute("PRAGMA page_size").fetchone()[0])
        connection.execute("VACUUM")
        connection.close()
    assert sizes == [4_096, 4_096]


def test_four_processes_may_open_one_empty_file_at_once(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from watchkeeper.store import database; sys.stdin.readline();"
        " print(database.open_writable(Path(sys.argv[1])).execute('SELECT count(*) FROM"
        " sqlite_master').fetchone()[0])"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=60) for process in processes]
    assert [errors for _, errors in ends] == ["", "", "", ""]
    assert len({said for said, _ in ends}) == 1


def test_a_process_that_looked_before_another_one_migrated_does_not_migrate_again(path: Path) -> None:
    database.open_writable(path).close()
    late = sqlite3.connect(str(path), isolation_level=None)
    late.execute("PRAGMA user_version=99")  # a newer program was faster
    database.migrate(late, path)
    assert late.execute("PRAGMA user_version").fetchone() == (99,)
    late.close()


def _newer(path: Path) -> None:
    connection = database.open_writable(path)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()


def _of_another_program(path: Path, mode: str = "wal") -> None:
    connection = sqlite3.connect(str(path))
    connection.execute(f"PRAGMA journal_mode={mode}")
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.commit()
    connection.close()


def _damaged(path: Path) -> None:
    database.open_writable(path).close()
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])


ODD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a newer schema": (_newer, "newer Watchkeeper"),
    "a text": (lambda path: path.write_text("my notes\n" * 500), "not a SQLite database"),
    "another program's": (_of_another_program, "another program"),
    "another program's, without WAL": (lambda path: _of_another_program(path, "delete"), "another program"),
    "a folder": (Path.mkdir, ""),
    "a pipe, at which SQLite waits for ever": (os.mkfifo, ""),
    "a loop": (lambda path: path.symlink_to(path), ""),
    "a device": (lambda path: path.symlink_to(os.devnull), ""),
    "a damaged header": (_damaged, ""),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(("make", "words"), ODD_FILES.values(), ids=ODD_FILES)
def test_what_is_no_database_of_ours_is_refused_at_once_and_not_a_byte_of_it_changes(
    path, opener, make, words
):
    make(path)
    before = path.read_bytes() if path.is_file() else None
    assert words in refused(path, opener)
    assert before is None or path.read_bytes() == before


def test_a_path_where_no_database_can_be_is_refused_and_nothing_is_made(path):
    for opener in OPENERS:
        refused(path.with_name("x" * 300), opener)
    assert "wk demo" in refused(path, database.open_readonly), "it says how to start"
    assert not path.exists()
    path.touch()
    assert "not a Watchkeeper database" in refused(path, database.open_readonly)
    refused(path / "inner.db", database.open_writable)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_may_not_be_written_is_refused(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "w.db"
    database.open_writable(path).close()
    (folder if what == "folder" else path).chmod(0o500)
    assert "permissions" in refused(path, database.open_writable)
    folder.chmod(0o700)


def test_a_network_file_system_is_recognised_by_the_longest_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "damaged line\n"
        f"server:/export {tmp_path}/home nfs4 rw 0 0\n"
        f"/dev/sdb1 {tmp_path}/home/local\\040disk xfs rw 0 0\n"
        f"server:/other {tmp_path}/home2 fuse.sshfs rw 0 0\n"
    )

    def kind(name: str) -> str | None:
        return database.file_system_of(tmp_path / name, str(mounts))

    assert kind("home/me") == "nfs4"
    assert kind("home") == "nfs4"
    assert kind("home2/me") == "fuse.sshfs"
    assert kind("home/local disk/me") == "xfs"
    assert kind("homework") == "ext4"
    assert database.file_system_of(tmp_path, str(tmp_path / "none")) is None


def test_a_network_file_system_is_refused_saying_why(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "file_system_of", lambda folder: "nfs4")
    assert "network file system (nfs4)" in refused(path, database.open_writable)
    assert not path.exists()


def test_a_database_that_stays_locked_is_told_in_one_line(path, monkeypatch):
    connection = sqlite3.connect(str(path), isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(driver, "LOCK_TIMEOUT_SECONDS", 0.02)
    assert "locked by another program" in refused(path, database.open_writable)
    connection.execute("ROLLBACK")
    connection.close()


def test_a_viewer_can_neither_write_nor_checkpoint(path: Path) -> None:
    host = database.open_writable(path)
    host.execute("INSERT INTO rate_limits (provider, model, until, reason) VALUES ('p', 'm', 0, '')")
    wal = Path(f"{path}-wal")
    size, main = wal.stat().st_size, path.read_bytes()
    viewer = database.open_readonly(path)
    for sql in (
        "DELETE FROM rate_limits",
        "CREATE TABLE t (x)",
        "PRAGMA user_version=7",
        "PRAGMA journal_mode=delete",
    ):
        with pytest.raises(sqlite3.OperationalError):
            viewer.execute(sql)
    try:
        outcome = viewer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        outcome = None
    assert outcome is None or outcome[0] != 0 or path.read_bytes() == main
    assert viewer.execute("SELECT count(*) FROM rate_limits").fetchone() == (1,)
    viewer.close()
    assert wal.stat().st_size == size
    assert path.read_bytes() == main
    host.close()


def test_the_last_viewer_of_a_dead_host_leaves_its_wal_as_it_is(path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from watchkeeper.store import database;"
        ' c = database.open_writable(Path(sys.argv[1])); c.execute("INSERT INTO rate_limits (provider,'
        " model, until, reason) VALUES ('p', 'm', 0, '')\");"
        " os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    wal, main = Path(f"{path}-wal").read_bytes(), path.read_bytes()
    viewer = database.open_readonly(path)
    assert viewer.execute("SELECT count(*) FROM rate_limits").fetchone() == (1,)
    viewer.close()
    assert (Path(f"{path}-wal").read_bytes(), path.read_bytes()) == (wal, main)


def test_a_database_with_a_second_name_is_not_opened_and_the_line_says_how_to_find_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os.path, "ismount", lambda folder: folder == str(tmp_path)
    )  # a search of the whole disk takes its time
    path, other = tmp_path / "my data" / "w.db", tmp_path / "other.db"
    database.open_writable(path).close()
    os.link(path, other)
    for opened in (path, other):
        for opener in (database.open_writable, database.open_readonly):
            with pytest.raises(StoreUnusable, match="2 hard links") as refused:
                opener(opened)
            assert "\n" not in str(refused.value)
    command = str(refused.value).split("`")[1]
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
    assert {str(path), str(other)} <= set(found.splitlines())
    other.unlink()
    for opener in (database.open_writable, database.open_readonly):
        opener(path).close()


def test_a_backup_can_be_opened_as_soon_as_it_is_made(tmp_path: Path) -> None:
    from watchkeeper.store.library import back_up

    database.open_writable(tmp_path / "w.db").close()
    back_up(tmp_path / "w.db", tmp_path / "copy.db")
    database.open_writable(tmp_path / "copy.db").close()
