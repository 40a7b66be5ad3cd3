"""What every screen has: a header, a status line, the keys, and one place where questions are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.slash import SLASHES, Parsed, completions, parse
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.widgets.cells import Piece
from watchkeeper_tui.widgets.prompt import Prompt
from watchkeeper_tui.widgets.status import CRAMPED, KeyLine, StatusLine

if TYPE_CHECKING:
    from watchkeeper_tui.app import WatchkeeperApp

NOTICE_SECONDS = 6.0


class WatchScreen(Screen[None]):
    """The common part. A subclass lays out its widgets, and shows each snapshot it is given."""

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("colon", "command_bar", "Command", id="command", show=False),
        Binding("question_mark", "help", "Help", id="help", show=False),
        Binding("q", "leave", "Quit", id="quit", show=False),
        Binding("ctrl+c", "leave", "Quit", id="quit.interrupt", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._notice: tuple[Piece, ...] = ()
        self._notice_beside = False
        self._notice_until = 0.0

    @property
    def watch_app(self) -> WatchkeeperApp:
        return cast("WatchkeeperApp", self.app)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def is_in_sight(self) -> bool:
        """Whether it is visible: on top, or covered only by modal screens."""
        stack = self.app.screen_stack
        return self in stack and all(
            isinstance(above, ModalScreen) for above in stack[stack.index(self) + 1 :]
        )

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Show this reading."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """A second has passed without anything new."""

    def say(
        self, text: str, role: str = "text", *, seconds: float = NOTICE_SECONDS, beside: bool = False
    ) -> None:
        """Show the user a notice for some seconds. `text` must be sanitised.

        `beside`: it is about the dashboard, not about the run: beside the reason why a run stopped, not in
        its place.
        """
        now = self.watch_app.now()
        self._notice, self._notice_beside = ((text, role),), beside
        self._notice_until = now + seconds
        self.query_one(StatusLine).say(self.with_notice(self.standing(now) if beside else (), now))

    def standing(self, now: float) -> Sequence[Piece]:
        """What the status line says while there is no notice."""
        return ()

    def with_notice(self, standing: Sequence[Piece], now: float) -> Sequence[Piece]:
        """The status line with the last notice, while it is fresh: in place of the standing text, or after
        it.

        A notice never hides why the database cannot be read. A notice about the dashboard never hides why a
        run stopped.
        """
        notice, snapshot = self.notice(now), self.watch_app.snapshot
        stopped = snapshot.state is not SessionState.LIVE
        if not notice or not (standing and (snapshot.problem or (self._notice_beside and stopped))):
            return notice or standing
        return [*standing, ("   ", "text"), *notice]

    def trouble(self, error: BaseException | str) -> str:
        """What went wrong, as one line: the open database by its name, for its path may fill the line."""
        path = self.watch_app.database_path
        return clip(sanitize(str(error).replace(str(path), path.name)), 300)

    def notice(self, now: float) -> tuple[Piece, ...]:
        """What was said last, while it is fresh."""
        return self._notice if now < self._notice_until else ()

    def on_opened(self) -> None:
        """A question opened at the foot of the screen."""
        self._notice_until = 0.0
        self.tick(self.watch_app.now())

    def on_key_line_pressed(self, event: KeyLine.Pressed) -> None:
        self.call_later(self.run_action, event.action)

    def action_press(self, key: str) -> None:
        """Do what a key does, for a hint that was clicked."""
        # From the app, as keys of the terminal come: the toolkit lets a key that a screen posts rise no
        # further than there.
        self.app.call_later(self.app.simulate_key, key)

    # The command bar.

    def action_command_bar(self, value: str = "") -> None:
        def lines(text: str) -> list[list[Piece]]:
            matching = completions(text)[:8]
            return [
                [(f"/{slash.name} ", "key"), (f"{slash.argument:<14} ", "muted"), (slash.help, "text")]
                for slash in matching
            ] or [[("no such command; ? shows them all", "failed")]]

        def changed(text: str) -> None:
            self.prompt.reword(lines(text))

        def typed(text: str) -> None:
            parsed = parse(text)
            if parsed.slash is None:
                if parsed.problem:
                    self.say(parsed.problem, "failed")
                return
            self.run_slash(parsed)

        self.prompt.ask_line(
            lines(value), typed, kind="command", value=value or "/", changed=changed, enter="Do it"
        )

    def run_slash(self, parsed: Parsed) -> None:
        """Do what was typed in the command bar."""
        assert parsed.slash is not None
        name, argument = parsed.slash.name, parsed.argument
        if name == "help":
            self.action_help()
        elif name == "quit":
            self.action_leave()
        elif name == "sessions":
            self.watch_app.open_sessions(argument)
        elif name == "replay":
            self.action_replay()
        elif name == "autosave_load" and argument:
            self.watch_app.load_session(argument)
        elif name == "theme":
            self.say(*self.watch_app.choose_theme(argument))
        else:
            self.say(f"/{name} works on the live screen", "muted")

    def action_replay(self) -> None:
        """The open session as it was, step by step."""
        session = self.watch_app.snapshot.session
        if session is None:
            self.say("no session is open; s lists them", "muted")
        else:
            self.watch_app.open_replay(session.id)

    # Help, and leaving.

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Titles, each with keys and what they do: this screen's part of the help."""
        return []

    def action_help(self) -> None:
        from watchkeeper_tui.screens.help import HelpScreen

        groups = [
            *self.help_groups(),
            (
                "Everywhere",
                [
                    (":", "command bar"),
                    ("ctrl+p", "palette, themes"),
                    ("?", "this help"),
                    ("q", "leave"),
                    ("esc", "back"),
                ],
            ),
            ("Commands", [(f"/{slash.name} {slash.argument}".strip(), slash.help) for slash in SLASHES]),
        ]
        self.app.push_screen(HelpScreen(groups))

    def action_leave(self) -> None:
        """Leave this screen, or the dashboard."""
        self.watch_app.exit(0)

    def confirm(
        self,
        lines: Sequence[str],
        yes: Callable[[], None],
        *,
        more: Sequence[tuple[str, str, Callable[[], None]]] = (),
    ) -> None:
        """Say what would be done, and do it on `y`. `more` are further keys, with their words."""
        question: list[list[Piece]] = [
            [(line, "strong" if index == 0 else "text")] for index, line in enumerate(lines)
        ]
        answers: list[Piece] = [("y", "key"), (" yes   ", "text")]
        for key, words, _ in more:
            answers += [(key, "key"), (f" {words}   ", "text")]
        answers += [("n", "key"), (" no", "text")]
        question.append(answers)
        keys = {"y": yes, **{key: run for key, _, run in more}}
        self.prompt.ask_key(question, keys, gave_up=lambda: self.say("nothing was done", "muted", seconds=2))
