"""What began a compaction of Codex's: a person who asked for it has a turn with nothing else in it."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.core.transcripts.codex_rollout import Rollout

from watchkeeper.store import database
from watchkeeper.store.imports import partial_reason, totals_gaps

TRIGGERS = "SELECT trigger FROM compactions ORDER BY id"


def _compacts(log: Rollout) -> Rollout:
    log.add("compacted", {"message": "All of it.", "replacement_history": []})
    return log.event("token_count", info={"last_token_usage": {"total_tokens": 9}}).event("context_compacted")


def _turn(log: Rollout, text: str) -> Rollout:
    return (
        log.event("task_started", turn_id=text)
        .user(text)
        .says("a")
        .tokens(100, 0, 5)
        .event("task_complete", turn_id=text)
    )


def compacted_by_hand() -> Rollout:
    log = _turn(Rollout(), "one").event("task_started", turn_id="two")
    return _turn(_compacts(log).event("task_complete", turn_id="two"), "three")


def _before_a_turn() -> Rollout:
    log = _compacts(_turn(Rollout(), "one").event("task_started", turn_id="two"))
    return log.user("two").says("b").tokens(50, 0, 5).event("task_complete", turn_id="two")


def _within_a_turn() -> Rollout:
    log = _compacts(
        Rollout().event("task_started", turn_id="one").user("one").call("c1").output("c1").tokens(99, 0, 5)
    )
    return log.says("b").event("task_complete", turn_id="one")


@pytest.mark.parametrize(
    ("log", "trigger"), [(compacted_by_hand, "manual"), (_before_a_turn, "auto"), (_within_a_turn, "auto")]
)
def test_a_compaction_that_has_a_turn_to_itself_was_asked_for(store, logs, log, trigger):
    path = log().write(logs)
    store.run(path)
    assert store.all(TRIGGERS) == [(trigger,)]
    assert store.one("SELECT count(*) FROM views") == 2
    before = store.counts()
    path.write_bytes(path.read_bytes().replace(b'"source": "cli"', b'"source": "vsc"'))
    store.run(path)
    assert (store.all(TRIGGERS), store.counts()) == ([(trigger,)], before)


def _counted_before(log: Rollout) -> Rollout:
    return log.tokens(90, 0, 9)


def _recorded(log: Rollout) -> Rollout:
    usage = {"input_tokens": 90, "output_tokens": 9}
    return log.add("token_usage_record", {"thread_id": log.thread, "response_id": "resp_1", "usage": usage})


@pytest.mark.parametrize(
    ("before", "unlogged", "calls"),
    [(lambda log: log, 1, 1), (_counted_before, 0, 2), (_recorded, 0, 2)],
    ids=["not logged, as by 0.147", "counted before, as by local compactions", "recorded, as from 0.153"],
)
def test_a_compaction_that_no_count_covers_makes_the_total_a_lower_bound(
    store, logs, before, unlogged, calls
):
    log = _turn(Rollout(), "one").event("task_started", turn_id="two")
    store.run(_compacts(before(log)).event("task_complete", turn_id="two").write(logs))
    session_id = store.one("SELECT id FROM sessions")
    with closing(database.open_readonly(store.path)) as connection:
        gaps = totals_gaps(connection, session_id)
    assert gaps == (0, unlogged)
    assert store.one("SELECT model_calls FROM sessions") == calls
    reason = "partial: 1 model call not counted in the log; tokens and cost are lower bounds"
    assert partial_reason(*gaps) == (reason if unlogged else "")
