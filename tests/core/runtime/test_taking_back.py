"""Commands that come too soon or too late: a resume before its pause has come, a cancel after the end."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.runtime.conftest import Bench, agent_of
from tests.core.runtime.test_control import steps
from tests.support.scripted import PlannedRun, task


@pytest.mark.parametrize("whole", [True, False])
async def test_a_resume_takes_back_a_pause_that_has_not_come(bench: Bench, whole: bool) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def think_again() -> None:
        agent = await bench.until(lambda state: bench.model.hanging and agent_of(state, "a"))
        about = {} if whole else {"agent_id": agent["id"]}
        bench.submit("pause", **about)
        resumed = bench.submit("resume", **about)
        await bench.until(
            lambda state: any(
                one["id"] == resumed and one["status"] == "applied" for one in state["commands"]
            )
        )
        gate.set()

    assert (await bench.run_while(think_again)).exit_code == 0
    assert "agent.paused" not in bench.kinds()
    bench.assert_sound()


@pytest.mark.parametrize("whole", [True, False])
async def test_a_resume_right_after_a_pause_at_once_goes_on_when_it_has_come(
    bench: Bench, whole: bool
) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def think_again() -> None:
        agent = await bench.until(lambda state: bench.model.hanging and agent_of(state, "a"))
        about = {} if whole else {"agent_id": agent["id"]}
        bench.submit("pause", payload={"now": True}, **about)
        resumed = bench.submit("resume", **about)
        await bench.until(lambda state: "agent.paused" in bench.kinds())
        gate.set()
        await bench.until(
            lambda state: any(
                one["id"] == resumed and one["status"] == "applied" for one in state["commands"]
            )
        )

    assert (await bench.run_while(think_again)).exit_code == 0
    assert bench.tasks()["a"]["status"] == "done"
    bench.assert_sound()


async def test_one_agent_cannot_go_on_while_the_whole_run_is_being_paused(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def resume_a() -> None:
        agent = await bench.until(lambda state: bench.model.hanging and agent_of(state, "a"))
        bench.submit("pause")
        resumed = bench.submit("resume", agent_id=agent["id"])
        await bench.until(
            lambda state: any(
                one["id"] == resumed and one["status"] == "refused" for one in state["commands"]
            )
        )
        gate.set()

    assert (await bench.run_while(resume_a)).exit_code == 5


async def test_a_cancel_that_comes_after_the_end_is_refused_and_the_session_stays_done(bench: Bench) -> None:
    bench.start(PlannedRun([task("a")]))
    assert (await bench.run()).exit_code == 0
    bench.submit("cancel")
    assert (await bench.run()).exit_code == 0
    assert bench.state["session"]["status"] == "done"
    assert [(one["status"], one["result"]) for one in bench.state["commands"]] == [
        ("refused", "the session is done already")
    ]
