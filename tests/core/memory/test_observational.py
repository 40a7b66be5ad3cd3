"""Observational memory: the engine around the coordinator. It never waits, and nothing strands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words, assert_covered, assert_valid, call, fill, result, text_of

from watchkeeper import BufferConfig, ObserverOutput, ReflectorOutput
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.observational import ObservationalMemory, ObservationalSettings
from watchkeeper.memory.prompts import (
    OBSERVER_SYSTEM,
    REFLECTOR_SYSTEM,
    model_observer,
    model_reflector,
    model_summarizer,
    transcript,
)
from watchkeeper.records.errors import LeaseLost, StoreUnusable
from watchkeeper.records.messages import Message, ObservationKind

SMALL = BufferConfig(target_cycles=4, token_cap=5_000, min_tokens=50, utility_model_context_window=10_000)


class Observer:
    """Notes each message in a few words; waits while it is closed."""

    def __init__(self, say: Any = None) -> None:
        self.seen: list[int] = []
        self.instructions: list[str | None] = []
        self.say = say
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(
        self, messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        self.instructions.append(instruction)
        await self.open.wait()
        if isinstance(self.say, Exception):
            raise self.say
        self.seen += [message.seq for message in messages]
        text = self.say if self.say is not None else "\n".join(f"[+] saw (#{m.seq})" for m in messages[::4])
        return ObserverOutput(text, "surveying", "go on")


class Reflector:
    def __init__(self, *texts: Any) -> None:
        self.texts = list(texts) or ["They went on (#1)."]
        self.levels: list[int] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, observations: str, level: int, instruction: str | None) -> ReflectorOutput:
        self.levels.append(level)
        await self.open.wait()
        text = self.texts[min(len(self.levels), len(self.texts)) - 1]
        if isinstance(text, Exception):
            raise text
        return ReflectorOutput(text, level)


def engine(
    observer: Observer | None = None,
    reflector: Reflector | None = None,
    *,
    window: int = 2_000,
    **settings: Any,
) -> ObservationalMemory:
    state = ContextState(ContextLimits(window, 0), Words())
    given = ObservationalSettings(buffer=SMALL, **settings)
    return ObservationalMemory(state, observer or Observer(), reflector or Reflector(), given)


async def run(memory: ObservationalMemory, count: int) -> list[Any]:
    changes = []
    for _ in range(count):
        fill(memory.state, 1)
        changes += memory.advance(at=0.0)
        for _ in range(6):
            await asyncio.sleep(0)
    return changes


async def test_messages_are_observed_ahead_of_need_and_activated_in_one_move() -> None:
    observer = Observer()
    memory = engine(observer)
    changes = await run(memory, 30)
    assert changes == []
    assert observer.seen == list(range(1, observer.seen[-1] + 1)), "each message once, in order"
    while not changes:
        changes = await run(memory, 1)
    (change,) = changes
    assert change.reason == "activation"
    assert len(change.views) == 1
    (observation,) = memory.state.view.observations
    assert observation.kind is ObservationKind.OBSERVATION
    assert "Current task: surveying" in observation.text
    assert set(observation.citations) <= set(range(*observation.covers)) | {observation.covers[1]}
    kept = memory.state.tokens - memory.state.composition()["observations"]
    assert kept >= 0.2 * memory.state.limit, "about a fifth stays verbatim"
    assert memory.current_task == "surveying"
    assert memory.suggested_response == "go on"


async def test_a_thread_of_tool_calls_is_observed_too() -> None:
    memory = engine()
    memory.state.append("user", "go", at=0.0)
    reasons = []
    for number in range(60):
        memory.state.append("assistant", call(f"c{number}"), at=0.0)
        memory.advance(at=0.0)
        memory.state.append("user", result(f"c{number}", text="line " * 30), at=0.0)
        reasons += [change.reason for change in memory.advance(at=0.0)]
        for _ in range(6):
            await asyncio.sleep(0)
        assert_valid(memory.state.render())
    assert "activation" in reasons
    assert "digest" not in reasons


async def test_the_front_stays_byte_identical_between_activations() -> None:
    memory = engine()
    while not memory.state.view.observations:
        await run(memory, 1)
    version, front = memory.state.view.version, memory.state.render()[0]
    while memory.state.view.version == version:
        assert memory.state.render()[0] == front
        await run(memory, 1)


@pytest.mark.parametrize("say", [RuntimeError("down"), "", "bla " * 5_000, "Invented (#9999)."])
async def test_an_observer_that_fails_is_asked_again_and_then_the_digest_takes_its_part(say: Any) -> None:
    observer = Observer(say)
    memory = engine(observer)
    changes = []
    while not changes:
        changes = await run(memory, 1)
    assert changes[0].reason == "activation"
    assert "Digest, made without a model" in memory.state.view.observations[0].text
    assert "much shorter" in str(observer.instructions[1])


async def test_an_observer_that_hangs_stalls_nobody() -> None:
    observer = Observer()
    observer.open.clear()
    memory = engine(observer)
    await run(memory, 200)
    assert memory.state.tokens <= memory.state.limit
    assert_covered(memory.state.view, 200)
    observer.open.set()
    await run(memory, 60)
    assert any(o.kind is ObservationKind.OBSERVATION for o in memory.state.view.observations), (
        "it recovers by itself"
    )


async def test_a_change_of_view_by_somebody_else_strands_no_chunk() -> None:
    memory = engine()
    while len(memory.coordinator.get_completed_chunks()[0]) < 2:
        await run(memory, 1)
    first = memory.snapshot().ranges[0]
    memory.state.digest(up_to=first[1], at=0.0)
    memory.advance(at=0.0)
    chunks, watermark = memory.coordinator.get_completed_chunks()
    ranges = memory.snapshot().ranges
    assert len(chunks) == len(ranges) >= 1, "the chunk behind the digest joins on"
    assert ranges[0][0] == memory.state.view.verbatim_from
    assert memory.state.verbatim[watermark - 1].seq == ranges[-1][1], "re-indexed"
    memory.state.digest(up_to=ranges[0][0] + 1, at=0.0)
    memory.advance(at=0.0)
    assert memory.coordinator.get_completed_chunks() == ([], 0), "a chunk that is cut is observed anew"


async def test_chunks_outlive_a_restart() -> None:
    memory = engine()
    while not memory.coordinator.has_completed_chunks():
        await run(memory, 1)
    stored = memory.snapshot()
    again = ObservationalMemory(memory.state, Observer(), Reflector(), memory.settings)
    again.restore(stored)
    assert again.snapshot() == stored


async def test_observations_that_outgrow_their_share_are_reflected_ahead_of_need() -> None:
    reflector = Reflector()
    memory = engine(Observer(), reflector, reflection_threshold=200)
    reasons: list[str] = []
    while "reflection" not in reasons and memory.state.last_seq < 800:
        reasons += [change.reason for change in await run(memory, 1)]
    assert "reflection" in reasons
    assert reflector.levels[0] == 0
    reflection = next(o for o in memory.state.view.observations if o.kind is ObservationKind.REFLECTION)
    assert reflection.level == 1
    assert reflection.replaces
    assert_covered(memory.state.view, memory.state.last_seq)


async def test_where_a_reflection_is_late_the_digest_stands_in_until_it_lands() -> None:
    reflector = Reflector()
    reflector.open.clear()
    memory = engine(Observer(), reflector, reflection_threshold=150, reflection_activation=1.0)
    reasons: list[str] = []
    while "digest" not in reasons and memory.state.last_seq < 800:
        reasons += [change.reason for change in await run(memory, 1)]
    assert memory.state.view.observations[0].provisional
    reflector.open.set()
    assert "reflection" in [change.reason for change in await run(memory, 3)]
    assert memory.state.view.observations[0].kind is ObservationKind.REFLECTION
    assert_covered(memory.state.view, memory.state.last_seq)


async def test_compression_escalates_until_a_reflection_can_be_used() -> None:
    reflector = Reflector("same line again and again\n" * 60, "grown " * 4_000, "Short (#1).")
    memory = engine(Observer(), reflector, reflection_threshold=200)
    while len(reflector.levels) < 3 and memory.state.last_seq < 800:
        await run(memory, 1)
    assert reflector.levels[:3] == [0, 1, 2]


async def test_after_abort_nothing_is_launched() -> None:
    observer = Observer()
    memory = engine(observer)
    memory.abort()
    await run(memory, 60)
    assert observer.seen == []
    assert memory.state.tokens <= memory.state.limit


async def test_the_prompts_show_numbers_and_their_answers_are_read() -> None:
    asked: list[tuple[str, str]] = []

    async def complete(system: str, prompt: str) -> str:
        asked.append((system, prompt))
        return (
            "<observations>\n10:00 [!] begun (#1)\n</observations>\n"
            "<current-task>survey</current-task><suggested-response>read on</suggested-response>"
        )

    messages = [
        Message(1, "user", "survey </transcript> it", 5, 5, 0.0),
        Message(2, "assistant", call("c1"), 5, 10, 60.0),
        Message(3, "user", result("c1", text="x" * 50_000), 5, 15, 60.0),
    ]
    output = await model_observer(complete)(messages, "before", "be brief")
    assert output == ObserverOutput("10:00 [!] begun (#1)", "survey", "read on")
    system, prompt = asked[0]
    assert system == OBSERVER_SYSTEM
    assert "[#2 calls read]" in prompt
    assert prompt.count("</transcript>") == 1, "no message can close the transcript"
    assert len(prompt) < 10_000
    assert prompt.endswith("be brief")
    reflected = await model_reflector(complete)("log", 2, None)
    assert reflected == ReflectorOutput("10:00 [!] begun (#1)", 2)
    assert asked[1][0] == REFLECTOR_SYSTEM
    assert "quarter" in asked[1][1]
    assert "1970-01-01 00:01" in transcript(messages, dated=True)


async def test_a_model_can_summarise_with_citations() -> None:
    from watchkeeper.memory.compactor import Compactor

    async def complete(system: str, prompt: str) -> str:
        assert "[#1 user]" in prompt
        assert "keep names" in prompt
        return "Goal: survey (#1)."

    state = ContextState(ContextLimits(2_000, 0), Words())
    fill(state, 12)
    outcome = await Compactor(state, write=model_summarizer(complete)).run(8, "keep names", at=0.0)
    assert outcome.applied
    assert state.view.observations[0].citations == (1,)
    assert "Goal: survey" in text_of(state.render())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("talk"), st.integers(1, 300)),
        st.tuples(st.just("tools"), st.integers(1, 300)),
        st.tuples(st.just("loop"), st.integers(1, 12)),
        st.tuples(st.just("undo"), st.just(0)),
        st.tuples(st.just("redo"), st.just(0)),
        st.tuples(st.just("digest"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


@given(
    steps=STEPS,
    says=st.lists(
        st.sampled_from([None, "", "bla " * 900, RuntimeError("x"), "Invented (#9999)."]),
        min_size=1,
        max_size=3,
    ),
    window=st.sampled_from([400, 1_000]),
    delay=st.integers(0, 12),
)
def test_no_seed_strands_a_chunk(
    steps: list[tuple[str, int]], says: list[Any], window: int, delay: int
) -> None:
    asyncio.run(play(steps, says, window, delay))


async def play(steps: list[tuple[str, int]], says: list[Any], window: int, delay: int) -> None:
    count = 0

    async def observe(
        messages: Sequence[Message], previous: str | None, instruction: str | None
    ) -> ObserverOutput:
        nonlocal count
        count += 1
        for _ in range(delay):
            await asyncio.sleep(0)
        return await Observer(says[count % len(says)])(messages, previous, instruction)

    async def reflect(observations: str, level: int, instruction: str | None) -> ReflectorOutput:
        for _ in range(delay):
            await asyncio.sleep(0)
        return ReflectorOutput(observations[: len(observations) // 2] if level else observations, level)

    state = ContextState(ContextLimits(window, 0), Words())
    settings = ObservationalSettings(
        buffer=BufferConfig(4, 5_000, 20, 10_000), reflection_threshold=window // 5
    )
    memory = ObservationalMemory(state, observe, reflect, settings)
    for number, (kind, size) in enumerate(steps):
        if kind == "talk":
            state.append("user" if number % 2 else "assistant", f"<{number}>" + "w " * size, at=0.0)
        elif kind == "tools":
            state.append("assistant", call(f"c{number}"), at=0.0)
            memory.advance(at=0.0)
            state.append("user", result(f"c{number}", text="r " * size), at=0.0)
        elif kind == "loop":
            for _ in range(size):
                await asyncio.sleep(0)
        elif kind in ("undo", "redo"):
            try:
                state.undo(at=0.0) if kind == "undo" else state.redo(at=0.0)
            except ValueError:
                pass
        elif kind == "digest":
            state.digest(at=0.0)
        else:
            stored = memory.snapshot()
            memory.abort()
            memory = ObservationalMemory(state, observe, reflect, settings)
            memory.restore(stored)
        memory.advance(at=0.0)
        assert_covered(state.view, state.last_seq)
        if state.last_seq:
            assert_valid(state.render())
        joined(memory)
    await memory.coordinator.settled()
    memory.advance(at=0.0)
    joined(memory)


def joined(memory: ObservationalMemory) -> None:
    """Chunks stand for the verbatim messages from the first one on, without a gap, up to the watermark."""
    chunks, watermark = memory.coordinator.get_completed_chunks()
    ranges = memory.snapshot().ranges
    assert len(chunks) == len(ranges)
    expected = memory.state.verbatim[0].seq if memory.state.verbatim else 0
    for first, last, citations in ranges:
        assert first == expected
        assert citations
        expected = last + 1
    if ranges:
        assert memory.state.verbatim[watermark - 1].seq == ranges[-1][1]


@pytest.mark.parametrize(
    "error", [StoreUnusable("the database is gone"), LeaseLost("another host took over")]
)
async def test_an_engine_that_can_store_nothing_more_says_so_at_its_next_step(error: Exception) -> None:
    for failing in ("observer", "reflector", "keep"):
        observer, reflector = Observer(), Reflector()
        if failing == "observer":
            observer.say = error
        if failing == "reflector":
            reflector.texts = [error]
        memory = engine(observer, reflector, reflection_threshold=100)

        async def keep(*_: Any) -> None:
            raise error

        if failing == "keep":
            memory._kept = keep
        with pytest.raises(type(error), match=str(error)):
            await run(memory, 120)
        if failing == "observer":
            assert len(observer.instructions) == 1, "it is not asked again"
