"""What comes for an agent after its system prompt and its tools were fixed: rules of a person, and tools of MCP servers.

The prompt and the list of tools are the prefix of every call of the agent, so they never change. News reaches the agent
as a message that survives compaction. Agents that are created afterwards have it in their prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from watchkeeper.agents import roles
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.toolbox import CALL_TOOL, Toolbox
from watchkeeper.memory.recall import rule_text, session_rules
from watchkeeper.records.messages import ToolSpec
from watchkeeper.store import facts, plans
from watchkeeper.store import messages as message_rows
from watchkeeper.store.agents import Agent

RULE, TOOLS = "rule", "tools"
"""Kinds of notes in an inbox."""

LASTING = frozenset({RULE, TOOLS, "steer"})
"""Notes whose message survives compaction where it was delivered."""

SCHEMAS_CHARACTERS = 12_000
"""The longest list of tools that a message describes with their inputs."""
DESCRIPTION_CHARACTERS = 300


def groups(notes: Sequence[tuple[int, str, dict[str, Any]]]) -> list[tuple[bool, list[Any]]]:
    """Notes of an inbox as messages: whether a message survives compaction, and its notes."""
    parted = [(wanted, [one for one in notes if (one[1] in LASTING) is wanted]) for wanted in (False, True)]
    return [(lasting, group) for lasting, group in parted if group]


class LaterNews:
    """Finds what an agent does not know yet, from the rows."""

    def __init__(self, environment: Environment, agent: Agent, toolbox: Toolbox | None) -> None:
        """`toolbox`: None for a program, which has tools of its own, and forgets messages when it compacts."""
        self._environment = environment
        self._agent = agent
        self._toolbox = toolbox
        self._seen: object = None
        self.forgotten = 0
        """The last message that a program does not know any more."""

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """Notes for its inbox: kind and payload."""
        store, agent = self._environment.store, self._agent
        redact = self._environment.redact
        rules = [redact(rule) for rule in session_rules(store, self._environment.session_id)]
        tools = self._toolbox.mcp_specs() if self._toolbox is not None else []
        forgotten = self.forgotten
        if self._toolbox is None:
            forgotten = max(forgotten, message_rows.compacted_up_to(store, agent.id))
        seen = (rules, [one.name for one in tools], forgotten)
        if seen == self._seen:
            return []
        self._seen = seen
        known = dict.fromkeys(roles.rules_in(agent.system), True)
        told = {one.name for one in self._toolbox.offered()} if self._toolbox is not None else set()
        for kind, payload in plans.notes_of(
            store, self._environment.session_id, agent.id, after_seq=forgotten
        ):
            if kind == RULE:
                known[redact(rule_text(str(payload.get("text"))))] = not payload.get("withdrawn")
            elif kind == TOOLS:
                told.update(payload.get("tools", ()))
        return [*self._rules(known, rules), *self._tools([one for one in tools if one.name not in told])]

    def _rules(self, known: dict[str, bool], rules: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        every = {
            self._environment.redact(rule_text(str(row[2])))
            for row in facts.pinned_facts(self._environment.store, self._environment.session_id)
        }
        withdrawn = [rule for rule, holds in known.items() if holds and rule not in every]
        new = [rule for rule in rules if not known.get(rule)]
        return [
            *((RULE, {"text": rule, "withdrawn": True}) for rule in withdrawn),
            *((RULE, {"text": rule}) for rule in new),
        ]

    def _tools(self, tools: Sequence[ToolSpec]) -> list[tuple[str, dict[str, Any]]]:
        if not tools:
            return []
        assert self._toolbox is not None
        by_name = CALL_TOOL.name not in {one.name for one in self._toolbox.offered()}
        how = "by its name" if by_name else f"with `{CALL_TOOL.name}`"
        whole = [_described(one, schema=True) for one in tools]
        if sum(map(len, whole)) > SCHEMAS_CHARACTERS:
            whole = [_described(one, schema=False) for one in tools]
        lines = [f"MCP servers that are now available offer these tools. Call a tool {how}:", *whole]
        return [(TOOLS, {"tools": [one.name for one in tools], "text": "\n".join(lines)})]


def _described(tool: ToolSpec, *, schema: bool) -> str:
    text = f"- {tool.name}: {' '.join(tool.description.split())[:DESCRIPTION_CHARACTERS]}"
    return f"{text} Input: {json.dumps(tool.input_schema, ensure_ascii=False)}" if schema else text
