"""Content-addressed artifacts: `artifact://sha256/<hex>`, compressed when that pays, stored once."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.text import cut
from watchkeeper.store.driver import IN_LIST, Connection, Reads, Writes, column, first, list_of

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction


SCHEME = "artifact://sha256/"
_REF = re.compile(r"artifact://sha256/([0-9a-f]{64})\Z")
_COMPRESS_FROM = 512
_WORTH = 0.9


def ref_of(digest: str) -> str:
    return SCHEME + digest


def digest_of(ref: str) -> str | None:
    """The hex digest of a reference, or None if it is none."""
    match = _REF.match(ref)
    return match.group(1) if match else None


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(tx: Writes, data: bytes, media_type: str = "text/plain") -> str:
    """Store bytes (once, however often they are put); returns their reference."""
    name = digest(data)
    if tx.one("SELECT 1 FROM artifacts WHERE digest = ?", (name,)) is None:
        stored, encoding = data, "plain"
        if len(data) >= _COMPRESS_FROM:
            packed = zlib.compress(data, 6)
            if len(packed) < len(data) * _WORTH:
                stored, encoding = packed, "zlib"
        tx.execute(
            "INSERT INTO artifacts (digest, size, encoding, media_type, data, created_at) VALUES (?, ?, ?,"
            " ?, ?, ?)",
            (name, len(data), encoding, media_type, stored, tx.now),
        )
    return ref_of(name)


def size_of(reads: Reads, ref: str) -> int | None:
    """Bytes of an artifact, or None if there is none."""
    return first(reads, int, "SELECT size FROM artifacts WHERE digest = ?", (digest_of(ref) or "",))


def load(reads: Reads, name: str) -> tuple[str, bytes] | None:
    """The media type and the bytes of an artifact, or None if there is none.

    Raises:
        StoreUnusable: what is stored is not what was put there.
    """
    row = reads.one("SELECT media_type, encoding, data FROM artifacts WHERE digest = ?", (name,))
    if row is None:
        return None
    try:
        data = zlib.decompress(row[2]) if row[1] == "zlib" else bytes(row[2])
    except zlib.error:
        data = None
    if data is None or digest(data) != name:
        raise StoreUnusable(f"{ref_of(name)} is damaged in the database; restore a backup, or rerun its task")
    return str(row[0]), data


def get(reads: Reads, ref: str) -> bytes | None:
    """The bytes behind a reference, or None where nothing is stored under it.

    Raises:
        StoreUnusable: what is stored is not what was put there.
    """
    found = load(reads, digest_of(ref) or "")
    return found[1] if found is not None else None


def save_output(
    tx: Transaction,
    *,
    name: str,
    data: bytes,
    media_type: str,
    agent_id: str | None,
    task_id: str | None,
    kind: str = "artifact",
) -> str:
    """Put an artifact and enter it under `name` in the agent's output cache; returns its reference."""
    ref = put(tx, data, media_type)
    tx.insert(
        "INSERT INTO outputs (session_id, agent_id, task_id, name, kind, digest, created_at, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (tx.session_id, agent_id, task_id, name, kind, digest_of(ref), tx.now, tx.commit_seq),
    )
    return ref


def made_by(reads: Reads, agent_id: str, *, kind: str | None = None) -> list[tuple[str, str]]:
    """What an agent saved, or what it saved of that kind, oldest first: name and reference."""
    sql = "SELECT name, digest FROM outputs WHERE agent_id = ? AND kind = coalesce(?, kind) ORDER BY id"
    return [(row[0], ref_of(row[1])) for row in reads.all(sql, (agent_id, kind))]


def output_names(reads: Reads, session_id: str) -> list[str]:
    """Every name under which something was saved in the session, whole outputs of tools too, in order."""
    sql = "SELECT DISTINCT name FROM outputs WHERE session_id = ? ORDER BY name"
    return column(reads, str, sql, (session_id,))


def resolve(reads: Reads, session_id: str, name_or_ref: str, *, kind: str | None = None) -> str | None:
    """A reference as it is, or that of the session's newest output of that name, and of that kind; None if there is
    none."""
    if digest_of(name_or_ref):
        return name_or_ref
    sql = "SELECT digest FROM outputs WHERE session_id = ? AND name = ? AND kind = coalesce(?, kind) ORDER BY id DESC LIMIT 1"
    return first(reads, ref_of, sql, (session_id, name_or_ref, kind))


MOST_LISTED = 20
_SAVED = "SELECT name FROM outputs WHERE session_id = ? AND kind <> 'tool_output' GROUP BY name ORDER BY max(id) DESC"


def unknown(reads: Reads, session_id: str, wanted: str) -> str:
    """What is wrong with a name that no artifact of the session has: the names that there are, the newest first."""
    names = [cut(row[0], 120) for row in reads.all(_SAVED, (session_id,))]
    more = [f"and {len(names) - MOST_LISTED} more"] if len(names) > MOST_LISTED else []
    there = ", ".join([*names[:MOST_LISTED], *more])
    return (
        f"no artifact {cut(wanted, 200)!r}; existing artifacts: {there}"
        if there
        else "no artifacts saved yet"
    )


# --- Which artifacts a session refers to --------------------------------------------------------------------
#
# By name, in handoffs, and in its own notes about those.

_ARTIFACT_REF = re.compile(r"artifact://sha256/([0-9a-f]{64})")

_NAMED = "SELECT DISTINCT digest FROM outputs WHERE session_id = ?"
_NOTED = (
    "SELECT memory_blob_ref FROM memory_snapshots WHERE session_id = ?1 UNION ALL"
    " SELECT memory_delta_ref FROM handoffs WHERE session_id = ?1 UNION ALL"
    " SELECT inputs_ref FROM handoffs WHERE session_id = ?1 UNION ALL"
    " SELECT artifact_refs || inputs_ref FROM tasks WHERE session_id = ?1 UNION ALL"
    " SELECT payload FROM inbox WHERE session_id = ?1 UNION ALL"
    " SELECT v.elided FROM views v JOIN agents a ON a.id = v.agent_id WHERE a.session_id = ?1"
)
_STILL_NAMED = f"SELECT DISTINCT digest FROM outputs WHERE digest {IN_LIST}"
_ALL_NOTED = _NOTED.replace(" WHERE session_id = ?1", "").replace(" WHERE a.session_id = ?1", "")


def named_by(connection: Connection, session_id: str) -> set[str]:
    """Digests of what the session's agents saved under a name."""
    return {row[0] for row in connection.execute(_NAMED, (session_id,))}


def held_by(connection: Connection, session_id: str) -> set[str]:
    """Digests of all that the session refers to, through its own notes too (memory snapshots, memory
    deltas)."""
    named = named_by(connection, session_id)
    found, waiting = set(named), set[str]()
    for (text,) in connection.execute(_NOTED, (session_id,)):
        waiting |= set(digests_in(text or ""))
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name not in named:
            note = note_text(connection, name)
            waiting |= set(digests_in(note or "")) - found
    return found


def notes_of(connection: Connection, session_id: str) -> list[str]:
    """Digests of the session's own notes, each after those that it refers to."""
    notes = held_by(connection, session_id) - named_by(connection, session_id)
    waiting = {
        name: set(digests_in(note_text(connection, name) or "")) & notes - {name} for name in sorted(notes)
    }
    # No cycle is possible: a text cannot contain its own digest.
    return [*TopologicalSorter(waiting).static_order()]


def note_text(connection: Connection, name: str) -> str | None:
    """The JSON of a note, or None where the artifact is none."""
    row = connection.execute(
        "SELECT encoding, data FROM artifacts WHERE digest = ? AND media_type = 'application/json'", (name,)
    ).fetchone()
    if row is None:
        return None
    try:
        return (zlib.decompress(row[1]) if row[0] == "zlib" else bytes(row[1])).decode("utf-8", "replace")
    except zlib.error:
        return None  # damaged; reading it by name raises the error


def digests_in(text: str) -> Iterator[str]:
    """The digests of every reference in a text."""
    return (match[1] for match in _ARTIFACT_REF.finditer(text))


def still_held(connection: Connection, candidates: Iterable[str]) -> set[str]:
    """Those of `candidates` that any session in the file refers to."""
    wanted = set(candidates)
    held = {row[0] for row in connection.execute(_STILL_NAMED, (list_of(sorted(wanted)),))}
    notes: set[str] = set()
    for (text,) in connection.execute(_ALL_NOTED) if wanted - held else ():
        notes |= set(digests_in(text or ""))
    held |= notes & wanted
    named = (
        {row[0] for row in connection.execute("SELECT DISTINCT digest FROM outputs")}
        if wanted - held
        else set()
    )
    for note in notes - named if wanted - held else ():
        held |= wanted & set(digests_in(note_text(connection, note) or ""))
    return held
