"""A person edits the plan: what a form writes, what it refuses, and that its text is never lost."""

from __future__ import annotations

import json

import pytest
from tests.tui.conftest import Desk, choose, shows, text_of, until
from textual.pilot import Pilot
from textual.widgets import TextArea

from watchkeeper.records.errors import BadInput
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.screens.task_form import TaskFormScreen, listed

ROLES = json.dumps(
    [
        {"role": name, "source": "built-in", "model": "offline/surveyor"}
        for name in ("planner", "coder", "explorer")
    ]
)
SIZES = [(80, 24), (120, 40)]


def last(desk: Desk) -> tuple[str, str | None, dict[str, object]]:
    kind, _, task, payload = desk.session.commands()[-1]
    return kind, task, json.loads(payload)


async def form(pilot: Pilot[int]) -> TaskFormScreen:
    await until(pilot, lambda: isinstance(pilot.app.screen, TaskFormScreen))
    screen = pilot.app.screen
    assert isinstance(screen, TaskFormScreen)
    return screen


async def answer(pilot: Pilot[int], desk: Desk, status: str, result: str) -> None:
    """The host settles every command that waits."""
    await until(pilot, lambda: bool(desk.session.commands()))
    await pilot.pause()
    desk.session.connection.execute(
        "UPDATE commands SET status = ?, result = ?, applied_at = ? WHERE status = 'queued'",
        (status, result, desk.time),
    )
    desk.feed.wake()


@pytest.mark.parametrize("size", SIZES)
async def test_a_task_is_added_by_keyboard_alone_and_the_form_closes_when_it_is_applied(desk, size):
    desk.session.set(roles=ROLES)
    async with desk.shown(row="task:t-core", size=size) as pilot:
        await pilot.press("A")
        await form(pilot)
        await pilot.press(*"check", "enter", *"Check it", "enter")
        await pilot.press("down", "down", "enter")  # the list of roles: the second
        await pilot.press("down", "enter", "down", "space", "escape")  # two tasks of the list
        await pilot.press("tab", *"report, file:out.md", "tab", *"Look.", "enter", *"Twice.")
        assert "explorer" in text_of(pilot)
        await pilot.press("ctrl+s")
        await answer(pilot, desk, "applied", "check is added")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
        await shows(pilot, "check is added")
    assert last(desk) == ("plan", None, {"act": "add", "arguments": {
        "name": "check", "title": "Check it", "role": "explorer", "depends_on": ["explorer-1", "explorer-2"],
        "expected_outputs": ["report", "file:out.md"], "instructions": "Look.\nTwice.",
    }})  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
async def test_a_revision_is_filled_in_with_what_is_there_and_sends_what_was_changed(desk, size):
    desk.session.set(roles=ROLES)
    desk.session.connection.execute(
        "UPDATE tasks SET instructions = 'One.\nTwo.', expected_outputs = '[\"survey\"]' WHERE id = 't-survey'"
    )
    async with desk.shown(row="task:t-survey", size=size) as pilot:
        await pilot.press("V")
        screen = await form(pilot)
        await until(pilot, lambda: screen.typed("instructions") == "One.\nTwo.")
        assert [screen.typed(name) for name in ("title", "role", "needs", "outputs")] == [
            "Write the survey", "explorer", "explorer-1, explorer-2", "survey",
        ]  # fmt: skip
        await pilot.press("ctrl+s")
        await shows(pilot, "no changes")
        assert desk.session.commands() == []
        await pilot.press("tab", "tab", "ctrl+u", *"explorer-1", "ctrl+s")
        await answer(pilot, desk, "applied", "t-survey is revised")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
    assert last(desk) == (
        "plan", "t-survey", {"act": "revise", "arguments": {"task": "t-survey", "depends_on": ["explorer-1"]}},
    )  # fmt: skip


async def test_a_drop_names_what_depends_on_the_task_and_takes_a_reason(desk: Desk) -> None:
    async with desk.shown(row="task:t-tui") as pilot:
        await pilot.press("D")
        await shows(pilot, "Drop explorer-2", "1 dependent task will run without it: t-survey", "y yes")
        await pilot.press("m")
        await form(pilot)
        await pilot.press(*"late", "ctrl+s")
        await answer(pilot, desk, "applied", "t-tui is dropped")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
        assert last(desk) == (
            "plan", "t-tui", {"act": "drop", "arguments": {"task": "t-tui", "reason": "late"}},
        )  # fmt: skip
        await pilot.press("D", "y")
        await until(pilot, lambda: len(desk.session.commands()) == 2)
    assert last(desk)[2] == {"act": "drop", "arguments": {"task": "t-tui"}}


@pytest.mark.parametrize(("key", "fresh"), [("R", False), ("Z", True)])
async def test_a_re_run_takes_a_message_and_keeps_the_choice_of_the_memory(desk, key, fresh):
    async with desk.shown(row="task:t-docs") as pilot:
        await pilot.press(key)
        await shows(pilot, "m with a message")
        await pilot.press("m")
        screen = await form(pilot)
        assert screen.typed("memory") == ("fresh" if fresh else "keep")
        await pilot.press(*"Count", "enter", *"again", "ctrl+s")
        await answer(pilot, desk, "applied", "again")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
    assert last(desk) == ("rerun", "t-docs", {"fresh": fresh, "message": "Count\nagain"})


async def test_a_re_run_with_a_message_starts_a_host_where_none_runs(desk: Desk) -> None:
    desk.host_pid = None
    desk.session.set(status="done", ended_at=desk.time)
    async with desk.shown(row="task:t-docs") as pilot:
        await pilot.press("colon", "ctrl+u", *"/rerun message", "enter")
        await form(pilot)
        await pilot.press("tab", "ctrl+u", *"fresh", "shift+tab", *"why", "ctrl+s")
        await until(pilot, lambda: desk.control.started == [(desk.session.id, False, 1)])
    assert last(desk) == ("rerun", "t-docs", {"fresh": True, "message": "why"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"instructions": "x"}, "the name is empty"),
        ({"name": "x", "instructions": " "}, "the instructions are empty"),
        (
            {"name": "x", "instructions": "x", "role": "nobody"},
            "unknown role 'nobody'; use one of coder, explorer",
        ),
        (
            {"name": "x", "instructions": "x", "needs": "explorer-1, t-none"},
            "unknown task 't-none'",
        ),
    ],
)
async def test_bad_input_is_said_before_it_is_sent_and_the_text_stays(desk, fields, said):
    desk.session.set(roles=ROLES)
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("A")
        screen = await form(pilot)
        for name, text in fields.items():
            part = screen._part(name)
            part.text = text if isinstance(part, TextArea) else None  # type: ignore[assignment]
            if not isinstance(part, TextArea):
                part.value = text
        await pilot.press("ctrl+s")
        await shows(pilot, said)
        assert {name: screen.typed(name) for name in fields} == fields
        assert desk.session.commands() == []


@pytest.mark.parametrize("by", ["submit", "host"])
async def test_a_refused_command_is_said_in_one_line_and_can_be_corrected(desk, by):
    async with desk.shown(row="task:t-survey") as pilot:
        await pilot.press("V")
        screen = await form(pilot)
        await until(pilot, lambda: screen.typed("title") == "Write the survey")
        await pilot.press(*" now")
        if by == "submit":
            desk.control.fails = BadInput("refused: these tasks form a dependency cycle: a, b")
            await pilot.press("ctrl+s")
            await shows(pilot, "✗ refused: these tasks form a dependency cycle: a, b")
            desk.control.fails = None
        else:
            await pilot.press("ctrl+s")
            await answer(pilot, desk, "refused", "t-survey is running; cancel it first")
            await shows(pilot, "✗ refused: t-survey is running; cancel it first")
        assert screen.typed("title") == "Write the survey now"
        await pilot.press(*"!", "ctrl+s")
        await answer(pilot, desk, "applied", "t-survey is revised")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
    assert last(desk)[2] == {
        "act": "revise", "arguments": {"task": "t-survey", "title": "Write the survey now!"},
    }  # fmt: skip


@pytest.mark.parametrize("what", ["task", "run"])
async def test_what_changes_while_a_form_is_open_refuses_it_and_keeps_the_text(desk, what):
    async with desk.shown(row="task:t-survey") as pilot:
        await pilot.press("V")
        screen = await form(pilot)
        await until(pilot, lambda: screen.typed("title") == "Write the survey")
        await pilot.press(*" now")
        if what == "task":
            desk.session.connection.execute("UPDATE tasks SET status = 'running' WHERE id = 't-survey'")
        else:
            desk.session.set(status="done", ended_at=desk.time)
            desk.host_pid = None
        desk.session.event("task.running", None, "t-survey")
        desk.feed.wake()
        reason = "t-survey is running" if what == "task" else "the run has ended"
        await shows(pilot, f"not possible now: {reason}")
        await pilot.press("ctrl+s")
        await shows(pilot, "your text is kept")
        assert screen.typed("title") == "Write the survey now"
        assert desk.session.commands() == []
        await pilot.press("escape")
        await shows(pilot, "Your input will be lost")
        await pilot.press("n")
        assert screen.typed("title") == "Write the survey now"
        await pilot.press("escape", "y")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))


@pytest.mark.parametrize("key", ["A", "V", "D"])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"origin": "claude-code"}, "imported sessions are read-only"),
        ({"status": "done"}, "the run has ended; R re-runs a task"),
        ({"status": "failed"}, "the run failed; r resumes it"),
    ],
)
async def test_sessions_that_cannot_be_edited_do_not_offer_it_and_say_why(desk, key, changed, reason):
    desk.host_pid = None
    desk.session.set(**changed, ended_at=desk.time)
    async with desk.shown(row="task:t-survey", size=(200, 40)) as pilot:
        await pilot.pause()
        assert " Add task" not in text_of(pilot).splitlines()[-1]
        await pilot.press(key)
        await shows(pilot, reason)
        assert not isinstance(pilot.app.screen, TaskFormScreen)


async def test_without_a_host_an_edit_waits_and_says_so(desk: Desk) -> None:
    desk.host_pid = None
    desk.session.set(status="paused")
    async with desk.shown(row="task:t-survey") as pilot:
        await pilot.press("A")
        await form(pilot)
        await pilot.press(*"x", *["tab"] * 5, *"Do it.", "ctrl+s")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
        desk.feed.wake()
        await shows(pilot, "applies on resume")


@pytest.mark.parametrize(("line", "kind"), [("/plan add", "plan_add"), ("/plan revise", "plan_revise")])
async def test_the_command_bar_and_the_palette_open_the_same_forms(desk, line, kind):
    async with desk.shown(row="task:t-survey") as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, LiveScreen)
        await pilot.press("colon", "ctrl+u", *line, "enter")
        opened = await form(pilot)
        assert opened._action.id == kind
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        title = opened._action.label
        next(each for each in pilot.app.get_system_commands(screen) if each.title == title).callback()
        await form(pilot)


def test_names_with_commas_are_found_among_those_that_are_known() -> None:
    assert listed(" a, b,c ,, a", []) == ["a", "b", "c"]
    assert listed("one, two, three", ["one, two", "one"]) == ["one, two", "three"]


async def test_several_marked_tasks_are_not_revised_at_once(desk: Desk) -> None:
    async with desk.shown(row="task:t-draft") as pilot:
        await pilot.press("space")
        await choose(pilot, "task:t-survey")
        await pilot.press("space", "V")
        await shows(pilot, "select only one task")
