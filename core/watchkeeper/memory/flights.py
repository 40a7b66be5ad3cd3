"""Passes in flight: tasks that may outlive the interest in them, or the event loop that ran them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from watchkeeper.memory.changes import Prepared
from watchkeeper.memory.compactor import CompactionPass, Outcome

CLOSING_SECONDS = 1.0
"""How long `Hangar.close` waits for what was given up."""


@dataclass(slots=True)
class Flight:
    """One pass in flight, or landed and not yet published."""

    run: CompactionPass
    task: asyncio.Task[Prepared]
    outcome: Outcome | None = None
    stall_seconds: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it will still end by itself."""
        return not self.task.done() and not is_lost(self.task)

    @property
    def is_lost(self) -> bool:
        """Whether it has not ended, and never will."""
        return not self.task.done() and is_lost(self.task)

    def cancel(self) -> None:
        """Ask it to stop, where anybody could hear it."""
        if not is_lost(self.task):
            self.task.cancel()


class Hangar:
    """Every task that was started and has not ended, the abandoned ones included."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, run: CompactionPass, work: Coroutine[Any, Any, Prepared]) -> Flight:
        """Run `work` beside the caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieved)
        return Flight(run, task)

    async def close(self, others: Iterable[asyncio.Future[Any]] = ()) -> None:
        """Wait until nothing of it runs, nor of `others`; for a second at most."""
        left = {task for task in (*self._tasks, *others) if not task.done() and not is_lost(task)}
        current = asyncio.current_task()
        left = {
            task for task in left if task is not current
        }  # a listener may close the manager that calls it
        if left:
            await asyncio.wait(left, timeout=CLOSING_SECONDS)
        self._tasks = {task for task in self._tasks if not task.done() and not is_lost(task)}


def is_lost(task: asyncio.Future[Any]) -> bool:
    """Whether nobody will run a task on: its event loop is closed, or another one runs now."""
    loop = task.get_loop()
    try:
        return loop is not asyncio.get_running_loop() or loop.is_closed()
    except RuntimeError:
        return loop.is_closed()


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Look at the exception, so that an abandoned pass leaves no "never retrieved" warning."""
    if not task.cancelled():
        task.exception()
