"""Where in its messages each agent of a session was; by the same reasoning as `library.cut`, from rows that
were read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from watchkeeper.store.driver import Connection
from watchkeeper.store.library.moment import AgentMoment
from watchkeeper.store.replaying.listening import Heard
from watchkeeper.store.replaying.rows import Cancelled, SessionRows, each

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
_CALLS = (
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

    def __init__(self, connection: Connection, rows: SessionRows, heard: Heard, cancelled: Cancelled) -> None:
        self._heard = heard
        self.steps: dict[str, dict[int, Step]] = {}
        self.calls: dict[tuple[str, int], list[ToolCall]] = {}
        """By agent and turn."""
        self._delivered: dict[str, list[int]] = {}
        session_id = rows.session.id
        for agent_id, turn, *row in each(connection.execute(_STEPS, (session_id,)), cancelled):
            self.steps.setdefault(agent_id, {})[turn] = Step(*row)
        for agent_id, turn, *row in each(connection.execute(_CALLS, (session_id,)), cancelled):
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
