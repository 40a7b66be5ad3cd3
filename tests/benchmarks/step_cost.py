"""What one durable step costs: ours against the same rows by raw sqlite3, both at synchronous=FULL, in one
run.

    python tests/benchmarks/step_cost.py [--steps 100 10000] [--agents 50] [--seconds 5]

Prints ratios. A *full step* is fence, assistant message, tool call, model call and event, in one transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.places import workspace_in

from watchkeeper.records.messages import Cost, Message, PriceStatus, Usage
from watchkeeper.records.ports import SystemClock
from watchkeeper.records.states import ModelCallStatus
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.runtime.run_session import SWITCH_SECONDS
from watchkeeper.store import agents, messages
from watchkeeper.store.database import open_writable
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.session_store import SessionStore
from watchkeeper.store.transaction import Transaction

TEXT = "The quick brown fox jumps over the lazy dog. " * 30
CONTENT = [
    {"type": "text", "text": TEXT},
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"file_path": "src/a.py"}},
]
FREE = Cost(0.001, PriceStatus.EXACT)


def open_session(folder: Path, names: list[str]) -> SessionStore:
    path = folder / "ours.db"
    session_id = create_session(path, NewSession("bench", workspace_in(folder), "test/model"))
    store = SessionStore.claim(path, session_id, SystemClock(), pid=os.getpid(), host_name="bench")

    def make(tx: Transaction) -> None:
        for name in names:
            agents.create(
                tx,
                agent_id=name,
                name=name,
                role="coder",
                model="m",
                system="",
                goal="",
                context_limit=200_000,
            )

    asyncio.run(store.commit(make))
    return store


def full_step(agent_id: str, turn: int) -> Any:
    """The batch of one step, as the agent loop writes it."""
    message = Message(turn, "assistant", CONTENT, 400, 400 * turn, 1.0)

    def write(tx: Transaction) -> None:
        messages.add_messages(tx, agent_id, [message])
        agents.add_model_call(
            tx, agent_id=agent_id, turn=turn, purpose="turn", model="m", status=ModelCallStatus.DONE,
            usage=Usage(1000, 100), cost=FREE, started_at=1.0, latency_seconds=1.0,
        )  # fmt: skip
        agents.begin_step(tx, agent_id, turn, turn, 1.0)
        agents.add_intents(tx, agent_id, turn, turn, [("toolu_1", "read", True, None)])
        tx.event("model.replied", agent_id=agent_id, turn=turn)

    return write


async def ours(store: SessionStore, agent_id: str, first: int, steps: int) -> float:
    began = time.perf_counter()
    for turn in range(first, first + steps):
        await store.commit(full_step(agent_id, turn))
    return time.perf_counter() - began


def raw(connection: Any, first: int, steps: int) -> float:
    """The same rows by hand, one transaction a step."""
    content = json.dumps(CONTENT)
    began = time.perf_counter()
    for turn in range(first, first + steps):
        run = connection.execute
        run("BEGIN IMMEDIATE")
        run(
            "UPDATE sessions SET last_active = ?, event_seq = event_seq + 1, input_tokens = input_tokens +"
            " 1000,"
            " output_tokens = output_tokens + 100, model_calls = model_calls + 1 WHERE id = 's' AND"
            " lease_epoch = 0",
            (1.0,),
        )
        run(
            "INSERT INTO messages VALUES (NULL, 'a', ?, 'assistant', ?, 400, ?, 1.0, NULL)",
            (turn, content, 400 * turn),
        )
        run(
            "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, input_tokens,"
            " output_tokens, cost_usd,"
            " price_status, started_at, latency_seconds) VALUES ('s', 'a', ?, 'turn', 'm', 'done', 1000,"
            " 100, 0.001, 'exact', 1.0, 1.0)",
            (turn,),
        )
        run(
            "UPDATE agents SET turn = ?, input_tokens = input_tokens + 1000, output_tokens = output_tokens +"
            " 100,"
            " model_calls = model_calls + 1 WHERE id = 'a'",
            (turn,),
        )
        run("INSERT INTO steps (agent_id, turn, reply_seq, started_at) VALUES ('a', ?, ?, 1.0)", (turn, turn))
        run(
            "INSERT INTO tool_calls (session_id, agent_id, turn, position, seq, tool_use_id, name,"
            " idempotent, status)"
            " VALUES ('s', 'a', ?, 0, ?, 'toolu_1', 'read', 1, 'pending')",
            (turn, turn),
        )
        run(
            "INSERT INTO events VALUES ('s', ?, 1.0, 'model.replied', 'a', NULL, ?, NULL)",
            (turn, json.dumps({"turn": turn})),
        )
        run("COMMIT")
    return time.perf_counter() - began  # fmt: skip


def open_raw(folder: Path) -> Any:
    connection = open_writable(folder / "raw.db")
    connection.execute("INSERT INTO sessions (id, user_id, goal, workspace, model, status, created_at, last_active)"
                       " VALUES ('s', 'u', 'g', '.', 'm', 'running', 0, 0)")  # fmt: skip
    connection.execute("INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active)"
                       " VALUES ('a', 's', 'a', 'coder', 'm', 'working', 0, 0)")  # fmt: skip
    return connection


def compare(folder: Path, steps: int, rounds: int = 5) -> None:
    """Rounds in turn, ours and raw, so that the machine's moods hit both."""
    store, connection = open_session(folder, ["a"]), open_raw(folder)
    ratios, ours_ms, raw_ms = [], [], []
    each = max(1, steps // rounds)
    for round_number in range(rounds):
        first = 1 + round_number * each
        mine = asyncio.run(ours(store, "a", first, each))
        theirs = raw(connection, first, each)
        ratios.append(mine / theirs)
        ours_ms.append(1000 * mine / each)
        raw_ms.append(1000 * theirs / each)
    size = (folder / "ours.db").stat().st_size
    store.close()
    written = steps * len(json.dumps(CONTENT))
    size = (folder / "ours.db").stat().st_size
    print(f"{steps:>6} steps: {statistics.median(ours_ms):.3f} ms ours, {statistics.median(raw_ms):.3f} ms raw, ratio"
          f" {statistics.median(ratios):.2f}; database {size / written:.2f} times the messages' bytes")  # fmt: skip


async def crowd(store: SessionStore, names: list[str], seconds: float) -> None:
    """Many agents at once: steps a second, and how late the event loop is."""
    stop = time.perf_counter() + seconds
    done = [0]
    lags: list[float] = []

    async def agent(name: str) -> None:
        turn = 0
        while time.perf_counter() < stop:
            turn += 1
            await store.commit(full_step(name, turn))
            done[0] += 1

    async def watch_lag() -> None:
        while time.perf_counter() < stop:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            lags.append(time.perf_counter() - before - 0.002)

    began = time.perf_counter()
    await asyncio.gather(watch_lag(), *(agent(name) for name in names))
    elapsed = time.perf_counter() - began
    lags.sort()
    print(f"{len(names)} agents: {done[0] / elapsed:,.0f} steps/s in {store.writer.commits} commits,"
          f" event-loop lag p50 {1000 * lags[len(lags) // 2]:.2f} ms, p99 {1000 * lags[int(len(lags) * 0.99)]:.2f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)  # as a host does
    print(f"SQLite {sqlite3.sqlite_version}")
    for steps in options.steps:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), steps)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"agent{number:03d}" for number in range(options.agents)]
        store = open_session(Path(folder), names)
        asyncio.run(crowd(store, names, options.seconds))
        store.close()


if __name__ == "__main__":
    main()
