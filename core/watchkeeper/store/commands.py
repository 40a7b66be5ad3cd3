"""The control queue: any process writes commands, only the host applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from watchkeeper.records.states import ApprovalStatus, CommandStatus
from watchkeeper.store.driver import decode, encode

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import Transaction

KINDS = frozenset(
    {
        "pause",
        "resume",
        "cancel",
        "rerun",
        "compact",
        "undo",
        "redo",
        "edit",
        "steer",
        "approve",
        "deny",
        "set_budget",
        "memory_sync",
        "pin",
        "unpin",
        "revoke",
    }
)


def insert(
    connection: Connection,
    *,
    session_id: str,
    kind: str,
    agent_id: str | None,
    task_id: str | None,
    payload: dict[str, Any],
    requested_by: str,
    dedupe_key: str | None,
    now: float,
) -> int:
    """Queue a command; a second one with the same dedupe key is the first one. Returns its id."""
    row = connection.execute(
        "INSERT INTO commands (session_id, kind, agent_id, task_id, payload, requested_by, dedupe_key,"
        " created_at, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, (SELECT event_seq + 1 FROM sessions WHERE id = ?))"
        " ON CONFLICT (session_id, dedupe_key) WHERE dedupe_key IS NOT NULL"
        " DO UPDATE SET dedupe_key = excluded.dedupe_key RETURNING id",
        (session_id, kind, agent_id, task_id, encode(payload), requested_by, dedupe_key, now, session_id),
    ).fetchone()
    return int(row[0])


def newest(reads: Any, session_id: str) -> int:
    """The id of the newest command of a session, or 0. Ids grow, and do not depend on clocks."""
    return int(reads.one("SELECT coalesce(max(id), 0) FROM commands WHERE session_id = ?", (session_id,))[0])


def settle(
    tx: Transaction, command_id: int, kind: str, status: CommandStatus, result: str, **about: Any
) -> None:
    """Mark a command applied or refused, with the event that says so."""
    seq = tx.event(f"command.{status}", command=command_id, command_kind=kind, result=result, **about)
    tx.execute(
        "UPDATE commands SET status = ?, result = ?, applied_at = ?, event_seq = ? WHERE id = ? AND status ="
        " 'queued'",
        (status, result, tx.now, seq, command_id),
    )


def compaction_made(reads: Any, command_id: int, agent_id: str) -> Any:
    """The pass that a host made for this command and did not report before it died; or None.

    `tokens_before, tokens_after, high_water, reason`. The event of its beginning names the command: wall
    times of two hosts say nothing, since clocks are set back.
    """
    row = reads.one(
        "SELECT tokens_before, tokens_after, high_water, reason, id, session_id FROM compactions WHERE id ="
        " (SELECT max(id) FROM compactions WHERE agent_id = ? AND trigger = 'manual' AND status = 'applied')",
        (agent_id,),
    )
    if row is None:
        return None
    begun = reads.all(
        "SELECT data FROM events WHERE session_id = ? AND agent_id = ? AND kind = 'compaction.started'"
        " ORDER BY seq DESC",
        (row[5], agent_id),
    )
    orders = (decode(text) for (text,) in begun)
    made = any((one.get("compaction"), one.get("command")) == (row[4], command_id) for one in orders)
    return tuple(row)[:4] if made else None


def decide_approval(
    tx: Transaction,
    approval_id: str,
    status: ApprovalStatus,
    by: str,
    reason: str | None,
    *,
    scope: str | None = None,
    edited_input: dict[str, Any] | None = None,
    subject_digest: str | None = None,
) -> bool:
    """Answer a question that waits; False if it was answered before.

    `scope`: `once`, `tool`, `pattern` or `grant` of an approval. `edited_input` replaces the model's input of
    the call. `subject_digest`: digest of the file as the person saw it; None: as it was when the agent asked.
    """
    edited = encode(edited_input) if edited_input is not None else None
    changed = tx.changed(
        "UPDATE approvals SET status = ?, decided_by = ?, reason = ?, decided_at = ?, scope = ?,"
        " edited_input = ?,"
        " subject_digest = coalesce(?, subject_digest) WHERE id = ? AND status = 'waiting'",
        (status, by, reason, tx.now, scope, edited, subject_digest, approval_id),
    )
    if changed == 1 and edited is not None:
        tx.execute(
            "UPDATE tool_calls SET edited_input = ? WHERE id = (SELECT tool_call_id FROM approvals WHERE id"
            " = ?)",
            (edited, approval_id),
        )
    return changed == 1
