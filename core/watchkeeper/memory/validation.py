"""The checks of a prepared pass: whether its text fits the view, and whether a model's text can be
trusted."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.memory.content import cut_points, texts_of
from watchkeeper.memory.digest import gather, identifiers_in
from watchkeeper.memory.history import Prepared, Rejection
from watchkeeper.memory.tokens import TokenCounter, plain
from watchkeeper.records.messages import Message, Observation, View

SMALLER_BY = 0.05
"""A pass must save at least this share of what it read."""


def spliced(
    prepared: Prepared, observation: Observation, view: View, tail: Sequence[Message], next_seq: int
) -> tuple[tuple[Observation, ...], int | None] | Rejection:
    """The observations and `verbatim_from` of `view` with `observation` in place of all that it covers.

    `tail` are the messages that `view` does not cover; `next_seq` is what the next message will be numbered.
    """
    first, last = prepared.covers
    if not prepared.text.strip() or not prepared.citations:
        return Rejection("The summary is empty.")
    if prepared.tokens > prepared.source_tokens * (1 - SMALLER_BY):
        return Rejection(
            f"The summary takes {prepared.tokens} tokens and what it replaces {prepared.source_tokens}: it"
            " must be "
            f"smaller by {SMALLER_BY:.0%}."
        )
    before: list[Observation] = []
    after: list[Observation] = []
    for have in view.observations:
        if have.covers[1] < first:
            before.append(have)
        elif have.covers[0] > last:
            after.append(have)
        elif have.covers[0] < first or have.covers[1] > last:
            return Rejection(f"Observation {have.id} covers messages on both sides of the mark {last}.")
        elif have.id not in prepared.replaces and not have.provisional:
            return Rejection(f"Observation {have.id} appeared while the pass ran, and it did not read it.")
    start = before[-1].covers[1] + 1 if before else 1
    if first != start:
        return Rejection(
            f"The pass covers messages from {first}, but {start} is the first that it must stand for."
        )
    verbatim = tail[0].seq if tail else next_seq
    if last >= next_seq:
        return Rejection(f"The pass covers message {last}, which does not exist.")
    if after:
        if after[0].covers[0] != last + 1:
            return Rejection(f"Messages behind {last} would be covered by nothing.")
    elif last + 1 < verbatim:
        return Rejection(f"Messages {last + 1} to {verbatim - 1} would be covered by nothing.")
    elif last + 1 > verbatim:
        if not cut_points(tail)[last + 1 - verbatim]:
            return Rejection(f"A cut behind message {last} would separate a tool call from its result.")
        verbatim = last + 1
    return (*before, observation, *after), (verbatim if verbatim < next_seq else None)


# --- Judging a model's text ---------------------------------------------------------------------------------
#
# Its citations, what it dropped, and whether it repeats itself.

CITATION = re.compile(
    r"(?<![\w#&/])#(?P<one>\d{1,9})(?:\s*[–-]\s*#?(?P<to>\d{1,9}))?(?!\w)"
    r"|message://[\w.-]+/(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?"
    r"|(?<![\w\]])\[(?P<list>#?\d{1,9}(?:\s*[,–-]\s*#?\d{1,9})*)\](?!\()"
)
"""`#12`, `#12-15`, `message://agent/12-40`, `[12]`, `[#12, #14]`."""

_LISTED = re.compile(r"(.+) → #(\d{1,9})")
_NUMBER = re.compile(r"\d+")
IDENTIFIERS_SHARE = 0.1
"""Largest share of the limit for identifiers appended to a summary; its pointer leads to all others."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A text that may replace messages, and the messages that it cites."""

    text: str
    citations: tuple[int, ...]


def judge_citations(
    text: str, covers: tuple[int, int], source: Sequence[Message], earlier: Sequence[str] = ()
) -> Judgement | Rejection:
    """Drop each line that cites a message which does not exist; a text without citations gets its range.

    A number that the source and the text share (`#4679` of another tracker) is no citation. The input is
    messages, and `earlier` texts that replace others.
    """
    kept: list[str] = []
    cited: set[int] = set()
    dropped = 0
    source_texts: list[str] = []
    for line in plain(text).strip().splitlines():
        seqs: set[int] = set()
        invented = False
        for match in CITATION.finditer(line):
            numbers = [int(number) for number in _NUMBER.findall(_numbers(match))]
            if any(not 1 <= number <= covers[1] for number in numbers):
                source_texts = source_texts or [
                    *earlier,
                    *(piece for message in source for piece in texts_of(message.content)),
                ]
                if not any(match.group(0) in piece for piece in source_texts):
                    invented = True
            else:
                seqs.update(numbers)
        if invented:
            dropped += 1
            continue
        kept.append(line)
        cited.update(seq for seq in seqs if covers[0] <= seq <= covers[1])
    if not any(_says_something(line) for line in kept):
        if dropped:
            return Rejection("Every line of the summary cites messages that do not exist.")
        return Rejection("The summary is empty.")
    return Judgement("\n".join(kept).strip(), tuple(sorted(cited)) or _range(covers))


def _numbers(match: re.Match[str]) -> str:
    return " ".join(part for part in match.groupdict().values() if part)


def _range(covers: tuple[int, int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(covers))


def _says_something(line: str) -> bool:
    return any(character.isalnum() for character in line) and not line.lstrip().startswith("#")


def judge_log(
    text: str,
    covers: tuple[int, int],
    source: Sequence[Message],
    source_tokens: int,
    counter: TokenCounter,
    earlier: Sequence[str] = (),
) -> Judgement | Rejection:
    """Whether what an observer or a reflector wrote may stand for `covers`: cited, not degenerate, smaller by
    5 %."""
    if not isinstance(text, str):
        return Rejection(f"{type(text).__name__} instead of text")
    stuck = degenerate(text)
    if stuck:
        return Rejection(f"it is degenerate: {stuck}")
    if len(text) > max(4_000, 40 * source_tokens):
        return Rejection("it is longer than what it was made from")
    judged = judge_citations(text, covers, source, earlier)
    if isinstance(judged, Judgement):
        tokens = counter.count(judged.text)
        if tokens > source_tokens * (1 - SMALLER_BY):
            return Rejection(f"it takes {tokens} tokens, what it was made from {source_tokens}")
    return judged


async def important_identifiers(source: Sequence[Message], earlier: Sequence[Observation]) -> dict[str, int]:
    """Identifier → message, of everything that a pass read. Lets the event loop run between messages."""
    found: dict[str, int] = {}
    breath = time.perf_counter()
    for observation in earlier:
        for line in observation.text.splitlines():
            listed = _LISTED.fullmatch(line)
            if listed:  # a line that `with_identifiers` wrote for an earlier summary
                found[listed.group(1)] = min(max(1, int(listed.group(2))), observation.covers[1])
                continue
            cited = CITATION.search(line)
            numbers = _NUMBER.findall(_numbers(cited)) if cited else []
            seq = int(numbers[0]) if numbers else observation.covers[1]
            for identifier in identifiers_in(CITATION.sub(" ", line)):
                found[identifier] = min(max(1, seq), observation.covers[1])
            breath = await _breathe(breath)
    for message in source:
        for identifier, seq in gather([message]).items():
            found.pop(identifier, None)
            found[identifier] = seq
        breath = await _breathe(breath)
    return found


async def _breathe(since: float) -> float:
    """Give the event loop a turn where the last one was over a millisecond ago."""
    if time.perf_counter() - since < 0.001:
        return since
    await asyncio.sleep(0)
    return time.perf_counter()


async def with_identifiers(text: str, found: dict[str, int], room: int, counter: TokenCounter) -> str:
    """`text` with each identifier that it dropped as a line `identifier → #seq`; the newest if space is
    short."""
    lines: list[tuple[int, str]] = []
    heading = "\nAlso mentioned:"
    left = room - counter.count(heading) - 1
    breath = time.perf_counter()
    misses = 0
    for identifier, seq in reversed(found.items()):
        if left <= 0 or misses > 20:
            break
        if identifier in text:
            continue
        line = f"{identifier} → #{seq}"
        cost = counter.count(line) + 1
        if cost <= left:
            left -= cost
            lines.append((seq, line))
        else:
            misses += 1
        breath = await _breathe(breath)
    if not lines:
        return text
    lines.sort(key=lambda item: item[0])
    return text + heading + "".join(f"\n{line}" for _, line in lines)


def degenerate(text: str) -> str | None:
    """Why `text` is the output of a model that got stuck (one line or one phrase over and over); None where
    it is not."""
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 8]
    if len(lines) >= 8 and len(set(lines)) < len(lines) / 3:
        return f"it repeats {len(lines) - len(set(lines))} of its {len(lines)} lines"
    words = text[:20_000].split()
    if len(words) >= 60:
        phrases = [" ".join(words[place : place + 5]) for place in range(0, len(words) - 4)]
        if len(set(phrases)) < len(phrases) / 3:
            return "it repeats one phrase over and over"
    longest = max((len(word) for word in text[:20_000].split()), default=0)
    if longest > 4_000 and len(set(text[:20_000])) < 12:
        return "it repeats a few characters over and over"
    return None
