"""Rows of `sessions`, `budgets` and `live`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.states import SESSION_ENDED, SESSION_MOVES, SessionStatus, check
from watchkeeper.store.driver import Reads, beginning, decode_or, encode, plain

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import SessionStore, Transaction
    from watchkeeper.store.writer import Group


def create(
    group: Group,
    *,
    session_id: str,
    user_id: str,
    goal: str,
    workspace: str,
    model: str,
    settings: dict[str, Any],
    budgets: dict[str, float],
    now: float,
    needs: dict[str, Any] | None = None,
) -> None:
    """A new session that no host drives yet, with its budgets (kind → amount). With `needs` it is queued for workers.

    Raises:
        BadInput: the workspace's name is not UTF-8: no row could lead back to it.
    """
    if plain(workspace) != workspace:
        raise BadInput(
            f"the name of the workspace {plain(workspace)} is not UTF-8; rename it or choose another with"
            " --workspace"
        )
    connection = group.connection
    connection.execute(
        "INSERT INTO sessions (id, user_id, goal, workspace, model, settings, status, created_at,"
        " last_active, queued_at, needs)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session_id,
            user_id,
            plain(goal),
            workspace,
            model,
            encode(settings),
            SessionStatus.RUNNING,
            now,
            now,
            now if needs is not None else None,
            encode(needs) if needs is not None else None,
        ),
    )
    connection.executemany(
        "INSERT INTO budgets (session_id, kind, amount, created_at, commit_seq) VALUES (?, ?, ?, ?, 1)",
        [(session_id, kind, amount, now) for kind, amount in budgets.items()],
    )


def set_status(tx: Transaction, status: SessionStatus, reason: str | None = None) -> None:
    """Change the session's state, with its event; `ended_at` follows.

    Raises:
        ValueError: the move is not in `SESSION_MOVES`.
    """
    old = SessionStatus(tx.one("SELECT status FROM sessions WHERE id = ?", (tx.session_id,))[0])
    check(SESSION_MOVES, old, status)
    ended = tx.now if status in SESSION_ENDED else None
    tx.execute(
        "UPDATE sessions SET status = ?, status_reason = ?, ended_at = ?,"
        " queued_at = CASE WHEN ? IS NULL THEN queued_at END WHERE id = ?",
        (status, reason, ended, ended, tx.session_id),
    )
    tx.event(f"session.{status}", reason=reason)


def set_roles(tx: Transaction, roles: list[dict[str, Any]]) -> None:
    """Note the session's roles, each with `role`, `source`, `model`, `unconfirmed`, `effort` and `effort_used` (see
    `runtime.config.role_models`)."""
    tx.execute("UPDATE sessions SET roles = ? WHERE id = ?", (encode(roles), tx.session_id))


def set_settings(tx: Transaction, settings: dict[str, Any]) -> None:
    """Replace the session's settings."""
    tx.execute("UPDATE sessions SET settings = ? WHERE id = ?", (encode(settings), tx.session_id))


OWN_ORIGINS = ("run", "fork")
"""Origins of sessions that this program drives itself; every other session was imported."""


def newest_session(connection: Connection, *, own: bool = False, workspace: str | None = None) -> str | None:
    """The id of the session that was added last (the highest `ordinal`), or None if there is none.

    With `own`, imported sessions do not count; with `workspace`, those of other folders. Deleted ones never do. No
    clock decides.
    """
    origins = f" AND origin IN ({', '.join('?' for _ in OWN_ORIGINS)})" if own else ""
    here = " AND workspace = ?" if workspace is not None else ""
    row = connection.execute(
        f"SELECT id FROM sessions WHERE deleted_at IS NULL{origins}{here} ORDER BY ordinal DESC LIMIT 1",
        (*(OWN_ORIGINS if own else ()), *(() if workspace is None else (workspace,))),
    ).fetchone()
    return str(row[0]) if row else None


def last_active_session(connection: Connection) -> str | None:
    """The id of the session that was active last, own or imported, or None if there is none. Deleted ones never count."""
    row = connection.execute(
        "SELECT id FROM sessions WHERE deleted_at IS NULL ORDER BY last_active DESC, ordinal DESC LIMIT 1"
    ).fetchone()
    return str(row[0]) if row else None


def imported_session(connection: Connection, program_session: str) -> str | None:
    """The id of the session that was imported from a program's own session of that id, or None."""
    row = connection.execute(
        "SELECT id FROM sessions WHERE source LIKE ? ESCAPE '\\' AND deleted_at IS NULL ORDER BY ordinal DESC LIMIT 1",
        ("%:" + beginning(program_session).removesuffix("%"),),
    ).fetchone()
    return str(row[0]) if row else None


def find(connection: Connection, name: str, *, own: bool = False) -> str:
    """The id of the session that `name` means: `last`, an id, or a unique prefix of one. Deleted sessions
    never match.

    `last` is `last_active_session`. `own` is for commands that act: their `last` is the newest session that was
    run here. If there is none, it is the newest imported one, which a command that controls a run refuses with
    the reason.

    Raises:
        NotFound: no session matches.
        BadInput: several match.
    """

    def ask(sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        return connection.execute(sql, parameters).fetchall()

    if name == "last":
        found = (
            newest_session(connection, own=True) or newest_session(connection)
            if own
            else last_active_session(connection)
        )
        if found is None:
            raise NotFound("no sessions yet; start one with `wk run GOAL` or `wk demo`")
        return found
    rows = ask("SELECT id FROM sessions WHERE id = ? AND deleted_at IS NULL", (name,))
    if not rows and ask("SELECT 1 FROM sessions WHERE id = ? AND deleted_at > 0", (name,)):
        raise NotFound(f"session {name} was deleted; `wk restore {name}` brings it back")
    if not rows:
        sql = "SELECT id FROM sessions WHERE id LIKE ? ESCAPE '\\' AND deleted_at IS NULL LIMIT 6"
        rows = ask(sql, (beginning(name),)) if name else []
    if not rows:
        raise NotFound(f"no session {name!r}; list them with `wk sessions`")
    if len(rows) > 1:
        several = ", ".join(row[0] for row in rows[:5])
        raise BadInput(f"{name!r} could be {several}; give more characters")
    return str(rows[0][0])


MOST_CONTINUED = 20


def continued_by(reads: Reads, session_id: str) -> list[str]:
    """The sessions that this one continues, the newest first, as far as they are not deleted: what `--from` named, what
    that one had continued, and so on."""
    found: list[str] = []
    while len(found) < MOST_CONTINUED:
        # It is among the first events of a session: that of its first transaction.
        row = reads.one(
            "SELECT data FROM events WHERE session_id = ? AND kind = 'session.carried' AND seq <= 8",
            (session_id,),
        )
        earlier = decode_or(row[0], None) if row is not None else None
        name = earlier.get("session") if isinstance(earlier, dict) else None
        if not isinstance(name, str) or name in found or name == session_id:
            break
        if reads.one("SELECT 1 FROM sessions WHERE id = ? AND deleted_at IS NULL", (name,)) is None:
            break
        found.append(name)
        session_id = name
    return found


# --- How a session's tool processes are contained -----------------------------------------------------------
#
# The next host needs this to end the processes that an earlier host left.


@dataclass(frozen=True, slots=True)
class StoredContainment:
    """A containment that no host has ended yet."""

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
    """Add processes, each a process id and a start time; rows that exist stay unchanged."""
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
