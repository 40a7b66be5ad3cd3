"""What a person allowed for the rest of a session: a tool, or the commands of a pattern. A fork begins
without any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchkeeper.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Grant:
    """One answer "always". It takes the place of a question, never of a rule that denies."""

    id: int
    tool: str
    pattern: str | None
    """Of commands (see `records.command_pattern`); None: every call of the tool."""
    granted_by: str
    created_at: float
    revoked_by: str | None
    revoked_at: float | None

    @property
    def is_live(self) -> bool:
        return self.revoked_by is None

    @property
    def subject(self) -> str:
        """What it allows, in a few words. Not sanitised."""
        return f"{self.tool}: {self.pattern}" if self.pattern is not None else f"every call of {self.tool}"


_SELECT = "SELECT id, tool, pattern, granted_by, created_at, revoked_by, revoked_at FROM permission_grants WHERE session_id = ? ORDER BY id"


def load_grants(reads: Any, session_id: str) -> list[Grant]:
    """The grants of a session, revoked ones too, oldest first. `reads` has `execute`."""
    return [Grant(*row) for row in reads.execute(_SELECT, (session_id,)).fetchall()]


def live_grants(reads: Any, session_id: str, tool: str) -> list[Grant]:
    """The grants that hold now for a tool. `reads` has `all`."""
    return [
        grant
        for grant in (Grant(*row) for row in reads.all(_SELECT, (session_id,)))
        if grant.is_live and grant.tool == tool
    ]


def add_grant(tx: Transaction, *, tool: str, pattern: str | None, approval_id: str, by: str) -> int:
    """Allow a tool, or the commands of a pattern, from now on; returns the grant's id."""
    row = tx.one(
        "INSERT INTO permission_grants (session_id, tool, pattern, approval_id, granted_by, created_at,"
        " commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
        (tx.session_id, tool, pattern, approval_id, by, tx.now, tx.commit_seq),
    )
    tx.event("grant.added", grant=row[0], tool=tool, pattern=pattern, by=by)
    return int(row[0])


def revoke_grant(tx: Transaction, grant_id: int, by: str) -> Grant:
    """End a grant: from now on, its calls are asked about again.

    Raises:
        ValueError: the session has no such grant, or it was revoked before.
    """
    rows = tx.all(_SELECT, (tx.session_id,))
    found = next((grant for grant in (Grant(*row) for row in rows) if grant.id == grant_id), None)
    if found is None:
        known = ", ".join(str(row[0]) for row in rows)
        raise ValueError(f"no grant {grant_id} in this session; there are {known or 'none'}")
    if not found.is_live:
        raise ValueError(f"grant {grant_id} was revoked before")
    tx.execute(
        "UPDATE permission_grants SET revoked_by = ?, revoked_at = ? WHERE id = ? AND revoked_by IS NULL",
        (by, tx.now, grant_id),
    )
    tx.event("grant.revoked", grant=grant_id, tool=found.tool, pattern=found.pattern, by=by)
    return found
