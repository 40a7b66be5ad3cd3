"""What `wk` alone opens, and what is printed when the dashboard is left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.core.cli.conftest import Wk
from tests.core.library.conftest import add_session

from watchkeeper.cli import watch
from watchkeeper.cli.headless import print_farewell
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.lease import Lease


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, str]]:
    """The session and the screen of each dashboard that a command opened at a terminal."""
    found: list[tuple[str | None, str]] = []

    def run(path: Path, session_id: str | None, **options: Any) -> int:
        found.append((session_id, "welcome" if options.get("discover") else options.get("screen", "live")))
        return 0

    monkeypatch.setattr(watch, "is_terminal", lambda: True)
    monkeypatch.setattr("watchkeeper_tui.app.run", run)
    return found


def add(demo: Path, *sessions: str, origin: str = "run") -> None:
    with closing(sqlite3.connect(demo, isolation_level=None)) as connection:
        for place, session in enumerate(sessions):
            add_session(
                connection, session, origin=origin, created_at=1.0, last_active=1.0 + place, status="running"
            )


@pytest.mark.parametrize(
    ("own", "imported", "live", "expected"),
    [
        ([], [], [], (None, "sessions")),
        (["dead"], [], [], (None, "sessions")),
        (["alive", "dead"], [], ["alive"], ("alive", "live")),
        (["dead"], ["theirs"], ["theirs"], ("theirs", "live")),
        (["one", "two"], [], ["one", "two"], (None, "sessions")),
        (["one"], ["theirs"], ["one", "theirs"], (None, "sessions")),
    ],
)
def test_wk_alone_opens_the_only_live_session_or_the_list(
    wk: Wk, demo: Path, opened: list[Any], own: Sequence[str], imported: Sequence[str], live: Sequence[str], expected: Any
) -> None:  # fmt: skip
    add(demo, *own)
    add(demo, *imported, origin="claude-code")
    with ExitStack() as leases:
        for session in live:
            leases.callback(Lease.acquire(demo, session).release)
        assert wk().code == 0
    assert opened == [expected]


def test_wk_alone_opens_the_welcome_where_there_is_no_session(
    wk: Wk, tmp_path: Path, opened: list[Any]
) -> None:
    assert wk().code == 0
    assert opened == [(None, "welcome")]
    assert not (tmp_path / "watchkeeper.db").exists()


def test_wk_alone_lists_the_sessions_where_there_is_no_terminal(wk: Wk, demo: Path) -> None:
    assert (wk().code, wk().out) == (0, wk("sessions").out)


def test_own_live_runs_come_first_in_the_list(wk: Wk, demo: Path) -> None:
    add(demo, "alive", "dead")
    add(demo, "theirs", origin="codex")
    leases = [Lease.acquire(demo, session) for session in ("alive", "theirs")]
    listed = [row["id"] for row in wk("sessions", "--json").json]
    for lease in leases:
        lease.release()
    assert listed[0] == "alive"
    assert listed[1:] == [
        one for one in (row["id"] for row in wk("sessions", "--json").json) if one != "alive"
    ]


def test_leaving_prints_where_the_user_was_and_the_outcome(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(demo)) as connection:
        ((own,),) = connection.execute("SELECT id FROM sessions").fetchall()
    print_farewell(demo, ["sessions", "the \x1b[31msurvey", "agent planner"], own)
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == "Last view: sessions › the survey › agent planner"
    assert second.startswith(f"✓ done  {own}  Survey this folder")
    assert any("SURVEY.md" in line for line in rest)
    print_farewell(demo, ["sessions"], None)
    assert capsys.readouterr().out == "Last view: sessions\n"


def test_leaving_a_session_that_has_not_ended_prints_how_to_continue(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(demo, "mine")
    add(demo, "theirs", origin="codex")
    lease = Lease.acquire(demo, "mine")
    print_farewell(demo, [], "mine")
    assert capsys.readouterr().out.splitlines() == [
        "● running  mine  goal of mine",
        "  `wk watch mine` reopens it",
    ]
    lease.release()
    print_farewell(demo, [], "mine")
    assert "the background process stopped; `wk resume mine` continues the session" in capsys.readouterr().out
    print_farewell(demo, [], "theirs")
    assert capsys.readouterr().out.splitlines()[0] == "□ ended  theirs  goal of theirs"
