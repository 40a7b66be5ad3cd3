"""What the model is sent is always something that the Messages API takes."""

from __future__ import annotations

import pytest
from tests.core.memory.support import Words, assert_valid, blocks, call, result, text_of

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


GO = ("user", "go")
TWO = [*call("a"), *call("a")]


@pytest.mark.parametrize(("said", "shown"), [
    ([("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")], "user: a, assistant: b, user: c, user: d"),
    ([GO, ("assistant", call("a"))], "user: go, assistant: tool_use a"),
    ([GO, ("assistant", call("a")), ("user", [{"type": "text", "text": "and also"}, *result("a")])],
     "user: go, assistant: tool_use a, user: tool_result a + text"),
    ([GO, ("assistant", call("a", "b", "c")), ("user", result("b")), ("user", result("a", "c"))],
     "user: go, assistant: tool_use a + tool_use b + tool_use c, user: tool_result b + tool_result a + tool_result c"),
    ([GO, ("assistant", call("a", "b")), ("user", "never mind")],
     "user: go, assistant: tool_use a + tool_use b, user: tool_result a + tool_result b, user: never mind"),
    ([GO, ("assistant", call("a")), ("user", "wait"), ("user", result("a", text="late"))],
     "user: go, assistant: tool_use a, user: tool_result a, user: wait, user: text"),
    ([("user", result("ghost", text="found it")), ("assistant", "ok")], "user: text, assistant: ok"),
])  # fmt: skip
def test_messages_are_shown_in_an_order_and_shape_that_the_api_takes(said, shown):
    items = rendered(*said).items
    assert ", ".join(f"{item['role']}: {_shape(item['content'])}" for item in items) == shown
    texts = text_of(items)
    assert all(
        words in texts for _, content in said for words in ("late", "found it") if words in str(content)
    )
    for block in (block for item in items for block in blocks(item) if block.get("content") == NO_RESULT):
        assert block["is_error"]
    assert (NO_RESULT in texts) == ("never mind" in texts or "wait" in texts)


def _shape(content: Content) -> str:
    if isinstance(content, str):
        return content
    return " + ".join(f"{b['type']} {b.get('id', b.get('tool_use_id', ''))}".strip() for b in content)


def test_while_results_are_missing_the_last_message_is_not_stable() -> None:
    begun = [GO, ("assistant", call("a", "b")), ("user", result("b"))]
    assert rendered(*begun).unstable == 1
    assert rendered(*begun, ("user", result("a"))).unstable == 0


def test_a_history_that_begins_with_the_assistant_gets_a_user_message_before_it() -> None:
    assert rendered(("assistant", "hello")).items[0]["role"] == "user"


@pytest.mark.parametrize("said", [
    *([("user", blank), ("assistant", blank)] for blank in ("", "  \n", [], [{"type": "text", "text": " "}])),
    [("user", call("a")), ("assistant", result("a")), ("user", "x")],
    [GO, ("assistant", TWO), ("user", [*result("a"), *result("a")])],
])  # fmt: skip
def test_blank_messages_wrong_roles_and_ids_that_are_shared_cannot_break_a_request(said):
    assert rendered(*said).items
