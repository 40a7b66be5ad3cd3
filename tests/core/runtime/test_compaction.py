"""Compaction of running agents: by their model, beside their loop, and never twice, lost or in the way."""

from __future__ import annotations

import asyncio
import math
from itertools import takewhile
from operator import mul
from types import SimpleNamespace
from typing import Any

import pytest
from tests.core.memory.support import Words, fill
from tests.core.memory.support import prepared as text_prepared
from tests.core.runtime.working import Work, die, held, land, order_compaction, passes, prepare, prepared
from tests.support.scripted import PlannedRun, call, said, task

from watchkeeper.agents import compaction
from watchkeeper.agents.agent_state import HEADING_TOKENS, AgentMemory
from watchkeeper.agents.environment import LoopSettings
from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.engine import MOST_WRITTEN, TokenCosts
from watchkeeper.memory.history import CompactionPass, ContextLimits
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest, ObservationKind, Purpose
from watchkeeper.records.ports import ManualClock
from watchkeeper.records.states import TaskStatus
from watchkeeper.runtime.commands import CommandQueue
from watchkeeper.store import database, messages, plans
from watchkeeper.store.driver import Queries, decode


async def test_a_pass_runs_beside_the_loop_and_lands_while_the_agent_works(bench):
    work = Work(count=16, words=450)
    work.summaries.clear()
    work.hold_turn = 15
    bench.start(work, window=12_000)

    async def release() -> None:
        await bench.until(lambda state: bench.model.hanging >= 2)  # the summary, and the turn that is held
        started = passes(bench)[0]
        assert started["status"] == "running"
        assert started["high_water"] < bench.state["agents"][-1]["messages"]
        work.summaries.set()
        await prepared(bench)
        work.turn_gate.set()

    assert (await bench.run_while(release)).exit_code == 0
    landed = passes(bench)[0]
    assert (landed["status"], landed["stall_seconds"]) == ("applied", 0)
    assert landed["tokens_after"] < landed["tokens_before"]
    assert landed["seconds"] > 0
    calls = bench.query("SELECT count(*) FROM model_calls WHERE purpose = 'reflector' AND status = 'done'")
    assert calls[0][0] >= 1
    bench.assert_sound()


async def test_a_second_request_while_a_pass_runs_is_refused_and_says_so(bench):
    work = held(bench, written=False)

    async def ask_twice() -> None:
        await bench.until(lambda state: bench.model.hanging)
        agent = bench.state["agents"][-1]["id"]
        first = bench.submit("compact", agent_id=agent)
        second = bench.submit("compact", agent_id=agent)
        await bench.applied(first)
        await bench.applied(second, "refused")
        assert "already running" in bench.command(second)["result"]
        work.summaries.set()
        await prepared(bench)
        work.turn_gate.set()

    assert (await bench.run_while(ask_twice)).exit_code == 0
    assert [one["status"] for one in passes(bench)] == ["applied"]
    assert passes(bench)[0]["trigger"] == "manual"


async def test_a_pass_that_was_prepared_before_a_crash_is_published_by_the_next_host(bench):
    work = held(bench)
    crashed = asyncio.ensure_future(bench.run())
    await prepare(bench)
    await die(crashed)
    assert passes(bench)[0]["status"] == "prepared"
    work.turn_gate.set()
    assert (await bench.run()).exit_code == 0
    assert passes(bench)[0]["status"] == "applied"
    assert passes(bench)[0]["cache_tokens_invalidated"] == 0, (
        "this host has sent nothing that a cache could hold"
    )
    assert work.asked == 1
    bench.assert_sound()


async def test_a_command_that_began_a_pass_is_told_with_it_so_that_a_crash_never_makes_the_pass_twice(
    bench, monkeypatch
):
    work = held(bench)

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(CommandQueue, "_settle", never)  # nothing is told after the pass has begun
        crashed = asyncio.ensure_future(bench.run())
        await prepare(bench)
        await die(crashed)
    work.turn_gate.set()
    assert (await bench.run()).exit_code == 0
    assert [one["status"] for one in passes(bench)] == ["applied"]
    assert [one["status"] for one in bench.state["commands"]] == ["applied"]
    assert work.asked == 1
    bench.assert_sound()


async def test_a_pass_that_an_agent_asked_for_begins_in_the_transaction_that_tells_it_so(bench):
    def work(request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            return [said("The agent said words (#2).")]
        return PlannedRun([task("a")], step)(request)

    def step(name: str, request: ModelRequest) -> Any:
        done = sum(message["role"] == "assistant" for message in request.messages)
        if done < 5:
            return [call("save_artifact", {"name": f"n{done}", "content": "words " * 400}, f"t{done}")]
        return [call("compact", {}, "t5")] if done == 5 else [said("done")]

    bench.start(work, window=60_000)
    assert (await bench.run()).exit_code == 0
    at_once = "SELECT count(*) FROM steps s JOIN compactions c ON c.agent_id = s.agent_id AND c.requested_at = s.ended_at"
    assert bench.query(at_once) == [(1,)]


async def test_a_summariser_that_fails_gives_way_to_the_digest_and_the_record_says_why(bench):
    work = Work(summary=ModelError("overloaded", kind=ErrorKind.RETRY))
    work.hold_turn = 8
    bench.start(work, window=60_000)

    await land(bench, work, prepare)
    landed = passes(bench)[0]
    assert landed["status"] == "applied"
    assert landed["reason"].startswith("digest: ")
    assert "overloaded" in landed["reason"]
    assert work.asked == 2


async def test_an_agent_may_ask_for_its_own_compaction(bench):
    steps = iter(range(100))

    def script(request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            assert "keep the notes" in str(request.messages)
            return [said("The agent saved notes (#2).")]
        return PlannedRun([task("a")], work)(request)

    def work(name: str, asked: ModelRequest) -> Any:
        at = next(steps)
        if at < 4:
            return [call("save_artifact", {"name": f"n{at}", "content": "words " * 500}, f"t{at}")]
        if at == 4:
            return [call("compact", {"instructions": "keep the notes"})]
        finished = "saved notes" in str(asked.messages)
        return [said("done") if finished else call("recall", {"query": f"q{at}"}, f"t{at}")]

    bench.start(script)
    assert (await bench.run()).exit_code == 0
    assert [(one["trigger"], one["status"]) for one in passes(bench)] == [("agent", "applied")]


async def test_undo_restores_the_view_before_and_keeps_the_turns_since(bench):
    work = Work(count=10)
    bench.start(work, window=60_000)
    await bench.run()
    agent = bench.state["agents"][-1]
    await bench.run(once=bench.submit("compact", agent_id=agent["id"]))
    assert bench.state["agents"][-1]["context"]["used"] < agent["context"]["used"]
    await bench.run(once=bench.submit("undo", agent_id=agent["id"]))
    assert bench.state["agents"][-1]["context"]["used"] == agent["context"]["used"]
    await bench.run(once=bench.submit("redo", agent_id=agent["id"]))
    assert bench.state["agents"][-1]["context"]["used"] < agent["context"]["used"]
    assert bench.state["agents"][-1]["messages"] == agent["messages"]


async def test_undo_reaches_messages_that_the_loop_had_left_unread(bench):
    work = Work(count=12)
    work.hold_turn = 10
    bench.start(work, window=60_000)
    crashed = asyncio.ensure_future(bench.run())
    await bench.until(lambda state: bench.model.hanging)
    agent = bench.state["agents"][-1]["id"]
    bench.submit("compact", agent_id=agent)
    await prepared(bench)
    await die(crashed)
    work.hold_turn = 11
    work.turn_gate.clear()

    async def undo() -> None:
        await bench.until(lambda state: passes(bench)[0]["status"] == "applied" and bench.model.hanging)
        compacted = bench.state["agents"][-1]["context"]["used"]
        await bench.applied(bench.submit("undo", agent_id=agent))
        assert bench.state["agents"][-1]["context"]["used"] > compacted
        work.turn_gate.set()

    assert (await bench.run_while(undo)).exit_code == 0
    bench.assert_sound()


async def test_a_pass_says_whether_it_has_paid_for_itself(bench):
    bench.model.cached = (80, 40)
    bench.start(Work(count=40, words=450), window=12_000)
    assert (await bench.run()).exit_code == 0
    paid = [one for one in passes(bench) if one["status"] == "applied"]
    lost = {one["cache_tokens_invalidated"] for one in paid}
    assert 120 in lost <= {0, 120}, "no more than the last call had in it"
    for one in paid:
        saved, told = one["tokens_before"] - one["tokens_after"], one["worth"]
        assert told["tokens_not_sent"] == max(0, saved) * told["calls"]
        assert told["tokens_spent"] == one["tokens_spent"] + one["cache_tokens_invalidated"]
        assert told["pays"] is (told["tokens_not_sent"] >= told["tokens_spent"])
    assert sum(one["tokens_spent"] for one in paid) > 0
    calls = bench.query(
        "SELECT sum(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens) FROM model_calls"
        " WHERE purpose = 'reflector'"
    )
    assert sum(one["tokens_spent"] for one in bench.state["compactions"]) == calls[0][0]


async def test_what_a_pass_saved_is_told_without_the_messages_that_came_while_it_ran(bench):
    work = Work(count=20)
    work.hold_turn = 4
    work.summaries.clear()
    bench.start(work, window=60_000)

    async def compact() -> None:
        await order_compaction(bench, work)
        work.hold_turn, gate = 15, work.turn_gate
        work.turn_gate = asyncio.Event()
        gate.set()  # eleven turns come: more than what the pass replaces
        await bench.until(lambda state: work.saved == 15 and bench.model.hanging >= 3)
        work.summaries.set()
        await prepared(bench)
        work.turn_gate.set()

    assert (await bench.run_while(compact)).exit_code == 0
    landed = passes(bench)[0]
    assert landed["status"] == "applied"
    assert 0 < landed["tokens_after"] < landed["tokens_before"]
    assert landed["worth"]["tokens_not_sent"] > 0


async def test_an_agent_keeps_in_memory_only_what_its_context_shows(bench, monkeypatch):
    kept: dict[str, list[int]] = {}
    append = AgentMemory.append

    def counting(memory: AgentMemory, *args: Any, **kwargs: Any) -> Any:
        recorded = append(memory, *args, **kwargs)
        kept.setdefault(memory.agent_id, []).append(len(memory.state.messages))
        return recorded

    monkeypatch.setattr(AgentMemory, "append", counting)
    bench.start(Work(count=80, words=450), window=12_000)
    assert (await bench.run()).exit_code == 0
    assert len([one for one in passes(bench) if one["status"] == "applied"]) > 2
    lengths = max(kept.values(), key=len)
    assert len(lengths) > 150
    assert max(lengths) < 60
    bench.assert_sound()


async def test_the_size_of_a_context_is_what_the_next_call_sends(bench):
    work, sizes, statuses = Work(), [], set()

    def script(request: Any) -> Any:
        if request.purpose in ("turn", "planner"):
            agents = {one["id"]: one for one in bench.state["agents"]}
            sizes.append(agents[request.agent_id]["context"]["used"])
            statuses.add(agents[request.agent_id]["status"])
        return work(request)

    bench.start(script, window=12_000)
    await bench.run()
    rows = bench.query(
        "SELECT estimated_prompt_tokens FROM model_calls WHERE purpose IN ('turn', 'planner') AND status ="
        " 'done' ORDER BY id"
    )
    assert sizes == [row[0] for row in rows]
    assert len(sizes) > 5
    assert statuses == {"working"}, "also of a planner that news woke"


async def test_a_summary_is_recorded_under_the_turn_in_which_it_was_asked_for(bench):
    work, turns = Work(count=24, words=450), []

    def script(request: Any) -> Any:
        if request.purpose == "reflector" and work.summaries.is_set():
            turns.append(next(one["turn"] for one in bench.state["agents"] if one["id"] == request.agent_id))
        return work(request)

    bench.start(script, window=12_000)
    await bench.run()
    recorded = [row[0] for row in bench.query("SELECT turn FROM model_calls WHERE purpose = 'reflector'")]
    assert recorded
    assert all(any(0 <= asked - turn <= 1 for asked in turns) for turn in recorded), (
        "a turn may end while a call waits"
    )
    assert max(recorded) > 2


async def test_a_pass_that_a_digest_overtakes_is_begun_again_once_with_what_the_digest_covers(bench):
    work = Work(count=24, words=1_100)
    work.summaries.clear()
    work.hold_turn = 22
    bench.start(work, window=12_000)

    async def release() -> None:
        await bench.until(lambda state: work.saved >= 22 and len(passes(bench)) > 1)
        work.summaries.set()
        await bench.until(lambda state: passes(bench)[1]["status"] != "running")
        work.turn_gate.set()

    assert (await bench.run_while(release)).exit_code == 0
    first, second = passes(bench)[:2]
    assert first["status"] == "abandoned"
    assert "a digest replaced more than the summary covers" in first["reason"]
    assert second["high_water"] > first["high_water"]
    assert second["reason"] == "summary"
    assert second["tokens_spent"] > 0
    assert work.asked > 2, "the second reads more than the window holds, so its model is asked in parts"
    bench.assert_sound()


async def test_an_agent_that_ends_soon_is_not_summarised(bench):
    work = Work(count=3, words=2_000)
    bench.start(work, window=12_000)
    assert (await bench.run()).exit_code == 0
    assert passes(bench) == []
    assert work.asked == 0
    bench.assert_sound()


def _configure(bench: Any, text: str) -> None:
    folder = bench.workspace.parent / "config"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(text)


@pytest.mark.parametrize(
    ("config", "role", "ordered", "used"),
    [
        ('memory = "summary"', "", None, "test/scripted"),
        ('[memory]\nmodel = "anthropic/small"', "", None, "anthropic/small"),
        ('[memory]\nmodel = "anthropic/small"', "memory_model: anthropic/tiny", None, "anthropic/tiny"),
        ('[memory]\nmodel = "anthropic/small"', "", "anthropic/asked", "anthropic/asked"),
    ],
)
async def test_memory_is_written_by_a_model_of_its_own(bench, config, role, ordered, used):
    _configure(bench, config)
    agents = bench.workspace.parent / "config" / "agents"
    agents.mkdir(exist_ok=True)
    (agents / "explorer.md").write_text(f"---\nname: explorer\n{role}\n---\nYou explore.\n")
    work = held(bench)

    async def release() -> None:
        await order_compaction(bench, work, {"model": ordered} if ordered else None)
        await prepared(bench)
        work.turn_gate.set()

    assert (await bench.run_while(release)).exit_code == 0
    (made,) = passes(bench)
    assert (made["status"], made["model"]) == ("applied", used)
    assert bench.query("SELECT DISTINCT model FROM model_calls WHERE purpose = 'reflector'") == [(used,)]
    rows = bench.query("SELECT DISTINCT model FROM model_calls WHERE purpose = 'turn'")
    assert rows == [("test/scripted",)]
    bench.assert_sound()


async def test_a_pass_on_request_that_a_crash_broke_off_is_begun_again_by_the_model_it_named(bench):
    work = held(bench, written=False)
    crashed = asyncio.ensure_future(bench.run())
    await order_compaction(bench, work, {"model": "anthropic/asked"})
    await die(crashed)
    work.summaries.set()
    work.turn_gate.set()
    assert (await bench.run()).exit_code == 0
    assert [(one["status"], one["model"]) for one in passes(bench)] == [
        ("abandoned", "anthropic/asked"),
        ("applied", "anthropic/asked"),
    ]


async def test_a_context_is_edited_by_a_command_and_undone_by_another(bench):
    work = held(bench)

    async def release() -> None:
        await bench.until(lambda state: bench.model.hanging)
        agent = bench.state["agents"][-1]["id"]
        numbers = {"drop": [2, 4]}
        await bench.applied(bench.submit("edit", agent_id=agent, payload=numbers | {"preview": True}))
        assert [one["reason"] for one in passes_and_edits(bench)] == []
        done = bench.submit("edit", agent_id=agent, payload=numbers)
        await bench.applied(done)
        refused = bench.submit("edit", agent_id=agent, payload={"drop": [99]})
        await bench.applied(refused, "refused")
        assert "Message 99 is not shown" in bench.command(refused)["result"]
        (edited,) = passes_and_edits(bench)
        assert (edited["reason"], edited["status"], edited["trigger"]) == ("edit", "applied", "manual")
        assert edited["tokens_after"] < edited["tokens_before"]
        await bench.applied(bench.submit("undo", agent_id=agent))
        work.turn_gate.set()

    assert (await bench.run_while(release)).exit_code == 0
    bench.assert_sound()


async def test_a_pinned_message_outlasts_compactions_and_hosts_until_it_is_unpinned(bench):
    bench.start(Work(count=12, words=300), window=30_000)
    assert (await bench.run()).exit_code == 0
    agent = bench.agent()["id"]

    reads = Queries(database.open_readonly(bench.path))

    def memory() -> AgentMemory:
        return AgentMemory.stored(reads, agent, default_counter())

    async def by_a_new_host(kind: str, **payload: Any) -> AgentMemory:
        number = bench.submit(kind, agent_id=agent, payload=payload)
        await bench.run(once=number)
        assert bench.command(number)["status"] == "applied", bench.command(number)["result"]
        return memory()

    whole = memory().state.messages
    foretold = memory().preview(reads, model="anthropic/claude-sonnet-4-5", pin=[5])
    assert (foretold.tokens, foretold.cache_tokens_void, foretold.cost_usd) == (memory().state.tokens, 0, 0.0)
    now = await by_a_new_host("edit", pin=[5])
    pair = [5, 6] if whole[4].role == "assistant" else [4, 5]
    assert [one.seq for one in now.state.pins] == pair, "a result comes with its call"
    now = await by_a_new_host("compact")
    assert now.state.view.verbatim_from > 6
    shown = [(one["role"], one["content"]) for one in now.state.render()]
    assert all((one.role, one.content) in shown for one in whole[pair[0] - 1 : pair[1]])
    foretold = now.preview(reads, model="anthropic/claude-sonnet-4-5", unpin=[5])
    assert foretold.tokens < foretold.tokens_before
    assert foretold.cost_usd > 0
    before = now.state.render()
    now = await by_a_new_host("edit", unpin=[5])
    assert (now.state.render(), now.state.pins) == (foretold.messages, ())
    assert (await by_a_new_host("undo")).state.render() == before
    now = await by_a_new_host("edit", pin=[3], unpin=[5])
    assert 3 in now.state.view.pins, "a message that is covered already is read again"
    assert all(seq not in now.state.view.pins for seq in pair)
    told = bench.query("SELECT kind FROM events WHERE kind LIKE 'memory.%pinned' ORDER BY seq")
    assert [row[0] for row in told] == ["memory.pinned", "memory.unpinned", "memory.pinned"]
    bench.assert_sound()


@pytest.mark.parametrize(("kind", "left"), [("turns", 1.0), ("tokens", 4_000.0)])
async def test_an_agent_whose_budget_is_nearly_used_is_not_summarised(bench, kind, left):
    bench.start(Work(count=40, words=450), window=12_000)
    assert (await bench.run()).exit_code == 0
    assert any(one["model"] != "digest" for one in passes(bench))
    events = bench.query("SELECT kind, data FROM events WHERE session_id = ? ORDER BY seq", bench.session)
    before = takewhile(lambda event: event[0] != "compaction.started", events)
    replies = [decode(data)["tokens"] for kind, data in before if kind == "model.replied"]
    used = {"turns": len(replies), "tokens": sum(replies)}[kind]
    bench.start(Work(count=40, words=450), window=12_000, budgets={kind: used + left})
    assert (await bench.run()).exit_code == 5
    assert all(one["model"] == "digest" for one in passes(bench))


async def test_a_message_under_a_digest_is_pinned_while_the_agent_works_and_by_a_host_of_its_own(bench):
    work = Work(count=22, words=450)
    work.hold_turn = 18
    work.summaries.clear()  # no summary comes, so digests of the bound cover the older messages
    bench.start(work, window=12_000)

    async def pin() -> None:
        await bench.until(lambda state: bench.agent() and bench.model.hanging and work.saved == 18)
        agent = bench.agent()["id"]
        stored = AgentMemory.stored(Queries(database.open_readonly(bench.path)), agent, default_counter())
        (digest, *_) = [one for one in stored.state.view.observations if one.provisional]
        for number in digest.covers:
            await bench.applied(bench.submit("edit", agent_id=agent, payload={"pin": [number]}))
        await bench.applied(bench.submit("undo", agent_id=agent))
        await bench.applied(bench.submit("redo", agent_id=agent))
        preview = bench.submit("edit", agent_id=agent, payload={"unpin": [digest.covers[1]], "preview": True})
        await bench.applied(preview)
        work.summaries.set()
        work.turn_gate.set()

    assert (await bench.run_while(pin)).exit_code == 0
    agent = bench.agent()["id"]
    number = bench.submit("edit", agent_id=agent, payload={"pin": [9]})
    assert (await bench.run(once=number)).exit_code == 0
    assert bench.command(number)["status"] == "applied", bench.command(number)["result"]
    bench.assert_sound()


@pytest.mark.parametrize("once", [True, False])
async def test_a_compaction_on_request_that_raises_has_failed_and_no_later_host_repeats_it(
    bench, monkeypatch, once
):
    bench.start(Work(count=12, words=300), window=30_000)
    assert (await bench.run()).exit_code == 0
    number = bench.submit("compact", agent_id=bench.agent()["id"])

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("a fault of the program")

    with monkeypatch.context() as patch:
        patch.setattr(compaction.CompactionRunner, "run", broken)
        if once:
            assert (await bench.run(once=number)).exit_code == 0
        else:
            bench.submit("rerun", agent_id=bench.agent()["id"])
            await bench.run(resume=True)
    assert bench.command(number)["status"] == "failed"
    later = bench.submit("memory_sync")
    assert (await bench.run(once=later)).exit_code == 0
    assert bench.command(later)["status"] == "applied"


def passes_and_edits(bench: Any) -> list[dict[str, Any]]:
    return list(bench.state["compactions"])


async def test_undo_right_after_a_compaction_is_exact_for_an_agent_whose_host_has_ended(bench):
    bench.start(Work(count=10, words=900), window=16_000)
    assert (await bench.run()).exit_code == 0
    agent = bench.agent()
    before = bench.query("SELECT view_version, context_tokens FROM agents WHERE id = ?", agent["id"])
    for kind in ("compact", "undo"):
        number = bench.submit(kind, agent_id=agent["id"])
        await bench.run(once=number)
        assert bench.command(number)["status"] == "applied", bench.command(number)["result"]
    assert bench.query("SELECT view_version, context_tokens FROM agents WHERE id = ?", agent["id"]) == before


# --- Whether a pass pays, and whether its text is applied ---------------------------------------------------


def context(tokens: int) -> ContextState:
    state = ContextState(ContextLimits(10_000, 0, overhead_tokens=500), Words())
    while state.tokens < tokens:
        fill(state, 1, 100)
    return state


def runner(state: ContextState, **about: Any) -> compaction.CompactionRunner:
    """A runner for an agent in its fortieth turn."""
    environment: Any = SimpleNamespace(
        clock=ManualClock(), settings=LoopSettings(most_turns=100), counter=Words(), **about
    )
    agent: Any = SimpleNamespace(id="a", task_id="t", model="own", role="explorer", turn=40)
    return compaction.CompactionRunner(environment, agent, SimpleNamespace(state=state))  # type: ignore[arg-type]


OWN, CHEAP = (2.0, 10.0, 0.5, 2.5), (1.0, 4.0, 0.25, 1.25)
COMPARED = {"cache_read": 0.25, "cache_write": 1.25}


@pytest.mark.parametrize(
    ("prices", "room", "rates"),
    [
        ({}, 0, TokenCosts()),
        ({"cheap": CHEAP}, 0, TokenCosts()),
        ({"own": OWN, "cheap": CHEAP}, 0, TokenCosts(0.5, 2.0, **COMPARED)),
        ({"own": OWN, "cheap": CHEAP}, -1, TokenCosts(1.0, 5.0, **COMPARED)),
        ({"own": OWN}, 0, TokenCosts(0.0, 0.0, **COMPARED)),
    ],
    ids=["no prices", "the agent's has none", "both have", "the window is too small", "free of charge"],
)
async def test_a_pass_that_is_due_is_judged_by_what_its_model_costs_and_the_calls_that_are_left(
    monkeypatch, prices, room, rates
):
    state = context(7_500)
    read = Compactor(state).begin(due=True)
    assert isinstance(read, CompactionPass)
    state.end_pass(read.high_water)
    judged: list[Any] = []

    def can_pay(run: Any, state: Any, turns: int, rates: TokenCosts, left: float) -> bool:
        judged.append((turns, rates, left))
        return False

    def price(model: str, usage: Any, exact: bool) -> Any:
        if model not in prices:
            return SimpleNamespace(usd=None)
        tokens = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        return SimpleNamespace(usd=sum(map(mul, tokens, prices[model])))

    def calls_left(task: str, model: str, prompt: int) -> float:
        judged.append((task, model, prompt))
        return 60.5

    monkeypatch.setattr(compaction, "can_pay", can_pay)
    window = math.ceil((read.source_tokens + 2 * MOST_WRITTEN) * compaction.WINDOW_SLACK) + room
    passes_of = runner(
        state,
        price=price,
        budgets=SimpleNamespace(calls_left=calls_left),
        memory_model=lambda role: "cheap",
        model=lambda ref: SimpleNamespace(context_window=window),
    )
    begun = await passes_of.begin(trigger="auto")
    assert "cost more than it saves" in begun.reason
    assert judged == [("t", "own", state.tokens - read.source_tokens + 500), (40, rates, 60)]


def test_a_summary_is_applied_only_where_it_takes_less_room_than_what_it_replaces():
    state, last = context(4_000), 10

    def refusal(tokens: int) -> str | None:
        return runner(state)._refuse(text_prepared(state, "They talked.", (1, last), tokens=tokens))

    room = sum(message.tokens for message in state.messages[:last]) - HEADING_TOKENS
    assert (refusal(room - 1), "would be as long" in str(refusal(room))) == (None, True)
    while not state.view.observations:
        fill(state, 1, 100)
    for _ in range(4):  # the bound's own digest is in place: it may be replaced by more, while there is room
        (digest,) = state.view.observations
        last, room = digest.covers[1], int(state.threshold * compaction.ROOM_SHARE) - state.tokens
        room = digest.tokens + max(0, room)
        assert (refusal(room), "does not fit" in str(refusal(room + 1))) == (None, True)
        fill(state, 1, 100)


def test_the_newest_passes_that_cost_something_and_did_not_pay_are_counted_up_to_one_that_did(monkeypatch):
    known = {1: (False, 9), 2: (True, 9), 3: (False, 9), 5: (True, 0), 6: (False, 0), 7: (False, 9)}
    worth = {number: {"pays": pays, "tokens_spent": spent} for number, (pays, spent) in known.items()}
    monkeypatch.setattr(messages, "worth", lambda *_: worth)
    monkeypatch.setattr(messages, "wasted_passes", lambda *_: [4])
    assert runner(context(100), store=SimpleNamespace(session_id="s"))._unpaid() == 3


@pytest.mark.parametrize(
    ("statuses", "left", "ending", "expected"),
    [
        ((), 60.0, False, True),
        (("done", "running"), 60.0, False, True),
        (("done", "failed"), 60.0, False, True),
        (("done", "dropped"), 60.0, False, False),
        ((), 2.0, False, False),
        ((), 60.0, True, False),
    ],
    ids=[
        "no plan",
        "a task runs",
        "a failure to answer",
        "the plan is done",
        "the budget is used up",
        "it ends",
    ],
)
def test_no_observer_begins_for_a_planner_that_is_about_to_end(monkeypatch, statuses, left, ending, expected):
    state = context(5_000)
    tasks = [SimpleNamespace(status=TaskStatus(status)) for status in statuses]
    monkeypatch.setattr(plans, "all_task_states", lambda store, session: tasks)
    passes_of = runner(
        state,
        budgets=SimpleNamespace(calls_left=lambda task, model, prompt: left),
        store=None,
        session_id="s",
    )
    passes_of._agent.task_id = None
    passes_of.note_ending(ending)
    read = tuple(state.messages[:10])
    run = CompactionPass(
        kind=ObservationKind.OBSERVATION,
        covers=(1, 10),
        messages=read,
        source_tokens=sum(message.tokens for message in read),
        base_version=1,
        epoch=0,
    )
    assert passes_of._is_needed(run) is expected
