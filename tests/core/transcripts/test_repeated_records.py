"""Records that stand in more than one place: resumed sessions, forks, doubles. Each counts once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Log, Store, imported, text, work
from tests.core.transcripts.test_importing import OTHER

from watchkeeper.store.imports import call_digest


def test_a_message_that_was_changed_under_its_id_is_kept_as_a_revision(store: Store, logs: Path) -> None:
    log, path = imported(store, logs, work())
    before = store.all("SELECT agent_id, seq, content FROM messages ORDER BY agent_id, seq")
    log.records[0]["message"]["content"] = "Mend the other cache, please"
    log.write(logs)
    report = store.run(path)
    assert (report.changed, "1 record changed (kept as new revisions)" in report.line()) == (1, True)
    assert store.all("SELECT agent_id, seq, content FROM messages ORDER BY agent_id, seq") == before
    source, record = f"claude-code:{log.session}", log.records[0]["uuid"]
    revisions = store.all(
        "SELECT source, record_id, revision, seq, json_extract(content, '$.content') FROM"
        " transcript_revisions"
    )
    assert revisions == [(source, record, 2, 1, "Mend the other cache, please")]
    for title in ("One", "Two"):
        log.records = [{"type": "summary", "summary": title}, *log.records]
        log.write(logs)
        assert store.run(path).changed == 0
    assert store.all("SELECT agent_id, seq, content FROM messages ORDER BY agent_id, seq") == before
    assert store.counts()["transcript_revisions"] == 1


def test_a_resumed_session_that_repeats_its_parents_records_counts_only_what_is_new(store, logs):
    first = work()
    second = Log(OTHER)
    second.records = [record | {"sessionId": OTHER} for record in first.records]
    second._second, second.last = first._second, first.last
    second.user("Carry on")
    second.reply(text("Yes."), id="msg_new", output=7)
    os.utime(first.write(logs), (1, 1))
    second.write(logs)
    store.run(logs)
    rows = store.all(
        "SELECT source, output_tokens, model_calls, (SELECT count(*) FROM tool_calls t WHERE t.session_id ="
        " s.id), forked_from IS NOT NULL FROM sessions s ORDER BY source"
    )
    assert rows == [(f"claude-code:{first.session}", 120, 6, 6, 0), (f"claude-code:{OTHER}", 7, 1, 0, 1)]
    parent = store.one("SELECT id FROM sessions WHERE forked_from IS NULL")
    assert store.one("SELECT forked_from, forked_at_seq FROM sessions WHERE forked_from IS NOT NULL") == (
        parent,
        19,
    )
    # What it repeats is in its context all the same: 19 messages, and its own two.
    found = store.one(
        "SELECT last_seq FROM agents a JOIN sessions s ON s.id = a.session_id WHERE s.forked_from IS NOT NULL"
    )
    assert found == 21
    before = store.counts()
    second.user("Again", uuid="again")
    second.write(logs)
    store.run(logs)
    assert store.counts()["messages"] == before["messages"] + 1


def test_a_fork_in_another_import_is_known_as_one(store: Store, logs: Path) -> None:
    first = work()
    store.run(first.write(logs))
    second = Log(OTHER)
    second.records = [record | {"sessionId": OTHER} for record in first.records]
    store.run(second.write(logs))
    assert store.all("SELECT output_tokens FROM sessions ORDER BY source") == [(120,), (0,)]


def test_a_line_that_stands_twice_counts_once(store: Store, logs: Path) -> None:
    """Public reports: Claude Code writes records of a resumed session again, under their ids and times."""
    log = work()
    path = log.write(logs)
    path.write_bytes(b"".join(line + b"\n" + line + b"\n" for line in log.lines))
    report = store.run(path)
    assert report.skipped["repeats a stored record"] == len(log.lines) - 6
    assert report.lines == 2 * len(log.lines)
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (6, 120)
    assert store.counts()["tool_calls"] == 6


def test_sessions_of_two_folders_with_one_id_are_one(store: Store, logs: Path) -> None:
    """A session that was moved to another project's folder repeats its records there."""
    work().write(logs / "a")
    work().write(logs / "b")
    store.run(logs)
    assert store.counts()["sessions"] == 1
    assert store.one("SELECT output_tokens FROM sessions") == 120


def test_what_a_helper_is_given_of_its_agents_context_is_no_second_message(store: Store, logs: Path) -> None:
    log = work()
    thought = {"type": "thinking", "thinking": "It must be the cache.", "signature": "x"}
    log.records[1]["message"]["content"].append(thought)
    log.write(logs)
    helper = Log(isSidechain=True, agentId="acompact-0123456789abcdef")
    helper.records = json.loads(
        json.dumps(
            [
                record | {"isSidechain": True, "agentId": "acompact-0123456789abcdef"}
                for record in log.records[:8]
            ]
        )
    )
    helper.records[1]["message"]["content"].remove(thought)
    helper.user("Sum it up", uuid="sum-up")
    helper.reply(text("Half of it."), id="m-sum")
    helper.write(logs, f"{log.session}/subagents/agent-acompact-0123456789abcdef.jsonl")
    store.run(logs)
    helpers = store.all(
        "SELECT name, role, last_seq, model_calls FROM agents WHERE parent_agent_id IS NOT NULL"
    )
    assert helpers == [("compaction", "helper", 2, 1)]
    assert store.one("SELECT count(*) FROM tool_calls") == 6


@pytest.mark.parametrize("imports", [1, 2])
def test_what_a_resumed_log_says_again_under_new_ids_counts_once(store, logs, imports):
    log = work(turns=3)
    path = log.write(logs)
    if imports == 2:
        store.run(path)
    again = json.loads(
        json.dumps([record for record in log.records[1:] if record["type"] in ("user", "assistant")])
    )
    for place, record in enumerate(again):
        log.records.append(record | {"uuid": f"again-{place}", "version": "2.1.101"})
    log.last = "again-0"
    log.user("Carry on")
    log.write(logs)
    report = store.run(path)
    assert report.skipped.total() == len(again)
    assert (store.counts()["tool_calls"], store.counts()["messages"]) == (3, 11)
    assert store.one("SELECT output_tokens FROM sessions") == 60


def test_a_log_that_was_cut_and_grew_to_what_it_was_keeps_nothing_twice(store: Store, logs: Path) -> None:
    path = work().write(logs)
    store.run(path)
    before, whole = store.counts(), path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for kept in (len(lines) // 2, len(lines) // 2 + 3, 2, len(lines) - 1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        store.run(path)
    assert store.counts() == before
    mode = {"type": "mode", "mode": "another", "sessionId": "s"}
    for _ in range(2):
        with path.open("a") as file:
            file.write(json.dumps(mode) + "\n")
        store.run(path)
    assert store.counts()["raw_records"] == before["raw_records"] + 2


@pytest.mark.parametrize("apart", [False, True], ids=["in one import", "in two"])
def test_two_calls_whose_keys_have_one_digest_are_two(store: Store, logs: Path, apart: bool) -> None:
    one, other = "req_68179:msg_68179", "req_109621:msg_109621"
    assert call_digest(one) == call_digest(other)
    log = Log()
    log.user("go")
    log.reply(text("a"), id="msg_68179", request="req_68179", output=5)
    path = log.write(logs)
    if apart:
        store.run(path)
    log.reply(text("b"), id="msg_109621", request="req_109621", output=7)
    log.reply(text("c"), id="msg_68179", request="req_68179", output=6)
    log.write(logs)
    store.run(path)
    log.reply(text("d"), id="msg_109621", request="req_109621", output=8)
    log.reply(text("e"), id="msg_68179", request="req_68179", output=9)
    log.write(logs)
    store.run(path)
    assert store.all("SELECT request_id, output_tokens FROM model_calls ORDER BY id") == [
        (one, 9),
        (other, 8),
    ]
