"""Which passes were taken back: the view that a pass made is not among those that the agent's current view
came from.

A pass keeps the status with which it ended. Undo points the agent at an older view, or enters a new one that
continues it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from watchkeeper.store.dashboard import AgentFacts, CompactionFacts
from watchkeeper.store.driver import Connection

_PARENTS = "SELECT agent_id, version, parent FROM views WHERE agent_id IN (SELECT value FROM json_each(?))"


class Undone:
    """Marks them among a session's passes. Views are read again only when a pass or an agent's view is
    another one."""

    def __init__(self) -> None:
        self._passes: tuple[CompactionFacts, ...] = ()
        self._versions: dict[str, int] = {}
        self._marked: tuple[CompactionFacts, ...] = ()

    def mark(
        self, connection: Connection, agents: Sequence[AgentFacts], passes: tuple[CompactionFacts, ...]
    ) -> tuple[CompactionFacts, ...]:
        """The same passes, with the status `undone` where that is so; the same object as before where nothing
        changed."""
        applied = {
            each.agent_id for each in passes if each.status == "applied" and each.view_after is not None
        }
        versions = {agent.id: agent.view_version for agent in agents if agent.id in applied}
        if passes is self._passes and versions == self._versions:
            return self._marked
        parents = {(agent_id, version): parent for agent_id, version, parent in _rows(connection, versions)}
        known = {each.id: each for each in self._marked}
        marked = []
        for each in passes:
            undone = each.agent_id in versions and _is_undone(each, versions[each.agent_id], parents)
            one = replace(each, status="undone") if undone else each
            marked.append(known[one.id] if known.get(one.id) == one else one)
        self._passes, self._versions = passes, versions
        self._marked = (
            tuple(marked)
            if any(one is not each for one, each in zip(marked, passes, strict=True))
            else passes
        )
        return self._marked


def _rows(connection: Connection, versions: dict[str, int]) -> list[tuple[str, int, int | None]]:
    return connection.execute(_PARENTS, (json.dumps(list(versions)),)).fetchall() if versions else []


def _is_undone(
    each: CompactionFacts, version: int | None, parents: dict[tuple[str, int], int | None]
) -> bool:
    """From the current view back: the pass stands where its view is on the way. Where the way is lost,
    nothing is claimed."""
    if each.status != "applied" or not isinstance(each.view_after, int) or not isinstance(version, int):
        return False  # a damaged row may hold anything
    while version is not None and version > each.view_after:
        parent = parents.get((each.agent_id, version))
        version = parent if isinstance(parent, int) and parent < version else None
    return version is not None and version < each.view_after
