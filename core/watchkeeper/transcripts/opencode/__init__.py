"""OpenCode's sessions: the database `~/.local/share/opencode/opencode.db`, and the tree of JSON files it had
before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from watchkeeper.transcripts.jsontext import parse, text_of
from watchkeeper.transcripts.opencode.database import DatabaseReader, is_database, lacks_log
from watchkeeper.transcripts.opencode.tree import Tree, TreeReader, files_in, read, session_file, stat_of
from watchkeeper.transcripts.records import PullReader, Source

# --- Where OpenCode's sessions lie, and how they are recognised -------------------------------------------

SQLITE = b"SQLite format 3\x00"
INDEX_HEAD_BYTES = 48
"""Of a write-ahead log's index: how far it goes, and how often it changed. Behind them stands who reads
it."""


class OpenCode:
    """OpenCode, in all forms that it kept its sessions in."""

    name = "opencode"
    alias = "opencode"
    label = "OpenCode"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """In the data folder (`OPENCODE_DATA_DIR`, else `opencode` in `XDG_DATA_HOME` or `~/.local/share`):
        databases and trees.

        Not the folder itself: snapshots of workspaces lie there as well, many thousand files.
        """
        chosen, data = environ.get("OPENCODE_DATA_DIR", "").strip(), environ.get("XDG_DATA_HOME", "").strip()
        folder = Path(chosen).expanduser() if chosen else None
        if folder is None:
            folder = (Path(data).expanduser() if data else home / ".local" / "share") / "opencode"
        channels = sorted(folder.glob("opencode-*.db"))
        return [folder / "opencode.db", *channels, folder / "storage", folder / "project"]

    def may_be_log(self, path: Path) -> bool:
        """A database by its name; of the tree, a session's file, or the first message of one whose file is
        lost."""
        if path.suffix == ".db":
            return path.name.startswith("opencode")
        if path.suffix != ".json" or len(path.parents) < 3:
            return False
        above = path.parents[1]
        if above.name == "session":
            return path.parent.name not in ("message", "part", "share")
        return above.name == "message" and _leads(path)

    def log_of(self, path: Path) -> Path | None:
        """Of SQLite's write-ahead log, the database; of a message, a part or a to-do list in the tree, its
        session's file."""
        if path.name.endswith(".db-wal"):
            path = path.with_name(path.name.removesuffix("-wal"))
        if self.may_be_log(path):
            return path
        if len(path.parents) < 3 or path.suffix not in (".json", ""):
            return None
        if path.suffix == "" and path.parent.name in ("message", "part"):
            path = next(
                iter(files_in(path)), path
            )  # a folder is new, and what was written into it at once tells no more
        return session_file(path)

    def folder_of(self, log: Path) -> Path:
        return Tree(log).base if log.suffix == ".json" else log.parent

    def recognises(self, source: Source) -> bool:
        if source.head.startswith(SQLITE):
            return is_database(source.path) or lacks_log(source.path, source.head)
        if source.path.suffix != ".json" or len(source.path.parents) < 3:
            return False
        above = source.path.parents[1]
        if above.name == "message":
            return (above.parent / "part").is_dir() or b'"sessionID"' in source.head
        value = parse(source.head)
        if value is None:
            return above.name == "session" and (above.parent / "message").is_dir()
        return (
            text_of(value.get("id")) is not None
            and isinstance(value.get("time"), dict)
            and "role" not in value
        )

    def companions(self, path: Path) -> list[Path]:
        return []

    def reader(self, source: Source, state: dict[str, Any] | None) -> PullReader:
        if source.head.startswith(SQLITE):
            return DatabaseReader(source.path, state)
        return TreeReader(source.path, state)

    def fingerprint(self, path: Path) -> tuple[int, float]:
        """Of a database, with its log beside it; of a session in the tree, of all its files."""
        if path.suffix != ".json":
            return _database_mark(path)
        tree = Tree(path)
        _, value = tree.session_value()
        paths = list(tree.everything(tree.session_id(value)))
        size, newest = 0, 0.0
        for each in paths:
            found = stat_of(each)
            if found is not None:
                size, newest = size + found.st_size, max(newest, found.st_mtime)
        return size, newest


def _database_mark(path: Path) -> tuple[int, float]:
    """Sizes, and a number for all else. A transaction can be read a moment after its log was written, once
    the log's index (`-shm`) names it: who looked in between finds other numbers there the next time."""
    digest, size = blake2b(digest_size=6), 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        found = stat_of(each)
        if found is not None:
            size += found.st_size
            digest.update(f"{found.st_mtime_ns} ".encode())
    digest.update(read(path.with_name(f"{path.name}-shm"), INDEX_HEAD_BYTES))
    return size, float(int.from_bytes(digest.digest(), "big"))


def _leads(path: Path) -> bool:
    """Whether it is the first message of a session that has no file."""
    try:
        return _lead(path.parent, os.stat(path.parent).st_mtime_ns) == path
    except OSError:
        return False


@lru_cache(maxsize=4_096)
def _lead(folder: Path, _: int) -> Path | None:
    base = folder.parents[1]
    known = _sessions(base, _stamp(base / "session") + _stamp(base / "info"))
    if folder.name in known or any(name.endswith(f"_{folder.name}") for name in known):
        return None
    return next(iter(files_in(folder)), None)


@lru_cache(maxsize=16)
def _sessions(base: Path, _: int) -> frozenset[str]:
    """Names of all sessions' files, in either layout of the tree."""
    return frozenset(
        path.stem for pattern in ("session/*/*.json", "info/*.json") for path in base.glob(pattern)
    )


def _stamp(folder: Path) -> int:
    """When a session was last added."""
    try:
        inner = [each.stat().st_mtime_ns for each in os.scandir(folder)]
        return max([os.stat(folder).st_mtime_ns, *inner])
    except OSError:
        return 0


PROGRAM = OpenCode()
