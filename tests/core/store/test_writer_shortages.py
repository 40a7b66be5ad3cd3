"""A writer whose machine runs out of something: it waits, says so once, and serves again as soon as there is room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from watchkeeper.records import errors
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import driver
from watchkeeper.store import writer as module
from watchkeeper.store.writer import Writer

WAITS = (0.01, 0.02, 0.03)


class Disk:
    """The disk of a writer: `left` transactions that it has no room for, and the waits that the writer made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.attempts = 0
        self.waits: list[float] = []
        real = driver.begin_immediate

        def begin(connection: Any, **about: Any) -> None:
            self.attempts += 1
            if self.left:
                self.left -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(connection, **about)

        monkeypatch.setattr(driver, "begin_immediate", begin)
        monkeypatch.setattr(errors, "RETRY_SECONDS", WAITS)
        clock = SimpleNamespace(**{name: getattr(time, name) for name in ("monotonic", "perf_counter")})
        monkeypatch.setattr(module, "time", clock)
        clock.sleep = self.waits.append


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def one(made: Writer) -> Any:
    return made.submit(lambda group: 1)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_full_disk_is_waited_for_longer_each_time_and_the_batch_is_done_once_there_is_room(
    writer: Writer, disk: Disk, times: int
) -> None:
    disk.left = times
    assert one(writer).result(10) == 1
    assert (tuple(disk.waits), disk.attempts) == (WAITS[:times], times + 1)


def test_once_every_wait_was_in_vain_later_batches_wait_no_more_until_one_succeeds(writer, disk):
    disk.left = 6
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            one(writer).result(10)
    assert (tuple(disk.waits), disk.left) == (WAITS, 0)
    assert one(writer).result(10) == 1
    disk.left, disk.attempts = 2, 0
    assert one(writer).result(10) == 1
    assert (tuple(disk.waits), disk.attempts) == (WAITS + WAITS[:2], 3)


def test_an_error_that_is_no_shortage_is_not_waited_for(writer: Writer, disk: Disk) -> None:
    def fails(group: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        writer.submit(fails).result(10)
    assert disk.waits == []


def test_a_closed_writer_names_its_file_and_may_be_closed_again(writer: Writer) -> None:
    running = set(threading.enumerate())
    writer.close()
    writer.close()
    with pytest.raises(StoreUnusable, match=rf"{writer.path.name} is closed"):
        one(writer)
    assert [thread.name for thread in running - set(threading.enumerate())] == ["watchkeeper-writer"]


def test_each_transaction_is_counted_once_and_a_failed_one_never(writer: Writer) -> None:
    before = writer.commits
    one(writer).result(10)
    with pytest.raises(ZeroDivisionError):
        writer.submit(lambda group: 1 / 0).result(10)
    one(writer).result(10)
    assert writer.commits == before + 2


def test_a_batch_that_fails_alone_runs_once_and_a_group_has_at_most_so_many_batches(writer, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_GROUP", 4)
    entered, go, ran = threading.Event(), threading.Event(), []

    def first(group: Any) -> None:
        entered.set()
        assert go.wait(10)

    waiting = [writer.submit(first)]
    assert entered.wait(10)
    waiting += [one(writer) for _ in range(10)]
    before = writer.commits
    go.set()
    for done in waiting:
        done.result(10)
    assert writer.commits == before + 4  # the first one's, then four, four and two

    def fails(group: Any) -> None:
        ran.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        writer.submit(fails).result(10)
    assert ran == [1]


def test_a_program_that_does_not_close_its_writer_ends_all_the_same(writer: Writer) -> None:
    program = "import sys; from pathlib import Path; from watchkeeper.store.writer import Writer; Writer(Path(sys.argv[1]))"
    assert subprocess.run([sys.executable, "-c", program, str(writer.path)], timeout=60).returncode == 0
