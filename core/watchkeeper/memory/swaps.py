"""What a manager tells its listeners about passes: that one began, has its text, took its place, or did
not."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from watchkeeper.memory.changes import Change

log = logging.getLogger(__name__)

SwapEvent = Literal["swap:start", "swap:ready", "swap:complete", "swap:rejected", "swap:abandoned"]
"""A pass began; has its text; took its place (or a digest did); could not; was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What callbacks of `on` are given."""

    event: SwapEvent
    messages_removed: int = 0
    """Messages that were verbatim before this swap and are not any more."""
    tokens_before: int = 0
    tokens_after: int = 0
    high_water: int | None = None
    view_version: int = 0
    stall_seconds: float = 0.0
    """How long `add_message` waited for this pass; 0 unless `max_wait_seconds` allows some."""
    reason: str = ""


Callback = Callable[[Swap], None] | Callable[[Swap], Awaitable[None]]


class Listeners:
    """Callbacks by event. A callback that fails disturbs nobody; one that is a coroutine function runs
    beside."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._background: set[asyncio.Future[Any]] = set()

    def add(self, event: SwapEvent, callback: Callback) -> Callable[[], None]:
        """Call `callback` at each `event`; returns how to stop it.

        Raises:
            ValueError: there is no such event.
        """
        if event not in get_args(SwapEvent):
            raise ValueError(f"There is no event {event!r}; there are {', '.join(get_args(SwapEvent))}.")
        listeners = self._callbacks.setdefault(event, [])
        listeners.append(callback)

        def stop() -> None:
            if callback in listeners:
                listeners.remove(callback)

        return stop

    def emit(self, swap: Swap) -> None:
        """Tell everybody who listens to this event."""
        for callback in tuple(self._callbacks.get(swap.event, ())):
            try:
                result = callback(swap)
                if inspect.isawaitable(result):
                    task = asyncio.ensure_future(result)
                    self._background.add(task)
                    task.add_done_callback(self._ended)
            except Exception:  # a listener's fault must not break the agent that it listens to
                log.exception("a callback of %s failed", swap.event)

    def running(self) -> tuple[asyncio.Future[Any], ...]:
        """Callbacks that are coroutines and have not ended."""
        return tuple(self._background)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a callback failed", exc_info=task.exception())


def swap_of(event: SwapEvent, change: Change) -> Swap:
    """The swap that a change of the context was."""
    return Swap(
        event=event,
        messages_removed=change.messages_removed,
        tokens_before=change.tokens_before,
        tokens_after=change.tokens,
        high_water=change.high_water,
        view_version=change.view.version,
        reason=change.reason,
    )
