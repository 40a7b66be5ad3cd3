"""Navigation on the live screen: selecting agents, marking, folding, filtering, freezing and copying. Nothing
here changes a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchkeeper_tui.pages.task import without_agent
from watchkeeper_tui.plan_tree import ORDERS, PlanRows, plan_rows
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.widgets.agent import AgentPane
from watchkeeper_tui.widgets.cells import Piece
from watchkeeper_tui.widgets.events import EventsView
from watchkeeper_tui.widgets.plan import PlanView

if TYPE_CHECKING:
    from watchkeeper_tui.targets import Target

    _Base = WatchScreen
else:
    _Base = object


class Navigation(_Base):
    """The part of the live screen that changes what is displayed."""

    snapshot: Snapshot
    newest: Snapshot
    frozen_at: float | None
    collapsed: frozenset[str]
    words: dict[str, str]
    """What each pane is filtered by."""
    shown_rows: PlanRows
    """The rows of the plan as it is filtered and folded now."""

    if TYPE_CHECKING:

        @property
        def plan(self) -> PlanView: ...
        @property
        def agent_pane(self) -> AgentPane: ...
        @property
        def events(self) -> EventsView: ...
        @property
        def target(self) -> Target: ...
        @property
        def active_pane(self) -> str: ...
        def redraw(self) -> None: ...
        def action_pane(self, name: str) -> None: ...
        def action_zoom(self) -> None: ...
        def redraw_edges(self) -> None: ...

    def action_step_agent(self, step: int) -> None:
        order = self.shown_rows.agent_ids()
        chosen = self.plan.selected
        if not order:
            return
        current = chosen.agent.id if chosen is not None and chosen.agent is not None else None
        place = (order.index(current) + step) % len(order) if current in order else 0
        row = self.shown_rows.place_of_agent(order[place])
        if row is not None:
            self.plan.select(self.shown_rows[row].id)

    def action_report(self) -> None:
        """A report on the selected agent, over the whole screen."""
        if self.target.agent is None:
            task = self.target.tasks[0] if self.target.tasks else None
            self.say(
                "select an agent first"
                + (f"; {without_agent(self.snapshot, task)}" if task is not None else ""),
                "muted",
            )
            return
        self.agent_pane.open_page("Report")
        self.action_pane("agent")
        if not self.has_class("-zoom"):
            self.action_zoom()

    def action_next_order(self) -> None:
        """Sort the plan in the next order."""
        orders = list(ORDERS)
        now = self.watch_app.layout_kept.order
        wanted = orders[(orders.index(now) + 1) % len(orders)] if now in orders else orders[0]
        self.watch_app.remember(order=wanted)
        self.redraw()
        self.say(f"the plan {ORDERS[wanted]}", "muted", seconds=3)

    def action_attention(self) -> None:
        """Go to the next row that needs attention."""
        rows = list(self.shown_rows)
        place = self.shown_rows.place_of(self.plan.selected_id or "")
        start = place + 1 if place is not None else 0
        for row in rows[start:] + rows[:start]:
            if row.condition.needs_attention:
                self.plan.select(row.id)
                self.say(
                    f"{row.condition.glyph} {row.name}: {row.condition.note or row.condition.word}",
                    row.condition.role,
                )
                return
        self.say("nothing needs you", "done")

    def action_mark(self) -> None:
        row = self.plan.selected
        if row is not None:
            self.plan.marked = self.plan.marked ^ {row.id}
            self.plan.refresh()
            self.redraw()
            self.plan.action_move(1)

    def action_fold(self, fold: bool) -> None:
        row = self.plan.selected
        if row is not None and row.expandable:
            self.collapsed = self.collapsed | {row.id} if fold else self.collapsed - {row.id}
            self.redraw()

    def action_collapse_all(self) -> None:
        everything = plan_rows(self.snapshot, self.watch_app.now())
        self.collapsed = frozenset(row.id for row in everything if row.expandable and row.task is not None)
        if not self.collapsed:
            self.collapsed = frozenset(row.id for row in everything if row.expandable)
        self.redraw()

    def action_expand_all(self) -> None:
        self.collapsed = frozenset()
        self.redraw()

    def action_filter(self) -> None:
        pane = self.active_pane if self.active_pane in ("plan", "events", "agent") else "plan"
        before = self.words.get(pane, "")
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
        self.words[pane] = words
        self.redraw()

    def action_copy(self) -> None:
        """Copy the content of the selected row."""
        pane = self.active_pane
        text = ""
        if pane == "agent":
            line = self.agent_pane.page.selected
            text = (line.copy or "".join(piece for piece, _ in line.pieces)) if line is not None else ""
        elif pane == "events":
            event = self.events.selected
            text = event.text if event is not None else ""
        else:
            target = self.target
            text = target.agent.id if target.agent else (target.tasks[0].id if target.tasks else "")
        if text:
            self.watch_app.copy_text(text)
            self.say(f"copied {len(text):,} characters", "done", seconds=3)
        else:
            self.say("nothing to copy here", "muted", seconds=3)

    def action_freeze(self) -> None:
        """Freeze the view. New events are counted; nothing is paused."""
        now = self.watch_app.now()
        if self.frozen_at is None:
            self.frozen_at = now
            goes_on = ", the run goes on" if self.newest.state is SessionState.LIVE else ""
            self.say(f"the view is frozen{goes_on}; f lets it follow again", "muted")
        else:
            self.frozen_at = None
            self.snapshot = self.newest
            self.say("following again", "muted", seconds=2)
        # The text first: the borders, and events that arrived meanwhile, repaint every pane.
        self.redraw_edges()
        self.call_after_refresh(self._frame_frozen)

    def _frame_frozen(self) -> None:
        self.query_one("#panes").set_class(self.frozen_at is not None, "-frozen")
        self.redraw()
