"""The three forms in which a scripted reply travels: Anthropic's Messages API, OpenAI's Responses and Chat
Completions. A script reads and answers in the form of the Messages API, whichever wire the client uses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.answers import Block, Body, Raw, Reply
from tests.support.event_stream import sse, stream_events

JSON = "application/json"


@dataclass(frozen=True)
class Wire:
    """One API, as a server sees it."""

    provider: str
    path: str
    as_messages: Callable[[Body], Body]
    """A request's body in the form of the Messages API."""
    broken_rule: Callable[[Body], str | None]
    """Why this API would refuse the body, beside what `message_rules` says of its other form."""
    events: Callable[..., Iterator[bytes]]
    """The stream of a `Reply`; takes `model` and `usage`."""
    error: Callable[[str, str, str | None], Body]
    """The body of an HTTP error: type, message, code."""
    streamed_error: Callable[[str, str], bytes]
    """An error inside a stream: type, message."""
    odd: dict[str, bytes]
    """Events that no server should send: `fields` (without its fields), `lost` (of a block that never began),
    `nameless` (a tool call without a name)."""
    whole: Callable[[list[Block]], Body]
    """A reply in one piece, from a server that does not stream."""
    head_events: int = 4
    """How many events it takes to the first text."""


def head(wire: Wire) -> bytes:
    """The beginning of a stream, up to the first text."""
    events = list(
        wire.events(Reply([{"type": "text", "text": "partial"}]), model="m", usage={"input_tokens": 1})
    )
    return b"".join(events[: wire.head_events])


def whole_answer(wire: Wire, blocks: list[Block]) -> Raw:
    return Raw(json.dumps(wire.whole(blocks)).encode(), content_type=f"{JSON}; charset=utf-8")


def data(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


# --- the Messages API ---------------------------------------------------------------------------------------


def _messages_rule(body: Body) -> str | None:
    for place, message in enumerate(body.get("messages") or ()):
        content = message.get("content")
        if message.get("role") != "assistant" or not isinstance(content, list) or not content:
            continue
        if content[-1].get("type") in ("thinking", "redacted_thinking"):
            return f"messages.{place}: The final block in an assistant message cannot be `thinking`."
    return None


def _messages_error(kind: str, message: str, code: str | None) -> Body:
    error: Body = {"type": kind, "message": message}
    if code:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error, "request_id": "req_scripted"}


def _messages_whole(blocks: list[Block]) -> Body:
    return {
        "type": "message", "id": "msg_1", "model": "m", "content": blocks, "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }  # fmt: skip


_DELTA, _START = "content_block_delta", "content_block_start"
MESSAGES = Wire(
    "anthropic",
    "/v1/messages",
    as_messages=lambda body: body,
    broken_rule=_messages_rule,
    events=stream_events,
    error=_messages_error,
    streamed_error=lambda kind, message: sse(
        "error", {"type": "error", "error": {"type": kind, "message": message}}
    ),
    odd={
        "fields": sse(_DELTA, {"type": _DELTA}),
        "lost": sse(_DELTA, {"type": _DELTA, "index": 9, "delta": {"type": "text_delta", "text": "?"}}),
        "nameless": sse(
            _START, {"type": _START, "index": 1, "content_block": {"type": "tool_use", "id": "t"}}
        ),
    },
    whole=_messages_whole,
)


# --- OpenAI, both APIs --------------------------------------------------------------------------------------


def _openai_error(kind: str, message: str, code: str | None) -> Body:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _pieces(whole: str, size: int) -> list[str]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _joined(messages: list[Body]) -> list[Body]:
    """Neighbours of one role as one message."""
    joined: list[Body] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1]["content"] += message["content"]
        else:
            joined.append({**message, "content": list(message["content"])})
    return joined


def _parts(content: Any) -> list[Block]:
    """A user's or a tool's content as blocks; what is no text becomes an image."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {"type": "text", "text": part["text"]} if "text" in part else {"type": "image", "source": part}
        for part in content
    ]


def _tool_names(tools: list[Body], strict: bool) -> str | None:
    for tool in tools:
        function = tool if strict else tool["function"]
        if not 0 < len(function["name"]) <= 64:
            return f"Invalid 'tools[0].name': string too long: {function['name']}"
        if "properties" not in function["parameters"]:
            return "Invalid schema for function: object schema missing properties"
    return None


def _counts(usage: dict[str, int], blocks: list[Block], prompt: str, output: str) -> Body:
    read, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
    whole = usage.get("input_tokens", 0) + read + written
    said = usage.get("output_tokens", max(1, len(json.dumps(blocks)) // 4))
    return {
        prompt: whole, f"{prompt}_details": {"cached_tokens": read, "cache_write_tokens": written},
        output: said, f"{output}_details": {"reasoning_tokens": 0}, "total_tokens": whole + said,
    }  # fmt: skip


# --- Responses ----------------------------------------------------------------------------------------------


def _responses_as_messages(body: Body) -> Body:
    messages: list[Body] = []
    for item in body["input"]:
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item["role"], "content": _parts(item["content"])})
            case "function_call":
                use = {"type": "tool_use", "id": item["call_id"], "name": item["name"]}
                messages.append(
                    {"role": "assistant", "content": [{**use, "input": json.loads(item["arguments"])}]}
                )
            case "function_call_output":
                result = {
                    "type": "tool_result",
                    "tool_use_id": item["call_id"],
                    "content": _parts(item["output"]),
                }
                messages.append({"role": "user", "content": [result]})
    tools = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in body.get("tools", [])]
    return {
        "model": body["model"], "system": body.get("instructions", ""), "max_tokens": body["max_output_tokens"],
        "messages": _joined(messages), "tools": tools,
    }  # fmt: skip


def _responses_rule(body: Body) -> str | None:
    if body.get("store") is not False:
        return "a context that is kept by us must not be stored"
    items = body["input"]
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if kind not in ("message", "function_call", "function_call_output", "reasoning"):
            return f"Invalid value: '{kind}'"
        if kind == "reasoning":
            follower = items[place + 1] if place + 1 < len(items) else {}
            if (
                follower.get("type") not in ("reasoning", "function_call")
                and follower.get("role") != "assistant"
            ):
                return f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            if not isinstance(item.get("summary"), list):
                return f"Missing required parameter: 'input[{place}].summary'."
        if item.get("role") == "assistant" and {part["type"] for part in item["content"]} != {"output_text"}:
            return f"Invalid value: input[{place}].content: 'input_text'"
        extra = set(item) - {"type", "role", "content", "phase", "call_id", "name", "arguments", "output"}
        if kind != "reasoning" and extra:
            return f"Unknown parameter: input[{place}].{extra}"
    return _tool_names(body.get("tools", []), True)


def _responses_events(reply: Reply, *, model: str, usage: dict[str, int]) -> Iterator[bytes]:
    response: Body = {"id": "resp_scripted", "object": "response", "model": model, "status": "in_progress",
                      "output": [], "error": None, "incomplete_details": None, "usage": None}  # fmt: skip
    yield sse("response.created", {"type": "response.created", "response": response})
    yield sse("response.in_progress", {"type": "response.in_progress", "response": response})
    output = []
    for index, block in enumerate(reply.blocks):
        opened, deltas, done = _response_item(block, index, reply)
        if not done:
            continue
        at = {"output_index": len(output), "item_id": done["id"]}
        yield sse("response.output_item.added", {"type": "response.output_item.added", "item": opened, **at})
        for kind, piece in deltas:
            yield sse(kind, {"type": kind, "content_index": 0, "delta": piece, **at})
        yield sse("response.output_item.done", {"type": "response.output_item.done", "item": done, **at})
        output.append(done)
    yield sse(*_response_end(reply, response, output, usage))


def _response_item(block: Block, index: int, reply: Reply) -> tuple[Body, list[tuple[str, str]], Body]:
    match block["type"]:
        case "text":
            item: Body = {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "completed"}
            if "openai" in block:
                item |= block["openai"]
            refused = reply.stop_reason == "refusal"
            part = {"type": "refusal", "refusal": block["text"]} if refused else {
                "type": "output_text", "annotations": [], "text": block["text"]}  # fmt: skip
            kind = "response.refusal.delta" if refused else "response.output_text.delta"
            deltas = [(kind, piece) for piece in _pieces(block["text"], reply.piece)]
            return {**item, "status": "in_progress", "content": []}, deltas, {**item, "content": [part]}
        case "thinking":
            item = {
                "type": "reasoning",
                "id": f"rs_{index}",
                "summary": [{"type": "summary_text", "text": block["thinking"]}],
            }
            deltas = [
                ("response.reasoning_summary_text.delta", piece)
                for piece in _pieces(block["thinking"], reply.piece)
            ]
            return {**item, "summary": []}, deltas, {**item, "encrypted_content": block["signature"]}
        case "tool_use":
            raw = reply.raw_inputs.get(block["id"], json.dumps(block["input"]))
            item = {
                "type": "function_call", "id": f"fc_{index}", "call_id": block["id"], "name": block["name"],
            }  # fmt: skip
            deltas = [
                ("response.function_call_arguments.delta", piece) for piece in _pieces(raw, reply.piece)
            ]
            return {**item, "arguments": "", "status": "in_progress"}, deltas, {**item, "arguments": raw}
    return {}, [], {}


def _response_end(
    reply: Reply, response: Body, output: list[Body], usage: dict[str, int]
) -> tuple[str, Body]:
    reason = {"max_tokens": "max_output_tokens", "content_filter": "content_filter"}.get(
        reply.stop_reason or ""
    )
    status = "incomplete" if reason else "completed"
    ended = {**response, "status": status, "output": output,
             "incomplete_details": {"reason": reason} if reason else None,
             "usage": _counts(usage, reply.blocks, "input_tokens", "output_tokens")}  # fmt: skip
    return f"response.{status}", {"type": f"response.{status}", "response": ended}


def _responses_whole(blocks: list[Block]) -> Body:
    usage = {"input_tokens": 3, "output_tokens": 4}
    output = [_response_item(block, index, Reply(blocks))[2] for index, block in enumerate(blocks)]
    ended: Body = _response_end(
        Reply(blocks), {"id": "resp_1", "object": "response", "model": "m"}, output, usage
    )[1]
    whole: Body = ended["response"]
    return whole


_ADDED, _TEXT = "response.output_item.added", "response.output_text.delta"
RESPONSES = Wire(
    "openai",
    "/v1/responses",
    as_messages=_responses_as_messages,
    broken_rule=_responses_rule,
    events=_responses_events,
    error=_openai_error,
    streamed_error=lambda kind, message: sse(
        "response.failed", {"type": "response.failed",
         "response": {"status": "failed", "error": {"code": kind, "message": message}}},
    ),
    odd={
        "fields": sse(_TEXT, {"type": _TEXT, "output_index": 0}),
        "lost": sse(_TEXT, {"type": _TEXT, "output_index": 9, "delta": "?"}),
        "nameless": sse(
            _ADDED, {"type": _ADDED, "output_index": 1, "item": {"type": "function_call", "call_id": "t"}}
        )
        + sse("response.completed", {"type": "response.completed", "response": {"status": "completed"}}),
    },
    whole=_responses_whole,
)  # fmt: skip


# --- Chat Completions ---------------------------------------------------------------------------------------


def _chat_as_messages(body: Body) -> Body:
    system, messages = "", []
    for message in body["messages"]:
        match message["role"]:
            case "system":
                system = message["content"]
            case "user":
                messages.append({"role": "user", "content": _parts(message["content"])})
            case "tool":
                result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
                messages.append({"role": "user", "content": [{**result, "content": message["content"]}]})
            case "assistant":
                blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
                for call in message.get("tool_calls", ()):
                    use = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
                    blocks.append({**use, "input": json.loads(call["function"]["arguments"])})
                messages.append({"role": "assistant", "content": blocks})
    tools = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in body.get("tools", [])
    ]
    limit = body.get("max_tokens", body.get("max_completion_tokens"))
    return {
        "model": body["model"], "system": system, "max_tokens": limit, "messages": _joined(messages),
        "tools": tools,
    }  # fmt: skip


def _chat_rule(body: Body) -> str | None:
    asked: set[str] = set()
    for place, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in asked or not isinstance(message["content"], str):
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            asked.discard(message["tool_call_id"])
            continue
        if asked:
            return "An assistant message with 'tool_calls' must be followed by tool messages"
        if message["role"] == "system" and place:
            return "System message must be at the beginning."
        if not message.get("content") and not message.get("tool_calls"):
            return f"messages[{place}].content: must not be empty"
        if set(message) - {"role", "content", "tool_calls"}:
            return f"messages[{place}]: unknown field"
        asked = {call["id"] for call in message.get("tool_calls", ())}
    return _tool_names(body.get("tools", []), False)


def _chunk(model: str, delta: Body | None, reason: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    return data(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": model, "choices": choices, **more}
    )


FINISH = {"max_tokens": "length", "refusal": "stop", "end_turn": "stop", "tool_use": "tool_calls"}


def _chat_events(reply: Reply, *, model: str, usage: dict[str, int]) -> Iterator[bytes]:
    yield _chunk(model, {"role": "assistant", "content": ""})
    calls = 0
    for block in reply.blocks:
        match block["type"]:
            case "thinking":
                for piece in _pieces(block["thinking"], reply.piece):
                    yield _chunk(model, {"reasoning_content": piece})
            case "text":
                key = "refusal" if reply.stop_reason == "refusal" else "content"
                for piece in _pieces(block["text"], reply.piece):
                    yield _chunk(model, {key: piece})
            case "tool_use":
                begun = {
                    "id": block["id"],
                    "type": "function",
                    "function": {"name": block["name"], "arguments": ""},
                }
                yield _chunk(model, {"tool_calls": [{"index": calls, **begun}]})
                raw = reply.raw_inputs.get(block["id"], json.dumps(block["input"]))
                for piece in _pieces(raw, reply.piece):
                    yield _chunk(model, {"tool_calls": [{"index": calls, "function": {"arguments": piece}}]})
                calls += 1
    reason = reply.stop_reason or ("tool_use" if calls else "end_turn")
    yield _chunk(model, {}, FINISH.get(reason, reason))
    yield _chunk(model, None, usage=_counts(usage, reply.blocks, "prompt_tokens", "completion_tokens"))
    yield b"data: [DONE]\n\n"


def _chat_whole(blocks: list[Block]) -> Body:
    calls = [
        {"id": block["id"], "type": "function",
         "function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
        for block in blocks if block["type"] == "tool_use"
    ]  # fmt: skip
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    return {
        "id": "1",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": usage,
    }


CHAT = Wire(
    "openai-chat",
    "/v1/chat/completions",
    as_messages=_chat_as_messages,
    broken_rule=_chat_rule,
    events=_chat_events,
    error=_openai_error,
    streamed_error=lambda kind, message: data({"error": {"message": message, "type": kind, "code": None}}),
    odd={
        "fields": data({"choices": [None]}),
        "lost": data(
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": 7}}]}}]}
        ),
        "nameless": _chunk("m", {"tool_calls": [{"index": 0, "id": "t", "function": {"arguments": "{}"}}]})
        + _chunk("m", {}, "tool_calls"),
    },
    whole=_chat_whole,
    head_events=2,
)

WIRES = (MESSAGES, RESPONSES, CHAT)
