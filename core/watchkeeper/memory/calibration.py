"""How far our own token counts are from what a provider reports, per model.

The ledger of a message never changes; calibration scales the limit, between turns. Its error figure is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CLAMP = (0.5, 2.0)
"""A ratio outside this range says that usage was misreported, not that tokens are that different."""

WEIGHT = 0.2
"""Share of the newest observation in the moving ratio."""

SMALLEST_PROMPT = 200
"""Estimated tokens below which a call teaches nothing: fixed overheads dominate."""


@dataclass(slots=True)
class Calibration:
    """Moving ratio of reported to estimated prompt tokens of one model."""

    ratio: float = 1.0
    error: float = 0.0
    """Moving mean of |reported - predicted| / reported, where predicted = estimated x ratio: 0.03 reads "±3
    %"."""
    samples: int = 0

    def observe(self, *, estimated_tokens: int, reported_tokens: int) -> float:
        """Learn from one call; returns the ratio now in force. Calls too small to teach anything are
        skipped."""
        if estimated_tokens < SMALLEST_PROMPT or reported_tokens <= 0:
            return self.ratio
        seen = min(max(reported_tokens / estimated_tokens, CLAMP[0]), CLAMP[1])
        missed = abs(reported_tokens - estimated_tokens * self.ratio) / reported_tokens
        # The first sample replaces the guess of 1.0, the next ones are averaged in.
        weight = max(WEIGHT, 1.0 / (self.samples + 1))
        self.ratio += weight * (seen - self.ratio)
        self.error += weight * (missed - self.error)
        self.samples += 1
        return self.ratio

    def predict(self, estimated_tokens: int) -> int:
        """What the provider will report for a prompt that we count as `estimated_tokens`."""
        return round(estimated_tokens * self.ratio)


@dataclass(slots=True)
class Calibrations:
    """One `Calibration` per model reference."""

    models: dict[str, Calibration] = field(default_factory=dict)

    def of(self, model: str) -> Calibration:
        """The calibration of that model, new at ratio 1 when it was never called."""
        return self.models.setdefault(model, Calibration())
