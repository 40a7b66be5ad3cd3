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
from watchkeeper.records import errors
from watchkeeper.records.errors import HostFault, StoreUnusable, raising_host_faults
from watchkeeper.records.messages import (
    Cost,
    Delta,
    ErrorKind,
    ModelError,
    ModelRequest,
    PriceStatus,
    Purpose,
    Reply,
    Retrying,
    Usage,
    UsageSoFar,
)
from watchkeeper.records.states import ModelCallStatus
from watchkeeper.records.text import cut
from watchkeeper.store import agents, budgets
from watchkeeper.store.agents import Agent
from watchkeeper.store.faultpoints import reach
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
            agents.add_model_call(
                tx,
                agent_id=agent_id,
                turn=turn if self.reply is not None else max(0, turn - 1),
                purpose=charge.purpose,
                model=charge.model_ref,
                status=charge.status,
                usage=charge.usage,
                cost=charge.cost,
                started_at=self.started_at,
                latency_seconds=0.0,
                error=charge.error,
                request_id=charge.request_id,
                usage_exact=charge.exact,
            )
        request_id = self.partial.request_id if self.partial is not None else None
        return agents.add_model_call(
            tx,
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
    clock, agent_id = environment.clock, request.agent_id
    live: LiveBoard = environment.live if shown else _NoViewers()
    started_at, began = clock.now(), clock.monotonic()
    planned = PlannedCall(
        agent_id, task_id, model_ref, request.purpose, estimated_prompt_tokens, request.max_tokens
    )
    waited = 0.0
    retries = 0
    reservation: Reservation | None = None
    limits = environment.usage_limits
    tests = was_made = False
    partial: UsageSoFar | None = None
    charges: list[Charge] = []
    attempts = 0
    begun: dict[int, int] = {}

    def note_begun(counted: UsageSoFar) -> None:
        nonlocal attempts
        attempts += 1
        store, now, attempt = environment.store, clock.now(), attempts

        def write(group: Group) -> None:
            # The record may be in the same group, whose commit it does not wait for. A group may be written again.
            tx = Transaction(group, store.session_id, store.epoch, now)
            begun[attempt] = agents.begin_model_call(
                tx, agent_id=agent_id, purpose=request.purpose, model=model_ref, usage=counted.usage,
                started_at=started_at, request_id=counted.request_id,
            )  # fmt: skip

        with suppress(StoreUnusable):  # the call goes on; its record will meet the same fault
            store.writer.submit(write)

    def charge_side_calls(of: Reply | UsageSoFar) -> None:
        provider = model_ref.partition("/")[0]
        for side in of.side_calls:
            ref = f"{provider}/{side.model}" if side.model else model_ref
            cost = environment.price(ref, side.usage, side.exact, of.modifiers)
            charges.append(
                Charge(side.kind, ref, ModelCallStatus.DONE, side.usage, cost, side.exact, of.request_id)
            )

    def charge_broken(reason: str) -> None:
        """The attempt that ran has ended without a reply, and another one follows."""
        nonlocal partial
        broken, partial = partial, None
        if broken is None:
            return
        cost = environment.price(model_ref, broken.usage, False, broken.modifiers, broken.searches)
        charges.append(
            Charge(request.purpose, model_ref, ModelCallStatus.ERROR, broken.usage, cost, False, broken.request_id,
                   cut(reason, 2000))
        )  # fmt: skip
        charge_side_calls(broken)

    async def converse() -> Reply:
        nonlocal waited, retries, reservation, was_made, partial
        live.show(agent_id, "slot", "waiting for a slot")
        control.set_waiting(True)
        if reservation is None:  # else the call is tried again
            reserved = await environment.budgets.reserve(planned)
            if isinstance(reserved, BudgetReached):
                raise _OverBudget(reserved)
            reservation = reserved
        gate = environment.gate(model_ref)
        async with AsyncExitStack() as held:

            async def enter() -> None:
                nonlocal tests
                while True:
                    await held.enter_async_context(gate.slot(request.purpose, agent_id))
                    # Asked with the slot in hand: others may have met a limit while this call waited for it.
                    admission = Admission.TEST if tests else limits.admit(model_ref)
                    tests = admission is Admission.TEST
                    if admission is not Admission.WAIT:
                        return
                    await held.aclose()
                    live.show(
                        agent_id, "slot", "waiting for one call that tests whether the usage limit has ended"
                    )
                    await limits.await_test(model_ref)

            await enter()
            waited = clock.monotonic() - began

            async def pause(seconds: float) -> None:
                # A call that waits for its next attempt holds no slot.
                await held.aclose()
                await clock.sleep(seconds)
                await enter()

            was_made = True
            control.set_waiting(False)
            live.show(agent_id, "working", "calling the model")
            reply: Reply | None = None
            model = environment.model(model_ref)
            async for event in model.stream(replace(request, pause=pause)):
                control.set_waiting(isinstance(event, Retrying))
                if isinstance(event, Delta):
                    live.stream(agent_id, event.text, event.kind)
                elif isinstance(event, UsageSoFar):
                    if partial is None and event.usage.total_tokens:
                        note_begun(event)
                    partial = event
                elif isinstance(event, Retrying):
                    charge_broken(event.reason)
                    retries = event.attempt
                    activity = "rate_limited" if event.rate_limited else "retrying"
                    if event.rate_limited:
                        gate.rate_limit(clock.now() + event.wait_seconds, event.reason)
                    live.show(agent_id, activity, event.reason, until=clock.now() + event.wait_seconds)
                else:
                    reply, partial = event, None
                    charge_side_calls(event)
        if reply is None:
            raise ModelError(f"{model_ref} ended its stream without a reply", kind=ErrorKind.RETRY)
        return reply

    reply: Reply | None = None
    error: ModelError | None = None
    refused: BudgetReached | None = None

    async def converse_with_retries() -> Reply:
        for wait_seconds in errors.RETRY_SECONDS:
            try:
                with raising_host_faults():
                    return await converse()
            except HostFault as fault:
                charge_broken(str(fault))
                live.show(agent_id, "retrying", str(fault), until=clock.now() + wait_seconds)
            control.set_waiting(True)
            await clock.sleep(wait_seconds)
        with raising_host_faults():
            return await converse()

    def result() -> ModelCallResult:
        if partial is not None:
            charge_side_calls(partial)
        cost = Cost(None, PriceStatus.UNPRICED)
        if reply is not None:
            cost = environment.price(
                model_ref, reply.usage, reply.usage_exact, reply.modifiers, reply.searches
            )
        elif partial is not None:
            cost = environment.price(model_ref, partial.usage, False, partial.modifiers, partial.searches)
        ended = ModelCallResult(
            reply=reply,
            error=error,
            cost=cost,
            started_at=started_at,
            waited_seconds=waited,
            latency_seconds=clock.monotonic() - began - waited,
            retries=retries,
            estimated_prompt_tokens=estimated_prompt_tokens,
            model_ref=model_ref,
            request=request,
            reservation=reservation,
            refused=refused,
            was_made=was_made or (refused is None and error is None),
            partial=partial,
            charges=tuple(charges),
            begun=begun,
        )
        if reservation is not None:
            turns = 1 if reply is not None and request.purpose in (Purpose.TURN, Purpose.PLANNER) else 0
            reservation.end(Usage(input_tokens=ended.tokens), ended.cost_usd, turns)
        return ended

    try:
        reply = await control.abandonable(converse_with_retries())
        reach("model.replied")
        retries = max(retries, reply.retries)
    except ModelError as failed:
        error = limits.note(model_ref, failed) if was_made else failed
        retries = max(retries, failed.retries)
    except _OverBudget as over:
        refused = over.reached
    except Interrupted:
        pass
    except BaseException:
        if abandoned is not None and (partial is not None or charges):
            abandoned(result())
        elif reservation is not None:
            reservation.release()  # nothing of this call will be recorded
        raise
    finally:
        control.set_waiting(False)
        if tests:
            limits.end_test(model_ref, succeeded=reply is not None)
    return result()


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
    if called.refused is not None:
        raise ModelError(called.refused.reason, kind=ErrorKind.FAIL)
    if called.reply is None:
        raise called.error or RuntimeError("the call was abandoned")
    return "\n".join(str(b.get("text", "")) for b in called.reply.content if b.get("type") == "text")
