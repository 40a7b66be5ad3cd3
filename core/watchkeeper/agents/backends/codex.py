"""Codex over its app-server: JSON-RPC lines on its standard streams, one thread for each agent."""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from watchkeeper.agents import backends
from watchkeeper.agents.backends import BackendSpec, Features
from watchkeeper.agents.backends.process import (
    METHOD_NOT_FOUND,
    ProgramProcess,
    RpcBackend,
    RpcError,
    count_of,
    object_of,
    text_at,
)
from watchkeeper.records.messages import Usage

ARGUMENTS = (
    "app-server", "-c", "features.plugins=false", "-c", "features.apps=false", "-c", "features.remote_plugin=false",
)  # fmt: skip
"""Without these settings it looks hosts up in the network when it starts."""
_DECISIONS = {"once": "accept", "always": "acceptForSession", "deny": "decline", "cancel": "cancel"}
_STATUS: dict[str, Literal["done", "error", "denied", "cancelled"]] = {
    "completed": "done",
    "declined": "denied",
}
_LIMITS = frozenset({"usageLimitExceeded", "rateLimitExceeded", "sessionBudgetExceeded"})
_ACTIVE = {"inProgress": "running", "completed": "done"}


class Codex(RpcBackend):
    """One thread of Codex."""

    features = Features(steer="now", compact_instructions=False, sandbox=True)

    name = "Codex"

    def __init__(self, process: ProgramProcess) -> None:
        super().__init__(process)
        self._thread, self._turn, self._path = "", "", ""
        self._changes: dict[str, list[dict[str, Any]]] = {}
        self._resets_at: float | None = None
        self._next: dict[str, Any] = {}

    async def open(self, spec: BackendSpec) -> str:
        info = {"name": "watchkeeper", "title": "Watchkeeper", "version": "1"}
        config: dict[str, Any] = {
            "shell_environment_policy": {"inherit": "core", "set": _marks(spec)},
            "tools": {"update_plan": {"enabled": True}},
            **spec.options.get("config", {}),
        }
        if spec.memory is not None:
            config["mcp_servers"] = {"watchkeeper": {
                "url": spec.memory.url, "http_headers": {"Authorization": f"Bearer {spec.memory.token}"},
                "default_tools_approval_mode": "approve",
            }}  # fmt: skip
        params = {
            "cwd": str(spec.folder), "approvalPolicy": spec.options.get("approval_policy", "untrusted"),
            "sandbox": spec.options.get("sandbox", "workspace-write"), "developerInstructions": spec.instructions,
            "config": config, **({"model": spec.model} if spec.model else {}),
        }  # fmt: skip
        said = await self.request(
            "initialize", {"clientInfo": info, "capabilities": {"experimentalApi": True}}
        )
        self.version = str(object_of(said).get("userAgent") or "").partition("/")[2].partition(" ")[0][:60]
        await self._process.notify("initialized")
        method = "thread/resume" if spec.session else "thread/start"
        known = {"threadId": spec.session, "excludeTurns": True} if spec.session else {}
        opened = await self.request(method, params | known)
        self._thread = text_at(opened, "thread", "id")
        self._path = str(object_of(opened["thread"]).get("path") or "")
        return self._thread

    async def prompt(self, text: str) -> None:
        params = {"threadId": self._thread, "input": [{"type": "text", "text": text}], **self._next}
        self._turn = text_at(await self.request("turn/start", params), "turn", "id")

    async def steer(self, text: str) -> Literal["now", "next"]:
        given = {
            "threadId": self._thread,
            "expectedTurnId": self._turn,
            "input": [{"type": "text", "text": text}],
        }
        await self.request("turn/steer", given)
        return "now"

    async def interrupt(self) -> None:
        await self.request("turn/interrupt", {"threadId": self._thread, "turnId": self._turn})
        await self.request("thread/backgroundTerminals/clean", {"threadId": self._thread})

    async def compact(self, instructions: str | None) -> None:
        await self.request("thread/compact/start", {"threadId": self._thread})

    async def set(self, model: str | None, mode: str | None) -> None:
        self._next = ({"model": model} if model else {}) | ({"approvalPolicy": mode} if mode else {})

    def transcript(self) -> Path | None:
        return Path(self._path) if self._path else None

    async def asked(self, method: str, params: dict[str, Any], number: int | str) -> Any:
        if method == "mcpServer/elicitation/request":
            return {"action": "decline"}
        kind = {
            "item/commandExecution/requestApproval": "bash",
            "item/fileChange/requestApproval": "file_change",
        }.get(method)
        if kind is None:
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method}")
        call = str(params.get("itemId"))
        arguments = (
            {"command": _command(params.get("command"))}
            if kind == "bash"
            else {"changes": self._changes.get(call, [])}
        )
        note, folder = str(params.get("reason") or ""), params.get("cwd")
        ask = backends.Ask(str(number), call, kind, arguments, note, str(folder) if folder else None)
        return {"decision": _DECISIONS[await self.decide(ask)]}

    def told(self, method: str, params: dict[str, Any]) -> None:
        if params.get("threadId", self._thread) != self._thread:
            return  # a sub-agent of its own; its tool call says what came of it
        item: dict[str, Any] = object_of(params.get("item"))
        match method:
            case "item/agentMessage/delta":
                self.put(backends.Text(str(params.get("delta")), str(params.get("itemId"))))
            case "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
                self.put(backends.Reasoning(str(params.get("delta"))))
            case "item/commandExecution/outputDelta":
                self.put(backends.ToolOutput(str(params.get("itemId")), str(params.get("delta"))))
            case "item/started":
                self._began(item)
            case "item/completed":
                self._finished(item)
            case "turn/plan/updated":
                steps = [one for one in params.get("plan") or [] if isinstance(one, dict)]
                self.put(backends.PlanItems(
                    tuple((str(one.get("step")), _ACTIVE.get(str(one.get("status")), "pending")) for one in steps)))  # fmt: skip
            case "thread/tokenUsage/updated":
                self.put(_usage(params.get("tokenUsage") or {}))
            case "account/rateLimits/updated":
                self._resets_at = _reset_of(params.get("rateLimits") or {})
            case "turn/started":
                self._turn = str((params.get("turn") or {}).get("id") or self._turn)
            case "turn/completed":
                self.put(self._how_it_ended(params.get("turn") or {}))
            case "error" if params.get("willRetry"):
                self.put(backends.Retrying(str((params.get("error") or {}).get("message"))))

    def _began(self, item: dict[str, Any]) -> None:
        call, kind = str(item.get("id")), item.get("type")
        if kind == "commandExecution":
            self.put(backends.ToolBegin(call, "bash", {"command": _command(item.get("command"))}))
        elif kind == "fileChange":
            self._changes[call] = _changes(item)
            self.put(backends.ToolBegin(call, "file_change", {"changes": self._changes[call]}))
        elif kind == "mcpToolCall":
            given = item.get("arguments")
            self.put(backends.ToolBegin(call, f"mcp__{item.get('server')}__{item.get('tool')}",
                                         given if isinstance(given, dict) else {"input": given}))  # fmt: skip
        elif kind == "contextCompaction":
            self.put(backends.Compaction(begun=True))
        elif kind == "collabAgentToolCall":
            self.put(backends.Child(call, str(item.get("prompt") or item.get("tool"))))
        elif kind in ("webSearch", "dynamicToolCall", "imageView"):
            self.put(
                backends.ToolBegin(call, str(kind), {"query": item.get("query") or item.get("path") or ""})
            )

    def _finished(self, item: dict[str, Any]) -> None:
        call, kind, status = str(item.get("id")), item.get("type"), str(item.get("status"))
        if kind == "agentMessage":
            self.put(backends.Text("", call))
        elif kind == "contextCompaction":
            self.put(backends.Compaction(begun=False))
        elif kind == "collabAgentToolCall":
            self.put(backends.Child(call, "", "done" if status == "completed" else "failed"))
        elif kind == "fileChange":
            for change in _changes(item):
                self.put(backends.Diff(call, change["path"], change["diff"]))
            self.put(
                backends.ToolEnd(
                    call, f"{len(item.get('changes') or [])} files", _STATUS.get(status, "error")
                )
            )
        elif kind == "commandExecution":
            code = item.get("exitCode")
            output = str(item.get("aggregatedOutput") or "") + (f"\n[exit code {code}]" if code else "")
            self.put(backends.ToolEnd(call, output, _STATUS.get(status, "error")))
        elif kind in ("mcpToolCall", "webSearch", "dynamicToolCall", "imageView"):
            self.put(
                backends.ToolEnd(
                    call, _result(item), "error" if item.get("error") else _STATUS.get(status, "done")
                )
            )

    def _how_it_ended(self, turn: dict[str, Any]) -> backends.Ended:
        status, error = turn.get("status"), object_of(turn.get("error"))
        if status == "completed":
            return backends.Ended("completed")
        if status == "interrupted":
            return backends.Ended("interrupted")
        info, reason = str(error.get("codexErrorInfo")), str(error.get("message") or "the turn failed")
        if info in _LIMITS:
            return backends.Ended("failed", reason, "limit", self._resets_at or _worded_reset(reason))
        if info == "unauthorized":
            return backends.Ended("failed", reason, "login")
        return backends.Ended("failed", reason, "context" if info == "contextWindowExceeded" else "")


_AGAIN = re.compile(r"try again at (?:(\w{3} \d{1,2})\w{2}, (\d{4}) )?(\d{1,2}:\d{2} [AP]M)")


def _worded_reset(reason: str) -> float | None:
    """When a limit ends by Codex's own words, in local time: `try again at Nov 24th, 2026 12:34 PM`, or `3:05 PM`."""
    found = _AGAIN.search(reason)
    if found is None:
        return None
    today = datetime.now()
    day = f"{found[1]} {found[2]}" if found[1] else f"{today:%b %d %Y}"
    try:
        # A minute later: the words leave the seconds out.
        return datetime.strptime(f"{day} {found[3]}", "%b %d %Y %I:%M %p").timestamp() + 60
    except ValueError:
        return None


def _marks(spec: BackendSpec) -> dict[str, str]:
    return {name: value for name, value in spec.environ.items() if name.startswith("WATCHKEEPER_")}


def _command(value: Any) -> str:
    """The command as a person would type it: without the shell that Codex wraps it in."""
    text = str(value or "")
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    wrapped = len(words) == 3 and words[0].endswith(("bash", "zsh", "sh")) and words[1] in ("-lc", "-c")
    return words[2] if wrapped else text


def _changes(item: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"path": str(one.get("path")), "diff": str(one.get("diff"))}
            for one in item.get("changes") or [] if isinstance(one, dict)]  # fmt: skip


def _result(item: dict[str, Any]) -> str:
    if isinstance(item.get("error"), dict):
        return str(item["error"].get("message"))
    content = (item.get("result") or {}).get("content") if isinstance(item.get("result"), dict) else None
    return "\n".join(str(part.get("text", "")) for part in content or [] if isinstance(part, dict))


def _usage(report: dict[str, Any]) -> backends.UsageReport:
    last = report.get("last") or {}
    cached, written = count_of(last.get("cachedInputTokens")), count_of(last.get("cacheWriteInputTokens"))
    read = count_of(last.get("inputTokens"))
    usage = Usage(input_tokens=max(0, read - cached - written), output_tokens=count_of(last.get("outputTokens")),
                  cache_read_tokens=cached, cache_write_tokens=written)  # fmt: skip
    return backends.UsageReport(
        count_of(last.get("totalTokens")), count_of(report.get("modelContextWindow")) or None, usage
    )


def _reset_of(limits: dict[str, Any]) -> float | None:
    """When the limit that is reached ends: the latest reset of a window that is used up."""
    windows = [one for one in (limits.get("primary"), limits.get("secondary")) if isinstance(one, dict)]
    full = [
        until
        for one in windows
        if count_of(one.get("usedPercent")) >= 100 and (until := count_of(one.get("resetsAt")))
    ]
    return float(max(full)) if full else None
