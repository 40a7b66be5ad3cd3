"""A sub-agent whose own log is not here: what its call told of it stands for it, until its log comes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.core.transcripts.conftest import SESSION, Log, Store, call, text

from watchkeeper.cli.show import export, show
from watchkeeper.store import database
from watchkeeper.store.snapshot import SessionSnapshotReader

ROW = "SELECT status, context_tokens, active_seconds, model_calls, last_seq, status_reason FROM agents WHERE parent_agent_id IS NOT NULL"
USAGE = {
    "input_tokens": 6,
    "cache_creation_input_tokens": 250,
    "cache_read_input_tokens": 3_255,
    "output_tokens": 14,
}


def _parent(logs: Path) -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(
        call("Task", "t1", prompt="Look for it", description="Look", subagent_type="Explore"),
        id="m1",
        stop="tool_use",
    )
    told = {
        "status": "completed", "agentId": "a1", "totalTokens": 3_525, "totalDurationMs": 20_281,
        "totalToolUseCount": 3, "usage": USAGE,
    }  # fmt: skip
    log.result("t1", "Found.", toolUseResult=told)
    log.write(logs)
    return log


def _child(logs: Path) -> None:
    child = Log(SESSION, isSidechain=True, agentId="a1")
    child.user("Look for it")
    child.reply(text("Found."), id="c1", input=6, write=250, read=3_255, output=14)
    child.write(logs, f"{SESSION}/subagents/agent-a1.jsonl")


def _seen(store: Store, tmp_path: Path) -> tuple[dict[str, Any], list[str]]:
    """The session as `wk show --json` tells it; and the texts of `wk show` and of each export."""
    whole = json.loads(CliRunner().invoke(show, ["last", "--db", str(store.path), "--json"]).stdout)
    texts = [CliRunner().invoke(show, ["last", "--db", str(store.path)]).output]
    for form in ("md", "html", "json"):
        file = tmp_path / f"seen.{form}"
        CliRunner().invoke(
            export, ["last", "--db", str(store.path), "--format", form, "--output", str(file), "--force"]
        )
        texts.append(file.read_text())
    return whole["session"], texts


def test_totals_to_which_a_log_is_missing_are_partial_until_it_comes(store, logs, tmp_path):
    _parent(logs)
    store.run(logs)
    session, texts = _seen(store, tmp_path)
    assert (session["partial"], session["missing_logs"]) == (True, 1)
    assert all("partial: 1 agent without a local log" in text for text in texts[:3])
    assert '"partial":true' in texts[3]
    with closing(database.open_readonly(store.path)) as connection:
        reading = SessionSnapshotReader(session["id"]).read(connection, 0.0)
    assert reading is not None
    assert reading.session.missing_logs == 1
    _child(logs)
    store.run(logs)
    session, texts = _seen(store, tmp_path)
    assert (session["partial"], session["missing_logs"]) == (False, 0)
    assert not any("partial" in text for text in texts[:3])
    assert '"partial":false' in texts[3]


def test_usage_that_only_progress_tells_counts_once_with_the_agents_own_log(store: Store, logs: Path) -> None:
    parent = _parent(logs)
    reply = {
        "id": "c0",
        "model": "claude-opus-4-6",
        "usage": USAGE | {"output_tokens": 4},
        "content": [],
        "stop_reason": None,
    }
    for _ in range(2):  # a reply is told with each of its blocks
        said = {
            "type": "assistant",
            "message": reply,
            "requestId": "req_c0",
            "timestamp": "2026-02-03T04:00:02.500Z",
        }
        data = {"type": "agent_progress", "agentId": "a1", "message": said}
        parent.add("progress", parentToolUseID="t1", data=data)
    parent.write(logs)
    store.run(logs)
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (2, 14)
    assert store.all(
        "SELECT model_calls, output_tokens, last_seq FROM agents WHERE parent_agent_id IS NOT NULL"
    ) == [(1, 4, 0)]
    child = Log(SESSION, isSidechain=True, agentId="a1")
    child.user("Look for it")
    child.reply(text("Looking."), id="c0", output=9)
    child.reply(text("Found."), id="c1", output=14)
    child.write(logs, f"{SESSION}/subagents/agent-a1.jsonl")
    store.run(logs)
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (3, 33)
    assert store.all(
        "SELECT model_calls, output_tokens, last_seq FROM agents WHERE parent_agent_id IS NOT NULL"
    ) == [(2, 23, 3)]


@pytest.mark.parametrize("ending", ["nothing", "cut", "replied", "result"])
def test_an_agent_is_done_by_a_result_or_a_last_reply_alone(store: Store, logs: Path, ending: str) -> None:
    parent = _parent(logs)
    if ending != "result":
        parent.records.pop()
        data = {"type": "agent_progress", "agentId": "a1", "prompt": "Look for it"}
        parent.add("progress", parentToolUseID="t1", data=data)
    parent.write(logs)
    if ending in ("cut", "replied"):
        child = Log(SESSION, isSidechain=True, agentId="a1")
        child.user("Look for it")
        child.reply(call("Read", "r1"), id="c1", stop="tool_use" if ending == "cut" else "end_turn")
        child.write(logs, f"{SESSION}/subagents/agent-a1.jsonl")
    store.run(logs)
    status, reason = store.one("SELECT status, status_reason FROM agents WHERE parent_agent_id IS NOT NULL")
    assert status == ("done" if ending in ("replied", "result") else "cancelled")
    assert (reason == "the log has no result for it") == (status == "cancelled")
    assert store.one("SELECT status FROM agents WHERE parent_agent_id IS NULL") == "done"


def test_its_log_takes_the_place_of_what_was_told_in_whatever_order_they_come(store, open_store, logs):
    parent = _parent(logs)
    store.run(logs)
    _child(logs)
    store.run(logs)
    at_once, other = open_store("at_once"), open_store("other")
    at_once.run(logs)
    other.run(logs / SESSION)
    other.run(logs / f"{parent.session}.jsonl")
    found = store.all(ROW)
    assert found[0][:5] == ("done", 3_525, 1.0, 1, 2)
    assert found[0][5] is None
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (2, 24)
    assert at_once.all(ROW) == other.all(ROW) == found


def test_what_the_call_told_is_seen_where_the_session_is_looked_at_and_added_to_nothing(
    store, logs, tmp_path
):
    _parent(logs)
    store.run(logs)
    told = "its own log is not here; its call reported 3,525 tokens of context, 20.3 s and 3 tool calls"
    assert store.all(ROW) == [("done", 3_525, 20.281, 0, 0, told)]
    took = store.one("SELECT ended_at - started_at FROM agents WHERE parent_agent_id IS NOT NULL")
    assert took >= 20.28, "it began before the result that is known of it"
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (1, 10)
    _, texts = _seen(store, tmp_path)
    assert [text.replace("\\", "").count(told) for text in texts[:3]] == [1, 1, 1]
