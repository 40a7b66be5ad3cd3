"""Tools that come while a host runs: agents are offered them at their next turn, and may ask before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.support.scripted import PlannedRun, call, said, task

from watchkeeper.records.messages import ModelRequest

PROGRAM = str(Path(__file__).parents[1] / "tools" / "small_mcp_server.py")


async def test_a_coder_may_use_a_server_that_was_down_when_the_host_started(bench, tmp_path):
    works = tmp_path / "works"
    (tmp_path / "config").mkdir()
    program = f"import os, sys\nif not os.path.exists({str(works)!r}): sys.exit(3)\nos.execv(sys.executable, [sys.executable, {PROGRAM!r}])"
    (tmp_path / "config" / "config.toml").write_text(
        f"[mcp_servers.small]\ncommand = '{sys.executable}'\nargs = ['-c', '''{program}''']\n"
    )
    offered: list[bool] = []

    def work(name: str, request: ModelRequest) -> Any:
        offered.append("mcp__small__add" in {tool.name for tool in request.tools})
        if len(offered) == 1:
            works.touch()
            return [call("mcp__small__add", {"a": 1, "b": 2}, "sum")]
        return [said("done")]

    bench.start(PlannedRun([task("a", role="coder")], work), allow=("mcp__small__add",))
    assert (await bench.run()).exit_code == 0
    assert offered == [False, True]
    assert bench.query("SELECT status FROM tool_calls WHERE name = 'mcp__small__add'") == [("done",)]
    warnings = [row[0] for row in bench.query("SELECT data FROM events WHERE kind = 'host.warning'")]
    assert any("small answers now" in text for text in warnings)
