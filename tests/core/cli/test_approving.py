"""`wk show`, `wk approve`: a question is printed whole, and answered in every way."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, flat, said, task, turns

from watchkeeper.cli.app import run
from watchkeeper.records.messages import ModelRequest
from watchkeeper.store.database import open_readonly, open_writable
from watchkeeper.store.snapshot import SessionSnapshotReader

COMMAND = (
    "printf '%s\\n' \\\n  "
    + " \\\n  ".join(f"argument-{number}" for number in range(300))
    + "\necho 'the end' \x1b[2J\u202e"
)


def asks(tool: str, arguments: dict[str, Any]) -> Any:
    def work(name: str, request: ModelRequest) -> Any:
        return [call(tool, arguments)] if turns(request) == 0 else [said(flat(request.messages[-1:]))]

    return PlannedRun([task("a", role="coder")], work)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Bench(tmp_path)


async def waiting(bench: Bench, tool: str, arguments: dict[str, Any]) -> str:
    """A session that is paused with a question that waits; its id."""
    bench.start(asks(tool, arguments), approval_timeout_seconds=None)

    async def pause() -> None:
        await bench.until(lambda state: [one for one in state["approvals"] if one["status"] == "waiting"])
        bench.submit("pause")

    await bench.run_while(pause)
    return str(bench.state["approvals"][0]["id"])


async def test_a_question_is_printed_whole_and_nothing_in_it_acts(bench, capsys):
    question = await waiting(bench, "bash", {"command": COMMAND, "timeout_ms": 7_000})
    for arguments in (
        ["show", bench.session],
        ["approve", "--show", question],
        ["approve", bench.session, question[:5], "--show"],
    ):
        assert run([*arguments, "--db", str(bench.path)]) == 0
        printed = capsys.readouterr().out
        for number in range(300):
            assert f"  argument-{number} \\\n" in printed or number == 299
        assert "echo 'the end' <U+001B>[2J<U+202E>" in printed
        assert "\x1b" not in printed
        assert "7000" in printed
        assert "a (coder) wants to run bash" in printed
        assert "Do a" in printed
        assert str(bench.workspace) in printed


async def test_json_is_harmless_on_a_terminal_and_the_same_value(bench, capsys):
    command = "echo '\x9b2J\x1b[2J\u202e\u200b\U000e0041 é漢'"
    question = await waiting(bench, "bash", {"command": command})
    for arguments in (["approve", "--show", question], ["show", bench.session]):
        assert run([*arguments, "--json", "--db", str(bench.path)]) == 0
        printed = capsys.readouterr().out
        assert not set(printed) & set("\x9b\x1b\u202e\u200b\U000e0041")
        assert "é漢" in printed
        if arguments[0] == "approve":
            assert json.loads(printed)["input"]["command"] == command


async def test_a_change_of_a_file_is_printed_as_a_difference_from_the_file_as_it_is_now(bench, capsys):
    (bench.workspace / "f.txt").write_text("one\ntwo\nthree\n")
    question = await waiting(bench, "edit", {"file_path": "f.txt", "old_string": "two", "new_string": "2"})
    (bench.workspace / "f.txt").write_text("zero\none\ntwo\nthree\n")
    assert run(["approve", "--show", question, "--db", str(bench.path)]) == 0
    printed = capsys.readouterr().out
    assert "  @@ -1,4 +1,4 @@\n   zero\n   one\n  -two\n  +2\n   three\n" in printed


@pytest.mark.parametrize(
    ("options", "payload"), [([], {}), (["--always"], {"scope": "tool"}),
     (["--pattern", "echo  1 *"], {"scope": "pattern", "pattern": "echo 1 *"}),
     (["--edit", "echo 2"], {"edited_input": {"command": "echo 2"}})],
)  # fmt: skip
async def test_every_answer_is_a_command_for_the_host(bench, options, payload):
    question = await waiting(bench, "bash", {"command": "echo 1"})
    assert run(["approve", bench.session, question, *options, "--db", str(bench.path)]) == 0
    stored = json.loads(bench.query("SELECT payload FROM commands WHERE kind = 'approve'")[0][0])
    assert {name: value for name, value in stored.items() if name not in ("approval", "reason")} == payload


async def test_an_edit_that_names_another_file_is_one_answer(bench: Bench) -> None:
    (bench.workspace / "other").write_text("before")
    question = await waiting(bench, "write", {"file_path": "named", "content": "x"})
    edit = json.dumps({"file_path": "other", "content": "after"})
    assert run(["approve", question, "--edit", edit, "--db", str(bench.path)]) == 0
    await bench.run()
    assert (bench.workspace / "other").read_text() == "after"
    assert not (bench.workspace / "named").exists()
    assert bench.query("SELECT cause, status FROM approvals") == [("permission", "approved")]


async def test_a_pattern_that_matches_nothing_is_refused_in_one_line(bench, capsys):
    question = await waiting(bench, "bash", {"command": "echo 1"})
    assert run(["approve", question, "--pattern", "echo *; id", "--db", str(bench.path)]) == 2
    assert "matches nothing" in capsys.readouterr().err
    assert not bench.query("SELECT 1 FROM commands WHERE kind = 'approve'")


async def test_grants_are_listed_and_revoked_while_no_host_lives(bench, capsys):
    question = await waiting(bench, "bash", {"command": "echo 1"})
    assert run(["approve", question, "--pattern", "echo *", "--db", str(bench.path)]) == 0
    await bench.run()
    capsys.readouterr()
    assert run(["approve", "--grants", "--db", str(bench.path)]) == 0
    assert "bash: echo *" in capsys.readouterr().out
    assert run(["approve", "--revoke", "1", "--db", str(bench.path)]) == 2
    assert "wk approve SESSION --revoke ID" in capsys.readouterr().err
    assert run(["approve", bench.session, "--revoke", "1", "--db", str(bench.path)]) == 0
    assert run(["approve", bench.session, "--revoke", "1", "--db", str(bench.path)]) == 2
    assert "is already revoked" in capsys.readouterr().err
    assert run(["approve", "--grants", bench.session, "--json", "--db", str(bench.path)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["revoked_by"] == "command line"


@pytest.mark.parametrize("status", ["unknown", "cancelled"])
async def test_a_question_whose_call_has_ended_is_neither_listed_nor_answered(bench, capsys, status):
    question = await waiting(bench, "bash", {"command": "make"})
    with closing(open_writable(bench.path)) as connection:
        connection.execute("UPDATE tool_calls SET status = ?", (status,))
    for answer in ("approve", "deny"):
        assert run([answer, bench.session, question, "--db", str(bench.path)]) == 3
        assert (
            f"question {question} cannot be answered: its call has already ended" in capsys.readouterr().err
        )
    assert run(["show", bench.session, "--db", str(bench.path)]) == 0
    assert "wants to run" not in capsys.readouterr().out
    with closing(open_readonly(bench.path)) as connection:
        read = SessionSnapshotReader(bench.session).read(connection, 0.0)
        assert read is not None
        assert read.approvals == ()
    # A command that was queued before the call ended is refused by the host.
    bench.submit("approve", payload={"approval": question})
    await bench.run()
    assert "its call has already ended" in str(bench.state["commands"][-1]["result"])


async def two_questions(bench: Bench) -> list[str]:
    """A session that is paused with two questions that wait; their ids."""

    def work(name: str, request: ModelRequest) -> Any:
        return [call("bash", {"command": f"echo {name}"})] if turns(request) == 0 else [said("done")]

    plan = PlannedRun([task("a", role="coder"), task("b", role="coder")], work)
    bench.start(plan, approval_timeout_seconds=None)

    async def pause() -> None:
        await bench.waiting(2)
        bench.submit("pause")

    await bench.run_while(pause)
    return [str(one["id"]) for one in bench.state["approvals"]]


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_last_and_a_session_name_the_only_question_and_list_them_where_several_wait(
    bench, capsys, answer
):
    questions = await two_questions(bench)
    for words in (["last"], [bench.session], [bench.session, "last"]):
        assert run([answer, *words, "--db", str(bench.path)]) == 2
        told = capsys.readouterr()
        assert all(question in told.out for question in questions)
        assert "2 questions are pending; give the id of one" in told.err
    assert run([answer, "--db", str(bench.path)]) == 0
    told = capsys.readouterr().out
    assert all(question in told for question in questions)
    assert "echo a" in told
    assert run([answer, "--json", "--db", str(bench.path)]) == 0
    assert {one["id"] for one in json.loads(capsys.readouterr().out)} == set(questions)
    assert bench.query("SELECT 1 FROM commands WHERE kind = ?", answer) == []
    with closing(open_writable(bench.path)) as connection:
        connection.execute("UPDATE approvals SET status = 'denied' WHERE id = ?", (questions[0],))
    assert run([answer, bench.session, "--db", str(bench.path)]) == 0
    assert "echo " in capsys.readouterr().out
    (stored,) = bench.query("SELECT payload FROM commands WHERE kind = ?", answer)
    assert json.loads(stored[0])["approval"] == questions[1]


async def test_without_a_question_nothing_is_listed_and_last_names_none(bench, capsys):
    bench.start(PlannedRun([task("a")], lambda name, request: [said("done")]))
    await bench.run()
    assert run(["approve", "--db", str(bench.path)]) == 0
    assert "no pending questions" in capsys.readouterr().out
    assert run(["approve", "last", "--db", str(bench.path)]) == 3
    assert run(["approve", bench.session, "--db", str(bench.path)]) == 3


async def test_a_pattern_that_does_not_match_the_waiting_command_allows_nothing(bench, capsys):
    question = await waiting(bench, "bash", {"command": "git log --output=x"})
    for pattern in ("git status *", "git log *"):
        assert run(["approve", question, "--pattern", pattern, "--db", str(bench.path)]) == 2
        assert "does not match the pending command" in capsys.readouterr().err
    assert not bench.query("SELECT 1 FROM commands WHERE kind = 'approve'")
    number = bench.submit(
        "approve", payload={"approval": question, "scope": "pattern", "pattern": "git log *"}
    )

    async def stop() -> None:
        await bench.applied(number, "refused")
        bench.submit("pause")

    await bench.run_while(stop)
    assert "does not match" in bench.command(number)["result"]
    assert bench.state["approvals"][0]["status"] == "waiting"
    assert not (bench.workspace / "x").exists()
