"""The list of sessions: what it shows, how it is searched, and that one opens."""

from __future__ import annotations

from pathlib import Path

from tests.tui.conftest import Desk, text_of, until
from tests.tui.fake_store import FakeSession

WIDE = (120, 40)


def add_session(desk: Desk, session_id: str, goal: str, **values: object) -> FakeSession:
    session = FakeSession(desk.session.connection, session_id, goal=goal, planner_agent_id=f"{session_id}-p", **values)
    session.agent(f"{session_id}-p", "planner", parent_agent_id=None, role="planner")
    return session


async def test_every_session_is_listed_with_its_state_and_figures(desk: Desk) -> None:
    add_session(
        desk, "older234", "nightly audit", status="paused", status_reason="budget reached: usd", last_active=desk.time - 90_000
    )
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "nightly audit" in text_of(pilot))
        shown = text_of(pilot)
        assert "yesterday" in shown
        assert "budget reached" in shown
        assert "migrate billing" in shown
        assert "live (pid 991)" in shown
        assert "$4.82" in shown


async def test_enter_opens_the_selected_session_and_esc_goes_back_to_it(desk: Desk) -> None:
    other = add_session(desk, "older234", "nightly audit", status="done", last_active=desk.time - 90_000)
    other.task("t-audit", "Audit the books")
    async with desk.app().run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "Explore core" in text_of(pilot))
        await pilot.press("s")
        await until(pilot, lambda: "nightly audit" in text_of(pilot))
        await pilot.press("j", "enter")
        await until(pilot, lambda: "Audit the books" in text_of(pilot))
        assert "Explore core" not in text_of(pilot)
        await pilot.press("s")
        await until(pilot, lambda: "nightly audit" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "Audit the books" in text_of(pilot))


async def test_search_finds_goals_and_facts_as_one_types(desk: Desk) -> None:
    add_session(desk, "older234", "nightly audit").fact(None, "the ledger is in Zurich")
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "nightly audit" in text_of(pilot) and "migrate billing" in text_of(pilot))
        await pilot.press("slash", *"zuri")
        await until(pilot, lambda: "migrate billing" not in text_of(pilot) and "nightly audit" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "migrate billing" in text_of(pilot))
        await pilot.press("slash", *"migrate", "enter")
        await until(pilot, lambda: "nightly audit" not in text_of(pilot))


async def test_a_search_for_odd_characters_is_no_error(desk: Desk) -> None:
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "migrate billing" in text_of(pilot))
        await pilot.press("slash", *'"%_*(', "enter")
        await until(pilot, lambda: "nothing found" in text_of(pilot))


async def test_a_database_that_goes_away_is_said_and_what_was_read_stays(desk: Desk, database: Path) -> None:
    async with desk.app().run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "Explore core" in text_of(pilot))
        desk.session.connection.execute("DELETE FROM sessions")
        desk.feed.wake()
        await until(pilot, lambda: "no longer in the database" in text_of(pilot))
        assert "Explore core" in text_of(pilot)


async def test_a_damaged_database_is_one_clear_line(desk: Desk, database: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"not a database at all" * 100)
    desk.path = broken
    async with desk.app().run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "damaged or no SQLite database" in text_of(pilot))
