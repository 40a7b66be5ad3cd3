"""OpenCode's database as a file: opened for reading, and told from others by its tables."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.transcripts.opencode import second

BUSY_SECONDS = 5.0
TABLES = ("session", "session_v2", "message", "part", "todo", "session_message")
_FORMAT_AT, _WAL = 18, b"\x02\x02"
"""Where a database's head tells that it has a write-ahead log."""
_NEEDED = {"session": {"id"}, "message": {"id", "session_id", "data"}, "part": {"id", "message_id", "data"}}


def connect(path: Path) -> Connection:
    """The database, for reading only.

    Raises:
        OSError: it cannot be opened or is none.
    """
    name = quote(str(path))
    # Where nobody has it open and the folder cannot be written to, only `immutable` reads a database in WAL
    # mode.
    for options in ("mode=ro", "mode=ro&immutable=1"):
        try:
            connection = sqlite3.connect(
                f"file:{name}?{options}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
            )
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            failure = error
            continue
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        return connection
    raise OSError(f"no database that can be read: {failure}")


def columns_of(connection: Connection) -> dict[str, set[str]]:
    """The columns of those tables that are there."""
    return {table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} for table in TABLES}


def is_database(path: Path) -> bool:
    """Whether it is OpenCode's."""
    try:
        with closing(connect(path)) as connection:
            columns = columns_of(connection)
    except (OSError, sqlite3.Error):
        return False
    return _has_sessions(columns)


def lacks_log(path: Path, head: bytes) -> bool:
    """Whether it may be OpenCode's, by its name alone: what makes it so stands in a write-ahead log that is
    not here."""
    return (
        path.name.startswith("opencode")
        and head[_FORMAT_AT : _FORMAT_AT + 2] == _WAL
        and not is_database(path)
    )


def check_sessions(columns: dict[str, set[str]], path: Path) -> None:
    """Raises:
    OSError: no table of sessions is there.
    """
    if not _has_sessions(columns):
        raise OSError(
            "it holds no sessions: they may stand in its log, which is to be copied with it"
            f" ({path.name}-wal)"
        )


def _has_sessions(columns: dict[str, set[str]]) -> bool:
    return any(
        all(needed <= columns[table] for table, needed in wanted.items())
        for wanted in (_NEEDED, *second.NEEDED)
    )
