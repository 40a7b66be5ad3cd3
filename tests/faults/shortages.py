"""Makes the machine short of something: the n-th `open`, `fork`, `write` or thread start of a run and its
workers fails.

The calls are counted across processes, in a small file that all of them map, from the moment that the run's
first step arms it. Opens (of modules and sockets too) and processes are seen by Python's audit hooks;
threads, databases and writes by stand-ins of what starts, opens or writes them. A database's write is its
COMMIT.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import mmap
import os
import struct
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

_COUNTS = struct.Struct("=qqqq")
"""Whether it is armed, how many calls there were, which one fails first, and which one fails last."""
NEVER = 1 << 60


class Kind(StrEnum):
    OPEN = "open"
    FORK = "fork"
    WRITE = "write"
    THREAD = "thread"


_EVENTS = {
    "open": Kind.OPEN, "os.listdir": Kind.OPEN, "os.scandir": Kind.OPEN, "socket.__new__": Kind.OPEN,
    "subprocess.Popen": Kind.FORK, "os.fork": Kind.FORK, "os.posix_spawn": Kind.FORK,
}  # fmt: skip


class Shortage:
    """The calls of one kind in one run; `file` is shared by its processes."""

    def __init__(self, file: Path, kind: Kind) -> None:
        self._kind = kind
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._descriptor, _COUNTS.size)
        self._counts = mmap.mmap(self._descriptor, _COUNTS.size)
        self._busy = False

    def plan(self, first: int, last: int) -> None:
        """Let the calls from `first` to `last`, both counted from 1, fail."""
        _COUNTS.pack_into(self._counts, 0, 0, 0, first, last)

    def arm(self) -> None:
        """The first step begins: count from here."""
        armed, _, first, last = _COUNTS.unpack_from(self._counts)
        if not armed:
            _COUNTS.pack_into(self._counts, 0, 1, 0, first, last)

    @property
    def count(self) -> int:
        """How many calls there were since it was armed."""
        return int(_COUNTS.unpack_from(self._counts)[1])

    def install(self) -> None:
        """See this process's calls from now on, and those of the processes that are forked from it."""
        match self._kind:
            case Kind.WRITE:
                self._install_writes()
                self._install_database()
            case Kind.THREAD:
                self._install_threads()
            case Kind.OPEN:
                sys.addaudithook(self._heard)
                self._install_database()
            case Kind.FORK:
                sys.addaudithook(self._heard)

    def meets(self) -> bool:
        """Count a call; whether it must fail."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            armed, count, first, last = _COUNTS.unpack_from(self._counts)
            count += bool(armed)
            _COUNTS.pack_into(self._counts, 0, armed, count, first, last)
            return bool(armed) and first <= count <= last
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if _EVENTS.get(event) is not self._kind or self._busy:
            return
        if event == "open" and isinstance(arguments[0], int):
            return  # a descriptor that is open already
        self._busy = True
        try:
            if self.meets():
                code = errno.EMFILE
                if self._kind is Kind.FORK:
                    code = errno.EAGAIN if self.count % 2 else errno.ENOMEM
                raise OSError(code, os.strerror(code))
        finally:
            self._busy = False

    # --- stand-ins ------------------------------------------------------------------------------------------

    def _install_threads(self) -> None:
        threads: Any = threading
        name = (
            "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
        )
        start = getattr(threads, name)

        def starting(*arguments: Any, **options: Any) -> Any:
            if self.meets():
                raise RuntimeError("can't start new thread")
            return start(*arguments, **options)

        setattr(threads, name, starting)

    def _install_writes(self) -> None:
        shortage = self
        written, opened = os.write, io.open

        def full() -> OSError:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write(descriptor: int, data: Any) -> int:
            if shortage.meets():
                raise full()
            return written(descriptor, data)

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                if shortage.meets():
                    # A disk fills up in the middle of a write. A file of the kernel takes a write whole or
                    # not at all, and half of a process id is the id of another process.
                    if not str(self.name).startswith(("/proc/", "/sys/")):
                        super().write(bytes(data)[: len(data) // 2])
                    raise full()
                return super().write(data)

        def opening(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or isinstance(file, int):
                return opened(file, mode, buffering, *rest, **options)
            raw = File(file, mode.replace("b", "").replace("t", ""), opener=options.pop("opener", None))
            buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)

        os.write = write
        io.open = builtins.open = opening

    def _install_database(self) -> None:
        from watchkeeper.store.driver import sqlite3

        shortage, connect = self, sqlite3.connect
        writes = self._kind is Kind.WRITE

        class Connection(sqlite3.Connection):  # type: ignore[name-defined]
            def execute(self, sql: str, *arguments: Any) -> Any:
                if sql == "COMMIT" and writes and shortage.meets():
                    raise _sqlite_error("database or disk is full", "SQLITE_FULL")
                return super().execute(sql, *arguments)

        def connecting(*arguments: Any, **options: Any) -> Any:
            if not writes and shortage.meets():
                raise _sqlite_error("unable to open database file", "SQLITE_CANTOPEN")
            return connect(*arguments, **{"factory": Connection} | options)

        sqlite3.connect = connecting


def _sqlite_error(text: str, name: str) -> Exception:
    from watchkeeper.store.driver import sqlite3

    error: Any = sqlite3.OperationalError(text)
    error.sqlite_errorname = name
    return error  # type: ignore[no-any-return]
