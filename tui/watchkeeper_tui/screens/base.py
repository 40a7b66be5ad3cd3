"""What every screen has: a header, a status line, the keys, and one place where questions are asked; the help; and the
panes that the live screen and the replay show a session in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.actions import parse as parse_action
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Container, Vertical
from textual.events import MouseDown, MouseMove, MouseUp
from textual.reactive import var
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.store.driver import Connection
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import (
    BY_ID,
    COMMANDS,
    EVERYWHERE,
    FORMS,
    PANES_OF,
    Action,
    CommandList,
    Group,
    Parsed,
    bindings,
    help_of,
    normal,
    paired,
    parse,
    possible,
    shown,
)
from watchkeeper_tui.pages import blank
from watchkeeper_tui.sanitize import clip, fit, sanitize, wrap
from watchkeeper_tui.settings import ONE_LINE, SPLITS
from watchkeeper_tui.snapshot import Roster, SessionState, Snapshot
from watchkeeper_tui.watch_app import WatchApp, watch_app
from watchkeeper_tui.widgets.agent import TRANSCRIPT, AgentPane, TranscriptPane
from watchkeeper_tui.widgets.bars import (
    CRAMPED,
    Chip,
    ChipLine,
    Clicked,
    Crumb,
    KeyHint,
    KeyLine,
    PaneName,
    PaneTabs,
    PathLine,
    Prompt,
    StatusLine,
)
from watchkeeper_tui.widgets.panes import CompactionLine, CompactionView, EventsView, PlanView
from watchkeeper_tui.widgets.rows import (
    Cell,
    Column,
    PageLine,
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


class SearchScreen(Screen[None]):
    """A screen whose lists and texts are searched as in `less`: `/` asks for words, `n` and `N` go from match to match, and
    `esc` ends the search."""

    sought = ""
    """What is searched for, as it was typed."""

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def searched(self) -> RowView[Any]:
        """The list or the text with the focus, or the first."""
        focused = self.focused
        return focused if isinstance(focused, RowView) else self.query(RowView).first()

    def say(self, text: str, role: str = "text", *, seconds: float = 0.0) -> None:
        """Show the user a notice. `text` must be sanitised."""
        raise NotImplementedError

    def clear_notice(self) -> None:
        """Show no notice any more."""
        raise NotImplementedError

    def on_opened(self) -> None:
        """A question opened at the foot of the screen."""
        self.clear_notice()

    def action_find(self) -> None:
        """Ask for words, and go to the first match; without words, to the next of those before."""
        next_key, previous_key = (watch_app(self).key_for(name) for name in ("next", "previous"))
        hint = f"   {next_key} and {previous_key} go to the next and the previous match"
        self.prompt.ask_line(
            [[("Find", "strong"), (hint, "muted")]], self._words_typed, kind="find", enter="Find"
        )

    @property
    def searched_part(self) -> str:
        """Where a search looks, if it is a part of what there is; as the end of a sentence."""
        return ""

    def _words_typed(self, text: str) -> None:
        words = text.strip()
        self.seek(words or self.sought)
        self.action_find_next(0 if words else 1)

    def seek(self, words: str) -> None:
        """Mark these words in every list and text of the screen; empty: end the search."""
        self.sought = words
        for view in self.query(RowView):
            view.mark(words.casefold())

    def action_find_next(self, step: int) -> None:
        """Go to the next match, to the one before, or (0) to the first from the cursor on."""
        if not self.sought:
            self.step_without_search(step)
            return
        has_wrapped = self.searched.find(step)
        if has_wrapped is None:
            self.say(
                f"no match for {clip(sanitize(self.sought), 60)}{self.searched_part}", "waiting", seconds=4
            )
        elif has_wrapped:
            self.say(f"search continued at the {'end' if step < 0 else 'top'}", "muted", seconds=4)
        else:
            self.clear_notice()

    def step_without_search(self, step: int) -> None:
        """What `n` and `N` do where nothing is searched for."""
        self.say(f"{watch_app(self).key_for('filter')} searches", "muted", seconds=3)

    def action_back(self) -> None:
        """End the search, or leave the screen."""
        if self.sought:
            self.seek("")
            self.clear_notice()
        else:
            self.app.pop_screen()


class TextDialog(ModalScreen[None], SearchScreen):
    """A long text over the screen. `esc` leads back there."""

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("help"),
        Binding("escape", "back", "Back", show=False),
        Binding("q", "dismiss", "Close", show=False),
    ]
    DEFAULT_CSS = """
    TextDialog { align: center middle; }
    TextDialog Prompt, TextDialog StatusLine { dock: bottom; }
    """

    def compose(self) -> ComposeResult:
        yield self.text()
        yield Prompt()
        yield StatusLine()

    def text(self) -> RowView[PageLine]:
        """The view of the text."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.clear_notice()

    def say(self, text: str, role: str = "text", *, seconds: float = 0.0) -> None:
        line = self.query_one(StatusLine)
        line.pieces, line.display = ((text, role),), True

    def clear_notice(self) -> None:
        self.query_one(StatusLine).display = False


class HelpScreen(TextDialog):
    """Any of its closing keys brings back what was there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,enter", "dismiss", "Close", show=False),
    ]

    def __init__(
        self, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]], *, title: str = "Help"
    ) -> None:
        """Titles, each with keys and their words. Sanitised."""
        super().__init__()
        self._groups, self._title = groups, title

    def text(self) -> RowView[PageLine]:
        return _Lines()

    def on_mount(self) -> None:
        view = self.query_one(_Lines)
        self._write()
        view.border_title = content([(self._title, "strong")], view.watch_app.palette)
        view.border_subtitle = content(
            [("j/k scroll · / find · esc closes", "muted")], view.watch_app.palette
        )
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


NOTICE_SECONDS = 6.0
EXPORT_NOTICE_SECONDS = 30.0
_USUAL_FORM = "html"
"""The form of an export."""


class WatchScreen(SearchScreen):
    """The common part. A subclass lays out its widgets and follows the newest snapshot."""

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy")]  # noqa: RUF012

    SCOPE: ClassVar[str] = ""
    """What the table of actions calls it."""
    BINDINGS: ClassVar[list[BindingType]] = bindings(EVERYWHERE)

    def __init__(self) -> None:
        super().__init__()
        self._notice: tuple[Piece, ...] = ()
        self._notice_beside = False
        self._notice_until = 0.0

    @property
    def watch_app(self) -> WatchApp:
        return watch_app(self)

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

    def clear_notice(self) -> None:
        self._notice_until = 0.0
        self.tick(self.watch_app.now())

    def seek(self, words: str) -> None:
        super().seek(words)
        self.show_keys()

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
            self.say("no filter is active", "muted", seconds=3)

    def on_chip_line_dropped(self, event: ChipLine.Dropped) -> None:
        self.drop_filter(event.chip)

    # Where the user is.

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        """What this screen adds to the path, the widest first; `sessions` begins another one."""
        return ()

    def path(self) -> list[Crumb]:
        """By which screens the user came here."""
        path: list[Crumb] = []
        stack = self.app.screen_stack
        for depth, screen in enumerate(stack[: stack.index(self) + 1] if self in stack else ()):
            for crumb in screen.crumbs if isinstance(screen, WatchScreen) else ():
                if crumb.kind == "list":
                    path.clear()
                same = next((each for each in reversed(path) if each.kind == crumb.kind), None)
                if crumb.kind not in ("session", "agent") or same is None or same.id != crumb.id:
                    path.append(replace(crumb, depth=depth))
        return path

    def draw_path(self) -> None:
        """Show by which screens the user came here."""
        self.query_one(PathLine).crumbs = tuple(self.path())

    def whereabouts(self) -> tuple[str, ...]:
        """Where the user is, from the outside in: hostile words."""
        return tuple(crumb.text for crumb in self.path())

    def on_path_line_chosen(self, event: PathLine.Chosen) -> None:
        """Go back to a screen of the path."""
        target = self.app.screen_stack[event.depth]
        while self.app.screen is not target:
            self.app.pop_screen()

    # What can be done here: the table of actions, as this screen has it.

    @property
    def scopes(self) -> tuple[str, ...]:
        """The screens and panes of the table that are active, the innermost first."""
        pane = getattr(self.focused, "SCOPE", "") or getattr(
            getattr(self.focused, "parent", None), "SCOPE", ""
        )
        inner = (pane,) if pane in PANES_OF.get(self.SCOPE, ()) else ()
        return (*inner, self.SCOPE, EVERYWHERE, *(() if self.SCOPE in FORMS else ("rows",)))

    @property
    def footer(self) -> str:
        """Which footer of the table this screen has now."""
        return self.SCOPE

    def label_of(self, action: Action) -> str:
        """What an action is called here, now."""
        is_search = action.id == "back" and self.sought
        return "End search" if is_search else action.said(self.scopes).label

    def why_not(self, action: Action) -> str:
        """Why an action is not possible here, now; empty if it is."""
        return ""

    def footer_actions(self) -> Sequence[Action]:
        """What the footer shows, the most important first; the last two stay where there is little room."""
        return [
            each for each in possible(self.scopes) if each.footer == "*" or self.footer in each.footer.split()
        ]

    def show_keys(self) -> None:
        """Show in the footer what can be done now, by the user's own keys."""
        hints = []
        for line in paired(self.footer_actions()):
            keys = [self.watch_app.user_keys.of(each) for each in line]
            labels = [self.label_of(line[0]), *(each.said(self.scopes).label.lower() for each in line[1:])]
            back = len(line) == 2 and line[0].call.endswith("(-1)")
            hints.append(
                KeyHint(
                    " ".join(shown(each) for each in keys if each),
                    ", ".join(filter(None, labels)),
                    next(iter(normal(keys[-1 if back else 0])), ""),
                    line[0].said(self.scopes).help,
                    self.why_not(line[0]),
                    line[0].group == EVERYWHERE,
                )
            )
        self.query_one(KeyLine).hints = tuple(hints)

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """What the footer shows."""
        return self.query_one(KeyLine).bindings

    def on_clicked(self, event: Clicked) -> None:
        self.call_later(self.call, event.call)

    def do(self, action: Action, text: str = "") -> None:
        """Do what a row of the table says. `text` follows its command."""
        if text and action.acts:
            self.act(action.id, text)
        else:
            self.call(action.said(self.scopes).call, *((text,) if text else ()))

    def call(self, call: str, *more: str) -> None:
        """Call an action of this screen, of the pane with the focus or of the application."""
        _, name, arguments = parse_action(call)
        owners = (self, *(self.focused.ancestors_with_self if self.focused is not None else ()), self.app)
        method = next(
            (found for owner in owners if (found := getattr(owner, f"action_{name}", None)) is not None), None
        )
        if method is not None:
            self.call_later(method, *arguments, *more)

    def act(self, name: str, text: str = "") -> None:
        """Begin what writes commands; on a screen that shows no run, say so."""
        self.say(f":{BY_ID[name].words} works only on the live screen", "muted")

    def action_usage(self) -> None:
        self.watch_app.open_usage()

    def action_fleet(self) -> None:
        self.watch_app.open_fleet()

    def action_sessions(self, words: str = "") -> None:
        self.watch_app.open_sessions(words)

    def action_load(self, name: str = "") -> None:
        """Resume this session, or another, from its last step."""
        if name:
            self.watch_app.load_session(name)
        else:
            self.act("resume")

    def action_theme(self, name: str = "") -> None:
        self.say(*self.watch_app.choose_theme(name))

    def action_start(self, goal: str = "") -> None:
        """Ask for what a new run needs."""
        self.watch_app.open_start(goal=goal)

    # The command bar.

    def action_command_bar(self, value: str = "") -> None:
        """Ask for a command. All are listed; what is typed filters them, and arrows choose one."""
        scopes = self.scopes
        listed = CommandList(value, scopes)

        def changed(text: str) -> None:
            nonlocal listed
            listed = CommandList(text, scopes)
            self.prompt.reword(self._command_lines(listed))

        def moved(step: int) -> bool:
            has_moved = listed.move(step)
            self.prompt.reword(self._command_lines(listed))
            return has_moved

        def typed(text: str) -> None:
            if listed.chosen is not None:
                if listed.chosen.needs_argument:
                    self.action_command_bar(f":{listed.chosen.words} ")
                    return
                text = listed.chosen.words
            parsed = parse(text)
            if parsed.action is None:
                if parsed.problem:
                    self.say(parsed.problem, "failed")
                return
            self.run_command(parsed)

        self.prompt.ask_line(
            self._command_lines(listed),
            typed,
            kind="command",
            value=value or ":",
            changed=changed,
            enter="Run",
            moved=moved,
        )

    def _command_lines(self, listed: CommandList) -> list[list[Piece]]:
        """The commands that there is room for, the chosen one marked."""
        if not listed.matching:
            return [[("unknown command; ? lists all commands", "failed")]]
        window = listed.window(max(1, int(self.size.height * 0.7) - 4))
        is_wide = self.size.width >= WIDE
        name_cells = max(len(each.words) for each in COMMANDS) + 2 if is_wide else 15
        argument_cells = max(len(each.argument) for each in COMMANDS) if is_wide else 14
        lines: list[list[Piece]] = [
            [
                ("▸ " if place == listed.place else "  ", "accent"),
                (f":{each.words} ".ljust(name_cells), "key"),
                (f"{each.argument:<{argument_cells}} ", "muted"),
                (each.said(self.scopes).help, "strong" if place == listed.place else "text"),
            ]
            for place, each in ((place, listed.matching[place]) for place in window)
        ]
        above, below = window.start, len(listed.matching) - window.stop
        if above or below:
            lines.append([(f"  ↑ {above} above  ↓ {below} below   arrows select, typing filters", "faint")])
        return [clip_pieces(line, max(10, self.size.width - 3)) for line in lines]

    def run_command(self, parsed: Parsed) -> None:
        """Do what was typed in the command bar."""
        assert parsed.action is not None
        if parsed.action in possible(self.scopes):
            self.do(parsed.action, parsed.argument or (_USUAL_FORM if parsed.action.id == "export" else ""))
        else:
            self.say(f":{parsed.action.words} works only on the live screen", "muted")

    def action_replay(self) -> None:
        """The open session as it was, step by step."""
        session = self.watch_app.snapshot.session
        if session is None:
            self.say("no session is open; s lists sessions", "muted")
        else:
            self.watch_app.open_replay(session.id)

    # Help, and leaving.

    def legend(self) -> list[Group]:
        """What the help explains beside the keys: glyphs, fields."""
        return []

    @property
    def help_pane(self) -> str:
        """The pane whose keys come first in the help."""
        return ""

    def help_groups(self) -> list[Group]:
        """Titles, each with keys and what they do."""
        return help_of(self.scopes, self.watch_app.user_keys, self.help_pane, self.not_ours)

    @property
    def not_ours(self) -> str:
        """Why nothing that acts on a run works here; empty if it does."""
        return ""

    def action_help(self) -> None:
        changes = self.watch_app.user_keys.changes
        mine = [("Your keys", [*changes])] if changes else []
        *keys, commands = self.help_groups()
        self.app.push_screen(HelpScreen([*mine, *keys, *self.legend(), commands]))

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
        self.prompt.ask_key(question, keys, gave_up=lambda: self.say("nothing done", "muted", seconds=2))

    def ask_export(self, session_id: str, name: str) -> None:
        """Ask in which form to export a session. `name` is sanitised."""
        from watchkeeper_tui.control import FORMS, start_folder

        folder = start_folder()
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
            self.say(f":export takes {', '.join(known[:-1])} or {known[-1]}", "failed")
            return
        self.say(f"exporting {sanitize(session_id)} as {form} …", "muted", seconds=600)
        self.run_worker(self._export(session_id, form), exit_on_error=False, group="export")

    async def _export(self, session_id: str, form: str) -> None:
        from watchkeeper_tui.control import export, start_folder

        try:
            done = await export(self.watch_app.database_path, session_id, form, start_folder())
            problem = done.problem
        except (OSError, ValueError, KeyError) as error:
            problem = str(error)
        if not self.is_usable:
            return
        if problem:
            self.say(f"✗ export failed: {self.trouble(problem)}", "failed", seconds=EXPORT_NOTICE_SECONDS)
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

    def copied(self) -> str:
        """What `y` copies."""
        return ""

    def tick(self, now: float) -> None:
        self.draw_path()
        if (heading := self.heading()) is not None:
            set_title(*heading, self.watch_app.palette)
        self.query_one(StatusLine).pieces = tuple(self.notice(now) or self.standing(now))
        self.show_keys()

    def redraw_edges(self) -> None:
        """Draw the title, the status line and the keys again."""
        self.tick(self.watch_app.now())

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        self.redraw_edges()

    def action_copy(self) -> None:
        if text := self.copied():
            self.watch_app.copy_text(text)
            self.say("copied the line", "done", seconds=3)


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


PANES = ("plan", "events", "agent", "compaction", "transcript")
"""Ids of the panes, by their number."""
THIRD_COLUMN = 180
"""From so many columns on, the transcript has a column of its own."""
UPPER, LEFT, LEFT_OF_THREE, THIRD, PASSES = 56, 50, 48, 33, 36
"""Per cent, unless the user pinned another size: of the height for the upper panes; of the two left columns for the first;
of the width for the third column; of the lower height for the compaction pane."""
LEAST_PASSES = 20
"""Smaller than so many per cent, the compaction pane is one line."""


class SessionScreen(WatchScreen):
    """The panes over one session, as many of them in sight as there is room for: all, the plan and one below
    it, or one alone."""

    # Instance variables of the base class, so no ClassVar.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
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
    def transcript(self) -> TranscriptPane:
        return self.query_one(TranscriptPane)

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
        self._open_passes()
        self.draw_agent(now)
        self.draw_chips()

    def draw_agent(self, now: float) -> None:
        """Show the agent, or the task without one, whose row is selected."""
        chosen = self.plan.selected
        agent_id = chosen.agent.id if chosen is not None and chosen.agent is not None else None
        task = chosen.task if chosen is not None and agent_id is None else None
        self.look_at(agent_id)
        self.agent_pane.update(self.snapshot, agent_id, now, task_id=task.id if task is not None else None)
        self._fill_third()

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
        pane = self.active_pane if self.active_pane in ("plan", "events", "agent", "transcript") else "plan"
        before = self._words_of(pane)
        what = {"plan": "Filter the plan", "events": "Filter events"}.get(pane, "Search the transcript")
        if pane in ("agent", "transcript"):
            self.action_pane("transcript")
            pane = self.active_pane
        hint = {
            "plan": "names, states or models",
            "events": "event kind, agent or text",
        }.get(pane, "text of messages, tool calls and results")
        question: list[list[Piece]] = [[(what, "strong"), (f"   {hint}", "muted")]]
        self.prompt.ask_line(
            question,
            lambda text: self._apply(pane, text),
            kind=f"filter {pane}",
            value=before,
            changed=lambda text: self._search(pane, text),
            gave_up=lambda: self._search(pane, before),
            enter="Apply",
        )

    def _apply(self, pane: str, words: str) -> None:
        """Filter or search the pane, and remember a filter."""
        self._search(pane, words)
        self.filter_applied(pane, words)

    def filter_applied(self, pane: str, words: str) -> None:
        """The user has chosen or removed the filter of a pane, or a search."""

    def _search(self, pane: str, words: str) -> None:
        if pane == "plan":
            self.plan.filter_words = words
        elif pane == "events":
            self.events.filter_words = words
        elif pane == "transcript":
            self.transcript.filter_words = words
        else:
            self.agent_pane.filter_words = words
        self.redraw()

    def _words_of(self, pane: str) -> str:
        """What the pane is filtered by."""
        words = {
            "plan": self.plan.filter_words,
            "events": self.events.filter_words,
            "agent": self.agent_pane.filter_words,
            "transcript": self.transcript.filter_words,
        }
        return words.get(pane, "")

    def filters(self) -> Sequence[Chip]:
        """Every word of the plan's and the events' filter, and what the transcript is searched for; those of the active pane
        last."""
        chips = [Chip(pane, word) for pane in ("plan", "events") for word in self._words_of(pane).split()]
        chips += [Chip(pane, words) for pane in ("agent", "transcript") if (words := self._words_of(pane))]
        return sorted(chips, key=lambda chip: chip.kind == self.active_pane)

    def drop_filter(self, chip: Chip) -> None:
        words = self._words_of(chip.kind).split()
        if chip.kind in ("plan", "events"):
            words.remove(chip.text)
        self._apply(chip.kind, " ".join(words) if chip.kind in ("plan", "events") else "")

    # Panes.

    @staticmethod
    def panes(
        plan: PlanView,
        agent: AgentPane,
        transcript: TranscriptPane,
        events: EventsView,
        compactions: CompactionView,
    ) -> ComposeResult:
        """What is between the header and the last lines."""
        yield PaneTabs()
        with Container(id="panes"):
            yield plan
            yield agent
            yield transcript
            with Vertical(id="lower"):
                yield events
                yield CompactionLine()
                yield compactions

    @property
    def active_pane(self) -> str:
        """The pane that has the focus."""
        focused: Widget | None = self.focused
        while focused is not None:
            if focused.id in PANES:
                return str(focused.id)
            focused = focused.parent if isinstance(focused.parent, Widget) else None
        return "plan"

    @property
    def searchable(self) -> AgentPane:
        """The pane that has the transcript: that of the agent, unless the transcript has a column of its own."""
        beside = self.transcript
        return beside if beside.tab == TRANSCRIPT and not beside.has_class("-away") else self.agent_pane

    def action_pane(self, name: str) -> None:
        if name == "transcript" and self.searchable is self.agent_pane:
            self.agent_pane.open_tab(TRANSCRIPT)
            name = "agent"
        if name != "plan":
            self.lower = name
        self._arrange(name)
        # At once, not after the next message: what follows asks which pane has the focus.
        pane = self.query_one(f"#{name}")
        self.set_focus(pane.page if isinstance(pane, AgentPane) else pane)

    def action_next_pane(self, step: int) -> None:
        order = ["plan", "agent", "transcript", "events", "compaction"]
        if self.size.width < THIRD_COLUMN:
            order.remove("transcript")
        self.action_pane(order[(order.index(self.active_pane) + step) % len(order)])

    def on_transcript_pane_tab_wanted(self, event: TranscriptPane.TabWanted) -> None:
        self.agent_pane.open_tab(event.index)
        self.action_pane("agent")

    _opened_from = ""
    """The pane from which the agent was opened over the whole screen."""

    def open_agent(self) -> None:
        """Go to the agent pane, over the whole screen."""
        before = self.active_pane
        self.action_pane("agent")
        if not self.has_class("-zoom") and not self.has_one_pane:
            self.action_zoom()
            self._opened_from = before

    def leave_zoom(self) -> None:
        """Show all panes again, and go back to the pane from which the agent was opened."""
        before = self._opened_from
        self.action_zoom()
        if before:
            self.action_pane(before)

    def action_zoom(self) -> None:
        name, self._opened_from = self.active_pane, ""
        self.toggle_class("-zoom")
        self._arrange(name)

    def on_resize(self) -> None:
        self.call_after_refresh(self._arrange)

    def on_descendant_focus(self) -> None:
        # The compaction pane is open while it has the focus.
        if self.is_usable:
            self._arrange()

    @property
    def has_one_pane(self) -> bool:
        """Whether there is room for one pane at a time."""
        return self.size.height < 14 or (self.size.width < 100 and self.size.height < 30)

    def _arrange(self, name: str | None = None) -> None:
        """Show the panes that there is room for, each in its size."""
        name = name or self.active_pane
        width, height = self.size
        has_third = width >= THIRD_COLUMN
        if name == "transcript" and not has_third:
            name = "agent"
        passes_open = self._passes_are_open(name)
        if self.has_class("-zoom") or self.has_one_pane:
            shown = {name}
        elif width < 100:
            shown = {"plan", self.lower if self.lower != "transcript" else "agent"}
        else:
            shown = {"plan", "agent", *(("transcript",) if has_third else ())}
            # Where there is little room, one of the two lower panes is shown.
            is_low = height < 20
            shown |= {"compaction"} if is_low and name == "compaction" else {"events"}
            shown |= {"compaction"} if passes_open and not is_low else set()
        for pane in PANES:
            self.query_one(f"#{pane}").set_class(pane not in shown, "-away")
        self.query_one("#lower").set_class(not shown & {"events", "compaction"}, "-away")
        self.query_one(CompactionLine).set_class(len(shown) < 3 or "compaction" in shown, "-away")
        if name == "agent" and self.active_pane == "transcript":
            self.set_focus(self.agent_pane.page)
        self._give_sizes(shown)
        self._name_panes(shown, name)
        self._fill_third()

    def _give_sizes(self, shown: set[str]) -> None:
        """Give each of these panes its size: the one that the user pinned, or the usual one."""
        kept, panes = self.watch_app.layout_kept, self.query_one("#panes")

        def share(pinned: int, usual: int) -> int:
            return pinned if SPLITS[0] <= pinned <= SPLITS[1] else usual

        upper = share(kept.rows, UPPER)
        columns = [100]
        if "transcript" in shown and len(shown) > 1:
            third, left = share(kept.third, THIRD), share(kept.split, LEFT_OF_THREE)
            columns = [left * (100 - third), (100 - left) * (100 - third), third * 100]
        elif {"plan", "agent", "events"} <= shown or {"plan", "agent", "compaction"} <= shown:
            left = share(kept.split, LEFT)
            columns = [left, 100 - left]
        rows = [upper, 100 - upper] if len(shown) > 1 else [100]
        panes.styles.grid_size_columns, panes.styles.grid_size_rows = len(columns), len(rows)
        panes.styles.grid_columns = " ".join(f"{part}fr" for part in columns)
        panes.styles.grid_rows = " ".join(f"{part}fr" for part in rows)
        self.query_one("#lower").styles.column_span = min(2, len(columns))
        self.transcript.styles.row_span = len(rows)
        passes = kept.compaction if LEAST_PASSES <= kept.compaction <= SPLITS[1] else PASSES
        self.events.styles.height, self.compactions.styles.height = f"{100 - passes}fr", f"{passes}fr"

    def _name_panes(self, shown: set[str], name: str) -> None:
        """Name the panes that the user can go to, where only some are shown."""
        tabs: list[PaneName] = []
        if len(shown) < 3 and self.size.height >= 14:
            names = ("plan", "events", "agent", "compaction")
            tabs = [
                PaneName(
                    each,
                    self._pane_key(each),
                    each.title(),
                    is_open=each == (name if name in names else "agent"),
                )
                for each in names
            ]
        self.query_one(PaneTabs).panes = tuple(tabs)

    def _pane_key(self, name: str) -> str:
        """The key that leads to a pane; empty where there is none."""
        return self.watch_app.key_for(f"pane.{name}")

    def _fill_third(self) -> None:
        """Show the agent in the third column too."""
        beside, pane = self.transcript, self.agent_pane
        if not beside.has_class("-away") and pane.is_mounted:
            beside.update_as(pane)

    # The compaction pane.

    _passes_of = ""
    """The session whose compaction pane has opened."""

    def _passes_are_open(self, name: str) -> bool:
        session = self.snapshot.session
        pinned = self.watch_app.layout_kept.compaction
        is_begun = session is not None and self._passes_of == session.id
        return name == "compaction" or (pinned != ONE_LINE and (is_begun or pinned >= LEAST_PASSES))

    @property
    def _is_reading(self) -> bool:
        """Whether the user reads in the pane beside, or types: then nothing moves."""
        return self.prompt.is_asking or self.active_pane == "events" or not self.events.following

    def _open_passes(self) -> None:
        """Open the compaction pane when a compaction begins or is due; from then on it stays for the session."""
        session = self.snapshot.session
        begun = bool(self.snapshot.compactions) or self.compactions.is_due
        if session is not None and self._passes_of != session.id and (not begun or not self._is_reading):
            was, self._passes_of = self._passes_of, session.id if begun else ""
            if was != self._passes_of:
                self._arrange()
        self.query_one(CompactionLine).pieces = tuple(self.compactions.line())

    # Dividers.

    _dragged: frozenset[str] = frozenset()
    """The dividers that the mouse holds: `split` and `third` between columns, `rows` and `compaction` between panes above
    and below."""

    @property
    def _dividers(self) -> frozenset[str]:
        """Those that are shown."""
        away = {pane for pane in PANES if self.query_one(f"#{pane}").has_class("-away")}
        shown = len(PANES) - len(away)
        if shown < 3:
            return frozenset({"rows"} if shown == 2 else ())
        more = {"third"} - ({"third"} if "transcript" in away else set())
        return frozenset({"split", "rows", "compaction", *more})

    def action_divide(self, divider: str, step: int) -> None:
        """Move a divider of the pane that has the focus by so many per cent. That pins the sizes of the panes beside it."""
        divider = {("split", "transcript"): "third", ("rows", "compaction"): "compaction"}.get(
            (divider, self.active_pane), divider
        )
        if divider not in self._dividers:
            self.say("this divider is hidden: a pane beside it is not shown", "muted")
            return
        panes, plan, agent = self.query_one("#panes").size, self.plan.outer_size, self.agent_pane.outer_size
        part, whole = {
            "split": (plan.width, plan.width + agent.width),
            "third": (self.transcript.outer_size.width, panes.width),
            "rows": (plan.height, panes.height),
            "compaction": (self.compactions.outer_size.height, self.query_one("#lower").size.height),
        }[divider]
        grows = -1 if divider in ("third", "compaction") else 1
        kept = getattr(self.watch_app.layout_kept, divider)
        self._divide(divider, (kept if kept > ONE_LINE else 100 * part / max(1, whole)) + grows * step)

    def _divide(self, divider: str, percent: float) -> None:
        if divider == "compaction" and percent < LEAST_PASSES:
            self.watch_app.remember(compaction=ONE_LINE)
            if self.active_pane == "compaction":
                self.action_pane("events")
        else:
            least = LEAST_PASSES if divider == "compaction" else SPLITS[0]
            self.watch_app.remember(**{divider: max(least, min(SPLITS[1], round(percent)))})
        self._arrange()

    def action_reset_layout(self) -> None:
        """Let every pane have its usual size again."""
        self.watch_app.remember(split=0, rows=0, third=0, compaction=0)
        self._arrange()
        self.say("panes reset to default sizes", "muted", seconds=3)

    def on_mouse_down(self, event: MouseDown) -> None:
        x, y = event.screen_x, event.screen_y
        below = (
            self.compactions if not self.compactions.has_class("-away") else self.query_one(CompactionLine)
        )
        edges = {
            "split": (x - self.plan.region.right, self.plan.region.y <= y <= self.plan.region.bottom),
            "third": (x - self.transcript.region.x, True),
            "rows": (y - self.plan.region.bottom, x < self.agent_pane.region.right),
            "compaction": (y - below.region.y, below is self.compactions and x < below.region.right),
        }
        inside = self.query_one("#panes").region.contains(x, y)
        self._dragged = frozenset(
            name for name in self._dividers if inside and edges[name][0] in (-1, 0) and edges[name][1]
        )

    def on_mouse_move(self, event: MouseMove) -> None:
        panes, lower = self.query_one("#panes").region, self.query_one("#lower").region
        x, y = event.screen_x, event.screen_y
        if "split" in self._dragged:
            two = self.agent_pane.region.right - panes.x
            self._divide("split", 100 * (x - panes.x) / max(1, two))
        if "third" in self._dragged:
            self._divide("third", 100 * (panes.right - x) / max(1, panes.width))
        if "rows" in self._dragged:
            self._divide("rows", 100 * (y - panes.y) / max(1, panes.height))
        if "compaction" in self._dragged:
            self._divide("compaction", 100 * (lower.bottom - y) / max(1, lower.height))

    def on_mouse_up(self, event: MouseUp) -> None:
        self._dragged = frozenset()
