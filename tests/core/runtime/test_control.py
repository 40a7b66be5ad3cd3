"""Control from anywhere: pause, resume, cancel, re-run, steer, approve, budgets; and two hosts on one
session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench, agent_of
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.records.errors import DrivenElsewhere, LeaseLost
from watchkeeper.records.messages import ModelRequest


def steps(count: int, gate: asyncio.Event | None = None, at: int = 2) -> Any:
    """A sub-agent that takes `count` turns; at turn `at` its model hangs until `gate` is set."""

    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if gate is not None and turn == at and not gate.is_set():
            return gate
        if turn < count:
            return [call("remember", {"text": f"{name} step {turn}"}, f"t{turn}")]
        return [said(f"{name} done")]

    return work


async def test_a_pause_takes_effect_at_the_next_step_boundary_and_a_resume_goes_on_there(
    bench: Bench,
) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def pause() -> None:
        await bench.until(lambda state: bench.model.hanging)
        await bench.applied(bench.submit("pause"))
        assert agent_of(bench.state, "a")["status"] == "working"  # type: ignore[index]
        gate.set()

    result = await bench.run_while(pause)
    assert (result.status, result.exit_code) == ("paused", 5)
    agent = agent_of(bench.state, "a")
    assert agent is not None
    assert (agent["status"], agent["turn"], agent["errors"]) == ("paused", 3, 0)
    assert (await bench.run()).exit_code == 0
    assert bench.tasks()["a"]["attempt"] == 1
    bench.assert_sound()


async def test_pause_now_abandons_the_model_call_which_is_recorded_and_is_no_error(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(3, gate)))

    async def pause() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.submit("pause", payload={"now": True})

    result = await bench.run_while(pause)
    assert result.exit_code == 5
    assert not gate.is_set()
    calls = bench.query("SELECT status, count(*) FROM model_calls GROUP BY status ORDER BY status")
    assert ("abandoned", 1) in calls
    assert bench.state["session"]["errors"] == 0
    gate.set()
    assert (await bench.run()).exit_code == 0
    bench.assert_sound()


async def test_pausing_one_agent_lets_the_others_work_and_resume_of_it_alone_finishes_the_run(
    bench: Bench,
) -> None:
    gate, resumed = asyncio.Event(), asyncio.Event()

    def work(name: str, request: ModelRequest) -> Any:
        return (steps(4, gate) if name == "a" else steps(4, resumed, at=3))(
            name, request
        )  # else the run ends paused

    bench.start(PlannedRun([task("a"), task("b")], work))

    async def pause_a() -> None:
        agent = await bench.until(lambda state: bench.model.hanging == 2 and agent_of(state, "a"))
        bench.submit("pause", agent_id=agent["id"], payload={"now": True})
        await bench.until(lambda state: agent_of(state, "a")["status"] == "paused")  # type: ignore[index]
        assert agent_of(bench.state, "b")["turn"] == 3  # type: ignore[index]
        gate.set()
        await bench.applied(bench.submit("resume", agent_id=agent["id"]))
        resumed.set()

    assert (await bench.run_while(pause_a)).exit_code == 0
    assert bench.tasks()["b"]["status"] == "done"
    assert bench.tasks()["a"]["attempt"] == 1


async def test_steering_reaches_the_agent_once_before_its_next_turn(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def steer() -> None:
        agent = await bench.until(lambda state: bench.model.hanging and agent_of(state, "a"))
        await bench.applied(bench.submit("steer", agent_id=agent["id"], payload={"text": "mind the gap"}))
        gate.set()

    await bench.run_while(steer)
    last = [one for one in bench.model.requests if "Please do a." in flat(one.messages)][-1]
    assert flat(last.messages).count("A person says: mind the gap") == 1


async def test_cancelling_a_task_ends_its_agent_at_once_and_the_planner_is_told(bench: Bench) -> None:
    gate = asyncio.Event()

    def script(request: ModelRequest) -> Any:
        if "task_cancelled" in flat(request.messages[-1:]):
            return [call("finish_session", {"summary": "it was cancelled"}, "f")]
        return PlannedRun([task("a")], steps(4, gate))(request)

    bench.start(script)

    async def cancel() -> None:
        agent = await bench.until(lambda state: bench.model.hanging and agent_of(state, "a"))
        bench.submit("cancel", agent_id=agent["id"])

    assert (await bench.run_while(cancel)).exit_code == 0
    assert bench.tasks()["a"]["status"] == "cancelled"
    assert not gate.is_set()


async def test_cancelling_the_session_keeps_what_was_done(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def cancel() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.submit("cancel")

    result = await bench.run_while(cancel)
    assert result.status == "cancelled"
    assert len(bench.state["facts"]) == 2


async def test_a_rerun_makes_finished_dependants_stale_and_runs_them_again_only_if_their_inputs_changed(
    bench: Bench,
) -> None:
    answer = ["same"]
    runs: list[str] = []

    def work(name: str, request: ModelRequest) -> Any:
        runs.append(name)
        return [said(answer[0] if name == "source" else "used it")]

    tasks = [task("source"), task("user", needs=("source",)), task("end", needs=("user",))]
    bench.start(PlannedRun(tasks, work))
    await bench.run()
    source = bench.tasks()["source"]["id"]
    for text, again, attempts in (("same", ["source"], (2, 1, 1)), ("other", ["source", "user"], (3, 2, 1))):
        runs.clear()
        answer[0] = text
        command = bench.submit("rerun", task_id=source, payload={"fresh": True})
        await bench.run(once=command)
        assert runs == again
        now = bench.tasks()
        assert tuple(now[name]["attempt"] for name in ("source", "user", "end")) == attempts
        assert {one["status"] for one in now.values()} == {"done"}
        assert bench.state["session"]["status"] == "done"
    assert "task.stale" in bench.kinds()
    bench.assert_sound()


async def test_rerunning_a_running_task_cancels_its_attempt_first(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def rerun() -> None:
        await bench.until(lambda state: bench.model.hanging)
        await bench.applied(bench.submit("rerun", task_id=bench.tasks()["a"]["id"], payload={"fresh": True}))
        gate.set()

    assert (await bench.run_while(rerun)).exit_code == 0
    assert bench.tasks()["a"]["attempt"] == 2
    assert [one["status"] for one in bench.state["agents"] if one["task_id"]] == ["cancelled", "done"]


@pytest.mark.parametrize(("kind", "amount"), [("tokens", 3_000.0), ("turns", 4.0)])
async def test_a_session_budget_pauses_keeps_everything_and_says_which(
    bench: Bench, kind: str, amount: float
) -> None:
    bench.start(PlannedRun([task("a")], steps(8)), budgets={kind: amount})
    result = await bench.run()
    assert (result.status, result.exit_code) == ("paused", 5)
    assert f"budget of {amount:g} {kind}" in (result.reason or "")
    bench.submit("set_budget", payload={"kind": kind, "amount": None})
    assert (await bench.run()).exit_code == 0
    assert bench.tasks()["a"]["attempt"] == 1
    bench.assert_sound()


async def test_a_task_budget_pauses_that_task_tells_the_planner_and_lets_the_others_finish(
    bench: Bench,
) -> None:
    gate = asyncio.Event()

    def script(request: ModelRequest) -> Any:
        return PlannedRun(
            [task("a"), task("b")],
            lambda name, request: steps(6, gate if name == "a" else None)(name, request),
        )(request)

    bench.start(script)

    async def limit() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.submit("set_budget", task_id=bench.tasks()["a"]["id"], payload={"kind": "turns", "amount": 3})
        await bench.until(lambda state: state["budgets"])
        gate.set()

    result = await bench.run_while(limit)
    assert result.exit_code == 5
    assert (bench.tasks()["a"]["status"], bench.tasks()["b"]["status"]) == ("paused", "done")
    assert "the task's budget of 3 turns" in bench.tasks()["a"]["status_reason"]
    assert bench.query("SELECT count(*) FROM inbox WHERE kind = 'task_paused'") == [(1,)]


async def test_a_second_host_is_refused_and_told_who_drives(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def second() -> None:
        await bench.until(lambda state: agent_of(state, "a"))
        with pytest.raises(DrivenElsewhere, match="driven by"):
            await bench.runtime.run(bench.session)
        gate.set()

    assert (await bench.run_while(second)).exit_code == 0


async def test_a_host_whose_epoch_was_taken_writes_nothing_more(bench: Bench) -> None:
    from watchkeeper.store.driver import sqlite3

    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(4, gate)))

    async def take_over() -> None:
        await bench.until(lambda state: bench.model.hanging)
        connection = sqlite3.connect(bench.path, timeout=10)
        with connection:
            connection.execute("UPDATE sessions SET lease_epoch = lease_epoch + 1")
        connection.close()
        gate.set()

    with pytest.raises(LeaseLost):
        await bench.run_while(take_over)
    assert agent_of(bench.state, "a")["turn"] == 2  # type: ignore[index]


async def test_compacting_by_hand_and_undoing_it_leave_every_message_where_it_was(bench: Bench) -> None:
    def work(name: str, request: ModelRequest) -> Any:
        if turns(request) < 12:
            return [
                call(
                    "save_artifact",
                    {"name": f"n{turns(request)}", "content": "words " * 200},
                    f"t{turns(request)}",
                )
            ]
        return [said("done")]

    bench.start(PlannedRun([task("a")], work))
    await bench.run()
    agent = agent_of(bench.state, "a")
    assert agent is not None
    before = agent["context"]["used"]
    await bench.run(once=bench.submit("compact", agent_id=agent["id"]))
    after = agent_of(bench.state, "a")["context"]["used"]  # type: ignore[index]
    assert after < before / 2
    await bench.run(once=bench.submit("undo", agent_id=agent["id"]))
    assert agent_of(bench.state, "a")["context"]["used"] == before  # type: ignore[index]
    assert agent_of(bench.state, "a")["messages"] == agent["messages"]  # type: ignore[index]
    assert bench.state["session"]["status"] == "done"
    bench.assert_sound()


async def test_a_command_that_cannot_be_applied_is_refused_with_the_reason(bench: Bench) -> None:
    bench.start(PlannedRun([task("a")]))
    await bench.run()
    planner = bench.state["agents"][0]["id"]
    await bench.run(once=bench.submit("rerun", agent_id=planner))
    refused = bench.state["commands"][-1]
    assert refused["status"] == "refused"
    assert "planner" in refused["result"]


async def test_a_command_is_applied_once_even_when_the_host_dies_right_after(bench: Bench) -> None:
    """What it changes and that it was applied are one transaction: there is no moment between the two."""
    bench.start(PlannedRun([task("a")], steps(2)))
    bench.submit("pause")
    assert (await bench.run()).exit_code == 5
    planner = bench.state["agents"][0]["id"] if bench.state["agents"] else None
    assert planner is not None
    bench.submit("steer", agent_id=planner, payload={"text": "only once, please"})
    commits = 0
    from watchkeeper.store.writer import Writer

    original = Writer._transact

    def counting(self: Writer, items: Any, **about: Any) -> Any:
        nonlocal commits
        outcome = original(self, items, **about)
        posted = bench.query("SELECT count(*) FROM inbox WHERE kind = 'steer'")[0][0]
        applied = bench.query("SELECT count(*) FROM commands WHERE kind = 'steer' AND status = 'applied'")[0][
            0
        ]
        assert posted == applied
        commits += 1
        return outcome

    Writer._transact = counting  # type: ignore[method-assign]
    try:
        assert (await bench.run()).exit_code == 0
    finally:
        Writer._transact = original  # type: ignore[method-assign]
    assert commits > 3
    assert bench.query("SELECT count(*) FROM inbox WHERE kind = 'steer'") == [(1,)]


async def test_a_commit_is_seen_soon_after_a_file_event_that_came_too_early(bench: Bench) -> None:
    """The WAL is written before its commit is visible: a wake-up that finds nothing yet must look again, and
    soon."""
    import threading
    import time

    from watchkeeper.store import database
    from watchkeeper.store.change_feed import ChangeFeed

    bench.start(PlannedRun([task("a")]))
    feed = ChangeFeed(bench.path, poll_seconds=30.0)
    writer = database.open_writable(bench.path, check_same_thread=False)
    try:
        while feed.wait(0.01):
            pass
        committed = [0.0]

        def commit() -> None:
            feed.wake()
            time.sleep(0.03)
            writer.execute("UPDATE sessions SET title = 'seen'")
            committed[0] = time.monotonic()

        thread = threading.Thread(target=commit)
        thread.start()
        assert await asyncio.to_thread(feed.wait, 20.0)
        assert time.monotonic() - committed[0] < 2.0
        thread.join()
    finally:
        feed.close()
        writer.close()


async def test_a_standing_instruction_stays_in_every_prompt_from_then_on(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a"), task("b", needs=("a",))], steps(4, gate)))

    async def steer() -> None:
        agent = await bench.until(lambda state: bench.model.hanging and agent_of(state, "a"))
        await bench.applied(
            bench.submit("steer", agent_id=agent["id"], payload={"text": "Never touch the vendor folder."})
        )
        gate.set()

    assert (await bench.run_while(steer)).exit_code == 0
    later = [one for one in bench.model.requests if "Please do b." in flat(one.messages)]
    assert later
    assert all("- Never touch the vendor folder." in one.system for one in later)


async def test_a_pinned_text_is_in_every_prompt_from_the_next_turn_on_until_it_is_unpinned(
    bench: Bench,
) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(3, gate)))
    systems: list[str] = []
    script = bench.model.script
    bench.model.script = lambda request: (systems.append(request.system), script(request))[1]

    async def pin() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.submit("pin", payload={"text": "The port is 8443.", "sources": ["message://x/1"]})
        await bench.until(lambda state: all(one["status"] == "applied" for one in state["commands"]))
        gate.set()

    assert (await bench.run_while(pin)).exit_code == 0
    assert "The port is 8443." not in systems[0]
    assert "The port is 8443." in systems[-1]
    fact = bench.query("SELECT id FROM facts WHERE pinned = 1")[0][0]
    await bench.run(once=bench.submit("unpin", payload={"fact": fact}))
    assert bench.query("SELECT pinned FROM facts WHERE id = ?", fact) == [(0,)]


@pytest.mark.parametrize("payload", [{}, {"text": "  "}, {"fact": "1"}, {"fact": 99}, {"fact": True}])
async def test_a_pin_of_nothing_is_refused_with_the_reason(bench: Bench, payload: dict[str, Any]) -> None:
    bench.start(PlannedRun([task("a")], steps(1)))
    await bench.run()
    command = bench.submit("pin", payload=payload)
    await bench.run(once=command)
    asked = next(one for one in bench.state["commands"] if one["id"] == command)
    assert asked["status"] == "refused"
    assert "fact" in asked["result"]


async def test_a_pause_that_met_no_host_does_not_stop_the_next_resume(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.start(PlannedRun([task("a")], steps(3, gate)))

    async def pause() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).exit_code == 5
    late = bench.submit("pause")
    gate.set()
    assert (await bench.run()).exit_code == 0
    asked = next(one for one in bench.state["commands"] if one["id"] == late)
    assert (asked["status"], "resumed since" in asked["result"]) == ("refused", True)
