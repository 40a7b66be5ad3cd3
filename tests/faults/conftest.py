"""A workspace with an outside, and its tools as agents call them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.agents.tools.contract import OutsideTool, ToolContext, ToolResult
from watchkeeper.agents.tools.workers import WorkerPool, builtin_tools

Run = Callable[..., Awaitable[ToolResult]]


@pytest.fixture(autouse=True)
def _real_databases(as_users_have_them: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to a disk happens to what a user has on it; the configuration is the test's own."""
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("out of bounds\n")
    return folder


@pytest.fixture
async def pool(workspace: Path) -> AsyncIterator[WorkerPool]:
    made = WorkerPool(2, workspace, os.environ, timeout_seconds=60)
    yield made
    await made.aclose()


@pytest.fixture
def run(pool: WorkerPool, workspace: Path) -> Run:
    tools = builtin_tools(pool)

    async def one(name: str, **arguments: Any) -> ToolResult:
        tool = tools[name]
        assert isinstance(tool, OutsideTool)
        return await tool.run(arguments, ToolContext("session1", "agent1", None, workspace))

    return one
