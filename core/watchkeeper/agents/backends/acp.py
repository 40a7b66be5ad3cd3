"""Any program that speaks the Agent Client Protocol over its standard streams: Claude Code, OpenCode and others.

What the programs do differently is in their `AcpProgram`. The protocol is at https://agentclientprotocol.com.

OpenCode sends no question over ACP for the calls of its sub-agents, so that they would wait for ever, and is silent while it
tries a model call again. Its server tells both. Watchkeeper chooses the server's port and password.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from watchkeeper.agents import backends
from watchkeeper.agents.backends import (
    CLIENT,
    DIED,
    METHOD_NOT_FOUND,
    NOT_LOGGED_IN,
    TOOL_SERVER,
    WRONG_SHAPE,
    BackendFailed,
    BackendSpec,
    Decision,
    Features,
    PermissionsNotHeld,
    ProgramProcess,
    Refused,
    RpcBackend,
    RpcError,
    child_call,
    count_of,
    number_of,
    object_of,
    objects_of,
    reason_of,
    shell_command,
    text_at,
)
from watchkeeper.records.messages import Usage
from watchkeeper.store.commands import unified_diff

_OPTIONS: Mapping[Decision, tuple[str, ...]] = {
    "once": ("allow_once",),
    "always": ("allow_once",),  # grants are Watchkeeper's: it answers the next question by itself
    "deny": ("reject_once", "reject_always"),
}
_ENDED: Mapping[str, Literal["done", "error", "denied", "cancelled"]] = {
    "completed": "done",
    "failed": "error",
}
_PLAN = {"in_progress": "running", "completed": "done"}


@dataclass(frozen=True, slots=True)
class AcpProgram:
    """One program: what it can do, what its session is opened with, and where its own record is."""

    label: str
    features: Features = field(default_factory=Features)
    session_fields: Callable[[BackendSpec], dict[str, Any]] = lambda spec: {}
    """What is added to `session/new` and its like."""
    transcript: Callable[[BackendSpec, str], Path | None] = lambda spec, session: None
    mode: str = ""
    """The session mode in which it asks before each effect. Empty: `default`, where the program has modes at all."""
    model: str = ""
    """What is set where the person names no model. Empty: nothing, since it keeps the model of a session by itself."""


@dataclass(slots=True)
class _Call:
    """What is known of a tool call."""

    name: str = ""
    title: str = ""
    kind: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    content: list[Any] = field(default_factory=list)
    edits: bool = False
    """Whether it changes files: `edited`, in order."""
    edited: dict[str, None] = field(default_factory=dict)
    begun: bool = False
    printed: int = 0
    ended: bool = False
    background: bool = False
    """It goes on after the program has given it a result."""


class Acp(RpcBackend):
    """One session of an ACP program."""

    def __init__(self, process: ProgramProcess, program: AcpProgram) -> None:
        super().__init__(process)
        self.name, self.features, self._program = program.label, program.features, program
        self._session = ""
        self._calls: dict[str, _Call] = {}
        self._turn = 0
        self._open: set[int] = set()
        """Prompts without an answer."""
        self._held: list[str] = []
        """Messages that the running turn did not take."""
        self._cancelled = False
        self._replaying = False
        self._mode = ""
        """The session mode that it must be in; empty: not set yet, or it has no modes."""
        self._reported = ""
        """The session mode that it reported last."""
        self._strayed = ""
        """Why it gets no prompt any more."""
        self._summaries: dict[str, str] = {}
        """The part of its summary that each compaction in progress has sent so far, by its id."""
        self._compacted: set[str] = set()
        """Compactions that have ended."""

    async def open(self, spec: BackendSpec) -> str:
        hello = {
            "protocolVersion": 1,
            "clientCapabilities": {"session": {"compaction": {}, "subagents": {}}},
            "clientInfo": CLIENT,
        }
        said = object_of(await self.request("initialize", hello))
        can = object_of(said.get("agentCapabilities"))
        self.version = str(object_of(said.get("agentInfo")).get("version") or "")[:60]
        servers = []
        if spec.memory is not None and object_of(can.get("mcpCapabilities")).get("http"):
            header = {"name": "Authorization", "value": f"Bearer {spec.memory.token}"}
            servers = [{"type": "http", "name": TOOL_SERVER, "url": spec.memory.url, "headers": [header]}]
        fields = {"cwd": str(spec.folder), "mcpServers": servers, **self._program.session_fields(spec)}
        if spec.session is None:
            opened = object_of(await self.request("session/new", fields, 120))
            self._session = text_at(opened, "sessionId")
        else:
            self._session = spec.session
            resumable = "resume" in object_of(can.get("sessionCapabilities"))
            self._replaying = not resumable  # `load` tells the whole history again
            method = "session/resume" if resumable else "session/load"
            opened = object_of(await self.request(method, {"sessionId": spec.session, **fields}, 120))
            self._replaying = False
        if model := spec.model or self._program.model:
            await self.set(model, None)
        await self._hold_mode(opened, str(spec.options.get("mode") or self._program.mode))
        self.record = str(self._program.transcript(spec, self._session) or "")
        return self._session

    async def _hold_mode(self, opened: dict[str, Any], wanted: str) -> None:
        """Set the session mode, and read back that it is set; every later word about it is compared with this one."""
        option = _mode_option(opened.get("configOptions"))
        offered = [
            str(one.get("id")) for one in objects_of(object_of(opened.get("modes")).get("availableModes"))
        ]
        offered += [one for one in _values_of(option) if one not in offered]
        if not wanted and not offered:
            return  # a program without modes
        wanted = wanted or "default"
        if offered and wanted not in offered:
            raise PermissionsNotHeld(
                f"{self.name} has no permission mode {wanted}; available: {', '.join(offered)}; see `mode` in docs/configuration.md"
            )
        self._reported = ""
        try:
            await self.request("session/set_mode", {"sessionId": self._session, "modeId": wanted})
            self._reported = self._reported or (wanted if offered else "")
            if option:  # the answer is its state: that it took the mode is not only its word
                given = {"sessionId": self._session, "configId": option.get("id"), "value": wanted}
                self._mode = wanted  # what it says from here on, also right after its answer, is compared
                answer = object_of(await self.request("session/set_config_option", given))
                self._reported = str(
                    _mode_option(answer.get("configOptions")).get("currentValue") or "unknown"
                )
        except Refused as refused:
            raise PermissionsNotHeld(f"cannot set its permission mode to {wanted}: {refused}") from refused
        if self._reported != wanted:
            raise PermissionsNotHeld(
                f"{self.name} did not confirm its permission mode {wanted}"
                + (f": it reports {self._reported[:60]}" if self._reported else "")
            )
        self._mode = wanted
        if self._strayed:
            raise PermissionsNotHeld(self._strayed)

    def _mode_said(self, mode: Any) -> None:
        """It reported its session mode: another one than was set ends the turn, and there is no next one."""
        self._reported = mode if isinstance(mode, str) and mode else "unknown"
        if self._mode and self._reported != self._mode and not self._strayed:
            self._strayed = f"{self.name} changed its permission mode from {self._mode} to {self._reported[:60]}; it was stopped"
            self.put(backends.Ended("failed", self._strayed, "permissions"))

    async def prompt(self, text: str) -> None:
        if self._strayed:
            raise PermissionsNotHeld(self._strayed)
        self._cancelled = False
        self._open.clear()
        text, self._held = backends.joined([*self._held, text]), []
        await self.steer(text)

    async def steer(self, text: str) -> Literal["now", "next"]:
        self.waiting = None
        self._turn += 1  # the turn ends with the last prompt that was sent
        self._open.add(self._turn)
        self._process.begin(self._turn_of(self._turn, text))
        return "next"

    async def interrupt(self) -> None:
        self._cancelled = True
        for question in list(self._questions):
            await self.answer(question, "cancel")
        await self._process.notify("session/cancel", {"sessionId": self._session})
        if self.waiting is not None:
            self._end_turn(backends.Ended("interrupted"))  # no prompt is open

    async def compact(self, instructions: str | None) -> None:
        self.put(backends.Compaction(begun=True))
        await self.prompt(f"/compact {instructions}" if instructions else "/compact")

    async def set(self, model: str | None, mode: str | None) -> None:
        if model:
            given = {"sessionId": self._session, "configId": "model", "value": model}
            await self.request("session/set_config_option", given)
        if mode:
            await self.request("session/set_mode", {"sessionId": self._session, "modeId": mode})

    async def _turn_of(self, turn: int, text: str) -> None:
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        try:
            result = await self._process.call("session/prompt", params)
        except RpcError as error:
            self._open.discard(turn)
            if turn == self._turn and self._open and not self._cancelled:
                self._turn = max(self._open)
                self._held.append(text)  # it takes no message while it works
                return
            ended = self._failure(error)
        except BackendFailed:
            return  # `events` says so
        else:
            self._open.discard(turn)
            ended = self._how_it_ended(result if isinstance(result, dict) else {})
        if turn != self._turn:
            return  # a message was added to the turn
        if self._held and ended.status == "completed":
            text, self._held = backends.joined(self._held), []
            await self.steer(text)
            return
        if ended.status == "completed" and self._works_on():
            self.wait(ended)
        else:
            self._end_turn(ended)

    def _works_on(self) -> bool:
        """Whether the program goes on without a prompt, for what it began in the background."""
        return bool(self.background)

    def _end_turn(self, ended: backends.Ended) -> None:
        self.waiting = None
        for call_id, call in self._calls.items():
            # An interrupted call is never closed by the program. What a call did when the agent died is unknown.
            if call.begun and not call.ended and not call.background and ended.kind != "died":
                self.put(backends.ToolEnd(call_id, "", "cancelled"))
        self._calls.clear()
        self.put(ended)

    def _how_it_ended(self, result: dict[str, Any]) -> backends.Ended:
        given = result.get("usage")
        if isinstance(given, dict):
            usage = Usage(count_of(given.get("inputTokens")), count_of(given.get("outputTokens")),
                          count_of(given.get("cachedReadTokens")), count_of(given.get("cachedWriteTokens")))  # fmt: skip
            self.put(backends.UsageReport(usage=usage, whole_turn=True))
        reason = result.get("stopReason")
        if reason == "cancelled" or self._cancelled:
            return backends.Ended("interrupted")
        if reason in ("refusal", "max_turn_requests"):
            return backends.Ended("failed", f"{self.name} stopped: {reason}")
        return backends.Ended("completed")

    def _failure(self, error: RpcError) -> backends.Ended:
        if self._cancelled:
            return backends.Ended("interrupted")
        reason = reason_of(error)
        if error.code == NOT_LOGGED_IN:
            return backends.Ended("failed", f"{self.name} is not logged in ({reason})", "login")
        if DIED.search(reason):
            return backends.Ended("failed", reason, "died")
        if object_of(error.data).get("errorKind") == "rate_limit" or "(429)" in reason:
            return backends.Ended("failed", reason, "rate_limit")
        return backends.Ended("failed", reason)

    async def asked(self, method: str, params: dict[str, Any], number: int | str) -> Any:
        if method != "session/request_permission":
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method}")
        update = object_of(params.get("toolCall"))
        call_id = str(update.get("toolCallId"))
        call = self._update(call_id, update)
        self._begin(call_id, call)
        changes = _changes(call.content)
        name, given = ("file_change", {"changes": changes}) if changes else (call.name, call.arguments)
        decision = await self.decide(
            backends.Ask(str(number), call_id, name, given, edits=call.edits or bool(changes))
        )
        options = [one for one in params.get("options") or [] if isinstance(one, dict)]
        for kind in _OPTIONS.get(decision, ()):
            chosen = next((one.get("optionId") for one in options if one.get("kind") == kind), None)
            if chosen is not None:
                return {"outcome": {"outcome": "selected", "optionId": chosen}}
        return {"outcome": {"outcome": "cancelled"}}

    def notified(self, method: str, params: dict[str, Any]) -> None:
        update = params.get("update")
        if method != "session/update" or not isinstance(update, dict) or self._replaying:
            return
        match kind := str(update.get("sessionUpdate")):
            case "agent_message_chunk":
                self.put(backends.Text(_text(update.get("content")), str(update.get("messageId") or "")))
            case "agent_thought_chunk":
                self.put(backends.Reasoning(_text(update.get("content"))))
            case "tool_call" | "tool_call_update":
                self._tool(str(update.get("toolCallId")), update)
            case "plan":
                entries = [one for one in update.get("entries") or [] if isinstance(one, dict)]
                self.put(backends.PlanItems(tuple(
                    (str(one.get("content")), _PLAN.get(str(one.get("status")), "pending")) for one in entries)))  # fmt: skip
            case "usage_update":
                self.put(
                    backends.UsageReport(
                        count_of(update.get("used")) or None, count_of(update.get("size")) or None
                    )
                )
            case "current_mode_update":
                self._mode_said(update.get("currentModeId"))
            case "config_option_update":
                if option := _mode_option(update.get("configOptions")):
                    self._mode_said(option.get("currentValue"))
            case "compaction_update" | "compaction_summary_chunk":
                self._compaction(str(update.get("compactionId")), update)
            case "user_message_chunk" | "available_commands_update" | "session_info_update":
                pass
            case _:
                self.put(backends.Raw(kind[:100]))

    def _compaction(self, compaction: str, update: dict[str, Any]) -> None:
        """A compaction started, sent a part of its summary, or ended. The program may report the end twice."""
        status, known = str(update.get("status") or ""), self._summaries.get(compaction)
        if compaction in self._compacted:
            return
        if known is None:
            self._summaries[compaction] = ""
            self.put(backends.Compaction(begun=True))
        if update["sessionUpdate"] == "compaction_summary_chunk":
            self._summaries[compaction] = (known or "") + _text(update.get("content"))
        elif status in ("completed", "failed", "cancelled"):
            streamed = self._summaries.pop(compaction)
            self._compacted.add(compaction)
            summary = "\n".join(_text(one) for one in objects_of(update.get("summary"))) or streamed
            failed = (
                "" if status == "completed" else str(update.get("error") or f"the compaction was {status}")
            )
            self.put(backends.Compaction(begun=False, summary=summary, failed=failed))

    def _tool(self, call_id: str, update: dict[str, Any]) -> None:
        call = self._update(call_id, update)
        status = str(update.get("status") or "")
        if status in ("in_progress", *_ENDED) or (
            update["sessionUpdate"] == "tool_call_update" and call.arguments
        ):
            self._begin(call_id, call)
        output = _output(call.content)
        if call.begun and not call.ended and len(output) > call.printed and status == "in_progress":
            self.put(backends.ToolOutput(call_id, output[call.printed :]))
            call.printed = len(output)
        if status in _ENDED and not call.ended and call.background and _ENDED[status] == "done":
            self.put(backends.ToolOutput(call_id, f"{_raw_output(update) or output}\n"))
        elif status in _ENDED and not call.ended:
            call.ended = True
            diffs = _changes(call.content)
            if (
                not diffs and status == "completed"
            ):  # which files, where it does not say what it changed in them
                diffs = [{"path": path, "diff": ""} for path in call.edited]
            self.put(*(backends.Diff(call_id, one["path"], one["diff"]) for one in diffs))
            self.put(backends.ToolEnd(call_id, _raw_output(update) or output, _ENDED[status]))

    def _update(self, call_id: str, update: dict[str, Any]) -> _Call:
        call = self._calls.get(call_id)
        if call is None or (call.ended and update.get("status") in ("pending", "in_progress")):
            call = self._calls[call_id] = _Call()  # also where a program gives an id twice
        own = object_of(object_of(update.get("_meta")).get("claudeCode")).get("toolName")
        # Until it begins, a call may turn out to be another one, such as OpenCode's `invalid`.
        if own or not call.name or (update.get("title") and not call.begun):
            call.name = str(own or update.get("title") or update.get("kind") or "tool")[:64]
        call.title, call.kind = str(update.get("title") or call.title), str(update.get("kind") or call.kind)
        given = update.get("rawInput")
        if isinstance(given, dict) and given:
            call.arguments = {**call.arguments, **given}
        if isinstance(update.get("content"), list) and update["content"]:
            call.content = update["content"]
        if update.get("kind") and not call.begun:
            call.edits, call.edited = False, {}
        call.edits = call.edits or update.get("kind") in ("edit", "delete", "move")
        if call.edits:
            listed = update.get("locations")
            places = [object_of(one).get("path") for one in (listed if isinstance(listed, list) else ())]
            places += [call.arguments.get(name) for name in ("filePath", "file_path", "path")]
            call.edited.update((path, None) for path in places if isinstance(path, str) and path)
        if isinstance(call.arguments.get("command"), str) and call.name == "Bash":
            call.name = "bash"
        return call

    def _begin(self, call_id: str, call: _Call) -> None:
        if not call.begun:
            call.begun = True
            if call.kind == "execute":  # a command, whatever the program calls it
                given = call.arguments.get("command")
                words = list(map(str, given)) if isinstance(given, list) else []
                command = shell_command(shlex.join(words)) if words else call.title
                call.name = "bash"
                call.arguments = {**call.arguments, "command": given if isinstance(given, str) else command}
            self.put(backends.ToolBegin(call_id, call.name, call.arguments))


def _mode_option(options: Any) -> dict[str, Any]:
    """The configuration option that is the session's mode, among those that a program lists; else empty."""
    named = [one for one in objects_of(options) if "mode" in (one.get("category"), one.get("id"))]
    return next((one for one in named if one.get("category") == "mode"), named[0] if named else {})


def _values_of(option: dict[str, Any]) -> list[str]:
    """The values that an option can have, also those in groups."""
    listed = objects_of(option.get("options"))
    return [
        str(one["value"])
        for group in listed
        for one in (objects_of(group["options"]) if "options" in group else [group])
        if "value" in one
    ]


def _text(content: Any) -> str:
    return str(content.get("text") or "") if isinstance(content, dict) else ""


def _output(content: list[Any]) -> str:
    return "\n".join(
        _text(one.get("content")) for one in content if isinstance(one, dict) and one.get("type") == "content"
    )


def _raw_output(update: dict[str, Any]) -> str:
    raw = update.get("rawOutput")
    if isinstance(raw, dict):
        raw = raw.get("output") or raw.get("error")
    return raw if isinstance(raw, str) else ""


def _changes(content: list[Any]) -> list[dict[str, str]]:
    """The edits in a tool call's content, each as `diff -u` writes it."""
    found = []
    for one in content:
        if isinstance(one, dict) and one.get("type") == "diff":
            path, old, new = str(one.get("path")), one.get("oldText"), str(one.get("newText") or "")
            patch = one.get("patch")
            if not isinstance(patch, str):
                patch = unified_diff(old if isinstance(old, str) else None, new, path)
            found.append({"path": path, "diff": patch})
    return found


# --- The programs -------------------------------------------------------------------------------------------


_CLAUDE_TOOLS = {
    "bash": ("Bash", "BashOutput", "KillShell", "Monitor", "PowerShell", "REPL", "Workflow"),
    "write": ("Write", "Edit", "MultiEdit", "NotebookEdit"),
    "read": ("Read",),
    "glob": ("Glob",),
    "grep": ("Grep",),
    "list_folder": ("LS",),
}
"""Which of its own tools do what Watchkeeper's tools of these names do."""
_CLAUDE_OTHER_TOOLS = ("EnterPlanMode", "ExitPlanMode", "ScheduleWakeup", "CronCreate")
"""Tools that it is not given: they change the session mode, or plan work for a time after the task has ended."""


def _claude_fields(spec: BackendSpec) -> dict[str, Any]:
    options = {
        "settingSources": [],
        "strictMcpConfig": True,
        "promptSuggestions": False,
        **spec.options.get("claude_options", {}),
    }
    denied = [tool for name, tools in _CLAUDE_TOOLS.items() if name in spec.may_not for tool in tools]
    options["disallowedTools"] = [*options.get("disallowedTools", []), *denied, *_CLAUDE_OTHER_TOOLS]
    if spec.memory is not None:
        options["allowedTools"] = [*options.get("allowedTools", []), f"mcp__{TOOL_SERVER}"]
        # Claude Code connects before the first prompt, and offers its model these tools whole, not by name alone. The
        # protocol's own list of servers cannot say that.
        ours = {"type": "http", "url": spec.memory.url, "alwaysLoad": True,
                "headers": {"Authorization": f"Bearer {spec.memory.token}"}}  # fmt: skip
        options["mcpServers"] = {**options.get("mcpServers", {}), TOOL_SERVER: ours}
    return {"mcpServers": [], "_meta": {"claudeCode": {"options": options, "emitRawSDKMessages": True},
                                        "systemPrompt": {"append": spec.instructions}}}  # fmt: skip


def _claude_transcript(spec: BackendSpec, session: str) -> Path | None:
    home = Path(
        spec.environ.get("CLAUDE_CONFIG_DIR") or Path(spec.environ.get("HOME", "~")).expanduser() / ".claude"
    )
    return home / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(spec.folder.resolve())) / f"{session}.jsonl"


CLAUDE = AcpProgram(
    "Claude Code", Features(reports_background=True), session_fields=_claude_fields, transcript=_claude_transcript,
    mode="default", model="default",
)  # fmt: skip
_TASK_ENDED: Mapping[str, Literal["done", "error", "cancelled", "unknown"]] = {
    "completed": "done", "failed": "error", "killed": "cancelled", "stopped": "cancelled",
}  # fmt: skip
_MOST_OUTPUT_BYTES = 30_000
OWN_TURN_SECONDS = 5.0
"""How long after the end of a task Claude Code may take to begin a turn of its own."""


class ClaudeCode(Acp):
    """One session of Claude Code. Its adapter passes on what Claude Code itself says of model calls that it tries again, and
    of what runs in the background, for which it takes a turn without a prompt when that has ended."""

    def __init__(self, process: ProgramProcess) -> None:
        super().__init__(process, CLAUDE)
        self._tasks: dict[str, str] = {}
        """Started commands and other tasks: task id → tool call."""
        self._busy = False

    def notified(self, method: str, params: dict[str, Any]) -> None:
        if method == "_claude/sdkMessage":
            self._heard(object_of(params.get("message")))
        super().notified(method, params)

    def _heard(self, message: dict[str, Any]) -> None:
        task = str(message.get("task_id") or "")
        match message.get("subtype"):
            case "api_retry":
                seconds, status = number_of(message.get("retry_delay_ms")) / 1000, message.get("error_status")
                said = f"{message.get('error') or 'no answer'} ({status})"
                self.put(backends.Retrying(f"{said}; Claude Code retries in {seconds:.0f} s", seconds))
            case "task_started":
                self._tasks[task] = str(message.get("tool_use_id") or "")
                if message.get("is_backgrounded"):
                    self._in_background(task)
            case "task_updated" if object_of(message.get("patch")).get("is_backgrounded"):
                self._in_background(task)
            case "background_tasks_changed":
                listed = [one for one in objects_of(message.get("tasks")) if not one.get("ambient")]
                running = {str(one.get("task_id")) for one in listed}
                for one in running - set(self.background):
                    self.background[one] = ""
                for one in set(self.background) - running:
                    self._task_ended(one, {})
            case "task_notification":
                self._task_ended(task, message)
            case "session_state_changed":
                self._busy = message.get("state") in ("running", "requires_action")
                if self.waiting is not None and not self._works_on():
                    self._end_turn(self.waiting)

    def _works_on(self) -> bool:
        return self._busy or super()._works_on()

    def _in_background(self, task: str) -> None:
        call_id = self.background[task] = self._tasks.get(task, "")
        call = self._calls.get(call_id)
        if call is not None and not call.ended:
            call.background = True
            self._begin(call_id, call)
            self.put(backends.ToolInBackground(call_id))

    def _task_ended(self, task: str, message: dict[str, Any]) -> None:
        call_id = self.background.pop(task, "")
        call = self._calls.get(call_id)
        if call is not None and call.background and not call.ended:
            call.ended = True
            status = _TASK_ENDED.get(str(message.get("status"))) or "unknown"
            said = [str(message.get("summary") or ""), _end_of(str(message.get("output_file") or ""))]
            self.put(backends.ToolEnd(call_id, backends.joined(said), status))
        if self.waiting is not None and not self._works_on():
            self._process.begin(self._await_own_turn(self.waiting))

    async def _await_own_turn(self, ended: backends.Ended) -> None:
        """End the turn if Claude Code takes none of its own for a task that has ended."""
        await asyncio.sleep(OWN_TURN_SECONDS)
        if self.waiting is ended and not self._works_on():
            self._end_turn(ended)


def _end_of(path: str) -> str:
    """The last part of what a command in the background has printed."""
    place = Path(path)
    with suppress(OSError, ValueError):
        if path and place.is_file():
            with place.open("rb") as file:
                file.seek(max(0, place.stat().st_size - _MOST_OUTPUT_BYTES))
                return file.read(_MOST_OUTPUT_BYTES).decode("utf-8", "replace")
    return ""


# --- OpenCode -------------------------------------------------------------------------------------------

_CHILD_STATUS = {"running": "in_progress", "completed": "completed", "error": "failed"}
_CHILD_OPTIONS = [
    {"optionId": "once", "kind": "allow_once"},
    {"optionId": "reject", "kind": "reject_once"},
]
AGAIN_SECONDS = 1.0
"""After so long a connection to its server that broke is made again."""
MOST_FAILURES = 10
"""So many connections in a row fail before the log of events says it."""
READ_SECONDS = 20.0
"""How long its server may take to say its permissions."""
NOT_HEARD = "its server does not respond; approval requests from its sub-agents are not visible"


def _transcript(spec: BackendSpec, session: str) -> Path | None:
    home = Path(spec.environ.get("HOME", "~")).expanduser()
    data = spec.environ.get("XDG_DATA_HOME") or home / ".local" / "share"
    return Path(data) / "opencode" / "opencode.db"


OPENCODE_PERMISSION = {
    **dict.fromkeys(
        ("*", "bash", "edit", "task", "webfetch", "websearch", "codesearch", "external_directory", "skill", "lsp",
         "doom_loop"),
        "ask",
    ),
    **dict.fromkeys(("read", "list", "glob", "grep", "todowrite", "todoread"), "allow"),
    **dict.fromkeys(("plan_enter", "plan_exit"), "deny"),
}  # fmt: skip
"""OpenCode allows every call unless it is set to ask. A person's settings are merged with these by name, so that each
call with an effect is named."""
_OPENCODE_TOOLS = {
    "bash": "bash",
    "write": "edit",
    "read": "read",
    "glob": "glob",
    "grep": "grep",
    "list_folder": "list",
}
"""What OpenCode calls the permission for what Watchkeeper's tools of these names do."""
_OPENCODE_HARMLESS = ("question",)
"""Permissions that it gives its agents by itself, and that have no effect."""

OPENCODE = AcpProgram("OpenCode", Features(compact_instructions=False), transcript=_transcript, mode="build")


def _project_plugin(folder: Path, home: str) -> str:
    """A file of the project, or above it, from which OpenCode 1.18 loads plugins even when plugins are disabled."""
    for place in (folder, *folder.parents):
        for name in ("opencode.json", "opencode.jsonc"):
            with suppress(FileNotFoundError, NotADirectoryError):
                text = (place / name).read_text("utf-8", "replace") if (place / name).is_file() else ""
                if '"plugin' in text or "\\u" in text:  # an escape may spell it, too
                    return str(place / name)
        if str(place) == home:
            continue  # what is there is the person's own
        for pattern in ("plugin/*.[jt]s", "plugins/*.[jt]s"):
            if found := next((place / ".opencode").glob(pattern), None):
                return str(found)
    return ""


_STRICT = {"allow": 0, "ask": 1, "deny": 2}


def _loose_rule(rules: Any, wanted: Mapping[str, Any]) -> str:
    """The first permission of an agent that lets more happen than was set, as `bash (git *)`; empty where none does.

    Of the rules that match a call the last one decides, so they are read from the end until one is for every call.
    """
    settled: set[str] = set()
    for rule in reversed(objects_of(rules)):
        name, pattern, action = (str(rule.get(key)) for key in ("permission", "pattern", "action"))
        if name in settled or name in _OPENCODE_HARMLESS or (name == "external_directory" and pattern != "*"):
            continue
        expected = wanted.get(name, wanted.get("*", "ask"))
        if isinstance(expected, dict):
            expected = expected.get(pattern, expected.get("*", "ask"))
        denied = [one for one, given in wanted.items() if given == "deny" and one not in settled]
        least = "deny" if name == "*" and denied else str(expected)
        if _STRICT.get(action, 0) < _STRICT.get(least, 1):
            return f"{denied[0] if denied and name == '*' and action != 'allow' else name} ({pattern})"
        if pattern == "*":
            settled.add(name)
        if "*" in settled:
            return ""
    return "every call"


class OpenCode(Acp):
    """One session of OpenCode, with those of its sub-agents, whose calls and questions are the agent's too."""

    def __init__(self, process: ProgramProcess) -> None:
        super().__init__(process, OPENCODE)
        self._port, self._password = 0, ""
        self._http: Any = None
        self._permission: dict[str, Any] = {}

    def prepare(self, command: Sequence[str], spec: BackendSpec) -> tuple[Sequence[str], Mapping[str, str]]:
        """Have its server listen where only Watchkeeper knows the password, and set its permissions."""
        folder = spec.folder.resolve()
        if plugin := _project_plugin(folder, spec.environ.get("HOME", "")):
            raise PermissionsNotHeld(f"OpenCode would run a project plugin: {plugin}; remove it first")
        denied = {name: "deny" for ours, name in _OPENCODE_TOOLS.items() if ours in spec.may_not}
        try:
            given = json.loads(spec.environ.get("OPENCODE_PERMISSION", "{}"))
        except ValueError as error:
            raise PermissionsNotHeld(f"OPENCODE_PERMISSION is not JSON: {error}") from error
        self._permission = ({"*": given} if isinstance(given, str) else object_of(given)) | denied
        environ = {**spec.environ, "OPENCODE_PERMISSION": json.dumps(self._permission)}
        if "acp" not in command or "--port" in command:
            return command, environ
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._password = secrets.token_urlsafe(24)
        own = {"OPENCODE_SERVER_PASSWORD": self._password, "OPENCODE_SERVER_USERNAME": "opencode"}
        return (*command, "--port", str(self._port)), {**environ, **own}

    async def open(self, spec: BackendSpec) -> str:
        session = await super().open(spec)
        if not self._port:
            raise PermissionsNotHeld(
                "cannot check the permissions of OpenCode: its command sets --port or lacks `acp`"
            )
        await self._read_permissions(str(spec.folder))
        self._process.begin(self._listen(str(spec.folder)))
        return session

    async def _read_permissions(self, folder: str) -> None:
        """Compare the permissions of each of its agents with those that were set."""
        import httpx2

        address, user = f"http://127.0.0.1:{self._port}/agent", ("opencode", self._password)
        try:
            async with httpx2.AsyncClient(auth=user, trust_env=False, timeout=READ_SECONDS) as http:
                answer = await http.get(address, params={"directory": folder})
                answer.raise_for_status()
                listed = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise PermissionsNotHeld(
                f"cannot check OpenCode's permissions: {type(error).__name__}"
            ) from error
        used = [
            one
            for one in objects_of(listed)
            if one.get("name") == self._mode or one.get("mode") == "subagent"
        ]
        if not any(one.get("name") == self._mode for one in used):
            raise PermissionsNotHeld(f"OpenCode did not list the permissions of its agent {self._mode}")
        for one in used:
            if loose := _loose_rule(one.get("permission"), self._permission):
                raise PermissionsNotHeld(
                    f"the OpenCode agent {str(one.get('name'))[:60]} would run {loose} without asking; remove that rule from its"
                    " settings"
                )

    async def _listen(self, folder: str) -> None:
        """Take the events of its server as long as it runs."""
        import httpx2

        base, user, failures = f"http://127.0.0.1:{self._port}", ("opencode", self._password), 0
        async with httpx2.AsyncClient(
            base_url=base, auth=user, params={"directory": folder}, trust_env=False, timeout=None
        ) as self._http:
            while self._process.alive:
                try:
                    async with self._http.stream("GET", "/event") as events:
                        events.raise_for_status()
                        for asked in objects_of((await self._http.get("/permission")).json()):
                            self._take("permission.asked", asked)  # it asked while nothing listened
                        failures = 0
                        async for line in events.aiter_lines():
                            if line.startswith("data:"):
                                self._heard(line[5:])
                except (httpx2.HTTPError, ValueError) as error:
                    failures += 1
                    if failures == MOST_FAILURES:
                        self.put(backends.Raw(f"{NOT_HEARD}: {type(error).__name__}"))
                await asyncio.sleep(AGAIN_SECONDS)

    def _heard(self, text: str) -> None:
        try:
            event = object_of(json.loads(text))
            self._take(str(event.get("type")), object_of(event.get("properties")))
        except (*WRONG_SHAPE, RecursionError):
            self.put(backends.Raw("malformed event from its server"))

    def _take(self, kind: str, said: dict[str, Any]) -> None:
        session, status = str(said.get("sessionID")), object_of(said.get("status"))
        info, part = object_of(said.get("info")), object_of(said.get("part"))
        if kind == "session.created" and info.get("parentID") in (self._session, *self.children):
            self.child_began(str(info.get("id")), str(info.get("title")))
        elif session != self._session and session not in self.children:
            return
        elif kind == "session.status" and status.get("type") == "retry":
            message, again = str(status.get("message")), number_of(status.get("next")) / 1000
            self.put(backends.Retrying(f"{message}; OpenCode retries", until=again or None))
        elif session == self._session:
            return
        elif kind == "session.idle":
            self.child_ended(session, done=True)
        elif kind == "permission.asked":
            self._process.begin(self._ask_for_child(session, said))
        elif kind == "message.part.updated" and part.get("type") == "tool":
            state = object_of(part.get("state"))
            status_word = _CHILD_STATUS.get(str(state.get("status")))
            if status_word is not None:
                call = child_call(str(part.get("callID")), session)
                tool = str(part.get("tool"))
                self._tool(call, {
                    "sessionUpdate": "tool_call_update", "status": status_word, "title": tool, "rawInput": state.get("input"),
                    "kind": "execute" if tool == "bash" else "other", "rawOutput": state,
                })  # fmt: skip

    async def _ask_for_child(self, session: str, asked: dict[str, Any]) -> None:
        """Put the question of a sub-agent, and tell the server what was decided."""
        given, name, number = (
            object_of(asked.get("metadata")),
            str(asked.get("permission")),
            str(asked.get("id")),
        )
        call = str(object_of(asked.get("tool")).get("callID") or number)
        update: dict[str, Any] = {"toolCallId": child_call(call, session), "title": name, "rawInput": given, "status": "in_progress",
                  "kind": "execute" if name == "bash" else "other"}  # fmt: skip
        if isinstance(given.get("diff"), str):
            update["content"] = [{"type": "diff", "path": str(given.get("filepath")), "patch": given["diff"]}]
        answer = await self.asked(
            "session/request_permission", {"toolCall": update, "options": _CHILD_OPTIONS}, number
        )
        reply = {"reply": answer["outcome"].get("optionId", "reject")}
        import httpx2

        with suppress(httpx2.HTTPError):
            await self._http.post(f"/permission/{number}/reply", json=reply)
