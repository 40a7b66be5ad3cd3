"""Schema 3: order without clocks, approvals shown whole, limits that park, reservations, containment,
revisions of imports.

Old sessions are numbered in the order of their insertion: that is what `rowid` says in SQLite, the only
engine that has files of earlier schemas. Every row that a run's transaction writes has `commit_seq`, the
number of the first event that its transaction may write; rows of an earlier schema have none.
"""

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
