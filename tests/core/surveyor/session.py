"""A tiny session in memory: the surveyor as planner, explorers and writer, over the real folder tools."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.agents.session_tools import at_pointer, expand_includes, merge_json
from watchkeeper.agents.tools.contract import validate_arguments
from watchkeeper.agents.tools.folder import LIST_FOLDER, list_page
from watchkeeper.models.surveyor import SurveyorModel
from watchkeeper.records.messages import ModelRequest, Reply, ToolSpec
from watchkeeper.records.ports import ManualClock

PLANNER = (
    "list_folder", "create_plan", "resume_task", "rerun_task", "drop_task", "finish_session", "save_artifact",
    "read_artifact",
)  # fmt: skip
EXPLORER = ("list_folder", "read", "save_artifact", "read_artifact", "remember", "recall")
WRITER = ("read_artifact", "save_artifact", "merge_artifacts", "recall")
TOOLS = {"planner": PLANNER, "explorer": EXPLORER, "writer": WRITER}

Message = dict[str, Any]
Fault = Callable[[str, str, dict[str, Any]], str | None]
"""(agent, tool, input) → an error instead of the tool's result, or None."""


def spec(name: str) -> ToolSpec:
    return LIST_FOLDER if name == "list_folder" else ToolSpec(name, name, {"type": "object"})


@dataclass
class FakeSession:
    """Runs one survey. `compaction` is the chance that an agent's middle is dropped before a call."""

    workspace: Path
    window: int = 16_000
    compaction: float = 0.0
    seed: int = 0
    fault: Fault = lambda agent, tool, arguments: None
    artifacts: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    finished: dict[str, Any] | None = None
    calls: int = 0
    turns: dict[str, int] = field(default_factory=dict)
    longest_reply: int = 0
    """Characters of the longest text of a reply."""
    largest_prompt: int = 0
    used: list[tuple[str, str]] = field(default_factory=list)
    """(agent, tool) of each call."""
    contexts: dict[str, list[Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.model = SurveyorModel(speed=None, clock=ManualClock(), context_window=self.window)

    # -- one agent
    # ----------------------------------------------------------------------------------------------

    def reply(self, role: str, messages: list[Message], tools: tuple[str, ...] | None = None) -> Reply:
        request = ModelRequest(
            system=f"Role: {role}\n\nDo your work.",
            messages=messages,
            tools=[spec(name) for name in (TOOLS.get(role, ()) if tools is None else tools)],
        )
        self.largest_prompt = max(self.largest_prompt, len(json.dumps(messages)))
        self.calls += 1

        async def whole() -> Reply:
            events = [event async for event in self.model.stream(request)]
            assert isinstance(events[-1], Reply)
            assert not any(isinstance(event, Reply) for event in events[:-1])
            return events[-1]

        return asyncio.run(whole())

    def run_agent(self, agent: str, role: str, arrives: str, *, most_turns: int = 400) -> str:
        """Deliver a message to an agent and let it work until it calls no tool; its last words."""
        messages = self.contexts.setdefault(agent, [])
        add_user(messages, [{"type": "text", "text": arrives}])
        for _ in range(most_turns):
            reply = self.reply(role, self.context(messages))
            self.turns[agent] = self.turns.get(agent, 0) + 1
            messages.append({"role": "assistant", "content": reply.content})
            self.longest_reply = max(self.longest_reply, len(text_of(reply.content)))
            uses = [block for block in reply.content if block["type"] == "tool_use"]
            assert (reply.stop_reason == "tool_use") == bool(uses)
            if not uses:
                return text_of(reply.content)
            add_user(messages, [self.result(agent, use) for use in uses])
        raise AssertionError(f"{agent} does not come to an end")

    def context(self, messages: list[Message]) -> list[Message]:
        """What the agent is shown: all of it, or the first message, a summary of sorts, and the newest
        two."""
        full = len(json.dumps(messages)) / 3 > 0.75 * self.window
        if len(messages) < 4 or not (full or self.random.random() < self.compaction):
            return messages
        front = {
            "role": "user",
            "content": [*messages[0]["content"], {"type": "text", "text": "Observations: #1 work went on."}],
        }
        return [front, *messages[-2:]]

    def result(self, agent: str, use: dict[str, Any]) -> dict[str, Any]:
        name, arguments = use["name"], use["input"]
        self.used.append((agent, name))
        error = self.fault(agent, name, arguments)
        if error is None:
            try:
                content = getattr(self, name)(agent, **arguments)
            except (ValueError, OSError) as failure:
                error, content = str(failure), str(failure)
        else:
            content = error
        return {
            "type": "tool_result",
            "tool_use_id": use["id"],
            "content": content,
            "is_error": error is not None,
        }

    # -- tools
    # --------------------------------------------------------------------------------------------------

    def list_folder(self, agent: str, **arguments: Any) -> str:
        fault = validate_arguments(LIST_FOLDER.input_schema, arguments)
        if fault is not None:
            raise ValueError(fault)
        return list_page(self.workspace, **arguments)

    def read(self, agent: str, file_path: str, view_range: list[int]) -> str:
        lines = (self.workspace / file_path).read_text(errors="replace").splitlines()
        first, last = view_range
        return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))

    def save_artifact(self, agent: str, name: str, content: Any, media_type: str | None = None) -> str:
        value = content if isinstance(content, str) else expand_includes(content, self.load)
        self.artifacts[name] = value
        data = json.dumps(value)
        return json.dumps(
            {"ref": hashlib.sha256(data.encode()).hexdigest(), "name": name, "bytes": len(data)}
        )

    def load(self, name: str) -> Any:
        if name not in self.artifacts:
            raise ValueError(f"there is no artifact {name!r}")
        # A copy, as one that came out of a database would be.
        return json.loads(json.dumps(self.artifacts[name]))

    def read_artifact(
        self, agent: str, ref: str, pointer: str = "", offset: int = 0, limit: int = 6_000
    ) -> str:
        missing = object()
        value = at_pointer(self.load(ref), pointer, missing)
        if value is missing:
            raise ValueError(f"pointer {pointer} leads nowhere")
        text = value if isinstance(value, str) and not pointer else json.dumps(value, ensure_ascii=False)
        piece = text[offset : offset + limit]
        return piece if len(piece) == len(text) else f"{piece}\n[{len(text)} characters in total]"

    def merge_artifacts(self, agent: str, inputs: list[str], name: str) -> str:
        self.artifacts[name] = merge_json([self.load(one) for one in inputs])
        return json.dumps({"ref": name, "name": name, "bytes": 1, "inputs": len(inputs)})

    def remember(self, agent: str, text: str, kind: str = "fact") -> str:
        self.facts.append(text)
        return "remembered"

    def recall(self, agent: str, query: str) -> str:
        return (
            "\n".join(f"- {fact}" for fact in self.random.sample(self.facts, min(5, len(self.facts))))
            or "nothing"
        )

    def create_plan(self, agent: str, goal: str, tasks: list[dict[str, Any]]) -> str:
        if self.tasks:
            raise ValueError("there is a plan already")
        for task in tasks:
            assert task["name"] not in self.tasks
            self.tasks[task["name"]] = {**task, "status": "pending"}
        return json.dumps({"plan": "p1", "revision": 1, "tasks": {task["name"]: "id" for task in tasks}})

    def resume_task(self, agent: str, task: str, message: str = "") -> str:
        self.tasks[task]["status"] = "resume"
        return self.plan_state()

    def rerun_task(self, agent: str, task: str, reason: str = "", fresh: bool = False) -> str:
        if fresh:
            self.contexts.pop(task, None)
        self.tasks[task]["status"] = "pending"
        return self.plan_state()

    def drop_task(self, agent: str, task: str, reason: str = "") -> str:
        if task not in self.tasks:
            raise ValueError(f"no task {task!r}; existing tasks: {', '.join(self.tasks) or 'none yet'}")
        self.tasks[task]["status"] = "dropped"
        return self.plan_state()

    def plan_state(self) -> str:
        return json.dumps({"ok": "", "tasks": {name: task["status"] for name, task in self.tasks.items()}})

    def finish_session(self, agent: str, summary: str, status: str = "done") -> str:
        left = [name for name, task in self.tasks.items() if task["status"] not in ("done", "dropped")]
        if left:
            raise ValueError(f"not yet: {left}")
        self.finished = {"summary": summary, "status": status}
        return "the session ends"

    # -- the whole
    # ----------------------------------------------------------------------------------------------

    def run(self) -> FakeSession:
        """Plan, work through the tasks in a random order that respects dependencies, and end."""
        self.run_agent(
            "planner", "planner", f"# Goal\nSurvey it.\n\nThe workspace is {self.workspace}. Make a plan."
        )
        for _ in range(200):
            if self.finished:
                return self
            ready = [
                name
                for name, task in self.tasks.items()
                if task["status"] in ("pending", "resume")
                and all(
                    self.tasks[need]["status"] in ("done", "dropped") for need in task.get("depends_on", ())
                )
            ]
            if not ready:
                raise AssertionError(f"nothing is ready, and the session is not finished: {self.tasks}")
            batch = self.random.sample(ready, min(len(ready), self.random.randint(1, 4)))
            items = [self.run_task(name) for name in batch]
            headlines = "\n".join(
                f"Task {item['task']} is done."
                if item["kind"] == "task_done"
                else f"Task {item['task']} failed: {item['error']}."
                for item in items
            )
            self.run_agent(
                "planner", "planner", f"{headlines}\n\n{json.dumps({'inbox': items}, ensure_ascii=False)}"
            )
        raise AssertionError("the session does not come to an end")

    def run_task(self, name: str) -> dict[str, Any]:
        task = self.tasks[name]
        done = [need for need in task.get("depends_on", ()) if self.tasks[need]["status"] == "done"]
        message = (
            assignment(task, done)
            if task["status"] == "pending"
            else "You were resumed. Continue where you stopped."
        )
        self.results[name] = self.run_agent(name, task["role"], message)
        failed = any(output not in self.artifacts for output in task["expected_outputs"])
        task["status"] = "failed" if failed else "done"
        self.artifacts[f"result/{name}"] = self.results[name]
        if failed:
            outputs = ", ".join(task["expected_outputs"])
            error = f"expected outputs are missing: {outputs}"
            return {"kind": "task_failed", "task": name, "error": error, "attempt": 1}
        outputs = [
            {"name": output, "ref": output} for output in task["expected_outputs"] if output in self.artifacts
        ]
        assert len(outputs) == len(task["expected_outputs"])
        return {
            "kind": "task_done", "task": name, "title": task["title"], "result": self.results[name],
            "artifacts": outputs,
        }  # fmt: skip

    @property
    def survey(self) -> dict[str, Any]:
        value = self.artifacts["survey.json"]
        assert isinstance(value, dict)
        return value

    @property
    def report(self) -> str:
        return str(self.artifacts["SURVEY.md"])


def assignment(task: dict[str, Any], done: Sequence[str] = ()) -> str:
    """The first message of a task. `done`: the tasks before it that are done."""
    handoff = {
        "task": task["name"],
        "inputs": [f"counts/{name}" for name in done],
        "expected_outputs": task["expected_outputs"],
    }
    return f"# Task: {task['title']}\n\n{task['instructions']}\n\nhandoff: {json.dumps(handoff)}\n\nWhen done, reply."


def add_user(messages: list[Message], blocks: list[dict[str, Any]]) -> None:
    if messages and messages[-1]["role"] == "user":
        messages[-1] = {"role": "user", "content": [*messages[-1]["content"], *blocks]}
    else:
        messages.append({"role": "user", "content": blocks})


def text_of(content: list[dict[str, Any]]) -> str:
    return "\n".join(block["text"] for block in content if block["type"] == "text")
