"""Opening the database: which file, which pragmas, which schema; and one clear line when it cannot be
used."""

from __future__ import annotations

import os
import random
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.host_faults import Shortage, StoreExhausted, host_fault, message_of
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.folders import make_private
from watchkeeper.store.open_files import refuse_second_name
from watchkeeper.store.schema import APPLICATION_ID, SCHEMA_VERSION

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ncpfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
    }
)
LOCK_TIMEOUT_SECONDS = 30.0
PAGE_BYTES = 8_192
"""Of a new file; one that is there keeps what it has. Most of it is messages of some kilobytes: measured
against SQLite's own 4,096, the file of three thousand steps is a tenth smaller and an import takes 5 to 8 %
less time; a step by itself takes 0.1 ms more."""
ASK_SECONDS, URGENT_ASK_SECONDS = (0.0003, 0.002), (0.0001, 0.0003)
"""How long whoever waits for the write lock sleeps before it asks again. Whoever asks more often gets it
sooner: that is what a person's command waits for, and a host that holds one."""
FULL_DISK_BYTES = 1 << 20
"""With less free space than this, an I/O error is taken for a full disk: SQLite says no more where it cannot
make shared memory."""
VIEWER_LOCK_SECONDS = 1.0
"""How long whatever keeps a screen up to date waits for a lock: then it says so, and tries again."""


def default_path() -> Path:
    """`WATCHKEEPER_DB`, else `watchkeeper.db` in the user's data folder."""
    chosen = os.environ.get("WATCHKEEPER_DB")
    if chosen:
        return Path(chosen).expanduser()
    return user_data_place()


def user_data_place() -> Path:
    """`watchkeeper.db` in the user's data folder."""
    from platformdirs import user_data_path

    return user_data_path("watchkeeper", appauthor=False) / "watchkeeper.db"


def open_writable(path: Path, *, check_same_thread: bool = True) -> Connection:
    """A connection that may write: WAL, `synchronous=FULL`, migrated to this program's schema, file mode
    0600.

    Raises:
        StoreUnusable: not a database, newer than this program, read-only, locked for 30 s, or on a network
            file system.
    """
    with _clear_errors(path):
        _prepare_file(path)
        connection = sqlite3.connect(
            str(path), isolation_level=None, timeout=0.0, check_same_thread=check_same_thread
        )
        try:
            version, _ = _versions(connection, path)
            _retrying(lambda: _configure(connection, path))
            if version < SCHEMA_VERSION:
                migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def open_readonly(
    path: Path, *, check_same_thread: bool = True, lock_timeout_seconds: float | None = None
) -> Connection:
    """A viewer's connection: it can never write, and never checkpoints. An older file is migrated first.

    `lock_timeout_seconds`: how long this, and then each reading, waits for another program that holds the
    file.

    Raises:
        StoreUnusable: no such file, not a database of Watchkeeper, newer than this program, locked, or
            damaged.
    """
    if not is_there(path):
        raise StoreUnusable(
            f"no database at {path}; start a run with `wk run GOAL` or `wk demo`, or choose one with --db"
        )
    with _clear_errors(path):
        wait = 5.0 if lock_timeout_seconds is None else lock_timeout_seconds
        connection = sqlite3.connect(
            read_only_uri(path),
            uri=True,
            isolation_level=None,
            timeout=wait,
            check_same_thread=check_same_thread,
        )
        try:
            connection.execute("PRAGMA query_only=ON")
            version, _ = _versions(connection, path, lock_timeout_seconds)
            if version == 0:
                raise StoreUnusable(f"{path} is no database of Watchkeeper; choose another with --db")
            if version < SCHEMA_VERSION:
                connection.close()
                open_writable(path).close()
                return open_readonly(
                    path, check_same_thread=check_same_thread, lock_timeout_seconds=lock_timeout_seconds
                )
        except BaseException:
            connection.close()
            raise
        return connection


def is_there(path: Path) -> bool:
    """Whether there is a file of that name.

    Raises:
        StoreUnusable: that cannot be told, what has the name is no file (SQLite would wait for ever at a
            named pipe), or the file has a second name.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unusable(path, error) from error
    if not stat.S_ISREG(mode):
        raise StoreUnusable(f"{path} is no file that can hold a database; choose another with --db")
    refuse_second_name(path)
    return True


def read_only_uri(path: Path) -> str:
    """The URI under which SQLite opens a file only to read it, whatever its name holds."""
    return f"file:{quote(str(path.absolute()))}?mode=ro"


def wal_bytes(path: Path) -> int:
    """How large the write-ahead log beside the file is; 0 where there is none. Opens nothing."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def _configure(connection: Connection, path: Path) -> None:
    connection.execute(f"PRAGMA page_size={PAGE_BYTES:d}")
    if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        raise StoreUnusable(
            f"{path}: this file system has no shared memory for SQLite's WAL; choose another with --db"
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=500")
    connection.execute("PRAGMA journal_size_limit=16777216")
    connection.execute("PRAGMA temp_store=MEMORY")


def migrate(connection: Connection, path: Path) -> None:
    """Bring the schema up to date inside one `BEGIN IMMEDIATE`: several processes may do so at once.

    A file that holds an earlier schema is copied beside itself first, to `NAME.schema-N.backup`.

    Raises:
        StoreUnusable: a host of the earlier version drives a session, or the backup cannot be written.
    """
    from sqlite_utils import Database

    from watchkeeper.store.schema import migrations

    with writing(connection, "migration"):
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version >= SCHEMA_VERSION:
            return  # another process, perhaps a newer one, was first
        if version > 0:
            _refuse_while_hosted(path, version)
            _back_up_schema(path, version)
        migrations().apply(Database(connection))
        connection.execute(f"PRAGMA application_id={APPLICATION_ID:d}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION:d}")


def _refuse_while_hosted(path: Path, version: int) -> None:
    """An older program that drives a session would write rows that lack what this schema requires."""
    from watchkeeper.store.lease import holders

    for session_id, pid in holders(path):
        raise StoreUnusable(
            f"{path} has schema {version} and session {session_id} runs on it (pid {pid}, an older"
            " Watchkeeper);"
            f" pause that session, then try again: this version changes the file to schema {SCHEMA_VERSION}"
        )


def _back_up_schema(path: Path, version: int) -> None:
    """The caller holds the write lock, so the copy is what the migration begins with."""
    from watchkeeper.store.library.backing_up import backup

    backup(path, path.with_name(f"{path.name}.schema-{version}.backup"), overwrite=True, migrating=True)


def _never() -> bool:
    return False


@contextmanager
def writing(
    connection: Connection,
    name: str,
    *,
    timeout_seconds: float | None = None,
    urgent: Callable[[], bool] = _never,
) -> Iterator[None]:
    """A transaction that holds the write lock from its start; committed at the end, or taken back where
    anything raises.

    Args:
        name: of its fault points, `name.before_commit` and `name.after_commit`.
        timeout_seconds, urgent: as of `begin_immediate`.

    Raises:
        sqlite3.OperationalError: still locked after `timeout_seconds`, the disk is full, …
    """
    begin_immediate(connection, timeout_seconds=timeout_seconds, urgent=urgent)
    try:
        yield
        reach(f"{name}.before_commit")
        connection.execute("COMMIT")
        reach(f"{name}.after_commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def begin_immediate(
    connection: Connection, *, timeout_seconds: float | None = None, urgent: Callable[[], bool] = _never
) -> None:
    """Take the write lock, asking often: SQLite's own back-off sleeps up to 100 ms and loses to a busy host.

    `urgent`: whether to ask more often than others do, so as to be the next; looked at each time.

    Raises:
        sqlite3.OperationalError: still locked after `timeout_seconds` (by default `LOCK_TIMEOUT_SECONDS`).
    """
    _retrying(lambda: connection.execute("BEGIN IMMEDIATE"), timeout_seconds, urgent)


def _retrying(attempt: Any, timeout_seconds: float | None = None, urgent: Callable[[], bool] = _never) -> Any:
    deadline = time.monotonic() + (LOCK_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds)
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*(URGENT_ASK_SECONDS if urgent() else ASK_SECONDS)))


def is_busy(error: BaseException) -> bool:
    """Whether SQLite failed because another connection holds a lock."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in (5, 6)
    return "locked" in str(error) or "busy" in str(error)


def _prepare_file(path: Path) -> None:
    make_private(path.parent)
    kind = file_system_of(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(
            f"{path} is on a network file system ({kind}), where SQLite's WAL cannot share memory; choose a"
            " local one with --db"
        )
    if not is_there(path):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise StoreUnusable(f"{path} cannot be written; check its permissions or choose another with --db")


def _versions(connection: Connection, path: Path, timeout_seconds: float | None = None) -> tuple[int, int]:
    version, application, has_tables = _retrying(lambda: _look(connection), timeout_seconds)
    if version > SCHEMA_VERSION and application == APPLICATION_ID:
        raise StoreUnusable(
            f"{path} was written by a newer Watchkeeper (schema {version}, this program knows"
            f" {SCHEMA_VERSION}); upgrade it"
        )
    if application not in (0, APPLICATION_ID) or (application == 0 and has_tables):
        raise StoreUnusable(f"{path} is a database of another program; choose another file with --db")
    return version, application


def _look(connection: Connection) -> tuple[int, int, bool]:
    """Version, application and whether there are tables, as of one moment: another process may be
    migrating."""
    connection.execute("BEGIN")
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name NOT LIKE '\\_sqlite\\_%' ESCAPE '\\'"
        )
        return version, application, bool(tables.fetchone()[0])
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def file_system_of(folder: Path, mounts: str = "/proc/mounts") -> str | None:
    """The type of the file system that holds `folder` (Linux), or None where that cannot be told."""
    try:
        lines = Path(mounts).read_text(errors="replace").splitlines()
    except OSError:
        return None
    target = str(folder.resolve())
    best, kind = "", None
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's and the system's errors into one line that says what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise unusable(path, error) from error
    except OSError as error:
        raise _unusable(path, error) from error


def unusable(path: Path, error: Exception) -> StoreUnusable:
    """What to raise for an SQLite error on `path`: `StoreExhausted` where the machine ran out of
    something."""
    short_of = shortage(path, error)
    return StoreUnusable(explain(path, error)) if short_of is None else _exhausted(path, short_of)


def _exhausted(path: Path, short_of: Shortage) -> StoreExhausted:
    return StoreExhausted(f"{path}: {message_of(short_of)}", short_of)


def shortage(path: Path, error: Exception) -> Shortage | None:
    """What ran out. SQLite itself says so only of memory and, mostly, of the disk."""
    fault = host_fault(error)
    if fault is not None:
        return fault.shortage
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith("SQLITE_IOERR") and _free_bytes(path.parent) < FULL_DISK_BYTES:
        return Shortage.DISK
    may_be_opened = name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR_SHMOPEN")) and os.access(
        path, os.R_OK | os.W_OK
    )
    return Shortage.OPEN_FILES if may_be_opened and os.access(path.parent, os.W_OK | os.X_OK) else None


def _free_bytes(folder: Path) -> int:
    """What an ordinary user may still write where `folder` is."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return sys.maxsize
    return disk.f_bavail * disk.f_frsize


def _unusable(path: Path, error: OSError) -> StoreUnusable:
    fault = host_fault(error)
    if fault is not None:
        return _exhausted(path, fault.shortage)
    return StoreUnusable(f"{path}: {error.strerror or error}; choose another file with --db")


def explain(path: Path, error: Exception) -> str:
    """One line for a user about an SQLite error on `path`."""
    text = str(error)
    if is_busy(error):
        return f"{path} is locked by another program; try again, or see who holds it with `wk doctor`"
    if "not a database" in text or "malformed" in text or "corrupt" in text:
        return f"{path} is damaged or no SQLite database ({text}); restore a backup, or choose another file with --db"
    if short_of := shortage(path, error):
        return str(_exhausted(path, short_of))
    return f"{path}: {text}; run `wk doctor`, or choose another file with --db"
