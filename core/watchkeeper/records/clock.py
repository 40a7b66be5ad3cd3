"""Time, passed in rather than asked for, so that tests decide it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the runtime needs of time."""

    def now(self) -> float:
        """Wall time, in seconds since 1970 (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never run backwards: for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let the event loop run for that long."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that only moves when told to; `sleep` moves it and yields once. For tests and simulations."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        self._now += max(0.0, seconds)
        await asyncio.sleep(0)
