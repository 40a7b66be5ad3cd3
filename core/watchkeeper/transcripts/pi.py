"""The logs of pi (and of OpenClaw, which is built on it): `~/.pi/agent/sessions/<folder>/<time>_<id>.jsonl`, read line by line.

What is known of the format is in docs/log-formats.md. The first line names the session. Each further line is an entry with an
`id` and the `parentId` of the entry before it: a tree, whose newest leaf is the conversation. The oldest logs have no ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec import field

from watchkeeper.transcripts.branches import Branches
from watchkeeper.transcripts.records import (
    MADE_UP,
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
    same_bytes,
    seconds,
    text_of,
)

_STOPS = {"stop": "end_turn", "length": "max_tokens", "toolUse": "tool_use"}
_HIDDEN = frozenset({"custom", "label", "thinking_level_change"})


class PiReader(JsonReader):
    """A `LineReader`. Its fields are its saved state."""

    tree: Branches = field(default_factory=Branches)

    def read(self, line: int, record: dict[str, Any]) -> list[Record]:
        kind, at = text_of(record.get("type")) or "?", seconds(record.get("timestamp"))
        if kind == "session":
            return self._header(record)
        found: list[Record] = []
        message = object_of(record.get("message"))
        # A log without ids gets some when a newer version opens it: until then a message is known by what it says and when.
        said = f"{message.get('timestamp')}:{crc32(same_bytes(message)):x}" if message else f"{kind}:{line}"
        uid = text_of(record.get("id")) or f"{MADE_UP}{said}"
        if kind == "leaf":
            found = [*self.tree.go_to(MAIN, text_of(record.get("targetId")), at)] or [Raw(kind, NOT_FOR_US)]
        elif "parentId" in record:
            found += self.tree.go_to(MAIN, text_of(record["parentId"]), at)
        if kind == "leaf":
            pass
        elif kind == "message":
            self._message(MAIN, message, uid, at, said, found)
        elif kind in ("custom_message", "branch_summary"):
            content = record.get("content") if kind == "custom_message" else _tagged(record.get("summary"))
            found.append(ImportedMessage(MAIN, uid, "user", _blocks(content), at, injected=True))
        elif kind == "compaction":
            self._compaction(record, uid, at, found)
        elif kind == "model_change":
            found.append(
                ImportedAgent(MAIN, model=_model(record.get("provider"), record.get("modelId")), at=at)
            )
        elif kind == "session_info":
            found.append(Session(self.session, title=text_of(record.get("name"))))
        else:
            found.append(Raw(kind[:80], NOT_FOR_US if kind in _HIDDEN else UNKNOWN_TYPE))
        is_message = any(type(each) is ImportedMessage for each in found)
        if not is_message:  # nothing else names the line
            found = [
                each._replace(uid=f"{uid}.{n}") if type(each) is Rewind else each
                for n, each in enumerate(found)
            ]
        if kind != "leaf":
            self.tree.add(uid, is_message=is_message)
        return found

    def _header(self, record: dict[str, Any]) -> list[Record]:
        self.session = text_of(record.get("id")) or self.session
        self.tree = Branches()
        parent = text_of(record.get("parentSession")) or text_of(record.get("branchedFrom"))
        version = record.get("version")
        return [
            Session(
                self.session,
                workspace=text_of(record.get("cwd")),
                version=f"format {version}" if type(version) is int else None,
                forked_from=_session_in(Path(parent).stem) if parent else None,
            )
        ]

    def _compaction(self, record: dict[str, Any], uid: str, at: float | None, found: list[Record]) -> None:
        index = record.get("firstKeptEntryIndex")
        if type(index) is int:  # by its place in the file, whose first line is the header
            kept = self.tree.messages_from(index=index - 1)
        else:
            kept = self.tree.messages_from(text_of(record.get("firstKeptEntryId")))
        before, by_extension = record.get("tokensBefore"), record.get("fromHook") is True
        found += (
            ImportedCompaction(
                MAIN,
                uid,
                "extension" if by_extension else "unknown",
                at,
                tokens_before=count_of(before) or None,
                keep_from=kept,
                unlogged=not by_extension,
            ),
            Summary(MAIN, uid, text_of(record.get("summary")) or "", at),
        )

    # Messages, of the conversation and of the agents that the extension `subagent` ran.

    def _message(
        self, agent: str, message: dict[str, Any], uid: str, at: float | None, said: str, found: list[Record]
    ) -> None:
        role = text_of(message.get("role")) or "?"
        if role == "assistant":
            self._reply(agent, message, uid, at, said, found)
        elif role == "toolResult":
            self._result(agent, message, uid, at, said, found)
        elif role == "bashExecution" and message.get("excludeFromContext") is True:
            found.append(Raw("message/bashExecution", "not in the context"))
        elif role in ("user", "custom", "hookMessage", "bashExecution"):
            content = _execution(message) if role == "bashExecution" else message.get("content")
            injected = role != "user"
            found.append(
                ImportedMessage(agent, uid, "user", _blocks(content), at, injected=injected, alias=said)
            )
        else:
            found.append(Raw(f"message/{role}"[:80], UNKNOWN_TYPE))

    def _reply(
        self, agent: str, message: dict[str, Any], uid: str, at: float | None, said: str, found: list[Record]
    ) -> None:
        usage, began = object_of(message.get("usage")), seconds(message.get("timestamp"))
        fresh, output, read, written = (
            count_of(usage.get(name)) for name in ("input", "output", "cacheRead", "cacheWrite")
        )
        # Local servers restart the numbers of their responses, and a fork keeps both.
        key = f"{text_of(message.get('responseId')) or uid}:{message.get('timestamp')}"
        content, stop = _blocks(message.get("content")), text_of(message.get("stopReason")) or ""
        if content:
            found.append(ImportedMessage(agent, uid, "assistant", content, at, key, alias=said))
        for block in content:
            if block.get("type") == "tool_use":
                found.append(ToolCall(agent, block["id"], block["name"], at))
        if fresh or output or read or written:
            cost = object_of(usage.get("cost")).get("total")
            found.append(
                ModelCall(
                    agent, key, _model(message.get("provider"), message.get("model")) or "", fresh, output, read, written,
                    min(written, count_of(usage.get("cacheWrite1h"))), stop_reason=_STOPS.get(stop, stop or None), at=at,
                    latency_seconds=max(0.0, at - began) if at is not None and began is not None else 0.0,
                    # 0 says that pi knows no price, or that it is in a subscription.
                    cost_usd=float(cost) if isinstance(cost, int | float) and cost > 0 else None,
                )
            )  # fmt: skip
        if stop in ("error", "aborted"):
            reason = text_of(message.get("errorMessage")) or stop
            found.append(
                Failure(
                    agent, "error" if stop == "error" else "interrupted", reason, at, "" if content else uid
                )
            )

    def _result(
        self, agent: str, message: dict[str, Any], uid: str, at: float | None, said: str, found: list[Record]
    ) -> None:
        call, name = text_of(message.get("toolCallId")) or uid, text_of(message.get("toolName")) or ""
        content, failed = _blocks(message.get("content")), message.get("isError") is True
        block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": failed}
        found.append(ImportedMessage(agent, uid, "user", [block], at, injected=True, alias=said))
        preview = next((str(each["text"]) for each in content if "text" in each), "")
        found.append(ToolResult(agent, call, "error" if failed else "done", at, preview))
        details = object_of(message.get("details"))
        if name == "todo" and isinstance(details.get("todos"), list):
            items = [
                PlanItem(str(each.get("id")), text_of(each.get("text")), "done" if each.get("done") is True else "pending")
                for each in map(object_of, details["todos"])
            ]  # fmt: skip
            found.append(Plan(agent, name, items, whole=True, plan=agent, at=at))
        elif name == "subagent" and agent == MAIN:
            for place, each in enumerate(map(object_of, list_of(details.get("results")))):
                self._sub_agent(f"{call}.{place}", call, each, at, found)

    def _sub_agent(
        self, key: str, call: str, result: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        """An agent that ran in a process of its own: its messages are in the result of the call that started it."""
        failed = result.get("exitCode") != 0 or result.get("stopReason") in ("error", "aborted")
        reason = text_of(result.get("errorMessage")) or text_of(result.get("stderr")) if failed else None
        name = text_of(result.get("agent"))
        for place, message in enumerate(map(object_of, list_of(result.get("messages")))):
            then = seconds(message.get("timestamp")) or at
            self._message(key, message, f"{key}.{place}", then, "", found)
        found.append(
            ImportedAgent(
                key, MAIN, call, name, name, text_of(result.get("task")), at=at,
                status="failed" if failed else "done", reason=reason, ended=True,
            )
        )  # fmt: skip


def _model(provider: Any, name: Any) -> str | None:
    """`provider/model`."""
    parts = [part for part in map(text_of, (provider, name)) if part is not None]
    return "/".join(parts) if text_of(name) else None


def _session_in(stem: str) -> str:
    """The id in a log's name: `<time>_<id>` or `<id>`."""
    return stem.rpartition("_")[2]


def _tagged(summary: Any) -> str:
    return f"<summary>\n{text_of(summary) or ''}\n</summary>"


def _execution(message: dict[str, Any]) -> str:
    """The text that the model receives about a command that the person ran."""
    code = message.get("exitCode")
    ended = "(command cancelled)" if message.get("cancelled") is True else f"Exit code {code}" if code else ""
    output = text_of(message.get("output")) or "(no output)"
    return "\n".join(filter(None, (f"Ran `{message.get('command')}`", output, ended)))


def _blocks(content: Any) -> list[dict[str, Any]]:
    """Content as Anthropic's blocks; those of kinds that are not known stay as they are."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(each) for each in list_of(content) if isinstance(each, dict)]


def _block(block: dict[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "toolCall":
        call, name = text_of(block.get("id")) or "?", text_of(block.get("name")) or "?"
        return {"type": "tool_use", "id": call, "name": name, "input": object_of(block.get("arguments"))}
    if kind == "thinking":
        return {
            "type": "thinking",
            "thinking": text_of(block.get("thinking")) or "",
            "signature": text_of(block.get("thinkingSignature")) or "",
        }
    if kind == "image":
        source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
        return {"type": "image", "source": source}
    return block


class Pi(Program):
    """pi, from its first logs (2025-11) on, and OpenClaw."""

    name = "pi"
    alias = "pi"
    label = "pi/OpenClaw"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`sessions` in `PI_CODING_AGENT_DIR`, else in `~/.pi/agent`; and the agents of OpenClaw and its earlier names."""
        chosen, state = (
            environ.get("PI_CODING_AGENT_DIR", "").strip(),
            environ.get("OPENCLAW_STATE_DIR", "").strip(),
        )
        folder = Path(chosen).expanduser() if chosen else home / ".pi" / "agent"
        claws = (
            [Path(state).expanduser()]
            if state
            else [home / f".{name}" for name in ("openclaw", "clawdbot", "moltbot")]
        )
        return [folder / "sessions", *(claw / "agents" for claw in claws)]

    def may_be_log(self, path: Path) -> bool:
        return path.suffix == ".jsonl" and not path.stem.endswith(".trajectory")

    def recognises(self, source: Source) -> bool:
        first = first_object(source.head)
        return first.get("type") == "session" and "cwd" in first and text_of(first.get("id")) is not None

    def reader(self, source: Source, state: dict[str, Any] | None) -> PiReader:
        return PiReader.restore(state) if state is not None else PiReader(_session_in(source.path.stem))


PROGRAM = Pi()
