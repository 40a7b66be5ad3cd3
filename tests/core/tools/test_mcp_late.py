"""An MCP server that dies while it starts is not lost for its host: it is tried again, and when an agent asks
for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from watchkeeper.agents.tools.contract import McpServer, Tool
from watchkeeper.agents.tools.mcp import McpServers

PROGRAM = str(Path(__file__).with_name("small_mcp_server.py"))


class Pauses:
    """A clock whose sleeps end when the test says so."""

    def __init__(self) -> None:
        self.slept: asyncio.Queue[float] = asyncio.Queue()
        self.enough = asyncio.Semaphore(0)

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.put_nowait(seconds)
        await self.enough.acquire()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def late(workspace: Path, tmp_path: Path, pauses: Pauses) -> AsyncIterator[tuple[McpServers, Path]]:
    """A server whose program dies at once until it is told to work."""
    works = tmp_path / "works"
    program = f"import os, sys\nif not os.path.exists({str(works)!r}): sys.exit(3)\nos.execv(sys.executable, [sys.executable, {PROGRAM!r}])"
    made = McpServers(
        {"small": McpServer(command=sys.executable, args=("-c", program))},
        workspace,
        os.environ,
        clock=pauses,
    )
    await made.start()
    assert made.tools() == {}
    yield made, works
    await made.aclose()


async def test_a_server_that_died_at_its_start_is_tried_again_ever_more_seldom_until_it_answers(late, pauses):
    servers, works = late
    assert "small offers no tools" in servers.warnings[0]
    assert "retrying" in servers.warnings[0]
    told: asyncio.Queue[tuple[str, dict[str, Tool]]] = asyncio.Queue()

    async def on_late(name: str, found: dict[str, Tool]) -> None:
        told.put_nowait((name, found))

    servers.on_late = on_late
    pauses.enough.release()
    assert [await asyncio.wait_for(pauses.slept.get(), 60) for _ in range(2)] == [5.0, 10.0]
    works.touch()
    pauses.enough.release()
    name, found = await asyncio.wait_for(told.get(), 30)
    assert name == "small"
    assert "mcp__small__add" in found
    assert set(found) == set(servers.tools())


async def test_an_agent_that_asks_for_a_tool_of_it_makes_it_be_tried_at_once(late):
    servers, works = late
    works.touch()
    await servers.look_for("mcp__other__add")
    assert servers.tools() == {}
    await asyncio.gather(servers.look_for("mcp__small__add"), servers.look_for("mcp__small__fail"))
    assert "mcp__small__add" in servers.tools()
    assert len(servers.warnings) == 1
