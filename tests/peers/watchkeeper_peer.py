"""The work on Watchkeeper: a plan of four tasks and one that needs them. Resumed by running the session
again.

A call that was running when the process died is marked `unknown`, and the model is told so; like any model
that reads that, this one looks first, and repeats nothing that was done.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.faults.scenario import Outside, session_of
from tests.peers import work
from tests.support.scripted import call, flat, inbox_of, last_results, said, task, task_of, turns

from watchkeeper.agents.tools.contract import Permission, ToolContext
from watchkeeper.records.messages import ModelEvent, ModelRequest, Purpose, Reply, ToolSpec, Usage
from watchkeeper.records.ports import SystemClock
from watchkeeper.runtime.host_factory import assemble
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.store.transaction import SessionStore


class Scripted:
    """A model that is a function of the conversation."""

    ref = "test/scripted"
    context_window = 60_000

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        blocks = self._plan(request) if request.purpose is Purpose.PLANNER else self._work(request)
        uses = any(block["type"] == "tool_use" for block in blocks)
        yield Reply(blocks, "tool_use" if uses else "end_turn", Usage(input_tokens=1, output_tokens=1))

    def _plan(self, request: ModelRequest) -> Any:
        if turns(request) == 0:
            tasks = [*(task(name) for name in work.WORKERS), task("join", needs=work.WORKERS, role="writer")]
            return [call("create_plan", {"goal": "the work", "tasks": tasks})]
        over = {
            item["task"]
            for message in request.messages
            for item in inbox_of(message)
            if item["kind"] == "task_done"
        }
        if "join" in over and not last_results(request):
            return [call("finish_session", {"summary": "done"})]
        return [said("I wait.")]

    def _work(self, request: ModelRequest) -> Any:
        name, text = task_of(request), flat(request.messages)
        results = last_results(request)
        if name == "join" and turns(request) == 0:
            return [
                call("read_artifact", {"ref": f"result/{worker}"}, f"read-{worker}")
                for worker in work.WORKERS
            ]
        if any("outcome unknown" in str(one["content"]) for one in results):
            asked = re.findall(r"next: (\S+)", text)[-1]
            return [said("I look first."), call("look", {"label": asked}, f"look-{asked}-{turns(request)}")]
        done = dict.fromkeys(re.findall(r"^did (\S+)", text, re.MULTILINE))
        steps = 1 if name == "join" else work.STEPS
        mine = [label for label in done if label.startswith(f"{name}-")]
        if len(mine) < steps:
            label = f"{name}-{len(mine)}"
            return [
                said(f"next: {label}"),
                call("effect", {"label": label}, f"effect-{label}-{turns(request)}"),
            ]
        if name != "join":
            return [said("\n".join(f"did {label}" for label in mine))]
        return [said(work.result_of([f"did {label}" for label in done if label != "join-0"]))]


def run(folder: Path) -> str:
    """Begin or resume; returns the result that the store holds at the end."""
    return asyncio.run(_run(folder))


async def _run(folder: Path) -> str:
    path, log = folder / "peer.db", folder / "effects.log"
    (folder / "workspace").mkdir(exist_ok=True)
    session = session_of(path)
    if session is None:
        session = create_session(
            path, NewSession("the work", folder / "workspace", Scripted.ref, SessionSettings())
        )
    clock = SystemClock()
    store = SessionStore.claim(path, session, clock, pid=os.getpid(), host_name=socket.gethostname())

    async def effect(arguments: dict[str, Any], context: ToolContext) -> str:
        return await asyncio.to_thread(work.effect, log, arguments["label"])

    async def look(arguments: dict[str, Any], context: ToolContext) -> str:
        label = arguments["label"]
        there = log.exists() and label in log.read_text().split()
        return f"did {label}" if there else f"{label} did not happen"

    schema = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
    own = {
        "effect": Outside(ToolSpec("effect", "Have an effect.", schema), False, effect),
        "look": Outside(ToolSpec("look", "See whether an effect was had.", schema), True, look),
    }
    try:
        assembled = await assemble(store, clock, model=Scripted())
        environment = assembled.host.environment
        names, permission = environment.tools_of, environment.permission
        environment.tools = {**environment.tools, **own}
        environment.tools_of = lambda role: [*names(role), *own]
        environment.permission = lambda name: Permission.ALLOW if name in own else permission(name)
        try:
            await assembled.host.run(resume=True)
        finally:
            await assembled.aclose()
        return str((store.one("SELECT result FROM tasks WHERE name = 'join'") or [""])[0])
    finally:
        store.close()


def marked(folder: Path) -> set[str]:
    """The effects that the store itself says may have been had twice."""
    connection = sqlite3.connect(f"file:{folder / 'peer.db'}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            "SELECT m.content, c.position FROM events e JOIN tool_calls c ON c.id = json_extract(e.data,"
            " '$.call')"
            " JOIN messages m ON m.agent_id = c.agent_id AND m.seq = c.seq WHERE e.kind = 'tool.unknown'"
        ).fetchall()
    finally:
        connection.close()
    uses = [
        ([b for b in json.loads(content) if b["type"] == "tool_use"][position]) for content, position in rows
    ]
    return {str(use["input"]["label"]) for use in uses}
