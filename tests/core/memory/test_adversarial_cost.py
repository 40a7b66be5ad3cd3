"""A whole turn of an agent with tools costs the same after a thousand messages and after ten thousand.
Counted, not timed."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

import pytest
from tests.core.memory.support import Words, call, result

from watchkeeper import HierarchicalContextManager


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


async def calls_per_message(manager: HierarchicalContextManager, count: int) -> float:
    calls = 0

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        await turns(manager, count)
    finally:
        sys.setprofile(None)
    return calls / count


@pytest.mark.parametrize("summarises", [False, True])
def test_a_turn_costs_the_same_after_a_thousand_and_after_ten_thousand_messages(summarises: bool) -> None:
    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        return f"{len(messages)} messages were about modules."

    async def go() -> tuple[float, float]:
        manager = HierarchicalContextManager(
            2_000, tokenizer=Words(), summarizer=summarize if summarises else None, passes_per_hour=1_000_000
        )
        await turns(manager, 1_000)
        early = await calls_per_message(manager, 2_000)
        await turns(manager, 8_000)
        late = await calls_per_message(manager, 2_000)
        await manager.close()
        return early, late

    early, late = asyncio.run(go())
    assert late / early < 1.1
