"""The real dashboard in a pseudo-terminal beside a bare Textual application with as many rows, in one run.

    python benchmarks/dashboard.py [--agents 1000] [--rate 5000] [--samples 40] [--large FILE]

- `key→paint`: from writing a key to the arrival of what it changes: `j` moves the selection, `f` freezes the
  view and changes words in every pane's frame. Idle, and while another process writes `--rate` events a
  second.
- `commit→pixel`: from the commit of a task's new title to its arrival at the terminal, while that process
  writes.
- the same keys where the timeline or a chart of all agents is on the screen, which are read again once a second.
- first paint, memory and idle processor time, also on a database of 1,000 sessions and 1,000,000 messages
  (`--large` keeps it between runs; it takes a minute to make).
- with `--postgres URL`: `commit→pixel` of a session there, through a proxy that makes each round trip 1.4 ms longer.

Other programs on the machine make every figure worse: the load is told, and the best of several runs counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.terminals import BARE, Screen, figures  # noqa: E402
from tests.support.proxy import far_away  # noqa: E402
from tests.tui.fake_store import FakeSession, create, large_session  # noqa: E402

WRITER = """
import sys, time
from watchkeeper.store.driver import sqlite3
path, rate = sys.argv[1], int(sys.argv[2])
c = sqlite3.connect(path, isolation_level=None, timeout=10)
seq = c.execute("SELECT max(seq) FROM events").fetchone()[0]
batch, marker, due = max(1, rate // 100), 0, time.monotonic() + 5
while True:
    began = time.monotonic()
    c.execute("BEGIN IMMEDIATE")
    now = time.time()
    c.executemany("INSERT INTO events (session_id, seq, at, kind, agent_id, data) VALUES ('abcd2345', ?, ?, 'tool.done', 'agent003', ?)",
                  [(seq + n + 1, now, '{"tool": "bash", "preview": "line %d"}' % (seq + n + 1)) for n in range(batch)])
    seq += batch
    c.execute("UPDATE sessions SET event_seq = ? WHERE id = 'abcd2345'", (seq,))
    c.execute("INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, input_tokens, output_tokens, cost_usd, price_status, started_at, latency_seconds)"
              " VALUES ('abcd2345', 'agent003', 1, 'turn', 'anthropic/claude-sonnet-4-5', 'done', 9000, 300, 0.03, 'exact', ?, 2.0)", (now - 2,))
    c.execute("UPDATE agents SET turn = turn + 1, input_tokens = input_tokens + 900, last_active = ? WHERE rowid % 50 = ?", (now, seq // batch % 50))
    told = began >= due
    if told:
        marker += 1
        c.execute("UPDATE tasks SET title = ? WHERE id = 'task001'", (f"mark{marker:04d}x part 1 of",))
        due = began + 0.37
    c.execute("COMMIT")
    if told:
        print(marker, time.time(), flush=True)
    time.sleep(max(0.0, 0.01 - (time.monotonic() - began)))
"""
"""Writes a hundred commits a second; with each, a fiftieth of the agents have another turn."""

WRITER_ON_SERVER = """
import asyncio, os, socket, sys, time
from pathlib import Path
from watchkeeper.records.ports import SystemClock
from watchkeeper.records.states import AgentStatus
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store import agents
from watchkeeper.store.place import place_of
from watchkeeper.store.transaction import SessionStore
place, count = place_of(sys.argv[1]), int(sys.argv[2])
session_id = create_session(place, NewSession("measure", Path(sys.argv[3]), "test/model"))
store = SessionStore.claim(place, session_id, SystemClock(), pid=os.getpid(), host_name=socket.gethostname())
names = [f"{session_id}-{number:03d}" for number in range(count)]
def make(tx):
    for name in names:
        agents.create(tx, agents.Agent(name, None, name, "explorer", "m", 1, "", AgentStatus.WORKING, None, 0, 0, 0, "g", 9000))
def work(tx, agent_id, title):
    tx.event("tool.done", agent_id=agent_id, tool="bash", preview="line")
    tx.execute("UPDATE agents SET turn = turn + 1, input_tokens = input_tokens + 900, last_active = ? WHERE id = ?", (tx.now, agent_id))
    if title:
        tx.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session_id))
async def main():
    await store.commit(make)
    print(session_id, flush=True)
    marker, due = 0, time.monotonic() + 4
    while True:
        began = time.monotonic()
        if told := began >= due:
            marker, due = marker + 1, began + 0.37
        title = f"mark{marker:04d}x" if told else ""
        await store.commit(lambda tx: work(tx, names[int(began * 100) % count], title))
        if told:
            print(marker, time.time(), flush=True)
        await asyncio.sleep(max(0.0, 0.01 - (time.monotonic() - began)))
asyncio.run(main())
"""
"""A host on PostgreSQL: a hundred commits a second at most, each with an event and another turn of an agent."""

HOLD = """
import sys, time, pathlib
from watchkeeper.store.lease import Lease
lease = Lease.acquire(pathlib.Path(sys.argv[1]), 'abcd2345')
print('held', flush=True)
time.sleep(3600)
"""
"""Makes the session live: a host holds it, and does nothing."""

VIEWER = [
    "-c",
    "import sys, pathlib; from watchkeeper_tui.app import run; sys.exit(run(pathlib.Path(sys.argv[1]),"
    " None))",
]
WATCH = ["-m", "watchkeeper", "watch", "--db"]


HOME = b"\x1b[H"


def keys(screen: Screen, samples: int, *, bare: bool) -> tuple[list[float], list[float]]:
    """Seconds from `j`, and from `f`, to what they paint."""
    moves, flips = [], []
    if not bare:
        os.write(screen.terminal, HOME)  # the planner, above the first task
        screen.drain(1)
    for number in range(samples):
        words = b"row %04d" % (number + 1) if bare else b"part %d of" % (number + 1)
        moves.append(screen.press(b"j", words))
        screen.drain(0.11)
    for number in range(samples):
        words = (b"following" if bare else b"following again") if number % 2 else b"FROZEN"
        flips.append(screen.press(b"f", words))
        screen.drain(0.23)
    return moves, flips


def busy(path: Path, rate: int, samples: int) -> None:
    """The dashboard on one session of many agents, idle and beside a writer."""
    with Screen([*VIEWER, str(path)]) as screen:
        screen.until(b"part 2 ")
        screen.drain(6)
        print(
            f"  idle                     {screen.processor_share(8) * 100:5.2f} % of a processor  "
            f" {screen.mebibytes():.0f} MiB"
        )
        moves, flips = keys(screen, samples // 2, bare=False)
        print(f"  key→paint, idle, j       {figures(moves)}")
        print(f"  key→paint, idle, f       {figures(flips)}")
    with beside_writer(path, rate) as (screen, told):
        os.write(screen.terminal, HOME)
        screen.drain(1)
        pixels = []
        for _ in range(samples):
            number, committed = told().split()
            pixels.append(screen.until(f"mark{int(number):04d}x".encode()) - float(committed))
        print(f"  commit→pixel, busy       {figures(pixels)}")
        moves, flips = keys(screen, samples, bare=False)
        print(f"  key→paint, busy, j       {figures(moves)}")
        print(f"  key→paint, busy, f       {figures(flips)}")
        say_what_it_takes(screen)
    with beside_writer(path, rate) as (screen, _):
        os.write(screen.terminal, b"t")
        screen.until(b"Timeline")
        screen.drain(2)
        moves = [screen.press(b"j", b"coder-%d " % (number + 1)) for number in range(samples)]
        print(f"  key→paint, timeline, j   {figures(moves)}")
        say_what_it_takes(screen)
    with beside_writer(path, rate) as (screen, _):
        os.write(screen.terminal, HOME + b"T")
        screen.until(b"context: tokens")
        screen.drain(2)
        titles = (b"tokens per minute;", b"cost: US dollars", b"context: tokens")
        flips = [screen.press(b"\t", titles[number % 3]) for number in range(samples)]
        print(f"  key→paint, chart, tab    {figures(flips)}")
        say_what_it_takes(screen)


@contextmanager
def beside_writer(path: Path, rate: int) -> Iterator[tuple[Screen, Callable[[], str]]]:
    """The dashboard while another process writes; the function waits for the next line that the writer prints."""
    command = [sys.executable, "-c", WRITER, str(path), str(rate)]
    with (
        Screen([*VIEWER, str(path)]) as screen,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer,
    ):
        assert writer.stdout is not None
        try:
            screen.until(b"part 2 ")
            yield screen, writer.stdout.readline
        finally:
            writer.kill()


def say_what_it_takes(screen: Screen) -> None:
    """Print the share of a processor and the memory of a busy dashboard."""
    share = screen.processor_share(5)
    print(f"  busy                     {share * 100:5.1f} % of a processor   {screen.mebibytes():.0f} MiB")


def on_server(url: str, agents: int, samples: int) -> None:
    """Commit→pixel of the dashboard on PostgreSQL, through a proxy that makes each round trip 1.4 ms longer."""
    parts = urlsplit(url)
    with (
        tempfile.TemporaryDirectory() as folder,
        far_away((parts.hostname or "127.0.0.1", parts.port or 5432), 0.0014) as port,
    ):
        work = Path(folder) / "work"
        work.mkdir()
        user = f"{parts.username}@" if parts.username else ""
        far = f"postgresql://{user}127.0.0.1:{port}{parts.path}"
        command = [sys.executable, "-c", WRITER_ON_SERVER, url, str(agents), str(work)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            session_id = writer.stdout.readline().strip()
            try:
                with Screen(["-m", "watchkeeper", "watch", session_id, "--db", far]) as screen:
                    pixels = []
                    for each in range(samples + 3):
                        number, committed = writer.stdout.readline().split()
                        seen = screen.until(f"mark{int(number):04d}x".encode())
                        if each >= 3:  # the screen has started
                            pixels.append(seen - float(committed))
                    print(f"  commit→pixel             {figures(pixels)}")
                    print(
                        f"  busy                     {screen.processor_share(5) * 100:5.1f} % of a processor"
                    )
            finally:
                writer.kill()


def bare(rows: int, samples: int) -> None:
    """The yardstick."""
    with Screen(["-c", BARE, str(rows)]) as screen:
        screen.until(b"bare-marker")
        screen.drain(2)
        print(
            f"  idle                     {screen.processor_share(8) * 100:5.2f} % of a processor  "
            f" {screen.mebibytes():.0f} MiB"
        )
        moves, flips = keys(screen, samples // 2, bare=True)
        print(f"  key→paint, j             {figures(moves)}")
        print(f"  key→paint, f             {figures(flips)}")


def large(path: Path, rows: int, runs: int = 7) -> None:
    """First paint beside the yardstick, then what the dashboard takes."""
    ours, yardstick = [], []
    for _ in range(runs):
        with Screen([*WATCH, str(path)]) as screen:
            ours.append(screen.until(b"part 2 ") - screen.began)
        with Screen(["-c", BARE, str(rows)]) as screen:
            yardstick.append(screen.until(b"bare-marker") - screen.began)
    ratio = statistics.median(one / other for one, other in zip(ours, yardstick, strict=True))
    print(
        f"  first paint              {statistics.median(ours):.3f} s beside"
        f" {statistics.median(yardstick):.3f} s bare: ratio {ratio:.2f}"
    )
    with Screen([*WATCH, str(path)]) as screen:
        screen.until(b"part 2 ")
        screen.drain(6)
        print(
            f"  idle                     {screen.processor_share(8) * 100:5.2f} % of a processor  "
            f" {screen.mebibytes():.0f} MiB"
        )
        screen.press(b"s", b"Sessions")
        screen.drain(2)
        print(f"  with the sessions open   {screen.mebibytes():.0f} MiB")


def make_large(path: Path, sessions: int = 1000, messages: int = 1_000_000) -> None:
    """A thousand sessions; the newest has a hundred agents."""
    connection = create(path)
    connection.execute("BEGIN")
    now, each = time.time(), messages // sessions
    text = '[{"type": "text", "text": "' + "what was said and done, word by word " * 8 + '"}]'
    for number in range(sessions):
        session = FakeSession(connection, f"sess{number:04d}", now=now, last_active=now - sessions + number, planner_agent_id=f"p{number:04d}",
                              status="done", goal=f"session number {number}", current_plan_id=f"plan{number}")  # fmt: skip
        session.agent(
            f"p{number:04d}", "planner", role="planner", parent_agent_id=None, last_seq=each,
            message_tokens=each * 90,
        )  # fmt: skip
        connection.executemany(
            "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at) VALUES"
            " (?, ?, 'user', ?, 90, ?, ?)",
            ((f"p{number:04d}", seq, text, seq * 90, now) for seq in range(1, each + 1)),
        )
    large_session(connection, 100, now=now - 300, hostile=False)
    connection.execute(
        "UPDATE sessions SET created_at = ?1, last_active = ?1 WHERE id = 'abcd2345'", (now + 1,)
    )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument(
        "--large",
        type=Path,
        help="a database of 1,000 sessions and 1,000,000 messages; made where there is none",
    )
    parser.add_argument("--postgres", help="only a session on this empty database, 1.4 ms further away")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    if options.postgres:
        print(f"the dashboard on PostgreSQL, {options.agents} agents:")
        on_server(options.postgres, options.agents, options.samples)
        return
    print(f"bare Textual, {options.agents} rows:")
    bare(options.agents, options.samples)
    path = Path(tempfile.mkdtemp()) / "bench.db"
    os.environ["XDG_STATE_HOME"] = str(path.parent)  # not the layout that the user of this machine left
    connection = create(path)
    connection.execute("BEGIN")
    session = large_session(connection, options.agents, now=time.time() - 300, hostile=False)
    for number in range(options.agents * 3):
        session.call(
            f"agent{number % options.agents or 1:03d}",
            started_at=time.time() - 400 + number / options.agents * 100,
        )
    connection.execute("COMMIT")
    print(f"the dashboard, {options.agents} agents, {options.rate} events/s when busy:")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        host.stdout.readline()
        try:
            busy(path, options.rate, options.samples)
        finally:
            host.kill()
    if options.large is not None:
        if not options.large.exists():
            make_large(options.large)
        print("the dashboard, 1,000 sessions and 1,000,000 messages:")
        large(options.large, options.agents)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
