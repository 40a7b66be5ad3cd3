"""Scrubbing through a long session: how long the recording takes to open, and a jump to anywhere in it.

    python benchmarks/replay.py [--events 100000] [--agents 40] [--jumps 400] [--keep FILE]

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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tui.fake_store import FakeSession, insert

from watchkeeper.store import database
from watchkeeper.store.driver import Connection
from watchkeeper.store.history import History, RowsAt
from watchkeeper.store.replay import open_recording
from watchkeeper_tui.replay_source import Frame, News, Projector

START = 1_790_000_000.0
SESSION = "longone2"


class Session(FakeSession):
    """A run of many agents that take turns: each turn is five events, two messages, two calls of tools and
    one of a model."""

    def __init__(self, connection: Connection, agents: int) -> None:
        super().__init__(connection, SESSION, now=START, goal="a long run", status="done", planner_agent_id="agent0",
                         current_plan_id="plan")  # fmt: skip
        plan = {"id": "plan", "session_id": SESSION, "goal": "g", "created_at": START, "updated_at": START}
        insert(connection, "plans", revision=1, **plan)
        graph = [{"id": f"task{n}", "title": f"part {n}", "depends_on": []} for n in range(1, agents)]
        insert(
            connection, "plan_revisions", plan_id="plan", revision=1, at=START, reason="first", goal="g", task_queue="[]",
            step_cursor=0, plan_graph_snapshot=json.dumps(graph),
        )  # fmt: skip
        self.event("session.running")
        self.turns = [0] * agents
        for number in range(agents):
            agent, task = f"agent{number}", f"task{number}" if number else None
            self.agent(agent, f"explorer-{number}", parent_agent_id="agent0" if number else None, status="done",
                       context_limit=200_000, composition='{"messages": 10, "headroom": 1000}')  # fmt: skip
            self.event("agent.created", agent, task, name=f"explorer-{number}", role="explorer", model="m")
            if task is None:
                self.event(
                    "plan.revised", agent, plan="plan", revision=1, reason="first plan", tasks=agents - 1
                )
            else:
                self.task(task, f"part {number}", agent=agent, status="done")
                self.event("task.running", None, task, agent=agent, title=f"part {number}")

    def event(self, *about: Any, **data: Any) -> int:
        self.now += 0.05
        return super().event(*about, **data)

    def turn(self, number: int) -> None:
        agent, connection = f"agent{number}", self.connection
        self.turns[number] += 1
        turn = self.turns[number]
        uses = [f"use-{turn}-{place}" for place in range(2)]
        said = [{"type": "text", "text": "I look further. " * 20}]
        reads = [
            {"type": "tool_use", "id": use, "name": "read", "input": {"path": f"file{turn}"}} for use in uses
        ]
        reply = self.message(agent, "assistant", [*said, *reads], 200)
        self.call(
            agent,
            turn=turn,
            model="m",
            output_tokens=300,
            cost_usd=0.01,
            started_at=self.now - 2,
            latency_seconds=1.9,
        )
        self.event("model.replied", agent, turn=turn, tools=["read", "read"], preview="I look further.")
        for place, use in enumerate(uses):
            insert(connection, "tool_calls", session_id=SESSION, agent_id=agent, turn=turn, position=place, seq=reply,
                   tool_use_id=use, name="read", idempotent=1, status="done")  # fmt: skip
            (call,) = connection.execute("SELECT last_insert_rowid()").fetchone()
            self.event("tool.started", agent, call=call, tool="read")
            self.event("tool.done", agent, call=call, tool="read", preview="some lines of text")
        text = "a line of a file\n" * 60
        brought = [{"type": "tool_result", "tool_use_id": use, "content": text} for use in uses]
        results = self.message(agent, "user", brought, 200)
        insert(connection, "steps", agent_id=agent, turn=turn, reply_seq=reply, results_seq=results, started_at=self.now - 2,
               ended_at=self.now)  # fmt: skip
        if turn % 50 == 0:
            made, view = number * 1_000_000 + turn, 1 + turn // 50
            self.compaction(agent, id=made, tokens_before=20_000, tokens_after=6_000, view_after=view,
                            requested_at=self.now, ended_at=self.now)  # fmt: skip
            insert(connection, "views", agent_id=agent, version=view, observations="[]", verbatim_from=results,
                   reason="threshold", created_at=self.now, compaction_id=made, tokens=6_000)  # fmt: skip
            self.event("compaction.started", agent, compaction=made)
            self.event("compaction.applied", agent, compaction=made, tokens_before=20_000, tokens_after=6_000)
        self.set_agent(agent, turn=turn)


def build(path: Path, events: int, agents: int) -> None:
    connection = database.open_writable(path)
    connection.execute("BEGIN")
    session, rng = Session(connection, agents), random.Random(4)
    while session.seq < events:
        session.turn(rng.randrange(agents))
    session.set(ended_at=session.now)
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
