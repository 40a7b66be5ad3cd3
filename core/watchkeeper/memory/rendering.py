"""Messages as the Messages API takes them: first role user, every call answered, every result asked for.

A `Rendering` takes messages one by one and keeps a running count of their tokens, so that adding one costs
the same however long the history is. Stored messages never change: repairs exist in the rendering only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from watchkeeper.memory.content import FrozenDict, blocks_of, frozen, leaves, result_text
from watchkeeper.memory.tokens import MESSAGE_OVERHEAD, TokenCounter, compact_json, count_block, count_message
from watchkeeper.records.messages import Block, Content, Elision, Message

# --- Shortening a message that is too large for its window --------------------------------------------------
#
# What remains is the head, the tail and a pointer to the whole. Head and tail are measured in characters over
# the message's texts laid end to end: first its own words (text blocks), then tool results and the string
# leaves of tool inputs. So an agent's words are kept longer than the data it passed to a tool. Calls and
# results keep their ids, and thinking keeps every byte (its signature covers it). A line replaces each
# picture and document.

GAP = "[…]"
"""Marks each omission after the first, which names the pointer."""

MANY_TOKENS = 20_000
"""A message above this takes long to count: its shortest form is tried first."""

HEAD_SHARE = 2 / 3
"""The beginning takes this share of what is kept of a long text."""


def pointer_of(agent_id: str, first: int, last: int | None = None) -> str:
    """`message://agent/12` or `message://agent/12-40`."""
    return (
        f"message://{agent_id}/{first}"
        if last is None or last == first
        else f"message://{agent_id}/{first}-{last}"
    )


def elide(message: Message, agent_id: str, budget: int, counter: TokenCounter) -> Elision:
    """The longest form of `message` of at most `budget` tokens; if no form is that small, its shortest
    form."""
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


NO_RESULT = "[no result: the call was interrupted, or it has not ended]"
EMPTY = "(empty)"
START = "(start)"
MOST_BREAKPOINTS = 4
"""Blocks with `cache_control` that the Messages API takes in one request."""


class Rendering:
    """A context under construction. `items` are the messages, frozen; `tokens` their count by
    `count_message`."""

    def __init__(self, counter: TokenCounter) -> None:
        self.items: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        """Tokens of each item."""
        self.tokens = 0
        self._counter = counter
        self._open: dict[str, None] = {}
        """Calls of the last assistant message that have no result yet, in order."""
        self._answers: list[Block] | None = None
        """Results in the last item, while it can still take more."""
        self._beside: list[Block] = []
        """Other blocks of that item."""
        self._breakpoints: list[tuple[int, int]] = []
        """Item and block of each cache breakpoint."""
        self._used: set[str] = set()
        """Ids of all calls shown: the API refuses one that comes twice, as from servers that always say
        `call_0`."""
        self._renamed: dict[str, str] = {}
        """Ids of open calls that had to be given another one."""

    @property
    def unstable(self) -> int:
        """How many items at the end the next message may change (0 or 1)."""
        return 1 if self._answers is not None and self._open else 0

    def shared_with(self, other: Rendering) -> int:
        """Tokens of the leading items that both have alike: what a provider's prompt cache can still
        serve."""
        shared = 0
        for mine, its, size in zip(self.items, other.items, self.sizes, strict=False):
            if mine != its:
                break
            shared += size
        return shared

    def push(self, role: str, content: Content, tokens: int | None = None) -> None:
        """Add a message; `tokens` where its count is known already."""
        if role == "assistant":
            self._push_assistant(content, tokens)
        else:
            self._push_user(content, tokens)

    def close(self) -> None:
        """End the rendering: each open call gets an error result, so that the next message may be a
        user's."""
        self._close()

    def _append(self, role: str, content: Content, tokens: int) -> None:
        self.items.append(FrozenDict(role=role, content=frozen(content)))
        if not isinstance(content, str):
            place = len(self.items) - 1
            self._breakpoints += [
                (place, index) for index, block in enumerate(content) if "cache_control" in block
            ]
            while len(self._breakpoints) > MOST_BREAKPOINTS:
                self._unmark(*self._breakpoints.pop(0))
        self.sizes.append(tokens)
        self.tokens += tokens

    def _push_assistant(self, content: Content, tokens: int | None) -> None:
        if not self.items:
            self._append("user", START, count_message("user", START, self._counter))
        self._close()
        kept, changed = _assistant_blocks(content)
        kept, changed = self._unique(kept, changed)
        shown = kept if changed else content
        self._append("assistant", shown, self._count(shown, None if changed else tokens))
        self._open = {str(block["id"]): None for block in kept if block.get("type") == "tool_use"}

    def _unique(self, blocks: list[Block], changed: bool) -> tuple[list[Block], bool]:
        """The blocks with an id of its own for each call, and whether anything was changed."""
        self._renamed = {}
        for place, block in enumerate(blocks):
            if block.get("type") != "tool_use":
                continue
            given = str(block["id"])
            if given in self._used:
                number = 2
                while f"{given}-{number}" in self._used:
                    number += 1
                self._renamed[given] = f"{given}-{number}"
                if not changed:
                    blocks, changed = list(blocks), True
                blocks[place] = {**block, "id": self._renamed[given]}
            self._used.add(str(blocks[place]["id"]))
        return blocks, changed

    def _push_user(self, content: Content, tokens: int | None) -> None:
        results, beside, changed = self._user_blocks(content)
        if results and self._answers is not None:
            self._answers += results
            self._beside += beside
            self._answered(results)
            self._show_answers(replace=True)
            return
        if not results:
            self._close()
            shown: Content = beside if changed else content
            self._append("user", shown, self._count(shown, None if changed else tokens))
            return
        self._answered(results)
        self._answers, self._beside = results, beside
        whole = not self._open and not changed
        if whole:
            self._append("user", content, self._count(content, tokens))
            self._answers = None
        else:
            self._show_answers(replace=False)

    def _unmark(self, place: int, index: int) -> None:
        """Take an old cache breakpoint out of what is shown; what is stored keeps it."""
        content = list(self.items[place]["content"])
        content[index] = {key: value for key, value in content[index].items() if key != "cache_control"}
        self.items[place] = FrozenDict(self.items[place], content=frozen(content))

    def _answered(self, results: Iterable[Block]) -> None:
        for block in results:
            self._open.pop(str(block.get("tool_use_id")), None)

    def _show_answers(self, *, replace: bool) -> None:
        assert self._answers is not None
        content = [*self._answers, *(_no_result(call) for call in self._open), *self._beside]
        if replace:
            self.tokens -= self.sizes.pop()
            self.items.pop()
            self._breakpoints = [mark for mark in self._breakpoints if mark[0] < len(self.items)]
        self._append("user", content, self._count(content, None))
        if not self._open:
            self._answers = None

    def _close(self) -> None:
        """A message that is no result comes next: calls still open get an error result."""
        if self._open and self._answers is None:
            content: list[Block] = [_no_result(call) for call in self._open]
            self._append("user", content, self._count(content, None))
        self._open, self._answers, self._beside = {}, None, []

    def _user_blocks(self, content: Content) -> tuple[list[Block], list[Block], bool]:
        """Results of open calls, other blocks, and whether anything had to be repaired or moved."""
        if isinstance(content, str):
            return ([], blocks_of(content), False) if content.strip() else ([], blocks_of(EMPTY), True)
        results: list[Block] = []
        beside: list[Block] = []
        changed = False
        seen: set[str] = set()
        for block in content:
            kind = block.get("type")
            call = str(block.get("tool_use_id", ""))
            if kind == "tool_result" and call in self._renamed:
                call = self._renamed[call]
                block = {**block, "tool_use_id": call}
                changed = True
            if kind == "tool_result" and call in self._open and call not in seen:
                seen.add(call)
                whole, block = block, _full(block)
                results.append(block)
                changed = changed or bool(beside) or block is not whole  # the API wants results first
            elif kind == "tool_result":
                beside.append({"type": "text", "text": f"[result of call {call}]\n{result_text(block)}"})
                changed = True
            elif kind in ("tool_use", "thinking", "redacted_thinking"):
                beside.append({"type": "text", "text": f"[{kind}] {compact_json(block)}"})
                changed = True
            elif _blank(block):
                changed = True
            elif kind == "text" and not isinstance(block["text"], str):
                beside.append({**block, "text": str(block["text"])})
                changed = True
            else:
                beside.append(block)
        if not results and not beside:
            return [], blocks_of(EMPTY), True
        return results, beside, changed

    def _count(self, content: Content, tokens: int | None) -> int:
        if tokens is not None:
            return tokens
        if isinstance(content, str):
            return count_message("user", content, self._counter)
        return MESSAGE_OVERHEAD + sum(count_block(block, self._counter) for block in content)


def _assistant_blocks(content: Content) -> tuple[list[Block], bool]:
    if isinstance(content, str):
        return (blocks_of(content), False) if content.strip() else (blocks_of(EMPTY), True)
    kept: list[Block] = []
    changed = False
    seen: set[str] = set()
    for block in content:
        kind = block.get("type")
        if kind == "tool_use":
            call = str(block.get("id", ""))
            if not call or call in seen:
                kept.append(
                    {"type": "text", "text": f"[call without an id of its own] {compact_json(block)}"}
                )
                changed = True
                continue
            seen.add(call)
            given = block.get("input")
            if not isinstance(given, dict):  # broken arguments, as some servers send them
                block = {**block, "input": {} if given is None else {"value": given}}
                changed = True
            kept.append(block)
        elif kind == "tool_result":
            kept.append({"type": "text", "text": f"[result] {result_text(block)}"})
            changed = True
        elif _blank(block):
            changed = True
        elif kind == "text" and not isinstance(block["text"], str):
            kept.append({**block, "text": str(block["text"])})
            changed = True
        else:
            kept.append(block)
    return (kept, changed) if kept else (blocks_of(EMPTY), True)


def _blank(block: Block) -> bool:
    """The API refuses text without a visible character."""
    if block.get("type") != "text":
        return False
    text = block.get("text")
    return text is None or not str(text).strip()


def _full(result: Block) -> Block:
    """A tool result whose list holds nothing but what the API takes: no blank text, and no text that is
    none."""
    inner = result.get("content")
    if not isinstance(inner, list) or not any(isinstance(part, dict) and _odd_text(part) for part in inner):
        return result
    parts = [part for part in inner if not (isinstance(part, dict) and _blank(part))]
    return {
        **result,
        "content": [{**part, "text": str(part["text"])} if _odd_text(part) else part for part in parts],
    }


def _odd_text(block: Block) -> bool:
    return _blank(block) or (block.get("type") == "text" and not isinstance(block.get("text"), str))


def _no_result(call: str) -> Block:
    return {"type": "tool_result", "tool_use_id": call, "content": NO_RESULT, "is_error": True}
