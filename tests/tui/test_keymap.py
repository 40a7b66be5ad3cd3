"""The keys of the configuration: what cannot be used is told in one line each, and the key before stays."""

from __future__ import annotations

import importlib
import re

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from textual.binding import Binding
from textual.widget import Widget

from watchkeeper_tui.actions import (
    BY_ID,
    FORMER,
    TABLE,
    TOGETHER,
    Action,
    is_key,
    meet,
    normal,
    read_keys,
    shown,
)
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.settings import Settings


@pytest.mark.parametrize(
    "key",
    [
        "p", "P", "?", "question_mark", "minus", "-", "+", "f5", "ctrl+x", "shift+left", "pageup", "space",
        "é", "enter", "alt+x",
    ],
)  # fmt: skip
def test_a_key_that_a_terminal_sends_is_one(key: str) -> None:
    assert is_key(key)


@pytest.mark.parametrize(
    "key", ["pgup", "Ctrl+X", "ctrl+", "control+x", "page up", "foo", "<any>", "f99", " ", "", "Escape"]
)
def test_a_name_that_no_key_has_is_none(key: str) -> None:
    assert not is_key(key)


def test_every_key_of_the_dashboard_is_one() -> None:
    assert [(each.id, key) for each in TABLE for key in normal(each.keys) if not is_key(key)] == []


def test_no_two_actions_that_are_active_together_have_the_same_key() -> None:
    """One that is `first` goes before those that move in a list: the toolkit asks it before the list."""
    for scopes in TOGETHER:
        for first in (False, True):
            taken: dict[str, str] = {}
            for action in TABLE:
                if action.scopes & scopes and action.first is first:
                    for key in normal(action.keys):
                        assert key not in taken, (sorted(scopes), key, taken[key], action.id)
                        taken[key] = action.id


def test_ids_are_unique_and_no_former_one_is_in_use() -> None:
    assert len(BY_ID) == len(TABLE)
    assert not FORMER.keys() & BY_ID.keys()
    assert len([former for each in TABLE for former in each.former.split()]) == len(
        {former for each in TABLE for former in each.former.split()}
    )


def test_every_screen_and_pane_that_binds_keys_is_in_the_table() -> None:
    def below(kind: type[Widget]) -> set[type[Widget]]:
        return {kind} | {found for each in kind.__subclasses__() for found in below(each)}

    for name in ("approval", "artifacts", "compaction", "compare", "dialogs", "external", "fleet", "message", "replay", "sessions",
                 "start", "task_form", "timeline", "usage", "welcome"):  # fmt: skip
        importlib.import_module(f"watchkeeper_tui.screens.{name}")
    known = {scope for each in TABLE for scope in each.scopes}
    for screen in below(WatchScreen):
        if "BINDINGS" in vars(screen) and screen is not WatchScreen:
            assert getattr(screen, "SCOPE", "") in known, screen
    bound = {binding.id for kind in below(Widget) if kind.__module__.startswith("watchkeeper_tui.") for binding in vars(kind).get("BINDINGS", ())
             if isinstance(binding, Binding) and binding.id}  # fmt: skip
    assert bound == {each.id for each in TABLE if each.keys}


def test_an_unknown_key_is_one_line_and_the_one_before_stays() -> None:
    found = read_keys({"act.pause": "pgup", "steer": "f5"})
    assert found.keys == {"steer": "f5"}
    assert found.problems == (
        "keys.act.pause: 'pgup' is not a key (keys are p, P, ?, f5, ctrl+x, pageup …); the previous one is kept",
    )


async def test_the_dashboard_says_so_when_it_opens_and_the_old_key_works(desk: Desk) -> None:
    async with desk.shown(
        "keys.act.pause: 'pgup' is not a key",
        "p Pause",
        "3 explorer-1",
        size=(140, 40),
        settings=Settings(keys={"act.pause": "pgup"}),
    ) as pilot:
        await pilot.press("p")
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == ["pause"])


@pytest.mark.parametrize("mine", [each for each in TABLE if each.keys], ids=lambda each: each.id)
def test_a_key_of_the_user_goes_before_any_default_on_the_same_screen(mine: Action) -> None:
    for other in TABLE:
        if other.keys and other is not mine and meet(mine, other):
            found = read_keys({mine.id: other.keys})
            assert found.problems == ()
            assert found.keys[mine.id] == other.keys
            if not {*normal(mine.keys)} & {*normal(other.keys)}:
                assert found.keys[other.id] == ""
                assert [each for each in found.lost if f"was the key of {other.id}," in each]


def test_of_two_keys_of_the_user_that_are_the_same_the_second_is_refused_and_unknown_actions_are() -> None:
    found = read_keys({"pause": "f5", "freeze": "f5", "act.fly": "x"})
    assert found.keys == {"pause": "f5"}
    assert found.problems == (
        "keys.freeze: 'f5' is already the key of pause; the previous one is kept",
        "keys.act.fly is not an action; see docs/keys.md",
    )
    # On different screens, one key may do two things.
    apart = {"message.session": "f5", "compare.swap": "f5"}
    assert read_keys(apart).keys == apart


@pytest.mark.parametrize(("former", "today"), [("act.pause", "pause"), ("sessions.copy", "copy"), ("replay.fork", "fork"),
                                               ("agent.pin", "pin"), ("plan.order", "sort"), ("usage.back", "back")])  # fmt: skip
def test_a_key_by_a_former_id_is_the_key_of_the_action_today(former: str, today: str) -> None:
    assert read_keys({former: "f9"}).keys == {today: "f9"}
    assert read_keys({former: "f9"}).problems == ()


@pytest.mark.parametrize("key", ["f", "j"])
async def test_the_users_key_acts_and_the_help_says_which_default_it_replaces(desk: Desk, key: str) -> None:
    async with desk.shown(
        f"{key} Pause", "3 explorer-1", size=(140, 40), settings=Settings(keys={"act.pause": key})
    ) as pilot:
        assert ("f Freeze" in text_of(pilot)) == (key != "f")
        await pilot.press("question_mark")
        replaced = {"f": "Freeze (freeze)", "j": "Down (rows.down)"}[key]
        await shows(pilot, f"{replaced}: key reassigned to pause")
        await pilot.press("escape", key)
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == ["pause"])
        assert "FROZEN" not in text_of(pilot)


@pytest.mark.parametrize(
    ("opens", "binding", "old", "own", "explained"),
    [
        ("dollar_sign", "usage.week", "w Weeks", "f6 Weeks", "f6 +group by week"),
        ("t", "timeline.next", "n N Next, previous", "f6 N Next, previous", "f6 N +next or previous failure"),
        ("s", "sessions.sort", "o Sort", "f6 Sort", "f6 +sort by "),
        ("w", "replay.play", "space Play", "f6 Play", "f6 +play or pause"),
    ],
)
async def test_every_footer_and_help_shows_the_users_keys_and_a_path_says_where_it_is(
    desk: Desk, opens: str, binding: str, old: str, own: str, explained: str
) -> None:
    for keys, has, gone in (({}, old, own), ({binding: "f6"}, own, old)):
        async with desk.shown("explorer-1", size=(200, 30), settings=Settings(keys=keys)) as pilot:
            live = pilot.app.screen
            await pilot.press(opens)
            await shows(pilot, has)
            assert pilot.app.screen is not live
            assert gone not in text_of(pilot)
            if opens not in "sw":
                assert text_of(pilot).partition("›")[0].endswith(" migrate billing to cents ")
            await pilot.press("question_mark")
            pattern = re.compile(explained.replace("f6", re.escape(has.split()[0]), 1))
            await until(pilot, lambda pattern=pattern: pattern.search(text_of(pilot)))  # type: ignore[misc]


@pytest.mark.parametrize(
    "keys",
    [(), ("2",), ("3",), ("4",), ("s",), ("w",), ("t",), ("T",), ("dollar_sign",), ("v",), ("S",), ("4", "enter")],
    ids=" ".join,
)  # fmt: skip
async def test_the_help_of_a_screen_has_what_its_screen_and_pane_bind_and_only_commands_that_work(
    desk: Desk, keys: tuple[str, ...]
) -> None:
    async with desk.shown("explorer-1") as pilot:
        await pilot.press(*keys)
        await until(pilot, lambda: len(pilot.app.screen_stack) > 2 or not keys or keys[-1].isdigit())
        screen = pilot.app.screen
        assert isinstance(screen, WatchScreen)
        *groups, (title, commands) = screen.help_groups()
        named = {key for _, rows in groups for each, _ in rows for key in each.split()}
        bound = [
            binding
            for owner in (screen, pilot.app.focused)
            for binding in vars(type(owner)).get("BINDINGS", ())
        ]
        assert bound
        assert [each.id for each in bound if not {shown(key) for key in normal(each.key)} & named] == []
        assert title == "Commands"
        assert any(each.startswith(":pause") for each, _ in commands) == (len(pilot.app.screen_stack) == 2)
