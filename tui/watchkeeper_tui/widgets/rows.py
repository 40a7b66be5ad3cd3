"""One view for every list: fixed columns and any number of rows, of which only the visible ones are drawn.

The selection belongs to a row's id, not to its index. A view that follows keeps its end visible until the
user scrolls away, and then counts new rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style as ContentStyle
from textual.widget import Widget

from watchkeeper_tui.actions import bindings
from watchkeeper_tui.sanitize import clip
from watchkeeper_tui.theming import Palette, on_selection
from watchkeeper_tui.watch_app import WatchApp, watch_app


@dataclass(frozen=True, slots=True)
class PageLine:
    """One line of a page. Texts are sanitised."""

    id: str
    """Unique on the page."""
    pieces: tuple[Piece, ...]
    key: str = ""
    """What Enter on this line folds or unfolds; empty: nothing."""
    copy: str = field(default="", compare=False)
    """What `y` copies: the whole block that this line belongs to."""


Piece = tuple[str, str]
"""Sanitised text, and the role that styles it."""
Line = tuple[Piece, ...]
"""One line: texts without a line break, each with the role that styles it."""
Cell = Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a row view."""

    title: str
    cells: int
    """Its width, or the least width of a flexible one."""
    flexible: bool = False
    """Takes what the others leave."""
    right: bool = False
    drop: int = 0
    """Columns with a higher number are left out first where there is no room; 0 always stays."""


MEASURED_ROWS = 200
LARGEST_GAP = 4
"""The cells between two measured columns, where there is room."""


def column_widths(
    columns: Sequence[Column], available: int, hidden: frozenset[str] = frozenset()
) -> list[int]:
    """A width for each column, 0 for one that is left out; with one space between those shown. `hidden`: titles."""
    shown = [index for index, column in enumerate(columns) if column.title not in hidden]

    def needed() -> int:
        return sum(columns[index].cells for index in shown) + max(0, len(shown) - 1)

    while needed() > available:
        droppable = [index for index in shown if columns[index].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: columns[index].drop))
    widths = [columns[index].cells if index in shown else 0 for index in range(len(columns))]
    spare = available - needed()
    flexible = [index for index in shown if columns[index].flexible]
    for place, index in enumerate(flexible):
        widths[index] = max(
            1, widths[index] + spare // len(flexible) + (1 if place < spare % len(flexible) else 0)
        )
    return widths


def measured_widths(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    available: int,
    hidden: frozenset[str] = frozenset(),
) -> list[int]:
    """As `column_widths`, but no column is wider than what it holds, and one that holds more gets what others leave."""
    held = [
        max([cell_len(column.title), *(pieces_width(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    tight = [
        column if column.flexible else replace(column, cells=min(column.cells, held[index]))
        for index, column in enumerate(columns)
    ]
    widths = column_widths(tight, available, hidden)
    over = {
        index: max(0, width - held[index]) for index, width in enumerate(widths) if columns[index].flexible
    }
    for index, extra in over.items():
        widths[index] -= extra
    spare = sum(over.values())
    fixed = [index for index, width in enumerate(widths) if width and not columns[index].flexible]
    for index in fixed:
        more = min(spare, max(0, held[index] - widths[index]))
        widths[index], spare = widths[index] + more, spare - more
    for index in fixed:
        widths[index] += min(LARGEST_GAP - 1, spare // len(fixed))
    return widths


def fit_cell(cell: Cell, cells: int, palette: Palette, *, right: bool = False) -> list[Segment]:
    """A cell's pieces in exactly `cells` columns."""
    segments: list[Segment] = []
    left = cells
    for text, role in cell:
        if left <= 0:
            break
        size = cell_len(text)
        if size > left:
            text = clip(text, left)
            size = cell_len(text)
        if text:
            segments.append(Segment(text, palette[role]))
        left -= size
    if left > 0:
        gap = Segment(" " * left, Style.null())
        if right:
            segments.insert(0, gap)
        else:
            segments.append(gap)
    return segments


def row_strip(
    cells: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], palette: Palette
) -> Strip:
    """One row as a strip: its cells in their columns. Where there are fewer cells than columns, the last
    takes what is left."""
    segments: list[Segment] = []
    total = 0
    if 0 < len(cells) < len(columns):
        rest = [width for width in widths[len(cells) - 1 :] if width > 0]
        widths = [*widths[: len(cells) - 1], sum(rest) + len(rest) - 1]
    for cell, column, width in zip(cells, columns, widths, strict=False):
        if width <= 0:
            continue
        if total:
            segments.append(Segment(" ", Style.null()))
            total += 1
        segments += fit_cell(cell, width, palette, right=column.right)
        total += width
    return Strip(segments, total)


def content(pieces: Cell, palette: Palette) -> Content:
    """Pieces as Textual's `Content`, which is never parsed as markup."""
    return Content.assemble(*((text, ContentStyle.from_rich_style(palette[role])) for text, role in pieces))


def pane_title(number: str, name: str) -> list[Piece]:
    """How a pane's title begins: the key that leads to it, where there is one, and its name."""
    return [(number, "key"), (f" {name}", "strong")] if number else [(name, "strong")]


def set_title(widget: Widget, pieces: Cell, palette: Palette) -> None:
    """Give a pane its title, if it has another one. Only the line of the title is painted: an age in it
    changes every second."""
    wanted = (tuple(pieces), palette)
    if getattr(widget, "_title_pieces", None) == wanted:
        return
    widget._title_pieces = wanted  # type: ignore[attr-defined]
    if widget._border_title is None or not widget.is_mounted:
        widget.border_title = content(pieces, palette)
    else:
        # Assigning to `border_title` would paint the pane and all that is in it.
        widget._border_title = content(pieces, palette)
        widget.refresh(Region(-1, -1, widget.outer_size.width, 1))


def clip_pieces(pieces: Cell, cells: int) -> list[Piece]:
    """As much of the pieces as fits into so many columns, on one line."""
    kept: list[Piece] = []
    for text, role in pieces:
        if cells <= 0:
            break
        cut = clip(text, cells)
        kept.append((cut, role))
        cells -= cell_len(cut)
    return kept


def slice_pieces(pieces: Sequence[Piece], begin: int, end: int) -> Line:
    """The characters `begin` to `end` of a line of pieces."""
    found: list[Piece] = []
    at = 0
    for text, role in pieces:
        if at >= end:
            break
        part = text[max(0, begin - at) : end - at]
        if part:
            found.append((part, role))
        at += len(text)
    return tuple(found)


def marked(line: Line, words: Sequence[str]) -> Line:
    """The line with each of the words (in lower case) marked, wherever it is in it."""
    if not words:
        return line
    text = "".join([piece for piece, _ in line])
    folded = text.casefold()
    if len(folded) != len(text):  # places in the one are not places in the other
        return line
    found: list[Piece] = []
    at = 0
    for match in re.finditer("|".join(map(re.escape, sorted(words, key=len, reverse=True))), folded):
        found += slice_pieces(line, at, match.start())
        found.append((text[match.start() : match.end()], "match"))
        at = match.end()
    return (*found, *slice_pieces(line, at, len(text))) if found else line


def pieces_width(pieces: Cell) -> int:
    """Columns that the pieces take."""
    return sum(cell_len(text) for text, _ in pieces)


T = TypeVar("T")


class WindowedRows(Sequence[T]):
    """Rows that are made when they come in sight. Until then, how many there are is an estimate."""

    def settle(self, top: int, height: int, *, at_end: bool = False) -> int:
        """Make the `height` rows from row `top` on, and as many before and after them. Returns the number that
        the row at `top` has now: rows before it may have come or gone. `at_end`: the end is in sight."""
        raise NotImplementedError

    def place_of(self, row_id: str) -> int | None:
        """The number of the row with that id; None where there is none."""
        raise NotImplementedError

    def around(self, place: int, words: str, *, back: bool) -> tuple[Iterator[T], Iterator[T]]:
        """As `rows_around`. Rows that cannot have the words may be left out: they are not made."""
        raise NotImplementedError


def rows_around(rows: Sequence[T], place: int, *, back: bool) -> tuple[Iterator[T], Iterator[T]]:
    """The rows from a place on to the end, then those from the beginning to that place; `back`: the rows before the place
    up to the beginning, then those from the end."""
    before, after = range(place), range(place, len(rows))
    order = (reversed(before), reversed(after)) if back else (iter(after), iter(before))
    return (rows[at] for at in order[0]), (rows[at] for at in order[1])


class _Look(NamedTuple):
    """How a row was painted."""

    cells: Sequence[Cell]
    marked: bool = False
    chosen: bool = False
    focused: bool = False


_NEVER = _Look(())

RIGHT = 3
"""The number of the mouse's right button."""


class RowView(ScrollView, Generic[T], can_focus=True):
    """Rows of `T`. A subclass says what a row's id is, and which cells it has."""

    DEFAULT_CSS = """
    RowView {
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings("rows")

    COLUMNS: ClassVar[Sequence[Column]] = ()
    HEADINGS: ClassVar[bool] = False
    """Show the columns' titles as a first line that does not scroll."""
    FOLLOWS: ClassVar[bool] = False
    """New rows come at the end, and the view keeps the end in sight."""
    IDLE_SELECTION: ClassVar[bool] = False
    """The selected row is marked also while another pane has the focus."""
    EMPTY: ClassVar[str] = ""
    """What is said where there are no rows, unless `empty_words` says something else."""
    CURSOR: ClassVar[bool] = True
    MEASURED: ClassVar[bool] = False
    """Columns are as wide as what the first `MEASURED_ROWS` rows hold."""
    """A row is selected; otherwise the view only scrolls."""

    class Selected(Message):
        """Another row was selected by the user."""

        def __init__(self, view: RowView[Any], row_id: str) -> None:
            super().__init__()
            self.view = view
            self.row_id = row_id

        @property
        def control(self) -> RowView[Any]:
            return self.view

    class Opened(Message):
        """Enter, or a double click, on a row."""

        def __init__(self, view: RowView[Any], row_id: str) -> None:
            super().__init__()
            self.view = view
            self.row_id = row_id

        @property
        def control(self) -> RowView[Any]:
            return self.view

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: Sequence[T] = ()
        self.selected_id: str | None = None
        self.following = self.FOLLOWS
        self.touched = False
        """The user selected a row: from then on only the user changes the selection."""
        self._index = 0
        self._last_seen: str | None = None
        self._painted: dict[int, _Look | None] = {}
        """The text of each line, as last painted."""
        self._under: Style | None = None
        """The view's own colours; worked out once, not for each line."""
        self._widths: list[int] = []
        self._widths_for = -1
        self._is_settling = False

    # What a subclass says.

    def row_id(self, row: T) -> str:
        """The row's id, unique in the view."""
        raise NotImplementedError

    def row_cells(self, row: T) -> Sequence[Cell]:
        """The row's cells, one for each column."""
        raise NotImplementedError

    def is_marked(self, row: T) -> bool:
        """The row carries a mark for an action on several."""
        return False

    def empty_words(self) -> str:
        """What is said where there are no rows."""
        return self.EMPTY

    def columns(self) -> Sequence[Column]:
        """The columns; by default the class's."""
        return self.COLUMNS

    # What others use.

    sought = ""
    """What is searched for: marked in every row that has it."""

    def mark(self, words: str) -> None:
        """Mark these words, in lower case; empty: none."""
        self.sought = words
        self.repaint_changed()

    def find(self, step: int) -> bool | None:
        """Go to a row that has what is searched for: the first from the cursor on (0), the next (1) or the one before (-1).
        Returns whether the search went on at the other end; None where no row has the words."""
        place = self._index + (step > 0)
        if not self.CURSOR and not self._is_in_sight(self._index):
            place = self.scroll_offset.y
        if isinstance(self.rows, WindowedRows):
            parts = self.rows.around(place, self.sought, back=step < 0)
        else:
            parts = rows_around(self.rows, place, back=step < 0)
        for has_wrapped, rows in zip((False, True), parts, strict=True):
            for row in rows:
                if self.holds(row, self.sought):
                    self.bring_up(self.row_id(row), always=False)
                    return has_wrapped
        return None

    def holds(self, row: T, words: str) -> bool:
        """Whether a cell of the row has the words, in lower case."""
        return any(words in "".join(text for text, _ in cell).casefold() for cell in self.row_cells(row))

    def bring_up(self, row_id: str, *, always: bool = True) -> None:
        """Select a row, a third of the way down the view; unless `always`, where it is if that is in sight."""
        is_in_sight = (place := self.place_of(row_id)) is not None and self._is_in_sight(place)
        if self.select(row_id) and (always or not is_in_sight):
            self.scroll_to(y=max(0, self._index - self._visible_rows() // 3), animate=False, immediate=True)

    hidden: frozenset[str] = frozenset()
    """The titles of columns that have nothing to say now."""

    def hide(self, *titles: str) -> None:
        """Leave these columns out, and no others."""
        if self.hidden != frozenset(titles):
            self.hidden, self._widths_for = frozenset(titles), -1
            self.refresh()

    @property
    def watch_app(self) -> WatchApp:
        return watch_app(self)

    @property
    def selected(self) -> T | None:
        """The selected row, or None in an empty view."""
        return self.rows[self._index] if 0 <= self._index < len(self.rows) else None

    @property
    def unseen(self) -> int:
        """How many rows came since the view stopped following; 0 while it follows."""
        if self.following or not self.FOLLOWS or not self.rows:
            return 0
        if self._last_seen is None:
            return 0
        return self.rows_since(self._last_seen)

    def rows_since(self, row_id: str) -> int:
        """How many rows came after the one of that id; all, where it is not shown any more."""
        place = self.place_of(row_id)
        return len(self.rows) - 1 - place if place is not None else len(self.rows)

    def set_rows(self, rows: Sequence[T]) -> None:
        """Show these rows; the selection stays with its row, or with its place where that row is gone.

        Only the lines that look different are painted.
        """
        anchor = self._anchor()
        self.rows = rows
        if self.MEASURED:
            self._widths_for = -1
        self._settle(anchor)
        found = False
        if self.following and rows:
            self._index, found = len(rows) - 1, True
            self.selected_id = self._last_seen = self.row_id(rows[-1])
        elif self.selected_id is not None:
            place = self.place_of(self.selected_id)
            self._index, found = (place, True) if place is not None else (self._index, False)
        self._index = max(0, min(self._index, len(rows) - 1))
        if rows and not found:
            self.selected_id = self.row_id(rows[self._index])
        grown = self._resize_rows()
        if self.following:
            self._to_end()
            if grown:
                # The first rows come before the layout knows how many fit.
                self.call_after_refresh(self._keep_end)
        self.repaint_changed()

    def repaint_changed(self) -> None:
        """Paint the lines in sight that would look different now."""
        if not self.is_mounted:
            return
        width, height = self.scrollable_content_region.size
        first = 1 if self.HEADINGS else 0
        top = self.scroll_offset.y - first
        changed = [y for y in range(first, height) if self._painted.get(y, _NEVER) != self._look(top + y)]
        # Neighbours in one region: each region is painted by itself.
        for _, run in groupby(enumerate(changed), key=lambda pair: pair[1] - pair[0]):
            lines = [y for _, y in run]
            self.refresh(Region(0, lines[0], width, len(lines)))

    def select(self, row_id: str, *, tell: bool = True) -> bool:
        """Select the row of that id, bring it into sight; False where there is none."""
        place = self.place_of(row_id)
        if place is None:
            return False
        self._go(place, tell=tell)
        return True

    def place_of(self, row_id: str) -> int | None:
        """The index of the row with that id, or None; checks the last selected index first."""
        rows, near = self.rows, self._index
        if isinstance(rows, WindowedRows):
            return rows.place_of(row_id)
        if 0 <= near < len(rows) and self.row_id(rows[near]) == row_id:
            return near
        return next((place for place, row in enumerate(rows) if self.row_id(row) == row_id), None)

    # Movement.

    def action_move(self, step: int) -> None:
        if not self.CURSOR:
            self.scroll_to(y=self.scroll_y + step, animate=False)
            return
        self._go(self._index + step)

    def action_page(self, direction: int) -> None:
        rows = max(1, self._visible_rows() - 1)
        if not self.CURSOR:
            self.scroll_to(y=self.scroll_y + direction * rows, animate=False)
            return
        self._go(self._index + direction * rows)

    def action_first(self) -> None:
        self._go(0) if self.CURSOR else self.scroll_to(y=0, animate=False)

    def action_last(self) -> None:
        if self.FOLLOWS:
            self.following = True
        self._go(len(self.rows) - 1) if self.CURSOR else self._to_end()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # Without a cursor there is nothing to open: Enter is the screen's.
        return self.CURSOR if action == "open" else True

    def action_open(self) -> None:
        row = self.selected
        if row is not None and self.CURSOR:
            self.post_message(self.Opened(self, self.row_id(row)))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        place = self.scroll_offset.y + offset.y - (1 if self.HEADINGS else 0)
        if offset.y < (1 if self.HEADINGS else 0) or not 0 <= place < len(self.rows):
            return
        self._go(place)
        if event.button == RIGHT:
            self.app.action_command_palette()  # what can be done with the row
        elif event.chain == 2:
            self.action_open()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self.FOLLOWS and self.rows and round(old_value) != round(new_value):
            at_end = round(new_value) >= self.max_scroll_y
            if new_value < old_value and not at_end:
                self._stop_following()
            elif at_end and new_value > old_value:
                self.following = True
            self.scrolled()
        if round(old_value) != round(new_value):
            self._settle()

    def _anchor(self) -> str | None:
        """The id of the first row in sight, if rows may come or go above it."""
        top = self.scroll_offset.y
        if not isinstance(self.rows, WindowedRows) or self.following or not 0 <= top < len(self.rows):
            return None
        return self.row_id(self.rows[top])

    def _settle(self, anchor: str | None = None) -> None:
        """Have the rows made that come in sight. What is in sight, the row `anchor` first, stays there."""
        rows = self.rows
        if self._is_settling or not self.is_mounted or not isinstance(rows, WindowedRows):
            return
        self._is_settling = True
        place = rows.place_of(anchor) if anchor is not None else None
        top = self.scroll_offset.y if place is None else place
        top = rows.settle(top, self._visible_rows(), at_end=self.following)
        self._resize_rows()
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False, immediate=True)
        if self.selected_id is not None:
            place = rows.place_of(self.selected_id)
            self._index = self._index if place is None else place
        self._is_settling = False

    def scrolled(self) -> None:
        """The view moved; a subclass may bring its title up to date."""

    def _go(self, place: int, *, tell: bool = True) -> None:
        if not self.rows:
            return
        place = max(0, min(place, len(self.rows) - 1))
        if self.FOLLOWS and place < len(self.rows) - 1:
            self._stop_following()
        elif self.FOLLOWS:
            self.following = True
        row_id = self.row_id(self.rows[place])
        if isinstance(self.rows, WindowedRows):
            self.rows.settle(place, self._visible_rows())
            self._resize_rows()
            place = self.rows.place_of(row_id) or 0
        self._index = place
        changed = row_id != self.selected_id
        self.touched = self.touched or tell
        self.selected_id = row_id
        self._into_sight(place)
        self.repaint_changed()
        self.scrolled()
        if changed and tell:
            self.post_message(self.Selected(self, row_id))

    def _stop_following(self) -> None:
        if self.following:
            self.following = False
            self._last_seen = self.row_id(self.rows[-1]) if self.rows else None

    def _into_sight(self, place: int) -> None:
        top, visible = self.scroll_offset.y, self._visible_rows()
        if place < top:
            self.scroll_to(y=place, animate=False, immediate=True)
        elif place >= top + visible:
            self.scroll_to(y=place - visible + 1, animate=False, immediate=True)

    def _to_end(self) -> None:
        end = max(0, len(self.rows) - self._visible_rows())
        if round(self.scroll_y) != end:
            self.scroll_to(y=end, animate=False, immediate=True)

    def _keep_end(self) -> None:
        if self.following:
            self._to_end()

    def _is_in_sight(self, place: int) -> bool:
        return 0 <= place - self.scroll_offset.y < self._visible_rows()

    def _visible_rows(self) -> int:
        return max(1, self.scrollable_content_region.height - (1 if self.HEADINGS else 0))

    # Drawing.

    def on_resize(self) -> None:
        self.laid_out()
        self._settle()
        self._resize_rows()
        if self.following:
            self._to_end()
        elif self.CURSOR:
            self._into_sight(self._index)

    def laid_out(self) -> None:
        """The size changed; a subclass whose rows depend on the width rebuilds them."""

    def _resize_rows(self) -> bool:
        """Tell the layout how many rows there are; whether that is news."""
        size = Size(self.scrollable_content_region.width, len(self.rows) + (1 if self.HEADINGS else 0))
        if size == self.virtual_size:
            return False
        if self.styles.auto_dimensions or not self.is_mounted:
            self.virtual_size = size
        else:
            # Assigning would lay the whole screen out (10 ms); nothing but the scrollbar depends on how many
            # rows there are.
            self.set_reactive(RowView.virtual_size, size)
            self._scroll_update(size)
        return True

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.rows) + (1 if self.HEADINGS else 0)

    def render_line(self, y: int) -> Strip:
        if self._under is None:
            self._under = self.rich_style
        return self._draw_line(y).apply_style(self._under)

    def notify_style_update(self) -> None:
        self._under = None
        super().notify_style_update()

    def _draw_line(self, y: int) -> Strip:
        palette = self.watch_app.palette
        width = self.scrollable_content_region.width
        gutter = 1 if self.CURSOR else 0
        if width != self._widths_for:
            self._widths = self._column_widths(width - gutter)
            self._widths_for = width
        first = 1 if self.HEADINGS else 0
        if self.HEADINGS:
            if y == 0:
                titles = [[(column.title, "heading")] for column in self.columns()]
                return self._line(
                    row_strip(titles, self.columns(), self._widths, palette), " ", "heading", width
                )
            y -= 1
        look = self._painted[y + first] = self._look(self.scroll_offset.y + y)
        if look is None:
            words = self.empty_words() if y == 0 and not self.rows else ""
            if words:
                return row_strip([[(f" {words}", "faint")]], [Column("", width)], [width], palette)
            return Strip.blank(width)
        strip = row_strip(look.cells, self.columns(), self._widths, palette)
        if not self.CURSOR:
            return strip.adjust_cell_length(width)
        glyph, role = ("◆", "marked") if look.marked else ("▌", "accent") if look.chosen else (" ", "text")
        strip = self._line(strip, glyph, role, width)
        if look.chosen:
            under = palette["selected" if look.focused else "selected_idle"]
            strip = Strip([Segment(text, _selected(text, style, under)) for text, style, _ in strip], width)
        return strip

    def _column_widths(self, available: int) -> list[int]:
        if not self.MEASURED:
            return column_widths(self.columns(), available, self.hidden)
        rows = [self.row_cells(row) for row in self.rows[:MEASURED_ROWS]]
        return measured_widths(self.columns(), rows, available, self.hidden)

    def _look(self, place: int) -> _Look | None:
        """All that the looks of a row depend on, but for the theme and the width; None where there is no
        row."""
        if not 0 <= place < len(self.rows):
            return None
        row = self.rows[place]
        cells = self.row_cells(row)
        if self.sought:
            cells = [marked(tuple(cell), (self.sought,)) for cell in cells]
        if not self.CURSOR:
            return _Look(cells)
        focused = self.has_focus
        chosen = place == self._index and (focused or self.IDLE_SELECTION)
        return _Look(cells, self.is_marked(row), chosen, focused and chosen)

    def _line(self, strip: Strip, glyph: str, role: str, width: int) -> Strip:
        if not self.CURSOR:
            return strip.adjust_cell_length(width)
        palette = self.watch_app.palette
        return Strip([Segment(glyph, palette[role]), *strip], strip.cell_length + 1).adjust_cell_length(width)


def _selected(text: str, style: Style | None, under: Style) -> Style:
    """The style of a segment of the selected row. A bar keeps its colour: reversed, it would be a gap."""
    if style is None or not text.strip("█"):
        return style or under
    return on_selection(style, under)


class PageView(RowView[PageLine]):
    """Lines of one page. Whether the end is followed is the page's to say."""

    # Lines are broken for the width that is left beside a scrollbar, also before there is one.
    DEFAULT_CSS = "PageView { scrollbar-gutter: stable; }"
    FOLLOWS = True
    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def row_id(self, row: PageLine) -> str:
        return row.id

    def row_cells(self, row: PageLine) -> Sequence[Cell]:
        return (row.pieces,)

    def start(self, *, follows: bool) -> None:
        """Begin another page: at its end if that is to be followed, else at its top."""
        self.following = follows
        self.selected_id = None
        self._index = 0
        self.rows = ()
        self.scroll_to(y=0, animate=False, immediate=True)

    def action_last(self) -> None:
        self.following = self.page_follows
        self._go(len(self.rows) - 1)

    page_follows = False

    def _go(self, place: int, *, tell: bool = True) -> None:
        super()._go(place, tell=tell)
        self.following = self.following and self.page_follows

    def show_from_cursor(self) -> None:
        """Scroll so that the selected line is near the top, with what follows below it."""
        self.scroll_to(y=max(0, self._index - 2), animate=False, immediate=True)

    def laid_out(self) -> None:
        self.post_message(self.Resized(self))

    class Resized(RowView.Selected):
        """The page has a new width; its lines must be rebuilt."""

        def __init__(self, view: PageView) -> None:
            super().__init__(view, "")
