"""The prompt that a change by hand would lead to, message by message, before it is made."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from watchkeeper_tui import formatting
from watchkeeper_tui.pages.context import PageLine
from watchkeeper_tui.pages.transcript import LOOKS
from watchkeeper_tui.prompt_preview import PromptPreview
from watchkeeper_tui.sanitize import clip, sanitize, wrap
from watchkeeper_tui.widgets.cells import content
from watchkeeper_tui.widgets.page import PageView
from watchkeeper_tui.widgets.rows import RowView
from watchkeeper_tui.widgets.status import CRAMPED

FOLDED_LINES = 6


class PromptScreen(ModalScreen[None]):
    """The messages, with the place from which on the prompt cache is lost. Enter unfolds; esc goes back to the
    question."""

    DEFAULT_CSS = """
    PromptScreen { align: center middle; background: $background 60%; }
    PromptScreen.-cramped PageView { width: 100%; max-width: 100%; height: 100%; max-height: 100%; border: none; padding: 0; }
    PromptScreen PageView {
        width: 120; max-width: 96%; height: 92%; border: round $pane-focus; background: $surface; padding: 0 1;
    }
    """

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close", show=False)]

    def __init__(self, about: str, shown: PromptPreview) -> None:
        super().__init__()
        self._about, self._shown = about, shown
        self._expanded: frozenset[str] = frozenset()

    def compose(self) -> ComposeResult:
        yield PageView(id="prompt-preview")

    @property
    def page(self) -> PageView:
        return self.query_one(PageView)

    def on_mount(self) -> None:
        palette = self.page.watch_app.palette
        about = clip(f"The prompt, if you {self._about}", 100)
        self.page.border_title = content([(about, "strong")], palette)
        self.page.border_subtitle = content([("enter unfolds · esc back to the question", "muted")], palette)
        self.page.focus()
        self.page.following = False

    def on_page_view_resized(self, event: PageView.Resized) -> None:
        event.stop()
        self.page.set_rows(self.lines(max(10, self.page.scrollable_content_region.width - 1)))

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        event.stop()
        line = self.page.selected
        if line is not None and line.key:
            self._expanded ^= {line.key}
            self.page.set_rows(self.lines(max(10, self.page.scrollable_content_region.width - 1)))

    def lines(self, width: int) -> list[PageLine]:
        """The whole preview in lines of that width."""
        shown = self._shown
        lines = [
            PageLine(f"figures.{number}.{row}", ((part, "text"),))
            for number, line in enumerate(shown.lines())
            for row, part in enumerate(wrap(sanitize(line), width))
        ]
        lines.append(PageLine("beside", (("The system prompt and the tools come before.", "faint"),)))
        for place, message in enumerate(shown.messages):
            if place == shown.messages_cached:
                rule = "── from here on, written to the prompt cache again "
                lines.append(PageLine("cache", ((clip(rule, width).ljust(width, "─"), "retrying"),)))
            tokens = f"  {formatting.tokens(message.tokens)} tok"
            lines.append(
                PageLine(f"message.{place}", ((f"{place + 1} {message.role}", "strong"), (tokens, "faint")))
            )
            for block in message.blocks:
                lines += self._block(block.key, block.kind, block.title, block.lines, width)
        return lines

    def _block(self, key: str, kind: str, title: str, text: tuple[str, ...], width: int) -> list[PageLine]:
        glyph, role = LOOKS.get(kind, ("·", "muted"))
        rows = [row for line in text for row in wrap(line, max(4, width - 4))]
        most = 2_000 if key in self._expanded else FOLDED_LINES
        copied = "\n".join(text)
        lines = []
        if kind not in ("user", "assistant"):
            lines.append(PageLine(f"{key}.head", ((f"  {glyph} ", role), (title or kind, role)), key, copied))
        lines += [
            PageLine(f"{key}.{number}", (("    ", "text"), (row, "text")), key, copied)
            for number, row in enumerate(rows[:most])
        ]
        if len(rows) > most:
            note = f"    … {formatting.plural(len(rows) - most, 'more line')}, Enter unfolds"
            lines.append(PageLine(f"{key}.more", ((note, "faint"),), key, copied))
        return lines
