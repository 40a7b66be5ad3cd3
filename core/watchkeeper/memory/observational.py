"""Observational memory: an observer keeps a log of messages ahead of need, a reflector keeps the log short.

The caller calls `advance` after each message and at no other time; it never waits. When the threshold is
reached, one move of the view activates the chunks that observers have written, and about a fifth of the
window stays verbatim. If observer or reflector fail, deterministic digests replace their work, so that both
always progress.

The engine owns the compaction of its `ContextState`: a `Compactor` may run on the same state only by hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from watchkeeper.memory.buffering import (
    BufferConfig,
    BufferingCoordinator,
    BufferingState,
    ObservationChunk,
    ObserverOutput,
    ReflectorOutput,
)
from watchkeeper.memory.content import cut_points, newest_turn
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.digest import DigestNotes
from watchkeeper.memory.history import Change, Prepared, Rejection
from watchkeeper.memory.prompts import MAX_COMPRESSION, Observer, Reflector
from watchkeeper.memory.tokens import plain
from watchkeeper.memory.validation import SMALLER_BY, Judgement, judge_log
from watchkeeper.records.errors import STORE_LOST
from watchkeeper.records.messages import Message, Observation, ObservationKind
from watchkeeper.records.text import one_line

# --- Keeping the observation log short ----------------------------------------------------------------------
#
# A reflector consolidates the log in the background. If it is late, a digest takes its place.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservationalSettings:
    """How observational memory works. Tokens are our own."""

    buffer: BufferConfig = field(default_factory=BufferConfig)
    previous_observer_tokens: int = 2_000
    """How much of the end of the log an observer is shown."""
    observer_instruction: str | None = None
    """Added to the observer's prompt."""
    reflection_threshold: int | None = None
    """Tokens of observations from which on they must be consolidated; None: 30 % of the limit."""
    reflection_activation: float = 0.7
    """From this share of the threshold on, a reflection is prepared ahead of need."""
    reflector_instruction: str | None = None
    """Added to the reflector's prompt."""
    timeout_seconds: float | None = 120.0
    """Per call of observer or reflector."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The observations that a running reflector reads."""

    observations: tuple[Observation, ...]
    epoch: int
    base_version: int

    @property
    def covers(self) -> tuple[int, int]:
        return self.observations[0].covers[0], self.observations[-1].covers[1]


class Reflection:
    """The part of observational memory that watches over the size of the log."""

    def __init__(
        self,
        state: ContextState,
        coordinator: BufferingCoordinator,
        reflect: Reflector,
        settings: ObservationalSettings,
    ) -> None:
        self._state = state
        self._coordinator = coordinator
        self._reflect = reflect
        self._settings = settings
        self._reading: _Reading | None = None
        self._reflected: Judgement | None = None
        self._stand_in = False
        self._reflect_from = 0

    @property
    def is_open(self) -> bool:
        """Whether a reflector was launched whose text is neither applied nor abandoned."""
        return self._reading is not None

    @property
    def threshold(self) -> int:
        """Tokens of observations from which on they must be consolidated."""
        return self._settings.reflection_threshold or max(1, int(self._state.limit * 0.3))

    def keep_short(self, at: float) -> Change | None:
        tokens = sum(o.tokens for o in self._state.view.observations)
        need = self._coordinator.should_reflect(tokens, self.threshold, self._settings.reflection_activation)
        if need == "none" or (need == "async" and tokens < self._reflect_from):
            return None
        if not self._coordinator.is_reflector_in_flight() and self._reading is None:
            self._launch_reflector()
        if need == "async":
            return None
        change = self._state.fold(at=at)
        if change is not None:
            self._stand_in = self._reading is not None
        return change

    def _launch_reflector(self) -> None:
        observations = self._state.view.observations
        if not observations or (len(observations) == 1 and observations[0].provisional):
            return
        reading = self._reading = _Reading(observations, self._state.epoch, self._state.view.version)
        self._reflected = None
        self._state.begin_pass(reading.covers[1])
        self._coordinator.launch_reflector(
            lambda text: self._consolidated(reading, text), "\n\n".join(o.text for o in observations)
        )

    async def _consolidated(self, reading: _Reading, text: str) -> ReflectorOutput:
        """A reflection that has been judged; each that cannot be used raises the compression level."""
        source = sum(o.tokens for o in reading.observations)
        why = ""
        for level in range(MAX_COMPRESSION + 1):
            try:
                async with asyncio.timeout(self._settings.timeout_seconds):
                    output = await self._reflect(text, level, self._settings.reflector_instruction)
                judged = judge_log(
                    output.observations, reading.covers, (), source, self._state.counter, [text]
                )
            except STORE_LOST:
                raise
            except Exception as error:
                judged = Rejection(f"{type(error).__name__}: {error}")
            if isinstance(judged, Judgement):
                self._reflected = judged
                return replace(output, observations=judged.text)
            why = judged.reason
            log.info("a reflection at level %d was not used: %s", level, why)
        raise ValueError(f"no reflection could be used: {why}")

    def land(self, at: float) -> Change | None:
        """Apply a reflection when it is due: at the threshold, or when a digest has taken its place."""
        reading = self._reading
        if reading is None or self._coordinator.is_reflector_in_flight():
            return None
        if not self._coordinator.has_buffered_reflection():
            # It failed: try again only when there is more to consolidate.
            self._reflect_from = int(sum(o.tokens for o in self._state.view.observations) * 1.1) + 1
            self.end()
            return None
        tokens = sum(o.tokens for o in self._state.view.observations)
        if tokens < self.threshold and not self._stand_in:
            return None
        reflection = self._coordinator.consume_buffered_reflection()
        judged = self._reflected
        self.end()
        if reflection is None or judged is None:
            return None
        change = self._state.publish(
            Prepared(
                text=judged.text,
                tokens=self._state.counter.count(judged.text),
                covers=reading.covers,
                citations=judged.citations,
                replaces=tuple(o.id for o in reading.observations),
                source_tokens=sum(o.tokens for o in reading.observations),
                base_version=reading.base_version,
                epoch=reading.epoch,
                kind=ObservationKind.REFLECTION,
                level=max(o.level for o in reading.observations) + 1,
                reason="reflection",
            ),
            at=at,
        )
        if isinstance(change, Rejection):
            log.info("a reflection was not used: %s", change.reason)
            return None
        return change

    def end(self) -> None:
        if self._reading is not None:
            self._state.end_pass(self._reading.covers[1])
        self._reading = None
        self._reflected = None
        self._stand_in = False


KEEP_VERBATIM = 0.2
"""The share of the limit that an activation leaves verbatim, where the chunks allow it."""

OUTLOOK_CHARACTERS = 400
"""Longest text about what the agent is doing and should do next; more belongs into the observations."""

OUTLOOK_ROOM = 0.9
"""These lines are added only while an activation fills at most this share of its allowance."""

SHORTER = "Your last answer could not be used: {why}. Answer again, much shorter, citing only numbers of the transcript."


@dataclass(frozen=True, slots=True)
class _Range:
    """The messages that one chunk covers."""

    first: int
    last: int
    citations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineState:
    """What of an engine outlives its process: completed chunks and their ranges of `seq`."""

    buffering: BufferingState
    ranges: tuple[tuple[int, int, tuple[int, ...]], ...]


Keep = Callable[[ObserverOutput, tuple[int, int, tuple[int, ...]], int], Awaitable[None]]
"""`await keep(output, (first, last, citations), tokens_of_the_messages)`."""


class ObservationalMemory:
    """See the module's docstring. `prompts.model_observer` and `model_reflector` make the two from a
    model."""

    def __init__(
        self,
        state: ContextState,
        observe: Observer,
        reflect: Reflector,
        settings: ObservationalSettings | None = None,
        *,
        coordinator: BufferingCoordinator | None = None,
        keep: Keep | None = None,
    ) -> None:
        """`keep`: awaited with each judged answer before it becomes a chunk, so that it can be stored at
        once."""
        self.state = state
        self.settings = settings or ObservationalSettings()
        self.coordinator = coordinator or BufferingCoordinator(counter=state.counter)
        self.current_task: str | None = None
        """What the newest chunk says the agent is working on."""
        self.suggested_response: str | None = None
        self._observe = observe
        self._reflection = Reflection(state, self.coordinator, reflect, self.settings)
        self._ranges: list[_Range] = []
        self._launched: _Range | None = None
        self._reading: _Range | None = None
        """The messages that the running observer reads."""
        self._kept = keep
        self._shown = self._signature()

    # --- what runs after each message -----------------------------------------------------------------------

    def advance(self, *, at: float) -> list[Change]:
        """Follow the context, activate what is due, launch what pays. Call after each message, within the
        event loop.

        Returns what to store, in order. Never waits.

        Raises:
            LeaseLost, StoreUnusable: an observer, a reflector or `keep` met one.
        """
        if self.coordinator.store_lost is not None:
            raise self.coordinator.store_lost
        changes: list[Change] = []
        self._collect()
        self._follow()
        for step in (self._reflection.land, self._activate, self._reflection.keep_short):
            change = step(at)
            if change is not None:
                changes.append(change)
                self._shown = self._signature()
        self._buffer()
        return changes

    def abort(self) -> None:
        """The agent's session ended: launch nothing more, and drop the results of running calls."""
        self.coordinator.abort()
        self._reflection.end()

    @property
    def is_reflecting(self) -> bool:
        """Whether a reflector is at work, or has written what is not swapped in yet."""
        return self._reflection.is_open

    def held_marks(self) -> frozenset[int]:
        """The last message of each waiting chunk, and of the running observer's messages."""
        self._collect()
        marks = {place.last for place in self._ranges}
        if self._reading is not None and self.coordinator.is_observer_in_flight():
            marks.add(self._reading.last)
        return frozenset(marks)

    def snapshot(self) -> EngineState:
        """Completed chunks and what they stand for, to be stored."""
        self._collect()
        return EngineState(
            self.coordinator.get_state(), tuple((r.first, r.last, r.citations) for r in self._ranges)
        )

    def restore(self, stored: EngineState) -> None:
        """Take up the chunks of an earlier process, as far as their messages are still verbatim."""
        self.coordinator.restore_state(stored.buffering)
        self._ranges = [_Range(*parts) for parts in stored.ranges]
        self._shown = None
        self._follow()

    # --- following the context ------------------------------------------------------------------------------

    def _signature(self) -> tuple[tuple[int, ...], int | None] | None:
        view = self.state.view
        return tuple(o.id for o in view.observations), self._start()

    def _start(self) -> int:
        tail = self.state.verbatim
        return tail[0].seq if tail else self.state.last_seq + 1

    def _collect(self) -> None:
        """Add its range to a chunk that has arrived since (one observer runs at a time, so there is one
        range)."""
        chunks, _ = self.coordinator.get_completed_chunks()
        if len(chunks) > len(self._ranges) and self._launched is not None:
            self._ranges.append(self._launched)
            self._launched = None
            self.current_task = chunks[-1].current_task or self.current_task
            self.suggested_response = chunks[-1].suggested_response

    def _follow(self) -> None:
        """After a change of view that is not ours: keep the chunks that still join on, make observers
        stale."""
        now = self._signature()
        if now == self._shown:
            return
        self._shown = now
        start = self._start()
        chunks, _ = self.coordinator.get_completed_chunks()
        self.coordinator.advance_epoch()
        self._launched = None
        kept: list[tuple[ObservationChunk, _Range]] = []
        for chunk, place in zip(chunks, self._ranges, strict=False):
            if place.first == (kept[-1][1].last + 1 if kept else start) and place.last <= self.state.last_seq:
                kept.append((chunk, place))
        self._keep(kept)

    def _keep(self, kept: Sequence[tuple[ObservationChunk, _Range]]) -> None:
        self._ranges = [place for _, place in kept]
        watermark = self._ranges[-1].last + 1 - self._start() if kept else 0
        self.coordinator.restore_state(BufferingState(tuple(chunk for chunk, _ in kept), watermark))

    # --- observing ------------------------------------------------------------------------------------------

    def _buffer(self) -> None:
        state, tail = self.state, self.state.verbatim
        watermark = self.coordinator.get_watermark()
        if not tail or self.coordinator.is_observer_in_flight():
            return
        end = newest_turn(tail)
        unobserved = sum(state.shown_tokens(message) for message in tail[watermark:end])
        until = max(1, state.threshold - sum(o.tokens for o in state.view.observations))
        interval = self.coordinator.compute_buffer_interval(until, self.settings.buffer)
        if not self.coordinator.should_buffer(unobserved, interval):
            return
        end = self._end(tail, watermark, end)
        if end <= watermark:
            return
        messages = list(tail[watermark:end])
        place = self._reading = _Range(messages[0].seq, messages[-1].seq, ())
        self.coordinator.launch_observer(
            lambda given, previous: self._observed(place, given, previous), messages, end, self._previous()
        )

    def _end(self, tail: Sequence[Message], start: int, end: int) -> int:
        """The last allowed cut up to `end` that one observer's window holds; else the first allowed one."""
        allowed = cut_points(tail)
        config = self.settings.buffer
        room = min(config.token_cap, 0.6 * config.utility_model_context_window)
        best, taken = start, 0
        for place in range(start, end):
            taken += self.state.shown_tokens(tail[place])
            if taken > room and best > start:
                break
            if allowed[place + 1]:
                best = place + 1
        return best

    def _previous(self) -> str | None:
        """The end of the log: published observations and waiting chunks."""
        chunks, _ = self.coordinator.get_completed_chunks()
        texts = [o.text for o in self.state.view.observations] + [chunk.observations for chunk in chunks]
        room = self.settings.previous_observer_tokens
        lines: list[str] = []
        for line in reversed("\n".join(texts).splitlines()):
            room -= self.state.counter.count(line) + 1
            if room < 0:
                break
            lines.append(line)
        return "\n".join(reversed(lines)) or None

    async def _observed(self, place: _Range, messages: list[Message], previous: str | None) -> ObserverOutput:
        """An observer's answer that has been judged; after two that cannot be used, the digest."""
        source = sum(message.tokens for message in messages)
        instruction = self.settings.observer_instruction
        for _ in range(2):
            try:
                async with asyncio.timeout(self.settings.timeout_seconds):
                    output = await self._observe(messages, previous, instruction)
                covers = (place.first, place.last)
                judged = judge_log(
                    output.observations, covers, messages, source, self.state.counter, [previous or ""]
                )
            except STORE_LOST:
                raise
            except Exception as error:  # a TimeoutError among them: all mean that there is no text
                judged = Rejection(f"{type(error).__name__}: {error}")
            if isinstance(judged, Judgement):
                return await self._chunk(
                    replace(output, observations=judged.text), place, judged.citations, source
                )
            log.info("observations of messages %d-%d not used: %s", place.first, place.last, judged.reason)
            again = SHORTER.format(why=judged.reason)
            instruction = f"{self.settings.observer_instruction or ''}\n{again}".strip()
        notes = DigestNotes.gather(
            self.state.agent_id, (place.first, place.last), (), messages, notebook=self.state.notebook
        )
        text, citations, _ = notes.write(max(1, source // 4), self.state.counter)
        return await self._chunk(ObserverOutput(text), place, citations, source)

    async def _chunk(
        self, output: ObserverOutput, place: _Range, citations: tuple[int, ...], tokens: int
    ) -> ObserverOutput:
        if self._kept is not None:
            await self._kept(output, (place.first, place.last, citations), tokens)
        self._launched = replace(place, citations=citations)
        return output

    def _activate(self, at: float) -> Change | None:
        """Put waiting chunks in place of their messages, as one observation, once the threshold is
        reached."""
        state = self.state
        if not state.needs_compaction() or not self.coordinator.has_completed_chunks() or not self._ranges:
            return None
        chunks, _ = self.coordinator.get_completed_chunks()
        pairs = list(zip(chunks, self._ranges, strict=False))
        count = self._how_many(pairs)
        taken, rest = pairs[:count], pairs[count:]
        covers = (taken[0][1].first, taken[-1][1].last)
        change: Change | Rejection | None = state.publish(self._activation(taken), at=at)
        self.coordinator.commit_activation()
        self._launched = None
        if isinstance(change, Rejection):
            # Observing the same messages once more would end in the same way: a digest takes their place.
            log.warning("chunks for messages %d-%d not used: %s", *covers, change.reason)
            change = state.digest(up_to=covers[1], at=at)
            if change is None or change.high_water != covers[1]:
                self._keep([])
                return change
        self._keep(rest)
        return change

    def _how_many(self, pairs: Sequence[tuple[ObservationChunk, _Range]]) -> int:
        """As many chunks as leave about a fifth of the window verbatim; one at least."""
        left = sum(self.state.shown_tokens(message) for message in self.state.verbatim)
        sizes = {message.seq: self.state.shown_tokens(message) for message in self.state.verbatim}
        for count, (_, place) in enumerate(pairs):
            left -= sum(sizes.get(seq, 0) for seq in range(place.first, place.last + 1))
            if left < self.state.limit * KEEP_VERBATIM:
                return max(1, count)
        return len(pairs)

    def _activation(self, taken: Sequence[tuple[ObservationChunk, _Range]]) -> Prepared:
        text = "\n".join(chunk.observations for chunk, _ in taken)
        covers = (taken[0][1].first, taken[-1][1].last)
        source = sum(message.tokens for message in self.state.verbatim if message.seq <= covers[1])
        tokens = self.state.counter.count(text)
        for line in _outlook(taken[-1][0]):
            more = self.state.counter.count(line) + 1
            if tokens + more <= source * (1 - SMALLER_BY) * OUTLOOK_ROOM:
                text, tokens = f"{text}\n{line}", tokens + more
        return Prepared(
            text=text,
            tokens=self.state.counter.count(text),
            covers=covers,
            citations=tuple(sorted({seq for _, place in taken for seq in place.citations})),
            source_tokens=source,
            base_version=self.state.view.version,
            epoch=self.state.epoch,
            kind=ObservationKind.OBSERVATION,
            reason="activation",
        )


def _outlook(chunk: ObservationChunk) -> list[str]:
    """What the agent is at and should do next, as lines of the log."""
    said = (("Current task", chunk.current_task), ("Suggested next", chunk.suggested_response))
    return [f"{title}: {plain(one_line(text, OUTLOOK_CHARACTERS))}" for title, text in said if text]
