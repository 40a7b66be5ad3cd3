"""What was said and done: each message, and each tool call with its result, folded until Enter.

The lines of an item are made when they come in sight (`rendering.documents`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchkeeper.records.text import call_words, result_words, unstyled, without_machine_text
from watchkeeper.store.agent_snapshot import ToolCallFacts
from watchkeeper.store.commands import unified_diff
from watchkeeper_tui import formatting
from watchkeeper_tui.pages import PageContext
from watchkeeper_tui.pages.memory import PASS_KEY
from watchkeeper_tui.rendering.code import changed_lines, harmless, language_of
from watchkeeper_tui.rendering.documents import (
    NUMBERED,
    LineCache,
    Unit,
    estimate,
    indented_json,
    is_numbered,
    render_text,
    text_units,
)
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import SessionState, TranscriptBlock
from watchkeeper_tui.widgets.rows import Line, PageLine, Piece, clip_pieces, marked, pieces_width

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
"""The glyph and the role of each kind of block."""
_FOLDED_LINES = {"thinking": 2, "user": 12}
_LONGEST = 16
"""Lines shown of a folded block of any other kind."""
_FOLDED_DIFF, _FOLDED_LIST, _FOLDED_TEXT = 8, 20, 3
"""Lines shown of the parts of a folded call."""
_MOST_COMPARISONS = 250_000
"""Pairs of lines that are compared for a difference; beyond, all old lines come before all new ones."""
_SUBJECTS = (
    "file_path", "filePath", "path", "notebook_path", "command", "cmd", "pattern", "query", "url", "description", "title", "subject",
    "task", "name", "skill", "prompt",
)  # fmt: skip
"""What a call is about: the first of these that its input has."""
_CALL_ROLES = {
    "pending": "waiting", "running": "working", "done": "done", "unknown": "failed", "error": "failed", "denied": "failed",
    "cancelled": "cancelled",
}  # fmt: skip
_MARKS = {
    "pending": " ", "completed": "x", "done": "x", "in_progress": "~", "running": "~", "cancelled": "-", "failed": "-",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """One block, or a tool call with its result."""

    block: TranscriptBlock
    result: TranscriptBlock | None = None

    @property
    def seqs(self) -> tuple[int, ...]:
        """The messages that it is made of."""
        return (self.block.seq,) if self.result is None else (self.block.seq, self.result.seq)

    def holds(self, words: str) -> bool:
        """Whether the words, in lower case, are in its title or its text."""
        blocks = (self.block,) if self.result is None else (self.block, self.result)
        return any(
            words in block.title.casefold() or words in unstyled(block.text).casefold() for block in blocks
        )


@dataclass(frozen=True, slots=True)
class ItemState:
    """What the lines of an item depend on, beside the item."""

    width: int
    is_unfolded: bool = False
    call: ToolCallFacts | None = None
    """What the store says of a tool call."""
    now: float = 0.0
    is_stopped: bool = False
    """The session's process is gone: nothing runs."""
    is_pinned: bool = False
    words: tuple[str, ...] = ()
    """Words to mark, in lower case."""
    folded_lines: int = 1_000
    """At most so many lines of each part of a folded item, whatever it is."""
    is_proposed: bool = False
    """It is no stored message: without a number and a time, and a text without a head."""
    note: str = ""
    """Said at the end of the head."""


EARLIER = "earlier"
"""The key of the line that leads to the messages before those that are shown."""


def transcript_page(view: PageContext) -> list[PageLine | Unit]:
    """The newest messages, oldest first, then what streams in now."""
    lines: list[PageLine | Unit] = []
    compacted = _boundary(view)
    if view.detail.first_seq > 1:
        words = f"… messages #1–#{view.detail.first_seq - 1}; Enter opens them"
        lines.append(PageLine(EARLIER, ((clip(words, view.width), "muted"),), EARLIER))
    words = view.words.casefold()
    found = not words
    items = items_of(view.detail.transcript)
    last = next((item.block.key for item in reversed(items) if item.block.kind == "assistant"), "")
    if last and view.agent.ended_at is not None:  # its result is unfolded until the user folds it
        view = replace(view, expanded=view.expanded ^ {last})
    for item in items:
        found = found or item.holds(words)
        if compacted is not None and max(item.seqs) >= compacted:
            rule = f"── from #{compacted} verbatim; earlier messages replaced by observations; Enter opens "
            line = (clip(rule, view.width).ljust(view.width, "─"), "compaction")
            lines.append(PageLine(BOUNDARY, (line,), _pass_key(view)))
            compacted = None
        lines += view_units(view, item)
    read = {block.call_id for block in view.detail.transcript if block.call_id}
    for call in view.detail.tool_calls:
        if call.status in ("pending", "running", "unknown") and call.tool_use_id not in read:
            # Its message was not read: it is too early, or in another program's log.
            item = Item(TranscriptBlock("call", 0, "tool_use", "", "", 0, 0.0))
            state = ItemState(
                view.width, call=call, now=view.now, is_stopped=view.snapshot.state is SessionState.DEAD
            )
            pieces = (("→ ", "tool"), (sanitize(call.name), "tool"), *_outcome(item, state))
            lines.append(
                PageLine(f"call.{sanitize(call.tool_use_id)}", tuple(clip_pieces(pieces, view.width)))
            )
    if not found:
        return [PageLine("empty", (("no matches", "faint"),))]
    return lines or [PageLine("empty", ((view.nothing("messages"), "faint"),))]


def view_units(view: PageContext, item: Item, note: str = "") -> list[Unit]:
    """The units of one item on a page of the agent pane."""
    block, pins = item.block, view.detail.view.pins if view.detail.view is not None else ()
    state = ItemState(
        view.width,
        is_unfolded=block.key in view.expanded,
        call=view.calls.get(block.call_id) if block.call_id else None,
        now=view.now,
        is_stopped=view.snapshot.state is SessionState.DEAD,
        is_pinned=any(seq in pins for seq in item.seqs),
        words=(view.words.casefold(),) if view.words else (),
        note=note,
    )
    return item_units(item, state, view.cache)


def _boundary(view: PageContext) -> int | None:
    """The first message that is verbatim, where some before it are not."""
    current = view.detail.view
    if current is None or not current.observations or current.verbatim_from is None:
        return None
    return current.verbatim_from


def _pass_key(view: PageContext) -> str:
    """The key of the compaction that the context is of; empty where it is not known."""
    version = view.detail.view.version if view.detail.view is not None else 0
    passes = [
        each
        for each in view.snapshot.compactions
        if each.agent_id == view.agent.id and each.view_after is not None
    ]
    found = next((each for each in passes if each.view_after == version), passes[0] if passes else None)
    return f"{PASS_KEY}{found.id}" if found is not None else ""


def items_of(blocks: Iterable[TranscriptBlock]) -> list[Item]:
    """The blocks as items, in order: a result joins its call, where that is among them."""
    found: list[Item] = []
    calls: dict[str, int] = {}
    for block in blocks:
        at = calls.pop(block.call_id, None) if block.kind in ("tool_result", "tool_error") else None
        if at is not None:
            found[at] = Item(found[at].block, block)
            continue
        if block.kind == "tool_use":
            calls[block.call_id] = len(found)
        found.append(Item(block))
    return found


JUMPS: dict[str, tuple[str, Callable[[Item], bool]]] = {
    "error": (
        "failed calls",
        lambda item: any(
            block.kind == "tool_error" for block in (item.block, item.result) if block is not None
        ),
    ),
    "prompt": ("other user messages", lambda item: item.block.kind == "user"),
    "message": ("messages", lambda item: item.block.kind != "live"),
}
"""What can be gone to in a transcript: what it is called, and which items are such."""


def place_of_line(key: str) -> tuple[int, int]:
    """The message and the block that a line of a transcript belongs to; (0, 0) for other lines."""
    seq, _, index = key.partition(".")
    return (int(seq), int(index)) if seq.isdecimal() and index.isdecimal() else (0, 0)


def stepped(items: Sequence[Item], here: tuple[int, int], step: int) -> Item | None:
    """The item before (-1) or after (1) a place, or the nearest from it on (0); after the last one, the first. None where
    there is none."""
    places = [place_of_line(item.block.key) for item in items]
    if step < 0:
        found = next((at for at in reversed(range(len(items))) if places[at] < here), len(items) - 1)
    else:
        found = next(
            (at for at, place in enumerate(places) if place > here or (not step and place == here)), 0
        )
    return items[found] if items else None


def item_units(item: Item, state: ItemState, cache: LineCache) -> list[Unit]:
    """The units of one item: one of a few lines where it is folded, else its head and the parts of its
    text. The cache keeps them."""
    block = item.block
    waits = block.kind == "tool_use" and item.result is None
    is_headless = state.is_proposed and block.kind in ("user", "assistant")
    seen = state if waits else replace(state, now=0.0)  # only the age of a call that goes on changes

    def render() -> list[PageLine]:
        parts = _parts(item)
        body = () if state.is_unfolded else _folded(parts, state)
        head = [] if is_headless else [_head(item, state, parts)]
        rows = [*head, *(marked(row, state.words) for row in body)]
        return [PageLine(f"{block.key}.{at}", row, block.key, _copied(item)) for at, row in enumerate(rows)]

    def make() -> list[Unit]:
        head = Unit(block.key, version, 1 if state.is_unfolded else _estimate(item, state.width), render)
        units = [] if is_headless and state.is_unfolded else [head]
        for number, part in enumerate(_parts(item) if state.is_unfolded else ()):
            units += text_units(
                f"{block.key}/{number}", part.text, part.format, state.width, role=part.role, key=block.key,
                before=part.before, words=state.words,
            )  # fmt: skip
        return units

    version: Hashable = hash((item, seen))
    return cache.units(block.key, version, make)


def block_lines(block: TranscriptBlock, width: int) -> list[PageLine]:
    """The first 400 lines of a block by itself, without its head."""
    found: list[PageLine] = []
    for number, part in enumerate(_parts(Item(block))):
        name, indent = f"{block.key}/{number}", ("    ", "text")
        units = text_units(name, part.text, part.format, width, role=part.role, key=block.key, before=indent)
        for unit in units:
            if len(found) < 400:
                found += unit.render()
    return found[:400]


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    format: str
    role: str = "text"
    folded: int = _FOLDED_TEXT
    before: Piece = ("  ", "text")
    brief: str | None = None
    """What a folded item shows in place of the text: the same without what only programs read."""


def _parts(item: Item) -> list[_Part]:
    """What an item shows below its head."""
    block, result = item.block, item.result
    match block.kind:
        case "tool_use":
            parts = [_call_part(block)]
            if result is not None and not (_is_change(parts[0]) and result.kind == "tool_result"):
                parts.append(_result_part(result, block.arguments))
            elif result is not None:
                # A change that was made: its difference says more than the answer of the tool.
                parts.append(_Part(result.text, "", "muted", 0, ("  ← ", "muted")))
            if _failed_change(item, parts):
                parts.reverse()  # why it failed, then what would have changed
            return [part for part in parts if part.text]
        case "tool_result" | "tool_error":
            return [_result_part(block, {})]
        case "thinking":
            return [_Part(block.text.strip("\n"), "", "thinking", _FOLDED_LINES["thinking"])]
        case _:
            text, folded = block.text.strip("\n"), _FOLDED_LINES.get(block.kind, _LONGEST)
            brief = without_machine_text(text) if block.kind == "user" else None
            return [_Part(text, "markdown", "text", folded, brief=brief)]


def _failed_change(item: Item, parts: Sequence[_Part]) -> bool:
    """Whether it is a change of a file that was not made."""
    failed = item.result is not None and item.result.kind == "tool_error"
    return failed and any(part.format == "diff" for part in parts)


def _is_change(part: _Part) -> bool:
    return part.format == "diff" or part.folded == _FOLDED_LIST


def _call_part(block: TranscriptBlock) -> _Part:
    """The input of a call: a difference, a list of things to do, a command, or names and values."""
    given = block.arguments
    difference = _difference(block.title, given)
    if difference is not None:
        return _Part(difference, "diff", folded=_FOLDED_DIFF)
    checklist = _checklist(given)
    if checklist is not None:
        return _Part(checklist, "markdown", folded=_FOLDED_LIST)
    for name in ("command", "cmd"):
        command = given.get(name)
        if isinstance(command, list) and all(isinstance(word, str) for word in command):
            command = (
                command[-1]
                if command[:2] in (["bash", "-lc"], ["sh", "-c"], ["bash", "-c"])
                else " ".join(command)
            )
        if isinstance(command, str):
            return _Part(command, "bash", folded=0 if "\n" not in command else _FOLDED_TEXT)
    return _Part(block.text, "", "muted", folded=0 if _subject(given) else _FOLDED_TEXT)


def _difference(tool: str, given: Mapping[str, Any]) -> str | None:
    """What an edit changes, or a file that is written; None of any other call."""
    path = next((value for name in _SUBJECTS[:4] if isinstance(value := given.get(name), str)), "")
    changes = given.get("changes")
    if (
        isinstance(changes, list)
        and changes
        and all(isinstance(each, dict) and "diff" in each for each in changes)
    ):
        return "\n".join(f"*** {each.get('path')}\n{each.get('diff')}" for each in changes)
    edits = given.get("edits")
    parts = [each for each in edits if isinstance(each, dict)] if isinstance(edits, list) else [given]
    found = [
        _changed(old, new, path)
        for old, new in map(_old_and_new, parts)
        if isinstance(old, str) and isinstance(new, str)
    ]
    if found and len(found) == len(parts):
        return "\n".join(found)
    content = given.get("content")
    if isinstance(content, str) and path and tool.casefold().startswith(("write", "create")):
        return _changed(None, content, path)
    for name in ("input", "patch", "patchText"):
        patch = given.get(name)
        if isinstance(patch, str) and patch.lstrip().startswith(("*** Begin Patch", "diff --git", "--- ")):
            return patch
    return None


def _old_and_new(edit: Mapping[str, Any]) -> tuple[Any, Any]:
    """The texts of one edit, by the names that the programs give them."""
    return edit.get("old_string", edit.get("oldString")), edit.get("new_string", edit.get("newString"))


def _changed(old: str | None, new: str, path: str) -> str:
    if old is not None and old.count("\n") * new.count("\n") > _MOST_COMPARISONS:
        return "\n".join(
            [*(f"-{line}" for line in old.split("\n")), *(f"+{line}" for line in new.split("\n"))]
        )
    if old is not None and not old.endswith("\n") and not new.endswith("\n"):
        old, new = f"{old}\n", f"{new}\n"  # a part of a file, whose end says nothing
    # The head of the item names the file.
    return unified_diff(old, new, path).partition("\n")[2].partition("\n")[2] or "(no change)"


def _checklist(given: Mapping[str, Any]) -> str | None:
    """A list of things to do, as Markdown; None where the call has none."""
    for name in ("todos", "plan", "items", "tasks"):
        listed = given.get(name)
        if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
            continue
        lines = []
        for each in listed:
            text = next(
                (
                    each[key]
                    for key in ("content", "step", "title", "subject", "text")
                    if isinstance(each.get(key), str)
                ),
                None,
            )
            if text is None:
                return None
            status = each.get("status")
            known = _MARKS.get(status) if isinstance(status, str) else ""
            mark = f"[{known}] " if known else ""
            unknown = f" ({status})" if known is None else ""
            lines.append(f"- {mark}{' '.join(text.split())}{unknown}")
        return "\n".join(lines)
    return None


def _result_part(result: TranscriptBlock, given: Mapping[str, Any]) -> _Part:
    text, before = result.text.strip("\n"), ("  ← ", "muted")
    if result.kind == "tool_error":
        return _Part(text, "", "failed", 4, ("  ✗ ", "failed"))
    if text.startswith(("diff --git ", "--- ")):
        return _Part(text, "diff", folded=_FOLDED_DIFF, before=before)
    if text[:1] in ("{", "[") and len(text) <= 100_000 and (indented := indented_json(text)) is not None:
        return _Part(indented, "json", "muted", 1, before)
    path = next((value for name in _SUBJECTS[:4] if isinstance(value := given.get(name), str)), "")
    if path and is_numbered(text):
        return _Part(text, NUMBERED + language_of(path), "muted", _FOLDED_TEXT, before)
    return _Part(text, "", "muted", _FOLDED_TEXT, before)


def _folded(parts: Iterable[_Part], state: ItemState) -> Iterator[Line]:
    """The first lines of an item, and how many there are more."""
    left, width = 0, state.width
    for part in parts:
        most = min(part.folded, state.folded_lines)
        room = max(4, width - pieces_width((part.before,)))
        if most == 0:
            left += part.text.count("\n")
            continue
        if part.format == "json":
            words = result_words(" ".join(part.text[:2_000].split())[:400])
            yield (part.before, *harmless(((clip(sanitize(words), room), "muted"),)))
            left += part.text.count("\n")
            continue
        text = part.text if part.brief is None else part.brief
        # A line of Markdown may have no row: a fence, or one of two empty lines.
        cut = beginning(text, most, room, most * (2 if part.format == "markdown" else 1))
        rows = render_text(cut, part.format, room, part.role)
        for at, row in enumerate(rows[:most]):
            yield (part.before if at == 0 else (" " * (width - room), "text"), *row)
        left += max(0, len(rows) - most) + (text.count("\n", len(cut)) or len(cut) < len(text))
        if text is not part.text:
            left += max(1, part.text.count("\n") - text.count("\n"))
    if left > 0:
        yield ((f"  … {formatting.plural(left, 'more line')}, Enter unfolds", "faint"),)


def beginning(text: str, rows: int, width: int, lines: int) -> str:
    """As much of a text as fills so many rows, and at most so many lines; cut at the end of a line where there is
    one. Twice as many rows may come of it: lines are cut by their characters."""
    limit, end = min(len(text), rows * (width + 1) * 2), -1
    for _ in range(lines):
        end = text.find("\n", end + 1, limit)
        if end < 0:
            break
    else:
        return text[:end]
    if len(text) <= limit:
        return text
    end = text.rfind("\n", 0, limit)
    return text[: end if end > 0 else limit]


def _estimate(item: Item, width: int) -> int:
    """How many lines a folded item may have."""
    block = item.block
    if block.kind == "tool_use":
        return 2 if item.result is None else 5
    most = _FOLDED_LINES.get(block.kind, _FOLDED_TEXT if block.kind.startswith("tool") else _LONGEST)
    return 1 + min(most + 1, estimate(block.text[: most * width * 2], width))


def _head(item: Item, state: ItemState, parts: Sequence[_Part]) -> Line:
    """One line: what it is, how it went, which message, and when."""
    block = item.block
    glyph, role = LOOKS.get(block.kind, ("·", "muted"))
    end: list[Piece] = [*_outcome(item, state)]
    if block.kind != "live" and not state.is_proposed:
        end.append((f"  #{block.seq}", "faint"))
    if state.note:
        end.append((f"  {state.note}", "retrying"))
    if state.is_pinned:
        end.append(("  ⚑ pinned", "kind_pinned"))
    if block.tokens and not state.is_proposed:
        end.append((f"  {formatting.tokens(block.tokens)} tok", "faint"))
    if not state.is_proposed:
        end.append((f"  {formatting.time_of_day(block.at)}", "faint"))
    title = block.title or block.kind
    if block.kind == "live" and state.is_stopped:
        title = "interrupted: the background process stopped"
    start: list[Piece] = [(f"{glyph} ", role), (title, role)]
    if block.kind == "tool_use":
        subject = " ".join(sanitize(_subject(block.arguments)[:2_000]).split())
        if _failed_change(item, parts):
            end[:0] = [("  not applied", "failed")]
        elif parts and parts[0].format == "diff":
            added, removed = changed_lines("\n".join(parts[0].text.split("\n", 5_000)[:5_000]))
            end[:0] = [(f"  +{added}", "done"), (f" -{removed}", "failed")]
        room = state.width - pieces_width(start) - pieces_width(end) - 2
        if subject and room >= 4:
            start.append((f"  {_clip_path(subject, room)}", "text"))
    return harmless(clip_pieces(marked((*start, *end), state.words), state.width))


def _outcome(item: Item, state: ItemState) -> Iterator[Piece]:
    """How a call went, and how long it took."""
    block, result, call = item.block, item.result, state.call
    if block.kind != "tool_use":
        return
    status = call.status if call is not None else ""
    if result is None and not status:
        return
    took = ""
    if (
        call is not None
        and call.started_at is not None
        and (call.ended_at is not None or status == "running")
    ):
        took = formatting.duration((call.ended_at or state.now) - call.started_at)
    elif result is not None and result.at > block.at:
        took = formatting.duration(result.at - block.at)
    if result is not None and status in ("", "done"):
        # Without a row, and against one that says `done`, the result itself tells how the call went.
        status = "error" if result.kind == "tool_error" else "done"
    if state.is_stopped and status == "running":
        yield ("  ✗ interrupted: the background process stopped", "dead")
        return
    glyph, word = call_words(status, began=call is not None and call.started_at is not None)
    yield (
        " ".join(filter(None, (f"  {glyph}", sanitize(word), took))),
        _CALL_ROLES.get(status, "waiting"),
    )


def _clip_path(text: str, cells: int) -> str:
    """As `clip`, but of a path the end, which says more."""
    if not text.startswith("/") or " " in text or not text.isascii() or len(text) <= cells:
        return clip(text, cells)
    return "…" + text[len(text) - cells + 1 :]


def _subject(given: Mapping[str, Any]) -> str:
    for name in _SUBJECTS:
        value = given.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return " ".join(value)
    return ""


def _copied(item: Item) -> str:
    return item.block.text if item.result is None else f"{item.block.text}\n\n{item.result.text}"
