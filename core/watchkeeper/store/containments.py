"""How the processes of a session's tools are held together, so that the next host can end what an earlier one
left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watchkeeper.store.encoding import decode_or, encode

if TYPE_CHECKING:
    from watchkeeper.store.session_store import SessionStore
    from watchkeeper.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class StoredContainment:
    """One that nobody has ended yet."""

    id: int
    kind: str
    """`cgroup`, `namespace` or `register`."""
    detail: dict[str, Any]
    host_name: str
    boot_id: str
    processes: tuple[tuple[int, int], ...]
    """Registered processes: process id, and start time in clock ticks since boot."""


def begin(tx: Transaction, kind: str, detail: dict[str, Any], *, host_name: str, boot_id: str) -> int:
    """Write a containment of this host, before a process is in it; returns its id."""
    return tx.insert(
        "INSERT INTO containments (session_id, lease_epoch, kind, detail, host_name, boot_id, created_at,"
        " commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (tx.session_id, tx.epoch, kind, encode(detail), host_name, boot_id, tx.now, tx.commit_seq),
    )


def register(
    tx: Transaction, containment_id: int, agent_id: str | None, processes: Iterable[tuple[int, int]]
) -> None:
    """Add processes, each a process id and a start time; one that is there already stays."""
    tx.executemany(
        "INSERT INTO tool_processes (session_id, containment_id, agent_id, pid, start_ticks, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (containment_id, pid, start_ticks) DO NOTHING",
        [(tx.session_id, containment_id, agent_id, pid, ticks, tx.now) for pid, ticks in processes],
    )


def end(tx: Transaction, ids: Sequence[int]) -> None:
    """Mark containments whose processes have all ended."""
    for one in ids:
        tx.execute("UPDATE containments SET ended_at = ? WHERE id = ?", (tx.now, one))
        tx.execute("DELETE FROM tool_processes WHERE containment_id = ?", (one,))


def not_ended(store: SessionStore) -> list[StoredContainment]:
    """Those of the session that earlier hosts left, oldest first."""
    rows = store.all(
        "SELECT id, kind, detail, host_name, boot_id FROM containments WHERE session_id = ? AND ended_at IS"
        " NULL ORDER BY id",
        (store.session_id,),
    )
    found = []
    for row in rows:
        processes = store.all(
            "SELECT pid, start_ticks FROM tool_processes WHERE containment_id = ? ORDER BY id", (row[0],)
        )
        detail = decode_or(row[2], {})
        found.append(
            StoredContainment(
                row[0],
                row[1],
                detail if isinstance(detail, dict) else {},
                row[3],
                row[4],
                tuple((p[0], p[1]) for p in processes),
            )
        )
    return found
