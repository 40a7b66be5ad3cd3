"""The body of a tab: a page's lines, scrolled, folded and searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from watchkeeper_tui.pages.context import PageLine
from watchkeeper_tui.widgets.cells import Cell, Column
from watchkeeper_tui.widgets.rows import RowView


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

    def laid_out(self) -> None:
        self.post_message(self.Resized(self))

    class Resized(RowView.Selected):
        """The page has a new width; its lines must be rebuilt."""

        def __init__(self, view: PageView) -> None:
            super().__init__(view, "")
