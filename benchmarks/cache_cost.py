"""What compaction does to the prompt cache of recorded sessions, what it costs, and what the context keeps, at one window.

    python benchmarks/cache_cost.py --window 64000 [--memory both] FILE…

Each agent's messages are added to a context as they came, with the engine of `summary` or `observational` memory and its
rules; a digest of a fifth of what a pass reads (a reflector's: half) stands in for the text of a model. Observers and summaries are done one
call of the agent later. Printed for each agent whose history is larger than the window:

- model calls, passes, and how much of each prompt was in the prompt before (the share that a cache serves);
- the cost of all calls and passes, divided by that of the whole history in every prompt with a perfect cache. Prices are
  those of most Claude models: a cached token costs 0.1 of a fresh one, one that is written to the cache 1.25, one that is
  written by the model 5. A pass is charged for its whole prompt;
- of the context at ten moments: its tokens, and the shares of the user's sentences and of the questions of
  `memory_quality.py` on everything before that its text answers; and at each compaction that the program recorded, of
  the names, files and quotes of the program's own summary.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.memory_quality import (
    Share,
    Thread,
    answers,
    holds,
    questions_of,
    said_by_user,
    sentences,
    squeezed,
    threads_of,
    worth_keeping,
)

from watchkeeper.memory import digest
from watchkeeper.memory.compactor import Compactor, request_of
from watchkeeper.memory.content import texts_of
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.engine import (
    Engine,
    ObservationalSettings,
    TokenCosts,
    can_pay,
    is_needed,
    most_written,
)
from watchkeeper.memory.history import Change, CompactionPass, ContextLimits
from watchkeeper.memory.ledger import Ledger
from watchkeeper.memory.tokens import count_message, default_counter
from watchkeeper.records.messages import ObservationKind

COSTS = TokenCosts(read=1.0, output=5.0, cache_read=0.1, cache_write=1.25)
SECONDS_A_CALL = 10.0
MOMENTS = 10
"""How often the context of an agent is looked at."""


@dataclass(slots=True)
class Tally:
    calls: int = 0
    passes: int = 0
    """Texts that were asked for."""
    swaps: int = 0
    """Changes of the view: summaries, activations, reflections and digests."""
    digests: int = 0
    kept: float = 0.0
    """The sum of the shares of each prompt that the next one begins with."""
    cost: float = 0.0
    written: float = 0.0
    """The part of `cost` that the passes take."""
    untouched: float = 0.0
    """The cost of the whole history in each prompt."""
    tokens: int = 0
    moments: int = 0
    shares: dict[str, Share] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        for name in self.__slots__:
            if name != "shares":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, share in other.shares.items():
            mine = self.shares.setdefault(name, Share())
            mine.kept, mine.total = mine.kept + share.kept, mine.total + share.total

    def line(self, name: str) -> str:
        shares = ", ".join(
            f"{what} {share.kept / share.total:.0%} of {share.total}" for what, share in self.shares.items()
        )
        return (
            f"{name}: {self.calls} calls, {self.passes} passes, {self.swaps} swaps ({self.digests} digests),"
            f" prefix kept {self.kept / max(1, self.calls - 1):.3f},"
            f" cost {self.cost / max(1.0, self.untouched):.3f} of the untouched history"
            f" (passes {self.written / max(1.0, self.cost):.0%} of it),"
            f" context {self.tokens / max(1, self.moments):,.0f} tokens; {shares}"
        )


class Player:
    """Adds the messages of one agent to a context, and does what its memory does."""

    def __init__(self, thread: Thread, window: int, *, observational: bool) -> None:
        self._thread, self._counter, self.tally = thread, default_counter(), Tally()
        self._state = ContextState(ContextLimits(window, min(8_192, window // 8)), self._counter)
        compactor = Compactor(
            self._state, write=self._write, monotonic=lambda: self.tally.calls * SECONDS_A_CALL
        )
        self._engine = Engine(compactor, ObservationalSettings() if observational else None)
        self._cached = 0

    async def _write(self, run: CompactionPass, instructions: str | None) -> str:
        ledger = Ledger.up_to((), run.messages)
        ledger.quote(run.merged)
        share = 2 if run.kind is ObservationKind.REFLECTION else 5
        budget = min(most_written(run), run.source_tokens // share)
        text = digest.write(ledger, "agent", run.covers, budget, self._counter).text
        asked = sum(self._counter.count(part) for part in request_of(run, instructions))
        cost = asked * COSTS.read + self._counter.count(text) * COSTS.output
        self.tally.passes += 1
        self.tally.cost += cost
        self.tally.written += cost
        return text

    def _note(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._cached = min(self._cached, change.tokens_before - change.cache_tokens_invalidated)
            self.tally.swaps += 1
            self.tally.digests += change.reason == "digest"

    def _is_needed(self, run: CompactionPass) -> bool:
        return is_needed(run, self._state, self.tally.calls, float("inf"))

    def _can_pay(self, run: CompactionPass) -> bool:
        return can_pay(run, self._state, self.tally.calls, COSTS)

    async def play(self) -> Tally:
        tally, state = self.tally, self._state
        before = sent = history = 0
        number = len(self._thread.messages)
        moments = {number * (at + 1) // MOMENTS for at in range(MOMENTS)}
        recorded = {compaction.last: compaction.summary for compaction in self._thread.compactions}
        for message in self._thread.messages:
            if message.role == "assistant" and state.last_seq:
                self._note(self._engine.advance(at=0.0, needed=self._is_needed))
                tally.kept += self._cached / before if before else 0.0
                tally.cost += (
                    self._cached * COSTS.cache_read + (state.tokens - self._cached) * COSTS.cache_write
                )
                tally.untouched += sent * COSTS.cache_read + (history - sent) * COSTS.cache_write
                tally.calls += 1
                self._cached, before, sent = state.tokens, state.tokens, history
                await self._engine.coordinator.settled()
            if message.role == "user":
                self._note(
                    self._engine.make_room(
                        count_message(message.role, message.content, self._counter), at=0.0
                    )
                )
            change = state.append(message.role, message.content, at=0.0)
            if change.reason == "digest":
                self._note([change])
            history += state.messages[-1].tokens
            if self._engine.settings is None and message.role == "user" and self._engine.is_due():
                await self._summarise()
            if message.seq in moments or message.seq in recorded:
                self._look(message.seq, recorded.get(message.seq), at_moment=message.seq in moments)
        await self._engine.stop()
        return tally

    async def _summarise(self) -> None:
        run = self._engine.begin(due=True, pays=self._can_pay)
        if isinstance(run, CompactionPass):
            flight = self._engine.start(run)
            await flight.task
            published = self._engine.publish(flight, at=0.0).change
            self._note([published] if published is not None else [])

    def _look(self, last: int, summary: str | None, *, at_moment: bool) -> None:
        """Score what the context says now."""
        if not self.tally.swaps:
            return
        text = "\n".join(part for one in self._state.render() for part in texts_of(one["content"]))
        flat, shares = squeezed(text), self.tally.shares
        if at_moment:
            self.tally.tokens += self._state.tokens
            self.tally.moments += 1
            for message in self._thread.messages[:last]:
                for said in said_by_user(self._thread, message):
                    for sentence in sentences(said):
                        shares.setdefault("user's sentences", Share()).note(sentence in flat)
            for question in questions_of(self._thread, last):
                shares.setdefault("questions", Share()).note(answers(question, text))
        for kind, wanted in (
            worth_keeping(self._thread, self._thread.messages[:last], summary) if summary else {}
        ).items():
            for one in wanted:
                shares.setdefault(kind, Share()).note(holds(kind, one, flat if kind == "quotes" else text))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded sessions")
    parser.add_argument("--window", type=int, default=64_000, help="tokens")
    parser.add_argument("--memory", choices=("summary", "observational", "both"), default="summary")
    options = parser.parse_args(arguments)
    modes = ("summary", "observational") if options.memory == "both" else (options.memory,)
    totals = {mode: Tally() for mode in modes}
    with tempfile.TemporaryDirectory() as folder:
        for thread in threads_of(options.files, Path(folder) / "imported.db"):
            if sum(message.tokens for message in thread.messages) <= options.window:
                continue
            for mode, total in totals.items():
                player = Player(thread, options.window, observational=mode == "observational")
                found = asyncio.run(player.play())
                print(found.line(f"{mode} {thread.session_id}/{thread.agent_id}"))
                total.add(found)
    for mode, total in totals.items():
        print(
            total.line(f"{mode} all") if total.calls else f"no agent has more than {options.window:,} tokens"
        )


if __name__ == "__main__":
    main()
