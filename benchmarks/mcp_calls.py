"""Calls of the MCP server at 1,000 sessions and 1,000,000 messages: by clock and by processor time.

    python benchmarks/mcp_calls.py [--sessions 1000] [--messages 1000000] [--calls 30] [--keep FILE]

The file is made here. Sizes of sessions differ: a tenth of them holds half of the messages, and one 50,000; the
thousand fill a year. Each has agents, compactions, facts, tasks, model calls and tool calls. Every call goes from the
SDK's own client to `wk mcp`, a process of its own, each with arguments of its own. The first call of each tool is shown
apart, because it loads code. Processor time is that of all threads of the server, from the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.search import vocabulary
from mcp import Client, StdioServerParameters, stdio_client

import watchkeeper
from watchkeeper.interop.mcp import READING
from watchkeeper.store import database
from watchkeeper.store.driver import Connection, encode
from watchkeeper.store.engine import index_of

NOW = 1_790_000_000.0
AT_ONCE = 5_000
LARGEST = 50_000


def sizes(sessions: int, messages: int, rng: random.Random) -> list[int]:
    largest = min(LARGEST, messages // 4)
    weights = [10.0 if number % 10 == 0 else 1.1 for number in range(sessions - 1)]
    share = (messages - largest) / sum(weights)
    found = [largest, *(max(4, int(weight * share)) for weight in weights)]
    found[-1] += messages - sum(found)
    return found


class Corpus:
    """Texts, and what was planted in them."""

    def __init__(self, rng: random.Random) -> None:
        words = vocabulary(rng)
        weights = list(itertools.accumulate(1 / (rank + 2.7) ** 1.1 for rank in range(len(words))))
        self.sentences = [" ".join(rng.choices(words, cum_weights=weights, k=20)) for _ in range(30_000)]
        self.rng = rng
        self.files: list[str] = []
        self.queries: list[tuple[str, str]] = []
        self.pointers: list[str] = []

    def text(self) -> str:
        return ". ".join(self.rng.choices(self.sentences, k=1 + int(self.rng.expovariate(0.4))))

    def message(self, session: str, agent: str, seq: int) -> Any:
        rng = self.rng
        if seq % 2:
            return (
                self.text()
                if seq % 4 == 1
                else [{"type": "tool_result", "tool_use_id": f"c{seq}", "content": self.text()}]
            )
        text = self.text()
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if rng.random() < 0.15:
            name = (
                f"/srv/{session}/src/module_{rng.randrange(60)}.py"
                if rng.random() < 0.5
                else f"/srv/shared/part_{rng.randrange(40)}.py"
            )
            blocks.append(
                {
                    "type": "tool_use",
                    "id": f"c{seq}",
                    "name": "Edit",
                    "input": {"file_path": name, "old_string": "a", "new_string": self.text()[:300]},
                }
            )
            self.files.append(name)
        else:
            blocks.append(
                {
                    "type": "tool_use",
                    "id": f"c{seq}",
                    "name": "Bash",
                    "input": {"command": f"pytest {text[:20]}"},
                }
            )
        if rng.random() < 0.001:
            self.queries.append((session, " ".join(rng.sample(text.split(), 3))))
            self.pointers.append(f"message://{agent}/{max(1, seq - 5)}-{seq}")
        return blocks


def insert(connection: Connection, table: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(
            f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({marks})",
            [tuple(row.values()) for row in rows],
        )


def add_session(connection: Connection, corpus: Corpus, number: int, count: int, first: int) -> None:
    session, at = f"s{number:05d}", NOW - number * 31_000.0
    agents = [f"{session}a{one}" for one in range(3)]
    connection.execute("BEGIN IMMEDIATE")
    insert(connection, "sessions", [{
        "id": session, "user_id": "ada", "goal": corpus.text()[:200], "workspace": f"/srv/w{number % 50}", "model": "anthropic/claude-x",
        "status": "done", "origin": "claude-code", "created_at": at - 5_000, "last_active": at, "ended_at": at, "event_seq": 9,
        "planner_agent_id": agents[0], "current_plan_id": f"{session}p", "input_tokens": 10**6, "cost_usd": 2.5, "model_calls": count // 2,
    }])  # fmt: skip
    insert(
        connection,
        "plans",
        [{"id": f"{session}p", "session_id": session, "goal": "g", "created_at": at, "updated_at": at}],
    )
    insert(connection, "tasks", [{
        "id": f"{session}t{one}", "session_id": session, "parent_plan_id": f"{session}p", "name": f"task{one}", "position": one,
        "title": corpus.text()[:80], "instructions": "i", "role": "r", "status": "done", "result": corpus.text(), "created_at": at,
    } for one in range(12)])  # fmt: skip
    per = [count - 2 * (count // 3), count // 3, count // 3]
    insert(connection, "agents", [{
        "id": agent, "session_id": session, "name": f"agent{one}", "role": "r", "model": "anthropic/claude-x", "status": "done",
        "created_at": at, "last_active": at, "last_seq": per[one], "view_version": 2, "compactions": 1, "ordinal": one + 1,
        "context_limit": 200_000, "context_tokens": 60_000,
    } for one, agent in enumerate(agents)])  # fmt: skip
    insert(connection, "facts", [{
        "session_id": session, "agent_id": agents[0], "workspace": f"/srv/w{number % 50}", "scope": "session", "kind": "decision",
        "text": corpus.text()[:150], "digest": f"{number:032x}{one:08x}", "created_at": at,
    } for one in range(10)])  # fmt: skip
    for agent, size in zip(agents, per, strict=True):
        kept = max(1, size // 3)
        insert(connection, "views", [
            {"agent_id": agent, "version": 1, "parent": None, "observations": "[]", "verbatim_from": 1, "reason": "start", "created_at": at, "compaction_id": None},
            {"agent_id": agent, "version": 2, "parent": 1, "observations": "[1]", "verbatim_from": size - kept + 1, "reason": "compaction", "created_at": at, "compaction_id": None},
        ])  # fmt: skip
        insert(connection, "compactions", [{
            "session_id": session, "agent_id": agent, "trigger": "auto", "status": "applied", "high_water": size - kept, "messages_removed": size - kept,
            "tokens_before": 150_000, "tokens_after": 40_000, "view_before": 1, "view_after": 2, "requested_at": at, "ended_at": at,
        }])  # fmt: skip
        insert(connection, "observations", [{
            "agent_id": agent, "id": 1, "kind": "summary", "text": corpus.text() * 4, "tokens": 900, "first_seq": 1, "last_seq": max(1, size - kept),
            "citations": "[]", "created_at": at,
        }])  # fmt: skip
    number_of = itertools.count(first)
    for agent, size in zip(agents, per, strict=True):
        insert(connection, "model_calls", [{
            "session_id": session, "agent_id": agent, "turn": turn, "purpose": "turn", "model": "anthropic/claude-x", "status": "done",
            "input_tokens": 900, "output_tokens": 300, "cache_read_tokens": 40_000, "cost_usd": 0.01, "started_at": at - turn,
        } for turn in range(1, size // 2 + 1)])  # fmt: skip
        for start in range(1, size + 1, AT_ONCE):
            rows, calls = [], []
            for seq in range(start, min(size, start + AT_ONCE - 1) + 1):
                content = corpus.message(session, agent, seq)
                rows.append(
                    (
                        next(number_of),
                        agent,
                        seq,
                        "user" if seq % 2 else "assistant",
                        encode(content),
                        90,
                        90 * seq,
                        at - size + seq,
                    )
                )
                for block in content if isinstance(content, list) else ():
                    if block["type"] == "tool_use":
                        calls.append((session, agent, seq // 2, seq, block["id"], block["name"], at, at))
            connection.executemany(
                "INSERT INTO messages (id, agent_id, seq, role, content, tokens, total_tokens, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            connection.executemany("INSERT INTO tool_calls (session_id, agent_id, turn, position, seq, tool_use_id, name, idempotent, status, started_at, ended_at)"
                                   " VALUES (?, ?, ?, 0, ?, ?, ?, 0, 'done', ?, ?)", calls)  # fmt: skip
            if not index_of(connection).index_within():
                raise SystemExit("messages were left that are not indexed")
    connection.execute("COMMIT")


def build(path: Path, sessions: int, messages: int) -> None:
    rng = random.Random(4)
    corpus = Corpus(rng)
    connection = database.open_writable(path)
    connection.execute("PRAGMA synchronous=OFF")
    first = 1
    for number, count in reversed(list(enumerate(sizes(sessions, messages, rng)))):
        add_session(connection, corpus, number, count, first)
        first += count
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    some = {
        "files": corpus.files[:: max(1, len(corpus.files) // 500)],
        "queries": corpus.queries,
        "pointers": corpus.pointers,
    }
    path.with_suffix(".json").write_text(json.dumps(some))


def questions(path: Path, count: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """By what is asked, the calls."""
    known = json.loads(path.with_suffix(".json").read_text())
    rng = random.Random(9)
    with database.open_readonly(path) as connection:
        names = [row[0] for row in connection.execute("SELECT id FROM sessions")]
        passes = [row[0] for row in connection.execute("SELECT id FROM compactions")]
        facts = [
            " ".join(row[0].split()[:3]) for row in connection.execute("SELECT text FROM facts LIMIT 500")
        ]

    def some(values: list[Any]) -> list[Any]:
        return rng.choices(values, k=count)

    return {
        "sessions": [("sessions", {"cursor": rng.randrange(800)}) for _ in range(count)],
        "sessions with words": [("sessions", {"search": query}) for _, query in some(known["queries"])],
        "plan": [("plan", {"session": one}) for one in some(names)],
        "agents": [("agents", {"session": one}) for one in some(names)],
        "compactions": [("compactions", {"session": one}) for one in some(names)],
        "one compaction": [("compactions", {"compaction": one}) for one in some(passes)],
        "search everywhere": [("search", {"query": query}) for _, query in some(known["queries"])],
        "search a session": [("search", {"query": query, "session": session}) for session, query in some(known["queries"])],
        "before the compaction": [("search", {"query": query, "session": session, "before_compaction": True}) for session, query in some(known["queries"])],
        "the largest session": [("search", {"query": query, "session": "s00000", "before_compaction": True}) for _, query in some(known["queries"])],
        "who edited a file": [("file_history", {"path": one}) for one in some(known["files"])],
        "read back": [("read_back", {"pointer": one}) for one in some(known["pointers"])],
        "facts": [("facts", {"query": one}) for one in some(facts)],
        "a common file": [("file_history", {"path": f"src/module_{number}.py"}) for number in range(count)],
        "usage of a week": [("usage", {"by": "model", "since": "2026-09-14"}) for _ in range(count)],
        "receipts": [("receipts", {"session": one}) for one in some(names)],
        "receipts, largest": [("receipts", {"session": "s00000"}) for _ in range(min(5, count))],
        "artifacts": [("artifacts", {"session": one}) for one in some(names)],
        "questions": [("questions", {}) for _ in range(count)],
    }  # fmt: skip


def processor_ms(pid: int) -> float:
    """Processor time of all threads of a process so far (Linux)."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e6


async def measure(path: Path, count: int) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(watchkeeper.__file__).parents[1])}
    command = ["-P", "-m", "watchkeeper", "mcp", "--db", str(path)]
    served = StdioServerParameters(command=sys.executable, args=command, env=environ, cwd=str(path.parent))
    known = {tool.name for tool in READING}
    print(f"{'':<24}{'clock':>24}{'':>8}{'processor':>24}   incomplete, errors   (ms)")
    print(f"{'':<24}" + f"{'first':>8}{'median':>8}{'95 %':>8}{'most':>8}" * 2)
    async with Client(stdio_client(served)) as client:
        await client.list_tools()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for name, calls in questions(path, count).items():
            if calls[0][0] not in known:
                continue
            clock, cpu, partial, errors = [], [], 0, 0
            for tool, arguments in calls:
                begun, spent = time.perf_counter(), processor_ms(int(children[-1]))
                result = await client.call_tool(tool, arguments)
                clock.append((time.perf_counter() - begun) * 1000)
                cpu.append(processor_ms(int(children[-1])) - spent)
                text = result.content[0].text  # type: ignore[union-attr]
                partial += '"all_messages_searched": false' in text
                errors += bool(result.is_error)
            print(f"{name:<24}{shown(clock)}{shown(cpu)}   {partial:>5} {errors:>8}")


def shown(milliseconds: list[float]) -> str:
    later = sorted(milliseconds[1:])
    values = (milliseconds[0], statistics.median(later), later[int(0.95 * len(later))], later[-1])
    return "".join(f"{each:>8.1f}" for each in values)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--keep", type=Path, help="make the file here, or use it if it exists")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "sessions.db"
        if not path.exists():
            begun = time.monotonic()
            build(path, options.sessions, options.messages)
            print(f"made in {time.monotonic() - begun:.0f} s, {path.stat().st_size / 1e6:,.0f} MB")
        asyncio.run(measure(path, options.calls))


if __name__ == "__main__":
    main()
