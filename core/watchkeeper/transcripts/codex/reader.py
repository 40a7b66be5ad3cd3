"""Reads one log of Codex, line by line.

What is known of the format is in docs/transcripts.md. A line is `{timestamp, type, payload}`; in the oldest logs it is a
response item by itself, and the first line a header. A log is of one thread, and is only ever appended to: what a
compaction dropped still stands in it.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from watchkeeper.transcripts.codex import items
from watchkeeper.transcripts.codex.agents import SpawnBook, plan_items
from watchkeeper.transcripts.codex.events import OutcomeBook, words_of
from watchkeeper.transcripts.codex.threads import Replay, Thread, thread_of
from watchkeeper.transcripts.codex.types import EVENTS, ITEMS, LINES, NOT_FOR_US, REPETITIONS, REPLAYED, SAID_AGAIN
from watchkeeper.transcripts.codex.usage import UsageBook
from watchkeeper.transcripts.jsontext import count_of, parse, seconds, text_of
from watchkeeper.transcripts.records import (
    MAIN,
    Agent,
    Compaction,
    Failure,
    Message,
    ModelCall,
    Plan,
    Raw,
    Record,
    Session,
    Skipped,
    Summary,
    ToolCall,
    ToolResult,
)

LINES_KEPT = 1_000
_KEPT_OF_COPIES = (Session, Message, Plan, Compaction, Summary, Raw, Skipped)
"""What a thread that a person forked has of the other's history: its context, and none of its work."""
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output", "mcp_tool_call_output"})
_TURN_ENDS = frozenset({"task_complete", "turn_complete"})
_TURN_STARTS = frozenset({"task_started", "turn_started"})


class CodexReader:
    """A `LineReader`.

    Args:
        session: key of the session that the log belongs to: its thread, or the one at the top of its tree; None where
            the log's beginning does not tell.
        named: the thread as the file's name has it.
    """

    def __init__(self, session: str | None, named: str) -> None:
        self._session = session or named
        self._thread = named
        self._owner = MAIN
        self._spawned = False
        self._opened = False
        self._provider = "openai"
        self._model: str | None = None
        self._began: float | None = None
        self._usage = UsageBook()
        self._last: list[Any] | None = None
        """The last model call: key, model, its tokens, its time."""
        self._replay = Replay(None, None)
        self._spawns = SpawnBook(MAIN, self._key_of)
        self._outcomes = OutcomeBook()
        self._turn = 0
        self._fresh = True
        """The next item that the model makes begins a reply."""
        self._same: dict[str, int] = {}
        """Lines without a time → how many of them were the same."""

    @classmethod
    def restore(cls, state: dict[str, Any]) -> CodexReader:
        """The reader that `save` told of."""
        reader = cls(str(state["session"]), str(state["thread"]))
        reader._opened = True
        reader._owner = str(state["owner"])
        reader._spawned = bool(state.get("spawned"))
        reader._provider = str(state["provider"])
        reader._model = state.get("model")
        reader._began = state.get("began")
        reader._usage = UsageBook(state.get("total"))
        reader._last = list(state["last"]) if state.get("last") else None
        reader._replay = Replay.restore(state.get("replay"))
        reader._spawns = SpawnBook(reader._owner, reader._key_of, state.get("spawns"))
        reader._outcomes = OutcomeBook(state.get("failed"))
        reader._turn = int(state.get("turn", 0))
        reader._fresh = bool(state.get("fresh", True))
        reader._same = dict(state.get("same", {}))
        return reader

    def save(self) -> dict[str, Any]:
        return {
            "session": self._session,
            "thread": self._thread,
            "owner": self._owner,
            "spawned": self._spawned,
            "provider": self._provider,
            "model": self._model,
            "began": self._began,
            "total": self._usage.total,
            "last": self._last,
            "replay": self._replay.save(),
            "spawns": self._spawns.calls,
            "failed": self._outcomes.failed,
            "turn": self._turn,
            "fresh": self._fresh,
            "same": self._same,
        }

    def feed(self, line: int, data: bytes) -> list[Record]:
        if not data.strip():
            return [Skipped("empty line")]
        record = parse(data)
        if record is None:
            broken = Raw("?", "broken JSON" if data.lstrip()[:1] == b"{" else "not a JSON object")
            # Of a log that begins so, its name (or a later line) tells the session.
            return [broken] if self._opened else [Session(self._session), broken]
        at = seconds(record.get("timestamp"))
        kind, payload = text_of(record.get("type")), record.get("payload")
        if not isinstance(payload, dict):
            kind, payload = self._bare(record)
        opening = self._open(kind, payload, at)
        found: list[Record] = []
        copied = not opening and self._replay.copied(kind, payload, at)
        if kind == "session_meta":
            self._meta(payload, bool(opening), found)
        elif kind == "response_item":
            self._item(payload, at, self._uid(data, at), found)
        elif kind == "event_msg":
            self._event(payload, at, data, found)
        elif kind == "turn_context":
            self._turn_context(payload, found)
        elif kind == "compacted":
            self._compacted(payload, at, self._uid(data, at), found)
        elif isinstance(kind, str):
            found.append(Raw(kind[:80], NOT_FOR_US if kind in LINES else "unknown record type"))
        else:
            found.append(Raw("?", "a record without a type"))
        if copied or (kind == "session_meta" and self._replay.going and not opening):
            found = self._of_copy(found)
            if self._last is not None:
                self._last[0] = ""  # the other thread's call: no end of a turn here is its end
        return opening + found if opening else found

    def _bare(self, record: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A line of the oldest logs, as the later ones would hold it."""
        kind = text_of(record.get("type"))
        if kind in ITEMS:
            return "response_item", record
        if kind is None and text_of(record.get("id")) and "timestamp" in record:
            return "session_meta", record
        if kind is None and isinstance(record.get("record_type"), str):
            return f"record/{record['record_type']}"[:80], {}
        return (f"{kind} without a payload" if kind in LINES else kind), {}

    def _of_copy(self, found: list[Record]) -> list[Record]:
        if not self._spawned:
            found = [each for each in found if isinstance(each, _KEPT_OF_COPIES)]
            if found:
                return found
        return [Skipped(REPLAYED)]

    # The thread.

    def _open(self, kind: Any, payload: dict[str, Any], at: float | None) -> list[Record]:
        """Name the session and its agent with the first record."""
        if self._opened:
            return []
        self._opened = True
        self._began = at
        thread = thread_of(payload) if kind == "session_meta" else None
        if thread is None:
            return [Session(self._session, at=at)]
        self._thread = thread.id
        self._spawned = thread.parent is not None
        provider = text_of(payload.get("model_provider"))
        self._provider = provider or self._provider
        self._replay = Replay(thread, at)
        began = at if thread.at is None else thread.at
        version, folder = text_of(payload.get("cli_version")), text_of(payload.get("cwd"))
        fork = thread.forked_from if not self._spawned else None
        found: list[Record] = [Session(self._session, folder, None, version, fork, began)]
        if self._spawned:
            found.append(self._child(thread, began))
        return found

    def _child(self, thread: Thread, at: float | None) -> Agent:
        self._owner = self._key_of(thread.id)
        self._spawns = SpawnBook(self._owner, self._key_of)
        parent = self._key_of(thread.parent) if thread.parent is not None else MAIN
        return Agent(self._owner, parent, name=thread.name, role=thread.role, at=at)

    def _key_of(self, thread: str) -> str:
        return MAIN if thread == self._session else thread

    def _meta(self, payload: dict[str, Any], first: bool, found: list[Record]) -> None:
        if first:
            if thread_of(payload) is None:
                found.append(Raw("session_meta", "names no thread"))
            return
        thread = thread_of(payload)
        if thread is not None and thread.id == self._thread:
            found.append(Session(self._session, text_of(payload.get("cwd")), version=text_of(payload.get("cli_version"))))
            return
        if self._replay.going:
            self._replay.certain = True
        found.append(Raw("session_meta", "of another thread"))

    def _turn_context(self, payload: dict[str, Any], found: list[Record]) -> None:
        model = text_of(payload.get("model"))
        if model is not None:
            self._model = model
            found.append(Agent(self._owner, model=self._model_ref()))
        found.append(Raw("turn_context", NOT_FOR_US))

    def _model_ref(self) -> str:
        return f"{self._provider}/{self._model}" if self._model else "unknown"

    def _uid(self, data: bytes, at: float | None) -> str:
        """Nothing for a line with a time: no two are the same. Others are told apart by how often they came."""
        if at is not None:
            return ""
        digest = blake2b(data, digest_size=9).hexdigest()
        count = self._same.pop(digest, 0) + 1
        self._same[digest] = count
        if len(self._same) > LINES_KEPT:
            self._same.pop(next(iter(self._same)))
        return f"{self._thread}:{digest}:{count}"

    def _event_uid(self, data: bytes, at: float | None) -> str:
        return self._uid(data, at) or f"{self._thread}:{blake2b(data, digest_size=12).hexdigest()}"

    # Response items.

    def _item(self, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        kind = text_of(item.get("type")) or "?"
        if kind == "message":
            self._message(item, at, uid, found)
        elif kind == "reasoning":
            self._say(items.thinking(item), at, uid, found)
        elif kind in ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call"):
            self._call(kind, item, at, uid, found)
        elif kind in _OUTPUTS:
            self._output(item, item.get("output", item.get("result")), at, uid, found)
        elif kind == "tool_search_output":
            self._output(item, json.dumps(item.get("tools"), ensure_ascii=False), at, uid, found)
        elif kind in ("web_search_call", "image_generation_call"):
            self._hosted(kind, item, at, uid, found)
        elif kind == "agent_message":
            self._heard(items.blocks(item.get("content")), at, uid, found)
        elif kind in ITEMS:
            found.append(Raw(f"response_item/{kind}", NOT_FOR_US))
        else:
            found.append(Raw(f"response_item/{kind[:60]}", "unknown record type"))

    def _message(self, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        content = items.blocks(item.get("content"))
        if item.get("role") == "assistant":
            self._say(content, at, uid, found)
            return
        if not content:
            found.append(Raw("response_item/message", "a message without content"))
            return
        texts = [block["text"].lstrip() for block in content if block["type"] == "text"]
        injected = item.get("role") != "user" or (bool(texts) and all(text.startswith(items.INJECTED) for text in texts))
        self._heard(content, at, uid, found, injected=injected)

    def _say(self, content: list[dict[str, Any]], at: float | None, uid: str, found: list[Record]) -> None:
        """The model made something; a reply goes on until its tokens are counted or somebody else speaks."""
        if not content:
            found.append(Raw("response_item/message", "a message without content"))
            return
        if self._fresh:
            self._turn, self._fresh = self._turn + 1, False
        found.append(Message(self._owner, uid, "assistant", content, at, f"{self._thread}/{self._turn}"))

    def _heard(self, content: Any, at: float | None, uid: str, found: list[Record], *, injected: bool = False) -> None:
        self._fresh = True
        found.append(Message(self._owner, uid, "user", content, at, injected=injected))

    def _call(self, kind: str, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        call_id = text_of(item.get("call_id")) or text_of(item.get("id")) or f"{self._thread}.{self._turn}.{uid}"
        name = text_of(item.get("name"))
        if kind == "local_shell_call":
            name, arguments = "local_shell", items.arguments_of(item.get("action"))
        elif kind == "custom_tool_call":
            given = item.get("input")
            arguments = given if isinstance(given, dict) else {"input": given if isinstance(given, str) else ""}
        elif kind == "tool_search_call":
            name, arguments = "tool_search", items.arguments_of(item.get("arguments"))
        else:
            arguments = items.arguments_of(item.get("arguments"))
        namespace = text_of(item.get("namespace"))
        name = f"{namespace}.{name}" if namespace and name else name or "?"
        self._say([{"type": "tool_use", "id": call_id, "name": name, "input": arguments}], at, uid, found)
        found.append(ToolCall(self._owner, call_id, name, at))
        self._spawns.called(name, call_id, arguments)
        if name.rpartition(".")[2] == "update_plan":
            steps = plan_items(arguments)
            if steps is not None:
                found.append(Plan(self._owner, "update_plan", steps, whole=True, plan=self._owner, at=at))

    def _output(self, item: dict[str, Any], output: Any, at: float | None, uid: str, found: list[Record]) -> None:
        call_id = text_of(item.get("call_id")) or text_of(item.get("id"))
        if call_id is None:
            found.append(Raw(f"response_item/{item.get('type')}", "an output of no call"))
            return
        content, status = items.output_of(output)
        status = self._outcomes.of(call_id, status)
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        if status in ("error", "denied"):
            block["is_error"] = True
        # A reply may still go on: calls are carried out while it streams.
        found.append(Message(self._owner, uid, "user", [block], at))
        self._fresh = self._fresh or self._last is None
        found.append(ToolResult(self._owner, call_id, status, at))
        self._spawns.answered(call_id, content, at, found)

    def _hosted(self, kind: str, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        """A tool that the model's own host carries out: its result is not in the log, or an image beside the call."""
        name = kind.removesuffix("_call")
        call_id = text_of(item.get("id")) or text_of(item.get("call_id")) or f"{self._thread}.{name}.{self._turn}.{at or uid}"
        if kind == "web_search_call":
            arguments = items.arguments_of(item.get("action"))
        else:
            prompt = text_of(item.get("revised_prompt"))
            arguments = {"prompt": prompt} if prompt else {}
        content: list[dict[str, Any]] = [{"type": "tool_use", "id": call_id, "name": name, "input": arguments}]
        made = items.image(item.get("result")) if kind == "image_generation_call" else None
        self._say([*content, made] if made is not None else content, at, uid, found)
        found.append(ToolCall(self._owner, call_id, name, at))
        failed = item.get("status") in ("failed", "incomplete")
        found.append(ToolResult(self._owner, call_id, "error" if failed else "done", at))

    # Compactions.

    def _compacted(self, payload: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        before = self._last[4] if self._last is not None else None
        found.append(Compaction(self._owner, uid, "auto", at, before))
        found.append(Summary(self._owner, uid and f"{uid}:summary", items.stands_in(payload), at))
        self._fresh = True
        if self._last is not None:
            self._last[4] = None  # what the context held before is of no use for the next compaction

    # Events.

    def _event(self, payload: dict[str, Any], at: float | None, data: bytes, found: list[Record]) -> None:
        kind = text_of(payload.get("type")) or "?"
        if kind == "token_count":
            self._token_count(payload, at, found)
        elif kind == "turn_aborted":
            reason = text_of(payload.get("reason")) or "interrupted"
            found.append(Failure(self._owner, "interrupted", f"turn aborted: {reason}", at, self._event_uid(data, at)))
        elif kind == "error":
            found.append(Failure(self._owner, "error", words_of(payload), at, self._event_uid(data, at)))
        elif kind == "stream_error":
            found.append(Failure(self._owner, "retry", words_of(payload), at, self._event_uid(data, at)))
        elif kind in _TURN_ENDS:
            self._turn_ended(payload, at, data, found)
        elif kind in _TURN_STARTS:
            window = count_of(payload.get("model_context_window"))
            found.append(Agent(self._owner, context_limit=window or None, status="working" if self._spawned else None, at=at))
        elif kind == "thread_name_updated" and text_of(payload.get("thread_name")) and not self._spawned:
            found.append(Session(self._session, title=text_of(payload.get("thread_name"))))
        else:
            self._outcomes.event(kind, payload)
            self._spawns.event(kind, payload, at, found)
            known = SAID_AGAIN if kind in REPETITIONS else NOT_FOR_US if kind in EVENTS else "unknown record type"
            found.append(Raw(f"event_msg/{kind[:60]}", known))

    def _token_count(self, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        info = payload.get("info")
        if not isinstance(info, dict):
            found.append(Raw("event_msg/token_count", NOT_FOR_US))  # rate limits alone
            return
        window = count_of(info.get("model_context_window"))
        if window:
            found.append(Agent(self._owner, context_limit=window))
        usage = self._usage.take(info)
        if usage is None:
            found[:] = [Skipped("repeats a token count")]
            return
        key = f"{self._thread}:{usage.key}" if usage.key else ""
        figures = [usage.input, usage.output, usage.cached, usage.written]
        self._fresh = True
        self._last = [key, self._model_ref(), figures, at, usage.prompt + usage.output, usage.exact]
        found.append(self._model_call(None))

    def _model_call(self, stop_reason: str | None) -> ModelCall:
        assert self._last is not None
        key, model, figures, at, _, exact = self._last
        fresh, output, read, written = figures
        return ModelCall(self._owner, key, model, fresh, output, read, written, exact=exact, stop_reason=stop_reason, at=at)

    def _turn_ended(self, payload: dict[str, Any], at: float | None, data: bytes, found: list[Record]) -> None:
        error = payload.get("error")
        if isinstance(error, dict) and text_of(error.get("message")):
            found.append(Failure(self._owner, "error", words_of(error), at, self._event_uid(data, at)))
        elif self._last is not None and self._last[0]:
            found.append(self._model_call("end_turn"))
        if self._spawned:
            found.append(Agent(self._owner, at=at, status="failed" if error else "done"))
        if not found:
            found.append(Raw(f"event_msg/{payload.get('type')}", NOT_FOR_US))
