"""What a message, and a whole turn, costs does not depend on how many came before it. Counted, not timed."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.core.memory.support import Words, call, result

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits


class Counting(Words):
    """Counts how many characters it was given."""

    def __init__(self) -> None:
        self.characters = 0

    def count(self, text: str) -> int:
        self.characters += len(text)
        return super().count(text)


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """One number: the function calls within."""
    calls = [0]

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def append(state: ContextState, count: int) -> int:
    with counted_calls() as calls:
        for _ in range(count):
            number = state.last_seq + 1
            state.append(
                "user" if number % 2 else "assistant", f"message {number:07d} " + "word " * 20, at=0.0
            )
    return calls[0]


@pytest.mark.parametrize("window", [pytest.param(2_000, marks=pytest.mark.long), 1_000_000_000])
def test_a_message_costs_the_same_after_a_thousand_and_after_ten_thousand(window: int) -> None:
    state = ContextState(ContextLimits(window, 0), Counting())
    append(state, 1_000)
    early = append(state, 1_000)
    append(state, 10_000)
    late = append(state, 1_000)
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


async def turns(manager: HierarchicalContextManager, count: int) -> None:
    """Calls, their results, a remark, a word of the user's; the context is read after each message."""
    for _ in range(count // 4):
        number = len(manager.messages)
        names = (f"a{number}", f"b{number}")
        for role, content in (
            ("assistant", call(*names, text="Let me look.", path=f"src/module_{number % 97}.py")),
            ("user", result(*names, text=f"{number}: " + "found " * 30)),
            ("assistant", f"It is in {number}. " + "word " * 20),
            ("user", f"Go on with {number}. " + "word " * 10),
        ):
            await manager.add_message({"role": role, "content": content})
            assert manager.get_context()


@pytest.mark.parametrize("summarises", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_turn_costs_the_same_after_a_thousand_and_after_ten_thousand_messages(summarises, monkeypatch):
    """With a clock of its own and no threads: how many passes fit between turns does not depend on the machine."""

    async def beside(call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", beside)
    seconds = itertools.count()

    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        return f"{len(messages)} messages were about modules."

    async def go() -> tuple[int, int]:
        manager = HierarchicalContextManager(
            2_000,
            tokenizer=Words(),
            summarizer=summarize if summarises else None,
            passes_per_hour=1_000_000,
            monotonic=lambda: float(next(seconds)),
        )
        await turns(manager, 1_000)
        with counted_calls() as early:
            await turns(manager, 2_000)
        await turns(manager, 8_000)
        with counted_calls() as late:
            await turns(manager, 2_000)
        await manager.close()
        return early[0], late[0]

    early, late = asyncio.run(go())
    assert late / early < 1.1
