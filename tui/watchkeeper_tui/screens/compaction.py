"""One compaction in full: before and after side by side, what the summary omits, and the actions on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from watchkeeper.records.text import result_words
from watchkeeper.store.agent_snapshot import (
    CompactionDetail,
    ObservationFacts,
    PassRange,
    compaction_detail,
    passes_of,
)
from watchkeeper.store.agents import names_of
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.projection import AgentFacts, CompactionFacts
from watchkeeper.store.sessions import of_agent
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import BY_ID, Action, Group, bindings
from watchkeeper_tui.pages import blank, damage, paragraph, rendered
from watchkeeper_tui.pages.memory import OBSERVATION_KEY, pass_cost, pass_look, pass_number, stall
from watchkeeper_tui.pages.transcript import block_lines, place_of_line
from watchkeeper_tui.reader import fold_message
from watchkeeper_tui.requests import Target
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.acting import ActingScreen
from watchkeeper_tui.snapshot import Snapshot, TranscriptBlock
from watchkeeper_tui.widgets.bars import (
    Chip,
    ChipLine,
    Crumb,
    KeyLine,
    PathLine,
    Prompt,
    StatusLine,
    status_pieces,
)
from watchkeeper_tui.widgets.rows import (
    PageLine,
    PageView,
    Piece,
    RowView,
    clip_pieces,
    content,
    pieces_width,
    set_title,
)

_PATTERNS = (
    re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s<>\"'`)\]}]{3,200}"),
    re.compile(
        r"(?<![\w/.:@-])(?:~|\.{1,2})?/?(?:[\w.@+-]{1,80}/){1,16}[\w@+-][\w.@+-]{0,80}\.[A-Za-z]\w{0,5}\b"
    ),
    re.compile(r"\b(?=[0-9a-f]{0,63}\d)(?=[0-9a-f]{0,63}[a-f])[0-9a-f]{7,64}\b"),
    re.compile(r"\b[A-Za-z]{2,12}[-_](?=[A-Za-z0-9_-]{0,40}\d)[A-Za-z0-9_-]{1,40}\b"),
    re.compile(r"\b[A-Za-z_][\w .-]{0,30}?\s?=\s?\d[\d_.,]{0,15}\b"),
)
SCANNED_CHARS = 2_000
"""As much of each line is scanned: what a person could read of it."""


def identifiers_in(lines: Iterable[str]) -> list[str]:
    """Identifiers in order of appearance, each once."""
    found: dict[str, None] = {}
    for line in lines:
        for pattern in _PATTERNS:
            for match in pattern.findall(line[:SCANNED_CHARS]):
                found[match.strip().rstrip(".,:;")] = None
    return list(found)


def not_carried_over(texts: Iterable[tuple[int, Iterable[str]]], kept: str) -> list[tuple[str, int]]:
    """The last 200 identifiers of the replaced messages `(seq, lines)` that `kept` does not hold, with the last message
    that has them."""
    folded = kept.casefold()
    last: dict[str, int] = {}
    for seq, lines in texts:
        for identifier in identifiers_in(lines):
            if identifier.casefold() not in folded:
                last.pop(identifier, None)
                last[identifier] = seq
    return list(last.items())[-200:]


_MESSAGE_KEY = "message."
"""Begins the key of a line that leads to a message; its number follows."""
_ARROWS = {"tool_use": "→ ", "tool_result": "← ", "tool_error": "✗ "}


@dataclass(frozen=True, slots=True)
class Sides:
    """A pass, read and folded once. Columns of any width are made from it."""

    detail: CompactionDetail
    blocks: tuple[TranscriptBlock, ...]
    lost: tuple[tuple[str, int], ...]
    """Identifiers that no observation holds, with the last message that does; empty while nothing was
    applied."""
    session_id: str = ""
    session: str = ""
    """What the session is called."""
    agent: str = ""
    passes: tuple[PassRange, ...] = ()
    """All passes of the agent, the oldest first."""

    @property
    def losing(self) -> frozenset[int]:
        """The messages that hold them."""
        return frozenset(seq for _, seq in self.lost)


def read_sides(connection: Connection, compaction_id: int) -> Sides | None:
    """A pass, and whose it is; None where there is no such pass."""
    detail = compaction_detail(connection, compaction_id)
    if detail is None:
        return None
    reads, agent_id = Queries(connection), detail.facts.agent_id
    sides = replace(fold_sides(detail), passes=passes_of(connection, agent_id))
    session = of_agent(reads, agent_id)
    if session is None:
        return sides
    agent = names_of(reads, [agent_id])[agent_id]
    return replace(sides, session_id=session.id, session=session.name[:200], agent=agent)


def fold_sides(detail: CompactionDetail) -> Sides:
    """Parse the replaced messages, and find the identifiers that the observations omit."""
    names: dict[str, str] = {}
    blocks = tuple(block for message in detail.messages for block in fold_message(message, names))
    lost: list[tuple[str, int]] = []
    if detail.after is not None:
        kept = "\n".join(sanitize(each.text) for each in detail.after.observations)
        lost = not_carried_over(((block.seq, block.lines) for block in blocks), kept)
    return Sides(detail, blocks, tuple(lost))


def header_pieces(
    detail: CompactionDetail, agent: AgentFacts | None, now: float, number: tuple[int, int] | None = None
) -> list[list[Piece]]:
    """Two lines of statistics: what the pass did, then its cost and reason. `number`: the pass's position
    among its agent's passes, and their count."""
    facts = detail.facts
    which = f" {number[0]}/{number[1]}" if number is not None else ""
    glyph, role, word = pass_look(facts.status)
    first: list[Piece] = [
        (f" Compaction{which}  ", "strong"),
        (f"{glyph} {word}  ", role),
    ]
    if facts.tokens_before is not None and facts.tokens_after is not None:
        change = formatting.change(facts.tokens_before, facts.tokens_after)
        first.append(
            (
                f"{formatting.tokens(facts.tokens_before)} → {formatting.tokens(facts.tokens_after)} ({change})  ",
                "strong",
            )
        )
    elif facts.tokens_before is not None:
        after = " → …" if facts.ended_at is None else " tok"
        first.append((f"{formatting.tokens(facts.tokens_before)}{after}  ", "strong"))
    first.append((f"{clip(sanitize(agent.full_label), 40) if agent else sanitize(facts.agent_id)}  ", "text"))
    # Other programs do not record the cost, model or time of a pass: unknown values are omitted.
    cost = pass_cost(facts)
    if cost != "-":
        first.append((f"{cost}  ", "money"))
    first.append((f"{sanitize(facts.trigger)}  ", "muted"))
    by = (
        "made without a model"
        if facts.model == "digest"
        else facts.model and f"by {sanitize(formatting.model_name(facts.model))}"
    )
    second: list[Piece] = [(f" {by}  " if by else " ", "text")]
    if facts.stall_seconds is not None or detail.seconds:
        second.append(
            (f"blocked {stall(facts)}  {formatting.duration(_took(detail, now))} in background  ", "muted")
        )
    if facts.cache_tokens_invalidated:
        second.append((f"cache −{formatting.tokens(facts.cache_tokens_invalidated)}  ", "retrying"))
    if agent is not None and facts.view_after is not None:
        current = agent.view_version == facts.view_after
        second.append((f"view {agent.view_version} is active  ", "accent" if current else "muted"))
    if facts.instructions:
        second.append((f"instructions: {clip(sanitize(facts.instructions), 160)}  ", "user"))
    if facts.reason:
        second.append((clip(sanitize(facts.reason), 200), "muted" if facts.status == "applied" else "failed"))
    return [first, second]


def short_pieces(detail: CompactionDetail) -> list[Piece]:
    """A short form for narrow screens: outcome, tokens freed, cost."""
    facts = detail.facts
    glyph, role, word = pass_look(facts.status)
    if facts.tokens_before is None or facts.tokens_after is None:
        return [(f"{glyph} {word}  ", role), (pass_cost(facts), "money")]
    before, after = formatting.tokens(facts.tokens_before), formatting.tokens(facts.tokens_after)
    change = formatting.change(facts.tokens_before, facts.tokens_after)
    return [(f"{glyph} ", role), (f"{before}→{after} {change} ", "strong"), (pass_cost(facts), "money")]


def _took(detail: CompactionDetail, now: float) -> float:
    if detail.seconds is not None:
        return detail.seconds
    return (detail.facts.ended_at or now) - detail.facts.requested_at


def before_lines(
    sides: Sides, width: int, expanded: frozenset[str], *, only_lost: bool = False
) -> list[PageLine]:
    """What the pass removed from the context. Enter unfolds a block; `!` marks one that the summary does not
    cover completely."""
    detail = sides.detail
    after = {each.id for each in detail.after.observations} if detail.after else set()
    lines: list[PageLine] = []
    for each in detail.before.observations if detail.before and not only_lost else ():
        gone = detail.after is not None and each.id not in after
        lines += _observation(each, "-" if gone else " ", width, f"before.{each.id}", expanded, short=True)
    verb = (
        "replaced"
        if detail.after is not None
        else "to be replaced"
        if detail.facts.ended_at is None
        else "not replaced"
    )
    if detail.count:
        span = f"#{detail.first}–#{detail.last}"
        note = f"{span} {verb}: {formatting.plural(detail.count, 'message')}, {formatting.tokens(detail.tokens)} tok"
        lines.append(PageLine("span", ((f"  {note}", "strong"),)))
        if detail.messages and detail.messages[0].seq > detail.first:
            lines.append(
                PageLine(
                    "unread",
                    ((f"  … #{detail.first}–#{detail.messages[0].seq - 1} not loaded", "faint"),),
                )
            )
    else:
        lines.append(PageLine("span", (("  no messages", "faint"),)))
    losing, listed = sides.losing, set[int]()
    for block in sides.blocks:
        if not only_lost or block.seq in losing:
            lines += _block(block, width, expanded, lost=block.seq in losing)
            if block.seq in losing and (only_lost or block.key in expanded) and block.seq not in listed:
                listed.add(block.seq)
                names = ", ".join(identifier for identifier, seq in sides.lost if seq == block.seq)
                lines += _lost(block, names, width)
    if only_lost and not losing:
        lines.append(PageLine("nothing", (("  nothing that is recognised was omitted", "muted"),)))
    if detail.count:
        lines.append(PageLine("verbatim", ((f"  from #{detail.last + 1}, still verbatim", "faint"),)))
    return lines


def _lost(block: TranscriptBlock, names: str, width: int) -> list[PageLine]:
    """The identifiers of a message that no observation contains."""
    rows = paragraph(
        f"{block.key}.lost",
        f"not in the summary (still stored): {names}",
        width,
        role="failed",
        indent=4,
        most=3,
    )
    return [PageLine(row.id, row.pieces, block.key, names) for row in rows]


def after_lines(sides: Sides, width: int, expanded: frozenset[str]) -> list[PageLine]:
    """The new content: the observations with their citations, then what they omit."""
    detail = sides.detail
    if detail.after is None:
        waiting = detail.facts.ended_at is None
        text = (
            "not applied yet; the agent keeps working"
            if waiting
            else "no change: the compaction was not applied"
        )
        return [PageLine("none", ((text, "working" if waiting else "muted"),))]
    known = {each.id for each in detail.before.observations} if detail.before else set()
    lines: list[PageLine] = []
    for each in detail.after.observations:
        new = each.id not in known
        lines += _observation(each, "+" if new else " ", width, f"after.{each.id}", expanded, short=not new)
    if not detail.after.observations:
        lines.append(PageLine("empty", (("no observations", "faint"),)))
    lines.append(blank("gap"))
    if sides.lost:
        count = formatting.plural(len(sides.lost), "identifier")
        lines.append(PageLine("lost", ((f"! {count} not in the summary (still stored)", "failed"),)))
        for place, (identifier, seq) in enumerate(sides.lost):
            text = clip(identifier, max(8, width - 12))
            pieces: tuple[Piece, ...] = ((f"! {text}", "text"), (f"  #{seq}", "muted"))
            lines.append(PageLine(f"lost.{place}", pieces, f"{_MESSAGE_KEY}{seq}", identifier))
    else:
        lines.append(PageLine("lost", (("✓ the summary contains every path, id and setting", "done"),)))
    lines += damage(detail.after)
    start = detail.after.verbatim_from
    note = f"  from #{start}, verbatim" if start is not None else "  no verbatim messages"
    lines.append(PageLine("verbatim", ((note, "faint"),)))
    if detail.after.elided:
        shown = ", ".join(f"#{seq}" for seq in detail.after.elided[:12])
        lines.append(PageLine("elided", ((f"  shortened: {shown}", "retrying"),)))
    return lines


def _observation(
    each: ObservationFacts, sign: str, width: int, key: str, expanded: frozenset[str], *, short: bool
) -> list[PageLine]:
    role = {"+": "done"}.get(sign, "muted")
    span = f"#{each.first_seq}–#{each.last_seq}"
    pieces: list[Piece] = [
        (f"{sign} {sanitize(each.kind)} {each.id} ", role),
        (f"({formatting.tokens(each.tokens)} tok, {span})", "muted"),
    ]
    if each.provisional:
        pieces.append((" provisional", "retrying"))
    lines = [PageLine(key, tuple(pieces), key, each.text)]
    behind = f"cites {_cited(each.citations)}" if each.citations else f"replaces {span}"
    for line in paragraph(f"{key}.cites", f"→ {behind}", width, role="accent", indent=2, most=3):
        lines.append(PageLine(line.id, line.pieces, f"{OBSERVATION_KEY}{each.id}", line.copy))
    most = 400 if (key in expanded) != (not short) else 2
    body = rendered(key, each.text, width, indent=2, most=most)
    return [*lines, *(PageLine(line.id, line.pieces, key, line.copy) for line in body)]


def _cited(citations: Sequence[int]) -> str:
    shown = " ".join(f"#{seq}" for seq in citations[:40])
    return shown + (f" and {len(citations) - 40} more" if len(citations) > 40 else "")


def _block(block: TranscriptBlock, width: int, expanded: frozenset[str], *, lost: bool) -> list[PageLine]:
    first = next((line for line in block.lines if line.strip()), "")
    if block.kind == "tool_result":
        first = sanitize(result_words(" ".join(block.lines[:20])[:400])) if first[:1] in ("{", "[") else first
    pieces: tuple[Piece, ...] = (
        ("! ", "failed") if lost else ("- ", "muted"),
        (f"#{block.seq} ", "muted"),
        (f"{_ARROWS.get(block.kind, '')}{block.title}  ", "strong"),
        (clip(first, max(8, width - len(block.title) - 12)), "text"),
    )
    text = "\n".join(block.lines)
    lines = [PageLine(block.key, pieces, block.key, text)]
    if block.key in expanded:
        body = block_lines(block, width)
        lines += [PageLine(f"{line.id}.open", line.pieces, block.key, text) for line in body]
    return lines


def _number(key: str, begins: str) -> int:
    number = key.removeprefix(begins)
    return int(number) if key.startswith(begins) and number.isdecimal() else 0


SHORT_BELOW = 48
"""With fewer columns, the first line of statistics has its short form."""


class PassFigures(Widget):
    """The two lines above the columns."""

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


class CompactionScreen(ActingScreen):
    """Two columns; one at a time on a narrow terminal. Esc goes back."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012

    SCOPE = "compaction"
    BINDINGS: ClassVar[list[BindingType]] = bindings("compaction")

    def __init__(self, compaction_id: int, *, until: int = 0) -> None:
        """`until`: in a replay, the last message that its agent had; nothing can be done then."""
        super().__init__()
        self.compaction_id = compaction_id
        self._until = until
        self.sides: Sides | None = None
        self._expanded: frozenset[str] = frozenset()
        self._only_lost = False
        self._read_for: CompactionFacts | None = None

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        sides = self.sides
        number = (
            next((each.number for each in sides.passes if each.id == self.compaction_id), None)
            if sides
            else None
        )
        here = Crumb("compaction", "", f"compaction {number or ''}".rstrip())
        if sides is None:
            return (here,)
        agent = Crumb("agent", sides.detail.facts.agent_id, f"agent {sides.agent}")
        return (Crumb("session", sides.session_id, sides.session), agent, here)

    def compose(self) -> ComposeResult:
        yield PathLine()
        yield PassFigures()
        yield ChipLine()
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
        self.snapshot_changed(self.watch_app.snapshot)

    # Reading.

    def _facts(self) -> CompactionFacts | None:
        return next(
            (each for each in self.watch_app.snapshot.compactions if each.id == self.compaction_id), None
        )

    def reload(self) -> None:
        """Read the pass, on the reader's thread."""
        wanted, facts = self.compaction_id, self._facts()
        self._read_for = facts
        # In the reader's thread: it parses too.
        self.ask_reader(
            lambda connection: read_sides(connection, wanted), lambda result: self._arrived(wanted, result)
        )

    def _arrived(self, wanted: int, result: object) -> None:
        if wanted != self.compaction_id or not self.is_usable:
            return
        if isinstance(result, Sides):
            self.sides = result
            self.redraw()
        else:
            said = (
                sanitize(str(result))
                if isinstance(result, Exception)
                else "this compaction is no longer in the database"
            )
            self.say(f"! {said}", "failed", seconds=12)

    # Drawing.

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        facts = self._facts()
        if self.sides is None or (facts is not None and facts != self._read_for):
            self.reload()
        self._draw_edges(self.watch_app.now())

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
        self.draw_path()
        self.draw_chips()
        if self.sides is not None:
            passes = target.snapshot.compactions
            detail = self.sides.detail
            if any(each.id == detail.facts.id and each.status == "undone" for each in passes):
                detail = replace(detail, facts=replace(detail.facts, status="undone"))
            number = pass_number(detail.facts, passes)
            self.query_one(PassFigures).show(
                header_pieces(detail, target.agent, now, number), short_pieces(detail)
            )
        self.query_one(StatusLine).pieces = tuple(
            self.notice(now) or status_pieces(target.snapshot, target, self.sent, now)
        )
        self.show_keys()

    # Acting.

    @property
    def target(self) -> Target:
        """The agent whose context it is, as of the newest reading."""
        snapshot = self.watch_app.snapshot
        facts = self.sides.detail.facts if self.sides is not None else self._facts()
        agent = snapshot.agent(facts.agent_id) if facts is not None else None
        read_only = self.watch_app.read_only
        if self._until:
            read_only = "this is a replay"
        elif self.sides is not None and agent is None:
            read_only = "the session is not open"
        return Target(snapshot, (agent,) if agent is not None else (), read_only=read_only)

    def _why_not_undo(self) -> str:
        if self.target.not_ours:
            return self.target.not_ours
        agent, facts = self.target.agent, self.sides.detail.facts if self.sides is not None else None
        if agent is None or facts is None:
            return "still loading"
        newest = next((one for one in self.target.snapshot.compactions if one.id == facts.id), facts)
        if newest.status == "undone":
            return f"already undone; {self.watch_app.key_for('redo')} reapplies it"
        if newest.status != "applied":
            return f"this compaction is {sanitize(newest.status)}; nothing to undo"
        if facts.view_after != agent.view_version:
            return f"view {agent.view_version} is active; undo the later compactions first"
        return ""

    def action_undo(self) -> None:
        """Undo this pass, if it is the newest one that holds."""
        reason = self._why_not_undo()
        if reason:
            self.say(f"Undo: {reason}", "muted")
        else:
            self.act("undo")

    # Looking around.

    def action_other_side(self) -> None:
        before, after = self.query_one("#before", PageView), self.query_one("#after", PageView)
        page = before if after.has_focus else after
        for each in (before, after):
            each.set_class(each is page, "-front")
        page.focus()
        self.call_after_refresh(self.redraw)

    def filters(self) -> Sequence[Chip]:
        return [Chip("", "omitted only")] if self._only_lost else []

    def drop_filter(self, chip: Chip) -> None:
        self.action_only_lost()

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
        ] or [each.id for each in reversed(self.sides.passes if self.sides is not None else ())]
        place = mine.index(self.compaction_id) + step if self.compaction_id in mine else -1
        if not 0 <= place < len(mine):
            self.say("no older compaction" if step > 0 else "no newer compaction", "muted", seconds=2)
            return
        self.compaction_id, self._expanded = mine[place], frozenset()
        for page in self.query(PageView):
            page.start(follows=False)
        self.reload()

    def action_open(self) -> None:
        page = self.focused
        if isinstance(page, PageView):
            page.action_open()

    def action_behind(self) -> None:
        """Go to the message under the cursor in its transcript, or to those behind the observation."""
        page = self.focused
        line = page.selected if isinstance(page, PageView) else None
        if line is not None:
            kind, _, number = line.key.partition(".")
            self._open_behind(f"{OBSERVATION_KEY}{number}" if kind in ("before", "after") else line.key)

    def _open_behind(self, key: str) -> None:
        if self.sides is None:
            return
        seq = place_of_line(key)[0] or _number(key, _MESSAGE_KEY)
        seen = _number(key, OBSERVATION_KEY)
        if not seq and not seen:
            self.say("select a message or observation first", "muted", seconds=3)
            return
        self.watch_app.open_message(
            self.sides.session_id,
            self.sides.detail.facts.agent_id,
            seq,
            observation=seen or None,
            until=self._until,
        )

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
            [("Pin to every prompt", "strong"), ("   Enter pins · Esc cancels", "muted")]
        ]
        self.prompt.ask_line(
            question, lambda typed: self._typed(BY_ID["pin"], self.target, typed), kind="pin", value=text
        )

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        line = cast(PageView, event.view).selected
        if line is not None and line.key.startswith((_MESSAGE_KEY, OBSERVATION_KEY)):
            self._open_behind(line.key)
        elif line is not None and line.key:
            self._expanded = self._expanded ^ {line.key}
            self.redraw()

    def on_page_view_resized(self, event: PageView.Resized) -> None:
        self.redraw()

    def label_of(self, action: Action) -> str:
        return "All" if action.id == "compaction.lost" and self._only_lost else super().label_of(action)

    def why_not(self, action: Action) -> str:
        return self._why_not_undo() if action.id == "undo" else action.not_now(self.target)

    def legend(self) -> list[Group]:
        return [("Glyphs", [("- + !", "removed, added, omitted")])]
