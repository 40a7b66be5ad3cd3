"""The report on one agent: what it was asked, gave back, made and took, each figure with how well it is
known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import HOSTILE, FakeSession, insert
from tests.tui.test_twenty_questions import import_log, live_run

from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.widgets.rows import PageView

TALL = (120, 70)


def tool(session: FakeSession, agent: str, name: str, turn: int, **values: object) -> None:
    row = {
        "session_id": session.id, "agent_id": agent, "turn": turn, "position": values.pop("position", 0), "seq": turn,
        "tool_use_id": f"{name}{turn}", "name": name, "idempotent": 1, "status": "done", "started_at": session.now - 20,
        "ended_at": session.now - 18, **values,
    }  # fmt: skip
    insert(session.connection, "tool_calls", **row)


def output(session: FakeSession, agent: str, name: str, *, kind: str = "artifact", size: int = 1234) -> None:
    execute = session.connection.execute
    execute("INSERT OR IGNORE INTO artifacts VALUES (?, ?, 'raw', 'text/plain', x'', 0)", (f"d{size}", size))
    insert(session.connection, "outputs", session_id=session.id, agent_id=agent, name=name, kind=kind, digest=f"d{size}",
           created_at=session.now)  # fmt: skip


@pytest.mark.parametrize(
    "keys", [["i"], ["colon", "ctrl+u", *"/agent report", "enter"], ["ctrl+p", *"Report", "enter"]]
)
async def test_the_report_is_opened_by_key_slash_and_palette_and_tells_what_was_done(desk, keys):
    session = desk.session
    session.connection.execute(
        "UPDATE tasks SET instructions = 'Look at every page of the docs.', expected_outputs = '[\"notes\","
        " \"index\"]' WHERE id = 't-docs'"
    )
    session.set_agent("explorer3", turn=3, retries=2, errors=1, compactions=1)
    tool(session, "explorer3", "read_file", 1)
    tool(session, "explorer3", "read_file", 2)
    tool(session, "explorer3", "read_file", 3, is_error=1, status="error")
    tool(session, "explorer3", "bash", 3, position=1)
    session.call("explorer3", usage_exact=0, price_status="estimated")
    session.call("explorer3", turn=2)
    output(session, "explorer3", "notes")
    output(session, "explorer3", "notes", size=2000)
    output(session, "explorer3", "result/t-docs", kind="result")
    async with desk.shown(size=TALL, row="task:t-docs") as pilot:
        await pilot.press(*keys)
        await shows(pilot, "Result")
        said = " ".join(text_of(pilot).split())
        for words in (
            "explorer-3 (explorer) · surveyor · attempt 1", "✓ done at turn 3", "Task by planner", "Look at every page of the docs.",
            "✓ notes · index", "12 files, 800 lines", "notes 2,000 bytes saved 2 times", "Tools 4 calls, 1 error (exact)",
            "read_file 3 ✗1", "tokens 128,000", "partly estimated (1 of 2 calls)", "cost ~$0.11 partly estimated (1 of 2 calls)", "1 failed 2 retries exact",
            "compacted 1 time exact",
        ):  # fmt: skip
            assert words in said, words


@pytest.mark.parametrize(
    ("values", "call", "words"),
    [
        ({"cost_usd": None, "unpriced_calls": 1}, {"cost_usd": None, "price_status": "unpriced"}, "cost unpriced price unknown for 1 call"),
        ({"cost_usd": 0.2}, {}, "cost $0.20 exact"),
    ],
)  # fmt: skip
async def test_a_cost_says_how_well_it_is_known(desk, values, call, words):
    desk.session.set_agent("explorer3", **values)
    desk.session.call("explorer3", **call)
    async with desk.shown(size=TALL, row="task:t-docs") as pilot:
        await pilot.press("i")
        await until(pilot, lambda: words in " ".join(text_of(pilot).split()))


async def test_the_planners_report_tells_of_every_task(desk: Desk) -> None:
    async with desk.shown(size=TALL, row="agent:planner1") as pilot:
        await pilot.press("i")
        await shows(pilot, "1 of 5 done, 1 failed, at step", "credit balance is too low")


async def test_tool_calls_are_counted_as_they_come(desk: Desk) -> None:
    async with desk.shown(size=TALL, row="task:t-core") as pilot:
        await pilot.press("i")
        await shows(pilot, "none used")
        for count in range(1, 6):
            turn = 12 + count
            desk.session.set_agent("explorer1", turn=turn)
            tool(desk.session, "explorer1", "bash", turn, status="running" if count == 5 else "done")
            desk.feed.wake()
            await shows(pilot, f"{count} call")
        assert "1 running" in text_of(pilot)
        desk.session.connection.execute(
            "UPDATE tool_calls SET status = 'error', is_error = 1 WHERE turn = 17"
        )
        desk.feed.wake()
        await shows(pilot, "5 calls, 1 error (exact)")
        assert "running" not in text_of(pilot).split("Tools", 1)[1].split("Statistics")[0]


async def test_a_task_without_an_agent_has_no_report_and_says_so(desk: Desk) -> None:
    async with desk.shown(size=TALL, row="task:t-survey") as pilot:
        await pilot.press("i")
        await shows(pilot, "not assigned to an agent yet")


async def test_the_metrics_say_how_well_tokens_and_cost_are_known(desk: Desk) -> None:
    desk.session.call("explorer1", turn=13, usage_exact=0, price_status="estimated")
    async with desk.shown(size=TALL, row="task:t-core") as pilot:
        await pilot.press("3", *["right"] * 3)
        await until(pilot, lambda: text_of(pilot).count("partly estimated (1 of 13 calls)") == 2)


async def test_the_effort_of_an_agent_is_on_its_report_and_its_metrics(desk: Desk) -> None:
    role = {
        "role": "explorer",
        "source": "built-in",
        "model": "anthropic/claude-opus-4-6",
        "unconfirmed": None,
    }
    desk.session.set(roles=json.dumps([role | {"effort": "xhigh", "effort_used": "high"}]))
    async with desk.shown(size=TALL, row="task:t-core") as pilot:
        await pilot.press("3", *["right"] * 3)
        await shows(pilot, "effort xhigh (uses high)")
        await pilot.press("escape", "i")
        await until(
            pilot,
            lambda: "(explorer) · surveyor · effort xhigh (uses high)" in " ".join(text_of(pilot).split()),
        )


async def test_a_report_shows_what_is_missing_and_that_no_call_was_made(desk: Desk) -> None:
    run = desk.session
    run.message("explorer3", "assistant", f"I edited core/ledger.py and all tests pass. {HOSTILE}")
    missing = json.dumps([f"notes {HOSTILE}.md"])
    run.connection.execute("UPDATE tasks SET expected_outputs = ? WHERE id = 't-docs'", (missing,))
    async with desk.shown("explorer-3") as pilot:
        live = pilot.app.screen
        assert isinstance(live, LiveScreen)
        live.plan.select("task:t-docs")
        await pilot.press("i")
        await shows(pilot, "Receipt", "missing: notes", "ended without a tool call")
        assert "\x1b" not in text_of(pilot)


async def test_a_long_result_is_folded_until_enter(desk: Desk) -> None:
    lines = "\n\n".join(f"finding {number}" for number in range(20))
    desk.session.connection.execute("UPDATE tasks SET result = ? WHERE id = 't-docs'", (lines,))
    async with desk.shown("explorer-3", size=TALL, row="task:t-docs") as pilot:
        await pilot.press("i")
        await shows(pilot, "finding 0", "… Enter unfolds", without="finding 19")
        pilot.app.screen.query_one(PageView).select("result.text.more")
        await pilot.press("enter")
        await shows(pilot, "finding 19")


async def test_a_task_that_ended_without_a_call_is_counted_and_reached_by_e(desk):
    session, execute = desk.session, desk.session.connection.execute
    execute("UPDATE agents SET status = 'done' WHERE status = 'failed'")
    execute(
        "UPDATE tasks SET status = 'done', error = NULL, result = NULL WHERE status IN ('failed', 'done')"
    )
    for agent in ("explorer3", "writer01"):
        session.message(agent, "assistant", [{"type": "text", "text": f"I fixed `src/a.py`. {HOSTILE}"}])
    async with desk.shown("✓ 2 ", "check: ended without a tool call") as pilot:
        seen = set()
        for _ in range(4):
            await pilot.press("e")
            await until(pilot, lambda: ": check: ended without" in text_of(pilot).splitlines()[-2])
            screen = pilot.app.screen
            assert isinstance(screen, LiveScreen)
            assert screen.plan.selected is not None
            seen.add(screen.plan.selected.agent.name if screen.plan.selected.agent else "")
        assert seen == {"explorer-3", "writer-1"}


async def test_the_report_of_an_imported_session_ends_with_its_last_words_and_shows_a_clean_edit(
    database: Path, tmp_path: Path
) -> None:
    run = live_run(database)
    import_log(database, tmp_path, run)
    async with Desk(database, run).shown("READ-ONLY") as pilot:
        await pilot.press("i")
        await shows(pilot, "All tests pass; the cache keeps its entries.", "Last message")
        await pilot.press("escape", "2", "k", "k", "enter")
        await shows(pilot, "OrderedDict()")
        assert "No newline" not in text_of(pilot)
    run.connection.close()


OUTCOME = (
    "# The parser is fixed\n\n**All** 12 tests pass. [@click=app.quit]boom[/] \x1b[31mred\n\n"
    + "\n\n".join(f"Paragraph {n} of the summary." for n in range(30))
    + "\n\nTHE VERY END"
)


def end_run(session: FakeSession, status: str, reason: str | None, planner: str = "done") -> None:
    session.connection.execute(
        "UPDATE sessions SET status = ?, status_reason = ?, ended_at = ?", (status, reason, session.now)
    )
    session.set_agent("planner1", status=planner, status_reason=None, ended_at=session.now)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_outcome_is_the_first_thing_on_the_screen_when_a_run_has_ended(desk, size):
    end_run(desk.session, "done", OUTCOME)
    output(desk.session, "explorer3", "docs/plan.md")
    desk.host_pid = None
    async with desk.shown("✓ done — The parser is fixed", size=size) as pilot:
        if size == (80, 24):
            await pilot.press("3")
        await shows(pilot, "Outcome")
        said = " ".join(text_of(pilot).split())
        assert "The parser is fixed" in said
        assert "✓ done — The parser is fixed" in said
        assert "Map the repo" not in said.partition("Outcome")[2]
        page = pilot.app.screen.query_one(PageView)
        lines = ["".join(text for text, _ in line.pieces) for line in page.rows]
        assert "THE VERY END" in lines
        assert any("[@click=app.quit]boom[/]" in line for line in lines)
        await until(pilot, lambda: any("docs/plan.md" in line.copy for line in page.rows if line.copy))
        assert not any("\x1b" in text for line in page.rows for text, _ in line.pieces)


@pytest.mark.parametrize(
    ("status", "reason", "planner", "first"),
    [
        ("failed", OUTCOME, "done", "failed: the planner ended the run without reaching the goal"),
        ("failed", "no credit is left", "failed", "failed: no credit is left"),
        ("failed", None, "failed", "failed: unknown"),
        ("paused", "the budget is used up", "paused", "paused: the budget is used up"),
        ("paused", None, "idle", "paused: unknown"),
        ("cancelled", "cancelled by a person", "cancelled", "cancelled: cancelled by a person"),
    ],
)
async def test_a_run_that_did_not_reach_its_goal_tells_first_what_stopped_it(
    desk, status, reason, planner, first
):
    end_run(desk.session, status, reason, planner)
    desk.host_pid = None
    async with desk.shown("Stopped", size=(200, 60)) as pilot:
        page = pilot.app.screen.query_one(PageView)
        heading, line, *_ = ["".join(text for text, _ in line.pieces) for line in page.rows]
        assert (heading.strip(), line) == ("Stopped", first)


async def test_no_task_of_a_run_whose_process_is_gone_is_said_to_run(desk: Desk) -> None:
    desk.host_pid = None
    async with desk.shown("STOPPED", size=TALL, row="agent:planner1") as pilot:
        await pilot.press("i")
        await shows(pilot, "Tasks")
        (task,) = (line for line in text_of(pilot).splitlines() if "$0.11  stopped" in line)
        assert "† explorer-1" in task
