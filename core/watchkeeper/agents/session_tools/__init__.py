"""Tools whose whole effect is in the session's database: plan, memory and artifact tools.

Each effect happens exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from watchkeeper.agents.tools.contract import Permission, ToolContext, ToolResult
from watchkeeper.records.messages import ToolSpec
from watchkeeper.store.transaction import Transaction

# --- A store tool, built from a specification and a function of the transaction ---------------------------

Apply = Callable[[Transaction, dict[str, Any], ToolContext], ToolResult]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A `StoreTool`. Idempotent by nature: its effect and its result are one transaction."""

    spec: ToolSpec
    function: Apply
    idempotent: bool = True
    permission: Permission = Permission.ALLOW

    def apply(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return self.function(tx, arguments, context)


def tool(
    name: str, description: str, properties: dict[str, Any], required: list[str], function: Apply
) -> FunctionTool:
    """A tool whose input is an object with these properties."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return FunctionTool(ToolSpec(name, description, schema), function)


def text_of(arguments: dict[str, Any], name: str, *, default: str | None = None, limit: int = 100_000) -> str:
    """A string argument.

    Raises:
        ValueError: it is missing, no string, or longer than `limit` characters.
    """
    value = arguments.get(name, default)
    if not isinstance(value, str) or (not value.strip() and default is None):
        raise ValueError(f"`{name}` must be a non-empty string")
    if len(value) > limit:
        raise ValueError(f"`{name}` has {len(value)} characters; at most {limit} are taken")
    return value


def names_of(arguments: dict[str, Any], name: str) -> list[str]:
    """An argument that is a list of strings, each once (absent: none)."""
    return list(dict.fromkeys(arguments.get(name) or []))
