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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, overload

from watchkeeper.memory.compactor import CompactionPass, Compactor, Pacer, PassOutcome, Summarizer
from watchkeeper.memory.content import checked_message, content_size, copied
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import Change, ContextLimits, Prepared, Rejection
from watchkeeper.memory.tokens import (
    BESIDE_LOOP_CHARACTERS,
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


# --- Running passes -----------------------------------------------------------------------------------------
#
# A pass is a task. It may outlive the need for its result, or the event loop that ran it.

CLOSING_SECONDS = 1.0
"""How long `PassRegistry.close` waits for cancelled passes."""


@dataclass(slots=True)
class PassTask:
    """One pass: running, or finished and not yet published."""

    run: CompactionPass
    task: asyncio.Task[Prepared]
    outcome: PassOutcome | None = None
    stall_seconds: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it will still end without help."""
        return not self.task.done() and not is_lost(self.task)

    @property
    def is_lost(self) -> bool:
        """Whether it has not ended, and never will."""
        return not self.task.done() and is_lost(self.task)

    def cancel(self) -> None:
        """Ask the task to stop, if its event loop can still receive the request."""
        if not is_lost(self.task):
            self.task.cancel()


class PassRegistry:
    """Every task that was started and has not ended, the abandoned ones included."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, run: CompactionPass, work: Coroutine[Any, Any, Prepared]) -> PassTask:
        """Run `work` in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieved)
        return PassTask(run, task)

    async def close(self, others: Iterable[asyncio.Future[Any]] = ()) -> None:
        """Wait until nothing of it runs, nor of `others`; for a second at most."""
        left = {task for task in (*self._tasks, *others) if not task.done() and not is_lost(task)}
        current = asyncio.current_task()
        left = {
            task for task in left if task is not current
        }  # a listener may close the manager that calls it
        if left:
            await asyncio.wait(left, timeout=CLOSING_SECONDS)
        self._tasks = {task for task in self._tasks if not task.done() and not is_lost(task)}


def is_lost(task: asyncio.Future[Any]) -> bool:
    """Whether no event loop will finish this task: its own is closed, or another one runs now."""
    loop = task.get_loop()
    try:
        return loop is not asyncio.get_running_loop() or loop.is_closed()
    except RuntimeError:
        return loop.is_closed()


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Look at the exception, so that an abandoned pass leaves no "never retrieved" warning."""
    if not task.cancelled():
        task.exception()


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
        self._background: set[asyncio.Future[Any]] = set()

    def add(self, event: SwapEvent, callback: Callback) -> Callable[[], None]:
        """Call `callback` at each `event`; returns how to stop it.

        Raises:
            ValueError: there is no such event.
        """
        if event not in get_args(SwapEvent):
            raise ValueError(f"There is no event {event!r}; there are {', '.join(get_args(SwapEvent))}.")
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
                    task = asyncio.ensure_future(result)
                    self._background.add(task)
                    task.add_done_callback(self._ended)
            except Exception:  # a listener's fault must not break the agent that it listens to
                log.exception("a callback of %s failed", swap.event)

    def running(self) -> tuple[asyncio.Future[Any], ...]:
        """Callbacks that are coroutines and have not ended."""
        return tuple(self._background)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a callback failed", exc_info=task.exception())


def swap_of(event: SwapEvent, change: Change) -> Swap:
    """The swap that a change of the context was."""
    return Swap(
        event=event,
        messages_removed=change.messages_removed,
        tokens_before=change.tokens_before,
        tokens_after=change.tokens,
        high_water=change.high_water,
        view_version=change.view.version,
        reason=change.reason,
    )


class HierarchicalContextManager:
    """See the module's docstring."""

    def __init__(
        self,
        max_tokens: int,
        summarization_threshold: float = 0.75,
        tokenizer: TokenCounter | Callable[[str], int] | None = None,
        summarizer: Summarizer | None = None,
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
            summarizer: see `Summarizer`; None: the deterministic digest does its work.
            max_wait_seconds: how long `add_message` may wait for a late pass before it uses a digest; 0: it
                never waits.
            pin_first: keep the first user message at the front for ever.
            timeout_seconds: limit of one call of the summariser.
            passes_per_hour: no more automatic passes than this; the digest keeps the bound without them.
            on_change: is given every `Change`, in order: the records to store.
            state: a `ContextState` made by `ContextState.restore`, to carry on from what was stored.

        Raises:
            ValueError: sizes that leave no room.
        """
        if max_tokens - reserve_tokens - overhead_tokens <= 0:
            raise ValueError(
                f"max_tokens={max_tokens} leaves no room: reserve_tokens={reserve_tokens} and "
                f"overhead_tokens={overhead_tokens} take it all."
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
        self._compactor = Compactor(
            self._state, summarize=summarizer, timeout_seconds=timeout_seconds, monotonic=monotonic
        )
        self._summarizes = summarizer is not None
        self._max_wait_seconds = max_wait_seconds
        self._pacer = Pacer(passes_per_hour)
        self._on_change = on_change
        self._listeners = Listeners()
        self._flight: PassTask | None = None
        self._order: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._hangar = PassRegistry()
        self._closed = False

    # --- what is there --------------------------------------------------------------------------------------

    def get_context(self) -> list[dict[str, Any]]:
        """The messages to send: valid for the Messages API, never above `max_tokens - reserve_tokens`. Only
        renders.

        Raises:
            WindowTooSmall: not even the newest messages fit, however short they are made.
        """
        return self._state.render()

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
        """The observations that stand for older messages."""
        return self._state.view.observations

    @property
    def state(self) -> ContextState:
        """The bookkeeping underneath. Change it through the manager only."""
        return self._state

    @property
    def is_compacting(self) -> bool:
        """Whether a pass is running."""
        return self._flight is not None and self._flight.is_running

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
            flight = self._flight
            if flight is not None and not flight.task.done():
                if self._would_overflow(tokens):
                    await self._wait(flight)
                # One turn of the event loop: a caller that never awaits anything else must not starve its
                # pass.
                await asyncio.sleep(0)
            self._land()
            before = self._state.view.version
            change = self._state.append(role, content, at=self._now(), tokens=tokens)
            self._store(change)
            if change.view.version != before and change.high_water is not None:
                self._listeners.emit(swap_of("swap:complete", change))
            self._pacer.grew(self._monotonic(), self._state.total_tokens)
            self._start_if_due()
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
        if self._flight is not None and self._flight.is_lost:
            self._abandon("The event loop that the pass ran in has ended.")

    async def _count(self, role: Role, content: Content) -> int:
        counter = self._state.counter
        loading = isinstance(counter, TiktokenCounter) and not counter.ready
        if loading or content_size(content) > BESIDE_LOOP_CHARACTERS:
            return await asyncio.to_thread(count_message, role, content, counter)
        return count_message(role, content, counter)

    def _would_overflow(self, tokens: int) -> bool:
        return self._state.tokens + tokens > self._state.limit

    async def _wait(self, flight: PassTask) -> None:
        if self._max_wait_seconds <= 0:
            return
        started = self._monotonic()
        await asyncio.wait([flight.task], timeout=self._max_wait_seconds)
        flight.stall_seconds += self._monotonic() - started

    # --- compaction -----------------------------------------------------------------------------------------

    async def compact(self, up_to: int | None = None, instructions: str | None = None) -> PassOutcome:
        """Compact now and wait for the result. Messages may be added meanwhile; they stay verbatim.

        `up_to`: the id of the last message to cover. It moves back if it would separate a tool call from its
        result; `outcome.high_water` is the mark used. While another pass runs, this is a no-op that says so.
        """
        if self._closed:
            return self._nothing("The manager is closed.")
        self._leave_lost()
        if self.is_compacting:
            assert self._flight is not None
            return self._nothing(
                f"A compaction up to message {self._flight.run.high_water} is already running.",
                high_water=self._flight.run.high_water,
            )
        self._land()
        if not self._summarizes:
            return self._digest(up_to, instructions)
        flight = self._begin(up_to, instructions)
        if isinstance(flight, Rejection):
            return self._nothing(flight.reason)
        try:
            await asyncio.wait([flight.task])
        except asyncio.CancelledError:
            if self._flight is flight:
                self._abandon("The request was cancelled.")
            raise
        if self._flight is flight:
            self._land()
        return flight.outcome or self._nothing("The pass was abandoned.")

    def undo(self) -> View:
        """Go back to the view before the last compaction; messages added since stay. Abandons a running pass.

        Raises:
            ValueError: there is no such view, or it no longer fits the window.
        """
        return self._move(self._state.undo, "The context went back to an earlier version.")

    def redo(self) -> View:
        """Undo the last undo.

        Raises:
            ValueError: there is none, a newer view came since, or it does not fit any more.
        """
        return self._move(self._state.redo, "The context went on to a later version.")

    def _move(self, move: Callable[..., Change], why: str) -> View:
        change = move(at=self._now())
        self._store(change)
        self._abandon(why)
        return change.view

    async def idle(self) -> None:
        """Wait until no pass is running; finished passes are applied then."""
        while self._flight is not None:
            self._leave_lost()
            flight = self._flight
            if flight is None:
                return
            if not flight.task.done():
                await asyncio.wait([flight.task])
            if self._flight is flight:
                self._land()

    async def close(self) -> None:
        """Abandon a running pass, start no further one, and wait until no task of the manager runs (at most a
        second).

        Messages can still be added and read.
        """
        self._closed = True
        self._abandon("The manager was closed.")
        await self._hangar.close(self._listeners.running())

    def on(self, event: SwapEvent, callback: Callback) -> Callable[[], None]:
        """Call `callback` (a function or a coroutine function) with a `Swap` at each `event`; returns how to
        stop it.

        Raises:
            ValueError: there is no such event.
        """
        return self._listeners.add(event, callback)

    # --- how ------------------------------------------------------------------------------------------------

    def _start_if_due(self) -> None:
        if self._closed or self._flight is not None:
            return
        now = self._monotonic()
        if not self._pacer.due(self._state, now, self._compactor.expected_seconds()):
            return
        if not self._summarizes:
            self._pacer.ended(self._state, gained=self._digest(None, None).applied)
        elif isinstance(self._begin(None, None), Rejection):
            self._pacer.ended(self._state, gained=False)
        else:
            self._pacer.started(now)

    def _begin(self, up_to: int | None, instructions: str | None) -> PassTask | Rejection:
        run = self._compactor.begin(up_to, instructions)
        if isinstance(run, Rejection):
            return run
        self._flight = flight = self._hangar.start(run, self._prepare(run))
        self._listeners.emit(self._swap("swap:start", run, instructions or ""))
        return flight

    async def _prepare(self, run: CompactionPass) -> Prepared:
        prepared = await self._compactor.prepare(run)
        self._listeners.emit(self._swap("swap:ready", run, prepared.reason))
        return prepared

    def _land(self) -> None:
        """Publish the pass that has its text, if there is one."""
        flight = self._flight
        if flight is None or not flight.task.done():
            return
        self._flight = None
        if flight.task.cancelled() or flight.task.exception() is not None:
            self._compactor.end()
            error = None if flight.task.cancelled() else flight.task.exception()
            reason = f"The pass failed: {error}" if error else "The pass was cancelled."
            flight.outcome = self._nothing(reason)
            self._pacer.ended(self._state, gained=False)
            self._listeners.emit(self._swap("swap:abandoned", flight.run, reason, flight.stall_seconds))
            return
        outcome = self._compactor.publish(flight.task.result(), at=self._now())
        flight.outcome = outcome
        self._pacer.ended(
            self._state, gained=outcome.applied and outcome.tokens_after < outcome.tokens_before
        )
        if outcome.change is None:
            self._listeners.emit(
                self._swap("swap:rejected", flight.run, outcome.reason, flight.stall_seconds)
            )
            return
        for why in flight.task.result().refused:
            self._listeners.emit(self._swap("swap:rejected", flight.run, why, flight.stall_seconds))
        self._store(outcome.change)
        done = swap_of("swap:complete", outcome.change)
        self._listeners.emit(replace(done, reason=outcome.reason, stall_seconds=flight.stall_seconds))

    def _digest(self, up_to: int | None, instructions: str | None) -> PassOutcome:
        before = self._state.tokens
        change = self._state.digest(
            up_to=up_to, at=self._now(), instructions=instructions, keep_newest=up_to is None
        )
        if change is None:
            return self._nothing(self._state.last_refusal)
        self._store(change)
        self._listeners.emit(swap_of("swap:complete", change))
        return PassOutcome(
            applied=True,
            reason="digest",
            high_water=change.high_water,
            tokens_before=before,
            tokens_after=change.tokens,
            messages_removed=change.messages_removed,
            change=change,
        )

    def _abandon(self, reason: str) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return
        flight.cancel()
        self._compactor.end()
        flight.outcome = self._nothing(reason)
        self._listeners.emit(self._swap("swap:abandoned", flight.run, reason, flight.stall_seconds))

    def _nothing(self, reason: str, high_water: int | None = None) -> PassOutcome:
        tokens = self._state.tokens
        return PassOutcome(
            applied=False, reason=reason, high_water=high_water, tokens_before=tokens, tokens_after=tokens
        )

    def _swap(self, event: SwapEvent, run: CompactionPass, reason: str, stall_seconds: float = 0.0) -> Swap:
        """A swap that changed nothing (yet)."""
        return Swap(
            event=event,
            tokens_before=self._state.tokens,
            tokens_after=self._state.tokens,
            high_water=run.high_water,
            view_version=self._state.view.version,
            stall_seconds=stall_seconds,
            reason=reason,
        )

    def _store(self, change: Change) -> None:
        if self._on_change is not None:
            self._on_change(change)
