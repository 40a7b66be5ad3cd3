"""Teammates: agents of one process that their lead wakes again and again by messages.

Each time one is woken, a new `agent-<id>.jsonl` with all of its history is begun. They are one agent: known
by its name and by what it was told at first, which the call that started it says as well.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from watchkeeper.transcripts.jsontext import text_of

_TOLD = re.compile(r"\s*<teammate-message\b[^>]*>(?P<prompt>.*)</teammate-message>\s*", re.DOTALL)


def teammate(name: str | None, prompt: str | None) -> str | None:
    """The key of the teammate that was started by that name and prompt."""
    if name is None or prompt is None or not prompt.strip():
        return None
    digest = hashlib.blake2b(prompt.strip().encode("utf-8", "replace"), digest_size=12).hexdigest()
    return f"teammate:{name}:{digest}"


def teammate_of(record: dict[str, Any], meta: dict[str, Any]) -> str | None:
    """The teammate whose log begins with that record, if a teammate's does."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    told = _TOLD.fullmatch(content) if isinstance(content, str) else None
    return teammate(
        text_of(meta.get("agentType")) or text_of(meta.get("name")),
        told["prompt"] if told is not None else None,
    )
