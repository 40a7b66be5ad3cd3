"""A scripted model, in process: a function of the request, as a model is. And small parts to write scripts
with."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from watchkeeper.records.messages import (
    Delta,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    SideCall,
    Usage,
    UsageSoFar,
)

Blocks = list[dict[str, Any]]
Script = Callable[[ModelRequest], "Blocks | ModelError | asyncio.Event"]


class ScriptedModel:
    """Answers with what `script(request)` returns: blocks, an error to raise, or an event to wait
    for before the script is asked again."""

    ref = "test/scripted"

    def __init__(self, script: Script, *, context_window: int = 60_000) -> None:
        self.context_window = context_window
        self.script = script
        self.requests: list[ModelRequest] = []
        self.hanging = 0
        """Calls that have had to wait so far."""
        self.side_calls: tuple[SideCall, ...] = ()
        """What the provider counts for each reply besides."""
        self.counted: Usage | None = None
        """What a call that has to wait has used by then."""
        self.cached = (0, 0)
        """Tokens that each call reads from, and writes to, a prompt cache."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        answer = self.script(request)
        if isinstance(answer, ModelError):
            raise answer
        if isinstance(answer, asyncio.Event):
            if self.counted is not None:
                yield UsageSoFar(self.counted)
            self.hanging += 1
            await answer.wait()
            answer = self.script(request)
            assert isinstance(answer, list)
        await asyncio.sleep(0)
        yield Delta("text", "…")
        characters = len(json.dumps(list(request.messages)))
        yield Reply(
            content=answer,
            stop_reason="tool_use" if any(block["type"] == "tool_use" for block in answer) else "end_turn",
            usage=Usage(characters // 4, len(json.dumps(answer)) // 4, *self.cached),
            side_calls=self.side_calls,
        )


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def call(name: str, arguments: dict[str, Any], use_id: str | None = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": use_id or f"toolu_{name}", "name": name, "input": arguments}


def role_of(request: ModelRequest) -> str:
    return request.system.splitlines()[0].removeprefix("Role: ")


def task_of(request: ModelRequest) -> str:
    """The name of the task that a sub-agent was given."""
    handoff = re.findall(r"^handoff: (\{.*\})$", flat(request.messages), re.MULTILINE)
    return str(json.loads(handoff[-1])["task"])


def flat(messages: Any) -> str:
    """All text of messages, tool results included."""
    parts: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, list | tuple):
            for one in value:
                walk(one)
        elif isinstance(value, dict):
            walk(value.get("text") or value.get("content") or [])

    walk([message["content"] for message in messages])
    return "\n".join(parts)


def turns(request: ModelRequest) -> int:
    """How many replies the agent has given so far."""
    return sum(message["role"] == "assistant" for message in request.messages)


def task(
    name: str, *, needs: tuple[str, ...] = (), role: str = "explorer", outputs: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "name": name, "title": f"Do {name}", "instructions": f"Please do {name}.", "role": role,
        "depends_on": list(needs), "expected_outputs": list(outputs),
    }  # fmt: skip


class PlannedRun:
    """A script of a whole run: the planner makes `tasks`, waits, reacts to failures, and finishes.

    `work(task, request)` gives a sub-agent's answer, `on_failure(task)` the planner's blocks about a failed
    task.
    """

    def __init__(
        self,
        tasks: list[dict[str, Any]],
        work: Callable[[str, ModelRequest], Any] | None = None,
        on_failure: Callable[[str], Blocks] | None = None,
    ) -> None:
        self.tasks = tasks
        self.work = work or (lambda name, request: [said(f"{name} is done")])
        self.on_failure = on_failure or (lambda name: [call("resume_task", {"task": name})])

    def __call__(self, request: ModelRequest) -> Any:
        return self.plan(request) if role_of(request) == "planner" else self.work(task_of(request), request)

    def plan(self, request: ModelRequest) -> Blocks:
        if turns(request) == 0:
            return [call("create_plan", {"goal": "the goal", "tasks": self.tasks})]
        news = [item for message in request.messages for item in inbox_of(message)]
        last = inbox_of(request.messages[-1])
        failed = [item["task"] for item in last if item["kind"] == "task_failed"]
        if failed:
            return [block for name in failed for block in self.on_failure(name)]
        over = {item["task"] for item in news if item["kind"] == "task_done"}
        if over >= {one["name"] for one in self.tasks} and not last_results(request):
            return [call("finish_session", {"summary": "all tasks are done"})]
        return [said("I wait for the tasks.")]


def inbox_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of an inbox message; none for any other."""
    text = flat([message])
    found = re.findall(r"^(\{\"inbox\".*\})$", text, re.MULTILINE)
    items = [item for text in found for item in json.loads(text)["inbox"]]
    said = re.findall(
        r"^A person says: (.*?)(?=\n\n\{\"inbox\"|^Task \S+ |\Z)", text, re.MULTILINE | re.DOTALL
    )
    return [*items, *({"kind": "steer", "text": one} for one in said)]


def last_results(request: ModelRequest) -> list[dict[str, Any]]:
    """The tool results of the newest message."""
    content = request.messages[-1]["content"]
    return (
        [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
        if isinstance(content, list)
        else []
    )
