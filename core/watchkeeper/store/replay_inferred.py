"""What happened at the positions of a session whose events tell little: messages and calls, told as events
are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from watchkeeper.store import replay
from watchkeeper.store.driver import Connection, decode, encode
from watchkeeper.store.replay import (
    FAILURES,
    NONE,
    AgentStateAt,
    Cancelled,
    Contexts,
    EventReplay,
    Mark,
    Recording,
    SessionRows,
    SessionStateAt,
    Totals,
    ViewRow,
    each,
    group_end,
    not_yet,
    started_by,
    totals_by_agent,
)
from watchkeeper.store.snapshot import AgentFacts, CompactionFacts, EventFacts, SessionFacts, TaskFacts

EVENT, CALL, MESSAGE = 0, 1, 2
"""Kinds of position, in the order in which they are told where their times are the same."""

PREVIEW = 300
_MESSAGE = "SELECT role, substr(content, 1, 4000) FROM messages WHERE agent_id = ? AND seq = ?"
_CALL = "SELECT turn, purpose, status, model, substr(error, 1, 1000) FROM model_calls WHERE id = ?"
_EVENT = "SELECT kind, agent_id, task_id, substr(data, 1, 4000) FROM events WHERE session_id = ? AND seq = ?"


def told(
    connection: Connection, session_id: str, points: Sequence[tuple[float, int, str, int]], first: int
) -> tuple[EventFacts, ...]:
    """Those points as events; `first` is the position of the first of them. Points are time, kind, agent, and
    which one."""
    found: list[EventFacts] = []
    for position, (at, kind, agent_id, number) in enumerate(points, first):
        if kind == EVENT:
            row = connection.execute(_EVENT, (session_id, number)).fetchone()
            if row is not None:
                found.append(EventFacts(position, at, *row))
        elif kind == MESSAGE:
            row = connection.execute(_MESSAGE, (agent_id, number)).fetchone()
            if row is not None:
                data = encode({"text": f"#{number} {_preview(row[1])}"})
                found.append(EventFacts(position, at, f"{row[0]}.message", agent_id, None, data))
        else:
            row = connection.execute(_CALL, (number,)).fetchone()
            if row is not None:
                found.append(EventFacts(position, at, *_call(row, agent_id)))
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


# --- The recording of a session whose events tell little: a position is the time of a message, a model call or ---
#
# an event.
#
# That is what an imported session has. What it tells is what the times say: an agent was there from its first
# sign on, worked until its last, and had read what was written by then.

_MESSAGES = (
    "SELECT m.created_at, m.agent_id, m.seq, m.role FROM agents a JOIN messages m ON m.agent_id = a.id WHERE"
    " a.session_id = ?"
    " ORDER BY a.rowid, m.seq"
)
_EVENTS = "SELECT at, seq, kind FROM events WHERE session_id = ? ORDER BY seq"


class InferredRecording:
    """See `Recording`."""

    by_event = False

    def __init__(self, connection: Connection, rows: SessionRows, cancelled: Cancelled) -> None:
        self.session_id = rows.session.id
        self._rows = rows
        self._contexts = Contexts()
        self._written: dict[str, array[float]] = {}
        """When each message of an agent was written, by its place; never goes back."""
        points: list[tuple[float, int, str, int]] = []
        self._event_times = array("d")
        self._event_seqs = array("q")
        replies: list[float] = []
        failures: list[float] = []
        for at, agent_id, seq, role in each(connection.execute(_MESSAGES, (self.session_id,)), cancelled):
            written = self._written.setdefault(agent_id, array("d"))
            written.append(max(at, written[-1]) if written else at)
            points.append((written[-1], MESSAGE, agent_id, seq))
            if role == "assistant":
                replies.append(written[-1])
        for call in rows.calls:
            points.append((call.ended_at, CALL, call.agent_id, call.id))
            if call.status == "error":
                failures.append(call.ended_at)
        for at, seq, kind in connection.execute(_EVENTS, (self.session_id,)):
            self._event_times.append(max(at, self._event_times[-1]) if self._event_times else at)
            self._event_seqs.append(seq)
            points.append((self._event_times[-1], EVENT, "", seq))
            if kind in FAILURES:
                failures.append(self._event_times[-1])
        self._heard = EventReplay(connection, self.session_id, cancelled)
        self.damaged = self._heard.damaged
        points.sort()
        self._points = points
        self.times = array("d", (point[0] for point in points))
        self.turns = sorted({self._position(at) for at in replies})
        compacted = [
            row.ended_at or row.requested_at
            for row in rows.compactions
            if row.status in ("applied", "undone")
        ]
        done = [row.ended_at for row in rows.tasks if row.status == "done" and row.ended_at is not None]
        self.marks = sorted(
            [
                *(Mark(self._position(at), "failure") for at in failures),
                *(Mark(self._position(at), "compaction") for at in compacted),
                *(Mark(self._position(at), "task") for at in done),
            ],
            key=lambda mark: mark.position,
        )
        written_calls = [(self._position(call.ended_at), call) for call in rows.calls]
        self._totals = Totals(written_calls)
        self._by_agent = totals_by_agent(written_calls)

    def _position(self, at: float) -> int:
        """The first position that is not before that time."""
        return min(bisect_left(self.times, at) + 1, max(1, len(self.times)))

    def at(self, connection: Connection, position: int) -> SessionStateAt:
        """How the session stood at that position, 1 … `len(times)`."""
        end, at = group_end(self.times, position), self.times[position - 1]
        told = bisect_right(self._event_times, at)
        seq = self._event_seqs[told - 1] if told else 0
        return SessionStateAt(
            position=position,
            at=at,
            seq=seq,
            session=self._session(end, at, seq),
            tasks=tuple(self._tasks(told, at)),
            agents=tuple(self._agents(connection, end, at)),
            compactions=tuple(self._compactions(at)),
            approvals=(),
            budgets=(),
        )

    def agent(
        self, connection: Connection, then: SessionStateAt, agent_id: str, messages: int
    ) -> AgentStateAt | None:
        """More of one agent; at most `messages` of its messages."""
        agent = next((each for each in then.agents if each.id == agent_id), None)
        if agent is None:
            return None
        totals = self._by_agent.get(agent_id)
        end = group_end(self.times, then.position)
        views = [view.version for view in self._views(agent_id, then.at)]
        return AgentStateAt(
            agent_id,
            replay.agent_messages(connection, agent_id, agent.last_seq, messages),
            (),
            replay.calls(connection, totals.newest(end, replay.MOST_CALLS) if totals is not None else []),
            replay.facts(connection, self.session_id, agent_id, then.at),
            replay.view(connection, agent_id, agent.view_version),
            replay.agent_views(connection, agent_id, views),
            replay.system(connection, agent_id),
            (),
        )

    def events(self, connection: Connection, position: int, limit: int) -> tuple[EventFacts, ...]:
        """What happened up to that position, oldest first, messages and calls among it; `seq` is the
        position."""
        first = max(0, position - limit)
        return told(connection, self.session_id, self._points[first:position], first + 1)

    # Parts.

    def _session(self, end: int, at: float, seq: int) -> SessionFacts:
        row = self._rows.session
        over = end >= len(self.times)
        return replace(
            row, status=row.status if over else "running", status_reason=row.status_reason if over else None, last_active=at,
            ended_at=row.ended_at if over else None, hosted_seconds=min(row.hosted_seconds, max(0.0, at - row.created_at)),
            event_seq=seq, host_pid=None, **self._totals.at(end),
        )  # fmt: skip

    def _agents(self, connection: Connection, end: int, at: float) -> Iterator[AgentFacts]:
        for row in self._rows.agents:
            written = self._written.get(row.id, array("d"))
            last = bisect_right(written, at)
            if row.created_at > at and not last:
                continue
            totals = self._by_agent.get(row.id)
            whole = last >= len(written) and (totals is None or totals.is_whole(end))
            ended = row.ended_at is not None and row.ended_at <= at
            view = next(self._views(row.id, at), None)
            agent = replace(
                row, status=row.status if ended or whole else "working", status_reason=row.status_reason if ended or whole else None,
                turn=row.turn if whole else min(row.turn, totals.turn_at(end) if totals is not None else 0), last_seq=last,
                message_tokens=self._contexts.message(connection, row.id, last)[0], ended_at=row.ended_at if ended else None,
                started_at=row.started_at if (row.started_at or 0.0) <= at else None,
                last_active=max(row.created_at, written[last - 1] if last else 0.0), live=None,
                view_version=view.version if view is not None else 0,
                compactions=sum(1 for one in self._compactions(at) if one.agent_id == row.id and one.status != "running"),
                active_seconds=row.active_seconds if whole else min(row.active_seconds, max(0.0, at - row.created_at)),
                **(totals.at(end) if totals is not None else NONE),
            )  # fmt: skip
            if view is not None and (last, agent.view_version) != (row.last_seq, row.view_version):
                agent = replace(agent, **self._contexts.sizes(connection, row, view, last))
            yield agent

    def _views(self, agent_id: str, at: float) -> Iterator[ViewRow]:
        """The versions that there were, the newest first."""
        return (view for view in reversed(self._rows.views.get(agent_id, [])) if view.created_at <= at)

    def _tasks(self, told: int, at: float) -> Iterator[TaskFacts]:
        """By their events, as far as they have any; else by their times. `told`: how many events there
        were."""
        for row in self._rows.tasks:
            heard = self._heard.tasks.get(row.id)
            state = heard.at(told) if heard is not None else None
            if state is None and row.created_at > at:
                continue
            started = started_by(row, at)
            if state is not None:
                status, ended_at = state.status, state.ended_at
            elif heard is not None:
                status, ended_at = "pending", None
            elif row.ended_at is not None and row.ended_at <= at:
                status, ended_at = row.status, row.ended_at
            elif row.ended_at is None and row.started_at is None and self.times and at >= self.times[-1]:
                status, ended_at = row.status, None  # it has no times of its own: it is what it is at the end
            else:
                status, ended_at = "running" if started is not None else "pending", None
            same = status == row.status
            yield replace(
                row, status=status, status_reason=row.status_reason if same else None, started_at=started, ended_at=ended_at,
                result=row.result if same else None, error=row.error if same else None,
            )  # fmt: skip

    def _compactions(self, at: float) -> list[CompactionFacts]:
        found: list[CompactionFacts] = []
        for row in self._rows.compactions:
            if (row.ended_at or row.requested_at) <= at:
                found.append(row)
            elif row.requested_at <= at:
                found.append(not_yet(row, "running"))
        return found


# --- Replaying a session: how it stood at any of its steps, read from the file alone, with nothing changed by ---
#
# it.
#
# `open_recording` listens once to the whole session and keeps what every agent, task, call and pass was like,
# and from when on; any step is then looked up in a few milliseconds, however long the session is. What it tells
# of a step of a session of our own is how the rows stood right after that step was committed.


def open_recording(
    connection: Connection, session_id: str, cancelled: Cancelled = lambda: False
) -> Recording | None:
    """The recording of a session, or None where there is no such session. To be called inside one
    transaction.

    A session whose events tell its turns is replayed event by event; one of another program, whose events
    tell little, by the times of its messages and calls. `cancelled` is asked now and then, and ends the
    reading with `InterruptedError`.
    """
    from watchkeeper.store.replay import EventRecording, load, tells_its_turns

    rows = load(connection, session_id, cancelled)
    if rows is None:
        return None
    kind = EventRecording if tells_its_turns(connection, session_id) else InferredRecording
    return kind(connection, rows, cancelled)
