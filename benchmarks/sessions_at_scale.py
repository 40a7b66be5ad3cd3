"""Ten thousand sessions in one file: the list, searches, names, the dashboard's list, a fork, a prune beside
a host, a backup.

    python benchmarks/sessions_at_scale.py [--sessions 10000] [--large 50000] [--keep FILE]

The file is made here: every session has four agents of five messages, tasks, events and a fact; one has
`--large` messages. While it is pruned, backed up and forked, another process commits a hundred times a
second, as a busy host does, and tells how long it waited for the write lock: that is what a prune costs the
others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchkeeper.store import database, driver, sessions
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.engine import index_of
from watchkeeper.store.fork import fork_session
from watchkeeper.store.library import back_up, compare
from watchkeeper.store.prune import plan_prune, prune_sessions, vacuum
from watchkeeper.store.search.messages import ORDERS, list_sessions, parse_filters, search_messages

NOW = 1_790_000_000.0
DAY = 86_400.0
WORDS = [f"word{number}" for number in range(3_000)]


def insert(connection: Connection, table: str, **values: Any) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def add_session(connection: Connection, rng: random.Random, number: int, agents: int, messages: int) -> None:
    """One session, `number` times ten minutes ago."""
    session_id, at = f"s{number:07d}", NOW - number * 600
    insert(
        connection, "sessions", id=session_id, user_id="ada", goal=" ".join(rng.choices(WORDS, k=8)), workspace=f"/srv/w{number % 50}",
        model="offline/surveyor", tags=json.dumps([f"t{number % 20}"]), created_at=at - 500, last_active=at, ended_at=at,
        status=("done", "done", "failed", "paused", "running")[number % 5], input_tokens=rng.randrange(10**6), event_seq=20,
        cost_usd=rng.random() * 5, hosted_seconds=300.0, planner_agent_id=f"{session_id}a0",
    )  # fmt: skip
    insert(
        connection, "plans", id=f"{session_id}p", session_id=session_id, goal="g", created_at=at,
        updated_at=at,
    )  # fmt: skip
    for agent in range(agents):
        agent_id = f"{session_id}a{agent}"
        insert(
            connection, "agents", id=agent_id, session_id=session_id, name=f"explorer-{agent}", role="explorer", model="offline/surveyor",
            status="done", created_at=at, last_active=at, last_seq=messages, compactions=agent % 2,
        )  # fmt: skip
        insert(
            connection, "tasks", id=f"{agent_id}t", session_id=session_id, parent_plan_id=f"{session_id}p", name=f"task-{agent}",
            position=agent, title="title", instructions="do it", role="explorer", status="done", created_at=at,
        )  # fmt: skip
        connection.executemany(
            "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at) VALUES"
            " (?, ?, ?, ?, 80, ?, ?)",
            (
                (agent_id, seq, "user", json.dumps(" ".join(rng.choices(WORDS, k=60))), 80 * seq, at + seq)
                for seq in range(1, messages + 1)
            ),
        )
    connection.executemany(
        "INSERT INTO events (session_id, seq, at, kind, data) VALUES (?, ?, ?, 'tool.done',"
        ' \'{"tool":"read"}\')',
        ((session_id, seq, at + seq) for seq in range(1, 21)),
    )
    insert(
        connection, "facts", session_id=session_id, agent_id=f"{session_id}a0", workspace=f"/srv/w{number % 50}", scope="session",
        kind="fact", text=" ".join(rng.choices(WORDS, k=10)), digest=session_id, created_at=at,
    )  # fmt: skip


def build(path: Path, count: int, large: int) -> None:
    connection = database.open_writable(path)
    connection.execute("PRAGMA synchronous=OFF")
    rng = random.Random(1)
    began = time.monotonic()
    connection.execute("BEGIN")
    for number in range(1, count):
        add_session(connection, rng, number, 4, 5)
    add_session(connection, rng, 0, 1, large)
    connection.execute("COMMIT")
    index_of(connection).index_until(seconds=600)
    connection.close()
    print(
        f"{count:,} sessions, {path.stat().st_size / 1e6:,.0f} MB, made in {time.monotonic() - began:.0f} s\n"
    )


def timed(name: str, work: Callable[[], Any], *, times: int = 5) -> None:
    """Print the median time of `work`."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    print(f"  {name:<44} {sorted(took)[times // 2] * 1e3:9.1f} ms")


def lists(path: Path) -> None:
    connection = database.open_readonly(path)
    print("the first thousand of the list, read")
    for order in ORDERS:
        timed(f"by {order}", lambda order=order: list_sessions(Queries(connection), "", 1_000, order=order))  # type: ignore[misc]
    print("found")
    for search in ("state:failed", "tag:t3 cost>1", "word12", "word12 word77", "nothing-like-it"):

        def find(search: str = search) -> None:
            hits, _ = search_messages(connection, parse_filters(search).text)
            list_sessions(Queries(connection), search, 1_000, also=hits)

        timed(search, find)
    timed("by `last`", lambda: sessions.find(connection, "last"))
    timed("by an id", lambda: sessions.find(connection, "s0000001"))
    timed("two compared", lambda: compare(connection, "s0000001", "s0000002"))
    connection.close()
    print("the command line, its start included")
    for arguments in (["sessions"], ["sessions", "--search", "word12"], ["show", "last"]):
        timed("wk " + " ".join(arguments), lambda arguments=arguments: wk(path, *arguments), times=3)  # type: ignore[misc]


def wk(path: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "watchkeeper", *arguments, "--db", str(path)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


async def screen(path: Path) -> None:
    """The dashboard's list: until its rows stand, and until a key has moved the selection."""
    from watchkeeper_tui.app import WatchkeeperApp
    from watchkeeper_tui.screens.sessions import SessionsScreen

    app = WatchkeeperApp(path, None, screen="sessions")
    began = time.perf_counter()
    async with app.run_test(size=(120, 40)) as pilot:
        while not isinstance(app.screen, SessionsScreen) or not app.screen.view.rows:
            await pilot.pause(0.002)
        print("the dashboard's list, without a terminal")
        print(
            f"  {'from the start of the application to its rows':<44}"
            f" {(time.perf_counter() - began) * 1e3:9.1f} ms"
        )
        spent = []
        for _ in range(60):
            at = time.process_time()
            await pilot.press("j")
            spent.append(time.process_time() - at)
        p50, p95 = (sorted(spent)[int(len(spent) * share)] * 1e3 for share in (0.5, 0.95))
        print(f"  {'processor time of a key, p50 and p95':<44} {p50:9.1f} ms {p95:9.1f} ms")


def beside_a_host(path: Path, name: str, work: Callable[[], Any]) -> None:
    """Run `work` while another process commits; print how long each took."""
    with tempfile.TemporaryDirectory() as folder:
        stop = Path(folder) / "stop"
        host = subprocess.Popen(
            [sys.executable, __file__, "--host", str(path), str(stop)], stdout=subprocess.PIPE, text=True
        )
        time.sleep(1.0)
        began = time.monotonic()
        said = work()
        took = time.monotonic() - began
        stop.touch()
        waited = (host.communicate()[0] or "").strip()
    print(f"  {name:<28} {took:7.2f} s  {said}\n  {'':<28} a host meanwhile waited for the lock: {waited}")


def host(path: Path, stop: Path) -> None:
    connection = database.open_writable(path)
    waits: list[float] = []
    while not stop.exists():
        began = time.monotonic()
        driver.begin_immediate(connection)
        waits.append(time.monotonic() - began)
        connection.execute("UPDATE sessions SET hosted_seconds = hosted_seconds + 1 WHERE id = 's0000001'")
        connection.execute("COMMIT")
        time.sleep(0.01)
    waits.sort()
    p50, p95 = (waits[int(len(waits) * share)] * 1e3 for share in (0.5, 0.95))
    print(f"p50 {p50:.1f}, p95 {p95:.1f}, longest {waits[-1] * 1e3:.1f} ms ({len(waits)} commits)")


def changes(path: Path, count: int) -> None:
    print("changed beside a busy host")

    def pruned() -> str:
        plan = plan_prune(path, older_than_seconds=count * 600 * 0.8, now=NOW)
        done = prune_sessions(path, plan)
        return f"{len(done.sessions):,} sessions in {done.transactions:,} transactions"

    def forked() -> str:
        made = fork_session(path, "s0000000")
        return f"{made.messages:,} messages"

    def backed_up() -> str:
        return f"{back_up(path, path.with_name('backup.db')).bytes / 1e6:,.0f} MB, checked"

    beside_a_host(path, "backup", backed_up)
    beside_a_host(path, "fork of a large session", forked)
    beside_a_host(path, "prune of a fifth", pruned)
    began = time.monotonic()
    before, after = vacuum(path)
    print(
        f"  {'vacuum, with no host':<28} {time.monotonic() - began:7.2f} s  {before / 1e6:,.0f} MB to"
        f" {after / 1e6:,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=50_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--host", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        host(*options.host)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = folder
        path = options.keep or Path(folder) / "watchkeeper.db"
        if not path.exists():
            build(path, options.sessions, options.large)
        lists(path)
        asyncio.run(screen(path))
        changes(path, options.sessions)


if __name__ == "__main__":
    main()
