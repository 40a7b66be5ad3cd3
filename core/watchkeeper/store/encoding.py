"""JSON as the store holds it: compact text that SQLite can always bind."""

from __future__ import annotations

import json
import math
from typing import Any

_LONGEST_BITS = 10_000
"""Below Python's limit of 4,300 digits for reading an integer."""


def encode(value: Any) -> str:
    """JSON text of `value`. A lone surrogate (which no UTF-8 binding takes) makes the whole text plain ASCII
    escapes.

    What JSON cannot say does not stop a run: NaN and the infinities become null, and an integer of more
    digits than Python reads back becomes its text in hexadecimal.

    Raises:
        TypeError: no JSON value at all (bytes, an object).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        value = _sayable(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text


def decode(text: str) -> Any:
    """The value that `encode` was given."""
    return json.loads(text)


def decode_or(text: str, otherwise: Any) -> Any:
    """The value, or `otherwise` where the text is damaged: for readers that go on without it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _sayable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_sayable(key): _sayable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and value.bit_length() > _LONGEST_BITS:
        return hex(value)
    return value


def plain(text: str) -> str:
    """`text` with lone surrogates as U+FFFD: what may be bound, counted, indexed and shown."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return (
            text.encode("utf-8", "replace").decode()
            if text.isascii()
            else "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
        )
    return text
