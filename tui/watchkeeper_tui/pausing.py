"""Agents that received a pause and still work. A pause takes effect at the next step; until then it can be
cancelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchkeeper.store.snapshot import AgentFacts, CommandFacts
from watchkeeper_tui.event_line import EventLine

_AT_WORK = ("working", "waiting")


def pausing_agents(
    agents: Iterable[AgentFacts], commands: Sequence[CommandFacts], events: Sequence[EventLine]
) -> frozenset[str]:
    """The working agents for which a pause is queued or in progress, while a host runs. `commands`: newest
    first.

    A pause counts until a later record (another command, the agent's own pause, a new host) ends it.
    """
    whole, own = _last_words(commands)
    pauses = {agent_id: each for agent_id, each in own.items() if each.kind == "pause"}
    if not (pauses or _is_pause(whole)):
        return frozenset()
    ended = _Ended(events, [*pauses.values(), *([whole] if whole is not None else [])])
    found = {agent_id for agent_id, each in pauses.items() if not ended.has_come(each, agent_id)}
    whole_pauses = whole is not None and _is_pause(whole) and not ended.has_come(whole, None)
    return frozenset(
        agent.id
        for agent in agents
        if agent.status in _AT_WORK and (agent.id in found or (whole_pauses and agent.id not in own))
    )


def pauses_all(commands: Sequence[CommandFacts], events: Sequence[EventLine]) -> bool:
    """Whether the whole run received a pause that has not taken effect yet, while a host runs."""
    whole, _ = _last_words(commands)
    return whole is not None and _is_pause(whole) and not _Ended(events, [whole]).has_come(whole, None)


def _is_pause(command: CommandFacts | None) -> bool:
    return command is not None and command.kind == "pause"


def _last_words(commands: Sequence[CommandFacts]) -> tuple[CommandFacts | None, dict[str, CommandFacts]]:
    """The last command to stop or to go on that the whole run got, and those that single agents got since."""
    own: dict[str, CommandFacts] = {}
    for each in commands:
        if each.kind in ("pause", "resume") and each.status != "refused":
            if each.agent_id is None:
                return each, own
            own.setdefault(each.agent_id, each)
    return None, own


class _Ended:
    """What the events say has ended a wish to pause: one look through those that came since the oldest of the
    wishes."""

    def __init__(self, events: Sequence[EventLine], wishes: list[CommandFacts]) -> None:
        self._host_started = float("-inf")
        self._paused: dict[str | None, float] = {}
        # Before what is kept nothing is known: a wish as old as that counts as come.
        self._known_from = events[0].at if events and events[0].seq > 1 else float("-inf")
        oldest = min(
            (each.applied_at for each in wishes if each.applied_at is not None), default=float("inf")
        )
        for event in reversed(events):
            if event.at < oldest:
                break
            if event.facts.kind == "host.started":
                self._host_started = max(self._host_started, event.at)
            elif event.facts.kind == "agent.paused":
                self._paused.setdefault(event.agent_id, event.at)

    def has_come(self, command: CommandFacts, agent_id: str | None) -> bool:
        """Whether the pause has taken effect, or its host is gone."""
        if command.status == "queued" or command.applied_at is None:
            return False
        since = max(
            self._host_started,
            self._paused.get(agent_id, float("-inf")) if agent_id is not None else float("-inf"),
        )
        return since >= command.applied_at or command.applied_at < self._known_from
