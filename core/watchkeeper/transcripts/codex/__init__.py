"""Codex's logs: `~/.codex/sessions/<year>/<month>/<day>/rollout-*.jsonl`, one for each thread, read line by line.

What is known of the format is in docs/log-formats.md. A line is `{timestamp, type, payload}`; in the oldest
logs it is a response item by itself, and the first line a header. A log is of one thread, and is only ever
appended to: what a compaction dropped is still in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field, to_builtins

from watchkeeper.records.quota import codex_readings
from watchkeeper.records.usage import modifier
from watchkeeper.records.usage_limits import usage_limit
from watchkeeper.transcripts import files
from watchkeeper.transcripts.codex import items
from watchkeeper.transcripts.codex.items import (
    EVENTS,
    ITEMS,
    LINES,
    NOT_FOR_US,
    REPETITIONS,
    REPLAYED,
    SAID_AGAIN,
    Replay,
    Thread,
    arguments_of,
    failed_call,
    thread_of,
    words_of,
)
from watchkeeper.transcripts.records import (
    MAIN,
    Failure,
    ImportedAgent,
    ImportedCompaction,
    ImportedMessage,
    ModelCall,
    PlaceIds,
    Plan,
    PlanItem,
    Program,
    QuotaReport,
    Raw,
    Record,
    Rewind,
    Session,
    Skipped,
    Source,
    Summary,
    ToolCall,
    ToolResult,
    count_of,
    distinct_items,
    id_of,
    no_record,
    object_of,
    parse,
    seconds,
    text_of,
)

# --- The reader -----------------------------------------------------------------------------------------

# Token counts: events with the sum so far and the usage of the last call; in later versions, a record for each
# response.
#
# The same count is logged again and again (with each news of rate limits, after a compaction, on resuming): one
# sum is one call. Where only sums are reported, a call is the difference to the sum before. Where a record tells of
# a response, the count that follows tells of it again.

_FIELDS = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens")


class Usage(NamedTuple):
    """One call's tokens, as Codex tells them: `prompt` includes what the cache served and took."""

    prompt: int
    cached: int
    written: int
    output: int
    """Reasoning included."""
    key: str
    """The key of the sum after it, or of the response; empty where neither was reported."""
    exact: bool

    @property
    def input(self) -> int:
        """Neither read from nor written to the cache."""
        return max(0, self.prompt - self.cached - self.written)


class ThreadUsage(Struct, array_like=True):
    """The sums of one thread. As JSON it is the list of its fields: part of a reader's saved state."""

    total: list[int] | None = None
    recorded: list[int] | None = None
    """What the newest record of a response says."""
    awaited: bool = False
    """The count that repeats that record has not come."""

    def take(self, info: dict[str, Any]) -> Usage | None:
        """The call that this count tells of; None where it tells of none that is new."""
        total, last = _vector(info.get("total_token_usage")), _vector(info.get("last_token_usage"))
        before, self.total = self.total, total or self.total
        reported, self.awaited = self.awaited, False
        if (
            reported
            or (self.recorded is not None and last == self.recorded)
            or (total is not None and total == before)
        ):
            return None
        key = ":".join(map(str, total)) if total is not None else ""
        exact = last is not None
        if last is None and total is not None:
            fell = before is not None and any(new < old for new, old in zip(total, before, strict=True))
            last = (
                total
                if before is None or fell
                else [new - old for new, old in zip(total, before, strict=True)]
            )
        return _usage(last, key, exact=exact)

    def record(self, record: dict[str, Any], *, again: bool = False) -> Usage | None:
        """The call that a record tells of; None where it has no usage. `again`: its own line came
        before."""
        reported = _vector(record.get("usage"))
        usage = _usage(reported, text_of(record.get("response_id")) or "", exact=True)
        if usage is not None:
            self.recorded, self.awaited = reported, self.awaited or not again
        return usage


def _usage(counts: list[int] | None, key: str, *, exact: bool) -> Usage | None:
    if counts is None or not any(counts):
        return None
    prompt, cached, written, output = counts
    cached = min(cached, prompt)
    return Usage(prompt, cached, min(written, prompt - cached), output, key, exact)


def _vector(usage: Any) -> list[int] | None:
    if not isinstance(usage, dict):
        return None
    found = [count_of(usage.get(name)) for name in _FIELDS]
    if not usage.get("cached_input_tokens"):
        found[1] = count_of(usage.get("cache_read_input_tokens"))
    return found


# Scripts of Codex's code mode: tool calls inside a script have no lines of their own. A plan that a script writes
# out is read.
#
# A script is JavaScript: `await tools.update_plan({plan: [{step: "Look", status: "in_progress"}]})`. A plan
# that is put together while it runs cannot be read from it.

SCRIPTING_TOOLS = frozenset({"exec"})
_CALL = re.compile(r"\bupdate_plan\s*\(\s*\{")
_TEXT = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)"""
_STEP = re.compile(
    rf"""\{{\s*["']?(?P<first>step|status)["']?\s*:\s*{_TEXT}\s*,\s*["']?(?:step|status)["']?\s*:\s*{_TEXT}\s*,?\s*\}}""",
    re.DOTALL,
)
LONGEST_SCRIPT = 200_000


def plans_in(script: str) -> list[dict[str, Any]]:
    """The arguments of each `update_plan` that a script calls with a plan that is written there, in order."""
    starts = [match.end() for match in _CALL.finditer(script, 0, LONGEST_SCRIPT)]
    found = []
    for start, end in zip(starts, [*starts[1:], LONGEST_SCRIPT], strict=False):
        steps = []
        for match in _STEP.finditer(script, start, end):
            step, status = _said(match[2]), _said(match[3])
            steps.append(
                {"step": status, "status": step}
                if match["first"] == "status"
                else {"step": step, "status": status}
            )
        if steps:
            found.append({"plan": steps})
    return found


def _said(literal: str) -> str:
    """What a literal says, as far as JSON knows its escapes."""
    inside = literal[1:-1]
    if literal[0] != '"':
        inside = inside.replace(f"\\{literal[0]}", literal[0]).replace('"', '\\"')
    try:
        return str(json.loads(f'"{inside}"', strict=False))
    except ValueError:
        return inside


# What calls of Codex's own tools do: agents that a thread spawned, and its plan.
#
# A spawned agent has a log of its own as well, where it is not lost.

Ended = Literal["working", "done", "failed", "cancelled"]

SPAWNING_TOOLS = ("spawn_agent",)
CALLS_KEPT = 200
_STEPS: dict[str, Any] = {"pending": "pending", "in_progress": "running", "completed": "done"}
_STATUS: dict[str, Ended] = {
    "completed": "done",
    "shutdown": "done",
    "errored": "failed",
    "not_found": "failed",
    "interrupted": "cancelled",
    "running": "working",
    "pending_init": "working",
}


class SpawnCalls(Struct):
    """Calls that spawn agents, and what became of them."""

    session: str = ""
    owner: str = MAIN
    """Key of the agent whose log it is."""
    calls: dict[str, list[str]] = {}
    """Call → what the agent was asked for, its role and its name."""

    def key_of(self, thread: str) -> str:
        """The key of the agent that a thread is."""
        return MAIN if thread == self.session else thread

    def called(self, name: str, call_id: str, arguments: dict[str, Any]) -> None:
        """A tool was called."""
        if name.rpartition(".")[2] not in SPAWNING_TOOLS:
            return
        self.calls[call_id] = [
            next(filter(None, (text_of(arguments.get(name)) for name in names)), "")
            for names in (("message", "task", "prompt"), ("agent_type", "role"), ("task_name",))
        ]
        if len(self.calls) > CALLS_KEPT:
            self.calls.pop(next(iter(self.calls)))

    def answered(self, call_id: str, content: Any, at: float | None, found: list[Record]) -> None:
        """A call's output names the agent."""
        if call_id not in self.calls or not isinstance(content, str):
            return
        outcome = arguments_of(content)
        child = text_of(outcome.get("agent_id")) or text_of(outcome.get("thread_id"))
        if child is not None:
            found.append(self._agent(child, call_id, at, name=text_of(outcome.get("nickname"))))

    def event(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """An event tells of other threads."""
        if kind == "collab_agent_spawn_end":
            name, role = text_of(payload.get("new_agent_nickname")), text_of(payload.get("new_agent_role"))
            goal, status = text_of(payload.get("prompt")), _status(payload.get("status"))
            if child := text_of(payload.get("new_thread_id")):
                call_id = text_of(payload.get("call_id"))
                found.append(self._agent(child, call_id, at, name=name, role=role, goal=goal, status=status))
        elif kind == "sub_agent_activity":
            self._activity(payload, text_of(payload.get("event_id")), at, found)
        elif kind == "item_completed" and isinstance(payload.get("item"), dict):
            self._item(payload["item"], at, found)
        elif kind in ("collab_waiting_end", "collab_close_end", "collab_agent_interaction_end"):
            statuses = (
                object_of(payload.get("statuses"))
                if kind == "collab_waiting_end"
                else {text_of(payload.get("receiver_thread_id")): payload.get("status")}
            )
            found += (
                ImportedAgent(self.key_of(child), at=at, status=status)
                for child, each in statuses.items()
                if child and (status := _status(each)) is not None
            )

    def _item(self, item: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """Later logs hold what was completed in place of events."""
        if item.get("type") == "SubAgentActivity":
            self._activity(item, text_of(item.get("id")), at, found)
        elif item.get("type") == "CollabAgentToolCall" and isinstance(item.get("receiver_thread_ids"), list):
            states = object_of(item.get("agents_states"))
            spawned = text_of(item.get("id")) if text_of(item.get("tool")) in SPAWNING_TOOLS else None
            goal = text_of(item.get("prompt")) if spawned else None
            for child in filter(None, map(text_of, item["receiver_thread_ids"])):
                state = states.get(child)
                status = _status(object_of(state).get("status", state))
                found.append(self._agent(child, spawned, at, goal=goal, status=status))

    def _activity(
        self, payload: dict[str, Any], call_id: str | None, at: float | None, found: list[Record]
    ) -> None:
        child, kind = text_of(payload.get("agent_thread_id")), payload.get("kind")
        if child is not None:
            path = text_of(payload.get("agent_path"))
            started = call_id if kind == "started" else None
            found.append(self._agent(child, started, at, name=path, status=_status(kind)))

    def _agent(
        self,
        child: str,
        call_id: str | None,
        at: float | None,
        *,
        name: str | None = None,
        role: str | None = None,
        goal: str | None = None,
        status: Ended | None = None,
    ) -> ImportedAgent:
        asked = self.calls.get(call_id or "", ["", "", ""])
        return ImportedAgent(
            self.key_of(child),
            self.owner,
            call_id,
            name or asked[2] or None,
            role or asked[1] or None,
            goal or asked[0] or None,
            at=at,
            status=status,
        )


def _status(status: Any) -> Ended | None:
    if isinstance(status, dict):
        status = next(iter(status), None)
    return _STATUS.get(status) if isinstance(status, str) else None


def plan_items(arguments: dict[str, Any]) -> list[PlanItem] | None:
    """The list in an `update_plan` call; an item is recognised by its text, and the second of one text by its
    place."""
    steps = arguments.get("plan")
    if isinstance(steps, str):
        try:
            steps = json.loads(steps)
        except (ValueError, RecursionError):
            return None
    if not isinstance(steps, list):
        return None
    return distinct_items(
        (title, _STEPS.get(str(step.get("status")), "pending"))
        for step in steps
        if isinstance(step, dict) and (title := text_of(step.get("step"))) is not None
    )


# One thread: its response items as messages, and its tool calls with their results.
#
# Codex writes a reply item by item. It ends when its tokens are counted or another party speaks.

TURNS_KEPT = 200
PLANS_KEPT = 20
_OUTPUTS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "mcp_tool_call_output"}
)
_CALLS = _OUTPUTS | {
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "tool_search_call",
    "tool_search_output",
}
"""Items that make a call or answer one."""

_REFUSED = re.compile(
    r".{0,200}\b(?:not (?:allowed|found)|denied|rejected|refused|unsupported|failed|blocked|hook|error|invalid|interrupted)\b",
    re.IGNORECASE | re.DOTALL,
)


class Speech(Struct):
    """What the agent of one log says and hears. Its fields are part of a reader's saved state."""

    session: str
    thread: str
    """The thread, which names what has no id of its own."""
    owner: str = MAIN
    """Key of the agent."""
    spawns: SpawnCalls = field(default_factory=SpawnCalls)
    failed: list[str] = []
    """Calls whose failure an event reported, and whose outputs have not come."""
    turn: int = 0
    fresh: bool = True
    """The next item that the model makes begins a reply."""
    said: bool = False
    """The model made something since tokens were counted last."""
    counted: bool = False
    """This log counts the tokens of replies."""
    places: PlaceIds = field(default_factory=PlaceIds)
    planning: dict[str, list[Any]] = {}
    """Calls that change the plan and wait for their output → when they were made, and the arguments of each
    change."""
    messages: int = 0
    asked: list[int] = []
    """How many messages there were before each turn of the person."""
    reported: str | None = None
    """Id of the response item with which another agent spoke last."""
    asks: bool = False
    """The line that is being read begins such a turn."""

    def __post_init__(self) -> None:
        self.spawns.session, self.spawns.owner = self.session, self.owner

    def uid(self, payload: dict[str, Any], at: float | None) -> str:
        """The id of a line: by the call that it makes or answers, else its own, else by its place. Threads
        that copy one another's history keep apart what they have of it."""
        kind = text_of(payload.get("type")) or "?"
        call_id = id_of(payload.get("call_id"))
        if call_id is not None and kind in _CALLS:
            return f"{self.thread}:{'output' if kind.endswith('_output') else 'call'}:{call_id}"
        own = id_of(payload.get("id"))
        if own is not None:
            return f"{self.thread}:{kind}:{own}"
        return self.places.of(self.thread, at, f"{kind}/{payload.get('role') or ''}", payload)

    def reply_ended(self, *, counted: bool = False) -> None:
        """What the model makes next belongs to another reply."""
        self.fresh = True
        self.counted = self.counted or counted

    def event(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """An event that may report of calls, or of agents."""
        if (call_id := failed_call(kind, payload)) is not None:
            self.failed = [*(each for each in self.failed if each != call_id), call_id][-CALLS_KEPT:]
        self.spawns.event(kind, payload, at, found)

    def note(self, found: list[Record]) -> None:
        """What is kept of a line."""
        messages = sum(type(record) is ImportedMessage for record in found)
        if self.asks and messages:
            self.asked = [*self.asked, self.messages][-TURNS_KEPT:]
        self.asks = False
        self.messages += messages

    def go_back(self, turns: int, uid: str, at: float | None) -> Rewind | None:
        """The person took back so many of their turns, with all that came of them."""
        if turns <= 0 or not self.asked:
            return None
        place = self.asked[-min(turns, len(self.asked))]
        self.asked = self.asked[:-turns]
        return Rewind(self.owner, uid, self.messages - place, at)

    def item(self, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        """One response item."""
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
            self.reported = text_of(item.get("id"))
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
        texts = [block["text"] for block in content if block["type"] == "text"]
        self.asks = items.is_prompt(item, texts)
        self._heard(content, at, uid, found, injected=not self.asks)

    def relayed(self, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        """Another agent said something, in a line of its own; a response item may have said it before."""
        if self.reported is not None and text_of(item.get("id")) == self.reported:
            found.append(Raw("inter_agent_communication", SAID_AGAIN))
            return
        content = item.get("content")
        if not content and text_of(item.get("encrypted_content")):
            content = {"type": "encrypted_content"}
        self._heard(items.blocks(content), at, uid, found)

    def _say(self, content: list[dict[str, Any]], at: float | None, uid: str, found: list[Record]) -> None:
        """The model made something; a reply goes on until its tokens are counted or another party speaks."""
        if not content:
            found.append(Raw("response_item/message", "a message without content"))
            return
        self.said = True
        if self.fresh:
            self.turn, self.fresh = self.turn + 1, False
        found.append(ImportedMessage(self.owner, uid, "assistant", content, at, f"{self.thread}/{self.turn}"))

    def _heard(
        self, content: Any, at: float | None, uid: str, found: list[Record], *, injected: bool = False
    ) -> None:
        self.fresh = True
        found.append(ImportedMessage(self.owner, uid, "user", content, at, injected=injected))

    def _call(self, kind: str, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        call_id = (
            text_of(item.get("call_id")) or text_of(item.get("id")) or f"{self.thread}.{self.turn}.{uid}"
        )
        name = text_of(item.get("name"))
        if kind == "local_shell_call":
            name, arguments = "local_shell", items.arguments_of(item.get("action"))
        elif kind == "custom_tool_call":
            given = item.get("input")
            arguments = (
                given if isinstance(given, dict) else {"input": given if isinstance(given, str) else ""}
            )
        elif kind == "tool_search_call":
            name, arguments = "tool_search", items.arguments_of(item.get("arguments"))
        else:
            arguments = items.arguments_of(item.get("arguments"))
        namespace = text_of(item.get("namespace"))
        name = f"{namespace}.{name}" if namespace and name else name or "?"
        self._say([{"type": "tool_use", "id": call_id, "name": name, "input": arguments}], at, uid, found)
        found.append(ToolCall(self.owner, call_id, name, at))
        self.spawns.called(name, call_id, arguments)
        plans: list[dict[str, Any]] = []
        if name.rpartition(".")[2] == "update_plan":
            plans = [{"plan": arguments.get("plan")}]
        elif name in SCRIPTING_TOOLS and isinstance(script := arguments.get("input"), str):
            plans = plans_in(script)
        if plans:
            self.planning[call_id] = [at, *plans]
            if len(self.planning) > PLANS_KEPT:
                self.planning.pop(next(iter(self.planning)))

    def _planned(self, call_id: str, content: Any, status: items.Status, found: list[Record]) -> None:
        """A call that changes the plan has its output: what was refused, or failed, changed nothing."""
        at, *plans = self.planning.pop(call_id, [None])
        for arguments in plans:
            steps = plan_items(arguments)
            if steps is not None and status == "done" and not _says_refused(content):
                found.append(Plan(self.owner, "update_plan", steps, whole=True, plan=self.owner, at=at))

    def _output(
        self, item: dict[str, Any], output: Any, at: float | None, uid: str, found: list[Record]
    ) -> None:
        call_id = text_of(item.get("call_id")) or text_of(item.get("id"))
        if call_id is None:
            found.append(Raw(f"response_item/{item.get('type')}", "an output without a call"))
            return
        content, status = items.output_of(output)
        if call_id in self.failed:
            self.failed.remove(call_id)
            status = "error" if status == "done" else status
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        if status in ("error", "denied"):
            block["is_error"] = True
        # A reply may still go on: calls are carried out while it streams.
        found.append(ImportedMessage(self.owner, uid, "user", [block], at))
        self.fresh = self.fresh or not self.counted
        found.append(ToolResult(self.owner, call_id, status, at))
        self._planned(call_id, content, status, found)
        self.spawns.answered(call_id, content, at, found)

    def _hosted(
        self, kind: str, item: dict[str, Any], at: float | None, uid: str, found: list[Record]
    ) -> None:
        """A tool that the model's own host carries out: its result is not in the log, or an image beside the
        call."""
        name = kind.removesuffix("_call")
        call_id = (
            text_of(item.get("id"))
            or text_of(item.get("call_id"))
            or f"{self.thread}.{name}.{self.turn}.{at or uid}"
        )
        if kind == "web_search_call":
            arguments = items.arguments_of(item.get("action"))
        else:
            prompt = text_of(item.get("revised_prompt"))
            arguments = {"prompt": prompt} if prompt else {}
        content: list[dict[str, Any]] = [
            {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        ]
        made = items.image(item.get("result")) if kind == "image_generation_call" else None
        self._say([*content, made] if made is not None else content, at, uid, found)
        found.append(ToolCall(self.owner, call_id, name, at))
        failed = item.get("status") in ("failed", "incomplete")
        found.append(ToolResult(self.owner, call_id, "error" if failed else "done", at))


def _says_refused(content: Any) -> bool:
    """Whether the output of an `update_plan` that is not marked as failed says that it changed nothing."""
    return (
        isinstance(content, str)
        and not content.startswith("Plan updated")
        and _REFUSED.match(content) is not None
    )


_KEPT_OF_COPIES = (Session, ImportedMessage, Plan, ImportedCompaction, Summary, Rewind, Raw, Skipped)
"""What a thread that a person forked has of the other's history: its context, and none of its work."""
_TURN_ENDS = frozenset({"task_complete", "turn_complete"})
_TURN_STARTS = frozenset({"task_started", "turn_started"})


class CodexReader(Struct):
    """A `LineReader`. Its fields are its saved state."""

    session: str
    """Key of the session that the log belongs to: its thread, or the one at the top of its tree."""
    speech: Speech
    spawned: bool = False
    """Another thread spawned this one."""
    opened: bool = False
    """The session was named."""
    provider: str = "openai"
    model: str | None = None
    began: float | None = None
    usage: ThreadUsage = field(default_factory=ThreadUsage)
    last: list[Any] | None = None
    """The last model call: key, model, its tokens, its time, the context's tokens, whether they are exact, and what
    changed its price."""
    turn: str | None = None
    """`begun`: the turn has no messages yet. `compacted`: only a compaction happened in it."""
    replay: Replay = field(default_factory=Replay)
    one_shot: bool = False
    """The thread of `codex exec`, which ends with its turn."""
    over: bool = False
    """Such a turn has ended."""
    tier: str | None = None
    """The service tier that the thread's settings name."""
    rerouted_from: str | None = None
    """The model of this turn, while the provider has another one answer."""
    silent: bool = False
    """The newest count of tokens was of a call that said nothing: a compaction's."""
    error: str | None = None
    """The error of this turn, which ended it."""
    limit_ends: float | None = None
    """When the rate limit ends that is used up, as the newest count reports."""

    @classmethod
    def begin(cls, session: str | None, thread: str) -> CodexReader:
        """A reader of a log from its beginning; `session` is None where the log's beginning does not name it."""
        return cls(session or thread, Speech(session or thread, thread))

    @classmethod
    def restore(cls, state: dict[str, Any]) -> CodexReader:
        """The reader with that saved state; earlier versions saved one object."""
        if "speech" not in state:
            calls = {"spawns": {"calls": state.get("spawns") or {}}, "counted": state.get("last") is not None}
            replay = [*[*state["replay"], False][:6], True] if state.get("replay") else []
            state = state | {
                "speech": state | calls,
                "opened": True,
                "turn": state.get("alone"),
                "replay": replay,
            }
        return msgspec.convert(state, cls)

    def save(self) -> dict[str, Any]:
        return to_builtins(self)  # type: ignore[no-any-return]

    def feed(self, line: int, data: bytes) -> list[Record]:
        record = parse(data)
        if record is None:
            return no_record(data, self.session, opened=self.opened)
        at = seconds(record.get("timestamp"))
        kind, payload = text_of(record.get("type")), record.get("payload")
        if not isinstance(payload, dict):
            kind, payload = self._bare(record)
        opening = self._open(kind, payload, at)
        found: list[Record] = []
        given = record.get("ordinal")
        ordinal = given if type(given) is int else line - 1
        copied = not opening and self.replay.copied(kind, payload, at, ordinal)
        if kind == "token_usage_record" and (owner := text_of(payload.get("thread_id"))) is not None:
            copied = owner != self.speech.thread
            self.replay.going = self.replay.going and copied
        if kind == "session_meta":
            self._meta(payload, bool(opening), found)
        elif isinstance(kind, str):
            _LINES.get(kind, CodexReader._not_shown)(self, kind, payload, at, found)
        else:
            found.append(Raw("?", "a record without a type"))
        if copied or (kind == "session_meta" and self.replay.going and not opening):
            found = self._of_copy(found)
            if self.last is not None:
                self.last[0] = ""  # the other thread's call: no end of a turn here is its end
        self.speech.note(found)
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
        if not self.spawned:
            found = [
                each._replace(unlogged=False) if isinstance(each, ImportedCompaction) else each
                for each in found
                if isinstance(each, _KEPT_OF_COPIES)
            ]
            if found:
                return found
        return [Skipped(REPLAYED)]

    # The thread.

    def _open(self, kind: Any, payload: dict[str, Any], at: float | None) -> list[Record]:
        """Name the session and its agent with the first record."""
        if self.opened:
            return []
        self.opened = True
        self.began = at
        thread = thread_of(payload) if kind == "session_meta" else None
        if thread is None:
            return [Session(self.session, at=at)]
        self.spawned = thread.parent is not None
        self.provider = text_of(payload.get("model_provider")) or self.provider
        self.one_shot = payload.get("source") == "exec" or payload.get("originator") == "codex_exec"
        self.replay = Replay.of(thread, at)
        began = at if thread.at is None else thread.at
        version, folder = text_of(payload.get("cli_version")), text_of(payload.get("cwd"))
        fork = thread.forked_from if not self.spawned else None
        found: list[Record] = [Session(self.session, folder, None, version, fork, began)]
        key_of, owner = self.speech.spawns.key_of, MAIN
        if thread.parent is not None:
            owner = key_of(thread.id)
            found.append(
                ImportedAgent(owner, key_of(thread.parent), name=thread.name, role=thread.role, at=began)
            )
        self.speech = Speech(self.session, thread.id, owner)
        return found

    def _meta(self, payload: dict[str, Any], first: bool, found: list[Record]) -> None:
        if first:
            if thread_of(payload) is None:
                found.append(Raw("session_meta", "has no thread id"))
            return
        thread = thread_of(payload)
        if thread is not None and thread.id == self.speech.thread:
            found.append(
                Session(
                    self.session, text_of(payload.get("cwd")), version=text_of(payload.get("cli_version"))
                )
            )
            return
        if self.replay.going:
            self.replay.certain = True
        found.append(Raw("session_meta", "belongs to another thread"))

    def _turn_context(
        self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        model = text_of(payload.get("model"))
        if "service_tier" in payload:
            self.tier = text_of(payload["service_tier"])
        if model is not None:
            self.model, self.rerouted_from = model, None
            found.append(ImportedAgent(self.speech.owner, model=self._model_ref()))
        found.append(Raw("turn_context", NOT_FOR_US))

    def _model_ref(self) -> str:
        return f"{self.provider}/{self.model}" if self.model else "unknown"

    # Compactions.

    def _compacted(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        uid = self.speech.uid(payload, at)
        record = object_of(payload.get("latest_token_usage_record"))
        latest = self.usage.record(record, again=True)
        if latest is not None and record.get("thread_id") == self.speech.thread:
            self._count(latest, at, found, record)
        before = self.last[4] if self.last is not None else None
        if latest is not None:
            # What the compaction itself was given was all of the context; what it said of it was not.
            compacted = bool(latest.key) and latest.key == text_of(payload.get("compaction_response_id"))
            before = latest.prompt if compacted else latest.prompt + latest.output
        # Later versions record each response, the compaction's as well; in earlier ones, the count of one that was
        # made here comes before. What a server compacted for 0.147 is in neither (github.com/openai/codex/issues/47003).
        logged = self.usage.recorded is not None or self.silent
        found.append(ImportedCompaction(self.speech.owner, uid, "auto", at, before, unlogged=not logged))
        self.silent = False
        found.append(Summary(self.speech.owner, uid and f"{uid}:summary", items.stands_in(payload), at))
        self.speech.reply_ended()
        self.turn = "compacted" if self.turn else None
        if self.last is not None:
            # What the context held before is of no use for the next compaction, and no end of a turn is that
            # call's end.
            self.last[0], self.last[4] = "", None

    # Events.

    def _item(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        self.turn = None
        self.speech.item(payload, at, self.speech.uid(payload, at), found)

    def _relayed(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        self.speech.relayed(payload, at, self.speech.uid(payload, at), found)

    def _usage_record(
        self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        self._count(self.usage.record(payload), at, found, payload)
        if not found:
            found.append(Raw(kind, "no usage data"))

    def _not_shown(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        found.append(Raw(kind[:80], NOT_FOR_US if kind in LINES else "unknown record type"))

    def _event(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        name = text_of(payload.get("type")) or "?"
        _EVENTS.get(name, CodexReader._other_event)(self, name, payload, at, found)

    def _aborted(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        reason = text_of(payload.get("reason")) or "interrupted"
        self._unroute()
        if self.one_shot:
            self.over = True
            found.append(ImportedAgent(self.speech.owner, at=at, status="cancelled", ended=True))
        uid = self.speech.uid(payload, at)
        found.append(Failure(self.speech.owner, "interrupted", f"turn aborted: {reason}", at, uid))

    def _failed(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        uid, self.error = self.speech.uid(payload, at), words_of(payload)
        found.append(Failure(self.speech.owner, "error", self.error, at, uid, until=self.limit_ends))

    def _tried_again(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        uid = self.speech.uid(payload, at)
        found.append(Failure(self.speech.owner, "retry", words_of(payload), at, uid))

    def _settings(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        settings = object_of(payload.get("thread_settings"))
        if payload.get("thread_id") in (None, self.speech.thread) and "service_tier" in settings:
            self.tier = text_of(settings["service_tier"])
        found.append(Raw(f"event_msg/{kind}", NOT_FOR_US))

    def _turn_started(
        self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        self.turn, self.over, self.error = "begun", False, None
        window = count_of(payload.get("model_context_window"))
        status: Any = "working" if self.spawned or self.one_shot else None
        found.append(ImportedAgent(self.speech.owner, context_limit=window or None, status=status, at=at))

    def _rolled_back(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        turns, uid = count_of(payload.get("num_turns")), self.speech.uid(payload, at)
        if back := self.speech.go_back(turns, uid, at):
            found.append(back)
        else:
            self._other_event(kind, payload, at, found)

    def _named(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        name = text_of(payload.get("thread_name"))
        if name and not self.spawned:
            found.append(Session(self.session, title=name))
        else:
            self._other_event(kind, payload, at, found)

    def _other_event(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        self.speech.event(kind, payload, at, found)
        known = SAID_AGAIN if kind in REPETITIONS else NOT_FOR_US if kind in EVENTS else "unknown record type"
        found.append(Raw(f"event_msg/{kind[:60]}", known))

    def _rerouted(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """The provider has another model answer until the turn ends."""
        model = text_of(payload.get("to_model"))
        if not model:
            self._other_event(kind, payload, at, found)
            return
        before = text_of(payload.get("from_model")) or self.model or "unknown"
        self.rerouted_from, self.model = self.rerouted_from or self.model, model
        why = text_of(payload.get("reason"))
        text = f"{before} → {model}" + (f": {why.replace('_', ' ')}" if why else "")
        found.append(Failure(self.speech.owner, "rerouted", text, at, self.speech.uid(payload, at)))

    def _unroute(self) -> None:
        """The turn has ended, and with it the other model."""
        if self.rerouted_from is not None:
            self.model, self.rerouted_from = self.rerouted_from, None

    def _token_count(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        info = payload.get("info")
        self.limit_ends = _used_up_until(payload.get("rate_limits"))
        if readings := tuple(codex_readings(payload.get("rate_limits"), at)):
            found.append(QuotaReport(readings))
        if not isinstance(info, dict):
            if not readings:
                found.append(Raw("event_msg/token_count", NOT_FOR_US))
            return
        window = count_of(info.get("model_context_window"))
        if window:
            found.append(ImportedAgent(self.speech.owner, context_limit=window))
        usage = self.usage.take(info)
        if usage is None:
            found.append(Skipped("repeats a token count"))
            return
        self._count(usage, at, found, {**info, **payload})

    def _count(
        self, usage: Usage | None, at: float | None, found: list[Record], reported: dict[str, Any]
    ) -> None:
        """A call that is new; `reported`: what tells of it, perhaps with its service tier."""
        if usage is None:
            return
        key = (
            f"{self.speech.thread}:{usage.key}"
            if usage.key
            else ""
            if at is None
            else f"{self.speech.thread}@{at!r}"
        )
        counts = [usage.input, usage.output, usage.cached, usage.written]
        self.silent, self.speech.said = not self.speech.said, False
        self.speech.reply_ended(counted=True)
        tier = modifier("service_tier", text_of(reported.get("service_tier")) or self.tier)
        modifiers = [tier] if tier else []
        self.last = [key, self._model_ref(), counts, at, usage.prompt + usage.output, usage.exact, modifiers]
        found.append(self._model_call(None))

    def _model_call(self, stop_reason: str | None) -> ModelCall:
        assert self.last is not None
        key, model, counts, at, _, exact, *modifiers = self.last
        fresh, output, read, written = counts
        return ModelCall(
            self.speech.owner,
            key,
            model,
            fresh,
            output,
            read,
            written,
            exact=exact,
            stop_reason=stop_reason,
            at=at,
            modifiers=tuple(modifiers[0]) if modifiers else (),
        )

    def _turn_ended(self, kind: str, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        error = payload.get("error")
        self._unroute()
        if isinstance(error, dict) and text_of(error.get("message")):
            uid, self.error = self.speech.uid(payload, at), words_of(error)
            found.append(Failure(self.speech.owner, "error", self.error, at, uid, until=self.limit_ends))
        elif self.turn == "compacted":
            # A turn to itself: a person asked for it. One that comes before a prompt, or within its turn,
            # came by itself.
            found.append(
                ImportedCompaction(
                    self.speech.owner, self.speech.uid(payload, at), "manual", at, told_later=True
                )
            )
        elif self.last is not None and self.last[0]:
            found.append(self._model_call("end_turn"))
        self.turn = None
        if self.spawned or self.one_shot:
            self.over = self.one_shot
            if self.error is None or usage_limit(self.error, at) is None:
                ended: Literal["done", "failed"] = "failed" if error or self.error else "done"
                found.append(
                    ImportedAgent(self.speech.owner, at=at, status=ended, reason=self.error, ended=True)
                )
        if not found:
            found.append(Raw(f"event_msg/{payload.get('type')}", NOT_FOR_US))


_Handler = Callable[[CodexReader, str, dict[str, Any], float | None, list[Record]], None]

_LINES: dict[str, _Handler] = {
    "response_item": CodexReader._item,
    "event_msg": CodexReader._event,
    "turn_context": CodexReader._turn_context,
    "compacted": CodexReader._compacted,
    "inter_agent_communication": CodexReader._relayed,
    "token_usage_record": CodexReader._usage_record,
}
"""What is done with a line, by its type; `session_meta` opens a log, and goes before them."""

_EVENTS: dict[str, _Handler] = {
    "token_count": CodexReader._token_count,
    "turn_aborted": CodexReader._aborted,
    "error": CodexReader._failed,
    "stream_error": CodexReader._tried_again,
    "model_reroute": CodexReader._rerouted,
    "thread_settings_applied": CodexReader._settings,
    "thread_rolled_back": CodexReader._rolled_back,
    "thread_name_updated": CodexReader._named,
    **dict.fromkeys(_TURN_STARTS, CodexReader._turn_started),
    **dict.fromkeys(_TURN_ENDS, CodexReader._turn_ended),
}
"""What is done with an `event_msg`, by the type of its payload."""


def _used_up_until(limits: Any) -> float | None:
    """When the last of the rate limits ends that are used up."""
    windows = [object_of(each) for each in object_of(limits).values()]
    ends = [seconds(each.get("resets_at")) for each in windows if count_of(each.get("used_percent")) >= 100]
    return max(filter(None, ends), default=None)


# --- The program ----------------------------------------------------------------------------------------

# Where the logs of Codex are, how one is recognised, and which session it belongs to.

_TIME = len("rollout-2026-01-31T23-59-59")
_FILE = re.compile(
    r"rollout-.+?-(?P<id>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(_[0-9a-f-]{36})?", re.IGNORECASE
)
"""A log that begins again where its thread was reverted to has an id of its own behind the thread's."""
_HEADER = re.compile(rb'"type"\s*:\s*"session_meta"')
FIRST_LINE_BYTES = 16 << 20
GENERATIONS = 20
"""Spawned threads above one another, at most."""


class Codex(Program):
    """Codex, from the first rollouts (2025-05) on."""

    name = "codex"
    alias = "codex"
    label = "Codex"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`sessions` and `archived_sessions` in `CODEX_HOME`, else in `~/.codex`."""
        chosen = environ.get("CODEX_HOME", "").strip()
        folder = Path(chosen).expanduser() if chosen else home / ".codex"
        return [folder / "sessions", folder / "archived_sessions"]

    def recognises(self, source: Source) -> bool:
        if source.path.suffix != ".jsonl":
            return False
        for line in source.head.split(b"\n")[:40]:
            record = parse(line) if line.strip() else None
            if record is None:
                continue
            kind = record.get("type")
            if kind in LINES and "payload" in record:
                return True
            if "uuid" in record or "sessionId" in record:
                return False
            if record.get("record_type") == "state" or (
                kind in ITEMS and ("role" in record or "call_id" in record)
            ):
                return True
            if (
                kind is None
                and text_of(record.get("id"))
                and text_of(record.get("timestamp"))
                and "instructions" in record
            ):
                return True
        # The first line may be longer than the head: a thread's instructions and tools stand in it.
        return source.head.lstrip().startswith(b"{") and _HEADER.search(source.head[:400]) is not None

    def reader(self, source: Source, state: dict[str, Any] | None) -> CodexReader:
        if state is not None:
            return CodexReader.restore(state)
        thread = _first_thread(source.path, source.head)
        if thread is not None:
            return CodexReader.begin(_root(source.path, thread), thread.id)
        match = _FILE.fullmatch(source.path.stem)
        return CodexReader.begin(None, match["id"] if match is not None else source.path.stem)

    def is_over(self, state: dict[str, Any]) -> bool:
        """A run of `codex exec` whose turn has ended."""
        return state.get("over") is True

    def logs_of_agents(self, path: Path, session: str, passed: set[Path]) -> list[Path]:
        """Those of the same day and later ones that name the session's thread as the top of their tree."""
        days = [path.parent]
        if len(path.parents) > 3 and path.parent.name.isdigit():
            months = [one for one in path.parents[3].glob("*/*") if one >= path.parents[1]]
            days = sorted(one for month in months for one in month.glob("*") if one >= path.parent)
        found = []
        for log in sorted(log for day in days for log in day.glob("rollout-*.jsonl")):
            if log == path or log in passed or log.name[:_TIME] < path.name[:_TIME]:
                continue
            thread = _first_thread(log, b"")
            if thread is not None and thread.parent is not None and _root(log, thread) == session:
                found.append(log)
            elif thread is not None:
                passed.add(log)
        return found


def _root(path: Path, thread: Thread) -> str:
    """The thread at the top of the tree that a thread belongs to: the one that names the session."""
    if thread.parent is None:
        return thread.id
    if thread.root is not None:
        return thread.root
    seen = {thread.id}
    known: Thread | None = thread
    top = thread.parent
    for _ in range(GENERATIONS):
        if known is None or known.parent is None or known.parent in seen:
            break
        top = known.root or known.parent
        if known.depth == 1 or known.root is not None:
            break
        seen.add(known.parent)
        known = _thread_named(path, known.parent)
    return top


def _thread_named(path: Path, thread_id: str) -> Thread | None:
    """A thread by its log, which lies in the same folder or in that of another day."""
    if _FILE.fullmatch(f"rollout-x-{thread_id}") is None:
        return None
    name = f"rollout-*-{thread_id}.jsonl*"
    found = next(path.parent.glob(name), None)
    if found is None and len(path.parents) > 3 and path.parent.name.isdigit():
        found = next(path.parents[3].glob(f"*/*/*/{name}"), None)
    return _first_thread(files.unpacked_name(found), b"") if found is not None else None


def _first_thread(path: Path, head: bytes) -> Thread | None:
    """The thread that a log's first lines name."""
    if b"\n" not in head:
        try:
            with files.open_log(path, beginning=True) as file:
                head = file.readline(FIRST_LINE_BYTES)
        except OSError:
            return None
    for line in head.split(b"\n")[:5]:
        record = parse(line)
        if record is None:
            continue
        payload = record.get("payload")
        if record.get("type") == "session_meta" and isinstance(payload, dict):
            return thread_of(payload)
        if record.get("type") is None and "instructions" in record:
            return thread_of(record)
    return None


PROGRAM = Codex()
