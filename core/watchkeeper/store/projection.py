"""A session, an agent, a task and a compaction: one dataclass each, and the statements that read them.

Lists, the fleet, the dashboard, `--json`, comparisons and MCP are views of these, and `store.replay` gives the same
classes as of any event. A field has the name of its column; `_SESSION_SQL` and similar constants compute the other fields.
So a new column of a session is one field of `SessionFacts`. Texts are as stored: hostile until sanitised.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from watchkeeper.records.messages import compacts_at, context_percent, context_used
from watchkeeper.records.readers import UNIT_ROLES, UNITS_SQL, is_foreign
from watchkeeper.records.text import one_line
from watchkeeper.records.usage_limits import UsageLimit, session_limit
from watchkeeper.records.waiting import agent_word, waiting_word
from watchkeeper.store.driver import IN_LIST, Reads, decode, list_of, row_list
from watchkeeper.store.imports import MISSING_LOGS, UNLOGGED_CALLS
from watchkeeper.store.names import AGENT_NAME, agent_label, task_name

Raw = Sequence[Any]
"""One row, as the database or JSON gives it."""

SHOWN_CHARACTERS = 4_000
"""As much of a text as a screen that is renewed all the time reads."""
ALL_CHARACTERS = 1 << 30


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _select(row: str, names: Sequence[str], others: Mapping[str, str]) -> str:
    return ", ".join(others.get(name, f"{row}.{name}") for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What a session or an agent has used so far: columns of the same names."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    unpriced_calls: int = 0
    model_calls: int = 0
    retries: int = 0
    errors: int = 0
    cost_estimated: bool = False
    """Some of the cost rests on an estimated price or on estimated tokens."""

    @property
    def total_tokens(self) -> int:
        """Prompt and output, cache reads included: what budgets count."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def is_lower_bound(self) -> bool:
        """Whether the cost leaves something out."""
        return self.unpriced_calls > 0


SPENDING = tuple(name for name in _names(Spending) if name != "cost_estimated")
"""The columns of `sessions` and of `agents` that hold it."""
_TOKENS = tuple(name for name in SPENDING if name.endswith("_tokens"))
_ESTIMATED = "cost_usd IS NOT NULL AND (price_status = 'estimated' OR usage_exact = 0)"


def spending_json(spent: Spending) -> dict[str, Any]:
    """What was spent, as JSON has it. An unknown cost is None, never 0."""
    tokens = {name.removesuffix("_tokens"): getattr(spent, name) for name in _TOKENS}
    return {
        "tokens": tokens | {"total": spent.total_tokens},
        "cost_usd": None if spent.cost_usd is None else round(spent.cost_usd, 10),
        "cost_estimated": spent.cost_estimated,
        **{name: getattr(spent, name) for name in ("unpriced_calls", "model_calls", "retries", "errors")},
    }


# --- Sessions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts(Spending):
    """One session. Whether a host drives it is the lease's to tell."""

    id: str
    user_id: str = ""
    goal: str
    title: str | None = None
    workspace: str = ""
    model: str
    origin: str
    tags: str = "[]"
    """As stored: a JSON list."""
    status: str
    status_reason: str | None = None
    created_at: float
    last_active: float
    ended_at: float | None = None
    hosted_seconds: float = 0.0
    planner_agent_id: str | None = None
    current_plan_id: str | None = None
    event_seq: int = 0
    lease_epoch: int = 0
    host_pid: int | None = None
    host_name: str | None = None
    queued_at: float | None = None
    """Since when workers may drive it; it waits for one while no host does."""
    forked_from: str | None = None
    forked_at_seq: int | None = None
    settings: str = "{}"
    """As stored: a JSON object."""
    roles: str | None = None
    """As stored (see `roles_of`)."""
    missing_logs: int = 0
    """Agents of an imported session whose logs are not here: tokens and cost are lower bounds where there are any."""
    unlogged_calls: int = 0
    """Model calls that an imported session's logs show, and do not count; the same holds."""

    @property
    def is_partial(self) -> bool:
        """Whether logs are missing, or show calls that they do not count."""
        return bool(self.missing_logs or self.unlogged_calls)

    @property
    def is_lower_bound(self) -> bool:
        """Whether the cost leaves something out."""
        return self.unpriced_calls > 0 or self.is_partial


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSession(SessionFacts):
    """A session with what is counted of its agents and tasks: a row of a list."""

    agents: int = 0
    working: int = 0
    """Agents at work."""
    waiting: int = 0
    """Agents that wait for an answer."""
    turns: int = 0
    compactions: int = 0
    parked_until: float | None = None
    """When the first of its agents that a usage limit stops may continue."""
    parked_reason: str | None = None
    tasks: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0
    tasks_dropped: int = 0

    @property
    def limit(self) -> UsageLimit | None:
        """The usage limit that stops the session."""
        return session_limit(
            self.status, self.status_reason, self.last_active, self.parked_until, self.parked_reason
        )


_SESSION_NAMES = _names(SessionFacts)
_ID = _SESSION_NAMES.index("id")
_SESSION_SQL = {
    "missing_logs": MISSING_LOGS,
    "unlogged_calls": UNLOGGED_CALLS,
    "cost_estimated": f"EXISTS (SELECT 1 FROM model_calls c WHERE c.session_id = s.id AND {_ESTIMATED})",
}
"""Those that are no column of the session `s`."""
SESSION = f"SELECT {_select('s', _SESSION_NAMES, _SESSION_SQL)} FROM sessions s WHERE s.id = ?"


def _sessions(goal_characters: int) -> str:
    goal = {"goal": f"substr(s.goal, 1, {goal_characters:d})"}
    return f"SELECT {_select('s', _SESSION_NAMES, _SESSION_SQL | goal)} FROM sessions s"


_COUNTED_AGENTS = (
    "SELECT session_id, count(*), count(*) FILTER (WHERE status = 'working'), count(*) FILTER (WHERE status ="
    " 'waiting'), sum(turn), sum(compactions), min(parked_until) FILTER (WHERE status = 'parked')"
    f" FROM agents WHERE session_id {IN_LIST} AND role NOT IN ({UNITS_SQL}) GROUP BY session_id"
)
_OF_AGENTS = ("agents", "working", "waiting", "turns", "compactions", "parked_until")
_COUNTED_TASKS = (
    "SELECT session_id, count(*), count(*) FILTER (WHERE status = 'done'), count(*) FILTER (WHERE status = 'failed'),"
    f" count(*) FILTER (WHERE status = 'dropped') FROM tasks WHERE session_id {IN_LIST} GROUP BY session_id"
)
_OF_TASKS = ("tasks", "tasks_done", "tasks_failed", "tasks_dropped")
_PARKED = (
    f"SELECT session_id, status_reason FROM agents WHERE session_id {IN_LIST} AND status = 'parked'"
    " ORDER BY parked_until DESC, ordinal DESC"
)

Counted = TypeVar("Counted", bound=CountedSession)


def session_facts(row: Raw) -> SessionFacts:
    """The session of a row of `SESSION`."""
    return SessionFacts(**_values(_SESSION_NAMES, row))


def sessions(
    reads: Reads,
    chosen: str,
    values: Sequence[object],
    *,
    kind: type[Counted],
    goal_characters: int = ALL_CHARACTERS,
) -> tuple[Counted, ...]:
    """The sessions `s` that this condition chooses, in the order that follows it; of each goal the first characters."""
    rows = reads.all(f"{_sessions(goal_characters)} WHERE {chosen}", values)
    found = {row[_ID]: _values(_SESSION_NAMES, row) for row in rows}
    if not found:
        return ()
    ids = (list_of([*found]),)
    for sql, names in ((_COUNTED_AGENTS, _OF_AGENTS), (_COUNTED_TASKS, _OF_TASKS)):
        for session_id, *counts in reads.all(sql, ids):
            found[session_id].update(zip(names, counts, strict=True))
    if any(one.get("parked_until") is not None for one in found.values()):
        for session_id, reason in reads.all(_PARKED, ids):
            found[session_id]["parked_reason"] = reason
    return tuple(kind(**one) for one in found.values())


def counted_session(reads: Reads, session_id: str) -> CountedSession | None:
    """One session, or None where there is none of that id."""
    return next(iter(sessions(reads, "s.id = ?", (session_id,), kind=CountedSession)), None)


def _values(names: Sequence[str], row: Raw) -> dict[str, Any]:
    values = dict(zip(names, row, strict=True))
    values["cost_estimated"] = bool(values["cost_estimated"])
    return values


_OTHER_FORMS = {
    "hosted_seconds", "event_seq", "host_pid", "host_name", "tags", "settings", "roles", "forked_from", "forked_at_seq",
    *_names(Spending),
}  # fmt: skip
"""Fields of a session that JSON has in another form, or not at all."""


def session_json(session: CountedSession) -> dict[str, Any]:
    """The session, as `--json` has it: each field by its name, and what follows from several."""
    limit = session.limit
    plain = {name: getattr(session, name) for name in _SESSION_NAMES if name not in _OTHER_FORMS}
    return plain | spending_json(session) | {
        "session_id": session.id,
        "waiting": waiting_word(session.status, session.status_reason),
        "usage_limit": limit and asdict(limit),
        "tags": decode(session.tags),
        "elapsed_seconds": max(0.0, session.hosted_seconds),
        "settings": decode(session.settings),
        "roles": [asdict(role) for role in roles_of(session.roles).values()],
        "effort": effort_text(session.settings, session.roles),
        "events": session.event_seq,
        "host": {"pid": session.host_pid, "name": session.host_name},
        "partial": session.is_partial,
    }  # fmt: skip


# --- Roles --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A role of a session. Texts are hostile until sanitised: a workspace may have written them."""

    role: str
    source: str
    """`built-in`, or its file."""
    model: str
    unconfirmed: str | None
    """The workspace's choice of a dearer model, without a person's confirmation."""
    effort: str | None = None
    """How much its agents were asked to think; None: nothing was chosen."""
    effort_used: str | None = None
    """What `model` has in its place; None: it has no effort."""

    @property
    def is_built_in(self) -> bool:
        return self.source == "built-in"

    @property
    def effort_text(self) -> str:
        """`high`, `max (uses high)`, or empty where nothing was chosen."""
        if self.effort is None or self.effort == self.effort_used:
            return self.effort or ""
        if self.effort_used is None:
            return f"{self.effort} (not supported by the model)"
        return f"{self.effort} (uses {self.effort_used})"


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
            asked, effort, used = (
                value if isinstance(value := one.get(name), str) else None
                for name in ("unconfirmed", "effort", "effort_used")
            )
            found[one["role"]] = RoleFacts(one["role"], one["source"], one["model"], asked, effort, used)
    return found


def effort_text(settings: str, roles: str | None) -> str | None:
    """`high`, or `high; planner max (uses high)`: how much the models of a session were asked to think; None where nothing
    was chosen. It comes from the roles that a host noted, before that from the settings."""
    noted = {role.role: role.effort_text for role in roles_of(roles).values()}
    chosen = decode(settings).get("efforts")
    if not isinstance(chosen, dict) or not chosen:
        return None
    parts: list[str] = []
    for role, effort in sorted(chosen.items()):
        if role == "*":
            texts = {text for name, text in noted.items() if name not in chosen and text}
            parts.insert(0, texts.pop() if len(texts) == 1 else str(effort))
        else:
            parts.append(f"{role} {noted.get(role) or effort}")
    return "; ".join(parts)


# --- Tasks --------------------------------------------------------------------------------------------------


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

    @property
    def label(self) -> str:
        """The name to show; the title describes it. Sanitised, on one line."""
        return one_line(task_name(self.name, self.title, self.role), 500)


_NEEDS = row_list("depends_on", "task_dependencies d WHERE d.task_id = t.id ORDER BY d.position")
TASK_COLUMNS = _select(
    "t", _names(TaskFacts),
    {"plan_id": "t.parent_plan_id", "result": "substr(t.result, 1, 2000)", "error": "substr(t.error, 1, 2000)",
     "depends_on": _NEEDS},
)  # fmt: skip
TASKS = "tasks t WHERE t.session_id = ? ORDER BY t.position, t.id"


def task_facts(raw: Raw) -> TaskFacts:
    """The task of a row of `TASK_COLUMNS`."""
    needs = raw[-1]  # a list within a list: SQLite may give it as JSON or as its text
    return TaskFacts(*[*raw[:-1], tuple(needs if isinstance(needs, list) else json.loads(needs))])


def tasks(reads: Reads, session_id: str) -> tuple[TaskFacts, ...]:
    """The tasks of a session's plans, in their order; of long results and errors the beginning."""
    return tuple(map(task_facts, reads.all(f"SELECT {TASK_COLUMNS} FROM {TASKS}", (session_id,))))


# --- Agents -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What an agent does at this moment."""

    activity: str
    """`working`, `waiting`, `slot`, `retrying`, `rate_limited`, `tool` or `idle`."""
    detail: str
    text: str
    """The end of the reply that streams in, as much of it as the host shows
    (`runtime.host.SHOWN_CHARACTERS`)."""
    since: float
    until: float | None
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts(Spending):
    """One agent with its running totals."""

    id: str
    parent_agent_id: str | None
    copied_from: str | None = None
    """The agent whose memory it began with."""
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
    parked_until: float | None = None
    """Wall time at which the usage limit ends for which it is parked."""
    program: str | None = None
    """The agent program that does its work, and keeps its context; None for Watchkeeper's own loop."""
    live: LiveFacts | None = None

    @property
    def label(self) -> str:
        """The name to show. Sanitised, on one line."""
        return one_line(self.name, 500) or one_line(self.role, 120)

    @property
    def full_label(self) -> str:
        """The name with the role in brackets, where that says more. Sanitised, on one line."""
        return agent_label(self.name, self.role, self.task_id)

    @property
    def is_unit(self) -> bool:
        """Whether it is no agent: a workflow's run, one of its phases, or a command in the background."""
        return self.role in UNIT_ROLES

    @property
    def context_used(self) -> int:
        """Tokens that its next call would send."""
        return context_used(self.context_tokens, self.composition)


_AGENT_NAMES = tuple(name for name in _names(AgentFacts) if name != "live")
_LIVE_NAMES = _names(LiveFacts)
_AGENT_SQL = {
    "name": AGENT_NAME,
    "program": "(SELECT p.program FROM agent_programs p WHERE p.agent_id = a.id)",
    "cost_estimated": "EXISTS (SELECT 1 FROM model_calls c WHERE c.session_id = a.session_id AND c.agent_id = a.id AND"
    f" {_ESTIMATED})",
}
"""Those that are no column of the agent `a`."""


def _agent_columns(characters: int) -> str:
    goal, text = f"substr(a.current_goal, 1, {characters})", f"substr(l.text, 1, {SHOWN_CHARACTERS})"
    own = _select("a", _AGENT_NAMES, _AGENT_SQL | {"goal": goal})
    return f"{own}, {_select('l', _LIVE_NAMES, {'text': text})}"


AGENT_COLUMNS = _agent_columns(SHOWN_CHARACTERS)
AGENTS = "agents a LEFT JOIN live l ON l.agent_id = a.id WHERE a.session_id = ? ORDER BY a.ordinal"
_WHOLE_AGENTS = f"SELECT {_agent_columns(ALL_CHARACTERS)} FROM {AGENTS}"


def agent_facts(raw: Raw) -> AgentFacts:
    """The agent of a row of `AGENT_COLUMNS`."""
    own, live = raw[: len(_AGENT_NAMES)], raw[len(_AGENT_NAMES) :]
    values = _values(_AGENT_NAMES, own)
    values["composition"] = composition_of(values["composition"])
    return AgentFacts(**values, live=LiveFacts(*live) if live[0] is not None else None)


def agents(reads: Reads, session_id: str) -> tuple[AgentFacts, ...]:
    """The agents of a session, in the order of their creation; with the whole goal of each."""
    return tuple(map(agent_facts, reads.all(_WHOLE_AGENTS, (session_id,))))


@lru_cache(maxsize=4096)
def composition_of(text: str) -> tuple[tuple[str, int], ...]:
    """The tokens of a context by kind, in the order stored; values that are no numbers are left out."""
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


_AGENT_IN_JSON = (
    "id", "name", "role", "model", "task_id", "parent_agent_id", "attempt", "copied_from", "status", "status_reason",
    "parked_until", "turn", "message_tokens", "compactions", "created_at", "ended_at",
)  # fmt: skip


def agent_json(agent: AgentFacts, *, live: bool) -> dict[str, Any]:
    """The agent, as `--json` has it. `live`: a host drives it, so what it said last of its agents holds."""
    activity = agent.live.activity if live and agent.live is not None else None
    parts = dict(agent.composition)
    return {name: getattr(agent, name) for name in _AGENT_IN_JSON} | spending_json(agent) | {
        "current_goal": agent.goal,
        "waiting": waiting_word(agent.status, agent.status_reason, activity),
        "state": agent_word(agent.status, agent.status_reason, activity),
        "messages": agent.last_seq,
        "view": agent.view_version,
        "elapsed_seconds": max(0.0, agent.active_seconds),
        "context": {
            "used": agent.context_used,
            "limit": agent.context_limit or None,
            "percent": context_percent(agent.context_used, agent.context_limit),
            "threshold": compacts_at(parts),
            "composition": {kind: tokens for kind, tokens in parts.items() if kind != "threshold"},
        },
    }  # fmt: skip


def below_json(agents: Sequence[AgentFacts]) -> dict[str, dict[str, Any]]:
    """For each agent that has others below it: how many, how many of these work, and what they have used."""
    children: dict[str, list[AgentFacts]] = {}
    for agent in agents:
        if agent.parent_agent_id is not None:
            children.setdefault(agent.parent_agent_id, []).append(agent)
    found = {}
    for agent_id in children:
        waiting, seen = [*children[agent_id]], {agent_id: None}
        below: list[AgentFacts] = []
        while waiting:
            one = waiting.pop()
            if one.id not in seen:
                seen[one.id] = None
                below += [] if one.is_unit else [one]
                waiting += children.get(one.id, ())
        priced = [one.cost_usd for one in below if one.cost_usd is not None]
        found[agent_id] = {
            "agents": len(below),
            "working": sum(one.status == "working" for one in below),
            "tokens": {"total": sum(one.total_tokens for one in below)},
            "cost_usd": round(sum(priced), 10) if priced else None,
            "cost_estimated": any(one.cost_estimated for one in below),
            "unpriced_calls": sum(one.unpriced_calls for one in below),
        }
    return found


# --- Compactions --------------------------------------------------------------------------------------------


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
    """How long the agent's loop waited for it; None if unknown."""
    cache_tokens_invalidated: int
    requested_at: float
    ended_at: float | None


COMPACTION_COLUMNS = ", ".join(_names(CompactionFacts))


def compaction_facts(row: Raw, origin: str) -> CompactionFacts:
    """A pass of a session of this origin. Other programs' logs do not say how long a pass blocked; 0 would be
    a claim."""
    facts = CompactionFacts(*row)
    return replace(facts, stall_seconds=None) if is_foreign(origin) else facts
