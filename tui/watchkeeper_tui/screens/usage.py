"""Charts: what all sessions used and cost, and one agent, subtree or session over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from itertools import accumulate
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual_plotext import PlotextPlot

from watchkeeper.store.driver import Connection
from watchkeeper.store.usage import PERIODS, CallPoint, CallSeries, UsageRow, call_series, usage
from watchkeeper_tui import formatting
from watchkeeper_tui.control import costs_by_class
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import PageScreen
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.bars import KeyHint
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

Found = tuple[list[UsageRow], list[UsageRow], UsageRow]
"""The groups, the days, and the sum of all."""


class UsageView(RowView[UsageRow]):
    """One row a group; periods with the newest first."""

    HEADINGS = True
    EMPTY = "no model call yet"
    COLUMNS: ClassVar[Sequence[Column]] = (
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
    most_usd = 0.0

    def row_id(self, row: UsageRow) -> str:
        return row.key

    def row_cells(self, row: UsageRow) -> Sequence[Cell]:
        counts = (row.input_tokens, row.output_tokens, row.cache_read_tokens, row.cache_write_tokens)
        filled = (
            formatting.bar_cells((row.cost_usd or 0.0) / self.most_usd, _BAR_CELLS) if self.most_usd else 0
        )
        return (
            [(clip(sanitize(row.key), 200), "text")],
            [(f"{len(row.sessions):,}", "muted")],
            [(f"{row.model_calls:,}", "muted")],
            *([(formatting.tokens(count), "tokens")] for count in counts),
            [(formatting.cost(row.cost_usd, row.unpriced_calls, estimated=row.cost_estimated), "money")],
            [("█" * filled, "bar_mid"), ("░" * (_BAR_CELLS - filled), "bar_empty")],
        )


class UsageScreen(PageScreen):
    """`$` opens it. Enter lists the sessions of a row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(key, f"group('{key}')", title, show=False, id=f"usage.{name}")
            for key, (name, title) in _GROUPS.items()
        ],
        Binding("y", "copy", "Copy", show=False, id="usage.copy"),
        Binding("escape,dollar_sign", "back", "Back", show=False, id="usage.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._key = "d"
        self._found: Found | None = None
        self._read_at = 0.0

    def body(self) -> ComposeResult:
        yield PlotextPlot()
        yield UsageView(id="usage", classes="pane")

    @property
    def view(self) -> UsageView:
        return self.query_one(UsageView)

    def on_mount(self) -> None:
        self.view.focus()
        self._read()

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < 20 or self.app.size.width < 50, "-nothing")
        self._plot()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        if self.watch_app.now() - self._read_at >= READ_SECONDS:
            self._read()

    def _read(self) -> None:
        self._read_at = self.watch_app.now()
        key, by = self._key, _GROUPS[self._key][0]

        def question(connection: Connection) -> Found:
            days, total = usage(connection, "day")
            return (days if by == "day" else usage(connection, by)[0], days, total)

        self.ask(question, lambda found: self._arrived(key, found))

    def _arrived(self, key: str, found: Found) -> None:
        if key != self._key:
            return
        self._found = found
        rows = self._groups()
        self.view.most_usd = max((row.cost_usd or 0.0 for row in rows), default=0.0)
        self.view.set_rows(rows[::-1] if self._is_period else rows)
        self.view.refresh()
        self._plot()
        self.redraw_edges()

    @property
    def _is_period(self) -> bool:
        return _GROUPS[self._key][0] in PERIODS

    def _groups(self) -> list[UsageRow]:
        return self._found[0] if self._found is not None else []

    def _plot(self) -> None:
        """Bars of cost; the newest periods that fit, or the most expensive groups."""
        rows = self._groups()
        plot = self.query_one(PlotextPlot)
        room = max(1, (self.app.size.width - 10) // _LABEL_CELLS)
        shown = rows[-room:] if self._is_period else rows[:room]
        labels = [self._label(row.key) for row in shown]
        colour = self.watch_app.palette["money"].color
        plot.plt.clear_figure()
        if shown:
            rgb = colour.get_truecolor() if colour is not None else (224, 192, 128)
            # Bars at numbers: labels alone would make one bar of two that are alike.
            places: list[float] = list(range(len(shown)))
            plot.plt.bar(
                places, [row.cost_usd or 0.0 for row in shown], width=0.6, color=(rgb[0], rgb[1], rgb[2])
            )
            plot.plt.xticks(places, labels)
        plot.plt.title(f"US dollars by {_GROUPS[self._key][0]}")
        plot.refresh()

    def _label(self, key: str) -> str:
        text = sanitize(key)
        if self._is_period:
            return text[2:] if _GROUPS[self._key][0] == "month" else text[5:]
        return clip(formatting.model_name(text).rsplit("/", 1)[-1], _LABEL_CELLS - 1)

    def heading(self) -> tuple[Widget, Sequence[Piece]]:
        of = "  own and imported sessions" if self._found is not None else ""
        return self.view, (("Usage", "strong"), (f"  {_GROUPS[self._key][1]}", "accent"), (of, "muted"))

    def keys(self) -> Sequence[KeyHint]:
        groups = (KeyHint(key, name, f"group('{key}')") for key, (_, name) in _GROUPS.items())
        return (*groups, KeyHint("enter", "Sessions", "press('enter')"))

    def standing(self, now: float) -> Sequence[Piece]:
        """What was spent."""
        if self._found is None:
            return (("reading …", "muted"),)
        _, days, total = self._found
        today = date.fromtimestamp(now)
        monday, first = today - timedelta(days=today.weekday()), today.replace(day=1)
        pieces: list[Piece] = []
        for name, since in (("today", today), ("this week", monday), ("this month", first)):
            spent = sum(row.cost_usd or 0.0 for row in days if row.key >= since.isoformat())
            pieces += [(f"{name} ", "muted"), (f"{formatting.money(spent)}   ", "money")]
        pieces += [
            ("all ", "muted"),
            (formatting.cost(total.cost_usd, total.unpriced_calls, estimated=total.cost_estimated), "money"),
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
        self.app.pop_screen()
        self.watch_app.open_sessions(words)

    def action_group(self, key: str) -> None:
        self._key, self._found = key, None
        self.view.selected_id = None
        self._read()
        self.redraw_edges()

    def copied(self) -> str:
        row = self.view.selected
        return f"{sanitize(row.key)}\t{row.total_tokens}\t{row.cost_usd or 0:.4f}" if row is not None else ""

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Usage",
                [
                    *((key, f"by {name}") for key, (name, _) in _GROUPS.items()),
                    ("enter", "the sessions of the row"),
                    ("y", "copy the line"),
                    ("esc, $", "back"),
                ],
            )
        ]


# --- One agent, a subtree or a session over time ------------------------------------------------------------

_CHARTS = ("context", "tokens per minute", "cost")
_CLASSES = {
    "input": "kind_messages", "written to the cache": "kind_tools", "read from the cache": "kind_system",
    "output": "kind_observations", "not by class": "money",
}  # fmt: skip
"""The classes of tokens as they are stacked, with their roles; last, what a call cost whose model has no list price."""
MOST_BARS = 60
PLOT_SHARE = 25
"""A chart that took a second to draw is drawn again after so many: keys come first."""


class ChartScreen(PageScreen):
    """`T` opens it; `tab` goes on to the next chart."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,right,l", "next(1)", "Next chart", show=False, id="chart.next"),
        Binding("shift+tab,left,h", "next(-1)", "Previous chart", show=False, id="chart.previous"),
        *[
            Binding(
                str(place + 1), f"choose({place})", name, show=False, id=f"chart.{name.partition(' ')[0]}"
            )
            for place, name in enumerate(_CHARTS)
        ],
        Binding("escape,T", "back", "Back", show=False, id="chart.back"),
    ]

    def __init__(self, title: str, agent_ids: Sequence[str]) -> None:
        """`title` is sanitised. `agent_ids`: whose calls are summed up; the context is that of the first."""
        super().__init__()
        self._title = title
        self._agents = tuple(agent_ids)
        self._chart = 0
        self._series: CallSeries | None = None
        self._by_class: dict[int, tuple[float, float, float, float] | None] = {}
        """What each call cost by class, as far as it was divided."""
        self._dividing = False
        self._plot_seconds = 0.0
        """What the last drawing took."""
        self._read_at = 0.0

    def body(self) -> ComposeResult:
        yield PlotextPlot()

    def on_mount(self) -> None:
        self._read()

    def on_resize(self) -> None:
        self._plot()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        if self.watch_app.now() - self._read_at >= max(1.0, self._plot_seconds * PLOT_SHARE):
            self._read()

    def _read(self) -> None:
        self._read_at = self.watch_app.now()
        self.ask(lambda connection: call_series(connection, self._agents), self._arrived)

    def _arrived(self, series: CallSeries) -> None:
        self._series, begun = series, time.perf_counter()
        self._plot()
        self._plot_seconds = time.perf_counter() - begun
        self.redraw_edges()
        if not self._dividing and (new := [each for each in series.calls if each.id not in self._by_class]):
            self._dividing = True
            # It may start a process, and the reader has other things to do.
            self.run_worker(lambda: self._divide(new), thread=True, exit_on_error=False, group="prices")

    def _divide(self, calls: Sequence[CallPoint]) -> None:
        """In a worker thread."""
        try:
            found = costs_by_class(calls)
        except (OSError, ValueError) as error:
            found = {}
            self.app.call_from_thread(self.say, f"! {self.trouble(error)}", "failed")
        self.app.call_from_thread(self._divided, found)

    def _divided(self, found: dict[int, tuple[float, float, float, float] | None]) -> None:
        self._by_class |= found
        self._dividing = not found  # what failed once is not tried each second
        if self.is_usable:
            self._plot()
            self.redraw_edges()

    def _usd(self, call: CallPoint) -> tuple[float, ...]:
        """What a call cost, by class; last what no list price divides."""
        parts = self._by_class.get(call.id)
        return (*parts, 0.0) if parts is not None else (0.0, 0.0, 0.0, 0.0, call.cost_usd)

    def _plot(self) -> None:
        series = self._series
        plot = self.query_one(PlotextPlot)
        plot.plt.clear_figure()
        if series is None or not series.calls:
            plot.plt.title("no model call yet")
            plot.refresh()
            return
        begins = series.calls[0].at
        minutes = [(point.at - begins) / 60 for point in series.calls]
        if self._chart == 0:
            own = [
                (at, point.prompt)
                for at, point in zip(minutes, series.calls, strict=True)
                if point.agent_id == self._agents[0]
            ]
            plot.plt.plot(
                [at for at, _ in own],
                [tokens for _, tokens in own],
                marker="braille",
                color=self._rgb("kind_messages"),
            )
            self._scale(max((tokens for _, tokens in own), default=0), formatting.tokens)
            plot.plt.title("context: tokens of each prompt; lines mark compactions")
        elif self._chart == 1:
            self._stack(minutes, [point.tokens for point in series.calls], formatting.tokens)
            plot.plt.title("tokens per minute; lines mark compactions")
        else:
            self._stack(minutes, [self._usd(point) for point in series.calls], formatting.money, so_far=True)
            plot.plt.title("cost: US dollars so far; lines mark compactions")
        shown = self._agents[:1] if self._chart == 0 else self._agents
        for at in (at for agent_id, at in series.compactions if agent_id in shown):
            plot.plt.vline((at - begins) / 60, color=self._rgb("compaction"))
        plot.plt.xlabel("minutes")
        plot.refresh()

    def _stack(
        self,
        minutes: Sequence[float],
        values: Sequence[Sequence[float]],
        words: Callable[[float], str],
        *,
        so_far: bool = False,
    ) -> None:
        """Values by class in stacked bars, as many as fit: per minute, or their sum `so_far`. The legend has the sums."""
        bars = max(1, min(MOST_BARS, self.app.size.width // 5, len(values)))
        wide = max(minutes[-1] / bars, 1 / 60)
        stacks = {name: [0.0] * bars for name in _CLASSES}
        sums = dict.fromkeys(_CLASSES, 0.0)
        for at, point in zip(minutes, values, strict=True):
            place = min(bars - 1, int(at / wide))
            for name, value in zip(_CLASSES, point, strict=False):
                stacks[name][place] += value if so_far else value / wide
                sums[name] += value
        shown = [name for name in _CLASSES if sums[name]] or list(_CLASSES)[:1]
        # The library takes lists here; its types say otherwise.
        looks: dict[str, Any] = {
            "labels": [f"{name} {words(sums[name])}" for name in shown],
            "color": [self._rgb(_CLASSES[name]) for name in shown],
        }
        places = [round((place + 0.5) * wide, 1) for place in range(bars)]
        tall = [list(accumulate(stacks[name])) if so_far else stacks[name] for name in shown]
        self.query_one(PlotextPlot).plt.stacked_bar(places, tall, width=0.8, **looks)
        self._scale(max(map(sum, zip(*tall, strict=True))), words)

    def _scale(self, top: float, words: Callable[[float], str]) -> None:
        """The axis of values begins at zero."""
        plt, ticks = self.query_one(PlotextPlot).plt, [top * part / 4 for part in range(5)]
        plt.ylim(0, top or 1)
        plt.yticks(ticks, [words(tick) for tick in ticks])

    def _rgb(self, role: str) -> tuple[int, int, int]:
        colour = self.watch_app.palette[role].color
        rgb = colour.get_truecolor() if colour is not None else (200, 200, 200)
        return rgb[0], rgb[1], rgb[2]

    def standing(self, now: float) -> Sequence[Piece]:
        words: list[Piece] = [(self._title, "strong"), (f"  {_CHARTS[self._chart]}", "accent")]
        if self._series is not None:
            calls = self._series.calls
            spent = sum(point.cost_usd for point in calls)
            words += [
                (f"  {formatting.plural(len(calls), 'call')}", "muted"), (f"  {formatting.money(spent)}", "money"),
                (f"  {formatting.plural(len(self._series.compactions), 'compaction')}", "compaction"),
            ]  # fmt: skip
        return words

    def keys(self) -> Sequence[KeyHint]:
        charts = (KeyHint(str(place + 1), name, f"choose({place})") for place, name in enumerate(_CHARTS))
        return (*charts, KeyHint("tab", "Next", "next(1)"))

    def action_next(self, step: int) -> None:
        self.action_choose((self._chart + step) % len(_CHARTS))

    def action_choose(self, place: int) -> None:
        self._chart = place
        self._plot()
        self.redraw_edges()

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        keys = [(str(place + 1), name) for place, name in enumerate(_CHARTS)]
        return [("Charts", [*keys, ("tab, left right", "the next, the previous chart"), ("esc, T", "back")])]
