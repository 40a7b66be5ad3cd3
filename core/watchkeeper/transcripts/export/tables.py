"""Which tables make up a session, and what each of their columns is: the schema of the JSON form
(docs/export.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

FORMAT = "watchkeeper-session"
VERSION = 1
"""Raised when a reader of an earlier version would misread a document."""

INERT = "export:"
"""Stands before origin and source of an imported session, and before the workspace of its facts: what a file
says of itself neither runs here nor speaks in later sessions, and no log is added to it. Taken off again when
such a session is exported."""
INERT_OF_SESSION = ("origin", "source")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a session's rows."""

    name: str
    keys: tuple[str, ...]
    """Columns that identify, order or count: written as they are."""
    text: tuple[str, ...] = ()
    """Columns of text that somebody wrote: secrets are taken out of them."""
    json: tuple[str, ...] = ()
    """Columns that hold JSON as text: a document has their values, without secrets."""
    left_out: tuple[str, ...] = ()
    """Columns that say something of this database or machine, and nothing of the session."""
    owner: str = "session"
    """How a row is the session's: by its `session_id`, or that of its `agent_id`, `plan_id` or `task_id`."""
    numbered: bool = False
    """Its `id` is a number of the database. It is kept where it is free, and moved (with what points at it)
    where not."""
    points_at: dict[str, str] = field(default_factory=dict)
    """Columns that hold the number of a row of another table."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.text, *self.json)


_USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_TOTALS = (*_USAGE, "cost_usd", "unpriced_calls", "model_calls", "retries", "errors")

SESSION = Table(
    "sessions",
    ("id", "user_id", "origin", "status", "created_at", "last_active", "ended_at", "hosted_seconds", "current_plan_id",
     "planner_agent_id", "event_seq", "forked_from", "forked_at_seq", *_TOTALS),
    text=("goal", "title", "workspace", "model", "status_reason", "source"),
    json=("settings", "tags", "roles"),
    left_out=("lease_epoch", "host_pid", "host_name", "deleted_at", "ordinal", "deletion_ordinal"),
)  # fmt: skip
"""The session's own row. A trash can, a lease and a host belong to the database, not to the session."""

TABLES: tuple[Table, ...] = (
    Table(
        "plans",
        ("id", "session_id", "revision", "step_cursor", "created_at", "updated_at", "commit_seq"),
        text=("goal",),
        json=("task_queue",),
    ),
    Table(
        "plan_revisions",
        ("plan_id", "revision", "at", "step_cursor", "commit_seq"),
        text=("reason", "goal"),
        json=("task_queue", "plan_graph_snapshot"),
        owner="plan",
    ),
    Table(
        "tasks",
        ("id", "session_id", "parent_plan_id", "position", "role", "status", "attempt", "assigned_agent", "resume_token",
         "starts_from", "inputs_hash", "failures", "created_at", "started_at", "ended_at", "commit_seq"),
        text=("name", "title", "instructions", "model", "status_reason", "result", "error"),
        json=("inputs_ref", "expected_outputs", "artifact_refs"),
    ),
    Table("task_dependencies", ("task_id", "depends_on", "commit_seq"), owner="task"),
    Table(
        "agents",
        ("id", "session_id", "parent_agent_id", "task_id", "copied_from", "role", "attempt", "status", "turn",
         "view_version", "last_seq", "message_tokens", "context_limit", "context_tokens", "created_at", "started_at",
         "ended_at", "last_active", "active_seconds", *_TOTALS, "compactions", "parked_until", "commit_seq"),
        text=("name", "model", "current_goal", "system", "status_reason"),
        json=("composition",),
    ),
    Table(
        "messages",
        ("agent_id", "seq", "role", "tokens", "total_tokens", "created_at", "commit_seq"),
        json=("content",),
        left_out=("id",),
        owner="agent",
    ),
    Table("steps", ("agent_id", "turn", "reply_seq", "results_seq", "started_at", "ended_at", "commit_seq"), owner="agent"),
    Table(
        "tool_calls",
        ("id", "session_id", "agent_id", "turn", "position", "seq", "tool_use_id", "idempotent", "status", "result_seq",
         "is_error", "started_at", "ended_at", "runs", "input_digest", "commit_seq"),
        text=("name",),
        json=("result", "edited_input"),
        owner="agent",
        numbered=True,
    ),
    Table(
        "model_calls",
        ("id", "session_id", "agent_id", "turn", "purpose", "status", "stop_reason", *_USAGE, "estimated_prompt_tokens",
         "usage_exact", "cost_usd", "price_status", "started_at", "latency_seconds", "first_token_seconds",
         "waited_seconds", "retries", "request_id", "commit_seq"),
        text=("model", "error"),
        numbered=True,
    ),
    Table(
        "observations",
        ("agent_id", "id", "kind", "level", "tokens", "first_seq", "last_seq", "provisional", "status", "compaction_id",
         "created_at", "commit_seq"),
        text=("text",),
        json=("citations", "replaces"),
        owner="agent",
        points_at={"compaction_id": "compactions"},
    ),
    Table(
        "views",
        ("agent_id", "version", "parent", "verbatim_from", "reason", "tokens", "compaction_id", "created_at", "commit_seq"),
        json=("observations", "elided"),
        owner="agent",
        points_at={"compaction_id": "compactions"},
    ),
    Table(
        "compactions",
        ("id", "session_id", "agent_id", "trigger", "status", "high_water", "messages_removed", "tokens_before",
         "tokens_after", "view_before", "view_after", "model_call_id", "cost_usd", "stall_seconds",
         "cache_tokens_invalidated", "tokens_spent", "seconds", "requested_at", "ended_at", "commit_seq"),
        text=("instructions", "reason", "model", "prepared"),
        numbered=True,
        points_at={"model_call_id": "model_calls"},
    ),
    Table(
        "memory_snapshots",
        ("agent_id", "session_id", "memory_blob_ref", "last_updated", "view_version", "last_seq", "turn", "tokens", "commit_seq"),
        owner="agent",
    ),
    Table(
        "facts",
        ("id", "session_id", "agent_id", "scope", "kind", "digest", "confidence", "pinned", "superseded_by", "created_at", "commit_seq"),
        text=("workspace", "text"),
        json=("sources",),
        numbered=True,
        points_at={"superseded_by": "facts"},
    ),
    Table(
        "outputs",
        ("id", "session_id", "agent_id", "task_id", "kind", "digest", "created_at", "commit_seq"),
        text=("name",),
        numbered=True,
    ),
    Table(
        "handoffs",
        ("id", "session_id", "plan_id", "task_id", "assigned_agent", "memory_delta_ref", "created_at", "commit_seq"),
        json=("inputs_ref", "expected_outputs"),
        numbered=True,
    ),
    Table(
        "inbox",
        ("id", "session_id", "agent_id", "kind", "created_at", "delivered_seq", "commit_seq"),
        json=("payload",),
        numbered=True,
    ),
    Table("events", ("session_id", "seq", "at", "kind", "agent_id", "task_id"), json=("data",)),
    Table(
        "commands",
        ("id", "session_id", "kind", "agent_id", "task_id", "dedupe_key", "status", "requested_by", "created_at",
         "applied_at", "event_seq", "commit_seq"),
        text=("result",),
        json=("payload",),
        numbered=True,
    ),
    Table(
        "approvals",
        ("id", "session_id", "agent_id", "task_id", "tool_call_id", "status", "decided_by", "created_at", "decided_at",
         "subject_digest", "scope", "cause", "commit_seq"),
        text=("tool", "question", "reason", "folder", "note"),
        json=("edited_input",),
        points_at={"tool_call_id": "tool_calls"},
    ),
    Table(
        "permission_grants",
        ("id", "session_id", "approval_id", "granted_by", "created_at", "revoked_by", "revoked_at", "commit_seq"),
        text=("tool", "pattern"),
        numbered=True,
    ),
    Table(
        "budgets",
        ("id", "session_id", "task_id", "kind", "amount", "required", "reached_at", "created_at", "commit_seq"),
        numbered=True,
    ),
    Table(
        "raw_records",
        ("id", "session_id", "agent_id", "line", "kind"),
        text=("path", "reason", "data"),
        numbered=True,
    ),
)  # fmt: skip
"""The rows that belong to a session, in the order in which a document has them; after them, its artifacts."""

BY_NAME = {table.name: table for table in TABLES}

NOT_EXPORTED = frozenset(
    {
        "artifacts",
        "live",
        "rate_limits",
        "transcript_files",
        "transcript_records",
        "transcript_calls",
        "message_index",
        "embeddings",
        "reservations",
        "containments",
        "tool_processes",
        "transcript_revisions",
    }
)
"""Written in another way (artifacts), of the moment only, of the machine, or made from the rest."""

NUMBERS_IN_EVENTS = {
    "compaction": "compactions",
    "fact": "facts",
    "command": "commands",
    "call": "tool_calls",
}
"""What an event's data calls the number of a row."""
