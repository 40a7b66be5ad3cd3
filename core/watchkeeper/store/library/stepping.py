"""The steps of a session from which it can be forked: turns of agents, and changes of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode

_KINDS = (
    "model.replied", "inbox.delivered", "plan.revised", "agent.created", "task.running", "task.done", "task.failed", "task.paused",
    "task.pending", "compaction.applied", "compaction.undo", "compaction.redo", "session.paused", "session.running", "session.forked",
)  # fmt: skip
_STEPS = (
    "SELECT e.seq, e.at, e.kind, e.agent_id, a.name, t.name, e.data FROM events e LEFT JOIN agents a ON a.id = e.agent_id"  # noqa: S608 - question marks
    " LEFT JOIN tasks t ON t.id = e.task_id WHERE e.session_id = ? AND e.seq < ? AND e.kind IN"
    f" ({', '.join('?' * len(_KINDS))}) ORDER BY e.seq DESC LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Texts are hostile until sanitised."""

    seq: int
    at: float
    kind: str
    agent_id: str | None
    agent: str
    """The agent's name, or nothing."""
    task: str
    """The task's name, or nothing."""
    turn: int | None
    """For a reply: the agent's turn, at whose end a fork begins."""
    text: str


def steps(
    connection: Connection, session_id: str, *, before: int = 1 << 62, limit: int = 500
) -> tuple[Step, ...]:
    """The newest steps before event `before`, the newest first."""
    rows = connection.execute(_STEPS, (session_id, before, *_KINDS, limit))
    return tuple(_step(row) for row in rows)


def _step(row: Any) -> Step:
    data: dict[str, Any] = decode(row[6])
    turn = data.get("turn") if row[2] == "model.replied" else None
    return Step(
        row[0],
        row[1],
        row[2],
        row[3],
        row[4] or "",
        row[5] or "",
        turn if isinstance(turn, int) else None,
        _text(row[2], data),
    )


def _text(kind: str, data: dict[str, Any]) -> str:
    if kind == "model.replied":
        tools, said = data.get("tools"), str(data.get("preview") or "")
        return (
            ", ".join(map(str, tools)) + (f" · {said}" if said else "")
            if isinstance(tools, list) and tools
            else said
        )
    if kind == "inbox.delivered":
        items = data.get("items")
        return ", ".join(str(item).replace("_", " ") for item in items) if isinstance(items, list) else ""
    if kind == "plan.revised":
        return f"r{data.get('revision')}: {data.get('reason') or ''}"
    if kind == "compaction.applied":
        before, after = data.get("tokens_before"), data.get("tokens_after")
        return f"{before:,} → {after:,} tokens" if isinstance(before, int) and isinstance(after, int) else ""
    return str(data.get("reason") or data.get("title") or "")
