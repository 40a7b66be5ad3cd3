"""When passes start: in time, not always, and never in a loop."""

from __future__ import annotations

import pytest
from tests.core.memory.support import Words, fill

from watchkeeper.memory.compactor import Pacer
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.manager import ReadOnly
from watchkeeper.records.messages import Message


def context(tokens: int, *, window: int = 10_000) -> ContextState:
    """A context of at least that many tokens, its threshold at half of the window."""
    state = ContextState(ContextLimits(window, 0, summarization_threshold=0.5), Words())
    while state.tokens < tokens:
        fill(state, 1)
    return state


def test_a_pass_is_due_at_the_threshold() -> None:
    assert not Pacer().due(context(4_900), 0.0, 0.0)
    assert Pacer().due(context(5_000), 0.0, 0.0)


def test_the_faster_a_context_grows_and_the_longer_passes_take_the_earlier_one_is_due() -> None:
    pacer = Pacer()
    for second in range(10):
        pacer.grew(float(second), 100 * second)
    assert pacer.tokens_per_second() == 100.0
    state = context(4_500)
    assert not pacer.due(state, 10.0, 2.0)
    assert pacer.due(state, 10.0, 6.0)


def test_a_burst_starts_no_pass_in_an_almost_empty_context() -> None:
    pacer = Pacer()
    pacer.grew(0.0, 0)
    pacer.grew(0.001, 1_000_000)
    assert not pacer.due(context(2_000), 1.0, 60.0)


def test_a_pass_without_gain_is_not_repeated_before_the_context_has_grown() -> None:
    pacer = Pacer()
    state = context(5_000)
    pacer.ended(state, gained=False)
    assert not pacer.due(state, 1.0, 0.0)
    while state.tokens < 6_050:
        fill(state, 1)
    assert pacer.due(state, 2.0, 0.0)


def test_passes_an_hour_are_bounded() -> None:
    pacer = Pacer(passes_per_hour=2)
    state = context(5_000)
    pacer.started(0.0)
    pacer.started(10.0)
    assert not pacer.due(state, 20.0, 0.0)
    assert pacer.due(state, 3_601.0, 0.0)


def test_after_an_undo_no_pass_is_due() -> None:
    state = context(6_000)
    state.digest(at=0.0)
    state.undo(at=0.0)
    assert not Pacer().due(state, 0.0, 0.0)


def test_a_read_only_list_is_a_window_on_the_list() -> None:
    one, two, three = (Message(seq, "user", f"text {seq}", 2, 2 * seq, 0.0) for seq in (1, 2, 3))
    items = [one, two]
    window = ReadOnly(items)
    items.append(three)
    assert (len(window), window[0], window[-1], window[1:]) == (3, one, three, (two, three))
    assert window == [one, two, three] == list(window)
    assert window != (one, two)
    assert two in window
    with pytest.raises(TypeError):
        window[0] = one  # type: ignore[index]
    assert repr(window) == repr((one, two, three))
