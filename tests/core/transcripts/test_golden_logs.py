"""Small logs made by hand, one for each way in which a public report found totals or ends to be wrong, with what is
right for them in `golden/expected.json`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.models.registry import context_window, logged_price
from watchkeeper.store import database
from watchkeeper.store.driver import Queries
from watchkeeper.store.search.messages import list_sessions
from watchkeeper.store.statistics import usage

GOLDEN = Path(__file__).with_name("golden")
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())
_COLUMNS = {
    "calls": "count(*)", "input": "sum(input_tokens)", "output": "sum(output_tokens)", "cost": "sum(cost_usd)",
    "cache_read": "sum(cache_read_tokens)", "cache_write": "sum(cache_write_tokens)",
}  # fmt: skip


@pytest.mark.parametrize("case", EXPECTED)
@pytest.mark.parametrize("live", [False, True])
def test_a_log_made_by_hand_is_read_as_what_happened(store: Store, case: str, live: bool) -> None:
    expected = EXPECTED[case]
    store.run(GOLDEN / case, live=live, pricing=logged_price, windows=context_window)
    found = dict(
        zip(_COLUMNS, store.one(f"SELECT {', '.join(_COLUMNS.values())} FROM model_calls"), strict=True)
    )
    assert found == {name: pytest.approx(expected.get(name, value)) for name, value in found.items()}
    if "cost" in expected:
        assert store.all("SELECT DISTINCT price_status FROM model_calls") == [("exact",)]
    for name, status in expected.get("agents", {}).items():
        # Where nothing reports the end, an agent works as long as its log is followed.
        wanted = status[live] if isinstance(status, list) else status
        assert store.all("SELECT status FROM agents WHERE name = ?", name) == [(wanted,)]
    with closing(database.open_readonly(store.path)) as connection:
        is_partial = bool(expected.get("partial"))
        assert [line.is_lower_bound for line in list_sessions(Queries(connection))] == [
            is_partial
        ] * store.one("SELECT count(*) FROM sessions")
        assert usage(connection)[1].is_partial is is_partial
    if "statuses" in expected:
        ended = "SELECT CASE WHEN parent_agent_id IS NULL AND status = 'idle' THEN 'done' ELSE status END FROM agents"
        assert sorted(row[0] for row in store.all(ended)) == expected["statuses"]
    if "percent" in expected:
        (shares,) = store.all("SELECT round(100.0 * context_tokens / context_limit) FROM agents")
        assert shares == (expected["percent"],)
    if "verbatim_from" in expected:
        views = "SELECT verbatim_from FROM views ORDER BY version DESC LIMIT 1"
        assert store.one(views) == expected["verbatim_from"]
    if "parked_until" in expected:
        assert store.all("SELECT status, parked_until FROM agents") == [("parked", expected["parked_until"])]
    if "says" in expected:
        assert json.dumps(store.said()).count(expected["says"]) == 1
    if "event" in expected:
        kind, error = expected["event"]
        assert (kind, error) in store.errors()
