"""What all sessions used, by period: a call counts in the period in which it began, on both databases."""

from __future__ import annotations

import random
import time

from tests.support.places import workspace_in

from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store import database
from watchkeeper.store.statistics import usage

ON_BOTH = True
"""See `conftest`."""

DAY = 86_400.0
BEGINS = 1_750_000_000 // DAY * DAY


def test_a_call_counts_in_the_day_in_which_it_began(path, tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    session = create_session(path, NewSession("goal", workspace_in(tmp_path), "test/model"))
    chance = random.Random(7)
    times = [BEGINS + day * DAY + chance.random() * DAY for day in range(5) for _ in range(8)]
    times += [BEGINS + day * DAY + edge for day in range(5) for edge in (0.0, DAY / 2, DAY - 0.01)]
    connection = database.open_writable(path)
    try:
        planner = connection.execute(
            "SELECT planner_agent_id FROM sessions WHERE id = ?", (session,)
        ).fetchone()[0]
        connection.execute("BEGIN")
        for at in times:
            connection.execute(
                "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, input_tokens, output_tokens,"
                " price_status, started_at) VALUES (?, ?, 1, 'turn', 'test/model', 'done', 1, 0, 'unknown', ?)",
                (session, planner or "a", at),
            )
        connection.execute("UPDATE sessions SET last_active = ? WHERE id = ?", (BEGINS + 6 * DAY, session))
        connection.execute("COMMIT")
        rows, total = usage(connection, "day")
    finally:
        connection.close()
        monkeypatch.undo()
        time.tzset()
    assert [row.input_tokens for row in rows] == [11] * 5
    assert total.input_tokens == len(times)
