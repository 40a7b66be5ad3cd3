"""What a simulated host runs on: an event loop whose order and time a seed decides, and a clock."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from typing import Any


class Crash(BaseException):
    """The machine stops here. Nothing that runs on it may catch this and go on."""


class Stuck(Exception):
    """Nothing is ready, and no timer is set: whoever waits, waits for ever."""


class SeededLoop(asyncio.base_events.BaseEventLoop):
    """An event loop without a system below it.

    Of the callbacks that are ready, the seed picks the next one (mostly the oldest). Where none is ready, the time moves to
    the next timer. Work for threads runs at once, in the order in which it is asked for.

    Args:
        now: seconds at which the loop begins.
        before_each: called before each callback; what it raises ends the loop.
    """

    def __init__(self, rng: random.Random, now: float, before_each: Callable[[], None]) -> None:
        super().__init__()
        self._rng = rng
        self._time = now
        self._before_each = before_each

    def time(self) -> float:
        return self._time

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        while timers and (timers[0]._cancelled or timers[0]._when <= self._time):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count: int = max(0, getattr(self, "_timer_cancelled_count", 0) - 1)
            else:
                ready.append(timer)
        if not ready:
            if not timers:
                raise Stuck
            self._time = timers[0]._when
            return
        self._before_each()
        at = 0 if len(ready) == 1 or self._rng.random() < 0.7 else self._rng.randrange(len(ready))
        handle = ready[at]
        del ready[at]
        if not handle._cancelled:
            handle._run()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("a simulated machine has no files to wait for")

    def _write_to_self(self) -> None:
        pass


class SeededClock:
    """The time of the machine's loop, and a wall clock beside it that people set."""

    START = 1_800_000_000.0

    def __init__(self) -> None:
        self.seconds = 0.0
        """What the loop's time was when the last one ended."""
        self.offset = 0.0
        self.loop: SeededLoop | None = None

    def monotonic(self) -> float:
        return self.loop.time() if self.loop is not None else self.seconds

    def now(self) -> float:
        return self.START + self.monotonic() + self.offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
