"""A server that never comes to an end costs a bounded amount of memory and time, and holds nobody else up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.proportion import in_proportion

from watchkeeper.models import stream
from watchkeeper.models.stream import BrokenStream, ReplyAssembler, Timeouts, decoded_events, json_body


def begun(block: dict[str, Any]) -> ReplyAssembler:
    assembler = ReplyAssembler()
    assembler.feed({"type": "message_start", "message": {}})
    assembler.feed({"type": "content_block_start", "index": 0, "content_block": block})
    return assembler


def delta(**fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": fields}


def feed_all(assembler: ReplyAssembler, them: list[dict[str, Any]]) -> None:
    for one in them:
        assembler.feed(one)


def test_a_long_reply_in_small_deltas_costs_in_proportion_to_its_length() -> None:
    def reply(count: int) -> None:
        assembler = begun({"type": "text", "text": "Begin: "})
        for _ in range(count):
            assembler.feed(delta(type="text_delta", text="word "))
        assembler.feed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
        (block,) = assembler.finish()
        assert block == {"type": "text", "text": "Begin: " + "word " * count}

    assert in_proportion(reply, 10_000)


BLOCK = {"type": "a_kind_to_come", "data": ["x" * 1000]}


@pytest.mark.parametrize(
    "event",
    [
        delta(type="text_delta", text="x" * 1000),
        delta(type="citations_delta", citation={"cited_text": "x" * 1000}),
        delta(type="a_kind_to_come", data="x" * 1000),
        delta(type="a_kind_to_come", data={"deep": ["x" * 1000]}, other=1),
        {"type": "content_block_start", "content_block": BLOCK},
    ],
)
def test_neither_deltas_nor_blocks_grow_without_bound(event, monkeypatch):
    monkeypatch.setattr(stream, "MAX_REPLY_CHARS", 100_000)
    assembler = begun({"type": "text", "text": ""})
    with pytest.raises(BrokenStream, match="more than"):
        feed_all(assembler, [{"index": index, **event} for index in range(1, 200)])


def test_citations_are_kept_in_order_and_the_events_own_lists_are_left_alone() -> None:
    first = {"type": "text", "text": "a", "citations": [1]}
    assembler = begun(first)
    for number in (2, 3):
        assembler.feed(delta(type="citations_delta", citation=number))
    assembler.feed(delta(type="text_delta", text="b"))
    assembler.feed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
    assert assembler.finish() == [{"type": "text", "text": "ab", "citations": [1, 2, 3]}]
    assert first == {"type": "text", "text": "a", "citations": [1]}


class Endless:
    """A response whose body never ends and is always there at once."""

    def __init__(self, chunk: bytes) -> None:
        self._chunk = chunk
        self.given = 0

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        while True:
            self.given += len(self._chunk)
            yield self._chunk


async def events_of(response: Any) -> None:
    from anthropic import AsyncStream

    async for _ in decoded_events(AsyncStream.raw_events, response, Timeouts()):
        pass


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(b"data: never an end of the line " * 1000, id="a line"),
        pytest.param(b": a comment\n", id="comments"),
        pytest.param(b"data: a\n", id="lines"),
        pytest.param(b"x" * 3_000_000, id="at once"),
    ],
)
async def test_an_event_without_an_end_is_given_up(chunk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_EVENT_BYTES", 1_000_000)
    response = Endless(chunk)
    with pytest.raises(BrokenStream, match="more than"):
        await events_of(response)
    assert response.given < 10_000_000


async def test_a_json_reply_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_EVENT_BYTES", 1_000_000)
    with pytest.raises(BrokenStream, match="more than"):
        await json_body(Endless(b"[" * 100_000), Timeouts())


async def test_a_flood_of_events_lets_others_have_the_event_loop() -> None:
    """As from a compressed body: a whole reply is there at once, and nothing of it has to be waited for."""
    event = b"event: a_kind_to_come\ndata: " + json.dumps({"type": "a_kind_to_come"}).encode() + b"\n\n"
    reading = asyncio.ensure_future(events_of(Endless(event * 20_000)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
