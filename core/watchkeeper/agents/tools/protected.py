"""In a worker: the files of the session's own database, which no file tool may open.

They are known by device and inode, so under any name: a hard link, a link, a bind mount, or a name that they
got since. A descriptor of each is kept, so that its inode number cannot pass to another file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

Identity = tuple[int, int]
"""Device and inode."""
Refuses = Callable[[os.stat_result], bool]
"""Whether a file with this status may not be opened."""


def refuses_nothing(status: os.stat_result) -> bool:
    """Every file may be opened."""
    return False


_REFERENCE = os.O_CLOEXEC | (os.O_PATH if sys.platform == "linux" else os.O_NONBLOCK)
"""A descriptor that only refers to a file. Landlock lets it be opened anywhere."""


class IsDatabase(Exception):
    """A tool was about to open the session's database, its log, the index of its log, or a lease."""

    def __str__(self) -> str:
        return "it belongs to the database of this run; file tools may not open it"


class ProtectedFiles:
    """The database's files and leases. Make it before the process is confined: later, the leases cannot be
    listed.

    Args:
        names: where the database's files are, or may be.
        leases: the folder of its leases.
    """

    def __init__(self, names: Sequence[str] = (), leases: str = "") -> None:
        self._names = [Path(name) for name in names]
        self._held: dict[Identity, int] = {}
        self._unheld: set[Identity] = set()
        """Those of which no descriptor could be had."""
        self._lease_path = Path(leases) if leases else None
        self._lease_folder: int | None = None
        self._leases: set[Identity] = set()
        if leases:
            with suppress(OSError):
                self._lease_folder = os.open(leases, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.look()

    def look(self) -> None:
        """Learn which files they are now; called before each tool call. SQLite makes some of them anew."""
        for name in self._names:
            found = _identity(name)
            if found is not None and found not in self._held:
                self._unheld.add(found)
                with suppress(OSError):
                    descriptor = os.open(name, _REFERENCE)
                    self._held.setdefault(_of(os.fstat(descriptor)), descriptor)
        self._unheld -= self._held.keys()
        with suppress(OSError):
            self._leases = {_of(lease) for lease in self._lease_files()}

    def refuses(self, status: os.stat_result) -> bool:
        """Whether a file is one of them. Ask with the status of an open descriptor, before anything is read
        or changed."""
        return any(_of(status) in known for known in (self._held, self._unheld, self._leases))

    def check(self, path: Path) -> None:
        """Refuse a path whose file is one of them, or that would make one of them.

        Raises:
            IsDatabase: it is, or it would.
        """
        with suppress(OSError):
            if self.refuses(path.stat()):
                raise IsDatabase
        folder = _identity(path.parent)
        if folder is None or not self._names:
            return
        if folder == _identity(self._names[0].parent) and path.name in {name.name for name in self._names}:
            raise IsDatabase
        if self._lease_folder is not None and folder == _of(os.fstat(self._lease_folder)):
            raise IsDatabase

    def below(self, folder: Path) -> list[Path]:
        """Every path below a folder that is one of them. The folder is searched only where one can be
        there."""
        return (
            [path for path in _files_below(folder) if self._is_one(path)]
            if self._may_be_below(folder)
            else []
        )

    def _is_one(self, path: Path) -> bool:
        try:
            return self.refuses(path.stat(follow_symlinks=False))
        except OSError:
            return False

    def _may_be_below(self, folder: Path) -> bool:
        known = {_identity(name) for name in self._names}
        moved = any(
            one not in known or os.fstat(descriptor).st_nlink != 1 for one, descriptor in self._held.items()
        )
        if self._lease_folder is not None:
            moved = moved or _of(os.fstat(self._lease_folder)) != _identity(self._lease_path)
            moved = moved or any(status.st_nlink != 1 for status in self._lease_files())
        return moved or any(name.is_relative_to(folder) for name in self._names)

    def _lease_files(self) -> Iterator[os.stat_result]:
        if self._lease_folder is None:
            return
        with os.scandir(self._lease_folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False)


def _files_below(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)


def _identity(path: Path | None) -> Identity | None:
    try:
        return _of(os.stat(path)) if path is not None else None
    except OSError:
        return None


def _of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
