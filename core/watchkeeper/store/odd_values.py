"""Values that no Watchkeeper writes: a file can be whole as a database, and damaged (or changed by hand) in
its rows."""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.store.driver import Connection

_TYPES = {"TEXT": "'text'", "INTEGER": "'integer'", "REAL": "'real', 'integer'"}

_OBJECT, _ARRAY = "'object'", "'array'"
_JSON = {
    ("sessions", "settings"): _OBJECT, ("sessions", "tags"): _ARRAY, ("plans", "task_queue"): _ARRAY,
    ("plan_revisions", "task_queue"): _ARRAY, ("tasks", "inputs_ref"): _ARRAY, ("tasks", "expected_outputs"): _ARRAY,
    ("tasks", "artifact_refs"): _ARRAY, ("agents", "composition"): _OBJECT, ("messages", "content"): "'array', 'text'",
    ("observations", "citations"): _ARRAY, ("observations", "replaces"): _ARRAY, ("views", "observations"): _ARRAY,
    ("views", "elided"): _ARRAY, ("compactions", "prepared"): _OBJECT, ("facts", "sources"): _ARRAY,
    ("inbox", "payload"): _OBJECT, ("events", "data"): _OBJECT, ("commands", "payload"): _OBJECT,
}  # fmt: skip
"""(table, column) → the kinds of JSON that stand there."""


def first_odd_value(connection: Connection) -> str | None:
    """Where the first such value stands, `events.data in row 12`; None where every value can be read. Reads
    every row."""
    for table, column, rule in _rules(connection):
        # Both names come from the schema itself, in quotation marks.
        row = connection.execute(f"SELECT rowid FROM {_quoted(table)} WHERE {rule} LIMIT 1").fetchone()  # noqa: S608
        if row is not None:
            return f"{table}.{column} in row {row[0]}"
    return None


def _rules(connection: Connection) -> Iterator[tuple[str, str, str]]:
    tables = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND wr = 0 AND name NOT"
        " LIKE 'sqlite_%'"
        " AND name NOT LIKE '%fts%'"
    ).fetchall()
    for (table,) in tables:
        for column, declared in connection.execute(
            "SELECT name, type FROM pragma_table_info(?)", (table,)
        ).fetchall():
            name = _quoted(column)
            if declared in _TYPES:
                yield table, column, f"typeof({name}) NOT IN ({_TYPES[declared]}, 'null')"
            if kinds := _JSON.get((table, column)):
                valid = f"CASE WHEN json_valid({name}) THEN json_type({name}) IN ({kinds}) ELSE 0 END"
                yield table, column, f"{name} IS NOT NULL AND NOT ({valid})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
