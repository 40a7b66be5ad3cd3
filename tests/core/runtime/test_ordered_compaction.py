"""An ordered compaction is not forgotten because its host died, or its agent was paused or rested."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.core.runtime.working import Work, die, held, land, order_compaction, passes, prepare, prepared
from tests.support.scripted import PlannedRun, call, said, task

from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.history import Rejection
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.messages import ModelRequest, Purpose


def told(bench: Bench) -> list[tuple[str, str]]:
    return [(one["trigger"], one["status"]) for one in passes(bench)]


async def crash_under_the_pass(bench: Bench, work: Work, **payload: Any) -> None:
    """Order a compaction of the working agent, and let its host die while the summary is being written."""
    crashed = asyncio.ensure_future(bench.run())
    await order_compaction(bench, work, payload)
    await die(crashed)


async def test_a_pass_that_was_ordered_and_only_ran_when_the_host_died_is_begun_again_as_it_was_ordered(
    bench,
):
    work = held(bench, written=False)
    await crash_under_the_pass(bench, work, instructions="keep the notes")
    work.summaries.set()

    await land(bench, work)
    assert told(bench) == [("manual", "abandoned"), ("manual", "applied")]
    first, again = passes(bench)
    assert "restarted" in first["reason"]
    assert again["high_water"] == first["high_water"]
    asked = [str(one.messages) for one in bench.model.requests if one.purpose is Purpose.REFLECTOR]
    assert len(asked) == 2
    assert all("keep the notes" in one for one in asked)
    assert [one["status"] for one in bench.state["commands"]] == ["applied"]
    bench.assert_sound()


async def test_a_pass_that_an_agent_ordered_for_itself_outlives_the_host_too(bench):
    gate = asyncio.Event()

    def script(request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            return [said("The agent said words (#2).")] if gate.is_set() else gate
        return PlannedRun([task("a")], step)(request)

    def step(name: str, request: ModelRequest) -> Any:
        done = sum(message["role"] == "assistant" for message in request.messages)
        if "said words" in str(request.messages):
            return [said("done")]
        if done < 5:
            return [call("save_artifact", {"name": f"n{done}", "content": "words " * 400}, f"t{done}")]
        return [call("compact", {}, "t5") if done == 5 else call("recall", {"query": f"q{done}"}, f"t{done}")]

    bench.start(script, window=60_000)
    crashed = asyncio.ensure_future(bench.run())
    await bench.until(lambda state: bench.model.hanging)
    await die(crashed)
    gate.set()
    assert (await bench.run()).exit_code == 0
    assert told(bench) == [("agent", "abandoned"), ("agent", "applied")]


async def test_a_host_that_dies_between_two_beginnings_loses_no_order_and_makes_none_twice(
    bench, monkeypatch
):
    work = held(bench, written=False)
    await crash_under_the_pass(bench, work)
    for _ in range(2):  # hosts that die while they write the pass that was begun again
        asked = work.asked
        crashed = asyncio.ensure_future(bench.run())
        await bench.until(lambda state, asked=asked: work.asked > asked)
        await die(crashed)
    work.summaries.set()

    await land(bench, work)
    assert [status for _, status in told(bench)] == ["abandoned", "abandoned", "abandoned", "applied"]
    assert len(bench.state["observations"]) == 1
    bench.assert_sound()


async def test_a_pass_that_nobody_ordered_is_not_begun_again_by_the_next_host(bench):
    work = Work(count=16, words=450)
    work.summaries.clear()
    work.hold_turn = 15
    bench.start(work, window=12_000)
    crashed = asyncio.ensure_future(bench.run())
    await bench.until(lambda state: bench.model.hanging >= 2)
    await die(crashed)
    assert told(bench)[-1] == ("auto", "running")
    work.summaries.set()
    work.turn_gate.set()
    assert (await bench.run()).exit_code == 0
    assert "restarted" not in passes(bench)[0]["reason"]


async def pause_under_the_pass(bench: Bench, work: Work) -> None:
    async def pause() -> None:
        await order_compaction(bench, work)
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).exit_code == 5


async def test_an_order_that_cannot_be_carried_out_any_more_says_why(bench, monkeypatch):
    work = held(bench, written=False)
    await crash_under_the_pass(bench, work)
    work.turn_gate.set()
    monkeypatch.setattr(Compactor, "begin", lambda *about, **how: Rejection("There is nothing left."))
    assert (await bench.run()).exit_code == 0
    assert told(bench) == [("manual", "abandoned")]
    assert "There is nothing left." in passes(bench)[0]["reason"]


async def test_an_order_that_was_put_off_and_cannot_be_carried_out_any_more_has_a_record_that_says_why(
    bench, monkeypatch
):
    work = held(bench, written=False)
    await pause_under_the_pass(bench, work)
    work.turn_gate.set()
    monkeypatch.setattr(Compactor, "begin", lambda *about, **how: Rejection("There is nothing left."))
    assert (await bench.run(resume=True)).exit_code == 0
    assert told(bench) == [("manual", "abandoned"), ("manual", "rejected")]
    first, again = passes(bench)
    assert again["reason"] == "There is nothing left."
    found = [again[name] for name in ("high_water", "model")]
    assert found == [first[name] for name in ("high_water", "model")]
    assert again["tokens_before"] >= first["tokens_before"] > 0


async def test_a_pass_ends_with_its_agent_and_says_so(bench):
    work = held(bench, written=False)

    async def order() -> None:
        await order_compaction(bench, work)
        work.turn_gate.set()

    assert (await bench.run_while(order)).exit_code == 0
    assert [(one["status"], one["reason"]) for one in passes(bench)] == [("abandoned", "the agent finished")]


async def test_a_store_that_is_lost_while_a_summary_is_written_ends_the_host(bench):
    work = held(bench)

    def script(request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            raise StoreUnusable("the disk is gone")
        return work(request)

    bench.model.script = script

    async def order() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.submit("compact", agent_id=bench.state["agents"][-1]["id"])
        await bench.until(lambda state: passes(bench))
        work.turn_gate.set()

    with pytest.raises(StoreUnusable, match="the disk is gone"):
        await bench.run_while(order)


async def test_a_pause_puts_an_ordered_pass_off_and_the_resume_begins_it_again(bench):
    work = held(bench, written=False)
    await pause_under_the_pass(bench, work)
    assert told(bench) == [("manual", "abandoned")]
    assert passes(bench)[0]["reason"] == "the agent is paused; restarts when the agent continues"
    work.summaries.set()

    await land(bench, work, resume=True)
    assert told(bench) == [("manual", "abandoned"), ("manual", "applied")]


async def test_what_was_undone_after_a_pause_is_not_compacted_again_by_the_resume(bench):
    work = held(bench)

    async def compact_twice_and_pause() -> None:
        await bench.until(lambda state: bench.model.hanging)
        agent = bench.state["agents"][-1]["id"]
        bench.submit("compact", agent_id=agent)
        await prepared(bench)
        work.hold_turn, gate = 8, work.turn_gate
        work.turn_gate = asyncio.Event()
        gate.set()
        await bench.until(lambda state: bench.model.hanging >= 2)
        work.summaries.clear()
        bench.submit("compact", agent_id=agent)
        await bench.until(lambda state: work.asked == 2)
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(compact_twice_and_pause)).exit_code == 5
    assert told(bench) == [("manual", "applied"), ("manual", "abandoned")]
    await bench.run(once=bench.submit("undo", agent_id=bench.state["agents"][-1]["id"]))
    work.summaries.set()
    work.turn_gate.set()
    assert (await bench.run(resume=True)).exit_code == 0
    assert told(bench) == [("manual", "applied"), ("manual", "abandoned")]


async def test_a_summary_that_is_ready_when_its_agent_pauses_is_kept_and_lands_at_the_resume(bench):
    work = held(bench)

    async def pause() -> None:
        await prepare(bench)
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).exit_code == 5
    work.turn_gate.set()
    assert (await bench.run(resume=True)).exit_code == 0
    assert told(bench) == [("manual", "applied")]
    assert work.asked == 1


async def test_a_host_that_is_stopped_from_outside_leaves_no_call_for_a_summary_behind(bench):
    work = held(bench, written=False)
    await crash_under_the_pass(bench, work)
    await asyncio.sleep(0)
    assert not [one.get_name() for one in asyncio.all_tasks() if one.get_name().startswith("compaction-")]
