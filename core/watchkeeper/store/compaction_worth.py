"""Whether a compaction pays for itself: what it spent once, against what it spares each later call."""

from __future__ import annotations

from typing import Any

_ROWS = (
    "WITH done AS (SELECT id, agent_id, status, tokens_before, tokens_after, tokens_spent,"
    " cache_tokens_invalidated, ended_at,"
    " lead(ended_at) OVER (PARTITION BY agent_id ORDER BY ended_at, id) AS until FROM compactions"
    " WHERE session_id = ? AND status IN ('applied', 'undone') AND tokens_before IS NOT NULL AND"
    " tokens_after IS NOT NULL"
    " AND ended_at IS NOT NULL)"
    " SELECT d.id, d.tokens_before - d.tokens_after, d.tokens_spent + d.cache_tokens_invalidated,"
    " (SELECT count(*) FROM model_calls c WHERE c.agent_id = d.agent_id AND c.purpose IN ('turn', 'planner')"
    " AND c.status = 'done' AND c.started_at >= d.ended_at AND (d.until IS NULL OR c.started_at < d.until))"
    " FROM done d"
)


def worth(reads: Any, session_id: str) -> dict[int, dict[str, Any]]:
    """By the id of each applied compaction of a session: `calls` of the agent that it made shorter so far
    (those before the next compaction), `tokens_not_sent` in these, `tokens_spent` (by its own calls, and
    cached tokens that it made void), and `pays`: whether more was spared than spent."""
    found: dict[int, dict[str, Any]] = {}
    for number, saved, spent, calls in reads.all(_ROWS, (session_id,)):
        spared = max(0, saved) * calls
        found[number] = {
            "calls": calls,
            "tokens_not_sent": spared,
            "tokens_spent": spent,
            "pays": spared > spent,
        }
    return found
