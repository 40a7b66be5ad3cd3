"""Tools that ask: a person decides, a model never does, and no answer is lost."""

from __future__ import annotations

from typing import Any

from tests.core.runtime.conftest import Bench, agent_of
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.records.model import ModelRequest


def writes(name: str, request: ModelRequest) -> Any:
    if turns(request) == 0:
        return [call("write", {"file_path": "note.txt", "content": "hello"})]
    return [said(flat(request.messages[-1:]))]


async def test_a_tool_that_asks_waits_for_a_person_and_runs_when_approved(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def approve() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        assert waiting[0]["tool"] == "write"
        assert agent_of(bench.state, "a")["status"] == "waiting"  # type: ignore[index]
        assert not (bench.workspace / "note.txt").exists()
        bench.submit("approve", payload={"approval": waiting[0]["id"]})

    assert (await bench.run_while(approve)).exit_code == 0
    assert (bench.workspace / "note.txt").read_text() == "hello"


async def test_a_denied_call_tells_the_model_why_and_does_nothing(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def deny() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("deny", payload={"approval": waiting[0]["id"], "reason": "not in this folder"})

    await bench.run_while(deny)
    assert "denied: not in this folder" in bench.tasks()["a"]["result"]
    assert not (bench.workspace / "note.txt").exists()


async def test_headless_a_question_that_nobody_answers_is_denied_and_allow_decides_beforehand(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes))
    await bench.run()
    assert "nobody answered in time" in bench.tasks()["a"]["result"]
    bench.start(PlannedRun([task("a", role="coder")], writes), allow=("write",))
    await bench.run()
    assert (bench.workspace / "note.txt").read_text() == "hello"


async def test_a_question_that_waits_survives_a_pause_and_is_asked_once(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def pause() -> None:
        await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).exit_code == 5
    assert bench.state["approvals"][0]["status"] == "waiting"

    async def approve() -> None:
        waiting = await bench.until(
            lambda state: agent_of(state, "a")["status"] == "waiting" and state["approvals"]  # type: ignore[index]
        )
        bench.submit("approve", payload={"approval": waiting[0]["id"]})

    assert (await bench.run_while(approve)).exit_code == 0
    assert len(bench.state["approvals"]) == 1


async def test_an_answer_given_while_no_host_lived_is_used_and_the_question_is_not_asked_again(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def pause() -> None:
        await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("pause")

    assert (await bench.run_while(pause)).exit_code == 5
    bench.submit("approve", payload={"approval": bench.state["approvals"][0]["id"]})
    assert (await bench.run()).exit_code == 0
    assert len(bench.state["approvals"]) == 1
    assert (bench.workspace / "note.txt").read_text() == "hello"


async def test_a_secret_that_a_model_writes_becomes_neither_a_question_nor_a_mark_in_a_file(bench: Bench) -> None:
    """The reply is stored without its secret, so the call would write the mark."""

    def leaks(name: str, request: ModelRequest) -> Any:
        if turns(request) == 0:
            return [call("write", {"file_path": "note.txt", "content": "ghp_" + "q7W2" * 9})]
        return [said(flat(request.messages[-1:]))]

    bench.start(PlannedRun([task("a", role="coder")], leaks), approval_timeout_seconds=None)
    await bench.run()
    assert "[redacted:github-token], which stands for a secret" in bench.tasks()["a"]["result"]
    assert not bench.state["approvals"]
    assert not (bench.workspace / "note.txt").exists()
