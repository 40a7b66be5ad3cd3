"""How much of a model's window the messages of an agent may take."""

from __future__ import annotations

from typing import Any

from watchkeeper.agents.environment import Environment
from watchkeeper.memory.state import ContextLimits
from watchkeeper.memory.tokens import TokenCounter
from watchkeeper.store.agents import Agent
from watchkeeper.store.encoding import encode


def limits_of(environment: Environment, agent: Agent, specs: list[Any]) -> ContextLimits:
    """How large this agent's context may be: its window, less what a reply, the system prompt and the tools
    take."""
    window = agent.context_limit
    reserve = max(256, min(environment.settings.max_output_tokens, window // 6))
    return ContextLimits(
        max_tokens=window,
        reserve_tokens=reserve,
        summarization_threshold=environment.settings.summarization_threshold,
        overhead_tokens=overhead_tokens(environment.counter, agent.system, specs),
    )


def overhead_tokens(counter: TokenCounter, system: str, specs: list[Any]) -> int:
    """Tokens of the system prompt and of the tools' descriptions."""
    tools = encode([[spec.name, spec.description, spec.input_schema] for spec in specs])
    return counter.count(system) + counter.count(tools) + 16
