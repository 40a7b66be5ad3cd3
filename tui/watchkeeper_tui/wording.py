"""Events put into words: one line each, whatever their kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from watchkeeper.records.text import program_event
from watchkeeper.store.snapshot import EventFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.result_words import result_words
from watchkeeper_tui.sanitize import clip, sanitize

_ROLES = {
    "failed": "failed",
    "error": "failed",
    "refused": "failed",
    "denied": "failed",
    "rejected": "failed",
    "unknown": "failed",
    "reached": "failed",
    "done": "done",
    "applied": "done",
    "approved": "done",
    "paused": "paused",
    "parked": "slot",
    "cancelled": "paused",
    "abandoned": "paused",
    "dropped": "paused",
    "stale": "retrying",
    "retrying": "retrying",
    "rate_limited": "retrying",
    "asked": "waiting",
    "waiting": "waiting",
    "running": "working",
    "working": "working",
    "created": "working",
    "started": "working",
    "replied": "assistant",
    "remembered": "kind_facts",
    "saved": "kind_observations",
    "delivered": "user",
}
_KIND_ROLES = {
    "plan": "accent",
    "compaction": "compaction",
    "memory": "compaction",
    "tool": "tool",
    "approval": "waiting",
}
_WORDS = {
    "session": "run",
    "compaction": "compact",
    "artifact": "output",
    "approval": "asks",
    "command": "control",
    "assistant": "reply",
}
_SAID = (
    "text",
    "message",
    "question",
    "summary",
    "title",
    "error",
    "result",
    "reason",
    "goal",
    "detail",
    "name",
)


@dataclass(frozen=True, slots=True)
class EventWords:
    """The display text of an event. Sanitised."""

    kind: str
    role: str
    text: str


def event_words(event: EventFacts) -> EventWords:
    """The display text of an event."""
    subject, _, verb = event.kind.partition(".")
    data = _data(event.data)
    role = _ROLES.get(verb) or _KIND_ROLES.get(subject, "muted")
    if subject == "tool" and verb in ("done", "started"):
        role = "tool"
    if data.get("is_error") in (True, 1):
        role = "failed"
    text = _text(subject, verb, data)
    return EventWords(
        sanitize(_WORDS.get(subject, subject))[:8], role, clip(" ".join(sanitize(text).split()), 400)
    )


def question_words(tool: str, question: str) -> str:
    """A question without the tool's name, which is shown before it. Not sanitised."""
    return question.removeprefix(f"{tool} ")


def _text(subject: str, verb: str, data: dict[str, Any]) -> str:
    if subject == "plan" and "revision" in data:
        return f"r{data['revision']}: {_one(data, 'reason') or 'revised'}" + _suffix(data, "tasks", "task")
    if subject == "tool":
        return _tool(verb, data)
    if subject == "model":
        return _model(verb, data)
    if subject == "host":
        return f"{verb} by resume" if data.get("resume") else verb
    if subject == "artifact":
        return f"{verb} {_one(data, 'name')} ({_one(data, 'bytes')} bytes)"
    if subject == "inbox":
        items = data.get("items")
        return (
            "notified: " + ", ".join(str(item).replace("_", " ") for item in items)
            if isinstance(items, list)
            else verb
        )
    if subject == "memory" and "fact_kind" in data:
        return f"{verb} {_one(data, 'fact_kind')} {_one(data, 'fact')}{_said(data, 'text', ': ')}"
    if subject == "memory" and isinstance(data.get("messages"), list):
        named = ", ".join(f"#{seq}" for seq in data["messages"][:12] if isinstance(seq, int))
        return f"{verb.replace('_', ' ')} {named}"
    if subject == "compaction":
        return _compaction(verb, data)
    if subject == "command":
        done = "applied" if verb == "applied" else verb
        return f"{_one(data, 'command_kind')} {done}" + _said(data, "result", " — ")
    if subject == "approval":
        asked = question_words(_one(data, "tool"), _one(data, "question"))
        return f"{verb} {_one(data, 'tool')}{': ' if asked else ''}{asked}{_said(data, 'reason', ' — ')}"
    if subject == "task":
        return f"{verb} {_quoted(data, 'title')}{_said(data, 'reason', ' — ')}"
    if subject == "agent" and verb == "created":
        model = formatting.model_name(_one(data, "model"))
        return f"created as {_one(data, 'role')}" + (f" on {model}" if model else "")
    if subject == "program":
        return program_event(verb, data)
    if subject in ("agent", "session"):
        return verb.replace("_", " ") + _said(data, "reason", " — ")
    return _other(verb, data)


def _tool(verb: str, data: dict[str, Any]) -> str:
    name = _one(data, "tool") or _one(data, "name")
    said = result_words(_one(data, "preview") or _one(data, "result"))
    if verb == "started":
        return f"{name} …"
    if verb == "unknown":
        return f"{name}: interrupted, outcome unknown"
    arrow = {"done": "→", "error": "✗"}.get(verb, verb)
    return (
        f"{name}{_said(data, 'input', ' ')} {arrow} {said}".strip()
        if said or verb != "done"
        else f"{name} done"
    )


def _model(verb: str, data: dict[str, Any]) -> str:
    if verb != "replied":
        return verb + _said(data, "error", ": ")
    tools = data.get("tools")
    calls = "calls " + ", ".join(str(tool) for tool in tools) if isinstance(tools, list) and tools else ""
    return " · ".join(part for part in (f"turn {_one(data, 'turn')}", calls, _one(data, "preview")) if part)


def _compaction(verb: str, data: dict[str, Any]) -> str:
    before, after = data.get("tokens_before"), data.get("tokens_after")
    text = verb.replace("_", " ")
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        text += (
            f" {formatting.tokens(before)} → {formatting.tokens(after)} {formatting.change(before, after)}"
        )
    elif isinstance(data.get("high_water"), int):
        text += f" up to #{data['high_water']}"
    return text + _said(data, "reason", " — ")


def _other(verb: str, data: dict[str, Any]) -> str:
    parts = [verb.replace("_", " ")] if verb else []
    for key in _SAID:
        if data.get(key) not in (None, "", [], {}):
            parts.append(_one(data, key))
    if len(parts) <= 1:
        parts += [f"{key}={_flat(value)}" for key, value in data.items() if value not in (None, "", [], {})][
            :6
        ]
    return " ".join(parts)


def _data(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"text": text}
    return value if isinstance(value, dict) else {"text": value}


def _flat(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)[:400]


def _one(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return "" if value is None else _flat(value)[:400]


def _said(data: dict[str, Any], key: str, before: str) -> str:
    value = _one(data, key)
    return before + value if value else ""


def _quoted(data: dict[str, Any], key: str) -> str:
    value = _one(data, key)
    return f"“{value}”" if value else ""


def _suffix(data: dict[str, Any], key: str, noun: str) -> str:
    value = data.get(key)
    return f" ({formatting.plural(value, noun)})" if isinstance(value, int) else ""
