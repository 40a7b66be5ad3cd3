"""The live screen: plan, agent, events and compaction of one session, and every action on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from watchkeeper.store.agent_snapshot import ArtifactFacts, session_artifacts
from watchkeeper.store.driver import Queries
from watchkeeper.store.external import ExternalSession
from watchkeeper.store.imports import imported_from
from watchkeeper.store.outcome import RunOutcome, load_outcome
from watchkeeper.store.projection import CompactionFacts
from watchkeeper_tui import external as terminals
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import ACT, BY_ID, KEEP, OPEN, Action, Group, bindings
from watchkeeper_tui.control import ReadOnlyControl
from watchkeeper_tui.plan_tree import ORDERS, PlanShaper, plan_rows
from watchkeeper_tui.requests import Target, is_planner, target_of
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.acting import ActingScreen
from watchkeeper_tui.screens.base import SessionScreen
from watchkeeper_tui.settings import with_tab
from watchkeeper_tui.snapshot import Roster, SessionState, Snapshot
from watchkeeper_tui.widgets.agent import PAGES, AgentPane, TranscriptPane
from watchkeeper_tui.widgets.bars import (
    ChipLine,
    Crumb,
    Header,
    KeyLine,
    Prompt,
    StatusLine,
    status_pieces,
)
from watchkeeper_tui.widgets.panes import CompactionView, EventFilter, EventsView, PlanView
from watchkeeper_tui.widgets.rows import Piece, RowView

if TYPE_CHECKING:
    from watchkeeper.store.fork import ForkResult

STATES: Group = (
    "States",
    [
        ("● working  ◔ slot  ? question", "‖ paused  ↻ retrying  ! silent"),
        ("✓ done  ✗ failed  † stopped  ○ idle", "· pending  ~ stale  × cancelled  □ ended  - dropped"),
        ("Σ", "tokens, cost and rate including sub-agents"),
        ("~$1.00  $1.00+", "estimate; lower bound (some calls have no price)"),
        ("partial", "logs or calls are missing; tokens and cost are lower bounds"),
    ],
)


_FIRST_KEYS = (("rows.down", "moves"), ("pause", "pauses an agent"), ("compact", "compacts its context"), ("undo", "undoes a compaction"),
               ("filter", "searches"), ("sessions", "lists sessions"), ("help", "shows all keys"))  # fmt: skip
_FIRST_KEYS_WHEN_OVER = (("rows.down", "moves"), ("replay", "replays"), ("timeline", "shows the timeline"), ("filter", "searches"),
                         ("sessions", "lists sessions"), ("help", "shows all keys"))  # fmt: skip
"""What a new user reads on opening the dashboard for the first time."""
_OVER = frozenset({"answer", "resume", "rerun", "compact"})
_SHOWN_WHEN_OVER = (("replay", "w", "Replay"), ("timeline", "t", "Timeline"), ("artifacts", "v", "Artifacts"), ("agent.report", "i", "Report"),
                    ("export", "x", "Export"), ("fork", "K", "Fork"))  # fmt: skip
_SHOWN_ALWAYS = (("filter", "/", "Filter"), ("freeze", "f", "Freeze"), ("zoom", "z", "Zoom"), ("sessions", "s", "Sessions"))  # fmt: skip
_SHOWN_WHEN_LIVE = (("timeline", "t", "Timeline"), ("agent.report", "i", "Report"))
_SHOWN_LAST = (("charts", "T", "Charts"),)
_OVER = frozenset(
    {SessionState.DONE, SessionState.ENDED, SessionState.FAILED, SessionState.CANCELLED, SessionState.PAUSED}
)
_PANE_SCOPES = {"compaction": "compactions", "transcript": "agent"}
"""What the table of actions calls a pane, where a screen has its name."""


class LiveScreen(SessionScreen, ActingScreen):
    """What goes on, and what can be done about it."""

    SCOPE = "live"
    BINDINGS: ClassVar[list[BindingType]] = bindings("live")

    def __init__(self) -> None:
        super().__init__()
        self.newest = Snapshot()
        """What was read last; another one while the view is frozen."""
        self.frozen_at: float | None = None
        self._newest_roster = self.roster
        """The roster of what was read last: another one while the view is frozen."""
        self._resumes: str | None = None
        """The session to resume as soon as it is shown."""
        self._was_covered = False
        self._drawn_for: str | None = None
        """The row whose agent the agent pane shows."""
        self._result: ArtifactFacts | None = None
        """What the run ended with."""
        self._result_of: tuple[str, SessionState] | None = None
        """The session that it was looked for in, and its state then."""
        self._seen_live = ""
        """The session that was seen at work here."""
        self._went_from: str | None = None
        """The row from which `e` went to another terminal."""

    def compose(self) -> ComposeResult:
        yield Header()
        yield ChipLine()
        yield from self.panes(PlanView(), AgentPane(), TranscriptPane(), EventsView(), CompactionView())
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.plan.focus()
        self.app.theme_changed_signal.subscribe(self, lambda _: self.call_after_refresh(self.redraw))
        self._arrange()

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        session = self.snapshot.session
        return (Crumb("session", session.id, session.title or session.goal),) if session is not None else ()

    def whereabouts(self) -> tuple[str, ...]:
        chosen = self.plan.selected
        agent = chosen.agent if chosen is not None else None
        tab = (PAGES[self.agent_pane.tab].name,) if self.active_pane == "agent" else ()
        return (*super().whereabouts(), *((f"agent {agent.label}", *tab) if agent is not None else ()))

    # What is shown.

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        changed_session = snapshot.session is not None and (
            self.newest.session is None or self.newest.session.id != snapshot.session.id
        )
        self.newest = snapshot
        self._look_for_result(snapshot)
        if changed_session:
            self._forget()
        if self.frozen_at is None or changed_session:
            self.snapshot = snapshot
        elif self._wants_detail(snapshot):
            # An agent that was first looked at in a frozen view is shown as it was then, and stays so.
            self.snapshot = replace(self.snapshot, detail=snapshot.detail)
        if self.is_in_sight:
            self.redraw_edges()
            is_known = snapshot.session is not None and snapshot.state is not SessionState.OPENING
            if is_known and not self.watch_app.layout_kept.hinted:
                self._hint_keys()
        if self._resumes is not None:
            self.resume_when_shown(self._resumes)

    def _hint_keys(self) -> None:
        """Show a new user the first keys, once."""
        keys = _FIRST_KEYS_WHEN_OVER if self._is_over else _FIRST_KEYS
        known = ((self.watch_app.key_for(name), words) for name, words in keys)
        words = ", ".join(f"{key} {words}" for key, words in known if key)
        self.say(f"new here? {words}", "accent", seconds=15)
        self.watch_app.remember(hinted=True)

    @property
    def _is_over(self) -> bool:
        """The session has ended, or is only looked at."""
        return self.newest.state is not SessionState.LIVE or bool(self.target.not_ours)

    def watch_snapshot(self) -> None:
        # While another screen covers it, nothing is drawn here.
        if self.is_in_sight:
            self.draw(self._shown_at)

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
            self.draw(now, aged=True)
        elif self.frozen_at is None:
            # Nothing ages here but how long ago the agent gave a sign.
            self.agent_pane.age(now)
        self._draw_edges(now)

    def on_screen_suspend(self) -> None:
        self._was_covered = True

    def on_screen_resume(self) -> None:
        # While another screen covered it, nothing was drawn here.
        if self._was_covered and self.snapshot.session is not None:
            self.redraw()

    def redraw(self) -> None:
        """Draw the last reading again, after something that the user did."""
        self.draw(self._shown_at)
        self.redraw_edges()

    def redraw_edges(self) -> None:
        """Draw the header, the status line and the keys again."""
        self._draw_edges(self.watch_app.now())

    @property
    def _shown_at(self) -> float:
        """The moment that the panes show: now, or when the view was frozen."""
        return self.frozen_at if self.frozen_at is not None else self.watch_app.now()

    def _forget(self) -> None:
        """Another session: nothing of the last one's is selected, marked, folded, searched for or frozen."""
        self.frozen_at = None
        self.roster = self._newest_roster = Roster()
        self.plan.forget()
        self.events.forget()
        self._recall()
        self.agent_pane.filter_words = self.transcript.filter_words = ""
        self._frame()

    def _kept_as(self, name: str) -> str:
        """What something of this session is remembered as: own runs and imported sessions have one each."""
        session = self.newest.session
        is_imported = session is not None and imported_from(session.origin) is not None
        return f"imported_{name}" if is_imported else name

    def _recall(self) -> None:
        """Open the tab, and sort and filter the panes, as this session or others of its kind were left."""
        remembered, session = self.watch_app.layout_kept, self.newest.session
        session_id = session.id if session is not None else ""
        name = remembered.tabs.get(session_id)
        self.agent_pane.tab = next((index for index, page in enumerate(PAGES) if page.name == name), 0)
        self.plan.is_tree = remembered.ordered != session_id
        self.plan.order = getattr(remembered, self._kept_as("order"))
        # A filter that matches nothing here was made for another session, and would only hide this one.
        words = getattr(remembered, self._kept_as("plan_filter"))
        found = words and PlanShaper().rows(self.newest, self.watch_app.now(), words=words)
        self.plan.filter_words = words if found else ""
        words = getattr(remembered, self._kept_as("events_filter"))
        self.events.filter_words = words if EventFilter().matching(self.newest.events, words, {}) else ""

    def filter_applied(self, pane: str, words: str) -> None:
        if pane in ("plan", "events"):  # a search of a transcript is not remembered
            self.watch_app.remember(**{self._kept_as(f"{pane}_filter"): words.strip()})

    def _draw_edges(self, now: float) -> None:
        behind = (
            self.newest.session.event_seq - self.snapshot.session.event_seq
            if self.newest.session and self.snapshot.session
            else 0
        )
        frozen = self.frozen_at is not None
        if not frozen:
            self._newest_roster = self.roster
        elif self._newest_roster is self.roster:
            self._newest_roster = self.roster.copy()
        self._newest_roster.update(self.newest, self.newest.read_at if self.newest.problem else now)
        self.query_one(Header).update(
            self.newest, now, self._newest_roster, frozen_since=self.frozen_at, behind=behind if frozen else 0
        )
        self.show_keys()
        self.query_one(StatusLine).pieces = tuple(self.with_notice(self.standing(now), now))

    def standing(self, now: float) -> list[Piece]:
        pieces = status_pieces(self.newest, self.target, self.sent, now, asking=self.prompt.is_asking)
        if self._result is not None:
            key = "Enter" if self._enter_opens_result else self.watch_app.key_for("artifacts")
            result = [(key, "key"), (f" opens {clip(sanitize(self._result.name), 40)}   ", "strong")]
            pieces = [*result, *pieces]
        return pieces

    def look_at(self, agent_id: str | None) -> None:
        self._drawn_for = self.plan.selected_id
        self.watch_app.look_at(agent_id)

    def choose_row(self) -> None:
        """Until the user chooses, look at whatever works: an agent at work says more than an idle planner. Once the run
        has ended, look at the planner, whose page begins with the outcome."""
        reads = self.plan.selected is not None and (self.active_pane != "plan" or self.prompt.is_asking)
        if self.plan.touched or not self.plan.shown or reads:
            return
        session = self.snapshot.session
        if (
            session is not None
            and self.snapshot.ending is not None
            and self.snapshot.state is not SessionState.LIVE
        ):
            place = self.plan.shown.place_of_agent(session.planner_agent_id)
            if place is not None and self.plan.shown[place].id != self.plan.selected_id:
                self.plan.select(self.plan.shown[place].id, tell=False)
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
            busy = self.plan.shown.first_working_task()
        with_agent = busy or next((row for row in self.plan.shown if row.agent is not None), None)
        if with_agent is not None and with_agent.id != self.plan.selected_id:
            self.plan.select(with_agent.id, tell=False)

    @property
    def footer(self) -> str:
        return "over" if self._is_over else "live"

    def footer_actions(self) -> Sequence[Action]:
        """What acts first, an answer before all; then how it is shown, or where the run is over, what opens something."""
        over, asked = self._is_over, bool(self.newest.approvals) or self._terminal is not None

        def rank(action: Action) -> int:
            if action.id in ("quit", "command", "help"):
                return 6
            if action.id == "open":
                return 3 if over else 1
            if action.id == "answer" and asked:
                return 0
            if action.group == ACT:
                return 5 if action.id.startswith("plan_") else 1
            return 2 if over == (action.group in (OPEN, KEEP)) else 3

        return sorted(super().footer_actions(), key=rank)

    def label_of(self, action: Action) -> str:
        session = self.newest.session
        if action.id == "freeze":
            return "Freeze" if self.frozen_at is None else "Unfreeze"
        if action.id == "fork" and session is not None and imported_from(session.origin):
            return "Continue"
        return super().label_of(action)

    # The open session's terminal, if a person started it in one.

    @property
    def _terminal(self) -> ExternalSession | None:
        if isinstance(self.watch_app.control, ReadOnlyControl):
            return None
        session = self.newest.session
        return terminals.session_of(self.newest.external, session.id if session is not None else None)

    def why_not(self, action: Action) -> str:
        """Why an action cannot be done: of a session in another terminal, its question can be answered."""
        outside = self._terminal
        if outside is None or action.id not in ("answer", "compact"):
            return action.not_now(self.target)
        if action.id == "compact":
            return terminals.why_not_instruct(outside)
        asked = terminals.questions_of(self.newest.external, outside.session_id)
        return terminals.why_not_answer(outside, asked)

    # Who is meant.

    @property
    def target(self) -> Target:
        """The marked rows, or the selected one, as of the newest reading."""
        plan = self.plan
        places = sorted(place for place in map(self.plan.shown.place_of, plan.marked) if place is not None)
        marked = [self.plan.shown[place] for place in places]
        chosen = plan.selected
        rows = marked or ([chosen] if chosen is not None else [])
        return target_of(
            self.newest,
            [(row.agent, row.task) for row in rows],
            read_only=self.watch_app.read_only,
            condition=rows[0].condition if rows else None,
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
            self.draw_agent(self._shown_at)
            self._draw_edges(self.watch_app.now())

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        if event.view is self.plan and self._result is not None and self._enter_opens_result:
            self.watch_app.open_artifacts(self._result.digest)
        elif event.view is self.plan:
            self.open_agent()
        elif event.view is self.events:
            row, session = self.events.selected, self.snapshot.session
            if row is not None and session is not None:
                self.watch_app.open_event(session.id, row.facts)
        else:
            chosen = self.compactions.selected
            if isinstance(chosen, CompactionFacts):
                self.watch_app.open_compaction(chosen.id)
            elif chosen is not None:
                self._show_agent(chosen.id)

    def _show_agent(self, agent_id: str | None) -> bool:
        """Select the agent; False where it is hidden."""
        place = self.plan.shown.place_of_agent(agent_id)
        if place is None:
            self.say("the current filter hides this agent", "muted")
            return False
        self.plan.select(self.plan.shown[place].id)
        self.action_pane("agent")
        return True

    def action_back(self) -> None:
        if self.has_class("-zoom"):
            self.leave_zoom()
        elif self._words_of(self.active_pane):
            self._apply(self.active_pane, "")
        elif self.plan.marked:
            self.plan.marked = frozenset()
            self.redraw()
        elif self.frozen_at is not None:
            self.action_freeze()
        else:
            self.action_pane("plan")

    def action_artifacts(self) -> None:
        self.watch_app.open_artifacts()

    def _look_for_result(self, snapshot: Snapshot) -> None:
        """When the run has ended, find the artifact that was saved last, and the names of what it left."""
        session = snapshot.session
        wanted = (session.id, snapshot.state) if session is not None and snapshot.state in _OVER else None
        if session is not None and snapshot.state is SessionState.LIVE:
            self._seen_live = session.id
        if wanted == self._result_of:
            return
        self._result_of, self._result, self.agent_pane.outcome = wanted, None, None
        if session is not None and wanted is not None:
            if self._seen_live == session.id and not self.plan.touched:
                self.agent_pane.tab = 0  # begins with the outcome; the remembered tab stays the user's
            self._seen_live = ""
            self.ask(
                lambda connection: (
                    session_artifacts(connection, session.id, 1),
                    load_outcome(Queries(connection), session.id),
                ),
                lambda found: self._result_found(wanted, *found),
            )

    def _result_found(
        self, wanted: tuple[str, SessionState], saved: list[ArtifactFacts], outcome: RunOutcome | None
    ) -> None:
        if wanted == self._result_of:
            if wanted[1] in (SessionState.DONE, SessionState.ENDED) and saved:
                self._result = saved[0]
            self.agent_pane.outcome = outcome
            self.redraw_edges()

    @property
    def _enter_opens_result(self) -> bool:
        """Whether Enter opens the result: in the plan, on the planner or where no row was chosen."""
        row = self.plan.selected
        in_plan = self._result is not None and self.active_pane == "plan"
        return in_plan and (not self.plan.touched or (row is not None and row.task is None))

    def action_timeline(self) -> None:
        session = self.snapshot.session
        if session is not None:
            self.watch_app.open_timeline(session.id)

    def action_export(self, form: str = "") -> None:
        """Export in this form, or ask for one."""
        session = self.newest.session
        if session is not None and form:
            self.export_session(session.id, form)
        elif session is not None:
            self.ask_export(session.id, sanitize(session.title or session.goal))

    def action_fork(self) -> None:
        """Begin a new session at a step of this one."""
        session = self.newest.session
        if session is None:
            return
        if self.newest.host_pid is not None:
            self.say("Fork: the run is active; P pauses it", "muted")
            return
        if imported_from(session.origin):
            # What was not run here has no steps to fork at: a new session continues it.
            self.watch_app.open_start(
                from_session=session.id,
                name=sanitize(session.title or session.goal),
                workspace=session.workspace,
            )
            return
        from watchkeeper_tui.screens.dialogs import ForkScreen

        def forked(made: ForkResult) -> None:
            self.watch_app.open_session(made.session_id)
            self.say(f"✓ forked at event #{made.at_seq} as {made.session_id}", "done", seconds=12)

        self.app.push_screen(ForkScreen(session.id, sanitize(session.title or session.goal), forked))

    def action_next_error(self) -> None:
        """To the next failed call of the agent; of one without any, to that of the newest failure of the run."""
        detail = self.snapshot.detail
        failed = (
            any(block.kind == "tool_error" for block in detail.transcript) if detail is not None else False
        )
        if not failed:
            newest = next(
                (
                    each
                    for each in reversed(self.snapshot.events)
                    if each.facts.kind == "tool.error" and each.agent_id
                ),
                None,
            )
            if newest is None:
                self.say("no failed calls", "muted")
                return
            if not self._show_agent(newest.agent_id):
                return
            self.draw_agent(self._shown_at)  # else the transcript of the agent before would be searched
        self.action_pane("transcript")
        self.searchable.action_jump("error")

    def action_charts(self) -> None:
        """The selected row over time: an agent, or all below it."""
        row = self.plan.selected
        if row is None or not row.agent_ids:
            self.say("this task has no agent yet", "muted")
            return
        agent = row.agent.id if row.agent is not None else row.agent_ids[0]
        others = [each for each in row.agent_ids if each != agent]
        name = row.name
        title = (
            f"{clip(name, 40)} and {formatting.plural(len(others), 'sub-agent')}"
            if others
            else clip(name, 40)
        )
        self.watch_app.open_charts(title, [agent, *others])

    def act(self, name: str, text: str = "") -> None:
        # From here on the selection is the user's: it must not move on to another agent under a preview.
        self.plan.touched = True
        if name == "cancel" and is_planner(self.target):
            name = "cancel_run"
        if self._terminal is not None and name in ("answer", "approve", "deny", "compact"):
            self._act_on_terminal(name)
        else:
            super().act(name, text)

    def _act_on_terminal(self, name: str) -> None:
        """Answer the question of the session's terminal, tell its compactions what to keep, or show what the newest drops."""
        from watchkeeper_tui.screens.external import answer_question_of, ask_instructions, show_dropped

        outside = self._terminal
        if name == "dropped":
            show_dropped(self, outside)
        elif name == "compact":
            ask_instructions(self, outside)
        elif outside is not None:
            answer_question_of(self, outside.session_id)

    def on_agent_pane_tab_opened(self, event: AgentPane.TabOpened) -> None:
        session = self.newest.session
        tabs = with_tab(self.watch_app.layout_kept, session.id if session is not None else "", event.name)
        self.watch_app.remember(tabs=tabs)
        self._fill_third()

    def on_agent_pane_pin_changed(self, event: AgentPane.PinChanged) -> None:
        self.act("pin" if event.pinned else "unpin", event.which)

    @property
    def help_pane(self) -> str:
        return _PANE_SCOPES.get(self.active_pane, self.active_pane)

    @property
    def not_ours(self) -> str:
        return self.target.not_ours

    def legend(self) -> list[Group]:
        return [STATES]

    # What only the command bar and the palette lead to.

    def action_page(self, name: str, words: str = "") -> None:
        """Open a tab of the agent pane; of Memory, only what has these words."""
        verb, _, wanted = words.partition(" ")
        if verb not in ("", "status", "search"):
            self.say(":memory takes status, sync or search WORDS", "failed")
            return
        if name == "Memory":
            self.agent_pane.filter_words = wanted.strip()
        self.agent_pane.open_page(name)
        self.action_pane("agent")
        self.redraw()

    def action_grants(self) -> None:
        self.show_grants()

    def action_compact_with_instructions(self) -> None:
        action, target = BY_ID["compact"], self.target
        reason = action.not_now(target)
        if reason:
            self.say(f"{action.label}: {reason}", "muted")
        else:
            self._instructions(action, target)

    def action_step_agent(self, step: int) -> None:
        order = self.plan.shown.agent_ids()
        chosen = self.plan.selected
        if not order:
            return
        current = chosen.agent.id if chosen is not None and chosen.agent is not None else None
        place = (order.index(current) + step) % len(order) if current in order else 0
        row = self.plan.shown.place_of_agent(order[place])
        if row is not None:
            self.plan.select(self.plan.shown[row].id)

    def action_report(self) -> None:
        """A report on the selected agent, or the page of a task that has none, over the whole screen."""
        if self.target.agent is not None:
            self.agent_pane.open_page("Report")
        elif not self.target.tasks:
            self.say("select an agent first", "muted")
            return
        self.open_agent()

    def action_next_order(self) -> None:
        """Sort the plan in the next order."""
        orders = list(ORDERS)
        now, session = self.plan.order, self.newest.session
        wanted = orders[(orders.index(now) + 1) % len(orders)] if now in orders else orders[0]
        self.watch_app.remember(
            **{self._kept_as("order"): wanted, "ordered": session.id if session is not None else ""}
        )
        self.plan.is_tree = False
        self.plan.order = wanted
        self.redraw()
        self.say(f"plan sorted {ORDERS[wanted]}", "muted", seconds=3)

    def action_attention(self) -> None:
        """Go to the next row that needs attention."""
        rows = list(self.plan.shown)
        place = self.plan.shown.place_of(self.plan.selected_id or "")
        start = place + 1 if place is not None else 0
        # After the last row come sessions in other terminals, then the first row again.
        has_gone = self._went_from is not None and self._went_from == self.plan.selected_id
        self._went_from = None
        later = any(row.condition.needs_attention for row in rows[start:])
        if not later and not has_gone and self._next_terminal():
            return
        for row in rows[start:] + rows[:start]:
            if row.condition.needs_attention:
                self.plan.select(row.id)
                self.say(
                    f"{row.condition.glyph} {row.name}: {row.condition.note or row.condition.word}",
                    row.condition.role,
                )
                return
        if not self._next_terminal():
            self.say("nothing needs your attention", "done")

    def _next_terminal(self) -> bool:
        """Go to the first session in another terminal that needs a person, on the fleet screen; False without one."""
        session = self.newest.session
        besides = session.id if session is not None else None
        first = next(iter(terminals.needy(self.newest.external, self.watch_app.now(), besides)), None)
        if first is None:
            return False
        self._went_from = self.plan.selected_id
        self.watch_app.open_fleet(first[0].session_id)
        return True

    def action_mark(self) -> None:
        row = self.plan.selected
        if row is not None:
            self.plan.marked ^= {row.id}
            self.redraw()
            self.plan.action_move(1)

    def action_collapse_all(self) -> None:
        everything = plan_rows(self.snapshot, self.watch_app.now())
        tasks = frozenset(row.id for row in everything if row.expandable and row.task is not None)
        self.plan.collapsed = tasks or frozenset(row.id for row in everything if row.expandable)
        self.redraw()

    def action_expand_all(self) -> None:
        self.plan.collapsed = frozenset()
        self.redraw()

    def action_copy(self) -> None:
        """Copy the content of the selected row."""
        pane = self.active_pane
        text = ""
        if pane in ("agent", "transcript"):
            line = (self.agent_pane if pane == "agent" else self.transcript).page.selected
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
            self.say("nothing to copy", "muted", seconds=3)

    def action_freeze(self) -> None:
        """Freeze the view. New events are counted; nothing is paused."""
        now = self.watch_app.now()
        if self.frozen_at is None:
            self.frozen_at = now
            goes_on = ", the run continues" if self.newest.state is SessionState.LIVE else ""
            self.say(f"view frozen{goes_on}; f unfreezes it", "muted")
        else:
            self.frozen_at = None
            # Drawn with the borders, below.
            self.set_reactive(LiveScreen.snapshot, self.newest)
            self.say("view unfrozen", "muted", seconds=2)
        # The text first: the borders, and events that arrived meanwhile, repaint every pane.
        self.redraw_edges()
        self.call_after_refresh(self._frame_frozen)

    def _frame_frozen(self) -> None:
        self._frame()
        self.redraw()

    def _frame(self) -> None:
        self.query_one("#panes").set_class(self.frozen_at is not None, "-frozen")

    # Leaving.
