"""What every screen has: a header, a status line, the keys, and one place where questions are asked; the help; and the
four panes that the live screen and the replay show a session in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import MouseDown, MouseMove, MouseUp
from textual.reactive import var
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.store.driver import Connection
from watchkeeper_tui import formatting
from watchkeeper_tui.keymap import SLASHES, CommandList, Parsed, normal, parse
from watchkeeper_tui.pages import blank
from watchkeeper_tui.sanitize import clip, fit, sanitize, wrap
from watchkeeper_tui.settings import SPLITS
from watchkeeper_tui.snapshot import Roster, SessionState, Snapshot
from watchkeeper_tui.watch_app import WatchApp, watch_app
from watchkeeper_tui.widgets.agent import AgentPane
from watchkeeper_tui.widgets.bars import (
    CRAMPED,
    Chip,
    ChipLine,
    Crumb,
    KeyHint,
    KeyLine,
    PathLine,
    Prompt,
    StatusLine,
)
from watchkeeper_tui.widgets.panes import CompactionView, EventsView, PlanView
from watchkeeper_tui.widgets.rows import (
    Cell,
    Column,
    PageLine,
    PageView,
    Piece,
    RowView,
    clip_pieces,
    content,
    set_title,
)

Answer = TypeVar("Answer")

WIDTH = 92
KEY_CELLS = 32
"""The widest column of keys."""
NARROW = 64
"""With fewer columns, descriptions go below their keys."""
WIDE = 110
"""From so many columns on, the list of commands has room for every argument."""


class _Lines(RowView[PageLine]):
    CURSOR = False
    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def row_id(self, row: PageLine) -> str:
        return row.id

    def row_cells(self, row: PageLine) -> Sequence[Cell]:
        return (row.pieces,)


class HelpScreen(ModalScreen[None]):
    """Any of its closing keys brings back what was there."""

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Close", show=False),
    ]

    def __init__(
        self, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]], *, title: str = "Help"
    ) -> None:
        """Titles, each with keys and their words. Sanitised."""
        super().__init__()
        self._groups, self._title = groups, title

    def compose(self) -> ComposeResult:
        yield _Lines()

    def on_mount(self) -> None:
        view = self.query_one(_Lines)
        self._write()
        view.border_title = content([(self._title, "strong")], view.watch_app.palette)
        view.border_subtitle = content([("j/k scroll · esc closes", "muted")], view.watch_app.palette)
        view.focus()

    def on_resize(self) -> None:
        self._write()

    def _write(self) -> None:
        """Keys beside their words; above them on a narrow terminal."""
        lines: list[PageLine] = []
        width, height = self.app.size
        if height < CRAMPED[1]:
            lines.append(PageLine("how", ((self._title, "strong"), ("  esc closes", "muted"))))
        beside = width >= NARROW
        # The border, the padding, the scrollbar.
        whole = max(10, min(WIDTH, int(width * 0.96)) - 6)
        for title, keys in self._groups:
            key_cells = min(KEY_CELLS, max(KEY_CELLS // 2, *(len(key) + 2 for key, _ in keys), 0))
            room = whole - 2 - (key_cells if beside else 0)
            lines += [
                PageLine(f"{title}.{row}", ((part, "strong"),)) for row, part in enumerate(wrap(title, whole))
            ]
            for number, (key, words) in enumerate(keys):
                if not beside:
                    lines.append(PageLine(f"{title}.{number}", ((key, "key"),)))
                elif len(key) >= key_cells:
                    lines.append(PageLine(f"{title}.{number}", (("  ", "text"), (key, "key"))))
                for row, part in enumerate(wrap(words, max(10, room))):
                    shown = key if row == 0 and len(key) < key_cells else ""
                    before = fit(shown, key_cells) if beside else ""
                    lines.append(
                        PageLine(f"{title}.{number}.{row}", (("  ", "text"), (before, "key"), (part, "text")))
                    )
            lines.append(blank(f"{title}.end"))
        self.query_one(_Lines).set_rows(lines)


_KEY_NAMES = {"↵": "enter", "esc": "escape", "←": "left", "→": "right", "↑": "up", "↓": "down"}
"""How the toolkit names keys that a footer shows in another way."""
_BETWEEN_KEYS = re.compile(r"([\s,]+)")
_LEGENDS = ("States", "Glyphs")
"""Parts of the help that explain glyphs, not keys."""
NOTICE_SECONDS = 6.0
EXPORT_NOTICE_SECONDS = 30.0
_USUAL_FORM = "html"
"""The form of an export."""


class WatchScreen(Screen[None]):
    """The common part. A subclass lays out its widgets and follows the newest snapshot."""

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("colon", "command_bar", "Command", id="command", show=False),
        Binding("question_mark", "help", "Help", id="help", show=False),
        Binding("dollar_sign", "usage", "Usage", id="usage", show=False),
        Binding("W", "fleet", "Fleet", id="fleet", show=False),
        Binding("ctrl+n", "start", "Start a run", id="start", show=False),
        Binding("q", "leave", "Quit", id="quit", show=False),
        Binding("ctrl+c", "leave", "Quit", id="quit.interrupt", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._notice: tuple[Piece, ...] = ()
        self._notice_beside = False
        self._notice_until = 0.0

    @property
    def watch_app(self) -> WatchApp:
        return watch_app(self)

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

    @property
    def is_usable(self) -> bool:
        """Whether its widgets are there: a screen that closes loses them one by one before it ends itself."""
        return self.is_mounted and not self._closing

    def on_mount(self) -> None:
        self.watch(self.app, "snapshot", self._newer_snapshot, init=False)

    def _newer_snapshot(self, snapshot: Snapshot) -> None:
        if self.is_usable:
            self.snapshot_changed(snapshot)

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        """The app has a newer reading of the open session."""
        self.tick(self.watch_app.now())

    def tick(self, now: float) -> None:
        """A second has passed."""

    def ask(
        self,
        question: Callable[[Connection], Answer],
        arrived: Callable[[Answer], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Have the reader answer, beside the screen; `arrived` hears of it if the screen is still there. An error is said,
        and `failed` called."""

        def asked(connection: Connection) -> Any:
            try:
                return question(connection)
            except WatchkeeperError as error:
                return error

        self.ask_reader(asked, lambda result: self._answered(result, arrived, failed))

    def ask_reader(self, question: Callable[[Connection], object], arrived: Callable[[Any], None]) -> None:
        """Have the reader answer, beside the screen. `arrived` gets the result, or the error, in the screen's own thread,
        also if the screen has gone meanwhile.

        `question` runs in the reader's thread: it must not touch the screen, whose widgets may be gone by then.
        """
        app = self.app  # a screen that has gone has none

        def answer(result: object) -> None:
            app.call_later(arrived, result)

        self.watch_app.reader.ask(question, answer)

    def _answered(self, result: Any, arrived: Callable[[Any], None], failed: Callable[[], None]) -> None:
        if not self.is_usable:
            return
        if isinstance(result, Exception):
            failed()
            self.say(f"! {self.trouble(result)}", "failed", seconds=12)
        else:
            arrived(result)

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
        self.query_one(StatusLine).pieces = tuple(self.with_notice(self.standing(now) if beside else (), now))

    def fork_progress(self) -> Callable[[int, int], None]:
        """What a worker thread that forks a session calls with the rows that are copied, and how many there are: the
        user is shown each percent."""
        app, shown = self.app, [0]

        def say(percent: int) -> None:
            if self.is_usable:
                self.say(f"forking … {percent} %", "muted", seconds=600)

        def show(done: int, rows: int) -> None:
            percent = 100 * done // max(rows, 1)
            if percent > shown[0]:
                shown[0] = percent
                with suppress(RuntimeError):  # the dashboard ends
                    app.call_from_thread(say, percent)

        return show

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

    def on_status_line_said(self, event: StatusLine.Said) -> None:
        self.say(event.text, event.role)

    # Filters.

    def filters(self) -> Sequence[Chip]:
        """What narrows down what is shown, in the order in which `backspace` takes it off from the end."""
        return ()

    def drop_filter(self, chip: Chip) -> None:
        """Take one of `filters` off."""

    def draw_chips(self) -> None:
        """Show the filters."""
        self.query_one(ChipLine).chips = tuple(self.filters())

    def action_drop_filter(self) -> None:
        if chips := self.filters():
            self.drop_filter(chips[-1])
        else:
            self.say("nothing is filtered", "muted", seconds=3)

    def on_chip_line_dropped(self, event: ChipLine.Dropped) -> None:
        self.drop_filter(event.chip)

    # Where the user is.

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        """What this screen adds to the path, the widest first; `sessions` begins another one."""
        return ()

    def draw_path(self) -> None:
        """Show by which screens the user came here."""
        path: list[Crumb] = []
        stack = self.app.screen_stack
        for depth, screen in enumerate(stack[: stack.index(self) + 1] if self in stack else ()):
            for crumb in screen.crumbs if isinstance(screen, WatchScreen) else ():
                if crumb.kind == "list":
                    path.clear()
                same = next((each for each in reversed(path) if each.kind == crumb.kind), None)
                if crumb.kind not in ("session", "agent") or same is None or same.id != crumb.id:
                    path.append(replace(crumb, depth=depth))
        self.query_one(PathLine).crumbs = tuple(path)

    def on_path_line_chosen(self, event: PathLine.Chosen) -> None:
        """Go back to a screen of the path."""
        target = self.app.screen_stack[event.depth]
        while self.app.screen is not target:
            self.app.pop_screen()

    # Keys.

    def show_keys(self, hints: Sequence[KeyHint]) -> None:
        """Show in the footer what can be done now, by the user's own keys."""
        if self.watch_app.settings.keys:
            hints = [self._with_own_keys(hint) for hint in hints]
        self.query_one(KeyLine).hints = tuple(hints)

    def _with_own_keys(self, hint: KeyHint) -> KeyHint:
        """The hint as its bindings are set: those of the widget with the focus go before those of the screen."""
        own = self._own_keys(hint.key, (self.focused, self))
        if own == hint.key:
            return hint
        action = f"press({own!r})" if hint.action.startswith("press(") else hint.action
        return replace(hint, key=own, action=action)

    def _own_keys(self, keys: str, owners: Iterable[object]) -> str:
        """`keys`, named as a footer or a help names them, as the user has set the bindings of `owners`, the first of
        which goes first; each key once. What is no key of theirs stays."""
        bindings = [
            each
            for owner in owners
            for kind in type(owner).__mro__
            for each in kind.__dict__.get("BINDINGS", ())
            if isinstance(each, Binding) and each.id
        ]
        own: dict[str, str] = {}
        between = ""
        for place, part in enumerate(_BETWEEN_KEYS.split(keys)):
            if place % 2:
                between = part
                continue
            *modifiers, key = part.split("+") if len(part) > 1 else [part]
            named = normal("+".join([*modifiers, _KEY_NAMES.get(key, key)])) if part else frozenset()
            found = next((each.id for each in bindings if named & normal(each.key)), None)
            shown = self.watch_app.key_for(found, part) if found is not None else part
            if shown and shown not in own:
                own[shown] = between if own else ""
        return "".join(before + key for key, before in own.items())

    def on_key_line_pressed(self, event: KeyLine.Pressed) -> None:
        self.call_later(self.run_action, event.action)

    def action_usage(self) -> None:
        self.watch_app.open_usage()

    def action_fleet(self) -> None:
        self.watch_app.open_fleet()

    def action_start(self, goal: str = "") -> None:
        """Ask for what a new run needs."""
        self.watch_app.open_start(goal=goal)

    def action_press(self, key: str) -> None:
        """Do what a key does, for a hint that was clicked."""
        # From the app, as keys of the terminal come: the toolkit lets a key that a screen posts rise no
        # further than there.
        self.app.call_later(self.app.simulate_key, key)

    # The command bar.

    def action_command_bar(self, value: str = "") -> None:
        """Ask for a command. All are listed; what is typed filters them, and arrows choose one."""
        listed = CommandList(value)

        def changed(text: str) -> None:
            nonlocal listed
            listed = CommandList(text)
            self.prompt.reword(self._command_lines(listed))

        def moved(step: int) -> bool:
            has_moved = listed.move(step)
            self.prompt.reword(self._command_lines(listed))
            return has_moved

        def typed(text: str) -> None:
            if listed.chosen is not None:
                if listed.chosen.needs_argument:
                    self.action_command_bar(f"/{listed.chosen.name} ")
                    return
                text = listed.chosen.name
            parsed = parse(text)
            if parsed.slash is None:
                if parsed.problem:
                    self.say(parsed.problem, "failed")
                return
            self.run_slash(parsed)

        self.prompt.ask_line(
            self._command_lines(listed),
            typed,
            kind="command",
            value=value or "/",
            changed=changed,
            enter="Do it",
            moved=moved,
        )

    def _command_lines(self, listed: CommandList) -> list[list[Piece]]:
        """The commands that there is room for, the chosen one marked."""
        if not listed.matching:
            return [[("no such command; ? shows them all", "failed")]]
        window = listed.window(max(1, int(self.size.height * 0.7) - 4))
        is_wide = self.size.width >= WIDE
        name_cells = max(len(slash.name) for slash in SLASHES) + 2 if is_wide else 11
        argument_cells = max(len(slash.argument) for slash in SLASHES) if is_wide else 14
        lines: list[list[Piece]] = [
            [
                ("▸ " if place == listed.place else "  ", "accent"),
                (f"/{slash.name} ".ljust(name_cells), "key"),
                (f"{slash.argument:<{argument_cells}} ", "muted"),
                (slash.help, "strong" if place == listed.place else "text"),
            ]
            for place, slash in ((place, listed.matching[place]) for place in window)
        ]
        above, below = window.start, len(listed.matching) - window.stop
        if above or below:
            lines.append([(f"  ↑ {above} above  ↓ {below} below   arrows choose, typing filters", "faint")])
        return [clip_pieces(line, max(10, self.size.width - 3)) for line in lines]

    def run_slash(self, parsed: Parsed) -> None:
        """Do what was typed in the command bar."""
        assert parsed.slash is not None
        name, argument = parsed.slash.name, parsed.argument
        if name == "help":
            self.action_help()
        elif name == "quit":
            self.action_leave()
        elif name == "run":
            self.action_start(argument)
        elif name == "sessions":
            self.watch_app.open_sessions(argument)
        elif name == "fleet":
            self.action_fleet()
        elif name == "replay":
            self.action_replay()
        elif name == "spending":
            self.action_usage()
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
        changes = self.watch_app.key_changes
        groups: list[tuple[str, Sequence[tuple[str, str]]]] = [
            *self.help_groups(),
            (
                "Everywhere",
                [
                    (":", "command bar"),
                    ("ctrl+p", "palette, themes"),
                    ("?", "this help"),
                    ("ctrl+n", "start a run"),
                    ("q", "leave"),
                    ("esc", "back"),
                ],
            ),
        ]
        if changes:
            owners = (self.focused, self, *self.query("*"))
            for place, (title, rows) in enumerate(groups):
                if title not in _LEGENDS:
                    own = [(self._own_keys(keys, owners), words) for keys, words in rows]
                    groups[place] = (title, [row for row in own if row[0]])
            groups.insert(0, ("Your keys", changes))
        commands = [(f"/{slash.name} {slash.argument}".strip(), slash.help) for slash in SLASHES]
        self.app.push_screen(HelpScreen([*groups, ("Commands", commands)]))

    def action_leave(self) -> None:
        """Leave this screen, or the dashboard."""
        self.app.exit(0)

    def confirm(
        self,
        lines: Sequence[str],
        yes: Callable[[], None],
        *,
        more: Sequence[tuple[str, str, Callable[[], None]]] = (),
        free: bool = False,
    ) -> None:
        """Say what would be done, and do it on `y`. `more` are further keys, with their words. `free`: nothing is spent
        or lost, so Enter does it too."""
        question: list[list[Piece]] = [
            [(line, "strong" if index == 0 else "text")] for index, line in enumerate(lines)
        ]
        answers: list[Piece] = [
            ("y", "key"),
            *([(" ", "text"), ("↵", "key")] if free else []),
            (" yes   ", "text"),
        ]
        for key, words, _ in more:
            answers += [(key, "key"), (f" {words}   ", "text")]
        answers += [("n", "key"), (" no", "text")]
        question.append(answers)
        keys = {"y": yes, **({"enter": yes, "↵": yes} if free else {}), **{key: run for key, _, run in more}}
        self.prompt.ask_key(question, keys, gave_up=lambda: self.say("nothing was done", "muted", seconds=2))

    def ask_export(self, session_id: str, name: str) -> None:
        """Ask in which form to export a session. `name` is sanitised."""
        from watchkeeper_tui.control import FORMS

        folder = Path.cwd()
        answers: list[Piece] = []
        for key, (form, words) in FORMS.items():
            enter: list[Piece] = [(" ", "text"), ("↵", "key")] if form == _USUAL_FORM else []
            answers += [(key, "key"), *enter, (f" {words}   ", "text")]
        answers += [("esc", "key"), (" cancel", "text")]
        question: list[list[Piece]] = [
            [
                ("Export ", "strong"),
                (clip(name, 60), "strong"),
                (f"   to {clip(sanitize(str(folder)), 60)}", "muted"),
            ],
            answers,
        ]

        def start(form: str) -> Callable[[], None]:
            return lambda: self.export_session(session_id, form)

        keys = {key: start(form) for key, (form, _) in FORMS.items()}
        self.prompt.ask_key(question, keys | dict.fromkeys(("enter", "↵"), start(_USUAL_FORM)))

    def export_session(self, session_id: str, form: str) -> None:
        """Begin to export, as `form` (the usual one where nothing was typed), into the folder where the dashboard
        was started."""
        from watchkeeper_tui.control import FORMS

        known = [name for name, _ in FORMS.values()]
        form = form or _USUAL_FORM
        if form not in known:
            self.say(f"/export takes {', '.join(known[:-1])} or {known[-1]}", "failed")
            return
        self.say(f"exporting {sanitize(session_id)} as {form} …", "muted", seconds=600)
        self.run_worker(self._export(session_id, form), exit_on_error=False, group="export")

    async def _export(self, session_id: str, form: str) -> None:
        from watchkeeper_tui.control import export

        try:
            done = await export(self.watch_app.database_path, session_id, form, Path.cwd())
            problem = done.problem
        except (OSError, ValueError, KeyError) as error:
            problem = str(error)
        if not self.is_usable:
            return
        if problem:
            self.say(f"✗ not exported: {self.trouble(problem)}", "failed", seconds=EXPORT_NOTICE_SECONDS)
            return
        took = f", {formatting.plural(done.redacted, 'secret')} removed" if done.redacted else ""
        path = Path(done.path)
        said = f"✓ {sanitize(path.name)}  {done.bytes:,} bytes{took}  in {sanitize(str(path.parent))}"
        self.say(said, "done", seconds=EXPORT_NOTICE_SECONDS)


class PageScreen(WatchScreen):
    """One subject over the whole screen. A subclass says what it shows, in words and keys; `esc` goes back."""

    PLACE: ClassVar[str] = ""
    """What the path calls it."""

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        return (Crumb(self.PLACE, "", self.PLACE),)

    def compose(self) -> ComposeResult:
        yield PathLine()
        yield from self.body()
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def body(self) -> ComposeResult:
        """What is between the top of the screen and its last lines."""
        raise NotImplementedError

    def heading(self) -> tuple[Widget, Sequence[Piece]] | None:
        """The widget that has the title, and the title."""
        return None

    def keys(self) -> Sequence[KeyHint]:
        """What can be done now; going back and help are added."""
        raise NotImplementedError

    def copied(self) -> str:
        """What `y` copies."""
        return ""

    def tick(self, now: float) -> None:
        self.draw_path()
        if (heading := self.heading()) is not None:
            set_title(*heading, self.watch_app.palette)
        self.query_one(StatusLine).pieces = tuple(self.notice(now) or self.standing(now))
        self.show_keys((*self.keys(), KeyHint("esc", "Back", "back"), KeyHint("?", "Help", "help")))

    def redraw_edges(self) -> None:
        """Draw the title, the status line and the keys again."""
        self.tick(self.watch_app.now())

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        self.redraw_edges()

    def action_copy(self) -> None:
        if text := self.copied():
            self.watch_app.copy_text(text)
            self.say("copied the line", "done", seconds=3)

    def action_back(self) -> None:
        self.app.pop_screen()


class ReadingScreen(PageScreen):
    """A page over an answer of the reader, which is asked when the page opens, and again when something has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.read_seconds = 1.0
        """From one reading to the next, at least."""
        self._read_at = -math.inf
        self._asked: Callable[[Connection], Any] | None = None
        """What the reader has not answered yet."""

    def question(self) -> Callable[[Connection], Any]:
        """What to ask. It runs in the reader's thread: it must not touch the screen."""
        raise NotImplementedError

    def arrived(self, answer: Any) -> None:
        """Show the answer to the newest question."""
        raise NotImplementedError

    def failed(self) -> None:
        """There is no answer; the user has read why."""
        self._asked = None

    def on_mount(self) -> None:
        self.read()

    @property
    def has_changed(self) -> bool:
        """Whether a new reading may have another answer."""
        return self.watch_app.snapshot.read_at > self._read_at

    def tick(self, now: float) -> None:
        is_fresh = 0 <= now - self._read_at < self.read_seconds
        if self._asked is None and not is_fresh and self.has_changed:
            self.read()
        super().tick(now)

    def read(self) -> None:
        """Ask now; an older question is not answered any more."""
        self._read_at = self.watch_app.now()
        self._asked = asked = self.question()

        def arrived(answer: Any) -> None:
            if asked is self._asked:
                self._asked = None
                self.arrived(answer)
                self.redraw_edges()

        self.ask(asked, arrived, self.failed)


PANES = ("plan", "events", "agent", "compaction")
"""Ids of the panes, by their number."""


class SessionScreen(WatchScreen):
    """Four panes over one session, as many of them in sight as there is room for: all, the plan and one below
    it, or one alone."""

    # Instance variables of the base class, so no ClassVar.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (170, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-tiny"), (14, "-low"), (20, "-tall")]  # noqa: RUF012

    snapshot: var[Snapshot] = var(Snapshot(), init=False, always_update=True)
    """What is shown: the reader's newest, the one that was frozen, or a moment of a recording."""

    lower = "agent"
    """The pane below the plan on a narrow screen."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster()
        """The agents of what is shown, counted by state."""

    @property
    def plan(self) -> PlanView:
        return self.query_one(PlanView)

    @property
    def agent_pane(self) -> AgentPane:
        return self.query_one(AgentPane)

    @property
    def events(self) -> EventsView:
        return self.query_one(EventsView)

    @property
    def compactions(self) -> CompactionView:
        return self.query_one(CompactionView)

    # What is shown.

    def draw(self, now: float, *, aged: bool = False) -> None:
        """Show the snapshot in the panes as of `now`. `aged`: only time has passed since they were drawn."""
        snapshot, roster = self.snapshot, self.roster
        if snapshot.problem:
            now = snapshot.read_at  # what happened since is unknown
        roster.update(snapshot, now)
        self.plan.update(snapshot, now)
        self.choose_row()
        if not aged:
            self.events.update(snapshot.events, roster.names)
        self.compactions.update(snapshot, roster, now)
        self.draw_agent(now)
        self.draw_chips()

    def draw_agent(self, now: float) -> None:
        """Show the agent, or the task without one, whose row is selected."""
        chosen = self.plan.selected
        agent_id = chosen.agent.id if chosen is not None and chosen.agent is not None else None
        task = chosen.task if chosen is not None and agent_id is None else None
        self.look_at(agent_id)
        self.agent_pane.update(self.snapshot, agent_id, now, task_id=task.id if task is not None else None)

    def redraw(self) -> None:
        """Draw what is shown again, after something that the user did."""
        raise NotImplementedError

    def choose_row(self) -> None:
        """Select the row that is to be selected in a plan that has changed."""

    def look_at(self, agent_id: str | None) -> None:
        """This agent's detail is wanted."""

    def action_fold(self, fold: bool) -> None:
        row = self.plan.selected
        if row is not None and row.expandable:
            self.plan.collapsed = self.plan.collapsed | {row.id} if fold else self.plan.collapsed - {row.id}
            self.redraw()

    # Filters.

    def action_filter(self) -> None:
        """Filter the plan or the events by words, or search the transcript."""
        pane = self.active_pane if self.active_pane in ("plan", "events", "agent") else "plan"
        before = self._words_of(pane)
        what = {"plan": "Filter the plan", "events": "Filter events", "agent": "Search the transcript"}[pane]
        if pane == "agent":
            self.agent_pane.open_tab(1)
        hint = {
            "plan": "words of names, states, models",
            "events": "words of an event's kind, its agent or its text",
            "agent": "text of messages, tool calls and results, verbatim",
        }[pane]
        question: list[list[Piece]] = [[(what, "strong"), (f"   {hint}", "muted")]]
        self.prompt.ask_line(
            question,
            lambda text: self._search(pane, text),
            kind=f"filter {pane}",
            value=before,
            changed=lambda text: self._search(pane, text),
            gave_up=lambda: self._search(pane, before),
            enter="Apply",
        )

    def _search(self, pane: str, words: str) -> None:
        if pane == "plan":
            self.plan.filter_words = words
        elif pane == "events":
            self.events.filter_words = words
        else:
            self.agent_pane.filter_words = words
        self.redraw()

    def _words_of(self, pane: str) -> str:
        """What the pane is filtered by."""
        words = {
            "plan": self.plan.filter_words,
            "events": self.events.filter_words,
            "agent": self.agent_pane.filter_words,
        }
        return words.get(pane, "")

    def filters(self) -> Sequence[Chip]:
        """Every word of the plan's and the events' filter, and what the transcript is searched for; those of the active pane
        last."""
        chips = [Chip(pane, word) for pane in ("plan", "events") for word in self._words_of(pane).split()]
        if self.agent_pane.filter_words:
            chips.append(Chip("agent", self.agent_pane.filter_words))
        return sorted(chips, key=lambda chip: chip.kind == self.active_pane)

    def drop_filter(self, chip: Chip) -> None:
        words = self._words_of(chip.kind).split()
        if chip.kind != "agent":
            words.remove(chip.text)
        self._search(chip.kind, "" if chip.kind == "agent" else " ".join(words))

    # Panes.

    @property
    def active_pane(self) -> str:
        """The pane that has the focus."""
        focused: Widget | None = self.focused
        while focused is not None:
            if focused.id in PANES:
                return str(focused.id)
            focused = focused.parent if isinstance(focused.parent, Widget) else None
        return "plan"

    def action_pane(self, name: str) -> None:
        if name != "plan":
            self.lower = name
        self._arrange(name)
        # At once, not after the next message: what follows asks which pane has the focus.
        self.set_focus(self.query_one("#page", PageView) if name == "agent" else self.query_one(f"#{name}"))

    def action_next_pane(self, step: int) -> None:
        order = ("plan", "agent", "events", "compaction")
        self.action_pane(order[(order.index(self.active_pane) + step) % len(order)])

    def action_zoom(self) -> None:
        name = self.active_pane
        self.toggle_class("-zoom")
        self._arrange(name)

    def on_resize(self) -> None:
        self.call_after_refresh(self._arrange)

    def _arrange(self, name: str | None = None) -> None:
        """Show the panes that there is room for."""
        name = name or self.active_pane
        if (
            self.has_class("-zoom")
            or self.size.height < 14
            or (self.size.width < 100 and self.size.height < 20)
        ):
            shown: tuple[str, ...] = (name,)
        elif self.size.width < 100:
            shown = ("plan", self.lower)
        else:
            shown = PANES
        for pane in PANES:
            self.query_one(f"#{pane}").set_class(pane not in shown, "-away")
        kept, styles = self.watch_app.layout_kept, self.query_one("#panes").styles
        for rule, percent, divided in (
            ("grid_columns", kept.split, shown == PANES),
            ("grid_rows", kept.rows, len(shown) > 1),
        ):
            if divided and SPLITS[0] <= percent <= SPLITS[1]:
                setattr(styles, rule, f"{percent}fr {100 - percent}fr")
            else:
                styles.clear_rule(rule)

    # Dividers.

    _dragged: frozenset[str] = frozenset()
    """The dividers that the mouse holds: `split` between left and right, `rows` between above and below."""

    @property
    def _dividers(self) -> frozenset[str]:
        """Those that are shown."""
        shown = sum(not self.query_one(f"#{pane}").has_class("-away") for pane in PANES)
        return frozenset({1: (), 2: ("rows",)}.get(shown, ("split", "rows")))

    def action_divide(self, divider: str, step: int) -> None:
        """Move a divider by so many per cent."""
        if divider not in self._dividers:
            self.say(
                "the divider moves where all four panes are shown: from 100 columns on, not zoomed"
                if divider == "split"
                else "the divider moves where panes are shown above each other: not zoomed",
                "muted",
            )
            return
        plan, panes = self.plan.outer_size, self.query_one("#panes").size
        part, whole = (plan.width, panes.width) if divider == "split" else (plan.height, panes.height)
        self._divide(divider, (getattr(self.watch_app.layout_kept, divider) or 100 * part / whole) + step)

    def _divide(self, divider: str, percent: float) -> None:
        self.watch_app.remember(**{divider: max(SPLITS[0], min(SPLITS[1], round(percent)))})
        self._arrange()

    def on_mouse_down(self, event: MouseDown) -> None:
        edges = {
            "split": event.screen_x - self.plan.region.right,
            "rows": event.screen_y - self.plan.region.bottom,
        }
        inside = self.query_one("#panes").region.contains(event.screen_x, event.screen_y)
        self._dragged = frozenset(name for name in self._dividers if inside and edges[name] in (-1, 0))

    def on_mouse_move(self, event: MouseMove) -> None:
        panes = self.query_one("#panes").region
        if "split" in self._dragged:
            self._divide("split", 100 * (event.screen_x - panes.x) / max(1, panes.width))
        if "rows" in self._dragged:
            self._divide("rows", 100 * (event.screen_y - panes.y) / max(1, panes.height))

    def on_mouse_up(self, event: MouseUp) -> None:
        self._dragged = frozenset()
