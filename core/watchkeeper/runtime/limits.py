"""Usage limits of providers: which model may be called now, and when parked agents continue.

A limit with an end time parks the agents that need the model; one without (no credit, a bad key) pauses the
session. When the time has come, or a person has resumed the session, one call tests the limit. The other
agents continue only after that call has succeeded, a few seconds apart.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from watchkeeper.agents.environment import Admission
from watchkeeper.models.failures import RetryPolicy
from watchkeeper.models.resets import LONGEST_PARK_SECONDS, SHORTEST_PARK_SECONDS
from watchkeeper.records.messages import ErrorKind, ModelError
from watchkeeper.records.ports import Clock
from watchkeeper.records.states import AgentStatus
from watchkeeper.store import agents, budgets
from watchkeeper.store.agents import Agent
from watchkeeper.store.budgets import BLOCKED, RATE, USAGE, NotedLimit
from watchkeeper.store.session_store import SessionStore
from watchkeeper.store.transaction import Transaction

STAGGER_SECONDS = 2.0
"""The mean time between two agents that continue after a limit; each waits between half of it and one and a
half times."""


@dataclass(slots=True)
class _Known:
    """One limit, as this host knows it."""

    noted: NotedLimit
    deadline: float
    """Monotonic time after which the limit counts as over, even if the wall clock was set back."""
    may_test: bool
    """Whether a call may test the limit once its time has come."""
    writing: bool = False
    """Whether its row may still be missing from the database."""


class UsageLimits:
    """The limits that this host has met or found in the database. For one event loop."""

    def __init__(self, store: SessionStore, clock: Clock, *, rng: random.Random | None = None) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng or random.Random()
        self._known: dict[str, _Known] = {}
        self._lifted: dict[str, NotedLimit] = {}
        """Limits that are over but whose rows may still be in the database."""
        self._testing: set[str] = set()
        """Models whose limit is being tested by a call."""
        self._changed = asyncio.Event()
        self._released = 0
        """How many calls have continued since a test succeeded: each waits a little longer."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a limit began, ended or was tested."""

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
            await self._clock.sleep(self.stagger_seconds(self._released))

    def end_test(self, model_ref: str, *, succeeded: bool) -> None:
        """End a test. If the call succeeded, the limit is over for all hosts of the database."""
        self._testing.discard(model_ref)
        if succeeded:
            known = self._known.pop(model_ref, None)
            if known is not None:
                self._lifted[model_ref] = known.noted
            self._store.writer.submit(lambda group: budgets.lift(group, model_ref))
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
            until = max(until if until is not None else now, now + SHORTEST_PARK_SECONDS)
            if until - now > LONGEST_PARK_SECONDS:
                kind = ErrorKind.PAUSE
        if kind is ErrorKind.PARK and until is not None:
            self._enter(model_ref, NotedLimit(USAGE, until, str(error), now))
        elif kind is ErrorKind.PAUSE:
            self._enter(model_ref, NotedLimit(BLOCKED, 0.0, str(error), now))
        if kind is error.kind and until == error.until:
            return error
        return ModelError(
            str(error),
            kind=kind,
            status=error.status,
            retry_after_seconds=asked,
            error_type=error.error_type,
            retries=error.retries,
            latency_seconds=error.latency_seconds,
            until=until if kind is ErrorKind.PARK else None,
        )

    def remaining_seconds(self, model_ref: str) -> float | None:
        """How long the model may not be called; 0 or less: a call may test the limit; None: there is no limit."""
        known = self._current(model_ref)
        return self._remaining(known) if known is not None and known.noted.kind == USAGE else None

    def is_tested(self, model_ref: str) -> bool:
        """Whether a call is testing this model's limit now."""
        return model_ref in self._testing

    def allow_test(self, model_ref: str | None = None) -> None:
        """Allow one call now, whatever end the limit of this model (None: of every model) has."""
        for ref in [model_ref] if model_ref is not None else list(self._known):
            known = self._current(ref)
            if known is not None:
                known.may_test, known.deadline = True, self._clock.monotonic()
        self._notify()

    def stagger_seconds(self, place: int = 1) -> float:
        """How long the agent at this place in line (from 1) waits after a limit has ended."""
        return sum(STAGGER_SECONDS * (0.5 + self._rng.random()) for _ in range(place))

    def _enter(self, model_ref: str, noted: NotedLimit) -> None:
        wait = max(0.0, noted.until - noted.noted_at)
        known = _Known(noted, self._clock.monotonic() + wait, may_test=noted.kind == USAGE, writing=True)
        self._known[model_ref] = known
        written = self._store.writer.submit(lambda group: budgets.note(group, model_ref, noted))
        written.add_done_callback(lambda _: setattr(known, "writing", False))
        self._notify()

    def _current(self, model_ref: str) -> _Known | None:
        """The limit in force: the row that any host may have written or deleted, with what this host knows."""
        known = self._known.get(model_ref)
        if known is not None and known.writing:
            return known
        row = budgets.find(self._store, model_ref)
        lifted = self._lifted.get(model_ref)
        is_over = (
            lifted is not None
            and row is not None
            and (lifted.until, lifted.noted_at) == (row.until, row.noted_at)
        )
        if row is None or row.kind == RATE or is_over:
            self._known.pop(model_ref, None)
            return None
        if known is None or (known.noted.until, known.noted.noted_at) != (row.until, row.noted_at):
            now = self._clock.now()
            # If the clock was set back, the wait is no longer than it was when the limit was noted.
            wait = min(row.until - now, row.until - row.noted_at)
            known = self._known[model_ref] = _Known(
                row, self._clock.monotonic() + max(0.0, wait), may_test=True
            )
        return known

    def _remaining(self, known: _Known) -> float:
        return min(known.noted.until - self._clock.now(), known.deadline - self._clock.monotonic())

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()


LOOK_AGAIN_SECONDS = 30.0
"""The longest sleep towards the end of a limit: the wall clock may jump, and another host may lift the limit."""


class Parking:
    """The parked agents of one host. `wake` may be called at any time, and wakes those whose time has come: one
    per model first, and the others after its call has succeeded."""

    def __init__(
        self, store: SessionStore, clock: Clock, limits: UsageLimits, wake_host: Callable[[], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._wake_host = wake_host
        self._models: dict[str, str] = {}
        """Parked agent → its model."""
        self._first: dict[str, str] = {}
        """Model → the agent that was woken to test its limit."""
        self._next_at: dict[str, float] = {}
        """Model → monotonic time at which the next agent goes on, once the limit is over."""
        self._alarm: asyncio.Task[None] | None = None

    def see(self, agent: Agent) -> None:
        """Note whether an agent is parked now."""
        if agent.status is AgentStatus.PARKED:
            self._models[agent.id] = agent.model
        else:
            self._models.pop(agent.id, None)

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, agent_id: object) -> bool:
        return agent_id in self._models

    def agents(self) -> list[Agent]:
        """The agents that are parked."""
        found = [agents.load(self._store, agent_id) for agent_id in self._models]
        return [agent for agent in found if agent is not None and agent.status is AgentStatus.PARKED]

    def is_closed(self, model_ref: str) -> bool:
        """Whether a call of this model would be parked."""
        remaining = self._limits.remaining_seconds(model_ref)
        return remaining is not None and remaining > 0

    async def wake(
        self, *, running: Callable[[str], bool], room: int, may_run: Callable[[Agent], bool]
    ) -> list[Agent]:
        """Continue the agents whose time has come; returns them.

        `running` says whether an agent's loop runs, `room` how many sub-agents may be started, `may_run`
        which agents this host may drive.
        """
        woken: list[Agent] = []
        stuck: set[str] = set()
        for model in sorted(set(self._models.values())):
            remaining = self._limits.remaining_seconds(model)
            now = self._clock.monotonic()
            if remaining is not None and (remaining > 0 or self._limits.is_tested(model)):
                continue
            first = self._first.get(model)
            if remaining is not None and first is not None and running(first):
                continue
            if remaining is None and now < self._next_at.get(model, now):
                continue
            agent = self._choose(model, may_run)
            if agent is None or (room <= 0 and agent.task_id is not None):
                stuck.add(model)  # until some loop ends
                continue
            await self._lift(agent)
            woken.append(agent)
            room -= agent.task_id is not None
            if remaining is not None:
                self._first[model] = agent.id
            else:
                self._first.pop(model, None)
            self._next_at[model] = now + self._limits.stagger_seconds()
        self._set_alarm(stuck)
        return woken

    async def wake_now(self, agent: Agent) -> None:
        """Let the agent try one call now, as a person asked."""
        self._limits.allow_test(agent.model)
        await self._lift(agent)
        self._first[agent.model] = agent.id

    def close(self) -> None:
        """Stop the alarm. Parked agents stay parked."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _choose(self, model: str, may_run: Callable[[Agent], bool]) -> Agent | None:
        """The next agent to wake; the planner comes first."""
        ready = [agent for agent in self.agents() if agent.model == model and may_run(agent)]
        return min(ready, key=lambda agent: agent.task_id is not None, default=None)

    async def _lift(self, agent: Agent) -> None:
        self._models.pop(agent.id, None)
        await self._store.commit(partial(_go_on, agent_id=agent.id))

    def _set_alarm(self, stuck: set[str]) -> None:
        """Wake the host when the next agent is due; `stuck` models wait for something else."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        waits = []
        for model in set(self._models.values()) - stuck:
            remaining = self._limits.remaining_seconds(model)
            if remaining is None:
                waits.append(self._next_at.get(model, 0.0) - self._clock.monotonic())
            elif remaining > 0:
                waits.append(remaining)
        if waits:
            self._alarm = asyncio.create_task(self._ring(max(0.0, min(waits))), name="parking")

    async def _ring(self, seconds: float) -> None:
        await self._clock.sleep(min(seconds, LOOK_AGAIN_SECONDS))
        self._wake_host()


def _go_on(tx: Transaction, *, agent_id: str) -> None:
    agents.move(tx, agent_id, AgentStatus.WORKING, "the usage limit has ended")
