"""A message or a call in its agent's transcript, or an observation with the messages behind it: what an event, a search, a
compaction and an observation lead to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from watchkeeper.store.agent_snapshot import (
    ObservationFacts,
    PassRange,
    StoredMessage,
    newest_messages,
    observation,
    passes_of,
)
from watchkeeper.store.agents import load
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.search.messages import search
from watchkeeper.store.sessions import of_agent
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.pages.memory import PASS_KEY
from watchkeeper_tui.pages.transcript import (
    JUMPS,
    Item,
    ItemState,
    beginning,
    item_units,
    items_of,
    place_of_line,
    stepped,
)
from watchkeeper_tui.reader import fold_message
from watchkeeper_tui.rendering.documents import LineCache, Unit, lazy, text_units
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import TranscriptBlock
from watchkeeper_tui.widgets.bars import Crumb, KeyLine, PathLine, Prompt, StatusLine
from watchkeeper_tui.widgets.rows import Cell, Column, PageLine, Piece, RowView, set_title

AROUND = 60
"""Messages that are read on each side."""
MOST_BEHIND = 400
"""Messages that are read of those behind an observation."""
FOLDED_LINES = 6
"""Lines of an item that are shown before Enter unfolds it; the message looked at is shown whole."""
FOLDED_OBSERVATION = 6
"""The same of an observation."""
MOST_HITS = 400
_OBSERVATION = "observation"
"""The key of the lines of an observation."""


@dataclass(frozen=True, slots=True)
class Place:
    """One message of one agent, or an observation and the messages behind it."""

    agent_id: str
    seq: int
    call_id: str = ""
    """The call in the message that is meant; empty: the whole message."""
    observation: int | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """What was read around a place."""

    place: Place
    agent: str
    name: str
    """The name of the session."""
    last_seq: int
    messages: tuple[StoredMessage, ...]
    hits: tuple[Place, ...]
    """All places in the session with the words, or the messages that the observation cites; the oldest first."""
    complete: bool
    passes: tuple[PassRange, ...] = ()
    observation: ObservationFacts | None = None


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


class MessageScreen(WatchScreen):
    """`n` and `N` go through all messages of the session that hold the words, or that an observation cites; Enter unfolds,
    and opens a compaction; O opens the session."""

    SCOPE = "message"
    BINDINGS: ClassVar[list[BindingType]] = bindings("message")

    def __init__(self, session_id: str, place: Place, *, words: str = "", until: int = 0) -> None:
        """`until`: in a replay, the last message that there was; nothing later is shown, and nothing can be done."""
        super().__init__()
        self._session_id = session_id
        self._place = place
        self._words = words
        self._until = until
        self._marks = [word.casefold() for word in words.replace('"', " ").split() if word]
        self._around: Around | None = None
        self._blocks: tuple[TranscriptBlock, ...] = ()
        self._expanded: frozenset[str] = frozenset()
        self._cache = LineCache()

    def compose(self) -> ComposeResult:
        yield PathLine()
        yield LinesView(id="message", classes="pane")
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.view.focus()
        self.show_keys()
        self._read()

    @property
    def view(self) -> LinesView:
        return self.query_one(LinesView)

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        around, place = self._around, self._place
        found = [Crumb("session", self._session_id, around.name if around is not None else self._session_id)]
        found.append(
            Crumb("agent", place.agent_id, f"agent {around.agent}" if around is not None else "agent")
        )
        call = next(
            (block for block in self._blocks if place.call_id and block.call_id == place.call_id), None
        )
        if place.observation is not None:
            found.append(Crumb("observation", "", f"observation {place.observation}"))
        elif call is not None:
            found.append(Crumb("message", "", f"call {call.title} #{place.seq}"))
        else:
            found.append(Crumb("message", "", f"message #{place.seq}"))
        return tuple(found)

    # Reading.

    def _read(self) -> None:
        place, session_id, words, until = self._place, self._session_id, self._words, self._until
        known = self._around

        def question(connection: Connection) -> object:
            return read_around(connection, session_id, place, words, known, until)

        self.ask_reader(question, lambda result: self._arrived(place, result))

    def _arrived(self, place: Place, result: object) -> None:
        if place != self._place or not self.is_usable:
            return
        if not isinstance(result, Around):
            said = result if isinstance(result, Exception) else "this message is no longer in the database"
            self.say(f"! {self.trouble(said)}", "failed", seconds=12)
            return
        self._around = result
        names: dict[str, str] = {}
        self._blocks = tuple(block for message in result.messages for block in fold_message(message, names))
        self.redraw()
        if result.observation is None:
            # Only after a layout does the view know how far it can scroll.
            self.call_after_refresh(self.view.bring_up, f"{place.seq}.mark")
        self.show_keys()

    # Drawing.

    def _sought(self, items: Sequence[Item]) -> frozenset[str]:
        """The keys of the items that are looked at: the call, or all of the message."""
        place = self._place
        if place.observation is not None:
            return frozenset()
        calls = [item.block.key for item in items if place.call_id and item.block.call_id == place.call_id]
        return frozenset(calls or [item.block.key for item in items if place.seq in item.seqs])

    def redraw(self) -> None:
        """Rebuild the lines."""
        around = self._around
        if around is None or not self.is_mounted:
            return
        # The scrollbar may come only with these lines.
        width = max(
            10, self.view.scrollable_content_region.width - (1 if self.view.show_vertical_scrollbar else 2)
        )
        self.view.set_rows(lazy(list(self._lines(around, width)), self._cache))
        self.view.refresh()
        pieces: list[Piece] = [(f"#{around.place.seq} of {around.last_seq}", "accent")]
        if (seen := around.observation) is not None:
            pieces = [(f"#{seen.first_seq}–#{seen.last_seq}", "accent"),
                      (f" of {around.last_seq}, {formatting.plural(len(around.hits), 'message')} cited", "muted")]  # fmt: skip
        pieces = [(clip(sanitize(around.agent), 28), "strong"), ("  ", "text"), *pieces]
        if self._words:
            pieces += [("  /", "accent"), (clip(sanitize(self._words), 40), "match")]
        set_title(self.view, pieces, self.watch_app.palette)
        self.draw_path()
        self._describe()

    def _lines(self, around: Around, width: int) -> Iterator[PageLine | Unit]:
        items = items_of(self._blocks)
        first = around.messages[0].seq if around.messages else around.place.seq
        last = around.messages[-1].seq if around.messages else around.place.seq
        begins, ends = 1, around.last_seq
        if (seen := around.observation) is not None:
            begins, ends = seen.first_seq, min(seen.last_seq, around.last_seq)
            yield from self._observation_lines(seen, width)
        if first > begins:
            how = "" if seen is not None else "; [ loads them"
            yield PageLine("earlier", ((f"… #{begins} to #{first - 1} earlier{how}", "faint"),))
        sought, cited = self._sought(items), {hit.seq for hit in around.hits} if seen is not None else set()
        # Behind an observation, each message was replaced.
        passes = [each for each in around.passes if first - 1 <= each.last <= last and seen is None]
        is_marked = False
        for item in items:
            while passes and item.block.seq > passes[0].last:
                yield _rule(passes.pop(0), width)
            if item.block.key in sought and not is_marked:
                call = f"call {item.block.title} " if self._place.call_id and item.block.call_id else ""
                rule = clip(f"── {call}#{around.place.seq} ", width)
                yield PageLine(f"{around.place.seq}.mark", ((rule.ljust(width, "─"), "accent"),))
                is_marked = True
            state = ItemState(
                width,
                is_unfolded=(item.block.key in sought) != (item.block.key in self._expanded),
                folded_lines=FOLDED_LINES,
                words=tuple(self._marks),
                note="cited" if any(seq in cited for seq in item.seqs) else "",
            )
            yield from item_units(item, state, self._cache)
        for each in passes:
            yield _rule(each, width)
        if last < ends:
            yield PageLine("later", ((f"… #{last + 1} to #{ends} follow; ] loads them", "faint"),))

    def _observation_lines(self, seen: ObservationFacts, width: int) -> Iterator[PageLine | Unit]:
        is_whole = _OBSERVATION in self._expanded
        head: list[Piece] = [(f"{sanitize(seen.kind)} {seen.id}", "compaction"),
                             (f"  {formatting.tokens(seen.tokens)} tok, replaces #{seen.first_seq}–#{seen.last_seq}", "muted")]  # fmt: skip
        yield PageLine("observation.0", tuple(head), _OBSERVATION, seen.text)
        whole = seen.text.strip("\n")
        text = whole if is_whole else beginning(whole, FOLDED_OBSERVATION, width - 2, FOLDED_OBSERVATION)
        yield from text_units(
            "text", text, "markdown", width, key=_OBSERVATION, before=("  ", "text"), words=self._marks
        )
        if len(text) < len(whole):
            more = f"  … {formatting.plural(max(1, whole.count(chr(10), len(text))), 'more line')}, Enter unfolds"
            yield PageLine("observation.more", ((more, "faint"),), _OBSERVATION, seen.text)
        yield PageLine("behind", ((clip("── source messages ", width).ljust(width, "─"), "accent"),))

    def _describe(self) -> None:
        around = self._around
        pieces: list[Piece] = [("loading …", "muted")]
        if around is not None and (self._words or around.observation is not None):
            line = self.view.selected
            seq = (
                place_of_line(line.key)[0]
                if line is not None and around.observation is not None
                else around.place.seq
            )
            place = next(
                (
                    at
                    for at, hit in enumerate(around.hits, start=1)
                    if hit.seq == seq and hit.agent_id == around.place.agent_id
                ),
                0,
            )
            more = "" if around.complete else "+"
            what = "matching messages in this session" if self._words else "cited messages"
            pieces = [(f"{place} of {len(around.hits)}{more} {what}", "muted")]
        elif around is not None:
            pieces = []
            replaced = next(
                (each for each in around.passes if each.first <= around.place.seq <= each.last), None
            )
            if replaced is not None:
                pieces = [("◆ ", "compaction"), (f"compaction {replaced.number} replaced this message   ", "muted"),
                          ("c", "key"), (" goes there", "muted")]  # fmt: skip
        self.query_one(StatusLine).pieces = tuple(self.notice(self.watch_app.now()) or pieces)

    def why_not(self, action: Action) -> str:
        around, cites = self._around, self._place.observation is not None
        if action.id == "next" and not self.sought and (around is None or len(around.hits) < 2):
            return "no cited messages" if cites else "no other matching message in this session"
        if action.id == "compaction.next" and not (around is not None and around.passes):
            return "no compactions"
        if (action.id == "behind" and not cites) or (action.id == "message.earlier" and cites):
            return (
                "available only for messages replaced by an observation"
                if not cites
                else "an observation has no neighbouring messages"
            )
        return ""

    @property
    def searched_part(self) -> str:
        messages = self._around.messages if self._around is not None else ()
        return f" in the messages #{messages[0].seq}–#{messages[-1].seq}" if messages else ""

    def tick(self, now: float) -> None:
        self._describe()

    # Going on.

    def step_without_search(self, step: int) -> None:
        around = self._around
        if around is None or not around.hits:
            return
        if around.observation is not None:
            cited = {hit.seq for hit in around.hits}
            self._jump(
                [item for item in items_of(self._blocks) if cited.intersection(item.seqs)],
                step,
                "cited message",
            )
            return
        place = around.hits.index(around.place) if around.place in around.hits else 0
        found = around.hits[(place + step) % len(around.hits)]
        if found == around.place:
            self.say("no other matching message in this session", "muted", seconds=3)
            return
        self._place, self._expanded = found, frozenset()
        self._read()

    def action_page(self, direction: int) -> None:
        around = self._around
        if around is None or not around.messages or around.observation is not None:
            return
        edge = around.messages[0].seq - 1 if direction < 0 else around.messages[-1].seq + 1
        if not 1 <= edge <= around.last_seq:
            self.say(
                "first message reached" if direction < 0 else "last message reached",
                "muted",
                seconds=3,
            )
            return
        self._place, self._expanded = Place(around.place.agent_id, edge), frozenset()
        self._read()

    def action_jump(self, what: str, step: int = 1) -> None:
        """Go to the next of what is read here; after the last one, to the first."""
        name, is_such = JUMPS[what]
        self._jump([item for item in items_of(self._blocks) if is_such(item)], step, name)

    def _jump(self, items: Sequence[Item], step: int, name: str) -> None:
        line = self.view.selected
        here = place_of_line(line.key) if line is not None else (0, 0)
        if line is not None and line.id.endswith(".mark"):
            here = (self._place.seq, -1)
        item = stepped(items, here, step)
        if item is None:
            self.say(f"no {name} in the loaded messages", "muted", seconds=3)
        else:
            self.view.bring_up(f"{item.block.key}.0")
            self._describe()

    def action_compaction(self) -> None:
        """Go to the next compaction in the transcript; where none is read, open the one that replaced this message."""
        rows, around = self.view.rows, self._around
        rules = [f"{PASS_KEY}{each.id}" for each in around.passes] if around is not None else []
        places = [(place, rule) for rule in rules if (place := self.view.place_of(rule)) is not None]
        if places:
            here = self.view.place_of(self.view.selected_id or "") or 0
            self.view.bring_up(next((rule for place, rule in sorted(places) if place > here), min(places)[1]))
            return
        seq = self._place.seq
        passed = (
            next((each for each in around.passes if each.first <= seq <= each.last), None)
            if around is not None
            else None
        )
        if passed is None or not rows:
            self.say("no compaction in the loaded messages", "muted", seconds=3)
        else:
            self.watch_app.open_compaction(passed.id, until=self._until)

    def action_in_transcript(self) -> None:
        """Show the message under the cursor with what came before and after it."""
        line = self.view.selected
        seq = place_of_line(line.key)[0] if line is not None else 0
        if self._place.observation is None:
            self.say("already in the transcript", "muted", seconds=3)
        elif not seq:
            self.say("select a message first", "muted", seconds=3)
        else:
            self.watch_app.open_message(self._session_id, self._place.agent_id, seq, until=self._until)

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        line = self.view.selected
        if line is not None and line.key.startswith(PASS_KEY):
            self.watch_app.open_compaction(int(line.key.removeprefix(PASS_KEY)), until=self._until)
        elif line is not None and line.key:
            self._expanded = self._expanded ^ {line.key}
            self.redraw()

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        self._describe()

    def action_open(self) -> None:
        self.view.action_open()

    def action_session(self) -> None:
        self.watch_app.open_session(self._session_id)

    def action_copy(self) -> None:
        line = self.view.selected
        block = next((each for each in self._blocks if line is not None and each.key == line.key), None)
        text = "\n".join(block.lines) if block is not None else line.copy if line is not None else ""
        if text:
            self.watch_app.copy_text(text)
            self.say(f"copied {len(text):,} characters", "done", seconds=3)


def _rule(each: PassRange, width: int) -> PageLine:
    """The line below the messages that a compaction replaced."""
    undone = "" if each.status == "applied" else f" ({sanitize(each.status)})"
    text = f"── ◆ compaction {each.number}{undone} replaced #{each.first}–#{each.last}; Enter opens it "
    return PageLine(
        f"{PASS_KEY}{each.id}", ((clip(text, width).ljust(width, "─"), "compaction"),), f"{PASS_KEY}{each.id}"
    )


def read_around(
    connection: Connection, session_id: str, place: Place, words: str, known: Around | None, until: int = 0
) -> Around | None:
    """The messages around a message, or behind an observation, and the other places of the words in its session; None if
    it is gone. `known`: what was read before on this screen. `until`: the last message that there is; 0: all."""
    reads = Queries(connection)
    agent, session = load(reads, place.agent_id), of_agent(reads, place.agent_id)
    if agent is None or session is None or session.id != session_id:
        return None
    ends = min(until, agent.last_seq) if until else agent.last_seq
    passes = [each for each in passes_of(connection, place.agent_id) if each.first <= each.last <= ends]
    around = Around(
        place,
        agent.name,
        session.name[:200],
        ends,
        (),
        (),
        True,
        tuple(sorted(passes, key=lambda each: each.last)),
    )
    if place.observation is not None:
        seen = observation(connection, place.agent_id, place.observation)
        if seen is None:
            return None
        last = min(seen.last_seq, ends)
        behind = newest_messages(connection, place.agent_id, MOST_BEHIND, first=seen.first_seq, last=last)
        cited = tuple(Place(place.agent_id, seq) for seq in sorted(set(seen.citations)) if seq <= last)
        return replace(around, messages=tuple(behind), hits=cited, observation=seen)
    last = min(place.seq + AROUND, ends)
    messages = newest_messages(
        connection, place.agent_id, 2 * AROUND + 1, first=place.seq - AROUND, last=last
    )
    if known is not None:
        return replace(around, messages=tuple(messages), hits=known.hits, complete=known.complete)
    found = search(connection, words, session_id=session_id, limit=MOST_HITS) if words else None
    hits = tuple(Place(hit.agent_id, hit.seq) for hit in reversed(found.hits)) if found is not None else ()
    return replace(around, messages=tuple(messages), hits=hits, complete=found is None or found.complete)
