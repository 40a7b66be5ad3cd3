"""A `ModelRequest` as the body of a Messages API call, with prompt-cache breakpoints where they pay.

A breakpoint says "what stands before this will come again". At most four are allowed; used are the end of the
tools, of the system prompt, of the stable prefix (pinned messages and observations, byte-identical between
compactions) and of the last message, so that the next turn reads this one from the cache. From a breakpoint
the provider looks back at most 20 blocks for what it knows. After a turn of more blocks than that (many
parallel calls), the breakpoint of the tools is spent on the end of the previous turn instead.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.models.text import without_lone_surrogates
from watchkeeper.records.model import ModelRequest

BREAKPOINT = {"type": "ephemeral"}
LOOKBACK_BLOCKS = 18
"""A little less than the provider's 20: which blocks it counts is not documented to the last one."""
UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})
"""Blocks that the API refuses a breakpoint on; they must also be sent back untouched."""


def request_body(model: str, request: ModelRequest, *, prompt_cache: bool = True) -> dict[str, Any]:
    """The arguments of `messages.create` for this request. The request itself is left as it is."""
    messages = [
        {"role": message["role"], "content": without_lone_surrogates(message["content"])}
        for message in request.messages
    ]
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_tokens, "messages": messages}
    if request.tools:
        body["tools"] = [
            without_lone_surrogates(
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            )
            for tool in request.tools
        ]
    if request.system:
        body["system"] = [{"type": "text", "text": without_lone_surrogates(request.system)}]
    if prompt_cache:
        _mark(body, request.stable_prefix)
    return body


def _mark(body: dict[str, Any], stable_prefix: int) -> None:
    messages = body["messages"]
    places = {min(stable_prefix, len(messages)) - 1, len(messages) - 1}
    previous_end = len(messages) - 3  # a turn adds the assistant's message and the answer to it
    long_turn = previous_end >= 0 and _blocks(messages[previous_end + 1 :]) > LOOKBACK_BLOCKS
    if long_turn:
        places.add(previous_end)
    if "tools" in body and not (long_turn and body.get("system")):
        body["tools"][-1] = {**body["tools"][-1], "cache_control": BREAKPOINT}
    if body.get("system"):
        body["system"][-1]["cache_control"] = BREAKPOINT
    for index in places:
        if index >= 0:
            messages[index] = _marked(messages[index])


def _blocks(messages: list[dict[str, Any]]) -> int:
    return sum(1 if isinstance(message["content"], str) else len(message["content"]) for message in messages)


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a breakpoint on its last block that may carry one; itself if none may."""
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for place in range(len(content) - 1, -1, -1):
        block = content[place]
        if block.get("type") in UNCACHEABLE or (block.get("type") == "text" and not block.get("text")):
            continue
        marked = {**block, "cache_control": BREAKPOINT}
        return {**message, "content": [*content[:place], marked, *content[place + 1 :]]}
    return message
