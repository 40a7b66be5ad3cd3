"""What is left of usage windows: what sources state, what is unknown, and how long it lasts."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.records.quota import (
    Quota,
    QuotaReading,
    codex_readings,
    header_readings,
    is_same_window,
    quota_words,
    status_readings,
    window_name,
)

NOW = datetime(2026, 11, 28, 18, 0, tzinfo=UTC).timestamp()
HOUR = 3_600.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def reading(
    used: float, at: float = NOW, resets_at: float | None = NOW + 3 * HOUR, minutes: int = 300
) -> QuotaReading:
    return QuotaReading("anthropic", "", "", minutes, used, resets_at, at, "test")


def told(readings: Any) -> list[tuple[str, str, str, float, float | None]]:
    return [
        (each.provider, each.account, window_name(each), each.used_percent, each.resets_at)
        for each in readings
    ]


CODEX = [
    (  # as of 0.146
        {"limit_id": "codex", "limit_name": None, "primary": {"used_percent": 1.0, "window_minutes": 10_080,
         "resets_at": NOW + 50 * HOUR}, "secondary": None, "credits": {"balance": "0"}},
        [("openai", "", "weekly", 1.0, NOW + 50 * HOUR)],
    ),
    (
        {"primary": {"used_percent": 12.5, "window_minutes": 300, "resets_in_seconds": 600},
         "secondary": {"used_percent": 40, "window_minutes": 10_080, "resets_in_seconds": 7_200}},
        [("openai", "", "5-hour", 12.5, NOW + 600), ("openai", "", "weekly", 40, NOW + 7_200)],
    ),
    (  # the first versions: no reset
        {"primary_used_percent": 7, "secondary_used_percent": 3, "primary_window_minutes": 300, "secondary_window_minutes": 10_080},
        [("openai", "", "5-hour", 7, None), ("openai", "", "weekly", 3, None)],
    ),
    (  # to clients of its server; a limit of one model
        {"limitId": "codex_mini", "limitName": "Mini", "primary": {"usedPercent": 3, "windowDurationMins": 60, "resetsAt": NOW + 60}},
        [("openai", "", "1-hour Mini", 3, NOW + 60)],
    ),
    ({"primary": {"used_percent": 0, "window_minutes": 0, "resets_at": 0}}, []),  # which window it is, is not stated
    ({"primary": {"window_minutes": 300, "resets_at": NOW + 60}}, []),
    ({"primary": {"used_percent": True, "window_minutes": 300}}, []),
    ({"primary": {"used_percent": float("nan"), "window_minutes": 300}}, []),
    ({"primary": {"used_percent": 5, "window_minutes": 300, "resets_at": 12}}, [("openai", "", "5-hour", 5, None)]),
    (None, []),
    ([], []),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "expected"), CODEX)
def test_codex_states_windows_by_their_length(limits: Any, expected: list[Any]) -> None:
    assert told(codex_readings(limits, NOW)) == expected


def test_headers_of_a_subscription_state_its_windows_and_its_account() -> None:
    headers = {
        "anthropic-organization-id": "org-1",
        "anthropic-ratelimit-unified-status": "allowed",
        "anthropic-ratelimit-unified-5h-utilization": "0.36",
        "anthropic-ratelimit-unified-5h-reset": str(int(NOW + HOUR)),
        "anthropic-ratelimit-unified-7d-utilization": "0.5",
        "anthropic-ratelimit-unified-7d_opus-utilization": "1.0",
        "anthropic-ratelimit-unified-7d_opus-reset": "soon",
        "anthropic-ratelimit-unified-overage-utilization": "0.1",
    }
    assert told(header_readings(headers, NOW)) == [
        ("anthropic", "org-1", "5-hour", 36, NOW + HOUR),
        ("anthropic", "org-1", "weekly", 50, None),
        ("anthropic", "org-1", "weekly opus", 100, None),
    ]


def test_headers_of_a_key_that_is_paid_by_use_state_no_window() -> None:
    headers = {
        "anthropic-ratelimit-requests-remaining": "9",
        "anthropic-ratelimit-tokens-reset": "2026-11-28T19:00:00Z",
    }
    assert told(header_readings(headers, NOW)) == []


def test_the_status_data_of_claude_code_states_its_windows() -> None:
    limits = {"five_hour": {"used_percentage": 23.5, "resets_at": NOW + 60}, "seven_day": {"used_percentage": 41.2},
              "seven_day_opus": {"used_percentage": None}, "other": {"used_percentage": 1}}  # fmt: skip
    assert told(status_readings(limits, NOW)) == [
        ("anthropic", "", "5-hour", 23.5, NOW + 60),
        ("anthropic", "", "weekly", 41.2, None),
    ]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
objects = st.dictionaries(
    st.sampled_from(["used_percent", "window_minutes", "resets_at", "resets_in_seconds", "used_percentage"]),
    scalars,
    max_size=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["primary", "secondary", "five_hour", "seven_day", "limit_id"]), objects | scalars
    )
)
def test_no_source_can_break_it_and_every_reading_can_be_stored_and_shown(limits: dict[str, Any]) -> None:
    headers = {
        f"anthropic-ratelimit-unified-{name}-utilization": str(value) for name, value in limits.items()
    }
    found = [*codex_readings(limits, NOW), *status_readings(limits, NOW), *header_readings(headers, NOW)]
    for each in found:
        quota = Quota(each, each.used_percent, each.at)
        assert quota_words(quota, NOW)
        json.dumps(quota.as_json(NOW), allow_nan=False)


def test_what_is_past_its_reset_is_unknown() -> None:
    quota = Quota(reading(90), 10, NOW - HOUR)
    assert quota.left_percent(NOW + 3 * HOUR - 1) == pytest.approx(10)
    assert quota.left_percent(NOW + 3 * HOUR) is None
    assert quota.runs_out_at(NOW + 3 * HOUR) is None
    assert quota_words(quota, NOW + 3 * HOUR) == "unknown; last read 18:00"
    assert quota.as_json(NOW + 3 * HOUR)["left_percent"] is None
    assert quota.as_json(NOW + 3 * HOUR)["resets_at"] is None


def test_without_a_reset_a_reading_holds_no_longer_than_its_window() -> None:
    quota = Quota(reading(90, resets_at=None), 90, NOW)
    assert quota.is_known(NOW + 5 * HOUR - 1)
    assert not quota.is_known(NOW + 5 * HOUR)
    assert quota_words(quota, NOW) == "10 % left, reset unknown"


def test_the_forecast_goes_on_at_the_pace_between_two_readings() -> None:
    # 60 % in two hours: the last 40 % take 80 minutes.
    quota = Quota(reading(60), 0, NOW - 2 * HOUR)
    assert quota.runs_out_at(NOW) == pytest.approx(NOW + 80 * 60)
    assert quota_words(quota, NOW) == "40 % left, resets 21:00 (in 3:00:00), lasts until 19:20 at this pace"
    late = Quota(reading(20), 0, NOW - 2 * HOUR)
    assert (
        quota_words(late, NOW) == "80 % left, resets 21:00 (in 3:00:00), lasts beyond the reset at this pace"
    )


@pytest.mark.parametrize(
    ("first", "first_at"), [(60, NOW), (60, NOW - HOUR), (70, NOW - HOUR), (0, NOW - 59)],
    ids=["one reading", "no growth", "less than before", "too near"],
)  # fmt: skip
def test_there_is_no_forecast_without_a_pace(first: float, first_at: float) -> None:
    assert Quota(reading(60), first, first_at).runs_out_at(NOW) is None


@pytest.mark.parametrize(
    ("used", "words"), [(80.4, "19 % left"), (99.5, "under 1 % left"), (100, "0 % left"), (130, "0 % left")]
)
def test_what_is_left_is_never_rounded_up(used: float, words: str) -> None:
    assert quota_words(Quota(reading(used), used, NOW), NOW).startswith(f"{words},")


def test_a_window_ends_at_its_reset() -> None:
    assert is_same_window(reading(10), reading(5, NOW + 60, NOW + 3 * HOUR + 2))
    assert not is_same_window(reading(10), reading(20, NOW + 4 * HOUR, NOW + 8 * HOUR))
    assert is_same_window(reading(10, resets_at=None), reading(20, NOW + HOUR, None))
    assert not is_same_window(reading(10, resets_at=None), reading(9, NOW + HOUR, None))
    assert not is_same_window(reading(10, resets_at=None), reading(20, NOW + 5 * HOUR, None))
