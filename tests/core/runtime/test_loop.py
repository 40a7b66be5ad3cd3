"""One agent's loop: what it accepts of a reply, what it tells the model of its calls, and how its turns end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task, turns

from watchkeeper.agents import loop
from watchkeeper.agents.environment import LoopSettings
from watchkeeper.agents.tools.workers import WorkerPool
from watchkeeper.records.messages import ErrorKind, Message, ModelError, ModelRequest, Reply, Usage
from watchkeeper.records.states import ToolCallStatus
from watchkeeper.runtime import host_factory
from watchkeeper.store.agents import Call, load_calls

# --- a reply ------------------------------------------------------------------------------------------------


def accepted(
    *blocks: dict[str, Any], taken: set[str] | None = None, **about: Any
) -> tuple[Any, dict[str, str]]:
    reply = Reply(list(blocks), "tool_use", Usage(), **about)
    return loop.usable(reply, lambda content: content, set() if taken is None else taken, 7)


def test_of_a_reply_only_empty_texts_are_left_out_and_an_empty_reply_says_so() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "s"}
    assert accepted(said(" \n"), thinking, said("x"), {"type": "text"}) == ([thinking, said("x")], {})
    assert accepted(said("")) == ([said("(an empty reply)")], {})


def test_every_call_has_an_id_that_no_other_call_of_the_history_has() -> None:
    taken = {"old", "toolu_wk_7_0"}
    blocks, _ = accepted(
        *(call("read", {}, name) for name in ("new", "old", "new")),
        call("read", {}) | {"id": None},
        taken=taken,
    )
    assert [block["id"] for block in blocks] == ["new", "toolu_wk_7_1", "toolu_wk_7_2", "toolu_wk_7_3"]
    assert taken == {"old", "new", *(f"toolu_wk_7_{number}" for number in range(4))}


def test_a_call_whose_input_is_broken_is_named_by_the_id_that_it_has_now() -> None:
    blocks, invalid = accepted(
        call("read", {}, "a") | {"input": "{"}, taken={"a"}, invalid_inputs={"a": "cut"}
    )
    assert (blocks[0]["input"], invalid) == ({}, {"toolu_wk_7_0": "cut"})


def test_the_ids_of_a_history_are_those_of_its_calls() -> None:
    contents = (
        "text",
        [said("x"), call("read", {}, "a")],
        [{"type": "tool_result", "tool_use_id": "b", "id": "c"}],
    )
    assert loop.used_ids([Message(1, "user", content, 1, 1, 0.0) for content in contents]) == {"a"}


def test_the_text_of_a_reply_is_its_texts_line_by_line() -> None:
    assert loop.text_of([said(" one"), call("read", {}), {"type": "text"}, said("two ")]) == "one\n\ntwo"


# --- its calls ----------------------------------------------------------------------------------------------

CALL = Call(1, 0, "use", "read", {"path": "x"}, True, ToolCallStatus.DONE, "text", False)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("text", "text"),
        ("", "(no output)"),
        (None, "(no output)"),
        ([], "(no output)"),
        ([said("x")], [said("x")]),
    ],
)
def test_a_model_is_told_what_came_of_each_call_and_whether_it_failed(result: Any, shown: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "use", "content": shown}
    ended = replace(CALL, result=result)
    assert loop.results_of([ended, replace(ended, is_error=True)]) == [block, block | {"is_error": True}]


def test_only_a_call_that_succeeded_finishes_or_compacts() -> None:
    failed = replace(CALL, status=ToolCallStatus.ERROR)
    assert loop.succeeded([failed, replace(CALL, name="other")], "read") is None
    assert loop.succeeded([failed, CALL], "read") == {"path": "x"}
    assert loop.succeeded([replace(CALL, arguments="x")], "read") == {}


def test_the_same_calls_are_endless_only_when_they_come_turn_after_turn() -> None:
    other, many = replace(CALL, arguments={"path": "y"}), loop.SAME_CALLS_IN_A_ROW
    seen = loop.Repetition()
    assert [seen.is_endless([CALL]) for _ in range(many - 1)] == [False] * (many - 1)
    assert not seen.is_endless([CALL, CALL])
    assert not seen.is_endless([replace(CALL, name="write")])
    assert [seen.is_endless([other]) for _ in range(many + 1)] == [False] * (many - 1) + [True, True]


def test_an_edited_call_runs_with_the_edit_and_keeps_the_models_own_input() -> None:
    class Reads:
        def all(self, sql: str, parameters: Any) -> Any:
            shared = ("bash", 0, "done", '"out"', 1)
            return [
                (1, 0, "a", *shared, None),
                (2, 1, "b", *shared, '{"command":"edited"}'),
                (3, 2, "c", "bash", 1, "pending", None, 0, None),
            ]

    content = [said("x"), call("bash", {"command": "one"}, "a"), call("bash", {"command": "two"}, "b")]
    first, second, third = load_calls(Reads(), "agent", 1, content)
    assert (first.arguments, first.original) == ({"command": "one"}, None)
    assert (second.arguments, second.original) == ({"command": "edited"}, {"command": "two"})
    assert (third.arguments, third.original, third.result) == (None, None, None)
    assert (first.result, first.is_error, first.idempotent) == ("out", True, False)
    assert (third.is_error, third.idempotent, third.status) == (False, True, ToolCallStatus.PENDING)
    assert load_calls(Reads(), "agent", 1, "text")[0].arguments is None


# --- turns --------------------------------------------------------------------------------------------------


def one_task(work: Any) -> PlannedRun:
    return PlannedRun(
        [task("one")], work, lambda name: [call("drop_task", {"task": name, "reason": "it failed"})]
    )


def events(bench: Bench, kind: str) -> list[Any]:
    return [json.loads(row[0]) for row in bench.query("SELECT data FROM events WHERE kind = ?", kind)]


@pytest.mark.parametrize("now", [False, True])
async def test_a_pause_is_recorded_with_its_reason_whether_it_waits_for_the_step_or_not(bench, now):
    gate = asyncio.Event()

    def work(name: str, request: ModelRequest) -> Any:
        if not gate.is_set():
            return gate
        return [said("done")] if turns(request) else [call("remember", {"text": "one"})]

    bench.start(one_task(work))

    async def pause() -> None:
        await bench.until(lambda state: bench.model.hanging)
        bench.runtime.hosts[bench.session].pause_all("the lid was closed", now=now)
        if not now:
            gate.set()
        await asyncio.Event().wait()  # the run ends first

    assert (await bench.run_while(pause)).exit_code == 5
    for table in ("tasks", "agents"):
        assert ("the lid was closed",) in bench.query(f"SELECT status_reason FROM {table}")
    assert ("paused", "the lid was closed") in bench.query("SELECT activity, detail FROM live")
    assert [one["turn"] for one in events(bench, "model.abandoned")] == ([1] if now else [])
    gate.set()
    assert (await bench.run()).exit_code == 0


async def test_an_agent_takes_no_more_turns_than_its_settings_allow(bench, monkeypatch):
    monkeypatch.setattr(host_factory, "LoopSettings", partial(LoopSettings, most_turns=5))
    bench.start(
        one_task(
            lambda name, request: [call("remember", {"text": f"turn {turns(request)}"}, f"t{turns(request)}")]
        )
    )
    await bench.run()
    assert bench.query("SELECT error FROM tasks") == [("the agent did not finish within 5 turns",)]
    assert bench.query("SELECT turn FROM agents WHERE task_id IS NOT NULL") == [(5,)]


async def test_a_prompt_that_is_too_long_is_digested_once_a_call_and_then_fails_the_task(bench):
    asked: list[int] = []

    def work(name: str, request: ModelRequest) -> Any:
        asked.append(len(request.messages))
        if len(asked) <= 8:
            return [
                call("remember", {"text": "x " * 500 + str(len(asked))}, f"t{turns(request)}"),
                said("y " * 300),
            ]
        return ModelError("prompt is too long", kind=ErrorKind.COMPACT)

    bench.start(one_task(work))
    await bench.run()
    assert len(asked) == 10, "eight turns, and one call before and after the digest"
    assert asked[9] < asked[8]
    assert "too long for" in bench.query("SELECT error FROM tasks")[0][0]
    assert bench.query("SELECT reason FROM compactions WHERE trigger = 'overflow'") == [("digest",)]
    assert len(events(bench, "model.error")) == 2


async def test_each_turn_of_a_task_and_a_failure_are_kept_with_their_place_and_a_text_of_bounded_length(
    bench: Bench,
) -> None:
    gate = asyncio.Event()

    def work(name: str, request: ModelRequest) -> Any:
        if turns(request) == 2 and not gate.is_set():
            return gate
        if turns(request) > 2:
            return ModelError("x" * 900, kind=ErrorKind.FAIL)
        return [call("remember", {"text": f"turn {turns(request)}"}, f"t{turns(request)}"), said("z" * 900)]

    bench.start(one_task(work))

    async def look() -> None:
        await bench.until(lambda state: bench.model.hanging)
        ((token, agent),) = bench.query("SELECT resume_token, assigned_agent FROM tasks")
        assert token == f"{agent}:2:5", "its second turn, whose results are its fifth message"
        gate.set()
        await asyncio.Event().wait()  # the run ends first

    await bench.run_while(look)
    assert [len(one["error"]) for one in events(bench, "model.error")] == [500]
    timed = [one["seconds"] for kind in ("model.replied", "tool.done") for one in events(bench, kind)]
    assert timed == [round(one, 3) for one in timed], "to the millisecond"
    assert max(len(one["preview"]) for one in events(bench, "model.replied")) == 200


async def test_the_shell_of_an_agent_is_freed_when_it_ends_and_not_while_it_waits_for_news(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []
    real = WorkerPool.release

    async def release(self: WorkerPool, agent_id: str, **options: bool) -> None:
        freed.append(agent_id)
        await real(self, agent_id, **options)

    monkeypatch.setattr(WorkerPool, "release", release)
    bench.start(one_task(lambda name, request: [said("done")]))
    assert (await bench.run()).exit_code == 0
    (planner,) = bench.query("SELECT planner_agent_id FROM sessions")[0]
    assert sorted(freed) == sorted(row[0] for row in bench.query("SELECT id FROM agents"))
    assert freed[-1] == planner
    assert [one["items"] for one in events(bench, "inbox.delivered")] == [["task_done"]]
