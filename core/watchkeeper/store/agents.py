"""Rows of `agents`, `steps`, `tool_calls`, `model_calls` and `approvals`: what one step of a loop writes. And of
`agent_programs`, `program_turns` and `worktrees`: which program's session an agent is, what it was sent, and where
it works.

A turn of a program is a call: its row is `running` before the prompt is sent, and then `completed`, `interrupted`,
`failed`, or `unknown` where the host died meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.messages import Cost, PriceStatus, ToolSpec, Usage
from watchkeeper.records.model_calls import ModelCallRecord
from watchkeeper.records.states import (
    AGENT_ENDED,
    AGENT_MOVES,
    AgentStatus,
    ApprovalStatus,
    ModelCallStatus,
    ToolCallStatus,
    check,
)
from watchkeeper.store.driver import IN_LIST, Reads, column, decode, decode_or, encode, first, list_of
from watchkeeper.store.names import AGENT_NAME

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent in its present state."""

    id: str
    task_id: str | None
    name: str
    role: str
    model: str
    attempt: int
    system: str
    status: AgentStatus
    status_reason: str | None
    turn: int
    view_version: int
    last_seq: int
    current_goal: str
    context_limit: int


_COLUMNS = (
    f"id, task_id, {AGENT_NAME}, role, model, attempt, system, status, status_reason, turn, view_version, last_seq,"
    " current_goal, context_limit"
)


def load(reads: Reads, agent_id: str) -> Agent | None:
    row = reads.one(f"SELECT {_COLUMNS} FROM agents a WHERE id = ?", (agent_id,))
    return _agent(row) if row is not None else None


def load_all(reads: Reads, session_id: str) -> list[Agent]:
    """A session's agents, oldest first."""
    rows = reads.all(
        f"SELECT {_COLUMNS} FROM agents a WHERE session_id = ? ORDER BY ordinal",
        (session_id,),
    )
    return [_agent(row) for row in rows]


def status_of(reads: Reads, agent_id: str) -> AgentStatus | None:
    """The status of an agent; None if there is no such agent."""
    return first(reads, AgentStatus, "SELECT status FROM agents WHERE id = ?", (agent_id,))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an agent is, and how full its context."""

    turn: int
    view_version: int
    last_seq: int
    message_tokens: int
    """The tokens of its whole history."""
    context_tokens: int
    context_limit: int
    """In tokens; 0 where it is not known."""
    composition: str
    """JSON text, as stored: the tokens of the parts of its context."""


def progress(reads: Reads, agent_id: str) -> Progress:
    """How far an agent is that was found before."""
    row = reads.one(
        "SELECT turn, view_version, last_seq, message_tokens, context_tokens, context_limit, composition FROM agents"
        " WHERE id = ?",
        (agent_id,),
    )
    return Progress(*row)


def names_of(reads: Reads, agent_ids: Sequence[str]) -> dict[str, str]:
    """What agents are called, by id."""
    rows = reads.all(f"SELECT id, {AGENT_NAME} FROM agents a WHERE id {IN_LIST}", (list_of(agent_ids),))
    return {row[0]: row[1] for row in rows}


def first_of(reads: Reads, session_id: str) -> str | None:
    """The id of a session's first agent; None if it has none."""
    return first(
        reads, str, "SELECT id FROM agents WHERE session_id = ? ORDER BY ordinal LIMIT 1", (session_id,)
    )


def open_ids(reads: Reads, session_id: str) -> list[str]:
    """The ids of a session's agents that have not ended, oldest first."""
    rows = reads.all("SELECT id, status FROM agents WHERE session_id = ? ORDER BY ordinal", (session_id,))
    return [row[0] for row in rows if row[1] not in AGENT_ENDED]


def _agent(row: Any) -> Agent:
    return Agent(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], AgentStatus(row[7]), row[8], row[9], row[10], row[11], row[12],
        row[13],
    )  # fmt: skip


def create(
    tx: Transaction,
    agent: Agent,
    *,
    parent_agent_id: str | None = None,
    copied_from: str | None = None,
    tools: Sequence[ToolSpec] | None = None,
) -> None:
    """Store a new agent. `tools`: the tools of MCP servers that it is offered, from now until its end."""
    offered = None if tools is None else encode([asdict(one) for one in tools])
    tx.execute(
        "INSERT INTO agents (id, session_id, task_id, parent_agent_id, copied_from, name, role, model,"
        " attempt, current_goal,"
        " system, status, context_limit, created_at, last_active, commit_seq, tools)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            agent.id, tx.session_id, agent.task_id, parent_agent_id, copied_from, agent.name, agent.role, agent.model,
            agent.attempt, agent.current_goal, agent.system, agent.status, agent.context_limit, tx.now, tx.now,
            tx.commit_seq, offered,
        ),
    )  # fmt: skip
    tx.event(
        "agent.created",
        agent_id=agent.id,
        task_id=agent.task_id,
        name=agent.name,
        role=agent.role,
        model=agent.model,
        attempt=agent.attempt,
    )


def load_tools(reads: Reads, agent_id: str) -> list[ToolSpec] | None:
    """The tools of MCP servers that an agent is offered; None for an agent that is not stored, or is of an earlier
    release."""
    row = reads.one("SELECT tools FROM agents WHERE id = ?", (agent_id,))
    found = decode_or(row[0], None) if row is not None and row[0] is not None else None
    return [ToolSpec(**one) for one in found] if isinstance(found, list) else None


def move(
    tx: Transaction,
    agent_id: str,
    status: AgentStatus,
    reason: str | None = None,
    *,
    parked_until: float | None = None,
    **about: Any,
) -> None:
    """Change an agent's state, with its event. `parked_until` (wall time) belongs to PARKED.

    Raises:
        ValueError: the move is not in `AGENT_MOVES`.
    """
    row = tx.one("SELECT status, task_id FROM agents WHERE id = ?", (agent_id,))
    old = AgentStatus(row[0])
    check(AGENT_MOVES, old, status)
    ended = tx.now if status in (AgentStatus.DONE, AgentStatus.FAILED, AgentStatus.CANCELLED) else None
    tx.execute(
        "UPDATE agents SET status = ?, status_reason = ?, parked_until = ?, ended_at = ?, last_active = ?,"
        " started_at = coalesce(started_at, ?) WHERE id = ?",
        (status, reason, parked_until, ended, tx.now, tx.now, agent_id),
    )
    if parked_until is not None:
        about["until"] = parked_until
    if old is not status:
        tx.event(f"agent.{status}", agent_id=agent_id, task_id=row[1], reason=reason, **about)
    if ended is not None:
        _end_open_calls(tx, agent_id, row[1], status)


NOT_BEGUN = "[not run] The agent was {} before this call began. Make the call again if it is still needed."
CUT_SHORT = (
    "[interrupted, outcome unknown] The agent was {} while this call was running. It may have taken effect,"
    " fully or partly."
    " Verify before you repeat it."
)


def _end_open_calls(tx: Transaction, agent_id: str, task_id: str | None, status: AgentStatus) -> None:
    """An agent has ended: its pending calls are cancelled, a running call becomes unknown, its questions
    expire."""
    for call_id, name, was in tx.all(
        "SELECT id, name, status FROM tool_calls WHERE agent_id = ? AND status IN (?, ?) ORDER BY id",
        (agent_id, ToolCallStatus.PENDING, ToolCallStatus.RUNNING),
    ):
        began = was == ToolCallStatus.RUNNING
        text = (CUT_SHORT if began else NOT_BEGUN).format(status)
        now = ToolCallStatus.UNKNOWN if began else ToolCallStatus.CANCELLED
        tx.execute(
            "UPDATE tool_calls SET status = ?, result = ?, is_error = 1, ended_at = ? WHERE id = ?",
            (now, encode(text), tx.now, call_id),
        )
        tx.event(f"tool.{now}", agent_id=agent_id, task_id=task_id, tool=name, call=call_id, preview=text)
    cancel_questions(tx, agent_id, f"the agent was {status}")


def was_denied(reads: Reads, agent_id: str, call_id: int) -> bool:
    """Whether a call of the same reply as this one was denied."""
    same = "(SELECT turn FROM tool_calls WHERE id = ?)"
    sql = f"SELECT 1 FROM tool_calls WHERE agent_id = ? AND turn = {same} AND status = 'denied'"
    return reads.one(sql, (agent_id, call_id)) is not None


def cancel_questions(tx: Transaction, agent_id: str, why: str) -> None:
    """End the unanswered questions of an agent."""
    _cancel(tx, why, "session_id = ? AND agent_id = ?", (tx.session_id, agent_id))


def _cancel(tx: Transaction, why: str, chosen: str, parameters: tuple[Any, ...]) -> None:
    """End the unanswered questions that a condition chooses."""
    for approval_id, agent_id, task_id, tool in tx.all(
        f"SELECT id, agent_id, task_id, tool FROM approvals WHERE {chosen} AND status = ? ORDER BY id",
        (*parameters, ApprovalStatus.WAITING),
    ):
        tx.execute(
            "UPDATE approvals SET status = ?, reason = ?, decided_at = ? WHERE id = ?",
            (ApprovalStatus.CANCELLED, why, tx.now, approval_id),
        )
        tx.event(
            "approval.cancelled",
            agent_id=agent_id,
            task_id=task_id,
            approval=approval_id,
            tool=tool,
            reason=why,
        )


def note_context(
    tx: Transaction,
    agent_id: str,
    *,
    view_version: int,
    messages: int,
    last_seq: int,
    message_tokens: int,
    context_tokens: int,
    composition: dict[str, int],
) -> None:
    """Record the agent's view, its position in its history, and the size and make-up of its context, after a
    step that added so many messages.

    Raises:
        ValueError: the store lacks a message before these. A commit that failed (a full disk) leaves a context that
            is ahead of its rows; nothing that was made from it is stored.
    """
    stored = tx.changed(
        "UPDATE agents SET view_version = ?, last_seq = ?, message_tokens = ?, context_tokens = ?,"
        " composition = ?,"
        " last_active = ? WHERE id = ? AND last_seq = ?",
        (
            view_version,
            last_seq,
            message_tokens,
            context_tokens,
            encode(composition),
            tx.now,
            agent_id,
            last_seq - messages,
        ),
    )
    if not stored:
        raise ValueError("could not store the newest message in the context; try again when the run resumes")


def note_appended(tx: Transaction, agent_id: str, last_seq: int, message_tokens: int) -> None:
    """The history of an agent that a program drives ends with that message now, and has so many tokens."""
    tx.execute(
        "UPDATE agents SET last_seq = ?, message_tokens = ?, last_active = ? WHERE id = ?",
        (last_seq, message_tokens, tx.now, agent_id),
    )


def note_program_context(tx: Transaction, agent_id: str, tokens: int, limit: int | None) -> None:
    """A program says how full its context is, and how large it may be (None: as before). A compaction whose outcome was
    not known yet led to this size."""
    tx.execute(
        "UPDATE agents SET context_tokens = ?, context_limit = coalesce(?, context_limit), composition = '{}'"
        " WHERE id = ?",
        (tokens, limit, agent_id),
    )
    tx.execute(
        "UPDATE compactions SET tokens_after = ? WHERE agent_id = ? AND status = 'applied' AND tokens_after IS NULL",
        (tokens, agent_id),
    )


def next_step(tx: Transaction, agent_id: str, reply_seq: int, started_at: float) -> int:
    """Begin the next step of an agent that a program drives; returns its turn."""
    turn = progress(tx, agent_id).turn + 1
    begin_step(tx, agent_id, turn, reply_seq, started_at)
    tx.execute("UPDATE agents SET turn = ? WHERE id = ?", (turn, agent_id))
    return turn


def reply_of(reads: Reads, agent_id: str, turn: int, *, open_only: bool = False) -> int | None:
    """The message that a turn began with: the model's reply. None if there is none, or with `open_only` where its results
    are stored already."""
    still_open = " AND ended_at IS NULL" if open_only else ""
    sql = f"SELECT reply_seq FROM steps WHERE agent_id = ? AND turn = ?{still_open}"
    return first(reads, int, sql, (agent_id, turn))


def begin_step(tx: Transaction, agent_id: str, turn: int, reply_seq: int, started_at: float) -> None:
    """A model's reply is in (see `add_model_call`); the step is open until its results message follows."""
    tx.execute(
        "INSERT INTO steps (agent_id, turn, reply_seq, started_at, commit_seq) VALUES (?, ?, ?, ?, ?)",
        (agent_id, turn, reply_seq, started_at, tx.commit_seq),
    )


def reopen_step(tx: Transaction, agent_id: str, turn: int) -> None:
    """Continue a step that a crash or a pause left open; the time since its reply does not count as work."""
    tx.execute(
        "UPDATE steps SET started_at = ?1 - CASE WHEN reply.created_at > started_at"
        " THEN reply.created_at - started_at ELSE 0 END FROM messages AS reply"
        " WHERE steps.agent_id = ?2 AND turn = ?3 AND ended_at IS NULL AND reply.agent_id = ?2 AND reply.seq"
        " = reply_seq",
        (tx.now, agent_id, turn),
    )


def end_step(tx: Transaction, agent_id: str, turn: int, results_seq: int | None) -> None:
    """The step is whole. `results_seq` is None for a reply that called no tool. A clock that was set back
    ends it as it began."""
    tx.execute(
        "UPDATE steps SET results_seq = ?1, ended_at = CASE WHEN started_at > ?2 THEN started_at ELSE ?2 END"
        " WHERE agent_id = ?3 AND turn = ?4",
        (results_seq, tx.now, agent_id, turn),
    )
    tx.execute(
        "UPDATE agents SET active_seconds = active_seconds + step.ended_at - step.started_at,"
        " started_at = coalesce(agents.started_at, step.started_at) FROM steps AS step"
        " WHERE agents.id = ?1 AND step.agent_id = ?1 AND step.turn = ?2",
        (agent_id, turn),
    )


def input_digest(name: str, arguments: Any) -> str:
    """The same for two calls of one tool with one input; for commands of `bash`, whatever their time limit and the
    blanks between their words."""
    if name == "bash" and isinstance(arguments, dict) and isinstance(arguments.get("command"), str):
        command = arguments["command"].strip()
        is_plain = "<<" not in command and not set(command) & set("\"'\\")  # else a blank may mean something
        arguments = [line.split() for line in command.splitlines()] if is_plain else command
    text = json.dumps([name, arguments], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def add_intents(
    tx: Transaction, agent_id: str, turn: int, seq: int, calls: Sequence[tuple[str, str, bool, str | None]]
) -> list[int]:
    """Commit the calls that the model requested, `(tool_use_id, name, idempotent, input_digest)` by position;
    returns their ids."""
    return [
        tx.insert(
            "INSERT INTO tool_calls (session_id, agent_id, turn, position, seq, tool_use_id, name,"
            " idempotent, status,"
            " input_digest, commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                tx.session_id,
                agent_id,
                turn,
                position,
                seq,
                use_id,
                name,
                int(idempotent),
                ToolCallStatus.PENDING,
                digest,
                tx.commit_seq,
            ),
        )
        for position, (use_id, name, idempotent, digest) in enumerate(calls)
    ]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an open turn."""

    id: int
    position: int
    tool_use_id: str
    name: str
    arguments: Any
    """What runs: what a person edited, else the model's input."""
    idempotent: bool
    status: ToolCallStatus
    result: Any
    is_error: bool
    original: Any = None
    """The model's input, where a person edited it; else None."""


def load_calls(reads: Reads, agent_id: str, turn: int, content: Any) -> list[Call]:
    """The calls of a turn, joined with the inputs that stand in the model's reply."""
    uses = (
        [block for block in content if block.get("type") == "tool_use"] if isinstance(content, list) else []
    )
    found = []
    for row in reads.all(
        "SELECT id, position, tool_use_id, name, idempotent, status, result, is_error, edited_input FROM tool_calls"
        " WHERE agent_id = ? AND turn = ? ORDER BY position",
        (agent_id, turn),
    ):
        given = uses[row[1]].get("input") if row[1] < len(uses) else None
        arguments, original = (given, None) if row[8] is None else (decode(row[8]), given)
        result = decode(row[6]) if row[6] is not None else None
        found.append(Call(
            row[0], row[1], row[2], row[3], arguments, bool(row[4]), ToolCallStatus(row[5]), result, bool(row[7]), original
        ))  # fmt: skip
    return found


def recent_runs(reads: Reads, agent_id: str, most: int) -> list[tuple[str, str | None]]:
    """The newest calls of an agent that ran, the newest first: the tool, and the digest of the input as in
    `input_digest`."""
    rows = reads.all(
        "SELECT name, input_digest FROM tool_calls WHERE agent_id = ? AND status IN (?, ?, ?) ORDER BY id DESC LIMIT ?",
        (agent_id, ToolCallStatus.DONE, ToolCallStatus.ERROR, ToolCallStatus.UNKNOWN, most),
    )
    return [(row[0], row[1]) for row in rows]


def digest_of_call(reads: Reads, call_id: int) -> str | None:
    """The digest of a call's input as in `input_digest`; None where none was stored."""
    return first(reads, str, "SELECT input_digest FROM tool_calls WHERE id = ?", (call_id,))


def has_called(reads: Reads, agent_id: str, use_id: str) -> bool:
    """Whether an agent has a tool call of this id."""
    sql = "SELECT 1 FROM tool_calls WHERE agent_id = ? AND tool_use_id = ?"
    return reads.one(sql, (agent_id, use_id)) is not None


def running_call(reads: Reads, agent_id: str, name: str) -> int | None:
    """The newest running call of a tool whose name ends with `name`, as programs put their own prefix before it."""
    sql = (
        "SELECT id FROM tool_calls WHERE agent_id = ? AND status = ? AND name LIKE ? ORDER BY id DESC LIMIT 1"
    )
    return first(reads, int, sql, (agent_id, ToolCallStatus.RUNNING, f"%{name}"))


def open_calls(reads: Reads, agent_id: str) -> list[tuple[int, int, str, str]]:
    """The calls of an agent whose results no message carries yet, oldest first: row, turn, the program's own id, tool."""
    sql = "SELECT id, turn, tool_use_id, name FROM tool_calls WHERE agent_id = ? AND result_seq IS NULL ORDER BY id"
    return [tuple(row) for row in reads.all(sql, (agent_id,))]


def denied_uses(reads: Reads, agent_id: str) -> set[str]:
    """The ids that the model gave to those of an agent's calls which a person denied."""
    sql = (
        "SELECT t.tool_use_id FROM approvals a JOIN tool_calls t ON t.id = a.tool_call_id WHERE a.agent_id = ?"
        " AND a.status = ?"
    )
    return set(column(reads, str, sql, (agent_id, ApprovalStatus.DENIED)))


def start_tool_call(tx: Transaction, call_id: int) -> None:
    """From here on, a crash leaves the call's outcome unknown."""
    tx.execute(
        "UPDATE tool_calls SET status = ?, started_at = ?, runs = runs + 1 WHERE id = ?",
        (ToolCallStatus.RUNNING, tx.now, call_id),
    )


def began_a_call(reads: Reads, agent_id: str, tool: str) -> bool:
    """Whether a call of this tool has ever started to run for the agent, under any host."""
    sql = "SELECT 1 FROM tool_calls WHERE agent_id = ? AND name = ? AND runs > 0 AND status <> ? LIMIT 1"
    return reads.one(sql, (agent_id, tool, ToolCallStatus.PENDING)) is not None


def return_tool_call(tx: Transaction, call_id: int) -> None:
    """A call that was `running`, and certainly had no effect, is `pending` again."""
    tx.execute(
        "UPDATE tool_calls SET status = ?, started_at = NULL WHERE id = ?", (ToolCallStatus.PENDING, call_id)
    )


def hold_tool_call(tx: Transaction, call_id: int) -> None:
    """A call that runs waits for a person's answer; it was started before."""
    tx.execute(
        "UPDATE tool_calls SET status = ? WHERE id = ? AND status = ?",
        (ToolCallStatus.PENDING, call_id, ToolCallStatus.RUNNING),
    )


def release_tool_call(tx: Transaction, call_id: int) -> None:
    """A call that waited for an answer goes on."""
    tx.execute(
        "UPDATE tool_calls SET status = ? WHERE id = ? AND status = ?",
        (ToolCallStatus.RUNNING, call_id, ToolCallStatus.PENDING),
    )


def end_tool_call(
    tx: Transaction, call_id: int, status: ToolCallStatus, content: Any, is_error: bool, started_at: float
) -> None:
    """Keep a result until the results message carries it. A question about the call ends with it."""
    tx.execute(
        "UPDATE tool_calls SET status = ?, result = ?, is_error = ?, started_at = coalesce(started_at, ?),"
        " ended_at = ?"
        " WHERE id = ?",
        (status, encode(content), int(is_error), started_at, tx.now, call_id),
    )
    _cancel(
        tx,
        "the outcome of the call is unknown" if status is ToolCallStatus.UNKNOWN else "its call has ended",
        "session_id = ? AND tool_call_id = ?",
        (tx.session_id, call_id),
    )


def deliver_results(tx: Transaction, agent_id: str, turn: int, results_seq: int) -> None:
    """The results message holds the results now; they need not stand twice."""
    tx.execute(
        "UPDATE tool_calls SET result = NULL, result_seq = ? WHERE agent_id = ? AND turn = ?",
        (results_seq, agent_id, turn),
    )


CALIBRATING_CALLS = 50
"""Older calls hardly move a calibration."""


def reported_prompts(reads: Reads, session_id: str, model: str) -> list[tuple[int, int]]:
    """The newest calls of a session's agents with exact usage, oldest first: prompt tokens estimated, and
    reported."""
    rows = reads.all(
        "SELECT estimated_prompt_tokens, input_tokens + cache_read_tokens + cache_write_tokens FROM model_calls"
        " WHERE session_id = ? AND model = ? AND usage_exact = 1 AND status = 'done' AND purpose IN ('turn', 'planner')"
        " ORDER BY id DESC LIMIT ?",
        (session_id, model, CALIBRATING_CALLS),
    )
    return [(row[0], row[1]) for row in reversed(rows)]


def requests_counted(reads: Reads, program: str, program_session: str) -> set[str]:
    """The requests of an agent program's session whose model calls are recorded, by the ids that its log has for them."""
    sql = (
        "SELECT request_id FROM model_calls WHERE request_id IS NOT NULL AND agent_id IN"
        " (SELECT agent_id FROM agent_programs WHERE program_session = ? AND program = ?)"
    )
    return set(column(reads, str, sql, (program_session, program)))


def add_model_call(tx: Transaction, call: ModelCallRecord) -> int:
    """Record one call, and add it to its agent's and its session's running totals; returns its id."""
    usage, cost = call.usage, call.cost
    call_id = tx.insert(
        "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, stop_reason,"
        " input_tokens, output_tokens,"
        " cache_read_tokens, cache_write_tokens, estimated_prompt_tokens, usage_exact, cost_usd,"
        " price_status, started_at,"
        " latency_seconds, first_token_seconds, waited_seconds, retries, error, request_id, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            tx.session_id, call.agent_id, call.turn, call.purpose, call.model, call.status, call.stop_reason,
            usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens,
            call.estimated_prompt_tokens, int(call.usage_exact), cost.usd, cost.status, call.started_at,
            call.latency_seconds, call.first_token_seconds, call.waited_seconds, call.retries, call.error,
            call.request_id, tx.commit_seq,
        ),
    )  # fmt: skip
    failed = 1 if call.status is ModelCallStatus.ERROR else 0
    unpriced = 1 if cost.status is PriceStatus.UNPRICED and usage.total_tokens else 0
    # A reply ends its turn's call; a call that failed or was abandoned leaves the agent at the turn before.
    reached = call.turn if call.status is ModelCallStatus.DONE else 0
    tx.execute(
        "UPDATE agents SET input_tokens = input_tokens + ?, output_tokens = output_tokens + ?,"
        " cache_read_tokens = cache_read_tokens + ?, cache_write_tokens = cache_write_tokens + ?,"
        " cost_usd = CASE WHEN ? IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + ? END,"
        " unpriced_calls = unpriced_calls + ?, model_calls = model_calls + 1, retries = retries + ?, errors"
        " = errors + ?,"
        " last_active = ?, turn = CASE WHEN turn > ? THEN turn ELSE ? END WHERE id = ?",
        (
            usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens, cost.usd, cost.usd,
            unpriced, call.retries, failed, tx.now, reached, reached, call.agent_id,
        ),
    )  # fmt: skip
    tx.add_usage(usage, cost, calls=1, retries=call.retries, errors=failed)
    return call_id


def begin_model_call(
    tx: Transaction,
    *,
    agent_id: str,
    purpose: str,
    model: str,
    usage: Usage,
    started_at: float,
    request_id: str | None,
) -> int:
    """Note what the provider has counted of a call in progress, in case its host is killed; returns its id."""
    turn = tx.one("SELECT turn FROM agents WHERE id = ?", (agent_id,))[0]
    return tx.insert(
        "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, input_tokens, output_tokens,"
        " cache_read_tokens, cache_write_tokens, usage_exact, started_at, request_id, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
        (
            tx.session_id, agent_id, turn, purpose, model, ModelCallStatus.RUNNING, usage.input_tokens, usage.output_tokens,
            usage.cache_read_tokens, usage.cache_write_tokens, started_at, request_id, tx.commit_seq,
        ),
    )  # fmt: skip


def drop_begun_call(tx: Transaction, call_id: int) -> None:
    """The call has ended: `add_model_call` in the same transaction says how."""
    tx.execute("DELETE FROM model_calls WHERE id = ? AND status = ?", (call_id, ModelCallStatus.RUNNING))


def settle_cut_calls(tx: Transaction, price: Callable[[str, Usage, bool], Cost]) -> None:
    """Count what the calls had used that an earlier host of the session did not see the end of."""
    for row in tx.all(
        "SELECT id, agent_id, turn, purpose, model, input_tokens, output_tokens, cache_read_tokens,"
        " cache_write_tokens, started_at, request_id, commit_seq <= coalesce((SELECT forked_at_seq FROM sessions"
        " WHERE id = ?1), 0) FROM model_calls WHERE session_id = ?1 AND status = ?2 ORDER BY id",
        (tx.session_id, ModelCallStatus.RUNNING),
    ):
        usage, is_copied = Usage(*row[5:9]), row[11]
        drop_begun_call(tx, row[0])
        if is_copied:  # by a fork: the original session counts it
            continue
        add_model_call(tx, ModelCallRecord(
            agent_id=row[1], turn=row[2], purpose=row[3], model=row[4], status=ModelCallStatus.ABANDONED, usage=usage,
            cost=price(row[4], usage, False), started_at=row[9], usage_exact=False,
            error="the background process stopped during the call", request_id=row[10],
        ))  # fmt: skip


def ask_approval(
    tx: Transaction,
    *,
    approval_id: str,
    agent_id: str,
    task_id: str | None,
    call_id: int,
    tool: str,
    question: str,
    cause: str = "permission",
    note: str | None = None,
    folder: str | None = None,
    subject_digest: str | None = None,
    premises: dict[str, Any] | None = None,
) -> None:
    """Put a question to a person.

    `cause`: `permission`, `repetition`, `changed` or `conflict`; `note` says in a line why it is asked. `folder` is that
    of the agent's shell, `subject_digest` that of the file that would change (`records.tool_inputs`), `premises` what the
    answer rests on (`records.premises`).
    """
    tx.execute(
        "INSERT INTO approvals (id, session_id, agent_id, task_id, tool_call_id, tool, question, cause,"
        " note, folder,"
        " subject_digest, created_at, commit_seq, premises) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            approval_id, tx.session_id, agent_id, task_id, call_id, tool, question, cause, note, folder, subject_digest, tx.now,
            tx.commit_seq, encode(premises) if premises is not None else None,
        ),
    )  # fmt: skip
    tx.event(
        "approval.asked",
        agent_id=agent_id,
        task_id=task_id,
        approval=approval_id,
        tool=tool,
        question=question[:2000],
        **({"note": note} if note else {}),
    )


def expire_approval(tx: Transaction, approval_id: str, tool: str) -> None:
    """Expire a question without an answer in time. A question that was answered meanwhile keeps its
    answer."""
    changed = tx.changed(
        "UPDATE approvals SET status = ?, decided_at = ?, reason = 'the approval timed out' WHERE id = ? AND"
        " status = ?",
        (ApprovalStatus.EXPIRED, tx.now, approval_id, ApprovalStatus.WAITING),
    )
    if changed:
        tx.event("approval.expired", approval=approval_id, tool=tool, reason="the approval timed out")


# --- Finding an agent by what a person calls it -------------------------------------------------------------


def find_agent(reads: Reads, session_id: str, name: str) -> str:
    """The id of an agent, by id, by its task's name (of several attempts the current one), by name or unique prefix.

    Raises:
        NotFound: no agent matches.
        BadInput: several do.
    """
    rows = reads.all(
        f"SELECT a.id, {AGENT_NAME}, a.name FROM agents a WHERE session_id = ? ORDER BY ordinal DESC",
        (session_id,),
    )
    known = {row[0] for row in rows}
    task = reads.one("SELECT assigned_agent FROM tasks WHERE session_id = ? AND name = ?", (session_id, name))
    if name not in known and task and task[0]:
        return str(task[0])
    # The name that is stored last: sessions of an earlier release had others than they are shown with.
    for names in ([row[:2] for row in rows], [(row[0], row[2]) for row in rows]):
        if name and (found := only_match(names, name)) is not None:
            return found
    shown = ", ".join(row[1] for row in reversed(rows[-8:]))
    raise NotFound(f"no agent {name!r} in session {session_id}; its agents: {shown or 'none yet'}")


def only_match(rows: Sequence[Any], name: str) -> str | None:
    """The id of the first row (id, name) whose id or name is `name`, else of the only one whose id begins with it.

    Raises:
        BadInput: several begin with it.
    """
    exact = [row[0] for row in rows if name in (row[0], row[1])]
    found = exact[:1] or [row[0] for row in rows if row[0].startswith(name)]
    if len(found) > 1:
        raise ambiguous(name, found)
    return str(found[0]) if found else None


def ambiguous(name: str, found: Sequence[str]) -> BadInput:
    """The error for a prefix that several ids begin with."""
    return BadInput(f"{name!r} is ambiguous: {', '.join(found[:5])}; give more characters")


# --- Agents that another program drives, and their worktrees --------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramSession:
    """The session of another program that an agent is."""

    agent_id: str
    program: str
    version: str
    program_session: str
    """The program's own id of it."""
    model: str | None
    transcript: str | None
    """Path of the program's own record."""
    folder: str
    sent_seq: int
    """The last message of the agent's history that was sent to the program."""


@dataclass(frozen=True, slots=True)
class ProgramTurn:
    """The newest turn of an agent."""

    id: int
    prompt_seq: int
    status: str
    reason: str | None
    kind: str
    """`prompt`, or `compaction`: nothing new was sent."""
    record_end: str | None
    """The newest message in the program's own record before the turn, by its id there; None: not known."""


_PROGRAM_COLUMNS = "agent_id, program, version, program_session, model, transcript, folder, sent_seq"


def load_program_session(reads: Reads, agent_id: str) -> ProgramSession | None:
    """The program's session of an agent, or None where none was opened yet."""
    row = reads.one(f"SELECT {_PROGRAM_COLUMNS} FROM agent_programs WHERE agent_id = ?", (agent_id,))
    return ProgramSession(*row) if row is not None else None


def at_work_on(reads: Reads, program_session: str) -> tuple[str, str] | None:
    """The name and the session of an agent that may go on with a program's session at any time: its own session has not
    ended. None if there is none."""
    row = reads.one(
        f"SELECT {AGENT_NAME}, a.session_id FROM agent_programs p JOIN agents a ON a.id = p.agent_id JOIN sessions s ON s.id ="
        " a.session_id WHERE p.program_session = ? AND s.status IN ('running', 'paused')",
        (program_session,),
    )
    return (row[0], row[1]) if row is not None else None


def inherited_program_session(reads: Reads, agent_id: str) -> ProgramSession | None:
    """The program's session of the agent whose memory this one began with, as if it were this one's: all that was copied
    was sent. None where there is none."""
    source = first(reads, str, "SELECT copied_from FROM agents WHERE id = ?", (agent_id,))
    earlier = load_program_session(reads, source) if source else None
    if earlier is None:
        return None
    return replace(earlier, agent_id=agent_id, sent_seq=progress(reads, earlier.agent_id).last_seq)


def save_program_session(tx: Transaction, session: ProgramSession) -> None:
    """Write which session an agent is; a later call for the same agent replaces it."""
    tx.execute(
        "INSERT INTO agent_programs (agent_id, session_id, program, version, program_session, model, transcript, folder,"
        " sent_seq, opened_at, commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE SET"
        " version = excluded.version, program_session = excluded.program_session, model = excluded.model,"
        " transcript = excluded.transcript, folder = excluded.folder, sent_seq = excluded.sent_seq",
        (
            session.agent_id, tx.session_id, session.program, session.version, session.program_session, session.model,
            session.transcript, session.folder, session.sent_seq, tx.now, tx.commit_seq,
        ),
    )  # fmt: skip


def note_sent(tx: Transaction, agent_id: str, seq: int) -> None:
    """All messages up to this one were sent, or are being sent in this moment."""
    tx.execute("UPDATE agent_programs SET sent_seq = ? WHERE agent_id = ?", (seq, agent_id))


def order_program_compaction(tx: Transaction, agent_id: str, instructions: str | None) -> None:
    """A person wants the context compacted, at the next chance; None: no longer, since that was done."""
    tx.execute("UPDATE agent_programs SET compaction = ? WHERE agent_id = ?", (instructions, agent_id))


def ordered_program_compaction(reads: Reads, agent_id: str) -> str | None:
    """The instructions of a compaction that was ordered, maybe empty; None where none was."""
    return first(reads, str, "SELECT compaction FROM agent_programs WHERE agent_id = ?", (agent_id,))


def last_program_turn(reads: Reads, agent_id: str) -> ProgramTurn | None:
    """The newest turn, or None."""
    row = reads.one(
        "SELECT id, prompt_seq, status, reason, kind, record_end FROM program_turns WHERE agent_id = ?"
        " ORDER BY id DESC LIMIT 1",
        (agent_id,),
    )
    return ProgramTurn(*row) if row is not None else None


def begin_program_turn(
    tx: Transaction, agent_id: str, prompt_seq: int, kind: str, record_end: str | None
) -> int:
    """Record that a prompt is being sent or a compaction started; returns the turn's id."""
    return tx.insert(
        "INSERT INTO program_turns (session_id, agent_id, prompt_seq, status, started_at, commit_seq, kind, record_end)"
        " VALUES (?, ?, ?, 'running', ?, ?, ?, ?)",
        (tx.session_id, agent_id, prompt_seq, tx.now, tx.commit_seq, kind, record_end),
    )


def end_program_turn(tx: Transaction, turn_id: int, status: str, reason: str | None = None) -> None:
    """How a turn ended: `completed`, `interrupted`, `failed` or `unknown`."""
    tx.execute(
        "UPDATE program_turns SET status = ?, reason = ?, ended_at = ? WHERE id = ?",
        (status, reason, tx.now, turn_id),
    )


# --- Worktrees ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Worktree:
    """The git worktree of one task."""

    task_id: str
    status: str
    """`making` until the folder is whole, then `ready`, `merging` while its merge is under way, `merged`, and `removed`
    with the folder."""
    repository: str
    """The folder that all worktrees of the repository share (`.git`)."""
    folder: str
    branch: str
    base_commit: str
    """Where it began, or what was merged last: the agent's changes are those since then."""
    target: str
    """The branch of the user's folder when it began; empty where that was on none."""
    merge_commit: str | None = None
    """What the user's branch is, or is to be moved to."""
    unresolved: tuple[str, ...] = ()
    """Files that began with conflict markers, because the tasks before it disagree."""
    files_changed: int = 0
    diff: str = ""
    """What its agent has changed, as it was last looked at, for the screen."""
    prefix: str = ""
    """The workspace below `folder`; empty where that is the workspace's counterpart."""

    @property
    def is_there(self) -> bool:
        """Whether an agent may work in it."""
        return self.status not in ("making", "removed")

    @property
    def place(self) -> Path:
        """The workspace's counterpart: where the agent works."""
        return Path(self.folder) / self.prefix


_WORKTREE_COLUMNS = (
    "task_id, status, repository, folder, branch, base_commit, target, merge_commit, unresolved, files_changed, diff,"
    " prefix"
)


WORKTREE_OF_TASK = f"SELECT {_WORKTREE_COLUMNS} FROM worktrees WHERE task_id = ?"


def load_worktree(reads: Reads, task_id: str) -> Worktree | None:
    """The worktree of a task, or None."""
    row = reads.one(WORKTREE_OF_TASK, (task_id,))
    return _worktree(row) if row is not None else None


def load_worktrees(reads: Reads, session_id: str) -> list[Worktree]:
    """All worktrees of a session, oldest first."""
    rows = reads.all(
        f"SELECT {_WORKTREE_COLUMNS} FROM worktrees WHERE session_id = ? ORDER BY commit_seq, task_id",
        (session_id,),
    )
    return [_worktree(row) for row in rows]


def _worktree(row: Any) -> Worktree:
    return Worktree(
        task_id=row[0], status=row[1], repository=row[2], folder=row[3], branch=row[4], base_commit=row[5], target=row[6],
        merge_commit=row[7], unresolved=tuple(decode_or(row[8], [])), files_changed=row[9], diff=row[10], prefix=row[11],
    )  # fmt: skip


def save_worktree(tx: Transaction, tree: Worktree) -> None:
    """Write the worktree of a task, in place of an earlier one."""
    tx.execute(
        f"INSERT INTO worktrees ({_WORKTREE_COLUMNS}, session_id, created_at, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (task_id) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in _WORKTREE_COLUMNS.replace(" ", "").split(",")[1:]),
        (
            tree.task_id, tree.status, tree.repository, tree.folder, tree.branch, tree.base_commit, tree.target,
            tree.merge_commit, encode(list(tree.unresolved)), tree.files_changed, tree.diff, tree.prefix,
            tx.session_id, tx.now, tx.commit_seq,
        ),
    )  # fmt: skip


def note_changes(tx: Transaction, task_id: str, files_changed: int, diff: str) -> None:
    """What the agent in a worktree has changed since its base, as it was looked at now."""
    tx.execute(
        "UPDATE worktrees SET files_changed = ?, diff = ? WHERE task_id = ?", (files_changed, diff, task_id)
    )
    tx.event("worktree.changed", task_id=task_id, files=files_changed)


def forget_worktree(tx: Transaction, task_id: str) -> None:
    """Delete the row of a worktree that is gone."""
    tx.execute("DELETE FROM worktrees WHERE task_id = ?", (task_id,))
