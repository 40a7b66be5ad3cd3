"""The first screen on a machine without a session: what was found here, and one key for each way to begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget

from watchkeeper.records.readers import labels
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.control import RunRequest, start_folder
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.widgets.bars import KeyLine, Prompt, StatusLine
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView, clip_pieces, content, set_title

LIVE_SECONDS = 120.0
"""A log that was written to more recently counts as live."""

DEMO = RunRequest("Survey this folder", model="offline/surveyor")
"""What `wk demo` runs: the surveyor reads no goal."""


@dataclass(frozen=True, slots=True)
class LogsFound:
    """The logs of one program. Texts are hostile until sanitised."""

    alias: str
    """What `wk watch` and `wk import` call the program."""
    label: str
    logs: int
    modified_at: float
    """When the newest was written to last."""
    folder: str
    """Where its session works; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found on this machine. No log is read beyond its beginning, and no file with credentials at all."""

    logs: tuple[LogsFound, ...] = ()
    """The program with the newest log first."""
    programs: tuple[str, ...] = ()
    """Commands of agent programs that are installed."""
    keys: tuple[str, ...] = ()
    """Providers that a key was found for."""


class LogsView(RowView[LogsFound]):
    """One row a program."""

    HEADINGS = True
    IDLE_SELECTION = True
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("", 1),
        Column("program", 12),
        Column("logs", 7, right=True, drop=2),
        Column("last active", 12),
        Column("last folder", 10, flexible=True, drop=1),
    )
    now = 0.0
    nothing = "looking for sessions …"

    def empty_words(self) -> str:
        return self.nothing

    def row_id(self, row: LogsFound) -> str:
        return row.alias

    def row_cells(self, row: LogsFound) -> Sequence[Cell]:
        live = self.now - row.modified_at < LIVE_SECONDS
        return (
            [("●" if live else "○", "working" if live else "muted")],
            [(sanitize(row.label), "strong")],
            [(f"{row.logs:,}", "text")],
            [
                (
                    "live" if live else formatting.when(row.modified_at, self.now),
                    "working" if live else "muted",
                )
            ],
            [(sanitize(row.folder), "muted")],
        )


class WelcomeText(Widget):
    """Lines of our own words."""

    lines: Sequence[Sequence[Piece]] = ()

    def show(self, lines: Sequence[Sequence[Piece]]) -> None:
        self.lines = lines
        self.refresh(layout=True)

    def render(self) -> Content:
        screen = self.screen
        assert isinstance(screen, WatchScreen)
        width = max(10, self.content_size.width)
        return Content("\n").join(
            [content(clip_pieces(line, width), screen.watch_app.palette) for line in self.lines]
        )


class WelcomeScreen(WatchScreen):
    """One key each: watch the newest session, import, start a run, try the demo."""

    SCOPE = "welcome"
    BINDINGS: ClassVar[list[BindingType]] = bindings("welcome")

    def __init__(self, discover: Callable[[], Discovery]) -> None:
        super().__init__()
        self._discover = discover
        self._found: Discovery | None = None

    def compose(self) -> ComposeResult:
        yield WelcomeText(id="welcome-head")
        yield LogsView(id="logs", classes="pane")
        yield WelcomeText(id="welcome-keys")
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    @property
    def view(self) -> LogsView:
        return self.query_one(LogsView)

    def on_mount(self) -> None:
        self.view.focus()
        self._describe()
        self.run_worker(self._look, thread=True, exit_on_error=False, group="discover")

    def _look(self) -> None:
        """In a thread of its own: the screen is painted first."""
        try:
            found = self._discover()
        except Exception as error:
            # A worker must never end the dashboard: without what is here, the other keys still work.
            self.app.call_from_thread(self.say, self.trouble(error), "failed", seconds=30)
            found = Discovery()
        self.app.call_from_thread(self._arrived, found)

    def _arrived(self, found: Discovery) -> None:
        if not self.is_usable:
            return
        self._found = found
        keys = (
            f"{self.watch_app.key_for('welcome.demo')} runs the demo",
            f"{self.watch_app.key_for('start')} starts a run",
        )
        self.view.nothing = (
            f"no logs found; {', '.join(keys)}; logs of {labels('or')} are found by themselves"
        )
        self.view.now = self.watch_app.now()
        self.view.set_rows(found.logs)
        self.view.refresh()
        self._describe()

    def tick(self, now: float) -> None:
        self.view.now = now
        self.view.repaint_changed()
        self._describe()

    def _describe(self) -> None:
        found, row = self._found, self.view.selected
        self.query_one("#welcome-head", WelcomeText).show(
            [
                [
                    ("Watchkeeper", "strong"),
                    ("  watch your agents live, and review their work later", "muted"),
                ],
                [("All data stays in one file on this machine. Nothing is stored yet.", "faint")],
            ]
        )
        set_title(
            self.view, [("Found here", "strong"), ("  not imported yet", "muted")], self.watch_app.palette
        )
        label = sanitize(row.label) if row is not None else "the most recent program"
        folder = clip(sanitize(start_folder().name) or "/", 24)
        choices: list[tuple[str, str, str]] = [
            ("w", f"watch the newest session of {label}", "live"),
            ("i", "import every session found here", "history, cost and search"),
            (self.watch_app.key_for("start"), "start a run", "goal, model, budget"),
            ("d", "try the demo", f"no key needed; surveys {folder}"),
        ]
        lines: list[list[Piece]] = [
            [(f"  {key:<8}", "key"), (words.ljust(44), "text"), (more, "muted")]
            for key, words, more in choices
            if found is None or found.logs or key not in "wi"
        ]
        if found is not None:
            lines.append([])
            for name, values, otherwise in (
                ("Agent CLIs", found.programs, "none on PATH"),
                (
                    "API keys",
                    found.keys,
                    "none; set ANTHROPIC_API_KEY or OPENAI_API_KEY, then restart wk",
                ),
            ):
                words = ", ".join(sanitize(value) for value in values) or otherwise
                lines.append([(f"  {name:<11}", "muted"), (words, "text" if values else "faint")])
        self.query_one("#welcome-keys", WelcomeText).show(lines)
        self.query_one(StatusLine).pieces = tuple(self.notice(self.watch_app.now())) or (
            ("`wk doctor` checks the installation", "faint"),
        )
        self.show_keys()

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        self._describe()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        self.action_watch()

    def action_watch(self) -> None:
        row = self.view.selected
        if row is None:
            self.say("no sessions from other programs found; d runs the demo", "muted")
        else:
            self.watch_app.leave(f"watch {row.alias}")

    def action_import(self) -> None:
        if self._found is None or not self._found.logs:
            self.say("no sessions from other programs found; d runs the demo", "muted")
        else:
            self.watch_app.leave(" ".join(["import", *(row.alias for row in self._found.logs)]))

    def action_demo(self) -> None:
        """Run the offline surveyor here, as `wk demo` does."""
        self.say("starting the demo …", "muted", seconds=60)
        self.run_worker(self._start_demo(), exit_on_error=False, group="start", exclusive=True)

    async def _start_demo(self) -> None:
        try:
            session_id, problem = await self.watch_app.start_run(DEMO)
        except OSError as error:
            session_id, problem = "", str(error)
        if not self.is_usable:
            return
        if session_id:
            self.watch_app.open_session(session_id)
        else:
            why = self.trouble(problem)
            self.say(
                f"✗ demo failed: {why}   {self.watch_app.key_for('start')} starts a run in another folder",
                "failed",
                seconds=60,
            )

    def why_not(self, action: Action) -> str:
        found = self._found is not None and self._found.logs
        return "" if found or action.id not in ("welcome.watch", "welcome.import") else "no sessions found"
