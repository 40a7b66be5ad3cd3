"""Tool output of bounded size: the beginning, the end, and how much is missing between them."""

from __future__ import annotations

from typing import Any

WORKER_CHARACTERS = 1 << 20
"""What a worker hands to the host at most, of text."""
RESULT_CHARACTERS = 100_000
"""What a model is shown at most, of one result's text."""
LONGEST_WORD = 512
"""Characters by which a cut moves so as not to go through a word."""
MOST_BLOCKS = 100
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MOST_IMAGE_BASE64 = 5 * 1024 * 1024
"""The Messages API's own limit for one image."""


def shorten(text: str, limit: int) -> str:
    """`text` itself, or its head and tail with a notice between, together not much longer than `limit`
    characters."""
    if len(text) <= limit:
        return text
    head = _before_word(text, limit * 2 // 3)
    tail = after_word(text, len(text) - (limit - limit * 2 // 3))
    return f"{text[:head]}\n[… {tail - head:,} of {len(text):,} characters left out here …]\n{text[tail:]}"


def _before_word(text: str, end: int) -> int:
    """Where the word that `end` cuts begins: half a key is not known for one any more, when secrets are taken
    out."""
    for at in range(end, max(end - LONGEST_WORD, 0), -1):
        if text[at].isspace() or text[at - 1].isspace():
            return at
    return end


def after_word(text: str, start: int) -> int:
    """Where the word that `start` cuts ends."""
    for at in range(start, min(start + LONGEST_WORD, len(text))):
        if text[at].isspace() or text[at - 1].isspace():
            return at
    return start


def shorten_content(content: Any, limit: int) -> str | list[dict[str, Any]]:
    """A result's content with its text shortened; anything that is no content at all becomes text."""
    if not isinstance(content, list):
        return shorten(content if isinstance(content, str) else repr(content), limit)
    blocks: list[dict[str, Any]] = []
    left = limit
    for block in content[:MOST_BLOCKS]:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "text":
            text = shorten(str(block.get("text", "")), max(left, 200))
            left -= len(text)
            blocks.append({"type": "text", "text": text})
        else:
            blocks.append(block)
    if len(content) > MOST_BLOCKS:
        blocks.append({"type": "text", "text": f"[{len(content) - MOST_BLOCKS} more blocks left out]"})
    return blocks


def is_content(value: Any) -> bool:
    """Whether a worker's value may go to a model unchanged: text, or text, image and document blocks."""
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(_is_block(block) for block in value)


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    if block.get("type") == "text":
        return isinstance(block.get("text"), str)
    source = block.get("source")
    if block.get("type") not in ("image", "document") or not isinstance(source, dict):
        return False
    return (
        source.get("type") == "base64"
        and isinstance(source.get("data"), str)
        and isinstance(source.get("media_type"), str)
    )
