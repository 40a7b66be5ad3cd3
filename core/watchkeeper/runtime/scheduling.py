"""What may run next: the tasks of a session and who waits for whom, kept up to date from the log of its
events.

Every change of a task or an agent is a row of `events`, in the transaction that made it. So a look at the
board costs as much as has changed since the last one, however many tasks and agents the session has; and
nothing is kept here that the rows do not say, so that a host that takes over begins by reading them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Any

from watchkeeper.records.states import TaskStatus
from watchkeeper.store import agents, plans
from watchkeeper.store.plans import Standing

SATISFIED = frozenset({TaskStatus.DONE, TaskStatus.DROPPED})
"""States of a dependency that let its dependants go."""


class Board:
    """How the tasks of one session stand, and which of its agents have changed.

    `reads` needs `one` and `all`, as a `SessionStore` has them.
    """

    def __init__(self, reads: Any, session_id: str) -> None:
        self._reads = reads
        self._session_id = session_id
        self._seen = 0
        """The last event that is taken into account."""
        self._whole = False
        """Whether everything was read; else the next `refresh` does."""
        self._tasks: dict[str, Standing] = {}
        self._dependants: dict[str, list[str]] = {}
        self._stale: set[str] = set()
        self._queue: list[tuple[tuple[str, int], str]] = []
        """Tasks that were ready when they were put here, a heap in the planner's order."""
        self._queued: set[str] = set()
        self._agents: dict[str, None] = {}

    def refresh(self) -> None:
        """Take into account what was committed since the last time."""
        newest = int(self._reads.one("SELECT event_seq FROM sessions WHERE id = ?", (self._session_id,))[0])
        if not self._whole:
            self._agents.update(dict.fromkeys(agents.open_ids(self._reads, self._session_id)))
        if self._seen and newest > self._seen:
            changed = plans.changed_between(self._reads, self._session_id, self._seen, newest)
            self._agents.update(dict.fromkeys(changed.agents))
            self._whole = self._whole and not changed.plan
            for task in plans.load_standings(self._reads, changed.tasks if self._whole else []):
                self._enter(task)
        if not self._whole:
            self._read_plan()
        self._seen, self._whole = newest, True

    def forget(self) -> None:
        """Read everything again at the next `refresh`: other tasks and agents may run than could before."""
        self._whole = False

    def look_at(self, agent_id: str) -> None:
        """Let `take_agents` give this agent too."""
        self._agents[agent_id] = None

    def take_agents(self) -> list[str]:
        """Agents that changed since the last time, or were to be looked at, in that order; at first all that
        have not ended."""
        taken, self._agents = list(self._agents), {}
        return taken

    def next_ready(
        self, among: Collection[str] | None = None, may_start: Callable[[str], bool] | None = None
    ) -> str | None:
        """The first task, in the planner's order, that is pending and whose dependencies are all done (or
        dropped).

        It is given once: again only after it has changed. `among`: only these count (None: all); those that
        `may_start` refuses are asked about again.
        """
        left, found = [], None
        while self._queue and found is None:
            entry = heapq.heappop(self._queue)
            if not self._may_go(entry[1], TaskStatus.PENDING):
                self._queued.discard(entry[1])
            elif (among is not None and entry[1] not in among) or (
                may_start is not None and not may_start(entry[1])
            ):
                left.append(entry)
            else:
                found = entry[1]
                self._queued.discard(found)
        for entry in left:
            heapq.heappush(self._queue, entry)
        return found

    def has_ready(self, among: Collection[str] | None = None) -> bool:
        """Whether `next_ready` would give a task."""
        return any(
            (among is None or one in among) and self._may_go(one, TaskStatus.PENDING) for one in self._queued
        )

    def settled_stale(self) -> list[str]:
        """Stale tasks whose dependencies are all done again, in the planner's order."""
        found = [one for one in self._stale if self._may_go(one, TaskStatus.STALE)]
        return sorted(found, key=lambda one: self._tasks[one].place)

    def _may_go(self, task_id: str, status: TaskStatus) -> bool:
        task = self._tasks.get(task_id)
        return (
            task is not None
            and task.status is status
            and all(self._is_satisfied(need) for need in task.depends_on)
        )

    def _is_satisfied(self, task_id: str) -> bool:
        task = self._tasks.get(task_id)
        return task is not None and task.status in SATISFIED

    def _read_plan(self) -> None:
        self._tasks, self._dependants, self._stale = {}, {}, set()
        self._queue, self._queued = [], set()
        everything = plans.all_standings(self._reads, self._session_id)
        self._tasks = {task.id: task for task in everything}
        for task in everything:
            for need in task.depends_on:
                self._dependants.setdefault(need, []).append(task.id)
        for task in everything:
            self._consider(task.id)

    def _enter(self, task: Standing) -> None:
        was_satisfied = self._is_satisfied(task.id)
        self._tasks[task.id] = task
        self._consider(task.id)
        if self._is_satisfied(task.id) and not was_satisfied:
            for dependant in self._dependants.get(task.id, ()):
                self._consider(dependant)

    def _consider(self, task_id: str) -> None:
        task = self._tasks[task_id]
        if task.status is TaskStatus.STALE:
            self._stale.add(task_id)
        else:
            self._stale.discard(task_id)
        if task_id not in self._queued and self._may_go(task_id, TaskStatus.PENDING):
            self._queued.add(task_id)
            heapq.heappush(self._queue, (task.place, task_id))
