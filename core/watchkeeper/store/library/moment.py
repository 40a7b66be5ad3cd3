"""What the events of a session say about one moment of it: how each agent, task, call and pass stood.

Every step of a host is one transaction, with its events in it, so the state right after an event is the state
of the rows as they would be found had the host been killed there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode

_ENDED = frozenset({"done", "failed", "cancelled"})
_TASK_ENDED = _ENDED | {"dropped"}
_RERUNS = ("re-run", "re-run (fresh)", "its inputs changed")
"""Reasons with which a task becomes pending for another attempt."""


@dataclass(slots=True)
class AgentMoment:
    """One agent, as told by its events so far."""

    created_at: float
    status: str = "working"
    reason: str | None = None
    turn: int = 0
    """The last turn whose reply is in."""
    delivered: int = 0
    """How many messages from its inbox it was given."""
    ended_at: float | None = None
    last_active: float = 0.0
    compactions: int = 0
    moved_to: tuple[int, float] | None = None
    """The view that the last undo or redo led to, and when."""
    parked_until: float | None = None


@dataclass(slots=True)
class TaskMoment:
    """One task, as told by its events so far."""

    status: str = "pending"
    reason: str | None = None
    attempt: int = 1
    agent: str | None = None
    starts_from: str | None = None
    ended_at: float | None = None
    error: str | None = None
    failures: int = 0
    failed_at: tuple[str | None, int] | None = None
    """The agent and the turn of the last failure."""
    done_at: float | None = None
    """When its last result came; None once that was taken back."""
    given_to: str | None = None
    """The agent that it was handed over to last, whatever became of it."""
    hashed: bool = False
    """Its inputs of that hand-over decide whether it must be done again."""
    made: tuple[str, float] | None = None
    """By which agent, and through when, what it refers to as produced was produced."""


@dataclass(slots=True)
class CallMoment:
    """One tool call, as told by its events so far."""

    status: str
    runs: int = 0
    started_at: float | None = None


@dataclass(slots=True)
class Moment:
    """A session right after the transaction that wrote event `seq`."""

    seq: int
    at: float
    status: str = "running"
    reason: str | None = None
    agents: dict[str, AgentMoment] = field(default_factory=dict)
    tasks: dict[str, TaskMoment] = field(default_factory=dict)
    calls: dict[int, CallMoment] = field(default_factory=dict)
    passes: dict[int, str] = field(default_factory=dict)
    """Each compaction, and the last that was heard of it: `started`, `prepared`, `applied`, …"""
    approvals: dict[str, str] = field(default_factory=dict)
    commands: set[int] = field(default_factory=set)
    revisions: dict[str, int] = field(default_factory=dict)
    """Each plan, and its revision."""
    planned_at: float = 0.0
    """When plan or tasks changed last."""
    budgets: set[tuple[str | None, str]] = field(default_factory=set)
    """Task and kind of those that were reached."""

    def hear(
        self, kind: str, at: float, agent_id: str | None, task_id: str | None, data: dict[str, Any]
    ) -> None:
        """Take one more event into account."""
        subject, _, verb = kind.partition(".")
        agent = self.agents.get(agent_id) if agent_id else None
        if agent is not None:
            agent.last_active = at
        if subject in ("plan", "task"):
            self.planned_at = at
        if subject == "agent" and agent_id:
            self._agent(verb, at, agent_id, data)
        elif subject == "task" and task_id:
            self._task(verb, at, task_id, data)
        elif kind == "model.replied" and agent is not None:
            agent.turn = max(agent.turn, int(data.get("turn", 0)))
        elif kind == "inbox.delivered" and agent is not None:
            agent.delivered += 1
            agent.status, agent.reason, agent.parked_until = "working", None, None
        elif subject == "tool" and isinstance(data.get("call"), int):
            self._call(verb, at, data["call"])
        elif subject == "compaction":
            self._pass(verb, at, agent, data)
        elif kind == "plan.revised":
            self.revisions[str(data.get("plan"))] = int(data.get("revision", 1))
        elif subject == "approval" and isinstance(data.get("approval"), str):
            self.approvals[data["approval"]] = "waiting" if verb == "asked" else verb
        elif subject == "command" and isinstance(data.get("command"), int):
            self.commands.add(data["command"])
        elif kind == "budget.reached":
            self.budgets.add((task_id, str(data.get("budget"))))
        elif subject == "session" and verb in ("running", "paused", *_ENDED):
            self.status, self.reason = verb, _text(data.get("reason"))

    def _agent(self, verb: str, at: float, agent_id: str, data: dict[str, Any]) -> None:
        if verb == "created":
            self.agents[agent_id] = AgentMoment(created_at=at, last_active=at)
            return
        agent = self.agents.get(agent_id)
        if agent is not None:
            agent.status, agent.reason = verb, _text(data.get("reason"))
            agent.ended_at = at if verb in _ENDED else None
            until = data.get("until")
            agent.parked_until = float(until) if verb == "parked" and isinstance(until, int | float) else None

    def _task(self, verb: str, at: float, task_id: str, data: dict[str, Any]) -> None:
        task = self.tasks.setdefault(task_id, TaskMoment())
        reason = _text(data.get("reason"))
        task.status, task.reason = verb, reason
        task.ended_at = at if verb in _TASK_ENDED else None
        if verb == "running":
            if isinstance(data.get("agent"), str):
                task.agent, task.ended_at = data["agent"], None
                task.given_to, task.hashed = data["agent"], True
        elif verb == "done":
            if "agent" in data:  # not a stale task that proved as good as before
                task.done_at, task.made, task.error = at, (str(data["agent"]), at), None
        elif verb == "failed":
            agent_id = _text(data.get("agent")) or task.agent
            turn = self.agents[agent_id].turn if agent_id in self.agents else 0
            task.failures = task.failures + 1 if task.failed_at == (agent_id, turn) else 1
            task.error, task.failed_at = reason, (agent_id, turn)
        elif verb == "pending" and reason in _RERUNS:
            task.starts_from = task.agent if reason == "re-run" else None
            task.attempt += 1
            task.agent = task.done_at = None
            if reason != "its inputs changed":
                task.error, task.failures, task.failed_at = None, 0, None
                task.hashed, task.made = False, None

    def _call(self, verb: str, at: float, call_id: int) -> None:
        call = self.calls.setdefault(call_id, CallMoment("pending"))
        if verb == "started":
            call.status, call.runs, call.started_at = "running", call.runs + 1, at
        elif verb == "pending":
            call.status, call.started_at = verb, None
        else:
            call.status = verb

    def _pass(self, verb: str, at: float, agent: AgentMoment | None, data: dict[str, Any]) -> None:
        if verb in ("undo", "redo"):
            if agent is not None and isinstance(data.get("view"), int):
                agent.moved_to = (data["view"], at)
        elif isinstance(data.get("compaction"), int):
            self.passes[data["compaction"]] = verb
            if verb == "applied" and agent is not None:
                agent.compactions += 1


def moment_at(connection: Connection, session_id: str, seq: int) -> Moment:
    """The session right after event `seq`; where that is one of several of a transaction, after the last of
    them.

    Raises:
        NotFound: there is no such event.
    """
    rows = connection.execute(
        "SELECT seq, at FROM events WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT 10000",
        (session_id, seq),
    ).fetchall()
    if not rows or rows[0][0] != seq:
        last = connection.execute(
            "SELECT max(seq) FROM events WHERE session_id = ?", (session_id,)
        ).fetchone()[0]
        known = f"its events are #1 to #{last}" if last else "it has no events"
        raise NotFound(f"session {session_id} has no event #{seq}; {known}")
    end = seq
    for number, at in rows:
        if at != rows[0][1]:
            break
        end = number
    moment = Moment(end, rows[0][1])
    for kind, at, agent_id, task_id, data in connection.execute(
        "SELECT kind, at, agent_id, task_id, data FROM events WHERE session_id = ? AND seq <= ? ORDER BY seq",
        (session_id, end),
    ):
        moment.hear(kind, at, agent_id, task_id, decode(data))
    return moment


def seq_of_turn(connection: Connection, agent_id: str, turn: int) -> int:
    """The last event of an agent's turn: its reply, or the end of the last of its calls.

    Raises:
        NotFound: the agent has no such turn.
        BadInput: the session tells no turns (it was imported).
    """
    row = connection.execute(
        "SELECT max(e.seq), a.turn, a.session_id FROM agents a LEFT JOIN events e ON e.session_id ="
        " a.session_id"
        " AND e.agent_id = a.id AND ((e.kind = 'model.replied' AND e.data ->> 'turn' = ?2) OR (e.kind LIKE"
        " 'tool.%' AND"
        " e.data ->> 'call' IN (SELECT id FROM tool_calls WHERE agent_id = ?1 AND turn = ?2))) WHERE a.id ="
        " ?1",
        (agent_id, turn),
    ).fetchone()
    if row is None or row[1] is None:
        raise NotFound(f"no agent {agent_id!r}")
    if row[0] is None:
        told = connection.execute(
            "SELECT 1 FROM events WHERE agent_id = ? AND kind = 'model.replied'", (agent_id,)
        ).fetchone()
        if told is None and row[1]:
            raise BadInput(f"the events of session {row[2]} tell no turns, so it cannot be forked at one")
        raise NotFound(f"agent {agent_id} has no turn {turn}; it has {row[1]}")
    return int(row[0])


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
