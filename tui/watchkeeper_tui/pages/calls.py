"""What the agent and its model exchanged: the tabs Calls, Metrics and Prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchkeeper.records.text import inbox_payload_words
from watchkeeper.store.agent_snapshot import CallFacts
from watchkeeper.store.imports import imported_from
from watchkeeper.store.projection import AgentFacts, roles_of
from watchkeeper_tui import formatting
from watchkeeper_tui.pages import PageContext, blank, damage, heading, paragraph, rendered
from watchkeeper_tui.pages.memory import OBSERVATION_KEY
from watchkeeper_tui.pages.report import price_label, usage_label
from watchkeeper_tui.pages.transcript import items_of, view_units
from watchkeeper_tui.rendering.documents import Unit
from watchkeeper_tui.sanitize import clip, fit, sanitize
from watchkeeper_tui.snapshot import Snapshot, TranscriptBlock, lasted
from watchkeeper_tui.widgets.rows import PageLine, Piece, pieces_width

_STATES = {
    "running": ("·", "muted"), "done": ("✓", "done"), "error": ("✗", "failed"), "abandoned": ("×", "cancelled"),
}  # fmt: skip


def calls_page(view: PageContext) -> list[PageLine]:
    """One line a call; Enter shows all of it."""
    calls = view.detail.calls
    if not calls:
        return [PageLine("empty", ((view.nothing("model calls"), "faint"),))]
    wide = view.width >= 64
    has_cost = any(call.cost_usd for call in calls)
    cost = f" {'cost':>8}" if has_cost else ""
    titles = f"  {'turn':>4} {'prompt':>7} {'cached':>6} {'out':>6}{cost} {'took':>6}" + (
        f" {'TTFT':>6}  stop" if wide else ""
    )
    lines = [PageLine("heading", ((titles, "heading"),))]
    for call in calls:
        lines += _call(call, view, wide, has_cost)
    return lines


def _call(call: CallFacts, view: PageContext, wide: bool, has_cost: bool) -> list[PageLine]:
    key = f"call.{call.id}"
    glyph, role = _STATES.get(call.status, ("?", "muted"))
    stop = call.stop_reason if call.status in _STATES and call.stop_reason else call.status
    mark = "" if call.usage_exact else "~"
    pieces: list[Piece] = [
        (f"{glyph} ", role),
        (f"{call.turn:>4} ", "text"),
        (f"{mark + formatting.tokens(call.prompt_tokens):>7} ", "tokens"),
        (f"{formatting.tokens(call.cache_read_tokens) if call.cache_read_tokens else '-':>6} ", "muted"),
        (f"{formatting.tokens(call.output_tokens):>6} ", "tokens"),
        *([(f"{price(call):>8} ", "money")] if has_cost else []),
        # A log that gives one time for a whole reply does not tell how long it took.
        (f"{formatting.duration(call.latency_seconds) if call.latency_seconds else '-':>6}", "text"),
    ]
    if wide:
        first = formatting.duration(call.first_token_seconds) if call.first_token_seconds is not None else "-"
        pieces += [(f" {first:>6}  ", "muted"), (fit(sanitize(stop), 10), "muted")]
    if call.retries:
        pieces.append((f" ↻{call.retries}", "retrying"))
    if call.purpose not in ("turn", "planner"):
        pieces.append((f" {sanitize(call.purpose)}", "compaction"))
    is_partial = not call.usage_exact and call.status in ("error", "abandoned") and call.prompt_tokens > 0
    if is_partial:
        pieces.append((" partial", "waiting"))
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
            f" {'exact' if call.usage_exact else 'partial' if is_partial else 'estimated'} usage ·"
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


LABEL_CELLS = 11
NEWEST_CELLS = 23
"""Beside a series: its newest value, and its greatest."""


def _effort(view: PageContext) -> list[Piece]:
    """How much the agent's model was asked to think, where something was chosen."""
    session = view.snapshot.session
    role = roles_of(session.roles).get(view.agent.role) if session is not None else None
    return (
        [(f"  effort {sanitize(role.effort_text)}", "muted")] if role is not None and role.effort_text else []
    )


def metrics_page(view: PageContext) -> list[PageLine]:
    """Totals first, then one sparkline a series, oldest call on the left."""
    agent = view.agent
    calls = tuple(reversed(view.detail.calls))
    rows: list[tuple[str, list[Piece]]] = [
        ("model", [(sanitize(agent.model), "text"), *_effort(view)]),
        ("tokens", _tokens(view)),
        ("cost", [(formatting.bill(agent), "money"), *_cost_label(view)]),
        (
            "time",
            [
                ("active ", "muted"),
                (formatting.duration(agent.active_seconds), "text"),
                (
                    f", total {formatting.duration(lasted(agent, view.snapshot.state, view.now))}",
                    "muted",
                ),
            ],
        ),
        (
            "calls",
            [
                (f"{agent.model_calls:,}", "text"),
                (
                    f"  ↻ {formatting.plural(agent.retries, 'retry', 'retries')}",
                    "retrying" if agent.retries else "muted",
                ),
                (f"  ✗ {formatting.plural(agent.errors, 'error')}", "failed" if agent.errors else "muted"),
            ],
        ),
        (
            "memory",
            [
                (
                    f"{agent.last_seq:,} messages, {formatting.tokens(agent.message_tokens)} tok,"
                    f" {formatting.plural(agent.compactions, 'compaction')}",
                    "text",
                )
            ],
        ),
    ]
    below = _below(view.snapshot, agent)
    if below:
        rows.insert(3, ("sub-agents", _sums(below)))
    lines = [line for name, pieces in rows for line in _row(name, pieces, view.width)]
    lines.append(blank("gap"))
    cells = max(8, min(60, view.width - LABEL_CELLS - NEWEST_CELLS))
    done = [call for call in calls if call.status == "done"]
    series: list[tuple[str, str, Sequence[float], str]] = [
        ("prompt", "kind_messages", [call.prompt_tokens for call in done], "tok"),
        ("output", "tokens", [call.output_tokens for call in done], "tok"),
        ("cached", "kind_tools", [call.cache_read_tokens for call in done], "tok"),
        ("cost", "money", [call.cost_usd or 0.0 for call in done], "$"),
        ("latency", "retrying", [call.latency_seconds for call in done], "s"),
        ("TTFT", "compaction", [call.first_token_seconds or 0.0 for call in done], "s"),
    ]
    for name, role, values, unit in series:
        if not any(values):
            continue  # nothing of it is known, or it never was more than nothing
        lines.append(
            PageLine(
                f"series.{name}",
                (
                    (f"{name:<{LABEL_CELLS}}", "muted"),
                    (formatting.sparkline(values, cells), role),
                    _last(values, unit),
                ),
            )
        )
    if not done:
        lines.append(PageLine("none", ((view.nothing("finished model calls"), "faint"),)))
    return lines


def _row(name: str, pieces: Sequence[Piece], width: int) -> list[PageLine]:
    """One total; what does not fit beside it goes below."""
    lines: list[list[Piece]] = [[(f"{name:<{LABEL_CELLS}}", "muted")]]
    for piece in pieces:
        if len(lines[-1]) > 1 and pieces_width(lines[-1]) + pieces_width([piece]) > width:
            lines.append([(" " * LABEL_CELLS, "muted")])
            piece = (piece[0].lstrip(), piece[1])
        lines[-1].append(piece)
    return [
        PageLine(f"row.{name}{f'.{number}' if number else ''}", tuple(line))
        for number, line in enumerate(lines)
    ]


def _tokens(view: PageContext) -> list[Piece]:
    agent = view.agent
    report = view.detail.report
    return [
        (formatting.tokens(agent.total_tokens), "tokens"),
        *([usage_label(report)] if report is not None else []),
        (
            f"  in {formatting.tokens(agent.input_tokens)} · out {formatting.tokens(agent.output_tokens)} · cache"
            f" {formatting.tokens(agent.cache_read_tokens)} read, {formatting.tokens(agent.cache_write_tokens)}"
            " written",
            "muted",
        ),
    ]


def _cost_label(view: PageContext) -> list[Piece]:
    report = view.detail.report
    return price_label(view.agent, report) if report is not None else [(_cost_note(view), "faint")]


def _cost_note(view: PageContext) -> str:
    """In a replay, where no report is read."""
    unpriced = view.agent.unpriced_calls
    if unpriced:
        return f"  {formatting.plural(unpriced, 'call')} without a known price"
    return "  partly estimated" if view.agent.cost_estimated else ""


def _last(values: Sequence[float], unit: str) -> Piece:
    if not values:
        return ("", "muted")
    last, most = values[-1], max(values)
    if unit == "$":
        return (f"  {formatting.money(last)} (max {formatting.money(most)})", "muted")
    if unit == "s":
        return (f"  {formatting.duration(last)} (max {formatting.duration(most)})", "muted")
    return (f"  {formatting.tokens(last)} (max {formatting.tokens(most)})", "muted")


def _below(snapshot: Snapshot, agent: AgentFacts) -> list[AgentFacts]:
    """All that this agent started, and what those started."""
    children: dict[str, list[AgentFacts]] = {}
    for each in snapshot.agents:
        if each.parent_agent_id is not None:
            children.setdefault(each.parent_agent_id, []).append(each)
    found: list[AgentFacts] = []
    waiting, seen = [agent.id], {agent.id}
    while waiting:
        for each in children.get(waiting.pop(), ()):
            if each.id not in seen:
                seen.add(each.id)
                found.append(each)
                waiting.append(each.id)
    return found


def _sums(agents: Sequence[AgentFacts]) -> list[Piece]:
    """What a subtree took."""
    priced = [each.cost_usd for each in agents if each.cost_usd is not None]
    cost = formatting.cost(
        sum(priced) if priced else None,
        sum(each.unpriced_calls for each in agents),
        estimated=any(each.cost_estimated for each in agents),
    )
    return [
        (formatting.tokens(sum(each.total_tokens for each in agents)), "tokens"),
        (f" tok  {cost}", "money"),
        (f"  of {formatting.plural(len(agents), 'agent')}", "muted"),
    ]


def prompt_page(view: PageContext) -> list[PageLine | Unit]:
    """Section by section, each with its tokens; Enter unfolds."""
    parts = dict(view.agent.composition)
    return [
        *damage(view.detail.view),
        *_system(view, parts),
        *_observations(view, parts),
        *_pins(view),
        *_messages(view, parts),
        *_inbox(view),
    ]


def _system(view: PageContext, parts: dict[str, int]) -> list[PageLine]:
    tokens = parts.get("overhead", parts.get("system", 0))
    lines = [_section("system", "System prompt and tools", tokens, view)]
    unfolded = "system" in view.expanded
    session = view.snapshot.session
    program = imported_from(session.origin) if session is not None else None
    none = f"{program} does not log them" if program else "none"
    body = paragraph(
        "system.text", view.detail.system or none, view.width, indent=2, most=2000 if unfolded else 6
    )
    return [
        *lines,
        *(PageLine(line.id, line.pieces, "system", line.copy) for line in body),
        blank("system.end"),
    ]


def _observations(view: PageContext, parts: dict[str, int]) -> list[PageLine]:
    current = view.detail.view
    if current is None or not current.observations:
        return []
    lines = [
        _section(
            "observations", "Observations (replace earlier messages)", parts.get("observations", 0), view
        )
    ]
    for each in current.observations:
        key = f"prompt.obs.{each.id}"
        note = f"#{each.first_seq}–#{each.last_seq}, {formatting.tokens(each.tokens)} tok"
        lines.append(
            PageLine(
                key, ((f"  {sanitize(each.kind)} {each.id}  ", "compaction"), (note, "muted")), key, each.text
            )
        )
        body = rendered(key, each.text, view.width, indent=4, most=400 if key in view.expanded else 3)
        lines += [PageLine(line.id, line.pieces, key, line.copy) for line in body]
        if key in view.expanded:
            behind = f"    → source messages, #{each.first_seq}–#{each.last_seq}"
            lines.append(PageLine(f"{key}.behind", ((behind, "accent"),), f"{OBSERVATION_KEY}{each.id}"))
    return [*lines, blank("observations.end")]


def _pins(view: PageContext) -> list[PageLine | Unit]:
    """What a person pinned of the messages that observations cover."""
    current = view.detail.view
    start = current.verbatim_from if current is not None else 1
    covered = {seq for seq in (current.pins if current is not None else ()) if start is None or seq < start}
    blocks = [block for block in view.detail.transcript if block.seq in covered]
    if current is None or not covered:
        return []
    tokens = sum(block.tokens for block in blocks)
    lines = [_section("pins", "Pinned messages (also covered by observations)", tokens, view)]
    unread = sorted(covered - {block.seq for block in blocks})
    if unread:
        which = ", ".join(f"#{seq}" for seq in unread)
        lines.append(PageLine("pins.unread", ((f"  … {which} not loaded", "faint"),)))
    return [*lines, *_units(view, blocks), blank("pins.end")]


def _messages(view: PageContext, parts: dict[str, int]) -> list[PageLine | Unit]:
    current = view.detail.view
    first = current.verbatim_from if current is not None else 1
    if first is None:
        return [_section("messages", "No verbatim messages", 0, view), blank("messages.end")]
    blocks = [block for block in view.detail.transcript if block.seq >= first and block.kind != "live"]
    lines = [
        _section(
            "messages",
            f"Messages from #{first}, verbatim",
            parts.get("messages", 0) + parts.get("elided", 0),
            view,
        )
    ]
    if blocks and blocks[0].seq > first:
        lines.append(
            PageLine("messages.earlier", ((f"  … #{first}–#{blocks[0].seq - 1} not loaded", "faint"),))
        )
    return [*lines, *_units(view, blocks), blank("messages.end")]


def _units(view: PageContext, blocks: list[TranscriptBlock]) -> Iterator[Unit]:
    current = view.detail.view
    elided = frozenset(current.elided) if current is not None else frozenset()
    for item in items_of(blocks):
        in_part = any(seq in elided for seq in item.seqs)
        yield from view_units(view, item, "shortened in the prompt" if in_part else "")


def _inbox(view: PageContext) -> list[PageLine]:
    waiting = view.detail.inbox
    if not waiting:
        return []
    lines = [heading("inbox", "Unread notes", formatting.plural(len(waiting), "note"))]
    for each in waiting:
        text = clip(" ".join(sanitize(inbox_payload_words(each.kind, each.payload)).split()), 400)
        lines.append(
            PageLine(
                f"inbox.{each.id}",
                ((f"  {text}", "text"),),
                copy=each.payload,
            )
        )
    return lines


def _section(key: str, title: str, tokens: int, view: PageContext) -> PageLine:
    limit = view.agent.context_limit
    note = f"  {formatting.tokens(tokens)} tok" if tokens else ""
    if tokens and limit:
        note += f", {formatting.share(tokens, limit) * 100:.0f}% of the window"
    return PageLine(f"section.{key}", ((title, "strong"), (note, "muted")), key)
