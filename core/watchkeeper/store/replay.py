"""What a recording is: positions from 1 on, marks among them, and how the session stood at each."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from watchkeeper.store import agent_snapshot, artifacts
from watchkeeper.store.agent_snapshot import (
    CallFacts,
    FactFacts,
    InboxFacts,
    StoredMessage,
    ToolCallFacts,
    ViewFacts,
)
from watchkeeper.store.driver import Connection, Queries, decode_or
from watchkeeper.store.history import AgentMoment, CallMoment, SessionMoment, TaskMoment
from watchkeeper.store.snapshot import (
    AgentFacts,
    ApprovalFacts,
    BudgetFacts,
    CompactionFacts,
    EventFacts,
    SessionFacts,
    SessionSnapshotReader,
    TaskFacts,
    compaction_facts,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A position that people look for."""

    position: int
    kind: Literal["failure", "compaction", "task"]
    """A failure of any kind, an applied compaction, a task that was done."""


@dataclass(frozen=True, slots=True)
class SessionStateAt:
    """How a session stood at a position."""

    position: int
    at: float
    seq: int
    """The last event by then; 0 where there was none yet."""
    session: SessionFacts
    tasks: tuple[TaskFacts, ...]
    agents: tuple[AgentFacts, ...]
    compactions: tuple[CompactionFacts, ...]
    """The newest first."""
    approvals: tuple[ApprovalFacts, ...]
    budgets: tuple[BudgetFacts, ...]


@dataclass(frozen=True, slots=True)
class AgentStateAt:
    """What the agent pane shows of one agent at a position, but for the texts of its messages."""

    agent_id: str
    messages: tuple[StoredMessage, ...]
    """The newest by then, oldest first."""
    tool_calls: tuple[ToolCallFacts, ...]
    calls: tuple[CallFacts, ...]
    facts: tuple[FactFacts, ...]
    view: ViewFacts | None
    views: tuple[ViewFacts, ...]
    system: str
    inbox: tuple[InboxFacts, ...]


class Recording(Protocol):
    """One session from its first step to the last that there was when it was opened. Only reads, ever."""

    session_id: str
    times: array[float]
    """When each position was; never goes back."""
    turns: list[int]
    """The positions at which an agent replied."""
    marks: list[Mark]
    damaged: int
    """How many events cannot be read: a replay goes on without what they told."""
    by_event: bool
    """Positions are events; else they are the times of messages, calls and events."""

    def at(self, connection: Connection, position: int) -> SessionStateAt:
        """How the session stood at that position, 1 … `len(times)`."""
        ...

    def agent(
        self, connection: Connection, then: SessionStateAt, agent_id: str, messages: int
    ) -> AgentStateAt | None:
        """More of one agent; at most `messages` of its messages."""
        ...

    def events(self, connection: Connection, position: int, limit: int) -> tuple[EventFacts, ...]:
        """The last that happened up to that position, oldest first; `seq` is the position."""
        ...


def started_by(task: TaskFacts, at: float) -> float | None:
    """When the task had been started, as far as that was known at `at`."""
    return task.started_at if task.started_at is not None and task.started_at <= at else None


def group_end(times: array[float], position: int) -> int:
    """The last position with the same time: what was committed together has one time, and stood never
    alone."""
    return bisect_right(times, times[position - 1], position - 1)


def turn_beside(turns: list[int], position: int, step: int) -> int | None:
    """The position of the next (`step` 1) or previous (-1) reply, or None."""
    place = bisect_right(turns, position) if step > 0 else bisect_left(turns, position) - 1
    return turns[place] if 0 <= place < len(turns) else None


def not_yet(each: CompactionFacts, status: str) -> CompactionFacts:
    """A pass that has not come to its end."""
    return replace(
        each, status=status, reason=None, messages_removed=0, tokens_after=None, view_before=None, view_after=None, cost_usd=None,
        stall_seconds=None if each.stall_seconds is None else 0.0, cache_tokens_invalidated=0, ended_at=None,
    )  # fmt: skip


# --- What is read once of a session that is replayed: its rows as they stand now, and where its steps, calls and ---
#
# views begin.

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
    reading = SessionSnapshotReader(session_id).read(connection, 0.0)
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


# --- What something was like, and from which position of a recording on -----------------------------------

T = TypeVar("T")


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
        """What it was at that position, or None before the first."""
        place = bisect_right(self.positions, position)
        return self.values[place - 1] if place else None


# --- What the model calls of an agent, or of a session, came to at any position ---------------------------

NONE: dict[str, Any] = {
    "input_tokens": 0, "output_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost_usd": None, "unpriced_calls": 0,
    "model_calls": 0, "retries": 0, "errors": 0, "cost_estimated": False,
}  # fmt: skip
"""Before the first call. The names are those of the facts of agents and sessions."""


class Totals:
    """Running totals over calls, by the position at which each was written."""

    def __init__(self, calls: Iterable[tuple[int, CallRow]]) -> None:
        self.positions: list[int] = []
        self.ids: list[int] = []
        self.turns: list[int] = []
        """The highest turn so far."""
        self._sums: list[tuple[Any, ...]] = []
        sums: tuple[Any, ...] = tuple(NONE.values())
        turn = 0
        for position, call in sorted(calls, key=lambda pair: (pair[0], pair[1].id)):
            sums = _add(sums, call)
            turn = max(turn, call.turn if call.is_reply else 0)
            self.positions.append(position)
            self.ids.append(call.id)
            self.turns.append(turn)
            self._sums.append(sums)

    def place(self, position: int) -> int:
        """How many calls were written by then."""
        return bisect_right(self.positions, position)

    def at(self, position: int) -> dict[str, Any]:
        """The sums at that position, by the names of the facts."""
        place = self.place(position)
        return dict(zip(NONE, self._sums[place - 1], strict=True)) if place else NONE

    def turn_at(self, position: int) -> int:
        """The highest turn that was replied to by then."""
        place = self.place(position)
        return self.turns[place - 1] if place else 0

    def is_whole(self, position: int) -> bool:
        """Every call was written by then."""
        return not self.positions or self.positions[-1] <= position

    def newest(self, position: int, limit: int) -> list[int]:
        """Ids of the last calls that were written by then."""
        place = self.place(position)
        return self.ids[max(0, place - limit) : place]


def _add(sums: tuple[Any, ...], call: CallRow) -> tuple[Any, ...]:
    read, wrote, cached, caching, cost, unpriced, count, retries, errors, estimated = sums
    tokens = call.input_tokens + call.output_tokens + call.cache_read_tokens + call.cache_write_tokens
    if call.cost_usd is not None:
        cost, estimated = (cost or 0.0) + call.cost_usd, estimated or bool(call.is_estimated)
    return (
        read + call.input_tokens, wrote + call.output_tokens, cached + call.cache_read_tokens, caching + call.cache_write_tokens,
        cost, unpriced + (call.cost_usd is None and tokens > 0), count + 1, retries + call.retries, errors + (call.status == "error"),
        estimated,
    )  # fmt: skip


def totals_by_agent(calls: list[tuple[int, CallRow]]) -> dict[str, Totals]:
    """The running totals of each agent that made a call."""
    mine: dict[str, list[tuple[int, CallRow]]] = {}
    for position, call in calls:
        mine.setdefault(call.agent_id, []).append((position, call))
    return {agent_id: Totals(each) for agent_id, each in mine.items()}


# --- The size of an agent's context at a position, as it must have been: the host counts it only step by ---
#
# step.

_MESSAGE = "SELECT total_tokens, created_at FROM messages WHERE agent_id = ? AND seq = ?"
_KEPT = 200_000
"""Messages whose figures are remembered."""


class Contexts:
    """Answers for one recording; what was asked once is remembered, since messages never change."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, int], tuple[int, float]] = {}
        self._begun: dict[tuple[str, int], int] = {}

    def message(self, connection: Connection, agent_id: str, seq: int) -> tuple[int, float]:
        """The running total of tokens through that message, and when it was written; zeros where there is
        none."""
        if seq <= 0:
            return 0, 0.0
        found = self._messages.get((agent_id, seq))
        if found is None:
            row = connection.execute(_MESSAGE, (agent_id, seq)).fetchone()
            if len(self._messages) >= _KEPT:
                self._messages.clear()
            found = self._messages[agent_id, seq] = (
                (int(row[0]), float(row[1])) if row is not None else (0, 0.0)
            )
        return found

    def sizes(self, connection: Connection, agent: AgentFacts, view: ViewRow, last: int) -> dict[str, Any]:
        """The size and make-up of the agent's context under `view`, with messages through `last`, by the
        names of the facts."""
        begun = min(last, self._last_before(connection, agent, view))
        since = self.message(connection, agent.id, last)[0] - self.message(connection, agent.id, begun)[0]
        used = view.tokens + max(0, since)
        made = dict(agent.composition)
        room = agent.context_tokens + made.get("headroom", 0)
        made |= {
            "observations": view.observed, "messages": max(0, used - view.observed), "elided": 0, "headroom": max(0, room - used),
        }  # fmt: skip
        return {"context_tokens": used, "composition": tuple(made.items())}

    def _last_before(self, connection: Connection, agent: AgentFacts, view: ViewRow) -> int:
        """The last message that was there when the view was made. Times of messages never go back in an
        agent."""
        known = self._begun.get((agent.id, view.version))
        if known is None:
            low, high = 0, agent.last_seq
            while low < high:
                middle = (low + high + 1) // 2
                if self.message(connection, agent.id, middle)[1] <= view.created_at:
                    low = middle
                else:
                    high = middle - 1
            known = self._begun[agent.id, view.version] = low
        return known


# --- Listening once to all events of a session: what each agent, task, call and pass was like, and from when on ---
#
# What an event means is said in one place, `library.moment`, which a fork is cut by too.

K = TypeVar("K")

_EVENTS = "SELECT seq, at, kind, agent_id, task_id, data FROM events WHERE session_id = ? ORDER BY seq"

_OF_AGENT = attrgetter(*(each.name for each in fields(AgentMoment)))
_OF_TASK = attrgetter(*(each.name for each in fields(TaskMoment)))
FAILURES = frozenset(
    {
        "task.failed",
        "agent.failed",
        "session.failed",
        "model.error",
        "tool.error",
        "tool.unknown",
        "budget.reached",
    }
)
"""Kinds of events that tell of one."""


class EventReplay:
    """All that the events tell. Positions count from 1."""

    def __init__(self, connection: Connection, session_id: str, cancelled: Cancelled) -> None:
        self.seqs = array("q")
        self.times = array("d")
        """As stored, made never to go back."""
        self.agents: dict[str, Timeline[AgentMoment]] = {}
        self.tasks: dict[str, Timeline[TaskMoment]] = {}
        self.calls: dict[int, Timeline[CallMoment]] = {}
        self.passes: dict[int, Timeline[str]] = {}
        self.approvals: dict[str, Timeline[str]] = {}
        self.revisions: dict[str, Timeline[int]] = {}
        self.session: Timeline[tuple[str, str | None, float]] = Timeline()
        """Status, reason, and since when."""
        self.budgets: dict[tuple[str | None, str], int] = {}
        """From which position on each was reached."""
        self.replies: dict[str, tuple[list[int], list[int]]] = {}
        """Each agent's turns, and the positions at which their replies came."""
        self.passed: dict[str, list[tuple[float, float, int]]] = {}
        """When each pass over an agent's context began, when it first told what came of it, and at which
        position."""
        self._begun: dict[object, float] = {}
        self.damaged = 0
        """How many events cannot be read: that they were there is all that is known of them."""
        self.turns: list[int] = []
        self.marks: list[Mark] = []
        self._moment = SessionMoment(0, 0.0)
        stored = array("d")
        for seq, at, kind, agent_id, task_id, data in each(
            connection.execute(_EVENTS, (session_id,)), cancelled
        ):
            self.seqs.append(seq)
            stored.append(at)
            told = decode_or(data, None)
            if told is None:
                self.damaged += 1
            self._hear(len(self.seqs), kind, at, agent_id, task_id, told)
        self.ends = _ends(stored)
        """For each position the last one that was committed with it."""

    def _hear(
        self, position: int, kind: str, at: float, agent_id: str | None, task_id: str | None, data: object
    ) -> None:
        moment, told = self._moment, data if isinstance(data, dict) else {}
        moment.apply_event(kind, at, agent_id, task_id, told)
        self.times.append(max(at, self.times[-1]) if self.times else at)
        if agent_id in moment.agents:
            _timeline(self.agents, agent_id).add(position, AgentMoment(*_OF_AGENT(moment.agents[agent_id])))
        subject, _, verb = kind.partition(".")
        if subject == "task" and task_id in moment.tasks:
            _timeline(self.tasks, task_id).add(position, TaskMoment(*_OF_TASK(moment.tasks[task_id])))
        elif subject == "tool" and told.get("call") in moment.calls:
            call = moment.calls[told["call"]]
            _timeline(self.calls, told["call"]).add(
                position, CallMoment(call.status, call.runs, call.started_at)
            )
        elif subject == "compaction":
            if told.get("compaction") in moment.passes:
                _timeline(self.passes, told["compaction"]).add(position, moment.passes[told["compaction"]])
            self._passed(position, verb, at, agent_id, told.get("compaction"))
        elif subject == "approval" and told.get("approval") in moment.approvals:
            _timeline(self.approvals, told["approval"]).add(position, moment.approvals[told["approval"]])
        elif kind == "plan.revised":
            plan = str(told.get("plan"))
            _timeline(self.revisions, plan).add(position, moment.revisions[plan])
        elif kind == "budget.reached":
            self.budgets.setdefault((task_id, str(told.get("budget"))), position)
        elif subject == "session":
            before = self.session.values[-1] if self.session.values else None
            if before is None or before[:2] != (moment.status, moment.reason):
                self.session.add(position, (moment.status, moment.reason, at))
        elif kind == "model.replied":
            self._replied(position, agent_id)
        if kind in FAILURES or told.get("is_error") in (True, 1):
            self.marks.append(Mark(position, "failure"))
        elif kind == "compaction.applied":
            self.marks.append(Mark(position, "compaction"))
        elif kind == "task.done":
            self.marks.append(Mark(position, "task"))

    def _passed(self, position: int, verb: str, at: float, agent_id: str | None, compaction: object) -> None:
        if verb == "started":
            self._begun[compaction] = at
        elif verb in ("prepared", "applied", "rejected", "abandoned") and compaction in self._begun:
            self.passed.setdefault(agent_id or "", []).append((self._begun.pop(compaction), at, position))

    def _replied(self, position: int, agent_id: str | None) -> None:
        self.turns.append(position)
        if agent_id in self._moment.agents:
            turns, positions = self.replies.setdefault(agent_id, ([], []))
            turn = self._moment.agents[agent_id].turn
            if not turns or turn > turns[-1]:
                turns.append(turn)
                positions.append(position)


def _ends(at: array[float]) -> array[int]:
    """For each position the last of its commit: events of one follow each other with the very same time."""
    ends = array("q", bytes(8 * len(at)))
    end = len(at)
    for place in range(len(at) - 1, -1, -1):
        if place + 1 < len(at) and at[place] != at[place + 1]:
            end = place + 1
        ends[place] = end
    return ends


def _timeline(timelines: dict[K, Timeline[T]], key: K) -> Timeline[T]:
    found = timelines.get(key)
    if found is None:
        found = timelines[key] = Timeline()
    return found


# --- Where in its messages each agent of a session was; by the same reasoning as `library.cut`, from rows that ---
#
# were read once.

OVER = frozenset({"done", "error", "denied", "unknown", "cancelled"})
"""States of a tool call whose result is in."""

_STEPS = (
    "SELECT s.agent_id, s.turn, s.reply_seq, s.results_seq, s.ended_at - s.started_at, r.created_at, n.role,"
    " n.created_at"
    " FROM agents a JOIN steps s ON s.agent_id = a.id LEFT JOIN messages r ON r.agent_id = s.agent_id AND"
    " r.seq = s.results_seq"
    " LEFT JOIN messages n ON n.agent_id = s.agent_id AND n.seq = s.reply_seq + 1"
    " WHERE a.session_id = ? ORDER BY s.agent_id, s.turn"
)
_TURN_CALLS = (
    "SELECT t.agent_id, t.turn, t.id, t.name, t.status FROM agents a JOIN tool_calls t ON t.agent_id = a.id"
    " WHERE a.session_id = ? ORDER BY t.agent_id, t.turn, t.position"
)
_DELIVERED = "SELECT DISTINCT agent_id, delivered_seq FROM inbox WHERE session_id = ? AND delivered_seq NOTNULL ORDER BY 1, 2"


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of an agent: its reply, and the message with its results."""

    reply: int
    results: int | None
    seconds: float | None
    results_at: float | None
    next_role: str | None
    """Of the message after the reply."""
    next_at: float | None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as it stands now."""

    id: int
    name: str
    status: str


class Place(NamedTuple):
    """Where an agent was."""

    seq: int
    """Its last message."""
    open: bool
    """The results of its last turn had not been given to it."""


class Places:
    """Finds the last message of any agent at any position."""

    def __init__(
        self, connection: Connection, rows: SessionRows, heard: EventReplay, cancelled: Cancelled
    ) -> None:
        self._heard = heard
        self.steps: dict[str, dict[int, Step]] = {}
        self.calls: dict[tuple[str, int], list[ToolCall]] = {}
        """By agent and turn."""
        self._delivered: dict[str, list[int]] = {}
        session_id = rows.session.id
        for agent_id, turn, *row in each(connection.execute(_STEPS, (session_id,)), cancelled):
            self.steps.setdefault(agent_id, {})[turn] = Step(*row)
        for agent_id, turn, *row in each(connection.execute(_TURN_CALLS, (session_id,)), cancelled):
            self.calls.setdefault((agent_id, turn), []).append(ToolCall(*row))
        for agent_id, seq in connection.execute(_DELIVERED, (session_id,)):
            self._delivered.setdefault(agent_id, []).append(seq)
        self._first: dict[str, int] = {}
        self._before: dict[tuple[str, int], float] = {}
        for agent in rows.agents:
            steps = self.steps.get(agent.id, {})
            firsts = [step.reply - 1 for step in steps.values()] + [
                seq - 1 for seq in self._delivered.get(agent.id, [])[:1]
            ]
            self._first[agent.id] = min(firsts, default=agent.last_seq)
            spent = 0.0
            for turn, step in steps.items():
                self._before[agent.id, turn] = spent
                spent += step.seconds or 0.0

    def place(self, agent_id: str, agent: AgentMoment, position: int, until: float) -> Place:
        """Where the agent was. What no event tells of counts if it came by `until`, when the next event
        was."""
        delivered = self._delivered.get(agent_id)
        last = self._first.get(agent_id, 0)
        if agent.delivered and delivered:
            last = max(last, delivered[min(agent.delivered, len(delivered)) - 1])
        step = self.steps.get(agent_id, {}).get(agent.turn)
        if step is None or last > step.reply:
            return Place(last, open=False)
        after, is_open = self._after_reply(agent_id, agent, step, position, until)
        return Place(max(last, after), is_open)

    def _after_reply(
        self, agent_id: str, agent: AgentMoment, step: Step, position: int, until: float
    ) -> tuple[int, bool]:
        calls = self.calls.get((agent_id, agent.turn))
        if not calls:
            asked = step.next_role == "user" and step.next_at is not None and step.next_at <= until
            told = step.reply + 1 in self._delivered.get(agent_id, ())
            return (step.reply + 1 if asked and not told else step.reply), False
        over = all(self.status_of(call, position) in OVER for call in calls)
        finishes = any(call.name == "finish_session" and call.status == "done" for call in calls)
        ended = not finishes or agent.status in ("done", "failed", "cancelled")
        if (
            step.results is not None
            and step.results_at is not None
            and over
            and ended
            and step.results_at <= until
        ):
            return step.results, False
        return step.reply, True

    def status_of(self, call: ToolCall, position: int) -> str:
        """How a call stood. One without any event was refused in the transaction of the reply that made
        it."""
        told = self._heard.calls.get(call.id)
        if told is None:
            return call.status if call.status in OVER else "pending"
        known = told.at(position)
        return known.status if known is not None else "pending"

    def seconds(self, agent_id: str, turn: int, last: int) -> float:
        """How long the agent had worked in steps."""
        step = self.steps.get(agent_id, {}).get(turn)
        if step is None:
            return 0.0
        whole = (step.results or 0) <= last
        return self._before[agent_id, turn] + ((step.seconds or 0.0) if whole else 0.0)


# --- From which position on each model call was written: what `library.calls_then` asks for one moment, for all ---
#
# positions at once.

NEVER = 1 << 62


def written_at(calls: list[CallRow], heard: EventReplay) -> list[tuple[int, CallRow]]:
    """The calls with their positions.

    A reply's call is written with the event that tells of it. One that failed, and those of passes over a
    context, have
    no event of their own: their ids lie between those of replies, and a pass writes its calls when it tells
    of itself.
    """
    replies = [_reply_position(call, heard) if call.is_reply else None for call in calls]
    after: list[int] = [NEVER] * len(calls)
    earliest = NEVER
    for place in range(len(calls) - 1, -1, -1):
        after[place] = earliest
        found = replies[place]
        if found is not None:
            earliest = min(earliest, found)
    written: list[tuple[int, CallRow]] = []
    latest = 0
    for place, call in enumerate(calls):
        position = replies[place]
        if position is None:
            position = min(after[place], max(latest, _own_position(call, heard)))
        else:
            latest = max(latest, position)
        # What nothing later tells of came after the last event: it belongs to the end.
        written.append((min(position, len(heard.times)), call))
    return written


def _reply_position(call: CallRow, heard: EventReplay) -> int:
    turns, positions = heard.replies.get(call.agent_id, ([], []))
    place = bisect_left(turns, call.turn)
    return positions[place] if place < len(turns) else NEVER


def _own_position(call: CallRow, heard: EventReplay) -> int:
    """Of a call that is no reply: where the pass that it was made for told what came of it, else when it
    ended."""
    if call.purpose not in ("turn", "planner"):
        around = [
            told for begun, at, told in heard.passed.get(call.agent_id, []) if begun <= call.ended_at <= at
        ]
        if around:
            return min(around)
    place = bisect_left(heard.times, call.ended_at)
    return place + 1 if place < len(heard.times) else NEVER


# --- Plans at a position: which tasks there were, what each was called and waited for, by whom it was to be ---
#
# done.

_GRAPH = "SELECT plan_graph_snapshot FROM plan_revisions WHERE plan_id = ? AND revision = ?"
_REVISED = "SELECT 1 FROM plan_revisions r JOIN plans p ON p.id = r.plan_id WHERE p.session_id = ? AND r.reason LIKE 'revised %'"
_SAID = "SELECT seq, content FROM messages WHERE agent_id = ? AND role = 'assistant' AND content LIKE '%revise_task%' ORDER BY seq"
_MADE = "SELECT seq, content FROM messages WHERE agent_id = ? AND role = 'assistant' AND content LIKE '%\"role\"%' ORDER BY seq"
_USES = "SELECT tool_use_id, id FROM tool_calls WHERE agent_id = ? AND status = 'done'"
_RESULT = "SELECT digest FROM outputs WHERE agent_id = ? AND created_at <= ? AND kind = 'result' ORDER BY id DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class RoleSaid:
    """The planner said who is to do a task."""

    task: str
    """Its name, or its id."""
    role: str
    seq: int
    call_id: int


class Graphs:
    """Each plan's graph by its revision, read when it is first asked for."""

    def __init__(self, connection: Connection, session_id: str, planner: str | None) -> None:
        self._graphs: dict[tuple[str, int], dict[str, tuple[str, tuple[str, ...]]]] = {}
        self._results: dict[tuple[str, float], str | None] = {}
        self.roles = _roles(connection, session_id, planner)
        """Oldest first; empty where no role was ever revised."""

    def tasks(
        self, connection: Connection, plan_id: str, revision: int
    ) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Titles and needs of the tasks that were in the plan, by id."""
        known = self._graphs.get((plan_id, revision))
        if known is None:
            row = connection.execute(_GRAPH, (plan_id, revision)).fetchone()
            nodes = decode_or(row[0], []) if row is not None else []
            known = {
                str(one["id"]): (str(one["title"]), tuple(map(str, one["depends_on"])))
                for one in (nodes if isinstance(nodes, list) else [])
                if isinstance(one, dict)
                and "title" in one
                and isinstance(one.get("depends_on"), list)
                and "id" in one
            }
            self._graphs[plan_id, revision] = known
        return known

    def with_role(self, task: TaskFacts, said: list[RoleSaid]) -> TaskFacts:
        """The task, to be done by whom the planner had said last."""
        if not any(one.task in (task.name, task.id) for one in self.roles):
            return task
        last = next((one for one in reversed(said) if one.task in (task.name, task.id)), None)
        return replace(task, role=last.role) if last is not None else task

    def result(self, connection: Connection, agent_id: str, done_at: float) -> str | None:
        """What an agent had reported by then, as the dashboard shows it."""
        if (agent_id, done_at) not in self._results:
            row = connection.execute(_RESULT, (agent_id, done_at)).fetchone()
            data = artifacts.get(Queries(connection), artifacts.ref_of(row[0])) if row is not None else None
            self._results[agent_id, done_at] = (
                data.decode("utf-8", "replace")[:2000] if data is not None else None
            )
        return self._results[agent_id, done_at]


def _roles(connection: Connection, session_id: str, planner: str | None) -> list[RoleSaid]:
    if planner is None or connection.execute(_REVISED, (session_id,)).fetchone() is None:
        return []
    if not any('"role"' in row[1] for row in connection.execute(_SAID, (planner,))):
        return []
    ids: dict[str, int] = dict(connection.execute(_USES, (planner,)).fetchall())
    said: list[RoleSaid] = []
    for seq, content in connection.execute(_MADE, (planner,)):
        blocks = decode_or(content, [])
        for block in blocks if isinstance(blocks, list) else []:
            given = block.get("input") if isinstance(block, dict) else None
            call_id = ids.get(str(block.get("id"))) if isinstance(given, dict) else None
            if call_id is not None and isinstance(given, dict):
                said += [
                    RoleSaid(name, role, seq, call_id) for name, role in _given(str(block.get("name")), given)
                ]
    return said


def _given(tool: str, given: dict[str, Any]) -> list[tuple[str, str]]:
    if tool == "create_plan":
        tasks = given.get("tasks")
        found = (
            [(one.get("name"), one.get("role")) for one in tasks if isinstance(one, dict)]
            if isinstance(tasks, list)
            else []
        )
    elif tool == "add_task":
        found = [(given.get("name"), given.get("role"))]
    elif tool == "revise_task":
        found = [(given.get("task"), given.get("role"))]
    else:
        found = []
    return [(str(name).strip(), role) for name, role in found if isinstance(role, str)]


# --- What is read of the one agent looked at: of everything only what was there by then -------------------

MOST_CALLS = 300
MOST_TOOL_CALLS = 100
MOST_VIEWS = 100

_AGENT_EVENTS = (
    "SELECT seq, at, kind, agent_id, task_id, substr(data, 1, 4000) FROM events WHERE session_id = ? AND seq"
    " BETWEEN ? AND ?"
    " ORDER BY seq"
)
_TOOL_CALLS = (
    "SELECT id, tool_use_id, name, status, is_error, started_at, ended_at, turn FROM tool_calls WHERE"
    " agent_id = ? AND turn <= ?"
    " ORDER BY turn DESC, position DESC LIMIT ?"
)
_AGENT_CALLS = (
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
_AGENT_VIEWS = (
    "SELECT version, parent, verbatim_from, reason, tokens, created_at FROM views WHERE agent_id = ?"
    " AND version IN (SELECT value FROM json_each(?)) ORDER BY version DESC"
)
_INBOX = (
    "SELECT id, kind, substr(payload, 1, 4000), created_at FROM inbox WHERE session_id = ? AND agent_id = ?"
    " AND created_at <= ?"
    " AND (delivered_seq IS NULL OR delivered_seq > ?) ORDER BY id LIMIT 50"
)


def agent_messages(connection: Connection, agent_id: str, last: int, limit: int) -> tuple[StoredMessage, ...]:
    """The last `limit` messages through `last`, oldest first."""
    return tuple(agent_snapshot.messages_between(connection, agent_id, max(1, last - limit + 1), last))


def events(
    connection: Connection, session_id: str, first: int, last: int, seqs: array[int]
) -> tuple[EventFacts, ...]:
    """The events of those numbers, with their positions for numbers."""
    rows = connection.execute(_AGENT_EVENTS, (session_id, first, last))
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
    found = connection.execute(_AGENT_CALLS, (json.dumps(ids),))
    return tuple(CallFacts(*[*row[:10], bool(row[10]), *row[11:]]) for row in found)


def facts(connection: Connection, session_id: str, agent_id: str, at: float) -> tuple[FactFacts, ...]:
    """What the agent remembered, and what the session has pinned; what was superseded only later counts."""
    found = connection.execute(_FACTS, (session_id, agent_id, at, at))
    return tuple(FactFacts(*[*row[:5], bool(row[5]), *row[6:]]) for row in found)


def view(connection: Connection, agent_id: str, version: int) -> ViewFacts | None:
    """One version of the agent's context."""
    return agent_snapshot.view(connection, agent_id, version)


def agent_views(connection: Connection, agent_id: str, versions: Sequence[int]) -> tuple[ViewFacts, ...]:
    """Those versions without their observations, newest first."""
    return tuple(
        ViewFacts(*row)
        for row in connection.execute(_AGENT_VIEWS, (agent_id, json.dumps(versions[:MOST_VIEWS])))
    )


def system(connection: Connection, agent_id: str) -> str:
    """The agent's system prompt."""
    return agent_snapshot.system_prompt(connection, agent_id)


def inbox(
    connection: Connection, session_id: str, agent_id: str, at: float, last: int
) -> tuple[InboxFacts, ...]:
    """What had been sent to the agent, and was not read yet."""
    return tuple(InboxFacts(*row) for row in connection.execute(_INBOX, (session_id, agent_id, at, last)))


# --- The recording of a session whose events tell everything: a position is an event ----------------------

_ENDED = frozenset({"done", "failed", "cancelled"})
_OVER = frozenset({"applied", "rejected", "abandoned"})
_UNHEARD = TaskMoment()
"""A task of which no event told yet."""


class EventRecording:
    """See `Recording`. Events that were committed together stand for one state: the rows right after that
    commit."""

    by_event = True

    def __init__(self, connection: Connection, rows: SessionRows, cancelled: Cancelled) -> None:
        self.session_id = rows.session.id
        self._rows = rows
        self._heard = heard = EventReplay(connection, self.session_id, cancelled)
        self.times, self.turns, self.marks = heard.times, heard.turns, heard.marks
        self.damaged = heard.damaged
        self._places = Places(connection, rows, heard, cancelled)
        written = written_at(rows.calls, heard)
        self._totals = Totals(written)
        self._by_agent = totals_by_agent(written)
        self._contexts = Contexts()
        self._made: dict[str, tuple[tuple[object, ...], AgentFacts]] = {}
        """Each agent as it was told last, and what that depended on."""
        self._tasks_made: dict[str, tuple[tuple[object, ...], TaskFacts]] = {}
        """The same of each task."""
        self._graphs = Graphs(connection, self.session_id, rows.session.planner_agent_id)

    # How it stood.

    def at(self, connection: Connection, position: int) -> SessionStateAt:
        """How the session stood at that position, 1 … `len(times)`."""
        end, at = self._end(position)
        agents = tuple(self._agents(connection, end, at))
        seats = {agent.id: agent for agent in agents}
        planner = seats.get(self._rows.session.planner_agent_id or "")
        return SessionStateAt(
            position=position,
            at=at,
            seq=self._heard.seqs[position - 1],
            session=self._session(end, at, seats),
            tasks=tuple(self._tasks(connection, end, at, planner)),
            agents=agents,
            compactions=tuple(self._compactions(end)),
            approvals=tuple(self._approvals(end, at)),
            budgets=tuple(self._budgets(end)),
        )

    def agent(
        self, connection: Connection, then: SessionStateAt, agent_id: str, messages: int
    ) -> AgentStateAt | None:
        """More of one agent; at most `messages` of its messages."""
        end, at = self._end(then.position)
        agent = next((each for each in then.agents if each.id == agent_id), None)
        moment = self._moment(agent_id, end)
        if agent is None or moment is None:
            return None
        place = self._place(agent_id, moment, end)
        views = [view.version for view in self._kept_views(connection, agent_id, end, at, place.seq)]
        totals = self._by_agent.get(agent_id)
        return AgentStateAt(
            agent_id,
            agent_messages(connection, agent_id, place.seq, messages),
            tuple(tool_calls(connection, agent_id, moment.turn, self._heard.calls, end, is_open=place.open)),
            calls(connection, totals.newest(end, MOST_CALLS) if totals is not None else []),
            facts(connection, self.session_id, agent_id, at),
            view(connection, agent_id, agent.view_version),
            agent_views(connection, agent_id, views),
            system(connection, agent_id),
            inbox(connection, self.session_id, agent_id, at, place.seq),
        )

    def events(self, connection: Connection, position: int, limit: int) -> tuple[EventFacts, ...]:
        """The last events up to that position, oldest first; `seq` is the position."""
        seqs = self._heard.seqs
        return events(connection, self.session_id, seqs[max(0, position - limit)], seqs[position - 1], seqs)

    # Parts.

    def _end(self, position: int) -> tuple[int, float]:
        """The last position of the commit, and its time."""
        return self._heard.ends[position - 1], self._heard.times[position - 1]

    def _until(self, end: int) -> float:
        """When the next event came: what no event tells of was before it, or it was later."""
        times = self._heard.times
        return times[end] if end < len(times) else float("inf")

    def _moment(self, agent_id: str, end: int) -> AgentMoment | None:
        told = self._heard.agents.get(agent_id)
        return told.at(end) if told is not None else None

    def _place(self, agent_id: str, moment: AgentMoment, end: int) -> Place:
        return self._places.place(agent_id, moment, end, self._until(end))

    def _session(self, end: int, at: float, agents: dict[str, AgentFacts]) -> SessionFacts:
        row = self._rows.session
        status, reason, since = self._heard.session.at(end) or ("running", None, row.created_at)
        plan = self._heard.revisions.get(row.current_plan_id or "")
        return replace(
            row, status=status, status_reason=reason, last_active=at, ended_at=since if status in _ENDED else None,
            hosted_seconds=min(row.hosted_seconds, max(0.0, at - row.created_at)), event_seq=self._heard.seqs[end - 1],
            planner_agent_id=row.planner_agent_id if row.planner_agent_id in agents else None,
            current_plan_id=row.current_plan_id if plan is not None and plan.at(end) is not None else None,
            host_pid=None, **self._totals.at(end),
        )  # fmt: skip

    def _agents(self, connection: Connection, end: int, at: float) -> Iterator[AgentFacts]:
        for row in self._rows.agents:
            moment = self._moment(row.id, end)
            if moment is None:
                continue
            last = self._place(row.id, moment, end).seq
            view = self._view(connection, row.id, moment, end, at, last)
            totals = self._by_agent.get(row.id)
            begun = row.started_at is not None and row.started_at <= at
            # What depends on nothing else is made once: from one step to the next, most agents stand as they
            # stood.
            told = (id(moment), last, view, totals.place(end) if totals is not None else 0, begun)
            known = self._made.get(row.id)
            if known is None or known[0] != told:
                known = self._made[row.id] = (
                    told,
                    self._agent(connection, row, moment, end, last, view, begun),
                )
            yield known[1]

    def _agent(
        self,
        connection: Connection,
        row: AgentFacts,
        moment: AgentMoment,
        end: int,
        last: int,
        view: ViewRow | None,
        begun: bool,
    ) -> AgentFacts:
        version = (
            view.version if view is not None else (moment.moved_to[0] if moment.moved_to is not None else 0)
        )
        totals = self._by_agent.get(row.id)
        changes = totals.at(end) if totals is not None else NONE
        if view is not None and (last, version) != (row.last_seq, row.view_version):
            changes = changes | self._contexts.sizes(connection, row, view, last)
        return replace(
            row, status=moment.status, status_reason=moment.reason, turn=moment.turn, view_version=version, last_seq=last,
            message_tokens=self._contexts.message(connection, row.id, last)[0], started_at=row.started_at if begun else None,
            ended_at=moment.ended_at, last_active=moment.last_active, compactions=moment.compactions, live=None,
            parked_until=moment.parked_until,
            active_seconds=self._places.seconds(row.id, moment.turn, last), **changes,
        )  # fmt: skip

    def _view(
        self, connection: Connection, agent_id: str, moment: AgentMoment, end: int, at: float, last: int
    ) -> ViewRow | None:
        """The version of the context that the agent had."""
        rows = self._rows.views.get(agent_id, [])
        newest = next(self._kept_views(connection, agent_id, end, at, last), None)
        if moment.moved_to is not None and (newest is None or newest.created_at <= moment.moved_to[1]):
            return next((row for row in rows if row.version == moment.moved_to[0]), None)
        return newest

    def _kept_views(
        self, connection: Connection, agent_id: str, end: int, at: float, last: int
    ) -> Iterator[ViewRow]:
        """The versions that there were, the newest first."""
        until = max(at, self._contexts.message(connection, agent_id, last)[1])
        for row in reversed(self._rows.views.get(agent_id, [])):
            passes = self._heard.passes.get(row.compaction_id) if row.compaction_id is not None else None
            told = passes.at(end) if passes is not None else None
            if (told == "applied") if told is not None else row.created_at <= until:
                yield row

    def _tasks(
        self, connection: Connection, end: int, at: float, planner: AgentFacts | None
    ) -> list[TaskFacts]:
        graph: dict[str, tuple[str, tuple[str, ...]]] = {}
        for plan_id, revisions in self._heard.revisions.items():
            revision = revisions.at(end)
            if revision is not None:
                graph |= self._graphs.tasks(connection, plan_id, revision)
        last = planner.last_seq if planner is not None else 0
        said = [one for one in self._graphs.roles if one.seq <= last and self._called(one.call_id, end)]
        found: list[TaskFacts] = []
        for row in self._rows.tasks:
            if row.id not in graph:
                continue
            title, needs = graph[row.id]
            timeline = self._heard.tasks.get(row.id)
            state = (timeline.at(end) if timeline is not None else None) or _UNHEARD
            told = (state, title, needs, started_by(row, at), self._result(connection, row, state))
            known = self._tasks_made.get(row.id)
            if known is None or known[0] != told:
                task = replace(
                    row, title=title, depends_on=needs, status=state.status, status_reason=state.reason, attempt=state.attempt,
                    assigned_agent=state.agent, error=state.error[:2000] if state.error is not None else None,
                    ended_at=state.ended_at, started_at=told[3], result=told[4],
                )  # fmt: skip
                known = self._tasks_made[row.id] = (told, task)
            found.append(self._graphs.with_role(known[1], said))
        return found

    def _called(self, call_id: int, end: int) -> bool:
        told = self._heard.calls.get(call_id)
        return told is not None and told.at(end) is not None

    def _result(self, connection: Connection, row: TaskFacts, state: TaskMoment) -> str | None:
        if state.done_at is None:
            return None
        if row.result is not None and (row.attempt, row.status, row.assigned_agent) == (
            state.attempt,
            state.status,
            state.agent,
        ):
            return row.result
        if state.made is None:
            return None
        found = self._graphs.result(connection, *state.made)
        return found if found is not None else row.result

    def _compactions(self, end: int) -> list[CompactionFacts]:
        found: list[CompactionFacts] = []
        for row in self._rows.compactions:
            passes = self._heard.passes.get(row.id)
            told = passes.at(end) if passes is not None else None
            if told in _OVER:
                found.append(replace(row, status=told or row.status))
            elif told is not None:
                found.append(not_yet(row, "prepared" if told == "prepared" else "running"))
        return found

    def _approvals(self, end: int, at: float) -> list[ApprovalFacts]:
        found: list[ApprovalFacts] = []
        for row, decided_at in self._rows.approvals:
            timeline = self._heard.approvals.get(row.id)
            told = timeline.at(end) if timeline is not None else None
            if told == "waiting" and (decided_at is None or decided_at > at):
                found.append(row)
        return found

    def _budgets(self, end: int) -> list[BudgetFacts]:
        reached = self._heard.budgets
        return [
            row if reached.get((row.task_id, row.kind), end + 1) <= end else replace(row, reached_at=None)
            for row in self._rows.budgets
        ]
