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


@pytest.mark.parametrize("seed", [None, 1, 2], ids=["lively", "first", "second"])
def test_imports_between_any_two_changes_end_as_one_import_after_all_and_twice_adds_nothing(
    store, logs, tmp_path, open_store, seed
):
    book, steps = lively() if seed is None else _random_steps(seed)
    for step in steps:
        step()
        book.database(logs)
        report = store.run(logs)
        assert (report.left, report.unknown) == ({}, [])
        assert store.run(logs).lines == 0
    (tmp_path / "other").mkdir()
    whole = open_store("whole")
    whole.run(book.database(tmp_path / "other"))
    for sql in (
        "SELECT agent_id, role, content FROM messages ORDER BY agent_id, content, seq",
        "SELECT tool_use_id, status FROM tool_calls ORDER BY tool_use_id",
        "SELECT source, title, goal, input_tokens, output_tokens, model_calls FROM sessions ORDER BY source",
        "SELECT id, parent_agent_id, last_seq, message_tokens, output_tokens, model_calls FROM agents ORDER BY id",
    ):
        assert store.all(sql) == whole.all(sql)
    assert seed is not None or store.one("SELECT title FROM sessions") == "Another title"


def _random_steps(seed: int) -> tuple[Book, list[Callable[[], None]]]:
    rng, book, unfinished = random.Random(seed), Book(), list[str]()
    return book, [lambda step=step: _grow(book, rng, step, unfinished) for step in range(40)]  # type: ignore[misc]


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
