"""The simulated model: what it answers depends on the seed and on the request alone, as a model's answer does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from tests.simulate.checks import Rows
from tests.simulate.script import digest_rng
from tests.support.scripted import call, flat, inbox_of, last_results, said, turns

from watchkeeper.agents.agent_state import AgentMemory
from watchkeeper.memory.history import WindowTooSmall
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.messages import (
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    Purpose,
    Reply,
    Usage,
    UsageSoFar,
)

if TYPE_CHECKING:
    from tests.simulate.world import World

TURNS = (Purpose.TURN, Purpose.PLANNER)
LONGEST_TASK = 10
"""Turns after which a sub-agent ends its task."""


class SeededModel:
    """Makes the script's plan, works with the simulated tools, and ends. Checks that each request is one that a provider
    would take."""

    ref = "test/seeded"

    def __init__(self, world: World) -> None:
        self._world = world
        self._counter = default_counter()
        self.context_window = int(world.script.settings["window"])

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        world = self._world
        text = flat(request.messages)
        if request.purpose in TURNS:
            world.problems += refusals(request) + self._differences(request)
        reservations = world.begin_call(request.agent_id, request.purpose)
        try:
            async for event in self._reply(request, text):
                if isinstance(event, Reply):
                    world.end_call(reservations)
                yield event
        finally:
            world.end_call(reservations)

    def _differences(self, request: ModelRequest) -> list[str]:
        """Where a request is not what a new host would make of the committed rows."""
        reads = Rows(self._world.read)
        state = AgentMemory.stored(reads, request.agent_id, self._counter).state
        try:
            stored = state.rendered()
        except WindowTooSmall:
            return []
        given = [dict(one) for one in request.messages]
        if [dict(one) for one in stored] == given:
            return []
        newest = (
            "SELECT coalesce(max(seq), 0) FROM events WHERE agent_id = ? AND (kind LIKE ? OR kind LIKE ?)"
        )
        changed = self._world.read(newest, request.agent_id, "compaction.%", "memory.%")[0][0]
        stepped = self._world.read(newest, request.agent_id, "model.replied", "inbox.%")[0][0]
        if changed > stepped:
            return []  # a person changed the context while the call waited; the next call has the change
        waiting = "SELECT 1 FROM commands WHERE agent_id = ? AND status = 'queued' AND kind IN ('edit', 'undo', 'redo')"
        if self._world.read(waiting, request.agent_id):
            return []  # such a change is made, and is stored in this moment; after a crash it is made again
        differ = [
            f"{one} instead of {dict(two)}"
            for one, two in zip(given, stored, strict=False)
            if one != dict(two)
        ]
        counts = f"{len(given)} and {len(stored)} messages"
        return [f"a request of {request.agent_id} is not what the store gives ({counts}): {differ[:1]}"]

    async def _reply(self, request: ModelRequest, text: str) -> AsyncIterator[ModelEvent]:
        world = self._world
        rng = digest_rng("model", world.script.seed, request.purpose, len(text), text[-400:])
        if (error := world.model_fault(rng)) is not None:
            await asyncio.sleep(rng.choice([0.0, 0.5]))
            raise error
        await asyncio.sleep(rng.choice([0.0, 0.01, 0.2, 1.5]))
        yield Delta("text", "…")
        read = len(text) // 4
        pace = digest_rng("pace", world.script.seed, request.purpose, len(text), text[-400:])
        slow = world.script.settings.get("slow", 0.0)
        # What is written for a memory is long.
        is_slow = not world.quiet and (pace.random() < slow or (slow > 0 and request.purpose not in TURNS))
        for part in range(2 if is_slow else 0):
            yield UsageSoFar(Usage(input_tokens=read, output_tokens=1 + part))
            await asyncio.sleep(pace.choice([1.0, 5.0, 12.0]))
        if request.purpose in TURNS:
            world.goes_on(request.agent_id)
        blocks = self._answer(request, text, rng)
        uses = any(block["type"] == "tool_use" for block in blocks)
        used = Usage(input_tokens=read, output_tokens=20 + len(str(blocks)) // 4)
        yield Reply(blocks, "tool_use" if uses else "end_turn", used)

    def _answer(self, request: ModelRequest, text: str, rng: Any) -> list[dict[str, Any]]:
        if request.purpose is Purpose.REFLECTOR and "<observations>" not in text:
            return [said("A summary: the work goes on, notes were saved (#2). Paths: notes/a.txt")]
        if request.purpose not in TURNS:
            return [
                said(
                    "<observations>\n10:00 [!] notes were saved (#2)\n</observations><current-task>saving"
                    " notes</current-task>"
                )
            ]
        if any(spec.name == "finish_session" for spec in request.tools):
            return self._plan(request, text, rng)
        return self._work(request, text, rng)

    def _plan(self, request: ModelRequest, text: str, rng: Any) -> list[dict[str, Any]]:
        script = self._world.script
        hasty = script.settings.get("hasty", 0.0)
        if not self._world.read("SELECT 1 FROM tasks"):
            return [
                call(
                    "create_plan",
                    {"goal": "the goal", "tasks": script.plan},
                    f"plan/{rng.randrange(1 << 40)}",
                )
            ]
        try:
            news = [item for item in inbox_of(request.messages[-1]) if isinstance(item, dict)]
        except ValueError:
            news = []  # it is shown in part, since the window is small
        failed = sorted(
            {item["task"] for item in news if item.get("kind") in ("task_failed", "task_cancelled")}
        )
        if failed:
            name = failed[0]
            how = rng.choice(["rerun_task", "resume_task", "drop_task"])
            arguments = {"task": name} | ({"reason": "again"} if how == "rerun_task" else {})
            return [call(how, arguments, f"{how}/{rng.randrange(1 << 40)}")]
        if hasty and rng.random() < hasty:
            return [call("finish_session", {"summary": "enough is done"}, f"finish/{rng.randrange(1 << 40)}")]
        tail = flat(request.messages[-1:])
        nudged = "No tasks are running" in tail
        if nudged and (left := re.findall(r"(\S+) \((?:failed|paused|pending|cancelled|stale)\)", tail)):
            return [call("drop_task", {"task": name}, f"drop/{rng.randrange(1 << 40)}") for name in left]
        if last_results(request) and "not yet:" not in tail and not nudged:
            return [said("I wait for the tasks.")]
        if self._world.open_tasks():
            return [said("I wait for the tasks.")]
        return [call("finish_session", {"summary": "all is done"}, f"finish/{rng.randrange(1 << 40)}")]

    def _work(self, request: ModelRequest, text: str, rng: Any) -> list[dict[str, Any]]:
        done, where = turns(request), re.findall(r"^handoff: \{\"task\": \"([^\"]+)\"", text, re.MULTILINE)
        name = where[-1] if where else "somebody"
        number = rng.randrange(1 << 40)
        results = str(last_results(request))
        if "outcome unknown" in results:
            return [call("check", {"label": f"{name}"}, f"check/{number}")]
        if (
            "you have not saved" in flat(request.messages[-1:])
            or (done >= 2 and rng.random() < 0.2)
            or done >= LONGEST_TASK
        ):
            saved = [
                call(
                    "save_artifact",
                    {"name": output, "content": f"{name} made it {number % 7}"},
                    f"save/{output}/{number}",
                )
                for output in self._world.outputs_of(name)
                if f'"name": "{output}"' not in results
            ]
            return saved or [said(f"{name} is done, {number % 1000}")]
        allowed = {spec.name for spec in request.tools}
        blocks: list[dict[str, Any]] = [said(f"step {done} of {name} " + "word " * rng.choice([1, 30, 600]))]
        for place in range(rng.choice([1, 1, 1, 2, 3])):
            kind = rng.choice([name for name in KINDS if name in allowed])
            use = f"{kind}/{place}/{number}"
            if kind == "remember":
                blocks.append(call(kind, {"text": f"{name} learned {number % 97}"}, use))
            elif kind == "save_artifact":
                blocks.append(
                    call(kind, {"name": f"notes/{name}", "content": f"note {number} " + "word " * 80}, use)
                )
            elif kind == "recall":
                blocks.append(call(kind, {"query": "learned"}, use))
            elif kind == "bash":
                blocks.append(call(kind, {"command": command(rng, f"{name}-{number}-{place}")}, use))
            elif kind == "write":
                file = rng.choice(["shared.txt", f"{name}.txt"])
                blocks.append(
                    call(kind, {"file_path": file, "content": f"written by {name} {number}\n"}, use)
                )
            elif kind == "edit":
                given = {"file_path": "shared.txt", "old_string": "two", "new_string": f"two {number % 9}"}
                blocks.append(call(kind, given, use))
            elif kind == "read":
                blocks.append(call(kind, {"file_path": "shared.txt"}, use))
            else:
                blocks.append(call(kind, {"label": f"{name}-{number % 1000}"}, use))
        return blocks


KINDS = (
    "effect", "effect", "effect_again", "asking", "remember", "save_artifact", "recall", "bash", "bash", "write", "edit", "read",
)  # fmt: skip
"""Tools that a sub-agent calls, as often as they are listed here."""


def command(rng: Any, label: str) -> str:
    """A command with an effect, which may also change what its shell holds."""
    number = rng.randrange(9)
    change = rng.choice(
        ["", "cd sub && ", f"export A={number} && ", f"B={number} && ", f"sleep {number}00 & "]
    )
    return f"{change}./effect {label}"


def refusals(request: ModelRequest) -> list[str]:
    """Why a provider of the Messages API would refuse a request."""
    found: list[str] = []
    asked: list[str] = []
    seen: set[str] = set()
    if not request.messages or request.messages[0]["role"] != "user":
        found.append("a request does not begin with a message of the user")
    for place, message in enumerate(request.messages):
        content = message["content"]
        blocks = content if isinstance(content, list) else []
        answered = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
        if message["role"] == "user" and sorted(answered) != sorted(asked):
            found.append(f"message {place}: results of {sorted(answered)} for the calls {sorted(asked)}")
        if twice := seen & set(answered):
            found.append(f"message {place}: a second result of {sorted(twice)}")
        seen.update(answered)
        if message["role"] == "assistant":
            asked = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        else:
            asked = []
        if not content:
            found.append(f"message {place} is empty")
    if asked:
        found.append(f"the calls {asked} have no result")
    return found


def fault_of(kind: str, now: float) -> ModelError:
    """A fault of a model, by its name."""
    kinds = {
        "retry": ErrorKind.RETRY,
        "pause": ErrorKind.PAUSE,
        "compact": ErrorKind.COMPACT,
        "fail": ErrorKind.FAIL,
    }
    if kind == "park":
        return ModelError("a usage limit", kind=ErrorKind.PARK, until=now + 45.0)
    if kind == "park without a time":
        return ModelError("a usage limit", kind=ErrorKind.PARK)
    return ModelError(f"the model says: {kind}", kind=kinds[kind])
