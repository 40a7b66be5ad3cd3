"""Budgets: what was spent against what may be, asked before each model call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from watchkeeper.agents.environment import BudgetReached
from watchkeeper.store.transaction import Transaction

UNITS = {"usd": "USD", "tokens": "tokens", "turns": "turns", "seconds": "seconds of hosted time"}


def write_budget(tx: Transaction, task_id: str | None, kind: str, amount: float | None) -> None:
    """Set the budget of a session (None) or a task; without an amount, take it away.

    Raises:
        ValueError: no such kind, or not positive.
    """
    if kind not in UNITS:
        raise ValueError("a budget is in usd, tokens, turns or seconds")
    if amount is not None and not amount > 0:
        raise ValueError("a budget must be positive; leave the amount out to lift it")
    tx.execute("DELETE FROM budgets WHERE session_id = ? AND task_id IS ? AND kind = ?", (tx.session_id, task_id, kind))
    if amount is not None:
        tx.execute(
            "INSERT INTO budgets (session_id, task_id, kind, amount, created_at, commit_seq) VALUES (?, ?, ?, ?, ?, ?)",
            (tx.session_id, task_id, kind, float(amount), tx.now, tx.commit_seq),
        )
    tx.event("budget.set", task_id=task_id, budget=kind, amount=amount)


class Budgets:
    """Answers whether a session, or one task, may go on.

    Tokens count the cache reads; turns are model replies; seconds are hosted wall time (for a task: its agents'
    active time).
    """

    def __init__(self, reads: Any, session_id: str, hosted_seconds: Callable[[], float]) -> None:
        self._reads = reads
        self._session_id = session_id
        self._hosted_seconds = hosted_seconds
        self._turns: tuple[int, int] | None = None
        """Turns of all agents, through which event: counted once, and from then on in the log of events."""

    def reached(self, task_id: str | None) -> BudgetReached | None:
        """The first budget that is used up, for the session or for the task; None: go on."""
        rows = self._reads.all("SELECT task_id, kind, amount FROM budgets WHERE session_id = ? ORDER BY id", (self._session_id,))
        for owner, kind, amount in rows:
            if owner is not None and owner != task_id:
                continue
            spent = self.spent(owner, kind)
            if spent is not None and spent >= amount:
                whole = owner is None
                what = "the session's" if whole else "the task's"
                said = f"{what} budget of {amount:g} {UNITS[kind]} is reached ({spent:g} spent); raise it with `wk budget`"
                return BudgetReached(said, kind, whole)
        return None

    def spent(self, task_id: str | None, kind: str) -> float | None:
        """What a session (None) or a task has used, in units of a kind of budget."""
        if task_id is not None:
            row = self._reads.one(
                "SELECT sum(cost_usd) AS usd, sum(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens) AS tokens,"
                " sum(turn) AS turns, sum(active_seconds) AS seconds FROM agents WHERE task_id = ?",
                (task_id,),
            )
            spent: float | None = row[kind]
            return spent if kind == "usd" else spent or 0
        if kind == "seconds":
            return self._hosted_seconds()
        if kind == "turns":
            return self._count_turns()
        row = self._reads.one(
            "SELECT cost_usd AS usd, input_tokens + output_tokens + cache_read_tokens + cache_write_tokens AS tokens"
            " FROM sessions WHERE id = ?",
            (self._session_id,),
        )
        of_session: float | None = row[kind]
        return of_session

    def _count_turns(self) -> int:
        if self._turns is None:
            row = self._reads.one(
                "SELECT event_seq, (SELECT coalesce(sum(turn), 0) FROM agents WHERE session_id = sessions.id) FROM sessions"
                " WHERE id = ?",
                (self._session_id,),
            )
            self._turns = (row[1], row[0])
        else:
            row = self._reads.one(
                "SELECT event_seq, (SELECT count(*) FROM events WHERE session_id = sessions.id AND seq > ?"
                " AND kind = 'model.replied') FROM sessions WHERE id = ?",
                (self._turns[1], self._session_id),
            )
            self._turns = (self._turns[0] + row[1], row[0])
        return self._turns[0]
