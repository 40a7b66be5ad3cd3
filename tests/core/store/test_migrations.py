"""A file of schema 10 opens as today's, with nothing lost; one of an earlier schema is refused and left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.history import RowsAt
from watchkeeper.store.lease import Lease
from watchkeeper.store.migrations import SCHEMA_VERSION, migrations
from watchkeeper.store.schema import BY_NAME

SCRIPT = Path(__file__).with_name("schema_10.sql")
"""A database of schema 10: a run that its budget paused, with a planner, an explorer and a task that waits."""


def earlier_version(path: Path, version: int = 10) -> None:
    """A file as an earlier program left it."""
    connection = sqlite3.connect(str(path), isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(SCRIPT.read_text())
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()


def rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row that is not of an index or of sqlite-utils, without the columns of schema 11 and the table of schema 13."""
    connection = sqlite3.connect(str(path))
    connection.row_factory = sqlite3.Row
    names = [name for name in BY_NAME if name != "quota_readings"]
    found = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in names}
    connection.close()
    for row in (row for table in found.values() for row in table):
        for column in ("premises", "tools", "rerun_reason"):
            assert row.pop(column, None) is None
    return found


@pytest.mark.parametrize("opener", [database.open_writable, database.open_readonly])
def test_a_file_of_schema_10_keeps_every_row(tmp_path: Path, opener: Any) -> None:
    earlier_version(tmp_path / "old.db")
    before = rows(tmp_path / "old.db")
    assert len(before["messages"]) == 11
    connection = opener(tmp_path / "old.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()
    assert rows(tmp_path / "old.db") == before


@pytest.mark.parametrize("opener", [database.open_writable, database.open_readonly])
def test_a_file_of_an_earlier_schema_is_refused_and_left_as_it_is(tmp_path: Path, opener: Any) -> None:
    path = tmp_path / "old.db"
    earlier_version(path, 9)
    before = path.read_bytes()
    with pytest.raises(
        StoreUnusable, match=r"schema 9; this version reads 10 and later; choose another file with --db"
    ):
        opener(path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.backup"))


def test_messages_stay_immutable_after_a_migration(tmp_path: Path) -> None:
    earlier_version(tmp_path / "old.db")
    connection = database.open_writable(tmp_path / "old.db")
    with pytest.raises(sqlite3.IntegrityError, match="immutable"):
        connection.execute("UPDATE messages SET content = ''")
    connection.close()


def shape(path: Path) -> dict[str, Any]:
    """Columns of the tables, and the text of indexes and triggers, of a file that is opened first."""
    connection = database.open_writable(path)
    found: dict[str, Any] = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        if kind == "table":
            found[name] = connection.execute(f"PRAGMA table_info('{name}')").fetchall()
        elif sql is not None:
            found[name] = " ".join(sql.split())
    connection.close()
    return found


def test_a_migrated_file_has_the_schema_of_a_new_one(tmp_path: Path) -> None:
    from sqlite_utils import Database

    earlier_version(tmp_path / "old.db")
    old, new = shape(tmp_path / "old.db"), shape(tmp_path / "new.db")
    assert old.keys() == new.keys()
    assert {name: (old[name], new[name]) for name in new if old[name] != new[name]} == {}
    connection = database.open_writable(tmp_path / "new.db")
    assert migrations().pending(Database(connection)) == []
    connection.close()


def test_the_catalogue_says_of_every_table_what_happens_to_its_rows(tmp_path: Path) -> None:
    connection = database.open_writable(tmp_path / "new.db")
    tables = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE '%sqlite_%'"
    )
    assert {row[0] for row in tables} == BY_NAME.keys()
    connection.close()
    without_session = {"transcript_records", "transcript_calls", "messages_fts_sessions"}  # see `store.prune`
    for table in BY_NAME.values():
        names = table.types.keys()
        assert sorted((*table.columns, *table.local)) == sorted(names), table.name
        if {"session_id", "agent_id", "task_id", "plan_id"} & names and table.name not in without_session:
            assert f"{table.owner}_id" in names, f"{table.name} does not say to which session a row belongs"
            assert table.key in names
        if table.owner and table.forked and table.name != "task_dependencies":
            has_rule = hasattr(RowsAt, f"_keep_{table.name}")
            assert has_rule or table.since != "replayed", f"history cannot say how {table.name} was"


def test_a_migration_first_copies_the_file_beside_itself(tmp_path: Path) -> None:
    earlier_version(tmp_path / "old.db")
    database.open_writable(tmp_path / "old.db").close()
    copy = tmp_path / "old.db.schema-10.backup"
    assert copy.stat().st_mode & 0o777 == 0o600
    kept = sqlite3.connect(str(copy))
    assert kept.execute("PRAGMA user_version").fetchone() == (10,)
    assert kept.execute("SELECT count(*) FROM messages").fetchone() == (11,)
    kept.close()


def test_a_new_file_has_no_backup(tmp_path: Path) -> None:
    database.open_writable(tmp_path / "new.db").close()
    assert not list(tmp_path.glob("*.backup"))


@pytest.mark.parametrize("opener", [database.open_writable, database.open_readonly])
def test_a_file_whose_session_a_host_drives_is_not_migrated(tmp_path: Path, opener: Any) -> None:
    path = tmp_path / "old.db"
    earlier_version(path)
    before = path.read_bytes()
    lease = Lease.acquire(path, "busy")
    try:
        with pytest.raises(StoreUnusable, match="is running session busy on it"):
            opener(path)
        assert path.read_bytes() == before
        assert not list(tmp_path.glob("*.backup"))
    finally:
        lease.release()
    opener(path).close()
