"""The plan as a drawn graph, with what waits for what, and its revisions as a difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from watchkeeper.store.driver import Connection
from watchkeeper.store.snapshot import TaskFacts, plan_revisions
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import BY_ID, PLAN_EDITS, Target, target_of
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.acting import ActingScreen
from watchkeeper_tui.screens.base import PageScreen
from watchkeeper_tui.snapshot import Snapshot, task_condition
from watchkeeper_tui.widgets.bars import KeyHint, command_pieces
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView

MOST_RAILS = 16
"""Lines of the graph beside each other; more are not drawn."""
MOST_NAMES = 4
"""Tasks that are named where one waits for several."""
_OVER = frozenset(("done", "dropped"))


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One line of the screen. Texts are sanitised."""

    id: str
    drawing: tuple[Piece, ...]
    words: tuple[Piece, ...]
    task_id: str = ""


def in_order(tasks: Sequence[TaskFacts]) -> list[TaskFacts]:
    """Prerequisites before what needs them, else as planned; tasks in a circle come last, as planned."""
    known = {task.id: task for task in tasks}
    missing = {
        task.id: {need for need in task.depends_on if need in known and need != task.id} for task in tasks
    }
    ordered: list[TaskFacts] = []
    left = sorted(tasks, key=lambda task: task.position)
    while left:
        ready = [task for task in left if not missing[task.id]]
        if not ready:
            return [*ordered, *left]
        ordered += ready
        done = {task.id for task in ready}
        left = [task for task in left if task.id not in done]
        for task in left:
            missing[task.id] -= done
    return ordered


def drawn(tasks: Sequence[TaskFacts], glyphs: Mapping[str, Piece]) -> list[tuple[Piece, ...]]:
    """The graph beside tasks in order: a rail goes down from each task to the last one that needs it."""
    places = {task.id: place for place, task in enumerate(tasks)}
    last: dict[str, int] = {}
    for place, task in enumerate(tasks):
        for need in task.depends_on:
            if places.get(need, place) < place:
                last[need] = place
    rails: list[str | None] = []
    lines: list[tuple[Piece, ...]] = []
    for place, task in enumerate(tasks):
        needs = {need for need in task.depends_on if need in rails}
        ending = [column for column, rail in enumerate(rails) if rail in needs and last[str(rail)] == place]
        free = [column for column, rail in enumerate(rails) if rail is None]
        column = min(ending or free or [len(rails)])
        if column == len(rails):
            rails.append(None)
        joined = [at for at, rail in enumerate(rails) if rail in needs] + [column]
        begins, ends = min(joined), max(joined)
        pieces: list[Piece] = []
        for at in range(min(len(rails), MOST_RAILS)):
            rail = rails[at]
            within = begins < at < ends
            if at == column:
                pieces.append(glyphs.get(task.id, ("·", "pending")))
            elif rail in needs:
                pieces.append((_joint(at, column, within, last[str(rail)] > place), "faint"))
            elif rail is not None:
                pieces.append(("┼" if within else "│", "faint"))
            else:
                pieces.append(("─" if within else " ", "faint"))
            pieces.append(("─" if begins <= at < ends else " ", "faint"))
        if len(rails) > MOST_RAILS:
            pieces.append(("…", "faint"))
        lines.append(tuple(pieces))
        for at in ending:
            rails[at] = None
        rails[column] = task.id if last.get(task.id, -1) > place else None
        while rails and rails[-1] is None:
            rails.pop()
    return lines


def _joint(at: int, column: int, within: bool, goes_on: bool) -> str:
    """Where the rail of a prerequisite meets the line to the task that needs it."""
    if goes_on:
        return "├" if at < column else "┼" if within else "┤"
    return "┴" if within else "╰" if at < column else "╯"


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a plan as stored. Texts are hostile until sanitised."""

    number: int
    at: float
    reason: str
    tasks: tuple[Mapping[str, Any], ...]


def changes(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str, str]]:
    """What a revision changed: `+`, `-` or `~`, the task's name, and how it changed."""
    old, new = ({str(task.get("id")): task for task in tasks} for tasks in (before, after))
    names = {key: _label(task) for key, task in (old | new).items()}
    found = [("+", _label(task), _after(task, names)) for key, task in new.items() if key not in old]
    found += [("-", _label(task), "") for key, task in old.items() if key not in new]
    for key in new.keys() & old.keys():
        was, now = old[key], new[key]
        parts = []
        if _title(was) != _title(now):
            parts.append(f"was “{_title(was)}”")
        if was.get("depends_on") != now.get("depends_on"):
            parts.append(_after(now, names) or "waits for nothing now")
        if parts:
            found.append(("~", _label(now), ", ".join(parts)))
        elif now.get("status") == "dropped" != was.get("status"):
            found.append(("-", _label(now), "dropped"))
    return found


def _label(task: Mapping[str, Any]) -> str:
    """Its name, as `_stored` found it, else as the revision has it."""
    return str(task.get("label") or task.get("name") or _title(task))


def _title(task: Mapping[str, Any]) -> str:
    return str(task.get("title") or task.get("name") or "")


def _after(task: Mapping[str, Any], names: Mapping[str, str]) -> str:
    needs = task.get("depends_on")
    return (
        "after " + ", ".join(names.get(str(need), str(need)) for need in needs)
        if isinstance(needs, list) and needs
        else ""
    )


class GraphView(RowView[GraphRow]):
    """The graph, or the revisions."""

    EMPTY = "no plan yet"
    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def row_id(self, row: GraphRow) -> str:
        return row.id

    def row_cells(self, row: GraphRow) -> Sequence[Cell]:
        return ((*row.drawing, (" ", "text"), *row.words),)


_ACTS = ("plan_add", "plan_revise", "plan_drop", "rerun", "rerun_fresh")
"""The actions that this screen has keys for."""


class PlanScreen(PageScreen, ActingScreen):
    """`d` opens it; `v` switches between the graph and the revisions. The plan can be edited here."""

    PLACE = "plan"

    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(BY_ID[name].key, f"act('{name}')", BY_ID[name].label, show=False, id=f"act.{name}")
            for name in _ACTS
        ],
        Binding("v", "switch", "Revisions", show=False, id="graph.revisions"),
        Binding("y", "copy", "Copy", show=False, id="graph.copy"),
        Binding("escape,d", "back", "Back", show=False, id="graph.back"),
    ]

    def __init__(self, session_id: str, chosen: Callable[[str], None]) -> None:
        """`chosen` is called with the id of the task that Enter chose."""
        super().__init__()
        self.session_id = session_id
        self._chosen = chosen
        self._shows_revisions = False
        self._revisions: tuple[Revision, ...] = ()
        self._read_seq = -1

    def body(self) -> ComposeResult:
        yield GraphView(id="graph", classes="pane")

    @property
    def view(self) -> GraphView:
        return self.query_one(GraphView)

    def on_mount(self) -> None:
        self.view.focus()
        self.snapshot_changed(self.watch_app.snapshot)

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        session = snapshot.session
        if session is not None and session.id == self.session_id:
            if self._shows_revisions and session.event_seq != self._read_seq:
                self._read(session.event_seq)
            elif not self._shows_revisions:
                self.view.set_rows(graph_rows(snapshot))
        self.redraw_edges()

    def _read(self, event_seq: int) -> None:
        self._read_seq = event_seq

        labels = {task.id: sanitize(task.label) for task in self.watch_app.snapshot.tasks}

        def question(connection: Connection) -> tuple[Revision, ...]:
            rows = plan_revisions(connection, self.session_id)
            return tuple(
                Revision(number, at, reason, _stored(graph, labels)) for number, at, reason, graph in rows
            )

        self.ask(question, self._arrived)

    def _arrived(self, revisions: tuple[Revision, ...]) -> None:
        self._revisions = revisions
        if self._shows_revisions:
            self.view.set_rows(revision_rows(self._revisions, self.watch_app.now()))
        self.redraw_edges()

    def heading(self) -> tuple[Widget, Sequence[Piece]]:
        if self._shows_revisions:
            words = f"  {formatting.plural(len(self._revisions), 'revision')}, newest first"
        else:
            words = f"  {formatting.plural(len(self.watch_app.snapshot.tasks), 'task')}, prerequisites first"
        return self.view, (("Plan", "strong"), (words, "muted"))

    @property
    def target(self) -> Target:
        """The task of the selected row."""
        snapshot, row = self.watch_app.snapshot, self.view.selected
        task = snapshot.task(row.task_id) if row is not None and row.task_id else None
        rows = [(None, task)] if task is not None else []
        return target_of(snapshot, rows, read_only=self.watch_app.read_only)

    def standing(self, now: float) -> Sequence[Piece]:
        row, snapshot = self.view.selected, self.watch_app.snapshot
        if command := command_pieces(snapshot, self.sent, now):
            return command
        return row.words if row is not None else ()

    def keys(self) -> Sequence[KeyHint]:
        row, target, key_for = self.view.selected, self.target, self.watch_app.key_for
        acts = [(BY_ID[name], label) for name, label in (*PLAN_EDITS, ("rerun", "Re-run"))]
        return (
            *(
                KeyHint(key_for(f"act.{each.id}", each.key), label, f"act('{each.id}')", each.why_not(target))
                for each, label in acts
            ),
            KeyHint("v", "Graph" if self._shows_revisions else "Revisions", "switch"),
            KeyHint("enter" if row is not None and row.task_id else "", "Go to the task", "press('enter')"),
            KeyHint("y", "Copy", "copy"),
        )

    def copied(self) -> str:
        row = self.view.selected
        return "".join(text for text, _ in row.words) if row is not None else ""

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        row = self.view.selected
        if row is not None and row.task_id:
            self.app.pop_screen()
            self._chosen(row.task_id)

    def action_switch(self) -> None:
        self._shows_revisions = not self._shows_revisions
        self.view.selected_id, self._read_seq = None, -1
        self.view.set_rows(
            revision_rows(self._revisions, self.watch_app.now()) if self._shows_revisions else ()
        )
        self.view.action_first()
        self.snapshot_changed(self.watch_app.snapshot)

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Plan",
                [
                    ("v", "the graph, or the plan's revisions: what each one added, removed and changed"),
                    *((BY_ID[name].key, BY_ID[name].help) for name in _ACTS),
                    ("enter", "go to the task on the live screen"),
                    ("y", "copy the line"),
                    ("esc, d", "back"),
                ],
            )
        ]


def graph_rows(snapshot: Snapshot) -> list[GraphRow]:
    """A row for each task of the plan: the graph, its name, what it waits for and how many wait for it."""
    tasks = in_order(snapshot.tasks)
    by_id = {task.id: task for task in tasks}
    glyphs: dict[str, Piece] = {}
    for task in tasks:
        condition = task_condition(task)
        glyphs[task.id] = (condition.glyph, condition.role)
    waiting: dict[str, int] = {}
    for task in tasks:
        for need in task.depends_on:
            waiting[need] = waiting.get(need, 0) + (task.status not in _OVER)
    rows = []
    for task, drawing in zip(tasks, drawn(tasks, glyphs), strict=True):
        open_needs = [
            by_id[need] for need in task.depends_on if need in by_id and by_id[need].status not in _OVER
        ]
        words: list[Piece] = [
            (sanitize(task.label), "text"),
            (f"  {sanitize(task.status)}", glyphs[task.id][1]),
        ]
        if open_needs and task.status not in _OVER:
            names = ", ".join(sanitize(need.label) for need in open_needs[:MOST_NAMES])
            more = f" and {len(open_needs) - MOST_NAMES} more" if len(open_needs) > MOST_NAMES else ""
            words += [("  ", "text"), (f"waits for {names}{more}", "waiting")]
        if waiting.get(task.id) and task.status not in _OVER:
            words.append(
                (f"  {waiting[task.id]:,} {'waits' if waiting[task.id] == 1 else 'wait'} for it", "muted")
            )
        rows.append(GraphRow(task.id, drawing, tuple(words), task.id))
    return rows


def revision_rows(revisions: Sequence[Revision], now: float) -> list[GraphRow]:
    """The newest revision first: its reason, then a row for each change."""
    roles = {"+": "done", "-": "failed", "~": "waiting"}
    rows: list[GraphRow] = []
    for place in range(len(revisions) - 1, -1, -1):
        revision = revisions[place]
        before = revisions[place - 1].tasks if place else ()
        heading: tuple[Piece, ...] = (
            (f"r{revision.number}", "accent"),
            (f"  {formatting.when(revision.at, now)}  ", "muted"),
            (_line(revision.reason), "strong"),
        )
        rows.append(GraphRow(f"r{place}", (), heading))
        for number, (mark, title, how) in enumerate(changes(before, revision.tasks)):
            words: list[Piece] = [(f"{mark} ", roles[mark]), (_line(title), "text")]
            if how:
                words.append((f"  {_line(how)}", "muted"))
            task = next((str(each.get("id")) for each in revision.tasks if _label(each) == title), "")
            rows.append(GraphRow(f"r{place}.{number}", (("  ", "text"),), tuple(words), task))
    return rows


def _stored(graph: str, labels: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    """The tasks of a revision, with the names by which the plan calls them now (`labels`, by id)."""
    try:
        found = json.loads(graph)
    except ValueError:
        return ()
    tasks = [task for task in found if isinstance(task, dict)] if isinstance(found, list) else []
    return tuple(task | {"label": labels.get(str(task.get("id")), "")} for task in tasks)


def _line(text: str) -> str:
    return clip(" ".join(sanitize(text).split()), 160)
