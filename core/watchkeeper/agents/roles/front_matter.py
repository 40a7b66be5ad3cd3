"""Markdown with YAML front matter, as it is found in the wild."""

from __future__ import annotations

import re
from typing import Any

_FENCE = re.compile(r"\A\ufeff?---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"([A-Za-z][\w-]*):[ \t]*(.*)")
MOST_CHARACTERS = 8_000
"""Of front matter: a longer one is no role's. It also keeps what YAML aliases could unfold to harmless."""


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The front matter's fields and the body below it; no fields where there is none.

    What YAML cannot read, such as an unquoted colon in a description, is read as `key: rest of line`.

    Raises:
        ValueError: the front matter is too long, or has no end.
    """
    text = text.replace("\r\n", "\n")
    match = _FENCE.match(text)
    if match is None:
        if text.lstrip("\ufeff").startswith("---\n"):
            raise ValueError("its front matter has no closing ---")
        return {}, text
    head, body = match[1], text[match.end() :]
    if len(head) > MOST_CHARACTERS:
        raise ValueError(f"its front matter has {len(head)} characters; at most {MOST_CHARACTERS} are read")
    return _fields(head), body


def _fields(head: str) -> dict[str, Any]:
    import yaml

    try:
        # Aliases unfold exponentially, and no role needs them.
        fields = None if re.search(r"(?:^|[\s\[,:])[&*]\w", head) else yaml.safe_load(head)
    except (yaml.YAMLError, ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        return {str(key): value for key, value in fields.items()}
    return _plain_fields(head)


def _plain_fields(head: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    last = None
    for line in head.split("\n"):
        match = _KEY.match(line)
        if match:
            last = match[1]
            fields[last] = match[2].strip().strip("\"'")
        elif last is not None and line.strip().startswith("- "):
            listed = fields[last] if isinstance(fields[last], list) else []
            fields[last] = [*listed, line.strip()[2:].strip().strip("\"'")]
        elif last is not None and line.startswith((" ", "\t")) and isinstance(fields[last], str):
            fields[last] = f"{fields[last]} {line.strip()}".strip()
    return fields
