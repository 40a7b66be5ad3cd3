"""The size of an agent's context at a position, as it must have been: the host counts it only step by
step."""

from __future__ import annotations

from typing import Any

from watchkeeper.store.dashboard import AgentFacts
from watchkeeper.store.driver import Connection
from watchkeeper.store.replaying.rows import ViewRow

_MESSAGE = "SELECT total_tokens, created_at FROM messages WHERE agent_id = ? AND seq = ?"
_KEPT = 200_000
"""Messages whose figures are remembered."""


class Contexts:
    """Answers for one recording; what was asked once is remembered, since messages never change."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, int], tuple[int, float]] = {}
        self._begun: dict[tuple[str, int], int] = {}

    def message(self, connection: Connection, agent_id: str, seq: int) -> tuple[int, float]:
        """The running total of tokens through that message, and when it was written; zeros where there is
        none."""
        if seq <= 0:
            return 0, 0.0
        found = self._messages.get((agent_id, seq))
        if found is None:
            row = connection.execute(_MESSAGE, (agent_id, seq)).fetchone()
            if len(self._messages) >= _KEPT:
                self._messages.clear()
            found = self._messages[agent_id, seq] = (
                (int(row[0]), float(row[1])) if row is not None else (0, 0.0)
            )
        return found

    def sizes(self, connection: Connection, agent: AgentFacts, view: ViewRow, last: int) -> dict[str, Any]:
        """The size and make-up of the agent's context under `view`, with messages through `last`, by the
        names of the facts."""
        begun = min(last, self._last_before(connection, agent, view))
        since = self.message(connection, agent.id, last)[0] - self.message(connection, agent.id, begun)[0]
        used = view.tokens + max(0, since)
        made = dict(agent.composition)
        room = agent.context_tokens + made.get("headroom", 0)
        made |= {
            "observations": view.observed, "messages": max(0, used - view.observed), "elided": 0, "headroom": max(0, room - used),
        }  # fmt: skip
        return {"context_tokens": used, "composition": tuple(made.items())}

    def _last_before(self, connection: Connection, agent: AgentFacts, view: ViewRow) -> int:
        """The last message that was there when the view was made. Times of messages never go back in an
        agent."""
        known = self._begun.get((agent.id, view.version))
        if known is None:
            low, high = 0, agent.last_seq
            while low < high:
                middle = (low + high + 1) // 2
                if self.message(connection, agent.id, middle)[1] <= view.created_at:
                    low = middle
                else:
                    high = middle - 1
            known = self._begun[agent.id, view.version] = low
        return known
