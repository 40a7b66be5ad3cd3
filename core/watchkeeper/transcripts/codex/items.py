"""Response items as Anthropic content blocks.

Codex writes one item a line: a message, a piece of reasoning, a call, a call's output. Each becomes one
message.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from watchkeeper.transcripts.records import bindable, list_of, object_of, seconds, text_of

# --- Which thread a log is of, whose child it is, and which of its lines repeat another thread's history ---
#
# Every thread has a log of its own. A thread that was forked or spawned names the other in its `session_meta`,
# and its log begins with a copy of the other's history: lines with new timestamps as a rule, as they were in some
# versions, or no copy at all. Ids of threads and turns are UUIDs of version 7, which tell when they were made:
# a turn that is older than its thread is not the thread's own.

_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_OF_THE_PROGRAM = ("subagent", "guardian_review")
_ABOUT_TURN = ("internal_chat_message_metadata_passthrough", "metadata")
BURST_SECONDS = 1.0
"""A copied history is written at once; no model answers so soon."""
COPYING_SECONDS = 60.0
"""Later than this after its first line, a thread's lines are its own whatever the ids say."""


class Thread(NamedTuple):
    """What a `session_meta` says of its thread."""

    id: str
    parent: str | None
    """The thread that spawned it; None for one that a person began."""
    forked_from: str | None
    root: str | None
    """The thread at the top of its tree, where the log names it."""
    depth: int | None
    name: str | None
    role: str | None
    at: float | None
    history_ends: int | None = None
    """The ordinal of its own first line, where the log names it: those before are copies of another's history."""


def thread_of(meta: dict[str, Any]) -> Thread | None:
    """The thread that a `session_meta` names."""
    own = text_of(meta.get("id")) or text_of(meta.get("session_id"))
    if own is None:
        return None
    kind = object_of(meta.get("source")).get("subagent")
    spawn = object_of(object_of(kind).get("thread_spawn"))
    forked = text_of(meta.get("forked_from_id"))
    parent = text_of(spawn.get("parent_thread_id")) or text_of(meta.get("parent_thread_id"))
    root = text_of(meta.get("session_id"))
    if parent is None and (kind is not None or meta.get("thread_source") in _OF_THE_PROGRAM):
        # One that the program started by itself, for a review, say: its session is named, at least in later
        # versions.
        parent = forked or root
    parent = None if parent == own else parent
    depth, ends = spawn.get("depth"), meta.get("subagent_history_start_ordinal")
    other = kind if isinstance(kind, str) else object_of(kind).get("other")
    return Thread(
        own,
        parent,
        None if forked == own else forked,
        root if parent is not None and root != own else None,
        depth if type(depth) is int else None,
        text_of(spawn.get("agent_nickname"))
        or text_of(meta.get("agent_nickname"))
        or text_of(spawn.get("agent_path"))
        or ((text_of(other) or "").replace("_", " ").replace("compact", "compaction") or None),
        text_of(spawn.get("agent_role")) or text_of(meta.get("agent_role")) or text_of(other),
        seconds(meta.get("timestamp")),
        ends if type(ends) is int else None,
    )


def made_at(uuid: str | None) -> int | None:
    """Milliseconds since 1970 at which a UUID of version 7 was made."""
    match = _UUID7.fullmatch(uuid) if uuid else None
    return int(match[1] + match[2], 16) if match is not None else None


class Replay(Struct, array_like=True):
    """Distinguishes the copied lines at the beginning of a log from the thread's own. As JSON it is the list of
    its fields: part of a reader's saved state."""

    certain: bool = False
    """The other thread's own `session_meta` was copied."""
    thread_at: int | None = None
    """When the thread was made, by its id, in milliseconds."""
    created: float | None = None
    began: float | None = None
    turns: bool = False
    """Lines name their turns."""
    items: bool = False
    """Items of the history name their turns."""
    going: bool = False
    """Copied lines may still come."""
    ends: int | None = None
    """The ordinal of the thread's own first line, where the log names it."""

    @classmethod
    def of(cls, thread: Thread, began: float | None) -> Replay:
        """At the beginning of a thread's log."""
        going = (thread.parent or thread.forked_from) is not None
        return cls(
            thread_at=made_at(thread.id), created=thread.at, began=began,
            going=going or thread.history_ends is not None, ends=thread.history_ends,
        )  # fmt: skip

    def copied(self, kind: Any, payload: dict[str, Any], at: float | None, ordinal: int) -> bool:
        """Whether this line repeats the other thread's history; `ordinal`: its number in the log, from 0."""
        if not self.going:
            return False
        if self.ends is not None:
            self.going = ordinal < self.ends
            return self.going
        since = at - self.began if at is not None and self.began is not None else None
        if self.began is None or (since is not None and since > COPYING_SECONDS):
            self.going = False
            return False
        turn = made_at(_turn(payload))
        if turn is not None and self.thread_at is not None:
            self.turns = True
            self.items = self.items or kind == "response_item"
            if turn >= self.thread_at:
                self.going = False
            else:
                self.certain = True
            return self.going
        if at is not None and self.created is not None and at < self.created - BURST_SECONDS:
            self.certain = True
            return True
        if since is not None and since > BURST_SECONDS and not self.turns:
            self.going = False
            return False
        if self.items and turn is None and kind == "response_item" and payload.get("role") == "developer":
            return False  # a message to an agent of a team comes before its first turn, and is of none
        if self.certain:
            return True
        return kind == "event_msg" and payload.get("type") == "token_count"


def _turn(payload: dict[str, Any]) -> str | None:
    """The turn that a line belongs to."""
    named = (payload, *(object_of(payload.get(name)) for name in _ABOUT_TURN))
    return next((turn for each in named if (turn := text_of(each.get("turn_id")))), None)


# The types of record in the logs of Codex, from the first (2025-05, without an envelope) to version 0.162.

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

NOT_FOR_US = "known, not shown"
SAID_AGAIN = "repeated by a response item"
REPLAYED = "repeats the history of the parent thread"

REPETITIONS = frozenset({"agent_message", "agent_reasoning", "agent_reasoning_raw_content", "user_message"})
"""Events whose text a response item holds as well."""


Status = Literal["done", "error", "denied", "cancelled", "unknown"]

_DATA_URL = re.compile(r"data:(?P<kind>[\w.+-]+/[\w.+-]+);base64,(?P<data>.*)", re.DOTALL)
_EXIT_CODE = re.compile(r"(?:^|\n)(?:Exit code:|Process exited with code) (-?\d+)")
_ERRORS = (
    "execution error",
    "err:",
    "failed to parse function arguments",
    "unsupported call",
    "Script failed",
)
_FAILED = re.compile(
    r"(?:apply_patch|exec_command|shell|shell_command|unified_exec|write_stdin)(?: verification)? failed\b"
)
_HEAD_CHARS = 2_000
"""Where an output says how its command ended, it says so at its beginning."""

_INSTRUCTIONS = ("# AGENTS.md instructions", "You are Codex")
_OPENING = re.compile(r"<([A-Za-z][\w-]*)")


def is_injected(text: str) -> bool:
    """Whether Codex wrote a user's text itself: the project's instructions, or one element, as the
    environment is."""
    text = text.strip()
    opening = _OPENING.match(text)
    return text.startswith(_INSTRUCTIONS) or (opening is not None and text.endswith(f"</{opening[1]}>"))


def is_prompt(item: dict[str, Any], texts: list[str]) -> bool:
    """Whether a message is a person's. Later versions tell of each part what it is; of others, it is known by
    the texts."""
    kinds = list_of(
        object_of(item.get("internal_chat_message_metadata_passthrough")).get("content_item_kinds")
    )
    if item.get("role") != "user":
        return False
    if kinds and all(isinstance(kind, str) and kind for kind in kinds):
        return any(kind.startswith("user.") or kind == "unknown" for kind in kinds)
    return not texts or not all(map(is_injected, texts))


def blocks(content: Any) -> list[dict[str, Any]]:
    """Blocks of a message's content: a text, or a list of parts; what is not understood is shown as its
    JSON."""
    parts = [content] if isinstance(content, str | dict) else list_of(content)
    found = (
        _text(part) if isinstance(part, str) else _block(part)
        for part in parts
        if isinstance(part, str | dict)
    )
    return [block for block in found if block is not None]


def _block(part: dict[str, Any]) -> dict[str, Any] | None:
    kind = part.get("type")
    if kind in ("input_image", "image", "image_url", "inputImage"):
        return image(part.get("image_url") or part.get("imageUrl") or part.get("url") or part.get("data"))
    if isinstance(part.get("text"), str):
        return _text(part["text"])
    if isinstance(part.get("refusal"), str):
        return _text(part["refusal"])
    if kind == "encrypted_content":
        return _text("[encrypted]")
    return _text(json.dumps(part, ensure_ascii=False))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image(url: Any, media_type: str = "image/png") -> dict[str, Any] | None:
    """An image block of a data URL, a URL, or bare base64; None where there is no image."""
    if isinstance(url, dict):
        url = url.get("url")
    if not isinstance(url, str) or not url:
        return None
    match = _DATA_URL.match(url)
    if match is not None:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": match["kind"], "data": match["data"]},
        }
    if ":" in url[:12]:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": url}}


def thinking(item: dict[str, Any]) -> list[dict[str, Any]]:
    """What a reasoning item says: its text, else its summary, else that it is encrypted."""
    text = _joined(item.get("content")) or _joined(item.get("summary"))
    sealed = text_of(item.get("encrypted_content"))
    if text:
        block = {"type": "thinking", "thinking": text}
        return [block | {"signature": sealed}] if sealed else [block]
    return [{"type": "redacted_thinking", "data": sealed}] if sealed else []


def _joined(parts: Any) -> str:
    return "\n\n".join(
        part["text"]
        for part in list_of(parts)
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def arguments_of(value: Any) -> dict[str, Any]:
    """A call's arguments: JSON in a string as a rule; another text is under `input`."""
    if isinstance(value, dict):
        return value
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return {"input": value}
        return bindable(parsed) if isinstance(parsed, dict) else {"input": value}
    return {"input": value}


def output_of(value: Any) -> tuple[Any, Status]:
    """The content of a call's output as a `tool_result` holds it, and how the call ended as far as the output
    tells."""
    if isinstance(value, dict) and "content" in value and "type" not in value:
        content, status = output_of(value["content"])
        return content, "error" if value.get("success") is False else status
    if isinstance(value, str):
        return value, _status(value)
    if value is None:
        return "", "done"
    found = blocks(value)
    texts = [block["text"] for block in found if block["type"] == "text"]
    return (found or ""), _status(texts[0]) if texts else "done"


def _status(text: str) -> Status:
    """How a command ended, by the words with which Codex reports it."""
    head = text[:_HEAD_CHARS]
    if head.startswith(("aborted", "Script terminated")):
        return "cancelled"
    if head.startswith(("exec command rejected by user", "rejected by user", "patch rejected by user")):
        return "denied"
    if head.startswith(_ERRORS) or _FAILED.match(head):
        return "error"
    if head.startswith("{") and '"metadata"' in text:
        try:
            code = object_of(json.loads(text).get("metadata")).get("exit_code")
        except (ValueError, RecursionError, AttributeError):
            return "done"
        return "error" if isinstance(code, int) and code != 0 else "done"
    match = _EXIT_CODE.search(head)
    return "error" if match is not None and int(match[1]) != 0 else "done"


def stands_in(payload: dict[str, Any]) -> str:
    """What replaces the dropped messages: those that were put in their place, and the summary among
    them."""
    message = text_of(payload.get("message")) or ""
    said: list[str] = []
    for item in list_of(payload.get("replacement_history")):
        if not isinstance(item, dict):
            continue
        if item.get("type") == "message":
            texts = [block["text"] for block in blocks(item.get("content")) if block["type"] == "text"]
            said.append(f"{item.get('role') or 'user'}: " + "\n".join(texts))
        elif item.get("type") in ("compaction", "compaction_summary", "context_compaction"):
            said.append("[encrypted summary]")
        else:
            said.append(f"[{item.get('type')}]")
    if not said:
        return message
    whole = "\n\n".join(said)
    return whole if not message or message in whole else f"{whole}\n\n{message}"


# Events beside the response items: errors, and how calls ended where an event says more than the output.


def failed_call(kind: str, payload: dict[str, Any]) -> str | None:
    """The call that failed by what an event says; events come before the outputs."""
    if kind == "item_completed":
        payload = object_of(payload.get("item")) or payload
    result = object_of(payload.get("result"))
    failed = (
        (kind == "item_completed" and payload.get("status") == "failed")
        or (kind == "exec_command_end" and payload.get("exit_code") not in (0, None))
        or (kind in ("patch_apply_end", "dynamic_tool_call_response") and payload.get("success") is False)
        or (
            kind == "mcp_tool_call_end"
            and ("Err" in result or object_of(result.get("Ok")).get("isError") is True)
        )
    )
    return (text_of(payload.get("call_id")) or text_of(payload.get("id"))) if failed else None


def words_of(payload: dict[str, Any]) -> str:
    """What an error says."""
    inner = payload.get("error")
    deeper = text_of(inner) or text_of(object_of(inner).get("message"))
    return text_of(payload.get("message")) or text_of(payload.get("codex_error_info")) or deeper or "an error"
