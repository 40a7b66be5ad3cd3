"""Logs of GitHub Copilot CLI: events without the tokens of prompts, a store that has them, and to-dos as SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.models.registry import logged_price
from watchkeeper.store.driver import sqlite3
from watchkeeper.transcripts.copilot import PROGRAM, CopilotReader, replay_todos
from watchkeeper.transcripts.reading import SessionTail, program_of
from watchkeeper.transcripts.records import ModelCall, Source

SESSION = "52caac9f-099a-4057-9867-6e4bd35a2c0d"
COLUMNS = (
    "session_id", "agent_id", "parent_tool_call_id", "model", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "total_nano_aiu", "duration_ms", "finish_reason", "initiator", "created_at",
)  # fmt: skip


class Events:
    """Events of one session, each a second after the one before."""

    def __init__(self, **about: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        started = {
            "sessionId": SESSION, "version": 1, "producer": "copilot-agent", "copilotVersion": "1.0.72",
            "context": {"cwd": "/srv/work", "branch": "main"},
        }  # fmt: skip
        self.add("session.start", **started | about)

    def add(self, type: str, /, *, agent: str | None = None, **data: Any) -> dict[str, Any]:
        n = len(self.lines)
        parent = f"e{n - 1}" if n else None
        time = f"2026-07-21T22:{n // 60:02d}:{n % 60:02d}.000Z"
        event = {"type": type, "data": data, "id": f"e{n}", "timestamp": time, "parentId": parent}
        self.lines.append(event | ({"agentId": agent} if agent else {}))
        return self.lines[-1]

    def ask(self, text: str, **about: Any) -> None:
        self.add("user.message", content=text, transformedContent=f"<now>\n{text}", attachments=[], **about)

    def reply(
        self, text: str, output: int | None, *calls: tuple[str, str, dict[str, Any]], **about: Any
    ) -> None:
        n = len(self.lines)
        asked = [
            {"toolCallId": id, "name": name, "arguments": given, "type": "function"}
            for id, name, given in calls
        ]
        counted = {} if output is None else {"outputTokens": output}
        said = {
            "messageId": f"m{n}",
            "apiCallId": f"a{n}",
            "model": "gpt-5-mini",
            "content": text,
            "toolRequests": asked,
        }
        self.add("assistant.message", **said | counted | about)

    def run(self, id: str, name: str, output: str | None, *, agent: str | None = None, **about: Any) -> None:
        given = {"toolName": name, "arguments": about.pop("arguments", {})}
        self.add("tool.execution_start", agent=agent, toolCallId=id, **given)
        ended = {"result": {"content": output}} if output is not None else {"error": {"message": "no such file", "code": "failure"}}  # fmt: skip
        self.add(
            "tool.execution_complete", agent=agent, toolCallId=id, success=output is not None, **ended | about
        )

    def shutdown(self, usage: tuple[int, int, int, int], nano: int = 0, **about: Any) -> None:
        names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
        sums = {"requests": {"count": 3}, "usage": dict(zip(names, usage, strict=True)), "totalNanoAiu": nano}
        self.add(
            "session.shutdown",
            **{"shutdownType": "routine", "totalNanoAiu": nano, "modelMetrics": {"gpt-5-mini": sums}} | about,
        )

    @property
    def data(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)

    def write(self, folder: Path) -> Path:
        path = folder / "session-state" / SESSION / "events.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def put_rows(folder: Path, rows: Iterable[tuple[Any, ...]], columns: tuple[str, ...] = COLUMNS) -> None:
    connection = sqlite3.connect(folder / "session-store.db")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS assistant_usage_events (id INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(columns)})"
    )
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO assistant_usage_events ({', '.join(columns)}) VALUES ({marks})", rows
    )
    connection.commit()
    connection.close()


def row(whole: int, output: int, read: int = 0, written: int = 0, nano: int = 0, *, agent: str | None = None, initiator: str | None = None) -> tuple[Any, ...]:  # fmt: skip
    return (
        SESSION,
        agent,
        None,
        "gpt-5-mini",
        whole,
        output,
        read,
        written,
        nano,
        1_500,
        "stop",
        initiator,
        "2026-07-21 22:00:09",
    )


def totals(store: Store, where: str = "1") -> Any:
    return store.one(
        "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens),"
        f" round(sum(cost_usd), 6), sum(cost_usd IS NULL), sum(usage_exact) FROM model_calls WHERE {where}"
    )


def worked() -> Events:
    log = Events()
    log.add("session.model_change", newModel="auto")
    log.add("system.message", role="system", content="You are a tool.")
    log.ask("Mend the gate")
    log.add("assistant.turn_start", turnId="0")
    log.reply("I look.", 964, ("c1", "view", {"path": "gate.py"}))
    log.run("c1", "view", "1. gate")
    log.add("assistant.turn_end", turnId="0")
    log.reply("", 38, ("c2", "view", {"path": "x"}))
    log.run("c2", "view", None)
    log.add("assistant.turn_end", turnId="1")
    log.reply("Done.", 43)
    log.add("assistant.turn_end", turnId="2")
    return log


def compacted(log: Events, **about: Any) -> None:
    log.add("session.compaction_start", systemTokens=6_075, conversationTokens=424)
    used = {
        "inputTokens": 14_118, "outputTokens": 1_321, "cacheReadTokens": 12_672, "cacheWriteTokens": 0, "duration": 42_028,
        "model": "gpt-5-mini", "copilotUsage": {"totalNanoAiu": 332_030_000},
    }  # fmt: skip
    log.add(
        "session.compaction_complete",
        **{"success": True, "preCompactionTokens": 427, "postCompactionTokens": 663, "systemTokens": 6_075,
           "toolDefinitionsTokens": 7_681, "messagesRemoved": 5, "summaryContent": "The gate was mended.",
           "trigger": "manual", "compactionTokensUsed": used} | about,
    )  # fmt: skip


def imported(store: Store, path: Path) -> Any:
    return store.run(path, pricing=logged_price)


def test_a_log_without_a_store_has_the_sums_that_end_it(store: Store, tmp_path: Path) -> None:
    log = worked()
    compacted(log)
    log.ask("What is in it?")
    log.reply("A gate.", 177)
    log.add("assistant.turn_end", turnId="0")
    log.shutdown((53_873, 1_222, 39_680, 0), 1_030_455_000)
    path = log.write(tmp_path)
    report = imported(store, path)
    # Before the compaction's own 14,118 tokens of prompt: 53,873 of four replies, 39,680 of them from the cache.
    assert totals(store, "purpose = 'turn'")[:5] == (4, 53_873 - 39_680, 964 + 38 + 43 + 177, 39_680, 0)
    assert totals(store, "purpose = 'compaction'")[:6] == (1, 1_446, 1_321, 12_672, 0, 0.00332)
    # A credit is a cent: 1.030455 of them, those of the compaction included. No call has a price by itself.
    assert totals(store)[5:] == (0.010305, 3, 1)
    assert store.all("SELECT trigger, tokens_before, tokens_after, reason FROM compactions") == [
        ("manual", 14_183, 14_419, None)
    ]
    assert store.all("SELECT text FROM observations") == [("The gate was mended.",)]
    assert store.all("SELECT name, status FROM tool_calls ORDER BY id") == [
        ("view", "done"),
        ("view", "error"),
    ]
    assert store.one("SELECT origin, goal, workspace, model, status, errors FROM sessions") == (
        "copilot-cli", "Mend the gate", "/srv/work", "github-copilot/gpt-5-mini", "done", 0,
    )  # fmt: skip
    assert store.one("SELECT count(*) FROM messages") == 8
    assert report.raw.total() == 8
    assert PROGRAM.is_over(Reads(log).reader.save())


def test_what_a_log_does_not_say_is_unknown(store: Store, tmp_path: Path) -> None:
    imported(store, worked().write(tmp_path))
    assert totals(store) == (3, 0, 1_045, 0, 0, None, 3, 0)


def test_credits_so_far_are_the_cost_of_a_log_without_its_end(store: Store, tmp_path: Path) -> None:
    log = worked()
    log.add("session.usage_checkpoint", totalNanoAiu=500_000_000)
    log.ask("and?")
    log.reply("That is all.", 20)
    log.add("session.usage_checkpoint", totalNanoAiu=700_000_000)
    imported(store, log.write(tmp_path))
    assert totals(store)[4:] == (0, 0.007, 2, 0)
    log.shutdown((5_000, 1_065, 1_000, 0), 800_000_000)
    imported(store, log.write(tmp_path))
    assert totals(store)[:6] == (4, 4_000, 1_065, 1_000, 0, 0.008)


def test_sums_after_a_resumption_include_those_before(store: Store, tmp_path: Path) -> None:
    log = worked()
    log.shutdown((1_000, 1_045, 400, 0))
    log.add("session.resume", eventCount=14, context={"cwd": "/srv/work"})
    log.ask("and?")
    log.reply("That is all.", 20)
    log.shutdown((1_800, 1_065, 900, 0))
    imported(store, log.write(tmp_path))
    assert totals(store)[:4] == (4, 900, 1_065, 900)
    # A version whose sums are those of its own part alone.
    log.reply("Really.", 5)
    log.shutdown((300, 5, 100, 0))
    imported(store, log.write(tmp_path))
    assert totals(store)[:4] == (5, 1_100, 1_070, 1_000)


def test_the_store_has_what_each_request_used(store: Store, tmp_path: Path) -> None:
    log = worked()
    compacted(log, compactionTokensUsed=None)
    log.ask("What is in it?")
    log.reply("A gate.", 177)
    log.shutdown((53_873, 1_222, 39_680, 0), 1_030_455_000)
    path = log.write(tmp_path)
    put_rows(tmp_path, [
        row(13_000, 964, 0, 2_000, 300_000_000), row(13_200, 38, 12_000, 0, 100_000_000), row(13_300, 43, 13_000, 0, 90_000_000),
        row(14_118, 1_321, 12_672, 0, 332_030_000, initiator="compaction"), row(900, 7, initiator="mcp-sampling"),
        row(14_373, 177, 14_000, 0, 120_000_000), ("other", None, None, "gpt-5-mini", 7, 7, 0, 0, 0, 1, "stop", None, None),
    ])  # fmt: skip
    imported(store, path)
    assert totals(store, "purpose = 'turn'")[:5] == (4, 11_000 + 1_200 + 300 + 373, 1_222, 39_000, 2_000)
    assert totals(store, "purpose = 'compaction'")[:5] == (1, 1_446, 1_321, 12_672, 0)
    assert totals(store, "purpose = 'other'")[:3] == (1, 900, 7)
    assert totals(store)[5:] == (pytest.approx(0.00942 + 900 * 0.25e-6 + 7 * 2e-6, abs=1e-6), 0, 6)
    assert store.all("SELECT reason FROM compactions") == [(None,)]
    assert store.one("SELECT context_tokens FROM agents") == 14_373 + 177
    assert store.one("SELECT latency_seconds FROM model_calls WHERE output_tokens = 38") == 1.5


def test_a_row_that_is_stored_later_than_its_message_is_found(store: Store, tmp_path: Path) -> None:
    log = worked()
    imported(store, log.write(tmp_path))
    put_rows(tmp_path, [row(13_000, 964), row(13_200, 38, 12_000), row(13_300, 43, 13_000)])
    log.add("assistant.turn_end", turnId="2")
    log.write(tmp_path)
    imported(store, log.write(tmp_path))
    assert totals(store)[:4] == (3, 13_000 + 1_200 + 300, 1_045, 25_000)
    assert totals(store)[6:] == (0, 3)
    log.shutdown((39_500, 1_045, 25_000, 0))
    imported(store, log.write(tmp_path))
    assert totals(store)[:4] == (3, 13_000 + 1_200 + 300, 1_045, 25_000)


def test_a_store_of_an_earlier_version_or_a_damaged_one_stops_nothing(store: Store, tmp_path: Path) -> None:
    columns = ("session_id", "model", "input_tokens", "output_tokens")
    put_rows(tmp_path, [(SESSION, "gpt-5-mini", 13_000, 964), (SESSION, "gpt-5-mini", None, "x")], columns)
    path = worked().write(tmp_path)
    imported(store, path)
    assert totals(store)[:3] == (3, 13_000, 1_045)
    (tmp_path / "session-store.db").write_bytes(b"SQLite format 3\0" + bytes(90))
    source = Source(path, path.read_bytes())
    assert PROGRAM.reader(source, None).requests == []


def test_the_parts_of_one_reply_are_one_call(store: Store, tmp_path: Path) -> None:
    log = Events()
    log.ask("go")
    log.reply("First,", None, apiCallId="a")
    log.reply("then", None, apiCallId="a")
    log.reply("that.", 1_851, ("c1", "bash", {"command": "ls"}), apiCallId="a")
    imported(store, log.write(tmp_path))
    assert totals(store)[:3] == (1, 0, 1_851)
    assert store.one("SELECT count(*) FROM messages WHERE role = 'assistant'") == 3


def test_agents_are_below_the_calls_that_started_them(store: Store, tmp_path: Path) -> None:
    log = Events()
    log.ask("go")
    given = {"description": "Look around", "prompt": "Find the gate.", "agent_type": "explore"}
    log.reply("", 10, ("t1", "task", given), ("t2", "task", given | {"description": "Mend it"}))
    log.add("tool.execution_start", toolCallId="t1", toolName="task", arguments=given)
    log.add("subagent.started", agent="t1", toolCallId="t1", agentName="explore", agentDisplayName="Explore Agent", model="claude-haiku-4.5")  # fmt: skip
    log.add(
        "subagent.started", agent="worker-2", toolCallId="t2", agentName="task", agentDisplayName="Task Agent"
    )
    log.add("user.message", agent="t1", content="Find the gate.", source="agent-main")
    deeper = {"messageId": "s1", "apiCallId": "s1", "model": "claude-haiku-4.5", "content": "I ask.", "outputTokens": 30,
              "toolRequests": [{"toolCallId": "t3", "name": "task", "arguments": {"description": "Deeper", "prompt": "p"}}]}  # fmt: skip
    log.add("assistant.message", agent="t1", **deeper)
    log.add(
        "subagent.started", agent="t3", toolCallId="t3", agentName="explore", agentDisplayName="Explore Agent"
    )
    log.add(
        "subagent.completed",
        agent="t3",
        toolCallId="t3",
        agentName="explore",
        agentDisplayName="x",
        cancelled=True,
    )
    # Earlier versions name the call in place of the agent.
    log.add(
        "assistant.message",
        parentToolCallId="t2",
        messageId="s2",
        content="Mending.",
        outputTokens=40,
        toolRequests=[],
    )
    log.add(
        "subagent.completed",
        agent="t1",
        toolCallId="t1",
        agentName="explore",
        agentDisplayName="x",
        totalTokens=99,
    )
    log.add("tool.execution_complete", toolCallId="t1", success=True, result={"content": "There."})
    log.add(
        "subagent.failed",
        agent="worker-2",
        toolCallId="t2",
        agentName="task",
        agentDisplayName="x",
        error="no key",
    )
    log.add(
        "tool.execution_complete",
        toolCallId="t2",
        success=False,
        error={"message": "no key", "code": "failure"},
    )
    path = log.write(tmp_path)
    put_rows(tmp_path, [row(100, 10), row(200, 30, agent="t1"), row(300, 40, agent="worker-2"), row(400, 40)])
    imported(store, path)
    agents = store.all(
        "SELECT a.name, a.role, a.current_goal, a.status, a.status_reason, a.model_calls, p.name FROM agents a"
        " JOIN agents p ON p.id = a.parent_agent_id ORDER BY a.name"
    )
    assert agents == [
        ("Deeper", "explore", "p", "cancelled", None, 0, "Look around"),
        ("Look around", "explore", "Find the gate.", "done", None, 1, "main"),
        ("Mend it", "task", "Find the gate.", "failed", "no key", 1, "main"),
    ]
    assert totals(store)[:3] == (3, 600, 80)
    store.assert_a_tree()


def test_an_agent_in_the_background_ends_with_its_notification(store: Store, tmp_path: Path) -> None:
    log = Events()
    log.ask("go")
    log.reply("", 10, ("t1", "task", {"description": "Look", "mode": "background"}))
    log.run("t1", "task", "started")
    log.add("subagent.started", toolCallId="t1", agentName="explore", agentDisplayName="Explore Agent")
    log.add(
        "assistant.message",
        parentToolCallId="t1",
        messageId="s2",
        content="Looking.",
        outputTokens=4,
        toolRequests=[],
    )
    log.add(
        "system.notification",
        content="x",
        kind={"type": "agent_completed", "agentId": "t1", "status": "completed"},
    )
    log.add(
        "system.notification",
        content="x",
        kind={"type": "agent_completed", "agentId": "who", "status": "failed"},
    )
    imported(store, log.write(tmp_path))
    assert store.all("SELECT name, status FROM agents WHERE parent_agent_id IS NOT NULL") == [
        ("Look", "done")
    ]


def test_to_dos_are_the_rows_that_the_statements_leave(store: Store, tmp_path: Path) -> None:
    log = Events()
    log.ask("go")
    statements = (
        "INSERT INTO todos (id, title, description) VALUES ('dig', 'Digging a hole', 'Two feet; no more.'), ('fill', 'Filling it', NULL)",
        "INSERT INTO todo_deps (todo_id, depends_on) VALUES ('fill', 'dig'); UPDATE todos SET status = 'in_progress' WHERE id = 'dig'",
        "SELECT * FROM todos",
        "UPDATE todos SET status = CASE id WHEN 'dig' THEN 'done' ELSE 'blocked' END",
        "UPDATE todos SET status = 'pending'",
    )
    for n, query in enumerate(statements):
        log.reply("", 5, (f"q{n}", "sql", {"query": query}))
        log.run(f"q{n}", "sql", None if n == 4 else "ok")
    imported(store, log.write(tmp_path))
    assert store.plan_versions() == [
        [("Digging a hole", "pending"), ("Filling it", "pending")],
        [("Digging a hole", "running"), ("Filling it", "pending")],
        [("Digging a hole", "done"), ("Filling it", "failed")],
    ]
    assert store.one("SELECT instructions FROM tasks WHERE title = 'Digging a hole'") == "Two feet; no more."


@pytest.mark.parametrize("query", [
    "ATTACH DATABASE '{place}' AS x", "PRAGMA writable_schema = 1", "VACUUM INTO '{place}'", "DROP TABLE todos",
    "CREATE TABLE x (a); INSERT INTO x VALUES (1)", "SELECT load_extension('{place}')", "todos; ; '", "BEGIN; DELETE FROM todos",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) UPDATE todos SET title = (SELECT max(i) FROM n)",
    "UPDATE todos SET title = randomblob(1000000000)", "INSERT INTO todos SELECT * FROM sqlite_master", "SELECT writefile('{place}', 'x')",
    "INSERT INTO todos (id) SELECT a.id || b.id || c.id FROM todos a, todos b, todos c, todos d, todos e, todos f, todos g",
])  # fmt: skip
def test_a_statement_reaches_nothing_but_the_to_dos(query: str, tmp_path: Path) -> None:
    place = tmp_path / "reached"
    todos = [(f"t{n}", "title", "", "pending") for n in range(30)]
    after, needs = replay_todos(query.format(place=place), todos, [])
    assert not place.exists()
    assert needs == []
    assert [each for each in after if each in todos] in (todos, [])
    assert len(after) <= 200


def test_errors_and_interruptions_are_told(store: Store, tmp_path: Path) -> None:
    log = worked()
    log.add("session.error", errorType="rate_limit", message="Too many requests", statusCode=429)
    log.add("abort", reason="user_initiated")
    log.add("session.compaction_complete", success=False, error="the model refused")
    log.add("session.shutdown", shutdownType="error", errorReason="out of memory", modelMetrics={})
    imported(store, log.write(tmp_path))
    kinds = [kind for kind, _ in store.errors()]
    assert {"agent.interrupted", "agent.failed"} <= set(kinds)
    assert store.one("SELECT errors FROM sessions") >= 2
    assert store.one("SELECT status, status_reason FROM agents") == ("failed", "out of memory")
    assert store.all("SELECT * FROM compactions") == []


def test_a_truncation_keeps_the_newest_messages(store: Store, tmp_path: Path) -> None:
    log = Events()
    for word in ("one", "two", "three", "four"):
        log.ask(word)
    counts = {
        "preTruncationTokensInMessages": 900,
        "postTruncationTokensInMessages": 400,
        "postTruncationMessagesLength": 1,
    }
    log.add("session.truncation", messagesRemovedDuringTruncation=3, **counts)
    log.add("session.truncation", messagesRemovedDuringTruncation=0, **counts)
    imported(store, log.write(tmp_path))
    assert store.all("SELECT trigger, tokens_before, tokens_after, messages_removed FROM compactions") == [
        ("truncation", 900, 400, 3)
    ]


def test_the_name_of_a_session_is_its_title_and_may_change(store: Store, tmp_path: Path) -> None:
    log = worked()
    path = log.write(tmp_path)
    names = path.with_name("workspace.yaml")
    names.write_text(f'id: {SESSION}\nname: "Mend a gate"\nuser_named: false\n')
    imported(store, path)
    assert store.one("SELECT title FROM sessions") == "Mend a gate"
    names.write_text("name: Gates\n")
    log.add("assistant.turn_end", turnId="2")
    imported(store, log.write(tmp_path))
    assert store.one("SELECT title FROM sessions") == "Gates"


class Reads:
    """A reader after a log."""

    def __init__(self, log: Events) -> None:
        self.reader = CopilotReader(SESSION)
        for number, line in enumerate(log.lines, 1):
            self.reader.feed(number, json.dumps(line).encode())


def everything() -> Events:
    log = worked()
    compacted(log)
    log.reply(
        "",
        9,
        ("t1", "task", {"description": "Look", "prompt": "p"}),
        ("q", "sql", {"query": "INSERT INTO todos (id) VALUES ('a')"}),
    )
    log.add("subagent.started", agent="t1", toolCallId="t1", agentName="explore", agentDisplayName="E")
    log.reply("Found.", 3, agent="t1")
    log.add("subagent.completed", agent="t1", toolCallId="t1", agentName="explore", agentDisplayName="E")
    log.run("t1", "task", "There.")
    log.run("q", "sql", "ok")
    log.add("session.usage_checkpoint", totalNanoAiu=700_000_000)
    log.add("abort", reason="user_initiated")
    log.shutdown((60_000, 1_100, 40_000, 5), 900_000_000)
    log.add("session.resume", eventCount=30)
    log.ask("and?")
    log.reply("No.", 2)
    return log


def test_a_reader_carries_on_from_its_state_after_every_line() -> None:
    whole, parts = CopilotReader("x"), CopilotReader("x")
    for number, line in enumerate(everything().lines, 1):
        data = json.dumps(line).encode()
        parts = CopilotReader.restore(json.loads(json.dumps(parts.save())))
        assert parts.feed(number, data) == whole.feed(number, data)


def test_a_log_that_grows_is_as_one_that_is_read_at_once(open_store: Any, tmp_path: Path) -> None:
    data, rows = (
        everything().data,
        [row(13_000, 964), row(13_200, 38, 12_000), row(13_300, 43, 13_000), row(500, 2)],
    )
    tables = (
        "SELECT purpose, model, input_tokens, output_tokens, cache_read_tokens, cost_usd, usage_exact FROM model_calls ORDER BY id",
        "SELECT seq, role, content FROM messages ORDER BY agent_id, seq", "SELECT name, status, model_calls FROM agents ORDER BY name",
        "SELECT name, status FROM tool_calls ORDER BY id", "SELECT title, status FROM tasks", "SELECT trigger, tokens_before FROM compactions",
    )  # fmt: skip
    found = []
    for name, step in (("whole", len(data)), ("steps", 301)):
        store, folder = open_store(name), tmp_path / name
        folder.mkdir()
        path = Events().write(folder)
        put_rows(folder, rows)
        for end in [*range(step, len(data), step), len(data)]:
            path.write_bytes(data[:end])
            imported(store, path)
        found.append([store.all(table) for table in tables])
    assert found[0] == found[1]
    assert found[0][0][0][2:5] == (13_000, 964, 0)


HOSTILE = [
    {}, {"type": 5}, {"type": "session.start", "data": []}, {"type": "user.message", "data": {"content": 5, "transformedContent": [1]}},
    {"type": "assistant.message", "data": {"toolRequests": [1, {"toolCallId": 3}, {"toolCallId": "c", "name": None, "arguments": "[1"}],
                                           "outputTokens": -5, "model": {}, "reasoningText": 3}},
    {"type": "assistant.message", "data": {"outputTokens": 10**30, "apiCallId": [], "messageId": 7}, "agentId": 4},
    {"type": "tool.execution_start", "data": {"toolCallId": None}}, {"type": "tool.execution_complete", "data": {"result": "x", "error": 3}},
    {"type": "tool.execution_complete", "data": {"toolCallId": "c", "success": "yes", "error": {"code": []}}},
    {"type": "subagent.started", "data": {}}, {"type": "subagent.failed", "data": {"toolCallId": "a", "error": []}, "agentId": []},
    {"type": "subagent.completed", "agentId": "a", "data": {"toolCallId": "b"}}, {"type": "system.notification", "data": {"kind": 4}},
    {"type": "session.compaction_complete", "data": {"success": True, "compactionTokensUsed": [], "preCompactionTokens": "9"}},
    {"type": "session.compaction_complete", "data": {"success": True, "compactionTokensUsed": {"inputTokens": 5, "cacheReadTokens": 9e99}}},
    {"type": "session.truncation", "data": {"messagesRemovedDuringTruncation": 5, "postTruncationMessagesLength": 10**12}},
    {"type": "session.shutdown", "data": {"modelMetrics": {"m": {"usage": {"inputTokens": 10**25, "outputTokens": "x"}}, "n": 4}}},
    {"type": "session.shutdown", "data": {"agentMetrics": {"who": {"modelMetrics": []}}, "totalNanoAiu": float("inf")}},
    {"type": "session.usage_checkpoint", "data": {"totalNanoAiu": "much"}}, {"type": "no.such_thing", "data": None, "timestamp": 1e300},
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE)
def test_no_line_stops_the_reader(line: dict[str, Any], store: Store, tmp_path: Path) -> None:
    log = worked()
    log.lines += [line, line]
    log.reply("still here", 4)
    path = log.write(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"broken": \n\n[1]\n\xff\xfe\n{"type": "user.mess')
    report = imported(store, path)
    assert not any("reader error" in each.reason for each in report.raw)
    assert "still here" in json.dumps(store.said())


def test_a_log_is_recognised_by_its_first_event(tmp_path: Path) -> None:
    path = worked().write(tmp_path)
    assert program_of(Source(path, path.read_bytes())) is PROGRAM
    assert program_of(Source(path, b'{"type": "session.start", "data": {"sessionId": "a"}}\n')) is None
    assert PROGRAM.places({"COPILOT_HOME": "/srv/c"}, tmp_path) == [Path("/srv/c/session-state")]
    assert PROGRAM.places({}, tmp_path) == [tmp_path / ".copilot/session-state"]


def test_the_newest_of_a_session_is_read_with_its_usage(tmp_path: Path) -> None:
    log = worked()
    path = log.write(tmp_path)
    put_rows(tmp_path, [row(13_000, 964)])
    found = [each for each in SessionTail("copilot-cli", path, SESSION).read() if isinstance(each, ModelCall)]
    assert [each.input_tokens for each in found] == [13_000, 0, 0]
