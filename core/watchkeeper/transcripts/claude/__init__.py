"""Claude Code's logs: `~/.claude/projects/<folder>/<session>.jsonl`, and those of its sub-agents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from msgspec import Struct, convert, field, to_builtins

from watchkeeper.transcripts.claude.agents import AgentBook, BranchBook, PlanBook, teammate_of, waiting_calls
from watchkeeper.transcripts.reading import no_record
from watchkeeper.transcripts.records import (
    MADE_UP,
    MAIN,
    Failure,
    ImportedAgent,
    ImportedCompaction,
    ImportedMessage,
    ModelCall,
    PlaceIds,
    Program,
    Raw,
    Record,
    Session,
    Source,
    Summary,
    ToolCall,
    ToolResult,
    count_of,
    id_of,
    list_of,
    object_of,
    parse,
    parser,
    seconds,
    text_of,
)

# The types of record in the logs of Claude Code, up to version 2.1.220.

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
"""What is known, not shown: kept as it is."""

SPAWNING_TOOLS = frozenset({"Task", "Agent"})
"""Tools that start a sub-agent; the second name came with version 2.1.63."""

SYNTHETIC = "<synthetic>"
"""The model of a message that Claude Code made itself: an error, an interruption."""


# The fields of a line that the reader uses. The parser skips all others: half of a log is `toolUseResult`, which
# repeats the message, and the messages inside `progress`. A field that the reader reads must be declared here;
# tests feed it every record with and without the rest.


def _fields(name: str, *names: str, **objects: Any) -> Any:
    """A `TypedDict` with these fields, of any value, and with these objects; each may be missing."""
    return TypedDict(name, dict.fromkeys(names, Any) | objects, total=False)  # type: ignore[operator]


Usage = _fields(
    "Usage", "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation",
    "server_tool_use", "service_tier", "speed",
)  # fmt: skip
"""What a call used."""

LoggedMessage = _fields("LoggedMessage", "id", "model", "content", "stop_reason", usage=Usage | None)
"""A message as it went over the API."""

ToolOutcomeFields = _fields(
    "ToolOutcomeFields", "agentId", "totalDurationMs", "totalTokens", "totalToolUseCount", "name", "isAsync", "status",
    "success", "description", "prompt", "task", "agents", "retrieval_status",
)  # fmt: skip
"""Of a call's result in the program's own form: what it says of agents and tasks."""

Reply = _fields("Reply", "id", "model", "stop_reason", usage=Usage | None)
"""Of a sub-agent's reply inside a `progress` record: what it used."""

Said = _fields("Said", "type", "requestId", "timestamp", message=Reply | str | None)
"""A message to or from a sub-agent, inside a `progress` record."""

News = _fields("News", "type", "agentId", "prompt", message=Said | str | None)
"""Of a `progress` record."""

Attachment = _fields("Attachment", "type", "prompt")
"""What goes with a prompt."""

Entry = _fields(
    "Entry", "type", "subtype", "uuid", "parentUuid", "timestamp", "cwd", "version", "forkedFrom", "isSidechain", "agentId",
    "attributionAgent", "requestId", "isMeta", "isCompactSummary", "isApiErrorMessage", "isAbortedMidStream",
    "toolDenialKind", "sourceToolUseID", "parentToolUseID", "compactMetadata", "microcompactMetadata", "content", "error",
    "apiRefusalExplanation", "summary", "aiTitle", "customTitle",
    message=LoggedMessage | None,
    toolUseResult=ToolOutcomeFields | list[Any] | str | int | float | bool | None,
    data=News | None,
    attachment=Attachment | None,
)  # fmt: skip
"""One record."""

parse_entry = parser(Entry)
"""The record of a line, with these fields at least; None where the line holds none."""


# What a reply says of the model call that made it.

_new = tuple.__new__
"""Makes a named tuple at a third of the cost."""


class CallBook:
    """The model calls of one file. Each block of a reply has all of its usage, which is read once."""

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}
        self._call: ModelCall | None = None
        """What that usage was read as."""

    def call(
        self,
        agent: str,
        key: str,
        model: str | None,
        usage: dict[str, Any],
        stop_reason: Any,
        at: float | None,
        request: str | None,
    ) -> ModelCall:
        """The call of a block, whose `key` names the reply."""
        last, name = self._call, _model_ref(model)
        if (
            last is not None
            and (last[1], last[9], last[0], last[2]) == (key, stop_reason, agent, name)
            and self._usage == usage
        ):
            return _new(ModelCall, (*last[:10], at, *last[11:]))
        kinds = object_of(usage.get("cache_creation"))
        hour = count_of(kinds.get("ephemeral_1h_input_tokens"))
        short = count_of(kinds.get("ephemeral_5m_input_tokens"))
        written = max(count_of(usage.get("cache_creation_input_tokens")), hour + short)
        ended = text_of(stop_reason)
        dearer = ("speed" in usage or "service_tier" in usage or "server_tool_use" in usage) and _costs_more(
            usage
        )
        call = _new(
            ModelCall,
            (
                agent,
                key,
                name,
                count_of(usage.get("input_tokens")),
                count_of(usage.get("output_tokens")),
                count_of(usage.get("cache_read_input_tokens")),
                written,
                hour,
                ended is not None and not dearer,
                ended,
                at,
                0.0,
                request,
                None,
                False,
                "",
            ),
        )
        self._usage, self._call = usage, call
        return call


@lru_cache(maxsize=256)
def _model_ref(model: str | None) -> str:
    """`provider/model`; models that another cloud serves have names in its manner."""
    if model is None:
        return "unknown"
    return f"{'aws' if 'anthropic.' in model else 'google' if '@' in model else 'anthropic'}/{model}"


def _costs_more(usage: dict[str, Any]) -> bool:
    """Whether list prices of tokens are not all of the cost: searches, a faster or a cheaper service."""
    searches = count_of(object_of(usage.get("server_tool_use")).get("web_search_requests"))
    return bool(searches) or usage.get("speed") == "fast" or usage.get("service_tier") == "batch"


# Reading one log, line by line.
#
# What is known of the format is in docs/transcripts.md. A line is one record: one content block of a reply, one
# user message, one note of the program. Records are chained by `parentUuid`; the file is only ever appended to,
# so that what a compaction dropped is still in it.

_NOT_FOR_US = "known, not shown"
_TITLES = {"summary": ("summary", 1), "ai-title": ("aiTitle", 2), "custom-title": ("customTitle", 3)}
"""Type of record → its field, and which one wins."""


_DENIALS = (
    "The user doesn't want to proceed with this tool use",
    "The user doesn't want to take this action",
)
"""How the result of a call that was not allowed begins, also where its mark as an error was lost."""
_ERRORS = ("<tool_use_error>",)
_INTERRUPTED = "[Request interrupted by user"


class ClaudeReader(Struct, dict=True):
    """A `LineReader`. Its fields are its saved state."""

    session: str
    """Key of the session that the file belongs to."""
    owner: str = MAIN
    """Key of the agent whose file it is; `MAIN` for a session's own."""
    meta: dict[str, Any] = {}
    """The `.meta.json` beside a sub-agent's file."""
    opened: bool = False
    """The session was named."""
    workspace_known: bool = False
    title_rank: int = 0
    compacted: str | None = None
    """Whose context was compacted, until the summary comes."""
    agents: AgentBook = field(default_factory=AgentBook)
    plans: PlanBook = field(default_factory=PlanBook)
    branches: BranchBook = field(default_factory=BranchBook)
    places: PlaceIds = field(default_factory=PlaceIds)

    def __post_init__(self) -> None:
        self.agents.owner = self.owner
        self._calls = CallBook()

    @classmethod
    def restore(cls, state: dict[str, Any]) -> ClaudeReader:
        """The reader with that saved state."""
        plans = {"waiting": waiting_calls(state.get("plans", {}))}
        return convert({"opened": True} | state | {"plans": plans}, cls)

    def save(self) -> dict[str, Any]:
        return to_builtins(self)  # type: ignore[no-any-return]

    def feed(self, line: int, data: bytes) -> list[Record]:
        record = parse_entry(data)
        if record is None:
            return no_record(data, self.session, opened=self.opened)
        found: list[Record] = []
        if not (self.opened and self.workspace_known):
            self._open(record, found)
        kind = record.get("type")
        if kind == "assistant":
            self._assistant(record, found)
        elif kind == "user":
            self._user(record, found)
        elif kind == "system":
            self._system(record, found)
        elif kind == "progress":
            self._progress(record, found)
        elif isinstance(kind, str) and kind in _TITLES:
            self._title(kind, record, found)
        else:
            self._other(kind, record, found)
        self.branches.note(record, self.owner, found)
        return found

    def _open(self, record: dict[str, Any], found: list[Record]) -> None:
        """Name the session with the first record, and its folder with the first that tells it."""
        workspace = text_of(record.get("cwd"))
        if self.opened and workspace is None:
            return
        at = seconds(record.get("timestamp"))
        origin = text_of(object_of(record.get("forkedFrom")).get("sessionId"))
        found.append(Session(self.session, workspace, None, text_of(record.get("version")), origin, at))
        if not self.opened and self.owner != MAIN:
            meta = self.meta
            role = text_of(meta.get("agentType")) or text_of(record.get("attributionAgent"))
            name = text_of(meta.get("description")) or text_of(meta.get("name"))
            found.append(
                ImportedAgent(self.owner, call_id=text_of(meta.get("toolUseId")), name=name, role=role, at=at)
            )
        self.opened = True
        self.workspace_known = workspace is not None

    # Replies.

    def _assistant(self, record: dict[str, Any], found: list[Record]) -> None:
        message = object_of(record.get("message"))
        content = message.get("content")
        if not isinstance(content, list | str):
            found.append(Raw("assistant", "a message without content"))
            return
        at = seconds(record.get("timestamp"))
        uid = _uid(record) or self._place_of("assistant", at, content)
        agent = self.agents.of(record, at, found)
        if agent != MAIN:
            self._hint(record, agent, found)
        request, message_id = id_of(record.get("requestId")), id_of(message.get("id"))
        key = f"{request or ''}:{message_id or ''}" if request or message_id else uid
        if (text := _compacted_by_provider(content)) is not None:
            found.append(ImportedCompaction(agent, f"{uid}/compaction", "server", at))
            found.append(Summary(agent, f"{uid}/summary", text, at))
        found.append(_new(ImportedMessage, (agent, uid, "assistant", content, at, key, False, "")))
        model = text_of(message.get("model"))
        failed = record.get("isApiErrorMessage") is True
        if failed or model == SYNTHETIC:
            said = _plain(content)
            if failed or record.get("error"):
                found.append(Failure(agent, "error", said or "an API error", at))
        elif isinstance(usage := message.get("usage"), dict):
            found.append(self._calls.call(agent, key, model, usage, message.get("stop_reason"), at, request))
        if record.get("isAbortedMidStream") is True:
            found.append(Failure(agent, "interrupted", "the reply was broken off", at))
        for place, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._tool_use(agent, block, text_of(block.get("id")) or f"{uid}.{place}", at, found)

    def _tool_use(
        self, agent: str, block: dict[str, Any], call_id: str, at: float | None, found: list[Record]
    ) -> None:
        name = text_of(block.get("name")) or "?"
        found.append(ToolCall(agent, call_id, name, at))
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            return
        if name in SPAWNING_TOOLS:
            self.agents.spawning(agent, call_id, arguments)
        else:
            self.plans.called(name, call_id, arguments, at)

    def _place_of(self, kind: str, at: float | None, content: Any) -> str:
        """The id of a record that has none: by the call that it makes or answers, else by its place."""
        for block in content if isinstance(content, list) else ():
            call_id = id_of(block.get("id") or block.get("tool_use_id")) if isinstance(block, dict) else None
            if call_id is not None:
                return f"{MADE_UP}{kind}:{call_id}"
        return self.places.of(f"{self.session}/{self.owner}", at, kind, content)

    def _hint(self, record: dict[str, Any], agent: str, found: list[Record]) -> None:
        role = record.get("attributionAgent")
        if isinstance(role, str) and self.agents.learn_role(agent, role):
            found.append(ImportedAgent(agent, role=role))

    # What the user said, and results.

    def _user(self, record: dict[str, Any], found: list[Record]) -> None:
        content = object_of(record.get("message")).get("content")
        if not isinstance(content, list | str):
            found.append(Raw("user", "a message without content"))
            return
        at = seconds(record.get("timestamp"))
        uid = _uid(record) or self._place_of("user", at, content)
        agent = self.agents.of(record, at, found, prompt=content)
        if record.get("isCompactSummary") is True:
            compacted, self.compacted = self.compacted, None
            found.append(Summary(agent if compacted is None else compacted, uid, _plain(content), at))
            return
        found.append(
            _new(ImportedMessage, (agent, uid, "user", content, at, "", record.get("isMeta") is True, ""))
        )
        outcome = record.get("toolUseResult")
        for block in content if isinstance(content, list) else ({"text": content},):
            if not isinstance(block, dict):
                continue
            if block.get("type") == "tool_result":
                self._tool_result(agent, record, block, outcome, at, found)
            elif isinstance(text := block.get("text"), str) and text.startswith(_INTERRUPTED):
                found.append(Failure(agent, "interrupted", text, at))
        if isinstance(outcome, dict):
            self.agents.outcome_of_background(outcome, at, found)

    def _tool_result(
        self,
        agent: str,
        record: dict[str, Any],
        block: dict[str, Any],
        outcome: Any,
        at: float | None,
        found: list[Record],
    ) -> None:
        call_id = text_of(block.get("tool_use_id")) or text_of(record.get("sourceToolUseID"))
        if call_id is None:
            return
        said = _plain(block.get("content"))
        denied = record.get("toolDenialKind") is not None or said.startswith(_DENIALS)
        failed = denied or block.get("is_error") is True or said.startswith(_ERRORS)
        found.append(
            ToolResult(agent, call_id, "denied" if denied else "error" if failed else "done", at, said[:200])
        )
        answer = object_of(outcome)
        self.agents.answered(agent, call_id, answer, failed, at, found)
        if failed or _says_refused(outcome):
            self.plans.refused(call_id)
        else:
            self.plans.answered(agent, call_id, answer, said, at, found)

    # Notes of the program.

    def _system(self, record: dict[str, Any], found: list[Record]) -> None:
        at = seconds(record.get("timestamp"))
        subtype = record.get("subtype")
        uid = _uid(record) or self._place_of(f"system/{subtype}", at, record.get("content"))
        agent = self.agents.of(record, at, found)
        if subtype == "compact_boundary":
            self.compacted = agent
            if agent == self.owner:
                self.branches.compacted()
            found.append(_compaction(agent, uid, record, at))
        elif subtype == "microcompact_boundary":
            found.append(_microcompaction(agent, uid, record, at))
        elif subtype == "api_error":
            found.append(Failure(agent, "retry", _error_text(record), at, uid))
        elif subtype == "error":
            found.append(Failure(agent, "error", _error_text(record), at, uid))
        elif subtype in ("api_refusal", "model_refusal_fallback"):
            text = text_of(record.get("apiRefusalExplanation")) or text_of(record.get("content")) or "refused"
            found.append(Failure(agent, "refused", text, at, uid))
        else:
            named = subtype if isinstance(subtype, str) else "?"
            found.append(Raw(f"system/{named}", _NOT_FOR_US))

    def _progress(self, record: dict[str, Any], found: list[Record]) -> None:
        """What an agent does meanwhile is in its own log as well. Here it tells which call started it, and
        what its replies used, which counts once with what its own log tells of them: that log may be
        missing."""
        at = seconds(record.get("timestamp"))
        agent = self.agents.of(record, at, found)
        news = object_of(record.get("data"))
        kind = text_of(news.get("type"))
        if kind == "agent_progress":
            self.agents.progressed(agent, text_of(record.get("parentToolUseID")), news, at, found)
            self._used(news, at, found)
        found.append(Raw(f"progress/{kind or '?'}", _NOT_FOR_US))

    def _used(self, news: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """What a sub-agent's reply used, by the progress that tells of it."""
        child, said = id_of(news.get("agentId")), object_of(news.get("message"))
        reply = object_of(said.get("message") if said.get("type") == "assistant" else None)
        if child is None:
            return
        usage, model = reply.get("usage"), text_of(reply.get("model"))
        request, message_id = id_of(said.get("requestId")), id_of(reply.get("id"))
        if isinstance(usage, dict) and model != SYNTHETIC and (request or message_id):
            key, then = f"{request or ''}:{message_id or ''}", seconds(said.get("timestamp"))
            when = at if then is None else then
            found.append(CallBook().call(child, key, model, usage, reply.get("stop_reason"), when, request))

    def _title(self, kind: str, record: dict[str, Any], found: list[Record]) -> None:
        name, rank = _TITLES[kind]
        title = text_of(record.get(name))
        if title is None:
            found.append(Raw(kind, "a title without text"))
        elif rank < self.title_rank or self.owner != MAIN:
            found.append(Raw(kind, "another title goes before it"))
        else:
            self.title_rank = rank
            found.append(Session(self.session, title=title))

    def _other(self, kind: Any, record: dict[str, Any], found: list[Record]) -> None:
        at = seconds(record.get("timestamp"))
        agent = self.agents.of(record, at, found)  # the chain goes through it
        if isinstance(kind, str) and kind in HOUSEKEEPING:
            detail = object_of(record.get("attachment"))
            inner, prompt = text_of(detail.get("type")), detail.get("prompt")
            if inner == "queued_command" and prompt and isinstance(prompt, str | list):
                # What was typed while a turn ran reaches the model like this, and in no other way.
                uid = _uid(record) or self._place_of("queued", at, prompt)
                found.append(ImportedMessage(agent, uid, "user", prompt, at))
                return
            found.append(Raw(f"{kind}/{inner}" if inner else str(kind), _NOT_FOR_US))
        elif isinstance(kind, str) and kind not in CONVERSATION:
            found.append(Raw(kind[:80], "unknown record type"))
        else:
            found.append(Raw("?", "a record without a type"))


def _uid(record: dict[str, Any]) -> str:
    """A record's id; of one that a fork copied, the id that it had in the session that was forked."""
    fork = record.get("forkedFrom")
    original = id_of(fork.get("messageUuid")) if fork is not None and isinstance(fork, dict) else None
    return original or id_of(record.get("uuid")) or ""


def _compaction(agent: str, uid: str, record: dict[str, Any], at: float | None) -> ImportedCompaction:
    meta = object_of(record.get("compactMetadata"))
    took = meta.get("durationMs")
    return ImportedCompaction(
        agent,
        uid,
        text_of(meta.get("trigger")) or "auto",
        at,
        count_of(meta.get("preTokens")) or None,
        count_of(meta.get("postTokens")) or None,
        keep_from=text_of(object_of(meta.get("preservedSegment")).get("headUuid")),
        instructions=text_of(meta.get("userContext")),
        seconds=count_of(took) / 1000 if took else None,
    )


def _microcompaction(agent: str, uid: str, record: dict[str, Any], at: float | None) -> ImportedCompaction:
    meta = object_of(record.get("microcompactMetadata"))
    before, saved = count_of(meta.get("preTokens")), count_of(meta.get("tokensSaved"))
    elided = tuple(each for each in list_of(meta.get("compactedToolIds")) if isinstance(each, str))
    return ImportedCompaction(
        agent, uid, "micro", at, before or None, max(0, before - saved) if before else None, elided=elided
    )


def _plain(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(
        block["text"]
        for block in list_of(content)
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    )


def _compacted_by_provider(content: Any) -> str | None:
    """The text of the `compaction` block by which the API itself replaced everything before a reply."""
    for block in reversed(list_of(content)):
        if isinstance(block, dict) and block.get("type") == "compaction":
            return text_of(block.get("content"))
    return None


def _says_refused(outcome: Any) -> bool:
    """Whether a result's own form, where it is a text, says that the call was not carried out."""
    return isinstance(outcome, str) and outcome.startswith(
        ("Error:", "User rejected", "InputValidationError")
    )


def _error_text(record: dict[str, Any]) -> str:
    """The words of an error, however deep they are."""
    error: Any = record.get("error")
    for _ in range(6):
        if isinstance(error, str):
            return error
        if not isinstance(error, dict):
            break
        words = text_of(error.get("formatted")) or text_of(error.get("message")) or text_of(error.get("code"))
        if words:
            return words
        error = error.get("error") or error.get("cause")
    status = object_of(record.get("error")).get("status")
    return f"API error {status}" if status else text_of(record.get("content")) or "API error"


# Where the logs of Claude Code are, how one is recognised, and which session and agent it belongs to.

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_AGENT_FILE = re.compile(r"agent-(?P<id>.+)")
_HELPER = re.compile(r"a(?P<task>[a-z][a-z_]+)-[0-9a-f]{8,}")
"""A fork that the program made for a task of its own, and named by it: `acompact-…`, `aside_question-…`."""
_KNOWN = CONVERSATION | HOUSEKEEPING


class ClaudeCode(Program):
    """Claude Code, from 1.0 on."""

    name = "claude-code"
    alias = "claude"
    label = "Claude Code"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`projects` in the folders that `CLAUDE_CONFIG_DIR` names, else in `~/.claude` and
        `~/.config/claude`."""
        chosen = [
            Path(part).expanduser()
            for part in environ.get("CLAUDE_CONFIG_DIR", "").split(",")
            if part.strip()
        ]
        return [folder / "projects" for folder in chosen or [home / ".claude", home / ".config" / "claude"]]

    def recognises(self, source: Source) -> bool:
        if source.path.suffix != ".jsonl":
            return False
        for first in _records(source.head):
            if "payload" in first:
                return False
            if text_of(first.get("type")) in _KNOWN and (
                "sessionId" in first or "uuid" in first or len(first) > 1
            ):
                return True
        return b'"parentUuid"' in source.head and b'"sessionId"' in source.head

    def logs_of_agents(self, path: Path, session: str, passed: set[Path]) -> list[Path]:
        """Those in the folder of the session's name."""
        return sorted(path.with_suffix("").rglob("*.jsonl"))

    def companions(self, path: Path) -> list[Path]:
        return [path.with_suffix(".meta.json")] if _AGENT_FILE.fullmatch(path.stem) else []

    def reader(self, source: Source, state: dict[str, Any] | None) -> ClaudeReader:
        if state is not None:
            return ClaudeReader.restore(state)
        session, agent = _whose(source)
        meta = parse(source.companions.get(source.path.with_suffix(".meta.json").name, b"")) or {}
        if agent != MAIN and (first := next(_records(source.head), None)) is not None:
            agent = teammate_of(first, meta) or agent
        if (helper := _HELPER.fullmatch(agent)) is not None:
            task = helper["task"].replace("_", " ")
            meta = {"agentType": task, "description": task} | meta
        return ClaudeReader(session, agent, meta)


def _whose(source: Source) -> tuple[str, str]:
    """Keys of the session and the agent that a file belongs to.

    `<session>/subagents/**/agent-<id>.jsonl` names its session; an `agent-<id>.jsonl` beside its session's
    file does not, but its records do; a session's own file is named by its id, unless it was renamed.
    """
    path, found_session, found_agent = source.path, None, None
    match = _AGENT_FILE.fullmatch(path.stem)
    below = "subagents" in path.parts[1:]
    if match is None and not below and _UUID.fullmatch(path.stem):
        return path.stem, MAIN
    for first in _records(source.head):
        found_session = found_session or text_of(first.get("sessionId"))
        found_agent = found_agent or (
            text_of(first.get("agentId")) if first.get("isSidechain") is True else None
        )
        if found_session and (found_agent or match is None):
            break
    agent = (found_agent or match["id"]) if match else MAIN
    parts = path.parts
    if below:
        return parts[len(parts) - 1 - parts[::-1].index("subagents") - 1], agent
    return found_session or path.stem, agent


def _records(head: bytes) -> Iterator[dict[str, Any]]:
    """The records at the beginning of a log that are whole."""
    at = 0
    for _ in range(40):
        end = head.find(b"\n", at)
        line = head[at:] if end < 0 else head[at:end]
        first = parse(line) if line.strip() else None
        if first is not None:
            yield first
        if end < 0:
            break
        at = end + 1


PROGRAM = ClaudeCode()
