"""The Markdown form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from watchkeeper.transcripts.export import escaped, fenced

Export = Callable[..., Any]
Make = Callable[..., Any]

HOSTILE = (
    "![x](http://evil.invalid/track.png)",
    "[click](javascript:alert(1))",
    "<script>alert(1)</script>",
    "```\n# not in a fence any more\n<b>bold</b>\n```",
    "~~~~~\nout\n~~~~~",
    "a | b | c",
    "# heading\n\n- list\n> quote",
    "http://evil.invalid and www.evil.invalid",
)


def outside_fences(text: str) -> str:
    """The lines of a document that are no code (a fence ends with at least as many of its characters)."""
    kept, fence = [], ""
    for line in text.splitlines():
        mark = re.match(r" {0,3}(`{3,}|~{3,})(.*)$", line)
        if fence:
            if mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not mark[2].strip():
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            kept.append(line)
    assert not fence
    return "\n".join(kept)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_session_holds_is_never_markup(made: Make, export: Export, text: str) -> None:
    one = made()
    line = " ".join(text.split())
    planner = one.agent("planner")
    one.tx.execute("UPDATE agents SET name = ?, model = ?", (line, line))
    one.tx.execute(
        "UPDATE sessions SET goal = ?, title = ?, workspace = ?, status_reason = ?", (text, line, line, line)
    )
    one.say(planner, text, [{"type": "text", "text": text}, {"type": "tool_use", "id": "t", "name": line, "input": {"a": text}}],
            [{"type": "tool_result", "tool_use_id": "t", "content": text}])  # fmt: skip
    one.compact(planner, 2, text, (1,))
    one.task(line, instructions=text, result=text, error=text)
    one.fact(text, sources=[line])
    one.artifact(line, text)
    one.done()
    left = outside_fences(export(one.connection, one.session_id, "md").text)
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", left)
    assert not re.search(r"[<>\[\]]|://|www\.", bare)
    assert "not in a fence any more" not in left.replace(escaped(line), "")
    headings = [row for row in left.splitlines() if row.startswith("#")]
    assert "# heading" not in headings


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced("a ````` b").startswith("``````text\n")
    assert outside_fences(fenced("```\n````\n```")) == ""


def test_everything_that_was_said_is_in_it(made: Make, export: Export) -> None:
    one = made()
    planner = one.agent("planner")
    one.say(planner, "Go", [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a.py"}}],
            [{"type": "tool_result", "tool_use_id": "t", "content": "print(1)", "is_error": True}])  # fmt: skip
    one.compact(planner, 2, "went well", (1, 2))
    one.task("Look around", planner, name="look", result="all seen", status="done")
    one.fact("it prints", sources=[f"message://{planner}/3"])
    one.done()
    text = export(one.connection, one.session_id, "md").text
    for said in ("Go", "hm", "Calls **read**", '"path": "a.py"', "Result, an error", "print(1)", "went well", "Replaced: messages 1 to 2",
                 "Cited of these: \\#1, \\#2", "**look** (done)", "Look around: done", "all seen", "it prints", f"message:\\//{planner}/3"):  # fmt: skip
        assert said in text, said


def test_a_long_result_is_shortened_and_says_so(made: Make, export: Export) -> None:
    one = made()
    one.say(one.agent(), "Go", [{"type": "tool_use", "id": "t", "name": "read", "input": {}}],
            [{"type": "tool_result", "tool_use_id": "t", "content": "x" * 250_000}])  # fmt: skip
    one.done()
    text = export(one.connection, one.session_id, "md").text
    assert len(text) < 20_000
    assert "[… 240,000 more characters]" in text


@pytest.mark.parametrize(
    ("status", "began", "drawn"),
    [
        ("cancelled", None, "× not run"), ("cancelled", 5.0, "× cancelled"), ("denied", None, "✗ denied"),
        ("unknown", 5.0, "? outcome unknown"), ("held back", 5.0, "? held back"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["md", "html"])
def test_a_call_that_did_not_end_well_is_never_exported_as_one_that_did(
    made: Make, export: Export, form: str, status: str, began: float | None, drawn: str
) -> None:
    one = made()
    planner = one.agent("planner")
    one.say(planner, "Go", [{"type": "tool_use", "id": "t", "name": "read", "input": {}}],
            [{"type": "tool_result", "tool_use_id": "t", "content": "no"}])  # fmt: skip
    one.tx.execute(
        "INSERT INTO tool_calls (session_id, agent_id, turn, position, seq, tool_use_id, name, input_digest, idempotent, status,"
        " started_at, commit_seq) VALUES (?, ?, 1, 0, 2, 't', 'read', '', 1, ?, ?, 1)",
        (one.session_id, planner, status, began),
    )
    one.done()
    text = export(one.connection, one.session_id, form).text
    if form == "md":
        assert f"Calls **read** ({drawn}):" in text
        assert f"Result ({drawn}):" in text
    else:
        assert text.count(f'"{drawn}"') == 2
