"""Usage limits of providers: which model may be called now, and when parked agents continue.

A limit with an end time parks the agents that need the model; one without (no credit, a bad key) pauses the
session. When the time has come, or a person has resumed the session, one call tests the limit. The other
agents continue only after that call has succeeded, a few seconds apart.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from watchkeeper.models.failures import LONGEST_PARK_SECONDS, SHORTEST_PARK_SECONDS, RetryPolicy
from watchkeeper.records.messages import ErrorKind, ModelError
from watchkeeper.records.ports import Clock
from watchkeeper.records.states import AgentStatus
from watchkeeper.store import agents, budgets
from watchkeeper.store.agents import Agent
from watchkeeper.store.budgets import BLOCKED, RATE, USAGE, NotedLimit
from watchkeeper.store.session_store import SessionStore

STAGGER_SECONDS = 2.0
"""The mean time between two agents that continue after a limit; each waits between half of it and one and a
half times."""

LOOK_AGAIN_SECONDS = 30.0
"""The longest sleep towards the end of a limit: the wall clock may jump, and another host may lift the limit."""


class Admission(Enum):
    """What a usage limit allows a call to do."""

    OPEN = auto()
    TEST = auto()
    """The call tests whether the limit is over: `end_test` must follow."""
    WAIT = auto()
    """Another call tests the limit: wait for that one."""


@dataclass(slots=True)
class _Known:
    """One limit, as this host knows it."""

    noted: NotedLimit
    deadline: float
    """Monotonic time after which the limit counts as over, even if the wall clock was set back."""
    may_test: bool
    """Whether a call may test the limit once its time has come."""


class UsageLimits:
    """The limits that this host has met or found in the database, and the agents that they have parked.

    `wake` may be called at any time, and wakes the parked agents whose time has come: one per model first, and
    the others after its call has succeeded. For one event loop.
    """

    def __init__(self, store: SessionStore, clock: Clock, *, rng: random.Random | None = None) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng or random.Random()
        self._known: dict[str, _Known] = {}
        self._writes: dict[str, tuple[NotedLimit | None, Future[Any]]] = {}
        """Model → the last limit that this host wrote for it, or None when it lifted one; and the write."""
        self._testing: set[str] = set()
        """Models whose limit is being tested by a call."""
        self._changed = asyncio.Event()
        self._released = 0
        """How many calls have continued since a test succeeded: each waits a little longer."""
        self._parked: dict[str, str] = {}
        """Parked agent → its model."""
        self._first: dict[str, str] = {}
        """Model → the agent that was woken to test its limit."""
        self._next_at: dict[str, float] = {}
        """Model → monotonic time at which the next agent continues, once the limit is over."""
        self._alarm: asyncio.Task[None] | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when a limit began, ended or was tested, and when `wake` should be called again."""

    # --- calls of a model -----------------------------------------------------------------------------------

    def admit(self, model_ref: str) -> Admission:
        """Whether a call may be made now, may be made as the test of a limit, or must wait for such a test.

        Raises:
            ModelError: the model's limit is in force (PARK, with its end; or PAUSE).
        """
        known = self._current(model_ref)
        if known is None:
            return Admission.OPEN
        wait = self._remaining(known)
        if known.noted.kind == USAGE and wait > 0:
            raise ModelError(known.noted.reason, kind=ErrorKind.PARK, until=self._clock.now() + wait)
        if known.noted.kind == BLOCKED and not known.may_test:
            raise ModelError(known.noted.reason, kind=ErrorKind.PAUSE)
        if self._testing:
            return Admission.WAIT
        self._testing.add(model_ref)
        return Admission.TEST

    def is_closed(self, model_ref: str) -> bool:
        """Whether no call may be made now: the limit is in force, or its test has not ended."""
        return self._current(model_ref) is not None

    async def await_test(self, model_ref: str) -> None:
        """Wait until the test has ended, then some seconds, so that not all agents continue at once."""
        await self._changed.wait()
        if self._current(model_ref) is None:
            self._released += 1
            await self._clock.sleep(sum(self._stagger_seconds() for _ in range(self._released)))

    def end_test(self, model_ref: str, *, succeeded: bool) -> None:
        """End a test. If the call succeeded, the limit is over for all hosts of the database."""
        self._testing.discard(model_ref)
        if succeeded:
            self._write(model_ref, None)
        self._released = 0
        self._notify()

    def note(self, model_ref: str, error: ModelError) -> ModelError:
        """Record the limit that a failed call reports; returns the error for the loop (a long `retry-after`
        becomes PARK)."""
        now, until, kind = self._clock.now(), error.until, error.kind
        asked = error.retry_after_seconds
        if (
            kind is ErrorKind.RETRY
            and asked is not None
            and asked > RetryPolicy().longest_server_delay_seconds
        ):
            kind, until = ErrorKind.PARK, now + asked
        if kind is ErrorKind.PARK:
            until = max(until or now, now + SHORTEST_PARK_SECONDS)
            if until - now > LONGEST_PARK_SECONDS:
                kind = ErrorKind.PAUSE
        if kind not in (ErrorKind.PARK, ErrorKind.PAUSE):
            return error
        parks = kind is ErrorKind.PARK and until is not None
        noted = NotedLimit(USAGE if parks else BLOCKED, until or now if parks else 0.0, str(error), now)
        self._know(model_ref, noted, may_test=parks)
        self._write(model_ref, noted)
        self._notify()
        return ModelError(
            str(error),
            kind=kind,
            status=error.status,
            retry_after_seconds=asked,
            error_type=error.error_type,
            retries=error.retries,
            latency_seconds=error.latency_seconds,
            until=until if parks else None,
        )

    def allow_test(self, model_ref: str | None = None) -> None:
        """Allow one call now, whatever end the limit of this model (None: of every model) has."""
        for ref in [model_ref] if model_ref is not None else list(self._known):
            known = self._current(ref)
            if known is not None:
                known.may_test, known.deadline = True, self._clock.monotonic()
        self._notify()

    # --- parked agents --------------------------------------------------------------------------------------

    def see(self, agent: Agent) -> None:
        """Note whether an agent is parked now."""
        if agent.status is AgentStatus.PARKED:
            self._parked[agent.id] = agent.model
        else:
            self._parked.pop(agent.id, None)

    @property
    def parked_ids(self) -> frozenset[str]:
        """The agents that are parked, as far as they were seen."""
        return frozenset(self._parked)

    def parked(self) -> list[Agent]:
        """The agents that are parked."""
        found = [agents.load(self._store, agent_id) for agent_id in self._parked]
        return [agent for agent in found if agent is not None and agent.status is AgentStatus.PARKED]

    async def wake(
        self, *, running: Callable[[str], bool], room: int, may_run: Callable[[Agent], bool]
    ) -> list[Agent]:
        """Continue the agents whose time has come; returns them.

        `running` says whether an agent's loop runs, `room` how many sub-agents may be started, `may_run`
        which agents this host may drive.
        """
        woken: list[Agent] = []
        waits: list[float] = []
        for model in sorted(set(self._parked.values())):
            known, now = self._current(model), self._clock.monotonic()
            wait = self._remaining(known) if known is not None else self._next_at.get(model, now) - now
            if wait > 0:
                waits.append(wait)
                continue
            first = self._first.get(model)
            if known is not None and (model in self._testing or (first is not None and running(first))):
                continue
            agent = self._choose(model, may_run)
            if agent is None or (room <= 0 and agent.task_id is not None):
                continue  # until some loop ends
            await self._continue(agent)
            woken.append(agent)
            room -= agent.task_id is not None
            if known is not None:
                self._first[model] = agent.id
            else:
                self._first.pop(model, None)
            stagger_seconds = self._stagger_seconds()
            self._next_at[model] = now + stagger_seconds
            if known is None and model in self._parked.values():
                waits.append(stagger_seconds)
        self.close()
        if waits:
            self._alarm = asyncio.create_task(self._ring(min(waits)), name="parking")
        return woken

    async def wake_now(self, agent: Agent) -> None:
        """Let the agent try one call now, as a person asked."""
        self.allow_test(agent.model)
        await self._continue(agent)
        self._first[agent.model] = agent.id

    def close(self) -> None:
        """Stop the alarm. Parked agents stay parked."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _choose(self, model: str, may_run: Callable[[Agent], bool]) -> Agent | None:
        """The next agent to wake; the planner comes first."""
        ready = [agent for agent in self.parked() if agent.model == model and may_run(agent)]
        return min(ready, key=lambda agent: agent.task_id is not None, default=None)

    async def _continue(self, agent: Agent) -> None:
        self._parked.pop(agent.id, None)
        reason = "the usage limit has ended"
        await self._store.commit(
            partial(agents.move, agent_id=agent.id, status=AgentStatus.WORKING, reason=reason)
        )

    async def _ring(self, seconds: float) -> None:
        await self._clock.sleep(min(seconds, LOOK_AGAIN_SECONDS))
        self.on_change()

    def _stagger_seconds(self) -> float:
        return STAGGER_SECONDS * (0.5 + self._rng.random())

    # --- what is known --------------------------------------------------------------------------------------

    def _write(self, model_ref: str, noted: NotedLimit | None) -> None:
        """Store a limit, or (None) delete it, for all hosts of the database, without waiting for the write."""
        change = (
            partial(budgets.note, model_ref=model_ref, limit=noted)
            if noted is not None
            else partial(budgets.lift, model_ref=model_ref)
        )
        self._writes[model_ref] = noted, self._store.writer.submit(change)

    def _know(self, model_ref: str, noted: NotedLimit, *, may_test: bool) -> _Known:
        # If the clock was set back, the wait is no longer than it was when the limit was noted.
        wait = min(noted.until - self._clock.now(), noted.until - noted.noted_at)
        known = _Known(noted, self._clock.monotonic() + max(0.0, wait), may_test)
        self._known[model_ref] = known
        return known

    def _current(self, model_ref: str) -> _Known | None:
        """The limit in force: the row that any host may have written or deleted, with what this host knows."""
        noted, write = self._writes.get(model_ref, (None, None))
        if write is None or write.done():
            noted = budgets.find(self._store, model_ref)
        if noted is None or noted.kind == RATE:
            self._known.pop(model_ref, None)
            return None
        known = self._known.get(model_ref)
        if known is None or (known.noted.until, known.noted.noted_at) != (noted.until, noted.noted_at):
            known = self._know(model_ref, noted, may_test=True)
        return known

    def _remaining(self, known: _Known) -> float:
        """For how long the model may not be called; 0 or less: a call may test the limit."""
        return min(known.noted.until - self._clock.now(), known.deadline - self._clock.monotonic())

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()
