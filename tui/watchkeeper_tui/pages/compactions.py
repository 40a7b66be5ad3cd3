"""The passes over an agent's context: what each replaced, what it cost, why one did not come to pass."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper.store.snapshot import CompactionFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.context import PageContext, PageLine, blank, heading
from watchkeeper_tui.sanitize import fit, sanitize
from watchkeeper_tui.widgets.cells import Piece

MOST_PASSES = 200
"""As many of a session's newest passes are read (`store.dashboard_fold`)."""

PASS_KEY = "pass."
"""The prefix of the key of a pass's line; the pass's id follows."""

STATES = {
    "running": ("◌", "working", "running"),
    "prepared": ("◔", "slot", "prepared"),
    "applied": ("✓", "done", "applied"),
    "rejected": ("✗", "failed", "rejected"),
    "abandoned": ("×", "cancelled", "abandoned"),
    "undone": ("‹", "paused", "undone"),
}


def is_buffered(each: CompactionFacts) -> bool:
    """An observation made ahead of need, which waits until its messages have to go."""
    return each.status == "prepared" and each.trigger in ("observer", "reflector")


def stall(each: CompactionFacts) -> str:
    """How long the agent's loop was blocked; a dash if unknown."""
    return "-" if each.stall_seconds is None else f"{each.stall_seconds * 1000:.0f}ms"


def pass_cost(each: CompactionFacts) -> str:
    """What the pass cost: `unpriced` where its model has no known price, a dash where nothing is known or no
    model was asked."""
    if each.cost_usd is not None:
        return formatting.money(each.cost_usd)
    return (
        "unpriced"
        if _asked_a_model(each) and each.ended_at is not None and each.status != "abandoned"
        else "-"
    )


def _asked_a_model(each: CompactionFacts) -> bool:
    """Whether a model made the summary. A digest needs none; other programs do not record it."""
    return each.stall_seconds is not None and each.model not in (None, "digest")


def pass_number(each: CompactionFacts, passes: Sequence[CompactionFacts]) -> tuple[int, int] | None:
    """Which of its agent's passes it is, and of how many; None where older ones may not have been read.
    `passes`: the session's."""
    mine = sorted(other.id for other in passes if other.agent_id == each.agent_id)
    return (mine.index(each.id) + 1, len(mine)) if each.id in mine and len(passes) < MOST_PASSES else None


def compaction_pieces(each: CompactionFacts, now: float, *, name: str = "") -> list[Piece]:
    """One pass as one line."""
    glyph, role, word = STATES.get(each.status, ("·", "muted", sanitize(each.status)))
    at = formatting.time_of_day(each.requested_at)
    pieces: list[Piece] = [(f"{glyph} ", role), (f"{at[:5] if name else at} ", "faint")]
    if name:
        pieces.append((f"{name} ", "text"))
    pieces.append((sanitize(each.trigger), "muted"))
    if each.status == "running":
        upto = f" up to #{each.high_water}" if each.high_water else ""
        return [*pieces, (f" observing{upto}, {formatting.duration(now - each.requested_at)}", "working")]
    if is_buffered(each):
        upto = f" up to #{each.high_water}" if each.high_water else ""
        return [*pieces, (f" buffered{upto}", role), ("  waits until its messages must go", "muted")]
    if each.status == "undone":
        pieces.append((f" {word}", role))  # before its numbers, which no longer apply and may be cut off
    if each.tokens_before is not None and each.tokens_after is not None:
        before, after = each.tokens_before, each.tokens_after
        pieces += [
            (f" {formatting.tokens(before)} → {formatting.tokens(after)} ", "text"),
            (formatting.change(before, after), "done" if after < before else "muted"),
        ]
    cost = pass_cost(each)
    if cost != "-":
        pieces.append((f" {cost}", "money"))
    if each.status == "applied":
        # In the list of all agents, whose header shows the sum, only a pass that blocked an agent shows its
        # time.
        tells = each.stall_seconds is not None and (not name or each.stall_seconds >= 0.001)
        pieces.append((f" blocked {stall(each)}" if tells else "", "muted"))
    elif each.status != "undone":
        pieces += [(f" {word}", role), (f": {sanitize(each.reason)}" if each.reason else "", "muted")]
    return pieces


def compactions_page(view: PageContext) -> list[PageLine]:
    """The agent's passes, newest first, then the versions of its view."""
    mine = [each for each in view.snapshot.compactions if each.agent_id == view.agent.id]
    lines = [
        heading(
            "passes",
            "Compactions",
            formatting.plural(len(mine), "pass", "passes") + (", Enter opens one" if mine else ""),
        )
    ]
    if not mine:
        by_hand = "; C compacts by hand, and says first what it would do" if view.can_act else ""
        yet = " yet" if view.agent.ended_at is None else ""
        lines.append(PageLine("none", ((f"none{yet}{by_hand}", "faint"),)))
    for each in mine:
        key = f"{PASS_KEY}{each.id}"
        lines.append(PageLine(key, tuple(compaction_pieces(each, view.now)), key))
    if view.detail.views:
        lines += [
            blank("gap"),
            heading("views", "Views", "u undoes the last compaction, U redoes it" if view.can_act else ""),
        ]
    digits = max((len(str(each.version)) for each in view.detail.views), default=1)
    reasons = min(16, max((len(sanitize(each.reason)) for each in view.detail.views), default=0))
    for each_view in view.detail.views:
        current = each_view.version == view.agent.view_version
        pieces: list[Piece] = [
            ("▌ " if current else "  ", "accent"),
            (f"view {each_view.version:<{digits}} ", "strong" if current else "text"),
            (f"{fit(sanitize(each_view.reason), reasons)} ", "muted"),
            (f"{formatting.tokens(each_view.tokens)} tok" if each_view.tokens else "", "tokens"),
            (f"  verbatim from #{each_view.verbatim_from}" if each_view.verbatim_from else "", "muted"),
            (f"  {formatting.time_of_day(each_view.created_at)}", "faint"),
            ("  current" if current else "", "accent"),
        ]
        lines.append(PageLine(f"view.{each_view.version}", tuple(pieces)))
    return lines
