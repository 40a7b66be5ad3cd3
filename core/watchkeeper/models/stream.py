"""A streamed reply: strict JSON, assembling its blocks, decoding its events within time limits.

JSON bodies are UTF-8, and a lone surrogate has no UTF-8, so lone surrogates are replaced.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

from watchkeeper.records.messages import Block, Delta, SideCall, Usage
from watchkeeper.records.text import one_line
from watchkeeper.records.usage import ReportedCall, modifiers_of, reported_calls, searches_of


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, or it holds a number that none can say (`NaN`, `Infinity`, `1e999`).
        RecursionError: nested too deeply.
    """
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def without_lone_surrogates(value: Any) -> Any:
    """The same structure with every lone surrogate replaced by U+FFFD; the same object if there is none."""
    if isinstance(value, str):
        return (
            value
            if _encodable(value)
            else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )
    if isinstance(value, dict):
        changed = {without_lone_surrogates(key): without_lone_surrogates(item) for key, item in value.items()}
        same = all(changed.get(key) is item for key, item in value.items())
        return value if same else changed
    if isinstance(value, (list, tuple)):
        items = [without_lone_surrogates(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- Assembling a streamed reply from the provider's events -------------------------------------------------
#
# The SDK's accumulator is not used: it takes malformed tool input for a partial dict, loses what it does not
# know, and cannot tell a finished reply from a cut one. Here every block keeps all of its fields. Tool input
# stays raw until its block ends and is then parsed strictly. A reply counts as whole only with a stop reason.

EXCERPT_CHARS = 120
MAX_REPLY_CHARS = 32 * 1024 * 1024
"""Only a faulty server sends a longer reply; real ones end at `max_tokens`."""

MOST_TOKENS_REPORTED = 10**9
"""More than this is no count of one call, and would not add up in the store."""

MOST_ITERATIONS = 1_000

_TEXTS = {"text": ("text",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}
"""Type of block → its fields that are text, where they are there."""

_FIXED = frozenset({"type", "id", "name"})
"""Fields of a block that no delta changes."""

DELTA_KINDS = {"text": "text", "thinking": "thinking"}


class BrokenStream(Exception):
    """The stream is not a whole reply; the same request may be sent again."""


class StreamedError(Exception):
    """The server reported an error inside the stream (HTTP status 200)."""

    def __init__(self, error_type: str | None, message: str, error_code: str | None = None) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.error_code = error_code


@dataclass(slots=True)
class _Open:
    """A block that is being streamed."""

    block: Block
    raw_input: list[str] = field(default_factory=list)
    pieces: dict[str, list[str]] = field(default_factory=dict)
    """Field of the block → the texts that deltas added to it, in order: joining them once costs what they are
    long."""

    def whole(self) -> Block:
        """The block with all that was added."""
        for key, pieces in self.pieces.items():
            self.block[key] = "".join([self.block[key], *pieces])
        self.pieces = {}
        return self.block


class ReplyAssembler:
    """Takes events in order by `feed`; `finish` gives what they amount to.

    Raises:
        BrokenStream: for anything that is not the Messages API's protocol, and for a reply without an end.
        StreamedError: for an `error` event.
    """

    def __init__(self) -> None:
        self.request_model: str | None = None
        self.message_id: str | None = None
        self.stop_reason: str | None = None
        self.started = False
        self.stopped = False
        self.invalid_inputs: dict[str, str] = {}
        self._blocks: dict[int, _Open] = {}
        self._usage: dict[str, int] = {}
        self._iterations: list[Any] = []
        self._attributes: dict[str, Any] = {}
        """What else a usage says of the request: its tier, speed, place, and the provider's own tools."""
        self.usage_reports = 0
        """How often tokens were reported so far."""
        self.chars = 0
        """Characters of the reply so far, from which output tokens are estimated."""
        self._held = 0

    def feed(self, event: Any) -> Delta | None:
        """Take one decoded event; what of it is worth showing, if anything."""
        self.admit(event)
        match event.get("type"):
            case "message_start":
                self._start(event)
            case "content_block_start":
                return self._start_block(event)
            case "content_block_delta":
                return self._delta(event)
            case "content_block_stop" | "ping":
                pass  # inputs are parsed at the end: some servers leave the stop of a block out
            case "message_delta":
                self._message_delta(event)
            case "message_stop":
                self.stopped = True
            case "error":
                raise streamed_error(event)
            case _:
                pass  # the API promises new event types; a client must pass over them
        return None

    def admit(self, event: Any) -> None:
        """Refuse what is not an object, and what is too much.

        Raises:
            BrokenStream: it is.
        """
        if not isinstance(event, dict):
            raise BrokenStream(f"an event that is not an object: {excerpt(event)}")
        self._held += _size(event)
        if self._held > MAX_REPLY_CHARS:
            raise BrokenStream(f"a reply of more than {MAX_REPLY_CHARS:,} characters")

    def add_block(self, index: int, block: Block, raw_input: str = "") -> None:
        """Add a whole block, with the text of a tool's input, which `finish` parses."""
        self._blocks[index] = _Open(block, [raw_input] if raw_input else [])

    def take(self, event: Any) -> Iterator[Delta]:
        """Take one decoded event; what of it is worth showing."""
        if (delta := self.feed(event)) is not None:
            yield delta

    def feed_whole(self, message: Any) -> Iterator[Delta]:
        """Take a reply that came in one piece, from a server that does not stream."""
        if isinstance(message, dict) and "error" in message:
            raise streamed_error(message)
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            raise BrokenStream(f"the server answered with JSON that is not a message: {excerpt(message)}")
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
        for index, block in enumerate(message["content"]):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "message_delta", "delta": message}, {"type": "message_stop"}]
        yield from (delta for event in events if (delta := self.feed(event)) is not None)

    def finish(self) -> list[Block]:
        """The content of the whole reply, in block order.

        A `tool_use` whose input was no valid JSON object gets `{}` as input and an entry in `invalid_inputs`.
        Empty text blocks are left out: the API refuses them when they are sent back.
        """
        if not self.started:
            raise BrokenStream("the stream ended before the reply began")
        if self.stop_reason is None:
            raise BrokenStream("the stream ended in the middle of the reply (no stop reason)")
        content = []
        for index in sorted(self._blocks):
            opened = self._blocks[index]
            block = opened.whole()
            if "input" in block or opened.raw_input:
                block["input"] = self._parse_input(block, "".join(opened.raw_input))
            if block.get("type") == "text" and not _has_text(block):
                continue
            content.append(without_lone_surrogates(block))
        return content

    def usage(self) -> tuple[Usage, bool]:
        """The tokens reported, and whether both input and output were reported at all."""
        own = self._reported_calls()[0]
        is_whole = own.usage.prompt_tokens > 0 and "output_tokens" in self._usage
        return own.usage, is_whole and own.exact

    def side_calls(self) -> tuple[SideCall, ...]:
        """What was reported of other calls that the provider made for this request: an advisor, its own
        compaction, a fallback."""
        return tuple(
            SideCall(call.kind, call.usage, call.model, call.exact)
            for call in self._reported_calls()[1:]
            if 0 < call.usage.total_tokens <= MOST_TOKENS_REPORTED
        )

    def modifiers(self) -> tuple[str, ...]:
        """What was reported of the request that changes its price."""
        return modifiers_of(self._attributes)

    def searches(self) -> int:
        """Web searches that the provider made."""
        return searches_of(self._attributes)

    def _reported_calls(self) -> list[ReportedCall]:
        return reported_calls({**self._usage, "iterations": self._iterations}, self.request_model)

    def _start(self, event: dict[str, Any]) -> None:
        message = event.get("message")
        if not isinstance(message, dict):
            raise BrokenStream("message_start without a message")
        if self.started:
            raise BrokenStream("a second message_start in one stream")
        self.started = True
        self.request_model = text_or_none(message.get("model"))
        self.message_id = text_or_none(message.get("id"))
        self.merge_usage(message.get("usage"))

    def _start_block(self, event: dict[str, Any]) -> Delta | None:
        block = event.get("content_block")
        index = event.get("index")
        if not self.started or not isinstance(block, dict) or not _is_index(index):
            raise BrokenStream("unexpected content_block_start")
        if index in self._blocks:
            raise BrokenStream(f"block {index} started twice")
        if not isinstance(block.get("type"), str):
            raise BrokenStream(f"block {index} has no type")
        if block["type"] == "tool_use" and not (_filled(block.get("id")) and _filled(block.get("name"))):
            raise BrokenStream("a tool call without an id or a name")
        for key in _TEXTS.get(block["type"], ()):
            if not isinstance(block.get(key, ""), str):
                raise BrokenStream(f"a {block['type']} block whose {key} is not text")
        self._blocks[index] = opened = _Open(dict(block))
        if isinstance(block.get("citations"), list):
            opened.block["citations"] = list(block["citations"])
        return self.shown("text", block.get("text", "") if block["type"] == "text" else "")

    def _delta(self, event: dict[str, Any]) -> Delta | None:
        delta, index = event.get("delta"), event.get("index")
        opened = self._blocks.get(index) if _is_index(index) else None
        if opened is None or not isinstance(delta, dict):
            raise BrokenStream("unexpected content_block_delta")
        if delta.get("type") == "input_json_delta":
            partial = delta.get("partial_json")
            if not isinstance(partial, str):
                raise BrokenStream("tool input that is not text")
            opened.raw_input.append(partial)
            return self.shown("tool_input", partial)
        _merge(opened, delta)
        for key, kind in DELTA_KINDS.items():
            if isinstance(delta.get(key), str):
                return self.shown(kind, delta[key])
        return None

    def _message_delta(self, event: dict[str, Any]) -> None:
        delta = event.get("delta")
        if not self.started or not isinstance(delta, dict):
            raise BrokenStream("unexpected message_delta")
        reason = delta.get("stop_reason")
        if isinstance(reason, str) and reason:
            self.stop_reason = reason
        self.merge_usage(event.get("usage"))

    def merge_usage(self, usage: Any) -> None:
        """Counts are cumulative: a later one takes the place of an earlier one, an absent one does not."""
        if not isinstance(usage, dict):
            return
        self.usage_reports += 1
        for key, value in usage.items():
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS_REPORTED:
                self._usage[key] = value
        self.note_attributes(usage)
        if isinstance(iterations := usage.get("iterations"), list) and iterations:
            self._iterations = iterations[:MOST_ITERATIONS]

    def note_attributes(self, reported: dict[str, Any]) -> None:
        """Take from a usage object, or from an answer of OpenAI's, what it says of the request's price."""
        for name in ("speed", "service_tier", "inference_geo", "server_tool_use"):
            if reported.get(name) is not None:
                self._attributes[name] = reported[name]

    def shown(self, kind: Any, text: str) -> Delta | None:
        """Count a piece of the reply; it as a delta, if it is not empty."""
        self.chars += len(text)
        return Delta(kind, text) if text else None

    def _parse_input(self, block: Block, raw: str) -> Any:
        why = "not a JSON object"
        try:
            parsed = strict_json(raw) if raw.strip() else block.get("input")
        except RecursionError:
            parsed, why = None, "nested too deeply"
        except ValueError as error:
            cut = self.stop_reason == "max_tokens"
            why = f"the reply reached max_tokens before it was complete ({error})" if cut else str(error)
            parsed = None
        if isinstance(parsed, dict):
            return parsed
        got = excerpt(raw if raw.strip() else str(parsed))
        self.invalid_inputs[str(block.get("id", ""))] = f"invalid input: {why}; got {got}"
        return {}


def streamed_error(event: Any) -> StreamedError:
    """The error that an SSE `error` event carries, whatever its shape."""
    error = event.get("error") if isinstance(event, dict) else None
    if isinstance(event, dict) and error is None and "message" in event:  # the Responses API's `error` event
        error = {"message": event["message"], "code": event.get("code")}
    if isinstance(error, dict):
        details = error.get("details")
        code = details.get("error_code") if isinstance(details, dict) else error.get("code")
        return StreamedError(
            text_or_none(error.get("type")), str(error.get("message") or excerpt(event)), text_or_none(code)
        )
    return StreamedError(None, str(error) if isinstance(error, str) else excerpt(event))


def excerpt(value: object) -> str:
    """The beginning of something unexpected, for an error message, on one line."""
    return one_line(value if isinstance(value, str) else repr(value), EXCERPT_CHARS)


def _merge(opened: _Open, delta: dict[str, Any]) -> None:
    """Fold a delta of any kind into its block: strings grow, a citation joins its list, the rest is set."""
    block = opened.block
    for key, value in delta.items():
        if key in _FIXED:
            continue
        if key == "citation":
            if not isinstance(block.get("citations"), list):
                block["citations"] = []
            block["citations"].append(value)
        elif key == "signature" and isinstance(value, str):
            block[key] = value  # sent once, whole
        elif isinstance(block.get(key), str):
            if not isinstance(value, str):
                raise BrokenStream(f"a delta whose {excerpt(key)} is not text")
            opened.pieces.setdefault(key, []).append(value)
        else:
            block[key] = value


def _size(value: Any) -> int:
    """About how many characters a value of JSON takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_size, value))
    if isinstance(value, dict):
        return 1 + sum(len(key) + _size(one) for key, one in value.items())
    return 1


def _has_text(block: Block) -> bool:
    text = block.get("text")
    return isinstance(text, str) and bool(text.strip())


def _is_index(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 100_000


def _filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def text_or_none(value: Any) -> str | None:
    """The value, if it is a text."""
    return value if isinstance(value, str) else None


# --- Decoding the events of one response, with time limits --------------------------------------------------
#
# A server's events may never come, never end or not be JSON: each of these failures has its own message.

DRAIN_SECONDS = 0.2

MOST_EVENT_BYTES = 2 * MAX_REPLY_CHARS
"""Largest event, or reply in one piece; a server that sends more never comes to an end."""

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
            raise BrokenStream(f"an event of more than {MOST_EVENT_BYTES:,} bytes")
        blank = max(piece.rfind(b"\n\n"), piece.rfind(b"\r\n\r\n"), piece.rfind(b"\r\r"))
        lines = piece.count(b"\n", blank + 1) + piece.count(b"\r", blank + 1)
        self._lines = lines if blank >= 0 else self._lines + lines
        if self._lines > MOST_EVENT_LINES:
            raise BrokenStream(f"an event of more than {MOST_EVENT_LINES:,} lines")
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
            raise BrokenStream("the stream stalled") from None
        body.event_came()
        now = loop.time()
        if event.event == "ping":
            limit = min(timeouts.silence, progress_at + timeouts.progress - now)
            continue
        progress_at, limit = now, timeouts.silence
        if event.data == "[DONE]":  # Chat Completions, and some proxies, end in this way
            await drain(events)
            return
        if not event.data:
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
        raise BrokenStream("the reply did not finish in time") from None
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
    if event.event == "error" or (
        isinstance(decoded, dict) and "type" not in decoded and decoded.get("error")
    ):
        raise streamed_error(decoded)
    return decoded
