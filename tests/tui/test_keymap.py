"""The keys of the configuration: what cannot be used is told in one line each, and the key before stays."""

from __future__ import annotations

import re

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from textual.binding import Binding

from watchkeeper_tui.app import active_together
from watchkeeper_tui.keymap import displaced, is_key, normal, usable_keys
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
    for group in active_together():
        for binding in group:
            assert isinstance(binding, Binding)
            assert all(is_key(key) for key in normal(binding.key)), binding


def test_an_unknown_key_is_one_line_and_the_one_before_stays() -> None:
    used, problems = usable_keys({"act.pause": "pgup", "act.steer": "f5"}, active_together())
    assert used == {"act.steer": "f5"}
    assert problems == [
        "keys.act.pause: 'pgup' is not a key (keys are p, P, ?, f5, ctrl+x, pageup …); the previous one is kept"
    ]


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


def test_a_key_of_the_user_goes_before_any_default_on_the_same_screen() -> None:
    groups = active_together()
    for group in groups:
        bindings = [each for each in group if isinstance(each, Binding) and each.id]
        for mine, other in zip(bindings, bindings[1:] + bindings[:1], strict=True):
            wanted = {str(mine.id): other.key}
            assert usable_keys(wanted, groups) == (wanted, [])
            left = displaced(wanted, groups)
            if not normal(mine.key) & normal(other.key):
                assert left[str(other.id)] == ("", mine.id)
            assert mine.id not in left


def test_of_two_keys_of_the_user_that_are_the_same_the_second_is_refused_and_unknown_actions_are() -> None:
    used, problems = usable_keys({"act.pause": "f5", "freeze": "f5", "act.fly": "x"}, active_together())
    assert used == {"act.pause": "f5"}
    assert problems == [
        "keys.act.fly is not an action; see docs/dashboard.md",
        "keys.freeze: 'f5' is act.pause's key; the previous one is kept",
    ]
    # On different screens, one key may do two things.
    apart = {"message.copy": "f5", "compare.swap": "f5"}
    assert usable_keys(apart, active_together()) == (apart, [])


@pytest.mark.parametrize("key", ["f", "j"])
async def test_the_users_key_acts_and_the_help_says_which_default_it_replaces(desk: Desk, key: str) -> None:
    async with desk.shown(
        f"{key} Pause", "3 explorer-1", size=(140, 40), settings=Settings(keys={"act.pause": key})
    ) as pilot:
        assert ("f Freeze" in text_of(pilot)) == (key != "f")
        await pilot.press("question_mark")
        replaced = {"f": "Freeze (freeze)", "j": "Down (rows.down)"}[key]
        await shows(pilot, f"{replaced}: its key is act.pause's")
        await pilot.press("escape", key)
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == ["pause"])
        assert "FROZEN" not in text_of(pilot)


@pytest.mark.parametrize(
    ("opens", "binding", "old", "own", "explained"),
    [
        ("dollar_sign", "usage.week", "w Weeks", "f6 Weeks", "f6 +by week"),
        ("t", "timeline.next", "n Next mark", "f6 Next mark", "f6 N +next and previous failure"),
        ("s", "sessions.sort", "o Sort", "f6 Sort", "f6 +sort: "),
        ("w", "replay.play", "space Play", "f6 Play", "f6 +play, pause"),
    ],
)
async def test_every_footer_and_help_shows_the_users_keys_and_a_path_says_where_it_is(
    desk: Desk, opens: str, binding: str, old: str, own: str, explained: str
) -> None:
    for keys, shown, gone in (({}, old, own), ({binding: "f6"}, own, old)):
        async with desk.shown("explorer-1", size=(200, 30), settings=Settings(keys=keys)) as pilot:
            live = pilot.app.screen
            await pilot.press(opens)
            await shows(pilot, shown)
            assert pilot.app.screen is not live
            assert gone not in text_of(pilot)
            if opens not in "sw":
                assert text_of(pilot).partition("›")[0].endswith(" migrate billing to cents ")
            await pilot.press("question_mark")
            pattern = re.compile(explained.replace("f6", re.escape(shown.split()[0]), 1))
            await until(pilot, lambda pattern=pattern: pattern.search(text_of(pilot)))  # type: ignore[misc]


NAMES = {
    "question_mark": "?", "colon": ":", "slash": "/", "exclamation_mark": "!", "dollar_sign": "$", "asterisk": "*",
    "left_square_bracket": "[", "right_square_bracket": "]", "left_curly_bracket": "{", "right_curly_bracket": "}",
    "less_than_sign": "<", "greater_than_sign": ">", "circumflex_accent": "^", "underscore": "_", "minus": "-",
    "equals_sign": "=", "plus": "+", "number_sign": "#", "escape": "esc", "comma": ",", "full_stop": ".",
    "left": "←", "right": "→",
}  # fmt: skip
WORDS = {"left": "←", "right": "→"}


def keys_in_help(groups: list[tuple[str, list[tuple[str, str]]]]) -> set[str]:
    named = {key for _, rows in groups for keys, _ in rows for key in re.split(r"[ ,]+|(?<=\w),", keys)}
    if "0-9" in named:
        named |= set("0123456789")
    words = {word for _, rows in groups for _, words in rows for word in re.split(r"[ ;:]+", words)}
    elsewhere = {"esc", "shift+tab"}  # of every screen; with tab
    return named | {WORDS.get(key, key) for key in named} | (words & {"backspace", "s"}) | elsewhere


@pytest.mark.parametrize(
    "keys",
    [(), ("2",), ("3",), ("4",), ("s",), ("w",), ("t",), ("T",), ("dollar_sign",), ("v",), ("W",), ("4", "enter")],
    ids=" ".join,
)  # fmt: skip
async def test_the_help_of_a_screen_names_every_key_of_it(desk: Desk, keys: tuple[str, ...]) -> None:
    async with desk.shown("explorer-1") as pilot:
        await pilot.press(*keys)
        await until(pilot, lambda: len(pilot.app.screen_stack) > 2 or not keys or keys[-1].isdigit())
        screen = pilot.app.screen
        assert isinstance(screen, WatchScreen)
        named = keys_in_help(screen.help_groups())
        missing = {
            binding.description: binding.key
            for owner in (screen, pilot.app.focused)
            for binding in vars(type(owner)).get("BINDINGS", ())
            if not {NAMES.get(key, key) for key in normal(binding.key)} & named
        }
        assert missing == {}
