"""Plans at a position: which tasks there were, what each was called and waited for, by whom it was to be
done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from watchkeeper.store import artifacts
from watchkeeper.store.dashboard import TaskFacts
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode_or
from watchkeeper.store.queries import Queries

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
