"""A planner and workers whose effects go into a ledger outside the workspace: for kill trials against the
command line.

What a worker does next is told by the results that its conversation holds, so that a reply which no kill let
be committed is given again, and one that was is not. Where it is told that an outcome is unknown, it looks
into the ledger first.
"""

from __future__ import annotations

import random
import re
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.answers import Answer, Block, Body, Reply, Status, text, text_of, tool, tools_of
from tests.support.scripted import inbox_of, task

WORKERS = tuple(f"worker{number}" for number in range(4))
JOIN = "join"
PLAN = [*(task(name, role="coder") for name in WORKERS), task(JOIN, needs=WORKERS, role="coder")]
SOME_FAULTS = (
    Status(500), Status(529, "overloaded_error"), Status(429, "rate_limit_error", headers={"retry-after": "0"}),
)  # fmt: skip
"""What the server answers instead, now and then."""

_HANDOFF = re.compile(r'^handoff: \{"task": "(\w+)", "attempt": (\d+)', re.MULTILINE)
_USE = re.compile(r"use-(\w+)-(\d+)-(\w+)-\d+")

Attempt = tuple[str, int]
"""A task's name, and its attempt."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a worker is to do, under a name that no other has."""

    label: str
    kind: str
    share: float
    """Where in its time the effect comes."""


class LedgerModel:
    """A script for `MessagesServer`. `told` is what the workers were told of each operation, oldest first."""

    def __init__(self, seed: int, ledger: Path, *, operations: int = 7, faults: float = 0.04) -> None:
        self._seed = seed
        self._ledger = ledger
        self._operations = operations
        self._faults = faults
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._done: set[str] = set()
        self._planned = False
        self._refused = False
        self.told: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Label → id of the call → its result."""

    def operations(self, attempt: Attempt) -> list[Operation]:
        """What a worker does in this attempt."""
        rng = random.Random(f"{self._seed}/{attempt}")
        kinds = rng.choices(
            ("shell", "behind", "apart", "edit", "fact", "artifact", "read"),
            (4, 1, 1, 2, 1, 1, 1),
            k=self._operations,
        )
        return [
            Operation(f"{attempt[0]}_{attempt[1]}_{place}", "shell" if place == 0 else kind, rng.random())
            for place, kind in enumerate(kinds)
        ]

    def __call__(self, body: Body) -> Answer:
        with self._lock:
            if self._rng.random() < self._faults:
                return self._rng.choice(SOME_FAULTS)
            offered = tools_of(body)
            if "create_plan" in offered:
                return Reply(self._plan(body["messages"]))
            if "save_artifact" not in offered:
                return Reply([text("<observations>\n[!] The work goes on (#1).\n</observations>")])
            return self._work(body["messages"])

    # --- the planner ----------------------------------------------------------------------------------------

    def _plan(self, messages: list[Any]) -> list[Block]:
        self._planned = self._planned or "create_plan" in str(messages)
        if not self._planned:
            return [self._use("create_plan", {"goal": "the goal", "tasks": PLAN})]
        for message in messages:
            self._done |= {item["task"] for item in inbox_of(message) if item["kind"] == "task_done"}
        news = inbox_of(messages[-1])
        if failed := dict.fromkeys(item["task"] for item in news if item["kind"] == "task_failed"):
            return [self._use("rerun_task", {"task": name, "reason": "it failed"}) for name in failed]
        if news and JOIN in self._done:
            return [self._use("finish_session", {"summary": "all is done"})]
        return [text("I wait for the tasks.")]

    def _use(self, name: str, arguments: dict[str, Any]) -> Block:
        return tool(name, arguments, f"plan-{self._rng.randrange(10**9)}")

    # --- the workers ----------------------------------------------------------------------------------------

    def _work(self, messages: list[Any]) -> Answer:
        attempt = _attempt_of(messages)
        self._learn(messages)
        if attempt == (WORKERS[1], 1) and self.told and not self._refused:
            self._refused = True
            return Status(400, "invalid_request_error", "this attempt fails")
        for operation in self.operations(attempt):
            block = self._next(attempt, operation)
            if block is not None:
                return Reply([block])
        return Reply([text(f"{attempt[0]} has done all of it.")])

    def _learn(self, messages: list[Any]) -> None:
        for message in messages:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block.get("type") == "tool_result" and (found := _USE.fullmatch(block["tool_use_id"])):
                    self.told[found[3]].setdefault(block["tool_use_id"], text_of({"content": [block]}))

    def _next(self, attempt: Attempt, operation: Operation) -> Block | None:
        """The call that is due for an operation; None once it is settled."""
        results = list(self.told[operation.label].values())
        if results and not _is_open(results[-1]):
            return None
        name, arguments = self._call(operation)
        if results and name in ("bash", "edit"):
            looks = [
                look
                for look in self.told[f"look{operation.label}"].values()
                if look.strip() in ("there", "missing")
            ]
            if len(looks) < len(results):
                return self._numbered(attempt, f"look{operation.label}", "bash", self._look(operation))
            if "missing" not in looks[-1]:
                return None
        return self._numbered(attempt, operation.label, name, arguments)

    def _numbered(self, attempt: Attempt, label: str, name: str, arguments: dict[str, Any]) -> Block:
        return tool(name, arguments, f"use-{attempt[0]}-{attempt[1]}-{label}-{self._rng.randrange(10**9)}")

    def _look(self, operation: Operation) -> dict[str, Any]:
        place = "log.txt" if operation.kind == "edit" else self._ledger
        # A host that dies often leaves looks without an outcome, and a call that ran three times is asked about.
        looked = len(self.told[f"look{operation.label}"])
        return {
            "command": f"grep -qw '^{operation.label}' '{place}' && echo there || echo missing # {looked}"
        }

    def _call(self, operation: Operation) -> tuple[str, dict[str, Any]]:
        label = operation.label
        before, after = operation.share * 0.6, 0.6 - operation.share * 0.6
        script = f'n=$$.$(date +%N); sleep {before:.2f}; echo "{label} $n" >> "{self._ledger}"; sleep {after:.2f}; echo "did {label} $n"'
        match operation.kind:
            case "shell":
                return "bash", {"command": script}
            case "behind":
                return "bash", {"command": f"( {script} ) & wait"}
            case "apart":
                return "bash", {"command": f"setsid -w sh -c '{script}'"}
            case "edit":
                return "edit", {"file_path": "log.txt", "old_string": "END", "new_string": f"{label}\nEND"}
            case "fact":
                return "remember", {"text": f"the fact {label}"}
            case "artifact":
                return "save_artifact", {"name": label, "content": f"{label} " * 4_000}
            case _:
                return "read", {"file_path": "log.txt"}


def _is_open(result: str) -> bool:
    """Whether the result leaves open what was done, or says that nothing was: the host died, or the shell, or
    a worker."""
    return any(
        word in result for word in ("outcome unknown", "killed", "ended", "did not start", "[not run]")
    )


def _attempt_of(messages: list[Any]) -> Attempt:
    """Whose conversation it is: by its newest assignment, or by its own calls where that was compacted
    away."""
    found: Attempt | None = None
    for message in messages:
        for name, number in _HANDOFF.findall(text_of(message)):
            found = name, int(number)
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block.get("type") == "tool_use" and (use := _USE.fullmatch(block["id"])):
                found = max(found or (use[1], 0), (use[1], int(use[2])))
    assert found is not None, "a worker that was given nothing to do"
    return found
