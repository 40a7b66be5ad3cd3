"""What calls of Codex's own tools do: agents that a thread spawned, and its plan.

A spawned agent has a log of its own as well, where it is not lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from watchkeeper.transcripts.codex.items import arguments_of
from watchkeeper.transcripts.jsontext import text_of
from watchkeeper.transcripts.records import Agent, PlanItem, Record

Ended = Literal["working", "done", "failed", "cancelled"]

SPAWNING_TOOLS = ("spawn_agent",)
CALLS_KEPT = 200
_STEPS: dict[str, Any] = {"pending": "pending", "in_progress": "running", "completed": "done"}
_STATUS: dict[str, Ended] = {
    "completed": "done",
    "shutdown": "done",
    "errored": "failed",
    "not_found": "failed",
    "interrupted": "cancelled",
    "running": "working",
    "pending_init": "working",
}


class SpawnBook:
    """Calls that spawn agents, and what became of them.

    Args:
        key_of: the key of the agent that a thread is.
    """

    def __init__(
        self, owner: str, key_of: Callable[[str], str], calls: dict[str, list[str]] | None = None
    ) -> None:
        self._owner = owner
        self._key_of = key_of
        self.calls = dict(calls or {})
        """Call → what the agent was told, its role and its name."""

    def called(self, name: str, call_id: str, arguments: dict[str, Any]) -> None:
        """A tool was called."""
        if name.rpartition(".")[2] not in SPAWNING_TOOLS:
            return
        goal = (
            text_of(arguments.get("message"))
            or text_of(arguments.get("task"))
            or text_of(arguments.get("prompt"))
        )
        role = text_of(arguments.get("agent_type")) or text_of(arguments.get("role"))
        self.calls[call_id] = [goal or "", role or "", text_of(arguments.get("task_name")) or ""]
        if len(self.calls) > CALLS_KEPT:
            self.calls.pop(next(iter(self.calls)))

    def answered(self, call_id: str, content: Any, at: float | None, found: list[Record]) -> None:
        """A call's output names the agent."""
        if call_id not in self.calls or not isinstance(content, str):
            return
        outcome = arguments_of(content)
        child = text_of(outcome.get("agent_id")) or text_of(outcome.get("thread_id"))
        if child is not None:
            found.append(self._agent(child, call_id, at, name=text_of(outcome.get("nickname"))))

    def event(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """An event tells of other threads."""
        if kind == "collab_agent_spawn_end":
            child = text_of(payload.get("new_thread_id"))
            if child is not None:
                found.append(
                    self._agent(
                        child,
                        text_of(payload.get("call_id")),
                        at,
                        name=text_of(payload.get("new_agent_nickname")),
                        role=text_of(payload.get("new_agent_role")),
                        goal=text_of(payload.get("prompt")),
                        status=_status(payload.get("status")),
                    )
                )
        elif kind == "sub_agent_activity":
            self._activity(payload, text_of(payload.get("event_id")), at, found)
        elif kind == "item_completed" and isinstance(payload.get("item"), dict):
            self._item(payload["item"], at, found)
        elif kind == "collab_waiting_end" and isinstance(payload.get("statuses"), dict):
            for child, status in payload["statuses"].items():
                if child and _status(status) is not None:
                    found.append(Agent(self._key_of(child), at=at, status=_status(status)))
        elif kind in ("collab_close_end", "collab_agent_interaction_end"):
            child = text_of(payload.get("receiver_thread_id"))
            if child is not None and _status(payload.get("status")) is not None:
                found.append(Agent(self._key_of(child), at=at, status=_status(payload.get("status"))))

    def _item(self, item: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """Later logs hold what was completed in place of events."""
        if item.get("type") == "SubAgentActivity":
            self._activity(item, text_of(item.get("id")), at, found)
        elif item.get("type") == "CollabAgentToolCall" and isinstance(item.get("receiver_thread_ids"), list):
            states = item.get("agents_states")
            states = states if isinstance(states, dict) else {}
            spawned = text_of(item.get("id")) if text_of(item.get("tool")) in SPAWNING_TOOLS else None
            goal = text_of(item.get("prompt")) if spawned else None
            for child in filter(None, map(text_of, item["receiver_thread_ids"])):
                state = states.get(child)
                status = _status(
                    state.get("status") if isinstance(state, dict) and "status" in state else state
                )
                found.append(self._agent(child, spawned, at, goal=goal, status=status))

    def _activity(
        self, payload: dict[str, Any], call_id: str | None, at: float | None, found: list[Record]
    ) -> None:
        child, kind = text_of(payload.get("agent_thread_id")), payload.get("kind")
        if child is not None:
            path = text_of(payload.get("agent_path"))
            started = call_id if kind == "started" else None
            found.append(self._agent(child, started, at, name=path, status=_status(kind)))

    def _agent(
        self,
        child: str,
        call_id: str | None,
        at: float | None,
        *,
        name: str | None = None,
        role: str | None = None,
        goal: str | None = None,
        status: Ended | None = None,
    ) -> Agent:
        asked = self.calls.get(call_id or "", ["", "", ""])
        return Agent(
            self._key_of(child),
            self._owner,
            call_id,
            name or asked[2] or None,
            role or asked[1] or None,
            goal or asked[0] or None,
            at=at,
            status=status,
        )


def _status(status: Any) -> Ended | None:
    if isinstance(status, dict):
        status = next(iter(status), None)
    return _STATUS.get(status) if isinstance(status, str) else None


def plan_items(arguments: dict[str, Any]) -> list[PlanItem] | None:
    """The list in an `update_plan` call; an item is recognised by its text, and the second of one text by its
    place."""
    steps = arguments.get("plan")
    if isinstance(steps, str):
        try:
            steps = json.loads(steps)
        except (ValueError, RecursionError):
            return None
    if not isinstance(steps, list):
        return None
    found: list[PlanItem] = []
    seen: dict[str, int] = {}
    for step in steps:
        title = text_of(step.get("step")) if isinstance(step, dict) else None
        if title is None:
            continue
        seen[title] = seen.get(title, 0) + 1
        key = title if seen[title] == 1 else f"{title} ({seen[title]})"
        found.append(PlanItem(key, title, _STEPS.get(str(step.get("status")), "pending")))
    return found
