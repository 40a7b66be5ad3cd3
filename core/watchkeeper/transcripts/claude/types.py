"""The types of record in Claude Code's logs, as seen up to version 2.1.220."""

from __future__ import annotations

CONVERSATION = frozenset({"user", "assistant", "system", "summary", "custom-title", "ai-title", "progress"})
"""What is understood, at least in part."""

HOUSEKEEPING = frozenset(
    {
        "agent-name", "agent-setting", "atis-latch", "attachment", "attribution-snapshot", "bridge-session",
        "content-replacement", "file-history-snapshot", "frame-link", "last-prompt", "mode", "permission-mode", "pr-link",
        "queue-operation", "relocated", "result", "saved_hook_context", "speculation-accept", "started", "tag", "teleported-from",
        "worktree-state",
    }
)  # fmt: skip
"""What is known, and of no use here: kept as it is."""

SPAWNING_TOOLS = frozenset({"Task", "Agent"})
"""Tools that start a sub-agent; the second name came with version 2.1.63."""

SYNTHETIC = "<synthetic>"
"""The model of a message that Claude Code made itself: an error, an interruption."""
