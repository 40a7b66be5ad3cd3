"""The help: every key and command that works where it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from watchkeeper_tui.pages.context import PageLine, blank
from watchkeeper_tui.sanitize import fit, wrap
from watchkeeper_tui.widgets.cells import Cell, Column, content
from watchkeeper_tui.widgets.rows import RowView

WIDTH = 92
KEY_CELLS = 32


class _Lines(RowView[PageLine]):
    CURSOR = False
    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def row_id(self, row: PageLine) -> str:
        return row.id

    def row_cells(self, row: PageLine) -> Sequence[Cell]:
        return (row.pieces,)


class HelpScreen(ModalScreen[None]):
    """Any of its closing keys brings back what was there."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen _Lines {
        width: 92; max-width: 96%; height: 32; max-height: 92%;
        border: round $pane-focus; background: $surface; padding: 0 1;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Close", show=False),
    ]

    def __init__(self, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        yield _Lines()

    def on_mount(self) -> None:
        lines: list[PageLine] = []
        # The border, the padding, the scrollbar, and what stands before the words.
        room = max(12, min(WIDTH, int(self.app.size.width * 0.96)) - KEY_CELLS - 8)
        for title, keys in self._groups:
            lines.append(PageLine(title, ((title, "strong"),)))
            for number, (key, words) in enumerate(keys):
                for row, part in enumerate(wrap(words, room)):
                    shown = fit(key if row == 0 else "", KEY_CELLS)
                    lines.append(PageLine(f"{title}.{number}.{row}", (("  ", "text"), (shown, "key"), (part, "text"))))
            lines.append(blank(f"{title}.end"))
        view = self.query_one(_Lines)
        view.set_rows(lines)
        view.border_title = content([("Help", "strong")], view.watch_app.palette)
        view.border_subtitle = content([("j/k scroll · esc closes", "muted")], view.watch_app.palette)
        view.focus()
