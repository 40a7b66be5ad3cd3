"""The recording of a session whose events tell everything: a position is an event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watchkeeper.store.dashboard import (
    AgentFacts,
    ApprovalFacts,
    BudgetFacts,
    CompactionFacts,
    EventFacts,
    SessionFacts,
    TaskFacts,
)
from watchkeeper.store.driver import Connection
from watchkeeper.store.library.moment import AgentMoment, TaskMoment
from watchkeeper.store.replaying import details
from watchkeeper.store.replaying.contexts import Contexts
from watchkeeper.store.replaying.graphs import Graphs
from watchkeeper.store.replaying.listening import Heard
from watchkeeper.store.replaying.places import Place, Places
from watchkeeper.store.replaying.recording import AgentThen, Then, not_yet, started_by
from watchkeeper.store.replaying.rows import Cancelled, SessionRows, ViewRow
from watchkeeper.store.replaying.totals import NONE, Totals, totals_by_agent
from watchkeeper.store.replaying.written import written_at

_ENDED = frozenset({"done", "failed", "cancelled"})
_OVER = frozenset({"applied", "rejected", "abandoned"})
_UNHEARD = TaskMoment()
"""A task of which no event told yet."""


class ToldRecording:
    """See `Recording`. Events that were committed together stand for one state: the rows right after that
    commit."""

    by_event = True

    def __init__(self, connection: Connection, rows: SessionRows, cancelled: Cancelled) -> None:
        self.session_id = rows.session.id
        self._rows = rows
        self._heard = heard = Heard(connection, self.session_id, cancelled)
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

    def at(self, connection: Connection, position: int) -> Then:
        """How the session stood at that position, 1 … `len(times)`."""
        end, at = self._end(position)
        agents = tuple(self._agents(connection, end, at))
        seats = {agent.id: agent for agent in agents}
        planner = seats.get(self._rows.session.planner_agent_id or "")
        return Then(
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

    def agent(self, connection: Connection, then: Then, agent_id: str, messages: int) -> AgentThen | None:
        """More of one agent; at most `messages` of its messages."""
        end, at = self._end(then.position)
        agent = next((each for each in then.agents if each.id == agent_id), None)
        moment = self._moment(agent_id, end)
        if agent is None or moment is None:
            return None
        place = self._place(agent_id, moment, end)
        views = [view.version for view in self._kept_views(connection, agent_id, end, at, place.seq)]
        totals = self._by_agent.get(agent_id)
        return AgentThen(
            agent_id,
            details.messages(connection, agent_id, place.seq, messages),
            tuple(
                details.tool_calls(
                    connection, agent_id, moment.turn, self._heard.calls, end, is_open=place.open
                )
            ),
            details.calls(connection, totals.newest(end, details.MOST_CALLS) if totals is not None else []),
            details.facts(connection, self.session_id, agent_id, at),
            details.view(connection, agent_id, agent.view_version),
            details.views(connection, agent_id, views),
            details.system(connection, agent_id),
            details.inbox(connection, self.session_id, agent_id, at, place.seq),
        )

    def events(self, connection: Connection, position: int, limit: int) -> tuple[EventFacts, ...]:
        """The last events up to that position, oldest first; `seq` is the position."""
        seqs = self._heard.seqs
        return details.events(
            connection, self.session_id, seqs[max(0, position - limit)], seqs[position - 1], seqs
        )

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
