"""Files that are being written under a name of their own, and what is left of those whose writer was killed.

A writer holds a lock on its file as long as it lives. So a file of this kind that nobody holds was left by a
kill, and whoever writes the next one into the same folder takes it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SUFFIX = ".wk-part"
_NAME = re.compile(rf"\..*\.[0-9a-f]{{12}}{re.escape(_SUFFIX)}", re.DOTALL)
_COMPANIONS = ("-wal", "-shm", "-journal")
"""What SQLite lays beside a database."""


@contextmanager
def unfinished(target: Path) -> Iterator[tuple[Path, int]]:
    """A new, empty file beside `target` (hidden, mode 0600): its path, and a descriptor that writes it.

    Where the block has not renamed it, it is taken away with what SQLite laid beside it. So are, first, those
    in this folder whose writers were killed.

    Raises:
        OSError: the folder cannot be written.
    """
    _sweep(target.parent)
    part, descriptor = _made(target)
    try:
        yield part, descriptor
    finally:
        _remove(part)
        os.close(descriptor)


def _made(target: Path) -> tuple[Path, int]:
    while True:
        part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}{_SUFFIX}")
        # Created anew and for us alone: what was put there before we came is not written through.
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nothing there is ever swept
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another writer may have swept it between its making and its lock.
        if os.path.lexists(part):
            return part, descriptor
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except OSError:
        return  # a folder that may be written and not read
    for name in names:
        with contextlib.suppress(OSError):
            _remove_if_left(folder / name)


def _remove_if_left(part: Path) -> None:
    descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where its writer lives
            _remove(part)
    finally:
        os.close(descriptor)


def _remove(part: Path) -> None:
    for name in (part, *(part.with_name(part.name + companion) for companion in _COMPANIONS)):
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
