"""When a limit ends, as providers state it: in headers, in fields of the body, and in words.

All input comes from outside and may be wrong; a value that cannot be understood counts as absent.

Sources: `retry-after` (RFC 9110), `anthropic-ratelimit-*-reset` (docs.anthropic.com, rate limits),
`x-ratelimit-reset-*` of OpenAI-shaped servers, and the wordings of usage limits that the tests hold.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

LONGEST_PARK_SECONDS = 32 * 86_400.0
"""A month and a day: the longest period for which usage is billed. A later reset is taken for a mistake, and
for no time."""

SHORTEST_PARK_SECONDS = 10.0
"""A limit without a longer wait is not asked again sooner: each question is a request."""

MOST_CHARS = 2_000

_MILLISECONDS = 1e11
"""Seconds since 1970 are less for three thousand years."""

_SECONDS_FIELDS = ("resets_in_seconds", "reset_in_seconds", "retry_after_seconds", "retry_after")
_TIME_FIELDS = ("resets_at", "reset_at", "resetsAt", "reset_time")

_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)\s*d(?:ays?)?)?\s*(?:(\d+(?:\.\d+)?)\s*h(?:ours?|rs?)?)?\s*"
    r"(?:(\d+(?:\.\d+)?)\s*m(?:in(?:ute)?s?)?(?!s))?\s*(?:(\d+(?:\.\d+)?)\s*s(?:ec(?:ond)?s?)?)?\s*(?:(\d+(?:\.\d+)?)\s*ms)?",
    re.IGNORECASE,
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

_EPOCH = re.compile(r"limit reached\s*\|\s*(\d{9,13})(?!\d)", re.IGNORECASE)
_DATE_TIME = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ]|,? at )(\d{2}):(\d{2})(?::(\d{2}))?(?:\.\d+)?\s*(Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:access|resets?|until|available)[^\d]{0,24}(\d{4})-(\d{2})-(\d{2})", re.IGNORECASE)
_AGAIN_IN = re.compile(
    r"(?:try again|resets?|available again|retry)(?: \w+)? (?:in|after) ((?:\d+(?:\.\d+)?\s*[a-z]+[ ,]*)+)",
    re.IGNORECASE,
)
_OF_DAY = re.compile(
    r"resets?(?: at)?(?: ([a-z]{3})[a-z]* (\d{1,2}),?(?: at)?)? (\d{1,2})(?::(\d{2}))?\s*(am|pm)?\s*\(?(UTC|GMT|[A-Z][A-Za-z_]+/[A-Za-z_/]+)\)?",
    re.IGNORECASE,
)
_SPEAKS_OF_TIME = re.compile(
    r"reset|regain|try again|available again|retry|limit reached|until", re.IGNORECASE
)


def header_reset_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until the used-up limits of a response end; None if its headers name none.

    If several limits are used up, the last to end counts. A limit with a remainder does not count.
    """
    waits = []
    for name in headers:
        lower = name.lower()
        if (
            not (lower.startswith("anthropic-ratelimit-") or lower.startswith("x-ratelimit-"))
            or "reset" not in lower
        ):
            continue
        remaining = headers.get(lower.replace("reset", "remaining"))
        status = headers.get(lower.replace("reset", "status"), "")
        seconds = moment_or_duration(headers[name], now)
        if seconds is not None and (_is_none_left(remaining) or status == "rejected"):
            waits.append(seconds)
    return max(waits, default=None)


def body_reset_seconds(body: Any, message: str, now: float) -> float | None:
    """Seconds until a usage limit ends, by the fields of an error's body or by its words; None where they do
    not say.

    Negative for a time in the past.
    """
    for fields in _objects(body):
        for name in _SECONDS_FIELDS:
            seconds = _number(fields.get(name))
            if seconds is not None:
                return seconds
        for name in _TIME_FIELDS:
            value = fields.get(name)
            wait = moment_or_duration(str(value), now) if isinstance(value, str | int | float) else None
            if wait is not None:
                return wait
    return _worded_reset_seconds(message[:MOST_CHARS], now)


def _worded_reset_seconds(message: str, now: float) -> float | None:
    if not _SPEAKS_OF_TIME.search(message):
        return None
    readers: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], float | None]], ...] = (
        (_EPOCH, lambda found: _moment(float(found[1]), now)),
        (_DATE_TIME, lambda found: _date_time(found, now)),
        (_DATE, lambda found: _calendar_seconds([*map(int, found.groups()), 0, 0, 0], None, now)),
        (_AGAIN_IN, lambda found: _duration(found[1])),
        (_OF_DAY, lambda found: _time_of_day(found, now)),
    )
    return next((read(found) for form, read in readers if (found := form.search(message))), None)


def _objects(body: Any) -> list[dict[str, Any]]:
    """The objects in which an error says something: the body, its `error`, and that one's `details`."""
    found = []
    for _ in range(3):
        if not isinstance(body, dict):
            break
        found.append(body)
        inner = body.get("error")
        body = inner if isinstance(inner, dict) else body.get("details")
    return list(reversed(found))


def _is_none_left(remaining: str | None) -> bool:
    left = _number(remaining)
    return left is not None and left <= 0


def moment_or_duration(text: str, now: float) -> float | None:
    """Seconds until `2026-11-22T14:20:00Z`, a date of HTTP, or seconds or milliseconds since 1970; or `6m0s`,
    or plain seconds.

    None where it is none of these; negative for a time in the past.
    """
    text = text.strip()[:64]
    number = _number(text)
    if number is not None:
        return _moment(number, now) if number > 1e9 else number
    found = _DATE_TIME.match(text)
    if found:
        return _date_time(found, now)
    seconds = _duration(text)
    return seconds if seconds is not None else _http_date_seconds(text, now)


def _http_date_seconds(text: str, now: float) -> float | None:
    parsed = email.utils.parsedate_tz(text)
    try:
        return email.utils.mktime_tz(parsed) - now if parsed is not None else None
    except (ValueError, OverflowError):  # a year that no calendar has
        return None


def _moment(since_1970: float, now: float) -> float:
    return (since_1970 / 1000 if since_1970 > _MILLISECONDS else since_1970) - now


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _duration(text: str) -> float | None:
    found = _DURATION.fullmatch(text.strip(" .,").replace(",", " "))
    if not found or not any(found.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return days * 86_400 + hours * 3_600 + minutes * 60 + seconds + milliseconds / 1000


def _date_time(found: re.Match[str], now: float) -> float | None:
    return _calendar_seconds([int(part or 0) for part in found.groups()[:6]], found[7], now)


def _calendar_seconds(parts: list[int], zone: str | None, now: float) -> float | None:
    """Seconds until a date and time; without a zone it is UTC."""
    try:
        moment = datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:
        return None
    if zone and zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        moment -= offset if zone[0] == "+" else -offset
    return moment.timestamp() - now


def _time_of_day(found: re.Match[str], now: float) -> float | None:
    """`resets 3pm (America/Santiago)`, `resets Nov 24, 10am (UTC)`: the next such moment."""
    month, day, hour, minute, half, zone = found.groups()
    named = _zone(zone)
    if named is None or not 0 <= int(hour) <= 23 or (half and int(hour) > 12):
        return None
    hours = int(hour) % 12 + (12 if half.lower() == "pm" else 0) if half else int(hour)
    here = datetime.fromtimestamp(now, named)
    try:
        moment = here.replace(hour=hours, minute=int(minute or 0), second=0, microsecond=0)
        if month is not None:
            if month.lower() not in _MONTHS:
                return None
            moment = moment.replace(month=_MONTHS.index(month.lower()) + 1, day=int(day))
            if moment < here - timedelta(days=180):
                moment = moment.replace(year=moment.year + 1)
        elif moment <= here:
            moment += timedelta(days=1)
    except ValueError:
        return None
    return moment.timestamp() - now


def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    if name.upper() in ("UTC", "GMT"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
