"""Many agents in one host, and one very long session: does anything grow that should not?

    python -m benchmarks.load [--agents 1000] [--turns 100]    every agent a task, all at once, a viewer attached
    python -m benchmarks.load --messages 1000000    opened by `wk show`, by a viewer, and resumed
    python -m benchmarks.load --db scratch --workers 3 [--agents 100 --agents 1000] [--turns 20] [--sessions 6]
        agents of several sessions, whose hosts `wk worker` processes start, on PostgreSQL: a server that is started for
        it, or the one of an address

Prints ratios and bounds: the processor time of a step as the agents' histories grow; memory for each agent;
the largest write-ahead log while a viewer reads. `--hold` keeps one read open all along, as a hung viewer
would. Over workers, for each number of agents: steps a second, the processor time of a step of the hosts and of the
server, what a step adds to the database and to its log, and connections; from a fifth of the steps to nine tenths.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.terminals import Screen
from tests.faults.command_line_trials import processes_below
from tests.support.places import workspace_in
from tests.support.postgres import FolderDatabases, server_for_trials
from tests.support.scripted import PlannedRun, ScriptedModel, call, inbox_of, role_of, said, task

from watchkeeper.records.messages import (
    Delta,
    ErrorKind,
    Message,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    Usage,
)  # fmt: skip
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.runtime.run_session import SWITCH_SECONDS, Runtime
from watchkeeper.store import database, driver, messages
from watchkeeper.store.driver import Connection
from watchkeeper.store.place import Place
from watchkeeper.store.workers import Needs

AT_ONCE = 500
VIEWER = """
import sys, time
from pathlib import Path
from watchkeeper.store.database import open_readonly
from watchkeeper.store.snapshot import SessionSnapshotReader as SessionFold
connection, fold, reads = open_readonly(Path(sys.argv[1])), SessionFold(sys.argv[2]), []
while True:
    began = time.monotonic()
    connection.execute("BEGIN")
    reading = fold.read(connection, time.time())
    if sys.argv[3] != "hold":
        connection.execute("COMMIT")
    reads.append(time.monotonic() - began)
    if sys.argv[3] == "once":
        print(reads[0])
        break
    while sys.argv[3] == "hold":
        time.sleep(60)
    time.sleep(max(0.1, reads[-1]))
"""


CROWD = """
import importlib.abc, importlib.util, os, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "watchkeeper.runtime.host_factory":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def load(module):
            execute(module)
            module.resolve = crowd

        spec.loader.exec_module = load
        return spec

def crowd(*_, **__):
    from benchmarks.load import Crowd

    return Crowd(*map(int, os.environ["WATCHKEEPER_TEST_CROWD"].split()))

sys.meta_path.insert(0, Finder())
"""
"""A `sitecustomize` that gives hosts the model `Crowd`."""


def rss_kib(process: int | str = "self") -> int:
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        return next((int(line.split()[1]) for line in status if line.startswith("VmRSS")), 0)


class Gauge(threading.Thread):
    """Looks at this process's memory and at the write-ahead log, ten times a second."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.memory: list[int] = []
        self.largest_wal = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            self.memory.append(rss_kib())
            self.largest_wal = max(self.largest_wal, driver.wal_bytes(self.path))


def many_agents(
    folder: Path, count: int, most_turns: int, hold: bool, with_dashboard: bool = False
) -> dict[str, Any]:
    """`count` agents of `most_turns` turns each, in one host; every turn is a reply, a stored tool call and
    its result."""

    model = Crowd(count, most_turns)
    sys.setswitchinterval(SWITCH_SECONDS)  # as a host does
    warm = Runtime(folder / "warm.db", model=ScriptedModel(PlannedRun([task("one")])))
    settings = SessionSettings(approval_timeout_seconds=0.0)
    asyncio.run(warm.run(warm.start("warm", workspace=workspace_in(folder), settings=settings)))
    path = folder / "load.db"
    runtime = Runtime(path, model=model)
    session = runtime.start(
        "load",
        workspace=workspace_in(folder),
        settings=SessionSettings(approval_timeout_seconds=0.0, max_parallel=count),
    )
    viewer = subprocess.Popen([sys.executable, "-c", VIEWER, str(path), session, "hold" if hold else "read"])
    dashboard = Dashboard(path, session) if with_dashboard else None
    gauge, began = Gauge(path), time.monotonic()
    before = rss_kib()
    gauge.start()
    result = asyncio.run(runtime.run(session))
    seconds = time.monotonic() - began
    gauge.over.set()
    gauge.join()
    viewer.kill()
    viewer.wait()
    shown = dashboard.close() if dashboard is not None else {}
    connection = database.open_readonly(path)
    warnings = connection.execute("SELECT count(*) FROM events WHERE kind = 'host.warning'").fetchone()[0]
    connection.close()
    steps = len(model.cpu)
    # Once every agent has begun, and before the first has ended: all steps are alike then.
    at = [int(steps * (0.2 + 0.07 * number)) for number in range(11)]
    milliseconds = [
        1000 * (model.cpu[then] - model.cpu[now]) / (then - now) for now, then in itertools.pairwise(at)
    ]
    half = gauge.memory[len(gauge.memory) // 2]
    return {
        "agents": count, "turns": most_turns, "exit_code": result.exit_code, "steps": steps, "seconds": round(seconds, 1),
        "steps_per_second": round(steps / seconds, 1), "cpu_seconds": round(model.cpu[-1] - model.cpu[0], 1),
        "cpu_milliseconds_of_a_step": [round(one, 2) for one in milliseconds],
        "step_last_to_first_tenth": round(milliseconds[-1] / milliseconds[0], 2),
        "kib_per_agent": round((max(gauge.memory) - before) / count, 1), "memory_end_to_half": round(gauge.memory[-1] / half, 2),
        "largest_wal_mib": round(gauge.largest_wal / (1 << 20), 1), "warnings": warnings, "viewer": "holds" if hold else "reads",
        **shown,
    }  # fmt: skip


# --- Over workers, on PostgreSQL --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """What was used by a moment."""

    at: float
    steps: int
    host_seconds: float
    server_seconds: float
    database_bytes: int
    log_bytes: int


class ProcessorTimes(dict[int, float]):
    """Processor seconds by process; those of a process that has ended stay."""

    def look(self, pids: Iterable[int]) -> float:
        for pid in pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return sum(self.values())


def over_workers(
    place: Place, folder: Path, *, agents: int, turns: int, workers: int, sessions: int
) -> dict[str, Any]:
    """So many agents in so many sessions, whose hosts the workers start."""
    each = agents // sessions
    (folder / "site").mkdir(parents=True)
    (folder / "site" / "sitecustomize.py").write_text(CROWD)
    environment = os.environ | {
        "ANTHROPIC_API_KEY": "a key of nobody", "WATCHKEEPER_DB": getattr(place, "dsn", str(place)),
        "WATCHKEEPER_TEST_CROWD": f"{each} {turns}", "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", os.getcwd())]),
    }  # fmt: skip
    workspace, settings = workspace_in(folder), SessionSettings(max_parallel=each)
    for number in range(sessions):
        wanted = NewSession(
            f"load {number}", workspace, "anthropic/claude-test", settings,
            needs=Needs(("load",), path=str(workspace)),
        )  # fmt: skip
        create_session(place, wanted)
    slots = -(-sessions // workers)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "watchkeeper", "worker", "--slots", str(slots), "--label", "load", "--name", f"m{number}"],
            env=environment, stdout=subprocess.DEVNULL,
        )
        for number in range(workers)
    ]  # fmt: skip
    samples: list[Sample] = []
    peaks = {"hosts_mib": 0, "connections": 0}
    try:
        with contextlib.closing(database.open_readonly(place)) as connection:
            _watch(connection, started, agents * turns, samples, peaks)
            statuses = [row[0] for row in connection.execute("SELECT status FROM sessions").fetchall()]
    finally:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.wait(60)
    steps = samples[-1].steps
    first, last = (next(one for one in samples if one.steps >= share * steps) for share in (0.2, 0.9))
    done = last.steps - first.steps
    return {
        "agents": each * sessions, "turns": turns, "sessions": sessions, "workers": workers,
        "done": statuses.count("done"), "steps": steps, "seconds": round(samples[-1].at - samples[0].at, 1),
        "steps_per_second": round(done / (last.at - first.at), 1),
        "host_cpu_milliseconds_of_a_step": round(1000 * (last.host_seconds - first.host_seconds) / done, 2),
        "server_cpu_milliseconds_of_a_step": round(1000 * (last.server_seconds - first.server_seconds) / done, 2),
        "database_bytes_of_a_step": (last.database_bytes - first.database_bytes) // done,
        "log_bytes_of_a_step": (last.log_bytes - first.log_bytes) // done, **peaks,
    }  # fmt: skip


def _watch(
    connection: Connection,
    started: Sequence[subprocess.Popen[bytes]],
    wanted: int,
    samples: list[Sample],
    peaks: dict[str, int],
) -> None:
    """Sample until no session runs."""
    hosts, server = ProcessorTimes(), ProcessorTimes()
    mine = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
    start = connection.execute("SELECT CAST(pg_current_wal_lsn() AS text)").fetchone()[0]
    while not samples or connection.execute("SELECT 1 FROM sessions WHERE status = 'running'").fetchone():
        below = [pid for worker in started for pid in (worker.pid, *processes_below(worker.pid))]
        pids = [row[0] for row in connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE pid <> ? AND (datname = current_database() OR datname IS NULL)", (mine,)
        ).fetchall()]  # fmt: skip
        steps, size, log = connection.execute(
            "SELECT coalesce(sum(model_calls), 0), pg_database_size(current_database()),"
            " CAST(pg_wal_lsn_diff(pg_current_wal_lsn(), CAST(? AS pg_lsn)) AS bigint) FROM sessions",
            (start,),
        ).fetchone()
        samples.append(
            Sample(time.monotonic(), int(steps), hosts.look(below), server.look(pids), int(size), int(log))
        )
        with contextlib.suppress(OSError):  # one has ended meanwhile
            peaks["hosts_mib"] = max(peaks["hosts_mib"], sum(rss_kib(pid) for pid in below) >> 10)
        peaks["connections"] = max(peaks["connections"], len(pids))
        if samples[-1].at - samples[0].at > 60 + wanted:
            break
        time.sleep(0.25)


class Dashboard(threading.Thread):
    """`wk watch` in a pseudo-terminal, whose output is read and thrown away."""

    def __init__(self, path: Path, session: str) -> None:
        super().__init__(daemon=True)
        self._screen = Screen(["-m", "watchkeeper", "watch", session, "--db", str(path)])
        self._painted = 0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._screen.terminal, 65_536):
                self._painted += len(data)

    def close(self) -> dict[str, Any]:
        """End it; how much it took and painted."""
        memory, cpu = self._screen.mebibytes(), self._screen.processor_seconds()
        self._screen.close()
        return {
            "dashboard_mib": round(memory), "dashboard_cpu_seconds": round(cpu, 1), "dashboard_painted_kib": self._painted >> 10,
        }  # fmt: skip


class Crowd:
    """A model whose replies cost this process next to nothing, so that what is measured is the host."""

    ref, context_window = "test/crowd", 200_000

    def __init__(self, tasks: int, most_turns: int) -> None:
        self._tasks = [task(f"t{number}") for number in range(tasks)]
        self._most_turns = most_turns
        self._over = 0
        self.cpu = array("d")
        """Processor time of this process, all threads, at each call."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.cpu.append(time.process_time())
        answer = self._answer(request)
        await asyncio.sleep(0)
        yield Delta("text", "…")
        stop = "tool_use" if answer[-1]["type"] == "tool_use" else "end_turn"
        yield Reply(answer, stop, Usage(input_tokens=100 * len(request.messages), output_tokens=60))

    def _answer(self, request: ModelRequest) -> list[dict[str, Any]]:
        turn = len(request.messages) // 2
        if not request.tools:
            return [said("a summary")]
        if role_of(request) == "planner":
            return self._plan(request)
        if turn == self._most_turns:
            return [said("done")]
        words = f"Turn {turn} of an agent. " + "It goes on. " * 20
        return [said(words), call("read_back", {"ref": f"message://nobody/{turn}"}, f"toolu_{turn}")]

    def _plan(self, request: ModelRequest) -> list[dict[str, Any]]:
        made, self._made = self._made, True
        if not made:
            rest = [
                call("add_task", one, f"toolu_{number}") for number, one in enumerate(self._tasks[AT_ONCE:])
            ]
            return [call("create_plan", {"goal": "the goal", "tasks": self._tasks[:AT_ONCE]}), *rest]
        self._over += sum(item["kind"] == "task_done" for item in inbox_of(request.messages[-1]))
        if self._over == len(self._tasks):
            return [call("finish_session", {"summary": "all tasks are done"})]
        return [said("I wait for the tasks.")]

    _made = False


def long_session(folder: Path, count: int) -> dict[str, Any]:
    """One planner with `count` messages, the last of which are verbatim; opened from outside, and resumed."""
    path = folder / "long.db"
    answers: list[Any] = [
        ModelError("no credit", kind=ErrorKind.PAUSE),
        [call("finish_session", {"summary": "over"})],
    ]
    model = ScriptedModel(lambda request: answers[0])
    runtime = Runtime(path, model=model)
    session = runtime.start(
        "long", workspace=workspace_in(folder), settings=SessionSettings(approval_timeout_seconds=0.0)
    )
    asyncio.run(runtime.run(session))
    fill(path, session, count)
    size = path.stat().st_size >> 20
    shown = timed([sys.executable, "-m", "watchkeeper", "show", session, "--json", "--db", str(path)])
    began = time.monotonic()
    read = subprocess.run(
        [sys.executable, "-c", VIEWER, str(path), session, "once"], capture_output=True, text=True, check=True
    )
    viewer = time.monotonic() - began
    answers.pop(0)
    began, before = time.monotonic(), rss_kib()
    result = asyncio.run(runtime.run(session))
    return {
        "messages": count, "file_mib": size, "wk_show_seconds": round(shown, 2), "viewer_first_read_seconds": round(float(read.stdout), 3),
        "viewer_with_start_seconds": round(viewer, 2), "resume_to_end_seconds": round(time.monotonic() - began, 2),
        "resume_memory_mib": (rss_kib() - before) >> 10, "exit_code": result.exit_code,
    }  # fmt: skip


def timed(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def fill(path: Path, session: str, count: int) -> None:
    """Give the planner that many messages, all but the last few covered by one observation."""
    connection = database.open_writable(path)
    agent, last, tokens = connection.execute(
        "SELECT id, last_seq, message_tokens FROM agents WHERE session_id = ?", (session,)
    ).fetchone()
    at, turn, each = time.time(), "It goes on, and on. " * 5, 25
    driver.begin_immediate(connection)
    writing = _Writing(connection)
    batch: list[Message] = []
    for seq in range(last + 1, count + 1):
        role = "assistant" if seq % 2 == 0 else "user"
        tokens += each
        batch.append(Message(seq, role, turn, each, tokens, at))
        if len(batch) == 10_000 or seq == count:
            messages.add_messages(writing, agent, batch)  # type: ignore[arg-type]
            batch = []
    connection.execute(
        "INSERT INTO observations (agent_id, id, kind, level, text, tokens, first_seq, last_seq, citations,"
        " replaces,"
        " provisional, status, created_at) VALUES (?, 1, 'summary', 0, 'Much was said.', 4, 1, ?, '[]',"
        " '[]', 0, 'applied', ?)",
        (agent, count - 21, at),
    )
    connection.execute(
        "INSERT INTO views (agent_id, version, parent, observations, verbatim_from, elided, reason, tokens,"
        " created_at)"
        " SELECT ?, max(version) + 1, max(version), '[1]', ?, '[]', 'summary', 529, ? FROM views WHERE"
        " agent_id = ?",
        (agent, count - 20, at, agent),
    )
    connection.execute(
        "UPDATE agents SET last_seq = ?, message_tokens = ?, context_tokens = 529,"
        " view_version = (SELECT max(version) FROM views WHERE agent_id = agents.id) WHERE id = ?",
        (count, tokens, agent),
    )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


class _Writing:
    """As much of a transaction as adding messages needs."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.now = time.time()

    def execute(self, sql: str, parameters: Any = ()) -> int:
        return int(self._connection.execute(sql, parameters).rowcount)

    def executemany(self, sql: str, rows: Any) -> None:
        self._connection.executemany(sql, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--agents", type=int, action="append", help="with --db: several numbers, one after the other"
    )
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--db", metavar="URL", help="over workers on PostgreSQL: a server, or `scratch`")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=6, help="over workers: so many share the agents")
    parser.add_argument("--messages", type=int, help="instead of agents: a session of that many messages")
    parser.add_argument("--hold", action="store_true", help="the viewer never ends its read")
    parser.add_argument("--dashboard", action="store_true", help="the dashboard itself is attached too")
    options = parser.parse_args()
    many = options.agents or [1000]
    with tempfile.TemporaryDirectory() as name, server_for_trials(options.db) as server:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = name
        if server is not None:
            databases = FolderDatabases(server)
            for number, agents in enumerate(many):
                folder = Path(name) / str(number)
                databases.make(folder)
                print(json.dumps(over_workers(
                    databases.of(folder), folder, agents=agents, turns=options.turns, workers=options.workers,
                    sessions=options.sessions,
                ) | {"load": [round(one, 1) for one in os.getloadavg()]}), flush=True)  # fmt: skip
                databases.drop(folder)
            databases.close()
            return
        if options.messages:
            figures = long_session(Path(name), options.messages)
        else:
            figures = many_agents(Path(name), many[0], options.turns, options.hold, options.dashboard)
    print(json.dumps(figures | {"load": [round(one, 1) for one in os.getloadavg()]}))


if __name__ == "__main__":
    main()
