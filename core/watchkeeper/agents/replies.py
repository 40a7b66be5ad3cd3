"""A model's reply as it may stand in a history, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from watchkeeper.agents.calls import Call
from watchkeeper.records.memory import Block, Message
from watchkeeper.records.model import Reply
from watchkeeper.records.states import ToolCallStatus

SAME_CALLS_IN_A_ROW = 12
"""Turns with exactly the same tool calls after which an agent counts as looping."""


def usable(
    reply: Reply, redact: Callable[[Any], Any], taken: set[str], turn: int
) -> tuple[list[Block], dict[str, str]]:
    """The reply's blocks: not empty, without secrets, and every tool call with an id that no other has.

    With them, why calls cannot be run, by the id that they have now. `taken` gains the new ids.
    """
    kept: list[Block] = []
    invalid: dict[str, str] = {}
    for block in redact(reply.content):
        if block.get("type") == "text" and not str(block.get("text", "")).strip():
            continue
        if block.get("type") == "tool_use":
            given = str(block.get("id") or "")
            use_id = given if given and given not in taken else _fresh_id(taken, turn)
            taken.add(use_id)
            block = block | {"id": use_id}
            if given in reply.invalid_inputs:
                invalid[use_id] = reply.invalid_inputs[given]
            if not isinstance(block.get("input"), dict):
                block = block | {"input": {}}
        kept.append(block)
    return kept or [{"type": "text", "text": "(an empty reply)"}], invalid


def _fresh_id(taken: set[str], turn: int) -> str:
    """An id that no call of this history has; a re-run's copied history may hold ids made in the same way."""
    number = 0
    while (use_id := f"toolu_wk_{turn}_{number}") in taken:
        number += 1
    return use_id


def succeeded(calls: list[Call], name: str) -> dict[str, Any] | None:
    """The input of a call of that tool that succeeded in this turn, or None."""
    for call in calls:
        if call.name == name and call.status is ToolCallStatus.DONE:
            return call.arguments if isinstance(call.arguments, dict) else {}
    return None


def results_of(calls: list[Call]) -> list[Block]:
    """The blocks that tell the model what came of its calls."""
    return [
        {
            "type": "tool_result",
            "tool_use_id": call.tool_use_id,
            "content": call.result if call.result not in (None, "", []) else "(no output)",
            **({"is_error": True} if call.is_error else {}),
        }
        for call in calls
    ]


class Repetition:
    """Notices an agent that makes the same calls again and again."""

    def __init__(self) -> None:
        self._last: tuple[object, int] = (None, 0)

    def is_endless(self, calls: list[Call]) -> bool:
        """Whether these calls, of one more turn, are those of the turns before, `SAME_CALLS_IN_A_ROW`
        times."""
        same = [(call.name, repr(call.arguments)) for call in calls]
        last, count = self._last
        self._last = (same, count + 1 if same == last else 1)
        return self._last[1] >= SAME_CALLS_IN_A_ROW


def used_ids(messages: Sequence[Message]) -> set[str]:
    """The ids of all tool calls in a history: the Messages API refuses one that comes twice."""
    return {
        str(block.get("id"))
        for message in messages
        if isinstance(message.content, list)
        for block in message.content
        if block.get("type") == "tool_use"
    }


def text_of(content: list[Block]) -> str:
    """The texts of a reply, joined."""
    return "\n".join(str(block.get("text", "")) for block in content if block.get("type") == "text").strip()
