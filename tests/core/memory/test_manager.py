"""`HierarchicalContextManager`: the public surface, compaction on request, and programs that use it badly."""

from __future__ import annotations

import asyncio
import gc
import time
from itertools import pairwise
from typing import Any

import pytest
from tests.core.memory.support import (
    EVENTS,
    Summariser,
    Words,
    add,
    assert_covered,
    assert_pairs_whole,
    assert_valid,
    call,
    fill,
    fill_manager,
    recorded,
    result,
    text_of,
    user,
)

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.compactor import Compactor, PassOutcome
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import Change, ContextLimits, WindowTooSmall
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
    with pytest.raises(ValueError, match=r"too small|threshold"):
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
    await asyncio.wait([manager._engine.summary.task])
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
    with pytest.raises(ValueError, match="Unknown event"):
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
    assert len(manager._engine.compactor.durations) == 3  # one of them in parts
    assert manager.tokens <= 600


async def test_a_summariser_that_cancels_itself_starts_no_storm_of_passes() -> None:
    cancels = Summariser(asyncio.CancelledError())
    manager = HierarchicalContextManager(1_000, 0.5, summarizer=cancels)
    for _ in range(100):
        await fill_manager(manager, 1)
        await asyncio.sleep(0)
    assert 1 <= cancels.calls < 30
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
    with pytest.raises(ValueError, match="Nothing to redo"):
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


async def hangs(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
    await asyncio.Event().wait()
    return ""


async def says(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
    return "Short summary."


def others() -> list[asyncio.Task[Any]]:
    """Tasks of this loop beside the test's own."""
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


# --- compaction that grows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 10])
async def test_a_compaction_never_grows_the_context(size: int) -> None:
    manager = HierarchicalContextManager(8_192, summarizer=says)
    for number in range(4):
        await manager.add_message(user(f"hello, this is number {number} " + "and " * size))
    for up_to in (1, 2):
        outcome = await manager.compact(up_to=up_to)
        assert not outcome.applied or outcome.tokens_after < outcome.tokens_before, outcome.reason
        assert manager.tokens == outcome.tokens_after


# --- pacing -------------------------------------------------------------------------------------------------


async def test_a_pass_that_gains_nothing_near_the_limit_is_not_the_last_one_for_ever() -> None:
    summarise = Summariser(asyncio.CancelledError())
    manager = HierarchicalContextManager(1_000, 0.9, Words(), summarise)
    while not summarise.calls:
        await add(manager, 1, 300)
        await asyncio.sleep(0)
    summarise.texts = ["Short summary."]
    before = summarise.calls
    for _ in range(40):
        await add(manager, 1, 300)
        await asyncio.sleep(0)
    assert summarise.calls > before, "forty messages later, and several windows full"


@pytest.mark.parametrize(
    ("threshold", "summarises"),
    [(0.2, False), (0.3, False), (0.2, True), (0.5, True), (0.75, True), (1.0, True)],
)
async def test_digests_and_summaries_do_not_follow_each_other_at_every_message(threshold, summarises):
    summarise = Summariser("They went on.")
    manager = HierarchicalContextManager(1_000, threshold, Words(), summarise if summarises else None)
    heard = recorded(manager)
    await add(manager, 300, 60)
    await manager.close()
    assert (summarise.calls if summarises else len(heard)) <= 60, (
        f"for 300 messages that take {manager.state.total_tokens} tokens in all"
    )


# --- event loops --------------------------------------------------------------------------------------------


def test_messages_added_at_the_same_time_keep_their_order_in_one_event_loop_after_the_other() -> None:
    manager = HierarchicalContextManager(200_000)
    texts = ["huge " * 60_000, "small", "large " * 20_000]

    async def together() -> list[int]:
        return list(await asyncio.gather(*(manager.add_message(user(text)) for text in texts)))

    assert asyncio.run(together()) == [1, 2, 3]
    assert asyncio.run(together()) == [4, 5, 6]
    assert [message.content for message in manager.messages] == texts * 2


def test_a_fresh_event_loop_for_each_call_works() -> None:
    manager = HierarchicalContextManager(1_000, 0.5, Words(), says)
    heard = recorded(manager)
    for number in range(60):
        assert asyncio.run(manager.add_message(user("x" * 200))) == number + 1
        assert manager.tokens <= 1_000
    asyncio.run(manager.idle())
    assert asyncio.run(manager.compact()).reason
    manager.undo()
    asyncio.run(manager.close())
    assert_covered(manager.view, 60)
    assert {swap.event for swap in heard} >= {"swap:start", "swap:complete"}


async def _start_a_pass(manager: HierarchicalContextManager) -> None:
    await manager.add_message(user("x" * 200))
    await manager.add_message(user("x" * 200))
    manager.state.digest(at=0.0, up_to=1)
    await add(manager, 12)
    assert manager.is_compacting


def abandoned_by_its_loop() -> HierarchicalContextManager:
    """A manager whose pass was pending when its event loop was closed, without being cancelled."""
    manager = HierarchicalContextManager(1_000, 0.3, Words(), hangs)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_start_a_pass(manager))
    loop.close()
    return manager


async def _idle(manager: HierarchicalContextManager) -> None:
    await asyncio.wait_for(manager.idle(), 0.5)


async def _compact(manager: HierarchicalContextManager) -> None:
    task = asyncio.ensure_future(manager.compact())
    await asyncio.wait([task], timeout=0.05)
    assert manager.is_compacting
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("use", [_idle, _compact, HierarchicalContextManager.close])
def test_a_pass_whose_event_loop_is_closed_is_given_up(use):
    manager = abandoned_by_its_loop()
    asyncio.run(use(manager))  # type: ignore[arg-type]
    assert not manager.is_compacting


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_undo_works_when_the_event_loop_of_a_pass_is_closed() -> None:
    manager = abandoned_by_its_loop()
    version = manager.view.version
    assert manager.undo().version < version


@pytest.mark.parametrize("after", ["undo", "cancelled request"])
async def test_close_leaves_no_task_pending(after: str) -> None:
    manager = HierarchicalContextManager(1_000, 0.3, Words(), hangs)
    await _start_a_pass(manager)
    manager.undo()
    if after == "cancelled request":
        request = asyncio.create_task(manager.compact())
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
    await manager.close()
    assert others() == []


# --- nothing is left pending --------------------------------------------------------------------------------


async def test_close_leaves_no_listener_running() -> None:
    manager = HierarchicalContextManager(1_000, 0.5, Words())
    ended: list[Swap] = []

    async def slowly(swap: Swap) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended.append(swap)

    manager.on("swap:complete", slowly)
    await add(manager, 14)
    await manager.close()
    assert ended
    assert others() == []


async def test_close_leaves_no_task_pending_while_a_pass_runs() -> None:
    manager = HierarchicalContextManager(1_000, 0.3, Words(), hangs)
    await _start_a_pass(manager)
    heard = recorded(manager)
    await manager.close()
    assert others() == []
    assert [swap.event for swap in heard] == ["swap:abandoned"]
    assert (await manager.compact()).applied is False
    await add(manager, 30)
    assert manager.tokens <= 1_000
    assert others() == [], "nothing starts after close"


# --- listeners that call back -------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    "what", ["undo", "redo", "compact", "add_message", "idle", "close", "get_context", "raises"]
)
async def test_a_listener_may_call_back(event: str, what: str) -> None:
    changes: list[Change] = []
    manager = HierarchicalContextManager(1_000, 0.6, Words(), says, on_change=changes.append)
    started: list[asyncio.Future[Any]] = []
    depth = 0

    def back(swap: Swap) -> None:
        nonlocal depth
        if depth > 2 or len(started) > 50:
            return
        depth += 1
        try:
            if what in ("undo", "redo"):
                try:
                    getattr(manager, what)()
                except ValueError:
                    pass
            elif what == "raises":
                raise RuntimeError("a listener's own fault")
            elif what == "get_context":
                assert manager.tokens <= 1_000
                manager.get_context()
            elif what == "add_message":
                started.append(asyncio.ensure_future(manager.add_message(user("from a listener"))))
            else:
                started.append(asyncio.ensure_future(getattr(manager, what)()))
        finally:
            depth -= 1

    manager.on(event, back)  # type: ignore[arg-type]
    for number in range(60):
        await add(manager, 1)
        await asyncio.sleep(0)
        if number % 9 == 0:
            await manager.compact()
        if number % 13 == 0:
            try:
                manager.undo()
            except ValueError:
                pass
    await asyncio.wait_for(manager.idle(), 5)
    for future in started:
        await asyncio.wait_for(future, 5)
    await asyncio.wait_for(manager.idle(), 5)
    await manager.close()
    assert_covered(manager.view, len(manager.messages))
    assert manager.tokens <= 1_000
    stored = [message for change in changes for message in change.messages]
    assert stored == list(manager.messages)
    assert changes[-1].view == manager.view, "what is stored last is what there is"
    versions = [view.version for change in changes for view in change.views]
    assert versions == sorted(versions), "changes are told in the order in which they happened"


# --- requests that meet -------------------------------------------------------------------------------------


async def test_of_two_requests_at_once_one_runs_and_the_other_says_so() -> None:
    manager = HierarchicalContextManager(8_192, 0.9, Words(), says)
    await add(manager, 10)
    first, second = await asyncio.gather(manager.compact(up_to=6), manager.compact(up_to=4))
    assert (first.applied, first.high_water) == (True, 6)
    assert not second.applied
    assert "already running" in second.reason
    assert second.high_water == 6


async def test_a_cancelled_add_adds_nothing_or_all_of_it_and_never_half() -> None:
    for steps in range(6):
        manager = HierarchicalContextManager(1_000, 0.3, Words(), hangs, max_wait_seconds=5.0)
        await _start_a_pass(manager)
        before = len(manager.messages)
        task = asyncio.create_task(manager.add_message(user("y" * 3_900)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            assert await task == before + 1
            assert len(manager.messages) == before + 1
        except asyncio.CancelledError:
            assert len(manager.messages) == before
        assert await manager.add_message(user("z")) == len(manager.messages)
        assert_covered(manager.view, len(manager.messages))
        await manager.close()


@pytest.mark.parametrize(
    "error",
    [RuntimeError("x"), BaseException("x"), GeneratorExit(), StopAsyncIteration(), asyncio.CancelledError()],
)
async def test_whatever_a_summariser_raises_ends_its_pass_and_nothing_else(error: BaseException) -> None:
    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        await asyncio.sleep(0)
        raise error

    noticed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: noticed.append(context["message"])
    )
    manager = HierarchicalContextManager(1_000, 0.6, Words(), summarize)
    heard = recorded(manager)
    for _ in range(30):
        await add(manager, 1)
        await asyncio.sleep(0)
        assert manager.tokens <= 1_000
    outcome: PassOutcome = await manager.compact()
    assert outcome.reason
    await manager.close()
    del manager
    gc.collect()
    await asyncio.sleep(0)
    assert noticed == []
    starts = [swap for swap in heard if swap.event == "swap:start"]
    ends = [swap for swap in heard if swap.event in ("swap:complete", "swap:rejected", "swap:abandoned")]
    assert starts
    assert len(ends) >= len(starts)


# --- summarisers of other shapes ----------------------------------------------------------------------------


class Service:
    """An object with `summarize`, as many programs have one."""

    def __init__(self) -> None:
        self.seen: list[list[dict[str, Any]]] = []

    async def summarize(self, messages: list[dict[str, Any]]) -> str:
        self.seen.append(messages)
        return "They talked."


class Called:
    """An object that is called, and is not async."""

    def __call__(self, messages: list[dict[str, Any]], previous: str | None = None) -> str:
        return f"They talked, after {previous}."


def shouted(messages: list[dict[str, Any]]) -> str:
    return "They shouted."


async def keywords(messages: list[dict[str, Any]], **given: Any) -> str:
    return f"They talked of {sorted(given)}."


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Service(), "They talked."),
        (Service().summarize, "They talked."),
        (Called(), "They talked, after None."),
        (shouted, "They shouted."),
        (lambda messages: keywords(messages), "They talked of []."),
        (keywords, "They talked of ['instructions', 'previous']."),
    ],
)
async def test_a_summariser_may_be_a_service_or_take_the_messages_alone(given: Any, text: str) -> None:
    manager = HierarchicalContextManager(2_000, tokenizer=Words(), summarizer=given)
    await fill_manager(manager, 20)
    outcome = await manager.compact()
    assert (outcome.reason, manager.long_term_memory[0].text) == ("summary", text)
    state = ContextState(ContextLimits(2_000, 0), Words())
    fill(state, 20)
    outcome = await Compactor(state, summarize=given).run(at=0.0)
    assert (outcome.reason, state.view.observations[0].text) == ("summary", text)


async def test_a_summariser_that_blocks_stops_no_other_task() -> None:
    turns: list[float] = []

    def slow(messages: list[dict[str, Any]]) -> str:
        time.sleep(0.2)
        return "They talked."

    async def other() -> None:
        while True:
            turns.append(time.monotonic())
            await asyncio.sleep(0)

    manager = HierarchicalContextManager(2_000, tokenizer=Words(), summarizer=slow)
    await fill_manager(manager, 20)
    running = asyncio.create_task(other())
    assert (await manager.compact()).applied
    running.cancel()
    assert max(b - a for a, b in pairwise(turns)) < 0.1


async def two(messages: list[dict[str, Any]], model: str) -> str:
    return ""


async def nothing() -> str:
    return ""


@pytest.mark.parametrize("given", [two, nothing, Service, "a model", 12, object()])
def test_a_summariser_of_another_shape_is_refused_with_the_one_that_is_wanted(given: Any) -> None:
    wanted = r"messages: list.*instructions.*previous.*-> str"
    with pytest.raises(TypeError, match=wanted):
        HierarchicalContextManager(2_000, summarizer=given)
    with pytest.raises(TypeError, match=wanted):
        Compactor(ContextState(ContextLimits(2_000, 0), Words()), summarize=given)


# --- calibration --------------------------------------------------------------------------------------------


async def test_reported_usage_moves_the_limit_so_that_the_providers_count_stays_within_the_window() -> None:
    manager = HierarchicalContextManager(2_000, tokenizer=Words(), overhead_tokens=50)
    for _ in range(60):
        await fill_manager(manager, 1)
        manager.get_context()
        manager.report_usage(input_tokens=int((manager.tokens + 50) * 1.5))
    assert manager.calibration.ratio == pytest.approx(1.5, abs=0.05)
    assert manager.calibration.samples > 40
    assert (manager.tokens + 50) * 1.5 <= 2_000 * 1.05


async def test_a_context_that_is_too_large_for_what_was_reported_is_shortened_at_once() -> None:
    changes: list[Change] = []
    manager = HierarchicalContextManager(
        2_000, summarization_threshold=1.0, tokenizer=Words(), on_change=changes.append
    )
    while manager.tokens < 1_800:
        await fill_manager(manager, 1)
    manager.get_context()
    stored = len(changes)
    assert manager.report_usage(input_tokens=3_600) > 1.9
    assert manager.tokens <= 1_000
    assert_valid(manager.get_context())
    assert len(changes) == stored + 1


async def test_usage_is_that_of_the_context_that_was_given_and_never_negative() -> None:
    manager = HierarchicalContextManager(8_000, tokenizer=Words())
    await fill_manager(manager, 20)
    manager.get_context()
    sent = manager.tokens
    await fill_manager(manager, 20)
    assert manager.report_usage(input_tokens=sent) == 1.0
    with pytest.raises(ValueError, match="negative"):
        manager.report_usage(input_tokens=-1)


async def test_a_pinned_message_outlasts_every_compaction_and_is_previewed_with_its_cost() -> None:
    manager = HierarchicalContextManager(
        max_tokens=2_000, tokenizer=Words(), summarizer=Summariser("They talked.")
    )
    await fill_manager(manager, 6)
    await manager.add_message({"role": "user", "content": "The port is 8443. " * 8})
    manager.pin(7)
    await fill_manager(manager, 200)
    assert manager.view.verbatim_from is not None
    assert manager.view.verbatim_from > 7
    assert [(pin.seq, pin.shown_tokens) for pin in manager.pins] == [(7, manager.messages[6].tokens)]
    assert manager.get_context()[1]["content"] == "The port is 8443. " * 8
    foretold = manager.preview_edit(unpin=[7], model="anthropic/claude-sonnet-4-5")
    assert foretold.tokens <= foretold.tokens_before - manager.messages[6].tokens
    assert foretold.cost_usd == pytest.approx(foretold.cache_tokens_written * 3.75e-6, rel=0.3)
    manager.unpin(7)
    assert manager.get_context() == foretold.messages
    assert manager.undo().pins == (7,)
    await manager.close()


@pytest.mark.parametrize("summarizer", [None, Summariser("They talked.")])
async def test_a_message_that_a_compaction_covered_can_be_pinned_previewed_and_unpinned(summarizer) -> None:
    manager = HierarchicalContextManager(max_tokens=2_000, tokenizer=Words(), summarizer=summarizer)
    await manager.add_message({"role": "user", "content": "Watch the port."})
    await manager.add_message({"role": "assistant", "content": "Which port?"})
    await manager.add_message({"role": "user", "content": "The port is 8443. " * 8})
    await fill_manager(manager, 20)
    assert (await manager.compact()).applied
    assert manager.view.verbatim_from is not None
    assert manager.view.verbatim_from > 3
    foretold = manager.preview_edit(pin=[3])
    assert manager.pin(3).pins == (3,)
    assert manager.get_context() == foretold.messages
    assert [(pin.seq, pin.shown_tokens) for pin in manager.pins] == [(3, manager.messages[2].tokens)]
    manager.preview_compaction(up_to=manager.messages[-1].seq)
    manager.undo()
    assert manager.pins == ()
    manager.redo()
    assert [pin.seq for pin in manager.pins] == [3]
    await fill_manager(manager, 200)
    assert "The port is 8443. " * 8 in [message["content"] for message in manager.get_context()]
    assert manager.unpin(3).pins == ()
    await manager.close()
