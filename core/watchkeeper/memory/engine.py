"""The one engine of background passes over a context: started, prepared, published or abandoned.

It has two settings. With `summary`, one large pass covers older messages when the threshold is near. With
`observational`, observers keep a log of small chunks of messages ahead of need; when the threshold is reached, or a
message would not fit, one move of the view activates the chunks, and about a fifth of the window stays verbatim. A
reflector keeps the log short. If a model fails or is late, deterministic digests replace its work, so that the context
always progresses; what an observer writes later replaces the digest of its messages.

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

from watchkeeper.memory.buffering import (
    WINDOW_SHARE,
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
from watchkeeper.records.messages import Message, ObservationKind
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
"""Tokens of the longest summary, or chunk of observations, that a prompt requests."""


def most_written(run: CompactionPass) -> int:
    """Tokens of the longest text that the prompt of a pass requests; of a reflection half of the log, or a long log would
    lose most of what it says."""
    return (
        max(MOST_WRITTEN, run.source_tokens // 2) if run.kind is ObservationKind.REFLECTION else MOST_WRITTEN
    )


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
    """Whether a summary is expected to spare more than it costs.

    It spares what it removes in each call until the context has grown back; but an agent that made few calls so far
    is not expected to make many more, so that `turns`, those that it made, are the most that count, and `calls_left`,
    those that its limits leave.
    """
    shown = {message.seq: state.shown_tokens(message) for message in state.verbatim}
    removed = sum(one.tokens for one in run.earlier)
    removed += sum(shown.get(one.seq, 0) for one in run.messages if one.seq not in state.view.pins)
    # Messages under a digest are owed a summary since it was made: reading them again counts as reading the digest.
    read = min(run.source_tokens, removed)
    written = min(read * WRITTEN_SHARE, MOST_WRITTEN)
    saved = removed - written
    calls = min(turns, calls_left, saved / _growth(state, turns))
    spared = saved * max(0.0, calls) * rates.cache_read
    rest = state.tokens - saved
    spent = read * rates.read + written * rates.output + rest * rates.cache_write
    return spared > spent


def is_needed(run: CompactionPass, state: ContextState, turns: int, calls_left: float) -> bool:
    """Whether an agent whose limits leave `calls_left` comes to use what an observer or a reflector writes: chunks are
    activated at the threshold, and the log is consolidated at once."""
    missing = state.threshold - state.tokens if run.kind is ObservationKind.OBSERVATION else 0
    return calls_left > max(0.0, missing / _growth(state, turns)) + 1


def _growth(state: ContextState, turns: int) -> float:
    """Tokens of a turn, on the mean."""
    return max(1.0, state.total_tokens / max(1, turns))


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


def _most_read(config: BufferConfig) -> float:
    """The most tokens of messages that one observer is given."""
    return min(config.token_cap, WINDOW_SHARE * config.utility_model_context_window)


KEEP_VERBATIM = 0.2
"""The share of the limit that an activation leaves verbatim, where the chunks allow it."""

OBSERVE_FROM = 0.5
"""The share of the threshold from which on observers run: many agents end before they have filled so much."""

REFLECT_AGAIN = 1.1
"""How large the observations must be, compared with now, before a reflector is tried again."""

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
        self._read_up_to = 0
        """The last message that any observer was given."""
        self._marks: set[int] = set()
        """The bounds of what observers have read and is not activated: digests split there."""

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
        self._observing = None
        self._mark()

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
            run = Rejection("The summary would cost more than it saves.")
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
            flight.outcome = self.compactor.nothing("The compaction was cancelled.")
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

    def advance(
        self, *, at: float, needed: Callable[[CompactionPass], bool] = lambda _: True
    ) -> list[Change]:
        """In the setting `observational`: follow the context, activate what is due, launch what is `needed`. Call before
        each call of the agent's model, within the event loop, and at no other time.

        Returns what to store, in order. Never waits.

        Raises:
            LeaseLost, StoreUnusable: an observer, a reflector or `keep` met one.
        """
        if self.coordinator.store_lost is not None:
            raise self.coordinator.store_lost
        if self.settings is None:
            return []
        self._follow()
        changes = self._swap(self.settings, at, is_full=self.state.needs_compaction())
        if (short := self._keep_short(needed, self.settings, at)) is not None:
            changes.append(short)
        self._observe(self.settings, needed)
        self._mark()
        return changes

    def make_room(self, tokens: int, *, at: float) -> list[Change]:
        """Before a message of that size is added: activate the chunks that are ready, if it would not fit beside what is
        shown. Returns what to store, in order."""
        if self.settings is None or self.state.tokens + tokens <= self.state.limit:
            return []
        self._follow()
        changes = self._swap(self.settings, at, is_full=True)
        self._mark()
        return changes

    def _swap(self, settings: ObservationalSettings, at: float, *, is_full: bool) -> list[Change]:
        """Put what was written in its place: all of it where the context `is_full`."""
        reflected = self._publish_reflection(settings, at, activates=is_full and bool(self._chunks()))
        changes = [*([reflected] if reflected is not None else []), *self._replace_digests(at)]
        return [*changes, *self._activate(at)] if is_full else changes

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
        """Take up the chunks of an earlier process, as far as they have a place in the context."""
        self._join(chunks)
        self._read_up_to = max((chunk.covers[1] for chunk in chunks), default=0)
        self._mark()

    def _chunks(self) -> list[ObservationChunk]:
        return self.coordinator.get_completed_chunks()[0]

    def _start(self) -> int:
        tail = self.state.verbatim
        return tail[0].seq if tail else self.state.last_seq + 1

    def _follow(self) -> None:
        """After whatever happened to the view: keep the chunks that have a place in it, and drop what the running
        observer will say if it has none."""
        if self._observing is not None and not self.coordinator.is_observer_in_flight():
            self._observing = None
        if self._observing is not None and self._digested(self._observing.covers) is None:
            self.coordinator.advance_epoch()
        self._join(self._chunks())

    def _digested(self, covers: tuple[int, int]) -> int | None:
        """Tokens of the provisional digests that would give way to a chunk of these messages; None where it has no place
        in the view."""
        first, last = covers
        over = [
            one for one in self.state.view.observations if one.covers[1] >= first and one.covers[0] <= last
        ]
        if last > self.state.last_seq or any(not one.provisional or one.covers[1] > last for one in over):
            return None
        if (over[0].covers[0] if over else max(first, self._start())) != first:
            return None
        return sum(one.tokens for one in over)

    def _join(self, chunks: Sequence[ObservationChunk]) -> None:
        """Keep those of the chunks that have digests to replace, or cover the verbatim messages from the first one on
        without a gap."""
        start = place = self._start()
        kept: list[ObservationChunk] = []
        for chunk in chunks:
            first, last = chunk.covers
            if self._digested(chunk.covers) is not None and (first < start or first == place):
                kept.append(chunk)
                place = max(place, last + 1)
        self.coordinator.restore_state(BufferingState(tuple(kept), place - start))

    def _pending(self) -> list[tuple[int, int]]:
        """What the chunks that wait, and the running observer, cover."""
        waiting = [chunk.covers for chunk in self._chunks()]
        return [*waiting, self._observing.covers] if self._observing is not None else waiting

    def _mark(self) -> None:
        """Have digests split at the bounds of what waits and of what is being read, so that it can replace them."""
        wanted = {mark for first, last in self._pending() for mark in (first - 1, last) if mark}
        for mark in self._marks - wanted:
            self.state.end_pass(mark)
        for mark in wanted - self._marks:
            self.state.begin_pass(mark)
        self._marks = wanted

    def _observe(self, settings: ObservationalSettings, needed: Callable[[CompactionPass], bool]) -> None:
        """Launch an observer where enough messages are unobserved, if it is needed."""
        state, tail, coordinator = self.state, self.state.verbatim, self.coordinator
        if state.tokens < state.threshold * OBSERVE_FROM or coordinator.is_observer_in_flight():
            return
        watermark = coordinator.get_watermark()
        again = self._unread_digests(settings.buffer) if watermark == 0 else []
        taken = sum(state.shown_tokens(message) for message in again)
        unobserved = taken + sum(state.shown_tokens(message) for message in tail[watermark:])
        until = max(1, state.threshold - self._log_tokens())
        interval = coordinator.compute_buffer_interval(until, settings.buffer)
        if not coordinator.should_buffer(unobserved, interval):
            return
        end = self._end_of_chunk(settings.buffer, watermark, len(tail), taken)
        messages = (*again, *tail[watermark:end])
        if not messages:
            return
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
        if not needed(run):
            return
        self._observing, self._read_up_to = run, run.high_water
        coordinator.launch_observer(lambda *_: self._observed(run), messages, end)

    async def _observed(self, run: CompactionPass) -> ObserverOutput:
        prepared = await self._written(run)
        return ObserverOutput(
            prepared.text, prepared.current_task, prepared.suggested_response, run.covers, prepared.citations
        )

    def _unread_digests(self, config: BufferConfig) -> list[Message]:
        """The messages of the provisional digests that are the newest observations, and which no observer has read."""
        found: list[Message] = []
        for one in reversed(self.state.view.observations):
            again = self.state.covered_by(one)
            tokens = sum(message.tokens for message in (*again, *found))
            if not one.provisional or one.covers[0] <= self._read_up_to:
                break
            if not again or tokens > _most_read(config):
                break
            found = [*again, *found]
        return found

    def _end_of_chunk(self, config: BufferConfig, start: int, end: int, taken: int) -> int:
        """The last allowed cut up to `end` that one observer's window holds beside what is `taken`; else the first allowed
        one."""
        tail = self.state.verbatim
        allowed = cut_points(tail)
        room, best, before = _most_read(config), start, taken
        for place in range(start, end):
            taken += self.state.shown_tokens(tail[place])
            if taken > room and (best > start or before):
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

    def _replace_digests(self, at: float) -> list[Change]:
        """Put chunks that came late in place of the digests of their messages, if there is room."""
        state, changes = self.state, list[Change]()
        for chunk in self._chunks():
            digested = self._digested(chunk.covers) or 0
            if chunk.covers[1] >= self._start():
                break
            activation = self._activation([chunk])
            if state.tokens - digested + activation.tokens > max(state.threshold, state.tokens):
                break
            changes += self._published(activation, at)
            self._join(self._chunks()[1:])
        return changes

    def _activate(self, at: float) -> list[Change]:
        """Put waiting chunks in place of their messages, as one observation."""
        chunks = [chunk for chunk in self._chunks() if chunk.covers[1] >= self._start()]
        taken = chunks[: self._how_many(chunks)]
        if not taken:
            return []
        last = taken[-1].covers[1]
        changes = self._published(self._activation(taken), at)
        if not changes:
            # Observing the same messages once more would end in the same way: a digest takes their place.
            digest = self.state.digest(up_to=last, at=at)
            changes = [digest] if digest is not None else []
        self._join([chunk for chunk in self._chunks() if chunk not in taken])
        return changes

    def _published(self, activation: Prepared, at: float) -> list[Change]:
        change = self.state.publish(activation, at=at)
        if isinstance(change, Rejection):
            log.warning("chunks for messages up to %d not used: %s", activation.covers[1], change.reason)
            return []
        return [change]

    def _how_many(self, chunks: Sequence[ObservationChunk]) -> int:
        """As many chunks as leave about a fifth of the window verbatim, one at least; but the newest turn stays."""
        tail = self.state.verbatim
        sizes = {message.seq: self.state.shown_tokens(message) for message in tail}
        left, allowed = sum(sizes.values()), 0
        newest = tail[newest_turn(tail)].seq if tail else 0
        for count, chunk in enumerate(chunks):
            if chunk.covers[1] >= newest:
                break
            left -= sum(sizes.get(seq, 0) for seq in range(chunk.covers[0], chunk.covers[1] + 1))
            if left < self.state.limit * KEEP_VERBATIM and count:
                break
            allowed = count + 1
        return allowed

    def _activation(self, taken: Sequence[ObservationChunk]) -> Prepared:
        count = self.state.counter.count
        covers = (taken[0].covers[0], taken[-1].covers[1])
        text = "\n".join(chunk.observations for chunk in taken)
        source = sum(chunk.message_tokens_observed for chunk in taken)
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
        self, needed: Callable[[CompactionPass], bool], settings: ObservationalSettings, at: float
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
            self._reflect(settings, needed)
        if need == "async":
            return None
        change = self.state.fold(at=at)
        if change is not None:
            self._folded, self._reflect_from = self._reflecting is not None, 0
        return change

    def _reflect(self, settings: ObservationalSettings, needed: Callable[[CompactionPass], bool]) -> None:
        # A digest that an observer is about to replace is not part of the log yet.
        pending = min((first for first, _ in self._pending()), default=self.state.last_seq + 1)
        observations = tuple(one for one in self.state.view.observations if one.covers[1] < pending)
        if not observations or (len(observations) == 1 and observations[0].provisional):
            return
        run = CompactionPass(
            kind=ObservationKind.REFLECTION,
            covers=(observations[0].covers[0], observations[-1].covers[1]),
            earlier=observations,
            merged=observations,
            source_tokens=sum(one.tokens for one in observations),
            instructions=settings.reflector_instruction,
            base_version=self.state.view.version,
            epoch=self.state.epoch,
        )
        if not needed(run):
            return
        self._reflecting, self._reflected = run, None
        self.state.begin_pass(run.high_water)

        async def reflect(_: object) -> ReflectorOutput:
            self._reflected = await self._written(run)
            return ReflectorOutput(self._reflected.text)

        self.coordinator.launch_reflector(reflect, None)

    def _publish_reflection(
        self, settings: ObservationalSettings, at: float, *, activates: bool
    ) -> Change | None:
        """Apply a reflection when it is due: at the threshold, when a digest has taken its place, or where an activation
        voids the cache anyway."""
        if self._reflecting is None or self.coordinator.is_reflector_in_flight():
            return None
        tokens, reflected = self._log_tokens(), self._reflected
        if not self.coordinator.has_buffered_reflection() or reflected is None:
            # It failed: try again only when there is more to consolidate.
            self._reflect_from = int(tokens * REFLECT_AGAIN) + 1
            self._end_reflection()
            return None
        if tokens < self._reflection_threshold(settings) and not self._folded and not activates:
            return None
        self.coordinator.consume_buffered_reflection()
        self._end_reflection()
        change = self.state.publish(reflected, at=at)
        if isinstance(change, Rejection):
            log.info("reflection not used: %s", change.reason)
            return None
        return change

    def _end_reflection(self) -> None:
        if self._reflecting is not None:
            self.state.end_pass(self._reflecting.high_water)
        self._reflecting = self._reflected = None
        self._folded = False
