"""The quick look for secrets says yes wherever the thorough one does."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tests.benchmarks.redaction import Planted, corpus

from watchkeeper.records.redact import Redactor
from watchkeeper.transcripts.files import Line
from watchkeeper.transcripts.reading import suspicion, with_suspicion

REDACTOR = Redactor(
    {
        "MY_TOKEN": "p.+w(o)rd[x]-#&~ |123",
        "OTHER_SECRET": "ünïcödé-säcret\\d",
        "LONG_KEY": "line one of it is here\nand line two as well",
    }
)

SUSPECTS = suspicion(REDACTOR)
"""Made once, beforehand: its pattern takes a while to be read."""


@given(st.binary(max_size=60), st.sampled_from(REDACTOR.hints), st.binary(max_size=60))
def test_whatever_holds_a_hint_is_suspected(before: bytes, hint: bytes, after: bytes) -> None:
    assert SUSPECTS(before + hint + after)


@given(st.one_of(st.binary(max_size=80), st.text("sk-gh_pAIzaSeyJ xo{}.:/@", max_size=80).map(str.encode)))
@example(b"postgres://app:hunter2x@db")
def test_the_quick_look_agrees_with_the_thorough_one(data: bytes) -> None:
    plain = Redactor({"MY_TOKEN": "p.+w(o)rd[x]-#&~ |123"})
    assert suspicion(plain)(data) == plain.suspects(data)


PLANTED = corpus(seed=11, each=2)[0]


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(PLANTED)), max_size=40), st.integers(0, 20_000)
)
def test_lines_that_are_asked_of_together_are_suspected_as_one_by_one(
    lines: list[bytes | Planted], length: int
) -> None:
    data = [line if isinstance(line, bytes) else line.text.replace("\n", "\\n").encode() for line in lines]
    data.append(b"x" * length)
    given_lines = [Line(line.replace(b"\n", b" "), number, len(line)) for number, line in enumerate(data)]
    judged = list(with_suspicion(given_lines, SUSPECTS))
    assert [line for _, line in judged] == given_lines
    for suspect, line in judged:
        assert suspect == SUSPECTS(line.data)


def test_whatever_is_taken_out_of_a_line_is_suspected_in_it() -> None:
    plain = Redactor({})
    for one in PLANTED:
        if plain.text(one.text) != one.text:
            assert plain.suspects(one.text.encode()), one
