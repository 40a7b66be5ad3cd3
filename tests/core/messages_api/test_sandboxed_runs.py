"""Runs whose `bash` is confined, by the command line: what is said, kept and refused."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import Notes, says, uses
from tests.support.answers import Body
from tests.support.scripted import task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
UNCONFINED = "bash runs without approval and without a sandbox"
DENIED = "[sandbox = workspace: commands may write only in"


def _coder(*commands: str, before: Callable[[int], None] = lambda turn: None) -> Notes:
    """A planner with one task, whose agent runs these commands, one a turn."""

    def work(name: str, turn: int, body: Body) -> list[dict[str, Any]]:
        before(turn)
        return [uses("bash", command=commands[turn])] if turn < len(commands) else [says("done")]

    return Notes([task("shell", role="coder")], work=work)


def _outside(ground: Ground) -> Path:
    return ground.path.with_name("outside")


def test_a_run_says_once_that_bash_is_not_confined(ground: Ground) -> None:
    ground.serve(_coder("true"))
    assert ground.run("--allow", "bash").err.count(UNCONFINED) == 1
    assert UNCONFINED not in ground.run("--deny", "bash", "--allow", "bash").err
    assert UNCONFINED not in ground.run("--allow", "bash", "--sandbox", "workspace").err


def test_a_run_confines_bash_and_keeps_that_after_its_host_is_killed(ground: Ground) -> None:
    hosts: list[int] = []

    def before(turn: int) -> None:
        if turn == 1 and hosts:
            os.kill(hosts.pop(), signal.SIGKILL)

    write = f"echo x > {_outside(ground)}; cat {ground.path}; echo x > made"
    server = ground.serve(_coder(write, f"rm made; {write}", write, before=before))
    process = ground.start_run("--allow", "bash", "--sandbox", "workspace")
    hosts.append(process.pid)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert (ground.resume().code, server.script_errors) == (0, [])
    assert not _outside(ground).exists()
    assert (ground.workspace / "made").exists()
    told = max((str(body["messages"]) for body in server.requests), key=lambda text: text.count(DENIED))
    assert told.count(DENIED) >= 2
    assert "SQLite format" not in told


def test_the_configuration_confines_bash_and_a_file_of_the_workspace_cannot_change_that(
    ground: Ground,
) -> None:
    config = ground.path.with_name("config")
    config.mkdir()
    (config / "config.toml").write_text('[sandbox]\nbash = "workspace"\n')
    ground.serve(_coder(f"echo x > {_outside(ground)}"))
    assert ground.run("--allow", "bash").code == 0
    assert not _outside(ground).exists()
    (ground.workspace / ".watchkeeper").mkdir()
    (ground.workspace / ".watchkeeper" / "config.toml").write_text('[sandbox]\nbash = "off"\n')
    refused = ground.run("--allow", "bash")
    assert refused.code == 2
    assert "sandbox" in refused.err
    assert not _outside(ground).exists()


def test_an_agent_program_is_refused_where_bash_is_confined(ground: Ground) -> None:
    program = ground.path.with_name("codex")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    refused = ground.run("--sandbox", "workspace", "--model", "codex/default", PATH=path)
    assert refused.code == 2
    assert "the sandbox (workspace) does not confine commands that" in refused.err
    assert len(refused.err.splitlines()) == 1
