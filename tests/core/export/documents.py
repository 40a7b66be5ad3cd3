"""A full session, its document read into another database, and what is compared of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchkeeper.records.messages import Cost, PriceStatus, Usage
from watchkeeper.store import database
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.document import import_export

Export = Callable[..., Any]
Make = Callable[..., Any]


def session_of(connection: Connection) -> str:
    return str(connection.execute("SELECT id FROM sessions").fetchone()[0])


def imported(tmp_path: Path, text: str, into: Path | None = None) -> Connection:
    (tmp_path / "one.json").write_text(text, encoding="utf-8")
    import_export(into or tmp_path / "other.db", tmp_path / "one.json")
    return database.open_writable(into or tmp_path / "other.db")


def everything(connection: Connection) -> dict[str, list[Any]]:
    """Every row of every table, but for artifacts (which have no owner) and the counters of the index of words."""
    tables = [
        row[0]
        for row in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT IN ('artifacts', 'message_index')"
        )
    ]
    return {
        name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables if "_fts" not in name
    }


def full(made: Make) -> tuple[Any, str]:
    """A session with something in most tables; returns it and its first agent."""
    one = made()
    planner = one.agent("planner")
    one.say(planner, "Go", [{"type": "text", "text": "Well \ud800 then 💡"}, {"type": "tool_use", "id": "t1", "name": "read", "input": {}}],
            [{"type": "tool_result", "tool_use_id": "t1", "content": "text"}], "Done.", "More", "Yes")  # fmt: skip
    one.compact(planner, 4, "what was said", (1, 3))
    worker = one.agent("explorer", parent_agent_id=planner)
    one.task("Look", worker, status="done", result="seen")
    one.task("Write", status="pending")
    one.call(planner, Usage(100, 20, 5, 6), Cost(0.5, PriceStatus.EXACT))
    old = one.fact("the sky is green", planner, sources=[f"message://{planner}/1"])
    one.fact("the sky is blue", planner, sources=[f"message://{planner}/4"], replaces=old)
    ref = one.artifact("report", "a report")
    one.artifact("delta", json.dumps({"memory": ref}), "application/json")
    one.done()
    return one, planner


def broken(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(text)
    change(document)
    return json.dumps(document)
