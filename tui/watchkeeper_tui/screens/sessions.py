"""Every session: found by words and filters, opened, named, forked, compared, exported, deleted with a way
back."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from watchkeeper.records.errors import BadInput
from watchkeeper.store.driver import Connection
from watchkeeper.store.search.sessions import ORDERS, MessageHit, SessionLine, parse_filters
from watchkeeper_tui import formatting
from watchkeeper_tui.finding import BEST_MATCH, Listed, find_sessions
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.screens.filtering import Filtering
from watchkeeper_tui.screens.keeping import Keeping
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.cells import Piece, set_title
from watchkeeper_tui.widgets.prompt import Prompt
from watchkeeper_tui.widgets.rows import RowView
from watchkeeper_tui.widgets.sessions import DeletedLine, HitPane, HitPlace, SessionsView
from watchkeeper_tui.widgets.status import KeyHint, KeyLine, StatusLine

REFRESH_SECONDS = 2.0
SESSIONS_AT_ONCE = 1_000
"""How many the list shows at first; more are read when the selection comes near its end."""


class SessionsScreen(Filtering, Keeping, WatchScreen):
    """The library. Enter opens; esc goes back to the session that was open."""

    DEFAULT_CSS = """
    SessionsScreen { layout: vertical; }
    SessionsScreen SessionsView { height: 1fr; border: round $pane-border; }
    SessionsScreen SessionsView:focus { border: round $pane-focus; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", show=False, id="sessions.search"),
        Binding("t", "filter", "Filter", show=False, id="sessions.filter"),
        Binding("o", "sort", "Sort", show=False, id="sessions.sort"),
        Binding("space", "mark", "Mark", show=False, id="sessions.mark"),
        Binding("equals_sign", "compare", "Compare", show=False, id="sessions.compare"),
        Binding("m", "message", "Message", show=False, id="sessions.message"),
        Binding("v", "view", "Open read-only", show=False, id="sessions.view"),
        Binding("p", "replay", "Replay", show=False, id="sessions.replay"),
        Binding("n", "name", "Name", show=False, id="sessions.name"),
        Binding("number_sign", "tags", "Tags", show=False, id="sessions.tags"),
        Binding("F", "fork", "Fork", show=False, id="sessions.fork"),
        Binding("x", "export", "Export", show=False, id="sessions.export"),
        Binding("D", "delete", "Delete", show=False, id="sessions.delete"),
        Binding("u", "undo", "Undo", show=False, id="sessions.undo"),
        Binding("y", "copy", "Copy", show=False, id="sessions.copy"),
        Binding("escape", "back", "Back", show=False, id="sessions.back"),
        Binding("s", "back", "Back", show=False, id="sessions.leave"),
    ]

    def __init__(self, words: str = "") -> None:
        super().__init__()
        self.search_text = words
        self._asked = 0
        self._last_asked = 0.0
        self._order = next(iter(ORDERS))
        self._ranked = False
        """The best match comes first: Enter was pressed on the words."""
        self._hits: dict[str, MessageHit] = {}
        self._agents: dict[str, str] = {}
        self._most = SESSIONS_AT_ONCE
        self._problem: str | None = "reading the sessions …"
        """Why the list is not what is in the database; None once it was read."""
        self._to_top = False
        """What comes next is another search's: its first row is selected, not the one in the old one's
        place."""

    def compose(self) -> ComposeResult:
        yield SessionsView()
        yield HitPane()
        yield Prompt()
        yield DeletedLine()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.view.focus()
        self.redraw_keys()
        self.reload()

    @property
    def view(self) -> SessionsView:
        return self.query_one(SessionsView)

    # Reading.

    def reload(self, words: str | None = None, *, ranked: bool = False) -> None:
        """Read the list again; with other `words` the newest come first, or the best match where they are
        `ranked`."""
        if words is not None:
            self._to_top = bool(words) and (words, ranked) != (self.search_text, self._ranked)
            self.search_text, self._ranked, self._most = words, ranked, SESSIONS_AT_ONCE
        self._asked += 1
        self._last_asked = self.watch_app.now()
        asked, search, order, ranks, most = (
            self._asked,
            self.search_text,
            self._order,
            self._ranked,
            self._most,
        )

        def answer(result: object) -> None:
            # In the reader's thread: hand it over to the screen's own.
            self.app.call_later(self._listed, asked, result)

        def question(connection: Connection) -> object:
            if asked != self._asked:
                return None  # something else was typed meanwhile
            try:
                return find_sessions(
                    connection,
                    search,
                    most,
                    order=order,
                    ranked=ranks,
                    cancelled=lambda: asked != self._asked,
                )
            except BadInput as error:
                return error

        self.watch_app.reader.ask(question, answer)

    def _listed(self, asked: int, result: object) -> None:
        if result is None or asked != self._asked or not self.is_mounted or self._closing:
            return
        if isinstance(result, Exception):
            self._problem = f"! {self.trouble(result)}"
            self._describe()
            return
        assert isinstance(result, Listed)
        self._problem = None
        rows, self._hits, self._agents, self.shows_deleted = (
            result.rows,
            result.hits,
            result.agents,
            result.deleted,
        )
        view = self.view
        view.nothing = self._nothing()
        view.now = self.watch_app.now()
        view.hosts = self._hosts(rows)
        view.set_rows(rows)
        if self._to_top and rows:
            view.select(rows[0].id, tell=False)
        self._to_top = False
        view.refresh()  # ages and hosts change without a row changing
        self._title(result)
        self._describe()

    def _hosts(self, rows: tuple[SessionLine, ...]) -> dict[str, int]:
        """The hosts of those that say that they run; of the others only the open one's can live."""
        found = {row.id: self.watch_app.probe(row.id) for row in rows if row.status == "running"}
        return {session_id: pid for session_id, pid in found.items() if pid is not None}

    def _nothing(self) -> str:
        """What to say of an empty list."""
        if self.search_text:
            return "no session has these words; Esc lists all again"
        return "no sessions yet; `wk demo` and `wk run GOAL` start one, `wk import claude` brings in those of Claude Code"

    def _title(self, listed: Listed) -> None:
        count = len(listed.rows)
        pieces: list[Piece] = [("Deleted sessions" if self.shows_deleted else "Sessions", "strong")]
        more = "+" if count >= self._most else ""
        pieces.append((f"  {count:,}{more}", "muted"))
        marked = len(self.view.marked_rows)
        if marked:
            pieces.append((f"  ◆ {marked} marked", "marked"))
        if self.search_text:
            pieces += [("  /", "accent"), (sanitize(self.search_text), "match")]
        if not listed.whole:
            pieces.append(("  newest messages only", "waiting"))
        order = BEST_MATCH if listed.ranked else self._order
        pieces.append((f"  {order} {'↑' if order == 'goal' else '↓'}", "faint"))
        set_title(self.view, pieces, self.watch_app.palette)

    # Drawing.

    def _describe(self) -> None:
        """What is known of the selected session besides its row, and the keys that do something now."""
        row = self.view.selected
        hit = self._hits.get(row.id) if row is not None else None
        self.query_one(HitPane).show(
            HitPlace(hit, self._agents.get(hit.agent_id, "")) if hit is not None else None
        )
        self.redraw_keys()
        if self._problem is not None:
            role = "failed" if self._problem.startswith("! ") else "muted"
            self.query_one(StatusLine).say(self.notice(self.watch_app.now()) or [(self._problem, role)])
            return
        if row is None:
            text = "nothing found" if self.search_text else "no sessions yet"
            self.query_one(StatusLine).say(self.notice(self.watch_app.now()) or [(text, "muted")])
            return
        pieces: list[Piece] = [
            (sanitize(row.workspace), "muted"),
            (f"  {formatting.plural(row.compactions, 'compaction')}", "muted"),
        ]
        if row.title:
            pieces.insert(0, (f"{' '.join(sanitize(row.goal).split())}   ", "text"))
        self.query_one(StatusLine).say(self.notice(self.watch_app.now()) or pieces)

    def redraw_keys(self) -> None:
        row = self.view.selected
        none = "" if row is not None else "no session is listed"
        live = none or (
            "a live host drives it; pause it first" if row is not None and row.id in self.view.hosts else ""
        )
        hints = [
            KeyHint("↵", "Open", "open", none),
            KeyHint("/", "Search", "search"),
            KeyHint("t", "Filter", "filter"),
            KeyHint("space", "Mark", "mark", none),
            KeyHint("=", "Compare", "compare", self.why_not_compare()),
            KeyHint("p", "Replay", "replay", none),
            KeyHint("F", "Fork…", "fork", live or self.why_not_fork()),
            KeyHint("D", "Delete…", "delete", live),
            KeyHint("n", "Name…", "name", live),
            KeyHint("x", "Export…", "export", none),
            KeyHint("#", "Tags…", "tags", live),
            KeyHint("o", "Sort", "sort"),
            KeyHint("esc", "Back", "back"),
            KeyHint("v", "Read-only", "view", none),
            KeyHint("y", "Copy id", "copy", none),
            KeyHint(":", "Command", "command_bar"),
            KeyHint("?", "Help", "help"),
        ]
        if row is not None and row.id in self._hits:
            hints.insert(1, KeyHint("m", "Message", "message"))
        if self.gone or self.shows_deleted:
            hints.insert(0, KeyHint("u", "Restore" if self.shows_deleted else "Undo delete", "undo"))
        self.query_one(KeyLine).show(hints)

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Another reading of the open session; the list is read again now and then."""
        if now - self._last_asked >= REFRESH_SECONDS:
            self.reload()

    def tick(self, now: float) -> None:
        if now - self._last_asked >= REFRESH_SECONDS * 2:
            self.reload()
        else:
            self._describe()

    # Going places.

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        place = self.view.place_of(event.row_id) or 0
        if len(self.view.rows) >= self._most and place > len(self.view.rows) - 100:
            self._most += SESSIONS_AT_ONCE
            self.reload()
        self._describe()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        if self.shows_deleted:
            self.say("it is deleted; u brings it back", "muted")
        else:
            self.watch_app.open_session(event.row_id)

    def action_open(self) -> None:
        self.view.action_open()

    def action_view(self) -> None:
        """Open the session so that nothing can be done to it by a slip of a finger."""
        row = self.view.selected
        if row is not None:
            self.watch_app.open_session(row.id, read_only=True)

    def action_replay(self) -> None:
        """The session as it was, step by step."""
        row = self.view.selected
        if row is not None and self.shows_deleted:
            self.say("it is deleted; u brings it back", "muted")
        elif row is not None:
            self.watch_app.open_replay(row.id)

    def action_message(self) -> None:
        """Go to the message that holds the words, in its agent's transcript."""
        row = self.view.selected
        hit = self._hits.get(row.id) if row is not None else None
        if hit is None:
            self.say("no message was found in this session; / searches them all", "muted")
            return
        from watchkeeper_tui.screens.message import MessageScreen

        words = parse_filters(self.search_text)
        self.app.push_screen(MessageScreen(hit.session_id, hit.agent_id, hit.seq, words.text))

    def action_copy(self) -> None:
        row = self.view.selected
        if row is not None:
            self.watch_app.copy_text(row.id)
            self.say(f"copied {row.id}", "done", seconds=3)

    def action_sort(self) -> None:
        """The next order."""
        orders = list(ORDERS)
        if self._ranked:
            self._ranked = False  # back to the order there was
        else:
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self.reload()

    def action_search(self) -> None:
        before, ranked = self.search_text, self._ranked
        self.prompt.ask_line(
            [
                [
                    ("Search", "strong"),
                    ("   as you type, the newest first; Enter puts the best match first", "muted"),
                ],
                [
                    (
                        "goals, tags, facts, messages; state:failed model:x tag:x cost>1 since:2026-11-01"
                        " compacted",
                        "faint",
                    )
                ],
            ],
            lambda words: self.reload(words, ranked=True),
            kind="sessions",
            value=before,
            changed=self.reload,
            gave_up=lambda: self.reload(before, ranked=ranked),
            enter="Best match first",
        )

    def action_back(self) -> None:
        if self.view.marked:
            self.view.marked = frozenset()
            self.view.refresh()
            self.reload()
        elif self.search_text:
            self.reload("")
        elif self.watch_app.snapshot.session is not None:
            self.app.pop_screen()
        else:
            self.say("no session is open; Enter opens one, q leaves", "muted")

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Find",
                [
                    ("/", "search as you type, messages too, the newest first; enter: the best match first"),
                    ("m", "the message that was found, in its transcript"),
                    ("t", "filter: state, model, tag, workspace, date, cost, compacted, deleted"),
                    ("o", "sort: " + ", ".join(ORDERS)),
                    ("esc", "clear marks and search, then go to the open session"),
                ],
            ),
            (
                "Open",
                [
                    ("enter", "open"),
                    ("v", "open read-only: nothing can be done to it"),
                    ("p", "replay step by step"),
                    ("space =", "mark two, and compare them side by side"),
                    ("y", "copy the id"),
                ],
            ),
            (
                "Keep",
                [
                    ("n  #", "name; tags, of all that are marked"),
                    ("F", "fork from a step: a new session that begins there"),
                    ("x", "export as a web page, Markdown or JSON"),
                    ("D", "delete, all that are marked; asks"),
                    ("u", "undo the last delete; restore, in the list of deleted ones"),
                ],
            ),
        ]
