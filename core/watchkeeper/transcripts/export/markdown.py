"""The Markdown form: for a pull request, a wiki, an editor. Whatever others wrote stands in fences, or is
escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TextIO

from watchkeeper.records.redact import Redactor
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.overview import (
    AgentLine,
    Clean,
    CompactionPage,
    Overview,
    Piece,
    TaskLine,
    UsageTotals,
    compactions,
    cost,
    duration,
    glyph,
    moment,
    overview,
    transcript,
)

RESULT_CHARACTERS = 10_000
"""Of a call's input or a result this much is written; texts of agents and people are written whole, to
100,000."""

_MARKS = re.compile(r"([\\`*_\[\]<>|~&$@#{}])")


def write_markdown(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one Markdown document. The caller holds a read transaction.

    Args:
        redactor: makes one that takes secrets out; None leaves them in.

    Returns:
        How many secrets were taken out; None where they were left in.
    """
    secrets = redactor() if redactor is not None else None
    clean: Clean = secrets if secrets is not None else lambda value: value
    whole = overview(connection, session_id, clean)
    names = {agent.id: agent.name for agent in whole.agents}
    _head(out, whole)
    _plan(out, whole)
    _costs(out, whole)
    _compactions(out, compactions(connection, session_id, clean), names)
    _memory(out, whole)
    out.write("\n## Transcripts\n")
    for agent in whole.agents:
        _transcript(out, connection, agent, clean)
    return secrets.count if secrets is not None else None


def escaped(text: str) -> str:
    """Text of one line that Markdown shows as it is: no emphasis, link, picture, table cell or HTML comes of
    it."""
    return _MARKS.sub(r"\\\1", text).replace("://", ":\\//").replace("www.", "www\\.")


def fenced(text: str) -> str:
    """Text of several lines in a code block that none of its lines can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}\n"


def _head(out: TextIO, whole: Overview) -> None:
    out.write(f"# {escaped(whole.title) or 'Session'}\n\n")
    rows = [
        ("Session", whole.id + (f" (imported, {whole.origin})" if whole.origin != "run" else "")),
        ("State", f"{glyph(whole.status)} {whole.status}" + (f": {whole.reason}" if whole.reason else "")),
        ("Workspace", whole.workspace),
        ("Model", whole.model),
        ("Began", moment(whole.created_at)),
        ("Last active", moment(whole.last_active)),
        ("Tasks", f"{sum(task.status == 'done' for task in whole.tasks)} of {len(whole.tasks)} done"),
        ("Agents", f"{len(whole.agents):,}"),
        ("Tokens", f"{whole.spent.total:,}"),
        ("Cost", _cost(whole.spent)),
        ("Compactions", f"{whole.compactions:,}"),
    ]
    if whole.partial:
        rows.append(("Totals", whole.partial))
    if whole.tags:
        rows.append(("Tags", ", ".join(whole.tags)))
    _table(out, ("", ""), rows)
    out.write(f"\n## Goal\n\n{fenced(whole.goal)}")


def _plan(out: TextIO, whole: Overview) -> None:
    out.write("\n## Plan\n\n")
    if not whole.tasks:
        out.write("This session has no plan.\n")
        return
    by_task: dict[str, list[AgentLine]] = {}
    for agent in whole.agents:
        if agent.task_id:
            by_task.setdefault(agent.task_id, []).append(agent)
    if whole.revision:
        out.write(f"Revision {whole.revision}.\n\n")
    for task in whole.tasks:
        after = f"; after {', '.join(escaped(need) for need in task.needs)}" if task.needs else ""
        out.write(f"- {glyph(task.status)} **{escaped(task.title)}** ({escaped(task.status)}{after})\n")
        for agent in by_task.get(task.id, ()):
            out.write(f"  - {glyph(agent.status)} {escaped(agent.name)}, attempt {agent.attempt}, {escaped(agent.model)}:"
                      f" {agent.spent.total:,} tokens, {_cost(agent.spent)}\n")  # fmt: skip
    for task in whole.tasks:
        _task(out, task)


def _task(out: TextIO, task: TaskLine) -> None:
    out.write(f"\n### {glyph(task.status)} {escaped(task.title)}\n\n")
    out.write(f"{escaped(task.name)}: {escaped(task.status)}, {escaped(task.role)}, attempt {task.attempt}.")
    out.write(f" {escaped(task.reason)}\n" if task.reason else "\n")
    for name, text in (("Instructions", task.instructions), ("Result", task.result), ("Error", task.error)):
        if text:
            out.write(f"\n{name}:\n\n{fenced(text)}")


def _costs(out: TextIO, whole: Overview) -> None:
    out.write("\n## Cost\n\n")
    head = ("Agent", "Model", "Calls", "Input", "Output", "Cache read", "Cache write", "Cost", "Figure")
    _table(out, head, [*((agent.name, agent.model, *_figures(agent.spent)) for agent in whole.agents),
                       ("All", "", *_figures(whole.spent))])  # fmt: skip
    if whole.models:
        out.write("\n")
        _table(
            out, ("Model", *head[2:]), [(model, *_figures(spent)) for model, spent in whole.models.items()]
        )


def _figures(spent: UsageTotals) -> tuple[str, ...]:
    return (f"{spent.calls:,}", *(f"{tokens:,}" for tokens in spent.tokens), cost(spent), spent.label)


def _cost(spent: UsageTotals) -> str:
    return cost(spent) + (f" ({spent.label})" if spent.label not in ("", "unpriced") else "")


def _compactions(out: TextIO, found: Iterable[CompactionPage], names: dict[str, str]) -> None:
    out.write("\n## Compactions\n")
    any_at_all = False
    for one in found:
        any_at_all = True
        before = f"{one.tokens_before:,}" if one.tokens_before is not None else "?"
        after = f"{one.tokens_after:,}" if one.tokens_after is not None else "?"
        out.write(
            f"\n### {escaped(names.get(one.agent_id, one.agent_id))}, {moment(one.at)}: {before} → {after}"
            " tokens\n\n"
        )
        out.write(f"{escaped(one.status)}, {escaped(one.trigger)}.")
        out.write(f" {escaped(one.reason)}\n\n" if one.reason else "\n\n")
        if one.instructions:
            out.write(f"Instructions: {escaped(one.instructions)}\n\n")
        if one.dropped and one.applied:
            out.write(f"- Replaced: messages {one.first} to {one.last} ({one.dropped:,})\n")
            out.write(f"- Cited of these: {_seqs(one.cited)}\n")
            out.write(f"- Not in the summary (still stored): {one.dropped - len(one.cited):,}\n")
        if one.verbatim_from is not None:
            out.write(f"- Kept as it was said: from message {one.verbatim_from} on\n")
        for kept in one.kept:
            out.write(f"\n{escaped(kept.kind).capitalize()} of messages {kept.covers[0]} to {kept.covers[1]},"
                      f" {kept.tokens:,} tokens, citing {_seqs(kept.citations)}:\n\n{fenced(kept.text)}")  # fmt: skip
    if not any_at_all:
        out.write("\nNothing was compacted.\n")


def _seqs(seqs: Iterable[int], most: int = 60) -> str:
    named = [f"\\#{seq}" for seq in seqs]
    return (", ".join(named[:most]) or "none") + (
        f" and {len(named) - most} more" if len(named) > most else ""
    )


def _memory(out: TextIO, whole: Overview) -> None:
    if whole.facts:
        out.write("\n## Memory\n\n")
        for fact in whole.facts:
            note = f" (replaced by {fact.superseded_by})" if fact.superseded_by is not None else ""
            note += " (pinned)" if fact.pinned else ""
            sources = f" (from {escaped(', '.join(fact.sources))})" if fact.sources else ""
            out.write(f"- {fact.id} {escaped(fact.kind)}: {escaped(fact.text)}{sources}{note}\n")
        if whole.facts_in_all > len(whole.facts):
            out.write(f"\nThe newest {len(whole.facts):,} of {whole.facts_in_all:,}.\n")
    if whole.outputs:
        out.write("\n## Artifacts\n\n")
        _table(out, ("Name", "Kind", "Type", "Bytes"),
               [(one.name, one.kind, one.media_type, f"{one.size:,}") for one in whole.outputs])  # fmt: skip


def _transcript(out: TextIO, connection: Connection, agent: AgentLine, clean: Clean) -> None:
    out.write(f"\n### {escaped(agent.name)}\n\n")
    out.write(f"{glyph(agent.status)} {escaped(agent.status)}, {escaped(agent.role)}, {escaped(agent.model)},"
              f" {agent.messages:,} messages, {agent.spent.total:,} tokens, {duration(agent.seconds)}.\n")  # fmt: skip
    if agent.reason:
        out.write(f"\n{escaped(agent.reason)}\n")
    for said in transcript(connection, agent.id, clean):
        out.write(
            f"\n#### {said.seq} {escaped(said.role)},"
            f" {moment(said.at)}{', taken back' if said.taken_back else ''}\n"
        )
        for piece in said.pieces:
            out.write(f"\n{_title(piece)}{fenced(_shortened(piece))}")


def _title(piece: Piece) -> str:
    match piece.kind:
        case "call":
            return f"Calls **{escaped(piece.name)}**:\n\n"
        case "result":
            return "Result, an error:\n\n" if piece.is_error else "Result:\n\n"
        case "thinking":
            return "Thinking:\n\n"
        case _:
            return ""


def _shortened(piece: Piece) -> str:
    limit = RESULT_CHARACTERS if piece.kind in ("call", "result") else len(piece.text)
    left_out = piece.left_out + max(0, len(piece.text) - limit)
    return piece.text[:limit] + (f"\n[… {left_out:,} characters more]" if left_out else "")


def _table(out: TextIO, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    numbers = {"Calls", "Input", "Output", "Cache read", "Cache write", "Cost", "Bytes"}
    out.write(
        f"| {' | '.join(head)} |\n|{'|'.join('---:' if name in numbers else '---' for name in head)}|\n"
    )
    for row in rows:
        out.write(f"| {' | '.join(escaped(cell) for cell in row)} |\n")
