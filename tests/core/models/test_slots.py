"""The gate: turns first, nothing starves, no slot is ever lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchkeeper.models.gate import FOREGROUND, Gate, Gates
from watchkeeper.records.messages import Purpose
from watchkeeper.records.ports import ManualClock

TURN, PLANNER, REFLECTOR, OBSERVER = Purpose.TURN, Purpose.PLANNER, Purpose.REFLECTOR, Purpose.OBSERVER


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(8):
        await asyncio.sleep(0)


@dataclass
class Callers:
    """Calls that hold their slot until told to end."""

    gate: Gate
    started: list[str] = field(default_factory=list)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    ends: dict[str, asyncio.Event] = field(default_factory=dict)

    async def ask(self, name: str, purpose: Purpose) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._call(name, purpose))
        await settle()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settle()

    async def stop(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _call(self, name: str, purpose: Purpose) -> None:
        async with self.gate.slot(purpose, name):
            self.started.append(name)
            await self.ends[name].wait()


async def test_a_freed_slot_goes_to_turns_then_planner_then_reflector_then_observer() -> None:
    callers = Callers(Gate(2, clock=ManualClock()))
    await callers.ask("a", TURN)
    await callers.ask("b", TURN)
    for name, purpose in (
        ("observer", OBSERVER),
        ("reflector", REFLECTOR),
        ("planner", PLANNER),
        ("turn", TURN),
    ):
        await callers.ask(name, purpose)
    assert [waiting.agent_id for waiting in callers.gate.waiting()] == [
        "turn",
        "planner",
        "reflector",
        "observer",
    ]
    for name in ("a", "turn", "planner", "reflector"):
        await callers.end(name)
    assert callers.started == ["a", "b", "turn", "planner", "reflector", "observer"]
    await callers.stop()


async def test_whoever_waits_long_enough_overtakes_newer_turns() -> None:
    clock = ManualClock()
    callers = Callers(Gate(2, ageing_seconds=10, clock=clock))
    await callers.ask("a", TURN)
    await callers.ask("b", TURN)
    await callers.ask("observer", OBSERVER)
    clock.advance(31)
    await callers.ask("late turn", TURN)
    await callers.end("a")
    await callers.end("b")
    assert callers.started == ["a", "b", "observer", "late turn"]
    await callers.stop()


async def test_nobody_starts_before_the_rate_limit_ends_and_the_list_says_so() -> None:
    clock = ManualClock()
    written: list[tuple[float, str]] = []
    gate = Gate(2, clock=clock, on_rate_limited=lambda until, reason: written.append((until, reason)))
    until = clock.now() + 42
    gate.rate_limit(until, "429")
    assert written == [(until, "429")]

    task = asyncio.create_task(Callers(gate)._call("a", TURN))
    await asyncio.sleep(0)
    (waiting,) = gate.waiting()
    assert (waiting.agent_id, waiting.reason, waiting.until) == ("a", "rate limit", until)
    while not gate.running:
        assert clock.now() < until + 1
        await asyncio.sleep(0)
    assert clock.now() >= until
    task.cancel()
    await asyncio.wait([task])


async def test_a_rate_limit_that_another_host_wrote_is_obeyed_and_its_end_noticed() -> None:
    clock = ManualClock()
    table = {"until": clock.now() + 900}
    gate = Gate(2, clock=clock, rate_limited_until=lambda: table["until"])
    callers = Callers(gate)
    task = asyncio.create_task(callers._call("a", TURN))
    callers.ends["a"] = asyncio.Event()
    await asyncio.sleep(0)
    assert gate.waiting()[0].reason == "rate limit"
    table["until"] = 0.0
    await settle()
    assert callers.started == ["a"]
    task.cancel()
    await asyncio.wait([task])


async def test_a_limit_from_a_clock_that_was_wrong_keeps_nobody_waiting_for_longer_than_a_server_may_ask():
    """A machine's clock was a year ahead when its provider asked for silence, and was set right."""
    clock = ManualClock(1_700_000_000.0)
    gate = Gate(1, clock=clock, rate_limited_until=lambda: 1_700_000_000.0 + 365 * 86_400)
    callers = Callers(gate)
    await callers.ask("at once", TURN)
    assert callers.started == ["at once"]
    await callers.end("at once")
    gate.rate_limit(clock.now() + 86_400, "of today, by the wrong clock")
    await callers.ask("then", TURN)
    assert callers.started == ["at once", "then"]
    assert gate.waiting() == ()
    await callers.stop()


async def test_a_call_cancelled_in_the_instant_of_its_grant_loses_no_slot() -> None:
    callers = Callers(Gate(1, clock=ManualClock()))
    await callers.ask("a", TURN)
    await callers.ask("b", TURN)
    callers.ends["a"].set()
    await asyncio.sleep(0)  # a ends and b is granted its slot, but has not run yet
    callers.tasks["b"].cancel()
    await settle()
    await callers.ask("c", TURN)
    assert callers.started[-1] == "c"
    await callers.stop()
    assert callers.gate.running == 0


async def test_gates_are_separate_for_each_model() -> None:
    gates = Gates(lambda ref: Gate(1, clock=ManualClock()))
    first, second = Callers(gates.of("anthropic/a")), Callers(gates.of("anthropic/b"))
    await first.ask("one", TURN)
    await second.ask("two", TURN)
    await second.ask("three", TURN)
    assert second.started == ["two"]
    found = {ref: [w.agent_id for w in waiting] for ref, waiting in gates.waiting().items()}
    assert found == {"anthropic/b": ["three"]}
    await first.stop()
    await second.stop()


def test_a_gate_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Gate(0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(list(Purpose))),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.integers(1, 50)),
        st.tuples(st.just("limit"), st.integers(1, 60)),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(steps=STEPS, limit=st.integers(1, 5))
def test_whatever_happens_the_limits_hold_and_everyone_is_served(steps, limit):
    asyncio.run(_whatever_happens(steps, limit))


async def _whatever_happens(steps: list[tuple[str, object]], limit: int) -> None:
    clock = ManualClock()
    gate = Gate(limit, ageing_seconds=10, clock=clock)
    callers = Callers(gate)
    purposes: dict[str, Purpose] = {}
    for step, value in steps:
        names = list(callers.tasks)
        if step == "ask":
            assert isinstance(value, Purpose)
            name = f"c{len(names)}"
            purposes[name] = value
            await callers.ask(name, value)
        elif step == "advance":
            assert isinstance(value, int)
            clock.advance(value)
        elif step == "limit":
            assert isinstance(value, int)
            gate.rate_limit(clock.now() + value)
        elif names:
            assert isinstance(value, int)
            name = names[value % len(names)]
            if step == "cancel":
                callers.tasks[name].cancel()
                await settle()
            else:
                await callers.end(name)
        for _ in range(10):  # whoever was granted a slot in this very instant has yet to wake
            holding = [name for name in callers.started if not callers.tasks[name].done()]
            if gate.running == len(holding):
                break
            await asyncio.sleep(0)
        assert gate.running == len(holding) <= limit
        background = sum(purposes[name] not in FOREGROUND for name in holding)
        assert background <= max(1, limit - 1)
        asked = {name for name, task in callers.tasks.items() if not task.done()}
        assert {w.agent_id for w in gate.waiting()} == asked - set(holding)

    for name in list(callers.tasks):
        callers.ends[name].set()
    for _ in range(2000):  # every sleep of the manual clock moves it on, so rate limits pass
        if all(task.done() for task in callers.tasks.values()):
            break
        await asyncio.sleep(0)
    assert all(task.done() for task in callers.tasks.values())
    assert gate.running == 0
    assert gate.waiting() == ()
