"""One agent's run until it ends, pauses or has nothing to do. A model or an agent program takes its turns.

A run delivers the inbox, takes one turn after the other, and writes what stops it: a pause, a budget, a usage limit, a
failure, an interruption, a rest. A subclass takes the turns: `agents.loop.AgentLoop` asks a model,
`agents.backends.loop.ProgramLoop` hands the turn to an agent program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from watchkeeper.agents import agent_state
from watchkeeper.agents.agent_state import (
    GOES_ON_BY_ITSELF,
    RunResult,
    Snapshot,
    TaskOutcome,
    note_budget,
    write_ending,
)
from watchkeeper.agents.calls import assert_mine
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.later import LaterNews
from watchkeeper.agents.limits import AgentControl, AgentStopped, BudgetReached, Interrupted
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.records.states import AgentStatus
from watchkeeper.records.text import cut
from watchkeeper.store import agents, plans
from watchkeeper.store.agents import Agent
from watchkeeper.store.plans import Note
from watchkeeper.store.transaction import Transaction

REASON_CHARACTERS = 2_000
"""A longer reason is cut."""

Write = Callable[[Transaction], None]


class AgentRun(ABC):
    """Drives one agent."""

    def __init__(
        self, environment: Environment, agent: Agent, control: AgentControl, toolbox: Toolbox | None
    ) -> None:
        self._environment = environment
        self._store = environment.store
        self._agent = agent
        self._control = control
        self._turn = agent.turn
        self._later = LaterNews(environment, agent, toolbox)

    @property
    def turn(self) -> int:
        """The newest turn that is committed."""
        return self._turn

    async def run(self) -> RunResult:
        """Work until an end. A fault of a model, a program or a tool becomes a result.

        Raises:
            LeaseLost, StoreUnusable: nothing more can be written.
            HostFault: the machine ran out of something between two calls. What is committed is whole.
        """
        try:
            try:
                ending = await self._run()
                if ending.outcome in GOES_ON_BY_ITSELF and self._control.pause_reason is not None:
                    ending = await self._pause(self._control.pause_reason)
            except AgentStopped:
                ending = RunResult(TaskOutcome.STOPPED)
            except Interrupted:
                ending = await self._after_interruption()
            except Exception as error:
                ending = await self._after_fault(error)
        except BaseException:
            await self._abort()
            raise
        await self._finish(ending)
        return ending

    async def _run(self) -> RunResult:
        ending = await self._begin()
        while ending is None:
            if self._control.pause_reason is not None:
                return await self._pause(self._control.pause_reason)
            await self._deliver_inbox()
            if self._wants_other_work():
                ending = await self._do_other_work()
                continue
            if self._has_answered():
                if self._agent.task_id is None:
                    return await self._rest()
                if (ending := await self._go_on()) is not None:
                    return ending
            reached = self._environment.budgets.reached(self._agent.task_id)
            if reached is not None:
                return await self._pause_by_budget(reached)
            await self._deliver_news()
            ending = await self._take_turn()
        return ending

    # --- what the taker of the turns does -----------------------------------------------------------------------

    @abstractmethod
    async def _begin(self) -> RunResult | None:
        """Settle what an earlier run left open, and be ready for a turn."""

    @abstractmethod
    async def _take_turn(self) -> RunResult | None:
        """Take one turn; None: go on."""

    @abstractmethod
    def _has_answered(self) -> bool:
        """Whether nothing has come since the agent's last word."""

    @abstractmethod
    async def _go_on(self) -> RunResult | None:
        """An agent with a task has answered, and was continued without a new message."""

    @abstractmethod
    def _messages_for(self, notes: Sequence[Note]) -> Write:
        """What appends notes of the inbox to the agent's messages, and marks them as delivered."""

    @abstractmethod
    def _snapshot(self) -> Snapshot:
        """The agent's memory as it is."""

    @abstractmethod
    def _note_end(self, tx: Transaction, status: str, reason: str) -> None:
        """Write how the turn ended that a pause or a failure cuts off."""

    @abstractmethod
    async def _finish(self, ending: RunResult) -> None:
        """Free what the run holds."""

    @abstractmethod
    async def _abort(self) -> None:
        """Free it after a fault of the host, without writing anything."""

    def _wants_other_work(self) -> bool:
        """Whether something goes before the next turn."""
        return False

    async def _do_other_work(self) -> RunResult | None:
        """Do it; None: go on."""
        return None

    async def _after_fault(self, error: Exception) -> RunResult:
        """What follows from a fault that only this taker of turns knows. Raises the others again."""
        raise error

    async def _stop_turn(self, reason: str) -> RunResult:
        """Pause at once, in the middle of a turn."""
        return await self._pause(reason)

    # --- between turns ------------------------------------------------------------------------------------------

    async def _deliver_inbox(self) -> None:
        if notes := plans.undelivered(self._store, self._agent.id):
            write = self._messages_for(notes)

            def deliver(tx: Transaction) -> None:
                agents.move(tx, self._agent.id, AgentStatus.WORKING)
                write(tx)

            await self._commit(deliver)

    async def _deliver_news(self) -> None:
        """The rules and tools that came since the agent's prompt was written. They wake no agent."""
        if news := self._later.read():
            await self._store.commit(lambda tx: plans.post_all(tx, self._agent.id, news))
            await self._deliver_inbox()

    async def _commit(self, write: Write, also: Write | None = None) -> None:
        """Commit a change of this agent. `also`: what a call used; where the agent has ended meanwhile, that is recorded
        alone.

        Raises:
            AgentStopped: the agent has ended, or another run has it.
        """

        def both(tx: Transaction) -> None:
            assert_mine(tx, self._agent.id)
            if also is not None:
                also(tx)
            write(tx)

        try:
            await self._store.commit(both)
        except AgentStopped:
            if also is not None:
                await self._store.commit(also)
            raise

    # --- what stops a run ---------------------------------------------------------------------------------------

    async def _rest(self) -> RunResult:
        """A planner has nothing to answer: it waits for its inbox."""
        await self._store.commit(lambda tx: agents.move(tx, self._agent.id, AgentStatus.IDLE))
        self._environment.live.show(self._agent.id, "idle")
        return RunResult(TaskOutcome.IDLE)

    async def _fail(self, reason: str, also: Write | None = None) -> RunResult:
        reason = cut(self._environment.redact(reason), REASON_CHARACTERS)
        ending, snapshot = RunResult(TaskOutcome.FAILED, reason), self._snapshot()

        def write(tx: Transaction) -> None:
            self._note_end(tx, "failed", reason)
            write_ending(tx, self._agent, ending, reason, self._turn, snapshot)

        await self._commit(write, also)
        return ending

    async def _park(self, reason: str, until: float, also: Write | None = None) -> RunResult:
        """Wait for the end of a usage limit without a loop; the task runs on, and no attempt or retry is used
        up."""
        self._control.mark_pausing()
        snapshot = self._snapshot()

        def write(tx: Transaction) -> None:
            snapshot.write(tx, self._turn)
            agents.move(tx, self._agent.id, AgentStatus.PARKED, reason, parked_until=until)

        await self._commit(write, also)
        self._environment.live.show(self._agent.id, "parked", reason, until=until)
        return RunResult(TaskOutcome.PARKED, reason)

    async def _pause(
        self, reason: str, *, tell: bool = False, blocked: bool = False, keep_turn: bool = False
    ) -> RunResult:
        """Pause the agent. `tell`: tell the planner too. `blocked`: a person must act, so the session pauses.
        `keep_turn`: a turn that was cut off is settled at the next start."""
        self._control.mark_pausing()
        reason, snapshot = cut(self._environment.redact(reason), REASON_CHARACTERS), self._snapshot()

        def write(tx: Transaction) -> None:
            if not keep_turn:
                self._note_end(tx, "interrupted", reason)
            snapshot.write(tx, self._turn)
            if self._control.releasing and not blocked:
                return
            agent_state.pause(tx, self._agent, reason, tell=tell)

        await self._commit(write)
        self._environment.live.show(self._agent.id, "paused", reason)
        return RunResult(TaskOutcome.BLOCKED if blocked else TaskOutcome.PAUSED, reason)

    async def _pause_by_budget(self, reached: BudgetReached) -> RunResult:
        await self._store.commit(partial(note_budget, agent=self._agent, reached=reached))
        return await self._pause(reached.reason, tell=True, blocked=reached.whole_session)

    async def _after_interruption(self) -> RunResult:
        try:
            return await self._stop_turn(self._control.pause_reason or "paused immediately")
        except AgentStopped:
            return RunResult(TaskOutcome.STOPPED)
