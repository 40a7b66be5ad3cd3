"""The live screen: plan, agent, events and compaction of one session, and every action on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from watchkeeper.store.snapshot import CompactionFacts
from watchkeeper_tui.actions import ACTIONS, BY_ID
from watchkeeper_tui.event_filter import EventFilter
from watchkeeper_tui.growth_rate import GrowthRates
from watchkeeper_tui.pages import PAGES
from watchkeeper_tui.plan_tree import PlanRows, PlanShaper, plan_rows
from watchkeeper_tui.roster import Roster
from watchkeeper_tui.screens.actions import Actions
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.screens.exporting import Exporting
from watchkeeper_tui.screens.live_commands import Commanding
from watchkeeper_tui.screens.live_help import Group, live_help
from watchkeeper_tui.screens.navigation import Navigation
from watchkeeper_tui.screens.panes import LAYOUT_CSS, Panes
from watchkeeper_tui.screens.status_line import status_pieces
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.targets import Target, is_planner, target_of
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

FIRST_HINT = "new here? j k choose an agent, p pauses it, C compacts, u undoes that, / searches, s lists sessions, ? tells all keys"
_SHOWN_KEYS = ("pause", "resume", "steer", "answer", "rerun", "compact", "undo", "cancel")


class LiveScreen(Commanding, Actions, Exporting, Navigation, Panes, WatchScreen):
    """What goes on, and what can be done about it."""

    DEFAULT_CSS = LAYOUT_CSS

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
        Binding("i", "report", "Report", show=False, id="agent.report"),
        Binding("o", "next_order", "Order", show=False, id="plan.order"),
        Binding("less_than_sign", "divide(-5)", "Divider left", show=False, id="pane.narrower"),
        Binding("greater_than_sign", "divide(5)", "Divider right", show=False, id="pane.wider"),
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
        self.shown_rows: PlanRows = plan_rows(self.snapshot, 0.0)
        self.roster = Roster()
        """Of what is shown."""
        self._standing = self.roster
        """Of what was read last: another one while the view is frozen."""
        self._shaper = PlanShaper()
        self._matching = EventFilter()
        self._paces = GrowthRates()
        self.words: dict[str, str] = {}
        self._resumes: str | None = None
        """The session to resume as soon as it is shown."""
        self._drawn_for: str | None = None
        """The row whose agent the agent pane shows."""

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
        remembered = self.watch_app.layout_kept
        self.agent_pane.tab = next(
            (index for index, page in enumerate(PAGES) if page.name == remembered.tab), 0
        )
        self._arrange()
        if not remembered.hinted:
            self.say(FIRST_HINT, "accent", seconds=15)
            self.watch_app.remember(hinted=True)

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
            if self.is_in_sight:
                self._draw(now)
        elif self._wants_detail(snapshot):
            # An agent that was first looked at in a frozen view is shown as it was then, and stays so.
            self.snapshot = replace(self.snapshot, detail=snapshot.detail)
            if self.is_in_sight:
                self._draw(self.frozen_at)
        if self.is_in_sight:
            self._draw_edges(now)
        if self._resumes is not None:
            self.resume_when_shown(self._resumes)

    def resume_when_shown(self, session_id: str | None) -> None:
        """Resume a session from its last step once this screen shows it; None: no session."""
        self._resumes = session_id
        if self.snapshot.session is not None and self.snapshot.session.id == session_id:
            self._resumes = None
            self.act("resume")

    def _wants_detail(self, snapshot: Snapshot) -> bool:
        """Whether the agent that is looked at was read only since the view was frozen."""
        held, read = self.snapshot.detail, snapshot.detail
        wanted = self.agent_pane.agent_id
        return read is not None and read.agent_id == wanted and (held is None or held.agent_id != wanted)

    def tick(self, now: float) -> None:
        if not self.is_in_sight:
            return
        if self.frozen_at is None and self.snapshot.state is SessionState.LIVE:
            self._draw(now, aged=True)
        elif self.frozen_at is None:
            # Nothing ages here but how long ago the agent gave a sign.
            self.agent_pane.age(now)
        self._draw_edges(now)

    def on_screen_resume(self) -> None:
        # While another screen covered it, nothing was drawn here.
        if self.snapshot.session is not None:
            self.redraw()

    def redraw(self) -> None:
        """Draw the last reading again, after something that the user did."""
        self._draw(self._shown_at)
        self.redraw_edges()

    def redraw_edges(self) -> None:
        """Draw the header, the status line and the keys again."""
        self._draw_edges(self.watch_app.now())

    @property
    def _shown_at(self) -> float:
        """The moment that the panes show: now, or when the view was frozen."""
        return self.frozen_at if self.frozen_at is not None else self.watch_app.now()

    def _forget(self) -> None:
        """Another session: nothing of the last one's is selected, marked, folded or filtered."""
        self.collapsed, self.words, self.frozen_at = frozenset(), {}, None
        self.roster, self._shaper, self._matching = Roster(), PlanShaper(), EventFilter()
        self._standing = self.roster
        self.plan.marked, self.plan.selected_id, self.plan.touched = frozenset(), None, False
        self.events.following = True
        self._frame_frozen()

    def _draw(self, now: float, *, aged: bool = False) -> None:
        """`aged`: only time has passed since these were drawn."""
        snapshot, roster = self.snapshot, self.roster
        if snapshot.problem:
            now = snapshot.read_at  # what happened since is unknown
        roster.update(snapshot, now)
        plan_words, event_words = self.words.get("plan", ""), self.words.get("events", "")
        order = self.watch_app.layout_kept.order
        self.shown_rows = self._shaper.rows(
            snapshot, now, collapsed=self.collapsed, words=plan_words, order=order
        )
        plan = self.plan
        plan.filter_words, plan.order = plan_words, order
        plan.show(
            self.shown_rows, dict(snapshot.rates.agent_cost) if snapshot.state is SessionState.LIVE else {}
        )
        if not plan.touched:
            self._choose_first()
        if not aged:
            events = self.events
            events.filter_words = event_words
            events.show(self._matching.matching(snapshot.events, event_words, roster.names), roster.names)
        passes = self.query_one(CompactionView)
        passes.paces = self._paces.known
        passes.show(snapshot, roster, now)
        if snapshot.state is SessionState.LIVE:
            self._paces.look(
                self.watch_app.reader, passes.near, now, lambda: self.app.call_later(self._paced)
            )
        self._draw_agent(now)

    def _draw_agent(self, now: float) -> None:
        """The pane of the agent whose row is selected."""
        chosen = self.plan.selected
        self._drawn_for = self.plan.selected_id
        agent_id = chosen.agent.id if chosen is not None and chosen.agent is not None else None
        self.watch_app.look_at(agent_id)
        pane = self.agent_pane
        pane.words = self.words.get("agent", "")
        task = chosen.task if chosen is not None and agent_id is None else None
        pane.show(self.snapshot, agent_id, now, task_id=task.id if task is not None else None)

    def _paced(self) -> None:
        """New growth rates of the fullest contexts have arrived."""
        if self.is_mounted and not self._closing:
            passes = self.query_one(CompactionView)
            passes.paces = self._paces.known
            passes.repaint_changed()

    def _draw_edges(self, now: float) -> None:
        behind = (
            self.newest.session.event_seq - self.snapshot.session.event_seq
            if self.newest.session and self.snapshot.session
            else 0
        )
        frozen = self.frozen_at is not None
        if not frozen:
            self._standing = self.roster
        elif self._standing is self.roster:
            self._standing = self.roster.copy()
        self._standing.update(self.newest, now)
        self.query_one(Header).show(
            self.newest, now, self._standing, frozen_since=self.frozen_at, behind=behind if frozen else 0
        )
        self.query_one(KeyLine).show(self._hints())
        self.query_one(StatusLine).say(self.with_notice(self.standing(now), now))

    def standing(self, now: float) -> list[Piece]:
        return status_pieces(self.newest, self.target, self.sent, now, asking=self.prompt.is_asking)

    def _choose_first(self) -> None:
        """Until the user chooses, look at whatever works: an agent at work says more than an idle planner."""
        if not self.shown_rows:
            return
        current = self.plan.selected
        if (
            current is not None
            and current.task is not None
            and current.condition.role in ("working", "waiting")
        ):
            return
        busy = None
        if self.roster.counts().get("●"):
            busy = next(
                (row for row in self.shown_rows if row.task and row.condition.role == "working"), None
            )
        with_agent = busy or next((row for row in self.shown_rows if row.agent is not None), None)
        if with_agent is not None and with_agent.id != self.plan.selected_id:
            self.plan.select(with_agent.id, tell=False)

    def _hints(self) -> list[KeyHint]:
        target, key_for = self.target, self.watch_app.key_for
        hints = [
            KeyHint(
                key_for(f"act.{name}", BY_ID[name].key),
                BY_ID[name].label,
                f"act('{name}')",
                BY_ID[name].why_not(target),
            )
            for name in _SHOWN_KEYS
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
        plan = self.plan
        places = sorted(place for place in map(self.shown_rows.place_of, plan.marked) if place is not None)
        marked = [self.shown_rows[place] for place in places]
        chosen = plan.selected
        rows = marked or ([chosen] if chosen is not None else [])
        return target_of(
            self.newest, [(row.agent, row.task) for row in rows], read_only=self.watch_app.read_only
        )

    # Selection.

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        if event.view is self.plan:
            # The row first, which is two lines; then its detail, which is half the screen.
            self.call_after_refresh(self._draw_chosen)

    def _draw_chosen(self) -> None:
        """Once for the row that is selected now, however many were passed on the way."""
        if self._drawn_for != (chosen := self.plan.selected_id):
            self._drawn_for = chosen
            self._draw_agent(self._shown_at)
            self._draw_edges(self.watch_app.now())

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
            if isinstance(chosen, CompactionFacts):
                self.watch_app.open_compaction(chosen.id)
            elif chosen is not None:
                self._show_agent(chosen.id)

    def _show_agent(self, agent_id: str | None) -> None:
        place = self.shown_rows.place_of_agent(agent_id)
        if place is None:
            self.say("that agent has no row in the plan as it is filtered now", "muted")
            return
        self.plan.select(self.shown_rows[place].id)
        self.action_pane("agent")

    def action_back(self) -> None:
        if self.has_class("-zoom"):
            self.action_zoom()
        elif self.words.get(self.active_pane):
            self._search(self.active_pane, "")
        elif self.plan.marked:
            self.plan.marked = frozenset()
            self.plan.refresh()
            self.redraw()
        elif self.frozen_at is not None:
            self.action_freeze()
        else:
            self.action_pane("plan")

    def action_sessions(self) -> None:
        self.watch_app.open_sessions("")

    def act(self, name: str, text: str = "") -> None:
        # From here on the selection is the user's: it must not move on to another agent under a preview.
        self.plan.touched = True
        if name == "cancel" and is_planner(self.target):
            name = "cancel_run"
        super().act(name, text)

    def help_groups(self) -> list[Group]:
        return live_help(self.active_pane, self.watch_app.key_for)
