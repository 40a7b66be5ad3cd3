"""Messages as the Messages API takes them: first role user, every call answered, every result asked for.

A `Rendering` is fed messages one by one and keeps its tokens running, so that adding one costs the same
however long the history is. What was stored is never changed: repairs exist in the rendering only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchkeeper.memory.content import blocks_of, result_text
from watchkeeper.memory.frozen import FrozenDict, frozen
from watchkeeper.memory.tokens import MESSAGE_OVERHEAD, TokenCounter, compact_json, count_block, count_message
from watchkeeper.records.memory import Block, Content

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
        """Nothing follows: calls still open get an error result, so that somebody may speak next."""
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
