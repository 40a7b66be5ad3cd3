"""The files of leases and of those who watch: their reserve, their modes, who is named, and what is left open."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from watchkeeper.records.errors import DrivenElsewhere, StoreUnusable
from watchkeeper.store import lease
from watchkeeper.store.lease import (
    Lease,
    LeaseHolder,
    Presence,
    holders,
    is_watched,
    lease_folder,
    lock_path,
    watch_path,
)

WATCH = """
import sys
from pathlib import Path
from watchkeeper.store.lease import Lease, Presence
seen = Presence(Path(sys.argv[1]), "s"), Lease.acquire(Path(sys.argv[1]), "t")
print("ready", flush=True)
sys.stdin.read()
"""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_lease_holds_its_reserve_until_it_is_freed_or_released(path: Path) -> None:
    held = Lease.acquire(path, "s")
    file = lock_path(path, "s")
    for free in (held.free_reserve, held.release):
        assert file.stat().st_size == 0
        held.reserve()
        assert file.stat().st_size == lease.RESERVE_BYTES == 512 * 1024
        free()
        assert file.stat().st_size == 0


def test_on_a_disk_that_is_nearly_full_the_reserve_is_half_of_what_is_left(path, monkeypatch):
    held = Lease.acquire(path, "s")
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=3, f_frsize=2_000))
    held.reserve()
    assert lock_path(path, "s").stat().st_size == 3_000
    held.release()


@pytest.mark.parametrize("watched_first", [False, True])
def test_the_files_are_the_users_own_in_a_folder_beside_the_database(path: Path, watched_first: bool) -> None:
    if watched_first:
        Presence(path, "s").close()
    held, watching = Lease.acquire(path, "s"), Presence(path, "s")
    folder = path.with_name(f"{path.name}-leases")
    assert lease_folder(path) == folder
    assert sorted(one.name for one in folder.iterdir()) == ["s.lock", "s.watch"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    held.release()
    watching.close()


def test_the_holders_are_the_sessions_that_are_driven_now_with_their_processes(path: Path) -> None:
    assert list(holders(path)) == []
    Lease.acquire(path, "a").release()
    held = [Lease.acquire(path, name) for name in "cb"]
    assert list(holders(path)) == [("b", os.getpid()), ("c", os.getpid())]
    for one in held:
        one.release()


def test_a_lease_that_this_process_has_is_refused_to_it_naming_it(path: Path) -> None:
    held = Lease.acquire(path, "s")
    with pytest.raises(DrivenElsewhere, match=rf"this process \(pid {os.getpid()}\) is already running"):
        Lease.acquire(path, "s")
    held.release()


def test_a_holder_has_ended_only_if_its_process_was_here_and_is_known_to_be_gone(monkeypatch: Any) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    holders = [LeaseHolder(*one) for one in ((gone.pid,), (gone.pid, "elsewhere"), (0,), (os.getpid(),))]
    assert [one.has_ended for one in holders] == [True, False, False, False]

    def of_another_user(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", of_another_user)
    assert not LeaseHolder(gone.pid).has_ended


def test_a_session_is_watched_as_long_as_anyone_of_this_process_watches_it(path: Path) -> None:
    before = descriptors()
    assert not is_watched(path, "s")
    first, second, third = (Presence(path, "s") for _ in range(3))
    for one in (first, second, first, third):
        assert is_watched(path, "s")
        assert not is_watched(path, "t")
        one.close()
    assert not is_watched(path, "s")
    assert descriptors() == before
    again = Presence(path, "s")
    assert is_watched(path, "s")
    again.close()


def test_those_who_watch_in_other_processes_count_beside_each_other_until_they_end(path: Path) -> None:
    before = descriptors()
    command = [sys.executable, "-c", WATCH, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert is_watched(path, "s")
        assert list(holders(path)) == [("t", process.pid)]
        mine = Presence(path, "s")
        mine.close()
        assert is_watched(path, "s"), "a shared lock: the other one still has it"
        process.kill()
        process.wait()
        assert not is_watched(path, "s")
    assert descriptors() == before


def test_where_nothing_can_be_locked_nobody_is_known_to_watch_and_nothing_is_left_open(path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    lease_folder(path).mkdir()
    before = descriptors()
    with monkeypatch.context() as without:
        without.setattr(fcntl, "lockf", refuse)
        Presence(path, "s").close()
        with pytest.raises(StoreUnusable, match=r"cannot lock .*s\.lock \(No locks available\)"):
            Lease.acquire(path, "s")
    assert descriptors() == before
    assert not is_watched(path, "s")
    assert watch_path(path, "s").exists()
    lease_folder(path).joinpath("x.watch").mkdir()
    Presence(path, "x").close()
    assert not is_watched(path, "x")


def test_a_refused_lease_leaves_nothing_open(path: Path) -> None:
    command = [sys.executable, "-c", WATCH, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = descriptors()
        with pytest.raises(
            DrivenElsewhere,
            match=rf"another background process \(pid {process.pid}\) is running session t; watch it with `wk watch t`",
        ):
            Lease.acquire(path, "t")
        assert descriptors() == before
        process.kill()
