"""One model call of a loop: its slot, its stream on the screen, and its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace

from watchkeeper.agents.environment import Environment, LiveBoard
from watchkeeper.agents.limits import (
    Admission,
    AgentControl,
    BudgetReached,
    Interrupted,
    PlannedCall,
    Reservation,
)
from watchkeeper.models.gate import Gate
from watchkeeper.records import errors
from watchkeeper.records.errors import HostFault, StoreUnusable, raising_host_faults
from watchkeeper.records.messages import (
    Cost,
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    PriceStatus,
    Purpose,
    Reply,
    Retrying,
    Usage,
    UsageSoFar,
)
from watchkeeper.records.model_calls import ModelCallRecord
from watchkeeper.records.states import ModelCallStatus
from watchkeeper.records.text import cut
from watchkeeper.store import agents, budgets
from watchkeeper.store.agents import Agent
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.quota import note_readings
from watchkeeper.store.transaction import Transaction
from watchkeeper.store.writer import Group


@dataclass(frozen=True, slots=True)
class Charge:
    """A row of `model_calls` that a call brings besides its own: an attempt that broke after the provider had counted
    tokens, or what another model, or a compaction by the provider, used for it."""

    purpose: str
    model_ref: str
    status: ModelCallStatus
    usage: Usage
    cost: Cost
    exact: bool
    request_id: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ModelCallResult:
    """A call that ended, whichever way, ready to be recorded."""

    reply: Reply | None
    error: ModelError | None
    """Set where there is no reply, unless the call was abandoned."""
    cost: Cost
    started_at: float
    waited_seconds: float
    latency_seconds: float
    retries: int
    estimated_prompt_tokens: int
    model_ref: str
    request: ModelRequest
    reservation: Reservation | None = None
    refused: BudgetReached | None = None
    """Set where no call was made, because no budget covers it."""
    was_made: bool = True
    """False where nothing was sent, and so there is nothing to record: no budget covers it, or a usage limit
    is in force."""
    partial: UsageSoFar | None = None
    """Without a reply: what the provider had counted when the last attempt ended."""
    charges: tuple[Charge, ...] = ()
    begun: Mapping[int, int] = field(default_factory=dict)
    """Attempt → the row that was written while it ran: this record takes their place."""

    @property
    def usage(self) -> Usage:
        """The usage of the call itself, without its charges."""
        return self.reply.usage if self.reply else self.partial.usage if self.partial else Usage()

    @property
    def cost_usd(self) -> float | None:
        """The cost of the call and its charges; None: nothing of it is priced."""
        priced = [
            cost.usd for cost in (self.cost, *(one.cost for one in self.charges)) if cost.usd is not None
        ]
        return sum(priced) if priced else None

    @property
    def status(self) -> ModelCallStatus:
        if self.reply is not None:
            return ModelCallStatus.DONE
        return ModelCallStatus.ERROR if self.error is not None else ModelCallStatus.ABANDONED

    @property
    def tokens(self) -> int:
        """All that the provider counted for it: read (from its cache too) and written."""
        return self.usage.total_tokens + sum(one.usage.total_tokens for one in self.charges)

    def record(self, tx: Transaction, agent_id: str, turn: int) -> int:
        """Write the row of `model_calls`, with the running totals, and settle its reservation; returns its
        id."""
        reply = self.reply
        if self.reservation is not None:
            budgets.settle_reservation(tx, self.reservation.id)
        for row in self.begun.values():
            agents.drop_begun_call(tx, row)
        for charge in self.charges:
            charged = ModelCallRecord(
                agent_id=agent_id,
                turn=turn if reply is not None else max(0, turn - 1),
                purpose=charge.purpose,
                model=charge.model_ref,
                status=charge.status,
                usage=charge.usage,
                cost=charge.cost,
                started_at=self.started_at,
                error=charge.error,
                request_id=charge.request_id,
                usage_exact=charge.exact,
            )
            agents.add_model_call(tx, charged)
        request_id = self.partial.request_id if self.partial is not None else None
        call = ModelCallRecord(
            agent_id=agent_id,
            turn=turn,
            purpose=self.request.purpose,
            model=self.model_ref,
            status=self.status,
            usage=self.usage,
            cost=self.cost,
            started_at=self.started_at,
            latency_seconds=self.latency_seconds,
            first_token_seconds=reply.first_token_seconds if reply else None,
            waited_seconds=self.waited_seconds,
            retries=self.retries,
            error=cut(str(self.error), 2000) if self.error else None,
            request_id=reply.request_id if reply else request_id,
            stop_reason=reply.stop_reason if reply else None,
            estimated_prompt_tokens=self.estimated_prompt_tokens,
            usage_exact=reply.usage_exact if reply else False,
        )
        if reply is not None and reply.quota:
            note_readings(tx, tx.execute, reply.quota)
        return agents.add_model_call(tx, call)


@dataclass(slots=True)
class UsageAccumulator:
    """Background model calls that are not recorded yet, and the total cost of all."""

    calls: list[tuple[ModelCallResult, int]] = field(default_factory=list)
    """Each with the agent's turn when the call began."""
    cost_usd: float | None = None
    tokens: int = 0
    """Read and written by those that are recorded already."""

    @property
    def all_tokens(self) -> int:
        """Read and written by all of them."""
        return self.tokens + sum(called.tokens for called, _ in self.calls)

    def record(self, tx: Transaction, agent_id: str) -> float | None:
        """Write the calls that are not written yet; returns the cost of all so far (None: nothing of it is
        priced)."""
        calls, cost = tuple(self.calls), self.cost_usd
        for called, turn in calls:
            called.record(tx, agent_id, turn)
            if called.cost_usd is not None:
                cost = (cost or 0.0) + called.cost_usd
        return cost

    def take(self) -> UsageAccumulator:
        """The calls so far, to be recorded now; they count as recorded from here on, even if no caller
        waits."""
        taken = UsageAccumulator(self.calls, self.cost_usd, self.tokens)
        for called, _ in self.calls:
            if called.cost_usd is not None:
                self.cost_usd = (self.cost_usd or 0.0) + called.cost_usd
        self.tokens = self.all_tokens
        self.calls = []
        return taken


class _OverBudget(Exception):
    """No budget covers the call; nothing was sent."""

    def __init__(self, reached: BudgetReached) -> None:
        self.reached = reached


class _NoViewers:
    """A live board without viewers."""

    def show(self, agent_id: str, activity: str, detail: str = "", *, until: float | None = None) -> None:
        """Show nothing."""

    def stream(self, agent_id: str, text: str, kind: str = "text") -> None:
        """Show nothing."""


@dataclass(slots=True, eq=False)
class _CallInProgress:
    """One call of a model, with all of its attempts, until it has a result."""

    environment: Environment
    control: AgentControl
    live: LiveBoard
    model_ref: str
    request: ModelRequest
    planned: PlannedCall
    started_at: float
    began: float
    """`started_at` by the monotonic clock."""
    waited_seconds: float = 0.0
    retries: int = 0
    reservation: Reservation | None = None
    tests_limit: bool = False
    """Whether it is the one call that tests whether a usage limit has ended."""
    was_made: bool = False
    partial: UsageSoFar | None = None
    """What the provider has counted of the attempt that runs."""
    attempts: int = 0
    """Those of which the provider has counted anything."""
    charges: list[Charge] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    reply: Reply | None = None
    error: ModelError | None = None
    refused: BudgetReached | None = None

    async def run(self) -> Reply:
        """Make the call, and make it again after a wait while a resource of the machine is short."""
        clock = self.environment.clock
        for wait_seconds in errors.RETRY_SECONDS:
            try:
                with raising_host_faults():
                    return await self._attempt()
            except HostFault as fault:
                self._charge_broken(str(fault))
                self._show("retrying", str(fault), until=clock.now() + wait_seconds)
            self.control.set_waiting(True)
            await clock.sleep(wait_seconds)
        with raising_host_faults():
            return await self._attempt()

    async def _attempt(self) -> Reply:
        """Reserve room, wait for a slot, and stream the reply."""
        clock = self.environment.clock
        self._show("slot", "waiting for a slot")
        self.control.set_waiting(True)
        await self._reserve()
        gate = self.environment.gate(self.model_ref)
        reply: Reply | None = None
        async with AsyncExitStack() as slot:
            await self._enter(gate, slot)
            self.waited_seconds = clock.monotonic() - self.began

            async def pause(seconds: float) -> None:
                # A call that waits for its next attempt holds no slot.
                await slot.aclose()
                await clock.sleep(seconds)
                await self._enter(gate, slot)

            self.was_made = True
            self.control.set_waiting(False)
            self._show("working", "calling the model")
            model = self.environment.model(self.model_ref)
            async for event in model.stream(replace(self.request, pause=pause)):
                self.control.set_waiting(isinstance(event, Retrying))
                if isinstance(event, Reply):
                    reply = event
                self._take(event, gate)
        if reply is None:
            raise ModelError(f"{self.model_ref} ended its stream without a reply", kind=ErrorKind.RETRY)
        return reply

    async def _reserve(self) -> None:
        if self.reservation is not None:  # the call is tried again
            return
        reserved = await self.environment.budgets.reserve(self.planned)
        if isinstance(reserved, BudgetReached):
            raise _OverBudget(reserved)
        self.reservation = reserved

    async def _enter(self, gate: Gate, slot: AsyncExitStack) -> None:
        """Wait for a slot, and for the end of a usage limit, until the call may be sent."""
        limits = self.environment.usage_limits
        while True:
            await slot.enter_async_context(gate.slot(self.request.purpose, self.request.agent_id))
            # Asked with the slot in hand: others may have met a limit while this call waited for it.
            admission = Admission.TEST if self.tests_limit else limits.admit(self.model_ref)
            self.tests_limit = admission is Admission.TEST
            if admission is not Admission.WAIT:
                return
            await slot.aclose()
            self._show("slot", "waiting for a test call to show whether the usage limit still applies")
            await limits.await_test(self.model_ref)

    def _take(self, event: ModelEvent, gate: Gate) -> None:
        """Show and count what the model's stream brings."""
        if isinstance(event, Delta):
            self.live.stream(self.request.agent_id, event.text, event.kind)
        elif isinstance(event, UsageSoFar):
            if self.partial is None and event.usage.total_tokens:
                self._note_begun(event)
            self.partial = event
        elif isinstance(event, Retrying):
            clock = self.environment.clock
            self._charge_broken(event.reason)
            self.retries = event.attempt
            activity = "rate_limited" if event.rate_limited else "retrying"
            if event.rate_limited:
                gate.rate_limit(clock.now() + event.wait_seconds, event.reason)
            self._show(activity, event.reason, until=clock.now() + event.wait_seconds)
        else:
            self.partial = None
            self._charge_side_calls(event)

    def _show(self, activity: str, detail: str, *, until: float | None = None) -> None:
        self.live.show(self.request.agent_id, activity, detail, until=until)

    def _note_begun(self, counted: UsageSoFar) -> None:
        """Store what the provider has counted, in case the host is killed during the call."""
        self.attempts += 1
        store, now, attempt = self.environment.store, self.environment.clock.now(), self.attempts

        def write(group: Group) -> None:
            # The record may be in the same group, whose commit it does not wait for. A group may be written again.
            tx = Transaction(group, store.session_id, store.epoch, now)
            self.begun[attempt] = agents.begin_model_call(
                tx, agent_id=self.request.agent_id, purpose=self.request.purpose, model=self.model_ref, usage=counted.usage,
                started_at=self.started_at, request_id=counted.request_id,
            )  # fmt: skip

        with suppress(StoreUnusable):  # the call goes on; its record will meet the same fault
            store.writer.submit(write)

    def _charge_side_calls(self, of: Reply | UsageSoFar) -> None:
        provider = self.model_ref.partition("/")[0]
        for side in of.side_calls:
            ref = f"{provider}/{side.model}" if side.model else self.model_ref
            cost = self.environment.price(ref, side.usage, side.exact, of.modifiers)
            self.charges.append(
                Charge(side.kind, ref, ModelCallStatus.DONE, side.usage, cost, side.exact, of.request_id)
            )

    def _charge_broken(self, reason: str) -> None:
        """The attempt that ran has ended without a reply, and another one follows."""
        broken, self.partial = self.partial, None
        if broken is None:
            return
        self.charges.append(
            Charge(self.request.purpose, self.model_ref, ModelCallStatus.ERROR, broken.usage, self._price(broken), False,
                   broken.request_id, cut(reason, 2000))
        )  # fmt: skip
        self._charge_side_calls(broken)

    def _price(self, counted: Reply | UsageSoFar) -> Cost:
        exact = counted.usage_exact if isinstance(counted, Reply) else False
        return self.environment.price(
            self.model_ref, counted.usage, exact, counted.modifiers, counted.searches
        )

    def result(self) -> ModelCallResult:
        """The call as it ended, with the use of its reservation reported."""
        if self.partial is not None:
            self._charge_side_calls(self.partial)
        counted = self.reply if self.reply is not None else self.partial
        ended = ModelCallResult(
            reply=self.reply,
            error=self.error,
            cost=self._price(counted) if counted is not None else Cost(None, PriceStatus.UNPRICED),
            started_at=self.started_at,
            waited_seconds=self.waited_seconds,
            latency_seconds=self.environment.clock.monotonic() - self.began - self.waited_seconds,
            retries=self.retries,
            estimated_prompt_tokens=self.planned.input_tokens,
            model_ref=self.model_ref,
            request=self.request,
            reservation=self.reservation,
            refused=self.refused,
            was_made=self.was_made or (self.refused is None and self.error is None),
            partial=self.partial,
            charges=tuple(self.charges),
            begun=self.begun,
        )
        if self.reservation is not None:
            is_turn = self.request.purpose in (Purpose.TURN, Purpose.PLANNER)
            turns = 1 if self.reply is not None and is_turn else 0
            self.reservation.end(Usage(input_tokens=ended.tokens), ended.cost_usd, turns)
        return ended


async def call_model(
    environment: Environment,
    control: AgentControl,
    model_ref: str,
    request: ModelRequest,
    *,
    estimated_prompt_tokens: int,
    task_id: str | None = None,
    shown: bool = True,
    abandoned: Callable[[ModelCallResult], None] | None = None,
) -> ModelCallResult:
    """Call the model once (its own retries included). Never raises for what a model or a provider does.

    Room for the call is reserved first in the budgets of the session and of `task_id`, which may wait for
    other calls. `shown`: whether the agent's live row follows the call; a background call leaves it alone.
    `abandoned` takes what is to be recorded if the call is cancelled after the provider has counted tokens.

    Raises:
        HostFault: a resource of the machine ran out, also when the call was tried again.
    """
    planned = PlannedCall(
        request.agent_id, task_id, model_ref, request.purpose, estimated_prompt_tokens, request.max_tokens
    )
    call = _CallInProgress(
        environment, control, environment.live if shown else _NoViewers(), model_ref, request, planned,
        started_at=environment.clock.now(), began=environment.clock.monotonic(),
    )  # fmt: skip
    limits = environment.usage_limits
    try:
        call.reply = await control.abandonable(call.run())
        reach("model.replied")
        call.retries = max(call.retries, call.reply.retries)
    except ModelError as failed:
        call.error = limits.note(model_ref, failed) if call.was_made else failed
        call.retries = max(call.retries, failed.retries)
    except _OverBudget as over:
        call.refused = over.reached
    except Interrupted:
        pass
    except BaseException:
        if abandoned is not None and (call.partial is not None or call.charges):
            abandoned(call.result())
        elif call.reservation is not None:
            call.reservation.release()  # nothing of this call will be recorded
        raise
    finally:
        control.set_waiting(False)
        if call.tests_limit:
            limits.end_test(model_ref, succeeded=call.reply is not None)
    return call.result()


async def call_beside(
    environment: Environment,
    agent: Agent,
    request: ModelRequest,
    *,
    model: str | None = None,
    turn: int,
    estimated_prompt_tokens: int,
    spent: UsageAccumulator | None,
) -> str:
    """Call a model (None: the agent's) in the background of its loop, at low priority; returns the text of the reply.

    The call is added to `spent` with the agent's `turn`, with or without a reply. A call that no budget
    covers is not made.

    Raises:
        ModelError: the call failed, or was not made.
    """
    called = await call_model(
        environment,
        AgentControl(),
        model or agent.model,
        request,
        estimated_prompt_tokens=estimated_prompt_tokens,
        task_id=agent.task_id,
        shown=False,
        abandoned=None if spent is None else lambda called: spent.calls.append((called, turn)),
    )
    if spent is not None and called.was_made:
        spent.calls.append((called, turn))
    elif called.reservation is not None:
        called.reservation.release()
    if called.refused is not None:
        raise ModelError(called.refused.reason, kind=ErrorKind.FAIL)
    if called.reply is None:
        raise called.error or RuntimeError("the call was abandoned")
    return "\n".join(str(b.get("text", "")) for b in called.reply.content if b.get("type") == "text")
