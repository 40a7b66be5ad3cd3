"""Text that can be sent: JSON bodies are UTF-8, and a lone surrogate has no UTF-8; and JSON that can be sent
again."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, or it holds a number that none can say (`NaN`, `Infinity`, `1e999`).
        RecursionError: nested too deeply.
    """
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large a number")
    return number


def without_lone_surrogates(value: Any) -> Any:
    """The same structure with every lone surrogate replaced by U+FFFD; the same object where there is
    none."""
    if isinstance(value, str):
        return (
            value
            if _encodable(value)
            else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )
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
