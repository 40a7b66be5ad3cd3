"""The deterministic digest: the text that a context shows when no model has summarised in time.

It keeps the user's words, the current to-do list, the current work and what comes next, decisions, errors of
failing calls, files (edited before read), names of functions and types, and last results. Each line cites the
number of its source message, and a pointer leads to the whole. A new digest takes over the lines of an earlier
one, so its cost is that of the newly covered messages. A budget in tokens bounds its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from watchkeeper.memory.notes import (
    ASKED,
    BOX_LINE,
    BOXES,
    CURRENT,
    DECISIONS,
    EARLIER,
    ERRORS,
    FILES,
    GOALS,
    HERE,
    LINE_CHARACTERS,
    LISTED,
    MENTIONED,
    NAMES,
    OPEN,
    PROGRESS,
    RESULTS,
    SECTIONS,
    SHELLS,
    TODO,
    DigestIndex,
    Note,
    shortened_words,
    wanted_lines,
    wanted_words,
)
from watchkeeper.memory.rendering import pointer_of
from watchkeeper.memory.tokens import TokenCounter, plain
from watchkeeper.records.messages import Message, Observation, ObservationKind
from watchkeeper.records.text import one_line
from watchkeeper.records.tool_inputs import PATH

MOST_LINES = {GOALS: 300, FILES: 300, NAMES: 600}
CANDIDATES_PER_SECTION = 80
"""So many lines of a section are kept until the digest is written, where `MOST_LINES` does not say more."""
TITLE = "Digest, made without a model. Whole text: "

SHARES = {
    ASKED: 0.25, GOALS: 0.55, OPEN: 0.1, CURRENT: 0.1, EARLIER: 0.3, FILES: 0.25, ERRORS: 0.1, NAMES: 0.2, DECISIONS: 0.08,
    RESULTS: 0.04,
}  # fmt: skip
"""The share of the budget that a section may take before the others; in the order in which they are served."""
REST = (GOALS, FILES, NAMES, DECISIONS, EARLIER, ERRORS, PROGRESS, RESULTS, CURRENT, OPEN)
"""The order in which sections take what is left."""

_CITED = re.compile(r"\(#(\d+)\)$")
_FILE = re.compile(
    r"(?P<verb>edited |read )?(?P<path>.+?)(?:, lines (?P<lines>[\d\-, ]+))?(?P<change>: `.*)?$", re.DOTALL
)
_CHANGE = ": `"
MENTIONED_FOLDED = 100
"""The newest identifiers appended to a summary that a digest in its place takes over at most."""
CHANGES_SHOWN = 10
"""A digest says what changed in so many files, those edited last."""
_OPEN_LINE = re.compile(rf"{TODO}(?: (?P<key>\[[^\]]+\]))?: ")
_SHRINK = 0.9
_FRAME_CHARACTERS = 10
"""Characters of a line beside its text: `- … (#1234)`."""
TITLE_TOKENS = 6
"""At most, of a section's title with its colon and line end."""
NAMES_A_LINE = 12
LEAST_WORDS = 160
"""Characters of a message of the user below which the oldest are left out instead."""


class _Line(NamedTuple):
    text: str
    seq: int
    weight: int = 1

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
    _kept: dict[str, dict[str, _Line]] = field(default_factory=dict)
    """By section, what is kept under each key."""

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
        beside: Sequence[Observation] = (),
    ) -> DigestNotes:
        """Read `earlier` observations (which the digest will replace), then `messages`, up to `covers[1]`.

        `notebook`: what was noted of the messages before; what it lacks is read now. `beside`:
        observations that stay before the digest; it takes over their to-do list (see `without_open_tasks`).
        """
        notes = cls(covers[0], covers[1], agent_id)
        for _ in notes.reading(earlier, messages, instructions, notebook=notebook, beside=beside):
            pass
        return notes

    def reading(
        self,
        earlier: Sequence[Observation],
        messages: Iterable[Message],
        instructions: str | None = None,
        *,
        notebook: DigestIndex | None = None,
        beside: Sequence[Observation] = (),
    ) -> Iterator[None]:
        """The work of `gather` in steps of an observation or a message, for callers that let others run between them."""
        notebook = notebook or DigestIndex()
        wanted = wanted_words(instructions)
        for observation in beside:
            if observation.kind is ObservationKind.DIGEST:
                self._fold(observation, only=OPEN)
                yield
        for observation in earlier:
            self._fold(observation)
            yield
        for message in messages:
            for note in notebook.of(message):
                self._take(note, message.seq)
            if wanted:
                for line in wanted_lines(message, wanted):
                    self._add(ASKED, line, message.seq)
            yield
        for seq, note in notebook.lists_after(self.last):
            if note.text is None:  # what later messages, which stay, say of the list is newer
                self._take(note, seq)
        self._settle()

    # --- taking notes ---------------------------------------------------------------------------------------

    def _take(self, note: Note, seq: int) -> None:
        section, text, key, weight = note
        if text is None:
            self._void(section, key, seq)
        elif text:
            if section == FILES:
                self._take_file(text, seq)
            elif section == OPEN and key == BOXES:
                self._keep(section, f"{key} {text}", _Line(text, seq))
            else:
                if section == GOALS:
                    text = text.replace(HERE, pointer_of(self.agent_id, seq))
                self._keep(section, key or text, _Line(text, seq, weight))

    def _void(self, section: str, key: str, seq: int) -> None:
        lines = self._kept.get(section)
        if not lines:
            return
        if section == OPEN and not key:
            lines.clear()
        elif key == BOXES:
            for one in [one for one in lines if one.startswith(BOXES)]:
                del lines[one]
        elif section == ERRORS and key in lines:
            error = lines.pop(key)
            if error.weight and not _FIXED.search(error.text) and SHELLS.search(key.partition(" ")[0]):
                fixed = f"{one_line(error.text, LINE_CHARACTERS - 80)}{self._fix_of(error.seq, seq)}"
                self._keep(section, f"{key} {error.seq}", error._replace(text=fixed))
        else:
            lines.pop(key, None)
            if section == OPEN and self._kept.get(CURRENT, {}).get("now", _NOTHING).text.endswith(
                f"task {key}"
            ):
                del self._kept[CURRENT]["now"]

    def _fix_of(self, failed: int, passed: int) -> str:
        """What was edited between a failure and the success of the same call."""
        edited = [
            key.rpartition("/")[2]
            for key, line in self._kept.get(FILES, {}).items()
            if line.seq > failed and line.text.startswith("edited ")
        ]
        return f" → passed in #{passed}" + (f" after edits to {', '.join(edited[-3:])}" if edited else "")

    def _take_file(self, text: str, seq: int) -> None:
        """The newest state of a file, once: edited goes before read, read before named."""
        match = _FILE.fullmatch(text)
        if match is None:
            return
        key = match["path"]
        before = self._kept.get(FILES, {}).get(key)
        if before is not None:
            if before.text.startswith("edited ") and match["verb"] != "edited ":
                return
            if before.text.startswith("read ") and match["verb"] is None:
                return
            if before.text.startswith("read ") and match["verb"] == "read ":
                known = _FILE.fullmatch(before.text)
                text = f"read {key}{_spans(known['lines'] if known else None, match['lines'])}"
        self._keep(FILES, key, _Line(text, seq, (before.weight if before else 0) + 1))

    def _keep(self, section: str, key: str, line: _Line) -> None:
        lines = self._kept.setdefault(section, {})
        before = lines.pop(key, None)
        if section == NAMES and before is not None:
            line = line._replace(weight=before.weight + line.weight)
        lines[key] = line
        most = MOST_LINES.get(section, CANDIDATES_PER_SECTION)
        if len(lines) > 2 * most:
            self._kept[section] = dict(_most_telling(section, list(lines.items()), most))

    def _add(self, title: str, text: str, seq: int) -> None:
        text = plain(one_line(text, 2 * LINE_CHARACTERS))
        if text:
            self._keep(title, text, _Line(text, seq))

    def _fold(self, observation: Observation, only: str | None = None) -> None:
        title = EARLIER
        own = observation.kind is ObservationKind.DIGEST
        written, _, mentioned = observation.text.partition(f"\n{MENTIONED}:\n")
        for line in mentioned.splitlines()[-MENTIONED_FOLDED:] if only is None else ():
            self._fold_identifier(line, observation.covers[1])
        for line in written.splitlines():
            stripped = line.strip()
            if stripped.startswith(TITLE) or not stripped:
                continue
            if named := _title_of(stripped, own):
                title = named
                continue
            if only is not None and title != only:
                continue
            cited = _CITED.search(stripped)
            seq = int(cited.group(1)) if cited else observation.covers[1]
            if not 1 <= seq <= observation.covers[1]:
                seq = observation.covers[1]
            text = (stripped[: cited.start()] if cited else stripped).removeprefix("- ").strip()
            if text:
                self._fold_line(title, text, seq, own=own)

    def _fold_identifier(self, line: str, last: int) -> None:
        """A line of `MENTIONED`: a file, a name, or the words of an error. `last`: the newest message covered."""
        listed = LISTED.fullmatch(line)
        name, seq = (listed[1], min(max(1, int(listed[2])), last)) if listed else (line, last)
        if " " in name or "," in name:
            self._add(EARLIER, name, seq)
            return
        section = FILES if "/" in name or PATH.fullmatch(name) else NAMES
        if name not in self._kept.get(section, {}):
            self._keep(section, name, _Line(plain(name), seq))

    def _fold_line(self, title: str, text: str, seq: int, *, own: bool) -> None:
        if title == NAMES:
            for name in text.split(", "):
                self._keep(NAMES, name, _Line(name, seq, FOLDED_WEIGHT))
        elif title == FILES:
            self._take_file(text, seq)
        elif title == OPEN:
            if text.startswith(BOX_LINE):
                self._keep(OPEN, f"{BOXES} {text}", _Line(text, seq))
                return
            if not (match := _OPEN_LINE.match(text)):
                text = f"{TODO}: {text}"
            self._keep(OPEN, (match and match["key"]) or text, _Line(text, seq))
        elif title == CURRENT:
            kind = text.partition(":")[0]
            self._keep(CURRENT, _CURRENT_KEYS.get(kind, kind), _Line(text, seq))
        elif title == ERRORS and ": " in text and not _FIXED.search(text):
            self._keep(ERRORS, text.partition(": ")[0], _Line(text, seq))
        elif own:
            self._keep(title, text, _Line(text, seq))
        else:
            self._add(title, text, seq)

    def _settle(self) -> None:
        """Bound each section, and resolve what one section says of another."""
        opened = self._kept.get(OPEN, {})
        if any(not key.startswith(BOXES) for key in opened):
            self._void(OPEN, BOXES, self.last)
        current = self._kept.get(CURRENT, {})
        if (now := current.get("now")) and now.text.startswith("now: task ["):
            item = opened.get(now.text.removeprefix("now: task "))
            if item is None:
                del current["now"]
            else:
                current["now"] = now._replace(text=f"now: {item.text.partition(': ')[2]}")
        plan = current.get("plan", _NOTHING).text.removeprefix("next: ").rstrip("…")
        if plan and plan in current.get("said", _NOTHING).text:
            del current["plan"]
        self._forget_old_changes()
        for title in SECTIONS:
            lines = list(self._kept.get(title, {}).items())
            if lines:
                most = MOST_LINES.get(title, CANDIDATES_PER_SECTION)
                self.sections[title] = [line for _, line in _most_telling(title, lines, most)]
        self._kept.clear()

    def _forget_old_changes(self) -> None:
        """Say of the files edited last what changed, of others only that they were edited."""
        files = self._kept.get(FILES, {})
        changed = sorted((line.seq, path) for path, line in files.items() if _CHANGE in line.text)
        for _, path in changed[:-CHANGES_SHOWN]:
            files[path] = files[path]._replace(text=files[path].text.partition(_CHANGE)[0])

    # --- writing --------------------------------------------------------------------------------------------

    def write(self, budget: int, counter: TokenCounter) -> Written:
        """The digest, of at most `budget` tokens (or the bare pointer, where that alone is more)."""
        head = TITLE + pointer_of(self.agent_id, self.first, self.last)
        bare = f"Whole text: {pointer_of(self.agent_id, self.first, self.last)}"
        room = budget
        while room > 0:
            text, cited = self._compose(head, room, counter)
            spent = counter.count(text)
            if text == head:
                break
            if spent <= budget:
                known = {seq for seq in cited if self.first <= seq <= self.last}
                return Written(text, tuple(sorted({self.first, self.last, *known})), spent)
            # Lines are estimated, the whole is counted: where it came out longer, fewer of them.
            room = int(room * min(_SHRINK, budget / spent))
        return Written(bare, tuple(sorted({self.first, self.last})), counter.count(bare))

    def _compose(self, head: str, budget: int, counter: TokenCounter) -> tuple[str, set[int]]:
        width = max(40, min(2 * LINE_CHARACTERS, budget))
        total = left = budget - counter.count(head) - 2
        ranked = {title: _by_rank(lines, title) for title, lines in self.sections.items()}
        ratios = _tokens_per_character(ranked, counter)
        if GOALS in ranked:
            room = total * SHARES[GOALS] / ratios[GOALS]
            ranked[GOALS] = _words_within(ranked[GOALS], int(room), self.agent_id)
        chosen: dict[str, list[_Line]] = {}
        listed: set[str] = set()  # a line of one section is not repeated in another
        places = dict.fromkeys(ranked, 0)

        def take(title: str, most: float) -> None:
            """Take lines of a section for at most `most` tokens."""
            nonlocal left
            lines, place = ranked[title], places[title]
            ratio, frame = ratios[title], _FRAME_CHARACTERS if title != NAMES else 2
            while place < len(lines) and left > 0 and most > 0:
                line = lines[place]
                place += 1
                beginning = line.text[:80] if title not in (FILES, NAMES) else ""
                if beginning and beginning in listed:
                    continue
                size = len(line.text) if title == GOALS else min(len(line.text), width)
                cost = int((size + frame) * ratio) + 1 + (TITLE_TOKENS if title not in chosen else 0)
                if cost > left:
                    continue
                left -= cost
                most -= cost
                listed.add(beginning)
                chosen.setdefault(title, []).append(line)
            places[title] = place

        for title in SHARES:
            if title in ranked:
                take(title, 1)
        for title, share in SHARES.items():
            if title in ranked:
                take(title, min(left, share * total))
        for title in REST:
            if title in ranked:
                take(title, left)
        parts = [head]
        cited: set[int] = set()
        for title in SECTIONS:
            if title not in chosen:
                continue
            parts.append(f"{title}:")
            for line in _in_order(chosen[title], title):
                parts.append(line.shown(max(width, len(line.text)) if title in (GOALS, NAMES) else width))
                cited.add(line.seq)
        return "\n".join(parts), cited


_NOTHING = _Line("", 0)
_FIXED = re.compile(r" → passed in #\d+")
_CURRENT_KEYS = {"next": "plan", "last call": "call"}
FOLDED_WEIGHT = 6
"""The weight of a name that an earlier digest chose."""


def _title_of(line: str, own: bool) -> str | None:
    """The section that a line begins; of a text that a model wrote, only its to-do list is a section."""
    if not line.endswith(":") or line.startswith("- "):
        return None
    if own:
        return line[:-1] if line[:-1] in SECTIONS else None
    return OPEN if line.strip("#*0123456789. ").lower().startswith("open") else EARLIER


def without_open_tasks(
    observations: Sequence[Observation], next_id: int, counter: TokenCounter
) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
    """Observations of which a later digest takes over the to-do list: those before the first digest that has
    one, and copies of the others without it (numbered from `next_id`)."""
    shown = [_without_list(one) if one.kind is ObservationKind.DIGEST else one.text for one in observations]
    first = next(
        (place for place, text in enumerate(shown) if text != observations[place].text), len(observations)
    )
    copies = (
        replace(one, id=next_id + index, text=text, tokens=counter.count(text), replaces=(one.id,))
        for index, (one, text) in enumerate(zip(observations[first:], shown[first:], strict=True))
    )
    return tuple(observations[:first]), tuple(copies)


def _without_list(observation: Observation) -> str:
    kept: list[str] = []
    title = ""
    for line in observation.text.splitlines():
        if line.endswith(":") and line[:-1] in SECTIONS:
            title = line[:-1]
        if title not in (OPEN, CURRENT):
            kept.append(line)
    return "\n".join(kept)


def _spans(*spans: str | None) -> str:
    """Line spans joined, the newest four: `, lines 1-80, 120-160`; empty where one read the whole file."""
    if None in spans:
        return ""
    known = dict.fromkeys(one.strip() for span in spans for one in (span or "").split(",") if one.strip())
    return f", lines {', '.join(list(known)[-4:])}"


SAMPLE_CHARACTERS = 160
MARGIN = 1.03
"""What lines are estimated higher than their sample, so that the whole is rarely too long."""


def _tokens_per_character(ranked: dict[str, list[_Line]], counter: TokenCounter) -> dict[str, float]:
    """What the lines of each section cost, estimated from the first few: counting each would cost more than it
    tells. Paths and names are words of their own kind; all other sections are sentences."""
    samples: dict[str, list[str]] = {}
    for title, lines in ranked.items():
        few = [line.text[:SAMPLE_CHARACTERS] for line in lines[: 20 if title == NAMES else 4]]
        samples.setdefault(title if title in (FILES, NAMES) else "", []).extend(few)
    joined = {kind: (", " if kind == NAMES else " (#123)\n- ").join(few) for kind, few in samples.items()}
    found = {kind: max(0.05, MARGIN * counter.count(text) / len(text)) for kind, text in joined.items()}
    return {title: found.get(title) or found[""] for title in ranked}


def _most_telling(title: str, lines: list[tuple[str, _Line]], most: int) -> list[tuple[str, _Line]]:
    """At most so many lines of a section, in their order; the oldest goal is the assignment and always
    stays."""
    if len(lines) <= most:
        return lines
    if title == GOALS:
        return [lines[0], *lines[-most + 1 :]]
    if title in (NAMES, FILES):
        best = sorted(range(len(lines)), key=lambda at: (_rank_of(lines[at][1], title), at), reverse=True)[
            :most
        ]
        return [lines[at] for at in sorted(best)]
    return lines[-most:]


def _rank_of(line: _Line, title: str) -> int:
    if title == FILES:
        return 2 if line.text.startswith("edited ") else 1 if line.text.startswith("read ") else 0
    return line.weight


def _by_rank(lines: list[_Line], title: str) -> list[_Line]:
    """Which lines come first when space is short: the newest; of the goals, the first and then the newest; of
    files those edited, of names the ones said most, of errors those marked as such."""
    newest = list(reversed(lines))
    if title == GOALS and len(newest) > 1:
        return [newest[-1], *newest[:-1]]
    if title in (FILES, NAMES, ERRORS):
        newest.sort(key=lambda line: (_rank_of(line, title), line.seq), reverse=True)
    return newest


def _words_within(lines: list[_Line], room: int, agent_id: str) -> list[_Line]:
    """The user's messages, long ones shortened to one length so that all fit into `room` characters; where
    that would leave too little of each, they are cut there, and the caller leaves out the oldest."""
    free, most = room, max(LEAST_WORDS, room)
    for place, size in enumerate(sorted(len(line.text) + _FRAME_CHARACTERS for line in lines)):
        most = max(LEAST_WORDS, free // (len(lines) - place))
        if size > most:
            break
        free -= size
    else:
        return lines
    return [
        line._replace(text=shortened_words(line.text, most).replace(HERE, pointer_of(agent_id, line.seq)))
        if len(line.text) > most
        else line
        for line in lines
    ]


def _in_order(lines: list[_Line], title: str) -> list[_Line]:
    """Lines as they are shown: in the order of messages; files those edited first; names some to a line."""
    ordered = lines[::-1]  # as they were said, those of one message too
    ordered.sort(key=lambda line: line.seq)
    if title == FILES:
        return sorted(ordered, key=lambda line: _rank_of(line, title), reverse=True)
    if title == NAMES:
        groups = (ordered[at : at + NAMES_A_LINE] for at in range(0, len(ordered), NAMES_A_LINE))
        return [_Line(", ".join(line.text for line in group), group[-1].seq) for group in groups]
    return ordered
