"""OpenCode's earliest messages: each with its parts inside its own file, as its later versions rewrite them.

In the first form (before 0.2) all that is known of a message stands in `metadata`, and calls are
`tool-invocation` parts; in the second, only the parts stand inside.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.transcripts.jsontext import text_of, write
from watchkeeper.transcripts.opencode.partreading import Part

Value = dict[str, Any]
_STATUS = {"partial-call": "pending", "call": "running", "result": "completed"}


def info_of(value: Value) -> Value:
    """What a message's file says of it besides its parts, in the later form."""
    info = {name: each for name, each in value.items() if name != "parts"}
    about = value.get("metadata")
    if not isinstance(about, dict) or "time" in value:
        return info
    answer = about.get("assistant")
    told = answer if isinstance(answer, dict) else {}
    info |= {
        name: told[name] for name in ("cost", "tokens", "modelID", "providerID", "summary") if name in told
    }
    info |= {name: about[name] for name in ("sessionID", "time", "error") if name in about}
    return info


def parts_of(message_id: str, value: Value, *, changed: bool) -> list[Part]:
    """The parts inside a message's file; none where they have files of their own."""
    inside = value.get("parts")
    about = value.get("metadata")
    tools = about.get("tool") if isinstance(about, dict) else None
    found = []
    for place, part in enumerate(inside if isinstance(inside, list) else ()):
        if not isinstance(part, dict):
            part = {"type": "?", "value": part}
        elif part.get("type") == "tool-invocation":
            part = _call(part, tools if isinstance(tools, dict) else {})
        elif part.get("type") == "tool" and "callID" not in part:
            part = part | {"callID": part.get("id")}
        found.append(Part(f"{message_id}.{place}", write(part)[0].encode("utf-8", "replace"), part, changed))
    return found


def _call(part: Value, tools: Value) -> Value:
    """A call of the first form; how long it took stands beside the message's parts."""
    called = part.get("toolInvocation")
    called = called if isinstance(called, dict) else {}
    call_id = text_of(called.get("toolCallId"))
    told = tools.get(call_id or "")
    told = told if isinstance(told, dict) else {}
    state: Value = {
        "status": _STATUS.get(str(called.get("state"))),
        "input": called.get("args"),
        "metadata": told,
    }
    if isinstance(told.get("time"), dict):
        state["time"] = told["time"]
    if "result" in called:
        state |= (
            {"status": "error", "error": called["result"]}
            if told.get("error") is True
            else {"output": called["result"]}
        )
    return {"type": "tool", "callID": call_id, "tool": called.get("toolName"), "state": state}
