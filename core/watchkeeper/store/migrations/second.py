"""Schema 2: deleting with a way back, forks, other programs' transcripts, message ids that outlive a vacuum,
an index of words."""

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
