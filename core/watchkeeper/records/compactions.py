"""Passes over an agent's context, as they are stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRecord:
    """A pass that is stored once it has ended: a row of `compactions`."""

    trigger: str
    status: str
    instructions: str | None = None
    reason: str | None = None
    high_water: int | None = None
    """The last message that it covers."""
    messages_removed: int = 0
    tokens_before: int | None = None
    tokens_after: int | None = None
    view_before: int | None = None
    view_after: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """How a pass that has a row ended: applied, rejected, abandoned or skipped (its agent ended first), why, and what it cost and gained.

    `tokens_before`, `high_water`, `cost_usd` and `tokens_spent`: None leaves what is stored.
    """

    status: str
    reason: str
    tokens_before: int | None = None
    tokens_after: int | None = None
    messages_removed: int = 0
    high_water: int | None = None
    """The last message that it covers."""
    view_before: int | None = None
    view_after: int | None = None
    cost_usd: float | None = None
    tokens_spent: int | None = None
    """By its own calls."""
    seconds: float | None = None
    """How long it took; None: an earlier host began it."""
    cache_tokens_invalidated: int = 0
    """Cached tokens that the next call writes again."""
