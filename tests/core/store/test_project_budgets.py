"""A budget of a project holds while many sessions, each with a writer of its own, ask at once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.support.places import workspace_in

from watchkeeper.agents.limits import BudgetReached, Budgets, PlannedCall
from watchkeeper.records.messages import Cost, PriceStatus, Purpose, Usage
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.runtime.run_session import set_project_budget
from watchkeeper.store import budgets
from watchkeeper.store.place import Place
from watchkeeper.store.transaction import SessionStore, Transaction

ON_BOTH = True
"""See `conftest`."""

AGENTS = 3
MOST_OUTPUT = 500
DOLLARS = 0.001
"""The price of a token."""


def price(model: str, usage: Usage, exact: bool) -> Cost:
    return Cost(usage.total_tokens * DOLLARS, PriceStatus.EXACT)


class Sessions:
    """Sessions of the project `p` that are driven at once, and what their calls used."""

    def __init__(self, path: Place, folder: Path, count: int) -> None:
        wanted = NewSession("goal", workspace_in(folder), "test/model", project="p")
        self.stores = [
            SessionStore.claim(
                path, create_session(path, wanted), ManualClock(), pid=1, host_name=f"h{number}"
            )
            for number in range(count)
        ]
        self.used = 0
        self.all_at_once = asyncio.Barrier(count * AGENTS)

    async def work(
        self, store: SessionStore, asked: Budgets, agent: str, chance: random.Random
    ) -> BudgetReached:
        """Make calls until a budget refuses one."""
        first = True
        while True:
            spent_in = chance.randint(100, 1_000)
            reserved = await asked.reserve(PlannedCall(agent, None, "m", Purpose.TURN, spent_in, MOST_OUTPUT))
            if isinstance(reserved, BudgetReached):
                return reserved
            assert reserved is not None
            if first:  # there is room for all of them side by side
                await self.all_at_once.wait()
                first = False
            usage = Usage(input_tokens=spent_in, output_tokens=chance.randint(1, MOST_OUTPUT))
            for _ in range(chance.randint(0, 30)):
                await asyncio.sleep(0)
            self.used += usage.total_tokens
            reserved.end(usage, usage.total_tokens * DOLLARS, 1)

            def record(tx: Transaction, usage: Usage = usage, number: str = reserved.id) -> None:
                tx.add_usage(usage, price("m", usage, True))
                budgets.settle_reservation(tx, number)

            await store.commit(record)

    def close(self) -> None:
        for store in self.stores:
            store.close()


@pytest.mark.parametrize("kind", budgets.PROJECT_KINDS)
async def test_sessions_go_beyond_their_project_by_one_calls_output_at_most(path, tmp_path, kind):
    tokens = 30_000
    set_project_budget(path, "p", kind, str(tokens if kind == "tokens" else tokens * DOLLARS))
    all_of = Sessions(path, tmp_path, 4)
    chance = random.Random(19)
    working = []
    for store in all_of.stores:
        asked = Budgets(store, lambda: 0.0, price, ManualClock())
        working += [all_of.work(store, asked, f"{store.session_id}-{one}", chance) for one in range(AGENTS)]
    try:
        reached = await asyncio.gather(*working)
        assert {(one.project, one.whole_session) for one in reached} == {("p", True)}
        assert "project p has used" in reached[0].reason
        assert tokens * 0.9 <= all_of.used <= tokens + MOST_OUTPUT
        reads = all_of.stores[0]
        assert reads.one("SELECT count(*) FROM reservations")[0] == 0
        unit = 1 if kind == "tokens" else DOLLARS
        assert budgets.used_by_project(reads, "p", kind) == pytest.approx(all_of.used * unit)
    finally:
        all_of.close()


async def test_a_call_waits_for_another_hosts_call_and_is_made_once_that_has_ended(path, tmp_path):
    set_project_budget(path, "p", "tokens", "1000")
    both = Sessions(path, tmp_path, 2)
    first, second = (Budgets(store, lambda: 0.0, price, ManualClock()) for store in both.stores)
    try:
        held = await first.reserve(PlannedCall("a", None, "m", Purpose.TURN, 100, 500))
        assert held is not None
        assert not isinstance(held, BudgetReached)
        waiting = asyncio.ensure_future(second.reserve(PlannedCall("b", None, "m", Purpose.TURN, 100, 500)))
        await both.stores[1].commit(lambda tx: tx.event("later"))
        assert not waiting.done()
        held.release()
        made = await asyncio.wait_for(waiting, 30)
        assert made is not None
        assert not isinstance(made, BudgetReached)
    finally:
        both.close()
