"""What the model is given next: the system prompt and tools, the observations, then the messages that are
verbatim."""

from __future__ import annotations

from watchkeeper.store.imports import imported_from
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.context import PageContext, PageLine, blank, damage, heading, paragraph
from watchkeeper_tui.pages.transcript import block_lines
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import TranscriptBlock


def prompt_page(view: PageContext) -> list[PageLine]:
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
            "observations", "Observations, in place of earlier messages", parts.get("observations", 0), view
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
        body = paragraph(key, each.text, view.width, indent=4, most=400 if key in view.expanded else 3)
        lines += [PageLine(line.id, line.pieces, key, line.copy) for line in body]
    return [*lines, blank("observations.end")]


def _pins(view: PageContext) -> list[PageLine]:
    """What a person pinned of the messages that observations cover."""
    current = view.detail.view
    start = current.verbatim_from if current is not None else 1
    covered = {seq for seq in (current.pins if current is not None else ()) if start is None or seq < start}
    blocks = [block for block in view.detail.transcript if block.seq in covered]
    if current is None or not covered:
        return []
    tokens = sum(block.tokens for block in blocks)
    lines = [_section("pins", "Pinned messages, behind the observations that cover them", tokens, view)]
    unread = sorted(covered - {block.seq for block in blocks})
    if unread:
        which = ", ".join(f"#{seq}" for seq in unread)
        lines.append(PageLine("pins.unread", ((f"  … {which} are not read here", "faint"),)))
    elided = frozenset(current.elided)
    for block in blocks:
        lines += [_marked(line, block, elided) for line in block_lines(view, block)]
    return [*lines, blank("pins.end")]


def _messages(view: PageContext, parts: dict[str, int]) -> list[PageLine]:
    current = view.detail.view
    first = current.verbatim_from if current is not None else 1
    if first is None:
        return [_section("messages", "No message is verbatim", 0, view), blank("messages.end")]
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
            PageLine("messages.earlier", ((f"  … #{first}–#{blocks[0].seq - 1} are not read here", "faint"),))
        )
    elided = frozenset(current.elided) if current is not None else frozenset()
    for block in blocks:
        lines += [_marked(line, block, elided) for line in block_lines(view, block)]
    return [*lines, blank("messages.end")]


def _marked(line: PageLine, block: TranscriptBlock, elided: frozenset[int]) -> PageLine:
    if block.seq in elided and line.id == block.key:
        return PageLine(
            line.id, (*line.pieces, ("  shown to the model in part", "retrying")), line.key, line.copy
        )
    return line


def _inbox(view: PageContext) -> list[PageLine]:
    waiting = view.detail.inbox
    if not waiting:
        return []
    lines = [heading("inbox", "Waits to be read", formatting.plural(len(waiting), "note"))]
    for each in waiting:
        text = clip(sanitize(each.payload), 400)
        lines.append(
            PageLine(
                f"inbox.{each.id}",
                ((f"  {sanitize(each.kind)}  ", "user"), (text, "text")),
                copy=each.payload,
            )
        )
    return lines


def _section(key: str, title: str, tokens: int, view: PageContext) -> PageLine:
    share = formatting.share(tokens, view.agent.context_limit)
    note = f"  {formatting.tokens(tokens)} tok, {share * 100:.0f}% of the window" if tokens else ""
    return PageLine(f"section.{key}", ((title, "strong"), (note, "muted")), key)
