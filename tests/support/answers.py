"""What a scripted Messages API server may answer, faults included, and how a script reads what it is
asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Block = dict[str, Any]
Body = dict[str, Any]


def text(value: str) -> Block:
    return {"type": "text", "text": value}


def thinking(value: str, signature: str = "c2lnbmF0dXJl") -> Block:
    return {"type": "thinking", "thinking": value, "signature": signature}


def tool(name: str, tool_input: dict[str, Any], id: str = "toolu_1") -> Block:
    return {"type": "tool_use", "id": id, "name": name, "input": tool_input}


@dataclass(frozen=True)
class Reply:
    """A whole reply. Usage left None is made up from the request, prompt cache included."""

    blocks: list[Block]
    stop_reason: str | None = None
    """None: `tool_use` if there is one, else `end_turn`."""
    usage: dict[str, Any] | None = None
    piece: int = 16
    """Characters in a delta."""
    raw_inputs: dict[str, str] = field(default_factory=dict)
    """tool_use id → the text to stream as its input instead of its JSON."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """An HTTP error. `body` replaces the Messages API's own form of it."""

    status: int
    error_type: str = "api_error"
    message: str = "scripted"
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    error_code: str | None = None


@dataclass(frozen=True)
class Cut:
    """A reply that ends before its time, after `events` events.

    `disconnect`: the connection is reset; `truncate`: the response ends properly, only too early;
    `stall`: nothing more comes; `pings`: nothing but pings comes.
    """

    reply: Reply
    events: int
    how: Literal["disconnect", "truncate", "stall", "pings"]


@dataclass(frozen=True)
class Raw:
    """Bytes of a body, as they are, with a content type."""

    body: bytes
    content_type: str = "text/event-stream"
    then_stall: bool = False


@dataclass(frozen=True)
class Drop:
    """The connection is closed without a response."""


@dataclass(frozen=True)
class Hang:
    """The request is read and never answered."""


@dataclass(frozen=True)
class Held:
    """A reply that stands still after `events` events until the test sets `until`: time to pause, kill or
    look."""

    reply: Reply
    until: threading.Event
    events: int = 0


Answer = Reply | Status | Cut | Raw | Drop | Hang | Held
Script = Callable[[Body], Answer]


def in_turn(*answers: Answer) -> Script:
    """The answers one after another, whatever is asked; afterwards a 400 that says so."""
    left = iter(answers)
    return lambda body: next(left, Status(400, "invalid_request_error", "the script has ended"))


def system_of(body: Body) -> str:
    """The system prompt of a request, as text: tells one role or agent from another."""
    system = body.get("system") or ""
    return system if isinstance(system, str) else "\n".join(block["text"] for block in system)


def turn_of(body: Body) -> int:
    """How many replies the conversation holds already: 0 for the first request of an agent."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def text_of(message: Body) -> str:
    """Everything that a message says in text, its tool results included."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for block in content:
        if block.get("type") == "tool_result":
            parts.append(text_of(block) if block.get("content") else "")
        elif block.get("type") == "text":
            parts.append(block["text"])
    return "\n".join(parts)


def tools_of(body: Body) -> set[str]:
    """The names of the tools that a request offers."""
    return {tool["name"] for tool in body.get("tools", [])}
