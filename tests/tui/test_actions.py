"""Every key that acts: the command rows that it writes, what it asks first, and what is said about the
outcome."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tui.conftest import Desk, choose, shows, text_of, until
from tests.tui.fake_store import insert
from textual.pilot import Pilot

from watchkeeper.records.errors import StoreUnusable
from watchkeeper_tui.control import read
from watchkeeper_tui.screens.dialogs import PromptScreen
from watchkeeper_tui.widgets.rows import PageView

WIDE = (120, 40)


async def commands(pilot: Pilot[int], desk: Desk, count: int) -> list[tuple[Any, ...]]:
    await until(pilot, lambda: len(desk.session.commands()) >= count)
    await pilot.pause()
    return [
        (kind, agent, task, json.loads(payload)) for kind, agent, task, payload in desk.session.commands()
    ]


@pytest.mark.parametrize(("row", "keys", "written"), [
    ("task:t-draft", ["r"], ("resume", "writer01", None, {})),
    ("task:t-survey", ["X", "y"], ("cancel", None, "t-survey", {})),
    ("task:t-core", [*"/drop 12,14-16", "enter", "y"], ("edit", "explorer1", None, {"drop": [12, 14, 15, 16]})),
    ("task:t-core", [*"/pin 12", "enter", "y"], ("edit", "explorer1", None, {"pin": [12]})),
    ("task:t-core", [*"/unpin 12,14-15", "enter", "y"], ("edit", "explorer1", None, {"unpin": [12, 14, 15]})),
    ("task:t-core", [*"/pin #12", "enter"], ("pin", None, None, {"fact": 12})),
    ("task:t-core", [*"/pin 3 tests fail", "enter"], ("pin", None, None, {"text": "3 tests fail"})),
    ("task:t-core", [*"/rewrite #3 be brief", "enter", "y"], ("edit", "explorer1", None, {"texts": {"3": "be brief"}})),
    ("task:t-core", [*"/deny no", "enter"], ("deny", "explorer1", None, {"approval": "appr1", "reason": "no"})),
])  # fmt: skip
async def test_what_only_one_way_leads_to_is_written_as_its_command(desk, row, keys, written):
    """`test_three_ways` has all that a key, a command and the palette lead to."""
    desk.session.approval("explorer1")
    async with desk.shown(row=row) as pilot:
        await pilot.press(*(["colon", "ctrl+u"] if keys[0] == "/" else []), *keys)
        assert await commands(pilot, desk, 1) == [written]
        assert desk.control.started == []


async def test_a_change_of_a_context_shows_the_prompt_that_it_would_lead_to_before_it_acts(desk):
    said = [
        {"type": "text", "text": "done"},
        {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "x.py"}},
    ]
    desk.control.foretold = read({
        "tokens_before": 12_000, "tokens": 9_000, "limit": 40_000, "cache_tokens_written": 5_000, "cost_usd": 0.01875,
        "messages_cached": 1, "high_water": None, "sizes": [4_000, 5_000],
        "messages": [{"role": "user", "content": "go [bold]on\x1b[31m"}, {"role": "assistant", "content": said}],
    })  # fmt: skip
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("colon", "ctrl+u", *"/drop 12", "enter")
        await shows(
            pilot,
            "12k → 9.0k of 40k tok (-25%)",
            "keeps 1 message; the next 5.0k tok are rewritten, about $0.02",
        )
        await pilot.press("v")
        await until(pilot, lambda: isinstance(pilot.app.screen, PromptScreen))
        shown = [
            "".join(text for text, _ in line.pieces) for line in pilot.app.screen.query_one(PageView).rows
        ]
        assert shown[3:] == [
            "1 user  4.0k tok", "  go [bold]on", shown[5], "2 assistant  5.0k tok", "  done",
            "→ read  x.py",
        ]  # fmt: skip
        assert shown[5].startswith("── rewritten to the prompt cache from here ")
        await pilot.press("escape")
        await shows(pilot, "y yes")
        assert desk.session.commands() == []
        await pilot.press("y")
        assert await commands(pilot, desk, 1) == [("edit", "explorer1", None, {"drop": [12]})]


@pytest.mark.parametrize("key", ["R", "Z", "C", "X", "H"])
@pytest.mark.parametrize("answer", ["n", "escape"])
async def test_a_capital_says_what_it_would_do_and_enter_is_no_yes_where_that_costs(desk, key, answer):
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press(key)
        await shows(pilot, "y yes")
        await pilot.press("enter", "space")
        assert "y yes" in text_of(pilot)
        await pilot.press(answer)
        await shows(pilot, without="y yes")
        assert desk.session.commands() == []


@pytest.mark.parametrize(("status", "said"), [("applied", "✓ pause explorer-1: why"), ("refused", "✗ pause explorer-1: refused — why")])  # fmt: skip
async def test_a_command_is_said_to_be_queued_and_then_what_became_of_it(desk, status, said):
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("p")
        await commands(pilot, desk, 1)
        desk.feed.wake()
        await shows(pilot, "pause explorer-1: accepted, queued")
        desk.session.connection.execute("UPDATE commands SET status = ?, result = 'why'", (status,))
        desk.session.connection.execute("UPDATE commands SET applied_at = ?", (desk.time,))
        desk.feed.wake()
        await shows(pilot, said)


async def test_a_command_that_cannot_be_written_is_said_in_one_line(desk: Desk) -> None:
    desk.control.fails = StoreUnusable("/data/w.db: the disk is full; free some space")
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("p")
        await shows(pilot, "pause explorer-1: /data/w.db: the disk is full")


@pytest.mark.parametrize("status", ["running", "paused", "failed"])
async def test_resume_starts_a_host_where_none_lives(desk: Desk, status: str) -> None:
    desk.host_pid = None
    desk.session.set(status=status)
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("r")
        await until(pilot, lambda: desk.control.started == [(desk.session.id, True, None)])
        await shows(pilot, "background process started (pid 4242)")
        assert desk.session.commands() == []


@pytest.mark.parametrize("status", ["done", "cancelled"])
async def test_a_run_that_is_over_offers_no_resume_anywhere(desk: Desk, status: str) -> None:
    desk.host_pid = None
    desk.session.set(status=status, ended_at=desk.time)
    async with desk.shown(row="task:t-core") as pilot:
        assert "Resume" not in text_of(pilot)
        for keys in (["r"], [*":resume", "enter"]):
            await pilot.press(*keys)
            await shows(pilot, "the run has ended")
            await pilot.press("escape")
        await pilot.press("B")
        await shows(pilot, "Budget: the run has ended")
        assert desk.control.started == []
        assert desk.session.commands() == []


async def test_a_host_that_does_not_start_is_never_said_to_have_started(desk: Desk) -> None:
    desk.host_pid = None
    desk.session.set(status="paused")
    desk.control.host_fails = StoreUnusable("the background process did not start: no key")
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("r")
        await shows(pilot, "resume the run: the background process did not start: no key", without="✓ resume")


@pytest.mark.parametrize(
    ("keys", "kind"), [(["R", "y"], "rerun"), (["C", "y"], "compact"), (["u"], "undo"), (["U", "y"], "redo")]
)
async def test_without_a_host_one_is_started_for_that_command_alone(desk, keys, kind):
    desk.host_pid = None
    desk.session.set(status="paused")
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press(*keys)
        assert (await commands(pilot, desk, 1))[0][0] == kind
        await until(pilot, lambda: desk.control.started == [(desk.session.id, False, 1)])


async def test_steering_without_a_host_waits_and_says_so(desk: Desk) -> None:
    desk.host_pid = None
    desk.session.set(status="paused")
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("m", *"hello", "enter")
        await commands(pilot, desk, 1)
        desk.feed.wake()
        await shows(pilot, "applies on resume")
        assert desk.control.started == []


@pytest.mark.parametrize(
    ("row", "key", "reason"), [("task:t-docs", "p", "explorer-3 is already done"),
     ("task:t-core", "r", "none of the selected agents is paused or failed"),
     ("task:t-core", "a", "no pending questions"), ("task:t-docs", "X", "the task has ended"),
     ("task:t-survey", "p", "select an agent first"), ("task:t-tui", "u", "there is no compaction to undo"),
     ("agent:planner1", "R", "select a task first")],
)  # fmt: skip
async def test_a_key_that_does_nothing_now_is_not_in_the_footer_and_says_why(desk, row, key, reason):
    async with desk.shown(row=row) as pilot:
        await until(pilot, lambda: f" {key} " not in text_of(pilot).splitlines()[-1])
        await pilot.press(key)
        await shows(pilot, reason)
        assert desk.session.commands() == []


@pytest.mark.parametrize(("key", "how", "written"), [("l", "leave", 0), ("p", "pause", 1)])
async def test_quitting_a_live_run_asks_whether_to_leave_it_or_pause_it(desk, key, how, written):
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await choose(pilot, "task:t-core")
        await pilot.press("q")
        await shows(pilot, "detach")
        await pilot.press("escape")
        assert app.is_running
        await pilot.press("q", key)
        await pilot.pause()
    assert app.left_by == how
    assert len(desk.session.commands()) == written


async def test_quitting_a_finished_session_asks_nothing(desk: Desk) -> None:
    desk.session.set(status="done")
    desk.host_pid = None
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, "✓ DONE")
        await pilot.press("q")
    assert app.return_code == 0


async def test_the_command_bar_completes_and_refuses_what_it_does_not_know(desk: Desk) -> None:
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("colon")
        await shows(pilot, ":resume")
        await pilot.press(*["pagedown"] * 5)
        await until(pilot, lambda: "▸ :help" in text_of(pilot))  # every command is reached
        await pilot.press(*"upright")
        assert "unknown command" in text_of(pilot)
        await pilot.press("ctrl+u", *"reapply", "down")
        await shows(pilot, "▸ :redo", without=":undo")
        await pilot.press("ctrl+u", *"rew", "down", "enter")
        await shows(pilot, ":rewrite ")
        await pilot.press("ctrl+u", *"zzz", "enter")
        await shows(pilot, "unknown command :zzz")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memory status", "Facts"), ("context", "compaction near"), ("usage", "latency"),
        ("cost", "latency"), ("agent report", "Memory"),
    ],
)  # fmt: skip
async def test_commands_that_only_show_open_what_they_name(desk: Desk, line: str, words: str) -> None:
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("colon", "ctrl+u", *f"/{line}", "enter")
        await shows(pilot, words)
        assert desk.session.commands() == []


async def test_y_copies_what_is_selected_as_plain_text(desk: Desk) -> None:
    app = desk.app()
    async with app.run_test(size=WIDE) as pilot:
        await choose(pilot, "task:t-core")
        await pilot.press("y")
        assert app.clipboard == "explorer1"
        await pilot.press("2", "y")
        assert "failed writer-1" in app.clipboard


@pytest.mark.parametrize("size", [(38, 10), (60, 14), (80, 24)])
async def test_the_answers_to_a_question_stay_in_sight_on_a_small_terminal(desk, size):
    desk.session.approval("explorer1", "\n".join(f"line {number} of a long command" for number in range(12)))
    async with desk.shown(size=size, row="task:t-core") as pilot:
        for key, words in (("C", "y yes"), ("a", "y Approve once"), ("q", "detach")):
            await pilot.press(key)
            await shows(pilot, words)
            await pilot.press("escape")


async def test_a_compaction_that_would_hardly_let_go_of_anything_says_so(desk: Desk) -> None:
    parts = json.dumps({"messages": 900, "overhead": 3_000, "headroom": 28_000})
    desk.session.set_agent("explorer1", context_tokens=3_900, composition=parts)
    desk.session.connection.execute("DELETE FROM compactions")
    async with desk.shown("3 explorer-1") as pilot:
        await pilot.press("C")
        await shows(pilot, "hardly less after it")
        assert "(+0%)" not in text_of(pilot)


def _paused_by_budget(desk: Desk) -> None:
    """The run is paused, nothing drives it, and its budget in USD is used up."""
    connection = desk.session.connection
    connection.execute(
        "UPDATE sessions SET status = 'paused', status_reason = 'budget reached', cost_usd = 3.5"
    )
    insert(connection, "budgets", session_id=desk.session.id, kind="usd", amount=3.0, created_at=desk.time)
    connection.commit()
    desk.host_pid = None


async def test_r_on_a_run_that_a_budget_paused_asks_for_a_new_limit_before_any_host_starts(desk):
    _paused_by_budget(desk)
    async with desk.shown("PAUSED") as pilot:
        await pilot.press("r")
        await shows(pilot, "$3.50 of its budget of $3.00")
        assert desk.control.started == []
        assert "background process started" not in text_of(pilot)
        await pilot.press(*"3.2", "enter")
        await shows(
            pilot, "a budget of $3.20 would cause an immediate pause", "the session has already used $3.50"
        )
        assert desk.control.started == []
        await pilot.press(*"+2", "enter")
        assert await commands(pilot, desk, 1) == [("set_budget", None, None, {"kind": "usd", "amount": 5.0})]
        await until(pilot, lambda: desk.control.started == [(desk.session.id, True, None)])


async def test_an_empty_answer_leaves_a_run_paused_by_its_budget(desk: Desk) -> None:
    _paused_by_budget(desk)
    async with desk.shown("PAUSED") as pilot:
        await pilot.press("r")
        await shows(pilot, "of its budget of $3.00")
        await pilot.press("enter")
        await shows(pilot, "stays paused")
        assert desk.control.started == []
        assert desk.session.commands() == []


async def test_a_budget_below_what_is_used_is_refused_when_it_is_typed(desk: Desk) -> None:
    desk.session.connection.execute("UPDATE sessions SET cost_usd = 3.5")
    desk.session.connection.commit()
    async with desk.shown(row="task:t-core") as pilot:
        await pilot.press("B", *"usd 2", "enter")
        await shows(
            pilot, "a budget of $2.00 would cause an immediate pause", "the session has already used $3.50"
        )
        await pilot.press("B", *"usd +2", "enter", "y")
        assert await commands(pilot, desk, 1) == [("set_budget", None, None, {"kind": "usd", "amount": 5.5})]


@pytest.mark.parametrize("size", [(160, 40), (160, 12)], ids=["roomy", "low"])
async def test_the_header_names_a_usage_window_of_which_little_is_left_and_no_other(
    desk: Desk, size: Any
) -> None:
    def note(account: str, minutes: int, used: float, resets_in: float) -> None:
        insert(
            desk.session.connection, "quota_readings", provider="anthropic", account=account, scope="[bold]x", minutes=minutes,
            used_percent=used, resets_at=desk.time + resets_in, read_at=desk.time - 60, source="test", first_percent=used,
            first_at=desk.time - 60,
        )  # fmt: skip

    note("a", 10_080, 88, 60_000)
    note("a", 300, 79, 600)
    note("b", 300, 99, -1)  # it was reset: unknown
    desk.session.connection.commit()
    async with desk.shown(size=size) as pilot:
        await shows(pilot, "12 % left, resets")
        assert "anthropic weekly [bold]x: 12 %" in text_of(pilot)
        assert text_of(pilot).count("% left") == 1


async def test_a_parked_agent_shows_until_when_counts_down_and_r_tries_one_call(desk: Desk) -> None:
    connection = desk.session.connection
    connection.execute(
        "UPDATE agents SET status = 'parked', parked_until = ? WHERE id = 'explorer1'", (desk.time + 4323,)
    )
    connection.commit()
    async with desk.shown(size=(160, 40), row="task:t-core") as pilot:
        await shows(pilot, "until ")
        shown = text_of(pilot)
        assert "◷1" in shown, "the header counts them"
        assert "◷ explorer-1 limit until" in shown
        assert "in 1:12:03" in shown
        await pilot.press("r")
        assert await commands(pilot, desk, 1) == [("resume", "explorer1", None, {})]
