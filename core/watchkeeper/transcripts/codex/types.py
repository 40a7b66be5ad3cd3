"""The types of record in Codex's logs, as seen from the first (2025-05, without an envelope) up to version
0.162."""

from __future__ import annotations

LINES = frozenset(
    {
        "compacted", "event_msg", "inter_agent_communication", "inter_agent_communication_metadata", "realtime_item",
        "response_item", "retained_context", "security_risk_score", "session_meta", "token_usage_record", "turn_context",
        "world_state",
    }
)  # fmt: skip
"""`type` of a line, from version 0.32 on."""

ITEMS = frozenset(
    {
        "additional_tools", "agent_message", "compaction", "compaction_summary", "configuration_update",
        "context_compaction", "custom_tool_call", "custom_tool_call_output", "function_call", "function_call_output",
        "ghost_snapshot", "image_generation_call", "local_shell_call", "local_shell_call_output", "mcp_tool_call_output",
        "message", "reasoning", "tool_search_call", "tool_search_output", "web_search_call",
    }
)  # fmt: skip
"""`type` of a response item; in the oldest logs, of a line."""

EVENTS = frozenset(
    {
        "agent_message", "agent_reasoning", "agent_reasoning_raw_content", "agent_reasoning_section_break",
        "apply_patch_approval_request", "background_event", "collab_agent_interaction_begin", "collab_agent_interaction_end",
        "collab_agent_spawn_begin", "collab_agent_spawn_end", "collab_close_begin", "collab_close_end", "collab_resume_begin",
        "collab_resume_end", "collab_waiting_begin", "collab_waiting_end", "context_compacted", "deprecation_notice",
        "dynamic_tool_call_request", "dynamic_tool_call_response", "entered_review_mode", "error", "exec_approval_request",
        "exec_command_begin", "exec_command_end", "exited_review_mode", "guardian_assessment", "guardian_warning",
        "hook_completed", "hook_started", "image_generation_begin", "image_generation_end", "item_completed", "item_started",
        "mcp_startup_complete", "mcp_startup_update", "mcp_tool_call_begin", "mcp_tool_call_end", "model_reroute",
        "patch_apply_begin", "patch_apply_end", "plan_update", "request_user_input", "session_configured",
        "shutdown_complete", "stream_error", "sub_agent_activity", "task_complete", "task_started", "thread_goal_updated",
        "thread_name_updated", "thread_rolled_back", "thread_settings_applied", "token_count", "turn_aborted",
        "turn_complete", "turn_diff", "turn_started", "undo_completed", "undo_started", "user_message",
        "view_image_tool_call", "warning", "web_search_begin", "web_search_end",
    }
)  # fmt: skip
"""`type` of an event. Most say again what a response item says."""

NOT_FOR_US = "known, and of no use here"
SAID_AGAIN = "said again by a response item"
REPLAYED = "repeats the history of the thread it was forked from"

REPETITIONS = frozenset({"agent_message", "agent_reasoning", "agent_reasoning_raw_content", "user_message"})
"""Events whose text a response item holds as well."""
