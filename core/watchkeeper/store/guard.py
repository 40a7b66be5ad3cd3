"""Caps for sessions of other programs: which ones a session has reached, by its imported log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from watchkeeper.records.text import plural
from watchkeeper.store.driver import Connection, encode
from watchkeeper.store.imports import imported_from

LOOKED_BACK_SECONDS = 3_600.0
"""A session that was active within so long is looked at."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The user's caps; None: there is none."""

    max_agents: int | None = None
    max_cost_per_session_usd: float | None = None
    max_cost_per_hour_usd: float | None = None
    max_identical_calls: int | None = None

    def __bool__(self) -> bool:
        return self != Caps()


@dataclass(frozen=True, slots=True)
class Session:
    """One session of another program."""

    id: str
    program_session: str
    """The program's own id."""
    title: str
    """Hostile text."""
    mark: tuple[Any, ...]
    """Differs once something of it was imported."""


class Finding(NamedTuple):
    """A cap that a session has reached, or that cannot be checked."""

    cap: str
    """The setting's name."""
    text: str
    is_reached: bool
    """False: it is unknown."""


def outside_sessions(connection: Connection, now: float) -> list[Session]:
    """The sessions of other programs that were active in the last hour."""
    rows = connection.execute(
        "SELECT id, source, coalesce(title, goal), origin, last_active, event_seq, model_calls, cost_usd"
        " FROM sessions WHERE last_active >= ? AND deleted_at IS NULL"
        " AND source IS NOT NULL ORDER BY ordinal",
        (now - LOOKED_BACK_SECONDS,),
    )
    return [
        Session(row[0], row[1].partition(":")[2], row[2], tuple(row[4:]))
        for row in rows.fetchall()
        if imported_from(row[3]) is not None
    ]


def findings(connection: Connection, session_id: str, caps: Caps, now: float) -> Iterator[Finding]:
    """What a session has reached. A cost that is not known is said to be unknown, and never taken for nothing."""
    if caps.max_agents is not None:
        (count,) = connection.execute(
            "SELECT count(*) FROM agents a JOIN sessions s ON s.id = a.session_id WHERE s.id = ? AND a.id <> s.planner_agent_id",
            (session_id,),
        ).fetchone()
        if count >= caps.max_agents:
            yield Finding(
                "max_agents", f"{plural(count, 'agent')} started, and the cap is {caps.max_agents}", True
            )
    if caps.max_cost_per_session_usd is not None:
        row = connection.execute(
            "SELECT cost_usd, unpriced_calls FROM sessions WHERE id = ?", (session_id,)
        ).fetchone()
        yield from _cost(
            "max_cost_per_session_usd", "cost of the session", row, caps.max_cost_per_session_usd
        )
    if caps.max_cost_per_hour_usd is not None:
        row = connection.execute(
            "SELECT sum(cost_usd), sum(CASE WHEN cost_usd IS NULL AND input_tokens + output_tokens + cache_read_tokens"
            " + cache_write_tokens > 0 THEN 1 ELSE 0 END) FROM model_calls WHERE session_id = ? AND started_at > ?",
            (session_id, now - 3_600.0),
        ).fetchone()
        yield from _cost("max_cost_per_hour_usd", "cost of the last hour", row, caps.max_cost_per_hour_usd)
    if caps.max_identical_calls is not None:
        for name, tool, count in _repeated(connection, session_id, caps.max_identical_calls):
            text = f"{name} made the same {tool} call {count} times in a row, and the cap is {caps.max_identical_calls}"
            yield Finding("max_identical_calls", text, True)
            break


def _cost(cap: str, what: str, row: Any, most: float) -> Iterator[Finding]:
    usd, unpriced = row or (None, 0)
    more = f" or more ({plural(unpriced, 'call')} without a known price)" if unpriced else ""
    if usd is not None and usd >= most:
        yield Finding(cap, f"{what}: ${usd:,.2f}{more}, and the cap is ${most:,.2f}", True)
    elif unpriced:
        known = "unknown" if usd is None else f"${usd:,.2f}{more}"
        yield Finding(cap, f"{what}: {known}; the cap of ${most:,.2f} cannot be checked", False)


def _repeated(connection: Connection, session_id: str, most: int) -> Iterator[tuple[str, str, int]]:
    """Agents that lately made one call of a tool so often, without another one between: name, tool, how often."""
    agents = connection.execute(
        "SELECT id, name FROM agents WHERE session_id = ? AND status IN ('working', 'idle', 'waiting') ORDER BY ordinal",
        (session_id,),
    ).fetchall()
    for agent_id, name in agents:
        # A reply may be a message for each of its calls, and one for its text.
        rows = connection.execute(
            "SELECT content FROM messages WHERE agent_id = ? AND role = 'assistant' ORDER BY seq DESC LIMIT ?",
            (agent_id, 2 * most + 8),
        ).fetchall()
        last, run, longest = "", 0, ("", 0)
        for tool, call in (each for (content,) in reversed(rows) for each in _calls(content)):
            run = run + 1 if call == last else 1
            last = call
            if run > longest[1]:
                longest = tool, run
        if longest[1] >= most:
            yield name, *longest


def _calls(content: str) -> Iterator[tuple[str, str]]:
    """The calls of a message: the tool, and what makes two calls identical."""
    try:
        blocks = json.loads(content)
    except (ValueError, RecursionError):
        return
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and block.get("type") == "tool_use":
            tool = str(block.get("name"))
            yield tool, tool + "\0" + json.dumps(block.get("input"), sort_keys=True)


# --- Events, each once for a session and a cap ------------------------------------------------------------


def said_caps(connection: Connection, session_id: str) -> set[tuple[str, str]]:
    """Which events of the guard a session has: the kind and the cap of each."""
    rows = connection.execute(
        "SELECT kind, data FROM events WHERE session_id = ? AND kind IN ('guard.reached', 'guard.unknown')",
        (session_id,),
    )
    return {(kind, str(json.loads(data).get("cap"))) for kind, data in rows.fetchall()}


def add_finding(connection: Connection, session_id: str, at: float, found: Finding, text: str) -> None:
    """Add the event of a cap. `text` was redacted."""
    _event(
        "guard.reached" if found.is_reached else "guard.unknown",
        connection,
        session_id,
        at,
        cap=found.cap,
        text=text,
    )


def add_denial(connection: Connection, source: str, tool: str, at: float) -> None:
    """Add the event that a hook denied an agent to the session that was imported from `source` (`program:id`)."""
    row = connection.execute("SELECT id FROM sessions WHERE source = ?", (source,)).fetchone()
    if row is not None:
        _event("guard.denied", connection, row[0], at, tool=tool, text=f"the hook denied {tool}")


def _event(kind: str, connection: Connection, session_id: str, at: float, **data: Any) -> None:
    row = connection.execute(
        "UPDATE sessions SET event_seq = event_seq + 1 WHERE id = ? RETURNING event_seq, planner_agent_id",
        (session_id,),
    ).fetchone()
    if row is not None:
        connection.execute(
            "INSERT INTO events (session_id, seq, at, kind, agent_id, data) VALUES (?, ?, ?, ?, ?, ?)",
            (session_id, row[0], at, kind, row[1], encode(data)),
        )
