"""The timeline: what each cell of an agent's row shows, and how one moves along it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.tui.conftest import NOW, Desk, shows, until
from tests.tui.fake_store import HOSTILE, insert
from tests.tui.pictures import assert_agreed

from watchkeeper.store.statistics import Activity, Mark, MarkKind, Span, TimelineAgent
from watchkeeper_tui.screens.replay import ReplayScreen
from watchkeeper_tui.screens.timeline import BOTH, LOOKS, Axis, TimelineScreen, axis_cells

AGENT = TimelineAgent("a", "port", "coder", "Port module 1", "working", 0.0, 100.0, 0)
SPANS = st.lists(
    st.builds(
        lambda activity, begins, length: Span(
            "a", activity, begins, None if length > 90 else begins + length
        ),
        st.sampled_from(Activity),
        st.floats(-50, 150),
        st.floats(0, 100),
    ),
    max_size=20,
)


def drawn(axis: Axis, *spans: Span, marks: tuple[Mark, ...] = ()) -> str:
    return "".join(glyph for glyph, _ in axis_cells(axis, AGENT, spans, marks, 100.0))


@given(SPANS, st.floats(-100, 100), st.floats(0.05, 10), st.integers(1, 200))
def test_a_row_fills_its_axis_and_shows_every_span_on_it(spans, begins, seconds, cells):
    axis = Axis(begins, seconds, cells)
    row = axis_cells(axis, AGENT, spans, (), 100.0)
    assert len(row) == cells
    assert all(cell_len(glyph) == 1 for glyph, _ in row)
    busy = {LOOKS[activity][0] for activity in Activity} | {BOTH[0]}
    for span in spans:
        for at in (span.begins, 100.0 if span.ends is None else span.ends):
            if 0 <= axis.cell(at) < cells and at >= span.begins:
                assert row[axis.cell(at)][0] in busy


def test_what_needs_a_person_wins_a_cell_and_else_what_fills_most_of_it() -> None:
    axis = Axis(0.0, 10.0, 4)
    assert drawn(axis) == "────"
    work = Span("a", Activity.MODEL, 0, 7)
    tool = Span("a", Activity.TOOL, 7, 20)
    assert drawn(axis, work, tool) == "█▓▓─"
    assert drawn(axis, work, tool, Span("a", Activity.QUESTION, 8, 8.1)) == "?▓▓─"
    assert drawn(axis, work, Span("a", Activity.COMPACTION, 5, 25)) == "▚▂▂─"
    assert drawn(axis, work, marks=(Mark(MarkKind.KILLED, 15), Mark(MarkKind.RESUMED, 25))) == "█†▸─"
    assert drawn(replace(axis, begins=-20.0)) == "  ──"
    assert (
        drawn(replace(axis, begins=-20.0), marks=(Mark(MarkKind.KILLED, -15),)) == "  ──"
    )  # before it was there


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """A run that was killed and resumed, with a question, a tool and a compaction."""
    run = desk.session
    run.set_agent("explorer1", name=f"explorer-1 {HOSTILE}")
    run.connection.execute("DELETE FROM events")
    run.event("host.started", at=NOW - 700)
    run.call("explorer1", started_at=NOW - 600, latency_seconds=60, waited_seconds=30)
    where = {
        "turn": 1, "position": 0, "seq": 2, "tool_use_id": "t", "name": f"bash {HOSTILE}", "idempotent": 0,
    }  # fmt: skip
    insert(run.connection, "tool_calls", session_id=run.id, agent_id="explorer1", status="done",
           started_at=NOW - 540, ended_at=NOW - 480, **where)  # fmt: skip
    run.connection.execute("UPDATE compactions SET requested_at = ?, ended_at = ?", (NOW - 590, NOW - 500))
    run.event("tool.error", "explorer1", at=NOW - 400, error=f"no such file {HOSTILE}")
    run.event("model.replied", "explorer1", at=NOW - 390)
    run.event("host.started", at=NOW - 300, resume=True)
    run.approval("explorer2")
    run.connection.execute("UPDATE approvals SET created_at = ?", (NOW - 200,))
    run.event("approval.asked", "explorer2", at=NOW - 200)
    return desk


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_timeline_looks_as_agreed(busy: Desk, size: tuple[int, int]) -> None:
    async with busy.shown("explorer-1", size=size) as pilot:
        await pilot.press("t")
        await shows(pilot, "Timeline", "explorer-1")
        await pilot.press("j")
        await assert_agreed(pilot, "timeline")


async def test_marks_are_found_zoomed_into_and_replayed_from(busy: Desk) -> None:
    async with busy.shown("explorer-1", size=(120, 24)) as pilot:
        await pilot.press("t")
        await shows(pilot, "explorer-1")
        screen = pilot.app.screen
        assert isinstance(screen, TimelineScreen)
        await pilot.press("N")
        await shows(pilot, "▸ resumed")
        await pilot.press("N")
        await shows(pilot, "† killed: the background process stopped")
        whole = screen.view.axis
        await pilot.press("plus", "plus")
        assert screen.view.axis.seconds < whole.seconds
        assert 0 <= screen.view.axis.cell(screen.view.cursor) < screen.view.axis.cells
        await pilot.press("0")
        assert screen.view.axis == whole
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ReplayScreen))
        replay = pilot.app.screen
        assert isinstance(replay, ReplayScreen)
        await until(pilot, lambda: replay.playback.position == 4)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(pilot.app.screen, TimelineScreen))
        await pilot.press("n", "enter")
        await until(pilot, lambda: replay.playback.position == 5)
        assert pilot.app.screen is replay


async def test_the_mouse_moves_the_cursor_and_zooms(busy: Desk) -> None:
    async with busy.shown("explorer-1", size=(120, 24)) as pilot:
        await pilot.press("t")
        await shows(pilot, "explorer-1")
        screen = pilot.app.screen
        assert isinstance(screen, TimelineScreen)
        view = screen.view
        await pilot.click(view, offset=(view.name_cells + 3 + 20, 3))
        assert view.axis.cell(view.cursor) == 20
        assert view.selected is not None
        assert view.selected.id == view.timeline.agents[1].id


async def test_a_live_session_is_read_again_and_the_end_stays_in_sight(busy: Desk) -> None:
    async with busy.shown("explorer-1", size=(120, 24)) as pilot:
        await pilot.press("t")
        await shows(pilot, "explorer-1")
        screen = pilot.app.screen
        assert isinstance(screen, TimelineScreen)
        busy.time = NOW + 1_000
        busy.session.agent("late1", "late-1", created_at=NOW + 900, started_at=NOW + 900)
        busy.session.event("agent.created", "late1", at=NOW + 900, name="late-1")
        busy.feed.wake()
        await shows(pilot, "late-1")
        assert screen.view.axis.cell(NOW + 1_000) < screen.view.axis.cells
        assert screen.view.cursor >= NOW + 1_000
