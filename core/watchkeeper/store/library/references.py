"""Which artifacts a session holds on to: by name, in what was handed on, and in its own notes about those."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator

from watchkeeper.store.driver import Connection

_REF = re.compile(r"artifact://sha256/([0-9a-f]{64})")

_NAMED = "SELECT DISTINCT digest FROM outputs WHERE session_id = ?"
_NOTED = (
    "SELECT memory_blob_ref FROM memory_snapshots WHERE session_id = ?1 UNION ALL"
    " SELECT memory_delta_ref FROM handoffs WHERE session_id = ?1 UNION ALL"
    " SELECT inputs_ref FROM handoffs WHERE session_id = ?1 UNION ALL"
    " SELECT artifact_refs || inputs_ref FROM tasks WHERE session_id = ?1 UNION ALL"
    " SELECT payload FROM inbox WHERE session_id = ?1 UNION ALL"
    " SELECT v.elided FROM views v JOIN agents a ON a.id = v.agent_id WHERE a.session_id = ?1"
)
_STILL_NAMED = "SELECT DISTINCT digest FROM outputs WHERE digest IN (SELECT value FROM json_each(?))"
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
    rows = (
        (row[0], name)
        for name in notes
        for row in connection.execute("SELECT rowid FROM artifacts WHERE digest = ?", (name,))
    )
    return [name for _, name in sorted(rows)]


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
        return None  # damaged; whoever reads it by name is told


def digests_in(text: str) -> Iterator[str]:
    """The digests of every reference in a text."""
    return (match[1] for match in _REF.finditer(text))


def still_held(connection: Connection, candidates: Iterable[str]) -> set[str]:
    """Those of `candidates` that any session in the file refers to."""
    wanted = set(candidates)
    chosen = json.dumps(sorted(wanted))
    held = {row[0] for row in connection.execute(_STILL_NAMED, (chosen,))}
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
