"""The list of sessions: what it shows, how it is searched, and that one opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import FakeSession
from textual.pilot import Pilot

from watchkeeper.store.driver import Queries
from watchkeeper.store.search.messages import list_sessions, search_messages
from watchkeeper_tui.app import WatchkeeperApp
from watchkeeper_tui.widgets.sessions import SessionsView, tags_of


def add_session(desk: Desk, session_id: str, goal: str, **values: object) -> FakeSession:
    session = FakeSession(
        desk.session.connection, session_id, goal=goal, planner_agent_id=f"{session_id}-p", **values
    )
    session.agent(f"{session_id}-p", "planner", parent_agent_id=None, role="planner")
    return session


def left_at(pilot: Pilot[int]) -> tuple[str, ...]:
    assert isinstance(pilot.app, WatchkeeperApp)
    return pilot.app.left_at


@pytest.mark.parametrize("screen", ["live", "sessions"])
@pytest.mark.parametrize("name", ["older234", "old"])
async def test_autosave_load_opens_the_named_session_and_resumes_it(desk, screen, name):
    add_session(desk, "older234", "nightly audit", status="paused").task("t-audit", "Audit the books")
    desk.host_pid = None
    async with desk.shown("migrate billing", screen=screen) as pilot:
        await pilot.press("colon", "ctrl+u", *f"/autosave_load {name}", "enter")
        await until(pilot, lambda: desk.control.started == [("older234", True, None)])
        assert "t-audit" in text_of(pilot)


async def test_autosave_load_of_an_unknown_session_says_so_and_resumes_nothing(desk: Desk) -> None:
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("colon", "ctrl+u", *"/autosave_load nosuch", "enter")
        await shows(pilot, "no session 'nosuch'", "explorer-1")
        assert desk.control.started == desk.session.commands() == []


async def test_every_session_is_listed_with_its_state_and_figures_in_the_order_of_one_key(desk: Desk) -> None:
    add_session(desk, "older234", "nightly audit", status="paused", status_reason="budget reached: usd", cost_usd=22.4,
                last_active=desk.time - 90_000)  # fmt: skip
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await shows(pilot, "yesterday", " paused", "migrate billing", "live (pid 991)", "$4.82")
        await pilot.press("j")
        await shows(pilot, "budget reached: usd", without="pid 991")  # the whole reason of the selected one
        view = pilot.app.screen.query_one(SessionsView)
        assert [view.word(row) for row in view.rows] == ["live", "paused"]
        await pilot.press("o", "o")
        await shows(pilot, "cost ↓")
        await until(
            pilot, lambda: text_of(pilot).index("nightly audit") < text_of(pilot).index("migrate billing")
        )


async def test_own_live_runs_come_first_unless_another_order_is_chosen(desk: Desk) -> None:
    add_session(desk, "newer234", "a later run", status="done", last_active=desk.time + 60)
    add_session(
        desk, "theirs23", "their session", origin="codex", status="running", last_active=desk.time + 90
    )
    async with desk.shown("their session", screen="sessions") as pilot:
        names = ["migrate billing", "their session", "a later run"]
        await until(pilot, lambda: sorted(names, key=text_of(pilot).index) == names)
        await pilot.press("o")
        await shows(pilot, "created ↓")


async def test_the_list_keeps_its_order_groups_and_filters_for_the_next_time(
    desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"hinted": True}))
    add_session(desk, "older234", "nightly audit", status="paused", last_active=desk.time - 90_000)
    add_session(desk, "newer234", "weekly audit", status="done", last_active=desk.time - 90_000)
    async with desk.shown("nightly audit", screen="sessions", layout_path=path) as pilot:
        await pilot.press("o", "o", "b", "slash", *"state:paused nightly", "enter")
        await shows(pilot, "[state:paused ×]", "[nightly ×]", without="weekly audit")
    async with desk.shown("nightly audit", screen="sessions", layout_path=path) as pilot:
        await shows(pilot, "cost ↓", "yesterday", "[state:paused ×]", without=("weekly audit", "[nightly"))
        await pilot.press("slash", "ctrl+u", *"state:cancelled", "enter")
        await shows(pilot, "no session matches the filter state:cancelled; backspace removes it")
        await pilot.press("backspace")
        await shows(pilot, "weekly audit", "nightly audit")
    kept = json.loads(path.read_text())
    assert [kept[f"sessions_{name}"] for name in ("order", "group", "filter")] == ["cost", "day", ""]


async def test_a_filter_of_another_screen_and_deleted_sessions_are_not_kept(
    desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"hinted": True, "sessions_filter": "state:live"}))
    add_session(desk, "older234", "nightly audit", status="paused")
    async with desk.shown("explorer-1", layout_path=path) as pilot:
        await pilot.press("s")
        await shows(pilot, "[state:live ×]", without="nightly audit")
        await pilot.press("colon", "ctrl+u", *"sessions state:paused", "enter")
        await shows(pilot, "[state:paused ×]", "nightly audit")
        await pilot.press("escape")
        await shows(pilot, "[state:live ×]", without="nightly audit")
        await pilot.press("slash", "ctrl+u", *"state:deleted", "enter")
        await shows(pilot, "[state:deleted ×]")
    assert json.loads(path.read_text())["sessions_filter"] == ""


async def test_what_is_left_is_remembered_with_the_way_to_it(desk: Desk) -> None:
    async with desk.shown("explorer-1", row="task:t-core") as pilot:
        await pilot.press("3", "s")
        await shows(pilot, "live (pid 991)")
        await pilot.press("q")
        assert left_at(pilot) == ("sessions",)
    async with desk.shown("explorer-1", row="task:t-core") as pilot:
        await pilot.press("3", "q", "l")
        session, agent, tab = left_at(pilot)
        assert session.startswith("migrate billing")
        assert agent.startswith("agent explorer-1")
        assert tab


async def test_enter_opens_the_selected_session_and_esc_goes_back_to_it(desk: Desk) -> None:
    other = add_session(desk, "older234", "nightly audit", status="done", last_active=desk.time - 90_000)
    other.task("t-audit", "Audit the books")
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("s")
        await shows(pilot, "nightly audit")
        await pilot.press("j", "enter")
        await shows(pilot, "t-audit")
        assert "explorer-1" not in text_of(pilot)
        await pilot.press("s")
        await shows(pilot, "nightly audit")
        await pilot.press("escape")
        await shows(pilot, "t-audit")


async def test_a_search_finds_goals_facts_and_messages_as_one_types_and_says_where_it_finds_nothing(desk):
    other = add_session(desk, "older234", "nightly audit")
    other.fact(None, "the ledger is in Zurich")
    other.message("older234-p", "user", "the ledger for Zürich is in the blue safe")
    async with desk.shown("nightly audit", "migrate billing", screen="sessions") as pilot:
        await pilot.press("slash", *"zuri")
        await shows(pilot, "nightly audit", without="migrate billing")
        await pilot.press("escape")
        await shows(pilot, "migrate billing")
        await pilot.press("slash", *"migrate", "enter")
        await shows(pilot, without="nightly audit")
        await pilot.press("slash", "ctrl+u", *"zürich", "enter")
        await shows(pilot, "found in planner #1", "blue safe", without="migrate billing")
        await pilot.press("slash", "ctrl+u", *"zebra")
        await shows(pilot, "no matching sessions")
        await pilot.press("ctrl+u", *'"%_*(', "enter")
        await shows(pilot, "no matches")
        for search in ("state:bogus", "cost>abc"):
            pilot.app.screen.reload(search)  # type: ignore[attr-defined]
            await shows(pilot, f"! {search}:", without="NOT UPDATED")


async def test_a_database_that_goes_away_is_said_and_what_was_read_stays(desk: Desk, database: Path) -> None:
    async with desk.shown("explorer-1") as pilot:
        desk.session.connection.execute("DELETE FROM sessions")
        desk.feed.wake()
        await shows(pilot, "no longer in the database", "explorer-1")


async def test_a_damaged_database_is_one_clear_line(desk: Desk, database: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"not a database at all" * 100)
    desk.path = broken
    async with desk.shown() as pilot:
        await shows(pilot, "damaged, or not a SQLite database")


async def test_as_one_types_the_newest_comes_first_and_on_enter_a_name_and_then_the_best_match(desk):
    newer = add_session(desk, "newer234", "one word of it", status="done", last_active=desk.time - 100)
    newer.message("newer234-p", "user", "ledger " + "and something else entirely " * 60)
    older = add_session(desk, "older234", "all of it", status="done", last_active=desk.time - 90_000)
    for _ in range(3):
        older.message("older234-p", "user", "ledger ledger ledger")
    add_session(
        desk, "named234", "audit", status="done", last_active=desk.time - 99_000, title="The Ledger of May"
    )

    def listed() -> list[str]:
        return [
            each
            for line in text_of(pilot).splitlines()
            for each in line.split()
            if each.endswith("r234") or each == "named234"
        ]

    async with desk.shown("all of it", screen="sessions") as pilot:
        await pilot.press("slash", *"ledger")
        newest = ["newer234", "older234", "named234"]
        await until(pilot, lambda: "Sessions  3" in text_of(pilot) and listed() == newest)
        await pilot.press("enter")
        await until(
            pilot, lambda: "best match ↓" in text_of(pilot) and listed() == ["named234", *newest[1::-1]]
        )
        await shows(pilot, "│▌✓ named234")
        await pilot.press("o")  # back to the order of the list
        await until(pilot, lambda: "last active ↓" in text_of(pilot) and listed() == newest)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("state:paused", ["older234"]), ("cost>10", ["older234"]), ("cost<5 model:survey", ["abcd2345"]),
        ("compacted", ["abcd2345"]), ("tag:nightly", ["older234"]), ("user:ann", ["older234"]),
        ("since:2026-09-21", ["abcd2345"]), ("before:2026-09-21 audit", ["older234"]),
    ],
)  # fmt: skip
def test_filters_narrow_the_list(desk: Desk, search: str, found: list[str]) -> None:
    add_session(desk, "older234", "nightly audit", status="paused", cost_usd=22.4, tags='["nightly"]', model="x/opus", user_id="ann",
                last_active=desk.time - 400_000)  # fmt: skip
    assert [each.id for each in list_sessions(Queries(desk.session.connection), search)] == found


def test_a_search_of_messages_stops_when_its_time_is_over(desk: Desk) -> None:
    desk.session.connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) INSERT INTO"
        " messages (agent_id, seq, role, content, tokens, total_tokens, created_at)"
        " SELECT 'bulk', i, 'user', printf('\"%0200d\"', i), 1, i, 0 FROM n"
    )
    ticks = iter(range(10**9))
    hits, whole = search_messages(
        desk.session.connection, ("nowhere",), seconds=3, monotonic=lambda: float(next(ticks))
    )
    assert hits == {}
    assert not whole
    assert search_messages(desk.session.connection, ("nowhere",), seconds=60)[1]


async def test_a_search_selects_the_first_that_it_finds(desk: Desk) -> None:
    for number in range(6):
        add_session(
            desk, f"many{number:04}", f"audit {number}", status="done", last_active=desk.time - 1000 - number
        )
    async with desk.shown("audit 5", screen="sessions") as pilot:
        await pilot.press("G")
        await shows(pilot, "│▌✓ many0005")
        await pilot.press("slash", *"audit", "enter")
        await shows(pilot, "│▌✓ many0000")


async def test_sessions_beyond_the_first_thousand_are_read_when_they_are_reached(desk, monkeypatch):
    monkeypatch.setattr("watchkeeper_tui.screens.sessions.SESSIONS_AT_ONCE", 150)
    for number in range(400):
        add_session(
            desk, f"many{number:04}", f"audit {number}", status="done", last_active=desk.time - 1000 - number
        )
    async with desk.shown("Sessions  150+", screen="sessions") as pilot:
        await pilot.press("G")
        await shows(pilot, "Sessions  300+", "audit 148")
        await pilot.press("G")
        await shows(pilot, "Sessions  401 ")
        await pilot.press("G")
        await shows(pilot, "audit 399")


def test_tags_are_shown_as_they_were_given(desk: Desk) -> None:
    row = add_session(desk, "tagged23", "g", tags=json.dumps(["漢字", "a,b", 'say "so"', "\x1b[2Jx"]))
    listed = next(
        line for line in list_sessions(Queries(desk.session.connection), "", 10) if line.id == row.id
    )
    assert tags_of(listed) == ("漢字", "a,b", 'say "so"', "·x")
