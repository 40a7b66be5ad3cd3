"""The rows that the dashboard reads of one session (`dashboard_fold` reads them). Texts are as stored:
hostile until sanitised."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from watchkeeper.records.context_size import context_used
from watchkeeper.store.transcripts import PROGRAMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What a session or an agent has used so far: columns of the same names."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    unpriced_calls: int
    model_calls: int
    retries: int
    errors: int
    cost_estimated: bool = False
    """Some of the cost rests on an estimated price or on estimated tokens."""

    @property
    def total_tokens(self) -> int:
        """Prompt and output, cache reads included: what budgets count."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


SPENDING = tuple(each.name for each in fields(Spending) if each.name != "cost_estimated")
"""The columns of `sessions` and of `agents` that hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts(Spending):
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
    roles: str | None = None
    """As stored (see `roles_of`)."""
    missing_logs: int = 0
    """Agents of an imported session whose logs are not here: tokens and cost are lower bounds where there are
    any."""


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A role of a session. Texts are hostile until sanitised: a workspace may have written them."""

    role: str
    source: str
    """`built-in`, or its file."""
    model: str
    unconfirmed: str | None
    """The workspace's choice of a dearer model, which nobody confirmed."""

    @property
    def is_built_in(self) -> bool:
        return self.source == "built-in"


@lru_cache(maxsize=16)
def roles_of(text: str | None) -> Mapping[str, RoleFacts]:
    """The roles of a session's row, by name; none where no host has read them. What is not a role is left
    out."""
    try:
        records = json.loads(text or "[]")
    except ValueError:
        return {}
    found = {}
    for one in records if isinstance(records, list) else ():
        if isinstance(one, dict) and all(
            isinstance(one.get(name), str) for name in ("role", "source", "model")
        ):
            asked = one.get("unconfirmed")
            found[one["role"]] = RoleFacts(
                one["role"], one["source"], one["model"], asked if isinstance(asked, str) else None
            )
    return found


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
    """The end of the reply that streams in, as much of it as the host shows
    (`runtime.live.SHOWN_CHARACTERS`)."""
    since: float
    until: float | None
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts(Spending):
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
    compactions: int
    live: LiveFacts | None = None
    parked_until: float | None = None
    """Wall time at which the usage limit ends for which it is parked."""

    @property
    def context_used(self) -> int:
        """Tokens that its next call would send."""
        return context_used(self.context_tokens, self.composition)


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
    stall_seconds: float | None
    """How long the agent's loop waited for it; None where nobody tells."""
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
    folder: str | None = None
    """Of the agent's shell, where that is known."""
    cause: str | None = None
    note: str | None = None
    """Why it is asked, beyond the permission."""


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
class Rates:
    """What runs now, by the minute (over the last one)."""

    cost_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    events_per_second: float = 0.0
    """Over the last five seconds."""
    agent_cost: tuple[tuple[str, float], ...] = ()
    """Dollars a minute of each agent that spent something."""

    @property
    def is_still(self) -> bool:
        """Nothing runs, so that these stay true until something is written."""
        return not (self.tokens_per_minute or self.events_per_second or self.cost_per_minute)


def compaction_facts(row: Sequence[Any], origin: str) -> CompactionFacts:
    """A pass as read, in a session of this origin: other programs' logs do not tell what it held up, and 0
    would be a claim."""
    facts = CompactionFacts(*row)
    return replace(facts, stall_seconds=None) if origin.removeprefix("export:") in PROGRAMS else facts


def composition_of(text: str) -> tuple[tuple[str, int], ...]:
    """The tokens of a context by kind, in the order stored; figures that are none are left out."""
    try:
        value = json.loads(text)
    except ValueError:
        return ()
    if not isinstance(value, dict):
        return ()
    return tuple(
        (str(kind), int(tokens))
        for kind, tokens in value.items()
        if isinstance(tokens, (int, float)) and math.isfinite(tokens)
    )
