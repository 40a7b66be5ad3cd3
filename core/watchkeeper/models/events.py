"""The events of one response, decoded, with an eye on the clock.

What a server sends is not trusted to come, to end or to be JSON: each way of failing has its own words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from watchkeeper.models.assemble import BrokenStream, StreamedError, excerpt, streamed_error
from watchkeeper.models.text import strict_json

DRAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long silence may last, in seconds, before the connection counts as lost."""

    connect: float = 15.0
    first_event: float = 600.0
    """Until the first event of a reply: a local server may read a long prompt for minutes."""
    silence: float = 120.0
    """Between events; Anthropic's servers send a ping every few seconds."""
    progress: float = 600.0
    """Between events that are no pings."""


async def decoded_events(raw: AsyncIterator[Any], timeouts: Timeouts) -> AsyncGenerator[Any]:
    """The JSON of each server-sent event (`.event`, `.data`, `.json()`), pings left out.

    Raises:
        BrokenStream: for an event that is not JSON, and for silence.
        StreamedError: for an error that the server reports inside the stream.
    """
    loop = asyncio.get_running_loop()
    limit = timeouts.first_event
    progress_at = loop.time()
    events = aiter(raw)
    while True:
        try:
            async with asyncio.timeout(limit):
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise BrokenStream("the stream fell silent") from None
        now = loop.time()
        if event.event == "ping":
            limit = min(timeouts.silence, progress_at + timeouts.progress - now)
            continue
        progress_at, limit = now, timeouts.silence
        if not event.data or event.data == "[DONE]":  # nothing said; some proxies end in this way
            continue
        yield _decoded(event)


async def drain(events: AsyncIterator[Any]) -> None:
    """Read to the end of a reply that is whole already, so that its connection can serve the next call."""
    with suppress(Exception):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in events:
                pass


def is_json(response: Any) -> bool:
    """Whether the response is one JSON document instead of a stream."""
    return bool(response.headers.get("content-type", "").startswith("application/json"))


async def json_body(response: Any, timeouts: Timeouts) -> Any:
    """The body of a server that does not stream, or that reports an error with status 200."""
    try:
        async with asyncio.timeout(timeouts.first_event):
            raw = await response.aread()
        return strict_json(raw)
    except TimeoutError:
        raise BrokenStream("the reply did not come to its end in time") from None
    except (ValueError, RecursionError) as error:
        raise BrokenStream("the reply is not JSON") from error


def explain_foreign_body(response: Any) -> None:
    """A whole response without one event: say what came instead, if it was no stream at all."""
    kind = response.headers.get("content-type", "nothing")
    if not kind.startswith("text/event-stream"):
        raise BrokenStream(f"the server answered with {excerpt(kind)} instead of a stream of events")


def _decoded(event: Any) -> Any:
    """The event's JSON. The event's own name wins over a missing `type`: errors of proxies have none."""
    try:
        decoded = strict_json(event.data)
    except (ValueError, RecursionError) as error:
        if event.event == "error":
            raise StreamedError(None, excerpt(event.data)) from error
        raise BrokenStream(f"an event that is not JSON: {excerpt(event.data)}") from error
    if event.event == "error" or (isinstance(decoded, dict) and "type" not in decoded and "error" in decoded):
        raise streamed_error(decoded)
    return decoded
