"""The background passes over one agent's memory, in the rows of `compactions`.

A pass is a summary, or the work of an observer or a reflector. Its row is `running` while the model writes,
`prepared` once there is a text, and `applied` when the context contains it, in one transaction with the new
view; or `rejected`, `abandoned`, or `skipped` because the agent ended first. A text is stored at once; after a crash
the next host takes it over, so that none that was paid for is lost. A pass that a person or the agent requested is an order: if a crash or a
pause interrupts it, it begins again when the agent continues. If a pass is late, the context's own digest keeps
the bound meanwhile. The engine decides; this module asks the models and writes the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import Any

from watchkeeper.agents.agent_state import HEADING_TOKENS, AgentMemory, tokens_replaced
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.model_call import UsageAccumulator, call_beside
from watchkeeper.memory.buffering import ObservationChunk
from watchkeeper.memory.compactor import Compactor, PassOutcome, request_of
from watchkeeper.memory.engine import (
    MOST_WRITTEN,
    Engine,
    ObservationalSettings,
    PassTask,
    TokenCosts,
    can_pay,
    is_needed,
    most_written,
)
from watchkeeper.memory.history import Change, CompactionPass, Prepared, Rejection
from watchkeeper.memory.tokens import count_message
from watchkeeper.models.registry import SURVEYOR
from watchkeeper.records.compactions import CompactionResult
from watchkeeper.records.errors import STORE_LOST, BadInput
from watchkeeper.records.messages import Block, ModelRequest, ObservationKind, Purpose, Usage
from watchkeeper.records.states import TaskStatus
from watchkeeper.store import messages as rows
from watchkeeper.store import plans
from watchkeeper.store.agents import Agent
from watchkeeper.store.driver import decode, encode
from watchkeeper.store.transaction import Transaction

OBSERVED = {ObservationKind.OBSERVATION: "observer", ObservationKind.REFLECTION: "reflector"}
"""Triggers of the rows of observers and reflectors."""

ORDERED = ("manual", "agent")
"""Triggers of passes on request; the others begin by themselves when they are due."""

WINDOW_SLACK = 1.2
"""By how much a model may count more tokens than we do."""

CHANGED = "the context changed while the summary was written"
OVERTAKEN = "a digest replaced more than the summary covers; restarting"

DIED, AGAIN = "its background process stopped", "restarts when the agent continues"

ROOM_SHARE = 0.75
"""How full a context may be, as a share of the threshold, after a summary has replaced a smaller digest."""


@dataclass(slots=True)
class _Row:
    """The record of a pass that has not ended."""

    id: int
    trigger: str
    model: str
    tokens_before: int
    began: float | None
    """None: an earlier host began it, and has stored what it cost."""
    spent: UsageAccumulator = field(default_factory=UsageAccumulator)


class CompactionRunner:
    """Begins, publishes and abandons the passes over one agent's memory; at most one of each kind runs."""

    def __init__(self, environment: Environment, agent: Agent, memory: AgentMemory) -> None:
        self._environment = environment
        self._agent = agent
        self._memory = memory
        compactor = Compactor(memory.state, write=self._write, monotonic=environment.clock.monotonic)
        settings = ObservationalSettings() if environment.settings.observational else None
        self._engine = Engine(compactor, settings, keep=self._keep)
        self._rows: dict[tuple[ObservationKind, int], _Row] = {}
        """By kind and last message: the passes that run, and chunks that are not applied yet."""
        self._cached_tokens = 0
        self._restarted = False
        self._turn = agent.turn
        self._is_ending = False

    def note_turn(self, turn: int) -> None:
        """The agent's newest turn: that of the calls that begin from now on."""
        self._turn = turn

    def note_ending(self, is_ending: bool) -> None:
        """Whether the agent is about to end, as far as can be known: no observer and no reflector begins for it."""
        self._is_ending = is_ending

    def note_usage(self, usage: Usage) -> None:
        """What the last turn read from, and wrote to, the provider's prompt cache."""
        self._cached_tokens = usage.cache_read_tokens + usage.cache_write_tokens

    @property
    def outlives_loop(self) -> bool:
        """Whether a pass is running that may continue, and be applied, while the agent waits."""
        return self._engine.summary is not None and self._engine.settings is None

    async def ready(self) -> None:
        """Wait until the running summary can be published, if there is one."""
        if self._engine.summary is not None:
            await asyncio.wait({self._engine.summary.task})

    async def at_boundary(self) -> None:
        """Between two steps: publish what is ready, and begin what is due. Waits for no model."""
        await self.land()
        if self._environment.usage_limits.is_closed(self._memory_model()):
            return  # a usage limit closes the model, so no compaction can start
        if self._engine.settings is not None:
            for change in self._engine.advance(at=self._environment.clock.now(), needed=self._is_needed):
                await self._write_change(change)
            await self._reject_void()
        elif self._engine.is_overtaken and not self._restarted:
            await self._restart()
        elif self._engine.is_due() and not self._engine.back_off(self._unpaid()):
            await self.begin(trigger="auto")

    async def make_room(self, content: list[Block]) -> None:
        """Before an answer to the agent's calls is added: put what observers have written in place of its messages, where a
        digest would have to take it otherwise. Waits for no model."""
        if self._engine.settings is None or not self._engine.coordinator.has_completed_chunks():
            return
        tokens = count_message("user", content, self._environment.counter)
        for change in self._engine.make_room(tokens, at=self._environment.clock.now()):
            await self._write_change(change)

    async def land(self) -> None:
        """Publish the running summary, if it is ready."""
        flight = self._engine.summary
        if flight is not None and flight.task.done():
            await self._land(flight)

    async def begin(
        self,
        *,
        trigger: str,
        up_to: int | None = None,
        instructions: str | None = None,
        model: str | None = None,
        command: int | None = None,
        also: Callable[[Transaction, CompactionPass], None] | None = None,
    ) -> CompactionPass | Rejection:
        """Begin a summary in the background; a `Rejection` says why not (one is running, or it would gain
        nothing).

        `model` writes it; None: the one for memory. `command` is the command that the pass carries out, recorded
        with its beginning. `also` writes more rows in the transaction in which the pass begins. So the caller
        never reports a pass that did not begin, and never requests again one that did.
        """
        run = self._engine.begin(up_to, instructions, due=trigger == "auto", pays=self._can_pay)
        if isinstance(run, Rejection):
            return run
        try:
            await self._begin_row(run, trigger, model, command, also)
        except BaseException:
            self._engine.compactor.end()
            raise
        self._engine.start(run)
        return run

    def _unpaid(self) -> int:
        """How many of the newest passes that cost something, in a row, have spared less than that so far."""
        store = self._environment.store
        found = rows.worth(store, store.session_id, self._agent.id)
        paid = {number: worth["pays"] for number, worth in found.items() if worth["tokens_spent"]}
        paid |= dict.fromkeys(rows.wasted_passes(store, self._agent.id), False)
        return sum(1 for _ in takewhile(lambda number: not paid[number], sorted(paid, reverse=True)))

    def _can_pay(self, run: CompactionPass) -> bool:
        return can_pay(run, self._memory.state, self._turn, self._rates(run), self._calls_left(run))

    def _is_needed(self, run: CompactionPass) -> bool:
        """Whether an observer or a reflector may begin: not for an agent that is about to end."""
        if self._is_ending or self._plan_has_ended():
            return False
        return is_needed(run, self._memory.state, self._turn, self._calls_left(run))

    def _plan_has_ended(self) -> bool:
        """Whether the agent is a planner whose tasks are all done: it ends the session next, as a rule."""
        if self._agent.task_id is not None:
            return False
        tasks = plans.all_task_states(self._environment.store, self._environment.session_id)
        return bool(tasks) and all(task.status in (TaskStatus.DONE, TaskStatus.DROPPED) for task in tasks)

    def _calls_left(self, run: CompactionPass) -> float:
        """How many more calls the agent's limits leave it."""
        state, environment = self._memory.state, self._environment
        prompt = max(0, state.tokens - run.source_tokens) + state.limits.overhead_tokens
        left = environment.budgets.calls_left(self._agent.task_id, self._agent.model, prompt)
        return min(left, environment.settings.most_turns - self._turn)

    def _memory_model(self, run: CompactionPass | None = None) -> str:
        """The model that writes the agent's memory: its own, if the other one cannot be used, or its window does not
        hold what is to be read."""
        environment, own = self._environment, self._agent.model
        model = environment.memory_model(self._agent.role) or own
        if own == SURVEYOR:
            return own  # it writes its memory by itself, with no key and no network
        if run is not None and model != own:
            needed = run.source_tokens + environment.counter.count(run.previous or "") + 2 * MOST_WRITTEN
            try:
                window = environment.model(model).context_window
            except BadInput:
                return own
            return model if needed * WINDOW_SLACK <= window else own
        return model

    def _rates(self, run: CompactionPass) -> TokenCosts:
        """What the tokens of a pass and of the agent's calls cost, compared with the agent's fresh input."""
        thousand = 1_000

        def price(model: str, usage: Usage) -> float:
            return self._environment.price(model, usage, True).usd or 0.0

        own, writer = self._agent.model, self._memory_model(run)
        fresh = price(own, Usage(input_tokens=thousand))
        if not fresh:
            return TokenCosts()
        return TokenCosts(
            read=price(writer, Usage(input_tokens=thousand)) / fresh,
            output=price(writer, Usage(output_tokens=thousand)) / fresh,
            cache_read=price(own, Usage(cache_read_tokens=thousand)) / fresh,
            cache_write=price(own, Usage(cache_write_tokens=thousand)) / fresh,
        )

    async def _restart(self) -> None:
        """A digest has replaced more than the running pass reads: its summary alone would not make room. One that
        was ordered ends at its mark."""
        flight = self._engine.summary
        assert flight is not None
        row = self._rows[flight.run.kind, flight.run.high_water]
        if row.trigger in ORDERED:
            return
        self._engine.abandon(OVERTAKEN)
        await self._end(self._rows.pop((flight.run.kind, flight.run.high_water)), "abandoned", OVERTAKEN)
        self._restarted = True
        await self.begin(trigger="auto")

    async def run(
        self,
        *,
        trigger: str,
        up_to: int | None = None,
        instructions: str | None = None,
        model: str | None = None,
        command: int | None = None,
        also: Callable[[Transaction, PassOutcome], None] | None = None,
    ) -> PassOutcome | Rejection:
        """A whole pass, waited for: where no loop runs. `also` writes more in the transaction in which the
        pass ends."""
        begun = await self.begin(
            trigger=trigger, up_to=up_to, instructions=instructions, model=model, command=command
        )
        if isinstance(begun, Rejection):
            return begun
        assert self._engine.summary is not None
        await self._engine.summary.task
        return await self._land(self._engine.summary, also)

    def drop(self) -> None:
        """Stop everything without a record, because the store takes none any more; `take_over` finds it."""
        self._engine.abort()

    async def abandon(self, reason: str, *, goes_on: bool = False, finished: bool = False) -> None:
        """The loop ends: abandon what runs; only its record stays. Written chunks wait for a loop that resumes.

        `goes_on`: the agent only pauses, so `take_over` will restart a requested pass. `finished`: what no person and no
        agent ordered is not needed any more, and skipped; so are observers and reflectors in any case, since a loop that
        resumes begins others.
        """
        await self._engine.stop()
        ended, self._rows = list(self._rows.values()), {}
        waiting = {found.id for found in self._unfinished() if _is_chunk(found)}
        for row in ended:
            observed = row.trigger in OBSERVED.values() and row.id not in waiting
            if observed or (finished and row.trigger not in ORDERED):
                await self._end(row, "skipped", reason)
            elif row.id not in waiting:
                again = goes_on and row.trigger in ORDERED
                await self._end(row, "abandoned", f"{reason}; {AGAIN}" if again else reason)

    async def take_over(self, *, begin_again: bool = True) -> None:
        """After a crash or a pause: publish a prepared summary, take up written chunks, and abandon what was
        running.

        `begin_again`: restart an unfinished pass on request now, from the same message, with the same
        instructions, unless an undo came since.
        """
        chunks: list[ObservationChunk] = []
        for found in self._unfinished():
            row = _Row(found.id, found.trigger, found.model, found.tokens_before, None)
            if self._engine.settings is not None and _is_chunk(found):
                chunks.append(_chunk(str(found.prepared)))
                self._rows[ObservationKind.OBSERVATION, chunks[-1].covers[1]] = row
            elif found.prepared and rows.moved_by_hand_since(self._environment.store, self._agent.id, found):
                await self._end(row, "rejected", CHANGED)
            elif found.prepared and found.trigger not in OBSERVED.values():
                outcome = self._engine.compactor.republish(
                    _prepared(found.prepared), at=self._environment.clock.now()
                )
                await self._publish_row(row, outcome)
            elif begin_again and self._may_begin_again(found):
                await self._begin_again(found)
            else:
                await self._end(row, "abandoned", DIED)
        if begin_again and self._engine.summary is None:
            last = rows.last_pass(self._environment.store, self._agent.id, ORDERED)
            if last is not None and last.reason.endswith(AGAIN) and self._may_begin_again(last):
                await self._begin_again(last)
        self._engine.restore(chunks)
        await self._reject_void()

    def _unfinished(self) -> list[rows.ReadingPass]:
        return rows.unfinished_passes(self._environment.store, self._agent.id)

    def _may_begin_again(self, found: rows.ReadingPass) -> bool:
        store = self._environment.store
        return found.trigger in ORDERED and not rows.moved_by_hand_since(store, self._agent.id, found)

    async def _begin_again(self, found: rows.ReadingPass) -> None:
        """Restart an unfinished pass on request: its end and the new beginning are written in one
        transaction."""

        def end(tx: Transaction, why: str) -> None:
            if found.status == "running":
                ended = CompactionResult(status="abandoned", reason=why)
                rows.end_compaction(tx, self._agent.id, found.id, ended)

        begun = await self.begin(
            trigger=found.trigger,
            up_to=found.high_water,
            instructions=found.instructions,
            model=found.model,
            also=lambda tx, _: end(tx, f"{DIED}; restarted"),
        )
        if not isinstance(begun, Rejection):
            return
        refused = begun.reason

        def refuse(tx: Transaction) -> None:
            end(tx, f"{DIED}; not restarted: {refused}")
            if found.status != "running":  # it was put off: its own record has ended
                again = self._insert_row(
                    tx, found.trigger, found.instructions, found.high_water, model=found.model
                )
                ended = CompactionResult(status="rejected", reason=refused)
                rows.end_compaction(tx, self._agent.id, again, ended)

        await self._environment.store.commit(refuse)

    # --- one pass -------------------------------------------------------------------------------------------

    async def _write(self, run: CompactionPass, instructions: str | None) -> str:
        """Ask the model of a pass for its text, at background priority; the call is recorded with the pass."""
        environment = self._environment
        flight = self._engine.summary
        is_summary = run.kind is ObservationKind.SUMMARY
        # a summary may be asked for in parts, each with a mark of its own
        mark = flight.run.high_water if is_summary and flight is not None else run.high_water
        row = self._rows.get((run.kind, mark))
        if row is None:
            row = await self._begin_row(run, OBSERVED[run.kind])
        system, prompt = request_of(run, instructions)
        observes = run.kind is ObservationKind.OBSERVATION
        request = ModelRequest(
            system=system,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=min(most_written(run), environment.settings.max_output_tokens),
            purpose=Purpose.OBSERVER if observes else Purpose.REFLECTOR,
            agent_id=self._agent.id,
            effort=environment.settings.memory_effort,
        )
        return await call_beside(
            environment,
            self._agent,
            request,
            model=row.model,
            turn=self._turn,
            estimated_prompt_tokens=run.source_tokens if is_summary else environment.counter.count(prompt),
            spent=row.spent,
        )

    async def _keep(self, run: CompactionPass, prepared: Prepared) -> None:
        """A pass has its text: it is stored before it is needed. Reflections are not: they are made again."""
        row = self._rows.get((run.kind, run.high_water))
        if row is None or run.kind is ObservationKind.REFLECTION:
            return
        text = encode(asdict(prepared))
        spent = row.spent.take()

        def write(tx: Transaction) -> None:
            cost = spent.record(tx, self._agent.id)
            rows.keep_prepared(tx, self._agent.id, row.id, text, cost_usd=cost, tokens_spent=spent.all_tokens)

        await self._environment.store.commit(write)

    async def _land(
        self, flight: PassTask, also: Callable[[Transaction, PassOutcome], None] | None = None
    ) -> PassOutcome:
        error = None if flight.task.cancelled() else flight.task.exception()
        outcome = self._engine.publish(flight, at=self._environment.clock.now(), refuse=self._refuse)
        if error is not None and (isinstance(error, STORE_LOST) or not isinstance(error, Exception)):
            raise error
        self._restarted = False
        row = self._rows.pop((flight.run.kind, flight.run.high_water))
        await self._publish_row(row, outcome, also)
        return outcome

    def _refuse(self, prepared: Prepared) -> str | None:
        """Why a summary is not applied although it could be: a digest in its place already leaves more room."""
        state = self._memory.state
        last = prepared.covers[1]
        covered = [one for one in state.view.observations if one.covers[1] <= last]
        replaced = tokens_replaced(state, last)
        needed = prepared.tokens + HEADING_TOKENS
        if needed >= replaced and not any(one.provisional for one in covered):
            return f"the summary ({needed} tokens) would be as long as the messages it replaces ({replaced})"
        after = state.tokens - replaced + prepared.tokens
        if prepared.tokens > replaced and after > state.threshold * ROOM_SHARE:
            return (
                f"a digest of {replaced} tokens is in use; "
                f"the summary needs {prepared.tokens} and does not fit"
            )
        return None

    # --- rows -----------------------------------------------------------------------------------------------

    async def _begin_row(
        self,
        run: CompactionPass,
        trigger: str,
        model: str | None = None,
        command: int | None = None,
        also: Callable[[Transaction, CompactionPass], None] | None = None,
    ) -> _Row:
        tokens_before = self._memory.state.tokens
        writer = model or self._memory_model(run)

        def write(tx: Transaction) -> int:
            if also is not None:
                also(tx, run)
            instructions = None if run.kind in OBSERVED else run.instructions
            return self._insert_row(
                tx, trigger, instructions, run.high_water, tokens_before, command, model=writer
            )

        committing = asyncio.ensure_future(self._environment.store.commit(write))
        try:
            return self._begun(run, trigger, writer, tokens_before, await asyncio.shield(committing))
        except asyncio.CancelledError:
            # The row is written all the same: whoever ends the passes must know of it, or it runs for ever.
            with suppress(Exception):
                self._begun(run, trigger, writer, tokens_before, await committing)
            raise

    def _begun(self, run: CompactionPass, trigger: str, writer: str, tokens_before: int, number: int) -> _Row:
        row = _Row(number, trigger, writer, tokens_before, self._environment.clock.monotonic())
        self._rows[run.kind, run.high_water] = row
        return row

    def _insert_row(
        self,
        tx: Transaction,
        trigger: str,
        instructions: str | None,
        high_water: int,
        tokens_before: int | None = None,
        command: int | None = None,
        *,
        model: str,
    ) -> int:
        return rows.begin_compaction(
            tx,
            self._agent.id,
            trigger=trigger,
            instructions=instructions,
            high_water=high_water,
            tokens_before=self._memory.state.tokens if tokens_before is None else tokens_before,
            model=model,
            command=command,
        )

    async def _write_change(self, change: Change) -> None:
        """One move of the view, with the records of the observers or the reflector whose texts it holds."""
        recorded = self._memory.record(change)
        kind = {"activation": ObservationKind.OBSERVATION, "reflection": ObservationKind.REFLECTION}.get(
            change.reason
        )
        covered = [one.covers for one in change.observations]
        keys = sorted(
            key
            for key in self._rows
            if key[0] is kind and any(first <= key[1] <= last for first, last in covered)
        )
        made = [self._rows.pop(key) for key in keys]

        def write(tx: Transaction) -> None:
            for row in made[:-1]:
                self._write_end(
                    tx, row, "applied", f"{change.reason}, merged with the next one", joined=change
                )
            recorded.write(tx, compaction_id=made[-1].id if made else None)
            if made:
                self._write_end(tx, made[-1], "applied", change.reason, change)

        await self._environment.store.commit(write)

    async def _reject_void(self) -> None:
        """End the rows of chunks and reflections that the engine has dropped: the context was changed, or the
        text could not be used."""
        held = self._engine.held()
        for key in [key for key in self._rows if key[0] in OBSERVED and key not in held]:
            observed = key[0] is ObservationKind.OBSERVATION
            why = CHANGED if observed else "the output was not usable"
            await self._end(self._rows.pop(key), "rejected", why)

    async def _publish_row(
        self,
        row: _Row,
        outcome: PassOutcome,
        also: Callable[[Transaction, PassOutcome], None] | None = None,
    ) -> None:
        """The end of a summary, with the view that contains it."""
        change = outcome.change
        recorded = self._memory.record(change) if change is not None else None

        def write(tx: Transaction) -> None:
            if recorded is not None:
                recorded.write(tx, compaction_id=row.id)
            status = "applied" if outcome.applied else "rejected"
            self._write_end(tx, row, status, outcome.reason, change)
            if also is not None:
                also(tx, outcome)

        await self._environment.store.commit(write)

    async def _end(self, row: _Row, status: str, reason: str) -> None:
        await self._environment.store.commit(lambda tx: self._write_end(tx, row, status, reason))

    def _write_end(
        self,
        tx: Transaction,
        row: _Row,
        status: str,
        reason: str,
        change: Change | None = None,
        *,
        joined: Change | None = None,
    ) -> None:
        """`change`: what the pass made of the context; `joined`: the change of a later pass that holds its text too."""
        result = CompactionResult(
            status=status, reason=reason, cost_usd=row.spent.record(tx, self._agent.id),
            view_after=None if joined is None else joined.view.version,
        )  # fmt: skip
        if row.began is not None:
            seconds = self._environment.clock.monotonic() - row.began
            result = replace(result, tokens_spent=row.spent.all_tokens, seconds=seconds)
        if change is not None:
            observed = row.trigger in OBSERVED.values()
            result = replace(
                result,
                tokens_before=change.tokens_before if observed else None,
                tokens_after=change.tokens if observed else _tokens_after(row.tokens_before, change),
                messages_removed=change.messages_removed,
                high_water=change.high_water,
                view_before=change.views[0].parent if change.views else None,
                view_after=change.view.version,
                cache_tokens_invalidated=min(self._cached_tokens, change.cache_tokens_invalidated),
            )
        rows.end_compaction(tx, self._agent.id, row.id, result)


def _tokens_after(before: int, change: Change) -> int:
    """Tokens of the context with the summary in it; it took `before` tokens when the pass began.

    Messages added meanwhile count neither before nor after. If the summary takes more room than the digest
    that it replaces, the result is the size of the context now.
    """
    saved = change.tokens_before - change.tokens
    return max(0, before - saved) if saved > 0 else change.tokens


# --- Stored results -----------------------------------------------------------------------------------------


def _is_chunk(found: rows.ReadingPass) -> bool:
    """Whether an observer wrote it and it is not in the context yet."""
    return found.status == "prepared" and found.trigger == OBSERVED[ObservationKind.OBSERVATION]


def _prepared(text: str) -> Prepared:
    """A pass's result as it was stored."""
    fields: dict[str, Any] = decode(text)
    for name in ("covers", "citations", "replaces", "refused"):
        fields[name] = tuple(fields[name])
    return Prepared(**fields | {"kind": ObservationKind(fields["kind"])})


def _chunk(text: str) -> ObservationChunk:
    """An observer's result as it was stored: as a `Prepared`, or in older databases as a chunk with its range."""
    fields = decode(text)
    if "chunk" in fields:
        first, last, citations = fields["range"]
        return ObservationChunk(**fields["chunk"], covers=(first, last), citations=tuple(citations))
    made = _prepared(text)
    return ObservationChunk(
        observations=made.text,
        message_tokens_observed=made.source_tokens,
        created_at=0.0,
        current_task=made.current_task,
        suggested_response=made.suggested_response,
        covers=made.covers,
        citations=made.citations,
    )
