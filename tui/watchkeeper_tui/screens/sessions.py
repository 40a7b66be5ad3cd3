"""Every session: found by words, opened with Enter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from watchkeeper.store.dashboard_sessions import ORDERS, SessionLine, list_sessions
from watchkeeper.store.driver import Connection
from watchkeeper.store.session_search import MessageHit, parse_filters, search_messages
from watchkeeper_tui import figures
from watchkeeper_tui.conditions import SESSION_BADGES
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import SessionState, Snapshot, session_state
from watchkeeper_tui.widgets.cells import Cell, Column, Piece, set_title
from watchkeeper_tui.widgets.prompt import Prompt
from watchkeeper_tui.widgets.rows import RowView
from watchkeeper_tui.widgets.status import KeyHint, KeyLine, StatusLine

_ROLES = {
    SessionState.LIVE: "working",
    SessionState.PAUSED: "paused",
    SessionState.DEAD: "dead",
    SessionState.DONE: "done",
    SessionState.FAILED: "failed",
}
REFRESH_SECONDS = 2.0


class SessionsView(RowView[SessionLine]):
    """One row a session, the newest first."""

    HEADINGS = True
    IDLE_SELECTION = True
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("S", 1),
        Column("session", 8),
        Column("last active", 11, drop=2),
        Column("goal", 20, flexible=True),
        Column("model", 12, drop=6),
        Column("agents", 6, right=True, drop=5),
        Column("duration", 9, right=True, drop=3),
        Column("tokens", 6, right=True, drop=4),
        Column("cost", 8, right=True, drop=1),
        Column("end", 16, drop=7),
    )

    def __init__(self) -> None:
        super().__init__(id="sessions", classes="pane")
        self.now = 0.0
        self.hosts: dict[str, int] = {}

    def row_id(self, row: SessionLine) -> str:
        return row.id

    def state(self, row: SessionLine) -> SessionState:
        """How the session stands, judged by its lease."""
        return session_state(row.status, row.id in self.hosts)

    def row_cells(self, row: SessionLine) -> Sequence[Cell]:
        state = self.state(row)
        role = _ROLES.get(state, "muted")
        glyph, _ = SESSION_BADGES[state]
        end = f"live (pid {self.hosts[row.id]})" if row.id in self.hosts else sanitize(row.status_reason or state.value.lower())
        duration = row.hosted_seconds or ((row.ended_at or row.last_active) - row.created_at)
        goal: list[Piece] = [(sanitize(row.title or row.goal), "text")]
        tags = sanitize(row.tags).strip("[]").replace('"', "")
        if tags:
            goal.append((f"  [{tags}]", "accent"))
        if row.origin != "run":
            goal.insert(0, (f"{sanitize(row.origin)}: ", "muted"))
        return (
            [(glyph, role)],
            [(row.id, "accent")],
            [(figures.when(row.last_active, self.now), "muted")],
            goal,
            [(sanitize(figures.model_name(row.model)), "muted")],
            [(f"{row.agents:,}", "text")],
            [(figures.duration(duration), "text")],
            [(figures.tokens(row.tokens), "tokens")],
            [(figures.cost(row.cost_usd, row.unpriced_calls), "money")],
            [(end, role)],
        )


class SessionsScreen(WatchScreen):
    """The library. Enter opens; esc goes back to the session that was open."""

    DEFAULT_CSS = """
    SessionsScreen { layout: vertical; }
    SessionsScreen SessionsView { height: 1fr; border: round $pane-border; }
    SessionsScreen SessionsView:focus { border: round $pane-focus; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", show=False, id="sessions.search"),
        Binding("escape", "back", "Back", show=False, id="sessions.back"),
        Binding("y", "copy", "Copy", show=False, id="sessions.copy"),
        Binding("o", "sort", "Sort", show=False, id="sessions.sort"),
        Binding("s", "back", "Back", show=False, id="sessions.leave"),
    ]

    def __init__(self, words: str = "") -> None:
        super().__init__()
        self._words = words
        self._asked = 0
        self._last_asked = 0.0
        self._order = next(iter(ORDERS))
        self._hits: dict[str, MessageHit] = {}

    def compose(self) -> ComposeResult:
        yield SessionsView()
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.view.focus()
        self.query_one(KeyLine).show(
            [
                KeyHint("↵", "Open", "open"),
                KeyHint("/", "Search", "search"),
                KeyHint("o", "Sort", "sort"),
                KeyHint("y", "Copy id", "copy"),
                KeyHint("esc", "Back", "back"),
                KeyHint("q", "Quit", "leave"),
                KeyHint(":", "Command", "command_bar"),
                KeyHint("?", "Help", "help"),
            ]
        )
        self.reload()

    @property
    def view(self) -> SessionsView:
        return self.query_one(SessionsView)

    def reload(self, words: str | None = None) -> None:
        """Read the list again."""
        if words is not None:
            self._words = words
        self._asked += 1
        self._last_asked = self.watch_app.now()
        asked, search, order = self._asked, self._words, self._order

        def answer(result: object) -> None:
            # In the reader's thread: hand it over to the screen's own.
            self.app.call_later(self._listed, asked, result)

        def question(connection: Connection) -> object:
            if asked != self._asked:
                return None  # something else was typed meanwhile
            words = tuple(word for word in parse_filters(search).words if len(word) > 2)
            hits, whole = search_messages(connection, words)
            return list_sessions(connection, search, order=order, also=hits), hits, whole

        self.watch_app.reader.ask(question, answer)

    def _listed(self, asked: int, result: object) -> None:
        if result is None or asked != self._asked or not self.is_mounted or self._closing:
            return
        palette = self.watch_app.palette
        if isinstance(result, Exception):
            self.query_one(StatusLine).say([("! ", "failed"), (sanitize(str(result)), "failed")])
            return
        assert isinstance(result, tuple)
        rows, self._hits, whole = result
        view = self.view
        view.now = self.watch_app.now()
        view.hosts = {}
        for row in rows:
            if row.status == "running":
                pid = self.watch_app.probe(row.id)
                if pid is not None:
                    view.hosts[row.id] = pid
        view.set_rows(rows)
        view.refresh()  # ages and hosts change without a row changing
        pieces: list[Piece] = [("Sessions", "strong"), (f"  {len(rows):,}", "muted")]
        if self._words:
            pieces += [("  /", "accent"), (sanitize(self._words), "match")]
        if not whole:
            pieces.append(("  newest messages only", "waiting"))
        pieces.append((f"  {self._order} {'↑' if self._order == 'goal' else '↓'}", "faint"))
        set_title(view, pieces, palette)
        self._describe()

    def _describe(self) -> None:
        row = self.view.selected
        if row is None:
            text = "nothing found" if self._words else "no sessions yet; start one with `wk run GOAL` or `wk demo`"
            self.query_one(StatusLine).say([(text, "muted")])
            return
        pieces: list[Piece] = [
            (sanitize(row.workspace), "muted"),
            (f"  {figures.plural(row.compactions, 'compaction')}", "muted"),
        ]
        hit = self._hits.get(row.id)
        if hit is not None:
            excerpt = clip(sanitize(hit.excerpt), 160)
            pieces = [("found in ", "muted"), (f"{sanitize(hit.agent_id)} #{hit.seq}: ", "accent"), (excerpt, "text")]
        self.query_one(StatusLine).say(self.notice(self.watch_app.now()) or pieces)

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Another reading of the open session; the list is read again now and then."""
        if now - self._last_asked >= REFRESH_SECONDS:
            self.reload()

    def tick(self, now: float) -> None:
        if now - self._last_asked >= REFRESH_SECONDS * 2:
            self.reload()

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        self._describe()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        self.watch_app.open_session(event.row_id)

    def action_open(self) -> None:
        self.view.action_open()

    def action_copy(self) -> None:
        row = self.view.selected
        if row is not None:
            self.watch_app.copy_text(row.id)
            self.say(f"copied {row.id}", "done", seconds=3)

    def action_sort(self) -> None:
        """The next order."""
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self.reload()

    def action_search(self) -> None:
        before = self._words
        self.prompt.ask_line(
            [
                [
                    ("Search", "strong"),
                    ("   goals, tags, facts, messages; state:failed model:x tag:x cost>1 since:2026-11-01 compacted", "muted"),
                ]
            ],
            self.reload,
            kind="sessions",
            value=before,
            changed=self.reload,
            gave_up=lambda: self.reload(before),
        )

    def action_back(self) -> None:
        if self._words:
            self.reload("")
        elif self.watch_app.snapshot.session is not None:
            self.app.pop_screen()
        else:
            self.say("no session is open; Enter opens one, q leaves", "muted")

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Sessions",
                [
                    ("enter", "open"),
                    ("/", "search as you type, messages too"),
                    ("o", "sort: " + ", ".join(ORDERS)),
                    ("y", "copy the id"),
                    ("esc", "back to the open session"),
                ],
            )
        ]
