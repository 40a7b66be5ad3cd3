"""`list_folder`: what a folder holds, in pages of bounded size, and the joining of figures drawn from those
pages.

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
from pathlib import Path
from typing import Any, Literal, cast, get_args

from watchkeeper.agents.tools.sandbox import Refuses, refuses_nothing
from watchkeeper.agents.tools.source_files import FileFigures, Todo, examine, is_test, later_todos, why
from watchkeeper.records.messages import ToolSpec

# --- File names as text: any bytes a file system allows, shown on one harmless line and read back exactly ---
#
# A shown name is the UTF-8 text of the name, in which a backslash is doubled, a byte that is not UTF-8 or a
# control character is `\xNN`, and an invisible or direction-changing character is `\uNNNN` (`\UNNNNNNNN`
# beyond the first plane).

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ESCAPE = re.compile(r"\\(?:\\|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def show(raw: bytes) -> str:
    """The name as printable text on one line; `unshow` gives the bytes back."""
    text = raw.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_shown_byte(character) for character in text)


def _shown_byte(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if unicodedata.category(character) not in _HIDDEN:
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unshow(text: str) -> bytes:
    """The bytes of a shown name. A backslash that begins no escape stands for itself."""
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[end : match.start()].encode("utf-8", "surrogateescape"))
        byte, short, long = match.groups()
        if byte:
            parts.append(bytes.fromhex(byte))
        elif short or long:
            code = int(short or long, 16)
            # A code beyond Unicode, or half of a surrogate pair, names no character: it stays as it was
            # written.
            valid = code < 0x110000 and not 0xD800 <= code < 0xE000
            parts.append((chr(code) if valid else match.group()).encode())
        else:
            parts.append(b"\\")
        end = match.end()
    parts.append(text[end:].encode("utf-8", "surrogateescape"))
    return b"".join(parts)


def components(shown: str) -> tuple[bytes, ...]:
    """The names along a workspace path; empty for the workspace itself.

    Raises:
        ValueError: the path is absolute, climbs with `..`, or holds a NUL.
    """
    raw = unshow(shown)
    if raw.startswith(b"/"):
        raise ValueError(f"{shown!r} is absolute; give a path inside the workspace, such as '.' or 'src'.")
    names = tuple(name for name in raw.split(b"/") if name not in (b"", b"."))
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
    real = os.path.realpath(os.path.join(root, *names))
    shown = show(b"/".join(names)) or "."
    if real != root and not real.startswith(root.rstrip(b"/") + b"/"):
        raise ValueError(f"{shown!r} leads out of the workspace through a link.")
    if not os.path.lexists(real):
        raise ValueError(f"There is no {shown!r} in the workspace.")
    if not os.path.isdir(real):
        raise ValueError(f"{shown!r} is not a folder; use `read` for a file.")
    return real


# --- Walking a folder in one fixed order, from any place on: parents before children, names by their bytes ---
#
# The order of paths is the order of their tuples of names, so that a place is enough to go on from: what lies
# before it is never visited again, and what has since appeared or vanished elsewhere does no harm.

Names = tuple[bytes, ...]
Kind = Literal["file", "dir", "link", "other", "skipped"]
Only = Literal["files", "folders"]

SKIPPED = frozenset({b".git", b".hg", b".svn"})
"""Version control's own data: never entered, and told as skipped."""


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
class Start:
    """Where a walk begins: at `names` itself (`inclusive`), or at what follows it (its children, if it is a
    folder)."""

    names: Names = ()
    inclusive: bool = True


@dataclass(frozen=True, slots=True)
class Children:
    entries: list[os.DirEntry[bytes]]
    unreadable: str | None = None


def children(folder: bytes) -> Children:
    """A folder's entries, sorted by name."""
    try:
        with os.scandir(folder) as listing:
            return Children(sorted(listing, key=lambda entry: entry.name))
    except OSError as error:
        return Children([], why(error))


def walk(
    root: bytes,
    start: Start,
    *,
    recursive: bool,
    only: Only | None = None,
    until: Names | None = None,
    skip: frozenset[Names] = frozenset(),
) -> Iterator[Found]:
    """What `root` holds, from `start` through `until` (and all below that), in order.

    Args:
        recursive: with everything below sub-folders; else the direct children alone.
        only: of the direct children, the sub-folders alone, or all but them. What is skipped counts as no
            folder.

    Raises:
        OSError: the root itself cannot be listed.
    """
    listed = children(root)
    if listed.unreadable:
        raise OSError(0, listed.unreadable)
    stack: list[tuple[Names, Iterator[os.DirEntry[bytes]], Names]] = [((), iter(listed.entries), start.names)]
    while stack:
        prefix, entries, resume = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        names = (*prefix, entry.name)
        if until is not None and names[: len(until)] > until:
            return
        below: Names = ()
        told = False
        if resume:
            if entry.name < resume[0]:
                continue
            if entry.name == resume[0]:
                below = resume[1:]
                told = bool(below) or not start.inclusive
        found = Found(names, "skipped") if names in skip else _found(entry, names)
        if only and not prefix and (found.kind == "dir") != (only == "folders"):
            continue
        inside = children(entry.path) if recursive and found.kind == "dir" else None
        if not told:
            yield found if inside is None else Found(names, "dir", unreadable=inside.unreadable)
        if inside is not None:
            stack.append((names, iter(inside.entries), below))


def _found(entry: os.DirEntry[bytes], names: Names) -> Found:
    if entry.name in SKIPPED:
        return Found(names, "skipped")
    try:
        if entry.is_symlink():
            return Found(names, "link")
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return Found(names, "other", unreadable=why(error))
    if stat.S_ISDIR(status.st_mode):
        return Found(names, "dir")
    if stat.S_ISREG(status.st_mode):
        return Found(names, "file", status.st_size, status.st_mode)
    return Found(names, "other")


@dataclass(frozen=True, slots=True)
class Below:
    """Everything under a folder, counted."""

    files: int = 0
    size: int = 0
    unreadable: str | None = None
    """The first reason for which a folder below could not be listed."""


def count_below(folder: bytes) -> Below:
    """Regular files under `folder` and their bytes, at any depth, by the same rules as `walk`."""
    files = size = 0
    unreadable: str | None = None
    pending = [folder]
    while pending:
        listed = children(pending.pop())
        unreadable = unreadable or listed.unreadable
        for entry in listed.entries:
            found = _found(entry, (entry.name,))
            if found.kind == "dir":
                pending.append(entry.path)
            elif found.kind == "file":
                files += 1
                size += found.size
    return Below(files, size, unreadable)


# --- One page of a folder, as JSON text of bounded size, and the cursor of the next -----------------------

MAX_ENTRIES = 200
DEFAULT_BYTES = 6_000
LEAST_BYTES, MOST_BYTES = 1_000, 60_000
MAX_TODOS = 40
"""Of one entry; the others follow on the next pages, in parts."""
READ_BYTES = 1 << 30
"""A page ends after the file that brings what was read for it to this, so that no page takes minutes."""
_ENVELOPE_BYTES = 260

_CURSOR = re.compile(r"(after|from|todos(\d{1,12}),(\d{1,18}),(\d{1,15})):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a page begins."""

    start: Start
    todos: tuple[int, int, int] | None = None
    """Amid a file's TODOs: how many were told, the byte and the line of the last."""


class _Page:
    """Entries gathered so far, and how many bytes their JSON takes."""

    def __init__(self, budget: int, limit: int) -> None:
        self.entries: list[str] = []
        self.skipped: list[str] = []
        self.totals = dict.fromkeys(("files", "folders", "links", "other", "bytes", "lines", "todos"), 0)
        self._left = budget - _ENVELOPE_BYTES
        self._limit = limit

    def room(self) -> int:
        return self._left

    def add(self, entry: dict[str, Any]) -> bool:
        """Add the entry if it fits, or if it is the first. Every page holds one, so that paging always
        ends."""
        text = _dumps(entry)
        size = len(text.encode()) + 1
        if self.entries and (size > self._left or len(self.entries) >= self._limit):
            return False
        self.entries.append(text)
        self._left -= size
        self.totals["todos"] += len(entry.get("todos", ()))
        return True


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
    """One page of what a folder of the workspace holds, as JSON text (`spec.LIST_FOLDER` describes it).

    Blocking: it reads every file of the page through, but those that `refuses`; run it in a worker process.

    Raises:
        ValueError: the path, the cursor or another argument cannot be used; one line says why.
    """
    if only is not None and only not in get_args(Only):
        raise ValueError(f"only={only!r}: use 'files' or 'folders', or leave it out.")
    if not 1 <= limit <= MAX_ENTRIES:
        raise ValueError(f"limit={limit}: use 1 to {MAX_ENTRIES}.")
    base = components(path)
    root = folder_in(Path(workspace), base)
    place = _place(cursor, base)
    page = _Page(min(max(max_bytes, LEAST_BYTES), MOST_BYTES), limit)
    result: dict[str, Any] = {"path": show(b"/".join(base)) or "."}
    if not base:
        result["workspace"] = show(os.path.basename(root)) or "/"
    try:
        last = _below(until, base) if until else None
        left_out = frozenset(names[len(base) :] for names in map(components, skip))
        following = _fill(
            page, root, base, place, recursive, cast("Only | None", only), last, left_out, refuses
        )
        if cursor is None and only == "folders" and not recursive:
            result["loose"] = sum(1 for _ in walk(root, Start(), recursive=False, only="files"))
    except OSError as error:
        following, result["unreadable"] = None, error.strerror or why(error)
    if page.skipped:
        result["skipped"] = page.skipped
    result |= {"next": following, "totals": page.totals}
    return f'{_dumps(result)[:-1]},"entries":[{",".join(page.entries)}]}}'


def _fill(
    page: _Page,
    root: bytes,
    base: Names,
    place: _Place,
    recursive: bool,
    only: Only | None,
    until: Names | None,
    skip: frozenset[Names],
    refuses: Refuses,
) -> str | None:
    """Add entries until the page is full; return the cursor of the next page, or None at the end."""
    reached = place.start.names
    if place.todos is not None:
        cut = _more_todos(page, os.path.join(root, *reached), (*base, *reached), place.todos, refuses)
        if cut is not None:
            return cut
    read = 0
    for found in walk(root, place.start, recursive=recursive, only=only, until=until, skip=skip):
        full = (*base, *found.names)
        if found.kind == "skipped":
            page.skipped.append(_shown(full))
            reached = found.names
            continue
        if read >= READ_BYTES:
            return f"after:{_shown((*base, *reached))}"
        location = os.path.join(root, *found.names)
        figures: FileFigures | None = None
        if found.kind == "file":
            figures = examine(
                location, size=found.size, mode=found.mode, max_todos=MAX_TODOS, refuses=refuses
            )
            read += 0 if figures.binary else figures.size
            entry, cut_at = _file_entry(full, figures, page.room() if not page.entries else MOST_BYTES)
        else:
            entry, cut_at = _plain_entry(found, full, location if not recursive else None), None
        if not page.add(entry):
            return f"after:{_shown((*base, *reached))}"
        _count(page.totals, found, figures)
        reached = found.names
        if cut_at is not None:
            told, todo = cut_at
            return f"todos{told},{todo.offset},{todo.line}:{_shown(full)}"
    return None


def _file_entry(
    full: Names, figures: FileFigures, room: int
) -> tuple[dict[str, Any], tuple[int, Todo] | None]:
    """The entry, and where its TODOs were cut, if they were. Fields that would say nothing are left out."""
    entry: dict[str, Any] = {"path": _shown(full), "kind": "file", "bytes": figures.size}
    entry["lines"] = figures.lines
    entry["language"] = figures.language
    if figures.binary:
        entry["binary"] = True
    if figures.entry_point:
        entry["entry_point"] = figures.entry_point
    if is_test(full):
        entry["test"] = True
    if figures.unreadable:
        entry["unreadable"] = figures.unreadable
    if not figures.todos:
        return entry, None
    fitting = _fitting(figures.todos, room - len(_dumps(entry).encode()))
    entry["todos"] = _rows(fitting)
    if len(fitting) == len(figures.todos) and not figures.more_todos:
        return entry, None
    entry["more_todos"] = True
    return entry, (len(fitting), fitting[-1])


def _more_todos(
    page: _Page, location: bytes, full: Names, cut: tuple[int, int, int], refuses: Refuses
) -> str | None:
    """Go on with one file's TODOs; the cursor for still more of them, or None when all are told."""
    told, offset, line = cut
    todos, more = later_todos(location, offset=offset, line=line, count=MAX_TODOS, refuses=refuses)
    if not todos:
        return None
    entry: dict[str, Any] = {"path": _shown(full), "kind": "file", "todos_from": told}
    fitting = _fitting(todos, page.room() - len(_dumps(entry).encode()))
    entry["todos"] = _rows(fitting)
    more = more or len(fitting) < len(todos)
    if more:
        entry["more_todos"] = True
    page.add(entry)
    return (
        f"todos{told + len(fitting)},{fitting[-1].offset},{fitting[-1].line}:{_shown(full)}" if more else None
    )


def _fitting(todos: tuple[Todo, ...] | list[Todo], room: int) -> list[Todo]:
    """As many of the first as take no more than `room` bytes, and at least one."""
    fitting: list[Todo] = []
    room -= 40
    for todo in todos:
        room -= len(_dumps(_rows([todo])).encode())
        if fitting and room < 0:
            break
        fitting.append(todo)
    return fitting


def _rows(todos: list[Todo]) -> list[list[Any]]:
    return [[todo.line, todo.kind, todo.text] for todo in todos]


def _plain_entry(found: Found, full: Names, counted: bytes | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": _shown(full), "kind": found.kind}
    unreadable = found.unreadable
    if found.kind == "dir" and counted is not None:
        below = count_below(counted)
        entry |= {"files": below.files, "bytes": below.size}
        unreadable = unreadable or below.unreadable
    if unreadable:
        entry["unreadable"] = unreadable
    return entry


def _count(totals: dict[str, int], found: Found, figures: FileFigures | None) -> None:
    totals[{"file": "files", "dir": "folders", "link": "links"}.get(found.kind, "other")] += 1
    if figures is not None:
        totals["bytes"] += figures.size
        totals["lines"] += figures.lines or 0


def _place(cursor: str | None, base: Names) -> _Place:
    if cursor is None:
        return _Place(Start())
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise ValueError(
            f"cursor={cursor[:80]!r} is none of list_folder's; pass the last page's `next` unchanged."
        )
    names = _below(match[5], base)
    if match[2] is None:
        return _Place(Start(names, inclusive=match[1] == "from"))
    return _Place(Start(names, inclusive=False), (int(match[2]), int(match[3]), int(match[4])))


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


# --- How `list_folder` is told to a model, and the checking of what a model asks of it --------------------

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
    },
)

_TYPES: dict[str, tuple[type, ...]] = {
    "path": (str,),
    "cursor": (str, type(None)),
    "limit": (int,),
    "recursive": (bool,),
    "only": (str, type(None)),
    "until": (str, type(None)),
    "skip": (list,),
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
