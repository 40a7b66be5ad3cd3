"""What a stranger's program does to a manager: event loops that come and go, odd messages, listeners that
call back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.core.memory.support import EVENTS, Words, add, assert_covered, user

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.compactor import PassOutcome
from watchkeeper.memory.history import Change
from watchkeeper.memory.manager import Swap


async def hangs(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
    await asyncio.Event().wait()
    return ""


async def says(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
    return "Short summary."


def listen(manager: HierarchicalContextManager) -> list[Swap]:
    heard: list[Swap] = []
    for event in EVENTS:
        manager.on(event, heard.append)  # type: ignore[arg-type]
    return heard


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
    fails = True
    calls = 0

    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        nonlocal calls
        calls += 1
        if fails:
            raise asyncio.CancelledError
        return "Short summary."

    manager = HierarchicalContextManager(1_000, 0.9, Words(), summarize)
    while not calls:
        await add(manager, 1, 300)
        await asyncio.sleep(0)
    fails = False
    before = calls
    for _ in range(40):
        await add(manager, 1, 300)
        await asyncio.sleep(0)
    assert calls > before, "forty messages later, and several windows full"


@pytest.mark.parametrize("threshold", [0.2, 0.3])
async def test_digests_do_not_follow_each_other_at_every_message(threshold: float) -> None:
    manager = HierarchicalContextManager(1_000, threshold, Words())
    heard = listen(manager)
    await add(manager, 300, 60)
    assert len(heard) <= 60, (
        f"{len(heard)} swaps for 300 messages that take {manager.state.total_tokens} tokens in all"
    )


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.75, 1.0])
async def test_summaries_do_not_follow_each_other_at_every_message(threshold: float) -> None:
    calls = 0

    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        nonlocal calls
        calls += 1
        return "They went on."

    manager = HierarchicalContextManager(1_000, threshold, Words(), summarize)
    await add(manager, 300, 60)
    await manager.close()
    assert calls <= 60


# --- event loops --------------------------------------------------------------------------------------------


def test_messages_may_be_added_at_the_same_time_in_one_event_loop_after_the_other() -> None:
    manager = HierarchicalContextManager(100_000)

    async def together() -> None:
        await asyncio.gather(*(manager.add_message(user("word " * 20_000)) for _ in range(3)))

    asyncio.run(together())
    asyncio.run(together())
    assert len(manager.messages) == 6


def test_a_fresh_event_loop_for_each_call_works() -> None:
    manager = HierarchicalContextManager(1_000, 0.5, Words(), says)
    heard = listen(manager)
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
def test_a_pass_whose_event_loop_is_closed_is_given_up(
    use: Callable[[HierarchicalContextManager], Awaitable[None]],
) -> None:
    manager = abandoned_by_its_loop()

    async def go() -> None:
        await use(manager)

    asyncio.run(go())
    assert not manager.is_compacting


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_undo_works_when_the_event_loop_of_a_pass_is_closed() -> None:
    manager = abandoned_by_its_loop()
    version = manager.view.version
    assert manager.undo().version < version


# --- nothing is left pending --------------------------------------------------------------------------------


async def test_close_leaves_no_task_pending_after_an_undo() -> None:
    manager = HierarchicalContextManager(1_000, 0.3, Words(), hangs)
    await _start_a_pass(manager)
    manager.undo()
    await manager.close()
    assert others() == []


async def test_close_leaves_no_task_pending_after_a_cancelled_request() -> None:
    manager = HierarchicalContextManager(1_000, 0.9, Words(), hangs)
    await add(manager, 8)
    request = asyncio.create_task(manager.compact())
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    await manager.close()
    assert others() == []


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
    heard = listen(manager)
    await manager.close()
    assert others() == []
    assert [swap.event for swap in heard] == ["swap:abandoned"]
    assert (await manager.compact()).applied is False
    await add(manager, 30)
    assert manager.tokens <= 1_000
    assert others() == [], "nothing starts after close"


# --- odd messages -------------------------------------------------------------------------------------------


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


async def test_a_slow_tokenizer_is_not_asked_again_and_again() -> None:
    asked = 0

    def tokenizer(text: str) -> int:
        nonlocal asked
        asked += len(text)
        return len(text) // 4

    manager = HierarchicalContextManager(100_000, tokenizer=tokenizer)
    await add(manager, 200)
    before = asked
    for _ in range(50):
        manager.get_context()
        assert manager.tokens
    assert asked == before, "get_context only renders"


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
    heard = listen(manager)
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
