"""Control from anywhere: pause, resume, cancel, re-run, steer, budgets; and two hosts on one session."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.core.runtime.working import Work
from tests.support.scripted import PlannedRun, call, flat, role_of, said, task, task_of, turns

from watchkeeper.agents.agent_state import AgentMemory, Recorded
from watchkeeper.agents.compaction import CompactionRunner
from watchkeeper.agents.limits import AgentControl
from watchkeeper.agents.roles import rules_in
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.errors import DrivenElsewhere, LeaseLost
from watchkeeper.records.messages import ModelRequest, Purpose
from watchkeeper.store import database, facts, plans
from watchkeeper.store.change_feed import ChangeFeed
from watchkeeper.store.driver import Queries, sqlite3
from watchkeeper.store.writer import Writer

NOW = {"now": True}


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


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def one(bench: Bench, gate: asyncio.Event) -> Bench:
    """A run of one task of four turns, which hangs at its third until the gate is set."""
    bench.start(PlannedRun([task("a")], steps(4, gate)))
    return bench


async def run_and(bench: Bench, kind: str, **about: Any) -> Any:
    """Run, and queue this command when the task hangs."""

    async def order() -> None:
        await bench.hanging()
        bench.submit(kind, **about)

    return await bench.run_while(order)


async def test_a_pause_takes_effect_at_the_next_step_boundary_and_a_resume_goes_on_there(one, gate):
    async def pause() -> None:
        await one.hanging()
        await one.applied(one.submit("pause"))
        assert one.agent()["status"] == "working"
        assert one.state["plan"]["step"] | {"id": ""} == {
            "number": 1, "id": "", "name": "a", "title": "Do a", "status": "running",
        }  # fmt: skip
        gate.set()

    result = await one.run_while(pause)
    assert (result.status, result.exit_code) == ("paused", 5)
    agent = one.agent()
    assert (agent["status"], agent["turn"], agent["errors"]) == ("paused", 3, 0)
    assert (await one.run()).exit_code == 0
    assert one.tasks()["a"]["attempt"] == 1
    assert one.state["plan"]["step"] is None
    one.assert_sound()


async def test_pause_now_abandons_the_model_call_which_is_recorded_and_is_no_error(one, gate):
    assert (await run_and(one, "pause", payload=NOW)).exit_code == 5
    calls = one.query("SELECT status, count(*) FROM model_calls GROUP BY status ORDER BY status")
    assert ("abandoned", 1) in calls
    assert one.state["session"]["errors"] == 0
    gate.set()
    assert (await one.run()).exit_code == 0
    one.assert_sound()


async def test_pausing_one_agent_lets_the_others_work_and_resume_of_it_alone_finishes_the_run(bench, gate):
    resumed = asyncio.Event()  # without it, the run would end paused
    works = {"a": steps(4, gate), "b": steps(4, resumed, at=3)}
    bench.start(PlannedRun([task("a"), task("b")], lambda name, request: works[name](name, request)))

    async def pause_a() -> None:
        await bench.until(lambda state: bench.model.hanging == 2)
        agent = bench.agent()["id"]
        bench.submit("pause", agent_id=agent, payload=NOW)
        await bench.until(lambda state: bench.agent()["status"] == "paused")
        assert bench.agent("b")["turn"] == 3
        gate.set()
        await bench.applied(bench.submit("resume", agent_id=agent))
        resumed.set()

    assert (await bench.run_while(pause_a)).exit_code == 0
    assert bench.tasks()["b"]["status"] == "done"
    assert bench.tasks()["a"]["attempt"] == 1


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_resume_cancels_a_pause_that_has_not_begun_and_follows_one_at_once(one, gate, whole, now):
    async def think_again() -> None:
        agent = await one.hanging()
        about = {} if whole else {"agent_id": agent["id"]}
        one.submit("pause", payload={"now": now}, **about)
        resumed = one.submit("resume", **about)
        if now:
            await one.until(lambda state: "agent.paused" in one.kinds())
            gate.set()
        await one.applied(resumed)
        gate.set()

    assert (await one.run_while(think_again)).exit_code == 0
    assert ("agent.paused" in one.kinds()) is now
    assert one.tasks()["a"]["status"] == "done"
    one.assert_sound()


async def test_a_task_that_is_cancelled_while_the_run_pauses_stops_at_once(one, gate):
    async def pause_and_cancel() -> None:
        await one.hanging()
        await one.applied(one.submit("pause"))
        await one.applied(one.submit("cancel", task_id=one.tasks()["a"]["id"]))

    assert (await one.run_while(pause_and_cancel)).exit_code == 5  # its call never ends by itself
    assert one.tasks()["a"]["status"] == "cancelled"


async def test_a_call_that_ends_as_its_agent_is_cancelled_is_recorded_and_nothing_stays_reserved(
    bench, gate, monkeypatch
):
    monkeypatch.setattr(AgentControl, "stop_now", lambda self: None)  # the reply has come already
    bench.start(PlannedRun([task("a")], steps(4, gate)), budgets={"tokens": 1e6})

    async def cancel() -> None:
        await bench.hanging()
        await bench.applied(bench.submit("cancel", task_id=bench.tasks()["a"]["id"]))
        gate.set()

    await bench.run_while(cancel)
    assert bench.query("SELECT count(*) FROM model_calls WHERE purpose = 'turn'") == [(3,)]
    assert bench.query("SELECT count(*) FROM reservations") == [(0,)]
    assert bench.kinds().count("model.replied") < bench.query("SELECT count(*) FROM model_calls")[0][0]
    bench.assert_sound()


class _ThinksAboutAWord(PlannedRun):
    """A planner whose call about what a person says hangs until `thought` is set, and ends its turn."""

    def __init__(self, thought: asyncio.Event, work: Any) -> None:
        super().__init__([task("a")], work)
        self._thought = thought

    def plan(self, request: ModelRequest) -> Any:
        if "mind the gap" in flat(request.messages[-1:]) and not self._thought.is_set():
            return self._thought
        return super().plan(request)


async def test_a_planner_that_ends_its_turn_while_it_is_to_pause_pauses(bench, gate):
    thought = asyncio.Event()
    bench.start(_ThinksAboutAWord(thought, steps(4, gate)))

    async def pause_the_planner() -> None:
        await bench.hanging()
        planner = bench.state["agents"][0]["id"]
        bench.submit("steer", agent_id=planner, payload={"text": "mind the gap"})
        await bench.until(lambda state: bench.model.hanging == 2)
        await bench.applied(bench.submit("pause", agent_id=planner))
        thought.set()
        await bench.until(lambda state: state["agents"][0]["status"] in ("idle", "paused"))
        gate.set()

    result = await bench.run_while(pause_the_planner)
    assert (result.status, bench.state["agents"][0]["status"]) == ("paused", "paused")
    assert bench.state["agents"][0]["turn"] == 2
    assert (await bench.run()).exit_code == 0
    bench.assert_sound()


async def test_one_agent_cannot_go_on_while_the_whole_run_is_being_paused(one, gate):
    async def resume_a() -> None:
        agent = await one.hanging()
        one.submit("pause")
        await one.applied(one.submit("resume", agent_id=agent["id"]), "refused")
        gate.set()

    assert (await one.run_while(resume_a)).exit_code == 5


async def test_a_pause_that_met_no_host_does_not_stop_the_next_resume(one, gate):
    assert (await run_and(one, "pause", payload=NOW)).exit_code == 5
    late = one.submit("pause")
    gate.set()
    assert (await one.run()).exit_code == 0
    assert one.command(late)["status"] == "refused"
    assert "resumed since" in one.command(late)["result"]


async def test_steering_reaches_one_agent_once_and_no_other(bench, gate):
    bench.start(PlannedRun([task("a"), task("b", needs=("a",))], steps(4, gate)))
    text = "Never touch the vendor folder. You must always use port 7411."

    async def steer() -> None:
        agent = await bench.hanging()
        await bench.applied(bench.submit("steer", agent_id=agent["id"], payload={"text": text}))
        gate.set()

    assert (await bench.run_while(steer)).exit_code == 0
    last = [each for each in bench.model.requests if "Please do a." in flat(each.messages)][-1]
    assert flat(last.messages).count(f"A person says: {text}") == 1
    others = [each for each in bench.model.requests if "Please do a." not in flat(each.messages)]
    assert all("7411" not in each.system + flat(each.messages) for each in others)
    assert bench.query("SELECT count(*) FROM facts WHERE pinned = 1") == [(0,)]


def of_agents(bench: Bench) -> dict[str, list[ModelRequest]]:
    """The calls of each agent, the planner's by its role."""
    found: dict[str, list[ModelRequest]] = {}
    for each in bench.model.requests:
        if each.purpose is Purpose.REFLECTOR:
            continue
        found.setdefault("planner" if role_of(each) == "planner" else task_of(each), []).append(each)
    return found


def assert_prefixes_stay(bench: Bench) -> None:
    """Each call of an agent repeats the system prompt, the tools and the messages of the call before it."""
    for calls in of_agents(bench).values():
        for before, after in pairwise(calls):
            assert (after.system, after.tools) == (before.system, before.tools)
            stable = list(before.messages[:-1])
            assert list(after.messages[: len(stable)]) == stable


async def test_what_a_person_says_to_all_reaches_running_agents_as_a_message_and_later_ones_in_their_prompt(
    bench, gate
):
    bench.start(PlannedRun([task("a"), task("b", needs=("a",))], steps(4, gate)))
    text, pinned = "Never touch the vendor folder.", "The port is 8443,\n  also in tests."

    async def say() -> None:
        await bench.hanging()
        await bench.applied(bench.submit("steer", payload={"text": text, "all": True}))
        same = text.removesuffix(".").replace("Never", "never")
        await bench.applied(bench.submit("pin", payload={"text": same}))
        await bench.applied(bench.submit("pin", payload={"text": pinned}))
        gate.set()

    assert (await bench.run_while(say)).exit_code == 0
    assert_prefixes_stay(bench)
    calls = of_agents(bench)
    for name in ("planner", "a"):
        last = flat(calls[name][-1].messages)
        assert last.count(f"A person set this rule for every agent: {text}") == 1
        assert last.count("A person set this rule for every agent: The port is 8443, also in tests.") == 1
        assert text not in calls[name][-1].system
    assert "A person set this rule" not in flat(calls["b"][-1].messages)
    assert rules_in(calls["b"][0].system) == [text, "The port is 8443, also in tests."]


async def test_the_rules_of_a_new_session_are_in_the_prompt_of_every_agent(bench):
    bench.start(PlannedRun([task("a")]), rules=("Use tabs.", "Never  touch\nvendor/."))
    assert (await bench.run()).exit_code == 0
    assert_prefixes_stay(bench)
    for each in bench.model.requests:
        assert rules_in(each.system) == ["Use tabs.", "Never touch vendor/."]
        assert "A person set this rule" not in flat(each.messages)


async def test_an_agent_is_told_of_a_rule_that_a_person_withdrew(bench, gate):
    bench.start(PlannedRun([task("a"), task("b", needs=("a",))], steps(4, gate)))

    async def change_their_mind() -> None:
        await bench.hanging()
        await bench.applied(bench.submit("pin", payload={"text": "Use tabs."}))
        fact = bench.query("SELECT id FROM facts WHERE pinned = 1")[0][0]
        gate.set()
        await bench.until(lambda state: bench.agent("b"))
        await bench.applied(bench.submit("unpin", payload={"fact": fact}))

    script = bench.model.script
    held = asyncio.Event()

    def slow(request: ModelRequest) -> Any:
        b_began = role_of(request) != "planner" and task_of(request) == "b" and turns(request) == 2
        if b_began and bench.query("SELECT count(*) FROM facts WHERE pinned = 1") == [(1,)]:
            return held
        return script(request)

    bench.model.script = slow

    async def then_go_on() -> None:
        await change_their_mind()
        held.set()

    assert (await bench.run_while(then_go_on)).exit_code == 0
    assert_prefixes_stay(bench)
    last = of_agents(bench)["b"][-1]
    assert "- Use tabs." in last.system
    assert flat(last.messages).count("A person withdrew this rule: Use tabs.") == 1


async def test_what_a_person_said_survives_compaction_where_they_said_it(bench):
    work = Work(count=30, words=450)
    work.hold_turn = 3
    bench.start(work, window=12_000)

    async def say() -> None:
        agent = await bench.until(lambda state: bench.model.hanging and bench.agent())
        await bench.applied(bench.submit("steer", agent_id=agent["id"], payload={"text": "Mind the gap."}))
        await bench.applied(bench.submit("pin", payload={"text": "Use tabs."}))
        work.turn_gate.set()

    assert (await bench.run_while(say)).exit_code == 0
    agent = bench.agent()["id"]
    memory = AgentMemory.stored(Queries(database.open_readonly(bench.path)), agent, default_counter())
    assert memory.state.view.verbatim_from > memory.state.pins[-1].seq, "both are compacted"
    shown = memory.state.render()
    for words in ("A person says: Mind the gap.", "A person set this rule for every agent: Use tabs."):
        assert any(words in flat([message]) for message in shown)
    assert len({each.system for each in of_agents(bench)["a"]}) == 1
    bench.assert_sound()


async def test_a_rule_of_an_earlier_release_that_no_prompt_holds_reaches_its_agent_as_a_message(one, gate):
    assert (await run_and(one, "pause", payload=NOW)).exit_code == 5
    gate.set()
    writer = sqlite3.connect(one.path)
    with writer:
        writer.execute(
            "INSERT INTO facts (session_id, workspace, scope, kind, text, digest, pinned, created_at) SELECT id, workspace,"
            " 'session', 'instruction', 'Use tabs.', 'd', 1, 1.0 FROM sessions"
        )
        writer.execute("UPDATE agents SET tools = NULL")
    writer.close()
    one.submit("resume")
    assert (await one.run()).exit_code == 0
    assert_prefixes_stay(one)
    assert "A person set this rule for every agent: Use tabs." in flat(of_agents(one)["a"][-1].messages)


async def test_cancelling_a_task_ends_its_agent_at_once_and_the_planner_is_told(bench, gate):
    def script(request: ModelRequest) -> Any:
        if "was cancelled by a person" in flat(request.messages[-1:]):
            return [call("finish_session", {"summary": "it was cancelled"}, "f")]
        return PlannedRun([task("a")], steps(4, gate))(request)

    bench.start(script)

    async def cancel() -> None:
        bench.submit("cancel", agent_id=(await bench.hanging())["id"])

    assert (await bench.run_while(cancel)).exit_code == 0
    assert bench.tasks()["a"]["status"] == "cancelled"


async def test_cancelling_the_session_keeps_what_was_done_and_is_refused_after_the_end(one):
    assert (await run_and(one, "cancel")).status == "cancelled"
    assert len(one.state["facts"]) == 2
    one.start(PlannedRun([task("a")]))
    assert (await one.run()).exit_code == 0
    late = one.submit("cancel")
    assert (await one.run()).exit_code == 0
    assert one.state["session"]["status"] == "done"
    assert one.command(late)["result"] == "the session is already done"


async def test_cancelling_a_finished_session_cancels_its_rerun_and_keeps_its_end(bench, gate):
    again = [False]

    def work(name: str, request: ModelRequest) -> Any:
        return steps(4, gate)(name, request) if again[0] else [said("done")]

    bench.start(PlannedRun([task("a")], work))
    await bench.run()
    again[0] = True
    rerun = bench.submit("rerun", task_id=bench.tasks()["a"]["id"], payload={"fresh": True})

    async def cancel() -> None:
        await bench.hanging()
        bench.submit("cancel")

    await bench.run_while(cancel, once=rerun)
    assert bench.tasks()["a"]["status"] == "cancelled"
    assert bench.state["session"]["status"] == "done"
    bench.assert_sound()


async def test_a_rerun_makes_finished_dependants_stale_and_runs_them_again_only_if_their_inputs_changed(
    bench,
):
    answer, runs = ["same"], list[str]()

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
        await bench.run(once=bench.submit("rerun", task_id=source, payload={"fresh": True}))
        assert runs == again
        now = bench.tasks()
        assert tuple(now[name]["attempt"] for name in ("source", "user", "end")) == attempts
        assert {each["status"] for each in now.values()} == {"done"}
        assert bench.state["session"]["status"] == "done"
    assert "task.stale" in bench.kinds()
    bench.assert_sound()


async def test_rerunning_a_running_task_cancels_its_attempt_first(one, gate):
    async def rerun() -> None:
        await one.hanging()
        await one.applied(one.submit("rerun", task_id=one.tasks()["a"]["id"], payload={"fresh": True}))
        gate.set()

    assert (await one.run_while(rerun)).exit_code == 0
    assert one.tasks()["a"]["attempt"] == 2
    assert [each["status"] for each in one.state["agents"] if each["task_id"]] == ["cancelled", "done"]


async def test_a_second_host_is_refused_and_told_who_drives(one, gate):
    async def second() -> None:
        await one.hanging()
        with pytest.raises(DrivenElsewhere, match="is already running session"):
            await one.runtime.run(one.session)
        gate.set()

    assert (await one.run_while(second)).exit_code == 0


async def test_a_host_whose_epoch_was_taken_writes_nothing_more(one, gate):
    async def take_over() -> None:
        await one.hanging()
        connection = sqlite3.connect(one.path, timeout=10)
        with connection:
            connection.execute("UPDATE sessions SET lease_epoch = lease_epoch + 1")
        connection.close()
        gate.set()

    with pytest.raises(LeaseLost):
        await one.run_while(take_over)
    assert one.agent()["turn"] == 2


async def test_compacting_by_hand_and_undoing_it_leave_every_message_where_it_was(bench):
    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        note = {"name": f"n{turn}", "content": "words " * 200}
        return [call("save_artifact", note, f"t{turn}")] if turn < 12 else [said("done")]

    bench.start(PlannedRun([task("a")], work))
    await bench.run()
    before = bench.agent()
    await bench.run(once=bench.submit("compact", agent_id=before["id"]))
    assert bench.agent()["context"]["used"] < before["context"]["used"] / 2
    await bench.run(once=bench.submit("undo", agent_id=before["id"]))
    assert bench.agent()["context"]["used"] == before["context"]["used"]
    assert bench.agent()["messages"] == before["messages"]
    assert bench.state["session"]["status"] == "done"
    bench.assert_sound()


@pytest.mark.parametrize(
    ("kind", "payload", "said_of"),
    [
        ("rerun", None, "planner"),
        *(
            ("pin", each, "fact")
            for each in ({}, {"text": "  "}, {"fact": "1"}, {"fact": 99}, {"fact": True})
        ),
    ],
)
async def test_a_command_that_cannot_be_applied_is_refused_with_the_reason(bench, kind, payload, said_of):
    bench.start(PlannedRun([task("a")]))
    await bench.run()
    planner = bench.state["agents"][0]["id"] if kind == "rerun" else None
    command = bench.submit(kind, agent_id=planner, payload=payload)
    await bench.run(once=command)
    assert bench.command(command)["status"] == "refused"
    assert said_of in bench.command(command)["result"]


def broken(*_: Any, **__: Any) -> Any:
    raise KeyError("a fault\x1b[31m\nof the program")


FAULTS = {
    "steer": (plans, "post"),
    "undo": (AgentMemory, "move"),
    "edit": (AgentMemory, "edit"),
    "compact": (CompactionRunner, "begin"),
    "pin": (facts, "add_fact"),
    "memory_sync": (AgentMemory, "snapshot"),
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_command_whose_handler_raises_has_failed_with_its_reason_and_the_run_goes_on(
    one, gate, monkeypatch, kind
):
    async def order() -> None:
        agent = await one.hanging()
        with monkeypatch.context() as patch:
            patch.setattr(*FAULTS[kind], broken)
            number = one.submit(kind, agent_id=agent["id"], payload={"text": "a"})
            await one.applied(number, "failed")
        assert "KeyError" in one.command(number)["result"]
        assert "\x1b" not in one.command(number)["result"]
        later = one.submit("steer", agent_id=agent["id"], payload={"text": "b"})
        await one.applied(later)
        gate.set()

    assert (await one.run_while(order)).exit_code == 0
    assert one.kinds().count("command.failed") == 1
    one.assert_sound()


async def test_a_command_that_fails_alone_is_not_tried_again_by_the_next_host(bench, monkeypatch):
    bench.start(PlannedRun([task("a")], steps(2)))
    assert (await bench.run()).exit_code == 0
    number = bench.submit("pin", payload={"text": "a"})
    with monkeypatch.context() as patch:
        patch.setattr(facts, "add_fact", broken)
        assert (await bench.run(once=number)).exit_code == 0
    assert bench.command(number)["status"] == "failed"
    later = bench.submit("memory_sync")
    assert (await bench.run(once=later)).exit_code == 0
    assert bench.command(later)["status"] == "applied"
    assert bench.command(number)["status"] == "failed"


async def test_a_change_of_memory_that_fails_half_way_leaves_the_agent_at_its_stored_rows(
    one, gate, monkeypatch
):
    """The view that was never stored is in no later request, and no later row names it."""

    async def order() -> None:
        agent = await one.hanging()
        with monkeypatch.context() as patch:
            patch.setattr(Recorded, "write", broken)
            number = one.submit("edit", agent_id=agent["id"], payload={"pin": [2]})
            await one.applied(number, "failed")
            await one.until(lambda state: one.model.hanging)
        gate.set()

    assert (await one.run_while(order)).exit_code == 0
    agent = one.agent()
    assert agent["status"] == "done"
    stored = Queries(database.open_readonly(one.path))
    assert AgentMemory.stored(stored, agent["id"], default_counter()).state.pins == ()
    one.assert_sound()


async def test_a_command_is_applied_once_even_when_the_host_dies_right_after(bench, monkeypatch):
    """What it changes and that it was applied are one transaction: there is no moment between the two."""
    bench.start(PlannedRun([task("a")], steps(2)))
    bench.submit("pause")
    assert (await bench.run()).exit_code == 5
    bench.submit("steer", agent_id=bench.state["agents"][0]["id"], payload={"text": "only once, please"})
    commits = 0
    original: Callable[..., Any] = Writer._transact

    def counting(self: Writer, items: Any, **about: Any) -> Any:
        nonlocal commits
        outcome = original(self, items, **about)
        posted = bench.query("SELECT count(*) FROM inbox WHERE kind = 'steer'")
        applied = "SELECT count(*) FROM commands WHERE kind = 'steer' AND status = 'applied'"
        assert posted == bench.query(applied)
        commits += 1
        return outcome

    with monkeypatch.context() as counted:
        counted.setattr(Writer, "_transact", counting)
        assert (await bench.run()).exit_code == 0
    assert commits > 3
    assert bench.query("SELECT count(*) FROM inbox WHERE kind = 'steer'") == [(1,)]


async def test_a_commit_is_seen_soon_after_a_file_event_that_came_too_early(one):
    """The WAL is written before its commit is visible: a wake-up that finds nothing must soon look again."""
    feed = ChangeFeed(one.path, poll_seconds=30.0)
    writer = database.open_writable(one.path, check_same_thread=False)
    try:
        while feed.wait(0.01):
            pass

        def commit() -> None:
            feed.wake()
            time.sleep(0.03)
            writer.execute("UPDATE sessions SET title = 'seen'")

        thread = threading.Thread(target=commit)
        thread.start()
        assert await asyncio.to_thread(feed.wait, 20.0)
        thread.join()
    finally:
        feed.close()
        writer.close()


@pytest.mark.parametrize("steps", [2, 3])
async def test_the_error_of_a_work_is_taken_where_the_wait_for_it_is_cancelled_in_that_moment(steps):
    """Found by the simulation: asyncio told of it on standard error."""
    left: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: left.append(context["message"]))

    async def fails() -> None:
        raise ValueError("a usage limit")

    waiting = asyncio.create_task(AgentControl().abandonable(fails()))
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    del waiting
    gc.collect()
    assert left == []
