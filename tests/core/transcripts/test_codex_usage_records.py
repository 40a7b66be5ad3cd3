"""Codex 0.153 and later record each response's usage: the records count, and their repetitions do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.transcripts.codex_rollout import (
    CHILD,
    ROOT,
    Rollout,
    answered,
    compacted_by,
    spawned,
    usage_record,
)
from tests.core.transcripts.conftest import Store

CALLS = "SELECT input_tokens, cache_read_tokens, output_tokens, price_status, stop_reason FROM model_calls ORDER BY id"


def test_a_response_counts_once_by_itsusage_record(store: Store, logs: Path) -> None:
    log = Rollout().event("task_started", turn_id="t").user("go").says("a")
    answered(log, "r1", 1_000, 600, 50).tokens(1_000, 600, 50, again=True)
    log.call("c1").output("c1").says("b")
    answered(log, "r2", 1_200, 1_000, 20).event("task_complete", turn_id="t")
    path = log.write(logs)
    store.run(path)
    assert store.all(CALLS) == [(400, 600, 50, "exact", None), (200, 1_000, 20, "exact", "end_turn")]
    assert store.one("SELECT turn FROM agents") == 2
    assert store.one("SELECT context_tokens FROM agents") == 1_220


def test_what_a_compaction_itself_used_counts_and_tells_the_size_before(store: Store, logs: Path) -> None:
    log = Rollout().user("go").says("a")
    answered(log, "r1", 1_000, 600, 50)
    record = usage_record("sum", 1_060, 1_000, 90)
    log.add("token_usage_record", record).add(
        "compacted", compacted_by("sum", latest_token_usage_record=record)
    )
    log.event("token_count", info={"total_token_usage": {"input_tokens": 900, "output_tokens": 50},
                                   "last_token_usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 200}})  # fmt: skip
    log.user("on").says("b")
    answered(log, "r2", 210, 0, 7)
    store.run(log.write(logs))
    assert [row[2] for row in store.all(CALLS)] == [50, 90, 7]
    assert store.all("SELECT tokens_before, tokens_after FROM compactions") == [(1_060, 210)]


def test_the_record_that_a_compaction_repeats_counts_where_its_own_line_is_lost(store, logs):
    log = Rollout().user("go").says("a")
    log.add("compacted", compacted_by("other", latest_token_usage_record=usage_record("r1", 1_000, 600, 50)))
    store.run(log.write(logs))
    assert [row[:3] for row in store.all(CALLS)] == [(400, 600, 50)]


def test_records_and_counts_of_another_thread_are_not_this_ones(store: Store, logs: Path) -> None:
    """A reviewer's log begins with an earlier reviewer's compaction, its record, and a count of it."""
    earlier = "019a0000-0a00-7000-8000-00000000000b"
    log = Rollout(CHILD, source={"subagent": {"other": "guardian"}}, thread_source="guardian_review")
    log.add(
        "compacted",
        compacted_by("old", latest_token_usage_record=usage_record("old", 5_000, 0, 500, earlier)),
    )
    log.tokens(5_000, 0, 500).add("token_usage_record", usage_record("old", 5_000, 0, 500, earlier))
    log.user("May it?").says("Yes.")
    answered(log, "r1", 300, 0, 3, CHILD)
    store.run(log.write(logs))
    assert [row[2] for row in store.all(CALLS)] == [3]


def test_responses_without_a_record_of_an_older_version_in_between_count_by_their_counts(store, logs):
    log = Rollout().user("go").says("a").tokens(500, 0, 5).user("newer").says("b")
    answered(log, "r1", 1_000, 600, 50).user("older again").says("c").tokens(1_100, 900, 6)
    store.run(log.write(logs))
    assert [row[2] for row in store.all(CALLS)] == [5, 50, 6]


def test_a_spawned_threads_first_record_ends_what_it_copied(store: Store, logs: Path) -> None:
    log = Rollout(CHILD, minute=1, **spawned(ROOT, forked_from_id=ROOT))
    began = log.lines[0]["timestamp"]
    log.lines.append(
        {"timestamp": began, "type": "session_meta", "payload": {"id": ROOT, "timestamp": began}}
    )
    log.says("Of the other.")
    log.lines[-1]["timestamp"] = began
    log.add("token_usage_record", usage_record("old", 9, 0, 9), wait=0)
    answered(log.user("Look"), "r1", 300, 0, 3, CHILD).says("Found.")
    store.run(log.write(logs))
    assert [row[2] for row in store.all(CALLS)] == [3]


@pytest.mark.parametrize(
    "usage", [None, 7, {}, {"input_tokens": "many"}, {"input_tokens": 0, "output_tokens": 0}]
)
def test_a_record_that_tells_no_usage_is_kept_raw_and_the_count_stands(store, logs, usage):
    log = (
        Rollout()
        .user("go")
        .says("a")
        .add("token_usage_record", {"thread_id": ROOT, "response_id": "r", "usage": usage})
    )
    report = store.run(log.tokens(1_000, 600, 50).write(logs))
    assert [row[2] for row in store.all(CALLS)] == [50]
    assert ("token_usage_record", "no usage data") in {tuple(each) for each in report.raw}
