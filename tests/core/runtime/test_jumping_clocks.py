"""A wall clock that is set back or forward, between two hosts or under one, changes nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.core.runtime.working import Work, die, order_compaction, passes, prepared

from watchkeeper import Runtime
from watchkeeper.agents.compaction import CompactionRunner
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.records.ports import SystemClock

HOUR = 3600.0


class Jumping(SystemClock):
    """The machine's clock, of which the wall time can be set."""

    offset = 0.0

    def now(self) -> float:
        return super().now() + self.offset


@pytest.fixture
def clock() -> Jumping:
    return Jumping()


@pytest.fixture
def bench(tmp_path: Path, clock: Jumping, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    made.runtime = Runtime(made.path, model=made.model, clock=clock)
    monkeypatch.setattr(
        "watchkeeper.runtime.control.time", SimpleNamespace(**vars(time) | {"time": clock.now})
    )
    return made


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
async def test_a_compaction_that_was_made_for_a_command_is_not_made_again(bench, clock, jump, monkeypatch):
    """Its host prepared it and died; the next one published it, and died before it said so."""
    work = Work(4)
    bench.start(work)
    await bench.run()
    clock.offset = HOUR
    command = bench.submit("compact", agent_id=bench.state["agents"][-1]["id"])
    clock.offset += jump

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as dying:
        dying.setattr(CompactionRunner, "_land", never)
        running = asyncio.ensure_future(bench.run(once=command))
        await bench.until(lambda state: any(one["status"] == "prepared" for one in passes(bench)))
        await die(running)
    with monkeypatch.context() as dying:
        dying.setattr("watchkeeper.store.commands.settle", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await bench.run(once=command)
    await bench.run(once=command)
    assert [one["status"] for one in passes(bench)] == ["applied"]
    assert work.asked == 1
    assert [one["status"] for one in bench.state["commands"]] == ["applied"]


async def test_a_compaction_of_an_earlier_command_is_not_taken_for_that_of_a_later_one(bench, clock):
    work = Work(6)
    bench.start(work)
    await bench.run()
    agent = bench.state["agents"][-1]["id"]
    await bench.run(once=bench.submit("compact", agent_id=agent, payload={"up_to": 4}))
    clock.offset = -HOUR
    await bench.run(once=bench.submit("compact", agent_id=agent))
    assert [one["status"] for one in passes(bench)] == ["applied", "applied"]
    assert work.asked == 2


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
async def test_an_order_that_was_taken_back_before_its_host_died_is_not_begun_again(bench, clock, jump):
    work = Work()
    work.hold_turn = 6
    bench.start(work, window=60_000)
    running = asyncio.ensure_future(bench.run())
    await order_compaction(bench, work, {"up_to": 4})
    agent = bench.state["agents"][-1]["id"]
    await prepared(bench)
    await die(running)
    work.turn_gate.set()
    work.hold_turn, work.turn_gate = 9, asyncio.Event()
    work.summaries.clear()
    running = asyncio.ensure_future(bench.run())
    await bench.until(lambda state: passes(bench)[0]["status"] == "applied" and work.saved >= 9)
    bench.submit("compact", agent_id=agent)
    await bench.until(lambda state: work.asked == 2)
    clock.offset = jump
    await bench.applied(bench.submit("undo", agent_id=agent))
    await die(running)
    work.turn_gate.set()
    work.summaries.set()
    asked = work.asked
    assert (await bench.run()).exit_code == 0
    assert work.asked == asked, "what was taken back was begun again"
    bench.assert_sound()


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
async def test_a_resume_goes_on_whatever_pause_reached_the_session_at_rest_before(bench, clock, jump):
    work = Work(4)
    work.hold_turn = 2
    bench.start(work)

    async def pause() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).status == "paused"
    bench.submit("pause")
    clock.offset = jump
    work.turn_gate.set()
    assert (await bench.run()).status == "done"
    assert [one["status"] for one in bench.state["commands"]] == ["applied", "refused"]


@pytest.mark.parametrize("jump", [-10 * HOUR, 10 * HOUR])
async def test_the_time_that_nobody_hosted_an_open_turn_is_no_work_of_its_agent(
    bench, clock, jump, monkeypatch
):
    work = Work(3)
    work.hold_turn = 1
    bench.start(work)

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    running = asyncio.ensure_future(bench.run())
    await bench.until(lambda state: bench.model.hanging)
    with monkeypatch.context() as dying:
        dying.setattr(Toolbox, "carry_out", never)
        work.turn_gate.set()
        await bench.until(lambda state: state["agents"][-1]["turn"] == 2)
        await die(running)
    clock.offset = jump
    assert (await bench.run()).status == "done"
    assert all(0 <= one["elapsed_seconds"] < HOUR for one in bench.state["agents"])
