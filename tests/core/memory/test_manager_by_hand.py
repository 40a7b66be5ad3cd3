"""Compaction, undo and redo that a person or a program asks the manager for."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.memory.support import (
    Summariser,
    assert_pairs_whole,
    assert_valid,
    call,
    fill_manager,
    recorded,
    result,
    text_of,
)

from watchkeeper import HierarchicalContextManager


async def test_compact_covers_up_to_the_message_that_was_named() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser())
    ids = await fill_manager(manager, 20)
    outcome = await manager.compact(up_to=ids[9])
    assert (outcome.applied, outcome.high_water) == (True, 10)
    assert outcome.tokens_after < outcome.tokens_before
    assert manager.tokens == outcome.tokens_after
    assert "m10 " not in text_of(manager.get_context())
    assert "m11 " in text_of(manager.get_context())
    assert [m.seq for m in manager.short_term_memory] == ids[10:]
    assert [o.covers for o in manager.long_term_memory] == [(1, 10)]


async def test_compact_may_cover_everything() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser())
    ids = await fill_manager(manager, 20)
    outcome = await manager.compact(up_to=ids[-1])
    assert outcome.high_water == 20
    assert manager.view.verbatim_from is None
    assert_valid(manager.get_context())
    await fill_manager(manager, 1)
    assert manager.view.verbatim_from == 21


async def test_compact_without_a_mark_keeps_the_newest_turn() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser())
    await fill_manager(manager, 10)
    outcome = await manager.compact()
    assert outcome.applied
    assert 0 < len(manager.short_term_memory) <= 2


async def test_compact_moves_back_before_a_pair_and_says_where_to() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser())
    await fill_manager(manager, 8)
    asked = await manager.add_message({"role": "assistant", "content": call("c1")})
    answered = await manager.add_message({"role": "user", "content": result("c1")})
    outcome = await manager.compact(up_to=asked)
    assert outcome.high_water == 8
    assert_pairs_whole(manager.view, manager.messages)
    outcome = await manager.compact(up_to=answered)
    assert outcome.high_water == answered


async def test_a_second_compact_while_one_runs_is_a_no_op_that_says_so() -> None:
    summarise = Summariser(open_now=False)
    manager = HierarchicalContextManager(8192, summarizer=summarise)
    ids = await fill_manager(manager, 20)
    first = asyncio.create_task(manager.compact(up_to=ids[9]))
    await asyncio.sleep(0)
    assert manager.is_compacting
    second = await manager.compact(up_to=ids[5])
    assert not second.applied
    assert "already running" in second.reason
    summarise.open.set()
    assert (await first).applied
    assert summarise.calls == 1


async def test_a_cancelled_compact_leaves_no_trace() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser(open_now=False))
    await fill_manager(manager, 20)
    before = manager.get_context()
    swaps = recorded(manager)
    task = asyncio.create_task(manager.compact())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not manager.is_compacting
    assert manager.get_context() == before
    assert [swap.event for swap in swaps] == ["swap:start", "swap:abandoned"]


async def test_compact_without_a_summariser_is_the_digest() -> None:
    manager = HierarchicalContextManager(8192)
    await fill_manager(manager, 20)
    outcome = await manager.compact(up_to=10)
    assert (outcome.applied, outcome.reason, outcome.high_water) == (True, "digest", 10)


async def test_undo_and_redo_restore_exactly_and_keep_later_turns() -> None:
    manager = HierarchicalContextManager(8192, summarizer=Summariser())
    await fill_manager(manager, 20)
    view, before = manager.view, manager.get_context()
    await manager.compact(up_to=12)
    compacted = manager.view
    await fill_manager(manager, 1)
    assert manager.undo() == view == manager.view
    assert manager.get_context()[:-1] == before
    assert "m21 " in text_of(manager.get_context())
    assert manager.redo() == compacted
    with pytest.raises(ValueError, match="nothing to redo"):
        manager.redo()
    assert [v.version for v in manager.views] == [1, 2]


async def test_undo_gives_up_a_pass_in_flight_and_automatic_ones_wait() -> None:
    summarise = Summariser()
    manager = HierarchicalContextManager(3_000, 0.5, summarizer=summarise)
    await fill_manager(manager, 40)
    await manager.compact(up_to=20)
    summarise.open.clear()
    task = asyncio.create_task(manager.compact(up_to=30))
    await asyncio.sleep(0)
    swaps = recorded(manager)
    manager.undo()
    outcome = await task
    assert not outcome.applied
    assert "earlier version" in outcome.reason
    assert [swap.event for swap in swaps] == ["swap:abandoned"]
    while manager.tokens < 2_500:
        await fill_manager(manager, 1)
        assert not manager.is_compacting, "the pass would only do again what was undone"
    summarise.open.set()
    assert (await manager.compact()).applied


async def test_undo_with_nothing_to_undo_says_so() -> None:
    manager = HierarchicalContextManager(8192)
    await fill_manager(manager, 2)
    with pytest.raises(ValueError, match="nothing to undo"):
        manager.undo()
