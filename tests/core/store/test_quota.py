"""The newest reading of each usage window is kept, whatever the order; an alert about one is due once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.support.places import workspace_in

from watchkeeper.records.quota import QuotaReading
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store import database
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.quota import due_alerts, load_quotas, note_readings, take_alert
from watchkeeper.store.statistics import burn

ON_BOTH = True
"""See `conftest`."""

NOW = 1_790_000_000.0
RESETS_AT = NOW + 7_200


@pytest.fixture
def connection(path: Any) -> Any:
    opened = database.open_writable(path)
    yield opened
    opened.close()


def reading(used: float, at: float, resets_at: float | None = RESETS_AT, account: str = "a") -> QuotaReading:
    return QuotaReading("anthropic", account, "", 300, used, resets_at, at, "test")


def note(connection: Connection, *readings: QuotaReading) -> None:
    note_readings(Queries(connection), connection.execute, readings)


def taken(connection: Connection, now: float) -> list[float]:
    def changed(sql: str, parameters: Any) -> int:
        return int(connection.execute(sql, parameters).rowcount)

    due = due_alerts(Queries(connection), now)
    assert all(take_alert(changed, each) for each in due)
    assert not any(take_alert(changed, each) for each in due)
    return [each.below_percent for each in due]


def test_the_newest_reading_counts_and_the_pace_is_from_the_first(connection: Connection) -> None:
    readings = [reading(10, NOW - 900), reading(20, NOW - 600), reading(30, NOW - 300), reading(40, NOW)]
    for order in itertools.permutations(readings):
        connection.execute("DELETE FROM quota_readings")
        for each in order:
            note(connection, each)
        (kept,) = load_quotas(connection)
        assert kept.newest == readings[-1], order
        assert (kept.first_percent, kept.first_at) == (10, NOW - 900), order
    connection.execute("DELETE FROM quota_readings")
    note(connection, *reversed(readings))
    assert load_quotas(connection) == (kept,)


def test_a_window_begins_anew_at_its_reset(connection: Connection) -> None:
    note(connection, reading(90, NOW), reading(3, RESETS_AT + 60, RESETS_AT + 18_000))
    note(connection, reading(95, NOW + 60))  # it was before
    (kept,) = load_quotas(connection)
    assert (kept.newest.used_percent, kept.first_percent) == (3, 3)
    assert kept.runs_out_at(RESETS_AT + 60) is None


def test_accounts_are_kept_apart(connection: Connection) -> None:
    note(connection, reading(90, NOW), reading(10, NOW, account=""))
    assert [(each.newest.account, each.newest.used_percent) for each in load_quotas(connection)] == [
        ("", 10),
        ("a", 90),
    ]


def test_an_alert_is_due_once_below_20_and_once_below_5_percent_of_each_window(
    connection: Connection,
) -> None:
    note(connection, reading(80, NOW))
    assert taken(connection, NOW) == []
    note(connection, reading(80.5, NOW + 1))
    assert taken(connection, NOW + 1) == [20]
    note(connection, reading(94, NOW + 2))
    assert taken(connection, NOW + 2) == []
    note(connection, reading(96, NOW + 3))
    assert taken(connection, NOW + 3) == [5]
    note(connection, reading(100, NOW + 4))
    assert taken(connection, NOW + 4) == []
    note(connection, reading(99, RESETS_AT + 60, RESETS_AT + 18_000))
    assert taken(connection, RESETS_AT + 60) == [5]  # at once: the other one would say less
    assert taken(connection, RESETS_AT + 61) == []


def test_nothing_is_due_about_a_window_that_was_reset(connection: Connection) -> None:
    note(connection, reading(99, NOW))
    assert taken(connection, RESETS_AT) == []


def test_the_burn_is_that_of_the_last_hour(path: Any, connection: Connection, tmp_path: Path) -> None:
    session = create_session(path, NewSession("goal", workspace_in(tmp_path), "test/model"))
    for at, cost, tokens in (
        (NOW - 3_601, 9.0, 5),
        (NOW - 3_000, 0.5, 7),
        (NOW - 10, None, 3),
        (NOW + 5, 8.0, 1),
    ):
        connection.execute(
            "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, input_tokens, output_tokens,"
            " cost_usd, price_status, started_at) VALUES (?, 'a', 1, 'turn', 'test/model', 'done', ?, 1, ?, 'exact', ?)",
            (session, tokens, cost, at),
        )
    # A program may tell a call's counts without anything that is activity.
    connection.execute("UPDATE sessions SET last_active = ? WHERE id = ?", (NOW - 7_200, session))
    (found,) = burn(connection, NOW)
    assert (found.session_id, found.model_calls, found.tokens, found.cost_usd, found.unpriced_calls) == (
        session,
        2,
        12,
        0.5,
        1,
    )
    connection.execute("UPDATE model_calls SET cost_usd = NULL")
    assert burn(connection, NOW)[0].cost_usd is None
