"""How soon a command is applied while busy hosts share one file, and how soon a viewer in another process
sees a commit.

    python -m benchmarks.commands_latency [--hosts 4] [--agents 4] [--think 0] [--commands 100]

Each host drives that many agents, whose model replies after `--think` seconds; with 0 they step as fast as
they can, and wait for the processors and the disk alone. Each command steers one of their planners. Prints
p50 and p95, and beside them, as yardsticks under the very same load, two that nobody can beat: how soon an
idle process is woken by a byte in a pipe, and how long one commit takes in a database of its own (a command
takes two, behind those of all hosts).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.scripted import call, role_of, said, task

from watchkeeper.records.messages import Delta, ModelEvent, ModelRequest, Reply, Usage
from watchkeeper.runtime import control
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.runtime.run_session import SWITCH_SECONDS, Runtime
from watchkeeper.store import database, driver
from watchkeeper.store.change_feed import ChangeFeed

ECHO = """
import sys
while byte := sys.stdin.buffer.read(1):
    sys.stdout.buffer.write(byte)
    sys.stdout.buffer.flush()
"""
VIEWER = """
import sys, time
from pathlib import Path
from watchkeeper.store import database
from watchkeeper.store.change_feed import ChangeFeed
path = Path(sys.argv[1])
connection, feed = database.open_readonly(path), ChangeFeed(path)
print("ready", flush=True)
seen = -1
while True:
    feed.wait(1.0)
    row = connection.execute("SELECT until FROM rate_limits WHERE provider = 'benchmark'").fetchone()
    if row and row[0] != seen:
        seen = row[0]
        print(f"{seen:.0f} {time.perf_counter()!r}", flush=True)
"""


class Busy:
    """A model whose agents never end: each reply calls one tool that only looks into the store."""

    ref, context_window = "test/busy", 200_000

    def __init__(self, agents: int, think_seconds: float) -> None:
        self._tasks = [task(f"t{number}") for number in range(agents)]
        self._think_seconds = think_seconds

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await asyncio.sleep(self._think_seconds)
        yield Delta("text", "…")
        answer = self._answer(request)
        stop = "tool_use" if answer[-1]["type"] == "tool_use" else "end_turn"
        yield Reply(content=answer, stop_reason=stop, usage=Usage(input_tokens=100, output_tokens=60))

    def _answer(self, request: ModelRequest) -> list[dict[str, Any]]:
        count = len(request.messages)
        if not request.tools:
            return [said("a summary")]
        if role_of(request) != "planner":
            return [
                said("It goes on. " * 20),
                call("read_back", {"ref": f"message://nobody/{count}"}, f"toolu_{count}"),
            ]
        return [call("create_plan", {"goal": "g", "tasks": self._tasks})] if count == 1 else [said("I wait.")]


async def drive(path: Path, session: str, agents: int, think_seconds: float) -> None:
    """One host, until it is told to stop."""
    sys.setswitchinterval(SWITCH_SECONDS)
    runtime = Runtime(path, model=Busy(agents, think_seconds))
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: runtime.hosts[session].pause_all("over")
    )
    await runtime.run(session)


def told(name: str, seconds: list[float]) -> None:
    if len(seconds) < 2:
        print(f"{name}: only {len(seconds)} measured")
        return
    p95 = statistics.quantiles(seconds, n=20)[-1]
    slowest = f"slowest {1000 * max(seconds):.1f} ms"
    print(
        f"{name}: p50 {1000 * statistics.median(seconds):.1f} ms, p95 {1000 * p95:.1f} ms, {slowest}, of"
        f" {len(seconds)}"
    )


class Yardsticks:
    """What the machine itself takes at the time, whatever this program does."""

    def __init__(self, folder: Path) -> None:
        self._idle = subprocess.Popen(
            [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._own = database.open_writable(folder / "yardstick.db")
        self.wakes: list[float] = []
        self.commits: list[float] = []

    def measure(self) -> None:
        assert self._idle.stdin is not None
        assert self._idle.stdout is not None
        began = time.perf_counter()
        self._idle.stdin.write(b".")
        self._idle.stdout.read(1)
        self.wakes.append(time.perf_counter() - began)
        began = time.perf_counter()
        self._own.execute("BEGIN IMMEDIATE")
        self._own.execute(
            "INSERT OR REPLACE INTO rate_limits (provider, model, until, reason) VALUES ('benchmark', 'm',"
            " ?, '')",
            (began,),
        )
        self._own.execute("COMMIT")
        self.commits.append(time.perf_counter() - began)

    def close(self) -> None:
        self._idle.kill()
        self._idle.communicate()
        self._own.close()


def applied(path: Path, sessions: list[str], commands: int, yardsticks: Yardsticks) -> list[float]:
    """Seconds from before a command's insert until another connection sees it settled."""
    connection, feed, chance = database.open_readonly(path), ChangeFeed(path), random.Random(1)
    planners = dict(connection.execute("SELECT id, planner_agent_id FROM sessions").fetchall())
    found = []
    for number in range(commands):
        time.sleep(chance.uniform(0.02, 0.12))
        yardsticks.measure()
        session = sessions[number % len(sessions)]
        began = time.perf_counter()
        command = control.submit(
            path, session, "steer", agent_id=planners[session], payload={"text": f"note {number}"}
        )
        while time.perf_counter() - began < 10:
            row = connection.execute("SELECT status FROM commands WHERE id = ?", (command,)).fetchone()
            if row[0] != "queued":
                found.append(time.perf_counter() - began)
                break
            feed.wait(0.05)
    feed.close()
    connection.close()
    return found


def seen(path: Path, commits: int) -> list[float]:
    """Seconds from the end of a commit until a viewer in another process has read it."""
    connection = database.open_writable(path)
    viewer = subprocess.Popen([sys.executable, "-c", VIEWER, str(path)], stdout=subprocess.PIPE, text=True)
    assert viewer.stdout is not None
    viewer.stdout.readline()
    found = []
    for number in range(commits):
        driver.begin_immediate(connection)
        connection.execute(
            "INSERT OR REPLACE INTO rate_limits (provider, model, until, reason) VALUES ('benchmark', 'm',"
            " ?, '')",
            (number,),
        )
        connection.execute("COMMIT")
        committed = time.perf_counter()
        while True:
            which, at = viewer.stdout.readline().split()
            if int(which) == number:
                found.append(max(0.0, float(at) - committed))
                break
    viewer.kill()
    viewer.communicate()
    connection.close()
    return found


def measure(folder: Path, options: argparse.Namespace) -> None:
    path, workspace = folder / "w.db", folder / "workspace"
    workspace.mkdir()
    settings = SessionSettings(approval_timeout_seconds=0.0)
    sessions = [
        create_session(path, NewSession(f"run {n}", workspace, Busy.ref, settings))
        for n in range(options.hosts)
    ]
    command = [
        sys.executable, "-m", "benchmarks.commands_latency", "--agents", options.agents, "--think",
        options.think,
    ]  # fmt: skip
    hosts = [subprocess.Popen([*map(str, command), "--drive", str(path), session]) for session in sessions]
    connection = database.open_readonly(path)
    working = "SELECT count(*), sum(turn) FROM agents WHERE task_id IS NOT NULL AND turn > 1"
    while connection.execute(working).fetchone()[0] < options.hosts * options.agents:
        time.sleep(0.05)
    yardsticks = Yardsticks(folder)
    told("commit → seen by a viewer", seen(path, 40))
    turns, began = connection.execute(working).fetchone()[1], time.monotonic()
    found = applied(path, sessions, options.commands, yardsticks)
    steps = (connection.execute(working).fetchone()[1] - turns) / (time.monotonic() - began)
    told("yardstick: an idle process is woken", yardsticks.wakes)
    told("yardstick: one commit, in a file of its own", yardsticks.commits)
    told("command → applied", found)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{options.hosts} hosts with {options.agents} agents each took {steps:.0f} steps/s meanwhile; load"
        f" {load}"
    )
    connection.close()
    yardsticks.close()
    for host in hosts:
        host.terminate()
    for host in hosts:
        host.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--think", type=float, default=0.0)
    parser.add_argument("--commands", type=int, default=100)
    parser.add_argument("--drive", nargs=2, metavar=("PATH", "SESSION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        asyncio.run(drive(Path(options.drive[0]), options.drive[1], options.agents, options.think))
        return
    with tempfile.TemporaryDirectory() as name:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = name
        measure(Path(name), options)


if __name__ == "__main__":
    main()
