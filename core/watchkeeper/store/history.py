"""The state of a session at any of its positions, by key: what forks, replay and "as of" share.

`History` reads a session once. Events are folded into timelines by pure functions; append-only rows count from
their `commit_seq` on; `state_changes` holds the values that a change replaced where no event tells them. `at` then
answers in a few milliseconds, however long the session is. The state at an event is the state right after the
transaction that wrote it, as it would be found had the host been killed there.

A position is an event, counted from 1. The log of another program has hardly any events, and the files of its agents
share no order but their times: there, a position is a message, a model call or an event, in the order of their times.
Rows that have no `commit_seq` (of such a log, or from before schema 3) are numbered in one place, `_Numbering`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.store.driver import Connection, decode, decode_or, encode
from watchkeeper.store.projection import composition_of
from watchkeeper.store.schema import BY_NAME, Table

Row = dict[str, Any]
Cancelled = Callable[[], bool]
T = TypeVar("T")
K = TypeVar("K")

ALWAYS = 1 << 62
"""Later than every position."""

ENDED = frozenset({"done", "failed", "cancelled"})
_TASK_ENDED = ENDED | {"dropped"}
CALL_ENDED = frozenset({"done", "error", "denied", "unknown", "cancelled"})
"""States of a tool call whose result is in."""
_RERUNS = ("re-run", "re-run (fresh)", "its inputs changed")
"""Reasons with which a task becomes pending for another attempt."""
_OPEN_TASKS = ("pending", "running", "paused", "stale")
FAILURES = frozenset({
    "task.failed", "agent.failed", "session.failed", "model.error", "tool.error", "tool.unknown", "budget.reached",
})  # fmt: skip
"""Kinds of events that tell of a failure."""
_OPEN = frozenset({None, "asked", "started", "prepared", "running", "waiting", "set"})
"""What events report of an approval, a compaction or a budget that has not ended."""


# --- What one event changes -------------------------------------------------------------------------------


class Event(NamedTuple):
    """One event; `data` is empty where it cannot be read."""

    at: float
    kind: str
    agent_id: str | None
    task_id: str | None
    data: Mapping[str, Any]


class AgentAt(NamedTuple):
    """One agent, as its events tell it."""

    last_active: float
    status: str = "working"
    reason: str | None = None
    turn: int = 0
    """The last turn whose reply is in."""
    started: bool = False
    ended_at: float | None = None
    compactions: int = 0
    moved_to: tuple[int, int] | None = None
    """The view that the last undo or redo led to, and the position of that."""
    parked_until: float | None = None
    active_seconds: float | None = None
    """None: what its steps add up to."""


class TaskAt(NamedTuple):
    """One task, as its events tell it."""

    status: str = "pending"
    reason: str | None = None
    attempt: int = 1
    agent: str | None = None
    starts_from: str | None = None
    started: bool = False
    ended_at: float | None = None
    error: str | None = None
    failures: int = 0
    failed_at: tuple[str | None, int] | None = None
    """The agent and the turn of the last failure."""
    has_inputs: bool = False
    has_hash: bool = False
    has_result: bool = False
    has_artifacts: bool = False


class CallAt(NamedTuple):
    """One tool call, as its events tell it."""

    status: str = "pending"
    runs: int = 0
    started_at: float | None = None


def agent_after(agent: AgentAt, event: Event, position: int) -> AgentAt:
    """The agent after one more of its events."""
    subject, _, verb = event.kind.partition(".")
    changes: Row = {"last_active": event.at}
    if subject == "agent" and verb != "created":
        until = event.data.get("until")
        changes |= {
            "status": verb, "reason": _text(event.data.get("reason")), "started": True,
            "ended_at": event.at if verb in ENDED else None,
            "parked_until": float(until) if verb == "parked" and isinstance(until, int | float) else None,
        }  # fmt: skip
    elif event.kind == "model.replied":
        changes |= {"turn": max(agent.turn, int(event.data.get("turn", 0)))}
    elif event.kind == "inbox.delivered":
        changes |= {"status": "working", "reason": None, "parked_until": None, "started": True}
    elif event.kind == "compaction.applied":
        changes |= {"compactions": agent.compactions + 1}
    elif event.kind in ("compaction.undo", "compaction.redo") and isinstance(event.data.get("view"), int):
        changes |= {"moved_to": (event.data["view"], position)}
    return agent._replace(**changes)


def task_after(task: TaskAt, event: Event, turns: Mapping[str, int]) -> TaskAt:
    """The task after one more of its events. `turns`: the last turn of each agent."""
    verb, reason = event.kind.partition(".")[2], _text(event.data.get("reason"))
    agent = _text(event.data.get("agent"))
    changes: Row = {
        "status": verb,
        "reason": reason,
        "ended_at": event.at if verb in _TASK_ENDED else None,
        "started": task.started or verb == "running",
    }
    if verb == "running" and agent is not None:
        changes |= {"agent": agent, "has_inputs": True, "has_hash": True}
    elif verb == "done" and "agent" in event.data:  # else a stale task proved as good as before
        changes |= {"has_result": True, "has_artifacts": True, "error": None}
    elif verb == "failed":
        failed_at = (agent or task.agent, turns.get(agent or task.agent or "", 0))
        failures = task.failures + 1 if task.failed_at == failed_at else 1
        changes |= {"error": reason, "failures": failures, "failed_at": failed_at}
    elif verb == "pending" and reason in _RERUNS:
        changes |= {
            "attempt": task.attempt + 1, "agent": None, "has_result": False,
            "starts_from": task.agent if reason == "re-run" else None,
        }  # fmt: skip
        if reason != "its inputs changed":
            changes |= {
                "error": None, "failures": 0, "failed_at": None, "has_hash": False, "has_artifacts": False,
            }  # fmt: skip
    return task._replace(**changes)


def call_after(call: CallAt, event: Event) -> CallAt:
    """The tool call after one more of its events."""
    verb = event.kind.partition(".")[2]
    if verb == "started":
        return CallAt("running", call.runs + 1, event.at)
    return CallAt(verb, call.runs, None if verb == "pending" else call.started_at)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# --- Values over positions --------------------------------------------------------------------------------


class Timeline(Generic[T]):
    """Values in the order of the positions at which they began."""

    __slots__ = ("positions", "values")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.values: list[T] = []

    def add(self, position: int, value: T) -> None:
        """From `position` on it is `value`. Positions never go back."""
        if self.positions and self.positions[-1] == position:
            self.values[-1] = value
        else:
            self.positions.append(position)
            self.values.append(value)

    def at(self, position: int) -> T | None:
        """The value at that position, or None before the first."""
        place = bisect_right(self.positions, position)
        return self.values[place - 1] if place else None

    @property
    def last(self) -> T | None:
        """The newest value."""
        return self.values[-1] if self.values else None


class Timelines(dict[K, Timeline[T]]):
    """A timeline for each key; one that is missing is empty."""

    def __missing__(self, key: K) -> Timeline[T]:
        made: Timeline[T] = Timeline()
        self[key] = made
        return made

    def value(self, key: K, position: int) -> T | None:
        """The value of one key at that position. Adds no timeline."""
        timeline = self.get(key)
        return timeline.at(position) if timeline is not None else None


NO_USAGE: Row = {
    "input_tokens": 0, "output_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost_usd": None,
    "unpriced_calls": 0, "model_calls": 0, "retries": 0, "errors": 0, "cost_estimated": False,
}  # fmt: skip
"""Usage before the first model call, by the names of the columns and facts."""


@dataclass(frozen=True, slots=True)
class ModelCall:
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
    commit_seq: int | None

    @property
    def is_reply(self) -> bool:
        """It brought an agent's turn."""
        return self.status == "done" and self.purpose in ("turn", "planner")


class Usage:
    """Running totals of model calls, by the position from which each counts."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.ids: list[int] = []
        self._sums: list[tuple[Any, ...]] = [tuple(NO_USAGE.values())]

    def add(self, position: int, call: ModelCall) -> None:
        """One more call. Positions never go back."""
        self.positions.append(position)
        self.ids.append(call.id)
        self._sums.append(_add(self._sums[-1], call))

    def count(self, position: int) -> int:
        """How many calls there were."""
        return bisect_right(self.positions, position)

    def at(self, position: int) -> Row:
        """The totals at that position."""
        return dict(zip(NO_USAGE, self._sums[self.count(position)], strict=True))

    def newest(self, position: int, limit: int) -> list[int]:
        """Ids of the last calls by then."""
        count = self.count(position)
        return self.ids[max(0, count - limit) : count]


def _add(sums: tuple[Any, ...], call: ModelCall) -> tuple[Any, ...]:
    read, wrote, cached, caching, cost, unpriced, count, retries, errors, estimated = sums
    tokens = call.input_tokens + call.output_tokens + call.cache_read_tokens + call.cache_write_tokens
    if call.cost_usd is not None:
        cost, estimated = (cost or 0.0) + call.cost_usd, estimated or bool(call.is_estimated)
    return (
        read + call.input_tokens, wrote + call.output_tokens, cached + call.cache_read_tokens,
        caching + call.cache_write_tokens, cost, unpriced + (call.cost_usd is None and tokens > 0), count + 1,
        retries + call.retries, errors + (call.status == "error"), estimated,
    )  # fmt: skip


class MessageLog:
    """The messages of one agent: from which position each counts, and the running total of their tokens."""

    __slots__ = ("positions", "seqs", "times", "totals")

    def __init__(self) -> None:
        self.seqs, self.positions, self.totals, self.times = array("q"), array("q"), array("q"), array("d")

    def add(self, seq: int, position: int, total_tokens: int, created_at: float) -> None:
        """One more message: later than those before it, whatever its time says."""
        self.seqs.append(seq)
        self.positions.append(max(position, self.positions[-1]) if self.positions else position)
        self.totals.append(total_tokens)
        self.times.append(created_at)

    def last_seq(self, position: int) -> int:
        """The last message by then; 0 before the first."""
        count = bisect_right(self.positions, position)
        return self.seqs[count - 1] if count else 0

    def total(self, seq: int) -> int:
        """Tokens of all messages through that one."""
        count = bisect_right(self.seqs, seq)
        return self.totals[count - 1] if count else 0


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One version of an agent's context."""

    version: int
    position: int
    """From which on it counts."""
    tokens: int
    observed: int
    """Tokens of its observations."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One turn of an agent: its reply, and the message with its results."""

    reply: int
    results: int | None
    seconds: float
    """Since the agent's first step, this one not included."""
    own_seconds: float


# --- Reading a session ------------------------------------------------------------------------------------

_EVENTS = (
    "SELECT seq, at, kind, agent_id, task_id, data, commit_seq FROM events WHERE session_id = ? ORDER BY seq"
)
_SESSION = "SELECT status, status_reason, ended_at FROM sessions WHERE id = ?"
_AGENT_WITHOUT_REPLIES = (
    "SELECT 1 FROM agents a WHERE a.session_id = ?1 AND a.turn > 0 AND a.copied_from IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM events e WHERE e.session_id = ?1 AND e.agent_id = a.id AND e.kind = 'model.replied') LIMIT 1"
)
_AGENTS = (
    "SELECT id, status, status_reason, turn, created_at, started_at, ended_at, last_active, active_seconds,"
    " last_seq, view_version, context_tokens, composition FROM agents WHERE session_id = ?"
)
_TASKS = (
    "SELECT id, parent_plan_id, name, position, title, status, status_reason, result, error, artifact_refs,"
    " inputs_ref, inputs_hash, created_at, started_at, ended_at FROM tasks WHERE session_id = ?"
    " ORDER BY position, id"
)
_MESSAGES = (
    "SELECT m.agent_id, m.seq, m.role, m.created_at, m.total_tokens, m.commit_seq FROM agents a"
    " JOIN messages m ON m.agent_id = a.id WHERE a.session_id = ? ORDER BY a.id, m.seq"
)
_CALLS = (
    "SELECT id, agent_id, turn, purpose, status, started_at + latency_seconds, input_tokens, output_tokens,"
    " cache_read_tokens, cache_write_tokens, cost_usd, retries, price_status = 'estimated' OR usage_exact = 0,"
    " commit_seq FROM model_calls WHERE session_id = ? AND status <> 'running' ORDER BY id"
)
_OBSERVATIONS = (
    "SELECT o.agent_id, o.id, o.tokens FROM agents a JOIN observations o ON o.agent_id = a.id"
    " WHERE a.session_id = ?"
)
_VIEWS = (
    "SELECT v.agent_id, v.version, v.created_at, v.tokens, v.observations, v.commit_seq FROM agents a"
    " JOIN views v ON v.agent_id = a.id WHERE a.session_id = ? ORDER BY v.agent_id, v.version"
)
_STEPS = (
    "SELECT s.agent_id, s.turn, s.reply_seq, s.results_seq, coalesce(s.ended_at - s.started_at, 0)"
    " FROM agents a JOIN steps s ON s.agent_id = a.id WHERE a.session_id = ? ORDER BY s.agent_id, s.turn"
)
_COMPACTIONS = (
    "SELECT id, agent_id, status, requested_at, ended_at FROM compactions WHERE session_id = ? ORDER BY id"
)
_CHANGES = (
    "SELECT commit_seq, table_name, row_id, old_values FROM state_changes WHERE session_id = ? ORDER BY id"
)
_GRAPH = "SELECT plan_graph_snapshot FROM plan_revisions WHERE plan_id = ? AND revision = ?"

_ROWS_BETWEEN_LOOKS = 2_000

_REPLACED: dict[str, dict[str, type]] = {
    "tasks": dict.fromkeys(
        (
            "instructions",
            "role",
            "expected_outputs",
            "result",
            "artifact_refs",
            "inputs_ref",
            "inputs_hash",
            "rerun_reason",
        ),
        str,
    ),
    "facts": {"scope": str, "pinned": int, "superseded_by": int},
}
"""The columns whose replaced values `state_changes` keeps, and their types. A file from elsewhere may hold others."""

EVENT, CALL, MESSAGE = 0, 1, 2
"""What a position of another program's log is, in the order of those that have the same time."""


class Point(NamedTuple):
    """One position: an event (`number` is its `seq`), a model call (its id) or a message (its `seq`)."""

    at: float
    kind: int
    agent_id: str
    number: int
    role: str = ""


class _Numbering:
    """From which position a row counts.

    A row with `commit_seq` counts from the first event of its transaction. One without counts from the first
    position that is not before its time: the only place where times decide.
    """

    def __init__(self, seqs: array[int], times: array[float]) -> None:
        self._seqs, self._times = seqs, times
        self.inferred = False
        self.is_by_time = False
        """Positions are no events."""

    def position(self, commit_seq: int | None, at: float | None) -> int:
        if commit_seq is not None and not self.is_by_time:
            return bisect_left(self._seqs, commit_seq) + 1
        self.inferred = True
        return bisect_left(self._times, at or 0.0) + 1


class History:
    """A session from its first position to the last that there was when it was read. Only reads.

    Raises:
        InterruptedError: from the constructor, when `cancelled` says that the answer is no longer wanted.
    """

    def __init__(self, connection: Connection, session_id: str, cancelled: Cancelled = lambda: False) -> None:
        self.session_id = session_id
        self.by_event = connection.execute(_AGENT_WITHOUT_REPLIES, (session_id,)).fetchone() is None
        """Positions are events."""
        self.agents: Timelines[str, AgentAt] = Timelines()
        self.tasks: Timelines[str, TaskAt] = Timelines()
        self.calls: Timelines[int, CallAt] = Timelines()
        self.compactions: Timelines[int, str] = Timelines()
        """The last reported state of each: `started`, `prepared`, `applied`, …"""
        self.approvals: Timelines[str, str] = Timelines()
        self.commands: Timelines[int, str] = Timelines()
        self.revisions: Timelines[str, int] = Timelines()
        """The revisions of each plan."""
        self.budgets: Timelines[tuple[str | None, str], str] = Timelines()
        """By task and kind: `set` or `reached`."""
        self.session: Timeline[tuple[str, str | None, float | None]] = Timeline()
        """Status, reason, and since when."""
        self.replies: list[int] = []
        """The positions at which an agent replied."""
        self.failures: list[int] = []
        """The positions at which something failed."""
        self.planned: Timeline[float] = Timeline()
        """When plan or tasks changed last."""
        self.damaged = 0
        """How many events cannot be read: all that is known is that they happened."""
        self._connection = connection
        self._graphs: dict[tuple[str, int], dict[str, tuple[str, tuple[str, ...]]]] = {}
        events = self._read_events(cancelled)
        self.agent_rows = {row["id"]: row for row in _rows(connection, _AGENTS, session_id)}
        self.task_rows = {row["id"]: row for row in _rows(connection, _TASKS, session_id)}
        messages = list(_each(connection.execute(_MESSAGES, (session_id,)), cancelled))
        self.model_calls = [
            ModelCall(*row) for row in _each(connection.execute(_CALLS, (session_id,)), cancelled)
        ]
        if not self.by_event:
            self._order_by_time(messages)
        self.numbering = _Numbering(self.seqs, self.times)
        self.numbering.is_by_time = not self.by_event
        for position, event in enumerate(events, 1):
            self._apply(self._position_of_event(position), event)
        self._read_rows(messages)
        self._read_changes()
        if not self.by_event:
            _InferredTimelines(self).build(self._connection)

    # Reading.

    def _read_events(self, cancelled: Cancelled) -> list[Event]:
        self.seqs, self.times, stored = array("q"), array("d"), array("d")
        """The number of each event, and its time, made never to go back."""
        commits: list[int | None] = []
        events: list[Event] = []
        for seq, at, kind, agent_id, task_id, text, commit_seq in _each(
            self._connection.execute(_EVENTS, (self.session_id,)), cancelled
        ):
            data = decode_or(text, None)
            self.damaged += data is None
            self.seqs.append(seq)
            self.times.append(max(at, self.times[-1]) if self.times else at)
            stored.append(at)
            commits.append(commit_seq)
            events.append(Event(at, kind, agent_id, task_id, data if isinstance(data, dict) else {}))
        self.ends = _ends(commits, stored)
        """For each position, the last of its transaction."""
        self.points: list[Point] | None = None
        """None: each position is the event of `seqs`."""
        return events

    def _order_by_time(self, messages: list[Any]) -> None:
        points: list[Point] = []
        newest: dict[str, float] = {}
        for agent_id, seq, role, at, _, _ in messages:
            newest[agent_id] = max(at, newest.get(agent_id, at))
            points.append(Point(newest[agent_id], MESSAGE, agent_id, seq, role))
        points += [Point(call.ended_at, CALL, call.agent_id, call.id) for call in self.model_calls]
        points += [Point(at, EVENT, "", seq) for seq, at in zip(self.seqs, self.times, strict=True)]
        points.sort()
        self.points = points
        self._event_positions = [place for place, point in enumerate(points, 1) if point.kind == EVENT]
        self.times = array("d", (point.at for point in points))
        self.ends = _ends([None] * len(points), self.times)

    def _position_of_event(self, place: int) -> int:
        return place if self.points is None else self._event_positions[place - 1]

    def _read_rows(self, messages: list[Any]) -> None:
        position = self.numbering.position
        connection, session_id = self._connection, self.session_id
        self.messages: dict[str, MessageLog] = {}
        for agent_id, seq, _, at, total, commit_seq in messages:
            self.messages.setdefault(agent_id, MessageLog()).add(seq, position(commit_seq, at), total, at)
        self.usage, self.usage_of = Usage(), dict[str, Usage]()
        numbered = [(position(call.commit_seq, call.ended_at), call) for call in self.model_calls]
        for place, call in sorted(numbered, key=lambda pair: (pair[0], pair[1].id)):
            self.usage.add(place, call)
            self.usage_of.setdefault(call.agent_id, Usage()).add(place, call)
        self.views: dict[str, list[ViewRow]] = {}
        sizes = {(row[0], row[1]): row[2] for row in connection.execute(_OBSERVATIONS, (session_id,))}
        for agent_id, version, at, tokens, text, commit_seq in connection.execute(_VIEWS, (session_id,)):
            listed = decode_or(text, [])
            observed = sum(
                sizes.get((agent_id, one), 0)
                for one in (listed if isinstance(listed, list) else [])
                if isinstance(one, int)
            )
            self.views.setdefault(agent_id, []).append(
                ViewRow(version, position(commit_seq, at), tokens, observed)
            )
        self.steps: dict[tuple[str, int], StepRow] = {}
        spent: dict[str, float] = {}
        for agent_id, turn, reply, results, seconds in connection.execute(_STEPS, (session_id,)):
            self.steps[agent_id, turn] = StepRow(reply, results, spent.get(agent_id, 0.0), seconds)
            spent[agent_id] = spent.get(agent_id, 0.0) + seconds

    def _read_changes(self) -> None:
        """Read the values of each row that later changes replaced, oldest change first."""
        self.changes: dict[tuple[str, str], list[tuple[int, Row]]] = {}
        for commit_seq, table, row_id, text in self._connection.execute(_CHANGES, (self.session_id,)):
            values = decode_or(text, None)
            known = _REPLACED.get(table, {})
            if isinstance(values, dict):
                values = {
                    name: value
                    for name, value in values.items()
                    if name in known and (value is None or isinstance(value, known[name]))
                }
                place = self.numbering.position(commit_seq, None)
                self.changes.setdefault((table, row_id), []).append((place, values))

    # Folding.

    def _apply(self, position: int, event: Event) -> None:
        kind, data = event.kind, event.data
        subject, _, verb = kind.partition(".")
        if kind == "model.replied":
            self.replies.append(position)
        if kind in FAILURES or data.get("is_error") in (True, 1):
            self.failures.append(position)
        if event.agent_id is not None and (event.agent_id in self.agents or kind == "agent.created"):
            timeline = self.agents[event.agent_id]
            before = timeline.last
            known = before is not None and kind != "agent.created"
            timeline.add(
                position,
                agent_after(before, event, position) if before and known else AgentAt(last_active=event.at),
            )
        if subject in ("plan", "task"):
            self.planned.add(position, event.at)
        if subject == "task" and event.task_id:
            tasks = self.tasks[event.task_id]
            tasks.add(position, task_after(tasks.last or TaskAt(), event, self._turn_of(event, tasks.last)))
        elif subject == "tool" and isinstance(data.get("call"), int):
            calls = self.calls[data["call"]]
            calls.add(position, call_after(calls.last or CallAt(), event))
        elif (
            subject == "compaction"
            and verb not in ("undo", "redo")
            and isinstance(data.get("compaction"), int)
        ):
            self.compactions[data["compaction"]].add(position, verb)
        elif kind == "plan.revised":
            self.revisions[str(data.get("plan"))].add(position, int(data.get("revision", 1)))
        elif subject == "approval" and isinstance(data.get("approval"), str):
            self.approvals[data["approval"]].add(position, "waiting" if verb == "asked" else verb)
        elif subject == "command" and isinstance(data.get("command"), int):
            self.commands[data["command"]].add(position, verb)
        elif subject == "budget" and verb in ("reached", "set") and not data.get("project"):
            self.budgets[event.task_id, str(data.get("budget"))].add(position, verb)
        elif subject == "session" and verb in ("running", "paused", *ENDED):
            status = (verb, _text(data.get("reason")))
            if self.session.last is None or self.session.last[:2] != status:
                self.session.add(position, (*status, event.at))

    def _turn_of(self, event: Event, task: TaskAt | None) -> dict[str, int]:
        agent_id = _text(event.data.get("agent")) or (task.agent if task is not None else None)
        known = self.agents.get(agent_id or "")
        last = known.last if known is not None else None
        return {agent_id: last.turn} if agent_id is not None and last is not None else {}

    # Asking.

    @property
    def reported(self) -> Mapping[str, Timelines[Any, str]]:
        """What events reported of the rows of these tables, by their ids."""
        return {"compactions": self.compactions, "approvals": self.approvals, "commands": self.commands}

    def at(self, position: int) -> Moment:
        """The session at a position, 1 … `len(times)`: after the transaction that it belongs to."""
        return Moment(self, position)

    def at_event(self, seq: int) -> Moment:
        """The session right after the transaction that wrote event `seq`.

        Raises:
            NotFound: there is no such event.
        """
        place = bisect_left(self.seqs, seq)
        if place == len(self.seqs) or self.seqs[place] != seq:
            known = f"its events are #1 to #{self.seqs[-1]}" if self.seqs else "it has no events"
            raise NotFound(f"session {self.session_id} has no event #{seq}; {known}")
        return self.at(self._position_of_event(place + 1))

    def graph(self, plan_id: str, revision: int) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Title and needs of each task of a plan's revision, by id."""
        known = self._graphs.get((plan_id, revision))
        if known is None:
            row = self._connection.execute(_GRAPH, (plan_id, revision)).fetchone()
            nodes = decode_or(row[0], []) if row is not None else []
            known = self._graphs[plan_id, revision] = {
                str(one["id"]): (str(one["title"]), tuple(map(str, one["depends_on"])))
                for one in (nodes if isinstance(nodes, list) else [])
                if isinstance(one, dict) and {"id", "title"} <= one.keys()
                if isinstance(one.get("depends_on"), list)
            }
        return known


def _ends(commits: list[int | None], times: array[float]) -> array[int]:
    """For each position the last of its transaction. Without `commit_seq`, equal times tell it."""
    ends = array("q", bytes(8 * len(times)))
    end = len(times)
    for place in range(len(times) - 1, -1, -1):
        if place + 1 < len(times):
            mine, following = commits[place], commits[place + 1]
            if mine != following or (mine is None and times[place] != times[place + 1]):
                end = place + 1
        ends[place] = end
    return ends


def _each(rows: Iterable[Any], cancelled: Cancelled) -> Iterator[Any]:
    for number, row in enumerate(rows):
        if number % _ROWS_BETWEEN_LOOKS == 0 and cancelled():
            raise InterruptedError("the replay was closed")
        yield row


def _rows(connection: Connection, sql: str, *parameters: Any) -> list[Row]:
    found = connection.execute(sql, parameters)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


class _InferredTimelines:
    """Timelines of a log whose events tell little, from its rows and their times.

    An agent exists from its first sign on, and works until its last. A task without events follows its times.
    """

    def __init__(self, history: History) -> None:
        self._history = history

    def _position(self, at: float) -> int:
        return self._history.numbering.position(None, at)

    def build(self, connection: Connection) -> None:
        history = self._history
        last = max(1, len(history.times))
        history.session = Timeline()
        history.session.add(0, ("running", None, None))
        history.session.add(last, tuple(connection.execute(_SESSION, (history.session_id,)).fetchone()))
        history.replies = sorted(
            {self._position(point.at) for point in history.points or () if point.role == "assistant"}
        )
        history.failures += [
            self._position(call.ended_at) for call in history.model_calls if call.status == "error"
        ]
        applied = self._compactions(connection)
        for agent_id, row in history.agent_rows.items():
            self._agent(agent_id, row, applied.get(agent_id, []))
        for task_id, row in history.task_rows.items():
            self._task(task_id, row, last)

    def _compactions(self, connection: Connection) -> dict[str, list[int]]:
        """Adds their timelines; returns where each agent's ended."""
        found: dict[str, list[int]] = {}
        self._history.compactions = Timelines()
        for number, agent_id, status, requested_at, ended_at in connection.execute(
            _COMPACTIONS, (self._history.session_id,)
        ):
            timeline = self._history.compactions[number]
            timeline.add(self._position(requested_at), "started")
            end = max(timeline.positions[0], self._position(ended_at or requested_at))
            timeline.add(end, status)
            found.setdefault(agent_id, []).append(end)
        return found

    def _agent(self, agent_id: str, row: Row, compacted: list[int]) -> None:
        history = self._history
        log, usage = history.messages.get(agent_id), history.usage_of.get(agent_id)
        changes: list[tuple[int, int, Any]] = [(place, 1, None) for place in compacted]
        if log is not None:
            changes += [(place, 0, at) for place, at in zip(log.positions, log.times, strict=True)]
        if usage is not None:
            turns = {call.id: call.turn for call in history.model_calls if call.is_reply}
            changes += [
                (place, 2, turns.get(number, 0))
                for place, number in zip(usage.positions, usage.ids, strict=True)
            ]
        first = self._position(row["created_at"])
        if log is not None:
            first = min(first, log.positions[0])
        state = AgentAt(last_active=row["created_at"], active_seconds=0.0)
        timeline: Timeline[AgentAt] = Timeline()
        timeline.add(first, state)
        ended = row["ended_at"]
        whole = max([first, *(place for place, kind, _ in changes if kind != 1)])
        end = whole if ended is None else min(whole, max(first, self._position(ended)))
        begins = first if not row["started_at"] else self._position(row["started_at"])
        changes += [(end, 3, None), (whole, 4, None), (begins, 5, None)]
        for place, kind, value in sorted(changes, key=lambda change: change[:2]):
            place = max(place, first)
            if kind == 0:
                working = max(0.0, value - row["created_at"])
                state = state._replace(last_active=max(state.last_active, value),
                                active_seconds=min(row["active_seconds"], working))  # fmt: skip
            elif kind == 1:
                state = state._replace(compactions=state.compactions + 1)
            elif kind == 2:
                state = state._replace(turn=max(state.turn, min(value, row["turn"])))
            elif kind == 3:
                state = state._replace(status=row["status"], reason=row["status_reason"], ended_at=ended)
            elif kind == 4:
                state = state._replace(turn=row["turn"], active_seconds=row["active_seconds"])
            else:
                state = state._replace(started=True)
            timeline.add(place, state)
        history.agents[agent_id] = timeline

    def _task(self, task_id: str, row: Row, last: int) -> None:
        history = self._history
        created = self._position(row["created_at"])
        found: list[tuple[int, TaskAt]] = [(created, TaskAt())]
        heard = history.tasks.get(task_id)
        if heard is not None:
            found = [pair for pair in found if pair[0] < heard.positions[0]]
            found += zip(heard.positions, heard.values, strict=True)
        else:
            if row["started_at"] is not None:
                found.append((self._position(row["started_at"]), TaskAt("running", started=True)))
            ended_at = row["ended_at"]
            if ended_at is not None or row["started_at"] is None:
                end = self._position(ended_at) if ended_at is not None else last
                found.append((end, TaskAt(row["status"], started=True, ended_at=ended_at)))
        timeline: Timeline[TaskAt] = Timeline()
        for place, state in found:
            same = state.status == row["status"]
            shown = {"reason": row["status_reason"], "error": row["error"]} if same else {"reason": None}
            timeline.add(max([place, *timeline.positions[-1:]]), state._replace(has_result=same, **shown))
        history.tasks[task_id] = timeline


# --- One moment -------------------------------------------------------------------------------------------


class Moment:
    """A session at one position. Columns are given as they were; None where the row was not there yet."""

    def __init__(self, history: History, position: int) -> None:
        self.history = history
        self.position = position
        self.end = history.ends[position - 1] if history.times else 0
        """The last position of its transaction."""
        self.time = history.times[position - 1] if history.times else 0.0
        self.horizon = self.end if self.end < len(history.times) else ALWAYS
        """Through which position rows count: at the last one also those of later transactions without an event."""
        if history.points is None:
            self.seq = history.seqs[self.end - 1] if history.seqs else 0
        else:
            events = bisect_right(history._event_positions, self.end)
            self.seq = history.seqs[events - 1] if events else 0
        """The last event by then; 0 where there was none."""

    def has(self, commit_seq: int | None, at: float | None) -> bool:
        """Whether an append-only row was there. `at`: its time, for one that has no `commit_seq`."""
        return self.history.numbering.position(commit_seq, at) <= self.horizon

    def has_agents(self) -> bool:
        """Whether there was an agent."""
        return any(timeline.at(self.end) is not None for timeline in self.history.agents.values())

    def agent(self, agent_id: str) -> AgentAt | None:
        """One agent, as its events describe it."""
        return self.history.agents.value(agent_id, self.end)

    def last_seq(self, agent_id: str) -> int:
        """The last message of an agent."""
        log = self.history.messages.get(agent_id)
        return log.last_seq(self.horizon) if log is not None else 0

    def session_columns(self) -> Row:
        """How the session's own row was, but for what it refers to."""
        status, reason, since = self.history.session.at(self.end) or ("running", None, 0.0)
        return {
            "status": status, "status_reason": reason, "event_seq": self.seq,
            "ended_at": since if status in ENDED or not self.history.by_event else None,
            **self.history.usage.at(self.horizon),
        }  # fmt: skip

    def call_status(self, call_id: int, status_now: str) -> str:
        """The status of a tool call that was there. One without any event was refused in the transaction of
        the reply that asked for it."""
        timeline = self.history.calls.get(call_id)
        if timeline is None:
            return status_now if status_now in CALL_ENDED else "pending"
        known = timeline.at(self.end)
        return known.status if known is not None else "pending"

    def views(self, agent_id: str) -> list[ViewRow]:
        """The versions of an agent's context that there were, the newest first."""
        return [
            view for view in reversed(self.history.views.get(agent_id, [])) if view.position <= self.horizon
        ]

    def view_version(self, agent_id: str, state: AgentAt) -> int:
        """The version of its context that the agent had."""
        newest = next(iter(self.views(agent_id)), None)
        if state.moved_to is not None and (newest is None or newest.position <= state.moved_to[1]):
            return state.moved_to[0]
        return newest.version if newest is not None else 0

    def agent_key(self, agent_id: str, state: AgentAt) -> tuple[object, ...]:
        """What `agent_columns` depends on: equal keys give equal columns."""
        usage = self.history.usage_of.get(agent_id)
        count = usage.count(self.horizon) if usage is not None else 0
        return id(state), self.last_seq(agent_id), self.view_version(agent_id, state), count

    def agent_columns(self, agent_id: str, state: AgentAt, last_seq: int | None = None) -> Row:
        """How an agent's row was. `composition` is a mapping. `last_seq`: its last message, by default the
        last that there was."""
        history, row = self.history, self.history.agent_rows[agent_id]
        last = self.last_seq(agent_id) if last_seq is None else last_seq
        version = self.view_version(agent_id, state)
        log, usage = history.messages.get(agent_id), history.usage_of.get(agent_id)
        seconds = state.active_seconds
        if seconds is None:
            step = history.steps.get((agent_id, state.turn))
            whole = step is not None and (step.results or 0) <= last
            seconds = step.seconds + (step.own_seconds if whole else 0.0) if step is not None else 0.0
        columns = {
            "status": state.status, "status_reason": state.reason, "turn": state.turn, "view_version": version,
            "last_seq": last, "message_tokens": log.total(last) if log is not None else 0,
            "started_at": row["started_at"] if state.started or seconds else None, "ended_at": state.ended_at,
            "last_active": state.last_active, "active_seconds": seconds, "compactions": state.compactions,
            "parked_until": state.parked_until, **(usage.at(self.horizon) if usage is not None else NO_USAGE),
        }  # fmt: skip
        if (last, version) != (row["last_seq"], row["view_version"]):
            columns |= self._context(agent_id, row, version, last)
        return columns

    def _context(self, agent_id: str, row: Row, version: int, last: int) -> Row:
        """The size of the context as it must have been: the next step counts it again."""
        views = self.history.views.get(agent_id, [])
        view = next((one for one in views if one.version == version), None)
        if view is None:
            return {}
        log = self.history.messages.get(agent_id) or MessageLog()
        since = log.total(last) - log.total(min(last, log.last_seq(view.position)))
        used = view.tokens + max(0, since)
        made: Row = dict(composition_of(row["composition"]))
        room = row["context_tokens"] + made.get("headroom", 0)
        made.pop("pinned", None)
        made |= {
            "observations": view.observed, "messages": max(0, used - view.observed), "elided": 0,
            "headroom": max(0, room - used),
        }  # fmt: skip
        return {"context_tokens": used, "composition": made}

    def graph(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Title and needs of each task that was in a plan, by id."""
        history, found = self.history, dict[str, tuple[str, tuple[str, ...]]]()
        for plan_id, revisions in history.revisions.items():
            revision = revisions.at(self.end)
            if revision is not None:
                found |= history.graph(plan_id, revision)
        return found

    def task(self, task_id: str) -> TaskAt:
        """One task, as its events describe it."""
        return self.history.tasks.value(task_id, self.end) or TaskAt()

    def task_columns(self, task_id: str, state: TaskAt) -> Row:
        """How a task's row was, but for title and needs."""
        row = self.history.task_rows[task_id]
        columns: Row = {
            "status": state.status, "status_reason": state.reason, "attempt": state.attempt,
            "assigned_agent": state.agent, "starts_from": state.starts_from, "error": state.error,
            "failures": state.failures, "ended_at": state.ended_at,
            "started_at": row["started_at"] if state.started else None,
            **{name: row[name] for name in ("result", "artifact_refs", "inputs_ref", "inputs_hash")},
        }  # fmt: skip
        columns |= self.replaced("tasks", task_id)
        empty: Row = {
            "result": None if not state.has_result else columns["result"],
            "artifact_refs": columns["artifact_refs"] if state.has_artifacts else "[]",
            "inputs_ref": columns["inputs_ref"] if state.has_inputs else "[]",
            "inputs_hash": columns["inputs_hash"] if state.has_hash else None,
        }
        return columns | empty

    def replaced(self, table: str, row_id: object) -> Row:
        """The columns of a row that were changed later, with the values that they had."""
        found: Row = {}
        for position, values in reversed(self.history.changes.get((table, str(row_id)), [])):
            if position <= self.horizon:
                break
            found |= values
        return found


# --- The rows of a session at a moment --------------------------------------------------------------------


class RowsAt:
    """The rows of a session as of a moment, for a fork.

    A call whose result was not in is pending or running, and the host that resumes settles it as after any
    crash. `ahead`: the results of an agent's turn belong to the moment as soon as all of them were in, even if
    the message that carries them came only after the next event.
    """

    def __init__(self, connection: Connection, moment: Moment, *, ahead: bool = True) -> None:
        self._connection = connection
        self.moment = moment
        self.agents = {
            agent_id: state
            for agent_id, timeline in moment.history.agents.items()
            if (state := timeline.at(moment.end)) is not None
        }
        self.last_seq = {agent_id: moment.last_seq(agent_id) for agent_id in self.agents}
        self._results: dict[str, Row] = {}
        """Each agent whose turn was open, and the results of that turn, by the call's `tool_use_id`."""
        for agent_id, state in self.agents.items():
            self._place(agent_id, state, ahead=ahead)
        self._graph = moment.graph()
        self._tasks = {
            task_id: moment.task_columns(task_id, moment.task(task_id))
            for task_id in moment.history.task_rows
            if task_id in self._graph
        }

    def _place(self, agent_id: str, state: AgentAt, *, ahead: bool) -> None:
        step = self.moment.history.steps.get((agent_id, state.turn))
        if step is None or (step.results is not None and step.results <= self.last_seq[agent_id]):
            return
        calls = self._connection.execute(
            "SELECT id, name, status FROM tool_calls WHERE agent_id = ? AND turn = ?", (agent_id, state.turn)
        ).fetchall()
        if not calls:
            return
        over = all(self.moment.call_status(call[0], call[2]) in CALL_ENDED for call in calls)
        finishes = any(call[1] == "finish_session" and call[2] == "done" for call in calls)
        if ahead and over and step.results is not None and (not finishes or state.status in ENDED):
            self.last_seq[agent_id] = step.results
            return
        row = self._connection.execute(
            "SELECT content FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, step.results or 0)
        ).fetchone()
        blocks = decode(row[0]) if row is not None else []
        self._results[agent_id] = {
            one["tool_use_id"]: one for one in blocks if one.get("type") == "tool_result"
        }

    def keep(self, name: str, row: Row) -> Row | None:
        """The row as it was, or None where it was not there yet: as the catalogue says, or by a rule here."""
        table = BY_NAME[name]
        if not self._was_there(table, row):
            return None
        rule = getattr(self, f"_keep_{name}", None)
        if rule is not None:
            kept: Row | None = rule(row)
            return kept
        if "id" in row:
            row = row | self.moment.replaced(name, row["id"])
        if table.later and not self._has_ended(table, row):
            row = row | {column: value for column, value in table.later.items() if column in row}
        return row

    def _was_there(self, table: Table, row: Row) -> bool:
        """Whether a row that never goes again was there, and its agent too."""
        agent_id = row.get("agent_id")
        agent = self.agents.get(agent_id) if agent_id is not None else None
        if agent_id is not None and agent is None:
            return False
        match table.since:
            case "commit":
                return self.moment.has(row["commit_seq"], _time_of(row))
            case "event":
                return bool(row["seq"] <= self.moment.seq)
            case "message":
                return bool(row["seq"] <= self.last_seq[row["agent_id"]])
            case "turn":
                return agent is not None and row["turn"] <= agent.turn
            case "revision":
                revision = self.moment.history.revisions.value(row["plan_id"], self.moment.end)
                return bool(row["revision"] <= (revision or 0))
            case "reported":
                return self._reported(table, row) is not None
            case _:
                return True

    def _has_ended(self, table: Table, row: Row) -> bool:
        """Whether what gives the row's later columns had happened."""
        if table.carried_by:
            return bool((row[table.carried_by] or 0) <= self.last_seq.get(row["agent_id"], 0))
        last = self._reported(table, row)
        return last not in _OPEN or ("status" in row and row["status"] == last)

    def _reported(self, table: Table, row: Row) -> str | None:
        """What events had reported of the row last."""
        history = self.moment.history
        if table.name == "budgets":
            return history.budgets.value((row["task_id"], row["kind"]), self.moment.end)
        return history.reported[table.name].value(row["id"], self.moment.end)

    def dependencies(self) -> list[Row]:
        """The rows of `task_dependencies`, as the plans had them."""
        return [
            {"task_id": task_id, "depends_on": need, "position": position}
            for task_id, (_, needs) in self._graph.items()
            for position, need in enumerate(needs)
        ]

    def _keep_sessions(self, row: Row) -> Row:
        columns = self.moment.session_columns()
        columns.pop("cost_estimated")
        revisions = self.moment.history.revisions
        plan = row["current_plan_id"]
        return row | columns | {
            "hosted_seconds": min(row["hosted_seconds"], max(0.0, self.moment.time - row["created_at"])),
            "current_plan_id": plan if revisions.value(plan, self.moment.end) is not None else None,
            "planner_agent_id": row["planner_agent_id"] if row["planner_agent_id"] in self.agents else None,
        }  # fmt: skip

    def _keep_plans(self, row: Row) -> Row | None:
        revision = self.moment.history.revisions.value(row["id"], self.moment.end)
        if revision is None:
            return None
        (goal,) = self._connection.execute(
            "SELECT goal FROM plan_revisions WHERE plan_id = ? AND revision = ?", (row["id"], revision)
        ).fetchone()
        rows = self.moment.history.task_rows
        tasks = [task_id for task_id in self._tasks if rows[task_id]["parent_plan_id"] == row["id"]]
        queue = [task_id for task_id in tasks if self._tasks[task_id]["status"] in _OPEN_TASKS]
        return row | {
            "goal": goal, "revision": revision, "task_queue": encode(queue),
            "step_cursor": len(tasks) - len(queue),
            "updated_at": self.moment.history.planned.at(self.moment.end),
        }  # fmt: skip

    def _keep_tasks(self, row: Row) -> Row | None:
        columns = self._tasks.get(row["id"])
        if columns is None:
            return None
        agent_id, token = columns["assigned_agent"], row["resume_token"] if columns["attempt"] > 1 else None
        if agent_id in self.agents:
            token = f"{agent_id}:{self.agents[agent_id].turn}:{self.last_seq[agent_id]}"
        return row | {"title": self._graph[row["id"]][0], "resume_token": token} | columns

    def _keep_agents(self, row: Row) -> Row | None:
        state = self.agents.get(row["id"])
        if state is None:
            return None
        columns = self.moment.agent_columns(row["id"], state, self.last_seq[row["id"]])
        columns.pop("cost_estimated")
        if "composition" in columns:
            columns["composition"] = encode(columns["composition"])
        return row | columns

    def _keep_tool_calls(self, row: Row) -> Row:
        if row["turn"] < self.agents[row["agent_id"]].turn or row["agent_id"] not in self._results:
            return row
        if row["edited_input"] is not None and not self._was_edited(row["id"]):
            row = row | {"edited_input": None}
        status = self.moment.call_status(row["id"], row["status"])
        if status not in CALL_ENDED:
            known = self.moment.history.calls.value(row["id"], self.moment.end) or CallAt()
            return row | {
                "status": status, "result": None, "result_seq": None, "is_error": 0, "ended_at": None,
                "started_at": known.started_at, "runs": known.runs,
            }  # fmt: skip
        result, block = row["result"], self._results[row["agent_id"]].get(row["tool_use_id"])
        if result is None and block is not None:
            result = encode(block.get("content"))
        return row | {"status": status, "result": result, "result_seq": None}

    def _was_edited(self, call_id: int) -> bool:
        """Whether a person had approved the call with another input by then."""
        edits = self._connection.execute(
            "SELECT id FROM approvals WHERE tool_call_id = ? AND edited_input IS NOT NULL", (call_id,)
        )
        approvals = self.moment.history.approvals
        return any(approvals.value(row[0], self.moment.end) == "approved" for row in edits.fetchall())


def _time_of(row: Row) -> float | None:
    """When the row was inserted, for one that does not say its commit. `state_changes` have no time."""
    if "latency_seconds" in row:
        return float(row["started_at"] + row["latency_seconds"])
    return row["created_at"] if "created_at" in row else row.get("last_updated")


def seq_of_turn(connection: Connection, agent_id: str, turn: int) -> int:
    """The last event of an agent's turn: its reply, or the end of the last of its calls.

    Raises:
        NotFound: the agent has no such turn.
        BadInput: the session's events tell no turns (it was imported).
    """
    agent = connection.execute("SELECT turn, session_id FROM agents WHERE id = ?", (agent_id,)).fetchone()
    if agent is None:
        raise NotFound(f"no agent {agent_id!r}")
    calls = {
        row[0]
        for row in connection.execute(
            "SELECT id FROM tool_calls WHERE agent_id = ? AND turn = ?", (agent_id, turn)
        )
    }
    replied, found = False, 0
    for seq, kind, text in connection.execute(
        "SELECT seq, kind, data FROM events WHERE session_id = ? AND agent_id = ?"
        " AND (kind = 'model.replied' OR kind LIKE 'tool.%') ORDER BY seq",
        (agent[1], agent_id),
    ):
        data = decode_or(text, {})
        replied = replied or kind == "model.replied"
        if data.get("turn") == turn if kind == "model.replied" else data.get("call") in calls:
            found = seq
    if found:
        return found
    if not replied and agent[0]:
        raise BadInput(f"cannot fork session {agent[1]} at a turn: its events do not record turns")
    raise NotFound(f"agent {agent_id} has no turn {turn}; its last turn is {agent[0]}")
