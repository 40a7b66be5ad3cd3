"""Observational memory with observers and reflectors that err, are slow, talk too much, or are late."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words, assert_covered, assert_pairs_whole, assert_valid, call, result

from watchkeeper import BufferConfig, ObserverOutput, ReflectorOutput
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import Change, ContextLimits, WindowTooSmall
from watchkeeper.memory.observational import ObservationalMemory, ObservationalSettings
from watchkeeper.memory.tokens import count_message
from watchkeeper.records.messages import Message, ObservationKind

SMALL = BufferConfig(target_cycles=4, token_cap=5_000, min_tokens=50, utility_model_context_window=10_000)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("watchkeeper.memory").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("watchkeeper.memory").setLevel(logging.NOTSET)


async def halves(observations: str, level: int, instruction: str | None) -> ReflectorOutput:
    return ReflectorOutput(observations[: len(observations) // (2 + level)], level)


def engine(
    observe: Any, reflect: Any = halves, *, window: int = 2_000, **settings: Any
) -> ObservationalMemory:
    state = ContextState(ContextLimits(window, 0), Words())
    return ObservationalMemory(state, observe, reflect, ObservationalSettings(buffer=SMALL, **settings))


async def run(memory: ObservationalMemory, count: int, words: int = 20) -> list[Change]:
    changes: list[Change] = []
    for _ in range(count):
        number = memory.state.last_seq + 1
        memory.state.append("user" if number % 2 else "assistant", f"m{number} " + "word " * words, at=0.0)
        changes += memory.advance(at=0.0)
        for _ in range(8):
            await asyncio.sleep(0)
    return changes


async def test_a_long_current_task_makes_no_loop_of_observers() -> None:
    """What an observer adds beside its log counts too: else nothing it says is ever used, and it is asked for
    ever."""
    asked: list[int] = []

    async def observe(
        messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        asked.extend(message.seq for message in messages)
        return ObserverOutput("[+] they went on", "surveying " * 400, "go on " * 400)

    memory = engine(observe)
    changes = await run(memory, 150)
    assert len(asked) <= 2 * memory.state.last_seq, (
        f"{len(asked)} messages were observed, of {memory.state.last_seq}"
    )
    assert any(change.reason == "activation" for change in changes)


async def test_each_message_is_observed_once_while_nobody_changes_the_context() -> None:
    asked: list[int] = []

    async def observe(
        messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        asked.extend(message.seq for message in messages)
        await asyncio.sleep(0)
        return ObserverOutput("[+] they went on")

    memory = engine(observe)
    await run(memory, 200)
    assert len(asked) - len(set(asked)) <= len(asked) * 0.1, "observing twice is paid twice"


async def test_activations_keep_pace_with_a_slow_observer() -> None:
    """An activation must not make the observer in flight useless each time."""

    async def observe(
        messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        for _ in range(30):  # some four messages long
            await asyncio.sleep(0)
        return ObserverOutput("[+] they went on")

    memory = engine(observe)
    changes = await run(memory, 300)
    assert sum(change.reason == "activation" for change in changes) >= 3
    assert memory.state.tokens <= memory.state.limit


async def test_a_panic_of_observer_or_reflector_leaves_the_engine_working() -> None:
    noticed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noticed.append(context["message"]))

    async def panic(*given: Any) -> Any:
        raise asyncio.CancelledError

    memory = engine(panic, panic, reflection_threshold=100)
    await run(memory, 120)
    gc.collect()
    await asyncio.sleep(0)
    assert memory.state.tokens <= memory.state.limit
    assert_covered(memory.state.view, memory.state.last_seq)
    assert noticed == []


async def test_an_observer_that_changes_its_messages_changes_no_history() -> None:
    async def observe(
        messages: list[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        messages.clear()
        return ObserverOutput("[+] they went on")

    memory = engine(observe)
    await run(memory, 60)
    assert [message.seq for message in memory.state.messages] == list(range(1, 61))
    assert_covered(memory.state.view, 60)


async def test_what_is_shown_of_the_log_to_an_observer_is_as_much_as_was_set() -> None:
    shown: list[int] = []

    async def observe(
        messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        shown.append(Words().count(previous or ""))
        return ObserverOutput(
            "\n".join(
                f"[+] line {message.seq} of what was seen (#{message.seq})" for message in messages[::3]
            )
        )

    memory = engine(observe, previous_observer_tokens=30)
    await run(memory, 150)
    assert max(shown) > 10
    assert max(shown) <= 30


async def test_a_trackers_number_outlives_a_reflection() -> None:
    async def observe(
        messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        return ObserverOutput("[+] it is issue #4679 of openai-agents, " + "seen again and again " * 3)

    async def reflect(observations: str, level: int, instruction: str | None) -> ReflectorOutput:
        return ReflectorOutput("It is #4679 that matters.\nAll else is done.", level)

    memory = engine(observe, reflect, reflection_threshold=40)
    seen = False
    for _ in range(120):
        number = memory.state.last_seq + 1
        memory.state.append(
            "user" if number % 2 else "assistant", "Look at #4679 of openai-agents. " + "word " * 20, at=0.0
        )
        memory.advance(at=0.0)
        for _ in range(8):
            await asyncio.sleep(0)
        for observation in memory.state.view.observations:
            if observation.kind is ObservationKind.REFLECTION:
                seen = True
                assert "#4679" in observation.text
    assert seen


STEPS = st.one_of(
    st.tuples(st.just("talk"), st.integers(1, 300)),
    st.tuples(st.just("talk"), st.integers(1, 60)),
    st.tuples(st.just("tools"), st.integers(1, 300)),
    st.tuples(st.just("parallel"), st.integers(1, 200)),
    st.tuples(st.just("loop"), st.integers(1, 12)),
    st.tuples(st.just("undo"), st.just(0)),
    st.tuples(st.just("redo"), st.just(0)),
    st.tuples(st.just("digest"), st.integers(0, 60)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("limits"), st.sampled_from([300, 800, 2_000])),
)
SAYS = [
    "log", "log", "log", "", "bla " * 900, RuntimeError("x"), asyncio.CancelledError(), "Invented (#9999).", "half \ud83d",
    7, "task",
]  # fmt: skip


@given(
    steps=st.lists(STEPS, min_size=20, max_size=90),
    says=st.lists(st.sampled_from(SAYS), min_size=1, max_size=3),
    reflects=st.lists(
        st.sampled_from(["half", "same", "", "bla " * 900, RuntimeError("x"), "Invented (#9999)."]),
        min_size=1,
        max_size=3,
    ),
    window=st.sampled_from([300, 800, 2_000]),
    delay=st.integers(0, 25),
    share=st.integers(3, 12),
)
def test_no_interleaving_strands_a_chunk_or_breaks_a_context(
    steps: list[tuple[str, int]], says: list[Any], reflects: list[Any], window: int, delay: int, share: int
) -> None:
    noticed: list[str] = []

    async def go() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: noticed.append(context["message"])
        )
        await play(steps, says, reflects, window, delay, share)

    asyncio.run(go())
    assert noticed == []


async def play(
    steps: list[tuple[str, int]], says: list[Any], reflects: list[Any], window: int, delay: int, share: int
) -> None:
    observers = reflectors = asked = 0

    async def observe(messages: Sequence[Message], previous: str | None, instruction: str | None) -> Any:
        nonlocal observers, asked
        observers += 1
        asked += 1
        try:
            assert [m.seq for m in messages] == list(range(messages[0].seq, messages[-1].seq + 1))
            for _ in range(delay):
                await asyncio.sleep(0)
            said = says[asked % len(says)]
            if isinstance(said, BaseException):
                raise said
            if said == "log":
                said = f"[+] from {messages[0].seq} to {messages[-1].seq} (#{messages[0].seq})"
            if said == "task":
                return ObserverOutput("[+] seen", "surveying " * 200, None)
            return ObserverOutput(said)
        finally:
            observers -= 1

    async def reflect(observations: str, level: int, instruction: str | None) -> ReflectorOutput:
        nonlocal reflectors
        reflectors += 1
        try:
            for _ in range(delay):
                await asyncio.sleep(0)
            said = reflects[level % len(reflects)]
            if isinstance(said, BaseException):
                raise said
            if said == "half":
                said = observations[: len(observations) // 2]
            return ReflectorOutput(observations if said == "same" else said, level)
        finally:
            reflectors -= 1

    state = ContextState(ContextLimits(window, 0), Words())
    settings = ObservationalSettings(
        buffer=BufferConfig(4, 5_000, 20, 10_000), reflection_threshold=window // share
    )
    memory = ObservationalMemory(state, observe, reflect, settings)
    retired: list[ObservationalMemory] = []
    for number, (kind, size) in enumerate(steps):
        if kind == "talk":
            state.append("user" if number % 2 else "assistant", f"<{number}>" + "w " * size, at=0.0)
        elif kind in ("tools", "parallel"):
            names = [f"c{number}.{index}" for index in range(1 if kind == "tools" else 3)]
            state.append("assistant", call(*names), at=0.0)
            memory.advance(at=0.0)
            for name in names:
                await asyncio.sleep(0)
                state.append("user", result(name, text="r " * size), at=0.0)
                memory.advance(at=0.0)
        elif kind == "loop":
            for _ in range(size):
                await asyncio.sleep(0)
        elif kind in ("undo", "redo"):
            try:
                state.undo(at=0.0) if kind == "undo" else state.redo(at=0.0)
            except ValueError:
                pass
        elif kind == "digest":
            state.digest(at=0.0, up_to=size or None)
        elif kind == "limits":
            state.set_limits(ContextLimits(size, 0), 1.0)
            state.fit(at=0.0)
        else:
            stored = memory.snapshot()
            memory.abort()
            retired.append(memory)
            memory = ObservationalMemory(state, observe, reflect, settings)
            memory.restore(stored)
        before = state.view
        changes = memory.advance(at=0.0)
        assert observers <= 1 + len(retired)
        assert reflectors <= 1 + len(retired)
        assert state.view == (changes[-1].view if changes else before), "everything that changed is told"
        check(state)
        chunks, watermark = memory.coordinator.get_completed_chunks()
        ranges = memory.snapshot().ranges
        assert len(ranges) == len(memory.coordinator.get_completed_chunks()[0]), "each chunk has its range"
        expected = state.verbatim[0].seq if state.verbatim else state.last_seq + 1
        for first, last, citations in ranges[: len(chunks)]:
            assert first == expected, "chunks join on to what is covered, and to each other"
            assert last <= state.last_seq
            assert citations
            assert all(first <= seq <= last for seq in citations)
            expected = last + 1
        if chunks:
            assert watermark == expected - state.verbatim[0].seq
    for _ in range(400):
        if not (memory.coordinator.is_observer_in_flight() or memory.coordinator.is_reflector_in_flight()):
            break
        await asyncio.sleep(0)
    memory.advance(at=0.0)
    check(state)
    memory.abort()
    for one in [*retired, memory]:
        await one.coordinator.settled()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def check(state: ContextState) -> None:
    assert_covered(state.view, state.last_seq)
    if not state.last_seq:
        return
    try:
        context = state.render()
    except WindowTooSmall:
        return
    assert_valid(context)
    assert_pairs_whole(state.view, state.messages)
    counted = sum(count_message(m["role"], m["content"], state.counter) for m in context)
    assert counted == state.tokens <= state.limit
