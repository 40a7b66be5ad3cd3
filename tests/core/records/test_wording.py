"""Words that every face of the program puts in the same way."""

from __future__ import annotations

import pytest

from watchkeeper.records.wording import plural


@pytest.mark.parametrize(("count", "told"), [(0, "0 errors"), (1, "1 error"), (2, "2 errors"), (1_200, "1,200 errors")])
def test_one_is_told_without_an_s(count: int, told: str) -> None:
    assert plural(count, "error") == told
