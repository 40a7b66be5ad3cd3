"""What the scripted provider answers in a whole run: a function of each request's body alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support.answers import Answer, Body, Reply, system_of, text_of, turn_of
from tests.support.scripted import inbox_of, task, task_of

from watchkeeper.records.messages import ModelRequest

PARTS = ("alpha", "beta", "gamma")
PLAN = [
    *(task(name, outputs=(f"{name}.json",)) for name in PARTS),
    task("summary", needs=PARTS, role="writer", outputs=("SUMMARY.md",)),
]


def role_in(body: Body) -> str:
    return system_of(body).splitlines()[0].removeprefix("Role: ")


def task_in(body: Body) -> str:
    """The task that the asking sub-agent was given."""
    return task_of(ModelRequest(system="", messages=tuple(body["messages"])))


def who(body: Body) -> str:
    """`planner`, or the name of the asking sub-agent's task."""
    return "planner" if role_in(body) == "planner" else task_in(body)


def says(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def uses(name: str, /, **arguments: Any) -> dict[str, Any]:
    """A tool call; `Survey` gives it an id that is unique in its conversation."""
    return {"type": "tool_use", "id": "", "name": name, "input": arguments}


def numbered(blocks: list[dict[str, Any]], request: int | str) -> list[dict[str, Any]]:
    return [
        block | {"id": f"toolu_{request}_{place}"}
        if block["type"] == "tool_use" and not block["id"]
        else block
        for place, block in enumerate(blocks)
    ]


class Survey:
    """A planner that makes `PLAN` and finishes once all is done; explorers that take four turns each.

    `fault(who, turn, count)` may give another answer, for the `count`-th request (from 1) of that turn.
    """

    def __init__(
        self,
        tasks: list[dict[str, Any]] | None = None,
        *,
        work: Callable[[str, int, Body], Any] | None = None,
        fault: Callable[[str, int, int], Answer | None] | None = None,
    ) -> None:
        self.tasks = PLAN if tasks is None else tasks
        self.work = work or explore
        self.fault = fault or (lambda name, turn, count: None)
        self.asked: Counter[tuple[str, int]] = Counter()
        """How often each turn was asked for: (`planner` or a task's name, turn from 0)."""
        self._lock = threading.Lock()

    def __call__(self, body: Body) -> Answer:
        name, turn = who(body), turn_of(body)
        with self._lock:
            self.asked[name, turn] += 1
            count = self.asked[name, turn]
            number = self.asked.total()
        other = self.fault(name, turn, count)
        if other is not None:
            return other
        blocks = self.plan(turn, body) if name == "planner" else self.work(name, turn, body)
        return blocks if not isinstance(blocks, list) else Reply(numbered(blocks, number))

    def plan(self, turn: int, body: Body) -> list[dict[str, Any]]:
        if turn == 0:
            return [says("I look first."), uses("list_folder"), uses("glob", pattern="**/*.py")]
        if turn == 1:
            return [uses("create_plan", goal="the goal", tasks=self.tasks)]
        done = {
            item["task"]
            for message in body["messages"]
            for item in inbox_of(message)
            if item["kind"] == "task_done"
        }
        answers_results = "tool_result" in str(body["messages"][-1])
        failed = [item["task"] for item in inbox_of(body["messages"][-1]) if item["kind"] == "task_failed"]
        if failed and turn > 12:
            raise AssertionError(f"{failed} fail again and again: {text_of(body['messages'][-1])}")
        if failed:
            return [uses("resume_task", task=name) for name in failed]
        if done >= {one["name"] for one in self.tasks} and not answers_results:
            return [uses("finish_session", summary="all tasks are done")]
        return [says("I wait for the tasks.")]


def explore(name: str, turn: int, body: Body) -> Any:
    """Read, remember, keep, report: two tools at a time."""
    if name == "summary":
        if turn == 0:
            return [uses("read_artifact", ref=f"{part}.json") for part in PARTS]
        if turn == 1:
            assert all(f'"{part}"' in text_of(body["messages"][-1]) for part in PARTS)
            return [
                uses(
                    "save_artifact",
                    name="SUMMARY.md",
                    content="# Summary\nalpha, beta and gamma each hold one file.\n",
                )
            ]
        return [says("The summary is saved.")]
    match turn:
        case 0:
            return [uses("list_folder", path=name), uses("read", file_path=f"{name}/main.py")]
        case 1:
            assert f"print('{name}')" in text_of(body["messages"][-1])
            return [
                says("Noted."),
                uses("remember", text=f"{name} prints its own name"),
                uses("grep", pattern="print", path=name),
            ]
        case 2:
            return [uses("save_artifact", name=f"{name}.json", content={"part": name, "files": 1})]
    return [says(f"{name} holds one file, main.py.")]


def keep_notes(name: str, turn: int, body: Body) -> Any:
    """Three turns with tools of the store alone, which need no worker process; then the result."""
    if turn < 3:
        return [
            uses("remember", text=f"{name} at turn {turn}"),
            uses("save_artifact", name=f"{name}/{turn}", content={"turn": turn}),
        ]
    return [says(f"{name} is done.")]


NOTES = [task("one"), task("two"), task("three", needs=("one", "two"))]
"""A small plan for `keep_notes`."""


class Notes(Survey):
    """A run of `NOTES` whose planner makes its plan at once: no worker process, so cheap."""

    def __init__(self, tasks: list[dict[str, Any]] | None = None, **options: Any) -> None:
        super().__init__(NOTES if tasks is None else tasks, **({"work": keep_notes} | options))

    def plan(self, turn: int, body: Body) -> list[dict[str, Any]]:
        return super().plan(turn + 1, body)


TURNS = {
    ("planner", 0),
    ("planner", 1),
    *((part, turn) for part in PARTS for turn in range(4)),
    *(("summary", t) for t in range(3)),
}
"""The turns of a whole `Survey`, of which the planner's later ones depend on when results arrive."""
