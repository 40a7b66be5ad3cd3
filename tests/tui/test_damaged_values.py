"""Damage inside a row: only the part that cannot be read is missing, one line says so, and the rest is read
as ever."""

from __future__ import annotations

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import insert
from tests.tui.test_compaction_screen import compacted
from tests.tui.told import told_session
from textual.pilot import Pilot

from watchkeeper_tui.screens.compaction import CompactionScreen
from watchkeeper_tui.screens.replay import ReplayScreen
from watchkeeper_tui.widgets.agent import PAGES

WIDE = (120, 44)
VALUES = ["{broken", "", "5", '"words"', "null", '[{"a": 1}, "x", null, 3]', '{"a": {"b": [1]}}', "[1e999]"]
COLUMNS = [
    "sessions.settings", "sessions.tags", "tasks.inputs_ref", "tasks.expected_outputs", "tasks.artifact_refs", "agents.composition",
    "observations.citations", "observations.replaces", "views.observations", "views.elided", "compactions.prepared",
    "facts.sources", "inbox.payload", "events.data", "commands.payload", "plan_revisions.task_queue",
    "plan_revisions.plan_graph_snapshot", "messages.content",
]  # fmt: skip


def damage(desk: Desk, column: str, value: str) -> None:
    table, name = column.split(".")
    desk.session.connection.execute("DROP TRIGGER IF EXISTS messages_are_immutable")
    desk.session.connection.execute(f"UPDATE {table} SET {name} = ?", (value,))


def filled(desk: Desk) -> None:
    """A row in each of those tables."""
    session = desk.session
    compacted(session)
    insert(session.connection, "inbox", session_id=session.id, agent_id="explorer1", kind="message", payload='{"text": "hello"}',
           created_at=session.now)  # fmt: skip
    desk.control.submit(session.id, "pause", agent_id="explorer2", task_id=None, payload={})
    told_session(desk)


def assert_read(pilot: Pilot[int]) -> None:
    shown = text_of(pilot)
    assert "dashboard error" not in shown, shown
    assert "NOT UPDATED" not in shown, shown


@pytest.mark.parametrize("value", VALUES)
async def test_damaged_values_take_nothing_else_along(desk: Desk, value: str) -> None:
    filled(desk)
    for column in COLUMNS:
        damage(desk, column, value)
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "3 explorer-1")
        await pilot.press("3")
        for _ in PAGES:
            await pilot.press("right")
            await shows(pilot, "explorer-1", without="loading …")
            assert_read(pilot)
        app.open_compaction(5)
        await until(pilot, lambda: isinstance(app.screen, CompactionScreen) and app.screen.sides is not None)
        assert_read(pilot)
        await pilot.press("escape")
        app.open_replay("told2345")
        await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.shown_position == 1)
        if value in ("{broken", ""):
            await shows(pilot, "14 events unreadable")
        await pilot.press("end")
        await until(pilot, lambda: app.screen.shown_position == app.screen.playback.position > 1)  # type: ignore[attr-defined]
        assert_read(pilot)
        await pilot.press("escape", "s")
        await shows(pilot, "abcd2345", "told2345", "audit")


@pytest.mark.parametrize(
    ("column", "words"),
    [("views.elided", "view 2"), ("views.observations", "view 2"), ("observations.citations", "citations")],
)
async def test_what_cannot_be_read_of_a_context_is_said_in_one_line(desk, column, words):
    filled(desk)
    damage(desk, column, "{broken")
    async with desk.shown("3 explorer-1", without="reading", size=WIDE) as pilot:
        await pilot.press("3", "left")
        await shows(pilot, "damaged", words)
        assert text_of(pilot).count("damaged") == 1
