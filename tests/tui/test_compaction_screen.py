"""One compaction in full: both sides, what was lost, undo and compacting again."""

from __future__ import annotations

import json
from typing import Any

from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import FakeSession, insert
from textual.pilot import Pilot

from watchkeeper.store.agent_snapshot import compaction_detail
from watchkeeper_tui.screens.compaction import CompactionScreen, not_carried_over
from watchkeeper_tui.widgets.rows import PageView


def compacted(session: FakeSession, summary: str = "thirty files; see core/file1.py", **values: Any) -> None:
    """`explorer1` as after a pass that replaced its first three messages."""
    session.connection.execute("DELETE FROM compactions")
    session.message("explorer1", "user", "the retry budget = 3, see docs/limits.md")
    session.message("explorer1", "assistant", "understood")
    insert(
        session.connection, "observations", agent_id="explorer1", id=1, kind="summary", text=summary, tokens=300, first_seq=1,
        last_seq=5, citations="[1, 3]", created_at=session.now,
    )  # fmt: skip
    insert(
        session.connection, "views", agent_id="explorer1", version=2, parent=1, observations="[1]", verbatim_from=6,
        reason="summary", tokens=6100, created_at=session.now,
    )  # fmt: skip
    session.set_agent("explorer1", view_version=2)
    row = {
        "cost_usd": 0.07, "cache_tokens_invalidated": 3800, "seconds": 9.1, "model": "offline/surveyor",
        "reason": "summary",
    }  # fmt: skip
    session.compaction("explorer1", id=5, high_water=5, **row | values)


async def opened(pilot: Pilot[int]) -> None:
    await until(pilot, lambda: "24k → 6.1k" in text_of(pilot) or "Comp" in text_of(pilot))
    await pilot.press("4", "enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, CompactionScreen) and "Before" in text_of(pilot))
    await shows(pilot, "replaced")


async def test_a_pass_opens_from_the_pane_with_its_figures_and_both_sides(desk: Desk) -> None:
    compacted(desk.session, instructions="keep the numbers")
    async with desk.shown() as pilot:
        await opened(pilot)
        await shows(pilot, "instructions: keep the numbers")
        shown = text_of(pilot)
        for words in (
            "24k → 6.1k (-75%)", "$0.07", "9.1s in background", "blocked 0ms", "cache −3.8k", "surveyor",
        ):  # fmt: skip
            assert words in shown
        assert "#1–#5 replaced: 5 messages" in shown
        assert "- #1 user" in shown
        assert "+ summary 1" in shown
        assert "cites #1 #3" in shown
        assert "from #6, still verbatim" in shown
        await pilot.press("escape")
        await shows(pilot, "1 Plan")


async def test_a_pass_opens_from_the_agents_tab_too(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown("3 explorer-1") as pilot:
        await pilot.press("3", "right", "right", "right", "right")
        await shows(pilot, "Enter opens one")
        await pilot.press("g", "j", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, CompactionScreen))


async def test_what_the_summary_lost_is_listed_and_marked_where_it_stood(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown() as pilot:
        await opened(pilot)
        shown = text_of(pilot)
        assert "not in the summary (still stored)" in shown
        assert "docs/limits.md" in shown
        assert "budget = 3" in shown
        before = pilot.app.screen.query(PageView).first()
        before.select(next(line.id for line in before.rows if "core/file2.py" in line.copy))
        folded = len(before.rows)
        await pilot.press("enter")
        await until(pilot, lambda: len(before.rows) >= folded + 30)
        await pilot.press("exclamation_mark")
        await shows(pilot, "omitted only")
        assert "- #1 user" not in text_of(pilot)
        assert "! #5" in text_of(pilot) or "! #" in text_of(pilot)


def test_an_identifier_is_lost_only_if_no_observation_has_it() -> None:
    texts = [(3, ["see src/app/main.py and PROJ-12"]), (9, ["again src/app/main.py"])]
    assert not_carried_over(texts, "PROJ-12 is done") == [("src/app/main.py", 9)]
    assert not_carried_over(texts, "proj-12, src/app/main.py") == []


async def test_undo_is_for_the_pass_whose_view_is_current(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown() as pilot:
        await opened(pilot)
        desk.session.set_agent("explorer1", view_version=1)
        desk.feed.wake()
        await shows(pilot, "view 1 is active")
        await pilot.press("u")
        await shows(pilot, "Undo: already undone; U reapplies it")
        desk.session.set_agent("explorer1", view_version=2)
        desk.feed.wake()
        await shows(pilot, "−3.8k  view 2 is active")
        await pilot.press("u")
        await until(pilot, lambda: len(desk.session.commands()) == 1)
        assert desk.session.commands()[0][:2] == ("undo", "explorer1")


async def test_compact_again_takes_typed_instructions_and_a_yes(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown() as pilot:
        await opened(pilot)
        await pilot.press("C")
        await shows(pilot, "i with instructions")
        await pilot.press("i", *"keep the budget", "enter")
        await shows(pilot, "Instructions: keep the budget", "y yes")
        assert desk.session.commands() == []
        await pilot.press("y")
        await until(pilot, lambda: len(desk.session.commands()) == 1)
        kind, agent, _, payload = desk.session.commands()[0]
        assert (kind, agent, json.loads(payload)) == (
            "compact",
            "explorer1",
            {"instructions": "keep the budget"},
        )


async def test_a_pass_in_flight_says_so_and_fills_in_when_it_lands(desk: Desk) -> None:
    compacted(desk.session)
    desk.session.set_agent("explorer1", view_version=1)
    connection = desk.session.connection
    connection.execute(
        "UPDATE compactions SET status = 'running', ended_at = NULL, tokens_after = NULL, view_after = NULL"
    )
    async with desk.shown("observing up to #5") as pilot:
        await pilot.press("4", "enter")
        await shows(pilot, "to be replaced", "not applied yet")
        connection.execute(
            "UPDATE compactions SET status = 'applied', ended_at = ?, tokens_after = 6100, view_after = 2",
            (desk.time,),
        )
        desk.feed.wake()
        await shows(pilot, "+ summary 1")


async def test_on_a_narrow_terminal_one_side_is_shown_and_tab_shows_the_other(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot)
        assert "After" not in text_of(pilot)
        await pilot.press("tab")
        await shows(pilot, "+ summary 1", without="Before")


def test_a_pass_that_is_not_there_is_none(desk: Desk) -> None:
    assert compaction_detail(desk.session.connection, 12345) is None


async def test_what_is_in_flight_stays_in_sight_above_many_passes_until_somebody_chooses(desk: Desk) -> None:
    async with desk.shown("18k tok freed") as pilot:
        for number in range(30):
            desk.session.compaction(
                "explorer1", requested_at=desk.time - 100 + number, status="rejected", reason=f"no {number}"
            )
        desk.session.compaction(
            "explorer1", status="running", ended_at=None, tokens_after=None, requested_at=desk.time - 1,
            high_water=77,
        )  # fmt: skip
        desk.feed.wake()
        await shows(pilot, "observing up to #77")
        await pilot.resize_terminal(110, 36)
        await shows(pilot, "observing up to #77")


async def test_a_digest_asked_no_model_so_it_is_not_called_unpriced(desk: Desk) -> None:
    desk.session.compaction("explorer1", model="digest", cost_usd=None, reason="digest", high_water=44)
    desk.session.compaction("explorer1", model="lab/unknown", cost_usd=None, high_water=55)
    async with desk.shown(size=(140, 40)) as pilot:
        await until(pilot, lambda: text_of(pilot).count("24k → 6.1k") >= 3)
        assert text_of(pilot).count("unpriced") == 1


async def test_the_figures_of_a_pass_keep_to_their_two_lines_on_a_narrow_terminal(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown(size=(60, 20)) as pilot:
        await opened(pilot)
        first, second = text_of(pilot).splitlines()[1:3]
        assert "24k → 6.1k (-75%)" in first
        assert "surveyor" in second
