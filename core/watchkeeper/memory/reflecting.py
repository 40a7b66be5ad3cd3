"""Keeping an observed log short: a reflector consolidates it beside the loop, a digest stands in where it is
late."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from watchkeeper.memory.buffering import BufferConfig, BufferingCoordinator, ReflectorOutput
from watchkeeper.memory.changes import Change, Prepared, Rejection
from watchkeeper.memory.judging import Judged, judge_log
from watchkeeper.memory.prompts import MAX_COMPRESSION, Reflector
from watchkeeper.memory.state import ContextState
from watchkeeper.records.errors import STORE_LOST
from watchkeeper.records.memory import Observation, ObservationKind

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
    """The observations that a reflector in flight reads."""

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
        self._reflected: Judged | None = None
        self._stand_in = False
        self._reflect_from = 0

    @property
    def is_open(self) -> bool:
        """Whether a reflector was launched whose text is neither swapped in nor given up."""
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
            if isinstance(judged, Judged):
                self._reflected = judged
                return replace(output, observations=judged.text)
            why = judged.reason
            log.info("a reflection at level %d was not used: %s", level, why)
        raise ValueError(f"no reflection could be used: {why}")

    def land(self, at: float) -> Change | None:
        """Swap a reflection in when it is due: at the threshold, or where a digest stands in for it."""
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
