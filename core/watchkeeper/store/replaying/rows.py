"""What is read once of a session that is replayed: its rows as they stand now, and where its steps, calls and
views begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.store.dashboard import (
    AgentFacts,
    ApprovalFacts,
    BudgetFacts,
    CompactionFacts,
    SessionFacts,
    TaskFacts,
    compaction_facts,
)
from watchkeeper.store.dashboard_fold import SessionFold
from watchkeeper.store.driver import Connection

Cancelled = Callable[[], bool]

_STEP = 2_000
"""Rows between two questions whether anybody still waits."""

_COMPACTIONS = (
    "SELECT id, agent_id, trigger, status, instructions, reason, high_water, messages_removed,"
    " tokens_before, tokens_after,"
    " view_before, view_after, model, cost_usd, stall_seconds, cache_tokens_invalidated, requested_at,"
    " ended_at"
    " FROM compactions WHERE session_id = ? ORDER BY id DESC"
)
_APPROVALS = (
    "SELECT id, agent_id, task_id, tool, substr(question, 1, 20000), created_at, folder, cause, note,"
    " decided_at"
    " FROM approvals WHERE session_id = ? ORDER BY created_at, rowid"
)
_VIEWS = (
    "SELECT v.agent_id, v.version, v.created_at, v.compaction_id, v.tokens, coalesce((SELECT sum(o.tokens)"
    " FROM observations o"
    " WHERE o.agent_id = v.agent_id AND o.id IN (SELECT value FROM"
    " json_each(iif(json_valid(v.observations), v.observations, '[]')))), 0)"
    " FROM agents a JOIN views v ON v.agent_id = a.id WHERE a.session_id = ? ORDER BY v.agent_id, v.version"
)
_CALLS = (
    "SELECT id, agent_id, turn, purpose, status, started_at + latency_seconds, input_tokens, output_tokens,"
    " cache_read_tokens,"
    " cache_write_tokens, cost_usd, retries, price_status = 'estimated' OR usage_exact = 0 FROM model_calls"
    " WHERE session_id = ? ORDER BY id"
)
_UNTOLD = (
    "SELECT 1 FROM agents a WHERE a.session_id = ?1 AND a.turn > 0 AND a.copied_from IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM events e"
    " WHERE e.session_id = ?1 AND e.agent_id = a.id AND e.kind = 'model.replied') LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One version of an agent's context."""

    version: int
    created_at: float
    compaction_id: int | None
    tokens: int
    observed: int
    """Tokens of its observations."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call to a model."""

    id: int
    agent_id: str
    turn: int
    purpose: str
    status: str
    ended_at: float
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    retries: int
    is_estimated: bool
    """Its price, or its tokens."""

    @property
    def is_reply(self) -> bool:
        """It brought an agent's turn."""
        return self.status == "done" and self.purpose in ("turn", "planner")


@dataclass(slots=True)
class SessionRows:
    """All that both ways of replaying need. Texts are as stored."""

    session: SessionFacts
    tasks: tuple[TaskFacts, ...]
    agents: tuple[AgentFacts, ...]
    budgets: tuple[BudgetFacts, ...]
    compactions: tuple[CompactionFacts, ...]
    """The newest first."""
    approvals: tuple[tuple[ApprovalFacts, float | None], ...]
    """Each with the time of its decision."""
    calls: list[CallRow]
    views: dict[str, list[ViewRow]] = field(default_factory=dict)
    """By agent, the oldest first."""


def load(connection: Connection, session_id: str, cancelled: Cancelled) -> SessionRows | None:
    """The rows of a session as they stand; None where there is no such session."""
    reading = SessionFold(session_id).read(connection, 0.0)
    if reading is None:
        return None
    found = SessionRows(
        session=reading.session,
        tasks=reading.tasks,
        agents=reading.agents,
        budgets=reading.budgets,
        compactions=tuple(
            compaction_facts(row, reading.session.origin)
            for row in connection.execute(_COMPACTIONS, (session_id,))
        ),
        approvals=tuple(
            (ApprovalFacts(*row[:9]), row[9]) for row in connection.execute(_APPROVALS, (session_id,))
        ),
        calls=[CallRow(*row) for row in each(connection.execute(_CALLS, (session_id,)), cancelled)],
    )
    for agent_id, *row in each(connection.execute(_VIEWS, (session_id,)), cancelled):
        found.views.setdefault(agent_id, []).append(ViewRow(*row))
    return found


def tells_its_turns(connection: Connection, session_id: str) -> bool:
    """Whether the session's events tell each reply: those of a host of ours do, those of an imported session
    do not."""
    return connection.execute(_UNTOLD, (session_id,)).fetchone() is None


def each(rows: Iterable[Any], cancelled: Cancelled) -> Iterator[Any]:
    """The rows, as long as somebody waits for them.

    Raises:
        InterruptedError: nobody does any more.
    """
    for number, row in enumerate(rows):
        if number % _STEP == 0 and cancelled():
            raise InterruptedError("the replay was left")
        yield row
