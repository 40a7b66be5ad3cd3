"""What a person asked for, among what programs write in their name."""

from __future__ import annotations

import re
from typing import Any

GOAL_CHARS = 4_000
_COMMAND = re.compile(
    r"\s*<command-message>[^<]*</command-message>\s*<command-name>(?P<name>[^<]+)</command-name>"
    r"(\s*<command-args>(?P<arguments>[^<]*)</command-args>)?"
)
"""A command that asks the model for something; those of the program itself (`/exit`, `/model`) begin with
their name."""

_EDITOR = ("# Context from my IDE setup", "# Files mentioned by the user", "# Files pasted by the user")
"""How a prompt begins before which Codex's editor puts what it shows."""
_REQUEST = re.compile(r"^## My request(?: for Codex)?:\s*(?P<asked>\S.*)", re.DOTALL | re.MULTILINE)


def goal_of(content: Any) -> str | None:
    """What a person wrote, if it is that: the goal of a session is its first."""
    texts = [content] if isinstance(content, str) else [
        block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text"
    ]  # fmt: skip
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            continue
        if asked := _COMMAND.match(text):
            return f"{asked['name']} {asked['arguments'] or ''}".strip()[:GOAL_CHARS]
        if text.lstrip().startswith(_EDITOR) and (request := _REQUEST.search(text)):
            text = request["asked"]
        if not text.lstrip().startswith(("<", "Caveat:", "[Request interrupted")):
            return text.strip()[:GOAL_CHARS]
    return None
