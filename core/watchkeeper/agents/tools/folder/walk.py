"""Walking a folder in one fixed order, from any place on: parents before children, names by their bytes.

The order of paths is the order of their tuples of names, so that a place is enough to go on from: what lies
before it is never visited again, and what has since appeared or vanished elsewhere does no harm.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from watchkeeper.agents.tools.folder.examine import why

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
        found = _found(entry, names)
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
