"""A plan runs: dependencies, parallel sub-agents, failures, and the planner carrying on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.agents.roles import ALWAYS
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest
from watchkeeper.runtime import background


def remember(text: str, use_id: str = "r") -> dict[str, Any]:
    return call("remember", {"text": text}, use_id)


async def test_tasks_run_in_the_order_of_their_dependencies_and_the_session_is_done(bench):
    diamond = [task("left"), task("right"), task("join", needs=("left", "right"))]
    bench.start(PlannedRun([*diamond, task("report", needs=("join",), role="writer")]))
    result = await bench.run()
    assert (result.status, result.exit_code) == ("done", 0)
    ended = [row[0] for row in bench.query("SELECT name FROM tasks ORDER BY ended_at, position")]
    assert set(ended[:2]) == {"left", "right"}
    assert ended[2:] == ["join", "report"]
    assert {one["attempt"] for one in bench.tasks().values()} == {1}
    bench.assert_sound()


async def test_independent_tasks_run_side_by_side_up_to_max_parallel(bench):
    running: list[int] = []

    def work(name: str, request: ModelRequest) -> Any:
        if turns(request) == 0:
            running.append(sum(row["status"] == "running" for row in bench.tasks().values()))
            return [remember(name)]
        return [said("done")]

    bench.start(PlannedRun([task(f"t{i}") for i in range(6)], work), max_parallel=3)
    await bench.run()
    assert max(running) == 3


async def test_the_handoff_has_its_seven_fields_and_hands_on_the_outputs_of_dependencies(bench):
    def work(name: str, request: ModelRequest) -> Any:
        if turns(request) == 0:
            made = [call("save_artifact", {"name": "figures", "content": {"n": 7}}), remember("seven it is")]
            return made if name == "make" else [call("read_artifact", {"ref": "figures"})]
        assert name == "make" or '"n": 7' in flat(request.messages)
        return [said(f"{name}: done")]

    bench.start(PlannedRun([task("make", outputs=("figures",)), task("use", needs=("make",))], work))
    await bench.run()
    use = next(one for one in bench.state["handoffs"] if one["task_id"] == bench.tasks()["use"]["id"])
    assert use.keys() >= {
        "session_id", "plan_id", "task_id", "assigned_agent", "inputs_ref", "memory_delta_ref", "expected_outputs",
    }  # fmt: skip
    assert len(use["inputs_ref"]) == 2
    assert all(ref.startswith("artifact://sha256/") for ref in [*use["inputs_ref"], use["memory_delta_ref"]])


async def test_a_task_that_fails_is_told_to_the_planner_and_resumed_with_its_memory_as_attempt_1(bench):
    failures = [ModelError("bad request", kind=ErrorKind.FAIL)]

    def work(name: str, request: ModelRequest) -> Any:
        if turns(request) < 2:
            return [remember(f"step {turns(request)}", f"t{turns(request)}")]
        if failures:
            return failures.pop()
        assert "step 1" in str(request.messages)
        return [said("finished after all")]

    bench.start(PlannedRun([task("hard")], work))
    result = await bench.run()
    hard = bench.tasks()["hard"]
    assert result.exit_code == 0
    assert (hard["status"], hard["attempt"], hard["errors"]) == ("done", 1, 1)
    assert len([one for one in bench.state["agents"] if one["task_id"]]) == 1
    bench.assert_sound()


async def test_a_fresh_rerun_starts_with_an_empty_memory(bench):
    failures = [ModelError("no", kind=ErrorKind.FAIL)]

    def work(name: str, request: ModelRequest) -> Any:
        if failures:
            return failures.pop() if turns(request) else [remember("x")]
        assert turns(request) == 0
        return [said("done")]

    again = [call("rerun_task", {"task": "hard", "reason": "it failed", "fresh": True})]
    bench.start(PlannedRun([task("hard")], work, on_failure=lambda name: again))
    await bench.run()
    assert bench.state["agents"][-1]["messages"] == 2


async def test_no_credit_pauses_everything_and_a_resume_carries_on_at_that_very_turn(bench):
    broke = [True]
    seen: list[int] = []

    def work(name: str, request: ModelRequest) -> Any:
        at = turns(request)
        if name == "long":
            seen.append(at)
            if at == 7 and broke[0]:
                return ModelError("Your credit balance is too low", kind=ErrorKind.PAUSE, status=400)
            if at < 10:
                return [remember(f"finding {at}", f"t{at}")]
        return [said(f"{name} done")]

    bench.start(PlannedRun([task("long"), task("short"), task("last", needs=("long", "short"))], work))
    result = await bench.run()
    assert (result.status, result.exit_code) == ("paused", 5)
    assert "credit" in (result.reason or "")
    assert bench.tasks()["long"]["status"] == "paused"
    broke[0] = False
    result = await bench.run()
    assert (result.status, result.exit_code) == ("done", 0)
    assert seen == [*range(8), 7, 8, 9, 10]
    assert {one["attempt"] for one in bench.tasks().values()} == {1}
    assert bench.state["plan"]["revision"] == 1
    bench.assert_sound()


async def test_a_planner_that_never_finishes_is_nudged_and_then_the_session_pauses(bench):
    bench.start(lambda request: [said("hm")])
    result = await bench.run()
    assert (result.status, result.exit_code) == ("paused", 5)
    assert "steer" in (result.reason or "")
    assert bench.query("SELECT count(*) FROM inbox WHERE kind = 'nudge'") == [(3,)]


async def test_a_plan_with_a_circle_or_an_unknown_dependency_is_refused_and_nothing_of_it_is_kept(bench):
    plans = [
        [task("a", needs=("b",)), task("b", needs=("a",))],
        [task("a", needs=("nowhere",))],
        [task("a") | {"role": "wizard"}],
        [task("a"), task("a")],
    ]

    def script(request: ModelRequest) -> Any:
        at = turns(request)
        if at < len(plans):
            return [call("create_plan", {"goal": "g", "tasks": plans[at]}, f"t{at}")]
        return [call("finish_session", {"summary": "gave up", "status": "failed"})]

    bench.start(script)
    result = await bench.run()
    assert result.exit_code == 1
    assert bench.query("SELECT count(*) FROM tasks") == [(0,)]
    refused = bench.query("SELECT status FROM tool_calls WHERE name = 'create_plan'")
    assert refused == [("error",)] * 4


async def test_a_context_stays_within_its_window_and_what_left_it_can_be_read_back(bench):
    import re

    def work(name: str, request: ModelRequest) -> Any:
        at = len(re.findall("filler", flat(request.messages)))
        seen = turns(request)
        if "message://" in str(request.messages) and seen > 2:
            if "read it back" in str(request.messages):
                return [said("done")]
            pointer = re.findall(r"message://\w+/\d+(?:-\d+)?", str(request.messages))[0]
            return [said("read it back"), call("read_back", {"pointer": pointer}, f"r{seen}")]
        return [call("save_artifact", {"name": f"f{at}{seen}", "content": "filler " * 300}, f"t{at}{seen}")]

    bench.start(PlannedRun([task("big")], work), window=10_000)
    result = await bench.run()
    assert result.exit_code == 0
    assert bench.query("SELECT count(*) FROM compactions WHERE status = 'applied'")[0][0] >= 1
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'read_back'") == [("done",)]
    bench.assert_sound()


async def test_an_endless_loop_of_the_same_call_fails_the_task(bench):
    given_up = [call("drop_task", {"task": "loop"}), call("finish_session", {"summary": "it loops"}, "f")]

    def work(name: str, request: ModelRequest) -> Any:
        return [call("recall", {"query": "x"}, f"t{turns(request)}")]

    bench.start(PlannedRun([task("loop")], work, on_failure=lambda name: given_up))
    assert (await bench.run()).exit_code == 0
    assert bench.tasks()["loop"]["status"] == "dropped"
    assert "times in a row" in bench.tasks()["loop"]["error"]


async def test_secrets_of_the_environment_reach_neither_model_nor_store(bench, monkeypatch):
    monkeypatch.setenv("DEPLOY_TOKEN", "hunter2-hunter2-hunter2")

    def work(name: str, request: ModelRequest) -> Any:
        assert "hunter2-hunter2" not in str(request.messages)
        if turns(request) == 0:
            return [said("the token is hunter2-hunter2-hunter2"), remember("use hunter2-hunter2-hunter2")]
        return [said("done")]

    bench.start(PlannedRun([task("leak")], work))
    await bench.run()
    for suffix in ("", "-wal"):
        file = bench.path.with_name(bench.path.name + suffix)
        assert not file.exists() or b"hunter2-hunter2" not in file.read_bytes()


async def test_a_task_that_can_only_fail_is_not_resumed_for_ever(bench):
    """The planner resumes whatever fails, and the task fails at once each time."""
    bench.start(
        PlannedRun([task("hopeless")], lambda name, request: ModelError("bad request", kind=ErrorKind.FAIL))
    )
    result = await bench.run()
    assert result.exit_code == 5
    assert bench.tasks()["hopeless"]["errors"] == 5
    assert bench.query("SELECT 1 FROM messages WHERE content LIKE '%failed 5 times%'")


async def test_a_server_that_repeats_its_ids_harms_neither_a_history_nor_a_rerun_that_copies_it(bench):
    failures = [ModelError("no", kind=ErrorKind.FAIL)]

    def work(name: str, request: ModelRequest) -> Any:
        contents = [message["content"] for message in request.messages]
        blocks = [block for content in contents if isinstance(content, list) for block in content]
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(ids) == len(set(ids))
        if len(ids) == 3 and failures:
            return failures.pop()
        return [call("remember", {"text": f"{len(ids)}"}, "call_0")] if len(ids) < 6 else [said("done")]

    bench.start(
        PlannedRun(
            [task("a")],
            work,
            on_failure=lambda name: [call("rerun_task", {"task": name, "reason": "it failed"})],
        )
    )
    assert (await bench.run()).exit_code == 0
    assert bench.tasks()["a"]["attempt"] == 2
    given = [
        row[0]
        for row in bench.query("SELECT tool_use_id FROM tool_calls WHERE name = 'remember' ORDER BY id")
    ]
    assert given[:3] == ["call_0", "toolu_wk_2_0", "toolu_wk_3_0"], "a made-up id names its turn"


async def test_an_agent_has_started_with_its_first_step_not_when_it_ended(bench):
    bench.start(PlannedRun([task("a")], lambda name, request: [said(f"{name} done")]))
    await bench.run()
    for created, started, ended, first in bench.query(
        "SELECT a.created_at, a.started_at, a.ended_at, min(s.started_at) FROM agents a JOIN steps s ON"
        " s.agent_id = a.id GROUP BY a.id"
    ):
        assert created <= started <= ended
        assert started == first


async def test_a_second_name_of_the_database_stops_the_host_at_its_heartbeat_and_the_run_goes_on_without_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "HEARTBEAT_SECONDS", 0.02)
    linked = asyncio.Event()

    def work(name: str, request: ModelRequest) -> Any:
        (tmp_path / "other.db").hardlink_to(bench.path)
        return linked  # the model never answers: only the heartbeat commits

    bench.start(PlannedRun([task("one")], work))
    with pytest.raises(StoreUnusable, match="2 hard links"):
        await asyncio.wait_for(bench.run(), 60)
    with pytest.raises(StoreUnusable, match="2 hard links"):
        await bench.run()
    (tmp_path / "other.db").unlink()
    bench.model.script = PlannedRun([task("one")])
    assert (await bench.run()).status == "done"
    bench.assert_sound()


class TestARoleThatIsGone:
    """A role file is removed between two hosts of a session."""

    ROLE = "---\nname: checker\ntools: read, bash\n---\nYou check.\n"

    def add_role(self, bench: Bench) -> Path:
        file = bench.workspace / ".claude" / "agents" / "checker.md"
        file.parent.mkdir(parents=True)
        file.write_text(self.ROLE)
        return file

    async def test_fails_the_task_with_its_name_and_tells_the_planner(self, bench: Bench) -> None:
        file = self.add_role(bench)
        broken = [True]

        def work(name: str, request: ModelRequest) -> Any:
            if name == "first" and broken[0]:
                return ModelError("no credit", kind=ErrorKind.PAUSE)
            return [said("done")]

        def finish(name: str) -> list[dict[str, Any]]:
            return [call("finish_session", {"summary": f"{name} could not start", "status": "failed"})]

        bench.start(
            PlannedRun([task("first"), task("check", needs=("first",), role="checker")], work, finish)
        )
        assert (await bench.run()).status == "paused"
        file.unlink()
        broken[0] = False
        assert (await bench.run()).status == "failed"
        failed = bench.tasks()["check"]
        assert failed["status"] == "failed"
        assert "the role checker no longer exists" in failed["error"]
        assert ".claude/agents" in failed["error"]
        assert failed["agent"] is None, "no agent of another role takes its place"
        assert any(
            "the role checker no longer exists" in flat(request.messages) for request in bench.model.requests
        )
        bench.assert_sound()

    async def test_leaves_an_agent_that_has_it_with_the_tools_that_every_role_may_call(self, bench):
        file = self.add_role(bench)
        broken = [True]
        offered: list[set[str]] = []

        def work(name: str, request: ModelRequest) -> Any:
            offered.append({one.name for one in request.tools})
            return ModelError("no credit", kind=ErrorKind.PAUSE) if broken[0] else [said("done")]

        bench.start(PlannedRun([task("check", role="checker")], work))
        assert (await bench.run()).status == "paused"
        assert {"read", "bash"} < offered[-1]
        file.unlink()
        broken[0] = False
        assert (await bench.run()).status == "done"
        assert offered[-1] == set(ALWAYS)
        (told,) = bench.query(
            "SELECT data FROM events WHERE kind = 'host.warning' AND data LIKE '%checker no longer exists%'"
        )
        assert "memory and artifact tools" in told[0]
