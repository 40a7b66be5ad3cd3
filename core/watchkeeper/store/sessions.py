"""Rows of `sessions`, `events`, `budgets` and `live`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.readers import OWN_ORIGINS
from watchkeeper.records.states import SESSION_ENDED, SESSION_MOVES, SessionStatus, check
from watchkeeper.store.driver import Reads, beginning, column, decode, decode_or, encode, first, plain
from watchkeeper.store.names import AGENT_NAME, TASK_NAME

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import SessionStore, Transaction
    from watchkeeper.store.writer import Group


@dataclass(frozen=True, slots=True)
class Session:
    """One session in its present state. Its texts are not sanitised."""

    id: str
    status: SessionStatus
    goal: str
    title: str | None
    workspace: str
    model: str
    origin: str
    status_reason: str | None
    planner_agent_id: str | None
    current_plan_id: str | None
    settings: str
    """JSON text, as stored."""
    needs: str | None
    """JSON text, as stored: what a worker has to offer; None for a session that was never left to workers."""
    created_at: float
    hosted_seconds: float
    """For how long hosts had it, as far as it is recorded."""
    lease_epoch: int
    deleted_at: float | None

    @property
    def name(self) -> str:
        """What it is called: its title, else its goal."""
        return self.title or self.goal


_COLUMNS = (
    "id, status, goal, title, workspace, model, origin, status_reason, planner_agent_id, current_plan_id, settings,"
    " needs, created_at, hosted_seconds, lease_epoch, deleted_at"
)


def load(reads: Reads, session_id: str) -> Session | None:
    row = reads.one(f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (session_id,))
    return Session(row[0], SessionStatus(row[1]), *row[2:]) if row is not None else None


def require(reads: Reads, session_id: str) -> Session:
    """The session of that id, which was found before.

    Raises:
        NotFound: it is gone.
    """
    found = load(reads, session_id)
    if found is None:
        raise NotFound(f"no session {session_id}; list them with `wk sessions`")
    return found


def of_agent(reads: Reads, agent_id: str) -> Session | None:
    """The session of an agent, maybe a deleted one; None if there is no such agent."""
    session_id = first(reads, str, "SELECT session_id FROM agents WHERE id = ?", (agent_id,))
    return load(reads, session_id) if session_id is not None else None


def newest_event(reads: Reads, session_id: str) -> int:
    """The number of the newest event of a session."""
    return first(reads, int, "SELECT event_seq FROM sessions WHERE id = ?", (session_id,)) or 0


def turns_made(reads: Reads, session_id: str) -> tuple[int, int]:
    """How many turns the agents of a session have made, and the number of the newest event that counts for it."""
    row = reads.one(
        "SELECT (SELECT coalesce(sum(turn), 0) FROM agents WHERE session_id = s.id), event_seq FROM sessions s"
        " WHERE id = ?",
        (session_id,),
    )
    return int(row[0]), int(row[1])


def turns_between(reads: Reads, session_id: str, after: int, through: int | None = None) -> int:
    """How many turns events `after + 1 … through` (None: all later ones) tell of."""
    sql = (
        "SELECT count(*) FROM events WHERE session_id = ? AND seq > ? AND seq <= ? AND kind = 'model.replied'"
    )
    return first(reads, int, sql, (session_id, after, 1 << 62 if through is None else through)) or 0


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a session. Its names are not sanitised."""

    seq: int
    at: float
    kind: str
    agent_id: str | None
    task_id: str | None
    agent: str | None
    """What the agent is called."""
    task: str | None
    """What the task is called."""
    stored: str
    """Its data as JSON text."""

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = decode(self.stored)
        return found


def events_after(reads: Reads, session_id: str, seq: int) -> list[Event]:
    """The events of a session behind that one, oldest first."""
    rows = reads.all(
        f"SELECT e.seq, e.at, e.kind, e.agent_id, e.task_id, {AGENT_NAME}, {TASK_NAME}, e.data FROM events e"
        " LEFT JOIN agents a ON a.id = e.agent_id LEFT JOIN tasks t ON t.id = e.task_id"
        " WHERE e.session_id = ? AND e.seq > ? ORDER BY e.seq",
        (session_id, seq),
    )
    return [Event(*row) for row in rows]


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
            f"the workspace name {plain(workspace)} is not UTF-8; rename it or choose another with"
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


def set_planner(tx: Transaction, agent_id: str) -> None:
    """The agent is the session's planner."""
    tx.execute("UPDATE sessions SET planner_agent_id = ? WHERE id = ?", (agent_id, tx.session_id))


def add_hosted_seconds(tx: Transaction, seconds: float) -> None:
    """Count that a host had the session for so much longer."""
    tx.execute(
        "UPDATE sessions SET hosted_seconds = hosted_seconds + ? WHERE id = ?", (seconds, tx.session_id)
    )


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


def newest_ids(reads: Reads, most: int) -> list[str]:
    """The ids of the sessions that were added last, the newest first; no deleted ones."""
    sql = "SELECT id FROM sessions WHERE deleted_at IS NULL ORDER BY ordinal DESC LIMIT ?"
    return column(reads, str, sql, (most,))


def models_of(reads: Reads, most: int) -> list[str]:
    """Models that sessions were started with."""
    return column(reads, str, "SELECT DISTINCT model FROM sessions WHERE deleted_at IS NULL LIMIT ?", (most,))


def live_outside(reads: Reads) -> list[tuple[str, str]]:
    """The id and the name of each session that runs in another program, or as a fork."""
    rows = reads.all(
        "SELECT id, title, goal FROM sessions WHERE status = 'running' AND origin <> 'run' AND deleted_at IS NULL"
    )
    return [(row[0], row[1] or row[2] or "") for row in rows]


def running_sessions(reads: Reads) -> list[str]:
    """The id of each session that is stored as running, own or imported; no process need run it."""
    return [
        row[0] for row in reads.all("SELECT id FROM sessions WHERE status = 'running' AND deleted_at IS NULL")
    ]


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
        raise NotFound(f"session {name} was deleted; restore it with `wk delete --restore {name}`")
    if not rows:
        sql = "SELECT id FROM sessions WHERE id LIKE ? ESCAPE '\\' AND deleted_at IS NULL LIMIT 6"
        rows = ask(sql, (beginning(name),)) if name else []
    if not rows:
        raise NotFound(f"no session {name!r}; list them with `wk sessions`")
    if len(rows) > 1:
        several = ", ".join(row[0] for row in rows[:5])
        raise BadInput(f"{name!r} is ambiguous: {several}; give more characters")
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


# --- What an agent does in this moment ------------------------------------------------------------------------


def show_live(
    tx: Transaction, rows: Iterable[tuple[str, str, str, str, float, float | None]], now: float
) -> None:
    """Write what agents do, each in place of what it did before: agent, activity, detail, the end of what is streamed,
    since when, until when. `now`: wall time of the host."""
    tx.executemany(
        "INSERT INTO live (agent_id, activity, detail, text, since, until, session_id, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE SET activity = excluded.activity,"
        " detail = excluded.detail, text = excluded.text, since = excluded.since, until = excluded.until,"
        " updated_at = excluded.updated_at",
        [(*row, tx.session_id, now) for row in rows],
    )


def clear_live(tx: Transaction) -> None:
    """Forget what a host before showed of the session's agents."""
    tx.execute("DELETE FROM live WHERE session_id = ?", (tx.session_id,))


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
