"""Compaction in the background of an agent's loop: snapshot, ask a model, judge, publish; or leave no trace.

A pass has two phases. *Prepare* works on a snapshot (the context up to a high-water mark) and may take any
time; it ignores messages added meanwhile. *Publish* applies the result in one move, after the checks of
`validation.spliced`. One pass runs at a time; a second request is a no-op that says so.

If the model fails, hangs, returns nothing, or returns more than it read, the pass asks once more for a
shorter text. If that fails too, the deterministic digest replaces it, so that a pass always makes progress.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from watchkeeper.memory import fitting
from watchkeeper.memory import rendering as rendered
from watchkeeper.memory.content import copied_messages
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.digest import DigestNotes
from watchkeeper.memory.history import Change, Prepared, Rejection
from watchkeeper.memory.rendering import Rendering
from watchkeeper.memory.tokens import BESIDE_LOOP_CHARACTERS
from watchkeeper.memory.validation import (
    IDENTIFIERS_SHARE,
    SMALLER_BY,
    degenerate,
    important_identifiers,
    judge_citations,
    with_identifiers,
)
from watchkeeper.records.errors import STORE_LOST
from watchkeeper.records.messages import Message, Observation, ObservationKind

# --- When a pass starts -------------------------------------------------------------------------------------
#
# A pass is due when the tokens now, plus those expected while it runs (growth rate x duration of passes),
# reach the threshold; never only at a fixed fraction. So it finishes before the threshold is passed. A pass
# that gained nothing is not repeated before there is more to gain, and the number of passes in an hour is
# limited: a run cannot compact itself to death (claude-code #24179).

LEAD_SHARE = 0.25
"""How much earlier than the threshold, as a share of it, a pass may begin because the context grows fast."""

GROWTH_SHARE = 0.1
"""How much a history must grow, as a share of the limit, before another pass follows one that gained
nothing."""

GROWTH_AFTER_GAIN = 0.1
"""The same, as a share of the limit, after a pass that gained something."""

HOUR = 3_600.0


@dataclass(slots=True)
class Pacer:
    """Decides for one agent. Times are seconds of a monotonic clock that the caller reads."""

    passes_per_hour: int = 120
    _growth: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=50))
    _starts: deque[float] = field(default_factory=deque)
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

    def ended(self, state: ContextState, *, gained: bool) -> None:
        """A pass ended, or could not begin: the history must grow before the next one, much where nothing was
        gained.

        The history, not the context: that one cannot grow beyond its limit, and the next pass would never
        come.
        """
        share = GROWTH_AFTER_GAIN if gained else GROWTH_SHARE
        self._not_before_total = state.total_tokens + int(state.limit * share)


log = logging.getLogger(__name__)

STRONGER = (
    "Your last summary could not be used ({why}). Write a much shorter one: at most {words} words. Keep"
    " every path, id, "
    "number and error message that still matters."
)
WORDS_PER_TOKEN = 0.6
STUCK_CHARACTERS = 8_000
"""Shorter summaries may repeat a statement; a longer one that repeats itself comes from a stuck model."""


class Summarizer(Protocol):
    """Any coroutine function that summarises messages, on top of what an earlier summary said."""

    def __call__(
        self, messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> Awaitable[str]: ...


@dataclass(frozen=True, slots=True)
class CompactionPass:
    """The snapshot that one pass works on."""

    covers: tuple[int, int]
    """First and last message that the summary will stand for."""
    messages: tuple[Message, ...]
    """The messages that it reads, with their numbers."""
    request: list[dict[str, Any]]
    """The same as the Messages API takes them: repaired, and shortened where the context shows them short."""
    earlier: tuple[Observation, ...]
    """The observations whose place the summary will take."""
    previous: str | None
    """Their text."""
    source_tokens: int
    instructions: str | None
    base_version: int
    epoch: int

    @property
    def high_water(self) -> int:
        """The mark that is used: the requested one, moved back so that no pair is cut."""
        return self.covers[1]


Writer = Callable[[CompactionPass, str | None], Awaitable[str]]
"""Writes the summary of a pass; the second argument are instructions (a retry's included)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """How a request for compaction ended."""

    applied: bool
    reason: str
    """`summary`, `digest: …` with why no summary was used, or why nothing was applied."""
    high_water: int | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    messages_removed: int = 0
    change: Change | None = None
    """The records to store, where something was applied."""


@dataclass(slots=True)
class Compactor:
    """Runs passes over one `ContextState`. Give it a `summarize` (see `Summarizer`) or a `write` (see
    `Writer`)."""

    state: ContextState
    summarize: Summarizer | None = None
    write: Writer | None = None
    timeout_seconds: float | None = 120.0
    """Per call of the model; a call that takes longer counts as failed."""
    attempts: int = 2
    monotonic: Callable[[], float] = time.monotonic
    durations: list[float] = field(default_factory=list)
    """Seconds that the last passes took, newest last."""
    _running: CompactionPass | None = None

    @property
    def is_compacting(self) -> bool:
        """Whether a pass is between `begin` and `end`."""
        return self._running is not None

    @property
    def running(self) -> CompactionPass | None:
        return self._running

    def begin(self, up_to: int | None = None, instructions: str | None = None) -> CompactionPass | Rejection:
        """Take the snapshot of a pass, and the one slot there is. Must be followed by `end`.

        `up_to`: the last message to cover, moved back so that no tool pair is cut; None: all but the newest
        messages.
        """
        if self._running is not None:
            return Rejection(f"A compaction up to message {self._running.high_water} is running already.")
        state = self.state
        tail = state.verbatim
        cut = state.cut_for_pass() if up_to is None else state.cut_before(up_to)
        replaced = earlier = state.view.observations
        source: Sequence[Message] = tail[:cut]
        # If the messages that a digest covers are still loaded, the summary reads those instead.
        while (
            earlier and earlier[-1].provisional and (cut or up_to is None or up_to >= earlier[-1].covers[1])
        ):
            again = state.covered_by(earlier[-1])
            if not again or sum(state.shown_tokens(message) for message in (*again, *source)) > state.limit:
                break
            source = (*again, *source)
            earlier = earlier[:-1]
        if not source:
            return Rejection(self._why_nothing(up_to, tail))
        rendering = Rendering(state.counter)
        for message in source:
            shortened = state.view.elided.get(message.seq)
            content = state.content_of(message)
            if shortened is not None:
                content = rendered.apply(content, shortened)
            rendering.push(message.role, content, message.tokens if shortened is None else shortened.tokens)
        rendering.close()  # the messages under a forced digest may end in a call whose result was lost
        self._running = CompactionPass(
            covers=(replaced[0].covers[0] if replaced else source[0].seq, source[-1].seq),
            messages=tuple(source),
            request=rendering.items,
            earlier=replaced,
            previous="\n\n".join(observation.text for observation in earlier) or None,
            source_tokens=rendering.tokens + sum(observation.tokens for observation in earlier),
            instructions=instructions,
            base_version=state.view.version,
            epoch=state.epoch,
        )
        state.begin_pass(self._running.high_water)
        return self._running

    def _why_nothing(self, up_to: int | None, tail: Sequence[Message]) -> str:
        if not tail:
            return (
                "Every message is summarised already."
                if self.state.last_seq
                else "There are no messages yet."
            )
        if up_to is not None and up_to < tail[0].seq:
            return f"Messages up to {up_to} are summarised already (or do not exist)."
        if up_to is None:
            return "Only the newest messages are left, and these stay."
        return f"A cut up to message {up_to} would separate a tool call from its result."

    def end(self) -> None:
        """Free the slot: the pass is published, rejected or abandoned."""
        if self._running is not None:
            self.state.end_pass(self._running.high_water)
            self._running = None

    async def prepare(self, run: CompactionPass) -> Prepared:
        """Ask the model, judge what it says, retry stronger, and else digest. Changes nothing.

        Cancelling it at any await leaves nothing behind (but the slot, which `end` frees).

        Raises:
            LeaseLost, StoreUnusable: the summariser met one.
        """
        started = self.monotonic()
        refused: list[str] = []
        try:
            for attempt in range(self.attempts):
                judged = await self._attempt(run, attempt, refused)
                if isinstance(judged, Prepared):
                    return replace(judged, refused=tuple(refused))
                log.info("summary of messages %d-%d not used: %s", *run.covers, judged.reason)
                refused.append(judged.reason)
            return replace(self._digest(run), refused=tuple(refused))
        finally:
            self.durations.append(self.monotonic() - started)
            del self.durations[:-20]

    async def _attempt(self, run: CompactionPass, attempt: int, refused: list[str]) -> Prepared | Rejection:
        instructions = run.instructions
        if attempt:
            words = max(20, int(run.source_tokens * WORDS_PER_TOKEN / 4**attempt))
            stronger = STRONGER.format(why=refused[-1], words=words)
            instructions = f"{instructions}\n\n{stronger}" if instructions else stronger
        patience = asyncio.timeout(self.timeout_seconds)
        try:
            async with patience:
                if self.write is not None:
                    text = await self.write(run, instructions)
                elif self.summarize is not None:
                    said: Any = self.summarize(
                        copied_messages(run.request), instructions=instructions, previous=run.previous
                    )
                    text = await said if inspect.isawaitable(said) else said
                else:
                    return Rejection("There is no summariser.")
        except STORE_LOST:
            raise
        except Exception as error:
            if patience.expired():
                return Rejection(f"The summariser took longer than {self.timeout_seconds} seconds.")
            return Rejection(f"The summariser failed: {type(error).__name__}: {error}"[:300])
        if not isinstance(text, str):
            return Rejection(f"The summariser returned {type(text).__name__} instead of text.")
        return await self._judge(run, text)

    async def _judge(self, run: CompactionPass, text: str) -> Prepared | Rejection:
        counter = self.state.counter
        most = int(run.source_tokens * (1 - SMALLER_BY))
        if len(text) > max(4_000, 40 * run.source_tokens):
            return Rejection(
                f"The summary has {len(text)} characters for {run.source_tokens} tokens of messages."
            )
        stuck = degenerate(text) if len(text) > STUCK_CHARACTERS else None
        if stuck:
            return Rejection(f"The summary is degenerate: {stuck}.")
        judged = judge_citations(text, run.covers, run.messages, [have.text for have in run.earlier])
        if isinstance(judged, Rejection):
            return judged
        if len(judged.text) > BESIDE_LOOP_CHARACTERS:
            tokens = await asyncio.to_thread(counter.count, judged.text)
        else:
            tokens = counter.count(judged.text)
        if tokens > most:
            return Rejection(
                f"The summary takes {tokens} tokens, what it read {run.source_tokens}: not smaller by 5 %."
            )
        found = await important_identifiers(run.messages, run.earlier)
        room = min(most - tokens, int(self.state.limit * IDENTIFIERS_SHARE))
        text = await with_identifiers(judged.text, found, room, counter)
        tokens = counter.count(text)
        if tokens > most:  # lines counted one by one may count a little more together
            text = judged.text
            tokens = counter.count(text)
        return self._prepared(run, text, tokens, judged.citations, ObservationKind.SUMMARY, "summary")

    def _digest(self, run: CompactionPass) -> Prepared:
        notes = DigestNotes.gather(
            self.state.agent_id,
            run.covers,
            run.earlier,
            run.messages,
            run.instructions,
            notebook=self.state.notebook,
        )
        budget = min(fitting.digest_budget(self.state.limit), run.source_tokens // 2)
        text, citations, tokens = notes.write(budget, self.state.counter)
        return self._prepared(run, text, tokens, citations, ObservationKind.DIGEST, "digest")

    def _prepared(
        self,
        run: CompactionPass,
        text: str,
        tokens: int,
        citations: tuple[int, ...],
        kind: ObservationKind,
        reason: str,
    ) -> Prepared:
        return Prepared(
            text=text,
            tokens=tokens,
            covers=run.covers,
            citations=citations,
            replaces=tuple(observation.id for observation in run.earlier),
            source_tokens=run.source_tokens,
            base_version=run.base_version,
            epoch=run.epoch,
            kind=kind,
            reason=reason,
        )

    def publish(self, prepared: Prepared, *, at: float) -> PassOutcome:
        """Apply a prepared pass and free the slot; if it cannot be applied, the outcome says why."""
        before = self.state.tokens
        try:
            change = self.state.publish(prepared, at=at)
        finally:
            self.end()
        if isinstance(change, Rejection):
            return PassOutcome(applied=False, reason=change.reason, tokens_before=before, tokens_after=before)
        reason = prepared.reason
        if prepared.kind is ObservationKind.DIGEST and prepared.refused:
            reason = f"digest: {prepared.refused[-1]}"
        return PassOutcome(
            applied=True,
            reason=reason,
            high_water=prepared.covers[1],
            tokens_before=before,
            tokens_after=change.tokens,
            messages_removed=change.messages_removed,
            change=change,
        )

    def republish(self, prepared: Prepared, *, at: float) -> PassOutcome:
        """Publish a pass that a session which ended had prepared, if only the bound changed the context
        since."""
        if not self.state.descends_from(prepared.base_version):
            before = self.state.tokens
            return PassOutcome(
                applied=False,
                reason=f"The context is not the one (version {prepared.base_version}) that the pass read.",
                tokens_before=before,
                tokens_after=before,
            )
        return self.publish(replace(prepared, epoch=self.state.epoch), at=at)

    async def run(
        self, up_to: int | None = None, instructions: str | None = None, *, at: float
    ) -> PassOutcome:
        """A whole pass: `begin`, `prepare`, `publish`. For callers that alone change their state between
        turns."""
        before = self.state.tokens
        started = self.begin(up_to, instructions)
        if isinstance(started, Rejection):
            return PassOutcome(
                applied=False, reason=started.reason, tokens_before=before, tokens_after=before
            )
        try:
            prepared = await self.prepare(started)
            return self.publish(prepared, at=at)
        finally:
            if self._running is started:
                self.end()

    def expected_seconds(self) -> float:
        """The 95th percentile of what passes took; 0 while none has run."""
        if not self.durations:
            return 0.0
        ordered = sorted(self.durations)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
