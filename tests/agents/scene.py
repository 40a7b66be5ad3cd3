"""Runs for the crash matrix: a task of an agent program (`tests.faults.crash_matrix --scene program`), and a merge with a
conflict that a person answers (`--scene merge`).

The program's first process dies in a tool call, so that also the settling of a cut turn is killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import mcp.server.lowlevel  # noqa: F401  (what a host loads late is here before the matrix forks)
import uvicorn  # noqa: F401
from tests.agents.conftest import Programs
from tests.core.runtime.conftest import Bench
from tests.faults.scenario import session_of
from tests.faults.scene import Scene
from tests.support import scripted
from tests.support.scripted import call, flat, inbox_of, role_of, said, task_of, turns

from watchkeeper.store.place import folder_beside

CALL = {"title": "bash", "kind": "execute", "rawInput": {"command": "true"}}
QUESTION = {"toolCallId": "t2", **CALL}
LIVES = [
    [[["say", "I begin."], ["tool", "t1", CALL], ["spawn", "sleep 60"], ["die"]]],
    [
        [
            ["tool", "t2", CALL], ["ask", 0, QUESTION], ["await", 0],
            ["tool", "t2", {"status": "completed"}], ["say", "Over."],
        ]
    ],
]  # fmt: skip


class ProgramRun(Scene):
    """One task for a program that dies once by itself."""

    name, file = "program", "watchkeeper.db"
    on_server = has_hosts = True

    def work(self, folder: Path) -> int:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = str(folder / "config")
        programs = Programs(folder, self.place(folder))
        session = session_of(programs.path)
        if session is None:
            programs.script(*LIVES)
        else:
            programs.take_over(session)
        return asyncio.run(programs.run()).exit_code

    def look(self, folder: Path) -> Any:
        programs = Programs(folder, self.place(folder))
        programs.take_over(str(session_of(programs.path)))
        programs.assert_whole()
        return {name: task["status"] for name, task in programs.tasks().items()}


# --- A merge with a conflict ------------------------------------------------------------------------------------

WRITERS = ("p", "q")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=u", "-c", "user.email=u@h", *arguments],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


def repository(workspace: Path, file: str = "a.txt") -> None:
    """A repository with one commit."""
    git(workspace, "init", "-q", "-b", "main")
    (workspace / file).write_text("one\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-q", "-m", "begin")


def assert_no_half_merge(workspace: Path) -> None:
    """The user's folder is as one of the commits has it."""
    assert git(workspace, "status", "--porcelain") == ""
    assert not (workspace / ".git/MERGE_HEAD").exists()
    assert (workspace / "a.txt").read_text() in ("one\n", "by p\n", "by q\n")


def merging(request: Any, by_tools: bool = False) -> Any:
    """A planner with two coders in worktrees, whose changes conflict; it merges both, and finishes whatever came of it.

    Without `by_tools` the coders' files are there at once, without the seconds that their tools' processes take.
    """
    if role_of(request) != "planner":
        name = task_of(request)
        files = (("a.txt", f"by {name}\n"), (f"{name}.txt", name))
        place = re.search(r"You are working in (\S+), a git worktree", flat(request.messages))
        assert place is not None
        if by_tools and turns(request) == 0:
            where = call("bash", {"command": f"pwd > {name}.where"}, "where")
            return [
                where,
                *(call("write", {"file_path": file, "content": text}, file) for file, text in files),
            ]
        for file, text in files:
            (Path(place[1]) / file).write_text(text)
        return [said("done")]
    if turns(request) == 0:
        tasks = [scripted.task(name, role="coder") | {"isolation": "worktree"} for name in WRITERS]
        return [call("create_plan", {"goal": "g", "tasks": tasks})]
    told = [item for message in request.messages for item in inbox_of(message)]
    if sum(item["kind"] == "task_done" for item in told) < len(WRITERS):
        return [said("I wait.")]
    made = [block["input"] for message in request.messages if isinstance(message["content"], list)
            for block in message["content"] if block.get("type") == "tool_use"]  # fmt: skip
    for name in WRITERS:
        if {"task": name} not in made:
            return [call("merge_task", {"task": name}, f"m-{name}")]
    return [call("finish_session", {"summary": flat(request.messages[-1:])})]


class MergeRun(Scene):
    """A person keeps one side of a conflict."""

    name, file = "merge", "watchkeeper.db"
    on_server = has_hosts = True

    def prepare(self, folder: Path) -> None:
        repository(Bench(folder, self.place(folder)).workspace)

    def work(self, folder: Path) -> int:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = str(folder / "config")
        assert_no_half_merge(folder / "workspace")
        bench = Bench(folder, self.place(folder))
        session = session_of(bench.path)
        if session is None:
            bench.start(merging, allow=("write",), approval_timeout_seconds=None)
        else:
            bench.session, bench.model.script = session, merging

        async def answer() -> None:
            (question,) = await bench.waiting()
            keep = {"approval": question["id"], "edited_input": {"task": "q", "keep": "theirs"}}
            if not any(one["kind"] == "approve" for one in bench.state["commands"]):
                bench.submit("approve", payload=keep)
            await asyncio.Event().wait()

        return asyncio.run(bench.run_while(answer)).exit_code

    def look(self, folder: Path) -> Any:
        bench, workspace = Bench(folder, self.place(folder)), folder / "workspace"
        bench.session = str(session_of(bench.path))
        bench.assert_sound()
        assert_no_half_merge(workspace)
        files = {file.name: file.read_text() for file in workspace.glob("*.txt")}
        asked = [(one["status"], one["cause"]) for one in bench.state["approvals"]]
        subjects = sorted(git(workspace, "log", "--format=%s").split("\n"))
        return {
            "files": files,
            "asked": asked,
            "subjects": subjects,
            "left": os.listdir(folder_beside(bench.path) / "worktrees"),
        }
