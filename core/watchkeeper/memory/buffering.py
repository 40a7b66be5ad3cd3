"""The asynchronous lifecycle of observational memory: running calls, buffered chunks, stale results.

`BufferingCoordinator` does the bookkeeping. It calls an observer over messages ahead of need and keeps the
observations as chunks until a caller activates them. It calls a reflector over observations in the same way.
At most one call of each kind runs. The coordinator judges nothing and changes no context; the engine around
it (`watchkeeper.memory.engine`) does.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from watchkeeper.memory.content import copied
from watchkeeper.memory.tokens import TokenCounter, as_counter, count_message, default_counter
from watchkeeper.records.errors import STORE_LOST, LeaseLost, StoreUnusable
from watchkeeper.records.messages import Message

log = logging.getLogger(__name__)

WINDOW_SHARE = 0.6
"""The most that one observer is given, as a share of the utility model's context window."""


@dataclass(frozen=True, slots=True)
class BufferConfig:
    """How much is observed at a time."""

    target_cycles: float = 4
    """How many observers should have run by the time that chunks are activated."""
    token_cap: float = 20_000
    """The most tokens of one observer's messages."""
    min_tokens: float = 1_000
    """The fewest: below this a call of the observer does not pay. Wins over every other bound."""
    utility_model_context_window: float = 128_000
    """Context window of the model that observes and reflects, in tokens."""


@dataclass(frozen=True, slots=True)
class ObserverOutput:
    """What an observer makes of messages."""

    observations: str
    """A dated, prioritised log, with citations."""
    current_task: str | None = None
    suggested_response: str | None = None
    covers: tuple[int, int] = (0, 0)
    """First and last message of a context that the observations replace; the engine sets it."""
    citations: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReflectorOutput:
    """What a reflector makes of observations."""

    observations: str
    compression_level: int = 0


@dataclass(frozen=True, slots=True)
class ObservationChunk:
    """An observer's output, waiting to be activated."""

    observations: str
    message_tokens_observed: int
    created_at: float
    current_task: str | None = None
    suggested_response: str | None = None
    covers: tuple[int, int] = (0, 0)
    citations: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferingState:
    """What of a coordinator outlives its process."""

    chunks: tuple[ObservationChunk, ...] = ()
    watermark: int = 0


# --- Background tasks ---------------------------------------------------------------------------------------

_MEANT = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)

T = TypeVar("T")


def is_lost(task: asyncio.Future[Any]) -> bool:
    """Whether no event loop will finish this task: its own is closed, or another one runs now."""
    loop = task.get_loop()
    try:
        return loop is not asyncio.get_running_loop() or loop.is_closed()
    except RuntimeError:
        return loop.is_closed()


class BackgroundTasks:
    """Tasks that run until they end, even if no caller waits for them (an event loop only holds weak
    references)."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background. Its exception, if no caller reads it, causes no warning."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()

    def cancel(self) -> None:
        """Ask every task to stop."""
        for task in tuple(self._running):
            task.cancel()

    async def settled(self, timeout_seconds: float | None = None) -> None:
        """Wait until no task runs, or for `timeout_seconds`. The caller's own task, and tasks of an event loop
        that has ended, are not waited for."""
        current = asyncio.current_task()
        while waiting := {task for task in self._running if task is not current and not is_lost(task)}:
            _, left = await asyncio.wait(waiting, timeout=timeout_seconds)
            if left:
                return


# --- The coordinator ----------------------------------------------------------------------------------------

Observe = Callable[[list[Any], Any], Awaitable[ObserverOutput]]
Reflect = Callable[[Any], Awaitable[ReflectorOutput]]
ReflectionNeed = Literal["none", "async", "sync"]
Role = Literal["observer", "reflector"]


class BufferingCoordinator:
    """See the module's docstring. Not thread-safe: use it from one event loop."""

    def __init__(
        self,
        *,
        counter: TokenCounter | Callable[[str], int] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`counter` counts what an observer was given (for `message_tokens_observed`): a callable `str -> int` or an
        object with `count`; tiktoken by default.

        Raises:
            TypeError: a counter of another shape.
        """
        self._counter = None if counter is None else as_counter(counter)
        self._now = now
        self._chunks: list[ObservationChunk] = []
        self._watermark = 0
        self._epoch = 0
        self._aborted = False
        self.store_lost: LeaseLost | StoreUnusable | None = None
        """What an observer or a reflector met that ends all writing; its caller raises it."""
        self._slots: dict[Role, object] = {}
        """Who holds each slot: the very call that took it. One that ends after `abort` frees no other's."""
        self._reflection: ReflectorOutput | None = None
        self.tasks = BackgroundTasks()
        """Every call that was launched and has not ended, the stale ones included."""

    # --- when -----------------------------------------------------------------------------------------------

    @staticmethod
    def compute_buffer_interval(tokens_until_activation: float, config: BufferConfig) -> float:
        """Tokens of new messages from which on an observer should run; `config.min_tokens` at least."""
        even = (
            tokens_until_activation / config.target_cycles
            if config.target_cycles > 0
            else tokens_until_activation
        )
        most = min(config.token_cap, WINDOW_SHARE * config.utility_model_context_window)
        return max(min(even, most), config.min_tokens)

    def should_buffer(self, unobserved_tokens: float, buffer_interval: float) -> bool:
        """Whether to launch an observer: enough to observe, none running, not aborted."""
        return unobserved_tokens >= buffer_interval and not self.is_observer_in_flight() and not self._aborted

    def should_reflect(
        self, observation_tokens: float, effective_threshold: float, reflection_buffer_activation: float
    ) -> ReflectionNeed:
        """`sync`: the observations exceed the threshold, act now (also while one runs or after an abort).
        `async`: launch a reflector ahead of need. `none`: neither."""
        if observation_tokens >= effective_threshold:
            return "sync"
        early = observation_tokens >= effective_threshold * reflection_buffer_activation
        return "async" if early and not self.is_reflector_in_flight() and not self._aborted else "none"

    # --- the observer ---------------------------------------------------------------------------------------

    def launch_observer(
        self, observe: Observe, messages: Sequence[Any], end_index: int, previous_observations: Any = None
    ) -> None:
        """Call `observe(messages, previous_observations)` in the background; a no-op while a call runs or
        after an abort. It may be async or not; one that is not runs in a thread.

        Success appends a chunk and sets the watermark to `end_index`, an index into the verbatim messages. A
        failure is logged and frees the slot. The messages are copied, so later changes by the caller have no
        effect.

        Raises:
            RuntimeError: no event loop is running.
            TypeError: `observe` cannot be called, or `messages` is a text.
        """
        if not callable(observe) or isinstance(messages, str):
            raise TypeError(
                "launch_observer takes a function observe(messages, previous_observations) and a list of messages."
            )
        epoch, observed = self._epoch, 0
        given = [_copy(message) for message in messages]

        async def call() -> ObserverOutput:
            nonlocal observed
            # Counted before the call: what an observer does to its list changes no number.
            observed = sum(self._count(message) for message in given)
            told: ObserverOutput = await _awaited(observe, given, previous_observations)
            return told

        def keep(output: ObserverOutput) -> None:
            if epoch != self._epoch:
                return
            self._chunks.append(
                ObservationChunk(
                    observations=output.observations,
                    message_tokens_observed=observed,
                    created_at=self._now(),
                    current_task=output.current_task,
                    suggested_response=output.suggested_response,
                    covers=output.covers,
                    citations=output.citations,
                )
            )
            self._watermark = end_index

        self._launch("observer", call, ObserverOutput, keep)

    def _count(self, message: Any) -> int:
        if isinstance(message, Message):
            return message.tokens
        counter = self._counter or default_counter()
        if isinstance(message, dict) and isinstance(message.get("content"), str | list):
            return count_message(str(message.get("role", "user")), message["content"], counter)
        return counter.count(message if isinstance(message, str) else str(message))

    def is_observer_in_flight(self) -> bool:
        """Whether the observer's slot is taken (a stale observer holds it until it ends)."""
        return "observer" in self._slots

    def has_completed_chunks(self) -> bool:
        """Whether there is something to activate."""
        return bool(self._chunks)

    def get_completed_chunks(self) -> tuple[list[ObservationChunk], int]:
        """The chunks, oldest first, and the watermark: a copy, and nothing is cleared."""
        return list(self._chunks), self._watermark

    def commit_activation(self) -> None:
        """The context contains the chunks now: drop them, restart at index 0, and make running observers
        stale."""
        self._chunks.clear()
        self._watermark = 0
        self._epoch += 1

    def advance_epoch(self) -> None:
        """Make running observers stale: they keep their slot until they end, and their result is dropped."""
        self._epoch += 1

    def get_watermark(self) -> int:
        """The index into the verbatim messages up to which they are observed."""
        return self._watermark

    def set_watermark(self, index: int) -> None:
        """Set it; changes nothing else."""
        self._watermark = index

    # --- the reflector --------------------------------------------------------------------------------------

    def launch_reflector(self, reflect: Reflect, observations: Any) -> None:
        """Call `reflect(observations)` in the background; a no-op while a call runs or after an abort.

        Success keeps its output for `consume_buffered_reflection`. A failure is logged and frees the slot.
        """
        given = copied(observations)

        def keep(output: ReflectorOutput) -> None:
            self._reflection = output

        self._launch("reflector", lambda: _awaited(reflect, given), ReflectorOutput, keep)

    def is_reflector_in_flight(self) -> bool:
        """Whether the reflector's slot is taken."""
        return "reflector" in self._slots

    def has_buffered_reflection(self) -> bool:
        """Whether a reflection waits to be swapped in."""
        return self._reflection is not None

    def consume_buffered_reflection(self) -> ReflectorOutput | None:
        """Take the waiting reflection out of the buffer; None if there is none."""
        reflection, self._reflection = self._reflection, None
        return reflection

    # --- the whole ------------------------------------------------------------------------------------------

    def get_state(self) -> BufferingState:
        """A copy of the completed chunks and the watermark, without running calls and a buffered
        reflection."""
        return BufferingState(tuple(self._chunks), self._watermark)

    def restore_state(self, state: BufferingState) -> None:
        """Replace chunks and watermark by these completed chunks and this watermark."""
        self._chunks = list(state.chunks)
        self._watermark = state.watermark

    def abort(self) -> None:
        """Abort permanently: slots are free at once, later launches do nothing, results of running calls are
        dropped.

        Completed chunks and a buffered reflection stay.
        """
        self._aborted = True
        self._slots.clear()

    async def settled(self) -> None:
        """Wait until nothing that was launched is running any more, the stale and the discarded included."""
        await self.tasks.settled()

    # --- one call -------------------------------------------------------------------------------------------

    def _launch(
        self, role: Role, call: Callable[[], Awaitable[T]], output_type: type[T], keep: Callable[[T], None]
    ) -> None:
        if role in self._slots or self._aborted:
            return
        asyncio.get_running_loop()  # raises before the slot is taken
        slot = self._slots[role] = object()
        self.tasks.start(self._call(role, call, output_type, keep, slot))

    async def _call(
        self,
        role: Role,
        call: Callable[[], Awaitable[T]],
        output_type: type[T],
        keep: Callable[[T], None],
        slot: object,
    ) -> None:
        try:
            output = await call()
            if not isinstance(output, output_type):
                raise TypeError(
                    f"the {role} returned {type(output).__name__} instead of {output_type.__name__}"
                )
            if self._slots.get(role) is slot:
                keep(output)
        except _MEANT:
            raise
        except STORE_LOST as error:
            self.store_lost = error
        except BaseException:  # a panic of an extension module is no Exception, and the slot must be freed
            log.warning("a call to the %s failed; its messages stay unchanged", role, exc_info=True)
        finally:
            if self._slots.get(role) is slot:
                del self._slots[role]


async def _awaited(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, async or not; one that is not runs in a thread."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__):
        return await call(*arguments)
    said = await asyncio.to_thread(call, *arguments)
    return await said if inspect.isawaitable(said) else said


def _copy(message: Any) -> Any:
    if isinstance(message, Message):
        return replace(message, content=copied(message.content))
    return copied(message)
