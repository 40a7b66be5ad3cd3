"""What the index holds of a text without spaces is what its words are, however quickly they were found."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from watchkeeper.store.search.words import _MARKS, WordTable, cjk, tokenizable, tokenizable_words

TEXTS = st.text(
    st.sampled_from("ab1 \n_日本語가나カ々〇〆ー、。“”—✓①éЖﬁÃ²µ️Ａ１\u0301\ue000\U00020000😀"), max_size=30
)


@pytest.fixture(scope="module")
def table() -> WordTable:
    return WordTable()


def words(table: WordTable, text: str | bytearray) -> set[str]:
    return set(table.tokens(text if isinstance(text, str) else text.decode()))


@given(TEXTS)
@example("naïve 日本語")
@example("日本é")
@example("①a 日本")
@example("e\u0301a日")
def test_the_index_holds_the_words_of_the_text(table: WordTable, text: str) -> None:
    held, said = words(table, tokenizable_words(text)), words(table, tokenizable(text))
    assert held >= said
    # Who looks for one character looks for what begins with it: one more says nothing that a pair does not
    # say.
    assert all(
        len(word) == 1 and cjk(word) and any(each.startswith(word) for each in said) for word in held - said
    )


def test_what_is_passed_over_is_in_no_word(table: WordTable) -> None:
    marks = [chr(code) for code in range(0x80, 0x1FB00) if re.fullmatch(f"[{_MARKS}]", chr(code))]
    assert len(marks) > 2_000
    assert table.tokens(" ".join(f"a{mark}b" for mark in marks)) == ["a", "b"] * len(marks)
