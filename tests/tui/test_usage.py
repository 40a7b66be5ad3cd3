"""The usage screen: what all sessions cost, grouped, with a chart."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tui.conftest import NOW, Desk, shows, text_of, until
from tests.tui.fake_store import HOSTILE, FakeSession
from tests.tui.pictures import assert_agreed
from textual.geometry import Region
from textual.pilot import Pilot
from textual_plotext import PlotextPlot

from watchkeeper.models.registry import ListedModel
from watchkeeper.records.messages import Rates
from watchkeeper_tui.formatting import bar, sparkline
from watchkeeper_tui.screens.sessions import SessionsScreen
from watchkeeper_tui.screens.usage import ChartScreen, UsageScreen, thinned

DAY = 86_400


@pytest.fixture
def spent(desk: Desk) -> Desk:
    """Calls of nine days, of two models and two projects; one model has a hostile name and no price."""
    run = desk.session
    run.connection.execute("DELETE FROM model_calls")
    other = FakeSession(
        run.connection, "other222", workspace="/srv/ledger", origin="claude-code", status="done"
    )
    other.agent("main0001", "main")
    for day in range(9):
        run.call(
            "explorer1", started_at=NOW - day * DAY, cost_usd=1.5 + day, model="anthropic/claude-sonnet-5"
        )
        other.call("main0001", started_at=NOW - day * DAY, cost_usd=0.5, model="anthropic/claude-opus-4-6")
    run.call("explorer2", started_at=NOW, cost_usd=None, price_status="unpriced", model=f"local/{HOSTILE}")
    return desk


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_usage_screen_looks_as_agreed(spent: Desk, size: tuple[int, int]) -> None:
    async with spent.shown("explorer-1", size=size) as pilot:
        await pilot.press("dollar_sign")
        await shows(pilot, "2026-09-2")
        await assert_agreed(pilot, "usage")


async def test_each_key_groups_and_enter_lists_the_sessions(spent: Desk) -> None:
    async with spent.shown("explorer-1") as pilot:
        await pilot.press("dollar_sign")
        # 9 days: 1.5 to 9.5 and nine times 0.5.
        await shows(pilot, "total $54.00+", "today $2.00")
        for key, first in (
            ("w", "2026-09-21"), ("M", "2026-09"), ("m", "claude-sonnet-5"), ("p", "/srv/billing"),
            ("o", "run"),
        ):  # fmt: skip
            await pilot.press(key)
            await shows(pilot, first)
        await pilot.press("m")
        await shows(pilot, "claude-opus-4-6")
        assert "\x1b" not in text_of(pilot)
        assert isinstance(pilot.app.screen, UsageScreen)
        await pilot.press("o")
        await until(pilot, lambda: text_of(pilot).count("claude-code") == 2)  # the bar's name, and the row's
        await pilot.press("p")
        await shows(pilot, "/srv/ledger")
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, SessionsScreen))
        await shows(pilot, "workspace:/srv/ledger")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, UsageScreen))


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_c_divides_the_cost_by_class(spent, monkeypatch, size):
    rates = ((0, ((0.0, Rates(1.0, 10.0, 0.1, 1.25, 2.0)),)),)
    monkeypatch.setattr(
        "watchkeeper.models.registry.remembered_prices",
        lambda _: lambda provider, name: ListedModel(rates if "opus" in name else ()),
    )
    # $0.50: $0.10 of input, $0.02 read, $0.25 of output; the rest was written, a part of it for an hour.
    spent.session.connection.execute(
        "UPDATE model_calls SET input_tokens = 100000, cache_read_tokens = 200000, output_tokens = 25000,"
        " cache_write_tokens = 80000 WHERE model LIKE '%opus%'"
    )
    async with spent.shown("explorer-1", size=size) as pilot:
        await pilot.press("dollar_sign", "m", "c")
        await shows(pilot, "opus-4-6", "1 h", "$0.45")
        line = next(line for line in text_of(pilot).splitlines() if "opus-4-6 " in line and "$" in line)
        # Nine calls: input, output, read, written (5 min TTL)utes and for an hour, and nothing else.
        assert re.findall(r"\$[\d.]+|(?<= )-(?= )", line) == [
            "$0.90", "$2.25", "$0.18", "$0.45", "$0.72", "-", "$4.50",
        ]  # fmt: skip
        other = next(line for line in text_of(pilot).splitlines() if "sonnet-5 " in line and "$" in line)
        assert other.count("$49.50") == 2  # no list price: all of it is `other`
        await shows(pilot, "written for 1 h $0.72")
        await pilot.press("c")
        await until(pilot, lambda: re.search(r"calls +input +output", text_of(pilot)) is not None)


async def test_an_agent_and_all_below_it_are_charted_over_time(spent, monkeypatch):
    rates = ((0, ((0.0, Rates(3.0, 15.0, 0.3, 3.75, 6.0)),)),)
    monkeypatch.setattr(
        "watchkeeper.models.registry.remembered_prices",
        lambda _: lambda provider, name: ListedModel(rates if provider != "local" else ()),
    )
    spent.session.connection.execute("UPDATE model_calls SET cache_read_tokens = 20000")
    async with spent.shown("explorer-1") as pilot:
        await pilot.press("T")
        await shows(pilot, "context: tokens per prompt", "9 calls")
        await pilot.press("2")
        await shows(pilot, "read from cache")
        await pilot.press("tab")
        await shows(pilot, "cumulative cost in US dollars", "1 compaction", "output $")
        parts = [
            float(each)
            for each in re.findall(r"(?:cache|min|1 h|input|output|other) \$([\d.]+)", text_of(pilot))
        ]
        assert len(parts) >= 2
        assert sum(parts) == pytest.approx(49.5, abs=0.02)
        await pilot.press("escape", "g", "T")
        # The planner: all agents below it, one with a hostile model and no price.
        await shows(pilot, "planner and 4 sub-agents", "10 calls")
        spent.session.call("explorer1", started_at=NOW + 5, cost_usd=2.0)
        spent.time = NOW + 600  # charts that take long to draw are read again later
        spent.session.event("model.replied", "explorer1", at=NOW + 9)
        spent.feed.wake()
        await shows(pilot, "11 calls")


@pytest.mark.parametrize("theme", ["terminal", "day-watch"])
async def test_the_words_of_a_chart_can_be_read_in_the_theme(spent: Desk, theme: str) -> None:
    async with spent.shown("explorer-1", theme=theme) as pilot:
        await pilot.press("dollar_sign")
        await shows(pilot, "US dollars by day")
        lines = pilot.app.screen.query_one(PlotextPlot).render_lines(Region(0, 0, 120, 10))
        words = [part for line in lines for part in line if part.style and part.text.strip("█ ")]
        assert words
        for part in words:
            assert part.style is not None
            colour = part.style.color
            assert colour is None or colour.is_default or colour != part.style.bgcolor, part


async def test_the_other_charts_are_drawn_before_their_key_is_pressed(spent, monkeypatch):
    async with spent.shown("explorer-1") as pilot:
        await pilot.press("T")
        await shows(pilot, "9 calls")
        screen = pilot.app.screen
        assert isinstance(screen, ChartScreen)
        for _ in range(3):
            screen.tick(NOW)

        def build(_: object) -> str:
            raise AssertionError("a chart was drawn while its key waited")

        monkeypatch.setattr("textual_plotext.plot.Plot.build", build)
        for title in ("tokens per minute, linear", "cumulative cost in US dollars", "context: tokens"):
            await pilot.press("tab")
            await shows(pilot, title)


async def test_the_bars_of_a_run_of_a_minute_are_all_there(spent: Desk) -> None:
    spent.session.connection.execute("DELETE FROM model_calls")
    for number in range(60):
        spent.session.call("explorer1", started_at=NOW + number, input_tokens=1000)
    async with spent.shown("explorer-1") as pilot:
        await pilot.press("T", "2")
        await shows(pilot, "60 calls", "tokens per minute, linear scale")
        bottom = max(line for line in text_of(pilot).splitlines() if line.lstrip().startswith("0┤"))
        # As many calls in each part of the minute: bars from edge to edge, with at most one cell between two.
        assert not re.search(r"█ {2,}█", bottom)
        assert bottom.count("█") > 80


# Small values, few values and unknown ones.


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(1, 40))
def test_a_bar_is_as_long_as_its_share_to_an_eighth_of_a_cell(part: int, whole: int, cells: int) -> None:
    drawn = bar(part, whole, cells)
    eighths = sum(8 if mark == "█" else "▏▎▍▌▋▊▉".index(mark) + 1 for mark in drawn)
    wanted = min(1.0, part / whole) * cells * 8
    assert len(drawn) <= cells
    assert (eighths == 0) == (part == 0)
    assert abs(eighths - wanted) <= 0.5 or eighths == 1


def test_a_sparkline_shows_zero_as_nothing_and_small_values_small() -> None:
    assert sparkline([0, 1, 12, 50, 100], 6) == "  ▁▂▅█"
    assert sparkline([0, 0], 3) == "   "
    assert sparkline([], 3) == "   "


def spend(desk: Desk, *costs: tuple[float, float | None]) -> None:
    """Only these calls: so many days ago, at what cost."""
    desk.session.connection.execute("DELETE FROM model_calls")
    for days, cost in costs:
        status = "unpriced" if cost is None else "exact"
        at = NOW - days * DAY
        desk.session.call("explorer1", started_at=at, cost_usd=cost, price_status=status, input_tokens=9000)


def chart(pilot: Pilot[int]) -> str:
    return text_of(pilot).partition("╭")[0]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_small_bar_of_a_chart_is_the_thinnest_mark(desk: Desk, size: tuple[int, int]) -> None:
    spend(desk, (3, 10.0), (2, 0.1), (1, 1.2))
    async with desk.shown("explorer-1", size=size) as pilot:
        await pilot.press("dollar_sign")
        await shows(pilot, "US dollars by day, linear scale", "$0.10")
        rows = pilot.app.screen.query_one(PlotextPlot).size.height - 5  # values are above the bars
        bottom = next(line for line in chart(pilot).splitlines() if "$0.00┤" in line)
        most, least, small = re.findall(r"(?:[▁▂▃▄▅▆▇█])+", bottom)
        assert set(most) == {"█"}
        assert set(least) == {"▁▂▃▄▅▆▇█"[max(1, round(0.01 * 8 * rows)) - 1]}
        assert set(small) == {"▁▂▃▄▅▆▇█"[min(8, round(0.12 * 8 * rows)) - 1]}


async def test_one_day_is_charted_by_its_hours(desk: Desk) -> None:
    spend(desk, (0, 0.5), (2 / 24, 0.25))
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("dollar_sign")
        await shows(pilot, "US dollars by hour of 2026-09-2", "$0.50", "$0.25")
        assert len(re.findall(r"\d\d:00", chart(pilot))) == 3  # the hour between them is empty
        await pilot.press("m")
        await shows(pilot, "US dollars by model, linear scale", "$0.75")


async def test_an_unknown_cost_is_no_zero(desk: Desk) -> None:
    spend(desk, (3, 2.0), (1, None), (0, 1.0))
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("dollar_sign")
        await shows(pilot, "linear scale; ? unknown cost", "unpriced ?")
        bottom = next(line for line in chart(pilot).splitlines() if line.startswith("$0.00"))
        assert re.fullmatch(r"\$0\.00┤ +█+ +\? +█+ +│", bottom)


async def test_where_no_call_has_a_price_the_charts_show_tokens(desk: Desk) -> None:
    spend(desk, (1, None), (0, None))
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("dollar_sign")
        await shows(
            pilot, "tokens by day, linear scale; no call has a price", "today unpriced", without="$0.00"
        )
        assert "█" in chart(pilot)
        assert "cost" not in text_of(pilot).partition("╭")[2].partition("today")[0]
        await pilot.press("escape", "T", "3")
        await shows(pilot, "cumulative tokens, linear scale; no call has a price", "2 calls  unpriced")


async def test_the_charts_of_one_call_show_its_values(desk: Desk) -> None:
    spend(desk, (0, 0.5))
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("T")
        await shows(pilot, "context: tokens per prompt", "9.0k")
        assert "█" in text_of(pilot)
        await pilot.press("3")
        await shows(pilot, "cumulative cost in US dollars", "other $0.50", " $0.50 ")


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=300).map(sorted), st.integers(1, 20)
)
def test_a_thinned_line_keeps_its_ends_and_its_extremes(points, columns):
    drawn = list(thinned(points, columns))
    assert drawn == sorted(drawn)
    assert set(drawn) <= set(points)
    assert len(drawn) <= 4 * (columns + 1)
    if points:
        heights, kept = [height for _, height in points], [height for _, height in drawn]
        assert (drawn[0], drawn[-1]) == (points[0], points[-1])
        assert (min(heights), max(heights)) == (min(kept), max(kept))
