"""A whole session as a document about it has it: what a page lists, and every row as the JSON form keeps it.

What a page lists is rows by column name, which hold what agents and logs said, as it is stored. Columns named `…_stored` have
several lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from watchkeeper.records.messages import Observation
from watchkeeper.store.driver import IN_LIST, Connection, Queries, decode, first, list_of
from watchkeeper.store.library import BEING_PURGED
from watchkeeper.store.messages import load_observations
from watchkeeper.store.projection import SPENDING, Spending
from watchkeeper.store.schema import SESSIONS, Table

Row = dict[str, Any]
"""Columns by name."""

LABELS = ("exact", "estimated", "unpriced")
"""How reliable the costs of calls are."""
_HAS_TOKENS = "input_tokens + output_tokens + cache_read_tokens + cache_write_tokens > 0"
_LABEL = "CASE WHEN price_status = 'exact' AND usage_exact = 0 THEN 'estimated' ELSE price_status END"


def _rows(connection: Connection, sql: str, *parameters: Any) -> Iterator[Row]:
    """Rows one at a time, whatever the row factory of the connection."""
    cursor = connection.execute(sql, parameters)
    names = [one[0] for one in cursor.description]
    return (dict(zip(names, tuple(row), strict=True)) for row in cursor)


def counted(connection: Connection, session_id: str) -> Row:
    """The `revision` of a session's plan, and how many `compactions` and facts (`fact_count`) it has."""
    return next(
        _rows(
            connection,
            "SELECT coalesce((SELECT revision FROM plans WHERE id = s.current_plan_id), 0) AS revision,"
            " (SELECT count(*) FROM compactions c WHERE c.session_id = s.id AND c.status IN ('applied', 'undone'))"
            " AS compactions, (SELECT count(*) FROM facts f WHERE f.session_id = s.id) AS fact_count"
            " FROM sessions s WHERE s.id = ?",
            session_id,
        )
    )


def facts(connection: Connection, session_id: str, most: int) -> Iterator[Row]:
    """The newest facts, the newest first."""
    return _rows(
        connection,
        "SELECT id, kind, text, sources AS pointers_stored, pinned, superseded_by FROM facts WHERE session_id = ?"
        " ORDER BY id DESC LIMIT ?",
        session_id, most,
    )  # fmt: skip


def outputs(connection: Connection, session_id: str) -> Iterator[Row]:
    """What was saved, the newest of each name, by name."""
    return _rows(
        connection,
        "SELECT o.name, o.kind, a.media_type, a.size, o.digest FROM outputs o JOIN artifacts a ON a.digest = o.digest"
        " WHERE o.id IN (SELECT max(id) FROM outputs WHERE session_id = ? GROUP BY name) ORDER BY o.name",
        session_id,
    )


def cost_labels(connection: Connection, session_id: str) -> dict[str, set[str]]:
    """How reliable the costs are, of `LABELS`, by agent."""
    labels: dict[str, set[str]] = {}
    for agent_id, label in connection.execute(
        f"SELECT DISTINCT agent_id, {_LABEL} FROM model_calls WHERE session_id = ? AND {_HAS_TOKENS}",
        (session_id,),
    ):
        labels.setdefault(agent_id, set()).add(label)
    return labels


def usage_by_model(connection: Connection, session_id: str) -> Iterator[tuple[str, Spending, set[str]]]:
    """What each model was used for, the most expensive first, and how reliable its costs are, of `LABELS`."""
    counts = "".join(
        f" sum(CASE WHEN {_HAS_TOKENS} AND {_LABEL} = '{label}' THEN 1 ELSE 0 END) AS {label},"
        for label in LABELS
    )
    for row in _rows(
        connection,
        "SELECT model, count(*) AS model_calls, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,"
        " sum(cache_read_tokens) AS cache_read_tokens, sum(cache_write_tokens) AS cache_write_tokens,"
        f" sum(cost_usd) AS cost_usd,{counts}"
        f" sum(CASE WHEN {_HAS_TOKENS} AND cost_usd IS NULL THEN 1 ELSE 0 END) AS unpriced_calls"
        " FROM model_calls WHERE session_id = ? GROUP BY model ORDER BY sum(cost_usd) DESC, sum(output_tokens) DESC",
        session_id,
    ):
        spent = Spending(**{name: row[name] for name in SPENDING if name in row})
        yield row["model"], spent, {label for label in LABELS if row[label]}


def compactions(connection: Connection, session_id: str) -> Iterator[Row]:
    """Every compaction, in the order of the times that are shown: `at`."""
    return _rows(
        connection,
        "SELECT *, coalesce(ended_at, requested_at) AS at FROM compactions WHERE session_id = ?"
        " ORDER BY coalesce(ended_at, requested_at), id",
        session_id,
    )


def shown_by(
    connection: Connection, agent_id: str, version: int | None
) -> tuple[list[int], int | None] | None:
    """The observations of a version of an agent's view, and the first message that it has verbatim."""
    sql = "SELECT observations, verbatim_from FROM views WHERE agent_id = ? AND version = ?"
    row = connection.execute(sql, (agent_id, version)).fetchone()
    return None if row is None else (decode(row[0]), row[1])


def made_by_compaction(connection: Connection, agent_id: str, compaction_id: int) -> list[Observation]:
    """The observations that a pass over an agent's context made."""
    sql = "SELECT id FROM observations WHERE agent_id = ? AND compaction_id = ?"
    made = [row[0] for row in connection.execute(sql, (agent_id, compaction_id))]
    return load_observations(Queries(connection), agent_id, made)


def messages(connection: Connection, agent_id: str) -> Iterator[Any]:
    """Every message of an agent, in order, one at a time: number, role, content as stored, tokens, wall time."""
    sql = "SELECT seq, role, content, tokens, created_at FROM messages WHERE agent_id = ? ORDER BY seq"
    return iter(connection.execute(sql, (agent_id,)))


def calls_not_done(connection: Connection, agent_id: str) -> list[tuple[str, str, float | None]]:
    """The calls of an agent that are not done: the model's id, the status, and when it began, if it did."""
    sql = "SELECT tool_use_id, status, started_at FROM tool_calls WHERE agent_id = ? AND status <> 'done'"
    return [tuple(row) for row in connection.execute(sql, (agent_id,))]


# --- Every row, as the JSON form has it: read as it is stored, and written back ------------------------------


def _where(table: Table) -> str:
    return f"FROM {table.name} WHERE {'id = ?' if table is SESSIONS else table.of_session}"


def rows(connection: Connection, table: Table, session_id: str) -> Iterator[Any]:
    """The rows of a session in a table, or the session's own, one at a time and in the order in which they were
    written: the table's `columns`."""
    order = "" if table is SESSIONS else f" ORDER BY {table.in_order}"
    sql = f"SELECT {', '.join(table.columns)} {_where(table)}{order}"
    return iter(connection.execute(sql, (session_id,)))


def count(connection: Connection, table: Table, session_id: str) -> int:
    """How many rows a table has of a session."""
    return first(Queries(connection), int, f"SELECT count(*) {_where(table)}", (session_id,)) or 0


def texts_with_references(connection: Connection, table: Table, session_id: str) -> Iterator[str]:
    """The texts of a session's rows in a table that refer to artifacts, each row's in one."""
    if table.with_ids:
        whole = " || ' ' || ".join(f"coalesce({name}, '')" for name in table.with_ids)
        sql = f"SELECT {whole} {_where(table)} AND {whole} LIKE '%artifact://sha256/%'"
        yield from (row[0] for row in connection.execute(sql, (session_id,)))


def declared(connection: Connection, table: Table) -> dict[str, tuple[str, bool]]:
    """The columns of a table: the type of each, and whether it must have a value."""
    sql = 'SELECT name, type, "notnull" FROM pragma_table_info(?)'
    return {
        str(row[0]): (str(row[1]), bool(row[2])) for row in connection.execute(sql, (table.name,)).fetchall()
    }


def insert(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Write a row: a value for each of the table's `columns`, in their order."""
    places = ", ".join("?" * len(table.columns))
    connection.execute(
        f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})", tuple(values.values())
    )


def owned_elsewhere(
    connection: Connection, table: str, ids: Iterable[str], session_id: str
) -> tuple[str, str] | None:
    """One of these rows that belongs to another session, and which; None if there is none."""
    row = connection.execute(
        f"SELECT id, session_id FROM {table} WHERE id {IN_LIST} AND session_id <> ? LIMIT 1",
        (list_of(sorted(ids)), session_id),
    ).fetchone()
    return (row[0], row[1]) if row is not None else None


def distance_to_free(connection: Connection, table: str, low: int, high: int) -> int:
    """By how much row numbers must be moved to be free; 0 if they are."""
    taken = connection.execute(
        f"SELECT 1 FROM {table} WHERE id BETWEEN ? AND ? LIMIT 1", (low, high)
    ).fetchone()
    newest = connection.execute(f"SELECT max(id) FROM {table}").fetchone()[0]
    return int(newest) - low + 1 if taken is not None else 0


def hide(connection: Connection, session_id: str) -> None:
    """Hide a session that is being written like a deleted one."""
    connection.execute("UPDATE sessions SET deleted_at = ? WHERE id = ?", (BEING_PURGED, session_id))


def show(connection: Connection, session_id: str) -> None:
    """The session is complete: everybody sees it."""
    connection.execute("UPDATE sessions SET deleted_at = NULL WHERE id = ?", (session_id,))
