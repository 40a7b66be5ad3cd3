"""Sessions that have really run (a scripted model, in this process), and looking at all of their rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench

from watchkeeper.store import database
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.schema import BY_NAME, NUMBERS, NUMBERS_IN_EVENTS, TABLES, owned

OF_SESSION = tuple(table.name for table in owned("session"))
OF_AGENT = tuple(table.name for table in owned("agent"))
NOT_FORKED = tuple(table.name for table in TABLES if not table.forked)
"""What a host holds while it works, and what was read of logs: a fork has none of it."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Bench(tmp_path)


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    """A file without sessions, open for writing."""
    connection = database.open_writable(tmp_path / "watchkeeper.db")
    yield connection
    connection.close()


def add_session(connection: Connection, session_id: str, **values: Any) -> str:
    """A finished session of one agent and one message."""
    row = {
        "id": session_id, "user_id": "ada", "goal": f"goal of {session_id}", "workspace": "/w", "model": "m", "status": "done",
        "created_at": 1.0, "last_active": 1.0,
    } | values  # fmt: skip
    put(connection, "sessions", **row)
    put(
        connection, "agents", id=f"{session_id}-a", session_id=session_id, name="planner", role="planner", model="m", status="done",
        created_at=1.0, last_active=1.0, last_seq=1, message_tokens=3,
    )  # fmt: skip
    put(
        connection, "messages", agent_id=f"{session_id}-a", seq=1, role="user", content='"hello there"', tokens=3, total_tokens=3,
        created_at=1.0,
    )  # fmt: skip
    put(connection, "events", session_id=session_id, seq=1, at=1.0, kind="host.started")
    put(
        connection, "facts", session_id=session_id, agent_id=f"{session_id}-a", workspace="/w", scope="session", kind="fact",
        text=f"fact of {session_id}", digest=session_id, created_at=1.0,
    )  # fmt: skip
    return session_id


def put(connection: Connection, table: str, **values: Any) -> int:
    names = ", ".join(values)
    marks = ", ".join("?" * len(values))
    return int(
        connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values())
        ).lastrowid
        or 0
    )


def rows_of(path: Path, session_id: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of a session, by table, oldest first."""
    connection = database.open_readonly(path)
    connection.row_factory = sqlite3.Row
    found: dict[str, list[dict[str, Any]]] = {}
    for table in BY_NAME.values():
        if table.owner:
            where = "id = ?" if table.name == "sessions" else table.of_session
            order = table.in_order.replace("agent_id,", "(SELECT ordinal FROM agents WHERE id = agent_id),")
            order = order.replace("task_id,", "(SELECT position FROM tasks WHERE id = task_id),")
            sql = f"SELECT * FROM {table.name} WHERE {where} ORDER BY {order}"
            found[table.name] = [dict(row) for row in connection.execute(sql, (session_id,))]
    connection.close()
    return found


def without_names(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """The rows with ids by their order of appearance, so that two sessions that are alike are equal."""
    names: dict[str, str] = {}
    for table in ("sessions", "plans", "tasks", "agents", "approvals"):
        for number, row in enumerate(rows[table]):
            names[row["id"]] = f"<{table}-{number}>"
    counted = {
        table: {row["id"]: number for number, row in enumerate(rows[table])}
        for table in ("tool_calls", "model_calls", "compactions", "facts", "commands")
    }
    word = re.compile(
        r"(?<![0-9A-Za-z])("
        + "|".join(map(re.escape, names))
        + r")(?![0-9A-Za-z])|(?<=\\n)("
        + "|".join(names)
        + r")"
    )
    named = {row["digest"] for row in rows["outputs"]}

    def plain(table: str, row: dict[str, Any]) -> str:
        row = dict(row)
        if isinstance(row.get("id"), int):
            row.pop("id")
        for column, other in NUMBERS.items():
            if row.get(column) is not None:
                row[column] = counted[other].get(row[column])
        text = word.sub(lambda match: names[match[0]], repr(row))
        if table == "events":
            for key, other in NUMBERS_IN_EVENTS.items():
                text = re.sub(
                    rf'("{key}":)(\d+)',
                    lambda match, other=other: match[1] + str(counted[other].get(int(match[2]))),
                    text,
                )
        return re.sub(
            r"sha256/([0-9a-f]{64})", lambda match: match[0] if match[1] in named else "sha256/<note>", text
        )

    return {table: [plain(table, row) for row in found] for table, found in rows.items()}


def differing(
    left: dict[str, list[str]], right: dict[str, list[str]], but: Callable[[str], str] = lambda text: text
) -> list[str]:
    """What is not the same on both sides, table by table, for a test's message."""
    told = []
    for table in left:
        a, b = [but(one) for one in left[table]], [but(one) for one in right[table]]
        if a != b:
            told += [f"{table}: {one}\n    {other}" for one, other in zip(a, b, strict=False) if one != other]
            told += [f"{table}: {len(a)} rows on the left, {len(b)} on the right"] if len(a) != len(b) else []
    return told
