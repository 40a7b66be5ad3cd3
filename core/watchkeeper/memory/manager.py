"""`HierarchicalContextManager`: an agent's context in ten lines, with any model.

    manager = HierarchicalContextManager(max_tokens=8192, summarizer=summarize)
    await manager.add_message({"role": "user", "content": "..."})
    reply = await my_model(manager.get_context())
    await manager.add_message({"role": "assistant", "content": reply})

Short-term memory is the messages shown unchanged. Long-term memory is the observations that replace older
messages. Summaries are written in the background: no call here waits for the summariser, except `compact`,
`idle` and `close`, which say so.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args, overload

from watchkeeper.memory.buffering import BackgroundTasks
from watchkeeper.memory.compactor import Compactor, PassOutcome, Summarizer, SummarizingService
from watchkeeper.memory.content import checked_message, content_size, copied
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.engine import Engine, PassTask
from watchkeeper.memory.history import (
    Change,
    CompactionPass,
    ContextLimits,
    Pin,
    Prepared,
    Preview,
    Rejection,
)
from watchkeeper.memory.tokens import (
    BESIDE_LOOP_CHARACTERS,
    Calibration,
    TiktokenCounter,
    TokenCounter,
    as_counter,
    count_message,
)
from watchkeeper.records.messages import Content, Message, Observation, Role, View

# --- A read-only list of messages without a copy ------------------------------------------------------------


def untouched(message: Message) -> Message:
    """The message for a caller, with a copy of its content, so that no caller changes the original."""
    return message if isinstance(message.content, str) else replace(message, content=copied(message.content))


class ReadOnly(Sequence[Message]):
    """A live window on a list. Slices are tuples; it equals any list or tuple of the same messages."""

    __slots__ = ("_items",)

    def __init__(self, items: list[Message]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Message]:
        return map(untouched, self._items)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return (
            tuple(map(untouched, self._items[index]))
            if isinstance(index, slice)
            else untouched(self._items[index])
        )

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, ReadOnly | list | tuple):
            return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self._items))


CLOSING_SECONDS = 1.0
"""How long `close` waits for cancelled passes, and then for callbacks."""

# --- Events of a manager about its passes -------------------------------------------------------------------
#
# A pass began, has its text, was applied, or was not.

log = logging.getLogger(__name__)

SwapEvent = Literal["swap:start", "swap:ready", "swap:complete", "swap:rejected", "swap:abandoned"]
"""A pass began; has its text; was applied (or a digest was); was rejected; was abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What callbacks of `on` are given."""

    event: SwapEvent
    messages_removed: int = 0
    """Messages that were verbatim before this swap and are not any more."""
    tokens_before: int = 0
    tokens_after: int = 0
    high_water: int | None = None
    view_version: int = 0
    stall_seconds: float = 0.0
    """How long `add_message` waited for this pass; 0 unless `max_wait_seconds` allows some."""
    reason: str = ""


Callback = Callable[[Swap], None] | Callable[[Swap], Awaitable[None]]


class Listeners:
    """Callbacks by event. A failing callback disturbs no other; a coroutine function runs in the
    background."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self.running = BackgroundTasks()
        """Callbacks that are coroutines and have not ended."""

    def add(self, event: SwapEvent, callback: Callback) -> Callable[[], None]:
        """Call `callback` at each `event`; returns how to stop it.

        Raises:
            ValueError: there is no such event.
        """
        if event not in get_args(SwapEvent):
            raise ValueError(f"Unknown event {event!r}; use one of {', '.join(get_args(SwapEvent))}.")
        listeners = self._callbacks.setdefault(event, [])
        listeners.append(callback)

        def stop() -> None:
            if callback in listeners:
                listeners.remove(callback)

        return stop

    def emit(self, swap: Swap) -> None:
        """Call every listener of this event."""
        for callback in tuple(self._callbacks.get(swap.event, ())):
            try:
                result = callback(swap)
                if inspect.isawaitable(result):
                    self.running.start(self._ended(result))
            except Exception:  # a listener's fault must not break the agent that it listens to
                log.exception("a callback for %s failed", swap.event)

    async def _ended(self, result: Awaitable[None]) -> None:
        try:
            await result
        except Exception:
            log.exception("a callback failed")


class HierarchicalContextManager:
    """See the module's docstring."""

    def __init__(
        self,
        max_tokens: int,
        summarization_threshold: float = 0.75,
        tokenizer: TokenCounter | Callable[[str], int] | None = None,
        summarizer: Summarizer | Callable[..., Any] | SummarizingService | None = None,
        *,
        reserve_tokens: int = 0,
        max_wait_seconds: float = 0.0,
        overhead_tokens: int = 0,
        agent_id: str = "agent",
        pin_first: bool = False,
        timeout_seconds: float | None = 120.0,
        passes_per_hour: int = 120,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        on_change: Callable[[Change], None] | None = None,
        state: ContextState | None = None,
    ) -> None:
        """
        Args:
            max_tokens: the window; `get_context` stays below it by `reserve_tokens` and `overhead_tokens`.
            summarization_threshold: the fraction of `max_tokens` from which on older messages are summarised.
            tokenizer: a callable `str -> int` or an object with `count`; None: tiktoken's o200k_base.
            summarizer: see `Summarizer` and `as_summarizer`; None: the deterministic digest does its work.
            max_wait_seconds: how long `add_message` may wait for a late pass before it uses a digest; 0: it
                never waits.
            pin_first: keep the first user message at the front for ever.
            timeout_seconds: limit of one call of the summariser.
            passes_per_hour: no more automatic passes than this; the digest keeps the bound without them.
            on_change: is given every `Change`, in order: the records to store.
            state: a `ContextState` made by `ContextState.restore`, to carry on from what was stored.

        Raises:
            ValueError: sizes that leave no room.
            TypeError: a summariser of the wrong shape.
        """
        if max_tokens - reserve_tokens - overhead_tokens <= 0:
            raise ValueError(
                f"max_tokens={max_tokens} is too small: reserve_tokens={reserve_tokens} and "
                f"overhead_tokens={overhead_tokens} use all of it."
            )
        if not 0.0 < summarization_threshold <= 1.0:
            raise ValueError(
                f"summarization_threshold must be above 0 and at most 1, not {summarization_threshold}."
            )
        limits = ContextLimits(max_tokens, reserve_tokens, summarization_threshold, overhead_tokens)
        counter = as_counter(tokenizer)
        self._now = now
        self._monotonic = monotonic
        self._state = state or ContextState(limits, counter, agent_id=agent_id, at=now(), pin_first=pin_first)
        self._state.set_limits(limits, self._state.calibration)
        self._messages = ReadOnly(self._state.messages)
        compactor = Compactor(
            self._state,
            summarize=summarizer,
            timeout_seconds=timeout_seconds,
            monotonic=monotonic,
        )
        self._engine = Engine(compactor, keep=self._ready, passes_per_hour=passes_per_hour)
        self._max_wait_seconds = max_wait_seconds
        self._on_change = on_change
        self._listeners = Listeners()
        self._order: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._closed = False
        self._calibration = Calibration(ratio=self._state.calibration)
        self._sent_tokens = 0
        """Size of the context that `get_context` gave last."""

    # --- what is there --------------------------------------------------------------------------------------

    def get_context(self) -> list[dict[str, Any]]:
        """The messages to send: valid for the Messages API, never above `max_tokens - reserve_tokens`. Only
        renders.

        Raises:
            WindowTooSmall: not even the newest messages fit, however short they are made.
        """
        context = self._state.render()
        self._sent_tokens = self._state.tokens
        return context

    def report_usage(self, input_tokens: int) -> float:
        """Learn from what the provider reported for the prompt that `get_context` gave last (or would give now); returns the ratio of its
        tokens to ours. The limits follow the ratio (0.5 to 2), and a context that is too large for them is shortened.

        `input_tokens`: the whole prompt, cache reads and writes included (of the Messages API: `input_tokens` +
        `cache_creation_input_tokens` + `cache_read_input_tokens`). Give `overhead_tokens` for the system prompt and
        the tools, or the ratio takes them for error. Prompts below 200 tokens teach nothing.

        Raises:
            ValueError: `input_tokens` is negative.
        """
        if input_tokens < 0:
            raise ValueError(f"input_tokens cannot be negative, but is {input_tokens}.")
        estimated = (self._sent_tokens or self._state.tokens) + self._state.limits.overhead_tokens
        ratio = self._calibration.observe(estimated_tokens=estimated, reported_tokens=input_tokens)
        self._state.set_limits(self._state.limits, ratio)
        change = self._state.fit(at=self._now())
        if change is not None:
            self._store(change)
            if change.high_water is not None:
                self._emit("swap:complete", change=change)
        return ratio

    @property
    def calibration(self) -> Calibration:
        """What `report_usage` learnt: the ratio, its mean error, and from how many calls."""
        return replace(self._calibration)

    @property
    def tokens(self) -> int:
        """Size of `get_context()`."""
        return self._state.tokens

    @property
    def messages(self) -> Sequence[Message]:
        """Every message ever added, in order. A window on it, not a copy: it costs nothing and cannot be
        changed."""
        return self._messages

    @property
    def view(self) -> View:
        """What is shown of the messages now."""
        return self._state.view

    @property
    def views(self) -> tuple[View, ...]:
        """Every version of the view, oldest first."""
        return self._state.views

    @property
    def short_term_memory(self) -> tuple[Message, ...]:
        """The messages that are shown as they are (the very large ones shortened)."""
        return tuple(untouched(message) for message in self._state.verbatim)

    @property
    def long_term_memory(self) -> tuple[Observation, ...]:
        """The observations that represent older messages."""
        return self._state.view.observations

    @property
    def state(self) -> ContextState:
        """The context underneath. Change it through the manager only."""
        return self._state

    @property
    def is_compacting(self) -> bool:
        """Whether a pass is running."""
        return self._engine.summary is not None and self._engine.summary.is_running

    # --- messages -------------------------------------------------------------------------------------------

    async def add_message(self, message: Mapping[str, Any]) -> int:
        """Add a message and return its id, the sequence number. Publishes a pass that has landed, starts one
        in time.

        Raises:
            ValueError: its role is not `user` or `assistant`.
            TypeError: its content is neither text nor a list of content blocks.
        """
        role, content = checked_message(message)
        # Counting a huge text happens in a thread; the lock keeps messages in the order in which they came.
        async with self._in_order():
            self._leave_lost()
            tokens = await self._count(role, content)
            flight = self._engine.summary
            if flight is not None and not flight.task.done():
                if self._max_wait_seconds > 0 and self._state.tokens + tokens > self._state.limit:
                    started = self._monotonic()
                    await asyncio.wait([flight.task], timeout=self._max_wait_seconds)
                    flight.stall_seconds += self._monotonic() - started
                # One turn of the event loop: a caller that never awaits anything else must not starve its
                # pass.
                await asyncio.sleep(0)
            self._land()
            before = self._state.view.version
            change = self._state.append(role, content, at=self._now(), tokens=tokens)
            self._store(change)
            if change.view.version != before and change.high_water is not None:
                self._emit("swap:complete", change=change)
            if self._engine.is_due() and not self._closed:
                self._begin_due()
            return self._state.last_seq

    def _in_order(self) -> asyncio.Lock:
        """One lock for each event loop in which the manager is used: a lock belongs to the loop that waited
        on it."""
        loop = asyncio.get_running_loop()
        if self._order is None or self._order[0] is not loop:
            self._order = (loop, asyncio.Lock())
        return self._order[1]

    def _leave_lost(self) -> None:
        """Drop a pass whose event loop has ended, since no loop will finish it."""
        if self._engine.summary is not None and self._engine.summary.is_lost:
            self._abandon("The event loop that ran the compaction has ended.")

    async def _count(self, role: Role, content: Content) -> int:
        counter = self._state.counter
        loading = isinstance(counter, TiktokenCounter) and not counter.ready
        if loading or content_size(content) > BESIDE_LOOP_CHARACTERS:
            return await asyncio.to_thread(count_message, role, content, counter)
        return count_message(role, content, counter)

    # --- compaction -----------------------------------------------------------------------------------------

    async def compact(self, up_to: int | None = None, instructions: str | None = None) -> PassOutcome:
        """Compact now and wait for the result. Messages may be added meanwhile; they stay verbatim.

        `up_to`: the id of the last message to cover. It moves back if it would separate a tool call from its
        result; `outcome.high_water` is the mark used. While another pass runs, this is a no-op that says so.
        """
        nothing = self._engine.compactor.nothing
        if self._closed:
            return nothing("The manager is closed.")
        self._leave_lost()
        flight = self._engine.summary
        if flight is not None and flight.is_running:
            high_water = flight.run.high_water
            return nothing(
                f"A compaction up to message {high_water} is already running.", high_water=high_water
            )
        self._land()
        if self._engine.compactor.summarize is None:
            return self._digest(up_to, instructions)
        begun = self._begin(up_to, instructions)
        if isinstance(begun, Rejection):
            return nothing(begun.reason)
        try:
            await asyncio.wait([begun.task])
        except asyncio.CancelledError:
            if self._engine.summary is begun:
                self._abandon("The request was cancelled.")
            raise
        if self._engine.summary is begun:
            self._land()
        return begun.outcome or nothing("The compaction was abandoned.")

    def undo(self, to: int | None = None) -> View:
        """Go back to the view before the last compaction, or to version `to`, before an earlier one; messages
        added since stay. Abandons a running pass.

        Raises:
            ValueError: there is no such view, or it no longer fits the window.
        """
        return self._move(partial(self._state.undo, to=to), "The context was restored to an earlier version.")

    def edit(
        self,
        *,
        drop: Sequence[int] = (),
        texts: Mapping[int, str] | None = None,
        pin: Sequence[int] = (),
        unpin: Sequence[int] = (),
    ) -> View:
        """Change by hand what is shown: of the messages `drop`, pointers alone; observations with other `texts`, by
        their ids; the messages `pin` as they are from now on, `unpin` no more. The messages stay stored, and `undo`
        leads back. Abandons a running pass, unless it only pins.

        Raises:
            ValueError: one of them is not in the context, nothing would change, or it would not fit.
        """
        move = partial(self._state.edit, drop=drop, texts=texts, pin=pin, unpin=unpin)
        if drop or texts:
            return self._move(move, "The context was edited.")
        change = move(at=self._now())
        self._store(change)
        return change.view

    def pin(self, *messages: int) -> View:
        """Show these messages as they are, with the other halves of their tool calls, through every later compaction,
        until `unpin` or `undo`.

        Raises:
            ValueError: one of them is not there or pinned already, they would take more than a third of the window, or
                the context would be too large.
        """
        return self.edit(pin=messages)

    def unpin(self, *messages: int) -> View:
        """Pin these messages no more: the next compactions cover them as any other.

        Raises:
            ValueError: one of them is not pinned.
        """
        return self.edit(unpin=messages)

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pinned messages with their sizes, oldest first."""
        return self._state.pins

    def preview_edit(
        self,
        *,
        drop: Sequence[int] = (),
        texts: Mapping[int, str] | None = None,
        pin: Sequence[int] = (),
        unpin: Sequence[int] = (),
        model: str | None = None,
    ) -> Preview:
        """What `edit` would lead to: tokens before and after, cached tokens that would be void, those to be written
        again (with their cost, if `model` is named, such as `anthropic/claude-sonnet-4-5`), and the prompt. Raises as
        `edit` does."""
        return self._state.preview_edit(drop=drop, texts=texts, pin=pin, unpin=unpin, model=model)

    def preview_compaction(self, up_to: int | None = None, *, model: str | None = None) -> Preview:
        """What `compact` would lead to, with a digest in the place of the summary.

        Raises:
            ValueError: there is nothing to gain.
        """
        return self._state.preview_compaction(up_to, model=model)

    def redo(self) -> View:
        """Undo the last undo.

        Raises:
            ValueError: there is none, a newer view came since, or it does not fit any more.
        """
        return self._move(self._state.redo, "The context was restored to a later version.")

    def _move(self, move: Callable[..., Change], why: str) -> View:
        change = move(at=self._now())
        self._store(change)
        self._abandon(why)
        return change.view

    async def idle(self) -> None:
        """Wait until no pass is running; finished passes are applied then."""
        self._leave_lost()
        while (flight := self._engine.summary) is not None:
            if not flight.task.done():
                await asyncio.wait([flight.task])
            if self._engine.summary is flight:
                self._land()
            self._leave_lost()

    async def close(self) -> None:
        """Abandon a running pass, start no further one, and wait until no task of the manager runs (at most a
        second).

        Messages can still be added and read.
        """
        self._closed = True
        self._abandon("The manager was closed.")
        await self._engine.stop(CLOSING_SECONDS)
        await self._listeners.running.settled(CLOSING_SECONDS)

    def on(self, event: SwapEvent, callback: Callback) -> Callable[[], None]:
        """Call `callback` (a function or a coroutine function) with a `Swap` at each `event`; returns how to
        stop it.

        Raises:
            ValueError: there is no such event.
        """
        return self._listeners.add(event, callback)

    # --- how ------------------------------------------------------------------------------------------------

    def _begin_due(self) -> None:
        if self._engine.compactor.summarize is None:
            self._digest(None, None)
            self._engine.note_end()
        else:
            self._begin(None, None, due=True)

    def _begin(
        self, up_to: int | None, instructions: str | None, *, due: bool = False
    ) -> PassTask | Rejection:
        run = self._engine.begin(up_to, instructions, due=due)
        if isinstance(run, Rejection):
            return run
        flight = self._engine.start(run)
        self._emit("swap:start", run=run, reason=instructions or "")
        return flight

    async def _ready(self, run: CompactionPass, prepared: Prepared) -> None:
        self._emit("swap:ready", run=run, reason=prepared.reason)

    def _land(self) -> None:
        """Publish the pass that has its text, if there is one."""
        flight = self._engine.summary
        if flight is None or not flight.task.done():
            return
        outcome = self._engine.publish(flight, at=self._now())
        run, stall_seconds = flight.run, flight.stall_seconds
        if flight.task.cancelled() or flight.task.exception() is not None:
            self._emit("swap:abandoned", run=run, reason=outcome.reason, stall_seconds=stall_seconds)
        elif outcome.change is None:
            self._emit("swap:rejected", run=run, reason=outcome.reason, stall_seconds=stall_seconds)
        else:
            for why in flight.task.result().refused:
                self._emit("swap:rejected", run=run, reason=why, stall_seconds=stall_seconds)
            self._store(outcome.change)
            self._emit(
                "swap:complete", change=outcome.change, reason=outcome.reason, stall_seconds=stall_seconds
            )

    def _digest(self, up_to: int | None, instructions: str | None) -> PassOutcome:
        change = self._state.digest(
            up_to=up_to, at=self._now(), instructions=instructions, keep_newest=up_to is None
        )
        if change is None:
            return self._engine.compactor.nothing(self._state.last_refusal)
        self._store(change)
        self._emit("swap:complete", change=change)
        return PassOutcome.of(change, "digest")

    def _abandon(self, reason: str) -> None:
        flight = self._engine.abandon(reason)
        if flight is not None:
            self._emit("swap:abandoned", run=flight.run, reason=reason, stall_seconds=flight.stall_seconds)

    def _emit(
        self,
        event: SwapEvent,
        *,
        run: CompactionPass | None = None,
        change: Change | None = None,
        reason: str = "",
        stall_seconds: float = 0.0,
    ) -> None:
        """Tell the listeners of a pass, or of the change that it made."""
        self._listeners.emit(
            Swap(
                event=event,
                messages_removed=change.messages_removed if change else 0,
                tokens_before=change.tokens_before if change else self._state.tokens,
                tokens_after=self._state.tokens,
                high_water=change.high_water if change else run.high_water if run else None,
                view_version=self._state.view.version,
                stall_seconds=stall_seconds,
                reason=reason or (change.reason if change else ""),
            )
        )

    def _store(self, change: Change) -> None:
        if self._on_change is not None:
            self._on_change(change)
