"""A host's transaction: what its statements return, its events' numbers, its totals, and what it keeps of rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.core.store.conftest import run

from watchkeeper.records.messages import Cost, PriceStatus, Usage
from watchkeeper.store.transaction import SessionStore, Transaction

PRICED, UNPRICED = Cost(0.5, PriceStatus.EXACT), Cost(None, PriceStatus.UNPRICED)
USAGE = Usage(input_tokens=1, output_tokens=10, cache_read_tokens=100, cache_write_tokens=1_000)
TOTALS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd", "unpriced_calls",
          "model_calls", "retries", "errors")  # fmt: skip


ON_BOTH = True
"""See `conftest`."""


@pytest.mark.parametrize(
    ("usage", "cost", "about", "totals"),
    [
        (USAGE, PRICED, {}, (1, 10, 100, 1_000, 0.5, 0, 1, 0, 0)),
        (USAGE, UNPRICED, {}, (1, 10, 100, 1_000, None, 1, 1, 0, 0)),
        (Usage(), UNPRICED, {}, (0, 0, 0, 0, None, 0, 1, 0, 0)),
        (USAGE, UNPRICED, {"calls": 0}, (1, 10, 100, 1_000, None, 0, 0, 0, 0)),
        (USAGE, PRICED, {"calls": 2, "retries": 3, "errors": 4}, (1, 10, 100, 1_000, 0.5, 0, 2, 3, 4)),
    ],
)
def test_a_call_is_added_to_the_sessions_totals_and_counts_as_unpriced_only_with_tokens_and_no_price(
    store: SessionStore, usage: Usage, cost: Cost, about: dict[str, int], totals: tuple[Any, ...]
) -> None:
    run(store, lambda tx: tx.add_usage(usage, cost, **about))
    assert tuple(store.one(f"SELECT {', '.join(TOTALS)} FROM sessions")) == totals


def test_what_a_group_has_added_can_be_read_before_it_is_written(store: SessionStore) -> None:
    def change(tx: Transaction) -> list[Any]:
        seen = [tx.unflushed_usage]
        for cost in (UNPRICED, PRICED, PRICED):
            tx.add_usage(USAGE, cost)
            seen.append(tx.unflushed_usage)
        assert tuple(tx.one("SELECT input_tokens, cost_usd FROM sessions")) == (0, None)
        return seen

    assert run(store, change) == [(None, 0), (None, 1_111), (0.5, 2_222), (1.0, 3_333)]
    assert tuple(store.one("SELECT input_tokens, cost_usd, model_calls FROM sessions")) == (3, 1.0, 3)


def test_statements_return_the_rows_they_changed_found_or_made(store: SessionStore) -> None:
    def change(tx: Transaction) -> None:
        insert = "INSERT INTO outputs (session_id, agent_id, name, kind, digest, created_at) VALUES (?, 'a0', ?, 'x', 'd', 1)"
        first = tx.insert(insert, (tx.session_id, "one"))
        tx.executemany(insert, [(tx.session_id, "two"), (tx.session_id, "thr\ud800e")])
        assert [tuple(row) for row in tx.all("SELECT id - ?, name FROM outputs ORDER BY id", (first,))] == [
            (0, "one"), (1, "two"), (2, "thr�e"),
        ]  # fmt: skip
        assert tx.changed("UPDATE outputs SET kind = 'y' WHERE id > ?", (first,)) == 2
        assert tx.one("SELECT id FROM outputs WHERE name = 'none'") is None

    blob = "INSERT INTO artifacts (digest, size, media_type, encoding, data, created_at) VALUES ('d', 1, 'text/plain', 'raw', ?, 0)"
    run(store, lambda tx: tx.execute(blob, (b"\0",)))
    run(store, change)


def test_events_are_numbered_on_and_every_row_has_the_number_of_its_transactions_first(store):
    last = store.one("SELECT event_seq FROM sessions")[0]
    for before in (last, last + 2):
        numbers = run(store, lambda tx: [tx.commit_seq, tx.event("one", agent_id="a0"), tx.event("two", x=1)])
        assert numbers == [before + 1, before + 1, before + 2]
    rows = store.all(
        "SELECT seq, commit_seq, kind, agent_id, data FROM events WHERE seq > ? ORDER BY seq", (last + 2,)
    )
    assert [tuple(row) for row in rows] == [
        (last + 3, last + 3, "one", "a0", "{}"), (last + 4, last + 3, "two", None, '{"x":1}'),
    ]  # fmt: skip


def test_replaced_values_are_kept_where_there_were_any(store: SessionStore) -> None:
    run(store, lambda tx: tx.execute("UPDATE sessions SET title = 'old', tags = '[]'"))
    columns = ("title", "tags")

    def change(tx: Transaction) -> int:
        tx.keep_replaced("sessions", tx.session_id, *columns)
        tx.keep_replaced("sessions", tx.session_id, "tags", "forked_from")
        tx.keep_replaced("sessions", "not there", *columns)
        return tx.commit_seq

    seq = run(store, change)
    kept = store.all("SELECT session_id, commit_seq, table_name, row_id, old_values FROM state_changes")
    found = [(*row[:4], json.loads(row[4])) for row in map(tuple, kept)]
    assert found == [(store.session_id, seq, "sessions", store.session_id, {"title": "old", "tags": "[]"})]
