"""Who was told to pause and is still at work: a pause comes at the next step, and until then it can be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchkeeper.store.dashboard import AgentFacts, CommandFacts

if TYPE_CHECKING:
    from watchkeeper_tui.snapshot import Snapshot

_AT_WORK = ("working", "waiting")


def pausing_agents(snapshot: Snapshot) -> frozenset[str]:
    """The agents at work for whom a pause is queued or under way.

    A pause counts as long as nothing that was read since (another command, the agent's own pause, a new host) ended it.
    """
    if snapshot.host_pid is None or not any(each.kind == "pause" for each in snapshot.commands):
        return frozenset()
    return frozenset(agent.id for agent in snapshot.agents if _last_word(agent, snapshot) is not None)


def pauses_all(snapshot: Snapshot) -> bool:
    """The whole run was told to pause, and has not yet."""
    told = _newest(snapshot, None)
    return snapshot.host_pid is not None and told is not None and not _has_come(told, None, snapshot)


def _last_word(agent: AgentFacts, snapshot: Snapshot) -> CommandFacts | None:
    """The pause that the agent is still to obey."""
    if agent.status not in _AT_WORK:
        return None
    told = _newest(snapshot, agent.id)
    return told if told is not None and not _has_come(told, agent.id, snapshot) else None


def _newest(snapshot: Snapshot, agent_id: str | None) -> CommandFacts | None:
    """The newest command to stop or to go on that concerns the agent (None: the whole run), if it is to stop."""
    for each in snapshot.commands:  # the newest first
        if each.kind in ("pause", "resume") and each.status != "refused" and each.agent_id in (None, agent_id):
            return each if each.kind == "pause" else None
    return None


def _has_come(told: CommandFacts, agent_id: str | None, snapshot: Snapshot) -> bool:
    """Whether something that was read since then ended the wish."""
    if told.status == "queued" or told.applied_at is None:
        return False
    for event in reversed(snapshot.events):
        if event.at < told.applied_at:
            return False
        if event.facts.kind == "host.started" or (event.facts.kind == "agent.paused" and event.agent_id == agent_id):
            return True
    # More has happened since than is kept: nothing is known of it any more.
    return bool(snapshot.events) and snapshot.events[0].seq > 1
