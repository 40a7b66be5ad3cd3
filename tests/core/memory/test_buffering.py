"""`BufferingCoordinator`: its semantics against a model of them, and its use by programs that err."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words

from watchkeeper import BufferConfig, BufferingCoordinator, ObservationChunk, ObserverOutput, ReflectorOutput
from watchkeeper.records.messages import Message


class Call:
    """A call of an observer or reflector that ends when, and how, a test says."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] | None = None
        self._end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def __call__(self, *given: Any) -> Any:
        self.given = given
        return await self._end

    def returns(self, output: Any) -> None:
        self._end.set_result(output)

    def raises(self, error: BaseException) -> None:
        self._end.set_exception(error)


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def test_launching_does_not_wait_and_success_appends_a_chunk_and_sets_the_watermark() -> None:
    coordinator = BufferingCoordinator(now=lambda: 7.0)
    observe = Call()
    coordinator.launch_observer(observe, [{"role": "user", "content": "hello world"}], 9, "before")
    assert coordinator.is_observer_in_flight()
    assert not coordinator.has_completed_chunks()
    observe.returns(ObserverOutput("log", "task", "next"))
    await coordinator.settled()
    assert observe.given == ([{"role": "user", "content": "hello world"}], "before")
    assert coordinator.get_completed_chunks() == ([ObservationChunk("log", 6, 7.0, "task", "next")], 9)
    assert coordinator.get_watermark() == 9
    assert not coordinator.is_observer_in_flight()


async def test_neither_observer_nor_program_changes_what_the_other_has_of_the_messages() -> None:
    coordinator = BufferingCoordinator()
    plain: list[Any] = [{"content": [{"type": "text", "text": "as it was"}]}]
    stored = Message(1, "user", [{"type": "text", "text": "as it was"}], 3, 3, 0.0)
    began = asyncio.Event()

    async def observe(given: list[Any], previous: Any) -> ObserverOutput:
        began.set()
        await settle()
        assert given[0]["content"][0]["text"] == "as it was"
        for content in (given[0]["content"], given[1].content):
            content[0]["text"] = "changed by the observer"
        given.clear()
        return ObserverOutput("log")

    coordinator.launch_observer(observe, [*plain, stored], 1, None)
    await began.wait()
    plain[0]["content"][0]["text"] = "changed by the program"
    await coordinator.settled()
    assert coordinator.has_completed_chunks()
    assert plain == [{"content": [{"type": "text", "text": "changed by the program"}]}]
    assert stored.content == [{"type": "text", "text": "as it was"}]


class PanicException(BaseException):
    """What pyo3 raises, and tiktoken with it."""


def refuse(*given: Any) -> Awaitable[Any]:
    raise ValueError("not even a coroutine")


@pytest.mark.parametrize("launch", ["observer", "reflector"])
@pytest.mark.parametrize(
    "output",
    [RuntimeError("no credit"), None, "just text", asyncio.CancelledError(), PanicException("in the engine"), refuse],
    ids=["fails", "nothing", "another type", "cancelled", "panics", "never begins"],
)  # fmt: skip
async def test_a_call_that_gives_nothing_surfaces_nothing_and_frees_its_slot(launch, output, caplog):
    noticed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noticed.append(context["message"]))
    coordinator = BufferingCoordinator()
    call: Any = refuse if output is refuse else Call()
    with caplog.at_level(logging.WARNING):
        if launch == "observer":
            coordinator.launch_observer(call, ["x"], 1, None)
        else:
            coordinator.launch_reflector(call, "log")
        if isinstance(output, BaseException):
            call.raises(output)
        elif output is not refuse:
            call.returns(output)
        await settle()
        await coordinator.settled()
    assert len(caplog.records) == (not isinstance(output, asyncio.CancelledError))
    assert not coordinator.is_observer_in_flight()
    assert not coordinator.is_reflector_in_flight()
    assert coordinator.get_completed_chunks() == ([], 0)
    assert not coordinator.has_buffered_reflection()
    del call
    gc.collect()
    await settle()
    assert noticed == []


NUMBERS = st.integers(0, 200_000)


@given(
    left=st.integers(-1_000, 400_000),
    cycles=st.integers(1, 10) | st.just(0.5),
    cap=NUMBERS,
    least=NUMBERS,
    window=NUMBERS,
)
def test_the_interval_is_the_formula(left: int, cycles: float, cap: int, least: int, window: int) -> None:
    config = BufferConfig(
        target_cycles=cycles, token_cap=cap, min_tokens=least, utility_model_context_window=window
    )
    got = BufferingCoordinator().compute_buffer_interval(left, config)
    assert got == max(min(left / cycles, min(cap, 0.6 * window)), least)
    assert got >= least, "the minimum wins"


def test_a_new_coordinator_needs_no_arguments_no_event_loop_and_holds_nothing() -> None:
    coordinator = BufferingCoordinator()
    assert not coordinator.has_completed_chunks()
    assert coordinator.get_completed_chunks() == ([], 0)
    assert coordinator.get_watermark() == 0
    assert not coordinator.has_buffered_reflection()
    assert coordinator.consume_buffered_reflection() is None
    assert not coordinator.is_observer_in_flight()
    assert not coordinator.is_reflector_in_flight()
    coordinator.commit_activation()
    coordinator.advance_epoch()
    coordinator.restore_state(coordinator.get_state())
    coordinator.abort()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_launch_outside_of_an_event_loop_takes_no_slot() -> None:
    coordinator = BufferingCoordinator()

    async def observe(messages: list[Any], previous: Any) -> ObserverOutput:
        return ObserverOutput("log")

    with pytest.raises(RuntimeError):
        coordinator.launch_observer(observe, [], 1, None)
    assert not coordinator.is_observer_in_flight()


def test_slots_are_free_again_in_the_next_event_loop() -> None:
    coordinator = BufferingCoordinator()

    async def hang(*given: Any) -> Any:
        await asyncio.Event().wait()

    async def launch() -> None:
        coordinator.launch_observer(hang, [], 1, None)
        coordinator.launch_reflector(hang, "log")
        await settle()

    asyncio.run(launch())
    assert not coordinator.is_observer_in_flight()
    assert not coordinator.is_reflector_in_flight()


# --- against a model ----------------------------------------------------------------------------------------

ACTIONS = st.sampled_from(
    [
        "observe", "observe", "observed", "observed", "observer fails", "observer returns rubbish",
        "reflect", "reflected", "reflector fails", "consume",
        "commit", "advance", "watermark", "save", "restore", "abort",
    ]
)  # fmt: skip


@given(
    actions=st.lists(st.tuples(ACTIONS, st.integers(0, 50)), min_size=10, max_size=80), aborts=st.booleans()
)
def test_it_does_what_its_semantics_say(actions: list[tuple[str, int]], aborts: bool) -> None:
    logging.getLogger("watchkeeper.memory.buffering").setLevel(logging.CRITICAL)
    try:
        asyncio.run(compare([action for action in actions if aborts or action[0] != "abort"]))
    finally:
        logging.getLogger("watchkeeper.memory.buffering").setLevel(logging.NOTSET)


async def compare(actions: list[tuple[str, int]]) -> None:
    """The coordinator beside a few plain variables that follow the sentences of the design."""
    coordinator = BufferingCoordinator(counter=Words(), now=lambda: 0.0)
    chunks: list[str] = []
    watermark = epoch = 0
    aborted = False
    observer: tuple[Call, int, int, str] | None = None
    reflector: tuple[Call, str] | None = None
    running: list[Call] = []
    reflection: str | None = None
    saved = (coordinator.get_state(), [], 0)
    for number, (action, index) in enumerate(actions):
        name = f"{number}"
        if action == "observe":
            call = Call()
            coordinator.launch_observer(call, ["message"], index, None)
            if observer is None and not aborted:
                observer = (call, index, epoch, name)
                running.append(call)
                await settle()
                assert call.given is not None
            else:
                await settle()
                assert call.given is None, "a no-op"
        elif action == "observed" and observer is not None:
            call, end, began, said = observer
            observer = None
            call.returns(ObserverOutput(said))
            if began == epoch:
                chunks.append(said)
                watermark = end
        elif action in ("observer fails", "observer returns rubbish") and observer is not None:
            call = observer[0]
            observer = None
            call.raises(RuntimeError("no credit")) if action == "observer fails" else call.returns(42)
        elif action == "reflect":
            call = Call()
            coordinator.launch_reflector(call, name)
            if reflector is None and not aborted:
                reflector = (call, name)
                running.append(call)
        elif action == "reflected" and reflector is not None:
            reflector[0].returns(ReflectorOutput(reflector[1], 1))
            reflection, reflector = reflector[1], None
        elif action == "reflector fails" and reflector is not None:
            reflector[0].raises(RuntimeError("no credit"))
            reflector = None
        elif action == "consume":
            output = coordinator.consume_buffered_reflection()
            assert (output.observations if output else None) == reflection
            reflection = None
        elif action == "commit":
            coordinator.commit_activation()
            chunks, watermark, epoch = [], 0, epoch + 1
        elif action == "advance":
            coordinator.advance_epoch()
            epoch += 1
        elif action == "watermark":
            coordinator.set_watermark(index)
            watermark = index
        elif action == "save":
            saved = (coordinator.get_state(), list(chunks), watermark)
        elif action == "restore":
            coordinator.restore_state(saved[0])
            chunks, watermark = list(saved[1]), saved[2]
        elif action == "abort":
            coordinator.abort()
            aborted = True
            if observer is not None:
                observer[0].returns(ObserverOutput("discarded"))
            if reflector is not None:
                reflector[0].returns(ReflectorOutput("discarded"))
            observer = reflector = None
            assert not coordinator.is_observer_in_flight(), "at once"
            assert not coordinator.is_reflector_in_flight()
        await settle()
        have, mark = coordinator.get_completed_chunks()
        assert ([chunk.observations for chunk in have], mark) == (chunks, watermark), action
        assert coordinator.get_watermark() == watermark
        assert coordinator.has_completed_chunks() == bool(chunks)
        assert coordinator.is_observer_in_flight() == (observer is not None)
        assert coordinator.is_reflector_in_flight() == (reflector is not None)
        assert coordinator.has_buffered_reflection() == (reflection is not None)
        assert coordinator.should_buffer(index, 25) == (index >= 25 and observer is None and not aborted)
        free = reflector is None and not aborted
        expected = "sync" if index >= 40 else "async" if index >= 40 * 0.5 and free else "none"
        assert coordinator.should_reflect(index, 40, 0.5) == expected
        state = coordinator.get_state()
        assert [replace(chunk) for chunk in state.chunks] == have
        assert not math.isnan(state.watermark)
    for call in running:
        call._end.cancel()
    await coordinator.settled()
