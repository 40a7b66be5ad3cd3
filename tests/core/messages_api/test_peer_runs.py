"""Whole runs against Messages API servers that somebody else wrote: npm @copilotkit/aimock, and PyPI
llmock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.models.test_peer_servers import aimock, aimock_cli
from tests.support.model_calls import IMPATIENT
from tests.support.scripted import task

from watchkeeper.models.failures import RetryPolicy

__all__ = ["aimock", "aimock_cli"]

PLAN = [task("left"), task("right"), task("join", needs=("left", "right"), role="writer")]
USAGE = {"input_tokens": 321, "output_tokens": 12}


def calls(*wanted: tuple[str, dict[str, Any]], place: str) -> dict[str, Any]:
    made = [
        {"name": name, "arguments": json.dumps(arguments), "id": f"toolu_{place}_{at}"} for at, (name, arguments) in enumerate(wanted)
    ]  # fmt: skip
    return {"toolCalls": made, "usage": USAGE}


def says(text: str) -> dict[str, Any]:
    return {"content": text, "usage": USAGE}


def scripted_run() -> list[dict[str, Any]]:
    """aimock's fixtures for a run of `PLAN`, the first that matches wins: told apart by role, task and last
    result."""

    def on(role: str, answer: dict[str, Any], **match: Any) -> dict[str, Any]:
        return {"match": {"systemMessage": f"Role: {role}", **match}, "response": answer}

    plan = calls(("create_plan", {"goal": "the goal", "tasks": PLAN}), place="plan")
    fixtures = [
        on("planner", says("I wait."), hasToolResult=True),
        on(
            "planner",
            calls(("finish_session", {"summary": "all is done"}), place="end"),
            userMessage="Task join is done",
        ),
        on("planner", plan, userMessage="# Goal"),
        on("planner", says("I wait on."), userMessage="is done"),
    ]
    for side in ("left", "right"):
        keep = ("save_artifact", {"name": f"{side}.json", "content": {"side": side}})
        fixtures += [
            on("explorer", says(f"{side}: seen."), toolCallId=f"toolu_{side}2_0"),
            on(
                "explorer", calls(("recall", {"query": side}), place=f"{side}2"), toolCallId=f"toolu_{side}_1"
            ),
            on(
                "explorer",
                calls(("remember", {"text": f"{side} is seen"}), keep, place=side),
                userMessage=f"Do {side}",
            ),
        ]
    both = calls(
        ("read_artifact", {"ref": "left.json"}), ("read_artifact", {"ref": "right.json"}), place="join"
    )
    return [
        *fixtures,
        on("writer", says("Both sides are joined."), hasToolResult=True),
        on("writer", both, hasToolResult=False),
    ]


def assert_whole(ground: Ground) -> None:
    assert {name: found[:2] for name, found in ground.tasks().items()} == dict.fromkeys(
        ("left", "right", "join"), ("done", 1)
    )
    assert ground.query("SELECT name, status, count(*) FROM tool_calls GROUP BY name, status ORDER BY name") == [
        ("create_plan", "done", 1), ("finish_session", "done", 1), ("read_artifact", "done", 2), ("recall", "done", 2),
        ("remember", "done", 2), ("save_artifact", "done", 2),
    ]  # fmt: skip
    ground.assert_sound()


async def test_aimock_plays_a_plan_with_parallel_sub_agents_of_several_turns(
    ground: Ground, aimock: Callable[..., str]
) -> None:
    result = await ground.drive(ground.runtime(aimock(scripted_run())))
    assert (result.status, result.reason) == ("done", "all is done")
    assert_whole(ground)
    assert ground.query("SELECT DISTINCT input_tokens, output_tokens, usage_exact FROM model_calls") == [
        (321, 12, 1)
    ]


def test_aimock_plays_it_to_the_command_line(ground: Ground, aimock: Callable[..., str]) -> None:
    ground.url = aimock(scripted_run())
    ended = ground.run()
    assert (ended.code, ended.err) == (0, "")
    assert ended.result["tasks"] == {"done": 3, "failed": 0}
    assert_whole(ground)


@pytest.mark.parametrize(
    "chaos", ["drop", "malformed", "disconnect", pytest.param("ratelimit", marks=pytest.mark.long)]
)
async def test_aimocks_chaos_changes_nothing_of_a_run_but_its_retries(
    ground: Ground, aimock: Callable[..., str], chaos: str
) -> None:
    url = aimock(scripted_run(), f"--chaos-{chaos}", "0.6")
    patient = RetryPolicy(max_retries=40, base_seconds=0.001)
    result = await ground.drive(ground.runtime(url, retries=patient))
    assert result.status == "done"
    assert_whole(ground)
    assert ground.query("SELECT retries > 0 FROM sessions") == [(1,)]


class TestLLMock:
    """llmock answers whoever asks next, so these runs have one agent: the planner, with tools over several
    turns."""

    @staticmethod
    def script(llmock: Any, *, streams_lost: int = 0) -> None:
        llmock.call_tool("remember", {"text": "the first thing"}, times=1 + streams_lost)
        llmock.call_tool("recall", {"query": "first"})
        llmock.call_tool("finish_session", {"summary": "seen by llmock", "status": "done"})

    async def drive(self, ground: Ground, llmock: Any) -> None:
        result = await ground.drive(ground.runtime(llmock.base_url("anthropic"), timeouts=IMPATIENT))
        assert (result.status, result.reason) == ("done", "seen by llmock")
        assert ground.query("SELECT name, status FROM tool_calls ORDER BY id") == [
            ("remember", "done"), ("recall", "done"), ("finish_session", "done"),
        ]  # fmt: skip
        ground.assert_sound()

    async def test_a_run_of_several_turns_ends(self, ground: Ground, llmock: Any) -> None:
        self.script(llmock)
        await self.drive(ground, llmock)
        llmock.assert_resilient()

    @pytest.mark.parametrize(
        "fault", ["disconnect", "truncate", "corrupt", "stall", "rate_limit", "overloaded"]
    )
    async def test_its_faults_are_retried_and_no_tool_runs_twice(
        self, ground: Ground, llmock: Any, fault: str
    ) -> None:
        match fault:
            case "rate_limit":
                llmock.rate_limit(times=2, retry_after=0.01)
            case "overloaded":
                llmock.fail(529, times=2)
            case _:
                getattr(llmock, fault)(after_chunks=2)
        # A stream that breaks has taken its scripted reply with it.
        self.script(llmock, streams_lost=0 if fault in ("rate_limit", "overloaded") else 1)
        await self.drive(ground, llmock)
        assert ground.query("SELECT sum(retries) > 0 FROM model_calls") == [(1,)]
        llmock.assert_resilient()

    async def test_tool_arguments_that_it_breaks_never_run(self, ground: Ground, llmock: Any) -> None:
        llmock.call_tool("remember", {"text": "broken on the way"}).break_tool_call("malformed_arguments")
        llmock.call_tool("finish_session", {"summary": "seen by llmock"})
        await ground.drive(ground.runtime(llmock.base_url("anthropic")))
        assert ground.query("SELECT count(*) FROM facts") == [(0,)]
        assert ground.query("SELECT name, status FROM tool_calls ORDER BY id") == [
            ("remember", "error"),
            ("finish_session", "done"),
        ]
