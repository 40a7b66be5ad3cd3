"""The command `compact`: beside the loop of an agent that works, and beside everything else where the agent
rests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watchkeeper.agents.agent_memory import AgentMemory
from watchkeeper.agents.compacting import Compaction
from watchkeeper.agents.control import AgentControl
from watchkeeper.agents.loop import AgentLoop
from watchkeeper.memory.changes import Rejection
from watchkeeper.memory.compactor import CompactionPass, Outcome
from watchkeeper.records.states import AgentStatus, CommandStatus
from watchkeeper.store import agents, commands
from watchkeeper.store.agents import Agent
from watchkeeper.store.transaction import Transaction

if TYPE_CHECKING:
    from watchkeeper.runtime.host import SessionHost


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the queue."""

    id: int
    kind: str
    agent_id: str | None
    task_id: str | None
    payload: dict[str, Any]
    requested_by: str


class NotYet(Exception):
    """The command stays queued: it can be applied later, when something has ended that makes the host look
    again."""


class CompactionOrders:
    """Begins what is ordered. The command is told as applied in the transaction in which its pass begins, or,
    where the agent has ended, in the one in which it is published; until then it is queued, so that a crash
    forgets neither."""

    def __init__(self, host: SessionHost, memory_of: Callable[[Agent], AgentMemory]) -> None:
        self._host = host
        self._memory_of = memory_of
        self._tasks: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """Agent → the command that compacts it, and its work."""
        self._ends = False

    @property
    def under_way(self) -> bool:
        """Whether a pass runs over the context of an agent that has no loop."""
        return bool(self._tasks)

    def is_about(self, agent_id: str) -> bool:
        """Whether such a pass runs over the context of this agent, so that no loop of it may start."""
        return agent_id in self._tasks

    async def end(self) -> None:
        """The host ends first: the passes are abandoned, and their commands wait for the next host."""
        self._ends = True
        await self.drop()

    async def drop(self) -> None:
        """Stop; without a word where the store takes none any more."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def apply(self, command: Command) -> None:
        """Begin the pass.

        Raises:
            ValueError: why it cannot be.
        """
        host = self._host
        agent = agents.load(host.store, command.agent_id) if command.agent_id else None
        if agent is None:
            raise ValueError(f"no agent {command.agent_id} in this session")
        up_to = command.payload.get("up_to")
        if up_to is not None and (isinstance(up_to, bool) or not isinstance(up_to, int)):
            raise ValueError("up_to must be the number of a message")
        if agent.id in self._tasks:
            if self._tasks[agent.id][0] == command.id:
                raise NotYet
            raise ValueError(f"a compaction of {agent.name} is running already")
        loop = host.loop_of(agent.id)
        if loop is not None:
            await self._begin(command, agent, loop)
            now = agents.load(host.store, agent.id)
            if now is not None and now.status is AgentStatus.IDLE and host.loop_of(agent.id) is None:
                host.resting.keep(agent.id, loop)  # it came to rest while the pass was begun
        elif agent.status is AgentStatus.IDLE and not host.driving_once:
            loop = AgentLoop(host.environment, agent, AgentControl())
            await loop.compaction.take_over(begin_again=False)  # this order is newer
            await self._begin(command, agent, loop)
            host.resting.keep(agent.id, loop)
        elif host.driving_once:
            await self._whole(command, agent)
        else:
            task = asyncio.create_task(self._beside(command, agent), name=f"compact-{agent.id}")
            self._tasks[agent.id] = command.id, task
            raise NotYet

    async def _begin(self, command: Command, agent: Agent, loop: AgentLoop) -> None:
        doing = "rests" if agent.status is AgentStatus.IDLE else "works"

        def tell(tx: Transaction, begun: CompactionPass) -> None:
            said = f"{agent.name} is compacted up to message {begun.high_water} while it {doing}"
            _settle(tx, command, CommandStatus.APPLIED, said)

        begun = await loop.compaction.begin(
            trigger="manual",
            up_to=command.payload.get("up_to"),
            instructions=_instructions(command),
            also=tell,
        )
        if isinstance(begun, Rejection):
            raise ValueError(begun.reason)

    async def _beside(self, command: Command, agent: Agent) -> None:
        """The whole pass over the context of an agent that has ended, while the host goes on."""
        try:
            try:
                await self._whole(command, agent)
            except ValueError as refused:
                reason = str(refused)
                await self._host.store.commit(
                    lambda tx: _settle(tx, command, CommandStatus.REFUSED, reason), urgent=True
                )
        except Exception as error:
            self._host.failed(error)
        finally:
            del self._tasks[agent.id]
            self._host.kick(agent.id)

    async def _whole(self, command: Command, agent: Agent) -> None:
        compaction = Compaction(self._host.environment, agent, self._memory_of(agent))
        await compaction.take_over(
            begin_again=False
        )  # this command is newer, or the one that was not finished
        made = commands.compaction_made(self._host.store, command.id, agent.id)
        if made is not None:
            said = _compacted(agent, *made)
            await self._host.store.commit(
                lambda tx: _settle(tx, command, CommandStatus.APPLIED, said), urgent=True
            )
            return

        def settle(tx: Transaction, outcome: Outcome) -> None:
            if outcome.applied:
                said = _compacted(
                    agent, outcome.tokens_before, outcome.tokens_after, outcome.high_water, outcome.reason
                )
                _settle(tx, command, CommandStatus.APPLIED, said)

        try:
            outcome = await compaction.run(
                trigger="manual",
                up_to=command.payload.get("up_to"),
                instructions=_instructions(command),
                command=command.id,
                also=settle,
            )
        except asyncio.CancelledError:
            if self._ends:
                await compaction.abandon("its host ended")
            else:
                compaction.drop()
            raise
        if isinstance(outcome, Rejection) or not outcome.applied:
            raise ValueError(outcome.reason)


def _instructions(command: Command) -> str | None:
    return command.payload.get("instructions") or None


def _settle(tx: Transaction, command: Command, status: CommandStatus, said: str) -> None:
    commands.settle(
        tx, command.id, command.kind, status, said, agent_id=command.agent_id, task_id=command.task_id
    )


def _compacted(
    agent: Agent, before: int | None, after: int | None, high_water: int | None, reason: str
) -> str:
    said = f"{agent.name}: {before} → {after} tokens, up to message {high_water}"
    return said if reason == "summary" else f"{said} ({reason})"
