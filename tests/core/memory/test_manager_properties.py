"""The manager under anything that a program, a model and a person may do to it at once.

Written from the promises alone: coverage, pairs, bound, order, single flight, exact undo, what events say,
and that nothing is left behind. `WATCHKEEPER_HYPOTHESIS=thorough` runs thousands of examples.
"""

from __future__ import annotations

import asyncio
import copy
import gc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.memory.steps import MANY_STEPS, STEPS, SUMMARISERS
from tests.core.memory.support import Characters, Words
from tests.core.memory.world import World, begin, finish, play, take

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits


@given(
    steps=MANY_STEPS,
    says=SUMMARISERS,
    window=st.sampled_from([160, 400, 1_000, 4_000]),
    threshold=st.sampled_from([0.2, 0.75, 1.0]),
    counter=st.sampled_from([Words(), Characters(), len, None]),
    wait=st.sampled_from([0.0, 0.0, 0.001]),
    rude=st.booleans(),
)
def test_whatever_is_done_at_once_the_promises_hold(steps, says, window, threshold, counter, wait, rude):
    noticed: list[str] = []

    async def go() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: noticed.append(context["message"])
        )
        await play(steps, says, window, threshold, counter, wait, rude)
        gc.collect(0)
        await asyncio.sleep(0)

    asyncio.run(go())
    assert noticed == [], "nothing is left to be found by the event loop"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(
    steps=st.lists(st.tuples(STEPS, st.booleans()), min_size=10, max_size=50),
    says=SUMMARISERS,
    window=st.sampled_from([400, 1_000, 4_000]),
    wait=st.sampled_from([0.0, 0.001]),
)
def test_event_loops_may_come_and_go_under_a_manager(steps, says, window, wait):
    """Each call in an event loop of its own: ended by `asyncio.run`, or closed with a pass still pending in
    it."""
    world, release = begin(says, window, 0.5, Words(), wait, False)
    for step, tidy in steps:
        if step[0] in ("idle", "cancel"):
            continue
        if tidy:
            asyncio.run(take(world, step))
        else:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(take(world, step))
            for task in asyncio.all_tasks(loop):  # they are never heard of again
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.close()
            world.running.clear()
        world.requests.clear()
        world.check()
    release()

    async def end() -> None:
        async with asyncio.timeout(5):
            await world.manager.idle()
            await finish(world)

    asyncio.run(end())
    world.check()


@given(
    steps=st.lists(st.tuples(STEPS, st.integers(0, 9)), min_size=15, max_size=60),
    says=SUMMARISERS,
    window=st.sampled_from([300, 1_000, 4_000]),
)
@example(  # only the shortest form of the newest call fits
    steps=[
        *[(("say", "user", ""), 0)] * 23,
        (("calls", 2, {"path": "src/parser/tokens.py " * 91}), 0),
        (("ghost", 0, "   " * 382), 0),
        (("undo and redo", 0, 0), 0),
    ],
    says=[("good", 0)],
    window=300,
)
def test_what_was_told_is_enough_to_carry_on_after_a_kill(steps, says, window):
    """A process ends anywhere; the next one has the changes that were stored, and shows, undoes and goes on
    alike."""
    asyncio.run(killed(steps, says, window))


async def killed(steps: list[tuple[Any, int]], says: list[tuple[str, int]], window: int) -> None:
    world, release = begin(says, window, 0.5, Words(), 0.0, False)
    told = world.changes
    first = world.manager.views[0]
    for step, chance in steps:
        await take(world, step)
        world.check()
        if chance:
            continue
        before, shown, tokens = world.manager, world.shown(), world.manager.tokens
        undone = _undone(before, world)
        await before.close()
        await asyncio.gather(*world.requests, return_exceptions=True)
        kept = list(told)  # what closing did is not part of what was stored
        state = ContextState.restore(
            before.state.limits,
            before.state.counter,
            agent_id="agent",
            messages=[message for change in kept for message in change.messages],
            views=[first, *(view for change in kept for view in change.views)],
            current=kept[-1].view.version if kept else 1,
            observations=[observation for change in kept for observation in change.observations],
            pin_first=False,
        )
        following, release = begin(says, window, 0.5, Words(), 0.0, False, state=state, changes=told)
        following.given = world.given
        following.open, following.calls, following.shown_at = world.open, world.calls, world.shown_at
        world = following
        assert world.shown() == shown
        assert world.manager.tokens == tokens
        assert _undone(world.manager, world) == undone, "undo leads where it would have led"
        world.check()
    release()
    await world.manager.idle()
    await finish(world)


def _undone(manager: HierarchicalContextManager, world: World) -> Any:
    """What an undo would show, without doing it to the manager."""
    state = copy.deepcopy(manager.state)
    try:
        return state.undo(at=0.0).view.observations, state.tokens
    except ValueError as error:
        return str(error)


def test_redo_survives_a_kill_after_an_undo_that_kept_later_turns() -> None:
    state = ContextState(ContextLimits(1_000, 0), Words(), pin_first=False)
    for number in range(6):
        state.append("assistant" if number % 2 else "user", "word " * 60, at=0.0)
    assert state.digest(up_to=4, at=0.0) is not None
    state.append("user", "a whole file " * 3_000, at=0.0)
    assert 7 in state.view.elided
    state.undo(at=0.0)
    assert 7 in state.view.elided, "the later message stays as short as it must be"
    again = ContextState.restore(
        state.limits,
        state.counter,
        agent_id="agent",
        messages=state.messages,
        views=state.views,
        current=state.view.version,
        pin_first=False,
    )
    assert again.redo(at=0.0).view.observations == state.redo(at=0.0).view.observations
