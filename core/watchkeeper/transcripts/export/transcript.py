"""An agent's messages for the readable forms, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode
from watchkeeper.transcripts.export.pieces import Clean, Piece, pieces

_REWINDS = (
    "SELECT v.reason, v.elided, coalesce(p.elided, '[]') FROM views v LEFT JOIN views p"
    " ON p.agent_id = v.agent_id AND p.version = v.parent"
    " WHERE v.agent_id = ? AND v.reason IN ('rewind', 'restored') ORDER BY v.version"
)
_MESSAGES = "SELECT seq, role, content, tokens, created_at FROM messages WHERE agent_id = ? ORDER BY seq"


@dataclass(frozen=True, slots=True)
class Said:
    """One message, in pieces, without secrets."""

    seq: int
    role: str
    tokens: int
    at: float
    pieces: tuple[Piece, ...]
    taken_back: bool = False
    """A person went back to before it: it is in the context no more."""


def transcript(connection: Connection, agent_id: str, clean: Clean) -> Iterator[Said]:
    """Every message of an agent, in order."""
    gone = _taken_back(connection, agent_id)
    for row in connection.execute(_MESSAGES, (agent_id,)):
        yield Said(
            row[0], str(row[1]), row[3], row[4], tuple(pieces(_content(row[2]), clean)), row[0] in gone
        )


def _taken_back(connection: Connection, agent_id: str) -> frozenset[int]:
    gone: set[int] = set()
    for reason, after, before in connection.execute(_REWINDS, (agent_id,)):
        # `[seq, head, tail, pointer, tokens]`: what was taken back has no tokens left.
        now = {each[0] for each in decode(after) if not each[4]}
        gone |= now
        if reason == "restored":
            gone -= {each[0] for each in decode(before) if not each[4]} - now
    return frozenset(gone)


def _content(stored: str) -> Any:
    try:
        return decode(stored)
    except ValueError:
        # What is no JSON is shown as it is: reading goes on where keeping (the JSON form) must refuse.
        return stored
