"""Between the planner and its sub-agents: whose turn it is, what must exist at an end, and what a re-run stops."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, flat, inbox_of, role_of, said, task, turns

from watchkeeper.agents.roles import SHARED_FOLDER
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest
from watchkeeper.runtime import control


def calls_of_the_planner(bench: Bench) -> int:
    [(count,)] = bench.query(
        "SELECT count(*) FROM model_calls WHERE agent_id = (SELECT planner_agent_id FROM sessions)"
    )
    return int(count)


def told(bench: Bench) -> list[str]:
    """All that the planner was sent, by request."""
    return [flat(one.messages) for one in bench.model.requests if role_of(one) == "planner"]


# --- Whose turn it is ---------------------------------------------------------------------------------------


async def test_a_plan_ends_the_planners_turn_and_tasks_that_end_well_do_not_wake_it(bench):
    bench.start(PlannedRun([task("a"), task("b"), task("c", needs=("a", "b"))]))
    assert (await bench.run()).status == "done"
    assert calls_of_the_planner(bench) == 2, "the plan, and the end"
    [_, last] = [one for one in bench.model.requests if role_of(one) == "planner"]
    assert [item["task"] for item in inbox_of(last.messages[-1])] == ["a", "b", "c"]
    bench.assert_sound()


async def test_a_failure_wakes_the_planner_with_everything_that_happened_since(bench):
    gate = asyncio.Event()

    def work(name: str, request: ModelRequest) -> Any:
        if name == "hard" and turns(request) == 0:
            return ModelError("no", kind=ErrorKind.FAIL)
        return gate if name == "long" and not gate.is_set() else [said(f"{name} is done")]

    def on_failure(name: str) -> Any:
        gate.set()
        return [call("drop_task", {"task": name})]

    tasks = [task("easy"), task("hard", needs=("easy",)), task("long")]
    bench.start(PlannedRun(tasks, work, on_failure))
    await bench.run()
    second = [one for one in bench.model.requests if role_of(one) == "planner"][1]
    assert [item["kind"] for item in inbox_of(second.messages[-1])] == ["task_done", "task_failed"]


async def test_a_plan_that_was_refused_does_not_end_the_turn(bench):
    def plan(request: ModelRequest) -> Any:
        if role_of(request) != "planner":
            return [said("done")]
        wrong = task("a") | {"role": "nobody"}
        given = [[wrong], [task("a")]]
        if turns(request) < 2:
            return [call("create_plan", {"tasks": given[turns(request)]}, f"t{turns(request)}")]
        return [call("finish_session", {"summary": "done"})]

    bench.start(plan)
    assert (await bench.run()).status == "done"
    assert calls_of_the_planner(bench) == 3


async def test_a_planner_does_not_end_the_session_over_a_message_that_it_has_not_read(bench):
    held, finishing = asyncio.Event(), asyncio.Event()

    def plan(request: ModelRequest) -> Any:
        if role_of(request) != "planner":
            return [said("done")]
        if turns(request) == 0:
            return [call("create_plan", {"tasks": [task("a")]})]
        if not held.is_set():
            finishing.set()
            return held
        return [call("finish_session", {"summary": "done"}, f"t{turns(request)}")]

    bench.start(plan)

    async def steer() -> None:
        await bench.until(lambda state: finishing.is_set())
        planner = next(one for one in bench.state["agents"] if one["role"] == "planner")
        await bench.applied(bench.submit("steer", agent_id=planner["id"], payload={"text": "also the docs"}))
        held.set()

    assert (await bench.run_while(steer)).status == "done"
    assert "also the docs" in told(bench)[-1]
    assert bench.query("SELECT count(*) FROM inbox WHERE delivered_seq IS NULL") == [(0,)]


# --- What must exist at an end ------------------------------------------------------------------------------


async def test_a_task_is_asked_once_for_the_outputs_that_it_did_not_make(bench):
    def work(name: str, request: ModelRequest) -> Any:
        if "You have not saved `fixes` and written out.md" in flat(request.messages[-1:]):
            write = call("write", {"file_path": "out.md", "content": "x"}, "w")
            return [write, call("save_artifact", {"name": "fixes", "content": "x"}, "s")]
        return [said("done")]

    wanted = task("a", role="coder") | {"expected_outputs": ["fixes", "file:out.md"]}
    bench.start(PlannedRun([wanted], work), allow=("write",))
    assert (await bench.run()).status == "done"
    assert bench.tasks()["a"]["status"] == "done"
    assert (bench.workspace / "out.md").exists()


async def test_a_task_without_its_outputs_fails_and_what_depends_on_it_waits_for_the_planner(bench):
    def on_failure(name: str) -> Any:
        assert bench.tasks()["b"]["status"] == "pending"
        return [call("drop_task", {"task": name, "reason": "there were none"})]

    wanted = task("a") | {"expected_outputs": ["fixes"]}
    bench.start(PlannedRun([wanted, task("b", needs=("a",))], on_failure=on_failure))
    await bench.run()
    assert {name: one["status"] for name, one in bench.tasks().items()} == {"a": "dropped", "b": "done"}
    assert any("expected outputs are missing: fixes" in text for text in told(bench))


@pytest.mark.parametrize("role", ["explorer", "reviewer"])
async def test_a_file_is_not_given_to_a_role_that_cannot_write(bench, role):
    wanted = task("a", role=role) | {"expected_outputs": ["file:docs/a.md"]}
    bench.start(PlannedRun([wanted]))
    await bench.run()
    result = "\n".join(told(bench))
    assert f"the role {role} cannot write the file docs/a.md" in result
    assert "coder, researcher, writer" in result
    assert bench.tasks() == {}


async def test_an_artifact_of_a_file_and_a_result_in_one_reply_end_the_task(bench):
    (bench.workspace / "report.md").write_text("# Found\n")

    def work(name: str, request: ModelRequest) -> Any:
        assert turns(request) == 0
        return [
            said("It is found."),
            call("save_artifact", {"name": "r", "file_path": "report.md", "final": True}),
        ]

    bench.start(PlannedRun([task("a") | {"expected_outputs": ["r"]}], work))
    assert (await bench.run()).status == "done"
    assert bench.tasks()["a"]["result"] == "It is found."
    assert bench.query("SELECT size, media_type FROM artifacts WHERE media_type = 'text/markdown'") == [
        (8, "text/markdown")
    ]


@pytest.mark.parametrize("path", ["../outside.txt", "missing.txt", "/etc/hostname", "folder"])
async def test_an_artifact_of_no_file_of_the_workspace_is_refused(bench, path):
    (bench.workspace / "folder").mkdir()
    (bench.workspace.parent / "outside.txt").write_text("x")

    def work(name: str, request: ModelRequest) -> Any:
        return [said("done")] if turns(request) else [call("save_artifact", {"name": "r", "file_path": path})]

    bench.start(PlannedRun([task("a")], work))
    await bench.run()
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'save_artifact'") == [("error",)]


# --- Re-runs ------------------------------------------------------------------------------------------------


class Chain:
    """`b` builds on what `a` saves. `b` asks for a command, or waits for `go_on`."""

    def __init__(self, *, same: bool, asks: bool = False) -> None:
        self.same, self.asks = same, asks
        self.go_on = asyncio.Event()
        self.made = 0
        self.tasks = [
            task("a") | {"expected_outputs": ["x"]},
            task("b", needs=("a",), role="coder"),
        ]

    def work(self, name: str, request: ModelRequest) -> Any:
        if name == "a":
            if turns(request):
                return [said("a is done")]
            self.made += 1
            return [call("save_artifact", {"name": "x", "content": "v" if self.same else f"v{self.made}"})]
        if turns(request) == 0:
            first = call("bash", {"command": "true"}) if self.asks else call("remember", {"text": "b began"})
            return [first]
        return [said("b is done")] if self.go_on.is_set() or self.made > 1 else self.go_on


@pytest.mark.parametrize("same", [True, False])
async def test_what_depends_on_a_task_that_is_run_again_stops_and_runs_again_if_its_inputs_changed(
    bench, same
):
    chain = Chain(same=same)
    bench.start(PlannedRun(chain.tasks, chain.work), approval_timeout_seconds=None)

    async def rerun() -> None:
        await bench.hanging("b")
        bench.submit(
            "rerun", task_id=bench.tasks()["a"]["id"], payload={"message": "x is wrong", "fresh": True}
        )
        await bench.until(lambda state: bench.tasks()["b"]["status"] == "stale")
        chain.go_on.set()

    assert (await bench.run_while(rerun)).status == "done"
    assert bench.tasks()["b"]["attempt"] == (1 if same else 2)
    assert bench.tasks()["b"]["status"] == "done"
    news = "A person re-runs a without its memory: x is wrong. Tasks that depend on it stop"
    assert any(news in text for text in told(bench))
    first = [flat(one.messages) for one in bench.model.requests if role_of(one) != "planner"]
    assert any("This is attempt 2. Reason: x is wrong" in text for text in first)
    bench.assert_sound()


async def test_a_dependent_task_that_asks_withdraws_its_question_when_it_stops(bench):
    chain = Chain(same=False, asks=True)
    chain.go_on.set()
    bench.start(PlannedRun(chain.tasks, chain.work), approval_timeout_seconds=None)

    async def rerun() -> None:
        await bench.waiting()
        bench.submit("rerun", task_id=bench.tasks()["a"]["id"], payload={"fresh": True})
        await bench.until(
            lambda state: [one["status"] for one in state["approvals"]] == ["cancelled", "waiting"]
        )
        bench.submit("approve", payload={"approval": bench.state["approvals"][-1]["id"]})

    assert (await bench.run_while(rerun)).status == "done"
    assert bench.tasks()["b"]["attempt"] == 2


async def test_a_fresh_attempt_is_told_what_the_earlier_one_changed(bench):
    failures = [ModelError("no", kind=ErrorKind.FAIL)]

    def work(name: str, request: ModelRequest) -> Any:
        if turns(request):
            return failures.pop() if failures else [said("done")]
        write = call("write", {"file_path": "one.py", "content": "x"}, "w")
        return [write, call("bash", {"command": "true"}, "b")]

    again = [call("rerun_task", {"task": "a", "reason": "it broke", "fresh": True})]
    bench.start(PlannedRun([task("a", role="coder")], work, lambda name: again), allow=("write", "bash"))
    await bench.run()
    text = flat([one for one in bench.model.requests if role_of(one) != "planner"][-1].messages)
    assert "This is attempt 2. Reason: it broke" in text
    assert "An earlier attempt changed these files in the workspace: one.py." in text
    assert "An earlier attempt ran commands, which may have changed files too." in text


# --- A person's changes of the plan -------------------------------------------------------------------------


async def test_a_person_adds_revises_and_drops_tasks_and_the_planner_is_told(bench):
    chain = Chain(same=True)
    bench.start(PlannedRun(chain.tasks, chain.work), approval_timeout_seconds=None)

    async def edit() -> None:
        await bench.hanging("b")
        for act, arguments, status in (
            (
                "add",
                {"name": "c", "instructions": "Check it.", "role": "reviewer", "depends_on": ["b"]},
                "applied",
            ),
            ("revise", {"task": "c", "instructions": "Check it twice."}, "applied"),
            (
                "add",
                {"name": "d", "instructions": "Write it.", "role": "coder", "depends_on": ["c"]},
                "applied",
            ),
            ("drop", {"task": "d", "reason": "not needed"}, "applied"),
            ("revise", {"task": "b", "instructions": "Other."}, "refused"),
            ("add", {"name": "e", "instructions": "x", "role": "nobody"}, "refused"),
            ("drop", {"task": "nothing"}, "refused"),
        ):
            payload = {"act": act, "arguments": arguments}
            if status == "refused":
                with pytest.raises(BadInput):
                    bench.submit("plan", payload=payload)
            else:
                await bench.applied(bench.submit("plan", payload=payload))
        chain.go_on.set()

    assert (await bench.run_while(edit)).status == "done"
    assert {name: one["status"] for name, one in bench.tasks().items()} == {
        "a": "done", "b": "done", "c": "done", "d": "dropped",
    }  # fmt: skip
    assert bench.tasks()["c"]["instructions"] == "Check it twice."
    everything = "\n".join(told(bench))
    for line in (
        "added the task c (reviewer)",
        "revised the task c",
        "dropped the task d, because: not needed.",
    ):
        assert f"A person {line}" in everything


async def test_a_planner_whose_turn_is_open_cannot_undo_what_a_person_just_changed(bench):
    held, thinking = asyncio.Event(), asyncio.Event()

    def plan(request: ModelRequest) -> Any:
        if role_of(request) != "planner":
            return ModelError("no", kind=ErrorKind.FAIL)
        if turns(request) == 0:
            return [call("create_plan", {"tasks": [task("a"), task("b", needs=("a",))]})]
        if turns(request) == 1:
            thinking.set()
            return [call("revise_task", {"task": "b", "title": "Mine"}, "late")] if held.is_set() else held
        if turns(request) == 2:
            news = flat(request.messages[-2:])
            assert "b was changed in the meantime: A person revised the task b (title)" in news
            assert "It is now pending (attempt 1, role explorer, “The person's”, depends on a" in news
            return [call("drop_task", {"task": name}, name) for name in ("a", "b")]
        return [call("finish_session", {"summary": "done"}, f"t{turns(request)}")]

    bench.start(plan)

    async def edit() -> None:
        await bench.until(lambda state: thinking.is_set())
        arguments = {"task": "b", "title": "The person's"}
        await bench.applied(bench.submit("plan", payload={"act": "revise", "arguments": arguments}))
        held.set()

    assert (await bench.run_while(edit)).status == "done"
    assert bench.tasks()["b"]["title"] == "The person's"


@pytest.mark.parametrize("act", ["add", "drop", "rerun", "cancel"])
async def test_an_act_of_a_person_applies_before_what_the_planner_decided_without_it(bench, act):
    """The planner's turn is open: its own change of the same task fails, and says how the task is now."""
    held, thinking = asyncio.Event(), asyncio.Event()
    late = {
        "add": call("add_task", task("c"), "late"),
        "drop": call("revise_task", {"task": "b", "title": "Mine"}, "late"),
        "rerun": call("drop_task", {"task": "a"}, "late"),
        "cancel": call("revise_task", {"task": "b", "title": "Mine"}, "late"),
    }[act]
    errors: list[str] = []

    def plan(request: ModelRequest) -> Any:
        if role_of(request) != "planner":
            return ModelError("no", kind=ErrorKind.FAIL)
        if turns(request) == 0:
            return [call("create_plan", {"tasks": [task("a"), task("b", needs=("a",))]})]
        if turns(request) == 1:
            thinking.set()
            return [late] if held.is_set() else held
        if turns(request) == 2:
            errors.append(flat(request.messages[-2:]))
        return [call("drop_task", {"task": name}, f"{name}{turns(request)}") for name in ("a", "b", "c")] + [
            call("finish_session", {"summary": "done"}, f"t{turns(request)}")
        ]

    bench.start(plan)

    async def edit() -> None:
        await bench.until(lambda state: thinking.is_set())
        ids = {name: one["id"] for name, one in bench.tasks().items()}
        if act == "add":
            added = {"name": "c", "instructions": "Theirs.", "role": "coder"}
            command = bench.submit("plan", payload={"act": "add", "arguments": added})
        elif act == "drop":
            command = bench.submit("plan", payload={"act": "drop", "arguments": {"task": "b"}})
        elif act == "rerun":
            command = bench.submit("rerun", task_id=ids["a"], payload={"message": "wrong\nkey"})
        else:
            command = bench.submit("cancel", task_id=ids["b"])
        await bench.applied(command)
        held.set()

    await bench.run_while(edit)
    state = {
        "add": "c was changed in the meantime: A person added the task c (coder): c. It is now ",
        "drop": "b was changed in the meantime: A person dropped the task b. It is now dropped",
        "rerun": "a was changed in the meantime: A person re-runs a: wrong key. It is now ",
        "cancel": "b was changed in the meantime: a person cancelled it. It is now cancelled",
    }[act]
    assert state in errors[0]
    assert f"(attempt {2 if act == 'rerun' else 1}, role " in errors[0]


async def test_the_planner_reads_a_line_of_every_act_of_a_person(bench):
    """Acts that leave the plan as it is do not wake it: it reads them with its next message."""
    chain = Chain(same=True)
    bench.start(PlannedRun(chain.tasks, chain.work), approval_timeout_seconds=None)

    async def act() -> None:
        await bench.hanging("b")
        [worker] = [one["id"] for one in bench.state["agents"] if one["name"] == "b"]
        before = calls_of_the_planner(bench)
        await bench.applied(bench.submit("steer", agent_id=worker, payload={"text": "two\nlines"}))
        await bench.applied(bench.submit("set_budget", payload={"kind": "usd", "amount": 50}))
        await bench.applied(bench.submit("pause", agent_id=worker))
        await bench.applied(bench.submit("resume", agent_id=worker))
        assert calls_of_the_planner(bench) == before
        arguments = {"name": "c", "instructions": "x", "role": "coder", "depends_on": ["b"]}
        await bench.applied(bench.submit("plan", payload={"act": "add", "arguments": arguments}))
        chain.go_on.set()

    assert (await bench.run_while(act)).status == "done"
    everything = "\n".join(told(bench))
    for line in (
        "A person sent b a message.\n",
        "A person set the session's budget: 50 usd.\n",
        "A person paused b; it continues when you or a person resumes it.\n",
        "A person resumed b.\n",
        "A person added the task c (coder): c.",
    ):
        assert line in everything


@pytest.mark.parametrize(
    ("act", "arguments", "reason"),
    [
        ("add", {"name": "a", "instructions": "x", "role": "coder"}, "two tasks are named 'a'"),
        ("add", {"name": "c", "instructions": " ", "role": "coder"}, "`instructions` must be a non-empty"),
        ("add", {"name": "c", "instructions": "x", "role": "nobody"}, "no role 'nobody'"),
        (
            "add",
            {"name": "c", "instructions": "x", "role": "coder", "depends_on": ["z"]},
            "names unknown tasks: z",
        ),
        (
            "add",
            {"name": "c", "instructions": "x", "role": "coder", "depends_on": ["c"]},
            "dependency cycle: c",
        ),
        ("revise", {"task": "a", "depends_on": ["b"]}, "dependency cycle"),
        ("revise", {"task": "b", "instructions": ""}, "`instructions` must be a non-empty"),
        ("revise", {"task": "b"}, "no change to b"),
        ("drop", {"task": "z"}, "no task 'z'"),
        ("burn", {"task": "a"}, "unknown plan action burn"),
    ],
)
async def test_a_change_of_the_plan_that_cannot_be_is_refused_before_it_is_queued(
    bench, act, arguments, reason
):
    bench.start(PlannedRun([task("a"), task("b", needs=("a",))], lambda name, request: [said("done")]))
    assert (await bench.run()).status == "done"
    with pytest.raises(BadInput, match=re.escape(reason)):
        control.submit(bench.path, bench.session, "plan", payload={"act": act, "arguments": arguments})


# --- Denials ------------------------------------------------------------------------------------------------


async def test_after_a_denial_the_rest_of_the_reply_does_not_run(bench):
    def work(name: str, request: ModelRequest) -> Any:
        if turns(request):
            return [said("done")]
        return [
            call("bash", {"command": "touch one"}, "1"),
            call("write", {"file_path": "two", "content": "x"}, "2"),
            call("remember", {"text": "both are there"}, "3"),
        ]

    bench.coder(work, allow=("write",))

    async def deny() -> None:
        [question] = await bench.waiting()
        bench.submit("deny", payload={"approval": question["id"], "reason": "not now"})

    await bench.run_while(deny)
    assert not list(bench.workspace.iterdir())
    rows = bench.query(
        "SELECT name, status FROM tool_calls WHERE name IN ('bash', 'write', 'remember') ORDER BY id"
    )
    assert rows == [("bash", "denied"), ("write", "cancelled"), ("remember", "cancelled")]
    text = flat(bench.model.requests[-1].messages) + flat(bench.model.requests[-2].messages)
    assert "A person denied this: 'not now'. Nothing was done." in text


# --- What a sub-agent is told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_parallel", "told_so"), [(2, {"fix", "other"}), (1, set())], ids=["two at a time", "one at a time"]
)
async def test_an_agent_that_may_change_files_is_told_of_others_in_its_folder(bench, max_parallel, told_so):
    tasks = [task("fix"), task("other"), task("look"), task("last", needs=("fix", "other", "look"))]
    roles = {"fix": "coder", "other": "coder", "look": "explorer", "last": "coder"}
    bench.start(PlannedRun([one | {"role": roles[one["name"]]} for one in tasks]), max_parallel=max_parallel)
    assert (await bench.run()).status == "done"
    first = [flat(one.messages) for one in bench.model.requests if role_of(one) != "planner"]
    found = {
        name for name in roles for text in first if f'"task": "{name}"' in text and SHARED_FOLDER in text
    }
    assert found == told_so
    assert not any(SHARED_FOLDER in one.system for one in bench.model.requests)


async def test_an_unknown_artifact_is_answered_with_those_that_exist(bench):
    def work(name: str, request: ModelRequest) -> Any:
        save = [call("save_artifact", {"name": f"part/{n}", "content": f"{n}"}, f"s{n}") for n in range(23)]
        looked = [
            call("read_artifact", {"ref": "part/x"}, "r"),
            call("merge_artifacts", {"inputs": ["z*"], "name": "m"}, "m"),
        ]
        return [save, looked, [said("done")]][turns(request)]

    bench.start(PlannedRun([task("a")], work))
    assert (await bench.run()).status == "done"
    text = flat([one for one in bench.model.requests if role_of(one) != "planner"][-1].messages)
    assert "no artifact 'part/x'; existing artifacts: part/22, part/21, " in text
    assert "part/3, and 3 more" in text
    assert "no artifact 'z*'; existing artifacts: part/22" in text
    assert "sha256" not in text
