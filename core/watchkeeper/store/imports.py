"""The SQL of importing other programs' logs: what was read of which file, and the rows that an import writes.

An import's transaction is no host's: no host drives an imported session, so there is no lease and no epoch.
What keeps two importers of one file apart is the file's row (`transcript_files`): it is read inside the
transaction, and a batch that began elsewhere than where the row says is given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any
from zlib import crc32

from watchkeeper.records.errors import BadInput
from watchkeeper.records.readers import EXPORT_MARK, OWN_ORIGINS, UNIT_ROLES, UNITS_SQL, program_label
from watchkeeper.records.waiting import NO_RESULT as NO_RESULT
from watchkeeper.records.waiting import NO_RESULTS as NO_RESULTS
from watchkeeper.store.driver import IN_LIST, Connection, decode, encode, list_of

NOT_FINISHED = "not finished: the session ended first"
"""Why an imported task is paused: it was running when its session ended."""


_OWN = ", ".join(f"'{origin}'" for origin in OWN_ORIGINS)
MISSING_LOGS = (
    f"(CASE WHEN replace(s.origin, '{EXPORT_MARK}', '') NOT IN ({_OWN}) THEN (SELECT count(*) FROM agents a"
    f" WHERE a.session_id = s.id AND a.last_seq = 0 AND a.role NOT IN ({UNITS_SQL}) AND (a.parent_agent_id IS NOT NULL OR EXISTS"
    " (SELECT 1 FROM agents b WHERE b.session_id = s.id AND b.last_seq > 0))) ELSE 0 END)"
)
"""SQL of a session `s`: how many of its agents have no log here, where another program ran it. Its
totals are lower bounds where there are any."""


UNLOGGED = "the log does not report its usage"
"""Why tokens and cost are lower bounds after such a compaction of an imported session: its `reason`."""
UNLOGGED_CALLS = (
    "(SELECT count(*) FROM compactions c WHERE c.session_id = s.id"
    f" AND c.reason IN ('{UNLOGGED}', 'the log does not report what it used'))"
)
"""SQL of a session `s`: how many model calls the logs show to have happened, and do not count. Earlier versions wrote the
second reason."""


def partial_sessions(connection: Connection) -> set[str]:
    """The sessions whose tokens and cost are lower bounds."""
    rows = connection.execute(
        f"SELECT s.id FROM sessions s WHERE replace(s.origin, '{EXPORT_MARK}', '') NOT IN ({_OWN})"
        f" AND ({MISSING_LOGS} > 0 OR {UNLOGGED_CALLS} > 0)"
    )
    return {row[0] for row in rows}


def totals_gaps(connection: Connection, session_id: str) -> tuple[int, int]:
    """How many agents of an imported session have no log here, and how many of its calls are in no log. Tokens and
    cost are lower bounds if there are any."""
    row = connection.execute(
        f"SELECT {MISSING_LOGS}, {UNLOGGED_CALLS} FROM sessions s WHERE s.id = ?", (session_id,)
    ).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def partial_reason(missing_logs: int, unlogged_calls: int) -> str:
    """A note for readers of totals to which so much is missing; empty for nothing."""
    found = []
    if missing_logs:
        found.append(f"{missing_logs} agent{'' if missing_logs == 1 else 's'} without a local log")
    if unlogged_calls:
        found.append(
            f"{unlogged_calls} model call{'' if unlogged_calls == 1 else 's'} not counted in the log"
        )
    return f"partial: {', '.join(found)}; tokens and cost are lower bounds" if found else ""


def imported_from(origin: str) -> str | None:
    """The program that ran a session of this origin, as people call it; None for sessions of our own."""
    if origin in OWN_ORIGINS:
        return None
    return "an exported file" if origin.startswith(EXPORT_MARK) else program_label(origin)


def refuse_imported(connection: Connection, session_id: str) -> None:
    """Control is for runs of our own.

    Raises:
        BadInput: another program ran the session.
    """
    row = connection.execute("SELECT origin FROM sessions WHERE id = ?", (session_id,)).fetchone()
    program = imported_from(row[0]) if row else None
    if program is not None:
        raise BadInput(
            f"session {session_id} was imported from {program}, and imported sessions are read-only;"
            f" view it with `wk watch {session_id}` or `wk show {session_id}`"
        )


@dataclass(frozen=True, slots=True)
class FileRow:
    """How far one log was read."""

    path: str
    program: str
    session_id: str | None
    size: int
    modified_at: float
    read_bytes: int
    head_digest: str
    tail_digest: str
    state: dict[str, Any]
    lines: int
    lines_raw: int
    lines_skipped: int
    imported_at: float


_FILE = (
    "path, program, session_id, size, modified_at, read_bytes, head_digest, tail_digest, state, lines,"
    " lines_raw,"
    " lines_skipped, imported_at"
)


def load_file(connection: Connection, path: str) -> FileRow | None:
    row = connection.execute(f"SELECT {_FILE} FROM transcript_files WHERE path = ?", (path,)).fetchone()
    return FileRow(*(*row[:8], decode(row[8]), *row[9:])) if row else None


def file_marks(connection: Connection) -> dict[str, tuple[int, float, int]]:
    """Path → size, time of change and bytes read, of every log that was read."""
    rows = connection.execute("SELECT path, size, modified_at, read_bytes FROM transcript_files")
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def file_heads(connection: Connection) -> list[tuple[str, str]]:
    """Path, and a digest of the beginning, of every log that is read line by line."""
    return connection.execute(
        "SELECT path, head_digest FROM transcript_files WHERE tail_digest <> ''"
    ).fetchall()


def move_file(connection: Connection, row: FileRow, path: str) -> None:
    """A log has another path than before."""
    connection.execute(
        "UPDATE transcript_files SET path = ?1 WHERE path = ?2 AND NOT EXISTS (SELECT 1 FROM transcript_files"
        " WHERE path = ?1)",
        (path, row.path),
    )
    connection.execute(
        "UPDATE raw_records SET path = ? WHERE session_id = ? AND path = ?", (path, row.session_id, row.path)
    )


def is_deleted(connection: Connection, session_id: str | None) -> bool:
    """Whether a user deleted the session here, and may still restore it."""
    row = connection.execute(
        "SELECT deleted_at IS NOT NULL FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    return bool(row and row[0])


def is_driven(cursor: Any, program_session: str) -> bool:
    """Whether an agent of a run here works in this session of its program: what it says is in that run."""
    cursor.execute("SELECT 1 FROM agent_programs WHERE program_session = ? LIMIT 1", (program_session,))
    return cursor.fetchone() is not None


def save_file(connection: Connection, row: FileRow) -> None:
    connection.execute(
        _SAVE_FILE,
        (
            row.path, row.program, row.session_id, row.size, row.modified_at, row.read_bytes, row.head_digest, row.tail_digest,
            encode(row.state), row.lines, row.lines_raw, row.lines_skipped, row.imported_at,
        ),
    )  # fmt: skip


def last_ids(connection: Connection) -> dict[str, int]:
    """The highest id of each table whose rows an import numbers itself; good until the transaction ends."""
    return {
        "tool_calls": _one(connection, "SELECT coalesce(max(id), 0) FROM tool_calls"),
        "model_calls": _one(connection, "SELECT coalesce(max(id), 0) FROM model_calls"),
        "compactions": _one(connection, "SELECT coalesce(max(id), 0) FROM compactions"),
    }


def _one(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> int:
    return int(connection.execute(sql, parameters).fetchone()[0])


_MANY = 40
_RECORDS = "SELECT r.digest, r.agent_id, r.seq, r.figures FROM transcript_records r"

Place = tuple[str, int, int | None]
"""What a record became: agent, `seq` of the message, and a number for the usage that it reports (0: none; None:
it was imported before such numbers were kept)."""


def find_records(cursor: Any, digests: Sequence[int]) -> dict[int, Place]:
    """What the records with these digests became, as far as they were imported."""
    if len(digests) > _MANY:
        # Records of one file have numbers near each other: mostly there are none between them, or few.
        between, most = (min(digests), max(digests)), len(digests) // 4
        near = cursor.execute(
            f"{_RECORDS} WHERE r.digest BETWEEN ? AND ? LIMIT ?", (*between, most)
        ).fetchall()
        if len(near) < most:
            wanted = set(digests)
            return {row[0]: row[1:] for row in near if row[0] in wanted}
    found = cursor.execute(f"{_RECORDS} WHERE r.digest {IN_LIST}", (list_of(digests),))
    return {row[0]: row[1:] for row in found}


def tool_use_ids(cursor: Any, agent_id: str) -> set[str]:
    """The program's ids of an agent's tool calls."""
    return {
        row[0] for row in cursor.execute("SELECT tool_use_id FROM tool_calls WHERE agent_id = ?", (agent_id,))
    }


def revision_digests(cursor: Any, source: str, record_id: str) -> list[str]:
    """The digests of a record's revisions behind the first, the oldest first."""
    rows = cursor.execute(
        "SELECT digest FROM transcript_revisions WHERE source = ? AND record_id = ? ORDER BY revision",
        (source, record_id),
    )
    return [row[0] for row in rows]


def compacted_through(cursor: Any, agent_id: str, at: float, earliest: float) -> int | None:
    """The last message that the compaction of that time saw; None where there was none."""
    row = cursor.execute(
        "SELECT high_water FROM compactions WHERE agent_id = ? AND ended_at BETWEEN ? AND ? ORDER BY id DESC"
        " LIMIT 1",
        (agent_id, earliest, at),
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def has_observation(cursor: Any, agent_id: str, text: str) -> bool:
    """Whether a summary of that text is stored."""
    return (
        cursor.execute(
            "SELECT 1 FROM observations WHERE agent_id = ? AND text = ?", (agent_id, text)
        ).fetchone()
        is not None
    )


def message_content(cursor: Any, agent_id: str, seq: int) -> str | None:
    row = cursor.execute(
        "SELECT content FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, seq)
    ).fetchone()
    return row[0] if row else None


def session_of(cursor: Any, agent_id: str) -> str | None:
    row = cursor.execute("SELECT session_id FROM agents WHERE id = ?", (agent_id,)).fetchone()
    return row[0] if row else None


def find_calls(cursor: Any, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """The stored model calls of those keys: key, id, session, agent, model, the tokens of `USAGE`, whether these are
    exact, stop reason."""
    found = cursor.execute(
        "SELECT m.request_id, m.id, m.session_id, m.agent_id, m.model, m.input_tokens, m.output_tokens,"
        " m.cache_read_tokens, m.cache_write_tokens, m.usage_exact, m.stop_reason FROM transcript_calls c CROSS JOIN"
        f" model_calls m ON m.id = c.model_call_id WHERE c.digest {IN_LIST}",
        (list_of([*{call_digest(key) for key in keys}]),),
    )
    wanted = set(keys)  # several keys may have one digest
    return [row for row in found if row[0] in wanted]


def call_digest(key: str) -> int:
    """Under what a model call's key is looked up: short, so that the keys of a thousand sessions lie on few
    pages. Several keys may have one digest; the call's row tells which it is."""
    return crc32(key.encode("utf-8", "replace"))


USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")

SESSION = (
    "id", "user_id", "goal", "title", "workspace", "model", "settings", "origin", "source", "status", "created_at",
    "last_active", "ended_at", "hosted_seconds", "current_plan_id", "planner_agent_id", "event_seq", "retries", "errors",
    "forked_from", "forked_at_seq",
)  # fmt: skip
"""Columns of a session that an import reads and writes, in the order of its rows; SQL adds its usage."""

AGENT = (
    "id", "session_id", "parent_agent_id", "name", "role", "model", "current_goal", "status", "status_reason", "turn",
    "view_version", "last_seq", "message_tokens", "context_limit", "context_tokens", "composition", "created_at",
    "started_at", "ended_at", "last_active", "active_seconds", "retries", "errors", "compactions", "parked_until",
)  # fmt: skip
"""Columns of an agent that an import reads and writes; SQL adds its usage."""


def load_session(cursor: Any, session_id: str) -> dict[str, Any] | None:
    return _load(cursor, "sessions", (*SESSION, "deleted_at"), session_id)


def load_agent(cursor: Any, agent_id: str) -> dict[str, Any] | None:
    return _load(cursor, "agents", (*AGENT, "model_calls"), agent_id)


def _load(cursor: Any, table: str, columns: Sequence[str], row_id: str) -> dict[str, Any] | None:
    found = cursor.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE id = ?", (row_id,)).fetchone()
    return dict(zip(columns, found, strict=True)) if found else None


def open_calls(cursor: Any, agent_id: str) -> dict[str, tuple[int, str, float, list[Any]]]:
    """Tool calls without a result: the program's id of each → ours, the tool's name, when it was called, and an
    empty list."""
    rows = cursor.execute(
        "SELECT tool_use_id, id, name, started_at FROM tool_calls WHERE agent_id = ? AND result_seq IS NULL"
        " AND status IN ('running', 'unknown')",
        (agent_id,),
    )
    return {row[0]: (row[1], row[2], row[3], []) for row in rows}


def last_turn(cursor: Any, agent_id: str, turn: int) -> tuple[str | None, int]:
    """The key of the newest model call of an agent, and how many tool calls its turn has so far."""
    row = cursor.execute(
        "SELECT request_id FROM model_calls WHERE agent_id = ? AND turn = ? AND purpose = 'turn' ORDER BY id DESC LIMIT 1",
        (agent_id, turn),
    ).fetchone()
    count = cursor.execute(
        "SELECT coalesce(max(position) + 1, 0) FROM tool_calls WHERE agent_id = ? AND turn = ?",
        (agent_id, turn),
    ).fetchone()[0]
    return (row[0] if row else None), int(count)


def current_view(cursor: Any, agent_id: str, version: int) -> tuple[list[int], int | None, list[Any], int]:
    """Observations, first verbatim `seq` and elided messages of a view, and the tokens of its
    observations."""
    row = cursor.execute(
        "SELECT observations, verbatim_from, elided FROM views WHERE agent_id = ? AND version = ?",
        (agent_id, version),
    ).fetchone()
    if row is None:
        return [], 1, [], 0
    tokens = cursor.execute(
        f"SELECT coalesce(sum(tokens), 0) FROM observations WHERE agent_id = ? AND id {IN_LIST}",
        (agent_id, row[0]),
    ).fetchone()[0]
    return decode(row[0]), row[1], decode(row[2]), int(tokens)


def last_compaction(cursor: Any, agent_id: str) -> tuple[int, int | None, int | None] | None:
    """The id of an agent's newest compaction, the tokens after it (None: not known yet), and its observation that
    waits for a text."""
    row = cursor.execute(
        "SELECT c.id, c.tokens_after, (SELECT o.id FROM observations o WHERE o.agent_id = c.agent_id AND"
        " o.compaction_id = c.id AND o.text = '') FROM compactions c WHERE c.agent_id = ? ORDER BY c.id DESC"
        " LIMIT 1",
        (agent_id,),
    ).fetchone()
    return (row[0], row[1], row[2]) if row else None


def last_observation(cursor: Any, agent_id: str) -> int:
    row = cursor.execute(
        "SELECT coalesce(max(id), 0) FROM observations WHERE agent_id = ?", (agent_id,)
    ).fetchone()
    return int(row[0])


def total_tokens(cursor: Any, agent_id: str, seq: int) -> int:
    """Running total of an agent's tokens through message `seq`."""
    row = cursor.execute(
        "SELECT total_tokens FROM messages WHERE agent_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1",
        (agent_id, seq),
    ).fetchone()
    return int(row[0]) if row else 0


def tokens_of(cursor: Any, agent_id: str, seqs: Sequence[int]) -> int:
    """Tokens of these messages together."""
    row = cursor.execute(
        f"SELECT coalesce(sum(tokens), 0) FROM messages WHERE agent_id = ? AND seq {IN_LIST}",
        (agent_id, list_of(seqs)),
    ).fetchone()
    return int(row[0])


def message_times(cursor: Any, agent_id: str, first_seq: int) -> list[tuple[int, float]]:
    """`seq` and time of the messages from `first_seq` on."""
    return list(
        cursor.execute(
            "SELECT seq, created_at FROM messages WHERE agent_id = ? AND seq >= ? ORDER BY seq",
            (agent_id, first_seq),
        )
    )


def result_places(cursor: Any, agent_id: str, tool_use_ids: Sequence[str]) -> list[int]:
    """The messages that hold the results of these calls."""
    rows = cursor.execute(
        "SELECT DISTINCT result_seq FROM tool_calls WHERE agent_id = ? AND result_seq IS NOT NULL AND"
        f" tool_use_id {IN_LIST} ORDER BY result_seq",
        (agent_id, list_of(tool_use_ids)),
    )
    return [row[0] for row in rows]


def load_plan(cursor: Any, plan_id: str) -> tuple[int, list[list[Any]]] | None:
    """Revision of a plan, and its tasks: id, name, position, title, status, instructions, started, ended,
    needs."""
    plan = cursor.execute("SELECT revision FROM plans WHERE id = ?", (plan_id,)).fetchone()
    if plan is None:
        return None
    needs: dict[str, list[str]] = {}
    for task_id, need in cursor.execute(
        "SELECT d.task_id, d.depends_on FROM task_dependencies d JOIN tasks t ON t.id = d.task_id WHERE"
        " t.parent_plan_id = ?",
        (plan_id,),
    ):
        needs.setdefault(task_id, []).append(need)
    tasks = cursor.execute(
        "SELECT id, name, position, title, status, instructions, started_at, ended_at FROM tasks WHERE"
        " parent_plan_id = ?"
        " ORDER BY position, id",
        (plan_id,),
    ).fetchall()
    return int(plan[0]), [[*row, tuple(needs.get(row[0], ()))] for row in tasks]


def raw_kept(cursor: Any, path: str, session_id: str, number_of: Callable[[str], int]) -> Counter[int]:
    """The numbers of the texts that are kept raw of a file, and how often; nothing else of the file stays in
    memory."""
    rows = cursor.execute(
        "SELECT data FROM raw_records WHERE session_id = ? AND path = ?", (session_id, path)
    )
    return Counter(number_of(row[0]) for row in rows)


# --- The rows that an import writes, gathered table by table ----------------------------------------------


def _upsert(table: str, columns: Sequence[str], key: str = "id") -> str:
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns if column != key)
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {sets}"


_SAVE_SESSION = _upsert("sessions", SESSION)
_SAVE_AGENT = _upsert("agents", AGENT)
_SAVE_FILE = _upsert("transcript_files", _FILE.split(", "), key="path")


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
    " request_id) VALUES (?, ?, ?, ?, ?, ?, 'done', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "call_keys": "INSERT INTO transcript_calls (digest, model_call_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
    "call_usage": "UPDATE model_calls SET stop_reason = coalesce(?1, stop_reason), input_tokens = ?2, output_tokens = ?3,"
    " cache_read_tokens = ?4, cache_write_tokens = ?5, usage_exact = CASE WHEN ?6 <> 0 THEN 1 ELSE usage_exact END,"
    " cost_usd = ?7, price_status = ?8, latency_seconds = CASE WHEN started_at + latency_seconds > ?9 THEN"
    " latency_seconds ELSE ?9 - started_at END WHERE id = ?10",
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
    "revisions": "INSERT INTO plan_revisions (plan_id, revision, at, reason, goal, task_queue, step_cursor,"
    " plan_graph_snapshot) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (plan_id, revision) DO UPDATE SET at ="
    " excluded.at, reason = excluded.reason, goal = excluded.goal, task_queue = excluded.task_queue,"
    " step_cursor = excluded.step_cursor, plan_graph_snapshot = excluded.plan_graph_snapshot",
    "tasks": "INSERT INTO tasks (id, session_id, parent_plan_id, name, position, title, instructions, role, status, status_reason,"
    " created_at, started_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?) ON CONFLICT (id) DO"
    " UPDATE SET"
    " position = excluded.position, title = excluded.title, instructions = excluded.instructions, status ="
    " excluded.status,"
    " status_reason = excluded.status_reason,"
    " started_at = excluded.started_at, ended_at = excluded.ended_at",
    "needs": "INSERT INTO task_dependencies (task_id, depends_on) VALUES (?, ?) ON CONFLICT DO NOTHING",
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

    def flush(
        self, cursor: Any, sessions: Iterable[Sequence[Any]] = (), agents: Iterable[Sequence[Any]] = ()
    ) -> None:
        """Write all of it, sessions and agents first, and bring their usage up to date."""
        self["tasks"] = _latest(self["tasks"])
        cursor.executemany(_SAVE_SESSION, sessions)
        cursor.executemany(_SAVE_AGENT, agents)
        changed = [row[-1] for row in self["call_usage"]]
        calls = [row[0] for row in self["model_calls"]] + changed
        _add_usage(cursor, "-", changed)
        for name, statement in _INSERTS.items():
            rows = self[name]
            if rows:
                _write(cursor, statement, rows)
                self[name] = []
        _add_usage(cursor, "+", calls)


def _latest(tasks: list[Sequence[Any]]) -> list[Sequence[Any]]:
    """Each task's last row, with the time of its first one, when it was made."""
    kept: dict[str, Sequence[Any]] = {}
    for row in tasks:
        before = kept.get(row[0])
        kept[row[0]] = row if before is None else (*row[:9], before[9], *row[10:])
    return list(kept.values())


def _usage_statement(table: str, owner: str, sign: str) -> str:
    sums = ", ".join(f"sum({name}) AS of_{name}" for name in USAGE)
    changed = ", ".join(f"{name} = {name} {sign} of_{name}" for name in USAGE)
    return (
        f"UPDATE {table} SET {changed}, model_calls = model_calls {sign} calls,"
        f" unpriced_calls = unpriced_calls {sign} unpriced,"
        f" cost_usd = CASE WHEN cost IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) {sign} cost END"
        f" FROM (SELECT {owner} AS of_owner, {sums}, count(*) AS calls, sum(cost_usd) AS cost,"
        f" sum(CASE WHEN cost_usd IS NULL AND {' + '.join(USAGE)} > 0 THEN 1 ELSE 0 END) AS unpriced"
        f" FROM model_calls WHERE id {IN_LIST} GROUP BY {owner}) AS used"
        f" WHERE {table}.id = of_owner"
    )


_USAGE_STATEMENTS = {
    sign: [_usage_statement("sessions", "session_id", sign), _usage_statement("agents", "agent_id", sign)]
    for sign in "+-"
}


def _add_usage(cursor: Any, sign: str, calls: list[int]) -> None:
    """Add what these model calls used to their sessions and agents, or (`-`) subtract it."""
    for statement in _USAGE_STATEMENTS[sign] if calls else ():
        cursor.execute(statement, (list_of(calls),))


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
    """An insertion of one row, as one of many; None for a statement that changes rows."""
    into, _, values = statement.partition(" VALUES ")
    values, conflict, nothing = values.partition(" ON CONFLICT DO NOTHING")
    if not values.endswith(")") or " ON CONFLICT " in values:
        return None
    return f"{into} VALUES {', '.join([values] * _ROWS_AT_ONCE)}{conflict}{nothing}"


# --- Imported sessions that grow: while their logs are followed they count as running, and as done again ---
#
# afterwards.


def begin(connection: Connection, session_ids: Sequence[str]) -> None:
    """These sessions go on. What their main agent's last turn called and has no result of is taken to run
    still."""
    for session_id in session_ids:
        connection.execute(
            "UPDATE sessions SET status = 'running', ended_at = NULL WHERE id = ? AND status = 'done'",
            (session_id,),
        )
        connection.execute(
            "UPDATE tasks SET status = 'running', status_reason = NULL WHERE session_id = ? AND status ="
            " 'paused'",
            (session_id,),
        )
        main = connection.execute(
            "SELECT a.id, a.turn FROM agents a JOIN sessions s ON s.planner_agent_id = a.id WHERE s.id = ?"
            " AND a.status = 'done'",
            (session_id,),
        ).fetchone()
        if main is None:
            continue
        called = connection.execute(
            "UPDATE tool_calls SET status = 'running' WHERE agent_id = ? AND turn = ? AND status = 'unknown'"
            " AND result_seq IS NULL",
            main,
        ).rowcount
        connection.execute(
            "UPDATE agents SET status = ?, ended_at = NULL WHERE id = ?",
            ("working" if called else "idle", main[0]),
        )


def seconds_since_active(connection: Connection, session_ids: Sequence[str], now: float) -> dict[str, float]:
    """How old the newest record of each of these sessions is."""
    found = connection.execute(
        f"SELECT id, last_active FROM sessions WHERE id {IN_LIST}", (list_of(session_ids),)
    )
    return {row[0]: now - row[1] for row in found}


def end(connection: Connection, session_ids: Sequence[str]) -> None:
    """These sessions grow no further as far as is known here: no agent in them is working."""
    for session_id in session_ids:
        connection.execute(
            "UPDATE sessions SET status = 'done', ended_at = last_active WHERE id = ? AND status = 'running'",
            (session_id,),
        )
        connection.execute(
            "UPDATE agents SET status = 'cancelled', status_reason = ?, ended_at = last_active"
            " WHERE session_id = ? AND status = 'working' AND parent_agent_id IS NOT NULL",
            (NO_RESULT, session_id),
        )
        connection.execute(
            "UPDATE agents SET status = 'done', ended_at = last_active WHERE session_id = ? AND status IN"
            " ('working', 'idle')",
            (session_id,),
        )
        connection.execute(
            "UPDATE tasks SET status = 'paused', status_reason = ? WHERE session_id = ? AND status ="
            " 'running'",
            (NOT_FINISHED, session_id),
        )
        roll_up(connection, [session_id], live=False)
        connection.execute(
            "UPDATE tool_calls SET status = 'unknown' WHERE status = 'running' AND agent_id IN"
            " (SELECT id FROM agents WHERE session_id = ?)",
            (session_id,),
        )


# --- Workflow runs and their phases: what is below them says how they stand ------------------------------

_RUN, _PHASE, _ = UNIT_ROLES


@dataclass(slots=True)
class _Standing:
    """The state of an agent or a unit."""

    id: str
    parent: str | None
    role: str
    status: str
    reason: str | None
    created_at: float
    ended_at: float | None
    last_active: float


def roll_up(cursor: Any, session_ids: Sequence[str], *, live: bool) -> None:
    """Give the workflow runs and phases of these sessions the state of the agents below them.

    A phase has no end of its own in any log: it is what its agents are. A run has one, and it is kept; with it, the
    agents of which no end was reported work no longer. `live`: the logs are followed, so that a run without an end goes
    on.
    """
    for session_id in session_ids:
        rows = cursor.execute(
            "SELECT id, parent_agent_id, role, status, status_reason, created_at, ended_at, last_active FROM agents"
            " WHERE session_id = ? ORDER BY ordinal",
            (session_id,),
        ).fetchall()
        if not any(row[2] in (_RUN, _PHASE) for row in rows):
            continue
        children: dict[str | None, list[_Standing]] = {}
        for one in (_Standing(*row) for row in rows):
            children.setdefault(one.parent, []).append(one)
        units = [one for found in children.values() for one in found if one.role in (_RUN, _PHASE)]
        changed: dict[str, _Standing] = {}
        for unit in sorted(units, key=lambda one: one.role, reverse=True):  # runs before phases
            agents = _agents_below(unit, children)
            if unit.role == _RUN and unit.status != "working":
                for one in agents:
                    if one.status == "working" and one.last_active <= (unit.ended_at or one.last_active):
                        one.status, one.reason, one.ended_at = "cancelled", NO_RESULT, one.last_active
                        changed[one.id] = one
            if agents:
                _stand_for(unit, agents, live=live)
                changed[unit.id] = unit
        cursor.executemany(
            "UPDATE agents SET status = ?, status_reason = ?, created_at = ?, ended_at = ?, last_active = ? WHERE id = ?",
            [
                (one.status, one.reason, one.created_at, one.ended_at, one.last_active, one.id)
                for one in changed.values()
            ],
        )


def _agents_below(unit: _Standing, children: dict[str | None, list[_Standing]]) -> list[_Standing]:
    """The agents below a unit, at any depth."""
    found: list[_Standing] = []
    seen, waiting = {unit.id}, [*children.get(unit.id, ())]
    while waiting:
        one = waiting.pop()
        if one.id not in seen:
            seen.add(one.id)
            found += [] if one.role in UNIT_ROLES else [one]
            waiting += children.get(one.id, ())
    return found


def _stand_for(unit: _Standing, agents: list[_Standing], *, live: bool) -> None:
    first, last = min(one.created_at for one in agents), max(one.last_active for one in agents)
    if unit.role == _PHASE:
        unit.status, unit.reason = _standing(agents)
        unit.created_at, unit.ended_at = first, None if unit.status == "working" else last
    else:
        unit.created_at = min(unit.created_at, first)
        unit.ended_at = None if live and unit.status == "working" else unit.ended_at or last
    unit.last_active = max(unit.created_at, last)


def _standing(agents: list[_Standing]) -> tuple[str, str | None]:
    """The state of a phase with these agents, and why."""
    counts = Counter(one.status for one in agents)
    if sum(counts.values()) > counts["done"] + counts["failed"] + counts["cancelled"]:
        return "working", None
    if failed := counts["failed"]:
        return "failed", f"{failed} of {len(agents)} agents failed"
    if any(one.status == "cancelled" and one.reason in NO_RESULTS for one in agents):
        return "cancelled", NO_RESULT
    if cancelled := counts["cancelled"]:
        return "cancelled", f"{cancelled} of {len(agents)} agents were cancelled"
    return "done", None


def followed(connection: Connection) -> list[str]:
    """Imported sessions that stand as running, whether anybody still follows them or not."""
    found = connection.execute(
        f"SELECT id FROM sessions WHERE status = 'running' AND origin NOT IN ({_OWN})"
        " AND substr(origin, 1, ?) <> ?",
        (len(EXPORT_MARK), EXPORT_MARK),
    )
    return [row[0] for row in found]
