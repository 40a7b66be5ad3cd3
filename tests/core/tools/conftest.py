"""A workspace, a pool of real workers in it, and for whom tools run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.agents.tools.contract import OutsideTool, ToolContext, ToolResult
from watchkeeper.agents.tools.workers import WorkerPool, builtin_tools

Run = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')\n# TODO: more\n")
    (tmp_path / "secret.txt").write_text("out of bounds")
    return folder


@pytest.fixture
async def make_pool(workspace: Path) -> AsyncIterator[Callable[..., WorkerPool]]:
    """Makes pools of workers, which are closed at the end."""
    made: list[WorkerPool] = []

    def make(size: int = 1, **options: Any) -> WorkerPool:
        made.append(WorkerPool(size, workspace, dict(os.environ) | options.pop("environ", {}), **options))
        return made[-1]

    yield make
    await asyncio.gather(*(pool.aclose() for pool in made))


@pytest.fixture
def pool(make_pool: Callable[..., WorkerPool]) -> WorkerPool:
    planted = {"ANTHROPIC_API_KEY": "sk-ant-planted-key-000000", "MY_SECRET": "planted-secret"}
    return make_pool(2, environ=planted, timeout_seconds=60)


@pytest.fixture
def run(pool: WorkerPool, workspace: Path) -> Run:
    return caller(pool, workspace)


def caller(pool: WorkerPool, workspace: Path) -> Run:
    """Calls the built-in tools of a pool."""
    tools = builtin_tools(pool)

    async def call(name: str, agent: str = "agent1", **arguments: Any) -> ToolResult:
        tool = tools[name]
        assert isinstance(tool, OutsideTool)
        return await tool.run(arguments, context(workspace, agent))

    return call


def context(workspace: Path, agent: str = "agent1") -> ToolContext:
    return ToolContext("session1", agent, None, workspace)
