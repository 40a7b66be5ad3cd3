"""The live screen: plan, agent, events and compaction of one session, and every action on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from watchkeeper_tui.actions import ACTIONS, BY_ID, Target, target_of
from watchkeeper_tui.plan_tree import PlanRow, agent_ids, plan_rows
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.screens.acting import Acting
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.screens.statements import status_pieces
from watchkeeper_tui.slash import Parsed
from watchkeeper_tui.snapshot import EventLine, SessionState, Snapshot
from watchkeeper_tui.widgets.agent import AgentPane
from watchkeeper_tui.widgets.cells import Piece
from watchkeeper_tui.widgets.compaction import CompactionView
from watchkeeper_tui.widgets.events import EventsView
from watchkeeper_tui.widgets.header import Header
from watchkeeper_tui.widgets.plan import PlanView
from watchkeeper_tui.widgets.prompt import Prompt
from watchkeeper_tui.widgets.rows import RowView
from watchkeeper_tui.widgets.status import KeyHint, KeyLine, StatusLine

if TYPE_CHECKING:
    pass

PANES = ("plan", "events", "agent", "compaction")
_SHOWN_KEYS = ("pause", "resume", "steer", "answer", "rerun", "compact", "undo", "cancel")


class LiveScreen(Acting, WatchScreen):
    """What goes on, and what can be done about it."""

    # Instance variables of the base class, so no ClassVar.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (170, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-low"), (20, "-tall")]  # noqa: RUF012

    DEFAULT_CSS = """
    LiveScreen { layout: vertical; }
    #panes { layout: grid; grid-size: 2 2; grid-columns: 1fr 1fr; grid-rows: 13fr 7fr; height: 1fr; }
    .pane { border: round $pane-border; border-title-style: none; padding: 0; height: 100%; }
    .pane:focus, .pane:focus-within { border: round $pane-focus; }
    LiveScreen.-frozen .pane { border: dashed $warning; }
    LiveScreen.-very-wide #panes { grid-columns: 5fr 6fr; }
    LiveScreen.-narrow #panes { grid-size: 1 2; grid-columns: 1fr; grid-rows: 11fr 9fr; }
    LiveScreen.-low.-narrow #panes, LiveScreen.-tiny #panes, LiveScreen.-zoom #panes {
        grid-size: 1 1; grid-columns: 1fr; grid-rows: 1fr;
    }
    LiveScreen .-away { display: none; }
    LiveScreen.-tiny #status { display: none; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(action.key, f"act('{action.id}')", action.label, show=False, id=f"act.{action.id}")
            for action in ACTIONS
            if action.key
        ],
        Binding("1", "pane('plan')", "Plan", show=False, id="pane.plan"),
        Binding("2", "pane('events')", "Events", show=False, id="pane.events"),
        Binding("3", "pane('agent')", "Agent", show=False, id="pane.agent"),
        Binding("4", "pane('compaction')", "Compaction", show=False, id="pane.compaction"),
        Binding("tab", "next_pane(1)", "Next pane", show=False, id="pane.next"),
        Binding("shift+tab", "next_pane(-1)", "Previous pane", show=False, id="pane.previous"),
        Binding("left_square_bracket", "step_agent(-1)", "Previous agent", show=False, id="agent.previous"),
        Binding("right_square_bracket", "step_agent(1)", "Next agent", show=False, id="agent.next"),
        Binding("e", "attention", "Next that needs you", show=False, id="attention"),
        Binding("z", "zoom", "Zoom", show=False, id="zoom"),
        Binding("f", "freeze", "Freeze", show=False, id="freeze"),
        Binding("slash", "filter", "Filter", show=False, id="filter"),
        Binding("space", "mark", "Mark", show=False, id="mark"),
        Binding("minus", "collapse_all", "Collapse all", show=False, id="collapse"),
        Binding("equals_sign", "expand_all", "Expand all", show=False, id="expand"),
        Binding("left,h", "fold(True)", "Collapse", show=False, id="fold"),
        Binding("right,l", "fold(False)", "Expand", show=False, id="unfold"),
        Binding("y", "copy", "Copy", show=False, id="copy"),
        Binding("s", "sessions", "Sessions", show=False, id="sessions"),
        Binding("escape", "back", "Back", show=False, id="back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot()
        """What is shown."""
        self.newest = Snapshot()
        """What was read last; another one while the view is frozen."""
        self.frozen_at: float | None = None
        self.collapsed: frozenset[str] = frozenset()
        self.lower = "agent"
        """The pane below the plan on a narrow screen."""
        self._rows: tuple[PlanRow, ...] = ()
        self._words: dict[str, str] = {}
        self._chosen_by_user = False

    def compose(self) -> ComposeResult:
        yield Header()
        with Container(id="panes"):
            yield PlanView()
            yield AgentPane()
            yield EventsView()
            yield CompactionView()
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.plan.focus()
        self._arrange()

    # Parts.

    @property
    def plan(self) -> PlanView:
        return self.query_one(PlanView)

    @property
    def agent_pane(self) -> AgentPane:
        return self.query_one(AgentPane)

    @property
    def events(self) -> EventsView:
        return self.query_one(EventsView)

    @property
    def active_pane(self) -> str:
        """The pane that has the focus."""
        focused: Widget | None = self.focused
        while focused is not None:
            if focused.id in PANES:
                return str(focused.id)
            focused = focused.parent if isinstance(focused.parent, Widget) else None
        return "plan"

    # What is shown.

    def show(self, snapshot: Snapshot, now: float) -> None:
        changed_session = snapshot.session is not None and (
            self.newest.session is None or self.newest.session.id != snapshot.session.id
        )
        self.newest = snapshot
        if changed_session:
            self._forget()
        if self.frozen_at is None or changed_session:
            self.snapshot = snapshot
            self._draw(now)
        self._draw_edges(now)

    def tick(self, now: float) -> None:
        if self.frozen_at is None and self.snapshot.state in (SessionState.LIVE, SessionState.DEAD, SessionState.OPENING):
            self._draw(now)
        self._draw_edges(now)

    def redraw(self) -> None:
        """Draw the last reading again, after something that the user did."""
        now = self.frozen_at if self.frozen_at is not None else self.watch_app.now()
        self._draw(now)
        self._draw_edges(self.watch_app.now())

    def _forget(self) -> None:
        """Another session: nothing of the last one's is selected, marked, folded or filtered."""
        self.collapsed, self._words, self.frozen_at, self._chosen_by_user = frozenset(), {}, None, False
        self.plan.marked, self.plan.selected_id = frozenset(), None
        self.events.following = True
        self.remove_class("-frozen")

    def _draw(self, now: float) -> None:
        snapshot = self.snapshot
        names = {agent.id: sanitize(agent.name or agent.role) for agent in snapshot.agents}
        self._rows = plan_rows(snapshot, now, collapsed=self.collapsed, words=self._words.get("plan", ""))
        self.plan.filter_words = self._words.get("plan", "")
        self.plan.show(self._rows, dict(snapshot.rates.agent_cost))
        if not self._chosen_by_user:
            self._choose_first()
        self.events.filter_words = self._words.get("events", "")
        self.events.show(self._events(names), names)
        self.query_one(CompactionView).show(snapshot, names, now)
        chosen = self.plan.selected
        agent_id = chosen.agent.id if chosen is not None and chosen.agent is not None else None
        self.watch_app.look_at(agent_id)
        self.agent_pane.words = self._words.get("agent", "")
        self.agent_pane.show(snapshot, agent_id, now)

    def _draw_edges(self, now: float) -> None:
        behind = (
            self.newest.session.event_seq - self.snapshot.session.event_seq
            if self.newest.session and self.snapshot.session
            else 0
        )
        frozen = self.frozen_at is not None
        self.query_one(Header).show(self.newest, now, frozen_since=self.frozen_at, behind=behind if frozen else 0)
        self.query_one(KeyLine).show(self._hints())
        notice = self.notice(now)
        self.query_one(StatusLine).say(notice or status_pieces(self.newest, self.target, self.sent, now))

    def _choose_first(self) -> None:
        """Until the user chooses, look at whatever works: an agent at work says more than an idle planner."""
        if not self._rows:
            return
        current = self.plan.selected
        if current is not None and current.agent is not None and current.condition.role in ("working", "waiting"):
            return
        busy = next((row for row in self._rows if row.task and row.condition.role == "working"), None)
        with_agent = busy or next((row for row in self._rows if row.agent is not None), None)
        if with_agent is not None:
            self.plan.select(with_agent.id, tell=False)

    def _events(self, names: dict[str, str]) -> tuple[EventLine, ...]:
        words = self._words.get("events", "").casefold().split()
        if not words:
            return self.snapshot.events
        return tuple(
            event
            for event in self.snapshot.events
            if all(word in f"{event.kind} {names.get(event.agent_id or '', '')} {event.text}".casefold() for word in words)
        )

    def _hints(self) -> list[KeyHint]:
        target = self.target
        hints = [
            KeyHint(BY_ID[name].key, BY_ID[name].label, f"act('{name}')", BY_ID[name].why_not(target)) for name in _SHOWN_KEYS
        ]
        if self.newest.approvals:
            hints.insert(0, hints.pop(_SHOWN_KEYS.index("answer")))
        frozen = self.frozen_at is not None
        return [
            *hints,
            KeyHint("/", "Filter", "filter"),
            KeyHint("f", "Unfreeze" if frozen else "Freeze", "freeze"),
            KeyHint("z", "Zoom", "zoom"),
            KeyHint("s", "Sessions", "sessions"),
            KeyHint(":", "Command", "command_bar"),
            KeyHint("?", "Help", "help"),
        ]

    # Who is meant.

    @property
    def target(self) -> Target:
        """The marked rows, or the selected one, as of the newest reading."""
        marked = [row for row in self._rows if row.id in self.plan.marked]
        chosen = self.plan.selected
        rows = marked or ([chosen] if chosen is not None else [])
        return target_of(self.newest, [(row.agent, row.task) for row in rows])

    # Panes.

    def action_pane(self, name: str) -> None:
        if name != "plan":
            self.lower = name
        self._arrange(name)
        widget = self.agent_pane.page if name == "agent" else self.query_one(f"#{name}")
        widget.focus()

    def action_next_pane(self, step: int) -> None:
        order = ("plan", "agent", "events", "compaction")
        self.action_pane(order[(order.index(self.active_pane) + step) % len(order)])

    def action_zoom(self) -> None:
        name = self.active_pane
        self.toggle_class("-zoom")
        self._arrange(name)

    def on_resize(self) -> None:
        self.call_after_refresh(self._arrange)

    def _arrange(self, name: str | None = None) -> None:
        """Show the panes that there is room for."""
        name = name or self.active_pane
        if self.has_class("-zoom") or self.size.height < 14 or (self.size.width < 100 and self.size.height < 20):
            shown: tuple[str, ...] = (name,)
        elif self.size.width < 100:
            shown = ("plan", self.lower)
        else:
            shown = PANES
        for pane in PANES:
            self.query_one(f"#{pane}").set_class(pane not in shown, "-away")

    def action_back(self) -> None:
        if self.has_class("-zoom"):
            self.action_zoom()
        elif self._words.get(self.active_pane):
            self._search(self.active_pane, "")
        elif self.plan.marked:
            self.plan.marked = frozenset()
            self.redraw()
        elif self.frozen_at is not None:
            self.action_freeze()
        else:
            self.action_pane("plan")

    # Selection.

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        if event.view is self.plan:
            self._chosen_by_user = True
            self.redraw()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        if event.view is self.plan:
            self.action_pane("agent")
            if not self.has_class("-zoom"):
                self.action_zoom()
        elif event.view is self.events:
            row = self.events.selected
            if row is not None:
                self._show_agent(row.agent_id)
        else:
            chosen = self.query_one(CompactionView).selected
            if chosen is not None:
                self._show_agent(chosen.agent_id if hasattr(chosen, "agent_id") else chosen.id)
                self.agent_pane.open_tab(4)

    def _show_agent(self, agent_id: str | None) -> None:
        row = next((row for row in self._rows if row.agent is not None and row.agent.id == agent_id), None)
        if row is None:
            self.say("that agent has no row in the plan as it is filtered now", "muted")
            return
        self.plan.select(row.id)
        self.action_pane("agent")

    def action_step_agent(self, step: int) -> None:
        order = agent_ids(self._rows)
        chosen = self.plan.selected
        if not order:
            return
        current = chosen.agent.id if chosen is not None and chosen.agent is not None else None
        place = (order.index(current) + step) % len(order) if current in order else 0
        row = next(row for row in self._rows if row.agent is not None and row.agent.id == order[place])
        self.plan.select(row.id)

    def action_attention(self) -> None:
        """Go to the next row that needs somebody."""
        rows = list(self._rows)
        chosen = self.plan.selected
        start = rows.index(chosen) + 1 if chosen in rows else 0
        for row in rows[start:] + rows[:start]:
            if row.condition.needs_attention:
                self.plan.select(row.id)
                self.say(f"{row.condition.glyph} {row.name}: {row.condition.note or row.condition.word}", row.condition.role)
                return
        self.say("nothing needs you", "done")

    def action_mark(self) -> None:
        row = self.plan.selected
        if row is not None:
            self.plan.marked = self.plan.marked ^ {row.id}
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

    # The view.

    def action_freeze(self) -> None:
        """Hold the view still; what goes on is counted, and nothing is paused."""
        now = self.watch_app.now()
        if self.frozen_at is None:
            self.frozen_at = now
            self.say("the view is frozen, the run goes on; f lets it follow again", "muted")
        else:
            self.frozen_at = None
            self.snapshot = self.newest
            self.say("following again", "muted", seconds=2)
        self.set_class(self.frozen_at is not None, "-frozen")
        self.redraw()

    def action_filter(self) -> None:
        pane = self.active_pane if self.active_pane in ("plan", "events", "agent") else "plan"
        before = self._words.get(pane, "")
        what = {"plan": "Filter the plan", "events": "Filter events", "agent": "Search the transcript"}[pane]
        if pane == "agent":
            self.agent_pane.open_tab(1)
        question: list[list[Piece]] = [
            [(what, "strong"), ("   words of names, states, models; Enter keeps it, Esc takes it back", "muted")]
        ]
        self.prompt.ask_line(
            question,
            lambda text: self._search(pane, text),
            kind=f"filter {pane}",
            value=before,
            changed=lambda text: self._search(pane, text),
            gave_up=lambda: self._search(pane, before),
        )

    def _search(self, pane: str, words: str) -> None:
        self._words[pane] = words
        self.redraw()

    def action_copy(self) -> None:
        """Copy what the selected row stands for."""
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

    def action_sessions(self) -> None:
        self.watch_app.open_sessions("")

    # Commands that only this screen knows; the rest stand for actions.

    def run_slash(self, parsed: Parsed) -> None:
        assert parsed.slash is not None
        name, argument = parsed.slash.name, parsed.argument
        tabs = {"memory": 0, "context": 0, "usage": 3, "cost": 3}
        if name in tabs:
            self.agent_pane.open_tab(tabs[name])
            self.action_pane("agent")
        elif name == "agent":
            self.action_pane("agent")
            if not self.has_class("-zoom"):
                self.action_zoom()
        elif name == "freeze":
            self.action_freeze()
        elif parsed.slash.action:
            variant = {("pause", "run"): "pause_run", ("cancel", "run"): "cancel_run", ("rerun", "fresh"): "rerun_fresh"}
            self.act(variant.get((name, argument), parsed.slash.action), argument)
        else:
            super().run_slash(parsed)

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Act on the selected agent, or on those marked with space",
                [(a.key or f"/{a.id}", a.help) for a in ACTIONS if a.key],
            ),
            (
                "Look around",
                [
                    ("j k, arrows, g G, PgUp PgDn", "move"),
                    ("1 2 3 4, tab", "plan, events, agent, compaction"),
                    ("enter", "open the agent; fold and unfold in its pane"),
                    ("[ ]", "previous, next agent"),
                    ("e", "next row that needs you"),
                    ("left right", "fold the tree; the tabs of the agent pane"),
                    ("- =", "collapse, expand all"),
                    ("/", "filter the plan or the events, search the transcript"),
                    ("space", "mark, for an action on several"),
                    ("f", "freeze the view; the run goes on"),
                    ("z", "zoom the pane"),
                    ("y", "copy"),
                    ("s", "every session"),
                ],
            ),
            (
                "States",
                [
                    ("● working  ◔ slot  ? needs you", "‖ paused  ↻ retrying  ! silent"),
                    ("✓ done  ✗ failed  † dead", "· pending  ~ stale  × cancelled"),
                ],
            ),
        ]
