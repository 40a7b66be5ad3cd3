"""What a digest would say of one message, picked out once, when the message is added.

A digest is made in the very turn in which a context overflows. Reading all that it covers there would cost
that turn milliseconds for each ten thousand tokens; read when they arrive, messages cost each turn the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from watchkeeper.memory.content import blocks_of, leaves, result_text
from watchkeeper.memory.identifiers import clipped, error_lines, paths_in
from watchkeeper.memory.tokens import plain
from watchkeeper.records.memory import Message

LINE_CHARACTERS = 200
TEXT_CHARACTERS = 2_000
"""Of each text this much is read from its beginning, and as much from its end."""
TODO = "to do: "

_DECIDED = re.compile(
    r"\b(?:decid|decision|chose|choosing|instead|because|conclu|agreed|will use|must|never|always)\w*", re.I
)
_OPEN = re.compile(
    r"^\s*(?:[-*]\s*\[ \]|\d+\.\s*\[ \]|TODO\b|FIXME\b|Next\b|Remaining\b|Still to do\b|Open\b)", re.I
)
_WORD = re.compile(r"\w{4,}")
_FINISHED = frozenset({"completed", "done", "cancelled", "dropped"})
_NAMES_KEPT = 2_000


class Note(NamedTuple):
    """One line of a digest. `text` None: the to-do list of before is void, a newer one follows."""

    section: str
    text: str | None


class Notebook:
    """The notes of the messages that a context shows; made once for each, in O(1) of the history's length."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[Note, ...]] = {}
        self._names: dict[str, str] = {}

    def of(self, message: Message) -> tuple[Note, ...]:
        """The notes of a message. Those of a tool result name the tool, if its call was read before it."""
        known = self._notes.get(message.seq)
        if known is None:
            known = self._notes[message.seq] = tuple(_read(message, self._names))
            while len(self._names) > _NAMES_KEPT:
                del self._names[next(iter(self._names))]
        return known

    def forget(self, before: int) -> None:
        """Drop the notes of messages with a lower number: a digest covers them (and can be made again
        without)."""
        while self._notes and (first := next(iter(self._notes))) < before:
            del self._notes[first]


def wanted_words(instructions: str | None) -> frozenset[str]:
    """The words of instructions to keep something, by which its lines are found."""
    return frozenset(word.lower() for word in _WORD.findall(instructions or ""))


def wanted_lines(message: Message, wanted: frozenset[str]) -> Iterator[str]:
    """Lines of a message's text and results that hold one of the words."""
    for block in blocks_of(message.content):
        kind = block.get("type")
        if kind not in ("text", "tool_result"):
            continue
        text = clipped(str(block.get("text", "")) if kind == "text" else result_text(block), TEXT_CHARACTERS)
        for line in text.splitlines()[:200]:
            if wanted.intersection(_WORD.findall(line.lower())):
                yield line


def one_line(text: str, width: int) -> str:
    """The beginning of `text` on one line of at most `width` characters."""
    line = " ".join(text[: 4 * width].split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def _read(message: Message, names: dict[str, str]) -> Iterator[Note]:
    for block in blocks_of(message.content):
        kind = block.get("type")
        if kind == "text":
            yield from _read_text(message.role, clipped(str(block.get("text", "")), TEXT_CHARACTERS))
        elif kind == "tool_use":
            names[str(block.get("id", ""))] = str(block.get("name", ""))
            yield from _read_todos(block.get("input"))
            for leaf in leaves(block.get("input")):
                if len(leaf) <= 300:
                    yield from (_note("Files", path) for path in paths_in(leaf)[:3])
        elif kind == "tool_result":
            name = names.get(str(block.get("tool_use_id", "")), "tool")
            text = clipped(result_text(block), TEXT_CHARACTERS)
            if block.get("is_error"):
                yield _note("Errors", f"{name}: {text}")
            else:
                yield from (_note("Errors", line) for line in error_lines(text)[:2])
            yield _note("Last results", f"{name}: {one_line(text, 120)}")


def _read_todos(given: Any) -> Iterator[Note]:
    """A to-do list that an agent keeps by a tool (`TodoWrite`, `update_plan`): the newest replaces those
    before."""
    if not isinstance(given, dict):
        return
    items = given.get("todos") or given.get("plan")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return
    yield Note("Open tasks", None)
    for item in items[:30]:
        text = item.get("content") or item.get("step") or item.get("title")
        if text and str(item.get("status", "")).lower() not in _FINISHED:
            yield _note("Open tasks", f"{TODO}{text}")


def _read_text(role: str, text: str) -> Iterator[Note]:
    if role == "user":
        yield _note("Goals", text)
    else:
        yield _note("Progress", text)
        decided = 0
        for line in text.splitlines():
            if decided < 3 and len(line) < 400 and _DECIDED.search(line):
                yield _note("Decisions", line)
                decided += 1
    for line in text.splitlines()[:200]:
        if _OPEN.match(line):
            yield _note("Open tasks", line.strip().removeprefix("- [ ]").strip())
    yield from (_note("Errors", line) for line in error_lines(text)[:2])
    yield from (_note("Files", path) for path in paths_in(text)[:8])


def _note(section: str, text: str) -> Note:
    return Note(section, plain(one_line(text, LINE_CHARACTERS)))
