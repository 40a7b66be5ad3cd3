"""Which model calls of a session were written at a moment.

A turn's call is written with its reply, which an event tells of. One that failed, and those of passes over a context, have
no event of their own: their ids lie between those of calls that have, and a pass writes its calls when it tells of itself.
"""

from __future__ import annotations

from bisect import bisect_left

from watchkeeper.store.driver import Connection
from watchkeeper.store.library.moment import Moment

_TURNS = ("turn", "planner")

_CALLS = (
    "SELECT id, agent_id, turn, status, purpose, started_at + latency_seconds FROM model_calls WHERE session_id = ? ORDER BY id"
)
_PASSES = (
    "SELECT agent_id, at FROM events WHERE session_id = ?1 AND kind IN ('compaction.prepared', 'compaction.applied',"
    " 'compaction.rejected', 'compaction.abandoned') AND data ->> 'compaction' IN (SELECT data ->> 'compaction' FROM events"
    " WHERE session_id = ?1 AND kind = 'compaction.started') ORDER BY seq"
)
"""What passes with a model tell of themselves; a digest is made without one, and starts and ends in one step."""


def calls_then(connection: Connection, session_id: str, moment: Moment) -> frozenset[int]:
    """Ids of the model calls that were written by then."""
    told: dict[str, list[float]] = {}
    for agent_id, at in connection.execute(_PASSES, (session_id,)):
        told.setdefault(agent_id, []).append(at)
    rows = connection.execute(_CALLS, (session_id,)).fetchall()
    reached = {agent_id: agent.turn for agent_id, agent in moment.agents.items()}
    replies = {row[0]: row[2] <= reached.get(row[1], -1) for row in rows if row[3] == "done" and row[4] in _TURNS}
    through = max((call_id for call_id, there in replies.items() if there), default=0)
    beyond = min((call_id for call_id, there in replies.items() if not there), default=1 << 62)
    kept: set[int] = set()
    for call_id, agent_id, _, _, purpose, ended_at in rows:
        there = replies.get(call_id)
        if there is None:
            written_at = ended_at
            ends = told.get(agent_id, [])
            if purpose not in _TURNS and (place := bisect_left(ends, ended_at)) < len(ends):
                written_at = ends[place]
            there = call_id < through or (call_id < beyond and written_at <= moment.at)
        if there:
            kept.add(call_id)
    return frozenset(kept)
