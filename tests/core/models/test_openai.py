"""OpenAI's two APIs over the real SDK: what becomes of messages on the way out, and of replies on the way in."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.answers import Raw, Reply, Status, in_turn, text, thinking, tool
from tests.support.event_stream import sse
from tests.support.model_calls import Serve, asking, events_of, model_of, reply_of
from tests.support.wires import CHAT, MESSAGES, RESPONSES, WIRES, Wire, data

from watchkeeper.memory.tokens import CallableCounter, count_block, opaque_tokens
from watchkeeper.models.openai import (
    ChatAssembler,
    ResponsesAssembler,
    api_root,
    chat_body,
    responses_body,
    wire_name,
)
from watchkeeper.models.registry import context_window, price, resolve
from watchkeeper.models.stream import BrokenStream, StreamedError
from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest, ToolSpec, Usage

LOOK = ToolSpec("look", "Look at a path.", {"type": "object"})
BLOCKS: list[dict[str, Any]] = [
    thinking("let me see", "c2VhbGVk"),
    text("Looking at two places."),
    tool("look", {"path": "a"}, "call_1"),
    tool("look", {"path": 'ä\n"b"'}, "call_2"),
]
OPENAI = pytest.mark.parametrize("wire", [RESPONSES, CHAT], ids=lambda wire: wire.provider)


def answered(*calls: str) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call, "content": "ok"} for call in calls],
    }


async def test_reasoning_stays_sealed_and_is_sent_back_unchanged(serve: Serve) -> None:
    said = {**text("On it."), "openai": {"phase": "commentary"}}
    server = serve(in_turn(Reply([BLOCKS[0], said, BLOCKS[2]]), Reply([text("done")])))
    model = model_of(server, RESPONSES)
    reply = await reply_of(model, asking(tools=[LOOK]))
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": reply.content},
    ]
    await reply_of(model, ModelRequest("", [*history, answered("call_1")], [LOOK]))
    summary = [{"type": "summary_text", "text": "let me see"}]
    output = [{"type": "output_text", "text": "On it."}]
    assert server.requests[1]["input"][1:4] == [
        {"type": "reasoning", "id": "rs_0", "summary": summary, "encrypted_content": "c2VhbGVk"},
        {"type": "message", "role": "assistant", "content": output, "phase": "commentary"},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"path": "a"}'},
    ]
    assert server.requests[1]["include"] == ["reasoning.encrypted_content"]
    assert server.refused == []
    counted = count_block({**reply.content[0], "signature": "s" * 1_000}, CallableCounter(len))
    assert counted == opaque_tokens("s" * 1_000), "what is sealed is not text"


async def test_a_history_of_one_vendor_is_legal_for_each_other(serve: Serve) -> None:
    """Replies of all three, in every order, with an image, a failed tool, and a reply of thinking alone."""
    replies = []
    for wire in WIRES:
        blocks = [*BLOCKS[:2], tool("look", {"path": "a"}, f"{wire.provider}-1")]
        server = serve(in_turn(Reply(blocks), Reply([thinking("nothing to say", "c2VhbGVk")])))
        model = model_of(server, wire)
        replies.append([(await reply_of(model)).content, (await reply_of(model)).content])
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    for order in itertools.permutations(range(3)):
        history: list[dict[str, Any]] = [{"role": "user", "content": [text("see"), image]}]
        for vendor in order:
            first, second = replies[vendor]
            call = first[-1]["id"]
            failed = {"type": "tool_result", "tool_use_id": call, "content": [text("no such file"), image]}
            history += [
                {"role": "assistant", "content": first},
                {"role": "user", "content": [{**failed, "is_error": True}]},
            ]
            if second:
                history += [{"role": "assistant", "content": second}, {"role": "user", "content": "go on"}]
        for wire in WIRES:
            server = serve(in_turn(Reply([text("ok")])))
            await reply_of(model_of(server, wire), ModelRequest("s", history, [LOOK]))
            assert server.refused == []
            sent = json.dumps(server.requests[0])
            assert sent.count("no such file") == 3
            assert sent.count("iVBORw0KGgo=") == 4
            assert wire is MESSAGES or "Error: no such file" in sent
            assert sent.count('"type": "reasoning"') == (1 if wire is RESPONSES else 0)
            assert wire is not MESSAGES or '"openai"' not in sent


async def test_items_are_told_apart_by_their_ids_where_a_server_gives_no_index(serve: Serve) -> None:
    """As llama.cpp streams them."""
    events = RESPONSES.events(Reply(BLOCKS), model="m", usage={"input_tokens": 3})
    stream = b"".join(re.sub(rb'"output_index": \d+, ', b"", event) for event in events)
    reply = await reply_of(model_of(serve(in_turn(Raw(stream))), RESPONSES), asking(tools=[LOOK]))
    assert reply.content[1:] == BLOCKS[1:]


STOPS = [("max_tokens", "max_tokens"), ("content_filter", "refusal"), ("refusal", "refusal")]


@pytest.mark.parametrize(
    ("wire", "reason", "outcome"),
    [*((wire, *stop) for wire in (RESPONSES, CHAT) for stop in STOPS), (CHAT, "eos", "eos")],
)
async def test_why_a_reply_stopped_is_said_in_one_vocabulary(serve, wire, reason, outcome):
    reply = await reply_of(model_of(serve(in_turn(Reply([text("I cannot")], reason))), wire))
    assert (reply.stop_reason, reply.content) == (outcome, [text("I cannot")])


CODES = {
    "pause": ("insufficient_quota", "billing_hard_limit_reached", "invalid_api_key", "model_not_found"),
    "compact": ("context_length_exceeded",),
    "retry": ("rate_limit_exceeded", "server_error", "server_is_overloaded"),
    "fail": ("invalid_prompt",),
}


@pytest.mark.parametrize(("kind", "code"), [(kind, code) for kind, codes in CODES.items() for code in codes])
@OPENAI
async def test_a_code_means_the_same_in_a_response_and_inside_its_stream(serve, wire, code, kind):
    status = {"pause": 429, "compact": 400, "fail": 400, "retry": 429 if "limit" in code else 500}[kind]
    plain = Status(
        status,
        {429: "requests", 500: "server_error"}.get(status, "invalid_request_error"),
        "Sorry.",
        error_code=code,
    )
    error = {"type": None, "code": code, "message": "Sorry.", "param": None}
    flat = sse("error", {**error, "type": "error", "sequence_number": 3})
    failed = sse("response.failed", {"type": "response.failed", "response": {"error": error}})
    inside = Raw(flat) if wire is RESPONSES else Raw(data({"error": error}))
    for answer in (plain, inside, Raw(failed) if wire is RESPONSES else plain):
        server = serve(in_turn(answer, Reply([text("recovered")])))
        if kind == "retry":
            assert (await reply_of(model_of(server, wire))).retries == 1
            continue
        with pytest.raises(ModelError) as caught:
            await events_of(model_of(server, wire))
        assert caught.value.kind is ErrorKind(kind)


# --- calls in every dialect of Chat Completions -------------------------------------------------------------


@st.composite
def _dialects(draw: Any) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """Calls (name, input), and the pieces in which some server would send them."""
    inputs = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=3)
    calls = draw(st.lists(st.tuples(st.sampled_from(["look", "read_file"]), inputs), min_size=1, max_size=4))
    index = draw(st.sampled_from(["counted", "none", "zero"]))
    ids = draw(st.sampled_from(["unique", "none"] if index != "zero" else ["unique"]))
    repeats = draw(st.booleans())
    size = draw(st.integers(1, 9))
    pieces: list[dict[str, Any]] = []
    for number, (name, value) in enumerate(calls):
        raw = json.dumps(value)
        at = {"counted": {"index": number}, "zero": {"index": 0}, "none": {}}[index]
        own = {"id": f"call_{number}"} if ids == "unique" else {}
        if draw(st.booleans()) and index == "counted":
            pieces.append({**at, **own, "function": {"name": name[:3]}})
            pieces.append({**at, "function": {"name": name[3:]}})
        else:
            pieces.append({**at, **own, "type": "function", "function": {"name": name, "arguments": ""}})
        for start in range(0, len(raw), size):
            function = {"arguments": raw[start : start + size]}
            if repeats and index == "counted":
                function["name"] = name
            pieces.append({**at, "function": function})
    return [(name, json.dumps(value)) for name, value in calls], pieces


@given(_dialects())
@settings(max_examples=60)
def test_calls_are_put_together_whatever_a_server_leaves_out(case):
    calls, pieces = case
    assembler = ChatAssembler([LOOK], random.Random(7))
    for piece in pieces:
        list(assembler.take({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}))
    list(assembler.take({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    blocks = assembler.finish()
    assert [(block["name"], json.dumps(block["input"])) for block in blocks] == calls
    assert len({block["id"] for block in blocks}) == len(blocks)
    assert (assembler.stop_reason, assembler.invalid_inputs) == ("tool_use", {})


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        ('{"name": "look", "arguments": {"path": "a"}}', ["a"]),
        ('```json\n{"name": "look", "parameters": {"path": "a"}}\n```', ["a"]),
        ('<tool_call>\n{"name": "look", "arguments": {"path": "a"}}\n</tool_call>\n'
         '<tool_call>{"name": "look", "arguments": {"path": "b"}}</tool_call>', ["a", "b"]),
        ('[{"name": "look", "arguments": {"path": "a"}}, {"name": "look", "arguments": {"path": "b"}}]', ["a", "b"]),
        ('I call it: {"name": "look", "arguments": {"path": "a"}}', []),
        ('{"name": "look", "arguments": {"path": "a"}} and then?', []),
        ('{"name": "look", "arguments": {"path": "a"}}}\n\n{"name": "look", "arguments": {"path": "b"}}}', ["a", "b"]),
        ('{"name": "look", "arguments": "a"}', []),
        ('{"name": "look", "arguments": {"path": "a"}, "status": "done"}', ["a"]),
        ('{"name": "a book", "arguments": {"path": "a"}}', []),
        ('{"name": "report", "arguments": {"path": "a"}, "more": 1}', []),
        ('{"name": "look"', []),
        ("[" * 100_000, []),
        ("```", []),
    ],
)  # fmt: skip
@OPENAI
async def test_a_reply_that_is_nothing_but_calls_written_as_text_is_those_calls(serve, said, calls, wire):
    """As small models write them where their server does not know their form."""
    model = model_of(serve(lambda body: Reply([text(said)], piece=4_096)), wire)
    reply = await reply_of(model, asking(tools=[LOOK]))
    assert [block["input"]["path"] for block in reply.content if block["type"] == "tool_use"] == calls
    assert reply.stop_reason == ("tool_use" if calls else "end_turn")
    assert calls or reply.content == [text(said)]
    assert (await reply_of(model)).content == [text(said)], "without tools there is nothing to call"


async def test_ids_that_repeat_or_that_no_other_vendor_takes_are_replaced(serve: Serve) -> None:
    blocks = [
        tool("look", {"n": 1}, "same"),
        tool("look", {"n": 2}, "same"),
        tool("look", {"n": 3}, "functions.look:0"),
    ]
    for wire in (RESPONSES, CHAT):
        reply = await reply_of(model_of(serve(in_turn(Reply(blocks))), wire))
        ids = [block["id"] for block in reply.content]
        assert [block["input"]["n"] for block in reply.content] == [1, 2, 3]
        assert ids[0] == "same"
        assert all(found.startswith("call_") for found in ids[1:])
        assert len(set(ids)) == 3


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["x", "stop", "text", "function_call", "message", "reasoning"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "item", "output_index", "delta", "response", "output", "choices", "tool_calls", "function", "name", "id",
                 "index", "arguments", "content", "finish_reason", "usage", "summary", "error", "call_id", "message"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)  # fmt: skip
_EVENTS = st.sampled_from(
    [f"response.{name}" for name in ("created", "output_item.added", "output_item.done", "output_text.delta",
     "function_call_arguments.delta", "function_call_arguments.done", "completed", "incomplete", "failed")] + ["error"]
)  # fmt: skip


@given(st.lists(st.tuples(_EVENTS, st.dictionaries(st.sampled_from(["item", "output_index", "delta", "response", "choices", "usage"]), _JSON)), max_size=6))  # fmt: skip
@settings(max_examples=60)
def test_whatever_a_server_sends_a_reply_is_whole_or_broken(events: list[tuple[str, dict[str, Any]]]) -> None:
    for kind in (ResponsesAssembler, ChatAssembler):
        assembler = kind([LOOK], random.Random(7))
        try:
            for name, fields in events:
                list(assembler.take({"type": name, **fields}))
            blocks = assembler.finish()
        except (BrokenStream, StreamedError):
            continue
        json.dumps(blocks)
        assert assembler.stop_reason


# --- usage, prices, windows ---------------------------------------------------------------------------------


@OPENAI
async def test_cached_input_is_counted_once_and_reasoning_is_output(serve: Serve, wire: Wire) -> None:
    usage = {"input_tokens": 1_000, "cache_read_input_tokens": 7_000, "output_tokens": 500}
    reply = await reply_of(model_of(serve(in_turn(Reply([text("ok")], usage=usage))), wire))
    assert reply.usage == Usage(1_000, 500, 7_000)
    cost = price("openai/gpt-5", reply.usage)
    assert cost.usd == pytest.approx((1_000 * 1.25 + 7_000 * 0.125 + 500 * 10) / 1e6)


async def test_reasoning_that_a_server_left_out_of_its_output_is_found_in_the_total(serve: Serve) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115, "prompt_tokens_details": None}
    chunk = {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}], "usage": usage}
    reply = await reply_of(model_of(serve(in_turn(Raw(data(chunk)))), CHAT))
    assert reply.usage == Usage(10, 105)


@OPENAI
async def test_usage_that_was_not_reported_is_estimated_and_says_so(serve: Serve, wire: Wire) -> None:
    ends = {
        "openai": sse("response.completed", {"type": "response.completed", "response": {"output": [
            {"type": "message", "content": [{"type": "output_text", "text": "a" * 400}]}]}}),
        "openai-chat": data({"choices": [{"index": 0, "delta": {"content": "a" * 400}, "finish_reason": "stop"}]}),
    }  # fmt: skip
    reply = await reply_of(model_of(serve(in_turn(Raw(ends[wire.provider]))), wire), asking("b" * 4_000))
    assert not reply.usage_exact
    assert 900 < reply.usage.prompt_tokens < 1_100
    assert reply.content == [text("a" * 400)]
    assert wire is RESPONSES or reply.usage.output_tokens == 100


def test_a_model_of_another_server_has_a_price_where_it_is_known_and_a_window_by_default() -> None:
    found = price("openai-chat/gpt-5", Usage(1_000_000), base_url="http://127.0.0.1:1/v1").status
    assert found == "estimated"
    found = price("openai-chat/gpt-5", Usage(1_000_000), base_url="https://api.openai.com/v1").status
    assert found == "exact"
    assert price("openai-chat/qwen2.5-coder", Usage(1)).usd is None
    assert price("openai-chat/anthropic/claude-sonnet-4.5", Usage(1_000_000)).usd
    assert context_window("openai/gpt-5") == resolve("openai/gpt-5").context_window == 400_000


def test_a_local_model_has_a_modest_window_unless_one_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8080")
    assert resolve("openai-chat/some-local-model").context_window == 32_768
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert resolve("openai/gpt-of-tomorrow").context_window == 128_000


# --- servers and what they refuse ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_url", "root"),
    [
        ("http://localhost:8080", "http://localhost:8080/v1"),
        ("http://localhost:8080/", "http://localhost:8080/v1"),
        ("http://localhost:11434/v1/", "http://localhost:11434/v1"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
        ("http://localhost:8080/v1/chat/completions", "http://localhost:8080/v1"),
        ("http://localhost:8080/v1/responses", "http://localhost:8080/v1"),
    ],
)
def test_an_address_may_be_written_as_servers_print_it(given_url: str, root: str) -> None:
    assert api_root(given_url) == root


@OPENAI
async def test_a_server_of_ones_own_needs_no_key_and_gets_none_that_was_not_chosen(serve, wire, monkeypatch):
    server = serve(lambda body: Reply([text("ok")]))
    await reply_of(model_of(server, wire, api_key=None))
    assert "authorization" not in server.headers[-1]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    await reply_of(model_of(server, wire, api_key=None, sends_key=False))
    assert "authorization" not in server.headers[-1]
    await reply_of(model_of(server, wire, api_key=None))
    assert server.headers[-1]["authorization"] == "Bearer sk-of-the-environment"
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    await reply_of(model_of(server, wire, base_url=None))
    assert server.headers[-1]["authorization"] == "Bearer test-key"


@pytest.mark.parametrize(
    ("wire", "message", "gone"),
    [
        (RESPONSES, "Encrypted content is not supported with this model.", "include"),
        (RESPONSES, "The encrypted content gAAA... could not be verified.", "include"),
        (CHAT, "Unknown parameter: 'stream_options'.", "stream_options"),
        (CHAT, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens"),
    ],
)
async def test_an_argument_that_a_server_refuses_is_left_out_from_then_on(serve, wire, message, gone):
    refusal = Status(400, "invalid_request_error", message)
    server = serve(in_turn(refusal, Reply([text("ok")]), Reply([text("ok")]), refusal))
    model = model_of(server, wire)
    assert [(await reply_of(model)).retries for _ in range(2)] == [0, 0]
    assert [gone in body for body in server.requests] == [True, False, False]
    with pytest.raises(ModelError) as caught:
        await events_of(model)
    assert caught.value.kind is ErrorKind.FAIL


@OPENAI
async def test_a_long_name_of_a_tool_is_shortened_on_the_wire_alone(serve: Serve, wire: Wire) -> None:
    name = "mcp__a_server_with_a_long_name__" + "a_tool_with_a_long_name" * 3
    server = serve(lambda body: Reply([tool(body["tools"][0]["name"], {}, "call_9")]))
    spec = ToolSpec(name, "", {"type": "object"})
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [tool(name, {}, "call_1")]},
        answered("call_1"),
    ]
    reply = await reply_of(model_of(server, wire), ModelRequest("", history, [spec]))
    assert reply.content[0]["name"] == name
    assert server.refused == []
    assert wire_name(name) in json.dumps(server.requests[0])
    assert name not in json.dumps(server.requests[0])


def test_reasoning_that_nothing_follows_is_not_sent_back() -> None:
    """A reply that was cut while the model reasoned holds nothing else; the API refuses it so."""
    sealed = {
        "type": "thinking",
        "thinking": "",
        "signature": "c2VhbGVk",
        "openai": {"type": "reasoning", "id": "r", "summary": []},
    }
    request = ModelRequest("", [{"role": "user", "content": "x"}, {"role": "assistant", "content": [sealed]}])
    assert [item["role"] for item in responses_body("m", request)["input"]] == ["user", "assistant"]
    assert chat_body("m", request)["messages"][1]["content"]
