"""The checks of a pass: `judge` says whether a model's text can be trusted, `spliced` whether it fits the view.

Every summary, observation and reflection goes through both.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from watchkeeper.memory.content import cut_points, texts_of
from watchkeeper.memory.digest import gather, identifiers_in
from watchkeeper.memory.history import CompactionPass, Prepared, Rejection
from watchkeeper.memory.tokens import BESIDE_LOOP_CHARACTERS, TokenCounter, plain
from watchkeeper.records.messages import Message, Observation, ObservationKind, View

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
# Its size, its citations, what it dropped, and whether it repeats itself.

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
STUCK_CHARACTERS = 8_000
"""Shorter summaries may repeat a statement; a longer one that repeats itself comes from a stuck model."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A text that may replace messages, and the messages that it cites."""

    text: str
    citations: tuple[int, ...]
    tokens: int = 0


async def judge(
    text: object, run: CompactionPass, counter: TokenCounter, identifiers_room: int = 0
) -> Judgement | Rejection:
    """Whether what a model wrote may replace what `run` read: it is a text, not degenerate, cited, and smaller
    by 5 %.

    `identifiers_room`: how many tokens the identifiers may take that a summary dropped and that are appended.
    """
    if not isinstance(text, str):
        return Rejection(f"The {run.writer} returned {type(text).__name__} instead of text.")
    if len(text) > max(4_000, 40 * run.source_tokens):
        return Rejection(
            f"The {run.kind} has {len(text)} characters for {run.source_tokens} tokens of messages."
        )
    stuck = degenerate(text)
    if stuck and (run.kind is not ObservationKind.SUMMARY or len(text) > STUCK_CHARACTERS):
        return Rejection(f"The {run.kind} is degenerate: {stuck}.")
    cited = judge_citations(text, run)
    if isinstance(cited, Rejection):
        return cited
    most = int(run.source_tokens * (1 - SMALLER_BY))
    if len(cited.text) > BESIDE_LOOP_CHARACTERS:
        tokens = await asyncio.to_thread(counter.count, cited.text)
    else:
        tokens = counter.count(cited.text)
    if tokens > most:
        return Rejection(
            f"The {run.kind} takes {tokens} tokens, what it read {run.source_tokens}: not smaller by 5 %."
        )
    room = min(most - tokens, identifiers_room)
    if room > 0:
        whole = await with_identifiers(cited.text, run, room, counter)
        counted = counter.count(whole)
        if counted <= most:  # lines counted one by one may count a little more together
            return replace(cited, text=whole, tokens=counted)
    return replace(cited, tokens=tokens)


def judge_citations(text: str, run: CompactionPass) -> Judgement | Rejection:
    """Drop each line that cites a message which does not exist; a text without citations gets its range.

    A number that the text shares with what the pass read (`#4679` of another tracker) is no citation.
    """
    covers = run.covers
    kept: list[str] = []
    cited: set[int] = set()
    dropped = False
    source: str | None = None
    for line in plain(text).strip().splitlines():
        seqs: set[int] = set()
        invented = False
        for match in CITATION.finditer(line):
            numbers = [int(number) for number in _NUMBER.findall(_numbers(match))]
            if all(1 <= number <= covers[1] for number in numbers):
                seqs.update(numbers)
                continue
            source = _source_of(run) if source is None else source
            invented = invented or match.group(0) not in source
        if invented:
            dropped = True
            continue
        kept.append(line)
        cited.update(seq for seq in seqs if covers[0] <= seq <= covers[1])
    if not any(_says_something(line) for line in kept):
        if dropped:
            return Rejection(f"Every line of the {run.kind} cites messages that do not exist.")
        return Rejection(f"The {run.kind} is empty.")
    return Judgement("\n".join(kept).strip(), tuple(sorted(cited)) or tuple(dict.fromkeys(covers)))


def _source_of(run: CompactionPass) -> str:
    """Everything that a pass read, as one text."""
    texts = [piece for message in run.messages for piece in texts_of(message.content)]
    return "\0".join([*(have.text for have in run.earlier), run.previous or "", *texts])


def _numbers(match: re.Match[str]) -> str:
    return " ".join(part for part in match.groupdict().values() if part)


def _says_something(line: str) -> bool:
    return any(character.isalnum() for character in line) and not line.lstrip().startswith("#")


T = TypeVar("T")


async def _paced(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a turn of the event loop after each millisecond of work."""
    since = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - since >= 0.001:
            await asyncio.sleep(0)
            since = time.perf_counter()


async def with_identifiers(text: str, run: CompactionPass, room: int, counter: TokenCounter) -> str:
    """`text` with each identifier that it dropped of what `run` read as a line `identifier → #seq`; the newest
    if space is short. Lets the event loop run meanwhile."""
    found: dict[str, int] = {}
    async for identifiers in _paced(_identifiers(run)):
        for identifier, seq in identifiers.items():
            found.pop(identifier, None)
            found[identifier] = seq
    heading = "\nAlso mentioned:"
    left = room - counter.count(heading) - 1
    lines: list[tuple[int, str]] = []
    misses = 0
    async for identifier, seq in _paced(reversed(found.items())):
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
    if not lines:
        return text
    lines.sort(key=lambda item: item[0])
    return text + heading + "".join(f"\n{line}" for _, line in lines)


def _identifiers(run: CompactionPass) -> Iterator[dict[str, int]]:
    """Identifier → message, of everything that a pass read, oldest first."""
    for observation in run.earlier:
        last = observation.covers[1]
        for line in observation.text.splitlines():
            listed = _LISTED.fullmatch(line)
            if listed:  # a line that `with_identifiers` wrote for an earlier summary
                yield {listed.group(1): min(max(1, int(listed.group(2))), last)}
                continue
            cited = CITATION.search(line)
            numbers = _NUMBER.findall(_numbers(cited)) if cited else []
            seq = min(max(1, int(numbers[0])), last) if numbers else last
            yield dict.fromkeys(identifiers_in(CITATION.sub(" ", line)), seq)
    for message in run.messages:
        yield gather([message])


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
