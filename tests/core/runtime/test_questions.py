"""Tools that ask: a person decides, a model never does, and no answer is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench, agent_of
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.records.model import ModelRequest
from watchkeeper.runtime.driving import Asking
from watchkeeper.store.presence import Presence, is_watched


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


# --- calls that repeat -----------------------------------------------------------------------------------------------


def repeats(*commands: str) -> Any:
    """A coder that runs these commands, one a turn, and then says what its last call came to."""

    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if turn < len(commands):
            return [call("bash", {"command": commands[turn]}, f"t{turn}")]
        return [said(flat(request.messages[-1:]))]

    return work


async def test_a_fourth_identical_call_of_effect_is_asked_about_though_the_tool_is_allowed(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], repeats(*["echo x >> log"] * 6)), allow=("bash",))
    await bench.run()
    assert (bench.workspace / "log").read_text() == "x\n" * 3
    assert "ran 3 times already" in bench.tasks()["a"]["result"]
    causes = {one["cause"] for one in bench.state["approvals"]}
    assert causes == {"repetition"}


async def test_identical_calls_of_one_reply_count_like_those_of_several(bench: Bench) -> None:
    def eleven(name: str, request: ModelRequest) -> Any:
        if turns(request) == 0:
            return [call("bash", {"command": "echo x >> log"}, f"t{number}") for number in range(11)]
        return [said("done")]

    bench.start(PlannedRun([task("a", role="coder")], eleven), allow=("bash",))
    await bench.run()
    assert (bench.workspace / "log").read_text() == "x\n" * 3


@pytest.mark.parametrize("between", ["read", "cycle"])
async def test_calls_that_only_look_or_repeat_themselves_do_not_hide_a_repetition(bench: Bench, between: str) -> None:
    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if turn >= 10:
            return [said("done")]
        if turn % 2 == 0:
            return [call("bash", {"command": "echo x >> log"}, f"t{turn}")]
        if between == "read":
            return [call("list_folder", {"path": ".", "page": turn}, f"t{turn}")]
        return [call("bash", {"command": "echo y >> other"}, f"t{turn}")]

    bench.start(PlannedRun([task("a", role="coder")], work), allow=("bash",))
    await bench.run()
    assert (bench.workspace / "log").read_text() == "x\n" * 3


async def test_a_check_that_runs_again_after_each_change_is_no_repetition(bench: Bench) -> None:
    commands = [text for number in range(5) for text in (f"echo {number} >> source", "echo checked >> checks")]
    bench.start(PlannedRun([task("a", role="coder")], repeats(*commands)), allow=("bash",))
    await bench.run()
    assert (bench.workspace / "checks").read_text() == "checked\n" * 5
    assert not bench.state["approvals"]


async def test_a_person_may_let_an_identical_call_run_once_more(bench: Bench) -> None:
    bench.start(
        PlannedRun([task("a", role="coder")], repeats(*["echo x >> log"] * 4)), allow=("bash",), approval_timeout_seconds=None
    )

    async def approve() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        assert "ran 3 times already" in waiting[0]["note"]
        bench.submit("approve", payload={"approval": waiting[0]["id"]})

    await bench.run_while(approve)
    assert (bench.workspace / "log").read_text() == "x\n" * 4


# --- an agent that ends while it asks --------------------------------------------------------------------------------


async def test_what_a_cancelled_attempt_never_began_is_cancelled_and_nobody_is_asked_any_more(bench: Bench) -> None:
    def two(name: str, request: ModelRequest) -> Any:
        if turns(request) == 0:
            return [call("bash", {"command": "echo 1"}, "t1"), call("bash", {"command": "echo 2"}, "t2")]
        return [said("done")]

    bench.start(PlannedRun([task("a", role="coder")], two), approval_timeout_seconds=None)

    async def cancel() -> None:
        await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("cancel")

    await bench.run_while(cancel)
    assert set(bench.query("SELECT status FROM tool_calls WHERE name = 'bash'")) == {("cancelled",)}
    assert [one["status"] for one in bench.state["approvals"]] == ["cancelled"]
    assert bench.kinds().count("tool.cancelled") == 2


async def test_an_attempt_that_is_resumed_after_a_cancel_is_told_what_did_not_run(bench: Bench) -> None:
    def asks(name: str, request: ModelRequest) -> Any:
        return [call("bash", {"command": "echo 1 >> log"})] if turns(request) == 0 else [said(flat(request.messages))]

    bench.start(PlannedRun([task("a", role="coder")], asks), approval_timeout_seconds=None)

    async def cancel() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        agent = waiting[0]["agent_id"]
        await bench.applied(bench.submit("cancel", task_id=waiting[0]["task_id"]))
        bench.submit("resume", agent_id=agent)

    await bench.run_while(cancel)
    assert "[not run] The agent was cancelled before this call began" in bench.tasks()["a"]["result"]
    assert not (bench.workspace / "log").exists()


# --- who can answer --------------------------------------------------------------------------------------------------


async def test_a_session_that_somebody_watches_asks_though_its_time_out_is_zero(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=0.0)
    presence = Presence(bench.path, bench.session)

    async def approve() -> None:
        waiting = await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("approve", payload={"approval": waiting[0]["id"]})

    try:
        await bench.run_while(approve)
    finally:
        presence.close()
    assert (bench.workspace / "note.txt").read_text() == "hello"


async def test_a_question_with_time_out_zero_is_denied_when_the_last_who_watched_has_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper.agents.toolbox.PRESENCE_SECONDS", 0.01)
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=0.0)
    presences = [Presence(bench.path, bench.session), Presence(bench.path, bench.session)]

    async def leave() -> None:
        for presence in presences:
            await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
            presence.close()

    await bench.run_while(leave)
    assert "nobody answered in time" in bench.tasks()["a"]["result"]


def test_a_presence_of_another_process_is_seen_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "w.db"
    program = (
        "import sys; from pathlib import Path; from watchkeeper.store.presence import Presence\n"
        "held = Presence(Path(sys.argv[1]), 's'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == b"held\n"
        assert is_watched(path, "s")
        assert not is_watched(path, "t")
        watcher.kill()
        watcher.wait()
        assert not is_watched(path, "s")


@pytest.mark.parametrize(
    ("unattended", "said", "stored", "wanted"),
    [
        (True, None, None, 0.0),
        (True, None, 0.0, 0.0),
        (True, 30.0, 0.0, 30.0),
        (True, None, 30.0, 30.0),
        (False, None, None, None),
        (False, None, 0.0, None),
        (False, 5.0, None, 5.0),
        (False, None, 5.0, 5.0),
    ],
)
def test_the_time_out_belongs_to_the_host_that_runs(
    unattended: bool, said: float | None, stored: float | None, wanted: float | None
) -> None:
    assert Asking(unattended=unattended, timeout_seconds=said).seconds(stored) == wanted
