"""Keeping the library from the dashboard: every key of the list of sessions, and the screens that it leads
to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tui.conftest import Desk, text_of, until
from tests.tui.fake_store import HOSTILE
from tests.tui.test_sessions_screen import add_session

from watchkeeper.store.fork import ForkResult
from watchkeeper.store.lease import Lease
from watchkeeper.store.library import delete_session
from watchkeeper_tui.screens.sessions import values_of, with_filter
from watchkeeper_tui.widgets.sessions import DeletedLine, at_work, wrapped

WIDE = (120, 40)


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
        desk,
        "third234",
        "a run that failed",
        status="failed",
        last_active=desk.time - 90_000,
        host_pid=None,
        model="x/opus",
    )


def row(desk: Desk, session_id: str, column: str) -> Any:
    return desk.session.connection.execute(
        f"SELECT {column} FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()[0]


async def opened(pilot: Any, words: str = "nightly audit") -> None:
    await until(pilot, lambda: words in text_of(pilot))


async def test_a_session_is_named_and_its_goal_stays_in_sight(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("j", "n", *"the audit", "enter")
        await until(pilot, lambda: row(desk, "older234", "title") == "the audit")
        await until(pilot, lambda: "✓ named the audit" in text_of(pilot))
        await until(
            pilot, lambda: "│▌✓ older234" in text_of(pilot) and "[nightly] the audit" in text_of(pilot)
        )


async def test_tags_are_given_to_all_that_are_marked_and_taken_away_by_a_minus(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("j", "space", "space")
        await until(pilot, lambda: "2 marked" in text_of(pilot) or "◆" in text_of(pilot))
        await pilot.press("number_sign", *"keep -nightly", "enter")
        await until(
            pilot, lambda: row(desk, "older234", "tags") == row(desk, "third234", "tags") == '["keep"]'
        )
        await until(pilot, lambda: "✓ 2 sessions tagged" in text_of(pilot))


async def test_a_delete_asks_and_can_be_undone_by_a_key_that_is_shown(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("j", "D")
        await until(pilot, lambda: "Delete nightly audit of the ledgers?" in text_of(pilot))
        await pilot.press("enter", "n")
        assert row(desk, "older234", "deleted_at") is None
        await pilot.press("D", "y")
        await until(pilot, lambda: "deleted nightly audit of the ledgers   u to undo" in text_of(pilot))
        await until(pilot, lambda: "older234" not in text_of(pilot))
        assert row(desk, "older234", "deleted_at") == desk.time
        await pilot.press("u")
        await until(pilot, lambda: row(desk, "older234", "deleted_at") is None)
        await until(pilot, lambda: "✓ older234" in text_of(pilot) and "u to undo" not in text_of(pilot))


async def test_deleted_sessions_are_listed_by_a_filter_and_restored_there(desk: Desk) -> None:
    library_of(desk)
    delete_session(desk.path, "older234", now=desk.time)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot, "a run that failed")
        assert "nightly" not in text_of(pilot)
        await pilot.press("t", "s", "d")
        await until(pilot, lambda: "Deleted sessions" in text_of(pilot) and "nightly audit" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "it is deleted; u restores it" in text_of(pilot))
        await pilot.press("u")
        await until(pilot, lambda: row(desk, "older234", "deleted_at") is None)


async def test_a_live_session_is_not_deleted_renamed_or_forked(desk: Desk) -> None:
    lease = Lease.acquire(desk.path, desk.session.id)
    try:
        async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
            await opened(pilot, "migrate billing")
            await pilot.press("D")
            await until(pilot, lambda: "is live; open it and pause it first" in text_of(pilot))
            await pilot.press("F")
            await until(pilot, lambda: "Fork: migrate billing to cents is live" in text_of(pilot))
            await pilot.press("n", *"x", "enter")
            await until(pilot, lambda: "✗ naming: session abcd2345 is run by" in text_of(pilot))
    finally:
        lease.release()
    assert (row(desk, "abcd2345", "title"), row(desk, "abcd2345", "deleted_at")) == (None, None)


async def test_a_fork_is_made_from_the_step_that_was_chosen(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    library_of(desk)
    made: list[Any] = []

    def fork(path: Path, session_id: str, **at: Any) -> ForkResult:
        made.append((session_id, at))
        return ForkResult("newone23", session_id, 2, "paused", 1, 2)

    monkeypatch.setattr("watchkeeper_tui.screens.dialogs.fork_session", fork)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("j", "F")
        await until(pilot, lambda: "from which step?" in text_of(pilot) and "turn 1" in text_of(pilot))
        await pilot.press("slash", *"turn", "enter", "enter")
        await until(pilot, lambda: "after turn 1 of planner?" in text_of(pilot))
        assert made == []
        await pilot.press("enter")  # nothing is spent or lost by it
        await until(pilot, lambda: "✓ forked at event #2 as newone23" in text_of(pilot))
    assert made == [("older234", {"at_turn": ("older234-p", 1)})]


async def test_the_steps_to_fork_from_are_told_in_words(desk: Desk) -> None:
    other = add_session(desk, "steps234", "count steps", status="paused", host_pid=None)
    other.event("inbox.delivered", items=["task_done", "steer"], titles=["Read the pump log", ""])
    other.event("compaction.applied", tokens_before=4692, tokens_after=3834)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "count steps" in text_of(pilot))
        pilot.app.screen.view.select("steps234")  # type: ignore[attr-defined]
        await pilot.press("F")
        await until(pilot, lambda: "4.7k → 3.8k" in text_of(pilot))
        assert "✓ Read the pump log done, message from a person" in text_of(pilot)


async def test_a_session_of_another_program_is_not_forked(desk: Desk) -> None:
    library_of(desk)
    desk.session.connection.execute("UPDATE sessions SET origin = 'claude-code' WHERE id = 'older234'")
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot, "older234")
        await pilot.press("j", "F")
        await until(pilot, lambda: "c continues it in a new session" in text_of(pilot))


async def test_a_whole_fork_is_in_the_list_and_selected(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("j", "F")
        await until(pilot, lambda: "an exact copy" in text_of(pilot))
        await pilot.press("enter", "y")
        await until(pilot, lambda: "✓ forked at event #2" in text_of(pilot))
        await until(pilot, lambda: "fork: [nightly] nightly audit" in text_of(pilot))
    forks = desk.session.connection.execute(
        "SELECT forked_from, status FROM sessions WHERE origin = 'fork'"
    ).fetchall()
    assert forks == [("older234", "done")]


async def test_two_marked_sessions_are_compared_side_by_side(desk: Desk) -> None:
    library_of(desk)
    desk.session.fact("explorer1", "the ledger is blue", digest="same")
    desk.session.connection.execute("UPDATE facts SET digest = 'same' WHERE text = 'the ledger is blue'")
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("equals_sign")
        await until(pilot, lambda: "mark two sessions with space" in text_of(pilot))
        await pilot.press("space", "space", "equals_sign")
        await until(pilot, lambda: "Compare abcd2345 with older234" in text_of(pilot))
        shown = text_of(pilot)
        for words in (
            "≠ migrate billing to cents",
            "nightly audit",
            "$4.82",
            "$1.25",
            "not in this plan",
            "1 shared, 2 on one side",
        ):
            assert words in shown
        await pilot.press("exclamation_mark")
        await until(pilot, lambda: "only what differs" in text_of(pilot))
        assert "offline/surveyor" not in text_of(pilot)
        await pilot.press("w")
        await until(pilot, lambda: "Compare older234 with abcd2345" in text_of(pilot))
        await pilot.press("escape")
        await opened(pilot)


async def test_a_message_that_was_found_is_opened_in_its_transcript(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("slash", *"blue safe", "enter")
        await until(pilot, lambda: "found in planner #2" in text_of(pilot))
        await pilot.press("slash", *["backspace"] * 9, *"ledger")
        await until(
            pilot, lambda: "│▌✓ older234" in text_of(pilot) and "found in planner #2" in text_of(pilot)
        )  # the newest
        await pilot.press("enter")
        await until(
            pilot, lambda: "best match ↓" in text_of(pilot) and "found in planner #1" in text_of(pilot)
        )
        await pilot.press("o")
        await until(pilot, lambda: "found in planner #2" in text_of(pilot))
        await pilot.press("j") if "▌✓ older234" not in text_of(pilot) else None
        await pilot.press("m")
        await until(
            pilot, lambda: "#2 of 2" in text_of(pilot) and "2 of 2 messages of this session" in text_of(pilot)
        )
        assert "where is the ledger" in text_of(pilot)
        assert "more lines, Enter unfolds" not in text_of(pilot)
        await pilot.press("n")
        await until(
            pilot, lambda: "#1 of 2" in text_of(pilot) and "15 more lines, Enter unfolds" in text_of(pilot)
        )
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
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("slash", *"needle", "enter")
        await until(pilot, lambda: "found in planner #300" in text_of(pilot))
        await pilot.press("m")
        await until(pilot, lambda: "line 300 needle" in text_of(pilot) and "line 299" in text_of(pilot))
        await pilot.press("n")
        await until(pilot, lambda: "line 150 needle" in text_of(pilot))
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "#89 of 400" in text_of(pilot) and "line 89" in text_of(pilot))


async def test_read_only_refuses_every_action(desk: Desk) -> None:
    desk.session.set(last_active=desk.time + 1)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot, "migrate billing")
        await pilot.press("v")
        await until(pilot, lambda: "open read-only" in text_of(pilot) and "Explore core" in text_of(pilot))
        await pilot.press("p")
        await until(pilot, lambda: "the session is open read-only" in text_of(pilot))
        assert desk.control.submitted == 0
        await pilot.press("s")
        await opened(pilot, "migrate billing")
        await pilot.press("enter")
        await until(pilot, lambda: "Explore core" in text_of(pilot))
        await pilot.press("p")
        await until(pilot, lambda: desk.control.submitted == 1)


async def test_an_export_runs_beside_the_dashboard_and_shows_where_it_is(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("j", "x", "h")
        await until(pilot, lambda: "older234-2.html  77 bytes, 2 secrets removed" in text_of(pilot))
    assert (tmp_path / "older234.html").read_text() == "mine"
    arguments = json.loads((tmp_path / "older234-2.html").read_text())
    assert arguments[:5] == ["-P", "-m", "watchkeeper", "export", "older234"]
    assert arguments[arguments.index("--db") + 1] == str(desk.path)


async def test_an_export_that_fails_says_why(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\necho 'wk: the disk is full' >&2\nexit 2\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr("watchkeeper_tui.control.sys.executable", str(stand_in))
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot, "migrate billing")
        await pilot.press("x", "m")
        await until(pilot, lambda: "✗ not exported: the disk is full" in text_of(pilot))


async def test_a_filter_by_key_is_the_search_that_could_be_typed(desk: Desk) -> None:
    library_of(desk)
    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot)
        await pilot.press("t", "s", "f")
        await until(
            pilot, lambda: "/state:failed" in text_of(pilot) and "nightly audit" not in text_of(pilot)
        )
        await pilot.press("t", "s", "o")
        await until(pilot, lambda: "/state:done" in text_of(pilot) and "nightly audit" in text_of(pilot))
        await pilot.press("t", "g")
        await until(pilot, lambda: "1 nightly" in text_of(pilot))
        await pilot.press("1")
        await until(pilot, lambda: "/state:done tag:nightly" in text_of(pilot))
        await pilot.press("t", "0")
        await until(pilot, lambda: "a run that failed" in text_of(pilot) and "state:" not in text_of(pilot))


def test_a_filter_takes_the_place_of_another_of_its_kind() -> None:
    assert with_filter("ledger state:done cost>1", "state", "state:failed") == "ledger cost>1 state:failed"
    assert with_filter("cost>1 cost<9 x", "cost", "cost>10") == "x cost>10"
    assert with_filter("since:2026-01-01 compacted", "date", "") == "compacted"


async def test_hostile_text_is_harmless_on_every_screen_of_the_library(desk: Desk) -> None:
    library_of(desk)
    connection = desk.session.connection
    hostile = HOSTILE.encode("utf-8", "replace").decode()
    connection.execute("UPDATE sessions SET title = ?, tags = ?, workspace = ?, status_reason = ? WHERE id = 'older234'",
                       (hostile, json.dumps([hostile]), hostile, hostile))  # fmt: skip
    connection.execute("UPDATE agents SET name = ? WHERE session_id = 'older234'", (hostile,))
    connection.execute(
        "UPDATE facts SET text = ?, kind = ? WHERE session_id = 'older234'", (hostile, hostile)
    )
    connection.execute(
        "UPDATE events SET data = ? WHERE session_id = 'older234'",
        (json.dumps({"turn": 1, "tools": [hostile], "preview": hostile}),),
    )

    def harmless() -> bool:
        shown = text_of(pilot)
        return not any(character in shown for character in "\x1b\x9b\x90\x07\u202e\u200b\ufeff")

    async with desk.app(screen="sessions").run_test(size=WIDE) as pilot:
        await opened(pilot, "red")
        await pilot.press("slash", *"safe", "enter")
        await until(pilot, lambda: "found in" in text_of(pilot))
        assert harmless()
        await pilot.press("m")
        await until(pilot, lambda: "blue safe" in text_of(pilot))
        assert harmless()
        await pilot.press("escape", "F")
        await until(pilot, lambda: "from which step?" in text_of(pilot))
        assert harmless()
        await pilot.press("escape", "escape")
        await opened(pilot, "migrate billing")
        await pilot.press("g", "space", "space", "equals_sign")
        await until(pilot, lambda: "Compare abcd2345" in text_of(pilot))
        assert harmless()
        await pilot.press("escape", "escape", "g", "j", "D")
        await until(pilot, lambda: "y yes" in text_of(pilot))
        assert harmless()
        await pilot.press("y")
        await until(pilot, lambda: bool(pilot.app.screen.query_one(DeletedLine).text))
        assert harmless()


def test_an_excerpt_is_wrapped_between_words() -> None:
    rows = wrapped([("one two ", "text"), ("three", "match"), (" four five", "text")], 9)
    assert ["".join(text for text, _ in row) for row in rows] == ["one two ", "three", "four five"]


def test_filter_values_are_the_most_common_first_and_can_be_typed(desk: Desk) -> None:
    library_of(desk)
    from watchkeeper.store.search.sessions import list_sessions

    add_session(desk, "fourth23", "more", workspace="/srv/with space")
    rows = list_sessions(desk.session.connection)
    assert values_of(rows, "model") == ["offline/surveyor", "x/opus"]
    assert values_of(rows, "workspace") == ["/srv/billing"]


async def test_the_selected_session_is_previewed_and_sessions_are_grouped(desk: Desk) -> None:
    library_of(desk)
    desk.session.connection.execute("UPDATE sessions SET workspace = '/srv/ledger' WHERE id = 'older234'")
    async with desk.app(screen="sessions").run_test(size=(160, 40)) as pilot:
        await opened(pilot)
        await pilot.press("j")
        await until(pilot, lambda: "Last words  The ledger is in the blue safe." in text_of(pilot))
        assert "$1.25" in text_of(pilot)
        await pilot.press("k")
        await until(pilot, lambda: "tasks done" in text_of(pilot) and "agents over time" in text_of(pilot))
        await pilot.press("b")
        await until(pilot, lambda: "today 2" in text_of(pilot) and "yesterday 1" in text_of(pilot))
        await pilot.press("b")
        await until(pilot, lambda: "ledger 1 $1.25" in text_of(pilot) and "billing 2" in text_of(pilot))
        await pilot.press("b")
        await until(pilot, lambda: "ledger 1 $1.25" not in text_of(pilot))


async def test_a_search_shows_the_passage_of_every_session_and_a_preview_at_24_rows(desk: Desk) -> None:
    library_of(desk)
    other = add_session(
        desk, "other234", "paint it", status="done", host_pid=None, last_active=desk.time - 20_000
    )
    other.message("other234-p", "user", "A long way before it. Which blue, and which ledger is meant here?")
    add_session(
        desk, "named234", "the ledger itself", status="done", host_pid=None, last_active=desk.time - 30_000
    )
    async with desk.app(screen="sessions").run_test(size=(80, 24)) as pilot:
        await opened(pilot, "paint it")
        await pilot.press("slash", *"ledger", "enter")
        await until(pilot, lambda: "… and which ledger is" in text_of(pilot))
        lines = text_of(pilot).split("\n")
        assert [any(name in line and words in line for line in lines) for name, words in
                [("older234", "is the ledger for Zürich?"), ("named234", "in its name")]] == [True, True]  # fmt: skip
        view = pilot.app.screen.view  # type: ignore[attr-defined]
        view.select("older234")
        await until(pilot, lambda: "Last words  The ledger is in the blue safe. more" in text_of(pilot))
        assert "$1.25" in text_of(pilot)
        assert "Goal        nightly audit" in text_of(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: "paint it" in text_of(pilot) and "in its name" not in text_of(pilot))


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.floats(0, 1e6)), min_size=1, max_size=40),
    st.floats(0, 1e6),
    st.integers(1, 90),
)
def test_any_lives_of_agents_make_a_line_of_its_width(
    spans: list[tuple[float, float | None]], end: float, cells: int
) -> None:
    assert len(at_work(spans, end, cells)) == cells
