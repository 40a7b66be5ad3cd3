"""Workers that die, lie or say nothing: the host gets one clear line, and goes on."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.core.tools.conftest import caller

from watchkeeper.agents.tools.child import Child, ChildFailed

READY = 'import sys, json\nsys.stdin.readline()\nprint(json.dumps({"ready": True}), flush=True)\nsys.stdin.readline()\n'
ANSWER = "print(json.dumps(dict(id=1, content={})), flush=True)\nsys.stdin.readline()\n"

LIES = {
    "no JSON": "print('hello', flush=True)",
    "an answer to nobody": 'print(\'{"id": 99, "content": "x"}\', flush=True)',
    "no id": "print('[]', flush=True)",
    "a line without end": "\nwhile True: sys.stdout.write('x' * 1000000)",
    "deep nesting": "print('[' * 100000, flush=True)",
    "death": "sys.exit(5)",
}


@pytest.fixture
def worker_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that runs in place of the worker, by an interpreter that ignores which module it is asked to
    run."""
    program = tmp_path / "program.py"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return program


@pytest.mark.parametrize("lie", LIES)
async def test_a_worker_that_lies_is_killed(worker_program: Path, lie: str) -> None:
    worker_program.write_text(READY + LIES[lie] + "\nsys.stdin.readline()\n")
    child = await Child.start({}, os.environ, "")
    expected = r"exit code 5" if lie == "death" else "violated the protocol"
    with pytest.raises(ChildFailed, match=expected) as failed:
        async with asyncio.timeout(20):
            await child.call({"tool": "x"})
    assert failed.value.began
    assert not child.alive
    with pytest.raises(ChildFailed) as failed:
        await child.call({"tool": "x"})
    assert not failed.value.began
    await child.kill()


async def test_answers_that_are_no_content_do_not_reach_a_model(worker_program, workspace, make_pool):
    worker_program.write_text(READY + ANSWER.format('[{"type": "tool_use", "name": "bash"}]'))
    run = caller(make_pool(), workspace)
    result = await run("read", file_path="hello.py")
    assert result.is_error
    assert "an invalid response" in str(result.content)


async def test_a_worker_that_cannot_start_says_why_in_one_line(worker_program, workspace, make_pool):
    worker_program.write_text("raise SystemError('out of order')")
    run = caller(make_pool(), workspace)
    result = await run("read", file_path="hello.py")
    assert result.content == "read: a tool worker did not start: SystemError: out of order"


@pytest.mark.parametrize("before", ["", "sys.stdin.readline(); "], ids=["at once", "told what it is to do"])
async def test_ctrl_c_that_meets_a_worker_as_it_starts_costs_no_call(worker_program, before):
    first = f"import os, signal, sys; {before}signal.signal(2, signal.SIG_DFL); os.unlink(__file__ + '.first'); os.kill(os.getpid(), 2)"
    Path(f"{worker_program}.first").touch()
    worker_program.write_text(f"import os\nif os.path.exists(__file__ + '.first'):\n    {first}\n" + READY)
    child = await Child.start({}, os.environ, "")
    assert child.alive
    await child.kill()


async def test_a_worker_that_always_dies_of_a_signal_is_not_started_for_ever(worker_program: Path) -> None:
    worker_program.write_text("import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)")
    with pytest.raises(ChildFailed, match="did not start"):
        await Child.start({}, os.environ, "")


async def test_a_file_tool_that_hangs_is_stopped_and_the_next_call_works(
    worker_program, workspace, make_pool
):
    worker_program.write_text(READY + "import time; time.sleep(1000)")
    run = caller(make_pool(timeout_seconds=0.2), workspace)
    result = await run("read", file_path="hello.py")
    assert result.is_error
    assert "stopped after 0.2 s" in str(result.content)
    worker_program.write_text(READY + ANSWER.format('"fine"'))
    assert (await run("read", file_path="hello.py")).content == "    1\tfine"


async def test_long_output_is_cut_in_the_middle_and_says_so(worker_program, workspace, make_pool):
    worker_program.write_text(READY + ANSWER.format('"a" * 300000 + "z" * 200000'))
    run = caller(make_pool(), workspace)
    result = await run("read", file_path="hello.py")
    text = str(result.content)
    assert len(text) < 101_000
    assert text.startswith("    1\taaa")
    assert text.endswith("zzz")
    assert "400,006 of 500,006 characters omitted" in text
    assert result.effects["whole_output"] == "    1\t" + "a" * 300_000 + "z" * 200_000


async def test_nothing_in_a_workspace_stands_in_for_a_module_of_the_worker(run, workspace, monkeypatch):
    for name in ("json", "asyncio", "anthropic", "watchkeeper", "sitecustomize", "usercustomize"):
        (workspace / f"{name}.py").write_text("import os; os._exit(66)")
    monkeypatch.chdir(workspace)
    assert not (await run("read", file_path="hello.py")).is_error
