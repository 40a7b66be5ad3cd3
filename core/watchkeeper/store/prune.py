"""Retention: which sessions can be deleted, how much space they take, and deleting them while hosts work."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound
from watchkeeper.store import artifacts, database
from watchkeeper.store.driver import IN_LIST, Connection, list_of
from watchkeeper.store.engine import engine_of, index_of
from watchkeeper.store.lease import LeaseHolder, lock_path, probe
from watchkeeper.store.library import (
    BEING_PURGED,
    END_TRANSACTION,
    UNDO_DAYS,
    in_short_transactions,
    opened,
    without_host,
)
from watchkeeper.store.place import Place
from watchkeeper.store.schema import TABLES, Table, owned

INDEX_SECONDS = 5.0
"""How long a prune removes the words of deleted messages from the index; the hosts continue the work."""

_HELD = "held"
"""The key under which the settings of a session keep, while it is forked or pruned, which artifacts it refers to."""
_LEFT_OVER = "left over from an interrupted fork, import or prune"

_FINISHED = "(s.status IN ('done', 'failed', 'cancelled') OR s.origin NOT IN ('run', 'fork'))"
"""Nothing of it waits to be carried on with. What other programs wrote never does."""

_ROW_BYTES = 100
"""About what a row takes besides its texts."""


@dataclass(frozen=True, slots=True)
class PruneCandidate:
    """A session that would go."""

    id: str
    name: str
    """Its title, or its goal: hostile until sanitised."""
    status: str
    last_active: float
    bytes: int
    """About what it takes in the file, with what it saved."""
    why: str
    workspace_facts: int
    """Facts of it that agents of later sessions on its workspace recall; they go with it."""


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune would do."""

    doomed: tuple[PruneCandidate, ...]
    kept: int
    """Sessions that stay."""
    file_bytes: int
    free_bytes: int
    """Room in the file that nothing takes now."""

    @property
    def bytes(self) -> int:
        """About what all of them take."""
        return sum(one.bytes for one in self.doomed)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune did."""

    sessions: tuple[str, ...]
    refused: tuple[str, ...]
    """One line for each session that a host took meanwhile."""
    artifacts: int
    transactions: int


def plan_prune(
    path: Place,
    *,
    names: Sequence[str] = (),
    older_than_seconds: float | None = None,
    larger_than_bytes: int | None = None,
    keep: int | None = None,
    now: float | None = None,
) -> PrunePlan:
    """Which sessions would go: the `names`d ones (ids), or else those that are finished and meet every
    condition given.

    Sessions deleted `UNDO_DAYS` ago and more always go. Without names or conditions only those do. `keep`:
    that many of the last active sessions stay in any case. A live session never goes; one that is paused, or
    stopped with its host, only by name.

    Raises:
        NotFound, BadInput: a name is no session, or is one twice.
        DrivenElsewhere: a named session is live.
    """
    at = time.time() if now is None else now
    connection = database.open_readonly(path)
    try:
        file_bytes, free_bytes = engine_of(connection).sizes(connection)
        total = connection.execute("SELECT count(*) FROM sessions WHERE deleted_at IS NULL").fetchone()[0]
        chosen = _named(connection, path, names) if names else {}
        if not names and (
            older_than_seconds is not None or larger_than_bytes is not None or keep is not None
        ):
            chosen = _finished(connection, older_than_seconds, keep, at)
        over = _window_over(connection, at)
        live = {one for one in (*chosen, *over) if probe(path, one) is not None}
        wanted = {one: why for one, why in (chosen | over).items() if one not in live}
        sizes = session_bytes(connection, list(wanted))
        if larger_than_bytes is not None and not names:
            wanted = {
                one: why
                for one, why in wanted.items()
                if one in over or sizes.get(one, 0) > larger_than_bytes
            }
            wanted = {one: why or f"takes {sizes.get(one, 0):,} bytes" for one, why in wanted.items()}
        doomed = _described(connection, wanted, sizes)
        return PrunePlan(
            doomed, total - sum(1 for one in doomed if one.id not in over), file_bytes, free_bytes
        )
    finally:
        connection.close()


def prune_sessions(path: Place, plan: PrunePlan) -> PruneResult:
    """Delete what the plan names, and the artifacts without references, while hosts work.

    A session that a host took since the plan was made stays, and the result names it.
    """
    work = _Pruning(path, plan.doomed)
    with opened(path) as connection:
        transactions = in_short_transactions(connection, work.rows(connection))
        free = work.candidates - artifacts.still_held(connection, work.candidates)
        transactions += in_short_transactions(connection, _artifacts(connection, sorted(free), work.gone))
        transactions += in_short_transactions(connection, forget_places(connection))
        for session_id in work.gone:
            forget_files(path, session_id)
        index_of(connection).index_until(seconds=INDEX_SECONDS)
    return PruneResult(tuple(work.gone), tuple(work.refused), len(free), transactions)


def unfinished_sessions(path: Place, connection: Connection) -> tuple[str, ...]:
    """Sessions that a fork, an import or a prune left half written when it was killed: no list shows them. Those on
    which a process works now are none of them."""
    rows = connection.execute(
        "SELECT id FROM sessions WHERE deleted_at = ? ORDER BY ordinal", (BEING_PURGED,)
    ).fetchall()
    holders = ((row[0], probe(path, row[0], connection)) for row in rows)
    return tuple(name for name, holder in holders if holder is None or holder.has_ended)


def remove_unfinished(path: Place) -> tuple[str, ...]:
    """Delete the `unfinished_sessions`, with the artifacts that only they refer to; returns their ids."""
    with opened(path) as connection:
        left = unfinished_sessions(path, connection)
        if not left:
            return ()
        sql = f"SELECT id, lease_epoch, host_pid, host_name FROM sessions WHERE id {IN_LIST}"
        for session_id, epoch, pid, host_name in connection.execute(sql, (list_of(left),)).fetchall():
            if LeaseHolder(pid or 0, host_name or "").has_ended:
                engine_of(connection).free_lease(connection, session_id, epoch, pid)
        doomed = _described(connection, dict.fromkeys(left, _LEFT_OVER), {})
    return prune_sessions(path, PrunePlan(doomed, 0, 0, 0)).sessions


def unfinished_settings(held: Iterable[str]) -> str:
    """The settings of a session that is half written: which artifacts to look at when it is removed."""
    return json.dumps({_HELD: list(held)})


class _Pruning:
    """One prune under way: small sessions share transactions, large ones take several."""

    def __init__(
        self,
        path: Place,
        doomed: Sequence[PruneCandidate],
    ) -> None:
        self._path = path
        self._doomed = doomed
        self.gone: list[str] = []
        self.refused: list[str] = []
        self.candidates: set[str] = set()
        """Artifacts that sessions which went referred to."""

    def rows(self, connection: Connection) -> Iterator[object]:
        """Take every session's rows away, each while its lease is held."""
        for one in self._doomed:
            try:
                with without_host(self._path, one.id, "prune"):
                    held = artifacts.held_by(connection, one.id) | _noted(connection, one.id)
                    self.candidates |= held
                    # A process that continues a killed prune learns from here what else it may delete. The session
                    # is hidden permanently before this transaction ends, and no process reads the settings of
                    # such a session.
                    noted = unfinished_settings(sorted(held))
                    connection.execute("UPDATE sessions SET settings = ? WHERE id = ?", (noted, one.id))
                    yield from purge_all_but_its_row(connection, one.id)
                    if engine_of(connection).lease_is_in_row:
                        yield END_TRANSACTION  # freeing the lease, by its own connection, waits for the session's row
            except DrivenElsewhere as driven:
                self.refused.append(str(driven))
                continue
            self.gone.append(one.id)


def _noted(connection: Connection, session_id: str) -> set[str]:
    """What a prune that was killed had found the session to refer to."""
    row = connection.execute("SELECT settings FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return set(json.loads(row[0]).get(_HELD, ())) if row else set()


def _artifacts(connection: Connection, digests: Sequence[str], sessions: Sequence[str]) -> Iterator[None]:
    """Delete artifacts, unless one was entered under a name again since it was found free; then the sessions'
    own rows."""
    for digest in digests:
        if connection.execute("SELECT 1 FROM outputs WHERE digest = ?", (digest,)).fetchone() is None:
            for _ in purge_artifacts(connection, [digest]):
                yield
    for session_id in sessions:
        connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        yield


def vacuum(path: Path) -> tuple[int, int]:
    """Give the free room back to the file system; returns the file's bytes before and after.

    Raises:
        DrivenElsewhere: a host works on the file, and would be kept waiting.
        StoreUnusable: the disk has no room for the copy that this needs.
    """
    with opened(path) as connection:
        busy = live_sessions(connection, path)
        if busy:
            raise DrivenElsewhere(
                f"not vacuumed: session {busy[0]} is running. The free space is"
                " reused; to return it to the file system, run `wk delete --prune` when no session is running"
            )
        before, _ = engine_of(connection).sizes(connection)
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return before, engine_of(connection).sizes(connection)[0]


def live_sessions(connection: Connection, path: Place) -> list[str]:
    """Sessions that a host drives now."""
    return [
        row[0]
        for row in connection.execute("SELECT id FROM sessions").fetchall()
        if probe(path, row[0]) is not None
    ]


def session_bytes(connection: Connection, session_ids: Sequence[str]) -> dict[str, int]:
    """About how many bytes each of these sessions takes."""
    sizes: dict[str, int] = {}
    for session_id in session_ids:
        total = 0
        for table in TABLES:
            if table.exported:
                texts = [f"coalesce(octet_length({name}), 0)" for name in (*table.text, *table.json)]
                row = " + ".join([*texts, str(_ROW_BYTES)])
                total += connection.execute(
                    f"SELECT coalesce(sum({row}), 0) FROM {table.name} WHERE {table.of_session}",
                    (session_id,),
                ).fetchone()[0]
        saved = connection.execute(_SAVED_BYTES, (session_id,)).fetchone()[0]
        sizes[session_id] = int(total + (saved or 0))
    return sizes


_SAVED_BYTES = "SELECT sum(octet_length(data)) FROM artifacts WHERE digest IN (SELECT digest FROM outputs WHERE session_id = ?)"


def _named(connection: Connection, path: Place, names: Sequence[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for name in names:
        row = connection.execute("SELECT id FROM sessions WHERE id = ?", (name,)).fetchone()
        if row is None:
            raise NotFound(f"no session {name!r}; list them with `wk sessions`")
        holder = probe(path, name)
        if holder is not None:
            raise DrivenElsewhere(
                f"session {name} is already running in a background process (pid {holder.pid}); run `wk pause {name}` first"
            )
        chosen[name] = "named"
    return chosen


def _finished(
    connection: Connection, older_than_seconds: float | None, keep: int | None, at: float
) -> dict[str, str]:
    if keep is not None and keep < 0:
        raise BadInput("--keep requires a number of sessions")
    before = at - older_than_seconds if older_than_seconds is not None else math.inf
    why = f"not among the {keep} most recently active" if keep is not None else ""
    if older_than_seconds is not None:
        why = f"last active more than {older_than_seconds / 86_400:g} days ago"
    rows = connection.execute(
        f"SELECT s.id FROM sessions s WHERE s.deleted_at IS NULL AND {_FINISHED} AND s.last_active < ?"
        " AND s.id NOT IN (SELECT id FROM sessions WHERE deleted_at IS NULL"
        " ORDER BY last_active DESC, ordinal DESC LIMIT ?) ORDER BY s.last_active",
        (before, keep or 0),
    )
    return {row[0]: why for row in rows}


def _window_over(connection: Connection, at: float) -> dict[str, str]:
    rows = connection.execute(
        "SELECT id, deleted_at FROM sessions WHERE deleted_at IS NOT NULL AND deleted_at <= ? ORDER BY"
        " deleted_at",
        (at - UNDO_DAYS * 86_400,),
    )
    return {
        row[0]: f"deleted more than {UNDO_DAYS:g} days ago" if row[1] != BEING_PURGED else _LEFT_OVER
        for row in rows
    }


def _described(
    connection: Connection, wanted: dict[str, str], sizes: dict[str, int]
) -> tuple[PruneCandidate, ...]:
    rows: dict[str, Any] = {
        row[0]: row
        for row in connection.execute(
            "SELECT s.id, substr(coalesce(s.title, s.goal), 1, 500), s.status, s.last_active, (SELECT"
            " count(*) FROM facts f"
            " WHERE f.session_id = s.id AND f.scope = 'workspace' AND f.superseded_by IS NULL) FROM sessions"
            f" s WHERE s.id {IN_LIST}",
            (list_of([*wanted]),),
        )
    }
    return tuple(
        PruneCandidate(
            one, str(rows[one][1]), rows[one][2], rows[one][3], sizes.get(one, 0), why, rows[one][4]
        )
        for one, why in wanted.items()
        if one in rows
    )


# --- Deleting the rows of a session, a few at a time --------------------------------------------------------

ROWS_AT_ONCE = 50


def purge_rows(connection: Connection, session_id: str) -> Iterator[None]:
    """Delete everything of a session but its artifacts. Hide it permanently first, and delete its own row
    last.

    Yields after every few rows, so a transaction may end between them. An interrupted purge can continue at any
    time.
    """
    yield from purge_all_but_its_row(connection, session_id)
    connection.execute("DELETE FROM external_sessions WHERE imported_as = ?", (session_id,))
    connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    yield


def purge_all_but_its_row(connection: Connection, session_id: str) -> Iterator[None]:
    """As `purge_rows`, but keep the hidden row of the session, for a caller that has more to do first."""
    connection.execute(
        "UPDATE sessions SET deleted_at = ?, lease_epoch = lease_epoch + 1 WHERE id = ?",
        (BEING_PURGED, session_id),
    )
    yield
    yield from _imported(connection, session_id)
    for owner in ("agent", "task", "plan"):
        sql = f"SELECT id FROM {owner}s WHERE session_id = ?"
        for (owner_id,) in connection.execute(sql, (session_id,)).fetchall():
            for table in owned(owner):
                yield from _rows(connection, table, owner_id)
    # What other rows belong to goes last: a purge that was interrupted finds them by it.
    for table in sorted(owned("session"), key=lambda table: table.name in ("tasks", "plans", "agents")):
        yield from _rows(connection, table, session_id)


def purge_artifacts(connection: Connection, digests: Iterable[str]) -> Iterator[int]:
    """Delete these artifacts, of which the caller knows that nothing refers to them; yields the bytes of
    each."""
    for digest in digests:
        row = connection.execute(
            "SELECT octet_length(data) FROM artifacts WHERE digest = ?", (digest,)
        ).fetchone()
        connection.execute("DELETE FROM artifacts WHERE digest = ?", (digest,))
        yield int(row[0]) if row else 0


def forget_places(connection: Connection) -> Iterator[None]:
    """Delete the rows that say where in the index of words the messages of deleted sessions were."""
    gone = connection.execute(
        "SELECT first_id FROM messages_fts_sessions WHERE session_id NOT IN (SELECT id FROM sessions)"
    ).fetchall()
    for row in gone:
        connection.execute("DELETE FROM messages_fts_sessions WHERE first_id = ?", row)
        yield


def forget_files(path: Place, session_id: str) -> None:
    """Remove the session's lock files and its host's log."""
    lock = lock_path(path, session_id)
    for name in (lock, *map(lock.with_suffix, (".log", ".watch", ".claim"))):
        name.unlink(missing_ok=True)


def _imported(connection: Connection, session_id: str) -> Iterator[None]:
    """Forget which records of other programs' logs became rows of this session: they may be imported
    again."""
    if (
        connection.execute("SELECT 1 FROM transcript_files WHERE session_id = ?", (session_id,)).fetchone()
        is None
    ):
        return
    for sql, delete in (
        (
            "SELECT digest FROM transcript_records WHERE agent_id IN (SELECT id FROM agents WHERE session_id = ?)",
            "DELETE FROM transcript_records WHERE digest = ?",
        ),
        (
            "SELECT model_call_id FROM transcript_calls WHERE model_call_id IN (SELECT id FROM model_calls"
            " WHERE session_id = ?)",
            "DELETE FROM transcript_calls WHERE model_call_id = ?",
        ),
    ):
        for number, row in enumerate(connection.execute(sql, (session_id,)).fetchall()):
            connection.execute(delete, row)
            if number % ROWS_AT_ONCE == 0:
                yield


KEYS_AT_ONCE = 2_000


def _rows(connection: Connection, table: Table, owner_id: str) -> Iterator[None]:
    """By key: to look each time for any rows that are left passes over all that were deleted before, on a server."""
    keys = f"SELECT {table.key} FROM {table.name} WHERE {table.owner}_id = ?"
    page = f"ORDER BY {table.key} LIMIT {KEYS_AT_ONCE:d}"
    sql = f"DELETE FROM {table.name} WHERE {table.owner}_id = ? AND {table.key} {IN_LIST}"
    if table.has_unique_id:  # not by the index of owners
        sql = f"DELETE FROM {table.name} WHERE id {IN_LIST}"
    found = connection.execute(f"{keys} {page}", (owner_id,)).fetchall()
    while found:
        for start in range(0, len(found), ROWS_AT_ONCE):
            some = list_of([row[0] for row in found[start : start + ROWS_AT_ONCE]])
            connection.execute(sql, (some,) if table.has_unique_id else (owner_id, some))
            yield
        after = found[-1][0]
        found = connection.execute(f"{keys} AND {table.key} > ? {page}", (owner_id, after)).fetchall()
    yield
