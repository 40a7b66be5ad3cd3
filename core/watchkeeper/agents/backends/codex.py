"""Codex over its app-server: JSON-RPC lines on its standard streams, one thread for each agent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from watchkeeper.agents import backends
from watchkeeper.agents import backends as rpc
from watchkeeper.agents.backends import (
    BackendSpec,
    Ended,
    Features,
    child_call,
    count_of,
    object_of,
    objects_of,
    shell_command,
    text_at,
)
from watchkeeper.records.messages import Usage

# fmt: off
# Without these settings, Codex looks hosts up in the network when it starts.
ARGUMENTS = ("app-server", "-c", "features.plugins=false", "-c", "features.apps=false", "-c", "features.remote_plugin=false")
_DECISIONS = {"once": "accept", "always": "acceptForSession", "deny": "decline", "cancel": "cancel"}
_STATUS: dict[str, Literal["done", "error", "denied"]] = {"completed": "done", "declined": "denied"}
_STEPS = {"inProgress": "running", "completed": "done"}
_KINDS: Any = {"unauthorized": "login", "rateLimitExceeded": "rate_limit", "usageLimitExceeded": "limit", "sessionBudgetExceeded": "limit"}
_QUESTIONS = {"item/commandExecution/requestApproval": "bash", "item/fileChange/requestApproval": "file_change"}
_CALLS = ("commandExecution", "fileChange", "mcpToolCall", "webSearch", "dynamicToolCall", "imageView")


_SANDBOXES = {"read-only": "readOnly", "workspace-write": "workspaceWrite", "danger-full-access": "dangerFullAccess"}
_LONGEST_POINTER = 8_192
TERMINALS_SECONDS = 2.0
"""How often Codex is asked which commands still run, while the turn waits for them."""


def _projects(folder: Path) -> dict[str, Any]:
    """Settings with which Codex loads no configuration, hooks or rules of a project: it looks its trust up by the folder,
    by those above it, and by the main folder of a git worktree. Without them it trusts what it may write, and stores that."""
    found = dict.fromkeys(one for start in (folder, folder.resolve()) for one in (start, *start.parents))
    for place in list(found):
        with suppress(OSError, ValueError):
            if (place / ".git").is_file():  # of a worktree: gitdir: MAIN/.git/worktrees/NAME
                with (place / ".git").open(encoding="utf-8") as pointer:
                    pointed = pointer.read(_LONGEST_POINTER).partition(":")[2].strip()
                found.update(dict.fromkeys((place / pointed).resolve().parents))
    return {str(one): {"trust_level": "untrusted"} for one in found}


class Codex(rpc.RpcBackend):
    """One thread of Codex, with those of its sub-agents, whose calls and questions are the agent's too."""

    name, features, _thread, _resets_at = "Codex", Features(compact_instructions=False), "", 0.0

    async def open(self, spec: BackendSpec) -> str:
        marks = {name: value for name, value in spec.environ.items() if name.startswith("WATCHKEEPER_")}
        config: dict[str, Any] = {"shell_environment_policy": {"inherit": "core", "set": marks},
                                  "tools": {"update_plan": {"enabled": True}}, **spec.options.get("config", {})}
        config["projects"] = _projects(spec.folder)
        # What the person's own Codex settings add to the sandbox does not count here.
        wider = object_of(config.pop("sandbox_workspace_write", None))
        roots, network = list(wider.get("writable_roots", [])), bool(wider.get("network_access", False))
        config |= {"sandbox_workspace_write.writable_roots": roots, "sandbox_workspace_write.network_access": network}
        if "bash" in spec.denied:
            config |= {"features.shell_tool": False, "features.unified_exec": False}
        if spec.memory is not None:
            ours = {"url": spec.memory.url, "http_headers": {"Authorization": f"Bearer {spec.memory.token}"}}
            config["mcp_servers"] = {rpc.TOOL_SERVER: {**ours, "default_tools_approval_mode": "approve"}}
        policy = "untrusted" if spec.may_not else spec.options.get("approval_policy", "untrusted")
        # A role without bash reads with harmless commands, as Codex has no other way; its sandbox lets them change nothing.
        read_only = {"bash", "write"} <= spec.may_not
        sandbox = "read-only" if read_only else spec.options.get("sandbox", "workspace-write")
        params = {
            "cwd": str(spec.folder), "approvalPolicy": policy, "approvalsReviewer": "user", "config": config,
            "sandbox": sandbox, "developerInstructions": spec.instructions,
            **({"model": spec.model} if spec.model else {}), **({"threadId": spec.session, "excludeTurns": True} if spec.session else {}),
        }
        self._given: dict[str, dict[str, Any]] = {}
        self._running: set[str] = set()  # commands
        self._over = ""  # the turn that ended last
        self._next, self._turns = dict[str, str](), dict[str, str]()  # of each thread
        said = await self.request("initialize", {"clientInfo": rpc.CLIENT, "capabilities": {"experimentalApi": True}})
        self.version = str(object_of(said).get("userAgent") or "").partition("/")[2].partition(" ")[0][:60]
        await self._process.notify("initialized")
        opened = await self.request("thread/resume" if spec.session else "thread/start", params)
        self._thread = text_at(opened, "thread", "id")
        self._set = {"approvalPolicy": policy, "approvalsReviewer": "user", "sandbox": _SANDBOXES.get(sandbox, sandbox)}
        if sandbox == "workspace-write":
            self._set |= {"writable folders": sorted(map(str, roots)), "network access": network}
        self._strayed = ""
        if other := self._differs(object_of(opened)):
            raise rpc.PermissionsNotHeld(f"Codex did not confirm its permissions: {other}")
        self.record = str(object_of(opened["thread"]).get("path") or "")
        return self._thread

    def _differs(self, reported: dict[str, Any]) -> str:
        """What Codex reports of its permissions that is not as it was set."""
        sandbox = object_of(reported.get("sandbox") or reported.get("sandboxPolicy"))
        roots = sandbox.get("writableRoots")
        said = {**reported, "sandbox": sandbox.get("type"), "network access": sandbox.get("networkAccess", False),
                "writable folders": sorted(map(str, roots)) if isinstance(roots, list) else []}
        return ", ".join(
            f"{name} is {str(said.get(name))[:60]} instead of {wanted}" for name, wanted in self._set.items()
            if said.get(name) != wanted
        )

    async def prompt(self, text: str) -> None:
        if self._strayed:
            raise rpc.PermissionsNotHeld(self._strayed)
        params = {"threadId": self._thread, "input": [{"type": "text", "text": text}], **self._next}
        self.waiting = None
        turn = text_at(await self.request("turn/start", params), "turn", "id")
        if turn != self._over:  # it may have ended before its answer was read
            self._turns[self._thread] = turn

    async def steer(self, text: str) -> Literal["now", "next"]:
        if self.waiting is not None:  # no turn runs, only commands
            await self.prompt(text)
            return "now"
        if self._thread not in self._turns:
            raise backends.Refused("Codex just ended its turn")
        turn = {"threadId": self._thread, "expectedTurnId": self._turns[self._thread]}
        await self.request("turn/steer", {**turn, "input": [{"type": "text", "text": text}]})
        return "now"

    async def interrupt(self) -> None:
        for thread, turn in list(self._turns.items()):
            for method, more in (("turn/interrupt", {"turnId": turn}), ("thread/backgroundTerminals/clean", {})):
                with suppress(backends.Refused):  # it has ended just now
                    await self.request(method, {"threadId": thread, **more})
        if self.waiting is not None:
            self.waiting = None
            with suppress(backends.Refused):
                await self.request("thread/backgroundTerminals/clean", {"threadId": self._thread})
            self.put(Ended("interrupted"))

    async def compact(self, instructions: str | None) -> None:
        await self.request("thread/compact/start", {"threadId": self._thread})

    async def set(self, model: str | None, mode: str | None) -> None:
        self._next = ({"model": model} if model else {}) | ({"approvalPolicy": mode} if mode else {})

    async def asked(self, method: str, params: dict[str, Any], number: int | str) -> Any:
        if method == "mcpServer/elicitation/request":
            return {"action": "decline"}
        kind, child = _QUESTIONS.get(method), str(params.get("threadId", "")).removeprefix(self._thread)
        if kind is None:
            raise rpc.RpcError(rpc.METHOD_NOT_FOUND, f"unknown method {method}")
        if (call := child_call(str(params.get("itemId")), child)) not in self._given:  # a call that was not announced
            self._given[call] = {"command": shell_command(params.get("command"))}
            self.put(backends.ToolBegin(call, kind, self._given[call]))
        reason, folder = str(params.get("reason") or ""), str(params["cwd"]) if params.get("cwd") else None
        ask = backends.Ask(str(number), call, kind, self._given[call], reason, folder)
        return {"decision": _DECISIONS[await self.decide(ask)]}

    def notified(self, method: str, params: dict[str, Any]) -> None:
        child = str(params.get("threadId", "")).removeprefix(self._thread)
        item, delta = object_of(params.get("item")), str(params.get("delta"))
        thread, call = child or self._thread, child_call(str(params.get("itemId")), child)
        if method in ("item/agentMessage/delta", "item/reasoning/summaryTextDelta"):
            self.put(backends.Text(delta, call) if method == "item/agentMessage/delta" and not child else backends.Reasoning(delta))
        elif method == "item/commandExecution/outputDelta":
            self.put(backends.ToolOutput(call, delta))
        elif method == "thread/tokenUsage/updated":
            self.put(backends.UsageReport() if child else _usage(object_of(params.get("tokenUsage"))))
        elif method in ("item/started", "item/completed"):
            self._item(child_call(str(item.get("id")), child), str(item.get("type")), item, child, method == "item/started")
        elif method == "turn/plan/updated" and not child:
            steps = [(str(one.get("step")), str(one.get("status"))) for one in objects_of(params.get("plan"))]
            self.put(backends.PlanItems(tuple((step, _STEPS.get(status, "pending")) for step, status in steps)))
        elif method == "account/rateLimits/updated":  # of windows that are used up, the latest end
            windows = (object_of(object_of(params.get("rateLimits")).get(name)) for name in ("primary", "secondary"))
            ends = [count_of(one.get("resetsAt")) for one in windows if count_of(one.get("usedPercent")) >= 100]
            self._resets_at = float(max(ends, default=0))
        elif method == "thread/settings/updated" and not child and (other := self._differs(object_of(params.get("threadSettings")))):
            self._strayed = f"Codex was stopped because its permissions changed: {other}"
            self.put(Ended("failed", self._strayed, "permissions"))
        elif method == "turn/started":
            self._turns[thread] = str(object_of(params.get("turn")).get("id"))
        elif method == "turn/completed":
            ended, _ = self._ended(object_of(params.get("turn"))), self._turns.pop(thread, "")
            if child:
                self.child_ended(thread, done=ended.status == "completed")
                return
            self._over = str(object_of(params.get("turn")).get("id"))
            if ended.status == "completed" and self._running:
                self._to_background()
                self.wait(ended)
                self._process.begin(self._watch_terminals(ended))
            else:
                self.put(ended)
        elif method == "error" and params.get("willRetry"):
            self.put(backends.Retrying(str(object_of(params.get("error")).get("message"))))

    def _ended(self, turn: dict[str, Any]) -> Ended:
        if (status := turn.get("status")) in ("completed", "interrupted"):
            return Ended(status)
        error = object_of(turn.get("error"))
        info, reason = error.get("codexErrorInfo"), str(error.get("message") or "the turn failed")
        kind = _KINDS.get("rateLimitExceeded" if "429" in str(info) else str(info), "")
        return Ended("failed", reason, kind, (self._resets_at or None) if "limit" in kind else None)

    def _to_background(self) -> None:
        """The model goes on, so the commands that still run do so in the background."""
        for call in self._running.difference(self.background):
            self.background[call] = call
            self.put(backends.ToolInBackground(call))

    def _no_longer_runs(self, calls: Collection[str]) -> None:
        self._running.difference_update(calls)
        for call in calls:
            self.background.pop(call, None)
        if self.waiting is not None and not self._running:
            ended, self.waiting = self.waiting, None
            self.put(ended)

    async def _watch_terminals(self, ended: Ended) -> None:
        """While the turn waits for commands, check that each still runs. One that is missing twice has ended without a report."""
        missed: set[str] = set()
        while self.waiting is ended:
            with suppress(backends.Refused):
                listed = object_of(await self.request("thread/backgroundTerminals/list", {"threadId": self._thread}))
                if self.waiting is ended and not listed.get("nextCursor"):
                    missing = self._running - {str(one.get("itemId")) for one in objects_of(listed.get("data"))}
                    self._no_longer_runs(missing & missed)
                    missed = missing
            await asyncio.sleep(TERMINALS_SECONDS)

    def _item(self, call: str, kind: str, item: dict[str, Any], child: str, begins: bool) -> None:
        status = str(item.get("status", "completed"))
        changes = [{"path": str(one.get("path")), "diff": str(one.get("diff"))} for one in objects_of(item.get("changes"))]
        if kind == "contextCompaction" and not child:
            self.put(backends.Compaction(begun=begins))
        elif kind == "collabAgentToolCall" and item.get("tool") == "spawnAgent":
            for thread in item.get("receiverThreadIds") or []:
                self.child_began(str(thread), str(item.get("prompt") or ""))
        elif kind in _CALLS and begins:
            known: dict[str, tuple[str, dict[str, Any]]] = {
                "commandExecution": ("bash", {"command": shell_command(item.get("command"))}),
                "fileChange": ("file_change", {"changes": changes}),
                "mcpToolCall": (f"mcp__{item.get('server')}__{item.get('tool')}", object_of(item.get("arguments"))),
            }
            name, self._given[call] = known.get(kind, (kind, {"query": item.get("query") or item.get("path")}))
            self.put(backends.ToolBegin(call, name, self._given[call]))
            if kind == "commandExecution" and not child:
                self._running.add(call)
        elif kind in ("agentMessage", "reasoning") and begins and not child:
            self._to_background()
        elif kind in _CALLS:
            self.put(*(backends.Diff(call, one["path"], one["diff"]) for one in changes))
            said = "\n".join(str(one.get("text", "")) for one in objects_of(object_of(item.get("result")).get("content")))
            output = str(item.get("aggregatedOutput") or object_of(item.get("error")).get("message") or said)
            output += f"\n[exit code {item['exitCode']}]" if item.get("exitCode") else ""
            self.put(backends.ToolEnd(call, output, "error" if item.get("error") else _STATUS.get(status, "error")))
            self._no_longer_runs({call})


def _usage(report: dict[str, Any]) -> backends.UsageReport:
    last = object_of(report.get("last"))
    cached, written = count_of(last.get("cachedInputTokens")), count_of(last.get("cacheWriteInputTokens"))
    fresh = max(0, count_of(last.get("inputTokens")) - cached - written)
    usage = Usage(fresh, count_of(last.get("outputTokens")), cached, written)
    return backends.UsageReport(count_of(last.get("totalTokens")), count_of(report.get("modelContextWindow")) or None, usage)
