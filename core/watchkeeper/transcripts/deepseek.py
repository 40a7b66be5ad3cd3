"""The logs of DeepSeek Harness: packed JSON lines in `~/.dsh/sessions/<folder>/<session>/`, read line by line.

What is known of the format is in docs/log-formats.md. Events are numbered, and a compaction names the numbers of those that it
replaces. An agent that another one started has a log of its own, which names the session of the agent above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import field

from watchkeeper.transcripts import files
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
    Plan,
    PlanItem,
    Program,
    Raw,
    Record,
    Session,
    Skipped,
    Source,
    Summary,
    ToolCall,
    ToolResult,
    count_of,
    distinct_items,
    first_object,
    list_of,
    object_of,
    parse,
    seconds,
    text_of,
)

NODES_KEPT = 1_000
"""The newest messages that a compaction may leave in the context."""
CALLS_KEPT = 500
"""The newest tool calls that may still get a result."""
DEEPEST = 20
"""So many agents one below the other are looked for."""
_PACKED = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
_SURFACE = ("user/message", "assistant/message", "tool/result")
"""What a model gets to see."""
_IGNORED = frozenset(
    ("agent/inbox/spliced", "agent-preset/selected", "approval/asked", "approval/decided", "approval/policy", "command/run",
     "command/done", "compaction/start", "compaction/end", "feedback/record", "goal/change", "hook/invoked", "hook/result",
     "llm/retry-started", "permission/preset", "plan/mode", "request/header", "sandbox/mode", "schedule/change",
     "session/end-seed", "session/title-llm-request", "step/start", "step/end", "team/member", "team/message/delivered",
     "team/message/queued", "tool-workflow/run-start", "tool-workflow/run-end", "turn/start", "turn/end",
     "web/deepseek-search-llm-request")
)  # fmt: skip
_TODOS: dict[str, Any] = {"in_progress": "running", "completed": "done", "deleted": "dropped"}
_SETTLED: dict[str, Any] = {
    "completed": "done",
    "failed": "failed",
    "error": "failed",
    "aborted": "cancelled",
    "cancelled": "cancelled",
}
_STATUS: dict[str, Any] = {
    "TOOL_OUTCOME_UNKNOWN": "unknown",
    "TOOL_NOT_STARTED": "cancelled",
    "ABORTED": "cancelled",
}


class HarnessReader(JsonReader):
    """A `LineReader`. Its fields are its saved state."""

    agent: str = MAIN
    """Key of the agent whose log it is."""
    copied: int = 0
    """So many events at the beginning are a copy of the log of the agent above."""
    seq: int = 0
    """The number of the next event, where it has none."""
    nodes: list[tuple[int, str]] = field(default_factory=list)
    """Numbers and ids of the newest messages in the context."""
    calls: dict[str, str] = field(default_factory=dict)
    """Tool calls without a result → their tool."""
    runs: dict[str, str] = field(default_factory=dict)
    """Members of workflows that did not end (run and number) → their keys."""
    by_person: bool = False
    """A person ordered the compaction that began last."""
    compacted: str = ""
    """Id of a compaction whose replacement follows."""

    def read(self, line: int, record: dict[str, Any]) -> list[Record]:
        kind, data = text_of(record.get("type")) or "?", object_of(record.get("data"))
        if kind == "session":
            return self._header(record)
        seq = record.get("seq", record.get("seq0"))
        self.seq = seq = seq if type(seq) is int and seq >= 0 else self.seq
        if kind in _PACKED:
            self.seq += len(list_of(record.get(_PACKED[kind], data.get(_PACKED[kind]))))
            return [Skipped("a part of a message")]
        self.seq += 1
        if seq < self.copied:
            return [Skipped("a copy of the log of the agent above")]
        if kind == "assistant/chunk":
            return [Skipped("a part of a message")]
        at, found = seconds(record.get("time")), list[Record]()
        message = object_of(data.get("message")) or data
        uid = text_of(message.get("id")) or f"{self.session}:{self.agent}:{seq}"
        replaced = object_of(record.get("surfaceOp")) if kind in _SURFACE else {}
        if replaced:
            self._replace(replaced, seq, uid, message, at, found)
        elif kind == "user/message":
            self._prompt(message, seq, uid, at, found)
        elif kind == "assistant/message":
            self._reply(data, message, seq, uid, at, found)
        elif kind == "tool/result":
            self._result(data, message, seq, uid, at, found)
        else:
            self._event(kind, data, uid, at, found)
        return found or [Raw(kind[:80], NOT_FOR_US if kind in _IGNORED or kind in _SURFACE else UNKNOWN_TYPE)]

    def _header(self, record: dict[str, Any]) -> list[Record]:
        at, folder, above = (
            seconds(record.get("createdAt")),
            text_of(record.get("cwd")),
            text_of(record.get("parentSession")),
        )
        own = text_of(record.get("id"))
        if self.agent != MAIN:
            self.copied = count_of(record.get("seedLength"))
            parent = MAIN if above is None or above == self.session else above
            return [Session(self.session, at=at), ImportedAgent(self.agent, parent, at=at)]
        self.session = own or self.session
        version = record.get("version")
        return [
            Session(
                self.session, workspace=folder, version=f"format {version}" if type(version) is int else None,
                forked_from=above, at=at,
            )
        ]  # fmt: skip

    def _note(self, seq: int, uid: str) -> None:
        self.nodes = [*self.nodes[1 - NODES_KEPT :], (seq, uid)]

    # Messages.

    def _prompt(
        self, message: dict[str, Any], seq: int, uid: str, at: float | None, found: list[Record]
    ) -> None:
        source = object_of(message.get("source"))
        content = [_block(each) for each in list_of(message.get("content")) if isinstance(each, dict)]
        if content:
            injected = source.get("kind") not in (None, "user")
            found.append(ImportedMessage(self.agent, uid, "user", content, at, injected=injected))
            self._note(seq, uid)
        below = text_of(source.get("senderSessionId"))
        if source.get("kind") == "subagent-settled" and below is not None:
            said = text_of(source.get("summary")) or ""
            failed = " failed " in said
            found.append(
                ImportedAgent(
                    below,
                    at=at,
                    status="failed" if failed else "done",
                    reason=said if failed else None,
                    ended=True,
                )
            )

    def _reply(
        self,
        data: dict[str, Any],
        message: dict[str, Any],
        seq: int,
        uid: str,
        at: float | None,
        found: list[Record],
    ) -> None:
        content = [_block(each) for each in list_of(message.get("content")) if isinstance(each, dict)]
        calls = [each for each in content if each.get("type") == "tool_use"]
        if content:
            found.append(ImportedMessage(self.agent, uid, "assistant", content, at, uid))
            self._note(seq, uid)
        for each in calls:
            found.append(ToolCall(self.agent, each["id"], each["name"], at))
            self._note_call(each["id"], each["name"])
        route = object_of(message.get("source")) or object_of(message.get("provenance"))
        stop = None if data.get("interrupted") is True else "tool_use" if calls else "end_turn"
        found.append(_used(self.agent, uid, route, data.get("usage"), stop=stop, at=at))

    def _note_call(self, call: str, name: str) -> None:
        self.calls[call] = name
        while len(self.calls) > CALLS_KEPT:
            del self.calls[next(iter(self.calls))]

    def _result(
        self,
        data: dict[str, Any],
        message: dict[str, Any],
        seq: int,
        uid: str,
        at: float | None,
        found: list[Record],
    ) -> None:
        call, content, failed = _outcome(message)
        call = call or uid
        error = object_of(data.get("error"))
        block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": failed}
        found.append(ImportedMessage(self.agent, uid, "user", [block], at, injected=True))
        found.append(ToolResult(self.agent, call, _status(failed, error.get("code")), at, _said(content)))
        self._note(seq, uid)
        self.calls.pop(call, None)

    # What leaves the context: messages are replaced by others, and a record before them says why.

    def _replace(
        self,
        replaced: dict[str, Any],
        seq: int,
        uid: str,
        message: dict[str, Any],
        at: float | None,
        found: list[Record],
    ) -> None:
        first, last = count_of(replaced.get("start")), count_of(replaced.get("end"))
        self.nodes = [each for each in self.nodes if not first <= each[0] <= last]
        self.nodes.insert(sum(each[0] < first for each in self.nodes), (seq, uid))
        if self.compacted:
            self.compacted = ""
            found.append(Skipped("the summary of a compaction"))
            return
        call = _outcome(message)[0]
        if call is not None:
            found.append(ImportedCompaction(self.agent, uid, "micro", at, elided=(call,)))

    def _compaction(self, data: dict[str, Any], at: float | None, found: list[Record]) -> None:
        self.compacted = uid = text_of(data.get("compactionId")) or f"{self.session}:{self.agent}:{self.seq}"
        gone = {each for each in list_of(data.get("shadowedSeqs")) if type(each) is int}
        last = max(gone, default=count_of(object_of(data.get("shadowedRange")).get("end")))
        kept = tuple(name for number, name in self.nodes if number > last and number not in gone)
        used, by_person = (
            data.get("usage"),
            self.by_person or text_of(data.get("sourceCommandId")) is not None,
        )
        asked = data.get("llmStreamCall") is True or isinstance(used, dict)
        found += (
            ImportedCompaction(
                self.agent, uid, "manual" if by_person else "auto", at, keep_from=kept,
                model=_model(data), unlogged=asked and not isinstance(used, dict),
            ),
            Summary(self.agent, uid, "\n".join(_texts(data.get("summary"))), at),
        )  # fmt: skip
        if isinstance(used, dict):
            found.append(_used(self.agent, f"{self.session}:{uid}", data, used, kind="compaction", at=at))

    # Everything else.

    def _event(
        self, kind: str, data: dict[str, Any], uid: str, at: float | None, found: list[Record]
    ) -> None:
        if kind == "compaction/start":
            self.by_person = text_of(data.get("sourceCommandId")) is not None or data.get("turn", 0) is None
        elif kind == "compaction/summary":
            self._compaction(data, at, found)
        elif kind == "compaction/prune":
            found.append(Skipped("the emptied results are in later records"))
        elif kind == "compaction/end" and (error := text_of(data.get("error"))) is not None:
            found.append(Failure(self.agent, "error", error, at, uid))
        elif kind == "turn/end":
            self._turn_end(object_of(data.get("reason")), uid, at, found)
        elif kind == "llm/retry":
            failure = object_of(data.get("failure"))
            found.append(
                Failure(self.agent, "retry", text_of(failure.get("message")) or "the model failed", at, uid)
            )
        elif kind == "session/title" and self.agent == MAIN:
            found.append(Session(self.session, title=text_of(data.get("title"))))
        elif kind == "session/title":
            found.append(ImportedAgent(self.agent, name=text_of(data.get("title")), at=at))
        elif kind == "request/context":
            found.append(
                ImportedAgent(
                    self.agent,
                    model=_model(data),
                    context_limit=count_of(data.get("contextWindow")) or None,
                    at=at,
                )
            )
        elif kind == "subagent/descriptor":
            label, role = (
                text_of(data.get("label")),
                text_of(data.get("persona")) or text_of(data.get("provider")),
            )
            found.append(ImportedAgent(self.agent, name=label, role=role, at=at))
        elif kind == "todo/write":
            found.append(Plan(self.agent, "todo_write", _todos(data), whole=True, plan=self.agent, at=at))
        elif kind == "team/task":
            if (item := _team_task(object_of(data.get("task")))) is not None:
                found.append(Plan(self.agent, "team", [item], whole=False, at=at))
        elif kind.startswith("tool/"):
            self._tool(kind, data, at, found)
        elif kind.startswith("tool-workflow/"):
            self._member(kind, data, at, found)

    def _tool(self, kind: str, data: dict[str, Any], at: float | None, found: list[Record]) -> None:
        name, own = text_of(data.get("name")) or "?", text_of(data.get("callId"))
        below = text_of(data.get("subCallId"))
        if kind == "tool/call" and own is not None:
            if own in self.calls:
                found.append(Skipped("repeats a record that is already stored"))
            else:
                self._note_call(own, name)
                found.append(ToolCall(self.agent, own, name, at))
        elif kind == "tool/code-dispatch-start" and below is not None:
            self._note_call(below, name)
            found.append(ToolCall(self.agent, below, name, at))
        elif kind == "tool/code-dispatch" and below is not None:
            if self.calls.pop(below, None) is None:
                found.append(ToolCall(self.agent, below, name, at))
            error = object_of(data.get("error"))
            status = _status(data.get("isError") is True, error.get("code"))
            found.append(ToolResult(self.agent, below, status, at, _said(_contents(data.get("content")))))

    def _member(self, kind: str, data: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """An agent of a workflow."""
        place = f"{data.get('runId')}:{data.get('seq')}"[:200]
        if kind == "tool-workflow/agent-start" and (key := text_of(data.get("childId"))) is not None:
            call = next((each for each, name in reversed(self.calls.items()) if name == "workflow"), None)
            self.runs[place] = key
            while len(self.runs) > CALLS_KEPT:
                del self.runs[next(iter(self.runs))]
            found.append(ImportedAgent(key, self.agent, call, text_of(data.get("label")), "workflow", at=at))
        elif kind == "tool-workflow/agent-end" and (key := self.runs.pop(place, None)) is not None:
            over = _SETTLED.get(str(data.get("outcome")))
            if over is not None:
                found.append(ImportedAgent(key, at=at, status=over, ended=True))

    def _turn_end(self, reason: dict[str, Any], uid: str, at: float | None, found: list[Record]) -> None:
        kind, error = reason.get("kind"), object_of(reason.get("error"))
        below = self.agent != MAIN
        if kind == "error":
            said = text_of(error.get("message")) or "the turn failed"
            found.append(Failure(self.agent, "error", said, at, uid))
            if below:
                found.append(ImportedAgent(self.agent, at=at, status="failed", reason=said, ended=True))
        elif kind in ("aborted", "interrupted"):
            by = text_of(object_of(reason.get("reason")).get("kind"))
            said = f"aborted by {by}" if by else str(kind)
            found.append(Failure(self.agent, "interrupted", said, at, uid))
            if below:
                found.append(ImportedAgent(self.agent, at=at, status="cancelled", reason=said, ended=True))
        elif kind == "completed" and below:
            found.append(ImportedAgent(self.agent, at=at, status="done", ended=True))


def _used(
    agent: str,
    key: str,
    route: dict[str, Any],
    usage: Any,
    *,
    kind: Any = "turn",
    stop: str | None = None,
    at: float | None,
) -> ModelCall:
    counts = object_of(usage)
    fresh, output, read, written = (
        count_of(counts.get(f"{name}Tokens")) for name in ("input", "output", "cacheRead", "cacheWrite")
    )
    return ModelCall(
        agent, key, _model(route) or "", fresh, output, read, written, exact=bool(counts), stop_reason=stop, at=at, kind=kind,
    )  # fmt: skip


def _model(route: dict[str, Any]) -> str | None:
    """`deepseek/deepseek-v4-flash`: the harness calls DeepSeek's own server `deepseek-official`."""
    name, provider = text_of(route.get("model")), text_of(route.get("provider"))
    return "/".join(filter(None, (provider and provider.removesuffix("-official"), name))) if name else None


def _status(failed: bool, code: Any) -> Any:
    if not failed:
        return "done"
    named = str(code)
    known = next((status for begins, status in _STATUS.items() if named.startswith(begins)), None)
    return known or ("denied" if "DENIED" in named or "REJECTED" in named else "error")


def _outcome(message: dict[str, Any]) -> tuple[str | None, list[dict[str, Any]], bool]:
    """The call of a result, what it returned, and whether it failed. Earlier logs have no block around it."""
    blocks = [
        each for each in map(object_of, list_of(message.get("content"))) if each.get("type") == "tool-result"
    ]
    about = blocks[0] if blocks else message
    call = (
        text_of(about.get("toolCallId"))
        or text_of(object_of(message.get("source")).get("callId"))
        or text_of(message.get("callId"))
    )
    return call, _contents(about.get("content")), about.get("isError") is True


def _contents(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_block(each) for each in list_of(content) if isinstance(each, dict)]


def _texts(content: Any) -> list[str]:
    return [each["text"] for each in _contents(content) if isinstance(each.get("text"), str)]


def _said(content: list[dict[str, Any]]) -> str:
    return next((each["text"] for each in content if isinstance(each.get("text"), str)), "")


def _block(block: dict[str, Any]) -> dict[str, Any]:
    """A block as Anthropic's; one of a kind that is not known stays as it is."""
    kind = block.get("type")
    if kind == "tool-call":
        given = block.get("arguments")
        asked = (
            (parse(given.encode("utf-8", "replace")) or {"input": given})
            if isinstance(given, str)
            else object_of(given)
        )
        return {
            "type": "tool_use",
            "id": text_of(block.get("id")) or "?",
            "name": text_of(block.get("name")) or "?",
            "input": asked,
        }
    if kind == "reasoning":
        signature = text_of(block.get("signature")) or ""
        return {"type": "thinking", "thinking": text_of(block.get("text")) or "", "signature": signature}
    return block


def _todos(data: dict[str, Any]) -> list[PlanItem]:
    return distinct_items(
        (title, _TODOS.get(str(each.get("status")), "pending"))
        for each in map(object_of, list_of(data.get("todos")))
        if (title := text_of(each.get("content"))) is not None
    )


def _team_task(task: dict[str, Any]) -> PlanItem | None:
    key = text_of(task.get("id"))
    if key is None:
        return None
    needs = tuple(each for each in list_of(task.get("blockedBy")) if isinstance(each, str))
    status = _TODOS.get(str(task.get("status")), "pending")
    return PlanItem(
        key, text_of(task.get("subject")), status, text_of(task.get("description")), needs or None
    )


class DeepSeekHarness(Program):
    """DeepSeek Harness, from the version on that keeps a folder for each session (2026-07)."""

    name = "deepseek-harness"
    alias = "dsh"
    label = "DeepSeek Harness"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`sessions` in `DSH_HOME`, else in `~/.dsh`."""
        chosen = environ.get("DSH_HOME", "").strip()
        return [(Path(chosen).expanduser() if chosen else home / ".dsh") / "sessions"]

    def recognises(self, source: Source) -> bool:
        first = first_object(source.head)
        return (
            first.get("type") == "session"
            and text_of(first.get("id")) is not None
            and "createdAt" in first
            and "timestamp" not in first
            and type(first.get("version")) is int
        )

    def reader(self, source: Source, state: dict[str, Any] | None) -> HarnessReader:
        if state is not None:
            return HarnessReader.restore(state)
        first = first_object(source.head)
        own = text_of(first.get("id")) or source.path.parent.name
        above = text_of(first.get("parentSession"))
        if first.get("origin") != "subagent" or above is None:
            return HarnessReader(own)
        return HarnessReader(_top_of(source.path, above), agent=own)

    def logs_of_agents(self, path: Path, session: str, passed: set[Path]) -> list[Path]:
        """The other logs in the folder of the project whose agent is below the session."""
        found = []
        for each in _logs_in(path.parent.parent):
            if each == path or each in passed:
                continue
            first = _header_of(each)
            above = text_of(first.get("parentSession"))
            if first.get("origin") == "subagent" and above and _top_of(each, above) == session:
                found.append(each)
            elif first:
                passed.add(each)
        return found


def _logs_in(folder: Path) -> list[Path]:
    return sorted({files.unpacked_name(each) for each in folder.glob("*/session.jsonl*")})


def _header_of(path: Path) -> dict[str, Any]:
    try:
        return first_object(files.read_file_head(path))
    except OSError:
        return {}


def _top_of(path: Path, above: str) -> str:
    """The session of the agent at the top, from the logs beside that of one below; `above` is the session above that one."""
    for _ in range(DEEPEST):
        name = above if "/" not in above and above not in (".", "..") else ""
        first = _header_of(path.parent.parent / name / path.name) if name else {}
        higher = (
            text_of(first.get("parentSession"))
            if first.get("id") == above and first.get("origin") == "subagent"
            else None
        )
        if higher is None:
            break
        above = higher
    return above


PROGRAM = DeepSeekHarness()
