"""Charts: what all sessions used and cost, and one agent, subtree or session over time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import accumulate, compress, groupby, pairwise
from operator import itemgetter
from typing import Any, ClassVar

from textual.app import ComposeResult, RenderResult
from textual.binding import BindingType
from textual.color import Color
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

Found = tuple[list[UsageRow], list[UsageRow], UsageRow, list[UsageRow]]
"""The groups, the days, the sum of all, and the hours where all are of one day."""


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
        limits: tuple[float, float],
        *,
        width: float,
        sums: Sequence[float] = (),
    ) -> None:
        """Draw stacked bars to an eighth of a row, one at each place: for each name and role, its height in every bar.
        `limits` are those of the axis of places, and `width` is that of a bar on it. The legend has the `sums`, where there
        is room for it; a few bars have their values above them."""
        totals = [sum(heights) for heights in zip(*bars, strict=True)]
        most = max(totals, default=0.0)
        shown = [index for index in range(len(names)) if any(bars[index])]
        shown.sort(key=lambda index: -sum(bars[index]))
        rows, has_values = self.bar_rows(plot), len(places) <= FEWEST_BARS
        labels = {index: f"{names[index][0]} {words(sums[index])}" for index in shown if sums}
        has_legend = rows - len(labels) >= LEAST_BAR_ROWS and plot.size.width >= 40
        high = max(1, rows - (len(labels) if has_legend else 0) - has_values)
        row_value = most / max(1, high - 1)
        columns = max(1, math.ceil(plot.size.width * width / (limits[1] - limits[0])))
        # Words within the chart would have the library's own colours, which are those of no theme.
        ink, ground = ("default" if plot.theme == "clear" else Color.parse(self.app.theme_variables[name]).rgb
                       for name in ("foreground", "surface"))  # fmt: skip
        points: dict[int, list[tuple[float, float, str]]] = {index: [] for index in shown}
        for number, (place, total) in enumerate(zip(places, totals, strict=True)):
            filled = formatting.eighths(total, most, high)
            edges = [0.0, *accumulate(filled * bars[index][number] / total for index in shown if total)]
            for row in range(math.ceil(filled / 8)):
                low, up = 8 * row, min(filled, 8 * row + 8)
                covered = [min(up, end) - max(low, begin) for begin, end in pairwise(edges)]
                mark = formatting.SPARKS[up - low - 1]
                points[shown[covered.index(max(covered))]] += [
                    (place + width * (column / columns - 0.5), row * row_value, mark)
                    for column in range(columns + 1)
                ]
            if has_values and total:
                above = math.ceil(filled / 8) * row_value
                plot.plt.text(words(total), place, above, color=ink, background=ground, alignment="center")
        for line, (index, found) in enumerate(points.items()):
            # The library takes lists here; its types say otherwise.
            looks: dict[str, Any] = {"color": self.rgb(names[index][1])}
            if index in labels and has_legend:
                # The legend shows the first marks, and covers them.
                found[:0] = [(limits[0], (rows - 1 - line) * row_value, formatting.SPARKS[-1])] * 3
                looks["label"] = labels[index]
            if found:
                xs, ys, looks["marker"] = map(list, zip(*found, strict=True))
                plot.plt.scatter(xs, ys, **looks)
        plot.plt.xlim(*limits)
        self.scale(plot, most, words, high=high)

    def scale(
        self, plot: PlotextPlot, top: float, words: Callable[[float], str], *, high: int | None = None
    ) -> None:
        """The axis of values begins at zero. `high`: the rows below `top`, where not all of them are."""
        rows = self.bar_rows(plot)
        ticks = round_ticks(top, steps=max(2, min(5, rows // 2)))
        free = (rows - 1) / max(1, (high or rows) - 1)
        plot.plt.ylim(0, top * max(1.0, free) or 1)
        plot.plt.yticks(ticks, [words(tick) for tick in ticks])

    EDGE_ROWS: ClassVar[int] = 4
    """The rows of a chart that its bars cannot fill: the frame, the title and the labels."""

    def bar_rows(self, plot: PlotextPlot) -> int:
        """The rows that bars can fill."""
        return max(1, plot.size.height - self.EDGE_ROWS)

    def rgb(self, role: str) -> tuple[int, int, int]:
        """The colour of a role."""
        colour = self.watch_app.palette[role].color
        rgb = colour.get_truecolor() if colour is not None else (200, 200, 200)
        return rgb[0], rgb[1], rgb[2]


def round_ticks(top: float, *, steps: int = 5) -> list[float]:
    """From zero to `top`, at most so many steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(top / steps))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= top / steps)
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


def evenly_spaced(periods: Sequence[UsageRow], by: str = "day", most: int = 400) -> list[UsageRow]:
    """The periods in order, with an empty one for each in which nothing was used; the newest of `most`."""
    if not periods:
        return []
    known = {row.key: row for row in periods}
    first, keys = min(known), [max(known)]
    while keys[-1] > first and len(keys) < most:
        keys.append(_period_before(keys[-1], by))
    return [known.get(key) or UsageRow(key) for key in reversed(keys)]


def _period_before(key: str, by: str) -> str:
    if by == "month":
        return f"{date.fromisoformat(f'{key}-01') - timedelta(days=1):%Y-%m}"
    step = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}[by]
    return (datetime.fromisoformat(key) - step).isoformat(" ", "minutes")[: len(key)]


def _cost(row: UsageRow) -> str:
    return formatting.cost(row.cost_usd, row.unpriced_calls + row.is_partial, estimated=row.cost_estimated)


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
    MEASURED = True
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
        Column("relative", _BAR_CELLS, drop=1),
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
        Column("relative", _BAR_CELLS, drop=4),
    )
    _COLUMN_CLASSES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "other")
    most_usd, most_tokens = 0.0, 0
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
        self.most_tokens = max((row.total_tokens for row in rows), default=0)
        self.hide(*(() if self.most_usd else ("cost",)))
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
        key = sanitize(row.key)
        if self.size.width < 100 and "/" in key[1:] and not key.startswith("/"):
            key = _short_model(key)
        name: Cell = [(clip(key, 200), "text")]
        ends: tuple[Cell, Cell] = (
            [(_cost(row), "money")],
            self._bar(row),
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

    def _bar(self, row: UsageRow) -> Cell:
        """Its share of the greatest cost; of the most tokens where nothing was spent."""
        if self.most_usd and row.cost_usd is None:
            return [("?", "faint")]
        bar = (
            formatting.bar(row.cost_usd or 0.0, self.most_usd, _BAR_CELLS)
            if self.most_usd
            else formatting.bar(row.total_tokens, self.most_tokens, _BAR_CELLS)
        )
        return [(bar, "money" if self.most_usd else "tokens"), ("░" * (_BAR_CELLS - len(bar)), "bar_empty")]

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
        yield _Charts(self._paint)
        yield UsageView(id="usage", classes="pane")

    @property
    def view(self) -> UsageView:
        return self.query_one(UsageView)

    def on_mount(self) -> None:
        self.view.focus()

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < 20 or self.app.size.width < 50, "-nothing")

    def question(self) -> Callable[[Connection], Found]:
        by, prices = _GROUPS[self._key][0], dict(self.prices)

        def question(connection: Connection) -> Found:
            days, total = usage(connection, "day", prices=prices)
            groups = days if by == "day" else usage(connection, by, prices=prices)[0]
            hours = usage(connection, "hour", prices=prices)[0] if len(days) == 1 else []
            return groups, days, total, hours

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
        self.query_one(_Charts).outdate()

    def _paint(self, chart: int) -> None:
        """Bars of cost; the newest periods that fit, or the most expensive groups. One day is shown by its hours. Where
        nothing was spent, the bars are of tokens."""
        rows, by = self._groups(), _GROUPS[self._key][0]
        hours = self._found[3] if self._found is not None and by == "day" else []
        if hours:
            rows, by = evenly_spaced(hours, "hour"), f"hour of {hours[0].key[:10]}"
        elif self._is_period:
            rows = evenly_spaced(rows, by)
        plot, width = self.plot, self.app.size.width - 10
        label_cells = _LABEL_CELLS if self._is_period else _NAME_CELLS
        room = max(1, width // label_cells)
        shown = rows[-room:] if self._is_period else rows[:room]
        slots = max(len(shown), FEWEST_BARS)
        labels = [self._label(row.key, max(label_cells, width // slots) - 1) for row in shown]
        plot.plt.clear_figure()
        # Bars at numbers: labels alone would make one bar of two that are alike.
        places: list[float] = list(range(len(shown)))
        limits = (-0.5, slots - 0.5)
        title = f"US dollars by {by}, {SCALE}"
        if not shown:
            title = UsageView.EMPTY
        elif not any(row.cost_usd for row in shown):
            tokens = [float(row.total_tokens) for row in shown]
            self.stack(plot, places, [tokens], [("", "tokens")], formatting.tokens, limits, width=0.6)
            why = "no call has a price" if any(row.unpriced_calls for row in shown) else "nothing was charged"
            title = f"tokens by {by}, {SCALE}; {why}"
        else:
            if self.view.in_dollars:
                classes = (stackable(row.cost_classes or CostClasses()) for row in shown)
                parts, names = list(zip(*classes, strict=True)), list(_CLASSES.values())
                sums = [sum(part) for part in parts]
                self.stack(plot, places, parts, names, formatting.money, limits, width=0.6, sums=sums)
            else:
                spent = [row.cost_usd or 0.0 for row in shown]
                self.stack(plot, places, [spent], [("", "money")], formatting.money, limits, width=0.6)
            unknown = [
                place
                for place, row in zip(places, shown, strict=True)
                if row.model_calls and row.cost_usd is None
            ]
            if unknown:
                plot.plt.scatter(unknown, [0] * len(unknown), marker="?", color=self.rgb("muted"))
                title += "; ? unknown cost"
        plot.plt.xticks(places, labels)
        plot.plt.title(title)

    def _label(self, key: str, cells: int) -> str:
        text = sanitize(key)
        if self._is_period:
            return text[2:] if _GROUPS[self._key][0] == "month" else text[11:] or text[5:]
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
        _, days, total, _ = self._found
        today = date.fromtimestamp(now)
        monday, first = today - timedelta(days=today.weekday()), today.replace(day=1)
        pieces: list[Piece] = []
        for name, since in (("today", today), ("this week", monday), ("this month", first)):
            spent = UsageRow(name)
            for row in days:
                if row.key >= since.isoformat():
                    spent.add(row)
            if not spent.model_calls:
                spent.spend(0.0, None)
            pieces += [(f"{name} ", "muted"), (f"{_cost(spent)}   ", "money")]
        pieces += [("total ", "muted"), (_cost(total), "money")]
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

    def outdate(self) -> None:
        """What the charts show has changed: draw them again when they are next shown."""
        self._drawn.clear()
        self.refresh()

    @property
    def _look(self) -> object:
        return (self.size, self.app.theme)

    def render(self) -> RenderResult:
        look, picture = self._drawn.get(self.chart, (None, ""))
        return picture if look == self._look else self.draw(self.chart)


class ChartScreen(_CostScreen):
    """`T` opens it; `tab` goes on to the next chart."""

    PLACE = "charts"

    EDGE_ROWS = 5
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
        if self._series is None and not any(call.agent_id == self._agents[0] for call in series.calls):
            self.charts.chart = 1  # it has no context
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
        return stackable(cost_classes(rates, tokens, call.cost_usd or 0.0))

    def _paint(self, chart: int) -> None:
        series, minutes = self._series, self._minutes
        plot = self.plot
        plot.plt.clear_figure()
        if series is None or not series.calls:
            plot.plt.title("no model calls yet")
            return
        begins = series.calls[0].at
        unit, factor = next((unit, factor) for above, unit, factor in _TIME_UNITS if minutes[-1] >= above)
        limits = (0.0, max(minutes[-1], 1 / 60))
        own = [
            (at, point.prompt)
            for at, point in zip(minutes, series.calls, strict=True)
            if point.agent_id == self._agents[0]
        ]
        if chart == 0 and not own:
            plot.plt.title("context: this agent made no model calls")
            return
        if chart == 0 and len(own) == 1:
            (at, prompt), width = own[0], (limits[1] - limits[0]) / FEWEST_BARS
            place = min(max(at, limits[0] + width / 2), limits[1] - width / 2)
            bars, names = [[float(prompt)]], [("", "kind_messages")]
            self.stack(plot, [place], bars, names, formatting.tokens, limits, width=width)
        elif chart == 0:
            drawn = thinned(own, 2 * plot.size.width)
            plot.plt.plot(
                [at for at, _ in drawn],
                [tokens for _, tokens in drawn],
                marker="braille",
                color=self.rgb("kind_messages"),
            )
            self.scale(plot, max(tokens for _, tokens in own), formatting.tokens)
        is_priced = any(map(sum, self._costs))
        if chart == 0:
            plot.plt.title(f"context: tokens per prompt, {SCALE}; lines mark compactions")
        elif chart == 1:
            self._stack([point.tokens for point in series.calls], _TOKENS, formatting.tokens, limits)
            plot.plt.title(f"tokens per minute, {SCALE}; lines mark compactions")
        elif is_priced:
            self._stack(self._costs, list(_CLASSES.values()), formatting.money, limits, so_far=True)
            plot.plt.title(f"cumulative cost in US dollars, {SCALE}; lines mark compactions")
        else:
            self._stack(
                [point.tokens for point in series.calls], _TOKENS, formatting.tokens, limits, so_far=True
            )
            why = "no call has a price" if self._unpriced else "nothing was charged"
            plot.plt.title(f"cumulative tokens, {SCALE}; {why}")
        shown = self._agents[:1] if chart == 0 else self._agents
        for at in (at for agent_id, at in series.compactions if agent_id in shown):
            plot.plt.vline((at - begins) / 60, color=self.rgb("compaction"))
        ticks = round_ticks(minutes[-1] * factor)
        plot.plt.xlim(*limits)
        plot.plt.xticks([tick / factor for tick in ticks], [f"{tick:g}" for tick in ticks])
        plot.plt.xlabel(unit)

    def _stack(
        self,
        values: Sequence[Sequence[float]],
        names: Sequence[tuple[str, str]],
        words: Callable[[float], str],
        limits: tuple[float, float],
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
        self.stack(self.plot, places, tall, names, words, limits, width=0.8 * wide, sums=sums)

    @property
    def _unpriced(self) -> int:
        """How many calls have no price."""
        return sum(point.cost_usd is None for point in self._series.calls) if self._series is not None else 0

    def standing(self, now: float) -> Sequence[Piece]:
        words: list[Piece] = [(self._title, "strong"), (f"  {_CHARTS[self.charts.chart]}", "accent")]
        if self._series is not None:
            calls = self._series.calls
            priced = [point.cost_usd for point in calls if point.cost_usd is not None]
            spent = formatting.cost(sum(priced) if priced else None, self._unpriced)
            words += [
                (f"  {formatting.plural(len(calls), 'call')}", "muted"), (f"  {spent}", "money"),
                (f"  {formatting.plural(len(self._series.compactions), 'compaction')}", "compaction"),
            ]  # fmt: skip
        return words

    def action_next(self, step: int) -> None:
        self.action_choose((self.charts.chart + step) % len(_CHARTS))

    def action_choose(self, place: int) -> None:
        self.charts.chart = place
        self.charts.refresh()
        self.redraw_edges()
