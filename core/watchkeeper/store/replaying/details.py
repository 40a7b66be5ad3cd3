"""What is read of the one agent looked at: of everything only what was there by then."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from watchkeeper.store import dashboard_agent
from watchkeeper.store.dashboard import EventFacts
from watchkeeper.store.dashboard_agent import (
    CallFacts,
    FactFacts,
    InboxFacts,
    StoredMessage,
    ToolCallFacts,
    ViewFacts,
)
from watchkeeper.store.driver import Connection
from watchkeeper.store.library.moment import CallMoment
from watchkeeper.store.replaying.places import OVER
from watchkeeper.store.replaying.timeline import Timeline

MOST_CALLS = 300
MOST_TOOL_CALLS = 100
MOST_VIEWS = 100

_EVENTS = (
    "SELECT seq, at, kind, agent_id, task_id, substr(data, 1, 4000) FROM events WHERE session_id = ? AND seq"
    " BETWEEN ? AND ?"
    " ORDER BY seq"
)
_TOOL_CALLS = (
    "SELECT id, tool_use_id, name, status, is_error, started_at, ended_at, turn FROM tool_calls WHERE"
    " agent_id = ? AND turn <= ?"
    " ORDER BY turn DESC, position DESC LIMIT ?"
)
_CALLS = (
    "SELECT id, turn, purpose, model, status, stop_reason, input_tokens, output_tokens, cache_read_tokens,"
    " cache_write_tokens,"
    " usage_exact, cost_usd, price_status, started_at, latency_seconds, first_token_seconds, waited_seconds,"
    " retries,"
    " substr(error, 1, 2000) FROM model_calls WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id DESC"
)
_FACTS = (
    "SELECT f.id, f.agent_id, f.kind, substr(f.text, 1, 2000), substr(f.sources, 1, 500), f.pinned,"
    " f.confidence, f.created_at"
    " FROM facts f LEFT JOIN facts s ON s.id = f.superseded_by WHERE f.session_id = ? AND (f.agent_id = ? OR"
    " f.pinned = 1)"
    " AND f.created_at <= ? AND (s.id IS NULL OR s.created_at > ?) ORDER BY f.pinned DESC, f.id DESC LIMIT"
    " 300"
)
_VIEWS = (
    "SELECT version, parent, verbatim_from, reason, tokens, created_at FROM views WHERE agent_id = ?"
    " AND version IN (SELECT value FROM json_each(?)) ORDER BY version DESC"
)
_INBOX = (
    "SELECT id, kind, substr(payload, 1, 4000), created_at FROM inbox WHERE session_id = ? AND agent_id = ?"
    " AND created_at <= ?"
    " AND (delivered_seq IS NULL OR delivered_seq > ?) ORDER BY id LIMIT 50"
)


def messages(connection: Connection, agent_id: str, last: int, limit: int) -> tuple[StoredMessage, ...]:
    """The last `limit` messages through `last`, oldest first."""
    return tuple(dashboard_agent.messages_between(connection, agent_id, max(1, last - limit + 1), last))


def events(
    connection: Connection, session_id: str, first: int, last: int, seqs: array[int]
) -> tuple[EventFacts, ...]:
    """The events of those numbers, with their positions for numbers."""
    rows = connection.execute(_EVENTS, (session_id, first, last))
    return tuple(EventFacts(bisect_left(seqs, row[0]) + 1, *row[1:]) for row in rows)


def tool_calls(
    connection: Connection,
    agent_id: str,
    turn: int,
    told: Mapping[int, Timeline[CallMoment]],
    position: int,
    *,
    is_open: bool,
) -> Iterator[ToolCallFacts]:
    """The newest calls as they stood, newest first. `is_open`: the last turn's results had not been given to
    the agent."""
    for call_id, use_id, name, status, is_error, started_at, ended_at, its_turn in connection.execute(
        _TOOL_CALLS, (agent_id, turn, MOST_TOOL_CALLS)
    ):
        known = told[call_id].at(position) if call_id in told else None
        if its_turn < turn or not is_open:
            yield ToolCallFacts(use_id, name, status, bool(is_error), started_at, ended_at)
            continue
        then = (
            known.status
            if known is not None
            else "pending"
            if call_id in told or status not in OVER
            else status
        )
        if then in OVER:
            yield ToolCallFacts(use_id, name, then, bool(is_error), started_at, ended_at)
        else:
            yield ToolCallFacts(
                use_id, name, then, False, known.started_at if known is not None else None, None
            )


def calls(connection: Connection, ids: Sequence[int]) -> tuple[CallFacts, ...]:
    """The calls to models of those ids, newest first."""
    found = connection.execute(_CALLS, (json.dumps(ids),))
    return tuple(CallFacts(*[*row[:10], bool(row[10]), *row[11:]]) for row in found)


def facts(connection: Connection, session_id: str, agent_id: str, at: float) -> tuple[FactFacts, ...]:
    """What the agent remembered, and what the session has pinned; what was superseded only later counts."""
    found = connection.execute(_FACTS, (session_id, agent_id, at, at))
    return tuple(FactFacts(*[*row[:5], bool(row[5]), *row[6:]]) for row in found)


def view(connection: Connection, agent_id: str, version: int) -> ViewFacts | None:
    """One version of the agent's context."""
    return dashboard_agent.view(connection, agent_id, version)


def views(connection: Connection, agent_id: str, versions: Sequence[int]) -> tuple[ViewFacts, ...]:
    """Those versions without their observations, newest first."""
    return tuple(
        ViewFacts(*row) for row in connection.execute(_VIEWS, (agent_id, json.dumps(versions[:MOST_VIEWS])))
    )


def system(connection: Connection, agent_id: str) -> str:
    """The agent's system prompt."""
    return dashboard_agent.system_prompt(connection, agent_id)


def inbox(
    connection: Connection, session_id: str, agent_id: str, at: float, last: int
) -> tuple[InboxFacts, ...]:
    """What had been sent to the agent, and was not read yet."""
    return tuple(InboxFacts(*row) for row in connection.execute(_INBOX, (session_id, agent_id, at, last)))
