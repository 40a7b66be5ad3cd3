"""Text from models, tools and files can be read on any terminal, and does nothing else there."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from tests.tui.fake_store import HOSTILE
from textual.color import Color

from watchkeeper_tui.sanitize import (
    HostileTextFilter,
    clip,
    fit,
    sanitize,
    sanitize_lines,
    sanitize_text,
    wrap,
)

anything = st.text(st.characters(), max_size=200) | st.lists(
    st.sampled_from(
        [
            "\x1b", "[", "]", "31m", "\x9b", "2J", "\x07", "\u202e", "\u200b", "\ud800", "a", "漢", "\u0301",
            " ", ";",
        ]
    )
).map("".join)  # fmt: skip


def forbidden(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or character in "\u200b\u200c\u200d\u200e\u200f\u061c\u2060\ufeff"
        or "\u202a" <= character <= "\u202e"
        or "\u2066" <= character <= "\u2069"
        or "\U000e0000" <= character <= "\U000e0fff"
    )


@given(anything)
def test_what_passes_holds_no_character_that_acts_or_hides(text: str) -> None:
    assert not any(forbidden(character) for character in sanitize(text))


@given(anything)
def test_sanitising_twice_is_sanitising_once(text: str) -> None:
    once = sanitize(text)
    assert sanitize(once) == once


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_left_as_it_is(text: str) -> None:
    assert sanitize(text) == text


@given(
    st.sampled_from(["\x1b]0;", "\x1bP", "\x1b_", "\x9d", "\x90", "\x1b[2J", "\x1b[8m", "\x9b0m"]),
    st.sampled_from(["\x07", "\x1b\\", "\x9c", ""]),
)
def test_words_inside_escape_sequences_stay_in_sight(start: str, end: str) -> None:
    assert "visible words" in sanitize(f"before{start}visible words{end}after")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"), ("a\x1b[2Jb", "a·b"), ("\x1b]52;c;ZXZpbA==\x07", "·]52;c;ZXZpbA==·"),
        ("one\ttwo\r\nthree", "one two  three"), ("user\u202egnp.exe", "user·gnp.exe"),
        ("lone \ud800", "lone \ufffd"), ("漢字", "漢字"), ("no\u00a0break", "no break"),
        ("👧🏽 waves", "👧· waves"),
    ],
)  # fmt: skip
def test_known_attacks_become_harmless(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@given(anything, st.integers(1, 60))
def test_a_clipped_or_fitted_text_takes_the_columns_it_was_given(text: str, cells: int) -> None:
    safe = sanitize(text)
    assert cell_len(clip(safe, cells)) <= cells
    assert cell_len(fit(safe, cells)) == cells


@given(anything, st.integers(2, 60))
def test_wrapped_rows_fit_and_lose_nothing_but_spaces(text: str, cells: int) -> None:
    safe = sanitize(text)
    rows = wrap(safe, cells, limit=10_000)
    assert all(cell_len(row) <= cells for row in rows)
    assert "".join(rows).replace(" ", "") == safe.replace(" ", "")


@given(anything)
def test_what_is_copied_keeps_its_lines_and_tabs_and_acts_on_no_terminal(text: str) -> None:
    copied = sanitize_text(f"one\ttwo{text}\nthree")
    assert copied.startswith("one\ttwo")
    assert copied.endswith("\nthree")
    assert not any(forbidden(character) for character in copied if character not in "\t\n")
    copied.encode()


def test_a_huge_line_is_cut_quickly() -> None:
    assert len(clip(sanitize("x" * 10_000_000), 80)) == 80
    assert len(sanitize_lines("line\n" * 100_000, limit=100)) == 100


@given(anything)
def test_the_second_barrier_lets_nothing_through_that_a_widget_forgot(text: str) -> None:
    filtered = HostileTextFilter().apply([Segment(text), Segment(HOSTILE)], Color(0, 0, 0))
    assert not any(forbidden(character) for segment in filtered for character in segment.text)
    assert all(segment.control is None for segment in filtered)
