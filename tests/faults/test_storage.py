"""Storage faults: full disks, torn logs, damaged pages, a file that disappears. One clear line, and nothing
acknowledged lost."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.store.test_migrations import earlier_version
from tests.faults.modules import write_modules
from tests.support import places

from watchkeeper.cli.app import run as wk
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.runtime.host import HostResult
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store import database, driver
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.migrations import SCHEMA_VERSION
from watchkeeper.store.transaction import SessionStore

COMMITS = 40

WRITE_AND_DIE = f"""
import os, sys
from pathlib import Path
from watchkeeper.store import database
connection = database.open_writable(Path(sys.argv[1]))
connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
for number in range({COMMITS}):
    connection.execute("INSERT INTO rate_limits (provider, model, until, reason) VALUES ('p', ?, ?, ?)", (str(number), number, "x" * 50 * (number % 7)))
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_modules(tmp_path / "workspace", "alpha", "beta", each=90)


# --- the write-ahead log ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database whose host was killed: its schema in the file, `COMMITS` commits of one row each in the
    WAL."""
    path = tmp_path_factory.mktemp("killed") / "w.db"
    subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path)], check=False, capture_output=True)
    return path


def truncated(wal: bytes, rng: random.Random) -> tuple[bytes, int]:
    offset = rng.randrange(len(wal))
    return wal[:offset], offset


def zeroed(wal: bytes, rng: random.Random) -> tuple[bytes, int]:
    offset = rng.randrange(len(wal))
    length = rng.choice((1, 24, 512, 4096, 20_000))
    return (wal[:offset] + bytes(min(length, len(wal) - offset)) + wal[offset + length :]), offset


def flipped(wal: bytes, rng: random.Random) -> tuple[bytes, int]:
    offset = rng.randrange(len(wal))
    return wal[:offset] + bytes([wal[offset] ^ (1 << rng.randrange(8))]) + wal[offset + 1 :], offset


@pytest.mark.parametrize("damage", [truncated, zeroed, flipped])
def test_a_damaged_log_is_recovered_to_a_prefix_of_its_commits(killed, tmp_path, damage):
    main, wal = killed.read_bytes(), Path(f"{killed}-wal").read_bytes()
    rng = random.Random(damage.__name__)
    found = set()
    for trial in range(40):
        path = tmp_path / f"{trial}.db"
        path.write_bytes(main)
        hurt, offset = damage(wal, rng)
        Path(f"{path}-wal").write_bytes(hurt)
        for opener in (database.open_readonly, database.open_writable, database.open_readonly):
            connection = opener(path)
            rows = [int(row[0]) for row in connection.execute("SELECT model FROM rate_limits ORDER BY rowid")]
            assert rows == list(range(len(rows)))
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            connection.close()
        # Every commit that lies whole before the damage is there.
        frames = max(0, offset - 32) // (database.PAGE_BYTES + 24)
        assert len(rows) >= min(COMMITS, frames // 4)
        found.add(len(rows))
    assert len(found) > 3


def test_an_undamaged_log_of_a_killed_host_loses_nothing(killed: Path) -> None:
    assert places.query(killed, "SELECT count(*) FROM rate_limits") == [(COMMITS,)]


# --- the file -----------------------------------------------------------------------------------------------


async def survey(path: Path, workspace: Path) -> HostResult:
    runtime, settings = Runtime(path), SessionSettings(speed=None)
    session = runtime.start("survey", workspace=workspace, model="offline/surveyor", settings=settings)
    return await runtime.run(session)


@pytest.fixture
async def finished(tmp_path: Path, workspace: Path) -> Path:
    path = tmp_path / "finished.db"
    assert (await survey(path, workspace)).exit_code == 0
    return path


def test_a_damaged_file_gives_every_command_an_answer_or_one_line(finished, tmp_path, capsys):
    whole, size = finished.read_bytes(), database.PAGE_BYTES
    rng = random.Random(5)
    refusals = 0
    for trial in range(12):
        path = tmp_path / f"hurt-{trial}.db"
        page = rng.randrange(len(whole) // size)
        match trial % 3:
            case 0:
                path.write_bytes(whole[: rng.randrange(1, len(whole))])
            case 1:
                path.write_bytes(whole[: page * size] + bytes(size) + whole[(page + 1) * size :])
            case _:
                path.write_bytes(whole[: page * size] + rng.randbytes(size) + whole[(page + 1) * size :])
        for command in (["sessions"], ["show", "last", "--json"], ["artifacts", "last", "SURVEY.md"]):
            code = wk([*command, "--db", str(path)])
            said = capsys.readouterr()
            assert "Traceback" not in said.err
            assert "internal error" not in said.err, (trial, page, command)
            if code != 0:
                refusals += 1
                lines = [line for line in said.err.splitlines() if not line.startswith("wk: last is ")]
                assert len(lines) == 1, (trial, page, command)
    assert refusals > 2


async def test_a_database_deleted_while_it_is_driven_stops_the_host_with_one_line(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.db"
    count = iter(range(1_000_000))
    real = SessionStore.commit

    async def commit(self: SessionStore, change: Any) -> Any:
        if next(count) == 12:
            path.rename(tmp_path / "elsewhere.db")
        return await real(self, change)

    monkeypatch.setattr(SessionStore, "commit", commit)
    with pytest.raises(StoreUnusable, match="deleted or replaced"):
        await survey(path, workspace)
    (tmp_path / "elsewhere.db").rename(path)
    monkeypatch.undo()
    await assert_resumable(path)


# --- a full disk --------------------------------------------------------------------------------------------


def soundness(path: Path) -> tuple[str, int]:
    """Check what must hold; returns the session and how many events it has."""
    assert places.query(path, "PRAGMA integrity_check") == [("ok",)]
    ((session, seq),) = places.query(path, "SELECT id, event_seq FROM sessions")
    seqs = places.query(path, "SELECT seq FROM events ORDER BY seq")
    assert seqs == [(number,) for number in range(1, seq + 1)]
    return session, seq


async def assert_resumable(path: Path) -> None:
    session, _ = soundness(path)
    assert (await Runtime(path).run(session)).exit_code == 0
    soundness(path)


@pytest.mark.parametrize("pages_left", [0, pytest.param(3, marks=pytest.mark.long), 6])
async def test_a_full_disk_stops_a_run_with_one_line_and_it_carries_on_from_there(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, pages_left: int
) -> None:
    path = tmp_path / "w.db"
    count = iter(range(1_000_000))
    acknowledged = [0]
    real = SessionStore.commit

    def fill(group: Any) -> None:
        used = group.connection.execute("PRAGMA page_count").fetchone()[0]
        group.connection.execute(f"PRAGMA max_page_count={used + pages_left}")

    async def commit(self: SessionStore, change: Any) -> Any:
        if next(count) == 8:
            await self.writer.commit(fill)
        done = await real(self, change)
        acknowledged.append(self.one("SELECT event_seq FROM sessions")[0])
        return done

    monkeypatch.setattr(SessionStore, "commit", commit)
    with pytest.raises(StoreUnusable) as told:
        await asyncio.wait_for(survey(path, workspace), 20)
    monkeypatch.undo()
    assert "the disk is full; free some space" in str(told.value)
    assert soundness(path)[1] >= max(acknowledged) > 0
    await assert_resumable(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_that_is_really_full_stops_the_command_line_with_one_line_and_it_carries_on(
    small_disk: Path, workspace: Path
) -> None:
    path = small_disk / "w.db"

    database.open_writable(path).close()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - 300_000)))
    stopped = places.wk(path, "demo", "--headless", "--speed", "max", "--workspace", str(workspace))
    assert stopped.returncode == 5, stopped.stderr
    lines = stopped.stderr.splitlines()
    assert len(lines) == 1, stopped.stderr
    soundness(path)
    ((session, status),) = places.query(path, "SELECT id, status FROM sessions")
    assert status == "paused"
    assert f"the disk is full; free some space, then `wk resume {session}`" in lines[0]
    ballast.unlink()
    resumed = places.wk(path, "resume", "last", "--headless")
    assert resumed.returncode == 0, resumed.stderr
    soundness(path)


def test_sqlite_itself_is_free_of_the_wal_reset_fault_or_doctor_says_so(capsys, tmp_path):
    from watchkeeper.store.driver import SAFE_SQLITE

    wk(["doctor", "--db", str(tmp_path / "w.db")])
    said = capsys.readouterr().out
    assert sqlite3.sqlite_version in said
    assert sqlite3.sqlite_version_info >= SAFE_SQLITE or "3.51.3" in said


# --- who may open it ----------------------------------------------------------------------------------------


def together(programs: list[list[str]]) -> list[subprocess.CompletedProcess[str]]:
    """Run programs that wait for a line, and give it to all of them at once."""
    pipe: Any = subprocess.PIPE
    processes = [subprocess.Popen(one, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for one in programs]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # it has imported what it needs
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=60) for process in processes]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *end)
        for process, end in zip(processes, ends, strict=True)
    ]


def test_four_processes_may_migrate_one_old_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    earlier_version(path)
    program = (
        "import sys; from pathlib import Path; import sqlite_utils; from watchkeeper.store import database, migrations;"
        " print('ready', flush=True); sys.stdin.readline();"
        " opened = getattr(database, sys.argv[2])(Path(sys.argv[1]));"
        " print(opened.execute('SELECT count(*) FROM messages').fetchone()[0])"
    )
    openers = ("open_writable", "open_readonly") * 2
    ends = together([[sys.executable, "-c", program, str(path), opener] for opener in openers])
    assert [end.stderr for end in ends] == [""] * 4
    assert {end.stdout for end in ends} == {"11\n"}
    assert places.query(path, "PRAGMA integrity_check") == [("ok",)]
    names = "SELECT count(*), count(DISTINCT name) FROM _sqlite_migrations"
    assert places.query(path, names) == [(SCHEMA_VERSION, SCHEMA_VERSION)]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_a_user_may_not_write_is_refused_with_one_line_and_left_as_it_is(tmp_path, what):
    """As root, in a child that gives root's rights up."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "w.db"
    database.open_writable(path).close()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    before = path.read_bytes()
    folder.chmod(0o555 if what == "folder" else 0o777)
    path.chmod(0o666 if what == "folder" else 0o444)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for above in (tmp_path, *tmp_path.parents):
                if above.stat().st_uid == os.geteuid() and above != Path("/"):
                    above.chmod(above.stat().st_mode | 0o011)  # the way there may be walked
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            try:
                database.open_writable(path)
                said = "it was opened"
            except StoreUnusable as refused:
                said = str(refused)
        except BaseException as error:
            said = f"the child failed: {error!r}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    folder.chmod(0o700)
    assert "cannot write " in said
    assert "; check its permissions" in said
    assert len(said.splitlines()) == 1
    assert path.read_bytes() == before


def demo(path: Path, workspace: Path, *, speed: str) -> subprocess.Popen[str]:
    """`wk demo` in a process of its own, on a database that is there."""
    database.open_writable(path).close()
    command = [sys.executable, "-m", "watchkeeper", "demo", "--headless", "--json", "--speed", speed]
    command += ["--workspace", str(workspace), "--db", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_line_stops_with_one_line_when_its_file_is_deleted_under_it(tmp_path, workspace):
    path = tmp_path / "w.db"
    host = demo(path, workspace, speed="5")
    for _ in range(5):
        host.stdout.readline()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    _, errors = host.communicate(timeout=60)
    assert host.returncode == 2
    assert len(errors.strip().splitlines()) == 1, errors
    assert "deleted or replaced" in errors
    assert not path.exists()


def test_a_host_waits_for_a_lock_that_another_program_holds_and_loses_nothing(tmp_path, workspace):
    path = tmp_path / "w.db"
    host = demo(path, workspace, speed="max")
    host.stdout.readline()
    holder = sqlite3.connect(str(path), isolation_level=None)
    driver.begin_immediate(holder)
    seq = holder.execute("SELECT event_seq FROM sessions").fetchone()[0]
    with pytest.raises(subprocess.TimeoutExpired):
        host.wait(1.0)  # nothing is done, and nothing given up
    assert holder.execute("SELECT event_seq FROM sessions").fetchone()[0] == seq
    holder.execute("ROLLBACK")
    holder.close()
    _, errors = host.communicate(timeout=60)
    assert (host.returncode, errors) == (0, "")
    soundness(path)
