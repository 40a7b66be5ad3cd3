"""A sub-agent whose own log is not here: what its call told of it stands for it, until its log comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner
from tests.core.transcripts.conftest import SESSION, Log, Store, call, text

from watchkeeper.cli.exporting import export
from watchkeeper.cli.looking import show

ROW = "SELECT status, context_tokens, active_seconds, model_calls, last_seq, status_reason FROM agents WHERE parent_agent_id IS NOT NULL"
USAGE = {"input_tokens": 6, "cache_creation_input_tokens": 250, "cache_read_input_tokens": 3_255, "output_tokens": 14}


def _parent(logs: Path) -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(call("Task", "t1", prompt="Look for it", description="Look", subagent_type="Explore"), id="m1", stop="tool_use")
    told = {
        "status": "completed",
        "agentId": "a1",
        "totalTokens": 3_525,
        "totalDurationMs": 20_281,
        "totalToolUseCount": 3,
        "usage": USAGE,
    }
    log.result("t1", "Found.", toolUseResult=told)
    log.write(logs)
    return log


def _child(logs: Path) -> None:
    child = Log(SESSION, isSidechain=True, agentId="a1")
    child.user("Look for it")
    child.reply(text("Found."), id="c1", input=6, write=250, read=3_255, output=14)
    child.write(logs, f"{SESSION}/subagents/agent-a1.jsonl")


def test_what_the_call_told_is_shown_and_added_to_nothing(store: Store, logs: Path) -> None:
    _parent(logs)
    store.run(logs)
    status, context, seconds, calls, messages, reason = store.all(ROW)[0]
    assert (status, context, seconds, calls, messages) == ("done", 3_525, 20.281, 0, 0)
    assert reason == "its own log is not here; 3,525 tokens of context, 20.3 s and 3 tool calls are what its call told"
    assert tuple(store.one("SELECT model_calls, output_tokens FROM sessions")) == (1, 10)


def test_its_log_takes_the_place_of_what_was_told_in_whatever_order_they_come(
    store: Store, open_store: Callable[[str], Store], logs: Path
) -> None:
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
    assert tuple(store.one("SELECT model_calls, output_tokens FROM sessions")) == (2, 24)
    assert at_once.all(ROW) == other.all(ROW) == found


def test_what_its_call_told_is_seen_where_the_session_is_looked_at(store: Store, logs: Path, tmp_path: Path) -> None:
    _parent(logs)
    store.run(logs)
    told = "its own log is not here; 3,525 tokens of context, 20.3 s and 3 tool calls are what its call told"
    shown = CliRunner().invoke(show, ["last", "--db", str(store.path)])
    assert (shown.exit_code, shown.output.count(told)) == (0, 1)
    for form in ("md", "html"):
        file = tmp_path / f"session.{form}"
        written = CliRunner().invoke(export, ["last", "--db", str(store.path), "--format", form, "--output", str(file)])
        assert (written.exit_code, file.read_text().replace("\\", "").count(told)) == (0, 1)
