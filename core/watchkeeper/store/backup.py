"""A copy of the whole database, consistent while hosts write to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from watchkeeper.records.errors import BadInput, StoreUnusable
from watchkeeper.store import driver
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.faultpoints import reach

PAGES_AT_ONCE = 2_000


def copy_database(
    source: Connection,
    path: Path,
    target: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    count: bool = True,
) -> int:
    """Copy the database at `path`, open as `source`, to `target` by SQLite's backup API, as of one moment.

    Hosts may write meanwhile. The copy has mode 0600. It gets its name only once it is complete and its integrity
    was checked, and replaces another file only if `overwrite`. `progress` gets (pages copied, all pages).
    Returns how many sessions the copy holds, or 0 unless `count` (an earlier schema cannot say which were deleted).

    Raises:
        BadInput: `target` exists, is no place for a file, or is the database itself.
        StoreUnusable: the database cannot be read, the copy cannot be written, or it is damaged.
    """
    check_target(path, target, overwrite)
    try:
        with unfinished(target) as (part, descriptor):
            _copy(source, part, progress)
            reach("backup.copied")
            sessions = _checked(part, count=count)
            os.fsync(descriptor)
            if overwrite:
                os.replace(part, target)
            else:
                os.link(part, target)  # unlike a rename, it fails if a file with that name came meanwhile
                part.unlink()  # at once: a database with two names is not opened
            reach("backup.named")
        _sync(target.parent)
        return sessions
    except FileExistsError:
        raise BadInput(f"{target} exists already; choose another name, or --overwrite it") from None
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(driver.explain(path, error)) from error
    except OSError as error:
        raise StoreUnusable(
            f"{target} cannot be written ({error.strerror or error}); choose another place"
        ) from error


def check_target(path: Path, target: Path, overwrite: bool) -> None:
    if target.is_dir() or not target.name:
        raise BadInput(f"{target} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise BadInput(f"there is no folder {target.parent}; make it first")
    live = path.resolve()
    if target.resolve() in (live, live.with_name(live.name + "-wal"), live.with_name(live.name + "-shm")):
        raise BadInput(f"{target} is the database itself; a backup needs a name of its own")
    if target.exists() and not overwrite:
        raise BadInput(f"{target} exists already; choose another name, or --overwrite it")


def _copy(source: Connection, part: Path, progress: Callable[[int, int], None] | None) -> None:
    copy = sqlite3.connect(str(part), isolation_level=None)
    try:
        # With a read transaction of its own the copy stays with one moment: without it, every commit of a
        # host would make SQLite begin again.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        try:
            source.backup(
                copy,
                pages=PAGES_AT_ONCE,
                sleep=0.0,
                progress=(lambda _, left, pages: progress(pages - left, pages))
                if progress is not None
                else None,
            )
        finally:
            source.execute("ROLLBACK")
        copy.execute("PRAGMA journal_mode=WAL")
    finally:
        copy.close()


def _checked(part: Path, *, count: bool) -> int:
    """How many sessions the copy holds (0 unless `count`: an earlier schema cannot say which were deleted).

    Raises:
        StoreUnusable: it is damaged.
    """
    copy = sqlite3.connect(driver.read_only_uri(part), uri=True)
    try:
        found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreUnusable(
                f"the database is damaged ({found}), so nothing was backed up; run `wk doctor`"
            )
        return (
            int(copy.execute("SELECT count(*) FROM sessions WHERE deleted_at IS NULL").fetchone()[0])
            if count
            else 0
        )
    finally:
        copy.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Files in the making, and those of killed writers -------------------------------------------------------
#
# A file has a name of its own while it is written. Its writer holds a lock on it until it ends. So an
# unlocked file of this kind was left by a killed writer, and the next writer into the same folder deletes it.

_SUFFIX = ".wk-part"
_NAME = re.compile(rf"\..*\.[0-9a-f]{{12}}{re.escape(_SUFFIX)}", re.DOTALL)
_COMPANIONS = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database."""


@contextmanager
def unfinished(target: Path) -> Iterator[tuple[Path, int]]:
    """A new, empty file beside `target` (hidden, mode 0600): its path, and a descriptor that writes it.

    If the block has not renamed the file, it is deleted together with SQLite's files beside it. Before that,
    the files of killed writers in this folder are deleted.

    Raises:
        OSError: the folder cannot be written.
    """
    _sweep(target.parent)
    part, descriptor = _made(target)
    try:
        yield part, descriptor
    finally:
        _remove(part)
        os.close(descriptor)


def _made(target: Path) -> tuple[Path, int]:
    while True:
        part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}{_SUFFIX}")
        # Must not exist yet, and is ours alone: nothing that another process put there is written through.
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nothing there is ever swept
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another writer may have swept it between its making and its lock.
        if os.path.lexists(part):
            return part, descriptor
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except OSError:
        return  # a folder that may be written and not read
    for name in names:
        with contextlib.suppress(OSError):
            _remove_if_left(folder / name)


def _remove_if_left(part: Path) -> None:
    descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its writer still runs
            _remove(part)
    finally:
        os.close(descriptor)


def _remove(part: Path) -> None:
    for name in (part, *(part.with_name(part.name + companion) for companion in _COMPANIONS)):
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
