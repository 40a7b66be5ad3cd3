"""Observational memory in a run: observers beside the loops, chunks that outlive their host."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.core.runtime.working import Work, die
from tests.support.scripted import said, task

from watchkeeper.agents.compaction import CompactionRunner
from watchkeeper.models.surveyor import written_memory
from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest, Purpose

LOG = "<observations>\n10:00 [!] the agent saves its notes (#{seq})\n</observations><current-task>saving notes</current-task>"


class Observed(Work):
    """Its memory is kept by an observer; `asked` counts the observer's calls, `reflected` the reflector's."""

    reflected = 0

    def __call__(self, request: ModelRequest) -> Any:
        if request.purpose is Purpose.OBSERVER:
            self.asked += 1
            if not self.summaries.is_set():
                return self.summaries
            return self.summary if isinstance(self.summary, ModelError) else [said(LOG.format(seq=2))]
        if request.purpose is Purpose.REFLECTOR:
            self.reflected += 1
            return [said("<observations>\n[!] notes were saved (#2)\n</observations>")]
        return super().__call__(request)


@pytest.fixture
def bench(bench: Bench, tmp_path: Path) -> Bench:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "config.toml").write_text('memory = "observational"\n')
    return bench


def rows(bench: Bench, trigger: str = "observer") -> list[dict[str, Any]]:
    return [one for one in bench.state["compactions"] if one["trigger"] == trigger]


class Remembering(Work):
    """Its memory is written by the surveyor's rules, from what the prompts of observer and reflector show. `prompts`: those
    of the agent's calls; `memories`: those of observers and reflectors, with what was answered."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**about)
        self.prompts: list[list[dict[str, Any]]] = []
        self.memories: list[tuple[Purpose, str, str]] = []

    def __call__(self, request: ModelRequest) -> Any:
        if request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR):
            asked = str(request.messages[0]["content"])
            text = written_memory(asked)
            self.memories.append((request.purpose, asked, text))
            return [said(text)]
        if request.purpose is Purpose.TURN:
            self.prompts.append(list(request.messages))
        return super().__call__(request)


async def test_a_long_run_is_observed_ahead_of_need_activated_at_once_and_reflected(bench):
    work = Remembering(count=90, words=300)
    bench.start(work, window=12_000)
    assert (await bench.run()).exit_code == 0
    assert work.saved == 90
    agent = bench.state["agents"][-1]["id"]
    kinds = [
        one for (one,) in bench.query("SELECT reason FROM views WHERE agent_id = ? ORDER BY version", agent)
    ]
    assert kinds.count("activation") >= 8
    assert kinds.count("reflection") >= 1
    assert "digest" not in kinds, "what an observer writes was always there in time"
    made = [*rows(bench), *rows(bench, "reflector")]
    assert {one["status"] for one in made} <= {"applied", "skipped"}
    (shown_from,) = bench.query("SELECT verbatim_from FROM views WHERE agent_id = ? ORDER BY version", agent)[
        -1
    ]
    skipped = [one["high_water"] for one in rows(bench) if one["status"] == "skipped"]
    assert all(last >= shown_from for last in skipped), "only what the agent did not come to need"
    assert all(one["stall_seconds"] == 0 for one in made)
    read = [n for purpose, asked, _ in work.memories if purpose is Purpose.OBSERVER for n in _numbers(asked)]
    assert read == sorted(set(read)), "each message once, in order"
    assert "[-] save_artifact" in str(work.prompts[-1])
    for earlier, later in pairwise(work.prompts):
        same = sum(1 for a, b in zip(earlier, later, strict=False) if a == b)
        assert same >= len(earlier) - 1 or len(later) < len(earlier), "only a swap changes what was sent"
    bench.assert_sound()


def _numbers(asked: str) -> list[int]:
    """The messages of an observer's transcript."""
    transcript = asked.partition("What happened since:")[2]
    return list(dict.fromkeys(int(n) for n in re.findall(r"^\[#(\d+) ", transcript, re.MULTILINE)))


async def test_a_pass_that_is_stopped_while_its_record_is_written_is_known_to_who_ends_the_passes():
    """Its record stayed `running` in a session that had ended: a commit goes on when its waiter is cancelled."""
    written = asyncio.Event()

    async def commit(write: Any) -> int:
        await written.wait()
        return 7

    runner: Any = SimpleNamespace(
        _rows={},
        _memory=SimpleNamespace(state=SimpleNamespace(tokens=5)),
        _memory_model=lambda run: "m",
        _environment=SimpleNamespace(
            store=SimpleNamespace(commit=commit), clock=SimpleNamespace(monotonic=lambda: 0.0)
        ),
    )
    runner._begun = partial(CompactionRunner._begun, runner)
    begins = asyncio.ensure_future(
        CompactionRunner._begin_row(runner, SimpleNamespace(kind="observation", high_water=3), "observer")
    )
    await asyncio.sleep(0)
    begins.cancel()
    await asyncio.sleep(0)
    written.set()
    with pytest.raises(asyncio.CancelledError):
        await begins
    assert [row.id for row in runner._rows.values()] == [7]


async def test_no_observer_begins_for_an_agent_that_has_saved_the_last_of_its_outputs(bench):
    work = Observed(count=8, words=1_100)
    started: list[int] = []

    def script(request: Any) -> Any:
        if request.purpose is Purpose.OBSERVER:
            started.append(work.saved)
        return work(request)

    plan = task("a") | {"expected_outputs": ["n7"]}
    work.plan = [plan]
    bench.start(script, window=12_000)
    assert (await bench.run()).exit_code == 0
    assert started
    assert max(started) < 8


async def test_observers_read_ahead_of_need_and_their_log_takes_the_messages_place(bench):
    bench.start(Observed(count=24, words=450), window=12_000)
    assert (await bench.run()).exit_code == 0
    applied = [one for one in rows(bench) if one["status"] == "applied"]
    assert applied
    assert applied[-1]["tokens_after"] < applied[-1]["tokens_before"]
    assert all(one["stall_seconds"] == 0 for one in rows(bench))
    agent = bench.state["agents"][-1]["id"]
    assert ("observation",) in bench.query("SELECT kind FROM observations WHERE agent_id = ?", agent)
    made_by = bench.query("SELECT DISTINCT compaction_id FROM observations WHERE agent_id = ?", agent)
    assert {row[0] for row in made_by} <= {one["id"] for one in applied}
    bench.assert_sound()


async def test_an_observer_that_takes_for_ever_holds_no_turn_up(bench):
    work = Observed(count=24, words=450)
    work.summaries.clear()
    bench.start(work, window=12_000)
    assert (await bench.run()).exit_code == 0
    assert work.saved == 24
    assert [(one["status"], one["reason"]) for one in rows(bench)] == [("skipped", "the agent finished")]
    bench.assert_sound()


async def test_chunks_that_were_written_before_a_crash_are_activated_by_the_next_host(bench):
    work = Observed(count=24, words=450)
    work.hold_turn = 12
    bench.start(work, window=12_000)
    crashed = asyncio.ensure_future(bench.run())
    await bench.until(
        lambda state: bench.model.hanging and any(one["status"] == "prepared" for one in rows(bench))
    )
    await die(crashed)
    kept = [one["id"] for one in rows(bench) if one["status"] == "prepared"]
    work.turn_gate.set()
    assert (await bench.run()).exit_code == 0
    assert {one["status"] for one in rows(bench) if one["id"] in kept} == {"applied"}
    bench.assert_sound()


async def test_an_agent_that_fills_less_than_half_of_its_window_is_not_observed(bench):
    work = Observed(count=3, words=1_000)
    bench.start(work, window=12_000)
    assert (await bench.run()).exit_code == 0
    assert (rows(bench), work.asked) == ([], 0)


async def test_a_text_that_a_change_of_the_context_made_void_is_recorded_as_rejected_with_the_reason(bench):
    work = Observed(count=24, words=450)
    work.hold_turn = 12
    work.summaries.clear()
    bench.start(work, window=12_000)

    async def change() -> None:
        await bench.until(lambda state: bench.model.hanging >= 2)
        bench.submit("compact", agent_id=bench.state["agents"][-1]["id"])
        await bench.until(lambda state: [one["status"] for one in rows(bench, "manual")] == ["prepared"])
        work.turn_gate.set()
        await bench.until(lambda state: [one["status"] for one in rows(bench, "manual")] == ["applied"])
        work.summaries.set()

    assert (await bench.run_while(change)).exit_code == 0
    void = [one["reason"] for one in rows(bench) if one["status"] == "rejected"]
    assert void == ["the context changed while the summary was written"]


async def test_an_observer_that_fails_gives_way_to_the_digest(bench):
    overloaded = ModelError("overloaded", kind=ErrorKind.RETRY)
    bench.start(Observed(count=24, words=450, summary=overloaded), window=12_000)
    assert (await bench.run()).exit_code == 0
    assert [one for one in rows(bench) if one["status"] == "applied"]
    assert all(one["context"]["used"] <= 12_000 for one in bench.state["agents"])
    bench.assert_sound()


async def test_no_record_is_left_open_at_the_end_of_a_run(bench):
    bench.start(Observed(count=40, words=300), window=9_000)
    assert (await bench.run()).exit_code == 0
    assert not [one for one in bench.state["compactions"] if one["status"] == "running"]
    bench.assert_sound()


async def test_a_compaction_by_hand_goes_on_beside_observers(bench):
    work = Observed(count=24, words=300)
    bench.start(work, window=12_000)
    assert (await bench.run()).exit_code == 0
    agent = bench.state["agents"][-1]
    await bench.run(once=bench.submit("compact", agent_id=agent["id"]))
    assert rows(bench, "manual")[-1]["status"] in ("applied", "rejected")
    await bench.run(once=bench.submit("undo", agent_id=agent["id"]))
    bench.assert_sound()


async def test_an_observation_is_recorded_under_the_turn_in_which_it_was_asked_for(bench):
    work, turns = Observed(count=24, words=450), []

    def script(request: Any) -> Any:
        if request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR):
            turns.append(next(one["turn"] for one in bench.state["agents"] if one["id"] == request.agent_id))
        return work(request)

    bench.start(script, window=12_000)
    assert (await bench.run()).exit_code == 0
    asked = "SELECT turn FROM model_calls WHERE purpose IN ('observer', 'reflector') AND status = 'done'"
    recorded = [row[0] for row in bench.query(asked)]
    assert recorded
    assert all(any(0 <= asked - turn <= 1 for asked in turns) for turn in recorded), (
        "a turn may end while a call waits"
    )
    assert max(recorded) > 2


async def test_an_activation_is_worth_what_all_its_observers_cost(bench):
    bench.start(Observed(count=60, words=450), window=12_000)
    assert (await bench.run()).exit_code == 0
    applied = [one for one in rows(bench) if one["status"] == "applied"]
    activations = [one for one in applied if one["worth"] is not None]
    assert len(applied) > len(activations) > 0, "some activations hold more than one chunk"
    cached = sum(one["cache_tokens_invalidated"] for one in activations)
    found = sum(one["worth"]["tokens_spent"] for one in activations)
    assert found == cached + sum(one["tokens_spent"] for one in applied)
    waiting = {one["view_after"] for one in applied if one["worth"] is None}
    assert waiting <= {one["view_after"] for one in activations}
