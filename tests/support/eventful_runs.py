"""Runs in which much happens, and all the states that their sessions stood in: for tests of what is told of a
moment."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task, turns

from watchkeeper.records import ports
from watchkeeper.records.messages import ErrorKind, ModelError, Purpose
from watchkeeper.store.writer import Writer

T = TypeVar("T")


def all_states(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Path, str], tuple[int, T] | None]
) -> dict[int, list[T]]:
    """Filled with what `read(path, session)` gives after every commit from now on, by its newest event.

    Several states stand under one event where steps without events followed. `read` gives the number of the
    newest event and the state, or None while there is none.
    """
    states: dict[int, list[T]] = {}
    commit = Writer._commit

    def watched(self: Writer, items: Any) -> None:
        commit(self, items)
        for (session_id,) in self.connection.execute("SELECT id FROM sessions").fetchall():
            found = read(self.path, session_id)
            if found is not None:
                states.setdefault(found[0], []).append(found[1])

    monkeypatch.setattr(Writer, "_commit", watched)
    monkeypatch.setattr("watchkeeper.store.writer.LARGEST_GROUP", 1)
    monkeypatch.setattr("watchkeeper.runtime.background.HEARTBEAT_SECONDS", 60.0)
    return states


def jump_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is set back or ahead by up to an hour before each reading, or not at all."""
    rng = random.Random(14)
    monkeypatch.setattr(
        ports.SystemClock, "now", lambda self: time.time() + rng.choice([0.0, rng.uniform(-3_600.0, 3_600.0)])
    )


def same(one: Any, other: Any) -> bool:
    """Equal; sums of floats may differ by how they were added."""
    if isinstance(one, float) or isinstance(other, float):
        return abs((one or 0.0) - (other or 0.0)) < 1e-6
    return bool(one == other)


async def plain(bench: Bench) -> None:
    """Two tasks side by side and one that needs both; tools, facts, artifacts, a call that fails."""

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


async def failing_and_run_again(bench: Bench) -> None:
    """A task fails and is resumed, one is revised and moved to another role, one is re-run; what hangs on it
    is stale."""
    tries = itertools.count()

    def work(name: str, request: Any) -> Any:
        if name == "alpha" and next(tries) < 2:
            return ModelError("this cannot work", kind=ErrorKind.FAIL)
        if turns(request) == 0:
            return [
                call(
                    "save_artifact", {"name": name, "content": f"made {next(tries)}"}, f"a{name}{next(tries)}"
                )
            ]
        return [said(f"{name} is done")]

    class Again(PlannedRun):
        again = False

        def plan(self, request: Any) -> Any:
            text = json.dumps([dict(one) for one in request.messages])
            if "task_done" in text and "beta is done" in text and not self.again:
                self.again = True
                return [
                    call("revise_task",
                     {"task": "beta", "instructions": "Now otherwise.", "role": "writer"}, "r1"),
                    call("rerun_task", {"task": "alpha", "reason": "again"}, "r2"),
                ]  # fmt: skip
            return super().plan(request)

    bench.start(Again([task("alpha"), task("beta", needs=("alpha",))], work=work))
    assert (await bench.run()).exit_code == 0
    assert {"task.failed", "task.stale"} <= set(bench.kinds())


def _notes(name: str, turn: int) -> list[dict[str, Any]]:
    return [
        call(
            "save_artifact",
            {"name": f"{name}{turn}", "content": f"note {turn} " + "words " * 450},
            f"t{name}{turn}",
        )
    ]


async def compacted_and_steered(bench: Bench) -> None:
    """A compaction by command, published between two turns; undo, redo, undo; a standing instruction by a
    person."""
    gates = {8: asyncio.Event(), 12: asyncio.Event()}
    asked: dict[str, int] = {}

    def work(name: str, request: Any) -> Any:
        turn = asked.get(name, 0) + 1
        if turn in gates and not gates[turn].is_set():
            return gates[turn]
        asked[name] = turn
        return _notes(name, turn) if turn <= 16 else [said(f"{name} is done")]

    planned = PlannedRun([task("alpha")], work)

    def model(request: Any) -> Any:
        return (
            [said("The agent saved notes (#3).")]
            if request.purpose is Purpose.REFLECTOR
            else planned(request)
        )

    async def steer() -> None:
        await bench.until(lambda state: bench.model.hanging == 1)
        agent = next(one["id"] for one in bench.state["agents"] if one["role"] == "explorer")
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


async def digested(bench: Bench) -> None:
    """Two agents whose contexts are full again and again, so that digests stand in."""
    asked: dict[str, int] = {}

    def work(name: str, request: Any) -> Any:
        turn = asked[name] = asked.get(name, 0) + 1
        return _notes(name, turn) if turn <= 34 else [said(f"{name} is done")]

    planned = PlannedRun([task("alpha"), task("beta")], work)
    bench.start(
        lambda request: [said("Notes (#3).")] if request.purpose is Purpose.REFLECTOR else planned(request),
        window=12_000,
    )
    assert (await bench.run()).exit_code == 0
    assert bench.query("SELECT count(*) FROM views")[0][0] > 8


def _waiting(state: Any) -> list[Any]:
    return [one for one in state["approvals"] if one["status"] == "waiting"]


async def paused_at_a_question(bench: Bench) -> None:
    """One question is approved; while the next one waits, the run is paused."""

    def work(name: str, request: Any) -> Any:
        if turns(request) == 0:
            return [
                call("bash", {"command": "echo hello"}, f"a{name}"),
                call("list_folder", {"path": "."}, f"b{name}"),
            ]
        return [said(f"{name} is done")]

    async def decide() -> None:
        first = (await bench.until(_waiting))[0]["id"]
        bench.submit(
            "approve", payload={"approval": first, "edited_input": {"command": "echo hello, as edited"}}
        )
        await bench.until(lambda state: [one for one in _waiting(state) if one["id"] != first])
        bench.submit("pause")
        await bench.until(lambda state: state["session"]["status"] == "paused")

    tasks = [task("alpha", role="coder"), task("beta", needs=("alpha",), role="coder")]
    bench.start(PlannedRun(tasks, work=work), approval_timeout_seconds=None)
    assert (await bench.run_while(decide)).exit_code == 5


async def resumed_and_denied(bench: Bench) -> None:
    """After `paused_at_a_question`: the run is resumed, and its question denied."""

    async def deny() -> None:
        waiting = await bench.until(_waiting)
        bench.submit("deny", payload={"approval": waiting[0]["id"]})
        await asyncio.Event().wait()  # the run ends first

    assert (await bench.run_while(deny, resume=True)).exit_code == 0
