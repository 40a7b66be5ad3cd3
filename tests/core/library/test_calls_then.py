"""Which calls stood at a moment, where two passes over one context overlap."""

from __future__ import annotations

import json
from pathlib import Path

from watchkeeper.store import database
from watchkeeper.store.history import calls_at, moment_at


def test_a_pass_that_began_after_a_call_ended_does_not_tell_of_it(tmp_path: Path) -> None:
    connection = database.open_writable(tmp_path / "w.db")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO sessions (id, user_id, goal, workspace, model, status, created_at, last_active)"
        " VALUES ('s', 'ada', 'g', '/w', 'm', 'running', 0, 0)"
    )
    told = [
        ("agent.created", 0.0, None), ("compaction.started", 10.0, 1), ("compaction.started", 12.5, 2),
        ("compaction.prepared", 13.0, 2), ("compaction.prepared", 15.0, 1), ("compaction.applied", 16.0, 1),
    ]  # fmt: skip
    for seq, (kind, at, number) in enumerate(told, 1):
        data = json.dumps({"compaction": number} if number else {"name": "a", "role": "explorer"})
        connection.execute("INSERT INTO events VALUES ('s', ?, ?, ?, 'a', NULL, ?)", (seq, at, kind, data))
    connection.execute(
        "INSERT INTO model_calls (id, session_id, agent_id, turn, purpose, model, status, started_at,"
        " latency_seconds)"
        " VALUES (1, 's', 'a', 3, 'observer', 'm', 'done', 10.5, 1.5)"
    )
    connection.execute("COMMIT")
    stood = {
        seq: calls_at(connection, "s", moment_at(connection, "s", seq)) for seq in range(1, len(told) + 1)
    }
    connection.close()
    assert [seq for seq, calls in stood.items() if 1 in calls] == [5, 6]
