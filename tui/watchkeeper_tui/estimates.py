"""Estimate what a compaction would save: from earlier passes, else from the composition of contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.store.snapshot import AgentFacts, CompactionFacts
from watchkeeper_tui import formatting

KEPT_SHARE = 0.2
"""Of the window: about what a pass leaves verbatim."""
SUMMARY_TOKENS = 2_048
"""The longest summary that a pass asks for."""


@dataclass(frozen=True, slots=True)
class CompactionEstimate:
    """A guess, to be labelled as one."""

    tokens_now: int
    tokens_left: int
    tokens_fixed: int
    """Of both, what no pass touches: the system prompt, the tools and the pinned."""
    model: str
    cost_usd: float | None
    """None where nothing that has a price is known of the model."""
    basis: str
    """What the guess rests on, in words."""


def estimate_compaction(agent: AgentFacts, passes: Sequence[CompactionFacts]) -> CompactionEstimate:
    """What compacting this agent now would leave and cost. `passes` are the session's, in any order.

    What a pass is said to have made of how much is without the overhead, which stays.
    """
    now = agent.context_used
    fixed = min(now, dict(agent.composition).get("overhead", 0))
    ended = [
        each
        for each in passes
        if each.status == "applied" and each.tokens_before and each.tokens_after is not None
    ]
    mine = [each for each in ended if each.agent_id == agent.id] or [
        each for each in ended if each.model == agent.model
    ]
    before = sum(each.tokens_before or 0 for each in mine)
    messages = dict(agent.composition).get("messages", now)
    if before:
        left = fixed + int((now - fixed) * sum(each.tokens_after or 0 for each in mine) / before)
        whose = "its" if mine[0].agent_id == agent.id else "this model's"
        basis = f"{whose} {formatting.plural(len(mine), 'earlier pass', 'earlier passes')}"
    else:
        kept = min(messages, int(agent.context_limit * KEPT_SHARE))
        left = min(now, now - messages + kept + min(SUMMARY_TOKENS, messages - kept))
        basis = "what is kept verbatim and the longest summary; there was no pass yet"
    return CompactionEstimate(now, max(0, left), fixed, agent.model, _cost(agent, mine, messages), basis)


def _cost(agent: AgentFacts, passes: Sequence[CompactionFacts], messages: int) -> float | None:
    """By what earlier passes cost a token, else by what the agent's own calls did."""
    priced = [each for each in passes if each.cost_usd is not None]
    read = sum(each.tokens_before or 0 for each in priced)
    if read:
        return sum(each.cost_usd or 0.0 for each in priced) / read * agent.context_used
    if agent.cost_usd is not None and agent.total_tokens:
        return agent.cost_usd / agent.total_tokens * (messages + SUMMARY_TOKENS)
    return None
