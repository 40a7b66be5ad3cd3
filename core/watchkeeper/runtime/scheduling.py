"""What may run next: pure decisions over the tasks of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchkeeper.records.states import TaskStatus
from watchkeeper.store.plans import Task

SATISFIED = frozenset({TaskStatus.DONE, TaskStatus.DROPPED})
"""States of a dependency that let its dependants go."""


def ready(tasks: Sequence[Task]) -> list[Task]:
    """Pending tasks whose dependencies are all done (or dropped), in the planner's order."""
    states = {task.id: task.status for task in tasks}
    return [
        task
        for task in tasks
        if task.status is TaskStatus.PENDING and all(states.get(need) in SATISFIED for need in task.depends_on)
    ]


def settled_stale(tasks: Sequence[Task], hashes: Mapping[str, str]) -> list[tuple[Task, bool]]:
    """Stale tasks whose dependencies are all done again: `(task, must it run again)`.

    `hashes` gives what the inputs of each stale task hash to now.
    """
    states = {task.id: task.status for task in tasks}
    return [
        (task, hashes[task.id] != task.inputs_hash)
        for task in tasks
        if task.status is TaskStatus.STALE and all(states.get(need) in SATISFIED for need in task.depends_on)
    ]


def unfinished(tasks: Sequence[Task]) -> list[Task]:
    """Tasks that still have to run, or to be decided about."""
    open_states = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.STALE)
    return [task for task in tasks if task.status in open_states]
