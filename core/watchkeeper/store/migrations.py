"""The migrations of existing databases. A released migration is never edited; a change is a new one.

A new database is made from the catalogue of tables instead (`store.schema`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from watchkeeper.store.driver import sqlite3
from watchkeeper.store.faultpoints import reach

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

    from watchkeeper.store.driver import Connection

# --- Schema 1: sessions, plans, agents and their memory, artifacts, events, commands, budgets -------------

FIRST = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    goal TEXT NOT NULL,
    title TEXT,
    workspace TEXT NOT NULL,
    model TEXT NOT NULL,
    settings TEXT NOT NULL DEFAULT '{}',
    origin TEXT NOT NULL DEFAULT 'run',
    tags TEXT NOT NULL DEFAULT '[]',
    status TEXT NOT NULL,
    status_reason TEXT,
    created_at REAL NOT NULL,
    last_active REAL NOT NULL,
    ended_at REAL,
    hosted_seconds REAL NOT NULL DEFAULT 0,
    current_plan_id TEXT,
    planner_agent_id TEXT,
    event_seq INTEGER NOT NULL DEFAULT 0,
    lease_epoch INTEGER NOT NULL DEFAULT 0,
    host_pid INTEGER,
    host_name TEXT,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    cost_usd REAL,
    unpriced_calls INTEGER NOT NULL DEFAULT 0,
    model_calls INTEGER NOT NULL DEFAULT 0,
    retries INTEGER NOT NULL DEFAULT 0,
    errors INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX sessions_last_active ON sessions (last_active);

CREATE TABLE plans (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    goal TEXT NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0,
    step_cursor INTEGER NOT NULL DEFAULT 0,
    task_queue TEXT NOT NULL DEFAULT '[]',
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
);
CREATE INDEX plans_session ON plans (session_id);

CREATE TABLE plan_revisions (
    plan_id TEXT NOT NULL REFERENCES plans (id),
    revision INTEGER NOT NULL,
    at REAL NOT NULL,
    reason TEXT NOT NULL,
    goal TEXT NOT NULL,
    task_queue TEXT NOT NULL,
    step_cursor INTEGER NOT NULL,
    plan_graph_snapshot TEXT NOT NULL,
    PRIMARY KEY (plan_id, revision)
);

CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    parent_plan_id TEXT NOT NULL REFERENCES plans (id),
    name TEXT NOT NULL,
    position INTEGER NOT NULL,
    title TEXT NOT NULL,
    instructions TEXT NOT NULL,
    role TEXT NOT NULL,
    model TEXT,
    status TEXT NOT NULL,
    status_reason TEXT,
    attempt INTEGER NOT NULL DEFAULT 1,
    assigned_agent TEXT,
    resume_token TEXT,
    starts_from TEXT,
    inputs_ref TEXT NOT NULL DEFAULT '[]',
    inputs_hash TEXT,
    expected_outputs TEXT NOT NULL DEFAULT '[]',
    artifact_refs TEXT NOT NULL DEFAULT '[]',
    result TEXT,
    error TEXT,
    failures INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    UNIQUE (parent_plan_id, name)
);
CREATE INDEX tasks_session ON tasks (session_id, position);

CREATE TABLE task_dependencies (
    task_id TEXT NOT NULL REFERENCES tasks (id),
    depends_on TEXT NOT NULL REFERENCES tasks (id),
    PRIMARY KEY (task_id, depends_on)
);

CREATE TABLE agents (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    parent_agent_id TEXT,
    task_id TEXT,
    copied_from TEXT,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    model TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 1,
    current_goal TEXT NOT NULL DEFAULT '',
    system TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL,
    status_reason TEXT,
    turn INTEGER NOT NULL DEFAULT 0,
    view_version INTEGER NOT NULL DEFAULT 0,
    last_seq INTEGER NOT NULL DEFAULT 0,
    message_tokens INTEGER NOT NULL DEFAULT 0,
    context_limit INTEGER NOT NULL DEFAULT 0,
    context_tokens INTEGER NOT NULL DEFAULT 0,
    composition TEXT NOT NULL DEFAULT '{}',
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    last_active REAL NOT NULL,
    active_seconds REAL NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    cost_usd REAL,
    unpriced_calls INTEGER NOT NULL DEFAULT 0,
    model_calls INTEGER NOT NULL DEFAULT 0,
    retries INTEGER NOT NULL DEFAULT 0,
    errors INTEGER NOT NULL DEFAULT 0,
    compactions INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX agents_session ON agents (session_id);
CREATE INDEX agents_task ON agents (task_id);

CREATE TABLE messages (
    agent_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    total_tokens INTEGER NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (agent_id, seq)
);
CREATE TRIGGER messages_are_immutable BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'messages are immutable'); END;

CREATE TABLE steps (
    agent_id TEXT NOT NULL,
    turn INTEGER NOT NULL,
    reply_seq INTEGER NOT NULL,
    results_seq INTEGER,
    started_at REAL NOT NULL,
    ended_at REAL,
    PRIMARY KEY (agent_id, turn)
);

CREATE TABLE tool_calls (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    turn INTEGER NOT NULL,
    position INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    tool_use_id TEXT NOT NULL,
    name TEXT NOT NULL,
    idempotent INTEGER NOT NULL,
    status TEXT NOT NULL,
    result TEXT,
    result_seq INTEGER,
    is_error INTEGER NOT NULL DEFAULT 0,
    started_at REAL,
    ended_at REAL,
    runs INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX tool_calls_place ON tool_calls (agent_id, turn, position);

CREATE TABLE model_calls (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    turn INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    model TEXT NOT NULL,
    status TEXT NOT NULL,
    stop_reason TEXT,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    estimated_prompt_tokens INTEGER NOT NULL DEFAULT 0,
    usage_exact INTEGER NOT NULL DEFAULT 1,
    cost_usd REAL,
    price_status TEXT NOT NULL DEFAULT 'unpriced',
    started_at REAL NOT NULL,
    latency_seconds REAL NOT NULL DEFAULT 0,
    first_token_seconds REAL,
    waited_seconds REAL NOT NULL DEFAULT 0,
    retries INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    request_id TEXT
);
CREATE INDEX model_calls_agent ON model_calls (agent_id);
CREATE INDEX model_calls_session ON model_calls (session_id);

CREATE TABLE observations (
    agent_id TEXT NOT NULL,
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    level INTEGER NOT NULL DEFAULT 0,
    text TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    citations TEXT NOT NULL,
    replaces TEXT NOT NULL DEFAULT '[]',
    provisional INTEGER NOT NULL DEFAULT 0,
    status TEXT NOT NULL DEFAULT 'published',
    compaction_id INTEGER,
    created_at REAL NOT NULL,
    PRIMARY KEY (agent_id, id)
);

CREATE TABLE views (
    agent_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    parent INTEGER,
    observations TEXT NOT NULL,
    verbatim_from INTEGER,
    elided TEXT NOT NULL DEFAULT '[]',
    reason TEXT NOT NULL,
    tokens INTEGER NOT NULL DEFAULT 0,
    compaction_id INTEGER,
    created_at REAL NOT NULL,
    PRIMARY KEY (agent_id, version)
);

CREATE TABLE compactions (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    trigger TEXT NOT NULL,
    status TEXT NOT NULL,
    instructions TEXT,
    reason TEXT,
    high_water INTEGER,
    messages_removed INTEGER NOT NULL DEFAULT 0,
    tokens_before INTEGER,
    tokens_after INTEGER,
    view_before INTEGER,
    view_after INTEGER,
    model TEXT,
    model_call_id INTEGER,
    cost_usd REAL,
    stall_seconds REAL NOT NULL DEFAULT 0,
    cache_tokens_invalidated INTEGER NOT NULL DEFAULT 0,
    prepared TEXT,
    seconds REAL,
    requested_at REAL NOT NULL,
    ended_at REAL
);
CREATE INDEX compactions_agent ON compactions (agent_id);
CREATE INDEX compactions_session ON compactions (session_id);

CREATE TABLE memory_snapshots (
    agent_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    memory_blob_ref TEXT NOT NULL,
    last_updated REAL NOT NULL,
    view_version INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    tokens INTEGER NOT NULL
);

CREATE TABLE facts (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT,
    workspace TEXT NOT NULL,
    scope TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    digest TEXT NOT NULL,
    sources TEXT NOT NULL DEFAULT '[]',
    confidence REAL NOT NULL DEFAULT 1.0,
    pinned INTEGER NOT NULL DEFAULT 0,
    superseded_by INTEGER,
    created_at REAL NOT NULL
);
CREATE INDEX facts_session ON facts (session_id, digest);
CREATE INDEX facts_agent ON facts (agent_id);

CREATE TABLE artifacts (
    digest TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    encoding TEXT NOT NULL,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL,
    created_at REAL NOT NULL
);

CREATE TABLE outputs (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT,
    task_id TEXT,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    digest TEXT NOT NULL REFERENCES artifacts (digest),
    created_at REAL NOT NULL
);
CREATE INDEX outputs_session ON outputs (session_id, name);
CREATE INDEX outputs_agent ON outputs (agent_id);

CREATE TABLE handoffs (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    plan_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    assigned_agent TEXT NOT NULL,
    inputs_ref TEXT NOT NULL,
    memory_delta_ref TEXT,
    expected_outputs TEXT NOT NULL,
    created_at REAL NOT NULL
);
CREATE INDEX handoffs_session ON handoffs (session_id);

CREATE TABLE inbox (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    created_at REAL NOT NULL,
    delivered_seq INTEGER
);
CREATE INDEX inbox_waiting ON inbox (agent_id) WHERE delivered_seq IS NULL;

CREATE TABLE events (
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    agent_id TEXT,
    task_id TEXT,
    data TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (session_id, seq)
);

CREATE TABLE commands (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    agent_id TEXT,
    task_id TEXT,
    payload TEXT NOT NULL DEFAULT '{}',
    dedupe_key TEXT,
    status TEXT NOT NULL DEFAULT 'queued',
    result TEXT,
    requested_by TEXT NOT NULL,
    created_at REAL NOT NULL,
    applied_at REAL,
    event_seq INTEGER
);
CREATE INDEX commands_queued ON commands (session_id) WHERE status = 'queued';
CREATE UNIQUE INDEX commands_dedupe ON commands (session_id, dedupe_key) WHERE dedupe_key IS NOT NULL;

CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    task_id TEXT,
    tool_call_id INTEGER NOT NULL,
    tool TEXT NOT NULL,
    question TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'waiting',
    decided_by TEXT,
    reason TEXT,
    created_at REAL NOT NULL,
    decided_at REAL
);
CREATE INDEX approvals_session ON approvals (session_id, status);

CREATE TABLE budgets (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    task_id TEXT,
    kind TEXT NOT NULL,
    amount REAL NOT NULL,
    reached_at REAL,
    created_at REAL NOT NULL
);
CREATE UNIQUE INDEX budgets_scope ON budgets (session_id, ifnull(task_id, ''), kind);

CREATE TABLE live (
    agent_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    activity TEXT NOT NULL,
    detail TEXT NOT NULL DEFAULT '',
    text TEXT NOT NULL DEFAULT '',
    since REAL NOT NULL,
    until REAL,
    updated_at REAL NOT NULL
);
CREATE INDEX live_session ON live (session_id);

CREATE TABLE rate_limits (
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    until REAL NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (provider, model)
);
"""


# --- Schema 2: deletion with undo, forks, transcripts, search -----------------------------------------------
#
# Also message ids that outlive a vacuum.

SECOND = """
ALTER TABLE sessions ADD COLUMN deleted_at REAL;
ALTER TABLE compactions ADD COLUMN tokens_spent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN source TEXT;
ALTER TABLE sessions ADD COLUMN forked_from TEXT;
ALTER TABLE sessions ADD COLUMN forked_at_seq INTEGER;

CREATE TABLE messages_with_ids (
    id INTEGER PRIMARY KEY,
    agent_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    total_tokens INTEGER NOT NULL,
    created_at REAL NOT NULL,
    UNIQUE (agent_id, seq)
);
INSERT INTO messages_with_ids
    SELECT rowid, agent_id, seq, role, content, tokens, total_tokens, created_at FROM messages ORDER BY rowid;
DROP TABLE messages;
ALTER TABLE messages_with_ids RENAME TO messages;
CREATE TRIGGER messages_are_immutable BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'messages are immutable'); END;

CREATE TABLE transcript_files (
    path TEXT PRIMARY KEY,
    program TEXT NOT NULL,
    session_id TEXT,
    size INTEGER NOT NULL,
    modified_at REAL NOT NULL,
    read_bytes INTEGER NOT NULL,
    head_digest TEXT NOT NULL,
    tail_digest TEXT NOT NULL DEFAULT '',
    state TEXT NOT NULL DEFAULT '{}',
    lines INTEGER NOT NULL DEFAULT 0,
    lines_raw INTEGER NOT NULL DEFAULT 0,
    lines_skipped INTEGER NOT NULL DEFAULT 0,
    imported_at REAL NOT NULL
);

CREATE TABLE transcript_records (
    digest INTEGER PRIMARY KEY,
    agent_id TEXT NOT NULL,
    seq INTEGER NOT NULL
);

CREATE TABLE transcript_calls (
    model_call_id INTEGER PRIMARY KEY,
    digest INTEGER NOT NULL
);
CREATE INDEX transcript_calls_digest ON transcript_calls (digest);

CREATE TABLE raw_records (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT,
    path TEXT NOT NULL,
    line INTEGER NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX raw_records_session ON raw_records (session_id, path);

CREATE INDEX tool_calls_open ON tool_calls (agent_id) WHERE result_seq IS NULL AND status IN ('running', 'unknown');

CREATE VIRTUAL TABLE messages_fts USING fts5 (
    text, content='', contentless_delete=1, detail=none, tokenize='unicode61 remove_diacritics 2'
);
INSERT INTO messages_fts (messages_fts, rank) VALUES ('automerge', 8);
CREATE TABLE messages_fts_removed (
    id INTEGER PRIMARY KEY
);
CREATE TABLE messages_fts_sessions (
    first_id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL
);
CREATE TABLE message_index (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    indexed_through INTEGER NOT NULL,
    removals INTEGER NOT NULL DEFAULT 0
);
INSERT INTO message_index (id, indexed_through) VALUES (1, 0);
CREATE TRIGGER messages_leave_the_index AFTER DELETE ON messages
BEGIN
    INSERT OR IGNORE INTO messages_fts_removed SELECT old.id FROM message_index WHERE old.id <= indexed_through;
    UPDATE message_index SET removals = removals + 1,
        indexed_through = min(indexed_through, (SELECT ifnull(max(id), 0) FROM messages));
END;

CREATE INDEX model_calls_estimated ON model_calls (session_id, agent_id)
    WHERE cost_usd IS NOT NULL AND (price_status = 'estimated' OR usage_exact = 0);

CREATE INDEX commands_session ON commands (session_id);
CREATE INDEX inbox_session ON inbox (session_id, agent_id);
CREATE INDEX memory_snapshots_session ON memory_snapshots (session_id);
CREATE INDEX transcript_files_session ON transcript_files (session_id);

CREATE INDEX facts_digest ON facts (digest);
CREATE INDEX facts_pinned ON facts (session_id) WHERE pinned = 1;
CREATE INDEX facts_workspace ON facts (workspace, pinned) WHERE scope = 'workspace';
CREATE INDEX facts_superseded ON facts (superseded_by) WHERE superseded_by IS NOT NULL;

CREATE TABLE embeddings (
    kind TEXT NOT NULL,
    item INTEGER NOT NULL,
    model TEXT NOT NULL,
    vector BLOB NOT NULL,
    PRIMARY KEY (kind, item)
);
CREATE TRIGGER messages_take_their_vectors_along AFTER DELETE ON messages
BEGIN DELETE FROM embeddings WHERE kind = 'message' AND item = old.id; END;
CREATE TRIGGER facts_take_their_vectors_along AFTER DELETE ON facts
BEGIN DELETE FROM embeddings WHERE kind = 'fact' AND item = old.id; END;
"""


# --- Schema 3: order without clocks, approvals, limits ------------------------------------------------------
#
# Approvals shown whole, limits that park, reservations, containment, revisions of imports. Old sessions are
# numbered in the order of their insertion: `rowid` gives it in SQLite, the only engine that has files of
# earlier schemas. Every row that a run's transaction writes has `commit_seq`, the number of the first event
# that its transaction may write; rows of an earlier schema have none.

THIRD = """
ALTER TABLE sessions ADD COLUMN ordinal INTEGER;
UPDATE sessions SET ordinal = rowid;
CREATE INDEX sessions_ordinal ON sessions (ordinal);
CREATE TRIGGER sessions_get_an_ordinal AFTER INSERT ON sessions
WHEN new.ordinal IS NULL OR EXISTS (SELECT 1 FROM sessions other WHERE other.ordinal = new.ordinal AND other.id <> new.id)
BEGIN UPDATE sessions SET ordinal = (SELECT coalesce(max(ordinal), 0) + 1 FROM sessions) WHERE id = new.id; END;
ALTER TABLE sessions ADD COLUMN deletion_ordinal INTEGER;
UPDATE sessions SET deletion_ordinal = (SELECT count(*) FROM sessions d WHERE d.deleted_at > 0
    AND (d.deleted_at < sessions.deleted_at OR (d.deleted_at = sessions.deleted_at AND d.ordinal <= sessions.ordinal)))
    WHERE deleted_at > 0;

ALTER TABLE sessions ADD COLUMN roles TEXT;

ALTER TABLE agents ADD COLUMN parked_until REAL;

ALTER TABLE tool_calls ADD COLUMN edited_input TEXT;
ALTER TABLE tool_calls ADD COLUMN input_digest TEXT;
UPDATE tool_calls SET status = 'cancelled', is_error = 1,
    result = CASE WHEN result_seq IS NULL THEN '"[not run] The agent ended before this call began."' ELSE result END
    WHERE status = 'pending' AND agent_id IN (SELECT id FROM agents WHERE status IN ('cancelled', 'failed'));

ALTER TABLE approvals ADD COLUMN folder TEXT;
ALTER TABLE approvals ADD COLUMN subject_digest TEXT;
ALTER TABLE approvals ADD COLUMN edited_input TEXT;
ALTER TABLE approvals ADD COLUMN scope TEXT;
ALTER TABLE approvals ADD COLUMN cause TEXT;
ALTER TABLE approvals ADD COLUMN note TEXT;

CREATE TABLE permission_grants (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    pattern TEXT,
    approval_id TEXT,
    granted_by TEXT NOT NULL,
    created_at REAL NOT NULL,
    revoked_by TEXT,
    revoked_at REAL,
    commit_seq INTEGER
);
CREATE INDEX permission_grants_session ON permission_grants (session_id);

ALTER TABLE rate_limits ADD COLUMN kind TEXT NOT NULL DEFAULT 'rate';
ALTER TABLE rate_limits ADD COLUMN noted_at REAL;

ALTER TABLE budgets ADD COLUMN required REAL;

CREATE TABLE reservations (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    task_id TEXT,
    lease_epoch INTEGER NOT NULL,
    model TEXT NOT NULL,
    purpose TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    cost_usd REAL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    commit_seq INTEGER
);
CREATE INDEX reservations_session ON reservations (session_id);

CREATE TABLE containments (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    lease_epoch INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL DEFAULT '{}',
    host_name TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    ended_at REAL,
    commit_seq INTEGER
);
CREATE INDEX containments_session ON containments (session_id);

CREATE TABLE tool_processes (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    containment_id INTEGER NOT NULL,
    agent_id TEXT,
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    created_at REAL NOT NULL,
    UNIQUE (containment_id, pid, start_ticks)
);
CREATE INDEX tool_processes_session ON tool_processes (session_id);

CREATE TABLE transcript_revisions (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    source TEXT NOT NULL,
    record_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    agent_id TEXT,
    seq INTEGER,
    digest TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at REAL NOT NULL,
    UNIQUE (source, record_id, revision)
);
CREATE INDEX transcript_revisions_session ON transcript_revisions (session_id);
ALTER TABLE transcript_records ADD COLUMN figures INTEGER;
UPDATE tasks SET status = 'paused', status_reason = 'not finished: the session ended while it ran'
    WHERE status = 'running' AND session_id IN (
        SELECT id FROM sessions WHERE status <> 'running' AND origin IN ('claude-code', 'codex', 'opencode')
    );

ALTER TABLE plans ADD COLUMN commit_seq INTEGER;
ALTER TABLE plan_revisions ADD COLUMN commit_seq INTEGER;
ALTER TABLE tasks ADD COLUMN commit_seq INTEGER;
ALTER TABLE task_dependencies ADD COLUMN commit_seq INTEGER;
ALTER TABLE agents ADD COLUMN commit_seq INTEGER;
ALTER TABLE messages ADD COLUMN commit_seq INTEGER;
ALTER TABLE steps ADD COLUMN commit_seq INTEGER;
ALTER TABLE tool_calls ADD COLUMN commit_seq INTEGER;
ALTER TABLE model_calls ADD COLUMN commit_seq INTEGER;
ALTER TABLE observations ADD COLUMN commit_seq INTEGER;
ALTER TABLE views ADD COLUMN commit_seq INTEGER;
ALTER TABLE compactions ADD COLUMN commit_seq INTEGER;
ALTER TABLE memory_snapshots ADD COLUMN commit_seq INTEGER;
ALTER TABLE facts ADD COLUMN commit_seq INTEGER;
ALTER TABLE outputs ADD COLUMN commit_seq INTEGER;
ALTER TABLE handoffs ADD COLUMN commit_seq INTEGER;
ALTER TABLE inbox ADD COLUMN commit_seq INTEGER;
ALTER TABLE commands ADD COLUMN commit_seq INTEGER;
ALTER TABLE approvals ADD COLUMN commit_seq INTEGER;
ALTER TABLE budgets ADD COLUMN commit_seq INTEGER;
"""


# --- Schema 4: the state of a session at any event, by key -------------------------------------------------
#
# `events.commit_seq` says which events are one transaction. `state_changes` holds the values of columns that a
# change replaced, where neither an event nor an append-only row tells them. `history_inferred` marks sessions
# whose rows were numbered by their times (see `number_rows`).

FOURTH = """
ALTER TABLE events ADD COLUMN commit_seq INTEGER;
ALTER TABLE sessions ADD COLUMN history_inferred INTEGER;

CREATE TABLE state_changes (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    commit_seq INTEGER NOT NULL,
    table_name TEXT NOT NULL,
    row_id TEXT NOT NULL,
    old_values TEXT NOT NULL
);
CREATE INDEX state_changes_session ON state_changes (session_id);
"""


# --- Schema 5: ordinals for what only the order of rows said ------------------------------------------------
#
# Agents of a session, in the order in which they were made, and what a task needs, in the planner's order.

FIFTH = """
ALTER TABLE agents ADD COLUMN ordinal INTEGER;
UPDATE agents SET ordinal = rowid;
DROP INDEX agents_session;
CREATE INDEX agents_session ON agents (session_id, ordinal);
CREATE TRIGGER agents_get_an_ordinal AFTER INSERT ON agents WHEN new.ordinal IS NULL
BEGIN UPDATE agents SET ordinal = (SELECT coalesce(max(ordinal), 0) + 1 FROM agents WHERE session_id = new.session_id)
    WHERE id = new.id; END;
ALTER TABLE task_dependencies ADD COLUMN position INTEGER;
UPDATE task_dependencies SET position = rowid;
CREATE TRIGGER task_dependencies_get_a_position AFTER INSERT ON task_dependencies WHEN new.position IS NULL
BEGIN UPDATE task_dependencies SET position = (SELECT coalesce(max(position), 0) + 1 FROM task_dependencies
    WHERE task_id = new.task_id) WHERE task_id = new.task_id AND depends_on = new.depends_on; END;
"""


# --- Schema 6: agents that another program drives -----------------------------------------------------------

SIXTH = """
CREATE TABLE agent_programs (
    agent_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    program TEXT NOT NULL,
    version TEXT NOT NULL DEFAULT '',
    program_session TEXT NOT NULL,
    model TEXT,
    transcript TEXT,
    folder TEXT NOT NULL,
    sent_seq INTEGER NOT NULL DEFAULT 0,
    opened_at REAL NOT NULL,
    commit_seq INTEGER
);
CREATE INDEX agent_programs_session ON agent_programs (session_id);
CREATE TABLE program_turns (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    prompt_seq INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    started_at REAL NOT NULL,
    ended_at REAL,
    commit_seq INTEGER
);
CREATE INDEX program_turns_agent ON program_turns (agent_id, id);
CREATE INDEX program_turns_session ON program_turns (session_id);
CREATE TABLE worktrees (
    task_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    status TEXT NOT NULL,
    repository TEXT NOT NULL,
    folder TEXT NOT NULL,
    branch TEXT NOT NULL,
    base_commit TEXT NOT NULL,
    target TEXT NOT NULL,
    merge_commit TEXT,
    unresolved TEXT NOT NULL DEFAULT '[]',
    files_changed INTEGER NOT NULL DEFAULT 0,
    diff TEXT NOT NULL DEFAULT '',
    prefix TEXT NOT NULL DEFAULT '',
    created_at REAL NOT NULL,
    commit_seq INTEGER
);
CREATE INDEX worktrees_session ON worktrees (session_id);
ALTER TABLE tasks ADD COLUMN isolation TEXT;
"""


# --- Schema 7: messages that stay in a context because a person pinned them ----------------------------------

SEVENTH = """
ALTER TABLE views ADD COLUMN pins TEXT;
"""


# --- Schema 8: what a turn of an agent program is, and compactions that were ordered ---------------------------

EIGHTH = """
ALTER TABLE agent_programs ADD COLUMN compaction TEXT;
ALTER TABLE program_turns ADD COLUMN kind TEXT NOT NULL DEFAULT 'prompt';
ALTER TABLE program_turns ADD COLUMN record_end TEXT;
"""


# --- Schema 9: sessions in other terminals, as hooks and the programs themselves tell of them -----------------

NINTH = """
CREATE TABLE external_sessions (
    program TEXT NOT NULL,
    program_session TEXT NOT NULL,
    imported_as TEXT NOT NULL,
    pid INTEGER,
    folder TEXT NOT NULL DEFAULT '',
    transcript TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    details TEXT NOT NULL DEFAULT '{}',
    changed_at REAL NOT NULL,
    PRIMARY KEY (program, program_session)
);
CREATE INDEX external_sessions_imported ON external_sessions (imported_as);
CREATE TABLE external_questions (
    id TEXT PRIMARY KEY,
    program TEXT NOT NULL,
    program_session TEXT NOT NULL,
    pid INTEGER NOT NULL,
    agent TEXT NOT NULL DEFAULT '',
    tool TEXT NOT NULL,
    input TEXT NOT NULL,
    status TEXT NOT NULL,
    answer TEXT NOT NULL DEFAULT '{}',
    decided_by TEXT NOT NULL DEFAULT '',
    outcome TEXT NOT NULL DEFAULT '',
    asked_at REAL NOT NULL,
    changed_at REAL NOT NULL
);
CREATE INDEX external_questions_session ON external_questions (program, program_session);
"""


# --- Schema 10: sessions that wait for a worker, workers, budgets of projects ----------------------------------

TENTH = """
ALTER TABLE sessions ADD COLUMN lease_until REAL;
ALTER TABLE sessions ADD COLUMN project TEXT;
ALTER TABLE sessions ADD COLUMN queued_at REAL;
ALTER TABLE sessions ADD COLUMN needs TEXT;
CREATE INDEX sessions_queued ON sessions (queued_at) WHERE queued_at IS NOT NULL;
CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    host_name TEXT NOT NULL,
    pid INTEGER NOT NULL,
    labels TEXT NOT NULL DEFAULT '[]',
    slots INTEGER NOT NULL,
    status TEXT NOT NULL,
    started_at REAL NOT NULL,
    seen_at REAL NOT NULL
);
CREATE TABLE worker_refusals (
    session_id TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (session_id, worker_id)
);
CREATE TABLE project_budgets (
    project TEXT NOT NULL,
    kind TEXT NOT NULL,
    amount REAL NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (project, kind)
);
"""


# --- Schema 11: what an answer of a person rests on, why a task runs again --------------------------------------

ELEVENTH = """
ALTER TABLE approvals ADD COLUMN premises TEXT;
ALTER TABLE agents ADD COLUMN tools TEXT;
ALTER TABLE tasks ADD COLUMN rerun_reason TEXT;
"""

_SCRIPTS = {
    "first": FIRST, "second": SECOND, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH, "sixth": SIXTH, "seventh": SEVENTH,
    "eighth": EIGHTH, "ninth": NINTH, "tenth": TENTH, "eleventh": ELEVENTH,
}  # fmt: skip

SCHEMA_VERSION = len(_SCRIPTS)
"""`PRAGMA user_version`: how many migrations made the file. A higher one was written by a newer program."""


def migrations() -> Migrations:
    """Every migration, oldest first. Imports sqlite-utils only when called: viewers never do."""
    from sqlite_utils import Migrations

    steps = Migrations("watchkeeper")
    for name in _SCRIPTS:
        steps(name=name)(_step(name))
    return steps


def _step(name: str) -> Callable[[Database], None]:
    def apply(db: Database) -> None:
        _apply(name, db)

    return apply


def _apply(name: str, db: Database) -> None:
    for statement in statements(_SCRIPTS[name]):
        db.execute(statement)
        reach("migration.statement")
    if name == "first":
        db.table("facts").enable_fts(
            ["text"], create_triggers=True, tokenize="porter unicode61 remove_diacritics 2"
        )
    if name == "fourth":
        (keeps_messages,) = db.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'messages_are_immutable'"
        ).fetchone()
        db.execute("DROP TRIGGER messages_are_immutable")
        for _ in number_rows(db.conn):
            reach("migration.statement")
        db.execute(keeps_messages)


def note_all_applied(connection: Connection) -> None:
    """Write into a new database that it needs none of the migrations, as sqlite-utils does."""
    connection.execute(
        'CREATE TABLE "_sqlite_migrations" ("id" INTEGER PRIMARY KEY, "migration_set" TEXT, "name" TEXT,'
        ' "applied_at" TEXT)'
    )
    connection.execute(
        'CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name" ON "_sqlite_migrations"'
        ' ("migration_set", "name")'
    )
    connection.executemany(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('watchkeeper', ?,"
        " CURRENT_TIMESTAMP)",
        [(name,) for name in _SCRIPTS],
    )


def statements(script: str) -> list[str]:
    """Split a script at the semicolons that end statements (a trigger's body holds some that do not)."""
    found: list[str] = []
    piece = ""
    for part in script.split(";"):
        piece += part + ";"
        if sqlite3.complete_statement(piece):
            if piece.strip(" \n;"):
                found.append(piece.strip())
            piece = ""
    return found


# --- Numbering the rows of earlier schemas ------------------------------------------------------------------

# Rows of earlier schemas are numbered once, by the only order that they have: their times. A reply, its step, its
# tool calls and its model call are found exactly, by the event of that turn.

_OWN, _OF_AGENTS, _OF_PLANS = (
    "session_id = ?",
    "agent_id IN (SELECT id FROM agents WHERE session_id = ?)",
    "plan_id IN (SELECT id FROM plans WHERE session_id = ?)",
)
_TURN = "CASE WHEN json_valid(e.data) THEN json_extract(e.data, '$.turn') END"
_REPLY = (
    f"SELECT t.rowid, e.seq FROM events e JOIN {{table}} t ON t.agent_id = e.agent_id AND t.turn = {_TURN}"
    " WHERE e.session_id = ? AND e.kind = 'model.replied' AND t.commit_seq IS NULL{more}"
)
_REPLIES = {
    "messages": "SELECT m.rowid, s.commit_seq FROM agents a JOIN steps s ON s.agent_id = a.id JOIN messages m"
    " ON m.agent_id = s.agent_id AND m.seq = s.reply_seq WHERE a.session_id = ? AND m.commit_seq IS NULL AND"
    " s.commit_seq IS NOT NULL",
    "tool_calls": _REPLY.format(table="tool_calls", more=""),
    "model_calls": _REPLY.format(
        table="model_calls", more=" AND t.status = 'done' AND t.purpose IN ('turn', 'planner')"
    ),
}
_TIMES = {
    "plans": ("created_at", _OWN), "plan_revisions": ("at", _OF_PLANS), "tasks": ("created_at", _OWN),
    "agents": ("created_at", _OWN), "steps": ("started_at", _OF_AGENTS), "messages": ("created_at", _OF_AGENTS),
    "tool_calls": ("coalesce(started_at, ended_at, 0)", _OF_AGENTS),
    "model_calls": ("started_at + latency_seconds", _OWN), "observations": ("created_at", _OF_AGENTS),
    "views": ("created_at", _OF_AGENTS), "compactions": ("requested_at", _OWN),
    "memory_snapshots": ("last_updated", _OWN), "facts": ("created_at", _OWN), "outputs": ("created_at", _OWN),
    "handoffs": ("created_at", _OWN), "inbox": ("created_at", _OWN), "commands": ("created_at", _OWN),
    "approvals": ("created_at", _OWN), "budgets": ("created_at", _OWN),
}  # fmt: skip
"""Each table whose rows have `commit_seq`, when its rows were written, and whose they are."""


def number_rows(connection: Connection) -> Iterator[None]:
    """Give each row of a run that has no `commit_seq` one, and mark the sessions of such rows. Yields after each
    session.

    Events that follow each other with the same time are taken for one transaction, and a row for part of the
    first transaction that is not before its time. Other programs' sessions have too few events for that.
    """
    for (session_id,) in connection.execute(
        "SELECT DISTINCT session_id FROM events WHERE kind = 'model.replied' AND commit_seq IS NULL"
    ).fetchall():
        first_of = _number_events(connection, session_id)
        seqs, times = list(first_of), _rising(connection, session_id)
        steps = connection.execute(_REPLY.format(table="steps", more=""), (session_id,)).fetchall()
        _fill(connection, "steps", [(first_of[seq], row) for row, seq in steps])
        for table, sql in _REPLIES.items():
            rows = connection.execute(sql, (session_id,)).fetchall()
            _fill(connection, table, [(first_of.get(seq, seq), row) for row, seq in rows])
        after = seqs[-1] + 1
        for table, (time, owner) in _TIMES.items():
            rows = connection.execute(
                f"SELECT rowid, {time} FROM {table} WHERE {owner} AND commit_seq IS NULL",
                (session_id,),
            ).fetchall()
            places = [(bisect_left(times, _number(at)), row) for row, at in rows]
            found = [(first_of[seqs[place]] if place < len(seqs) else after, row) for place, row in places]
            _fill(connection, table, found)
        connection.execute("UPDATE sessions SET history_inferred = 1 WHERE id = ?", (session_id,))
        yield


def _number_events(connection: Connection, session_id: str) -> dict[int, int]:
    """Number the events of a session; the first event of the transaction of each."""
    rows = connection.execute(
        "SELECT seq, at FROM events WHERE session_id = ? ORDER BY seq", (session_id,)
    ).fetchall()
    first_of = {rows[0][0]: rows[0][0]}
    for (before, earlier), (seq, at) in pairwise(rows):
        first_of[seq] = first_of[before] if at == earlier else seq
    connection.executemany(
        "UPDATE events SET commit_seq = ? WHERE session_id = ? AND seq = ?",
        [(first, session_id, seq) for seq, first in first_of.items()],
    )
    return first_of


def _rising(connection: Connection, session_id: str) -> list[float]:
    """The times of a session's events, made never to go back."""
    times: list[float] = []
    for (at,) in connection.execute("SELECT at FROM events WHERE session_id = ? ORDER BY seq", (session_id,)):
        times.append(max(_number(at), times[-1]) if times else _number(at))
    return times


def _number(at: object) -> float:
    """A time; a damaged row may hold anything."""
    return float(at) if isinstance(at, int | float) else 0.0


def _fill(connection: Connection, table: str, found: list[tuple[int, int]]) -> None:
    connection.executemany(f"UPDATE {table} SET commit_seq = ? WHERE rowid = ?", found)
