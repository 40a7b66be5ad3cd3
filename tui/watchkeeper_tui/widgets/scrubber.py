"""The line at the foot of a replay: where in the session it is, with marks where something happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from watchkeeper.store.replay import Mark
from watchkeeper_tui import formatting
from watchkeeper_tui.playback import Playback
from watchkeeper_tui.widgets.cells import Piece, content, pieces_width

if TYPE_CHECKING:
    from watchkeeper_tui.app import WatchkeeperApp

_LOOKS = {"task": ("✓", "done"), "compaction": ("◆", "compaction"), "failure": ("✗", "failed")}
"""Where marks share a column, the later one of these is shown."""
_RANKS = {kind: rank for rank, kind in enumerate(_LOOKS)}


class Scrubber(Widget):
    """Click or drag to go somewhere."""

    DEFAULT_CSS = "Scrubber { height: 1; background: $panel; }"

    class Sought(Message):
        """The user chose a position."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position

    def __init__(self) -> None:
        super().__init__(id="scrubber")
        self._playback = Playback(())
        self._marks: Sequence[Mark] = ()
        self._shown: tuple[Piece, ...] = ()
        self._laid: tuple[int, int, dict[int, str]] | None = None
        """Width, positions, and the mark of each column, as worked out last."""

    def show(self, playback: Playback, marks: Sequence[Mark]) -> None:
        """Show the current position."""
        if marks is not self._marks:
            self._marks, self._laid = marks, None
        self._playback = playback
        pieces = tuple(self.pieces())
        if pieces != self._shown:
            self._shown = pieces
            self.refresh()

    def render(self) -> Content:
        return content(self.pieces(), cast("WatchkeeperApp", self.app).palette)

    def pieces(self) -> list[Piece]:
        """The whole line."""
        before, after = self._edges()
        cells = self._cells()
        played = self.cell_of(self._playback.position)
        marks = self._columns(cells)
        track: list[Piece] = []
        for cell in range(cells):
            if cell == played:
                piece = ("●", "strong")
            elif cell in marks:
                piece = _LOOKS[marks[cell]]
            else:
                piece = ("━", "accent") if cell < played else ("─", "faint")
            if track and track[-1][1] == piece[1]:
                track[-1] = (track[-1][0] + piece[0], piece[1])
            else:
                track.append(piece)
        return [*before, *track, *after]

    def cell_of(self, position: int) -> int:
        """The column of the track for a position."""
        last = max(1, len(self._playback.times) - 1)
        return (position - 1) * (self._cells() - 1) // last if position > 1 else 0

    def position_of(self, x: int) -> int:
        """The first position of a column of the widget, or of the nearest one of the track."""
        cells, last = self._cells(), len(self._playback.times) - 1
        cell = max(0, min(cells - 1, x - pieces_width(self._edges()[0])))
        return min(last, -(-cell * last // max(1, cells - 1))) + 1 if last > 0 else 1

    def _edges(self) -> tuple[list[Piece], list[Piece]]:
        playback = self._playback
        glyph, role = ("▶", "working") if playback.playing else ("‖", "muted")
        before: list[Piece] = [(f" {glyph} ", role), (f"{playback.speed}×".ljust(4), "text")]
        if not playback.times:
            return before, []
        first, last = playback.times[0], playback.times[-1]
        gone = formatting.clock(playback.times[playback.position - 1] - first)
        after: list[Piece] = [(f" {gone}", "text")]
        if self.size.width >= 60:
            after.append((f"/{formatting.clock(last - first)}", "muted"))
        if self.size.width >= 100:
            after.append(("  idle skipped" if playback.skips_idle else "  idle played ", "faint"))
        return before, [*after, (" ", "text")]

    def _cells(self) -> int:
        before, after = self._edges()
        return max(4, self.size.width - pieces_width(before) - pieces_width(after))

    def _columns(self, cells: int) -> dict[int, str]:
        count = len(self._playback.times)
        if self._laid is None or self._laid[:2] != (cells, count):
            columns: dict[int, str] = {}
            for mark in self._marks:
                cell = (mark.position - 1) * (cells - 1) // max(1, count - 1)
                if cell not in columns or _RANKS[mark.kind] > _RANKS[columns[cell]]:
                    columns[cell] = mark.kind
            self._laid = (cells, count, columns)
        return self._laid[2]

    # The mouse.

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()
        self._seek(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._seek(event.x)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()

    def _seek(self, x: int) -> None:
        if self._playback.times:
            self.post_message(self.Sought(self.position_of(x)))
