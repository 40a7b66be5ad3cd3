"""The library of sessions: actions on a session that need no host.

These are renaming, tagging, deleting with undo, forking, pruning and backing up. Each change holds the
session's lease while it lasts, so that no host can begin at the same time, and commits in short transactions,
so that hosts of other sessions do not wait. Nothing here starts a process or asks a model, and importing it
costs next to nothing.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound, StoreUnusable, reason_of
from watchkeeper.records.states import SessionStatus
from watchkeeper.store import database, driver
from watchkeeper.store.database import check_target, copy_database
from watchkeeper.store.driver import (
    Connection,
    Queries,
    decode,
    decode_or,
    encode,
    make_private,
    plain,
    sqlite3,
)
from watchkeeper.store.lease import Lease, LeaseHolder, holders, lease_folder, probe
from watchkeeper.store.place import Place, user_redactor
from watchkeeper.store.projection import CountedSession, TaskFacts, agents, sessions, tasks

# --- Whether a session's host continues by itself -----------------------------------------------------------
#
# The lock alone does not say so. A host that soon ends is worth waiting for.

SOON_SECONDS = 30.0
"""How long a host that is to end is waited for: it finishes its steps, or the command that it was started
for."""

LOOK_SECONDS = 0.02


def goes_on(connection: Connection, session_id: str) -> bool:
    """Whether the host that holds the lease drives the session, and has no order to pause it.

    One that was started for a single command does not drive, nor does one that has only claimed the session.
    """
    row = connection.execute(
        "SELECT status, lease_epoch FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    if row is None or row[0] != SessionStatus.RUNNING:
        return False
    started = connection.execute(
        "SELECT seq, data FROM events WHERE session_id = ? AND kind = 'host.started' ORDER BY seq DESC LIMIT"
        " 1",
        (session_id,),
    ).fetchone()
    if started is None or decode_or(started[1], {}).get("epoch", row[1]) != row[1]:
        return False
    pausing = connection.execute(
        "SELECT 1 FROM commands WHERE session_id = ? AND kind = 'pause' AND agent_id IS NULL AND status ="
        " 'applied'"
        " AND event_seq > ?",
        (session_id, started[0]),
    ).fetchone()
    return pausing is None


def outlast(
    path: Place, session_id: str, on_wait: Callable[[LeaseHolder], None] = lambda holder: None
) -> LeaseHolder | None:
    """Wait for a host that soon ends; returns the holder of the session after that, if there is one.

    `on_wait` is called once with the holder, before the wait begins. There is no wait for a host that continues,
    or that runs in this very process. One of this machine that was killed holds nothing: who takes its lease on a
    server waits until that lapses.
    """
    holder = probe(path, session_id)
    if holder is not None and holder.has_ended:
        return None
    if holder is None or holder.is_this_process:
        return holder
    connection = database.open_readonly(path)
    deadline = time.monotonic() + SOON_SECONDS
    try:
        waits = False
        while holder is not None and time.monotonic() < deadline and not goes_on(connection, session_id):
            if not waits:
                waits = True
                on_wait(holder)
            for _ in range(10):
                time.sleep(LOOK_SECONDS)
                holder = probe(path, session_id)
                if holder is None:
                    break
    finally:
        connection.close()
    return holder


# --- Changing a session without a host ----------------------------------------------------------------------
#
# Its lease is held, and its rows change in short transactions.

T = TypeVar("T")

LONGEST_SECONDS = 0.02
"""How long one transaction of a large change may hold the write lock before it commits and lets others have
it."""

PAUSE_SECONDS = (0.002, 0.005)
"""How long the lock is then left free: hosts ask for it every millisecond (`driver.begin_immediate`)."""


@contextmanager
def opened(path: Place) -> Iterator[Connection]:
    """A connection that may write, with SQLite's errors as one clear line.

    Raises:
        StoreUnusable: the database cannot be used, or was not there.
    """
    if isinstance(path, Path) and not path.exists():
        raise StoreUnusable(
            f"no database at {path}; start a run with `wk run GOAL` or `wk demo`, or choose one with --db"
        )
    connection = database.open_writable(path)
    try:
        with driver.noting_system_errors(connection):
            yield connection
    except sqlite3.DatabaseError as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise StoreUnusable(driver.explain(path, error)) from error
    finally:
        connection.close()


@contextmanager
def without_host(path: Place, session_id: str, what: str) -> Iterator[None]:
    """Hold the session's lease, so that no host can take it meanwhile; waits for a host that soon ends.

    Raises:
        DrivenElsewhere: a live host has it; the message says to pause it before one can `what` it.
    """
    outlast(path, session_id)
    try:
        lease = Lease.acquire(path, session_id)
    except DrivenElsewhere:
        holder = probe(path, session_id)
        by = f"a background process ({holder})" if holder else "another program"
        raise DrivenElsewhere(
            f"cannot {what} session {session_id}: {by} is using it; run `wk pause {session_id}` first"
        ) from None
    try:
        yield
    finally:
        lease.release()


def change(path: Place, session_id: str, what: str, work: Callable[[Connection], T]) -> T:
    """Run `work` in one short transaction on a session without a host; returns its result.

    Raises:
        NotFound: no such session.
        DrivenElsewhere: a live host drives it.
        StoreUnusable: the database cannot be written.
    """
    with (
        opened(path) as connection,
        without_host(path, session_id, what),
        driver.writing(connection, "library"),
    ):
        if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is None:
            raise NotFound(f"no session {session_id!r}; list them with `wk sessions`")
        return work(connection)


END_TRANSACTION = object()


def in_short_transactions(
    connection: Connection,
    work: Iterable[object],
    *,
    longest_seconds: float = LONGEST_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Advance `work` inside transactions that each end soon after `longest_seconds`; returns how many there
    were.

    `work` changes a few rows between two of its items. What it has changed when it raises is kept, except
    since the last commit. An item that is `END_TRANSACTION` is followed by a commit at once.
    """
    steps, count, over = iter(work), 0, False
    while not over:
        with driver.writing(connection, "library"):
            began = monotonic()
            item: object = None
            while not over and item is not END_TRANSACTION and monotonic() - began < longest_seconds:
                item = next(steps, connection)
                over = item is connection
        count += 1
        if not over:
            sleep(random.uniform(*PAUSE_SECONDS))
    return count


# --- A session's title and tags -----------------------------------------------------------------------------

LONGEST_TITLE = 400
LONGEST_TAG = 60
MOST_TAGS = 50


def rename_session(path: Place, session_id: str, title: str) -> str | None:
    """Give a session a title; an empty one takes it away, and the goal is shown again. Returns the title as
    kept.

    Raises:
        BadInput: longer than 400 characters.
        DrivenElsewhere, NotFound, StoreUnusable: see `change`.
    """
    kept = title_of(title)

    def work(connection: Connection) -> str | None:
        connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (kept, session_id))
        return kept

    return change(path, session_id, "rename", work)


def title_of(text: str) -> str | None:
    """The title in its stored form: one line, without secrets; None if nothing is left.

    Raises:
        BadInput: longer than 400 characters.
    """
    kept = " ".join(user_redactor().text(plain(text)).split()) or None
    if kept is not None and len(kept) > LONGEST_TITLE:
        raise BadInput(f"the title has {len(kept)} characters; the limit is {LONGEST_TITLE}")
    return kept


def change_tags(
    path: Place, session_id: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
) -> tuple[str, ...]:
    """Add tags and take tags away; returns those that the session has now, in the order in which they were
    given.

    A tag is one word without commas or quotes, compared without regard to case; `#` and `+` before it are
    dropped.

    Raises:
        BadInput: not such a word, or too many.
        DrivenElsewhere, NotFound, StoreUnusable: see `change`.
    """
    added, removed = [tag_of(one) for one in add], {tag_of(one).casefold() for one in remove}

    def work(connection: Connection) -> tuple[str, ...]:
        row = connection.execute("SELECT tags FROM sessions WHERE id = ?", (session_id,)).fetchone()
        kept: dict[str, str] = {}
        for tag in [*(str(one) for one in decode(row[0])), *added]:
            kept.setdefault(tag.casefold(), tag)
        tags = tuple(tag for key, tag in kept.items() if key not in removed)
        if len(tags) > MOST_TAGS:
            raise BadInput(f"too many tags ({len(tags)}); the limit is {MOST_TAGS}")
        connection.execute("UPDATE sessions SET tags = ? WHERE id = ?", (encode(list(tags)), session_id))
        return tags

    return change(path, session_id, "tag", work)


def tag_of(text: str) -> str:
    """The tag that `text` means.

    Raises:
        BadInput: none.
    """
    tag = plain(text).strip().lstrip("#+")
    if user_redactor().text(tag) != tag:
        raise BadInput("this tag contains a secret, which everyone with access could see; choose another")
    if (
        not tag
        or len(tag) > LONGEST_TAG
        or any(character.isspace() or character in ",\"'[]" for character in tag)
    ):
        raise BadInput(
            f"{text!r} is not a valid tag; use one word of at most {LONGEST_TAG} characters, such as `nightly`"
        )
    if not tag.isprintable():
        raise BadInput("a tag can contain only printable characters")
    return tag


# --- Deleting a session, with undo --------------------------------------------------------------------------
#
# It is hidden at once, and its rows are deleted when the undo window is over.

UNDO_DAYS = 7.0
"""How long a deleted session can be restored before `wk delete --prune` deletes its rows."""

BEING_PURGED = 0.0
"""`deleted_at` of a session whose rows are being deleted (or are not all there yet): it cannot be
restored."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """A session that was deleted and can be restored."""

    id: str
    name: str
    """Its title, or its goal: hostile until sanitised."""
    deleted_at: float
    gone_at: float
    """From when on `wk delete --prune` deletes it permanently."""


def delete_session(path: Place, session_id: str, *, now: float | None = None) -> DeleteResult:
    """Hide a session from every list and search; `restore` brings it back within `UNDO_DAYS`.

    A host that still believes it drives the session is fenced out.

    Raises:
        BadInput: it is deleted already.
        DrivenElsewhere, NotFound, StoreUnusable: see `change`.
    """
    at = time.time() if now is None else now

    def work(connection: Connection) -> DeleteResult:
        row = connection.execute(
            # The raised epoch is no longer that of the lease which is held here, so it is freed here too.
            "UPDATE sessions SET deleted_at = ?, lease_epoch = lease_epoch + 1, lease_until = NULL,"
            " deletion_ordinal = (SELECT coalesce(max(deletion_ordinal), 0) + 1 FROM sessions) WHERE id = ?"
            " AND deleted_at IS NULL"
            " RETURNING substr(coalesce(title, goal), 1, 500)",
            (at, session_id),
        ).fetchone()
        if row is None:
            raise BadInput(
                f"session {session_id} is already deleted; restore it with `wk delete --restore {session_id}`"
            )
        return DeleteResult(session_id, str(row[0]), at, at + UNDO_DAYS * 86_400)

    return change(path, session_id, "delete", work)


def restore_session(path: Place, session_id: str) -> None:
    """Restore a deleted session unchanged.

    Raises:
        BadInput: it is not deleted.
        NotFound: there is no such session, or its rows are being deleted already.
        DrivenElsewhere, StoreUnusable: see `change`.
    """

    def work(connection: Connection) -> None:
        row = connection.execute("SELECT deleted_at FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if row[0] is None:
            raise BadInput(f"session {session_id} has not been deleted; nothing to restore")
        if row[0] == BEING_PURGED:
            raise NotFound(f"session {session_id} was permanently deleted; only a backup can restore it")
        connection.execute(
            "UPDATE sessions SET deleted_at = NULL, deletion_ordinal = NULL WHERE id = ?", (session_id,)
        )

    change(path, session_id, "restore", work)


def deleted_sessions(connection: Connection) -> tuple[DeleteResult, ...]:
    """The sessions that can be restored, the last deleted first; no clock decides."""
    rows = connection.execute(
        "SELECT id, substr(coalesce(title, goal), 1, 500), deleted_at FROM sessions WHERE deleted_at > 0"
        " ORDER BY deletion_ordinal DESC LIMIT 1000"
    )
    return tuple(DeleteResult(row[0], str(row[1]), row[2], row[2] + UNDO_DAYS * 86_400) for row in rows)


def find_deleted(connection: Connection, name: str) -> str:
    """The id of the deleted session that `name` means: `last`, an id, or a unique prefix of one.

    Raises:
        NotFound: none is meant.
        BadInput: several are.
    """
    known = [one.id for one in deleted_sessions(connection)]
    found = known[:1] if name == "last" else _meant(known, name)
    if not found:
        raise NotFound(
            f"no deleted session {name!r}; `wk delete --restore` lists the sessions you can restore"
        )
    if len(found) > 1:
        raise BadInput(f"{name!r} is ambiguous: {', '.join(found[:5])}; give more characters")
    return found[0]


def find_left_over(connection: Connection, name: str) -> str | None:
    """The id of the one session that `name` means among those that a prune was killed in the middle of, if it
    means one."""
    rows = connection.execute("SELECT id FROM sessions WHERE deleted_at = ?", (BEING_PURGED,)).fetchall()
    found = _meant([str(row[0]) for row in rows], name)
    return found[0] if len(found) == 1 else None


def _meant(known: list[str], name: str) -> list[str]:
    return [one for one in known if one == name] or [one for one in known if name and one.startswith(name)]


MOVED_APPLICATION_ID = 0x57_4B_4D_56
"""Application id of a file whose content was moved elsewhere, for processes that had it open ("WKMV")."""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A backup that was made and checked."""

    path: Path
    bytes: int
    sessions: int
    seconds: float


def back_up(
    path: Path,
    target: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> BackupResult:
    """Copy the database at `path` to `target` (see `copy_database`), also while hosts write.

    Raises:
        BadInput, StoreUnusable: as `copy_database`.
    """
    began = time.monotonic()
    target = target.expanduser().absolute()
    check_target(path, target, overwrite)
    with contextlib.closing(database.open_readonly(path)) as source:
        sessions = copy_database(source, path, target, overwrite=overwrite, progress=progress)
    return BackupResult(target, target.stat().st_size, sessions, time.monotonic() - began)


def move_database(path: Path, target: Path) -> BackupResult:
    """Move the database at `path` to `target`, which gets its folder if there is none. Nothing may use it
    meanwhile.

    The copy is whole and checked before the old file is removed. A program that waited for the old file finds
    that it is not a database of Watchkeeper any more.

    Raises:
        BadInput: `target` exists, is no place for a file, or is the database itself.
        DrivenElsewhere: a host drives a session of it, or another program has it open.
        StoreUnusable: the database cannot be read, the copy cannot be written, or it is damaged.
    """
    began = time.monotonic()
    target = target.expanduser().absolute()
    for session_id, pid in holders(path):
        raise DrivenElsewhere(
            f"session {session_id} is using {path} (pid {pid}); pause it, then move the database"
        )
    connection = database.open_writable(path)
    try:
        make_private(target.parent)
        check_target(path, target, overwrite=False)
        try:
            # Leaving WAL mode brings the log into the file, and fails while any other connection is open.
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if driver.is_busy(error):
                raise DrivenElsewhere(
                    f"{path} is open in another program; close that program, then move the database"
                ) from None
            raise
        sessions = copy_database(connection, path, target)
        connection.execute(f"PRAGMA application_id={MOVED_APPLICATION_ID:d}")
        path.resolve().unlink()
        _remove_leases(path)
        return BackupResult(target, target.stat().st_size, sessions, time.monotonic() - began)
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(driver.explain(path, error)) from error
    except OSError as error:
        raise StoreUnusable(f"cannot move {path} ({reason_of(error)})") from error
    finally:
        connection.close()


def _remove_leases(path: Path) -> None:
    """Delete the remains of a moved database: leases that no host holds, and the logs of hosts."""
    folder = lease_folder(path)
    with contextlib.suppress(OSError):
        for left in [*folder.glob("*.lock"), *folder.glob("*.log")]:
            left.unlink()
        folder.rmdir()


# --- Two sessions side by side: the state of each, and in which tasks and facts they differ ---------------

MOST = 2_000
"""Tasks, and facts, that are compared of each session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSide(CountedSession):
    """One of two sessions."""

    facts: int = 0
    """Facts that hold still."""


@dataclass(frozen=True, slots=True)
class TaskPair:
    """A task of the plans under one name; a side is None where its plan has no such task."""

    name: str
    left: TaskSide | None
    right: TaskSide | None

    @property
    def differs(self) -> bool:
        """Whether anything but its cost is different."""
        a, b = self.left, self.right
        if a is None or b is None:
            return True
        return _compared(a) != _compared(b)


def _compared(side: TaskSide) -> tuple[object, ...]:
    task = side.task
    return task.title, task.status, task.attempt, task.role, side.needs, side.instructions


@dataclass(frozen=True, slots=True)
class TaskSide:
    """One side of a pair of tasks."""

    task: TaskFacts
    needs: tuple[str, ...]
    """Names of the tasks that it depends on."""
    instructions: str
    tokens: int
    """What the agents of all its attempts used."""


@dataclass(frozen=True, slots=True)
class FactSide:
    """A fact that only one of the two sessions holds."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions, and where they differ."""

    left: SessionSide
    right: SessionSide
    tasks: tuple[TaskPair, ...]
    """In the order of the left plan, then those that only the right one has."""
    only_left: tuple[FactSide, ...]
    only_right: tuple[FactSide, ...]
    shared_facts: int


def compare(connection: Connection, left: str, right: str) -> Comparison:
    """Read two sessions side by side.

    Raises:
        NotFound: one of them is not there.
    """
    sides = [_tasks(connection, one) for one in (left, right)]
    names = list(dict.fromkeys([*sides[0], *sides[1]]))
    facts = [_facts(connection, one) for one in (left, right)]
    return Comparison(
        left=_side(connection, left),
        right=_side(connection, right),
        tasks=tuple(TaskPair(name, sides[0].get(name), sides[1].get(name)) for name in names),
        only_left=tuple(fact for key, fact in facts[0].items() if key not in facts[1]),
        only_right=tuple(fact for key, fact in facts[1].items() if key not in facts[0]),
        shared_facts=len(facts[0].keys() & facts[1].keys()),
    )


def _side(connection: Connection, session_id: str) -> SessionSide:
    reads = Queries(connection)
    found = sessions(reads, "s.id = ?", (session_id,), kind=SessionSide, goal_characters=2_000)
    if not found:
        raise NotFound(f"no session {session_id!r}; list them with `wk sessions`")
    (facts,) = reads.one(
        "SELECT count(*) FROM facts WHERE session_id = ? AND superseded_by IS NULL", (session_id,)
    )
    return replace(found[0], facts=facts)


def _tasks(connection: Connection, session_id: str) -> dict[str, TaskSide]:
    reads = Queries(connection)
    found = tasks(reads, session_id)
    names = {task.id: task.name for task in found}
    tokens: dict[str | None, int] = {}
    for agent in agents(reads, session_id):
        tokens[agent.task_id] = tokens.get(agent.task_id, 0) + agent.total_tokens
    instructions = dict(
        reads.all("SELECT id, substr(instructions, 1, 4000) FROM tasks WHERE session_id = ?", (session_id,))
    )
    return {
        task.name: TaskSide(
            task,
            tuple(name for need, name in names.items() if need in task.depends_on),
            instructions[task.id],
            tokens.get(task.id, 0),
        )
        for task in found[:MOST]
    }


def _facts(connection: Connection, session_id: str) -> dict[str, FactSide]:
    rows = connection.execute(
        "SELECT digest, kind, text FROM facts WHERE session_id = ? AND superseded_by IS NULL ORDER BY id"
        " LIMIT ?",
        (session_id, MOST),
    )
    return {row[0]: FactSide(row[1], row[2]) for row in rows}
