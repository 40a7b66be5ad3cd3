"""Watchkeeper's own tools for agent programs: an MCP server on loopback, with a token for each agent.

A program's agent gets the tools that its role may call and that act on the store alone (`remember`, `recall`,
`read_back`, artifacts, and for a planner the plan). A call runs as one of the agent itself: its facts have it as their
source, and what it may not see it does not get.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from watchkeeper.agents.approvals import Approvals
from watchkeeper.agents.backends import MemoryServer
from watchkeeper.agents.calls import assert_mine
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import AgentControl, AgentStopped, Interrupted
from watchkeeper.agents.toolbox import MOST_CHANGES
from watchkeeper.agents.tools.contract import (
    OutsideTool,
    Permission,
    StoreTool,
    ToolContext,
    ToolResult,
    validate_arguments,
)
from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.records.states import ToolCallStatus
from watchkeeper.store import agents
from watchkeeper.store.agents import Agent, Call
from watchkeeper.store.transaction import Transaction

NOT_SERVED = frozenset({"compact"})
"""A program compacts its own context."""

SERVED_OUTSIDE = frozenset({"recall", "merge_task"})

WAIT_SECONDS = 45.0
"""How long a call waits for a person. Claude Code and OpenCode give a call up after 60 s."""
STILL_ASKED = "[asked] A person has not answered the approval request yet. Call {tool} again with the same input to wait."
BEGUN_SECONDS = 5.0
"""How long after a call the program may report that the call started."""

_caller: ContextVar[Agent] = ContextVar("caller")


class ToolServer:
    """Serves the tools of one host. It begins to listen when the first agent asks for it."""

    def __init__(self) -> None:
        self._environment: Environment | None = None
        self._agents: dict[str, Agent] = {}
        self._controls: dict[str, AgentControl] = {}
        self._tokens: dict[str, str] = {}
        self._url = ""
        self._starting = asyncio.Lock()
        self._stop: Any = None
        self._task: asyncio.Task[None] | None = None

    def use(self, environment: Environment) -> None:
        """Serve the tools of this environment."""
        self._environment = environment

    async def serve(self, agent: Agent, control: AgentControl) -> MemoryServer:
        """Where that agent's program reaches its tools, and the token that says who calls. `control` ends a question."""
        self._controls[agent.id] = control
        async with self._starting:
            if not self._url:
                await self._start()
        token = self._tokens.get(agent.id)
        if token is None:
            token = self._tokens[agent.id] = secrets.token_urlsafe(32)
        self._agents[token] = agent
        return MemoryServer(self._url, token)

    def served(self, agent: Agent) -> list[str]:
        """The names of the tools that the agent may call here."""
        environment = self._environment
        assert environment is not None
        return [
            name
            for name in environment.tools_of(agent.role)
            if name not in NOT_SERVED
            and (isinstance(environment.tools.get(name), StoreTool) or name in SERVED_OUTSIDE)
            and environment.permission(name) is not Permission.DENY
        ]

    async def call(self, agent: Agent, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run one call for an agent."""
        environment = self._environment
        assert environment is not None
        if name not in self.served(agent):
            return ToolResult(f"no tool {name!r} is available here", is_error=True)
        tool = environment.tools[name]
        if invalid := validate_arguments(tool.spec.input_schema, arguments):
            return ToolResult(f"invalid input: {invalid}. Correct it and call again", is_error=True)
        arguments = environment.redact(arguments)
        context = ToolContext(
            session_id=environment.session_id, agent_id=agent.id, task_id=agent.task_id,
            workspace=environment.workspace, tool_call_id=f"mcp-{environment.new_id()}",
        )  # fmt: skip
        try:
            if isinstance(tool, StoreTool):

                def apply(tx: Transaction) -> ToolResult:
                    assert_mine(tx, agent.id)
                    return tool.apply(tx, arguments, context)

                result = await environment.store.commit(apply)
                if "finish" in result.effects and environment.programs is not None:
                    finish = str(result.effects["finish"]), str(result.effects["summary"])
                    environment.programs.finished[agent.id] = finish
                return result
            assert isinstance(tool, OutsideTool)
            result = await tool.run(arguments, context)
            if result.question is not None:
                call = Call(0, 0, "", name, arguments, True, ToolCallStatus.RUNNING, None, False)
                return await self._ask(agent, tool, call, context, result)
            return result
        except Interrupted:
            return ToolResult("interrupted: a person paused the agent; nothing was changed", is_error=True)
        except (ValueError, AgentStopped) as error:
            return ToolResult(str(error), is_error=True)
        except WatchkeeperError as error:
            return ToolResult(f"the call failed: {error}", is_error=True)

    async def _ask(
        self, agent: Agent, tool: OutsideTool, call: Call, context: ToolContext, result: ToolResult
    ) -> ToolResult:
        """Put what the tool asks to a person, and run the call again with the answer, as `Toolbox` does. Where the answer
        takes its time, the program calls again, and waits for the same question."""
        environment = self._environment
        assert environment is not None
        row, control = await self._begun(agent, call.name), self._controls.get(agent.id)
        if row is None or control is None:
            return result
        approvals = Approvals(environment, agent, control, lambda name: True)
        call = replace(call, id=row)
        for _ in range(MOST_CHANGES):
            if result.question is None:
                break
            permit = await approvals.permit_within(call, result.question, WAIT_SECONDS)
            if permit is None:
                return ToolResult(STILL_ASKED.format(tool=call.name), is_error=True)
            if not permit.allowed:
                return ToolResult(permit.reason, is_error=True)
            result = await tool.run(
                permit.call.arguments, replace(context, subject_digest=permit.subject_digest)
            )
        return result

    async def _begun(self, agent: Agent, name: str) -> int | None:
        """The row of the call, once the program has reported its beginning."""
        environment = self._environment
        assert environment is not None
        for _ in range(int(BEGUN_SECONDS / 0.1)):
            call_id = agents.running_call(environment.store, agent.id, name)
            if call_id is not None:
                return call_id
            await asyncio.sleep(0.1)
        return None

    async def aclose(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop.should_exit = True
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.gather(self._task, return_exceptions=True)

    async def _start(self) -> None:
        app, sessions = await asyncio.to_thread(self._app)  # its libraries take a second to load
        import uvicorn

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # signals are the host's

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # a program that is quicker than the server waits
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        self._stop = Server(config)

        async def serve() -> None:
            async with sessions.run():
                await self._stop.serve(sockets=[listening])

        self._task = asyncio.create_task(serve(), name="tool server")
        self._url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"

    def _app(self) -> tuple[Any, Any]:
        """The application, and the manager of its sessions, which runs as long as it serves."""
        from mcp import types
        from mcp.server.lowlevel import Server
        from starlette.responses import JSONResponse
        from starlette.types import Receive, Scope, Send

        from watchkeeper._version import __version__

        async def list_tools(context: Any, request: Any) -> types.ListToolsResult:
            environment = self._environment
            assert environment is not None
            specs = [environment.tools[name].spec for name in self.served(_caller.get())]
            return types.ListToolsResult(
                tools=[
                    types.Tool(name=one.name, description=one.description, input_schema=one.input_schema)
                    for one in specs
                ]
            )

        async def call_tool(context: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
            result = await self.call(_caller.get(), request.name, dict(request.arguments or {}))
            text = result.content if isinstance(result.content, str) else str(result.content)
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=text)], is_error=result.is_error
            )

        server: Any = Server(
            "watchkeeper", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool
        )
        inner = server.streamable_http_app(stateless_http=True, json_response=True)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
                agent = self._agents.get(given.removeprefix("Bearer "))
                if agent is None:
                    await JSONResponse({"error": "unknown token"}, status_code=401)(scope, receive, send)
                    return
                _caller.set(agent)
            await inner(scope, receive, send)

        return app, server.session_manager
