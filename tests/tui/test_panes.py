"""The panes of a session: which are shown at which size, what opens by itself, and what stays as it was put."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import FakeSession
from tests.tui.test_comfort import live, typed
from tests.tui.told import told_session
from textual.pilot import Pilot

from watchkeeper.store.statistics import UsageRow
from watchkeeper_tui.screens.usage import evenly_spaced
from watchkeeper_tui.settings import MOST_TABS, Layout, with_tab
from watchkeeper_tui.widgets.panes import CompactionLine, context_bar


@pytest.fixture
def calm(desk: Desk) -> Desk:
    """A session in which no agent was compacted."""
    desk.session.connection.execute("DELETE FROM compactions")
    desk.session.connection.execute("UPDATE agents SET compactions = 0")
    return desk


def sizes(pilot: Pilot[int]) -> dict[str, tuple[int, int, int, int]]:
    """The places of the panes that are shown."""
    panes = (
        pilot.app.screen.query_one(f"#{name}")
        for name in ("plan", "agent", "transcript", "events", "compaction")
    )
    return {str(pane.id): (*pane.region,) for pane in panes if pane.region.area and pane.is_on_screen}


def compact(desk: Desk) -> None:
    desk.session.compaction("explorer2", status="running", ended_at=None, tokens_after=None)
    desk.feed.wake()


@pytest.mark.parametrize("size", [(120, 40), (200, 60), (120, 24)])
async def test_the_compaction_pane_is_one_line_until_a_compaction_begins_and_then_stays(
    calm: Desk, size: tuple[int, int]
) -> None:
    async with calm.shown("4 Compaction  no compactions yet", "next: ", size=size) as pilot:
        before = sizes(pilot)
        assert "compaction" not in before
        assert pilot.app.screen.query_one(CompactionLine).size.height == 1
        compact(calm)
        await until(pilot, lambda: "compaction" in sizes(pilot))
        after = sizes(pilot)
        assert {name: after[name] for name in before if name != "events"} == {
            name: place for name, place in before.items() if name != "events"
        }
        calm.session.connection.execute("DELETE FROM compactions")
        calm.feed.wake()
        await shows(pilot, without="in flight")
        assert sizes(pilot) == after


async def test_an_agent_that_is_due_opens_the_compaction_pane(calm: Desk) -> None:
    async with calm.shown("no compactions yet") as pilot:
        calm.session.set_agent("explorer1", context_tokens=31_000)
        calm.feed.wake()
        await until(pilot, lambda: "compaction" in sizes(pilot))
        await shows(pilot, "compaction due")


@pytest.mark.parametrize("keys", [["2"], ["slash"], ["2", "up", "1"]], ids=["reads", "types", "scrolled"])
async def test_nothing_opens_while_the_user_reads_beside_it_or_types(calm: Desk, keys: list[str]) -> None:
    async with calm.shown("no compactions yet", "FOLLOW") as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        before = sizes(pilot)
        compact(calm)
        await shows(pilot, "◌ 1 in flight")
        assert sizes(pilot) == before
        await pilot.press(*(["escape"] if keys == ["slash"] else ["2", "G", "1"]))
        calm.feed.wake()
        await until(pilot, lambda: "compaction" in sizes(pilot))


async def test_the_agent_stays_while_the_user_reads_it(calm: Desk) -> None:
    async with calm.shown("3 explorer-1", without="reading") as pilot:
        await pilot.press("3")
        calm.session.set_agent("explorer1", status="done", ended_at=calm.time)
        calm.session.set_agent("explorer2", status="working", status_reason="")
        calm.feed.wake()
        await shows(pilot, "●1")
        assert "3 explorer-1" in text_of(pilot)


async def test_the_key_of_the_closed_pane_opens_it_for_as_long_as_it_has_the_focus(calm: Desk) -> None:
    async with calm.shown("no compactions yet") as pilot:
        await pilot.press("4")
        await until(pilot, lambda: "compaction" in sizes(pilot))
        await pilot.press("1")
        await until(pilot, lambda: "compaction" not in sizes(pilot))
        await pilot.click(CompactionLine)
        await until(pilot, lambda: live(pilot).active_pane == "compaction")


async def test_the_size_of_each_pane_can_be_pinned_is_remembered_and_reset(
    calm: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "layout.json"
    path.write_text('{"hinted": true}')
    async with calm.shown("no compactions yet", size=(200, 60), layout_path=path) as pilot:
        usual = sizes(pilot)
        await pilot.press("greater_than_sign", "circumflex_accent", "circumflex_accent")
        await pilot.press("5", "less_than_sign", "less_than_sign")
        await pilot.press("4", "circumflex_accent", "circumflex_accent")
        await until(pilot, lambda: len(json.loads(path.read_text())) > 1)
        await pilot.press("1")
        pinned = sizes(pilot)
    async with calm.shown("1 Plan", "4 Compaction", size=(200, 60), layout_path=path) as pilot:
        await until(pilot, lambda: sizes(pilot) == pinned)
        assert pinned["transcript"][2] > usual["transcript"][2] + 15
        assert pinned["plan"][3] < usual["plan"][3]
        assert pinned["compaction"][3] > 8  # pinned: open although no agent was compacted
        await typed(pilot, ":layout reset")
        await until(pilot, lambda: sizes(pilot) == usual)
    assert not {json.loads(path.read_text())[name] for name in ("split", "rows", "third", "compaction")} - {0}


async def test_a_compaction_pane_that_is_pinned_at_one_line_does_not_open(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text('{"hinted": true}')
    async with desk.shown("4 Compaction", "3 explorer-1", layout_path=path) as pilot:
        await pilot.press("4", *["underscore"] * 5)
        await until(pilot, lambda: "compaction" not in sizes(pilot))
        assert live(pilot).active_pane == "events"
        await pilot.press("1")
        compact(desk)
        await shows(pilot, "◌ 1 in flight")
        assert "compaction" not in sizes(pilot)
    async with desk.shown("4 Compaction", "in flight", layout_path=path) as pilot:
        assert "compaction" not in sizes(pilot)


async def test_events_have_the_width_of_the_screen(calm: Desk) -> None:
    preview = " ".join(f"word{number}" for number in range(11))
    calm.session.event("tool.done", "explorer1", "t-core", tool="bash", preview=preview, seconds=0.2)
    async with calm.shown("FOLLOW", preview):
        pass


# A wide screen.


async def test_a_wide_screen_shows_the_transcript_beside_the_memory(desk: Desk) -> None:
    async with desk.shown(
        "[Memory]", "5 Transcript", "Thirty files of Python", "keep cents", size=(200, 60)
    ) as pilot:
        await pilot.press("5")
        assert live(pilot).active_pane == "transcript"
        await pilot.press("g")
        assert live(pilot).transcript.page.selected_id == live(pilot).transcript.page.rows[0].id
        await pilot.press("slash", *"folder first", "enter")
        await shows(pilot, "transcript [folder first ×]", "[Memory]")
        await pilot.press("escape")
        await shows(pilot, without="×]")
        # Beside the transcript there is the memory.
        await pilot.press("3", "right")
        await shows(pilot, "[Transcript]", "5 Memory", "Thirty files of Python", "keep cents")
        await pilot.press("right")
        await shows(pilot, "[Calls]", "5 Transcript")


async def test_the_key_of_the_transcript_opens_its_tab_where_it_has_no_column(desk: Desk) -> None:
    async with desk.shown("[Memory]", without="5 Transcript") as pilot:
        await pilot.press("5")
        await shows(pilot, "[Transcript]")
        assert live(pilot).active_pane == "agent"


async def test_a_replay_on_a_wide_screen_has_the_third_column_too(desk: Desk) -> None:
    told_session(desk)
    async with desk.shown("explorer-1", size=(200, 60)) as pilot:
        pilot.app.open_replay("told2345")  # type: ignore[attr-defined]
        await shows(pilot, "1/14", "no compactions so far")
        await pilot.press("end", "tab", "tab")
        await shows(pilot, "[Transcript]", "═ Memory")
        assert pilot.app.screen.query_one("#transcript").size.width > 30


# A small screen.


async def test_a_small_screen_shows_one_pane_and_the_way_to_the_others(desk: Desk) -> None:
    async with desk.shown(
        "[1 Plan]  2 Events   3 Agent   4 Compaction", "explorer-2", size=(80, 24)
    ) as pilot:
        assert list(sizes(pilot)) == ["plan"]
        for key, name, pane in (
            ("2", "Events", "events"),
            ("3", "Agent", "agent"),
            ("4", "Compaction", "compaction"),
        ):
            await pilot.press(key)
            await shows(pilot, f"[{key} {name}]")
            assert list(sizes(pilot)) == [pane]
        await pilot.press("escape")
        await until(pilot, lambda: list(sizes(pilot)) == ["plan"])
        await pilot.press("enter")
        await until(pilot, lambda: list(sizes(pilot)) == ["agent"])
        await pilot.press("escape")  # one step leads back
        await until(pilot, lambda: list(sizes(pilot)) == ["plan"])
        await pilot.click("PaneTabs", offset=(12, 0))
        await until(pilot, lambda: list(sizes(pilot)) == ["events"])


async def test_the_names_of_panes_that_find_no_room_are_left_out_and_their_keys_stay(desk: Desk) -> None:
    async with desk.shown("[1 Plan]  2   3   4", size=(34, 24)):
        pass


async def test_a_pane_that_is_zoomed_names_the_others(desk: Desk) -> None:
    async with desk.shown("3 explorer-1", without="[1 Plan]") as pilot:
        await pilot.press("z")
        await shows(pilot, "[1 Plan]  2 Events   3 Agent   4 Compaction")
        await pilot.press("z")
        await shows(pilot, without="[1 Plan]")


# What the panes say.


@pytest.mark.parametrize(
    ("share", "filled", "role"),
    [
        (0.0, "", "bar_low"),
        (0.004, "", "bar_low"),
        (0.01, "▏", "bar_low"),
        (0.12, "█", "bar_low"),
        (0.74, "█████▉", "bar_low"),
        (0.76, "██████▏", "bar_high"),
    ],
)
def test_a_context_bar_is_calm_below_three_quarters_and_empty_at_nothing(
    share: float, filled: str, role: str
) -> None:
    bar = context_bar(round(share * 10_000), 10_000, 8)
    assert (bar[0], bar[2][1]) == ((filled, role), role)


async def test_a_state_is_one_word_in_the_plan(desk: Desk) -> None:
    desk.session.set_agent("explorer2", status="waiting", status_reason="bash: rm -rf a/very/long/folder")
    async with desk.shown("╴explorer-2 (explorer)", without="reading") as pilot:
        plan = live(pilot).plan
        words = {"task:t-tui": "question", "task:t-draft": "failed"}
        await until(
            pilot,
            lambda: (row := plan.shown.find("task:t-tui")) is not None and row.condition.word == "question",
        )
        for row, word in words.items():
            found = plan.shown.find(row)
            assert found is not None
            assert [text for text, _ in plan.row_cells(found)[3]] == [word]
        assert "credit bal" not in "\n".join(line[:60] for line in text_of(pilot).splitlines()[3:12])


async def test_what_a_task_waits_for_is_never_cut(desk: Desk) -> None:
    for number in range(6):
        desk.session.task(f"t-long{number}", f"A task with a long name {number}", status="pending")
    desk.session.task("t-last", "The last", needs=tuple(f"t-long{number}" for number in range(6)))
    async with desk.shown("after t-long0 +5", without="t-long0, "):
        pass


async def test_cost_columns_are_shown_where_there_is_cost(desk: Desk) -> None:
    async with desk.shown(" cost", "$0.11", size=(200, 60)) as pilot:
        desk.session.set(cost_usd=0.0)
        desk.session.connection.execute("UPDATE agents SET cost_usd = 0")
        desk.feed.wake()
        await shows(pilot, without=(" cost", "$/m"))
        await pilot.press("s")
        await shows(pilot, "last active", without=" cost")


async def test_the_pace_and_the_process_are_in_the_report_on_the_planner(desk: Desk) -> None:
    async with desk.shown(
        "4 Compaction", "tok freed", without=("ev/s", "pid", "blocked"), size=(160, 50), row="agent:planner1"
    ) as pilot:
        await pilot.press("i")
        await shows(pilot, "[Report]", "Task")
        await pilot.press("G")
        await shows(pilot, "Session", "pid 991", "1 ev/s", "blocked 0ms")


# What is remembered, and charts.


async def test_an_order_that_was_chosen_in_another_session_sorts_the_tree_and_keeps_it(
    desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "layout.json"
    path.write_text(
        json.dumps({"hinted": True, "order": "cost", "imported_order": "tokens", "ordered": "other"})
    )
    desk.session.set_agent("explorer2", cost_usd=7.5)
    async with desk.shown("1 Plan  by cost", "├╴explorer-2 (explorer)", layout_path=path) as pilot:
        rows = list(live(pilot).plan.shown)
        assert rows[0].agent is not None
        assert rows[0].agent.id == "planner1"
        assert rows[1].id == "task:t-tui"
        await pilot.press("o", "o", "o", "o", "o")  # back at the tree
        await until(pilot, lambda: json.loads(path.read_text())["order"] == "tree")
        await pilot.press("o")
        await shows(pilot, without="├╴explorer-2")
    kept = json.loads(path.read_text())
    assert (kept["order"], kept["imported_order"], kept["ordered"]) == ("cost", "tokens", "abcd2345")


async def test_filters_are_remembered_for_own_runs_and_imported_sessions_apart(
    desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "layout.json"
    path.write_text(
        json.dumps({"hinted": True, "imported_plan_filter": "zebra", "imported_events_filter": "yak"})
    )
    other = FakeSession(desk.session.connection, "theirs23", origin="claude-code", status="done")
    other.agent("main0001", "main", parent_agent_id=None)
    other.event("tool.done", "main0001", tool="Bash", preview="ok", seconds=0.2)
    async with desk.shown("explorer-1", layout_path=path) as pilot:
        await pilot.press("slash", *"explorer paused")
        await shows(pilot, "plan [explorer ×]", "[paused ×]", without="explorer-3")
        assert "plan_filter" not in json.loads(path.read_text())  # not while it is typed
        await pilot.press("enter", "2", "slash", *"plan", "enter")
        await shows(pilot, "events [plan ×]")
    kept = json.loads(path.read_text())
    assert (kept["plan_filter"], kept["events_filter"]) == ("explorer paused", "plan")
    assert (kept["imported_plan_filter"], kept["imported_events_filter"]) == ("zebra", "yak")
    async with desk.shown("plan [explorer ×]", "[paused ×]", "events [plan ×]", layout_path=path) as pilot:
        assert "explorer-3" not in text_of(pilot)
        await pilot.press("backspace")
        await shows(pilot, "plan [explorer ×]", without="[paused ×]")
        await until(pilot, lambda: json.loads(path.read_text())["plan_filter"] == "explorer")
    async with desk.shown("main", "tool", layout_path=path, session_id="theirs23", without=("zebra", "yak")):
        pass  # a filter that matches nothing here only hides the session
    kept["imported_plan_filter"], kept["imported_events_filter"] = "main", "tool"
    path.write_text(json.dumps(kept))
    async with desk.shown("plan [main ×]", "events [tool ×]", layout_path=path, session_id="theirs23"):
        pass


async def test_a_search_of_a_transcript_is_not_remembered(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"hinted": True}))
    async with desk.shown("explorer-1", layout_path=path) as pilot:
        await pilot.press("3", "slash", *"folder", "enter")
        await shows(pilot, "transcript [folder ×]")
    assert "folder" not in path.read_text()


async def test_the_tab_is_remembered_for_each_session(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"hinted": True, "tabs": {"abcd2345": "Metrics", "other": 3}}))
    other = FakeSession(desk.session.connection, "theirs23", status="done")
    other.agent("main0001", "main", parent_agent_id=None)
    async with desk.shown("[Metrics]", layout_path=path) as pilot:
        await pilot.press("3", "left")
        await shows(pilot, "[Calls]")
    assert json.loads(path.read_text())["tabs"] == {"abcd2345": "Calls"}
    async with desk.shown("[Memory]", layout_path=path, session_id="theirs23"):
        pass  # a session of its own, at the first tab


def test_the_tabs_of_the_newest_sessions_are_remembered() -> None:
    layout = Layout(tabs={f"s{number}": "Calls" for number in range(MOST_TABS)})
    tabs = with_tab(layout, "new", "Memory")
    assert len(tabs) == MOST_TABS
    assert tabs["new"] == "Memory"
    assert "s0" not in tabs


def test_the_periods_of_a_chart_are_evenly_spaced() -> None:
    days = evenly_spaced([UsageRow("2026-02-26", 1, cost_usd=1.0), UsageRow("2026-03-02", 1, cost_usd=2.0)])
    assert [row.key for row in days] == [
        "2026-02-26", "2026-02-27", "2026-02-28", "2026-03-01", "2026-03-02",
    ]  # fmt: skip
    assert [row.cost_usd for row in days] == [1.0, None, None, None, 2.0]
    assert len(evenly_spaced([UsageRow("1970-01-01"), UsageRow("2026-03-02")])) == 400
    assert evenly_spaced([]) == []
    hours = evenly_spaced([UsageRow("2026-03-01 23:00"), UsageRow("2026-03-02 01:00")], "hour")
    assert [row.key for row in hours] == ["2026-03-01 23:00", "2026-03-02 00:00", "2026-03-02 01:00"]
    weeks = evenly_spaced([UsageRow("2026-02-16"), UsageRow("2026-03-02")], "week")
    assert [row.key for row in weeks] == ["2026-02-16", "2026-02-23", "2026-03-02"]
    months = evenly_spaced([UsageRow("2025-12"), UsageRow("2026-03")], "month")
    assert [row.key for row in months] == ["2025-12", "2026-01", "2026-02", "2026-03"]


async def test_the_line_of_what_needs_a_person_stays_once_it_was_needed(calm: Desk) -> None:
    calm.session.connection.execute("UPDATE tasks SET status = 'done' WHERE status = 'failed'")
    calm.session.connection.execute("UPDATE agents SET status = 'done' WHERE status = 'failed'")
    async with calm.shown("next: ") as pilot:
        first = sizes(pilot)
        calm.session.approval("explorer1")
        calm.feed.wake()
        await shows(pilot, "e next")
        asked = sizes(pilot)
        assert asked != first
        calm.session.connection.execute("DELETE FROM approvals")
        calm.feed.wake()
        await shows(pilot, "nothing needs your attention", without="e next")
        assert sizes(pilot) == asked
