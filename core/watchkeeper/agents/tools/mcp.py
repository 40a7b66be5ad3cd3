"""Tools of MCP servers that the user's configuration names. Each server has its own worker process.

If a server dies, hangs, lies or floods, only its worker suffers, never the host. The call ends as an error
result, and the next call restarts the server. MCP tools ask by default, whatever the server says about them,
since its hints are only claims.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.child import Child, ChildFailed
from watchkeeper.agents.tools.containment import Containment
from watchkeeper.agents.tools.contract import McpServer, Permission, Tool, ToolContext, ToolResult
from watchkeeper.agents.tools.processes import SESSION_VARIABLE
from watchkeeper.agents.tools.workers import result_of
from watchkeeper.records.errors import HostFault
from watchkeeper.records.messages import ToolSpec
from watchkeeper.records.ports import Clock, SystemClock

LIST_TOOLS = "\0list"
LONGEST_NAME = 64
LONGEST_DESCRIPTION = 4_000
LARGEST_SCHEMA = 50_000
GRACE_SECONDS = 5.0
"""How much longer than a call's time the host waits for the worker to say that it was up."""

CLOSE_SECONDS = 2.0

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 300.0
"""How long after a failed start a server is tried again, doubling each time up to the second."""

LateTools = Callable[[str, dict[str, Tool]], Awaitable[None]]
"""Receives the server's name, and the tools that came after `start`."""


class _Link:
    """The connection to one server: its worker, made when needed."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        workspace: Path,
        environ: Mapping[str, str],
        containment: Containment | None,
    ) -> None:
        self.name = name
        self.server = server
        self._workspace = workspace
        self._environ = environ
        self._containment = containment
        self._child: Child | None = None
        self._calls: Counter[Child] = Counter()
        """How many calls each worker answers; one that is not `_child` ends with its last call."""
        self._starting = asyncio.Lock()
        self.listing = asyncio.Lock()
        """Held while it is asked what it offers."""
        self._closed = False

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        seconds = self.server.timeout_seconds
        try:
            child = await self._connected()
        except ChildFailed as failure:
            return ToolResult(f"MCP server {self.name}: {failure}", is_error=True)
        request = {"tool": tool, "arguments": dict(arguments), "timeout_seconds": seconds}
        self._calls[child] += 1
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                answer = await child.call(request)
        except (TimeoutError, ChildFailed) as error:
            await child.kill()
            why = error if isinstance(error, ChildFailed) else f"no answer within {seconds:g} s"
            began = not isinstance(error, ChildFailed) or error.began
            text = f"MCP server {self.name}: {why}; the next call restarts it"
            return ToolResult(text, is_error=True, outcome_unknown=began)
        finally:
            self._calls[child] -= 1
            await self._end_if_unused(child)
        if answer.get("broken"):
            self._child = None if self._child is child else self._child
            await self._end_if_unused(child)
        return result_of(answer)

    async def list_tools(self) -> list[dict[str, Any]]:
        """What the server offers.

        Raises:
            ChildFailed: it cannot be asked.
        """
        child = await self._connected()
        try:
            async with asyncio.timeout(self.server.timeout_seconds):
                answer = await child.call({"tool": LIST_TOOLS, "arguments": {}, "timeout_seconds": 30.0})
            content = answer.get("content")
            if answer.get("is_error") or not isinstance(content, str):
                raise ChildFailed(str(content)[:300])
            tools = json.loads(content)
        except (TimeoutError, ValueError) as error:
            raise ChildFailed("it did not list its tools") from error
        return [one for one in tools if isinstance(one, dict) and isinstance(one.get("name"), str)]

    async def aclose(self) -> None:
        self._closed = True
        children = {*self._calls, *([self._child] if self._child else [])}
        self._child = None
        await asyncio.gather(*(child.close(CLOSE_SECONDS) for child in children))

    async def _connected(self) -> Child:
        async with self._starting:
            if self._closed:
                raise ChildFailed("the session is closing")
            if self._child is not None and not self._child.alive:
                await self._child.kill()
                self._child = None
            if self._child is None:
                self._child = await Child.start(self._config(), self._environ, "", self._containment)
            return self._child

    def _config(self) -> dict[str, Any]:
        server = self.server
        here = str(self._workspace)
        return {
            "mode": "mcp",
            "workspace": here,
            "command": server.command,
            "args": [argument.replace("${workspace}", here) for argument in server.args],
            "env": {name: self._environ[name] for name in (SESSION_VARIABLE,) if name in self._environ}
            | dict(server.env),
            "cwd": server.cwd,
            "url": server.url,
            "headers": dict(server.headers),
        }

    async def _end_if_unused(self, child: Child) -> None:
        if self._calls[child] == 0:
            del self._calls[child]
            if child is not self._child:
                await child.kill()


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server."""

    spec: ToolSpec
    idempotent: bool
    link: _Link
    remote_name: str
    permission: Permission = Permission.ASK

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return await self.link.call(self.remote_name, arguments)


MCP_TOOL = "mcp__"
"""How the name of each tool of an MCP server begins."""


class McpServers:
    """All servers of one host, started together and ended together. A server that fails to start is tried
    again, at growing intervals, and whenever an agent calls one of its tools.

    `redact` removes secrets from a server's descriptions of its tools, which every prompt contains.
    """

    def __init__(
        self,
        servers: Mapping[str, McpServer],
        workspace: Path,
        environ: Mapping[str, str],
        redact: Callable[[Any], Any] = lambda value: value,
        *,
        clock: Clock | None = None,
        containment: Containment | None = None,
    ) -> None:
        self._redact = redact
        self._clock = clock or SystemClock()
        self._silent: set[_Link] = set()
        """Those that have not said yet what they offer."""
        self._retrying: asyncio.Task[None] | None = None
        self.on_late: LateTools | None = None
        """Where it is set: called for each server that answers after `start`."""
        self._links = [
            _Link(name, server, workspace, environ, containment) for name, server in servers.items()
        ]
        self._tools: dict[str, Tool] = {}
        self.first: frozenset[str] = frozenset()
        """The names of the tools that were there at `start`."""
        self.warnings: list[str] = []
        """One line for each server or tool that cannot be used, after `start`."""

    async def start(self) -> None:
        """Start every server, and ask for its tools. A server that fails is a warning: the others
        continue."""
        self._silent = set(self._links)
        failures = await asyncio.gather(*(self._ask(link) for link in self._links))
        for link, failure in zip(self._links, failures, strict=True):
            if failure is not None:
                self.warnings.append(f"MCP server {link.name} offers no tools: {failure}; retrying")
        if self._silent:
            self._retrying = asyncio.create_task(self._retry(), name="mcp-retry")
        self.first = frozenset(self._tools)

    @property
    def awaited(self) -> list[str]:
        """The names of the servers that have not answered yet."""
        return sorted(link.name for link in self._silent)

    async def look_for(self, tool: str) -> None:
        """An agent calls a tool that is not there: if its server has not answered yet, ask it now."""
        for link in [one for one in self._silent if tool.startswith(f"{MCP_TOOL}{one.name}__")]:
            await self._ask_late(link)

    async def _retry(self) -> None:
        seconds = FIRST_RETRY_SECONDS
        while self._silent:
            await self._clock.sleep(seconds)
            seconds = min(2 * seconds, LONGEST_RETRY_SECONDS)
            await asyncio.gather(*(self._ask_late(link) for link in list(self._silent)))

    async def _ask_late(self, link: _Link) -> None:
        before = set(self._tools)
        if link in self._silent and await self._ask(link) is None and self.on_late is not None:
            own = f"{MCP_TOOL}{link.name}__"
            found = {
                name: tool
                for name, tool in self._tools.items()
                if name not in before and name.startswith(own)
            }
            await self.on_late(link.name, found)

    async def _ask(self, link: _Link) -> str | None:
        """Take in what the server offers; returns why it offers nothing."""
        async with link.listing:
            if link not in self._silent:
                return None
            try:
                listing = await link.list_tools()
            except (ChildFailed, HostFault) as failure:
                return str(failure)
            for one in listing:
                self._add(link, one)
            self._silent.discard(link)
            return None

    def tools(self) -> dict[str, Tool]:
        """The tools by name, `mcp__<server>__<tool>`."""
        return dict(self._tools)

    async def aclose(self) -> None:
        """End every server, and all that they started."""
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)
        await asyncio.gather(*(link.aclose() for link in self._links))

    def _add(self, link: _Link, one: Mapping[str, Any]) -> None:
        remote = str(one["name"])
        name = tool_name(link.name, remote)
        if name in self._tools:
            self.warnings.append(
                f"MCP server {link.name} has two tools named {remote[:80]!r}; using the first"
            )
            return
        schema = one.get("input_schema")
        if (
            not isinstance(schema, dict)
            or schema.get("type") != "object"
            or len(json.dumps(schema)) > LARGEST_SCHEMA
        ):
            schema = {"type": "object"}
        description = str(one.get("description") or remote)[:LONGEST_DESCRIPTION]
        idempotent = any(fnmatch.fnmatchcase(remote, pattern) for pattern in link.server.idempotent)
        spec = ToolSpec(name, self._redact(description), self._redact(schema))
        self._tools[name] = McpTool(spec, idempotent, link, remote)


def tool_name(server: str, tool: str) -> str:
    """The name under which a model calls a server's tool: valid for the Messages API, and the same in every
    run."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    name = f"{MCP_TOOL}{server}__{plain}"
    if plain == tool and len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 7]}_{digest}"
