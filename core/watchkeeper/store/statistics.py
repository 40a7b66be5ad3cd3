"""What happened when, and what it cost, for people to look at: the timeline of one session, the usage of all.

*The timeline* has spans and marks of each agent on one axis of time. Nothing is decided by these times; the order of what
happened is that of the events. Texts are hostile until sanitised.

*Usage* is counted by day, week, month, model, project or program, each model call once: the calls that a fork copied
belong to the session that it was forked from. Periods are those of local time; a week starts on Monday. The store keeps
one cost for a call; list prices divide it among the classes of its tokens.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from watchkeeper.records.messages import CostClasses, Periods, Usage, cost_classes, rates_on
from watchkeeper.store.agent_snapshot import CALL_COLUMNS, CallFacts, model_call
from watchkeeper.store.driver import IN_LIST, Connection, Reads, list_of
from watchkeeper.store.imports import partial_sessions
from watchkeeper.store.names import AGENT_NAME, with_role


class Activity(StrEnum):
    """What an agent does during a span. Where spans overlap, the earlier member is what a person wants to see."""

    QUESTION = "question"
    PARKED = "limit"
    PAUSED = "paused"
    RETRYING = "retrying"
    SLOT = "slot"
    TOOL = "tool"
    MODEL = "working"
    COMPACTION = "compacting"
    """In the background: it is shown beside what the agent does meanwhile."""


class MarkKind(StrEnum):
    """What happened at one moment."""

    FAILED = "failed"
    KILLED = "killed"
    RESUMED = "resumed"
    COMPACTED = "compacted"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Span:
    """One activity of one agent. Seconds since 1970."""

    agent_id: str
    activity: Activity
    begins: float
    ends: float | None
    """None: it goes on."""
    label: str = ""
    """The tool, the model or the reason."""
    event_seq: int | None = None
    """The event at which replay shows it."""
    message_seq: int | None = None
    """The message of the agent that it belongs to."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment, of an agent or of the whole session (no `agent_id`)."""

    kind: MarkKind
    at: float
    agent_id: str | None = None
    label: str = ""
    event_seq: int | None = None


@dataclass(frozen=True, slots=True)
class TimelineAgent:
    """A row. `depth`: how many agents are above it."""

    id: str
    name: str
    role: str
    """Empty for one without a task."""
    title: str
    """The title of its task."""
    status: str
    begins: float
    ends: float | None
    depth: int

    @property
    def label(self) -> str:
        """The name to show. Sanitised."""
        return with_role(self.name, self.role)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows in the order of the agents' creation, each below its parent; spans by agent, those that have ended first."""

    agents: tuple[TimelineAgent, ...] = ()
    spans: dict[str, tuple[Span, ...]] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    begins: float = 0.0
    ends: float = 0.0
    """The last moment of which something is known."""


class TimelineReader:
    """Reads a session's timeline again and again. A reading costs what was added, and the spans of agents that changed."""

    def __init__(self, connection: Connection, session_id: str) -> None:
        self._connection = connection
        self._session = session_id
        self._last = dict.fromkeys(_QUERIES, 0)
        self._open: dict[str, dict[int, Span]] = {name: {} for name in _QUERIES}
        """Calls that go on, by their number."""
        self._ended: dict[str, list[Span]] = {}
        self._spans: dict[str, tuple[Span, ...]] = {}
        self._changed: set[str] = set()
        self._endless: set[str] = set()
        """Agents with calls that are over and whose end is not known: a kill that is read later tells it."""
        self._event_seq = 0
        self._at = 0.0
        """When the last event happened."""
        self._rests = False
        """The session was paused or has ended: its next host follows no kill."""
        self._kills: list[float] = []
        self._marks: list[Mark] = []
        self._states: dict[str, Span] = {}
        """Agents that are parked or paused."""

    def read(self, *, live: bool = False) -> Timeline:
        """Everything up to now. `live`: a background process runs, so what it said last of its agents holds."""
        self._read_events()
        passing: list[Span] = [*self._states.values(), *self._questions(), *(self._now() if live else ())]
        for name in _QUERIES:
            self._read_calls(name)
            passing += [span for span in self._open[name].values() if span.begins != _NOT_BEGUN]
        for agent_id in self._changed:
            closed = map(self._closed, self._ended[agent_id])
            self._spans[agent_id] = tuple(sorted(closed, key=lambda span: span.begins))
        self._changed.clear()
        spans = dict(self._spans)
        for span in passing:
            spans[span.agent_id] = (*spans.get(span.agent_id, ()), self._until_kill(span))
        agents = self._agents()
        ends = [self._at, *(each.ends or each.begins for each in agents)]
        ends += [
            max(span.ends or span.begins for span in found[-_OVERLAPPING:])
            for found in spans.values()
            if found
        ]
        begins = min((each.begins for each in agents), default=self._at)
        return Timeline(agents, spans, tuple(self._marks), begins, max(ends))

    def _agents(self) -> tuple[TimelineAgent, ...]:
        rows = self._connection.execute(
            f"SELECT a.id, {AGENT_NAME}, CASE WHEN a.task_id IS NULL THEN '' ELSE a.role END, coalesce(t.title, ''),"
            " a.status, coalesce(a.started_at, a.created_at), a.ended_at,"
            " a.parent_agent_id FROM agents a LEFT JOIN tasks t ON t.id = a.task_id WHERE a.session_id = ?"
            " ORDER BY a.ordinal",
            (self._session,),
        ).fetchall()
        known = {row[0] for row in rows}
        below: dict[str | None, list[tuple[str, TimelineAgent]]] = {}
        for agent_id, name, role, title, status, begins, ends, parent in rows:
            above = parent if parent in known and parent != agent_id else None
            agent = TimelineAgent(agent_id, name, role, title, status, begins, ends, 0)
            below.setdefault(above, []).append((agent_id, agent))
        ordered: list[TimelineAgent] = []
        left = [(each, 0) for each in reversed(below.pop(None, []))]
        while left:
            (agent_id, agent), depth = left.pop()
            ordered.append(replace(agent, depth=depth))
            left += [(each, depth + 1) for each in reversed(below.pop(agent_id, []))]
        ordered += [agent for agents in below.values() for _, agent in agents]  # a circle of callers
        return tuple(ordered)

    def _read_calls(self, name: str) -> None:
        first, later, again = _QUERIES[name]
        opened, last = self._open[name], self._last[name]
        rows = [row for number in list(opened) for row in self._connection.execute(again, (number,))]
        rows += self._connection.execute(later if last else first, (self._session, last))
        for number, agent_id, begins, ends, ended, label, event_seq, message_seq, waited in rows:
            self._last[name] = max(self._last[name], number)
            opened.pop(number, None)
            if begins is None:
                if not ended:
                    opened[number] = Span(agent_id, _ACTIVITIES[name], _NOT_BEGUN, None)
                continue
            span = Span(agent_id, _ACTIVITIES[name], begins, ends, label or "", event_seq, message_seq)
            if waited >= SHORTEST_WAIT:
                self._end(replace(span, activity=Activity.SLOT, begins=begins - waited, ends=begins))
            if ended:
                self._end(span)
            else:
                opened[number] = span

    def _end(self, span: Span) -> None:
        self._ended.setdefault(span.agent_id, []).append(span)
        self._changed.add(span.agent_id)
        if span.ends is None:
            self._endless.add(span.agent_id)

    def _closed(self, span: Span) -> Span:
        """A call that is over; one whose end is not known, and that no kill ended, took no time."""
        span = self._until_kill(span)
        return span if span.ends is not None else replace(span, ends=span.begins)

    def _until_kill(self, span: Span) -> Span:
        """A call whose end is not known ended with the process; a question, a limit or a pause outlasts it."""
        if span.ends is not None or span.activity in _OUTLASTING:
            return span
        later = bisect_left(self._kills, span.begins)
        return replace(span, ends=self._kills[later]) if later < len(self._kills) else span

    def _questions(self) -> Iterator[Span]:
        rows = self._connection.execute(
            "SELECT agent_id, created_at, decided_at, tool, commit_seq FROM approvals WHERE session_id = ?",
            (self._session,),
        )
        for agent_id, begins, ends, tool, event_seq in rows:
            yield Span(agent_id, Activity.QUESTION, begins, ends, tool, event_seq)

    def _now(self) -> Iterator[Span]:
        # The row of an agent that has ended stays.
        rows = self._connection.execute(
            "SELECT l.agent_id, l.since, l.activity, l.detail FROM live l JOIN agents a ON a.id = l.agent_id"
            " WHERE l.session_id = ? AND a.status = 'working'",
            (self._session,),
        )
        for agent_id, since, activity, detail in rows:
            if activity in _LIVE:
                yield Span(agent_id, _LIVE[activity], since, None, detail)

    def _read_events(self) -> None:
        rows = self._connection.execute(
            "SELECT seq, at, kind, agent_id, data FROM events WHERE session_id = ? AND seq > ? ORDER BY seq",
            (self._session, self._event_seq),
        )
        for seq, at, kind, agent_id, data in rows:
            self._event_seq = seq
            if kind == "host.started":
                if self._at and not self._rests:
                    self._kills.append(self._at)
                    self._changed |= self._endless
                    self._marks.append(
                        Mark(MarkKind.KILLED, self._at, None, "the background process stopped", seq - 1)
                    )
                if self._at:
                    self._marks.append(Mark(MarkKind.RESUMED, at, None, "", seq))
                self._rests = False
            elif kind in ("session.paused", "session.done", "session.failed", "session.cancelled"):
                self._rests = True
            elif kind.startswith("agent.") and agent_id:
                self._agent_changed(seq, at, kind.removeprefix("agent."), agent_id, data)
            elif kind in _FAILURES:
                self._marks.append(Mark(MarkKind.FAILED, at, agent_id, _reason(data), seq))
            elif kind == "compaction.applied":
                self._marks.append(Mark(MarkKind.COMPACTED, at, agent_id, "", seq))
            self._at = max(self._at, at)

    def _agent_changed(self, seq: int, at: float, state: str, agent_id: str, data: str) -> None:
        if (open_state := self._states.pop(agent_id, None)) is not None:
            self._end(replace(open_state, ends=at))
        if state in _RESTING:
            self._states[agent_id] = Span(agent_id, _RESTING[state], at, None, _reason(data), seq)
        elif state in ("failed", "interrupted"):
            self._marks.append(Mark(MarkKind.FAILED, at, agent_id, _reason(data), seq))
        elif state in ("done", "cancelled"):
            self._marks.append(Mark(MarkKind.ENDED, at, agent_id, state, seq))


SHORTEST_WAIT = 0.5
"""Seconds that a call waited for a slot, from which on it is shown."""

_NOT_BEGUN = float("inf")
_OVERLAPPING = 16
"""How many of an agent's last spans may end last: as many as it has tools at once."""
_RESTING = {"parked": Activity.PARKED, "paused": Activity.PAUSED}
_OUTLASTING = (Activity.QUESTION, Activity.PARKED, Activity.PAUSED)
_ACTIVITIES = {"model": Activity.MODEL, "tool": Activity.TOOL, "compaction": Activity.COMPACTION}
_LIVE = {
    "working": Activity.MODEL, "tool": Activity.TOOL, "slot": Activity.SLOT, "rate_limited": Activity.RETRYING,
    "retrying": Activity.RETRYING,
}  # fmt: skip
_FAILURES = ("model.error", "tool.error", "task.failed")


def _queries(columns: str, table: str, of_session: str, which: str = "") -> tuple[str, str, str]:
    """The first reading, the next ones, and one row again. All take the session and a number but the last."""
    read = f"SELECT {columns} FROM {table} c"
    return (
        f"{read} WHERE {of_session} AND c.id > ?{which} ORDER BY c.id",
        f"{read} WHERE c.session_id = ? AND c.id > ?{which} ORDER BY c.id",
        f"{read} WHERE c.id = ?",
    )


_QUERIES = {
    "model": _queries(
        "c.id, c.agent_id, c.started_at, c.started_at + c.latency_seconds, c.status <> 'running', c.model,"
        " c.commit_seq, NULL, c.waited_seconds",
        "model_calls",
        "c.session_id = ?",
        " AND c.purpose IN ('turn', 'planner')",
    ),
    "tool": _queries(
        "c.id, c.agent_id, c.started_at, c.ended_at, c.status NOT IN ('pending', 'running'), c.name, c.commit_seq,"
        " c.seq, 0",
        "tool_calls",
        "c.agent_id IN (SELECT id FROM agents WHERE session_id = ?)",
    ),
    "compaction": _queries(
        "c.id, c.agent_id, c.requested_at, c.ended_at, c.ended_at IS NOT NULL, c.trigger, c.commit_seq, NULL, 0",
        "compactions",
        "c.session_id = ?",
    ),
}


def _reason(data: str) -> str:
    try:
        found = json.loads(data)
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return ""
    return next((str(found[name]) for name in ("reason", "error", "preview") if found.get(name)), "")


def merged(spans: Iterable[Span], gap_seconds: float) -> list[Span]:
    """The spans in order of their beginning; those of one activity that are at most `gap_seconds` apart are one."""
    joined: dict[Activity, Span] = {}
    result: list[Span] = []
    for span in sorted(spans, key=lambda each: each.begins):
        last = joined.get(span.activity)
        if last is not None and (last.ends is None or span.begins - last.ends <= gap_seconds):
            ends = None if last.ends is None or span.ends is None else max(last.ends, span.ends)
            joined[span.activity] = replace(last, ends=ends)
            continue
        if last is not None:
            result.append(last)
        joined[span.activity] = span
    return sorted([*result, *joined.values()], key=lambda each: each.begins)


# --- Usage of all sessions ------------------------------------------------------------------------------

PERIODS = ("hour", "day", "week", "month")
GROUPS = (*PERIODS[1:], "model", "project", "program", "session")


@dataclass(slots=True)
class UsageRow:
    """The model calls of one group. Tokens as providers count them: `input_tokens` are those that no cache served."""

    key: str
    """`2026-11-23 14:00`, `2026-11-23` (of a week: its Monday), `2026-11`, a model, a folder, a program or a session's id. Hostile text."""
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    """US dollars; None if no call has a price."""
    cost_estimated: bool = False
    """Some of the cost rests on an estimated price or on estimated tokens."""
    unpriced_calls: int = 0
    is_partial: bool = False
    """Cost and tokens are lower bounds: logs are missing, or show calls that they do not count."""
    partial_calls: int = 0
    """Calls that ended before their usage was complete: it is what was reported until then."""
    cost_classes: CostClasses | None = None
    """The cost by class of tokens; None where `usage` had no prices, or no call has a cost."""
    sessions: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def spend(self, cost_usd: float, classes: CostClasses | None) -> None:
        """Add a cost."""
        self.cost_usd = (self.cost_usd or 0.0) + cost_usd
        if classes is not None:
            self.cost_classes = (self.cost_classes or CostClasses()).plus(classes)

    def add(self, other: UsageRow) -> None:
        """Count the calls of another row too."""
        for name in ("model_calls", "unpriced_calls", "partial_calls", *_TOKENS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.cost_usd is not None:
            self.spend(other.cost_usd, other.cost_classes)
        self.cost_estimated |= other.cost_estimated
        self.is_partial |= other.is_partial
        self.sessions |= other.sessions
        self.models |= other.models

    def as_json(self) -> dict[str, Any]:
        """As `wk usage --json` prints it."""
        tokens = {name.removesuffix("_tokens"): getattr(self, name) for name in _TOKENS}
        classes = None if self.cost_classes is None else self.cost_classes._asdict()
        return {
            "key": self.key,
            "sessions": len(self.sessions),
            "model_calls": self.model_calls,
            "tokens": tokens | {"total": self.total_tokens},
            "cost_usd": None if self.cost_usd is None else round(self.cost_usd, 10),
            **(
                {}
                if classes is None
                else {"cost_by_class": {name: round(usd, 10) for name, usd in classes.items()}}
            ),
            "cost_estimated": self.cost_estimated,
            "unpriced_calls": self.unpriced_calls,
            "partial": self.is_partial,
            "partial_calls": self.partial_calls,
            "models": sorted(self.models),
        }


_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_SLOT_SECONDS = 900
"""Calls are summed by quarters of an hour: every time zone differs from UTC by whole ones."""
_DAY_SECONDS = 86_400
_KEY_FORMATS = {"hour": "%Y-%m-%d %H:00", "month": "%Y-%m"}
_PROMPT = "c.input_tokens + c.cache_read_tokens + c.cache_write_tokens"
_CALLS = (
    # Whole numbers are divided: PostgreSQL rounds where SQLite cuts off.
    "SELECT CAST(c.started_at * 1000 AS INTEGER) / {slot_milliseconds} AS slot, c.model, s.workspace, s.origin, s.id,"
    " CASE WHEN c.cost_usd > 0 THEN 1 WHEN c.cost_usd = 0 THEN 0 END AS charged, {prompt} AS prompt, count(*),"
    " sum(c.input_tokens), sum(c.output_tokens), sum(c.cache_read_tokens), sum(c.cache_write_tokens), sum(c.cost_usd),"
    " max(CASE WHEN c.cost_usd IS NOT NULL AND (c.price_status = 'estimated' OR c.usage_exact = 0) THEN 1 ELSE 0 END),"
    " sum(CASE WHEN c.cost_usd IS NULL AND c.input_tokens + c.output_tokens + c.cache_read_tokens + c.cache_write_tokens"
    " > 0 THEN 1 ELSE 0 END),"
    " sum(CASE WHEN c.usage_exact = 0 AND c.input_tokens + c.output_tokens + c.cache_read_tokens + c.cache_write_tokens > 0"
    " AND (c.status <> 'done' OR (s.origin = 'claude-code' AND c.stop_reason IS NULL)) THEN 1 ELSE 0 END)"
    " FROM sessions s CROSS JOIN model_calls c ON c.session_id = s.id"
    " WHERE s.last_active >= ?1 - 86400 AND s.deleted_at IS NULL AND c.status <> 'running' AND c.started_at >= ?1"
    " AND c.started_at < ?2"
    " AND (s.origin <> 'fork' OR coalesce(c.commit_seq, 0) > coalesce(s.forked_at_seq, 0))"
    " GROUP BY s.id, slot, c.model, charged, prompt ORDER BY s.ordinal, min(c.id)"
)


def models_used(connection: Connection) -> list[str]:
    """Every model that was called: those whose prices `usage` needs."""
    return [row[0] for row in connection.execute("SELECT DISTINCT model FROM model_calls ORDER BY model")]


def usage(
    connection: Connection,
    by: str = "day",
    *,
    since: float = 0.0,
    until: float = 1e11,
    prices: Mapping[str, Periods] | None = None,
) -> tuple[list[UsageRow], UsageRow]:
    """The groups, and their sum. Periods come in order of time, other groups by cost, the most expensive first.

    `by` is one of `GROUPS`, or `hour`; `since` and `until` are seconds since 1970, and `until` is the first that does not count.
    `prices` are the list prices of the models, which divide the costs by class; without them, nothing is divided.
    It reads the calls of the sessions that were active a day before `since` or later.
    """
    key = _keys(by)
    rows: dict[str, UsageRow] = {}
    # Within a group of the query, all calls have the same rates: those of one day, for prompts of one size.
    seconds = _SLOT_SECONDS if by in PERIODS else _DAY_SECONDS
    partial = partial_sessions(connection)
    query = _CALLS.format(slot_milliseconds=seconds * 1000, prompt=_prompt_sizes(prices or {}))
    for (
        slot,
        model,
        workspace,
        origin,
        session_id,
        _,
        prompt,
        calls,
        *tokens,
        cost,
        estimated,
        unpriced,
        partial_calls,
    ) in connection.execute(query, (since, until)):
        name = key(slot, model, workspace, origin, session_id)
        if (row := rows.get(name)) is None:
            row = rows[name] = UsageRow(name)
        row.model_calls += calls
        row.input_tokens += tokens[0]
        row.output_tokens += tokens[1]
        row.cache_read_tokens += tokens[2]
        row.cache_write_tokens += tokens[3]
        row.unpriced_calls += unpriced
        row.partial_calls += partial_calls
        row.is_partial |= session_id in partial
        if cost is not None:
            classes = None
            if prices is not None:
                rates = rates_on(prices.get(model, ()), slot * seconds, prompt)
                classes = cost_classes(rates, Usage(*tokens), cost)
            row.spend(cost, classes)
            row.cost_estimated |= bool(estimated)
        row.sessions.add(session_id)
        row.models.add(model)
    total = UsageRow("total")
    for row in rows.values():
        total.add(row)
    if by in PERIODS:
        return [rows[name] for name in sorted(rows)], total
    return sorted(rows.values(), key=lambda row: (-(row.cost_usd or 0.0), -row.total_tokens, row.key)), total


def _prompt_sizes(prices: Mapping[str, Periods]) -> str:
    """In SQL: a size for each prompt that has the same rates as the prompt itself, whichever the model."""
    starts = {start for periods in prices.values() for _, tiers in periods for start, _ in tiers if start > 0}
    cases = " ".join(
        f"WHEN {_PROMPT} > {int(start)} THEN {int(start) + 1}" for start in sorted(starts, reverse=True)
    )
    return f"CASE {cases} ELSE 0 END" if cases else "0"


def _keys(by: str) -> Callable[[int, str, str, str, str], str]:
    """What the key of a group of calls is, from its slot of time, model, folder, program and session."""
    if by not in PERIODS:
        place = {"model": 1, "project": 2, "program": 3, "session": 4}[by]
        return lambda *call: str(call[place])
    known: dict[int, str] = {}

    def period(slot: int, *_: str) -> str:
        if (name := known.get(slot)) is None:
            day = datetime.fromtimestamp(slot * _SLOT_SECONDS)
            if by == "week":
                day -= timedelta(days=day.weekday())
            name = known[slot] = f"{day:{_KEY_FORMATS.get(by, '%Y-%m-%d')}}"
        return name

    return period


BURN_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Burn:
    """What one session used in the last hour."""

    session_id: str
    title: str
    """Hostile text."""
    model_calls: int
    tokens: int
    cost_usd: float | None
    """None: no call has a price. With `unpriced_calls`, a lower bound."""
    unpriced_calls: int

    def as_json(self) -> dict[str, Any]:
        return {
            "session": self.session_id,
            "title": self.title,
            "model_calls": self.model_calls,
            "tokens": self.tokens,
            "cost_usd": None if self.cost_usd is None else round(self.cost_usd, 10),
            "unpriced_calls": self.unpriced_calls,
        }


def burn(connection: Connection, now: float) -> list[Burn]:
    """What each session used in the hour before `now`, the most expensive first. Calls that a fork copied do not count."""
    rows = connection.execute(
        f"SELECT s.id, coalesce(s.title, s.goal), count(*), sum(c.{' + c.'.join(_TOKENS)}), sum(c.cost_usd),"
        f" sum(CASE WHEN c.cost_usd IS NULL AND c.{' + c.'.join(_TOKENS)} > 0 THEN 1 ELSE 0 END)"
        " FROM sessions s CROSS JOIN model_calls c ON c.session_id = s.id"
        " WHERE s.last_active >= ?1 - 86400 AND s.deleted_at IS NULL AND c.status <> 'running' AND c.started_at > ?1"
        " AND c.started_at <= ?2"
        " AND (s.origin <> 'fork' OR coalesce(c.commit_seq, 0) > coalesce(s.forked_at_seq, 0))"
        " GROUP BY s.id, s.title, s.goal",
        (now - BURN_SECONDS, now),
    )
    found = [Burn(*row) for row in rows.fetchall()]
    return sorted(found, key=lambda each: (-(each.cost_usd or 0.0), -each.tokens, each.session_id))


MOST_CALLS = 50_000
"""Calls of a series; of more, the newest."""


@dataclass(frozen=True, slots=True)
class CallPoint:
    """One model call. Seconds since 1970, tokens, US dollars."""

    id: int
    agent_id: str
    model: str
    at: float
    tokens: tuple[int, int, int, int]
    """Input, written to the cache, read from it, output."""
    cost_usd: float | None
    """None: the call has no price."""

    @property
    def prompt(self) -> int:
        """What the context took."""
        return sum(self.tokens[:3])


@dataclass(frozen=True, slots=True)
class CallSeries:
    """The calls in order of time, and when contexts were compacted."""

    calls: tuple[CallPoint, ...]
    compactions: tuple[tuple[str, float], ...]
    """The agent and the time of each."""


def call_series(connection: Connection, agent_ids: Sequence[str]) -> CallSeries:
    """The model calls of these agents over time, and their compactions."""
    among = list_of(agent_ids)
    calls = connection.execute(
        "SELECT id, agent_id, model, started_at + latency_seconds, input_tokens, cache_write_tokens, cache_read_tokens,"
        f" output_tokens, cost_usd FROM model_calls WHERE agent_id {IN_LIST} AND status <> 'running'"
        " ORDER BY id DESC LIMIT ?",
        (among, MOST_CALLS),
    )
    points = [
        CallPoint(row[0], row[1], row[2], row[3], (row[4], row[5], row[6], row[7]), row[8]) for row in calls
    ]
    passes = connection.execute(
        f"SELECT agent_id, ended_at FROM compactions WHERE agent_id {IN_LIST} AND status = 'applied' AND ended_at IS NOT NULL"
        " ORDER BY id",
        (among,),
    )
    return CallSeries(
        tuple(sorted(points, key=lambda point: point.at)), tuple((row[0], row[1]) for row in passes)
    )


def calls_after(reads: Reads, session_id: str, call_id: int) -> list[tuple[str, CallFacts]]:
    """The model calls of a session that were recorded after that one, oldest first, each with its agent."""
    sql = f"SELECT {CALL_COLUMNS}, agent_id FROM model_calls WHERE session_id = ? AND id > ? ORDER BY id"
    return [(row[-1], model_call(tuple(row)[:-1])) for row in reads.all(sql, (session_id, call_id))]
