"""Every call to a model, newest first: usage, cost, latency, retries, how it ended."""

from __future__ import annotations

from watchkeeper.store.agent_snapshot import CallFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.context import PageContext, PageLine, paragraph
from watchkeeper_tui.sanitize import fit, sanitize
from watchkeeper_tui.widgets.cells import Piece

_STATES = {"done": ("✓", "done"), "error": ("✗", "failed"), "abandoned": ("×", "cancelled")}


def calls_page(view: PageContext) -> list[PageLine]:
    """One line a call; Enter shows all of it."""
    calls = view.detail.calls
    if not calls:
        return [PageLine("empty", ((view.nothing("model call"), "faint"),))]
    wide = view.width >= 64
    titles = f"  {'turn':>4} {'prompt':>7} {'cached':>6} {'out':>6} {'cost':>8} {'took':>6}" + (
        f" {'TTFT':>6}  stop" if wide else ""
    )
    lines = [PageLine("heading", ((titles, "heading"),))]
    for call in calls:
        lines += _call(call, view, wide)
    return lines


def _call(call: CallFacts, view: PageContext, wide: bool) -> list[PageLine]:
    key = f"call.{call.id}"
    glyph, role = _STATES.get(call.status, ("·", "muted"))
    mark = "" if call.usage_exact else "~"
    pieces: list[Piece] = [
        (f"{glyph} ", role),
        (f"{call.turn:>4} ", "text"),
        (f"{mark + formatting.tokens(call.prompt_tokens):>7} ", "tokens"),
        (f"{formatting.tokens(call.cache_read_tokens) if call.cache_read_tokens else '-':>6} ", "muted"),
        (f"{formatting.tokens(call.output_tokens):>6} ", "tokens"),
        (f"{price(call):>8} ", "money"),
        # A log that gives one time for a whole reply does not tell how long it took.
        (f"{formatting.duration(call.latency_seconds) if call.latency_seconds else '-':>6}", "text"),
    ]
    if wide:
        first = formatting.duration(call.first_token_seconds) if call.first_token_seconds is not None else "-"
        pieces += [(f" {first:>6}  ", "muted"), (fit(sanitize(call.stop_reason or call.status), 10), "muted")]
    if call.retries:
        pieces.append((f" ↻{call.retries}", "retrying"))
    if call.purpose not in ("turn", "planner"):
        pieces.append((f" {sanitize(call.purpose)}", "compaction"))
    lines = [PageLine(key, tuple(pieces), key, sanitize(call.error or ""))]
    if call.error:
        lines += [
            PageLine(line.id, line.pieces, key, line.copy)
            for line in paragraph(
                key, call.error, view.width, role="failed", indent=7, most=20 if key in view.expanded else 1
            )
        ]
    if key in view.expanded:
        detail = (
            f"{sanitize(call.model)} · {sanitize(call.purpose)} ·"
            f" {'exact' if call.usage_exact else 'estimated'} usage ·"
            f" price {sanitize(call.price_status)} · input {call.input_tokens:,} · cache read"
            f" {call.cache_read_tokens:,} ·"
            f" cache write {call.cache_write_tokens:,} · output {call.output_tokens:,} · started"
            f" {formatting.time_of_day(call.started_at)} · waited {formatting.duration(call.waited_seconds)} for a"
            " slot"
        )
        lines += paragraph(f"{key}.all", detail, view.width, role="muted", indent=7)
    return lines


def price(call: CallFacts) -> str:
    """A call's cost as it is known: `~` marks an estimate, and no price is never $0."""
    if call.cost_usd is None:
        return "unpriced"
    return formatting.cost(call.cost_usd, estimated=call.price_status == "estimated" or not call.usage_exact)
