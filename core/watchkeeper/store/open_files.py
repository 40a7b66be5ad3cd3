"""Which files SQLite has open under a database's names, so that one which somebody takes away is noticed.

SQLite goes on with a file that has no name any more, while others begin a new one: nothing of either is seen by the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

Identity = tuple[int, int] | None
"""Device and number of a file; None where there is none."""


def identities(path: Path) -> dict[str, Identity]:
    """Which files the database, its log and the index of the log are now, by name."""
    return {name: _identity(name) for name in (f"{path}", f"{path}-wal", f"{path}-shm")}


def taken_away(before: Mapping[str, Identity], now: Mapping[str, Identity]) -> list[str]:
    """The names whose file is gone or another one; those that were not there before do not count."""
    return [name for name, was in before.items() if was is not None and was != now[name]]


def _identity(name: str) -> Identity:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino
