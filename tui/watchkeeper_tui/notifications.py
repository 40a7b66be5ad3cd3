"""Which changes between two snapshots deserve a notification. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from watchkeeper.store.snapshot import BudgetFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.settings import Notifications
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.wording import question_words

NEAR = 0.8
"""The share of a budget from which on it is near."""
UNATTENDED_SECONDS = 60.0
"""Without a key for so long, a terminal that never tells of its focus counts as looked away from."""

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. Texts are sanitised."""

    title: str
    text: str
    severity: Severity


def news(before: Snapshot, after: Snapshot, wanted: Notifications) -> list[Notice]:
    """What has happened between two readings of one session; nothing where they are of different ones."""
    if (
        before.session is None
        or after.session is None
        or before.session.id != after.session.id
        or before.problem
    ):
        return []
    found: list[Notice] = []
    if wanted.needs_input:
        found += _questions(before, after)
    if wanted.task_failed:
        found += _failures(before, after)
    if wanted.budget:
        found += _budgets(before, after)
    if wanted.run_finished:
        found += _ended(before, after)
    return found


def _questions(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    known = {each.id for each in before.approvals}
    for each in after.approvals:
        if each.id not in known:
            agent = after.agent(each.agent_id)
            name = sanitize(agent.name) if agent else "an agent"
            question = clip(sanitize(question_words(each.tool, each.question)), 160)
            yield Notice(f"{name} needs you", f"wants to run {sanitize(each.tool)} {question}", "warning")


def _failures(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    failed = {task.id for task in before.tasks if task.status == "failed"}
    for task in after.tasks:
        if task.status == "failed" and task.id not in failed:
            yield Notice(
                "task failed", clip(f"{sanitize(task.title)}: {sanitize(task.error or '')}", 200), "error"
            )


def budget_share(snapshot: Snapshot, budget: BudgetFacts) -> float:
    """The spent fraction of a budget; 0 if it is unknown."""
    session = snapshot.session
    if session is None or budget.amount <= 0:
        return 0.0
    if budget.task_id is None:
        turns, seconds = sum(agent.turn for agent in snapshot.agents), session.hosted_seconds
        spent = {"usd": session.cost_usd, "tokens": session.total_tokens, "turns": turns, "seconds": seconds}
    else:
        mine = [agent for agent in snapshot.agents if agent.task_id == budget.task_id]
        spent = {
            "usd": sum(agent.cost_usd or 0.0 for agent in mine),
            "tokens": sum(agent.total_tokens for agent in mine),
            "turns": sum(agent.turn for agent in mine),
            "seconds": sum(agent.active_seconds for agent in mine),
        }
    return (spent.get(budget.kind) or 0.0) / budget.amount


def _budgets(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    earlier = {(each.task_id, each.kind): each for each in before.budgets}
    for each in after.budgets:
        was = earlier.get((each.task_id, each.kind))
        share, then = budget_share(after, each), budget_share(before, was) if was is not None else 0.0
        what = f"{each.amount:g} {sanitize(each.kind)}"
        reached = each.reached_at is not None or share >= 1
        if reached and not (was is not None and (was.reached_at is not None or then >= 1)):
            yield Notice("budget reached", f"{what} is spent; B raises it, r goes on", "error")
        elif share >= NEAR and then < NEAR and not reached:
            yield Notice("budget near", f"{share * 100:.0f} % of {what} is spent", "warning")


def _ended(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    ends: dict[SessionState, tuple[str, Severity]] = {
        SessionState.DONE: ("run finished", "information"),
        SessionState.FAILED: ("run failed", "error"),
        SessionState.CANCELLED: ("run cancelled", "warning"),
        SessionState.DEAD: ("run stopped: the background process is gone", "error"),
    }
    if before.state is SessionState.LIVE and after.state in ends and after.session is not None:
        title, severity = ends[after.state]
        session = after.session
        cost = formatting.bill(session)
        yield Notice(title, f"{clip(sanitize(session.title or session.goal), 80)}  {cost}", severity)


def terminal_signal(notice: Notice, how: str) -> str:
    """What is written to the terminal: a bell, or a desktop notification that holds no character that
    acts."""
    title, text = clip(sanitize(f"watchkeeper: {notice.title}"), 80), clip(sanitize(notice.text), 200)
    if how == "osc9":
        return f"\x1b]9;{title} — {text}\x07"
    if how == "osc777":
        return f"\x1b]777;notify;{title.replace(';', ',')};{text.replace(';', ',')}\x07"
    return "\x07" if how == "bell" else ""


def is_unattended(focused: bool | None, last_input: float, now: float) -> bool:
    """Whether the user is away: the terminal lost the focus, or it reports no focus (None) and no key came
    for a while."""
    return now - last_input >= UNATTENDED_SECONDS if focused is None else not focused
