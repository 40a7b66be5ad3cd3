"""What the dashboard reads of one session: short queries over a viewer's connection, and the rows they give.

Nothing here writes, and no query reads more than a screen can use. Texts are as stored: hostile until sanitised.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.driver import Connection

LIVE_TEXT_CHARS = 4000
"""How much of a streaming reply a screen is given: its end."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """One session as its row says. Whether a host drives it is the lease's to tell."""

    id: str
    goal: str
    title: str | None
    workspace: str
    model: str
    origin: str
    status: str
    status_reason: str | None
    created_at: float
    last_active: float
    ended_at: float | None
    hosted_seconds: float
    planner_agent_id: str | None
    current_plan_id: str | None
    event_seq: int
    host_pid: int | None
    host_name: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    unpriced_calls: int
    model_calls: int
    retries: int
    errors: int

    @property
    def total_tokens(self) -> int:
        """Prompt and output, cache reads included: what budgets count."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task of the plan."""

    id: str
    plan_id: str
    name: str
    position: int
    title: str
    role: str
    model: str | None
    status: str
    status_reason: str | None
    attempt: int
    assigned_agent: str | None
    result: str | None
    error: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What an agent does at this moment."""

    activity: str
    """`working`, `waiting`, `slot`, `retrying`, `rate_limited`, `tool` or `idle`."""
    detail: str
    text: str
    """The end of the reply that streams in, at most `LIVE_TEXT_CHARS`."""
    since: float
    until: float | None
    updated_at: float


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """One agent with its running totals."""

    id: str
    parent_agent_id: str | None
    task_id: str | None
    name: str
    role: str
    model: str
    attempt: int
    goal: str
    status: str
    status_reason: str | None
    turn: int
    view_version: int
    last_seq: int
    message_tokens: int
    context_limit: int
    context_tokens: int
    composition: tuple[tuple[str, int], ...]
    """Tokens of the context by kind, as the host counted them."""
    created_at: float
    started_at: float | None
    ended_at: float | None
    last_active: float
    active_seconds: float
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    unpriced_calls: int
    model_calls: int
    retries: int
    errors: int
    compactions: int
    live: LiveFacts | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and output, cache reads included."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class EventFacts:
    """One event of the session's log. `data` is JSON text."""

    seq: int
    at: float
    kind: str
    agent_id: str | None
    task_id: str | None
    data: str


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """One pass over an agent's context."""

    id: int
    agent_id: str
    trigger: str
    status: str
    instructions: str | None
    reason: str | None
    high_water: int | None
    messages_removed: int
    tokens_before: int | None
    tokens_after: int | None
    view_before: int | None
    view_after: int | None
    model: str | None
    cost_usd: float | None
    stall_seconds: float
    cache_tokens_invalidated: int
    requested_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class ApprovalFacts:
    """A question that waits for a person."""

    id: str
    agent_id: str
    task_id: str | None
    tool: str
    question: str
    created_at: float


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """One command of the control queue, and what became of it."""

    id: int
    kind: str
    agent_id: str | None
    task_id: str | None
    status: str
    result: str | None
    requested_by: str
    created_at: float
    applied_at: float | None


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """A limit on the session, or on one task's subtree."""

    task_id: str | None
    kind: str
    amount: float
    reached_at: float | None


@dataclass(frozen=True, slots=True)
class SpendFacts:
    """One recent model call, as far as rates need it."""

    agent_id: str
    ended_at: float
    cost_usd: float | None
    tokens: int
    output_tokens: int


def newest_session(connection: Connection) -> str | None:
    """The id of the session that was active last, or None where there is none."""
    row = connection.execute("SELECT id FROM sessions ORDER BY last_active DESC, rowid DESC LIMIT 1").fetchone()
    return str(row[0]) if row else None


def session(connection: Connection, session_id: str) -> SessionFacts | None:
    """The session, or None where it was deleted or never was."""
    row = connection.execute(
        "SELECT id, goal, title, workspace, model, origin, status, status_reason, created_at, last_active, ended_at,"
        " hosted_seconds, planner_agent_id, current_plan_id, event_seq, host_pid, host_name, input_tokens, output_tokens,"
        " cache_read_tokens, cache_write_tokens, cost_usd, unpriced_calls, model_calls, retries, errors"
        " FROM sessions WHERE id = ?",
        (session_id,),
    ).fetchone()
    return SessionFacts(*row) if row else None


def tasks(connection: Connection, session_id: str) -> tuple[TaskFacts, ...]:
    """Every task, in the planner's order. Results and errors are cut to what a line can show."""
    needs: dict[str, list[str]] = {}
    for task_id, depends_on in connection.execute(
        "SELECT d.task_id, d.depends_on FROM task_dependencies d JOIN tasks t ON t.id = d.task_id"
        " WHERE t.session_id = ? ORDER BY d.rowid",
        (session_id,),
    ):
        needs.setdefault(task_id, []).append(depends_on)
    rows = connection.execute(
        "SELECT id, parent_plan_id, name, position, title, role, model, status, status_reason, attempt, assigned_agent,"
        " substr(result, 1, 2000), substr(error, 1, 2000), created_at, started_at, ended_at"
        " FROM tasks WHERE session_id = ? ORDER BY position, rowid",
        (session_id,),
    )
    return tuple(TaskFacts(*(*row, tuple(needs.get(row[0], ())))) for row in rows)


def agents(connection: Connection, session_id: str) -> tuple[AgentFacts, ...]:
    """Every agent, oldest first, with what it does now."""
    rows = connection.execute(
        "SELECT a.id, a.parent_agent_id, a.task_id, a.name, a.role, a.model, a.attempt, substr(a.current_goal, 1, 4000),"
        " a.status, a.status_reason, a.turn, a.view_version, a.last_seq, a.message_tokens, a.context_limit,"
        " a.context_tokens, a.composition, a.created_at, a.started_at, a.ended_at, a.last_active, a.active_seconds,"
        " a.input_tokens, a.output_tokens, a.cache_read_tokens, a.cache_write_tokens, a.cost_usd, a.unpriced_calls,"
        " a.model_calls, a.retries, a.errors, a.compactions,"
        " l.activity, l.detail, substr(l.text, -4000), l.since, l.until, l.updated_at"
        " FROM agents a LEFT JOIN live l ON l.agent_id = a.id WHERE a.session_id = ? ORDER BY a.rowid",
        (session_id,),
    )
    return tuple(
        AgentFacts(
            *(*row[:16], composition_of(row[16]), *row[17:32], LiveFacts(*row[32:38]) if row[32] is not None else None)
        )
        for row in rows
    )


def composition_of(text: str) -> tuple[tuple[str, int], ...]:
    """The tokens of a context by kind, in the order stored; figures that are none are left out."""
    try:
        value = json.loads(text)
    except ValueError:
        return ()
    if not isinstance(value, dict):
        return ()
    return tuple((str(kind), int(tokens)) for kind, tokens in value.items() if isinstance(tokens, (int, float)))


def newest_events(connection: Connection, session_id: str, limit: int) -> list[EventFacts]:
    """The last `limit` events, oldest first."""
    rows = connection.execute(
        "SELECT seq, at, kind, agent_id, task_id, substr(data, 1, 4000) FROM events WHERE session_id = ?"
        " ORDER BY seq DESC LIMIT ?",
        (session_id, limit),
    ).fetchall()
    return [EventFacts(*row) for row in reversed(rows)]


def events_after(connection: Connection, session_id: str, seq: int, limit: int) -> list[EventFacts]:
    """At most `limit` events that followed `seq`, oldest first."""
    rows = connection.execute(
        "SELECT seq, at, kind, agent_id, task_id, substr(data, 1, 4000) FROM events WHERE session_id = ? AND seq > ?"
        " ORDER BY seq LIMIT ?",
        (session_id, seq, limit),
    )
    return [EventFacts(*row) for row in rows]


def compactions(connection: Connection, session_id: str, limit: int = 200) -> tuple[CompactionFacts, ...]:
    """The newest passes, newest first."""
    rows = connection.execute(
        "SELECT id, agent_id, trigger, status, instructions, reason, high_water, messages_removed, tokens_before,"
        " tokens_after, view_before, view_after, model, cost_usd, stall_seconds, cache_tokens_invalidated, requested_at,"
        " ended_at FROM compactions WHERE session_id = ? ORDER BY id DESC LIMIT ?",
        (session_id, limit),
    )
    return tuple(CompactionFacts(*row) for row in rows)


def waiting_approvals(connection: Connection, session_id: str) -> tuple[ApprovalFacts, ...]:
    """The questions that nobody has answered, oldest first."""
    rows = connection.execute(
        "SELECT id, agent_id, task_id, tool, substr(question, 1, 20000), created_at FROM approvals"
        " WHERE session_id = ? AND status = 'waiting' ORDER BY created_at, rowid",
        (session_id,),
    )
    return tuple(ApprovalFacts(*row) for row in rows)


def recent_commands(connection: Connection, session_id: str, limit: int = 30) -> tuple[CommandFacts, ...]:
    """The newest commands, newest first. Reads back from the end of the queue, which holds every session's."""
    rows = connection.execute(
        "SELECT id, kind, agent_id, task_id, status, result, requested_by, created_at, applied_at FROM"
        " (SELECT * FROM commands ORDER BY id DESC LIMIT 300) WHERE session_id = ? ORDER BY id DESC LIMIT ?",
        (session_id, limit),
    )
    return tuple(CommandFacts(*row) for row in rows)


def budgets(connection: Connection, session_id: str) -> tuple[BudgetFacts, ...]:
    """The limits set, the session's own first."""
    rows = connection.execute(
        "SELECT task_id, kind, amount, reached_at FROM budgets WHERE session_id = ? ORDER BY task_id IS NOT NULL, kind",
        (session_id,),
    )
    return tuple(BudgetFacts(*row) for row in rows)


def recent_spend(connection: Connection, session_id: str, since: float, limit: int = 600) -> tuple[SpendFacts, ...]:
    """The newest model calls that ended after `since`."""
    rows: list[Any] = connection.execute(
        "SELECT agent_id, started_at + latency_seconds AS ended, cost_usd,"
        " input_tokens + output_tokens + cache_read_tokens + cache_write_tokens, output_tokens FROM model_calls"
        " WHERE session_id = ? ORDER BY id DESC LIMIT ?",
        (session_id, limit),
    ).fetchall()
    return tuple(SpendFacts(*row) for row in rows if row[1] >= since)
