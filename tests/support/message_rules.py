"""What the Messages API refuses, and how its prompt cache counts: enough of both to keep contexts honest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

LOOKBACK_BLOCKS = 20
"""How many blocks before a breakpoint the API looks for an earlier entry of the cache."""


def broken_rule(body: dict[str, Any]) -> str | None:
    """Why the API would refuse this body, in words like its own; None when it would not."""
    messages = body.get("messages")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        return "max_tokens: must be greater than or equal to 1"
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    if messages[0].get("role") != "user":
        return "messages: first message must use the user role"
    if json.dumps(body).count('"cache_control"') > 4:
        return "A maximum of 4 blocks with cache_control may be provided"
    calls: set[str] = set()
    seen: set[str] = set()
    for place, message in enumerate(messages):
        why = _broken_message(message, place, place == len(messages) - 1)
        if why is not None:
            return why
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if set(results) - calls:
            return f"messages.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {results}"
        if calls - set(results):
            return (
                f"messages.{place - 1}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {sorted(calls - set(results))}"
            )
        if len(results) != len(set(results)):
            return f"messages.{place}: each tool_use must have a single result"
        new = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(new) != len(set(new)) or set(new) & seen:
            return f"messages.{place}: `tool_use` ids must be unique"
        calls = set(new)
        seen |= calls
    if calls:
        return f"messages.{len(messages) - 1}: `tool_use` ids were found without `tool_result` blocks"
    return None


def _broken_message(message: dict[str, Any], place: int, last: bool) -> str | None:
    if message.get("role") not in ("user", "assistant"):
        return f"messages.{place}: unexpected role"
    if set(message) - {"role", "content"}:
        return f"messages.{place}: extra inputs are not permitted"
    content = message.get("content")
    if not content and not (last and message["role"] == "assistant"):
        return f"messages.{place}: all messages must have non-empty content"
    for block in content if isinstance(content, list) else []:
        if block.get("type") == "text" and not block.get("text"):
            return f"messages.{place}: text content blocks must be non-empty"
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
            return f"messages.{place}: tool_use.input: input should be a valid dictionary"
        if block.get("type") in ("thinking", "redacted_thinking") and "cache_control" in block:
            return f"messages.{place}: thinking blocks may not carry cache_control"
    return None


class PromptCache:
    """Counts four characters a token; entries are written at breakpoints and found by exact prefix."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}

    def usage(self, body: dict[str, Any]) -> dict[str, int]:
        """`usage` of the request: uncached input, cache reads and cache writes."""
        prefixes: list[tuple[str, int]] = []
        breakpoints: list[int] = []
        digest = hashlib.sha256()
        tokens = 0
        for block in _blocks(body):
            marked = "cache_control" in block
            plain = json.dumps({key: value for key, value in block.items() if key != "cache_control"})
            digest.update(plain.encode())
            tokens += max(1, len(plain) // 4)
            prefixes.append((digest.hexdigest(), tokens))
            if marked:
                breakpoints.append(len(prefixes) - 1)
        read = 0
        for at in breakpoints:
            for place in range(at, max(-1, at - LOOKBACK_BLOCKS), -1):
                key, size = prefixes[place]
                if key in self._entries:
                    read = max(read, size)
                    break
        written = 0
        for at in breakpoints:
            key, size = prefixes[at]
            self._entries[key] = size
            written = max(written, size - read)
        return {
            "input_tokens": tokens - read - written,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
        }


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that makes up the prompt, in the cache's order: tools, system, messages."""
    system = body.get("system") or []
    blocks = [*body.get("tools", []), *([{"text": system}] if isinstance(system, str) else system)]
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks.extend({"role": message["role"], **part} for part in parts)
    return blocks
