"""Folders, databases and processes of tests of runs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from watchkeeper.store import database
from watchkeeper.store.place import Place


def workspace_in(folder: Path) -> Path:
    """The folder `workspace` in a folder, made if need be: a database in `folder` is outside of it."""
    made = folder / "workspace"
    made.mkdir(parents=True, exist_ok=True)
    return made


def query(path: Place, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Rows of a database, read over a connection of their own."""
    with closing(database.open_readonly(path)) as connection:
        return [tuple(row) for row in connection.execute(sql, parameters).fetchall()]


def wk(path: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`wk ARGUMENTS --db PATH`, in a process of its own, to its end."""
    command = [sys.executable, "-m", "watchkeeper", *arguments, "--db", str(path)]
    options = {"timeout": 60} | options
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
