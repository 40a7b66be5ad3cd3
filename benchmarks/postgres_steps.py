"""Steps a second, and milliseconds of a step, on SQLite and on PostgreSQL, in one run.

`python -m benchmarks.postgres_steps postgresql://USER@HOST/EMPTY_DATABASE`. A step is what an agent's loop
commits: the reply with its model call and the intent of a tool call, then the results with the step's end. The
last figures go through a proxy, a process of its own, that makes each round trip 1.4 ms longer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.proxy import far_away

from watchkeeper.records.messages import Cost, Message, PriceStatus, Usage
from watchkeeper.records.model_calls import ModelCallRecord
from watchkeeper.records.ports import SystemClock
from watchkeeper.records.states import ModelCallStatus, ToolCallStatus
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store import agents, messages
from watchkeeper.store.database import open_readonly, open_writable
from watchkeeper.store.place import Place, place_of
from watchkeeper.store.transaction import SessionStore, Transaction

USAGE, COST = Usage(1200, 80, 1000, 60), Cost(0.01, PriceStatus.EXACT)
ROUND_TRIP_SECONDS = 0.0014


def reply(tx: Transaction, agent_id: str, turn: int) -> int:
    """What a model's reply commits; returns the id of its tool call."""
    seq = 2 * turn
    said = [
        {"type": "text", "text": "I look at the file. " * 20},
        {"type": "tool_use", "id": f"t{turn}", "name": "read_file", "input": {"path": "a.py"}},
    ]
    messages.add_messages(tx, agent_id, [Message(seq, "assistant", said, 120, 120 * seq, tx.now)])
    call = agents.add_model_call(tx, ModelCallRecord(
        agent_id=agent_id, turn=turn, purpose="step", model="test/model", status=ModelCallStatus.DONE, usage=USAGE,
        cost=COST, started_at=tx.now, latency_seconds=0.5,
    ))  # fmt: skip
    agents.begin_step(tx, agent_id, turn, seq, tx.now)
    ids = agents.add_intents(tx, agent_id, turn, seq, [(f"t{turn}", "read_file", True, None)])
    tx.event("model.replied", agent_id=agent_id, turn=turn, call=call)
    return ids[0]


def results(tx: Transaction, agent_id: str, turn: int, call_id: int) -> None:
    """What the results of a step commit."""
    seq = 2 * turn + 1
    content = [{"type": "tool_result", "tool_use_id": f"t{turn}", "content": "x = 1\n" * 200}]
    agents.end_tool_call(tx, call_id, ToolCallStatus.DONE, content[0]["content"], False, tx.now)
    messages.add_messages(tx, agent_id, [Message(seq, "user", content, 400, 400 * seq, tx.now)])
    agents.deliver_results(tx, agent_id, turn, seq)
    agents.end_step(tx, agent_id, turn, seq)
    agents.note_context(
        tx, agent_id, view_version=1, messages=min(seq, 2), last_seq=seq, message_tokens=400 * seq,
        context_tokens=500 * seq, composition={"tools": 5},
    )  # fmt: skip
    tx.event("tool.done", agent_id=agent_id, turn=turn, call=call_id)


async def measure(place: Place, workspace: Path, width: int, steps: int) -> float:
    """Seconds that `width` agents together need for `steps` steps."""
    session_id = create_session(place, NewSession("measure", workspace, "test/model"))
    store = SessionStore.claim(
        place, session_id, SystemClock(), pid=os.getpid(), host_name=socket.gethostname()
    )
    try:
        names = [f"{session_id}-{number}" for number in range(width)]
        await store.commit(lambda tx: [_agent(tx, name) for name in names] and None)

        async def work(name: str, first: int, last: int) -> None:
            for turn in range(first, last):
                call_id = await store.commit(partial(reply, agent_id=name, turn=turn))
                await store.commit(partial(results, agent_id=name, turn=turn, call_id=call_id))

        warm, each = 5, max(10, steps // width)
        await asyncio.gather(*(work(name, 0, warm) for name in names))
        began = time.perf_counter()
        await asyncio.gather(*(work(name, warm, warm + each) for name in names))
        return (time.perf_counter() - began) / (each * width)
    finally:
        store.close()


def round_trip(place: Place) -> float:
    """Seconds of a statement that does nothing, in the median."""
    times = []
    with closing(open_readonly(place)) as connection:
        for _ in range(200):
            began = time.perf_counter()
            connection.execute("SELECT 1").fetchone()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _agent(tx: Transaction, name: str) -> None:
    tx.execute(
        "INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active) VALUES (?, ?, ?,"
        " 'explorer', 'test/model', 'running', ?, ?)",
        (name, tx.session_id, name, tx.now, tx.now),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    server = place_of(options.url)
    parts = urlsplit(options.url)
    user = f"{parts.username}@" if parts.username else ""
    with (
        tempfile.TemporaryDirectory() as folder,
        far_away((parts.hostname or "127.0.0.1", parts.port or 5432), ROUND_TRIP_SECONDS) as port,
    ):
        far = place_of(f"postgresql://{user}127.0.0.1:{port}{parts.path}")
        workspace = Path(folder) / "work"
        workspace.mkdir()
        open_writable(server).close()  # makes the tables
        places = {"SQLite": Path(folder) / "w.db", "PostgreSQL": server, "PostgreSQL, 1.4 ms away": far}
        for name in ("PostgreSQL", "PostgreSQL, 1.4 ms away"):
            print(f"{name:26} a round trip takes {1000 * round_trip(places[name]):.2f} ms")
        best: dict[tuple[str, int], float] = {}
        for _ in range(options.rounds):
            for name, place in places.items():
                for width, steps in ((1, 300), (50, 4000)):
                    seconds = asyncio.run(measure(place, workspace, width, steps))
                    best[name, width] = min(best.get((name, width), seconds), seconds)
    for name in places:
        print(
            f"{name:26} 1 agent: {1000 * best[name, 1]:6.2f} ms a step ({best[name, 1] / best['SQLite', 1]:.2f}×);"
            f" 50 agents: {1 / best[name, 50]:6.0f} steps/s ({best['SQLite', 50] / best[name, 50]:.2f}×)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
