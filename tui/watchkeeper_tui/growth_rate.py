"""How fast contexts grow: for the agents near a compaction, read beside the snapshots, and only when they
have gone on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from watchkeeper.store.agent_snapshot import TurnFacts, newest_turns
from watchkeeper.store.driver import Connection
from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui.pages.memory import tokens_per_second
from watchkeeper_tui.reader import Reader

ASK_SECONDS = 2.0
"""At most so often."""


class GrowthRates:
    """Tokens a second by which each agent's context grows, as far as that is known."""

    def __init__(self) -> None:
        self.known: Mapping[str, float] = {}
        self._asked: tuple[tuple[str, int], ...] = ()
        self._asked_at = float("-inf")

    def look(
        self, reader: Reader, agents: Sequence[AgentFacts], now: float, arrived: Callable[[], object]
    ) -> None:
        """Have the paces of these agents read, where they have taken turns since; `arrived` is called in the
        reader's thread."""
        wanted = tuple((agent.id, agent.turn) for agent in agents)
        if wanted == self._asked or 0 <= now - self._asked_at < ASK_SECONDS:
            return
        self._asked, self._asked_at = wanted, now
        if not wanted:
            self.known = {}
            return

        def question(connection: Connection) -> dict[str, Sequence[TurnFacts]]:
            return {agent_id: newest_turns(connection, agent_id) for agent_id, _ in wanted}

        def answer(result: object) -> None:
            if isinstance(result, dict):  # else it could not be read, which the screen says already
                paces = {agent_id: tokens_per_second(turns) for agent_id, turns in result.items()}
                self.known = {agent_id: pace for agent_id, pace in paces.items() if pace is not None}
                arrived()

        reader.ask(question, answer)
