"""Screens that one command opens: the prompt that a change by hand would lead to, and the step from which a session is
forked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from watchkeeper.store.fork import ForkResult, Step, fork_session, steps
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import bindings
from watchkeeper_tui.control import PromptPreview
from watchkeeper_tui.pages.transcript import ItemState, item_units, items_of
from watchkeeper_tui.rendering.documents import LineCache, Unit, lazy
from watchkeeper_tui.sanitize import clip, sanitize, wrap
from watchkeeper_tui.screens.base import PageScreen, TextDialog
from watchkeeper_tui.widgets.rows import Cell, Column, PageLine, PageView, Piece, RowView, content


class PromptScreen(TextDialog):
    """The messages, with the place from which on the prompt cache is lost. Enter unfolds; esc goes back to the
    question."""

    BACK: ClassVar[str] = "back to the question"

    def __init__(self, about: str, shown: PromptPreview) -> None:
        super().__init__()
        self._about, self._shown = about, shown
        self._expanded: frozenset[str] = frozenset()
        self._cache = LineCache()

    def text(self) -> PageView:
        return PageView(id="prompt-preview")

    @property
    def page(self) -> PageView:
        return self.query_one(PageView)

    @property
    def heading(self) -> str:
        """What is shown; sanitised."""
        return f"Prompt preview: {self._about}"

    def on_mount(self) -> None:
        palette = self.page.watch_app.palette
        self.page.border_title = content([(clip(self.heading, 100), "strong")], palette)
        self.page.border_subtitle = content([(f"enter unfolds · / find · esc {self.BACK}", "muted")], palette)
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

    def lines(self, width: int) -> Sequence[PageLine]:
        """The whole preview in lines of that width."""
        shown = self._shown
        lines: list[PageLine | Unit] = [
            PageLine(f"numbers.{number}.{row}", ((part, "text"),))
            for number, line in enumerate(shown.lines())
            for row, part in enumerate(wrap(sanitize(line), width))
        ]
        lines.append(PageLine("beside", (("The system prompt and tools come first.", "faint"),)))
        return lazy([*lines, *self.message_lines(width)], self._cache)

    def message_lines(self, width: int) -> Iterator[PageLine | Unit]:
        """Each message with its number, its role and its tokens."""
        shown = self._shown
        for place, message in enumerate(shown.messages):
            if place == shown.messages_cached:
                rule = "── rewritten to the prompt cache from here "
                yield PageLine("cache", ((clip(rule, width).ljust(width, "─"), "retrying"),))
            tokens = f"  {formatting.tokens(message.tokens)} tok" if message.tokens else ""
            yield (
                PageLine(f"message.{place}", ((f"{place + 1} {message.role}", "strong"), (tokens, "faint")))
            )
            for item in items_of(message.blocks):
                is_unfolded = item.block.key in self._expanded
                state = ItemState(width, is_unfolded, is_proposed=True)
                yield from item_units(item, state, self._cache)


STEPS_AT_ONCE = 500
_WORDS = {
    "model.replied": "turn", "inbox.delivered": "notified", "plan.revised": "plan", "agent.created": "starts", "task.running": "task runs",
    "task.done": "task done", "task.failed": "task failed", "task.paused": "task paused", "task.pending": "task again",
    "compaction.applied": "compacted", "compaction.undo": "undone", "compaction.redo": "redone", "session.paused": "paused",
    "session.running": "resumed", "session.forked": "forked",
}  # fmt: skip
_ROLES = {
    "task.done": "done", "task.failed": "failed", "plan.revised": "accent", "compaction.applied": "compaction",
    "model.replied": "assistant",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row of the list: a step, or the end."""

    step: Step | None

    @property
    def id(self) -> str:
        return str(self.step.seq) if self.step is not None else "end"


class StepsView(RowView[StepRow]):
    """One row a step."""

    HEADINGS = True
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("event", 7, right=True),
        Column("at", 8, drop=2),
        Column("who", 14, drop=1),
        Column("step", 11),
        Column("", 20, flexible=True),
    )

    def row_id(self, row: StepRow) -> str:
        return row.id

    def row_cells(self, row: StepRow) -> Sequence[Cell]:
        step = row.step
        if step is None:
            return (
                [("end", "accent")],
                [],
                [],
                [("now", "strong")],
                [("an exact copy of the current session", "muted")],
            )
        word = _WORDS.get(step.kind, step.kind) + (f" {step.turn}" if step.turn is not None else "")
        return (
            [(f"#{step.seq}", "muted")],
            [(formatting.time_of_day(step.at), "faint")],
            [(clip(sanitize(step.agent or step.task), 14), "accent")],
            [(sanitize(word), _ROLES.get(step.kind, "text"))],
            [(" ".join(sanitize(step.text).split()), "muted")],
        )


class ForkScreen(PageScreen):
    """Enter on a step says what the fork would be, and `y` makes it."""

    PLACE = "fork"

    SCOPE = "fork"
    BINDINGS: ClassVar[list[BindingType]] = bindings("fork")

    def __init__(self, session_id: str, name: str, forked: Callable[[ForkResult], None]) -> None:
        super().__init__()
        self._session_id = session_id
        self._called = name
        self._forked = forked
        self._steps: tuple[Step, ...] = ()
        self._all_read = False
        self._reading = False
        self._words = ""
        self._working = False

    def body(self) -> ComposeResult:
        yield StepsView(id="steps", classes="pane")

    def on_mount(self) -> None:
        self.view.focus()
        self._draw()
        self._read_more()

    @property
    def view(self) -> StepsView:
        return self.query_one(StepsView)

    # Reading.

    def _read_more(self) -> None:
        """The next older steps."""
        if self._all_read or self._reading:
            return
        self._reading = True
        before = self._steps[-1].seq if self._steps else 1 << 62
        self.ask(
            lambda connection: steps(connection, self._session_id, before=before, limit=STEPS_AT_ONCE),
            self._arrived,
            self._failed,
        )

    def _failed(self) -> None:
        self._reading = False

    def _arrived(self, older: tuple[Step, ...]) -> None:
        self._reading = False
        self._steps = (*self._steps, *older)
        self._all_read = len(older) < STEPS_AT_ONCE
        self._draw()
        if self._words:
            self._read_more()

    def _draw(self) -> None:
        words = self._words.casefold().split()
        rows = [StepRow(None)] if not words else []
        for step in self._steps:
            text = f"#{step.seq} {step.agent} {step.task} {_WORDS.get(step.kind, step.kind)} {step.turn or ''} {step.text}".casefold()
            if all(word in text for word in words):
                rows.append(StepRow(step))
        self.view.set_rows(tuple(rows))
        self.redraw_edges()

    def heading(self) -> tuple[Widget, Sequence[Piece]]:
        words: Sequence[Piece] = (("  /", "accent"), (sanitize(self._words), "match")) if self._words else ()
        return self.view, (
            ("Fork from which step?", "strong"),
            (f"   {clip(self._called, 60)}", "text"),
            *words,
        )

    def standing(self, now: float) -> Sequence[Piece]:
        return (("The fork starts after this step, in the same folder. Unfinished work is paused.", "muted"),)

    # Choosing.

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        place = self.view.place_of(event.row_id) or 0
        if place > len(self.view.rows) - 50:
            self._read_more()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        row = self.view.selected
        if row is None or self._working:
            return
        step = row.step
        if step is None:
            lines = [
                f"Fork {clip(self._called, 60)} in its current state?",
                "Creates a new session. Unfinished work is paused.",
            ]
        else:
            where = (
                f"turn {step.turn} of {sanitize(step.agent)}"
                if step.turn is not None
                else f"event #{step.seq}"
            )
            lines = [
                f"Fork {clip(self._called, 60)} after {where}?",
                "Creates a new, paused session; the original does not change. The fork uses no tokens until you"
                " resume it.",
            ]
        self.confirm(lines, lambda: self._fork(step), free=True)

    def _fork(self, step: Step | None) -> None:
        path, session_id = self.watch_app.database_path, self._session_id
        self._working = True
        self.say("forking …", "muted", seconds=600)
        show = self.fork_progress()

        def run() -> None:
            try:
                if step is not None and step.turn is not None and step.agent_id is not None:
                    made = fork_session(
                        path, session_id, at_turn=(step.agent_id, step.turn), on_progress=show
                    )
                else:
                    at_seq = step.seq if step is not None else None
                    made = fork_session(path, session_id, at_seq=at_seq, on_progress=show)
            except Exception as error:
                # A worker must never end the dashboard; the reason is said where the fork would have been.
                self.app.call_from_thread(self._refused, error)
                return
            self.app.call_from_thread(self._made, made)

        self.run_worker(run, thread=True, exit_on_error=False)

    def _made(self, made: ForkResult) -> None:
        self._working = False
        if self.is_usable:
            self.app.pop_screen()
            self._forked(made)

    def _refused(self, error: Exception) -> None:
        self._working = False
        if self.is_usable:
            self.say(f"✗ fork failed: {clip(sanitize(str(error)), 300)}", "failed", seconds=12)

    def action_open(self) -> None:
        self.view.action_open()

    def action_filter(self) -> None:
        before = self._words
        question: list[list[Piece]] = [
            [("Filter", "strong"), ("   agents, tasks, step kinds or text", "muted")]
        ]
        self.prompt.ask_line(
            question,
            self._filter,
            kind="steps",
            value=before,
            changed=self._filter,
            gave_up=lambda: self._filter(before),
            enter="Apply",
        )

    def _filter(self, words: str) -> None:
        self._words = words
        self._draw()
        if words:
            self._read_more()

    def action_back(self) -> None:
        if self._words:
            self._filter("")
        else:
            super().action_back()
