"""Tools that ask: a person decides, a model never does, and no answer is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench, agent_of
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import ModelRequest
from watchkeeper.runtime.run_session import Asking
from watchkeeper.store.fork import fork_session
from watchkeeper.store.lease import Presence, is_watched


def writes(name: str, request: ModelRequest) -> Any:
    if turns(request) == 0:
        return [call("write", {"file_path": "note.txt", "content": "hello"})]
    return [said(flat(request.messages[-1:]))]


async def test_a_tool_that_asks_waits_for_a_person_and_runs_when_approved(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def approve() -> None:
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
        assert waiting[0]["tool"] == "write"
        assert agent_of(bench.state, "a")["status"] == "waiting"  # type: ignore[index]
        assert not (bench.workspace / "note.txt").exists()
        bench.submit("approve", payload={"approval": waiting[0]["id"]})

    assert (await bench.run_while(approve)).exit_code == 0
    assert (bench.workspace / "note.txt").read_text() == "hello"


async def test_a_denied_call_tells_the_model_why_and_does_nothing(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def deny() -> None:
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
        bench.submit("deny", payload={"approval": waiting[0]["id"], "reason": "not in this folder"})

    await bench.run_while(deny)
    assert "denied: not in this folder" in bench.tasks()["a"]["result"]
    assert not (bench.workspace / "note.txt").exists()


async def test_headless_a_question_that_nobody_answers_is_denied_and_allow_decides_beforehand(
    bench: Bench,
) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes))
    await bench.run()
    assert "the approval timed out" in bench.tasks()["a"]["result"]
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


async def test_an_answer_given_while_no_host_lived_is_used_and_the_question_is_not_asked_again(
    bench: Bench,
) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def pause() -> None:
        await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("pause")

    assert (await bench.run_while(pause)).exit_code == 5
    bench.submit("approve", payload={"approval": bench.state["approvals"][0]["id"]})
    assert (await bench.run()).exit_code == 0
    assert len(bench.state["approvals"]) == 1
    assert (bench.workspace / "note.txt").read_text() == "hello"


async def test_a_secret_that_a_model_writes_becomes_neither_a_question_nor_a_mark_in_a_file(
    bench: Bench,
) -> None:
    """The reply is stored without its secret, so the call would write the mark."""

    def leaks(name: str, request: ModelRequest) -> Any:
        if turns(request) == 0:
            return [call("write", {"file_path": "note.txt", "content": "ghp_" + "q7W2" * 9})]
        return [said(flat(request.messages[-1:]))]

    bench.start(PlannedRun([task("a", role="coder")], leaks), approval_timeout_seconds=None)
    await bench.run()
    assert "[redacted:github-token], which replaces a secret" in bench.tasks()["a"]["result"]
    assert not bench.state["approvals"]
    assert not (bench.workspace / "note.txt").exists()


# --- calls that repeat --------------------------------------------------------------------------------------


def repeats(*commands: str) -> Any:
    """A coder that runs these commands, one a turn, and then says what its last call came to."""

    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if turn < len(commands):
            return [call("bash", {"command": commands[turn]}, f"t{turn}")]
        return [said(flat(request.messages[-1:]))]

    return work


async def test_a_fourth_identical_call_of_effect_is_asked_about_though_the_tool_is_allowed(
    bench: Bench,
) -> None:
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
async def test_calls_that_only_look_or_repeat_themselves_do_not_hide_a_repetition(
    bench: Bench, between: str
) -> None:
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
    commands = [
        text for number in range(5) for text in (f"echo {number} >> source", "echo checked >> checks")
    ]
    bench.start(PlannedRun([task("a", role="coder")], repeats(*commands)), allow=("bash",))
    await bench.run()
    assert (bench.workspace / "checks").read_text() == "checked\n" * 5
    assert not bench.state["approvals"]


async def test_a_person_may_let_an_identical_call_run_once_more(bench: Bench) -> None:
    bench.start(
        PlannedRun([task("a", role="coder")], repeats(*["echo x >> log"] * 4)),
        allow=("bash",),
        approval_timeout_seconds=None,
    )

    async def approve() -> None:
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
        assert "ran 3 times already" in waiting[0]["note"]
        bench.submit("approve", payload={"approval": waiting[0]["id"]})

    await bench.run_while(approve)
    assert (bench.workspace / "log").read_text() == "x\n" * 4


# --- an agent that ends while it asks -----------------------------------------------------------------------


async def test_what_a_cancelled_attempt_never_began_is_cancelled_and_nobody_is_asked_any_more(
    bench: Bench,
) -> None:
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
        return (
            [call("bash", {"command": "echo 1 >> log"})]
            if turns(request) == 0
            else [said(flat(request.messages))]
        )

    bench.start(PlannedRun([task("a", role="coder")], asks), approval_timeout_seconds=None)

    async def cancel() -> None:
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
        agent = waiting[0]["agent_id"]
        bench.submit("cancel", task_id=waiting[0]["task_id"])
        bench.submit("resume", agent_id=agent)  # both are queued before the host looks

    await bench.run_while(cancel)
    assert "[not run] The agent was cancelled before this call began" in bench.tasks()["a"]["result"]
    assert not (bench.workspace / "log").exists()


# --- who can answer -----------------------------------------------------------------------------------------


async def test_a_session_that_somebody_watches_asks_though_its_time_out_is_zero(bench: Bench) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=0.0)
    presence = Presence(bench.path, bench.session)

    async def approve() -> None:
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
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
    assert "the approval timed out" in bench.tasks()["a"]["result"]


def test_a_presence_of_another_process_is_seen_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "w.db"
    program = (
        "import sys; from pathlib import Path; from watchkeeper.store.lease import Presence\n"
        "held = Presence(Path(sys.argv[1]), 's'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as watcher:
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


# --- what a person answers ----------------------------------------------------------------------------------


def runs(*calls: tuple[str, dict[str, Any]]) -> Any:
    """A coder that makes these calls, one a turn, and then says all that it was told."""

    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if turn < len(calls):
            return [call(calls[turn][0], calls[turn][1], f"t{turn}")]
        return [said(flat(request.messages))]

    return work


def shell(*commands: str) -> Any:
    return runs(*(("bash", {"command": command}) for command in commands))


def answers(bench: Bench, *given: dict[str, Any]) -> Any:
    """Answers the questions that come, one after the other, with these payloads; `kind` says how."""

    async def answer() -> None:
        seen: set[str] = set()
        for payload in given:
            waiting = await bench.until(
                lambda state: [
                    one for one in state["approvals"] if one["status"] == "waiting" and one["id"] not in seen
                ]
            )
            seen.add(waiting[0]["id"])
            payload = dict(payload)
            before = payload.pop("before", None)
            if before is not None:
                before()
            bench.submit(payload.pop("kind", "approve"), payload={"approval": waiting[0]["id"], **payload})

    return answer


async def test_a_tool_that_is_always_allowed_is_asked_about_once_until_that_is_revoked(bench: Bench) -> None:
    bench.start(
        PlannedRun([task("a", role="coder")], shell("echo 1 >> log", "echo 2 >> log")),
        approval_timeout_seconds=None,
    )
    await bench.run_while(answers(bench, {"scope": "tool"}))
    assert (bench.workspace / "log").read_text() == "1\n2\n"
    assert len(bench.state["approvals"]) == 1
    [grant] = bench.state["grants"]
    assert (grant["tool"], grant["pattern"], grant["revoked_by"]) == ("bash", None, None)


async def test_a_revoked_grant_does_not_answer(bench: Bench) -> None:
    commands = ["echo 1 >> log", "sleep 0.2", "echo 3 >> log", "echo 4 >> log"]
    bench.start(PlannedRun([task("a", role="coder")], shell(*commands)), approval_timeout_seconds=None)

    async def grant_and_revoke() -> None:
        await answers(bench, {"scope": "tool"})()
        grants = await bench.until(lambda state: state["grants"])
        await bench.applied(bench.submit("revoke", payload={"grant": grants[0]["id"]}))
        denied: set[str] = set()
        while True:  # until the run ends
            waiting = await bench.until(
                lambda state: [
                    one["id"]
                    for one in state["approvals"]
                    if one["status"] == "waiting" and one["id"] not in denied
                ]
            )
            denied.add(waiting[0])
            bench.submit("deny", payload={"approval": waiting[0]})

    await bench.run_while(grant_and_revoke)
    assert bench.state["grants"][0]["revoked_by"] == "program"
    assert "denied" in {one["status"] for one in bench.state["approvals"]}
    assert "4" not in (bench.workspace / "log").read_text()


async def test_a_pattern_lets_one_simple_command_run_and_asks_for_all_else(bench: Bench) -> None:
    commands = ["touch one", "touch two", "touch three; rm one", "touch four > five", "touch $(echo six)"]
    bench.start(PlannedRun([task("a", role="coder")], shell(*commands)), approval_timeout_seconds=None)
    denied = {"kind": "deny"}
    await bench.run_while(answers(bench, {"scope": "pattern", "pattern": "touch *"}, denied, denied, denied))
    assert sorted(path.name for path in bench.workspace.iterdir()) == ["one", "two"]
    assert [one["status"] for one in bench.state["approvals"]] == ["approved", "denied", "denied", "denied"]


async def test_what_the_shell_defined_before_does_not_change_what_a_pattern_allows(bench: Bench) -> None:
    evil = bench.workspace / "evil"
    commands = [
        "date +%Y",
        f"date() {{ echo function; }}; alias date='echo alias'; mkdir evil; printf '#!/bin/sh\\necho path' >"
        " evil/date;"
        f" chmod +x evil/date; export PATH={evil}:$PATH; hash -p {evil}/date date; date",
        "date +%Y",
    ]
    bench.start(PlannedRun([task("a", role="coder")], shell(*commands)), approval_timeout_seconds=None)
    await bench.run_while(answers(bench, {"scope": "pattern", "pattern": "date +%Y"}, {}))
    result = bench.tasks()["a"]["result"]
    assert len(bench.state["approvals"]) == 2
    assert "function" in result  # what a person approved by itself runs in the shell
    assert "[ran outside your shell" in result
    assert result.rstrip().rsplit("\n", 1)[-1].strip().isdecimal()


async def test_a_pattern_runs_in_the_folder_of_the_shell(bench: Bench) -> None:
    (bench.workspace / "sub").mkdir()
    bench.start(
        PlannedRun([task("a", role="coder")], shell("touch a", "cd sub", "touch b")),
        approval_timeout_seconds=None,
    )
    await bench.run_while(answers(bench, {"scope": "pattern", "pattern": "touch *"}, {}))
    assert (bench.workspace / "sub" / "b").exists()


async def test_a_grant_answers_a_question_of_another_agent_that_waits_already(bench: Bench) -> None:
    bench.start(
        PlannedRun(
            [task("a", role="coder"), task("b", role="coder")],
            lambda name, request: shell(f"echo {name} >> log")(name, request),
        ),
        approval_timeout_seconds=None,
    )

    async def grant() -> None:
        waiting = await bench.until(
            lambda state: (
                len(found := [one for one in state["approvals"] if one["status"] == "waiting"]) == 2 and found
            )
        )
        bench.submit("approve", payload={"approval": waiting[0]["id"], "scope": "tool"})

    await bench.run_while(grant)
    assert sorted((bench.workspace / "log").read_text().split()) == ["a", "b"]
    assert {one["scope"] for one in bench.state["approvals"]} == {"tool", "grant"}
    [(at,)] = bench.query("SELECT max(seq) FROM events WHERE kind = 'approval.approved'")
    bench.session = fork_session(bench.path, bench.session, at_seq=at).session_id

    async def deny() -> None:  # a fork has no grants: what one had answered, and had not run, is asked again
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
        bench.submit("deny", payload={"approval": waiting[0]["id"], "reason": "by a person"})

    await bench.run_while(deny)
    assert sum("by a person" in one["result"] for one in bench.tasks().values()) == 1


async def test_an_edited_call_runs_as_edited_and_its_result_says_so(bench: Bench) -> None:
    bench.start(
        PlannedRun([task("a", role="coder")], shell("echo model > out")), approval_timeout_seconds=None
    )
    await bench.run_while(answers(bench, {"edited_input": {"command": "echo person > out"}}))
    assert (bench.workspace / "out").read_text() == "person\n"
    result = bench.tasks()["a"]["result"]
    assert "A person changed the input of this call" in result
    assert "echo person > out" in result
    [(stored, content)] = bench.query(
        "SELECT c.edited_input, m.content FROM tool_calls c JOIN messages m ON m.agent_id = c.agent_id AND"
        " m.seq = c.seq"
        " WHERE c.name = 'bash'"
    )
    assert "echo person > out" in stored
    assert "echo model > out" in content
    assert "echo person" not in content


async def test_an_edited_input_that_the_tool_would_not_take_is_refused_and_the_question_waits_on(
    bench: Bench,
) -> None:
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)

    async def answer() -> None:
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
        for wrong in ({"file_path": 3, "content": "x"}, {"file_path": "a", "content": "[redacted:password]"}):
            bench.submit("approve", payload={"approval": waiting[0]["id"], "edited_input": wrong})
            await bench.until(lambda state: state["commands"][-1]["status"] == "refused")
        bench.submit("approve", payload={"approval": waiting[0]["id"]})

    await bench.run_while(answer)
    assert (bench.workspace / "note.txt").read_text() == "hello"


async def test_an_answer_with_a_secret_is_refused_since_another_text_would_run(bench: Bench) -> None:
    bench.start(
        PlannedRun([task("a", role="coder")], shell("echo model > out")), approval_timeout_seconds=None
    )
    secret = "DATABASE_PASSWORD=Sup3rS3cretValue99"

    async def answer() -> None:
        waiting = await bench.until(
            lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
        )
        for wrong in (
            {"edited_input": {"command": f"export {secret}"}},
            {"scope": "pattern", "pattern": f"run --{secret} *"},
        ):
            with pytest.raises(BadInput, match="holds a secret"):
                bench.submit("approve", payload={"approval": waiting[0]["id"], **wrong})
        bench.submit("deny", payload={"approval": waiting[0]["id"]})

    await bench.run_while(answer)
    assert not bench.query("SELECT 1 FROM commands WHERE kind = 'approve'")


async def test_a_file_that_changed_since_the_question_is_asked_about_again(bench: Bench) -> None:
    note = bench.workspace / "note.txt"
    note.write_text("first")
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)
    await bench.run_while(answers(bench, {"before": lambda: note.write_text("second")}, {}))
    assert note.read_text() == "hello"
    first, second = bench.state["approvals"]
    assert (first["cause"], second["cause"]) == ("permission", "changed")
    assert first["subject_digest"] != second["subject_digest"]


async def test_a_link_that_is_swapped_after_the_answer_is_asked_about_again(bench: Bench) -> None:
    for name in ("one", "two"):
        (bench.workspace / name).write_text("same")
    link = bench.workspace / "note.txt"
    link.symlink_to("one")

    def swap() -> None:
        link.unlink()
        link.symlink_to("two")

    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)
    await bench.run_while(answers(bench, {"before": swap}, {"kind": "deny"}))
    assert (bench.workspace / "one").read_text() == (bench.workspace / "two").read_text() == "same"


async def test_a_path_that_the_tool_would_refuse_is_asked_about_again_once_it_leads_to_a_file(
    bench: Bench,
) -> None:
    (bench.workspace / "one").write_text("same")
    link = bench.workspace / "note.txt"
    link.symlink_to("/etc/hostname")

    def swap() -> None:
        link.unlink()
        link.symlink_to("one")

    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)
    await bench.run_while(answers(bench, {"before": swap}, {"kind": "deny"}))
    assert (bench.workspace / "one").read_text() == "same"


async def test_a_file_that_changes_after_the_last_look_of_the_host_is_not_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = bench.workspace / "note.txt"
    note.write_text("first")
    changes = iter(["second"])

    def reached(point: str) -> None:
        if point == "tool.before_run" and note.exists():
            for text in changes:
                note.write_text(text)
                break

    monkeypatch.setattr("watchkeeper.agents.toolbox.reach", reached)
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)
    await bench.run_while(
        answers(bench, {}, {"kind": "deny", "reason": "it changed", "before": lambda: None})
    )
    assert note.read_text() == "second"
    assert [one["cause"] for one in bench.state["approvals"]] == ["permission", "changed"]
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'write'") == [("denied",)]


async def test_an_approved_write_whose_host_died_after_it_is_finished_without_another_question(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = iter([True])

    def reached(point: str) -> None:
        if point == "tool.after_run" and (bench.workspace / "note.txt").exists() and next(dies, False):
            raise RuntimeError("the host dies here")

    monkeypatch.setattr("watchkeeper.agents.toolbox.reach", reached)
    (bench.workspace / "note.txt").write_text("before")
    bench.start(PlannedRun([task("a", role="coder")], writes), approval_timeout_seconds=None)
    with pytest.raises(RuntimeError, match="dies here"):
        await bench.run_while(answers(bench, {}))
    assert (await bench.run()).exit_code == 0
    assert (bench.workspace / "note.txt").read_text() == "hello"
    assert len(bench.state["approvals"]) == 1
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'write'") == [("done",)]


async def test_an_edited_call_that_a_crash_cut_off_before_it_began_runs_as_edited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = iter([True])

    def settled(*arguments: Any, **options: Any) -> Any:
        if next(dies, False):
            raise RuntimeError("the host dies here")
        return start(*arguments, **options)

    start = Toolbox._start
    monkeypatch.setattr(Toolbox, "_start", settled)
    bench.start(
        PlannedRun([task("a", role="coder")], shell("echo model > out")), approval_timeout_seconds=None
    )
    with pytest.raises(RuntimeError, match="dies here"):
        await bench.run_while(answers(bench, {"edited_input": {"command": "echo person > out"}}))
    assert (await bench.run()).exit_code == 0
    assert (bench.workspace / "out").read_text() == "person\n"
    assert "A person changed the input of this call" in bench.tasks()["a"]["result"]
    assert len(bench.state["approvals"]) == 1
