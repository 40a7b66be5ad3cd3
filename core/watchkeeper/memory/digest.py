"""The deterministic digest: the text that a context shows when no model has summarised in time.

It is the ledger of the work (`memory.ledger`), cut to a budget in tokens by what a reader needs to continue. Each
line cites the number of its source message, and a pointer leads to the messages themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from watchkeeper.memory.content import blocks_of, result_text
from watchkeeper.memory.ledger import (
    AGENTS,
    ASKED,
    BOXES,
    CHANGES_KEPT,
    COMMANDS,
    DONE,
    EARLIER,
    EDITED,
    FAILED,
    LONG,
    MODE,
    NOT_RUN,
    OPEN,
    OUTCOMES,
    PUBLISHES,
    READ,
    RUNNING,
    SAID,
    SAVED,
    SCAN_CHARACTERS,
    SECTIONS,
    TODO,
    UNKNOWN,
    WORDS,
    WORK,
    Entry,
    Ledger,
)
from watchkeeper.memory.notes import clipped
from watchkeeper.memory.rendering import pointer_of
from watchkeeper.memory.tokens import TokenCounter, plain
from watchkeeper.memory.words import HERE, LINE_CHARACTERS, shortened_words
from watchkeeper.records.messages import Message, Observation, ObservationKind
from watchkeeper.records.text import one_line

TITLE = "Digest, made without a model. Full text: "

SHARES = {
    ASKED: 0.25, WORDS: 0.45, MODE: 0.15, TODO: 0.15, WORK: 0.15, EDITED: 0.2, COMMANDS: 0.12, AGENTS: 0.15, SAVED: 0.05,
    EARLIER: 0.3, SAID: 0.15, READ: 0.04,
}  # fmt: skip
"""The share of the budget that a section may take before the others; in the order in which they are served."""
QUOTATIONS = frozenset({WORDS, WORK, SAID, EARLIER})
REST = (WORDS, MODE, TODO, WORK, EDITED, AGENTS, SAID, COMMANDS, EARLIER, SAVED, READ)
"""The order in which sections take what is left."""

_SHRINK = 0.9
ENOUGH, MOST_GENEROUS = 0.94, 6.0
"""A digest that spends less of its budget is composed again, with larger shares for texts that were shortened."""
_FRAME_CHARACTERS = 10
"""Characters of a line beside its text: `- … (#1234)`."""
TITLE_TOKENS = 6
"""At most, of a section's title with its colon and line end."""
LEAST_WORDS = 160
"""Characters of a message of the person below which the oldest are left out instead."""
LEAST_LINE = 60
"""Characters below which a shortened line says nothing beside its pointer."""
SAMPLE_CHARACTERS = 160
CHARACTERS_A_TOKEN = 3
MARGIN = 1.03
"""What lines are estimated higher than their sample, so that the whole is rarely too long."""
LEAST_RESULT = 400
"""The same of a sub-agent's result."""
PATHS_A_LINE = 8


class Line(NamedTuple):
    """A line of a digest, before it is known whether there is room for it."""

    text: str
    seq: int
    rank: int = 0
    """Which lines of a section come first when space is short: those of the highest rank, and of these the newest."""

    def shown(self) -> str:
        return f"- {self.text.replace(chr(10), chr(10) + '  ')} (#{self.seq})"


class Written(NamedTuple):
    """A digest, the messages that it cites, and its size."""

    text: str
    citations: tuple[int, ...]
    tokens: int


def write(
    ledger: Ledger,
    agent_id: str,
    covers: tuple[int, int],
    budget: int,
    counter: TokenCounter,
    asked: Sequence[tuple[int, str]] = (),
    beside_messages: bool = False,
    beside: Sequence[Observation] = (),
    shown: Collection[int] = (),
) -> Written:
    """The digest of the messages `covers`, of at most `budget` tokens (or the bare pointer, where that alone is more).

    `asked`: lines that the instructions ask to keep, with their messages (`wanted`). `beside_messages`: the reader
    also has the messages, so quotations are omitted. `beside`: observations that stay before the digest.
    `shown`: messages that the context shows unchanged next to it, such as the assignment and pinned messages.
    """
    first, last = covers
    bound(ledger, budget)
    pointer = pointer_of(agent_id, first, last)
    titles = [title for title in SECTIONS if not (beside_messages and title in QUOTATIONS)]
    sections = {title: lines for title in titles if (lines := _lines(ledger, title, first, agent_id))}
    said = "\n".join(one.text for one in beside)
    if (said or shown) and WORDS in sections:
        told = [line for line in sections.pop(WORDS) if line.seq not in shown]
        kept = [line for line in told if line.seq >= first or line.text not in said]
        sections |= {WORDS: kept} if kept else {}
    for changes in range(1, CHANGES_KEPT + 1):  # as many as the share of the files has room for
        more = _lines(ledger, EDITED, first, agent_id, changes)
        if sum(len(line.text) for line in more) > SHARES[EDITED] * budget * CHARACTERS_A_TOKEN:
            break
        if more:
            sections[EDITED] = more
    if asked:
        sections = {
            ASKED: [Line(plain(one_line(text, 2 * LINE_CHARACTERS)), seq) for seq, text in asked],
            **sections,
        }
    best: Written | None = None
    room, generous, cites = budget, 1.0, 0
    while room > 0:
        text, cited = _compose(TITLE + pointer, sections, room, counter, agent_id, generous)
        spent = counter.count(text)
        if text == TITLE + pointer:
            break
        if spent <= budget:
            if best is None or (spent > best.tokens and len(cited) >= cites):
                cites = len(cited)
                known = {seq for seq in cited if first <= seq <= last}
                best = Written(text, tuple(sorted({first, last, *known})), spent)
            if spent >= ENOUGH * budget or generous >= MOST_GENEROUS:
                return best
            generous *= 1.6  # texts were shortened to their share while others left room
        elif best is not None:
            return best
        else:  # lines are estimated, the whole is counted: where it came out longer, fewer of them
            room = int(room * min(_SHRINK, budget / spent))
    if best is not None:
        return best
    bare = f"Full text: {pointer}"
    return Written(bare, tuple(sorted({first, last})), counter.count(bare))


def bound(ledger: Ledger, budget: int) -> None:
    """Drop from a ledger what no digest of that budget will ever have room for."""
    for title, share in SHARES.items():
        ledger.bound(title, int(max(1, LEDGER_DIGESTS * share) * budget * CHARACTERS_A_TOKEN))


LEDGER_DIGESTS = 5
"""A ledger holds at most what fills the share of a section so many times, or a whole digest."""

_WORD = re.compile(r"\w{4,}")


def wanted(messages: Iterable[Message], instructions: str | None) -> list[tuple[int, str]]:
    """Lines of texts and results that hold a word of instructions to keep something, with their messages."""
    words = frozenset(word.lower() for word in _WORD.findall(instructions or ""))
    found = []
    for message in messages if words else ():
        for block in blocks_of(message.content):
            kind = block.get("type")
            if kind in ("text", "tool_result"):
                text = clipped(
                    str(block.get("text", "")) if kind == "text" else result_text(block), SCAN_CHARACTERS
                )
                lines = text.splitlines()[:200]
                found += [
                    (message.seq, line) for line in lines if words.intersection(_WORD.findall(line.lower()))
                ]
    return found


def without_what_changes(
    observations: Sequence[Observation], next_id: int, counter: TokenCounter
) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
    """Observations beside a new digest, which says what holds now: those before the first digest that says it too, and
    copies of the others without that (numbered from `next_id`)."""
    shown = [
        _without_changing(one.text) if one.kind is ObservationKind.DIGEST else one.text
        for one in observations
    ]
    first = next(
        (place for place, text in enumerate(shown) if text != observations[place].text), len(observations)
    )
    copies = (
        replace(one, id=next_id + index, text=text, tokens=counter.count(text), replaces=(one.id,))
        for index, (one, text) in enumerate(zip(observations[first:], shown[first:], strict=True))
    )
    return tuple(observations[:first]), tuple(copies)


CHANGING = frozenset({TODO, MODE, WORK})
"""Sections of which only the newest holds."""


def _without_changing(text: str) -> str:
    kept, title = [], ""
    for line in text.splitlines():
        if line.endswith(":") and line[:-1] in SECTIONS:
            title = line[:-1]
        if title not in CHANGING:
            kept.append(line)
    return "\n".join(kept)


# --- The lines of each section ------------------------------------------------------------------------------


def _lines(ledger: Ledger, title: str, first: int, agent_id: str, changes: int = 0) -> list[Line]:
    """What a section may say, in the order of messages. What other observations cover (before `first`) they say, but
    for the person's words and what still holds."""
    kept = ledger.entries(title)
    if title not in (WORDS, MODE, TODO):
        kept = {key: each for key, each in kept.items() if each.seq >= first or each.read >= first}
    if title == SAID:
        first = max((each.seq for each in ledger.entries(WORDS).values()), default=0)
    lines = _edited(kept, changes) if title == EDITED else _MAKERS.get(title, _plain_lines)(kept, first)
    return [
        line._replace(text=line.text.replace(HERE, pointer_of(agent_id, line.seq)))
        for line in lines
        if line.text
    ]


def _plain_lines(entries: dict[str, Entry], _first: int) -> list[Line]:
    return [Line(each.text, each.seq) for each in entries.values()]


def _words(entries: dict[str, Entry], first: int) -> list[Line]:
    oldest = next(iter(entries), None)
    return [
        Line(each.text, each.seq, (each.seq >= first) + 2 * (key == oldest)) for key, each in entries.items()
    ]


def _mode(entries: dict[str, Entry], _first: int) -> list[Line]:
    return [Line(f"{_PLANS.get(each.state, '')}{each.text}", each.seq) for each in entries.values()]


_PLANS = {
    OPEN: "a plan waiting for approval:\n",
    DONE: "the approved plan:\n",
    FAILED: "a plan that the user rejected:\n",
}


def _todo(entries: dict[str, Entry], _first: int) -> list[Line]:
    """Open items first; what is done in one line, as it tells what was there to do."""
    by_tool = {key: each for key, each in entries.items() if not key.startswith(BOXES)}
    items = (by_tool or entries).values()
    lines = [
        Line(f"{each.state}: {each.text}", each.seq, 2 if each.state == RUNNING else 1)
        for each in items
        if each.state != DONE
    ]
    done = [each for each in items if each.state == DONE]
    if done:
        told = f"{DONE} ({len(done)}): {'; '.join(each.text for each in done)}"
        lines.append(Line(told, max(each.seq for each in done), 1))
    return lines


def _work(entries: dict[str, Entry], _first: int) -> list[Line]:
    lines = []
    for key, each in entries.items():
        text = f"last calls: {'; '.join(each.details)}" if each.details else each.text
        lines.append(Line(text, each.seq, key == "said"))
    return lines


def _commands(entries: dict[str, Entry], _first: int) -> list[Line]:
    """The last outcome of each command: those that failed first, then those that answered something."""
    lines = []
    for each in entries.values():
        told = "; ".join(each.details)
        outcome = OUTCOMES.get(each.state, each.state)
        rank = 1 if any("failed in #" in one for one in each.details) else 0
        rank = 2 if each.state in (FAILED, UNKNOWN, NOT_RUN) or PUBLISHES.match(each.text) else rank
        lines.append(Line(f"{each.text} → {outcome}" + (f": {told}" if told else ""), each.seq, rank))
    return lines


def _edited(entries: dict[str, Entry], most: int) -> list[Line]:
    """Each file with the last lines that edits brought, of each at most so many."""
    lines = []
    for path, each in entries.items():
        times = f" ({each.edits} edits)" if each.edits > 1 else ""
        changes = (
            ": " + ", ".join(f"`{one}`" for one in each.details[-most:]) if each.details and most else ""
        )
        again = f"; read again in #{each.read}" if each.read > each.seq else ""
        lines.append(Line(f"{path}{times}{changes}{again}", each.seq))
    return lines


def _read(entries: dict[str, Entry], _first: int) -> list[Line]:
    """Files that were only read, some to a line, the newest first."""
    newest = list(entries.values())[::-1]
    groups = [newest[at : at + PATHS_A_LINE] for at in range(0, len(newest), PATHS_A_LINE)]
    return [Line(", ".join(each.text for each in group), group[0].seq) for group in groups][::-1]


def _said(entries: dict[str, Entry], since: int) -> list[Line]:
    """What the agent said before its newest words. A remark before a call gives way to longer texts, and what was said
    before the person's last words to what was said since."""
    said = list(entries.values())[:-1]
    return [Line(each.text, each.seq, 2 * (each.state == LONG) + (each.seq > since)) for each in said]


_MAKERS = {
    WORDS: _words,
    MODE: _mode,
    TODO: _todo,
    WORK: _work,
    COMMANDS: _commands,
    READ: _read,
    SAID: _said,
}


# --- Cutting them to the budget -----------------------------------------------------------------------------


def _compose(
    head: str,
    sections: dict[str, list[Line]],
    budget: int,
    counter: TokenCounter,
    agent_id: str,
    generous: float = 1.0,
) -> tuple[str, set[int]]:
    total = left = budget - counter.count(head) - 2
    ranked = {
        title: sorted(lines, key=lambda line: (line.rank, line.seq), reverse=True)
        for title, lines in sections.items()
    }
    ratios = _tokens_per_character(ranked, counter)
    whole = {
        title: sum(len(line.text) + _FRAME_CHARACTERS + 1 for line in lines) * ratios[title] + TITLE_TOKENS
        for title, lines in ranked.items()
    }
    for title, least in ((WORDS, LEAST_WORDS), (AGENTS, LEAST_RESULT)):
        if title in ranked:
            left_by_others = total - sum(whole.values()) + whole[title]
            room = int(max(generous * total * SHARES[title], left_by_others) / ratios[title])
            ranked[title] = _levelled(ranked[title], room, least, agent_id)
    chosen: dict[str, list[Line]] = {}
    places = dict.fromkeys(ranked, 0)

    def take(title: str, most: float, lines_most: int = 1_000) -> None:
        """Take lines of a section for at most `most` tokens. One line that is longer than that is shortened."""
        nonlocal left
        ratio, frame = ratios[title], _FRAME_CHARACTERS
        while places[title] < len(ranked[title]) and lines_most > 0 and min(left, most) > 0:
            line = ranked[title][places[title]]
            title_tokens = TITLE_TOKENS if title not in chosen else 0
            fits = int((min(left, most) - title_tokens - 1) / ratio) - frame
            if len(line.text) > fits:
                if fits < (LEAST_WORDS if title in chosen else LEAST_LINE):
                    return
                line = line._replace(text=_shortened(line, fits, agent_id))
            cost = int((len(line.text) + frame) * ratio) + 1 + title_tokens
            if cost > left:
                return
            left -= cost
            most -= cost
            lines_most -= 1
            places[title] += 1
            chosen.setdefault(title, []).append(line)

    for title in (ASKED, WORDS):
        if title in ranked:
            take(title, SHARES[title] * total)
    for title, share in SHARES.items():
        if title in ranked and title not in chosen:
            take(title, generous * max(share, 0.1) * total, 1)
    for title, share in SHARES.items():
        if title in ranked:
            spent = sum(
                int((len(line.text) + _FRAME_CHARACTERS) * ratios[title]) for line in chosen.get(title, ())
            )
            take(title, min(left, share * total - spent))
    for title in REST:
        if title in ranked:
            take(title, left)
    parts = [head]
    for title in SECTIONS:
        if title in chosen:
            parts += [
                f"{title}:",
                *(line.shown() for line in sorted(chosen[title], key=lambda line: line.seq)),
            ]
    return "\n".join(parts), {line.seq for lines in chosen.values() for line in lines}


def _tokens_per_character(ranked: dict[str, list[Line]], counter: TokenCounter) -> dict[str, float]:
    """What the lines of each section cost, estimated from the first few: counting each would cost more than it
    tells."""
    found = {}
    for title, lines in ranked.items():
        text = " (#123)\n- ".join(line.text[:SAMPLE_CHARACTERS] for line in lines[:4])
        found[title] = max(0.05, MARGIN * counter.count(text) / len(text))
    return found


def _shortened(line: Line, characters: int, agent_id: str) -> str:
    """The beginning and the end of a line with a pointer between them; of one that holds a pointer, its beginning."""
    here = pointer_of(agent_id, line.seq)
    whole, mark, outline = line.text.partition("\n[… whole:")
    if mark:
        outline = f"\n[… whole:{outline}" if len(outline) < characters // 2 else f" [… {here}]"
        return f"{whole[: max(0, characters - len(outline))].rpartition(' ')[0]}{outline}"
    return shortened_words(whole, characters - len(here)).replace(HERE, here)


def _levelled(lines: list[Line], room: int, least: int, agent_id: str) -> list[Line]:
    """Texts of which long ones are shortened to one length, so that all fit into `room` characters; where that would
    leave less than `least` of each, they are cut there, and the caller leaves out the oldest."""
    free, most = room, max(least, room)
    for place, size in enumerate(sorted(len(line.text) + _FRAME_CHARACTERS for line in lines)):
        most = max(least, free // (len(lines) - place))
        if size > most:
            break
        free -= size
    else:
        return lines
    return [
        line._replace(text=_shortened(line, most, agent_id)) if len(line.text) > most else line
        for line in lines
    ]
