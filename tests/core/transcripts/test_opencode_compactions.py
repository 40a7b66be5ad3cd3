"""What compactions of OpenCode drop, keep and empty."""

from __future__ import annotations

import json
from pathlib import Path

from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import compacted, simple


def test_a_compaction_drops_what_came_before_its_summary_and_tells_its_sizes(store, logs):
    book, session = simple()
    answer = book.assistant(session)
    book.part(answer, "text", text="Half done.")
    book.step(answer, 1_000, 50, read=149_000)
    compacted(book, session)
    after = book.assistant(session)
    book.part(after, "text", text="Done.")
    book.step(after, 2_000, 30, read=1_000)
    store.run(book.database(logs))
    assert store.all(
        "SELECT trigger, tokens_before, tokens_after, messages_removed, high_water FROM compactions"
    ) == [("auto", 150_050, 3_000, 2, 2)]
    assert store.one("SELECT text FROM observations") == "So far: half."
    assert store.counts()["messages"] == 3
    assert store.one("SELECT output_tokens FROM sessions") == 50 + 900 + 30


def test_a_compaction_keeps_the_messages_from_its_tail_on(store: Store, logs: Path) -> None:
    book, session = simple()
    tail = book.user(session, "And the tests")
    compacted(book, session, tail=tail, auto=False)
    store.run(book.database(logs))
    assert store.all("SELECT trigger, messages_removed, high_water FROM compactions") == [("manual", 1, 1)]
    assert store.one("SELECT verbatim_from FROM views ORDER BY version DESC") == 2


def test_a_summary_that_failed_compacted_nothing(store: Store, logs: Path) -> None:
    book, session = simple()
    asked = book.user(session)
    book.part(asked, "compaction", auto=True)
    book.assistant(
        session, summary=True, parentID=asked, error={"name": "APIError", "data": {"message": "Overloaded"}}
    )
    store.run(book.database(logs))
    assert store.counts()["compactions"] == 0
    rows = store.one("SELECT json_extract(data, '$.error') FROM events WHERE kind = 'model.error'")
    assert rows == "Overloaded"


def test_emptied_tool_results_are_one_compaction_that_elides_them(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session)
    for call in ("c1", "c2", "c3"):
        book.tool(answer, call)
    path = book.database(logs)
    store.run(path)
    for part in [name for name, about in book.parts.items() if about.get("callID") in ("c1", "c2")]:
        book.parts[part]["state"]["time"]["compacted"] = book.now
        book.touch(part)
    book.user(session, "Go on")
    book.database(logs)
    store.run(path)
    rows = store.all("SELECT trigger, reason, messages_removed FROM compactions")
    assert rows == [("prune", "2 tool results cleared", 0)]
    assert [each[0] for each in json.loads(store.one("SELECT elided FROM views ORDER BY version DESC"))] == [
        3,
        5,
    ]
    book.touch(session)
    book.database(logs)
    store.run(path)
    assert store.counts()["compactions"] == 1
    assert store.counts()["messages"] == 8
