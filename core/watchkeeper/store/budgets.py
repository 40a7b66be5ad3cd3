"""Budgets of a session and of its tasks: the limit, the used amount, and the reservations of calls.

A budget is a row of `budgets`. A call in progress is a row of `reservations`, written before the call and deleted in
the transaction that records it. Every reader (host, command line, dashboard) asks the same functions.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watchkeeper.records.errors import BadInput
from watchkeeper.store.driver import Connection, Reads, plain
from watchkeeper.store.transaction import Transaction

if TYPE_CHECKING:
    from watchkeeper.store.writer import Group


UNITS = {"usd": "USD", "tokens": "tokens", "turns": "turns", "seconds": "seconds of run time"}
"""Kind of budget → its unit. Tokens include cache reads; turns are model replies."""
KINDS = tuple(UNITS)

RESERVATION_SECONDS = 3_600.0
"""After this time a viewer may take a reservation for one whose host died; its own host keeps it until the
call ends."""

_RELATIVE_TOLERANCE = 1e-9
"""Sums of prices are floats: a smaller part of the budget is no difference."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit."""

    task_id: str | None
    """None: the whole session."""
    kind: str
    amount: float
    required: float | None = None
    """The smallest amount that covers the input of the call that was refused, if one was; in the same
    unit."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """A budget with what is used of it."""

    budget: Budget
    used: float | None
    """None where no price is known."""
    task_name: str | None = None

    @property
    def is_reached(self) -> bool:
        """Whether no further call fits: it is used up, or what is left did not cover the input of the next
        call."""
        required = self.budget.required
        if self.used is not None and self.used >= self.budget.amount * (1 - _RELATIVE_TOLERANCE):
            return True
        return required is not None and self.budget.amount < required

    @property
    def least(self) -> float:
        """A useful amount is more than this."""
        return max(self.used or 0.0, 0.0)

    @property
    def shortfall(self) -> float:
        """How much to add so that the run continues for a while, rounded: the missing amount, and the used
        amount again.

        At least the limit itself again, and ten calls like the one that did not fit.
        """
        budget = self.budget
        missing = max(self.least, budget.required or 0.0, budget.amount) - budget.amount
        next_call = max((budget.required or 0.0) - self.least, 0.0)
        return _round_up(missing + max(budget.amount, self.least, 10 * next_call), budget.kind)

    def describe(self) -> str:
        """`the session's budget: $1.03 of $1 used`, on one line."""
        owner = "the session"
        if self.budget.task_id is not None:
            owner = f"task {self.task_name or self.budget.task_id}"
        used, amount = (
            amount_text(self.used or 0.0, self.budget.kind),
            amount_text(self.budget.amount, self.budget.kind),
        )
        said = f"{owner} has used {used} of its budget of {amount}"
        if (
            self.budget.required is not None
            and self.budget.amount < self.budget.required
            and self.least < self.budget.amount
        ):
            said += (
                f", and the next call needs a budget of {amount_text(self.budget.required, self.budget.kind)}"
            )
        return said


def amount_text(amount: float, kind: str) -> str:
    """`$1.20`, `3,000 tokens`."""
    if kind == "usd":
        text = f"${amount:,.4f}"
        return text[:-2] if text.endswith("00") else text.rstrip("0")
    figure = f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.1f}"
    return f"{figure} {UNITS.get(kind, kind)}"


def plain_amount(amount: float, kind: str) -> str:
    """The amount as a person would type it: `1.25`, `3000`."""
    return f"{amount:.4f}".rstrip("0").rstrip(".") if kind in ("usd", "seconds") else f"{amount:.0f}"


def load(reads: Reads, session_id: str) -> list[Budget]:
    """The budgets of a session and of its tasks, oldest first."""
    rows = reads.all(
        "SELECT task_id, kind, amount, required FROM budgets WHERE session_id = ? ORDER BY id", (session_id,)
    )
    return [Budget(*row) for row in rows]


def used(reads: Reads, session_id: str, task_id: str | None, kind: str) -> float | None:
    """What a session (None) or a task has used of a kind of budget; None for USD where no price is known.

    A task's seconds are its agents' active time, a session's the time for which it was hosted. What an agent program used
    before its session was continued here does not count.
    """
    if task_id is not None:
        row = reads.one(
            "SELECT sum(cost_usd) AS usd, sum(input_tokens + output_tokens + cache_read_tokens +"
            " cache_write_tokens) AS tokens,"
            " sum(turn) AS turns, sum(active_seconds) AS seconds FROM agents WHERE task_id = ?",
            (task_id,),
        )
        spent: float | None = row[("usd", "tokens", "turns", "seconds").index(kind)]
        return spent if kind == "usd" else spent or 0.0
    if kind == "turns":
        return float(
            reads.one("SELECT coalesce(sum(turn), 0) FROM agents WHERE session_id = ?", (session_id,))[0]
        )
    row = reads.one(
        "SELECT cost_usd, input_tokens + output_tokens + cache_read_tokens + cache_write_tokens,"
        " hosted_seconds FROM sessions"
        " WHERE id = ?",
        (session_id,),
    )
    of_session: float | None = row[("usd", "tokens", "seconds").index(kind)]
    if isinstance(reads, Transaction) and kind != "seconds":
        cost_usd, tokens = reads.unflushed_usage
        if kind == "tokens":
            of_session = (of_session or 0.0) + tokens
        elif cost_usd is not None:
            of_session = (of_session or 0.0) + cost_usd
    if of_session and kind != "seconds":
        before = reads.one(_USED_OUTSIDE, (session_id,))
        of_session = max(0.0, of_session - float(before[("usd", "tokens").index(kind)] or 0.0))
    return of_session


_USED_OUTSIDE = (
    "SELECT sum(a.cost_usd), sum(a.input_tokens + a.output_tokens + a.cache_read_tokens + a.cache_write_tokens)"
    " FROM agent_programs p CROSS JOIN agents a WHERE p.session_id = ? AND a.id = p.agent_id AND a.task_id IS NULL"
    " AND a.parent_agent_id IS NOT NULL"
)
"""The usage of the agent that shows earlier work: it has no task, and is not the planner."""


def usage(reads: Reads, session_id: str) -> list[BudgetUse]:
    """Every budget of a session and of its tasks with what is used of it, in the order of `load`."""
    found = []
    for budget in load(reads, session_id):
        name = None
        if budget.task_id is not None:
            row = reads.one("SELECT name FROM tasks WHERE id = ?", (budget.task_id,))
            name = str(row[0]) if row else None
        found.append(BudgetUse(budget, used(reads, session_id, budget.task_id, budget.kind), name))
    return found


def blocking(reads: Reads, session_id: str) -> list[BudgetUse]:
    """The reached budgets because of which a host would pause again at once; empty if an agent could
    continue.

    A session's budget stops everything. A task's budget stops its task. Nothing continues if the planner has nothing to
    answer and every other open task waits for a stopped one.
    """
    reached = [use for use in usage(reads, session_id) if use.is_reached]
    of_session = [use for use in reached if use.budget.task_id is None]
    if of_session or not reached:
        return of_session
    stopped = {use.budget.task_id for use in reached}
    planner = reads.one(
        "SELECT agents.status, EXISTS (SELECT 1 FROM inbox WHERE inbox.agent_id = agents.id AND"
        " delivered_seq IS NULL)"
        " FROM sessions JOIN agents ON agents.id = sessions.planner_agent_id WHERE sessions.id = ?",
        (session_id,),
    )
    if planner is None or planner[0] != "idle" or planner[1]:
        return []
    tasks = reads.all("SELECT id, status FROM tasks WHERE session_id = ?", (session_id,))
    needs = reads.all(
        "SELECT task_id, depends_on FROM task_dependencies WHERE task_id IN (SELECT id FROM tasks WHERE"
        " session_id = ?)",
        (session_id,),
    )
    satisfied = {row[0] for row in tasks if row[1] in ("done", "dropped")}
    waiting = {row[0] for row in needs if row[1] not in satisfied}
    could_go = [
        row[0]
        for row in tasks
        if row[0] not in stopped
        and (row[1] in ("running", "paused") or (row[1] in ("pending", "stale") and row[0] not in waiting))
    ]
    open_and_stopped = {
        row[0] for row in tasks if row[0] in stopped and row[1] in ("running", "paused", "pending")
    }
    return [] if could_go else [use for use in reached if use.budget.task_id in open_and_stopped]


def refusal(reads: Reads, session_id: str, task_id: str | None, kind: str, amount: float) -> str | None:
    """Why this amount cannot be the limit, or None: it must be more than what is used."""
    if kind not in UNITS:
        return "unknown budget unit; use usd, tokens, turns or seconds"
    if not (amount > 0 and math.isfinite(amount)):
        return f"a budget must be positive; `wk budget --lift {kind}` or `:budget {kind}` removes it"
    spent = used(reads, session_id, task_id, kind)
    if spent is not None and amount <= spent:
        owner = "the task" if task_id is not None else "the session"
        wanted, so_far = amount_text(amount, kind), amount_text(spent, kind)
        return f"a budget of {wanted} would cause an immediate pause: {owner} has already used {so_far}; set a higher amount, or +N"
    return None


def amount_of(reads: Reads, session_id: str, task_id: str | None, kind: str, text: str) -> float:
    """The limit that a person means by `text`: an amount, or `+N` for N more than the limit that there is.

    Without a limit of that kind, `+N` is N more than what is used.

    Raises:
        ValueError: no amount, one that `refusal` refuses, or one in USD where only calls without a price were
            made.
    """
    unpriced = kind == "usd" and used(reads, session_id, task_id, "usd") is None
    if unpriced and used(reads, session_id, task_id, "tokens"):
        raise ValueError(
            "no call so far has a known price, so a USD budget cannot be enforced; set a token budget instead"
        )
    amount, more = _typed(text)
    if more:
        current = next(
            (one for one in load(reads, session_id) if (one.task_id, one.kind) == (task_id, kind)), None
        )
        amount += current.amount if current is not None else used(reads, session_id, task_id, kind) or 0.0
    refused = refusal(reads, session_id, task_id, kind, amount)
    if refused is not None:
        raise ValueError(refused)
    return amount


_THOUSANDS = re.compile(r"\+?\$?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def _typed(text: str) -> tuple[float, bool]:
    """The number in `text`, and whether it is an increase.

    Raises:
        ValueError: it is neither an amount nor `+N`.
    """
    typed = text.strip().removeprefix("$")
    more = typed.startswith("+")
    if _THOUSANDS.fullmatch(typed):  # any other comma may be one of decimals: `0,02` is not 2
        typed = typed.replace(",", "")
    try:
        amount = float(typed[1:].removeprefix("$") if more else typed)
    except ValueError:
        raise ValueError(
            f"{text.strip()[:40]!r} is not an amount; give a number (5) or an increase (+2)"
        ) from None
    if more and not amount > 0:
        raise ValueError("an increase must be positive, as in +2")
    return amount, more


def raised_amount(reads: Reads, session_id: str, use: BudgetUse, text: str) -> float:
    """The new limit of a reached budget that a person means by `text`; see `amount_of`.

    Raises:
        ValueError: it would pause again at once.
    """
    amount = amount_of(reads, session_id, use.budget.task_id, use.budget.kind, text)
    if use.budget.required is not None and amount < use.budget.required:
        raise ValueError(
            f"the next call needs a budget of {amount_text(use.budget.required, use.budget.kind)}"
        )
    return amount


def write(tx: Transaction, task_id: str | None, kind: str, amount: float | None) -> None:
    """Set the budget of a session (None) or a task; without an amount, lift it.

    Raises:
        ValueError: `refusal` refuses it.
    """
    if kind not in UNITS:
        raise ValueError("unknown budget unit; use usd, tokens, turns or seconds")
    if amount is not None:
        refused = refusal(tx, tx.session_id, task_id, kind, amount)
        if refused is not None:
            raise ValueError(refused)
    earlier = tx.one(
        "SELECT required FROM budgets WHERE session_id = ? AND task_id IS NOT DISTINCT FROM ? AND kind = ?",
        (tx.session_id, task_id, kind),
    )
    tx.execute(
        "DELETE FROM budgets WHERE session_id = ? AND task_id IS NOT DISTINCT FROM ? AND kind = ?",
        (tx.session_id, task_id, kind),
    )
    if amount is not None:
        required = (
            earlier[0] if earlier is not None and earlier[0] is not None and amount < earlier[0] else None
        )
        tx.execute(
            "INSERT INTO budgets (session_id, task_id, kind, amount, required, created_at, commit_seq)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (tx.session_id, task_id, kind, float(amount), required, tx.now, tx.commit_seq),
        )
    tx.event("budget.set", task_id=task_id, budget=kind, amount=amount)


def note_reached(
    tx: Transaction, agent_id: str, task_id: str | None, kind: str, reason: str, required: float | None
) -> None:
    """Say that a budget covers no further call; `task_id` is None for the session's own."""
    tx.execute(
        "UPDATE budgets SET reached_at = coalesce(reached_at, ?), required = ? WHERE session_id = ? AND"
        " task_id IS NOT DISTINCT FROM ? AND kind = ?",
        (tx.now, required, tx.session_id, task_id, kind),
    )
    tx.event("budget.reached", agent_id=agent_id, task_id=task_id, budget=kind, reason=reason)


def resume_command(session_id: str, uses: list[BudgetUse]) -> str:
    """The command that raises these budgets and resumes."""
    own: dict[str, float] = {}
    for use in uses:
        own[use.budget.kind] = max(use.shortfall, own.get(use.budget.kind, 0.0))
    options = [f" --budget-{kind} +{plain_amount(more, kind)}" for kind, more in own.items()]
    return f"wk resume {session_id}{''.join(options)}"


# --- Budgets of a project -----------------------------------------------------------------------------------
#
# An earlier version let the sessions of a project share a budget. None is made any more, and a session that one
# bounds does not run: no limit disappears without a person's word.


def refuse_project_budget(connection: Connection, session_id: str) -> None:
    """Refuse to drive a session that shares a budget.

    Raises:
        BadInput: it does; the command that removes the budget.
    """
    row = connection.execute(
        "SELECT b.project FROM sessions s JOIN project_budgets b ON b.project = s.project WHERE s.id = ?",
        (session_id,),
    ).fetchone()
    if row is not None:
        raise BadInput(
            f"session {session_id} shares the budget set for project {row[0]}, which this version does not support. Remove it with"
            f" `wk budget --project {row[0]} --remove`, and limit the session with `wk budget {session_id} --usd N`"
        )


def remove_project(connection: Connection, project: str) -> list[tuple[str, float]]:
    """Remove the budgets of a project; returns the kind and the amount of each. For a transaction that holds the write
    lock."""
    removed = "DELETE FROM project_budgets WHERE project = ? RETURNING kind, amount"
    return sorted(tuple(row) for row in connection.execute(removed, (project,)).fetchall())


# --- calls in progress --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReservedCall:
    """What a call in progress may use at most."""

    id: str
    """Never used again, unlike a row's number."""
    task_id: str | None
    tokens: int
    cost_usd: float | None
    turns: int


def reservations(tx: Transaction) -> list[ReservedCall]:
    """The calls of this host that are in progress."""
    rows = tx.all(
        "SELECT id, task_id, tokens, cost_usd, purpose FROM reservations WHERE session_id = ? AND"
        " lease_epoch = ?",
        (tx.session_id, tx.epoch),
    )
    return [
        ReservedCall(row[0], row[1], row[2], row[3], 1 if row[4] in ("turn", "planner") else 0)
        for row in rows
    ]


def add_reservation(
    tx: Transaction,
    reservation_id: str,
    *,
    agent_id: str,
    task_id: str | None,
    model: str,
    purpose: str,
    tokens: int,
    cost_usd: float | None,
) -> None:
    """Write what a call may use before it is made."""
    tx.execute(
        "INSERT INTO reservations (id, session_id, agent_id, task_id, lease_epoch, model, purpose, tokens,"
        " cost_usd, created_at,"
        " expires_at, commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            reservation_id, tx.session_id, agent_id, task_id, tx.epoch, model, purpose, tokens, cost_usd, tx.now, tx.now + RESERVATION_SECONDS,
            tx.commit_seq,
        ),
    )  # fmt: skip


def settle_reservation(tx: Transaction, reservation_id: str) -> None:
    """The call has ended, and what it used is recorded in this transaction (or it used nothing)."""
    tx.execute("DELETE FROM reservations WHERE id = ?", (reservation_id,))


def _round_up(amount: float, kind: str) -> float:
    """Round up to two significant digits: 1,234 becomes 1,300."""
    if amount <= 0:
        return 1.0
    step = 10.0 ** (math.floor(math.log10(amount)) - 1)
    if kind in ("tokens", "turns"):
        step = max(1.0, step)
    elif kind == "usd":
        step = max(0.01, step)
    return float(f"{math.ceil(amount / step - 1e-9) * step:.6g}")


# --- Rows of `rate_limits` ----------------------------------------------------------------------------------
#
# What a provider asks of all hosts of this database, one row for each provider and model. `rate`: hold back
# for some seconds; calls wait for it. `usage`: a usage limit until `until`; agents are parked. `blocked`: no
# credit or a bad key, which has no end (`until` is 0); the session pauses. A row of the last two kinds stays
# until a call has succeeded.

RATE, USAGE, BLOCKED = "rate", "usage", "blocked"


@dataclass(frozen=True, slots=True)
class NotedLimit:
    """What is noted of one provider and model."""

    kind: str
    until: float
    """Wall time; 0 for `blocked`."""
    reason: str
    noted_at: float


def find(reads: Reads, model_ref: str) -> NotedLimit | None:
    """What is noted of a model, of whichever kind."""
    provider, _, name = model_ref.partition("/")
    row = reads.one(
        "SELECT kind, until, reason, noted_at FROM rate_limits WHERE provider = ? AND model = ?",
        (provider, name),
    )
    if row is None:
        return None
    return NotedLimit(row[0], float(row[1]), row[2], float(row[3]) if row[3] is not None else 0.0)


def note(group: Group, model_ref: str, limit: NotedLimit) -> None:
    """Write what a provider asks. A `rate` limit never hides one of the other kinds, which a call must lift
    first."""
    provider, _, name = model_ref.partition("/")
    group.connection.execute(
        "INSERT INTO rate_limits (provider, model, until, reason, kind, noted_at) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (provider, model) DO UPDATE SET"
        " until = CASE WHEN excluded.kind = 'rate' AND rate_limits.until > excluded.until THEN"
        " rate_limits.until"
        " ELSE excluded.until END, reason = excluded.reason, kind = excluded.kind, noted_at ="
        " excluded.noted_at"
        " WHERE excluded.kind <> 'rate' OR rate_limits.kind = 'rate'",
        (provider, name, limit.until, plain(limit.reason), limit.kind, limit.noted_at),
    )


def lift(group: Group, model_ref: str) -> None:
    """A call has succeeded: the usage limit, or what blocked the model, is over."""
    provider, _, name = model_ref.partition("/")
    group.connection.execute(
        "DELETE FROM rate_limits WHERE provider = ? AND model = ? AND kind IN ('usage', 'blocked')",
        (provider, name),
    )
