"""Usage limits as programs and providers word them: which limit was reached, and when it ends.

Pure functions over text from outside, which may be wrong or hostile: what cannot be understood is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from watchkeeper.records.text import clock_text, countdown

JUST_PASSED_SECONDS = 3_600.0
"""A limit that still holds and whose stated end passed no longer ago ends soon: clocks differ, and times are
rounded."""

MOST_CHARACTERS = 2_000
"""How much of a text is read."""


@dataclass(frozen=True, slots=True)
class UsageLimit:
    """A usage limit that was reached."""

    name: str
    """What is limited, as `f"{name} limit"` reads: `session`, `weekly`, `5-hour`, `Opus weekly`, `usage`, …"""
    ends_at: float | None
    """Wall time; at most an hour before the text was said where the end has just passed. None: not said."""


def usage_limit(text: str, said_at: float | None, zone: tzinfo | None = None) -> UsageLimit | None:
    """The usage limit that a text says was reached; None for a warning (`used 91 %`), or another text.

    `said_at`: when the text was said (wall time); without it, only an end with a full date is known. `zone`: of
    times that name none; None: the machine's.
    """
    text = _plain(text)
    for start, segment in _segments(text):
        name = _reached(segment)
        if name is not None:
            end = _end(text[start:], said_at, zone)
            return UsageLimit(name, end if end is not None else _end(text, said_at, zone))
    return None


def limit_end(text: str, said_at: float | None, zone: tzinfo | None = None) -> float | None:
    """When the wait ends that an error's text asks for (wall time); None where it names no time, or only warns.

    The end of a usage limit, and of any other limit: `Please try again in 6m40s`.
    """
    if (limit := usage_limit(text, said_at, zone)) is not None:
        return limit.ends_at
    text = _plain(text)
    return None if _WARNS.search(text) else _end(text, said_at, zone)


def limit_text(limit: UsageLimit, now: float) -> str:
    """`session limit until Mon 30 Nov 07:39 (in 6:38:34)`; says if it has ended, or if its end is unknown."""
    if limit.ends_at is None:
        return f"{limit.name} limit, reset time unknown"
    try:
        when = clock_text(limit.ends_at, now)
    except (ValueError, OverflowError, OSError):
        return f"{limit.name} limit, reset time unknown"
    left = f"in {countdown(limit.ends_at - now)}" if limit.ends_at > now else "ended"
    return f"{limit.name} limit until {when} ({left})"


def session_limit(
    status: str,
    reason: str | None,
    said_at: float,
    parked_until: float | None = None,
    parked_reason: str | None = None,
) -> UsageLimit | None:
    """The usage limit that stops a session: that of its agent that is parked the shortest, or the one that its own
    `reason`, said at `said_at`, names. The reason of a session that is done is its result."""
    if parked_until is not None or parked_reason is not None:
        return parked_limit(parked_until, parked_reason)
    return usage_limit(reason, said_at) if reason and status != "done" else None


def parked_limit(parked_until: float | None, reason: str | None) -> UsageLimit:
    """The usage limit for which an agent is parked; until when is not known of some in the logs of programs."""
    worded = usage_limit(reason or "", None)
    rate = "rate" if "rate limited" in (reason or "") else "usage"
    return UsageLimit(worded.name if worded is not None else rate, parked_until)


# --- Which limit ------------------------------------------------------------------------------------------

_LIMIT = r"\b(?:limits?|quota|allowance)\b"
_REACHED = re.compile(
    rf"\b(?:hit|reached|exceeded|exhausted|used up|used 100 ?% of)\b.{{0,60}}?{_LIMIT}"
    rf"|{_LIMIT}.{{0,40}}?\b(?:reached|exceeded|hit|exhausted|used up)\b"
    r"|\b(?:out of|insufficient) .{0,30}?\b(?:credits?|usage|quota|funds)\b|\bcredit balance is too low",
    re.IGNORECASE,
)
_WARNS = re.compile(
    r"\b(?:approaching|nearing|close to|almost|nearly|about to|getting near)\b|(?<![\d.])\d{1,2}(?:\.\d+)? ?%",
    re.IGNORECASE,
)
_HYPOTHETICAL = re.compile(r"\b(?:if|when|once|before|unless|not|will|may|could)\b|n't\b", re.IGNORECASE)
_OTHER_LIMITS = re.compile(
    r"\b(?:context|length|size|output|max(?:imum)?|turns?|steps?|time|memory|depth|files?|loop|recursion|retry|tokens?)\b"
    r"(?!.*\b(?:rate|usage|per|session|weekly|daily|monthly)\b)",
    re.IGNORECASE,
)
_BEFORE_LIMIT = re.compile(r"((?:[\w.-]+ ){0,3})(?:limits?|quota|allowance)\b", re.IGNORECASE)
_LIMIT_FOR = re.compile(r"limits? (?:reached )?for (?:the )?(\d+)[ -]?(hour|day)", re.IGNORECASE)
_KIND_WORDS = re.compile(
    r"usage|session|message|rate|spend(?:ing)?|hourly|daily|weekly|monthly|\d+-(?:hour|day)|premium|request|free"
    r"|opus|sonnet|haiku|fable|gpt[\w.-]*",
    re.IGNORECASE,
)
"""Words before "limit" that say which limit it is."""
_MODELS = ("opus", "sonnet", "haiku", "fable", "gpt")
_SEPARATOR = re.compile(r"[.!?;](?=\s|$)|[\n·∙•|]|\s[-–—]+\s")


def _reached(segment: str) -> str | None:
    """The name of the limit that a sentence says was reached; None where it says nothing of the kind."""
    words = segment.replace("_", " ")
    found = _REACHED.search(words)
    if found is None or _WARNS.search(words) or _HYPOTHETICAL.search(words, 0, found.start()):
        return None
    said = words[: found.end()]
    if _OTHER_LIMITS.search(said):
        return None
    if "credit" in found[0].lower() or "funds" in found[0].lower():
        return "credit"
    if every := _LIMIT_FOR.search(words):
        return f"{every[1]}-{every[2].lower()}"
    before = _BEFORE_LIMIT.search(said)
    kinds = [word for word in (before[1].split() if before else []) if _KIND_WORDS.fullmatch(word)]
    kinds = [word if word.lower().startswith(_MODELS) else word.lower() for word in kinds]
    return " ".join(kinds) or ("extra usage" if "extra usage" in said.lower() else "usage")


def _segments(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for separator in _SEPARATOR.finditer(text):
        yield start, text[start : separator.start()]
        start = separator.end()
    yield start, text[start:]


def _plain(text: str) -> str:
    """The text with one kind of apostrophe and of space; `7:30 PM` may be joined by a narrow one."""
    text = text[:MOST_CHARACTERS].replace("’", "'").replace("`", "'").replace("*", "")
    return re.sub(r"[^\S\n]+", " ", text)


# --- When it ends -----------------------------------------------------------------------------------------

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]*\.?"
_DAY_OF_MONTH = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?![\d:]| ?[ap]\.?m\b)"

_EPOCH = re.compile(r"(?:\||\breset\w*(?: at)?[: ]) ?(\d{13}|\d{9,10})(?!\d)", re.IGNORECASE)
_ANCHOR = re.compile(
    r"\b(?:(?P<again>again)|resets?|resetting|renews?|retry|wait|available|access|until|ends?)\b"
    r"(?:[ ,:-]*\b(?:again|at|on|by|around|about|the|is|time)\b)*[ ,:-]*",
    re.IGNORECASE,
)
_IN = re.compile(r"(?:in|after)? ?(?:about |approximately |around |another |less than |~)?", re.IGNORECASE)
_ISO = re.compile(r"\b\d{4}-\d{2}-\d{2}(?:T| (?:at )?|, )\d{2}:\d{2}", re.IGNORECASE)
_WEEKDAY = re.compile(
    rf"(?:(?P<weekday>{'|'.join(_WEEKDAYS)})[a-z]*|(?P<relative>today|tomorrow))\b,? ?", re.IGNORECASE
)
_DATES = (
    re.compile(r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})(?!\d)"),
    re.compile(rf"{_MONTH} {_DAY_OF_MONTH}(?:,? (?P<year>\d{{4}}))?", re.IGNORECASE),
    re.compile(rf"{_DAY_OF_MONTH} (?:of )?{_MONTH}(?:,? (?P<year>\d{{4}}))?", re.IGNORECASE),
)
_CLOCK = re.compile(
    r"(?:T|[, ]*(?:at )?)(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.\d+)?)?)?(?!\d)"
    r"(?: ?(?P<half>[ap])\.?m\b\.?)?",
    re.IGNORECASE,
)
_BRACKET = re.compile(r" ?\(([^()]{1,60})\)")
_BARE_ZONE = re.compile(
    r" ?((?:UTC|GMT|Z)\b(?: ?[+-]\d{1,2}(?::?\d{2})?)?|[+-]\d{2}(?::?\d{2})?(?!\d)|[A-Za-z]+(?:/[\w+-]+)+|[A-Z]{1,4}T\b)"
)
_OFFSET = re.compile(r"(?:UTC|GMT|Z)? ?(?:([+-])(\d{1,2}):?(\d{2})?)?", re.IGNORECASE)
_AMERICAN = {
    f"{letter}{end}": f"America/{place}"
    for letter, place in (("P", "Los_Angeles"), ("M", "Denver"), ("C", "Chicago"), ("E", "New_York"))
    for end in ("T", "ST", "DT")
}
_UNIT_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION_PART = re.compile(
    r"(?:[ ,]*(?:and )?)(\d+(?:\.\d+)?|an?(?= )) ?"
    r"(w(?:ee)?ks?|w|d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?|ms)(?![a-z])",
    re.IGNORECASE,
)
_MILLISECONDS = 1e11
"""Seconds since 1970 are less for three thousand years."""


def duration_seconds(text: str) -> float | None:
    """`6m40.5s`, `3 hours 20 minutes`, `1 day, 2 h and 5 min` in seconds; None where a text is anything else."""
    text = text.strip(" .,")
    seconds, end = _leading_duration(text, 0)
    return seconds if seconds is not None and end == len(text) else None


def moment(since_1970: float) -> float:
    """Wall time of a number of seconds or milliseconds since 1970."""
    return since_1970 / 1000 if since_1970 > _MILLISECONDS else since_1970


def iso_moment(text: str) -> float | None:
    """Wall time of a text that begins with a date and time of ISO 8601; without a zone it is UTC."""
    return _calendar_end(text, 0, None, UTC) if _ISO.match(text) else None


def _end(text: str, said_at: float | None, zone: tzinfo | None) -> float | None:
    """The first time in a text that is said to be an end."""
    if found := _EPOCH.search(text):
        return moment(float(found[1]))
    for anchor in _ANCHOR.finditer(text):
        worded = _IN.match(text, anchor.end())
        seconds, _ = _leading_duration(text, worded.end() if worded else anchor.end())
        if seconds is not None:
            return None if said_at is None else said_at + seconds
        end = _calendar_end(text, anchor.end(), said_at, zone, shown_to_the_minute=bool(anchor["again"]))
        if end is not None:
            return end
    if _ANCHOR.search(text) and (found := _ISO.search(text)):
        return _calendar_end(text, found.start(), said_at, zone)
    return None


def _leading_duration(text: str, start: int) -> tuple[float | None, int]:
    """The length of time that a text holds at `start`, and where it ends."""
    seconds: float | None = None
    while (found := _DURATION_PART.match(text, start)) is not None:
        count = 1.0 if found[1].lower() in ("a", "an") else float(found[1])
        unit = found[2].lower()
        seconds = (seconds or 0.0) + count * _UNIT_SECONDS["ms" if unit == "ms" else unit[0]]
        start = found.end()
    return seconds, start


def _calendar_end(
    text: str,
    start: int,
    said_at: float | None,
    zone: tzinfo | None,
    *,
    shown_to_the_minute: bool = False,
) -> float | None:
    """The time that a text holds at `start`: a date, a time of day, or both, and a zone."""
    weekday = _WEEKDAY.match(text, start)
    start = weekday.end() if weekday else start
    date = next((found for form in _DATES if (found := form.match(text, start))), None)
    start = date.end() if date else start
    clock = _CLOCK.match(text, start)
    if clock is not None and clock["minute"] is None and clock["half"] is None:
        clock = None
    if clock is None and date is None and weekday is None:
        return None
    is_iso = date is not None and date.re is _DATES[0]
    named, known = _zone_at(text, clock.end() if clock else start)
    if not known:
        return None
    zone = named or (UTC if is_iso else zone)
    hour, minute, second = _time_of_day(clock) if clock else (0, 0, 0)
    if said_at is None and (date is None or not date["year"]):
        return None
    try:
        here = datetime.fromtimestamp(said_at if said_at is not None else 0.0, zone)
        ends = [
            here.replace(day.year, day.month, day.day, hour, minute, second, 0).timestamp()
            for day in _days(date, weekday, here)
        ]
    except (ValueError, OverflowError, OSError):
        return None
    if shown_to_the_minute and clock and clock["minute"] and not clock["second"]:
        ends = [end + 60 for end in ends]  # the seconds were cut off
    if said_at is None or len(ends) == 1:
        return ends[0] if ends else None
    if date is not None:
        return min(ends, key=lambda end: abs(end - said_at), default=None)
    return next((end for end in ends if end > said_at - JUST_PASSED_SECONDS), None)


def _days(date: re.Match[str] | None, weekday: re.Match[str] | None, here: datetime) -> list[datetime]:
    """The days that may be meant, in order: a date without a year is one of three."""
    if date is not None:
        named = date["month"].lower()
        month = int(named) if named.isdigit() else _MONTHS.index(named[:3]) + 1
        day = int(date["day"])
        if date["year"]:
            return [datetime(int(date["year"]), month, day)]
        years = (here.year - 1, here.year, here.year + 1)
        leap = (month, day) == (2, 29)
        return [datetime(year, month, day) for year in years if not leap or year % 4 == 0]
    today = datetime(here.year, here.month, here.day)
    if weekday is None:
        return [today + timedelta(days=offset) for offset in (-1, 0, 1)]
    if weekday["relative"]:
        return [today + timedelta(days=1 if weekday["relative"].lower() == "tomorrow" else 0)]
    wanted = _WEEKDAYS.index(weekday["weekday"].lower()[:3])
    days = (today + timedelta(days=offset) for offset in range(-1, 8))
    return [day for day in days if day.weekday() == wanted]


def _time_of_day(clock: re.Match[str]) -> tuple[int, int, int]:
    """Hour, minute and second; ValueError is raised by the calendar for what no day has."""
    hour, minute, second = int(clock["hour"]), int(clock["minute"] or 0), int(clock["second"] or 0)
    if clock["half"]:
        hour = -1 if hour > 12 else hour % 12 + (12 if clock["half"].lower() == "p" else 0)
    return hour, minute, second


def _zone_at(text: str, start: int) -> tuple[tzinfo | None, bool]:
    """The zone that is named at `start`, and whether it is known; (None, True): none is named."""
    if found := _BRACKET.match(text, start):
        zone = _zone(found[1].strip())
        is_zone = zone is not None or "/" in found[1] or found[1].strip().isupper()
        return zone, zone is not None or not is_zone
    if found := _BARE_ZONE.match(text, start):
        zone = _zone(found[1])
        return zone, zone is not None
    return None, True


def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    if name and (offset := _OFFSET.fullmatch(name)):
        sign, hours, minutes = offset.groups()
        if sign is None:
            return UTC
        distance = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if distance > timedelta(hours=15):
            return None
        return timezone(distance if sign == "+" else -distance)
    try:
        return ZoneInfo(_AMERICAN.get(name, name))
    except (KeyError, ValueError, OSError):
        return None
