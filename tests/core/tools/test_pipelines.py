"""Commands that patterns allow: programs that are joined by pipes and run without a shell."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.core.tools.conftest import context

from watchkeeper.agents.tools.contract import ToolResult
from watchkeeper.agents.tools.workers import WorkerPool
from watchkeeper.records.tool_inputs import parse_command

Piped = Callable[..., Awaitable[ToolResult]]


def runner(pool: WorkerPool, workspace: Path) -> Piped:
    async def piped(command: str, timeout_seconds: float = 60, before: str = "") -> ToolResult:
        if before:
            await pool.run_shell({"command": before}, context(workspace), 60)
        parts = parse_command(command)
        assert parts is not None, command
        pipeline = pool.pipeline("agent1", parts)
        assert pipeline is not None, command
        asked = replace(context(workspace), pipeline=pipeline)
        return await pool.run_shell({"command": command}, asked, timeout_seconds)

    return piped


@pytest.fixture
def piped(pool: WorkerPool, workspace: Path) -> Piped:
    return runner(pool, workspace)


def has_ended(pid: int) -> bool:
    """Whether the process ends within ten seconds; one whose exit code nobody has read yet counts."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        os.sched_yield()
    return False


def script(workspace: Path, name: str, text: str) -> None:
    (workspace / name).write_text(f"#!/bin/sh\n{text}\n")
    (workspace / name).chmod(0o755)


async def test_each_part_reads_what_the_one_before_prints(piped, workspace):
    (workspace / "names").write_text("b\na\nb\nc\n")
    result = await piped("cat names | sort -u | head -n 2")
    assert (result.content, result.is_error) == ("a\nb", False)


async def test_a_part_that_is_not_read_to_its_end_ends_and_is_no_failure(piped):
    result = await piped("yes | head -n 2")
    assert (result.content, result.is_error) == ("y\ny", False)


async def test_the_last_part_decides_and_an_earlier_failure_is_told_in_a_line(piped, workspace):
    script(workspace, "fails", "echo some; exit 3")
    result = await piped("./fails | cat | tail -n 5")
    assert (result.content, result.is_error) == (
        "some\n[./fails, part 1 of 3, ended with exit code 3]",
        False,
    )
    result = await piped("./fails | grep nothing")
    assert result.is_error
    assert result.content.splitlines() == ["[./fails, part 1 of 2, ended with exit code 3]", "[exit code 1]"]


async def test_errors_reach_the_agent_and_go_into_the_pipe_where_they_are_joined(piped, workspace):
    script(workspace, "noisy", "echo out; echo trouble >&2")
    assert sorted((await piped("./noisy | tr a-z A-Z")).content.splitlines()) == ["OUT", "trouble"]
    assert sorted((await piped("./noisy 2>&1 | tr a-z A-Z")).content.splitlines()) == ["OUT", "TROUBLE"]


async def test_a_variable_is_set_for_its_part_alone_and_no_other_of_the_shell_is(piped, workspace):
    script(workspace, "says", 'echo "$CI,$TZ,$MINE"; cat')
    before = "export CI=shell MINE=shell PYTHONPATH=/nowhere"
    result = await piped("CI='a b' TZ=UTC ./says | CI=2 ./says", before=before)
    assert result.content.splitlines()[1:] == ["2,,", "a b,UTC,"]
    assert result.content.startswith("[ran outside your shell")


async def test_it_runs_in_the_folder_of_the_shell_and_quoted_words_stay_words(piped, workspace):
    (workspace / "sub").mkdir()
    (workspace / "sub" / "two words").write_text("inside\n")
    assert (await piped("cat 'two words' | cat", before="cd sub")).content.endswith("\ninside")


async def test_a_path_that_leads_out_of_the_workspace_is_no_run_at_all(pool, workspace):
    (workspace / "out").symlink_to("/etc")
    await pool.run_shell({"command": "mkdir sub; cd sub"}, context(workspace), 60)
    for value, runs in (("..", True), ("../..", False), ("../out", False), ("/etc", False), ("", True)):
        parts = parse_command(f"cat x | PYTHONPATH={value} sort")
        assert parts is not None
        assert (pool.pipeline("agent1", parts) is not None) is runs, value
    assert pool.pipeline("agent1", parse_command("cat x | no-such-program")) is None


async def test_the_time_limit_ends_every_part(piped, workspace):
    script(workspace, "waits", "echo $$ >> pids; sleep 600 & wait")
    asked = asyncio.create_task(piped("./waits | ./waits | cat", 2))
    result = await asked
    assert "stopped after 2 s" in result.content
    pids = [int(pid) for pid in (workspace / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(has_ended(pid) for pid in pids)


async def test_a_part_that_cannot_start_ends_the_others(piped, workspace):
    script(workspace, "waits", "echo $$ > pid; exec sleep 600")
    (workspace / "broken").write_bytes(b"\x7fELF no program")
    (workspace / "broken").chmod(0o755)
    result = await piped("./waits | ./broken | cat", 30)
    assert result.is_error
    assert result.content.startswith("bash: ./broken: ")
    if (workspace / "pid").exists():
        pid = int((workspace / "pid").read_text())
        assert has_ended(pid)


async def test_only_the_end_of_a_long_output_is_kept(piped):
    result = await piped("seq 1 200000 | cat")
    assert result.content.startswith("[output truncated]\n")
    assert result.content.endswith("\n200000")
    assert len(result.content) <= 100 * 1024 + 100


async def test_many_pipelines_leave_no_descriptor_behind(piped, pool):
    await piped("echo 1 | cat")
    worker = next(iter(pool._shells.children()))
    before = len(os.listdir(f"/proc/{worker.pid}/fd"))
    for _ in range(5):
        await piped("echo 1 | cat | cat")
    assert len(os.listdir(f"/proc/{worker.pid}/fd")) == before
