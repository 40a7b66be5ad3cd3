"""When to start a pass: early enough that it lands before the threshold is passed, and never in a loop.

A pass is due when the tokens now, and those that will come while it runs (growth rate x how long passes
take), reach the threshold; never only at a fixed fraction. A pass that gained nothing is not repeated before
there is more to gain,
and no more than so many run in an hour: a run cannot compact itself to death (claude-code #24179).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from watchkeeper.memory.reading import ContextReading

LEAD_SHARE = 0.25
"""Of the threshold: how much earlier than it a pass may begin because the context grows fast."""

GROWTH_SHARE = 0.1
"""Of the limit: how much a history must grow after a pass that gained nothing before another one begins."""

GROWTH_AFTER_GAIN = 0.1
"""Of the limit: the same after a pass that gained something."""

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

    def due(self, state: ContextReading, now: float, expected_seconds: float) -> bool:
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

    def ended(self, state: ContextReading, *, gained: bool) -> None:
        """A pass ended, or could not begin: the history must grow before the next one, much where nothing was
        gained.

        The history, not the context: that one cannot grow beyond its limit, and the next pass would never
        come.
        """
        share = GROWTH_AFTER_GAIN if gained else GROWTH_SHARE
        self._not_before_total = state.total_tokens + int(state.limit * share)
