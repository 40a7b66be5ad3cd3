"""A plan with dependencies and parallel sub-agents, from an empty database to `done`, over the real SDK."""

from __future__ import annotations

import hashlib
import json
import threading
from itertools import pairwise
from typing import Any

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import NOTES, PARTS, TURNS, Notes, Survey, role_in, says, uses
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


def _run_with(ground: Ground, model: str, *options: str) -> Any:
    return ground.wk(
        "run", "reach the goal", "--model", model, "--headless", "--json", "--workspace", str(ground.workspace), *options
    )  # fmt: skip


def _efforts(server: Any) -> dict[str, set[str | None]]:
    """The efforts in the requests, by the role that asked; `memory` for a summary."""
    found: dict[str, set[str | None]] = {}
    for body in server.requests:
        role = role_in(body) if body.get("tools") else "memory"
        found.setdefault(role, set()).add(body.get("output_config", {}).get("effort"))
    return found


def test_an_effort_is_kept_with_the_session_and_shown_wherever_it_is_looked_at(ground: Ground) -> None:
    config = ground.workspace.parent / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text('effort = "low"\n[roles.planner]\neffort = "high"\n')

    def plan_and_think(body: Body) -> Any:
        answer = notes(body)
        assert isinstance(answer, Reply)
        return Reply(
            [{"type": "thinking", "thinking": "let me see", "signature": "c2lnbmVk"}, *answer.blocks]
        )

    notes = Notes(NOTES[:1])
    server = ground.serve(plan_and_think)
    ended = _run_with(ground, "anthropic/claude-sonnet-5", "--budget-turns", "2")
    assert ended.code == 5, ended.out + ended.err
    config.write_text('effort = "max"\n')
    resumed = ground.wk("resume", "last", "--headless", "--budget-turns", "50")
    assert resumed.code == 0, resumed.out + resumed.err
    assert "  effort low; planner high  " in resumed.out.splitlines()[0]
    ground.assert_done()
    assert _efforts(server) == {"planner": {"high"}, "explorer": {"low"}}
    adaptive = {"type": "adaptive", "display": "summarized"}
    assert all(body["thinking"] == adaptive for body in server.requests)
    planned = [body for body in server.requests if role_in(body) == "planner"]
    for before, after in pairwise(planned):
        assert (before["system"], before["tools"]) == (after["system"], after["tools"])
    thoughts = [block for block in planned[-1]["messages"][1]["content"] if block["type"] == "thinking"]
    assert thoughts == [{"type": "thinking", "thinking": "let me see", "signature": "c2lnbmVk"}]
    shown = ground.show()["session"]
    assert shown["effort"] == "low; planner high"
    assert {role["effort"] for role in shown["roles"] if role["role"] != "planner"} == {"low"}
    assert "effort low; planner high" in ground.wk("show", "last").out
    forked = ground.wk("fork", "last", "--json").result
    assert ground.wk("show", forked["session"], "--json").result["session"]["effort"] == "low; planner high"
    carried = ground.wk(
        "worker", "queue", "--from", shown["id"], "--model", "anthropic/claude-sonnet-5", "--json",
        "--workspace", str(ground.workspace), "--effort", "planner=medium",
    ).result  # fmt: skip
    assert (
        ground.wk("show", carried["session"], "--json").result["session"]["effort"] == "low; planner medium"
    )


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("anthropic/claude-haiku-4-5", "has no effort setting; effort xhigh is ignored"),
        ("anthropic/claude-opus-4-6", "does not support effort xhigh; using high, the nearest level"),
    ],
)
def test_an_effort_that_the_model_lacks_costs_one_line_and_no_run(
    ground: Ground, model: str, line: str
) -> None:
    server = ground.serve(Notes(NOTES[:1]))
    ended = _run_with(ground, model, "--effort", "xhigh")
    assert (ended.code, ended.result["status"]) == (0, "done"), ended.out + ended.err
    warned = [event["data"]["text"] for event in ended.lines[:-1] if event["kind"] == "host.warning"]
    assert warned == [f"{model} {line}"]
    used = {"anthropic/claude-haiku-4-5": None}.get(model, "high")
    assert _efforts(server) == {"planner": {used}, "explorer": {used}}
    shown = ground.show()["session"]["effort"]
    assert shown == ("xhigh (not supported by the model)" if used is None else "xhigh (uses high)")


def test_a_server_that_refuses_an_effort_costs_one_line_and_no_run(ground: Ground) -> None:
    def refuse(name: str, turn: int, count: int) -> Status | None:
        first = name == "planner" and turn == 0 and count == 1
        message = "output_config: Extra inputs are not permitted"
        return Status(400, "invalid_request_error", message) if first else None

    server = ground.serve(Notes(NOTES[:1], fault=refuse))
    ended = _run_with(ground, "anthropic/claude-opus-5", "--effort", "low")
    assert (ended.code, ended.result["status"]) == (0, "done"), ended.out + ended.err
    warned = [event["data"]["text"] for event in ended.lines[:-1] if event["kind"] == "host.warning"]
    assert len(warned) == 1
    assert "the server rejects `output_config`" in warned[0]
    assert ["output_config" in body for body in server.requests].count(True) == 1


def test_summaries_are_written_without_thinking(ground: Ground) -> None:
    summary = "Goal: reach the goal (#1).\nCurrent work: notes 0 to 2 are kept under one/0 to one/2 (#2).\nNext step: end (#1)."

    def work(name: str, turn: int, body: Body) -> Any:
        if turn < 3:
            return [uses("save_artifact", name=f"{name}/{turn}", content="some words to keep " * 300)]
        return [uses("compact")] if turn == 3 else [says(f"{name} is done.")]

    notes = Notes(NOTES[:1], work=work)
    server = ground.serve(lambda body: notes(body) if body.get("tools") else Reply([text(summary)]))
    ended = _run_with(ground, "anthropic/claude-opus-5", "--effort", "max")
    assert (ended.code, ended.result["status"]) == (0, "done"), ended.out + ended.err
    assert _efforts(server) == {"planner": {"max"}, "explorer": {"max"}, "memory": {None}}
    asides = [body["thinking"] for body in server.requests if not body.get("tools")]
    assert asides
    assert {one["type"] for one in asides} == {"disabled"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("huge", "'huge' is not a valid effort; use one of off, low, medium, high, xhigh, max"),
        ("boss=low", "unknown role 'boss'"),
    ],
)
def test_an_effort_that_does_not_exist_is_refused_before_anything_is_made(
    ground: Ground, given: str, said: str
) -> None:
    ended = _run_with(ground, "anthropic/claude-opus-5", "--effort", given)
    assert ended.code == 2
    assert said in ended.err
    assert not ground.path.exists() or ground.query("SELECT count(*) FROM sessions") == [(0,)]


class _Bound:
    """Thinks before each answer, and refuses thinking after anything before it has changed, as newer models do."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.refused: list[str] = []

    def __call__(self, body: Body) -> Any:
        messages = body["messages"]
        for place, message in enumerate(messages):
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] == "thinking" and block["signature"] != self._seal(body, messages[:place]):
                    why = "Invalid `signature` in `thinking` block. The block is bound to a different conversation."
                    self.refused.append(role_in(body))
                    return Status(400, "invalid_request_error", f"messages.{place}.content.0: {why}")
        answer = self.answer(body)
        if not isinstance(answer, Reply) or not body.get("tools"):
            return answer
        thought = {"type": "thinking", "thinking": "", "signature": self._seal(body, messages)}
        return Reply([thought, *answer.blocks])

    @staticmethod
    def _seal(body: Body, before: list[Any]) -> str:
        def plain(value: Any) -> Any:
            if isinstance(value, list):
                return [plain(one) for one in value]
            if not isinstance(value, dict):
                return value
            return {name: plain(one) for name, one in value.items() if name != "cache_control"}

        # A text may go as itself or as a block, which is what a breakpoint makes of it.
        parts = [
            [{"type": "text", "text": one["content"]}] if isinstance(one["content"], str) else one["content"]
            for one in before
        ]
        whole = json.dumps(plain([body.get("system"), body.get("tools"), parts]), sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


def test_a_model_that_binds_its_thinking_to_all_before_it_goes_on_after_a_compaction(ground: Ground) -> None:
    summary = "Goal: reach the goal (#1).\nCurrent work: notes 0 to 2 are kept under one/0 to one/2 (#2).\nNext step: end (#1)."

    def work(name: str, turn: int, body: Body) -> Any:
        summarised = summary.splitlines()[0] in json.dumps(body["messages"])
        if summarised and turn > 3:
            return [says(f"{name} is done.")]
        if summarised:
            return [uses("remember", text=f"after {len(body['messages'])}")]
        if turn < 3:
            return [uses("save_artifact", name=f"{name}/{turn}", content="some words to keep " * 300)]
        return [uses("compact")] if turn == 3 else [uses("remember", text=f"turn {turn}")]

    notes = Notes(NOTES[:1], work=work)
    bound = _Bound(lambda body: notes(body) if body.get("tools") else Reply([text(summary)]))
    server = ground.serve(bound)
    ended = _run_with(ground, "anthropic/claude-opus-5-5", "--effort", "medium")
    assert (ended.code, ended.result["status"]) == (0, "done"), ended.out + ended.err
    ground.assert_done()
    assert ground.query("SELECT count(*) FROM compactions WHERE status = 'applied'") == [(1,)]
    assert bound.refused == ["explorer"], "once, for the one compaction"
    assert ground.query("SELECT DISTINCT status, retries FROM model_calls") == [("done", 0)]
    kept = json.dumps(server.requests[-2]["messages"]).count('"thinking"')
    assert kept, "what was thought after the compaction goes back"


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (("--context-tokens", "12000"), 2_000),
        (("--context-tokens", "12000", "--effort", "high"), 2_000 + 6_000),
        (("--effort", "high"), 8_192 + 16_384),
        (("--effort", "off"), 8_192),
    ],
)
def test_a_reply_has_room_for_its_thinking(ground: Ground, options: tuple[str, ...], most: int) -> None:
    server = ground.serve(Notes(NOTES[:1]))
    ended = _run_with(ground, "anthropic/claude-opus-5", *options)
    assert (ended.code, ended.result["status"]) == (0, "done"), ended.out + ended.err
    assert {body["max_tokens"] for body in server.requests} == {most}
