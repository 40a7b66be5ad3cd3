"""Stored messages as blocks of plain, sanitised lines: what a transcript shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from watchkeeper.store.agent_snapshot import StoredMessage
from watchkeeper.store.snapshot import LiveFacts
from watchkeeper_tui.sanitize import clip, sanitize, sanitize_lines
from watchkeeper_tui.snapshot import TranscriptBlock

MOST_LINES = 400
"""Lines of one block that are kept for the screen."""
MOST_CHARS = 100_000
MOST_COLUMNS = 4_000
"""Columns of one line that are kept."""


def fold_message(message: StoredMessage, tool_names: dict[str, str]) -> list[TranscriptBlock]:
    """The blocks of one message. `tool_names` learns which tool each `tool_use` id called, so that results
    can name it."""
    if message.cut:
        lines, hidden = _lines(message.content)
        return [
            _block(
                message, 0, message.role, f"{message.role} (too large to fold)", lines, hidden, message.tokens
            )
        ]
    try:
        content = json.loads(message.content)
    except ValueError:
        content = message.content
    if isinstance(content, str):
        lines, hidden = _lines(content)
        return [_block(message, 0, message.role, message.role, lines, hidden, message.tokens)]
    blocks = content if isinstance(content, list) else [content]
    folded = []
    for index, (kind, title, text) in enumerate(_parts(message.role, blocks, tool_names)):
        lines, hidden = _lines(text)
        folded.append(_block(message, index, kind, title, lines, hidden, message.tokens if index == 0 else 0))
    return folded


def live_block(live: LiveFacts | None) -> TranscriptBlock | None:
    """What streams in now, as a block after the last one."""
    if live is None or not live.text:
        return None
    lines, hidden = _lines(live.text)
    return TranscriptBlock("live", 1 << 60, "live", "writing", lines, 0, live.updated_at, hidden)


def _block(
    message: StoredMessage,
    index: int,
    kind: str,
    title: str,
    lines: tuple[str, ...],
    hidden: int,
    tokens: int,
) -> TranscriptBlock:
    return TranscriptBlock(
        key=f"{message.seq}.{index}",
        seq=message.seq,
        kind=kind,
        title=clip(sanitize(title), 300),
        lines=lines,
        tokens=tokens,
        at=message.created_at,
        hidden=hidden,
    )


def _lines(text: str) -> tuple[tuple[str, ...], int]:
    """The lines kept, and how many were left out."""
    total = text.count("\n") + 1
    lines = sanitize_lines(text[:MOST_CHARS].strip("\n"), limit=MOST_LINES)
    kept = tuple(line if len(line) <= MOST_COLUMNS else clip(line, MOST_COLUMNS) for line in lines)
    return kept, max(0, total - len(kept))


def _parts(role: str, blocks: list[Any], tool_names: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for block in blocks:
        if not isinstance(block, dict):
            yield role, role, str(block)
            continue
        kind = block.get("type")
        if kind == "text":
            yield role, role, str(block.get("text", ""))
        elif kind in ("thinking", "redacted_thinking"):
            yield "thinking", "thinking", str(block.get("thinking", "(redacted)"))
        elif kind == "tool_use":
            name = str(block.get("name", "?"))
            tool_names[str(block.get("id"))] = name
            yield "tool_use", name, _arguments(block.get("input"))
        elif kind == "tool_result":
            name = tool_names.get(str(block.get("tool_use_id")), "result")
            yield (
                "tool_error" if block.get("is_error") else "tool_result",
                name,
                _result(block.get("content")),
            )
        else:
            yield "attachment", str(kind), f"[{kind}]"


def _arguments(value: Any) -> str:
    """A call's input: one `key: value` a line; a long string keeps its own lines."""
    if not isinstance(value, dict):
        return _flat(value)
    return "\n".join(
        f"{key}: {each if isinstance(each, str) else _flat(each)}" for key, each in value.items()
    )


def _result(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(each.get("text", f"[{each.get('type')}]")) if isinstance(each, dict) else str(each)
            for each in content
        )
    return _flat(content)


def _flat(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=True)[:MOST_CHARS]
