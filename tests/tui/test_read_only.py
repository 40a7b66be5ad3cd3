"""What is only looked at says so in the header for as long as it is looked at, and offers no key that would
change it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until

from watchkeeper_tui.app import WatchkeeperApp


def header(pilot: object) -> str:
    return text_of(pilot).splitlines()[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 15)])
async def test_a_session_opened_read_only_has_a_badge_and_refuses_before_it_asks(desk, size):
    async with desk.shown(size=size, row="task:t-core") as pilot:
        assert "READ-ONLY" not in header(pilot)
        app = pilot.app
        assert isinstance(app, WatchkeeperApp)
        app.open_session(desk.session.id, read_only=True)
        desk.feed.wake()
        await until(pilot, lambda: "READ-ONLY" in header(pilot))
        await pilot.press("C")
        await shows(pilot, "Compact: the session is open read-only; press s")
        assert "y yes" not in text_of(pilot)
        assert desk.session.commands() == []
        app.open_session(desk.session.id)
        desk.feed.wake()
        await until(pilot, lambda: "READ-ONLY" not in header(pilot))


async def test_an_imported_session_has_the_badge_and_says_of_which_program(desk: Desk) -> None:
    desk.session.set(origin="claude-code", status="done")
    desk.host_pid = None
    async with desk.shown(size=(140, 40)) as pilot:
        await until(
            pilot, lambda: "READ-ONLY" in header(pilot) and "imported from Claude Code" in header(pilot)
        )


async def test_a_database_that_cannot_be_written_has_the_badge(desk, monkeypatch):
    monkeypatch.setattr("watchkeeper_tui.app.os.access", lambda path, mode: Path(path) != desk.path)
    async with desk.shown() as pilot:
        await until(pilot, lambda: "READ-ONLY" in header(pilot))


async def test_what_only_another_programs_log_could_tell_is_left_out(desk: Desk) -> None:
    desk.session.set(origin="claude-code", status="done")
    desk.session.compaction("explorer1", model=None, cost_usd=None)
    desk.host_pid = None
    async with desk.shown(row="task:t-core") as pilot:
        await shows(pilot, "24k → 6.1k")
        assert "blocked" not in text_of(pilot).split("4 Compaction")[1].splitlines()[1]
        await pilot.press("4", "enter")
        await shows(pilot, "Before", "✓ applied")
        head = text_of(pilot).split("Before")[0]
        assert not any(
            word in head for word in ("blocked", "in background", "cost", "unpriced", "without a model")
        )


async def test_keys_that_cannot_act_are_not_advised(desk: Desk) -> None:
    desk.session.set(origin="claude-code", status="done")
    desk.host_pid = None
    async with desk.shown(row="task:t-docs") as pilot:
        await pilot.press("3", *["right"] * 4)
        await shows(pilot, "[Compactions]", "Compactions  0")
        assert "by hand" not in text_of(pilot)
        assert "u undoes" not in text_of(pilot)


def test_the_machine_form_does_not_claim_a_stall_for_another_programs_pass(desk: Desk) -> None:
    from watchkeeper.runtime.run_session import Runtime

    stalls = []
    for origin in ("run", "codex", "export:codex"):
        desk.session.set(origin=origin)
        stalls.append(
            [each["stall_seconds"] for each in Runtime(desk.path).state(desk.session.id)["compactions"]]
        )
    assert stalls == [[0.0], [None], [None]]
