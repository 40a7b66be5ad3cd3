"""JSON as logs hold it: parsed fast, and whatever the fast parser refuses, with patience.

`pydantic_core` is what pydantic is made of, so it is there already; measured on real logs it parses twice as fast as the
standard library and writes three times as fast.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from watchkeeper.store.encoding import encode, plain


def parse(data: bytes) -> dict[str, Any] | None:
    """The JSON object that a line holds, or None where it holds none (broken, or another kind of value)."""
    from pydantic_core import from_json

    try:
        value = from_json(data, cache_strings="keys")
    except ValueError:
        # A lone surrogate or bytes that are no UTF-8: rare, and no reason to lose the record.
        try:
            value = bindable(json.loads(data.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def bindable(value: Any) -> Any:
    """The value with lone surrogates, which no database takes, as U+FFFD."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): bindable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [bindable(each) for each in value]
    return value


def write(value: Any) -> tuple[str, int]:
    """JSON text of `value` as the store holds it, and its length in bytes."""
    from pydantic_core import PydanticSerializationError, to_json

    try:
        data = to_json(value)
        return data.decode(), len(data)
    except (PydanticSerializationError, ValueError, RecursionError):
        text = encode(value)
        return text, len(text)


def seconds(timestamp: Any) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, or of a number of seconds or milliseconds; None for anything else."""
    if isinstance(timestamp, str):
        try:
            at = datetime.fromisoformat(timestamp)
            return at.timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        return None
    value = float(timestamp)
    if not 0 < value < 1e15:
        return None
    return value / 1000 if value > 1e11 else value


def text_of(value: Any) -> str | None:
    """A string that says something, or None."""
    return value if isinstance(value, str) and value.strip() else None


def count_of(value: Any) -> int:
    """A number of tokens: what is no number, or below zero, or beyond what any model reads, counts as none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return 0
    return int(value)
