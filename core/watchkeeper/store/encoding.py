"""JSON as the store holds it: compact text that SQLite can always bind."""

from __future__ import annotations

import json
from typing import Any


def encode(value: Any) -> str:
    """JSON text of `value`. A lone surrogate (which no UTF-8 binding takes) makes the whole text plain ASCII escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text


def decode(text: str) -> Any:
    """The value that `encode` was given."""
    return json.loads(text)


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
