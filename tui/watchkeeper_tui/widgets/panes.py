"""Panes 1, 2 and 4: the plan tree with each agent's state, context, tokens and cost; the events, newest at the end;
and compaction over the whole session."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.reactive import reactive, var
from textual.widget import Widget

from watchkeeper.records.messages import context_percent
from watchkeeper.records.waiting import Waiting
from watchkeeper.store.agent_snapshot import TurnFacts, newest_turns
from watchkeeper.store.driver import Connection
from watchkeeper.store.names import with_role
from watchkeeper.store.projection import AgentFacts, CompactionFacts, RoleFacts, TaskFacts, roles_of
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import bindings
from watchkeeper_tui.formatting import EventLine
from watchkeeper_tui.pages.memory import (
    compaction_mark,
    compaction_pieces,
    is_buffered,
    predicts_compaction,
    tokens_per_second,
)
from watchkeeper_tui.plan_tree import ORDERS, PlanRow, PlanRows, PlanShaper, plan_rows
from watchkeeper_tui.reader import Reader
from watchkeeper_tui.sanitize import clip, clip_label, fit, sanitize
from watchkeeper_tui.snapshot import Condition, Roster, SessionState, Snapshot, no_agents_text
from watchkeeper_tui.watch_app import watch_app
from watchkeeper_tui.widgets.bars import Clicked
from watchkeeper_tui.widgets.rows import (
    Cell,
    Column,
    Piece,
    RowView,
    clip_pieces,
    content,
    pane_title,
    pieces_width,
    set_title,
)

BAR_CELLS = 8
CONTEXT_CELLS = BAR_CELLS + len(" 100%")
NAME_AT = 3
"""Where names begin: after the selection's mark, the state's and a space."""
WAITING_WORDS = frozenset(Waiting)
_LEFT = re.compile(r"\bin ((?:\d+ d )?\d+:\d\d:\d\d)\b")
"""How long a usage limit still lasts, in the note of a state."""
NOTE_CELLS = 18
"""Cells kept for the note of a row's state beside a long name."""
MOST_NAME_CELLS = 80
"""A name longer than this takes no more room from other columns."""
TREE_CELLS = 6
"""Cells before a name for the lines of the tree."""
FIGURES_CELLS, COST_CELLS = 25, 9
"""Cells of the columns that no name takes the room of: state, context and tokens; and cost, where there is any."""
CALM = 0.75
"""The share of a window below which a context needs no attention."""
TREE_NAME_CELLS = 14
"""Cells kept for a name that is deep in the tree."""


def context_bar(used: int, limit: int, cells: int = BAR_CELLS) -> list[Piece]:
    """A context's filling as a bar and a percentage; its tokens alone where the window is not known."""
    if limit <= 0:
        return [(fit(f"{formatting.tokens(used)} tok", cells + 5), "muted")]
    fraction, percent = formatting.share(used, limit), context_percent(used, limit) or 0
    bar = formatting.bar(fraction, 1, cells) if percent else ""
    role = "bar_low" if fraction < CALM else "bar_high" if fraction < 0.92 else "bar_full"
    return [
        (bar, role),
        ("░" * (cells - len(bar)), "bar_empty"),
        (f" {percent:>3}%", role),
    ]


def filtered_words(pane: Widget, what: str, words: str) -> str:
    """Why a pane with this filter is empty, and the key that removes it; empty where there is no filter."""
    key = watch_app(pane).key_for("filter.drop")
    return f"no {what} matches the filter {sanitize(words)}; {key} removes it" if words else ""


class PlanView(RowView[PlanRow]):
    """The tree, one row a task or agent."""

    SCOPE = "plan"
    BINDINGS: ClassVar[list[BindingType]] = bindings("plan")
    HEADINGS = True
    IDLE_SELECTION = True
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("S", 1),
        Column("task / agent", 24, flexible=True),
        Column("model", 9, drop=4),
        Column("context", CONTEXT_CELLS, drop=1),
        Column("tokens", 6, right=True, drop=2),
        Column("cost", 8, right=True, drop=3),
        Column("$/m", 4, right=True, drop=6),
    )

    BY_RATE: ClassVar[Sequence[Column]] = (
        *COLUMNS[:-2],
        Column("cost", 8, right=True, drop=6),
        Column("$/m", 5, right=True, drop=1),
    )
    """While the plan is sorted by cost per minute."""

    marked: reactive[frozenset[str]] = reactive(frozenset(), init=False)
    """Ids of the rows that the user marked."""
    collapsed: var[frozenset[str]] = var(frozenset(), init=False)
    """Ids of the rows that the user folded."""
    filter_words = var("", init=False)
    order = var("tree", init=False)
    """One of `plan_tree.ORDERS`."""
    is_tree = var(False, init=False)
    """The order was chosen in another session: it sorts what is below each row, and the tree stays."""

    def __init__(self) -> None:
        super().__init__(id="plan", classes="pane")
        self.shown: PlanRows = plan_rows(Snapshot(), 0.0)
        """The rows as they are filtered, folded and sorted now."""
        self._shaper = PlanShaper()
        self._now = 0.0
        self._rates: dict[str, float] = {}
        """Dollars a minute by agent."""
        self._nobody = self._said = ""
        self._names_of: tuple[TaskFacts, ...] = ()
        self._longest_name = 0
        self._columns_for: tuple[int, Sequence[Column]] = (0, self.COLUMNS)
        self._columns: Sequence[Column] = self.COLUMNS

    def update(self, snapshot: Snapshot, now: float) -> None:
        """Show this plan as of `now`."""
        self._now = now
        self._rates = dict(snapshot.rates.agent_cost) if snapshot.state is SessionState.LIVE else {}
        costs = snapshot.session is not None and bool(snapshot.session.cost_usd)
        is_live = snapshot.state is SessionState.LIVE
        self.hide(*(() if costs and is_live else ("$/m",) if costs else ("cost", "$/m")))
        if snapshot.tasks is not self._names_of:
            self._names_of = snapshot.tasks
            longest = max(
                (
                    cell_len(sanitize(with_role(task.label, task.role))[:MOST_NAME_CELLS])
                    for task in snapshot.tasks
                ),
                default=0,
            )
            if longest + TREE_CELLS != self._longest_name:
                self._longest_name, self._widths_for = longest + TREE_CELLS, -1
                self.refresh()
        self._nobody = "" if snapshot.agents or snapshot.tasks else no_agents_text(snapshot)
        self._shape(snapshot)

    def columns(self) -> Sequence[Column]:
        """Names have the room that they need before the models, which the agent pane has too."""
        columns = self.BY_RATE if self.order == "rate" else self.COLUMNS
        figures = FIGURES_CELLS + (0 if "cost" in self.hidden else COST_CELLS)
        wanted = min(self._longest_name, self.scrollable_content_region.width - figures)
        if (wanted, columns) != self._columns_for:
            self._columns_for = (wanted, columns)
            self._columns = [
                replace(each, cells=max(each.cells, wanted)) if each.flexible else each for each in columns
            ]
        return self._columns

    def forget(self) -> None:
        """Another session: nothing of the last one's is selected, marked, folded or filtered."""
        self._shaper, self.selected_id, self.touched = PlanShaper(), None, False
        self.set_reactive(PlanView.collapsed, frozenset())
        self.set_reactive(PlanView.filter_words, "")
        self.marked = frozenset()

    def watch_marked(self) -> None:
        self.title()

    def watch_collapsed(self) -> None:
        self._shape(self.shown.snapshot)

    def watch_filter_words(self) -> None:
        self._shape(self.shown.snapshot)

    def watch_order(self) -> None:
        self._widths_for = -1
        self.refresh()  # the columns are others
        self._shape(self.shown.snapshot)

    def _shape(self, snapshot: Snapshot) -> None:
        self.shown = self._shaper.rows(
            snapshot, self._now, collapsed=self.collapsed, words=self.filter_words, order=self.order,
            is_tree=self.is_tree,
        )  # fmt: skip
        said, self._said = self._said, self.empty_words()
        if not self.shown and self._said != said:
            self.refresh()
        self.set_rows(self.shown)
        self.title()

    def place_of(self, row_id: str) -> int | None:
        return self.shown.place_of(row_id)

    def on_click(self, event: events.Click) -> None:
        """A click on the mark before a name folds or unfolds what is below it."""
        event.prevent_default()  # the toolkit would do the following again
        super().on_click(event)
        row, offset = self.selected, event.get_content_offset(self)
        if row is None or not row.expandable or offset is None or event.chain != 1:
            return
        end = NAME_AT + len(self._indent(row.prefix))
        if end - 2 <= offset.x < end and offset.y == self._index + 1 - self.scroll_offset.y:
            self.post_message(Clicked(f"fold({'▾' in row.prefix})"))

    def empty_words(self) -> str:
        return self._nobody or filtered_words(self, "row", self.filter_words)

    def title(self) -> None:
        """Bring the pane's title up to date."""
        pieces = pane_title("1", "Plan")
        if self.order != "tree":
            order = ORDERS.get(self.order, "")
            pieces.append((f"  {order}, in the tree" if self.is_tree else f"  {order}", "accent"))
        if self.filter_words:
            pieces += [("  /", "accent"), (sanitize(self.filter_words), "match")]
        if self.marked:
            pieces.append((f"  ◆ {len(self.marked)} marked", "marked"))
        set_title(self, pieces, self.watch_app.palette)

    def row_id(self, row: PlanRow) -> str:
        return row.id

    def is_marked(self, row: PlanRow) -> bool:
        return row.id in self.marked

    def row_cells(self, row: PlanRow) -> Sequence[Cell]:
        condition, agent = row.condition, row.agent
        name_role = "muted" if condition.role in ("pending", "cancelled") else "text"
        name: list[Piece] = [(self._indent(row.prefix), "faint"), (row.name, name_role)]
        role = self._role(row.task)
        if role is not None:
            model = f" {sanitize(formatting.model_name(role.model))}" if agent is None else ""
            name.append((f"  {sanitize(role.source)}{model}", "muted"))
        if row.hidden:
            name.append((f" +{row.hidden}", "muted"))
        if agent is None and not row.tokens and row.cost_usd is None:
            return ([(condition.glyph, condition.role)], self._alone(name, condition))
        name[1] = (clip_label(row.name, self._room_for_name(row)), name_role)
        if (
            agent is not None
            and row.task is None
            and agent.task_id is None
            and agent.parent_agent_id is not None
            and agent.goal
        ):
            # Other programs name their sub-agents by meaningless ids.
            name.append((f"  {' '.join(sanitize(agent.goal[:200]).split())}", "muted"))
        context: list[Piece]
        if condition.word in WAITING_WORDS:
            # The line below the panes has the whole reason.
            left = _LEFT.search(condition.note) if condition.word == Waiting.LIMIT else None
            timed = f"{condition.word} {left[1]}" if left else condition.word
            context = [(timed if len(timed) <= CONTEXT_CELLS else condition.word, condition.role)]
        elif condition.note and condition.word != "pausing" and condition.role not in ("working", "done"):
            # One word: the line below the panes has the whole reason.
            context = [(condition.word, condition.role)]
        elif condition.word != "pausing" and agent is not None and agent.context_used:
            context = context_bar(agent.context_used, agent.context_limit)
        elif condition.role in ("pending", "working", "muted"):
            context = [(condition.word, "faint")]
        else:
            context = [(condition.word, condition.role)]
        rate = sum(self._rates.get(each, 0.0) for each in row.agent_ids) if self._rates else 0.0
        # A row with others below it sums them up, folded or not.
        sum_of = "Σ" if row.expandable else ""
        return (
            [(condition.glyph, condition.role)],
            name,
            [(sanitize(formatting.model_name(agent.model)) if agent else "", "muted")],
            context,
            [(sum_of + formatting.tokens(row.tokens) if row.tokens else "", "tokens")],
            [(formatting.bill(row) if row.tokens or row.cost_usd else "", "money")],
            [(formatting.rate(rate) if row.agent_ids else "", "muted")],
        )

    def _room_for_name(self, row: PlanRow) -> int:
        room = self._widths[1] if len(self._widths) > 1 else MOST_NAME_CELLS
        return max(1, room - cell_len(self._indent(row.prefix)))

    def _role(self, task: TaskFacts | None) -> RoleFacts | None:
        """The task's role, where it is not built in."""
        session = self.shown.snapshot.session
        role = roles_of(session.roles).get(task.role) if session is not None and task is not None else None
        return role if role is not None and not role.is_built_in else None

    def _alone(self, name: list[Piece], condition: Condition) -> list[Piece]:
        """A row without statistics, over the whole width: its name, then a note, or its state at the end."""
        quiet = condition.role in ("pending", "muted", "done", "cancelled")
        note = condition.note if condition.role != "done" and condition.word not in WAITING_WORDS else ""
        shown = [width for width in self._widths[1:] if width]
        whole = sum(shown) + len(shown) - 1
        word = note or condition.word
        fitted = clip_pieces(
            name, max(TREE_NAME_CELLS, whole - min(pieces_width([(word, "")]), NOTE_CELLS) - 2)
        )
        begin = sum(width + 1 for width in self._widths[1:3] if width)
        if not note:
            begin = whole - len(word)  # the name has the room before it
        room = whole - max(begin, pieces_width(fitted) + 2)
        if note and pieces_width([(note, "")]) > room:
            # The first of the tasks that it waits for; else a word.
            first, *others = note.split(", ")
            short = f"{first} +{len(others)}" if others and condition.word == "pending" else ""
            word = short if short and pieces_width([(short, "")]) <= room else condition.word
        return [
            *fitted,
            (" " * max(2, begin - pieces_width(fitted)), "text"),
            (word, "faint" if quiet else condition.role),
        ]

    def _indent(self, prefix: str) -> str:
        """The lines of the tree, their beginning left out where they would leave no room for the name."""
        room = (self._widths[1] if len(self._widths) > 1 else 24) - TREE_NAME_CELLS
        return prefix if len(prefix) <= max(4, room) else "…" + prefix[1 - max(4, room) :]


NAME_CELLS, WIDE_NAME_CELLS, WIDE_FROM = 16, 28, 70
"""The width of an agent's name, and in a pane of so many columns; where all are shorter, what happened has the
rest."""


class EventFilter:
    """Filters one reading's events after the other."""

    def __init__(self) -> None:
        self._for: tuple[str, dict[str, str]] = ("", {})
        self._events: Sequence[EventLine] = ()
        self._found: tuple[EventLine, ...] = ()

    def matching(self, events: Sequence[EventLine], words: str, names: dict[str, str]) -> Sequence[EventLine]:
        """Those of `events` that hold every word; `names` are agents' names by id."""
        wanted = words.casefold().split()
        if not wanted:
            return events
        last = self._events[-1].seq if self._events and events else 0
        if (words, names) != self._for or not last or events[-1].seq < last:
            self._for, self._found, last = (words, names), (), 0
        elif events is self._events:
            return self._found
        self._events = events
        oldest = events[0].seq if events else 0
        kept = [event for event in self._found if event.seq >= oldest]
        fresh = [event for event in events if event.seq > last and _holds(event, wanted, names)]
        self._found = (*kept, *fresh)
        return self._found


def _holds(event: EventLine, wanted: Sequence[str], names: dict[str, str]) -> bool:
    text = f"{event.kind} {names.get(event.agent_id or '', '')} {event.text}".casefold()
    return all(word in text for word in wanted)


class EventsView(RowView[EventLine]):
    """The tail of the session's log."""

    FOLLOWS = True
    EMPTY = "no events"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("at", 8),
        Column("agent", NAME_CELLS),
        Column("kind", 7),
        Column("what", 20, flexible=True),
    )

    filter_words = var("", init=False)

    def __init__(self) -> None:
        super().__init__(id="events", classes="pane")
        self._names: dict[str, str] = {}
        self._columns: Sequence[Column] = self.COLUMNS
        self._events: Sequence[EventLine] = ()
        self._filter = EventFilter()

    def update(self, events: Sequence[EventLine], names: dict[str, str]) -> None:
        """Show those of these events that have the words of the filter; `names` are agents' names by id."""
        if names is not self._names:
            self._names = names
            most = NAME_CELLS if self.size.width < WIDE_FROM else WIDE_NAME_CELLS
            cells = max(min(most, max(map(cell_len, names.values()), default=0)), 4)
            if cells != self._columns[1].cells:
                self._columns = [
                    replace(column, cells=cells) if column.title == "agent" else column
                    for column in self.COLUMNS
                ]
                self._widths_for = -1
                self.refresh()
        self._events = events
        self.set_rows(self._filter.matching(events, self.filter_words, names))
        self.scrolled()

    def watch_filter_words(self) -> None:
        self.update(self._events, self._names)

    def empty_words(self) -> str:
        return filtered_words(self, "event", self.filter_words) or self.EMPTY

    def forget(self) -> None:
        """Another session: its newest events are followed, and none is hidden."""
        self._filter, self._events, self.following, self.filter_words = EventFilter(), (), True, ""

    def columns(self) -> Sequence[Column]:
        return self._columns

    def scrolled(self) -> None:
        pieces = pane_title("2", "Events  ")
        if self.filter_words:
            pieces += [("/", "accent"), (sanitize(self.filter_words) + "  ", "match")]
        if self.following:
            pieces.append(("FOLLOW", "working"))
        elif self.unseen:
            pieces.append((f"{self.unseen:,} new ↓ G", "waiting"))
        else:
            pieces.append(("scrolled", "muted"))
        set_title(self, pieces, self.watch_app.palette)

    def row_id(self, row: EventLine) -> str:
        return str(row.seq)

    def place_of(self, row_id: str) -> int | None:
        place = bisect_left(self.rows, int(row_id), key=lambda row: row.seq)
        return place if place < len(self.rows) and self.rows[place].seq == int(row_id) else None

    def rows_since(self, row_id: str) -> int:
        """How many events came after that one, which a filter may hide."""
        return len(self.rows) - bisect_right(self.rows, int(row_id), key=lambda row: row.seq)

    def row_cells(self, row: EventLine) -> Sequence[Cell]:
        name = self._names.get(row.agent_id or "", "")
        return (
            [(formatting.time_of_day(row.at), "faint")],
            [(clip_label(name, self._columns[1].cells) or "-", "muted" if name else "faint")],
            [(row.kind, row.role)],
            [(row.text, "text" if row.role != "failed" else "failed")],
        )


ASK_SECONDS = 2.0
"""At most so often."""


class GrowthRates:
    """Tokens a second by which each agent's context grows, as far as that is known."""

    def __init__(self) -> None:
        self.known: Mapping[str, float] = {}
        self._asked: tuple[tuple[str, int], ...] = ()
        self._asked_at = float("-inf")

    def look(
        self, reader: Reader, agents: Sequence[AgentFacts], now: float, arrived: Callable[[], object]
    ) -> None:
        """Have the rates of these agents read, where they have taken turns since; `arrived` is called in the
        reader's thread."""
        wanted = tuple((agent.id, agent.turn) for agent in agents)
        if wanted == self._asked or 0 <= now - self._asked_at < ASK_SECONDS:
            return
        self._asked, self._asked_at = wanted, now
        if not wanted:
            self.known = {}
            return

        def question(connection: Connection) -> dict[str, Sequence[TurnFacts]]:
            return {agent_id: newest_turns(connection, agent_id) for agent_id, _ in wanted}

        def answer(result: object) -> None:
            if isinstance(result, dict):  # else it could not be read, which the screen says already
                rates = {agent_id: tokens_per_second(turns) for agent_id, turns in result.items()}
                self.known = {agent_id: rate for agent_id, rate in rates.items() if rate is not None}
                arrived()

        reader.ask(question, answer)


SOON = 0.55
"""From this share of the window on, an agent is listed as one that will compact."""


class CompactionView(RowView[CompactionFacts | AgentFacts]):
    """One row a pass, in flight first; then the agents that come nearest to one."""

    EMPTY = "no compactions yet"
    BINDINGS: ClassVar[list[BindingType]] = bindings("compactions")
    NUMBER = "4"
    IS_PREDICTED = True
    """Whether the closed pane names the agent that comes next."""
    growth_rates: var[Mapping[str, float]] = var(dict, init=False)
    """Tokens a second by which the contexts of agents grow, where that is known."""
    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def __init__(self) -> None:
        super().__init__(id="compaction", classes="pane")
        self._names: dict[str, str] = {}
        self._now = 0.0
        self._live = False
        self.near: Sequence[AgentFacts] = ()
        """The agents listed as coming near to a pass, the nearest first."""
        self.next: AgentFacts | None = None
        """The agent whose context is fullest, of those that work if any does."""
        self._growth = GrowthRates()
        self._heading: list[Piece] = []

    @property
    def is_due(self) -> bool:
        """Whether an agent is so full that it is to be compacted now."""
        threshold = self.watch_app.settings.summarization_threshold
        return any(compaction_mark(agent, threshold) <= agent.context_used for agent in self.near)

    def line(self) -> list[Piece]:
        """What the closed pane says: the passes, or that there was none, and which agent comes next."""
        pieces = [*self._heading]
        if not self._has_passes:
            pieces.append((f"  {self.EMPTY}", "muted"))
        if self.next is not None and self.IS_PREDICTED:
            pieces += [
                (f"  next: {clip(sanitize(self.next.full_label), 40)}", "text"),
                (self._note(self.next), "muted"),
            ]
        return pieces

    def action_newest(self) -> None:
        """Select the newest compaction, below those in flight and the agents that come near to one."""
        newest = next((row for row in self.rows if isinstance(row, CompactionFacts) and row.ended_at), None)
        if newest is not None:
            self.select(self.row_id(newest))

    def watch_growth_rates(self) -> None:
        self.repaint_changed()

    def _grown(self) -> None:
        """New growth rates of the fullest contexts have arrived."""
        if self.is_attached:
            self.growth_rates = self._growth.known

    def update(self, snapshot: Snapshot, roster: Roster, now: float) -> None:
        """Show the session's passes."""
        self._names, self._now = roster.names, now
        flying = [each for each in snapshot.compactions if each.status in ("running", "prepared")]
        ended = [each for each in snapshot.compactions if each.status not in ("running", "prepared")]
        predicted = [
            agent for agent in roster.nearest(0.001, snapshot) if predicts_compaction(snapshot, agent)
        ]
        # An agent that waits fills its context no further.
        self.next = next((one for one in predicted if one.status == "working"), next(iter(predicted), None))
        self.near = [
            each for each in predicted if formatting.share(each.context_used, each.context_limit) >= SOON
        ]
        self._live = snapshot.state is SessionState.LIVE
        if not self.touched:
            # The first row until the user selects one: running passes must stay visible.
            self._index, self.selected_id = 0, None
        self.set_rows([*flying, *self.near, *ended])
        removed = sum(
            (each.tokens_before or 0) - (each.tokens_after or 0) for each in ended if each.status == "applied"
        )
        pieces = pane_title(self.NUMBER, "Compaction")
        buffered = sum(1 for each in flying if is_buffered(each))
        if len(flying) > buffered:
            pieces.append((f"  ◌ {len(flying) - buffered} in flight", "working"))
        if buffered:
            pieces.append((f"  ◔ {formatting.plural(buffered, 'chunk')} buffered", "slot"))
        if removed > 0:
            pieces.append((f"  {formatting.tokens(removed)} tok freed", "muted"))
        set_title(self, pieces, self.watch_app.palette)
        self._heading = pieces
        if self._live:
            self._growth.look(self.watch_app.reader, self.near, now, lambda: self.app.call_later(self._grown))

    def row_id(self, row: CompactionFacts | AgentFacts) -> str:
        return f"agent:{row.id}" if isinstance(row, AgentFacts) else f"pass:{row.id}"

    def row_cells(self, row: CompactionFacts | AgentFacts) -> Sequence[Cell]:
        if isinstance(row, AgentFacts):
            note = self._note(row)
            return (
                [
                    ("…       " if self._has_passes else "… ", "faint"),
                    (
                        fit(clip_label(sanitize(row.full_label), self._name_cells), self._name_cells) + " ",
                        "text",
                    ),
                    *context_bar(row.context_used, row.context_limit),
                    (note, "bar_high" if note.endswith("due") else "muted"),
                ],
            )
        label = clip_label(self._names.get(row.agent_id, sanitize(row.agent_id)), self._name_cells)
        name = fit(label, self._name_cells)
        return (compaction_pieces(row, self._now, name=name),)

    @property
    def _has_passes(self) -> bool:
        return any(isinstance(row, CompactionFacts) for row in self.rows)

    @property
    def _name_cells(self) -> int:
        """The width of the names: as much as the longest that is shown needs, and no more than there is room for."""
        most = WIDE_NAME_CELLS if self.size.width >= WIDE_FROM else NAME_CELLS
        shown = [row.id if isinstance(row, AgentFacts) else row.agent_id for row in self.rows]
        return min(most, max((cell_len(self._names.get(each, each)) for each in shown), default=0))

    def _note(self, agent: AgentFacts) -> str:
        """In how many tokens the agent is compacted, and in about which time."""
        left = compaction_mark(agent, self.watch_app.settings.summarization_threshold) - agent.context_used
        return (
            f"  compacts in {formatting.tokens(left)} tok{self._when(agent, left)}"
            if left > 0
            else "  compaction due"
        )

    def _when(self, agent: AgentFacts, left: int) -> str:
        """In about which time, at the rate of its last turns, while it works."""
        rate = self.growth_rates.get(agent.id)
        return (
            f", ~{formatting.duration(left / rate)}"
            if rate and self._live and agent.status == "working"
            else ""
        )


class CompactionLine(Widget):
    """The compaction pane while it is closed; a click opens it."""

    DEFAULT_CSS = "CompactionLine { height: 1; background: $surface; padding: 0 1; }"

    pieces: reactive[tuple[Piece, ...]] = reactive(())

    def __init__(self) -> None:
        super().__init__(id="compaction-line")

    def render(self) -> Content:
        return content(clip_pieces(self.pieces, self.content_size.width), watch_app(self).palette)

    def on_click(self) -> None:
        self.post_message(Clicked("pane('compaction')"))
