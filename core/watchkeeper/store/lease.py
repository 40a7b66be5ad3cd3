"""Who drives a session. Liveness is a POSIX lock on a small file; correctness is the epoch in the database.

A lock ends with its process, for whatever reason, so nothing is stale after a crash or a restart of the
machine. Probing takes no lock (`F_GETLK`). A POSIX lock is dropped when its process closes *any* descriptor
of the file, so a host never probes its own session: `probe` answers for it from memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.records import proc
from watchkeeper.records.errors import DrivenElsewhere, StoreUnusable, reason_of
from watchkeeper.store import postgres
from watchkeeper.store.driver import list_of
from watchkeeper.store.place import DatabaseUrl, Place, folder_beside

_DARWIN = sys.platform == "darwin"
_FLOCK = "qqihh" if _DARWIN else "hhqqi4x"
"""`struct flock`: type, whence, start, length, pid on Linux; start, length, pid, type, whence on macOS."""

RESERVE_BYTES = 512 << 10
"""What a lock file holds while a host drives its session: room on a full disk for the transaction that pauses
the session."""

_held: dict[Path, int] = {}
_holding = threading.Lock()
"""POSIX locks are a process's: two of its threads would both be given one."""


LAPSE_SECONDS = 0.05
"""How often a lease on a server is asked for that a killed host holds."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that drives a session now."""

    pid: int
    host_name: str = ""
    """Its machine; empty: this one."""

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, where its process id means something."""
        return self.host_name in ("", socket.gethostname())

    @property
    def is_this_process(self) -> bool:
        return self.is_here and self.pid == os.getpid()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended: it was a process of this machine that is gone."""
        return self.is_here and self.pid != 0 and proc.has_ended(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid}" if self.is_here else f"pid {self.pid} on {self.host_name}"


def lock_path(database_path: Place, session_id: str) -> Path:
    """The lock file of one session, in a folder beside the database. For a database on a server it is a place
    for this machine's files about the session, such as the output of its host."""
    if not isinstance(database_path, Path):
        return folder_beside(database_path) / "leases" / f"{session_id}.lock"
    resolved = database_path.resolve()
    return resolved.with_name(resolved.name + "-leases") / f"{session_id}.lock"


class Lease:
    """The lock of one session, held until `release()` or the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._released = False
        self.epoch: int | None = None
        """The epoch that began with the lease, where taking it began one."""

    @classmethod
    def acquire(cls, database_path: Place, session_id: str) -> Lease:
        """Take the lease.

        Raises:
            DrivenElsewhere: a live process holds it; the message names it.
            StoreUnusable: the lock file cannot be made or locked.
        """
        if not isinstance(database_path, Path):
            return ServerLease(database_path, session_id)
        path = lock_path(database_path, session_id)
        with _holding:
            if path in _held:
                raise DrivenElsewhere(
                    f"this process (pid {os.getpid()}) is already running session {session_id}"
                )
            try:
                _held[path] = _lock(path, session_id)
            except OSError as error:
                raise StoreUnusable(
                    f"cannot lock {path} ({reason_of(error)}); choose another location with --db"
                ) from error
            return cls(path, _held[path])

    def reserve(self) -> None:
        """Let the lock file hold `RESERVE_BYTES`, or half of what the disk still has."""
        with contextlib.suppress(OSError):
            disk = os.fstatvfs(self._descriptor)
            os.pwrite(self._descriptor, bytes(min(RESERVE_BYTES, disk.f_bavail * disk.f_frsize // 2)), 0)

    def free_reserve(self) -> None:
        """Give the disk back what the lock file held for a moment like this."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)

    def fenced(self, epoch: int) -> None:
        """From now on a host's commits at this epoch extend the lease."""

    def release(self) -> None:
        """Give the lease up."""
        with _holding:
            if not self._released:
                self._released = True
                self.free_reserve()
                del _held[self._path]
                os.close(self._descriptor)


class ServerLease(Lease):
    """The lease of a session on PostgreSQL: `sessions.lease_until`, by the clock of the server.

    A thread extends it until a host does so with its commits (`fenced`).
    """

    def __init__(self, url: DatabaseUrl, session_id: str) -> None:
        self._session_id = session_id
        self._connection = postgres.connect(url)
        self._ended = threading.Event()
        self._is_fenced = False
        me, deadline = (
            (os.getpid(), socket.gethostname(), session_id),
            time.monotonic() + postgres.lease_seconds(),
        )
        while True:
            taken = self._connection.execute(postgres.TAKE_LEASE, me).fetchone()
            holder = None if taken else server_holder(self._connection, session_id)
            if holder is None or not holder.has_ended or time.monotonic() > deadline:
                break
            time.sleep(LAPSE_SECONDS)  # it was killed on this machine: its lease soon ends
        self.epoch = taken[0] if taken else None
        if taken is None and holder is not None:
            self._connection.close()
            raise DrivenElsewhere(
                f"another background process ({holder}) is running session {session_id}; watch it with `wk watch {session_id}`"
            )
        # If there is no such session, who asked finds that out, or makes it, and has it from epoch 0 on.
        self._extending = threading.Thread(target=self._hold, name="watchkeeper-lease", daemon=True)
        self._extending.start()

    def reserve(self) -> None:
        """Nothing: the disk is the server's."""

    def free_reserve(self) -> None:
        """Nothing."""

    def fenced(self, epoch: int) -> None:
        self._is_fenced = True
        self.epoch = epoch

    def release(self) -> None:
        self._ended.set()
        self._extending.join(postgres.lease_seconds())  # where the server does not answer, it has lapsed then

    def _hold(self) -> None:
        """Extend the lease until it is given up. This thread alone uses the connection from now on."""
        while not self._ended.wait(postgres.lease_seconds() / 3):
            if not self._is_fenced:
                with contextlib.suppress(Exception):  # tried again; at the worst it lapses
                    self._connection.execute(postgres.EXTEND_LEASE, (self._session_id, self.epoch or 0))
        with contextlib.suppress(Exception):  # it lapses by itself
            self._connection.execute(postgres.RELEASE_LEASE, (self._session_id, self.epoch or 0))
        self._connection.close()


def server_holder(connection: Any, session_id: str) -> LeaseHolder | None:
    """Who holds the lease of a session on PostgreSQL now, as a connection to it sees it."""
    row = connection.execute(postgres.LEASE_HOLDER, (session_id,)).fetchone()
    return LeaseHolder(int(row[0] or 0), str(row[1] or "")) if row is not None else None


_kept = threading.local()
"""The connection by which a thread asks a server for leases, and its address."""


def _kept_connection(url: DatabaseUrl) -> Any:
    if getattr(_kept, "url", None) != url:
        _kept.connection, _kept.url = postgres.connect(url, read_only=True), url
    return _kept.connection


def _lock(path: Path, session_id: str) -> int:
    """The descriptor that holds the lock."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = ask_lock(descriptor) if error.errno in (errno.EACCES, errno.EAGAIN) else None
        os.close(descriptor)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        named = f"pid {holder.pid}" if holder else "another process"
        raise DrivenElsewhere(
            f"another background process ({named}) is running session {session_id}; watch it with `wk watch {session_id}`"
        ) from None
    return descriptor


def probe(database_path: Place, session_id: str, connection: Any = None) -> LeaseHolder | None:
    """Who holds the lease now, or None. Takes nothing and waits for nothing.

    A database on a server is asked through `connection`, or through one that this thread keeps for it.
    """
    if not isinstance(database_path, Path):
        return server_holder(connection or _kept_connection(database_path), session_id)
    path = lock_path(database_path, session_id)
    with _holding:  # were it taken by another thread between these steps, the close would drop it
        if path in _held:
            return LeaseHolder(os.getpid())
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return ask_lock(descriptor)
        finally:
            os.close(descriptor)


def probe_all(database_path: Place, session_ids: Iterable[str]) -> dict[str, LeaseHolder]:
    """Who holds the leases of these sessions now; a server is asked once for all of them."""
    if isinstance(database_path, Path):
        found = {session_id: probe(database_path, session_id) for session_id in session_ids}
        return {session_id: holder for session_id, holder in found.items() if holder is not None}
    wanted = list_of(sorted(session_ids))
    if not wanted.values:
        return {}
    rows = _kept_connection(database_path).execute(postgres.LEASE_HOLDERS, (wanted,)).fetchall()
    return {row[0]: LeaseHolder(int(row[1] or 0), str(row[2] or "")) for row in rows}


def holders(database_path: Path) -> Iterator[tuple[str, int]]:
    """Every session of the database whose lease is held now, with the process id of its host."""
    for path in sorted(lock_path(database_path, "any").parent.glob("*.lock")):
        holder = probe(database_path, path.stem)
        if holder is not None:
            yield path.stem, holder.pid


def ask_lock(descriptor: int) -> LeaseHolder | None:
    """The process whose lock on this file another one would have to wait for, or None."""
    if _DARWIN:
        question = struct.pack(_FLOCK, 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
        _, _, pid, kind, _ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    else:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else LeaseHolder(pid)


# --- Which sessions are being watched -----------------------------------------------------------------------
#
# Each dashboard holds a shared lock on a small file beside the lease. A lock ends with its process, so a
# dashboard that was killed watches nothing, and no clock decides. A host asks whether any process holds one
# (`F_GETLK`), which takes no lock. A POSIX lock is dropped when its process closes *any* descriptor of the
# file: `is_watched` therefore answers from memory for sessions that this very process watches.

_watched: dict[Path, tuple[int, int]] = {}
"""The files that this process holds, each with its descriptor and how many watch by it."""
_changing = threading.Lock()


def watch_path(database_path: Place, session_id: str) -> Path:
    """The file that those who watch a session lock."""
    return lock_path(database_path, session_id).with_suffix(".watch")


class Presence:
    """Marks a session as watched by a person who can answer, until `close()` or the end of the process.

    On PostgreSQL it is a shared advisory lock, which ends with the connection that holds it.
    """

    def __init__(self, database_path: Place, session_id: str) -> None:
        self._connection: Any = None
        self._path: Path | None = None
        if not isinstance(database_path, Path):
            self._connection = postgres.connect(database_path, read_only=True)
            self._connection.execute(postgres.WATCH, (session_id,))
            return
        self._path = watch_path(database_path, session_id)
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
            except OSError:  # a file system without locks: no viewer is known
                os.close(descriptor)
                self._path = None
                return
            _watched[self._path] = (descriptor, 1)

    def close(self) -> None:
        """Stop watching."""
        if self._connection is not None:
            with contextlib.suppress(Exception):  # the server frees it with the connection
                self._connection.execute("SELECT pg_advisory_unlock_all()")
            self._connection.close()
            self._connection = None
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


def is_watched(database_path: Place, session_id: str, connection: Any = None) -> bool:
    """Whether a person who can answer its questions watches the session. Takes no lock and does not wait.

    `connection`: see `probe`.
    """
    if not isinstance(database_path, Path):
        asked = connection or _kept_connection(database_path)
        return asked.execute(postgres.IS_WATCHED, (session_id,)).fetchone() is not None
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


def lease_folder(path: Path) -> Path:
    """The folder that holds the database's leases."""
    return lock_path(path, "any").parent
