"""Messages as the Messages API takes them: first role user, every call answered, every result asked for.

A `Rendering` takes messages one by one and keeps a running count of their tokens, so that adding one costs
the same however long the history is. Stored messages never change: repairs exist in the rendering only.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping
from typing import Any

from watchkeeper.memory.content import (
    KNOWN_BLOCKS,
    THINKING,
    FrozenDict,
    after_compaction,
    blocks_of,
    compacted_text,
    droppable_thinking,
    foreign_calls,
    foreign_results,
    frozen,
    result_text,
    texts_of,
    unknown_text,
)
from watchkeeper.memory.tokens import COMPACTION, TokenCounter, compact_json, count_block, count_message
from watchkeeper.records.messages import Block, Content, Elision, Message

# --- Shortening a message that is too large for its window --------------------------------------------------
#
# What remains is the head, the tail and a pointer to the whole. Head and tail are measured in characters over
# the message's texts laid end to end: first its own words (text blocks), then tool results and the string
# leaves of tool inputs. So an agent's words are kept longer than the data it passed to a tool. Calls and
# results keep their ids. Thinking keeps every byte (its signature covers it); where the provider does not need
# it back (`droppable_thinking`), it is left out first. A line replaces each picture and document. Blocks of
# other types become their texts: a call of a server tool and its result together, as they stand in one message.
# In the shortest form, a call's input that still has a large frame is left out as a whole.

GAP = "[…]"
"""Marks each omission after the first, which names the pointer."""

FRAME_CHARACTERS = 400
"""JSON of an input that may stand in the shortest form of a call: many keys or numbers are no text to shorten."""

POINTER_TOKENS = 60
"""What the words around a pointer may take, and the pointer."""

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
    thinking = sum(count_block(block, counter) for block in droppable_thinking(message.content))
    # Characters in proportion to the tokens that are left; then less and less until it fits.
    keep = int(total * min(1.0, budget / max(1, message.tokens - thinking)) * 0.95)
    if message.tokens - thinking + POINTER_TOKENS < budget < message.tokens:
        keep = total
    if others and message.tokens > MANY_TOKENS:
        # What cannot be shortened (the frame of a call's input) may alone be too much: then no other form is
        # tried.
        bare = count_message(message.role, shortened(message.content, 0, 0, pointer), counter)
        if bare >= budget:
            return Elision(message.seq, 0, 0, pointer, bare)
    while True:
        whole_words = words if others and keep > words else 0
        head = keep if keep == total else whole_words + int((keep - whole_words) * HEAD_SHARE)
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
    """`content` with the middle of its texts left out (see above)."""
    words, others = _lengths(content)
    cutter = _Cutter(words, words + others, head, tail, pointer)
    if isinstance(content, str):
        return cutter.cut(content, own=True) or cutter.name_pointer()
    whole = foreign_calls(content) & foreign_results(content)
    left_out = THINKING if droppable_thinking(content) else ()
    kept = (block for block in content if block.get("type") not in left_out)
    shown = [block for block in (_block(block, cutter, whole) for block in kept) if block is not None]
    if not cutter.named:
        shown.append({"type": "text", "text": cutter.name_pointer()})
    return shown


def _lengths(content: Content) -> tuple[int, int]:
    """Characters of text blocks, and of everything else that can be shortened."""
    if isinstance(content, str):
        return len(content), 0
    words = sum(len(str(block.get("text", ""))) for block in content if block.get("type") == "text")
    return words, sum(map(len, texts_of(content))) - words


def _block(block: Block, cutter: _Cutter, whole: Container[str]) -> Block | None:
    kind = block.get("type")
    if kind == "text":
        text = cutter.cut(str(block.get("text", "")), own=True)
        return {**block, "text": text} if text else None
    if kind == "tool_use":
        given = _input(block.get("input", {}), cutter)
        if cutter.empty and len(compact_json(given)) > FRAME_CHARACTERS:
            given = {"input": GAP}
        return {**block, "input": given}
    if kind == "tool_result":
        return {**block, "content": cutter.cut(result_text(block)) or GAP}
    if kind in ("image", "document"):
        return {"type": "text", "text": f"[{kind} left out]"}
    if kind == COMPACTION:
        return None
    if kind not in KNOWN_BLOCKS:
        return _foreign(block, cutter.cut(unknown_text(block)), cutter, whole)
    return block


def _foreign(block: Block, text: str, cutter: _Cutter, whole: Container[str]) -> Block | None:
    """A block of a type without rules here as its text; the frame stays where another message holds its partner.
    `whole`: ids of the calls that stand in one message with their results."""
    kind, given, asked = str(block.get("type"))[:64], block.get("id"), block.get("tool_use_id")
    if asked is not None and asked not in whole:
        return {"type": kind, "tool_use_id": asked, "content": [{"type": "text", "text": text or GAP}]}
    if given is not None and kind.endswith("tool_use") and given not in whole:
        frame: Block = {key: block[key] for key in ("type", "id", "name", "server_name") if key in block}
        return {**frame, "input": {"input": text or GAP}}
    if cutter.empty and not text:
        return None
    return {"type": "text", "text": f"[{kind}] {text}".strip()}


def _input(value: Any, cutter: _Cutter) -> Any:
    if isinstance(value, str):
        # A short value (a path, a flag) costs no more than the mark of its absence.
        return cutter.cut(value) or (value if len(value) <= len(GAP) else GAP)
    if isinstance(value, Mapping):
        return {key: _input(item, cutter) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_input(item, cutter) for item in value]
    return value


class _Cutter:
    """Walks over texts laid end to end, and keeps what lies in the head or in the tail."""

    def __init__(self, words: int, total: int, head: int, tail: int, pointer: str) -> None:
        self._places = {True: 0, False: words}
        """Where the next of the message's own words, and the next other text, begins."""
        self._head = head
        self._tail_from = max(head, total - tail)
        self._pointer = pointer
        self.named = False
        self.empty = head + tail == 0
        """Whether this is the shortest form."""

    def name_pointer(self) -> str:
        self.named = True
        count = self._tail_from - self._head
        return f"[… {f'{count} characters ' if count else ''}left out, full text: {self._pointer} …]"

    def cut(self, text: str, *, own: bool = False) -> str:
        """The next text, as it is shown. `own`: it is a text block."""
        start = self._places[own]
        end = self._places[own] = start + len(text)
        if end <= self._head or start >= self._tail_from:
            return text
        before = text[: max(0, self._head - start)]
        after = text[max(0, self._tail_from - start) :] if end > self._tail_from else ""
        if self.named:
            return f"{before}{GAP}{after}" if before or after else ""
        return f"{before}{self.name_pointer()}{after}"


NO_RESULT = "[no result: the call was interrupted or has not ended]"
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
        return sum(self.sizes[: self.alike(other)])

    def alike(self, other: Rendering) -> int:
        """How many leading items both have alike."""
        same = 0
        for mine, its in zip(self.items, other.items, strict=False):
            if mine != its:
                break
            same += 1
        return same

    def push(self, role: str, content: Content, tokens: int | None = None) -> None:
        """Add a message; `tokens` where its count is known already."""
        if role == "assistant":
            self._push_assistant(content, tokens)
        else:
            self._push_user(content, tokens)

    def close(self) -> None:
        """A message that is no result comes next, or none at all: calls still open get an error result."""
        if self._open and self._answers is None:
            self._append("user", [_no_result(call) for call in self._open])
        self._open, self._answers, self._beside = {}, None, []

    def _push_assistant(self, content: Content, tokens: int | None) -> None:
        kept: list[Block] = []
        if not self.items:
            # A history may begin with what a provider made of an earlier one.
            text = compacted_text("assistant", content)
            kept = [_text(text)] if text else []
            self._append("user", START)
        self.close()
        self._renamed = {}
        seen: set[str] = set()
        for block in after_compaction(content):
            kind = block.get("type")
            if kind == "tool_use":
                kept.append(self._call(block, seen))
            elif kind == "tool_result":
                kept.append(_text(f"[result] {result_text(block)}"))
            else:
                kept += _sayable(block)
        self._append_shown("assistant", kept, content, tokens)
        self._open = {str(block["id"]): None for block in kept if block.get("type") == "tool_use"}

    def _call(self, block: Block, seen: set[str]) -> Block:
        """A call as the API takes it: with an id that no other call has, and a dict of arguments."""
        given = name = str(block.get("id", ""))
        if not given or given in seen:
            return _text(f"[call without its own id] {compact_json(block)}")
        seen.add(given)
        arguments = block.get("input")
        if not isinstance(arguments, dict):  # broken arguments, as some servers send them
            block = {**block, "input": {} if arguments is None else {"value": arguments}}
        number = 2
        while name in self._used:
            name = f"{given}-{number}"
            number += 1
        self._used.add(name)
        if name != given:
            self._renamed[given] = name
            block = {**block, "id": name}
        return block

    def _push_user(self, content: Content, tokens: int | None) -> None:
        results: list[Block] = []
        beside: list[Block] = []
        for block in blocks_of(content):
            kind = block.get("type")
            if kind == "tool_result":
                call = str(block.get("tool_use_id", ""))
                call = self._renamed.get(call, call)
                if call in self._open:
                    del self._open[call]
                    results.append(_full(block, call))
                else:
                    beside.append(_text(f"[result of call {call}]\n{result_text(block)}"))
            elif kind in ("tool_use", "thinking", "redacted_thinking"):
                beside.append(_text(f"[{kind}] {compact_json(block)}"))
            else:
                beside += _sayable(block)
        if not results:
            self.close()
            self._append_shown("user", beside, content, tokens)
        elif self._answers is not None:
            self._answers += results
            self._beside += beside
            self.tokens -= self.sizes.pop()
            self.items.pop()
            self._breakpoints = [mark for mark in self._breakpoints if mark[0] < len(self.items)]
            self._show_answers()
        elif self._open:
            self._answers, self._beside = results, beside
            self._show_answers()
        else:
            self._append_shown("user", [*results, *beside], content, tokens)  # the API wants results first

    def _show_answers(self) -> None:
        """The results that are there, and an error for each open call until its own comes."""
        answers = self._answers or []
        self._append("user", [*answers, *(_no_result(call) for call in self._open), *self._beside])
        if not self._open:
            self._answers = None

    def _append_shown(self, role: str, blocks: list[Block], content: Content, tokens: int | None) -> None:
        """Add `blocks`, or `content` as it is where they are the same."""
        if _same(blocks, content):
            self._append(role, content, tokens)
        else:
            self._append(role, blocks or blocks_of(EMPTY))

    def _append(self, role: str, content: Content, tokens: int | None = None) -> None:
        tokens = count_message(role, content, self._counter) if tokens is None else tokens
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

    def _unmark(self, place: int, index: int) -> None:
        """Take an old cache breakpoint out of what is shown; what is stored keeps it."""
        content = list(self.items[place]["content"])
        content[index] = {key: value for key, value in content[index].items() if key != "cache_control"}
        self.items[place] = FrozenDict(self.items[place], content=frozen(content))


def _same(blocks: list[Block], content: Content) -> bool:
    """Whether nothing of a content had to be repaired, moved or left out."""
    if isinstance(content, str):
        return bool(blocks)
    return bool(blocks) and len(blocks) == len(content) and all(map(operator.is_, blocks, content))


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _sayable(block: Block) -> list[Block]:
    """A block with text as text, or nothing: the API refuses text without a visible character."""
    if block.get("type") != "text":
        return [block]
    text = block.get("text")
    if text is None or not str(text).strip():
        return []
    return [block if isinstance(text, str) else {**block, "text": str(text)}]


def _full(result: Block, call: str) -> Block:
    """A tool result for `call` whose list holds nothing but what the API takes."""
    if str(result.get("tool_use_id", "")) != call:
        result = {**result, "tool_use_id": call}
    inner = result.get("content")
    if not isinstance(inner, list):
        return result
    parts = [shown for part in inner for shown in (_sayable(part) if isinstance(part, dict) else [part])]
    return result if not inner or _same(parts, inner) else {**result, "content": parts}


def _no_result(call: str) -> Block:
    return {"type": "tool_result", "tool_use_id": call, "content": NO_RESULT, "is_error": True}
