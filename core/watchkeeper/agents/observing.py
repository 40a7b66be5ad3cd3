"""Observational memory of one agent in a run: observers and reflectors beside its loop, each call recorded
and kept.

Every observer's and every reflector's work is a row of `compactions`: running while its model writes,
prepared once there is a text (stored at once, so that a crash loses none that was paid for), applied when it
stands in the context. The engine decides; this module asks the models and writes the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from watchkeeper.agents.agent_memory import AgentMemory
from watchkeeper.agents.calling import Spent, call_beside
from watchkeeper.agents.environment import Environment
from watchkeeper.memory.buffering import BufferingState, ObservationChunk, ObserverOutput, ReflectorOutput
from watchkeeper.memory.changes import Change
from watchkeeper.memory.observational import EngineState, ObservationalMemory
from watchkeeper.memory.prompts import Complete, model_observer, model_reflector
from watchkeeper.records.memory import Message
from watchkeeper.records.model import ModelRequest, Purpose
from watchkeeper.store import memory as rows
from watchkeeper.store.agents import Agent
from watchkeeper.store.encoding import decode, encode
from watchkeeper.store.transaction import Transaction

OBSERVER, REFLECTOR = "observer", "reflector"
"""Triggers of the rows, by which a later host tells them from passes of a summariser."""

WRITTEN_TOKENS = 2_048
"""The longest text that is asked for."""


@dataclass(slots=True)
class _Row:
    """The record of one observer or reflector at work."""

    id: int
    high_water: int
    began: float
    spent: Spent = field(default_factory=Spent)


class Observing:
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
        """Stop what is in flight, and write nothing of it."""
        self._engine.abort()
        for task in self._tasks:
            task.cancel()

    async def abandon(self, reason: str) -> None:
        """The loop ends: give up what is in flight. Chunks that are written stay, for a loop that resumes."""
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
