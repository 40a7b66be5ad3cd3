"""The timeline of a session: agents as rows on one axis of time, live and in replay.

It shows parallelism, stalls, kills and resumes at a look. A cell shows the most important of what an agent did in its
time; Enter opens the replay at the moment under the cursor.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from watchkeeper.store.agent_snapshot import message_at
from watchkeeper.store.driver import Connection
from watchkeeper.store.statistics import (
    Activity,
    Mark,
    MarkKind,
    Span,
    Timeline,
    TimelineAgent,
    TimelineReader,
)
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Group, bindings
from watchkeeper_tui.sanitize import clip, clip_label, sanitize
from watchkeeper_tui.screens.base import ReadingScreen
from watchkeeper_tui.snapshot import SessionState
from watchkeeper_tui.widgets.bars import StatusLine
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView, content

SHORTEST_CELL = 0.05
"""Seconds; no cell of the axis is shorter."""
_STEPS = (
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1_800,
    3_600,
    7_200,
    14_400,
    43_200,
    86_400,
)
"""Seconds a cell, from one zoom to the next."""
_TICK_CELLS = 14
"""Between two times of the axis, at least."""
_NAMES = (12, 40)
"""Columns of the names: as many as they need, up to a quarter of the width, within these."""

LOOKS: dict[Activity, tuple[str, str]] = {
    Activity.QUESTION: ("?", "waiting"),
    Activity.PARKED: ("◷", "slot"),
    Activity.PAUSED: ("‖", "paused"),
    Activity.RETRYING: ("↻", "retrying"),
    Activity.SLOT: ("░", "slot"),
    Activity.TOOL: ("▓", "tool"),
    Activity.MODEL: ("█", "working"),
    Activity.COMPACTION: ("▂", "compaction"),
}
"""Glyph and role of each activity."""
BOTH = ("▚", "compaction")
"""A compaction beside work: neither waits for the other."""
MARKS: dict[MarkKind, tuple[str, str]] = {
    MarkKind.FAILED: ("✗", "failed"),
    MarkKind.KILLED: ("†", "dead"),
    MarkKind.RESUMED: ("▸", "done"),
    MarkKind.ENDED: ("✓", "done"),
}
_MUST_SEE = (Activity.QUESTION, Activity.PARKED, Activity.PAUSED)
"""They win a cell however short they are; of the others, the one that fills most of it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Which time the cells show."""

    begins: float
    seconds: float
    """The length of one cell."""
    cells: int

    @property
    def ends(self) -> float:
        return self.begins + self.seconds * self.cells

    def cell(self, at: float) -> int:
        """The cell of a moment; outside of the axis, below 0 or `cells` and more."""
        return math.floor((at - self.begins) / self.seconds)


def axis_cells(
    axis: Axis, agent: TimelineAgent, spans: Sequence[Span], marks: Sequence[Mark], now: float
) -> list[tuple[str, str]]:
    """Glyph and role of each cell of an agent's row. Costs as much as has spans on the axis, and cells."""
    filled: list[dict[Activity, float] | None] = [None] * axis.cells
    for span in spans:
        ends = max(now, span.begins) if span.ends is None else span.ends
        if ends < axis.begins or span.begins >= axis.ends:
            continue
        first, last = max(0, axis.cell(span.begins)), min(axis.cells - 1, axis.cell(ends))
        for cell in range(first, last + 1):
            left = axis.begins + cell * axis.seconds
            share = min(ends, left + axis.seconds) - max(span.begins, left)
            found = filled[cell]
            if found is None:
                found = filled[cell] = {}
            found[span.activity] = found.get(span.activity, 0.0) + max(share, 1e-9)
    born, gone = axis.cell(agent.begins), axis.cell(agent.ends if agent.ends is not None else now)
    row = [
        _look(found) if found else (("─", "faint") if born <= cell <= gone else (" ", "text"))
        for cell, found in enumerate(filled)
    ]
    for mark in marks:
        cell = axis.cell(mark.at)
        was_there = mark.agent_id is not None or born <= cell <= gone  # a host's end is all its agents'
        if 0 <= cell < axis.cells and mark.kind in MARKS and was_there:
            row[cell] = MARKS[mark.kind]
    return row


def _look(found: dict[Activity, float]) -> tuple[str, str]:
    for activity in _MUST_SEE:
        if activity in found:
            return LOOKS[activity]
    busy = [activity for activity in found if activity is not Activity.COMPACTION]
    if not busy:
        return LOOKS[Activity.COMPACTION]
    if Activity.COMPACTION in found:
        return BOTH
    return LOOKS[max(busy, key=lambda activity: found[activity])]


def grouped(cells: Sequence[tuple[str, str]]) -> list[Piece]:
    """Neighbours of one role as one piece."""
    pieces: list[Piece] = []
    for glyph, role in cells:
        if pieces and pieces[-1][1] == role:
            pieces[-1] = (pieces[-1][0] + glyph, role)
        else:
            pieces.append((glyph, role))
    return pieces


class TimelineView(RowView[TimelineAgent]):
    """One row an agent. Left and right move the cursor along the axis; the mouse does too."""

    HEADINGS = True
    EMPTY = "no agents started"

    SCOPE = "axis"
    BINDINGS: ClassVar[list[BindingType]] = bindings("axis")

    def __init__(self) -> None:
        super().__init__(id="timeline", classes="pane")
        self.timeline = Timeline()
        self.axis = Axis(0.0, 1.0, 1)
        self.cursor = 0.0
        """The moment that the user looks at."""
        self.now = 0.0
        self.fits = True
        """The whole session is in sight, and stays so while it grows."""
        self._longest_name = 0
        self._marks: dict[str | None, list[Mark]] = {}
        self._drawn: dict[str, tuple[object, list[tuple[str, str]]]] = {}

    @property
    def name_cells(self) -> int:
        most = min(_NAMES[1], self.scrollable_content_region.width // 4)
        return max(_NAMES[0], min(most, self._longest_name))

    def row_id(self, row: TimelineAgent) -> str:
        return row.id

    def columns(self) -> Sequence[Column]:
        return (Column("agent", self.name_cells), Column(self._ticks(), 10, flexible=True))

    def row_cells(self, row: TimelineAgent) -> Sequence[Cell]:
        return ([(clip_label(_indented(row), self.name_cells), "text")], self._axis_pieces(row))

    def update(self, timeline: Timeline, now: float) -> None:
        """Show this reading. The cursor stays at its moment, or at the end if it was there."""
        at_end = self.cursor >= self.now - self.axis.seconds
        self.timeline, self.now = timeline, now
        self._marks = {}
        for mark in timeline.marks:
            self._marks.setdefault(mark.agent_id, []).append(mark)
        if not self.cursor or at_end:
            self.cursor = now
        self._longest_name = max((len(_indented(row)) for row in timeline.agents), default=0)
        self.set_rows(timeline.agents)
        self.laid_out()  # with the width that a scrollbar leaves
        self.refresh()

    def look_at(self, moment: float) -> None:
        """Put the cursor there."""
        self.cursor = min(max(moment, self.timeline.begins), max(self.now, self.timeline.begins))
        if not self.axis.begins <= self.cursor < self.axis.ends:
            begins = self.cursor - self.axis.seconds * self.axis.cells / 2
            self.axis = Axis(begins, self.axis.seconds, self.axis.cells)
        self._moved()

    def span_at_cursor(self) -> Span | None:
        """What the selected agent did then."""
        agent = self.selected
        if agent is None:
            return None
        left = self.axis.begins + self.axis.cell(self.cursor) * self.axis.seconds
        found = [
            span
            for span in self.timeline.spans.get(agent.id, ())
            if span.begins < left + self.axis.seconds
            and (self.now if span.ends is None else span.ends) >= left
        ]
        ranks = list(Activity)
        return min(
            found, key=lambda span: (ranks.index(span.activity) > 2, span.begins > self.cursor), default=None
        )

    def mark_at_cursor(self) -> Mark | None:
        """What happened then, to the selected agent or to all."""
        cell = self.axis.cell(self.cursor)
        agent = self.selected
        near = [*self._marks.get(agent.id if agent else "", []), *self._marks.get(None, [])]
        return next((mark for mark in near if mark.kind in MARKS and self.axis.cell(mark.at) == cell), None)

    def find(self, step: int) -> bool | None:
        """Go to an agent that has the words in its name, where it begins, or to what was done or happened there."""
        words, here = self.sought, (self._index, self.cursor)
        found = sorted(
            {
                (place, at)
                for place, agent in enumerate(self.rows)
                for at, text in self._moments(place, agent)
                if words in text.casefold()
            }
        )
        later = [each for each in found if (each > here if step else each >= here)]
        before = [each for each in found if each < here]
        near = before[-1:] if step < 0 else later[:1]
        if not found:
            return None
        place, at = near[0] if near else found[-1 if step < 0 else 0]
        self.select(self.rows[place].id)
        self.look_at(at)
        return not near

    def _moments(self, place: int, agent: TimelineAgent) -> Iterator[tuple[float, str]]:
        """When an agent begins, what it did, and what happened to it; what happened to all is the first one's. Sanitised."""
        yield agent.begins, sanitize(agent.label)
        for span in self.timeline.spans.get(agent.id, ()):
            yield span.begins, f"{span.activity.value} {sanitize(span.label)}"
        for mark in (*self._marks.get(agent.id, ()), *(self._marks.get(None, ()) if not place else ())):
            yield mark.at, f"{mark.kind.value} {sanitize(mark.label)}"

    # Moving.

    def action_seek(self, cells: int) -> None:
        self.look_at(self.cursor + cells * self.axis.seconds)

    def action_zoom(self, step: int) -> None:
        place = bisect_right(_STEPS, self.axis.seconds * 1.000001) - 1
        if step > 0:
            place += 1
        elif _STEPS[max(0, place)] >= self.axis.seconds * 0.999999:
            place -= 1
        seconds = _STEPS[max(0, min(len(_STEPS) - 1, place))]
        share = (self.cursor - self.axis.begins) / (self.axis.seconds * self.axis.cells)
        self.fits = False
        self.axis = Axis(self.cursor - share * seconds * self.axis.cells, seconds, self.axis.cells)
        self._moved()

    def action_whole(self) -> None:
        self.fits = True
        self._fit()
        self._moved()

    def go_to_mark(self, direction: int) -> None:
        """Go to the next failure, kill or resume, whichever agent's it is."""
        cell = self.axis.cell(self.cursor)
        marks = [
            mark for mark in self.timeline.marks if mark.kind in MARKS and mark.kind is not MarkKind.ENDED
        ]
        later = [mark for mark in marks if (self.axis.cell(mark.at) - cell) * direction > 0]
        if not later:
            where = "later" if direction > 0 else "earlier"
            self.post_message(StatusLine.Said(f"no {where} failure, process stop or resumption"))
            return
        nearest = min(later, key=lambda mark: abs(mark.at - self.cursor))
        if nearest.agent_id is not None:
            self.select(nearest.agent_id, tell=False)
        self.look_at(nearest.at)

    def on_click(self, event: events.Click) -> None:
        event.prevent_default()  # the toolkit would do the following again
        super().on_click(event)
        offset = event.get_content_offset(self)
        first = self.name_cells + 2
        if offset is not None and offset.x >= first:
            self.look_at(self.axis.begins + (offset.x - first + 0.5) * self.axis.seconds)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, -1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1)

    def _wheel(self, event: events.MouseEvent, direction: int) -> None:
        """With shift it pans, with ctrl it zooms; alone it scrolls the rows."""
        if not (event.shift or event.ctrl):
            return
        event.stop()
        event.prevent_default()
        if event.ctrl:
            self.action_zoom(direction)
        else:
            self.action_seek(5 * direction)

    def _moved(self) -> None:
        self.refresh()
        row = self.selected
        self.post_message(self.Selected(self, row.id if row is not None else ""))

    # Drawing.

    def laid_out(self) -> None:
        cells = max(4, self.scrollable_content_region.width - self.name_cells - 2)
        self.axis = Axis(self.axis.begins, self.axis.seconds, cells)
        if self.fits:
            self._fit()
        self._widths_for = -1

    def _fit(self) -> None:
        whole = max(self.now - self.timeline.begins, 1.0)
        self.axis = Axis(
            self.timeline.begins, max(SHORTEST_CELL, whole / max(1, self.axis.cells - 1)), self.axis.cells
        )

    def _axis_pieces(self, row: TimelineAgent) -> list[Piece]:
        spans = self.timeline.spans.get(row.id, ())
        marks = [*self._marks.get(row.id, ()), *self._marks.get(None, ())]
        key = (self.axis, row, len(marks), spans, self.now if row.ends is None else 0.0)
        drawn = self._drawn.get(row.id)
        if drawn is None or drawn[0] != key:
            drawn = self._drawn[row.id] = (key, axis_cells(self.axis, row, spans, marks, self.now))
        cells = list(drawn[1])
        at = self.axis.cell(self.cursor)
        if 0 <= at < len(cells):
            glyph, role = cells[at]
            cells[at] = (
                (glyph, "match") if row.id == self.selected_id else ("│" if glyph in " ─" else glyph, role)
            )
        return grouped(cells)

    def _ticks(self) -> str:
        """The times below which the cells stand, since the session began."""
        text = [" "] * self.axis.cells
        step = next((step for step in _STEPS if step >= _TICK_CELLS * self.axis.seconds), _STEPS[-1])
        begins, at = self.timeline.begins, self.axis.cell(self.cursor)
        for tick in range(max(0, math.ceil((self.axis.begins - begins) / step)), len(text)):
            cell = self.axis.cell(begins + tick * step + 1e-6)
            label = f"╷{formatting.clock(tick * step)}"
            if cell + len(label) > len(text):
                break
            if not cell < at < cell + len(label):  # the cursor would cut the time
                text[cell : cell + len(label)] = label
        if 0 <= at < len(text):
            text[at] = "▼"
        return "".join(text)


class TimelineScreen(ReadingScreen):
    """`t` opens it. Enter goes to the moment in replay."""

    PLACE = "timeline"

    SCOPE = "timeline"
    BINDINGS: ClassVar[list[BindingType]] = bindings("timeline")

    def __init__(self, session_id: str, moment: float | None = None) -> None:
        """`moment`: where the cursor begins; None: at the end, and it stays there while the session goes on."""
        super().__init__()
        self.session_id = session_id
        self._moment = moment
        self._reader: tuple[Connection, TimelineReader] | None = None

    def body(self) -> ComposeResult:
        yield TimelineView()

    @property
    def view(self) -> TimelineView:
        return self.query_one(TimelineView)

    def on_mount(self) -> None:
        self.view.focus()

    @property
    def _is_live(self) -> bool:
        return self.watch_app.snapshot.state is SessionState.LIVE

    @property
    def has_changed(self) -> bool:
        return self._is_live or super().has_changed

    def question(self) -> Callable[[Connection], Timeline]:
        live = self._is_live

        def question(connection: Connection) -> Timeline:
            if self._reader is None or self._reader[0] is not connection:
                self._reader = (connection, TimelineReader(connection, self.session_id))
            return self._reader[1].read(live=live)

        return question

    def failed(self) -> None:
        super().failed()
        self._reader = None

    def arrived(self, timeline: Timeline) -> None:
        now = self.watch_app.now()
        self.view.update(timeline, max(timeline.ends, now) if self._is_live else timeline.ends)
        if self._moment is not None:
            self.view.look_at(self._moment)
            self._moment = None

    def heading(self) -> tuple[Widget, Sequence[Piece]]:
        timeline, axis = self.view.timeline, self.view.axis
        return self.view, (
            ("Timeline", "strong"),
            (f"  {formatting.plural(len(timeline.agents), 'agent')}", "muted"),
            (f"  {formatting.clock(self.view.now - timeline.begins)}", "text"),
            (f"  1 cell = {_seconds(axis.seconds)}", "muted"),
            ("  ● live" if self._is_live and self.view.fits else "", "working"),
        )

    def on_resize(self) -> None:
        first = [
            (LOOKS[Activity.MODEL], "working"),
            (LOOKS[Activity.TOOL], "tool"),
            (MARKS[MarkKind.FAILED], "failed"),
            (MARKS[MarkKind.KILLED], "process stopped"),
            (MARKS[MarkKind.RESUMED], "resumed"),
            (MARKS[MarkKind.ENDED], "done"),
        ]
        first += [(LOOKS[each], each.value) for each in (Activity.QUESTION, Activity.COMPACTION)]
        first.append((BOTH, "while working"))
        legend = [
            *first,
            *((look, each.value) for each, look in LOOKS.items() if (look, each.value) not in first),
        ]
        pieces: list[Piece] = []
        left = self.size.width - 6
        for (glyph, role), words in legend:
            if len(words) + 4 <= left:
                left -= len(words) + 4
                pieces += [(" ", "text"), (glyph, role), (f" {words} ", "muted")]
        self.view.border_subtitle = content(pieces, self.watch_app.palette)

    def standing(self, now: float) -> Sequence[Piece]:
        """What the selected agent did at the cursor."""
        view = self.view
        agent, span, mark = view.selected, view.span_at_cursor(), view.mark_at_cursor()
        if agent is None:
            return ()
        pieces: list[Piece] = [
            (clip(sanitize(agent.label), 40), "accent"),
            (f"  {formatting.time_of_day(view.cursor)}  ", "muted"),
        ]
        if mark is not None:
            glyph, role = MARKS[mark.kind]
            words = _line(mark.label) or mark.kind.value
            kind = "" if mark.kind is MarkKind.ENDED or not mark.label else f"{mark.kind.value}: "
            pieces.append((f"{glyph} {kind}{words}  ", role))
        if span is not None:
            glyph, role = LOOKS[span.activity]
            lasts = (view.now if span.ends is None else span.ends) - span.begins
            pieces += [
                (f"{glyph} {span.activity.value}", role),
                (f" {_line(span.label)}", "text"),
                (f"  {formatting.duration(lasts)}{' so far' if span.ends is None else ''}", "muted"),
            ]
        elif mark is None:
            pieces.append(("no activity", "faint"))
        return pieces

    def copied(self) -> str:
        return "".join(text for text, _ in self.standing(0.0))

    def step_without_search(self, step: int) -> None:
        self.view.go_to_mark(step)

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        self.watch_app.open_replay(self.session_id, moment=self.view.cursor)

    def action_message(self) -> None:
        """Show what is under the cursor: the failure, the call, else the message that the agent had written last."""
        view = self.view
        agent, mark, span, at = view.selected, view.mark_at_cursor(), view.span_at_cursor(), view.cursor
        if mark is not None and mark.event_seq is not None and mark.agent_id is not None:
            self.watch_app.open_event(self.session_id, mark.event_seq)
        elif agent is not None and span is not None and span.message_seq:
            self.watch_app.open_message(self.session_id, agent.id, span.message_seq)
        elif agent is not None:
            self.ask_reader(
                lambda connection: message_at(connection, agent.id, at),
                lambda seq: self._message_found(agent.id, seq),
            )

    def _message_found(self, agent_id: str, seq: object) -> None:
        if not self.is_current:
            return
        if isinstance(seq, int) and seq:
            self.watch_app.open_message(self.session_id, agent_id, seq)
        else:
            self.say("no stored messages for this agent", "muted", seconds=3)

    def legend(self) -> list[Group]:
        glyphs = [(glyph, activity.value) for activity, (glyph, _) in LOOKS.items()]
        more = [
            (BOTH[0], "compacting in the background"),
            ("✗ † ▸ ✓", "failed, process stopped, resumed, ended"),
        ]
        return [("Glyphs", [*glyphs, *more])]


def _indented(row: TimelineAgent) -> str:
    """An agent's name below the one that started it."""
    return "  " * min(row.depth, 3) + sanitize(row.label)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 60 else formatting.duration(seconds)


def _line(text: str) -> str:
    return clip(" ".join(sanitize(text).split()), 80)
