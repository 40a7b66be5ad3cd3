"""Deleting a session with a way back: it is hidden at once, and its rows go when the undo window is over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.store.driver import Connection
from watchkeeper.store.library.changing import change

UNDO_DAYS = 7.0
"""How long a deleted session can be restored before `wk prune` takes its rows away."""

BEING_PURGED = 0.0
"""`deleted_at` of a session whose rows are being taken away (or are not all there yet): it has no way
back."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A session that was deleted and can be restored."""

    id: str
    name: str
    """Its title, or its goal: hostile until sanitised."""
    deleted_at: float
    gone_at: float
    """From when on `wk prune` takes it away for good."""


def delete(path: Path, session_id: str, *, now: float | None = None) -> Deleted:
    """Hide a session from every list and search; `restore` brings it back within `UNDO_DAYS`.

    A host that still believes it drives the session is fenced out.

    Raises:
        BadInput: it is deleted already.
        DrivenElsewhere, NotFound, StoreUnusable: see `changing.change`.
    """
    at = time.time() if now is None else now

    def work(connection: Connection) -> Deleted:
        row = connection.execute(
            "UPDATE sessions SET deleted_at = ?, lease_epoch = lease_epoch + 1,"
            " deletion_ordinal = (SELECT coalesce(max(deletion_ordinal), 0) + 1 FROM sessions) WHERE id = ?"
            " AND deleted_at IS NULL"
            " RETURNING substr(coalesce(title, goal), 1, 500)",
            (at, session_id),
        ).fetchone()
        if row is None:
            raise BadInput(
                f"session {session_id} is deleted already; `wk restore {session_id}` brings it back"
            )
        return Deleted(session_id, str(row[0]), at, at + UNDO_DAYS * 86_400)

    return change(path, session_id, "delete", work)


def restore(path: Path, session_id: str) -> None:
    """Bring a deleted session back as it was.

    Raises:
        BadInput: it is not deleted.
        NotFound: there is no such session, or its rows are being taken away already.
        DrivenElsewhere, StoreUnusable: see `changing.change`.
    """

    def work(connection: Connection) -> None:
        row = connection.execute("SELECT deleted_at FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if row[0] is None:
            raise BadInput(f"session {session_id} is not deleted")
        if row[0] == BEING_PURGED:
            raise NotFound(f"session {session_id} was purged; only a backup has it now")
        connection.execute(
            "UPDATE sessions SET deleted_at = NULL, deletion_ordinal = NULL WHERE id = ?", (session_id,)
        )

    change(path, session_id, "restore", work)


def deleted_sessions(connection: Connection, *, limit: int = 1_000) -> tuple[Deleted, ...]:
    """What can be restored, the last deleted first, whatever the clocks said."""
    rows = connection.execute(
        "SELECT id, substr(coalesce(title, goal), 1, 500), deleted_at FROM sessions WHERE deleted_at > 0"
        " ORDER BY deletion_ordinal DESC LIMIT ?",
        (limit,),
    )
    return tuple(Deleted(row[0], str(row[1]), row[2], row[2] + UNDO_DAYS * 86_400) for row in rows)


def find_deleted(connection: Connection, name: str) -> str:
    """The id of the deleted session that `name` means: `last`, an id, or a unique prefix of one.

    Raises:
        NotFound: none is meant.
        BadInput: several are.
    """
    known = [one.id for one in deleted_sessions(connection)]
    found = known[:1] if name == "last" else _meant(known, name)
    if not found:
        raise NotFound(f"no deleted session {name!r}; `wk restore` lists those that can be restored")
    if len(found) > 1:
        raise BadInput(f"{name!r} could be {', '.join(found[:5])}; give more characters")
    return found[0]


def find_left_over(connection: Connection, name: str) -> str | None:
    """The id of the one session that `name` means among those that a prune was killed in the middle of, if it
    means one."""
    rows = connection.execute("SELECT id FROM sessions WHERE deleted_at = ?", (BEING_PURGED,)).fetchall()
    found = _meant([str(row[0]) for row in rows], name)
    return found[0] if len(found) == 1 else None


def _meant(known: list[str], name: str) -> list[str]:
    return [one for one in known if one == name] or [one for one in known if name and one.startswith(name)]
