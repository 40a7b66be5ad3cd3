"""OpenAI's models, and every server that speaks one of OpenAI's two APIs, through the official SDK.

`openai/<model>` is the Responses API, `openai-chat/<model>` Chat Completions: what vLLM, llama.cpp, Ollama,
LM Studio and OpenRouter offer. Messages are stored in the Messages API's form whatever the vendor; this module
translates them on the way out, and replies on the way in. What only OpenAI understands (encrypted reasoning,
the phase of a text) is kept in the block under `VENDOR_KEY`, sent back unchanged here, and left out elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from watchkeeper.models.client import NOTHING_SAID, SdkModel, has_value, host_of, names_a_key
from watchkeeper.models.effort import choose, other_host, row_of
from watchkeeper.models.failures import CHAT_API, RESPONSES_API, Failure, RetryPolicy, error_bounding_client
from watchkeeper.models.gate import FOREGROUND
from watchkeeper.models.stream import (
    BrokenStream,
    ReplyAssembler,
    Timeouts,
    excerpt,
    streamed_error,
    text_or_none,
    without_lone_surrogates,
)
from watchkeeper.records.messages import (
    VENDOR_KEY,
    Block,
    Delta,
    ErrorKind,
    ModelError,
    ModelRequest,
    ToolSpec,
)
from watchkeeper.records.ports import Clock

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# --- A `ModelRequest` as the body of a call -----------------------------------------------------------------

LONGEST_NAME = 64
"""Characters of a tool's name that OpenAI accepts; names of MCP tools may be longer."""

NO_OUTPUT = "(no output)"
"""For a tool that returned nothing: some servers refuse an empty text."""

_DATA_FIELDS = {"image": "image_url", "document": "file_data"}


def wire_name(name: str) -> str:
    """A tool's name as OpenAI accepts it: a longer one ends in a hash, so that it stays unique."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def responses_body(
    model: str, request: ModelRequest, *, reasoning: bool = True, arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `responses.create`. Nothing is stored at OpenAI: the whole context is sent each time.

    `reasoning`: whether earlier reasoning is sent back, and new reasoning asked for in a form that can be.
    `arguments` are those of the request's effort.
    """
    items: list[dict[str, Any]] = []
    for message in request.messages:
        encode = _user_items if message["role"] == "user" else _assistant_items
        items += encode(_blocks(message["content"]))
    if not reasoning:
        items = [item for item in items if item.get("type") != "reasoning"]
    body: dict[str, Any] = {
        "model": model,
        "input": items,
        "max_output_tokens": request.max_tokens,
        "store": False,
    }
    if request.system:
        body["instructions"] = request.system
    if reasoning:
        body["include"] = ["reasoning.encrypted_content"]
    if request.tools:
        body["tools"] = [{"type": "function", "strict": False, **_function(tool)} for tool in request.tools]
    sendable: dict[str, Any] = without_lone_surrogates(body | dict(arguments or {}))
    return sendable


def chat_body(
    model: str,
    request: ModelRequest,
    *,
    arguments: Mapping[str, Any] | None = None,
    returned: str | None = None,
) -> dict[str, Any]:
    """The arguments of `chat.completions.create`.

    `arguments` are those of the request's effort. `returned`: the field of a message in which the server wants its
    reasoning back, if it does (see `effort.EffortRow`).
    """
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    for message in request.messages:
        blocks = _blocks(message["content"])
        messages += _chat_user(blocks) if message["role"] == "user" else _chat_assistant(blocks, returned)
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": request.max_tokens,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [{"type": "function", "function": _function(tool)} for tool in request.tools]
    for name, value in (arguments or {}).items():
        # What is no argument of OpenAI's own API, the SDK takes beside them.
        (body if name == "reasoning_effort" else body.setdefault("extra_body", {}))[name] = value
    sendable: dict[str, Any] = without_lone_surrogates(body)
    return sendable


def _function(tool: ToolSpec) -> dict[str, Any]:
    # OpenAI refuses an object without `properties`, as MCP servers send for a tool without arguments.
    parameters = {"type": "object", "properties": {}, **tool.input_schema}
    return {"name": wire_name(tool.name), "description": tool.description, "parameters": parameters}


def _blocks(content: Any) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _user_items(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text, media = _result(block)
            seen = [part for one in media if (part := _responses_part(one)) is not None]
            output: Any = [{"type": "input_text", "text": text}, *seen] if seen else text
            yield {"type": "function_call_output", "call_id": block["tool_use_id"], "output": output}
        elif (part := _responses_part(block)) is not None:
            parts.append(part)
    if parts:
        yield {"role": "user", "content": parts}


def _assistant_items(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    held: list[dict[str, Any]] = []
    said = False
    for block in blocks:
        kept = block.get(VENDOR_KEY) or {}
        item: dict[str, Any] | None = None
        match block.get("type"):
            case "thinking" if kept.get("type") == "reasoning":
                sealed = block.get("signature")
                held.append({**kept, "encrypted_content": sealed} if sealed else dict(kept))
            case "text" if block.get("text"):
                item = _said(block["text"]) | kept
            case "tool_use":
                item = {
                    "type": "function_call",
                    "call_id": block["id"],
                    "name": wire_name(block["name"]),
                    "arguments": json.dumps(block["input"]),
                }
        if item is not None:
            # The API refuses reasoning that nothing follows, as a reply that was cut leaves it.
            yield from (*held, item)
            held, said = [], True
    if not said:
        yield _said(NOTHING_SAID)


def _said(text: str) -> dict[str, Any]:
    # A plain text would do for OpenAI; llama.cpp wants parts.
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _responses_part(block: Block) -> dict[str, Any] | None:
    if block.get("type") == "text":
        return {"type": "input_text", "text": block["text"]} if block["text"] else None
    url = _url_of(block)
    if url is None:
        return None
    if block["type"] == "image":
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    named = "file_data" if url.startswith("data:") else "file_url"
    return {"type": "input_file", named: url} | (
        {"filename": _file_name(block)} if named == "file_data" else {}
    )


def _chat_user(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text, media = _result(block)
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
            # A tool's message holds text alone: what it shows follows in the user's.
            parts += [part for one in media if (part := _chat_part(one)) is not None]
        elif (part := _chat_part(block)) is not None:
            parts.append(part)
    if parts:
        texts = [part.get("text") for part in parts]
        # Many local servers read nothing but a plain text.
        yield {"role": "user", "content": parts if None in texts else "\n\n".join(map(str, texts))}


def _chat_assistant(blocks: list[Block], returned: str | None) -> Iterator[dict[str, Any]]:
    text = "\n\n".join(block["text"] for block in blocks if block.get("type") == "text" and block["text"])
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": wire_name(block["name"]), "arguments": json.dumps(block["input"])},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text if text or calls else NOTHING_SAID}
    if calls:
        message["tool_calls"] = calls
    for block in blocks:
        kept = block.get(VENDOR_KEY) or {}
        if block.get("type") == "thinking" and returned is not None and kept.get("returned") == returned:
            details = kept.get("reasoning_details")
            message |= {returned: details} if details else {_AS_TEXT[returned]: block["thinking"]}
    yield message


_AS_TEXT = {"reasoning_content": "reasoning_content", "reasoning_details": "reasoning"}
"""Field in which reasoning goes back → the field for one that came as a text alone."""


def _chat_part(block: Block) -> dict[str, Any] | None:
    if block.get("type") == "text":
        return {"type": "text", "text": block["text"]} if block["text"] else None
    url = _url_of(block)
    if url is None:
        return None
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": _file_name(block), "file_data": url}}


def _result(block: Block) -> tuple[str, list[Block]]:
    """A tool's result as one text, and the images and documents in it. A failure is marked in the text: these
    APIs have no field for it."""
    content = block.get("content")
    parts = _blocks(content) if content else []
    text = "\n".join(part["text"] for part in parts if part.get("type") == "text") or NO_OUTPUT
    marked = block.get("is_error") and not text.lower().startswith("error")
    return f"Error: {text}" if marked else text, [part for part in parts if part.get("type") in _DATA_FIELDS]


def _url_of(block: Block) -> str | None:
    """Where an image or a document is: its URL, or its data as one. None where it is neither."""
    source = block.get("source")
    if block.get("type") not in _DATA_FIELDS or not isinstance(source, Mapping):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type', 'application/octet-stream')};base64,{source.get('data', '')}"
    return text_or_none(source.get("url"))


def _file_name(block: Block) -> str:
    return str(block.get("title") or "document.pdf")


# --- Assembling a reply from either API's events ------------------------------------------------------------
#
# The blocks of a reply are made when it has ended: a tool's name and its call's id may come in pieces, late or
# not at all. `ReplyAssembler` then parses the inputs, as it does for the Messages API.

_LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every vendor accepts as the id of a call."""


class _OpenAIAssembler(ReplyAssembler):
    """Blocks, ids and usage, which both APIs share.

    Args:
        tools: those that the model was offered, whose names may have been shortened.
        rng: draws ids for calls that have none, or one that is taken or that another vendor would refuse.
    """

    def __init__(self, tools: Iterable[ToolSpec], rng: random.Random) -> None:
        super().__init__()
        self._names = {wire_name(tool.name): tool.name for tool in tools}
        self._rng = rng
        self._ids: set[str] = set()
        self._refused = False

    def feed_whole(self, message: Any) -> Iterator[Delta]:
        if isinstance(message, dict) and message.get("error"):
            raise streamed_error(message)
        self.admit(message)
        yield from self._take_whole(message)

    def finish(self) -> list[Block]:
        if self.started and self.stop_reason is not None:
            parts = self._with_written_calls(list(self._parts()))
            calls = sum(block["type"] == "tool_use" for block, _ in parts)
            for index, (block, raw) in enumerate(parts):
                self.add_block(index, block, raw)
            if self._refused:
                self.stop_reason = "refusal"
            elif self.stop_reason in ("end_turn", "tool_use"):
                self.stop_reason = "tool_use" if calls else "end_turn"
        return super().finish()

    def _with_written_calls(self, parts: list[tuple[Block, str]]) -> list[tuple[Block, str]]:
        """The parts, with calls in the place of a text that is nothing but calls."""
        texts = [block["text"] for block, _ in parts if block["type"] == "text" and block["text"].strip()]
        if not self._names or len(texts) != 1 or any(block["type"] == "tool_use" for block, _ in parts):
            return parts
        written = [self._call(name, None, raw) for name, raw in calls_in(texts[0], self._names)]
        return [*(part for part in parts if part[0]["type"] != "text"), *written] if written else parts

    @abstractmethod
    def _take_whole(self, message: Any) -> Iterator[Delta]:
        """Take a reply that came in one piece."""

    @abstractmethod
    def _parts(self) -> Iterator[tuple[Block, str]]:
        """The blocks of the reply in order, each call with its raw input."""

    def _call(self, name: str, call_id: str | None, raw: str) -> tuple[Block, str]:
        if not name:
            raise BrokenStream("a tool call without a name")
        if call_id is None or not _LEGAL_ID.fullmatch(call_id) or call_id in self._ids:
            call_id = f"call_{self._rng.getrandbits(96):024x}"
        self._ids.add(call_id)
        return {"type": "tool_use", "id": call_id, "name": self._names.get(name, name), "input": {}}, raw

    def _show(self, kind: str, text: Any) -> Iterator[Delta]:
        if text is not None and not isinstance(text, str):
            raise BrokenStream(f"{kind} is not a string: {excerpt(text)}")
        if text and (delta := self.shown(kind, text)) is not None:
            yield delta

    def _count(self, usage: Any, prompt: str, output: str) -> None:
        """Both APIs count what the cache served as part of the prompt, and reasoning as part of the output.
        A total that is larger than both together holds reasoning that the server left out of the output."""
        if not isinstance(usage, dict):
            return
        details = usage.get(f"{prompt}_details")
        details = details if isinstance(details, dict) else {}
        read, whole, written, said = (
            value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
            for value in (
                details.get("cached_tokens"),
                usage.get(prompt),
                details.get("cache_write_tokens"),
                usage.get(output),
            )
        )
        counts: dict[str, Any] = {
            "cache_read_input_tokens": min(read, whole),
            "cache_creation_input_tokens": min(written, max(0, whole - read)),
        }
        counts["input_tokens"] = whole - sum(counts.values())
        if isinstance(usage.get(output), int):
            total = usage.get("total_tokens")
            beyond = total - whole - said if isinstance(total, int) and whole else 0
            counts["output_tokens"] = said + max(0, beyond)
        self.merge_usage(counts)


@dataclass(slots=True)
class _Item:
    """An item of a response while it streams."""

    item: dict[str, Any]
    done: bool = False
    texts: list[str] = field(default_factory=list)
    """Its text, or a call's arguments, as far as they came."""


class ResponsesAssembler(_OpenAIAssembler):
    """The Responses API: typed events about items. An item that is done is taken as it then is."""

    def __init__(self, tools: Iterable[ToolSpec], rng: random.Random) -> None:
        super().__init__(tools, rng)
        self._items: dict[int, _Item] = {}

    def take(self, event: Any) -> Iterator[Delta]:
        self.admit(event)
        match event.get("type"):
            case "response.created" | "response.in_progress" | "response.queued":
                self._begin(event.get("response"))
            case "response.output_item.added" | "response.output_item.done" as kind:
                item = event.get("item")
                if not self.started or not isinstance(item, dict):
                    raise BrokenStream(f"unexpected {kind}")
                found = self._index({"item_id": item.get("id"), **event})
                opened = self._items.setdefault(len(self._items) if found is None else found, _Item(item))
                opened.item, opened.done = item, kind.endswith("done")
            case "response.output_text.delta" | "response.refusal.delta":
                yield from self._piece(event, "text")
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield from self._piece(event, "thinking")
            case "response.function_call_arguments.delta":
                yield from self._piece(event, "tool_input")
            case "response.function_call_arguments.done":
                if isinstance(event.get("arguments"), str):
                    self._item(event).texts = [event["arguments"]]
            case (
                "response.completed"
                | "response.incomplete"
                | "response.failed"
                | "response.cancelled" as kind
            ):
                self._end(kind, event.get("response"))
            case "error":
                raise streamed_error(event)
            case _:
                pass  # there are more events than these, and new ones come

    def _take_whole(self, message: Any) -> Iterator[Delta]:
        if not isinstance(message.get("output"), list):
            raise BrokenStream(f"the server answered with JSON that is not a response: {excerpt(message)}")
        self._end(f"response.{message.get('status') or 'completed'}", message)
        for block, _ in self._parts():
            yield from self._show("text", block.get("text"))
        self._ids.clear()

    def _begin(self, response: Any) -> None:
        if not isinstance(response, dict):
            raise BrokenStream("a response that is not an object")
        self.started = True
        self.request_model = text_or_none(response.get("model")) or self.request_model
        self.message_id = text_or_none(response.get("id")) or self.message_id

    def _end(self, kind: str, response: Any) -> None:
        self._begin(response)
        self.note_attributes(response)
        self._count(response.get("usage"), "input_tokens", "output_tokens")
        if kind in ("response.failed", "response.cancelled"):
            raise streamed_error(response if response.get("error") else {"error": f"{kind} without a reason"})
        output = response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else []):
            if isinstance(item, dict) and (index not in self._items or not self._items[index].done):
                self._items[index] = _Item(item, done=True)
        details = response.get("incomplete_details")
        why = details.get("reason") if isinstance(details, dict) else None
        if kind == "response.incomplete" or why:
            reasons = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
            self.stop_reason = reasons.get(str(why), str(why or "incomplete"))
        else:
            self.stop_reason = "end_turn"
        self.stopped = True

    def _index(self, event: dict[str, Any]) -> int | None:
        """The index of the item that an event is about, by its number, else by its id (llama.cpp gives only the id).
        None for an item that has not started."""
        index, item_id = event.get("output_index"), event.get("item_id")
        if isinstance(index, int):
            return index
        return next(
            (at for at, one in self._items.items() if item_id and one.item.get("id") == item_id), None
        )

    def _item(self, event: dict[str, Any]) -> _Item:
        opened = self._items.get(-1 if (index := self._index(event)) is None else index)
        if opened is None:
            raise BrokenStream(f"unexpected {event['type']}")
        return opened

    def _piece(self, event: dict[str, Any], kind: str) -> Iterator[Delta]:
        opened, delta = self._item(event), event.get("delta")
        yield from self._show(kind, delta)
        if not isinstance(delta, str):
            raise BrokenStream(f"{event['type']} without text")
        opened.texts.append(delta)

    def _parts(self) -> Iterator[tuple[Block, str]]:
        for _, opened in sorted(self._items.items()):
            item, streamed = opened.item, "".join(opened.texts)
            match item.get("type"):
                case "message":
                    whole = "".join(_texts(item.get("content"), "text", "refusal"))
                    self._refused |= any(
                        isinstance(part, dict) and part.get("type") == "refusal"
                        for part in item.get("content") or ()
                    )
                    phase = {VENDOR_KEY: {"phase": item["phase"]}} if item.get("phase") else {}
                    yield {"type": "text", "text": whole or streamed, **phase}, ""
                case "function_call":
                    raw = item.get("arguments") or streamed
                    if not isinstance(raw, str):
                        raise BrokenStream("tool input that is not text")
                    name, call_id = text_or_none(item.get("name")), text_or_none(item.get("call_id"))
                    yield self._call(name or "", call_id or text_or_none(item.get("id")), raw)
                case "reasoning" if opened.done:
                    shown = "\n\n".join(
                        [*_texts(item.get("summary"), "text"), *_texts(item.get("content"), "text")]
                    )
                    kept = {key: value for key, value in item.items() if key != "encrypted_content"}
                    sealed = text_or_none(item.get("encrypted_content")) or ""
                    yield {"type": "thinking", "thinking": shown, "signature": sealed, VENDOR_KEY: kept}, ""


def _texts(parts: Any, *keys: str) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            yield from (part[key] for key in keys if isinstance(part.get(key), str))


@dataclass(slots=True)
class _Call:
    """A tool call while it streams."""

    id: str | None = None
    name: str = ""
    raw: list[str] = field(default_factory=list)


_AROUND_CALLS = re.compile(r"</?(?:tool_calls?|tools|function_call)>|```(?:json|xml)?")
"""What small models put around a call that they write as text."""


def calls_in(text: str, tools: Container[str]) -> list[tuple[str, str]]:
    """Name and raw input of each call, where a text is nothing but calls: objects with a name and arguments, and no
    more unless the name is one of `tools`.

    Small models write calls so where their server does not know their form. Any other text gives none.
    """
    rest, found = _AROUND_CALLS.sub(" ", text).strip(), []
    while rest:
        try:
            call, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        for one in call if isinstance(call, list) else [call]:
            name, given = (
                (one.get("name"), one.get("arguments", one.get("parameters")))
                if isinstance(one, dict)
                else (0, 0)
            )
            if not isinstance(name, str) or not _LEGAL_ID.fullmatch(name) or not isinstance(given, dict):
                return []
            if len(one) > 2 and name not in tools:
                return []
            found.append((name, json.dumps(given)))
        rest = rest[end:].lstrip(" \t\r\n,;}]")  # a bracket too many is the usual slip
    return found


class ChatAssembler(_OpenAIAssembler):
    """Chat Completions: chunks of one choice. Servers differ in what they leave out of a tool call's pieces:
    the index, the id, or both."""

    STOPS: Mapping[str, str] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "function_call": "tool_use",
        "content_filter": "refusal",
    }

    def __init__(self, tools: Iterable[ToolSpec], rng: random.Random, *, returned: str | None = None) -> None:
        """`returned`: the field in which the server wants its reasoning back, if it does."""
        super().__init__(tools, rng)
        self._returned = returned
        self._details: dict[Any, dict[str, Any]] = {}
        self._thinking: list[str] = []
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def take(self, event: Any) -> Iterator[Delta]:
        self.admit(event)
        self.note_attributes(event)
        self._count(event.get("usage"), "prompt_tokens", "completion_tokens")
        choices = event.get("choices")
        if not isinstance(choices, list):
            return
        self.started = True
        self.request_model = self.request_model or text_or_none(event.get("model"))
        self.message_id = self.message_id or text_or_none(event.get("id"))
        for choice in choices:
            if not isinstance(choice, dict):
                raise BrokenStream(f"a choice that is not an object: {excerpt(choice)}")
            if choice.get("index") in (0, None):
                yield from self._choice_delta(choice.get("delta"))
                reason = choice.get("finish_reason")
                if isinstance(reason, str) and reason:
                    self._stop(reason, event)

    def _take_whole(self, message: Any) -> Iterator[Delta]:
        choices = message.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, dict) or not isinstance(first.get("message"), dict):
            raise BrokenStream(f"the server answered with JSON that is not a completion: {excerpt(message)}")
        calls = first["message"].get("tool_calls")
        numbered = [
            {**call, "index": index}
            for index, call in enumerate(calls if isinstance(calls, list) else ())
            if isinstance(call, dict)
        ]
        delta = {**first["message"], "tool_calls": numbered}
        yield from self.take({**message, "choices": [{**first, "index": 0, "delta": delta}]})

    def _stop(self, reason: str, event: dict[str, Any]) -> None:
        if reason == "error":  # OpenRouter's word for a provider that failed in the middle
            raise (
                streamed_error(event)
                if event.get("error")
                else BrokenStream("the provider failed during the reply")
            )
        self.stop_reason = self.STOPS.get(reason, reason)

    def _choice_delta(self, delta: Any) -> Iterator[Delta]:
        if delta is None:
            return
        if not isinstance(delta, dict):
            raise BrokenStream(f"a delta that is not an object: {excerpt(delta)}")
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str):
            self._thinking.append(thought)
            yield from self._show("thinking", thought)
        self._note_details(delta.get("reasoning_details"))
        for key in ("content", "refusal"):
            text = delta.get(key)
            if isinstance(text, list):  # Mistral's parts
                for part in text:
                    thought = "".join(_texts(part.get("thinking"), "text")) if isinstance(part, dict) else ""
                    if thought:
                        self._thinking.append(thought)
                        yield from self._show("thinking", thought)
                text = "".join(_texts(text, "text"))
            yield from self._show("text", text)
            if text:
                self._text.append(text)
                self._refused |= key == "refusal"
        pieces = delta.get("tool_calls") or ()
        if not isinstance(pieces, list | tuple) or not all(isinstance(piece, dict) for piece in pieces):
            raise BrokenStream(f"tool calls that are not a list of objects: {excerpt(pieces)}")
        for place, piece in enumerate(pieces):
            yield from self._call_piece(piece, place if len(pieces) > 1 else None)

    def _note_details(self, pieces: Any) -> None:
        """Take pieces of OpenRouter's reasoning: one entry for each index and type, its texts joined."""
        for piece in pieces if isinstance(pieces, list) and self._returned == "reasoning_details" else ():
            if not isinstance(piece, dict):
                continue
            entry = self._details.setdefault((str(piece.get("index")), str(piece.get("type"))), {})
            for name, value in piece.items():
                joined = name in ("text", "summary", "data") and isinstance(value, str)
                if joined and isinstance(entry.get(name), str):
                    entry[name] += value
                elif value is not None or name not in entry:
                    entry[name] = value

    def _call_piece(self, piece: dict[str, Any], place: int | None) -> Iterator[Delta]:
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments = text_or_none(function.get("name")) or "", function.get("arguments")
        call = self._call_of(piece, name, place)
        call.id = call.id or text_or_none(piece.get("id")) or None
        if name != call.name:  # some servers repeat it with each piece
            call.name += name
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        yield from self._show("tool_input", arguments)
        if arguments:
            call.raw.append(arguments)

    def _call_of(self, piece: dict[str, Any], name: str, place: int | None) -> _Call:
        """The call that a piece belongs to, by its index, else its id, else the order; a new one where it
        begins one."""
        index, call_id = piece.get("index", place), text_or_none(piece.get("id")) or None
        if isinstance(index, int):
            found = self._by_index.get(index)
            # Some servers give each call the index 0: another id and a name begin another call.
            if found is not None and call_id and name and found.id and call_id != found.id:
                found = None
        elif call_id:
            found = next((call for call in self._calls if call.id == call_id), None)
        else:
            found = self._calls[-1] if self._calls else None
            if found is not None and name and found.raw:
                found = None
        if found is None:
            found = _Call()
            self._calls.append(found)
        if isinstance(index, int):
            self._by_index[index] = found
        return found

    def _parts(self) -> Iterator[tuple[Block, str]]:
        if self._thinking or self._details:
            # For people, where the server wants none of it back.
            kept: dict[str, Any] = {"returned": self._returned} if self._returned else {}
            if self._details:
                kept["reasoning_details"] = [*self._details.values()]
            yield {"type": "thinking", "thinking": "".join(self._thinking), VENDOR_KEY: kept}, ""
        yield {"type": "text", "text": "".join(self._text)}, ""
        for call in self._calls:
            yield self._call(call.name, call.id, "".join(call.raw))


# --- The server, and whether a call to it would find a key --------------------------------------------------

OPENAI_HOST = "api.openai.com"
API_KEY_VARIABLE = "OPENAI_API_KEY"
BASE_URL_VARIABLE = "OPENAI_BASE_URL"
NO_KEY = f"no API key for OpenAI: set {API_KEY_VARIABLE}, then resume"
PROVIDERS = ("openai", "openai-chat")
_KEY_HEADERS = frozenset({"authorization"})


def missing_key(
    ref: str,
    *,
    api_key_env: str | None = None,
    base_url: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str | None:
    """The environment variable that should hold the key for `ref` and does not; None where nothing is
    missing. `api_key_env` and `base_url` are the settings of the provider's table.

    Only OpenAI's own server is known to need a key.
    """
    if ref.strip().partition("/")[0] not in PROVIDERS:
        return None
    server = (base_url or environ.get(BASE_URL_VARIABLE) or "").strip()
    if server and host_of(server) != OPENAI_HOST:
        return None
    if api_key_env:
        return None if has_value(environ, api_key_env) else api_key_env
    found = has_value(environ, API_KEY_VARIABLE) or names_a_key(
        environ.get("OPENAI_CUSTOM_HEADERS", ""), _KEY_HEADERS
    )
    return None if found else API_KEY_VARIABLE


def api_root(url: str) -> str:
    """The address as the SDK wants it, which adds `/responses` or `/chat/completions`: `/v1` is added where
    there is no path, and what the SDK adds is taken off."""
    url = url.strip().rstrip("/")
    for path in (RESPONSES_API.path, CHAT_API.path):
        url = url.removesuffix(path)
    try:
        bare = "://" in url and not urlsplit(url).path
    except ValueError:
        bare = False
    return f"{url}/v1" if bare else url


DEFAULT_CONTEXT_WINDOW = 128_000
"""Tokens: what OpenAI's own models have at least."""

DEFAULT_SERVER_WINDOW = 32_768
"""Tokens, for a model of another server that the price data does not know. A server that has less says so, and
the context is compacted; a server that cuts a prompt without a word (Ollama) needs `context_window`."""

TIMEOUTS = Timeouts(silence=300.0)
"""These APIs send no pings, and a model that reasons may say nothing for minutes; Codex waits as long."""

_WITHOUT_REASONING = re.compile(r"gpt-3|gpt-4|chatgpt|.*-chat-latest")
"""OpenAI's models that refuse to be asked for encrypted reasoning."""


class OpenAIModel(SdkModel):
    """A model behind one of OpenAI's APIs; see `SdkModel`.

    An argument that a server refuses and that a call can do without (`REFUSALS`) is left out from then on.
    """

    REFUSALS: Mapping[str, re.Pattern[str]] = {}
    """Argument → how servers name it in a refusal."""
    EFFORT_REFUSALS: Mapping[str, re.Pattern[str]] = {}
    """The same for the arguments of an effort. People get a notice, except for a `reasoning.summary`."""

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        context_window: int | None = None,
        clock: Clock | None = None,
        retries: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        rng: random.Random | None = None,
        sends_key: bool = True,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is imported, read or connected yet. `base_url` and the key default to `OPENAI_BASE_URL` and
        `OPENAI_API_KEY`."""
        self._base_url = base_url
        default = DEFAULT_SERVER_WINDOW if self.base_url else DEFAULT_CONTEXT_WINDOW
        super().__init__(
            name,
            context_window=context_window or default,
            clock=clock,
            retries=retries,
            timeouts=timeouts or TIMEOUTS,
            rng=rng,
            notice=notice,
        )
        self._api_key = api_key.strip() if api_key else None
        self._sends_key = sends_key
        self._left_out: set[str] = set()

    @property
    def base_url(self) -> str | None:
        """The server other than OpenAI's that was chosen, if any: prices depend on it."""
        chosen = api_root(self._base_url or os.environ.get(BASE_URL_VARIABLE) or "")
        return chosen if chosen and host_of(chosen) != OPENAI_HOST else None

    def _effort_arguments(self, request: ModelRequest) -> dict[str, Any]:
        """The arguments of the request's effort, without what the server refused."""
        body = dict(choose(self.ref, other_host(self.ref, self.base_url), request.effort).body)
        if "reasoning.summary" in self._left_out and "reasoning" in body:
            body["reasoning"] = {key: value for key, value in body["reasoning"].items() if key != "summary"}
        return {name: value for name, value in body.items() if value and name not in self._left_out}

    def _leave_out(self, failure: Failure, request: ModelRequest) -> bool:
        said = f"{failure.error_code or ''} {failure.message}"
        sent = self._effort_arguments(request)
        for name, wording in self.EFFORT_REFUSALS.items():
            if (
                name.partition(".")[0] in sent
                and name not in self._left_out
                and wording.search(said, 0, 2_000)
            ):
                self._left_out.add(name)
                if name != "reasoning.summary":
                    self._notice(
                        f"{self.ref}: the server rejects `{name}`; it is omitted, and effort may have no effect"
                    )
                return True
        for name, wording in self.REFUSALS.items():
            if name not in self._left_out and wording.search(said, 0, 2_000):
                self._left_out.add(name)
                return True
        return False

    def _open(self) -> AsyncOpenAI:
        import httpx2
        import openai

        key = (self._api_key or os.environ.get(API_KEY_VARIABLE, "").strip()) if self._sends_key else ""
        if not key and self.base_url is None and not self._header_key():
            raise ModelError(f"{self.ref}: {NO_KEY}", kind=ErrorKind.PAUSE, error_type="missing_key")
        client = openai.AsyncOpenAI(
            api_key=key or "none",  # given, it keeps the SDK from looking for others
            base_url=self.base_url or f"https://{OPENAI_HOST}/v1",
            max_retries=0,
            timeout=httpx2.Timeout(self._timeouts.first_event, connect=self._timeouts.connect, pool=None),
            # Followed, a redirect would take the whole context wherever it points.
            http_client=error_bounding_client(openai.DefaultAsyncHttpxClient, follow_redirects=False),
        )
        self._method(client)  # imports its resources here, in the thread
        return client

    async def _send(self, client: AsyncOpenAI, body: dict[str, Any]) -> Any:
        from openai import omit

        bare = client.api_key == "none" and not self._header_key()
        return await self._method(client)(
            **body, stream=True, extra_headers={"Authorization": omit} if bare else {}
        )

    @abstractmethod
    def _method(self, client: AsyncOpenAI) -> Callable[..., Any]:
        """The SDK's method that makes a call."""

    def _secrets(self, client: AsyncOpenAI) -> tuple[str | None, ...]:
        return (client.api_key,)

    @staticmethod
    def _raw_events(stream: Any, body: Any) -> Any:
        return stream._decoder.aiter_bytes(body.aiter_bytes())

    @staticmethod
    def _header_key() -> bool:
        return names_a_key(os.environ.get("OPENAI_CUSTOM_HEADERS", ""), _KEY_HEADERS)


class ResponsesModel(OpenAIModel):
    """A model behind the Responses API."""

    api = RESPONSES_API
    provider = "openai"
    REFUSALS: Mapping[str, re.Pattern[str]] = {
        "include": re.compile(
            r"\binclude\b|encrypted content is not supported|invalid_encrypted_content"
            r"|encrypted content .{0,200}could not be",
            re.IGNORECASE,
        )
    }
    EFFORT_REFUSALS: Mapping[str, re.Pattern[str]] = {
        "reasoning.summary": re.compile(r"reasoning\.summary|reasoning summar", re.IGNORECASE),
        "reasoning": re.compile(r"reasoning[._]effort|unsupported value: '(none|minimal|low|medium|x?high|max)'"
                                r"|(parameter|argument)\W+reasoning\b", re.IGNORECASE),
    }  # fmt: skip

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        plain = self.base_url is None and _WITHOUT_REASONING.match(self.name) is not None
        body = responses_body(
            self.name,
            request,
            reasoning=not plain and "include" not in self._left_out,
            arguments=self._effort_arguments(request),
        )
        if self.base_url is None and request.agent_id and request.purpose in FOREGROUND:
            body["prompt_cache_key"] = request.agent_id  # sends an agent's calls to where its cache is
        return body

    def _assembler(self, request: ModelRequest) -> ReplyAssembler:
        return ResponsesAssembler(request.tools, self._rng)

    def _method(self, client: AsyncOpenAI) -> Callable[..., Any]:
        return client.responses.create


class ChatModel(OpenAIModel):
    """A model behind Chat Completions."""

    api = CHAT_API
    provider = "openai-chat"
    REFUSALS: Mapping[str, re.Pattern[str]] = {
        "stream_options": re.compile(r"stream_options|include_usage"),
        "max_tokens": re.compile(r"max_completion_tokens"),
    }
    EFFORT_REFUSALS: Mapping[str, re.Pattern[str]] = {
        "chat_template_kwargs": re.compile(r"chat_template_kwargs"),
        "reasoning_effort": re.compile(
            r"reasoning_effort|think value|does not support thinking|reasoning effort"
        ),
        "reasoning": re.compile(r"\breasoning\b"),
        "thinking": re.compile(r"\bthinking\b"),
    }

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body = chat_body(
            self.name, request, arguments=self._effort_arguments(request), returned=self._returned()
        )
        if "stream_options" in self._left_out:
            del body["stream_options"]
        if self.base_url is None or "max_tokens" in self._left_out:
            # OpenAI's name for it, which its reasoning models insist on and older servers do not know.
            body["max_completion_tokens"] = body.pop("max_tokens")
        return body

    def _assembler(self, request: ModelRequest) -> ReplyAssembler:
        return ChatAssembler(request.tools, self._rng, returned=self._returned())

    def _returned(self) -> str | None:
        row = row_of(self.ref, other_host(self.ref, self.base_url))
        return row.returned if row is not None else None

    def _method(self, client: AsyncOpenAI) -> Callable[..., Any]:
        return client.chat.completions.create
