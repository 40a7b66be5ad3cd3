"""Blocks of types without rules here: a context that holds them stays within its window, and no pair is orphaned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words, assert_valid

import watchkeeper
from watchkeeper import HierarchicalContextManager, WindowTooSmall
from watchkeeper.memory.content import texts_of
from watchkeeper.memory.tokens import count_message

LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=40)
PAYLOADS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
)
GROWN = st.sampled_from(
    [
        list(range(4_000)),
        [[0.5] * 8] * 300,
        {f"key{number}": number for number in range(800)},
        "word " * 3_000,
        [{"type": "text", "text": "found " * 2_000}],
        [{"type": "web_search_result", "title": "A page", "encrypted_content": "Qm9" * 8_000}],
        {"type": "image", "source": {"type": "base64", "data": "A" * 90_000}},
    ]
)


@st.composite
def foreign(draw: st.DrawFn, number: int) -> list[dict[str, Any]]:
    """A call of a server's tool with its result, or a block of a type yet to come."""
    payload = draw(PAYLOADS | GROWN)
    kind = draw(st.sampled_from(["server_tool_use", "mcp_tool_use", "later_tool_use", ""]))
    if not kind:
        return [
            {"type": draw(st.sampled_from(["container_upload", "search_result", "new"])), "payload": payload}
        ]
    result = {"server_tool_use": "web_search_tool_result", "mcp_tool_use": "mcp_tool_result"}.get(
        kind, "later_result"
    )
    call = {"type": kind, "id": f"srv{number}", "name": "search", "input": draw(PAYLOADS)}
    return [call, {"type": result, "tool_use_id": f"srv{number}", "content": payload}]


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 8))):
        messages.append({"role": "user", "content": f"Look up {number}. " * draw(st.integers(1, 40))})
        blocks = draw(foreign(number))
        if len(blocks) == 2 and draw(st.booleans()):  # a turn that was paused between the call and its result
            messages.append({"role": "assistant", "content": [blocks[0]]})
            messages.append({"role": "assistant", "content": [blocks[1], {"type": "text", "text": "Found."}]})
        else:
            thinking = draw(st.sampled_from([[], [{"type": "redacted_thinking", "data": "Qm9" * 20_000}]]))
            found = [*thinking, *blocks, {"type": "text", "text": "Found."}]
            messages.append({"role": "assistant", "content": found})
        if draw(st.booleans()):
            call = {
                "type": "tool_use",
                "id": f"own{number}",
                "name": "plot",
                "input": {"points": draw(GROWN)},
            }
            messages.append({"role": "assistant", "content": [call]})
            result = {
                "type": "tool_result",
                "tool_use_id": f"own{number}",
                "content": draw(PAYLOADS.map(str)),
            }
            messages.append({"role": "user", "content": [result]})
    return messages


def assert_no_orphans(context: list[dict[str, Any]]) -> None:
    """Each foreign result has its call before it; each call that was answered is answered still."""
    open_calls: set[str] = set()
    blocks = [
        block
        for message in context
        if not isinstance(message["content"], str)
        for block in message["content"]
    ]
    for block in blocks:
        kind = block["type"]
        if kind.endswith("tool_use") and kind != "tool_use":
            open_calls.add(block["id"])
        elif "tool_use_id" in block and kind != "tool_result":
            assert block["tool_use_id"] in open_calls, f"{kind} without its call"
            open_calls.remove(block["tool_use_id"])
    last = context[-1]["content"]
    waiting = (
        {block.get("id") for block in last if isinstance(block, dict)} if isinstance(last, list) else set()
    )
    assert open_calls <= waiting, "a call without its result"


@pytest.mark.timeout(900)  # thousands of large payloads, where examples are many
@given(histories(), st.sampled_from([400, 900, 4_000]), st.sampled_from([Words(), None]))
def test_contexts_of_unknown_blocks_stay_within_their_window(history, window, counter):
    async def play() -> None:
        manager = HierarchicalContextManager(window, tokenizer=counter)
        for message in history:
            await manager.add_message(message)
            context = manager.get_context()
            counted = sum(
                count_message(one["role"], one["content"], manager.state.counter) for one in context
            )
            assert counted == manager.tokens <= window
            assert_no_orphans(context)
        assert [one.content for one in manager.messages] == [one["content"] for one in history]
        await manager.close()

    asyncio.run(play())


def test_what_a_server_tool_found_is_text_of_the_message() -> None:
    found = {
        "type": "web_search_result",
        "title": "Ports of the proxy",
        "url": "https://a.example/p",
        "encrypted_content": "Qm9",
    }
    content = [{"type": "web_search_tool_result", "tool_use_id": "srv1", "content": [found]}]
    assert list(texts_of(content)) == ["Ports of the proxy\nhttps://a.example/p"]


async def test_a_shortened_search_names_what_it_found_and_where_the_whole_is() -> None:
    manager = HierarchicalContextManager(600, tokenizer=Words(), agent_id="me")
    call = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"query": "proxy"}}
    page = {"type": "web_search_result", "title": "Ports " * 600, "encrypted_content": "Qm9" * 3_000}
    await manager.add_message({"role": "user", "content": "Search."})
    result = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": [page]}
    await manager.add_message({"role": "assistant", "content": [call, result]})
    (_, shown) = manager.get_context()
    texts = " ".join(block["text"] for block in shown["content"])
    assert {block["type"] for block in shown["content"]} == {"text"}
    assert "[web_search_tool_result] Ports" in texts
    assert "message://me/2" in texts
    assert_valid(manager.get_context())


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_system_message_is_refused_in_one_line_that_says_what_to_do(role: str) -> None:
    with pytest.raises(ValueError, match=f"pass the {role} prompt separately from get_context") as refused:
        await HierarchicalContextManager(1_000).add_message({"role": role, "content": "You are helpful."})
    assert "\n" not in str(refused.value)


def test_the_error_of_a_window_that_is_too_small_is_public() -> None:
    assert "WindowTooSmall" in watchkeeper.__all__
    assert issubclass(WindowTooSmall, Exception)
