"""Claude Code's plans: the whole list at each `TodoWrite`, or single items by `TaskCreate` and `TaskUpdate`."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal

from watchkeeper.transcripts.jsontext import text_of
from watchkeeper.transcripts.records import Plan, PlanItem, Record

Status = Literal["pending", "running", "done", "failed", "cancelled", "dropped"]

_STATUS: dict[str, Status] = {
    "pending": "pending",
    "in_progress": "running",
    "completed": "done",
    "cancelled": "cancelled",
    "deleted": "dropped",
}
_CREATED = re.compile(r"Task #(\S+) created")
_UPDATED = ("taskId", "subject", "description", "status", "addBlockedBy")
CALLS_KEPT = 200


class PlanBook:
    """Turns calls of the plan's tools into versions of the plan."""

    def __init__(self) -> None:
        self._creating: dict[str, list[str]] = {}
        """`TaskCreate` calls that wait for the item's id → subject and description."""
        self._updating: dict[str, dict[str, Any]] = {}
        """`TaskUpdate` calls that wait for their result → what they change."""

    @classmethod
    def restore(cls, state: dict[str, Any]) -> PlanBook:
        book = cls()
        book._creating = {key: list(value) for key, value in state.get("creating", {}).items()}
        book._updating = dict(state.get("updating", {}))
        return book

    def save(self) -> dict[str, Any]:
        return {"creating": self._creating, "updating": self._updating}

    def called(
        self, agent: str, name: str, call_id: str, arguments: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        """A tool was called; a list is taken as it is called, as Claude Code itself shows it."""
        if name == "TodoWrite":
            items = _todos(arguments.get("todos"))
            if items is not None:
                found.append(Plan(agent, name, items, whole=True, plan=agent, at=at))
        elif name == "TaskCreate":
            subject = text_of(arguments.get("subject"))
            if subject:
                self._creating[call_id] = [subject, text_of(arguments.get("description")) or ""]
                if len(self._creating) > CALLS_KEPT:
                    self._creating.pop(next(iter(self._creating)))
        elif name == "TaskUpdate" and (item := _update(arguments)) is not None:
            self._updating[call_id] = {name: arguments[name] for name in _UPDATED if name in arguments}
            if len(self._updating) > CALLS_KEPT:
                self._updating.pop(next(iter(self._updating)))
            found.append(Plan(agent, name, [item._replace(where="known")], whole=False, at=at))

    def answered(
        self, agent: str, call_id: str, outcome: dict[str, Any], text: str, at: float | None, found: list[Record]
    ) -> None:
        """The result of `TaskCreate` tells the item's id; that of `TaskUpdate`, whether there is such an item."""
        update = self._updating.pop(call_id, None)
        if update is not None and outcome.get("success") is not False and not text.startswith("Task not found"):
            changed = _update(update)
            if changed is not None:
                found.append(Plan(agent, "TaskUpdate", [changed], whole=False, at=at))
        created = self._creating.pop(call_id, None)
        if created is None:
            return
        task = outcome.get("task")
        item_id = _id(task.get("id")) if isinstance(task, dict) else None
        if item_id is None:
            match = _CREATED.search(text)
            item_id = match[1] if match else call_id
        item = PlanItem(item_id, created[0], "pending", created[1] or None, where="new")
        found.append(Plan(agent, "TaskCreate", [item], whole=False, at=at))


def _todos(todos: Any) -> list[PlanItem] | None:
    """The list; an item is recognised by its text, and the second of the same text by its place among them."""
    if not isinstance(todos, list):
        return None
    seen: Counter[str] = Counter()
    items = []
    for todo in todos:
        title = text_of(todo.get("content")) if isinstance(todo, dict) else None
        if title is None:
            continue
        seen[title] += 1
        key = title if seen[title] == 1 else f"{title} ({seen[title]})"
        items.append(PlanItem(key, title, _STATUS.get(str(todo.get("status")), "pending")))
    return items


def _update(arguments: dict[str, Any]) -> PlanItem | None:
    item_id = _id(arguments.get("taskId"))
    if item_id is None:
        return None
    needs = arguments.get("addBlockedBy")
    depends_on = tuple(found for each in needs if (found := _id(each))) if isinstance(needs, list) and needs else None
    return PlanItem(
        item_id,
        text_of(arguments.get("subject")),
        _STATUS.get(str(arguments.get("status"))),
        text_of(arguments.get("description")),
        depends_on,
    )


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_of(value)
