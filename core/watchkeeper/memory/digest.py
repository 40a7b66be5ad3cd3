"""The deterministic digest: what stands in a context when no model has summarised in time.

It keeps goals, decisions, open tasks, files, errors and last results, each line with the number of the message that
it rests on, and a pointer to the whole. An earlier digest is folded into the new one by its lines, so that the cost
is that of the messages newly covered, and the size is bounded by a budget in tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.memory.content import blocks_of, leaves, result_text
from watchkeeper.memory.elision import pointer_of
from watchkeeper.memory.identifiers import clipped, error_lines, paths_in
from watchkeeper.memory.tokens import TokenCounter, plain
from watchkeeper.records.memory import Message, Observation

LINE_CHARACTERS = 200
SECTIONS = ("Asked to keep", "Goals", "Open tasks", "Decisions", "Errors", "Files", "Last results", "Progress", "Earlier")
CANDIDATES_PER_SECTION = 80
TITLE = "Digest, made without a model. Whole text: "

_DECIDED = re.compile(r"\b(?:decid|decision|chose|choosing|instead|because|conclu|agreed|will use|must|never|always)\w*", re.I)
_OPEN = re.compile(r"^\s*(?:[-*]\s*\[ \]|\d+\.\s*\[ \]|TODO\b|FIXME\b|Next\b|Remaining\b|Still to do\b|Open\b)", re.I)
_CITED = re.compile(r"\(#(\d+)\)$")
_SHRINK = 0.75
_TODO = "to do: "
_FINISHED = frozenset({"completed", "done", "cancelled", "dropped"})


@dataclass(slots=True)
class _Line:
    text: str
    seq: int

    def shown(self, width: int) -> str:
        return f"- {_one_line(self.text, width)} (#{self.seq})"


@dataclass(slots=True)
class DigestNotes:
    """What was picked out of the messages that a digest will cover, by section; oldest first."""

    first: int
    last: int
    agent_id: str
    sections: dict[str, list[_Line]] = field(default_factory=dict)

    @classmethod
    def gather(
        cls,
        agent_id: str,
        covers: tuple[int, int],
        earlier: Sequence[Observation],
        messages: Iterable[Message],
        instructions: str | None = None,
    ) -> DigestNotes:
        """Read `earlier` observations (which the digest will replace), then `messages`, up to `covers[1]`."""
        notes = cls(covers[0], covers[1], agent_id)
        wanted = {word.lower() for word in re.findall(r"\w{4,}", instructions or "")}
        for observation in earlier:
            notes._fold(observation)
        names: dict[str, str] = {}
        for message in messages:
            notes._read(message, names, wanted)
        for title, lines in notes.sections.items():
            notes.sections[title] = _latest_of_each(lines, title)
        return notes

    def write(self, budget: int, counter: TokenCounter) -> tuple[str, tuple[int, ...]]:
        """The text, of at most `budget` tokens (or the bare pointer, where that alone is more), and its citations."""
        head = TITLE + pointer_of(self.agent_id, self.first, self.last)
        bare = f"Whole text: {pointer_of(self.agent_id, self.first, self.last)}"
        width = max(40, min(LINE_CHARACTERS, budget))
        while budget > 0:
            text, cited = self._compose(head, budget, width, counter)
            spent = counter.count(text)
            if spent <= budget or text == head:
                break
            # Lines are estimated, the whole is counted: where it came out longer, fewer of them.
            budget = int(budget * _SHRINK)
        else:
            return bare, (self.first, self.last)
        if text == head:
            return bare, (self.first, self.last)
        return text, tuple(sorted({self.first, self.last, *cited}))

    def _compose(self, head: str, budget: int, width: int, counter: TokenCounter) -> tuple[str, set[int]]:
        left = budget - counter.count(head) - 2
        chosen: dict[str, list[_Line]] = {}
        ranked = {title: _by_rank(self.sections[title], title) for title in SECTIONS if self.sections.get(title)}
        ratio = _tokens_per_character(ranked, width, counter)
        rank = 0
        told: set[str] = set()  # what one section says, another need not repeat
        while left > 0 and any(rank < len(lines) for lines in ranked.values()):
            for title, lines in ranked.items():
                if rank >= len(lines):
                    continue
                if lines[rank].text[:80] in told:
                    continue
                cost = int(len(lines[rank].shown(width)) * ratio) + 2
                if title not in chosen:
                    cost += counter.count(title) + 2
                if cost <= left:
                    left -= cost
                    told.add(lines[rank].text[:80])
                    chosen.setdefault(title, []).append(lines[rank])
            rank += 1
        parts = [head]
        cited: set[int] = set()
        for title in SECTIONS:
            if title not in chosen:
                continue
            parts.append(f"{title}:")
            for line in sorted(chosen[title], key=lambda line: line.seq):
                parts.append(line.shown(width))
                cited.add(line.seq)
        return "\n".join(parts), cited

    def _add(self, title: str, text: str, seq: int) -> None:
        text = plain(_one_line(text, LINE_CHARACTERS))
        if text:
            lines = self.sections.setdefault(title, [])
            lines.append(_Line(text, seq))
            if len(lines) > 4 * CANDIDATES_PER_SECTION:
                self.sections[title] = _latest_of_each(lines, title)

    def _fold(self, observation: Observation) -> None:
        title = "Earlier"
        for line in observation.text.splitlines():
            stripped = line.strip()
            if stripped.startswith(TITLE) or not stripped:
                continue
            if stripped.endswith(":") and stripped[:-1] in SECTIONS:
                title = stripped[:-1]
                continue
            cited = _CITED.search(stripped)
            seq = int(cited.group(1)) if cited else observation.covers[1]
            if not observation.covers[0] <= seq <= observation.covers[1]:
                seq = observation.covers[1]
            self._add(title, _CITED.sub("", stripped).removeprefix("- ").strip(), seq)

    def _read(self, message: Message, names: dict[str, str], wanted: set[str]) -> None:
        seq = message.seq
        for block in blocks_of(message.content):
            kind = block.get("type")
            if kind == "text":
                self._read_text(message.role, clipped(str(block.get("text", "")), 2_000), seq, wanted)
            elif kind == "tool_use":
                call = str(block.get("id", ""))
                names[call] = str(block.get("name", ""))
                self._read_todos(block.get("input"), seq)
                for leaf in leaves(block.get("input")):
                    if len(leaf) <= 300:
                        for path in paths_in(leaf)[:3]:
                            self._add("Files", path, seq)
            elif kind == "tool_result":
                name = names.get(str(block.get("tool_use_id", "")), "tool")
                text = clipped(result_text(block), 2_000)
                if block.get("is_error"):
                    self._add("Errors", f"{name}: {text}", seq)
                else:
                    for line in error_lines(text)[:2]:
                        self._add("Errors", line, seq)
                self._add("Last results", f"{name}: {_one_line(text, 120)}", seq)
                self._read_wanted(text, seq, wanted)

    def _read_todos(self, given: Any, seq: int) -> None:
        """A to-do list that an agent keeps by a tool (`TodoWrite`, `update_plan`): the newest replaces those before."""
        if not isinstance(given, dict):
            return
        items = given.get("todos") or given.get("plan")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            return
        others = [line for line in self.sections.get("Open tasks", []) if not line.text.startswith(_TODO)]
        self.sections["Open tasks"] = others
        for item in items[:30]:
            text = item.get("content") or item.get("step") or item.get("title")
            if text and str(item.get("status", "")).lower() not in _FINISHED:
                self._add("Open tasks", f"{_TODO}{text}", seq)

    def _read_text(self, role: str, text: str, seq: int, wanted: set[str]) -> None:
        self._read_wanted(text, seq, wanted)
        if role == "user":
            self._add("Goals", text, seq)
        else:
            self._add("Progress", text, seq)
            decided = 0
            for line in text.splitlines():
                if decided < 3 and len(line) < 400 and _DECIDED.search(line):
                    self._add("Decisions", line, seq)
                    decided += 1
        for line in text.splitlines()[:200]:
            if _OPEN.match(line):
                self._add("Open tasks", line.strip().removeprefix("- [ ]").strip(), seq)
        for line in error_lines(text)[:2]:
            self._add("Errors", line, seq)
        for path in paths_in(text)[:8]:
            self._add("Files", path, seq)

    def _read_wanted(self, text: str, seq: int, wanted: set[str]) -> None:
        if not wanted:
            return
        for line in text.splitlines()[:200]:
            if wanted.intersection(re.findall(r"\w{4,}", line.lower())):
                self._add("Asked to keep", line, seq)


def _tokens_per_character(ranked: dict[str, list[_Line]], width: int, counter: TokenCounter) -> float:
    """What the lines cost, estimated from the first few of each section: counting each would cost more than it tells."""
    sample = "\n".join(line.shown(width) for lines in ranked.values() for line in lines[:4])
    return counter.count(sample) / len(sample) if sample else 1.0


def _one_line(text: str, width: int) -> str:
    line = " ".join(text[: 4 * width].split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def _latest_of_each(lines: list[_Line], title: str) -> list[_Line]:
    """Each text once, with its newest message; the oldest goal is the assignment and always stays."""
    latest: dict[str, _Line] = {}
    for line in lines:
        latest.pop(line.text, None)
        latest[line.text] = line
    kept = list(latest.values())
    if len(kept) <= CANDIDATES_PER_SECTION:
        return kept
    if title == "Goals":
        return [kept[0], *kept[-CANDIDATES_PER_SECTION + 1 :]]
    return kept[-CANDIDATES_PER_SECTION:]


def _by_rank(lines: list[_Line], title: str) -> list[_Line]:
    """Which lines come first when room is short: the newest; of goals, the first and then the newest."""
    newest = list(reversed(lines))
    if title == "Goals" and len(newest) > 1:
        return [newest[-1], *newest[:-1]]
    return newest
