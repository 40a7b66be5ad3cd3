"""Figures as people read them, the same in every form."""

from __future__ import annotations

from datetime import UTC, datetime

from watchkeeper.transcripts.export.overview import Spent

GLYPHS = {
    "running": "●", "working": "●", "paused": "‖", "waiting": "?", "parked": "◷", "done": "✓", "failed": "✗", "cancelled": "×",
    "dropped": "×", "pending": "·", "idle": "·", "stale": "~",
    "applied": "✓", "rejected": "×", "abandoned": "×", "undone": "~", "prepared": "·",
}  # fmt: skip
"""State is never told by colour alone."""


def moment(at: float | None) -> str:
    """A time in UTC, to the second; a dash where there is none, or none that a calendar has."""
    if at is None:
        return "–"
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "–"


def duration(seconds: float | None) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds is None or seconds < 0:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def cost(spent: Spent) -> str:
    """`$0.1234`, or why there is no figure."""
    if spent.cost_usd is None:
        return "unpriced" if spent.total else "–"
    return f"${spent.cost_usd:,.4f}"


def glyph(status: str) -> str:
    return GLYPHS.get(status, "·")
