"""Pane 2: the events, newest at the end. It follows the newest until the user scrolls up."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len

from watchkeeper_tui import formatting
from watchkeeper_tui.event_line import EventLine
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.widgets.cells import Cell, Column, Piece, set_title
from watchkeeper_tui.widgets.rows import RowView

NAME_CELLS = 12
"""Of an agent's name; where all are shorter, what happened has the rest."""


class EventsView(RowView[EventLine]):
    """The tail of the session's log."""

    FOLLOWS = True
    EMPTY = "nothing here"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("at", 8),
        Column("agent", NAME_CELLS),
        Column("kind", 7),
        Column("what", 20, flexible=True),
    )

    def __init__(self) -> None:
        super().__init__(id="events", classes="pane")
        self._names: dict[str, str] = {}
        self._columns: Sequence[Column] = self.COLUMNS
        self.filter_words = ""

    def show(self, events: Sequence[EventLine], names: dict[str, str]) -> None:
        """Show these events; `names` are agents' names by id."""
        if names is not self._names:
            self._names = names
            cells = max(min(NAME_CELLS, max(map(cell_len, names.values()), default=0)), 4)
            if cells != self._columns[1].cells:
                self._columns = [
                    replace(column, cells=cells) if column.title == "agent" else column
                    for column in self.COLUMNS
                ]
                self._widths_for = -1
                self.refresh()
        self.set_rows(events)
        self.scrolled()

    def columns(self) -> Sequence[Column]:
        return self._columns

    def scrolled(self) -> None:
        pieces: list[Piece] = [("2", "key"), (" Events  ", "strong")]
        if self.filter_words:
            pieces += [("/", "accent"), (sanitize(self.filter_words) + "  ", "match")]
        if self.following:
            pieces.append(("FOLLOW", "working"))
        elif self.unseen:
            pieces.append((f"{self.unseen:,} new ↓ G", "waiting"))
        else:
            pieces.append(("scrolled", "muted"))
        set_title(self, pieces, self.watch_app.palette)

    def row_id(self, row: EventLine) -> str:
        return str(row.seq)

    def place_of(self, row_id: str) -> int | None:
        place = bisect_left(self.rows, int(row_id), key=lambda row: row.seq)
        return place if place < len(self.rows) and self.rows[place].seq == int(row_id) else None

    def rows_since(self, row_id: str) -> int:
        """How many events came after that one, which a filter may hide."""
        return len(self.rows) - bisect_right(self.rows, int(row_id), key=lambda row: row.seq)

    def row_cells(self, row: EventLine) -> Sequence[Cell]:
        name = self._names.get(row.agent_id or "", "")
        return (
            [(formatting.time_of_day(row.at), "faint")],
            [(name or "-", "muted" if name else "faint")],
            [(row.kind, row.role)],
            [(row.text, "text" if row.role != "failed" else "failed")],
        )
