"""The tutorial's commands, run in its order by a user who has nothing yet but a session of Claude Code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.guide import DOCS

LOGS = Path(__file__).parent / "transcripts" / "golden" / "R05-gateway" / "projects"
SKIPPED = "<!-- not run: "


def shown_commands() -> Iterator[list[str]]:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    for skipped, block in re.findall(rf"({SKIPPED}[^\n]*\n)?```sh\n(.*?)```", text, re.DOTALL):
        if not skipped:
            yield from (shlex.split(line, comments=True) for line in block.splitlines())


@pytest.mark.timeout(300)  # fifteen commands, one after the other
def test_the_commands_of_the_tutorial_do_what_it_says(tmp_path: Path) -> None:
    shutil.copytree(LOGS, tmp_path / "home" / ".claude" / "projects")
    clone = tmp_path / "clone"
    for number in range(60):
        file = clone / "core" / "watchkeeper" / f"part{number % 3}" / f"file{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("pass\n", encoding="utf-8")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("WATCHKEEPER_", "XDG_"))
    } | {"HOME": str(tmp_path / "home"), "NO_COLOR": "1"}

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "watchkeeper", *arguments]
        return subprocess.Popen(
            command, cwd=clone, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    said: dict[str, str] = {}
    demo: subprocess.Popen[str] | None = None
    try:
        for program, *arguments in shown_commands():
            assert program == "wk"
            line = shlex.join(arguments)
            if arguments[0] == "demo":
                demo = start(*arguments, "--headless", "--speed", "10")
                assert demo.stdout is not None
                assert any(
                    " calls list_folder" in one for one in demo.stdout
                )  # it works: the next one may look at it
                continue
            if arguments[0] == "resume":
                assert demo is not None
                demo.kill()  # what the reader does with `kill -9`
                assert demo.wait() == -signal.SIGKILL
                arguments += ["--headless"]
            done = start(*arguments)
            if arguments[:2] == ["watch", "claude"]:  # goes on until it is interrupted
                assert done.stdout is not None
                said[line] = done.stdout.readline()
                done.send_signal(signal.SIGINT)
                done.communicate(timeout=60)
                continue
            said[line], _ = done.communicate(timeout=100)
            assert done.returncode in ({0, 1} if arguments[0] == "doctor" else {0}), f"{line}: {said[line]}"
    finally:
        if demo is not None:
            demo.kill()
            demo.communicate()
    assert "logs of" in said["import claude"]
    assert "running" in said["show last"]
    assert "✓ done" in said["resume last"]
    assert "60" in said["artifacts last SURVEY.md"]
    assert "restored view" in said["undo last planner"]
    assert list(clone.glob("*.html"))
