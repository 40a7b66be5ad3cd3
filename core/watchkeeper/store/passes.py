"""Reading passes over agents' contexts that were begun and not applied: what a host finds that takes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.encoding import encode


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over an agent's context that has not been applied."""

    id: int
    trigger: str
    status: str
    prepared: str | None
    """Its result as JSON, where it waits to be published."""
    instructions: str | None
    high_water: int
    reason: str
    tokens_before: int


_UNFINISHED = (
    "SELECT id, trigger, status, prepared, instructions, high_water, coalesce(reason, ''),"
    " coalesce(tokens_before, 0)"
    " FROM compactions"
    " WHERE agent_id = ? AND status IN ('running', 'prepared') ORDER BY id"
)
_ABANDONED_LAST = (
    "SELECT id, trigger, status, prepared, instructions, high_water, coalesce(reason, ''),"
    " coalesce(tokens_before, 0)"
    " FROM compactions"
    " WHERE id = (SELECT max(id) FROM compactions WHERE agent_id = ? AND trigger NOT IN ('observer',"
    " 'reflector'))"
    " AND status = 'abandoned' AND trigger IN (SELECT value FROM json_each(?))"
)


def unfinished_passes(reads: Any, agent_id: str) -> list[Pass]:
    """The passes of an agent that have no end yet, oldest first."""
    return [Pass(*row) for row in reads.all(_UNFINISHED, (agent_id,))]


def last_pass(reads: Any, agent_id: str, triggers: Sequence[str]) -> Pass | None:
    """The newest pass of an agent, if it has one of these triggers and was abandoned."""
    row = reads.one(_ABANDONED_LAST, (agent_id, encode(list(triggers))))
    return Pass(*row) if row is not None else None


def moved_by_hand_since(reads: Any, agent_id: str, found: Pass) -> bool:
    """Whether the agent's context was taken back, or forward again, since that pass began."""
    row = reads.one(
        "SELECT 1 FROM agents a JOIN events e ON e.session_id = a.session_id AND e.agent_id = a.id"
        " WHERE a.id = ? AND e.kind IN ('compaction.undo', 'compaction.redo') AND e.seq >"
        " (SELECT coalesce(max(b.seq), 0) FROM events b WHERE b.session_id = a.session_id AND b.kind ="
        " 'compaction.started'"
        " AND b.data ->> 'compaction' = ?) LIMIT 1",
        (agent_id, found.id),
    )
    return row is not None
