"""OpenCode's sessions: the database `~/.local/share/opencode/opencode.db`."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from watchkeeper.transcripts.opencode.database import DatabaseReader, is_database, lacks_log
from watchkeeper.transcripts.records import Program, PullReader, Source

SQLITE = b"SQLite format 3\x00"
INDEX_HEAD_BYTES = 48
"""The part of a write-ahead log's index that says how far the log goes and how often it changed. The marks of
its readers follow."""


class OpenCode(Program):
    """OpenCode, from 1.2 on, which keeps its sessions in a database."""

    name = "opencode"
    alias = "opencode"
    label = "OpenCode"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """The databases in the data folder: `OPENCODE_DATA_DIR`, else `opencode` in `XDG_DATA_HOME` or
        `~/.local/share`.

        Not the folder itself: it also holds snapshots of workspaces, many thousand files.
        """
        chosen, data = environ.get("OPENCODE_DATA_DIR", "").strip(), environ.get("XDG_DATA_HOME", "").strip()
        folder = Path(chosen).expanduser() if chosen else None
        if folder is None:
            folder = (Path(data).expanduser() if data else home / ".local" / "share") / "opencode"
        return [folder / "opencode.db", *sorted(folder.glob("opencode-*.db"))]

    def may_be_log(self, path: Path) -> bool:
        return path.suffix == ".db" and path.name.startswith("opencode")

    def log_of(self, path: Path) -> Path | None:
        """The database, also for SQLite's write-ahead log beside it."""
        return super().log_of(
            path.with_name(path.name.removesuffix("-wal")) if path.name.endswith(".db-wal") else path
        )

    def recognises(self, source: Source) -> bool:
        return source.head.startswith(SQLITE) and (
            is_database(source.path) or lacks_log(source.path, source.head)
        )

    def reader(self, source: Source, state: dict[str, Any] | None) -> PullReader:
        return DatabaseReader(source.path, state)

    def fingerprint(self, path: Path) -> tuple[int, float]:
        """The sizes of a database and its write-ahead log together, and a number for their times.

        A transaction becomes readable a moment after its log was written, when the log's index (`-shm`) names
        it. The number covers the index too, so that a look in between does not hide the transaction.
        """
        digest, size = blake2b(digest_size=6), 0
        for each in (path, path.with_name(f"{path.name}-wal")):
            try:
                found = each.stat()
            except OSError:
                continue
            size += found.st_size
            digest.update(f"{found.st_mtime_ns} ".encode())
        try:
            with path.with_name(f"{path.name}-shm").open("rb") as index:
                digest.update(index.read(INDEX_HEAD_BYTES))
        except OSError:
            pass  # no other process has the database open
        return size, float(int.from_bytes(digest.digest(), "big"))


PROGRAM = OpenCode()
