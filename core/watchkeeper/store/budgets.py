"""Budgets of a session, of its tasks and of a project: the limit, the used amount, and the reservations of calls.

A budget is a row of `budgets`, or of `project_budgets` for all sessions of a project together. A call in progress
is a row of `reservations`, written before the call and deleted in the transaction that records it. Every reader
(host, command line, dashboard) asks the same functions.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from watchkeeper.records.errors import BadInput
from watchkeeper.store.driver import decode, plain
from watchkeeper.store.transaction import Transaction

if TYPE_CHECKING:
    from watchkeeper.store.writer import Group


UNITS = {"usd": "USD", "tokens": "tokens", "turns": "turns", "seconds": "seconds of hosted time"}
"""Kind of budget → its unit. Tokens include cache reads; turns are model replies."""
KINDS = tuple(UNITS)
PROJECT_KINDS = ("usd", "tokens")
"""Kinds that a project can have."""

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
    project: str | None = None
    """Set where all sessions of this project share the limit; `task_id` is then None."""


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
        if self.budget.project is not None:
            owner = f"project {self.budget.project}"
        elif self.budget.task_id is not None:
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


def load(reads: Any, session_id: str) -> list[Budget]:
    """The budgets of a session and of its tasks, oldest first, then those of its project."""
    rows = reads.all(
        "SELECT task_id, kind, amount, required, NULL AS project, id FROM budgets WHERE session_id = ?1"
        " UNION ALL SELECT NULL, b.kind, b.amount, NULL, b.project, NULL FROM sessions s"
        " JOIN project_budgets b ON b.project = s.project WHERE s.id = ?1",
        (session_id,),
    )
    rows.sort(key=lambda row: (row[4] is not None, row[5] or 0, row[1]))
    return [Budget(row[0], row[1], row[2], row[3], row[4]) for row in rows]


def used(reads: Any, session_id: str, task_id: str | None, kind: str) -> float | None:
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
"""Of the agent that shows what was done before: it has no task, and is not the planner."""


def usage(reads: Any, session_id: str) -> list[BudgetUse]:
    """Every budget of a session, of its tasks and of its project with what is used of it, in the order of `load`."""
    found = []
    for budget in load(reads, session_id):
        name = None
        if budget.project is not None:
            required = _refused_here(reads, session_id, budget)
            spent = used_by_project(reads, budget.project, budget.kind)
            found.append(BudgetUse(replace(budget, required=required), spent))
            continue
        if budget.task_id is not None:
            row = reads.one("SELECT name FROM tasks WHERE id = ?", (budget.task_id,))
            name = str(row[0]) if row else None
        found.append(BudgetUse(budget, used(reads, session_id, budget.task_id, budget.kind), name))
    return found


def blocking(reads: Any, session_id: str) -> list[BudgetUse]:
    """The reached budgets because of which a host would pause again at once; empty if an agent could
    continue.

    A session's budget, or its project's, stops everything. A task's budget stops its task. Nothing continues if the planner has
    nothing to answer and every other open task waits for a stopped one.
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


def refusal(reads: Any, session_id: str, task_id: str | None, kind: str, amount: float) -> str | None:
    """Why this amount cannot be the limit, or None: it must be more than what is used."""
    if kind not in UNITS:
        return "a budget is in usd, tokens, turns or seconds"
    if not (amount > 0 and math.isfinite(amount)):
        return "a budget must be positive; leave the amount out to lift it"
    spent = used(reads, session_id, task_id, kind)
    if spent is not None and amount <= spent:
        owner = "the task" if task_id is not None else "the session"
        wanted, so_far = amount_text(amount, kind), amount_text(spent, kind)
        return f"a budget of {wanted} would pause at once: {owner} has used {so_far} already; give more than that, or +N"
    return None


def amount_of(reads: Any, session_id: str, task_id: str | None, kind: str, text: str) -> float:
    """The limit that a person means by `text`: an amount, or `+N` for N more than the limit that there is.

    Without a limit of that kind, `+N` is N more than what is used.

    Raises:
        ValueError: no amount, one that `refusal` refuses, or one in USD where only calls without a price were
            made.
    """
    unpriced = kind == "usd" and used(reads, session_id, task_id, "usd") is None
    if unpriced and used(reads, session_id, task_id, "tokens"):
        raise ValueError(
            "no call so far has a known price, so a budget in USD cannot be kept; give one in tokens"
        )
    amount, more = _typed(text)
    if more:
        current = next(
            (
                one
                for one in load(reads, session_id)
                if one.project is None and (one.task_id, one.kind) == (task_id, kind)
            ),
            None,
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


def raised_amount(reads: Any, session_id: str, use: BudgetUse, text: str) -> float:
    """The new limit of a reached budget that a person means by `text`; see `amount_of`.

    Raises:
        ValueError: it would pause again at once.
    """
    if use.budget.project is not None:
        amount = project_amount(reads, use.budget.project, use.budget.kind, text)
    else:
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
        raise ValueError("a budget is in usd, tokens, turns or seconds")
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
    """The command that raises these budgets and resumes. Budgets of a project are raised by a command before."""
    own: dict[str, float] = {}
    for use in uses:
        if use.budget.project is None:
            own[use.budget.kind] = max(use.shortfall, own.get(use.budget.kind, 0.0))
    options = [f" --budget-{kind} +{plain_amount(more, kind)}" for kind, more in own.items()]
    before = [f"{raise_command(use)} && " for use in uses if use.budget.project is not None]
    return f"{''.join(before)}wk resume {session_id}{''.join(options)}"


# --- Budgets of a project -----------------------------------------------------------------------------------


_PROJECT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}")


def check_project(name: str) -> str:
    """The name of a project as it is given.

    Raises:
        BadInput: it has other characters than letters, digits and `_ . -`, or is longer than 40.
    """
    if not _PROJECT.fullmatch(name):
        raise BadInput(f"{name[:60]!r} is no project; use letters, digits and _ . -, at most 40")
    return name


_USED_BY_PROJECT = (
    "SELECT (SELECT sum({of_session}) FROM sessions WHERE project = ?1 AND {there}),"
    " (SELECT sum({of_call}) FROM sessions s CROSS JOIN model_calls c WHERE s.project = ?1 AND s.origin = 'fork'"
    " AND {there} AND c.session_id = s.id"
    " AND coalesce(c.commit_seq, 0) <= coalesce(s.forked_at_seq, 0)),"
    " (SELECT sum({of_agent}) FROM sessions s CROSS JOIN agent_programs p CROSS JOIN agents a WHERE s.project = ?1"
    " AND s.origin <> 'fork' AND p.session_id = s.id AND a.id = p.agent_id AND a.task_id IS NULL"
    " AND a.parent_agent_id IS NOT NULL)"
)
"""What its sessions used; of it the calls that forks copied; of it what agent programs used before."""
_THERE = "(deleted_at IS NULL OR deleted_at > 0)"
"""Not a fork that is being copied, nor a session that is being purged."""


def _tokens_of(alias: str) -> str:
    return " + ".join(f"{alias}{name}_tokens" for name in ("input", "output", "cache_read", "cache_write"))


_USED_BY = {
    "usd": _USED_BY_PROJECT.format(
        of_session="cost_usd", of_call="c.cost_usd", of_agent="a.cost_usd", there=_THERE
    ),
    "tokens": _USED_BY_PROJECT.format(
        of_session=_tokens_of(""), of_call=_tokens_of("c."), of_agent=_tokens_of("a."), there=_THERE
    ),
}


def used_by_project(reads: Any, project: str, kind: str) -> float | None:
    """What the sessions of a project have used together; None for USD where no price is known.

    A call that a fork copied counts once. Sessions that were deleted count until they are purged.
    """
    row = reads.one(_USED_BY[kind], (project,))
    spent: float | None = row[0]
    if isinstance(reads, Transaction):
        for session_id, (cost_usd, tokens) in reads.unflushed_by_session.items():
            more = tokens if kind == "tokens" else cost_usd
            if more and reads.one(
                "SELECT 1 FROM sessions WHERE id = ? AND project = ?", (session_id, project)
            ):
                spent = (spent or 0.0) + more
    if spent is None:
        return 0.0 if kind == "tokens" else None
    return max(0.0, float(spent) - float(row[1] or 0.0) - float(row[2] or 0.0))


def project_usage(reads: Any, project: str) -> list[BudgetUse]:
    """The budgets of a project with what is used of them."""
    rows = reads.all("SELECT kind, amount FROM project_budgets WHERE project = ? ORDER BY kind", (project,))
    return [
        BudgetUse(Budget(None, row[0], row[1], project=project), used_by_project(reads, project, row[0]))
        for row in rows
    ]


def project_amount(reads: Any, project: str, kind: str, text: str) -> float:
    """The limit of a project that a person means by `text`, as `amount_of`.

    Raises:
        ValueError: no amount, or not more than what is used.
    """
    if kind not in PROJECT_KINDS:
        raise ValueError("a project's budget is in usd or tokens")
    amount, more = _typed(text)
    spent = used_by_project(reads, project, kind)
    if spent is None and used_by_project(reads, project, "tokens"):
        raise ValueError(
            "no call so far has a known price, so a budget in USD cannot be kept; give one in tokens"
        )
    if more:
        row = reads.one("SELECT amount FROM project_budgets WHERE project = ? AND kind = ?", (project, kind))
        amount += row[0] if row is not None else spent or 0.0
    if not (amount > 0 and math.isfinite(amount)):
        raise ValueError(f"a budget must be positive; --lift {kind} removes it")
    if amount <= (spent or 0.0):
        wanted, so_far = amount_text(amount, kind), amount_text(spent or 0.0, kind)
        raise ValueError(
            f"a budget of {wanted} would pause at once: project {project} has used {so_far} already; give more"
            " than that, or +N"
        )
    return amount


def write_project(connection: Any, project: str, kind: str, amount: float | None, now: float) -> None:
    """Set a budget of a project; without an amount, lift it. For a transaction that holds the write lock."""
    if amount is None:
        connection.execute("DELETE FROM project_budgets WHERE project = ? AND kind = ?", (project, kind))
        return
    connection.execute(
        "INSERT INTO project_budgets (project, kind, amount, created_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (project, kind) DO UPDATE SET amount = excluded.amount",
        (project, kind, float(amount), now),
    )


def raise_command(use: BudgetUse) -> str:
    """The command that raises the budget of a project enough to go on."""
    budget = use.budget
    return f"wk budget --project {budget.project} --{budget.kind} +{plain_amount(use.shortfall, budget.kind)}"


def note_project_reached(
    tx: Transaction, agent_id: str, project: str, kind: str, reason: str, required: float | None
) -> None:
    """Say in this session that a budget of its project covers no further call."""
    tx.event(
        "budget.reached", agent_id=agent_id, project=project, budget=kind, reason=reason, required=required
    )


def _refused_here(reads: Any, session_id: str, budget: Budget) -> float | None:
    """What the call needs that the project's budget refused, if that paused the session last."""
    row = reads.one(
        "SELECT data FROM events WHERE session_id = ? AND kind = 'budget.reached' ORDER BY seq DESC LIMIT 1",
        (session_id,),
    )
    data = decode(row[0]) if row is not None else {}
    if (data.get("project"), data.get("budget")) != (budget.project, budget.kind):
        return None
    required: float | None = data.get("required")
    return required


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


def lock_project(tx: Transaction) -> None:
    """Let no other host decide on a call of this session's project until this transaction has ended.

    On PostgreSQL it locks one row, so that two hosts never wait for each other. What is read next is what others
    have committed before. On SQLite, the transaction holds the write lock already.
    """
    tx.execute(
        "UPDATE project_budgets SET amount = amount WHERE project = (SELECT project FROM sessions WHERE id = ?1)"
        " AND kind = (SELECT min(kind) FROM project_budgets WHERE project ="
        " (SELECT project FROM sessions WHERE id = ?1))",
        (tx.session_id,),
    )


def reservations_elsewhere(tx: Transaction, project: str) -> list[ReservedCall]:
    """The calls in progress of the project's other sessions, on any host.

    Read it before what is used: a call that is recorded meanwhile then counts twice, never not at all. A call of
    a host that died counts until the session is claimed again, or `RESERVATION_SECONDS`.
    """
    rows = tx.all(
        "SELECT r.id, r.tokens, r.cost_usd FROM sessions s CROSS JOIN reservations r"
        " WHERE s.project = ? AND s.id <> ? AND r.session_id = s.id AND r.expires_at > ?",
        (project, tx.session_id, tx.now),
    )
    return [ReservedCall(row[0], None, row[1], row[2], 0) for row in rows]


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


def find(reads: Any, model_ref: str) -> NotedLimit | None:
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
