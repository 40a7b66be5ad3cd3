"""Tokens of imported text, without a tokenizer: four bytes of JSON a token, opaque data left out. Estimates,
always."""

from __future__ import annotations

from typing import Any

BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1_500
"""About what an image costs a model, however many bytes it has."""


def message_tokens(content: Any, size: int) -> int:
    """Tokens of a message whose JSON text has `size` bytes."""
    opaque, images = _opaque(content, 0) if isinstance(content, list) else (0, 0)
    return max(1, (size - opaque) // BYTES_PER_TOKEN + images * IMAGE_TOKENS)


def text_tokens(text: str) -> int:
    """Tokens of a plain text."""
    return max(1, len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def _opaque(blocks: list[Any], depth: int) -> tuple[int, int]:
    """Bytes that no model reads as text, and how many images they are."""
    found, images = 0, 0
    for block in blocks:
        if not isinstance(block, dict):
            continue
        inside = block.get("content")
        if type(inside) is list and depth < 3:
            inner = _opaque(inside, depth + 1)
            found, images = found + inner[0], images + inner[1]
        if not ("signature" in block or "source" in block or "data" in block):
            continue
        source = block.get("source")
        data = source.get("data") if isinstance(source, dict) else block.get("data")
        if isinstance(data, str) and len(data) > 256:
            found, images = found + len(data), images + 1
        signature = block.get("signature")
        if isinstance(signature, str):
            found += len(signature)
    return found, images
