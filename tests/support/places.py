"""Folders for tests of runs."""

from __future__ import annotations

from pathlib import Path


def workspace_in(folder: Path) -> Path:
    """The folder `workspace` in a folder, made if need be: a database in `folder` is outside of it."""
    made = folder / "workspace"
    made.mkdir(parents=True, exist_ok=True)
    return made
