"""The events of one response, decoded, with an eye on the clock.

What a server sends is not trusted to come, to end or to be JSON: each way of failing has its own words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from watchkeeper.models.assemble import MAX_REPLY_CHARS, BrokenStream, StreamedError, excerpt, streamed_error
from watchkeeper.models.text import strict_json

DRAIN_SECONDS = 0.2

MOST_EVENT_BYTES = 2 * MAX_REPLY_CHARS
"""Of one event, or of a reply in one piece: more is a server that never comes to an end."""

MOST_EVENT_LINES = 4_000
"""Between two empty ones; the SDK's decoder takes ever longer for each further line."""

PIECE_BYTES = 1 << 16
"""What is decoded at a time, before others have the event loop: a compressed body may come as gigabytes at
once."""


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


class _Measured:
    """The body of a response in small pieces; what `raw_events` of the SDK reads of a response, and no
    more."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._bytes = self._lines = 0

    def event_came(self) -> None:
        """The bounds count from here on."""
        self._bytes = self._lines = 0

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        """The body's bytes, decompressed.

        Raises:
            BrokenStream: so many without an event that none will come.
        """
        async for chunk in self._response.aiter_bytes():
            for at in range(0, len(chunk), PIECE_BYTES):
                if at:
                    await asyncio.sleep(0)
                piece = chunk[at : at + PIECE_BYTES]
                yield self._counted(piece)

    def _counted(self, piece: bytes) -> bytes:
        self._bytes += len(piece)
        if self._bytes > MOST_EVENT_BYTES:
            raise BrokenStream(f"more than {MOST_EVENT_BYTES:,} bytes without an end")
        blank = max(piece.rfind(b"\n\n"), piece.rfind(b"\r\n\r\n"), piece.rfind(b"\r\r"))
        lines = piece.count(b"\n", blank + 1) + piece.count(b"\r", blank + 1)
        self._lines = lines if blank >= 0 else self._lines + lines
        if self._lines > MOST_EVENT_LINES:
            raise BrokenStream(f"more than {MOST_EVENT_LINES:,} lines without an end")
        return piece


async def decoded_events(
    raw_events: Callable[[Any], AsyncIterator[Any]], response: Any, timeouts: Timeouts
) -> AsyncGenerator[Any]:
    """The JSON of each server-sent event (`.event`, `.data`) that `raw_events`, of the SDK, finds; pings left
    out.

    Raises:
        BrokenStream: for an event that is not JSON, for silence, and for an event without an end.
        StreamedError: for an error that the server reports inside the stream.
    """
    loop = asyncio.get_running_loop()
    limit = timeouts.first_event
    progress_at = loop.time()
    body = _Measured(response)
    events = aiter(raw_events(body))
    while True:
        try:
            async with asyncio.timeout(limit):
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise BrokenStream("the stream fell silent") from None
        body.event_came()
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
            raw = b"".join([piece async for piece in _Measured(response).aiter_bytes()])
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
