"""The last two lines: what needs you or became of your last command, and the keys that do something here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from watchkeeper_tui.widgets.cells import Piece, clip_pieces, content, pieces_width

if TYPE_CHECKING:
    from watchkeeper_tui.app import WatchkeeperApp


CRAMPED = (40, 10)
"""With fewer columns or rows, the footer says what the dashboard needs, and the frames make room for rows."""
NEEDED = " needs 80×24  "


URGENT = frozenset({"failed", "paused", "dead", "waiting", "accent"})
"""Roles of text that asks for an action, such as hints and key names. Such text is shown in full, in up to
three lines."""


class StatusLine(Widget):
    """One line of plain words; what is urgent may take three, where the screen is high enough."""

    DEFAULT_CSS = """
    StatusLine { height: 1; background: $surface; padding-left: 1; }
    StatusLine.-long { height: auto; max-height: 3; }
    """

    def __init__(self) -> None:
        super().__init__(id="status")
        self._pieces: tuple[Piece, ...] = ()

    def say(self, pieces: Sequence[Piece]) -> None:
        """Show these words; the line is cut where it ends, unless they are urgent."""
        if tuple(pieces) != self._pieces:
            self._pieces = tuple(pieces)
            self._stretch()
            self.refresh(layout=self.has_class("-long"))

    def on_resize(self) -> None:
        self._stretch()

    def _stretch(self) -> None:
        """Take the lines that urgent words need."""
        names_a_key = any(role == "key" for _, role in self._pieces)
        urgent = names_a_key or (bool(self._pieces) and self._pieces[0][1] in URGENT)
        self.set_class(
            urgent
            and pieces_width(self._pieces) > self.content_size.width > 0
            and self.screen.size.height >= 20,
            "-long",
        )

    @property
    def text(self) -> str:
        """The displayed text."""
        return "".join(text for text, _ in self._pieces)

    def render(self) -> Content:
        is_long = self.has_class("-long")
        pieces = self._pieces if is_long else clip_pieces(self._pieces, self.content_size.width)
        return content(pieces, cast("WatchkeeperApp", self.app).palette)


@dataclass(frozen=True, slots=True)
class KeyHint:
    """A key in the footer. `why_not` greys it, and is said when it is pressed all the same."""

    key: str
    label: str
    action: str
    why_not: str = ""


class KeyLine(Widget):
    """The footer."""

    DEFAULT_CSS = "KeyLine { height: 1; background: $panel; }"

    class Pressed(Message):
        """A hint was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self) -> None:
        super().__init__(id="keys")
        self.hints: tuple[KeyHint, ...] = ()
        """The keys of the screen."""
        self._asked: tuple[KeyHint, ...] = ()

    def ask(self, hints: Sequence[KeyHint]) -> None:
        """Show these instead while a question is open; none: the screen's again."""
        self._asked = tuple(hints)
        self.refresh()

    def show(self, hints: Sequence[KeyHint]) -> None:
        """Show these keys, as many as fit."""
        if tuple(hints) != self.hints:
            self.hints = tuple(hints)
            self.refresh()

    def render(self) -> Content:
        pieces: list[Piece] = [(NEEDED, "waiting") if self._is_cramped else (" ", "text")]
        for _, _, group in self._groups():
            pieces += group
        return content(pieces, cast("WatchkeeperApp", self.app).palette)

    def on_click(self, event: events.Click) -> None:
        for (start, end, _), hint in zip(self._groups(), self._fitting(), strict=False):
            if start <= event.x < end:
                self.post_message(self.Pressed(hint.action))

    @property
    def _is_cramped(self) -> bool:
        return self.screen.size.width < CRAMPED[0] or self.screen.size.height < CRAMPED[1]

    def _fitting(self) -> list[KeyHint]:
        """The hints that fit; the last two (command, help) always stay, where there is any room."""
        hints = list(self._asked or self.hints)
        if self._is_cramped:
            return hints[-1:]

        def needed() -> int:
            return 1 + sum(len(hint.key) + len(hint.label) + 3 for hint in hints)

        while len(hints) > 2 and needed() > self.size.width + 2:
            # Keys that do nothing here go first.
            greyed = [hint for hint in hints[:-2] if hint.why_not]
            hints.remove(greyed[-1] if greyed else hints[-3])
        return hints

    def _groups(self) -> list[tuple[int, int, list[Piece]]]:
        groups: list[tuple[int, int, list[Piece]]] = []
        start = len(NEEDED) if self._is_cramped else 1
        for hint in self._fitting():
            dead = bool(hint.why_not)
            group: list[Piece] = [
                (hint.key, "faint" if dead else "key"),
                (" ", "text"),
                (hint.label, "faint" if dead else "text"),
                ("  ", "text"),
            ]
            width = pieces_width(group)
            groups.append((start, start + width, group))
            start += width
        return groups
