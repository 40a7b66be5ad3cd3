"""Facts about all agents: names, counts by state, and which agents are closest to a compaction.

Updates cost only what changed: they visit the agents whose object differs from the previous snapshot's, and
those that became silent because time passed.
"""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from itertools import zip_longest

from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.session_status import agent_condition, silent_at
from watchkeeper_tui.snapshot import SessionState, Snapshot

NEAREST = 5


class Roster:
    """The agents of one session after the other."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Sanitised, by id: the same object as long as no name changed."""
        self.roles: dict[str, str] = {}
        """The palette role of each glyph counted."""
        self._agents: tuple[AgentFacts, ...] = ()
        self._state = SessionState.OPENING
        self._glyphs: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._shares: dict[str, float] = {}
        self._turns: dict[str, float] = {}
        """When each agent that works will count as silent."""
        self._next_turn = float("inf")

    def update(self, snapshot: Snapshot, now: float) -> None:
        """Take in a reading, at `now`."""
        agents = snapshot.agents
        others = any(
            was.id != now_is.id
            for was, now_is in zip(self._agents, agents, strict=False)
            if was is not now_is
        )
        if snapshot.state is not self._state or len(agents) < len(self._agents) or others:
            self._start(snapshot.state)
        if agents is not self._agents:
            names: dict[str, str] = {}
            for before, agent in zip_longest(self._agents, agents):
                if before is not agent:
                    self._look(agent, now)
                    name = sanitize(agent.name or agent.role)
                    if self.names.get(agent.id) != name:
                        names[agent.id] = name
            if names:
                self.names = {**self.names, **names}
            self._agents = agents
            self._next_turn = min(self._turns.values(), default=float("inf"))
        if now >= self._next_turn:
            for agent_id in [each for each, turn in self._turns.items() if turn <= now]:
                self._look(snapshot.agents_by_id[agent_id], now)
            self._next_turn = min(self._turns.values(), default=float("inf"))

    def copy(self) -> Roster:
        """An independent copy of this roster."""
        other = Roster()
        other.names, other.roles = self.names, dict(self.roles)
        other._agents, other._state, other._next_turn = self._agents, self._state, self._next_turn
        other._glyphs, other._counts = dict(self._glyphs), Counter(self._counts)
        other._shares, other._turns = dict(self._shares), dict(self._turns)
        return other

    def counts(self) -> dict[str, int]:
        """How many agents there are of each glyph."""
        return self._counts

    def nearest(self, share: float, snapshot: Snapshot) -> list[AgentFacts]:
        """The agents that have not ended whose context is fullest, from `share` of it on: the fullest
        first."""
        near = [(filled, agent_id) for agent_id, filled in self._shares.items() if filled >= share]
        by_id = snapshot.agents_by_id
        return [by_id[agent_id] for _, agent_id in nlargest(NEAREST, near)]

    def _start(self, state: SessionState) -> None:
        self._agents, self._state = (), state
        self.names = {}
        self._glyphs.clear()
        self._counts.clear()
        self._shares.clear()
        self._turns.clear()
        self._next_turn = float("inf")

    def _look(self, agent: AgentFacts, now: float) -> None:
        condition = agent_condition(agent, self._state, now)
        before = self._glyphs.get(agent.id)
        if before != condition.glyph:
            if before is not None:
                self._counts[before] -= 1
            self._counts[condition.glyph] += 1
            self._glyphs[agent.id] = condition.glyph
            self.roles[condition.glyph] = condition.role
        self._shares[agent.id] = (
            0.0 if agent.ended_at is not None else formatting.share(agent.context_used, agent.context_limit)
        )
        turn = silent_at(agent)
        if condition.glyph == "●" and turn > now:
            self._turns[agent.id] = turn
        else:
            self._turns.pop(agent.id, None)
