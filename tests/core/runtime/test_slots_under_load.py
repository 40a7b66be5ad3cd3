"""Slots of a host under load: the main loop is not held up, and hosts share rate limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.runtime.conftest import Bench, Ground
from tests.support.scripted import ScriptedModel, call, role_of, said, task

from watchkeeper.agents.limits import Admission, AgentControl
from watchkeeper.agents.model_call import ModelCallResult, call_model
from watchkeeper.models.gate import FOREGROUND, Gate
from watchkeeper.records.messages import (
    Cost,
    ModelEvent,
    ModelRequest,
    PriceStatus,
    Purpose,
    Reply,
    Retrying,
    Usage,
)
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.host_factory import shared_gate


@dataclass
class Load:
    """One call: when it comes, for what, and how long the provider takes to reply. And what became of it."""

    at: int
    purpose: Purpose
    seconds: int
    started: float = -1.0
    ended: float = -1.0

    @property
    def is_foreground(self) -> bool:
        return self.purpose in FOREGROUND


class Provider:
    """A provider in virtual time: nothing sleeps, every reply takes exactly what its load says."""

    def __init__(self, limit: int, ageing_seconds: float) -> None:
        self.clock = ManualClock(0.0)
        self.gate = Gate(limit, ageing_seconds=ageing_seconds, clock=self.clock)

    async def serve(self, loads: list[Load]) -> None:
        waiting, ends = sorted(loads, key=lambda load: load.at), {id(load): asyncio.Event() for load in loads}
        tasks = []
        while any(load.ended < 0 for load in loads):
            running = [load for load in loads if load.started >= 0 > load.ended]
            moments = [load.started + load.seconds for load in running] + [load.at for load in waiting[:1]]
            assert moments, "calls wait, none runs, and none is to come: a slot was lost"
            self.clock.advance(max(0.0, min(moments) - self.clock.now()))
            for load in running:
                if load.started + load.seconds <= self.clock.now():
                    ends[id(load)].set()
                    await self._settle(lambda load=load: load.ended >= 0)
            while waiting and waiting[0].at <= self.clock.now():
                load = waiting.pop(0)
                tasks.append(asyncio.create_task(self._call(load, ends[id(load)])))
                await self._settle(lambda: False)
        await asyncio.gather(*tasks)

    async def _call(self, load: Load, end: asyncio.Event) -> None:
        async with self.gate.slot(load.purpose):
            load.started = self.clock.now()
            await end.wait()
            load.ended = self.clock.now()

    async def _settle(self, done: object) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def overlap(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return max(first[0], second[0]), min(first[1], second[1])


def behind_background(turn: Load, loads: list[Load]) -> float:
    """For how long a turn waited while at least one background call held a slot."""
    spans = sorted(
        overlap((turn.at, turn.started), (load.started, load.ended))
        for load in loads
        if not load.is_foreground
    )
    total, until = 0.0, float("-inf")
    for start, end in spans:
        if end > start:
            total += max(0.0, end - max(start, until))
            until = max(until, end)
    return total


def some_loads(purposes: list[Purpose], count: int) -> st.SearchStrategy[list[Load]]:
    one = st.builds(
        Load, at=st.integers(0, 60), purpose=st.sampled_from(purposes), seconds=st.integers(1, 30)
    )
    return st.lists(one, min_size=1, max_size=count)


BESIDE = [Purpose.OBSERVER, Purpose.REFLECTOR]


@settings(max_examples=60)
@given(loads=some_loads(list(Purpose), 30), limit=st.integers(1, 4), ageing=st.sampled_from([1.0, 5.0, 20.0]))
def test_under_any_load_a_turn_waits_behind_background_work_for_one_reply_at_most(loads, limit, ageing):
    asyncio.run(Provider(limit, ageing).serve(loads))
    longest = max((load.seconds for load in loads if not load.is_foreground), default=0)
    for turn in loads:
        if turn.is_foreground:
            assert behind_background(turn, loads) <= longest
            started_before_it = [
                load for load in loads if not load.is_foreground and turn.at < load.started < turn.started
            ]
            assert len({load.started for load in started_before_it}) <= 1


@settings(max_examples=60)
@given(
    observers=some_loads(BESIDE, 40),
    turns=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    limit=st.integers(1, 4),
    first=st.integers(0, 60),
)
def test_under_full_load_from_observers_a_turn_waits_for_no_longer_than_one_reply_and_not_at_all_where_a_slot_is_reserved(
    observers: list[Load], turns: list[int], limit: int, first: int
) -> None:
    # One agent: its next turn comes when the last one ended at the earliest, whatever it had to wait for.
    at, own = first, []
    for seconds in turns:
        own.append(Load(at, Purpose.TURN, seconds))
        at += seconds + 31
    asyncio.run(Provider(limit, 5.0).serve([*observers, *own]))
    for turn in own:
        waited = turn.started - turn.at
        running = [load for load in observers if load.started <= turn.at < load.ended]
        assert waited <= (0 if limit > 1 else max((load.ended - turn.at for load in running), default=0))


async def test_background_work_is_not_starved_by_turns_that_keep_coming() -> None:
    turns = [Load(at, Purpose.TURN, 10) for at in range(0, 2_000, 5)]
    observer = Load(1, Purpose.OBSERVER, 10)
    await Provider(1, 20.0).serve([*turns, observer])
    assert observer.started - observer.at < 200


class Counting(ScriptedModel):
    """Notes how many calls the provider had under way at once."""

    under_way = 0
    most = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            async for event in super().stream(request):
                yield event
        finally:
            self.under_way -= 1


async def test_all_calls_of_a_host_to_one_model_go_through_one_gate(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("slots = 2\n", encoding="utf-8")
    names = [f"part-{number}" for number in range(6)]
    told: set[str] = set()
    words = "what was seen in the part, at length. " * 60

    def script(request: ModelRequest) -> list[dict[str, object]]:
        if request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR):
            return [said("- it was seen (#1)")]
        turns = sum(message["role"] == "assistant" for message in request.messages)
        if role_of(request) == "planner":
            if turns == 0:
                return [call("create_plan", {"goal": "look", "tasks": [*map(task, names)]})]
            # What it was told of the first may have left its small window before the last is done.
            told.update(re.findall(r"Task (part-\d) is done\.", str(request.messages)))
            finish = call("finish_session", {"summary": "seen"})
            return [finish if len(told) == len(names) else said("I wait")]
        text = f"{request.agent_id} {turns} {words[:900]}"
        return [said("done") if turns >= 6 else call("remember", {"text": text}, f"u{turns}")]

    model = Counting(script)
    bench.model = bench.runtime._model = model  # type: ignore[assignment]
    bench.start(script, window=8_000, max_parallel=6)
    result = await bench.run()
    assert result.status == "done"
    assert model.most == 2
    assert {request.purpose for request in model.requests} >= {Purpose.TURN, Purpose.PLANNER}


async def test_two_hosts_on_one_database_hold_back_together_until_the_provider_may_be_asked_again(tmp_path):
    clock = ManualClock()
    grounds = [Ground(tmp_path, clock=clock) for _ in range(2)]
    hosts = [ground.store for ground in grounds]
    try:
        first, second = (shared_gate(host, "test/model", 2, clock) for host in hosts)
        other = shared_gate(hosts[1], "test/another", 2, clock)
        until = clock.now() + 30
        first.rate_limit(until, "429")
        await hosts[0].commit(lambda tx: None)  # what was queued before it is written
        assert second.rate_limited_until == until
        assert other.rate_limited_until == 0.0

        async def ask(gate: Gate) -> float:
            async with gate.slot(Purpose.TURN):
                return clock.now()

        assert await ask(other) < until
        assert min(await asyncio.gather(ask(first), ask(second))) >= until
    finally:
        for ground in grounds:
            ground.close()


async def test_a_call_that_waits_to_be_made_again_holds_nobody_up() -> None:
    """With one slot: an observer's retry is due in a minute; a turn that comes is served at once."""
    due = asyncio.Event()

    class Waiting(ManualClock):
        async def sleep(self, seconds: float) -> None:
            await due.wait()

    clock = Waiting(0.0)
    gate = Gate(1, clock=clock)
    order: list[str] = []
    retrying = asyncio.Event()

    class Failing:
        ref, context_window = "test/failing", 1_000

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            if request.purpose is Purpose.OBSERVER:
                yield Retrying("overloaded", wait_seconds=60.0, attempt=1)
                retrying.set()
                assert request.pause is not None
                await request.pause(60.0)
            order.append(request.purpose)
            yield Reply(content=[{"type": "text", "text": "ok"}], usage=Usage(), stop_reason="end_turn")

    async def unlimited(call: object) -> None:
        return None

    environment = SimpleNamespace(
        clock=clock, live=None, model=lambda ref: Failing(), gate=lambda ref: gate,
        price=lambda *about: Cost(None, PriceStatus.UNPRICED), budgets=SimpleNamespace(reserve=unlimited),
        usage_limits=SimpleNamespace(admit=lambda ref: Admission.OPEN),
    )  # fmt: skip

    def ask(purpose: Purpose) -> asyncio.Task[ModelCallResult]:
        request = ModelRequest("", [], purpose=purpose, agent_id=purpose)
        calling = call_model(
            environment, AgentControl(), "test/failing", request, estimated_prompt_tokens=1, shown=False
        )  # type: ignore[arg-type]
        return asyncio.create_task(calling)

    observer = ask(Purpose.OBSERVER)
    await retrying.wait()
    turn = await ask(Purpose.TURN)
    assert turn.reply is not None
    assert order == [Purpose.TURN]
    due.set()
    await observer
    assert order == [Purpose.TURN, Purpose.OBSERVER]
    assert gate.running == 0
