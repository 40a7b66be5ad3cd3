"""Puts a streamed reply together, block by block, from the provider's own events.

The SDK's accumulator is not used: it takes malformed tool input for a partial dict, loses what it does not
know, and cannot tell a finished reply from a cut one. Here every block keeps all of its fields, tool input is
kept raw until its block ends and then parsed strictly, and a reply counts as whole only with a stop reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from watchkeeper.models.text import strict_json, without_lone_surrogates
from watchkeeper.records.memory import Block
from watchkeeper.records.model import Delta, Usage

EXCERPT_CHARS = 120
MAX_REPLY_CHARS = 32 * 1024 * 1024
"""A reply longer than this is a server gone wrong; real ones end at `max_tokens`."""

MOST_TOKENS_REPORTED = 10**9
"""More than this is no count of one call, and would not add up in the store."""

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
        self._chars = 0
        self._held = 0

    def feed(self, event: Any) -> Delta | None:
        """Take one decoded event; what of it is worth showing, if anything."""
        if not isinstance(event, dict):
            raise BrokenStream(f"an event that is no object: {excerpt(event)}")
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

    def feed_whole(self, message: Any) -> Iterator[Delta]:
        """Take a reply that came in one piece, from a server that does not stream."""
        if isinstance(message, dict) and "error" in message:
            raise streamed_error(message)
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            raise BrokenStream(f"the server answered with JSON that is no message: {excerpt(message)}")
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
        get = self._usage.get
        usage = Usage(
            input_tokens=get("input_tokens", 0),
            output_tokens=get("output_tokens", 0),
            cache_read_tokens=get("cache_read_input_tokens", 0),
            cache_write_tokens=get("cache_creation_input_tokens", 0),
        )
        return usage, usage.prompt_tokens > 0 and "output_tokens" in self._usage

    @property
    def chars(self) -> int:
        """Characters received in deltas: what an estimate of output tokens rests on."""
        return self._chars

    def _start(self, event: dict[str, Any]) -> None:
        message = event.get("message")
        if not isinstance(message, dict):
            raise BrokenStream("message_start without a message")
        if self.started:
            raise BrokenStream("a second message_start in one stream")
        self.started = True
        self.request_model = _text_or_none(message.get("model"))
        self.message_id = _text_or_none(message.get("id"))
        self._merge_usage(message.get("usage"))

    def _start_block(self, event: dict[str, Any]) -> Delta | None:
        block = event.get("content_block")
        index = event.get("index")
        if not self.started or not isinstance(block, dict) or not _is_index(index):
            raise BrokenStream("content_block_start out of place")
        if index in self._blocks:
            raise BrokenStream(f"block {index} started twice")
        if not isinstance(block.get("type"), str):
            raise BrokenStream(f"block {index} has no type")
        if block["type"] == "tool_use" and not (_filled(block.get("id")) and _filled(block.get("name"))):
            raise BrokenStream("a tool call without an id or a name")
        for key in _TEXTS.get(block["type"], ()):
            if not isinstance(block.get(key, ""), str):
                raise BrokenStream(f"a {block['type']} block whose {key} is no text")
        self._blocks[index] = opened = _Open(dict(block))
        if isinstance(block.get("citations"), list):
            opened.block["citations"] = list(block["citations"])
        self._keep(block)
        text = block.get("text") if block["type"] == "text" else None
        return self._shown("text", text, kept=True) if isinstance(text, str) and text else None

    def _delta(self, event: dict[str, Any]) -> Delta | None:
        delta, index = event.get("delta"), event.get("index")
        opened = self._blocks.get(index) if _is_index(index) else None
        if opened is None or not isinstance(delta, dict):
            raise BrokenStream("content_block_delta out of place")
        if delta.get("type") == "input_json_delta":
            partial = delta.get("partial_json")
            if not isinstance(partial, str):
                raise BrokenStream("tool input that is no text")
            opened.raw_input.append(partial)
            return self._shown("tool_input", partial)
        self._keep([value for key, value in delta.items() if key not in _FIXED])
        _merge(opened, delta)
        for key, kind in DELTA_KINDS.items():
            if isinstance(delta.get(key), str):
                return self._shown(kind, delta[key], kept=True)
        return None

    def _message_delta(self, event: dict[str, Any]) -> None:
        delta = event.get("delta")
        if not self.started or not isinstance(delta, dict):
            raise BrokenStream("message_delta out of place")
        reason = delta.get("stop_reason")
        if isinstance(reason, str) and reason:
            self.stop_reason = reason
        self._merge_usage(event.get("usage"))

    def _merge_usage(self, usage: Any) -> None:
        """Counts are cumulative: a later one takes the place of an earlier one, an absent one does not."""
        if not isinstance(usage, dict):
            return
        for key, value in usage.items():
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS_REPORTED:
                self._usage[key] = value

    def _shown(self, kind: Any, text: str, *, kept: bool = False) -> Delta | None:
        self._chars += len(text)
        if not kept:
            self._keep(text)
        return Delta(kind, text) if text else None

    def _keep(self, value: Any) -> None:
        """Note what comes to be held of the reply, which no server may make endless."""
        self._held += _size(value)
        if self._held > MAX_REPLY_CHARS:
            raise BrokenStream(f"a reply of more than {MAX_REPLY_CHARS:,} characters")

    def _parse_input(self, block: Block, raw: str) -> Any:
        if not raw.strip():
            whole = block.get("input")
            if isinstance(whole, dict):
                return whole
            return self._invalid(block, "it is no JSON object", str(whole))
        try:
            parsed = strict_json(raw)
        except RecursionError:
            return self._invalid(block, "it is nested too deeply", raw)
        except ValueError as error:
            why = str(error)
            if self.stop_reason == "max_tokens":
                why = f"the reply reached max_tokens before it was complete ({why})"
            return self._invalid(block, why, raw)
        if not isinstance(parsed, dict):
            return self._invalid(block, "it is no JSON object", raw)
        return parsed

    def _invalid(self, block: Block, why: str, raw: str) -> dict[str, Any]:
        self.invalid_inputs[str(block.get("id", ""))] = f"the input was not valid: {why}; got {excerpt(raw)}"
        return {}


def streamed_error(event: Any) -> StreamedError:
    """The error that an SSE `error` event carries, whatever its shape."""
    error = event.get("error") if isinstance(event, dict) else None
    if isinstance(error, dict):
        details = error.get("details")
        code = details.get("error_code") if isinstance(details, dict) else None
        return StreamedError(
            _text_or_none(error.get("type")), str(error.get("message") or excerpt(event)), _text_or_none(code)
        )
    return StreamedError(None, str(error) if isinstance(error, str) else excerpt(event))


def excerpt(value: object) -> str:
    """The beginning of something unexpected, for an error message, on one line."""
    text = value if isinstance(value, str) else repr(value)
    flat = " ".join(text[: EXCERPT_CHARS * 2].split())
    return flat if len(text) <= EXCERPT_CHARS else f"{flat[:EXCERPT_CHARS]}…"


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
                raise BrokenStream(f"a delta whose {excerpt(key)} is no text")
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


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
