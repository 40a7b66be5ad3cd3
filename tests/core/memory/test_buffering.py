"""`BufferingCoordinator`: one test for each of its semantics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from watchkeeper import BufferConfig, BufferingCoordinator, ObservationChunk, ObserverOutput, ReflectorOutput

CONFIG = BufferConfig(target_cycles=4, token_cap=5_000, min_tokens=1_000, utility_model_context_window=10_000)


class Gate:
    """An observer or reflector that ends when it is told to."""

    def __init__(self, output: Any) -> None:
        self.output = output
        self.calls: list[tuple[Any, ...]] = []
        self.open = asyncio.Event()

    async def __call__(self, *given: Any) -> Any:
        self.calls.append(given)
        await self.open.wait()
        if isinstance(self.output, BaseException):
            raise self.output
        return self.output


async def at_once(messages: list[Any], previous: Any) -> ObserverOutput:
    return ObserverOutput("log", "task", "next")


def observer(text: str = "log") -> Gate:
    return Gate(ObserverOutput(text, "task", "next"))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def with_chunk(end: int = 3) -> BufferingCoordinator:
    coordinator = BufferingCoordinator(now=lambda: 7.0)
    coordinator.launch_observer(at_once, ["a", "b", "c"], end, None)
    await coordinator.settled()
    assert coordinator.has_completed_chunks()
    return coordinator


@pytest.mark.parametrize(
    ("left", "config", "expected"),
    [
        (16_000, CONFIG, 4_000),
        (80_000, CONFIG, 5_000),
        (80_000, BufferConfig(4, 50_000, 1_000, 10_000), 6_000),
        (400, CONFIG, 1_000),
        (80_000, BufferConfig(4, 500, 1_000, 10_000), 1_000),
        (-5, CONFIG, 1_000),
    ],
)
def test_the_interval_is_an_even_share_within_cap_and_window_and_the_minimum_wins(
    left: int, config: BufferConfig, expected: int
) -> None:
    assert BufferingCoordinator().compute_buffer_interval(left, config) == expected


async def test_buffering_is_due_at_the_interval_with_a_free_slot_and_no_abort() -> None:
    coordinator = BufferingCoordinator()
    assert not coordinator.should_buffer(999, 1_000)
    assert coordinator.should_buffer(1_000, 1_000)
    gate = observer()
    coordinator.launch_observer(gate, [], 0, None)
    assert not coordinator.should_buffer(1_000, 1_000)
    gate.open.set()
    await coordinator.settled()
    assert coordinator.should_buffer(1_000, 1_000)
    coordinator.abort()
    assert not coordinator.should_buffer(1_000, 1_000)


async def test_launching_does_not_wait_and_success_appends_a_chunk_and_sets_the_watermark() -> None:
    coordinator = BufferingCoordinator(now=lambda: 7.0)
    gate = observer()
    coordinator.launch_observer(gate, [{"role": "user", "content": "hello world"}], 9, "before")
    assert coordinator.is_observer_in_flight()
    assert not coordinator.has_completed_chunks()
    gate.open.set()
    await coordinator.settled()
    assert gate.calls == [([{"role": "user", "content": "hello world"}], "before")]
    assert coordinator.get_completed_chunks() == ([ObservationChunk("log", 6, 7.0, "task", "next")], 9)
    assert coordinator.get_watermark() == 9
    assert not coordinator.is_observer_in_flight()


async def test_the_messages_are_copied() -> None:
    coordinator = BufferingCoordinator()
    gate = observer()
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "as it was"}]}]
    coordinator.launch_observer(gate, messages, 1, None)
    messages[0]["content"][0]["text"] = "changed"
    messages.clear()
    gate.open.set()
    await coordinator.settled()
    assert gate.calls[0][0] == [{"role": "user", "content": [{"type": "text", "text": "as it was"}]}]


async def test_a_launch_while_one_is_in_flight_is_a_no_op() -> None:
    coordinator = BufferingCoordinator()
    first, second = observer("first"), observer("second")
    coordinator.launch_observer(first, [], 1, None)
    coordinator.launch_observer(second, [], 2, None)
    first.open.set()
    second.open.set()
    await coordinator.settled()
    chunks, watermark = coordinator.get_completed_chunks()
    assert ([chunk.observations for chunk in chunks], watermark, second.calls) == (["first"], 1, [])


async def test_reading_the_chunks_is_a_copy_and_clears_nothing() -> None:
    coordinator = await with_chunk()
    chunks, _ = coordinator.get_completed_chunks()
    chunks.clear()
    assert coordinator.has_completed_chunks()
    assert len(coordinator.get_completed_chunks()[0]) == 1


async def test_an_activation_clears_chunks_and_watermark_and_makes_observers_stale() -> None:
    coordinator = await with_chunk()
    gate = observer()
    coordinator.launch_observer(gate, [], 8, None)
    coordinator.commit_activation()
    assert coordinator.get_completed_chunks() == ([], 0)
    assert coordinator.is_observer_in_flight(), "it neither cancels nor frees"
    gate.open.set()
    await coordinator.settled()
    assert coordinator.get_completed_chunks() == ([], 0)
    assert not coordinator.is_observer_in_flight()


async def test_advancing_the_epoch_leaves_chunks_and_watermark_and_makes_observers_stale() -> None:
    coordinator = await with_chunk()
    before = coordinator.get_completed_chunks()
    gate = observer()
    coordinator.launch_observer(gate, [], 8, None)
    coordinator.advance_epoch()
    assert coordinator.is_observer_in_flight()
    gate.open.set()
    await coordinator.settled()
    assert coordinator.get_completed_chunks() == before
    assert not coordinator.is_observer_in_flight()


async def test_a_stale_observer_holds_its_slot_until_it_ends() -> None:
    coordinator = BufferingCoordinator()
    stale, late = observer("stale"), observer("late")
    coordinator.launch_observer(stale, [], 1, None)
    coordinator.advance_epoch()
    coordinator.launch_observer(late, [], 2, None)
    assert not coordinator.should_buffer(10, 1)
    stale.open.set()
    await coordinator.settled()
    assert late.calls == []
    coordinator.launch_observer(late, [], 2, None)
    late.open.set()
    await coordinator.settled()
    assert [chunk.observations for chunk in coordinator.get_completed_chunks()[0]] == ["late"]


async def test_epochs_concern_observers_only() -> None:
    coordinator = BufferingCoordinator()
    gate = Gate(ReflectorOutput("short", 1))
    coordinator.launch_reflector(gate, "log")
    coordinator.advance_epoch()
    coordinator.commit_activation()
    gate.open.set()
    await coordinator.settled()
    assert coordinator.consume_buffered_reflection() == ReflectorOutput("short", 1)


async def test_reflecting_is_due_at_once_at_the_threshold_and_ahead_of_it_with_a_free_slot() -> None:
    coordinator = BufferingCoordinator()
    assert coordinator.should_reflect(49, 100, 0.5) == "none"
    assert coordinator.should_reflect(50, 100, 0.5) == "async"
    assert coordinator.should_reflect(100, 100, 0.5) == "sync"
    gate = Gate(ReflectorOutput("short"))
    coordinator.launch_reflector(gate, "log")
    await settle()
    assert coordinator.should_reflect(50, 100, 0.5) == "none"
    assert coordinator.should_reflect(100, 100, 0.5) == "sync"
    coordinator.abort()
    assert coordinator.should_reflect(50, 100, 0.5) == "none"
    assert coordinator.should_reflect(100, 100, 0.5) == "sync"
    gate.open.set()


async def test_a_reflection_is_buffered_until_it_is_consumed_once() -> None:
    coordinator = BufferingCoordinator()
    gate = Gate(ReflectorOutput("short", 2))
    coordinator.launch_reflector(gate, "the log")
    assert coordinator.is_reflector_in_flight()
    assert not coordinator.has_buffered_reflection()
    gate.open.set()
    await coordinator.settled()
    assert gate.calls == [("the log",)]
    assert not coordinator.is_reflector_in_flight()
    assert coordinator.has_buffered_reflection()
    assert coordinator.consume_buffered_reflection() == ReflectorOutput("short", 2)
    assert coordinator.consume_buffered_reflection() is None


async def test_a_second_reflector_is_a_no_op_while_one_is_in_flight() -> None:
    coordinator = BufferingCoordinator()
    first, second = Gate(ReflectorOutput("first")), Gate(ReflectorOutput("second"))
    coordinator.launch_reflector(first, "")
    coordinator.launch_reflector(second, "")
    first.open.set()
    await coordinator.settled()
    assert second.calls == []
    assert coordinator.consume_buffered_reflection() == ReflectorOutput("first")


async def test_observer_and_reflector_have_a_slot_each() -> None:
    coordinator = BufferingCoordinator()
    watch, reflect = observer(), Gate(ReflectorOutput("short"))
    coordinator.launch_observer(watch, [], 1, None)
    coordinator.launch_reflector(reflect, "")
    assert coordinator.is_observer_in_flight()
    assert coordinator.is_reflector_in_flight()
    watch.open.set()
    reflect.open.set()
    await coordinator.settled()


async def test_setting_the_watermark_changes_nothing_else() -> None:
    coordinator = await with_chunk()
    coordinator.set_watermark(42)
    chunks, watermark = coordinator.get_completed_chunks()
    assert (len(chunks), watermark, coordinator.get_watermark()) == (1, 42, 42)


@pytest.mark.parametrize("output", [RuntimeError("no credit"), None, "just text"])
async def test_a_failed_call_is_logged_surfaces_nothing_and_frees_its_slot(
    output: Any, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = BufferingCoordinator()
    watch, reflect = Gate(output), Gate(output)
    with caplog.at_level(logging.WARNING):
        coordinator.launch_observer(watch, ["x"], 1, None)
        coordinator.launch_reflector(reflect, "log")
        watch.open.set()
        reflect.open.set()
        await coordinator.settled()
    assert len(caplog.records) == 2
    assert not coordinator.is_observer_in_flight()
    assert not coordinator.is_reflector_in_flight()
    assert coordinator.get_completed_chunks() == ([], 0)
    assert not coordinator.has_buffered_reflection()


def refuse(*given: Any) -> Awaitable[Any]:
    raise ValueError("not even a coroutine")


@pytest.mark.parametrize("launch", ["launch_observer", "launch_reflector"])
async def test_a_call_that_fails_before_it_begins_frees_its_slot(launch: str) -> None:
    coordinator = BufferingCoordinator()
    start: Callable[..., None] = getattr(coordinator, launch)
    start(refuse, ["x"], 1, None) if launch == "launch_observer" else start(refuse, "log")
    await coordinator.settled()
    assert not coordinator.is_observer_in_flight()
    assert not coordinator.is_reflector_in_flight()


async def test_the_state_is_completed_chunks_and_watermark_only() -> None:
    coordinator = await with_chunk(end=3)
    gate = observer()
    coordinator.launch_observer(gate, [], 9, None)
    stored = coordinator.get_state()
    gate.open.set()
    await coordinator.settled()
    assert len(coordinator.get_completed_chunks()[0]) == 2
    other = BufferingCoordinator()
    other.restore_state(stored)
    chunks, watermark = other.get_completed_chunks()
    assert ([chunk.observations for chunk in chunks], watermark) == (["log"], 3)
    assert not other.is_observer_in_flight()


async def test_restoring_replaces_what_is_there_and_copies() -> None:
    coordinator = await with_chunk(end=3)
    stored = coordinator.get_state()
    coordinator.commit_activation()
    coordinator.restore_state(stored)
    assert coordinator.get_watermark() == 3
    assert len(coordinator.get_completed_chunks()[0]) == 1
    coordinator.commit_activation()
    assert len(stored.chunks) == 1, "what happens later changes no stored state"


async def test_abort_is_for_good_and_keeps_what_is_complete() -> None:
    coordinator = await with_chunk(end=3)
    done = Gate(ReflectorOutput("kept"))
    done.open.set()
    coordinator.launch_reflector(done, "log")
    await coordinator.settled()
    watch, reflect = observer("discarded"), Gate(ReflectorOutput("discarded"))
    coordinator.launch_observer(watch, [], 9, None)
    coordinator.launch_reflector(reflect, "log")
    coordinator.abort()
    assert not coordinator.is_observer_in_flight()
    assert not coordinator.is_reflector_in_flight()
    watch.open.set()
    reflect.open.set()
    await coordinator.settled()
    later = observer("later")
    coordinator.launch_observer(later, [], 10, None)
    coordinator.launch_reflector(Gate(ReflectorOutput("later")), "log")
    assert not coordinator.is_observer_in_flight()
    assert not coordinator.is_reflector_in_flight()
    chunks, watermark = coordinator.get_completed_chunks()
    assert ([chunk.observations for chunk in chunks], watermark) == (["log"], 3)
    assert coordinator.consume_buffered_reflection() == ReflectorOutput("kept")


async def test_a_cancelled_call_frees_its_slot() -> None:
    coordinator = BufferingCoordinator()
    gate = Gate(asyncio.CancelledError())
    coordinator.launch_observer(gate, [], 1, None)
    gate.open.set()
    await coordinator.settled()
    assert not coordinator.is_observer_in_flight()
    assert coordinator.get_completed_chunks() == ([], 0)
