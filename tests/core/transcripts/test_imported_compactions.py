"""Compactions of imported sessions: what was dropped and what stands there, as the screen asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Log, Store, call, text

from watchkeeper.records.messages import View
from watchkeeper.store import database
from watchkeeper.store.agent_snapshot import CompactionDetail, compaction_detail


def _detail(store: Store, number: int) -> CompactionDetail:
    connection = database.open_readonly(store.path)
    try:
        found = compaction_detail(connection, number)
    finally:
        connection.close()
    assert found is not None
    return found


def twice_compacted() -> Log:
    log = Log()
    log.user("Mend /srv/cache.py")
    log.reply(text("On it."), id="msg_1", read=140_000)
    log.boundary(150_000)
    log.summary("They mend the cache.")
    log.reply(text("Going on."), id="msg_2", read=40_000, write=2_000)
    log.user("and the docs")
    log.boundary(160_000, postTokens=30_000)
    log.summary("They mend the cache and the docs.")
    log.user("thanks")
    return log


def test_a_compaction_shows_what_it_dropped_and_what_stands_there_and_every_message_is_covered_or_verbatim(
    store, logs
):
    store.run(twice_compacted().write(logs))
    first, second = _detail(store, 1), _detail(store, 2)
    assert (first.first, first.last, first.facts.messages_removed) == (1, 2, 2)
    assert "/srv/cache.py" in first.messages[0].content
    assert [_texts(view) for view in (first.before, first.after)] == [[], ["They mend the cache."]]
    assert (second.first, second.last) == (3, 4)
    whole = ["They mend the cache and the docs."]
    assert [_texts(view) for view in (second.before, second.after)] == [["They mend the cache."], whole]
    assert second.after is not None
    assert second.after.verbatim_from == 5
    # 3 + 40,000 read + 2,000 written in the next prompt; then as the log says.
    assert store.all("SELECT tokens_before, tokens_after, trigger, status FROM compactions ORDER BY id") == [
        (150_000, 42_003, "auto", "applied"), (160_000, 30_000, "auto", "applied"),
    ]  # fmt: skip
    assert store.one("SELECT compactions FROM agents") == 2
    # The summary is no message.
    assert store.counts()["messages"] == 5
    current = "SELECT v.observations, v.verbatim_from FROM views v JOIN agents a ON a.id = v.agent_id AND a.view_version = v.version"
    assert store.one(current) == ("[2]", 5)
    covers = "SELECT first_seq, last_seq, replaces, citations FROM observations WHERE id = 2"
    assert store.one(covers) == (1, 4, "[1]", "[3,4]")


def _texts(view: View | None) -> list[str]:
    return [] if view is None else [each.text for each in view.observations]


def test_messages_that_a_partial_compaction_kept_stay_verbatim(store: Store, logs: Path) -> None:
    log = Log()
    log.user("one")
    log.user("two", uuid="kept")
    log.user("three")
    log.boundary(150_000, preservedSegment={"headUuid": "kept", "anchorUuid": "x", "tailUuid": "y"})
    log.summary("One.")
    log.user("four")
    store.run(log.write(logs))
    detail = _detail(store, 1)
    assert (detail.first, detail.last) == (1, 1)
    assert detail.after is not None
    assert detail.after.verbatim_from == 2


def test_a_microcompaction_shows_which_results_were_emptied(store: Store, logs: Path) -> None:
    log = Log()
    for number in (1, 2):
        log.reply(call("Bash", f"t{number}"), id=f"msg_{number}")
        log.result(f"t{number}", "long " * 100)
    microcompact_metadata = {
        "trigger": "auto",
        "preTokens": 90_000,
        "tokensSaved": 20_000,
        "compactedToolIds": ["t1"],
    }
    log.add("system", subtype="microcompact_boundary", microcompactMetadata=microcompact_metadata)
    log.reply(text("x"), id="msg_3")
    store.run(log.write(logs))
    detail = _detail(store, 1)
    assert (
        detail.facts.trigger,
        detail.facts.tokens_before,
        detail.facts.tokens_after,
        detail.facts.messages_removed,
    ) == ("micro", 90_000, 70_000, 0)
    assert detail.count == 0
    assert detail.after is not None
    assert detail.after.elided == (2,)
    assert json.loads(store.one("SELECT elided FROM views WHERE version = 2"))[0][3].endswith("/2")


def test_a_summary_whose_boundary_was_lost_still_stands_for_what_came_before(store, logs):
    log = twice_compacted()
    del log.records[2]
    store.run(log.write(logs))
    assert store.one("SELECT text FROM observations WHERE id = 1") == "They mend the cache."
    assert store.one("SELECT trigger FROM compactions WHERE id = 1") == "unknown"


def test_a_compaction_by_the_provider_drops_what_came_before_the_reply(store: Store, logs: Path) -> None:
    log = Log()
    log.user("Mend /srv/cache.py")
    log.reply(text("On it."), id="msg_1", read=140_000)
    log.user("and the docs")
    log.reply(
        {"type": "compaction", "content": "They mend the cache."}, text("Going on."), id="msg_2", read=9_000
    )
    log.user("thanks")
    log.reply({"type": "compaction", "content": None}, text("Done."), id="msg_3", read=9_000)
    store.run(log.write(logs))
    detail = _detail(store, 1)
    assert (detail.first, detail.last, detail.facts.trigger) == (1, 3, "server")
    assert detail.after is not None
    assert [each.text for each in detail.after.observations] == ["They mend the cache."]
    assert detail.after.verbatim_from == 4
    assert store.one("SELECT compactions FROM agents") == 1, "one that failed drops nothing"
    assert store.counts()["messages"] == 6


@pytest.mark.parametrize(("before", "window"), [(150_000, 200_000), (600_000, 1_000_000)])
def test_a_session_that_compacts_by_itself_below_the_standard_window_has_that_window(
    store, logs, before, window
):
    """Recorded: a session of claude-opus-4-6 compacted at 156,000 to 160,000; its price data say a million."""
    log = Log()
    log.user("Mend /srv/cache.py")
    log.reply(text("On it."), id="msg_1", read=before - 1_000)
    log.boundary(before)
    log.summary("They mend the cache.")
    log.reply(text("Going on."), id="msg_2", read=40_000)
    store.run(log.write(logs), windows=lambda model: 1_000_000)
    assert store.one("SELECT context_limit FROM agents") == window
    log.user("and the docs")
    log.reply(text("Going on."), id="msg_3", read=41_000)
    store.run(log.write(logs), windows=lambda model: 1_000_000)
    assert store.one("SELECT context_limit FROM agents") == window
