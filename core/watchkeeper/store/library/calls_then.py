"""Which model calls of a session were written at a moment.

A turn's call is written with its reply, which an event tells of. One that failed, and those of passes over a
context, have
no event of their own: their ids lie between those of calls that have, and a pass writes its calls when it
tells of itself.
"""

from __future__ import annotations

from watchkeeper.store.driver import Connection
from watchkeeper.store.library.moment import Moment

_TURNS = ("turn", "planner")

_CALLS = "SELECT id, agent_id, turn, status, purpose, started_at + latency_seconds FROM model_calls WHERE session_id = ? ORDER BY id"
_PASSES = (
    "SELECT seq, agent_id, at, kind, data ->> 'compaction' FROM events WHERE session_id = ? AND kind IN"
    " ('compaction.started',"
    " 'compaction.prepared', 'compaction.applied', 'compaction.rejected', 'compaction.abandoned') ORDER BY"
    " seq"
)


def calls_then(connection: Connection, session_id: str, moment: Moment) -> frozenset[int]:
    """Ids of the model calls that were written by then."""
    passed = _passed(connection, session_id)
    rows = connection.execute(_CALLS, (session_id,)).fetchall()
    reached = {agent_id: agent.turn for agent_id, agent in moment.agents.items()}
    replies = {
        row[0]: row[2] <= reached.get(row[1], -1) for row in rows if row[3] == "done" and row[4] in _TURNS
    }
    through = max((call_id for call_id, there in replies.items() if there), default=0)
    beyond = min((call_id for call_id, there in replies.items() if not there), default=1 << 62)
    kept: set[int] = set()
    for call_id, agent_id, _, _, purpose, ended_at in rows:
        there = replies.get(call_id)
        if there is None:
            written = ended_at <= moment.at
            if purpose not in _TURNS:
                # A pass that began after the call ended did not write it, though it be the next to tell.
                around = [seq for begun, at, seq in passed.get(agent_id, []) if begun <= ended_at <= at]
                written = min(around) <= moment.seq if around else written
            there = call_id < through or (call_id < beyond and written)
        if there:
            kept.add(call_id)
    return frozenset(kept)


def _passed(connection: Connection, session_id: str) -> dict[str, list[tuple[float, float, int]]]:
    """When each pass with a model began, when it first told what came of it, and with which event, by agent.

    A digest is made without a model, in one step: it has no beginning.
    """
    begun: dict[int, float] = {}
    passed: dict[str, list[tuple[float, float, int]]] = {}
    for seq, agent_id, at, kind, compaction in connection.execute(_PASSES, (session_id,)):
        if kind == "compaction.started":
            begun[compaction] = at
        elif compaction in begun:
            passed.setdefault(agent_id, []).append((begun.pop(compaction), at, seq))
    return passed
