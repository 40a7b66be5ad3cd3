"""Words that every face of the program puts in the same way."""

from __future__ import annotations

import pytest

from watchkeeper.records.text import countdown, plural, utc_text


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 errors"), (1, "1 error"), (2, "2 errors"), (1_200, "1,200 errors")]
)
def test_one_is_told_without_an_s(count: int, told: str) -> None:
    assert plural(count, "error") == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(4323, "1:12:03"), (59.2, "0:01:00"), (90_061, "1 d 1:01:01"), (0, "0:00:00"), (-5, "0:00:00")],
)
def test_a_countdown_rounds_up_and_never_goes_below_nothing(seconds: float, told: str) -> None:
    assert countdown(seconds) == told


def test_a_moment_for_every_reader_is_in_utc() -> None:
    assert utc_text(1e9) == "2001-09-09 01:46 UTC"
