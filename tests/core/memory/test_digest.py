"""The digest that needs no model: what it keeps, what it costs, that it points at the whole."""

from __future__ import annotations

import pytest
from tests.core.memory.support import call, result

from watchkeeper.memory.digest import DigestNotes, Written, error_lines, gather, identifiers_in, paths_in
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.messages import Content, Message, Observation, ObservationKind


def message(seq: int, role: str, content: Content) -> Message:
    return Message(seq, role, content, 1, seq, 0.0)  # type: ignore[arg-type]


SESSION = [
    message(1, "user", "Port the parser in src/parse.py to the new grammar."),
    message(
        2,
        "assistant",
        "I decided to keep the old tokenizer because its tests pass.\n- [ ] update docs/grammar.md",
    ),
    message(3, "assistant", call("c1", path="src/parse.py")),
    message(
        4,
        "user",
        result("c1", text="Traceback (most recent call last):\nValueError: bad token at 17", is_error=True),
    ),
    message(5, "assistant", call("c2", path="src/lexer.py")),
    message(6, "user", result("c2", text="412 lines")),
]


def digest(budget: int, **other: object) -> Written:
    notes = DigestNotes.gather("a", (1, 6), (), SESSION, **other)  # type: ignore[arg-type]
    return notes.write(budget, default_counter())


def test_a_digest_keeps_goals_decisions_open_tasks_files_errors_and_last_results() -> None:
    text, citations, _ = digest(400)
    assert "message://a/1-6" in text
    for section, line in {
        "Goals:": "Port the parser in src/parse.py to the new grammar. (#1)",
        "Decisions:": "I decided to keep the old tokenizer because its tests pass. (#2)",
        "Open tasks:": "update docs/grammar.md (#2)",
        "Errors:": "ValueError: bad token at 17",
        "Files:": "src/lexer.py (#5)",
        "Last results:": "read: 412 lines (#6)",
    }.items():
        assert section in text
        assert line in text
    assert set(citations) <= set(range(1, 7))


@pytest.mark.parametrize("budget", [0, 5, 20, 40, 80, 200, 1_000])
def test_a_digest_stays_within_its_budget_or_is_the_bare_pointer(budget: int) -> None:
    text, citations, _ = digest(budget)
    assert citations
    assert "message://a/1-6" in text
    assert default_counter().count(text) <= budget or text == "Whole text: message://a/1-6"


def test_instructions_say_what_to_keep() -> None:
    text, *_ = digest(120, instructions="keep everything about the tokenizer")
    assert text.splitlines()[1] == "Asked to keep:"
    assert "tokenizer" in text.splitlines()[2]


def test_a_digest_folds_the_earlier_one_line_by_line() -> None:
    text, citations, _ = digest(400)
    earlier = Observation(1, ObservationKind.DIGEST, text, 1, (1, 6), citations, provisional=True)
    notes = DigestNotes.gather(
        "a", (1, 8), [earlier], [message(7, "user", "Also rename it."), message(8, "assistant", "ok")]
    )
    folded, cited, _ = notes.write(500, default_counter())
    assert "message://a/1-8" in folded
    assert "Port the parser in src/parse.py to the new grammar. (#1)" in folded
    assert "Also rename it. (#7)" in folded
    assert folded.count("Digest, made without a model") == 1
    assert {1, 7} <= set(cited)


def todo(seq: int, **states: str) -> Message:
    items = [{"content": name, "status": state} for name, state in states.items()]
    return message(
        seq,
        "assistant",
        [{"type": "tool_use", "id": f"t{seq}", "name": "TodoWrite", "input": {"todos": items}}],
    )


def test_of_a_to_do_list_the_newest_state_counts_across_digests_too() -> None:
    first = DigestNotes.gather(
        "a", (1, 1), (), [todo(1, parse="in_progress", lex="pending", read="completed")]
    )
    text, citations, _ = first.write(200, default_counter())
    assert "to do: parse (#1)" in text
    assert "to do: lex (#1)" in text
    assert "read" not in text
    earlier = Observation(1, ObservationKind.DIGEST, text, 1, (1, 1), citations)
    later = DigestNotes.gather("a", (1, 2), [earlier], [todo(2, parse="completed", lex="in_progress")])
    text, *_ = later.write(200, default_counter())
    assert "to do: lex (#2)" in text
    assert "parse" not in text


def test_a_huge_message_costs_a_digest_no_more_than_its_beginning_and_end() -> None:
    huge = message(1, "user", "x" * 5_000_000)
    notes = DigestNotes.gather("a", (1, 1), (), [huge])
    assert sum(len(line.text) for lines in notes.sections.values() for line in lines) < 2_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see src/watchkeeper/memory/state.py, please", "src/watchkeeper/memory/state.py"),
        ("edited README.md.", "README.md"),
        ("at /home/me/.config/app.toml", "/home/me/.config/app.toml"),
        ("commit 00e1145a", "00e1145a"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
        ("issue #4679 and PROJ-123", "#4679"),
        ("issue #4679 and PROJ-123", "PROJ-123"),
        ("open https://example.org/a?b=1", "https://example.org/a?b=1"),
        ("We decided on a limit of 8192 tokens", "8192"),
        ("E   ValueError: bad token at 17", "E ValueError: bad token at 17"),
    ],
)
def test_identifiers_are_found(text: str, expected: str) -> None:
    assert expected in identifiers_in(text)


@pytest.mark.parametrize(
    "text", ["self.state and result.error", "and/or", "  12→ except ValueError:", "</tag> e.g. this"]
)
def test_code_and_prose_are_no_identifiers(text: str) -> None:
    assert identifiers_in(text) == []


def test_an_identifier_points_at_the_last_message_that_names_it() -> None:
    assert gather(SESSION)["src/parse.py"] == 3


def test_each_identifier_is_told_once() -> None:
    assert paths_in("a/b/c.py a/b/c.py") == ["a/b/c.py"]
    assert error_lines("error: x\nerror: x\n") == ["error: x"]
