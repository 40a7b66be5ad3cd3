"""One part of a message as records: what it says now, given what was told of it before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from watchkeeper.transcripts.jsontext import text_of
from watchkeeper.transcripts.opencode import parts as of
from watchkeeper.transcripts.records import (
    Agent,
    Failure,
    Message,
    Plan,
    PlanItem,
    Raw,
    Record,
    Skipped,
    ToolCall,
    ToolResult,
)

if TYPE_CHECKING:
    from watchkeeper.transcripts.opencode.conversation import Conversation

_STATUS: dict[str, Any] = {
    "pending": "pending",
    "in_progress": "running",
    "completed": "done",
    "cancelled": "cancelled",
}
_CHILD_STATUS: dict[str, Any] = {"completed": "done", "error": "failed", "running": "working"}


class Part(NamedTuple):
    """One part as stored."""

    id: str
    data: bytes
    value: dict[str, Any] | None
    """None where it is broken."""
    changed: bool = True
    """It is new, or otherwise than when it was read before."""


class Stored(NamedTuple):
    """One message as stored."""

    id: str
    data: bytes
    value: dict[str, Any] | None
    parts: list[Part]
    changed: bool = True
    """As of a part, of its own record."""


class Here(NamedTuple):
    """Where a part stands."""

    conversation: Conversation
    stored: Stored
    info: dict[str, Any]
    part_id: str
    place: int
    step: int
    said: tuple[Any, ...]
    settled: bool
    in_summary: bool

    def part(self, part: Part, value: dict[str, Any], before: str | None) -> tuple[list[Record], str | None]:
        """What a part says now, and what was told of it then: `done`, `call`, or `raw`."""
        kind = text_of(value.get("type")) or "?"
        agent, info = self.conversation.key, self.info
        if kind in ("text", "reasoning"):
            return self._text(kind, value, before)
        if kind == "tool":
            return self._tool(value, before)
        if kind == "step-finish":
            usage = of.tokens_of(value.get("tokens"))
            if usage is None:
                return [Raw("part/step-finish", of.NOT_FOR_US)], "done"
            at = of.time_of(info.get("time"), "completed", "created")
            steps = sum((each.value or {}).get("type") == "step-finish" for each in self.stored.parts)
            # A message's own cost is that of all its steps together.
            logged = (
                value
                if of.cost_of(value.get("cost")) is not None or steps > 1
                else value | {"cost": info.get("cost")}
            )
            return [self.conversation.model_call(self.part_id, info, usage, logged, self.said, at)], "done"
        if kind == "file":
            return [self._say([of.file_block(value)], self._at(value))], "done"
        if kind == "subtask":
            told = text_of(value.get("prompt")) or text_of(value.get("description")) or ""
            return [
                self._say(
                    [{"type": "text", "text": f"@{value.get('agent') or 'agent'}: {told}"}], self._at(value)
                )
            ], "done"
        if kind == "retry":
            error = value.get("error")
            text = of.words_of(error) if isinstance(error, dict) else "retried"
            uid = self.conversation.uid(info, self.place, "retry")
            return [Failure(agent, "retry", text, of.time_of(value.get("time"), "created"), uid)], "done"
        if kind == "compaction":
            if info.get("role") == "assistant":
                return self.conversation.marked(info, self.place, value), "done"
            return [Raw("part/compaction", "asks for a compaction; its summary tells of it")], "done"
        if kind in of.HOUSEKEEPING:
            return [Raw(f"part/{kind}", of.NOT_FOR_US)], "done"
        return [Raw(f"part/{kind[:60]}", "unknown record type")], "done"

    def first_uid(self, value: dict[str, Any]) -> str | None:
        """The `uid` of the first message that a part became; None where it became none."""
        if value.get("type") == "tool":
            return self._uid(f"{self._call_id(value)}:call")
        if value.get("type") not in ("text", "reasoning", "file", "subtask"):
            return None
        records, _ = self.part(Part(self.part_id, b"", value), value, None)
        return records[0].uid if isinstance(records[0], Message) else None

    def _call_id(self, value: dict[str, Any]) -> str:
        return text_of(value.get("callID")) or text_of(value.get("id")) or f"{self.stored.id}.{self.place}"

    def _at(self, value: dict[str, Any]) -> float | None:
        at = of.time_of(value.get("time"), "start", "created")
        return at if at is not None else of.time_of(self.info.get("time"), "created")

    def _uid(self, what: str) -> str:
        """The id of a message that the part becomes: the part's own, and what of the part it is."""
        return f"{self.conversation.id}:{self.part_id}:{what}"

    def _say(
        self,
        content: list[dict[str, Any]],
        at: float | None,
        *,
        role: Any = None,
        what: str = "",
        injected: bool = False,
    ) -> Message:
        role = role or ("assistant" if self.info.get("role") == "assistant" else "user")
        copied = self.conversation.uid(self.info, self.place, of.digest(what or content))
        key = f"{self.stored.id}/{self.step}" if role == "assistant" else ""
        return Message(self.conversation.key, self._uid(what), role, content, at, key, injected, copied)

    def _text(self, kind: str, value: dict[str, Any], before: str | None) -> tuple[list[Record], str | None]:
        text = value.get("text")
        times = value.get("time")
        going = isinstance(times, dict) and "end" not in times and self.info.get("role") == "assistant"
        going = going and not self.settled
        if going and (self.conversation.writes_ends or not text):
            return ([] if before == "raw" else [Raw(f"part/{kind}", "still being written")]), "raw"
        if not isinstance(text, str):
            return [Raw(f"part/{kind}", "without a text")], "done"
        # Nothing tells whether the text is whole: what comes to it later is told then.
        told = int(before.removeprefix("text:")) if before is not None and before.startswith("text:") else 0
        text, stage = text[told:], f"text:{len(text)}" if going else "done"
        if not text:
            return [] if told else [Skipped("an empty text")], stage
        if self.in_summary and kind == "text":
            return [Raw("part/text", "stands in its compaction's summary")], "done"
        if kind == "text":
            injected = value.get("synthetic") is True
            said = {"type": "text", "text": text}
            return [
                self._say([said], self._at(value), what=f"from {told}" if told else "", injected=injected)
            ], stage
        block = {"type": "thinking", "thinking": text}
        signature = of.signature_of(value)
        said = block | {"signature": signature} if signature else block
        return [self._say([said], self._at(value), what=f"from {told}" if told else "")], stage

    def _tool(self, value: dict[str, Any], before: str | None) -> tuple[list[Record], str | None]:
        state = value.get("state")
        state = state if isinstance(state, dict) else {}
        status = state.get("status")
        ended = status in ("completed", "error") or (
            "output" in state and status not in ("pending", "running")
        )
        if status == "pending" and not self.settled:
            return ([] if before == "raw" else [Raw("part/tool", "still being written")]), "raw"
        if before == "call" and not ended:
            return [], "call"
        agent = self.conversation.key
        call_id = self._call_id(value)
        name = text_of(value.get("tool")) or "?"
        arguments = state.get("input")
        arguments = (
            arguments if isinstance(arguments, dict) else {} if arguments is None else {"input": arguments}
        )
        at = of.time_of(state.get("time"), "start") or self._at(value)
        found: list[Record] = []
        if before != "call":
            block = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            found += [
                self._say([block], at, role="assistant", what=f"{call_id}:call"),
                ToolCall(agent, call_id, name, at),
            ]
        child = self._child(call_id, name, arguments, state, at)
        if child is not None:
            found.append(child)
        if not ended:
            return found, "call"
        end = of.time_of(state.get("time"), "end") or at
        result = {"type": "tool_result", "tool_use_id": call_id, "content": of.result_content(state)}
        failed = status == "error"
        if failed:
            result["is_error"] = True
        found.append(self._say([result], end, role="user", what=f"{call_id}:result"))
        found.append(ToolResult(agent, call_id, _outcome(state, failed), end))
        if name == "todowrite" and not failed and isinstance(arguments.get("todos"), list):
            found.append(plan_of(agent, name, arguments["todos"], at))
        self.conversation.note_emptied(value)
        return found, "done"

    def _child(
        self, call_id: str, name: str, arguments: dict[str, Any], state: dict[str, Any], at: float | None
    ) -> Agent | None:
        """The sub-agent that a call started."""
        metadata = state.get("metadata")
        child = (
            text_of(metadata.get("sessionId") or metadata.get("sessionID"))
            if isinstance(metadata, dict)
            else None
        )
        if name not in ("task", "subagent") or child is None:
            return None
        return Agent(
            child,
            self.conversation.key,
            call_id,
            text_of(arguments.get("description")) or text_of(state.get("title")),
            text_of(arguments.get("subagent_type")) or text_of(arguments.get("agent")),
            text_of(arguments.get("prompt")),
            at=at,
            status=_CHILD_STATUS.get(str(state.get("status"))),
        )


def _outcome(state: dict[str, Any], failed: bool) -> Any:
    if not failed:
        return "done"
    error = str(state.get("error") or "")
    metadata = state.get("metadata")
    told = metadata if isinstance(metadata, dict) else {}
    if told.get("denied") is True or "rejected permission" in error or "user rejected" in error.lower():
        return "denied"
    interrupted = told.get("interrupted") is True
    return "cancelled" if interrupted or error in ("Tool execution aborted", "Aborted") else "error"


def plan_of(agent: str, reason: str, todos: list[Any], at: float | None) -> Plan:
    """A list of to-dos as a version of the plan."""
    items: list[PlanItem] = []
    seen: dict[str, int] = {}
    for todo in todos:
        title = text_of(todo.get("content")) if isinstance(todo, dict) else None
        if title is None:
            continue
        seen[title] = seen.get(title, 0) + 1
        key = title if seen[title] == 1 else f"{title} ({seen[title]})"
        items.append(PlanItem(key, title, _STATUS.get(str(todo.get("status")), "pending")))
    return Plan(agent, reason, items, whole=True, plan=agent, at=at)
