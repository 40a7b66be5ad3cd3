"""What the model calls of an agent, or of a session, came to at any position."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from watchkeeper.store.replaying.rows import CallRow

NONE: dict[str, Any] = {
    "input_tokens": 0, "output_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost_usd": None, "unpriced_calls": 0,
    "model_calls": 0, "retries": 0, "errors": 0, "cost_estimated": False,
}  # fmt: skip
"""Before the first call. The names are those of the facts of agents and sessions."""


class Totals:
    """Running totals over calls, by the position at which each was written."""

    def __init__(self, calls: Iterable[tuple[int, CallRow]]) -> None:
        self.positions: list[int] = []
        self.ids: list[int] = []
        self.turns: list[int] = []
        """The highest turn so far."""
        self._sums: list[tuple[Any, ...]] = []
        sums: tuple[Any, ...] = tuple(NONE.values())
        turn = 0
        for position, call in sorted(calls, key=lambda pair: (pair[0], pair[1].id)):
            sums = _add(sums, call)
            turn = max(turn, call.turn if call.is_reply else 0)
            self.positions.append(position)
            self.ids.append(call.id)
            self.turns.append(turn)
            self._sums.append(sums)

    def place(self, position: int) -> int:
        """How many calls were written by then."""
        return bisect_right(self.positions, position)

    def at(self, position: int) -> dict[str, Any]:
        """The sums at that position, by the names of the facts."""
        place = self.place(position)
        return dict(zip(NONE, self._sums[place - 1], strict=True)) if place else NONE

    def turn_at(self, position: int) -> int:
        """The highest turn that was replied to by then."""
        place = self.place(position)
        return self.turns[place - 1] if place else 0

    def is_whole(self, position: int) -> bool:
        """Every call was written by then."""
        return not self.positions or self.positions[-1] <= position

    def newest(self, position: int, limit: int) -> list[int]:
        """Ids of the last calls that were written by then."""
        place = self.place(position)
        return self.ids[max(0, place - limit) : place]


def _add(sums: tuple[Any, ...], call: CallRow) -> tuple[Any, ...]:
    read, wrote, cached, caching, cost, unpriced, count, retries, errors, estimated = sums
    tokens = call.input_tokens + call.output_tokens + call.cache_read_tokens + call.cache_write_tokens
    if call.cost_usd is not None:
        cost, estimated = (cost or 0.0) + call.cost_usd, estimated or bool(call.is_estimated)
    return (
        read + call.input_tokens, wrote + call.output_tokens, cached + call.cache_read_tokens, caching + call.cache_write_tokens,
        cost, unpriced + (call.cost_usd is None and tokens > 0), count + 1, retries + call.retries, errors + (call.status == "error"),
        estimated,
    )  # fmt: skip


def totals_by_agent(calls: list[tuple[int, CallRow]]) -> dict[str, Totals]:
    """The running totals of each agent that made a call."""
    mine: dict[str, list[tuple[int, CallRow]]] = {}
    for position, call in calls:
        mine.setdefault(call.agent_id, []).append((position, call))
    return {agent_id: Totals(each) for agent_id, each in mine.items()}
