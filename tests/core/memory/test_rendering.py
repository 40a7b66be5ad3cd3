"""What the model is sent is always something that the Messages API takes."""

from __future__ import annotations

import pytest
from tests.core.memory.support import Words, assert_valid, call, result, text_of

from watchkeeper.memory.rendering import NO_RESULT, Rendering
from watchkeeper.memory.tokens import count_message
from watchkeeper.records.messages import Content


def rendered(*messages: tuple[str, Content]) -> Rendering:
    rendering = Rendering(Words())
    for role, content in messages:
        rendering.push(role, content)
    assert_valid(rendering.items)
    assert rendering.tokens == sum(count_message(m["role"], m["content"], Words()) for m in rendering.items)
    assert rendering.tokens == sum(rendering.sizes)
    return rendering


def test_plain_messages_stay_as_they_are() -> None:
    said: list[tuple[str, Content]] = [("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")]
    assert [(m["role"], m["content"]) for m in rendered(*said).items] == said


def test_a_history_that_begins_with_the_assistant_gets_a_user_message_before_it() -> None:
    assert rendered(("assistant", "hello")).items[0]["role"] == "user"


def test_a_context_may_end_in_unanswered_calls() -> None:
    items = rendered(("user", "go"), ("assistant", call("a"))).items
    assert items[-1]["content"] == call("a")


def test_an_unanswered_call_gets_an_error_result_when_something_else_follows() -> None:
    items = rendered(("user", "go"), ("assistant", call("a", "b")), ("user", "never mind")).items
    assert [b["content"] for b in items[2]["content"]] == [NO_RESULT, NO_RESULT]
    assert all(b["is_error"] for b in items[2]["content"])
    assert items[3] == {"role": "user", "content": "never mind"}


def test_results_that_come_one_by_one_are_one_message() -> None:
    rendering = rendered(
        ("user", "go"), ("assistant", call("a", "b", "c")), ("user", result("b")), ("user", result("a", "c"))
    )
    assert len(rendering.items) == 3
    assert {b["tool_use_id"] for b in rendering.items[2]["content"]} == {"a", "b", "c"}
    assert rendering.unstable == 0


def test_while_results_are_missing_the_last_message_is_not_stable() -> None:
    rendering = rendered(("user", "go"), ("assistant", call("a", "b")), ("user", result("b")))
    assert rendering.unstable == 1


def test_an_orphan_result_becomes_text() -> None:
    items = rendered(("user", result("ghost", text="found it")), ("assistant", "ok")).items
    assert items[0]["content"][0]["type"] == "text"
    assert "found it" in text_of(items)


def test_a_result_that_comes_too_late_becomes_text() -> None:
    items = rendered(
        ("user", "go"), ("assistant", call("a")), ("user", "wait"), ("user", result("a", text="late"))
    ).items
    assert "late" in text_of(items[-1:])


def test_results_stand_before_other_blocks() -> None:
    content = [{"type": "text", "text": "and also"}, *result("a")]
    items = rendered(("user", "go"), ("assistant", call("a")), ("user", content)).items
    assert [b["type"] for b in items[-1]["content"]] == ["tool_result", "text"]


@pytest.mark.parametrize("content", ["", "  \n", [], [{"type": "text", "text": " "}]])
def test_blank_messages_are_shown_as_empty(content: Content) -> None:
    assert rendered(("user", content), ("assistant", content)).items


def test_calls_and_results_in_the_wrong_mouth_become_text() -> None:
    rendered(("user", call("a")), ("assistant", result("a")), ("user", "x"))


def test_calls_that_share_an_id_cannot_break_a_request() -> None:
    rendered(("user", "go"), ("assistant", [*call("a"), *call("a")]), ("user", [*result("a"), *result("a")]))
