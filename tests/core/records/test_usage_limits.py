"""Usage limits as programs and providers word them: which limit, and when it ends."""

import time
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.records.usage_limits import JUST_PASSED_SECONDS, duration_seconds, limit_end, usage_limit

PARIS = ZoneInfo("Europe/Paris")
SAID = "2026-11-27T19:30:05+01:00"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


ENDS = [
    # Claude Code
    ("You've hit your limit · resets 7:30pm (Europe/Paris)", "usage", "2026-11-27T19:30+01:00"),
    ("You’ve hit your limit ∙ resets 7:30 PM (Europe/Paris)", "usage", "2026-11-27T19:30+01:00"),
    ("5-hour limit reached ∙ resets 9pm", "5-hour", "2026-11-27T21:00+01:00"),
    ("Weekly limit reached - resets Dec 1 at 5pm", "weekly", "2026-12-01T17:00+01:00"),
    ("You've hit your Opus limit · resets Dec 1, 5:30pm", "Opus", "2026-12-01T17:30+01:00"),
    ("Opus weekly limit reached ∙ resets 1 December at 17:30", "Opus weekly", "2026-12-01T17:30+01:00"),
    ("You've hit your session limit · resets 8pm (America/New_York)", "session", "2026-11-28T02:00+01:00"),
    ("You've hit your limit · resets 9pm (America/Port-au-Prince)", "usage", "2026-11-28T03:00+01:00"),
    ("You've hit your limit · resets 9pm (America/Argentina/Ushuaia)", "usage", "2026-11-28T01:00+01:00"),
    ("You've hit your session limit · resets 10pm (Etc/GMT-3)", "session", "2026-11-27T20:00+01:00"),
    ("You've hit your session limit · resets 10pm (UTC+3)", "session", "2026-11-27T20:00+01:00"),
    ("You've hit your session limit · resets 11:45pm (GMT+05:30)", "session", "2026-11-27T19:15+01:00"),
    ("You've hit your session limit · resets 1pm PST", "session", "2026-11-27T22:00+01:00"),
    ("You've hit your weekly limit · resets Jan 2 at 9am (UTC)", "weekly", "2027-01-02T10:00+01:00"),
    ("You've hit your weekly limit · resets Monday at 9am", "weekly", "2026-11-30T09:00+01:00"),
    ("You've hit your weekly limit · resets Fri 7pm", "weekly", "2026-11-27T19:00+01:00"),
    ("You've hit your weekly limit · resets tomorrow at 9am", "weekly", "2026-11-28T09:00+01:00"),
    ("Claude AI usage limit reached|1796000000", "usage", "2026-11-30T00:53:20Z"),
    ("Claude AI usage limit reached|1796000000000", "usage", "2026-11-30T00:53:20Z"),
    ("Claude usage limit reached. Your limit will reset at 9pm (UTC).", "usage", "2026-11-27T22:00+01:00"),
    ("You've hit your org's monthly usage limit", "monthly usage", None),
    ("You're out of extra usage · resets 9pm (UTC)", "extra usage", "2026-11-27T22:00+01:00"),
    ("Limit reached · resets 21:00", "usage", "2026-11-27T21:00+01:00"),
    # Codex
    (
        "You've hit your usage limit. Visit https://codex.invalid/usage to purchase more credits or try again at"
        " Nov 30, 2026 7:38 AM.",
        "usage",
        "2026-11-30T07:39+01:00",
    ),
    ("You've hit your usage limit. Try again at Nov 30th, 2026 7:38 AM.", "usage", "2026-11-30T07:39+01:00"),
    ("You've hit your usage limit. Try again at 7:29 PM.", "usage", "2026-11-27T19:30+01:00"),
    ("You've hit your usage limit. Try again in 3 hours 20 minutes.", "usage", "2026-11-27T22:50:05+01:00"),
    (
        "You've hit your usage limit. Try again in 4 days, 1 hour and 2 minutes.",
        "usage",
        "2026-12-01T20:32:05+01:00",
    ),
    ("You've hit your usage limit. Try again in less than a minute.", "usage", "2026-11-27T19:31:05+01:00"),
    ("usage_limit_reached: try again later", "usage", None),
    ("Your workspace is out of credits. Add credits to continue.", "credit", None),
    # Others
    ("5-hour usage limit reached. It will reset in 2h 15m.", "5-hour usage", "2026-11-27T21:45:05+01:00"),
    ("Usage limit reached for 5 hour. It resets at 2026-11-27T21:00:00Z", "5-hour", "2026-11-27T22:00+01:00"),
    ("Usage limit reached, resets at 2026-11-27T21:00:00.000+02:00", "usage", "2026-11-27T20:00+01:00"),
    ("Quota exceeded. Resets 2026-11-27 21:00 (Europe/London)", "usage", "2026-11-27T22:00+01:00"),
    ("You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
     "usage", "2026-12-01T01:00+01:00"),
    ("You've hit your limit · resets 9pm (Middle/Earth)", "usage", None),
    ("You've hit your limit · resets 13pm", "usage", None),
    ("You've hit your limit · resets Feb 30 at 9am", "usage", None),
    ("You've used 91% of your weekly limit. You've hit your session limit · resets 9pm", "session",
     "2026-11-27T21:00+01:00"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name", "ends"), ENDS, ids=[text[:60] for text, _, _ in ENDS])
def test_a_usage_limit_names_what_is_limited_and_when_it_ends(text: str, name: str, ends: str | None) -> None:
    found = usage_limit(text, at(SAID), PARIS)
    assert found is not None
    assert found.name == name
    assert found.ends_at == (None if ends is None else at(ends))


@pytest.mark.parametrize(
    "text",
    [
        "You've used 91% of your weekly limit · resets Dec 1 at 5pm",
        "You've used 91 % of your session limit · resets 9pm",
        "Approaching usage limit · resets at 9pm",
        "You are close to your 5-hour limit. It resets in 2 hours.",
        "You've almost reached your weekly limit - resets Dec 1",
        "You've reached 80% of your monthly limit",
        "If you've reached your usage limit, try again at 9 PM.",
        "You haven't reached your usage limit",
        "Context limit reached · /compact or /clear to continue",
        "The model has reached its context window limit.",
        "Maximum output token limit exceeded",
        "All done.",
        "",
    ],
)
def test_a_warning_or_another_limit_is_not_a_usage_limit(text: str) -> None:
    assert usage_limit(text, at(SAID), PARIS) is None


@pytest.mark.parametrize("text", ["Approaching usage limit · resets at 9pm", "used 91 % · resets 9pm"])
def test_a_warning_asks_for_no_wait(text: str) -> None:
    assert limit_end(text, at(SAID), PARIS) is None


@pytest.mark.parametrize(
    ("said", "text", "ends"),
    [
        ("2026-12-31T23:50+01:00", "resets Jan 1 at 12:10am", "2027-01-01T00:10+01:00"),
        ("2027-01-01T00:05+01:00", "resets Dec 31 at 11:59pm", "2026-12-31T23:59+01:00"),
        ("2026-11-28T00:05+01:00", "resets 11:59pm", "2026-11-27T23:59+01:00"),
        ("2026-11-27T23:50+01:00", "resets 12am", "2026-11-28T00:00+01:00"),
        ("2026-11-27T11:50+01:00", "resets 12pm", "2026-11-27T12:00+01:00"),
        ("2026-11-27T23:00+01:00", "resets 9am", "2026-11-28T09:00+01:00"),
        ("2026-03-28T23:00+01:00", "resets 9am", "2026-03-29T09:00+02:00"),  # summer time begins
        ("2026-10-24T23:00+02:00", "resets 9am", "2026-10-25T09:00+01:00"),  # and ends
        ("2026-10-24T23:00+02:00", "resets Oct 26 at 9am", "2026-10-26T09:00+01:00"),
        ("2026-11-30T23:00+01:00", "resets Tuesday 12:30 a.m.", "2026-12-01T00:30+01:00"),
    ],
)
def test_a_time_without_a_date_or_year_is_the_next_or_has_just_passed(said, text, ends) -> None:
    assert limit_end(f"You've hit your limit · {text}", at(said), PARIS) == at(ends)


@given(st.datetimes(datetime(2025, 1, 1), datetime(2030, 1, 1)), st.integers(0, 24 * 60 - 1))
def test_a_time_of_day_never_waits_for_a_day_when_it_has_just_passed(now: datetime, minute: int) -> None:
    said = now.replace(tzinfo=ZoneInfo("UTC")).timestamp()
    end = limit_end(f"limit reached, resets {minute // 60:02}:{minute % 60:02} (UTC)", said)
    assert end is not None
    assert -JUST_PASSED_SECONDS < end - said <= 86_400 - JUST_PASSED_SECONDS


@pytest.fixture
def machine_in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_time_without_a_zone_is_in_the_machines_unless_one_is_given(machine_in_tokyo: None) -> None:
    said = at("2026-11-27T12:00+09:00")
    assert limit_end("limit reached, resets 9pm", said) == at("2026-11-27T21:00+09:00")
    assert limit_end("limit reached, resets 9pm", said, PARIS) == at("2026-11-27T21:00+01:00")


def test_without_the_time_of_the_text_only_a_full_date_is_an_end() -> None:
    for text in ("resets 9pm (UTC)", "resets in 2 hours", "resets Dec 1 at 9pm (UTC)"):
        found = usage_limit(f"limit reached, {text}", None)
        assert found is not None
        assert found.ends_at is None
    assert limit_end("limit reached, resets Dec 1, 2026 at 9pm (UTC)", None) == at("2026-12-01T21:00Z")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m40.5s", 400.5),
        ("3 hours 20 minutes", 12_000.0),
        ("1 day, 2 h and 5 min", 93_900.0),
        ("250ms", 0.25),
        ("an hour", 3_600.0),
        ("2 hours of work", None),
        ("hours", None),
        ("", None),
    ],
)
def test_lengths_of_time_are_read_in_every_unit(text: str, seconds: float | None) -> None:
    assert duration_seconds(text) == seconds


@given(
    st.text(),
    st.floats(0, 4e9),
    st.sampled_from(["", "limit reached resets ", "limit reached|", "again in "]),
)
def test_no_text_however_odd_breaks_the_reading(text: str, said: float, before: str) -> None:
    for found in (usage_limit(before + text, said, PARIS), usage_limit(text, None)):
        assert found is None or found.ends_at is None or isinstance(found.ends_at, float)
