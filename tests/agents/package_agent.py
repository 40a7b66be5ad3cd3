"""An agent program made with the package `agent-client-protocol`, which checks every message of the client:
`python package_agent.py FILE`. Its first process dies in a tool call; the next one goes on. FILE counts them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

from acp import helpers, run_agent, schema

CALL = {"title": "bash", "kind": "execute", "raw_input": {"command": "echo one"}}
OPTIONS = [
    schema.PermissionOption(option_id="yes", kind="allow_once", name="Allow"),
    schema.PermissionOption(option_id="no", kind="reject_once", name="Reject"),
]


class Made:
    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **given: Any) -> schema.InitializeResponse:
        resume = schema.SessionCapabilities(resume=schema.SessionResumeCapabilities())
        can = schema.AgentCapabilities(
            session_capabilities=resume, mcp_capabilities=schema.McpCapabilities(http=True)
        )
        return schema.InitializeResponse(protocol_version=1, agent_capabilities=can)

    async def new_session(self, cwd: str, **given: Any) -> schema.NewSessionResponse:
        assert Path(cwd).is_absolute()
        return schema.NewSessionResponse(session_id="made")

    async def resume_session(self, session_id: str, cwd: str, **given: Any) -> schema.ResumeSessionResponse:
        assert session_id == "made"
        return schema.ResumeSessionResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **given: Any
    ) -> schema.SetSessionConfigOptionResponse:
        assert (config_id, value) == ("model", "large")
        return schema.SetSessionConfigOptionResponse(config_options=[])

    async def cancel(self, session_id: str, **given: Any) -> None:
        pass

    async def prompt(self, session_id: str, prompt: list[Any], **given: Any) -> schema.PromptResponse:
        lives = Path(sys.argv[1])
        life = len(lives.read_text()) + 1 if lives.exists() else 1
        lives.write_text("x" * life)
        call = f"call-{life}"
        say = helpers.update_agent_message_text
        await self.client.session_update(session_id, say("I begin. "))
        await self.client.session_update(
            session_id, helpers.start_tool_call(call, status="in_progress", **CALL)
        )
        if life == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        asked = await self.client.request_permission(
            session_id=session_id, tool_call=schema.ToolCallUpdate(tool_call_id=call, **CALL), options=OPTIONS
        )
        assert asked.outcome.option_id == "yes"
        output = [helpers.tool_content(helpers.text_block("one"))]
        await self.client.session_update(
            session_id, helpers.update_tool_call(call, status="completed", content=output)
        )
        await self.client.session_update(session_id, say("The package agrees."))
        return schema.PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    asyncio.run(run_agent(cast(Any, Made())))
