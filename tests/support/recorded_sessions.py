"""Real recorded sessions, as the messages that the Messages API takes, and the identifiers in them.

They are transcripts of Claude Code (`*.jsonl`) in the folder that `WATCHKEEPER_TRANSCRIPTS` names, or beside a
checkout.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.memory.content import texts_of
from watchkeeper.records.messages import Content

_HERE = Path(__file__).resolve()
BESIDE = [_HERE.parents[3] / "shared" / "transcripts", _HERE.parents[3] / "transcripts"]
"""Where recorded sessions lie beside a checkout."""

BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document")
"""Blocks that a request to the Messages API may hold; transcripts know others (`fallback`), which were never
sent."""


@dataclass(slots=True)
class Thread:
    """One agent's messages in a recorded session, as the Messages API takes them."""

    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)


def folder() -> Path | None:
    """`WATCHKEEPER_TRANSCRIPTS`, else the folder beside the checkout; None where there is none."""
    named = os.environ.get("WATCHKEEPER_TRANSCRIPTS")
    for place in [Path(named)] if named else BESIDE:
        if place.is_dir():
            return place
    return None


def threads(place: Path, *, whole_replies: bool = True) -> list[Thread]:
    """The main thread of each transcript, and each side chain as a thread of its own; at least two messages
    each."""
    found: list[Thread] = []
    for path in sorted(place.rglob("*.jsonl")):
        found.extend(thread for thread in _threads_of(path, whole_replies) if len(thread.messages) > 1)
    return found


def _threads_of(path: Path, whole_replies: bool) -> Iterator[Thread]:
    main = Thread(path.stem[:24])
    sides: dict[str, Thread] = {}
    side_of: dict[str, Thread] = {}
    reply: dict[int, str] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        message = record.get("message") if isinstance(record, dict) else None
        if record.get("type") not in ("user", "assistant") or not isinstance(message, dict):
            continue
        content = _content(message.get("content"))
        if content is None:
            continue
        thread = main
        if record.get("isSidechain"):
            parent = side_of.get(str(record.get("parentUuid")))
            thread = parent or sides.setdefault(
                str(record.get("uuid")), Thread(f"{main.name}+{len(sides) + 1}")
            )
            side_of[str(record.get("uuid"))] = thread
        said = str(message.get("id") or "")
        # A reply is written block by block, under one id.
        if (
            whole_replies
            and said
            and reply.get(id(thread)) == said
            and isinstance(thread.messages[-1]["content"], list)
        ):
            thread.messages[-1]["content"] += (
                content if isinstance(content, list) else [{"type": "text", "text": content}]
            )
        else:
            thread.messages.append({"role": record["type"], "content": content})
        reply[id(thread)] = said if record["type"] == "assistant" else ""
    yield main
    yield from sides.values()


def _content(content: Any) -> Content | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    return [block for block in content if isinstance(block, dict) and block.get("type") in BLOCKS] or None


# --- identifiers: told apart from `watchkeeper.memory.notes` on purpose -------------------------------

_WORD = re.compile(r"[^\s\"'`<>()\[\]{}|,;=…]+")
_HASH = re.compile(r"(?=[0-9a-f-]*[0-9])(?=[0-9a-f-]*[a-f])[0-9a-f]{7,40}(?:-[0-9a-f]{4,12}){0,4}\Z")
_ID = re.compile(r"(?:[a-z]{2,8}_[A-Za-z0-9]{12,40}|[A-Z]{2,8}-\d{1,6}|[A-Z]\d{3,5})\Z")
_FILE = re.compile(
    r"[\w@~.+-]*[\w@+-]\.(?:py|pyi|ts|tsx|js|json|jsonl|md|toml|ya?ml|rs|go|sh|sql|css|html?|txt|lock|cfg)(?::\d+)?\Z"
)
_ERROR = re.compile(r"\b(?:[A-Z]\w*(?:Error|Exception)|error|ERROR|FAILED|fatal)\b\s*[:(\[]")


def identifiers(content: Content) -> set[str]:
    """Paths, hashes, ids, URLs and error lines (their first 120 characters) of a message."""
    found: set[str] = set()
    for text in texts_of(content):
        for line in text.splitlines():
            if _ERROR.search(line):
                found.add(" ".join(line.split())[:120])
        for word in _WORD.findall(text):
            word = word.strip(".:*\\_-")
            if not 5 <= len(word) <= 200:
                continue
            path = "/" in word and re.fullmatch(r"[\w@~.+/:-]+", word) and any(c.isalpha() for c in word)
            if "://" in word or path or _HASH.match(word) or _ID.match(word) or _FILE.match(word):
                found.add(word)
    return found


def squeezed(text: str) -> str:
    """Text with each run of white space as one space, as error lines are compared."""
    return " ".join(text.split())


def shown_text(context: list[dict[str, Any]]) -> str:
    """Everything that a reader of a context sees, in one line."""
    return squeezed("\n".join(text for message in context for text in texts_of(message["content"])))


# --- summarisers --------------------------------------------------------------------------------------------


class Scripted:
    """A summariser that behaves as its name says: `good`, `slow` (until `release`), `failing` or
    `babbling`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls = 0
        self._open = asyncio.Event()

    def release(self) -> None:
        """Let the slow one answer."""
        self._open.set()

    async def __call__(
        self, messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        self.calls += 1
        if self.kind == "failing":
            raise RuntimeError("529: overloaded")
        if self.kind == "babbling":
            return "I see. Let me think about what was said here before. " * 4_000
        if self.kind == "slow":
            await self._open.wait()
        await asyncio.sleep(0)
        first = shown_text(messages[:1])[:300]
        last = shown_text(messages[-1:])[:300]
        return f"{(previous or '')[:1200]}\n{len(messages)} messages: it began with {first}\nIt ended with {last}".strip()
