"""Efforts: what each model is sent for one, and what a server's refusal costs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.support.answers import Reply, Status, in_turn, text, thinking, tool
from tests.support.guide import agrees
from tests.support.model_calls import IMPATIENT, MADE, Serve, asking, reply_of

from watchkeeper.memory.tokens import CallableCounter, count_block
from watchkeeper.models.anthropic import AnthropicModel, request_body
from watchkeeper.models.effort import TABLE, choose, documented, nearest, notice, other_host, thinking_tokens
from watchkeeper.models.openai import ChatAssembler, ChatModel, ResponsesModel, chat_body
from watchkeeper.models.registry import price
from watchkeeper.records.messages import EFFORTS, Effort, ModelRequest, ToolSpec

LOOK = ToolSpec("look", "Look at a path.", {"type": "object"})
ADAPTIVE = {"thinking": {"type": "adaptive", "display": "summarized"}}
SPOKEN = {"reasoning": {"effort": "high", "summary": "auto"}}
SENT: list[tuple[str, str | None, Effort | None, dict[str, Any]]] = [
    ("anthropic/claude-opus-5", None, "high", {**ADAPTIVE, "output_config": {"effort": "high"}}),
    ("anthropic/claude-opus-5", None, "off", {"thinking": {"type": "disabled"}}),
    ("anthropic/claude-opus-5", None, None, ADAPTIVE),
    ("anthropic/claude-opus-5", "proxy.example", None, {}),
    ("anthropic/claude-haiku-5-5", None, "off", {"thinking": {"type": "disabled"}}),
    ("anthropic/claude-sonnet-5-5", None, "off", {"thinking": {"type": "between_tools"}}),
    ("anthropic/claude-opus-5-5", None, "off", {**ADAPTIVE, "output_config": {"effort": "low"}}),
    ("anthropic/claude-fable-5-1", None, "xhigh", {**ADAPTIVE, "output_config": {"effort": "xhigh"}}),
    ("anthropic/claude-opus-4-6", None, "xhigh", {**ADAPTIVE, "output_config": {"effort": "high"}}),
    ("anthropic/claude-opus-4-6", None, "off", {}),
    ("anthropic/claude-opus-4-5-20251101", None, "max", {"output_config": {"effort": "high"}}),
    ("anthropic/claude-haiku-4-5", None, "high", {}),
    ("anthropic/claude-3-5-sonnet-20241022", None, "high", {}),
    ("openai/gpt-5.5", None, "high", SPOKEN),
    ("openai/gpt-5.5", None, "off", {"reasoning": {"effort": "none"}}),
    ("openai/gpt-5.6-terra", None, "max", {"reasoning": {"effort": "max", "summary": "auto"}}),
    ("openai/gpt-5-mini", None, "off", {"reasoning": {"effort": "minimal", "summary": "auto"}}),
    ("openai/gpt-5-pro", None, "low", SPOKEN),
    ("openai/o3", None, "high", SPOKEN),
    ("openai/gpt-4o", None, "high", {}),
    ("openai/gpt-5.1-chat-latest", None, "high", {}),
    ("openai/gpt-5.5", None, None, {}),
    ("openai/gpt-oss:20b", "127.0.0.1", "max", {"reasoning": {"effort": "high"}}),
    ("openai-chat/gpt-5-mini", None, "low", {"reasoning_effort": "low"}),
    ("openai/gpt-5.5", "proxy.example", "high", SPOKEN),
    ("openai-chat/gpt-5.5", "proxy.example", "max", {"reasoning_effort": "xhigh"}),
    ("openai-chat/gpt-5.6", None, "high", {"reasoning_effort": "none"}),
    ("openai-chat/gpt-5.6", None, None, {"reasoning_effort": "none"}),
    ("openai-chat/anthropic/claude-opus-5", "openrouter.ai", "low", {"reasoning": {"effort": "low"}}),
    ("openai-chat/deepseek-flash", "api.deepseek.com", "max",
     {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
    ("openai-chat/deepseek-flash", "api.deepseek.com", "off", {"thinking": {"type": "disabled"}}),
    ("openai-chat/Qwen/Qwen3-8B", "127.0.0.1", "medium",
     {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}, "reasoning_effort": "medium"}),
    ("openai-chat/qwen3:8b", "127.0.0.1", "off",
     {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}, "reasoning_effort": "none"}),
    ("openai-chat/gpt-oss-20b", "127.0.0.1", "low",
     {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}),
    ("openai-chat/qwen2.5-coder", "127.0.0.1", "high", {}),
    ("offline/surveyor", None, "high", {}),
    ("codex/gpt-5.5", None, "high", {}),
]  # fmt: skip


@pytest.mark.parametrize(("ref", "host", "effort", "body"), SENT)
def test_each_provider_gets_an_effort_in_its_own_form(ref, host, effort, body) -> None:
    assert choose(ref, host, effort).body == body


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.provider} {row.name}")
def test_an_effort_that_a_model_lacks_becomes_its_nearest(row, effort) -> None:
    found = nearest(effort, row.names)
    assert found in row.names
    assert effort not in row.names or found == effort
    assert effort == "off" or found != "none" or row.names == ("none",)


def test_a_line_says_what_a_model_gets_in_place_of_what_was_chosen() -> None:
    lines = {
        (ref, effort): notice(ref, None, effort)
        for ref, effort in [
            ("anthropic/claude-opus-5", "high"), ("anthropic/claude-opus-5", None), ("anthropic/claude-haiku-4-5", "off"),
            ("anthropic/claude-haiku-4-5", "high"), ("anthropic/claude-opus-4-6", "xhigh"),
            ("anthropic/claude-opus-5-5", "off"), ("openai-chat/gpt-5.6", "high"),
        ]
    }  # fmt: skip
    assert [*lines.values()] == [
        None, None, None,
        "anthropic/claude-haiku-4-5 has no effort setting; effort high is ignored",
        "anthropic/claude-opus-4-6 does not support effort xhigh; using high, the nearest level",
        "anthropic/claude-opus-5-5 always reasons; using effort low, its lowest",
        "openai-chat/gpt-5.6 cannot reason with tools in this API; effort high is ignored (openai/ supports it)",
    ]  # fmt: skip


def test_only_a_model_that_thinks_gets_more_room_for_its_reply() -> None:
    assert thinking_tokens("anthropic/claude-opus-5", None, "high") > 8_192
    for ref, effort in [
        ("anthropic/claude-opus-5", None),
        ("anthropic/claude-opus-5", "off"),
        ("openai/gpt-4o", "max"),
    ]:
        assert thinking_tokens(ref, None, effort) == 0


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (None, None),
        ("https://api.anthropic.com/", None),
        ("http://127.0.0.1:80/v1", "127.0.0.1"),
        ("nonsense", None),
    ],
)
def test_a_server_is_told_from_the_providers_own(url, host) -> None:
    assert other_host("anthropic/claude-opus-5", url) == host


def test_the_guide_has_the_table() -> None:
    rows = [
        " | ".join((f"| {api}", models, f"`{field}`", f"{values} |"))
        for api, models, field, values in documented()
    ]
    head = ["| API | Models | Field | Efforts |", "|---|---|---|---|"]
    agrees("model-efforts.md", "efforts", "".join(f"{row}\n" for row in (*head, *rows)))


# --- Over the wire ------------------------------------------------------------------------------------------


def _model(kind: type[Any], name: str, url: str, lines: list[str]) -> Any:
    MADE.append(
        kind(
            name,
            api_key="test-key",
            base_url=url,
            rng=random.Random(7),
            timeouts=IMPATIENT,
            notice=lines.append,
        )
    )
    return MADE[-1]


REFUSED = [
    (AnthropicModel, "claude-opus-5", "output_config: Extra inputs are not permitted", {"output_config"}),
    (AnthropicModel, "claude-opus-4-7", '"thinking.type.adaptive" is not supported for this model.', {"thinking"}),
    (AnthropicModel, "claude-opus-4-5", "This model does not support the effort parameter.", {"output_config"}),
    (ChatModel, "gpt-oss-20b", "property 'chat_template_kwargs' is unsupported", {"chat_template_kwargs"}),
    (ChatModel, "qwen3:8b", '"qwen3:8b" does not support thinking', {"reasoning_effort"}),
    (ResponsesModel, "gpt-oss", "Unsupported parameter: 'reasoning.effort' is not supported with this model.", {"reasoning"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "message", "gone"), REFUSED)
async def test_an_argument_that_a_server_refuses_is_left_out_with_one_line(
    serve: Serve, kind, name, message, gone
):
    refusal = Status(400, "invalid_request_error", message)
    server = serve(in_turn(refusal, Reply([text("yes")]), Reply([text("again")])))
    model = _model(kind, name, server.url, lines := [])
    for _ in range(2):
        assert (await reply_of(model, asking(effort="high"))).retries == 0
    first, second, third = server.requests
    assert gone <= first.keys()
    assert first.keys() - second.keys() == gone
    assert second == third
    assert len(lines) == 1
    assert f"rejects `{gone.pop()}`" in lines[0]


async def test_a_summary_that_openai_refuses_leaves_the_effort_and_says_nothing(serve: Serve) -> None:
    refusal = Status(
        400, "invalid_request_error", "Your organization must be verified to generate reasoning summaries."
    )
    server = serve(in_turn(refusal, Reply([text("yes")])))
    model = _model(ResponsesModel, "gpt-5.5", server.url, lines := [])
    await reply_of(model, asking(effort="high"))
    assert [body["reasoning"] for body in server.requests] == [SPOKEN["reasoning"], {"effort": "high"}]
    assert lines == []


def _answered(call: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "ok"}]}


BOUND = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
    ' Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
CHANGED = (
    "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."
    " These blocks must remain as they were in the original response."
)


@pytest.mark.parametrize("message", [BOUND, CHANGED])
async def test_thinking_that_the_api_refuses_is_left_out_and_newer_thinking_is_kept(
    serve: Serve, message
) -> None:
    old = [thinking("old", "b2xk"), {"type": "redacted_thinking", "data": "c2VhbA=="}, tool("look", {}, "t1")]
    new = [thinking("new", "bmV3"), tool("look", {}, "t2")]
    server = serve(in_turn(Status(400, "invalid_request_error", message), Reply(new), Reply([text("done")])))
    model = _model(AnthropicModel, "claude-opus-5-5", server.url, lines := [])
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": old}, _answered("t1")]
    reply = await reply_of(model, ModelRequest("", history, [LOOK], effort="low"))
    history += [{"role": "assistant", "content": reply.content}, _answered("t2")]
    await reply_of(model, ModelRequest("", history, [LOOK], effort="low"))
    refused, again, later = server.requests
    assert refused["messages"][1]["content"] == old
    assert again["messages"][1]["content"] == later["messages"][1]["content"] == [old[-1]]
    assert later["messages"][3]["content"] == new
    assert (server.refused, lines) == ([], [])


async def test_thinking_and_its_seals_go_back_unchanged_within_a_tool_loop(serve: Serve) -> None:
    first = [
        thinking("", "ZW1wdHk="), {"type": "redacted_thinking", "data": "c2VhbA=="}, text("I look."),
        thinking("between", "bW9yZQ=="), tool("look", {}, "t1"),
    ]  # fmt: skip
    server = serve(in_turn(Reply(first), Reply([text("done")])))
    model = _model(AnthropicModel, "claude-opus-5", server.url, [])
    reply = await reply_of(
        model, ModelRequest("", [{"role": "user", "content": "go"}], [LOOK], effort="high")
    )
    assert reply.content == first
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": reply.content},
        _answered("t1"),
    ]
    await reply_of(model, ModelRequest("", history, [LOOK], effort="high"))
    assert server.requests[1]["messages"][1]["content"] == first


def test_thinking_that_a_limit_cut_is_not_sent_back() -> None:
    cut = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [text("well"), thinking("and th", "")]},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": [thinking("only", "")]},
        {"role": "user", "content": "go on"},
    ]
    sent = request_body("claude-opus-5", ModelRequest("", cut), prompt_cache=False)["messages"]
    assert sent[1]["content"] == [text("well")]
    assert sent[3]["content"] == [text("(no message)")]


def test_an_effort_changes_no_byte_of_what_the_cache_holds() -> None:
    request = asking("hello", tools=[LOOK])
    bodies = [
        request_body("claude-opus-5", request, arguments=choose("anthropic/claude-opus-5", None, effort).body)
        for effort in (None, *EFFORTS)
    ]
    prefixes = {json.dumps([body["tools"], body["system"], body["messages"]]) for body in bodies}
    assert len(prefixes) == 1


# --- Chat servers that want their reasoning back ------------------------------------------------------------


def _chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _reply(returned: str | None, *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    assembler = ChatAssembler([LOOK], random.Random(7), returned=returned)
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}
    for delta in (*deltas, {"tool_calls": [call]}):
        list(assembler.take(_chunk(**delta)))
    list(assembler.take({**_chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}))
    return assembler.finish()


def _sent_back(content: list[dict[str, Any]], returned: str | None) -> dict[str, Any]:
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": content},
        _answered("c1"),
    ]
    message: dict[str, Any] = chat_body("m", ModelRequest("", history, [LOOK]), returned=returned)[
        "messages"
    ][1]
    return {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}


def test_deepseek_gets_its_reasoning_back_and_it_counts_as_text() -> None:
    content = _reply("reasoning_content", {"reasoning_content": "let me "}, {"reasoning_content": "see"})
    assert content[0]["thinking"] == "let me see"
    assert _sent_back(content, "reasoning_content") == {"reasoning_content": "let me see"}
    assert count_block(content[0], CallableCounter(len)) == len("let me see")


def test_other_chat_servers_get_none_back_and_it_counts_nothing() -> None:
    content = _reply(None, {"reasoning_content": "let me see"})
    assert content[0]["thinking"] == "let me see"
    assert _sent_back(content, None) == {}
    assert count_block(content[0], CallableCounter(len)) == 0
    assert _sent_back(_reply("reasoning_content", {"reasoning": "mine"}), "reasoning_details") == {}


def test_mistrals_thinking_is_told_from_its_text() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "let me see"}]}
    content = _reply(None, {"content": [thought, {"type": "text", "text": "On it."}]})
    assert [block.get("thinking") or block.get("text") for block in content[:2]] == ["let me see", "On it."]


def test_openrouter_gets_its_reasoning_back_in_the_form_in_which_it_came() -> None:
    def piece(**more: Any) -> dict[str, Any]:
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0, "format": "f", **more}]}

    content = _reply(
        "reasoning_details",
        {"reasoning": "let me ", **piece(text="let me ")},
        {"reasoning": "see", **piece(text="see")},
        piece(signature="c2lnbmVk"),
    )
    whole = {
        "type": "reasoning.text",
        "index": 0,
        "format": "f",
        "text": "let me see",
        "signature": "c2lnbmVk",
    }
    assert _sent_back(content, "reasoning_details") == {"reasoning_details": [whole]}
    plain = _reply("reasoning_details", {"reasoning": "only text"})
    assert _sent_back(plain, "reasoning_details") == {"reasoning": "only text"}


async def test_what_is_no_argument_of_openais_api_reaches_a_chat_server_too(serve: Serve) -> None:
    server = serve(in_turn(Reply([text("yes")])))
    await reply_of(_model(ChatModel, "qwen3:8b", server.url, []), asking(effort="off"))
    kwargs = {"enable_thinking": False, "thinking": False}
    assert server.requests[0]["chat_template_kwargs"] == kwargs
    assert server.requests[0]["reasoning_effort"] == "none"


async def test_thinking_is_priced_as_output(serve: Serve) -> None:
    """The provider counts it there, whether it shows it or not."""
    blocks = [thinking("", "c2VhbGVk"), text("yes")]
    server = serve(in_turn(Reply(blocks, usage={"input_tokens": 10, "output_tokens": 900})))
    reply = await reply_of(_model(AnthropicModel, "claude-opus-5", server.url, []), asking(effort="high"))
    assert reply.usage.output_tokens == 900
    cost = price("anthropic/claude-opus-5", reply.usage, True).usd
    assert cost == pytest.approx((10 * 5 + 900 * 25) / 1e6)
