"""The list of sessions, where the words that are sought stand in the selected one, and what was deleted
last."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from itertools import groupby
from typing import ClassVar

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from watchkeeper.records.usage_limits import limit_text
from watchkeeper.records.waiting import Waiting, waiting_word
from watchkeeper.store.outcome import run_ending
from watchkeeper.store.projection import CountedSession
from watchkeeper.store.search.messages import MessageHit, SessionPreview
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import SESSION_BADGES, SessionState, session_state, state_word, task_look
from watchkeeper_tui.theming import Palette
from watchkeeper_tui.watch_app import watch_app
from watchkeeper_tui.widgets.bars import Clicked
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView, clip_pieces, content, pieces_width

_ROLES = {
    SessionState.LIVE: "working",
    SessionState.PAUSED: "paused",
    SessionState.DEAD: "dead",
    SessionState.DONE: "done",
    SessionState.FAILED: "failed",
}


def session_name(row: CountedSession) -> str:
    """What people call the session: its title, or its goal; sanitised, on one line."""
    return " ".join(sanitize(row.title or row.goal).split())


def tags_of(row: CountedSession) -> tuple[str, ...]:
    """The session's tags, sanitised."""
    return _tags(row.tags)


@lru_cache(4096)
def _tags(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = [text]
    return (
        tuple(sanitize(str(tag)).strip() for tag in found if str(tag).strip())
        if isinstance(found, list)
        else ()
    )


_GROUP_COLUMN = Column("group", 24, drop=1)


def _day(row: CountedSession, now: float) -> str:
    days = (date.fromtimestamp(now) - date.fromtimestamp(row.last_active)).days
    return {0: "today", 1: "yesterday"}.get(days, date.fromtimestamp(row.last_active).isoformat())


def _project(row: CountedSession, now: float) -> str:
    return row.workspace


GROUPS: dict[str, Callable[[CountedSession, float], str]] = {"day": _day, "project": _project}
"""What the list may be grouped by, with the group of a session at a time: hostile until sanitised."""


_LEAD = 12
"""How many characters of a passage come before the words that were found."""


def passage(hit: MessageHit | None, elsewhere: str) -> Cell:
    """Where a search found the words, in one line that begins near them. `elsewhere`: what is said where no message
    holds them."""
    if hit is None:
        return [(elsewhere, "muted")]
    pieces: list[Piece] = []
    for found, group in groupby(hit.pieces, key=lambda piece: piece.found):
        text = sanitize("".join(piece.text for piece in group))
        if not pieces and not found and len(text) > _LEAD:
            text = "…" + text[1 - _LEAD :]
        pieces.append((text, "match" if found else "text"))
    return pieces or [(" ".join(sanitize(hit.excerpt).split()), "text")]


class SessionsView(RowView[CountedSession]):
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
        Column("state", 9, drop=7),
    )
    FOUND_COLUMNS: ClassVar[Sequence[Column]] = (
        Column("S", 1),
        Column("session", 8),
        Column("last active", 11, drop=2),
        Column("goal", 16, flexible=True),
        Column("found", 30, flexible=True),
        Column("agents", 6, right=True, drop=4),
        Column("tokens", 6, right=True, drop=3),
        Column("cost", 8, right=True, drop=1),
    )
    """While words are searched for."""

    def __init__(self) -> None:
        super().__init__(id="sessions", classes="pane")
        self.now = 0.0
        self.hosts: dict[str, int] = {}
        self.marked: frozenset[str] = frozenset()
        self._groups: dict[str, Cell] | None = None
        """What the first row of each group says of it, by the row's id; None: there are no groups."""
        self.nothing = ""
        """What is said where no session is listed."""
        self._passages: dict[str, Cell] | None = None

    def empty_words(self) -> str:
        return self.nothing

    def set_groups(self, rows: tuple[CountedSession, ...], name: str) -> tuple[CountedSession, ...]:
        """Group the rows, each group where its first row is; returns them in the order in which they are to be shown."""
        self._widths_for = -1
        if not name:
            self._groups = None
            return rows
        groups: dict[str, list[CountedSession]] = {}
        for row in rows:
            groups.setdefault(GROUPS[name](row, self.now), []).append(row)
        self._groups = {}
        for group, members in groups.items():
            text = sanitize(group.rstrip("/").rpartition("/")[2] or group) or "unknown"
            cost = sum(row.cost_usd or 0.0 for row in members)
            self._groups[members[0].id] = [
                (clip(text, 14), "strong"),
                (f" {len(members):,}", "muted"),
                (f" {formatting.money(cost)}", "money"),
            ]
        return tuple(row for members in groups.values() for row in members)

    def set_passages(self, passages: dict[str, Cell] | None) -> None:
        """Show where each session holds the words of a search, by its id; None: nothing is searched for."""
        if passages != self._passages:
            self._passages = passages
            self._widths_for = -1

    def columns(self) -> Sequence[Column]:
        columns = self.COLUMNS if self._passages is None else self.FOUND_COLUMNS
        if self._groups is None:
            return columns
        # A day says when already, so there the time goes first where there is no room.
        return (
            _GROUP_COLUMN,
            *(replace(one, drop=9) if one.title == "last active" else one for one in columns),
        )

    def set_rows(self, rows: Sequence[CountedSession]) -> None:
        self.hide(*(() if any(row.cost_usd for row in rows) else ("cost",)))
        super().set_rows(rows)

    def row_id(self, row: CountedSession) -> str:
        return row.id

    def is_marked(self, row: CountedSession) -> bool:
        return row.id in self.marked

    @property
    def marked_rows(self) -> tuple[CountedSession, ...]:
        """The marked sessions that are listed."""
        marked = self.marked
        return tuple(row for row in self.rows if row.id in marked) if marked else ()

    @property
    def chosen(self) -> tuple[CountedSession, ...]:
        """The marked sessions that are listed, or else the selected one."""
        marked = self.marked_rows
        selected = self.selected
        return marked or ((selected,) if selected is not None else ())

    def state(self, row: CountedSession) -> SessionState:
        """The session's state, derived from its lease."""
        return session_state(
            row.status, row.id in self.hosts, working=row.working + row.waiting > 0, origin=row.origin
        )

    def word(self, row: CountedSession) -> str:
        """The session's state in one word."""
        state = self.state(row)
        waits = waiting_word(row.status, row.status_reason) if state is SessionState.PAUSED else None
        return Waiting.LIMIT if row.limit is not None else waits or state_word(state, row.status)

    def why(self, row: CountedSession) -> str:
        """The state in full: the process that drives the session, the usage limit, or the reason."""
        if row.id in self.hosts:
            return f"{self.word(row)} (pid {self.hosts[row.id]})"
        return limit_text(row.limit, self.now) if row.limit is not None else sanitize(row.status_reason or "")

    def row_cells(self, row: CountedSession) -> Sequence[Cell]:
        state = self.state(row)
        role = _ROLES.get(state, "muted")
        glyph, _ = SESSION_BADGES[state]
        if row.limit is not None:
            glyph, role = "◷", "slot"
        duration = row.hosted_seconds or ((row.ended_at or row.last_active) - row.created_at)
        goal: list[Piece] = [(session_name(row), "text")]
        tags = tags_of(row)
        if tags:
            # Before the name: behind it they would be cut off.
            goal.insert(0, (f"[{clip(' '.join(tags), 18)}] ", "accent"))
        if row.origin != "run":
            goal.insert(0, (f"{sanitize(row.origin).partition('-')[0]}: ", "muted"))
        group = [] if self._groups is None else [self._groups.get(row.id, [])]
        if self._passages is not None:
            return (
                *group,
                [(glyph, role)],
                [(row.id, "accent")],
                [(formatting.when(row.last_active, self.now), "muted")],
                goal,
                self._passages.get(row.id, []),
                [(f"{row.agents:,}", "text")],
                [(formatting.tokens(row.total_tokens), "tokens")],
                [(formatting.bill(row), "money")],
            )
        return (
            *group,
            [(glyph, role)],
            [(row.id, "accent")],
            [(formatting.when(row.last_active, self.now), "muted")],
            goal,
            [(sanitize(formatting.model_name(row.model)), "muted")],
            [(f"{row.agents:,}", "text")],
            [(formatting.duration(duration), "text")],
            [(formatting.tokens(row.total_tokens), "tokens")],
            [(formatting.bill(row), "money")],
            [(self.word(row), role)],
        )


@dataclass(frozen=True, slots=True)
class HitPlace:
    """A message that holds the words, and what is known of its agent."""

    hit: MessageHit
    agent: str
    """The agent's name: hostile until sanitised."""


class HitPane(Widget):
    """Where the words stand in the selected session: who said it, and the words in their context."""

    LINES = 3

    def __init__(self) -> None:
        super().__init__(id="hit")
        self._place: HitPlace | None = None

    def show(self, place: HitPlace | None) -> None:
        """Show this one; None puts the pane away."""
        if place != self._place:
            self._place = place
            self.display = place is not None
            self.refresh(layout=True)

    def on_click(self) -> None:
        self.post_message(Clicked("message"))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._rows(width))

    def render(self) -> Content:
        return _lines(self._rows(self.size.width), watch_app(self).palette)

    def _rows(self, width: int) -> list[list[Piece]]:
        """The lines at that width, which before the first layout is not the widget's own."""
        if self._place is None:
            return []
        hit, width = self._place.hit, max(20, width)
        head: list[Piece] = [
            ("found in ", "muted"),
            (clip(sanitize(self._place.agent or hit.agent_id), 28), "accent"),
            (f" #{hit.seq}", "accent"),
            ("   m", "key"),
            (" opens it in the transcript", "muted"),
        ]
        rows = wrapped(
            [(sanitize(piece.text), "match" if piece.found else "text") for piece in hit.pieces], width
        )
        if not rows:
            rows = wrapped([(sanitize(hit.excerpt), "text")], width)
        return [head, *rows[: self.LINES]]


class PreviewPane(Widget):
    """The selected session at a glance: its goal, plan, last words, cost, and its agents on one line of time."""

    def __init__(self) -> None:
        super().__init__(id="preview")
        self._shown: tuple[CountedSession, SessionState, SessionPreview] | None = None
        self._now = 0.0

    def show(self, view: SessionsView, preview: SessionPreview | None, now: float) -> None:
        """Show the selected one; what is not read yet, or another session's, is left out."""
        row, shown = view.selected, None
        if row is not None and preview is not None and preview.session_id == row.id:
            shown = row, view.state(row), preview
        if shown != self._shown:
            self._shown, self._now = shown, now
            self.refresh()

    def render(self) -> Content:
        if self._shown is None:
            return Content("")
        return _lines(self._rows(*self._shown, max(20, self.size.width - 2)), watch_app(self).palette)

    def _rows(
        self, row: CountedSession, state: SessionState, preview: SessionPreview, width: int
    ) -> list[list[Piece]]:
        room = width - _LABEL
        low = self.size.height < _HIGH
        lines = 1 if low else 2
        rows: list[list[Piece]] = []

        def add(label: str, pieces: list[list[Piece]]) -> None:
            for number, line in enumerate(pieces):
                rows.append([((label if number == 0 else "").ljust(_LABEL), "muted"), *line])

        ending = run_ending(row.status, row.status_reason, None, row.origin)
        if ending is None:
            add("Goal", _first_lines(" ".join(sanitize(preview.goal).split()), room, lines))
        else:
            said = (
                formatting.without_markup(ending.stopped or ending.summary) or "no summary from the planner"
            )
            add("Stopped" if ending.stopped else "Outcome", _first_lines(said, room, lines))
        if preview.tasks:
            done = sum(status == "done" for status, _ in preview.tasks)
            plan: list[Piece] = [(f"{done} of {formatting.plural(len(preview.tasks), 'task')} done", "text")]
            # What is not done says more than what is.
            for status, title in sorted(preview.tasks, key=lambda task: task[0] == "done"):
                glyph, _, role = task_look(status, state)
                name = clip(" ".join(sanitize(title).split()), 32)
                plan += [(f"   {glyph} ", role), (name, "muted")]
            add("Plan", [clip_pieces(plan, room)])
        if preview.last_words:
            add("Last message", _first_lines(formatting.without_markup(preview.last_words), room, lines))
        cost: list[Piece] = [
            (formatting.bill(row), "money"),
            (f"   {formatting.tokens(row.total_tokens)} tok", "tokens"),
            (f"   {formatting.plural(row.compactions, 'compaction')}", "muted"),
        ]
        if not low:
            add("Cost", [clip_pieces(cost, room)])
        beside = pieces_width(cost) + 3 if low else 0
        line = at_work(
            preview.spans, row.ended_at or max(row.last_active, row.created_at), max(10, room - 24 - beside)
        )
        agents: list[Piece] = []
        if line:
            most = formatting.plural(row.agents, "agent")
            agents = [(line, "working"), (f"  {most}" + ("" if low else " over time"), "muted")]
        if low:
            add("Cost", [clip_pieces([*cost, ("   ", "text"), *agents], room)])
        elif agents:
            add("Agents", [agents])
        return rows


_LABEL = 14
_HIGH = 6
"""With fewer rows, each part of a preview takes one."""


def _first_lines(text: str, width: int, lines: int) -> list[list[Piece]]:
    """The first lines of a text, the last of which ends in `…` where more follows."""
    rows = wrapped([(text, "text")], width)
    if len(rows) > lines:
        rest = " ".join("".join(part for part, _ in row) for row in rows[lines - 1 :])
        rows = [*rows[: lines - 1], [(clip(rest, width), "text")]]
    return rows


def at_work(spans: Sequence[tuple[float, float | None]], end: float, cells: int) -> str:
    """How many agents there were in each part of the time from the first to `end`, as eighths of a row; empty
    without agents."""
    if not spans:
        return ""
    begin = min(began for began, _ in spans)
    step = max(end - begin, 1.0) / cells
    counts = [0.0] * cells
    for began, ended in spans:
        first = min(cells - 1, max(0, int((began - begin) / step)))
        last = min(cells - 1, max(first, int(((end if ended is None else ended) - begin) / step)))
        for cell in range(first, last + 1):
            counts[cell] += 1
    return formatting.sparkline(counts, cells)


class DeletedLine(Widget):
    """What was deleted last, for as long as it can be undone from here."""

    def __init__(self) -> None:
        super().__init__(id="deleted")
        self._pieces: tuple[Piece, ...] = ()

    @property
    def text(self) -> str:
        """The displayed text."""
        return "".join(text for text, _ in self._pieces)

    def show(self, pieces: Sequence[Piece]) -> None:
        """Show these words; none put the line away."""
        self._pieces = tuple(pieces)
        self.display = bool(pieces)
        self.refresh(layout=True)

    def on_click(self) -> None:
        self.post_message(Clicked("undo"))

    def render(self) -> Content:
        palette = watch_app(self).palette
        return content([(" ", "text"), *self._pieces], palette)


def wrapped(pieces: Sequence[Piece], width: int) -> list[list[Piece]]:
    """Pieces as rows of at most `width` columns, broken between words; line breaks count as spaces."""
    rows: list[list[Piece]] = [[]]
    for text, role in pieces:
        for number, word in enumerate(text.replace("\n", " ").replace("\t", " ").split(" ")):
            part = (" " if number and rows[-1] else "") + word
            if rows[-1] and pieces_width(rows[-1]) + pieces_width([(part, role)]) > width:
                rows.append([])
                part = part.lstrip()
            if part:
                rows[-1].append((clip(part, width), role))
    return [row for row in rows if row]


def _lines(rows: Sequence[Sequence[Piece]], palette: Palette) -> Content:
    return Content("\n").join([content(row, palette) for row in rows])
