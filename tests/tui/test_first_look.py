"""What a newcomer sees within the first minutes: whole sentences, figures that add up, and no word that is
not true."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.test_compaction_screen import compacted
from tests.tui.test_twenty_questions import live_run

from watchkeeper.store.snapshot import SessionSnapshotReader
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.memory import compaction_pieces, pass_number
from watchkeeper_tui.widgets.agent import PAGES

LONG = " ".join(f"word{number:03d}" for number in range(300))


async def test_a_page_that_grows_a_scrollbar_loses_no_word(desk: Desk) -> None:
    desk.session.set(status="done", ended_at=desk.session.now)
    desk.host_pid = None
    desk.session.message("explorer1", "assistant", [{"type": "text", "text": f"{LONG} the end"}])
    async with desk.shown("explorer-1", size=(120, 48), row="task:t-core") as pilot:
        await pilot.press("3", "right")
        await shows(pilot, "Enter unfolds")
        shown = text_of(pilot)
        first, last = shown.index("word000"), shown.rindex("word0")
        numbers = [int(word[4:7]) for word in shown[first : last + 8].split() if word.startswith("word")]
        assert numbers == list(range(len(numbers))), shown


async def test_every_agent_of_the_header_is_counted_in_some_state(desk: Desk) -> None:
    desk.session.agent("resting1", "resting", status="idle")
    async with desk.shown(size=(160, 40)) as pilot:
        await until(pilot, lambda: "agents" in text_of(pilot).splitlines()[0])
        header = text_of(pilot).splitlines()[0]
        total = int(header.split(" agents")[0].split()[-1])
        counted = sum(
            int(word[1:])
            for word in header.split(" agents")[1].split()
            if word[0] in "●◔?‖↻!†✗✓○×" and word[1:].isdigit()
        )
        assert counted == total, header


async def test_the_clock_goes_on_while_a_task_of_an_ended_run_runs_again(desk: Desk) -> None:
    desk.session.set(status="done", ended_at=desk.session.now - 600)
    async with desk.shown("LIVE", size=(160, 40)) as pilot:
        assert (
            "00:12:44" in text_of(pilot).splitlines()[0]
        )  # from 764 s ago until now, not until the end 600 s ago


async def test_an_item_of_another_programs_list_tells_how_it_stands_and_whose_it_is(desk: Desk) -> None:
    began = desk.session.now - 600
    desk.session.set(origin="claude-code", status="done", ended_at=desk.session.now)
    desk.session.task(
        "item1", "Fix the flaky test", role="", status="done", started_at=began, ended_at=began + 95
    )
    async with desk.shown("Fix the flaky", row="task:item1") as pilot:
        await shows(pilot, "to-do of planner")
        shown = text_of(pilot)
        assert "Fix the flaky test" in shown
        assert "took 1:35" in shown
        assert "not assigned" not in shown


async def test_a_task_that_waits_tells_for_which_others(desk: Desk) -> None:
    async with desk.shown("t-survey", row="task:t-survey") as pilot:
        await shows(pilot, "Depends on")
        below = text_of(pilot).split("Depends on", 1)[1]
        assert "explorer-1" in below


async def test_the_parts_of_a_context_add_up_also_where_a_log_tells_only_some(desk: Desk) -> None:
    parts = {"observations": 4_000, "messages": 7_000}
    desk.session.set_agent(
        "explorer1", context_tokens=51_000, context_limit=200_000, composition=json.dumps(parts)
    )
    async with desk.shown() as pilot:
        await shows(pilot, "not in the log 40k", "free 149k")


async def test_a_window_that_is_unknown_is_no_window_of_nothing(desk: Desk) -> None:
    desk.session.set_agent("explorer1", context_tokens=51_000, context_limit=0)
    async with desk.shown() as pilot:
        await shows(pilot, "window unknown", "51,000 tokens")
        shown = text_of(pilot)
        row = next(line for line in shown.splitlines() if "╴explorer-1" in line)
        assert "51k tok" in row
        assert "51k/0" not in shown
        assert "compacts near" not in shown
        assert "of 0 tokens" not in shown


async def test_a_title_without_figures_has_the_room_of_the_columns_that_are_empty(desk: Desk) -> None:
    title = "Consolidate the fields of the plan into one"
    desk.session.task("item1", title, role="", status="done")
    async with desk.shown(title) as pilot:
        row = next(line for line in text_of(pilot).splitlines() if title in line)
        assert row[:60].rstrip("│ ").endswith("done")


async def test_an_agent_named_by_an_id_alone_is_told_by_what_it_was_asked(desk: Desk) -> None:
    desk.session.agent("sub1", "a0ad4f44468bdf20d", current_goal="Search the repo")
    async with desk.shown(size=(160, 40)) as pilot:
        await shows(pilot, "a0ad4f44468bdf20d  Search")


def test_a_pass_is_counted_among_its_agents_passes_and_unknown_figures_are_left_out(desk: Desk) -> None:
    session = desk.session
    session.agent("other1", "other")
    session.compaction("other1")
    session.compaction("explorer1", trigger="auto", cost_usd=None)
    session.compaction("explorer1", trigger="auto", status="abandoned", reason="the agent is done", model="x/unpriced",
                       tokens_after=None, tokens_before=None)  # fmt: skip
    reading = SessionSnapshotReader(session.id).read(session.connection, desk.time)
    assert reading is not None
    mine = [each for each in reversed(reading.compactions) if each.agent_id == "explorer1"]
    assert [pass_number(each, reading.compactions) for each in mine] == [(1, 3), (2, 3), (3, 3)]
    abandoned = "".join(text for text, _ in compaction_pieces(mine[-1], desk.time))
    assert abandoned.endswith(
        "auto abandoned: the agent is done"
    )  # and not "unpriced": no call of it was paid for
    unknown = replace(mine[1], stall_seconds=None)
    assert "blocked" not in "".join(text for text, _ in compaction_pieces(unknown, desk.time))


async def test_what_a_pass_lost_of_a_message_stands_below_that_message(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("4", "enter")
        await shows(pilot, "Compaction 1/1", "identifiers omit")
        await pilot.press("exclamation_mark")
        await until(
            pilot,
            lambda: any(
                "not in the summary (still stored):" in line[:60] for line in text_of(pilot).splitlines()
            ),
        )


def test_a_model_is_named_without_the_day_of_its_release() -> None:
    assert formatting.model_name("anthropic/claude-opus-4-5-20251101") == "opus-4-5"
    assert formatting.model_name("anthropic/claude-sonnet-4@20250514") == "sonnet-4"
    assert formatting.model_name("offline/surveyor") == "surveyor"


@pytest.mark.parametrize("values", [{"status": "done"}, {"status": "failed"}, {"origin": "claude-code"}])
async def test_the_footer_of_a_session_that_is_over_lists_what_can_be_done(desk, values):
    desk.host_pid = None
    desk.session.set(**{"status": "done", "ended_at": desk.session.now, **values})
    async with desk.shown() as pilot:
        await until(pilot, lambda: any(word in text_of(pilot) for word in ("DONE", "FAILED", "ENDED")))
        await until(pilot, lambda: "w Replay" in text_of(pilot).splitlines()[-1])
        footer = text_of(pilot).splitlines()[-1]
        for label in (
            "w Replay",
            "t Timeline",
            "i Report",
            "x Export",
            "F Continue" if "origin" in values else "F Fork",
        ):
            assert label in footer
        assert not [label for label in ("Pause", "Message", "Undo", "Cancel") if label in footer]
        await pilot.press("x")
        await shows(pilot, "a web page")


@pytest.mark.parametrize("key", ["p", "P", "H", "r", "X", "m"])
async def test_every_key_of_a_run_that_is_over_says_so_in_the_same_words(desk: Desk, key: str) -> None:
    desk.host_pid = None
    desk.session.set(status="done", ended_at=desk.session.now)
    desk.session.set_agent("planner1", status="done", ended_at=desk.session.now)
    async with desk.shown("DONE", row="agent:planner1") as pilot:
        await pilot.press(key)
        await shows(pilot, "the run has ended")
        assert "message the planner" not in text_of(pilot)


async def test_a_question_puts_away_what_was_said_before_it(desk: Desk) -> None:
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("a")
        await shows(pilot, "no pending questions")
        await pilot.press("C")
        await shows(pilot, "y yes", without="no pending questions")


async def test_no_page_of_an_agent_that_has_ended_says_yet(desk: Desk) -> None:
    desk.session.set(origin="claude-code", status="done", ended_at=desk.session.now)
    desk.session.agent(
        "sub1", "sub", status="done", ended_at=desk.session.now, context_tokens=0, composition="{}",
        last_seq=0,
    )  # fmt: skip
    async with desk.shown("sub", row="agent:sub1") as pilot:
        await pilot.press("3")
        shown = []
        for _ in range(len(PAGES)):
            await pilot.press("right")
            await pilot.pause(0.05)
            shown.append(text_of(pilot))
        assert not any(" yet" in each for each in shown)
        assert any(": not in the imported log" in each for each in shown)
        assert any("context: not in the imported log" in each for each in shown)
        assert not any(" 0 of 32,000" in each or "none used" in each or "exact" in each for each in shown)


async def test_short_names_leave_their_room_to_what_happened(desk: Desk) -> None:
    long = "a result of some length that is worth reading"
    desk.session.connection.execute("UPDATE agents SET name = substr(id, 1, 4), task_id = NULL")
    desk.session.event("tool.done", "explorer1", tool="Bash", preview=long)
    async with desk.shown(size=(160, 40)) as pilot:
        await shows(pilot, f"expl tool    Bash → {long}")


async def test_an_agent_that_has_ended_is_not_foretold_a_compaction(desk: Desk) -> None:
    full = json.dumps({"messages": 23_000, "overhead": 1_000})
    desk.session.set_agent("explorer3", context_tokens=24_000, composition=full)
    desk.session.set_agent("explorer1", context_tokens=24_000, composition=full)
    async with desk.shown("3 explorer-1", "compacts near", row="task:t-docs") as pilot:
        await shows(pilot, "3 explorer-3", "24,000 of 32,000")
        of_agent = "\n".join(line[60:] for line in text_of(pilot).splitlines()[:24])
        assert "compact" not in of_agent.replace("Compactions", "")


async def test_no_compaction_of_another_programs_agent_is_foretold(desk: Desk) -> None:
    desk.session.set(origin="claude-code")
    desk.session.set_agent("explorer1", context_tokens=30_000, composition=json.dumps({"messages": 30_000}))
    async with desk.shown("30,000 of 32,000") as pilot:
        assert "compacts" not in text_of(pilot)
        assert "compaction due" not in text_of(pilot)
        assert "compaction near" not in text_of(pilot)


@pytest.mark.parametrize(("status", "name"), [("done", "Note"), ("failed", "Why")])
@pytest.mark.parametrize("page", ["Memory", "Report"])
async def test_the_reason_with_which_an_agent_ended_is_told(desk, page, status, name):
    reason = "its own log is not here; its call reported 12,898 tokens of context, 8.1 s and 1 tool calls"
    desk.session.set_agent("explorer3", status=status, status_reason=reason)
    async with desk.shown("3 explorer-1", row="task:t-docs") as pilot:
        await pilot.press(*(["i"] if page == "Report" else ["z", "3"]))
        await until(pilot, lambda: "its call reported" in " ".join(text_of(pilot).replace("│", " ").split()))
        assert page == "Report" or f"{name} " in text_of(pilot)


async def test_a_row_shows_the_time_of_a_silence_and_of_a_limit_whole(database: Path) -> None:
    run = live_run(database)
    run.live("agent23", "tool", "browser_navigate", since=run.now - 1_500, updated_at=run.now - 1_500)
    async with Desk(database, run).shown("coder-12") as pilot:
        await pilot.press("slash", *"23", "enter")
        await until(
            pilot, lambda: re.search(r"! └╴coder-23 \(explorer\) +silent +128k", text_of(pilot)) is not None
        )
        await pilot.press("j")
        # The row has one word; the pane beside it, the whole reason.
        await shows(pilot, "3 coder-23 (explorer)", "browser_navigate for 25:00")
        await pilot.press("slash", "ctrl+u", *"12", "enter")
        await until(pilot, lambda: re.search(r"limit 1:\d\d:\d\d +128k", text_of(pilot)) is not None)
    run.connection.close()
