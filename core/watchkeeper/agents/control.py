"""Stopping one agent: a person does so at the next step boundary, or at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """What was awaited was abandoned, because a person asked to pause at once."""


class AgentStopped(Exception):
    """The agent was cancelled or replaced in the store; its loop must write nothing more."""


class AgentControl:
    """Shared by an agent's loop and its host, on one event loop."""

    def __init__(self) -> None:
        self.pause_reason: str | None = None
        """Set: pause at the next step boundary, for this reason."""
        self.releasing = False
        """The pause is for this host alone: another one continues at once, so the agent's row stays as it is."""
        self._now = asyncio.Event()
        self._waiting = False
        self._pausing = False

    def pause(self, reason: str, *, now: bool = False, releasing: bool = False) -> None:
        """Ask the loop to pause; with `now`, or while it only waits, what it awaits is abandoned."""
        self.releasing = releasing and self.pause_reason is None
        self.pause_reason = reason
        if now or self._waiting:
            self._now.set()

    def cancel_pause(self) -> bool:
        """Cancel a pause that has not begun. False if it has begun, so that the loop ends first."""
        if self.pause_reason is not None and not self._pausing and not self._now.is_set():
            self.pause_reason = None
        return self.pause_reason is None

    def mark_pausing(self) -> None:
        """Say that the loop ends now, paused: it is too late to cancel that."""
        self._pausing = True

    def set_waiting(self, waiting: bool) -> None:
        """Say whether the loop only waits (for a slot, a retry, a person): a pause then need not wait with
        it."""
        self._waiting = waiting
        if waiting and self.pause_reason is not None:
            self._now.set()

    def stop_now(self) -> None:
        """Abandon what is awaited: the agent was cancelled."""
        self._now.set()

    def check(self) -> None:
        """Raise Interrupted where the loop is to pause or stop at once."""
        if self._now.is_set():
            raise Interrupted

    async def abandonable(self, work: Awaitable[T]) -> T:
        """Await `work`, unless `now` comes first.

        Raises:
            Interrupted: it did; `work` was cancelled and has ended.
        """
        task = asyncio.ensure_future(work)
        now = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait({task, now}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Interrupted
        finally:
            now.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
