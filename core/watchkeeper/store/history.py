"""What the events of a session say about one moment of it: how each agent, task, call and pass stood.

Every step of a host is one transaction, with its events in it, so the state right after an event is the state
of the rows as they would be found had the host been killed there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.store import artifacts, plans
from watchkeeper.store.driver import Connection, Queries, decode, encode

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
class SessionMoment:
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

    def apply_event(
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


def moment_at(connection: Connection, session_id: str, seq: int) -> SessionMoment:
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
    moment = SessionMoment(end, rows[0][1])
    for kind, at, agent_id, task_id, data in connection.execute(
        "SELECT kind, at, agent_id, task_id, data FROM events WHERE session_id = ? AND seq <= ? ORDER BY seq",
        (session_id, end),
    ):
        moment.apply_event(kind, at, agent_id, task_id, decode(data))
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


# --- Which model calls of a session were written at a moment ----------------------------------------------
#
# A turn's call is written with its reply, which an event tells of. One that failed, and those of passes over a
# context, have
# no event of their own: their ids lie between those of calls that have, and a pass writes its calls when it
# tells of itself.

_TURNS = ("turn", "planner")

_CALLS = "SELECT id, agent_id, turn, status, purpose, started_at + latency_seconds FROM model_calls WHERE session_id = ? ORDER BY id"
_PASSES = (
    "SELECT seq, agent_id, at, kind, data ->> 'compaction' FROM events WHERE session_id = ? AND kind IN"
    " ('compaction.started',"
    " 'compaction.prepared', 'compaction.applied', 'compaction.rejected', 'compaction.abandoned') ORDER BY"
    " seq"
)


def calls_at(connection: Connection, session_id: str, moment: SessionMoment) -> frozenset[int]:
    """Ids of the model calls that were written by then."""
    passed = _passed(connection, session_id)
    rows = connection.execute(_CALLS, (session_id,)).fetchall()
    reached = {agent_id: agent.turn for agent_id, agent in moment.agents.items()}
    replies = {
        row[0]: row[2] <= reached.get(row[1], -1) for row in rows if row[3] == "done" and row[4] in _TURNS
    }
    through = max((call_id for call_id, there in replies.items() if there), default=0)
    beyond = min((call_id for call_id, there in replies.items() if not there), default=1 << 62)
    kept: set[int] = set()
    for call_id, agent_id, _, _, purpose, ended_at in rows:
        there = replies.get(call_id)
        if there is None:
            written = ended_at <= moment.at
            if purpose not in _TURNS:
                # A pass that began after the call ended did not write it, though it be the next to tell.
                around = [seq for begun, at, seq in passed.get(agent_id, []) if begun <= ended_at <= at]
                written = min(around) <= moment.seq if around else written
            there = call_id < through or (call_id < beyond and written)
        if there:
            kept.add(call_id)
    return frozenset(kept)


def _passed(connection: Connection, session_id: str) -> dict[str, list[tuple[float, float, int]]]:
    """When each pass with a model began, when it first told what came of it, and with which event, by agent.

    A digest is made without a model, in one step: it has no beginning.
    """
    begun: dict[int, float] = {}
    passed: dict[str, list[tuple[float, float, int]]] = {}
    for seq, agent_id, at, kind, compaction in connection.execute(_PASSES, (session_id,)):
        if kind == "compaction.started":
            begun[compaction] = at
        elif compaction in begun:
            passed.setdefault(agent_id, []).append((begun.pop(compaction), at, seq))
    return passed


# --- The tasks of a session's plans as they stood at a moment ---------------------------------------------
#
# Whether a task was there, its title and what it depends on stand in the plan's revision; how it stood, in its
# events; what it was told, in the calls by which the planner made and revised it.

Row = dict[str, Any]

_TOLD = ("instructions", "role", "expected_outputs")


def tasks_at(
    connection: Connection, session_id: str, moment: SessionMoment, last_seq: dict[str, int]
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
    moment: SessionMoment,
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
    connection: Connection, row: Row, state: TaskMoment, moment: SessionMoment, last_seq: dict[str, int]
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


def _revised(connection: Connection, moment: SessionMoment, since: int | None = None) -> set[str]:
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
    moment: SessionMoment,
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


# --- Which rows of a session stood at one of its moments, and how they stood then -------------------------

_OVER = frozenset({"done", "error", "denied", "unknown", "cancelled"})
_UNDER_WAY: Row = {
    "reason": None, "messages_removed": 0, "tokens_after": None, "view_before": None, "view_after": None, "model_call_id": None,
    "cost_usd": None, "cache_tokens_invalidated": 0, "prepared": None, "seconds": None, "stall_seconds": 0.0, "tokens_spent": 0,
    "ended_at": None,
}  # fmt: skip
"""What a pass over a context has before its end."""

_OVER_PASS = frozenset({"applied", "rejected", "abandoned"})


class Cut:
    """The rows of a session as of a moment. `keep` gives each row as it stood, or None where it was not there
    yet.

    The moment is right after a step, as if the host had been killed there: a call whose result was not in is
    pending, or running, and whoever resumes settles it as after any crash. `ahead`: the results of an agent's
    turn belong to the moment as soon as all of them were there, even if the message that carries them came
    only after the next event.
    """

    def __init__(
        self, connection: Connection, session_id: str, moment: SessionMoment, *, ahead: bool = True
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self.moment = moment
        following = connection.execute(
            "SELECT at FROM events WHERE session_id = ? AND seq = ?", (session_id, moment.seq + 1)
        ).fetchone()
        self._before = following[0] if following is not None and not ahead else float("inf")
        """What no event tells of counts if it came before this."""
        self.last_seq: dict[str, int] = {}
        self._until: dict[str, float] = {}
        """Each agent, and through when its messages and views count."""
        self._undelivered: dict[str, dict[str, Row]] = {}
        """Each agent, and the results of its open turn that were in already, by the call's `tool_use_id`."""
        self._eventful: set[int] = self._calls_with_events()
        for agent_id, agent in moment.agents.items():
            self._place(agent_id, agent)
        self.view_of = {agent_id: self._view(agent_id, agent) for agent_id, agent in moment.agents.items()}
        self._calls = calls_at(connection, session_id, moment)
        every = self._rows("SELECT * FROM model_calls WHERE session_id = ?", session_id)
        self._model_calls = [row for row in every if row["id"] in self._calls]
        self.tasks = tasks_at(connection, session_id, moment, self.last_seq)

    def keep(self, table: str, row: Row) -> Row | None:
        """The row as it stood, or None."""
        rule = getattr(self, f"_keep_{table}", None)
        if rule is not None:
            kept: Row | None = rule(row)
            return kept
        return row if row.get("created_at", 0.0) <= self.moment.at else None

    # --- where each agent was -------------------------------------------------------------------------------

    def _place(self, agent_id: str, agent: AgentMoment) -> None:
        """Find the agent's last message: the last that an event tells of, and what followed from it without
        one."""
        ask = self._connection.execute
        steps = {
            row[0]: (row[1], row[2])
            for row in ask("SELECT turn, reply_seq, results_seq FROM steps WHERE agent_id = ?", (agent_id,))
        }
        delivered = [
            row[0]
            for row in ask(
                "SELECT DISTINCT delivered_seq FROM inbox WHERE agent_id = ? AND delivered_seq NOTNULL ORDER"
                " BY 1",
                (agent_id,),
            )
        ]
        newest = ask("SELECT coalesce(max(seq), 0) FROM messages WHERE agent_id = ?", (agent_id,)).fetchone()[
            0
        ]
        firsts = [reply - 1 for reply, _ in steps.values()] + [seq - 1 for seq in delivered[:1]]
        last = min(firsts, default=newest)
        if agent.delivered:
            last = max(last, delivered[min(agent.delivered, len(delivered)) - 1])
        if agent.turn in steps:
            last = max(last, self._after_reply(agent_id, agent, *steps[agent.turn], last, set(delivered)))
        row = ask(
            "SELECT created_at FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, last)
        ).fetchone()
        self.last_seq[agent_id] = last
        self._until[agent_id] = max(self.moment.at, row[0] if row else 0.0)

    def _after_reply(
        self,
        agent_id: str,
        agent: AgentMoment,
        reply: int,
        results: int | None,
        last: int,
        delivered: set[int],
    ) -> int:
        """The last message of the agent's last turn: its results belong to it as soon as all of them were
        there."""
        if last > reply:
            return last
        calls = self._connection.execute(
            "SELECT id, name, status, tool_use_id FROM tool_calls WHERE agent_id = ? AND turn = ?",
            (agent_id, agent.turn),
        ).fetchall()
        if not calls:
            follows = self._connection.execute(
                "SELECT role, created_at FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, reply + 1)
            ).fetchone()
            asked = follows is not None and follows[0] == "user" and follows[1] <= self._before
            return reply + 1 if asked and reply + 1 not in delivered else reply
        over = [self._status_of(call[0], call[2]) in _OVER for call in calls]
        finishes = any(call[1] == "finish_session" and call[2] == "done" for call in calls)
        row = self._connection.execute(
            "SELECT content, created_at FROM messages WHERE agent_id = ? AND seq = ?",
            (agent_id, results or 0),
        ).fetchone()
        ended = not finishes or agent.status in ("done", "failed", "cancelled")
        if results is not None and row is not None and all(over) and ended and row[1] <= self._before:
            return results
        if row is not None:
            blocks = decode(row[0])
            self._undelivered[agent_id] = {
                one["tool_use_id"]: one for one in blocks if one.get("type") == "tool_result"
            }
        else:
            self._undelivered[agent_id] = {}
        return reply

    def _calls_with_events(self) -> set[int]:
        rows = self._connection.execute(
            "SELECT DISTINCT data ->> 'call' FROM events WHERE session_id = ? AND kind LIKE 'tool.%'",
            (self._session_id,),
        )
        return {row[0] for row in rows if isinstance(row[0], int)}

    def _status_of(self, call_id: int, status_now: str) -> str:
        """How a call stood. One without any event was refused in the transaction of the reply that made
        it."""
        known = self.moment.calls.get(call_id)
        if known is not None:
            return known.status
        return "pending" if call_id in self._eventful or status_now not in _OVER else status_now

    def _view(self, agent_id: str, agent: AgentMoment) -> int:
        """The version of the context that the agent had."""
        rows = [
            row
            for row in self._rows("SELECT * FROM views WHERE agent_id = ? ORDER BY version", agent_id)
            if self._keep_views(row)
        ]
        newest = rows[-1] if rows else None
        if agent.moved_to is not None and (newest is None or newest["created_at"] <= agent.moved_to[1]):
            return agent.moved_to[0]
        return int(newest["version"]) if newest is not None else 0

    def _rows(self, sql: str, *parameters: Any) -> list[Row]:
        found = self._connection.execute(sql, parameters)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    # --- each table -----------------------------------------------------------------------------------------

    def _keep_sessions(self, row: Row) -> Row:
        moment = self.moment
        hosted = min(row["hosted_seconds"], max(0.0, moment.at - row["created_at"]))
        ended = moment.at if moment.status in ("done", "failed", "cancelled") else None
        plan = row["current_plan_id"] if row["current_plan_id"] in moment.revisions else None
        planner = row["planner_agent_id"] if row["planner_agent_id"] in moment.agents else None
        return row | self._totals("session_id", self._session_id) | {
            "status": moment.status, "status_reason": moment.reason, "ended_at": ended, "hosted_seconds": hosted,
            "current_plan_id": plan, "planner_agent_id": planner, "event_seq": moment.seq,
        }  # fmt: skip

    def _totals(self, column: str, value: str) -> Row:
        """What the model calls of a session or an agent came to by then."""
        names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "retries")
        total: Row = dict.fromkeys((*names, "model_calls", "errors", "unpriced_calls"), 0) | {
            "cost_usd": None
        }
        for row in self._model_calls:
            if row[column] == value:
                for name in names:
                    total[name] += row[name]
                if row["cost_usd"] is not None:
                    total["cost_usd"] = (total["cost_usd"] or 0.0) + row["cost_usd"]
                total["model_calls"] += 1
                total["errors"] += row["status"] == "error"
                total["unpriced_calls"] += (
                    row["cost_usd"] is None and sum(row[name] for name in names[:4]) > 0
                )
        return total

    def _keep_events(self, row: Row) -> Row | None:
        return row if row["seq"] <= self.moment.seq else None

    def _keep_plans(self, row: Row) -> Row | None:
        revision = self.moment.revisions.get(row["id"])
        if revision is None:
            return None
        (goal,) = self._connection.execute(
            "SELECT goal FROM plan_revisions WHERE plan_id = ? AND revision = ?", (row["id"], revision)
        ).fetchone()
        tasks = sorted(
            (one for one in self.tasks.values() if one["parent_plan_id"] == row["id"]),
            key=lambda one: one["position"],
        )
        queue = [one["id"] for one in tasks if one["status"] in ("pending", "running", "paused", "stale")]
        return row | {
            "goal": goal, "revision": revision, "task_queue": encode(queue), "step_cursor": len(tasks) - len(queue),
            "updated_at": self.moment.planned_at,
        }  # fmt: skip

    def _keep_plan_revisions(self, row: Row) -> Row | None:
        return row if row["revision"] <= self.moment.revisions.get(row["plan_id"], 0) else None

    def _keep_tasks(self, row: Row) -> Row | None:
        return self.tasks.get(row["id"])

    def _keep_task_dependencies(self, row: Row) -> Row | None:
        return None  # the plan's graph as of its revision tells them; see `dependencies`

    def dependencies(self) -> list[tuple[str, str]]:
        """Pairs of tasks, of which the first needs the second, as the plans had them."""
        pairs: list[tuple[str, str]] = []
        for plan_id, revision in self.moment.revisions.items():
            row = self._connection.execute(
                "SELECT plan_graph_snapshot FROM plan_revisions WHERE plan_id = ? AND revision = ?",
                (plan_id, revision),
            ).fetchone()
            pairs += [(one["id"], need) for one in decode(row[0]) for need in one["depends_on"]]
        return pairs

    def _keep_agents(self, row: Row) -> Row | None:
        agent = self.moment.agents.get(row["id"])
        if agent is None:
            return None
        last, version = self.last_seq[row["id"]], self.view_of[row["id"]]
        spent = self._connection.execute(
            "SELECT coalesce(sum(ended_at - started_at), 0) FROM steps WHERE agent_id = ? AND (turn < ? OR"
            " (turn = ?"
            " AND coalesce(results_seq, 0) <= ?)) AND ended_at NOTNULL",
            (row["id"], agent.turn, agent.turn, last),
        ).fetchone()[0]
        then = row | self._totals("agent_id", row["id"]) | {
            "status": agent.status, "status_reason": agent.reason, "turn": agent.turn, "view_version": version,
            "last_seq": last, "message_tokens": self._tokens_through(row["id"], last),
            "started_at": row["started_at"] if (row["started_at"] or 0.0) <= self.moment.at else None,
            "ended_at": agent.ended_at, "last_active": agent.last_active, "active_seconds": spent,
            "compactions": agent.compactions, "parked_until": agent.parked_until,
        }  # fmt: skip
        if (last, version) != (row["last_seq"], row["view_version"]):
            then |= self._context(row, version, last)
        return then

    def _tokens_through(self, agent_id: str, seq: int) -> int:
        row = self._connection.execute(
            "SELECT total_tokens FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, seq)
        ).fetchone()
        return int(row[0]) if row else 0

    def _context(self, row: Row, version: int, last: int) -> Row:
        """The size of the context as it must have been: the next step counts it anew."""
        agent_id = row["id"]
        found = self._rows("SELECT * FROM views WHERE agent_id = ? AND version = ?", agent_id, version)
        if not found:
            return {}
        view = found[0]
        before = self._connection.execute(
            "SELECT coalesce(max(total_tokens), 0) FROM messages WHERE agent_id = ? AND seq <= ? AND"
            " created_at <= ?",
            (agent_id, last, view["created_at"]),
        ).fetchone()[0]
        observed = self._connection.execute(
            "SELECT coalesce(sum(tokens), 0) FROM observations WHERE agent_id = ? AND id IN (SELECT value"
            " FROM json_each(?))",
            (agent_id, view["observations"]),
        ).fetchone()[0]
        used = view["tokens"] + max(0, self._tokens_through(agent_id, last) - before)
        made: Row = decode(row["composition"])
        room = row["context_tokens"] + made.get("headroom", 0)
        made |= {
            "observations": observed,
            "messages": max(0, used - observed),
            "elided": 0,
            "headroom": max(0, room - used),
        }
        return {"context_tokens": used, "composition": encode(made)}

    def _keep_messages(self, row: Row) -> Row | None:
        return row if row["seq"] <= self.last_seq.get(row["agent_id"], 0) else None

    def _keep_steps(self, row: Row) -> Row | None:
        agent = self.moment.agents.get(row["agent_id"])
        if agent is None or row["turn"] > agent.turn:
            return None
        if row["turn"] == agent.turn and (row["results_seq"] or 0) > self.last_seq[row["agent_id"]]:
            return row | {"results_seq": None, "ended_at": None}
        return row

    def _keep_tool_calls(self, row: Row) -> Row | None:
        agent = self.moment.agents.get(row["agent_id"])
        if agent is None or row["turn"] > agent.turn:
            return None
        if row["turn"] < agent.turn or row["agent_id"] not in self._undelivered:
            return row
        known = self.moment.calls.get(row["id"])
        status = self._status_of(row["id"], row["status"])
        if row["edited_input"] is not None and not self._was_edited(row["id"]):
            row = row | {"edited_input": None}
        if status not in _OVER:
            return row | {
                "status": status, "result": None, "result_seq": None, "is_error": 0, "ended_at": None,
                "started_at": known.started_at if known else None, "runs": known.runs if known else 0,
            }  # fmt: skip
        result = row["result"]
        block = self._undelivered[row["agent_id"]].get(row["tool_use_id"])
        if result is None and block is not None:
            result = encode(block.get("content"))
        return row | {"status": status, "result": result, "result_seq": None}

    def _was_edited(self, call_id: int) -> bool:
        """Whether a person had approved the call with another input by then."""
        edits = self._rows(
            "SELECT id FROM approvals WHERE tool_call_id = ? AND edited_input IS NOT NULL", call_id
        )
        return any(self.moment.approvals.get(row["id"]) == "approved" for row in edits)

    def _keep_model_calls(self, row: Row) -> Row | None:
        return row if row["id"] in self._calls else None

    def _keep_views(self, row: Row) -> Row | None:
        if row["agent_id"] not in self.moment.agents:
            return None
        told = self.moment.passes.get(row["compaction_id"]) if row["compaction_id"] is not None else None
        if told is not None:
            return row if told == "applied" else None
        return row if row["created_at"] <= self._until[row["agent_id"]] else None

    def _keep_observations(self, row: Row) -> Row | None:
        return self._keep_views(row)

    def _keep_compactions(self, row: Row) -> Row | None:
        told = self.moment.passes.get(row["id"])
        if told is None or told in _OVER_PASS:
            return row if told is not None else None
        if row["status"] == told == "prepared":
            return row
        return (
            row
            | {"status": "running"}
            | {column: value for column, value in _UNDER_WAY.items() if column in row}
        )

    def _keep_memory_snapshots(self, row: Row) -> Row | None:
        return (
            row if row["last_updated"] <= self.moment.at and row["agent_id"] in self.moment.agents else None
        )

    def _keep_facts(self, row: Row) -> Row | None:
        return row if row["created_at"] <= self.moment.at else None

    def _keep_handoffs(self, row: Row) -> Row | None:
        return row if row["assigned_agent"] in self.moment.agents else None

    def _keep_inbox(self, row: Row) -> Row | None:
        if row["created_at"] > self.moment.at:
            return None
        delivered = row["delivered_seq"]
        return row | {
            "delivered_seq": delivered if (delivered or 0) <= self.last_seq.get(row["agent_id"], 0) else None
        }

    def _keep_commands(self, row: Row) -> Row | None:
        return row if row["id"] in self.moment.commands else None

    def _keep_approvals(self, row: Row) -> Row | None:
        told = self.moment.approvals.get(row["id"])
        if told is None:
            return None
        if told == "waiting" and (row["decided_at"] is None or row["decided_at"] > self.moment.at):
            answer = ("decided_by", "reason", "decided_at", "scope", "edited_input")
            return row | dict.fromkeys(answer) | {"status": "waiting"}
        return row

    def _keep_budgets(self, row: Row) -> Row | None:
        reached = row["reached_at"] if (row["task_id"], row["kind"]) in self.moment.budgets else None
        return row | {"reached_at": reached, "required": row["required"] if reached is not None else None}
