"""The tasks of a session's plans as they stood at a moment.

Whether a task was there, its title and what it depends on stand in the plan's revision; how it stood, in its
events; what it was told, in the calls by which the planner made and revised it.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.store import artifacts, plans
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode, encode
from watchkeeper.store.library.moment import Moment, TaskMoment
from watchkeeper.store.queries import Queries

Row = dict[str, Any]

_TOLD = ("instructions", "role", "expected_outputs")


def tasks_then(
    connection: Connection, session_id: str, moment: Moment, last_seq: dict[str, int]
) -> dict[str, Row]:
    """Rows of `tasks` as they stood, by id. `last_seq`: each agent's last message then."""
    graph: dict[str, Row] = {}
    for plan_id, revision in moment.revisions.items():
        row = connection.execute(
            "SELECT plan_graph_snapshot FROM plan_revisions WHERE plan_id = ? AND revision = ?",
            (plan_id, revision),
        ).fetchone()
        graph |= {one["id"]: one for one in decode(row[0])}
    found = connection.execute("SELECT * FROM tasks WHERE session_id = ?", (session_id,))
    names = [column[0] for column in found.description]
    rows = {
        row["id"]: row
        for row in (dict(zip(names, values, strict=True)) for values in found)
        if row["id"] in graph
    }
    revised = _revised(connection, moment)
    told = _told(connection, session_id, moment, last_seq) if revised else {}
    ever = _revised(connection, moment, 0)
    then: dict[str, Row] = {}
    for task_id, row in rows.items():
        if row["name"] in revised:
            row = row | {key: value for key, value in told.get(row["name"], {}).items() if key in _TOLD}
        state = moment.tasks.get(task_id, TaskMoment())
        then[task_id] = (
            row | {"title": graph[task_id]["title"]} | _state(connection, row, state, moment, last_seq)
        )
        if row["name"] in ever and then[task_id]["inputs_hash"] is not None:
            then[task_id]["inputs_hash"] = _hash_at_hand_over(
                connection, session_id, then[task_id], state.given_to, moment, last_seq
            )
    return then


def _hash_at_hand_over(
    connection: Connection,
    session_id: str,
    row: Row,
    given_to: str | None,
    moment: Moment,
    last_seq: dict[str, int],
) -> str:
    """The hash is of the instructions as they were when the task was handed over; they may have been revised
    since."""
    (at,) = connection.execute(
        "SELECT max(created_at) FROM handoffs WHERE task_id = ? AND assigned_agent = ?",
        (row["id"], given_to or ""),
    ).fetchone()
    told = _told(connection, session_id, moment, last_seq, until=at).get(row["name"], {})
    return plans.inputs_hash(decode(row["inputs_ref"]), str(told.get("instructions") or row["instructions"]))


def _state(
    connection: Connection, row: Row, state: TaskMoment, moment: Moment, last_seq: dict[str, int]
) -> Row:
    agent_id = state.agent
    handed = connection.execute(
        "SELECT inputs_ref FROM handoffs WHERE task_id = ? AND assigned_agent = ?",
        (row["id"], state.given_to or ""),
    ).fetchone()
    inputs: str = handed[0] if handed else "[]"
    hashed = plans.inputs_hash(decode(inputs), row["instructions"]) if handed and state.hashed else None
    token = row["resume_token"] if state.attempt > 1 and agent_id is None else None
    if agent_id is not None and agent_id in moment.agents:
        token = f"{agent_id}:{moment.agents[agent_id].turn}:{last_seq.get(agent_id, 0)}"
    same = (
        row["attempt"] == state.attempt
        and row["status"] == state.status
        and row["assigned_agent"] == agent_id
    )
    result, made = row["result"], row["artifact_refs"]
    if not same or result is None:
        result, made = _result(connection, row, *state.made) if state.made is not None else (None, "[]")
    if state.done_at is None:
        result = None
    return {
        "status": state.status, "status_reason": state.reason, "attempt": state.attempt, "assigned_agent": agent_id,
        "resume_token": row["resume_token"] if same and token is not None else token, "starts_from": state.starts_from,
        "inputs_ref": inputs, "inputs_hash": hashed, "artifact_refs": made, "result": result, "error": state.error,
        "failures": state.failures, "ended_at": state.ended_at,
        "started_at": row["started_at"] if (row["started_at"] or 0.0) <= moment.at else None,
    }  # fmt: skip


def _result(connection: Connection, row: Row, agent_id: str, done_at: float) -> tuple[str | None, str]:
    """What the task's agent had reported and produced when it was done."""
    rows = connection.execute(
        "SELECT name, kind, digest FROM outputs WHERE agent_id = ? AND created_at <= ? ORDER BY id",
        (agent_id, done_at),
    ).fetchall()
    newest = {name: artifacts.ref_of(digest) for name, kind, digest in rows if kind == "artifact"}
    reported = [artifacts.ref_of(digest) for _, kind, digest in rows if kind == "result"][-1:]
    text = artifacts.get(Queries(connection), reported[0]) if reported else None
    refs = [*reported, *(ref for _, ref in sorted(newest.items()))]
    return (text.decode("utf-8", "replace") if text is not None else row["result"]), encode(refs)


def _revised(connection: Connection, moment: Moment, since: int | None = None) -> set[str]:
    """Names of the tasks that the planner has revised since that revision; by default, since the moment."""
    names: set[str] = set()
    for plan_id, revision in moment.revisions.items():
        for (reason,) in connection.execute(
            "SELECT reason FROM plan_revisions WHERE plan_id = ? AND revision > ? AND reason LIKE 'revised"
            " %'",
            (plan_id, revision if since is None else since),
        ):
            names.add(reason.removeprefix("revised "))
    return names


def _told(
    connection: Connection,
    session_id: str,
    moment: Moment,
    last_seq: dict[str, int],
    *,
    until: float = float("inf"),
) -> dict[str, Row]:
    """What the planner had said of each task by then: instructions, role, expected outputs, by the task's
    name."""
    planner = connection.execute(
        "SELECT planner_agent_id FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()[0]
    done = {
        row[0]
        for row in connection.execute(
            "SELECT tool_use_id, id FROM tool_calls WHERE agent_id = ? AND status = 'done'", (planner,)
        )
        if row[1] in moment.calls
    }
    ids = dict(
        connection.execute("SELECT id, name FROM tasks WHERE session_id = ?", (session_id,)).fetchall()
    )
    told: dict[str, Row] = {}
    for (content,) in connection.execute(
        "SELECT content FROM messages WHERE agent_id = ? AND seq <= ? AND created_at <= ? AND role ="
        " 'assistant' ORDER BY seq",
        (planner, last_seq.get(planner, 0), until),
    ):
        blocks = decode(content)
        for block in blocks if isinstance(blocks, list) else []:
            if (
                block.get("type") != "tool_use"
                or block.get("id") not in done
                or not isinstance(block.get("input"), dict)
            ):
                continue
            given = block["input"]
            if block.get("name") == "create_plan":
                for one in given.get("tasks") or []:
                    told[str(one.get("name")).strip()] = _fields(one)
            elif block.get("name") == "add_task":
                told[str(given.get("name")).strip()] = _fields(given)
            elif block.get("name") == "revise_task":
                name = ids.get(str(given.get("task")), str(given.get("task")))
                told[name] = told.get(name, {}) | _fields(given)
    return told


def _fields(given: Row) -> Row:
    fields = {key: given[key] for key in ("instructions", "role") if isinstance(given.get(key), str)}
    if given.get("expected_outputs"):
        fields["expected_outputs"] = encode(given["expected_outputs"])
    return fields
