"""The asynchronous lifecycle of observational memory: running calls, buffered chunks, stale results.

`BufferingCoordinator` does the bookkeeping. It calls an observer over messages ahead of need and keeps the
observations as chunks until a caller activates them. It calls a reflector over observations in the same way.
At most one call of each kind runs. The coordinator judges nothing and changes no context; the engine around
it (`watchkeeper.memory.observational`) does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from watchkeeper.memory.content import copied
from watchkeeper.memory.tokens import TokenCounter, count_message, default_counter
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


@dataclass(frozen=True, slots=True)
class BufferingState:
    """What of a coordinator outlives its process."""

    chunks: tuple[ObservationChunk, ...] = ()
    watermark: int = 0


_MEANT = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)

Observe = Callable[[list[Any], Any], Awaitable[ObserverOutput]]
Reflect = Callable[[Any], Awaitable[ReflectorOutput]]
ReflectionNeed = Literal["none", "async", "sync"]


class BufferingCoordinator:
    """See the module's docstring. Not thread-safe: use it from one event loop."""

    def __init__(self, *, counter: TokenCounter | None = None, now: Callable[[], float] = time.time) -> None:
        """`counter` counts what an observer was given (for `message_tokens_observed`); tiktoken by
        default."""
        self._counter = counter
        self._now = now
        self._chunks: list[ObservationChunk] = []
        self._watermark = 0
        self._epoch = 0
        self._aborted = False
        self.store_lost: LeaseLost | StoreUnusable | None = None
        """What an observer or a reflector met that ends all writing; its caller raises it."""
        # A slot is held by the very call that took it: one that ends after `abort` must not free another's.
        self._observer: object | None = None
        self._reflector: object | None = None
        self._reflection: ReflectorOutput | None = None
        self._tasks: set[asyncio.Task[None]] = set()

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
        return unobserved_tokens >= buffer_interval and self._observer is None and not self._aborted

    def should_reflect(
        self, observation_tokens: float, effective_threshold: float, reflection_buffer_activation: float
    ) -> ReflectionNeed:
        """`sync`: the observations exceed the threshold, act now (also while one runs or after an abort).
        `async`: launch a reflector ahead of need. `none`: neither."""
        if observation_tokens >= effective_threshold:
            return "sync"
        early = observation_tokens >= effective_threshold * reflection_buffer_activation
        return "async" if early and self._reflector is None and not self._aborted else "none"

    # --- the observer ---------------------------------------------------------------------------------------

    def launch_observer(
        self, observe: Observe, messages: Sequence[Any], end_index: int, previous_observations: Any = None
    ) -> None:
        """Call `observe(messages, previous_observations)` in the background; a no-op while a call runs or
        after an abort.

        Success appends a chunk and sets the watermark to `end_index`, an index into the verbatim messages. A
        failure is logged and frees the slot. The messages are copied, so later changes by the caller have no
        effect.

        Raises:
            RuntimeError: no event loop is running.
        """
        if self._observer is not None or self._aborted:
            return
        asyncio.get_running_loop()  # raises before the slot is taken
        slot = self._observer = object()
        epoch = self._epoch
        given = [_copy(message) for message in messages]
        self._spawn(self._observe(observe, given, end_index, previous_observations, epoch, slot))

    async def _observe(
        self, observe: Observe, messages: list[Any], end_index: int, previous: Any, epoch: int, slot: object
    ) -> None:
        try:
            # Counted before the call: what an observer does to its list changes no figure.
            observed = sum(self._count(message) for message in messages)
            output = await observe(messages, previous)
            if not isinstance(output, ObserverOutput):
                raise TypeError(f"the observer returned {type(output).__name__} instead of ObserverOutput")
            if self._observer is slot and epoch == self._epoch:
                self._chunks.append(
                    ObservationChunk(
                        observations=output.observations,
                        message_tokens_observed=observed,
                        created_at=self._now(),
                        current_task=output.current_task,
                        suggested_response=output.suggested_response,
                    )
                )
                self._watermark = end_index
        except _MEANT:
            raise
        except STORE_LOST as error:
            self.store_lost = error
        except (
            BaseException
        ):  # a panic of an extension module is no Exception, and the slot must be freed all the same
            log.warning("an observer failed; its messages stay unobserved", exc_info=True)
        finally:
            if self._observer is slot:
                self._observer = None

    def _count(self, message: Any) -> int:
        if isinstance(message, Message):
            return message.tokens
        counter = self._counter or default_counter()
        if isinstance(message, dict) and isinstance(message.get("content"), str | list):
            return count_message(str(message.get("role", "user")), message["content"], counter)
        return counter.count(message if isinstance(message, str) else str(message))

    def is_observer_in_flight(self) -> bool:
        """Whether the observer's slot is taken (a stale observer holds it until it ends)."""
        return self._observer is not None

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
        if self._reflector is not None or self._aborted:
            return
        asyncio.get_running_loop()  # raises before the slot is taken
        slot = self._reflector = object()
        self._spawn(self._reflect(reflect, copied(observations), slot))

    async def _reflect(self, reflect: Reflect, observations: Any, slot: object) -> None:
        try:
            output = await reflect(observations)
            if not isinstance(output, ReflectorOutput):
                raise TypeError(f"the reflector returned {type(output).__name__} instead of ReflectorOutput")
            if self._reflector is slot:
                self._reflection = output
        except _MEANT:
            raise
        except STORE_LOST as error:
            self.store_lost = error
        except BaseException:
            log.warning("a reflector failed; the observations stay as they are", exc_info=True)
        finally:
            if self._reflector is slot:
                self._reflector = None

    def is_reflector_in_flight(self) -> bool:
        """Whether the reflector's slot is taken."""
        return self._reflector is not None

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
        """Abort for good: slots are free at once, later launches do nothing, results of running calls are
        dropped.

        Completed chunks and a buffered reflection stay.
        """
        self._aborted = True
        self._observer = None
        self._reflector = None

    async def settled(self) -> None:
        """Wait until nothing that was launched is running any more, the stale and the discarded included."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop keeps weak references only
        task.add_done_callback(self._tasks.discard)


def _copy(message: Any) -> Any:
    if isinstance(message, Message):
        return replace(message, content=copied(message.content))
    return copied(message)
