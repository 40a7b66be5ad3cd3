"""An agent's metrics: totals, then tokens, cost, latency and context of each call."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.context import PageContext, PageLine, blank
from watchkeeper_tui.pages.report import price_label, usage_label
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.session_status import lasted
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.cells import Piece, pieces_width

LABEL_CELLS = 11
NEWEST_CELLS = 23
"""Beside a series: its newest value, and its greatest."""


def metrics_page(view: PageContext) -> list[PageLine]:
    """Totals first, then one sparkline a series, oldest call on the left."""
    agent = view.agent
    calls = tuple(reversed(view.detail.calls))
    rows: list[tuple[str, list[Piece]]] = [
        ("model", [(sanitize(agent.model), "text")]),
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
        lines.append(PageLine("none", ((view.nothing("finished model call"), "faint"),)))
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
        return f"  {formatting.plural(unpriced, 'call')} of a model without a known price"
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
