"""Reading a JSON object piece by piece."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchkeeper.records.errors import BadInput
from watchkeeper.transcripts.export import document
from watchkeeper.transcripts.export.document import ObjectReader

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


class Dribble(io.StringIO):
    """A file that gives at most a few characters at a time."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.size = size

    def read(self, size: int | None = -1) -> str:
        return super().read(self.size)


def read(text: str, size: int, lists: frozenset[str]) -> dict[str, Any]:
    reader = ObjectReader(Dribble(text, size), "a file")
    return {name: list(reader.elements()) if name in lists else reader.value() for name in reader.members()}


@settings(max_examples=60)
@given(
    document=st.dictionaries(st.text(max_size=6), values, max_size=5),
    indent=st.sampled_from([None, 0, 1, 40]),
    ascii_only=st.booleans(),
    size=st.integers(1, 30),
)
def test_any_object_is_read_the_same_in_pieces_of_any_size(document, indent, ascii_only, size):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    lists = frozenset(name for name, value in document.items() if isinstance(value, list))
    assert read(text, size, lists) == document
    assert read(f"\n {text} \n", size, frozenset()) == document


@settings(max_examples=60)
@given(
    document=st.dictionaries(st.text(max_size=6), values, min_size=1, max_size=4),
    cut=st.floats(0, 1),
    size=st.integers(1, 30),
)
def test_an_object_that_ends_early_is_refused(document: dict[str, Any], cut: float, size: int) -> None:
    text = json.dumps(document)
    with pytest.raises(BadInput, match="a file"):
        read(text[: int(cut * (len(text) - 1))], size, frozenset())


def test_damage_is_told_before_the_rest_of_the_file_is_read() -> None:
    class Endless(io.StringIO):
        taken = 0

        def read(self, size: int | None = -1) -> str:
            Endless.taken += 1
            assert Endless.taken < 10
            return '{"a": [1 2], "b": "' if Endless.taken == 1 else "x" * 100_000

    with pytest.raises(BadInput):
        ObjectReader(Endless(), "a file").value()


def test_one_element_without_end_is_refused_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "LARGEST_VALUE", 100_000)

    class Endless(io.StringIO):
        taken = 0

        def read(self, size: int | None = -1) -> str:
            Endless.taken += size or 0
            assert Endless.taken < 10_000_000
            return '"' + "x" * (size or 0)

    with pytest.raises(BadInput):
        ObjectReader(Endless(), "a file").value()
