"""The dashboard's reading of one session, renewed at the price of what changed since the reading before.

Every renewal compares every row, inside SQLite: what it gives is what a first reading would give, whoever
wrote.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from watchkeeper.store.dashboard import (
    SPENDING,
    AgentFacts,
    ApprovalFacts,
    BudgetFacts,
    CommandFacts,
    CompactionFacts,
    EventFacts,
    LiveFacts,
    Rates,
    SessionFacts,
    TaskFacts,
    compaction_facts,
    composition_of,
)
from watchkeeper.store.driver import Connection
from watchkeeper.store.folding import Folded, Raw, lines
from watchkeeper.store.transcripts import MISSING_LOGS

EVENTS_KEPT = 2000
"""The newest events of a session that a reading holds."""
SPEND_SECONDS = 60.0
EVENT_SECONDS = 5.0
RATES_SECONDS = 1.0
"""How often rates are reckoned anew."""
FIRST_CALLS = 20_000
FIRST_EVENTS = 100_000
"""How far back a first reading looks for what is within those seconds."""

_SESSION_COLUMNS = (
    "id", "goal", "title", "workspace", "model", "origin", "status", "status_reason", "created_at", "last_active", "ended_at",
    "hosted_seconds", "planner_agent_id", "current_plan_id", "event_seq", "host_pid", "host_name", "roles", *SPENDING,
)  # fmt: skip
_SESSION = (
    f"SELECT {', '.join(_SESSION_COLUMNS)}, {MISSING_LOGS},"  # noqa: S608 - a constant
    " EXISTS (SELECT 1 FROM model_calls WHERE session_id = sessions.id AND cost_usd IS NOT NULL"
    " AND (price_status = 'estimated' OR usage_exact = 0)) FROM sessions WHERE id = ?"
)

_TASKS = lines(
    "rowid, id, parent_plan_id, name, position, title, role, model, status, status_reason, attempt,"
    " assigned_agent,"
    " substr(result, 1, 2000), substr(error, 1, 2000), created_at, started_at, ended_at, json((SELECT"
    " json_group_array(depends_on) FROM (SELECT depends_on FROM task_dependencies WHERE task_id = tasks.id"
    " ORDER BY rowid)))",
    "tasks WHERE session_id = ? ORDER BY position, rowid",
)

_AGENT_COLUMNS = (
    "id", "parent_agent_id", "task_id", "name", "role", "model", "attempt", "status", "status_reason", "turn", "view_version",
    "last_seq", "message_tokens", "context_limit", "context_tokens", "composition", "created_at", "started_at", "ended_at",
    "last_active", "active_seconds", "compactions", "parked_until", *SPENDING,
)  # fmt: skip
_LIVE_COLUMNS = ("activity", "detail", "since", "until", "updated_at")
_AGENT_ESTIMATED = (
    "EXISTS (SELECT 1 FROM model_calls WHERE session_id = a.session_id AND agent_id = a.id AND cost_usd IS"
    " NOT NULL"
    " AND (price_status = 'estimated' OR usage_exact = 0))"
)
_AGENTS = lines(
    ", ".join(
        [
            "a.rowid",
            *(f"a.{each}" for each in _AGENT_COLUMNS),
            *(f"l.{each}" for each in _LIVE_COLUMNS),
            "substr(l.text, -4000), substr(a.current_goal, 1, 4000)",
            _AGENT_ESTIMATED,
        ]
    ),
    "agents a LEFT JOIN live l ON l.agent_id = a.id WHERE a.session_id = ? ORDER BY a.rowid",
)

_COMPACTIONS = lines(
    "id, agent_id, trigger, status, instructions, reason, high_water, messages_removed, tokens_before,"
    " tokens_after,"
    " view_before, view_after, model, cost_usd, stall_seconds, cache_tokens_invalidated, requested_at,"
    " ended_at",
    "compactions WHERE session_id = ? ORDER BY id DESC LIMIT 200",
)

_APPROVALS = lines(
    "id, agent_id, task_id, tool, substr(question, 1, 20000), created_at, folder, cause, note",
    "approvals WHERE session_id = ? AND status = 'waiting' ORDER BY created_at, rowid",
)

_COMMANDS = lines(
    "id, kind, agent_id, task_id, status, result, requested_by, created_at, applied_at",
    "commands WHERE session_id = ? ORDER BY id DESC LIMIT 100",
)

_BUDGETS = lines(
    "id, task_id, kind, amount, reached_at", "budgets WHERE session_id = ? ORDER BY task_id IS NOT NULL, kind"
)

_EVENTS = (
    "SELECT json_group_array(json_array(seq, at, kind, agent_id, task_id, substr(data, 1, 4000))) FROM"
    " (SELECT * FROM events WHERE session_id = ? AND seq > ? ORDER BY seq DESC LIMIT ?)"
)

_FIRST_CALL = "SELECT min(id), count(*) FROM (SELECT id FROM model_calls WHERE session_id = ? AND id > ? ORDER BY id DESC LIMIT ?)"
_LAST_CALL = "SELECT coalesce(max(id), 0) FROM model_calls WHERE session_id = ?"
_SPEND = (
    "SELECT json_group_array(json_array(agent_id, cost, tokens, first)) FROM (SELECT agent_id,"
    " total(cost_usd) AS cost,"
    " sum(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens) AS tokens, min(id) AS first"
    " FROM model_calls"
    " WHERE session_id = ? AND id > ? AND started_at + latency_seconds >= ? GROUP BY agent_id ORDER BY"
    " agent_id)"
)
_FIRST_RECENT_EVENT = "SELECT min(seq) FROM events WHERE session_id = ? AND seq > ? AND at >= ?"


@dataclass(frozen=True, slots=True)
class SessionReading:
    """One consistent reading. Parts that did not change are the objects of the reading before."""

    session: SessionFacts
    tasks: tuple[TaskFacts, ...]
    agents: tuple[AgentFacts, ...]
    compactions: tuple[CompactionFacts, ...]
    approvals: tuple[ApprovalFacts, ...]
    commands: tuple[CommandFacts, ...]
    budgets: tuple[BudgetFacts, ...]
    rates: Rates
    events: tuple[EventFacts, ...]
    """Those that are new in this reading, oldest first."""
    events_anew: bool
    """`events` stand for all that was read before too: this is the first reading, or more came than are
    kept."""


class SessionFold:
    """All that the screens show of one session, but for the one agent looked at."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._session: tuple[object, ...] = ()
        self._facts: SessionFacts | None = None
        self._tasks = Folded(_TASKS, _task)
        self._agents = Folded(_AGENTS, _agent)
        self._compactions = Folded(
            _COMPACTIONS,
            lambda raw: compaction_facts(raw, self._facts.origin if self._facts is not None else ""),
        )
        self._approvals = Folded(_APPROVALS, lambda raw: ApprovalFacts(*raw))
        self._commands = Folded(_COMMANDS, lambda raw: CommandFacts(*raw))
        self._budgets = Folded(_BUDGETS, lambda raw: BudgetFacts(*raw[1:]))
        self._last_seq = 0
        self._pace = _Pace(session_id)

    def read(self, connection: Connection, now: float) -> SessionReading | None:
        """The session as it stands; None where it was deleted or never was. To be called inside one
        transaction."""
        row = connection.execute(_SESSION, (self.session_id,)).fetchone()
        if row is None:
            return None
        if row != self._session or self._facts is None:
            values = dict(zip(_SESSION_COLUMNS, row[:-2], strict=True))
            self._session, self._facts = (
                row,
                SessionFacts(**values, missing_logs=row[-2], cost_estimated=bool(row[-1])),
            )
        facts, only = self._facts, (self.session_id,)
        events, anew = self._tail(connection, facts.event_seq)
        return SessionReading(
            session=facts,
            tasks=self._tasks.read(connection, only),
            agents=self._agents.read(connection, only),
            compactions=self._compactions.read(connection, only),
            approvals=self._approvals.read(connection, only),
            commands=self._commands.read(connection, only),
            budgets=self._budgets.read(connection, only),
            rates=self._pace.read(connection, now, facts),
            events=events,
            events_anew=anew,
        )

    def _tail(self, connection: Connection, newest: int) -> tuple[tuple[EventFacts, ...], bool]:
        anew = not self._last_seq or newest < self._last_seq or newest - self._last_seq >= EVENTS_KEPT
        if newest == self._last_seq:
            return (), False
        text = connection.execute(
            _EVENTS, (self.session_id, 0 if anew else self._last_seq, EVENTS_KEPT)
        ).fetchone()[0]
        events = tuple(EventFacts(*raw) for raw in reversed(json.loads(text)))
        if events:
            self._last_seq = events[-1].seq
        return events, anew


class _Pace:
    """What runs by the minute and the second; reckoned once in `RATES_SECONDS`."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._reckoned_at: float | None = None
        self._rates = Rates()
        self._calls_below = 0
        """No call up to this id ended within the minute, and none will have."""
        self._events_below = 0

    def read(self, connection: Connection, now: float, facts: SessionFacts) -> Rates:
        if self._reckoned_at is not None and 0 <= now - self._reckoned_at < RATES_SECONDS:
            return self._rates
        self._reckoned_at = now
        spend = self._spend(connection, now) if facts.model_calls else []
        rates = Rates(
            cost_per_minute=sum(cost for _, cost, _, _ in spend),
            tokens_per_minute=float(sum(tokens for _, _, tokens, _ in spend)),
            events_per_second=self._events(connection, now, facts.event_seq) / EVENT_SECONDS,
            agent_cost=tuple((agent_id, cost) for agent_id, cost, _, _ in spend if cost),
        )
        if rates != self._rates:
            self._rates = rates
        return self._rates

    def _spend(self, connection: Connection, now: float) -> list[Raw]:
        if not self._calls_below:
            first, count = connection.execute(_FIRST_CALL, (self._session_id, 0, FIRST_CALLS)).fetchone()
            self._calls_below = first - 1 if count == FIRST_CALLS else 0
        text = connection.execute(
            _SPEND, (self._session_id, self._calls_below, now - SPEND_SECONDS)
        ).fetchone()[0]
        found: list[Raw] = json.loads(text)
        if found:
            self._calls_below = max(self._calls_below, min(first for *_, first in found) - 1)
        else:
            self._calls_below = connection.execute(_LAST_CALL, (self._session_id,)).fetchone()[0]
        return found

    def _events(self, connection: Connection, now: float, newest: int) -> int:
        after = max(self._events_below, newest - FIRST_EVENTS)
        first = connection.execute(
            _FIRST_RECENT_EVENT, (self._session_id, after, now - EVENT_SECONDS)
        ).fetchone()[0]
        self._events_below = (first or newest + 1) - 1
        return newest - self._events_below


def _task(raw: Raw) -> TaskFacts:
    return TaskFacts(*[*raw[1:17], tuple(raw[17])])


def _agent(raw: Raw) -> AgentFacts:
    _, *columns, text, goal, estimated = raw
    values = dict(zip((*_AGENT_COLUMNS, *_LIVE_COLUMNS), columns, strict=True))
    live = {each: values.pop(each) for each in _LIVE_COLUMNS}
    return AgentFacts(
        **values | {"composition": composition_of(values["composition"])},
        goal=goal,
        live=LiveFacts(**live, text=text) if live["activity"] is not None else None,
        cost_estimated=bool(estimated),
    )
