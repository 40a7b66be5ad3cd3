"""The guide's table of odd replies: what a person sees of each, what is stored, how the run goes on. Over the
real SDK."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import Notes, says, uses
from tests.support.answers import Body, Reply, tool
from tests.support.guide import DOCS, cell, has_row
from tests.support.scripted import inbox_of, task

PAGE = "model-faults.md"
HUGE = "x" * 2_000_000


@dataclass(frozen=True)
class Case:
    """What one sub-agent gets for its first turns; then it says that it is done."""

    name: str
    replies: list[Any]
    for_ever: bool = False
    """The last reply comes again and again, until the task is told to stop."""
    budgets: dict[str, float] = field(default_factory=dict)


class GivesUp(Notes):
    """A planner that drops a task that failed, and finishes with what there is."""

    def plan(self, turn: int, body: Body) -> list[dict[str, Any]]:
        failed = [item["task"] for item in inbox_of(body["messages"][-1]) if item["kind"] == "task_failed"]
        if failed:
            return [uses("drop_task", task=name, reason="it cannot be done") for name in failed]
        if "dropped" in str(body["messages"][-1]):
            return [uses("finish_session", summary="one task was given up")]
        return super().plan(turn, body)


def numbered(turn: int) -> list[dict[str, Any]]:
    return [uses("remember", text=f"fact {turn}")]


CASES = [
    Case("tool input that is no JSON, beside a whole call", [
        Reply([tool("remember", {}, "t1"), tool("remember", {"text": "whole"}, "t2")], raw_inputs={"t1": '{"text": "half a fac'})]),
    Case("a tool call cut off by `max_tokens`", [
        Reply([tool("remember", {}, "t1")], stop_reason="max_tokens", raw_inputs={"t1": '{"text": "half'})]),
    Case("tool input of the wrong type", [[uses("remember", text=7)]]),
    Case("tool input of two million characters", [[uses("save_artifact", name="huge.txt", content=HUGE)]]),
    Case("two calls with one id", [Reply([tool("remember", {"text": "a"}, "same"), tool("remember", {"text": "b"}, "same")])]),
    Case("an unknown tool", [[uses("launch_rockets", target="moon")]]),
    Case("an empty reply", [Reply([], stop_reason="end_turn")]),
    Case("a block of an unknown type", [Reply([{"type": "hologram", "data": "…"}, tool("remember", {"text": "a"}, "t1")])]),
    Case("an unknown stop reason", [Reply([says("the end")], stop_reason="out_of_ink")]),
    Case("a reply cut off by `max_tokens`", [Reply([says("The first half")], stop_reason="max_tokens")]),
    Case("a refusal", [Reply([says("I will not.")], stop_reason="refusal")], for_ever=True),
    Case("the same call without end", [[uses("recall", query="the same")]], for_ever=True),
    Case("other calls without end, under a budget of 12 turns", [], for_ever=True, budgets={"turns": 12}),
]  # fmt: skip


async def seen(case: Case, ground: Ground) -> str:
    """Run it; the row of the table that tells what came of it."""

    def work(name: str, turn: int, body: Body) -> Any:
        if turn < len(case.replies):
            return case.replies[turn]
        if case.for_ever:
            return case.replies[-1] if case.replies else numbered(turn)
        return [says("done")]

    server = ground.serve(GivesUp([task("one")], work=work))
    result = await ground.drive(budgets=case.budgets or None)
    assert (server.script_errors, server.refused) == ([], [])
    ground.assert_sound()
    told = ground.query(
        "SELECT json_extract(b.value, '$.content') FROM messages m JOIN agents a ON a.id = m.agent_id,"
        " json_each(m.content) b"
        " WHERE a.task_id IS NOT NULL AND m.content LIKE '[%' AND json_extract(b.value, '$.is_error')"
        " UNION ALL SELECT json_extract(data, '$.reason') FROM events WHERE kind = 'task.failed'"
        " UNION ALL SELECT status_reason FROM sessions WHERE status = 'paused'"
    )
    calls = ground.query(
        "SELECT t.name, t.status, count(*) FROM tool_calls t JOIN agents a ON a.id = t.agent_id WHERE"
        " a.task_id IS NOT NULL"
        " GROUP BY t.name, t.status ORDER BY min(t.id)"
    )
    stored = ", ".join(
        f"`{name}` {status}" + (f" ×{count}" if count > 1 else "") for name, status, count in calls
    )
    replies = ground.query(
        "SELECT count(*) FROM messages m JOIN agents a ON a.id = m.agent_id WHERE a.task_id IS NOT NULL AND"
        " m.role = 'assistant'"
    )[0][0]
    status = ground.tasks()["one"][0]
    lines = [_short(line) for (line,) in told[:1]] or ["nothing out of the ordinary"]
    kept = f"{replies} {'reply' if replies == 1 else 'replies'}" + (f"; calls: {stored}" if stored else "")
    return f"| {case.name} | {cell(lines[0])} | {kept} | task {status}, session {result.status} |"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.long] if "two million" in case.name else [])
        for case in CASES
    ],
)
async def test_each_odd_reply_is_seen_stored_and_documented(case: Case, ground: Ground) -> None:
    row = await seen(case, ground)
    has_row(PAGE, "odd replies", row)


def test_the_table_of_odd_replies_names_none_that_is_not_tested() -> None:
    rows = re.findall(
        r"^\| (.+?) \| .* \| task \w+, session \w+ \|$", (DOCS / PAGE).read_text(), re.MULTILINE
    )
    assert rows == [case.name for case in CASES]


def _short(text: str) -> str:
    one = " ".join(text.split())
    return one if len(one) <= 160 else one[:159] + "…"
