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
from watchkeeper_tui.widgets.status import CRAMPED

WIDTH = 92
KEY_CELLS = 32
NARROW = 64
"""With fewer columns, descriptions go below their keys."""


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
    HelpScreen.-cramped _Lines { width: 100%; max-width: 100%; height: 100%; max-height: 100%; border: none; padding: 0; }
    HelpScreen _Lines {
        width: 92; max-width: 96%; height: 32; max-height: 92%;
        border: round $pane-focus; background: $surface; padding: 0 1;
    }
    """

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Close", show=False),
    ]

    def __init__(self, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        yield _Lines()

    def on_mount(self) -> None:
        view = self.query_one(_Lines)
        self._write()
        view.border_title = content([("Help", "strong")], view.watch_app.palette)
        view.border_subtitle = content([("j/k scroll · esc closes", "muted")], view.watch_app.palette)
        view.focus()

    def on_resize(self) -> None:
        self._write()

    def _write(self) -> None:
        """Keys beside their words; above them on a narrow terminal."""
        lines: list[PageLine] = []
        width, height = self.app.size
        if height < CRAMPED[1]:
            lines.append(PageLine("how", (("Help", "strong"), ("  esc closes", "muted"))))
        beside = width >= NARROW
        # The border, the padding, the scrollbar, and the column of keys.
        whole = max(10, min(WIDTH, int(width * 0.96)) - 6)
        room = whole - 2 - (KEY_CELLS if beside else 0)
        for title, keys in self._groups:
            lines += [
                PageLine(f"{title}.{row}", ((part, "strong"),)) for row, part in enumerate(wrap(title, whole))
            ]
            for number, (key, words) in enumerate(keys):
                if not beside:
                    lines.append(PageLine(f"{title}.{number}", ((key, "key"),)))
                elif len(key) >= KEY_CELLS:
                    lines.append(PageLine(f"{title}.{number}", (("  ", "text"), (key, "key"))))
                for row, part in enumerate(wrap(words, max(10, room))):
                    before = (
                        fit(key if row == 0 and len(key) < KEY_CELLS else "", KEY_CELLS) if beside else ""
                    )
                    lines.append(
                        PageLine(f"{title}.{number}.{row}", (("  ", "text"), (before, "key"), (part, "text")))
                    )
            lines.append(blank(f"{title}.end"))
        self.query_one(_Lines).set_rows(lines)
