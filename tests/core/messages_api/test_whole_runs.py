"""A plan with dependencies and parallel sub-agents, from an empty database to `done`, over the real SDK."""

from __future__ import annotations

import threading

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import NOTES, PARTS, TURNS, Notes, Survey
from tests.support.answers import Body, Held, Reply, Status, text


async def test_explorers_read_the_workspace_in_parallel_and_the_writer_builds_on_what_they_saved(
    ground: Ground,
) -> None:
    survey = Survey()
    server = ground.serve(survey)
    result = await ground.drive(max_parallel=2)
    assert server.script_errors == []
    assert (result.status, result.exit_code) == ("done", 0)
    assert {name: found[:2] for name, found in ground.tasks().items()} == dict.fromkeys(
        (*PARTS, "summary"), ("done", 1)
    )
    assert server.refused == [], "a context broke a rule of the Messages API"
    assert survey.asked.keys() >= TURNS
    assert set(survey.asked.values()) == {1}
    assert ground.query("SELECT status, count(*) FROM tool_calls GROUP BY status") == [("done", 23)]
    ground.assert_sound()


def test_the_command_line_needs_nothing_but_the_sdks_own_environment_variables(ground: Ground) -> None:
    """Events of the whole run, one a line, then the result; and `wk show` tells the figures of every part."""

    def fault(name: str, turn: int, count: int) -> Status | None:
        retry = name == "one" and turn == 1 and count <= 2
        return (
            Status(529, "overloaded_error", "Overloaded", headers={"retry-after": "0.01"}) if retry else None
        )

    notes = Notes(fault=fault)
    server = ground.serve(notes)
    ground.new_processes = True
    ended = ground.run()
    assert (ended.code, ended.err) == (0, "")
    assert (
        ended.result.items()
        >= {"type": "result", "status": "done", "tasks": {"done": 3, "failed": 0}, "cost_usd": None}.items()
    )
    events = ended.lines[:-1]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["type"] for event in events} == {"event"}
    assert {headers["authorization"] for headers in server.headers} == {"Bearer test-key"}
    assert server.refused == []

    calls = ground.query(
        "SELECT status, retries, latency_seconds, first_token_seconds, usage_exact, request_id FROM"
        " model_calls"
    )
    assert {(row[0], row[4], row[5]) for row in calls} == {("done", 1, "req_scripted")}
    assert sorted(row[1] for row in calls)[-2:] == [0, 2]
    assert all(0 < row[3] <= row[2] for row in calls)

    shown = ground.show()
    by_name = {one["name"]: one for one in shown["plan"]["tasks"]}
    agents = {one["id"]: one for one in shown["agents"]}
    assert (
        by_name["one"]["retries"]
        == agents[by_name["one"]["agent"]]["retries"]
        == shown["session"]["retries"]
        == 2
    )
    for task in by_name.values():
        assert task["tokens"]["input"] + task["tokens"]["cache_write"] > 0
        assert task["tokens"]["output"] > 0
        assert task["tokens"]["cache_read"] > 0, "the prompt cache was never read"
        assert task["elapsed_seconds"] > 0
        assert task["cost_usd"] is None, "a model that nobody prices is unpriced, never $0"
    total = {key: sum(one["tokens"][key] for one in agents.values()) for key in shown["session"]["tokens"]}
    assert shown["session"]["tokens"] == total == ended.result["tokens"]
    ground.assert_sound()


async def test_the_usage_of_each_call_is_what_the_provider_reported(ground: Ground) -> None:
    notes = Notes([NOTES[0]])
    server = ground.serve(notes)
    reported = []
    usage_of = server._cache.usage
    server._cache.usage = lambda body: reported.append(usage_of(body)) or reported[-1]  # type: ignore[method-assign,func-returns-value]
    await ground.drive()
    rows = ground.query(
        "SELECT input_tokens, cache_read_tokens, cache_write_tokens FROM model_calls ORDER BY id"
    )
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert rows == [tuple(one[name] for name in names) for one in reported]


async def test_a_model_with_a_public_price_has_a_cost_on_every_call(ground: Ground) -> None:
    ground.serve(Notes([NOTES[0]]))
    await ground.drive(ground.runtime(name="claude-sonnet-5"))
    costs = [row[0] for row in ground.query("SELECT cost_usd FROM model_calls")]
    assert all(cost > 0 for cost in costs)
    assert ground.query("SELECT cost_usd FROM sessions") == [(pytest.approx(sum(costs)),)]


async def test_sub_agents_call_the_model_side_by_side(ground: Ground) -> None:
    """Neither of two tasks is answered before both have asked."""
    both = threading.Barrier(2, action=(answered := threading.Event()).set)

    def work(name: str, turn: int, body: Body) -> Held:
        threading.Thread(target=both.wait, args=(20,), daemon=True).start()
        return Held(Reply([text(f"{name} is done")]), until=answered)

    ground.serve(Notes(NOTES[:2], work=work))
    assert (await ground.drive()).status == "done"
