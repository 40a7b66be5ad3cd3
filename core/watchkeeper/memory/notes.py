"""Identifiers of a text that a summary must not lose: paths, URLs, hashes, ids, error lines, numbers in decisions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.memory.content import texts_of
from watchkeeper.records.messages import Message
from watchkeeper.records.tool_inputs import PATH

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
_NUMBERED = re.compile(r"^\s*\d{1,6}\s*(?:→|\||\t|:)")
"""A numbered line of a file that was read: it speaks of errors, it is none."""

DECISION = re.compile(
    r"\b(?:decid|decision|chose|choos|instead of|must|limit|budget|set to|threshold|port|version)\w*", re.I
)

MENTIONED = "Also mentioned"
"""The list of identifiers that is appended to a summary which dropped them."""

LISTED = re.compile(r"(.+) → #(\d{1,9})")
"""A line of that list: the identifier, and the last message that names it."""

NUMBER = re.compile(r"(?<![\w.])\d[\d,_]{0,20}(?:\.\d{1,10})?%?(?!\w)")

SCAN_CHARACTERS = 4_000
"""So many characters are read from the beginning of a text, and as many from its end, to bound CPU time."""

PER_MESSAGE = 40


def clipped(text: str, limit: int = SCAN_CHARACTERS) -> str:
    """The beginning and the end of a long text, cut between lines, else between words, so that no identifier is cut in
    two."""
    if len(text) <= 2 * limit:
        return text
    first, last = limit // 2, len(text) - limit // 2
    ends = (text.rfind(joint, first, limit) for joint in _JOINTS)
    begins = (text.find(joint, len(text) - limit, last) for joint in _JOINTS)
    head = text[: max(0, next((end for end in ends if end >= 0), 0))]
    tail = text[next((begin + 1 for begin in begins if begin >= 0), len(text)) :]
    return f"{head}\n{tail}"


_JOINTS = ("\n", " ", ",", ";", "&", "|")
"""Where a text is cut, the best first. A run of other characters that is longer than half of what is read is data."""


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
        if any(word in lowered for word in _ERROR_WORDS) and ERROR.search(line) and not _NUMBERED.match(line):
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
        if len(line) <= 400 and DECISION.search(line) and not _NUMBERED.match(line)
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
