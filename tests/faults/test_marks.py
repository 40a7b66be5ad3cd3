"""What a crash leaves unknown is said, whichever way it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.faults import oracle, scenario
from tests.support.places import query, workspace_in

from watchkeeper.agents.compaction import CompactionRunner


async def crash(run: asyncio.Future[int], at: asyncio.Event) -> None:
    """End a run at once, without its clean-up, when it reaches a point."""
    await at.wait()
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run


@pytest.mark.parametrize(
    ("tool", "label", "again"), [("effect_again", "gamma-2", True), ("effect", "gamma-1", False)]
)
async def test_a_call_that_was_running_is_marked_and_runs_again_only_where_that_was_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, label: str, again: bool
) -> None:
    path, workspace = tmp_path / "run.db", workspace_in(tmp_path)
    reached, gate = asyncio.Event(), asyncio.Event()
    real = scenario.tools

    def held(path: Path, log: Path) -> dict[str, scenario.Outside]:
        own = real(path, log)
        work = own[tool].work

        async def slow(arguments: dict[str, Any], context: Any) -> str:
            text: str = await work(arguments, context)
            if arguments["label"] == label:
                reached.set()
                await gate.wait()
            return text

        return own | {tool: replace(own[tool], work=slow)}

    monkeypatch.setattr(scenario, "tools", held)
    crashed = asyncio.ensure_future(scenario.run(path, workspace))
    await crash(crashed, reached)
    gate.set()
    assert await asyncio.wait_for(scenario.run(path, workspace), 60) == 0

    marks = [json.loads(row[0]) for row in query(path, "SELECT data FROM events WHERE kind = 'tool.unknown'")]
    assert {"tool": tool, "again": again}.items() <= {key: marks[0][key] for key in ("tool", "again")}.items()
    told = "SELECT status, runs, is_error FROM tool_calls WHERE id = ?"
    ((status, runs, failed),) = query(path, told, marks[0]["call"])
    ended = oracle.look(path, tmp_path)
    assert (status, runs, ended.effects[label]) == (("done", 2, 2) if again else ("unknown", 1, 1))
    assert failed == (not again), "the model is told of an unknown outcome as of an error"
    assert not ended.problems


async def test_a_compaction_that_a_command_asked_for_is_not_made_again_by_the_host_that_lands_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, workspace = tmp_path / "run.db", workspace_in(tmp_path)
    landing, real = asyncio.Event(), CompactionRunner._land

    async def land(self: CompactionRunner, flight: Any, also: Any = None) -> Any:
        if also is None or landing.is_set():
            return await real(self, flight, also)
        landing.set()
        return await asyncio.Event().wait()  # prepared and stored; its host dies before it is published

    monkeypatch.setattr(CompactionRunner, "_land", land)
    crashed = asyncio.ensure_future(scenario.run(path, workspace))
    await crash(crashed, landing)
    assert await asyncio.wait_for(scenario.run(path, workspace), 60) == 0

    passes = query(path, "SELECT status FROM compactions WHERE trigger = 'manual' ORDER BY id")
    settled = query(path, "SELECT status FROM commands WHERE kind = 'compact' ORDER BY id")
    assert passes[-1:] == [("applied",)]
    assert len(passes) <= len(settled) == 2
    assert settled[-1] == ("applied",)
    assert not oracle.look(path, tmp_path).problems
