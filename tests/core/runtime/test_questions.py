"""Tools that ask: a person decides, a model never does, and no answer is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.agents.approvals import Approvals
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.agents.tools.child import Child, ChildFailed
from watchkeeper.agents.tools.workers import WorkerPool
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import ModelRequest
from watchkeeper.runtime.run_session import Asking
from watchkeeper.store.commands import Question, load_question
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.fork import fork_session
from watchkeeper.store.lease import Presence

Calls = Iterable[tuple[str, dict[str, Any]]]


def replies(*given: Calls) -> Any:
    """A coder whose replies are these calls, and then all that it was told."""

    def work(name: str, request: ModelRequest) -> Any:
        turn = turns(request)
        if turn >= len(given):
            return [said(flat(request.messages))]
        return [call(*each, f"t{turn}-{number}") for number, each in enumerate(given[turn])]

    return work


def bash(command: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command}


def shell(*commands: str) -> Any:
    """A coder that runs these commands, one a turn."""
    return replies(*([bash(command)] for command in commands))


writes = replies([("write", {"file_path": "note.txt", "content": "hello"})])


def answers(bench: Bench, *given: dict[str, Any]) -> Any:
    """Answers the questions that come, one after the other, with these payloads.

    `kind` says how, `before` is called first with the question.
    """

    async def answer() -> None:
        seen: set[str] = set()
        for payload in given:
            question = await bench.until(
                lambda state: next(
                    (
                        one
                        for one in state["approvals"]
                        if one["status"] == "waiting" and one["id"] not in seen
                    ),
                    None,
                )
            )
            seen.add(question["id"])
            about = dict(payload)
            about.pop("before", lambda question: None)(question)
            bench.submit(about.pop("kind", "approve"), payload={"approval": question["id"], **about})

    return answer


def question_now(bench: Bench, question: dict[str, Any]) -> Question:
    """A question as a person is shown it."""
    with closing(sqlite3.connect(bench.path)) as connection:
        found = load_question(connection, bench.path, question["id"])
    assert found is not None
    return found


async def pause_when_asked(bench: Bench, **payload: Any) -> None:
    async def pause() -> None:
        await bench.waiting()
        bench.submit("pause", payload=payload)

    assert (await bench.run_while(pause)).exit_code == 5


@pytest.fixture
def note(bench: Bench) -> Path:
    """The file that `writes` writes."""
    return bench.workspace / "note.txt"


async def test_a_tool_that_asks_waits_for_a_person_and_runs_when_approved(bench, note):
    bench.coder(writes)

    def look(question: dict[str, Any]) -> None:
        assert (question["tool"], bench.agent()["status"], note.exists()) == ("write", "waiting", False)

    assert (await bench.run_while(answers(bench, {"before": look}))).exit_code == 0
    assert note.read_text() == "hello"


async def test_a_denied_call_tells_the_model_why_and_does_nothing(bench, note):
    bench.coder(writes)
    await bench.run_while(answers(bench, {"kind": "deny", "reason": "not in this folder"}))
    assert "A person denied this: 'not in this folder'. Nothing was done." in bench.tasks()["a"]["result"]
    assert not note.exists()


async def test_of_two_answers_the_second_is_refused_and_hears_whose_was_first(bench, note):
    bench.coder(writes)

    async def answer_twice() -> None:
        [question] = await bench.waiting()
        about = {"approval": question["id"]}
        bench.submit("deny", payload=about)
        late = bench.submit("approve", payload=about)
        await bench.applied(late, "refused")
        assert "already answered (denied by program)" in bench.command(late)["result"]

    await bench.run_while(answer_twice)
    assert not note.exists()


async def test_headless_a_question_that_nobody_answers_is_denied_and_allow_decides_beforehand(bench, note):
    bench.coder(writes, approval_timeout_seconds=0.0)
    await bench.run()
    assert "The approval timed out" in bench.tasks()["a"]["result"]
    bench.coder(writes, allow=("write",))
    await bench.run()
    assert note.read_text() == "hello"


async def test_a_question_that_waits_survives_a_pause_and_is_asked_once(bench):
    bench.coder(writes)
    await pause_when_asked(bench, now=True)
    assert bench.state["approvals"][0]["status"] == "waiting"
    assert (await bench.run_while(answers(bench, {}))).exit_code == 0
    assert len(bench.state["approvals"]) == 1


async def test_an_answer_given_while_no_host_lived_is_used_and_the_question_is_not_asked_again(bench, note):
    bench.coder(writes)
    await pause_when_asked(bench)
    bench.submit("approve", payload={"approval": bench.state["approvals"][0]["id"]})
    assert (await bench.run()).exit_code == 0
    assert len(bench.state["approvals"]) == 1
    assert note.read_text() == "hello"


async def test_a_secret_that_a_model_writes_becomes_neither_a_question_nor_a_mark_in_a_file(bench, note):
    """The reply is stored without its secret, so the call would write the mark."""
    bench.coder(replies([("write", {"file_path": "note.txt", "content": "ghp_" + "q7W2" * 9})]))
    await bench.run()
    assert "[redacted:github-token], which represents a secret" in bench.tasks()["a"]["result"]
    assert not bench.state["approvals"]
    assert not note.exists()


# --- calls that repeat --------------------------------------------------------------------------------------

AGAIN = bash("echo x >> log")


@pytest.mark.parametrize(
    ("given", "ran"),
    [
        ([[AGAIN]] * 6, 3),
        ([[AGAIN] * 11], 3),
        ([[AGAIN], [bash(" echo  x >> log\n")], [("bash", AGAIN[1] | {"timeout_ms": 9_000})], [AGAIN]], 3),
        ([each for n in range(6) for each in ([AGAIN], [("list_folder", {"path": ".", "limit": n + 1})])], 3),
        ([each for n in range(6) for each in ([AGAIN], [bash("echo y >> other")])], 3),
        ([each for n in range(5) for each in ([bash(f"echo {n} >> source")], [AGAIN])], 5),
    ],
    ids=[
        "in turns",
        "in one reply",
        "with other blanks and limits",
        "between looks",
        "in a cycle",
        "a check after each change",
    ],
)
async def test_a_call_that_repeats_itself_is_asked_about_though_the_tool_is_allowed(bench, given, ran):
    bench.coder(replies(*given), allow=("bash",), approval_timeout_seconds=0.0)
    await bench.run()
    assert (bench.workspace / "log").read_text() == "x\n" * ran
    assert {one["cause"] for one in bench.state["approvals"]} == ({"repetition"} if ran == 3 else set())
    assert ("already ran 3 times" in bench.tasks()["a"]["result"]) is (ran == 3)


async def test_a_person_may_let_an_identical_call_run_once_more(bench):
    bench.coder(shell(*["echo x >> log"] * 4), allow=("bash",))
    notes: list[str] = []
    await bench.run_while(answers(bench, {"before": lambda question: notes.append(question["note"])}))
    assert "already ran 3 times" in notes[0]
    assert (bench.workspace / "log").read_text() == "x\n" * 4


# --- an agent that ends while it asks -----------------------------------------------------------------------


async def test_what_a_cancelled_attempt_never_began_is_cancelled_and_nobody_is_asked_any_more(bench):
    bench.coder(replies([bash("echo 1"), bash("echo 2")]))

    async def cancel() -> None:
        await bench.waiting()
        bench.submit("cancel")

    await bench.run_while(cancel)
    assert set(bench.query("SELECT status FROM tool_calls WHERE name = 'bash'")) == {("cancelled",)}
    assert [one["status"] for one in bench.state["approvals"]] == ["cancelled"]
    assert bench.kinds().count("tool.cancelled") == 2


async def test_an_attempt_that_is_resumed_after_a_cancel_is_told_what_did_not_run(bench):
    bench.coder(shell("echo 1 >> log"))

    async def cancel() -> None:
        [question] = await bench.waiting()
        bench.submit("cancel", task_id=question["task_id"])
        bench.submit("resume", agent_id=question["agent_id"])  # both are queued before the host looks

    await bench.run_while(cancel)
    assert "[not run] The agent was cancelled before this call began" in bench.tasks()["a"]["result"]
    assert not (bench.workspace / "log").exists()


# --- who can answer -----------------------------------------------------------------------------------------


async def test_a_session_that_somebody_watches_asks_though_its_time_out_is_zero(bench, note):
    bench.coder(writes, approval_timeout_seconds=0.0)
    presence = Presence(bench.path, bench.session)
    try:
        await bench.run_while(answers(bench, {}))
    finally:
        presence.close()
    assert note.read_text() == "hello"


async def test_a_question_with_time_out_zero_is_denied_when_the_last_who_watched_has_left(bench, monkeypatch):
    monkeypatch.setattr("watchkeeper.agents.approvals.PRESENCE_SECONDS", 0.01)
    bench.coder(writes, approval_timeout_seconds=0.0)
    presences = [Presence(bench.path, bench.session), Presence(bench.path, bench.session)]

    async def leave() -> None:
        for presence in presences:
            await bench.waiting()
            presence.close()

    await bench.run_while(leave)
    assert "The approval timed out" in bench.tasks()["a"]["result"]


@pytest.mark.parametrize(
    ("unattended", "said", "stored", "wanted"),
    [
        (True, None, None, 0.0), (True, None, 0.0, 0.0), (True, 30.0, 0.0, 30.0), (True, None, 30.0, 30.0),
        (False, None, None, None), (False, None, 0.0, None), (False, 5.0, None, 5.0), (False, None, 5.0, 5.0),
    ],
)  # fmt: skip
def test_the_time_out_belongs_to_the_host_that_runs(unattended, said, stored, wanted):
    assert Asking(unattended=unattended, timeout_seconds=said).seconds(stored) == wanted


# --- what a person answers ----------------------------------------------------------------------------------


async def test_a_tool_that_is_always_allowed_is_asked_about_once_until_that_is_revoked(bench):
    bench.coder(shell("echo 1 >> log", "echo 2 >> log"))
    await bench.run_while(answers(bench, {"scope": "tool"}))
    assert (bench.workspace / "log").read_text() == "1\n2\n"
    assert len(bench.state["approvals"]) == 1
    [grant] = bench.state["grants"]
    assert (grant["tool"], grant["pattern"], grant["revoked_by"]) == ("bash", None, None)


async def test_a_revoked_grant_does_not_answer(bench):
    bench.coder(shell("echo 1 >> log", "sleep 0.2", "echo 3 >> log", "echo 4 >> log"))

    async def grant_and_revoke() -> None:
        await answers(bench, {"scope": "tool"})()
        grants = await bench.until(lambda state: state["grants"])
        await bench.applied(bench.submit("revoke", payload={"grant": grants[0]["id"]}))
        await answers(bench, *[{"kind": "deny"}] * 9)()  # until the run ends

    await bench.run_while(grant_and_revoke)
    assert bench.state["grants"][0]["revoked_by"] == "program"
    assert "denied" in {one["status"] for one in bench.state["approvals"]}
    assert "4" not in (bench.workspace / "log").read_text()


async def test_a_pattern_lets_one_simple_command_run_and_asks_for_all_else(bench):
    commands = ["touch one", "touch two", "touch three; rm one", "touch four > five", "touch $(echo six)"]
    bench.coder(shell(*commands))
    pattern = {"scope": "pattern", "pattern": "touch *"}
    await bench.run_while(answers(bench, pattern, *[{"kind": "deny"}] * 3))
    assert sorted(path.name for path in bench.workspace.iterdir()) == ["one", "two"]
    assert [one["status"] for one in bench.state["approvals"]] == ["approved", "denied", "denied", "denied"]


async def test_patterns_together_cover_a_pipeline_and_one_of_them_is_not_enough(bench):
    (bench.workspace / "x").write_text("2\n1\n")
    commands = ["cat x", "cat x | sort", "LC_ALL=C sort x", "CI=1 cat x 2>&1 | LC_ALL=C sort | head -n 1", "cat x | sort > y",
                "PYTHONPATH=/etc cat x", "PYTHONPATH=src: cat x"]  # fmt: skip
    bench.coder(shell(*commands))
    given = [
        {"scope": "pattern", "pattern": "cat *"},
        {"scope": "pattern", "pattern": "cat * | sort *"},
        {"scope": "pattern", "pattern": "sort *"},
        {"scope": "pattern", "pattern": "cat * | sort | head -n *"},
        {"kind": "deny"},
        {"kind": "deny"},
    ]
    await bench.run_while(answers(bench, *given))
    asked = [one["question"] for one in bench.state["approvals"]]
    assert [command for command in commands if not any(json.dumps(command) in one for one in asked)] == [
        commands[-1]
    ]
    patterns = [grant["pattern"] for grant in bench.state["grants"]]
    assert patterns == [one["pattern"] for one in given[:4]]


async def test_a_pipeline_that_several_grants_cover_names_them_all(bench):
    (bench.workspace / "x").write_text("2\n1\n")
    bench.coder(shell("cat x", "sort x", "cat x | sort"))
    await bench.run_while(
        answers(bench, {"scope": "pattern", "pattern": "cat *"}, {"scope": "pattern", "pattern": "sort *"})
    )
    assert len(bench.state["approvals"]) == 2
    assert bench.tasks()["a"]["result"].count("1\n2") == 2


async def test_the_first_message_of_an_agent_says_what_is_allowed_when_it_starts(bench):
    (bench.workspace / "x").write_text("1\n")
    chain = [task("a", role="coder"), task("b", role="coder", needs=("a",))]
    work = {"a": shell("cat x")}
    bench.start(
        PlannedRun(chain, lambda name, request: work[name](name, request) if name in work else [said("ok")]),
        approval_timeout_seconds=None,
    )
    await bench.run_while(answers(bench, {"scope": "pattern", "pattern": "cat *"}))
    first = dict(
        bench.query(
            "SELECT coalesce(t.name, 'planner'), m.content FROM messages m JOIN agents g ON g.id = m.agent_id"
            " LEFT JOIN tasks t ON t.id = g.task_id WHERE m.seq = 1"
        )
    )
    said_to = {name: flat([{"content": json.loads(content)}]) for name, content in first.items()}
    free = "Without approval: glob, grep, list_folder, read"
    assert f"{free}.\nWith a person's approval: bash, edit, write." in said_to["a"]
    assert "A pipeline of commands allowed by an approval pattern is allowed too" in said_to["a"]
    assert f"{free}, bash for `cat *`.\nWith a person's approval: bash, edit, write." in said_to["b"]
    assert "A pipeline of these is allowed too. Anything with ;, &&, redirection" in said_to["b"]
    assert free in said_to["planner"]
    assert not bench.query("SELECT 1 FROM agents WHERE system LIKE '%Without approval%'")


async def test_a_grant_covers_the_first_commands_of_an_agent_that_has_no_shell_yet(bench):
    (bench.workspace / "x").write_text("1\n")
    both = [task("a", role="coder"), task("b", role="coder", needs=("a",))]
    bench.start(
        PlannedRun(
            both, lambda name, request: shell("cat x", "cat x | cat", "cat x | cat | cat")(name, request)
        ),
        approval_timeout_seconds=None,
    )
    await bench.run_while(answers(bench, {"scope": "pattern", "pattern": "cat *"}))
    assert len(bench.state["approvals"]) == 1


async def test_what_the_shell_defined_before_does_not_change_what_a_pattern_allows(bench):
    evil = bench.workspace / "evil"
    commands = [
        "date +%Y",
        f"date() {{ echo function; }}; alias date='echo alias'; mkdir evil; printf '#!/bin/sh\\necho path' >"
        " evil/date;"
        f" chmod +x evil/date; export PATH={evil}:$PATH; hash -p {evil}/date date; date",
        "date +%Y",
    ]
    bench.coder(shell(*commands))
    await bench.run_while(answers(bench, {"scope": "pattern", "pattern": "date +%Y"}, {}))
    result = bench.tasks()["a"]["result"]
    assert len(bench.state["approvals"]) == 2
    assert "function" in result  # what a person approved by itself runs in the shell
    assert "[ran outside your shell" in result
    assert result.rstrip().rsplit("\n", 1)[-1].strip().isdecimal()


async def test_a_pattern_runs_in_the_folder_of_the_shell(bench):
    (bench.workspace / "sub").mkdir()
    bench.coder(shell("touch a", "cd sub", "touch b"))
    await bench.run_while(answers(bench, {"scope": "pattern", "pattern": "touch *"}, {}))
    assert (bench.workspace / "sub" / "b").exists()


async def test_a_grant_answers_a_question_of_another_agent_that_waits_already(bench):
    both = [task("a", role="coder"), task("b", role="coder")]
    script = PlannedRun(both, lambda name, request: shell(f"echo {name} >> log")(name, request))
    bench.start(script, approval_timeout_seconds=None)

    async def grant() -> None:
        waiting = await bench.waiting(2)
        bench.submit("approve", payload={"approval": waiting[0]["id"], "scope": "tool"})

    await bench.run_while(grant)
    assert sorted((bench.workspace / "log").read_text().split()) == ["a", "b"]
    assert {one["scope"] for one in bench.state["approvals"]} == {"tool", "grant"}
    [(at,)] = bench.query("SELECT max(seq) FROM events WHERE kind = 'approval.approved'")
    bench.session = fork_session(bench.path, bench.session, at_seq=at).session_id

    await bench.run_while(answers(bench, {"kind": "deny", "reason": "by a person"}))
    assert sum("by a person" in one["result"] for one in bench.tasks().values()) == 1


async def test_an_edited_call_runs_as_edited_and_its_result_says_so(bench):
    bench.coder(shell("echo model > out"))
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


async def test_an_edited_input_that_the_tool_would_not_take_is_refused_and_the_question_waits_on(bench, note):
    bench.coder(writes)

    async def answer() -> None:
        [question] = await bench.waiting()
        for wrong in ({"file_path": 3, "content": "x"}, {"file_path": "a", "content": "[redacted:password]"}):
            edited = {"approval": question["id"], "edited_input": wrong}
            await bench.applied(bench.submit("approve", payload=edited), "refused")
        bench.submit("approve", payload={"approval": question["id"]})

    await bench.run_while(answer)
    assert note.read_text() == "hello"


async def test_an_answer_with_a_secret_is_refused_since_another_text_would_run(bench):
    bench.coder(shell("echo model > out"))
    secret = "DATABASE_PASSWORD=Sup3rS3cretValue99"

    def try_to_answer(question: dict[str, Any]) -> None:
        for wrong in (
            {"edited_input": {"command": f"export {secret}"}},
            {"scope": "pattern", "pattern": f"run --{secret} *"},
        ):
            with pytest.raises(BadInput, match="contains a secret"):
                bench.submit("approve", payload={"approval": question["id"], **wrong})

    await bench.run_while(answers(bench, {"kind": "deny", "before": try_to_answer}))
    assert not bench.query("SELECT 1 FROM commands WHERE kind = 'approve'")


async def test_a_file_that_changed_since_the_question_is_asked_about_again(bench, note):
    note.write_text("first")
    bench.coder(writes)
    await bench.run_while(answers(bench, {"before": lambda question: note.write_text("second")}, {}))
    assert note.read_text() == "hello"
    first, second = bench.state["approvals"]
    assert (first["cause"], second["cause"]) == ("permission", "changed")
    assert first["subject_digest"] != second["subject_digest"]


@pytest.mark.parametrize("before", ["one", "/etc/hostname"], ids=["a file", "what the tool would refuse"])
async def test_a_link_that_is_swapped_after_the_answer_is_asked_about_again(bench, note, before):
    files = [bench.workspace / name for name in ("one", "two")]
    for file in files:
        file.write_text("same")
    note.symlink_to(before)

    def swap(question: object) -> None:
        note.unlink()
        note.symlink_to("two")

    bench.coder(writes)
    await bench.run_while(answers(bench, {"before": swap}, {"kind": "deny"}))
    assert [file.read_text() for file in files] == ["same", "same"]


async def test_a_file_that_changes_after_the_last_look_of_the_host_is_not_written(bench, note, monkeypatch):
    note.write_text("first")

    def reached(point: str) -> None:
        if point == "tool.before_run" and note.read_text() == "first":
            note.write_text("second")

    monkeypatch.setattr("watchkeeper.agents.toolbox.reach", reached)
    bench.coder(writes)
    await bench.run_while(answers(bench, {}, {"kind": "deny", "reason": "it changed"}))
    assert note.read_text() == "second"
    assert [one["cause"] for one in bench.state["approvals"]] == ["permission", "changed"]
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'write'") == [("denied",)]


async def test_an_approved_write_whose_host_died_after_it_is_finished_without_another_question(
    bench, note, monkeypatch
):
    dies = iter([True])

    def reached(point: str) -> None:
        if point == "tool.after_run" and note.exists() and next(dies, False):
            raise RuntimeError("the host dies here")

    monkeypatch.setattr("watchkeeper.agents.toolbox.reach", reached)
    note.write_text("before")
    bench.coder(writes)
    with pytest.raises(RuntimeError, match="dies here"):
        await bench.run_while(answers(bench, {}))
    assert (await bench.run()).exit_code == 0
    assert note.read_text() == "hello"
    assert len(bench.state["approvals"]) == 1
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'write'") == [("done",)]


async def test_an_answer_whose_host_died_before_it_was_used_is_used(bench, note, monkeypatch):
    dies = iter([True])

    def settled(*arguments: Any, **options: Any) -> Any:
        if next(dies, False):
            raise RuntimeError("the host dies here")
        return settle(*arguments, **options)

    settle = Approvals._settle
    monkeypatch.setattr(Approvals, "_settle", settled)
    bench.coder(writes)
    with pytest.raises(RuntimeError, match="dies here"):
        await bench.run_while(answers(bench, {}))
    assert (await bench.run()).exit_code == 0
    assert note.read_text() == "hello"
    assert len(bench.state["approvals"]) == 1


async def test_a_call_of_an_agent_that_is_cancelled_just_before_it_begins_does_not_run(
    bench, note, monkeypatch
):
    async def cancelled(*about: Any) -> Any:
        await bench.applied(bench.submit("cancel"))
        return await run(*about)

    run = Toolbox._run_outside
    monkeypatch.setattr(Toolbox, "_run_outside", cancelled)
    bench.coder(writes, allow=("write",))
    await bench.run()
    assert not note.exists()
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'write'") == [("cancelled",)]
    assert "tool.started" not in bench.kinds()


async def test_a_worktree_is_looked_at_after_each_call_that_may_have_changed_it(bench, note, monkeypatch):
    looked, wrote = [], []

    async def wrote_file(agent: str, name: str, task: str, file: str) -> None:
        wrote.append(file)

    trees = SimpleNamespace(folder_of=lambda task: bench.workspace, look=looked.append, wrote=wrote_file)
    init = Toolbox.__init__
    monkeypatch.setattr(
        Toolbox, "__init__", lambda self, env, *about: init(self, replace(env, worktrees=trees), *about)
    )
    file, calls = {"file_path": "note.txt"}, ["write", "read", "bash", "edit"]
    inputs = [
        file | {"content": "hello"},
        file,
        {"command": "true"},
        file | {"old_string": "x", "new_string": "y"},
    ]
    bench.coder(replies(list(zip(calls, inputs, strict=True))), allow=("write", "bash", "edit"))
    assert (await bench.run()).exit_code == 0
    ended = bench.query(
        "SELECT name, status FROM tool_calls WHERE name IN ('write', 'read', 'bash', 'edit') ORDER BY id"
    )
    assert ended == list(zip(calls, ["done", "done", "done", "error"], strict=True))
    ((task_id,),) = bench.query("SELECT id FROM tasks")
    assert (looked, wrote) == ([task_id] * 2, ["note.txt"])


async def test_an_edited_call_that_a_crash_cut_off_before_it_began_runs_as_edited(bench, monkeypatch):
    dies = iter([True])

    def settled(*arguments: Any, **options: Any) -> Any:
        if next(dies, False):
            raise RuntimeError("the host dies here")
        return start(*arguments, **options)

    start = Toolbox._start
    monkeypatch.setattr(Toolbox, "_start", settled)
    bench.coder(shell("echo model > out"))
    with pytest.raises(RuntimeError, match="dies here"):
        await bench.run_while(answers(bench, {"edited_input": {"command": "echo person > out"}}))
    assert (await bench.run()).exit_code == 0
    assert (bench.workspace / "out").read_text() == "person\n"
    assert "A person changed the input of this call" in bench.tasks()["a"]["result"]
    assert len(bench.state["approvals"]) == 1


# --- Shells and workers that are lost ---------------------------------------------------------------------


def calls_of(bench: Bench, name: str) -> list[tuple[str, int]]:
    return list(bench.query("SELECT status, runs FROM tool_calls WHERE name = ? ORDER BY id", name))


async def test_an_approved_command_does_not_run_in_another_shell_than_the_one_it_was_asked_for(bench):
    (bench.workspace / "sub").mkdir()
    bench.coder(shell("cd sub; echo $PPID > ../worker", "touch HERE", "touch AGAIN"))

    def kill(question: dict[str, Any]) -> None:
        assert question["folder"].endswith("/sub")
        worker = int((bench.workspace / "worker").read_text())
        os.kill(worker, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], timeout=10)

    assert (await bench.run_while(answers(bench, {}, {"before": kill}, {}))).exit_code == 0
    assert not list(bench.workspace.rglob("HERE"))
    assert (bench.workspace / "AGAIN").exists()
    assert "[not run] Your shell was restarted" in bench.tasks()["a"]["result"]


async def test_an_approved_command_asks_again_if_its_script_changed_and_shows_the_difference_alone(bench):
    script = bench.workspace / "check.sh"
    script.write_text("echo one\necho harmless\n")
    bench.coder(shell("sh ./check.sh"))
    texts: list[str] = []

    def swap(question: dict[str, Any]) -> None:
        script.write_text("echo one\ntouch HARM\n")

    def look(question: dict[str, Any]) -> None:
        found = question_now(bench, question)
        texts.extend(found.lines())

    await bench.run_while(answers(bench, {"before": swap}, {"kind": "deny", "before": look}))
    assert not (bench.workspace / "HARM").exists()
    assert [one["cause"] for one in bench.state["approvals"]] == ["permission", "changed"]
    text = "\n".join(texts)
    assert "since the approval was requested, check.sh changed" in text
    assert "  -echo harmless" in text
    assert "  +touch HARM" in text


async def test_an_approved_command_runs_once_its_changed_script_is_approved_too(bench):
    script = bench.workspace / "check.sh"
    script.write_text("echo one > out")
    bench.coder(shell("sh check.sh"))
    await bench.run_while(
        answers(bench, {"before": lambda question: script.write_text("echo two > out")}, {})
    )
    assert (bench.workspace / "out").read_text() == "two\n"
    assert len(bench.state["approvals"]) == 2


async def test_a_script_that_is_made_after_the_question_is_asked_about(bench):
    bench.coder(shell("python3 gen.py"))
    script = bench.workspace / "gen.py"
    await bench.run_while(
        answers(bench, {"before": lambda question: script.write_text("open('HARM', 'w')")}, {"kind": "deny"})
    )
    assert not (bench.workspace / "HARM").exists()


async def test_a_script_that_changes_after_the_last_look_of_the_host_does_not_run(bench, monkeypatch):
    script = bench.workspace / "check.sh"
    script.write_text("true")
    dies = iter([True])

    def reached(point: str) -> None:
        if point == "tool.before_run" and next(dies, False):
            script.write_text("touch HARM")

    monkeypatch.setattr("watchkeeper.agents.toolbox.reach", reached)
    bench.coder(shell("sh check.sh"))
    await bench.run_while(answers(bench, {}, {"kind": "deny"}))
    assert not (bench.workspace / "HARM").exists()
    assert [one["cause"] for one in bench.state["approvals"]] == ["permission", "changed"]


async def test_an_approved_command_does_not_run_in_another_folder_than_the_one_it_was_asked_for(bench):
    folder = bench.workspace / "sub"
    folder.mkdir()
    bench.coder(shell("cd sub", "touch HERE"))
    await bench.run_while(
        answers(
            bench, {}, {"before": lambda question: folder.rename(bench.workspace / "moved")}, {"kind": "deny"}
        )
    )
    assert not list(bench.workspace.rglob("HERE"))
    note = bench.state["approvals"][-1]["note"]
    assert f"the folder changed from {folder} to {bench.workspace / 'moved'}" in note


async def test_a_file_asked_about_again_shows_what_others_changed_in_it_and_nothing_else(bench, note):
    note.write_text("first\n")
    bench.coder(replies([("write", {"file_path": "note.txt", "content": "hello"})]))
    texts: list[str] = []

    def look(question: dict[str, Any]) -> None:
        found = question_now(bench, question)
        texts.extend(one.text for one in found.sections)

    await bench.run_while(
        answers(bench, {"before": lambda question: note.write_text("first\nsecond\n")}, {"before": look})
    )
    [text] = texts
    assert "+second" in text
    assert "hello" not in text
    assert note.read_text() == "hello"


async def test_a_write_of_another_agent_waits_for_the_question_about_that_file(bench, note):
    """So the question does not repeat, and the file is what the person was shown until the answer."""
    note.write_text("first")

    def work(name: str, request: ModelRequest) -> Any:
        if turns(request):
            return [said("done")]
        edit = {"file_path": "note.txt", "old_string": "first", "new_string": "second"}
        return [call("edit", edit, "e") if name == "a" else call("write", writing, "w")]

    writing = {"file_path": "note.txt", "content": "other"}
    both = [task("a", role="coder"), task("b", role="coder")]
    bench.start(PlannedRun(both, work), approval_timeout_seconds=None)

    def look(question: dict[str, Any]) -> None:
        assert [one["status"] for one in bench.state["approvals"]].count("waiting") == 1

    async def answer() -> None:
        await bench.until(
            lambda state: bench.query("SELECT 1 FROM live WHERE detail LIKE 'note.txt: waiting for another%'")
        )
        await answers(bench, {"before": look}, {"before": look})()

    await bench.run_while(answer)
    assert [one["cause"] for one in bench.state["approvals"]] == ["permission", "permission"]
    assert {status for status, _ in calls_of(bench, "write") + calls_of(bench, "edit")} <= {"done", "error"}


@pytest.mark.parametrize("point", ["question", "approved"])
async def test_a_shell_that_a_dead_host_had_is_lost_for_the_next_host_too(bench, monkeypatch, point):
    (bench.workspace / "sub").mkdir()
    bench.coder(shell("cd sub", "touch HERE", "touch AGAIN"))
    dies = iter([True])
    settle = Approvals._settle

    def settled(*arguments: Any, **options: Any) -> Any:
        if options["call"].arguments["command"] == "touch HERE" and next(dies, False):
            raise RuntimeError("the host dies here")
        return settle(*arguments, **options)

    async def die() -> None:
        await answers(bench, {})()
        await bench.until(lambda state: len(state["approvals"]) == 2)
        raise RuntimeError("the host dies here")

    if point == "approved":
        monkeypatch.setattr(Approvals, "_settle", settled)
    with pytest.raises(RuntimeError, match="dies here"):
        await bench.run_while(answers(bench, {}, {}) if point == "approved" else die)
    await bench.run_while(answers(bench, *[{}] * (1 if point == "approved" else 2)))
    assert not list(bench.workspace.rglob("HERE"))
    assert (bench.workspace / "AGAIN").exists()
    assert "[not run] Your shell was restarted" in bench.tasks()["a"]["result"]


async def test_a_command_that_a_dead_host_was_running_is_unknown_and_names_the_new_shell_at_once(
    bench, monkeypatch
):
    bench.coder(shell("export X=1", "touch ONCE", "touch AFTER"), allow=("bash",))
    dies = iter([True])
    ran = WorkerPool.run_shell

    async def run_shell(self: Any, arguments: Any, *given: Any, **options: Any) -> Any:
        if arguments["command"] == "touch ONCE" and next(dies, False):
            raise RuntimeError("the host dies here")
        return await ran(self, arguments, *given, **options)

    monkeypatch.setattr(WorkerPool, "run_shell", run_shell)
    with pytest.raises(RuntimeError, match="dies here"):
        await bench.run()
    assert (await bench.run()).exit_code == 0
    assert (bench.workspace / "AFTER").exists()
    result = bench.tasks()["a"]["result"]
    assert "Verify before you repeat it. Your shell was lost with it" in result
    assert "[not run] Your shell was restarted" not in result


async def test_a_command_whose_worker_is_killed_is_unknown_and_the_model_is_asked_to_verify(bench):
    bench.coder(shell("echo once >> log; kill -9 $PPID; sleep 60"), allow=("bash",))
    assert (await bench.run()).exit_code == 0
    assert calls_of(bench, "bash") == [("unknown", 1)]
    assert "[interrupted, outcome unknown] bash: the tool worker died" in bench.tasks()["a"]["result"]
    assert "Verify before you repeat it" in bench.tasks()["a"]["result"]
    assert "tool.unknown" in bench.kinds()


@pytest.mark.parametrize(
    ("name", "arguments", "deaths", "ended"),
    [
        ("write", {"file_path": "note.txt", "content": "hello"}, 1, ("done", 2)),
        ("write", {"file_path": "note.txt", "content": "hello"}, 2, ("unknown", 2)),
        ("edit", {"file_path": "note.txt", "old_string": "old", "new_string": "new"}, 1, ("unknown", 1)),
        ("read", {"file_path": "note.txt"}, 1, ("done", 0)),
        ("read", {"file_path": "note.txt"}, 2, ("error", 0)),
    ],
)
async def test_a_file_tool_whose_worker_dies_runs_again_once_if_that_does_no_harm_else_it_is_unknown(
    bench, note, monkeypatch, name, arguments, deaths, ended
):
    note.write_text("old")
    dies = iter([True] * deaths)
    asked = Child.call

    async def call_and_die(child: Child, request: Any) -> Any:
        answer = await asked(child, request)
        if next(dies, False):
            await child.kill()
            raise ChildFailed("the tool worker died (killed by SIGKILL)", began=True)
        return answer

    monkeypatch.setattr(Child, "call", call_and_die)
    bench.coder(replies([(name, arguments)]))
    asks = name in ("write", "edit")
    assert (await bench.run_while(answers(bench, *[{}] * asks))).exit_code == 0
    assert calls_of(bench, name) == [ended]
    assert len(bench.state["approvals"]) == asks
    assert ("Verify before you repeat it" in bench.tasks()["a"]["result"]) == (ended[0] == "unknown")


async def test_a_call_of_a_worker_that_never_had_it_is_an_error_and_had_no_effect(bench, note, monkeypatch):
    async def dead(child: Child, request: Any) -> Any:
        await child.kill()
        raise ChildFailed("the tool worker died")

    monkeypatch.setattr(Child, "call", dead)
    bench.coder(replies([("edit", {"file_path": "note.txt", "old_string": "a", "new_string": "b"})]))
    note.write_text("a")
    await bench.run_while(answers(bench, {}))
    assert calls_of(bench, "edit") == [("error", 1)]


# --- Files that make other programs run code ------------------------------------------------------------------

GUARDED_FILES = [
    ".git/hooks/pre-commit", "sub/.git/config", ".claude/settings.json", ".codex/config.toml", ".opencode/x.json",
    ".mcp.json", "sub/.envrc", ".vscode/tasks.json", ".github/workflows/ci.yml", "AGENTS.md", "sub/CLAUDE.md",
    "./sub/../.git/config", "agents.md", "link/config",
]  # fmt: skip


async def test_a_write_that_makes_other_programs_run_code_asks_whatever_is_allowed(bench):
    (bench.workspace / ".git").mkdir()
    (bench.workspace / "link").symlink_to(bench.workspace / ".git")
    writes = [[("write", {"file_path": path, "content": "x"})] for path in (*GUARDED_FILES, "plain")]
    bench.coder(replies(*writes), allow=("write", "edit"))
    await bench.run_while(answers(bench, *[{"kind": "deny"}] * len(GUARDED_FILES)))
    asked = bench.state["approvals"]
    assert len(asked) == len(GUARDED_FILES)
    assert {each["cause"] for each in asked} == {"guarded"}
    assert all("always needs approval" in each["note"] for each in asked)
    assert not [path for path in GUARDED_FILES if (bench.workspace / path).exists()]
    assert (bench.workspace / "plain").exists()


async def test_a_guarded_write_is_allowed_once_and_never_always(bench):
    write = ("write", {"file_path": "AGENTS.md", "content": "x"})
    bench.coder(replies([write], [write]))

    async def answer() -> None:
        (first,) = await bench.waiting()
        always = {"approval": first["id"], "scope": "tool"}
        await bench.applied(bench.submit("approve", payload=always), "refused")
        await answers(bench, {}, {})()

    assert (await bench.run_while(answer)).exit_code == 0
    assert [one["cause"] for one in bench.state["approvals"]] == ["guarded", "guarded"]


async def test_a_path_that_was_granted_is_written_without_a_question_and_no_other(bench):
    (bench.workspace / ".github").mkdir()
    (bench.workspace / ".github" / "out").symlink_to(bench.workspace / ".git")
    paths = [".github/workflows/ci.yml", ".github/../AGENTS.md", ".github/out/config"]
    given = [[("write", {"file_path": path, "content": "x"})] for path in paths]
    bench.coder(replies(*given), allow=("write:.github/**",), approval_timeout_seconds=0.0)
    assert (await bench.run()).exit_code == 0
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'write' ORDER BY id") == [
        ("done",), ("denied",), ("denied",),
    ]  # fmt: skip
    assert (bench.workspace / paths[0]).read_text() == "x"
