"""Reading JSON out of texts that hold more than it, or not the whole of it."""

from __future__ import annotations

import json
from typing import Any

_DECODER = json.JSONDecoder()


def json_after(text: str, marker: str, *, last: bool = False) -> dict[str, Any] | None:
    """The JSON object that follows `marker` (and blanks) in a text; the first that is whole, or the last."""
    found: dict[str, Any] | None = None
    position = text.find(marker)
    while position >= 0:
        start = position + len(marker)
        while start < len(text) and text[start] in " \t\r\n":
            start += 1
        value = _decoded(text, start)
        if isinstance(value, dict):
            found = value
            if not last:
                return found
        position = text.find(marker, position + 1)
    return found


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, or begins with; None if it is something else or cut short."""
    value = _decoded(text.lstrip(), 0)
    return value if isinstance(value, dict) else None


def leading_rows(text: str) -> tuple[list[Any], bool]:
    """The whole items at the beginning of a JSON list that may be cut short, and whether it was whole."""
    text = text.strip()
    if not text.startswith("["):
        return [], False
    rows: list[Any] = []
    position = 1
    while True:
        while position < len(text) and text[position] in ", \t\r\n":
            position += 1
        if text.startswith("]", position):
            return rows, True
        try:
            row, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return rows, False
        rows.append(row)


def leading_items(text: str) -> tuple[dict[str, Any], bool]:
    """The whole items at the beginning of a JSON object that may be cut short, and whether it was whole."""
    text = text.strip()
    if not text.startswith("{"):
        return {}, False
    items: dict[str, Any] = {}
    position = 1
    while True:
        while position < len(text) and text[position] in ", \t\r\n":
            position += 1
        if text.startswith("}", position):
            return items, True
        try:
            key, position = _DECODER.raw_decode(text, position)
            while text[position : position + 1] in (" ", ":"):
                position += 1
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return items, False
        items[str(key)] = value


def _decoded(text: str, start: int) -> Any:
    try:
        value, _ = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value
