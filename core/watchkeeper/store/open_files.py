"""Which files SQLite has open under a database's names: one that is removed, or has a second name, is
noticed.

SQLite goes on with a file that has no name any more, while others begin a new one: nothing of either is seen
by the other. A database with two names (hard links) has two write-ahead logs, one for each name: opened by
both, it is corrupted.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from watchkeeper.records.errors import StoreUnusable

Identity = tuple[int, int] | None
"""Device and number of a file; None where there is none."""


def identities(path: Path) -> dict[str, Identity]:
    """Which files the database, its log and the index of the log are now, by name."""
    return {name: _identity(name) for name in (f"{path}", f"{path}-wal", f"{path}-shm")}


def taken_away(before: Mapping[str, Identity], now: Mapping[str, Identity]) -> list[str]:
    """The names whose file is gone or another one; those that were not there before do not count."""
    return [name for name, was in before.items() if was is not None and was != now[name]]


def refuse_second_name(path: Path) -> None:
    """Refuse a database one of whose files has another name (a hard link).

    Raises:
        StoreUnusable: one line with the command that finds the other name.
    """
    resolved = os.path.realpath(path)
    for suffix in ("", "-wal", "-shm"):
        name = resolved + suffix
        try:
            found = os.stat(name)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise StoreUnusable(
                f"{name} has {found.st_nlink} names (hard links to inode {found.st_ino}), which corrupts a"
                " database that is opened"
                f" by both; find them with `find {shlex.quote(_mount_point(name))} -xdev -samefile"
                f" {shlex.quote(name)}`,"
                " remove all but this one, then try again"
            )


def _mount_point(name: str) -> str:
    """The top of the file system that holds a file: all names of the file are below it."""
    folder = os.path.dirname(name)
    while not os.path.ismount(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _identity(name: str) -> Identity:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino
