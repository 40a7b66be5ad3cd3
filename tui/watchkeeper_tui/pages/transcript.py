"""What was said and done, block by block; long tool output is folded until Enter."""

from __future__ import annotations

from watchkeeper_tui import formatting
from watchkeeper_tui.pages import PageContext
from watchkeeper_tui.sanitize import clip, sanitize, wrap
from watchkeeper_tui.snapshot import SessionState, TranscriptBlock
from watchkeeper_tui.widgets.rows import PageLine

BOUNDARY = "boundary"
"""The id of the line below which messages are verbatim."""

LOOKS = {
    "user": ("»", "user"),
    "assistant": ("●", "assistant"),
    "thinking": ("∴", "thinking"),
    "tool_use": ("→", "tool"),
    "tool_result": ("←", "muted"),
    "tool_error": ("✗", "failed"),
    "attachment": ("+", "muted"),
    "live": ("▸", "working"),
}
_FOLDED_LINES = {"tool_result": 3, "tool_error": 4, "tool_use": 3, "thinking": 3, "user": 12}
_LONGEST = 16
"""Lines shown of a folded block of any other kind."""


def transcript_page(view: PageContext) -> list[PageLine]:
    """The newest messages, oldest first, then what streams in now."""
    lines: list[PageLine] = []
    compacted = _boundary(view)
    if view.detail.first_seq > 1:
        lines.append(
            PageLine("earlier", ((f"… messages #1–#{view.detail.first_seq - 1} are earlier", "faint"),))
        )
    running = {
        call.tool_use_id: call
        for call in view.detail.tool_calls
        if call.status in ("pending", "running", "unknown")
    }
    words = view.words.casefold()
    for block in view.detail.transcript:
        if (
            words
            and words not in block.title.casefold()
            and not any(words in line.casefold() for line in block.lines)
        ):
            continue
        if compacted is not None and block.seq >= compacted and not words:
            rule = f"── from #{compacted} verbatim in the context; above replaced by observations "
            lines.append(PageLine(BOUNDARY, ((clip(rule, view.width).ljust(view.width, "─"), "compaction"),)))
            compacted = None
        lines += block_lines(view, block)
    for call in running.values():
        state = {"running": "runs", "pending": "waits to run", "unknown": "outcome unknown"}[call.status]
        since = (
            f" {formatting.duration(view.now - call.started_at)}"
            if call.started_at and call.status == "running"
            else ""
        )
        role = "failed" if call.status == "unknown" else "working"
        if view.snapshot.state is SessionState.DEAD and call.status == "running":
            state, since, role = "was running when the host died", "", "dead"
        lines.append(
            PageLine(
                f"call.{sanitize(call.tool_use_id)}",
                (("◌ ", role), (sanitize(call.name), "tool"), (f" {state}{since}", role)),
            )
        )
    if not lines:
        lines.append(
            PageLine("empty", ((view.nothing("message") if not words else "nothing found", "faint"),))
        )
    return lines


def _boundary(view: PageContext) -> int | None:
    """The first message that is verbatim, where some before it are not."""
    current = view.detail.view
    if current is None or not current.observations or current.verbatim_from is None:
        return None
    return current.verbatim_from


def block_lines(view: PageContext, block: TranscriptBlock) -> list[PageLine]:
    """One block: a title, then its text, folded where it is long."""
    glyph, role = LOOKS.get(block.kind, ("·", "muted"))
    unfolded = block.key in view.expanded
    most = 2000 if unfolded else _FOLDED_LINES.get(block.kind, _LONGEST)
    body_role = {"tool_error": "failed", "thinking": "thinking", "tool_result": "muted", "user": "text"}.get(
        block.kind, "text"
    )
    rows: list[str] = []
    for line in block.lines:
        rows += wrap(line, max(4, view.width - 2))
        if len(rows) > most + 2000:
            break
    shown = rows[:most]
    left = len(rows) - len(shown) + block.hidden
    copied = "\n".join(block.lines)
    title = "" if block.kind in ("user", "assistant") else block.title
    if block.kind == "live" and view.snapshot.state is SessionState.DEAD:
        title = "was writing when the host died"
    pinned = view.detail.view is not None and block.seq in view.detail.view.pins
    head: tuple[tuple[str, str], ...] = (
        (f"{glyph} ", role),
        ((title or block.kind), role),
        (f"  #{block.seq}" if block.kind != "live" else "", "faint"),
        ("  ⚑ pinned" if pinned else "", "kind_pinned"),
        (f"  {formatting.tokens(block.tokens)} tok" if block.tokens else "", "faint"),
        (f"  {formatting.time_of_day(block.at)}", "faint"),
    )
    lines = [PageLine(block.key, head, block.key, copied)]
    for index, row in enumerate(shown):
        lines.append(PageLine(f"{block.key}.{index}", (("  ", "text"), (row, body_role)), block.key, copied))
    if left > 0:
        note = f"  … {formatting.plural(left, 'more line')}" + ("" if unfolded else ", Enter unfolds")
        lines.append(PageLine(f"{block.key}.more", ((note, "faint"),), block.key, copied))
    return lines
