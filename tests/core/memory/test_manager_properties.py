"""The manager under random summarisers, interleavings and cancellations."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words, assert_covered, assert_pairs_whole, assert_valid, call, result

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.history import WindowTooSmall
from watchkeeper.memory.manager import Swap

TEXTS = [
    "Summary.",
    "",
    "Cites [1] and #2.\nInvents [#9999].",
    "Invents [#9999].",
    "babble " * 9_000,
    None,
    RuntimeError("x"),
]

STEPS = st.one_of(
    st.tuples(st.just("talk"), st.integers(1, 1_200), st.sampled_from(["user", "assistant"])),
    st.tuples(st.just("talk"), st.integers(1, 120), st.sampled_from(["user", "assistant"])),
    st.tuples(st.just("tools"), st.integers(1, 3), st.integers(0, 4)),
    st.tuples(st.just("compact"), st.one_of(st.none(), st.integers(0, 40)), st.booleans()),
    st.tuples(st.just("cancel"), st.just(0), st.just(0)),
    st.tuples(st.just("undo"), st.booleans(), st.just(0)),
    st.tuples(st.just("loop"), st.integers(1, 6), st.just(0)),
)


@given(
    steps=st.lists(STEPS, max_size=40),
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4),
    delays=st.lists(st.integers(0, 25), min_size=1, max_size=4),
    window=st.sampled_from([250, 1_000, 3_000]),
    threshold=st.sampled_from([0.3, 0.75, 1.0]),
)
def test_nothing_that_happens_breaks_a_context(
    steps: list[tuple[Any, ...]], texts: list[Any], delays: list[int], window: int, threshold: float
) -> None:
    asyncio.run(play(steps, texts, delays, window, threshold))


async def play(
    steps: list[tuple[Any, ...]], texts: list[Any], delays: list[int], window: int, threshold: float
) -> None:
    running = 0
    calls = 0

    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> Any:
        nonlocal running, calls
        assert_valid(messages)
        calls += 1
        running += 1
        assert running == 1, "one pass at a time"
        try:
            for _ in range(delays[calls % len(delays)]):
                await asyncio.sleep(0)
        finally:
            running -= 1
        text = texts[calls % len(texts)]
        if isinstance(text, Exception):
            raise text
        return text

    manager = HierarchicalContextManager(window, threshold, Words(), summarize, reserve_tokens=window // 10)
    swaps: list[Swap] = []
    for event in ("swap:start", "swap:complete", "swap:rejected", "swap:abandoned"):
        manager.on(event, swaps.append)  # type: ignore[arg-type]
    requests: list[asyncio.Task[Any]] = []
    names = 0
    for kind, first, second in steps:
        if kind == "talk":
            await manager.add_message(
                {"role": second, "content": f"<{len(manager.messages)}>" + "w " * (first // 2)}
            )
        elif kind == "tools":
            ids = [f"c{names + index}" for index in range(first)]
            names += first
            await manager.add_message({"role": "assistant", "content": call(*ids)})
            for _ in range(second):
                await asyncio.sleep(0)
            await manager.add_message({"role": "user", "content": result(*ids, text="found " * 10 * second)})
        elif kind == "compact":
            requests.append(asyncio.create_task(manager.compact(first)))
            if second:
                await asyncio.sleep(0)
        elif kind == "cancel" and requests:
            requests[-1].cancel()
            await asyncio.sleep(0)
        elif kind == "undo":
            before = manager.view
            try:
                manager.undo()
                if first:
                    manager.redo()
                    assert manager.view.observations == before.observations
            except ValueError:
                pass
        elif kind == "loop":
            for _ in range(first):
                await asyncio.sleep(0)
        check(manager)
    await manager.idle()
    check(manager)
    await manager.close()
    await asyncio.gather(*requests, return_exceptions=True)
    started = sum(swap.event == "swap:start" for swap in swaps)
    assert started <= sum(swap.event != "swap:start" for swap in swaps), (
        "every pass that starts is heard to end"
    )
    assert not manager.is_compacting


def check(manager: HierarchicalContextManager) -> None:
    assert [message.seq for message in manager.messages] == list(range(1, len(manager.messages) + 1))
    if not manager.messages:
        return
    assert_covered(manager.view, len(manager.messages))
    try:
        context = manager.get_context()
    except WindowTooSmall:
        return
    assert_valid(context)
    assert_pairs_whole(manager.view, manager.messages)
    assert manager.tokens <= manager.state.limit
    shown = [m["content"] for m in context]
    for message in manager.short_term_memory:
        if message.seq not in manager.view.elided and isinstance(message.content, str):
            assert message.content in shown
