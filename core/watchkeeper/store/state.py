"""The whole state of a session, rebuilt from the file alone: what `wk show --json` prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from watchkeeper.records.messages import compacts_at, context_percent, context_used
from watchkeeper.records.usage_limits import session_limit
from watchkeeper.records.waiting import Waiting, waiting_word
from watchkeeper.store import budgets, plans
from watchkeeper.store.driver import IN_LIST, ConnectionReads, Reads, decode, list_of
from watchkeeper.store.imports import MISSING_LOGS, PARTIAL, PROGRAMS, UNLOGGED_CALLS
from watchkeeper.store.messages import worth
from watchkeeper.store.names import AGENT_NAME
from watchkeeper.store.outcome import load_outcome
from watchkeeper.store.search.messages import (
    COST_ESTIMATED,
    PARKED,
    list_sessions,
    parse_filters,
    search_by_session,
    with_snippets,
)
from watchkeeper.store.snapshot import RoleFacts, composition_of, roles_of

_USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def session_state(reads: Reads, session_id: str, *, live: bool = False) -> dict[str, Any]:
    """Session, plan, agents, compactions, observations, budgets, handoffs, approvals, commands, artifacts.

    `reads` has `one` and `all` over rows that can be asked by column name. `live`: a background process drives it, so
    what it said last of its agents holds.
    """
    session = reads.one(f"SELECT s.*, {PARKED} FROM sessions s WHERE id = ?", (session_id,))
    paid = worth(reads, session_id)
    foreign = (
        session["origin"].removeprefix("export:") in PROGRAMS
    )  # whose logs do not say what a pass blocked
    guessed = _estimated(reads, session_id)
    agents = agents_state(reads, session_id, guessed, live=live)
    gaps = dict(
        reads.one(
            f"SELECT {MISSING_LOGS} AS missing_logs, {UNLOGGED_CALLS} AS unlogged_calls FROM sessions WHERE id = ?",
            (session_id,),
        )
    )
    return {
        "session": _session(session, bool(guessed)) | {"partial": any(gaps.values()), **gaps},
        "outcome": (ended := load_outcome(reads, session_id)) and ended.as_json(),
        "plan": _plan(reads, session, agents, live=live),
        "agents": agents,
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


def agents_state(
    reads: Reads, session_id: str, estimated: set[str] | None = None, *, live: bool = False
) -> list[dict[str, Any]]:
    """The session's agents, in the order of their creation. `estimated`: those with an estimated cost, if known."""
    guessed = _estimated(reads, session_id) if estimated is None else estimated
    rows = reads.all(
        f"SELECT a.*, {AGENT_NAME} AS shown_name FROM agents a WHERE session_id = ? ORDER BY ordinal",
        (session_id,),
    )
    activities = (
        reads.all("SELECT agent_id, activity FROM live WHERE session_id = ?", (session_id,)) if live else ()
    )
    doing = {row[0]: row[1] for row in activities}
    return [_agent(row, row["id"] in guessed, doing.get(row["id"])) for row in rows]


def plan_state(reads: Reads, session_id: str) -> dict[str, Any] | None:
    """The session's current plan with its tasks and revisions; None if it has none."""
    session = reads.one("SELECT * FROM sessions WHERE id = ?", (session_id,))
    return _plan(reads, session, agents_state(reads, session_id), live=False)


def result(reads: Reads, session_id: str) -> dict[str, Any]:
    """The last line of a headless run: the session's outcome, and its state in numbers."""
    row = reads.one("SELECT * FROM sessions WHERE id = ?", (session_id,))
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
    return {
        "type": "result",
        "session": session_id,
        "status": row["status"],
        "reason": row["status_reason"],
        "outcome": (ended := load_outcome(reads, session_id)) and ended.as_json(),
        "tasks": {"done": 0, "failed": 0} | tasks,
        "tokens": _tokens(row),
        "cost_usd": _cost(row),
        "cost_estimated": bool(_estimated(reads, session_id)),
        "unpriced_calls": row["unpriced_calls"],
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
    where, parameters = "s.deleted_at IS NULL", []
    if among is not None:
        where, parameters = f"s.id {IN_LIST}", [list_of(among)]
    rows = reads.all(
        f"SELECT s.*, {PARKED}, (SELECT count(*) FROM agents g WHERE g.session_id = s.id) AS agents,"
        " (SELECT count(*) FROM tasks t WHERE t.session_id = s.id) AS tasks,"
        " (SELECT count(*) FROM tasks t WHERE t.session_id = s.id AND t.status = 'done') AS tasks_done,"
        f" {COST_ESTIMATED} AS cost_estimated, {PARTIAL} AS partial"
        f" FROM sessions s WHERE {where} ORDER BY s.last_active DESC, s.ordinal DESC LIMIT ? OFFSET ?",
        (*parameters, limit, offset),
    )
    return [
        _session(row, bool(row["cost_estimated"]))
        | {name: row[name] for name in ("agents", "tasks", "tasks_done")}
        | {"partial": bool(row["partial"])}
        for row in rows
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
    lines = list_sessions(reads.connection, search, offset + limit, also=hits)
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


def _session(row: Any, cost_estimated: bool) -> dict[str, Any]:
    limit = session_limit(
        row["status"], row["status_reason"], row["last_active"], row["parked_until"], row["parked_reason"]
    )
    return {
        "id": row["id"],
        "session_id": row["id"],
        "user_id": row["user_id"],
        "goal": row["goal"],
        "title": row["title"],
        "workspace": row["workspace"],
        "model": row["model"],
        "status": row["status"],
        "status_reason": row["status_reason"],
        "waiting": waiting_word(row["status"], row["status_reason"]),
        "usage_limit": limit and asdict(limit),
        "origin": row["origin"],
        "tags": decode(row["tags"]),
        "created_at": row["created_at"],
        "last_active": row["last_active"],
        "ended_at": row["ended_at"],
        "elapsed_seconds": max(0.0, row["hosted_seconds"]),
        "current_plan_id": row["current_plan_id"],
        "planner_agent_id": row["planner_agent_id"],
        "settings": decode(row["settings"]),
        "roles": [asdict(role) for role in roles_of(row["roles"]).values()],
        "effort": effort_text(row),
        "tokens": _tokens(row),
        "cost_usd": _cost(row),
        "cost_estimated": cost_estimated,
        "unpriced_calls": row["unpriced_calls"],
        "model_calls": row["model_calls"],
        "retries": row["retries"],
        "errors": row["errors"],
        "events": row["event_seq"],
        "lease_epoch": row["lease_epoch"],
        "host": {"pid": row["host_pid"], "name": row["host_name"]},
        "queued_at": row["queued_at"],
    }


def effort_text(row: Any) -> str | None:
    """`high`, or `high; planner max (uses high)`: how much the models of a session were asked to think; None where nothing
    was chosen. It comes from the roles that a host noted, before that from the settings."""
    noted = {role.role: role.effort_text for role in roles_of(row["roles"]).values()}
    chosen = decode(row["settings"]).get("efforts")
    if not isinstance(chosen, dict) or not chosen:
        return None
    parts: list[str] = []
    for role, effort in sorted(chosen.items()):
        if role == "*":
            texts = {text for name, text in noted.items() if name not in chosen and text}
            parts.insert(0, texts.pop() if len(texts) == 1 else str(effort))
        else:
            parts.append(f"{role} {noted.get(role) or effort}")
    return "; ".join(parts)


def _plan(
    reads: Reads, session: Any, agents: list[dict[str, Any]], *, live: bool = False
) -> dict[str, Any] | None:
    row = reads.one("SELECT * FROM plans WHERE id = ?", (session["current_plan_id"],))
    if row is None:
        return None
    needs: dict[str, list[str]] = {}
    for task_id, depends_on in reads.all(
        "SELECT d.task_id, d.depends_on FROM task_dependencies d JOIN tasks t ON t.id = d.task_id"
        " WHERE t.session_id = ? ORDER BY d.task_id, d.position",
        (session["id"],),
    ):
        needs.setdefault(task_id, []).append(depends_on)
    by_task: dict[str, list[dict[str, Any]]] = {}
    for agent in agents:
        if agent["task_id"]:
            by_task.setdefault(agent["task_id"], []).append(agent)
    tasks = reads.all("SELECT * FROM tasks WHERE parent_plan_id = ? ORDER BY position", (row["id"],))
    roles = roles_of(session["roles"])
    task_states = [
        _task(task, needs.get(task["id"], []), by_task.get(task["id"], []), roles) for task in tasks
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


def _task(
    row: Any, depends_on: list[str], agents: list[dict[str, Any]], roles: Mapping[str, RoleFacts]
) -> dict[str, Any]:
    role = roles.get(row["role"])
    assigned = next((agent for agent in agents if agent["id"] == row["assigned_agent"]), None)
    costs = [agent["cost_usd"] for agent in agents if agent["cost_usd"] is not None]
    return {
        "id": row["id"],
        "task_id": row["id"],
        "name": row["name"],
        "title": row["title"],
        "instructions": row["instructions"],
        "role": row["role"],
        "role_source": role.source if role else None,
        "model": assigned["model"] if assigned else role.model if role else None,
        "status": row["status"],
        "status_reason": row["status_reason"],
        "waiting": assigned["waiting"]
        if assigned is not None and row["status"] == "running"
        else waiting_word(row["status"], row["error"] or row["status_reason"]),
        "attempt": row["attempt"],
        "agent": row["assigned_agent"],
        "assigned_agent": row["assigned_agent"],
        "depends_on": depends_on,
        "parent_plan_id": row["parent_plan_id"],
        "resume_token": row["resume_token"],
        "inputs_ref": decode(row["inputs_ref"]),
        "expected_outputs": decode(row["expected_outputs"]),
        "artifact_refs": decode(row["artifact_refs"]),
        "result": row["result"],
        "error": row["error"],
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "elapsed_seconds": sum(agent["elapsed_seconds"] for agent in agents),
        "tokens": {
            key: sum(agent["tokens"][key] for agent in agents)
            for key in ("input", "output", "cache_read", "cache_write", "total")
        },
        "cost_usd": sum(costs) if costs else None,
        "cost_estimated": any(agent["cost_estimated"] for agent in agents),
        "unpriced_calls": sum(agent["unpriced_calls"] for agent in agents),
        "retries": sum(agent["retries"] for agent in agents),
        "errors": sum(agent["errors"] for agent in agents),
    }


def _agent(row: Any, cost_estimated: bool, activity: str | None) -> dict[str, Any]:
    parts = composition_of(row["composition"])
    used = context_used(row["context_tokens"], parts)
    composition = {
        kind: tokens for kind, tokens in parts if kind != "threshold"
    }  # not what the window is spent on
    return {
        "id": row["id"],
        "name": row["shown_name"],
        "role": row["role"],
        "model": row["model"],
        "task_id": row["task_id"],
        "parent_agent_id": row["parent_agent_id"],
        "attempt": row["attempt"],
        "copied_from": row["copied_from"],
        "current_goal": row["current_goal"],
        "status": row["status"],
        "status_reason": row["status_reason"],
        "waiting": waiting_word(row["status"], row["status_reason"], activity),
        "parked_until": row["parked_until"],
        "turn": row["turn"],
        "messages": row["last_seq"],
        "message_tokens": row["message_tokens"],
        "view": row["view_version"],
        "tokens": _tokens(row),
        "cost_usd": _cost(row),
        "cost_estimated": cost_estimated,
        "unpriced_calls": row["unpriced_calls"],
        "model_calls": row["model_calls"],
        "retries": row["retries"],
        "errors": row["errors"],
        "compactions": row["compactions"],
        "elapsed_seconds": max(0.0, row["active_seconds"]),
        "created_at": row["created_at"],
        "ended_at": row["ended_at"],
        "context": {
            "used": used,
            "limit": row["context_limit"] or None,
            "percent": context_percent(used, row["context_limit"]),
            "threshold": compacts_at(dict(parts)),
            "composition": composition,
        },
    }


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


def _tokens(row: Any) -> dict[str, int]:
    parts = {name.removesuffix("_tokens"): int(row[name]) for name in _USAGE}
    return parts | {"total": sum(parts.values())}


def _estimated(reads: Reads, session_id: str) -> set[str]:
    """The agents with some cost from an estimated price or from estimated tokens."""
    rows = reads.all(
        "SELECT DISTINCT agent_id FROM model_calls WHERE session_id = ? AND cost_usd IS NOT NULL"
        " AND (price_status = 'estimated' OR usage_exact = 0)",
        (session_id,),
    )
    return {row[0] for row in rows}


def _cost(row: Any) -> float | None:
    """None if nothing has a price yet: never 0 for an unknown price."""
    return None if row["cost_usd"] is None else round(row["cost_usd"], 10)
