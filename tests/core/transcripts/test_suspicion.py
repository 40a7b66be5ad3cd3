"""The quick look for secrets says yes wherever the thorough one does."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from watchkeeper.records.redact import Redactor
from watchkeeper.transcripts.suspicion import suspicion

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
