"""The deterministic digest: the text that a context shows when no model has summarised in time.

It keeps goals, decisions, open tasks, files, errors and last results. Each line cites the number of its
source message, and a pointer leads to the whole. A new digest takes over the lines of an earlier one, so its
cost is that of the newly covered messages. A budget in tokens bounds its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from watchkeeper.memory.content import blocks_of, leaves, result_text, texts_of
from watchkeeper.memory.rendering import pointer_of
from watchkeeper.memory.tokens import TokenCounter, plain
from watchkeeper.records.messages import Message, Observation, ObservationKind
from watchkeeper.records.text import one_line

# --- Identifiers that a summary must not lose ---------------------------------------------------------------
#
# Paths, URLs, hashes, ids, error lines, and numbers in decisions.

EXTENSIONS = (
    "pyi?|ipynb|[cm]?js|jsx|tsx?|rs|go|java|kt|scala|cc?|h|[ch]pp|cs|rb|php|swift|lua|r|jl|(?:ba|z)?sh|ps1|sql|html?|s?css"
    "|vue|svelte|md|rst|txt|jsonl?|ya?ml|toml|ini|cfg|conf|env|lock|xml|[ct]sv|log|diff|patch|png|jpe?g|gif|svg|webp|pdf"
    "|zip|gz|tar|whl|db|sqlite|proto|graphql|tf|dockerfile|make|cmake|gradle"
)
"""What makes a word with a dot a file name, and not an attribute or the end of a sentence."""

PATH = re.compile(
    r"(?<![\w/.:@<\[-])(?:(?:~|\.{1,2})?/(?:[\w.@+-]{1,80}/){1,16}[\w.@+-]{1,80}"  # /a/b, ./a/b, ~/a/b
    r"|(?:[\w.@+-]{1,80}/){2,16}[\w.@+-]{1,80}"  # a/b/c
    rf"|(?:~/|\.{{1,2}}/|/)?(?:[\w.@+-]{{1,80}}/)?[\w@+-][\w.@+-]{{0,80}}\.(?:{EXTENSIONS}))(?![\w/(])",
    re.IGNORECASE,
)
"""Paths of two parts and more, and file names by their extension."""

URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s<>\"'`)\]}]{3,300}")

HASH = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-f]{0,63}\d)(?=[0-9a-f]{0,63}[a-f])[0-9a-f]{7,64}\b"
)
"""Git hashes, digests and UUIDs."""

ID = re.compile(r"\b[A-Za-z]{2,12}[-_](?=[A-Za-z0-9_-]{0,60}\d)[A-Za-z0-9_-]{1,60}\b|(?<![\w&/])#\d{1,7}\b")
"""Ticket and record ids: `PROJ-123`, `toolu_01ab`, `#4679`."""

_ERROR_WORDS = ("error", "exception", "fatal", "panic", "failed", "traceback")
ERROR = re.compile(
    r"\b(?:\w{0,60}(?:Error|Exception)\b\s*[:(\[]|(?:error|fatal|panic(?:ked)?)\b(?:\[\w+\])?\s*:"
    r"|FAILED\b|Traceback \(|[Ee]rror \w)"
)
_LISTED = re.compile(r"^\s*\d{1,6}\s*(?:→|\||\t|:)")
"""A numbered line of a file that was read: it speaks of errors, it is none."""

DECISION = re.compile(
    r"\b(?:decid|decision|chose|choos|instead of|must|limit|budget|set to|threshold|port|version)\w*", re.I
)

NUMBER = re.compile(r"(?<![\w.])\d[\d,_]{0,20}(?:\.\d{1,10})?%?(?!\w)")

SCAN_CHARACTERS = 4_000
"""So many characters are read from the beginning of a text, and as many from its end, to bound CPU time."""

PER_MESSAGE = 40


def clipped(text: str, limit: int = SCAN_CHARACTERS) -> str:
    """The beginning and the end of a long text, cut at line ends so that no identifier is cut in two."""
    if len(text) <= 2 * limit:
        return text
    head, tail = text[:limit], text[-limit:]
    return head.rpartition("\n")[0] + "\n" + tail.partition("\n")[2]


def paths_in(text: str) -> list[str]:
    """Paths and file names, in order of appearance, each once."""
    # Most words hold neither: leaving them out first makes prose ten times cheaper.
    words = " ".join(word for word in clipped(text).split() if "/" in word or "." in word)
    return list(dict.fromkeys(match.rstrip(".,:;") for match in PATH.findall(words)))


def error_lines(text: str) -> list[str]:
    """Lines that report an error (at most 160 characters of each), each once."""
    found: dict[str, None] = {}
    for line in clipped(text).splitlines():
        if len(line) > 2_000:
            line = line[:2_000]
        lowered = line.lower()
        if any(word in lowered for word in _ERROR_WORDS) and ERROR.search(line) and not _LISTED.match(line):
            found[" ".join(line.split())[:160]] = None
    return list(found)


def identifiers_in(text: str) -> list[str]:
    """All identifiers of a text, each once."""
    text = clipped(text)
    urls = [url.rstrip(".,:;") for url in URL.findall(text)] if "://" in text else []
    if urls:
        text = URL.sub(" ", text)
    decisions = [
        line
        for line in text.splitlines()
        if len(line) <= 400 and DECISION.search(line) and not _LISTED.match(line)
    ]
    numbers = [number for line in decisions for number in NUMBER.findall(line) if len(number) >= 2]
    found = (*urls, *paths_in(text), *HASH.findall(text), *ID.findall(text), *error_lines(text), *numbers)
    return list(dict.fromkeys(found))


def gather(messages: Iterable[Message]) -> dict[str, int]:
    """Identifier → the last message that contains it; at most `PER_MESSAGE` of each message."""
    found: dict[str, int] = {}
    for message in messages:
        own: dict[str, None] = {}
        for text in texts_of(message.content):
            own |= dict.fromkeys(identifiers_in(text))
            if len(own) >= PER_MESSAGE:
                break
        found |= dict.fromkeys(list(own)[:PER_MESSAGE], message.seq)
    return found


# --- What a digest says of one message ----------------------------------------------------------------------
#
# It is extracted once, when the message is added. A digest is made in the very turn in which a context
# overflows. Reading all covered messages there would cost that turn milliseconds for each ten thousand
# tokens; reading them on arrival costs each turn the same.

LINE_CHARACTERS = 200
TEXT_CHARACTERS = 2_000
"""So many characters are read from the beginning of each text, and as many from its end."""
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


class DigestIndex:
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
"""Characters of a line beside its text: `- … (#1234)`."""
TITLE_TOKENS = 6
"""At most, of a section's title with its colon and line end."""


class _Line(NamedTuple):
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
        notebook: DigestIndex | None = None,
    ) -> DigestNotes:
        """Read `earlier` observations (which the digest will replace), then `messages`, up to `covers[1]`.

        `notebook`: what was noted of the messages when they were added; what it lacks is read now.
        """
        notes = cls(covers[0], covers[1], agent_id)
        notebook = notebook or DigestIndex()
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
        listed: set[str] = set()  # a line of one section is not repeated in another
        while left > 0 and any(rank < len(lines) for lines in ranked.values()):
            for title, lines in ranked.items():
                if rank >= len(lines):
                    continue
                beginning = lines[rank].text[:80]
                if beginning in listed:
                    continue
                cost = int((min(len(lines[rank].text), width) + _FRAME_CHARACTERS) * ratio) + 2
                if title not in chosen:
                    cost += TITLE_TOKENS
                if cost <= left:
                    left -= cost
                    listed.add(beginning)
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

    def _take(self, message: Message, notebook: DigestIndex) -> None:
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
    """Which lines come first when space is short: the newest; of the goals, the first and then the newest."""
    newest = list(reversed(lines))
    if title == "Goals" and len(newest) > 1:
        return [newest[-1], *newest[:-1]]
    return newest
