"""The one engine of background passes over a context: started, prepared, published or abandoned.

It has two settings. With `summary`, one large pass covers older messages when the threshold is near. With
`observational`, observers keep a log of small chunks of messages ahead of need; when the threshold is reached,
one move of the view activates the chunks, and about a fifth of the window stays verbatim. A reflector keeps the
log short. If a model fails, deterministic digests replace its work, so that the context always progresses.

`Compactor` prepares, judges and publishes each text; `BufferingCoordinator` runs observers and reflectors and
keeps their chunks. Nothing here waits for a model, except `stop`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from watchkeeper.memory.buffering import (
    BackgroundTasks,
    BufferConfig,
    BufferingCoordinator,
    BufferingState,
    ObservationChunk,
    ObserverOutput,
    ReflectorOutput,
    is_lost,
)
from watchkeeper.memory.compactor import Compactor, PassOutcome
from watchkeeper.memory.content import cut_points, newest_turn
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import Change, CompactionPass, Prepared, Rejection
from watchkeeper.memory.tokens import plain
from watchkeeper.memory.validation import SMALLER_BY
from watchkeeper.records.messages import ObservationKind
from watchkeeper.records.text import one_line

log = logging.getLogger(__name__)

# --- When a summary starts ----------------------------------------------------------------------------------
#
# A summary is due when the tokens now, plus those expected while it runs (growth rate x duration of passes),
# reach the threshold; never only at a fixed fraction. So it finishes before the threshold is passed. The
# history must grow between two passes, and the number of passes in an hour is limited: a run cannot compact
# itself to death (claude-code #24179).

LEAD_SHARE = 0.25
"""How much earlier than the threshold, as a share of it, a pass may begin because the context grows fast."""

GROWTH_SHARE = 0.1
"""How much a history must grow, as a share of the limit, between two passes."""

MOST_DOUBLINGS = 4
"""How often that growth is doubled, at most, after passes that did not pay."""

MOST_WRITTEN = 2_048
"""Tokens of the longest text that a prompt requests."""

HOUR = 3_600.0


@dataclass(slots=True)
class Pacer:
    """Decides for one agent. Times are seconds of a monotonic clock that the caller reads."""

    passes_per_hour: int = 120
    _growth: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=50))
    _starts: deque[float] = field(default_factory=deque)
    _ended_total: int = 0
    _not_before_total: int = 0

    def grew(self, now: float, total_tokens: int) -> None:
        """Note that the history has that many tokens now."""
        self._growth.append((now, total_tokens))

    def tokens_per_second(self) -> float:
        """Over the last messages."""
        if len(self._growth) < 2:
            return 0.0
        (start, first), (end, last) = self._growth[0], self._growth[-1]
        return (last - first) / max(1.0, end - start)

    def due(self, state: ContextState, now: float, expected_seconds: float) -> bool:
        """Whether a pass should start now. `expected_seconds`: how long one takes (the 95th percentile)."""
        if state.held or state.total_tokens < self._not_before_total:
            return False
        lead = min(self.tokens_per_second() * expected_seconds, state.threshold * LEAD_SHARE)
        if state.tokens + lead < state.threshold:
            return False
        while self._starts and now - self._starts[0] >= HOUR:
            self._starts.popleft()
        return len(self._starts) < self.passes_per_hour

    def started(self, now: float) -> None:
        """A pass that was due began."""
        self._starts.append(now)

    def ended(self, state: ContextState) -> None:
        """A pass ended, or could not begin: the history must grow before the next one.

        The history, not the context: that one cannot grow beyond its limit, and the next pass would never
        come.
        """
        self._ended_total = state.total_tokens
        self._not_before_total = state.total_tokens + int(state.limit * GROWTH_SHARE)

    def back_off(self, state: ContextState, unpaid: int) -> bool:
        """Whether the history must grow further, because that many passes in a row did not pay: twice as far for
        each."""
        growth = state.limit * GROWTH_SHARE * 2 ** min(unpaid, MOST_DOUBLINGS)
        self._not_before_total = self._ended_total + int(growth) if unpaid else 0
        return state.total_tokens < self._not_before_total


# --- Whether a pass can pay for itself ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """What a token costs, in tokens of the agent's input that no cache holds. All 1: its model has no price."""

    read: float = 1.0
    """What the pass reads, and writes (`output`): of the model for memory."""
    output: float = 1.0
    cache_read: float = 1.0
    cache_write: float = 1.0


WRITTEN_SHARE = 0.2
"""What share of its source a summary takes, as a rule."""


def can_pay(
    run: CompactionPass, state: ContextState, turns: int, rates: TokenCosts, calls_left: float = math.inf
) -> bool:
    """Whether a pass is expected to spare more than it costs.

    It spares what it removes in each call until the context has grown back; but an agent that made few calls so far
    is not expected to make many more, so that `turns`, those that it made, are the most that count, and `calls_left`,
    those that its limits leave. A chunk of observations spares nothing before it is activated, at the threshold, and
    then shares the cost of that change with the chunks beside it.
    """
    shown = {message.seq: state.shown_tokens(message) for message in state.verbatim}
    removed = sum(one.tokens for one in run.earlier)
    removed += sum(shown.get(one.seq, 0) for one in run.messages if one.seq not in state.view.pins)
    written = min(run.source_tokens * WRITTEN_SHARE, MOST_WRITTEN)
    saved = removed - written
    growth = max(1.0, state.total_tokens / max(1, turns))
    chunks, full, ahead = 1.0, state.tokens, 0.0
    if run.kind is ObservationKind.OBSERVATION:
        full = max(state.tokens, state.threshold)
        ahead = (full - state.tokens) / growth
        log = sum(one.tokens for one in state.view.observations)
        chunks = max(1.0, (full - log - state.limit * KEEP_VERBATIM) / max(1, removed))
    calls = min(turns - ahead, calls_left - ahead, saved * chunks / growth)
    spared = saved * max(0.0, calls) * rates.cache_read
    rest = (full - saved * chunks) / chunks
    spent = run.source_tokens * rates.read + written * rates.output + rest * rates.cache_write
    return spared > spent


# --- The engine ---------------------------------------------------------------------------------------------


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


KEEP_VERBATIM = 0.2
"""The share of the limit that an activation leaves verbatim, where the chunks allow it."""

REFLECT_AGAIN = 1.1
"""How large the observations must be, compared with now, before a reflector is tried again."""

ASK_AGAIN = 0.25
"""How much the history must grow, as a share of an observer's interval, before it is asked again whether one pays."""

OUTLOOK_CHARACTERS = 400
"""Longest text about what the agent is doing and should do next; more belongs into the observations."""

OUTLOOK_ROOM = 0.9
"""These lines are added only while an activation fills at most this share of its allowance."""


@dataclass(slots=True)
class PassTask:
    """One summary: running, or finished and not yet published."""

    run: CompactionPass
    task: asyncio.Task[Prepared]
    outcome: PassOutcome | None = None
    stall_seconds: float = 0.0
    """How long a caller waited for it."""

    @property
    def is_running(self) -> bool:
        """Whether it will still end without help."""
        return not self.task.done() and not is_lost(self.task)

    @property
    def is_lost(self) -> bool:
        """Whether it has not ended, and never will."""
        return not self.task.done() and is_lost(self.task)


Keep = Callable[[CompactionPass, Prepared], Awaitable[None]]


class Engine:
    """See the module's docstring. Summaries on request run in both settings."""

    def __init__(
        self,
        compactor: Compactor,
        settings: ObservationalSettings | None = None,
        *,
        keep: Keep | None = None,
        passes_per_hour: int = 120,
    ) -> None:
        """`settings`: those of `observational`; None: the setting is `summary`. `keep`: awaited with each
        judged text, before it is used, so that it can be stored at once."""
        self.state = compactor.state
        self.compactor = compactor
        self.settings = settings
        self.coordinator = BufferingCoordinator(counter=self.state.counter)
        self.summary: PassTask | None = None
        """The summary that was started and is neither published nor abandoned."""
        self._keep = keep
        self._pacer = Pacer(passes_per_hour)
        self._tasks = BackgroundTasks()
        self._observing: CompactionPass | None = None
        """What the newest observer reads."""
        self._reflecting: CompactionPass | None = None
        """The reflection that was launched and is neither published nor abandoned."""
        self._reflected: Prepared | None = None
        self._folded = False
        """Whether a digest has replaced the observations until the reflection is there."""
        self._reflect_from = 0
        self._observe_from = 0
        """Size of the history from which on it is asked again whether an observer pays."""
        self._shown = self._signature()

    async def _written(self, run: CompactionPass) -> Prepared:
        """The text of any pass, judged and kept."""
        prepared = await self.compactor.prepare(run)
        if self._keep is not None:
            await self._keep(run, prepared)
        return prepared

    async def stop(self, timeout_seconds: float | None = None) -> None:
        """The context's owner ends: start nothing more, drop what runs, and wait until it has ended."""
        self.abort()
        await self._tasks.settled(timeout_seconds)
        await self.coordinator.tasks.settled(timeout_seconds)

    def abort(self) -> None:
        """Start no observer or reflector any more, and drop the results of everything that runs. Written
        chunks stay."""
        self.abandon("The work was stopped.")
        self.coordinator.abort()
        self.coordinator.tasks.cancel()
        self._end_reflection()

    # --- summaries ------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether a summary should begin now. Call after each message: it also notes how fast the context
        grows."""
        now = self.compactor.monotonic()
        self._pacer.grew(now, self.state.total_tokens)
        return self.summary is None and self._pacer.due(self.state, now, self.compactor.expected_seconds())

    def begin(
        self,
        up_to: int | None = None,
        instructions: str | None = None,
        *,
        due: bool = False,
        pays: Callable[[CompactionPass], bool] = lambda _: True,
    ) -> CompactionPass | Rejection:
        """The snapshot of a summary, to be followed by `start` or `compactor.end`. `due`: it begins by
        itself, unless it `pays` not."""
        run = self.compactor.begin(up_to, instructions, due=due)
        if due and not isinstance(run, Rejection) and not pays(run):
            self.compactor.end()
            run = Rejection("The summary would cost more than it spares.")
        if due and isinstance(run, Rejection):
            self.note_end()
        elif due:
            self._pacer.started(self.compactor.monotonic())
        return run

    def back_off(self, unpaid: int) -> bool:
        """Whether a summary that is due must wait, because that many in a row did not pay."""
        return self._pacer.back_off(self.state, unpaid)

    @property
    def is_overtaken(self) -> bool:
        """Whether a digest covers messages behind those that the running summary reads."""
        flight = self.summary
        return (
            flight is not None
            and flight.is_running
            and any(
                one.provisional and one.covers[0] > flight.run.high_water
                for one in self.state.view.observations
            )
        )

    def start(self, run: CompactionPass) -> PassTask:
        """Prepare the summary in the background."""
        self.summary = PassTask(run, self._tasks.start(self._written(run)))
        return self.summary

    def publish(
        self, flight: PassTask, *, at: float, refuse: Callable[[Prepared], str | None] = lambda _: None
    ) -> PassOutcome:
        """End a summary whose task has ended: publish its text, unless `refuse` says why not."""
        self.summary = None
        if flight.task.cancelled():
            flight.outcome = self.compactor.nothing("The pass was cancelled.")
        elif (error := flight.task.exception()) is not None:
            flight.outcome = self.compactor.nothing(f"The pass failed: {error}")
        elif (reason := refuse(flight.task.result())) is not None:
            flight.outcome = self.compactor.nothing(reason)
        else:
            flight.outcome = self.compactor.publish(flight.task.result(), at=at)
        self.compactor.end()
        if flight.run.messages or not flight.outcome.applied:  # a merge alone may be followed by another pass
            self.note_end()
        return flight.outcome

    def note_end(self) -> None:
        """A summary, or a digest in its place, ended or could not begin: the next one waits for new messages."""
        self._pacer.ended(self.state)

    def abandon(self, reason: str) -> PassTask | None:
        """Cancel the running summary; nothing of it is left."""
        flight, self.summary = self.summary, None
        if flight is not None:
            if not is_lost(flight.task):
                flight.task.cancel()
            self.compactor.end()
            flight.outcome = self.compactor.nothing(reason)
        return flight

    # --- observations ---------------------------------------------------------------------------------------

    def advance(self, *, at: float, pays: Callable[[CompactionPass], bool] = lambda _: True) -> list[Change]:
        """In the setting `observational`: follow the context, activate what is due, launch what `pays`. Call after
        each message, within the event loop, and at no other time.

        Returns what to store, in order. Never waits.

        Raises:
            LeaseLost, StoreUnusable: an observer, a reflector or `keep` met one.
        """
        if self.coordinator.store_lost is not None:
            raise self.coordinator.store_lost
        if self.settings is None:
            return []
        self._follow()
        changes: list[Change] = []
        for step in (self._publish_reflection, self._activate, partial(self._keep_short, pays)):
            change = step(self.settings, at)
            if change is not None:
                changes.append(change)
                self._shown = self._signature()
        self._observe(self.settings, pays)
        return changes

    def held(self) -> frozenset[tuple[ObservationKind, int]]:
        """Kind and last message of each observer and reflector whose text is neither in the context nor
        dropped."""
        held = {(ObservationKind.OBSERVATION, chunk.covers[1]) for chunk in self._chunks()}
        if self._observing is not None and self.coordinator.is_observer_in_flight():
            held.add((ObservationKind.OBSERVATION, self._observing.high_water))
        if self._reflecting is not None:
            held.add((ObservationKind.REFLECTION, self._reflecting.high_water))
        return frozenset(held)

    def restore(self, chunks: Sequence[ObservationChunk]) -> None:
        """Take up the chunks of an earlier process, as far as their messages are still verbatim."""
        self._join(chunks)

    def _chunks(self) -> list[ObservationChunk]:
        return self.coordinator.get_completed_chunks()[0]

    def _signature(self) -> tuple[tuple[int, ...], int]:
        return tuple(one.id for one in self.state.view.observations), self._start()

    def _start(self) -> int:
        tail = self.state.verbatim
        return tail[0].seq if tail else self.state.last_seq + 1

    def _follow(self) -> None:
        """After a change of view that is not ours: keep the chunks that still join on, and make the running
        observer stale."""
        now = self._signature()
        if now != self._shown:
            self._shown = now
            self.coordinator.advance_epoch()
            self._join(self._chunks())

    def _join(self, chunks: Sequence[ObservationChunk]) -> None:
        """Keep those of the chunks that cover the verbatim messages from the first one on, without a gap."""
        start = place = self._start()
        kept: list[ObservationChunk] = []
        for chunk in chunks:
            if chunk.covers[0] == place and chunk.covers[1] <= self.state.last_seq:
                kept.append(chunk)
                place = chunk.covers[1] + 1
        self.coordinator.restore_state(BufferingState(tuple(kept), place - start))

    def _observe(self, settings: ObservationalSettings, pays: Callable[[CompactionPass], bool]) -> None:
        """Launch an observer where enough messages are unobserved, if it pays."""
        state, tail, coordinator = self.state, self.state.verbatim, self.coordinator
        if not tail or coordinator.is_observer_in_flight() or state.total_tokens < self._observe_from:
            return
        watermark, end = coordinator.get_watermark(), newest_turn(tail)
        unobserved = sum(state.shown_tokens(message) for message in tail[watermark:end])
        until = max(1, state.threshold - sum(one.tokens for one in state.view.observations))
        interval = coordinator.compute_buffer_interval(until, settings.buffer)
        if not coordinator.should_buffer(unobserved, interval):
            return
        end = self._end_of_chunk(settings.buffer, watermark, end)
        if end <= watermark:
            return
        messages = tuple(tail[watermark:end])
        run = CompactionPass(
            kind=ObservationKind.OBSERVATION,
            covers=(messages[0].seq, messages[-1].seq),
            messages=messages,
            previous=self._end_of_log(settings.previous_observer_tokens),
            source_tokens=sum(message.tokens for message in messages),
            instructions=settings.observer_instruction,
            base_version=state.view.version,
            epoch=state.epoch,
        )
        if not pays(run):
            self._observe_from = state.total_tokens + int(interval * ASK_AGAIN)
            return
        self._observing = run
        self.note_end()
        coordinator.launch_observer(lambda *_: self._observed(run), messages, end)

    async def _observed(self, run: CompactionPass) -> ObserverOutput:
        prepared = await self._written(run)
        return ObserverOutput(
            prepared.text, prepared.current_task, prepared.suggested_response, run.covers, prepared.citations
        )

    def _end_of_chunk(self, config: BufferConfig, start: int, end: int) -> int:
        """The last allowed cut up to `end` that one observer's window holds; else the first allowed one."""
        tail = self.state.verbatim
        allowed = cut_points(tail)
        room = min(config.token_cap, 0.6 * config.utility_model_context_window)
        best, taken = start, 0
        for place in range(start, end):
            taken += self.state.shown_tokens(tail[place])
            if taken > room and best > start:
                break
            if allowed[place + 1]:
                best = place + 1
        return best

    def _end_of_log(self, room: int) -> str | None:
        """The last lines of published observations and waiting chunks."""
        texts = [one.text for one in self.state.view.observations]
        texts += [chunk.observations for chunk in self._chunks()]
        lines: list[str] = []
        for line in reversed("\n".join(texts).splitlines()):
            room -= self.state.counter.count(line) + 1
            if room < 0:
                break
            lines.append(line)
        return "\n".join(reversed(lines)) or None

    def _activate(self, settings: ObservationalSettings, at: float) -> Change | None:
        """Put waiting chunks in place of their messages, as one observation, once the threshold is
        reached."""
        state, chunks = self.state, self._chunks()
        if not chunks or not state.needs_compaction():
            return None
        count = self._how_many(chunks)
        taken, rest = chunks[:count], chunks[count:]
        last = taken[-1].covers[1]
        change: Change | Rejection | None = state.publish(self._activation(taken), at=at)
        self.coordinator.commit_activation()
        if isinstance(change, Rejection):
            # Observing the same messages once more would end in the same way: a digest takes their place.
            log.warning("chunks for messages up to %d not used: %s", last, change.reason)
            change = state.digest(up_to=last, at=at)
        self._join(rest)
        return change

    def _how_many(self, chunks: Sequence[ObservationChunk]) -> int:
        """As many chunks as leave about a fifth of the window verbatim; one at least."""
        sizes = {message.seq: self.state.shown_tokens(message) for message in self.state.verbatim}
        left = sum(sizes.values())
        for count, chunk in enumerate(chunks):
            left -= sum(sizes.get(seq, 0) for seq in range(chunk.covers[0], chunk.covers[1] + 1))
            if left < self.state.limit * KEEP_VERBATIM:
                return max(1, count)
        return len(chunks)

    def _activation(self, taken: Sequence[ObservationChunk]) -> Prepared:
        count = self.state.counter.count
        covers = (taken[0].covers[0], taken[-1].covers[1])
        text = "\n".join(chunk.observations for chunk in taken)
        source = sum(message.tokens for message in self.state.verbatim if message.seq <= covers[1])
        for title, said in (
            ("Current task", taken[-1].current_task),
            ("Suggested next", taken[-1].suggested_response),
        ):
            longer = f"{text}\n{title}: {plain(one_line(said or '', OUTLOOK_CHARACTERS))}"
            if said and count(longer) <= source * (1 - SMALLER_BY) * OUTLOOK_ROOM:
                text = longer
        return Prepared(
            text=text,
            tokens=count(text),
            covers=covers,
            citations=tuple(sorted({seq for chunk in taken for seq in chunk.citations})),
            source_tokens=source,
            base_version=self.state.view.version,
            epoch=self.state.epoch,
            kind=ObservationKind.OBSERVATION,
            reason="activation",
        )

    # --- reflections: keeping the log short -----------------------------------------------------------------

    def _log_tokens(self) -> int:
        return sum(one.tokens for one in self.state.view.observations)

    def _reflection_threshold(self, settings: ObservationalSettings) -> int:
        return settings.reflection_threshold or max(1, int(self.state.limit * 0.3))

    def _keep_short(
        self, pays: Callable[[CompactionPass], bool], settings: ObservationalSettings, at: float
    ) -> Change | None:
        """Launch a reflector ahead of need; where it is late, a digest takes its place."""
        tokens, coordinator = self._log_tokens(), self.coordinator
        need = coordinator.should_reflect(
            tokens, self._reflection_threshold(settings), settings.reflection_activation
        )
        if need == "none":
            return None
        idle = not coordinator.is_reflector_in_flight() and self._reflecting is None
        if idle and tokens >= self._reflect_from:
            self._reflect(settings, pays)
        if need == "async":
            return None
        change = self.state.fold(at=at)
        if change is not None:
            self._folded, self._reflect_from = self._reflecting is not None, 0
        return change

    def _reflect(self, settings: ObservationalSettings, pays: Callable[[CompactionPass], bool]) -> None:
        observations = self.state.view.observations
        if not observations or (len(observations) == 1 and observations[0].provisional):
            return
        run = CompactionPass(
            kind=ObservationKind.REFLECTION,
            covers=(observations[0].covers[0], observations[-1].covers[1]),
            earlier=observations,
            merged=observations,
            source_tokens=self._log_tokens(),
            instructions=settings.reflector_instruction,
            base_version=self.state.view.version,
            epoch=self.state.epoch,
        )
        if not pays(run):
            self._reflect_from = int(self._log_tokens() * REFLECT_AGAIN) + 1
            return
        self._reflecting, self._reflected = run, None
        self.state.begin_pass(run.high_water)

        async def reflect(_: object) -> ReflectorOutput:
            self._reflected = await self._written(run)
            return ReflectorOutput(self._reflected.text)

        self.coordinator.launch_reflector(reflect, None)

    def _publish_reflection(self, settings: ObservationalSettings, at: float) -> Change | None:
        """Apply a reflection when it is due: at the threshold, or when a digest has taken its place."""
        if self._reflecting is None or self.coordinator.is_reflector_in_flight():
            return None
        tokens, reflected = self._log_tokens(), self._reflected
        if not self.coordinator.has_buffered_reflection() or reflected is None:
            # It failed: try again only when there is more to consolidate.
            self._reflect_from = int(tokens * REFLECT_AGAIN) + 1
            self._end_reflection()
            return None
        if tokens < self._reflection_threshold(settings) and not self._folded:
            return None
        self.coordinator.consume_buffered_reflection()
        self._end_reflection()
        change = self.state.publish(reflected, at=at)
        if isinstance(change, Rejection):
            log.info("a reflection was not used: %s", change.reason)
            return None
        return change

    def _end_reflection(self) -> None:
        if self._reflecting is not None:
            self.state.end_pass(self._reflecting.high_water)
        self._reflecting = self._reflected = None
        self._folded = False
