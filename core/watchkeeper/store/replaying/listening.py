"""Listening once to all events of a session: what each agent, task, call and pass was like, and from when on.

What an event means is said in one place, `library.moment`, which a fork is cut by too.
"""

from __future__ import annotations

from array import array
from dataclasses import fields
from operator import attrgetter
from typing import TypeVar

from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode_or
from watchkeeper.store.library.moment import AgentMoment, CallMoment, Moment, TaskMoment
from watchkeeper.store.replaying.recording import Mark
from watchkeeper.store.replaying.rows import Cancelled, each
from watchkeeper.store.replaying.timeline import Timeline

K = TypeVar("K")
T = TypeVar("T")

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


class Heard:
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
        self._moment = Moment(0, 0.0)
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
        moment.hear(kind, at, agent_id, task_id, told)
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
