"""The work on openai-agents, with its SQLiteSession: an agent for every worker, run side by side, then one
that joins.

A session promises to keep a conversation. After a crash the program runs the agent again on the same session:
with the task, if the session is empty, else with "Go on.". Nothing of the SDK marks a call that may have been
carried out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from tests.peers import work

from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)


class Scripted(Model):
    """A model that is a function of the conversation: the next effect that has no output yet, or the end."""

    def __init__(self, name: str, steps: int, told: list[str]) -> None:
        self._name, self._steps, self._told = name, steps, told

    async def get_response(
        self, system_instructions: Any, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        items = [] if isinstance(input, str) else input
        outputs = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
        if len(outputs) < self._steps:
            label = f"{self._name}-{len(outputs)}"
            call = ResponseFunctionToolCall(
                type="function_call",
                call_id=label,
                name="effect",
                arguments=json.dumps({"label": label}),
                id=label,
            )
            return ModelResponse([call], Usage(), None)
        text = ResponseOutputText(type="output_text", text="\n".join(self._told or outputs), annotations=[])
        message = ResponseOutputMessage(
            id="m", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse([message], Usage(), None)

    def stream_response(self, *rest: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def run(folder: Path) -> str:
    """Begin or resume; returns the result."""
    return asyncio.run(_run(folder))


async def _run(folder: Path) -> str:
    @function_tool
    async def effect(label: str) -> str:
        """Have an effect."""
        return await asyncio.to_thread(work.effect, folder / "effects.log", label)

    async def agent(name: str, steps: int, told: list[str]) -> str:
        session = SQLiteSession(name, folder / "peer.db")
        begun = await session.get_items()
        one = Agent(name=name, model=Scripted(name, steps, told), tools=[effect])
        ended = await Runner.run(one, "Go on." if begun else f"Do the work of {name}.", session=session)
        return str(ended.final_output)

    told = await asyncio.gather(*(agent(worker, work.STEPS, []) for worker in work.WORKERS))
    lines = [line for text in told for line in text.splitlines()]
    return await agent("join", 1, [work.result_of(lines)])


def marked(folder: Path) -> set[str]:
    """The effects that the store itself says may have been had twice: it keeps no such mark."""
    return set()
