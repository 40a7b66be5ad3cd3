"""A run whose task is done by an agent program, for the crash matrix (`tests.faults.crash_matrix --scene program`).

The program's first process dies in a tool call, so that also the settling of a cut turn is killed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import mcp.server.lowlevel  # noqa: F401  (what a host loads late is here before the matrix forks)
import uvicorn  # noqa: F401
from tests.agents.conftest import Programs
from tests.faults.scenario import session_of
from tests.faults.scene import Scene

CALL = {"title": "bash", "kind": "execute", "rawInput": {"command": "true"}}
QUESTION = {"toolCallId": "t2", **CALL}
LIVES = [
    [[["say", "I begin."], ["tool", "t1", CALL], ["spawn", "sleep 60"], ["die"]]],
    [
        [
            ["tool", "t2", CALL],
            ["ask", 0, QUESTION],
            ["await", 0],
            ["tool", "t2", {"status": "completed"}],
            ["say", "Over."],
        ]
    ],
]


class ProgramRun(Scene):
    """One task for a program that dies once by itself."""

    name = "program"

    def work(self, folder: Path) -> int:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = str(folder / "config")
        programs = Programs(folder)
        session = session_of(programs.path)
        if session is None:
            programs.script(*LIVES)
        else:
            programs.take_over(session)
        return asyncio.run(programs.run()).exit_code

    def look(self, folder: Path) -> Any:
        programs = Programs(folder)
        programs.take_over(str(session_of(programs.path)))
        programs.assert_whole()
        return {name: task["status"] for name, task in programs.tasks().items()}
