"""Text that can be sent: JSON bodies are UTF-8, and a lone surrogate has no UTF-8."""

from __future__ import annotations

from typing import Any


def without_lone_surrogates(value: Any) -> Any:
    """The same structure with every lone surrogate replaced by U+FFFD; the same object where there is none."""
    if isinstance(value, str):
        return value if _encodable(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        changed = {without_lone_surrogates(key): without_lone_surrogates(item) for key, item in value.items()}
        same = all(changed.get(key) is item for key, item in value.items())
        return value if same else changed
    if isinstance(value, (list, tuple)):
        items = [without_lone_surrogates(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
