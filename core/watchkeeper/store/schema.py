"""The catalogue of tables: the newest schema, and what each action on a session does with a table's rows.

A new database is made from it. Fork, export, prune, the integrity check and `store.history` ask it which rows belong
to a session, in which order they were written, what their columns hold and whether the action includes them. A
migration brings an older file to the same schema (`store.migrations`); a test compares the two.

Column names are the vocabulary of the whole program. JSON columns hold objects or lists as text. Times are seconds
since 1970 (UTC). `commit_seq` is the number of the first event of the transaction that inserted the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

REFERENCES = {
    **dict.fromkeys(
        ("agent_id", "parent_agent_id", "copied_from", "assigned_agent", "planner_agent_id", "starts_from"), "agents"
    ),
    **dict.fromkeys(("task_id", "depends_on"), "tasks"),
    **dict.fromkeys(("plan_id", "parent_plan_id", "current_plan_id"), "plans"),
    "session_id": "sessions", "approval_id": "approvals",
}  # fmt: skip
"""Columns that hold the id of another row, and its table."""

NUMBERS = {
    "tool_call_id": "tool_calls", "compaction_id": "compactions", "model_call_id": "model_calls",
    "superseded_by": "facts",
}  # fmt: skip
"""Columns that hold the number of a row of a numbered table."""

NUMBERS_IN_EVENTS = {
    "call": "tool_calls", "compaction": "compactions", "command": "commands", "fact": "facts",
}  # fmt: skip
"""What the data of an event call the number of a row."""

POINTERS = ("resume_token", "memory_blob_ref", "memory_delta_ref")
"""Columns of pointers, which contain the ids of agents or the digests of artifacts."""

VERBATIM = frozenset((
    "id", *REFERENCES, *POINTERS, "forked_from", "user_id", "origin", "status", "role", "kind", "purpose",
    "stop_reason", "price_status", "request_id", "trigger", "scope", "cause", "digest", "subject_digest",
    "input_digest", "inputs_hash", "tool_use_id", "decided_by", "granted_by", "revoked_by", "requested_by",
    "dedupe_key", "table_name", "row_id", "isolation",
))  # fmt: skip
"""Columns of text that hold ids, digests and words of this program. Any other text may contain a secret."""


Since = Literal["commit", "event", "message", "turn", "revision", "reported", "always", "replayed"]


@dataclass(frozen=True, slots=True)
class Table:
    """One table, and what each action on a session does with its rows.

    Attributes:
        definition: columns, then constraints, one a line, as `CREATE TABLE` has them.
        statements: what makes its indexes and triggers.
        owner: a row belongs to the session by `session_id`, or to its `agent`, `plan` or `task` by the id of that.
            Empty: the row belongs to no session.
        key: with its owner, this column identifies a row.
        order: the columns that give the order in which the rows of a session were written; by default owner and key.
        numbered: `id` is a number of this database. A copy of the row gets another one.
        json: columns that hold JSON, and its kind (`object`, `array`, `array text`; empty: any).
        json_text: the same for JSON that a document writes as text.
        outside: columns of text that name something outside the session, such as a folder or a model.
        local: columns that describe this database or machine, and nothing of the session: a document has none.
        since: from when on a row counts, for a fork: its `commit`, its `event`, its `message`, its `turn` or its plan's
            `revision`; `reported` by events of it; `always`; or `replayed`, where `store.history.RowsAt` has a rule.
        carried_by: the column of the message that carries the row's end. Without it, events tell of the end.
        later: columns that get their values at the row's end, and what they hold before it.
        forked: a fork copies the rows.
        exported: a document has the rows.
    """

    name: str
    definition: str
    statements: tuple[str, ...] = ()
    owner: str = "session"
    key: str = "id"
    order: str = ""
    numbered: bool = False
    json: dict[str, str] = field(default_factory=dict)
    json_text: dict[str, str] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    since: Since = "replayed"
    carried_by: str = ""
    later: Mapping[str, str | float | None] = field(default_factory=dict)
    forked: bool = True
    exported: bool = True

    @property
    def types(self) -> dict[str, str]:
        """The declared type of each column, in the order of the columns."""
        lines = (line.strip(" ,").split() for line in self.definition.strip().split("\n"))
        return {words[0]: words[1] for words in lines if words[0] not in ("PRIMARY", "UNIQUE")}

    @property
    def text(self) -> tuple[str, ...]:
        """Columns of text that a person, a model or a tool wrote: they may contain secrets."""
        known = {*VERBATIM, *self.json, *self.local}
        return tuple(name for name, kind in self.types.items() if kind == "TEXT" and name not in known)

    @property
    def with_ids(self) -> tuple[str, ...]:
        """Columns in whose text the ids of agents and tasks, and the digests of artifacts, may occur."""
        return tuple(
            name
            for name in self.types
            if name in {*self.text, *self.json, *POINTERS} and name not in self.outside
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row in a document: those written as they are, text, JSON."""
        left_out = {*self.text, *self.json, *self.local}
        return (*(name for name in self.types if name not in left_out), *self.text, *self.json)

    @property
    def of_session(self) -> str:
        """The SQL condition that a row belongs to the session `?`."""
        if self.owner == "session":
            return "session_id = ?"
        if self.has_unique_id and self.owner == "agent":
            return (
                f"id IN (SELECT t.id FROM agents a CROSS JOIN {self.name} t ON t.agent_id = a.id"
                " WHERE a.session_id = ?)"
            )
        return f"{self.owner}_id IN (SELECT id FROM {self.owner}s WHERE session_id = ?)"

    @property
    def in_order(self) -> str:
        """What an `ORDER BY` lists so that rows come in the order in which they were written."""
        return self.order or ("id" if self.has_unique_id else f"{self.owner}_id, {self.key}")

    @property
    def has_unique_id(self) -> bool:
        """Whether `id` alone identifies a row."""
        return self.definition.strip().startswith("id ")


SESSIONS = Table(
    "sessions",
    """
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
    errors INTEGER NOT NULL DEFAULT 0,
    deleted_at REAL,
    source TEXT,
    forked_from TEXT,
    forked_at_seq INTEGER,
    ordinal INTEGER,
    deletion_ordinal INTEGER,
    roles TEXT,
    history_inferred INTEGER,
    lease_until REAL,
    project TEXT,
    queued_at REAL,
    needs TEXT
    """,
    statements=(
        "CREATE INDEX sessions_queued ON sessions (queued_at) WHERE queued_at IS NOT NULL",
        "CREATE INDEX sessions_last_active ON sessions (last_active)",
        "CREATE INDEX sessions_ordinal ON sessions (ordinal)",
        "CREATE TRIGGER sessions_get_an_ordinal AFTER INSERT ON sessions WHEN new.ordinal IS NULL OR"
        " EXISTS (SELECT 1 FROM sessions other WHERE other.ordinal = new.ordinal AND other.id <>"
        " new.id) BEGIN UPDATE sessions SET ordinal = (SELECT coalesce(max(ordinal), 0) + 1 FROM"
        " sessions) WHERE id = new.id; END",
    ),
    order="ordinal",
    json={"settings": "object", "tags": "array", "roles": "array"},
    outside=("workspace", "model", "source", "project"),
    local=(
        "lease_epoch",
        "host_pid",
        "host_name",
        "deleted_at",
        "ordinal",
        "deletion_ordinal",
        "lease_until",
        "queued_at",
        "needs",
    ),
)

TABLES = (
    Table(
        "plans",
        """
        id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL REFERENCES sessions (id),
        goal TEXT NOT NULL,
        revision INTEGER NOT NULL DEFAULT 0,
        step_cursor INTEGER NOT NULL DEFAULT 0,
        task_queue TEXT NOT NULL DEFAULT '[]',
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        commit_seq INTEGER
        """,
        statements=("CREATE INDEX plans_session ON plans (session_id)",),
        order="coalesce(commit_seq, 0), id",
        json={"task_queue": "array"},
    ),
    Table(
        "plan_revisions",
        """
        plan_id TEXT NOT NULL REFERENCES plans (id),
        revision INTEGER NOT NULL,
        at REAL NOT NULL,
        reason TEXT NOT NULL,
        goal TEXT NOT NULL,
        task_queue TEXT NOT NULL,
        step_cursor INTEGER NOT NULL,
        plan_graph_snapshot TEXT NOT NULL,
        commit_seq INTEGER,
        PRIMARY KEY (plan_id, revision)
        """,
        owner="plan",
        key="revision",
        json={"task_queue": "array", "plan_graph_snapshot": "array"},
        since="revision",
    ),
    Table(
        "tasks",
        """
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
        commit_seq INTEGER,
        isolation TEXT,
        rerun_reason TEXT,
        UNIQUE (parent_plan_id, name)
        """,
        statements=("CREATE INDEX tasks_session ON tasks (session_id, position)",),
        order="position, id",
        json={"inputs_ref": "array", "expected_outputs": "array", "artifact_refs": "array"},
        outside=("model",),
    ),
    Table(
        "task_dependencies",
        """
        task_id TEXT NOT NULL REFERENCES tasks (id),
        depends_on TEXT NOT NULL REFERENCES tasks (id),
        commit_seq INTEGER,
        position INTEGER,
        PRIMARY KEY (task_id, depends_on)
        """,
        statements=(
            "CREATE TRIGGER task_dependencies_get_a_position AFTER INSERT ON task_dependencies WHEN"
            " new.position IS NULL BEGIN UPDATE task_dependencies SET position = (SELECT"
            " coalesce(max(position), 0) + 1 FROM task_dependencies WHERE task_id = new.task_id) WHERE"
            " task_id = new.task_id AND depends_on = new.depends_on; END",
        ),
        owner="task",
        key="depends_on",
        order="task_id, position",
        local=("position",),
    ),
    Table(
        "agents",
        """
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
        compactions INTEGER NOT NULL DEFAULT 0,
        parked_until REAL,
        commit_seq INTEGER,
        ordinal INTEGER,
        tools TEXT
        """,
        statements=(
            "CREATE INDEX agents_session ON agents (session_id, ordinal)",
            "CREATE INDEX agents_task ON agents (task_id)",
            "CREATE TRIGGER agents_get_an_ordinal AFTER INSERT ON agents WHEN new.ordinal IS NULL BEGIN"
            " UPDATE agents SET ordinal = (SELECT coalesce(max(ordinal), 0) + 1 FROM agents WHERE"
            " session_id = new.session_id) WHERE id = new.id; END",
        ),
        order="ordinal",
        json={"composition": "object"},
        json_text={"tools": "array"},
        outside=("model",),
        local=("ordinal",),
    ),
    Table(
        "model_calls",
        """
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
        request_id TEXT,
        commit_seq INTEGER
        """,
        statements=(
            "CREATE INDEX model_calls_agent ON model_calls (agent_id)",
            "CREATE INDEX model_calls_session ON model_calls (session_id)",
            "CREATE INDEX model_calls_estimated ON model_calls (session_id, agent_id) WHERE cost_usd IS"
            " NOT NULL AND (price_status = 'estimated' OR usage_exact = 0)",
        ),
        numbered=True,
        outside=("model",),
        since="commit",
    ),
    Table(
        "compactions",
        """
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
        ended_at REAL,
        tokens_spent INTEGER NOT NULL DEFAULT 0,
        commit_seq INTEGER
        """,
        statements=(
            "CREATE INDEX compactions_agent ON compactions (agent_id)",
            "CREATE INDEX compactions_session ON compactions (session_id)",
        ),
        numbered=True,
        json_text={"prepared": "object"},
        outside=("model",),
        since="reported",
        later={
            "status": "running",
            "reason": None,
            "messages_removed": 0,
            "tokens_after": None,
            "view_before": None,
            "view_after": None,
            "model_call_id": None,
            "cost_usd": None,
            "cache_tokens_invalidated": 0,
            "prepared": None,
            "seconds": None,
            "stall_seconds": 0.0,
            "tokens_spent": 0,
            "ended_at": None,
        },
    ),
    Table(
        "messages",
        """
        id INTEGER PRIMARY KEY,
        agent_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        tokens INTEGER NOT NULL,
        total_tokens INTEGER NOT NULL,
        created_at REAL NOT NULL,
        commit_seq INTEGER,
        UNIQUE (agent_id, seq)
        """,
        statements=(
            "CREATE TRIGGER messages_leave_the_index AFTER DELETE ON messages BEGIN INSERT OR IGNORE INTO"
            " messages_fts_removed SELECT old.id FROM message_index WHERE old.id <= indexed_through;"
            " UPDATE message_index SET removals = removals + 1, indexed_through = min(indexed_through,"
            " (SELECT ifnull(max(id), 0) FROM messages)); END",
            "CREATE TRIGGER messages_take_their_vectors_along AFTER DELETE ON messages BEGIN DELETE FROM"
            " embeddings WHERE kind = 'message' AND item = old.id; END",
            "CREATE TRIGGER messages_are_immutable BEFORE UPDATE ON messages BEGIN SELECT RAISE(ABORT,"
            " 'messages are immutable'); END",
        ),
        owner="agent",
        json={"content": "array text"},
        local=("id",),
        since="message",
    ),
    Table(
        "observations",
        """
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
        commit_seq INTEGER,
        ledger TEXT,
        PRIMARY KEY (agent_id, id)
        """,
        owner="agent",
        json={"citations": "array", "replaces": "array", "ledger": "object"},
        since="commit",
    ),
    Table(
        "views",
        """
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
        commit_seq INTEGER,
        pins TEXT,
        PRIMARY KEY (agent_id, version)
        """,
        owner="agent",
        key="version",
        json={"observations": "array", "elided": "array", "pins": "array"},
        since="commit",
    ),
    Table(
        "steps",
        """
        agent_id TEXT NOT NULL,
        turn INTEGER NOT NULL,
        reply_seq INTEGER NOT NULL,
        results_seq INTEGER,
        started_at REAL NOT NULL,
        ended_at REAL,
        commit_seq INTEGER,
        PRIMARY KEY (agent_id, turn)
        """,
        owner="agent",
        key="turn",
        since="turn",
        carried_by="results_seq",
        later={"results_seq": None, "ended_at": None},
    ),
    Table(
        "tool_calls",
        """
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
        runs INTEGER NOT NULL DEFAULT 0,
        edited_input TEXT,
        input_digest TEXT,
        commit_seq INTEGER
        """,
        statements=(
            "CREATE UNIQUE INDEX tool_calls_place ON tool_calls (agent_id, turn, position)",
            "CREATE INDEX tool_calls_open ON tool_calls (agent_id) WHERE result_seq IS NULL AND status IN"
            " ('running', 'unknown')",
        ),
        owner="agent",
        numbered=True,
        json={"result": "", "edited_input": "object"},
        since="turn",
    ),
    Table(
        "approvals",
        """
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
        decided_at REAL,
        folder TEXT,
        subject_digest TEXT,
        edited_input TEXT,
        scope TEXT,
        cause TEXT,
        note TEXT,
        commit_seq INTEGER,
        premises TEXT
        """,
        statements=("CREATE INDEX approvals_session ON approvals (session_id, status)",),
        order="coalesce(commit_seq, 0), tool_call_id, created_at",
        json={"edited_input": "object"},
        outside=("folder", "premises"),
        local=("premises",),
        since="reported",
        later={
            "status": "waiting",
            "decided_by": None,
            "reason": None,
            "decided_at": None,
            "scope": None,
            "edited_input": None,
        },
    ),
    # A fork begins without any: a person allowed them for one session.
    Table(
        "permission_grants",
        """
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
        """,
        statements=("CREATE INDEX permission_grants_session ON permission_grants (session_id)",),
        numbered=True,
        forked=False,
    ),
    Table(
        "memory_snapshots",
        """
        agent_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        memory_blob_ref TEXT NOT NULL,
        last_updated REAL NOT NULL,
        view_version INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        commit_seq INTEGER
        """,
        statements=("CREATE INDEX memory_snapshots_session ON memory_snapshots (session_id)",),
        owner="agent",
        key="agent_id",
        since="commit",
    ),
    Table(
        "outputs",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        agent_id TEXT,
        task_id TEXT,
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        digest TEXT NOT NULL REFERENCES artifacts (digest),
        created_at REAL NOT NULL,
        commit_seq INTEGER
        """,
        statements=(
            "CREATE INDEX outputs_session ON outputs (session_id, name)",
            "CREATE INDEX outputs_agent ON outputs (agent_id)",
        ),
        numbered=True,
        since="commit",
    ),
    Table(
        "handoffs",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        plan_id TEXT NOT NULL,
        task_id TEXT NOT NULL,
        assigned_agent TEXT NOT NULL,
        inputs_ref TEXT NOT NULL,
        memory_delta_ref TEXT,
        expected_outputs TEXT NOT NULL,
        created_at REAL NOT NULL,
        commit_seq INTEGER
        """,
        statements=("CREATE INDEX handoffs_session ON handoffs (session_id)",),
        numbered=True,
        json={"inputs_ref": "array", "expected_outputs": "array"},
        since="commit",
    ),
    Table(
        "inbox",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        created_at REAL NOT NULL,
        delivered_seq INTEGER,
        commit_seq INTEGER
        """,
        statements=(
            "CREATE INDEX inbox_waiting ON inbox (agent_id) WHERE delivered_seq IS NULL",
            "CREATE INDEX inbox_session ON inbox (session_id, agent_id)",
        ),
        numbered=True,
        json={"payload": "object"},
        since="commit",
        carried_by="delivered_seq",
        later={"delivered_seq": None},
    ),
    Table(
        "commands",
        """
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
        event_seq INTEGER,
        commit_seq INTEGER
        """,
        statements=(
            "CREATE INDEX commands_queued ON commands (session_id) WHERE status = 'queued'",
            "CREATE UNIQUE INDEX commands_dedupe ON commands (session_id, dedupe_key) WHERE dedupe_key IS"
            " NOT NULL",
            "CREATE INDEX commands_session ON commands (session_id)",
        ),
        numbered=True,
        json={"payload": "object"},
        since="reported",
    ),
    Table(
        "budgets",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        task_id TEXT,
        kind TEXT NOT NULL,
        amount REAL NOT NULL,
        reached_at REAL,
        created_at REAL NOT NULL,
        required REAL,
        commit_seq INTEGER
        """,
        statements=("CREATE UNIQUE INDEX budgets_scope ON budgets (session_id, ifnull(task_id, ''), kind)",),
        numbered=True,
        since="always",
        later={"reached_at": None, "required": None},
    ),
    Table(
        "facts",
        """
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
        created_at REAL NOT NULL,
        commit_seq INTEGER
        """,
        statements=(
            "CREATE INDEX facts_session ON facts (session_id, digest)",
            "CREATE INDEX facts_agent ON facts (agent_id)",
            "CREATE INDEX facts_digest ON facts (digest)",
            "CREATE INDEX facts_pinned ON facts (session_id) WHERE pinned = 1",
            "CREATE INDEX facts_workspace ON facts (workspace, pinned) WHERE scope = 'workspace'",
            "CREATE INDEX facts_superseded ON facts (superseded_by) WHERE superseded_by IS NOT NULL",
            'CREATE TRIGGER "facts_ai" AFTER INSERT ON "facts" BEGIN INSERT INTO "facts_fts" (rowid,'
            ' "text") VALUES (new.rowid, new."text"); END',
            'CREATE TRIGGER "facts_ad" AFTER DELETE ON "facts" BEGIN INSERT INTO "facts_fts"'
            ' ("facts_fts", rowid, "text") VALUES(\'delete\', old.rowid, old."text"); END',
            'CREATE TRIGGER "facts_au" AFTER UPDATE ON "facts" BEGIN INSERT INTO "facts_fts"'
            ' ("facts_fts", rowid, "text") VALUES(\'delete\', old.rowid, old."text"); INSERT INTO'
            ' "facts_fts" (rowid, "text") VALUES (new.rowid, new."text"); END',
            "CREATE TRIGGER facts_take_their_vectors_along AFTER DELETE ON facts BEGIN DELETE FROM"
            " embeddings WHERE kind = 'fact' AND item = old.id; END",
        ),
        numbered=True,
        json={"sources": "array"},
        outside=("workspace",),
        since="commit",
    ),
    Table(
        "state_changes",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        commit_seq INTEGER NOT NULL,
        table_name TEXT NOT NULL,
        row_id TEXT NOT NULL,
        old_values TEXT NOT NULL
        """,
        statements=("CREATE INDEX state_changes_session ON state_changes (session_id)",),
        numbered=True,
        json={"old_values": "object"},
        since="commit",
    ),
    Table(
        "events",
        """
        session_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        at REAL NOT NULL,
        kind TEXT NOT NULL,
        agent_id TEXT,
        task_id TEXT,
        data TEXT NOT NULL DEFAULT '{}',
        commit_seq INTEGER,
        PRIMARY KEY (session_id, seq)
        """,
        key="seq",
        json={"data": "object"},
        since="event",
    ),
    # Only imported sessions have some, and these are not forked.
    Table(
        "raw_records",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        agent_id TEXT,
        path TEXT NOT NULL,
        line INTEGER NOT NULL,
        kind TEXT NOT NULL,
        reason TEXT NOT NULL,
        data TEXT NOT NULL
        """,
        statements=("CREATE INDEX raw_records_session ON raw_records (session_id, path)",),
        numbered=True,
        outside=("path",),
        forked=False,
    ),
    # What a host shows while it works; what belongs to a machine; what was read of logs.
    Table(
        "live",
        """
        agent_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        activity TEXT NOT NULL,
        detail TEXT NOT NULL DEFAULT '',
        text TEXT NOT NULL DEFAULT '',
        since REAL NOT NULL,
        until REAL,
        updated_at REAL NOT NULL
        """,
        statements=("CREATE INDEX live_session ON live (session_id)",),
        key="agent_id",
        forked=False,
        exported=False,
    ),
    Table(
        "reservations",
        """
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
        """,
        statements=("CREATE INDEX reservations_session ON reservations (session_id)",),
        forked=False,
        exported=False,
    ),
    Table(
        "containments",
        """
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
        """,
        statements=("CREATE INDEX containments_session ON containments (session_id)",),
        forked=False,
        exported=False,
    ),
    Table(
        "tool_processes",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        containment_id INTEGER NOT NULL,
        agent_id TEXT,
        pid INTEGER NOT NULL,
        start_ticks INTEGER NOT NULL,
        created_at REAL NOT NULL,
        UNIQUE (containment_id, pid, start_ticks)
        """,
        statements=("CREATE INDEX tool_processes_session ON tool_processes (session_id)",),
        forked=False,
        exported=False,
    ),
    Table(
        "agent_programs",
        """
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
        commit_seq INTEGER,
        compaction TEXT
        """,
        statements=("CREATE INDEX agent_programs_session ON agent_programs (session_id)",),
        key="agent_id",
        forked=False,
        exported=False,
    ),
    Table(
        "program_turns",
        """
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        prompt_seq INTEGER NOT NULL,
        status TEXT NOT NULL,
        reason TEXT,
        started_at REAL NOT NULL,
        ended_at REAL,
        commit_seq INTEGER,
        kind TEXT NOT NULL DEFAULT 'prompt',
        record_end TEXT
        """,
        statements=(
            "CREATE INDEX program_turns_agent ON program_turns (agent_id, id)",
            "CREATE INDEX program_turns_session ON program_turns (session_id)",
        ),
        forked=False,
        exported=False,
    ),
    Table(
        "worktrees",
        """
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
        """,
        statements=("CREATE INDEX worktrees_session ON worktrees (session_id)",),
        key="task_id",
        json={"unresolved": "array text"},
        forked=False,
        exported=False,
    ),
    Table(
        "transcript_files",
        """
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
        """,
        statements=("CREATE INDEX transcript_files_session ON transcript_files (session_id)",),
        key="path",
        forked=False,
        exported=False,
    ),
    Table(
        "transcript_revisions",
        """
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
        """,
        statements=("CREATE INDEX transcript_revisions_session ON transcript_revisions (session_id)",),
        forked=False,
        exported=False,
    ),
    # Rows of the whole database. The first two are deleted with the session to which they led
    # (`store.prune`).
    Table(
        "transcript_records",
        """
        digest INTEGER PRIMARY KEY,
        agent_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        figures INTEGER
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "transcript_calls",
        """
        model_call_id INTEGER PRIMARY KEY,
        digest INTEGER NOT NULL
        """,
        statements=("CREATE INDEX transcript_calls_digest ON transcript_calls (digest)",),
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "artifacts",
        """
        digest TEXT PRIMARY KEY,
        size INTEGER NOT NULL,
        encoding TEXT NOT NULL,
        media_type TEXT NOT NULL,
        data BLOB NOT NULL,
        created_at REAL NOT NULL
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "rate_limits",
        """
        provider TEXT NOT NULL,
        model TEXT NOT NULL,
        until REAL NOT NULL,
        reason TEXT NOT NULL DEFAULT '',
        kind TEXT NOT NULL DEFAULT 'rate',
        noted_at REAL,
        PRIMARY KEY (provider, model)
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "quota_readings",
        """
        provider TEXT NOT NULL,
        account TEXT NOT NULL,
        scope TEXT NOT NULL,
        minutes INTEGER NOT NULL,
        used_percent REAL NOT NULL,
        resets_at REAL,
        read_at REAL NOT NULL,
        source TEXT NOT NULL,
        first_percent REAL NOT NULL,
        first_at REAL NOT NULL,
        alerted_percent REAL,
        PRIMARY KEY (provider, account, scope, minutes)
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "external_sessions",
        """
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
        """,
        statements=("CREATE INDEX external_sessions_imported ON external_sessions (imported_as)",),
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "external_questions",
        """
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
        """,
        statements=(
            "CREATE INDEX external_questions_session ON external_questions (program, program_session)",
        ),
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    # Where sessions may run, and what they may spend together.
    Table(
        "workers",
        """
        id TEXT PRIMARY KEY,
        host_name TEXT NOT NULL,
        pid INTEGER NOT NULL,
        labels TEXT NOT NULL DEFAULT '[]',
        slots INTEGER NOT NULL,
        status TEXT NOT NULL,
        started_at REAL NOT NULL,
        seen_at REAL NOT NULL
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "worker_refusals",
        """
        session_id TEXT NOT NULL,
        worker_id TEXT NOT NULL,
        reason TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (session_id, worker_id)
        """,
        key="worker_id",
        forked=False,
        exported=False,
    ),
    Table(
        "project_budgets",
        """
        project TEXT NOT NULL,
        kind TEXT NOT NULL,
        amount REAL NOT NULL,
        created_at REAL NOT NULL,
        PRIMARY KEY (project, kind)
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "embeddings",
        """
        kind TEXT NOT NULL,
        item INTEGER NOT NULL,
        model TEXT NOT NULL,
        vector BLOB NOT NULL,
        PRIMARY KEY (kind, item)
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "messages_fts_removed",
        """
        id INTEGER PRIMARY KEY
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "messages_fts_sessions",
        """
        first_id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
    Table(
        "message_index",
        """
        id INTEGER PRIMARY KEY CHECK (id = 1),
        indexed_through INTEGER NOT NULL,
        removals INTEGER NOT NULL DEFAULT 0
        """,
        owner="",
        key="",
        forked=False,
        exported=False,
    ),
)
"""Every table that holds rows of sessions, then those of the whole database. A table follows those to which it refers."""

BY_NAME = {table.name: table for table in (SESSIONS, *TABLES)}

_FULL_TEXT = (
    'CREATE VIRTUAL TABLE "facts_fts" USING FTS5 ("text", tokenize=\'porter unicode61 remove_diacritics 2\','
    ' content="facts")',
    "CREATE VIRTUAL TABLE messages_fts USING fts5 (text, content='', contentless_delete=1, detail=none,"
    " tokenize='unicode61 remove_diacritics 2')",
    "INSERT INTO messages_fts (messages_fts, rank) VALUES ('automerge', 8)",
    "INSERT INTO message_index (id, indexed_through) VALUES (1, 0)",
)


def owned(owner: str) -> tuple[Table, ...]:
    """The tables whose rows belong to a session (`session`), or to its agents, plans or tasks."""
    return tuple(table for table in TABLES if table.owner == owner)


def creation() -> Iterator[str]:
    """The statements that make an empty database of the newest schema."""
    for table in BY_NAME.values():
        yield f"CREATE TABLE {table.name} ({table.definition})"
        yield from table.statements
    yield from _FULL_TEXT
