"""Claude Code's plans: the whole list at each `TodoWrite`, or single items by `TaskCreate` and
`TaskUpdate`."""

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
_REFUSED = re.compile(
    r"\s*(?:Task not found|.{0,200}\b(?:denied|rejected|refused|not allowed|blocked|hook)\b)", re.IGNORECASE
)
_UPDATED = ("taskId", "subject", "description", "status", "addBlockedBy")
_LISTED = ("content", "status")
_TOOLS = frozenset({"TodoWrite", "TaskCreate", "TaskUpdate"})
CALLS_KEPT = 200
LISTS_KEPT = 20


class PlanBook:
    """Turns calls of the plan's tools into versions of the plan: each once its result says that it was
    carried out.

    A call that was refused, that failed or that has no result changes nothing.
    """

    def __init__(self) -> None:
        self._creating: dict[str, list[str]] = {}
        """`TaskCreate` calls that wait for the item's id → subject and description."""
        self._updating: dict[str, dict[str, Any]] = {}
        """`TaskUpdate` calls that wait for their result → what they change."""
        self._listing: dict[str, list[dict[str, Any]]] = {}
        """`TodoWrite` calls that wait for their result → the list."""
        self._called_at: dict[str, float | None] = {}
        """When each of the calls that wait was made: a change has the time of its call."""

    @classmethod
    def restore(cls, state: dict[str, Any]) -> PlanBook:
        book = cls()
        book._creating = {key: list(value) for key, value in state.get("creating", {}).items()}
        book._updating = dict(state.get("updating", {}))
        book._listing = dict(state.get("listing", {}))
        book._called_at = dict(state.get("called_at", {}))
        return book

    def save(self) -> dict[str, Any]:
        return {
            "creating": self._creating,
            "updating": self._updating,
            "listing": self._listing,
            "called_at": self._called_at,
        }

    def called(self, name: str, call_id: str, arguments: dict[str, Any], at: float | None) -> None:
        """A tool was called."""
        if name not in _TOOLS:
            return
        self._called_at[call_id] = at
        if len(self._called_at) > CALLS_KEPT:
            self._called_at.pop(next(iter(self._called_at)))
        if name == "TodoWrite":
            todos = arguments.get("todos")
            if isinstance(todos, list):
                self._listing[call_id] = [
                    {name: todo[name] for name in _LISTED if name in todo}
                    for todo in todos
                    if isinstance(todo, dict)
                ]
                if len(self._listing) > LISTS_KEPT:
                    self._listing.pop(next(iter(self._listing)))
        elif name == "TaskCreate":
            subject = text_of(arguments.get("subject"))
            if subject:
                self._creating[call_id] = [subject, text_of(arguments.get("description")) or ""]
                if len(self._creating) > CALLS_KEPT:
                    self._creating.pop(next(iter(self._creating)))
        elif name == "TaskUpdate" and _update(arguments) is not None:
            self._updating[call_id] = {name: arguments[name] for name in _UPDATED if name in arguments}
            if len(self._updating) > CALLS_KEPT:
                self._updating.pop(next(iter(self._updating)))

    def refused(self, call_id: str) -> None:
        """A call was denied, or failed: what it asked for did not happen."""
        for calls in (self._creating, self._updating, self._listing, self._called_at):
            calls.pop(call_id, None)

    def answered(
        self,
        agent: str,
        call_id: str,
        outcome: dict[str, Any],
        text: str,
        at: float | None,
        found: list[Record],
    ) -> None:
        """The result of `TaskCreate` tells the item's id; that of `TaskUpdate`, whether there is such an
        item."""
        called_at = self._called_at.pop(call_id, None)
        at = at if called_at is None else called_at
        todos = self._listing.pop(call_id, None)
        if todos is not None:
            found.append(Plan(agent, "TodoWrite", _todos(todos), whole=True, plan=agent, at=at))
        update = self._updating.pop(call_id, None)
        if update is not None and outcome.get("success") is not False and not _says_refused(text):
            changed = _update(update)
            if changed is not None:
                found.append(Plan(agent, "TaskUpdate", [changed], whole=False, at=at))
        created = self._creating.pop(call_id, None)
        if created is None:
            return
        if outcome.get("success") is False:
            return
        task = outcome.get("task")
        item_id = _id(task.get("id")) if isinstance(task, dict) else None
        if item_id is None:
            match = _CREATED.search(text)
            item_id = match[1] if match else call_id
        item = PlanItem(item_id, created[0], "pending", created[1] or None, where="new")
        found.append(Plan(agent, "TaskCreate", [item], whole=False, at=at))


def _todos(todos: list[dict[str, Any]]) -> list[PlanItem]:
    """The list; an item is recognised by its text, and the second of the same text by its place among
    them."""
    seen: Counter[str] = Counter()
    items = []
    for todo in todos:
        title = text_of(todo.get("content"))
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
    depends_on = (
        tuple(found for each in needs if (found := _id(each))) if isinstance(needs, list) and needs else None
    )
    return PlanItem(
        item_id,
        text_of(arguments.get("subject")),
        _STATUS.get(str(arguments.get("status"))),
        text_of(arguments.get("description")),
        depends_on,
    )


def _says_refused(text: str) -> bool:
    """Whether the result of a `TaskUpdate` that is not marked as an error says that it changed nothing."""
    return not text.startswith("Updated task") and _REFUSED.match(text) is not None


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_of(value)
