"""Every screen on a database full of hostile text: the bytes that reach the terminal hold nothing that acts
or hides."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tui.conftest import Desk, until
from tests.tui.fake_store import FakeSession, create, large_session
from tests.tui.hostile import ATTACKS, Recorder, judge, poison
from tests.tui.test_library_screens import library_of

from watchkeeper_tui.app import WatchkeeperApp
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.settings import Notifications, Settings

fragments = st.lists(
    st.sampled_from([b"\x1b", b"[", b"]", b"52;c;ZXZpbA==", b"0;t", b"\x07", b"\x9b", b"2J", b"\xc2\x9b", b"P", b"\\", b"\xe2\x80\xae", b"\xff",
                     b"[red]", b"[/]", b"[@click=app.quit]", b"\x00", b"\xf3\xa0\x81\x81", b"\xcc\x81\xcc\x81", b"\xef\xb8\x8f", b"word", b" ", b"\n"]),
    max_size=12,
).map(b"".join)  # fmt: skip


def crowded(path: Path, attacks: Sequence[bytes]) -> Desk:
    """Two finished sessions and a live one of twelve agents, poisoned."""
    connection = create(path)
    large_session(connection, 12)
    desk = Desk(path, FakeSession(connection))
    library_of(desk)
    large_session(connection, 12)
    assert poison(connection, attacks) > 300
    return desk


class Tour:
    """Somebody who opens everything, while what is painted is judged."""

    def __init__(self, desk: Desk) -> None:
        told = Settings(notifications=Notifications(when_focused=True, terminal="osc777"))
        self.app: WatchkeeperApp = desk.app(settings=told)
        self.app.driver_class = Recorder
        self.desk = desk
        self.pilot: Any = None
        self.seen: set[str] = set()

    async def keys(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
        await self.pilot.pause(0.02)
        self.look()

    async def opens(self, screen: str) -> None:
        await until(self.pilot, lambda: type(self.app.screen).__name__ == screen)
        await self.pilot.pause(0.1)
        self.look()

    def look(self) -> None:
        """No words on the screen can be clicked to run something, or lead anywhere."""
        self.seen.add(type(self.app.screen).__name__)
        for strip in self.app.screen._compositor.render_strips():
            for segment in strip:
                style = segment.style
                assert style is None or (style.link is None and not style.meta.get("@click")), segment

    async def library(self) -> None:
        while len(self.app.screen_stack) > 2:
            self.app.pop_screen()
            await self.pilot.pause(0.02)
        self.app.open_sessions("")
        await until(self.pilot, lambda: bool(getattr(getattr(self.app.screen, "view", None), "rows", None)))

    async def live(self) -> None:
        await until(self.pilot, lambda: bool(self.app.snapshot.agents))
        for keys in (("j", "j", "3"), ("right",), ("right",), ("right",), ("right",), ("right",), ("y", "enter", "escape"), ("2", "g", "G"),
                     ("4", "enter"), ("tab", "y", "asterisk", "escape"), ("j", "m"), ("n", "m"), ("escape", "escape", "escape"),
                     ("2", "g", "enter"), ("c", "escape"), ("G", "enter"), ("E", "c", "escape"), ("1", "enter", "escape"), ("question_mark", "escape"), ("C", "n"),
                     ("X", "n"), ("R", "n"), ("a", "escape"), ("m", "escape"), ("slash", "a", "escape"), ("colon", "m", "escape"),
                     ("ctrl+p",), ("escape",), ("z", "o", "z", "e"), ("v", "j", "t", "enter", "n", "y"), ("escape",),
                     ("t", "j", "n", "y", "plus"), ("question_mark", "escape", "escape"),
                     ("T", "2", "3"), ("escape",), ("dollar_sign", "c"), ("m", "y"), ("p", "o"), ("escape",),
                     ("1", "S", "e", "y"), ("question_mark", "escape", "w", "y"), ("escape", "escape")):  # fmt: skip
            await self.keys(*keys)

    async def news(self) -> None:
        self.desk.session.approval("agent003", "\x1b]0;t\x07[red]x", approval_id="another", tool="\x1b[2J[/]")
        self.desk.session.connection.execute("UPDATE tasks SET status = 'failed' WHERE position % 3 = 0")
        self.desk.feed.wake()
        await until(self.pilot, lambda: len(self.app._notifications) > 0)
        await self.keys("j")

    async def keeping(self) -> None:
        await self.library()
        for keys in (
            ("j", "t", "m"), ("t", "w"), ("n",), ("number_sign",), ("D",), ("x",), ("F",), ("c", "ctrl+s"),
            ("question_mark",), ("ctrl+p",),
        ):  # fmt: skip
            await self.keys(*keys)
            await self.keys("escape")
            await self.library()
        await self.keys("slash", *"red", "enter")
        await until(self.pilot, lambda: bool(self.app.screen._hits))  # type: ignore[attr-defined]
        while self.app.screen.view.selected.id not in self.app.screen._hits:  # type: ignore[attr-defined]
            await self.keys("j")
        await self.keys("m")
        await self.opens("MessageScreen")
        await self.keys("j", "enter", "n", "right_square_bracket", "y")
        await self.library()
        await self.keys("space", "space", "equals_sign")
        await self.opens("CompareScreen")
        await self.keys("j", "y")
        await self.library()
        await self.keys("G", "w")
        await self.opens("ReplayScreen")
        await self.keys("right", "5", "a", "end", "tab", "F", "escape")

    async def run(self, *, whole: bool) -> str:
        async with self.app.run_test(headless=False, size=(120, 40), notifications=True) as self.pilot:
            await self.live()
            if whole:
                await self.library()
                await self.keys("j", "j", "b", "b", "k")
                await until(self.pilot, lambda: self.app.screen._preview is not None)  # type: ignore[attr-defined]
                self.look()
                await self.pilot.resize_terminal(80, 24)
                await self.news()
                await self.keeping()
                await self.pilot.resize_terminal(20, 5)
                await self.keys("j")
                await self.library()
            driver = self.app._driver
            assert isinstance(driver, Recorder)
        return "".join(driver.sent)


async def test_no_screen_lets_hostile_text_act_hide_or_end_the_dashboard(tmp_path: Path) -> None:
    tour = Tour(crowded(tmp_path / "w.db", ATTACKS))
    sent = await tour.run(whole=True)
    assert judge(sent) == []
    assert {
        "LiveScreen", "SessionsScreen", "MessageScreen", "CompareScreen", "ReplayScreen", "HelpScreen",
        "StartScreen", "TimelineScreen", "ChartScreen", "UsageScreen", "FleetScreen",
        "WorkersScreen", "ArtifactsScreen",
    } <= tour.seen  # fmt: skip
    assert [each[0] for each in tour.desk.session.commands() if each[0] not in ("pause", "steer")] == []


@pytest.mark.long
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(fragments, min_size=5, max_size=40))
def test_no_mixture_of_such_texts_does_either(attacks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tour = Tour(crowded(Path(folder) / "w.db", attacks))
        assert judge(asyncio.run(tour.run(whole=False))) == []


def test_the_judge_sees_what_it_must_see() -> None:
    for attack in ATTACKS:
        text = attack.decode("utf-8", "replace")
        assert judge(sanitize(text)) == [], attack
    acting = [attack for attack in ATTACKS if judge(attack.decode("utf-8", "surrogateescape"))]
    assert len(acting) >= 16
