"""The rows that an import writes, gathered table by table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from watchkeeper.store.transcripts import AGENT, SESSION


def _upsert(table: str, columns: Sequence[str]) -> str:
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns if column != "id")
    marks = ", ".join("?" * len(columns))
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {sets}"  # noqa: S608
    )


_SAVE_SESSION = _upsert("sessions", SESSION)
_SAVE_AGENT = _upsert("agents", AGENT)


# Measured: the driver looks for an adapter of whatever is not exactly a str, int, float or bytearray (None,
# bytes, an enum), and takes longer for it than for all else of the row. What every line has is given as one
# of those.
_INSERTS = {
    "messages": "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at)"
    " VALUES (?, ?, ?, CAST(? AS TEXT), ?, ?, ?)",  # UTF-8, as it was written
    "tool_calls": "INSERT INTO tool_calls (id, session_id, agent_id, turn, position, seq, tool_use_id, name, idempotent, status,"
    " result_seq, is_error, started_at, ended_at, runs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, 1)",
    "tool_results": "UPDATE tool_calls SET status = ?, result_seq = ?, is_error = ?, ended_at = ? WHERE id = ?",
    "model_calls": "INSERT INTO model_calls (id, session_id, agent_id, turn, purpose, model, status, stop_reason, input_tokens,"
    " output_tokens, cache_read_tokens, cache_write_tokens, usage_exact, cost_usd, price_status, started_at,"
    " latency_seconds,"
    " request_id) VALUES (?, ?, ?, ?, 'turn', ?, 'done', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "call_keys": "INSERT OR IGNORE INTO transcript_calls (digest, model_call_id) VALUES (?, ?)",
    "call_figures": "UPDATE model_calls SET stop_reason = coalesce(?, stop_reason), input_tokens = ?, output_tokens = ?,"
    " cache_read_tokens = ?, cache_write_tokens = ?, usage_exact = max(usage_exact, ?), cost_usd = ?,"
    " price_status = ?,"
    " latency_seconds = max(latency_seconds, ? - started_at) WHERE id = ?",
    "compactions": "INSERT INTO compactions (id, session_id, agent_id, trigger, status, instructions, reason, high_water,"
    " messages_removed, tokens_before, tokens_after, view_before, view_after, model, seconds, requested_at,"
    " ended_at)"
    " VALUES (?, ?, ?, ?, 'applied', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "tokens_after": "UPDATE compactions SET tokens_after = ? WHERE id = ?",
    "observations": "INSERT INTO observations (agent_id, id, kind, level, text, tokens, first_seq, last_seq, citations, replaces,"
    " compaction_id, created_at) VALUES (?, ?, 'summary', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "summaries": "UPDATE observations SET text = ?, tokens = ? WHERE agent_id = ? AND id = ?",
    "views": "INSERT INTO views (agent_id, version, parent, observations, verbatim_from, elided, reason, tokens, compaction_id,"
    " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "plans": "INSERT INTO plans (id, session_id, goal, revision, step_cursor, task_queue, created_at, updated_at) VALUES"
    " (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, step_cursor ="
    " excluded.step_cursor,"
    " task_queue = excluded.task_queue, updated_at = excluded.updated_at",
    "revisions": "INSERT OR REPLACE INTO plan_revisions (plan_id, revision, at, reason, goal, task_queue, step_cursor,"
    " plan_graph_snapshot) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "tasks": "INSERT INTO tasks (id, session_id, parent_plan_id, name, position, title, instructions, role, status, status_reason,"
    " created_at, started_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?) ON CONFLICT (id) DO"
    " UPDATE SET"
    " position = excluded.position, title = excluded.title, instructions = excluded.instructions, status ="
    " excluded.status,"
    " status_reason = excluded.status_reason,"
    " started_at = excluded.started_at, ended_at = excluded.ended_at",
    "needs": "INSERT OR IGNORE INTO task_dependencies (task_id, depends_on) VALUES (?, ?)",
    "records": "INSERT INTO transcript_records (digest, agent_id, seq, figures) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
    "record_revisions": "INSERT INTO transcript_revisions (session_id, source, record_id, revision, agent_id, seq, digest, content,"
    " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "events": "INSERT INTO events (session_id, seq, at, kind, agent_id, task_id, data) VALUES (?, ?, ?, ?, ?, nullif(?, ''), ?)",
    "raw": "INSERT INTO raw_records (session_id, path, line, kind, reason, data) VALUES (?, ?, ?, ?, ?, ?)",
}


class Rows(dict[str, list[Sequence[Any]]]):
    """What one transaction will write, gathered table by table: one statement run many times costs half of
    many."""

    def __init__(self) -> None:
        super().__init__((name, []) for name in _INSERTS)

    def flush(self, cursor: Any, sessions: Iterable[Sequence[Any]], agents: Iterable[Sequence[Any]]) -> None:
        """Write all of it, sessions and agents first."""
        cursor.executemany(_SAVE_SESSION, sessions)
        cursor.executemany(_SAVE_AGENT, agents)
        for name, statement in _INSERTS.items():
            rows = self[name]
            if rows:
                _write(cursor, statement, rows)
                self[name] = []


_ROWS_AT_ONCE = 64
"""Measured: rows of one statement cost two thirds of as many statements; more of them are no cheaper."""


def _write(cursor: Any, statement: str, rows: list[Sequence[Any]]) -> None:
    left = 0
    if len(rows) >= _ROWS_AT_ONCE and (many := _many(statement)) is not None:
        left = len(rows) - len(rows) % _ROWS_AT_ONCE
        for first in range(0, left, _ROWS_AT_ONCE):
            cursor.execute(many, [*chain.from_iterable(rows[first : first + _ROWS_AT_ONCE])])
    cursor.executemany(statement, rows[left:] if left else rows)


@cache
def _many(statement: str) -> str | None:
    """A plain insertion of one row, as one of many; None for any other statement."""
    into, _, values = statement.partition(" VALUES ")
    if not values.endswith(")") or " ON CONFLICT " in values:
        return None
    return f"{into} VALUES {', '.join([values] * _ROWS_AT_ONCE)}"
