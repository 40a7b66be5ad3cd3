"""The one SQLite of this process.

SQLite before 3.51.3 can corrupt a WAL database that two processes write. `pysqlite3` carries a newer one
where it has a wheel, and sqlite-utils picks it up by itself; two SQLite libraries in one process would also
drop each other's POSIX locks, so everybody imports `sqlite3` from here.
"""

from __future__ import annotations

import sqlite3 as _types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        from pysqlite3 import dbapi2 as sqlite3
    except ImportError:
        import sqlite3

Connection = _types.Connection
Row = tuple[object, ...]

SAFE_SQLITE = (3, 51, 3)
"""The first version without the WAL-reset bug (sqlite.org, release history)."""

__all__ = ["SAFE_SQLITE", "Connection", "Row", "sqlite3"]
