"""What a program, a model and a person may do to a manager at once, and what must hold then."""

# ruff: noqa: PT017 (what an exception says is checked where it is caught, among what else must hold then)

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.core.memory.steps import FAILS, IMAGE, SAYS
from tests.core.memory.support import EVENTS, assert_covered, assert_valid
from tests.support.message_rules import broken_rule

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import Change, WindowTooSmall
from watchkeeper.memory.manager import Swap
from watchkeeper.memory.tokens import count_message


@dataclass
class World:
    """One manager, what it was given, and what it told."""

    manager: HierarchicalContextManager
    limit: int
    given: list[dict[str, Any]] = field(default_factory=list)
    heard: list[Swap] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    requests: list[asyncio.Task[Any]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    calls: int = 0
    closed: bool = False
    running: list[object] = field(default_factory=list)
    """Calls of the summariser that are in flight."""
    shown_at: dict[tuple[int, int], Any] = field(default_factory=dict)
    """What each version of the view showed when there were so many messages."""

    untrue: list[tuple[Swap, int, int]] = field(default_factory=list)
    """Swaps that said something else than the manager did at that moment."""

    def hear(self, swap: Swap) -> None:
        self.heard.append(swap)
        manager = self.manager
        true = swap.tokens_after == manager.tokens and swap.view_version == manager.view.version
        if swap.event == "swap:complete":
            covered = max((o.covers[1] for o in manager.long_term_memory), default=0)
            true = (
                true
                and swap.high_water is not None
                and swap.high_water <= covered
                and swap.messages_removed <= covered
            )
        if not true:
            self.untrue.append((swap, manager.tokens, manager.view.version))

    async def add(self, role: str, content: Any) -> None:
        self.given.append({"role": role, "content": content})
        number = await self.manager.add_message({"role": role, "content": content})
        assert number == len(self.given), "ids are the place in the history"

    def shown(self) -> list[dict[str, Any]] | None:
        try:
            return self.manager.get_context()
        except WindowTooSmall as error:
            assert error.needed > self.limit
            return None

    def check(self) -> None:
        manager = self.manager
        assert [m.seq for m in manager.messages] == list(range(1, len(self.given) + 1))
        assert [(m.role, m.content) for m in manager.messages] == [
            (m["role"], m["content"]) for m in self.given
        ]
        versions = [view.version for view in manager.views]
        assert versions == sorted(set(versions))
        assert manager.view in manager.views
        for view in manager.views:
            assert view.parent is None or view.parent < view.version
        if not self.given:
            return
        assert_covered(manager.view, len(self.given))
        assert len(manager.short_term_memory) + sum(
            o.covers[1] - o.covers[0] + 1 for o in manager.long_term_memory
        ) == len(self.given)
        context = self.shown()
        known = self.shown_at.setdefault((manager.view.version, len(self.given)), context)
        assert known == context, "a version shows the same for ever, after an undo too"
        if context is None:
            return
        counted = sum(count_message(m["role"], m["content"], manager.state.counter) for m in context)
        assert counted == manager.tokens <= self.limit
        assert_valid(context)
        waiting = [b["id"] for b in context[-1]["content"] if isinstance(b, dict) and b["type"] == "tool_use"]
        if waiting:
            results = [{"type": "tool_result", "tool_use_id": name, "content": "."} for name in waiting]
            context = [*context, {"role": "user", "content": results}]
        assert broken_rule({"max_tokens": 1, "messages": context}) is None
        self.shown_verbatim(context)

    def shown_verbatim(self, context: list[dict[str, Any]]) -> None:
        """Verbatim messages stand in the context in their order, whole."""
        place = 0
        for message in self.manager.short_term_memory:
            if (
                message.seq in self.manager.view.elided
                or not isinstance(message.content, str)
                or not message.content.strip()
            ):
                continue
            while context[place]["content"] != message.content:
                place += 1
                assert place < len(context), f"message {message.seq} is not shown"
            assert context[place]["role"] == message.role
            place += 1


async def undo_and_check(world: World, also_redo: bool) -> None:
    manager = world.manager
    before, view = world.shown(), manager.view
    try:
        went_to = manager.undo()
    except ValueError as error:
        assert str(error)
        assert manager.view is view, "a refused undo changes nothing"
        assert world.shown() == before
        return
    assert went_to == manager.view
    assert not manager.is_compacting, "a pass in flight is given up"
    assert went_to.observations != view.observations, "undo takes a compaction back"
    assert any(
        went_to.observations == earlier.observations
        for earlier in manager.views
        if earlier.version < view.version
    )
    world.check()
    if also_redo:
        try:
            assert manager.redo().observations == view.observations
            assert world.shown() == before, "undo and redo lead back exactly"
        except ValueError:
            assert before is None, "what fitted a moment ago still fits"


def begin(
    says: list[tuple[str, int]],
    window: int,
    threshold: float,
    counter: Any,
    wait: float,
    rude: bool,
    *,
    state: ContextState | None = None,
    changes: list[Change] | None = None,
) -> tuple[World, Callable[[], None]]:
    """A manager with a summariser that takes turns at what it says; the second value lets those that hang
    come back."""
    running: list[object] = []
    turn = itertools.count()
    released: list[bool] = []

    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> Any:
        mark = object()
        running.append(mark)
        assert len(running) == 1, "one pass at a time"
        try:
            assert_valid(messages)
            kind, delay = says[next(turn) % len(says)]
            messages_copy = json.loads(json.dumps(messages))
            for _ in range(delay):
                await asyncio.sleep(0)
            if kind == "hangs":
                while not released:  # noqa: ASYNC110 (an Event would belong to one event loop)
                    await asyncio.sleep(0)
                return "Late, but here."
            assert messages == messages_copy
            messages.clear()  # what it does to its own list is nobody else's business
            if kind in FAILS:
                raise FAILS[kind]()
            return SAYS[kind](messages_copy, previous)
        finally:
            if mark in running:
                running.remove(mark)

    changes = [] if changes is None else changes
    manager = HierarchicalContextManager(
        window,
        threshold,
        counter,
        summarize,
        reserve_tokens=window // 8,
        max_wait_seconds=wait,
        on_change=changes.append,
        state=state,
    )
    world = World(manager, window - window // 8, changes=changes, running=running)
    for event in EVENTS:
        manager.on(event, world.hear)  # type: ignore[arg-type]
        if rude:
            manager.on(event, lambda swap: 1 / 0)  # type: ignore[arg-type,return-value]
    return world, lambda: released.append(True)


async def play(
    steps: list[Any],
    says: list[tuple[str, int]],
    window: int,
    threshold: float,
    counter: Any,
    wait: float,
    rude: bool,
) -> None:
    world, release = begin(says, window, threshold, counter, wait, rude)
    for step in steps:
        await take(world, step)
        world.check()
    release()
    await world.manager.idle()
    world.check()
    await finish(world)


async def take(world: World, step: tuple[Any, Any, Any]) -> None:
    kind, first, second = step
    manager = world.manager
    if kind == "say":
        await world.add(first, second)
    elif kind == "calls":
        names = [f"c{world.calls + index}" for index in range(first)]
        world.calls += first
        world.open += names
        thinking = [{"type": "thinking", "thinking": "hm", "signature": "sig"}]
        await world.add(
            "assistant",
            [
                *thinking,
                *({"type": "tool_use", "id": name, "name": "read", "input": second} for name in names),
            ],
        )
    elif kind == "results":
        names, world.open = world.open[:first], world.open[first:]
        results = [{"type": "tool_result", "tool_use_id": name, "content": second} for name in names]
        await world.add("user", results or "no results")
    elif kind == "ghost":
        await world.add(
            "user",
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "ghost",
                    "content": [{"type": "text", "text": second}, IMAGE],
                }
            ],
        )
    elif kind in ("compact", "compact twice"):
        was, busy = manager.view.version, manager.is_compacting
        request = asyncio.create_task(manager.compact(first, "keep the port" if second else None))
        world.requests.append(request)
        if kind == "compact twice":
            world.requests.append(asyncio.create_task(manager.compact(first)))
        await asyncio.sleep(0)
        if busy and request.done() and not request.cancelled():
            assert not request.result().applied
            assert manager.view.version >= was
    elif kind == "cancel" and world.requests:
        for _ in range(second):
            await asyncio.sleep(0)
        world.requests[-1].cancel()
        await asyncio.wait([world.requests[-1]])
    elif kind == "cancelled add":
        count = len(world.given)
        task = asyncio.create_task(manager.add_message({"role": "user", "content": second}))
        for _ in range(first):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            world.given.append({"role": "user", "content": second})
            assert task.result() == count + 1
    elif kind in ("undo", "undo and redo"):
        await undo_and_check(world, kind != "undo")
    elif kind == "redo":
        try:
            manager.redo()
        except ValueError as error:
            assert str(error)
    elif kind == "idle" and world.manager.is_compacting is False:
        await manager.idle()
    elif kind == "turns of the loop":
        for _ in range(first):
            await asyncio.sleep(0)
    elif kind == "close" and first == 12:
        world.closed = True
        await manager.close()
        assert not manager.is_compacting


async def finish(world: World) -> None:
    manager = world.manager
    await asyncio.gather(*world.requests, return_exceptions=True)
    for request in world.requests:
        if not request.cancelled():
            outcome = request.result()
            assert outcome.reason
            if not outcome.applied:
                assert outcome.tokens_after == outcome.tokens_before
    await manager.idle()
    await manager.close()
    assert not manager.is_compacting
    for _ in range(3):
        await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    what_was_told(world)


def what_was_told(world: World) -> None:
    manager = world.manager
    stored = [message for change in world.changes for message in change.messages]
    assert stored == list(manager.messages)
    views = {view.version: view for change in world.changes for view in change.views}
    assert [views[v.version] for v in manager.views if v.version > 1] == [
        v for v in manager.views if v.version > 1
    ]
    if world.changes:
        assert world.changes[-1].view == manager.view
    known: dict[int, Any] = {}
    for change in world.changes:
        for observation in change.observations:
            assert known.setdefault(observation.id, observation) == observation, (
                "ids of observations are unique"
            )
    for view in manager.views:
        for observation in view.observations:
            assert known[observation.id] == observation, "each observation was told once"
    assert world.untrue == [], "an event tells what is"
    pending = False
    for swap in world.heard:
        assert swap.messages_removed >= 0
        assert swap.tokens_after >= 0
        assert 0 < swap.view_version <= manager.views[-1].version
        assert (swap.stall_seconds == 0.0) or swap.event != "swap:start"
        if swap.event == "swap:start":
            assert not pending, "one pass at a time, and each is heard to end"
            pending = True
        elif swap.event == "swap:complete":
            assert swap.high_water is not None
            assert 1 <= swap.high_water <= len(world.given)
            pending = pending and swap.reason == "digest"  # the bound's own, while a pass is in flight
        elif swap.event in ("swap:abandoned", "swap:rejected"):
            assert swap.reason
            pending = False
    assert not pending
