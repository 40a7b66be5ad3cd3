"""A file of every earlier schema opens as today's, with nothing lost and every id as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import database
from watchkeeper.store.database import APPLICATION_ID
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.history import RowsAt
from watchkeeper.store.lease import Lease
from watchkeeper.store.migrations import FIRST, SCHEMA_VERSION, migrations, statements
from watchkeeper.store.schema import BY_NAME


def first_version(path: Path) -> None:
    """A file as the first schema left it, with its migration's row and a hole among the rowids."""
    connection = sqlite3.connect(str(path), isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    for statement in statements(FIRST):
        connection.execute(statement)
    connection.execute("CREATE VIRTUAL TABLE facts_fts USING fts5(text, content='facts')")
    connection.execute("CREATE TABLE _sqlite_migrations (migration_set TEXT, name TEXT, applied_at TEXT)")
    connection.execute("INSERT INTO _sqlite_migrations VALUES ('watchkeeper', 'first', '2026-11-01')")
    for rowid, agent, seq in ((1, "a", 1), (2, "b", 1), (5, "a", 2)):
        connection.execute(
            "INSERT INTO messages (rowid, agent_id, seq, role, content, tokens, total_tokens, created_at)"
            " VALUES (?, ?, ?, 'user', ?, 1, ?, 0)",
            (rowid, agent, seq, f'"{agent}{seq}"', seq),
        )
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute("PRAGMA user_version=1")
    connection.close()


@pytest.mark.parametrize("opener", [database.open_writable, database.open_readonly])
def test_a_file_of_the_first_schema_keeps_its_messages_and_their_order(tmp_path: Path, opener: Any) -> None:
    first_version(tmp_path / "old.db")
    connection = opener(tmp_path / "old.db")
    rows = connection.execute(
        "SELECT id, agent_id, seq, content, total_tokens FROM messages ORDER BY rowid"
    ).fetchall()
    assert rows == [(1, "a", 1, '"a1"', 1), (2, "b", 1, '"b1"', 1), (5, "a", 2, '"a2"', 2)]
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


def test_messages_stay_immutable_after_a_migration(tmp_path: Path) -> None:
    first_version(tmp_path / "old.db")
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
    """The first schema here is made as the first version made it: by its migration."""
    from sqlite_utils import Database

    connection = sqlite3.connect(str(tmp_path / "old.db"), isolation_level=None)
    migrations().apply(Database(connection), stop_before="second")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute("PRAGMA user_version=1")
    connection.close()
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
            assert has_rule is not table.append_only, f"history cannot say how {table.name} was"


def test_a_migration_first_copies_the_file_beside_itself(tmp_path: Path) -> None:
    first_version(tmp_path / "old.db")
    database.open_writable(tmp_path / "old.db").close()
    copy = tmp_path / "old.db.schema-1.backup"
    assert copy.stat().st_mode & 0o777 == 0o600
    kept = sqlite3.connect(str(copy))
    assert kept.execute("PRAGMA user_version").fetchone() == (1,)
    assert kept.execute("SELECT count(*) FROM messages").fetchone() == (3,)
    kept.close()


def test_a_new_file_has_no_backup(tmp_path: Path) -> None:
    database.open_writable(tmp_path / "new.db").close()
    assert not list(tmp_path.glob("*.backup"))


@pytest.mark.parametrize("opener", [database.open_writable, database.open_readonly])
def test_a_file_whose_session_a_host_drives_is_not_migrated(tmp_path: Path, opener: Any) -> None:
    path = tmp_path / "old.db"
    first_version(path)
    before = path.read_bytes()
    lease = Lease.acquire(path, "busy")
    try:
        with pytest.raises(StoreUnusable, match="session busy runs on it"):
            opener(path)
        assert path.read_bytes() == before
        assert not list(tmp_path.glob("*.backup"))
    finally:
        lease.release()
    opener(path).close()


SESSION = {"user_id": "ada", "goal": "g", "workspace": "/", "model": "m", "status": "done", "created_at": 0,
           "last_active": 0}  # fmt: skip
AGENT = {
    "session_id": "s", "name": "n", "role": "r", "model": "m", "status": "done", "created_at": 0,
    "last_active": 0,
}  # fmt: skip
CALL = {
    "turn": 1, "position": 0, "seq": 1, "tool_use_id": "u", "name": "bash", "idempotent": 0,
    "session_id": "s",
}  # fmt: skip


def put(connection: Connection, table: str, **values: Any) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", [*values.values()])


def migrated(path: Path, write: Callable[[Connection], None]) -> Connection:
    """A file of the first schema with these rows, as it is opened today."""
    first_version(path)
    old = sqlite3.connect(str(path), isolation_level=None)
    write(old)
    old.close()
    return database.open_writable(path)


def test_sessions_and_agents_are_numbered_in_the_order_of_their_rows_and_go_on_from_there(tmp_path):
    def write(old: Connection) -> None:
        for name, at in (("b", 2.0), ("a", 2.0), ("c", 1.0)):
            put(old, "sessions", **SESSION | {"id": name, "created_at": at, "last_active": at})
            put(old, "agents", **AGENT | {"id": name})
            put(old, "task_dependencies", task_id="t", depends_on=name)

    connection = migrated(tmp_path / "old.db", write)
    put(connection, "sessions", **SESSION | {"id": "0"})
    put(connection, "agents", **AGENT | {"id": "0"})
    put(connection, "agents", **AGENT | {"id": "other", "session_id": "z"})
    put(connection, "task_dependencies", task_id="t", depends_on="0")
    for sql in (
        "SELECT id, ordinal FROM sessions ORDER BY ordinal",
        "SELECT id, ordinal FROM agents WHERE session_id = 's' ORDER BY ordinal",
        "SELECT depends_on, position FROM task_dependencies ORDER BY position",
    ):
        assert connection.execute(sql).fetchall() == [("b", 1), ("a", 2), ("c", 3), ("0", 4)]
    assert connection.execute("SELECT ordinal FROM agents WHERE id = 'other'").fetchone() == (1,)
    connection.close()


def test_calls_that_an_ended_agent_left_pending_are_cancelled(tmp_path: Path) -> None:
    def write(old: Connection) -> None:
        for number, status in enumerate(("cancelled", "failed", "paused")):
            put(old, "agents", **AGENT | {"id": status, "status": status})
            put(old, "tool_calls", **CALL | {"id": number, "agent_id": status, "status": "pending"})

    connection = migrated(tmp_path / "old.db", write)
    assert connection.execute("SELECT agent_id, status FROM tool_calls ORDER BY id").fetchall() == [
        ("cancelled", "cancelled"), ("failed", "cancelled"), ("paused", "pending"),
    ]  # fmt: skip
    connection.close()


def test_a_migration_numbers_the_rows_of_earlier_runs_and_marks_their_sessions(tmp_path: Path) -> None:
    def write(old: Connection) -> None:
        put(old, "sessions", **SESSION | {"id": "s"})
        put(old, "agents", **AGENT | {"id": "a", "created_at": 1.0})
        for seq, at, kind, data in (
            (1, 1.0, "session.running", "{}"), (2, 1.0, "agent.created", "{}"), (3, 2.0, "model.replied", "{"),
            (4, 3.0, "model.replied", '{"turn": 1}'),
        ):  # fmt: skip
            put(old, "events", session_id="s", seq=seq, at=at, kind=kind, agent_id="a", data=data)
        put(old, "steps", agent_id="a", turn=1, reply_seq=2, started_at="odd")

    connection = migrated(tmp_path / "old.db", write)
    numbers = {
        table: [row[0] for row in connection.execute(f"SELECT commit_seq FROM {table} ORDER BY rowid")]
        for table in ("events", "agents", "steps", "messages")
    }
    assert numbers == {"events": [1, 1, 3, 4], "agents": [1], "steps": [4], "messages": [1, None, 4]}
    assert connection.execute("SELECT history_inferred FROM sessions").fetchone() == (1,)
    connection.close()
