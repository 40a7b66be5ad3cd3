"""Compactions on the page: which messages each replaced, with what, and which messages that text cites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape

from watchkeeper.records.wording import plural
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.compactions import Compaction, Kept, compactions
from watchkeeper.transcripts.export.overview import Overview
from watchkeeper.transcripts.export.page_parts import badge
from watchkeeper.transcripts.export.pieces import Clean
from watchkeeper.transcripts.export.words import duration, moment

_CITATIONS = 80
LARGEST_KEPT = 20_000_000
"""Characters of texts that stand for messages in one page; of later passes there are the figures alone."""


def compaction_section(
    connection: Connection, session_id: str, clean: Clean, whole: Overview, places: dict[str, int]
) -> Iterator[str]:
    """The section, a pass at a time."""
    yield '<section id="compactions">\n<h2>Compactions</h2>\n'
    names = {agent.id: agent.name for agent in whole.agents}
    none, size = True, 0
    for one in compactions(connection, session_id, clean):
        none = False
        size += sum(len(kept.text) for kept in one.kept)
        if size > LARGEST_KEPT:
            one = replace(
                one,
                kept=tuple(
                    replace(kept, text="[left out: the page would be too large]") for kept in one.kept
                ),
            )
        yield _drawn(one, names.get(one.agent_id, one.agent_id), places.get(one.agent_id, -1))
    if none:
        yield '<p class="muted">Nothing was compacted.</p>\n'
    yield "</section>\n"


def _drawn(one: Compaction, name: str, place: int) -> str:
    cited = ",".join(str(seq) for seq in one.cited)
    count = plural(one.dropped, "message")
    left = f"{count} {'replaced' if one.applied else 'read'}" if one.dropped else "no message replaced"
    return (
        f'<details class="pass" data-find="Compaction of {escape(name)}" data-agent="{place}" data-first="{one.first}"'
        f' data-last="{one.last}" data-cited="{cited}"><summary><b>{escape(name)}</b><span class="flow">{_flow(one)}</span>'
        f'<span class="muted small">{left} · {moment(one.at)}</span>{badge(one.status)}{_bar(one)}</summary>\n'
        f'<div class="sides">{_left(one)}{_right(one, place)}</div></details>\n'
    )


def _flow(one: Compaction) -> str:
    if one.tokens_before is None:
        return "tokens not known"
    after = f"{one.tokens_after:,}" if one.tokens_after is not None else "?"
    less = ""
    if one.tokens_after is not None and one.tokens_before:
        less = f" ({100 * (one.tokens_after - one.tokens_before) / one.tokens_before:+.0f} %)".replace(
            "-", "−"
        )
    return f"{one.tokens_before:,} → {after} tokens{less}"


def _bar(one: Compaction) -> str:
    if not one.tokens_before or one.tokens_after is None:
        return ""
    share = min(100.0, 100 * one.tokens_after / one.tokens_before)
    return (
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="before" width="100" height="6"/><rect width="{share:.1f}" height="6"/></svg>'
    )


def _left(one: Compaction) -> str:
    if not one.dropped or not one.applied:
        return '<div><h3>Replaced</h3><p class="muted">No message left the context.</p></div>'
    return (
        f"<div><h3>Replaced: messages {one.first:,} to {one.last:,}</h3>"
        f'<p class="muted small">{len(one.cited):,} of {one.dropped:,} are cited by the text that replaces them;'
        f" {one.dropped - len(one.cited):,} are not in the summary (still stored).</p>"
        '<ul class="gone"></ul></div>'
    )


def _right(one: Compaction, place: int) -> str:
    verbatim = ""
    if one.verbatim_from is not None:
        verbatim = f'<p class="muted small">From message {_jump(place, one.verbatim_from)} on, everything is kept as it was said.</p>'
    about = [
        f"asked for by {one.trigger}" if one.trigger == "manual" else one.trigger,
        one.model,
        duration(one.seconds),
    ]
    facts = " · ".join(escape(text) for text in about if text and text != "–")
    reason = f"<p>{escape(one.reason)}</p>" if one.reason else ""
    instructions = f"<p>Instructions: {escape(one.instructions)}</p>" if one.instructions else ""
    kept = (
        "".join(_kept(text, place) for text in one.kept)
        or '<p class="muted">No new text stands in the context.</p>'
    )
    return f'<div><h3>Kept instead</h3><p class="muted small">{facts}</p>{reason}{instructions}{kept}{verbatim}</div>'


def _kept(kept: Kept, place: int) -> str:
    cites = " ".join(_jump(place, seq) for seq in kept.citations[:_CITATIONS])
    more = f" and {len(kept.citations) - _CITATIONS:,} more" if len(kept.citations) > _CITATIONS else ""
    return (
        f'<p class="muted small">{escape(kept.kind)} of messages {kept.covers[0]:,} to {kept.covers[1]:,},'
        f" {kept.tokens:,} tokens</p><pre>{escape(kept.text)}</pre>"
        f'<p class="cites small"><span class="muted">cites</span> {cites or "nothing"}{more}</p>'
    )


def _jump(place: int, seq: int) -> str:
    return f'<button class="jump" type="button" data-jump="{place}:{seq}">#{seq}</button>'
