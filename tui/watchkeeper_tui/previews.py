"""What an action would do, in words, before it is done. Pure functions from a target to sanitised lines."""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.estimates import estimate_compaction
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.targets import Target, budget_of, cancellable


def cancel_lines(target: Target, text: str) -> list[str]:
    """Which tasks would end."""
    lines = [
        f"Cancel {formatting.plural(len(cancellable(target)), 'task')}: "
        + ", ".join(clip(sanitize(t.title), 40) for t in target.tasks)
    ]
    lines.append(
        "Its agent stops at once; what it did is kept, and the planner is notified. r resumes it later."
    )
    return lines


def rerun_lines(fresh: bool) -> Callable[[Target, str], list[str]]:
    """Which tasks would run again, what their last attempt took, and what comes after them."""

    def preview(target: Target, text: str) -> list[str]:
        lines = []
        for task in target.tasks[:4]:
            agent = target.snapshot.agent(task.assigned_agent)
            spent = (
                f"; attempt {task.attempt} took {formatting.tokens(agent.total_tokens)} tok,"
                f" {formatting.bill(agent)}"
                if agent
                else ""
            )
            lines.append(f"Re-run “{clip(sanitize(task.title), 50)}” as attempt {task.attempt + 1}{spent}")
        names = {task.id: task for task in target.snapshot.tasks}
        ids = {task.id for task in target.tasks}
        later = [
            each
            for each in names.values()
            if ids & set(each.depends_on) and each.status not in ("pending", "dropped")
        ]
        memory = (
            "The new agent starts with an empty memory."
            if fresh
            else "The new agent keeps what the old one remembers."
        )
        lines.append(
            memory
            + (f" {formatting.plural(len(later), 'dependent task')} may run again too." if later else "")
        )
        if any(task.status in ("running", "paused") for task in target.tasks):
            lines.append("The attempt that is under way is cancelled first.")
        return lines

    return preview


HARDLY_LESS = 0.97
"""A pass that would leave more of a context than this share is hardly worth its price."""


def compact_lines(target: Target, text: str) -> list[str]:
    """What a pass over each agent's context would free, and its cost, as far as both can be estimated."""
    lines = []
    for agent in target.agents[:4]:
        guess = estimate_compaction(agent, target.snapshot.compactions)
        price = "unpriced" if guess.cost_usd is None else f"about {formatting.money(guess.cost_usd)}"
        left = f"about {formatting.tokens(guess.tokens_left)} ({formatting.change(guess.tokens_now, guess.tokens_left)})"
        if guess.tokens_left > guess.tokens_now * HARDLY_LESS:
            left = "about as many: little can be freed yet"
        lines.append(
            f"Compact {sanitize(agent.name)}: {formatting.tokens(guess.tokens_now)} of"
            f" {formatting.tokens(agent.context_limit)} tok"
            f" now → {left}, by {sanitize(formatting.model_name(guess.model))}, {price}"
        )
        if guess.tokens_fixed:
            moving = f"{formatting.tokens(guess.tokens_now - guess.tokens_fixed)} → {formatting.tokens(guess.tokens_left - guess.tokens_fixed)}"
            lines.append(
                f"  messages and observations {moving}; system prompt and tools,"
                f" {formatting.tokens(guess.tokens_fixed)}, stay"
            )
        lines.append(f"  estimated from {guess.basis}; {_meanwhile(target, agent)}")
    if len(target.agents) > 4:
        lines.append(f"  and {len(target.agents) - 4} more")
    lines.append("Nothing is lost: messages stay in the store, and u goes back to the view before.")
    if text.strip():
        lines.append(f"Instructions: {clip(sanitize(text), 160)}")
    return lines


def _meanwhile(target: Target, agent: AgentFacts) -> str:
    """What else goes on while the pass runs."""
    if not target.hosted:
        return "a host is started for it alone"
    return (
        "it has ended, and keeps its result"
        if agent.ended_at is not None
        else "the agent goes on working meanwhile"
    )


def budget_lines(target: Target, text: str) -> list[str]:
    """The limit wanted beside the one that holds; or what a budget is, where the text is none."""
    now = (
        ", ".join(
            f"{sanitize(each.kind)} {each.amount:g}"
            for each in target.snapshot.budgets
            if each.task_id is None
        )
        or "none"
    )
    try:
        kind, amount = budget_of(text)
    except ValueError:
        return [
            "A budget is a kind and an amount: usd 5, tokens 2000000, turns 200, seconds 3600; `usd none`"
            " lifts it"
        ]
    wanted = "no limit" if amount is None else f"{amount:g}"
    return [
        f"Set the run's budget: {sanitize(kind)} {wanted} (now: {now})",
        "Reaching it pauses the run; everything done is kept.",
    ]
