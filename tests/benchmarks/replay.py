"""Scrubbing through a long session: how long the recording takes to open, and a jump to anywhere in it.

    python tests/benchmarks/replay.py [--events 100000] [--agents 40] [--jumps 400] [--keep FILE]

A jump is all that the screen needs: the state of every task, agent and pass, the events before it, and one
agent's messages, calls and facts, folded for the screen. The replay's own thread does it; jumps are to random
places, so that next to nothing is remembered from the one before. Printed beside: what a cut for a fork takes
for the same moment.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from watchkeeper.store import database
from watchkeeper.store.driver import Connection
from watchkeeper.store.history import History, RowsAt
from watchkeeper.store.replay import open_recording
from watchkeeper_tui.replay_source import Frame, News, Projector

START = 1_790_000_000.0
SESSION = "longone2"


def insert(connection: Connection, table: str, **values: Any) -> int:
    marks = ", ".join("?" * len(values))
    sql = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})"
    return int(connection.execute(sql, tuple(values.values())).lastrowid or 0)


class Session:
    """A run of many agents that take turns: each turn is five events, two messages, two calls of tools and
    one of a model."""

    def __init__(self, connection: Connection, agents: int) -> None:
        self.connection, self.seq, self.at = connection, 0, START
        insert(
            connection, "sessions", id=SESSION, user_id="ada", goal="a long run", workspace="/srv", model="m", status="done",
            created_at=START, last_active=START, planner_agent_id="agent0", current_plan_id="plan",
        )  # fmt: skip
        insert(
            connection,
            "plans",
            id="plan",
            session_id=SESSION,
            goal="g",
            created_at=START,
            updated_at=START,
            revision=1,
        )
        graph = [{"id": f"task{n}", "title": f"part {n}", "depends_on": []} for n in range(1, agents)]
        insert(
            connection, "plan_revisions", plan_id="plan", revision=1, at=START, reason="first", goal="g", task_queue="[]",
            step_cursor=0, plan_graph_snapshot=json.dumps(graph),
        )  # fmt: skip
        self.event("session.running")
        self.last = [0] * agents
        self.turns = [0] * agents
        for number in range(agents):
            agent_id, task = f"agent{number}", f"task{number}" if number else None
            insert(
                connection, "agents", id=agent_id, session_id=SESSION, task_id=task, name=f"explorer-{number}", role="explorer",
                model="m", status="done", created_at=self.at, last_active=self.at, context_limit=200_000,
                composition='{"messages": 10, "headroom": 1000}', parent_agent_id="agent0" if number else None,
            )  # fmt: skip
            insert(
                connection, "views", agent_id=agent_id, version=1, observations="[]", verbatim_from=1, reason="start",
                created_at=self.at,
            )  # fmt: skip
            self.event("agent.created", agent_id, task, name=f"explorer-{number}", role="explorer", model="m")
            if number == 0:
                self.event(
                    "plan.revised",
                    agent_id,
                    None,
                    plan="plan",
                    revision=1,
                    reason="first plan",
                    tasks=agents - 1,
                )
            else:
                insert(
                    connection, "tasks", id=task, session_id=SESSION, parent_plan_id="plan", name=task, position=number,
                    title=f"part {number}", instructions="do it", role="explorer", status="done", created_at=self.at,
                    assigned_agent=agent_id,
                )  # fmt: skip
                self.event("task.running", None, task, agent=agent_id, title=f"part {number}")

    def event(
        self, kind: str, agent_id: str | None = None, task_id: str | None = None, /, **data: Any
    ) -> None:
        self.seq, self.at = self.seq + 1, self.at + 0.05
        insert(
            self.connection, "events", session_id=SESSION, seq=self.seq, at=self.at, kind=kind, agent_id=agent_id, task_id=task_id,
            data=json.dumps(data),
        )  # fmt: skip

    def message(self, number: int, role: str, content: Any) -> int:
        self.last[number] += 1
        insert(
            self.connection, "messages", agent_id=f"agent{number}", seq=self.last[number], role=role, content=json.dumps(content),
            tokens=200, total_tokens=200 * self.last[number], created_at=self.at,
        )  # fmt: skip
        return self.last[number]

    def turn(self, number: int) -> None:
        agent_id, connection = f"agent{number}", self.connection
        self.turns[number] += 1
        turn = self.turns[number]
        uses = [f"use-{turn}-{place}" for place in range(2)]
        reply = self.message(
            number, "assistant", [{"type": "text", "text": "I look further. " * 20}]
            + [{"type": "tool_use", "id": use, "name": "read", "input": {"path": f"file{turn}"}} for use in uses],
        )  # fmt: skip
        insert(
            connection, "model_calls", session_id=SESSION, agent_id=agent_id, turn=turn, purpose="turn", model="m", status="done",
            input_tokens=9_000, output_tokens=300, cost_usd=0.01, started_at=self.at - 2, latency_seconds=1.9,
        )  # fmt: skip
        calls = [
            insert(
                connection, "tool_calls", session_id=SESSION, agent_id=agent_id, turn=turn, position=place, seq=reply,
                tool_use_id=use, name="read", idempotent=1, status="done",
            )
            for place, use in enumerate(uses)
        ]  # fmt: skip
        self.event("model.replied", agent_id, turn=turn, tools=["read", "read"], preview="I look further.")
        for call in calls:
            self.event("tool.started", agent_id, call=call, tool="read")
            self.event("tool.done", agent_id, call=call, tool="read", preview="some lines of text")
        results = self.message(
            number,
            "user",
            [
                {"type": "tool_result", "tool_use_id": use, "content": "a line of a file\n" * 60}
                for use in uses
            ],
        )
        insert(
            connection, "steps", agent_id=agent_id, turn=turn, reply_seq=reply, results_seq=results, started_at=self.at - 2,
            ended_at=self.at,
        )  # fmt: skip
        if turn % 50 == 0:
            made = insert(
                connection, "compactions", session_id=SESSION, agent_id=agent_id, trigger="threshold", status="applied",
                tokens_before=20_000, tokens_after=6_000, requested_at=self.at, ended_at=self.at,
            )  # fmt: skip
            insert(
                connection, "views", agent_id=agent_id, version=1 + turn // 50, observations="[]", verbatim_from=results,
                reason="threshold", created_at=self.at, compaction_id=made, tokens=6_000,
            )  # fmt: skip
            self.event("compaction.started", agent_id, compaction=made)
            self.event(
                "compaction.applied", agent_id, compaction=made, tokens_before=20_000, tokens_after=6_000
            )

    def close(self) -> None:
        self.connection.execute(
            "UPDATE sessions SET event_seq = ?, ended_at = ? WHERE id = ?", (self.seq, self.at, SESSION)
        )
        for number, (last, turn) in enumerate(zip(self.last, self.turns, strict=True)):
            self.connection.execute(
                "UPDATE agents SET last_seq = ?, turn = ?, message_tokens = ?, view_version = ? WHERE id = ?",
                (last, turn, last * 200, 1 + turn // 50, f"agent{number}"),
            )


def build(path: Path, events: int, agents: int) -> None:
    connection = database.open_writable(path)
    connection.execute("BEGIN")
    session, rng = Session(connection, agents), random.Random(4)
    while session.seq < events:
        session.turn(rng.randrange(agents))
    session.close()
    connection.execute("COMMIT")
    connection.close()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--agents", type=int, default=40)
    parser.add_argument("--jumps", type=int, default=400)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "watchkeeper.db"
        if not path.exists():
            build(path, options.events, options.agents)
        connection = database.open_readonly(path)
        started = time.perf_counter()
        recording = open_recording(connection, SESSION)
        opening = time.perf_counter() - started
        assert recording is not None
        count = len(recording.times)
        print(f"{count:,} events of {options.agents} agents: opened in {opening:.2f} s")
        frames: list[News] = []
        projector = Projector(path, SESSION, frames.append)
        projector._recording, projector._reopen = recording, False
        rng, took, state = random.Random(5), [], []
        for _ in range(options.jumps):
            position, agent = rng.randrange(1, count + 1), f"agent{rng.randrange(options.agents)}"
            started = time.perf_counter()
            recording.at(connection, position)
            state.append(time.perf_counter() - started)
            started = time.perf_counter()
            frame = projector._frame(connection, position, agent)
            took.append(time.perf_counter() - started)
            assert isinstance(frame, Frame)
        for name, values in (("state of all", state), ("whole frame", took)):
            median, worst = statistics.median(values), max(values)
            print(
                f"{name:<14} p50 {median * 1000:6.1f} ms   p95 {percentile(values, 0.95) * 1000:6.1f} ms  "
                f" max {worst * 1000:6.1f} ms"
            )
        started = time.perf_counter()
        RowsAt(connection, History(connection, SESSION).at(count // 2))
        print(f"{'a cut (fork)':<14} {(time.perf_counter() - started) * 1000:10.1f} ms")
        connection.close()


if __name__ == "__main__":
    main()
