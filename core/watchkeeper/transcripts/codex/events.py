"""Events beside the response items: errors, and how calls ended where an event tells it better than the
output."""

from __future__ import annotations

from typing import Any

from watchkeeper.transcripts.codex.items import Status
from watchkeeper.transcripts.jsontext import text_of

OUTCOMES_KEPT = 200


class OutcomeBook:
    """Calls that failed by what an event said; events come before the outputs."""

    def __init__(self, failed: list[str] | None = None) -> None:
        self.failed = list(failed or [])

    def event(self, kind: str, payload: dict[str, Any]) -> None:
        """Take note of a call's end."""
        item = payload.get("item")
        if kind == "item_completed" and isinstance(item, dict):
            payload = item
        call_id = text_of(payload.get("call_id")) or text_of(payload.get("id"))
        if call_id is None or not _failed(kind, payload):
            return
        self.failed = [*(each for each in self.failed if each != call_id), call_id][-OUTCOMES_KEPT:]

    def of(self, call_id: str, status: Status) -> Status:
        """How a call ended, of which the output tells `status`."""
        if call_id not in self.failed:
            return status
        self.failed.remove(call_id)
        return "error" if status == "done" else status


def _failed(kind: str, payload: dict[str, Any]) -> bool:
    if kind == "item_completed":
        return payload.get("status") == "failed"
    if kind == "exec_command_end":
        return payload.get("exit_code") not in (0, None)
    if kind in ("patch_apply_end", "dynamic_tool_call_response"):
        return payload.get("success") is False
    result = payload.get("result")
    if kind != "mcp_tool_call_end" or not isinstance(result, dict):
        return False
    ok = result.get("Ok")
    return "Err" in result or (isinstance(ok, dict) and ok.get("isError") is True)


def words_of(payload: dict[str, Any]) -> str:
    """What an error says."""
    inner = payload.get("error")
    deeper = text_of(inner.get("message")) if isinstance(inner, dict) else text_of(inner)
    return text_of(payload.get("message")) or text_of(payload.get("codex_error_info")) or deeper or "an error"
