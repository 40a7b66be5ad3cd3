"""What the plan, the compaction pane and the agent's figures say of many agents, deep trees, and runs that
stopped."""

from __future__ import annotations

import json

import pytest
from tests.tui.conftest import Desk, choose, shows, text_of, until
from tests.tui.fake_store import insert

from watchkeeper_tui.screens.base import NOTICE_SECONDS
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.widgets.panes import PlanView


async def test_every_agent_near_a_compaction_is_told_with_the_time_left(desk: Desk) -> None:
    parts = json.dumps({"messages": 20_000, "overhead": 1000, "threshold": 23_000, "headroom": 11_000})
    for name in ("explorer1", "explorer4"):
        if name != "explorer1":
            desk.session.agent(name, "explorer-4")
            desk.session.task("t-more", "Explore more", agent=name)
            for n in range(4):
                desk.session.call(
                    name, turn=n + 1, input_tokens=10_000 + n * 1000, started_at=desk.time - 40 + n * 10
                )
        desk.session.set_agent(name, composition=parts, context_tokens=20_000)
    async with desk.app().run_test(size=(120, 40)) as pilot:
        # 3,000 tokens are left, and each ten seconds brought a thousand.
        await shows(pilot, "explorer-4", "compacts in 3.0k tok, ~30s")


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 15)])
async def test_a_name_stays_in_sight_however_deep_it_stands(desk: Desk, size: tuple[int, int]) -> None:
    above = "explorer1"
    for depth in range(40):
        desk.session.agent(f"deep{depth}", f"deep-{depth}", parent_agent_id=above)
        above = f"deep{depth}"
    async with desk.shown("explorer-1", size=size) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, LiveScreen)
        await until(pilot, lambda: screen.plan.place_of("agent:deep39") is not None)
        screen.plan.select("agent:deep39")
        await shows(pilot, "╴deep-39")


async def test_a_row_sums_up_what_stands_below_it_folded_or_not(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=(160, 40)) as pilot:
        for keys in ([], ["minus"]):
            await pilot.press(*keys)
            await until(
                pilot,
                lambda: any("planner" in line and "Σ640k" in line for line in text_of(pilot).splitlines()),
            )
            assert any("planner" in line and "$0.55" in line for line in text_of(pilot).splitlines())


async def test_a_workflow_sums_up_its_agents_and_says_which_are_silent(desk: Desk) -> None:
    for name, label, role, parent in (
        ("run", "audit", "workflow run", "explorer1"),
        ("phase", "Find", "workflow phase", "run"),
        ("one", "find:a", "workflow-subagent", "phase"),
        ("two", "find:b", "workflow-subagent", "phase"),
        ("tests", "npm test", "background command", "explorer1"),
    ):
        desk.session.agent(name, label, role=role, parent_agent_id=parent)
        old = {"last_active": desk.time - (7_200 if name in ("one", "tests") else 1)}
        desk.session.set_agent(name, status="working", **old)
    for name in ("run", "phase", "tests"):
        desk.session.set_agent(name, input_tokens=0, output_tokens=0, cost_usd=None, model="")
    for name in ("one", "two"):
        desk.session.set_agent(name, input_tokens=30_000, output_tokens=0, cost_usd=0.5)
    async with desk.shown("explorer-1", size=(160, 40)) as pilot:
        await shows(pilot, "audit (workflow run)")

        def line(name: str) -> str:
            return next((each for each in text_of(pilot).splitlines() if name in each), "")

        await until(pilot, lambda: "! " in line("audit (workflow run)"))
        for name in ("audit (workflow run)", "Find (workflow phase)"):
            assert "$1.00" in line(name)
            assert "Σ60k" in line(name)
            assert "silent" in line(name)
        assert "● " in line("npm test")
        assert "silent" in line("find:a")
        assert "!" not in line("find:b")
        await choose(pilot, "task:t-core")
        for name in ("audit (workflow run)", "Find (workflow phase)"):
            await pilot.press("e")
            await shows(pilot, f"! {name}: 1 of 2 agents silent")
        # The line below the panes says what the row says, when the notice of `e` has gone.
        desk.time += NOTICE_SECONDS + 1
        await shows(pilot, "! Find (workflow phase) silent — 1 of 2 agents silent")


async def test_what_went_on_when_the_host_died_does_not_seem_to_go_on(desk: Desk) -> None:
    insert(desk.session.connection, "tool_calls", session_id=desk.session.id, agent_id="explorer1", turn=12, position=0, seq=4,
           tool_use_id="tu9", name="bash", idempotent=0, status="running", started_at=desk.time - 30)  # fmt: skip
    desk.host_pid = None
    async with desk.shown("STOPPED", size=(120, 60)) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, LiveScreen)
        screen.plan.select("task:t-core")
        await pilot.press("3", "right")
        await shows(
            pilot,
            "bash  ✗ interrupted: the background process stopped",
            "interrupted: the background process stopped",
        )
        await pilot.press("right", "right")
        await shows(pilot, ", total ")
        before = text_of(pilot)
        desk.time += 100
        screen.redraw()
        assert "total 11:39" in before
        assert "total 11:39" in text_of(pilot)


async def test_a_run_that_nothing_drives_has_no_rates(desk: Desk) -> None:
    async with desk.shown(size=(160, 40)) as pilot:
        await until(pilot, lambda: "/m" in text_of(pilot).splitlines()[0])
        desk.host_pid = None
        desk.feed.wake()
        await shows(pilot, "STOPPED")
        assert "/m" not in text_of(pilot).splitlines()[0]
        assert not any(".11" in line.split("$0.11")[-1] for line in text_of(pilot).splitlines()[1:12])


ROLES = [
    {"role": "explorer", "source": "built-in", "model": "anthropic/claude-sonnet-5", "unconfirmed": None},
    {"role": "checker", "source": ".claude/agents/checker.md", "model": "anthropic/claude-sonnet-5",
     "unconfirmed": "anthropic/claude-opus-5"},
    {"role": "\x1b[31mred", "source": "[bold]x[/bold]", "model": "m/\x9b2J", "unconfirmed": None},
]  # fmt: skip


@pytest.mark.parametrize("size", [(170, 50), (120, 40), (80, 24), (60, 15)])
async def test_roles_that_are_not_built_in_are_shown_with_file_and_model(desk, size):
    desk.session.set(roles=json.dumps(ROLES))
    desk.session.task("t-check", "Check it", role="checker", status="pending")
    async with desk.shown(size=size) as pilot:
        await until(pilot, lambda: "role checker" in text_of(pilot).splitlines()[1])
        second = text_of(pilot).splitlines()[1]
        assert ".claude/agents/checker.md sonnet-5, not opus-5" in second
        assert "explorer" not in second
        assert "\x1b" not in second
        assert "\x9b" not in second
        if size[0] >= 120:
            assert "[bold]x[/bold]" in second, "a file's name is text, never markup"
            row = next(line for line in text_of(pilot).splitlines() if "t-check" in line)
            assert "t-check (checker)  .claude/agents/ch" in row
        if size[0] == 170:
            pilot.app.screen.query_one(PlanView).select("task:t-check")
            on = "checker (.claude/agents/checker.md) on anthropic/claude-sonnet-5"
            await shows(pilot, on, "claude-opus-5")
        desk.session.set(roles="[]")
        desk.feed.wake()
        await until(pilot, lambda: "role checker" not in text_of(pilot).splitlines()[1])


@pytest.mark.parametrize("damaged", [None, "", "{}", "[1]", "[[]]", '[{"role": 3}]', "nul"])
async def test_roles_that_are_missing_or_damaged_are_left_out(desk: Desk, damaged: str | None) -> None:
    desk.session.set(roles=damaged)
    async with desk.shown("explorer-1") as pilot:
        assert "role " not in text_of(pilot).splitlines()[1]
