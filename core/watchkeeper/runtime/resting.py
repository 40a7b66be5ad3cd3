"""Compactions that go on while their agents rest: a planner that waits for its tasks is compacted
meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from watchkeeper.agents.loop import AgentLoop


class RestingPasses:
    """Loops that have ended, or have nothing to do, and have a pass in flight; each is landed when it is
    ready.

    The loop that an agent gets next takes the pass, and the memory that it works on, along.
    """

    def __init__(self, *, on_failure: Callable[[BaseException], None]) -> None:
        self._loops: dict[str, AgentLoop] = {}
        self._landing: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure

    def of(self, agent_id: str) -> AgentLoop | None:
        """The agent's loop that is kept, or None."""
        return self._loops.get(agent_id)

    def keep(self, agent_id: str, loop: AgentLoop) -> None:
        """Land the pass of this loop when it is ready."""
        self._loops[agent_id] = loop
        task = asyncio.create_task(self._land(agent_id, loop), name=f"resting-{agent_id}")
        self._landing.add(task)
        task.add_done_callback(self._landed)

    def take(self, agent_id: str) -> AgentLoop | None:
        """The agent works again: what is kept for it is not landed here any more."""
        return self._loops.pop(agent_id, None)

    async def end(self) -> None:
        """The host ends: land what is ready, and put off the rest."""
        loops = list(self._loops.values())
        self._loops.clear()
        for loop in loops:
            await loop.compaction.land()
            await loop.compaction.abandon("the agent rests and its host ended", goes_on=True)
        await asyncio.gather(*self._landing, return_exceptions=True)

    def drop(self) -> None:
        """Stop without a word, because the store takes none any more."""
        for loop in self._loops.values():
            loop.compaction.drop()
        for task in self._landing:
            task.cancel()

    async def _land(self, agent_id: str, loop: AgentLoop) -> None:
        await loop.compaction.ready()
        if self._loops.get(agent_id) is loop:
            await loop.compaction.land()
        if self._loops.get(agent_id) is loop:
            del self._loops[agent_id]

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._landing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)
