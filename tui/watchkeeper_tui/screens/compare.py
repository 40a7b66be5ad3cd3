"""Two sessions side by side: statistics, tasks and facts, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from watchkeeper.store.library import Comparison, SessionSide, TaskPair, TaskSide, compare
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, Group, bindings
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import HelpScreen, PageScreen
from watchkeeper_tui.snapshot import SESSION_BADGES, session_state, state_word
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView

_STATES = {"done": "done", "failed": "failed", "running": "working", "paused": "paused"}


@dataclass(frozen=True, slots=True)
class CompareRow:
    """One line: what is compared, the mark of a difference, and both sides. Texts are sanitised."""

    id: str
    label: str
    left: tuple[Piece, ...] = ()
    right: tuple[Piece, ...] = ()
    differs: bool = False
    heading: bool = False
    note: str = ""


class CompareView(RowView[CompareRow]):
    """Three columns and a mark."""

    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("", 14),
        Column("", 1),
        Column("", 20, flexible=True),
        Column("", 20, flexible=True),
    )

    def row_id(self, row: CompareRow) -> str:
        return row.id

    def row_cells(self, row: CompareRow) -> Sequence[Cell]:
        if row.heading:
            return ([(row.label, "strong")], [], [(row.note, "muted")], [])
        mark: Cell = [("≠", "waiting")] if row.differs else []
        return ([(row.label, "muted")], mark, row.left, row.right)


class CompareScreen(PageScreen):
    """`!` leaves only what differs; esc goes back."""

    PLACE = "compare"

    SCOPE = "compare"
    BINDINGS: ClassVar[list[BindingType]] = bindings("compare")

    def __init__(self, left: str, right: str) -> None:
        super().__init__()
        self._pair = (left, right)
        self._only = False
        self._comparison: Comparison | None = None
        self._different = 0

    def body(self) -> ComposeResult:
        yield CompareView(id="compare", classes="pane")

    def on_mount(self) -> None:
        self.view.focus()
        self._read()

    @property
    def view(self) -> CompareView:
        return self.query_one(CompareView)

    def _read(self) -> None:
        left, right = self._pair
        self.ask(lambda connection: compare(connection, left, right), self._arrived)

    def _arrived(self, compared: Comparison) -> None:
        self._comparison = compared
        self._draw()

    def _draw(self) -> None:
        compared = self._comparison
        if compared is None:
            return
        hosts = [self.watch_app.probe(side.id) is not None for side in (compared.left, compared.right)]
        rows = compare_rows(compared, hosts[0], hosts[1])
        self._different = sum(row.differs for row in rows)
        if self._only:
            rows = [row for row in rows if row.differs or row.heading]
        self.view.set_rows(tuple(rows))
        self.view.refresh()
        self.redraw_edges()

    def heading(self) -> tuple[Widget, Sequence[Piece]] | None:
        compared, different = self._comparison, self._different
        if compared is None:
            return None
        return self.view, (
            ("Compare ", "strong"), (compared.left.id, "accent"), (" with ", "muted"), (compared.right.id, "accent"),
            (f"   {formatting.plural(different, 'difference')}", "waiting" if different else "done"),
            ("  differences only" if self._only else "", "match"),
        )  # fmt: skip

    def label_of(self, action: Action) -> str:
        return "All" if action.id == "compare.only" and self._only else super().label_of(action)

    def standing(self, now: float) -> Sequence[Piece]:
        row = self.view.selected
        if row is None or row.heading:
            return ()
        return ((f"{row.label}  ", "muted"), *row.left, ("  │  ", "faint"), *row.right)

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        row, compared = self.view.selected, self._comparison
        if row is not None and compared is not None and not row.heading:
            ids = (sanitize(compared.left.id), sanitize(compared.right.id))
            sides = zip(ids, map(_said, (row.left, row.right)), strict=True)
            self.app.push_screen(HelpScreen([(row.label, [*sides])], title="Compare"))

    def action_only_different(self) -> None:
        self._only = not self._only
        self._draw()

    def action_swap(self) -> None:
        self._pair = (self._pair[1], self._pair[0])
        self._read()

    def copied(self) -> str:
        row = self.view.selected
        if row is None:
            return ""
        sides = ["".join(text for text, _ in side) for side in (row.left, row.right)]
        return "\t".join([row.label, *sides])

    def legend(self) -> list[Group]:
        return [("Glyphs", [("≠", "sides differ")])]


def compare_rows(compared: Comparison, left_live: bool, right_live: bool) -> list[CompareRow]:
    """Every line of the comparison."""
    left, right = compared.left, compared.right
    rows = [CompareRow("numbers", "Session", heading=True)]
    pairs = zip(_figures(left, left_live), _figures(right, right_live), strict=True)
    rows += [
        CompareRow(f"figure.{label}", label, a, b, differs=_said(a) != _said(b))
        for (label, a), (_, b) in pairs
    ]
    different = sum(pair.differs for pair in compared.tasks)
    rows.append(
        CompareRow("tasks", "Tasks", heading=True, note=f"{len(compared.tasks)} total, {different} differ")
    )
    for number, pair in enumerate(compared.tasks):
        rows += _task_rows(f"task.{number}", pair)
    only = len(compared.only_left) + len(compared.only_right)
    rows.append(
        CompareRow(
            "facts", "Facts", heading=True, note=f"{compared.shared_facts} shared, {only} on one side only"
        )
    )
    for number in range(max(len(compared.only_left), len(compared.only_right))):
        sides = [
            ((f"{sanitize(facts[number].kind)}: ", "muted"), (_line(facts[number].text), "text"))
            if number < len(facts)
            else ()
            for facts in (compared.only_left, compared.only_right)
        ]
        rows.append(CompareRow(f"fact.{number}", "", sides[0], sides[1], differs=True))
    return rows


def _figures(side: SessionSide, live: bool) -> list[tuple[str, tuple[Piece, ...]]]:
    state = session_state(side.status, live, working=live and side.status == "running", origin=side.origin)
    glyph, _ = SESSION_BADGES[state]
    reason = f"  {_line(side.status_reason)}" if side.status_reason else ""
    duration = side.hosted_seconds or ((side.ended_at or side.last_active) - side.created_at)
    at = f" at #{side.forked_at_seq}" if side.forked_at_seq is not None else ""
    came = sanitize(side.origin) + (f" of {sanitize(side.forked_from)}{at}" if side.forked_from else "")

    def one(text: str, role: str = "text") -> tuple[Piece, ...]:
        return ((text, role),)

    return [
        ("name", one(_line(side.title or side.goal), "strong")),
        ("goal", one(_line(side.goal))),
        ("state", ((f"{glyph} {state_word(state, side.status)}", _STATES.get(side.status, "muted")), (reason, "muted"))),
        ("origin", one(came)),
        ("model", one(sanitize(side.model))),
        ("workspace", one(sanitize(side.workspace))),
        ("tags", one(sanitize(side.tags).strip("[]").replace('"', "") or "-")),
        ("tasks", one(f"{side.tasks_done} of {side.tasks} done" + (f", {side.tasks_failed} failed" if side.tasks_failed else ""))),
        ("agents", one(f"{side.agents}, {formatting.plural(side.turns, 'turn')}")),
        ("tokens", one(
            f"{formatting.tokens(side.total_tokens)}  in {formatting.tokens(side.input_tokens)},"
            f" cached {formatting.tokens(side.cache_read_tokens + side.cache_write_tokens)}, out"
            f" {formatting.tokens(side.output_tokens)}",
            "tokens",
        )),
        ("cost", one(formatting.bill(side), "money")),
        ("duration", one(formatting.duration(duration))),
        ("model calls", one(
            f"{side.model_calls:,}, {formatting.plural(side.retries, 'retry', 'retries')},"
            f" {formatting.plural(side.errors, 'error')}"
        )),
        ("compactions", one(f"{side.compactions:,}")),
        ("facts", one(f"{side.facts:,}")),
    ]  # fmt: skip


def _task_rows(row_id: str, pair: TaskPair) -> list[CompareRow]:
    rows = [
        CompareRow(
            row_id, clip(sanitize(pair.name), 14), _task(pair.left), _task(pair.right), differs=pair.differs
        )
    ]
    a, b = pair.left, pair.right
    if a is None or b is None or not pair.differs:
        return rows
    for label, ours, theirs in (
        ("  title", a.task.title, b.task.title),
        ("  role", a.task.role, b.task.role),
        ("  needs", ", ".join(a.needs), ", ".join(b.needs)),
        ("  prompt", a.instructions, b.instructions),
    ):
        if ours != theirs:
            sides = _apart(_line(ours), _line(theirs))
            rows.append(CompareRow(f"{row_id}{label}", label, sides[0], sides[1], differs=True))
    return rows


def _task(side: TaskSide | None) -> tuple[Piece, ...]:
    if side is None:
        return (("not in this plan", "faint"),)
    task = side.task
    attempt = f" attempt {task.attempt}" if task.attempt > 1 else ""
    return (
        (sanitize(task.status), _STATES.get(task.status, "muted")),
        (f"{attempt}  {formatting.tokens(side.tokens)} tok  ", "muted"),
        (_line(task.result or task.title), "text"),
    )


def _apart(a: str, b: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Two texts from a little before the place where they begin to differ, that place marked."""
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    begin = max(0, same - 16)

    def side(text: str) -> tuple[Piece, ...]:
        return (
            ("…" if begin else "", "faint"),
            (text[begin:same], "text"),
            (text[same:] or "(none)", "match"),
        )

    return side(a), side(b)


def _line(text: str) -> str:
    return " ".join(sanitize(text).split())


def _said(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)
