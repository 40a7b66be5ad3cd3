"""`list_folder`: what a folder holds, in pages of bounded size.

Promises: the same folder gives the same pages, in one order, wherever a page ends; nothing outside the
workspace is listed, no link is followed, no special file is opened; each line, byte and mark is counted once.
"""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from watchkeeper.agents.tools.sandbox import Refuses, refuses_nothing
from watchkeeper.agents.tools.source_files import FileFigures, Todo, examine, is_test, later_todos, why
from watchkeeper.records.messages import ToolSpec

# File names as text: any bytes that a file system allows, on one harmless line, and read back exactly.
#
# A shown name is the UTF-8 text of the name, in which a backslash is doubled, a byte that is not UTF-8 or a
# control character is `\xNN`, and an invisible or direction-changing character is `\uNNNN` (`\UNNNNNNNN`
# beyond the first plane).

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ESCAPE = re.compile(r"\\(?:\\|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def show(raw: bytes) -> str:
    """The name as printable text on one line; `unshow` gives the bytes back."""
    return "".join(map(_shown_character, raw.decode("utf-8", "surrogateescape")))


def _shown_character(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if unicodedata.category(character) not in _HIDDEN:
        return character
    if code < 0x80 or 0xDC80 <= code <= 0xDCFF:  # a control character, or a byte that is not UTF-8
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unshow(text: str) -> bytes:
    """The bytes of a shown name. A backslash that begins no escape is a backslash."""
    return _ESCAPE.sub(_unescaped, text).encode("utf-8", "surrogateescape")


def _unescaped(match: re.Match[str]) -> str:
    byte, short, long = match.groups()
    if byte:
        return bytes.fromhex(byte).decode("ascii", "surrogateescape")
    code = int(short or long or "5c", 16)
    # A code beyond Unicode, or half of a surrogate pair, names no character: it stays as it was written.
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else match.group()


def components(shown: str) -> tuple[bytes, ...]:
    """The names along a workspace path; empty for the workspace itself.

    Raises:
        ValueError: the path is absolute, climbs with `..`, or holds a NUL.
    """
    raw = unshow(shown)
    names = tuple(name for name in raw.split(b"/") if name not in (b"", b"."))
    if raw.startswith(b"/"):
        raise ValueError(f"{shown!r} is absolute; give a path inside the workspace, such as '.' or 'src'.")
    if b".." in names:
        raise ValueError(f"{shown!r} leaves the workspace; '..' is not allowed.")
    if b"\0" in raw:
        raise ValueError("A path cannot hold a NUL character.")
    return names


def folder_in(workspace: Path, names: tuple[bytes, ...]) -> bytes:
    """The real path of a folder of the workspace, links on the way resolved.

    Raises:
        ValueError: it is not there, is no folder, or a link on the way leads out of the workspace.
    """
    root = os.path.realpath(os.fsencode(workspace))
    real, shown = os.path.realpath(os.path.join(root, *names)), _shown(names) or "."
    if real != root and not real.startswith(root.rstrip(b"/") + b"/"):
        raise ValueError(f"{shown!r} leads out of the workspace through a link.")
    if not os.path.lexists(real):
        raise ValueError(f"There is no {shown!r} in the workspace.")
    if not os.path.isdir(real):
        raise ValueError(f"{shown!r} is not a folder; use `read` for a file.")
    return real


# Walking a folder in one fixed order, from any place on: parents before children, names by their bytes.
#
# The order of paths is the order of their tuples of names, so that a place is enough to go on from: what lies
# before it is never visited again, and what has since appeared or vanished elsewhere does no harm.

Names = tuple[bytes, ...]
Kind = Literal["file", "dir", "link", "other", "skipped"]

SKIPPED = frozenset({b".git", b".hg", b".svn"})
"""Version control's own data: never entered, and listed as skipped."""


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in a folder."""

    names: Names
    """Its path from the folder where the walk began."""
    kind: Kind
    size: int = 0
    """Bytes, for a regular file."""
    mode: int = 0
    unreadable: str | None = None
    """Why a folder could not be listed, or an entry not be looked at."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a page begins."""

    names: Names = ()
    inclusive: bool = False
    """At the path itself, or at what follows it (its children, if it is a folder)."""
    todos: tuple[int, int, int] | None = None
    """Amid a file's TODOs: how many are listed, the byte and the line of the last."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What to list of a folder."""

    recursive: bool = False
    """With everything below sub-folders; else the direct children alone."""
    only: str | None = None
    """Of the direct children, the sub-folders alone (`folders`), or all but them (`files`). What is skipped
    counts as no folder."""
    start: _Place = _Place()
    until: Names | None = None
    """The last path, with all below it."""
    skip: frozenset[Names] = frozenset()
    """Paths to leave out, with all below them."""


def children(folder: bytes) -> tuple[list[os.DirEntry[bytes]], str | None]:
    """A folder's entries, sorted by name; and why there are none, if it could not be listed."""
    try:
        with os.scandir(folder) as listing:
            return sorted(listing, key=lambda entry: entry.name), None
    except OSError as error:
        return [], why(error)


def walk(root: bytes, wanted: Walk) -> Iterator[Found]:
    """What is `wanted` of `root`, in order.

    Raises:
        OSError: the root itself cannot be listed.
    """
    entries, unreadable = children(root)
    if unreadable:
        raise OSError(0, unreadable)
    stack: list[tuple[Names, Iterator[os.DirEntry[bytes]]]] = [((), iter(entries))]
    while stack:
        prefix, rest = stack[-1]
        entry = next(rest, None)
        if entry is None:
            stack.pop()
            continue
        names = (*prefix, entry.name)
        ahead = wanted.start.names[: len(names)]
        if wanted.until is not None and names[: len(wanted.until)] > wanted.until:
            return
        if names < ahead:
            continue
        listed = names == ahead and (len(names) < len(wanted.start.names) or not wanted.start.inclusive)
        found = _found(entry, names, wanted.skip)
        if wanted.only and not prefix and (found.kind == "dir") != (wanted.only == "folders"):
            continue
        if wanted.recursive and found.kind == "dir":
            entries, unreadable = children(entry.path)
            found = Found(names, "dir", unreadable=unreadable)
            stack.append((names, iter(entries)))
        if not listed:
            yield found


def _found(entry: os.DirEntry[bytes], names: Names, skip: frozenset[Names]) -> Found:
    if entry.name in SKIPPED or names in skip:
        return Found(names, "skipped")
    try:
        if entry.is_symlink():
            return Found(names, "link")
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return Found(names, "other", unreadable=why(error))
    if stat.S_ISREG(status.st_mode):
        return Found(names, "file", status.st_size, status.st_mode)
    return Found(names, "dir" if stat.S_ISDIR(status.st_mode) else "other")


def count_below(folder: bytes) -> dict[str, Any]:
    """Regular files under `folder` and their bytes, at any depth; and why a folder could not be listed, if
    one could not."""
    counted: dict[str, Any] = {"files": 0, "bytes": 0}
    try:
        for found in walk(folder, Walk(recursive=True)):
            counted["files"] += found.kind == "file"
            counted["bytes"] += found.size
            if found.kind == "dir" and found.unreadable:
                counted.setdefault("unreadable", found.unreadable)
    except OSError as error:
        counted["unreadable"] = error.strerror
    return counted


# One page of a folder, as JSON text of bounded size, and the cursor of the next.

MAX_ENTRIES = 200
DEFAULT_BYTES = 6_000
LEAST_BYTES, MOST_BYTES = 1_000, 60_000
MAX_TODOS = 40
"""Of one entry; the others follow on the next pages, in parts."""
READ_BYTES = 1 << 30
"""A page ends after the file that brings what was read for it to this, so that no page takes minutes."""
_ENVELOPE_BYTES = 260

_CURSOR = re.compile(r"(after|from|todos(\d{1,12}),(\d{1,18}),(\d{1,15})):(.+)", re.DOTALL)
_TOTALS = {"file": "files", "dir": "folders", "link": "links"}


class _Page:
    """Entries gathered so far, and how many bytes their JSON takes."""

    def __init__(self, base: Names, budget: int, limit: int) -> None:
        self.entries: list[str] = []
        self.skipped: list[str] = []
        self.totals = dict.fromkeys((*_TOTALS.values(), "other", "bytes", "lines", "todos"), 0)
        self.base = base
        self.room = budget - _ENVELOPE_BYTES
        self._limit = limit

    def add(self, entry: dict[str, Any], todos: Sequence[Todo] = (), more_todos: bool = False) -> str | None:
        """Add an entry with as many of its TODOs as fit, but at least one; the cursor of the rest, empty if all
        fit. None: the entry does not fit. Every page holds one entry, so that paging always ends.
        """
        room = (MOST_BYTES if self.entries else self.room) - len(_dumps(entry).encode()) - 40
        rows = [[todo.line, todo.kind, todo.text] for todo in todos]
        sizes = accumulate(len(_dumps([row]).encode()) for row in rows)
        fitting = max(1, sum(size <= room for size in sizes))
        last = todos[:fitting][-1] if more_todos or fitting < len(rows) else None
        fields = {"todos": rows[:fitting], "more_todos": last is not None}
        text = _dumps(entry | {name: value for name, value in fields.items() if value})
        size = len(text.encode()) + 1
        if self.entries and (size > self.room or len(self.entries) >= self._limit):
            return None
        self.entries.append(text)
        self.room -= size
        self.totals["todos"] += len(rows[:fitting])
        before = entry.get("todos_from", 0) + fitting
        return f"todos{before},{last.offset},{last.line}:{entry['path']}" if last else ""


def scan_page(
    workspace: str | Path,
    path: str = ".",
    cursor: str | None = None,
    limit: int = MAX_ENTRIES,
    *,
    recursive: bool = False,
    only: str | None = None,
    until: str | None = None,
    skip: Sequence[str] = (),
    max_bytes: int = DEFAULT_BYTES,
    refuses: Refuses = refuses_nothing,
) -> str:
    """One page of what a folder of the workspace holds, as JSON text (`LIST_FOLDER` describes it and its input).

    Blocking: it reads every file of the page through, but those that `refuses`; run it in a worker process.

    Raises:
        ValueError: the path, the cursor or another argument cannot be used; one line says why.
    """
    base = components(path)
    root = folder_in(Path(workspace), base)
    place = _place(cursor, base)
    page = _Page(base, min(max(max_bytes, LEAST_BYTES), MOST_BYTES), limit)
    wanted = Walk(
        recursive,
        only,
        place,
        _below(until, base) if until else None,
        frozenset(one[len(base) :] for one in map(components, skip) if one[: len(base)] == base),
    )
    result: dict[str, Any] = {"path": _shown(base) or "."}
    if not base:
        result["workspace"] = show(os.path.basename(root)) or "/"
    try:
        following = _more_todos(page, root, place, refuses) or _fill(page, root, wanted, refuses)
        if cursor is None and only == "folders" and not recursive:
            result["loose"] = sum(1 for _ in walk(root, Walk(only="files")))
    except OSError as error:
        following, result["unreadable"] = None, error.strerror or why(error)
    if page.skipped:
        result["skipped"] = page.skipped
    result |= {"next": following, "totals": page.totals}
    return f'{_dumps(result)[:-1]},"entries":[{",".join(page.entries)}]}}'


def _fill(page: _Page, root: bytes, wanted: Walk, refuses: Refuses) -> str | None:
    """Add entries until the page is full; return the cursor of the next page, or None at the end."""
    reached, read = wanted.start.names, 0
    for found in walk(root, wanted):
        full, location = (*page.base, *found.names), os.path.join(root, *found.names)
        if found.kind == "skipped":
            page.skipped.append(_shown(full))
            reached = found.names
            continue
        after = f"after:{_shown((*page.base, *reached))}"
        if read >= READ_BYTES:
            return after
        entry: dict[str, Any] = {"path": _shown(full), "kind": found.kind}
        examined = None
        if found.kind == "file":
            examined = examine(
                location, size=found.size, mode=found.mode, max_todos=MAX_TODOS, refuses=refuses
            )
            read += 0 if examined.binary else examined.size
            entry |= _described(full, examined)
        elif found.kind == "dir" and not wanted.recursive:
            entry |= count_below(location)
        if found.unreadable:
            entry["unreadable"] = found.unreadable
        cut = page.add(entry, *((examined.todos, examined.more_todos) if examined else ()))
        if cut is None:
            return after
        page.totals[_TOTALS.get(found.kind, "other")] += 1
        page.totals["bytes"] += entry.get("bytes", 0) if examined else 0
        page.totals["lines"] += entry.get("lines") or 0
        reached = found.names
        if cut:
            return cut
    return None


def _described(names: Names, examined: FileFigures) -> dict[str, Any]:
    """The fields of a file's entry; those that would say nothing are left out."""
    optional = {
        "binary": examined.binary,
        "entry_point": examined.entry_point,
        "test": is_test(names),
        "unreadable": examined.unreadable,
    }
    always = {"bytes": examined.size, "lines": examined.lines, "language": examined.language}
    return always | {name: value for name, value in optional.items() if value}


def _more_todos(page: _Page, root: bytes, place: _Place, refuses: Refuses) -> str | None:
    """Go on with one file's TODOs; the cursor for still more of them, or None when all are listed."""
    if place.todos is None:
        return None
    before, offset, line = place.todos
    location = os.path.join(root, *place.names)
    todos, more = later_todos(location, offset=offset, line=line, count=MAX_TODOS, refuses=refuses)
    entry = {"path": _shown((*page.base, *place.names)), "kind": "file", "todos_from": before}
    return page.add(entry, todos, more) or None if todos else None


def _place(cursor: str | None, base: Names) -> _Place:
    match = _CURSOR.fullmatch(cursor or "")
    if cursor is None:
        return _Place()
    if match is None:
        raise ValueError(
            f"cursor={cursor[:80]!r} is none of list_folder's; pass the last page's `next` unchanged."
        )
    todos = (int(match[2]), int(match[3]), int(match[4])) if match[2] else None
    return _Place(_below(match[5], base), match[1] == "from", todos)


def _below(path: str, base: Names) -> Names:
    """The names of a workspace path from `base` on."""
    names = components(path)
    if names[: len(base)] != base or len(names) == len(base):
        raise ValueError(f"{path[:80]!r} does not lie below the folder that is listed.")
    return names[len(base) :]


def _shown(names: Names) -> str:
    return show(b"/".join(names))


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# How `list_folder` is described to a model.

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
            "skip": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Paths to leave out, with all below them.",
            },
            "max_bytes": {
                "type": "integer",
                "minimum": LEAST_BYTES,
                "maximum": MOST_BYTES,
                "description": f"Size of a page; {DEFAULT_BYTES} by default.",
            },
        },
        "additionalProperties": False,
    },
)
