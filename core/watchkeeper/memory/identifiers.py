"""Identifiers that a summary must not lose: paths, URLs, hashes, ids, error lines, numbers in decisions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.memory.content import texts_of
from watchkeeper.records.memory import Message

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
"""Of each text this much is read from its beginning, and as much from its end: CPU stays bounded."""

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
    found: dict[str, None] = {}
    if "://" in text:
        for url in URL.findall(text):
            found[url.rstrip(".,:;")] = None
        text = URL.sub(" ", text)
    for path in paths_in(text):
        found[path] = None
    for pattern in (HASH, ID):
        for match in pattern.findall(text):
            found[match] = None
    for line in error_lines(text):
        found[line] = None
    for line in text.splitlines():
        if len(line) <= 400 and DECISION.search(line) and not _LISTED.match(line):
            for number in NUMBER.findall(line):
                if len(number) >= 2:
                    found[number] = None
    return list(found)


def gather(messages: Iterable[Message]) -> dict[str, int]:
    """Identifier → the last message that it stands in; at most `PER_MESSAGE` of each message."""
    found: dict[str, int] = {}
    for message in messages:
        own: dict[str, None] = {}
        for text in texts_of(message.content):
            for identifier in identifiers_in(text):
                own[identifier] = None
            if len(own) >= PER_MESSAGE:
                break
        for identifier in list(own)[:PER_MESSAGE]:
            found[identifier] = message.seq
    return found
