"""Budgets on the command line: new limits as a person types them, and what a session that one of them paused
needs."""

from __future__ import annotations

from typing import Any

import click

from watchkeeper.cli.options import Opened, clean, json_text, say
from watchkeeper.records.errors import BadInput
from watchkeeper.store import budgets, state
from watchkeeper.store.budgets import BudgetUse

PAUSED_EXIT = 5

KINDS = ("usd", "tokens", "turns", "seconds")

_HELP = {
    "usd": "A new limit in USD: an amount, or +N for N more.",
    "tokens": "A new limit of tokens, cache reads included (5000, or +5000).",
    "turns": "A new limit of model replies.",
    "seconds": "A new limit of hosted time.",
}


def new_budget_options(function: Any) -> Any:
    """`--budget-usd +2` and its like: options of a command that resumes."""
    for kind in reversed(KINDS):
        function = click.option(f"--budget-{kind}", metavar="AMOUNT|+N", help=_HELP[kind])(function)
    return function


def typed_budgets(options: dict[str, Any]) -> dict[str, str]:
    """Kind → text, of the options that were given."""
    return {kind: options[f"budget_{kind}"] for kind in KINDS if options.get(f"budget_{kind}") is not None}


def limits_meant(opened: Opened, kind: str, text: str) -> list[tuple[str | None, float]]:
    """Whose limit `--budget-KIND TEXT` changes, and to what: each reached budget of that kind, or else the
    session's.

    Raises:
        BadInput: no amount, or not more than what is used.
    """
    reached = [
        use for use in budgets.usage(opened, opened.session_id) if use.is_reached and use.budget.kind == kind
    ]
    owners = [use.budget.task_id for use in reached] or [None]
    try:
        return [(owner, budgets.amount_of(opened, opened.session_id, owner, kind, text)) for owner in owners]
    except ValueError as refused:
        raise BadInput(f"--budget-{kind}: {clean(refused)}") from None


def set_limits(opened: Opened, typed: dict[str, str]) -> None:
    """Set new limits of a session that no host drives. All are checked before the first is written.

    Raises:
        BadInput: an amount is refused; nothing was changed.
    """
    from watchkeeper.runtime.driving import set_budget_without_host

    meant = {kind: limits_meant(opened, kind, text) for kind, text in typed.items()}
    for kind, limits in meant.items():
        for task_id, amount in limits:
            set_budget_without_host(opened.path, opened.session_id, task_id, kind, amount)


def raise_reached(opened: Opened, typed: dict[str, str], *, ask: bool, as_json: bool) -> bool:
    """Set the limits that were given, then see that no reached budget would pause the session again at once.

    At a terminal (`ask`) each reached budget is shown with what is used of it, and a new limit is asked for.
    Returns False where the session must stay paused; what to do next was said.

    Raises:
        BadInput: an amount that was given is refused.
    """
    set_limits(opened, typed)
    blocking = budgets.blocking(opened, opened.session_id)
    while blocking and ask:
        use = blocking[0]
        if not _ask(opened, use):
            break
        blocking = budgets.blocking(opened, opened.session_id)
    if blocking:
        _advise(opened, blocking, as_json=as_json)
    return not blocking


def budget_lines(uses: list[BudgetUse], session_id: str) -> list[str]:
    """What is used of each budget, and the command that raises them."""
    return [*(clean(use.describe()) for use in uses), f"raise it: {budgets.resume_command(session_id, uses)}"]


def _ask(opened: Opened, use: BudgetUse) -> bool:
    """Ask for a new limit until there is one; False where the person gives up."""
    from watchkeeper.runtime.driving import set_budget_without_host

    kind, owner = use.budget.kind, use.budget.task_id
    click.echo(clean(use.describe()))
    while True:
        default = f"+{budgets.plain_amount(use.shortfall, kind)}"
        try:
            typed = click.prompt(
                f"New budget in {budgets.UNITS[kind]} (an amount, or +N; q: stay paused)", default=default
            )
        except click.Abort:
            click.echo("")
            return False
        if typed.strip().lower() in ("q", "n", "no"):
            return False
        try:
            amount = budgets.raised_amount(opened, opened.session_id, use, typed)
        except ValueError as refused:
            click.echo(clean(refused))
            continue
        set_budget_without_host(opened.path, opened.session_id, owner, kind, amount)
        return True


def _advise(opened: Opened, blocking: list[BudgetUse], *, as_json: bool) -> None:
    lines = budget_lines(blocking, opened.session_id)
    if not as_json:
        say(f"session {opened.session_id} stays paused: no host was started")
        for line in lines:
            say(f"  {line}")
        return
    result = state.result(opened, opened.session_id)
    result["reached_budgets"] = [
        {
            "task": use.task_name,
            "kind": use.budget.kind,
            "used": use.used,
            "amount": use.budget.amount,
            "required": use.budget.required,
        }
        for use in blocking
    ]
    result["next"] = budgets.resume_command(opened.session_id, blocking)
    say(json_text(result))
