"""The fleet: several sessions at once, a row each, kept up to date at the price of what changed."""

from __future__ import annotations

import time

import pytest
from tests.tui.conftest import NOW, Desk, shows, text_of, until
from tests.tui.fake_store import HOSTILE, FakeSession, create
from tests.tui.pictures import assert_agreed

from watchkeeper.store.driver import plain
from watchkeeper.store.snapshot import FleetReader, FleetRow, accept_any_text
from watchkeeper_tui.screens.fleet import Fleet, FleetQuestion, FleetScreen
from watchkeeper_tui.screens.live import LiveScreen


@pytest.fixture
def fleet(desk: Desk) -> Desk:
    """Five sessions: one works, one asks, one spent its budget, one of Claude Code ended, one is of last week."""
    run = desk.session
    run.call("explorer1", started_at=NOW - 20, cost_usd=0.31)
    asks = FakeSession(run.connection, "asks2345", goal="upgrade the ledger to version 4", cost_usd=0.42)
    asks.agent("coder001", "coder-1", status="waiting")
    asks.agent("coder002", "coder-2")
    asks.task("a1", "Read the changes", agent="coder002", status="done")
    asks.task("a2", "Move the tables", agent="coder001")
    asks.approval("coder001", "alembic upgrade head --sql | tee /srv/ledger/upgrade.sql", "appr-asks")
    spent = FakeSession(
        run.connection, "spent234", goal="nightly audit", status="paused", status_reason="budget of 5 usd reached", cost_usd=5.01
    )  # fmt: skip
    run.connection.execute(
        "INSERT INTO budgets (session_id, kind, amount, reached_at, created_at) VALUES (?, 'usd', 5, ?, ?)",
        (spent.id, NOW - 900, NOW - 4000),
    )
    claude = FakeSession(
        run.connection, "claude23", goal=f"fix the flaky test {HOSTILE}", origin="claude-code", status="done",
        model="anthropic/claude-opus-4-6", last_active=NOW - 7200, cost_usd=1.9,
    )  # fmt: skip
    claude.agent("main0001", "main", status="done")
    FakeSession(run.connection, "old23456", goal="a week ago", status="done", last_active=NOW - 7 * 86_400)
    return desk


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_fleet_looks_as_agreed(fleet: Desk, size: tuple[int, int]) -> None:
    async with fleet.shown("? 2 need you", size=size, screen="fleet") as pilot:
        await pilot.press("e")
        await assert_agreed(pilot, "fleet")


async def test_a_state_is_one_word_in_the_fleet(fleet: Desk) -> None:
    connection = fleet.session.connection
    connection.execute("UPDATE sessions SET last_active = ? WHERE id = ?", (NOW - 4000, fleet.session.id))
    twice = FakeSession(connection, "twice234", goal="two questions")
    for number in range(2):
        twice.agent(f"coder00{number + 3}", "coder-3", status="waiting")
        twice.approval(f"coder00{number + 3}", "ls", f"appr-{number}")
    async with fleet.shown(
        "silent 1:06:40", "2 questions: coder-3: bash", size=(160, 40), screen="fleet"
    ) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, FleetScreen)
        words = {row.id: screen.view.condition(row).word for row in screen.view.rows}
        assert (words[fleet.session.id], words["twice234"]) == ("silent", "question")
        cells = screen.view.columns()[0].cells
        assert all(word.isalpha() and len(word) + 2 <= cells for word in words.values())


async def test_rows_follow_the_database_e_finds_who_asks_and_enter_opens(fleet: Desk) -> None:
    async with fleet.shown("explorer-1") as pilot:
        await pilot.press("S")
        await shows(pilot, "? 2 need you")
        shown = text_of(pilot)
        assert "a week ago" not in shown
        assert "\x1b" not in shown
        assert "Claude Code" in shown
        for expected in ("asks2345", "spent234", "asks2345"):
            await pilot.press("e")
            screen = pilot.app.screen
            assert isinstance(screen, FleetScreen)
            assert screen.view.selected is not None
            assert screen.view.selected.id == expected
        session = FakeSession(fleet.session.connection, "fresh234", goal="a run that was started just now")
        session.event("session.created")
        fleet.feed.wake()
        await shows(pilot, "fresh234")
        fleet.session.connection.execute("UPDATE approvals SET status = 'approved' WHERE id = 'appr-asks'")
        fleet.session.connection.execute("UPDATE sessions SET event_seq = 9 WHERE id = 'asks2345'")
        fleet.feed.wake()
        await shows(pilot, "? 1 needs you")
        await pilot.press("e", "enter")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, LiveScreen) and "nightly audit" in text_of(pilot)
        )
        fleet.host_pid = None
        await pilot.press("S")
        await shows(pilot, "† stopped")


async def test_a_session_that_a_usage_limit_stops_says_so_with_its_end(fleet: Desk) -> None:
    limited = FakeSession(fleet.session.connection, "park2345", goal="port the parser", status="paused")
    limited.agent("parked01", "coder-9", status="parked")
    fleet.session.connection.execute(
        "UPDATE agents SET parked_until = ?, status_reason = ? WHERE id = 'parked01'",
        (fleet.time + 4_323, "You've hit your weekly limit"),
    )
    FakeSession(
        fleet.session.connection,
        "paus2345",
        goal="wait",
        status="paused",
        status_reason="5-hour limit reached",
    )
    async with fleet.shown("port the parser", size=(160, 40), screen="fleet") as pilot:
        shown = text_of(pilot)
        assert "◷ limit" in shown
        assert "weekly limit until" in shown
        assert "5-hour limit, reset time unknown" in shown


def test_a_reading_asks_again_only_about_sessions_that_changed(fleet: Desk) -> None:
    """What is read equals a first reading at any time, and what did not change is the same object."""
    reader = FleetReader()
    connection = accept_any_text(fleet.session.connection)
    before = {row.id: row for row in reader.read(connection, NOW)}
    assert reader.read(connection, NOW) == tuple(before.values())
    assert set(before) >= {"abcd2345", "claude23"}
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    connection.execute("UPDATE tasks SET status = 'done' WHERE id = 'a2'")
    connection.execute(
        "UPDATE sessions SET event_seq = event_seq + 1, last_active = ? WHERE id = 'asks2345'", (NOW,)
    )
    after = {row.id: row for row in reader.read(connection, NOW)}
    connection.set_trace_callback(None)
    assert [one for one in after if after[one] is not before[one]] == ["asks2345"]
    assert after["asks2345"].tasks_done == 2
    # What tells of a change; of the changed one its row, two counts, questions and details; the rates of it and
    # of the one that spends.
    assert len([each for each in statements if each.startswith("SELECT")]) == 8
    for moment in (NOW + 30, NOW + 90):
        assert reader.read(connection, moment) == FleetReader().read(connection, moment)
    assert all(row.cost_per_minute == 0 for row in reader.read(connection, NOW + 90))


def test_chosen_sessions_are_read_whatever_their_age(fleet: Desk) -> None:
    rows: tuple[FleetRow, ...] = FleetReader(["old23456", "asks2345"]).read(fleet.session.connection, NOW)
    assert {row.id for row in rows} == {"old23456", "asks2345"}


def test_five_hundred_sessions_cost_one_query_while_nothing_changes(tmp_path_factory):
    connection = create(tmp_path_factory.mktemp("many") / "watchkeeper.db")
    for number in range(500):
        FakeSession(connection, f"s{number:07}")
    reader = FleetReader()
    first = reader.read(connection, NOW)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    assert reader.read(connection, NOW) is first
    assert len(statements) == 1


def test_the_first_reading_is_told_also_where_there_is_no_session(tmp_path_factory):
    question = FleetQuestion((), lambda _: {}, lambda: NOW)
    connection = create(tmp_path_factory.mktemp("none") / "watchkeeper.db")
    assert question(connection) == Fleet()
    assert question(connection) is None


async def test_w_lists_workers_with_their_sessions_and_a_queued_session_is_not_called_stopped(fleet):
    connection = fleet.session.connection
    for name, machine, status, seen in (
        ("w-1", f"rack-1 {plain(HOSTILE)}", "running", 1),
        ("w-2", "rack-2", "draining", 900),
    ):
        connection.execute(
            "INSERT INTO workers (id, host_name, pid, labels, slots, status, started_at, seen_at)"
            " VALUES (?, ?, 4711, ?, 4, ?, ?, ?)",
            (name, machine, '["gpu", "host:rack"]', status, NOW - 4000, time.time() - seen),
        )
    connection.execute(
        "UPDATE sessions SET queued_at = 1, needs = ? WHERE id = 'asks2345'",
        ('{"labels": ["gpu"], "placed": {"worker": "w-1", "machine": "rack-1", "workspace": "/srv"}}',),
    )
    connection.execute("UPDATE approvals SET status = 'approved'")
    fleet.host_pid = None
    async with fleet.shown("explorer-1", size=(120, 30)) as pilot:
        await pilot.press("S")
        await shows(pilot, "◷ queued")
        await pilot.press("w")
        await shows(pilot, "† gone")
        shown = text_of(pilot)
        assert "● running" in shown
        assert "1/4" in shown
        assert "asks2345" in shown
        assert "\x1b" not in shown
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
