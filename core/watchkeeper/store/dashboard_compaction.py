"""What the dashboard reads of one compaction: the views before and after it, and the messages that it
replaced."""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.store.dashboard import CompactionFacts, compaction_facts
from watchkeeper.store.dashboard_agent import StoredMessage, ViewFacts, view
from watchkeeper.store.driver import Connection

MOST_MESSAGES = 300
"""The newest replaced messages that are read."""


@dataclass(frozen=True, slots=True)
class CompactionDetail:
    """One pass with both sides of it. Texts are as stored: hostile until sanitised."""

    facts: CompactionFacts
    seconds: float | None
    """How long the pass took beside the loop."""
    before: ViewFacts | None
    after: ViewFacts | None
    """None while the pass has not been applied."""
    first: int
    last: int
    """The messages `first … last` were, or would be, replaced; none where `last < first`."""
    messages: tuple[StoredMessage, ...]
    """Those of them that were read, oldest first; of a long text its beginning."""
    tokens: int
    """Of all that were replaced."""

    @property
    def count(self) -> int:
        """How many messages were replaced."""
        return max(0, self.last - self.first + 1)


def compaction_detail(connection: Connection, compaction_id: int) -> CompactionDetail | None:
    """The pass of that id, or None."""
    row = connection.execute(
        "SELECT id, agent_id, trigger, status, instructions, reason, high_water, messages_removed,"
        " tokens_before,"
        " tokens_after, view_before, view_after, model, cost_usd, stall_seconds, cache_tokens_invalidated,"
        " requested_at,"
        " ended_at, seconds, (SELECT origin FROM sessions s WHERE s.id = session_id) FROM compactions WHERE"
        " id = ?",
        (compaction_id,),
    ).fetchone()
    if row is None:
        return None
    facts, agent_id = compaction_facts(row[:18], row[19]), row[1]
    base = facts.view_before
    if base is None:
        current = connection.execute("SELECT view_version FROM agents WHERE id = ?", (agent_id,)).fetchone()
        base = current[0] if current else 0
    before = view(connection, agent_id, base)
    after = view(connection, agent_id, facts.view_after) if facts.view_after is not None else None
    first, last = _replaced(facts, before, after)
    messages = connection.execute(
        "SELECT seq, role, substr(content, 1, 100000), tokens, total_tokens, created_at, length(content)"
        " FROM messages"
        " WHERE agent_id = ? AND seq BETWEEN ? AND ? ORDER BY seq DESC LIMIT ?",
        (agent_id, first, last, MOST_MESSAGES),
    ).fetchall()
    tokens = connection.execute(
        "SELECT coalesce((SELECT total_tokens FROM messages WHERE agent_id = ? AND seq <= ? ORDER BY seq"
        " DESC LIMIT 1), 0)"
        " - coalesce((SELECT total_tokens FROM messages WHERE agent_id = ? AND seq < ? ORDER BY seq DESC"
        " LIMIT 1), 0)",
        (agent_id, last, agent_id, first),
    ).fetchone()[0]
    return CompactionDetail(
        facts,
        row[18],
        before,
        after,
        first,
        last,
        tuple(StoredMessage(*each) for each in reversed(messages)),
        max(0, int(tokens)) if last >= first else 0,
    )


def _replaced(facts: CompactionFacts, before: ViewFacts | None, after: ViewFacts | None) -> tuple[int, int]:
    """Which messages were verbatim before the pass, and are not after it."""
    if before is not None and before.verbatim_from is None:
        return 1, 0
    first = before.verbatim_from if before is not None and before.verbatim_from else 1
    if after is not None and after.verbatim_from is not None:
        return first, after.verbatim_from - 1
    return first, facts.high_water or 0
