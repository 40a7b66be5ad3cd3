"""The checks of a pass: `judge` says whether a model's text can be trusted, `spliced` whether it fits the view.

Every summary, observation and reflection goes through both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from watchkeeper.memory import digest as digests
from watchkeeper.memory.content import cut_points, texts_of
from watchkeeper.memory.history import CompactionPass, Prepared, Rejection
from watchkeeper.memory.ledger import COMMANDS, FAILED, Ledger, Notebook
from watchkeeper.memory.notes import LISTED, MENTIONED, gather, identifiers_in
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
            f"The summary has {prepared.tokens} tokens and its source has {prepared.source_tokens}. The "
            f"summary must be at least {SMALLER_BY:.0%} smaller."
        )
    before: list[Observation] = []
    after: list[Observation] = []
    for have in view.observations:
        if have.covers[1] < first:
            before.append(have)
        elif have.covers[0] > last:
            after.append(have)
        elif have.covers[0] < first or have.covers[1] > last:
            return Rejection(f"Observation {have.id} covers messages before and after the cut at {last}.")
        elif have.id not in prepared.replaces and not have.provisional:
            return Rejection(f"Observation {have.id} was added during the compaction, which did not read it.")
    start = before[-1].covers[1] + 1 if before else 1
    if first != start:
        return Rejection(f"The pass covers messages from {first}, but must cover them from {start}.")
    verbatim = tail[0].seq if tail else next_seq
    if last >= next_seq:
        return Rejection(f"The pass covers message {last}, which does not exist.")
    if after:
        if after[0].covers[0] != last + 1:
            return Rejection(f"Nothing would cover the messages after {last}.")
    elif last + 1 < verbatim:
        return Rejection(f"Nothing would cover messages {last + 1} to {verbatim - 1}.")
    elif last + 1 > verbatim:
        if not cut_points(tail)[last + 1 - verbatim]:
            return Rejection(f"A cut after message {last} would separate a tool call from its result.")
        verbatim = last + 1
    if _grows_for_little(prepared, view, tail, next_seq):
        return Rejection(
            f"The summary covers {last - first + 1} of {next_seq - first} messages and takes more tokens than they"
            " do."
        )
    return (*before, observation, *after), (verbatim if verbatim < next_seq else None)


GROWING_SHARE = 0.25
"""A summary may be larger than the digest whose place it takes, where it covers this share of the messages."""


def _grows_for_little(prepared: Prepared, view: View, tail: Sequence[Message], next_seq: int) -> bool:
    """Whether the context would grow for a summary of a few messages."""
    first, last = prepared.covers
    if (last - first + 1) >= (next_seq - first) * GROWING_SHARE:
        return False
    shown = sum(
        have.tokens for have in view.observations if first <= have.covers[0] and have.covers[1] <= last
    )
    for message in tail:
        if message.seq > last:
            break
        short = view.elided.get(message.seq)
        shown += message.tokens if short is None else short.tokens
    return prepared.tokens > shown


# --- Judging a model's text ---------------------------------------------------------------------------------
#
# Whether it is one (no refusal, no loop), its citations, its size, and what it keeps and drops.

CITATION = re.compile(
    r"(?<![\w#&/])#(?P<one>\d{1,9})(?:\s*[–-]\s*#?(?P<to>\d{1,9}))?(?!\w)"
    r"|message://[\w.-]+/(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?"
    r"|(?<![\w\]])\[(?P<list>#?\d{1,9}(?:\s*[,–-]\s*#?\d{1,9})*)\](?!\()"
)
"""`#12`, `#12-15`, `message://agent/12-40`, `[12]`, `[#12, #14]`."""

_NUMBER = re.compile(r"\d+")
IDENTIFIERS_SHARE = 0.1
"""Largest share of the limit for identifiers appended to a summary; its pointer leads to all others."""
LEAST_IDENTIFIERS_ROOM = 100
"""Tokens that appended identifiers may always take; else an eighth of what the summary covers."""
LONG_TEXT_CHARACTERS = 4_000
"""Longer texts are searched for refusals and repetition in a thread."""
DIGEST_TOKENS = 500
"""A summary, however short, is compared with a digest of this many tokens at least."""
LEAST_INFORMATION = 0.05
"""The share of the digest's identifiers that a summary must keep: at equal tokens, or for each token. Summaries that
programs wrote, which also say why and what comes next, keep .10 to .50."""
FEW_IDENTIFIERS = 6
"""Where a digest keeps fewer, a range has too few to judge by."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A text that may replace messages, and the messages that it cites."""

    text: str
    citations: tuple[int, ...]
    tokens: int = 0


async def judge(
    text: object, run: CompactionPass, counter: TokenCounter, identifiers_room: int = 0
) -> Judgement | Rejection:
    """Whether what a model wrote may replace what `run` read: it is a text, no refusal, does not repeat itself, cites
    what exists, is smaller by 5 %, and (a summary) says no less than a digest of the same range would.

    `identifiers_room`: how many tokens the identifiers may take that a summary dropped and that are appended.
    """
    if not isinstance(text, str):
        return Rejection(f"The {run.writer} returned {type(text).__name__} instead of text.")
    if len(text) > max(4_000, 40 * run.source_tokens):
        return Rejection(
            f"The {run.kind} has {len(text)} characters for {run.source_tokens} tokens of messages."
        )
    long = len(text) > LONG_TEXT_CHARACTERS
    wrong = await asyncio.to_thread(unusable, text) if long else unusable(text)
    if wrong:
        return Rejection(f"The {run.kind} {wrong}.")
    cited = judge_citations(text, run)
    if isinstance(cited, Rejection):
        return cited
    most = int(run.source_tokens * (1 - SMALLER_BY))
    tokens = await _counted(cited.text, counter)
    if tokens > most:
        return Rejection(
            f"The {run.kind} has {tokens} tokens and its source has {run.source_tokens}. It must be at least 5% smaller."
        )
    if run.kind is not ObservationKind.SUMMARY:
        return replace(cited, tokens=tokens)
    ledger = Ledger.of(run.earlier, notebook := Notebook())
    async for _ in paced(ledger.reading(run.messages, notebook)):
        pass
    found = without_settled(await identifiers_of(run), ledger)
    poor = await less_than_digest(cited.text, tokens, run, found, ledger, counter)
    if poor:
        return Rejection(f"The {run.kind} {poor}.")
    room = min(most - tokens, identifiers_room, max(LEAST_IDENTIFIERS_ROOM, run.source_tokens // 8))
    if room > 0:
        whole = await with_identifiers(cited.text, found, room, counter)
        counted = await _counted(whole, counter)
        if counted <= most:  # lines counted one by one may count a little more together
            return replace(cited, text=whole, tokens=counted)
    return replace(cited, tokens=tokens)


async def _counted(text: str, counter: TokenCounter) -> int:
    if len(text) > BESIDE_LOOP_CHARACTERS // 4:
        return await asyncio.to_thread(counter.count, text)
    return counter.count(text)


def unusable(text: str) -> str | None:
    """Why `text`, as a predicate, can be no memory at all: a refusal, or the output of a stuck model; else None."""
    declined = refusal(text)
    if declined:
        return f"is a refusal: “{declined}”"
    stuck = degenerate(text)
    return f"is degenerate: {stuck}" if stuck else None


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


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a turn of the event loop after each millisecond of work."""
    now = asyncio.get_running_loop().time
    since = now()
    for item in items:
        yield item
        if now() - since >= 0.001:
            await asyncio.sleep(0)
            since = now()


async def identifiers_of(run: CompactionPass) -> dict[str, int]:
    """Identifier → the last message that names it, of everything that `run` read, oldest first, without noise. Lets
    the event loop run meanwhile."""
    found: dict[str, int] = {}
    async for identifiers in paced(_identifiers(run)):
        for named, seq in identifiers.items():
            identifier = named.rstrip(",.;:")
            if not _noise(identifier, run):
                found.pop(identifier, None)
                found[identifier] = seq
    return found


_BARE_NUMBER = re.compile(r"[\d.,_]+%?")
_CALL_ID = re.compile(r"(?:toolu|call|msg|req|srvtoolu|chatcmpl|resp)[_-]\w+")


def _noise(identifier: str, run: CompactionPass) -> bool:
    """Whether an identifier says nothing without its sentence: a small number, what reads as a message's number, the
    id of a call, a word of a few letters."""
    if _BARE_NUMBER.fullmatch(identifier):
        return sum(map(str.isdigit, identifier)) < 4
    if identifier.startswith("#") and identifier[1:].isdecimal():
        return int(identifier[1:]) <= run.covers[1]
    return len(identifier) < 5 or bool(_CALL_ID.fullmatch(identifier))


def without_settled(found: dict[str, int], ledger: Ledger) -> dict[str, int]:
    """The identifiers without the errors of calls that have succeeded since."""
    calls = ledger.entries(COMMANDS).values()
    failing = "\n".join(line for call in calls if call.state == FAILED for line in call.details)
    return {name: seq for name, seq in found.items() if " " not in name or name[:80] in failing}


async def less_than_digest(
    text: str, tokens: int, run: CompactionPass, found: dict[str, int], ledger: Ledger, counter: TokenCounter
) -> str | None:
    """Why `text`, as a predicate, keeps too little of the identifiers `found`: both for its size and in all much less
    than a digest of the same messages; else None."""
    if len(found) < FEW_IDENTIFIERS:
        return None
    budget = min(max(tokens, DIGEST_TOKENS), run.source_tokens // 2)
    digest = await asyncio.to_thread(digests.write, ledger, "agent", run.covers, budget, counter)
    kept = usual = 0
    async for one in paced(found):
        kept += one in text
        usual += one in digest.text
    enough = usual * LEAST_INFORMATION
    if usual < FEW_IDENTIFIERS or kept >= enough or kept / max(1, tokens) >= enough / max(1, digest.tokens):
        return None
    return (
        f"names {kept} of the paths, ids and errors in its source, in {tokens} tokens; a digest without a model names"
        f" {usual} in {digest.tokens}"
    )


async def with_identifiers(text: str, found: dict[str, int], room: int, counter: TokenCounter) -> str:
    """`text` with each identifier of `found` that it dropped as a line `identifier → #seq`; the newest if space is
    short. Lets the event loop run meanwhile."""
    heading = f"\n{MENTIONED}:"
    left = room - counter.count(heading) - 1
    lines: list[tuple[int, str]] = []
    misses = 0
    listed = text
    async for identifier, seq in paced(reversed(found.items())):
        if left <= 0 or misses > 20:
            break
        if identifier in listed:
            continue
        line = f"{identifier} → #{seq}"
        cost = counter.count(line) + 1
        if cost <= left:
            left -= cost
            lines.append((seq, line))
            listed += f"\n{identifier}"
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
            listed = LISTED.fullmatch(line)
            if listed:  # a line that `with_identifiers` wrote for an earlier summary
                yield {listed.group(1): min(max(1, int(listed.group(2))), last)}
                continue
            cited = CITATION.search(line)
            numbers = _NUMBER.findall(_numbers(cited)) if cited else []
            seq = min(max(1, int(numbers[0])), last) if numbers else last
            yield dict.fromkeys(identifiers_in(CITATION.sub(" ", line)), seq)
    for message in run.messages:
        yield gather([message])


# --- Refusals ------------------------------------------------------------------------------------------------
#
# A model that declines to summarise speaks in the first person. A summary that reports a refusal quotes it, cites
# it, or says who refused.

_STRAIGHT = {ord(mark): "'" for mark in "’‘ʼ＇"} | {ord(mark): '"' for mark in "“”„«»「」"}
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_QUOTATION = re.compile(r"\"[^\"]*\"|`[^`]*`|(?<!\w)'(?:[^']|(?<=\w)'(?=\w))*'(?!\w)")
_QUOTED_LINE = re.compile(r"\W*([\"'`])([^\"`]*)\1\W*")
_SENTENCE = re.compile(r"(?<=[.!?;。！？])\s*(?=\S)")
_I = r"\b(?:i|we)"
_CANNOT = (
    rf"{_I}(?: (?:really |simply |just |also )*(?:can'?t|can ?not|won'?t|will not|will be unable to|must decline"
    r"|(?:have|need) to (?:\w+ )?(?:decline|refuse)|decline|refuse|don'?t feel comfortable|do not feel comfortable)"
    r"|(?:'m| am|'re| are) (?:really |simply |just |currently )*(?:unable|not able|not allowed|not permitted|not willing"
    r"|not comfortable|not going to|going to have to (?:\w+ )?(?:decline|refuse)))"
)
_TASK = (
    r"\b(?:(?:help|assist)(?:ing)?\b(?: you)?(?: (?:with|in|on|by))?"
    r"(?: (?:that|this|it|your|such|any|these|those|you|summar\w+|creat\w+|the (?:request|task|summary))\b|\s*[.!,;]|\s*$)"
    r"|summari[sz](?:e|ing)\b"
    r"|(?:do|doing) (?:that|this|so|it)\b"
    r"|(?:comply|continue|proceed|engage)(?: (?:with|in) (?:this|that|your|the|such|any)\b|\s*[.!,;]|\s*$)"
    r"|(?:(?:compl|fulfil)\w*|process|answer|discuss|provid\w+|produc\w+|writ\w+|creat\w+|generat\w+|giv\w+|offer|shar\w+"
    r"|perform|respond)\b[^.!?]{0,40}\b(?:request|task|summary|question|conversation|topic|content|prompt|instructions?"
    r"|transcript|material|that|this))"
)
_REFUSAL = re.compile(
    rf"(?:(?:\b(?:sorry|afraid|apologi[sz]e|apologies|regret)\b[^.!?]{{0,60}}?{_CANNOT})"
    rf"|(?:{_CANNOT}[^.!?]{{0,30}}?{_TASK})"
    rf"|{_I} (?:must|(?:have|need) to|will have to|'ll have to)(?: \w+)? (?:decline|refuse)(?:\s*[.!,;]|\s*$)"
    r"|\bas an? (?:ai|artificial intelligence|large language|language) ?(?:language )?(?:model|assistant)?,? i\b"
    r"|\b(?:this|that|your|the) request (?:violates|goes against|is against|conflicts with)"
    rf"|\b(?:that is|that's|this is) (?:not )?something (?:that )?{_I}(?:'m| am| can|can'?t| cannot)"
    r"|\b(?:please|could you|can you) (?:provide|share|paste|send|give)\b[^.!?]{0,40}"
    r"\b(?:conversation|transcript|messages|text|content)\b"
    r"|\bhow (?:can|may) i (?:help|assist) you\b"
    r"|\byou (?:haven'?t|have not|didn'?t) (?:provided?|shared?|given?) (?:me )?(?:any|the|a)\b"
    rf"|{_I} (?:don'?t|do not) (?:see|have)\b[^.!?]{{0,30}}\b(?:conversation|transcript|messages|text)\b"
    r"|\b(?:lo siento|desculpe|mi dispiace)\b[^.!?]{0,40}\b(?:no puedo|n[ãa]o posso|non posso)\b"
    r"|\bd[ée]sol[ée]e?\b[^.!?]{0,40}\bne (?:peux|suis) pas\b"
    r"|\btut mir leid\b[^.!?]{0,60}\bnicht\b"
    r"|(?:抱歉|对不起|對不起)[^。！？]{0,20}(?:无法|無法|不能)|申し訳[^。！？]{0,30}(?:できません|できかねます)"
    r"|죄송[^.!?]{0,30}(?:없습니다|없어요))",
)
_TOLD = re.compile(
    r"\b(?:said|says|told|tells|repl(?:y|ied|ies)|answer(?:s|ed)?|respon(?:se|ds|ded)|refus(?:ed|es|al)|declin(?:ed|es)|wrote"
    r"|writes|return(?:s|ed)|outputs?|error|reject(?:s|ed)|stat(?:es|ed)|explain(?:s|ed)|claim(?:s|ed)|report(?:s|ed)"
    r"|insist(?:s|ed)|admit(?:s|ted)|apologi[sz]ed|noted|ask(?:s|ed)|detects?|e\.g|such as|example|phrase|pattern|whether|if"
    r"|stopped with|ended with|got)\b"
)
_TOLD_AFTER = re.compile(
    r"\b(?:said|says|replied|answered|responded|wrote)\b|\bwas the (?:answer|reply|response)\b"
)
_LISTED_LINE = re.compile(
    r"\s*(?:[-*•+>|\[]|\d{1,3}[.)]|\**(?:assistant|user|human|ai|model|agent)\b[^:]{0,20}:)", re.I
)
_BESIDE_REFUSAL = 200
"""Characters that a summary says beside a listed or cited refusal, where it is a record of one."""


def refusal(text: str) -> str | None:
    """The sentence in which a model declines to write a summary; None where `text` merely reports one."""
    text = _FENCED.sub(" … ", text.translate(_STRAIGHT))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    letters = sum(map(len, lines))
    for place, line in enumerate(lines):
        whole = _QUOTED_LINE.fullmatch(line)
        lowered = (whole.group(2) if whole else _QUOTATION.sub(" … ", line)).lower()
        if not _REFUSAL.search(lowered):
            continue
        cites = CITATION.search(line)
        record = bool(whole or cites or _LISTED_LINE.match(line))
        if place and lines[place - 1].rstrip(" *_").endswith(":") and _TOLD.search(lines[place - 1].lower()):
            continue
        if record and letters - len(line) >= _BESIDE_REFUSAL:
            continue
        reported = False
        for sentence in _SENTENCE.split(lowered):
            found = _REFUSAL.search(sentence)
            before = _TOLD.search(sentence[: found.start()] if found else sentence)
            if found and not reported and not before and not _TOLD_AFTER.search(sentence, found.end()):
                return sentence.strip()[:120]
            reported = reported or (before is not None and bool(cites or ":" in sentence[before.end() :]))
    return None


# --- Repetition ----------------------------------------------------------------------------------------------
#
# A model that got stuck says the same words, lines or paragraphs again. A loop has a period: from some word on, each
# word equals the one so many words before.

_MARKER = re.compile(r"^\s*(?:(?:[-*+•>|]|\d{1,4}[.)])\s+)+", re.MULTILINE)
_CITES = re.compile(r"[\[(]?#\d{1,9}(?:\s*[–-]\s*#?\d{1,9})?[\])]?")
_WORDS = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
_LONG_WORD = 60
"""Longer words are read character by character: a loop may hold no space."""
ENDLESS, ENDLESS_PHRASE, ENDLESS_LISTED = 12, 5, 50
"""Times in a row after which up to eight words, a longer phrase, or a statement with other citations each time are a
loop, however much else there is."""
_LOOP_SHARE = 1 / 3
_COPIED_SHARE = 1 / 2
_LOOP_CHARACTERS = 900
"""A loop that adds more characters than this is no slip, however long the rest is."""


def degenerate(text: str) -> str | None:
    """Why `text` is the output of a model that got stuck (words, lines or paragraphs over and over); None where it
    is not."""
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 8]
    if len(lines) >= 8 and len(set(lines)) < len(lines) / 3:
        return f"it repeats {len(lines) - len(set(lines))} of its {len(lines)} lines"
    return _loops(_words(text)) or _lists_the_same(_words(_CITES.sub(" ", text)))


def _loops(words: Sequence[str]) -> str | None:
    sizes = [len(word) + (len(word) > 1) for word in words]
    total = max(1, sum(sizes))
    looped: set[int] = set()
    copied: set[int] = set()
    for width in (3, 12):
        for first, last, period in _runs(words, width):
            times = 1 + (last - first) / period
            if times >= (ENDLESS if period <= 8 else ENDLESS_PHRASE) and _says(words[first:last]):
                return "it repeats the same words over and over"
            if times >= (ENDLESS_PHRASE if period <= 8 else 3 if period <= 40 else 1.9):
                looped.update(range(first, last))
            elif width > 3:
                copied.update(range(first, last))
    again = sum(sizes[place] for place in looped)
    if again >= min(_LOOP_CHARACTERS, total * _LOOP_SHARE) and again > 24:
        return "it repeats one phrase over and over"
    if sum(sizes[place] for place in looped | copied) >= total * _COPIED_SHARE and total > 200:
        return "it repeats most of its text"
    return None


def _lists_the_same(words: Sequence[str]) -> str | None:
    """Statements that differ in nothing but the message that they cite: a log may hold some in a row."""
    for first, last, period in _runs(words, 3):
        if last - first >= period * (ENDLESS_LISTED - 1) and _says(words[first:last]):
            return "it repeats one statement with different citations"
    return None


def _says(words: Sequence[str]) -> bool:
    return any(map(str.isalpha, "".join(words)))


def _words(text: str) -> list[str]:
    """The words of a text, without list markers and rulers; a very long one as its characters."""
    found: list[str] = []
    for word in _WORDS.findall(_MARKER.sub("", text.lower())):
        if len(word) > 3 and not any(map(str.isalnum, word)) and len(word) <= 200:
            continue
        found.extend(word if len(word) > _LONG_WORD else (word,))
    return found


def _runs(words: Sequence[str], width: int) -> Iterator[tuple[int, int, int]]:
    """Stretches of words that equal those `period` words before: first, last + 1, period. `width`: words that are
    compared at once."""
    seen: dict[tuple[str, ...], int] = {}
    period = first = 0
    for place in range(len(words) - width + 1):
        window = tuple(words[place : place + width])
        before = seen.get(window)
        seen[window] = place
        now = place - before if before is not None else 0
        if now != period:
            if period:
                yield first, place - 1 + width, period
            period, first = now, place
    if period:
        yield first, len(words), period
