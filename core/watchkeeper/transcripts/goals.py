"""What a person asked for, among what programs write in their name."""

from __future__ import annotations

from typing import Any

GOAL_CHARS = 4_000


def goal_of(content: Any) -> str | None:
    """What a person wrote, if it is that: the goal of a session is its first."""
    texts = [content] if isinstance(content, str) else [
        block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text"
    ]  # fmt: skip
    for text in texts:
        if isinstance(text, str) and text.strip() and not text.lstrip().startswith(("<", "Caveat:", "[Request interrupted")):
            return text.strip()[:GOAL_CHARS]
    return None
