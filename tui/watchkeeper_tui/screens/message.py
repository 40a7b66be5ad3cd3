"""A message in its agent's transcript: the messages around it, other messages with the same words, its
session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from watchkeeper.store.agent_snapshot import StoredMessage, newest_messages
from watchkeeper.store.driver import Connection
from watchkeeper.store.search.messages import search
from watchkeeper_tui.pages.transcript import ItemState, item_units, items_of
from watchkeeper_tui.reader import fold_message
from watchkeeper_tui.rendering.documents import LineCache, Unit, lazy
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import TranscriptBlock
from watchkeeper_tui.widgets.bars import KeyHint, KeyLine, Prompt, StatusLine
from watchkeeper_tui.widgets.rows import Cell, Column, PageLine, Piece, RowView, set_title

AROUND = 60
"""Messages that are read on each side."""
FOLDED_LINES = 6
"""Lines of an item that are shown before Enter unfolds it; the message looked at is shown whole."""
MOST_HITS = 400


@dataclass(frozen=True, slots=True)
class Place:
    """One message of one agent."""

    agent_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Around:
    """What was read around a place."""

    place: Place
    agent: str
    name: str
    """Of the session."""
    last_seq: int
    messages: tuple[StoredMessage, ...]
    hits: tuple[Place, ...]
    """All places in the session, the oldest first."""
    complete: bool


class LinesView(RowView[PageLine]):
    """The transcript around the message."""

    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def row_id(self, row: PageLine) -> str:
        return row.id

    def row_cells(self, row: PageLine) -> Sequence[Cell]:
        return (row.pieces,)

    def laid_out(self) -> None:
        screen = self.screen
        if isinstance(screen, MessageScreen):
            screen.redraw()

    def bring_up(self, row_id: str) -> None:
        """Select a row, a third of the way down the view."""
        if self.select(row_id, tell=False):
            place = self.place_of(row_id) or 0
            self.scroll_to(y=max(0, place - self._visible_rows() // 3), animate=False, immediate=True)


class MessageScreen(WatchScreen):
    """`n` and `N` go through all messages of the session that hold the words; Enter unfolds; O opens the
    session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "hit(1)", "Next", show=False, id="message.next"),
        Binding("N", "hit(-1)", "Previous", show=False, id="message.previous"),
        Binding("left_square_bracket", "page(-1)", "Earlier", show=False, id="message.earlier"),
        Binding("right_square_bracket", "page(1)", "Later", show=False, id="message.later"),
        Binding("o", "session", "Open the session", show=False, id="message.session"),
        Binding("y", "copy", "Copy", show=False, id="message.copy"),
        Binding("escape", "back", "Back", show=False, id="message.back"),
    ]

    def __init__(self, session_id: str, agent_id: str, seq: int, words: str) -> None:
        super().__init__()
        self._session_id = session_id
        self._place = Place(agent_id, seq)
        self._words = words
        self._marks = [word.casefold() for word in words.replace('"', " ").split() if word]
        self._around: Around | None = None
        self._blocks: tuple[TranscriptBlock, ...] = ()
        self._expanded: frozenset[str] = frozenset()
        self._cache = LineCache()

    def compose(self) -> ComposeResult:
        yield LinesView(id="message", classes="pane")
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.view.focus()
        self._draw_keys()
        self._read()

    @property
    def view(self) -> LinesView:
        return self.query_one(LinesView)

    # Reading.

    def _read(self) -> None:
        place, session_id, words = self._place, self._session_id, self._words
        known = self._around.hits if self._around is not None else None
        complete = self._around.complete if self._around is not None else True

        def question(connection: Connection) -> object:
            return read_around(connection, session_id, place, words, known, complete)

        def answer(result: object) -> None:
            self.app.call_later(self._arrived, place, result)

        self.watch_app.reader.ask(question, answer)

    def _arrived(self, place: Place, result: object) -> None:
        if place != self._place or not self.is_usable:
            return
        if not isinstance(result, Around):
            said = result if isinstance(result, Exception) else "that message is no longer in the database"
            self.say(f"! {self.trouble(said)}", "failed", seconds=12)
            return
        self._around = result
        names: dict[str, str] = {}
        self._blocks = tuple(block for message in result.messages for block in fold_message(message, names))
        self.redraw()
        # Only after a layout does the view know how far it can scroll.
        self.call_after_refresh(self.view.bring_up, f"{place.seq}.mark")
        self._draw_keys()

    # Drawing.

    def redraw(self) -> None:
        """Rebuild the lines."""
        around = self._around
        if around is None or not self.is_mounted:
            return
        # The scrollbar may come only with these lines.
        width = max(
            10, self.view.scrollable_content_region.width - (1 if self.view.show_vertical_scrollbar else 2)
        )
        lines: list[PageLine | Unit] = []
        first = around.messages[0].seq if around.messages else 1
        if first > 1:
            lines.append(PageLine("earlier", ((f"… #1 to #{first - 1} are earlier; [ reads them", "faint"),)))
        is_marked = False
        for item in items_of(self._blocks):
            is_sought = around.place.seq in item.seqs
            if is_sought and not is_marked:
                rule = f"── #{around.place.seq} "
                lines.append(PageLine(f"{around.place.seq}.mark", ((rule.ljust(width, "─"), "accent"),)))
                is_marked = True
            unfolded = is_sought != (item.block.key in self._expanded)
            state = ItemState(
                width, is_unfolded=unfolded, folded_lines=FOLDED_LINES, words=tuple(self._marks)
            )
            lines += item_units(item, state, self._cache)
        last = around.messages[-1].seq if around.messages else 0
        if last < around.last_seq:
            lines.append(
                PageLine(
                    "later", ((f"… #{last + 1} to #{around.last_seq} are later; ] reads them", "faint"),)
                )
            )
        self.view.set_rows(lazy(lines, self._cache))
        self.view.refresh()
        pieces: list[Piece] = [
            (clip(sanitize(around.agent), 28), "strong"),
            (f"  #{around.place.seq} of {around.last_seq}", "accent"),
            (f"  {clip(' '.join(sanitize(around.name).split()), 50)}", "muted"),
        ]
        if self._words:
            pieces += [("  /", "accent"), (clip(sanitize(self._words), 40), "match")]
        set_title(self.view, pieces, self.watch_app.palette)
        self._describe()

    def _describe(self) -> None:
        around = self._around
        pieces: list[Piece] = [("reading …", "muted")]
        if around is not None and self._words:
            place = around.hits.index(around.place) + 1 if around.place in around.hits else 0
            more = "" if around.complete else "+"
            pieces = [
                (f"{place} of {len(around.hits)}{more} messages of this session with these words", "muted")
            ]
        elif around is not None:
            pieces = []
        self.query_one(StatusLine).pieces = tuple(self.notice(self.watch_app.now()) or pieces)

    def _draw_keys(self) -> None:
        alone = (
            ""
            if self._around is not None and len(self._around.hits) > 1
            else "no other message of this session holds the words"
        )
        self.query_one(KeyLine).hints = (
            KeyHint("n N", "Next, previous", "hit(1)", alone),
            KeyHint("[ ]", "Earlier, later", "page(-1)"),
            KeyHint("↵", "Unfold", "open"),
            KeyHint("o", "Open the session", "session"),
            KeyHint("y", "Copy", "copy"),
            KeyHint("esc", "Back", "back"),
            KeyHint("?", "Help", "help"),
        )

    def tick(self, now: float) -> None:
        self._describe()

    # Going on.

    def action_hit(self, step: int) -> None:
        around = self._around
        if around is None or not around.hits:
            return
        place = around.hits.index(around.place) if around.place in around.hits else 0
        found = around.hits[(place + step) % len(around.hits)]
        if found == around.place:
            self.say("no other message of this session holds the words", "muted", seconds=3)
            return
        self._place, self._expanded = found, frozenset()
        self._read()

    def action_page(self, direction: int) -> None:
        around = self._around
        if around is None or not around.messages:
            return
        edge = around.messages[0].seq - 1 if direction < 0 else around.messages[-1].seq + 1
        if not 1 <= edge <= around.last_seq:
            self.say(
                "that is the first message" if direction < 0 else "that is the last message",
                "muted",
                seconds=3,
            )
            return
        self._place, self._expanded = Place(around.place.agent_id, edge), frozenset()
        self._read()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        line = self.view.selected
        if line is not None and line.key:
            self._expanded = self._expanded ^ {line.key}
            self.redraw()

    def action_open(self) -> None:
        self.view.action_open()

    def action_session(self) -> None:
        self.watch_app.open_session(self._session_id)

    def action_copy(self) -> None:
        line = self.view.selected
        block = next((each for each in self._blocks if line is not None and each.key == line.key), None)
        if block is not None:
            text = "\n".join(block.lines)
            self.watch_app.copy_text(text)
            self.say(f"copied {len(text):,} characters", "done", seconds=3)

    def action_back(self) -> None:
        self.app.pop_screen()

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Message",
                [
                    ("n N", "next, previous message of the session with the words"),
                    ("[ ]", "earlier and later messages of the agent"),
                    ("enter", "fold, unfold"),
                    ("o", "open the session"),
                    ("y", "copy the block"),
                    ("esc", "back to the list"),
                ],
            )
        ]


def read_around(
    connection: Connection,
    session_id: str,
    place: Place,
    words: str,
    known: tuple[Place, ...] | None,
    complete: bool,
) -> Around | None:
    """The messages around a message, and the other places of the words in its session; None if the message is
    gone."""
    row = connection.execute(
        "SELECT a.name, a.last_seq, substr(coalesce(s.title, s.goal), 1, 200) FROM agents a JOIN sessions s"
        " ON s.id = a.session_id"
        " WHERE a.id = ? AND s.id = ?",
        (place.agent_id, session_id),
    ).fetchone()
    if row is None:
        return None
    messages = tuple(
        newest_messages(
            connection, place.agent_id, 2 * AROUND + 1, first=place.seq - AROUND, last=place.seq + AROUND
        )
    )
    hits = known
    if hits is None:
        found = search(connection, words, session_id=session_id, limit=MOST_HITS) if words else None
        hits = (
            tuple(Place(hit.agent_id, hit.seq) for hit in reversed(found.hits)) if found is not None else ()
        )
        complete = found.complete if found is not None else True
    return Around(place, row[0], row[2], row[1], messages, hits, complete)
