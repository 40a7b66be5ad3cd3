"""What is left of a provider's usage windows, as programs and providers state it.

A *window* is a length of time with an allowance, usually of five hours and of a week. Three sources state how much of it is
used: the logs of Codex, the headers of Anthropic's replies, and the status data of Claude Code. The functions here are pure
and read what comes from outside: a figure that is missing or makes no sense gives no reading, never a zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from watchkeeper.records.text import clock_text, countdown, one_line
from watchkeeper.records.usage_limits import moment

LOW_PERCENT, VERY_LOW_PERCENT = 20.0, 5.0
"""Less than this is left: the dashboard says so, and an alert is sent."""
SHORTEST_PACE_SECONDS = 60.0
"""Readings nearer to each other give no pace: they are rounded to whole percents."""
SAME_RESET_SECONDS = 600.0
"""Two readings are of one window if their resets differ by no more: some sources round, or count from their own clock."""
MOST_MINUTES = 60 * 24 * 62

HEADERS, CODEX, STATUS_DATA = "response headers", "Codex", "Claude Code's status data"


@dataclass(frozen=True, slots=True)
class QuotaReading:
    """How much of one window was used at one time."""

    provider: str
    account: str
    """Empty: the source does not name it."""
    scope: str
    """What the window is for, such as one model; empty: all."""
    minutes: int
    """The window's length."""
    used_percent: float
    resets_at: float | None
    at: float
    source: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.provider, self.account, self.scope, self.minutes


@dataclass(frozen=True, slots=True)
class Quota:
    """The newest reading of a window, and the first one since it began."""

    newest: QuotaReading
    first_percent: float
    first_at: float

    def is_known(self, now: float) -> bool:
        """Whether the newest reading still holds: its window has not been reset since."""
        ends = self.newest.resets_at
        return now < (self.newest.at + self.newest.minutes * 60 if ends is None else ends)

    def left_percent(self, now: float) -> float | None:
        """What is left; None: unknown."""
        return max(0.0, 100.0 - self.newest.used_percent) if self.is_known(now) else None

    def runs_out_at(self, now: float) -> float | None:
        """When nothing is left at the pace between the first reading and the newest; None: unknown, or nothing grew."""
        seconds, grown = self.newest.at - self.first_at, self.newest.used_percent - self.first_percent
        if not self.is_known(now) or seconds < SHORTEST_PACE_SECONDS or grown <= 0:
            return None
        return self.newest.at + max(0.0, 100.0 - self.newest.used_percent) * seconds / grown

    def is_low(self, now: float) -> bool:
        """Whether little is left."""
        left = self.left_percent(now)
        return left is not None and left < LOW_PERCENT

    def as_json(self, now: float) -> dict[str, Any]:
        """As `wk usage --json` and the MCP server say it: null is unknown."""
        known = self.is_known(now)
        return {
            "provider": self.newest.provider,
            "account": self.newest.account or None,
            "window": window_name(self.newest),
            "left_percent": self.left_percent(now),
            "resets_at": self.newest.resets_at if known else None,
            "runs_out_at": self.runs_out_at(now),
            "read_at": self.newest.at,
            "source": self.newest.source,
        }


def is_same_window(one: QuotaReading, later: QuotaReading) -> bool:
    """Whether two readings with the same key are of the same window, not of the one that came after its reset."""
    if one.resets_at is not None and later.resets_at is not None:
        return abs(one.resets_at - later.resets_at) <= SAME_RESET_SECONDS
    ends = one.resets_at if one.resets_at is not None else one.at + one.minutes * 60
    return later.at < ends and later.used_percent >= one.used_percent


def window_name(reading: QuotaReading) -> str:
    """`5-hour`, `weekly`, `weekly opus`. Hostile text was sanitised."""
    minutes = reading.minutes
    if minutes == 7 * 1_440:
        name = "weekly"
    elif minutes % 1_440 == 0:
        name = f"{minutes // 1_440}-day"
    else:
        name = f"{minutes // 60}-hour" if minutes % 60 == 0 else f"{minutes}-minute"
    return f"{name} {reading.scope}" if reading.scope else name


def owner_name(reading: QuotaReading) -> str:
    """`anthropic, account 1a2b`; says if the account is not known."""
    return f"{reading.provider}, {f'account {reading.account}' if reading.account else 'unknown account'}"


def left_words(left_percent: float) -> str:
    """`12 % left`. It is never rounded up."""
    return "under 1 % left" if 0 < left_percent < 1 else f"{int(left_percent)} % left"


def quota_words(quota: Quota, now: float) -> str:
    """What is left, when it resets, and how long it lasts: `12 % left, resets 21:00 (in 3:10:00), lasts until 19:40 at this pace`."""
    left = quota.left_percent(now)
    if left is None:
        return f"unknown; last read {clock_text(quota.newest.at, now)}"
    words = [left_words(left)]
    resets_at, ends = quota.newest.resets_at, quota.runs_out_at(now)
    words.append(
        "reset unknown"
        if resets_at is None
        else f"resets {clock_text(resets_at, now)} (in {countdown(resets_at - now)})"
    )
    if ends is not None and resets_at is not None and ends >= resets_at:
        words.append("lasts beyond the reset at this pace")
    elif ends is not None:
        words.append(f"lasts until {clock_text(ends, now)} at this pace")
    return ", ".join(words)


# --- Sources ----------------------------------------------------------------------------------------------


def codex_readings(limits: Any, at: float | None) -> Iterator[QuotaReading]:
    """What Codex states, in its logs (`used_percent`) or to its clients (`usedPercent`). It names no account."""
    if not isinstance(limits, dict) or at is None:
        return
    limit = limits.get("limit_id", limits.get("limitId"))
    name = limits.get("limit_name", limits.get("limitName")) or limit
    scope = _scope(name) if isinstance(limit, str) and limit != "codex" else ""
    for place in ("primary", "secondary"):
        found = limits.get(place)
        if isinstance(found, dict):
            minutes = _number(found.get("window_minutes", found.get("windowDurationMins")))
            used = _number(found.get("used_percent", found.get("usedPercent")))
            ends = _number(found.get("resets_at", found.get("resetsAt")))
            left = _number(found.get("resets_in_seconds"))
        else:  # as the first versions wrote it
            minutes = _number(limits.get(f"{place}_window_minutes"))
            used = _number(limits.get(f"{place}_used_percent"))
            ends = left = None
        if ends is None and left is not None:
            ends = at + left
        yield from _reading("openai", "", scope, minutes, used, ends, at, CODEX)


_UTILISATION = re.compile(
    r"anthropic-ratelimit-unified-(\d{1,3})([hd])(?:_([a-z0-9_]{1,40}))?-utilization", re.IGNORECASE
)


def header_readings(headers: Mapping[str, str], at: float) -> Iterator[QuotaReading]:
    """What a reply of Anthropic states of a subscription: `anthropic-ratelimit-unified-5h-utilization`, a part of one, and
    `…-reset`. Keys that are paid by use have no such windows."""
    account = one_line(headers.get("anthropic-organization-id") or "", 80)
    for name, value in headers.items():
        if (found := _UTILISATION.fullmatch(name)) is None:
            continue
        minutes = int(found[1]) * (60 if found[2].lower() == "h" else 1_440)
        part, ends = _number(value), _number(headers.get(name[: -len("utilization")] + "reset"))
        used = None if part is None else part * 100
        yield from _reading("anthropic", account, _scope(found[3] or ""), minutes, used, ends, at, HEADERS)


_STATUS_WINDOW = re.compile(r"(five_hour|seven_day)(?:_([a-z0-9_]{1,40}))?")


def status_readings(limits: Any, at: float) -> Iterator[QuotaReading]:
    """What Claude Code hands to the command of its status line: `five_hour` and `seven_day` below `rate_limits`, each with
    `used_percentage` and `resets_at`. It names no account."""
    for name, found in limits.items() if isinstance(limits, dict) else ():
        window = _STATUS_WINDOW.fullmatch(name)
        if window is None or not isinstance(found, dict):
            continue
        minutes = 300 if window[1] == "five_hour" else 10_080
        used, ends = _number(found.get("used_percentage")), _number(found.get("resets_at"))
        yield from _reading("anthropic", "", _scope(window[2] or ""), minutes, used, ends, at, STATUS_DATA)


def _reading(
    provider: str, account: str, scope: str, minutes: float | None, used: float | None, ends: float | None, at: float, source: str
) -> Iterator[QuotaReading]:  # fmt: skip
    if minutes is None or used is None or not 1 <= minutes <= MOST_MINUTES or not 0 <= used <= 1_000:
        return
    ends = None if ends is None else moment(ends)
    if ends is not None and not at - minutes * 60 <= ends <= at + 2 * minutes * 60:
        ends = None  # no reset of this window
    yield QuotaReading(provider, account, scope, int(minutes), used, ends, at, source)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _scope(value: Any) -> str:
    return one_line(value.replace("_", " "), 40) if isinstance(value, str) else ""
