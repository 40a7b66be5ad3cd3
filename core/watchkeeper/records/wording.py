"""Words that every face of the program puts in the same way."""

from __future__ import annotations

from datetime import UTC, datetime


def plural(count: int, noun: str) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def utc_text(moment: float) -> str:
    """Wall time as `2026-11-22 14:20 UTC`."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def clock_text(moment: float, now: float) -> str:
    """Local wall time for people: `14:20`, with the date where it is another day's: `Mon 24 Nov 14:20`."""
    there, here = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    return f"{there:%H:%M}" if there.date() == here.date() else f"{there:%a %d %b %H:%M}"


def countdown(seconds: float) -> str:
    """Time that is left, `1:12:03`; days before it where there are some: `2 d 3:00:00`."""
    left = max(0, int(seconds + 0.999))
    days, rest = divmod(left, 86_400)
    text = f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days} d {text}" if days else text
