"""Pane 1: the plan tree, with each agent's state, context, tokens and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events

from watchkeeper.records.messages import context_percent
from watchkeeper.store.snapshot import RoleFacts, TaskFacts, roles_of
from watchkeeper_tui import formatting
from watchkeeper_tui.plan_tree import ORDERS, PlanRow, PlanRows
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.session_status import Condition, nobody_yet
from watchkeeper_tui.widgets.cells import Cell, Column, Piece, clip_pieces, pieces_width, set_title
from watchkeeper_tui.widgets.rows import RowView
from watchkeeper_tui.widgets.status import KeyLine

BAR_CELLS = 8
CONTEXT_CELLS = BAR_CELLS + len(" 100%")
ASKS = "may it run "
"""The prefix of the reason of an agent that needs you; the glyph already says it."""
NAME_AT = 3
"""Where names begin: after the selection's mark, the state's and a space."""
NOTE_CELLS = 18
"""Cells kept for the note of a row's state beside a long name."""
NAME_CELLS = 14
"""Cells kept for a name that is deep in the tree."""


def context_bar(used: int, limit: int, cells: int = BAR_CELLS) -> list[Piece]:
    """A context's filling as a bar and a percentage."""
    fraction = formatting.share(used, limit)
    filled = formatting.bar_cells(fraction, cells)
    role = (
        "bar_low"
        if fraction < 0.5
        else "bar_mid"
        if fraction < 0.75
        else "bar_high"
        if fraction < 0.92
        else "bar_full"
    )
    return [
        ("▓" * filled, role),
        ("░" * (cells - filled), "bar_empty"),
        (f" {context_percent(used, limit) or 0:>3}%", role),
    ]


class PlanView(RowView[PlanRow]):
    """The tree, one row a task or agent."""

    HEADINGS = True
    IDLE_SELECTION = True
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("S", 1),
        Column("task / agent", 24, flexible=True),
        Column("agent", 12, drop=5),
        Column("model", 9, drop=4),
        Column("context", CONTEXT_CELLS, drop=1),
        Column("tokens", 6, right=True, drop=2),
        Column("cost", 8, right=True, drop=3),
        Column("$/m", 4, right=True, drop=6),
    )

    def __init__(self) -> None:
        super().__init__(id="plan", classes="pane")
        self._rates: dict[str, float] = {}
        self.marked: frozenset[str] = frozenset()
        self.filter_words = ""
        self.order = "tree"
        self._nobody = self._said = ""

    def show(self, rows: PlanRows, rates: dict[str, float]) -> None:
        """Show these rows; `rates` are dollars a minute by agent."""
        self._rates = rates
        self._nobody = "" if rows.snapshot.agents or rows.snapshot.tasks else nobody_yet(rows.snapshot)
        said, self._said = self._said, self.empty_words()
        if not rows and self._said != said:
            self.refresh()
        self.set_rows(rows)
        self.title()

    def place_of(self, row_id: str) -> int | None:
        return self.rows.place_of(row_id) if isinstance(self.rows, PlanRows) else None

    def on_click(self, event: events.Click) -> None:
        """A click on the mark before a name folds or unfolds what is below it."""
        super().on_click(event)
        row, offset = self.selected, event.get_content_offset(self)
        if row is None or not row.expandable or offset is None or event.chain != 1:
            return
        end = NAME_AT + len(self._indent(row.prefix))
        if end - 2 <= offset.x < end and offset.y == self._index + 1 - self.scroll_offset.y:
            self.post_message(KeyLine.Pressed(f"fold({'▾' in row.prefix})"))

    def empty_words(self) -> str:
        return self._nobody or (
            f"nothing here has these words: {sanitize(self.filter_words)}" if self.filter_words else ""
        )

    def title(self) -> None:
        """Bring the pane's title up to date."""
        pieces: list[Piece] = [("1", "key"), (" Plan", "strong")]
        if self.order != "tree":
            pieces.append((f"  {ORDERS.get(self.order, '')}", "accent"))
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
            name.append((f"  {sanitize(role.role)} ({sanitize(role.source)}){model}", "muted"))
        if row.hidden:
            name.append((f" +{row.hidden}", "muted"))
        if agent is None and not row.tokens and row.cost_usd is None:
            return ([(condition.glyph, condition.role)], self._alone(name, condition))
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
        if condition.note and condition.word != "pausing" and condition.role not in ("working", "done"):
            # "paused by dashboard", cut off, tells no more than the word.
            cut = condition.note.startswith(condition.word) and len(condition.note) > CONTEXT_CELLS
            context = [(condition.word if cut else condition.note.removeprefix(ASKS), condition.role)]
        elif condition.word != "pausing" and agent is not None and agent.context_limit and agent.context_used:
            context = context_bar(agent.context_used, agent.context_limit)
        elif condition.role in ("pending", "working", "muted"):
            context = [(condition.word, "faint")]
        else:
            context = [(condition.word, condition.role)]
        rate = sum(self._rates.get(each, 0.0) for each in row.agent_ids)
        # A row with others below it sums them up, folded or not.
        sum_of = "Σ" if row.expandable else ""
        return (
            [(condition.glyph, condition.role)],
            name,
            [(sanitize(agent.name) if agent and row.task else "", "muted")],
            [(sanitize(formatting.model_name(agent.model)) if agent else "", "muted")],
            context,
            [(sum_of + formatting.tokens(row.tokens) if row.tokens else "", "tokens")],
            [(formatting.bill(row) if row.tokens or row.cost_usd else "", "money")],
            [(formatting.rate(rate) if row.agent_ids else "", "muted")],
        )

    def _role(self, task: TaskFacts | None) -> RoleFacts | None:
        """The task's role, where it is not built in."""
        session = self.rows.snapshot.session if isinstance(self.rows, PlanRows) else None
        role = roles_of(session.roles).get(task.role) if session is not None and task is not None else None
        return role if role is not None and not role.is_built_in else None

    def _alone(self, name: list[Piece], condition: Condition) -> list[Piece]:
        """A row without statistics, over the whole width: its name, then a note, or its state at the end."""
        quiet = condition.role in ("pending", "muted", "done", "cancelled")
        note = condition.note if condition.role != "done" else ""
        shown = [width for width in self._widths[1:] if width]
        whole = sum(shown) + len(shown) - 1
        word = note or condition.word
        fitted = clip_pieces(name, max(NAME_CELLS, whole - min(pieces_width([(word, "")]), NOTE_CELLS) - 2))
        begin = sum(width + 1 for width in self._widths[1:4] if width) if note else whole - len(word)
        return [
            *fitted,
            (" " * max(2, begin - pieces_width(fitted)), "text"),
            (word, "faint" if quiet else condition.role),
        ]

    def _indent(self, prefix: str) -> str:
        """The lines of the tree, their beginning left out where they would leave no room for the name."""
        room = (self._widths[1] if len(self._widths) > 1 else 24) - NAME_CELLS
        return prefix if len(prefix) <= max(4, room) else "…" + prefix[1 - max(4, room) :]
