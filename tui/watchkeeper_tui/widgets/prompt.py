"""Questions at the foot of the screen: a line to type, or a preview that takes `y` or `n` and nothing
else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from watchkeeper_tui.sanitize import sanitize_lines
from watchkeeper_tui.widgets.cells import Piece, content, pieces_width
from watchkeeper_tui.widgets.status import KeyHint, KeyLine

if TYPE_CHECKING:
    from watchkeeper_tui.app import WatchkeeperApp


class _Words(Widget):
    """The lines above the answer."""

    DEFAULT_CSS = "_Words { height: auto; }"

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Sequence[Piece]] = ()

    def render(self) -> Content:
        palette = cast("WatchkeeperApp", self.app).palette
        return Content("\n").join([content(line, palette) for line in self.lines])

    def on_click(self, event: events.Click) -> None:
        """A click on an answer, its key or its words, answers."""
        offset = event.get_content_offset(self)
        place = -1 if offset is None else offset.x
        line = self.lines[0] if len(self.lines) == 1 else []
        if pieces_width(line) > self.content_size.width:
            return  # broken into rows: a key is surer than a guess
        key, end = "", 0
        for text, role in line:
            key, end = text if role == "key" else key, end + pieces_width([(text, role)])
            if 0 <= place < end:
                if key:
                    self.post_message(Answered(key))
                return


class Answered(Message):
    """An answer was clicked."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class Opened(Message):
    """A question opened: what was said before it is about something else."""


def _pressing(key: str) -> str:
    """The action of a hint that is clicked instead of its key."""
    return f"press('{key}')"


LINE_BREAK = "↵"
"""How a line break is shown that is kept."""


class _Line(Input):
    """The line to type into. Esc gives up; up brings back what was typed before; what is pasted loses no
    line."""

    keeps_lines = False

    @property
    def typed(self) -> str:
        """What was typed and pasted."""
        return self.value.replace(LINE_BREAK, "\n") if self.keeps_lines else self.value

    def on_paste(self, event: events.Paste) -> None:
        """All of it, and nothing that acts: the toolkit would take the first line alone."""
        event.prevent_default()
        event.stop()
        lines = sanitize_lines(event.text.strip("\r\n"))
        self.replace((LINE_BREAK if self.keeps_lines else " ").join(lines), *self.selection)


class Prompt(Vertical, can_focus=True):
    """At most one question at a time; hidden while there is none."""

    DEFAULT_CSS = """
    Prompt {
        height: auto; max-height: 70%; display: none;
        background: $panel; border-top: solid $accent; padding: 0 1;
    }
    Prompt.-asking { display: block; }
    Prompt #answers { dock: bottom; }
    Prompt.-typing #answers { display: none; }
    Prompt Input { border: none; height: 1; padding: 0; background: $panel; display: none; }
    Prompt Input:focus { border: none; }
    Prompt.-typing Input { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(id="prompt")
        self._typed: Callable[[str], None] | None = None
        self._changed: Callable[[str], None] | None = None
        self._keys: dict[str, Callable[[], None]] = {}
        self._gave_up: Callable[[], None] | None = None
        self._history: dict[str, list[str]] = {}
        self._kind = ""
        self._back = 0
        self._focus_before: Widget | None = None

    def compose(self) -> ComposeResult:
        yield _Words("question")
        yield _Words("answers")
        yield _Line(id="prompt-line", select_on_focus=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(_Line).cursor_blink = not cast("WatchkeeperApp", self.app).settings.reduced_motion

    @property
    def is_asking(self) -> bool:
        """A question is open."""
        return self.has_class("-asking")

    @property
    def text(self) -> str:
        """What the question says, and what is typed."""
        lines = ["".join(text for text, _ in line) for words in self.query(_Words) for line in words.lines]
        return "\n".join(lines)

    def ask_line(
        self,
        question: Sequence[Sequence[Piece]],
        typed: Callable[[str], None],
        *,
        kind: str,
        value: str = "",
        changed: Callable[[str], None] | None = None,
        gave_up: Callable[[], None] | None = None,
        enter: str = "OK",
        keeps_lines: bool = False,
    ) -> None:
        """Ask for a line of text. `kind` keeps histories apart; `changed` hears every keystroke; `enter`:
        what Enter does.

        `keeps_lines`: what is pasted in several lines is handed on in as many; else they become one.
        """
        self._open(question)
        self._typed, self._changed, self._gave_up, self._keys = typed, changed, gave_up, {}
        self._kind, self._back = kind, 0
        self.add_class("-typing")
        before = [KeyHint("↑", "Typed before", _pressing("up"))] if self._history.get(kind) else []
        self._name_keys(
            [KeyHint("↵", enter, _pressing("enter")), *before, KeyHint("esc", "Cancel", _pressing("escape"))]
        )
        line = self.query_one(_Line)
        line.keeps_lines = keeps_lines
        with line.prevent(Input.Changed):
            line.value = value
        line.cursor_position = len(value)
        self._take_focus(line)

    def ask_key(
        self,
        question: Sequence[Sequence[Piece]],
        keys: dict[str, Callable[[], None]],
        *,
        gave_up: Callable[[], None] | None = None,
    ) -> None:
        """Ask for one of `keys`; `n` and Esc give up unless they are among them. Enter never answers.

        The last line of the question says which keys; it stays in sight where the rest has no room.
        """
        self._open(question[:-1])
        self._put("answers", question[-1:])
        self._keys, self._typed, self._changed, self._gave_up = dict(keys), None, None, gave_up
        self.remove_class("-typing")
        self._name_keys([KeyHint("esc", "Back", _pressing("escape"))])
        self._take_focus(self)

    def _take_focus(self, widget: Widget) -> None:
        """At once, not after the keys that wait already: typed fast, `:resume` would press `r`."""
        self.screen.set_focus(widget)

    def reword(self, question: Sequence[Sequence[Piece]]) -> None:
        """Say something else above the line that is being typed."""
        self._put("question", question)

    def _put(self, name: str, lines: Sequence[Sequence[Piece]]) -> None:
        words = self.query_one(f"#{name}", _Words)
        words.lines = lines
        words.refresh(layout=True)

    def close(self) -> None:
        """Close the question and restore the previous focus."""
        if not self.is_asking:
            return
        self.remove_class("-asking", "-typing")
        self._name_keys([])
        self.call_after_refresh(self._lift_notices)
        self._typed = self._changed = self._gave_up = None
        self._keys = {}
        before, self._focus_before = self._focus_before, None
        if before is not None and before.is_attached and before.display:
            # At once: an answer may open another question, which gives the focus back to whom it finds it
            # with.
            self.screen.set_focus(before)
        else:
            self.screen.set_focus(None)

    def _open(self, question: Sequence[Sequence[Piece]]) -> None:
        if not self.is_asking:
            self._focus_before = self.screen.focused
        self.reword(question)
        self.add_class("-asking")
        self.post_message(Opened())

    def on_resize(self) -> None:
        self._lift_notices()

    def _lift_notices(self) -> None:
        """Notices stand above an open question: they must not cover what is asked or typed."""
        for rack in self.screen.query("ToastRack"):
            if self.is_asking:
                rack.styles.margin = (0, 0, self.screen.size.height - self.region.y, 0)
            else:
                rack.styles.clear_rule("margin")

    def _name_keys(self, hints: Sequence[KeyHint]) -> None:
        """Have the footer tell these keys; none: those of the screen."""
        for line in self.screen.query(KeyLine):
            line.ask(hints)

    def on_key(self, event: events.Key) -> None:
        if not self.is_asking:
            return
        if event.key == "escape":
            event.stop()
            event.prevent_default()
            self._give_up()
            return
        if self._typed is not None:
            self._type(event)
            return
        event.stop()
        event.prevent_default()
        self._answer(event.character or event.key, event.key)

    def on_answered(self, event: Answered) -> None:
        event.stop()
        self._answer(event.key, "escape" if event.key == "esc" else event.key)

    def _answer(self, character: str, key: str) -> None:
        chosen = self._keys.get(character) or self._keys.get(key)
        if chosen is not None:
            self.close()
            chosen()
        elif key in ("n", "q", "escape"):
            self._give_up()

    def _give_up(self) -> None:
        gave_up = self._gave_up
        self.close()
        if gave_up is not None:
            gave_up()

    def _type(self, event: events.Key) -> None:
        past = self._history.get(self._kind, [])
        if event.key in ("up", "down") and past:
            event.stop()
            self._back = max(0, min(len(past), self._back + (1 if event.key == "up" else -1)))
            line = self.query_one(_Line)
            line.value = past[-self._back] if self._back else ""
            line.cursor_position = len(line.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        typed, value, text = self._typed, event.value, self.query_one(_Line).typed
        if value.strip():
            self._history.setdefault(self._kind, []).append(value)
        self.close()
        if typed is not None:
            typed(text)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._changed is not None:
            self._changed(event.value)
