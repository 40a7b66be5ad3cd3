"""What is told to whoever looks elsewhere, and that it cannot act on their terminal; and the user's own
settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import HOSTILE, insert
from textual import events

from watchkeeper_tui.app import Notice, WatchkeeperApp, is_unattended, terminal_signal
from watchkeeper_tui.settings import Notifications, Settings, load_settings

WIDE = (120, 40)


def written(app: WatchkeeperApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that is written past the painter from now on."""
    found: list[str] = []
    monkeypatch.setattr(app._driver, "write", found.append)
    return found


def ask(desk: Desk) -> None:
    desk.session.approval("explorer1")


def fail(desk: Desk) -> None:
    desk.session.connection.execute(
        "UPDATE tasks SET status = 'failed', error = 'no credit' WHERE id = 't-core'"
    )


def spend(desk: Desk) -> None:
    desk.session.set(cost_usd=4.3)


def overspend(desk: Desk) -> None:
    desk.session.set(cost_usd=5.2)


def finish(desk: Desk) -> None:
    desk.session.set(status="done")
    desk.host_pid = None


def limit(desk: Desk) -> None:
    desk.session.connection.execute(
        "UPDATE agents SET status = 'parked', status_reason = 'session limit reached', parked_until = ?"
        " WHERE id = 'explorer1'",
        (desk.time + 60,),
    )


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (limit, "usage limit reached"), (ask, "explorer-1 (explorer) needs you"), (fail, "task failed"), (spend, "86% of 5 usd"),
        (overspend, "budget reached"), (finish, "run finished"),
    ],
)  # fmt: skip
async def test_what_happens_while_nobody_looks_is_told(desk, monkeypatch, happens, said):
    desk.session.set(cost_usd=1.0)
    insert(
        desk.session.connection, "budgets", session_id=desk.session.id, kind="usd", amount=5.0,
        created_at=desk.time,
    )  # fmt: skip
    app = desk.app(settings=Settings(notifications=Notifications(terminal="osc9")))
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await shows(pilot, "explorer-1")
        app.post_message(events.AppBlur())
        await pilot.pause()
        bytes_out = written(app, monkeypatch)
        happens(desk)
        desk.feed.wake()
        await shows(pilot, said)
        assert len(bytes_out) == 1
        assert bytes_out[0].startswith("\x1b]9;watchkeeper: ")
        assert bytes_out[0].count("\x07") == 1


async def test_nothing_is_told_to_whoever_looks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    app = desk.app()
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await shows(pilot, "explorer-1")
        bytes_out = written(app, monkeypatch)
        ask(desk)
        desk.feed.wake()
        await shows(pilot, "explorer-1 (explorer) wants to run")
        assert bytes_out == []
        assert "needs you " not in text_of(pilot)


async def test_what_is_switched_off_is_not_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    app = desk.app(settings=Settings(notifications=Notifications(needs_input=False, when_focused=True)))
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await shows(pilot, "explorer-1")
        bytes_out = written(app, monkeypatch)
        ask(desk)
        desk.feed.wake()
        await shows(pilot, "explorer-1 (explorer) wants to run")
        assert bytes_out == []


@pytest.mark.parametrize("how", ["osc9", "osc777", "bell", "off"])
def test_a_signal_carries_nothing_that_acts(how: str) -> None:
    signal = terminal_signal(Notice(HOSTILE, HOSTILE + "\x07\x1b]52;c;x\x07;;", "error"), how)
    body = signal.removeprefix("\x1b]").removesuffix("\x07")
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in body)
    if how == "osc777":
        assert body.count(";") == 3


def test_a_terminal_that_never_tells_of_its_focus_counts_by_its_keys() -> None:
    assert not is_unattended(None, 100.0, 130.0)
    assert is_unattended(None, 100.0, 161.0)
    assert is_unattended(False, 100.0, 101.0)
    assert not is_unattended(True, 0.0, 1000.0)


def test_settings_that_cannot_be_used_are_said_and_the_rest_stands(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'theme = "phosphor"\nmodel = "x/y"\n[notifications]\nbudget = false\nterminal = "horn"\nloud = true\nneeds_input = 3\n'
    )
    settings = load_settings(tmp_path)
    assert settings.theme == "phosphor"
    assert not settings.notifications.budget
    assert settings.notifications.terminal == "bell"
    assert [name for name in ("terminal", "loud", "needs_input") if any(name in each for each in settings.problems)] == [
        "terminal", "loud", "needs_input",
    ]  # fmt: skip
    (tmp_path / "config.toml").write_text("no toml [")
    assert len(load_settings(tmp_path).problems) == 1


async def test_a_key_of_the_users_own_acts_and_the_old_one_does_not(desk: Desk) -> None:
    app = desk.app(settings=Settings(keys={"act.pause": "ctrl+t"}))
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await shows(pilot, "ctrl+t Pause")
        await pilot.press("p")
        await pilot.pause()
        assert desk.session.commands() == []
        await pilot.press("ctrl+t")
        await until(pilot, lambda: len(desk.session.commands()) == 1)


@pytest.mark.parametrize("first", ["live", "sessions"])
async def test_an_action_without_its_key_is_named_on_the_first_screen(desk: Desk, first: str) -> None:
    app = desk.app(settings=Settings(keys={"pause": "q"}), screen=first)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "keys.pause: 'q' was the key of quit, which has no key now")


@pytest.mark.parametrize(("size", "most"), [((120, 40), 3), ((80, 24), 1)])
async def test_notices_wait_for_whoever_comes_back_and_cover_little(desk, monkeypatch, size, most):
    monkeypatch.setattr("watchkeeper_tui.app.SEEN_SECONDS", 0.05)
    app = desk.app(settings=Settings(notifications=Notifications(terminal="off")))
    async with app.run_test(size=size, notifications=True) as pilot:
        await shows(pilot, "explorer-1")
        app.post_message(events.AppBlur())
        await pilot.pause()
        desk.session.connection.execute("UPDATE tasks SET status = 'failed'")
        desk.feed.wake()
        await shows(pilot, f"(+{4 - most} more)")
        assert len(app._notifications) == most
        desk.time += 7_200
        ask(desk)
        desk.feed.wake()
        await shows(pilot, "needs you")
        assert 0 < len(app._notifications) <= most
        await pilot.press("j")
        await until(pilot, lambda: len(app._notifications) == 0)


async def test_a_picture_of_the_screen_is_saved_and_said_or_the_reason_is(desk, tmp_path, monkeypatch):
    folder = tmp_path / "[red]here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    app = desk.app()
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await shows(pilot, "explorer-1")
        app.save_picture()
        await shows(pilot, "✓ screenshot saved to ")
        assert "explorer" in next(folder.glob("*.svg")).read_text()
        monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
        app.save_picture()
        await shows(pilot, "✗ screenshot failed: ", "No such file")
