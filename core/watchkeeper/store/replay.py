"""Replay: what the dashboard shows of a session at each of its positions, with marks among them. Only reads.

`open_recording` reads a session once; `store.history` tells how it was at any position, and this module shows it in
the form in which the dashboard reads a live session.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from watchkeeper.store import agent_snapshot
from watchkeeper.store.agent_snapshot import (
    CALL_COLUMNS,
    FACT_COLUMNS,
    INBOX_COLUMNS,
    MOST_CALLS,
    MOST_FACTS,
    MOST_INBOX,
    MOST_TOOL_CALLS,
    MOST_VIEWS,
    TOOL_CALL_COLUMNS,
    VIEW_COLUMNS,
    AgentReading,
    CallFacts,
    FactFacts,
    InboxFacts,
    StoredMessage,
    ToolCallFacts,
    ViewFacts,
    fact,
    model_call,
    tool_call,
)
from watchkeeper.store.driver import IN_LIST, Connection, decode, encode, list_of
from watchkeeper.store.history import (
    CALL_ENDED,
    EVENT,
    MESSAGE,
    CallAt,
    Cancelled,
    History,
    Moment,
    Point,
    Row,
)
from watchkeeper.store.projection import (
    COMPACTION_COLUMNS,
    AgentFacts,
    CompactionFacts,
    SessionFacts,
    TaskFacts,
    compaction_facts,
)
from watchkeeper.store.schema import BY_NAME
from watchkeeper.store.snapshot import (
    APPROVAL_COLUMNS,
    EVENT_COLUMNS,
    ApprovalFacts,
    EventFacts,
    Rates,
    SessionReading,
    SessionSnapshotReader,
)

PREVIEW = 300

_FINISHED = frozenset({"applied", "rejected", "abandoned", "skipped"})


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
    reading: SessionReading
    """As a live reading, without commands, rates and events; all its compactions, the newest first."""


@dataclass(frozen=True, slots=True)
class AgentStateAt:
    """What the agent pane shows of one agent at a position, but for the texts of its messages."""

    agent_id: str
    messages: tuple[StoredMessage, ...]
    """The newest by then, oldest first."""
    reading: AgentReading
    view: ViewFacts | None
    system: str


def turn_beside(turns: list[int], position: int, step: int) -> int | None:
    """The position of the next (`step` 1) or previous (-1) reply, or None."""
    place = bisect_right(turns, position) if step > 0 else bisect_left(turns, position) - 1
    return turns[place] if 0 <= place < len(turns) else None


# --- The recording ----------------------------------------------------------------------------------------

_COMPACTIONS = f"SELECT {COMPACTION_COLUMNS} FROM compactions WHERE session_id = ? ORDER BY id DESC"
_APPROVALS = f"SELECT {APPROVAL_COLUMNS} FROM approvals WHERE session_id = ? ORDER BY created_at, id"


class Recording:
    """One session from its first position to the last one at the time of opening.

    Events that were committed together represent one state: the rows right after that commit.
    """

    def __init__(self, connection: Connection, now: SessionReading, history: History) -> None:
        self.session_id = history.session_id
        self.times: array[float] = history.times
        """When each position was; never goes back."""
        self.damaged = history.damaged
        """How many events cannot be read: a replay goes on without what they contain."""
        self.by_event = history.by_event
        """Positions are events; else they are messages, model calls and events, by their times."""
        self._history = history
        self._now = now
        self.turns = history.replies
        """The positions at which an agent replied."""
        self.marks = _marks(history)
        self._made: dict[str, tuple[tuple[object, ...], Any]] = {}
        """Each agent and task as it was shown last, and what that depended on."""

    def at(self, connection: Connection, position: int) -> SessionStateAt:
        """How the session was at that position, 1 … `len(times)`."""
        moment = self._history.at(position)
        agents = tuple(self._agents(moment))
        return SessionStateAt(
            position=position,
            at=moment.time,
            seq=moment.seq if self.by_event is False else self._history.seqs[position - 1],
            reading=replace(
                self._now,
                session=self._session(moment, {agent.id for agent in agents}),
                tasks=tuple(self._tasks(moment)),
                agents=agents,
                compactions=tuple(self._compactions(moment)),
                approvals=tuple(
                    row
                    for row in self._now.approvals
                    if self._history.approvals.value(row.id, moment.end) == "waiting"
                ),
                budgets=tuple(
                    row
                    if self._history.budgets.value((row.task_id, row.kind), moment.end) == "reached"
                    else replace(row, reached_at=None)
                    for row in self._now.budgets
                ),
            ),
        )

    def agent(
        self, connection: Connection, then: SessionStateAt, agent_id: str, messages: int
    ) -> AgentStateAt | None:
        """More of one agent; at most `messages` of its messages."""
        agent = next((each for each in then.reading.agents if each.id == agent_id), None)
        if agent is None:
            return None
        moment, history = self._history.at(then.position), self._history
        last = agent.last_seq
        usage = history.usage_of.get(agent_id)
        step = history.steps.get((agent_id, agent.turn))
        is_open = step is not None and (step.results is None or step.results > last)
        versions = [view.version for view in moment.views(agent_id)[:MOST_VIEWS]]
        return AgentStateAt(
            agent_id,
            tuple(agent_snapshot.newest_messages(connection, agent_id, messages, last=last)),
            AgentReading(
                tuple(_tool_calls(connection, moment, agent_id, agent.turn, is_open=is_open)),
                _calls(connection, usage.newest(moment.horizon, MOST_CALLS) if usage is not None else []),
                tuple(_facts(connection, moment, agent_id)),
                _views(connection, agent_id, versions),
                tuple(_inbox(connection, moment, agent_id, last)),
            ),
            agent_snapshot.view(connection, agent_id, agent.view_version),
            agent_snapshot.system_prompt(connection, agent_id),
        )

    def events(self, connection: Connection, position: int, limit: int) -> tuple[EventFacts, ...]:
        """The last that happened up to that position, oldest first; `seq` is the position."""
        first, points = max(0, position - limit), self._history.points
        if points is not None:
            return _told(connection, self.session_id, points[first:position], first + 1)
        seqs = self._history.seqs
        rows = connection.execute(_EVENTS, (self.session_id, seqs[first], seqs[position - 1]))
        return tuple(EventFacts(bisect_left(seqs, row[0]) + 1, *row[1:]) for row in rows)

    # Parts.

    def _session(self, moment: Moment, agents: set[str]) -> SessionFacts:
        row, revisions = self._now.session, self._history.revisions
        plan = row.current_plan_id or ""
        has_plan = not self.by_event or revisions.value(plan, moment.end) is not None
        return replace(
            row, **moment.session_columns(), last_active=moment.time, host_pid=None,
            hosted_seconds=min(row.hosted_seconds, max(0.0, moment.time - row.created_at)),
            planner_agent_id=row.planner_agent_id if row.planner_agent_id in agents else None,
            current_plan_id=row.current_plan_id if has_plan else None,
        )  # fmt: skip

    def _agents(self, moment: Moment) -> Iterator[AgentFacts]:
        for row in self._now.agents:
            state = moment.agent(row.id)
            if state is None:
                continue
            # From one position to the next, most agents are as they were: only the others are made again.
            key = moment.agent_key(row.id, state)
            known = self._made.get(row.id)
            if known is None or known[0] != key:
                columns = moment.agent_columns(row.id, state)
                if "composition" in columns:
                    columns["composition"] = tuple(columns["composition"].items())
                known = self._made[row.id] = (key, replace(row, live=None, **columns))
            yield known[1]

    def _tasks(self, moment: Moment) -> Iterator[TaskFacts]:
        graph = moment.graph() if self.by_event else None
        for row in self._now.tasks:
            if graph is not None and row.id not in graph:
                continue
            state = self._history.tasks.value(row.id, moment.end)
            if state is None and graph is None:
                continue
            title, needs = graph[row.id] if graph is not None else (row.title, row.depends_on)
            replaced = moment.replaced("tasks", row.id)
            key = (id(state), title, needs, tuple(replaced.items()))
            known = self._made.get(row.id)
            if known is None or known[0] != key:
                columns = moment.task_columns(row.id, moment.task(row.id))
                known = self._made[row.id] = (
                    key,
                    _task(row, columns | {"title": title, "depends_on": needs}),
                )
            yield known[1]

    def _compactions(self, moment: Moment) -> Iterator[CompactionFacts]:
        for row in self._now.compactions:
            status = self._history.compactions.value(row.id, moment.end)
            if status in _FINISHED or (status is not None and not self.by_event and status != "started"):
                yield replace(row, status=status)
            elif status is not None:
                yield _unfinished(row, "prepared" if status == "prepared" else "running")


def open_recording(
    connection: Connection, session_id: str, cancelled: Cancelled = lambda: False
) -> Recording | None:
    """The recording of a session, or None where there is no such session. To be called inside one
    transaction.

    `cancelled` is asked now and then, and ends the reading with `InterruptedError`.
    """
    reading = SessionSnapshotReader(session_id).read(connection, 0.0)
    if reading is None:
        return None
    compactions = connection.execute(_COMPACTIONS, (session_id,)).fetchall()
    now = replace(
        reading,
        compactions=tuple(compaction_facts(row, reading.session.origin) for row in compactions),
        approvals=tuple(ApprovalFacts(*row) for row in connection.execute(_APPROVALS, (session_id,))),
        commands=(),
        events=(),
        rates=Rates(),
    )
    return Recording(connection, now, History(connection, session_id, cancelled))


_TASK_FACTS = frozenset(each.name for each in fields(TaskFacts))


def _task(row: TaskFacts, columns: Row) -> TaskFacts:
    shown: Row = {name: value for name, value in columns.items() if name in _TASK_FACTS}
    for name in ("result", "error"):  # as much of them as the dashboard reads
        shown[name] = shown[name][:2000] if shown[name] is not None else None
    return replace(row, **shown)


def _unfinished(each: CompactionFacts, status: str) -> CompactionFacts:
    later: Row = {name: value for name, value in BY_NAME["compactions"].later.items() if hasattr(each, name)}
    if each.stall_seconds is None:
        later.pop("stall_seconds")
    return replace(each, **later | {"status": status})


def _marks(history: History) -> list[Mark]:
    marks = [Mark(position, "failure") for position in history.failures]
    for timeline in history.compactions.values():
        marks += [
            Mark(position, "compaction")
            for position, status in zip(timeline.positions, timeline.values, strict=True)
            if status in ("applied", "undone")
        ]
    for tasks in history.tasks.values():
        marks += [
            Mark(position, "task")
            for position, state in zip(tasks.positions, tasks.values, strict=True)
            if state.status == "done"
        ]
    return sorted(marks, key=lambda mark: mark.position)


# --- What is read of the one agent that is shown -----------------------------------------------------------

_EVENTS = f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = ? AND seq BETWEEN ? AND ? ORDER BY seq"
_TOOL_CALLS = (
    f"SELECT id, turn, {TOOL_CALL_COLUMNS} FROM tool_calls WHERE agent_id = ? AND turn <= ?"
    " ORDER BY turn DESC, position DESC LIMIT ?"
)
_CALLS = f"SELECT {CALL_COLUMNS} FROM model_calls WHERE id {IN_LIST} ORDER BY id DESC"
_FACTS = (
    f"SELECT {FACT_COLUMNS}, commit_seq, superseded_by, (SELECT s.session_id FROM facts s WHERE s.id ="
    " facts.superseded_by) FROM facts WHERE session_id = ?1 AND (agent_id = ?2 OR pinned = 1 OR"
    " CAST(id AS TEXT) IN (SELECT row_id FROM state_changes WHERE session_id = ?1 AND table_name = 'facts'))"
    " ORDER BY id DESC"
)
_VIEWS = f"SELECT {VIEW_COLUMNS} FROM views WHERE agent_id = ? AND version {IN_LIST} ORDER BY version DESC"
_INBOX = (
    f"SELECT {INBOX_COLUMNS}, commit_seq FROM inbox WHERE session_id = ? AND agent_id = ?"
    " AND (delivered_seq IS NULL OR delivered_seq > ?) ORDER BY id"
)


def _tool_calls(
    connection: Connection, moment: Moment, agent_id: str, turn: int, *, is_open: bool
) -> Iterator[ToolCallFacts]:
    """The newest calls as they were, newest first. `is_open`: the agent had no results of its last turn."""
    if not moment.history.by_event:
        return  # other programs' logs do not tell when each call began and ended
    rows = connection.execute(_TOOL_CALLS, (agent_id, turn, MOST_TOOL_CALLS))
    for call_id, its_turn, *row in rows:
        now = tool_call(row)
        status = moment.call_status(call_id, now.status) if its_turn == turn and is_open else now.status
        if status in CALL_ENDED:
            yield replace(now, status=status)
        else:
            known = moment.history.calls.value(call_id, moment.end) or CallAt()
            yield replace(now, status=status, is_error=False, started_at=known.started_at, ended_at=None)


def _calls(connection: Connection, ids: Sequence[int]) -> tuple[CallFacts, ...]:
    """The calls to models of those ids, newest first."""
    return tuple(map(model_call, connection.execute(_CALLS, (list_of(ids),))))


def _facts(connection: Connection, moment: Moment, agent_id: str) -> list[FactFacts]:
    """What the agent remembered, and what the session had pinned; what was superseded only later counts."""
    found: list[FactFacts] = []
    session_id = moment.history.session_id
    for *row, commit_seq, superseded_by, superseded_in in connection.execute(_FACTS, (session_id, agent_id)):
        now = fact(row)
        if not moment.has(commit_seq, now.created_at):
            continue
        # A fact of another session has no place among this session's positions.
        own = superseded_by if superseded_in == session_id else None
        then = {"pinned": now.pinned, "superseded_by": own} | moment.replaced("facts", now.id)
        if (now.agent_id == agent_id or then["pinned"]) and then["superseded_by"] is None:
            found.append(replace(now, pinned=bool(then["pinned"])))
    return sorted(found, key=lambda one: one.pinned, reverse=True)[:MOST_FACTS]


def _views(connection: Connection, agent_id: str, versions: Sequence[int]) -> tuple[ViewFacts, ...]:
    """Those versions without their observations, newest first."""
    return tuple(ViewFacts(*row) for row in connection.execute(_VIEWS, (agent_id, list_of(versions))))


def _inbox(connection: Connection, moment: Moment, agent_id: str, last: int) -> list[InboxFacts]:
    """What had been sent to the agent and was not read yet."""
    rows = connection.execute(_INBOX, (moment.history.session_id, agent_id, last))
    return [InboxFacts(*row[:4]) for row in rows if moment.has(row[4], row[3])][:MOST_INBOX]


# --- Messages and model calls, shown as events are: what happened at the positions of another program's log ---

_MESSAGE = "SELECT role, substr(content, 1, 4000) FROM messages WHERE agent_id = ? AND seq = ?"
_CALL = "SELECT turn, purpose, status, model, substr(error, 1, 1000) FROM model_calls WHERE id = ?"
_EVENT = "SELECT kind, agent_id, task_id, substr(data, 1, 4000) FROM events WHERE session_id = ? AND seq = ?"


def _told(
    connection: Connection, session_id: str, points: Sequence[Point], first: int
) -> tuple[EventFacts, ...]:
    """Those points as events; `first` is the position of the first of them."""
    found: list[EventFacts] = []
    for position, point in enumerate(points, first):
        if point.kind == EVENT:
            row = connection.execute(_EVENT, (session_id, point.number)).fetchone()
            described = row
        elif point.kind == MESSAGE:
            row = connection.execute(_MESSAGE, (point.agent_id, point.number)).fetchone()
            text = (
                encode({"text": f"#{point.number} {_preview(row[1])}", "seq": point.number})
                if row is not None
                else ""
            )
            described = (f"{point.role}.message", point.agent_id, None, text)
        else:
            row = connection.execute(_CALL, (point.number,)).fetchone()
            described = _call(row, point.agent_id) if row is not None else None
        if row is not None:
            found.append(EventFacts(position, point.at, *described))
    return tuple(found)


def _call(row: tuple[int, str, str, str, str | None], agent_id: str) -> tuple[str, str, None, str]:
    turn, purpose, status, model, error = row
    if status == "error":
        return "model.error", agent_id, None, encode({"error": error or purpose})
    return "model.replied", agent_id, None, encode({"turn": turn, "preview": f"{purpose}, {model}"})


def _preview(content: str) -> str:
    """The beginning of what a message says; of one that is too long to be parsed, of its text as stored."""
    try:
        value = decode(content)
    except ValueError:
        return content[:PREVIEW]
    blocks = value if isinstance(value, list) else [value]
    return " ".join(" ".join(_said(block).split()) for block in blocks)[:PREVIEW]


def _said(block: object) -> str:
    if isinstance(block, list):
        return " ".join(_said(each) for each in block)
    if not isinstance(block, dict):
        return "" if block is None else str(block)
    kind = block.get("type")
    if kind == "tool_use":
        return f"→ {block.get('name')}"
    if kind == "tool_result":
        return f"← {_said(block.get('content'))}"
    return str(block.get("text") or block.get("thinking") or f"[{kind}]")
