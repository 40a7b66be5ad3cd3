"""Pieces of styled text fitted into columns: what every row on screen is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style as ContentStyle
from textual.widget import Widget

from watchkeeper_tui.palette import Palette
from watchkeeper_tui.sanitize import clip

Piece = tuple[str, str]
"""Sanitised text, and the role that styles it."""

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


def column_widths(columns: Sequence[Column], available: int) -> list[int]:
    """A width for each column, 0 for one that is left out; with one space between those shown."""
    shown = list(range(len(columns)))

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


def pieces_width(pieces: Cell) -> int:
    """Columns that the pieces take."""
    return sum(cell_len(text) for text, _ in pieces)
