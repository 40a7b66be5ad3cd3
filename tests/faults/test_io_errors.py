"""Errors of the disk itself, injected beneath SQLite by libfiu: one clear line, and nothing that was told is
lost."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.modules import write_modules
from tests.support.places import query

from watchkeeper.store import database

ATTEMPTS = 2
"""How often a run is tried on the failing disk, before the disk is well again."""

FAULTS = {
    "a write fails": ("posix/io/rw/pwrite", 0.004, errno.EIO),
    "a write is cut short": ("posix/io/rw/pwrite/reduce", 0.02, 0),
    "the disk is full": ("posix/io/rw/pwrite", 0.004, errno.ENOSPC),
    "a sync fails": ("posix/io/sync/fsync", 0.02, errno.EIO),
    "a sync is refused": ("posix/io/sync/fsync", 0.02, errno.EINVAL),
    "the disk is full at a sync": ("posix/io/sync/fsync", 0.2, errno.ENOSPC),
    "a read fails": ("posix/io/rw/pread", 0.002, errno.EIO),
}
"""What fails: libfiu's name of it, how often, and with which `errno`."""
RARE = ("a sync is refused", "the disk is full at a sync")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_modules(tmp_path / "workspace", "alpha", "beta", each=6)


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=[pytest.mark.long] * (each in RARE)) for each in FAULTS]
)
def test_a_failing_disk_stops_a_run_with_one_line_and_a_well_one_carries_it_on(tmp_path, workspace, fault):
    launcher = shutil.which("fiu-run")
    if launcher is None:
        pytest.skip("libfiu is not installed: apt-get install fiu-utils libfiu0")
    path = tmp_path / "w.db"
    database.open_writable(path).close()
    name, probability, code = FAULTS[fault]
    failing = f"enable_random name={name},probability={probability},failinfo={code}"
    told: set[object] = set()

    def program(*before: str) -> subprocess.CompletedProcess[str]:
        begun = query(path, "SELECT id FROM sessions")
        command = (
            ["resume", begun[0][0]] if begun else ["demo", "--speed", "max", "--workspace", str(workspace)]
        )
        done = subprocess.run(
            [*before, sys.executable, "-m", "watchkeeper", *command, "--headless", "--json", "--db", str(path)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            event = json.loads(line)
            if "seq" in event:
                told.add(event["seq"])
        return done

    for _ in range(ATTEMPTS):
        done = program(launcher, "-x", "-f", "", "-c", failing)
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode == 0:
            break
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert str(path) in done.stderr
        assert ("the disk is full; free some space" in done.stderr) == (code == errno.ENOSPC), done.stderr
    done = program()
    assert done.returncode == 0, done.stderr
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert {row[0] for row in query(path, "SELECT status FROM sessions")} == {"done"}
    seqs = [row[0] for row in query(path, "SELECT seq FROM events ORDER BY seq")]
    assert seqs == list(range(1, len(seqs) + 1))
    assert told
    assert told <= set(seqs)
    assert query(path, "SELECT count(*) FROM tasks WHERE status != 'done' OR attempt != 1") == [(0,)]
