"""Two hosts on one session, and many on one file: a host that lost its lease writes nothing more, and nobody
starves."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.history import recorded, violations
from tests.faults.modules import write_modules

from watchkeeper.runtime import control
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.store import database, driver
from watchkeeper.store.change_feed import ChangeFeed
from watchkeeper.store.driver import sqlite3

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def wk(tmp_path: Path) -> Iterator[Start]:
    """Starts the command line in processes of their own; ends what is left of them, and checks their history."""
    started: list[subprocess.Popen[str]] = []
    environment = recorded(tmp_path / "history")

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "watchkeeper", *arguments], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    assert violations(tmp_path / "history", tmp_path / "w.db") == []


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_modules(tmp_path / "workspace", "alpha", "beta", "gamma", each=8, times=3)


def until(path: Path, condition: Callable[[Any], Any], timeout_seconds: float = 60.0) -> Any:
    """Wait for commits until `condition` of a read-only connection holds; returns what it gave."""
    connection = database.open_readonly(path)
    feed = ChangeFeed(path)
    deadline = time.monotonic() + timeout_seconds
    try:
        while time.monotonic() < deadline:
            found = condition(connection)
            if found:
                return found
            feed.wait(0.2)
        raise AssertionError("it did not come to that")
    finally:
        feed.close()
        connection.close()


def rows(path: Path) -> dict[str, list[Any]]:
    """Every row of every table."""
    connection = database.open_readonly(path)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {table: connection.execute(f"SELECT * FROM [{table}]").fetchall() for table in tables}
    connection.close()
    return found


def stop_between_transactions(process: subprocess.Popen[str], path: Path) -> Any:
    """SIGSTOP the host at a moment when it does not hold the write lock; returns a connection that holds
    it."""
    connection = database.open_writable(path)
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            driver.begin_immediate(connection, timeout_seconds=0.05)
            return connection
        except sqlite3.OperationalError:
            os.kill(process.pid, signal.SIGCONT)


def test_a_host_that_was_stopped_and_taken_over_writes_nothing_more_and_stops(tmp_path, workspace, wk):
    path = tmp_path / "w.db"
    database.open_writable(path).close()
    first = wk("demo", "--headless", "--speed", "5", "--workspace", str(workspace), "--db", str(path))
    until(path, lambda c: c.execute("SELECT count(*) FROM agents WHERE turn > 0").fetchone()[0] >= 2)
    connection = stop_between_transactions(first, path)
    connection.execute("ROLLBACK")

    second = wk(
        "resume", "last", "--headless", "--db", str(path)
    )  # the lock of a stopped process is still held
    _, said = second.communicate(timeout=60)
    assert second.returncode == 4
    assert str(first.pid) in said
    assert len([line for line in said.splitlines() if not line.startswith("wk: last is ")]) == 1

    driver.begin_immediate(connection)
    connection.execute("UPDATE sessions SET lease_epoch = lease_epoch + 1")  # what a take-over does
    connection.execute("COMMIT")
    connection.close()
    before = rows(path)
    began = time.monotonic()
    os.kill(first.pid, signal.SIGCONT)
    _, said = first.communicate(timeout=30)
    print(f"stopped {time.monotonic() - began:.2f} s after it went on, with {first.returncode}: {said}")
    assert first.returncode == 4
    assert rows(path) == before
    assert len(said.splitlines()) == 1, said
    assert "another background process took over" in said

    resumed = wk("resume", "last", "--headless", "--db", str(path))
    _, said = resumed.communicate(timeout=90)
    assert resumed.returncode == 0, said
    found = rows(path)
    assert sorted(row[1] for row in found["events"]) == list(range(1, len(found["events"]) + 1))


def test_four_hosts_on_one_file_all_end_and_commands_are_applied_meanwhile(tmp_path, workspace, wk):
    path = tmp_path / "w.db"
    settings = SessionSettings(speed=25.0)
    sessions = [
        create_session(path, NewSession(f"survey {n}", workspace, "offline/surveyor", settings))
        for n in range(4)
    ]
    hosts = [wk("resume", session, "--headless", "--db", str(path)) for session in sessions]
    planners = {
        session: until(
            path,
            lambda c, s=session: (
                c.execute("SELECT planner_agent_id FROM sessions WHERE id = ?", (s,)).fetchone() or [None]
            )[0],
        )
        for session in sessions
    }
    latencies = []
    connection = database.open_readonly(path)
    for number in range(24):
        session = sessions[number % 4]
        if (
            connection.execute("SELECT status FROM sessions WHERE id = ?", (session,)).fetchone()[0]
            != "running"
        ):
            continue
        began = time.perf_counter()
        command = control.submit(
            path, session, "steer", agent_id=planners[session], payload={"text": f"note {number}"}
        )
        settled = until(
            path,
            lambda c, i=command, s=session: c.execute(
                "SELECT c.status FROM commands c JOIN sessions s ON s.id = c.session_id WHERE c.id = ?"
                " AND (c.status != 'queued' OR s.status != 'running')",
                (i,),
            ).fetchone(),
        )[0]
        if settled != "queued":
            latencies.append(time.perf_counter() - began)
    connection.close()
    for host in hosts:
        _, said = host.communicate(timeout=90)
        assert host.returncode == 0, said
    p95 = statistics.quantiles(latencies, n=20)[-1] if len(latencies) > 1 else max(latencies)
    print(
        f"{len(latencies)} commands, p50 {1000 * statistics.median(latencies):.0f} ms, p95 {1000 * p95:.0f}"
        " ms"
    )
    assert latencies
    assert statistics.median(latencies) < 1.0
    found = rows(path)
    for session in sessions:
        seqs = sorted(row[1] for row in found["events"] if row[0] == session)
        assert seqs == list(range(1, len(seqs) + 1))
