"""Compaction of agents that do not work now: it goes on beside everything else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench, agent_of
from tests.core.runtime.working import passes
from tests.support.scripted import PlannedRun, call, inbox_of, role_of, said, task, turns

from watchkeeper.records.messages import ModelRequest, Purpose


class Waiting:
    """Two tasks; the second is held. The planner has much in its context, and rests between the two."""

    def __init__(self) -> None:
        self.second, self.summary = asyncio.Event(), asyncio.Event()
        self.asked = 0
        self._run = PlannedRun([task("a"), task("b", needs=["a"])], self._work)

    def __call__(self, request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            self.asked += 1
            return [said("The plan was made (#2).")] if self.summary.is_set() else self.summary
        if role_of(request) == "planner" and turns(request) < 2:
            if turns(request) == 0:
                return [said("much to think about " * 200), call("list_folder", {"path": "."})]
            return [call("create_plan", {"tasks": self._run.tasks})]
        if role_of(request) == "planner" and any(
            item.get("task") == "b" for item in inbox_of(request.messages[-1])
        ):
            return [call("finish_session", {"summary": "all tasks are done"})]  # whatever was compacted away
        return self._run(request)

    async def compact(self, bench: Bench, task_name: str | None = None) -> int:
        """Order a compaction of an agent (None: of the resting planner), and wait until its summary is asked for."""
        await bench.until(lambda state: bench.model.hanging and resting(state))
        agent = bench.agent(task_name) if task_name else planner(bench.state)
        command = bench.submit("compact", agent_id=agent["id"])
        await bench.until(lambda state: self.asked)
        return command

    def _work(self, name: str, request: ModelRequest) -> Any:
        if name == "b" and not self.second.is_set():
            return self.second
        turn = turns(request)
        if name == "a" and turn < 4:
            return [call("save_artifact", {"name": f"n{turn}", "content": "words " * 300}, f"t{turn}")]
        return [said("done " + "with much to say " * 200)]


@pytest.fixture
def script(bench: Bench) -> Waiting:
    waiting = Waiting()
    bench.start(waiting)
    return waiting


def planner(state: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in state["agents"] if one["role"] == "planner")


def resting(state: dict[str, Any]) -> bool:
    """The planner has heard of the first task's end, and waits for the second."""
    held = agent_of(state, "b")
    return held is not None and planner(state)["status"] == "idle"


async def test_a_planner_that_rests_is_compacted_while_it_waits_and_the_pass_lands_without_it(bench, script):
    async def compact() -> None:
        await bench.applied(await script.compact(bench))
        await bench.applied(bench.submit("set_budget", payload={"kind": "usd", "amount": 5}))
        script.summary.set()
        await bench.until(lambda state: passes(bench)[0]["status"] == "applied")
        assert planner(bench.state)["status"] == "idle"
        script.second.set()

    assert (await bench.run_while(compact)).exit_code == 0
    assert [(one["trigger"], one["status"]) for one in passes(bench)] == [("manual", "applied")]
    bench.assert_sound()


async def test_a_planner_that_is_woken_takes_the_pass_in_flight_along(bench, script):
    async def compact() -> None:
        await script.compact(bench)
        before = planner(bench.state)["turn"]
        bench.submit("steer", agent_id=planner(bench.state)["id"], payload={"text": "are you there?"})
        await bench.until(lambda state: planner(state)["turn"] > before and resting(state))
        assert passes(bench)[0]["status"] == "running"
        script.summary.set()
        await bench.until(lambda state: passes(bench)[0]["status"] == "applied")
        script.second.set()

    assert (await bench.run_while(compact)).exit_code == 0
    assert [(one["trigger"], one["status"]) for one in passes(bench)] == [("manual", "applied")]
    texts = [str(inbox_of(message)) for one in bench.model.requests for message in one.messages]
    assert any("are you there?" in text for text in texts)
    assert sum(one.purpose is Purpose.REFLECTOR for one in bench.model.requests) == 1
    bench.assert_sound()


async def test_a_host_that_pauses_puts_off_the_pass_of_a_resting_planner(bench, script):
    async def pause() -> None:
        await script.compact(bench)
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).exit_code == 5
    assert [one["status"] for one in passes(bench)] == ["abandoned"]
    script.summary.set()
    script.second.set()
    assert (await bench.run(resume=True)).exit_code == 0
    assert [one["status"] for one in passes(bench)] == ["abandoned", "applied"]


async def test_the_compaction_of_an_agent_that_has_ended_keeps_nobody_else_waiting(bench, script):
    async def compact() -> None:
        command = await script.compact(bench, "a")
        first = bench.agent()
        undo = bench.submit("undo", agent_id=first["id"])
        await bench.applied(bench.submit("set_budget", payload={"kind": "usd", "amount": 5}))
        assert [bench.command(one)["status"] for one in (command, undo)] == ["queued", "queued"]
        script.second.set()  # the run goes on, and does not end before the pass
        script.summary.set()
        await bench.applied(undo)
        assert bench.command(command)["status"] == "applied"
        assert bench.command(undo)["result"].startswith(f"{first['name']}: restored view")

    assert (await bench.run_while(compact)).exit_code == 0
    assert [(one["trigger"], one["status"]) for one in passes(bench)] == [("manual", "applied")]
    bench.assert_sound()


async def test_a_pause_does_not_wait_for_the_compaction_of_an_agent_that_has_ended(bench, script):
    async def compact() -> None:
        await script.compact(bench, "a")
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(compact)).exit_code == 5
    (stopped,) = passes(bench)
    assert (stopped["status"], stopped["reason"]) == ("abandoned", "its background process ended")
    script.summary.set()
    script.second.set()
    assert (await bench.run(resume=True)).exit_code == 0
    assert [one["status"] for one in passes(bench)] == ["abandoned", "applied"]
    assert {one["kind"]: one["status"] for one in bench.state["commands"]}["compact"] == "applied"


async def test_a_host_with_nothing_else_to_do_ends_after_the_compaction_that_was_ordered(bench, script):
    async def compact() -> None:
        await script.compact(bench, "a")
        bench.submit("pause", agent_id=bench.agent("b")["id"], payload={"now": True})
        await bench.until(lambda state: bench.agent("b")["status"] == "paused")
        await bench.applied(bench.submit("set_budget", payload={"kind": "usd", "amount": 5}))
        script.summary.set()

    assert (await bench.run_while(compact)).exit_code == 5
    assert [one["status"] for one in passes(bench)] == ["applied"]
    assert not bench.query("SELECT 1 FROM inbox WHERE kind = 'nudge'")
    assert {one["kind"]: one["status"] for one in bench.state["commands"]}["compact"] == "applied"
    bench.assert_sound()


async def test_an_agent_that_is_resumed_while_it_is_compacted_says_what_it_waits_for(bench):
    held, summary = asyncio.Event(), asyncio.Event()

    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if name == "a" and turn < 4:
            return [call("save_artifact", {"name": f"n{turn}", "content": "words " * 300}, f"t{turn}")]
        return [said("done")] if held.is_set() else held

    run = PlannedRun([task("a"), task("b")], work)

    def script(request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            return [said("Much was saved (#2).")] if summary.is_set() else summary
        return run(request)

    bench.start(script)

    async def resume() -> None:
        await bench.until(lambda state: bench.model.hanging == 2)
        agent = bench.agent()
        bench.submit("pause", agent_id=agent["id"], payload={"now": True})
        await bench.until(lambda state: bench.agent()["status"] == "paused")
        bench.submit("compact", agent_id=agent["id"])
        await bench.until(lambda state: bench.model.hanging == 3)
        resumed = bench.submit("resume", agent_id=agent["id"])
        await bench.applied(resumed)
        assert bench.command(resumed)["result"] == f"{agent['name']} continues, after its compaction"
        live = "SELECT detail FROM live WHERE agent_id = ?"
        await bench.until(lambda state: "compacted" in str(bench.query(live, agent["id"])))
        held.set()
        summary.set()

    assert (await bench.run_while(resume)).exit_code == 0
    assert [(one["trigger"], one["status"]) for one in passes(bench)] == [("manual", "applied")]
    bench.assert_sound()
