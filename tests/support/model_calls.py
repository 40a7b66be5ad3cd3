"""Calling a model over the real SDK against a scripted server, with a clock that never makes a test wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.support.messages_server import MessagesServer
from tests.support.wires import MESSAGES, Wire

from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.models.client import SdkModel
from watchkeeper.models.openai import ChatModel, ResponsesModel
from watchkeeper.models.stream import Timeouts
from watchkeeper.records.messages import Model, ModelEvent, ModelRequest, Reply
from watchkeeper.records.ports import ManualClock

Serve = Callable[..., MessagesServer]
IMPATIENT = Timeouts(connect=20.0, first_event=20.0, silence=0.5, progress=0.5)
"""Real seconds: for tests in which a stream falls silent. Patient where the machine may just be busy."""
VERY_IMPATIENT = Timeouts(connect=20.0, first_event=0.5, silence=0.5, progress=0.5)
"""For tests in which an answer never begins."""


MODELS: dict[str, tuple[type[Any], str]] = {
    "anthropic": (AnthropicModel, "claude-sonnet-5"),
    "openai": (ResponsesModel, "gpt-5"),
    "openai-chat": (ChatModel, "local"),
}

MADE: list[SdkModel] = []
"""Models of the running test; a fixture closes them while their event loop still runs."""


def model_of(server: MessagesServer | str, wire: Wire = MESSAGES, **options: Any) -> Any:
    """A model that talks to this server (or URL) over one of the APIs."""
    settings: dict[str, Any] = {
        "api_key": "test-key",
        "base_url": server if isinstance(server, str) else server.url,
        "clock": ManualClock(),
        "rng": random.Random(7),
        "timeouts": IMPATIENT,
        **options,
    }
    kind, name = MODELS[wire.provider]
    MADE.append(kind(name, **settings))
    return MADE[-1]


async def close_models() -> None:
    while MADE:
        await MADE.pop().close()


def asking(content: Any = "hello", **options: Any) -> ModelRequest:
    return ModelRequest(system="Be brief.", messages=[{"role": "user", "content": content}], **options)


async def events_of(model: Model, request: ModelRequest | None = None) -> list[ModelEvent]:
    return [event async for event in model.stream(request or asking())]


async def reply_of(model: Model, request: ModelRequest | None = None) -> Reply:
    last = (await events_of(model, request))[-1]
    assert isinstance(last, Reply)
    return last
