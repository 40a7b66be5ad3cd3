"""Whatever happens to a log: no crash, and every record is counted once as read, raw, skipped or waiting."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.transcripts.codex_rollout import CHILD, spawned_tree
from tests.core.transcripts.conftest import SESSION, Log, call, store_in_a_folder, text
from tests.core.transcripts.opencode_book import Book, compacted, family, lively

from watchkeeper.store.driver import sqlite3
from watchkeeper.transcripts.codex import PROGRAM
from watchkeeper.transcripts.records import Raw, Skipped, Source


def _log() -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(call("TodoWrite", "t0", todos=[{"content": "a", "status": "pending"}]), id="m0")
    log.result("t0")
    log.reply(
        call("Task", "t1", prompt="Look", description="d", subagent_type="Explore"),
        id="m1",
        output=1,
        stop=None,
    )
    log.add("user", message={"role": "user", "content": "Look"}, isSidechain=True, parent=None, uuid="s0")
    log.reply(text("Looked"), id="m2", isSidechain=True, uuid="s1", parent="s0")
    log.result("t1", parent=log.records[3]["uuid"])
    log.boundary()
    log.summary("All of it.")
    microcompact_metadata = {"preTokens": 5, "tokensSaved": 2, "compactedToolIds": ["t1"]}
    log.add("system", subtype="microcompact_boundary", microcompactMetadata=microcompact_metadata)
    log.add("progress", parentToolUseID="t1", data={"type": "agent_progress", "agentId": "abc"})
    log.add("file-history-snapshot", snapshot={})
    log.reply(call("TaskUpdate", "t2", taskId="1", status="completed"), id="m3")
    return log


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
    item = {"type": "SubAgentActivity", "id": "p", "agent_thread_id": "x", "kind": "completed"}
    child.event("item_completed", item=item)
    child.item(
        "custom_tool_call",
        call_id="e",
        name="exec",
        input='tools.update_plan({plan: [{step: "b", status: "done"}]})',
    )
    return [json.dumps(line).encode() for line in child.lines + root.lines]


LINES = _log().lines
CODEX_LINES = _codex_lines()


def _damage(rng: random.Random, lines: list[bytes]) -> bytes:
    """Lines lost, doubled, shuffled, cut, glued together, and bytes changed."""
    lines = list(lines)
    for _ in range(rng.randrange(6)):
        if not lines:
            break
        place, kind = rng.randrange(len(lines)), rng.randrange(7)
        line = lines[place]
        if kind == 0:
            del lines[place]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines)), line)
        elif kind == 2:
            rng.shuffle(lines)
        elif kind == 3:
            lines[place] = line[: rng.randrange(len(line) + 1)]
        elif kind == 4:
            changed = bytearray(line)
            for _ in range(rng.randrange(1, 4)):
                if changed:
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
            lines[place] = bytes(changed)
        elif kind == 5:
            lines.append(line + lines.pop(rng.randrange(len(lines))))
        else:
            lines[place] = line.replace(b'"uuid":"', b'"uuid":"x', 1).replace(
                b'"parentUuid":"', b'"parentUuid":"y', 1
            )
    return b"\n".join(lines) + rng.choice([b"\n", b""])


@pytest.mark.parametrize(
    ("name", "lines"),
    [(f"{SESSION}.jsonl", LINES), (f"rollout-2026-02-03T04-00-00-{CHILD}.jsonl", CODEX_LINES)],
    ids=["Claude Code", "Codex"],
)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_log_loses_no_line_and_stops_nothing(name: str, lines: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    with store_in_a_folder() as (store, folder):
        path, data = folder / name, _damage(rng, lines)
        grown, ended = b"", 0
        while len(grown) < len(data):
            grown = data[: len(grown) + rng.randrange(1, len(data) + 1)]
            path.write_bytes(grown)
            report = store.run(path)
            assert not report.left
            assert not [kind for kind, reason in report.raw if "failed" in reason]
            # A record that is whole is read before its line ends; what then comes in the same line is one more.
            ended += grown.endswith(b"}") and data[len(grown) : len(grown) + 1] not in (b"", b"\n")
        whole = data.count(b"\n") + bool(data.rpartition(b"\n")[2])
        counted, raw = store.one("SELECT sum(lines), sum(lines_raw) FROM transcript_files")
        assert whole <= (counted or 0) + report.waiting <= whole + ended or (report.unknown and not counted)
        assert store.one("SELECT count(*) FROM raw_records") == (raw or 0)
        # Read again after a rewriting of its first line: everything is counted, and nothing doubles.
        messages = store.counts()["messages"]
        path.write_bytes(b"\n" + data)
        again = store.run(path)
        assert again.lines == whole + 1 or again.unknown
        if lines is LINES:  # Codex's records have no ids: a thread whose header was cut has another name
            assert store.counts()["messages"] <= messages + 1
        assert store.one("PRAGMA integrity_check") == "ok"


ODD: list[Any] = [
    None, True, -1, 0, 1e308, 10**30, "", " ", "x", "\x00", "é漢\U0001f600", "9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00.000Z", 10**14, [], [None],
    {}, {"type": "text"}, [{"type": "tool_use"}], [{"type": "tool_result", "tool_use_id": 5}], {"id": {"id": []}}, [[[[]]]], "main", "side:s0",
]  # fmt: skip


def _twist(rng: random.Random, value: Any) -> Any:
    """The value with something odd put in somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        twisted = dict(value)
        if rng.random() < 0.1:
            del twisted[key]
        else:
            twisted[key] = _twist(rng, value[key])
        return twisted
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        return [*value[:place], _twist(rng, value[place]), *value[place + 1 :]]
    return rng.choice(ODD)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_records_of_odd_shapes_are_read_or_kept_and_stop_nothing(seed: int) -> None:
    rng = random.Random(seed)
    records = [json.loads(line) for line in LINES]
    for _ in range(rng.randrange(1, 12)):
        place = rng.randrange(len(records))
        records[place] = _twist(rng, records[place])
    with store_in_a_folder() as (store, folder):
        path = folder / f"{SESSION}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        report = store.run(path)
        assert report.lines == len(records) or report.unknown
        assert not [kind for kind, reason in report.raw if "failed" in reason]
        sums = "SELECT sum(output_tokens), sum(model_calls) FROM"
        calls = store.one("SELECT coalesce(sum(output_tokens), 0), count(*) FROM model_calls")
        assert report.unknown or store.one(f"{sums} sessions") == store.one(f"{sums} agents") == calls


def test_values_nested_beyond_any_parser_and_numbers_beyond_any_machine_are_kept(store, logs):
    path = logs / f"{SESSION}.jsonl"
    head = b'{"type":"user","sessionId":"s","uuid":"n%d","timestamp":"2026-02-03T04:00:00.000Z","message":{"role":"user","content":'
    depths = (100, 190, 250, 400, 600, 900, 5_000, 100_000)
    lines = [head % depth + b"[" * depth + b"]" * depth + b"}}" for depth in depths]
    lines += [head % 1 + b'[{"type":"text","n":' + b"9" * digits + b"}]}}" for digits in (30, 5_000, 50_000)]
    lines += [head % 2 + b'[{"type":"text","n":NaN,"m":1e999}]}}']
    path.write_bytes(b"\n".join([LINES[0], *lines]) + b"\n")
    report = store.run(path)
    assert report.read + report.raw.total() == report.lines == 1 + len(lines)


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


@settings(max_examples=60)
@given(st.lists(st.tuples(_KINDS, _INNER, st.dictionaries(_NAMES, _JSON)), max_size=6))
def test_no_value_in_a_line_of_codex_makes_its_reader_fail_and_each_line_has_one_outcome(lines):
    about = {"timestamp": "2026-01-01T00:00:00.000Z"}
    made = [about | {"type": kind, "payload": {"type": inner, **payload}} for kind, inner, payload in lines]
    odd = [b"", b"{", b"[]", b'{"type":7}', b'{"payload":{}}']
    reader = PROGRAM.reader(Source(Path("rollout-x.jsonl")), None)
    for number, data in enumerate([*(json.dumps(record).encode() for record in made), *CODEX_LINES, *odd]):
        found = reader.feed(number + 1, data)
        assert found
        assert sum(isinstance(record, Raw | Skipped) for record in found) <= 1
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
        odd = [
            b"",
            b"null",
            b"[]",
            b"{}",
            b"7",
            b'{"id":[],"time":7,"role":{},"type":[],"state":1}',
            b"\xff\xfe",
        ]
        return rng.choice(odd)
    if kind == 3:
        return data.replace(b'"time"', b'"when"').replace(b'"type"', b'"kind"', rng.randrange(2))
    return data.replace(b'{"', b'["', 1)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_damaged_sessions_of_opencode_lose_no_record_and_stop_nothing(seed: int) -> None:
    rng, book = random.Random(seed), _book()
    with store_in_a_folder() as (store, folder):
        path = book.database(folder)
        connection = sqlite3.connect(path)
        for table in ("message", "part"):
            for row_id, data in connection.execute(f"SELECT id, data FROM {table}").fetchall():
                if rng.random() < 0.25:
                    spoiled = _spoil(rng, data.encode())
                    value = spoiled.decode("utf-8", "replace") if rng.random() < 0.9 else spoiled
                    connection.execute(f"UPDATE {table} SET data = ? WHERE id = ?", (value, row_id))
        for (row_id,) in connection.execute("SELECT id FROM session").fetchall():
            if rng.random() < 0.2:
                about = (rng.choice([row_id, "lost", None]), rng.choice([None, -1, "x", 1e300, b"x"]), row_id)
                connection.execute("UPDATE session SET parent_id = ?, time_created = ? WHERE id = ?", about)
        connection.commit()
        connection.close()
        report = store.run(path)
        assert not report.left
        assert store.run(path).lines == 0
        assert report.read + report.raw.total() + report.skipped.total() == book.records
        assert store.one("SELECT count(*) FROM raw_records") == report.raw.total()
        assert store.one("PRAGMA integrity_check") == "ok"
