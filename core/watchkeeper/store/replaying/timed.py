"""The recording of a session whose events tell little: a position is the time of a message, a model call or
an event.

That is what an imported session has. What it tells is what the times say: an agent was there from its first
sign on, worked until its last, and had read what was written by then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace

from watchkeeper.store.dashboard import AgentFacts, CompactionFacts, EventFacts, SessionFacts, TaskFacts
from watchkeeper.store.driver import Connection
from watchkeeper.store.replaying import details, sayings
from watchkeeper.store.replaying.contexts import Contexts
from watchkeeper.store.replaying.listening import FAILURES, Heard
from watchkeeper.store.replaying.recording import AgentThen, Mark, Then, group_end, not_yet, started_by
from watchkeeper.store.replaying.rows import Cancelled, SessionRows, ViewRow, each
from watchkeeper.store.replaying.totals import NONE, Totals, totals_by_agent

_MESSAGES = (
    "SELECT m.created_at, m.agent_id, m.seq, m.role FROM agents a JOIN messages m ON m.agent_id = a.id WHERE"
    " a.session_id = ?"
    " ORDER BY a.rowid, m.seq"
)
_EVENTS = "SELECT at, seq, kind FROM events WHERE session_id = ? ORDER BY seq"


class TimedRecording:
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
            points.append((written[-1], sayings.MESSAGE, agent_id, seq))
            if role == "assistant":
                replies.append(written[-1])
        for call in rows.calls:
            points.append((call.ended_at, sayings.CALL, call.agent_id, call.id))
            if call.status == "error":
                failures.append(call.ended_at)
        for at, seq, kind in connection.execute(_EVENTS, (self.session_id,)):
            self._event_times.append(max(at, self._event_times[-1]) if self._event_times else at)
            self._event_seqs.append(seq)
            points.append((self._event_times[-1], sayings.EVENT, "", seq))
            if kind in FAILURES:
                failures.append(self._event_times[-1])
        self._heard = Heard(connection, self.session_id, cancelled)
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

    def at(self, connection: Connection, position: int) -> Then:
        """How the session stood at that position, 1 … `len(times)`."""
        end, at = group_end(self.times, position), self.times[position - 1]
        told = bisect_right(self._event_times, at)
        seq = self._event_seqs[told - 1] if told else 0
        return Then(
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

    def agent(self, connection: Connection, then: Then, agent_id: str, messages: int) -> AgentThen | None:
        """More of one agent; at most `messages` of its messages."""
        agent = next((each for each in then.agents if each.id == agent_id), None)
        if agent is None:
            return None
        totals = self._by_agent.get(agent_id)
        end = group_end(self.times, then.position)
        views = [view.version for view in self._views(agent_id, then.at)]
        return AgentThen(
            agent_id,
            details.messages(connection, agent_id, agent.last_seq, messages),
            (),
            details.calls(connection, totals.newest(end, details.MOST_CALLS) if totals is not None else []),
            details.facts(connection, self.session_id, agent_id, then.at),
            details.view(connection, agent_id, agent.view_version),
            details.views(connection, agent_id, views),
            details.system(connection, agent_id),
            (),
        )

    def events(self, connection: Connection, position: int, limit: int) -> tuple[EventFacts, ...]:
        """What happened up to that position, oldest first, messages and calls among it; `seq` is the
        position."""
        first = max(0, position - limit)
        return sayings.told(connection, self.session_id, self._points[first:position], first + 1)

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
