"""However a session of OpenCode grows between imports, it ends as if it had been read at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import BEGAN, Book, lively, simple


def _grow(book: Book, rng: random.Random, step: int, unfinished: list[str]) -> None:
    """One thing that happens: a session, a question, a reply, a call, its end, a text, the reply's end."""
    kind = rng.randrange(7)
    if kind == 0 or not book.sessions:
        book.session(parent=rng.choice([None, *book.sessions]) if book.sessions else None)
    session = rng.choice(list(book.sessions))
    message = next((each for each in unfinished if book.messages[each]["sessionID"] == session), None)
    if message is None:
        if kind == 1:
            book.user(session, f"say {step}")
        elif kind == 2:
            unfinished.append(book.assistant(session, completed=False))
        return
    if kind == 3:
        book.tool(message, f"c{step}", status=rng.choice(["running", "completed", "pending"]))
    elif kind == 4:
        for part in book.parts.values():
            if (
                part["messageID"] == message
                and part["type"] == "tool"
                and part["state"]["status"] != "completed"
            ):
                part["state"] |= {"status": "completed", "output": "fine"}
                part["state"]["time"]["end"] = book.now
                book.touch(part["id"])
    elif kind == 5:
        book.part(message, "text", text=f"text {step}")
    elif kind == 6:
        book.step(message, 10 + step, step)
        book.messages[message]["time"]["completed"] = book.now
        book.touch(message)
        unfinished.remove(message)


@pytest.mark.parametrize("seed", [1, 2])
def test_imports_between_any_two_changes_end_as_one_import_after_all(store, logs, tmp_path, open_store, seed):
    rng, book = random.Random(seed), Book()
    unfinished: list[str] = []
    for step in range(40):
        _grow(book, rng, step, unfinished)
        book.database(logs)
        report = store.run(logs)
        assert (report.left, report.unknown) == ({}, [])
    (tmp_path / "other").mkdir()
    whole = open_store("whole")
    whole.run(book.database(tmp_path / "other"))
    for sql in (
        "SELECT agent_id, role, content FROM messages ORDER BY agent_id, content, seq",
        "SELECT tool_use_id, status FROM tool_calls ORDER BY tool_use_id",
        "SELECT source, input_tokens, output_tokens, model_calls FROM sessions ORDER BY source",
        "SELECT id, parent_agent_id, last_seq FROM agents ORDER BY id",
    ):
        assert store.all(sql) == whole.all(sql)


def test_a_session_that_grew_adds_what_is_new_and_ends_as_when_read_at_once(
    store: Store, logs: Path, open_store: Callable[[str], Store], tmp_path: Path
) -> None:
    book, steps = lively()
    path = book.database(logs)
    for step in steps:
        step()
        book.database(logs)
        store.run(path)
        report = store.run(path)
        assert report.lines == 0
    (tmp_path / "other").mkdir()
    whole = open_store("whole")
    whole.run(book.database(tmp_path / "other"))
    for sql in (
        "SELECT id, last_seq, message_tokens, output_tokens, model_calls FROM agents ORDER BY id",
        "SELECT agent_id, seq, role, content FROM messages ORDER BY agent_id, seq",
        "SELECT tool_use_id, status, seq, result_seq FROM tool_calls ORDER BY id",
        "SELECT title, goal, input_tokens, output_tokens, model_calls FROM sessions",
    ):
        assert store.all(sql) == whole.all(sql)
    assert store.one("SELECT title FROM sessions") == "Another title"


def test_a_tool_that_runs_is_there_before_its_result(store: Store, logs: Path) -> None:
    book, steps = lively()
    for step in steps[:4]:
        step()
    store.run(book.database(logs))
    assert store.all("SELECT tool_use_id, status, result_seq FROM tool_calls") == [("c1", "unknown", None)]
    assert store.counts()["messages"] == 3


def test_rows_that_a_clock_set_back_wrote_are_found(store: Store, logs: Path) -> None:
    book, session = simple()
    path = book.database(logs)
    store.run(path)
    book.now = BEGAN - 10_000_000
    book.user(session, "From yesterday")
    book.database(logs)
    store.run(path)
    assert store.counts()["messages"] == 2
