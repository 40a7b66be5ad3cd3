"""Fencing: a host whose epoch has passed writes nothing more; events have no gaps; totals equal recounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.store.conftest import run
from tests.support.agent_rows import create_agent

from watchkeeper.records.errors import LeaseLost, NotFound
from watchkeeper.records.messages import Cost, PriceStatus, Usage
from watchkeeper.records.model_calls import ModelCallRecord
from watchkeeper.records.ports import ManualClock
from watchkeeper.records.states import ModelCallStatus
from watchkeeper.store import agents, database, driver
from watchkeeper.store.lease import probe
from watchkeeper.store.schema import BY_NAME
from watchkeeper.store.transaction import SessionStore, Transaction

ON_BOTH = True
"""See `conftest`."""


def take_over(store: SessionStore) -> None:
    """What another host's claim does to the row."""
    connection = database.open_writable(store.path)
    driver.begin_immediate(connection)
    connection.execute("UPDATE sessions SET lease_epoch = lease_epoch + 1 WHERE id = ?", (store.session_id,))
    connection.execute("COMMIT")
    connection.close()


def everything(store: SessionStore) -> dict[str, list[Any]]:
    """Every row of every table."""
    connection = database.open_readonly(store.path)
    rows = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in BY_NAME}
    connection.close()
    return rows


async def test_nothing_is_written_once_another_host_has_taken_over(store: SessionStore) -> None:
    await store.commit(lambda tx: tx.event("before"))
    take_over(store)
    before = everything(store)
    commits = [store.commit(lambda tx: tx.event("after")) for _ in range(5)]
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert all(isinstance(outcome, LeaseLost) for outcome in outcomes)
    assert store.lost is not None
    with pytest.raises(LeaseLost):
        await store.commit(lambda tx: tx.event("much later"))
    assert everything(store) == before


async def test_a_lost_session_never_harms_another_one_that_the_same_writer_serves(store, start):
    other = start()
    take_over(store)

    def fine(group: Any) -> int:
        return Transaction(group, other, 0, 1.0).event("fine")

    lost = asyncio.ensure_future(store.commit(lambda tx: tx.event("lost")))
    assert await store.writer.commit(fine) == 1
    with pytest.raises(LeaseLost):
        await lost


def test_the_next_claim_has_a_higher_epoch_and_goes_on_where_the_events_stood(store: SessionStore) -> None:
    last = run(store, lambda tx: tx.event("one"))
    store.close()
    again = SessionStore.claim(store.path, store.session_id, ManualClock(), pid=1, host_name="h")
    assert again.epoch == store.epoch + 1
    assert run(again, lambda tx: tx.event("two")) == last + 1
    again.close()


def test_claiming_a_session_that_is_not_there_leaves_no_lease_behind(store: SessionStore) -> None:
    for _ in range(2):
        with pytest.raises(NotFound, match="wk sessions"):
            SessionStore.claim(store.path, "nothere", ManualClock(), pid=1, host_name="h")
    assert probe(store.path, "nothere") is None


STEP = st.tuples(
    st.integers(0, 3),  # the agent
    st.integers(0, 3),  # how many events
    st.sampled_from(["fine", "fine", "fine", "raises"]),
    st.integers(0, 1000),  # tokens
    st.sampled_from([None, 0.25, 0.5]),  # binary fractions add up exactly
    st.sampled_from([ModelCallStatus.DONE, ModelCallStatus.ERROR, ModelCallStatus.ABANDONED]),
)


@settings(max_examples=30)
@given(steps=st.lists(STEP, max_size=25), takeover_at=st.none() | st.integers(0, 25))
def test_concurrent_agents_leave_no_gap_in_the_events_and_totals_that_add_up(steps, takeover_at, start, path):
    store = SessionStore.claim(path, start(), ManualClock(), pid=1, host_name="h")
    names = [f"{store.session_id}-{number}" for number in range(4)]

    def make(tx: Transaction) -> None:
        for name in names:
            create_agent(tx, name, name="a")

    run(store, make)

    def batch(step: Any) -> Callable[[Transaction], int]:
        agent, events, ending, tokens, usd, status = step

        def change(tx: Transaction) -> int:
            for _ in range(events):
                tx.event("happened", agent_id=names[agent])
            agents.add_model_call(tx, ModelCallRecord(
                agent_id=names[agent], turn=1, purpose="turn", model="m", status=status,
                usage=Usage(tokens, tokens // 2, tokens // 3, 1), started_at=1.0, latency_seconds=1.0, retries=tokens % 3,
                cost=Cost(usd, PriceStatus.UNPRICED if usd is None else PriceStatus.EXACT),
            ))  # fmt: skip
            if ending == "raises":
                raise ValueError("bad batch")
            return events

        return change

    async def drive() -> int:
        waiting = []
        for number, step in enumerate(steps):
            if number == takeover_at:
                take_over(store)
            waiting.append(asyncio.ensure_future(store.commit(batch(step))))
            if number % 3 == 0:
                await asyncio.sleep(0)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, int | ValueError | LeaseLost) for one in outcomes)
        return sum(one for one in outcomes if isinstance(one, int))

    acknowledged = asyncio.run(drive())
    seqs = [
        row[0]
        for row in store.all("SELECT seq FROM events WHERE session_id = ? ORDER BY seq", (store.session_id,))
    ]
    assert seqs == list(range(1, 4 + acknowledged + 1))
    session = store.one("SELECT * FROM sessions WHERE id = ?", (store.session_id,))
    assert session["event_seq"] == len(seqs)
    columns = (
        "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "retries", "cost_usd",
    )  # fmt: skip
    for where, key, totals in [("session_id", store.session_id, session)] + [
        ("agent_id", name, store.one("SELECT * FROM agents WHERE id = ?", (name,))) for name in names
    ]:
        sums = ", ".join(f"sum({column}) AS {column}" for column in columns)
        recount = store.one(
            f"SELECT {sums}, count(*) AS model_calls,"
            " sum(CASE WHEN status = 'error' THEN 1 ELSE 0 END) AS errors,"
            " sum(CASE WHEN price_status = 'unpriced' THEN 1 ELSE 0 END) AS unpriced_calls"
            f" FROM model_calls WHERE {where} = ?",
            (key,),
        )
        for column in (*columns, "model_calls", "errors", "unpriced_calls"):
            expected = recount[column] if column == "cost_usd" else (recount[column] or 0)
            assert totals[column] == expected, (where, column)
    store.close()
