"""The change feed: wakes on other processes' commits, with file events or without."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from watchkeeper.store import database
from watchkeeper.store.change_feed import ChangeFeed

WRITE = """
import sys
from pathlib import Path
from watchkeeper.store import database
connection = database.open_writable(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    connection.execute("INSERT INTO rate_limits (provider, model, until, reason) VALUES ('p', ?, 0, '')", (line,))
    print("done", flush=True)
"""

GENEROUS_SECONDS = 5.0


@pytest.fixture
def process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which commits once for each line that it is given."""
    made = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    yield made
    made.kill()
    made.communicate()


def commit(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def settle(feed: ChangeFeed) -> None:
    """Wait until nothing has changed for a while."""
    while feed.wait(0.3):
        pass


def follow(feed: ChangeFeed, path: Path, last: int) -> list[int]:
    """A viewer: what it has seen after each wake, until it has seen `last` commits."""
    connection = database.open_readonly(path, check_same_thread=False)
    seen = [0]
    deadline = time.monotonic() + 30
    while seen[-1] < last and time.monotonic() < deadline:
        feed.wait(GENEROUS_SECONDS)
        seen.append(connection.execute("SELECT count(*) FROM rate_limits").fetchone()[0])
    connection.close()
    return seen


def test_a_commit_of_another_process_wakes_a_waiting_viewer(path, process):
    feed = ChangeFeed(path, poll_seconds=60)  # file events alone
    assert feed.wait(0) in (True, False)
    threading.Timer(0.2, commit, (process, 1)).start()
    assert 1 in follow(feed, path, 1)
    feed.close()


@pytest.mark.parametrize(
    "fault", [OSError(28, "inotify watch limit reached"), RuntimeError("watchfiles broke"), None]
)
def test_no_commit_is_missed_when_file_events_do_not_work(path, process, fault, monkeypatch):
    def broken(*_: Any, **__: Any) -> Iterator[set[Any]]:
        if fault is not None:
            raise fault
        return iter(())  # works, and never sees anything

    monkeypatch.setattr(watchfiles, "watch", broken)
    feed = ChangeFeed(path, poll_seconds=0.01)
    seen: list[int] = []
    viewer = threading.Thread(target=lambda: seen.extend(follow(feed, path, 20)))
    viewer.start()
    for number in range(20):
        commit(process, number)
    viewer.join(30)
    assert seen[-1] == 20
    feed.close()


def test_a_quiet_database_lets_the_wait_run_out(path: Path, process: subprocess.Popen[str]) -> None:
    feed = ChangeFeed(path, poll_seconds=0.02)
    settle(feed)
    assert feed.wait(0.05) is False
    commit(process, 1)
    assert feed.wait(GENEROUS_SECONDS) is True
    feed.close()


@pytest.mark.parametrize("how", ["close", "wake"])
def test_closing_ends_a_wait_and_waking_makes_it_look(path, process, how):
    feed = ChangeFeed(path, poll_seconds=60)
    feed.wait(0)
    feed._changed()
    returned = threading.Event()
    waiter = threading.Thread(target=lambda: (feed.wait(60), returned.set()))
    waiter.start()
    if how == "wake":
        commit(process, 1)
        feed.wake()
    else:
        feed.close()
    assert returned.wait(GENEROUS_SECONDS)
    feed.close()


def test_a_feed_on_a_file_that_is_not_there_yet_neither_fails_nor_spins(path: Path) -> None:
    feed = ChangeFeed(path, poll_seconds=0.05)
    began = time.monotonic()
    wakes = 0
    while time.monotonic() - began < 0.3:
        feed.wait(0.1)
        wakes += 1
    assert wakes < 12
    feed.close()


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"step_milliseconds": 20, "quiet_step_milliseconds": 100}, [20, 100, 20]), ({}, [2])],
    ids=["a screen", "a host"],
)
def test_a_screen_collects_events_less_often_while_none_come_and_a_host_as_often_as_ever(
    path, monkeypatch, options, steps
):
    asked: list[int] = []
    last = threading.Event()
    event, quiet = {("modified", str(path))}, [set[Any]()] * 30

    def watch(*_: Any, step: int, stop_event: threading.Event, **__: Any) -> Iterator[set[Any]]:
        asked.append(step)
        if options and len(asked) < 3:
            yield from [event, *quiet] if len(asked) == 1 else [set(), set(), event]
            return
        yield from [] if options else quiet
        last.set()
        stop_event.wait()

    monkeypatch.setattr(watchfiles, "watch", watch)
    feed = ChangeFeed(path, **options)
    try:
        assert last.wait(GENEROUS_SECONDS)
        assert asked == steps
    finally:
        feed.close()
