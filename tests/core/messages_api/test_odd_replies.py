"""Replies that no well-behaved provider gives: nothing broken runs, the model is told, and the run goes
on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import NOTES, Notes, says, uses
from tests.support.answers import Body, Reply, text_of, tool
from tests.support.messages_server import MessagesServer
from tests.support.scripted import task

FIRST = NOTES[:1]


def told_by(server: MessagesServer, body_with: str) -> list[Body]:
    """The tool results of the first request that holds a text."""
    for body in server.requests:
        content = body["messages"][-1]["content"]
        results = [
            block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"
        ]
        if any(body_with in text_of({"role": "user", "content": [block]}) for block in results):
            return results
    raise AssertionError(f"no request told the model {body_with!r}")


async def in_one_task(ground: Ground, *replies: Any, role: str = "explorer") -> MessagesServer:
    """Drive a run of one task that gets these replies, then ends; the run must be done."""

    def work(name: str, turn: int, body: Body) -> Any:
        return replies[turn] if turn < len(replies) else [says("done")]

    server = ground.serve(Notes([task("one", role=role)], work=work))
    result = await ground.drive()
    assert (result.status, result.exit_code) == ("done", 0)
    ground.assert_done()
    return server


@pytest.mark.parametrize(
    "raw",
    ['{"text": "half a fac', '{"text": "a"} {"text": "b"}', "[1, 2]", "null", '"text"', "{'text': 'a'}"],
)
async def test_a_call_whose_input_arrives_broken_never_runs_and_its_neighbour_does(
    ground: Ground, raw: str
) -> None:
    broken = Reply(
        [tool("remember", {}, "t1"), tool("remember", {"text": "whole"}, "t2")], raw_inputs={"t1": raw}
    )
    server = await in_one_task(ground, broken)
    told = told_by(server, "not run")
    assert [block.get("is_error", False) for block in told] == [True, False]
    assert ground.query("SELECT text FROM facts") == [("whole",)]
    assert ground.query("SELECT status FROM tool_calls WHERE name = 'remember' ORDER BY id") == [
        ("error",),
        ("done",),
    ]


async def test_a_broken_call_that_shares_its_id_with_a_whole_one_never_runs_either(ground: Ground) -> None:
    twins = Reply(
        [tool("remember", {}, "same"), tool("compact", {}, "same")], raw_inputs={"same": '{"text": '}
    )
    await in_one_task(ground, twins)
    assert ground.query(
        "SELECT count(*) FROM tool_calls WHERE name IN ('compact', 'remember') AND status = 'done'"
    ) == [(0,)]


async def test_calls_of_one_reply_with_the_same_id_each_get_their_own_result(ground: Ground) -> None:
    server = await in_one_task(
        ground, Reply([tool("remember", {"text": "a"}, "same"), tool("remember", {"text": "b"}, "same")])
    )
    assert len({block["tool_use_id"] for block in told_by(server, "stored as fact")}) == 2
    assert ground.query("SELECT text FROM facts ORDER BY id") == [("a",), ("b",)]


async def test_an_id_that_comes_again_in_a_later_turn_does_not_spoil_the_history(ground: Ground) -> None:
    """Small servers number their calls from `call_0` in every reply; the Messages API refuses ids that
    repeat."""
    await in_one_task(ground, *(Reply([tool("remember", {"text": f"fact {n}"}, "call_0")]) for n in range(3)))
    assert ground.query("SELECT count(*) FROM facts") == [(3,)]


async def test_an_unknown_tool_is_an_error_that_names_those_there_are(ground: Ground) -> None:
    server = await in_one_task(
        ground,
        [
            uses("launch_rockets", target="moon"),
            uses("create_plan", goal="mine", tasks=[]),
            uses("save_artefact"),
        ],
    )
    unknown, of_another_role, nearly = told_by(server, "launch_rockets")
    assert "Did you mean save_artifact?" in text_of({"role": "user", "content": [nearly]})
    assert unknown["is_error"]
    assert of_another_role["is_error"]
    assert "remember" in text_of({"role": "user", "content": [unknown]})
    assert ground.query("SELECT count(*) FROM plans") == [(1,)]


async def test_a_task_that_ends_without_a_word_is_asked_for_its_result_once(ground: Ground) -> None:
    notes = Notes(
        [task("one"), task("two")],
        work=lambda name, turn, body: Reply([] if turn == 0 or name == "two" else [says("It is so.")]),
    )
    server = ground.serve(notes)
    assert (await ground.drive()).status == "done"
    results = dict(ground.query("SELECT name, result FROM tasks"))
    assert results["one"] == "It is so."
    assert notes.asked["two", 1] == 1
    assert not notes.asked["two", 2]
    assert "Your reply was empty" in str([body["messages"] for body in server.requests])
    ground.assert_done()


async def test_tools_that_ask_are_denied_when_nobody_is_there_to_answer(ground: Ground) -> None:
    asked = [uses("write", file_path="new.txt", content="x"), uses("bash", command="touch made")]
    server = await in_one_task(ground, asked, role="coder")
    told = told_by(server, "denied")
    assert all(block["is_error"] for block in told)
    assert not (ground.workspace / "new.txt").exists()
    assert not (ground.workspace / "made").exists()


async def test_a_reply_cut_at_its_limit_is_asked_to_go_on(ground: Ground) -> None:
    server = await in_one_task(
        ground, Reply([says("The first half")], stop_reason="max_tokens"), Reply([says("and the second.")])
    )
    assert "cut off at the limit of 8,192 tokens. Continue" in str(
        [body["messages"] for body in server.requests]
    )
    assert "second" in ground.query("SELECT result FROM tasks")[0][0]


async def test_a_reply_that_is_cut_again_and_again_is_continued_three_times(ground: Ground) -> None:
    await in_one_task(ground, *(Reply([says(f"part {n}")], stop_reason="max_tokens") for n in range(6)))
    assert ground.query("SELECT result FROM tasks") == [("part 3",)]


async def test_a_refusal_fails_the_task_and_the_planner_hears_of_it(ground: Ground) -> None:
    def work(name: str, turn: int, body: Body) -> Any:
        if turn == 1:
            return Reply([says("I cannot help with that.")], stop_reason="refusal")
        return [uses("remember", text="begun")] if turn == 0 else [says("done after all")]

    server = ground.serve(Notes(FIRST, work=work))
    result = await ground.drive()
    assert (result.status, server.script_errors, server.refused) == ("done", [], [])
    assert ground.query(
        "SELECT count(*) FROM inbox WHERE kind = 'task_failed' AND payload LIKE '%refused%'"
    ) == [(1,)]
    ground.assert_done()


async def test_hostile_text_of_a_model_is_stored_as_it_came_and_shown_harmless(ground: Ground) -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J\u202eevil\u0000\ud800 end"
    await in_one_task(
        ground,
        [says(nasty), uses("remember", text=nasty)],
        [uses("save_artifact", name=nasty, content=nasty)],
    )
    for command in (
        ("show", "last"),
        ("agent", "report"),
        ("artifacts", "last"),
        ("memory", "search", "evil"),
    ):
        shown = ground.wk(*command)
        assert shown.code == 0, shown.err
        assert not {"\x1b", "\x07", "\u202e", "\x00"} & set(shown.out), command
