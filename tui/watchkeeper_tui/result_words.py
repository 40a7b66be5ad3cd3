"""A tool's result in a few words: JSON is summarised by its names and counts; any other result stays as it
is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_NAMING = ("path", "name", "title", "file_path", "url", "message", "text", "body", "status", "error")
"""Keys whose value says enough by itself."""
_UNTOLD = re.compile(r"(?i)(.*_)?(id|ids|ref|key|hash|digest|sha256|cursor|next|etag)")
"""Keys whose value tells a reader nothing."""
_OPENING = {"{": "}", "[": "]"}
_MOST_CHARS = 500
"""Longer than any preview; what is nested that deep can still be read."""


def result_words(text: str) -> str:
    """One line for a result, or for its beginning. Text that is not JSON, or has nothing to summarise, stays
    as it is.

    To be sanitised, even if the text was: JSON spells characters out.
    """
    if text[:1] not in _OPENING or len(text) > _MOST_CHARS:
        return text
    value = _parsed(text)
    if isinstance(value, list):
        return _listed(value) or text
    return ", ".join(_told(value)) or text if isinstance(value, dict) else text


def _listed(value: list[Any]) -> str:
    """The first of a list, which may have been cut before its end."""
    first = value[0] if value else None
    said = (
        ", ".join(_told(first))
        if isinstance(first, dict)
        else str(first)
        if isinstance(first, (str, int, float))
        else ""
    )
    return f"{said}, …" if said and len(value) > 1 else said


def _told(value: dict[str, Any]) -> Iterator[str]:
    """What names it first, then its counts, then the rest that is short enough to read."""
    yield from (one for key in _NAMING if isinstance(one := value.get(key), str) and one)
    for key, each in value.items():
        if key in _NAMING or _UNTOLD.fullmatch(key):
            continue
        words = key.replace("_", " ")
        if isinstance(each, dict):
            counts = [_counted(name.replace("_", " "), one) for name, one in each.items() if _is_count(one)]
            yield from counts or ([_counted(words, len(each))] if each and words.endswith("s") else [])
        elif _is_count(each):
            yield _counted(words, each)
        elif isinstance(each, float):
            yield f"{words} {each:g}"
        elif isinstance(each, str) and each:
            yield f"{words} {each}"
        elif each is True:
            yield words


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value != 0


def _counted(noun: str, count: int) -> str:
    """`28 files`, `1 file`; a number that counts nothing after its name: `revision 2`."""
    if not noun.endswith("s") or noun.endswith("ss"):
        return f"{noun} {count}"
    return f"{count:,} {noun[:-1] if count == 1 else noun}"


def _parsed(text: str) -> Any:
    """The value, also of a text that was cut: without the last thing in it, which may be half of one. None
    where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    for end, closing in _ends(text):
        try:
            return json.loads(text[:end] + closing)
        except ValueError:
            continue
    return None


def _ends(text: str) -> Iterator[tuple[int, str]]:
    """Where the text could end, the last place first, and what would close it there."""
    open_now: list[str] = []
    found: list[tuple[int, str]] = []
    in_string = escaped = False
    for place, character in enumerate(text):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in _OPENING:
            open_now.append(_OPENING[character])
            found.append((place + 1, "".join(reversed(open_now))))
        elif open_now and character == open_now[-1]:
            open_now.pop()
            found.append((place + 1, "".join(reversed(open_now))))
        elif character == "," and open_now:
            found.append((place, "".join(reversed(open_now))))
    return reversed(found)
