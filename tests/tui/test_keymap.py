"""The keys of the configuration: what cannot be used is told in one line each, and the key before stays."""

from __future__ import annotations

import pytest
from tests.tui.conftest import Desk, text_of, until

from watchkeeper_tui.app import active_together
from watchkeeper_tui.keymap import is_key, usable_keys
from watchkeeper_tui.settings import Settings


@pytest.mark.parametrize(
    "key",
    [
        "p",
        "P",
        "?",
        "question_mark",
        "minus",
        "-",
        "+",
        "f5",
        "ctrl+x",
        "shift+left",
        "pageup",
        "space",
        "é",
        "enter",
        "alt+x",
    ],
)
def test_a_key_that_a_terminal_sends_is_one(key: str) -> None:
    assert is_key(key)


@pytest.mark.parametrize(
    "key", ["pgup", "Ctrl+X", "ctrl+", "control+x", "page up", "foo", "<any>", "f99", " ", "", "Escape"]
)
def test_a_name_that_no_key_has_is_none(key: str) -> None:
    assert not is_key(key)


def test_every_key_of_the_dashboard_is_one() -> None:
    from textual.binding import Binding

    from watchkeeper_tui.keymap import normal

    for group in active_together():
        for binding in group:
            assert isinstance(binding, Binding)
            assert all(is_key(key) for key in normal(binding.key)), binding


def test_an_unknown_key_is_one_line_and_the_one_before_stays() -> None:
    used, problems = usable_keys({"act.pause": "pgup", "act.steer": "f5"}, active_together())
    assert used == {"act.steer": "f5"}
    assert problems == [
        "keys.act.pause: 'pgup' is no key (keys are p, P, ?, f5, ctrl+x, pageup …); the one before stays"
    ]


async def test_the_dashboard_says_so_when_it_opens_and_the_old_key_works(desk: Desk) -> None:
    async with desk.app(settings=Settings(keys={"act.pause": "pgup"})).run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: "keys.act.pause: 'pgup' is no key" in text_of(pilot))
        await until(pilot, lambda: "p Pause" in text_of(pilot) and "3 explorer-1" in text_of(pilot))
        await pilot.press("p")
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == ["pause"])
