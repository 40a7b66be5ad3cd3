"""Trouble under an open dashboard: it says what is wrong in one line, keeps what it read, and carries on by
itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import create, small_session
from tests.tui.test_compaction_screen import compacted

from watchkeeper.store.snapshot import SessionSnapshotReader
from watchkeeper_tui.screens.live import LiveScreen


async def test_a_deleted_database_is_said_and_one_put_back_is_read_again(desk: Desk, tmp_path: Path) -> None:
    async with desk.shown("explorer-1") as pilot:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{desk.path}{suffix}").unlink()
        await until(pilot, lambda: "no database at" in text_of(pilot) or "was deleted" in text_of(pilot))
        assert "explorer-1" in text_of(pilot)
        other = create(tmp_path / "other.db")
        session = small_session(other)
        session.task("t-core", "Explore what was put back", agent="explorer1", name="put-back")
        other.close()
        shutil.move(tmp_path / "other.db", desk.path)
        await shows(pilot, "put-back (explorer)", without="no database at")


async def test_a_database_replaced_under_its_name_is_read_from_the_start(desk: Desk, tmp_path: Path) -> None:
    async with desk.shown("explorer-1") as pilot:
        other = create(tmp_path / "other.db")
        session = small_session(other)
        session.event("tool.done", "explorer1", tool="bash", preview="from the other file")
        other.close()
        os.replace(tmp_path / "other.db", desk.path)
        for suffix in ("-wal", "-shm"):
            Path(f"{desk.path}{suffix}").unlink(missing_ok=True)
        await shows(pilot, "from the other file")


def damage(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"\xff" * 200_000)


async def test_a_damaged_database_is_said_and_ends_nothing(desk: Desk) -> None:
    desk.session.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    async with desk.shown("explorer-1") as pilot:
        damage(desk.path)
        desk.session.event("tool.done", "explorer1", tool="bash", preview="written over the damage")
        desk.feed.wake()
        await shows(pilot, "! ", str(desk.path.name), "explorer-1")
        await pilot.press("j", "question_mark", "escape")
        assert isinstance(pilot.app.screen, LiveScreen)


async def test_a_fault_while_reading_is_shown_and_not_swallowed(desk, monkeypatch):
    async with desk.shown("explorer-1") as pilot:
        with monkeypatch.context() as broken:
            broken.setattr(SessionSnapshotReader, "read", lambda *_: 1 / 0)
            desk.feed.wake()
            await shows(pilot, "internal dashboard error (ZeroDivisionError")
        await shows(pilot, without="ZeroDivisionError")


async def test_a_terminal_of_20_by_5_says_how_the_run_stands_and_takes_keys(desk: Desk) -> None:
    async with desk.shown("LIVE", size=(20, 5)) as pilot:
        for key in [
            "2", "3", "4", "1", "z", "z", "o", "f", "f", "colon", "escape", "question_mark", "escape", "C",
            "n", "less_than_sign",
        ]:  # fmt: skip
            await pilot.press(key)
        await shows(pilot, "LIVE")
        await pilot.resize_terminal(120, 40)
        await shows(pilot, "explorer-1", "2 Events")


async def test_a_terminal_of_20_by_5_says_what_it_needs_and_shows_what_matters(desk: Desk) -> None:
    desk.host_pid = None
    async with desk.shown("needs 80×24  ? Help", "† STOPPED", size=(20, 5)) as pilot:
        await pilot.press("j")
        await shows(pilot, "├╴explorer-1")
        await pilot.press("C")
        await shows(pilot, "y yes")
        await pilot.press("n", "s")
        await shows(pilot, f"† {desk.session.id}")
        await pilot.press("slash", *"cents")
        await until(
            pilot, lambda: text_of(pilot).splitlines()[-3] == " cents" and desk.session.id in text_of(pilot)
        )
        await pilot.press("escape", "escape")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{desk.path}{suffix}").unlink()
        desk.time += 20
        await until(
            pilot, lambda: "! NOT UPDATED" in text_of(pilot) and " ! " in text_of(pilot).splitlines()[-2]
        )


async def test_a_terminal_of_20_by_5_shows_the_help_word_for_word(desk: Desk) -> None:
    async with desk.shown("LIVE", size=(20, 5)) as pilot:
        await pilot.press("question_mark")
        await shows(pilot, "Help  esc closes")
        seen: list[str] = []
        for _ in range(60):
            await pilot.press("j")
            seen += [line.strip() for line in text_of(pilot).splitlines()]
        assert not [line for line in seen if "…" in line]
        assert "pause the" in seen
        await pilot.press("escape")
        await shows(pilot, "LIVE")


async def test_a_terminal_of_20_by_5_shows_what_a_pass_did_and_two_lines_of_it(desk: Desk) -> None:
    compacted(desk.session)
    app = desk.app()
    async with app.run_test(size=(20, 5)) as pilot:
        await until(pilot, lambda: app.snapshot.session is not None)
        app.open_compaction(5)
        await until(pilot, lambda: text_of(pilot).splitlines()[0].strip() == "✓ 24k→6.1k -75%")
        await until(pilot, lambda: len([line for line in text_of(pilot).splitlines() if "#1" in line]) == 2)


async def test_the_time_in_which_no_process_drove_the_run_is_not_counted(desk: Desk) -> None:
    desk.session.set(hosted_seconds=8.0)
    desk.host_pid = None
    async with desk.shown("† STOPPED", "00:00:08") as pilot:
        desk.time += 20
        await pilot.pause()
        desk.host_pid = 991
        desk.feed.wake()
        await shows(pilot, "● LIVE", "00:00:08", without="† STOPPED")
        desk.time += 2
        desk.feed.wake()
        await shows(pilot, "00:00:10")
