"""What the events tell of a moment, against the rows as they really stood then: read after every commit of a run."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.library.conftest import rows_of
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task, turns

from watchkeeper.records.model import ErrorKind, ModelError, Purpose
from watchkeeper.store.library.changing import opened
from watchkeeper.store.library.cut import Cut
from watchkeeper.store.library.moment import moment_at
from watchkeeper.store.writer import Writer

Rows = dict[str, list[dict[str, Any]]]

APPROXIMATE = {
    "sessions": {"hosted_seconds", "last_active", "host_pid", "host_name", "lease_epoch", "ended_at"},
    "agents": {"context_tokens", "composition", "last_active", "started_at"},
    "plans": {"updated_at"},
    "tasks": {"resume_token", "started_at"},
    "tool_calls": {"started_at", "ended_at"},
    "model_calls": set(),
    "compactions": {"prepared", "tokens_spent", "cost_usd"},
}
"""What a fork has only about, or what a host sets in a step that no event tells of."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Rows]]:
    """All states that a session stood in, by its newest event; several where steps without events followed."""
    states: dict[int, list[Rows]] = {}
    commit = Writer._commit

    def watched(self: Writer, items: Any) -> None:
        commit(self, items)
        for (session_id,) in self._connection.execute("SELECT id FROM sessions").fetchall():
            rows = rows_of(self.path, session_id)
            if rows["events"]:
                states.setdefault(rows["events"][-1]["seq"], []).append(rows)

    monkeypatch.setattr(Writer, "_commit", watched)
    monkeypatch.setattr("watchkeeper.store.writer.LARGEST_GROUP", 1)
    monkeypatch.setattr("watchkeeper.runtime.heartbeat.EVERY_SECONDS", 60.0)
    return states


def told_at(path: Path, session_id: str, seq: int) -> tuple[int, Rows]:
    """The rows that the events tell of, and the event that ends the step."""
    with opened(path) as connection:
        cut = Cut(connection, session_id, moment_at(connection, session_id, seq), ahead=False)
        now = rows_of(path, session_id)
        told = {
            table: [kept for kept in (cut.keep(table, row) for row in rows) if kept is not None] for table, rows in now.items()
        }
        told["task_dependencies"] = [{"task_id": one, "depends_on": other} for one, other in cut.dependencies()]
    return cut.moment.seq, told


def differences(told: Rows, stood: Rows) -> list[str]:
    found: list[str] = []
    for table, rows in stood.items():
        if table in ("live", "commands", "memory_snapshots", "budgets"):
            continue
        if len(rows) != len(told[table]):
            found.append(f"{table}: {len(told[table])} told, {len(rows)} stood")
            continue
        for mine, real in zip(told[table], rows, strict=True):
            for column, value in real.items():
                if table == "compactions" and column == "status" and value == "prepared":
                    value = mine[column]  # what it had prepared is gone since: in a fork it is given up, as after a kill
                if column not in APPROXIMATE.get(table, ()) and not same(mine[column], value):
                    found.append(
                        f"{table}.{column} of {real.get('id') or real.get('seq')}: {mine[column]!r} told, {value!r} stood"
                    )
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return abs((one or 0.0) - (other or 0.0)) < 1e-6
    return bool(one == other)


def check(bench: Bench, recorded: dict[int, list[Rows]]) -> int:
    """Compare every moment; returns how many there were."""
    count = 0
    for seq, states in sorted(recorded.items()):
        try:
            end, told = told_at(bench.path, bench.session, seq)
        except KeyError as error:
            raise AssertionError(f"at event #{seq}: {error!r}") from error
        assert end == seq, "a step was cut in two"
        if not told["agents"]:
            continue
        best = min((differences(told, stood) for stood in states), key=len)
        kind = states[0]["events"][-1]["kind"]
        assert best == [], f"after event #{seq} {kind}:\n" + "\n".join(best[:12])
        count += 1
    return count


async def test_a_plain_run_is_told_at_every_moment(bench: Bench, recorded: dict[int, list[Rows]]) -> None:
    def work(name: str, request: Any) -> Any:
        if turns(request) == 0:
            return [
                said("I look."),
                call("list_folder", {"path": "."}, f"a{name}"),
                call("remember", {"text": f"{name} counts"}, f"b{name}"),
            ]
        if turns(request) == 1:
            return [
                call("save_artifact", {"name": name, "content": {"made": name}}, f"c{name}"),
                call("nonsense", {}, f"d{name}"),
            ]
        return [said(f"{name} is done")]

    bench.start(PlannedRun([task("alpha"), task("beta"), task("gamma", needs=("alpha", "beta"))], work=work))
    assert (await bench.run()).exit_code == 0
    assert check(bench, recorded) > 20


async def test_failures_resumes_and_reruns_are_told_at_every_moment(bench: Bench, recorded: dict[int, list[Rows]]) -> None:
    tries = itertools.count()

    def work(name: str, request: Any) -> Any:
        if name == "alpha" and next(tries) < 2:
            return ModelError("this cannot work", kind=ErrorKind.FAIL)
        if turns(request) == 0:
            return [call("save_artifact", {"name": name, "content": f"made {next(tries)}"}, f"a{name}{next(tries)}")]
        return [said(f"{name} is done")]

    class Again(PlannedRun):
        again = False

        def plan(self, request: Any) -> Any:
            text = json.dumps([dict(one) for one in request.messages])
            if "task_done" in text and "beta is done" in text and not self.again:
                self.again = True
                return [
                    call("revise_task", {"task": "beta", "instructions": "Now otherwise."}, "r1"),
                    call("rerun_task", {"task": "alpha"}, "r2"),
                ]
            return super().plan(request)

    bench.start(Again([task("alpha"), task("beta", needs=("alpha",))], work=work))
    assert (await bench.run()).exit_code == 0
    kinds = bench.kinds()
    assert "task.failed" in kinds
    assert "task.stale" in kinds
    assert check(bench, recorded) > 20


async def test_compactions_undo_and_steering_are_told_at_every_moment(bench: Bench, recorded: dict[int, list[Rows]]) -> None:
    gates = {8: asyncio.Event(), 12: asyncio.Event()}
    asked: dict[str, int] = {}

    def work(name: str, request: Any) -> Any:
        turn = asked.get(name, 0) + 1
        if turn in gates and not gates[turn].is_set():
            return gates[turn]
        asked[name] = turn
        if turn <= 16:
            return [
                call("save_artifact", {"name": f"{name}{turn}", "content": f"note {turn} " + "words " * 450}, f"t{name}{turn}")
            ]
        return [said(f"{name} is done")]

    planned = PlannedRun([task("alpha")], work)

    def model(request: Any) -> Any:
        return [said("The agent saved notes (#3).")] if request.purpose is Purpose.REFLECTOR else planned(request)

    async def steer() -> None:
        await bench.until(lambda state: bench.model.hanging == 1)
        agent = next(one["id"] for one in bench.state["agents"] if one["name"] == "explorer-1")
        bench.submit("compact", agent_id=agent)
        await bench.until(lambda state: [one for one in state["compactions"] if one["status"] == "prepared"])
        gates[8].set()
        await bench.until(lambda state: [one for one in state["compactions"] if one["status"] == "applied"])
        await bench.until(lambda state: bench.model.hanging == 2)
        for kind in ("undo", "redo", "undo"):
            bench.submit(kind, agent_id=agent)
        bench.submit("steer", agent_id=agent, payload={"text": "remember: always answer in French"})
        await bench.until(lambda state: all(one["status"] != "queued" for one in state["commands"]))
        gates[12].set()

    bench.start(model, window=60_000)
    assert (await bench.run_while(steer)).exit_code == 0
    kinds = bench.kinds()
    assert kinds.count("compaction.undo") == 2, [one["result"] for one in bench.state["commands"]]
    assert "compaction.applied" in kinds
    assert check(bench, recorded) > 40


async def test_digests_of_a_full_context_are_told_at_every_moment(bench: Bench, recorded: dict[int, list[Rows]]) -> None:
    asked: dict[str, int] = {}

    def work(name: str, request: Any) -> Any:
        turn = asked[name] = asked.get(name, 0) + 1
        if turn <= 24:
            return [
                call("save_artifact", {"name": f"{name}{turn}", "content": f"note {turn} " + "words " * 450}, f"t{name}{turn}")
            ]
        return [said(f"{name} is done")]

    planned = PlannedRun([task("alpha"), task("beta")], work)
    bench.start(
        lambda request: [said("Notes (#3).")] if request.purpose is Purpose.REFLECTOR else planned(request), window=12_000
    )
    assert (await bench.run()).exit_code == 0
    assert bench.query("SELECT count(*) FROM views")[0][0] > 8
    assert check(bench, recorded) > 80


async def test_pauses_and_questions_are_told_at_every_moment(bench: Bench, recorded: dict[int, list[Rows]]) -> None:
    def work(name: str, request: Any) -> Any:
        if turns(request) == 0:
            return [call("bash", {"command": "echo hello"}, f"a{name}"), call("list_folder", {"path": "."}, f"b{name}")]
        return [said(f"{name} is done")]

    async def decide() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("approve", payload={"approval": waiting[0]["id"]})
        other = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting" and one["id"] != waiting[0]["id"]]
        )
        bench.submit("pause")
        await bench.until(lambda state: state["session"]["status"] == "paused")
        assert other

    tasks = [task("alpha", role="coder"), task("beta", needs=("alpha",), role="coder")]
    bench.start(PlannedRun(tasks, work=work), approval_timeout_seconds=None)
    result = await bench.run_while(decide)
    assert result.exit_code == 5
    assert check(bench, recorded) > 10

    async def deny() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("deny", payload={"approval": waiting[0]["id"]})
        await asyncio.sleep(30)

    assert (await bench.run_while(deny, resume=True)).exit_code == 0
    assert check(bench, recorded) > 25
