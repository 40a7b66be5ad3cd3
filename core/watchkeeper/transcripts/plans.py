"""Plans of imported sessions: every version of a list as a revision, its items as tasks with their
history.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from watchkeeper.store import imports as rows
from watchkeeper.store.imports import Rows
from watchkeeper.transcripts.records import AGENT_LENGTH, Plan, PlanItem, stable_id, write

_ENDED = frozenset({"done", "failed", "cancelled", "dropped"})


MARK = re.compile(r"[\[<«]?(?:REDACTED|\bredacted\b)(?::[^\s\]>»]*)?[\]>»]?|\*{3,}|█+")
"""What redactions write in the place of what they take."""


@dataclass(slots=True)
class Task:
    """An item of the list, as it is stored."""

    id: str
    name: str
    position: int
    title: str
    status: str
    instructions: str
    started_at: float | None
    ended_at: float | None
    needs: tuple[str, ...]


_state = attrgetter("status", "position", "title", "instructions", "started_at", "ended_at", "needs")
"""What may change of a task."""


class PlanImport:
    """One list and its items, as stored and as this transaction changes them.

    Args:
        live: the log is followed: a task that is running may still run, while in a session that ended it is
            not finished.
    """

    def __init__(self, cursor: Any, plan_id: str, *, live: bool) -> None:
        self.id = plan_id
        self._live = live
        found = rows.load_plan(cursor, plan_id)
        self.known = found is not None
        """The plan's row exists."""
        self.revision, stored = found or (0, [])
        self._tasks = {row[0]: Task(*row) for row in stored}
        self._ids: dict[str, str] = {}
        for task in self._tasks.values():
            if task.status == "paused":
                task.status = "running"  # as its program left it

    def take(self, plan: Plan, at: float, session_id: str, goal: str, into: Rows) -> list[Task] | None:
        """A new version: the tasks whose status changed; None where it is the same as the one before."""
        before = {task.id: _state(task) for task in self._tasks.values()}
        if plan.whole:
            self._recognise(plan.items)
        listed: list[Task] = []
        for item in plan.items:
            if item.where == "known" and self._id_of(item.key) not in self._tasks:
                continue
            task = self._item(item, at, plan.whole)
            if plan.whole:
                task.position = len(listed)
            listed.append(task)
        if plan.whole:
            here = {task.id for task in listed}
            gone = (task for task in self._tasks.values() if task.id not in here)
            for place, task in enumerate(sorted(gone, key=lambda task: task.position), len(listed)):
                task.position = place
                if task.status not in _ENDED:
                    self._move(task, "dropped", at)
        changed = [task for task in self._tasks.values() if before.get(task.id) != _state(task)]
        if not changed and (self.known or not plan.whole):
            return None
        self.revision += 1
        self._write(plan.reason, changed, at, session_id, goal, into)
        return [task for task in changed if task.id not in before or before[task.id][0] != task.status]

    def _recognise(self, items: Sequence[PlanItem]) -> None:
        """Items are known by their texts: where a redaction left its marks in one, it is the item whose text
        is the same besides them."""
        fresh = [
            (place, item) for place, item in enumerate(items) if self._id_of(item.key) not in self._tasks
        ]
        if not fresh:
            return
        here = {self._id_of(item.key) for item in items}
        left = [task for task in self._tasks.values() if task.id not in here]
        redacted = [task for task in left if MARK.search(task.title)]
        for place, item in fresh:
            possible = left if MARK.search(item.key) else redacted
            for task in sorted(possible, key=lambda task: abs(task.position - place)):
                if _same_besides_marks(item.key, task.title, task.position == place):
                    self._ids[item.key] = task.id
                    left.remove(task)
                    redacted = [each for each in redacted if each is not task]
                    break

    def _item(self, item: PlanItem, at: float, whole: bool) -> Task:
        task_id = self._id_of(item.key, item.where == "new")
        task = self._tasks.get(task_id)
        if task is None:
            if (
                item.where == "new"
                and (gone := self._tasks.get(self._id_of(item.key)))
                and gone.status not in _ENDED
            ):
                self._move(gone, "dropped", at)
            name = str(len(self._tasks) + 1)
            task = Task(
                task_id, name, len(self._tasks), item.title or item.key, "pending", "", None, None, ()
            )
            self._tasks[task_id] = task
        if item.title is not None and (
            MARK.search(item.title) is None or MARK.search(task.title) is not None
        ):
            task.title = item.title  # a redacted one says less than what is known
        if item.instructions is not None:
            task.instructions = item.instructions
        if item.depends_on is not None:
            needs = dict.fromkeys(() if whole else task.needs)
            needs |= dict.fromkeys(
                need
                for key in item.depends_on
                if (need := self._id_of(key)) in self._tasks and need != task_id
            )
            task.needs = tuple(needs)
        if item.status is not None and item.status != task.status:
            self._move(task, item.status, at)
        return task

    def _id_of(self, key: str, fresh: bool = False) -> str:
        """The task of the item that has this key now: a list that was started again gives the same keys to other
        items."""
        found, times = self._named(key, 1), 1
        while (later := self._named(key, times + 1)) in self._tasks:
            found, times = later, times + 1
        if fresh and found in self._tasks and self._tasks[found].title != key:
            found = later  # one that has its key for a title was only heard of, until now
        return found

    def _named(self, key: str, times: int) -> str:
        name = key if times == 1 else f"{key}\0{times}"
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = stable_id(self.id, "item", name, length=AGENT_LENGTH)
        return found

    def _move(self, task: Task, status: str, at: float) -> None:
        task.status = status
        if status == "running" and task.started_at is None:
            task.started_at = at
        task.ended_at = at if status in _ENDED else None

    def _write(
        self, reason: str, changed: list[Task], at: float, session_id: str, goal: str, into: Rows
    ) -> None:
        ordered = sorted(self._tasks.values(), key=lambda task: task.position)
        queue = [task.id for task in ordered if task.status not in _ENDED]
        cursor = len(ordered) - len(queue)
        graph = [
            {"id": task.id, "name": task.name, "title": task.title, "status": task.status, "attempt": 1, "agent": None,
             "depends_on": task.needs}
            for task in ordered
        ]  # fmt: skip
        waiting = write(queue)[0]
        into["plans"].append((self.id, session_id, goal, self.revision, cursor, waiting, at, at))
        into["revisions"].append((self.id, self.revision, at, reason, goal, waiting, cursor, write(graph)[0]))
        for task in changed:
            left = task.status == "running" and not self._live
            status, why = ("paused", rows.NOT_FINISHED) if left else (task.status, None)
            into["tasks"].append(
                (task.id, session_id, self.id, task.name, task.position, task.title, task.instructions, status, why, at,
                 task.started_at, task.ended_at)
            )  # fmt: skip
            into["needs"].extend((task.id, need) for need in task.needs)
        self.known = True


def _same_besides_marks(one: str, other: str, same_place: bool) -> bool:
    """Whether two texts of which one at least was redacted may have been the same; of one that is nothing but
    marks, its place in the list tells."""
    for text, whole in ((one, other), (other, one)):
        pieces = MARK.split(text)
        if len(pieces) == 1:
            continue
        if not "".join(pieces).strip():
            return same_place
        if re.fullmatch(".*?".join(map(re.escape, pieces)), whole, re.DOTALL):
            return True
    words, others = one.split(), other.split()
    return len(words) == len(others) and all(
        a == b or MARK.search(a) is not None or MARK.search(b) is not None
        for a, b in zip(words, others, strict=True)
    )
