"""What must hold after every commit of a simulated run, and at its end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tests.core.memory.support import assert_covered

from watchkeeper.agents.agent_state import inputs_of
from watchkeeper.agents.session_tools import INPUTS_AGAIN
from watchkeeper.records.states import TASK_MOVES, TaskStatus
from watchkeeper.store import budgets, plans
from watchkeeper.store.messages import load_view

if TYPE_CHECKING:
    from tests.simulate.tools import Ledger

Read = Callable[..., list[Any]]


class Rows:
    """The committed state, as functions of the store read it."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def one(self, sql: str, parameters: Any = ()) -> Any:
        rows = self._read(sql, *parameters)
        return rows[0] if rows else None

    def all(self, sql: str, parameters: Any = ()) -> list[Any]:
        return self._read(sql, *parameters)


LAST_STATES: Mapping[str, frozenset[str]] = {
    "tool_calls": frozenset({"done", "error", "denied", "unknown", "cancelled"}),
    "commands": frozenset({"applied", "refused", "failed"}),
    "approvals": frozenset({"approved", "denied", "expired", "cancelled"}),
    "model_calls": frozenset({"done", "error", "abandoned"}),
}
"""States that a row of a table never leaves."""


WITH_EFFECT = frozenset({"effect", "effect_again", "asking", "bash", "write", "edit"})
"""Tools of which a call that is done has had its effect."""


def acknowledged(read: Read, seq: int, epoch: int) -> list[str]:
    """A commit that was acknowledged is there, and its host had the session."""
    rows = read("SELECT max(event_seq), max(lease_epoch) FROM sessions WHERE lease_epoch >= ?", epoch)
    if rows[0][0] is None or rows[0][0] < seq:
        return [f"event {seq} was acknowledged, and the last one is {rows[0][0]}"]
    return []


def after_commit(read: Read, before: dict[str, dict[str, str]], refused: int) -> list[str]:
    """Checks of the state; `before` holds the last one, and is brought up to date. `refused`: how often no worker could be
    started."""
    found: list[str] = []
    for table, last in LAST_STATES.items():
        now = {str(row[0]): str(row[1]) for row in read(f"SELECT id, status FROM {table}")}
        for row_id, old in before.get(table, {}).items():
            if old in last and now.get(row_id) != old:
                found.append(f"{table} {row_id}: {old} became {now.get(row_id)}")
        before[table] = now
    found += _totals(read)
    found += _running_tasks(read, before)
    found += _views(read, before)
    found += _epochs(read, before)
    for call, runs in read("SELECT id, runs FROM tool_calls WHERE runs > 1 AND idempotent = 0"):
        put_back = refused  # no worker could be started for it
        # A call whose file was found changed had no effect, and its question is asked again.
        put_back += max(0, read("SELECT count(*) FROM approvals WHERE tool_call_id = ?", call)[0][0] - 1)
        if runs > 1 + put_back:
            found.append(f"call {call}, which is not idempotent, was begun {runs} times")
    for (agent,) in read(
        "SELECT a.id FROM agents a JOIN sessions s ON s.id = a.session_id AND s.forked_from IS NULL"  # a fork comes in parts
        " WHERE NOT EXISTS (SELECT 1 FROM views WHERE agent_id = a.id AND version = a.view_version)"
    ):
        found.append(f"the view of {agent} is not there")
    for question, call in read(
        "SELECT p.id, p.tool_call_id FROM approvals p JOIN tool_calls c ON c.id = p.tool_call_id"
        " WHERE p.status = 'waiting' AND c.status NOT IN ('pending', 'running')"
    ):
        found.append(f"question {question} waits, and its call {call} has ended")
    for (task,) in read(
        "SELECT t.name FROM tasks t JOIN agents a ON a.task_id = t.id WHERE a.status NOT IN ('done', 'failed', 'cancelled')"
        " GROUP BY t.id HAVING count(*) > 1"
    ):
        found.append(f"two agents work on {task}")
    return found


def reserved(read: Read, session: str, new: set[str], under_way: set[str]) -> Iterator[str]:
    """A call was let begin beside others only if the budgets cover all of them. `new`: the reservations of this commit;
    `under_way`: those whose call has begun, and has not ended."""
    rows = Rows(read)
    for budget in budgets.load(rows, session):
        if budget.kind != "tokens":
            continue
        held = [
            (number, tokens)
            for number, task, tokens in read(
                "SELECT r.lease_epoch || ' ' || r.id, r.task_id, r.tokens FROM reservations r JOIN sessions s"
                " ON s.id = r.session_id AND s.lease_epoch = r.lease_epoch WHERE s.id = ?",
                session,
            )
            if number in under_way | new and budget.task_id in (None, task)
        ]
        used = budgets.used(rows, session, budget.task_id, budget.kind) or 0.0
        if (
            len(held) > 1
            and new & {one[0] for one in held}
            and used + sum(one[1] for one in held) > budget.amount
        ):
            yield f"calls reserve {held} under a budget of {budget.amount:g} tokens, of which {used:g} are used"


def _totals(read: Read) -> Iterator[str]:
    for session, *totals in read(
        "SELECT id, input_tokens, output_tokens, model_calls FROM sessions WHERE forked_from IS NULL"
    ):
        counted = read(
            "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), count(*) FROM model_calls"
            " WHERE session_id = ? AND status != 'running'",
            session,
        )[0]
        if list(counted) != totals:
            yield f"totals of the session are {totals}, of its calls {list(counted)}"


def _views(read: Read, before: dict[str, dict[str, str]]) -> Iterator[str]:
    """A view that an agent got shows each message once, or an observation covers it."""
    known = before.setdefault("views", {})
    for agent, version, last in read("SELECT id, view_version, last_seq FROM agents"):
        if known.get(agent) == str(version):
            continue
        known[agent] = str(version)
        view = load_view(Rows(read), agent, version)
        try:
            if view is not None:
                assert_covered(view, last)
        except AssertionError:
            yield f"view {version} of {agent} leaves out messages, or covers some twice"


def _running_tasks(read: Read, before: dict[str, dict[str, str]]) -> Iterator[str]:
    """A task begins only when all that it depends on is done or dropped."""
    rows = read("SELECT id, status, name FROM tasks")
    now = {row[0]: row[1] for row in rows}
    names = {row[0]: row[2] for row in rows}
    old = before.get("tasks", {})
    for task, status in now.items():
        if status == "running" and old.get(task) == "pending":
            for need, state in read(
                "SELECT t.name, t.status FROM task_dependencies d JOIN tasks t ON t.id = d.depends_on WHERE d.task_id = ?",
                task,
            ):
                if state not in ("done", "dropped"):
                    yield f"{names[task]} began while {need} was {state}"
    before["tasks"] = now


def _epochs(read: Read, before: dict[str, dict[str, str]]) -> Iterator[str]:
    """The events have no gap, and the epoch does not fall."""
    for session, seq, epoch in read(
        "SELECT id, event_seq, lease_epoch FROM sessions WHERE forked_from IS NULL"
    ):
        old_seq, old_epoch = map(int, before.get("sessions", {}).get(session, "0 0").split())
        if seq < old_seq or epoch < old_epoch:
            yield f"session {session} went back from event {old_seq} of epoch {old_epoch} to {seq} of {epoch}"
        new = [
            row[0]
            for row in read(
                "SELECT seq FROM events WHERE session_id = ? AND seq > ? ORDER BY seq", session, old_seq
            )
        ]
        if new != list(range(old_seq + 1, seq + 1)):
            yield f"session {session}: after event {old_seq} come {new[:3]}, and {seq} were counted"
        before.setdefault("sessions", {})[session] = f"{seq} {epoch}"


class Log:
    """Reads the events as they are committed, and checks what must follow from them."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._seq = 0
        self._used = 0
        self._paused: dict[str, int] = {}
        """Agents that a person paused, by themselves → how many replies they may get before they are resumed."""
        self.ended: set[str] = set()
        """Agents that have ended."""

    def follow(self, session: str) -> Iterator[str]:
        """The problems that the newest commit shows."""
        rows = self._read(
            "SELECT seq, kind, agent_id, data FROM events WHERE session_id = ? AND seq > ? ORDER BY seq",
            session,
            self._seq,
        )
        for seq, kind, agent, data in rows:
            self._seq, about = seq, json.loads(data)
            if kind == "host.started" and about["resume"]:
                yield from self._resumed(session, seq)
            elif kind == "command.applied":
                yield from self._applied(session, seq, about)
            elif kind == "agent.working" and about.get("reason") == "resumed":
                self._paused.pop(agent, None)
            elif kind == "model.replied" and agent in self._paused:
                self._paused[agent] -= 1
                if self._paused[agent] < 0:
                    yield f"{agent} goes on, which a person has paused, and nobody has resumed"
            elif kind == "session.done":
                yield from self._done(session)
            if kind in ("agent.done", "agent.failed", "agent.cancelled"):
                self.ended.add(agent)
            elif kind.startswith("agent."):
                self.ended.discard(agent)
        yield from self._spent(session)

    def _applied(self, session: str, seq: int, about: dict[str, Any]) -> Iterator[str]:
        agent = self._read("SELECT agent_id FROM commands WHERE id = ?", about["command"])[0][0]
        if about["command_kind"] == "pause" and agent is not None:
            self._paused[agent] = 1 if "pauses" in about["result"] else 0  # one that is under way
        elif about["command_kind"] == "resume" and agent is not None:
            self._paused.pop(agent, None)
        elif about["command_kind"] == "resume":
            yield from self._resumed(session, seq)

    def _resumed(self, session: str, seq: int) -> Iterator[str]:
        """A resume of the session resumes each agent that was paused, but one whose inputs are made again."""
        self._paused.clear()
        for agent, why in self._read(
            "SELECT id, status_reason FROM agents a WHERE session_id = ? AND status = 'paused' AND NOT EXISTS (SELECT 1"
            " FROM events e WHERE e.session_id = a.session_id AND e.agent_id = a.id AND e.kind = 'agent.paused' AND e.seq > ?)",
            session, seq,
        ):  # fmt: skip
            if why != INPUTS_AGAIN:
                yield f"{agent} stays paused ({why}) when a person resumes the session"

    def _done(self, session: str) -> Iterator[str]:
        for name, status in self._read(
            "SELECT name, status FROM tasks WHERE session_id = ? AND status IN ('pending', 'running', 'paused')",
            session,
        ):
            yield f"the session is done, and {name} is {status}"

    def _spent(self, session: str) -> Iterator[str]:
        """What a provider has counted of a call stays counted, whatever becomes of the call."""
        used = self._read(
            "SELECT coalesce(sum(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens), 0)"
            " FROM model_calls WHERE session_id = ?",
            session,
        )[0][0]
        if used < self._used:
            yield f"{self._used} tokens were counted, and now {used} are"
        self._used = used


def left_over(read: Read, session: str, epoch: int, newest: int) -> Iterator[str]:
    """A host that has ended by itself has no call in progress, and has settled the commands that it found, up to the
    `newest`, but for those that may wait for a compaction or for the next host."""
    for number, agent in read(
        "SELECT id, agent_id FROM reservations WHERE session_id = ? AND lease_epoch = ?", session, epoch
    ):
        yield f"call {number} of {agent} stays reserved when its host ends"
    for number, kind in read(
        "SELECT id, kind FROM commands WHERE session_id = ? AND status = 'queued' AND id <= ?"
        " AND kind NOT IN ('resume', 'compact', 'undo', 'redo', 'edit')",
        session,
        newest,
    ):
        yield f"command {number} ({kind}) was there before a host, and stays queued when that host ends"


def at_end(read: Read, session: str, ledger: Ledger) -> list[str]:
    """Checks of a session that has ended."""
    found = list(_commands(read)) + list(_effects(read, session, ledger)) + list(_moves(read, session))
    found += _messages(read)
    found += _memory(read, session)
    if read("PRAGMA integrity_check")[0][0] != "ok" or read("PRAGMA foreign_key_check"):
        found.append("the database is damaged")
    if read("SELECT 1 FROM tool_calls c JOIN agents a ON a.id = c.agent_id WHERE c.status IN ('pending', 'running')"
            " AND a.status IN ('done', 'failed', 'cancelled')"):  # fmt: skip
        found.append("a call of an agent that has ended never ended")
    if read("SELECT 1 FROM approvals p JOIN agents a ON a.id = p.agent_id WHERE p.status = 'waiting' AND a.status IN"
            " ('done', 'failed', 'cancelled')"):  # fmt: skip
        found.append("a question of an agent that has ended still waits")
    status = read("SELECT status FROM sessions WHERE id = ?", session)[0][0]
    if status == "done":
        found += _inputs(read, session)
        # What a person asks of a session that has ended is for the task alone.
        if read("SELECT 1 FROM inbox i JOIN sessions s ON s.planner_agent_id = i.agent_id WHERE i.delivered_seq IS NULL"
                " AND i.kind IN ('steer', 'person', 'rule') AND s.id = ? AND i.commit_seq < (SELECT max(seq) FROM events"
                " WHERE session_id = s.id AND kind = 'session.done')", session):  # fmt: skip
            found.append("the planner ended the session over the word of a person")
    return found


def _commands(read: Read) -> Iterator[str]:
    for number, kind, status, result in read("SELECT id, kind, status, result FROM commands"):
        if status == "failed":
            yield f"command {number} ({kind}) failed: {result}"
        elif status != "queued" and not result:
            yield f"command {number} ({kind}) is {status} without a reason"


def _effects(read: Read, session: str, ledger: Ledger) -> Iterator[str]:
    rows = read("SELECT id, name, status, runs, idempotent FROM tool_calls WHERE session_id = ?", session)
    calls = {row[0]: row[1:] for row in rows}
    for number, count in ledger.effects.items():
        name, status, runs, idempotent = calls.get(number, ("?", "lost", 0, 0))
        if count > runs or (count > 1 and not idempotent):
            yield f"{name}, call {number}, had its effect {count} times, and was begun {runs} times"
        if status in ("pending", "cancelled", "denied", "lost"):
            yield f"{name}, call {number}, had its effect, and is {status}"
    for number, (name, status, *_) in calls.items():
        if name in WITH_EFFECT and status == "done" and not ledger.effects[number]:
            yield f"{name}, call {number}, is done, and had no effect"


def _moves(read: Read, session: str) -> Iterator[str]:
    """The events of each task follow each other as the table of states allows."""
    states: dict[str, TaskStatus] = {}
    for task, kind in read(
        "SELECT task_id, kind FROM events WHERE session_id = ? AND task_id IS NOT NULL AND kind LIKE 'task.%' ORDER BY seq",
        session,
    ):
        word = kind.removeprefix("task.")
        if word not in set(TaskStatus):
            continue
        new, old = TaskStatus(word), states.get(task, TaskStatus.PENDING)
        if new is not old and new not in TASK_MOVES[old]:
            yield f"task {task} went from {old} to {new}"
        states[task] = new
    for task, status in read("SELECT id, status FROM tasks WHERE session_id = ?", session):
        if task in states and states[task] != status:
            yield f"task {task} is {status}, and its last event says {states[task]}"


def _messages(read: Read) -> Iterator[str]:
    for agent, last, total in read("SELECT id, last_seq, message_tokens FROM agents"):
        rows = read("SELECT seq, tokens FROM messages WHERE agent_id = ? ORDER BY seq", agent)
        numbers, tokens = [row[0] for row in rows], sum(row[1] for row in rows)
        if numbers != list(range(1, last + 1)) or tokens != total:
            yield f"the messages of {agent} do not add up: {len(rows)} of {last}, {tokens} of {total} tokens"
        twice = read("SELECT result_seq FROM tool_calls WHERE agent_id = ? AND result_seq > ?", agent, last)
        if twice:
            yield f"a result of {agent} is said to be in a message that is not there"
    for (row,) in read("SELECT content FROM messages WHERE role = 'user'"):
        if row.startswith("[") and not isinstance(json.loads(row), list):
            yield "a message is no list"


OUR_FAULT = re.compile(r"\b(Key|Type|Attribute|Assertion|Index|Name|Value|Runtime)Error\b.*")
"""What only a mistake of the program raises; a model, a tool or a disk fails with other errors."""

BY_HAND = ("compaction.undo", "compaction.redo")
"""Events of a person's changes of a context, after which a pass that began before must not be applied."""


def _memory(read: Read, session: str) -> Iterator[str]:
    """No pass is applied over a change that a person made while it ran, and what was undone can be redone. No pass
    fails by a fault of ours."""
    for number, reason in read("SELECT id, reason FROM compactions WHERE session_id = ?", session):
        if fault := OUR_FAULT.search(reason or ""):
            yield f"compaction {number} met a fault of the program: {fault[0]}"
    began: dict[int, int] = {}
    by_hand: dict[str, int] = {}
    for seq, kind, agent, data in read(
        "SELECT seq, kind, agent_id, data FROM events WHERE session_id = ? AND (kind LIKE 'compaction.%' OR kind LIKE"
        " 'memory.%') ORDER BY seq",
        session,
    ):
        compaction = json.loads(data).get("compaction")
        if kind == "compaction.started":
            began[compaction] = seq
        elif kind in BY_HAND:
            by_hand[agent] = seq
        elif kind == "compaction.applied" and began.get(compaction, seq) < by_hand.get(agent, 0):
            yield f"compaction {compaction} of {agent} was applied over a change that a person made while it ran"
    for seq, data in read(
        "SELECT seq, data FROM events WHERE session_id = ? AND kind = 'command.refused'", session
    ):
        about = json.loads(data)
        if about["command_kind"] != "redo":
            continue
        number, why = about["command"], about["result"]
        agent = read("SELECT agent_id FROM commands WHERE id = ?", number)[0][0]
        newest = read(
            "SELECT reason FROM views WHERE agent_id = ? AND commit_seq <= ? ORDER BY version DESC LIMIT 1",
            agent,
            seq,
        )
        moved = read(
            "SELECT kind FROM events WHERE session_id = ? AND agent_id = ? AND seq < ? AND kind IN ('compaction.undo',"
            " 'compaction.redo') ORDER BY seq DESC LIMIT 1",
            session,
            agent,
            seq,
        )
        is_undone = bool(newest) and newest[0][0] == "undo" and moved[0][0] == "compaction.undo"
        if is_undone and "Nothing to redo" in why:
            yield f"redo, command {number}, was refused after an undo of {agent}: {why}"


def _inputs(read: Read, session: str) -> Iterator[str]:
    """No task is done on inputs that have changed since."""
    rows = Rows(read)
    for task in plans.load_tasks(rows, session):
        if (
            task.status is TaskStatus.DONE and "otherwise" not in task.instructions
        ):  # a person may revise what is done
            inputs = [one.ref for one in inputs_of(rows, task)]
            if plans.inputs_hash(inputs, task.instructions) != task.inputs_hash:
                yield f"{task.name} is done on inputs that have changed"
