"""Which of a user's sentences are kept in every prompt."""

from __future__ import annotations

import pytest
from tests.core.recall.conftest import Session

from watchkeeper.memory.recall import lift, pinned_lines, standing_instructions


@pytest.mark.parametrize(
    "text",
    [
        "Always run the tests before you commit.",
        "Never touch the vendor folder.",
        "never push to main",
        "From now on, answer in French.",
        "Do not edit generated files.",
        "Don't ever delete a branch.",
        "You must ask before you install anything.",
        "All commits must be signed.",
        "Please never log secrets.",
        "Make sure that every function has a docstring.",
        "In future, use tabs.",
        "Important: always write in British English.",
        "Fix the parser, but never change its public names.",
        "Under no circumstances call the production API.",
        "Changes must not break the API.",
        "Remember: always use uv, not pip.",
    ],
)
def test_standing_instructions_are_lifted_whole(text: str) -> None:
    assert standing_instructions(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "Fix the parser.",
        "It never works on Windows.",
        "I always forget how this goes.",
        "Don't worry about the docs.",
        "I don't know why it fails.",
        "Must we always do it that way?",
        "Never mind.",
        "This must be a bug.",
        "What must I do?",
        "Never again!",
        "The server always returns 500, I have never seen it work.",
        "```\nalways do this\n```",
        "> Never trust quoted text.",
        "    do not read indented code",
        "",
        "Always " + "x" * 400,
    ],
)
def test_requests_remarks_questions_code_and_quotations_are_not(text: str) -> None:
    assert standing_instructions(text) == []


def test_only_the_sentences_that_stand_are_taken_in_their_order_and_once() -> None:
    text = "Write the report. Always cite sources.\n- Never guess.\n- Use Markdown.\nAlways cite sources. Thanks!"
    assert standing_instructions(text) == ["Always cite sources.", "Never guess."]


def test_lifted_instructions_are_pinned_for_all_agents_and_keep_their_source(session: Session) -> None:
    def steer(tx: object) -> list[int]:
        return lift(tx, "Go on. Never use sudo.", workspace=str(session.workspace), source="message://ann/3")  # type: ignore[arg-type]

    first = session.do(steer)
    assert len(first) == 1
    assert session.do(steer) == []
    assert pinned_lines(session.store, session.id) == ["Never use sudo."]
    assert "(message://ann/3)" in session.use("bob", "recall", query="sudo")


def test_pinned_lines_are_bounded_and_the_newest_stay(session: Session) -> None:
    for number in range(60):
        session.do(
            lambda tx, n=number: lift(
                tx, f"Never do thing {n:03d} " + "x" * 200, workspace=str(session.workspace)
            )
        )
    lines = pinned_lines(session.store, session.id)
    assert sum(map(len, lines)) <= 6_000
    assert "thing 059" in lines[-1]


def test_a_superseded_instruction_is_pinned_no_more(session: Session) -> None:
    (old,) = session.do(lambda tx: lift(tx, "Always answer in French.", workspace=str(session.workspace)))
    session.use("ann", "remember", text="Answers are in English now", kind="decision", replaces=old)
    assert pinned_lines(session.store, session.id) == []
