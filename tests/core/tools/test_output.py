"""Long results are cut where no word is cut."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.core.tools.conftest import Run

from watchkeeper.agents.tools.contract import LONGEST_WORD, shorten
from watchkeeper.records.redact import Redactor

KEY = "ghp_" + "a1B2" * 9


@given(st.integers(0, 3_000), st.integers(900, 1_100))
def test_a_cut_never_leaves_half_a_key(before: int, limit: int) -> None:
    """Secrets are taken out after the cut; half of one is not known for one any more."""
    text = "so " * (before // 3) + KEY + " it goes" * 600
    shown = Redactor({}).text(shorten(text, limit))
    assert KEY[:12] not in shown
    assert KEY[-12:] not in shown


@given(st.text(max_size=400), st.integers(30, 300))
def test_what_is_left_stands_at_both_ends(text: str, limit: int) -> None:
    shown = shorten(text, limit)
    if len(text) <= limit:
        assert shown == text
        return
    head, _, rest = shown.partition("\n[… ")
    assert text.startswith(head)
    assert text.endswith(rest.partition(" characters omitted …]\n")[2])
    assert len(shown) <= limit + 80


async def test_the_end_of_a_long_output_does_not_begin_with_half_a_key(run: Run, workspace: Path) -> None:
    """Whatever length comes before: somewhere the cut would go through the key."""
    for short in (8, 20, 32):
        after = (" end" * 26_000)[: 100 * 1024 - short]  # of the key, `short` characters are left
        (workspace / "long.txt").write_text("so it goes " * 3_000 + KEY + after)
        shown = str((await run("bash", command="cat long.txt")).content)
        assert shown.startswith("[output truncated]")
        assert KEY[-4:] not in shown


def test_a_text_without_words_is_cut_where_it_must_be() -> None:
    shown = shorten("x" * 10_000, 3_000)
    assert 3_000 <= len(shown) <= 3_000 + LONGEST_WORD
