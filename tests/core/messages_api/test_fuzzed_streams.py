"""Streams that nobody would send, over the real SDK: a run that meets them ends or pauses as it should, and
goes on after.

Each example mangles the events of a good reply: bytes cut off, events left out, doubled and moved, fields of
any type, kinds that do not exist, deltas of a megabyte. `WATCHKEEPER_FUZZ=2000` tries as many instead of the
few of each build.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import Notes, says
from tests.support.answers import Body, Raw, Reply, text, thinking, tool
from tests.support.event_stream import stream_events
from tests.support.scripted import task

from watchkeeper.models.stream import Timeouts

EXAMPLES = int(os.environ.get("WATCHKEEPER_FUZZ", "12"))
HASTY = Timeouts(connect=20.0, first_event=20.0, silence=5.0, progress=5.0)

GOOD = Reply([
    thinking("I think."), text("I look it up."), tool("remember", {"text": "a note"}, "t1"),
    tool("recall", {"query": "note"}, "t2"),
])  # fmt: skip
HOSTILE = st.one_of(
    st.none(), st.booleans(),
    st.sampled_from([0, -1, 7, 10**6, 10**30, -(10**30), 1.5, float("nan"), float("inf")]),
    st.sampled_from([
        "", "\ud800", "\x00", "\x1b[2J", "text", "tool_use", "thinking", "server_tool_use", "end_turn", "t1", "{",
        "x" * 300,
    ]),
    st.sampled_from([[], {}, [None], [[]], {"type": "text"}, {"type": "tool_use", "id": 1, "name": []}, {"input": 3}]),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2), max_leaves=4,
    ),
)  # fmt: skip
KEYS = st.sampled_from(
    ["type", "index", "id", "name", "input", "text", "thinking", "signature", "citation", "citations", "partial_json", "stop_reason",
     "usage", "input_tokens", "output_tokens", "content", "model", "role", "new"]
)  # fmt: skip
PLACE = st.integers(0, 40)
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["drop", "double", "end"]), PLACE, PLACE, st.none()),
    st.tuples(st.just("move"), PLACE, PLACE, st.none()),
    st.tuples(st.just("set"), PLACE, PLACE, st.tuples(KEYS, HOSTILE)),
    st.tuples(st.just("event"), PLACE, PLACE, HOSTILE),
    st.tuples(st.just("raw"), PLACE, PLACE, st.binary(max_size=40)),
    st.tuples(
        st.just("huge"),
        PLACE,
        PLACE,
        st.sampled_from(["text_delta", "input_json_delta", "thinking_delta", "no_delta"]),
    ),
    st.tuples(st.just("cut"), PLACE, PLACE, st.none()),
)


def mangled(changes: list[tuple[str, int, int, Any]]) -> bytes:
    """The good reply's stream with these changes."""
    events: list[Any] = [
        json.loads(line[6:])
        for chunk in stream_events(GOOD, model="claude-test", usage={"input_tokens": 10, "output_tokens": 5})
        for line in chunk.decode().splitlines()
        if line.startswith("data: ")
    ]
    cut = None
    for how, first, second, what in changes:
        if not events:
            break
        at, other = first % len(events), second % len(events)
        match how:
            case "drop":
                del events[at]
            case "double":
                events.insert(other, deepcopy(events[at]))
            case "end":
                del events[at + 1 :]
            case "move":
                events.insert(other, events.pop(at))
            case "set":
                parts = [part for part in _objects(events[at]) if isinstance(part, dict)]
                if parts:
                    parts[second % len(parts)][what[0]] = deepcopy(what[1])
            case "event" | "raw":
                events.insert(at, deepcopy(what))  # examples share what is drawn
            case "huge":
                delta = {
                    "type": what,
                    "text": "word " * 200_000,
                    "partial_json": "[" * 1_000_000,
                    "thinking": "x" * 1_000_000,
                }
                events.insert(at, {"type": "content_block_delta", "index": second % 5, "delta": delta})
            case "cut":
                cut = (first + 1) / 42
    body = b"".join(map(_sent, events))
    return body if cut is None else body[: int(len(body) * cut)]


def _objects(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(part for inner in value.values() for part in _objects(inner))]
    return []


def _sent(event: Any) -> bytes:
    if isinstance(event, bytes):
        return event + b"\n\n"
    kind = event.get("type") if isinstance(event, dict) else "odd"
    name = kind if isinstance(kind, str) and kind.isprintable() else "odd"
    return f"event: {name}\ndata: {json.dumps(event)}\n\n".encode()


async def meet(folder: Path, streams: list[bytes]) -> None:
    """A run of one task whose agent gets these streams first, and good replies after them."""
    waiting = list(streams)

    def work(name: str, turn: int, body: Body) -> Any:
        return Raw(waiting.pop(0)) if waiting else [says("done")]

    with ExitStack() as stack:
        ground = Ground(folder, stack)
        server = ground.serve(Notes([task("one")], work=work))
        try:
            runtime = ground.runtime(timeouts=HASTY)
            result = await asyncio.wait_for(ground.drive(runtime), 60)
            ground.assert_sound()
            if result.status == "paused":
                session = ground.query("SELECT id FROM sessions")[0][0]
                result = await asyncio.wait_for(runtime.run(session), 60)
            assert result.status == "done", result
            assert server.script_errors == []
            assert server.refused == []
            json.dumps(server.requests, allow_nan=False)  # no request holds what JSON cannot say
            assert ground.query("SELECT 1 FROM tool_calls WHERE status IN ('pending', 'running')") == []
            assert ground.query("SELECT count(*) FROM tool_calls WHERE name = 'remember' AND runs > 1") == [
                (0,)
            ]
            assert ground.query("SELECT content FROM messages WHERE NOT json_valid(content)") == []
            ground.assert_sound()
        finally:
            for model in ground.models:
                await model.close()


ENDLESS = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,"delta":%s}'
ODD_DELTA = ("set", 10, 1, ("type", "odd"))
"""The first delta of the first call becomes one of a kind that does not exist, whose fields are its
block's."""


@example(streams=[[("set", 0, 2, ("input_tokens", 10**30))]])
@example(streams=[[("set", 0, 2, ("output_tokens", float("nan")))]])
@example(streams=[[ODD_DELTA, ("set", 10, 1, ("id", 7))]])
@example(streams=[[ODD_DELTA, ("set", 10, 1, ("name", []))]])
@example(streams=[[ODD_DELTA, ("set", 10, 1, ("type", {}))]])
@example(streams=[[("set", 9, 1, ("citations", 5)), ODD_DELTA, ("set", 10, 1, ("citation", {}))]])
@example(streams=[[("set", 2, 1, ("thinking", 5))]])
@example(streams=[[("set", 2, 1, ("new", float("inf")))]])
@example(streams=[[("set", 6, 1, ("type", "tool_result"))]])
@example(streams=[[("raw", 9, 0, ENDLESS % b'{"type":"odd","new":1e999}')]])
@given(streams=st.lists(st.lists(CHANGES, min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.long
def test_a_run_survives_whatever_is_streamed_to_it(
    streams: list[list[tuple[str, int, int, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(folder / "config"))
    monkeypatch.setenv("HOME", str(folder))
    caplog.clear()
    asyncio.run(meet(folder, [mangled(changes) for changes in streams]))
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
