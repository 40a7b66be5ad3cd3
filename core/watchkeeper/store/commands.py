"""The control queue: any process writes commands, only the host applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from watchkeeper.records.states import ApprovalStatus, CommandStatus
from watchkeeper.store.encoding import encode

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
        "steer",
        "approve",
        "deny",
        "set_budget",
        "memory_sync",
        "pin",
        "unpin",
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
        "INSERT INTO commands (session_id, kind, agent_id, task_id, payload, requested_by, dedupe_key, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id, dedupe_key) WHERE dedupe_key IS NOT NULL"
        " DO UPDATE SET dedupe_key = excluded.dedupe_key RETURNING id",
        (session_id, kind, agent_id, task_id, encode(payload), requested_by, dedupe_key, now),
    ).fetchone()
    return int(row[0])


def settle(tx: Transaction, command_id: int, kind: str, status: CommandStatus, result: str, **about: Any) -> None:
    """Mark a command applied or refused, with the event that says so."""
    seq = tx.event(f"command.{status}", command=command_id, command_kind=kind, result=result, **about)
    tx.execute(
        "UPDATE commands SET status = ?, result = ?, applied_at = ?, event_seq = ? WHERE id = ? AND status = 'queued'",
        (status, result, tx.now, seq, command_id),
    )


def decide_approval(tx: Transaction, approval_id: str, status: ApprovalStatus, by: str, reason: str | None) -> bool:
    """Answer a question that waits; False if it was answered before."""
    changed = tx.execute(
        "UPDATE approvals SET status = ?, decided_by = ?, reason = ?, decided_at = ? WHERE id = ? AND status = 'waiting'",
        (status, by, reason, tx.now, approval_id),
    )
    return changed == 1
