"""Sessions that wait for a worker, the workers, and why a worker does not take a session.

A session that was queued has `queued_at` until it ends: whenever it runs and no host holds its lease, a worker may
start one. `needs` says which worker may. The lease alone decides which host drives a session; a claim only keeps two
workers from starting a host for the same one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.records.errors import BadInput
from watchkeeper.records.tool_inputs import edited_files
from watchkeeper.store import plans, postgres
from watchkeeper.store.driver import (
    Connection,
    ConnectionReads,
    Reads,
    decode_or,
    encode,
    writing,
)
from watchkeeper.store.engine import engine_of
from watchkeeper.store.lease import lock_path
from watchkeeper.store.place import Place

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction

GONE_SECONDS = 15.0
"""A worker that was not seen for so long is shown as gone."""
FORGET_SECONDS = 3_600.0
"""Its row is deleted after this time."""
SILENT_SECONDS = 5.0
"""A host extends its lease every two seconds at least. After so long without that, another one is started, which waits
until the lease lapses (`await_lapse`)."""
PAGE = 200
"""How many waiting sessions are read at a time."""
MOST_LOST = 50
"""How many lost files are named."""
_FILE_BYTES = 4 << 20

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,79}")


def check_label(label: str) -> str:
    """A label as it is given.

    Raises:
        BadInput: it has other characters than letters, digits and `_ . : @ -`.
    """
    if not _LABEL.fullmatch(label):
        raise BadInput(
            f"{label!r} is not a valid label; use letters, digits and _ . : @ -, at most 80 characters"
        )
    return label


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a session runs, or ran last."""

    worker: str
    machine: str
    workspace: str
    fresh: bool = False
    """The workspace was just checked out: it holds nothing that agents changed before."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a session needs of a worker: all the labels, and a folder of that machine or a commit of a repository."""

    labels: tuple[str, ...] = ()
    path: str | None = None
    remote: str | None = None
    commit: str | None = None
    placed: Placement | None = None

    @classmethod
    def load(cls, text: str | None) -> Needs:
        """From the JSON of a row; what is damaged counts as nothing."""
        return cls.from_json(decode_or(text, {}) if text else {})

    @classmethod
    def from_json(cls, value: Any) -> Needs:
        """From what `as_json` gives, or anything else."""
        value = value if isinstance(value, dict) else {}
        placed = value.get("placed")
        texts = {
            name: value[name] for name in ("path", "remote", "commit") if isinstance(value.get(name), str)
        }
        labels = value.get("labels")
        return cls(
            tuple(map(str, labels)) if isinstance(labels, list) else (),
            placed=Placement(
                str(placed.get("worker", "")),
                str(placed.get("machine", "")),
                str(placed.get("workspace", "")),
            )
            if isinstance(placed, dict)
            else None,
            **texts,
        )

    def as_json(self) -> dict[str, Any]:
        """What is stored and printed; only what there is."""
        value: dict[str, Any] = {"labels": list(self.labels)}
        value |= {name: found for name in ("path", "remote", "commit") if (found := getattr(self, name))}
        if self.placed is not None:
            placed = self.placed
            value["placed"] = {
                "worker": placed.worker, "machine": placed.machine, "workspace": placed.workspace,
            }  # fmt: skip
        return value

    def describe(self) -> str:
        """In words: `label gpu, folder /srv/x`."""
        parts = [f"label {label}" for label in self.labels]
        parts += [f"folder {self.path}"] if self.path else []
        parts += [f"commit {(self.commit or '')[:12]} of {self.remote}"] if self.remote else []
        return ", ".join(parts) or "any worker"


# --- The queue ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """A session that a worker may drive."""

    id: str
    queued_at: float
    needs: Needs
    model: str
    settings: dict[str, Any]


_WAITING = (
    "SELECT id, queued_at, needs, model, settings FROM sessions WHERE queued_at IS NOT NULL AND status = 'running'"
    " AND deleted_at IS NULL"
)


def waiting(connection: Connection, after: tuple[float, str] = (0.0, "")) -> list[Waiting]:
    """A page of the sessions that wait, the longest first, from those queued `after` a time and id.

    On SQLite some of them may have a host, which only their locks tell (`store.lease.probe`).
    """
    at, name = after
    condition, parameters = engine_of(connection).lease_is_ending(SILENT_SECONDS)
    rows = connection.execute(
        f"{_WAITING} AND {condition} AND (queued_at > ? OR queued_at = ? AND id > ?) ORDER BY queued_at, id LIMIT ?",
        (*parameters, at, at, name, PAGE),
    ).fetchall()
    return [_row(row) for row in rows]


def still_waiting(connection: Connection, session_id: str) -> bool:
    """Whether the session still waits; see `waiting`."""
    condition, parameters = engine_of(connection).lease_is_ending(SILENT_SECONDS)
    found = connection.execute(f"{_WAITING} AND {condition} AND id = ?", (*parameters, session_id))
    return found.fetchone() is not None


def await_lapse(place: Place, session_id: str) -> None:
    """Wait until the lease of a session lapses, or is extended, so that its host lives after all."""
    if isinstance(place, Path):
        return
    before: float | None = None
    with closing(postgres.connect(place, read_only=True)) as connection:
        while True:
            row = connection.execute(postgres.LEASE_LEFT, (session_id,)).fetchone()
            if row is None or row[0] is None or row[1] < 0 or (before is not None and row[0] > before):
                return
            before = row[0]
            time.sleep(min(row[1] + 0.005, 0.2))


def _row(row: Any) -> Waiting:
    settings = decode_or(row[4], {})
    return Waiting(
        str(row[0]),
        float(row[1]),
        Needs.load(row[2]),
        str(row[3]),
        settings if isinstance(settings, dict) else {},
    )


def queue(tx: Transaction, needs: Needs) -> None:
    """Let workers drive a session; what it needs stays as it was where it was queued before."""
    stored = tx.one("SELECT needs FROM sessions WHERE id = ?", (tx.session_id,))[0]
    tx.execute(
        "UPDATE sessions SET queued_at = coalesce(queued_at, ?), needs = ? WHERE id = ?",
        (tx.now, stored or encode(needs.as_json()), tx.session_id),
    )
    tx.event("session.queued", reason=(Needs.load(stored) if stored else needs).describe())


# --- Claims ---------------------------------------------------------------------------------------------------


class Claims:
    """Sessions for which this worker starts a host that does not hold the lease yet.

    A claim ends with its process, for whatever reason: on SQLite it is a lock on a small file beside the lease, on
    PostgreSQL an advisory lock of the worker's connection.
    """

    def __init__(self, place: Place, connection: Connection) -> None:
        self._place = place
        self._connection = connection
        self._held: dict[str, Callable[[], None]] = {}

    def take(self, session_id: str) -> bool:
        """Claim a session; False where another worker has it, or this one."""
        if session_id in self._held:
            return False
        file = lock_path(self._place, session_id).with_suffix(".claim")
        release = engine_of(self._connection).claim(self._connection, session_id, file)
        if release is None:
            return False
        self._held[session_id] = release
        return True

    def release(self, session_id: str) -> None:
        """Give a claim up, if it is held."""
        self._held.pop(session_id, lambda: None)()

    def close(self) -> None:
        """Give all of them up."""
        for session_id in list(self._held):
            self.release(session_id)


# --- Workers and refusals -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as stored. Times are in seconds since the epoch, by the clock of the database where it has one."""

    id: str
    machine: str
    pid: int
    labels: tuple[str, ...]
    slots: int
    status: str
    started_at: float
    seen_at: float
    sessions: tuple[str, ...] = ()
    """What it drives."""
    seconds_since_seen: float = 0.0

    @property
    def is_gone(self) -> bool:
        """Whether it was not seen for a while."""
        return self.seconds_since_seen > GONE_SECONDS

    @property
    def state(self) -> str:
        """`running`, `draining` or `gone`."""
        return "gone" if self.is_gone else self.status

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "machine": self.machine, "pid": self.pid, "labels": list(self.labels), "slots": self.slots,
            "status": self.state, "started_at": self.started_at, "seen_at": self.seen_at,
            "seconds_since_seen": round(self.seconds_since_seen, 1), "sessions": list(self.sessions),
        }  # fmt: skip


def note_worker(connection: Connection, row: WorkerRow) -> None:
    """Write that a worker is there, and forget those that are long gone."""
    now = engine_of(connection).now(connection)
    with writing(connection, "worker"):
        connection.execute(
            "INSERT INTO workers (id, host_name, pid, labels, slots, status, started_at, seen_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET status = excluded.status,"
            " slots = excluded.slots, labels = excluded.labels, seen_at = excluded.seen_at",
            (row.id, row.machine, row.pid, encode(list(row.labels)), row.slots, row.status, now, now),
        )
        connection.execute("DELETE FROM workers WHERE seen_at < ?", (now - FORGET_SECONDS,))


def forget_worker(connection: Connection, worker_id: str) -> None:
    """Delete a worker that ended, with what it refused."""
    with writing(connection, "worker"):
        connection.execute("DELETE FROM workers WHERE id = ?", (worker_id,))
        connection.execute("DELETE FROM worker_refusals WHERE worker_id = ?", (worker_id,))


def note_refusal(connection: Connection, session_id: str, worker_id: str, reason: str) -> None:
    """Write why a worker does not take a session, in place of an earlier reason."""
    with writing(connection, "worker"):
        connection.execute(
            "INSERT INTO worker_refusals (session_id, worker_id, reason, at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (session_id, worker_id) DO UPDATE SET reason = excluded.reason, at = excluded.at",
            (session_id, worker_id, reason, engine_of(connection).now(connection)),
        )


def load_workers(reads: ConnectionReads) -> list[WorkerRow]:
    """Every worker, the oldest first, with the sessions that it drives."""
    now = engine_of(reads).now(reads.connection)
    rows = reads.all(
        "SELECT id, host_name, pid, labels, slots, status, started_at, seen_at FROM workers ORDER BY started_at, id"
    )
    driven: dict[str, list[str]] = {}
    for row in reads.all(
        "SELECT id, needs FROM sessions WHERE queued_at IS NOT NULL AND status = 'running' AND needs IS NOT NULL"
        " AND deleted_at IS NULL ORDER BY queued_at, id"
    ):
        placed = Needs.load(row[1]).placed
        if placed is not None:
            driven.setdefault(placed.worker, []).append(str(row[0]))
    return [
        WorkerRow(
            str(row[0]), str(row[1]), int(row[2]), tuple(decode_or(row[3], [])), int(row[4]), str(row[5]),
            float(row[6]), float(row[7]), tuple(driven.get(row[0], ())), max(0.0, now - float(row[7])),
        )
        for row in rows
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueState:
    """Why a session waits."""

    queued_at: float
    needs: Needs
    refusals: tuple[tuple[str, str, str], ...]
    """Machine, worker and reason, of the workers that are there."""
    workers: int
    """How many are there."""

    def as_json(self) -> dict[str, Any]:
        refused = [dict(zip(("machine", "worker", "reason"), one, strict=True)) for one in self.refusals]
        return {
            "queued_at": self.queued_at, "needs": self.needs.as_json(), "refusals": refused, "workers": self.workers,
        }  # fmt: skip


def queue_state(reads: ConnectionReads, session_id: str) -> QueueState | None:
    """Why a session waits for a worker; None if it was not queued, or has ended."""
    row = reads.one("SELECT queued_at, needs FROM sessions WHERE id = ?", (session_id,))
    if row is None or row[0] is None:
        return None
    there = {one.id: one for one in load_workers(reads) if not one.is_gone}
    found = reads.all(
        "SELECT worker_id, reason FROM worker_refusals WHERE session_id = ? ORDER BY at, worker_id",
        (session_id,),
    )
    refusals = tuple((there[one[0]].machine, str(one[0]), str(one[1])) for one in found if one[0] in there)
    return QueueState(float(row[0]), Needs.load(row[1]), refusals, len(there))


# --- Placing a session ----------------------------------------------------------------------------------------


def place_session(tx: Transaction, placement: Placement, lost: Sequence[str], *, other_changes: bool) -> None:
    """Note where the session runs now. If it ran elsewhere before, say what it lost, to its agents too.

    `lost`: changes of agents that the workspace does not hold. `other_changes`: whether commands ran that may have
    changed files.
    """
    stored = tx.one("SELECT needs FROM sessions WHERE id = ?", (tx.session_id,))[0]
    needs = Needs.load(stored)
    before = needs.placed
    moved = before is not None and (
        placement.fresh or (before.machine, before.workspace) != (placement.machine, placement.workspace)
    )
    value = needs.as_json() | {
        "placed": {"worker": placement.worker, "machine": placement.machine, "workspace": placement.workspace}
    }
    tx.execute(
        "UPDATE sessions SET needs = ?, workspace = ? WHERE id = ?",
        (encode(value), placement.workspace, tx.session_id),
    )
    tx.execute("DELETE FROM worker_refusals WHERE session_id = ?", (tx.session_id,))
    if not moved or before is None:
        return
    text = _loss(before, placement, lost, other_changes)
    tx.event(
        "host.moved", machine=placement.machine, previous=before.machine, workspace=placement.workspace,
        lost=list(lost[:MOST_LOST]), text=text,
    )  # fmt: skip
    if not lost and not other_changes:
        return
    rows = tx.all(
        "SELECT id FROM agents WHERE session_id = ? AND status NOT IN ('done', 'failed', 'cancelled')",
        (tx.session_id,),
    )
    for row in rows:
        plans.post(tx, row[0], "moved", {"text": text})


def _loss(before: Placement, now: Placement, lost: Sequence[str], other_changes: bool) -> str:
    where = f"the session moved from {before.machine} to {now.machine} and now runs in {now.workspace}"
    if lost:
        named = ", ".join(lost[:MOST_LOST]) + (
            f" and {len(lost) - MOST_LOST} more" if len(lost) > MOST_LOST else ""
        )
        what = (
            f"Lost because they were not committed and pushed: {named}. Check the files before you continue"
        )
    elif other_changes:
        what = "Files written by agents are present; changes made by commands may be lost. Check the files before you continue"
    else:
        what = "All files written by agents are present"
    return f"{where}. {what}."


def lost_changes(reads: Reads, session_id: str, workspace: Path) -> tuple[list[str], bool]:
    """Files that agents changed and that `workspace` does not hold so, and whether commands ran there.

    A file counts as kept if it contains what its last change wrote. Worktrees of tasks that are not merged count too.
    """
    rows = reads.all(
        "SELECT c.name, c.tool_use_id, m.content FROM tool_calls c JOIN messages m ON m.agent_id = c.agent_id"
        " AND m.seq = c.seq WHERE c.session_id = ? AND c.status = 'done' ORDER BY c.id",
        (session_id,),
    )
    last: dict[str, str | None] = {}
    commands = False
    for name, use, content in rows:
        blocks = decode_or(content, [])
        given = next(
            (one.get("input") for one in blocks if isinstance(one, dict) and one.get("id") == use), None
        ) if isinstance(blocks, list) else None  # fmt: skip
        commands = commands or name == "bash"
        for file in edited_files(given):
            written = next(
                (given[key] for key in ("content", "new_string") if isinstance(given.get(key), str)), None
            ) if isinstance(given, dict) else None  # fmt: skip
            last[file] = written
    lost = [file for file, written in last.items() if not _is_kept(workspace, file, written)]
    for row in reads.all(
        "SELECT folder, branch FROM worktrees WHERE session_id = ? AND status <> 'merged'", (session_id,)
    ):
        if not Path(row[0]).is_dir():
            lost.append(f"the worktree of branch {row[1]}")
    return lost, commands


def _is_kept(workspace: Path, file: str, written: str | None) -> bool:
    try:
        path = (workspace / file).resolve()
        if not path.is_relative_to(workspace.resolve()):
            return True  # nothing is known of files elsewhere
        if not path.is_file() or path.stat().st_size > _FILE_BYTES:
            return path.is_file()
        return written is None or written in path.read_text("utf-8", "replace")
    except (OSError, ValueError, RuntimeError):
        return False
