"""Clocks and id sources, passed in rather than global, so that tests control them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
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
        import asyncio  # late: what reads or imports loads no event loop

        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only on request; `sleep` moves it and yields once. For tests and simulations."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        import asyncio

        self._now += max(0.0, seconds)
        await asyncio.sleep(0)


# --- Ids ----------------------------------------------------------------------------------------------------
#
# Eight random base32 characters. Random rather than time-ordered, so that short prefixes are distinct.

ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""Thirty-two characters without l, o, 0 and 1, which are mistaken for one another on a terminal."""

LENGTH = 8

IdSource = Callable[[], str]
"""Gives a fresh id at each call. Passed in, so that tests are deterministic."""


def random_id() -> str:
    """A fresh id of `LENGTH` characters of `ALPHABET` (40 random bits), from the system's randomness."""
    bits = int.from_bytes(secrets.token_bytes(5), "big")
    return "".join(ALPHABET[(bits >> shift) & 31] for shift in range(35, -1, -5))
