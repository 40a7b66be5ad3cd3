"""Schema 1: sessions, plans, agents and their memory, artifacts, events, commands, budgets."""

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
