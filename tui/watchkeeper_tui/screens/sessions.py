"""Every session: found by words and filters, opened, named, forked, compared, exported, deleted with a way
back."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.timer import Timer

from watchkeeper.records.errors import BadInput
from watchkeeper.store.agents import names_of
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.fork import ForkResult
from watchkeeper.store.imports import imported_from
from watchkeeper.store.library import (
    UNDO_DAYS,
    DeleteResult,
    change_tags,
    delete_session,
    rename_session,
    restore_session,
)
from watchkeeper.store.projection import CountedSession
from watchkeeper.store.search.messages import (
    ORDERS,
    RANKED_MESSAGES,
    MessageHit,
    SessionPreview,
    filters_of,
    fold,
    list_sessions,
    parse_filters,
    plain_snippet,
    search,
    search_messages,
    session_preview,
    typed_words,
)
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.bars import (
    CRAMPED,
    LOCKED,
    LOCKED_AFTER_SECONDS,
    Chip,
    ChipLine,
    Crumb,
    KeyLine,
    Prompt,
    StatusLine,
)
from watchkeeper_tui.widgets.rows import Cell, Piece, RowView, set_title
from watchkeeper_tui.widgets.sessions import (
    GROUPS,
    DeletedLine,
    HitPane,
    HitPlace,
    PreviewPane,
    SessionsView,
    passage,
    session_name,
    tags_of,
)

BEST_MATCH = "best match"
"""What the order is called in which Enter puts the list."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One reading of the list."""

    rows: tuple[CountedSession, ...]
    hits: dict[str, MessageHit]
    """Session → the newest of its messages that hold the words; of a ranked list, the best."""
    agents: dict[str, str]
    """What the agents of these messages are called: hostile."""
    whole: bool
    """Every message was looked through in the time there was."""
    deleted: bool
    """It is deleted sessions that are listed."""
    words: tuple[str, ...]
    """What was searched for, besides filters."""
    ranked: bool
    """The best match comes first, and not the first of the chosen order."""


def find_sessions(
    connection: Connection, words: str, most: int, *, order: str, ranked: bool, cancelled: Callable[[], bool]
) -> Listed:
    """The sessions that hold the words, in that order.

    `ranked`: first those whose name holds them all, then those whose messages match best, then the others.

    Raises:
        BadInput: a filter means nothing.
    """
    filters = parse_filters(words)
    hits, whole = search_messages(connection, filters.text, cancelled=cancelled)
    rows = list_sessions(Queries(connection), words, most, order=order, also=hits)
    best: dict[str, MessageHit] = {}
    if ranked and filters.words:
        for hit in search(
            connection, filters.text, ranked=True, limit=RANKED_MESSAGES, cancelled=cancelled
        ).hits:
            if hit.session_id not in best:
                text = plain_snippet(hit.snippet)
                best[hit.session_id] = MessageHit(hit.session_id, hit.agent_id, hit.seq, text, hit.snippet)
        places = {session_id: place for place, session_id in enumerate(best)}
        rows = tuple(
            sorted(rows, key=lambda row: (not _is_named(row, filters.words), places.get(row.id, len(places))))
        )
    shown = {row.id for row in rows}
    hits = {session_id: hit for session_id, hit in {**hits, **best}.items() if session_id in shown}
    names = names_of(Queries(connection), [hit.agent_id for hit in hits.values()])
    found = ranked and bool(filters.words) and bool(rows)
    return Listed(rows, hits, names, whole, filters.deleted, filters.words, found)


def own_live_first(rows: Sequence[CountedSession], live: Container[str]) -> tuple[CountedSession, ...]:
    """The runs of Watchkeeper that are live, then the others, each in the order in which they are given."""
    return tuple(sorted(rows, key=lambda row: imported_from(row.origin) is not None or row.id not in live))


def _is_named(row: CountedSession, words: Sequence[str]) -> bool:
    """Whether the session's name, which is its title or else its goal, holds every word."""
    name = fold(row.title or row.goal)
    return all(fold(word) in name for word in words)


STATES = (("l", "live", "running"), ("p", "paused", "paused"), ("o", "done", "done"), ("f", "failed", "failed"),
          ("e", "ended", "ended"),
          ("c", "cancelled", "cancelled"), ("d", "deleted", "deleted"))  # fmt: skip
COSTS = (
    ("1", "over $0.10", "cost>0.1"),
    ("2", "over $1", "cost>1"),
    ("3", "over $10", "cost>10"),
    ("4", "under $1", "cost<1"),
)
DAYS = (("1", "today", 0), ("2", "last 7 days", 6), ("3", "last 30 days", 29))
MOST_VALUES = 9
DELETED = "state:deleted"
"""This filter is not remembered: it lists other sessions."""


def with_filter(search: str, kind: str, word: str) -> str:
    """The search with this filter in place of another of its kind; an empty `word` only takes that away."""
    pattern = {"cost": r"cost[<>]\S+", "date": r"(since|before):\S+", "compacted": r"compacted"}.get(
        kind, rf"{kind}:\S+"
    )
    kept = [one for one in search.split() if not re.fullmatch(pattern, one, re.IGNORECASE)]
    return " ".join([*kept, *([word] if word else [])])


def values_of(rows: Sequence[CountedSession], kind: str) -> list[str]:
    """The values of a kind of filter among these sessions, the most common first; at most nine."""
    if kind == "tag":
        found = [tag for row in rows for tag in tags_of(row)]
    elif kind == "model":
        found = [row.model for row in rows]
    else:
        found = [row.workspace for row in rows]
    # A filter is one word of the search.
    return [
        value for value, _ in Counter(found).most_common(50) if value and not re.search(r"[\s\"]", value)
    ][:MOST_VALUES]


T = TypeVar("T")


REFRESH_SECONDS = 2.0
SESSIONS_AT_ONCE = 1_000
"""How many the list shows at first; more are read when the selection comes near its end."""


_NEEDS_NO_ROW = frozenset({"filter", "sessions.filter", "sort", "sessions.group", "back", "command", "help"})
_NOT_LIVE = frozenset({"fork", "sessions.delete", "sessions.name", "sessions.tags"})
"""What is not done to a session that runs."""


class SessionsScreen(WatchScreen):
    """The library. Enter opens; esc goes back to the session that was open."""

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-roomy"), (22, "-even"), (30, "-high")]  # noqa: RUF012

    SCOPE = "sessions"
    BINDINGS: ClassVar[list[BindingType]] = bindings("sessions")

    gone: tuple[DeleteResult, ...] = ()
    """What was deleted last, and can be undone by a key."""
    shows_deleted: bool = False
    """The list is of deleted sessions."""

    def __init__(self, words: str = "") -> None:
        super().__init__()
        self.search_text = self._opened_with = words
        self._asked = 0
        self._last_asked = 0.0
        self._order = next(iter(ORDERS))
        self._ranked = False
        """The best match comes first: Enter was pressed on the words."""
        self._preview: SessionPreview | None = None
        self._group = ""
        """What the list is grouped by: a key of `GROUPS`; empty: nothing."""
        self._hits: dict[str, MessageHit] = {}
        self._agents: dict[str, str] = {}
        self._most = SESSIONS_AT_ONCE
        self._problem: str | None = "loading sessions …"
        """Why the list is not what is in the database; None once it was read."""
        self._to_top = False
        """What comes next is another search's: its first row is selected, not the one in the old one's
        place."""

    def compose(self) -> ComposeResult:
        yield ChipLine()
        yield SessionsView()
        yield HitPane()
        yield PreviewPane()
        yield Prompt()
        yield DeletedLine()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        kept = self.watch_app.layout_kept
        self._order = kept.sessions_order if kept.sessions_order in ORDERS else self._order
        self._group = kept.sessions_group if kept.sessions_group in GROUPS else ""
        self.search_text = self.search_text or kept.sessions_filter
        self.view.focus()
        self.show_keys()
        self.reload()

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        return (Crumb("list", "", "sessions"),)

    @property
    def view(self) -> SessionsView:
        return self.query_one(SessionsView)

    # Reading.

    def narrow(self, words: str, *, ranked: bool = False) -> None:
        """Search for words that the user has chosen, and remember the filters among them."""
        kept = (
            with_filter(filters_of(words), "state", "")
            if DELETED in words.lower().split()
            else filters_of(words)
        )
        self.watch_app.remember(sessions_filter=kept)
        self.reload(words, ranked=ranked)

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

        self.draw_chips()
        self.ask_reader(question, lambda result: self._listed(asked, result))

    def _listed(self, asked: int, result: object) -> None:
        if result is None or asked != self._asked or not self.is_usable:
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
        if not result.ranked and self._order == next(iter(ORDERS)):
            rows = own_live_first(rows, view.hosts)
        view.set_passages(self._passages(result) if result.words else None)
        rows = view.set_groups(rows, self._group)
        view.set_rows(rows)
        if self._to_top and rows:
            view.select(rows[0].id, tell=False)
        self._to_top = False
        view.refresh()  # ages and hosts change without a row changing
        self._title(result)
        self._describe()
        self._read_preview()

    def _passages(self, listed: Listed) -> dict[str, Cell]:
        """Where each session holds the words."""
        found: dict[str, Cell] = {}
        for row in listed.rows:
            named = _is_named(row, listed.words)
            found[row.id] = passage(
                listed.hits.get(row.id),
                "in the name" if named else "in the plan, facts, artifacts, folder or tags",
            )
        return found

    def _hosts(self, rows: tuple[CountedSession, ...]) -> dict[str, int]:
        """The hosts of those that say that they run; of the others only the open one's can live."""
        return self.watch_app.hosts(row.id for row in rows if row.status == "running")

    def _nothing(self) -> str:
        """What to say of an empty list."""
        if self.search_text and self.search_text == filters_of(self.search_text):
            key = self.watch_app.key_for("filter.drop")
            return f"no session matches the filter {sanitize(self.search_text)}; {key} removes it"
        if self.search_text:
            return "no matching sessions; Esc clears the search"
        return (
            "no sessions yet; ctrl+n or `wk demo` starts one, `wk import claude` imports Claude Code sessions"
        )

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
        self.query_one(PreviewPane).show(self.view, self._preview, self.watch_app.now())
        self.show_keys()
        if self._problem is not None:
            role = "failed" if self._problem.startswith("! ") else "muted"
            self.query_one(StatusLine).pieces = tuple(
                self.notice(self.watch_app.now()) or [(self._problem, role)]
            )
            return
        if row is None:
            text = "no matches" if self.search_text else "no sessions yet"
            self.query_one(StatusLine).pieces = tuple(self.notice(self.watch_app.now()) or [(text, "muted")])
            return
        pieces: list[Piece] = [
            (sanitize(row.workspace), "muted"),
            (f"  {formatting.plural(row.compactions, 'compaction')}", "muted"),
        ]
        if why := self.view.why(row):
            pieces.insert(0, (f"{clip(why, 80)}   ", "text"))
        if row.title:
            pieces.insert(0, (f"{' '.join(sanitize(row.goal).split())}   ", "text"))
        self.query_one(StatusLine).pieces = tuple(self.notice(self.watch_app.now()) or pieces)

    def label_of(self, action: Action) -> str:
        if action.id == "sessions.undo":
            return "Restore" if self.shows_deleted else "Undo delete"
        return super().label_of(action)

    def why_not(self, action: Action) -> str:
        row = self.view.selected
        if action.id == "sessions.undo":
            return "" if self.gone or self.shows_deleted else "nothing to undo"
        if action.id in _NEEDS_NO_ROW:
            return ""
        if row is None:
            return "no session selected"
        if action.id == "sessions.compare":
            return self.why_not_compare()
        if action.id == "behind":
            return "" if row.id in self._hits else "no matching message"
        no_fork = self.why_not_fork()
        if action.id in ("fork", "sessions.continue") and bool(no_fork) == (action.id == "fork"):
            return no_fork or "use F to fork it"
        return (
            "the session is running; pause it first"
            if action.id in _NOT_LIVE and row.id in self.view.hosts
            else ""
        )

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        """Another reading of the open session; the list is read again now and then."""
        if self.watch_app.now() - self._last_asked >= REFRESH_SECONDS:
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
        self._read_preview()

    def on_resize(self) -> None:
        self.call_after_refresh(self._read_preview)

    def _read_preview(self) -> None:
        """Read what the pane shows of the selected session; not of those that were passed on the way."""
        if not self.is_usable:
            return
        view = self.view
        row = view.selected
        if row is None or not self.query_one(PreviewPane).display:
            return

        def question(connection: Connection) -> object:
            return session_preview(connection, row.id) if row.id == view.selected_id else None

        self.ask_reader(question, self._preview_read)

    def _preview_read(self, result: object) -> None:
        if self.is_usable and isinstance(result, SessionPreview):
            self._preview = result
            self.query_one(PreviewPane).show(self.view, result, self.watch_app.now())

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        if self.shows_deleted:
            self.say("this session is deleted; u restores it", "muted")
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
            self.say("this session is deleted; u restores it", "muted")
        elif row is not None:
            self.watch_app.open_replay(row.id)

    def action_message(self) -> None:
        """Go to the message that holds the words, in its agent's transcript."""
        row = self.view.selected
        hit = self._hits.get(row.id) if row is not None else None
        if hit is None:
            self.say("no matching message in this session; / searches all messages", "muted")
            return
        words = parse_filters(self.search_text).text
        self.watch_app.open_message(hit.session_id, hit.agent_id, hit.seq, words=words)

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
            self.watch_app.remember(sessions_order=self._order)
        self.reload()

    def action_group(self) -> None:
        """Group by day, by project, or not at all."""
        names = ["", *GROUPS]
        self._group = names[(names.index(self._group) + 1) % len(names)]
        self.watch_app.remember(sessions_group=self._group)
        self.say(f"grouped by {self._group}" if self._group else "not grouped", "muted", seconds=3)
        self.reload()

    def action_search(self) -> None:
        before, ranked = self.search_text, self._ranked
        self.prompt.ask_line(
            [
                [
                    ("Search", "strong"),
                    ("   newest first as you type; Enter ranks by best match", "muted"),
                ],
                [
                    (
                        "goals, tags, facts, messages; state:failed model:x tag:x cost>1 since:2026-11-01"
                        " compacted",
                        "faint",
                    )
                ],
            ],
            lambda words: self.narrow(words, ranked=True),
            kind="sessions",
            value=before,
            changed=self.reload,
            gave_up=lambda: self.reload(before, ranked=ranked),
            enter="Best match first",
        )

    def filters(self) -> Sequence[Chip]:
        typed = typed_words(self.search_text)
        return [Chip("", f'"{each.text}"' if each.quoted else each.text, at) for at, each in enumerate(typed)]

    def drop_filter(self, chip: Chip) -> None:
        self.narrow(" ".join(each.text for each in self.filters() if each != chip))

    def action_back(self, words: str = "") -> None:
        """Return, or search for the words of `:sessions WORDS`."""
        kept = self.watch_app.layout_kept.sessions_filter
        has_session = self.watch_app.snapshot.session is not None
        if words:
            self.reload(words)
        elif self.view.marked:
            self.view.marked = frozenset()
            self.view.refresh()
            self.reload()
        elif has_session and self.search_text in ("", kept, self._opened_with):
            self.app.pop_screen()
        elif self.search_text != kept:
            self.reload(kept)
        else:
            self.say("no session is open; Enter opens one, q quits", "muted")

    def action_filter(self) -> None:
        """Ask which filter."""
        choices: list[tuple[str, str, Callable[[], None]]] = [
            ("s", "state", self._ask_state),
            ("m", "model", lambda: self._ask_value("model")),
            ("g", "tag", lambda: self._ask_value("tag")),
            ("w", "workspace", lambda: self._ask_value("workspace")),
            ("d", "date", self._ask_date),
            ("c", "cost", self._ask_cost),
            ("k", "compacted", lambda: self._set("compacted", "compacted")),
            ("0", "none", lambda: self._clear()),
        ]
        self._ask("Filter by", choices)

    def _ask_state(self) -> None:
        self._ask(
            "Sessions by state",
            [(key, word, self._setter("state", f"state:{value}")) for key, word, value in STATES],
        )

    def _ask_cost(self) -> None:
        self._ask(
            "Sessions by cost",
            [(key, word, self._setter("cost", value)) for key, word, value in COSTS],
        )

    def _ask_date(self) -> None:
        now = self.watch_app.now()
        days = [
            (
                key,
                word,
                self._setter("date", time.strftime("since:%Y-%m-%d", time.localtime(now - back * 86_400))),
            )
            for key, word, back in DAYS
        ]
        older = time.strftime("before:%Y-%m-%d", time.localtime(now - 29 * 86_400))
        self._ask("Sessions by last activity", [*days, ("4", "earlier", self._setter("date", older))])

    def _ask_value(self, kind: str) -> None:
        values = values_of(self.view.rows, kind)
        if not values:
            self.say(f"no listed session has a {kind}", "muted")
            return
        choices = [
            (str(number), clip(sanitize(value), 32), self._setter(kind, f"{kind}:{value}"))
            for number, value in enumerate(values, start=1)
        ]
        self._ask(f"Sessions by {kind}", choices)

    def _ask(self, question: str, choices: Sequence[tuple[str, str, Callable[[], None]]]) -> None:
        answers: list[Piece] = []
        for key, words, _ in choices:
            answers += [(key, "key"), (f" {words}  ", "text")]
        lines: list[list[Piece]] = [
            [(question, "strong"), ("   or type the filter after /", "muted")],
            answers,
        ]
        self.prompt.ask_key(lines, {key: run for key, _, run in choices})

    def _setter(self, kind: str, word: str) -> Callable[[], None]:
        return lambda: self._set(kind, word)

    def _set(self, kind: str, word: str) -> None:
        self.narrow(with_filter(self.search_text, kind, word))

    def _clear(self) -> None:
        text = self.search_text
        for kind in ("state", "model", "tag", "workspace", "date", "cost", "compacted"):
            text = with_filter(text, kind, "")
        self.narrow(text)

    # Beside the event loop.

    def keep(self, doing: str, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Change something in a thread of its own, then say so; a refusal is said in its place."""
        self.say(f"{doing} …", "muted", seconds=60)
        late = self.set_timer(
            LOCKED_AFTER_SECONDS, lambda: self.say(f"{doing}: {LOCKED}", "waiting", seconds=60)
        )

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                # A worker must never end the dashboard; what went wrong is said where the result would have
                # been.
                self.app.call_from_thread(self._refused, doing, error, late)
                return
            self.app.call_from_thread(self._kept, done, result, late)

        self.run_worker(run, thread=True, exit_on_error=False, group="library")

    def _kept(self, done: Callable[[T], None], result: T, late: Timer) -> None:
        late.stop()
        if self.is_usable:
            done(result)
            self.reload()

    def _refused(self, doing: str, error: Exception, late: Timer) -> None:
        late.stop()
        if self.is_usable:
            self.say(f"✗ {doing}: {self.trouble(error)}", "failed", seconds=12)

    # Who is meant.

    def _one(self, what: str) -> CountedSession | None:
        row = self.view.selected
        if row is None:
            self.say(f"{what}: no session selected", "muted")
        return row

    def _several(self, what: str) -> tuple[CountedSession, ...]:
        rows = self.view.chosen
        if not rows:
            self.say(f"{what}: no session selected", "muted")
        return rows

    def _named(self, rows: Sequence[CountedSession]) -> str:
        return clip(session_name(rows[0]), 60) if len(rows) == 1 else formatting.plural(len(rows), "session")

    def action_mark(self) -> None:
        row = self.view.selected
        if row is not None:
            self.view.marked = self.view.marked ^ {row.id}
            self.view.refresh()
            self.view.action_move(1)
            self.show_keys()

    # Names and tags.

    def action_name(self) -> None:
        row = self._one("Name")
        if row is None:
            return
        path = self.watch_app.database_path

        def typed(title: str) -> None:
            self.keep("naming", lambda: rename_session(path, row.id, title), self._renamed)

        question: list[list[Piece]] = [
            [
                ("Name", "strong"),
                (f" {clip(session_name(row), 60)}", "text"),
                ("   empty = remove the title", "muted"),
            ]
        ]
        self.prompt.ask_line(question, typed, kind="name", value=sanitize(row.title or ""), enter="Save")

    def _renamed(self, title: str | None) -> None:
        self.say(f"✓ named {clip(sanitize(title), 80)}" if title else "✓ title removed", "done")

    def action_tags(self) -> None:
        rows = self._several("Tags")
        if not rows:
            return
        now = sorted({tag for row in rows for tag in tags_of(row)})

        def typed(text: str) -> None:
            words = text.replace(",", " ").split()
            add = [word for word in words if not word.startswith("-")]
            remove = [word[1:] for word in words if word.startswith("-") and len(word) > 1]
            if add or remove:
                self.keep("tagging", lambda: self._tag(rows, add, remove), self._tagged)

        question: list[list[Piece]] = [
            [
                ("Tags of ", "strong"),
                (self._named(rows), "strong"),
                (f"   current: {' '.join(now) or 'none'}", "muted"),
            ],
            [("tag adds a tag, -tag removes it", "muted")],
        ]
        self.prompt.ask_line(question, typed, kind="tags", enter="Tag")

    def _tag(
        self, rows: Sequence[CountedSession], add: list[str], remove: list[str]
    ) -> tuple[int, tuple[str, ...]]:
        tags: tuple[str, ...] = ()
        for row in rows:
            tags = change_tags(self.watch_app.database_path, row.id, add=add, remove=remove)
        return len(rows), tags

    def _tagged(self, result: tuple[int, tuple[str, ...]]) -> None:
        count, tags = result
        said = (
            f"{formatting.plural(count, 'session')} tagged"
            if count > 1
            else f"tags: {' '.join(map(sanitize, tags)) or 'none'}"
        )
        self.say(f"✓ {said}", "done")

    # Deleting, and the way back.

    def action_delete(self) -> None:
        rows = self._several("Delete")
        if not rows:
            return
        if self.shows_deleted:
            self.say("already deleted; u restores it, `wk delete --prune` deletes it permanently", "muted")
            return
        live = [row for row in rows if row.id in self.view.hosts]
        if live:
            self.say(
                f"Delete: {clip(session_name(live[0]), 30)} is running; open and pause it first", "muted"
            )
            return
        tokens = sum(row.total_tokens for row in rows)
        lines = [
            f"Delete {self._named(rows)}?",
            f"{formatting.tokens(tokens)} tokens used, {formatting.plural(sum(row.agents for row in rows), 'agent')}. Can be "
            f"restored for {UNDO_DAYS:g} days with u or `wk delete --restore`.",
        ]
        self.confirm(lines, lambda: self.keep("deleting", lambda: self._delete(rows), self._deleted))

    def _delete(self, rows: Sequence[CountedSession]) -> tuple[tuple[DeleteResult, ...], str]:
        gone: list[DeleteResult] = []
        for row in rows:
            try:
                gone.append(delete_session(self.watch_app.database_path, row.id, now=self.watch_app.now()))
            except Exception as error:
                if not gone:
                    raise
                return tuple(gone), sanitize(str(error))
        return tuple(gone), ""

    def _deleted(self, result: tuple[tuple[DeleteResult, ...], str]) -> None:
        self.gone, problem = result
        self.view.marked = self.view.marked - {one.id for one in self.gone}
        self.say(
            f"✗ some not deleted: {clip(problem, 200)}" if problem else "",
            "failed",
            seconds=12 if problem else 0,
        )
        self._show_gone()

    def _show_gone(self) -> None:
        """The line that says what was deleted, for as long as it can be undone from here."""
        pieces: list[Piece] = []
        if self.gone:
            first = clip(" ".join(sanitize(self.gone[0].name).split()), 60)
            what = first if len(self.gone) == 1 else formatting.plural(len(self.gone), "session")
            until = time.strftime("%b %d", time.localtime(self.gone[0].gone_at))
            pieces = [
                ("✗ deleted ", "failed"),
                (what, "text"),
                ("   u", "key"),
                (" to undo", "text"),
                (f"   until {until}", "muted"),
            ]
        self.query_one(DeletedLine).show(pieces)
        self.show_keys()

    def action_undo(self) -> None:
        """Bring back what was deleted last; in a list of deleted sessions, what is chosen there."""
        ids = (
            tuple(row.id for row in self.view.chosen)
            if self.shows_deleted
            else tuple(one.id for one in self.gone)
        )
        if not ids:
            self.say("nothing to undo; t s d lists deleted sessions", "muted")
            return
        path = self.watch_app.database_path

        def work() -> tuple[str, ...]:
            for session_id in ids:
                restore_session(path, session_id)
            return ids

        self.keep("restoring", work, self._restored)

    def _restored(self, ids: tuple[str, ...]) -> None:
        self.gone = tuple(one for one in self.gone if one.id not in ids)
        self.say(f"✓ {formatting.plural(len(ids), 'session')} restored", "done")
        self._show_gone()

    # Forks and comparisons.

    def why_not_fork(self) -> str:
        """Why the selected session cannot be forked, whichever program drives it; empty if it can."""
        row = self.view.selected
        return (
            "an imported session cannot be forked; c continues it in a new session"
            if row and row.origin not in ("run", "fork")
            else ""
        )

    def action_fork(self) -> None:
        row = self._one("Fork")
        if row is None:
            return
        if row.id in self.view.hosts:
            self.say(f"Fork: {clip(session_name(row), 30)} is running; open and pause it first", "muted")
            return
        if reason := self.why_not_fork():
            self.say(f"Fork: {reason}", "muted")
            return
        from watchkeeper_tui.screens.dialogs import ForkScreen

        self.app.push_screen(ForkScreen(row.id, session_name(row), self.forked))

    def action_continue(self) -> None:
        """Continue the session, own or imported, in a new one with its plan and facts."""
        row = self._one("Continue")
        if row is not None:
            self.watch_app.open_start(from_session=row.id, name=session_name(row), workspace=row.workspace)

    def forked(self, made: ForkResult) -> None:
        """A fork was made on the fork's screen."""
        goes_on = "; Enter opens it, r resumes it" if made.status == "paused" else ""
        self.say(f"✓ forked at event #{made.at_seq} as {made.session_id}{goes_on}", "done", seconds=20)
        self.view.selected_id = made.session_id
        self.reload()

    def why_not_compare(self) -> str:
        """Why there is nothing to compare; empty where there is."""
        marked, selected = self.view.marked_rows, self.view.selected
        if len(marked) == 1 and selected is not None and selected is not marked[0]:
            return ""
        return "" if len(marked) == 2 else "mark two sessions with space, or mark one and select another"

    def action_compare(self) -> None:
        reason = self.why_not_compare()
        if reason:
            self.say(f"Compare: {reason}", "muted")
            return
        marked = [row.id for row in self.view.marked_rows]
        selected = self.view.selected
        if len(marked) == 1 and selected is not None:
            marked.append(selected.id)
        from watchkeeper_tui.screens.compare import CompareScreen

        self.app.push_screen(CompareScreen(marked[0], marked[1]))

    # Exports.

    def action_export(self) -> None:
        row = self._one("Export")
        if row is None:
            return
        self.ask_export(row.id, session_name(row))
