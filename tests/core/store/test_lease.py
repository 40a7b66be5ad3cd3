"""Leases: one host a session, freed however it dies, and asked about without being touched."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from watchkeeper.records.errors import DrivenElsewhere, StoreUnusable
from watchkeeper.store.lease import Lease, LeaseHolder, lock_path, probe

HOLD = """
import sys
from pathlib import Path
from watchkeeper.store.lease import Lease, probe
held = Lease.acquire(Path(sys.argv[1]), "s")
for line in sys.stdin:
    assert probe(Path(sys.argv[1]), "s") is not None
    print("held", flush=True)
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease of session `s`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        ask(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("?\n")
    process.stdin.flush()
    assert process.stdout.readline() == "held\n"


def test_a_lease_that_a_process_holds_is_refused_to_others_naming_its_pid(path: Path) -> None:
    with holder(path) as process:
        assert probe(path, "s") == LeaseHolder(process.pid)
        with pytest.raises(DrivenElsewhere, match=f"pid {process.pid}.*wk watch s"):
            Lease.acquire(path, "s")
        assert probe(path, "another") is None


def test_probing_takes_nothing_neither_from_others_nor_from_the_host_itself(path: Path) -> None:
    with holder(path) as process:
        for _ in range(3):
            assert probe(path, "s") == LeaseHolder(process.pid)
            ask(process)  # it probes itself
        with pytest.raises(DrivenElsewhere):
            Lease.acquire(path, "s")
    mine = Lease.acquire(path, "s")
    assert probe(path, "s") == LeaseHolder(os.getpid())
    theirs = subprocess.run(
        [sys.executable, "-c", HOLD, str(path)], input="", capture_output=True, text=True, check=False
    )
    assert f"pid {os.getpid()}" in theirs.stderr
    mine.release()


def test_a_probe_creates_nothing(path: Path) -> None:
    assert probe(path, "s") is None
    assert not lock_path(path, "s").parent.exists()


def test_sigkill_frees_the_lease_and_the_file_left_behind_is_no_lock(path: Path) -> None:
    with holder(path) as process:
        process.kill()
        process.wait()
        assert lock_path(path, "s").exists()
        assert probe(path, "s") is None
        Lease.acquire(path, "s").release()


def test_a_released_lease_can_be_taken_again_and_releasing_twice_harms_nobody(path: Path) -> None:
    first = Lease.acquire(path, "s")
    first.release()
    second = Lease.acquire(path, "s")
    first.release()
    assert probe(path, "s") == LeaseHolder(os.getpid())
    second.release()
    assert probe(path, "s") is None


def test_two_threads_of_one_process_are_never_both_given_a_lease(path: Path) -> None:
    for _ in range(20):
        given: list[Lease] = []
        barrier = threading.Barrier(4)

        def claim(given: list[Lease] = given, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                given.append(Lease.acquire(path, "s"))
            except DrivenElsewhere:
                pass

        threads = [threading.Thread(target=claim) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(given) == 1
        given[0].release()


def test_two_names_of_one_database_are_one_lease(path: Path, tmp_path: Path) -> None:
    path.touch()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    held = Lease.acquire(path, "s")
    with pytest.raises(DrivenElsewhere):
        Lease.acquire(link, "s")
    held.release()


def test_a_file_system_without_locks_is_not_called_another_host(path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(StoreUnusable, match="No locks available"):
        Lease.acquire(path, "s")
    monkeypatch.undo()
    Lease.acquire(path, "s").release()
