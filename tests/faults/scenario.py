"""The run that the crash matrix kills: fan-out, fan-in, a failing task, re-runs, compactions in flight, and
an undo.

Its model is a function of the messages, as a model is; its tools leave a line in a log for every effect that
they have, so that the log tells what happened twice, or never.

    alpha  long steps, then short ones, three effects: its context is compacted while it works
    beta   fails at its first attempt; the planner runs it again, with its memory
    gamma  three calls in one turn, one of a tool that is declared idempotent
    delta  done at once; re-run by a person's command while the others work
    report needs all of them; asks for the re-run, for a compaction of alpha, and for an undo of alpha's last
    one
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.scripted import call, flat, inbox_of, last_results, said, task, task_of, turns

from watchkeeper.agents.tools.contract import Permission, ToolContext, ToolResult
from watchkeeper.records.messages import (
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    Purpose,
    Reply,
    ToolSpec,
    Usage,
)
from watchkeeper.records.ports import SystemClock
from watchkeeper.runtime import control
from watchkeeper.runtime.host_factory import assemble
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.place import Place
from watchkeeper.store.transaction import SessionStore

STEPS = 18
WORDS = 100
WINDOW = 9_000
"""Small enough for an observer of alpha to pay for itself."""
TASKS = ("alpha", "beta", "gamma", "delta")
EFFECTS = (
    "alpha-3", "alpha-13", "alpha-15", "beta-1", "beta-2", "gamma-1", "gamma-2", "delta-1", "delta-2",
    "report-1",
)  # fmt: skip
REPEATABLE = ("gamma-2",)
"""Labels of effects of the tool that is declared idempotent."""
LOG = "run.log"
"""The name of the file that has a line for each effect."""


# --- the model ----------------------------------------------------------------------------------------------


class Script:
    """What the model answers. Nothing but the request decides, so that a resume asks and gets the same."""

    def __call__(self, request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR and "<observations>" not in flat(request.messages):
            return [said("Notes were saved (#3). Paths: notes/a.txt")]
        if request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR):
            return [
                said(
                    "<observations>\n10:00 [!] notes were saved (#2)\n</observations><current-task>saving"
                    " notes</current-task>"
                )
            ]
        if request.purpose is Purpose.TURN:
            return self._step(request)
        return self._plan(request)

    def _plan(self, request: ModelRequest) -> Any:
        """Make the plan, run again what failed, and finish when all have told their end."""
        if turns(request) == 0:
            plan = [task(name) for name in TASKS] + [task("report", needs=TASKS, role="writer")]
            return [call("create_plan", {"goal": "the goal", "tasks": plan})]
        replied = max(at for at, message in enumerate(request.messages) if message["role"] == "assistant")
        unread = [item for message in request.messages[replied:] for item in inbox_of(message)]
        failed = [item["task"] for item in unread if item["kind"] == "task_failed"]
        if failed:
            return [
                call("rerun_task", {"task": name, "reason": "it failed"}, f"rerun/{name}") for name in failed
            ]
        over = {
            item["task"]
            for message in request.messages
            for item in inbox_of(message)
            if item["kind"] == "task_done"
        }
        if over >= {*TASKS, "report"} and not last_results(request):
            return [call("finish_session", {"summary": "all tasks are done"})]
        return [said("I wait for the tasks.")]

    def _step(self, request: ModelRequest) -> Any:
        """Go on from the newest step that the messages name; a call whose outcome is unknown is checked
        first."""
        text = flat(request.messages)
        name = (
            task_of(request) if "\nhandoff: {" in f"\n{text}" else "alpha"
        )  # hers is the one that is compacted away
        last = max((int(number) for number in re.findall(rf"\[at {name} (\d+)\]", text)), default=-1)
        results = last_results(request)
        unknown = [one["tool_use_id"] for one in results if "outcome unknown" in str(one["content"])]
        absent = [label for one in results for label in re.findall(r"absent: (\S+)", str(one["content"]))]
        if unknown:
            calls = [
                call("check", {"label": use.split("/")[1]}, f"check/{use.split('/')[1]}/{len(text)}")
                for use in unknown
            ]
            return [said(f"[at {name} {last}] I verify first."), *calls]
        if absent:
            return [
                said(f"[at {name} {last}] It did not happen."),
                *(_effect(label, f"{len(text)}") for label in absent),
            ]
        blocks = self._blocks(name, last + 1, text)
        if isinstance(blocks, ModelError):
            return blocks
        return [
            said(
                f"[at {name} {last + 1}] "
                + ("" if any(b["type"] == "tool_use" for b in blocks) else f"{name} is done")
            ),
            *blocks,
        ]

    def _blocks(self, name: str, step: int, text: str) -> Any:
        attempt = len(re.findall(r"^handoff: \{", text, re.MULTILINE))
        if name == "alpha":
            if step >= STEPS:
                return []
            if step in (3, 13, 15):
                return [_effect(f"alpha-{step}")]
            if step == 6:
                return [
                    call("command", {"kind": "compact", "task": "alpha", "key": "early"}, "command/early")
                ]
            if step > 12:  # short steps while the pass is in flight: afterwards there must be room to undo it
                return [call("remember", {"text": f"alpha took step {step}"}, f"remember/{step}")]
            content = f"note {step} " + " ".join(f"word{step}x{n}" for n in range(WORDS))
            return [call("save_artifact", {"name": f"alpha/{step}", "content": content}, f"save/{step}")]
        if name == "beta":
            if step == 0:
                return [_effect("beta-1"), call("remember", {"text": "beta was tried"}, "remember/beta")]
            if attempt < 2:
                return ModelError("beta cannot", kind=ErrorKind.FAIL)
            return [_effect("beta-2")] if step == 1 else []
        if name == "gamma":
            remember = call("remember", {"text": "gamma was here"}, "remember/gamma")
            return [_effect("gamma-1"), _effect("gamma-2"), remember] if step == 0 else []
        if name == "delta":
            return [_effect(f"delta-{attempt}")] if step == attempt * 2 - 2 else []
        plan: list[Any] = [
            [call("command", {"kind": "rerun", "task": "delta"}, "command/rerun")],
            [_effect("report-1"), call("command", {"kind": "compact", "task": "alpha"}, "command/compact")],
            [call("command", {"kind": "undo", "task": "alpha"}, "command/undo")],
            [call("save_artifact", {"name": "report.md", "content": "all four are done"}, "save/report")],
        ]
        return plan[step] if step < len(plan) else []


def _effect(label: str, again: str = "") -> dict[str, Any]:
    name = "effect_again" if label in REPEATABLE else "effect"
    return call(name, {"label": label}, f"{name}/{label}" + (f"/{again}" if again else ""))


class Model:
    """The script as a model; a summary takes a moment, in which its agent goes on."""

    ref = "test/scripted"
    context_window = WINDOW

    def __init__(self) -> None:
        self._script = Script()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        answer = self._script(request)
        if isinstance(answer, ModelError):
            raise answer
        await asyncio.sleep(0.02 if request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR) else 0.001)
        yield Delta("text", "…")
        uses = any(block["type"] == "tool_use" for block in answer)
        characters = sum(len(str(message["content"])) for message in request.messages)
        yield Reply(
            answer, "tool_use" if uses else "end_turn", Usage(input_tokens=characters // 4, output_tokens=20)
        )


# --- the tools ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outside:
    """A tool of the scenario: what `run` does, and what is declared of it."""

    spec: ToolSpec
    idempotent: bool
    work: Any
    permission: Permission = Permission.ALLOW

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        text: str = await self.work(arguments, context)
        return ToolResult(text)


def tools(path: Place, log: Path) -> dict[str, Outside]:
    """`effect` and `effect_again` (idempotent) append to the log, `check` reads it, `command` asks for a
    control command."""

    async def effect(arguments: dict[str, Any], context: ToolContext) -> str:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{arguments['label']} {context.tool_call_id}\n".encode())
        os.close(descriptor)
        return f"done: {arguments['label']}"

    async def check(arguments: dict[str, Any], context: ToolContext) -> str:
        there = log.exists() and any(
            line.split()[0] == arguments["label"] for line in log.read_text().splitlines()
        )
        return f"{'present' if there else 'absent'}: {arguments['label']}"

    async def command(arguments: dict[str, Any], context: ToolContext) -> str:
        kind = arguments["kind"]
        connection = database.open_readonly(path)
        try:
            found = connection.execute(
                "SELECT id, assigned_agent FROM tasks WHERE session_id = ? AND name = ?",
                (context.session_id, arguments["task"]),
            ).fetchone()
            about = {"task_id": found[0]} if kind == "rerun" else {"agent_id": found[1]}
            number = control.submit(
                path, context.session_id, kind, requested_by="tests",
                dedupe_key=kind + arguments.get("key", ""), **about,
            )  # fmt: skip
            while True:
                status, result = connection.execute(
                    "SELECT status, result FROM commands WHERE id = ?", (number,)
                ).fetchone()
                again = connection.execute(
                    "SELECT status, attempt FROM tasks WHERE id = ?", (found[0],)
                ).fetchone()
                if kind == "compact" and status != "queued":
                    return "asked for"  # refused where a pass of its own is in flight, or came before
                if status == "refused" or (status == "applied" and (kind != "rerun" or again == ("done", 2))):
                    return f"{kind} of {arguments['task']} is {status}" + (
                        f": {result}" if status == "refused" else ""
                    )
                await asyncio.sleep(0.003)
        finally:
            connection.close()

    text = {"type": "string"}
    labelled = {"type": "object", "properties": {"label": text}, "required": ["label"]}
    asked = {
        "type": "object",
        "properties": {"kind": text, "task": text, "key": text},
        "required": ["kind", "task"],
    }
    return {
        "effect": Outside(ToolSpec("effect", "Have an effect.", labelled), False, effect),
        "effect_again": Outside(
            ToolSpec("effect_again", "Have an effect that may be had twice.", labelled), True, effect
        ),
        "check": Outside(ToolSpec("check", "See whether an effect was had.", labelled), True, check),
        "command": Outside(
            ToolSpec("command", "Ask for a control command, and wait for it.", asked), True, command
        ),
    }


# --- one process --------------------------------------------------------------------------------------------


def session_of(path: Place) -> str | None:
    """The session that an earlier process has begun in this file, if it came so far."""
    if isinstance(path, Path) and not (path.exists() and path.stat().st_size and _has_sessions(path)):
        return None
    connection = database.open_readonly(path)
    try:
        row = connection.execute("SELECT id FROM sessions LIMIT 1").fetchone()
        return row[0] if row else None
    finally:
        connection.close()


def _has_sessions(path: Path) -> bool:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return bool(
            connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sessions'").fetchone()[0]
        )
    finally:
        connection.close()


async def run(path: Place, workspace: Path) -> int:
    """Begin the run, or resume it where it stands; returns the host's exit code. Effects are in `LOG` beside the workspace."""
    session = session_of(path)
    if session is None:
        settings = SessionSettings(max_parallel=5)
        session = create_session(path, NewSession("reach the goal", workspace, Model.ref, settings))
    clock = SystemClock()
    store = SessionStore.claim(path, session, clock, pid=os.getpid(), host_name=socket.gethostname())
    try:
        assembled = await assemble(store, clock, model=Model())
        environment = assembled.host.environment
        own = tools(path, workspace.parent / LOG)
        names, permission = environment.tools_of, environment.permission
        environment.tools = {**environment.tools, **own}
        environment.tools_of = lambda role: [*names(role), *own]
        environment.permission = lambda name: Permission.ALLOW if name in own else permission(name)
        try:
            return (await assembled.host.run(resume=True)).exit_code
        finally:
            await assembled.aclose()
    finally:
        store.close()
