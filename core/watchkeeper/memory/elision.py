"""Showing a message too large for its window: head, tail, and a pointer to the whole.

Head and tail are measured in characters over the message's texts laid end to end: first its own words (text
blocks), then tool results and the string leaves of tool inputs. So an agent's words outlast what it passed to
a tool. Calls and results keep their ids, thinking keeps every byte (its signature covers it); pictures and
documents become a line that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchkeeper.memory.content import leaves, result_text
from watchkeeper.memory.tokens import TokenCounter, count_message
from watchkeeper.records.memory import Block, Content, Elision, Message

GAP = "[…]"
"""Stands where text was left out, after the first gap has named the pointer."""

MANY_TOKENS = 20_000
"""A message above this takes long to count: its shortest form is tried first."""

HEAD_SHARE = 2 / 3
"""Of what is kept of a long text, this share is its beginning."""


def pointer_of(agent_id: str, first: int, last: int | None = None) -> str:
    """`message://agent/12` or `message://agent/12-40`."""
    return (
        f"message://{agent_id}/{first}"
        if last is None or last == first
        else f"message://{agent_id}/{first}-{last}"
    )


def elide(message: Message, agent_id: str, budget: int, counter: TokenCounter) -> Elision:
    """The longest form of `message` of at most `budget` tokens, or its shortest form where none is that
    small."""
    pointer = pointer_of(agent_id, message.seq)
    words, others = _lengths(message.content)
    total = words + others
    # Characters in proportion to the tokens that are left; then less and less until it fits.
    keep = int(total * min(1.0, budget / max(1, message.tokens)) * 0.95)
    if others and message.tokens > MANY_TOKENS:
        # What cannot be shortened (the frame of a call's input) may alone be too much: then no other form is
        # tried.
        bare = count_message(message.role, shortened(message.content, 0, 0, pointer), counter)
        if bare >= budget:
            return Elision(message.seq, 0, 0, pointer, bare)
    while True:
        whole_words = words if others and keep > words else 0
        head = whole_words + int((keep - whole_words) * HEAD_SHARE)
        tail = keep - head
        tokens = count_message(message.role, shortened(message.content, head, tail, pointer), counter)
        if tokens <= budget or keep == 0:
            return Elision(message.seq, head, tail, pointer, tokens)
        keep = 0 if keep < 32 else int(keep * min(0.8, budget / tokens))


def left_out(message: Message, agent_id: str) -> Elision:
    """A pinned message that has no room at all: the observations, which cover it, name its pointer."""
    return Elision(message.seq, 0, 0, pointer_of(agent_id, message.seq), 0)


def apply(content: Content, elision: Elision) -> Content:
    """`content` as `elision` shows it."""
    return shortened(content, elision.head_chars, elision.tail_chars, elision.pointer)


def shortened(content: Content, head: int, tail: int, pointer: str) -> Content:
    """`content` with the middle of its texts left out (see the module's docstring)."""
    words, others = _lengths(content)
    cutter = _Cutter(words, words + others, head, tail, pointer)
    if isinstance(content, str):
        return cutter.cut_words(content) or cutter.name_pointer()
    shown = [block for block in (_block(block, cutter) for block in content) if block is not None]
    if not cutter.named:
        shown.append({"type": "text", "text": cutter.name_pointer()})
    return shown


def _lengths(content: Content) -> tuple[int, int]:
    """Characters of text blocks, and of everything else that can be shortened."""
    if isinstance(content, str):
        return len(content), 0
    words = others = 0
    for block in content:
        kind = block.get("type")
        if kind == "text":
            words += len(str(block.get("text", "")))
        elif kind == "tool_use":
            others += sum(len(leaf) for leaf in leaves(block.get("input")))
        elif kind == "tool_result":
            others += len(result_text(block))
    return words, others


def _block(block: Block, cutter: _Cutter) -> Block | None:
    kind = block.get("type")
    if kind == "text":
        text = cutter.cut_words(str(block.get("text", "")))
        return {**block, "text": text} if text else None
    if kind == "tool_use":
        return {**block, "input": _input(block.get("input", {}), cutter)}
    if kind == "tool_result":
        return {**block, "content": cutter.cut(result_text(block)) or GAP}
    if kind in ("image", "document"):
        return {"type": "text", "text": f"[{kind} left out]"}
    return block


def _input(value: Any, cutter: _Cutter) -> Any:
    if isinstance(value, str):
        shown = cutter.cut(value)
        if shown:
            return shown
        # A short value (a path, a flag) costs no more than the mark of its absence.
        return value if len(value) <= len(GAP) else GAP
    if isinstance(value, Mapping):
        return {key: _input(item, cutter) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_input(item, cutter) for item in value]
    return value


class _Cutter:
    """Walks over texts laid end to end, and keeps what lies in the head or in the tail."""

    def __init__(self, words: int, total: int, head: int, tail: int, pointer: str) -> None:
        self._words_place = 0
        self._place = words
        self._head = head
        self._tail_from = max(head, total - tail)
        self._left_out = self._tail_from - head
        self._pointer = pointer
        self.named = False

    def name_pointer(self) -> str:
        self.named = True
        return f"[… {self._left_out} characters left out, whole: {self._pointer} …]"

    def cut_words(self, text: str) -> str:
        """The next text block, as it is shown."""
        start = self._words_place
        self._words_place += len(text)
        return self._cut(text, start)

    def cut(self, text: str) -> str:
        """The next other text, as it is shown."""
        start = self._place
        self._place += len(text)
        return self._cut(text, start)

    def _cut(self, text: str, start: int) -> str:
        end = start + len(text)
        if end <= self._head or start >= self._tail_from:
            return text
        before = text[: max(0, self._head - start)]
        after = text[max(0, self._tail_from - start) :] if end > self._tail_from else ""
        if self.named:
            return f"{before}{GAP}{after}" if before or after else ""
        return f"{before}{self.name_pointer()}{after}"
