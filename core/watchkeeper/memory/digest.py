"""The deterministic digest: what stands in a context when no model has summarised in time.

It keeps goals, decisions, open tasks, files, errors and last results, each line with the number of the
message that it rests on, and a pointer to the whole. An earlier digest is folded into the new one by its
lines, so that the cost is that of the messages newly covered, and the size is bounded by a budget in tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from watchkeeper.memory.elision import pointer_of
from watchkeeper.memory.notes import LINE_CHARACTERS, TODO, Notebook, one_line, wanted_lines, wanted_words
from watchkeeper.memory.tokens import TokenCounter, plain
from watchkeeper.records.memory import Message, Observation, ObservationKind

SECTIONS = (
    "Asked to keep",
    "Goals",
    "Open tasks",
    "Decisions",
    "Errors",
    "Files",
    "Last results",
    "Progress",
    "Earlier",
)
CANDIDATES_PER_SECTION = 80
TITLE = "Digest, made without a model. Whole text: "

_CITED = re.compile(r"\(#(\d+)\)$")
_SHRINK = 0.75
_FRAME_CHARACTERS = 10
"""Of a line beside its text: `- … (#1234)`."""
TITLE_TOKENS = 6
"""At most, of a section's title with its colon and line end."""


@dataclass(slots=True)
class _Line:
    text: str
    seq: int

    def shown(self, width: int) -> str:
        text = self.text if len(self.text) <= width else one_line(self.text, width)
        return f"- {text} (#{self.seq})"


class Written(NamedTuple):
    """A digest, the messages that it cites, and its size."""

    text: str
    citations: tuple[int, ...]
    tokens: int


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
        *,
        notebook: Notebook | None = None,
    ) -> DigestNotes:
        """Read `earlier` observations (which the digest will replace), then `messages`, up to `covers[1]`.

        `notebook`: what was noted of the messages when they were added; what it lacks is read now.
        """
        notes = cls(covers[0], covers[1], agent_id)
        notebook = notebook or Notebook()
        wanted = wanted_words(instructions)
        for observation in earlier:
            notes._fold(observation)
        for message in messages:
            notes._take(message, notebook)
            if wanted:
                for line in wanted_lines(message, wanted):
                    notes._add("Asked to keep", line, message.seq)
        for title, lines in notes.sections.items():
            notes.sections[title] = _latest_of_each(lines, title)
        return notes

    def write(self, budget: int, counter: TokenCounter) -> Written:
        """The digest, of at most `budget` tokens (or the bare pointer, where that alone is more)."""
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
            return Written(bare, tuple(sorted({self.first, self.last})), counter.count(bare))
        if text == head:
            return Written(bare, tuple(sorted({self.first, self.last})), counter.count(bare))
        return Written(text, tuple(sorted({self.first, self.last, *cited})), spent)

    def _compose(self, head: str, budget: int, width: int, counter: TokenCounter) -> tuple[str, set[int]]:
        left = budget - counter.count(head) - 2
        chosen: dict[str, list[_Line]] = {}
        ranked = {
            title: _by_rank(self.sections[title], title) for title in SECTIONS if self.sections.get(title)
        }
        ratio = _tokens_per_character(ranked, width, counter)
        rank = 0
        told: set[str] = set()  # what one section says, another need not repeat
        while left > 0 and any(rank < len(lines) for lines in ranked.values()):
            for title, lines in ranked.items():
                if rank >= len(lines):
                    continue
                beginning = lines[rank].text[:80]
                if beginning in told:
                    continue
                cost = int((min(len(lines[rank].text), width) + _FRAME_CHARACTERS) * ratio) + 2
                if title not in chosen:
                    cost += TITLE_TOKENS
                if cost <= left:
                    left -= cost
                    told.add(beginning)
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
        text = plain(one_line(text, LINE_CHARACTERS))
        if text:
            self._append(title, text, seq)

    def _append(self, title: str, text: str, seq: int) -> None:
        lines = self.sections.setdefault(title, [])
        lines.append(_Line(text, seq))
        if len(lines) > 4 * CANDIDATES_PER_SECTION:
            self.sections[title] = _latest_of_each(lines, title)

    def _fold(self, observation: Observation) -> None:
        title = "Earlier"
        own = (
            observation.kind is ObservationKind.DIGEST
        )  # its lines were cut and cleaned when they were written
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
            text = (stripped[: cited.start()] if cited else stripped).removeprefix("- ").strip()
            if own and text:
                self._append(title, text, seq)
            else:
                self._add(title, text, seq)

    def _take(self, message: Message, notebook: Notebook) -> None:
        for title, text in notebook.of(message):
            if text is None:
                self.sections[title] = [
                    line for line in self.sections.get(title, []) if not line.text.startswith(TODO)
                ]
            elif text:
                self._append(title, text, message.seq)


def _tokens_per_character(ranked: dict[str, list[_Line]], width: int, counter: TokenCounter) -> float:
    """What the lines cost, estimated from the first few of each section: counting each would cost more than
    it tells."""
    sample = "\n".join(line.shown(width) for lines in ranked.values() for line in lines[:4])
    return counter.count(sample) / len(sample) if sample else 1.0


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
