"""What a tool call does, read from the keys of its input: every agent program names its tools differently."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

PATH_KEYS = ("file_path", "path", "filePath", "notebook_path", "filename", "target_file")
EDIT_KEYS = frozenset(
    [
        "old_string", "new_string", "oldString", "newString", "content", "contents", "edits", "new_str", "old_str",
        "new_source", "patch", "diff", "file_text", "insert_text",
    ]
)  # fmt: skip
"""With a path, one of these in an input says that the call writes the file."""

PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$|^\*\*\* Move to: (.+)$", re.MULTILINE)
"""The files of a patch in the form of Codex."""
_PATCH_CHARACTERS = 400_000


EXTENSIONS = (
    "pyi?|ipynb|[cm]?js|jsx|tsx?|rs|go|java|kt|scala|cc?|h|[ch]pp|cs|rb|php|swift|lua|r|jl|(?:ba|z)?sh|ps1|sql|html?|s?css"
    "|vue|svelte|md|rst|txt|jsonl?|ya?ml|toml|ini|cfg|conf|env|lock|xml|[ct]sv|log|diff|patch|png|jpe?g|gif|svg|webp|pdf"
    "|zip|gz|tar|whl|db|sqlite|proto|graphql|tf|dockerfile|make|cmake|gradle"
)
"""What makes a word with a dot a file name, and not an attribute or the end of a sentence."""

PATH = re.compile(
    r"(?<![\w/.:@<\[-])(?:(?:~|\.{1,2})?/(?:[\w.@+-]{1,80}/){1,16}[\w.@+-]{1,80}"  # /a/b, ./a/b, ~/a/b
    r"|(?:[\w.@+-]{1,80}/){2,16}[\w.@+-]{1,80}"  # a/b/c
    rf"|(?:~/|\.{{1,2}}/|/)?(?:[\w.@+-]{{1,80}}/)?[\w@+-][\w.@+-]{{0,80}}\.(?:{EXTENSIONS}))(?![\w/(])",
    re.IGNORECASE,
)
"""Paths of two parts and more, and file names by their extension."""


def leaves(value: Any) -> Iterator[str]:
    """The string leaves of JSON-like data, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


def path_of(given: Mapping[str, Any]) -> str:
    """The file or folder that an input names, or an empty text."""
    return next((value for key in PATH_KEYS if isinstance(value := given.get(key), str) and value), "")


def edited_files(given: Any) -> tuple[str, ...]:
    """The files that a call with this input writes, as the input names them; none for a shell command."""
    if not isinstance(given, Mapping):
        return ()
    path = path_of(given)
    if path and not EDIT_KEYS.isdisjoint(given):
        return (path,)
    found: dict[str, None] = {}
    for leaf in leaves(given):
        if "*** Begin Patch" in leaf[:2_000]:
            for before, after in PATCHED.findall(leaf[:_PATCH_CHARACTERS]):
                found[(before or after).strip()] = None
    changes = given.get("changes")  # of Codex: the path of each changed file
    if isinstance(changes, Mapping):
        found |= dict.fromkeys(str(name) for name in changes)
    elif isinstance(changes, list):
        named = (one.get("path") for one in changes if isinstance(one, Mapping))
        found |= {name: None for name in named if isinstance(name, str)}
    return tuple(found)


def argument_text(value: Any) -> str:
    """A text, or a command given as a list of words (`["bash", "-lc", "make"]`)."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value[2:] if len(value) > 2 and value[1] in ("-c", "-lc") else value)
    return value if isinstance(value, str) else ""


def command_of(given: Any) -> str:
    """The shell command that an input holds, or an empty text."""
    if not isinstance(given, Mapping):
        return ""
    return next((text for key in ("command", "cmd", "script") if (text := argument_text(given.get(key)))), "")
