"""Who watches a session: each dashboard holds a shared lock on a small file beside the lease.

A lock ends with its process, so a dashboard that was killed watches nothing, and no clock decides. A host
asks whether anybody holds one (`F_GETLK`), which takes no lock. A POSIX lock is dropped when its process
closes *any* descriptor of the file: `is_watched` therefore answers from memory for sessions that this very
process watches.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from watchkeeper.store.lease import ask_lock, lock_path

_watched: dict[Path, tuple[int, int]] = {}
"""The files that this process holds, each with its descriptor and how many watch by it."""
_changing = threading.Lock()


def watch_path(database_path: Path, session_id: str) -> Path:
    """The file that those who watch a session lock."""
    return lock_path(database_path, session_id).with_suffix(".watch")


class Presence:
    """Says that somebody who can answer watches a session, until `close()` or the end of the process."""

    def __init__(self, database_path: Path, session_id: str) -> None:
        self._path: Path | None = watch_path(database_path, session_id)
        with _changing:
            held = _watched.get(self._path)
            if held is not None:
                _watched[self._path] = (held[0], held[1] + 1)
                return
            try:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                self._path = None  # a database that cannot be written can hold no answer either
                return
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:  # a file system without locks: nobody is known to watch
                os.close(descriptor)
                self._path = None
                return
            _watched[self._path] = (descriptor, 1)

    def close(self) -> None:
        """Stop watching."""
        with _changing:
            path, self._path = self._path, None
            if path is None:
                return
            descriptor, count = _watched[path]
            if count > 1:
                _watched[path] = (descriptor, count - 1)
            else:
                del _watched[path]
                os.close(descriptor)


def is_watched(database_path: Path, session_id: str) -> bool:
    """Whether somebody watches the session who can answer its questions. Takes nothing and waits for
    nothing."""
    path = watch_path(database_path, session_id)
    with _changing:
        if path in _watched:
            return True
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return ask_lock(descriptor) is not None
        finally:
            os.close(descriptor)
