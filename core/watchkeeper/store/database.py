"""Opening the database: its file, its pragmas, its schema, and a one-line error when it is unusable.

Also a copy of the whole database, consistent while hosts write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.records.errors import BadInput, StoreUnusable, reason_of
from watchkeeper.store import driver, postgres
from watchkeeper.store.driver import (
    Connection,
    clear_errors,
    make_private,
    noting_system_errors,
    read_only_uri,
    retry_while_busy,
    sqlite3,
    unusable_file,
    writing,
)
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.lease import lease_folder
from watchkeeper.store.migrations import OLDEST_SCHEMA, SCHEMA_VERSION, migrations, note_all_applied
from watchkeeper.store.place import DatabaseUrl, Place, absolute, place_of
from watchkeeper.store.schema import BY_NAME, creation

APPLICATION_ID = 0x57_4B_50_52
"""`PRAGMA application_id` of every Watchkeeper database ("WKPR")."""

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
PAGE_BYTES = 8_192
"""Page size of a new file; an existing one keeps its own. Most of a file is messages of some kilobytes.
Measured against SQLite's own 4,096: the file of three thousand steps is a tenth smaller, an import takes 5 to
8 % less time, and a step by itself takes 0.1 ms more."""
VIEWER_LOCK_SECONDS = 1.0
"""How long a reader that updates a screen waits for a lock; after that it says so, and tries again."""


def default_place() -> Place:
    """`WATCHKEEPER_DB`, else `watchkeeper.db` in the user's data folder.

    Raises:
        BadInput: the variable holds an address that is none of PostgreSQL.
    """
    chosen = os.environ.get("WATCHKEEPER_DB")
    return absolute(place_of(chosen)) if chosen else user_data_place()


def user_data_place() -> Path:
    """`watchkeeper.db` in the user's data folder."""
    from platformdirs import user_data_path

    return user_data_path("watchkeeper", appauthor=False) / "watchkeeper.db"


def open_writable(path: Place, *, check_same_thread: bool = True) -> Connection:
    """A connection that may write: WAL, `synchronous=FULL`, migrated to this program's schema, file mode
    0600.

    Raises:
        StoreUnusable: not a database, of a schema that this program does not read, read-only, locked for 30 s, or on
            a network file system.
    """
    with clear_errors(path):
        if not isinstance(path, Path):
            return _open_server(path)
        _prepare_file(path)
        connection = sqlite3.connect(
            str(path), isolation_level=None, timeout=0.0, check_same_thread=check_same_thread
        )
        try:
            with noting_system_errors(connection):
                version, _ = _versions(connection, path)
                retry_while_busy(lambda: _configure(connection, path))
            if version < SCHEMA_VERSION:
                migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def open_readonly(
    path: Place, *, check_same_thread: bool = True, lock_timeout_seconds: float | None = None
) -> Connection:
    """A viewer's connection: it can never write, and never checkpoints. An older file is migrated first.

    `lock_timeout_seconds`: how long this, and then each reading, waits for another program that holds the
    file.

    Raises:
        StoreUnusable: no such file, not a database of Watchkeeper, of a schema that this program does not read,
            locked, or damaged.
    """
    if not isinstance(path, Path):
        with clear_errors(path):
            return _open_server(path, read_only=True)
    if not is_there(path):
        raise StoreUnusable(
            f"no database at {path}; start a run with `wk run GOAL` or `wk demo`, or choose one with --db"
        )
    with clear_errors(path):
        wait = 5.0 if lock_timeout_seconds is None else lock_timeout_seconds
        connection = sqlite3.connect(
            read_only_uri(path),
            uri=True,
            isolation_level=None,
            timeout=wait,
            check_same_thread=check_same_thread,
        )
        try:
            with noting_system_errors(connection):
                connection.execute("PRAGMA query_only=ON")
                version, _ = _versions(connection, path, lock_timeout_seconds)
            if version == 0:
                raise StoreUnusable(f"{path} is not a Watchkeeper database; choose another with --db")
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


def _open_server(url: DatabaseUrl, *, read_only: bool = False) -> Connection:
    """A connection to PostgreSQL; one that may write makes the tables of an empty database."""
    connection = postgres.connect(url, read_only=read_only)
    try:
        if not read_only:
            postgres.prepare(connection, url, SCHEMA_VERSION)
        else:
            postgres.check_version(connection, url, SCHEMA_VERSION)
    except BaseException:
        connection.close()
        raise
    return connection


def await_server(place: Place, on_wait: Callable[[str], None]) -> None:
    """Wait until the server of a database answers; a file has none. For processes that last: a machine may start them
    before the database. `on_wait` is called once with one line, if there is a wait.

    Raises:
        StoreUnusable: the server answers and refuses: the password, the role, the database.
    """
    if isinstance(place, Path):
        return
    with clear_errors(place):
        postgres.await_server(
            place, lambda reason: on_wait(f"waiting for {place}, which is not responding: {reason}")
        )


def is_there(path: Place) -> bool:
    """Whether there is a file of that name. A database on a server is taken to be there.

    Raises:
        StoreUnusable: the system does not say so, the name belongs to something other than a file (SQLite
            would wait for ever at a named pipe), or the file has a second name.
    """
    if not isinstance(path, Path):
        return True
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unusable_file(path, error) from error
    if not stat.S_ISREG(mode):
        raise StoreUnusable(f"{path} is not a regular file; choose another with --db")
    refuse_second_name(path)
    return True


def _configure(connection: Connection, path: Path) -> None:
    connection.execute(f"PRAGMA page_size={PAGE_BYTES:d}")
    if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        raise StoreUnusable(
            f"{path}: this file system does not support shared memory for SQLite's WAL; choose another with --db"
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=500")
    connection.execute("PRAGMA journal_size_limit=16777216")
    connection.execute("PRAGMA temp_store=MEMORY")


def migrate(connection: Connection, path: Path) -> None:
    """Make the tables, or migrate them, inside one `BEGIN IMMEDIATE`: several processes may do so at once.

    A file that holds an earlier schema is copied beside itself first, to `NAME.schema-N.backup`.

    Raises:
        StoreUnusable: a host of the earlier version drives a session, or the backup cannot be written.
    """
    with writing(connection, "migration"):
        version = schema_version(connection)
        if version >= SCHEMA_VERSION:
            return  # another process, perhaps a newer one, was first
        if version > 0:
            from sqlite_utils import Database

            _refuse_while_hosted(path, version)
            _back_up_schema(path, version)
            migrations().apply(Database(connection))
        else:
            for statement in creation():
                connection.execute(statement)
                reach("migration.statement")
            note_all_applied(connection)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID:d}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION:d}")


def _refuse_while_hosted(path: Path, version: int) -> None:
    """An older program that drives a session would write rows that lack what this schema requires."""
    from watchkeeper.store.lease import holders

    for session_id, pid in holders(path):
        raise StoreUnusable(
            f"{path} has schema {version}, and an older Watchkeeper is running session {session_id} on it (pid"
            f" {pid})."
            f" Pause that session, then try again: this version upgrades the file to schema {SCHEMA_VERSION}"
        )


def _back_up_schema(path: Path, version: int) -> None:
    """The caller holds the write lock, so the copy is what the migration begins with."""
    target = path.with_name(f"{path.name}.schema-{version}.backup")
    with closing(sqlite3.connect(read_only_uri(path), uri=True, isolation_level=None)) as source:
        copy_database(source, path, target, overwrite=True)


def _prepare_file(path: Path) -> None:
    make_private(path.parent)
    kind = file_system_of(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(
            f"{path} is on a network file system ({kind}), where SQLite's WAL cannot share memory; choose a file "
            "on a local disk with --db"
        )
    if not is_there(path):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise StoreUnusable(f"cannot write {path}; check its permissions or choose another with --db")


def _versions(connection: Connection, path: Path, timeout_seconds: float | None = None) -> tuple[int, int]:
    version, application, has_tables = retry_while_busy(lambda: _look(connection), timeout_seconds)
    if version > SCHEMA_VERSION and application == APPLICATION_ID:
        raise StoreUnusable(
            f"{path} was written by a newer Watchkeeper (schema {version}, this version supports"
            f" {SCHEMA_VERSION}); upgrade Watchkeeper"
        )
    if 0 < version < OLDEST_SCHEMA and application == APPLICATION_ID:
        raise StoreUnusable(
            f"{path} has schema {version}; this version reads {OLDEST_SCHEMA} and later; choose another file with"
            " --db, or export its sessions with the Watchkeeper that wrote it"
        )
    if application not in (0, APPLICATION_ID) or (application == 0 and has_tables):
        raise StoreUnusable(f"{path} is another program's database; choose another file with --db")
    return version, application


def _look(connection: Connection) -> tuple[int, int, bool]:
    """Version, application and whether there are tables, as of one moment: another process may be
    migrating."""
    connection.execute("BEGIN")
    try:
        version = schema_version(connection)
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name NOT LIKE '\\_sqlite\\_%' ESCAPE '\\'"
        )
        return version, application, bool(tables.fetchone()[0])
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def contents(connection: Connection) -> tuple[int, int]:
    """How many sessions a database has, and how many messages."""
    asked = ("SELECT count(*) FROM sessions", "SELECT count(*) FROM messages")
    sessions, messages = (int(connection.execute(sql).fetchone()[0]) for sql in asked)
    return sessions, messages


def schema_version(connection: Connection) -> int:
    """The version of the schema of a file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def file_system_of(folder: Path, mounts: str = "/proc/mounts") -> str | None:
    """The type of the file system that holds `folder` (Linux), or None if it is unknown."""
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


# --- Where a database may be: never in a session's workspace ------------------------------------------------
#
# An agent's file tools change any file of their workspace. A single `write` could overwrite a database there.

SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Endings of the database's name: none for the file itself, the others for SQLite's files beside it."""

_ESCAPED = re.compile(r"\\([0-7]{3})")


def database_files(path: Path) -> list[Path]:
    """The names under which SQLite keeps the database, links resolved. Some of the files may not exist."""
    resolved = path.resolve()
    return [resolved.with_name(resolved.name + suffix) for suffix in SUFFIXES]


def refuse_inside(path: Place, workspace: Path) -> None:
    """Refuse a session whose workspace contains its database.

    Raises:
        BadInput: one line with the command that moves the database.
    """
    if not isinstance(path, Path) or not lies_inside(path, workspace):
        return
    fault = f"the database {path} {{}} in the workspace {workspace}, where an agent's file tools could overwrite it; "
    place = _place_outside(path, workspace)
    if place is None:
        raise BadInput(fault.format("is") + "choose a smaller folder with --workspace")
    target = shlex.quote(str(place))
    if path.exists():
        raise BadInput(
            fault.format("is")
            + f"move it with `wk backup --move --db {shlex.quote(str(path))} {target}`, then use --db {target}"
        )
    raise BadInput(fault.format("would be") + f"use --db {target}")


def protected_files(path: Place) -> frozenset[tuple[int, int]]:
    """Device and inode of the database's files and of its leases: a process that has them locked must not
    open them again."""
    if not isinstance(path, Path):
        return frozenset()
    files = [*database_files(path), *lease_folder(path).glob("*")]
    return frozenset(found for found in map(_identity, files) if found is not None)


def lies_inside(path: Path, folder: Path) -> bool:
    """Whether the database is anywhere below `folder`: by its resolved path, or by another name of the same
    folder.

    A bind mount gives a folder a second path. So the folder, and what is mounted below it, are compared by
    device and inode with the database's files and all folders above them; and, on Linux, by their paths inside
    the file system, of which a mount may show only a part.
    """
    root, files = folder.resolve(), database_files(path)
    if files[0].is_relative_to(root):
        return True
    chain = {_identity(one) for one in (*files, *files[0].parents)} - {None}
    mounts = _mounts()
    below = [mount for mount in mounts.values() if mount.point != root and mount.point.is_relative_to(root)]
    if any(_identity(one) in chain for one in (root, *(mount.point for mount in below))):
        return True
    database = _origin(files[0], mounts)
    parts = [_origin(root, mounts), *((mount.device, mount.shows) for mount in below)]
    return database is not None and any(
        part is not None and part[0] == database[0] and database[1].is_relative_to(part[1]) for part in parts
    )


def _place_outside(path: Path, workspace: Path) -> Path | None:
    """A free name outside the workspace: in the user's data folder if that is outside, else beside the
    workspace."""
    default = user_data_place()
    stem, suffix = path.stem, path.suffix or ".db"
    for folder in (default.parent, workspace.resolve().parent):
        if lies_inside(folder / path.name, workspace) or not _can_write(folder):
            continue
        for name in (default.name, path.name, *(f"{stem}-{number}{suffix}" for number in range(2, 1_000))):
            if not os.path.lexists(folder / name):
                return folder / name
    return None


def _can_write(folder: Path) -> bool:
    """Whether this user may make files in a folder, or make the folder."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return os.access(there, os.W_OK | os.X_OK)


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted file system, or a part of one.

    Attributes:
        device: the number of the file system.
        shows: the path inside the file system that is mounted: `/`, or what a bind mount was made of.
        point: where it is mounted.
    """

    device: str
    shows: Path
    point: Path


def _mounts() -> dict[str, _Mount]:
    """What is mounted, by number (Linux; elsewhere empty)."""
    try:
        lines = (
            Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        )
    except OSError:
        return {}
    found = {}
    for line in lines:
        fields = [_ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), field) for field in line.split()]
        if len(fields) > 4:
            found[fields[0]] = _Mount(fields[2], Path(fields[3]), Path(fields[4]))
    return found


def _origin(path: Path, mounts: Mapping[str, _Mount]) -> tuple[str, Path] | None:
    """The file system of a resolved path, which may not exist yet, and the path inside it."""
    if not mounts:
        return None
    there = next(one for one in (path, *path.parents) if one.exists())
    try:
        descriptor = os.open(there, os.O_PATH | os.O_CLOEXEC)
        try:
            lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        finally:
            os.close(descriptor)
    except OSError:
        return None
    number = next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")
    mount = mounts.get(number)
    if mount is None or not path.is_relative_to(mount.point):
        return None
    return mount.device, mount.shows / path.relative_to(mount.point)


# --- Noticing a database that was removed or has two names --------------------------------------------------
#
# The check compares the files that SQLite has open under the database's names. SQLite continues with a file
# whose name was removed, while other processes make a new one: neither side sees the other's changes. A
# database with two names (hard links) has two write-ahead logs, one for each name; opened by both, it is
# corrupted.

Identity = tuple[int, int] | None
"""Device and number of a file; None if there is none."""


def identities(path: Place) -> dict[str, Identity]:
    """Which files the database, its log and the index of the log are now, by name; none for a server's."""
    if not isinstance(path, Path):
        return {}
    return {name: _identity(name) for name in (f"{path}", f"{path}-wal", f"{path}-shm")}


def taken_away(before: Mapping[str, Identity], now: Mapping[str, Identity]) -> list[str]:
    """The names whose file was removed or replaced; names that did not exist before do not count."""
    return [name for name, was in before.items() if was is not None and was != now[name]]


def refuse_second_name(path: Place) -> None:
    """Refuse a database one of whose files has another name (a hard link).

    Raises:
        StoreUnusable: one line with the command that finds the other name.
    """
    if not isinstance(path, Path):
        return
    resolved = os.path.realpath(path)
    for suffix in ("", "-wal", "-shm"):
        name = resolved + suffix
        try:
            found = os.stat(name)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise StoreUnusable(
                f"{name} has {found.st_nlink} hard links (inode {found.st_ino}). Opening a database through"
                " several links"
                f" corrupts it. Find them with `find {shlex.quote(_mount_point(name))} -xdev -samefile"
                f" {shlex.quote(name)}`,"
                " delete all but this one, then try again"
            )


def _mount_point(name: str) -> str:
    """The top of the file system that holds a file: all names of the file are below it."""
    folder = os.path.dirname(name)
    while not os.path.ismount(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _identity(name: Path | str) -> Identity:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# --- Values that no Watchkeeper writes ----------------------------------------------------------------------
#
# A file can be whole as a database and still have damaged rows, or rows that were changed by hand.

_TYPES = {"TEXT": "'text'", "INTEGER": "'integer'", "REAL": "'real', 'integer'"}


def first_odd_value(connection: Connection) -> str | None:
    """The place of the first such value, `events.data in row 12`; None if every value can be read. Reads
    every row."""
    for table in BY_NAME.values():
        for column, declared in table.types.items():
            rules = [f"typeof({column}) NOT IN ({_TYPES[declared]}, 'null')"] if declared in _TYPES else []
            kinds = (table.json | table.json_text).get(column)
            if kinds:
                listed = ", ".join(f"'{kind}'" for kind in kinds.split())
                rules.append(
                    f"{column} IS NOT NULL AND CASE WHEN json_valid({column}) THEN json_type({column})"
                    f" NOT IN ({listed}) ELSE 1 END"
                )
            for rule in rules:
                row = connection.execute(
                    f"SELECT {table.key or column} FROM {table.name} WHERE {rule} LIMIT 1"
                ).fetchone()
                if row is not None:
                    return f"{table.name}.{column} in row {row[0]}"
    return None


# --- A copy of the whole database -----------------------------------------------------------------------

PAGES_AT_ONCE = 2_000


def copy_database(
    source: Connection,
    path: Path,
    target: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Copy the database at `path`, open as `source`, to `target` by SQLite's backup API, as of one moment.

    Hosts may write meanwhile. The copy has mode 0600. It gets its name only once it is complete and its integrity
    was checked, and replaces another file only if `overwrite`. `progress` gets (pages copied, all pages).
    Returns how many sessions the copy holds.

    Raises:
        BadInput: `target` exists, is no place for a file, or is the database itself.
        StoreUnusable: the database cannot be read, the copy cannot be written, or it is damaged.
    """
    check_target(path, target, overwrite)
    try:
        with unfinished(target) as (part, descriptor):
            _copy_pages(source, part, progress)
            reach("backup.copied")
            sessions = _check_part(part)
            os.fsync(descriptor)
            if overwrite:
                os.replace(part, target)
            else:
                os.link(part, target)  # unlike a rename, it fails if a file with that name came meanwhile
                part.unlink()  # at once: a database with two names is not opened
            reach("backup.named")
        _sync_part(target.parent)
        return sessions
    except FileExistsError:
        raise BadInput(f"{target} already exists; choose another name, or use --overwrite") from None
    except sqlite3.DatabaseError as error:
        full = target if driver.shortage(target, error) is not None else path
        raise StoreUnusable(driver.explain(full, error)) from error
    except OSError as error:
        raise StoreUnusable(f"cannot write {target} ({reason_of(error)}); choose another location") from error


def check_target(path: Path, target: Path, overwrite: bool) -> None:
    if target.is_dir() or not target.name:
        raise BadInput(f"{target} is a folder; give a file name")
    if not target.parent.is_dir():
        raise BadInput(f"no folder {target.parent}; create it first")
    live = path.resolve()
    if target.resolve() in (live, live.with_name(live.name + "-wal"), live.with_name(live.name + "-shm")):
        raise BadInput(f"{target} is the database itself; give the backup another name")
    if target.exists() and not overwrite:
        raise BadInput(f"{target} already exists; choose another name, or use --overwrite")


def _copy_pages(source: Connection, part: Path, progress: Callable[[int, int], None] | None) -> None:
    copy = sqlite3.connect(str(part), isolation_level=None)
    try:
        # With a read transaction of its own the copy stays with one moment: without it, every commit of a
        # host would make SQLite begin again.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        with noting_system_errors(copy):
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


def _check_part(part: Path) -> int:
    """How many sessions the copy holds.

    Raises:
        StoreUnusable: it is damaged.
    """
    copy = sqlite3.connect(driver.read_only_uri(part), uri=True)
    try:
        found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreUnusable(
                f"nothing was backed up because the database is damaged ({found}); run `wk doctor`"
            )
        return int(copy.execute("SELECT count(*) FROM sessions WHERE deleted_at IS NULL").fetchone()[0])
    finally:
        copy.close()


def _sync_part(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Files in the making, and those of killed writers -------------------------------------------------------
#
# A file has a name of its own while it is written. Its writer holds a lock on it until it ends. So an
# unlocked file of this kind was left by a killed writer, and the next writer into the same folder deletes it.

_PART_SUFFIX = ".wk-part"
_PART_NAME = re.compile(rf"\..*\.[0-9a-f]{{12}}{re.escape(_PART_SUFFIX)}", re.DOTALL)
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
    part, descriptor = _begin_part(target)
    try:
        yield part, descriptor
    finally:
        _remove_part(part)
        os.close(descriptor)


def _begin_part(target: Path) -> tuple[Path, int]:
    while True:
        part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}{_PART_SUFFIX}")
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
        names = [name for name in os.listdir(folder) if _PART_NAME.fullmatch(name)]
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
            _remove_part(part)
    finally:
        os.close(descriptor)


def _remove_part(part: Path) -> None:
    for name in (part, *(part.with_name(part.name + companion) for companion in _COMPANIONS)):
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
