"""The events of a reply, as the Messages API streams them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.answers import Block, Reply


def sse(event: str, data: Any) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def stream_events(reply: Reply, *, model: str, usage: dict[str, int]) -> Iterator[bytes]:
    """The events of a reply as Anthropic streams them."""
    message: Block = {
        "id": "msg_scripted", "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1},
    }  # fmt: skip
    yield sse("message_start", {"type": "message_start", "message": message})
    yield sse("ping", {"type": "ping"})
    for index, block in enumerate(reply.blocks):
        start, deltas = _block_events(block, reply)
        yield sse(
            "content_block_start", {"type": "content_block_start", "index": index, "content_block": start}
        )
        for delta in deltas:
            yield sse("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
        yield sse("content_block_stop", {"type": "content_block_stop", "index": index})
    has_tool = any(block.get("type") == "tool_use" for block in reply.blocks)
    reason = reply.stop_reason or ("tool_use" if has_tool else "end_turn")
    output = usage.get("output_tokens", max(1, len(json.dumps(reply.blocks)) // 4))
    yield sse(
        "message_delta", {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None},
         "usage": {"output_tokens": output}},
    )  # fmt: skip
    yield sse("message_stop", {"type": "message_stop"})


def _block_events(block: Block, reply: Reply) -> tuple[Block, list[Block]]:
    def pieces(whole: str) -> list[str]:
        return [whole[at : at + reply.piece] for at in range(0, len(whole), reply.piece)]

    match block.get("type"):
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            return {**block, "text": ""}, deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "tool_use":
            raw = reply.raw_inputs.get(block["id"], json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(raw)]]
            return {**block, "input": {}}, deltas
    return block, []
