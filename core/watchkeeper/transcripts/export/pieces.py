"""What a message says, in pieces that a page can show: text, thinking, calls of tools, and their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from watchkeeper.records.text import sanitize

LONGEST = 100_000
"""Characters of one piece; of a longer one the rest is left out, and how much that is."""

Clean = Callable[[Any], Any]
"""Takes secrets out of a JSON value."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One block of a message. `text` is free of control characters, and nothing else: it is hostile still."""

    kind: str
    """`text`, `thinking`, `call`, `result`, or `other`."""
    text: str
    left_out: int = 0
    """Characters of the text that are not here."""
    name: str = ""
    """Of a call: the tool."""
    id: str = ""
    """What ties a result to its call."""
    is_error: bool = False


def pieces(content: Any, clean: Clean) -> Iterator[Piece]:
    """The pieces of a message's content, in order, without secrets."""
    content = clean(content)
    if isinstance(content, str):
        yield _piece("text", content)
        return
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        if kind == "text":
            yield _piece("text", _text(block.get("text")))
        elif kind == "thinking":
            yield _piece("thinking", _text(block.get("thinking")))
        elif kind == "tool_use":
            given = block.get("input")
            shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, indent=2)
            yield _piece("call", shown, name=line(block.get("name")), id=line(block.get("id")))
        elif kind == "tool_result":
            wrong = bool(block.get("is_error"))
            yield _piece(
                "result", _flat(block.get("content")), id=line(block.get("tool_use_id")), is_error=wrong
            )
        else:
            yield _piece("other", _described(block))


def line(value: Any, limit: int = 200) -> str:
    """A value as harmless text on one line."""
    text = " ".join(sanitize(_text(value)[: limit * 4]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def lines(value: Any, limit: int = LONGEST) -> str:
    """A value as harmless text of several lines."""
    text = sanitize(_text(value))
    return text if len(text) <= limit else text[:limit] + f"\n[… {len(text) - limit:,} characters more]"


def _piece(kind: str, text: str, *, name: str = "", id: str = "", is_error: bool = False) -> Piece:
    harmless = sanitize(text[:LONGEST])
    return Piece(kind, harmless, max(0, len(text) - LONGEST), name, id, is_error)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _flat(content: Any) -> str:
    if not isinstance(content, list):
        return _text(content)
    return "\n".join(
        (_text(block.get("text")) if block.get("type") == "text" else _described(block))
        for block in content
        if isinstance(block, dict)
    )


def _described(block: dict[str, Any]) -> str:
    """A block that is no text: what it is, and how large."""
    source = block.get("source")
    kind = _text(block.get("type")) or "block"
    if not isinstance(source, dict):
        return f"[{kind}]"
    data = source.get("data")
    size = f", {len(data) * 3 // 4:,} bytes" if isinstance(data, str) else ""
    return f"[{kind}: {_text(source.get('media_type')) or _text(source.get('type'))}{size}]"
