"""Messages as they should not be: refused at once, or good for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.core.memory.support import Words, add, call, result, user
from tests.support.message_rules import broken_rule

from watchkeeper import HierarchicalContextManager


class Encoding:
    """As tiktoken, tokenizers and sentencepiece do, it refuses what is no UTF-8."""

    def count(self, text: str) -> int:
        return len(text.encode())


@pytest.mark.parametrize("tokenizer", [Encoding(), Encoding().count], ids=["object", "callable"])
async def test_lone_surrogates_never_reach_a_tokenizer_or_an_encoder(tokenizer: Any) -> None:
    manager = HierarchicalContextManager(1_000, tokenizer=tokenizer)
    await manager.add_message(user("half of a pair: \ud83d"))
    await manager.add_message(
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "n", "input": {"a": "\udc00"}}],
        }
    )
    assert manager.tokens > 0
    json.dumps(manager.get_context(), ensure_ascii=False).encode()


ODD: dict[str, list[Any]] = {
    "ids that return in each turn": [turn for n in range(3) for turn in (call("call_0"), result("call_0", text=f"result {n}"))],
    "cache breakpoints of earlier turns": [
        [{"type": "text", "text": f"turn {n}", "cache_control": {"type": "ephemeral"}}] for n in range(6)
    ],
} | {
    f"arguments {given}": [[{"type": "tool_use", "id": "c", "name": "bash", **given}], result("c", text="no JSON object")]
    for given in ({}, {"input": None}, {"input": "ls -l"}, {"input": ["ls"]})
}  # fmt: skip


@pytest.mark.parametrize("contents", ODD.values(), ids=list(ODD))
async def test_what_programs_send_amiss_does_not_brick_a_session(contents: list[Any]) -> None:
    manager = HierarchicalContextManager(8_192)
    await manager.add_message(user("go"))
    for content in contents:
        calls = any(block["type"] == "tool_use" for block in content)
        await manager.add_message({"role": "assistant" if calls else "user", "content": content})
    assert broken_rule({"max_tokens": 1, "messages": manager.get_context()}) is None


@pytest.mark.parametrize("text", [None, 5, ""])
async def test_blocks_that_hold_no_text_do_not_brick_a_session(text: Any) -> None:
    manager = HierarchicalContextManager(8_192)
    await manager.add_message(
        {"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "text", "text": text}]}
    )
    await manager.add_message({"role": "assistant", "content": call("c")})
    await manager.add_message(
        {"role": "user", "content": [{**result("c")[0], "content": [{"type": "text", "text": text}]}]}
    )
    first, _, last = manager.get_context()
    inner = last["content"][0]["content"]
    blocks = [*first["content"], *(inner if isinstance(inner, list) else [])]
    assert all(isinstance(block["text"], str) and block["text"].strip() for block in blocks)


async def test_messages_cannot_be_changed_by_who_reads_them() -> None:
    manager = HierarchicalContextManager(1_000)
    await manager.add_message({"role": "user", "content": [{"type": "text", "text": "as it was"}]})
    content = manager.messages[0].content
    try:
        content[0]["text"] = "changed"  # type: ignore[index]
    except TypeError:
        pass
    assert manager.messages[0].content == [{"type": "text", "text": "as it was"}]
    assert manager.get_context() == [{"role": "user", "content": [{"type": "text", "text": "as it was"}]}]


async def feed_deep(depth: int) -> None:
    value: Any = "leaf " * 400
    for _ in range(depth):
        value = {"a": value}
    manager = HierarchicalContextManager(500, tokenizer=Words())
    await manager.add_message(user("go"))
    try:
        await manager.add_message(
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "n", "input": value}]}
        )
    except ValueError:
        assert len(manager.messages) == 1
    else:
        await manager.add_message({"role": "user", "content": result("c")})
        await add(manager, 10)
    assert manager.tokens <= 500
    assert manager.get_context()


@pytest.mark.parametrize("depth", [50, 2_000])
async def test_deep_arguments_are_refused_at_once_or_work_for_ever(depth: int) -> None:
    await feed_deep(depth)


async def test_no_depth_of_arguments_is_accepted_and_fails_later() -> None:
    for depth in range(440, 492, 8):
        await feed_deep(depth)
