"""What stops an agent: a person, a usage limit of a provider, a budget, a file that another agent holds.

A person stops it at the next step boundary, or at once.

A usage limit with an end time parks the agents that need the model; one without (no credit, a bad key) pauses the
session. When the time has come, or a person has resumed the session, one call tests the limit. The other
agents continue only after that call has succeeded, a few seconds apart.

Under a budget, each model call reserves what it may spend, and settles it afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from watchkeeper.models.failures import LONGEST_PARK_SECONDS, SHORTEST_PARK_SECONDS, RetryPolicy
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.messages import Cost, ErrorKind, ModelError, Purpose, Usage
from watchkeeper.records.ports import Clock
from watchkeeper.records.states import AgentStatus
from watchkeeper.store import agents, budgets, sessions
from watchkeeper.store.agents import Agent
from watchkeeper.store.budgets import (
    BLOCKED,
    RATE,
    USAGE,
    Budget,
    BudgetUse,
    NotedLimit,
    ReservedCall,
    amount_text,
)
from watchkeeper.store.driver import Reads
from watchkeeper.store.transaction import SessionStore, Transaction

# --- A person -------------------------------------------------------------------------------------------

T = TypeVar("T")


class Interrupted(Exception):
    """What was awaited was abandoned, because a person asked to pause at once."""


class AgentStopped(Exception):
    """The agent was cancelled or replaced in the store; its loop must write nothing more."""


class AgentControl:
    """Shared by an agent's loop and its host, on one event loop."""

    def __init__(self) -> None:
        self.pause_reason: str | None = None
        """Set: pause at the next step boundary, for this reason."""
        self.releasing = False
        """The pause is for this host alone: another one continues at once, so the agent's row stays as it is."""
        self._now = asyncio.Event()
        self._waiting = False
        self._pausing = False

    def pause(self, reason: str, *, now: bool = False, releasing: bool = False) -> None:
        """Ask the loop to pause; with `now`, or while it only waits, what it awaits is abandoned."""
        self.releasing = releasing and self.pause_reason is None
        self.pause_reason = reason
        if now or self._waiting:
            self._now.set()

    def abandon(self) -> None:
        """Abandon what the loop awaits, where it was asked to pause and goes on."""
        if self.pause_reason is not None:
            self._now.set()

    def cancel_pause(self) -> bool:
        """Cancel a pause that has not started. False if it has started: the loop ends first."""
        if self.pause_reason is not None and not self._pausing and not self._now.is_set():
            self.pause_reason = None
        return self.pause_reason is None

    def mark_pausing(self) -> None:
        """Say that the loop ends now, paused: it is too late to cancel that."""
        self._pausing = True

    def set_waiting(self, waiting: bool) -> None:
        """Say whether the loop only waits (for a slot, a retry, a person): a pause then need not wait with
        it."""
        self._waiting = waiting
        if waiting and self.pause_reason is not None:
            self._now.set()

    def stop_now(self) -> None:
        """Abandon what is awaited: the agent was cancelled."""
        self._now.set()

    def check(self) -> None:
        """Raise Interrupted where the loop is to pause or stop at once."""
        if self._now.is_set():
            raise Interrupted

    async def abandonable(self, work: Awaitable[T]) -> T:
        """Await `work`, unless `now` comes first.

        Raises:
            Interrupted: it did; `work` was cancelled and has ended.
        """
        task = asyncio.ensure_future(work)
        now = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait({task, now}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Interrupted
        finally:
            now.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            elif not task.cancelled():
                task.exception()  # it is looked at also where the wait itself was cancelled in that moment


# --- Whose calls may change a file now ---


class _Turn:
    """One file: the agent that holds it, and for how many of its calls."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.agent_id = ""
        self.calls = 0
        self.wanted = 0
        """How many agents wait for it, the one that gets it next included."""

    def take(self, agent_id: str) -> None:
        self.agent_id, self.calls = agent_id, self.calls + 1

    def leave(self) -> None:
        self.calls -= 1
        if not self.calls:
            self.agent_id = ""
            self.lock.release()


class FileTurns:
    """The calls of one agent at a time change a file, from their question on: while a question about a file waits, the
    writes of other agents to that file wait too. So what a person is shown stays so, and no question repeats.

    Commands of a shell are not held: nothing tells which files they write.
    """

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def hold(
        self, files: Iterable[str], agent_id: str, control: AgentControl, on_wait: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """Wait for these files, given by their real paths, and hold them. `on_wait` receives one line that says
        what the call waits for.

        Raises:
            Interrupted: the agent is to pause or stop at once.
        """
        async with contextlib.AsyncExitStack() as held:
            for name in sorted(set(files)):
                turn = self._turns.setdefault(name, _Turn())
                if turn.agent_id != agent_id:
                    if turn.lock.locked() or turn.wanted:
                        on_wait(
                            f"{os.path.basename(name)}: waiting for another agent's approval request on this file"
                        )
                    control.set_waiting(True)
                    turn.wanted += 1
                    try:
                        await control.abandonable(turn.lock.acquire())
                    finally:
                        turn.wanted -= 1
                        control.set_waiting(False)
                turn.take(agent_id)
                held.callback(turn.leave)
            yield


# --- Usage limits of providers --------------------------------------------------------------------------

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
        reason = "the usage limit has reset"
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


# --- Budgets: each call reserves what it may spend, and settles it afterwards ---------------------------


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """Why no further call may be made."""

    reason: str
    kind: str
    """`usd`, `tokens`, `turns` or `seconds`."""
    whole_session: bool
    """False: only the task that has this budget stops."""
    required: float | None = None
    """The smallest budget that covers the input of the call that was refused, where it is not simply used
    up."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A model call that is about to be made: what it may use at most."""

    agent_id: str
    task_id: str | None
    model: str
    purpose: Purpose
    input_tokens: int
    """Estimated."""
    output_tokens: int
    """The most that it may write."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room in the budgets for one call, a row of `reservations` until the call is recorded."""

    id: str
    end: Callable[[Usage, float | None, int], None]
    """Say what the call used (tokens, USD, turns); `store.budgets.settle_reservation` in the transaction that
    records it."""
    release: Callable[[], None]
    """The call was abandoned, and nothing of it will be recorded."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """What is left does not cover this call beside those in progress."""


@dataclass(frozen=True, slots=True)
class _Need:
    """What one call takes of each kind of budget."""

    tokens: int
    input_tokens: int
    cost_usd: float | None
    """None: the model's price is unknown, so that a budget in USD does not count it."""
    input_usd: float
    turns: int

    def of(self, kind: str) -> tuple[float, float]:
        """At most, and for its input alone."""
        if kind == "tokens":
            return self.tokens, self.input_tokens
        if kind == "usd":
            return self.cost_usd or 0.0, self.input_usd
        return (self.turns, self.turns) if kind == "turns" else (0.0, 0.0)


class Budgets:
    """Answers whether a session, or one task, may go on, and reserves what its calls may use.

    A reservation is the estimate of a call's input and its largest output, a row of `reservations`. While
    what is left covers every call, calls run side by side. When it does not cover one more, that one waits in
    line until a call in progress has ended. A call that is alone needs room for its input only: so nothing
    but the last call's own output can go beyond a budget. Without a budget, nothing is written and nothing
    waits.

    For one event loop.
    """

    def __init__(
        self,
        store: SessionStore,
        hosted_seconds: Callable[[], float],
        price: Callable[[str, Usage, bool], Cost],
    ) -> None:
        self._store = store
        self._hosted_seconds = hosted_seconds
        self._price = price
        self._turns: tuple[int, int] | None = None
        """Turns of all agents, through which event: counted once, and from then on in the log of events."""
        self._line: deque[object] = deque()
        """Who waits, first come first served."""
        self._changed = asyncio.Event()
        self._ended: dict[str, ReservedCall] = {}
        """Calls that have ended and are not recorded yet, by reservation: what they used in fact."""
        self._deciding: set[asyncio.Future[Any]] = set()
        """Reservations on their way to the store."""
        self._reserved = 0
        """How many reservations were made: no two have the same id, so that none is taken for one that has
        ended."""

    def reached(self, task_id: str | None) -> BudgetReached | None:
        """The first budget that is used up, for the session or for the task; None: go on."""
        applying = self._applying(task_id)
        hosted_seconds = self._hosted_seconds() if applying else 0.0
        for budget in applying:
            use = BudgetUse(budget, self._used(self._store, budget, hosted_seconds))
            if use.is_reached:
                return self._say(use)
        return None

    def calls_left(self, task_id: str | None, model: str, tokens: int) -> float:
        """How many more calls of so many tokens, all of them cached, the budgets leave at most; infinity where none
        bounds them."""
        price = self._price(model, Usage(cache_read_tokens=tokens), False).usd
        a_call = {"turns": 1.0, "tokens": float(tokens), "usd": price}
        hosted_seconds, left = self._hosted_seconds(), math.inf
        for budget in self._applying(task_id):
            need, used = a_call.get(budget.kind), self._used(self._store, budget, hosted_seconds)
            if need and used is not None:
                left = min(left, max(0.0, budget.amount - used) / need)
        return left

    async def reserve(self, call: PlannedCall) -> Reservation | BudgetReached | None:
        """Wait until the call fits what is left, and reserve it; None where no budget applies.

        A call beside the loops (a summary, an observer) does not wait: it gets the reason why it cannot be
        made now. Cancelling the wait leaves the line.
        """
        if not self._applying(call.task_id):
            return None
        need = self._need(call)
        me = object()
        try:
            while True:
                changed = self._changed
                if not self._line or self._line[0] is me:
                    decision = await self._decide(call, need)
                    if not isinstance(decision, _Wait):
                        return decision
                    if call.purpose not in _IN_LINE:
                        return BudgetReached(
                            "the remaining budget is reserved for calls in progress", "", True
                        )
                if me not in self._line:
                    self._line.append(me)
                await changed.wait()
        finally:
            if me in self._line:
                self._line.remove(me)
                self.look_again()

    async def settled(self) -> None:
        """Wait until the reservations of calls that were given up meanwhile are made, and given back."""
        if self._deciding:
            await asyncio.wait(self._deciding)

    def look_again(self) -> None:
        """A call has ended, or a budget was changed: waiting calls ask again."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- deciding -------------------------------------------------------------------------------------------

    def _applying(self, task_id: str | None) -> list[Budget]:
        found = budgets.load(self._store, self._store.session_id)
        return [budget for budget in found if budget.task_id is None or budget.task_id == task_id]

    async def _decide(self, call: PlannedCall, need: _Need) -> Reservation | BudgetReached | _Wait:
        self._count_turns()
        ended, hosted_seconds = dict(self._ended), self._hosted_seconds()

        self._reserved += 1
        number = f"{call.agent_id}:{self._reserved}"

        def decide(tx: Transaction) -> tuple[str | BudgetReached | _Wait, set[str]]:
            rows = budgets.reservations(tx)
            known = {row.id for row in rows}
            waits = False
            for budget in budgets.load(tx, tx.session_id):
                if budget.task_id is not None and budget.task_id != call.task_id:
                    continue
                verdict = self._fits(budget, self._used(tx, budget, hosted_seconds), need, rows, ended)
                if isinstance(verdict, BudgetReached):
                    return verdict, known
                waits = waits or verdict is not None
            if waits:
                return _Wait(), known
            budgets.add_reservation(
                tx,
                number,
                agent_id=call.agent_id,
                task_id=call.task_id,
                model=call.model,
                purpose=call.purpose,
                tokens=need.tokens,
                cost_usd=need.cost_usd,
            )
            return number, known

        deciding = asyncio.ensure_future(self._store.commit(decide))
        self._deciding.add(deciding)
        deciding.add_done_callback(self._deciding.discard)
        try:
            outcome, known = await asyncio.shield(deciding)
        except asyncio.CancelledError:
            deciding.add_done_callback(self._release_unused)
            raise
        for recorded in [one for one in ended if one not in known]:
            self._ended.pop(recorded, None)
        if not isinstance(outcome, str):
            return outcome
        return Reservation(
            outcome, partial(self._end, outcome, call.task_id), partial(self._release, outcome)
        )

    def _fits(
        self,
        budget: Budget,
        used: float | None,
        need: _Need,
        rows: list[ReservedCall],
        ended: dict[str, ReservedCall],
    ) -> BudgetReached | _Wait | None:
        """Whether one budget, of which `used` is recorded, covers the call; None: it does."""
        if used is None and budget.kind == "usd" and need.cost_usd is None:
            return None
        spent, reserved, in_progress = used or 0.0, 0.0, False
        for row in rows:
            if budget.task_id is not None and row.task_id != budget.task_id:
                continue
            if row.id in ended:
                spent += _amount(ended[row.id], budget.kind)
            else:
                reserved += _amount(row, budget.kind)
                in_progress = in_progress or _amount(row, budget.kind) > 0
        if BudgetUse(Budget(budget.task_id, budget.kind, budget.amount), spent).is_reached:
            return self._say(BudgetUse(budget, spent))
        at_most, for_input = need.of(budget.kind)
        left = budget.amount - spent
        if at_most <= left - reserved:
            return None
        if in_progress:
            return _Wait()
        if for_input <= left or not spent:
            return None
        return self._say(BudgetUse(budget, spent), required=spent + for_input)

    def _need(self, call: PlannedCall) -> _Need:
        read = Usage(input_tokens=call.input_tokens, output_tokens=call.output_tokens)
        cached = Usage(cache_write_tokens=call.input_tokens, output_tokens=call.output_tokens)
        prices = [self._price(call.model, usage, False).usd for usage in (read, cached)]
        inputs = [
            self._price(call.model, usage, False).usd
            for usage in (Usage(input_tokens=call.input_tokens), Usage(cache_write_tokens=call.input_tokens))
        ]
        return _Need(
            tokens=call.input_tokens + call.output_tokens,
            input_tokens=call.input_tokens,
            cost_usd=max((price for price in prices if price is not None), default=None),
            input_usd=max((price for price in inputs if price is not None), default=0.0),
            turns=1 if call.purpose in _IN_LINE else 0,
        )

    def _used(self, reads: Reads, budget: Budget, hosted_seconds: float) -> float | None:
        session_id = self._store.session_id
        if budget.task_id is None and budget.kind == "seconds":
            return hosted_seconds
        if budget.task_id is None and budget.kind == "turns":
            counted, through = self._turns or self._count_turns()
            return float(counted + sessions.turns_between(reads, session_id, through))
        return budgets.used(reads, session_id, budget.task_id, budget.kind)

    def _count_turns(self) -> tuple[int, int]:
        """Bring the count of turns up to the newest event that is committed."""
        store, session_id = self._store, self._store.session_id
        if self._turns is None:
            self._turns = sessions.turns_made(store, session_id)
        else:
            counted, through = self._turns
            newest = sessions.newest_event(store, session_id)
            self._turns = (counted + sessions.turns_between(store, session_id, through, newest), newest)
        return self._turns

    def _say(self, use: BudgetUse, required: float | None = None) -> BudgetReached:
        budget, kind = use.budget, use.budget.kind
        owner = "the session's" if budget.task_id is None else "the task's"
        limit = f"{owner} budget of {budget.amount:g} {budgets.UNITS[kind]}"
        least = required if required is not None else budget.required
        spent = amount_text(use.used or 0.0, kind)
        if least is not None and (use.used or 0.0) < budget.amount:
            said = f"{limit} is too small for the next call ({spent} used, {amount_text(least, kind)} needed)"
        else:
            said = f"{limit} is reached ({spent} used)"
        return BudgetReached(f"{said}; raise it with `wk budget`", kind, budget.task_id is None, least)

    # --- after the call -------------------------------------------------------------------------------------

    def _end(
        self, number: str, task_id: str | None, usage: Usage, cost_usd: float | None, turns: int
    ) -> None:
        """The call has ended; until it is recorded, what it used in fact counts instead of what was
        reserved."""
        self._ended[number] = ReservedCall(number, task_id, usage.total_tokens, cost_usd, turns)
        self.look_again()

    def _release(self, number: str) -> None:
        """The call was given up and will not be recorded."""
        self._end(number, None, Usage(), None, 0)
        store, now = self._store, self._store.now()
        with contextlib.suppress(StoreUnusable):  # the store is closed: the next host releases what is left
            store.writer.submit(
                lambda group: budgets.settle_reservation(
                    Transaction(group, store.session_id, store.epoch, now), number
                )
            )

    def _release_unused(self, deciding: asyncio.Future[Any]) -> None:
        if deciding.cancelled() or deciding.exception() is not None:
            return
        number = deciding.result()[0]
        if isinstance(number, str):
            self._release(number)


_IN_LINE = frozenset({Purpose.TURN, Purpose.PLANNER})
"""Calls that an agent cannot go on without."""


def _amount(row: ReservedCall, kind: str) -> float:
    return {"tokens": row.tokens, "usd": row.cost_usd or 0.0, "turns": row.turns}.get(kind, 0.0)
