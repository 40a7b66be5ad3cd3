"""The simulated tools: each effect is a line in a ledger that no crash touches."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from watchkeeper.agents.tools.contract import Permission, ToolContext, ToolResult
from watchkeeper.records.messages import ToolSpec

if TYPE_CHECKING:
    from tests.simulate.world import World


@dataclass
class Ledger:
    """What happened outside."""

    effects: Counter[int] = field(default_factory=Counter)
    """How often the call of this number had its effect."""
    inputs: dict[int, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A tool that acts outside."""

    world: World
    spec: ToolSpec
    idempotent: bool
    permission: Permission
    acts: bool = True

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        world, number = self.world, int(context.tool_call_id)
        if not self.acts:
            return ToolResult(f"checked: {arguments.get('label')}")
        fault = world.tool_fault(number, world.ledger.effects[number])
        if fault == "worker dies before":
            return ToolResult("the tool worker died", is_error=True, outcome_unknown=True)
        await asyncio.sleep(20.0 if fault == "slow" else 0.002 * (number % 5))
        world.goes_on(context.agent_id)
        if self.permission is Permission.ASK:
            world.problems += governed(world, number, self.spec.name, arguments)
        world.ledger.effects[number] += 1
        world.ledger.inputs[number] = dict(arguments)
        await asyncio.sleep(0.001)
        if fault == "worker dies after":
            return ToolResult("the tool worker died", is_error=True, outcome_unknown=True)
        if fault == "error":
            return ToolResult("it did not work", is_error=True)
        return ToolResult(f"done: {arguments['label']}")


def governed(world: World, number: int, name: str, arguments: dict[str, Any]) -> list[str]:
    """Whether a person allowed this very call, with this input, and on what they were shown of the file that it changes."""
    rows = world.read(
        "SELECT id, status, edited_input, scope FROM approvals WHERE tool_call_id = ? ORDER BY rowid DESC LIMIT 1",
        number,
    )
    if not rows:
        return [] if world.is_granted(name) else [f"{name}, call {number}, ran, and nobody was asked"]
    question, status, edited, scope = rows[0]
    if status != "approved":
        return [f"{name}, call {number}, ran, and its question is {status}"]
    if scope == "grant":
        return [] if world.was_granted(name) else [f"{name}, call {number}, ran by a grant that nobody gave"]
    if question not in world.allowed:
        return [f"{name}, call {number}, ran, and nobody approved its question"]
    wanted = json.loads(edited) if edited else arguments
    if wanted != arguments:
        return [f"{name}, call {number}, ran with {arguments}, and {wanted} was approved"]
    # What has had its effect already, before a crash, finds its own.
    return [] if world.ledger.effects[number] else world.changed_since(question, arguments)


def simulated_tools(world: World) -> dict[str, Simulated]:
    """All of them, by name."""
    label = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
    allow = Permission.ALLOW
    made = [
        Simulated(world, ToolSpec("effect", "Have an effect.", label), False, allow),
        Simulated(
            world, ToolSpec("effect_again", "Have an effect that may be had twice.", label), True, allow
        ),
        Simulated(
            world, ToolSpec("asking", "Have an effect, if a person allows it.", label), False, Permission.ASK
        ),
        Simulated(world, ToolSpec("check", "See whether an effect was had.", label), True, allow, acts=False),
    ]
    return {one.spec.name: one for one in made}
