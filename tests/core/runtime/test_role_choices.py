"""A cloned workspace and a planner choose models in a run: what agents got, what people see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.core.roles.test_role_models import CHEAP, DEAR, MIDDLE, put
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task

from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import allow_more_models

AGENTS = ".claude/agents"


def start(bench: Bench, tasks: list[dict[str, Any]], work: Any = None, **settings: Any) -> None:
    bench.model.script = PlannedRun(tasks, work, lambda name: [call("resume_task", {"task": name})])
    bench.session = bench.runtime.start(
        "reach the goal", workspace=bench.workspace, model=MIDDLE,
        settings=SessionSettings(approval_timeout_seconds=0.0, **settings),
    )  # fmt: skip


def models(bench: Bench) -> dict[str, str]:
    return dict(bench.query("SELECT role, model FROM agents"))


def warnings(bench: Bench) -> list[str]:
    return [row[0] for row in bench.query("SELECT data FROM events WHERE kind = 'host.warning'")]


async def test_a_dearer_choice_of_the_workspace_is_not_used_and_the_run_says_so(bench: Bench) -> None:
    put(bench.workspace / AGENTS, "checker", DEAR)
    put(bench.workspace / AGENTS, "counter", CHEAP)
    put(bench.workspace / AGENTS, "planner", DEAR)
    start(bench, [task("check", role="checker"), task("count", role="counter")])
    assert (await bench.run()).status == "done"
    assert models(bench) == {"planner": MIDDLE, "checker": MIDDLE, "counter": CHEAP}
    said_of = [line for line in warnings(bench) if f"--allow-model {DEAR}" in line]
    assert len(said_of) == 2
    assert all(".claude/agents/" in line and "$5 in, $25 out" in line for line in said_of)
    state = bench.state
    roles = {one["role"]: one for one in state["session"]["roles"]}
    source = f"{AGENTS}/checker.md"
    noted = {"role": "checker", "source": source, "model": MIDDLE, "unconfirmed": DEAR}
    assert roles["checker"] == noted | {"effort": None, "effort_used": None}
    assert roles["counter"]["model"] == CHEAP
    assert roles["explorer"]["source"] == "built-in"
    tasks = bench.tasks()
    assert (tasks["count"]["role_source"], tasks["count"]["model"]) == (f"{AGENTS}/counter.md", CHEAP)
    bench.assert_sound()


async def test_what_the_user_allowed_is_used(bench: Bench) -> None:
    put(bench.workspace / AGENTS, "checker", DEAR)
    put(bench.workspace / AGENTS, "counter", DEAR)
    both = [task("check", role="checker"), task("count", role="counter")]
    start(bench, both, allow_models=(f"checker={DEAR}",))
    await bench.run()
    assert models(bench) == {"planner": MIDDLE, "checker": DEAR, "counter": MIDDLE}


async def test_a_file_that_changes_later_is_judged_by_the_next_host_and_an_answer_is_remembered(bench):
    put(bench.workspace / AGENTS, "checker", CHEAP)
    broken = [True]

    def work(name: str, request: ModelRequest) -> Any:
        broke = name == "first" and broken[0]
        return ModelError("no credit", kind=ErrorKind.PAUSE) if broke else [said("done")]

    start(bench, [task("first"), task("second", needs=("first",), role="checker")], work)
    assert (await bench.run()).status == "paused"
    put(bench.workspace / AGENTS, "checker", DEAR)
    allow_more_models(bench.path, bench.session, [f"other={DEAR}"])
    broken[0] = False
    assert (await bench.run()).status == "done"
    assert models(bench)["checker"] == MIDDLE
    assert any(DEAR in line for line in warnings(bench))
    settings = bench.state["session"]["settings"]
    assert settings["allow_models"] == [f"other={DEAR}"]


async def test_a_planner_makes_no_task_dearer(bench: Bench, tmp_path: Path) -> None:
    put(tmp_path / "config/agents", "writer", CHEAP)
    tasks = [
        task("dear") | {"model": DEAR},
        task("cheap") | {"model": CHEAP},
        task("offline") | {"model": "offline/surveyor"},
        task("mine", role="writer") | {"model": MIDDLE},
    ]
    start(bench, tasks)
    assert (await bench.run()).status == "done"
    used = {one["name"]: one["model"] for one in bench.state["plan"]["tasks"]}
    assert used == {"dear": MIDDLE, "cheap": CHEAP, "offline": MIDDLE, "mine": CHEAP}
    assert sum("the planner wants" in line for line in warnings(bench)) == 3
    start(bench, [task("dear") | {"model": DEAR}], allow_models=(DEAR,))
    await bench.run()
    assert [one["model"] for one in bench.state["plan"]["tasks"]] == [DEAR]
