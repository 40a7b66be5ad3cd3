"""Finding logs: files and folders as they are on real disks, with links in circles and doors that stay
shut."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.transcripts import packed
from watchkeeper.transcripts.packed import packed_name, unpacked_name

HEAD_BYTES = 65_536
MOST_PASSED = 128 << 20
"""How far into a file its first whole lines are looked for."""
LINES_LOOKED_AT = 40
LONGEST_HELD = 1 << 20
"""Of a first line that is longer, its beginning is looked at."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be a log."""

    path: Path
    """Its real path, links resolved: a file reached in two ways is one file. Of a packed log, its name
    before."""
    size: int
    modified_at: float


Trouble = Callable[[str, str], None]
"""Told of what could not be looked at: its name, and why."""


def find(places: list[Path], may_be_log: Callable[[Path], bool], trouble: Trouble) -> Iterator[Found]:
    """Every file in these places that may be a log, each once. A place that is a file is taken whatever its
    name.

    Nothing is raised for what cannot be read: `trouble` is told, and the rest goes on.
    """
    files: set[tuple[int, int]] = set()
    folders: set[tuple[int, int]] = set()
    # A place, whether somebody named it, and its real path, where it was told by the folder's.
    waiting: list[tuple[Path, bool, str]] = [(place, True, "") for place in reversed(places)]
    while waiting:
        path, named, real = waiting.pop()
        path = packed_name(path) if named else path
        try:
            found = path.stat()
        except OSError as error:
            trouble(str(path), _reason(error, path))
            continue
        identity = (found.st_dev, found.st_ino)
        if _is_folder(found):
            if identity in folders:
                continue  # a link led back here
            folders.add(identity)
            try:
                with os.scandir(path) as entries:
                    inside = sorted(((entry.name, entry.is_symlink()) for entry in entries), reverse=True)
            except OSError as error:
                trouble(str(path), _reason(error, path))
                continue
            real = real or os.path.realpath(path)
            waiting.extend(
                (path / name, False, "" if link else os.path.join(real, name)) for name, link in inside
            )
        elif _is_file(found):
            log = unpacked_name(path)
            if identity in files or not (named or may_be_log(log)):
                continue
            if log != path and log.exists():
                continue  # it is unpacked beside it, and goes on there
            files.add(identity)
            yield Found(unpacked_name(Path(real or os.path.realpath(path))), found.st_size, found.st_mtime)
        elif named:
            trouble(str(path), "neither a file nor a folder")


def read_head(path: Path, limit: int = HEAD_BYTES) -> bytes:
    """The beginning of a file.

    Raises:
        OSError: it cannot be read.
    """
    return packed.read_head(path, limit)


def read_past(path: Path, head: bytes) -> bytes:
    """The first lines of a log whose first ones do not fit into the head, each whole as far as it is of a
    bearable length; empty where the head says enough.

    Raises:
        OSError: it cannot be read.
    """
    if head.count(b"\n") >= LINES_LOOKED_AT or len(head) < HEAD_BYTES:
        return b""
    found: list[bytes] = []
    with packed.open_log(path, beginning=True) as file:
        while (
            len(found) < LINES_LOOKED_AT
            and file.tell() < MOST_PASSED
            and (line := file.readline(LONGEST_HELD))
        ):
            found.append(line if line.endswith(b"\n") else line[:HEAD_BYTES] + b"\n")
            while not line.endswith(b"\n") and (line := file.readline(LONGEST_HELD)):
                if file.tell() > MOST_PASSED:
                    break
    return b"".join(found)


def stored_path(path: Path) -> str:
    """A path as the database can hold it, also where its name is no UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_folder(found: os.stat_result) -> bool:
    return found.st_mode & 0o170000 == 0o040000


def _is_file(found: os.stat_result) -> bool:
    return found.st_mode & 0o170000 == 0o100000


def _reason(error: OSError, path: Path) -> str:
    if path.is_symlink() and isinstance(error, FileNotFoundError):
        return "a link to nothing"
    return (error.strerror or str(error)).lower()
