"""The engine: observers and reflectors work ahead of need, nothing waits, and no chunk is stranded."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import (
    Words,
    assert_covered,
    assert_pairs_whole,
    assert_valid,
    call,
    engine_of,
    fill,
    log_of,
    result,
    text_of,
)

from watchkeeper import BufferConfig, ObserverOutput
from watchkeeper.memory.compactor import Compactor, read_answer, request_of, transcript
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.engine import MOST_DOUBLINGS, Engine, Pacer, TokenCosts, can_pay, is_needed
from watchkeeper.memory.history import Change, CompactionPass, ContextLimits, WindowTooSmall
from watchkeeper.memory.tokens import count_message
from watchkeeper.records.errors import LeaseLost, StoreUnusable
from watchkeeper.records.messages import Message, Observation, ObservationKind


@pytest.fixture(autouse=True)
async def _same_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes the same number of turns of the event loop on a slow machine: work that yields by the time sees no
    time pass, and work for threads is done at once."""

    def at_once(executor: object, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        done = loop.create_future()
        try:
            done.set_result(call(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: 0.0)
    monkeypatch.setattr(loop, "run_in_executor", at_once)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("watchkeeper.memory").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("watchkeeper.memory").setLevel(logging.NOTSET)


class Part:
    """An observer or a reflector: says one text after another, the last again and again; waits while closed."""

    def __init__(self, *texts: Any) -> None:
        self.texts = list(texts)
        self.seen: list[int] = []
        self.previous: list[str] = []
        self.asked: list[Any] = []
        """Instructions of an observer, compression levels of a reflector."""
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, run: CompactionPass, asked: Any) -> Any:
        self.asked.append(asked)
        self.seen += [message.seq for message in run.messages]
        self.previous.append(run.previous or "")
        await self.open.wait()
        text = self.texts[min(len(self.asked), len(self.texts)) - 1] if self.texts else None
        if isinstance(text, BaseException):
            raise text
        if text is not None:
            return text
        if run.kind is ObservationKind.REFLECTION:
            return "They went on (#1)."
        return log_of("\n".join(f"[+] saw (#{m.seq})" for m in run.messages[::4]), "surveying", "go on")


def engine(observer: Part | None = None, reflector: Part | None = None, **settings: Any) -> Engine:
    return engine_of(observer or Part(), reflector or Part(), **settings)


async def run(memory: Engine, count: int, turns: int = 8) -> list[Change]:
    changes: list[Change] = []
    for _ in range(count):
        fill(memory.state, 1)
        changes += memory.advance(at=0.0)
        for _ in range(turns):
            await asyncio.sleep(0)
    return changes


async def run_until(memory: Engine, reason: str, most: int = 800) -> Change:
    while memory.state.last_seq < most:
        for change in await run(memory, 1):
            if change.reason == reason:
                return change
    raise AssertionError(f"no {reason} within {most} messages")


async def test_messages_are_observed_once_ahead_of_need_and_activated_in_one_move() -> None:
    observer = Part()
    memory = engine(observer)
    assert await run(memory, 30) == []
    assert observer.seen == list(range(1, observer.seen[-1] + 1)), "each message once, in order"
    change = await run_until(memory, "activation")
    assert len(change.views) == 1
    (observation,) = memory.state.view.observations
    assert observation.kind is ObservationKind.OBSERVATION
    assert "Current task: surveying\nSuggested next: go on" in observation.text
    assert set(observation.citations) <= set(range(1, observation.covers[1] + 1))
    kept = memory.state.tokens - memory.state.composition()["observations"]
    assert kept >= 0.2 * memory.state.limit, "about a fifth stays verbatim"
    await run(memory, 200)
    assert len(observer.seen) - len(set(observer.seen)) <= len(observer.seen) * 0.1


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
    await run_until(memory, "activation")
    version, front = memory.state.view.version, memory.state.render()[0]
    while memory.state.view.version == version:
        assert memory.state.render()[0] == front
        await run(memory, 1)


@pytest.mark.parametrize("say", [RuntimeError("down"), "", "bla " * 5_000, "Invented (#9999)."])
async def test_an_observer_that_fails_is_asked_again_and_then_the_digest_replaces_its_text(say: Any) -> None:
    observer = Part(say)
    memory = engine(observer)
    await run_until(memory, "activation")
    assert "Digest, made without a model" in memory.state.view.observations[0].text
    assert "much shorter" in str(observer.asked[1])


async def test_what_an_observer_adds_beside_its_log_counts_too() -> None:
    """Otherwise no text of it could be used, and it would be asked for ever."""
    observer = Part(log_of("[+] they went on", "surveying " * 400, "go on " * 400))
    memory = engine(observer)
    await run_until(memory, "activation")
    await run(memory, 100)
    assert len(observer.seen) <= 2 * memory.state.last_seq


@pytest.mark.parametrize("seconds", [120.0, 0.001])
async def test_an_observer_that_hangs_stalls_no_agent(seconds: float) -> None:
    observer = Part()
    observer.open.clear()
    memory = engine(observer, timeout_seconds=seconds)
    await run(memory, 200)
    assert memory.state.tokens <= memory.state.limit
    assert_covered(memory.state.view, 200)
    observer.open.set()
    memory.compactor.timeout_seconds = 120.0  # a busy machine takes longer than a millisecond for any text
    memory.compactor.monotonic = lambda: time.monotonic() + 7_200  # the pause after equal failures is over
    await run(memory, 60)
    kinds = {one.kind for one in memory.state.view.observations}
    assert kinds & {ObservationKind.OBSERVATION, ObservationKind.REFLECTION}


async def test_activations_keep_pace_with_a_slow_observer() -> None:
    """An activation must not make the running observer useless each time."""

    async def observe(run: CompactionPass, instructions: str | None) -> str:
        for _ in range(30):  # some four messages long
            await asyncio.sleep(0)
        return "[+] they went on"

    memory = engine_of(observe, Part())
    changes = await run(memory, 300)
    assert sum(change.reason == "activation" for change in changes) >= 3
    assert memory.state.tokens <= memory.state.limit


async def test_a_panic_of_observer_or_reflector_leaves_the_engine_working() -> None:
    noticed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noticed.append(context["message"]))
    panic = Part(asyncio.CancelledError())
    memory = engine(panic, panic, reflection_threshold=100)
    await run(memory, 120)
    gc.collect()
    await asyncio.sleep(0)
    assert memory.state.tokens <= memory.state.limit
    assert_covered(memory.state.view, memory.state.last_seq)
    assert noticed == []


async def test_an_observer_is_shown_as_much_of_the_log_as_was_set() -> None:
    observer = Part()
    await run(engine(observer, previous_observer_tokens=30), 150)
    assert 10 < max(Words().count(text) for text in observer.previous) <= 30


async def test_a_change_of_view_by_hand_strands_no_chunk() -> None:
    memory = engine()
    while len(memory.coordinator.get_completed_chunks()[0]) < 2:
        await run(memory, 1)
    memory.state.digest(up_to=memory.coordinator.get_completed_chunks()[0][0].covers[1], at=0.0)
    memory.advance(at=0.0)
    chunks, _ = memory.coordinator.get_completed_chunks()
    assert chunks, "the chunk behind the digest joins on"
    assert_joined(memory)
    memory.state.digest(up_to=chunks[0].covers[0] + 1, at=0.0)
    memory.advance(at=0.0)
    assert memory.coordinator.get_completed_chunks() == ([], 0), "a chunk that is cut is observed again"


async def test_chunks_outlive_a_restart() -> None:
    memory = engine()
    while not memory.coordinator.has_completed_chunks():
        await run(memory, 1)
    stored = memory.coordinator.get_state()
    again = engine(state=memory.state)
    again.restore(stored.chunks)
    assert again.coordinator.get_state() == stored


async def test_observations_that_outgrow_their_share_are_reflected_ahead_of_need() -> None:
    reflector = Part()
    memory = engine(reflector=reflector, reflection_threshold=200)
    await run_until(memory, "reflection")
    assert reflector.asked[0] == 0
    reflection = next(o for o in memory.state.view.observations if o.kind is ObservationKind.REFLECTION)
    assert reflection.level == 1
    assert reflection.replaces
    assert_covered(memory.state.view, memory.state.last_seq)


async def test_where_a_reflection_is_late_a_digest_replaces_it_until_it_is_there() -> None:
    reflector = Part()
    reflector.open.clear()
    memory = engine(reflector=reflector, reflection_threshold=150, reflection_activation=1.0)
    await run_until(memory, "digest")
    assert memory.state.view.observations[0].provisional
    reflector.open.set()
    assert "reflection" in [change.reason for change in await run(memory, 3)]
    assert memory.state.view.observations[0].kind is ObservationKind.REFLECTION
    assert_covered(memory.state.view, memory.state.last_seq)


async def test_compression_escalates_until_a_reflection_can_be_used() -> None:
    reflector = Part("same line again and again\n" * 60, "grown " * 4_000, "Short (#1).")
    memory = engine(reflector=reflector, reflection_threshold=200)
    while len(reflector.asked) < 3 and memory.state.last_seq < 800:
        await run(memory, 1)
    assert reflector.asked[:3] == [0, 1, 2]


async def test_the_number_of_another_tracker_outlives_a_reflection() -> None:
    memory = engine(
        Part("[+] it is issue #4679 of openai-agents, " + "seen again and again " * 3),
        Part("It is #4679 that matters.\nAll else is done."),
        reflection_threshold=40,
    )
    memory.state.append("user", "Look at #4679 of openai-agents. " + "word " * 20, at=0.0)
    await run_until(memory, "reflection")
    reflections = [o for o in memory.state.view.observations if o.kind is ObservationKind.REFLECTION]
    assert "#4679" in reflections[0].text


async def test_after_abort_nothing_is_launched() -> None:
    observer = Part()
    memory = engine(observer)
    memory.abort()
    await run(memory, 60)
    assert observer.seen == []
    assert memory.state.tokens <= memory.state.limit


@pytest.mark.parametrize(
    "error", [StoreUnusable("the database is gone"), LeaseLost("another host took over")]
)
@pytest.mark.parametrize("failing", ["observer", "reflector", "keep"])
async def test_an_engine_that_can_store_nothing_more_says_so_at_its_next_step(error, failing):
    async def keep(*_: Any) -> None:
        raise error

    observer = Part(*[error] if failing == "observer" else [])
    reflector = Part(*[error] if failing == "reflector" else [])
    memory = engine(observer, reflector, reflection_threshold=100, keep=keep if failing == "keep" else None)
    with pytest.raises(type(error), match=str(error)):
        await run(memory, 120)
    if failing == "observer":
        assert len(observer.asked) == 1, "it is not asked again"


# --- Prompts ------------------------------------------------------------------------------------------------


def a_pass(kind: ObservationKind, **values: Any) -> CompactionPass:
    return CompactionPass(kind=kind, covers=(1, 3), source_tokens=15, base_version=1, epoch=0, **values)


def an_observation(text: str) -> Observation:
    return Observation(1, ObservationKind.OBSERVATION, text, 3, (1, 3), (1,))


def test_prompts_show_numbers_and_cannot_be_closed_by_a_message() -> None:
    messages = (
        Message(1, "user", "survey </transcript> it", 5, 5, 0.0),
        Message(2, "assistant", call("c1"), 5, 10, 60.0),
        Message(3, "user", result("c1", text="x" * 50_000), 5, 15, 60.0),
    )
    observation = a_pass(ObservationKind.OBSERVATION, messages=messages, previous="before")
    system, prompt = request_of(observation, "be brief")
    assert "keep its log" in system
    assert "[#2 calls read]" in prompt
    assert prompt.count("</transcript>") == 1
    assert len(prompt) < 10_000
    assert prompt.endswith("be brief")
    assert "1970-01-01 00:01" in transcript(messages, dated=True)
    system, prompt = request_of(
        a_pass(ObservationKind.REFLECTION, merged=(an_observation("the log"),)), "a quarter"
    )
    assert "consolidate" in system
    assert "the log" in prompt
    assert prompt.endswith("a quarter")


def test_the_tags_of_an_answer_are_read() -> None:
    said = log_of("10:00 [!] begun (#1)", "survey", "read on")
    assert read_answer(ObservationKind.OBSERVATION, said) == ObserverOutput(
        "10:00 [!] begun (#1)", "survey", "read on"
    )
    assert read_answer(ObservationKind.REFLECTION, "no tags") == ObserverOutput("no tags")
    assert read_answer(ObservationKind.SUMMARY, said).observations == said


async def test_a_model_can_summarise_with_citations() -> None:
    async def write(run: CompactionPass, instructions: str | None) -> str:
        _, prompt = request_of(run, instructions)
        assert "[#1 user]" in prompt
        assert "keep names" in prompt
        return "Goal: survey (#1)."

    state = ContextState(ContextLimits(2_000, 0), Words())
    fill(state, 12)
    assert (await Compactor(state, write=write).run(8, "keep names", at=0.0)).applied
    assert state.view.observations[0].citations == (1,)
    assert "Goal: survey" in text_of(state.render())


# --- When a summary starts ----------------------------------------------------------------------------------


def context(tokens: int, *, window: int = 10_000) -> ContextState:
    """A context of at least that many tokens, its threshold at half of the window."""
    state = ContextState(ContextLimits(window, 0, summarization_threshold=0.5), Words())
    while state.tokens < tokens:
        fill(state, 1)
    return state


def test_a_pass_is_due_at_the_threshold() -> None:
    assert not Pacer().due(context(4_900), 0.0, 0.0)
    assert Pacer().due(context(5_000), 0.0, 0.0)


def test_the_faster_a_context_grows_and_the_longer_passes_take_the_earlier_one_is_due() -> None:
    pacer = Pacer()
    for second in range(10):
        pacer.grew(float(second), 100 * second)
    assert pacer.tokens_per_second() == 100.0
    state = context(4_500)
    assert not pacer.due(state, 10.0, 2.0)
    assert pacer.due(state, 10.0, 6.0)


def test_a_burst_starts_no_pass_in_an_almost_empty_context() -> None:
    pacer = Pacer()
    pacer.grew(0.0, 0)
    pacer.grew(0.001, 1_000_000)
    assert not pacer.due(context(2_000), 1.0, 60.0)


def test_after_a_pass_the_history_must_grow() -> None:
    pacer = Pacer()
    state = context(5_000)
    pacer.ended(state)
    assert not pacer.due(state, 1.0, 0.0)
    while state.tokens < 6_050:
        fill(state, 1)
    assert pacer.due(state, 2.0, 0.0)


def test_passes_an_hour_are_bounded() -> None:
    pacer = Pacer(passes_per_hour=2)
    state = context(5_000)
    pacer.started(0.0)
    pacer.started(10.0)
    assert not pacer.due(state, 20.0, 0.0)
    assert pacer.due(state, 3_601.0, 0.0)


def test_after_an_undo_no_pass_is_due() -> None:
    state = context(6_000)
    state.digest(at=0.0)
    state.undo(at=0.0)
    assert not Pacer().due(state, 0.0, 0.0)


# --- The property -------------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("talk"), st.integers(1, 300)), st.tuples(st.just("talk"), st.integers(1, 60)),
    st.tuples(st.just("tools"), st.integers(1, 300)), st.tuples(st.just("parallel"), st.integers(1, 200)),
    st.tuples(st.just("loop"), st.integers(1, 12)), st.tuples(st.just("undo"), st.just(0)),
    st.tuples(st.just("redo"), st.just(0)), st.tuples(st.just("digest"), st.integers(0, 60)),
    st.tuples(st.just("restart"), st.just(0)), st.tuples(st.just("room"), st.integers(1, 300)),
    st.tuples(st.just("limits"), st.sampled_from([300, 800, 2_000])),
)  # fmt: skip
SAYS = [
    "log", "log", "log", "", "bla " * 900, RuntimeError("x"), asyncio.CancelledError(), "Invented (#9999).", "half \ud83d",
    7, log_of("[+] seen", "surveying " * 200),
]  # fmt: skip
REFLECTS = ["half", "same", "", "bla " * 900, RuntimeError("x"), "Invented (#9999)."]


@given(
    steps=st.lists(STEPS, min_size=20, max_size=90),
    says=st.lists(st.sampled_from(SAYS), min_size=1, max_size=3),
    reflects=st.lists(st.sampled_from(REFLECTS), min_size=1, max_size=3),
    window=st.sampled_from([300, 800, 2_000]),
    delay=st.integers(0, 25),
    share=st.integers(3, 12),
)
def test_no_interleaving_strands_a_chunk_or_breaks_a_context(steps, says, reflects, window, delay, share):
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
    running: list[ObservationKind] = []
    asked = 0

    async def answer(run: CompactionPass, said: Any) -> Any:
        running.append(run.kind)
        try:
            for _ in range(delay):
                await asyncio.sleep(0)
            if isinstance(said, BaseException):
                raise said
            return said
        finally:
            running.remove(run.kind)

    async def observe(run: CompactionPass, instructions: str | None) -> Any:
        nonlocal asked
        asked += 1
        first, last = run.covers
        assert [m.seq for m in run.messages] == list(range(first, last + 1))
        said = says[asked % len(says)]
        return await answer(run, f"[+] from {first} to {last} (#{first})" if said == "log" else said)

    async def reflect(run: CompactionPass, level: int) -> Any:
        said, log = reflects[level % len(reflects)], "\n\n".join(one.text for one in run.merged)
        return await answer(run, {"half": log[: len(log) // 2], "same": log}.get(str(said), said))

    def made(state: ContextState) -> Engine:
        buffer = BufferConfig(4, 5_000, 20, 10_000)
        return engine_of(observe, reflect, state=state, buffer=buffer, reflection_threshold=window // share)

    state = ContextState(ContextLimits(window, 0), Words())
    memory = made(state)
    engines = [memory]
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
        elif kind == "room":
            memory.make_room(size, at=0.0)
            check(state)
            assert_joined(memory)
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
            stored = memory.coordinator.get_state()
            memory.abort()
            memory = made(state)
            memory.restore(stored.chunks)
            engines.append(memory)
        before = state.view
        changes = memory.advance(at=0.0)
        assert all(running.count(kind) <= len(engines) for kind in ObservationKind)
        assert state.view == (changes[-1].view if changes else before), "every change is returned"
        check(state)
        assert_joined(memory)
    for _ in range(400):
        await asyncio.sleep(0)
    memory.advance(at=0.0)
    check(state)
    for one in engines:
        await one.stop()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def assert_joined(memory: Engine) -> None:
    """Chunks cover the verbatim messages from the first one on, without a gap, up to the watermark; or digests, whole."""
    state = memory.state
    chunks, watermark = memory.coordinator.get_completed_chunks()
    start = expected = state.verbatim[0].seq if state.verbatim else state.last_seq + 1
    for chunk in chunks:
        first, last = chunk.covers
        if first < start:
            over = [one for one in state.view.observations if first <= one.covers[0] <= last]
            assert all(one.provisional and one.covers[1] <= last for one in over)
            assert over[0].covers[0] == first
            expected = max(expected, last + 1)
            continue
        assert first == expected
        assert last <= state.last_seq
        assert chunk.citations
        assert all(first <= seq <= last for seq in chunk.citations)
        expected = last + 1
    assert watermark == expected - start


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


# --- Whether a pass pays ------------------------------------------------------------------------------------


def _due() -> tuple[ContextState, CompactionPass]:
    state = ContextState(ContextLimits(10_000, 0), Words())
    while state.tokens < state.threshold:
        fill(state, 1, 100)
    run = Compactor(state).begin(due=True)
    assert isinstance(run, CompactionPass)
    return state, run


def test_a_pass_is_worth_its_cost_only_to_an_agent_that_goes_on() -> None:
    state, run = _due()
    assert can_pay(run, state, turns=40, rates=TokenCosts())
    assert not can_pay(run, state, turns=1, rates=TokenCosts()), "it has hardly begun, and may end as soon"
    assert not can_pay(
        run, state, turns=40, rates=TokenCosts(output=5.0, cache_read=0.1, cache_write=1.25)
    ), "what is spared would have been read from the cache"


def test_a_pass_that_covers_too_little_cannot_pay() -> None:
    state, _ = _due()
    run = Compactor(state).begin(up_to=3)
    assert isinstance(run, CompactionPass)
    assert not can_pay(run, state, turns=40, rates=TokenCosts())


def test_a_pass_that_is_due_and_cannot_pay_leaves_no_trace_and_waits_for_more() -> None:
    state, _ = _due()
    engine = Engine(Compactor(state, write=Part()))
    assert engine.is_due()
    begun = engine.begin(due=True, pays=lambda run: False)
    assert "cost more than it saves" in begun.reason  # type: ignore[union-attr]
    assert not engine.compactor.is_compacting
    assert not engine.is_due(), "not before the history has grown"
    assert isinstance(engine.begin(), CompactionPass), "one on request is never refused for its cost"


def test_a_pass_cannot_pay_for_more_calls_than_the_agent_has_left() -> None:
    state, run = _due()
    least = next(calls for calls in range(41) if can_pay(run, state, 40, TokenCosts(), calls_left=calls))
    assert 1 < least < 10
    assert not can_pay(run, state, turns=least - 1, rates=TokenCosts()), "nor for more than it made so far"


async def test_observers_run_from_half_of_the_threshold_on_and_are_done_before_it_is_reached() -> None:
    began: list[tuple[int, int]] = []

    def needed(run: CompactionPass) -> bool:
        began.append((memory.state.tokens, run.source_tokens))
        return True

    memory, changes = engine(Part(), window=10_000), list[Change]()
    while not changes:
        fill(memory.state, 1, 20)
        changes = memory.advance(at=0.0, needed=needed)
        for _ in range(8):
            await asyncio.sleep(0)
    assert memory.state.threshold * 0.5 <= began[0][0] < memory.state.threshold * 0.55
    assert len(began) >= 3, "each quarter of the way, once it is half full"
    assert sum(tokens for _, tokens in began) > memory.state.threshold * 0.7
    assert [change.reason for change in changes] == ["activation"], "at once, with no call"
    assert memory.state.tokens < memory.state.threshold * 0.6


def test_what_an_agent_will_not_use_is_not_needed() -> None:
    state = ContextState(ContextLimits(10_000, 0), Words())
    fill(state, 40, 100)
    observer = a_pass(ObservationKind.OBSERVATION)
    ahead = (state.threshold - state.tokens) / (state.total_tokens / 40)
    assert is_needed(observer, state, 40, ahead + 3)
    assert not is_needed(observer, state, 40, ahead), "its limits end it before the threshold"
    reflector = a_pass(ObservationKind.REFLECTION)
    assert is_needed(reflector, state, 40, 2)
    assert not is_needed(reflector, state, 40, 1)


async def observed_to(memory: Engine, share: float) -> None:
    """Fill the context up to a share of its limit, in small messages, all passes ended; nothing is activated."""
    while memory.state.tokens < memory.state.limit * share:
        assert await run(memory, 1, 12) == []


async def test_chunks_that_are_ready_take_the_place_of_messages_before_a_large_one_would_force_a_digest() -> (
    None
):
    memory = engine(window=4_000)
    await observed_to(memory, 0.7)
    assert memory.make_room(100, at=0.0) == [], "it fits"
    large = int(memory.state.limit * 0.5)
    (change,) = memory.make_room(large, at=0.0)
    assert change.reason == "activation"
    memory.state.append("user", "w " * large, at=0.0)
    assert not any(one.provisional for one in memory.state.view.observations)
    assert memory.state.tokens <= memory.state.limit
    assert_joined(memory)


async def test_what_an_observer_writes_after_a_digest_took_its_messages_replaces_the_digest() -> None:
    observer = Part()
    observer.open.clear()
    memory = engine(observer, window=4_000)
    while not observer.seen:
        await run(memory, 1)
    last = observer.seen[-1]
    while memory.state.view.verbatim_from is None or memory.state.view.verbatim_from <= last:
        fill(memory.state, 1)  # no call of the model, as while a large result comes
    assert all(one.provisional for one in memory.state.view.observations)
    observer.open.set()
    reasons = [change.reason for change in await run(memory, 2, 20)]
    assert reasons == ["activation"]
    first, *others = memory.state.view.observations
    assert (first.kind, first.covers) == (ObservationKind.OBSERVATION, (1, last))
    assert all(one.provisional for one in others)
    assert len(observer.asked) <= 2, "it is not asked for the same messages again"


async def test_a_reflector_leaves_out_a_digest_that_a_running_observer_is_to_replace() -> None:
    observer, merged = Part(), []

    async def reflect(run: CompactionPass, level: int) -> str:
        merged.extend(one.covers for one in run.merged)
        return "They went on (#1)."

    memory = engine_of(observer, reflect, window=4_000, reflection_threshold=2_000)
    await run_until(memory, "activation")
    observer.open.clear()
    asked = len(observer.asked)
    while len(observer.asked) == asked:
        await run(memory, 1)
    first, last = observer.seen[-1] - 1, observer.seen[-1]
    while memory.state.view.verbatim_from <= last:
        fill(memory.state, 1)
    memory.settings = replace(memory.settings, reflection_threshold=1)
    await run(memory, 1, 12)
    assert merged
    assert all(covered < first for _, covered in merged)


async def test_messages_under_a_digest_that_no_observer_read_are_read_with_the_next_ones() -> None:
    observer = Part()
    memory = engine(observer, window=4_000)
    while not memory.state.view.observations:
        fill(memory.state, 1, 100)
    assert memory.state.view.observations[0].provisional
    await run_until(memory, "activation")
    assert observer.seen[0] == 1
    assert not any(one.provisional for one in memory.state.view.observations)


async def test_a_reflection_that_is_ready_is_applied_with_an_activation_and_voids_the_cache_once() -> None:
    memory = engine(reflection_threshold=1_000, reflection_activation=0.02)
    made: list[list[str]] = []
    while not any("reflection" in reasons for reasons in made) and memory.state.last_seq < 800:
        made.append([change.reason for change in await run(memory, 1)])
    assert made[-1] == ["reflection", "activation"]
    assert sum(one.tokens for one in memory.state.view.observations) < 1_000, "it was not due yet"


@pytest.mark.parametrize("unpaid", [0, 1, 3, 9])
def test_passes_that_did_not_pay_make_the_next_one_wait_twice_as_long_each(unpaid: int) -> None:
    state, _ = _due()
    pacer = Pacer()
    pacer.ended(state)
    began = state.total_tokens
    while pacer.back_off(state, unpaid):
        fill(state, 1, 10)
    waited = (state.total_tokens - began) / state.limit
    expected = 0.1 * 2 ** min(unpaid, MOST_DOUBLINGS) if unpaid else 0.0
    assert expected <= waited < expected + 0.02


async def test_a_digest_behind_the_mark_of_a_running_summary_overtakes_it() -> None:
    writer = Part()
    writer.open.clear()
    state, _ = _due()
    engine = Engine(Compactor(state, write=writer))
    run = engine.begin(due=True)
    assert isinstance(run, CompactionPass)
    engine.start(run)
    overtaken = []
    while state.last_seq < 400 and not overtaken:
        fill(state, 1, 100)
        overtaken = [
            one for one in state.view.observations if one.provisional and one.covers[0] > run.high_water
        ]
        assert engine.is_overtaken == bool(overtaken)
    assert overtaken
    engine.abandon("overtaken")
    assert not engine.is_overtaken
