"""The logs of Gemini CLI: `~/.gemini/tmp/<project>/chats/`, read line by line.

What is known of the format is in docs/log-formats.md. A message is logged again in full each time that it changes: first its
text, then its tool calls with their results. What the first copy says is the message here, and each result is a message of its
own: a later copy adds those that are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import field

from watchkeeper.transcripts.google_parts import Tokens, parts_as_blocks, to_dos
from watchkeeper.transcripts.records import (
    MAIN,
    NOT_FOR_US,
    UNKNOWN_TYPE,
    Failure,
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
    Skipped,
    Source,
    Summary,
    ToolCall,
    ToolResult,
    first_object,
    list_of,
    object_of,
    seconds,
    text_of,
)

CALLS_KEPT = 200
"""The newest calls that may still get a result."""
_STATUS: dict[str, Literal["done", "error", "cancelled"]] = {
    "success": "done",
    "error": "error",
    "cancelled": "cancelled",
}


class GeminiReader(JsonReader):
    """A `LineReader`. Its fields are its saved state."""

    agent: str = MAIN
    """Key of the agent whose log it is."""
    said: dict[str, str] = field(default_factory=dict)
    """The newest messages of the model, of which a copy was read."""
    calls: dict[str, str] = field(default_factory=dict)
    """Their tool calls → `""`, or `done` once they have a result."""
    snapshot: str = ""
    """The message with the newest summary."""

    def read(self, line: int, record: dict[str, Any]) -> list[Record]:
        found: list[Record] = []
        changes, uid = object_of(record.get("$set")), text_of(record.get("id"))
        at = seconds(record.get("timestamp"))
        if (rewound := text_of(record.get("$rewindTo"))) is not None:
            # The message itself leaves the conversation as well.
            found.append(Rewind(self.agent, f"rewind.{line}", 0, at, first=rewound))
        elif text_of(record.get("sessionId")) and uid is None:
            self._header(record, found)
        elif isinstance(changes.get("messages"), list):
            self._history(changes, line, found)
        elif changes:
            if (title := text_of(changes.get("summary"))) is not None:
                found.append(Session(self.session, title=title))
            elif set(changes) <= {"lastUpdated", "sessionId"}:
                found.append(Skipped("the time of the last change"))
            else:
                found.append(Raw("$set", NOT_FOR_US))
        elif uid is not None:
            self._message(record, uid, at, found)
        return found or [Raw(text_of(record.get("type")) or "?", UNKNOWN_TYPE)]

    def _header(self, record: dict[str, Any], found: list[Record]) -> None:
        if self.agent == MAIN:
            self.session = text_of(record.get("sessionId")) or self.session
        at = seconds(record.get("startTime"))
        folder = next(filter(None, map(text_of, list_of(record.get("directories")))), None)
        title = text_of(record.get("summary")) if self.agent == MAIN else None
        found.append(Session(self.session, workspace=folder, title=title, at=at))
        if self.agent != MAIN:
            found.append(ImportedAgent(self.agent, MAIN, at=at))

    def _message(self, record: dict[str, Any], uid: str, at: float | None, found: list[Record]) -> None:
        kind = text_of(record.get("type")) or "?"
        if kind == "user":
            content = parts_as_blocks(record.get("content"), uid)
            found.append(ImportedMessage(self.agent, uid, "user", content, at))
        elif kind == "gemini":
            self._reply(record, uid, at, found)
        elif kind in ("info", "warning", "error"):
            said = next(
                (str(each["text"]) for each in parts_as_blocks(record.get("content"), uid) if "text" in each),
                kind,
            )
            if kind == "error":
                found.append(Failure(self.agent, "error", said, at, uid))
            elif said.startswith("Request cancelled"):
                found.append(Failure(self.agent, "interrupted", said, at, uid))
            else:
                found.append(Raw(kind, NOT_FOR_US))
        else:
            found.append(Raw(kind[:80], UNKNOWN_TYPE))

    def _reply(self, record: dict[str, Any], uid: str, at: float | None, found: list[Record]) -> None:
        known, key = uid in self.said, f"{self.session}:{self.agent}:{uid}"
        thoughts = [
            {"type": "thinking", "thinking": "\n".join(filter(None, (text_of(each.get("subject")), text_of(each.get("description"))))),
             "signature": ""}
            for each in map(object_of, list_of(record.get("thoughts")))
        ]  # fmt: skip
        content: list[dict[str, Any]] = (
            [] if known else [*thoughts, *parts_as_blocks(record.get("content"), uid)]
        )
        listed = [
            each for each in map(object_of, list_of(record.get("toolCalls"))) if text_of(each.get("id"))
        ]
        fresh = [each for each in listed if each["id"] not in self.calls]
        content += [
            {
                "type": "tool_use",
                "id": each["id"],
                "name": text_of(each.get("name")) or "?",
                "input": object_of(each.get("args")),
            }
            for each in fresh
        ]
        if content:
            name = uid if not known else f"{uid}.{fresh[0]['id']}"
            found.append(ImportedMessage(self.agent, name, "assistant", content, at, key))
        for each in fresh:
            name = text_of(each.get("name")) or "?"
            found.append(ToolCall(self.agent, each["id"], name, seconds(each.get("timestamp")) or at))
            if (plan := to_dos(name, object_of(each.get("args")), self.agent, at)) is not None:
                found.append(plan)
            self.calls[each["id"]] = ""
        used = object_of(record.get("tokens"))
        if used:
            tokens = Tokens.of(
                *(used.get(name) for name in ("input", "cached", "output", "thoughts", "tool", "total"))
            )
            model = text_of(record.get("model"))
            found.append(
                ModelCall(
                    self.agent, key, f"google/{model}" if model else "", *tokens, at=at,
                    stop_reason="tool_use" if listed else None, final=True,
                )
            )  # fmt: skip
        for each in listed:
            self._result(each, at, found)
        self.said[uid] = ""
        for kept in (self.said, self.calls):
            while len(kept) > CALLS_KEPT:
                del kept[next(iter(kept))]
        if not found:
            found.append(Skipped("repeats a stored record"))

    def _result(self, call: dict[str, Any], at: float | None, found: list[Record]) -> None:
        call_id, status = call["id"], _STATUS.get(str(call.get("status")))
        if status is None or self.calls.get(call_id) == "done":
            return
        self.calls[call_id] = "done"
        then, name = seconds(call.get("timestamp")) or at, text_of(call.get("name")) or ""
        blocks = [
            each | {"tool_use_id": call_id} if each.get("type") == "tool_result" else each
            for each in parts_as_blocks(call.get("result"), call_id)
        ] or [{"type": "tool_result", "tool_use_id": call_id, "content": "", "is_error": status != "done"}]  # fmt: skip
        found.append(ImportedMessage(self.agent, f"{call_id}.result", "user", blocks, then, injected=True))
        preview = next((str(each["content"]) for each in blocks if "content" in each), "")
        found.append(ToolResult(self.agent, call_id, status, then, preview))
        child = text_of(call.get("agentId"))
        if child is not None:
            about, asked = object_of(call.get("resultDisplay")), object_of(call.get("args"))
            role = text_of(about.get("agentName")) or text_of(asked.get("agent_name")) or name
            goal = text_of(asked.get("prompt")) or text_of(asked.get("query"))
            over: Any = {"done": "done", "error": "failed", "cancelled": "cancelled"}[status]
            found.append(
                ImportedAgent(child, self.agent, call_id, role, role, goal, at=then, status=over, ended=True)
            )

    def _history(self, changes: dict[str, Any], line: int, found: list[Record]) -> None:
        """The complete current conversation, sent because its beginning was compressed or results were masked. A new
        snapshot represents what is no longer in it."""
        at = seconds(changes.get("lastUpdated"))
        listed = [each for each in map(object_of, changes["messages"]) if text_of(each.get("id"))]
        texts = {
            each["id"]: str(parts_as_blocks(each.get("content"), ""))
            for each in listed
            if each.get("type") == "user"
        }
        place = next(
            (place for place, each in enumerate(listed) if "<state_snapshot>" in texts.get(each["id"], "")),
            None,
        )
        if place is None or listed[place]["id"] == self.snapshot:
            found.append(Raw("$set/messages", NOT_FOR_US))
            return
        self.snapshot = uid = listed[place]["id"]
        stayed = tuple(each["id"] for each in listed[place + 1 :])
        text = next(
            str(each["text"]) for each in parts_as_blocks(listed[place].get("content"), "") if "text" in each
        )
        found.append(ImportedCompaction(self.agent, uid, "unknown", at, keep_from=stayed, unlogged=True))
        found.append(Summary(self.agent, uid, text, at))


class GeminiCli(Program):
    """Gemini CLI, from the version on that logs lines (2026)."""

    name = "gemini-cli"
    alias = "gemini"
    label = "Gemini CLI"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`tmp` in `~/.gemini`, or in that of `GEMINI_CLI_HOME`."""
        chosen = environ.get("GEMINI_CLI_HOME", "").strip()
        return [(Path(chosen).expanduser() if chosen else home) / ".gemini" / "tmp"]

    def may_be_log(self, path: Path) -> bool:
        return path.suffix == ".jsonl" and "chats" in path.parts

    def recognises(self, source: Source) -> bool:
        first = first_object(source.head)
        return (
            text_of(first.get("sessionId")) is not None and "projectHash" in first and "messages" not in first
        )

    def logs_of_agents(self, path: Path, session: str, passed: set[Path]) -> list[Path]:
        """Those in the folder that has the session's id as its name."""
        return sorted((path.parent / session).glob("*.jsonl"))

    def reader(self, source: Source, state: dict[str, Any] | None) -> GeminiReader:
        if state is not None:
            return GeminiReader.restore(state)
        first = first_object(source.head)
        if first.get("kind") == "subagent":
            return GeminiReader(
                source.path.parent.name, agent=text_of(first.get("sessionId")) or source.path.stem
            )
        return GeminiReader(source.path.stem)


PROGRAM = GeminiCli()
