"""Charts: what all sessions used and cost, and one agent, subtree or session over time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from itertools import accumulate, compress, groupby
from operator import itemgetter
from typing import Any, ClassVar

from textual.app import ComposeResult, RenderResult
from textual.binding import BindingType
from textual.widget import Widget
from textual_plotext import PlotextPlot

from watchkeeper.records.messages import CostClasses, Periods, Usage, cost_classes, rates_on
from watchkeeper.store.driver import Connection
from watchkeeper.store.statistics import PERIODS, CallPoint, CallSeries, UsageRow, call_series, usage
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.control import model_prices
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import ReadingScreen
from watchkeeper_tui.theming import TERMINAL_THEME
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView

READ_SECONDS = 5.0
"""How often the sums are made again while something changes."""
_GROUPS = {
    "d": ("day", "Days"), "w": ("week", "Weeks"), "M": ("month", "Months"), "m": ("model", "Models"),
    "p": ("project", "Projects"), "o": ("program", "Programs"),
}  # fmt: skip
"""What each key groups by, and its title."""
_BAR_CELLS = 14
_LABEL_CELLS = 7
"""Columns of the chart that one bar and its label need."""
LEAST_USD = 5e-7
"""What costs less, costs nothing."""
_NAME_CELLS = 12
"""The same where the label is a name."""
FEWEST_BARS = 6
"""A chart has room for so many, so that a single bar does not fill it."""
SCALE = "linear scale"
"""What a chart says of its axis of values, which begins at zero."""
LEAST_BAR_ROWS = 4
"""A legend that leaves its bars fewer is left out."""

Found = tuple[list[UsageRow], list[UsageRow], UsageRow]
"""The groups, the days, and the sum of all."""


_CLASSES = {
    "input": ("input", "kind_messages"), "cache_read": ("read from cache", "kind_system"),
    "cache_write_5m": ("written (5 min TTL)", "kind_tools"), "cache_write_1h": ("written for 1 h", "kind_facts"),
    "output": ("output", "kind_observations"), "other": ("other", "money"),
}  # fmt: skip
"""The classes of a cost as they are stacked: what a legend calls them, and their roles."""


class _CostScreen(ReadingScreen):
    """A screen that divides costs among the classes of tokens: it has the list prices of the models that it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.prices: dict[str, Periods] = {}
        self._looking_up = False

    def need_prices(self, models: Iterable[str]) -> None:
        """Look up the prices that are missing, beside the reader: it may start a process. `priced` follows."""
        missing = sorted(set(models) - self.prices.keys())
        if missing and not self._looking_up:
            self._looking_up = True
            self.run_worker(lambda: self._look_up(missing), thread=True, exit_on_error=False, group="prices")

    def _look_up(self, models: Sequence[str]) -> None:
        """In a worker thread."""
        found: dict[str, Periods] = dict.fromkeys(models, ())  # what failed once is not tried each second
        try:
            found |= model_prices(models)
        except (OSError, ValueError) as error:
            self.app.call_from_thread(self.say, f"! {self.trouble(error)}", "failed")
        self.app.call_from_thread(self._looked_up, found)

    def _looked_up(self, found: dict[str, Periods]) -> None:
        self.prices |= found
        self._looking_up = False
        if self.is_usable:
            self.priced()

    def priced(self) -> None:
        """More prices are known."""

    @property
    def plot(self) -> PlotextPlot:
        """The chart, in colours that can be read in the theme."""
        plot = self.query_one(PlotextPlot)
        # The sixteen colours of a terminal have no values: words would stand black on black.
        plot.theme = "clear" if self.app.theme == TERMINAL_THEME else "auto"
        return plot

    def stack(
        self,
        plot: PlotextPlot,
        places: Sequence[float],
        bars: Sequence[Sequence[float]],
        names: Sequence[tuple[str, str]],
        words: Callable[[float], str],
        sums: Sequence[float],
        *,
        width: float = 0.8,
    ) -> None:
        """Draw stacked bars, one at each place: for each name and role, its height in every bar. The legend has the sums; a
        low chart has none."""
        # The library gives the lowest part a row, however small it is: the largest class is below.
        shown = [index for index in range(len(names)) if sums[index]] or [0]
        shown.sort(key=lambda index: -sums[index])
        # The library takes lists here; its types say otherwise.
        looks: dict[str, Any] = {"color": [self.rgb(names[index][1]) for index in shown]}
        bar_rows = _rows(plot) - len(shown)
        has_legend = bar_rows >= LEAST_BAR_ROWS
        if has_legend:
            looks["labels"] = [f"{names[index][0]} {words(sums[index])}" for index in shown]
        tall = [list(bars[index]) for index in shown]
        plot.plt.stacked_bar(list(places), tall, width=width, **looks)
        above = len(shown) / bar_rows if has_legend else 0.0
        self.scale(plot, max(map(sum, zip(*tall, strict=True))), words, above=above)

    def scale(
        self, plot: PlotextPlot, top: float, words: Callable[[float], str], *, above: float = 0.0
    ) -> None:
        """The axis of values begins at zero. `above`: the share of its height that is left free for a legend."""
        ticks = round_ticks(top, steps=max(2, min(5, _rows(plot) // 2)))
        plot.plt.ylim(0, top * (1 + above) or 1)
        plot.plt.yticks(ticks, [words(tick) for tick in ticks])

    def rgb(self, role: str) -> tuple[int, int, int]:
        """The colour of a role."""
        colour = self.watch_app.palette[role].color
        rgb = colour.get_truecolor() if colour is not None else (200, 200, 200)
        return rgb[0], rgb[1], rgb[2]


def _rows(plot: PlotextPlot) -> int:
    """The rows that bars can fill: without the frame, the title and the labels."""
    return max(1, plot.size.height - 4)


def round_ticks(top: float, *, steps: int = 5) -> list[float]:
    """From zero to `top`, at most so many steps of 1, 2, 2.5 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(top / steps))
    step = next(power * part for part in (1, 2, 2.5, 5, 10) if power * part >= top / steps)
    return [step * part for part in range(math.floor(top / step * 1.000001) + 1)]


def thinned(points: Sequence[tuple[float, float]], columns: int) -> Sequence[tuple[float, float]]:
    """Points in order of their first number, without those that a line through all would not show: of each of so many
    columns the first, the least, the greatest and the last."""
    if len(points) <= 4 * columns:
        return points
    first, last = points[0][0], points[-1][0]
    wide = (last - first) / columns or 1.0
    kept = []
    for _, column in groupby(points, key=lambda point: int((point[0] - first) / wide)):
        near = list(column)
        ends = (near[0], near[-1], min(near, key=itemgetter(1)), max(near, key=itemgetter(1)))
        kept += sorted(set(ends))
    return kept


def evenly_spaced(days: Sequence[UsageRow], most: int = 400) -> list[UsageRow]:
    """The days in order, with an empty one for each on which nothing was used; the newest of `most`."""
    if not days:
        return []
    known = {row.key: row for row in days}
    last = date.fromisoformat(days[-1].key)
    span = min(most, (last - date.fromisoformat(days[0].key)).days + 1)
    keys = ((last - timedelta(days=back)).isoformat() for back in reversed(range(span)))
    return [known.get(key) or UsageRow(key) for key in keys]


def _short_model(name: str) -> str:
    return formatting.model_name(name).rpartition("/")[2]


def stackable(classes: CostClasses) -> CostClasses:
    """The same sum without a part below zero, which no bar can show: what was paid less than list prices, every class
    was."""
    if classes.other >= 0:
        return classes
    listed = sum(classes) - classes.other
    return CostClasses(*(part * sum(classes) / listed for part in classes[:-1])) if listed else CostClasses()


class UsageView(RowView[UsageRow]):
    """One row a group; periods with the newest first."""

    HEADINGS = True
    EMPTY = "no model calls yet"
    _IN_TOKENS: ClassVar[Sequence[Column]] = (
        Column("", 12, flexible=True),
        Column("sessions", 8, right=True, drop=5),
        Column("calls", 8, right=True, drop=4),
        Column("input", 8, right=True, drop=3),
        Column("output", 8, right=True, drop=3),
        Column("cached", 8, right=True, drop=2),
        Column("written", 8, right=True, drop=6),
        Column("cost", 11, right=True),
        Column("", _BAR_CELLS, drop=1),
    )
    _IN_DOLLARS: ClassVar[Sequence[Column]] = (
        Column("", 10, flexible=True),
        Column("input", 8, right=True, drop=3),
        Column("output", 8, right=True, drop=2),
        Column("cached", 8, right=True, drop=2),
        Column("5 min", 8, right=True, drop=2),
        Column("1 h", 8, right=True, drop=2),
        Column("other", 8, right=True, drop=2),
        Column("cost", 11, right=True),
        Column("", _BAR_CELLS, drop=4),
    )
    _COLUMN_CLASSES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "other")
    most_usd = 0.0
    in_dollars = False
    _has_cost: Sequence[bool] = (True,) * 6
    """Whether each class of costs has any."""

    def show_dollars(self, in_dollars: bool) -> None:
        """What the columns show: US dollars by class, or tokens."""
        self.in_dollars = in_dollars
        self._widths_for = -1
        self.refresh()

    def update(self, rows: Sequence[UsageRow]) -> None:
        """Show these rows. A class in which none of them cost anything has no column."""
        self.most_usd = max((row.cost_usd or 0.0 for row in rows), default=0.0)
        costs = [row.cost_classes for row in rows if row.cost_classes is not None]
        self._has_cost = [
            any(abs(getattr(each, name)) >= LEAST_USD for each in costs) for name in self._COLUMN_CLASSES
        ]
        self._widths_for = -1
        self.set_rows(rows)
        self.refresh()

    def columns(self) -> Sequence[Column]:
        if not self.in_dollars:
            return self._IN_TOKENS
        name, *classes = self._IN_DOLLARS
        return (name, *compress(classes, [*self._has_cost, True, True]))

    def row_id(self, row: UsageRow) -> str:
        return row.key

    def row_cells(self, row: UsageRow) -> Sequence[Cell]:
        counts = (row.input_tokens, row.output_tokens, row.cache_read_tokens, row.cache_write_tokens)
        filled = (
            formatting.bar_cells((row.cost_usd or 0.0) / self.most_usd, _BAR_CELLS) if self.most_usd else 0
        )
        key = sanitize(row.key)
        if self.size.width < 100 and "/" in key[1:] and not key.startswith("/"):
            key = _short_model(key)
        name: Cell = [(clip(key, 200), "text")]
        ends: tuple[Cell, Cell] = (
            [
                (
                    formatting.cost(
                        row.cost_usd, row.unpriced_calls + row.is_partial, estimated=row.cost_estimated
                    ),
                    "money",
                )
            ],
            [("█" * filled, "bar_mid"), ("░" * (_BAR_CELLS - filled), "bar_empty")],
        )
        if self.in_dollars:
            return (name, *compress(self._dollars(row), self._has_cost), *ends)
        return (
            name,
            [(f"{len(row.sessions):,}", "muted")],
            [(f"{row.model_calls:,}", "muted")],
            *([(formatting.tokens(count), "tokens")] for count in counts),
            *ends,
        )

    def _dollars(self, row: UsageRow) -> list[Cell]:
        if (usd := row.cost_classes) is None:
            return [[("-", "faint")]] * 6
        return [
            [(formatting.money(part), "money") if abs(part) >= LEAST_USD else ("-", "faint")]
            for name in self._COLUMN_CLASSES
            for part in (getattr(usd, name),)
        ]


class UsageScreen(_CostScreen):
    """`$` opens it. Enter lists the sessions of a row."""

    PLACE = "usage"

    SCOPE = "usage"
    BINDINGS: ClassVar[list[BindingType]] = bindings("usage")

    def __init__(self) -> None:
        super().__init__()
        self.read_seconds = READ_SECONDS
        self._key = "d"
        self._found: Found | None = None

    def body(self) -> ComposeResult:
        yield PlotextPlot()
        yield UsageView(id="usage", classes="pane")

    @property
    def view(self) -> UsageView:
        return self.query_one(UsageView)

    def on_mount(self) -> None:
        self.view.focus()

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < 20 or self.app.size.width < 50, "-nothing")
        self._plot()

    def question(self) -> Callable[[Connection], Found]:
        by, prices = _GROUPS[self._key][0], dict(self.prices)

        def question(connection: Connection) -> Found:
            days, total = usage(connection, "day", prices=prices)
            return (days if by == "day" else usage(connection, by, prices=prices)[0], days, total)

        return question

    def arrived(self, found: Found) -> None:
        self._found = found
        rows = self._groups()
        self.view.update(rows[::-1] if self._is_period else rows)
        self._plot()
        if self.view.in_dollars:
            self.need_prices(found[2].models)

    def priced(self) -> None:
        self.read()

    @property
    def _is_period(self) -> bool:
        return _GROUPS[self._key][0] in PERIODS

    def _groups(self) -> list[UsageRow]:
        return self._found[0] if self._found is not None else []

    def _plot(self) -> None:
        """Bars of cost; the newest periods that fit, or the most expensive groups."""
        rows = self._groups()
        if _GROUPS[self._key][0] == "day":
            rows = evenly_spaced(rows)
        plot = self.plot
        label_cells = _LABEL_CELLS if self._is_period else _NAME_CELLS
        room = max(1, (self.app.size.width - 10) // label_cells)
        shown = rows[-room:] if self._is_period else rows[:room]
        cells = max(label_cells, (self.app.size.width - 10) // max(FEWEST_BARS, len(shown))) - 1
        labels = [self._label(row.key, cells) for row in shown]
        plot.plt.clear_figure()
        if shown:
            # Bars at numbers: labels alone would make one bar of two that are alike.
            places: list[float] = list(range(len(shown)))
            if self.view.in_dollars:
                parts = list(
                    zip(*(stackable(row.cost_classes or CostClasses()) for row in shown), strict=True)
                )
                self.stack(
                    plot,
                    places,
                    parts,
                    list(_CLASSES.values()),
                    formatting.money,
                    [*map(sum, parts)],
                    width=0.6,
                )
            else:
                spent = [row.cost_usd or 0.0 for row in shown]
                plot.plt.bar(places, spent, width=0.6, color=self.rgb("money"))
                self.scale(plot, max(spent), formatting.money)
            plot.plt.xticks(places, labels)
            plot.plt.xlim(-0.5, max(len(shown), FEWEST_BARS) - 0.5)
        plot.plt.title(f"US dollars by {_GROUPS[self._key][0]}, {SCALE}")
        plot.refresh()

    def _label(self, key: str, cells: int) -> str:
        text = sanitize(key)
        if self._is_period:
            return text[2:] if _GROUPS[self._key][0] == "month" else text[5:]
        return clip(_short_model(text) if self._key in "mp" else text, cells)

    def heading(self) -> tuple[Widget, Sequence[Piece]]:
        of = "  own and imported sessions" if self._found is not None else ""
        return self.view, (("Usage", "strong"), (f"  {_GROUPS[self._key][1]}", "accent"), (of, "muted"))

    def label_of(self, action: Action) -> str:
        return "Tokens" if action.id == "usage.classes" and self.view.in_dollars else super().label_of(action)

    def action_usage(self) -> None:
        """The key that opens it closes it."""
        self.action_back()

    def standing(self, now: float) -> Sequence[Piece]:
        """What was spent."""
        if self._found is None:
            return (("loading …", "muted"),)
        _, days, total = self._found
        today = date.fromtimestamp(now)
        monday, first = today - timedelta(days=today.weekday()), today.replace(day=1)
        pieces: list[Piece] = []
        for name, since in (("today", today), ("this week", monday), ("this month", first)):
            spent = sum(row.cost_usd or 0.0 for row in days if row.key >= since.isoformat())
            pieces += [(f"{name} ", "muted"), (f"{formatting.money(spent)}   ", "money")]
        pieces += [
            ("total ", "muted"),
            (
                formatting.cost(
                    total.cost_usd, total.unpriced_calls + total.is_partial, estimated=total.cost_estimated
                ),
                "money",
            ),
        ]
        return [*pieces, (f"   {formatting.tokens(total.total_tokens)} tok", "tokens")]

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        key, by = event.row_id, _GROUPS[self._key][0]
        if by in PERIODS:
            begins = date.fromisoformat(key if by != "month" else f"{key}-01")
            ends = begins + timedelta(days={"day": 1, "week": 7}.get(by, 31))
            ends = ends.replace(day=1) if by == "month" else ends
            words = f"since:{begins} before:{ends}"
        else:
            name = {"model": "model", "project": "workspace"}.get(by)
            words = f"{name}:{key}" if name and " " not in key else ""
        self.watch_app.open_sessions(words)

    def action_group(self, key: str) -> None:
        self._key, self._found = key, None
        self.view.selected_id = None
        self.read()
        self.redraw_edges()

    def action_dollars(self) -> None:
        """Dollars by class of tokens in place of tokens, and back."""
        self.view.show_dollars(not self.view.in_dollars)
        self._plot()
        self.redraw_edges()
        if self._found is not None and self.view.in_dollars:
            self.need_prices(self._found[2].models)

    def copied(self) -> str:
        row = self.view.selected
        return f"{sanitize(row.key)}\t{row.total_tokens}\t{row.cost_usd or 0:.4f}" if row is not None else ""


# --- One agent, a subtree or a session over time ------------------------------------------------------------

_CHARTS = ("context", "tokens per minute", "cost")
_TOKENS = (
    ("input", "kind_messages"), ("written to cache", "kind_tools"), ("read from cache", "kind_system"),
    ("output", "kind_observations"),
)  # fmt: skip
"""The classes of `CallPoint.tokens`, with their roles."""
_TIME_UNITS = ((240, "hours", 1 / 60), (4, "minutes", 1), (0, "seconds", 60))
"""From so many minutes on, what an axis counts, and how many of it a minute has."""
MOST_BARS = 60
PLOT_SHARE = 40
"""Charts that took a second to draw are drawn again after so many: keys come first."""


class _Charts(PlotextPlot):
    """One of several charts, each drawn once for each answer, size and theme: drawing is what takes the time of a key."""

    def __init__(self, paint: Callable[[int], None]) -> None:
        """`paint(n)` puts chart n into `plt`."""
        super().__init__()
        self._paint = paint
        self._drawn: dict[int, tuple[object, RenderResult]] = {}
        """The size and theme that each chart was drawn for, and its picture."""
        self.chart = 0

    def draw(self, chart: int) -> RenderResult:
        """Draw this chart now."""
        self._paint(chart)
        picture = super().render()
        self._drawn[chart] = (self._look, picture)
        return picture

    @property
    def _look(self) -> object:
        return (self.size, self.app.theme)

    def render(self) -> RenderResult:
        look, picture = self._drawn.get(self.chart, (None, ""))
        return picture if look == self._look else self.draw(self.chart)


class ChartScreen(_CostScreen):
    """`T` opens it; `tab` goes on to the next chart."""

    PLACE = "charts"

    SCOPE = "chart"
    BINDINGS: ClassVar[list[BindingType]] = bindings("chart")

    def __init__(self, title: str, agent_ids: Sequence[str]) -> None:
        """`title` is sanitised. `agent_ids`: whose calls are summed up; the context is that of the first."""
        super().__init__()
        self._title = title
        self._agents = tuple(agent_ids)
        self._series: CallSeries | None = None
        self._minutes: list[float] = []
        self._costs: list[CostClasses] = []
        self._stale: list[int] = []
        """The charts out of sight that show an older answer."""

    def body(self) -> ComposeResult:
        yield _Charts(self._paint)

    @property
    def charts(self) -> _Charts:
        return self.query_one(_Charts)

    def question(self) -> Callable[[Connection], CallSeries]:
        agents = self._agents
        return lambda connection: call_series(connection, agents)

    def arrived(self, series: CallSeries) -> None:
        begun = time.perf_counter()
        self._series = series
        self._minutes = [(point.at - series.calls[0].at) / 60 for point in series.calls]
        self._draw()
        self.read_seconds = max(1.0, (time.perf_counter() - begun) * len(_CHARTS) * PLOT_SHARE)
        self.need_prices(call.model for call in series.calls)

    def _draw(self) -> None:
        """Draw the chart in sight, and the others at the next ticks."""
        calls = self._series.calls if self._series is not None else ()
        self._costs = [self._usd(point) for point in calls]
        self.charts.draw(self.charts.chart)
        self.charts.refresh()
        self._stale = [chart for chart in range(len(_CHARTS)) if chart != self.charts.chart]

    def tick(self, now: float) -> None:
        if self._stale:
            self.charts.draw(self._stale.pop(0))
        super().tick(now)

    def priced(self) -> None:
        self._draw()
        self.redraw_edges()

    def _usd(self, call: CallPoint) -> CostClasses:
        """What a call cost, by class."""
        fresh, written, read, output = call.tokens
        tokens = Usage(fresh, output, cache_read_tokens=read, cache_write_tokens=written)
        rates = rates_on(self.prices.get(call.model, ()), call.at, tokens.prompt_tokens)
        return stackable(cost_classes(rates, tokens, call.cost_usd))

    def _paint(self, chart: int) -> None:
        series, minutes = self._series, self._minutes
        plot = self.plot
        plot.plt.clear_figure()
        if series is None or not series.calls:
            plot.plt.title("no model calls yet")
            return
        begins = series.calls[0].at
        unit, factor = next((unit, factor) for above, unit, factor in _TIME_UNITS if minutes[-1] >= above)
        if chart == 0:
            own = [
                (at, point.prompt)
                for at, point in zip(minutes, series.calls, strict=True)
                if point.agent_id == self._agents[0]
            ]
            drawn = thinned(own, 2 * plot.size.width)
            plot.plt.plot(
                [at for at, _ in drawn],
                [tokens for _, tokens in drawn],
                marker="braille",
                color=self.rgb("kind_messages"),
            )
            self.scale(plot, max((tokens for _, tokens in own), default=0), formatting.tokens)
            plot.plt.title(f"context: tokens per prompt, {SCALE}; lines mark compactions")
        elif chart == 1:
            self._stack([point.tokens for point in series.calls], _TOKENS, formatting.tokens)
            plot.plt.title(f"tokens per minute, {SCALE}; lines mark compactions")
        elif not any(map(sum, self._costs)):
            plot.plt.title("cost: no priced calls")
            return
        else:
            self._stack(self._costs, list(_CLASSES.values()), formatting.money, so_far=True)
            plot.plt.title(f"cumulative cost in US dollars, {SCALE}; lines mark compactions")
        shown = self._agents[:1] if chart == 0 else self._agents
        for at in (at for agent_id, at in series.compactions if agent_id in shown):
            plot.plt.vline((at - begins) / 60, color=self.rgb("compaction"))
        ticks = round_ticks(minutes[-1] * factor)
        plot.plt.xlim(0, max(minutes[-1], 1 / 60))
        plot.plt.xticks([tick / factor for tick in ticks], [f"{tick:g}" for tick in ticks])
        plot.plt.xlabel(unit)

    def _stack(
        self,
        values: Sequence[Sequence[float]],
        names: Sequence[tuple[str, str]],
        words: Callable[[float], str],
        *,
        so_far: bool = False,
    ) -> None:
        """Values by class in stacked bars, as many as fit: per minute, or their sum `so_far`. The legend has the sums."""
        minutes = self._minutes
        bars = max(1, min(MOST_BARS, self.app.size.width // 5, len(values)))
        wide = max(minutes[-1] / bars, 1 / 60)
        stacks = [[0.0] * bars for _ in names]
        for at, point in zip(minutes, values, strict=True):
            place = min(bars - 1, int(at / wide))
            for index, value in enumerate(point):
                stacks[index][place] += value
        sums = [sum(stack) for stack in stacks]
        tall = [list(accumulate(stack)) if so_far else [value / wide for value in stack] for stack in stacks]
        places = [(place + 0.5) * wide for place in range(bars)]
        self.stack(self.plot, places, tall, names, words, sums)

    def standing(self, now: float) -> Sequence[Piece]:
        words: list[Piece] = [(self._title, "strong"), (f"  {_CHARTS[self.charts.chart]}", "accent")]
        if self._series is not None:
            calls = self._series.calls
            spent = sum(point.cost_usd for point in calls)
            words += [
                (f"  {formatting.plural(len(calls), 'call')}", "muted"), (f"  {formatting.money(spent)}", "money"),
                (f"  {formatting.plural(len(self._series.compactions), 'compaction')}", "compaction"),
            ]  # fmt: skip
        return words

    def action_next(self, step: int) -> None:
        self.action_choose((self.charts.chart + step) % len(_CHARTS))

    def action_choose(self, place: int) -> None:
        self.charts.chart = place
        self.charts.refresh()
        self.redraw_edges()
