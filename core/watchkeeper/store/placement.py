"""Where the files of a database are: never in the workspace of a session that it holds.

An agent's file tools change any file of their workspace. A database there could be overwritten by a single
`write`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from watchkeeper.records.errors import BadInput
from watchkeeper.store.database import user_data_place
from watchkeeper.store.lease import lock_path

SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Of the database's name: the file itself, and what SQLite keeps beside it."""

_ESCAPED = re.compile(r"\\([0-7]{3})")


def database_files(path: Path) -> list[Path]:
    """The names under which SQLite keeps the database, links resolved. Some of the files may not exist."""
    resolved = path.resolve()
    return [resolved.with_name(resolved.name + suffix) for suffix in SUFFIXES]


def lease_folder(path: Path) -> Path:
    """The folder that holds the database's leases."""
    return lock_path(path, "any").parent


def refuse_inside(path: Path, workspace: Path) -> None:
    """Refuse a session whose workspace contains its database.

    Raises:
        BadInput: one line with the command that moves the database.
    """
    if not lies_inside(path, workspace):
        return
    fault = f"the database {path} {{}} in the workspace {workspace}, where an agent's file tools could overwrite it; "
    place = _place_outside(path, workspace)
    if place is None:
        raise BadInput(fault.format("is") + "choose a smaller folder with --workspace")
    target = shlex.quote(str(place))
    if path.exists():
        raise BadInput(
            fault.format("is")
            + f"move it with `wk backup --move --db {shlex.quote(str(path))} {target}`, then use --db {target}"
        )
    raise BadInput(fault.format("would be") + f"use --db {target}")


def protected_files(path: Path) -> frozenset[tuple[int, int]]:
    """Device and inode of the database's files and of its leases: a process that has them locked must not
    open them again."""
    files = [*database_files(path), *lease_folder(path).glob("*")]
    return frozenset(found for found in map(_identity, files) if found is not None)


def lies_inside(path: Path, folder: Path) -> bool:
    """Whether the database is anywhere below `folder`: by its resolved path, or by another name of the same
    folder.

    A bind mount gives a folder a second path. So the folder, and what is mounted below it, are compared by
    device and inode with the database's files and all folders above them.
    """
    root, files = folder.resolve(), database_files(path)
    if files[0].is_relative_to(root):
        return True
    chain = {_identity(one) for one in (*files, *files[0].parents)} - {None}
    return any(_identity(one) in chain for one in (root, *_mounts_below(root)))


def _place_outside(path: Path, workspace: Path) -> Path | None:
    """A free name outside the workspace: in the user's data folder if that is outside, else beside the
    workspace."""
    default = user_data_place()
    stem, suffix = path.stem, path.suffix or ".db"
    for folder in (default.parent, workspace.resolve().parent):
        if lies_inside(folder / path.name, workspace) or not _can_write(folder):
            continue
        for name in (default.name, path.name, *(f"{stem}-{number}{suffix}" for number in range(2, 1_000))):
            if not os.path.lexists(folder / name):
                return folder / name
    return None


def _can_write(folder: Path) -> bool:
    """Whether this user may make files in a folder, or make the folder."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return os.access(there, os.W_OK | os.X_OK)


def _mounts_below(root: Path) -> Iterator[Path]:
    """What is mounted below a folder (Linux)."""
    try:
        lines = (
            Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        )
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 4:
            point = Path(_ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), fields[4]))
            if point != root and point.is_relative_to(root):
                yield point


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
