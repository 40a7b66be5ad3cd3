"""Folders that Watchkeeper makes for its own files: for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o700


def make_private(folder: Path) -> None:
    """Make a folder and each missing one above it, all of them with mode 0700; folders that exist keep
    theirs.

    `Path.mkdir(parents=True, mode=…)` gives the mode to the last folder only.

    Raises:
        OSError: one of them cannot be made, or a file has its name.
    """
    missing: list[Path] = []
    current = folder
    while not os.path.lexists(current) and current != current.parent:
        missing.append(current)
        current = current.parent
    for each in reversed(missing):
        each.mkdir(mode=PRIVATE, exist_ok=True)  # another process may make it at the same moment
    folder.mkdir(mode=PRIVATE, exist_ok=True)
