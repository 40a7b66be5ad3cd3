"""One compaction in full: before and after side by side, what the summary omits, and the actions on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from watchkeeper.store.agent_snapshot import CompactionDetail, compaction_detail
from watchkeeper.store.snapshot import CompactionFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import BY_ID
from watchkeeper_tui.pages.compaction_sides import (
    Sides,
    after_lines,
    before_lines,
    fold_sides,
    header_pieces,
    short_pieces,
)
from watchkeeper_tui.pages.compactions import pass_number
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.screens.actions import Actions
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.screens.status_line import status_pieces
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.targets import Target
from watchkeeper_tui.widgets.cells import Piece, clip_pieces, content, pieces_width, set_title
from watchkeeper_tui.widgets.page import PageView
from watchkeeper_tui.widgets.prompt import Prompt
from watchkeeper_tui.widgets.rows import RowView
from watchkeeper_tui.widgets.status import KeyHint, KeyLine, StatusLine

SHORT_BELOW = 48
"""With fewer columns, the first line of statistics has its short form."""


class PassFigures(Widget):
    """The two lines above the columns."""

    DEFAULT_CSS = "PassFigures { height: 2; background: $panel; }"

    def __init__(self) -> None:
        super().__init__(id="pass-statistics")
        self._lines: Sequence[Sequence[Piece]] = ()
        self._short: Sequence[Piece] = ()

    def show(self, lines: Sequence[Sequence[Piece]], short: Sequence[Piece]) -> None:
        """Show these lines; `short` in place of the first where there is little room."""
        if (lines, short) != (self._lines, self._short):
            self._lines, self._short = lines, short
            self.refresh()

    def render(self) -> Content:
        palette = cast("CompactionScreen", self.screen).watch_app.palette
        width, height = self.size
        short = list(self._short)
        while pieces_width(short) > width and len(short) > 1:
            short.pop()  # half a sum would be another sum
        lines = [short, *self._lines[1:]] if width < SHORT_BELOW else self._lines
        return Content("\n").join([content(clip_pieces(line, width), palette) for line in lines[:height]])


class CompactionScreen(Actions, WatchScreen):
    """Two columns; one at a time on a narrow terminal. Esc goes back."""

    DEFAULT_CSS = """
    CompactionScreen { layout: vertical; }
    CompactionScreen #sides { height: 1fr; }
    CompactionScreen.-cramped PassFigures { height: 1; }
    CompactionScreen PageView { width: 1fr; height: 100%; border: round $pane-border; }
    CompactionScreen PageView:focus { border: round $pane-focus; }
    CompactionScreen.-narrow PageView { display: none; }
    CompactionScreen.-narrow PageView.-front { display: block; }
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,shift+tab", "other_side", "Other side", show=False, id="compaction.side"),
        Binding("exclamation_mark", "only_lost", "Omitted only", show=False, id="compaction.lost"),
        Binding("u", "undo", "Undo", show=False, id="compaction.undo"),
        Binding("U", "act('redo')", "Redo", show=False, id="compaction.redo"),
        Binding("R,C", "again", "Compact again", show=False, id="compaction.again"),
        Binding("left_square_bracket", "step(1)", "Older", show=False, id="compaction.older"),
        Binding("right_square_bracket", "step(-1)", "Newer", show=False, id="compaction.newer"),
        Binding("y", "copy", "Copy", show=False, id="compaction.copy"),
        Binding("P", "pin", "Pin", show=False, id="compaction.pin"),
        Binding("escape", "back", "Back", show=False, id="compaction.back"),
    ]

    def __init__(self, compaction_id: int) -> None:
        super().__init__()
        self.compaction_id = compaction_id
        self.sides: Sides | None = None
        self._expanded: frozenset[str] = frozenset()
        self._only_lost = False
        self._read_for: CompactionFacts | None = None

    def compose(self) -> ComposeResult:
        yield PassFigures()
        with Horizontal(id="sides"):
            yield PageView(id="before", classes="-front")
            yield PageView(id="after")
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        for page in self.query(PageView):
            page.start(follows=False)
        self.query_one("#before", PageView).focus()
        self.show(self.watch_app.snapshot, self.watch_app.now())

    # Reading.

    def _facts(self) -> CompactionFacts | None:
        return next(
            (each for each in self.watch_app.snapshot.compactions if each.id == self.compaction_id), None
        )

    def reload(self) -> None:
        """Read the pass, on the reader's thread."""
        wanted, facts = self.compaction_id, self._facts()
        self._read_for = facts

        def answer(result: object) -> None:
            # In the reader's thread: parse there, then hand over.
            folded = fold_sides(result) if isinstance(result, CompactionDetail) else result
            self.app.call_later(self._arrived, wanted, folded)

        self.watch_app.reader.ask(lambda connection: compaction_detail(connection, wanted), answer)

    def _arrived(self, wanted: int, result: object) -> None:
        if wanted != self.compaction_id or not self.is_mounted or self._closing:
            return
        if isinstance(result, Sides):
            self.sides = result
            self.redraw()
        else:
            said = (
                sanitize(str(result))
                if isinstance(result, Exception)
                else "that pass is no longer in the database"
            )
            self.say(f"! {said}", "failed", seconds=12)

    # Drawing.

    def show(self, snapshot: Snapshot, now: float) -> None:
        facts = self._facts()
        if self.sides is None or (facts is not None and facts != self._read_for):
            self.reload()
        self._draw_edges(now)

    def tick(self, now: float) -> None:
        self._draw_edges(now)

    def redraw(self) -> None:
        """Rebuild both columns."""
        sides = self.sides
        if sides is None or not self.is_mounted:
            return
        facts = sides.detail.facts
        for name in ("before", "after"):
            page = self.query_one(f"#{name}", PageView)
            width = max(10, page.scrollable_content_region.width - 1)
            if name == "before":
                page.set_rows(before_lines(sides, width, self._expanded, only_lost=self._only_lost))
                count, tokens = formatting.plural(sides.detail.count, "message"), facts.tokens_before
            else:
                page.set_rows(after_lines(sides, width, self._expanded))
                seen = sides.detail.after.observations if sides.detail.after else ()
                count, tokens = formatting.plural(len(seen), "observation"), facts.tokens_after
            total = formatting.tokens(tokens) if tokens is not None else "…"
            pieces: list[Piece] = [(name.capitalize(), "strong"), (f"  {total} tok · {count}", "muted")]
            if name == "after" and sides.lost:
                pieces.append((f"  {formatting.plural(len(sides.lost), 'identifier')} omitted", "failed"))
            if name == "before" and self._only_lost:
                pieces.append(("  omitted only", "match"))
            set_title(page, pieces, self.watch_app.palette)
        self._draw_edges(self.watch_app.now())

    def _draw_edges(self, now: float) -> None:
        if not self.is_mounted:
            return
        target = self.target
        if self.sides is not None:
            passes = target.snapshot.compactions
            detail = self.sides.detail
            if any(each.id == detail.facts.id and each.status == "undone" for each in passes):
                detail = replace(detail, facts=replace(detail.facts, status="undone"))
            number = pass_number(detail.facts, passes)
            self.query_one(PassFigures).show(
                header_pieces(detail, target.agent, now, number), short_pieces(detail)
            )
        self.query_one(StatusLine).say(
            self.notice(now) or status_pieces(target.snapshot, target, self.sent, now)
        )
        self.query_one(KeyLine).show(
            [
                KeyHint("u", "Undo", "undo", self._why_not_undo()),
                KeyHint("R", "Compact again…", "again", BY_ID["compact"].why_not(target)),
                KeyHint("!", "All" if self._only_lost else "Omitted only", "only_lost"),
                KeyHint("tab", "Other side", "other_side"),
                KeyHint("↵", "Unfold", "open"),
                KeyHint("P", "Pin", "pin", BY_ID["pin"].why_not(target)),
                KeyHint("[ ]", "Older, newer", "step(1)"),
                KeyHint("esc", "Back", "back"),
                KeyHint("?", "Help", "help"),
            ]
        )

    # Acting.

    @property
    def target(self) -> Target:
        """The agent whose context it is, as of the newest reading."""
        snapshot = self.watch_app.snapshot
        facts = self.sides.detail.facts if self.sides is not None else self._facts()
        agent = snapshot.agent(facts.agent_id) if facts is not None else None
        return Target(snapshot, (agent,) if agent is not None else (), read_only=self.watch_app.read_only)

    def _why_not_undo(self) -> str:
        if self.target.not_ours:
            return self.target.not_ours
        agent, facts = self.target.agent, self.sides.detail.facts if self.sides is not None else None
        if agent is None or facts is None:
            return "nothing was read yet"
        if facts.status != "applied":
            return f"the pass is {sanitize(facts.status)}, so there is nothing to undo"
        if facts.view_after != agent.view_version:
            return f"view {agent.view_version} is active, not this pass's; undo later passes first"
        return ""

    def action_undo(self) -> None:
        """Undo this pass, if it is the newest one that holds."""
        reason = self._why_not_undo()
        if reason:
            self.say(f"Undo: {reason}", "muted")
        else:
            self.act("undo")

    def action_again(self) -> None:
        """Compact the same agent again, with instructions that are typed."""
        target, action = self.target, BY_ID["compact"]
        reason = action.why_not(target)
        if reason:
            self.say(f"Compact again: {reason}", "muted")
        else:
            self._instructions(action, target)

    # Looking around.

    def action_other_side(self) -> None:
        before, after = self.query_one("#before", PageView), self.query_one("#after", PageView)
        page = before if after.has_focus else after
        for each in (before, after):
            each.set_class(each is page, "-front")
        page.focus()
        self.call_after_refresh(self.redraw)

    def action_only_lost(self) -> None:
        self._only_lost = not self._only_lost
        self.redraw()

    def action_step(self, step: int) -> None:
        """Go to another pass over the same agent's context."""
        agent = self.target.agent
        mine = [
            each.id
            for each in self.watch_app.snapshot.compactions
            if agent is not None and each.agent_id == agent.id
        ]
        place = mine.index(self.compaction_id) + step if self.compaction_id in mine else -1
        if not 0 <= place < len(mine):
            self.say("no older pass" if step > 0 else "no newer pass", "muted", seconds=2)
            return
        self.compaction_id, self._expanded = mine[place], frozenset()
        for page in self.query(PageView):
            page.start(follows=False)
        self.reload()

    def action_open(self) -> None:
        page = self.focused
        if isinstance(page, PageView):
            page.action_open()

    def action_copy(self) -> None:
        page = self.focused
        line = page.selected if isinstance(page, PageView) else None
        if line is not None:
            text = line.copy or "".join(text for text, _ in line.pieces)
            self.watch_app.copy_text(text)
            self.say(f"copied {len(text):,} characters", "done", seconds=3)

    def action_pin(self) -> None:
        """Put what the line says, as the user words it, into every prompt of the run."""
        page = self.focused
        line = page.selected if isinstance(page, PageView) else None
        text = "".join(text for text, _ in line.pieces).strip() if line is not None else ""
        question: list[list[Piece]] = [
            [("Pin to every prompt", "strong"), ("   Enter pins it, Esc gives up", "muted")]
        ]
        self.prompt.ask_line(
            question, lambda typed: self._typed(BY_ID["pin"], self.target, typed), kind="pin", value=text
        )

    def action_back(self) -> None:
        self.app.pop_screen()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        line = cast(PageView, event.view).selected
        if line is not None and line.key:
            self._expanded = self._expanded ^ {line.key}
            self.redraw()

    def on_page_view_resized(self, event: PageView.Resized) -> None:
        self.redraw()

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Compaction",
                [
                    ("- + !", "removed, added, omitted"),
                    ("enter", "unfold a message or an observation"),
                    ("tab", "before, after"),
                    ("!", "only messages of which the summary omits something"),
                    ("[ ]", "the agent's older and newer passes"),
                    ("u", "undo this pass"),
                    ("U", "redo what was undone"),
                    ("R", "compact again, with instructions"),
                    ("P", "pin a line to every prompt, in your words"),
                    ("y", "copy"),
                ],
            )
        ]
