"""Whatever happens to logs of Codex and OpenCode: no crash, and every record is counted once."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.transcripts.codex_rollout import spawned_tree
from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import Book, compacted, family, lively
from tests.core.transcripts.test_damaged_logs import _damage

from watchkeeper.store.driver import sqlite3
from watchkeeper.transcripts.codex import PROGRAM
from watchkeeper.transcripts.records import Raw, Skipped, Source

FUZZ = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _codex_lines() -> list[bytes]:
    root, child = spawned_tree("stamped anew")
    child.item("reasoning", summary=[{"type": "summary_text", "text": "Hm."}], encrypted_content="eA==")
    child.call("p", name="update_plan", plan=[{"step": "a", "status": "pending"}]).output(
        "p", {"content": "x", "success": False}
    )
    child.add(
        "compacted",
        {"message": "So far", "replacement_history": [{"type": "message", "role": "user", "content": "x"}]},
    )
    child.item("web_search_call", action={"type": "search"}).item(
        "image_generation_call", id="i", result="QUJD"
    )
    child.event("turn_aborted", reason="interrupted").event("task_complete", error={"message": "x"})
    child.event("exec_command_end", call_id="p", exit_code=1).event(
        "mcp_tool_call_end", call_id="p", result={"Err": "x"}
    )
    child.event("collab_waiting_end", statuses={"x": {"completed": "y"}})
    usage = {"input_tokens": 9, "cached_input_tokens": 1, "output_tokens": 2}
    record = {"thread_id": child.thread, "response_id": "r", "usage": usage}
    child.add("token_usage_record", record).add(
        "inter_agent_communication", {"id": "m", "author": "/root", "content": "On."}
    )
    child.event("task_started", turn_id="t").add(
        "compacted", {"compaction_response_id": "r", "latest_token_usage_record": record}
    )
    child.event("task_complete", turn_id="t").event("thread_rolled_back", num_turns=1)
    about = {
        "receiver_thread_ids": ["x"],
        "agents_states": {"x": {"status": "errored"}},
        "tool": "spawn_agent",
        "id": "p",
    }
    child.event("item_completed", item={"type": "CollabAgentToolCall", **about})
    child.event(
        "item_completed",
        item={"type": "SubAgentActivity", "id": "p", "agent_thread_id": "x", "kind": "completed"},
    )
    child.item(
        "custom_tool_call",
        call_id="e",
        name="exec",
        input='tools.update_plan({plan: [{step: "b", status: "done"}]})',
    )
    return [json.dumps(line).encode() for line in child.lines + root.lines]


LINES = _codex_lines()


@FUZZ
@given(st.integers(0, 2**32))
def test_a_damaged_log_of_codex_loses_no_line_and_stops_nothing(seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "watchkeeper.db")
        try:
            path = Path(folder) / "rollout-2026-02-03T04-00-00-019a0000-ea60-7000-8000-000000000002.jsonl"
            data = _damage(rng, LINES)
            grown, ended = b"", 0
            while len(grown) < len(data):
                grown = data[: len(grown) + rng.randrange(1, len(data) + 1)]
                path.write_bytes(grown)
                report = store.run(path)
                assert not report.left
                assert not [kind for kind, reason in report.raw if "failed" in reason]
                # A record that is whole is read before its line ends; what then comes in the same line is one
                # more.
                ended += grown.endswith(b"}") and data[len(grown) : len(grown) + 1] not in (b"", b"\n")
            whole = data.count(b"\n") + bool(data.rpartition(b"\n")[2])
            row = store.one("SELECT sum(lines), sum(lines_raw) FROM transcript_files")
            assert whole <= (row[0] or 0) + report.waiting <= whole + ended or (report.unknown and not row[0])
            assert store.one("SELECT count(*) FROM raw_records") == (row[1] or 0)
        finally:
            store.close()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "payload", "id", "role", "content", "info", "last_token_usage", "total_token_usage", "input_tokens", "call_id",
             "arguments", "output", "action", "source", "subagent", "thread_spawn", "statuses", "summary", "replacement_history",
             "plan", "text", "timestamp", "error", "result", "name", "usage", "kind", "status", "tool", "agents_states",
             "receiver_thread_ids", "agent_thread_id", "content_item_kinds", "response_id", "thread_id"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip
_KINDS = st.sampled_from(
    ["session_meta", "turn_context", "response_item", "event_msg", "compacted", "message", "token_usage_record",
     "inter_agent_communication"]
)  # fmt: skip
_NAMES = st.sampled_from(
    ["call_id", "output", "content", "info", "id", "name", "arguments", "status", "statuses", "result", "message", "error",
     "summary", "replacement_history", "source", "model", "action", "turn_id", "new_thread_id", "type", "payload", "usage",
     "thread_id", "response_id", "latest_token_usage_record", "compaction_response_id", "item", "input", "num_turns",
     "internal_chat_message_metadata_passthrough", "session_id", "thread_source", "encrypted_content"]
)  # fmt: skip
_INNER = st.sampled_from(
    ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "local_shell_call", "web_search_call",
     "image_generation_call", "tool_search_output", "agent_message", "token_count", "error", "task_complete", "turn_aborted",
     "collab_agent_spawn_end", "collab_waiting_end", "sub_agent_activity", "mcp_tool_call_end", "task_started",
     "item_completed", "thread_rolled_back", "SubAgentActivity", "CollabAgentToolCall"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_KINDS, _INNER, st.dictionaries(_NAMES, _JSON)), max_size=6))
def test_no_value_in_a_line_of_codex_makes_its_reader_fail(
    lines: list[tuple[str, str, dict[str, object]]],
) -> None:
    reader = PROGRAM.reader(Source(Path("rollout-x.jsonl")), None)
    for number, (kind, inner, payload) in enumerate(lines):
        record = {
            "timestamp": "2026-01-01T00:00:00.000Z",
            "type": kind,
            "payload": {"type": inner, **payload},
        }
        data = json.dumps(record).encode()
        assert reader.feed(number + 1, data)
        reader = PROGRAM.reader(Source(Path("rollout-x.jsonl")), json.loads(json.dumps(reader.save())))


def _book() -> Book:
    book, session, _ = family()
    compacted(book, session, tail=next(iter(book.messages)))
    other, steps = lively()
    for step in steps[:5]:
        step()
    for mine, theirs in (
        (book.sessions, other.sessions),
        (book.messages, other.messages),
        (book.parts, other.parts),
    ):
        mine.update({f"x{name}": value for name, value in theirs.items()})
    book.times.update({f"x{name}": at for name, at in other.times.items()})
    for about in (*other.sessions.values(), *other.messages.values(), *other.parts.values()):
        about |= {name: f"x{about[name]}" for name in ("id", "sessionID", "messageID") if name in about}
    book.todos[session] = [{"content": "a", "status": "pending"}]
    return book


def _spoil(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(5)
    if kind == 0:
        return data[: rng.randrange(len(data) + 1)]
    if kind == 1 and data:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if kind == 2:
        return rng.choice(
            [
                b"",
                b"null",
                b"[]",
                b"{}",
                b"7",
                b'{"id":[],"time":7,"role":{},"type":[],"state":1}',
                b"\xff\xfe",
            ]
        )
    if kind == 3:
        return data.replace(b'"time"', b'"when"').replace(b'"type"', b'"kind"', rng.randrange(2))
    return data.replace(b'{"', b'["', 1)


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_damaged_sessions_of_opencode_lose_no_record_and_stop_nothing(seed: int) -> None:
    rng = random.Random(seed)
    book = _book()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = Store(folder / "watchkeeper.db")
        try:
            (folder / "data").mkdir()
            path = book.database(folder / "data")
            connection = sqlite3.connect(path)
            for table in ("message", "part"):
                for row_id, data in connection.execute(f"SELECT id, data FROM {table}").fetchall():
                    if rng.random() < 0.25:
                        spoiled = _spoil(rng, data.encode())
                        value = spoiled.decode("utf-8", "replace") if rng.random() < 0.9 else spoiled
                        connection.execute(f"UPDATE {table} SET data = ? WHERE id = ?", (value, row_id))
            for row_id in [row[0] for row in connection.execute("SELECT id FROM session").fetchall()]:
                if rng.random() < 0.2:
                    parent = rng.choice([row_id, "lost", None])
                    connection.execute(
                        "UPDATE session SET parent_id = ?, time_created = ? WHERE id = ?",
                        (parent, rng.choice([None, -1, "x", 1e300, b"x"]), row_id),
                    )
            connection.commit()
            connection.close()
            report = store.run(path)
            again = store.run(path)
            assert not report.left
            assert again.lines == 0
            counted = report.read + report.raw.total() + report.skipped.total()
            assert counted == book.records
            assert store.one("SELECT count(*) FROM raw_records") == report.raw.total()
            assert store.one("PRAGMA integrity_check") == "ok"
        finally:
            store.close()


def test_a_group_of_codex_is_never_empty_and_says_what_became_of_its_line() -> None:
    reader = PROGRAM.reader(Source(Path("rollout-x.jsonl")), None)
    for number, data in enumerate([*LINES, b"", b"{", b"[]", b'{"type":7}', b'{"payload":{}}']):
        found = reader.feed(number + 1, data)
        assert found
        assert sum(isinstance(record, Raw | Skipped) for record in found) <= 1
