"""What providers do in the middle of a run: it is asked again, and the run ends as it would have ended."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import NOTES, Notes, numbered, says, uses
from tests.support.answers import Body, Cut, Drop, Raw, Reply, Status
from tests.support.model_calls import IMPATIENT
from tests.support.scripted import task

RESULT = Reply(
    numbered([says("one moment"), uses("remember", text="half of it"), uses("recall", query="half")], 1)
)
PASSING: dict[str, Any] = {
    "429": Status(429, "rate_limit_error", "slow down", headers={"retry-after": "0.01"}),
    "500": Status(500, "api_error", "Internal server error"), "529": Status(529, "overloaded_error", "Overloaded"),
    "503 in HTML": Status(503, body=b"<html>Bad gateway</html>"), "dropped": Drop(),
    "disconnected": Cut(RESULT, 7, "disconnect"), "truncated": Cut(RESULT, 9, "truncate"),
    "stalled": Cut(RESULT, 5, "stall"),
    "an error event": Raw(
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
    ),
    "not JSON": Raw(b"event: message_start\ndata: {oh no\n\n"), "nothing but a comment": Raw(b": nothing\n\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", PASSING)
async def test_a_passing_fault_is_retried_and_leaves_no_trace_in_the_conversation(
    ground: Ground, what: str
) -> None:
    """Twice, in the middle of one sub-agent's work and once at the planner's first turn."""

    def fault(name: str, turn: int, count: int) -> Any:
        struck = (name == "one" and turn == 1 and count <= 2) or (
            name == "planner" and turn == 0 and count == 1
        )
        return PASSING[what] if struck else None

    notes = Notes(fault=fault)
    ground.serve(notes)
    # Where a stream falls silent, patience is short; a busy machine may then lose one more.
    result = await ground.drive(ground.runtime(timeouts=IMPATIENT) if what == "stalled" else None)
    assert (result.status, result.exit_code) == ("done", 0)
    retries = ground.query("SELECT sum(retries) FROM model_calls WHERE status = 'done'")[0][0]
    assert retries == 3 or (what == "stalled" and retries > 3)
    assert ground.query("SELECT count(*) FROM facts WHERE text = 'half of it'") == [(0,)]
    assert max(notes.asked.values()) == 3 or what == "stalled"
    ground.assert_done()


@pytest.mark.parametrize("what", ["disconnected", "truncated", "an error event"])
async def test_what_a_broken_attempt_had_used_is_counted_and_marked_as_partial(
    ground: Ground, what: str
) -> None:
    def fault(name: str, turn: int, count: int) -> Any:
        return PASSING[what] if name == "one" and turn == 1 and count <= 2 else None

    ground.serve(Notes(NOTES[:1], fault=fault))
    assert (await ground.drive()).status == "done"
    broken = ground.query(
        "SELECT status, usage_exact, price_status, input_tokens + cache_read_tokens + cache_write_tokens > 0,"
        " error IS NOT NULL FROM model_calls WHERE status <> 'done'"
    )
    # An error event before `message_start` tells of no use.
    status = "unpriced"
    assert broken == ([] if what == "an error event" else [("error", 0, status, 1, 1)] * 2)
    columns = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    sums = ", ".join(f"sum({name})" for name in columns)
    (of_calls,) = ground.query(f"SELECT {sums} FROM model_calls")
    assert ground.query(f"SELECT {sums} FROM agents") == [of_calls]
    assert ground.query(f"SELECT {', '.join(columns)} FROM sessions") == [of_calls]


async def test_an_outage_longer_than_every_retry_fails_the_task_and_the_planner_resumes_it(
    ground: Ground,
) -> None:
    def fault(name: str, turn: int, count: int) -> Any:
        return PASSING["529"] if name == "one" and turn == 2 and count <= 6 else None

    notes = Notes(fault=fault)
    ground.serve(notes)
    assert (await ground.drive()).status == "done"
    assert ground.query("SELECT count(*) FROM inbox WHERE kind = 'task_failed'") == [(1,)]
    assert ground.query("SELECT retries, status FROM model_calls WHERE status != 'done'") == [(5, "error")]
    ground.assert_done()


async def test_an_outage_at_the_planner_pauses_the_session_for_a_later_resume(ground: Ground) -> None:
    down = [True]
    ground.serve(
        Notes(
            NOTES[:1],
            fault=lambda name, turn, count: PASSING["500"] if name == "planner" and down[0] else None,
        )
    )
    runtime = ground.runtime()
    result = await ground.drive(runtime)
    assert (result.status, result.exit_code) == ("paused", 5)
    down[0] = False
    (session,) = ground.query("SELECT id FROM sessions")[0]
    assert (await runtime.run(session)).status == "done"
    ground.assert_sound()


async def test_a_prompt_that_is_too_long_is_compacted_once_and_the_task_carries_on(ground: Ground) -> None:
    """The provider's window is smaller than anybody said."""

    def work(name: str, turn: int, body: Body) -> Any:
        if turn_count(body) < 5:
            return [uses("save_artifact", name=f"n{turn_count(body)}", content="words " * 2_000)]
        return [says("done")]

    def turn_count(body: Body) -> int:
        # After a compaction, the replies that stay verbatim no longer tell how many there were.
        return (
            ground.query("SELECT count(*) FROM outputs WHERE name LIKE 'n%'")[0][0]
            if ground.path.exists()
            else 0
        )

    too_long = Status(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
    notes = Notes(
        [task("big")],
        work=work,
        fault=lambda name, turn, count: too_long if (name, turn) == ("big", 3) and count == 1 else None,
    )
    ground.serve(notes)
    result = await ground.drive()
    assert (result.status, result.exit_code) == ("done", 0)
    applied = ground.query("SELECT status, trigger FROM compactions")
    assert applied == [("applied", "overflow")]
    assert ground.query("SELECT count(*) FROM model_calls WHERE status = 'error'") == [(1,)]
    ground.assert_done()


async def test_a_prompt_that_stays_too_long_fails_the_task_with_a_reason_that_says_so(ground: Ground) -> None:
    too_long = Status(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
    told: list[str] = []
    full = [False]

    def fault(name: str, turn: int, count: int) -> Status | None:
        full[0] = full[0] or (name, turn) == ("one", 2)
        return too_long if full[0] and name == "one" else None

    class Gives(Notes):
        def plan(self, turn: int, body: Body) -> list[dict[str, Any]]:
            if "task_failed" in str(body["messages"][-1]) and "tool_result" not in str(body["messages"][-1]):
                told.append(str(body["messages"][-1]))
                return [uses("drop_task", task="one")]
            if told:
                return [uses("finish_session", summary="given up", status="failed")]
            return super().plan(turn, body)

    ground.serve(Gives(NOTES[:1], fault=fault))
    result = await ground.drive()
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "too long" in told[0]
    ground.assert_sound()


async def test_a_bad_request_fails_the_task_at_once_and_is_not_asked_again(ground: Ground) -> None:
    bad = Status(400, "invalid_request_error", "temperature: must be between 0 and 1")
    notes = Notes(
        NOTES[:1], fault=lambda name, turn, count: bad if (name, turn, count) == ("one", 1, 1) else None
    )
    ground.serve(notes)
    assert (await ground.drive()).status == "done"
    assert notes.asked["one", 1] == 2, "once refused, once after the planner resumed it"
    assert ground.query("SELECT status, retries FROM model_calls WHERE status = 'error'") == [("error", 0)]


async def test_a_server_with_a_smaller_window_than_anybody_said_is_worked_with_for_a_long_task(
    ground: Ground,
) -> None:
    """A local server refuses prompts above its own window, again and again: each time the agent makes room
    and goes on."""

    def work(name: str, turn: int, body: Body) -> Any:
        done = len(ground.query("SELECT 1 FROM outputs WHERE name LIKE 'n%'"))
        if done < 30:
            return [uses("save_artifact", name=f"n{done}", content=f"part {done} " + "words " * 500)]
        return [says("done")]

    notes = Notes([task("long")], work=work)
    server = ground.serve(notes, context_tokens=9_000)
    result = await ground.drive()
    assert (result.status, server.script_errors, server.refused) == ("done", [], [])
    assert ground.query("SELECT count(*) FROM outputs WHERE name LIKE 'n%'") == [(30,)]
    assert ground.query(
        "SELECT count(*) > 1 FROM compactions WHERE status = 'applied' AND trigger = 'overflow'"
    ) == [(1,)]
    ground.assert_done()
