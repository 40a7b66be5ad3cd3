"""What stands around an open question: its own keys, nothing that covers it, and words that are told to their
end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.test_mouse import click
from textual import events
from textual.pilot import Pilot

from watchkeeper_tui.widgets.bars import Prompt, StatusLine

SIZES = [(120, 40), (80, 24)]
LIST_KEYS = ("Replay", "Freeze", "Pause", "Compact")
"""Words of the footer while no question is open."""


def footer_of(pilot: Pilot[int]) -> str:
    return text_of(pilot).splitlines()[-1]


@pytest.mark.parametrize("size", SIZES, ids=["120x40", "80x24"])
@pytest.mark.parametrize("screen", ["live", "sessions"])
async def test_while_one_types_the_footer_tells_the_keys_of_typing(desk, screen, size):
    async with desk.shown(size=size, screen=screen) as pilot:
        await until(pilot, lambda: "Quit" in footer_of(pilot) or "Help" in footer_of(pilot))
        await pilot.press("slash", *"core")
        await until(pilot, lambda: "↵" in footer_of(pilot) and "esc" in footer_of(pilot))
        assert not [word for word in LIST_KEYS if word in footer_of(pilot)]
        await pilot.press("escape")
        await until(pilot, lambda: any(word in footer_of(pilot) for word in LIST_KEYS))


async def test_keys_of_typing_can_be_clicked(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=SIZES[0]) as pilot:
        await pilot.press("slash", *"core")
        await click(pilot, "Apply")
        await until(pilot, lambda: "1 Plan  /core" in text_of(pilot) and "Freeze" in footer_of(pilot))
        await pilot.press("slash", *" tui")
        await click(pilot, "esc Cancel")
        await until(pilot, lambda: "Freeze" in footer_of(pilot))
        assert "1 Plan  /core ─" in text_of(pilot)
        await pilot.press("slash")
        await click(pilot, "↑ History")
        await until(pilot, lambda: pilot.app.screen.query_one("#prompt-line").value == "core")  # type: ignore[attr-defined]


async def test_a_question_of_one_key_has_no_other_keys_below_it(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=SIZES[0]) as pilot:
        await pilot.press("C")
        await until(pilot, lambda: "y yes" in text_of(pilot) and footer_of(pilot).strip() == "esc Back")
        await pilot.press("n")
        await until(pilot, lambda: "Freeze" in footer_of(pilot))


@pytest.mark.parametrize(("key", "kind"), [("P", "pause"), ("U", "redo")])
async def test_enter_confirms_what_spends_and_loses_nothing(desk: Desk, key: str, kind: str) -> None:
    async with desk.shown("explorer-1", size=SIZES[0]) as pilot:
        await pilot.press(key)
        await shows(pilot, "y ↵ yes")
        await pilot.press("enter")
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == [kind])


@pytest.mark.parametrize("key", ["enter", "y", "l"])
async def test_leaving_a_run_that_goes_on_is_confirmed_by_enter(desk: Desk, key: str) -> None:
    app = desk.app()
    async with app.run_test(size=SIZES[0]) as pilot:
        await shows(pilot, "explorer-1")
        await pilot.press("q", key)
        await until(pilot, lambda: not app.is_running)
    assert (app.left_by, desk.session.commands()) == ("leave", [])


@pytest.mark.parametrize("size", SIZES, ids=["120x40", "80x24"])
async def test_a_notice_covers_neither_the_question_nor_what_is_typed(desk, size):
    async with desk.shown("explorer-1", size=size, notifications=True) as pilot:
        pilot.app.notify("Survey this folder " * 6, title="run finished", timeout=1_000)
        await shows(pilot, "run finished")

        def is_covered(rows: int) -> bool:
            return "▌" in "".join(text_of(pilot).splitlines()[-rows:])

        await until(
            pilot, lambda: not is_covered(2) and is_covered(4)
        )  # neither the line that tells nor the keys
        await pilot.press("slash")
        await until(
            pilot,
            lambda: not is_covered(size[1] - pilot.app.screen.query_one(Prompt).region.y) and is_covered(8),
        )
        await pilot.press("escape")
        await until(pilot, lambda: not is_covered(2) and is_covered(4))


@pytest.mark.parametrize("size", SIZES, ids=["120x40", "80x24"])
async def test_why_a_command_was_refused_is_told_to_the_end(desk: Desk, size: tuple[int, int]) -> None:
    async with desk.shown("explorer-1", size=size) as pilot:
        why = (
            "Version 3 of the context no longer fits: it would take 5151 tokens, 1512 over the limit of 3639."
        )
        pilot.app.screen.say(f"✗ undo planner: refused — {why}", "failed")  # type: ignore[attr-defined]
        await until(pilot, lambda: "the limit of 3639." in " ".join(text_of(pilot).split()))
        assert "Help" in footer_of(pilot)
        pilot.app.screen.say("✓ done", "done")  # type: ignore[attr-defined]
        await until(
            pilot,
            lambda: (
                text_of(pilot).splitlines()[-2].strip() == "✓ done" and "╰" in text_of(pilot).splitlines()[-3]
            ),
        )


async def test_a_question_that_waits_names_its_key_however_long_it_is(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=SIZES[1]) as pilot:
        desk.session.set_agent("explorer1", status="waiting", status_reason="bash")
        desk.session.approval("explorer1", question="rm -rf build && " * 12)
        desk.feed.wake()
        await shows(pilot, "a answers")


async def test_what_is_asked_is_named_once(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=SIZES[1]) as pilot:
        desk.session.set_agent("explorer1", status="waiting", status_reason="wants to run list_folder")
        desk.session.approval("explorer1", question='list_folder {"path": "."}', tool="list_folder")
        desk.session.event(
            "approval.asked", "explorer1", tool="list_folder", question='list_folder {"path": "."}'
        )
        desk.feed.wake()
        await shows(
            pilot,
            'explorer-1 (explorer) wants to run list_folder {"path": "."}   a answers',
            "│▌? ├╴explorer-1 (explorer) ",
        )
        await pilot.press("2", "a")
        await until(pilot, lambda: "a answers" not in text_of(pilot))  # it would be typed into nothing
        assert "explorer-1 (explorer) wants to run list_folder" in text_of(pilot)
        assert "path" in text_of(pilot)
        assert "\n│ │ .\n" in "\n".join(line.rstrip(" │▁▃▅▇█▎▊") for line in text_of(pilot).splitlines())


PASTED = "first line\r\nsecond \x1b[31mline\r"


@pytest.mark.parametrize(
    ("keys", "submit", "wanted"), [(["m"], ["enter"], ("steer", {"text": "first line\nsecond line"})),
     (["C", "i"], ["enter", "y"], ("compact", {"instructions": "first line\nsecond line"})),
     (["colon", "ctrl+u", *"/steer "], ["enter"], ("steer", {"text": "first line second line"}))],
)  # fmt: skip
async def test_what_is_pasted_loses_no_line(desk, keys, submit, wanted):
    async with desk.shown("explorer-1", size=SIZES[1]) as pilot:
        await pilot.press(*keys)
        pilot.app.post_message(events.Paste(PASTED))
        await shows(pilot, "second line")
        await pilot.press(*submit)
        await until(pilot, lambda: bool(desk.session.commands()))
        kind, _, _, payload = desk.session.commands()[0]
        assert (kind, json.loads(payload)) == wanted


@pytest.mark.parametrize("screen", ["live", "sessions"])
async def test_a_search_takes_all_that_is_pasted_and_no_key_is_pressed_by_it(desk: Desk, screen: str) -> None:
    async with desk.shown(size=SIZES[0], screen=screen) as pilot:
        await until(pilot, lambda: "Help" in footer_of(pilot))
        pilot.app.post_message(events.Paste("Xy"))  # nobody asked
        await pilot.press("slash", *"the ")
        pilot.app.post_message(events.Paste("Explore\ncore"))
        await shows(pilot, "the Explore core")
    assert desk.control.submitted == 0


async def test_a_key_that_is_named_is_not_cut_off(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=SIZES[1]) as pilot:
        line = pilot.app.screen.query_one(StatusLine)
        line.pieces = (
            ("compact explorer-4  ✓ 04:14:45 manual 2.8k → 1.3k -54% $0.00 blocked 0ms", "text"),
            ("   u", "key"),
            (" undoes it", "muted"),
        )
        await shows(pilot, "undoes it")


async def test_the_first_hint_is_told_to_its_end_on_a_small_screen(desk: Desk, tmp_path: Path) -> None:
    async with desk.shown(size=SIZES[1], layout_path=tmp_path / "layout.json") as pilot:
        await shows(pilot, "new here?", "? shows all keys")
