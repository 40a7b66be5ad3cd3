"""The benchmark scores a recorded session: what it asks, and what it takes for an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import memory_quality as benchmark

from watchkeeper.records.messages import Message


def record(number: int, role: str, content: Any, **other: Any) -> dict[str, Any]:
    return {
        "type": role,
        "uuid": f"u{number}",
        "parentUuid": f"u{number - 1}" if number else None,
        "sessionId": "5b5d0b7c-0000-4000-8000-000000000001",
        "cwd": "/w",
        "timestamp": f"2026-01-02T03:{number // 60:02d}:{number % 60:02d}.000Z",
        "message": {"role": role, "content": content},
        **other,
    }


def call(number: int, tool: str, **given: Any) -> dict[str, Any]:
    return record(
        number, "assistant", [{"type": "tool_use", "id": f"c{number}", "name": tool, "input": given}]
    )


def result(number: int, text: str, *, is_error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": f"c{number - 1}", "content": text, "is_error": is_error}
    return record(number, "user", [block])


SUMMARY = "This session is being continued. " + "The user wants `parse_all` in /w/parse.py. " * 40

SESSION = [
    record(0, "user",
     "Port the parser to the new grammar. Never touch the generated lexer tables, please!"),
    record(1, "user", "<system-reminder>Injected by a hook.</system-reminder>", isMeta=True),
    call(2, "Bash", command="pytest tests/test_parse.py"),
    result(3, "Exit code 1\nValueError: bad token", is_error=True),
    call(4, "Edit", file_path="/w/parse.py", old_string="x = 1", new_string="def parse_all(text): ..."),
    result(5, "done"), call(6, "Bash", command="pytest tests/test_parse.py"), result(7, "3 passed"),
    call(8, "TodoWrite", todos=[{"content": "write the docs", "status": "pending"}]), result(9, "ok"),
    call(10, "TodoWrite", todos=[{"content": "write the docs", "status": "completed"}]), result(11, "ok"),
    record(12, "assistant",
     [{"type": "text", "text": "It passes. Next I rewrite the documentation of the grammar."}]),
    call(13, "AskUserQuestion", questions=[{"question": "Which database?"}]),
    result(14, 'The user answered: "Which database?"="SQLite" notes: no server. Read the answers carefully.'),
    {**record(15, "system", ""), "subtype": "compact_boundary", "content": "Conversation compacted",
     "compactMetadata": {"trigger": "auto", "preTokens": 1000}},
    record(16, "user", SUMMARY, isCompactSummary=True), record(17, "user", "Go ahead."),
]  # fmt: skip


def threads(folder: Path) -> list[benchmark.Thread]:
    log = folder / "5b5d0b7c-0000-4000-8000-000000000001.jsonl"
    log.write_text("".join(f"{json.dumps(line)}\n" for line in SESSION), encoding="utf-8")
    return benchmark.threads_of([log], folder / "sessions.db")


def test_a_digest_of_a_small_session_has_full_marks(tmp_path: Path) -> None:
    shares = benchmark.score(threads(tmp_path), 64_000)
    for name in ("user_sentences", "answers", "files", "files_precision", "words_precision"):
        assert shares[name].total, name
        assert shares[name].missing == [], name
    assert shares["failures_precision"].missing == []
    assert shares["names"].total
    assert shares["reopened"].missing == []


def test_a_finished_item_is_reopened_only_where_a_digest_shows_it_as_open() -> None:
    states = {"write the docs": True, "port the lexer": False}
    lines = ("done (1): write the docs (#3)", "open: port the lexer (#3)")
    text = "\n".join(
        ["To do:", *(f"- {line}" for line in lines), "What the agent said:", "- open: write the docs (#4)"]
    )
    assert benchmark.reopened(text, states) == []
    for state in ("open", "in progress"):
        assert benchmark.reopened(f"To do:\n- {state}: write the docs (#3)", states) == ["write the docs"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            'User has answered your questions: "Which?"="SQLite" user notes: no server, "Where?"="src, tests". You can now'
            " continue with the user's answers in mind.",
            ["SQLite", "no server", "src, tests"],
        ),
        ('Your questions have been answered: "Which?"="SQLite"', ["SQLite"]),
        (
            'The user answered: "Which?"=(no option selected) notes: Choose. Read the answers carefully — they may ask.',
            ["(no option selected)", "Choose"],
        ),
        ('{"answers": {"which": {"answers": ["SQLite"]}}}', ["SQLite"]),
    ],
)
def test_the_answers_of_people_are_found_in_each_form(text: str, found: list[str]) -> None:
    asked = [{"type": "tool_use", "id": "c1", "name": "AskUserQuestion", "input": {"questions": []}}]
    given = [{"type": "tool_result", "tool_use_id": "c1", "content": text}]
    messages = [Message(1, "assistant", asked, 1, 1, 0.0), Message(2, "user", given, 1, 2, 0.0)]
    thread = benchmark.Thread("s", "a", messages)
    assert list(benchmark.answered(thread, messages[1])) == found


def test_questions_are_made_from_the_session_and_a_list_of_names_answers_none(tmp_path: Path) -> None:
    thread = threads(tmp_path)[0]
    questions = list(benchmark.questions_of(thread, thread.compactions[0].last))
    assert {question.kind for question in questions} == {"edited", "fixed", "forbidden", "next"}
    digest = benchmark.digest_of(thread, thread.compactions[0].last, 2_000)
    stuffed = ", ".join(sorted(set(benchmark._NAME.findall(benchmark.words_in(thread.messages)))))
    assert all(benchmark.answers(question, digest) for question in questions)
    assert not any(benchmark.answers(question, stuffed) for question in questions)
