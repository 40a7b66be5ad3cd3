"""What a well-behaved conversation with a Messages API server looks like to the rest of the program."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest
from tests.support.answers import Cut, Held, Reply, Status, in_turn, text, thinking, tool
from tests.support.model_calls import Serve, asking, events_of, model_of, reply_of
from tests.support.wires import MESSAGES, WIRES, Wire

from watchkeeper.records import messages as records
from watchkeeper.records.messages import Delta, ModelRequest, Retrying, ToolSpec, Usage

LOOK = ToolSpec("look", "Look at a path.", {"type": "object", "properties": {"path": {"type": "string"}}})


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider)
async def test_a_reply_streams_in_deltas_and_ends_whole(serve: Serve, wire: Wire) -> None:
    thought = thinking("let me see", "c2VhbGVk")
    looks = [tool("look", {"path": path}, f"call_{n}") for n, path in enumerate(("a", 'ä\n"b"'))]
    blocks = [thought, text("Looking at two places."), *looks]
    server = serve(in_turn(Reply(blocks, usage={"input_tokens": 12, "output_tokens": 34})))
    *deltas, reply = await events_of(model_of(server, wire), asking(tools=[LOOK]))
    assert isinstance(reply, records.Reply)
    assert reply.content[1:] == blocks[1:]
    assert wire is not MESSAGES or reply.content[0] == thought
    assert (reply.stop_reason, reply.usage, reply.usage_exact) == ("tool_use", Usage(12, 34), True)
    known = ("req_scripted", "claude-sonnet-5", 0)
    assert wire is not MESSAGES or (reply.request_id, reply.model, reply.retries) == known
    shown = {
        kind: "".join(d.text for d in deltas if isinstance(d, Delta) and d.kind == kind)
        for kind in ("thinking", "text")
    }
    assert shown == {"thinking": "let me see", "text": "Looking at two places."}
    assert server.requests[0]["stream"] is True
    assert wire is MESSAGES or server.requests[0]["tools"][0]["type"] == "function"


async def test_what_came_back_can_be_sent_back_untouched(serve: Serve) -> None:
    unknown = {"type": "hologram", "data": {"nested": [1, None]}, "note": "kept"}
    first = [thinking("deep", "c2lnbmVk"), text("yes"), unknown, tool("look", {"path": "x"}, "t1")]
    server = serve(in_turn(Reply(first), Reply([text("done")])))
    model = model_of(server)
    reply = await reply_of(model, asking(tools=[LOOK]))
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result]},
    ]
    await reply_of(model, ModelRequest(system="", messages=messages, tools=[LOOK]))

    assert server.requests[1]["messages"][1]["content"] == first
    assert server.refused == []


async def test_each_turn_reads_the_turn_before_it_from_the_prompt_cache(serve: Serve) -> None:
    server = serve(lambda body: Reply([text("and so on, at some length")]))
    model = model_of(server)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "the goal, " * 50}]
    usages = []
    for _ in range(4):
        request = ModelRequest(system="s" * 400, messages=tuple(messages), tools=[LOOK], stable_prefix=1)
        reply = await reply_of(model, request)
        usages.append(reply.usage)
        messages += [
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": "go on " * 20},
        ]

    assert server.refused == []
    assert usages[0].cache_read_tokens == 0
    for before, after in pairwise(usages):
        assert after.cache_read_tokens >= before.prompt_tokens * 0.95


async def test_a_turn_of_many_parallel_calls_still_reads_the_turn_before_it(serve: Serve) -> None:
    server = serve(lambda body: Reply([text("ok")]))
    model = model_of(server)
    calls = [tool("look", {"path": f"p{n}"}, f"t{n}") for n in range(30)]
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "seen"} for n in range(30)]
    asked: list[dict[str, Any]] = [{"role": "user", "content": "a long history " * 200}]
    answered = [*asked, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    first = await reply_of(model, ModelRequest("s" * 400, asked, [LOOK]))
    second = await reply_of(model, ModelRequest("s" * 400, answered, [LOOK]))
    assert server.refused == []
    assert second.usage.cache_read_tokens >= first.usage.prompt_tokens * 0.95


async def test_a_compaction_keeps_the_cache_of_the_stable_prefix(serve: Serve) -> None:
    server = serve(lambda body: Reply([text("ok")]))
    model = model_of(server)
    pinned = {"role": "user", "content": "pinned instructions " * 40}
    tail = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "much talk " * 40}]
    await reply_of(model, ModelRequest(system="s", messages=[pinned, *tail], stable_prefix=1))
    after = await reply_of(
        model,
        ModelRequest(
            system="s", messages=[pinned, tail[0], {"role": "user", "content": "short"}], stable_prefix=1
        ),
    )
    assert after.usage.cache_read_tokens > len(pinned["content"]) // 5


async def test_the_request_given_is_never_changed(serve: Serve) -> None:
    server = serve(lambda body: Reply([text("ok")]))
    block = {"type": "text", "text": "lone \ud800 surrogate"}
    request = asking([block])
    await reply_of(model_of(server), request)
    assert block == {"type": "text", "text": "lone \ud800 surrogate"}
    assert server.requests[0]["messages"][0]["content"][0]["text"] == "lone \ufffd surrogate"


async def test_an_empty_reply_is_passed_on_as_no_content(serve: Serve) -> None:
    server = serve(in_turn(Reply([]), Reply([text("  \n")])))
    model = model_of(server)
    for _ in range(2):
        reply = await reply_of(model)
        assert (reply.content, reply.stop_reason, reply.retries) == ([], "end_turn", 0)


async def test_usage_that_was_not_reported_is_estimated_and_says_so(serve: Serve) -> None:
    server = serve(in_turn(Reply([text("a" * 400)], usage={"input_tokens": 0, "output_tokens": 0})))
    reply = await reply_of(model_of(server), asking("b" * 4000))
    assert not reply.usage_exact
    assert 900 < reply.usage.prompt_tokens < 1100
    assert reply.usage.output_tokens == 100


async def test_cancelling_a_call_hangs_up_at_once(serve: Serve) -> None:
    server = serve(lambda body: Cut(Reply([text("some words that stream")]), 4, "stall"))
    streaming = asyncio.Event()

    async def consume() -> None:
        async for _ in model_of(server).stream(asking()):
            streaming.set()

    task = asyncio.create_task(consume())
    await asyncio.wait_for(streaming.wait(), 10)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await asyncio.to_thread(server.abandoned.acquire, timeout=5)


async def test_abandoning_the_iteration_hangs_up_at_once(serve: Serve) -> None:
    server = serve(lambda body: Cut(Reply([text("some words that stream")]), 4, "stall"))
    events = model_of(server).stream(asking())
    await asyncio.wait_for(anext(events), 10)
    await events.aclose()
    assert await asyncio.to_thread(server.abandoned.acquire, timeout=5)


async def test_what_streams_is_shown_before_the_reply_is_whole(serve: Serve) -> None:
    released = threading.Event()
    server = serve(lambda body: Held(Reply([text("first and last")], piece=6), released, events=4))
    events = model_of(server).stream(asking())
    counted = await asyncio.wait_for(anext(events), 10)
    assert isinstance(counted, records.UsageSoFar)
    assert counted.usage.prompt_tokens > 0
    assert await asyncio.wait_for(anext(events), 10) == Delta("text", "first ")
    released.set()
    assert isinstance([event async for event in events][-1], records.Reply)


async def test_iterations_of_other_models_are_calls_beside_the_reply(serve: Serve) -> None:
    own = {"input_tokens": 2, "output_tokens": 491, "cache_read_input_tokens": 226_584}
    advisor = {"input_tokens": 159_419, "output_tokens": 7_805}
    iterations = [
        {"type": "message", **own},
        {"type": "advisor_message", "model": "claude-opus-4-7", **advisor},
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "seance", "output_tokens": 7},
        {"type": "advisor_message", "input_tokens": 10**15},
        "not an object",
    ]
    server = serve(lambda body: Reply([text("ok")], usage={**own, "iterations": iterations}))
    reply = await reply_of(model_of(server), asking())
    assert (reply.usage, reply.usage_exact) == (Usage(2, 491, 226_584), True)
    assert reply.side_calls == (
        records.SideCall("advisor", Usage(159_419, 7_805), "claude-opus-4-7"),
        records.SideCall("compaction", Usage(180_000, 3_500)),
        records.SideCall("other", Usage(0, 7), exact=False),
    )


async def test_what_changes_the_price_of_a_request_is_read_with_its_usage(serve: Serve) -> None:
    usage = {
        "input_tokens": 2, "output_tokens": 4, "speed": "fast", "inference_geo": "us", "service_tier": "standard",
        "server_tool_use": {"web_search_requests": 3},
    }  # fmt: skip
    server = serve(lambda body: Reply([text("ok")], usage=usage))
    reply = await reply_of(model_of(server), asking())
    assert (reply.modifiers, reply.searches) == (("speed=fast", "inference_geo=us"), 3)


async def test_one_model_serves_many_agents_at_once(serve: Serve) -> None:
    server = serve(lambda body: Reply([text(body["messages"][0]["content"][0]["text"].upper())]))
    model = model_of(server)
    replies = await asyncio.gather(*(reply_of(model, asking(f"agent {n}")) for n in range(30)))
    assert [reply.content[0]["text"] for reply in replies] == [f"AGENT {n}" for n in range(30)]


async def test_calls_one_after_another_share_a_connection(serve: Serve) -> None:
    server = serve(lambda body: Reply([text("ok")]))
    model = model_of(server)
    for _ in range(5):
        await reply_of(model)
    assert server.connections == 1


async def test_a_retry_is_announced_before_the_wait_and_counted(serve: Serve) -> None:
    overloaded = Status(529, "overloaded_error", "Overloaded")
    server = serve(in_turn(overloaded, overloaded, Reply([text("at last")])))
    *events, reply = await events_of(model_of(server))
    waits = [event for event in events if isinstance(event, Retrying)]
    assert [wait.attempt for wait in waits] == [1, 2]
    assert all(wait.reason == "overloaded (529): Overloaded" and wait.wait_seconds > 0 for wait in waits)
    assert isinstance(reply, records.Reply)
    assert reply.retries == 2
    assert reply.latency_seconds >= sum(wait.wait_seconds for wait in waits)


async def test_an_address_may_end_in_v1_as_many_servers_write_it(serve, monkeypatch):
    server = serve(lambda body: Reply([text("ok")]))
    await reply_of(model_of(f"{server.url}/v1"))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{server.url}/v1/")
    await reply_of(model_of(server, base_url=None))
    assert len(server.requests) == 2


def test_the_first_call_does_not_stall_the_event_loop(serve: Serve) -> None:
    """Importing the SDK takes a second or two; meanwhile a host must keep its other agents going."""
    server = serve(lambda body: Reply([text("ok")]))
    code = f"""
import asyncio, sys
from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.records.messages import ModelRequest

async def main():
    beats, done = 0, asyncio.Event()
    async def beat():
        nonlocal beats
        while not done.is_set():
            await asyncio.sleep(0.001)
            sdk = sys.modules.get("anthropic")
            beats += sdk is not None and not hasattr(sdk, "AsyncAnthropic")  # it is loading
    beating = asyncio.create_task(beat())
    model = AnthropicModel("m", api_key="test", base_url={server.url!r})
    async for _ in model.stream(ModelRequest("", [{{"role": "user", "content": "x"}}])):
        pass
    done.set()
    await beating
    await model.close()
    print(beats)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0


async def test_what_a_reply_states_of_usage_windows_comes_with_it(serve: Serve) -> None:
    headers = {
        "anthropic-organization-id": "org-1", "anthropic-ratelimit-unified-5h-utilization": "0.25",
        "anthropic-ratelimit-unified-7d-utilization": "none",
    }  # fmt: skip
    server = serve(in_turn(Reply([text("a")], headers=headers), Reply([text("b")])))
    model = model_of(server)
    (found,) = (await reply_of(model, asking())).quota
    assert (found.provider, found.account, found.minutes, found.used_percent) == (
        "anthropic",
        "org-1",
        300,
        25,
    )
    assert (await reply_of(model, asking())).quota == ()
