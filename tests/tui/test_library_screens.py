"""Keeping the library from the dashboard: every key of the list of sessions, and the screens that it leads
to."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.test_sessions_screen import add_session
from textual.pilot import Pilot

from watchkeeper.store.driver import Queries
from watchkeeper.store.fork import ForkResult
from watchkeeper.store.lease import Lease
from watchkeeper.store.library import delete_session
from watchkeeper_tui.screens.sessions import values_of, with_filter
from watchkeeper_tui.widgets.sessions import at_work, wrapped


def library_of(desk: Desk) -> None:
    """Beside the open session: a finished one, and one that failed."""
    done = add_session(
        desk, "older234", "nightly audit of the ledgers", status="done", status_reason="all is well", tags='["nightly"]',
        last_active=desk.time - 7_200, ended_at=desk.time - 7_200, created_at=desk.time - 9_000, host_pid=None, cost_usd=1.25,
    )  # fmt: skip
    done.event("agent.created", "older234-p", name="planner")
    done.message("older234-p", "user", "where is the ledger for Zürich?")
    done.message(
        "older234-p",
        "assistant",
        [{"type": "text", "text": "The ledger is in the blue safe.\n" + "more\n" * 20}],
    )
    done.event("model.replied", "older234-p", turn=1, tools=[], preview="The ledger is in the blue safe.")
    done.fact("older234-p", "the ledger is blue")
    add_session(
        desk, "third234", "a run that failed", status="failed", last_active=desk.time - 90_000,
        host_pid=None, model="x/opus",
    )  # fmt: skip


def row(desk: Desk, session_id: str, column: str) -> Any:
    return desk.session.connection.execute(
        f"SELECT {column} FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()[0]


@asynccontextmanager
async def library(desk: Desk, words: str = "nightly audit", **options: Any) -> AsyncIterator[Pilot[int]]:
    """The list of these sessions, once these words are on it."""
    library_of(desk)
    async with desk.shown(words, screen="sessions", **options) as pilot:
        yield pilot


async def opened(pilot: Any, words: str = "nightly audit") -> None:
    await shows(pilot, words)


async def test_a_session_is_named_and_all_that_are_marked_are_tagged(desk: Desk) -> None:
    async with library(desk) as pilot:
        await pilot.press("j", "n", *"the audit", "enter")
        await until(pilot, lambda: row(desk, "older234", "title") == "the audit")
        await shows(pilot, "✓ named the audit", "│▌✓ older234", "[nightly] the audit")
        await pilot.press("space", "space", "number_sign", *"keep -nightly", "enter")
        await until(
            pilot, lambda: row(desk, "older234", "tags") == row(desk, "third234", "tags") == '["keep"]'
        )
        await shows(pilot, "✓ 2 sessions tagged")


async def test_a_delete_asks_and_can_be_undone_by_a_key_that_is_shown(desk: Desk) -> None:
    async with library(desk) as pilot:
        await pilot.press("j", "D")
        await shows(pilot, "Delete nightly audit of the ledgers?")
        await pilot.press("enter", "n")
        assert row(desk, "older234", "deleted_at") is None
        await pilot.press("D", "y")
        await shows(pilot, "deleted nightly audit of the ledgers   u to undo", without="older234")
        assert row(desk, "older234", "deleted_at") == desk.time
        await pilot.press("u")
        await until(pilot, lambda: row(desk, "older234", "deleted_at") is None)
        await shows(pilot, "✓ older234", without="u to undo")


async def test_deleted_sessions_are_listed_by_a_filter_and_restored_there(desk: Desk) -> None:
    library_of(desk)
    delete_session(desk.path, "older234", now=desk.time)
    async with desk.shown("a run that failed", screen="sessions") as pilot:
        assert "nightly" not in text_of(pilot)
        await pilot.press("t", "s", "d")
        await shows(pilot, "Deleted sessions", "nightly audit")
        await pilot.press("enter")
        await shows(pilot, "this session is deleted; u restores it")
        await pilot.press("u")
        await until(pilot, lambda: row(desk, "older234", "deleted_at") is None)


async def test_a_live_session_is_not_deleted_renamed_or_forked(desk: Desk) -> None:
    lease = Lease.acquire(desk.path, desk.session.id)
    try:
        async with desk.shown("migrate billing", screen="sessions") as pilot:
            await pilot.press("D")
            await shows(pilot, "is running; open and pause it first")
            await pilot.press("F")
            await shows(pilot, "Fork: migrate billing to cents is running")
            await pilot.press("n", *"x", "enter")
            await shows(pilot, "✗ naming: cannot rename session abcd2345")
    finally:
        lease.release()
    assert (row(desk, "abcd2345", "title"), row(desk, "abcd2345", "deleted_at")) == (None, None)


async def test_a_fork_is_made_from_the_step_that_was_chosen(desk, monkeypatch):
    library_of(desk)
    made: list[Any] = []

    def fork(
        path: Path, session_id: str, *, on_progress: Callable[[int, int], None], **at: Any
    ) -> ForkResult:
        on_progress(1, 2)
        made.append((session_id, at))
        return ForkResult("newone23", session_id, 2, "paused", 1, 2)

    monkeypatch.setattr("watchkeeper_tui.screens.dialogs.fork_session", fork)
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await pilot.press("j", "F")
        await shows(pilot, "from which step?", "turn 1")
        await pilot.press("escape")
        await shows(pilot, without="from which step?")
        await pilot.press("F")
        await shows(pilot, "from which step?", "turn 1")
        await pilot.press("slash", *"turn", "enter", "enter")
        await shows(pilot, "after turn 1 of planner?")
        assert made == []
        await pilot.press("enter")  # nothing is spent or lost by it
        await shows(pilot, "✓ forked at event #2 as newone23")
    assert made == [("older234", {"at_turn": ("older234-p", 1)})]


async def test_the_steps_to_fork_from_are_told_in_words(desk: Desk) -> None:
    other = add_session(desk, "steps234", "count steps", status="paused", host_pid=None)
    other.event("inbox.delivered", items=["task_done", "steer"], titles=["Read the pump log", ""])
    other.event("compaction.applied", tokens_before=4692, tokens_after=3834)
    async with desk.shown("count steps", screen="sessions") as pilot:
        pilot.app.screen.view.select("steps234")  # type: ignore[attr-defined]
        await pilot.press("F")
        await shows(pilot, "4.7k → 3.8k", "✓ Read the pump log done, message from a person")


async def test_a_whole_fork_is_listed_and_a_session_of_another_program_is_not_forked(desk: Desk) -> None:
    library_of(desk)
    execute = desk.session.connection.execute
    execute("UPDATE sessions SET origin = 'claude-code' WHERE id = 'third234'")
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await pilot.press("j", "j", "F")
        await shows(pilot, "c continues it in a new session")
        await pilot.press("k", "F")
        await shows(pilot, "an exact copy")
        await pilot.press("enter", "y")
        await shows(pilot, "✓ forked at event #2", "fork: [nightly] nightly audit")
        forks = execute("SELECT forked_from, status FROM sessions WHERE origin = 'fork'").fetchall()
        assert forks == [("older234", "done")]


async def test_two_marked_sessions_are_compared_side_by_side(desk: Desk) -> None:
    library_of(desk)
    desk.session.fact("explorer1", "the ledger is blue", digest="same")
    desk.session.connection.execute("UPDATE facts SET digest = 'same' WHERE text = 'the ledger is blue'")
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await pilot.press("equals_sign")
        await shows(pilot, "mark two sessions with space")
        await pilot.press("space", "space", "equals_sign")
        await shows(pilot, "Compare abcd2345 with older234")
        shown = text_of(pilot)
        for words in (
            "≠ migrate billing to cents", "nightly audit", "$4.82", "$1.25", "not in this plan",
            "1 shared, 2 on one side",
        ):  # fmt: skip
            assert words in shown
        await pilot.press("exclamation_mark")
        await shows(pilot, "differences only")
        assert "offline/surveyor" not in text_of(pilot)
        await pilot.press("w")
        await shows(pilot, "Compare older234 with abcd2345")
        await pilot.press("escape")
        await opened(pilot)
        screen: Any = pilot.app.screen
        assert len(screen.view.marked) == 2
        await pilot.press("escape")
        assert not screen.view.marked


async def test_a_message_that_was_found_is_opened_in_its_transcript(desk: Desk) -> None:
    async with library(desk) as pilot:
        await pilot.press("slash", *"blue safe", "enter")
        await shows(pilot, "found in planner #2")
        await pilot.press("slash", *["backspace"] * 9, *"ledger")
        await until(
            pilot, lambda: "│▌✓ older234" in text_of(pilot) and "found in planner #2" in text_of(pilot)
        )  # the newest
        await pilot.press("enter")
        await shows(pilot, "best match ↓", "found in planner #1")
        await pilot.press("o")
        await shows(pilot, "found in planner #2")
        await pilot.press("j") if "▌✓ older234" not in text_of(pilot) else None
        await pilot.press("m")
        await shows(pilot, "#2 of 2", "2 of 2 matching messages in this session", "where is the ledger")
        assert "more lines, Enter unfolds" not in text_of(pilot)
        await pilot.press("n")
        await shows(pilot, "#1 of 2", "15 more lines, Enter unfolds")
        await pilot.press("o")
        await until(pilot, lambda: "Plan" in text_of(pilot) and pilot.app.screen is pilot.app.screen_stack[1])


async def test_messages_far_from_the_end_are_reached_and_paged(desk: Desk) -> None:
    session = add_session(desk, "older234", "nightly audit")
    for number in range(1, 401):
        session.message(
            "older234-p",
            "user" if number % 2 else "assistant",
            f"line {number}" + (" needle" if number in (150, 300) else ""),
        )
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await pilot.press("slash", *"needle", "enter")
        await shows(pilot, "found in planner #300")
        await pilot.press("m")
        await shows(pilot, "line 300 needle", "line 299")
        await pilot.press("n")
        await shows(pilot, "line 150 needle")
        await pilot.press("left_square_bracket")
        await shows(pilot, "#89 of 400", "line 89")


async def test_read_only_refuses_every_action(desk: Desk) -> None:
    desk.session.set(last_active=desk.time + 1)
    async with desk.shown("migrate billing", screen="sessions") as pilot:
        await pilot.press("v")
        await shows(pilot, "open read-only", "explorer-1")
        await pilot.press("p")
        await shows(pilot, "the session is open read-only")
        assert desk.control.submitted == 0
        await pilot.press("s")
        await opened(pilot, "migrate billing")
        await pilot.press("enter")
        await shows(pilot, "explorer-1")
        await pilot.press("p")
        await until(pilot, lambda: desk.control.submitted == 1)


async def test_an_export_runs_beside_the_dashboard_and_shows_where_it_is(desk, tmp_path, monkeypatch):
    library_of(desk)
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, sys\narguments = sys.argv[1:]\n"
        "path = arguments[arguments.index('--output') + 1]\nopen(path, 'w').write(json.dumps(arguments))\n"
        "print(json.dumps({'path': path, 'bytes': 77, 'redacted': 2}))\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr("watchkeeper_tui.control.sys.executable", str(stand_in))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "older234.html").write_text("mine")
    async with desk.shown("nightly audit", screen="sessions") as pilot:
        await pilot.press("j", "x", "h")
        await shows(pilot, "older234-2.html  77 bytes, 2 secrets removed")
    assert (tmp_path / "older234.html").read_text() == "mine"
    arguments = json.loads((tmp_path / "older234-2.html").read_text())
    assert arguments[:5] == ["-P", "-m", "watchkeeper", "export", "older234"]
    assert arguments[arguments.index("--db") + 1] == str(desk.path)


async def test_an_export_that_fails_says_why(desk, tmp_path, monkeypatch):
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\necho 'wk: the disk is full' >&2\nexit 2\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr("watchkeeper_tui.control.sys.executable", str(stand_in))
    async with desk.shown("migrate billing", screen="sessions") as pilot:
        await pilot.press("x", "m")
        await shows(pilot, "✗ export failed: the disk is full")


async def test_a_filter_by_key_is_the_search_that_could_be_typed(desk: Desk) -> None:
    async with library(desk) as pilot:
        await pilot.press("t", "s", "f")
        await shows(pilot, "/state:failed", without="nightly audit")
        await pilot.press("t", "s", "o")
        await shows(pilot, "/state:done", "nightly audit")
        await pilot.press("t", "g")
        await shows(pilot, "1 nightly")
        await pilot.press("1")
        await shows(pilot, "/state:done tag:nightly")
        await pilot.press("t", "0")
        await shows(pilot, "a run that failed", without="state:")


def test_a_filter_takes_the_place_of_another_of_its_kind() -> None:
    assert with_filter("ledger state:done cost>1", "state", "state:failed") == "ledger cost>1 state:failed"
    assert with_filter("cost>1 cost<9 x", "cost", "cost>10") == "x cost>10"
    assert with_filter("since:2026-01-01 compacted", "date", "") == "compacted"


def test_an_excerpt_is_wrapped_between_words() -> None:
    rows = wrapped([("one two ", "text"), ("three", "match"), (" four five", "text")], 9)
    assert ["".join(text for text, _ in row) for row in rows] == ["one two ", "three", "four five"]


def test_filter_values_are_the_most_common_first_and_can_be_typed(desk: Desk) -> None:
    library_of(desk)
    from watchkeeper.store.search.messages import list_sessions

    add_session(desk, "fourth23", "more", workspace="/srv/with space")
    rows = list_sessions(Queries(desk.session.connection))
    assert values_of(rows, "model") == ["offline/surveyor", "x/opus"]
    assert values_of(rows, "workspace") == ["/srv/billing"]


async def test_the_selected_session_is_previewed_and_sessions_are_grouped(desk: Desk) -> None:
    library_of(desk)
    desk.session.connection.execute("UPDATE sessions SET workspace = '/srv/ledger' WHERE id = 'older234'")
    async with desk.shown("nightly audit", size=(160, 40), screen="sessions") as pilot:
        await pilot.press("j")
        await shows(pilot, "Last message  The ledger is in the blue safe.", "$1.25")
        await pilot.press("k")
        await shows(pilot, "tasks done", "agents over time")
        await pilot.press("b")
        await shows(pilot, "today 2", "yesterday 1")
        await pilot.press("b")
        await shows(pilot, "ledger 1 $1.25", "billing 2")
        await pilot.press("b")
        await shows(pilot, without="ledger 1 $1.25")


async def test_no_task_of_a_stopped_run_is_previewed_as_running(desk: Desk) -> None:
    library_of(desk)
    desk.host_pid = None
    async with desk.shown("tasks done", size=(160, 40), screen="sessions") as pilot:
        (plan,) = (line for line in text_of(pilot).splitlines() if "tasks done" in line)
        assert "†" in plan
        assert "●" not in plan


async def test_a_search_shows_the_passage_of_every_session_and_a_preview_at_24_rows(desk: Desk) -> None:
    library_of(desk)
    other = add_session(
        desk, "other234", "paint it", status="done", host_pid=None, last_active=desk.time - 20_000
    )
    other.message("other234-p", "user", "A long way before it. Which blue, and which ledger is meant here?")
    add_session(
        desk, "named234", "the ledger itself", status="done", host_pid=None, last_active=desk.time - 30_000
    )
    async with desk.shown("paint it", size=(80, 24), screen="sessions") as pilot:
        await pilot.press("slash", *"ledger", "enter")
        await shows(pilot, "… and which ledger is")
        lines = text_of(pilot).split("\n")
        assert [any(name in line and words in line for line in lines) for name, words in
                [("older234", "is the ledger for Zürich?"), ("named234", "in the name")]] == [True, True]  # fmt: skip
        view = pilot.app.screen.view  # type: ignore[attr-defined]
        view.select("older234")
        await shows(
            pilot, "Last message  The ledger is in the blue safe. more", "$1.25", "Outcome       all is well"
        )
        await pilot.press("escape")
        await shows(pilot, "paint it", without="in the name")


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.floats(0, 1e6)), min_size=1, max_size=40),
    st.floats(0, 1e6),
    st.integers(1, 90),
)
def test_any_lives_of_agents_make_a_line_of_its_width(spans, end, cells):
    assert len(at_work(spans, end, cells)) == cells
