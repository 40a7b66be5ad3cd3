"""What a recording tells of a step, against the rows as they really stood then: read after every commit of a run."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task, turns

from watchkeeper.records.model import ErrorKind, ModelError, Purpose
from watchkeeper.store import database
from watchkeeper.store.dashboard_agent import AgentFold, newest_messages
from watchkeeper.store.dashboard_fold import SessionFold
from watchkeeper.store.replaying import Recording, open_recording
from watchkeeper.store.writer import Writer

State = dict[str, Any]
MESSAGES = 40

APPROXIMATE = {
    "session": {"hosted_seconds", "last_active", "host_pid", "host_name", "ended_at"},
    "agents": {"context_tokens", "composition", "last_active", "started_at", "live"},
    "tasks": {"started_at"},
    "compactions": {"cost_usd"},
    "budgets": {"amount"},
    "tool_calls": {"started_at", "ended_at"},
    "facts": {"pinned"},
}
"""What a host sets in a step that no event tells of, or what is counted anew at every step."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Bench(tmp_path)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[State]]:
    """All states that a session stood in, by its newest event; several where steps without events followed."""
    states: dict[int, list[State]] = {}
    commit = Writer._commit

    def watched(self: Writer, items: Any) -> None:
        commit(self, items)
        for (session_id,) in self._connection.execute("SELECT id FROM sessions").fetchall():
            connection = database.open_readonly(self.path)
            stood = state_now(connection, session_id)
            connection.close()
            states.setdefault(stood["session"]["event_seq"], []).append(stood)

    monkeypatch.setattr(Writer, "_commit", watched)
    monkeypatch.setattr("watchkeeper.store.writer.LARGEST_GROUP", 1)
    monkeypatch.setattr("watchkeeper.runtime.heartbeat.EVERY_SECONDS", 60.0)
    return states


def state_now(connection: Any, session_id: str) -> State:
    """All that the dashboard reads of a session."""
    reading = SessionFold(session_id).read(connection, 0.0)
    assert reading is not None
    state: State = {"session": asdict(reading.session)}
    for name in ("tasks", "agents", "compactions", "approvals", "budgets"):
        state[name] = [asdict(each) for each in getattr(reading, name)]
    for agent in reading.agents:
        more = AgentFold(session_id, agent.id).read(connection)
        state |= {f"{name} of {agent.id}": [asdict(each) for each in getattr(more, name)] for name in PARTS}
        state[f"messages of {agent.id}"] = [asdict(each) for each in newest_messages(connection, agent.id, MESSAGES)]
    return state


PARTS = ("tool_calls", "calls", "facts", "views", "inbox")


def state_then(connection: Any, recording: Recording, position: int) -> State:
    """The same, as the recording tells it."""
    then = recording.at(connection, position)
    state: State = {"session": asdict(then.session)}
    for name in ("tasks", "agents", "compactions", "approvals", "budgets"):
        state[name] = [asdict(each) for each in getattr(then, name)]
    for agent in then.agents:
        more = recording.agent(connection, then, agent.id, MESSAGES)
        assert more is not None
        state |= {f"{name} of {agent.id}": [asdict(each) for each in getattr(more, name)] for name in (*PARTS, "messages")}
    return state


def differences(told: State, stood: State) -> list[str]:
    found: list[str] = []
    for part, real in stood.items():
        rows, mine = (real, told.get(part, [])) if isinstance(real, list) else ([real], [told[part]])
        if len(rows) != len(mine):
            found.append(f"{part}: {len(mine)} told, {len(rows)} stood")
            continue
        skipped = APPROXIMATE.get(part.partition(" ")[0], set())
        for row, other in zip(rows, mine, strict=True):
            for column, value in row.items():
                if column not in skipped and not same(other[column], value):
                    found.append(f"{part}.{column} of {row.get('id')}: {other[column]!r} told, {value!r} stood")
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return abs((one or 0.0) - (other or 0.0)) < 1e-6
    return bool(one == other)


def check(bench: Bench, recorded: dict[int, list[State]]) -> int:
    """Compare every moment, in no order; returns how many there were."""
    connection = database.open_readonly(bench.path)
    recording = open_recording(connection, bench.session)
    assert recording is not None
    seqs = sorted((seq for seq in recorded if seq), key=lambda seq: (seq * 7919) % 1009)
    for seq in seqs:
        told = state_then(connection, recording, seq)
        assert told["session"]["event_seq"] == seq, "a step was cut in two"
        best = min((differences(told, stood) for stood in recorded[seq]), key=len)
        (event,) = recording.events(connection, seq, 1)
        assert best == [], f"after event #{seq} {event.kind}:\n" + "\n".join(best[:12])
    connection.close()
    return len(seqs)


async def test_a_plain_run_is_replayed_as_it_was(bench: Bench, recorded: dict[int, list[State]]) -> None:
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


async def test_failures_revisions_and_reruns_are_replayed_as_they_were(bench: Bench, recorded: dict[int, list[State]]) -> None:
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
                    call("revise_task", {"task": "beta", "instructions": "Now otherwise.", "role": "writer"}, "r1"),
                    call("rerun_task", {"task": "alpha"}, "r2"),
                ]
            return super().plan(request)

    bench.start(Again([task("alpha"), task("beta", needs=("alpha",))], work=work))
    assert (await bench.run()).exit_code == 0
    assert {"task.failed", "task.stale"} <= set(bench.kinds())
    assert check(bench, recorded) > 20


async def test_compactions_undo_and_steering_are_replayed_as_they_were(bench: Bench, recorded: dict[int, list[State]]) -> None:
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
    assert {"compaction.applied", "compaction.undo"} <= set(bench.kinds())
    assert check(bench, recorded) > 40


async def test_digests_of_a_full_context_are_replayed_as_they_were(bench: Bench, recorded: dict[int, list[State]]) -> None:
    asked: dict[str, int] = {}

    def work(name: str, request: Any) -> Any:
        turn = asked[name] = asked.get(name, 0) + 1
        if turn <= 20:
            return [
                call("save_artifact", {"name": f"{name}{turn}", "content": f"note {turn} " + "words " * 450}, f"t{name}{turn}")
            ]
        return [said(f"{name} is done")]

    planned = PlannedRun([task("alpha"), task("beta")], work)
    bench.start(
        lambda request: [said("Notes (#3).")] if request.purpose is Purpose.REFLECTOR else planned(request), window=12_000
    )
    assert (await bench.run()).exit_code == 0
    assert bench.query("SELECT count(*) FROM views")[0][0] > 5
    assert check(bench, recorded) > 60


async def test_pauses_and_questions_are_replayed_as_they_were(bench: Bench, recorded: dict[int, list[State]]) -> None:
    def work(name: str, request: Any) -> Any:
        if turns(request) == 0:
            return [call("bash", {"command": "echo hello"}, f"a{name}"), call("list_folder", {"path": "."}, f"b{name}")]
        return [said(f"{name} is done")]

    async def decide() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("approve", payload={"approval": waiting[0]["id"]})
        await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting" and one["id"] != waiting[0]["id"]]
        )
        bench.submit("pause")
        await bench.until(lambda state: state["session"]["status"] == "paused")

    tasks = [task("alpha", role="coder"), task("beta", needs=("alpha",), role="coder")]
    bench.start(PlannedRun(tasks, work=work), approval_timeout_seconds=None)
    assert (await bench.run_while(decide)).exit_code == 5
    assert check(bench, recorded) > 10

    async def deny() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("deny", payload={"approval": waiting[0]["id"]})
        await asyncio.sleep(30)

    assert (await bench.run_while(deny, resume=True)).exit_code == 0
    assert check(bench, recorded) > 25


# Sessions of other programs, whose events tell little.
