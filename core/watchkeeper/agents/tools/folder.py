"""`list_folder`: what a folder holds, a line an entry, in pages of bounded size.

Promises: the same folder gives the same pages, in one order, wherever a page ends; nothing outside the
workspace is listed, no link is followed, and no file is opened.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from watchkeeper.records.messages import ToolSpec


def why(error: OSError) -> str:
    """An error of the system in a few lower-case words, without paths: `permission denied`."""
    return os.strerror(error.errno).lower() if error.errno else "cannot be read"


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
        raise ValueError(
            f"{shown!r} is an absolute path; use a path inside the workspace, such as '.' or 'src'."
        )
    if b".." in names:
        raise ValueError(f"{shown!r} leaves the workspace; '..' is not allowed.")
    if b"\0" in raw:
        raise ValueError("A path cannot contain a NUL character.")
    return names


def folder_in(workspace: Path, names: tuple[bytes, ...]) -> bytes:
    """The real path of a folder of the workspace, links on the way resolved.

    Raises:
        ValueError: it is not there, is no folder, or a link on the way leads out of the workspace.
    """
    root = os.path.realpath(os.fsencode(workspace))
    real, shown = os.path.realpath(os.path.join(root, *names)), _shown(names) or "."
    if real != root and not real.startswith(root.rstrip(b"/") + b"/"):
        raise ValueError(f"{shown!r} leads outside the workspace through a link.")
    if not os.path.lexists(real):
        raise ValueError(f"{shown!r} does not exist in the workspace.")
    if not os.path.isdir(real):
        raise ValueError(f"{shown!r} is not a folder; use `read` for a file.")
    return real


# Walking a folder in one fixed order, from any place on: parents before children, names by their bytes.
#
# The order of paths is the order of their tuples of names, so that a place is enough to go on from: what lies
# before it is never visited again, and what has since appeared or vanished elsewhere does no harm.

Names = tuple[bytes, ...]
Kind = Literal["file", "dir", "link", "other", "skipped"]

SKIPPED = frozenset({b".git", b".hg", b".svn", b".venv"})
"""Version control's own data, and virtual environments, also by their `pyvenv.cfg`: never entered, and listed as skipped."""


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in a folder."""

    names: Names
    """Its path from the folder where the walk began."""
    kind: Kind
    size: int = 0
    """Bytes, for a regular file."""
    unreadable: str | None = None
    """Why a folder could not be listed, or an entry not be looked at."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What to list of a folder."""

    recursive: bool = False
    """With everything below sub-folders; else the direct children alone."""
    after: Names = ()
    """What follows this path; all of it where it is empty."""
    ignored: frozenset[Names] = frozenset()
    """What git ignores: as if it were not there."""

    def below(self, names: Names) -> Walk:
        """A walk of everything below one folder of this walk."""
        return Walk(recursive=True, ignored=_relative(self.ignored, names))


def _relative(paths: Iterable[Names], base: Names) -> frozenset[Names]:
    return frozenset(one[len(base) :] for one in paths if one[: len(base)] == base)


GIT_SECONDS = 20.0


def ignored_by_git(root: str) -> frozenset[Names]:
    """What git would not list of a folder, by the ignore rules that hold there; of an ignored folder, the folder alone.
    A folder outside of every repository is read with its own `.gitignore` files. Empty if there is no git."""
    wanted = ["ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # The repository is hostile: nothing that its configuration names may run.
    git = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]

    def output(*arguments: str) -> bytes | None:
        done = subprocess.run(
            [*git, *arguments], cwd=root, env=environ | {"GIT_OPTIONAL_LOCKS": "0"}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=GIT_SECONDS,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else None

    try:
        found = output(*wanted)
        if found is None:
            with tempfile.TemporaryDirectory() as empty:
                if output("init", "--quiet", "--bare", empty) is not None:
                    found = output(f"--git-dir={empty}", f"--work-tree={root}", *wanted)
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    paths = (tuple(one.rstrip(b"/").split(b"/")) for one in (found or b"").split(b"\0") if one)
    return frozenset(one for one in paths if one not in ((b"",), (b".",)))


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
        if names < wanted.after[: len(names)] or names in wanted.ignored:
            continue
        found = _found(entry, names)
        if wanted.recursive and found.kind == "dir":
            entries, unreadable = children(entry.path)
            found = Found(names, "dir", unreadable=unreadable)
            stack.append((names, iter(entries)))
        if names > wanted.after:
            yield found


def _found(entry: os.DirEntry[bytes], names: Names) -> Found:
    if entry.name in SKIPPED:
        return Found(names, "skipped")
    try:
        if entry.is_symlink():
            return Found(names, "link")
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return Found(names, "other", unreadable=why(error))
    if stat.S_ISREG(status.st_mode):
        return Found(names, "file", status.st_size)
    if not stat.S_ISDIR(status.st_mode):
        return Found(names, "other")
    return Found(names, "skipped" if os.path.lexists(os.path.join(entry.path, b"pyvenv.cfg")) else "dir")


def count_below(folder: bytes, wanted: Walk) -> dict[str, Any]:
    """Regular files under `folder` and their bytes, at any depth; and why a folder could not be listed, if
    one could not."""
    counted: dict[str, Any] = {"files": 0, "bytes": 0}
    try:
        for found in walk(folder, wanted):
            counted["files"] += found.kind == "file"
            counted["bytes"] += found.size
            if found.kind == "dir" and found.unreadable:
                counted.setdefault("unreadable", found.unreadable)
    except OSError as error:
        counted["unreadable"] = error.strerror
    return counted


MAX_ENTRIES = 200
PAGE_BYTES = 6_000
MOST_COUNTED = 10_000
"""Entries after a page that are counted; of more it says so."""
_CURSOR = re.compile(r"after:(.+)", re.DOTALL)


def list_page(
    workspace: str | Path,
    path: str = ".",
    cursor: str | None = None,
    limit: int = MAX_ENTRIES,
    *,
    recursive: bool = False,
) -> str:
    """A folder of the workspace as `list_folder` gives it (`LIST_FOLDER` describes it).

    Raises:
        ValueError: the path or the cursor cannot be used; one line says why.
    """
    base = components(path)
    root = folder_in(Path(workspace), base)
    after = _after(cursor, base)
    wanted = Walk(recursive, after, _relative(ignored_by_git(os.path.realpath(workspace)), base))
    lines: list[str] = []
    skipped: list[str] = []
    room, more, reached = PAGE_BYTES, 0, after
    try:
        for found in walk(root, wanted):
            if found.kind == "skipped":
                if not more:
                    skipped.append(_shown(found.names))
                continue
            line = "" if more else _line(found, root, wanted)
            room -= len(line.encode()) + 1
            if more or (lines and (room < 0 or len(lines) >= limit)):
                more += 1
                if more > MOST_COUNTED:
                    break
                continue
            lines.append(line)
            reached = found.names
    except OSError as error:
        lines.append(f"[cannot be listed: {error.strerror or why(error)}]")
    if skipped:
        lines.append(f"[skipped: {', '.join(skipped)}]")
    if more:
        count = f"{more:,}" if more <= MOST_COUNTED else f"more than {MOST_COUNTED:,}"
        lines.append(f"[and {count} more; cursor: after:{_shown((*base, *reached))}]")
    head = [f"{_shown(base)}/ holds:"] if base else []
    return "\n".join([*head, *(lines or ["[nothing]"])])


def _after(cursor: str | None, base: Names) -> Names:
    """The path that a cursor names, from the folder that is listed on."""
    if cursor is None:
        return ()
    match = _CURSOR.fullmatch(cursor)
    names = components(match[1]) if match is not None else ()
    if names[: len(base)] != base or len(names) == len(base):
        raise ValueError(
            f"cursor={cursor[:80]!r} does not belong to this folder; pass the cursor from the previous page unchanged."
        )
    return names[len(base) :]


def _line(found: Found, root: bytes, wanted: Walk) -> str:
    """An entry: its path from the folder that is listed, its bytes, and what is odd about it."""
    name, notes = _shown(found.names), []
    unreadable = found.unreadable
    if found.kind == "dir":
        name += "/"
        if not wanted.recursive:
            below = count_below(os.path.join(root, *found.names), wanted.below(found.names))
            notes.append(
                f"{below['files']:,} {'file' if below['files'] == 1 else 'files'}, {_size(below['bytes'])}"
            )
            unreadable = unreadable or below.get("unreadable")
    elif found.kind == "file":
        notes.append(str(found.size))
    else:
        notes.append(f"({found.kind})")
    if unreadable:
        notes.append(f"({unreadable})")
    return "  ".join([name, *notes])


def _size(count: int) -> str:
    """Bytes in three digits or so: `812`, `1.2K`, `34K`, `5.6M`."""
    size, units = float(count), iter("KMGTPE")
    unit = ""
    while size >= 999.5:
        size, unit = size / 1024, next(units)
    return f"{size:.1f}{unit}" if unit and size < 9.95 else f"{size:.0f}{unit}"


def _shown(names: Names) -> str:
    return show(b"/".join(names))


# How `list_folder` is described to a model.

LIST_FOLDER = ToolSpec(
    name="list_folder",
    description=(
        "List a folder of the workspace, one entry per line, with its size in bytes. Folders end in / and show the"
        " number and bytes of the files below them; with `recursive`, the entries below follow. If not all entries"
        " fit, the last line counts the rest and gives the `cursor` for the next page. Links are listed, not"
        " followed. .git, .hg, .svn, virtual environments and files that git ignores are skipped. Unusual characters"
        " in names are escaped with a backslash; use the names as given."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "description": "A folder in the workspace; '.' is the workspace itself.",
            },
            "cursor": {"type": ["string", "null"], "description": "The cursor from the previous page."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES},
            "recursive": {"type": "boolean", "default": False},
        },
        "additionalProperties": False,
    },
)
