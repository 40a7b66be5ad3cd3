"""MCP servers, against a real one over stdio: its tools, and everything that it can do wrong."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.core.tools.conftest import context

from watchkeeper.agents.tools.contract import McpServer, OutsideTool, Permission, ToolResult
from watchkeeper.agents.tools.mcp import McpServers, tool_name
from watchkeeper.records.errors import BadInput
from watchkeeper.records.redact import Redactor
from watchkeeper.runtime.config import load_config

PROGRAM = str(Path(__file__).with_name("small_mcp_server.py"))


def server(**settings: Any) -> dict[str, McpServer]:
    return {"small": McpServer(command=sys.executable, args=(PROGRAM,), **settings)}


@pytest.fixture
async def servers(workspace: Path) -> AsyncIterator[McpServers]:
    environ = dict(os.environ) | {"ANTHROPIC_API_KEY": "planted"}
    made = McpServers(
        server(timeout_seconds=3, env={"SMALL_TOKEN": "given"}, idempotent=("add",)), workspace, environ
    )
    await made.start()
    assert made.warnings == []
    yield made
    await made.aclose()


async def call(servers: McpServers, name: str, **arguments: Any) -> ToolResult:
    tool = servers.tools()[f"mcp__small__{name}"]
    assert isinstance(tool, OutsideTool)
    return await tool.run(arguments, context(Path("/")))


async def test_a_servers_tools_are_called_by_its_name(servers: McpServers) -> None:
    add = servers.tools()["mcp__small__add"]
    assert add.spec.description == "Add two numbers."
    assert (await call(servers, "add", a=1, b=2)).content == "3"
    failed = await call(servers, "fail")
    assert failed.is_error
    assert "fail" in str(failed.content)


async def test_what_a_server_says_of_its_tools_holds_no_secret(workspace: Path) -> None:
    redactor = Redactor({}, {"numbers": "two numbers"})
    made = McpServers(server(), workspace, os.environ, redactor)
    try:
        await made.start()
        add = made.tools()["mcp__small__add"]
        assert add.spec.description == "Add [redacted:numbers]."
    finally:
        await made.aclose()


async def test_a_server_cannot_vouch_for_itself(servers: McpServers) -> None:
    tools = servers.tools()
    assert all(tool.permission is Permission.ASK for tool in tools.values())
    assert [name for name, tool in tools.items() if tool.idempotent] == ["mcp__small__add"]


async def test_names_are_made_fit_for_a_model_and_stay_apart(servers: McpServers) -> None:
    names = list(servers.tools())
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    odd = next(name for name in names if "odd" in name).removeprefix("mcp__small__")
    assert (await call(servers, odd)).content == "odd"
    assert tool_name("s", "a.b") != tool_name("s", "a/b")
    assert tool_name("s", "x" * 100) != tool_name("s", "x" * 101)


async def test_a_server_gets_its_own_settings_and_no_credentials_of_ours(servers: McpServers) -> None:
    told = str((await call(servers, "environment")).content)
    assert "SMALL_TOKEN=given" in told
    assert "planted" not in told


async def test_images_come_back_as_images(servers: McpServers) -> None:
    content = (await call(servers, "picture")).content
    assert isinstance(content, list)
    assert content[0]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


async def test_long_results_are_bounded(servers: McpServers) -> None:
    result = await call(servers, "large")
    assert not result.is_error
    assert len(str(result.content)) < 110_000


async def test_a_server_that_dies_gives_an_error_and_is_started_anew(servers: McpServers) -> None:
    died = await call(servers, "die")
    assert died.is_error
    assert died.outcome_unknown
    assert not (await call(servers, "fail")).outcome_unknown
    assert (await call(servers, "add", a=2, b=2)).content == "4"
    psutil.Process(int(str((await call(servers, "pid")).content))).kill()
    results = [await call(servers, "add", a=2, b=3) for _ in range(2)]
    assert results[-1].content == "5"


async def test_a_server_that_lies_or_hangs_or_floods_harms_nobody_else(workspace: Path) -> None:
    servers = McpServers(server(timeout_seconds=0.5), workspace, os.environ)
    await servers.start()
    await call(servers, "lie")
    before = psutil.Process().memory_info().rss
    hanging, adding = await asyncio.gather(call(servers, "hang"), call(servers, "add", a=1, b=1))
    assert hanging.is_error
    assert hanging.outcome_unknown
    assert adding.content == "2"
    assert (await call(servers, "flood")).is_error
    assert psutil.Process().memory_info().rss - before < 50_000_000
    assert (await call(servers, "add", a=1, b=1)).content == "2"
    await servers.aclose()
    assert not [
        child for child in psutil.Process().children(recursive=True) if PROGRAM in " ".join(child.cmdline())
    ]


async def test_a_server_that_cannot_start_is_one_warning_and_the_others_work(workspace: Path) -> None:
    broken = {
        "missing": McpServer("/nonexistent/server"),
        "crashing": McpServer(sys.executable, ("-c", "1/0")),
        "nowhere": McpServer(url="http://127.0.0.1:9/mcp"),
    }
    servers = McpServers(server() | broken, workspace, os.environ)
    await servers.start()
    assert {line.split()[2] for line in servers.warnings} == {"missing", "crashing", "nowhere"}
    assert not any("\n" in line for line in servers.warnings)
    assert "mcp__small__add" in servers.tools()
    await servers.aclose()


async def test_cancelling_a_call_tells_the_server(servers: McpServers, workspace: Path) -> None:
    note = workspace / "note"

    async def noted(text: str) -> bool:
        for _ in range(500):
            if note.exists() and note.read_text() == text:
                return True
            await asyncio.sleep(0.01)
        return False

    hanging = asyncio.create_task(call(servers, "hang", note=str(note)))
    assert await noted("started")
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert await noted("cancelled")
    assert (await call(servers, "add", a=1, b=2)).content == "3"


async def test_a_server_may_put_its_things_in_order_at_the_end(workspace: Path) -> None:
    note = workspace / "note"
    small = McpServer(sys.executable, (PROGRAM, "${workspace}/note"))
    servers = McpServers({"small": small}, workspace, os.environ)
    await servers.start()
    await servers.aclose()
    assert note.read_text() == "ended in order"


async def test_a_server_over_http_is_reached_again_after_it_was_restarted(workspace: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def serve() -> asyncio.subprocess.Process:
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM, "--http", str(port), stdout=quiet, stderr=quiet
        )
        for _ in range(1000):
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            except OSError:
                await asyncio.sleep(0.02)
        return process

    process = await serve()
    small = McpServer(url=f"http://127.0.0.1:{port}/mcp", timeout_seconds=5)
    servers = McpServers({"small": small}, workspace, os.environ)
    await servers.start()
    assert servers.warnings == []
    assert (await call(servers, "add", a=1, b=2)).content == "3"
    process.kill()
    await process.wait()
    assert (await call(servers, "add", a=1, b=2)).is_error
    process = await serve()
    assert [await call(servers, "add", a=1, b=2) for _ in range(2)][-1].content == "3"
    await servers.aclose()
    process.kill()
    await process.wait()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[mcp_servers.a]", "mcp_servers.a: needs either `command` or `url`"),
        ("[mcp_servers.a]\ncommand = 'x'\nurl = 'y'", "either `command` or `url`"),
        ("[mcp_servers.a]\ncomand = 'x'", "mcp_servers.a.comand"),
        ("[mcp_servers.a]\ncommand = 'x'\nargs = 3", "mcp_servers.a.args"),
        ("[mcp_servers.'a b']\ncommand = 'x'", "mcp_servers: 'a b' is not a valid name"),
        ("[mcp_servers]\na = 'x'", "mcp_servers.a"),
        (
            "[permissions]\nbash = 'yes'",
            'permissions.bash: \'yes\' is not valid; write "allow", "ask" or "deny"',
        ),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(table)
    with pytest.raises(BadInput, match=re.escape(said)):
        load_config(tmp_path)


def test_settings_become_servers(tmp_path: Path) -> None:
    table = '[mcp_servers.files]\ncommand = "npx"\nargs = ["-y", "${workspace}"]\ntimeout_seconds = 5\n'
    (tmp_path / "config.toml").write_text(table)
    assert load_config(tmp_path).mcp_servers == {
        "files": McpServer(command="npx", args=("-y", "${workspace}"), timeout_seconds=5)
    }
