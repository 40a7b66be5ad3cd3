"""Budgets hold while many agents ask at once: room for a call is reserved before it, and settled after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.models.registry import price
from watchkeeper.records.messages import ModelEvent, ModelRequest, Reply, SideCall, Usage
from watchkeeper.store import budgets, database
from watchkeeper.store.driver import Queries
from watchkeeper.store.statistics import usage

PRICED = "anthropic/claude-sonnet-4-5"
NAMES = [f"t{number}" for number in range(50)]


class Wasteful:
    """A model that writes all that it may in each reply, and answers once nobody new has asked."""

    ref = PRICED
    context_window = 60_000

    def __init__(self, script: Any) -> None:
        self._script = script
        self.usages: list[Usage] = []
        self.in_progress = self.most_in_progress = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.in_progress += 1
        self.most_in_progress = max(self.most_in_progress, self.in_progress)
        try:
            seen = -1
            while seen != self.in_progress:  # all who can ask meanwhile do
                seen = self.in_progress
                await asyncio.sleep(0.02)
            usage = Usage(input_tokens=len(flat(request.messages)) // 5, output_tokens=request.max_tokens)
            self.usages.append(usage)
            content = self._script(request)
            stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
            yield Reply(content=content, stop_reason=stop, usage=usage)
        finally:
            self.in_progress -= 1


def remember_twice(name: str, request: ModelRequest) -> list[dict[str, Any]]:
    turn = turns(request)
    text = f"{name} at {turn}"
    return [call("remember", {"text": text}, f"t{turn}") if turn < 2 else said(f"{name} is done")]


def wide(bench: Bench, kind: str, amount: float) -> Wasteful:
    """Fifty tasks at once under one budget, with as many slots."""
    config = bench.path.parent / "config"
    config.mkdir()
    (config / "config.toml").write_text("slots = 60\n")
    script = PlannedRun([task(name) for name in NAMES], remember_twice)
    model = Wasteful(script)
    bench.runtime._model = model
    bench.start(script, budgets={kind: amount}, max_parallel=50)
    return model


def amount_of(kind: str, usage: Usage) -> float:
    if kind == "usd":
        return price(PRICED, usage, True).usd or 0.0
    return float(usage.total_tokens) if kind == "tokens" else 1.0


@pytest.mark.parametrize(
    ("kind", "amount"),
    [
        ("tokens", 61_000.0),
        ("usd", 1.3),
        ("turns", 37.0),
        pytest.param("tokens", 400_000.0, marks=pytest.mark.long),
        pytest.param("usd", 5.0, marks=pytest.mark.long),
    ],
)
async def test_fifty_agents_at_once_go_beyond_a_budget_by_one_calls_output_at_most(bench, kind, amount):
    model = wide(bench, kind, amount)
    result = await bench.run()
    assert (result.status, result.exit_code) == ("paused", 5)
    assert "budget of" in (result.reason or "")
    total = sum(amount_of(kind, usage) for usage in model.usages)
    one_output = max(amount_of(kind, Usage(output_tokens=usage.output_tokens)) for usage in model.usages)
    assert total <= amount + (0 if kind == "turns" else one_output)
    assert total >= amount * 0.5, "it is used, not hoarded"
    if amount > 100_000:
        assert model.most_in_progress > 5, "while there is room, calls run side by side"
    assert bench.query("SELECT count(*) FROM reservations") == [(0,)]
    assert "failed" not in {one["status"] for one in bench.tasks().values()}
    bench.assert_sound()

    bench.submit("set_budget", payload={"kind": kind, "amount": None})
    assert (await bench.run()).exit_code == 0
    assert {one["attempt"] for one in bench.tasks().values()} == {1}


async def test_a_task_budget_holds_for_that_task_while_the_others_run_side_by_side(bench):
    model = wide(bench, "tokens", 1e9)
    bench.submit("set_budget", payload={"kind": "tokens", "amount": None})

    async def limit() -> None:
        await bench.until(lambda state: state["plan"])
        bench.submit("set_budget", task_id=bench.tasks()["t7"]["id"], payload={"kind": "turns", "amount": 2})

    result = await bench.run_while(limit)
    assert result.exit_code == 5
    by_status = {name: one["status"] for name, one in bench.tasks().items()}
    assert by_status.pop("t7") == "paused"
    assert "the task's budget of 2 turns" in bench.tasks()["t7"]["status_reason"]
    assert bench.query("SELECT count(*) FROM inbox WHERE kind = 'task_paused'") == [(1,)]
    assert set(by_status.values()) == {"done"}
    assert model.most_in_progress > 5


async def test_without_a_budget_no_reservation_is_written(bench):
    with closing(database.open_writable(bench.path)) as connection:
        connection.execute("CREATE TABLE seen (id)")
        insert = "INSERT INTO seen VALUES (new.id)"
        connection.execute(f"CREATE TRIGGER made AFTER INSERT ON reservations BEGIN {insert}; END")
    bench.start(PlannedRun([task("a")], remember_twice))
    assert (await bench.run()).exit_code == 0
    assert bench.query("SELECT count(*) FROM seen") == [(0,)]
    bench.start(PlannedRun([task("a")], remember_twice), budgets={"tokens": 1e9})
    assert (await bench.run()).exit_code == 0
    calls = bench.query("SELECT count(*) FROM model_calls WHERE session_id = ?", bench.session)
    assert bench.query("SELECT count(*) FROM seen") == calls


async def test_a_budget_counts_what_an_abandoned_call_had_used(bench: Bench) -> None:
    held = asyncio.Event()
    bench.model.counted = Usage(input_tokens=900_000)
    bench.start(PlannedRun([task("a")], lambda name, request: held), budgets={"tokens": 1_000_000})

    async def pause() -> None:
        await bench.hanging()
        bench.submit("pause", payload={"now": True})

    await bench.run_while(pause)
    (lost,) = bench.query("SELECT input_tokens, usage_exact FROM model_calls WHERE status = 'abandoned'")
    assert lost == (900_000, 0)
    with closing(database.open_readonly(bench.path)) as connection:
        assert usage(connection)[1].partial_calls == 1
    assert bench.query("SELECT input_tokens >= 900000 FROM sessions") == [(1,)]
    assert bench.query("SELECT count(*) FROM reservations") == [(0,)]


async def test_what_a_call_had_used_whose_host_was_killed_is_counted_at_the_resume(bench: Bench) -> None:
    held = asyncio.Event()
    bench.model.counted = Usage(input_tokens=900_000)
    bench.start(PlannedRun([task("a")], lambda name, request: [said("done")] if held.is_set() else held))
    running = asyncio.ensure_future(bench.run())
    await bench.hanging()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    calls = "SELECT status, input_tokens, usage_exact FROM model_calls WHERE input_tokens >= 900000"
    await bench.until(lambda state: bench.query(calls))
    assert bench.query(calls) == [("running", 900_000, 0)]
    assert bench.query("SELECT count(*) FROM sessions WHERE input_tokens >= 900000") == [(0,)]
    held.set()
    for _ in range(2):
        assert (await bench.run()).status == "done"
        assert bench.query(calls) == [("abandoned", 900_000, 0)]
        assert bench.query(
            "SELECT s.input_tokens = sum(c.input_tokens), s.model_calls = count(*) FROM sessions s"
            " JOIN model_calls c ON c.session_id = s.id"
        ) == [(1, 1)]
        bench.submit("resume")
    bench.assert_sound()


async def test_a_budget_counts_an_advisor_and_other_calls_that_a_reply_brings(bench: Bench) -> None:
    bench.model.side_calls = (
        SideCall("advisor", Usage(input_tokens=300_000), "claude-opus-4-7"),
        SideCall("other", Usage(output_tokens=10), exact=False),
    )
    bench.start(PlannedRun([task("a")], lambda name, request: [said("done")]), budgets={"tokens": 500_000})
    result = await bench.run()
    assert result.status == "paused", "two replies use it up"
    rows = bench.query(
        "SELECT purpose, model, status, usage_exact, input_tokens + output_tokens FROM model_calls WHERE turn = 1"
        " AND purpose IN ('advisor', 'other') AND agent_id = (SELECT planner_agent_id FROM sessions) ORDER BY id"
    )
    assert rows == [
        ("advisor", "test/claude-opus-4-7", "done", 1, 300_000),
        ("other", "test/scripted", "done", 0, 10),
    ]
    assert bench.query("SELECT count(*) FROM reservations") == [(0,)]
    assert (await bench.run()).status == "paused"


async def test_whoever_waits_in_line_can_be_paused_and_leaves_the_line(bench):
    """One call holds what is left; the others wait, are paused, and nothing is left behind."""
    gate = asyncio.Event()

    def work(name: str, request: ModelRequest) -> Any:
        return remember_twice(name, request) if gate.is_set() else gate

    tasks = [task("a"), task("b"), task("c")]
    bench.start(PlannedRun(tasks, work), budgets={"tokens": 24_000}, max_parallel=4)

    async def pause() -> None:
        await bench.until(lambda state: bench.model.hanging)
        await bench.until(lambda state: len(state["agents"]) == 4)
        assert bench.model.hanging < 3, "what is left does not cover all three"
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).exit_code == 5
    assert bench.query("SELECT count(*) FROM reservations") == [(0,)]
    gate.set()
    bench.submit("set_budget", payload={"kind": "tokens", "amount": None})
    assert (await bench.run()).exit_code == 0


async def test_a_host_that_takes_over_frees_what_an_earlier_one_had_reserved(bench):
    bench.start(PlannedRun([task("a")], remember_twice), budgets={"tokens": 60_000})
    with closing(database.open_writable(bench.path)) as connection, connection:
        connection.execute(
            "INSERT INTO reservations (id, session_id, agent_id, lease_epoch, model, purpose, tokens,"
            " created_at, expires_at) VALUES ('gone:1', ?, 'gone', 0, 'm', 'turn', 59999, 1.0, 1e12)",
            (bench.session,),
        )
    assert (await bench.run()).exit_code == 0
    assert bench.query("SELECT count(*) FROM reservations") == [(0,)]


async def test_a_budget_that_is_not_more_than_what_is_used_is_refused_by_the_host(bench):
    bench.start(PlannedRun([task("a")], remember_twice), budgets={"turns": 3})
    assert (await bench.run()).exit_code == 5
    command = bench.submit("set_budget", payload={"kind": "turns", "amount": 3})
    assert (await bench.run()).exit_code == 5
    assert bench.command(command)["status"] == "refused"
    assert "already used 3 turns" in bench.command(command)["result"]


async def test_what_is_used_and_what_is_asked_for_are_read_from_the_file(bench, tmp_path):
    bench.start(PlannedRun([task("a")], remember_twice), budgets={"turns": 3})
    await bench.run()
    reads = Queries(database.open_readonly(bench.path))
    (use,) = budgets.blocking(reads, bench.session)
    assert (use.used, use.budget.amount, use.is_reached) == (3.0, 3.0, True)
    assert "3 turns of its budget of 3 turns" in use.describe()
    assert budgets.resume_command(bench.session, [use]) == f"wk resume {bench.session} --budget-turns +3"
    small = budgets.BudgetUse(budgets.Budget(None, "tokens", 4_000.0, required=4_500.0), 3_900.0)
    assert small.shortfall >= 6_000, "ten calls like the one that did not fit"
    with pytest.raises(ValueError, match="no call so far has a known price"):
        budgets.amount_of(reads, bench.session, None, "usd", "5")
    minute = budgets.Budget(None, "usd", 1e-12)
    assert not budgets.BudgetUse(minute, None).is_reached
    assert not budgets.BudgetUse(minute, 0.0).is_reached, (
        "the host would pause at once, and a resume would see no reason"
    )
    assert budgets.amount_of(reads, bench.session, None, "turns", "+2") == 5
    assert budgets.amount_of(reads, bench.session, None, "turns", "9") == 9
    assert budgets.amount_of(reads, bench.session, None, "tokens", "+10") > 10
    for typed in ("3", "2.5", "+0", "-1", "nan", "inf", "five", ""):
        with pytest.raises(ValueError, match=r"already|not an amount|positive"):
            budgets.amount_of(reads, bench.session, None, "turns", typed)
