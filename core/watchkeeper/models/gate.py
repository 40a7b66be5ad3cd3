"""Who may call a model next: a gate per provider and model, shared by every agent of a host.

The main loop comes first. Compaction and observation use the remaining capacity: they never take the last
slot. A turn waits behind a background call at most once, for the reply in progress; no other background call
starts before the turn does. A waiting call gains rank with time, so that nothing starves. The list of waiting
calls, with their purposes, can be read at any moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from watchkeeper.records.messages import Purpose
from watchkeeper.records.ports import Clock, SystemClock

RANK = {Purpose.TURN: 0, Purpose.PLANNER: 1, Purpose.REFLECTOR: 2, Purpose.OBSERVER: 3}
"""Lower goes first."""

FOREGROUND = frozenset({Purpose.TURN, Purpose.PLANNER})
"""Calls without which an agent cannot continue."""

LOOK_AGAIN_SECONDS = 5.0
"""How long a rate limit is trusted before it is read again: another host may have shortened it."""

LONGEST_LIMIT_SECONDS = 1_000.0
"""No call waits longer for a server (`RetryPolicy.longest_server_delay_seconds`). A later end comes from a
clock that was wrong, then or now, and would block every call until that day."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that has no slot yet."""

    agent_id: str
    purpose: Purpose
    since: float
    """Wall time, seconds since 1970."""
    reason: Literal["slot", "rate limit"]
    until: float | None
    """Wall time at which the rate limit ends; None when it waits for a slot."""


@dataclass(slots=True, eq=False)
class _Waiter:
    purpose: Purpose
    agent_id: str
    number: int
    """Order of arrival."""
    since: float
    since_monotonic: float
    granted: asyncio.Future[None]


def _no_limit() -> float:
    return 0.0


class Gate:
    """Slots for one provider and model.

    At most `limit` calls run at a time. Background calls (reflector, observer) hold at most `limit -
    reserved` of these slots, and at least one, so that they can run under a limit of one when no other call
    waits. A waiter gains one rank in `ageing_seconds`, without end. So a background call that has waited long
    goes before a newer turn; but never before one that has waited while a background call ran. Hence a turn
    waits behind background calls for one reply at most, and not at all while only background calls run and a
    slot is reserved. While turns keep coming, background calls wait for the turns that came while the last
    background call ran.

    `rate_limited_until` is asked before every grant and gives a wall time (0: no limit); pass a reader of the
    table `rate_limits`, so that all hosts on one database hold back together. `on_rate_limited(until,
    reason)` is called by `rate_limit`, to write it there.

    For one event loop. Cancelling a waiting call, or one that was granted its slot in the same instant, loses
    no slot.
    """

    def __init__(
        self,
        limit: int,
        *,
        reserved: int = 1,
        ageing_seconds: float = 20.0,
        clock: Clock | None = None,
        rate_limited_until: Callable[[], float] = _no_limit,
        on_rate_limited: Callable[[float, str], None] | None = None,
    ) -> None:
        if limit < 1:
            raise ValueError("a gate needs at least one slot")
        self.limit = limit
        self.background_limit = max(1, limit - max(0, reserved))
        self._ageing_seconds = ageing_seconds
        self._clock = clock or SystemClock()
        self._read_until = rate_limited_until
        self._write_until = on_rate_limited
        self._own_until = 0.0
        self._running = 0
        self._running_background = 0
        self._arrivals = 0
        self._waited_behind = 0
        """Foreground calls that arrived up to this number have waited while a background call ran, if they
        wait still."""
        self._queues: dict[Purpose, deque[_Waiter]] = {purpose: deque() for purpose in RANK}
        self._alarm: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def slot(self, purpose: Purpose, agent_id: str = "") -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the body."""
        await self._acquire(purpose, agent_id)
        try:
            yield
        finally:
            self._release(purpose)

    def rate_limit(self, until: float, reason: str = "") -> None:
        """The provider asks for silence until this wall time; calls that run are left to end."""
        self._own_until = max(self._own_until, until)
        if self._write_until is not None:
            self._write_until(until, reason)

    @property
    def rate_limited_until(self) -> float:
        """Wall time until which no call is granted; in the past when there is no limit."""
        latest = self._clock.now() + LONGEST_LIMIT_SECONDS
        return max((until for until in (self._own_until, self._read_until()) if until <= latest), default=0.0)

    @property
    def running(self) -> int:
        return self._running

    def waiting(self) -> tuple[Waiting, ...]:
        """Everything that waits, in the order in which it would be served now."""
        until = self.rate_limited_until
        limited = until > self._clock.now()
        asking = (
            waiter for waiter in chain.from_iterable(self._queues.values()) if not waiter.granted.done()
        )
        return tuple(
            Waiting(
                waiter.agent_id,
                waiter.purpose,
                waiter.since,
                "rate limit" if limited else "slot",
                until if limited else None,
            )
            for waiter in sorted(asking, key=self._place())
        )

    async def _acquire(self, purpose: Purpose, agent_id: str) -> None:
        self._arrivals += 1
        granted = asyncio.get_running_loop().create_future()
        now, monotonic = self._clock.now(), self._clock.monotonic()
        waiter = _Waiter(purpose, agent_id, self._arrivals, now, monotonic, granted)
        self._queues[purpose].append(waiter)
        self._grant()
        if self._running_background:
            self._waited_behind = self._arrivals
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release(purpose)  # the slot was given in the instant of the cancellation
            else:
                with suppress(ValueError):  # the grant of another may have found and dropped it
                    self._queues[purpose].remove(waiter)
                self._quiet_alarm()
            raise

    def _release(self, purpose: Purpose) -> None:
        self._running -= 1
        if purpose not in FOREGROUND:
            self._running_background -= 1
        self._grant()

    def _grant(self) -> None:
        """Give free slots to those who may have them; sets an alarm if only a rate limit is in the way."""
        while self._running < self.limit and (waiter := self._next()) is not None:
            remaining = self.rate_limited_until - self._clock.now()
            if remaining > 0:
                self._wake_after(remaining)
                return
            self._queues[waiter.purpose].popleft()
            self._running += 1
            if waiter.purpose not in FOREGROUND:
                self._running_background += 1
                self._waited_behind = self._arrivals
            waiter.granted.set_result(None)
        self._quiet_alarm()

    def _next(self) -> _Waiter | None:
        """The first waiter that may run. Each purpose is a queue in order of arrival, so only the heads are
        compared: a thousand waiting agents cost no more than ten."""
        for queue in self._queues.values():
            while queue and queue[0].granted.cancelled():
                queue.popleft()
        owed = any(
            queue[0].number <= self._waited_behind
            for purpose in FOREGROUND
            if (queue := self._queues[purpose])
        )
        background_open = self._running_background < self.background_limit and not owed
        heads = [
            queue[0]
            for purpose, queue in self._queues.items()
            if queue and (purpose in FOREGROUND or background_open)
        ]
        return min(heads, key=self._place(), default=None)

    def _place(self) -> Callable[[_Waiter], tuple[float, int]]:
        monotonic = self._clock.monotonic()

        def place(waiter: _Waiter) -> tuple[float, int]:
            aged = (monotonic - waiter.since_monotonic) // self._ageing_seconds
            return RANK[waiter.purpose] - aged, waiter.number

        return place

    def _wake_after(self, seconds: float) -> None:
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().create_task(self._ring(seconds))

    async def _ring(self, seconds: float) -> None:
        await self._clock.sleep(min(seconds, LOOK_AGAIN_SECONDS))
        self._alarm = None
        self._grant()

    def _quiet_alarm(self) -> None:
        if self._alarm is not None and not any(self._queues.values()):
            self._alarm.cancel()
            self._alarm = None


class Gates:
    """The gates of one host, one for each model reference, made on first use."""

    def __init__(self, make: Callable[[str], Gate]) -> None:
        """`make(model_ref)` builds the gate of a model."""
        self._make = make
        self._gates: dict[str, Gate] = {}

    def of(self, model_ref: str) -> Gate:
        gate = self._gates.get(model_ref)
        if gate is None:
            gate = self._gates[model_ref] = self._make(model_ref)
        return gate

    def waiting(self) -> dict[str, tuple[Waiting, ...]]:
        """What waits, by model reference; models for which nothing waits are left out."""
        return {ref: waiting for ref, gate in self._gates.items() if (waiting := gate.waiting())}
