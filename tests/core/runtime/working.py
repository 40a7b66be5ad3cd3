"""A sub-agent that fills its context at a known pace, and a summariser that the test holds."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task

from watchkeeper.records.messages import ModelError, ModelRequest, Purpose


class Work:
    """A sub-agent of `count` turns, and a summariser that waits for `summaries`, answers `summary`, or
    fails."""

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

    def __call__(self, request: ModelRequest) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            self.asked += 1
            if not self.summaries.is_set():
                return self.summaries
            return self.summary if isinstance(self.summary, ModelError) else [said(self.summary)]
        return PlannedRun([task("a")], self.work)(request)

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


def passes(bench: Bench) -> list[dict[str, Any]]:
    return [one for one in bench.state["compactions"] if one["model"] != "digest"]
