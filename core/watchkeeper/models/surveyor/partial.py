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
        value = _decoded(text, start) if text.startswith("{", start) else None
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


def folder_page(text: str) -> dict[str, Any] | None:
    """A page of `list_folder`, if it is whole: its entries must add up to its own totals.

    A page that was shortened to fit a window may still parse as JSON, and would then lack entries.
    """
    page = json_object(text)
    if page is None or not isinstance(page.get("entries"), list) or not isinstance(page.get("totals"), dict):
        return None
    found = {"file": 0, "dir": 0, "link": 0, "other": 0, "todos": 0}
    for entry in page["entries"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            return None
        found["todos"] += len(entry.get("todos", ()))
        if "todos_from" not in entry:
            kind = str(entry.get("kind"))
            found[kind if kind in found else "other"] += 1
    names = {"file": "files", "dir": "folders", "link": "links", "other": "other", "todos": "todos"}
    return page if all(page["totals"].get(names[kind]) == number for kind, number in found.items()) else None


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
