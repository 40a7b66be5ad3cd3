"""An agent's messages for the readable forms, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode
from watchkeeper.transcripts.export.pieces import Clean, Piece, pieces

_MESSAGES = "SELECT seq, role, content, tokens, created_at FROM messages WHERE agent_id = ? ORDER BY seq"


@dataclass(frozen=True, slots=True)
class Said:
    """One message, in pieces, without secrets."""

    seq: int
    role: str
    tokens: int
    at: float
    pieces: tuple[Piece, ...]


def transcript(connection: Connection, agent_id: str, clean: Clean) -> Iterator[Said]:
    """Every message of an agent, in order."""
    for row in connection.execute(_MESSAGES, (agent_id,)):
        yield Said(row[0], str(row[1]), row[3], row[4], tuple(pieces(_content(row[2]), clean)))


def _content(stored: str) -> Any:
    try:
        return decode(stored)
    except ValueError:
        # What is no JSON is shown as it is: reading goes on where keeping (the JSON form) must refuse.
        return stored
