"""Logs of pi and OpenClaw: a tree of entries, compactions, usage with its cost, and agents inside tool results."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.models.registry import logged_price
from watchkeeper.transcripts.importer import Report
from watchkeeper.transcripts.pi import PROGRAM, PiReader
from watchkeeper.transcripts.records import Rewind

FOLDER = (
    Path(os.environ.get("WATCHKEEPER_TRANSCRIPTS") or Path(__file__).parents[4] / "shared" / "transcripts")
    / "pi"
)
TOKENS = ("input", "output", "cacheRead", "cacheWrite")


class PiLog:
    """Entries of one log, each after the one before unless `parent` says otherwise."""

    def __init__(self, session: str = "11111111-2222-4333-8444-555555555555", **header: Any) -> None:
        self.lines: list[dict[str, Any]] = [
            {"type": "session", "version": 3, "id": session, "timestamp": "2026-02-03T04:00:00.000Z", "cwd": "/srv/work"} | header
        ]  # fmt: skip
        self.last: str | None = None

    def add(self, kind: str, **about: Any) -> str:
        number = len(self.lines)
        name, parent = about.pop("id", f"e{number:07x}"), about.pop("parent", self.last)
        entry = {
            "type": kind,
            "id": name,
            "parentId": parent,
            "timestamp": f"2026-02-03T04:{number:02d}:00.000Z",
        }
        self.lines.append(entry | about)
        self.last = name
        return str(name)

    def say(self, role: str, content: Any, *, parent: Any = ..., **about: Any) -> str:
        where = {} if parent is ... else {"parent": parent}
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        message = {"role": role, "content": blocks, "timestamp": 1_770_091_200_000 + len(self.lines) * 1000}
        return self.add("message", message=message | about, **where)

    def reply(self, *blocks: dict[str, Any], usage: tuple[int, int, int, int] = (10, 5, 0, 0), cost: float = 0.5, **about: Any) -> str:  # fmt: skip
        counts = dict(zip(TOKENS, usage, strict=True)) | {"totalTokens": sum(usage), "cost": {"total": cost}}
        head = {"provider": "anthropic", "model": "claude-sonnet-4-5", "usage": counts, "stopReason": "stop"}
        return self.say("assistant", list(blocks), **head | about)

    def write(self, folder: Path) -> Path:
        path = folder / f"2026-02-03T04-00-00-000Z_{self.lines[0]['id']}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return path


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(name: str, id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": id, "name": name, "arguments": arguments}


def imported(store: Store, path: Path) -> Report:
    return store.run(path, pricing=logged_price)


def totals(store: Store) -> tuple[Any, ...]:
    return store.all(
        "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens),"
        " round(sum(cost_usd), 6), sum(cost_usd IS NULL) FROM model_calls"
    )[0]


def test_a_small_log_has_the_totals_that_were_counted_by_hand(store: Store, tmp_path: Path) -> None:
    log = PiLog()
    log.add("model_change", provider="anthropic", modelId="claude-sonnet-4-5")
    log.say("user", "Mend the gate")
    log.reply(
        text("I look."), call("bash", "c1", command="ls"), usage=(100, 20, 1_000, 300), stopReason="toolUse"
    )
    log.say("toolResult", "gate.py", toolCallId="c1", toolName="bash", isError=False)
    log.reply(call("read", "c2", path="x"), usage=(50, 10, 1_300, 0), cost=0, stopReason="toolUse")
    log.say("toolResult", "no such file", toolCallId="c2", toolName="read", isError=True)
    log.reply(usage=(0, 0, 0, 0), stopReason="aborted", errorMessage="Request was aborted")
    log.add("session_info", name="The gate")
    log.add("thinking_level_change", thinkingLevel="high")
    report = imported(store, log.write(tmp_path))
    assert sum(report.raw.values()) == 1
    assert totals(store)[:5] == (2, 150, 30, 2_300, 300)
    # The first call's cost is the program's; the second one's is unknown to it, and comes from the price list.
    costs = store.all("SELECT cost_usd FROM model_calls ORDER BY id")
    assert costs[0][0] == 0.5
    assert 0 < costs[1][0] < 0.1
    assert store.all("SELECT name, status FROM tool_calls ORDER BY id") == [
        ("bash", "done"),
        ("read", "error"),
    ]
    assert store.all("SELECT origin, goal, title, workspace, model, errors FROM sessions") == [
        ("pi", "Mend the gate", "The gate", "/srv/work", "anthropic/claude-sonnet-4-5", 0)
    ]
    assert ("agent.interrupted",) in store.all("SELECT kind FROM events")


def test_a_compaction_keeps_what_it_names_and_puts_its_summary_in_the_place_of_the_rest(store, tmp_path):
    log = PiLog()
    log.say("user", "one")
    log.reply(text("two"))
    kept = log.say("user", "three")
    log.reply(text("four"))
    log.add("compaction", summary="They said one and two.", firstKeptEntryId=kept, tokensBefore=9_000)
    log.say("user", "five")
    log.reply(text("six"), usage=(700, 5, 0, 0))
    imported(store, log.write(tmp_path))
    assert store.all(
        "SELECT trigger, tokens_before, tokens_after, messages_removed, reason FROM compactions"
    ) == [("unknown", 9_000, 700, 2, "the log does not report its usage")]
    assert store.all("SELECT text FROM observations") == [("They said one and two.",)]


def test_a_compaction_of_the_oldest_logs_counts_lines(store: Store, tmp_path: Path) -> None:
    log = PiLog()
    for word in ("one", "two", "three", "four"):
        log.say("user", word)
    log.add("compaction", summary="s", firstKeptEntryIndex=3, tokensBefore=9)
    for line in log.lines[1:]:
        del line["id"], line["parentId"]
    imported(store, log.write(tmp_path))
    assert store.all("SELECT messages_removed FROM compactions") == [(2,)]


def shown(store: Store) -> list[str]:
    """What the newest context shows of the messages, by their texts."""
    (elided, first), *_ = store.all("SELECT elided, verbatim_from FROM views ORDER BY version DESC LIMIT 1")
    gone = {each[0] for each in json.loads(elided) if not each[4]}
    rows = store.all("SELECT seq, content FROM messages WHERE seq >= ? ORDER BY seq", first)
    return [json.loads(content)[0]["text"] for seq, content in rows if seq not in gone]


def test_a_branch_takes_what_it_leaves_out_of_the_context(store: Store, tmp_path: Path) -> None:
    log = PiLog()
    log.say("user", "start")
    fork = log.reply(text("which way?"))
    log.say("user", "left")
    end_of_left = log.reply(text("left it is"))
    log.say("user", "right", parent=fork)
    log.reply(text("right it is"))
    path = log.write(tmp_path)
    imported(store, path)
    assert shown(store) == ["start", "which way?", "right", "right it is"]
    # And back to the first branch.
    log.say("user", "left after all", parent=end_of_left)
    log.write(tmp_path)
    imported(store, path)
    assert shown(store) == ["start", "which way?", "left", "left it is", "left after all"]
    assert store.all("SELECT count(*) FROM messages") == [(7,)]


def test_a_leaf_moves_the_conversation_and_a_label_after_it_does_not_undo_it_twice(store, tmp_path):
    log = PiLog()
    first = log.say("user", "start")
    log.reply(text("no"))
    log.add("leaf", targetId=first)
    log.add("label", parent=first, targetId=first, label="here")
    log.say("user", "again")
    path = log.write(tmp_path)
    imported(store, path)
    assert shown(store) == ["start", "again"]
    path.write_text(path.read_text() + "\n")
    os.utime(path, (1, 1))
    imported(store, path)
    assert shown(store) == ["start", "again"]


def test_agents_of_a_result_are_below_the_call_that_started_them_with_their_own_usage(store, tmp_path):
    said = {"role": "assistant", "content": [text("Found it.")], "provider": "anthropic", "model": "claude-haiku-4-5",
            "usage": {"input": 7, "output": 3, "cost": {"total": 0.25}}, "stopReason": "stop", "timestamp": 1_770_091_230_000}  # fmt: skip
    results = [
        {"agent": "scout", "task": "Look around", "exitCode": 0, "messages": [said]},
        {"agent": "worker", "task": "Mend it", "exitCode": 1, "messages": [], "stderr": "no key"},
    ]
    log = PiLog()
    log.say("user", "go")
    log.reply(call("subagent", "s1", tasks=[]), stopReason="toolUse")
    log.say("toolResult", "done", toolCallId="s1", toolName="subagent", isError=False, details={"mode": "parallel", "results": results})  # fmt: skip
    imported(store, log.write(tmp_path))
    agents = "SELECT name, current_goal, status, status_reason, model_calls, last_seq FROM agents WHERE parent_agent_id IS NOT NULL ORDER BY name"  # fmt: skip
    assert store.all(agents) == [
        ("scout", "Look around", "done", None, 1, 1),
        ("worker", "Mend it", "failed", "no key", 0, 0),
    ]
    assert totals(store)[:3] == (2, 17, 8)


def test_the_todo_list_is_a_plan(store: Store, tmp_path: Path) -> None:
    log = PiLog()
    log.reply(call("todo", "t1", action="add", text="dig"))
    log.say("toolResult", "added", toolCallId="t1", toolName="todo", isError=False,
            details={"todos": [{"id": 1, "text": "dig", "done": True}, {"id": 2, "text": "fill", "done": False}]})  # fmt: skip
    imported(store, log.write(tmp_path))
    assert store.all("SELECT title, status FROM tasks ORDER BY title") == [
        ("dig", "done"),
        ("fill", "pending"),
    ]


def test_a_fork_repeats_its_parents_messages_and_none_of_their_usage(store: Store, tmp_path: Path) -> None:
    log = PiLog()
    log.say("user", "start")
    log.reply(text("fine"), usage=(40, 4, 0, 0))
    parent = log.write(tmp_path)
    imported(store, parent)
    fork = PiLog("99999999-2222-4333-8444-555555555555", parentSession=str(parent))
    fork.lines += log.lines[1:]
    fork.last = log.last
    fork.say("user", "other")
    fork.reply(text("way"), usage=(60, 6, 0, 0))
    imported(store, fork.write(tmp_path))
    assert totals(store)[:3] == (2, 100, 10)
    assert store.all("SELECT count(*) FROM messages") == [(6,)]
    assert store.all("SELECT count(*) FROM sessions WHERE forked_from IS NOT NULL") == [(1,)]


def test_a_log_without_ids_that_a_newer_version_gave_some_says_nothing_twice(
    store: Store, tmp_path: Path
) -> None:
    log = PiLog()
    log.say("user", "start")
    log.reply(text("fine"))
    given = [dict(line) for line in log.lines]
    for line in log.lines[1:]:
        del line["id"], line["parentId"]
    path = log.write(tmp_path)
    imported(store, path)
    log.lines = given
    log.write(tmp_path)
    imported(store, path)
    assert store.all("SELECT count(*) FROM messages") == [(2,)]
    assert totals(store)[:3] == (1, 10, 5)


def test_a_reader_carries_on_from_its_state_after_every_line() -> None:
    log = PiLog()
    first = log.say("user", "a")
    log.reply(text("b"))
    log.say("user", "c", parent=first)
    log.add("compaction", summary="s", firstKeptEntryId=first, tokensBefore=1)
    whole, parts = PiReader("x"), PiReader("x")
    for number, line in enumerate(log.lines, 1):
        data = json.dumps(line).encode()
        parts = PiReader.restore(json.loads(json.dumps(parts.save())))
        assert parts.feed(number, data) == whole.feed(number, data)
    assert any(type(each) is Rewind for each in PiReader.restore(whole.save()).feed(9, json.dumps(
        {"type": "message", "id": "z", "parentId": first, "message": {"role": "user", "content": "d"}}).encode()))  # fmt: skip


@pytest.mark.parametrize("line", [
    {"type": "message"}, {"type": "message", "message": {"role": "assistant", "content": [1, {"type": "toolCall"}], "usage": []}},
    {"type": "compaction"}, {"type": "compaction", "firstKeptEntryIndex": -5}, {"type": "leaf", "targetId": 3}, {"type": 5},
    {"type": "message", "id": 7, "parentId": [], "message": {"role": "toolResult", "toolName": "subagent", "details": {"results": [4]}}},
    {"type": "branch_summary"}, {"type": "session"}, {"type": "model_change"}, {"type": "session_info"}, {},
])  # fmt: skip
def test_no_line_stops_the_reader(line: dict[str, Any]) -> None:
    reader = PiReader("x")
    assert reader.feed(1, json.dumps(line).encode())
    assert reader.feed(2, b"{broken")
    assert reader.feed(3, b"")


def test_the_logs_of_openclaw_are_found_and_its_traces_are_not(tmp_path: Path) -> None:
    places = PROGRAM.places({"OPENCLAW_STATE_DIR": "/srv/claw"}, tmp_path)
    assert places == [tmp_path / ".pi/agent/sessions", Path("/srv/claw/agents")]
    assert not PROGRAM.may_be_log(Path("a.trajectory.jsonl"))


@pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason=f"no recorded logs in {FOLDER}; name their folder with WATCHKEEPER_TRANSCRIPTS",
)
def test_recorded_logs_have_the_totals_of_an_independent_count(store: Store) -> None:
    for path in sorted(FOLDER.glob("*.jsonl")):
        expected: Counter[str] = Counter()
        for line in map(json.loads, path.read_text().splitlines()):
            message = line.get("message", {})
            usage = message.get("usage") or {}
            expected.update(
                {name: usage.get(name, 0) for name in TOKENS}
                | {"calls": any(usage.get(name) for name in TOKENS)}
            )
            expected["cost"] += usage.get("cost", {}).get("total", 0)
            expected["tools"] += sum(
                each["type"] == "toolCall" for each in message.get("content") or () if isinstance(each, dict)
            )
            expected["compactions"] += line["type"] == "compaction"
        before = totals(store)
        counts = store.all("SELECT (SELECT count(*) FROM tool_calls), (SELECT count(*) FROM compactions)")[0]
        imported(store, path)
        after = totals(store)
        found = [(new or 0) - (old or 0) for new, old in zip(after, before, strict=True)]
        assert found[:5] == [expected[name] for name in ("calls", *TOKENS)], path.name
        assert found[5] == pytest.approx(expected["cost"]), path.name
        now = store.all("SELECT (SELECT count(*) FROM tool_calls), (SELECT count(*) FROM compactions)")[0]
        assert (now[0] - counts[0], now[1] - counts[1]) == (expected["tools"], expected["compactions"]), (
            path.name
        )
