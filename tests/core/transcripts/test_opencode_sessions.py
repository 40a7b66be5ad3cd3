"""What OpenCode's sessions become, with totals computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import BEGAN, Book, family, simple

from watchkeeper.models.registry import logged_price
from watchkeeper.transcripts.importer import Importer


def test_a_session_has_its_folder_goal_title_and_model(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session)
    book.part(answer, "step-start")
    book.part(answer, "reasoning", text="Hm.", metadata={"anthropic": {"signature": "c2ln"}})
    book.part(answer, "text", text="Done.")
    book.step(answer, 10, 5)
    report = store.run(book.database(logs))
    row = store.one("SELECT goal, title, workspace, origin, source, model FROM sessions")
    assert tuple(row) == (
        "Mend the cache", "Cache mended", "/home/somebody/project", "opencode", f"opencode:{session}", "anthropic/claude-opus-4-6",
    )  # fmt: skip
    assert [
        (row[0], json.loads(row[1])) for row in store.all("SELECT role, content FROM messages ORDER BY seq")
    ] == [
        ("user", [{"type": "text", "text": "Mend the cache"}]),
        ("assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]),
        ("assistant", [{"type": "text", "text": "Done."}]),
    ]
    assert report.read + report.raw.total() + report.skipped.total() == book.records


def test_steps_are_model_calls_with_reasoning_as_output(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(
        session, tokens={"input": 7, "output": 7, "reasoning": 0, "cache": {"read": 7, "write": 7}}
    )
    book.step(answer, 100, 20, reasoning=5, read=1_000, write=30)
    book.step(answer, 10, 2, read=2_000)
    store.run(book.database(logs))
    # 100 + 25 + 30 + 1000 / 10 = 255 and 10 + 2 + 2000 / 10 = 212 at a dollar a token; the message's own
    # figures repeat them.
    assert store.all(
        "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, price_status"
        " FROM model_calls"
    ) == [(100, 25, 1_000, 30, 255.0, "exact"), (10, 2, 2_000, 0, 212.0, "exact")]
    assert store.one("SELECT model_calls, cost_usd FROM sessions") == (2, 467.0)


def test_a_message_without_steps_is_one_call(store: Store, logs: Path) -> None:
    book, session = simple()
    tokens = {"input": 50, "output": 6, "reasoning": 4, "total": 56, "cache": {"read": 0, "write": 0}}
    book.assistant(session, tokens=tokens)
    store.run(book.database(logs))
    assert store.all("SELECT input_tokens, output_tokens FROM model_calls") == [
        (50, 6)
    ]  # the sum says: 4 of the 6


def test_a_cost_that_was_logged_is_taken_and_none_is_never_nothing(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session, providerID="opencode", modelID="big-pickle")
    book.step(answer, 1_000_000, 0, cost=0.25)
    book.step(answer, 2_000_000, 0)
    other = book.assistant(session)
    book.step(other, 100_000, 0)
    importer = Importer(store.writer, pricing=logged_price)
    importer.run([book.database(logs)])
    importer.close()
    assert store.all("SELECT price_status, cost_usd FROM model_calls ORDER BY id") == [
        ("exact", 0.25), ("unpriced", None), ("exact", pytest.approx(0.5)),
    ]  # fmt: skip


def test_tools_are_paired_with_their_results(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session)
    book.tool(
        answer, "c1", attachments=[{"type": "file", "mime": "image/png", "url": "data:image/png;base64,QUJD"}]
    )
    book.tool(answer, "c2", status="error")
    book.tool(
        answer, "c3", status="error", error="The user rejected permission to use this specific tool call."
    )
    book.tool(answer, "c4", status="error", error="Tool execution aborted")
    book.tool(answer, "c5", status="running")
    store.run(book.database(logs))
    assert store.all("SELECT tool_use_id, status, seq, result_seq FROM tool_calls ORDER BY id") == [
        ("c1", "done", 2, 3), ("c2", "error", 4, 5), ("c3", "denied", 6, 7), ("c4", "cancelled", 8, 9), ("c5", "unknown", 10, None),
    ]  # fmt: skip
    result = json.loads(store.one("SELECT content FROM messages WHERE seq = 3"))
    assert result[0]["content"][1]["source"]["data"] == "QUJD"


def test_files_are_images_or_told_by_name(store: Store, logs: Path) -> None:
    book, session = simple()
    asked = book.user(session)
    book.part(asked, "file", mime="image/png", filename="a.png", url="data:image/png;base64,QUJD")
    book.part(asked, "file", mime="text/plain", filename="a.txt", url="file:///tmp/a.txt")
    store.run(book.database(logs))
    contents = store.said()
    assert contents[1][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert contents[2] == [{"type": "text", "text": "[attached text/plain: a.txt at file:///tmp/a.txt]"}]


AGENTS = "SELECT a.name, a.role, a.status, a.current_goal, a.output_tokens, p.name FROM agents a LEFT JOIN agents p ON p.id = a.parent_agent_id ORDER BY a.created_at"


def test_sub_agents_stand_below_the_agent_that_started_them(store: Store, logs: Path) -> None:
    book, session, _ = family()
    store.run(book.database(logs))
    assert store.all("SELECT source, output_tokens FROM sessions") == [(f"opencode:{session}", 7)]
    assert store.all(AGENTS) == [
        ("main", "main", "done", "Mend the cache", 1, None),
        ("Find it", "explore", "done", "Look for it", 2, "main"),
        ("Deeper", "agent", "done", "Look for it", 4, "Find it"),
    ]


def test_a_session_whose_parent_is_lost_is_kept_below_an_empty_agent(store: Store, logs: Path) -> None:
    book, session, _ = family()
    for each in [name for name, about in book.messages.items() if about["sessionID"] == session]:
        book.parts = {name: part for name, part in book.parts.items() if part["messageID"] != each}
        del book.messages[each]
    del book.sessions[session]
    store.run(book.database(logs))
    assert store.one("SELECT count(*) FROM sessions") == 1
    assert sorted((row[4], row[0], row[5]) for row in store.all(AGENTS)) == [
        (0, "main", None),
        (2, "Find it", "main"),
        (4, "Deeper", "Find it"),
    ]


def test_sessions_that_are_each_others_parents_stand_in_no_circle(store: Store, logs: Path) -> None:
    book = Book()
    one, two = book.session(), book.session()
    book.sessions[one]["parentID"], book.sessions[two]["parentID"] = two, one
    book.user(one, "x")
    book.user(two, "y")
    store.run(book.database(logs))
    assert store.counts()["messages"] == 2
    store.assert_a_tree()


def test_to_do_lists_become_tasks_with_their_history(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session)
    for place, states in enumerate((["in_progress", "pending"], ["completed", "in_progress"])):
        todos = [
            {"content": name, "status": status, "priority": "high"}
            for name, status in zip("ab", states, strict=True)
        ]
        book.tool(answer, f"t{place}", "todowrite", input={"todos": todos})
    book.todos[session] = [{"content": "a", "status": "completed"}, {"content": "b", "status": "cancelled"}]
    store.run(book.database(logs))
    assert store.all("SELECT title, status FROM tasks ORDER BY position") == [
        ("a", "done"),
        ("b", "cancelled"),
    ]
    snapshots = [
        json.loads(row[0])
        for row in store.all("SELECT plan_graph_snapshot FROM plan_revisions ORDER BY revision")
    ]
    assert [[item["status"] for item in snapshot] for snapshot in snapshots] == [
        ["running", "pending"], ["done", "running"], ["done", "cancelled"],
    ]  # fmt: skip


def test_errors_interruptions_and_retries_are_events(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(
        session, error={"name": "MessageAbortedError", "data": {"message": "The operation was aborted."}}
    )
    error = {"name": "APIError", "data": {"message": "Overloaded"}}
    book.part(answer, "retry", attempt=1, error=error, time={"created": book.now})
    store.run(book.database(logs))
    assert store.errors() == [
        ("model.retrying", "Overloaded"),
        ("agent.interrupted", "The operation was aborted."),
    ]


def test_a_fork_repeats_messages_and_counts_no_call_twice(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session)
    book.tool(answer, "c1")
    book.part(answer, "text", text="Done.")
    book.step(answer, 10, 5)
    fork = book.session("Cache mended (fork #1)")
    for message, about in [
        (name, about) for name, about in book.messages.items() if about["sessionID"] == session
    ]:
        copy = book._id("msg")
        book.messages[copy] = about | {"id": copy, "sessionID": fork}
        book.times[copy] = book.tick()
        for part in [each for each in book.parts.values() if each["messageID"] == message]:
            name = book._id("prt")
            book.parts[name] = part | {"id": name, "messageID": copy, "sessionID": fork}
            book.times[name] = book.tick()
    book.user(fork, "Another way")
    store.run(book.database(logs))
    rows = store.all(
        "SELECT s.model_calls, f.source, a.last_seq FROM sessions s LEFT JOIN sessions f ON f.id ="
        " s.forked_from JOIN agents a ON a.session_id = s.id ORDER BY s.source"
    )
    assert rows == [(1, None, 4), (0, f"opencode:{session}", 5)]
    assert store.counts()["tool_calls"] == 1


def test_sub_agents_that_were_told_the_same_at_once_are_not_taken_for_each_other(store, logs):
    book, session = simple()
    for _ in range(2):
        child = book.session(parent=session)
        book.now = BEGAN + 50_000
        book.user(child, "Look for it")
        answer = book.assistant(child)
        book.step(answer, 10, 5)
    store.run(book.database(logs))
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (2, 10)
    assert store.counts()["messages"] == 3
