"""Agents parked by a usage limit: woken when its time has come, one first, and the others after that one's
call succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from watchkeeper.records.clock import Clock
from watchkeeper.records.states import AgentStatus
from watchkeeper.runtime.usage_limits import UsageLimits
from watchkeeper.store import agents
from watchkeeper.store.agents import Agent
from watchkeeper.store.session_store import SessionStore
from watchkeeper.store.transaction import Transaction

LOOK_AGAIN_SECONDS = 30.0
"""How long a limit's end is slept towards at a time: the wall clock may jump, and another host may learn that
it is over."""


class Parking:
    """The parked agents of one host. Level-triggered: `wake` may be called at any time, and does what is
    due."""

    def __init__(
        self, store: SessionStore, clock: Clock, limits: UsageLimits, kick: Callable[[], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._kick = kick
        self._models: dict[str, str] = {}
        """Parked agent → its model."""
        self._first: dict[str, str] = {}
        """Model → the agent that was woken to test its limit."""
        self._next_at: dict[str, float] = {}
        """Model → monotonic time at which the next agent goes on, once the limit is over."""
        self._alarm: asyncio.Task[None] | None = None

    def see(self, agent: Agent) -> None:
        """Take into account how an agent stands now."""
        if agent.status is AgentStatus.PARKED:
            self._models[agent.id] = agent.model
        else:
            self._models.pop(agent.id, None)

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, agent_id: object) -> bool:
        return agent_id in self._models

    def agents(self) -> list[Agent]:
        """Those that are parked."""
        found = [agents.load(self._store, agent_id) for agent_id in self._models]
        return [agent for agent in found if agent is not None and agent.status is AgentStatus.PARKED]

    def is_closed(self, model_ref: str) -> bool:
        """Whether a call of this model would be parked."""
        remaining = self._limits.remaining_seconds(model_ref)
        return remaining is not None and remaining > 0

    async def wake(
        self, *, running: Callable[[str], bool], room: int, may_run: Callable[[Agent], bool]
    ) -> list[Agent]:
        """Let those go on whose time has come; returns them.

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
        """A person wants one call tried now."""
        self._limits.allow_test(agent.model)
        await self._lift(agent)
        self._first[agent.model] = agent.id

    def close(self) -> None:
        """The host ends; what is parked stays parked."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _choose(self, model: str, may_run: Callable[[Agent], bool]) -> Agent | None:
        """The planner first: the others wait for it in the end."""
        ready = [agent for agent in self.agents() if agent.model == model and may_run(agent)]
        return min(ready, key=lambda agent: agent.task_id is not None, default=None)

    async def _lift(self, agent: Agent) -> None:
        self._models.pop(agent.id, None)
        await self._store.commit(partial(_go_on, agent_id=agent.id))

    def _set_alarm(self, stuck: set[str]) -> None:
        """Look again when the next thing is due; `stuck` models wait for something else."""
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
        self._kick()


def _go_on(tx: Transaction, *, agent_id: str) -> None:
    agents.move(tx, agent_id, AgentStatus.WORKING, "the usage limit has ended")
