"""A sub-agent that fills its context at a known pace, and a summariser that the test holds."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task

from watchkeeper.records.messages import ModelError, ModelRequest, Purpose


class Work:
    """A sub-agent of `count` turns; its summariser waits for `summaries`, answers `summary`, or fails."""

    def __init__(
        self,
        count: int = 14,
        *,
        summary: Any = "The agent saved notes (#3). Paths: notes/a.txt",
        words: int = 250,
    ) -> None:
        self.count = count
        self.words = words
        self.summary = summary
        self.summaries = asyncio.Event()
        self.summaries.set()
        self.hold_turn: int | None = None
        self.turn_gate = asyncio.Event()
        self.asked = 0
        self.plan = [task("a")]

    def __call__(self, request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            self.asked += 1
            if not self.summaries.is_set():
                return self.summaries
            return self.summary if isinstance(self.summary, ModelError) else [said(self.summary)]
        return PlannedRun(self.plan, self.work)(request)

    def work(self, name: str, request: ModelRequest) -> Any:
        done = self.saved
        if done == self.hold_turn and not self.turn_gate.is_set():
            return self.turn_gate
        if done < self.count:
            self.saved += 1
            return [
                call(
                    "save_artifact",
                    {"name": f"n{done}", "content": f"note {done} " + "words " * self.words},
                    f"t{done}",
                )
            ]
        return [said("done")]

    saved = 0


async def order_compaction(bench: Bench, work: Work, payload: dict[str, Any] | None = None) -> None:
    """Compact the working agent once its turn hangs, and wait until the summariser is asked."""
    await bench.until(lambda state: bench.model.hanging)
    bench.submit("compact", agent_id=bench.state["agents"][-1]["id"], payload=payload)
    await bench.until(lambda state: work.asked)


def held(bench: Bench, turn: int = 5, *, written: bool = True, **about: Any) -> Work:
    """Start a run whose sub-agent hangs at a turn, and whose summary hangs unless it is to be `written`."""
    window = about.pop("window", 60_000)
    work = Work(**about)
    work.hold_turn = turn
    if not written:
        work.summaries.clear()
    bench.start(work, window=window)
    return work


async def die(running: asyncio.Future[Any]) -> None:
    """Let a host die."""
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def prepared(bench: Bench) -> None:
    """Wait until the newest pass has been prepared."""
    await bench.until(lambda state: passes(bench) and passes(bench)[-1]["status"] == "prepared")


async def prepare(bench: Bench) -> None:
    """Compact the working agent once its turn hangs, and wait until the pass has been prepared."""
    await bench.until(lambda state: bench.model.hanging)
    bench.submit("compact", agent_id=bench.state["agents"][-1]["id"])
    await prepared(bench)


async def land(bench: Bench, work: Work, ready: Any = prepared, **options: Any) -> None:
    """Run to the end; the turn goes on once `ready` has been waited for."""

    async def release() -> None:
        await ready(bench)
        work.turn_gate.set()

    assert (await bench.run_while(release, **options)).exit_code == 0


def passes(bench: Bench) -> list[dict[str, Any]]:
    return [one for one in bench.state["compactions"] if one["model"] != "digest"]
