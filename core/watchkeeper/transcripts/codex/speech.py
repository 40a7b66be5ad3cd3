"""What one thread says and hears: its response items as messages, its calls of tools with their results.

Codex writes a reply item by item; it goes on until its tokens are counted or somebody else speaks.
"""

from __future__ import annotations

import json
import re
from typing import Any

from watchkeeper.transcripts.codex import items
from watchkeeper.transcripts.codex.agents import SpawnBook, plan_items
from watchkeeper.transcripts.codex.events import OutcomeBook
from watchkeeper.transcripts.codex.scripts import SCRIPTING_TOOLS, plans_in
from watchkeeper.transcripts.codex.types import ITEMS, NOT_FOR_US, SAID_AGAIN
from watchkeeper.transcripts.identity import PlaceIds, id_of
from watchkeeper.transcripts.jsontext import text_of
from watchkeeper.transcripts.records import Message, Plan, Raw, Record, Rewind, ToolCall, ToolResult

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
    r".{0,200}\b(?:not allowed|denied|rejected|refused|unsupported|failed)\b", re.IGNORECASE | re.DOTALL
)


class Speech:
    """What the agent of one log says and hears.

    Args:
        thread: names what has no id of its own.
        owner: key of the agent.
        state: what `save` told, or `{}`.
    """

    def __init__(self, thread: str, owner: str, spawns: SpawnBook, state: dict[str, Any]) -> None:
        self._thread = thread
        self._owner = owner
        self._spawns = spawns
        self.outcomes = OutcomeBook(state.get("failed"))
        self._turn = int(state.get("turn", 0))
        self._fresh = bool(state.get("fresh", True))
        """The next item that the model makes begins a reply."""
        self._counted = state.get("last") is not None
        """This log counts the tokens of replies."""
        self._places = PlaceIds(thread, state.get("places"))
        self._planning: dict[str, list[Any]] = dict(state.get("planning", {}))
        """Calls that change the plan and wait for their output → when they were made, and the arguments of
        each change."""
        self._messages = int(state.get("messages", 0))
        self._asked: list[int] = list(state.get("asked", ()))
        """How many messages there were before each turn of the person."""
        self._told: str | None = state.get("told")
        """Id of the response item with which another agent spoke last."""
        self._asks = False
        """The line that is being read begins such a turn."""

    def save(self) -> dict[str, Any]:
        return {
            "failed": self.outcomes.failed,
            "turn": self._turn,
            "fresh": self._fresh,
            "places": self._places.save(),
            "planning": self._planning,
            "messages": self._messages,
            "asked": self._asked,
            "told": self._told,
        }

    def uid(self, payload: dict[str, Any], at: float | None) -> str:
        """The id of a line: by the call that it makes or answers, else its own, else by its place. Threads
        that copy one another's history keep apart what they have of it."""
        kind = text_of(payload.get("type")) or "?"
        call_id = id_of(payload.get("call_id"))
        if call_id is not None and kind in _CALLS:
            return f"{self._thread}:{'output' if kind.endswith('_output') else 'call'}:{call_id}"
        own = id_of(payload.get("id"))
        if own is not None:
            return f"{self._thread}:{kind}:{own}"
        return self._places.of(at, f"{kind}/{payload.get('role') or ''}", payload)

    def reply_ended(self, *, counted: bool = False) -> None:
        """What the model makes next belongs to another reply."""
        self._fresh = True
        self._counted = self._counted or counted

    def note(self, found: list[Record]) -> None:
        """What is kept of a line."""
        messages = sum(type(record) is Message for record in found)
        if self._asks and messages:
            self._asked = [*self._asked, self._messages][-TURNS_KEPT:]
        self._asks = False
        self._messages += messages

    def go_back(self, turns: int, uid: str, at: float | None) -> Rewind | None:
        """The person took back so many of their turns, with all that came of them."""
        if turns <= 0 or not self._asked:
            return None
        place = self._asked[-min(turns, len(self._asked))]
        self._asked = self._asked[:-turns]
        return Rewind(self._owner, uid, self._messages - place, at)

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
            self._told = text_of(item.get("id"))
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
        self._asks = items.is_prompt(item, texts)
        self._heard(content, at, uid, found, injected=not self._asks)

    def told(self, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        """Another agent said something, in a line of its own; a response item may have said it before."""
        if self._told is not None and text_of(item.get("id")) == self._told:
            found.append(Raw("inter_agent_communication", SAID_AGAIN))
            return
        content = item.get("content")
        if not content and text_of(item.get("encrypted_content")):
            content = {"type": "encrypted_content"}
        self._heard(items.blocks(content), at, uid, found)

    def _say(self, content: list[dict[str, Any]], at: float | None, uid: str, found: list[Record]) -> None:
        """The model made something; a reply goes on until its tokens are counted or somebody else speaks."""
        if not content:
            found.append(Raw("response_item/message", "a message without content"))
            return
        if self._fresh:
            self._turn, self._fresh = self._turn + 1, False
        found.append(Message(self._owner, uid, "assistant", content, at, f"{self._thread}/{self._turn}"))

    def _heard(
        self, content: Any, at: float | None, uid: str, found: list[Record], *, injected: bool = False
    ) -> None:
        self._fresh = True
        found.append(Message(self._owner, uid, "user", content, at, injected=injected))

    def _call(self, kind: str, item: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        call_id = (
            text_of(item.get("call_id")) or text_of(item.get("id")) or f"{self._thread}.{self._turn}.{uid}"
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
        found.append(ToolCall(self._owner, call_id, name, at))
        self._spawns.called(name, call_id, arguments)
        plans: list[dict[str, Any]] = []
        if name.rpartition(".")[2] == "update_plan":
            plans = [{"plan": arguments.get("plan")}]
        elif name in SCRIPTING_TOOLS and isinstance(script := arguments.get("input"), str):
            plans = plans_in(script)
        if plans:
            self._planning[call_id] = [at, *plans]
            if len(self._planning) > PLANS_KEPT:
                self._planning.pop(next(iter(self._planning)))

    def _planned(self, call_id: str, content: Any, status: items.Status, found: list[Record]) -> None:
        """A call that changes the plan has its output: what was refused, or failed, changed nothing."""
        at, *plans = self._planning.pop(call_id, [None])
        for arguments in plans:
            steps = plan_items(arguments)
            if steps is not None and status == "done" and not _says_refused(content):
                found.append(Plan(self._owner, "update_plan", steps, whole=True, plan=self._owner, at=at))

    def _output(
        self, item: dict[str, Any], output: Any, at: float | None, uid: str, found: list[Record]
    ) -> None:
        call_id = text_of(item.get("call_id")) or text_of(item.get("id"))
        if call_id is None:
            found.append(Raw(f"response_item/{item.get('type')}", "an output of no call"))
            return
        content, status = items.output_of(output)
        status = self.outcomes.of(call_id, status)
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        if status in ("error", "denied"):
            block["is_error"] = True
        # A reply may still go on: calls are carried out while it streams.
        found.append(Message(self._owner, uid, "user", [block], at))
        self._fresh = self._fresh or not self._counted
        found.append(ToolResult(self._owner, call_id, status, at))
        self._planned(call_id, content, status, found)
        self._spawns.answered(call_id, content, at, found)

    def _hosted(
        self, kind: str, item: dict[str, Any], at: float | None, uid: str, found: list[Record]
    ) -> None:
        """A tool that the model's own host carries out: its result is not in the log, or an image beside the
        call."""
        name = kind.removesuffix("_call")
        call_id = (
            text_of(item.get("id"))
            or text_of(item.get("call_id"))
            or f"{self._thread}.{name}.{self._turn}.{at or uid}"
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
        found.append(ToolCall(self._owner, call_id, name, at))
        failed = item.get("status") in ("failed", "incomplete")
        found.append(ToolResult(self._owner, call_id, "error" if failed else "done", at))


def _says_refused(content: Any) -> bool:
    """Whether the output of an `update_plan` that is not marked as failed says that it changed nothing."""
    return (
        isinstance(content, str)
        and not content.startswith("Plan updated")
        and _REFUSED.match(content) is not None
    )
