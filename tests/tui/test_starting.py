"""How one begins: the welcome, the form that starts a run, and a run in which nobody is at work yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tui.conftest import NOW, Desk, shows, text_of, until
from tests.tui.hostile import ATTACKS, Recorder, judge
from tests.tui.pictures import assert_agreed

from watchkeeper_tui.control import ModelChoice, RunRequest
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.screens.start import StartScreen
from watchkeeper_tui.screens.welcome import Discovery, LogsFound


def a_new_run(desk: Desk, **values: object) -> None:
    for table in ("agents", "tasks", "events", "compactions"):
        desk.session.connection.execute(f"DELETE FROM {table}")
    unbegun = {
        "planner_agent_id": None, "current_plan_id": None, "created_at": desk.time,
        "last_active": desk.time, "host_pid": None,
    }  # fmt: skip
    desk.session.set(**unbegun | values)
    desk.host_pid = None


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_while_the_host_starts_the_panes_say_so_until_the_planner_is_there(desk, size):
    a_new_run(desk)
    async with desk.shown("OPENING", "Starting the background process…", size=size) as pilot:
        assert "not assigned to an agent" not in text_of(pilot)
        desk.host_pid = 77
        desk.session.set(host_pid=77)
        desk.feed.wake()
        await shows(pilot, "LIVE", "Starting the planner…")
        desk.session.agent("planner1", "planner", role="planner")
        desk.session.set(planner_agent_id="planner1")
        desk.feed.wake()
        await until(pilot, lambda: "● ▾ planner" in text_of(pilot) or "●   planner" in text_of(pilot))
        assert "Starting the planner…" not in text_of(pilot)


async def test_a_run_whose_host_never_came_says_how_to_start_another(desk: Desk) -> None:
    a_new_run(desk, created_at=desk.time - 60)
    async with desk.shown() as pilot:
        await shows(pilot, "STOPPED", "r resumes the run")


THREE_SIZES = [(80, 24), (120, 40), (200, 60)]
FOUND = Discovery(
    (LogsFound("claude", "Claude Code", 231, NOW - 12, "/srv/billing"),
     LogsFound("codex", "Codex", 18, NOW - 90_000, "/srv/ledger")),
    ("claude", "codex"), ("anthropic",),
)  # fmt: skip


@pytest.mark.parametrize("size", THREE_SIZES)
async def test_the_welcome_looks_as_agreed(desk, size, monkeypatch):
    monkeypatch.chdir("/")
    async with desk.shown("Claude Code", size=size, seconds=30, discover=lambda: FOUND) as pilot:
        await assert_agreed(pilot, "welcome")


@pytest.mark.parametrize(
    ("keys", "how"),
    [(["w"], "watch claude"), (["j", "enter"], "watch codex"), (["i"], "import claude codex")],
)  # fmt: skip
async def test_each_key_of_the_welcome_says_what_to_do_next(desk: Desk, keys: list[str], how: str) -> None:
    app = desk.app(discover=lambda: FOUND)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "Claude Code")
        await pilot.press(*keys)
    assert app.left_by == how


async def test_without_a_database_and_logs_the_welcome_offers_the_demo_and_a_run(desk, tmp_path, monkeypatch):
    async def refuse(path: Path, request: RunRequest) -> tuple[str, str]:
        return "", f"{request.model} would overwrite the database"

    monkeypatch.setattr("watchkeeper_tui.app.start_run", refuse)
    desk.path = tmp_path / "none.db"
    app = desk.app(discover=lambda: Discovery())
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "no logs found; d runs the demo, ctrl+n starts a run")
        shown = text_of(pilot)
        assert "try the demo" in shown
        assert "start a run" in shown
        assert "watch the newest" not in shown
        await pilot.press("w", "d")
        await shows(pilot, "demo failed: offline/surveyor would overwrite")
        await pilot.press("ctrl+n")
        await shows(pilot, "Budget, USD")
    assert not desk.path.exists()


def fill(pilot: Any, **values: str) -> None:
    for name, value in values.items():
        pilot.app.screen.query_one(f"#start-{name}").value = value


@pytest.mark.parametrize("size", THREE_SIZES)
async def test_the_form_that_starts_a_run_looks_as_agreed(desk, size, monkeypatch):
    monkeypatch.chdir("/")
    async with desk.shown("explorer-1", size=size) as pilot:
        await pilot.press("ctrl+n", *"audit")
        await shows(pilot, "Budget, USD")
        await assert_agreed(pilot, "start")


async def test_a_run_is_started_as_typed_after_it_was_confirmed_and_a_refusal_is_said(desk, monkeypatch):
    asked: list[RunRequest] = []
    answers = [("", "no key; set ANTHROPIC_API_KEY"), (desk.session.id, "")]

    async def start_run(path: Path, request: RunRequest) -> tuple[str, str]:
        asked.append(request)
        return answers.pop(0)

    monkeypatch.setattr("watchkeeper_tui.app.start_run", start_run)
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("ctrl+n", "ctrl+s")
        await shows(pilot, "the goal is empty")
        fill(
            pilot,
            goal="audit it",
            workspace="/srv",
            model="x/y",
            budget_usd="2",
            allow="bash  edit",
            rules="Use tabs.",
        )
        await pilot.press("ctrl+s")
        await shows(pilot, "Start: audit it", "up to $2")
        assert not asked
        await pilot.press("y")
        await shows(pilot, "start failed: no key")
        await pilot.press("ctrl+s", "y")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
    assert (
        asked[0]
        == asked[1]
        == RunRequest("audit it", "/srv", "x/y", "2", "", (), ("bash", "edit"), rules="Use tabs.")
    )


MODELS = (
    ModelChoice("anthropic/claude-sonnet-5", "key: ANTHROPIC_API_KEY", "", 2.0, 10.0),
    ModelChoice("openai-chat/qwen3:8b", "the server at http://127.0.0.1:11434", "http://127.0.0.1:11434"),
    ModelChoice("openai-chat/\x1b[31mred\u202e", "hostile"),
)


async def test_models_folders_and_what_roles_ask_for_are_chosen_from_lists(desk, monkeypatch):
    asked: list[str] = []

    async def list_models(workspace: str) -> tuple[tuple[ModelChoice, ...], tuple[ModelChoice, ...]]:
        asked.append(workspace)
        return MODELS, (ModelChoice("x/dear", "reviewer (.claude/agents)"),)

    async def start_run(path: Path, request: RunRequest) -> tuple[str, str]:
        requests.append(request)
        return "", "refused"

    requests: list[RunRequest] = []
    monkeypatch.setattr("watchkeeper_tui.app.list_models", list_models)
    monkeypatch.setattr("watchkeeper_tui.app.start_run", start_run)
    async with desk.shown("explorer-1", size=(80, 24)) as pilot:
        await pilot.press("ctrl+n", *"audit", "tab", "ctrl+u")
        await shows(pilot, "/srv/billing")
        assert asked == []  # nothing is looked for before it is of use
        await pilot.press("down", "enter")
        await shows(pilot, "$2 in, $10 out /M tok")
        assert asked == ["/srv/billing"]
        assert "hostile" not in text_of(pilot)
        await pilot.press(*"qwen")
        await shows(pilot, without="$2 in")
        await pilot.press("down", "escape", "down", "enter", "tab", "tab")
        await shows(pilot, "x/dear")
        await pilot.press("down", "enter", "ctrl+s")
        await shows(pilot, "with openai-chat/qwen3:8b, no cost limit")
        await pilot.press("y")
        await shows(pilot, "start failed: refused")
    assert requests == [
        RunRequest("audit", "/srv/billing", "openai-chat/qwen3:8b", allow_models=("x/dear",), base_url="http://127.0.0.1:11434")
    ]  # fmt: skip


async def test_without_a_configured_model_the_form_asks_for_one(desk, monkeypatch):
    async def list_models(workspace: str) -> tuple[tuple[ModelChoice, ...], tuple[ModelChoice, ...]]:
        return MODELS, ()

    async def start_run(path: Path, request: RunRequest) -> tuple[str, str]:
        return "", "no model is chosen; set ANTHROPIC_API_KEY, then run: wk run --detach --json"

    monkeypatch.setattr("watchkeeper_tui.app.list_models", list_models)
    monkeypatch.setattr("watchkeeper_tui.app.start_run", start_run)
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("ctrl+n", *"audit", "ctrl+s", "y")
        await shows(pilot, "set ANTHROPIC_API_KEY and start wk again, or choose one")
        assert "--detach" not in text_of(pilot)
        await pilot.press("tab", "tab")
        await shows(pilot, "$2 in, $10 out")
        await pilot.press("tab", "ctrl+s")
        await shows(pilot, "no model is configured: choose one")
        assert pilot.app.screen.focused.id == "start-model"  # type: ignore[union-attr]


def test_what_is_typed_is_never_an_option_of_the_command() -> None:
    request = RunRequest(
        "--yes", "-w", "--model", budget_usd="-1", deny=("--allow=bash",), from_session="abc", rules="--yes"
    )
    words = request.arguments(Path("/w.db"))
    assert words == [
        "run", "--detach", "--json", "--db=/w.db", "--workspace=-w", "--model=--model", "--budget-usd=-1", "--from=abc",
        "--rules=--yes", "--deny=--allow=bash", "--", "--yes",
    ]  # fmt: skip


async def test_hostile_text_of_logs_and_of_a_session_that_is_continued_stays_text(desk: Desk) -> None:
    attack = "".join(each.decode("utf-8", "replace") for each in ATTACKS)
    logs = LogsFound("claude", f"C{attack}", 1, NOW, attack)
    app = desk.app(discover=lambda: Discovery((logs,), (attack,), (attack,)))
    app.driver_class = Recorder
    async with app.run_test(headless=False, size=(120, 40)) as pilot:
        await shows(pilot, "Found here", "1 live")
        app.push_screen(StartScreen(goal=attack, from_session="x", name=attack, workspace=attack))
        await shows(pilot, "Budget, USD")
        await pilot.press("ctrl+s")
        await shows(pilot, "Start: ")
        driver = app._driver
        assert isinstance(driver, Recorder)
    assert judge("".join(driver.sent)) == []
