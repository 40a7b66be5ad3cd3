"""The logs of Qwen Code: `~/.qwen/projects/<project>/chats/<session>.jsonl`, read line by line.

What is known of the format is in docs/log-formats.md. A record names its session and its parent, so that a log is a tree. Its
messages hold the parts of Google's API, and their usage counts as that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import field

from watchkeeper.transcripts.branches import Branches
from watchkeeper.transcripts.google_parts import Tokens, parts_as_blocks, to_dos
from watchkeeper.transcripts.records import (
    MAIN,
    NOT_FOR_US,
    UNKNOWN_TYPE,
    ImportedAgent,
    ImportedCompaction,
    ImportedMessage,
    JsonReader,
    ModelCall,
    Program,
    Raw,
    Record,
    Rewind,
    Session,
    Source,
    Summary,
    ToolCall,
    ToolResult,
    count_of,
    first_object,
    list_of,
    object_of,
    parse,
    seconds,
    text_of,
)

_TYPES = frozenset({"user", "assistant", "tool_result", "system"})
_COMPRESSED = (1, "1", "completed", "COMPRESSED", None)
"""States of a compression that changed the context; the others failed, or did nothing."""


class QwenReader(JsonReader):
    """A `LineReader`. Its fields are its saved state."""

    tree: Branches = field(default_factory=Branches)

    def read(self, line: int, record: dict[str, Any]) -> list[Record]:
        kind, at = text_of(record.get("type")) or "?", seconds(record.get("timestamp"))
        found: list[Record] = []
        if not self.opened:
            self.session = text_of(record.get("sessionId")) or self.session
            forked = text_of(object_of(record.get("forkedFrom")).get("sessionId"))
            folder, version = text_of(record.get("cwd")), text_of(record.get("version"))
            found.append(Session(self.session, workspace=folder, version=version, forked_from=forked))
        agent = text_of(record.get("agentId")) if record.get("isSidechain") is True else None
        if agent is not None:
            name = text_of(record.get("agentName"))
            found.append(ImportedAgent(agent, MAIN, name=name, role=name, at=at))
        uid, who = text_of(record.get("uuid")) or f"{self.session}:{line}", agent or MAIN
        if "parentUuid" in record and agent is None:
            found += self.tree.go_to(MAIN, text_of(record["parentUuid"]), at)
        begun = len(found)
        if kind in ("user", "assistant", "tool_result"):
            self._message(kind, record, who, uid, at, found)
        elif kind == "system":
            self._system(record, who, uid, at, found)
        if len(found) == begun:
            known = f"{kind}/{record.get('subtype')}" if kind == "system" else kind
            found.append(Raw(known[:80], NOT_FOR_US if kind in _TYPES else UNKNOWN_TYPE))
        is_message = any(type(each) is ImportedMessage for each in found)
        if not is_message:  # nothing else names the line
            found = [
                each._replace(uid=f"{uid}.{n}") if type(each) is Rewind else each
                for n, each in enumerate(found)
            ]
        if agent is None:
            self.tree.add(uid, is_message=is_message)
        return found

    def _message(
        self, kind: str, record: dict[str, Any], who: str, uid: str, at: float | None, found: list[Record]
    ) -> None:
        content = parts_as_blocks(object_of(record.get("message")).get("parts"), uid)
        about = object_of(record.get("toolCallResult"))
        call = text_of(about.get("callId"))
        if kind == "tool_result":
            # The id of a response may differ from that of its call, which `callId` names.
            content = [
                each | {"tool_use_id": call or each["tool_use_id"]} if "tool_use_id" in each else each
                for each in content
            ]
        key = f"{self.session}:{uid}" if kind == "assistant" else ""
        injected = kind == "tool_result" or (
            kind == "user" and record.get("subtype") in ("notification", "cron", "goal_runtime")
        )
        if content:
            role: Any = "assistant" if kind == "assistant" else "user"
            found.append(ImportedMessage(who, uid, role, content, at, key, injected))
        calls = [each for each in content if each.get("type") == "tool_use"]
        for each in calls:
            found.append(ToolCall(who, each["id"], each["name"], at))
            if (plan := to_dos(each["name"], each["input"], who, at)) is not None:
                found.append(plan)
        for each in content if kind == "tool_result" else ():
            if each.get("type") == "tool_result":
                said = text_of(about.get("status"))
                status: Any = (
                    "cancelled"
                    if said == "cancelled"
                    else "error"
                    if said in ("error", "failed") or each["is_error"]
                    else "done"
                )
                found.append(ToolResult(who, each["tool_use_id"], status, at, str(each["content"])))
        used = object_of(record.get("usageMetadata"))
        if kind == "assistant" and used:
            tokens = Tokens.of(
                *(
                    used.get(f"{name}TokenCount")
                    for name in (
                        "prompt",
                        "cachedContent",
                        "candidates",
                        "thoughts",
                        "toolUsePrompt",
                        "total",
                    )
                )
            )
            window = count_of(record.get("contextWindowSize"))
            if window:
                found.append(ImportedAgent(who, context_limit=window, at=at))
            found.append(
                ModelCall(
                    who, key, text_of(record.get("model")) or "", *tokens, at=at, stop_reason="tool_use" if calls else "end_turn",
                )
            )  # fmt: skip

    def _system(
        self, record: dict[str, Any], who: str, uid: str, at: float | None, found: list[Record]
    ) -> None:
        payload, kind = object_of(record.get("systemPayload")), record.get("subtype")
        if kind == "custom_title" and (title := text_of(payload.get("customTitle"))) is not None:
            found.append(Session(self.session, title=title))
        elif kind == "session_model" and (model := text_of(payload.get("modelId"))) is not None:
            found.append(ImportedAgent(MAIN, model=model, at=at))
        elif kind == "chat_compression":
            info = object_of(payload.get("info"))
            if info.get("compressionStatus") not in _COMPRESSED:
                return
            blocks = [
                each
                for turn in map(object_of, list_of(payload.get("compressedHistory")))
                for each in parts_as_blocks(turn.get("parts"), uid)
            ]
            # The log does not say which of the newest messages are repeated behind the summary.
            summary = next((str(each["text"]) for each in blocks if each.get("type") == "text"), "")
            before, after = count_of(info.get("originalTokenCount")), count_of(info.get("newTokenCount"))
            trigger = text_of(info.get("triggerReason")) or "unknown"
            found.append(
                ImportedCompaction(who, uid, trigger, at, before or None, after or None, unlogged=True)
            )
            found.append(Summary(who, uid, summary, at))


class QwenCode(Program):
    """Qwen Code, from the version on that logs lines (2025-12)."""

    name = "qwen-code"
    alias = "qwen"
    label = "Qwen Code"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`projects` in `QWEN_HOME`, else in `~/.qwen`."""
        chosen = environ.get("QWEN_HOME", "").strip()
        return [(Path(chosen).expanduser() if chosen else home / ".qwen") / "projects"]

    def recognises(self, source: Source) -> bool:
        lines = (parse(line) for line in source.head.split(b"\n")[:20] if line.strip())
        for record in filter(None, lines):
            if "uuid" not in record or "sessionId" not in record or text_of(record.get("type")) not in _TYPES:
                return False
            message = object_of(record.get("message"))
            if "parts" in message or "systemPayload" in record:
                return True
            if "content" in message:
                return False
        return False

    def reader(self, source: Source, state: dict[str, Any] | None) -> QwenReader:
        if state is not None:
            return QwenReader.restore(state)
        return QwenReader(text_of(first_object(source.head).get("sessionId")) or source.path.stem)


PROGRAM = QwenCode()
