"""How `list_folder` is told to a model, and the checking of what a model asks of it."""

from __future__ import annotations

from typing import Any

from watchkeeper.agents.tools.folder.page import DEFAULT_BYTES, LEAST_BYTES, MAX_ENTRIES, MOST_BYTES
from watchkeeper.records.model import ToolSpec

LIST_FOLDER = ToolSpec(
    name="list_folder",
    description=(
        "List a folder of the workspace, a page at a time; pass `next` back as `cursor` until it is null."
        " Files come with "
        "bytes, lines, language and, where they hold, binary, test, entry_point (why), unreadable (why) and"
        " todos: "
        "[line, TODO|FIXME, text]. Folders come with the files and bytes below them, or, with `recursive`,"
        " followed by "
        "everything below them. Links are listed, never followed; .git, .hg and .svn are skipped. Unusual"
        " characters in "
        "names are escaped with a backslash; use the paths as given."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "description": "A folder of the workspace; '.' is the workspace itself.",
            },
            "cursor": {
                "type": ["string", "null"],
                "description": "The `next` of the last page, or 'from:PATH'.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES},
            "recursive": {"type": "boolean", "default": False},
            "only": {
                "enum": ["files", "folders", None],
                "description": "Of the direct children, the folders alone, or all but them.",
            },
            "until": {"type": ["string", "null"], "description": "The last path to list, with all below it."},
            "max_bytes": {
                "type": "integer",
                "minimum": LEAST_BYTES,
                "maximum": MOST_BYTES,
                "description": f"Size of a page; {DEFAULT_BYTES} by default.",
            },
        },
    },
)

_TYPES: dict[str, tuple[type, ...]] = {
    "path": (str,),
    "cursor": (str, type(None)),
    "limit": (int,),
    "recursive": (bool,),
    "only": (str, type(None)),
    "until": (str, type(None)),
    "max_bytes": (int,),
}


def arguments_of(tool_input: dict[str, Any]) -> dict[str, Any]:
    """A model's input as keyword arguments of `scan_page`.

    Raises:
        ValueError: an argument of an unknown name or a wrong type; one line says which.
    """
    for name, value in tool_input.items():
        if name not in _TYPES:
            raise ValueError(f"list_folder has no {name[:40]!r}; it takes {', '.join(_TYPES)}.")
        if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and bool not in _TYPES[name]):
            raise ValueError(f"{name} is not of the right type.")
    return dict(tool_input)
