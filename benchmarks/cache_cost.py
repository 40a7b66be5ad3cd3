"""What compaction does to the prompt cache of recorded sessions, and what it costs, at one window.

    python benchmarks/cache_cost.py --window 64000 FILE…

Each agent's messages are added to a context as they came, with the engine and the rule of `can_pay`; a digest of a
fifth of what a pass reads stands in for the text of a model. Printed for each agent whose history is larger than the window:
model calls, how much of each prompt was in the prompt before (the share that a cache serves), and the cost of all calls and
passes, divided by that of the whole history in every prompt with a perfect cache. Prices are those of most Claude models: a
cached token costs 0.1 of a fresh one, one that is written to the cache 1.25, one that is written by the model 5.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.memory_quality import Thread, threads_of

from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.digest import DigestNotes
from watchkeeper.memory.engine import MOST_WRITTEN, Engine, TokenCosts, can_pay
from watchkeeper.memory.history import CompactionPass, ContextLimits
from watchkeeper.memory.tokens import default_counter

COSTS = TokenCosts(read=1.0, output=5.0, cache_read=0.1, cache_write=1.25)
SECONDS_A_CALL = 10.0


@dataclass(slots=True)
class Tally:
    calls: int = 0
    passes: int = 0
    kept: float = 0.0
    """The sum of the shares of each prompt that the next one begins with."""
    cost: float = 0.0
    untouched: float = 0.0
    """The cost of the whole history in each prompt."""

    def line(self, name: str) -> str:
        return (
            f"{name}: {self.calls} calls, {self.passes} passes, prefix kept {self.kept / max(1, self.calls - 1):.3f},"
            f" cost {self.cost / max(1.0, self.untouched):.3f} of the untouched history"
        )


async def play(thread: Thread, window: int) -> Tally:
    counter, tally = default_counter(), Tally()
    state = ContextState(ContextLimits(window, min(8_192, window // 8)), counter)

    async def write(run: CompactionPass, instructions: str | None) -> str:
        notes = DigestNotes.gather("agent", run.covers, run.merged, run.messages, instructions)
        return notes.write(min(MOST_WRITTEN, run.source_tokens // 5), counter).text

    engine = Engine(Compactor(state, write=write, monotonic=lambda: tally.calls * SECONDS_A_CALL))
    cached = before = sent = history = 0
    for message in thread.messages:
        if message.role == "assistant" and state.last_seq:
            tally.kept += cached / before if before else 0.0
            tally.cost += cached * COSTS.cache_read + (state.tokens - cached) * COSTS.cache_write
            tally.untouched += sent * COSTS.cache_read + (history - sent) * COSTS.cache_write
            tally.calls += 1
            cached, before, sent = state.tokens, state.tokens, history
        size = state.tokens
        change = state.append(message.role, message.content, at=0.0)
        cached = min(cached, size - change.cache_tokens_invalidated)
        history += state.messages[-1].tokens
        if message.role == "assistant" or not engine.is_due():
            continue
        run = engine.begin(due=True, pays=lambda run: can_pay(run, state, tally.calls, COSTS))
        if isinstance(run, CompactionPass):
            flight = engine.start(run)
            await flight.task
            published = engine.publish(flight, at=0.0).change
            if published is not None:
                tally.passes += 1
                tally.cost += run.source_tokens * COSTS.read + flight.task.result().tokens * COSTS.output
                cached = min(cached, published.tokens_before - published.cache_tokens_invalidated)
    return tally


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded sessions")
    parser.add_argument("--window", type=int, default=64_000, help="tokens")
    options = parser.parse_args(arguments)
    total = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for thread in threads_of(options.files, Path(folder) / "imported.db"):
            if sum(message.tokens for message in thread.messages) <= options.window:
                continue
            found = asyncio.run(play(thread, options.window))
            print(found.line(f"{thread.session_id}/{thread.agent_id}"))
            for name in ("calls", "passes", "kept", "cost", "untouched"):
                setattr(total, name, getattr(total, name) + getattr(found, name))
    print(total.line("all") if total.calls else f"no agent has more than {options.window:,} tokens")


if __name__ == "__main__":
    main()
