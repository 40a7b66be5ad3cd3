"""One compaction as two columns of lines: the context before it and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.store.agent_snapshot import CompactionDetail, ObservationFacts
from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.identifiers import not_carried_over
from watchkeeper_tui.pages.compactions import STATES, pass_cost, stall
from watchkeeper_tui.pages.context import PageLine, blank, damage, paragraph
from watchkeeper_tui.result_words import result_words
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import TranscriptBlock
from watchkeeper_tui.transcript import fold_message
from watchkeeper_tui.widgets.cells import Piece

_ARROWS = {"tool_use": "→ ", "tool_result": "← ", "tool_error": "✗ "}


@dataclass(frozen=True, slots=True)
class Sides:
    """A pass, read and folded once. Columns of any width are made from it."""

    detail: CompactionDetail
    blocks: tuple[TranscriptBlock, ...]
    lost: tuple[tuple[str, int], ...]
    """Identifiers that no observation holds, with the last message that does; empty while nothing was
    applied."""

    @property
    def losing(self) -> frozenset[int]:
        """The messages that hold them."""
        return frozenset(seq for _, seq in self.lost)


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
    glyph, role, word = STATES.get(facts.status, ("·", "muted", sanitize(facts.status)))
    first: list[Piece] = [
        (f" Compaction{which}  ", "strong"),
        (f"{clip(sanitize(agent.name or agent.role), 30) if agent else sanitize(facts.agent_id)}  ", "text"),
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
        first.append((f"{formatting.tokens(facts.tokens_before)} → …  ", "strong"))
    # Other programs do not record the cost, model or time of a pass: unknown values are omitted.
    cost = pass_cost(facts)
    if cost != "-":
        first.append((f"{cost}  ", "money"))
    first.append((f"{sanitize(facts.trigger)}  ", "muted"))
    by = (
        "made without a model"
        if facts.model == "digest"
        else sanitize(formatting.model_name(facts.model or ""))
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
        second.append(
            ("active  ", "accent") if current else (f"view {agent.view_version} is active  ", "muted")
        )
    if facts.instructions:
        second.append((f"instructions: {clip(sanitize(facts.instructions), 160)}  ", "user"))
    if facts.reason:
        second.append((clip(sanitize(facts.reason), 200), "muted" if facts.status == "applied" else "failed"))
    return [first, second]


def short_pieces(detail: CompactionDetail) -> list[Piece]:
    """A short form for narrow screens: outcome, tokens freed, cost."""
    facts = detail.facts
    glyph, role, word = STATES.get(facts.status, ("·", "muted", sanitize(facts.status)))
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
                    ((f"  … #{detail.first}–#{detail.messages[0].seq - 1} are not read here", "faint"),),
                )
            )
    else:
        lines.append(PageLine("span", (("  no message", "faint"),)))
    losing, listed = sides.losing, set[int]()
    for block in sides.blocks:
        if not only_lost or block.seq in losing:
            lines += _block(block, width, expanded, lost=block.seq in losing)
            if block.seq in losing and (only_lost or block.key in expanded) and block.seq not in listed:
                listed.add(block.seq)
                names = ", ".join(identifier for identifier, seq in sides.lost if seq == block.seq)
                lines += _lost(block, names, width)
    if detail.count:
        lines.append(PageLine("verbatim", ((f"  from #{detail.last + 1} on, verbatim as before", "faint"),)))
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
            "not yet: the agent goes on working meanwhile"
            if waiting
            else "nothing changed: the pass was not applied"
        )
        return [PageLine("none", ((text, "working" if waiting else "muted"),))]
    known = {each.id for each in detail.before.observations} if detail.before else set()
    lines: list[PageLine] = []
    for each in detail.after.observations:
        new = each.id not in known
        lines += _observation(each, "+" if new else " ", width, f"after.{each.id}", expanded, short=not new)
    if not detail.after.observations:
        lines.append(PageLine("empty", (("no observation", "faint"),)))
    lines.append(blank("gap"))
    if sides.lost:
        count = formatting.plural(len(sides.lost), "identifier")
        lines.append(PageLine("lost", ((f"! {count} not in the summary (still stored)", "failed"),)))
        for place, (identifier, seq) in enumerate(sides.lost):
            text = clip(identifier, max(8, width - 12))
            lines.append(
                PageLine(f"lost.{place}", ((f"! {text}", "text"), (f"  #{seq}", "muted")), copy=identifier)
            )
    else:
        lines.append(PageLine("lost", (("✓ the summary holds every path, id and setting", "done"),)))
    lines += damage(detail.after)
    start = detail.after.verbatim_from
    note = f"  from #{start} on, verbatim" if start is not None else "  no message is verbatim"
    lines.append(PageLine("verbatim", ((note, "faint"),)))
    if detail.after.elided:
        shown = ", ".join(f"#{seq}" for seq in detail.after.elided[:12])
        lines.append(PageLine("elided", ((f"  shown in part: {shown}", "retrying"),)))
    return lines


def _observation(
    each: ObservationFacts, sign: str, width: int, key: str, expanded: frozenset[str], *, short: bool
) -> list[PageLine]:
    role = {"+": "done", "-": "failed"}.get(sign, "muted")
    span = f"#{each.first_seq}–#{each.last_seq}"
    pieces: list[Piece] = [
        (f"{sign} {sanitize(each.kind)} {each.id} ", role),
        (f"({formatting.tokens(each.tokens)} tok, {span})", "muted"),
    ]
    if each.provisional:
        pieces.append((" provisional", "retrying"))
    lines = [PageLine(key, tuple(pieces), key, each.text)]
    if each.citations:
        lines += paragraph(
            f"{key}.cites", "cites " + _cited(each.citations), width, role="accent", indent=2, most=3
        )
    most = 400 if (key in expanded) != (not short) else 2
    body = paragraph(key, each.text, width, indent=2, most=most)
    return [*lines, *(PageLine(line.id, line.pieces, key, line.copy) for line in body)]


def _cited(citations: Sequence[int]) -> str:
    shown = " ".join(f"#{seq}" for seq in citations[:40])
    return shown + (f" and {len(citations) - 40} more" if len(citations) > 40 else "")


def _block(block: TranscriptBlock, width: int, expanded: frozenset[str], *, lost: bool) -> list[PageLine]:
    first = next((line for line in block.lines if line.strip()), "")
    if block.kind == "tool_result":
        first = sanitize(result_words(" ".join(block.lines[:20])[:400])) if first[:1] in ("{", "[") else first
    pieces: tuple[Piece, ...] = (
        ("! " if lost else "- ", "failed"),
        (f"#{block.seq} ", "muted"),
        (f"{_ARROWS.get(block.kind, '')}{block.title}  ", "strong"),
        (clip(first, max(8, width - len(block.title) - 12)), "text"),
    )
    text = "\n".join(block.lines)
    lines = [PageLine(block.key, pieces, block.key, text)]
    if block.key in expanded:
        body = paragraph(block.key, text, width, indent=4, most=400)
        lines += [PageLine(f"{line.id}.open", line.pieces, block.key, text) for line in body]
    return lines
