"""What happened at the positions of a session whose events tell little: messages and calls, told as events
are."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper.store.dashboard import EventFacts
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode, encode

EVENT, CALL, MESSAGE = 0, 1, 2
"""Kinds of position, in the order in which they are told where their times are the same."""

PREVIEW = 300
_MESSAGE = "SELECT role, substr(content, 1, 4000) FROM messages WHERE agent_id = ? AND seq = ?"
_CALL = "SELECT turn, purpose, status, model, substr(error, 1, 1000) FROM model_calls WHERE id = ?"
_EVENT = "SELECT kind, agent_id, task_id, substr(data, 1, 4000) FROM events WHERE session_id = ? AND seq = ?"


def told(
    connection: Connection, session_id: str, points: Sequence[tuple[float, int, str, int]], first: int
) -> tuple[EventFacts, ...]:
    """Those points as events; `first` is the position of the first of them. Points are time, kind, agent, and
    which one."""
    found: list[EventFacts] = []
    for position, (at, kind, agent_id, number) in enumerate(points, first):
        if kind == EVENT:
            row = connection.execute(_EVENT, (session_id, number)).fetchone()
            if row is not None:
                found.append(EventFacts(position, at, *row))
        elif kind == MESSAGE:
            row = connection.execute(_MESSAGE, (agent_id, number)).fetchone()
            if row is not None:
                data = encode({"text": f"#{number} {_preview(row[1])}"})
                found.append(EventFacts(position, at, f"{row[0]}.message", agent_id, None, data))
        else:
            row = connection.execute(_CALL, (number,)).fetchone()
            if row is not None:
                found.append(EventFacts(position, at, *_call(row, agent_id)))
    return tuple(found)


def _call(row: tuple[int, str, str, str, str | None], agent_id: str) -> tuple[str, str, None, str]:
    turn, purpose, status, model, error = row
    if status == "error":
        return "model.error", agent_id, None, encode({"error": error or purpose})
    return "model.replied", agent_id, None, encode({"turn": turn, "preview": f"{purpose}, {model}"})


def _preview(content: str) -> str:
    """The beginning of what a message says; of one that is too long to be parsed, of its text as stored."""
    try:
        value = decode(content)
    except ValueError:
        return content[:PREVIEW]
    blocks = value if isinstance(value, list) else [value]
    return " ".join(" ".join(_said(block).split()) for block in blocks)[:PREVIEW]


def _said(block: object) -> str:
    if isinstance(block, list):
        return " ".join(_said(each) for each in block)
    if not isinstance(block, dict):
        return "" if block is None else str(block)
    kind = block.get("type")
    if kind == "tool_use":
        return f"→ {block.get('name')}"
    if kind == "tool_result":
        return f"← {_said(block.get('content'))}"
    return str(block.get("text") or block.get("thinking") or f"[{kind}]")
