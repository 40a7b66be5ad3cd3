"""What all sessions together used and cost, by day, week, month, model, project or program.

It counts each model call once: the calls that a fork copied belong to the session that it was forked from. Periods
are those of local time; a week starts on Monday. The store keeps one cost for a call; list prices divide it among the
classes of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from watchkeeper.records.messages import CostClasses, Periods, Usage, cost_classes, rates_on
from watchkeeper.store.driver import IN_LIST, Connection, list_of

PERIODS = ("day", "week", "month")
GROUPS = (*PERIODS, "model", "project", "program", "session")


@dataclass(slots=True)
class UsageRow:
    """The model calls of one group. Tokens as providers count them: `input_tokens` are those that no cache served."""

    key: str
    """`2026-11-23` (of a week: its Monday), `2026-11`, a model, a folder, a program or a session's id. Hostile text."""
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
        for name in ("model_calls", "unpriced_calls", *_TOKENS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.cost_usd is not None:
            self.spend(other.cost_usd, other.cost_classes)
        self.cost_estimated |= other.cost_estimated
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
            "models": sorted(self.models),
        }


_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_SLOT_SECONDS = 900
"""Calls are summed by quarters of an hour: every time zone differs from UTC by whole ones."""
_DAY_SECONDS = 86_400
_PROMPT = "c.input_tokens + c.cache_read_tokens + c.cache_write_tokens"
_CALLS = (
    # Whole numbers are divided: PostgreSQL rounds where SQLite cuts off.
    "SELECT CAST(c.started_at * 1000 AS INTEGER) / {slot_milliseconds} AS slot, c.model, s.workspace, s.origin, s.id,"
    " CASE WHEN c.cost_usd > 0 THEN 1 WHEN c.cost_usd = 0 THEN 0 END AS charged, {prompt} AS prompt, count(*),"
    " sum(c.input_tokens), sum(c.output_tokens), sum(c.cache_read_tokens), sum(c.cache_write_tokens), sum(c.cost_usd),"
    " max(CASE WHEN c.cost_usd IS NOT NULL AND (c.price_status = 'estimated' OR c.usage_exact = 0) THEN 1 ELSE 0 END),"
    " sum(CASE WHEN c.cost_usd IS NULL AND c.input_tokens + c.output_tokens + c.cache_read_tokens + c.cache_write_tokens"
    " > 0 THEN 1 ELSE 0 END)"
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

    `by` is one of `GROUPS`; `since` and `until` are seconds since 1970, and `until` is the first that does not count.
    `prices` are the list prices of the models, which divide the costs by class; without them, nothing is divided.
    It reads the calls of the sessions that were active a day before `since` or later.
    """
    key = _keys(by)
    rows: dict[str, UsageRow] = {}
    # Within a group of the query, all calls have the same rates: those of one day, for prompts of one size.
    seconds = _SLOT_SECONDS if by in PERIODS else _DAY_SECONDS
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
            name = known[slot] = f"{day:%Y-%m}" if by == "month" else f"{day:%Y-%m-%d}"
        return name

    return period


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
    cost_usd: float

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
        f" output_tokens, coalesce(cost_usd, 0) FROM model_calls WHERE agent_id {IN_LIST} AND status <> 'running'"
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
