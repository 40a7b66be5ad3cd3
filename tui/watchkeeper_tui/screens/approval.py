"""One question of an agent, whole: wrapped, highlighted and scrollable, with every answer that there is.

`y` counts only after the last line was in sight. Nothing is cut or dropped: what a terminal would obey or
hide is named (`records.text.reveal`). The answer carries the digest of the file whose change was shown, and
the input that the user edited.

After an answer the next question that waits is shown, until none is left. Keys answer it only once it was read from the
database and drawn, and a moment passed: a key that was pressed twice answers one question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import TextArea

from watchkeeper.records.states import ApprovalStatus
from watchkeeper.records.text import reveal
from watchkeeper.records.tool_inputs import parse_pattern, pattern_of
from watchkeeper.store.commands import (
    CONFLICT,
    EXTERNAL,
    GUARDED,
    Question,
    Section,
    load_question,
    sections_of,
)
from watchkeeper.store.driver import Connection
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.rendering.code import code_lines, row_ends
from watchkeeper_tui.requests import Request
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.bars import CRAMPED, KeyHint, KeyLine, Prompt, StatusLine
from watchkeeper_tui.widgets.rows import Cell, Column, Line, Piece, RowView, set_title, slice_pieces

AT_ONCE = 50_000
"""Characters that are laid out on the event loop; more are laid out beside it."""
SETTLE_SECONDS = 0.4
"""How long a question that followed another was in sight before a key answers it."""
_NAMED = re.compile(r"<U\+[0-9A-F]{4,6}>")
_GUTTER, _CONTINUED = "│ ", "┊ "


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the view. Its text is harmless."""

    number: int
    pieces: tuple[Piece, ...]


class QuestionView(RowView[Row]):
    """The question. It has no cursor; it tells its screen when it moves."""

    CURSOR = False
    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def row_id(self, row: Row) -> str:
        return str(row.number)

    def row_cells(self, row: Row) -> Sequence[Cell]:
        return (row.pieces,)

    def laid_out(self) -> None:
        screen = self.screen
        if isinstance(screen, ApprovalScreen):
            screen.lay_out()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        screen = self.screen
        if isinstance(screen, ApprovalScreen):
            screen.moved()

    @property
    def shown(self) -> tuple[int, int]:
        """The first row in sight and the one after the last."""
        top = round(self.scroll_y)
        return top, min(len(self.rows), top + max(1, self.scrollable_content_region.height))


_AT_A_CONFLICT = {
    "approval.approve": "The planner resolves it",
    "approval.deny": "Cancel the merge",
    "approval.reason": "Cancel with reason",
}
_ONLY_SOME = frozenset({"approval.always", "approval.edit", "approval.ours", "approval.theirs"})
"""Answers that not every question has."""


class ApprovalScreen(WatchScreen):
    """`y` once, `a` always, `e` edit, `n` deny, `r` deny with a reason, Esc later; at the conflict of a merge `o` and `t`
    keep one side, and `y` leaves it to the planner."""

    SCOPE = "approval"
    BINDINGS: ClassVar[list[BindingType]] = bindings("approval")

    def __init__(
        self,
        preliminary: Question | None,
        approval_id: str,
        answer: Callable[[Request], None],
        follow: Callable[[frozenset[str]], ApprovalScreen | None] | None = None,
        answered: frozenset[str] = frozenset(),
    ) -> None:
        """`preliminary`: the question as far as it is known before it is read. `answer` sends a command to
        the host. `follow` opens the next question that is not one of those with these ids. `answered`: the questions before
        this one."""
        super().__init__()
        self._follow, self._answered_ids = follow, answered
        self._is_settled = not answered
        self._settles = False
        self._question = preliminary
        self._approval_id = approval_id
        self._answer = answer
        self._is_read = False
        self._edited: dict[str, Any] | None = None
        self._end_seen = False
        self._laid_out: tuple[object, int] | None = None
        """The question and the width that the rows were made for."""
        self._is_leaving = False

    def compose(self) -> ComposeResult:
        yield QuestionView(id="question-view", classes="pane")
        yield TextArea(id="edited-input", soft_wrap=True)
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.view.focus()
        self.show_keys()
        self.lay_out()
        self._read(self._arrived)

    @property
    def view(self) -> QuestionView:
        return self.query_one(QuestionView)

    # Reading.

    def _read(self, arrived: Callable[[object], None]) -> None:
        """Read the question in the reader's thread: its input, and the file that it would change."""
        approval_id, path = self._approval_id, Path(self.watch_app.database_path)

        def question(connection: Connection) -> object:
            return load_question(connection, path, approval_id)

        self.ask_reader(question, arrived)

    def _arrived(self, result: object) -> None:
        if not self.is_usable or self._is_leaving:
            return
        if not isinstance(result, Question):
            said = result if isinstance(result, Exception) else "the question is no longer in the database"
            self.say(f"! {self.trouble(said)}", "failed", seconds=12)
            return
        if result.status is not ApprovalStatus.WAITING:
            self._answered_elsewhere(result)
            return
        self._is_read = True
        if self._edited is None and (
            self._question is None or list(result.lines()) != list(self._question.lines())
        ):
            self._end_seen = False
            self._question = result
            self.lay_out()
        elif self._edited is None:
            self._question = result
        self.call_after_refresh(self.moved)
        self.show_keys()

    # Drawing.

    def lay_out(self) -> None:
        """Make the rows for the view's width, if that is news. A long question is laid out beside the event
        loop."""
        question = self._question
        if question is None or not self.is_mounted:
            return
        region = self.view.scrollable_content_region
        width = region.width - (0 if self.view.show_vertical_scrollbar else 1)
        if width <= 0 or self._laid_out == (question, width):
            return
        self._laid_out = wanted = (question, width)
        if sum(len(section.text) for section in question.sections) <= AT_ONCE:
            self._show_rows(wanted, list(question_rows(question, width)))
            return
        self.view.set_rows((Row(0, (("formatting …", "muted"),)),))
        self.run_worker(
            lambda: self.app.call_from_thread(self._show_rows, wanted, list(question_rows(question, width))),
            thread=True,
            group="layout",
            exclusive=True,
            exit_on_error=False,
        )

    def _show_rows(self, wanted: tuple[object, int], rows: list[Row]) -> None:
        if wanted != self._laid_out or not self.is_usable:
            return
        self.view.set_rows(tuple(rows))
        self.view.refresh()
        self._draw_title()
        self.call_after_refresh(self.moved)

    def _draw_title(self) -> None:
        question = self._question
        assert question is not None
        pieces: list[Piece] = [("Question", "strong")]
        if (total := len(self._answered_ids) + 1 + self.others) > 1:
            pieces.append((f"  {len(self._answered_ids) + 1} of {total}", "muted"))
        if self._edited is not None:
            pieces.append(("  edited", "accent"))
        set_title(self.view, pieces, self.watch_app.palette)

    @property
    def others(self) -> int:
        """How many other questions wait."""
        known = {*self._answered_ids, self._approval_id}
        return sum(each.id not in known for each in self.watch_app.snapshot.approvals)

    def moved(self) -> None:
        """The view shows other rows: remember whether the last one has been in sight."""
        rows = self.view.rows
        if self._laid_out is None or not rows or self._is_waiting_for_rows:
            return
        if self.view.scrollable_content_region.height > 0 and self.view.shown[1] >= len(rows):
            self._end_seen = True
        if self._is_read and not self._settles and not self._is_settled:
            self._settles = True
            self.set_timer(SETTLE_SECONDS, self._settle)
        self._describe()

    def _settle(self) -> None:
        self._is_settled = True
        self._describe()

    @property
    def _is_waiting_for_rows(self) -> bool:
        rows = self.view.rows
        return len(rows) == 1 and rows[0].pieces[0][0] == "formatting …"

    def _describe(self) -> None:
        notice = self.notice(self.watch_app.now())
        if notice:
            self.query_one(StatusLine).pieces = tuple(notice)
            return
        rows = len(self.view.rows)
        if self.has_class("-editing"):
            pieces: list[Piece] = [
                ("ctrl+s", "key"),
                (" reviews the edit, ", "text"),
                ("esc", "key"),
                (" discards it", "text"),
            ]
        elif self._question is None or self._is_waiting_for_rows:
            pieces = [("loading the question …", "muted")]
        elif not self._is_settled:
            pieces = [("next question", "waiting")]
        elif self._end_seen:
            first, last = self.view.shown
            where = (
                "end of request"
                if (first, last) == (0, rows)
                else f"rows {first + 1:,} to {last:,} of {rows:,}"
            )
            pieces = [(where, "muted")]
        else:
            first, last = self.view.shown
            where = (
                f"rows {first + 1:,} to {last:,} of {rows:,}"
                if self.size.width >= CRAMPED[0]
                else f"{last:,} of {rows:,}"
            )
            pieces = [(where, "waiting"), ("; scroll to the end, then ", "text"), ("y", "key")]
        self.query_one(StatusLine).pieces = tuple(pieces)

    def label_of(self, action: Action) -> str:
        conflict = self._question is not None and self._question.cause == CONFLICT
        return (_AT_A_CONFLICT.get(action.id, "") if conflict else "") or super().label_of(action)

    def why_not(self, action: Action) -> str:
        question = self._question
        if question is None or action.id not in _ONLY_SOME:
            return ""
        conflict = question.cause == CONFLICT
        is_side = action.id in ("approval.ours", "approval.theirs")
        return (
            ""
            if (conflict and question.allows_sides if is_side else not conflict)
            else "not available for this question"
        )

    def footer_actions(self) -> Sequence[Action]:
        actions = super().footer_actions()
        if self.app.size.width < CRAMPED[0] or self.app.size.height < CRAMPED[1]:
            actions = [*actions[1:], actions[0]]  # the last one is shown alone
        return actions

    def on_resize(self, event: events.Resize) -> None:
        self.show_keys()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        waits = any(each.id == self._approval_id for each in snapshot.approvals)
        if not waits and not self._is_leaving:
            self._read(self._arrived)
        if self._question is not None and self._laid_out is not None:
            self._draw_title()
        self._describe()

    def tick(self, now: float) -> None:
        self._describe()

    def _answered_elsewhere(self, question: Question) -> None:
        by = f" by {sanitize(question.decided_by)}" if question.decided_by else ""
        why = f" ({clip(sanitize(question.reason), 80)})" if question.reason else ""
        said = f"{clip(sanitize(question.tool), 40)}: {question.status}{by}{why}"
        # One that was opened by itself closes; one that followed an answer is followed by the next.
        self._leave(said, "accent", seconds=15, follows=bool(self._answered_ids))

    def _leave(
        self, text: str = "", role: str = "text", *, seconds: float = 6.0, follows: bool = False
    ) -> None:
        """Close this screen, and say why on the one below it. `follows`: show the next question, if one waits."""
        if self._is_leaving:
            return
        self._is_leaving = True
        stack = self.app.screen_stack
        below = stack[stack.index(self) - 1]
        while self.app.screen is not self and len(self.app.screen_stack) > 1:
            self.app.pop_screen()  # a help or a palette that was opened over it
        self.app.pop_screen()
        following: object = below
        if follows and self._follow is not None:
            following = self._follow(self._answered_ids | {self._approval_id}) or below
        if text and isinstance(following, WatchScreen):
            self.app.call_later(following.say, text, role, seconds=seconds)

    # Answering.

    def _may_answer(self) -> bool:
        """Whether a key can be meant for this question; says so where it cannot."""
        if not self._is_settled:
            self.say("this is a new question; read it first", "waiting", seconds=2)
        return self._is_settled

    def _may_approve(self) -> bool:
        """Whether all of it was in sight; says so where it was not."""
        if not self._may_answer():
            return False
        if self._question is None or self._is_waiting_for_rows:
            self.say("the question is still loading", "waiting", seconds=3)
            return False
        self.moved()
        if not self._end_seen:
            self.say("scroll to the end first (End key)", "waiting", seconds=4)
            return False
        return True

    def _send(self, kind: str, about: str, **payload: Any) -> None:
        question = self._question
        assert question is not None
        if kind == "approve":
            if question.digest:
                payload["subject_digest"] = question.digest
            if self._edited is not None:
                payload["edited_input"] = self._edited
        agent, task = self._asked_by
        request = Request(kind, agent, task, {"approval": self._approval_id, **payload}, about)
        self._answer(request)
        self._leave(follows=True)

    @property
    def _asked_by(self) -> tuple[str | None, str | None]:
        """The agent and the task of the question."""
        found = next(
            (each for each in self.watch_app.snapshot.approvals if each.id == self._approval_id), None
        )
        return (found.agent_id, found.task_id) if found is not None else (None, None)

    def _about(self, verb: str) -> str:
        return f"{verb} {clip(sanitize(self._question.tool), 40)}" if self._question is not None else verb

    def action_approve(self) -> None:
        if self._may_approve():
            self._send("approve", self._about("approve"))

    def action_keep(self, side: str) -> None:
        """Answer the conflict of a merge with one side."""
        question = self._question
        if question is not None and question.allows_sides and self._may_approve():
            self._send("approve", f"keep {side}", edited_input=question.keeping(side))

    def action_always(self) -> None:
        question = self._question
        if question is None or not self._may_approve():
            return
        if not question.allows_always:
            repeats = "repeated calls need approval each time"
            once = "writes to this file need approval each time" if question.cause == GUARDED else repeats
            self.say(
                "each merge conflict needs its own answer" if question.cause == CONFLICT else once,
                "waiting",
            )
            return
        tool = clip(sanitize(question.tool), 40)
        lines: list[list[Piece]] = [
            [("Approve this call. For the rest of the run, also approve:", "strong")],
            [("t", "key"), (f" every {tool} call   ", "text")],
        ]
        keys: dict[str, Callable[[], None]] = {
            "t": lambda: self._send("approve", self._about("always allow"), scope="tool")
        }
        if question.tool == "bash":
            lines[-1] += [("p", "key"), (" commands that match a pattern   ", "text")]
            suggested = question.suggested_pattern
            keys["p"] = lambda: self._ask_pattern(suggested)
        lines[-1] += [("esc", "key"), (" back", "text")]
        self.prompt.ask_key(lines, keys)

    def _ask_pattern(self, value: str, refused: str = "") -> None:
        """Ask for a pattern. `refused`: why `value` is none; it can be corrected, and no letter of it is an answer."""
        what = "A command, or several separated by |. A final * matches any further arguments."
        question: list[list[Piece]] = [
            [(refused, "failed") if refused else (what, "strong")],
            [
                (
                    "Other operators, redirections and substitutions never match. Commands run without a shell.",
                    "muted",
                )
            ],
        ]
        self.prompt.ask_line(
            question,
            self._pattern_typed,
            kind="pattern",
            value=value,
            enter="Approve always",
        )

    def _pattern_typed(self, text: str) -> None:
        try:
            pattern = pattern_of(parse_pattern(text))
        except ValueError as fault:
            self._ask_pattern(text, sanitize(str(fault)))
            return
        self._send("approve", self._about("always allow"), scope="pattern", pattern=pattern)

    def action_deny(self) -> None:
        if self._question is not None and self._may_answer():
            self._send("deny", self._about("deny"))

    def action_deny_with_reason(self) -> None:
        if self._question is not None and self._may_answer():
            self.prompt.ask_line(
                [[("Reason (sent to the agent)", "strong")]],
                self._reason_typed,
                kind="deny",
                keeps_lines=True,
                enter="Deny",
            )

    def _reason_typed(self, text: str) -> None:
        self._send("deny", self._about("deny"), **({"reason": text.strip()} if text.strip() else {}))

    # Editing.

    def action_edit(self) -> None:
        question = self._question
        if question is None or self.has_class("-editing") or not question.allows_edit:
            return
        if not self._may_answer():
            return
        area = self.query_one(TextArea)
        area.load_text(question.editable)
        self.add_class("-editing")
        self.query_one(KeyLine).asked = (
            KeyHint("ctrl+s", "Review the edit", "ctrl+s"),
            KeyHint("esc", "Discard", "escape"),
        )
        self.set_focus(area)
        self._describe()

    def action_edited(self) -> None:
        question = self._question
        if question is None or not self.has_class("-editing"):
            return
        try:
            arguments = question.edited_arguments(self.query_one(TextArea).text)
        except ValueError as fault:
            self.say(sanitize(str(fault)), "failed", seconds=8)
            return
        self._stop_editing()
        if arguments == question.arguments:
            self.say("no changes", "muted")
            return
        self._edited = arguments
        path, root = Path(self.watch_app.database_path), question.root

        def sections(connection: Connection) -> object:
            from watchkeeper.store.database import protected_files

            return sections_of(question.tool, arguments, Path(root), protected_files(path))

        def arrived(result: object) -> None:
            if self.is_usable and isinstance(result, tuple):
                shown, digest = result
                self._question = replace(question, arguments=arguments, sections=shown, digest=digest)
                self._end_seen = False
                self.lay_out()
                self.say("y runs this edited input", "accent")

        self.ask_reader(sections, arrived)
        self._question = None  # what was shown is not what would run
        self._laid_out = None
        self._end_seen = False

    def _stop_editing(self) -> None:
        self.remove_class("-editing")
        self.query_one(KeyLine).asked = ()
        self.set_focus(self.view)

    def action_back(self) -> None:
        if self.has_class("-editing"):
            self._stop_editing()
            self._describe()
        else:
            self._leave("the question is still pending; press a to answer it", "muted", seconds=3)

    def action_leave(self) -> None:
        self.action_back()


def question_rows(question: Question, width: int) -> Iterator[Row]:
    """The whole question as rows of at most `width` columns."""
    number = 0
    for pieces in _logical_lines(question):
        text = "".join(piece for piece, _ in pieces)
        gutter = pieces[0][0] == _GUTTER if pieces else False
        inner = max(2, width - 2) if gutter else max(2, width)
        body = pieces[1:] if gutter else pieces
        begin = 0
        for end in row_ends(text[2:] if gutter else text, inner):
            row = slice_pieces(body, begin, end)
            if gutter:
                row = ((_GUTTER if begin == 0 else _CONTINUED, "faint"), *row)
            yield Row(number, row)
            number, begin = number + 1, end


def _logical_lines(question: Question) -> Iterator[tuple[Piece, ...]]:
    def named(name: str, value: str, role: str = "text") -> Iterator[tuple[Piece, ...]]:
        first, *rest = reveal(value).split("\n")
        yield ((f"{name:<7} ", "muted"), (first, role))
        yield from ((("        ", "muted"), (line, role)) for line in rest)

    yield ((reveal(question.headline).replace("\n", " "), "waiting"),)
    if question.cause != EXTERNAL:
        yield from named("task", question.described_task or "none (planner)")
    yield from named("folder", question.folder)
    if question.folder != question.workspace:
        yield from named("", f"in the workspace {question.workspace}", "muted")
    if question.note:
        yield from named("why", question.note, "waiting")
    for section in question.sections:
        yield (("", "text"),)
        count = section.text.count("\n") + 1
        size = (
            f"  {formatting.plural(count, 'line')}, {len(section.text):,} characters"
            if len(section.text) > 200
            else ""
        )
        yield ((reveal(section.title).replace("\n", " "), "heading"), (size, "faint"))
        for line in highlighted(section):
            yield ((_GUTTER, "faint"), *line)


def highlighted(section: Section) -> Iterator[Line]:
    """The lines of a section, highlighted, with hidden characters shown by their codes."""
    text = reveal(section.text)
    lines = code_lines(text, section.language if section.language in ("bash", "diff", "json") else "")
    named = "<U+" in text
    for pieces in lines:
        yield tuple(_with_names(pieces)) if named else pieces


def _with_names(pieces: Sequence[Piece]) -> Iterator[Piece]:
    for text, role in pieces:
        at = 0
        for found in _NAMED.finditer(text):
            yield text[at : found.start()], role
            yield found.group(), "failed"
            at = found.end()
        yield text[at:], role
