"""`HierarchicalContextManager`: the public surface."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.core.memory.support import (
    Summariser,
    Words,
    assert_covered,
    assert_valid,
    fill_manager,
    recorded,
)

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import Change, WindowTooSmall
from watchkeeper.memory.manager import ReadOnly, Swap
from watchkeeper.records.messages import Message


async def test_ten_lines_with_any_model() -> None:
    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        return f"{len(messages)} messages about the sea."

    async def my_model(messages: list[dict[str, Any]]) -> str:
        assert_valid(messages)
        return "The sea is wide. " * 20

    manager = HierarchicalContextManager(max_tokens=2_000, summarizer=summarize)
    for _ in range(40):
        await manager.add_message({"role": "user", "content": "Tell me more about the sea. " * 5})
        reply = await my_model(manager.get_context())
        await manager.add_message({"role": "assistant", "content": reply})
    await manager.idle()

    assert len(manager.messages) == 80
    assert manager.tokens <= 2_000
    assert "messages about the sea." in manager.long_term_memory[0].text
    assert manager.short_term_memory[-1].content == reply


async def test_ids_are_the_sequence_numbers_from_one() -> None:
    manager = HierarchicalContextManager(max_tokens=8192)
    assert await fill_manager(manager, 3) == [1, 2, 3]
    assert [message.seq for message in manager.messages] == [1, 2, 3]
    assert manager.get_context() == [{"role": m.role, "content": m.content} for m in manager.messages]


async def test_messages_added_at_the_same_time_keep_their_order() -> None:
    manager = HierarchicalContextManager(max_tokens=100_000, tokenizer=Words())
    huge, small = "huge " * 60_000, "small"
    ids = await asyncio.gather(
        manager.add_message({"role": "user", "content": huge}),
        manager.add_message({"role": "user", "content": small}),
    )
    assert ids == [1, 2]
    assert manager.messages[1].content == small


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "system", "content": "x"}, ValueError),
        ({"content": "x"}, ValueError),
        ({"role": "user"}, TypeError),
        ({"role": "user", "content": 7}, TypeError),
        ({"role": "user", "content": ["text"]}, TypeError),
    ],
)
async def test_what_is_no_message_is_refused(message: dict[str, Any], error: type[Exception]) -> None:
    manager = HierarchicalContextManager(max_tokens=8192)
    with pytest.raises(error, match="A message's"):
        await manager.add_message(message)
    assert manager.messages == ()


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_tokens": 100, "reserve_tokens": 100},
        {"max_tokens": 0},
        {"max_tokens": 9, "summarization_threshold": 0.0},
    ],
)
def test_sizes_that_leave_no_room_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"room|threshold"):
        HierarchicalContextManager(**sizes)


async def test_a_pass_starts_at_the_threshold_runs_beside_and_is_published_by_add_message() -> None:
    summarise = Summariser(open_now=False)
    manager = HierarchicalContextManager(2_000, 0.75, summarizer=summarise)
    swaps = recorded(manager)
    while not manager.is_compacting:
        assert manager.tokens < 1_500
        await fill_manager(manager, 1)
    assert manager.tokens >= 1_500
    started = manager.view
    await fill_manager(manager, 3)
    summarise.open.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert manager.get_context(), "reading only renders"
    assert manager.view is started
    await fill_manager(manager, 1)
    assert manager.view.observations[0].text.startswith("They talked.")
    assert [swap.event for swap in swaps] == ["swap:start", "swap:ready", "swap:complete"]
    done = swaps[-1]
    assert done.high_water == manager.view.observations[0].covers[1]
    assert done.messages_removed == done.high_water
    assert done.tokens_after < done.tokens_before
    assert done.view_version == manager.view.version
    assert done.stall_seconds == 0.0
    assert done.reason == "summary"


async def test_while_a_pass_is_late_the_digest_stands_in_and_the_summary_takes_its_place() -> None:
    summarise = Summariser(open_now=False)
    manager = HierarchicalContextManager(1_000, 0.5, summarizer=summarise, reserve_tokens=100)
    while not any(o.provisional for o in manager.view.observations):
        await fill_manager(manager, 1)
        assert manager.tokens <= 900
    assert manager.is_compacting
    summarise.open.set()
    await manager.idle()
    assert manager.view.observations[0].text.startswith("They talked.")
    assert summarise.calls == 1
    assert_covered(manager.view, len(manager.messages))


@pytest.mark.parametrize("text", [RuntimeError("down"), "", None, "bla " * 100_000, "Invented [#99999]."])
async def test_the_bound_holds_with_a_summariser_that_fails_or_babbles(text: Any) -> None:
    manager = HierarchicalContextManager(600, 0.5, summarizer=Summariser(text), reserve_tokens=60)
    for _ in range(120):
        await fill_manager(manager, 1)
        assert manager.tokens <= 540
        assert_valid(manager.get_context())
        await asyncio.sleep(0)
    await manager.idle()
    assert_covered(manager.view, 120)


async def test_the_bound_holds_with_a_summariser_that_hangs_and_close_gives_it_up() -> None:
    manager = HierarchicalContextManager(600, 0.5, summarizer=Summariser(open_now=False))
    swaps = recorded(manager)
    for _ in range(120):
        await fill_manager(manager, 1)
        assert manager.tokens <= 600
    await manager.close()
    assert not manager.is_compacting
    assert [swap.event for swap in swaps if swap.event != "swap:complete"] == ["swap:start", "swap:abandoned"]
    await fill_manager(manager, 30)
    assert not manager.is_compacting, "a closed manager starts nothing"


async def test_adding_waits_for_a_late_pass_only_as_long_as_it_may() -> None:
    never = Summariser(open_now=False)
    manager = HierarchicalContextManager(600, 0.5, summarizer=never, max_wait_seconds=0.01)
    while not manager.view.observations:
        await fill_manager(manager, 1)
    assert manager.view.observations[0].provisional
    await manager.close()

    soon = Summariser(open_now=False)
    manager = HierarchicalContextManager(600, 0.5, summarizer=soon, max_wait_seconds=60)
    swaps = recorded(manager)
    asyncio.get_running_loop().call_later(0.3, soon.open.set)
    while not manager.view.observations:
        await fill_manager(manager, 1)
    assert not manager.view.observations[0].provisional
    assert max(swap.stall_seconds for swap in swaps if swap.event == "swap:complete") > 0


async def test_without_a_summariser_the_digest_keeps_the_threshold() -> None:
    manager = HierarchicalContextManager(1_000, 0.5)
    for _ in range(200):
        await fill_manager(manager, 1)
        assert manager.tokens < 500 + 60
    assert not any(o.provisional for o in manager.view.observations)


async def test_a_listener_that_fails_disturbs_nobody_and_may_be_a_coroutine() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser())
    seen: list[Swap] = []

    def fails(swap: Swap) -> None:
        raise RuntimeError("listener")

    async def listens(swap: Swap) -> None:
        await asyncio.sleep(0)
        seen.append(swap)

    manager.on("swap:complete", fails)
    stop = manager.on("swap:complete", listens)
    await fill_manager(manager, 20)
    assert (await manager.compact(up_to=5)).applied
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [swap.high_water for swap in seen] == [5]
    stop()
    assert (await manager.compact(up_to=10)).applied
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(seen) == 1
    with pytest.raises(ValueError, match="no event"):
        manager.on("swap:done", fails)  # type: ignore[arg-type]


async def test_a_listener_may_wait_until_the_manager_is_idle() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser())
    waited = asyncio.Event()

    async def listens(swap: Swap) -> None:
        await manager.idle()
        waited.set()

    manager.on("swap:complete", listens)
    await fill_manager(manager, 20)
    await manager.compact(up_to=5)
    await asyncio.wait_for(waited.wait(), 5)


async def test_a_window_too_small_is_told_by_get_context_and_not_by_add_message() -> None:
    manager = HierarchicalContextManager(40, tokenizer=len)
    await manager.add_message({"role": "user", "content": "x" * 500})
    with pytest.raises(WindowTooSmall) as caught:
        manager.get_context()
    assert caught.value.needed > 40
    assert len(manager.messages) == 1


async def test_every_change_is_told_so_that_it_can_be_stored_and_taken_up_again() -> None:
    changes: list[Change] = []
    manager = HierarchicalContextManager(1_000, 0.5, summarizer=Summariser(), on_change=changes.append)
    for _ in range(80):
        await fill_manager(manager, 1)
        await asyncio.sleep(0)
    await manager.compact()
    messages = [m for change in changes for m in change.messages]
    views = [manager.views[0], *(v for change in changes for v in change.views)]
    assert messages == list(manager.messages)
    assert views == list(manager.views)
    state = ContextState.restore(
        manager.state.limits,
        manager.state.counter,
        agent_id="agent",
        messages=messages,
        views=views,
        current=changes[-1].view.version,
        pin_first=False,
    )
    again = HierarchicalContextManager(1_000, 0.5, summarizer=Summariser(), state=state)
    assert again.get_context() == manager.get_context()


async def test_passes_begin_earlier_where_the_context_grows_fast() -> None:
    clock = [0.0]

    async def slow(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
        clock[0] += 10.0
        return "They talked."

    def manager() -> HierarchicalContextManager:
        return HierarchicalContextManager(8_000, 0.75, summarizer=slow, monotonic=lambda: clock[0])

    learned = manager()
    await fill_manager(learned, 20)
    await learned.compact()
    began_at = 0
    while not learned.is_compacting:
        began_at = learned.tokens
        clock[0] += 0.1
        await fill_manager(learned, 1)
    assert 0.75 * 6_000 - 200 <= began_at < 6_000


async def test_no_more_passes_than_allowed_run_in_an_hour() -> None:
    summarise = Summariser()
    manager = HierarchicalContextManager(
        600, 0.5, summarizer=summarise, passes_per_hour=3, monotonic=lambda: 0.0
    )
    for _ in range(200):
        await fill_manager(manager, 1)
        await asyncio.sleep(0)
    await manager.idle()
    assert summarise.calls == 3
    assert manager.tokens <= 600


async def test_a_summariser_need_not_be_a_coroutine_function() -> None:
    def summarize(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
        return "They talked."

    manager = HierarchicalContextManager(8192, summarizer=summarize)  # type: ignore[arg-type]
    await fill_manager(manager, 10)
    assert (await manager.compact()).reason == "summary"


async def test_a_summariser_that_cancels_itself_starts_no_storm_of_passes() -> None:
    calls = 0

    async def cancels(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        nonlocal calls
        calls += 1
        raise asyncio.CancelledError

    manager = HierarchicalContextManager(1_000, 0.5, summarizer=cancels)
    for _ in range(100):
        await fill_manager(manager, 1)
        await asyncio.sleep(0)
    assert 1 <= calls < 30
    assert manager.tokens <= 1_000


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
