"""What the dashboard's report on one agent rests on, beside its row: what it was asked and gave back, what it
made, and its tool and model calls summed up. Texts are as stored: hostile until sanitised.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from watchkeeper.store.dashboard import AgentFacts
from watchkeeper.store.driver import Connection

MOST_ARTIFACTS = 200

_TASK = (
    "SELECT substr(instructions, 1, 20000), expected_outputs, CASE WHEN assigned_agent = ?2 THEN"
    " substr(result, 1, 100000) END,"
    " CASE WHEN assigned_agent = ?2 THEN length(result) ELSE 0 END FROM tasks WHERE id = ?1"
)
_HANDED = (
    "SELECT inputs_ref FROM handoffs WHERE session_id = ? AND assigned_agent = ? ORDER BY id DESC LIMIT 1"
)
_OUTPUTS = (
    "SELECT o.name, o.kind, a.size, max(o.created_at), count(*) FROM outputs o LEFT JOIN artifacts a ON"
    " a.digest = o.digest"
    " WHERE o.agent_id = ? GROUP BY o.kind, o.name ORDER BY max(o.id) LIMIT ?"
)
RECENT = 100
"""The newest calls of each kind are read anew each time: they may still change. Those before are counted
once."""

_OLDEST_TURN = (
    "SELECT turn FROM tool_calls WHERE agent_id = ? ORDER BY turn DESC, position DESC LIMIT 1 OFFSET ?"
)
_OLDEST_CALL = "SELECT id FROM model_calls WHERE agent_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
_TOOLS = (
    "SELECT name, count(*), sum(is_error OR status IN ('error', 'denied', 'unknown')), sum(status IN"
    " ('pending', 'running')),"
    " total(ended_at - started_at) FROM tool_calls WHERE agent_id = ? AND turn > ? AND turn <= ? GROUP BY"
    " name"
)
_CALLS = (
    "SELECT count(*), total(NOT usage_exact), total(price_status = 'estimated'), total(cost_usd IS NULL)"
    " FROM model_calls WHERE agent_id = ? AND id > ? AND id <= ? AND status <> 'error'"
)
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class ToolTotal:
    """All calls of one tool."""

    name: str
    calls: int
    errors: int
    """Those that failed, were denied, or of which nobody knows what they did."""
    running: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """Something that the agent saved: the newest of its name."""

    name: str
    kind: str
    """`artifact`, or `result` for the text that it handed back."""
    size: int | None
    """In bytes; None where the text itself is gone."""
    created_at: float
    versions: int


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """One agent's work."""

    instructions: str
    """Of its task; empty for an agent without one."""
    expected: tuple[str, ...]
    """Names of the outputs that were asked for."""
    inputs: int
    """How many artifacts it was given."""
    result: str | None
    """What it handed back, at most 100,000 characters of it; None where another attempt did, or none has
    yet."""
    result_chars: int
    tools: tuple[ToolTotal, ...]
    """The most used first."""
    artifacts: tuple[ArtifactFacts, ...]
    calls: int
    """Calls to models that ended, but for those that failed."""
    estimated_usage: int
    """Those of them whose tokens are an estimate."""
    estimated_price: int
    unpriced: int


class ReportFold:
    """Reads one agent's report again and again, at the price of what may still change."""

    def __init__(self, session_id: str, agent_id: str) -> None:
        self._session_id, self._agent_id = session_id, agent_id
        self._through = -_ALL
        """The last turn whose tool calls are counted once and for all."""
        self._counted: dict[str, ToolTotal] = {}
        self._through_call = 0
        self._calls = (0, 0, 0, 0)
        self._artifacts: tuple[ArtifactFacts, ...] = ()
        self._stood: tuple[object, ...] = ()
        """What the artifacts were read for."""
        self._report: ReportFacts | None = None

    def read(self, connection: Connection, agent: AgentFacts) -> ReportFacts:
        """The report as it stands; the same object where nothing changed. To be called inside one
        transaction."""
        task = connection.execute(_TASK, (agent.task_id, agent.id)).fetchone() or ("", "[]", None, 0)
        handed = connection.execute(_HANDED, (self._session_id, agent.id)).fetchone()
        tools = tuple(sorted(self._tools(connection).values(), key=lambda each: (-each.calls, each.name)))
        # What is saved is saved by a tool, or at the end.
        stands = (tools, agent.status, agent.last_seq)
        if stands != self._stood:
            self._stood = stands
            found = connection.execute(_OUTPUTS, (agent.id, MOST_ARTIFACTS))
            self._artifacts = tuple(ArtifactFacts(*row) for row in found)
        report = ReportFacts(
            task[0],
            tuple(str(name) for name in _listed(task[1])),
            len(_listed(handed[0])) if handed else 0,
            task[2],
            task[3] or 0,
            tools,
            self._artifacts,
            *self._models(connection),
        )
        if report != self._report:
            self._report = report
        return self._report if self._report is not None else report

    def _tools(self, connection: Connection) -> dict[str, ToolTotal]:
        oldest = connection.execute(_OLDEST_TURN, (self._agent_id, RECENT - 1)).fetchone()
        if oldest is not None and oldest[0] - 1 > self._through:
            self._counted, self._through = self._added(connection, oldest[0] - 1), oldest[0] - 1
        return self._added(connection, _ALL)

    def _added(self, connection: Connection, last: int) -> dict[str, ToolTotal]:
        totals = dict(self._counted)
        for name, calls, errors, running, seconds in connection.execute(
            _TOOLS, (self._agent_id, self._through, last)
        ):
            before = totals.get(name, ToolTotal(name, 0, 0, 0, 0.0))
            totals[name] = ToolTotal(
                name,
                before.calls + calls,
                before.errors + errors,
                running,
                before.seconds + max(0.0, seconds),
            )
        return totals

    def _models(self, connection: Connection) -> tuple[int, int, int, int]:
        oldest = connection.execute(_OLDEST_CALL, (self._agent_id, RECENT - 1)).fetchone()
        if oldest is not None and oldest[0] - 1 > self._through_call:
            self._calls, self._through_call = self._more_calls(connection, oldest[0] - 1), oldest[0] - 1
        return self._more_calls(connection, _ALL)

    def _more_calls(self, connection: Connection, last: int) -> tuple[int, int, int, int]:
        before = self._calls
        count, usage, price, unpriced = connection.execute(
            _CALLS, (self._agent_id, self._through_call, last)
        ).fetchone()
        return before[0] + count, before[1] + int(usage), before[2] + int(price), before[3] + int(unpriced)


def _listed(text: str | None) -> list[object]:
    try:
        value = json.loads(text or "[]")
    except ValueError:
        return []
    return value if isinstance(value, list) else []
