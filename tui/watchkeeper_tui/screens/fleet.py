"""Several sessions at once, live: which of them work, what they spend, and which of them need a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from watchkeeper.records.text import question_words
from watchkeeper.records.usage_limits import limit_text
from watchkeeper.records.waiting import Waiting, waiting_word
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.external import External, ExternalQuestion, ExternalSession
from watchkeeper.store.imports import imported_from
from watchkeeper.store.snapshot import FleetReader, FleetRow
from watchkeeper.store.workers import WorkerRow, load_workers
from watchkeeper_tui import external as terminals
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import ReadingScreen, WatchScreen
from watchkeeper_tui.screens.external import answer_question_of, ask_instructions, show_dropped
from watchkeeper_tui.snapshot import (
    SESSION_BADGES,
    Condition,
    SessionState,
    Snapshot,
    session_state,
    state_word,
)
from watchkeeper_tui.watch_app import watch_app
from watchkeeper_tui.widgets.bars import CRAMPED, KeyLine, Prompt, StatusLine
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView, content, set_title
from watchkeeper_tui.widgets.sessions import wrapped

SILENT_SECONDS = 300.0
"""A live session with agents at work but nothing written for so long is shown as silent."""
PROBE_SECONDS = 1.0
"""How often the leases of sessions that run are looked at."""
_BAR_CELLS = 4
_ROLES = {
    SessionState.LIVE: "working",
    SessionState.PAUSED: "paused",
    SessionState.DEAD: "dead",
    SessionState.DONE: "done",
    SessionState.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """One reading of all the sessions."""

    rows: tuple[FleetRow, ...] = ()
    hosted: frozenset[str] = frozenset()
    """Those that a process drives."""


class FleetQuestion:
    """What the reader's thread asks at each reading; None where nothing changed."""

    def __init__(
        self,
        session_ids: Sequence[str],
        hosts: Callable[[Iterable[str]], Mapping[str, int]],
        now: Callable[[], float],
        outside: Callable[[], External] = External,
    ) -> None:
        """`hosts`: the processes that drive sessions; `outside`: what sessions in other terminals do, as it was read last."""
        self._reader = FleetReader(session_ids)
        self._hosts, self._now, self._outside = hosts, now, outside
        self._probed_at = float("-inf")
        self._running: frozenset[str] = frozenset()
        self._last: Fleet | None = None

    def __call__(self, connection: Connection) -> Fleet | None:
        now = self._now()
        also = [each.session_id for each in self._outside().sessions if each.imported]
        rows = self._reader.read(connection, now, also)
        running = frozenset(row.id for row in rows if row.status == "running")
        before = self._last or Fleet()
        hosted = before.hosted & running
        if running != self._running or not 0 <= now - self._probed_at < PROBE_SECONDS:
            self._probed_at, self._running = now, running
            hosted = frozenset(self._hosts(running))
        if self._last is not None and rows is self._last.rows and hosted == self._last.hosted:
            return None
        self._last = Fleet(rows, hosted)
        return self._last


def fleet_condition(
    row: FleetRow, hosted: bool, now: float, outside: ExternalSession | None = None, asked: Sequence[ExternalQuestion] = ()
) -> Condition:  # fmt: skip
    """The state of a session beside others, and why it is in it. A question comes before all else.

    `outside`: what is known of its terminal, with the questions `asked` there.
    """
    if outside is not None and (outside.status != "ended" or terminals.is_over(outside, row.last_active)):
        return terminals.condition_of(outside, asked, now)
    state = session_state(row.status, hosted, working=row.working > 0, origin=row.origin)
    reason = sanitize(row.status_reason or "")
    if row.question is not None and state not in (SessionState.DONE, SessionState.ENDED):
        question = question_words(row.question.tool, row.question.text)
        words = f"{row.question.agent or 'an agent'}: {row.question.tool} {question}"
        return Condition(
            "?",
            Waiting.QUESTION,
            "waiting",
            (f"{row.questions} questions: " if row.questions > 1 else "") + _line(words),
        )
    if row.budget_reached and state is SessionState.PAUSED:
        return Condition("‖", Waiting.BUDGET, "waiting", reason or "remaining budget too small")
    if state is SessionState.DEAD and row.queued_at is not None:
        return Condition(
            "◷", "queued", "muted", "waiting for a worker; w lists workers, `wk show` explains why"
        )
    if state is SessionState.DEAD:
        limit = f"; {limit_text(row.limit, now)}" if row.limit is not None else ""
        return Condition(
            "†", "stopped", "dead", f"background process gone; open the session, then r resumes{limit}"
        )
    if row.limit is not None and not row.working:
        return Condition("◷", Waiting.LIMIT, "slot", limit_text(row.limit, now))
    quiet = now - row.last_active
    if state is SessionState.LIVE and row.working and quiet >= SILENT_SECONDS:
        task = f" — {_line(row.task)}" if row.task else ""
        return Condition("!", "silent", "silent", f"silent {formatting.duration(quiet)}{task}")
    glyph, _ = SESSION_BADGES[state]
    note = _line(row.task or "") if state is SessionState.LIVE else reason
    waits = waiting_word(row.status, row.status_reason) if state is SessionState.PAUSED else None
    return Condition(glyph, waits or state_word(state, row.status), _ROLES.get(state, "muted"), note)


def _line(text: str) -> str:
    return " ".join(sanitize(text).split())


def fleet_name(row: FleetRow) -> str:
    """The session's title, or its goal; sanitised, on one line."""
    return _line(row.title or row.goal)


def _columns(goal: int, question: int) -> tuple[Column, ...]:
    """The columns with so many cells at least for a goal and a question."""
    return (
        Column("state", 11),
        Column("session", 8, drop=4),
        Column("goal", goal, flexible=True),
        Column("plan", _BAR_CELLS + 6, drop=1),
        Column("agents", 7, right=True, drop=5),
        Column("cost", 8, right=True, drop=3),
        Column("$/m", 5, right=True, drop=2),
        Column("active", 9, right=True, drop=6),
        Column("question / task", question, flexible=True),
    )


_WIDE_FROM = 100
_WIDE, _NARROW = _columns(22, 36), _columns(16, 18)


class FleetView(RowView[FleetRow]):
    """One row a session: those that run first, then the others; each the newest first."""

    HEADINGS = True
    EMPTY = "no sessions running, paused or active today; s lists all"

    def columns(self) -> Sequence[Column]:
        return _WIDE if self.size.width >= _WIDE_FROM else _NARROW

    def __init__(self) -> None:
        super().__init__(id="fleet", classes="pane")
        self.now = 0.0
        self.hosted: frozenset[str] = frozenset()
        self.outside: dict[str, ExternalSession] = {}
        """Those of other terminals, by the id of the row."""
        self.asked: dict[str, tuple[ExternalQuestion, ...]] = {}

    def set_rows(self, rows: Sequence[FleetRow]) -> None:
        self.hide(*(() if any(row.cost_usd for row in rows) else ("cost", "$/m")))
        super().set_rows(rows)

    def row_id(self, row: FleetRow) -> str:
        return row.id

    def condition(self, row: FleetRow) -> Condition:
        """The row's state as shown."""
        asked = self.asked.get(row.id, ())
        return fleet_condition(row, row.id in self.hosted, self.now, self.outside.get(row.id), asked)

    def row_cells(self, row: FleetRow) -> Sequence[Cell]:
        condition = self.condition(row)
        return (
            [(f"{condition.glyph} {condition.word}", condition.role)],
            [(row.id, "accent")],
            [
                (f"{imported_from(row.origin)}: " if imported_from(row.origin) else "", "muted"),
                (fleet_name(row), "text"),
            ],
            _plan(row),
            [
                (
                    "-" if row.id in self.outside and not row.agents else f"{row.working}/{row.agents}",
                    "text" if row.working else "muted",
                )
            ],
            [(formatting.bill(row), "money")],
            [(formatting.rate(row.cost_per_minute), "money" if row.cost_per_minute else "muted")],
            [(formatting.when(row.last_active, self.now), "muted")],
            [(condition.note, condition.role if condition.needs_attention else "muted")],
        )


def _plan(row: FleetRow) -> list[Piece]:
    """A bar and a count of the tasks that are done; failures marked."""
    if not row.tasks_planned:
        return [("-", "muted")]
    bar = formatting.bar(row.tasks_done, row.tasks_planned, _BAR_CELLS)
    count = f" {row.tasks_done}/{row.tasks_planned}"
    return [
        (bar, "done"),
        ("░" * (_BAR_CELLS - len(bar)), "bar_empty"),
        (count, "failed" if row.tasks_failed else "text"),
        *([("✗", "failed")] if row.tasks_failed else []),
    ]


class FleetDetail(Widget):
    """The selected session in full: its name, and the question or the task."""

    LINES = 5
    row: FleetRow | None = None
    condition: Condition | None = None
    outside: ExternalSession | None = None

    def show(
        self, row: FleetRow | None, condition: Condition | None, outside: ExternalSession | None = None
    ) -> None:
        """Show this session, with what is known of its terminal."""
        if (row, condition, outside) != (self.row, self.condition, self.outside):
            self.row, self.condition, self.outside = row, condition, outside
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self._rows(width)))

    def render(self) -> Content:
        palette = watch_app(self).palette
        return Content("\n").join([content(row, palette) for row in self._rows(self.size.width)])

    def _rows(self, width: int) -> list[list[Piece]]:
        row, condition = self.row, self.condition
        if row is None or condition is None:
            return []
        width = max(20, width)
        facts = f"   {sanitize(formatting.model_name(row.model))}  {formatting.tokens(row.total_tokens)} tok"
        if self.outside is not None:
            pid = f"pid {self.outside.pid}  " if self.outside.pid else ""
            facts = f"   {pid}{terminals.line(self.outside.folder, 200)}"
        failed = f"  {formatting.plural(row.tasks_failed, 'task')} failed" if row.tasks_failed else ""
        lines = wrapped([(fleet_name(row), "strong"), (facts, "muted"), (failed, "failed")], width)[:2]
        if condition.note:
            role = condition.role if condition.needs_attention else "text"
            lines += wrapped([(f"{condition.glyph} {clip(condition.note, 600)}", role)], width)
        return lines[: self.LINES]


class FleetScreen(WatchScreen):
    """`W` opens it. Enter opens a session, `e` selects the next that needs a person, `a` answers one of another terminal."""

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-low"), (20, "-tall")]  # noqa: RUF012

    SCOPE = "fleet"
    BINDINGS: ClassVar[list[BindingType]] = bindings("fleet")

    def __init__(self, session_ids: Sequence[str] = (), select: str = "") -> None:
        """`select`: the session to select first."""
        super().__init__()
        self._ids = tuple(session_ids)
        self._select = select
        self._fleet: Fleet | None = None
        self._order: dict[str, int] = {}
        """When each session that is not imported was seen first."""

    def whereabouts(self) -> tuple[str, ...]:
        return ("fleet",)

    def compose(self) -> ComposeResult:
        yield FleetView()
        yield FleetDetail()
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    @property
    def view(self) -> FleetView:
        return self.query_one(FleetView)

    def on_mount(self) -> None:
        self.view.focus()
        app, running = self.watch_app, self.app

        def answer(fleet: Fleet) -> None:
            # In the reader's thread: hand it over to the screen's own.
            running.call_later(self._arrived, fleet)

        question = FleetQuestion(self._ids, app.hosts, app.now, lambda: app.snapshot.external)
        app.reader.keep_asking(question, answer)
        self._describe()

    def on_unmount(self) -> None:
        self.watch_app.reader.keep_asking(None)

    def _arrived(self, fleet: Fleet) -> None:
        if not self.is_usable:
            return
        self._fleet = fleet
        self._show_rows()

    def _show_rows(self) -> None:
        """The rows of the store, and those of other terminals that it has not: each session once."""
        fleet, view = self._fleet, self.view
        if fleet is None:
            return
        external = self.watch_app.snapshot.external
        known = {row.id for row in fleet.rows}
        view.now, view.hosted = self.watch_app.now(), fleet.hosted
        view.outside = {
            each.session_id: each for each in external.sessions if each.session_id in known or not self._ids
        }
        view.asked = terminals.questions_by_session(external)
        added = [each for each in view.outside.values() if each.session_id not in known]
        for each in sorted(added, key=lambda one: one.changed_at):
            self._order.setdefault(each.session_id, len(self._order))
        added.sort(key=lambda each: -self._order[each.session_id])
        rows = [*map(terminals.row_of, added), *fleet.rows]
        # Sessions that ended leave the upper part; nothing else moves a row.
        view.set_rows(sorted(rows, key=self._is_over))
        view.repaint_changed()
        if self._select and view.select(self._select, tell=False):
            self._select = ""
        elif view.rows and view.selected_id is None:
            view.select(view.row_id(view.rows[0]), tell=False)
        self._describe()

    def _is_over(self, row: FleetRow) -> bool:
        outside = self.view.outside.get(row.id)
        if outside is not None and terminals.is_over(outside, row.last_active):
            return True
        return outside is None and row.status not in ("running", "paused")

    def tick(self, now: float) -> None:
        self.view.now = now
        self.view.repaint_changed()
        self._describe()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        if snapshot.external != self._outside:
            self._outside = snapshot.external
            self._show_rows()
        if snapshot.problem:
            self._describe()

    _outside = External()

    def _describe(self) -> None:
        view, fleet, now = self.view, self._fleet or Fleet(), self.watch_app.now()
        conditions = [view.condition(row) for row in view.rows]
        needy = sum(condition.needs_attention for condition in conditions)
        live = sum(condition.role == "working" for condition in conditions)
        title: list[Piece] = [
            ("Fleet", "strong"),
            (f"  {formatting.plural(len(view.rows), 'session')}", "muted"),
        ]
        title += [(f"  ● {live} live", "working")] if live else []
        if needy:
            title += [("  ", "text"), (f"? {formatting.plural(needy, 'needs you', 'need you')}", "waiting")]
        pace = sum(row.cost_per_minute for row in fleet.rows)
        title += [(f"  {formatting.rate(pace)} $/m", "money")] if pace else []
        set_title(view, title, self.watch_app.palette)
        chosen = view.selected
        outside = view.outside.get(chosen.id) if chosen is not None else None
        condition = view.condition(chosen) if chosen is not None else None
        self.query_one(FleetDetail).show(chosen, condition, outside)
        problem = self.watch_app.snapshot.problem
        standing: list[Piece] = [(f"! {sanitize(problem)}", "failed")] if problem else []
        if self._fleet is None and not problem:
            standing = [("loading …", "muted")]
        self.query_one(StatusLine).pieces = tuple(self.with_notice(standing, now))
        self.show_keys()

    def why_not(self, action: Action) -> str:
        chosen = self.view.selected
        outside = self.view.outside.get(chosen.id) if chosen is not None else None
        if action.id == "attention":
            return (
                ""
                if any(self.view.condition(row).needs_attention for row in self.view.rows)
                else "no session needs you"
            )
        if action.id not in ("answer", "dropped", "instructions"):
            return ""
        if outside is None:
            return "only for sessions in other terminals"
        if action.id == "dropped":
            return "" if outside.compactions else "no compactions"
        if action.id == "instructions":
            return terminals.why_not_instruct(outside)
        return terminals.why_not_answer(outside, self.view.asked.get(outside.session_id, ()))

    def action_fleet(self) -> None:
        """The key that opens it closes it."""
        self.action_back()

    @property
    def _chosen(self) -> ExternalSession | None:
        row = self.view.selected
        return self.view.outside.get(row.id) if row is not None else None

    def _open(self, session_id: str, *, read_only: bool = False) -> None:
        outside = self.view.outside.get(session_id)
        if outside is not None and not outside.imported:
            self.say(terminals.NOT_IMPORTED, "muted")
        else:
            self.watch_app.open_session(session_id, read_only=read_only)

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        self._open(event.row_id)

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        self._describe()

    def action_attention(self) -> None:
        """Select the next session that needs a person."""
        view = self.view
        rows = list(view.rows)
        here = rows.index(view.selected) + 1 if view.selected in rows else 0
        for row in [*rows[here:], *rows[:here]]:
            if view.condition(row).needs_attention:
                view.select(row.id)
                return
        self.say("no session needs you", "muted")

    def action_answer(self) -> None:
        """Open the question of the selected session in another terminal."""
        if self._chosen is None:
            self.say("Enter opens the session; a answers there", "muted")
        else:
            answer_question_of(self, self._chosen.session_id)

    def action_dropped(self) -> None:
        """Read what the newest compaction of the selected session drops."""
        show_dropped(self, self._chosen)

    def action_instructions(self) -> None:
        """Ask what the compactions of the selected session should keep."""
        ask_instructions(self, self._chosen)

    def action_view(self) -> None:
        if (row := self.view.selected) is not None:
            self._open(row.id, read_only=True)

    def action_timeline(self) -> None:
        row = self.view.selected
        if row is not None and self._chosen is not None and not self._chosen.imported:
            self.say(terminals.NOT_IMPORTED, "muted")
        elif row is not None:
            self.watch_app.open_timeline(row.id)

    def action_workers(self) -> None:
        """List the workers of every machine."""
        self.app.push_screen(WorkersScreen())

    def action_copy(self) -> None:
        if (row := self.view.selected) is not None:
            self.watch_app.copy_text(row.id)
            self.say(f"copied {row.id}", "done", seconds=3)


# --- Workers ------------------------------------------------------------------------------------------------


class WorkersView(RowView[WorkerRow]):
    """One row a worker, the oldest first."""

    HEADINGS = True
    EMPTY = "no workers; `wk worker` starts one"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("state", 10),
        Column("machine", 12, flexible=True),
        Column("slots", 7, right=True),
        Column("seen", 9, right=True),
        Column("pid", 8, right=True, drop=2),
        Column("labels", 16, flexible=True),
        Column("sessions", 18, flexible=True, drop=1),
    )

    def row_id(self, row: WorkerRow) -> str:
        return row.id

    def row_cells(self, row: WorkerRow) -> Sequence[Cell]:
        glyph, role = {"running": ("●", "working"), "draining": ("‖", "paused")}.get(row.state, ("†", "dead"))
        return (
            [(f"{glyph} {_line(row.state)}", role)],
            [(_line(row.machine), "text")],
            [(f"{len(row.sessions)}/{row.slots}", "text" if row.sessions else "muted")],
            [(f"{formatting.duration(row.seconds_since_seen)} ago", role if row.is_gone else "muted")],
            [(str(row.pid), "muted")],
            [(_line(", ".join(row.labels)), "muted")],
            [(_line(" ".join(row.sessions)), "accent")],
        )


class WorkersScreen(ReadingScreen):
    """`w` in the fleet opens it. Enter opens the first session of the selected worker."""

    PLACE = "workers"

    SCOPE = "workers"
    BINDINGS: ClassVar[list[BindingType]] = bindings("workers")

    def __init__(self) -> None:
        super().__init__()
        self.read_seconds = PROBE_SECONDS

    def body(self) -> ComposeResult:
        yield WorkersView(id="workers", classes="pane")

    @property
    def view(self) -> WorkersView:
        return self.query_one(WorkersView)

    def on_mount(self) -> None:
        self.view.focus()

    @property
    def has_changed(self) -> bool:
        return True  # other machines' workers say so in no event of this session

    def question(self) -> Callable[[Connection], list[WorkerRow]]:
        return lambda connection: load_workers(Queries(connection))

    def arrived(self, found: list[WorkerRow]) -> None:
        view = self.view
        view.set_rows(found)
        view.repaint_changed()
        if found and view.selected_id is None:
            view.select(found[0].id, tell=False)

    def heading(self) -> tuple[Widget, Sequence[Piece]]:
        rows = self.view.rows
        slots = sum(row.slots for row in rows if row.state == "running")
        driven = sum(len(row.sessions) for row in rows)
        about = (
            f"  {formatting.plural(len(rows), 'worker')}  {driven} of {formatting.plural(slots, 'slot')}"
            if rows
            else ""
        )
        return self.view, (("Workers", "strong"), (about, "muted"))

    def why_not(self, action: Action) -> str:
        row = self.view.selected
        return (
            "" if action.id != "open" or (row is not None and row.sessions) else "this worker has no session"
        )

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        row = self.view.selected
        if row is None or not row.sessions:
            self.say("this worker has no session", "muted")
        else:
            self.watch_app.open_session(row.sessions[0])

    def copied(self) -> str:
        row = self.view.selected
        return _line(f"{row.id} {row.machine} {row.pid}") if row is not None else ""
