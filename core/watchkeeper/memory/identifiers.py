"""Identifiers that a summary must not lose: paths, URLs, hashes, ids, error lines, numbers in decisions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.memory.content import texts_of
from watchkeeper.records.memory import Message

PATH = re.compile(
    r"(?<![\w/.:-])(?:~|\.{1,2})?/?(?:[\w.@+-]{1,80}/){1,16}[\w.@+-]{1,80}"
    r"|(?<![\w/.-])[\w-]{1,60}\.[A-Za-z][A-Za-z0-9]{0,5}(?![\w/(.])"
)
"""Paths with a slash, and plain file names with an extension."""

URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s<>\"'`)\]}]{3,300}")

HASH = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
"""Git hashes, digests and UUIDs."""

ID = re.compile(r"\b[A-Za-z]{2,12}[-_][A-Za-z0-9_-]*\d[A-Za-z0-9_-]*\b|(?<!\w)#\d{1,7}\b")
"""Ticket and record ids: `PROJ-123`, `toolu_01ab`, `#4679`."""

ERROR = re.compile(r"^.{0,80}?\b(?:[A-Z]\w*(?:Error|Exception)|error|fatal|panic|FAILED|Traceback)\b.{0,160}", re.MULTILINE)

DECISION = re.compile(r"\b(?:decid|decision|chose|choos|instead of|must|limit|budget|set to|threshold|port|version)\w*", re.I)

NUMBER = re.compile(r"(?<![\w.])\d[\d,_]*(?:\.\d+)?%?(?![\w])")

SCAN_CHARACTERS = 8_000
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
    return list(dict.fromkeys(match.strip(".,:;") for match in PATH.findall(clipped(text))))


def error_lines(text: str) -> list[str]:
    """Lines that name an error, each once."""
    return list(dict.fromkeys(" ".join(match.split()) for match in ERROR.findall(clipped(text))))


def identifiers_in(text: str) -> list[str]:
    """All identifiers of a text, each once."""
    text = clipped(text)
    found: dict[str, None] = {}
    for url in URL.findall(text):
        found[url.rstrip(".,:;")] = None
    for path in paths_in(URL.sub(" ", text)):
        found[path] = None
    for pattern in (HASH, ID):
        for match in pattern.findall(text):
            found[match] = None
    for line in error_lines(text):
        found[line[:160]] = None
    for line in text.splitlines():
        if len(line) <= 400 and DECISION.search(line):
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
