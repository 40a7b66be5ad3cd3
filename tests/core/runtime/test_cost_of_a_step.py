"""What a step costs, in SQLite's own instructions, does not depend on who rests or on what was said."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from statistics import median
from types import FrameType
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench, Ground, add_agent, add_task
from tests.support.scripted import PlannedRun, call, said, task, turns

from watchkeeper.records.messages import ModelRequest
from watchkeeper.records.states import AgentStatus, TaskStatus
from watchkeeper.runtime import background, host
from watchkeeper.runtime.scheduler import Schedule
from watchkeeper.store import agents, database, facts, plans
from watchkeeper.store.transaction import SessionStore, Transaction

TURNS = 40


class Counted:
    """Counts the instructions of SQLite for the host: none is random, and a search in a tree is one."""

    def __init__(self) -> None:
        self.instructions = Counter[str]()

    def watch(self, connection: Any, name: str) -> Any:
        def count() -> int:
            self.instructions[name] += 1
            return 0

        connection.set_progress_handler(count, 1)
        return connection


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Counts what a host reads and writes, and keeps still what works by the clock beside its agents."""
    found = Counted()
    monkeypatch.setattr(host, "PERIOD_SECONDS", 3_600.0)
    monkeypatch.setattr(background, "HEARTBEAT_SECONDS", 3_600.0)
    monkeypatch.setattr(background, "INDEX_SECONDS", 3_600.0)
    writable, claim = database.open_writable, SessionStore.__init__

    def open_writable(path: Any, **options: Any) -> Any:
        return found.watch(writable(path, **options), "writes")

    def store(self: SessionStore, *about: Any) -> None:
        claim(self, *about)
        found.watch(self.connection, "reads")

    monkeypatch.setattr(database, "open_writable", open_writable)
    monkeypatch.setattr(SessionStore, "__init__", store)
    return found


async def costs_of_steps(bench: Bench, counted: Counted, at_rest: int) -> list[tuple[int, int]]:
    """Instructions (reading, writing) from each call of one agent's model to the next, after `at_rest` others
    have ended.

    Each of those has remembered a fact. The session has budgets that are never reached.
    """
    seen: list[tuple[int, int]] = []

    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if name != "long" and turn == 0:
            return [call("remember", {"text": f"{name} is a thing of its own"}, "toolu_0")]
        if name != "long":
            return [said("done")]
        seen.append((counted.instructions["reads"], counted.instructions["writes"]))
        if turn == TURNS:
            return [said("done")]
        return [said("on it goes"), call("read_back", {"ref": f"message://nobody/{turn}"}, f"toolu_{turn}")]

    names = [f"t{number}" for number in range(at_rest)]
    script = PlannedRun([*map(task, names), task("long", needs=tuple(names))], work)
    bench.start(script, window=200_000, budgets={"turns": 10_000, "tokens": 1e9, "seconds": 1e9})
    assert (await bench.run()).status == "done"
    return [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(seen)]


async def test_a_step_costs_the_store_the_same_however_long_the_agent_has_worked(bench, counted):
    costs = await costs_of_steps(bench, counted, 2)
    assert set(costs[3:]) == {costs[3]}


async def test_a_step_costs_the_store_the_same_however_many_agents_rest(bench, counted, tmp_path_factory):
    few = await costs_of_steps(bench, counted, 2)
    many = await costs_of_steps(Bench(tmp_path_factory.mktemp("many")), counted, 40)
    # Not quite the same: which rows end a page or an index depends on ids, which are random.
    for one, other in zip(few[3:], many[3:], strict=True):
        assert all(abs(a - b) <= 10 for a, b in zip(one, other, strict=True)), (few, many)


async def test_a_step_calls_as_many_functions_however_long_its_context_is(bench, counted):
    """Not one for each message: nothing walks through the context, or copies it, to send it once more."""
    calls, seen = 0, []

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        reads_all = frame.f_code.co_filename.endswith("scripted.py")
        calls += event in ("call", "c_call") and not reads_all

    def work(name: str, request: ModelRequest) -> Any:
        seen.append(calls)
        if len(seen) > 2 * TURNS:
            return [said("done")]
        read_back = call("read_back", {"ref": f"message://nobody/{len(seen)}"}, f"toolu_{len(seen)}")
        return [said("on it goes"), read_back]

    bench.start(PlannedRun([task("long")], work), window=200_000)
    sys.setprofile(count)
    try:
        assert (await bench.run()).exit_code == 0
    finally:
        sys.setprofile(None)
    costs = [after - before for before, after in itertools.pairwise(seen)]
    early, late = median(costs[5:25]), median(costs[-20:])
    assert early > 500
    assert late < 1.02 * early


@pytest.mark.parametrize("cost_of", ["a look", "asking for facts"])
def test_what_is_read_costs_the_same_however_many_agents_and_sessions_there_are(tmp_path, counted, cost_of):
    read = cost_of_a_look if cost_of == "a look" else cost_of_asking
    # A random id would sort before or after the others' now and then, which is worth four instructions.
    grounds = [Ground(tmp_path, f"{many}.db", new_id=lambda: "mysession") for many in (4, 400)]
    few, many = (read(ground, counted, many) for ground, many in zip(grounds, (4, 400), strict=True))
    assert few == many
    for ground in grounds:
        ground.close()


def cost_of_a_look(ground: Ground, counted: Counted, at_rest: int) -> int:
    """Instructions for one look after one task of a plan has ended, on which another waits."""

    def prepare(tx: Transaction) -> None:
        plans.create_plan(tx, "plan", "goal")
        for number in range(at_rest + 2):
            add_task(tx, f"t{number}", number)
            add_agent(tx, f"a{number}")
            if number < at_rest:
                tx.execute("UPDATE tasks SET status = ? WHERE id = ?", (TaskStatus.DONE, f"t{number}"))
        plans.set_dependencies(tx, f"t{at_rest + 1}", [f"t{at_rest}"])

    ground.write(prepare)
    board = Schedule(ground.store, ground.session)
    board.refresh()
    board.take_agents()
    assert board.next_ready() == f"t{at_rest}"
    assert board.next_ready() is None
    ground.write(lambda tx: plans.move(tx, f"t{at_rest}", TaskStatus.RUNNING))
    done = {"result": "", "artifact_refs": [], "agent_id": f"a{at_rest}"}
    ground.write(lambda tx: plans.finish(tx, f"t{at_rest}", **done))
    ground.write(lambda tx: agents.move(tx, f"a{at_rest}", AgentStatus.DONE))
    before = counted.instructions["reads"]
    board.refresh()
    assert board.take_agents() == [f"a{at_rest}"]
    assert board.next_ready() == f"t{at_rest + 1}"
    return counted.instructions["reads"] - before


def cost_of_asking(ground: Ground, counted: Counted, others: int) -> int:
    """Instructions for all that an agent's turn and a task's beginning and end ask of the facts."""

    def prepare(tx: Transaction) -> None:
        for number in range(others + 3):
            where, text = "here" if number < 3 else "elsewhere", f"n{number} is so"
            about = {"agent_id": "a", "workspace": where, "kind": "fact", "text": text}
            facts.add_fact(tx, scope="workspace", pinned=True, sources=[], **about)
        # As though another session had kept them.
        tx.execute("UPDATE facts SET session_id = 'another', agent_id = 'b' WHERE id > 3")

    ground.write(prepare)
    store, session = ground.store, ground.session
    before = counted.instructions["reads"]
    assert len(facts.current_facts(store, session, workspace="here")) == 3
    assert len(facts.current_facts(store, session, writer="a")) == 3
    assert facts.count_facts(store, session, workspace="here") == 3
    assert len(facts.find_facts(store, session, [], ["n1"], workspace="here")) == 1
    assert len(facts.pinned_facts(store, session)) == 3
    return counted.instructions["reads"] - before
