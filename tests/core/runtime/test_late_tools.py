"""Tools that come while a host runs: agents learn of them by a message, and no prefix of a call changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, flat, role_of, said, task, task_of

from watchkeeper.records.messages import ModelRequest

PROGRAM = str(Path(__file__).parents[1] / "tools" / "small_mcp_server.py")
ADD = "mcp__small__add"


@pytest.fixture
def works(tmp_path: Path) -> Path:
    """A file without which the configured MCP server does not start."""
    works = tmp_path / "works"
    (tmp_path / "config").mkdir()
    program = f"import os, sys\nif not os.path.exists({str(works)!r}): sys.exit(3)\nos.execv(sys.executable, [sys.executable, {PROGRAM!r}])"
    (tmp_path / "config" / "config.toml").write_text(
        f"[mcp_servers.small]\ncommand = '{sys.executable}'\nargs = ['-c', '''{program}''']\n"
    )
    return works


def prefixes(bench: Bench, task_name: str) -> list[tuple[str, Any]]:
    """System prompt and tools of each call of the agents of a task."""
    return [
        (each.system, list(each.tools))
        for each in bench.model.requests
        if role_of(each) != "planner" and task_of(each) == task_name
    ]


async def test_a_coder_may_use_a_server_that_was_down_when_the_host_started(bench, works):
    """By name as soon as it may be there, and with `call_tool` once it is told; a later agent has it in its list."""

    def work(name: str, request: ModelRequest) -> Any:
        turn = len(prefixes(bench, name))
        if name == "later":
            return [said("done")]
        if turn == 1:
            works.touch()
            return [call(ADD, {"a": 1, "b": 2}, "sum")]
        if turn == 2:
            assert f"- {ADD}: " in flat(request.messages)
            assert "Call a tool with `call_tool`" in flat(request.messages)
            return [call("call_tool", {"tool": ADD, "input": {"a": 3, "b": 4}}, "again")]
        return [said("done")]

    tasks = [task("a", role="coder"), task("later", role="coder", needs=("a",))]
    bench.start(PlannedRun(tasks, work), allow=(ADD,))
    assert (await bench.run()).exit_code == 0
    assert bench.query("SELECT name, status FROM tool_calls WHERE name LIKE 'mcp%' OR name = 'call_tool'") == [
        (ADD, "done"), (ADD, "done"),
    ]  # fmt: skip
    first = prefixes(bench, "a")
    assert len(first) == 3
    assert all(each == first[0] for each in first)
    names = [[tool.name for tool in tools] for _, tools in (first[0], prefixes(bench, "later")[0])]
    assert (ADD in names[0], ADD in names[1]) == (False, True)
    assert ("call_tool" in names[0], "call_tool" in names[1]) == (True, False)
    planners = [each for each in bench.model.requests if role_of(each) == "planner"]
    assert ADD not in "".join(flat(each.messages) for each in planners), "the planner may not call it"
    warnings = [row[0] for row in bench.query("SELECT data FROM events WHERE kind = 'host.warning'")]
    assert any("small is now available" in text for text in warnings)


async def test_an_agent_keeps_its_tools_with_a_host_in_which_the_server_is_down(bench, works):
    def work(name: str, request: ModelRequest) -> Any:
        if len(prefixes(bench, name)) == 1:
            return [call("remember", {"text": "one"}, "r")]
        return [said("done")]

    works.touch()
    bench.start(PlannedRun([task("a", role="coder")], work), budgets={"turns": 2.0})
    assert (await bench.run()).exit_code == 5
    works.unlink()
    bench.submit("set_budget", payload={"kind": "turns"})
    bench.submit("resume")
    assert (await bench.run()).exit_code == 0
    first, *later = prefixes(bench, "a")
    assert ADD in {tool.name for tool in first[1]}
    assert later == [first] * len(later)


async def test_a_malformed_call_of_a_late_tool_is_an_error_that_says_what_is_there(bench, works):
    def work(name: str, request: ModelRequest) -> Any:
        match len(prefixes(bench, name)):
            case 1:
                return [call("call_tool", {"tool": 7}, "x")]
            case 2:
                assert "no tool '7'" in flat(request.messages)
                return [call("call_tool", {"tool": "read", "input": "a.py"}, "y")]
        assert "invalid input: " in flat(request.messages)
        return [said("done")]

    bench.start(PlannedRun([task("a", role="coder")], work))
    assert (await bench.run()).exit_code == 0
    rows = bench.query("SELECT name, status FROM tool_calls WHERE name IN ('7', 'read') ORDER BY id")
    assert rows == [("7", "error"), ("read", "error")]
