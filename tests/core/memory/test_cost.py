"""What a message costs does not depend on how many came before it. Counted, not timed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from tests.core.memory.support import Words

from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits


class Counting(Words):
    """Counts how many characters it was given."""

    def __init__(self) -> None:
        self.characters = 0

    def count(self, text: str) -> int:
        self.characters += len(text)
        return super().count(text)


def calls_per_message(state: ContextState, count: int) -> float:
    """Function calls of our own code, per message."""
    calls = 0

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    sys.setprofile(profile)
    try:
        append(state, count)
    finally:
        sys.setprofile(None)
    return calls / count


def append(state: ContextState, count: int) -> None:
    for _ in range(count):
        number = state.last_seq + 1
        state.append("user" if number % 2 else "assistant", f"message {number:07d} " + "word " * 20, at=0.0)


@pytest.mark.parametrize("window", [2_000, 1_000_000_000])
def test_a_message_costs_the_same_after_a_thousand_and_after_ten_thousand(window: int) -> None:
    state = ContextState(ContextLimits(window, 0), Counting())
    append(state, 1_000)
    early = calls_per_message(state, 1_000)
    append(state, 10_000)
    late = calls_per_message(state, 1_000)
    assert late / early < 1.1


def test_each_message_is_counted_once_while_nothing_is_compacted() -> None:
    counter = Counting()
    state = ContextState(ContextLimits(1_000_000_000, 0), counter)
    append(state, 2_000)
    assert counter.characters == sum(len(str(m.content)) for m in state.messages)


def test_compacting_again_and_again_reads_each_message_a_bounded_number_of_times() -> None:
    counter = Counting()
    state = ContextState(ContextLimits(2_000, 0), counter)
    append(state, 5_000)
    assert counter.characters < 12 * sum(len(str(m.content)) for m in state.messages)
