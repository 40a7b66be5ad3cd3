"""What makes a dashboard pleasant to leave open: it remembers, helps where it is asked, and says what is
coming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import insert
from textual import events
from textual.pilot import Pilot

from watchkeeper.store.agent_snapshot import CallFacts
from watchkeeper_tui.pages.memory import seconds_to_compaction
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.settings import Layout, Settings, load_layout, load_settings


def live(pilot: Pilot[int]) -> LiveScreen:
    assert isinstance(pilot.app.screen, LiveScreen)
    return pilot.app.screen


async def typed(pilot: Pilot[int], line: str) -> None:
    await pilot.press("colon")
    live(pilot).prompt.query_one("#prompt-line").value = line  # type: ignore[attr-defined]
    await pilot.press("enter")


# The layout.


async def test_tab_order_and_divider_are_as_they_were_left(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text('{"hinted": true}')
    async with desk.shown("3 explorer-1", without="loading", layout_path=path) as pilot:
        wide, high = live(pilot).plan.size
        await pilot.press("greater_than_sign", "greater_than_sign", "circumflex_accent", "ctrl+up")
        await pilot.press("o", "3", "right", "right")
        await shows(pilot, "[Calls]")
    async with desk.shown("3 explorer-1", without="loading", layout_path=path) as pilot:
        assert "[Calls]" in text_of(pilot)
        assert "1 Plan  by cost" in text_of(pilot)
        assert live(pilot).plan.size.width > wide + 8
        assert live(pilot).plan.size.height < high - 2
        await pilot.press("z")
        await until(pilot, lambda: live(pilot).plan.size.width > 110)


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"split": "wide", "order": 7, "tab": null, "zoo": 1, "hinted": true}',
     '{"split": 4000, "order": "moon", "hinted": true}'],
)  # fmt: skip
async def test_a_damaged_layout_is_ignored_and_the_dashboard_opens(desk, tmp_path, content):
    path = tmp_path / "layout.json"
    path.write_text(content)
    async with desk.shown("explorer-1", layout_path=path) as pilot:
        if not content.endswith("true}"):
            await shows(pilot, "layout.json ignored")
        await pilot.press("o")
        await pilot.pause()


def test_only_known_values_of_the_right_kind_are_taken_from_a_layout(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"ordered": "s1", "split": True, "order": 3, "new": "x"}))
    assert load_layout(path) == (Layout(ordered="s1"), "")
    assert load_layout(tmp_path / "none.json") == (Layout(), "")


async def test_a_layout_that_cannot_be_kept_is_said_and_harms_nothing(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "layout.json"
    async with desk.shown("cannot save the layout", layout_path=path) as pilot:
        await shows(pilot, "3 explorer-1", without="loading")


async def test_whoever_opens_it_first_is_told_the_keys_once(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    for hinted in (True, False):
        async with desk.shown("3 explorer-1", without="loading", layout_path=path) as pilot:
            assert ("new here?" in text_of(pilot)) is hinted


async def test_the_first_keys_are_those_of_the_user_and_those_that_do_something(desk, tmp_path):
    keys = Settings(keys={"sessions": "f6"})
    desk.host_pid = None
    desk.session.set(status="done")
    async with desk.shown(
        "w replays", "f6 lists sessions", layout_path=tmp_path / "layout.json", settings=keys
    ) as pilot:
        assert "p pauses" not in text_of(pilot)


async def test_reduced_motion_moves_nothing(desk, monkeypatch, tmp_path):
    assert desk.app().animation_level != "none"
    monkeypatch.setenv("WATCHKEEPER_REDUCED_MOTION", "1")
    assert desk.app().animation_level == "none"
    monkeypatch.setenv("WATCHKEEPER_REDUCED_MOTION", "0")
    (tmp_path / "config.toml").write_text("reduced_motion = true")
    assert load_settings(tmp_path).reduced_motion


# The order of the plan.


async def test_the_plan_is_sorted_by_what_costs_most_and_by_who_needs_somebody(desk: Desk) -> None:
    desk.session.set_agent("explorer2", cost_usd=7.5)
    desk.session.set_agent("explorer1", cost_usd=0.5)
    async with desk.shown("3 explorer-1", without="loading") as pilot:
        tree = [row.id for row in live(pilot).plan.shown]
        await pilot.press("o")
        rows = list(live(pilot).plan.shown)
        assert [row.agent.id for row in rows if row.agent][:2] == ["explorer2", "explorer1"]
        assert sorted(row.id for row in rows) == sorted(tree)
        await pilot.press("o", "o", "o", "o")
        assert live(pilot).plan.shown[0].condition.role == "failed"
        await pilot.press("o")
        assert [row.id for row in live(pilot).plan.shown] == tree


# Help, and finding one's way.


async def test_help_tells_first_what_works_in_the_pane_it_was_asked_in(desk: Desk) -> None:
    async with desk.shown("3 explorer-1", without="loading") as pilot:
        for key, words in (
            ("1", "This pane: the plan"),
            ("3", "This pane: the agent"),
            ("2", "This pane: events"),
        ):
            await pilot.press(key, "question_mark")
            await shows(pilot, words)
            await pilot.press("escape")
            await pilot.pause()


async def test_c_goes_to_where_the_transcript_was_compacted(large_desk: Desk) -> None:
    async with large_desk.shown("coder-2 ", row="task:task001") as pilot:
        await shows(pilot, "3 coder-1", without="reading")
        await pilot.press("3", "c")
        await shows(pilot, "from #3 verbatim")
        assert live(pilot).agent_pane.page.selected_id == "boundary"


# Pinning, and the rest of the command bar.


async def test_star_pins_the_fact_or_message_under_the_cursor_and_lets_a_pinned_one_go(desk: Desk) -> None:
    insert(
        desk.session.connection, "views", agent_id="explorer1", version=2, observations="[]", verbatim_from=1, pins="[2]",
        reason="pin", created_at=desk.session.now,
    )  # fmt: skip
    async with desk.shown("3 explorer-1", without="loading", size=(120, 60), row="task:t-core") as pilot:
        await pilot.press("3")
        page = live(pilot).agent_pane.page

        async def star(row: str, count: int) -> None:
            await until(pilot, lambda: page.place_of(row) is not None)
            page.select(row)
            await pilot.press("asterisk")
            await shows(pilot, "y yes")
            await pilot.press("y")
            await until(pilot, lambda: len(desk.session.commands()) == count)

        rows = {line.copy: line.id for line in page.rows}
        for count, words in enumerate(("core has 30 Python files", "keep cents as integers"), 1):
            page.select(rows[words])
            await pilot.press("asterisk")
            await until(pilot, lambda count=count: len(desk.session.commands()) == count)
        page.select("context.bar")
        await pilot.press("asterisk")
        await shows(pilot, "select a fact")
        await star("pinned.2", 3)
        await pilot.press("right")
        await star("1.0", 4)
    (pin, unpin, *edits) = desk.session.commands()
    assert [(each[0], type(json.loads(each[3])["fact"])) for each in (pin, unpin)] == [
        ("pin", int),
        ("unpin", int),
    ]
    assert [(kind, agent, json.loads(payload)) for kind, agent, _, payload in edits] == [
        ("edit", "explorer1", {"unpin": [2]}), ("edit", "explorer1", {"pin": [1]}),
    ]  # fmt: skip


async def test_memory_sync_search_and_pin_in_the_command_bar(desk: Desk) -> None:
    async with desk.shown("3 explorer-1", without="loading", size=(120, 60)) as pilot:
        await typed(pilot, "/memory sync")
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == ["memory_sync"])
        await typed(pilot, "/pin never touch  main")
        await until(pilot, lambda: len(desk.session.commands()) == 2)
        assert json.loads(desk.session.commands()[1][3]) == {"text": "never touch  main"}
        await typed(pilot, "/memory search cents")
        await shows(pilot, "1 remembered fact of 2 matching “cents”")
        assert "core has 30" not in text_of(pilot)
        await typed(pilot, "/memory nonsense")
        await shows(pilot, ":memory takes")


async def test_a_line_of_a_compaction_is_pinned_in_the_users_words(desk: Desk) -> None:
    async with desk.shown("3 explorer-1", without="loading") as pilot:
        await pilot.press("4", "enter")
        await shows(pilot, "Omitted only")
        await pilot.press("asterisk")
        await shows(pilot, "Pin to every prompt")
        pilot.app.screen.query_one("#prompt-line").value = "retry budget is 3"  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, lambda: bool(desk.session.commands()))
        assert desk.session.commands()[0][0] == "pin"
        assert json.loads(desk.session.commands()[0][3]) == {"text": "retry budget is 3"}


# What is coming.


def call(started: float, prompt: int, status: str = "done") -> CallFacts:
    return CallFacts(
        1, 1, "turn", "m", status, None, prompt, 10, 0, 0, True, None, "exact", started, 1.0, None, 0.0, 0,
        None,
    )  # fmt: skip


def test_the_time_to_a_compaction_follows_the_growth_since_the_last_one() -> None:
    growing = [
        call(130, 4000), call(120, 3000), call(110, 2000), call(100, 1000), call(90, 9000), call(80, 8000),
    ]  # fmt: skip
    assert seconds_to_compaction(growing, 2000) == pytest.approx(20)
    assert seconds_to_compaction(growing, 0) is None
    assert seconds_to_compaction(growing[:2], 2000) is None
    assert seconds_to_compaction([call(3, 500), call(2, 500), call(1, 500)], 2000) is None


async def test_where_compaction_starts_is_what_the_host_says_or_the_configuration(desk, tmp_path):
    folder = tmp_path / "config" / "watchkeeper"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("summarization_threshold = 0.5")
    async with desk.shown("compaction near 16k") as pilot:
        desk.session.set_agent(
            "explorer1", composition=json.dumps({"messages": 10_900, "overhead": 1000, "threshold": 20_000})
        )
        desk.feed.wake()
        await shows(pilot, "compaction near 21k")
        assert "threshold" not in text_of(pilot).replace("threshold 24k", "")


async def test_observations_made_ahead_are_shown_as_buffered_and_not_as_in_flight(desk: Desk) -> None:
    desk.session.compaction(
        "explorer1", status="prepared", trigger="observer", high_water=77, ended_at=None, tokens_after=None
    )
    async with desk.shown("1 chunk buffered", "buffered up to #77") as pilot:
        assert "in flight" not in text_of(pilot)


async def test_what_observers_and_reflectors_did_is_said_and_a_pass_that_was_not_needed_is_no_failure(
    desk: Desk,
) -> None:
    desk.session.compaction("explorer1", status="applied", trigger="observer", reason="activation")
    desk.session.compaction("explorer1", status="applied", trigger="reflector", reason="reflection")
    desk.session.compaction(
        "explorer1", status="skipped", trigger="observer", reason="the agent finished", tokens_after=None
    )
    async with desk.shown("observer activated", "reflector consolidated", "- ") as pilot:
        await shows(pilot, "observer skipped: the agent finished")
        assert "✗" not in text_of(pilot).partition("4 Compaction")[2]


async def test_the_metrics_of_an_agent_tell_what_those_below_it_took(desk: Desk) -> None:
    async with desk.shown("3 explorer-1", without="loading", row="agent:planner1") as pilot:
        await pilot.press("3", "right", "right", "right")
        await shows(pilot, "[Metrics]", "sub-agents", "512k tok  $0.44  of 4 agents")


async def test_the_help_breaks_long_lines_and_cuts_none(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        await shows(pilot, "This pane: the plan")
        assert "…" not in "".join(line[3:77] for line in text_of(pilot).splitlines())  # the rest is behind it


async def test_keys_typed_faster_than_the_screen_is_drawn_go_to_the_line_that_was_opened(desk: Desk) -> None:
    async with desk.shown("3 explorer-1", without="loading") as pilot:
        screen = live(pilot)
        for character in ":resume x/Cy":
            key = {":": "colon", "/": "slash", " ": "space"}.get(character, character)
            pilot.app.post_message(events.Key(key, character))
        await shows(pilot, ":resume x/Cy")
        await pilot.press("escape", "slash")
        assert screen.prompt.is_asking
        await pilot.press("escape")
        for character in "Cnp":
            pilot.app.post_message(events.Key(character, character))
        await until(pilot, lambda: [each[0] for each in desk.session.commands()] == ["pause"])
        assert desk.control.started == []


async def test_a_coming_compaction_is_timed_while_the_run_is_live_alone(desk: Desk) -> None:
    for turn in range(5):
        desk.session.call(
            "explorer1",
            turn=20 + turn,
            input_tokens=20_000 + turn * 900,
            started_at=desk.time - 50 + turn * 10,
        )
    async with desk.shown("at this rate") as pilot:
        desk.host_pid = None
        await shows(pilot, "STOPPED", without="at this rate")


async def test_the_divider_says_why_it_does_not_move(desk: Desk) -> None:
    async with desk.shown("explorer-1", size=(80, 24)) as pilot:
        await pilot.press("less_than_sign")
        await shows(pilot, "this divider is hidden: a pane beside it is not shown")
    async with desk.shown("explorer-1", size=(120, 40)) as pilot:
        high = live(pilot).plan.size.height
        await pilot.press("underscore", "underscore")
        await until(pilot, lambda: live(pilot).plan.size.height > high)
        await pilot.press("z", "underscore")
        await shows(pilot, "this divider is hidden")
