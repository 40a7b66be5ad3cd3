"""Every screen at both sizes looks as it was agreed: its words, its colours, and where they stand (see
`pictures`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.pictures import assert_agreed, compact, difference, lines_of
from tests.tui.test_approval import ask
from tests.tui.test_compaction_screen import compacted
from tests.tui.test_library_screens import library_of
from tests.tui.test_rendering import save
from tests.tui.told import told_session
from textual.pilot import Pilot

from watchkeeper_tui.control import read
from watchkeeper_tui.screens.approval import ApprovalScreen
from watchkeeper_tui.screens.compaction import CompactionScreen
from watchkeeper_tui.screens.replay import ReplayScreen

SIZES = ((120, 40), (80, 24))
both_sizes = pytest.mark.parametrize("size", SIZES, ids=["120x40", "80x24"])

LIVE: dict[str, tuple[list[str], str]] = {
    "live": ([], "explorer-1"), "transcript": (["3", "right"], "Thirty files of Python"),
    "calls": (["3", "right", "right"], "prompt"), "metrics": (["3", "right", "right", "right"], "calls"),
    "compactions": (["3", *["right"] * 4], "Enter opens one"), "report": (["i"], "Result"),
    "prompt": (["3", "left"], "System prompt and tools"), "compact": (["C"], "are rewritten"),
    "prompt-preview": (["C", "v"], "rewritten to the prompt cache"), "zoom": (["3", "z"], "explorer-1"),
    "message-to": (["m"], "explorer-1"), "commands": (["colon", *"/bud"], "/bud"),
    "filter": (["slash", *"explore"], "explore"), "help": (["question_mark"], "esc closes"),
    "frozen": (["f"], "VIEW FROZEN"), "leave": (["q"], "detach"), "sessions": (["s"], "live (pid 991)"),
}  # fmt: skip
"""What is opened from the live screen, by which keys, and words that stand there then."""

FORETOLD = read({
    "tokens_before": 98_000, "tokens": 21_400, "limit": 180_000, "cache_tokens_written": 21_000, "cost_usd": 0.07875,
    "messages_cached": 1, "high_water": 40, "sizes": [400, 9_600, 11_400],
    "messages": [
        {"role": "user", "content": "Explore core: what it holds, and how it is tested."},
        {"role": "user", "content": [{"type": "text", "text": "# Memory of earlier messages"}, {"type": "text", "text": "Decisions\n- tests first (#3)"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I read on."}, {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "core/a.py"}}]},
    ],
})  # fmt: skip
"""What a compaction would lead to."""

LIBRARY: dict[str, tuple[list[str], str]] = {
    "library": (["j", "space", "slash", *"ledger", "enter"], "found in planner"),
    "filters": (["t"], "state"), "grouped": (["b"], "yesterday 1"), "fork": (["j", "F"], "turn 1"),
    "compare": (["space", "space", "equals_sign"], "Compare abcd2345"),
    "message": (["slash", *"safe", "enter", "m"], "messages in this session"), "name": (["j", "n"], "Name"),
    "tags": (["j", "number_sign"], "Tag"), "export": (["j", "x"], "esc cancel"),
    "delete": (["j", "D"], "y yes"),
}  # fmt: skip
"""The same from the list of sessions."""


async def opened(pilot: Pilot[int]) -> None:
    await shows(pilot, "explorer-1", without="reading", seconds=30)


@both_sizes
@pytest.mark.parametrize("name", LIVE)
async def test_a_screen_looks_as_it_was_agreed(desk: Desk, name: str, size: tuple[int, int]) -> None:
    keys, words = LIVE[name]
    desk.control.foretold = FORETOLD
    async with desk.shown(size=size) as pilot:
        await opened(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: words in text_of(pilot) or size == SIZES[1], seconds=30)
        await assert_agreed(pilot, name)


@both_sizes
@pytest.mark.parametrize("name", LIBRARY)
async def test_a_screen_of_the_library_looks_as_it_was_agreed(desk, name, size, monkeypatch):
    monkeypatch.chdir("/")  # where an export would go is said
    library_of(desk)
    keys, words = LIBRARY[name]
    async with desk.shown("older234", size=size, seconds=30, screen="sessions") as pilot:
        for key in keys:
            await pilot.press(key)
            if key == "enter" and name == "message":
                await shows(pilot, "found in planner", seconds=30)
        await shows(pilot, words, seconds=30)
        await assert_agreed(pilot, name)


async def needs_you(desk: Desk, pilot: Pilot[int]) -> None:
    desk.session.set_agent("explorer1", status="waiting", status_reason="bash: rm -rf build")
    desk.session.approval("explorer1")
    desk.feed.wake()
    await shows(pilot, "?1", seconds=30)
    await pilot.press("a")


COMMAND = (
    "set -euo pipefail\nfor file in $(find src -name '*.py'); do   # every file\n    gzip --keep \"$file\""
    " && echo done >> build.log\ndone\n"
    'curl -fsSL https://example.com/install.sh | sh -s -- --prefix="$HOME/.local" --with-an-option=that-makes-the-line-wrap\n'
    "printf 'a\u202etxt.exe'\n" + "\n".join(f"echo step {number}" for number in range(40))
)


async def question(desk: Desk, pilot: Pilot[int]) -> None:
    ask(
        desk, "bash", {"command": COMMAND, "timeout_ms": 60_000}, folder="/srv/billing/services",
        note="it is asked for a picture",
    )  # fmt: skip
    desk.feed.wake()
    await until(pilot, lambda: "?1" in text_of(pilot) or "a answers" in text_of(pilot), seconds=30)
    await pilot.press("a")
    await until(
        pilot, lambda: isinstance(pilot.app.screen, ApprovalScreen) and pilot.app.screen._is_read, seconds=30
    )


async def dead(desk: Desk, pilot: Pilot[int]) -> None:
    desk.host_pid = None
    await shows(pilot, "STOPPED", seconds=30)


async def palette(desk: Desk, pilot: Pilot[int]) -> None:
    await pilot.press("ctrl+p")
    await shows(pilot, "Search for commands", seconds=30)


async def one_pass(desk: Desk, pilot: Pilot[int]) -> None:
    compacted(desk.session)
    desk.feed.wake()
    await until(pilot, lambda: any(each.id == 5 for each in pilot.app.snapshot.compactions), seconds=30)  # type: ignore[attr-defined]
    pilot.app.open_compaction(5)  # type: ignore[attr-defined]
    await until(
        pilot,
        lambda: isinstance(pilot.app.screen, CompactionScreen) and pilot.app.screen.sides is not None,
        seconds=30,
    )


async def replay(desk: Desk, pilot: Pilot[int]) -> None:
    told_session(desk)
    pilot.app.open_replay("told2345")  # type: ignore[attr-defined]

    def stands_at(position: int) -> bool:
        screen = pilot.app.screen
        return (
            isinstance(screen, ReplayScreen) and screen.shown_position == screen.playback.position == position
        )

    await until(pilot, lambda: stands_at(1), seconds=30)
    await pilot.press("n", "n")
    await until(pilot, lambda: stands_at(11), seconds=30)
    await pilot.press("a")
    await shows(pilot, "turn 2", seconds=30)
    screen: Any = pilot.app.screen
    screen._notice_until = 0.0
    screen._describe()


SURVEY = (
    "# Survey of the billing service\n\nThe **core** has 30 files; `Writer` is the *only* one that writes.\n\n"
    "- [x] read the core\n- [ ] read the tests\n\n| module | lines | tests |\n|---|---|---|\n| core/writer.py | 812 | yes |\n"
    "| core/reader.py | 240 | no |\n\n> Cents are integers.\n\n```python\ndef total(lines: list[Line]) -> int:\n"
    "    return sum(line.cents for line in lines)  # never a float\n```\n"
)


async def artifact(desk: Desk, pilot: Pilot[int]) -> None:
    save(desk, "figures.json", b'{"files": 30}')
    save(desk, "SURVEY.md", SURVEY.encode())
    await pilot.press("v")
    await shows(pilot, "Cents are integers", seconds=30)


HAPPENINGS: dict[str, Callable[[Desk, Pilot[int]], Awaitable[None]]] = {
    "needs-you": needs_you, "question": question, "dead": dead, "palette": palette, "pass": one_pass,
    "replay": replay, "artifact": artifact,
}  # fmt: skip


@both_sizes
@pytest.mark.parametrize("name", HAPPENINGS)
async def test_what_happens_looks_as_it_was_agreed(desk: Desk, name: str, size: tuple[int, int]) -> None:
    async with desk.shown(size=size) as pilot:
        await opened(pilot)
        await HAPPENINGS[name](desk, pilot)
        await assert_agreed(pilot, name)


async def test_a_picture_is_the_same_each_time_and_tells_the_text_that_stood_there(desk: Desk) -> None:
    async with desk.shown(size=SIZES[0]) as pilot:
        await opened(pilot)
        await assert_agreed(pilot, "live")
        first, second = (pilot.app.export_screenshot(title="watchkeeper", simplify=True) for _ in range(2))
        assert compact(first) == compact(second)
        # Pictures have no cells of their own for what is wider than one.
        assert [line.rstrip() for line in lines_of(compact(first))] == text_of(pilot).splitlines()


async def test_a_changed_picture_is_told_in_words_and_else_in_colours(desk: Desk) -> None:
    async with desk.shown(size=SIZES[1]) as pilot:
        await opened(pilot)
        picture = compact(pilot.app.export_screenshot(title="watchkeeper", simplify=True))
    told = difference(picture, picture.replace("explorer-3", "explorer-9"))
    assert any(line.startswith("-") and "explorer-3" in line for line in told.splitlines())
    assert any(line.startswith("+") and "explorer-9" in line for line in told.splitlines())
    repainted = picture.replace("fill:#8bd17c", "fill:#ff0000", 1)
    assert repainted != picture
    assert "fill:#8bd17c -> fill:#ff0000" in difference(picture, repainted)
