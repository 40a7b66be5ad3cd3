"""Observational memory and compaction of one agent, in the background of its loop.

Each run of an observer or reflector is a row of `compactions`. The row is `running` while the model writes,
`prepared` once there is a text, and `applied` when the context contains it. A text is stored at once, so that
a crash loses none that was paid for. The engine decides; this module asks the models and writes the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from watchkeeper.agents.agent_memory import AgentMemory
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.model_call import UsageAccumulator, call_beside
from watchkeeper.memory.buffering import BufferingState, ObservationChunk, ObserverOutput, ReflectorOutput
from watchkeeper.memory.compactor import CompactionPass, Compactor, Pacer, PassOutcome
from watchkeeper.memory.history import Change, Prepared, Rejection
from watchkeeper.memory.observational import EngineState, ObservationalMemory
from watchkeeper.memory.prompts import (
    SUMMARY_SYSTEM,
    Complete,
    model_observer,
    model_reflector,
    summary_prompt,
)
from watchkeeper.records.errors import STORE_LOST
from watchkeeper.records.messages import Message, ModelRequest, ObservationKind, Purpose, Usage
from watchkeeper.store import messages
from watchkeeper.store import messages as rows
from watchkeeper.store.agents import Agent
from watchkeeper.store.driver import decode, encode
from watchkeeper.store.transaction import Transaction

OBSERVER, REFLECTOR = "observer", "reflector"
"""Triggers of the rows, by which a later host tells them from passes of a summariser."""

WRITTEN_TOKENS = 2_048
"""The longest text that a prompt requests."""


@dataclass(slots=True)
class _Row:
    """The record of one observer or reflector at work."""

    id: int
    high_water: int
    began: float
    spent: UsageAccumulator = field(default_factory=UsageAccumulator)


class ObserverRunner:
    """See the module's docstring. `advance` between two steps, and nothing waits for a model."""

    def __init__(self, environment: Environment, agent: Agent, memory: AgentMemory) -> None:
        self._environment = environment
        self._agent = agent
        self._memory = memory
        self._engine = ObservationalMemory(memory.state, self._observe, self._reflect, keep=self._keep)
        self._observed: dict[int, _Row] = {}
        """Rows of observers that are not applied yet, by the last message that each covers."""
        self._reflecting: _Row | None = None
        self.turn = agent.turn
        """The agent's newest turn."""
        self._tasks: set[asyncio.Task[object]] = set()

    async def advance(self) -> None:
        """Activate what is due, launch what pays, and write what changed. Waits for no model."""
        for change in self._engine.advance(at=self._environment.clock.now()):
            await self._write_change(change)
        await self._drop_void()

    async def restore(self) -> None:
        """After a crash or a pause: take up the chunks that were paid for; what was only running is
        abandoned."""
        chunks: list[ObservationChunk] = []
        ranges: list[tuple[int, int, tuple[int, ...]]] = []
        for row in self._open_rows():
            if row["status"] == "prepared" and row["trigger"] == OBSERVER:
                kept = decode(row["prepared"])
                first, last, citations = kept["range"]
                chunks.append(ObservationChunk(**kept["chunk"]))
                ranges.append((first, last, tuple(citations)))
                self._observed[last] = _Row(row["id"], last, self._environment.clock.monotonic())
            else:
                await self._end(
                    _Row(row["id"], 0, self._environment.clock.monotonic()), "abandoned", "its host stopped"
                )
        if chunks:
            self._engine.restore(EngineState(BufferingState(tuple(chunks), 0), tuple(ranges)))
        await self._drop_void()

    def drop(self) -> None:
        """Stop the running call, and write nothing of it."""
        self._engine.abort()
        for task in self._tasks:
            task.cancel()

    async def abandon(self, reason: str) -> None:
        """The loop ends: abandon running calls. Written chunks stay, for a loop that resumes."""
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        waiting = {row["id"] for row in self._open_rows() if row["status"] == "prepared"}
        for row in [*self._observed.values(), *([self._reflecting] if self._reflecting else [])]:
            if row.id not in waiting:
                await self._end(row, "abandoned", reason)
        self._observed, self._reflecting = {}, None

    # --- what the engine asks for ---------------------------------------------------------------------------

    async def _observe(
        self, messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        last = messages[-1].seq
        if last not in self._observed:
            self._observed[last] = await self._begin(OBSERVER, last)
        ask = model_observer(self._asking(Purpose.OBSERVER, self._observed[last]))
        return await ask(messages, previous, instruction)

    async def _reflect(self, observations: str, level: int, instruction: str | None) -> ReflectorOutput:
        if self._reflecting is None:
            covered = max((o.covers[1] for o in self._memory.state.view.observations), default=0)
            self._reflecting = await self._begin(REFLECTOR, covered)
        return await model_reflector(self._asking(Purpose.REFLECTOR, self._reflecting))(
            observations, level, instruction
        )

    async def _keep(
        self, output: ObserverOutput, place: tuple[int, int, tuple[int, ...]], tokens: int
    ) -> None:
        """An observer has written: what it wrote is stored before it is needed."""
        row = self._observed.get(place[1])
        if row is None:
            return
        chunk = ObservationChunk(
            observations=output.observations,
            message_tokens_observed=tokens,
            created_at=self._environment.clock.now(),
            current_task=output.current_task,
            suggested_response=output.suggested_response,
        )
        text = encode({"chunk": asdict(chunk), "range": place})
        spent = row.spent.take()

        def write(tx: Transaction) -> None:
            cost = spent.record(tx, self._agent.id)
            rows.keep_prepared(tx, self._agent.id, row.id, text, cost_usd=cost, tokens_spent=spent.all_tokens)

        await self._environment.store.commit(write)

    def _asking(self, purpose: Purpose, row: _Row) -> Complete:
        """How one row's model is asked: at background priority, its calls noted with the row."""

        async def complete(system: str, prompt: str) -> str:
            environment = self._environment
            request = ModelRequest(
                system=system,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=min(WRITTEN_TOKENS, environment.settings.max_output_tokens),
                purpose=purpose,
                agent_id=self._agent.id,
            )
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            tokens = environment.counter.count(prompt)
            return await call_beside(
                environment,
                self._agent,
                request,
                turn=self.turn,
                estimated_prompt_tokens=tokens,
                spent=row.spent,
            )

        return complete

    # --- rows -----------------------------------------------------------------------------------------------

    def _open_rows(self) -> list[Any]:
        """Observers and reflectors that have not ended, oldest first."""
        return self._environment.store.all(
            "SELECT id, trigger, status, prepared FROM compactions WHERE agent_id = ? AND trigger IN"
            " ('observer', 'reflector')"
            " AND status IN ('running', 'prepared') ORDER BY id",
            (self._agent.id,),
        )

    async def _begin(self, trigger: str, high_water: int) -> _Row:
        before, model = self._memory.state.tokens, self._agent.model
        number = await self._environment.store.commit(
            lambda tx: rows.begin_compaction(
                tx,
                self._agent.id,
                trigger=trigger,
                instructions=None,
                high_water=high_water,
                tokens_before=before,
                model=model,
            )
        )
        return _Row(number, high_water, self._environment.clock.monotonic())

    async def _write_change(self, change: Change) -> None:
        """One move of the view, with the records of those whose texts it is made of."""
        recorded = self._memory.record(change)
        high_water = change.high_water or 0
        made: list[_Row] = []
        if change.reason == "activation":
            made = [self._observed.pop(last) for last in sorted(self._observed) if last <= high_water]
        elif change.reason == "reflection" and self._reflecting is not None:
            made, self._reflecting = [self._reflecting], None

        def write(tx: Transaction) -> None:
            for row in made[:-1]:
                self._write_end(tx, row, "applied", f"{change.reason}, with the next one")
            recorded.write(tx, compaction_id=made[-1].id if made else None)
            if made:
                self._write_end(tx, made[-1], "applied", change.reason, change)

        await self._environment.store.commit(write)

    async def _drop_void(self) -> None:
        """End the rows of chunks and reflections that the engine holds no more: the context went another
        way."""
        held = self._engine.held_marks()
        for last in [last for last in self._observed if last not in held]:
            await self._end(
                self._observed.pop(last), "rejected", "the context was changed while it was written"
            )
        if self._reflecting is not None and not self._engine.is_reflecting:
            row, self._reflecting = self._reflecting, None
            await self._end(row, "rejected", "what it wrote could not be used")

    async def _end(self, row: _Row, status: str, reason: str) -> None:
        await self._environment.store.commit(lambda tx: self._write_end(tx, row, status, reason))

    def _write_end(
        self, tx: Transaction, row: _Row, status: str, reason: str, change: Change | None = None
    ) -> None:
        cost = row.spent.record(tx, self._agent.id)
        rows.end_compaction(
            tx,
            self._agent.id,
            row.id,
            status=status,
            reason=reason,
            tokens_before=change.tokens_before if change else None,
            tokens_after=change.tokens if change else None,
            messages_removed=change.messages_removed if change else 0,
            high_water=change.high_water if change else None,
            view_before=change.views[0].parent if change and change.views else None,
            view_after=change.view.version if change else None,
            cost_usd=cost,
            tokens_spent=row.spent.all_tokens or None,
            seconds=self._environment.clock.monotonic() - row.began,
            cache_tokens_invalidated=change.cache_tokens_invalidated if change else 0,
        )


# --- Compaction of an agent's context by a model ------------------------------------------------------------
#
# A pass runs in the background. It begins at a step boundary, is prepared while the agent works, and is
# published at a later boundary, in one transaction with its record. Its result is stored at once; after a
# crash the next host publishes it, so nothing is lost. A pass that a person or the agent requested is an
# order: if a crash or a pause interrupts it, it begins again when the agent continues. If a pass is late, the
# context's own digest keeps the bound meanwhile.

SUMMARY_TOKENS = 2_048
"""The longest summary that a prompt requests."""

HEADING_TOKENS = 160
"""What the context's own words around observations may take."""

ORDERED = ("manual", "agent")
"""Triggers of passes on request; the others begin by themselves when they are due."""

DIED, AGAIN = "the host that ran it stopped", "it is begun again when the agent goes on"

ROOM_SHARE = 0.75
"""How full a context may be, as a share of the threshold, after a summary has replaced a smaller digest."""


@dataclass(slots=True)
class _PassTask:
    """A pass between its begin and its end."""

    run: CompactionPass
    compaction_id: int
    trigger: str
    began: float
    tokens_before: int
    task: asyncio.Task[Prepared]
    spent: UsageAccumulator = field(default_factory=UsageAccumulator)


class CompactionRunner:
    """Begins, publishes and abandons the passes over one agent's memory; at most one runs."""

    def __init__(self, environment: Environment, agent: Agent, memory: AgentMemory) -> None:
        self._environment = environment
        self._agent = agent
        self._memory = memory
        self._compactor = Compactor(memory.state, write=self._write, monotonic=environment.clock.monotonic)
        self._observing = (
            ObserverRunner(environment, agent, memory) if environment.settings.observational else None
        )
        self._pacer = Pacer()
        self._flight: _PassTask | None = None
        self._cached_tokens = 0
        self._turn = agent.turn

    def note_turn(self, turn: int) -> None:
        """The agent's newest turn: that of the calls that begin from now on."""
        self._turn = turn
        if self._observing is not None:
            self._observing.turn = turn

    @property
    def outlives_loop(self) -> bool:
        """Whether a pass is running that may continue, and be applied, while the agent waits."""
        return self._flight is not None and self._observing is None

    async def ready(self) -> None:
        """Wait until the running pass can be published, if there is one."""
        if self._flight is not None:
            await asyncio.wait({self._flight.task})

    def note_usage(self, usage: Usage) -> None:
        """What the last turn read from, and wrote to, the provider's prompt cache."""
        self._cached_tokens = usage.cache_read_tokens + usage.cache_write_tokens

    async def at_boundary(self) -> None:
        """Between two steps: publish a pass that is ready, and begin one that is due. Waits for no model."""
        await self.land()
        if self._environment.usage_limits.is_closed(self._agent.model):
            return  # nothing is begun that its model cannot be asked for
        if self._observing is not None:
            await self._observing.advance()
            return
        clock, state = self._environment.clock, self._memory.state
        self._pacer.grew(clock.monotonic(), state.total_tokens)
        if self._flight is None and self._pacer.due(
            state, clock.monotonic(), self._compactor.expected_seconds()
        ):
            begun = await self.begin(trigger="auto")
            if isinstance(begun, Rejection):
                self._pacer.ended(state, gained=False)
            else:
                self._pacer.started(clock.monotonic())

    async def land(self) -> None:
        """Publish the running pass, if it is ready."""
        flight = self._flight
        if flight is not None and flight.task.done():
            await self._land(flight)

    async def begin(
        self,
        *,
        trigger: str,
        up_to: int | None = None,
        instructions: str | None = None,
        command: int | None = None,
        also: Callable[[Transaction, CompactionPass], None] | None = None,
    ) -> CompactionPass | Rejection:
        """Begin a pass in the background; a `Rejection` says why not (one is running, or it would gain
        nothing).

        `command` is the command that the pass carries out, recorded with its beginning. `also` writes more
        rows in the transaction in which the pass begins. So the caller never reports a pass that did not
        begin, and never requests again one that did.
        """
        run = self._compactor.begin(up_to, instructions)
        if isinstance(run, Rejection):
            return run
        before = self._memory.state.tokens
        model = self._agent.model

        def write(tx: Transaction) -> int:
            if also is not None:
                also(tx, run)
            return rows.begin_compaction(
                tx,
                self._agent.id,
                trigger=trigger,
                instructions=instructions,
                high_water=run.high_water,
                tokens_before=before,
                model=model,
                command=command,
            )

        try:
            compaction_id = await self._environment.store.commit(write)
        except BaseException:
            self._compactor.end()
            raise
        task = asyncio.create_task(self._prepare(run, compaction_id), name=f"compaction-{self._agent.id}")
        self._flight = _PassTask(
            run, compaction_id, trigger, self._environment.clock.monotonic(), before, task
        )
        return run

    async def run(
        self,
        *,
        trigger: str,
        up_to: int | None = None,
        instructions: str | None = None,
        command: int | None = None,
        also: Callable[[Transaction, PassOutcome], None] | None = None,
    ) -> PassOutcome | Rejection:
        """A whole pass, waited for: where no loop runs. `also` writes more in the transaction in which the
        pass ends."""
        begun = await self.begin(trigger=trigger, up_to=up_to, instructions=instructions, command=command)
        if isinstance(begun, Rejection):
            return begun
        assert self._flight is not None
        await self._flight.task
        return await self._land(self._flight, also)

    async def abandon(self, reason: str, *, goes_on: bool = False) -> None:
        """Abandon the running pass; only its record stays.

        `goes_on`: the agent only pauses, so `take_over` will restart a requested pass.
        """
        if self._observing is not None:
            await self._observing.abandon(reason)
        flight, self._flight = self._flight, None
        if flight is None:
            return
        if goes_on and flight.trigger in ORDERED:
            reason = f"{reason}; {AGAIN}"
        flight.task.cancel()
        await asyncio.gather(flight.task, return_exceptions=True)
        self._compactor.end()
        await self._environment.store.commit(
            lambda tx: self._write_end(tx, flight, status="abandoned", reason=reason)
        )

    def drop(self) -> None:
        """Stop the running pass without a record, because the store takes none any more; `take_over` finds
        it."""
        if self._observing is not None:
            self._observing.drop()
        if self._flight is not None:
            self._flight.task.cancel()

    async def take_over(self, *, begin_again: bool = True) -> None:
        """After a crash or a pause: publish a prepared pass, and abandon one that was running.

        `begin_again`: restart an unfinished pass on request now, from the same message, with the same
        instructions, unless an undo came since.
        """
        store = self._environment.store
        for found in messages.unfinished_passes(store, self._agent.id):
            outcome = None
            observed = found.trigger in (OBSERVER, REFLECTOR)
            if observed and self._observing is not None:
                continue
            if found.prepared and not observed:
                outcome = self._compactor.republish(_load(found.prepared), at=self._environment.clock.now())
            elif (
                begin_again
                and found.trigger in ORDERED
                and not messages.moved_by_hand_since(store, self._agent.id, found)
            ):
                await self._begin_again(found)
                continue
            await self._write_outcome(found, outcome, DIED)
        put_off = (
            messages.last_pass(store, self._agent.id, ORDERED)
            if begin_again and self._flight is None
            else None
        )
        if (
            put_off is not None
            and put_off.reason.endswith(AGAIN)
            and not messages.moved_by_hand_since(store, self._agent.id, put_off)
        ):
            await self._begin_again(put_off)
        if self._observing is not None:
            await self._observing.restore()

    async def _begin_again(self, found: messages.ReadingPass) -> None:
        """Restart an unfinished pass on request: its end and the new beginning are written in one
        transaction."""

        def end(tx: Transaction, why: str) -> None:
            if found.status == "running":
                rows.end_compaction(tx, self._agent.id, found.id, status="abandoned", reason=why)

        begun = await self.begin(
            trigger=found.trigger,
            up_to=found.high_water,
            instructions=found.instructions,
            also=lambda tx, _: end(tx, f"{DIED}; begun again"),
        )
        if isinstance(begun, Rejection):
            refused = f"{DIED}; not begun again: {begun.reason}"
            if found.status == "running":
                await self._environment.store.commit(lambda tx: end(tx, refused))
            else:
                await self._environment.store.commit(lambda tx: self._refuse(tx, found, begun.reason))

    def _refuse(self, tx: Transaction, found: messages.ReadingPass, reason: str) -> None:
        """Say that what was put off does not begin again."""
        state = self._memory.state
        again = rows.begin_compaction(
            tx,
            self._agent.id,
            trigger=found.trigger,
            instructions=found.instructions,
            high_water=found.high_water,
            tokens_before=state.tokens,
            model=self._agent.model,
        )
        rows.end_compaction(tx, self._agent.id, again, status="rejected", reason=reason)

    # --- one pass -------------------------------------------------------------------------------------------

    async def _prepare(self, run: CompactionPass, compaction_id: int) -> Prepared:
        prepared = await self._compactor.prepare(run)
        text = encode(asdict(prepared))
        spent = self._flight.spent.take() if self._flight is not None else UsageAccumulator()

        def write(tx: Transaction) -> None:
            cost = spent.record(tx, self._agent.id)
            rows.keep_prepared(
                tx, self._agent.id, compaction_id, text, cost_usd=cost, tokens_spent=spent.all_tokens
            )

        await self._environment.store.commit(write)
        return prepared

    async def _write(self, run: CompactionPass, instructions: str | None) -> str:
        """Ask the agent's own model for the summary, at background priority."""
        environment = self._environment
        request = ModelRequest(
            system=SUMMARY_SYSTEM,
            messages=[{"role": "user", "content": summary_prompt(run, instructions)}],
            max_tokens=min(SUMMARY_TOKENS, environment.settings.max_output_tokens),
            purpose=Purpose.REFLECTOR,
            agent_id=self._agent.id,
        )
        spent = self._flight.spent if self._flight is not None else None
        return await call_beside(
            environment,
            self._agent,
            request,
            turn=self._turn,
            estimated_prompt_tokens=run.source_tokens,
            spent=spent,
        )

    async def _land(
        self, flight: _PassTask, also: Callable[[Transaction, PassOutcome], None] | None = None
    ) -> PassOutcome:
        self._flight = None
        state = self._memory.state
        error = None if flight.task.cancelled() else flight.task.exception()
        if flight.task.cancelled() or error is not None:
            self._compactor.end()
            if error is not None and (isinstance(error, STORE_LOST) or not isinstance(error, Exception)):
                raise error
            outcome = PassOutcome(applied=False, reason=str(error or "abandoned"))
        else:
            outcome = self._publish(flight.task.result())
        self._pacer.ended(state, gained=outcome.applied)
        recorded = self._memory.record(outcome.change) if outcome.change is not None else None

        def write(tx: Transaction) -> None:
            if recorded is not None:
                recorded.write(tx, compaction_id=flight.compaction_id)
            status = "applied" if outcome.applied else "rejected"
            self._write_end(tx, flight, status=status, reason=outcome.reason, outcome=outcome)
            if also is not None:
                also(tx, outcome)

        await self._environment.store.commit(write)
        return outcome

    def _publish(self, prepared: Prepared) -> PassOutcome:
        """Apply the pass, unless a digest in its place already leaves more room."""
        state = self._memory.state
        last = prepared.covers[1]
        standing = sum(one.tokens for one in state.view.observations if one.covers[1] <= last)
        standing += sum(message.tokens for message in state.verbatim if message.seq <= last)
        after = state.tokens - standing + prepared.tokens
        stands_in = any(one.provisional and one.covers[1] <= last for one in state.view.observations)
        needed = prepared.tokens + HEADING_TOKENS
        if not stands_in and needed >= standing:
            self._compactor.end()
            reason = f"the summary would take as much room ({needed} tokens) as what it replaces ({standing})"
            return PassOutcome(
                applied=False, reason=reason, tokens_before=state.tokens, tokens_after=state.tokens
            )
        if prepared.tokens > standing and after > state.threshold * ROOM_SHARE:
            self._compactor.end()
            reason = (
                f"a digest of {standing} tokens is in place; "
                f"the summary takes {prepared.tokens}, and room is short"
            )
            return PassOutcome(
                applied=False, reason=reason, tokens_before=state.tokens, tokens_after=state.tokens
            )
        return self._compactor.publish(prepared, at=self._environment.clock.now())

    def _write_end(
        self,
        tx: Transaction,
        flight: _PassTask,
        *,
        status: str,
        reason: str,
        outcome: PassOutcome | None = None,
    ) -> None:
        cost = flight.spent.record(tx, self._agent.id)
        change = outcome.change if outcome else None
        rows.end_compaction(
            tx,
            self._agent.id,
            flight.compaction_id,
            status=status,
            reason=reason,
            tokens_after=_tokens_after(flight.tokens_before, outcome),
            messages_removed=outcome.messages_removed if outcome else 0,
            high_water=outcome.high_water if outcome else None,
            view_before=change.views[0].parent if change and change.views else None,
            view_after=change.view.version if change else None,
            cost_usd=cost,
            tokens_spent=flight.spent.all_tokens,
            seconds=self._environment.clock.monotonic() - flight.began,
            cache_tokens_invalidated=min(self._cached_tokens, change.cache_tokens_invalidated)
            if change
            else 0,
        )

    async def _write_outcome(
        self, found: messages.ReadingPass, outcome: PassOutcome | None, otherwise: str
    ) -> None:
        """The end of a pass of an earlier host."""
        change = outcome.change if outcome else None
        recorded = self._memory.record(change) if change is not None else None

        def write(tx: Transaction) -> None:
            if recorded is not None:
                recorded.write(tx, compaction_id=found.id)
            status = "abandoned" if outcome is None else "applied" if outcome.applied else "rejected"
            rows.end_compaction(
                tx,
                self._agent.id,
                found.id,
                status=status,
                reason=outcome.reason if outcome else otherwise,
                tokens_after=_tokens_after(found.tokens_before, outcome),
                messages_removed=outcome.messages_removed if outcome else 0,
                high_water=outcome.high_water if outcome else None,
                view_before=change.views[0].parent if change and change.views else None,
                view_after=change.view.version if change else None,
            )

        await self._environment.store.commit(write)


def _tokens_after(before: int, outcome: PassOutcome | None) -> int | None:
    """Tokens of the context with the summary in it; it took `before` tokens when the pass began.

    Messages added meanwhile count neither before nor after. If the summary takes more room than the digest
    that it replaces, the result is the size of the context now.
    """
    if outcome is None or not outcome.applied:
        return None
    saved = outcome.tokens_before - outcome.tokens_after
    return max(0, before - saved) if saved > 0 else outcome.tokens_after


def _load(text: str) -> Prepared:
    """A pass's result as it was stored."""
    fields: dict[str, Any] = decode(text)
    for name in ("covers", "citations", "replaces", "refused"):
        fields[name] = tuple(fields[name])
    return Prepared(**fields | {"kind": ObservationKind(fields["kind"])})
