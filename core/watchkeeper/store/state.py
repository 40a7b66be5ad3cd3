"""The whole state of a session, rebuilt from the file alone: what `wk show --json` prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from watchkeeper.records.errors import NotFound
from watchkeeper.records.readers import is_foreign
from watchkeeper.records.waiting import Waiting, waiting_word
from watchkeeper.store import budgets, plans, projection
from watchkeeper.store.driver import IN_LIST, ConnectionReads, Reads, decode, list_of
from watchkeeper.store.messages import worth
from watchkeeper.store.outcome import load_outcome
from watchkeeper.store.projection import (
    AgentFacts,
    CountedSession,
    RoleFacts,
    TaskFacts,
    agent_json,
    counted_session,
    roles_of,
    session_json,
    spending_json,
)
from watchkeeper.store.search.messages import list_sessions, parse_filters, search_by_session, with_snippets


def session_state(reads: Reads, session_id: str, *, live: bool = False) -> dict[str, Any]:
    """Session, plan, agents, compactions, observations, budgets, handoffs, approvals, commands, artifacts.

    `reads` has `one` and `all` over rows that can be asked by column name. `live`: a background process drives it, so
    what it said last of its agents holds.
    """
    session = _session(reads, session_id)
    paid = worth(reads, session_id)
    foreign = is_foreign(session.origin)  # whose logs do not say what a pass blocked
    agents = projection.agents(reads, session_id)
    below = projection.below_json(agents)
    return {
        "session": session_json(session),
        "outcome": (ended := load_outcome(reads, session_id)) and ended.as_json(),
        "plan": _plan(reads, session, agents, live=live),
        "agents": [agent_json(agent, live=live) | {"below": below.get(agent.id)} for agent in agents],
        "compactions": [
            dict(row) | {"worth": paid.get(row["id"])} | ({"stall_seconds": None} if foreign else {})
            for row in reads.all("SELECT * FROM compactions WHERE session_id = ? ORDER BY id", (session_id,))
        ],
        "observations": _observations(reads, session_id),
        "facts": _facts(reads, session_id),
        "memory_snapshots": [
            dict(row)
            for row in reads.all(
                "SELECT * FROM memory_snapshots WHERE session_id = ? ORDER BY agent_id", (session_id,)
            )
        ],
        "handoffs": _handoffs(reads, session_id),
        "budgets": _budgets(reads, session_id),
        "approvals": [
            {name: value for name, value in dict(row).items() if name != "premises"}
            for row in reads.all(
                "SELECT * FROM approvals WHERE session_id = ? ORDER BY created_at, tool_call_id",
                (session_id,),
            )
        ],
        "grants": [
            dict(row)
            for row in reads.all(
                "SELECT * FROM permission_grants WHERE session_id = ? ORDER BY id", (session_id,)
            )
        ],
        "commands": [
            dict(row) | {"payload": decode(row["payload"])}
            for row in reads.all("SELECT * FROM commands WHERE session_id = ? ORDER BY id", (session_id,))
        ],
        "artifacts": artifacts(reads, session_id),
        "tool_calls": {
            row["status"]: row["n"]
            for row in reads.all(
                "SELECT status, count(*) AS n FROM tool_calls WHERE agent_id IN (SELECT id FROM agents WHERE"
                " session_id = ?)"
                " GROUP BY status ORDER BY status",
                (session_id,),
            )
        },
    }


def _session(reads: Reads, session_id: str) -> CountedSession:
    session = counted_session(reads, session_id)
    if session is None:
        raise NotFound(f"no session {session_id!r}; list them with `wk sessions`")
    return session


def agents_state(reads: Reads, session_id: str) -> list[dict[str, Any]]:
    """The session's agents, in the order of their creation."""
    return [agent_json(agent, live=False) for agent in projection.agents(reads, session_id)]


def plan_state(reads: Reads, session_id: str) -> dict[str, Any] | None:
    """The session's current plan with its tasks and revisions; None if it has none."""
    return _plan(reads, _session(reads, session_id), projection.agents(reads, session_id), live=False)


def result(reads: Reads, session_id: str) -> dict[str, Any]:
    """The last line of a headless run: the session's outcome, and its state in numbers."""
    session = _session(reads, session_id)
    tasks = {
        one["status"]: one["n"]
        for one in reads.all(
            "SELECT status, count(*) AS n FROM tasks WHERE session_id = ? GROUP BY status", (session_id,)
        )
    }
    compactions = reads.one(
        "SELECT count(*) FROM compactions WHERE session_id = ? AND status IN ('applied', 'undone')",
        (session_id,),
    )[0]
    spent = spending_json(session)
    return {
        "type": "result",
        "session": session_id,
        "status": session.status,
        "reason": session.status_reason,
        "outcome": (ended := load_outcome(reads, session_id)) and ended.as_json(),
        "tasks": {"done": 0, "failed": 0} | tasks,
        **{name: spent[name] for name in ("tokens", "cost_usd", "cost_estimated", "unpriced_calls")},
        "compactions": compactions,
    }


def artifacts(reads: Reads, session_id: str) -> list[dict[str, Any]]:
    """What the session's agents saved: the newest of each name."""
    rows = reads.all(
        "SELECT o.name, o.kind, o.agent_id, o.task_id, o.created_at, a.size, a.media_type,"
        " 'artifact://sha256/' || a.digest AS ref"
        " FROM outputs o JOIN artifacts a ON a.digest = o.digest WHERE o.id IN"
        " (SELECT max(id) FROM outputs WHERE session_id = ? GROUP BY name) ORDER BY o.name",
        (session_id,),
    )
    return [dict(row) for row in rows]


def summaries(
    reads: Reads, *, among: Sequence[str] | None = None, limit: int = 200, offset: int = 0
) -> list[dict[str, Any]]:
    """Sessions, newest first, with the statistics of a list: those `among` these ids, or all that are not
    deleted. The first `offset` are left out."""
    chosen, values = ("s.deleted_at IS NULL", ()) if among is None else (f"s.id {IN_LIST}", (list_of(among),))
    found = projection.sessions(
        reads,
        f"{chosen} ORDER BY s.last_active DESC, s.ordinal DESC LIMIT ? OFFSET ?",
        (*values, limit, offset),
        kind=CountedSession,
    )
    return [
        session_json(one)
        | {name: getattr(one, name) for name in ("agents", "working", "tasks", "tasks_done")}
        for one in found
    ]


def found_sessions(
    reads: ConnectionReads,
    search: str,
    limit: int = 200,
    *,
    offset: int = 0,
    deadline_seconds: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[list[dict[str, Any]], bool]:
    """The sessions that match words and filters, as `summaries` has them, and whether all messages were searched.

    `found` is the newest message that matches, or None where the session's own texts match.

    Raises:
        BadInput: a filter that means nothing.
    """
    words = parse_filters(search).text
    messages = search_by_session(
        reads.connection,
        words,
        limit=100_000,
        snippets=0,
        deadline_seconds=deadline_seconds,
        monotonic=monotonic,
    )
    hits = {hit.session_id: hit for hit in messages.hits}
    lines = list_sessions(reads, search, offset + limit, also=hits)
    rows = summaries(reads, among=[line.id for line in lines], limit=limit, offset=offset)
    shown = with_snippets(reads.connection, words, [hits[row["id"]] for row in rows if row["id"] in hits])
    hits = {hit.session_id: hit for hit in shown}
    for row in rows:
        hit = hits.get(row["id"])
        row["found"] = hit and {
            "agent": hit.agent_id,
            "seq": hit.seq,
            "pieces": [[piece.text, piece.found] for piece in hit.snippet],
        }
    return rows, messages.complete


def _plan(
    reads: Reads, session: CountedSession, agents: Sequence[AgentFacts], *, live: bool
) -> dict[str, Any] | None:
    row = reads.one("SELECT * FROM plans WHERE id = ?", (session.current_plan_id,))
    if row is None:
        return None
    of_task: dict[str, list[AgentFacts]] = {}
    for agent in agents:
        if agent.task_id:
            of_task.setdefault(agent.task_id, []).append(agent)
    details = {
        one["id"]: one
        for one in reads.all(
            "SELECT id, instructions, resume_token, inputs_ref, expected_outputs, artifact_refs, result, error"
            " FROM tasks WHERE parent_plan_id = ?",
            (row["id"],),
        )
    }
    roles = roles_of(session.roles)
    task_states = [
        _task(task, details[task.id], of_task.get(task.id, []), roles.get(task.role), live=live)
        for task in projection.tasks(reads, session.id)
        if task.plan_id == row["id"]
    ]
    if live:
        over = {task["id"] for task in task_states if task["status"] in ("done", "dropped")}
        for one in task_states:
            if one["status"] == "pending" and over.issuperset(one["depends_on"]):
                one["waiting"] = Waiting.SLOT
    revisions = reads.all("SELECT * FROM plan_revisions WHERE plan_id = ? ORDER BY revision", (row["id"],))
    return {
        "id": row["id"],
        "current_plan_id": row["id"],
        "goal": row["goal"],
        "revision": row["revision"],
        "step_cursor": row["step_cursor"],
        "step": _step(task_states),
        "task_queue": decode(row["task_queue"]),
        "plan_graph_snapshot": decode(revisions[-1]["plan_graph_snapshot"]) if revisions else [],
        "revisions": [
            {
                "revision": one["revision"],
                "at": one["at"],
                "reason": one["reason"],
                "goal": one["goal"],
                "task_queue": decode(one["task_queue"]),
                "step_cursor": one["step_cursor"],
                "plan_graph_snapshot": decode(one["plan_graph_snapshot"]),
            }
            for one in revisions
        ],
        "tasks": task_states,
    }


def _step(tasks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The step that the planner is at; None at the end of the plan."""
    place = plans.current_step([task["status"] for task in tasks])
    if place is None:
        return None
    return {"number": place + 1} | {name: tasks[place][name] for name in ("id", "name", "title", "status")}


_TASK_IN_JSON = (
    "id", "name", "title", "role", "status", "status_reason", "attempt", "assigned_agent", "created_at", "started_at",
    "ended_at",
)  # fmt: skip


def _task(
    task: TaskFacts, row: Any, agents: list[AgentFacts], role: RoleFacts | None, *, live: bool
) -> dict[str, Any]:
    """The task, as JSON has it. `row` has its longer columns; `agents` are those that worked at it."""
    assigned = next((agent for agent in agents if agent.id == task.assigned_agent), None)
    if assigned is not None and task.status == "running":
        waiting = agent_json(assigned, live=live)["waiting"]
    else:
        waiting = waiting_word(task.status, row["error"] or task.status_reason)
    spent = [spending_json(agent) for agent in agents]
    costs = [one["cost_usd"] for one in spent if one["cost_usd"] is not None]
    return {name: getattr(task, name) for name in _TASK_IN_JSON} | {
        "task_id": task.id,
        "instructions": row["instructions"],
        "role_source": role.source if role else None,
        "model": assigned.model if assigned else role.model if role else None,
        "waiting": waiting,
        "agent": task.assigned_agent,
        "depends_on": list(task.depends_on),
        "parent_plan_id": task.plan_id,
        "resume_token": row["resume_token"],
        **{name: decode(row[name]) for name in ("inputs_ref", "expected_outputs", "artifact_refs")},
        "result": row["result"],
        "error": row["error"],
        "elapsed_seconds": sum(max(0.0, agent.active_seconds) for agent in agents),
        "tokens": {
            key: sum(one["tokens"][key] for one in spent)
            for key in ("input", "output", "cache_read", "cache_write", "total")
        },
        "cost_usd": sum(costs) if costs else None,
        "cost_estimated": any(one["cost_estimated"] for one in spent),
        **{name: sum(one[name] for one in spent) for name in ("unpriced_calls", "retries", "errors")},
    }  # fmt: skip


def _observations(reads: Reads, session_id: str) -> list[dict[str, Any]]:
    rows = reads.all(
        "SELECT o.* FROM observations o JOIN agents a ON a.id = o.agent_id WHERE a.session_id = ? ORDER BY"
        " a.ordinal, o.id",
        (session_id,),
    )
    return [
        dict(row) | {"citations": decode(row["citations"]), "replaces": decode(row["replaces"])}
        for row in rows
    ]


def _facts(reads: Reads, session_id: str) -> list[dict[str, Any]]:
    rows = reads.all(
        "SELECT id, agent_id, scope, kind, text, sources, pinned, superseded_by, created_at FROM facts WHERE"
        " session_id = ? ORDER BY id",
        (session_id,),
    )
    return [dict(row) | {"sources": decode(row["sources"])} for row in rows]


def _handoffs(reads: Reads, session_id: str) -> list[dict[str, Any]]:
    rows = reads.all(
        "SELECT session_id, plan_id, task_id, assigned_agent, inputs_ref, memory_delta_ref,"
        " expected_outputs, created_at"
        " FROM handoffs WHERE session_id = ? ORDER BY id",
        (session_id,),
    )
    return [
        dict(row)
        | {"inputs_ref": decode(row["inputs_ref"]), "expected_outputs": decode(row["expected_outputs"])}
        for row in rows
    ]


def _budgets(reads: Reads, session_id: str) -> list[dict[str, Any]]:
    rows = reads.all(
        "SELECT task_id, kind, amount, required, reached_at FROM budgets WHERE session_id = ? ORDER BY id",
        (session_id,),
    )
    return [
        dict(row) | {"used": budgets.used(reads, session_id, row["task_id"], row["kind"])} for row in rows
    ]
